"""The side of other libraries in `lmctr benchmark peers`: a script for the Python of their own virtual environment.

It imports nothing of lmctr, and the other library only where its loop is made. What it trains with comes as one JSON file; the arrays
lie beside it. It talks to the process that started it by lines of JSON, see [`Turns`].
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

LEARNING_RATE = 1e-3
_PARTS = ("train", "validation", "test")
_CLOCKS = (time.perf_counter, time.process_time)  # the latter counts all threads, but no worker processes of a loader


class Turns:
    """Lets a training loop run so many steps at a time, whenever the process that reads `told` sends a line.

    Each turn ends with a line `{"seconds": of the turn, "cpu_seconds": of the processor, "steps": how many}`; waiting is not counted. The first line is
    `{"ready": true, **about}`, the last one `{"auc": ...}`.
    """

    def __init__(self, steps: int, asked: TextIO, told: TextIO):
        self.steps, self.asked, self.told, self.taken = steps, asked, told, 0

    def tell(self, **values: Any) -> None:
        self.told.write(json.dumps(values) + "\n")
        self.told.flush()

    def begin(self, **about: Any) -> None:
        """Before the first batch is read."""
        self.tell(ready=True, **about)
        self._wait()

    def step(self) -> None:
        """After each step."""
        self.taken += 1
        if self.taken == self.steps:
            self.end()
            self._wait()

    def end(self) -> None:
        """After the last step, too: tells of the steps since the turn began, if there were any."""
        if self.taken:
            spent = [clock() - began for clock, began in zip(_CLOCKS, self.began)]
            self.tell(seconds=spent[0], cpu_seconds=spent[1], steps=self.taken)
        self.taken = 0

    def _wait(self) -> None:
        if not self.asked.readline():
            sys.exit(1)  # nobody is there any more
        self.began = [clock() for clock in _CLOCKS]


class Paced:
    """A loader whose reader makes its steps in turns; `most`: of them at most so many."""

    def __init__(self, loader: Any, turns: Turns, most: int | None = None, **about: Any):
        self.loader, self.turns, self.about = loader, turns, about
        self.most = len(loader) if most is None else min(most, len(loader))

    def __len__(self) -> int:
        return self.most

    def __iter__(self) -> Iterator[Any]:
        self.turns.begin(**self.about)
        for batch in itertools.islice(self.loader, self.most):
            yield batch
            self.turns.step()
        self.turns.end()


def count(model: Any) -> int:
    """Parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


# ---- FuxiCTR, and the code of RankElastor's authors, which runs in it ----


def fuxictr(task: dict[str, Any], turns: Turns) -> float:
    """FuxiCTR's `fit` on its loader for .npz files; with `task["ready"]` on batches that it has read beforehand, with `task["csv"]` from CSV
    files on."""
    from fuxictr.features import FeatureMap

    if task.get("csv"):
        return fuxictr_csv(task, turns)

    folder = Path(task["folder"])
    features = [{f"C{n}": {"type": "categorical", "vocab_size": size}} for n, size in enumerate(task["vocab_sizes"])]
    features += [{f"I{n}": {"type": "numeric"}} for n in range(task["num_numeric"])]
    described = {
        "dataset_id": "peers",
        "labels": ["label"],
        "features": features,
        "num_fields": len(features),
        "total_features": sum(task["vocab_sizes"]) + task["num_numeric"],
        "input_length": len(features),
    }
    written = folder / f"feature_map_{os.getpid()}.json"
    written.write_text(json.dumps(described))
    feature_map = FeatureMap("peers", str(folder))
    feature_map.load(str(written), {"embedding_dim": task["embedding_dim"]})
    written.unlink()
    files = {part: str(folder / f"{part}.npz") for part in _PARTS}
    return _fuxictr_epoch(task, feature_map, files, "npz", turns)


def fuxictr_csv(task: dict[str, Any], turns: Turns) -> float:
    """FuxiCTR from CSV files: its own reading, fitting and transforming before its epoch."""
    from fuxictr.features import FeatureMap
    from fuxictr.preprocess import FeatureProcessor, build_dataset

    folder, read = Path(task["csv"]), {"active": True}
    with (folder / "train.csv").open() as lines:
        names = next(lines).replace('"', "").strip().split(",")
    of_kind = {kind: [name for name in names if name[0] == kind] for kind in "CI"}
    columns = [
        {"name": of_kind["C"], "dtype": "str", "type": "categorical", **read},
        {"name": of_kind["I"], "dtype": "float", "type": "numeric", "normalizer": "StandardScaler", **read},
    ]
    with tempfile.TemporaryDirectory(dir=folder) as made:
        label = {"name": "label", "dtype": "float"}
        processor = FeatureProcessor(columns, label, dataset_id="peers", data_root=made)
        given = {
            f"{short}_data": str(folder / f"{part}.csv") for short, part in zip(("train", "valid", "test"), _PARTS)
        }
        files = dict(zip(_PARTS, build_dataset(processor, **given, data_format="csv")))
        feature_map = FeatureMap("peers", processor.data_dir)
        feature_map.load(processor.json_file, {"embedding_dim": task["embedding_dim"]})
        return _fuxictr_epoch(task, feature_map, files, "parquet", turns)


def _fuxictr_epoch(
    task: dict[str, Any], feature_map: Any, files: dict[str, str], data_format: str, turns: Turns
) -> float:
    from fuxictr.pytorch.dataloaders import RankDataLoader

    options = {
        "embedding_dim": task["embedding_dim"],
        "learning_rate": LEARNING_RATE,
        "optimizer": "adam",
        "loss": "binary_crossentropy",
        "metrics": ["AUC"],
        "model_root": task["folder"],
        "verbose": 0,
        "gpu": -1,
    }
    model = fuxictr_model(task, feature_map, options)
    loaders = {
        "train_data": files["train"],
        "valid_data": files["validation"],
        "test_data": files["test"],
        "batch_size": task["batch_size"],
        "data_format": data_format,
        "num_workers": task["workers"],
    }
    train, validation, test = RankDataLoader(feature_map, stage="both", shuffle=True, **loaders)
    model._eval_steps = 1 << 60  # the epoch alone is timed; it is measured once, afterwards
    model.load_weights = lambda path: None  # there is no best checkpoint to return to
    batches = list(itertools.islice(train, task["most"])) if task["ready"] else train
    model.fit(Paced(batches, turns, task["most"], parameters=count(model)), epochs=1, validation_data=validation)
    return float(model.evaluate(test, metrics=["AUC"])["AUC"])


def fuxictr_model(task: dict[str, Any], feature_map: Any, options: dict[str, Any]) -> Any:
    """A model of the authors' folder, of a clone's model_zoo, or put together from FuxiCTR's layers as there.

    The package on PyPI has the layers, the loaders and the loop, but not these models.
    """
    family, hidden = task["family"], task["hidden_units"]
    if task["source"] and family in ("rank_elastor", "rank_mixer"):
        sys.path.insert(0, task["source"])
        from src import UniMixer

        return UniMixer(feature_map, **options, **_UNIMIXER[family])
    if task["source"]:
        stem = task["stem"].replace("XDeep", "xDeep")  # as the model_zoo spells it
        places = [
            Path(task["source"]) / "model_zoo" / name / "src" / f"{stem}.py" for name in (stem, f"{stem}/{stem}_torch")
        ]
        path = next(place for place in places if place.is_file())
        spec = importlib.util.spec_from_file_location(f"zoo_{stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        values = {"hidden_units": hidden}
        if family == "dcnv2":
            values = {"parallel_dnn_hidden_units": hidden}
        elif family == "autoint":
            values = {"dnn_hidden_units": [], "attention_layers": 3, "num_heads": 2, "attention_dim": 64}
        elif family == "xdeepfm":
            values = {"dnn_hidden_units": hidden, "cin_hidden_units": [100, 100, 100]}
        return getattr(module, stem)(feature_map, **options, **values)
    return _from_layers(family, hidden, feature_map, options)


# Of config/model_config.yaml, with the numbers of tokens and blocks of lmctr's own models
_UNIMIXER = {
    "rank_elastor": {
        "Token_num": 15,
        "Token_dim": 26,
        "depth": 2,
        "mixing_type": 999,
        "pred_head": "mlp",
        "proj_param": {"hidden_units": [500], "dropout": 0.1, "activation": "relu", "use_layer_norm": True},
        "interaction_mlp_params": {
            "hidden_units": [64, 64],
            "dropout": 0.0,
            "activation": "swiglu",
            "expansion_rate": 3.0,
            "use_layer_norm": True,
        },
    },
    "rank_mixer": {
        "Token_num": 26,
        "Token_dim": 26,
        "depth": 2,
        "mixing_type": 2,
        "pred_head": "noparam_mean",
        "proj_param": {"hidden_units": [500], "dropout": 0.1, "activation": "relu", "use_layer_norm": False},
        "interaction_mlp_params": {
            "hidden_units": [200, 200],
            "dropout": 0.0,
            "activation": "gelu",
            "expansion_rate": 1.0,
            "use_layer_norm": False,
        },
    },
}


def _from_layers(family: str, hidden: list[int], feature_map: Any, options: dict[str, Any]) -> Any:
    """FuxiCTR's layers joined as the family says, in its own base class."""
    import torch
    from fuxictr.pytorch import layers
    from fuxictr.pytorch.models import BaseModel

    width, num_fields = feature_map.sum_emb_out_dim(), feature_map.num_fields

    def mlp(output: int | None) -> Any:
        return layers.MLP_Block(input_dim=width, output_dim=output, hidden_units=hidden, hidden_activations="ReLU")

    class Attention(torch.nn.Module):
        """Two heads of 32, each with the sum of fields weighed by the softmax of products, and a residual projection."""

        def __init__(self, size: int):
            super().__init__()
            self.parts = torch.nn.ModuleList(torch.nn.Linear(size, 64, bias=False) for _ in range(3))
            self.residual = torch.nn.Linear(size, 64, bias=False) if size != 64 else torch.nn.Identity()
            self.attention = layers.ScaledDotProductAttention()

        def forward(self, states: Any) -> Any:
            split = [part(states).unflatten(-1, (2, 32)).transpose(1, 2) for part in self.parts]
            mixed = self.attention(*split)[0].transpose(1, 2).flatten(2)
            return (mixed + self.residual(states)).relu()

    class Model(BaseModel):
        def __init__(self):
            super().__init__(feature_map, **options)
            self.embedding_layer = layers.FeatureEmbedding(feature_map, options["embedding_dim"])
            if family == "dcnv2":
                self.cross, self.deep = layers.CrossNetV2(width, 3), mlp(None)
                self.head = torch.nn.Linear(width + hidden[-1], 1)
            elif family == "autoint":
                self.attention = torch.nn.Sequential(*(Attention(size) for size in (options["embedding_dim"], 64, 64)))
                self.head = torch.nn.Linear(64 * num_fields, 1)
            else:
                self.deep = mlp(1)
            if family == "deepfm":
                self.fm = layers.FactorizationMachine(feature_map)
            if family == "xdeepfm":
                self.linear = layers.LogisticRegression(feature_map, use_bias=False)
                self.cin = layers.CompressedInteractionNet(num_fields, [100, 100, 100], output_dim=1)
            self.compile(options["optimizer"], options["loss"], options["learning_rate"])
            self.reset_parameters()

        def forward(self, batch: Any) -> Any:
            inputs = self.get_inputs(batch)
            fields = self.embedding_layer(inputs)
            flat = fields.flatten(1)
            if family == "dcnv2":
                logit = self.head(torch.cat([self.cross(flat), self.deep(flat)], -1))
            elif family == "autoint":
                logit = self.head(self.attention(fields).flatten(1))
            else:
                logit = self.deep(flat)
            if family == "deepfm":
                logit = logit + self.fm(inputs, fields)
            if family == "xdeepfm":
                logit = logit + self.linear(inputs) + self.cin(fields)
            return {"y_pred": self.output_activation(logit)}

    return Model()


# ---- DeepCTR-Torch and Torch-RecHub ----


def columns(task: dict[str, Any], part: str) -> tuple[dict[str, Any], Any]:
    """The columns of a part by name, and its labels."""
    import numpy as np

    arrays = dict(np.load(Path(task["folder"]) / f"{part}.npz"))
    return arrays, arrays.pop("label")


def deepctr(task: dict[str, Any], turns: Turns) -> float:
    """DeepCTR-Torch's `fit`. Its loader is made there, so that it is paced where the loop takes it."""
    import torch
    from deepctr_torch import models
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import basemodel
    from sklearn.metrics import roc_auc_score

    places = [
        SparseFeat(f"C{n}", size, embedding_dim=task["embedding_dim"]) for n, size in enumerate(task["vocab_sizes"])
    ]
    places += [DenseFeat(f"I{n}", 1) for n in range(task["num_numeric"])]
    hidden = tuple(task["hidden_units"])
    strengths = {"l2_reg_linear": 0.0, "l2_reg_embedding": 0.0}
    if task["family"] == "deepfm":
        model = models.DeepFM(places, places, dnn_hidden_units=hidden, **strengths)
    else:
        matrix = {"cross_num": 3, "cross_parameterization": "matrix", "l2_reg_cross": 0.0}
        model = models.DCN(places, places, dnn_hidden_units=hidden, **matrix, **strengths)
    model.compile(torch.optim.Adam(model.parameters(), lr=LEARNING_RATE), "binary_crossentropy")
    loader_class = basemodel.DataLoader
    basemodel.DataLoader = lambda **options: Paced(
        loader_class(**options), turns, task["most"], parameters=count(model)
    )
    inputs, labels = columns(task, "train")
    model.fit(inputs, labels, batch_size=task["batch_size"], epochs=1, verbose=0)
    basemodel.DataLoader = loader_class
    inputs, labels = columns(task, "test")
    return float(roc_auc_score(labels, model.predict(inputs, 8192)))


def rechub(task: dict[str, Any], turns: Turns) -> float:
    """Torch-RecHub's `CTRTrainer` on the loader of its `DataGenerator`."""
    from torch_rechub.basic.features import DenseFeature, SparseFeature
    from torch_rechub.models import ranking
    from torch_rechub.trainers import CTRTrainer
    from torch_rechub.utils.data import DataGenerator

    sparse = [SparseFeature(f"C{n}", size, task["embedding_dim"]) for n, size in enumerate(task["vocab_sizes"])]
    dense = [DenseFeature(f"I{n}") for n in range(task["num_numeric"])]
    mlp = {"dims": task["hidden_units"], "activation": "relu", "dropout": 0.0}
    if task["family"] == "deepfm":
        model = ranking.DeepFM(dense + sparse, sparse, mlp)
    else:
        model = ranking.DCNv2(dense + sparse, 3, mlp, use_low_rank_mixture=False)
    (inputs, labels), test = columns(task, "train"), columns(task, "test")
    train, _, test = DataGenerator(inputs, labels).generate_dataloader(
        *test, *test, batch_size=task["batch_size"], num_workers=task["workers"]
    )
    trainer = CTRTrainer(model, optimizer_params={"lr": LEARNING_RATE, "weight_decay": 0.0}, n_epoch=1)
    trainer.train_one_epoch(Paced(train, turns, task["most"], parameters=count(model)))
    return float(trainer.evaluate(trainer.model, test))


LOOPS: dict[str, Callable[[dict[str, Any], Turns], float]] = {"fuxictr": fuxictr, "deepctr": deepctr, "rechub": rechub}


def work(loops: dict[str, Callable[[dict[str, Any], Turns], float]], arguments: Iterable[str]) -> None:
    """One training in turns, of the file of settings in the arguments; what the loop prints goes to the error stream."""
    (path,) = arguments
    task = json.loads(Path(path).read_text())
    import torch

    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    turns = Turns(task["steps"], sys.stdin, sys.stdout)
    with contextlib.redirect_stdout(sys.stderr):
        auc = loops[task["loop"]](task, turns)
    turns.tell(auc=auc)


if __name__ == "__main__":
    work(LOOPS, sys.argv[1:])
