"""The run folder: what `lmctr train` leaves behind and the other verbs read.

RUN/config.json model.safetensors processor_config.json tokenizer*   the best checkpoint
RUN/recipe.yaml               every value of the recipe
RUN/data.json                 origin, licence, counts, split, label rates, truncation
RUN/metrics.json              metrics, baselines, seed, versions; written last: its presence means "finished"
RUN/reference.safetensors     a few test samples and the model's logits; `lmctr push` compares with them
RUN/predictions/*.parquet     event, user, item, time, label, logit of validation and test
RUN/checkpoints/              the trainer's checkpoints
RUN/retriever/                only where histories are retrieved
RUN/adapter/                  only with LoRA: what was trained, without the language model
RUN/analysis/                 what `lmctr analyze` wrote
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmctr.runs.recipe import compare_recipes
from lmctr.training.checkpoints import list_checkpoints
from lmctr.utils.files import read_yaml

RECIPE = "recipe.yaml"
METRICS = "metrics.json"
DATA = "data.json"
_OWN = (
    RECIPE,
    METRICS,
    DATA,
    "README.md",
    "config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "*tabular_vocabularies.parquet",
    "*tabular_numbers.safetensors",
    "sequence_items.parquet",
    "sequence_features.parquet",
    "model*.safetensors*",
    "reference.safetensors",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "checkpoints",
    "predictions",
    "retriever",
    "adapter",
    "analysis",
    ".cache",
)


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Folder of the trainer's checkpoints."""
        return self.path / "checkpoints"

    @property
    def cache(self) -> Path:
        """Folder for what one process prepares for the others; removed when the run ends."""
        return self.path / ".cache"

    @property
    def retriever(self) -> Path:
        """Folder of the retriever."""
        return self.path / "retriever"

    @property
    def started(self) -> bool:
        """Whether a training was begun here."""
        return (self.path / RECIPE).is_file()

    @property
    def prepared(self) -> bool:
        """Whether the preparation before training was completed."""
        return (self.path / DATA).is_file()

    @property
    def begun(self) -> bool:
        """Whether a training made its first step here, so that there is something to go on from."""
        return self.started and (self.first_step.is_file() or bool(list_checkpoints(self.checkpoints)))

    @property
    def first_step(self) -> Path:
        """A file that says so before the first checkpoint does."""
        return self.cache / "first_step"

    @property
    def finished(self) -> bool:
        """Whether a training was completed here."""
        return (self.path / METRICS).is_file()

    def clear(self) -> None:
        """Delete what a run wrote, and nothing else; the sign of a finished run goes first."""
        for pattern in (METRICS, DATA, *_OWN):
            for path in self.path.glob(pattern):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def open_run(path: str | Path) -> RunFolder:
    """A finished run.

    Raises:
        FileNotFoundError: no such folder, or no run in it.
        ValueError: the run is not finished.
    """
    run = RunFolder(Path(path))
    if not run.path.is_dir():
        raise FileNotFoundError(f"run folder {path} does not exist")
    if not run.started:
        raise FileNotFoundError(f"{path} is no run folder: it has no {RECIPE} (train one with `lmctr train RECIPE`)")
    if not run.finished:
        raise ValueError(f"the run in {path} is not finished; continue it with `lmctr train RECIPE --resume`")
    return run


def claim(run: RunFolder, recipe: Mapping[str, Any], resume: bool | str, overwrite: bool) -> bool:
    """Make the folder ready for a training with a (resolved) recipe.

    Args:
        resume: "auto" goes on with a run that was begun there and starts one where there is none; True: there must be one; False:
            there must be none. A run that failed before its first step counts as none.
        overwrite: delete an earlier run.

    Returns:
        Whether the run in the folder goes on, or is finished; else the folder is empty, or absent.

    Raises:
        ValueError: no run to go on with, a run that is in the way, one that was begun with another recipe, or other files.
    """
    if run.path.exists() and not run.path.is_dir():
        raise ValueError(f"output_dir {run.path} is a file; give a folder")
    if not overwrite and (run.finished or run.begun):
        if not resume and run.finished:
            raise ValueError(
                f"{run.path} holds a finished run; give another --output_dir, or --overwrite to train it again"
            )
        if not resume:
            raise ValueError(
                f"{run.path} holds a run that did not finish; --resume continues it, --overwrite starts it again"
            )
        differences = compare_recipes(read_yaml(run.path / RECIPE) or {}, recipe)
        if differences:
            raise ValueError(
                f"the recipe differs from the one that the run in {run.path} was started with: {'; '.join(differences)}. "
                "Resume with the same values, or train into another --output_dir"
            )
        return True
    if resume is True and not run.started:
        raise ValueError(f"there is no run to resume in {run.path}; leave resume out to start one")
    if run.started or run.prepared or run.finished:
        run.clear()
        return False
    shutil.rmtree(run.cache, ignore_errors=True)  # all that is left when the data of a first try were wrong
    if run.path.is_dir() and any(run.path.iterdir()):
        raise ValueError(f"output_dir {run.path} is not empty and holds no run; give another folder")
    return False


def write_predictions(
    path: Path, columns: Mapping[str, Any], labels: np.ndarray, logits: np.ndarray, tasks: Sequence[str] = ("label",)
) -> None:
    """Write the scores of a part as Parquet: the view's identifying `columns`, then `label` and `logit`.

    Labels are int8 where they are whole and small, else float32. (S, T) labels and logits: those are the first task's, and `label_<task>` and `logit_<task>` of the others follow (-100: no label).
    A `weight` column goes last, so that the metrics can be computed again.
    """
    ordered = {key: values for key, values in columns.items() if key != "weight"}
    for task, name in enumerate(tasks):
        end = "" if task == 0 else f"_{name}"
        own_labels, own_logits = (x if x.ndim == 1 else x[:, task] for x in (labels, logits))
        ordered |= {
            f"label{end}": pa.array(own_labels.astype(_label_type(own_labels))),
            f"logit{end}": pa.array(own_logits, pa.float32()),
        }
    if "weight" in columns:
        ordered["weight"] = columns["weight"]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    pq.write_table(pa.table(ordered), temporary)
    temporary.replace(path)


def _label_type(labels: np.ndarray) -> str:
    """Clicks are int8; a rank index may be above 127, or no whole number."""
    return "int8" if (labels == labels.astype("int8")).all() else "float32"
