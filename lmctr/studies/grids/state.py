"""Where a grid stands on disk: which runs are done, begun, different or missing.

`<output_dir>/<point>/seed-<s>/` is the run folder that `lmctr train` writes; `seed-<s>.log` beside it holds what it printed and
`seed-<s>.failed` the error of its last try.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from lmctr.runs.folder import METRICS, RunFolder
from lmctr.runs.recipe import Recipe
from lmctr.studies.grids.file import Grid
from lmctr.utils.files import read_json
from lmctr.utils.lock import LOCK

DONE, BEGUN, NEW, DIFFERENT = "done", "begun", "not started", "another recipe"
# Where the data lie (what they are is checked by their fingerprint), and what the grid computes itself.
_PLACES = ("data.path:", "data.options.path:")
_BASELINES = "data.baselines:"


@dataclasses.dataclass(frozen=True)
class GridRun:
    """One point and seed: `state` is DONE, BEGUN, NEW or DIFFERENT, with `differences` in the last case."""

    point: str
    seed: int
    folder: RunFolder
    state: str
    differences: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.point} seed {self.seed}"

    @property
    def log(self) -> Path:
        return self.folder.path.with_name(f"{self.folder.path.name}.log")

    @property
    def failure(self) -> Path:
        return self.folder.path.with_name(f"{self.folder.path.name}.failed")

    def why_missing(self) -> str:
        """A word on a run that is not done, for reports."""
        if self.state == DIFFERENT:
            return f"holds another recipe: {'; '.join(self.differences)}"
        if self.failure.is_file():
            return f"failed: {self.failure.read_text(encoding='utf-8').strip()}"
        return "begun, not finished" if self.state == BEGUN else self.state

    def metrics(self) -> dict[str, Any]:
        """`metrics.json`."""
        return read_json(self.folder.path / METRICS)


def inspect_runs(grid: Grid, recipes: dict[tuple[str, int], Recipe]) -> list[GridRun]:
    """The state of every run, in the order in which they are trained: all points of the first seed, then of the next."""
    return [
        inspect_run(grid, point.name, seed, recipes[point.name, seed]) for seed in grid.seeds for point in grid.points
    ]


def inspect_run(grid: Grid, point: str, seed: int, recipe: Recipe) -> GridRun:
    """The state of one run: its folder's recipe against the wanted one."""
    folder = RunFolder(grid.output_dir / point / f"seed-{seed}")
    if not folder.started:
        if folder.path.is_dir() and any(path.name != LOCK for path in folder.path.iterdir()):
            return GridRun(point, seed, folder, DIFFERENT, (f"{folder.path} holds files, but no run",))
        return GridRun(point, seed, folder, NEW)
    differences = folder.recipe_differences(recipe.resolved())
    differences = [line for line in differences if not line.startswith(_BASELINES)]
    if folder.finished:  # moved data are the same data; a run that goes on checks path and fingerprint itself
        differences = [line for line in differences if not line.startswith(_PLACES)]
    if differences:
        return GridRun(point, seed, folder, DIFFERENT, tuple(differences))
    return GridRun(point, seed, folder, DONE if folder.finished else BEGUN)
