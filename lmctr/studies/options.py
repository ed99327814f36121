"""Options of the verbs `report` and `search`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmctr.utils.options import check_counts, given, option


@dataclass
class ReportOptions:
    """Write one HTML page about finished runs that holds everything it shows and opens without a network: metrics beside the baselines,
    paired tests, training curves, calibration, slices, data, settings and commands. Runs on the same data whose recipes differ in the seed
    only are one group (mean and spread); the first group is tested against each other one."""

    run: list[str] = option("run folder of lmctr train", positional=True, metavar="RUN")
    output: str | None = option("the page (default: analysis/report.html in the first run)", None, metavar="FILE")
    split: str = option("part that is tested and drawn", "test", choices=("test", "validation"))
    resamples: int = option("draws of users per bootstrap", 1000, metavar="N")
    no_plots: bool = option("leave the pictures out (they need matplotlib)", False)
    command: str = given("")


@dataclass
class SearchOptions:
    """Search recipe values: trials over a space of values are compared on validation alone (tree-structured Parzen estimator), those that
    fall behind end early, and the best recipe is written and compared with the start over other seeds on the test part. Ctrl-C at any
    time: the same command goes on, with the trials that it would have made."""

    recipe: str = option("YAML file, or the name of a recipe of the package: where the search starts", positional=True)
    space: str = option(
        "YAML file: a recipe key per line, with a list of values or {low: 1e-4, high: 1e-2, log: true}",
        metavar="SPACE",
    )
    trials: int = option("how many in all, with those of earlier tries", 20, metavar="N")
    output_dir: str | None = option("folder (default: runs/search_<name of the recipe>)", None)
    seeds: list[int] = option("seeds of the comparison", [1, 2, 3], metavar="SEED")
    no_compare: bool = option("write the best recipe and stop", False)
    no_pruning: bool = option("let every trial run to its end", False)
    max_minutes: float | None = option("start no further trial after N minutes", None, metavar="N")
    overwrite: bool = option("delete an earlier search in the folder", False)
    overrides: Sequence[tuple[str, str]] = given(())
    command: str = given("")

    def __post_init__(self) -> None:
        check_counts(self, ("trials",))
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds, default=0) < 0:
            raise ValueError(f"--seeds {' '.join(map(str, self.seeds))}: give different whole numbers from 0")
