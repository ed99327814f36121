"""Options of `lmctr grid`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmctr.utils.options import given, option


@dataclass(kw_only=True)
class RunnerOptions:
    """How the runs of a grid are trained; `overrides` are (dotted recipe key, YAML text) pairs for every run, applied last."""

    keep_checkpoints: bool = option("keep the checkpoints of finished runs", False)
    max_minutes: float | None = option("start no further run after N minutes", None, metavar="N")
    dry_run: bool = option("list the runs and their state; do nothing", False)
    launcher: str | None = option(
        "start each run by these words and `-m lmctr train ...`: 'accelerate launch --config_file recipes/accelerate/ddp.yaml'",
        None,
        metavar="WORDS",
    )
    overrides: Sequence[tuple[str, str]] = given(())


@dataclass
class GridOptions:
    """The grid and the points that are meant; `overrides` are (dotted recipe key, YAML text) pairs for every point, applied last."""

    grid: str = option(
        "YAML file, or the name of a grid of the package (ctr_sink/tables/trial_synthetic)", positional=True
    )
    output_dir: str | None = option("folder of the runs (default: the grid's own, else runs/<name of the grid>)", None)
    only: list[str] = option(
        "only points of such names ('roberta-*'); repeatable", [], metavar="PATTERN", repeated=True
    )
    overrides: Sequence[tuple[str, str]] = given(())
    command: str = given("")


@dataclass
class GridRunOptions(RunnerOptions, GridOptions):
    """Train every point of the grid with every seed, each as a normal run folder OUTPUT_DIR/POINT/seed-S. Finished runs are skipped,
    begun ones continued from their newest checkpoint; a failed one does not stop the others. Ctrl-C at any time: the same command goes
    on."""


@dataclass
class GridReportOptions(GridOptions):
    """Mean and sample standard deviation over seeds, differences to the grid's compare_to with paired tests, and the baselines beside
    them. What is not done is listed as missing."""

    output: str | None = option(
        "write NAME.md, NAME.csv and NAME_tests.csv there (with --label: NAME_LABEL...)", None, metavar="FOLDER"
    )
    split: str = option("part of the data", "test", choices=("test", "validation"))
    label: str | None = option("of several labels, the one to report (default: the first)", None, metavar="NAME")
    resamples: int = option("draws per bootstrap", 1000, metavar="N")
