"""Options of the verbs `report` and `search`."""

from __future__ import annotations

from dataclasses import dataclass

from lmctr.utils.options import given, option

__all__ = ["ReportOptions"]


@dataclass
class ReportOptions:
    """Write one HTML page about finished runs that holds everything it shows and opens without a network: metrics beside the baselines,
    paired tests, training curves, calibration, slices, data, settings and commands. Runs whose recipes differ in the seed only are one
    group (mean and spread); the first group is tested against each other one."""

    run: list[str] = option("run folder of lmctr train", positional=True, metavar="RUN")
    output: str | None = option("the page (default: analysis/report.html in the first run)", None, metavar="FILE")
    split: str = option("part that is tested and drawn", "test", choices=("test", "validation"))
    resamples: int = option("draws of users per bootstrap", 1000, metavar="N")
    no_plots: bool = option("leave the pictures out (they need matplotlib)", False)
    command: str = given("")
