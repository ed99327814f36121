"""lmctr's own side in `lmctr benchmark peers`: a recipe trained by `lmctr.runs.train`, its steps made in turns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from transformers import TrainerCallback

import lmctr.runs
from lmctr.benchmarks.peer_side import LEARNING_RATE, Turns, count, work
from lmctr.models.families import family_of

OPTIMIZERS = {"dense": "dense", "lazy": "lazy_adam"}
TABLE = "synthetic_table"
SCHEMA = "table.yaml"  # of the table's CSV files


class TurnsCallback(TrainerCallback):
    """Makes the steps of an epoch in the turns of the class; the first one begins before the loader is asked for a batch."""

    turns: ClassVar[Turns | None] = None

    def on_epoch_begin(self, *unused: Any, model: Any, **options: Any) -> None:
        self.turns.begin(parameters=count(model))

    def on_step_end(self, *unused: Any, **options: Any) -> None:
        self.turns.step()

    def on_epoch_end(self, *unused: Any, **options: Any) -> None:
        self.turns.end()


# Token mixers as the RankElastor authors' code builds them: the models of `peer_side`, weight for weight
_REFERENCE = {"variant": "reference", "tokenizer_hidden_size": 500, "tokenizer_dropout": 0.1, "num_hidden_layers": 2}
_TOKEN_MIXERS = {
    "rank_elastor": {**_REFERENCE, "ffn_hidden_sizes": [64, 64]},
    "rank_mixer": {**_REFERENCE, "ffn_hidden_sizes": [200, 200]},
}


def recipe(task: dict[str, Any]) -> dict[str, Any]:
    """What is trained: the peers' model, learning rate and clipping, and with "dense" their Adam, too."""
    values = family_of(task["family"]).benchmark | _TOKEN_MIXERS.get(task["family"], {})
    if "hidden_units" in values:
        values["hidden_units"] = task["hidden_units"]
    data = {"name": f"{task['csv']}/{SCHEMA}"} if task.get("csv") else {"name": TABLE, "options": task["table"]}
    return {
        "data": {**data, "baselines": False},
        "model": {
            "family": task["family"],
            "embedding_dim": task["embedding_dim"],
            "numeric_encoding": "vector",  # x w, as FuxiCTR's
            **values,
        },
        "training": {
            "epochs": 1,
            "learning_rate": LEARNING_RATE,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
            "weight_decay": 0.0,
            "max_grad_norm": 10.0,
            "per_device_train_batch_size": task["batch_size"],
            "per_device_eval_batch_size": 8192,
            "embedding_optimizer": OPTIMIZERS[task["arm"]],
            "callbacks": [f"{TurnsCallback.__module__}:{TurnsCallback.__name__}"],
            **({} if task["most"] is None else {"max_steps": task["most"]}),
            "use_cpu": True,
            "seed": task["seed"],
        },
    }


def own(task: dict[str, Any], turns: Turns) -> float:
    """`lmctr.runs.train`; the AUC on the test part."""
    TurnsCallback.turns = turns
    run = lmctr.runs.train(recipe(task), output_dir=Path(task["folder"]) / f"run_{task['arm']}", overwrite=True)
    return run.metrics["test"]["auc"]


def main(arguments: list[str]) -> None:
    work({"own": own}, arguments)


if __name__ == "__main__":
    from lmctr.benchmarks.peer_own import main as of_module  # the module that the recipe's callback is found in

    of_module(sys.argv[1:])
