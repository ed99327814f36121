"""Options of the verbs `train` and `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmctr.runs.find import find_recipe
from lmctr.utils.options import given, option


@dataclass
class TrainOptions:
    """Train a model by a recipe, measure it beside the baselines, and leave a run folder."""

    recipe: str | None = option(
        "YAML file, or the name of a recipe of the package (ctr_sink/quickstart)", None, positional=True
    )
    output_dir: str | None = option("run folder (default: runs/<name of the recipe>)", None)
    resume: bool = option(
        "continue the run in the folder from its newest complete checkpoint; start it where there is none", False
    )
    overwrite: bool = option("replace an earlier run in the same folder", False)
    list_keys: str | None = option(
        "print every key that a recipe of a family (din, ctr_sink, ...) may set, with type, default and meaning",
        None,
        metavar="FAMILY",
    )
    overrides: Sequence[tuple[str, str]] = given(())
    command: str = given("")

    def __post_init__(self) -> None:
        if self.recipe is None and self.list_keys is None:
            raise ValueError(
                "give a recipe (a YAML file, or a name such as ctr_sink/quickstart), or --list-keys FAMILY"
            )
        if self.resume and self.overwrite:
            raise ValueError("--resume continues a run, --overwrite deletes it: give one of them")
        if self.recipe is not None:
            find_recipe(self.recipe)


@dataclass
class EvaluateOptions:
    """Measure a trained run on a part of its data: exact AUC, logloss, grouped AUC, NE and ECE. Several runs (seeds of one recipe):
    mean and standard deviation of what their stored scores give, without loading model or data; with --compare also paired tests
    against other runs of the same seeds."""

    run: list[str] = option("run folder of lmctr train", positional=True, metavar="RUN")
    split: str = option("default: test", "test", choices=("train", "validation", "test"))
    compare: list[str] = option("runs of the same seeds to test against", [], metavar="RUN")
    resamples: int | None = option("draws of users per bootstrap (default: 1000)", None, metavar="N")
    output: str | None = option("write the result to this file: .json; for several runs also .md", None)
    predictions: str | None = option("write the scores to this Parquet file (one run)", None)
    overrides: Sequence[tuple[str, str]] = given(())
    command: str = given("")
