"""Stored scores of several runs side by side, as text, Markdown or JSON: what `lmctr evaluate RUN RUN --compare RUN RUN` prints."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmctr.evaluation.comparison import (
    RunPredictions,
    SeedTest,
    check_group,
    compare_groups,
    differing_keys,
    dotted_keys,
    mean_and_spread,
    metric_cells,
    read_predictions,
)
from lmctr.evaluation.evaluator import METRIC_TITLES
from lmctr.runs.folder import RunFolder, check_same_data
from lmctr.utils.progress import step
from lmctr.utils.results import write_result
from lmctr.utils.tables import markdown_table, text_table

OVER_SEEDS = "Mean ± sample standard deviation over seeds. AUC is exact (ties count half), gAUC the impression-weighted mean of the AUC per user"
UNCORRECTED = "Intervals are 95 %, p values two-sided and not corrected for the number of tests."
_NOT_COMPARED = {"data.path", "data.options.path"}  # where the data lay; the samples themselves are compared


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Groups of runs by name (one, or the runs and those to compare with), the tests between them, what their recipes differ in (None where a
    run keeps no recipe), and which of these keys only one of them has, because their families differ."""

    split: str
    groups: dict[str, list[RunPredictions]]
    tests: list[SeedTest]
    recipe_differences: list[str] | None
    unshared: frozenset[str] = frozenset()

    def text(self) -> str:
        """Plain text for a terminal."""
        return "\n\n".join([*self._heading(), *(text_table(table) for table in self._tables())])

    def markdown(self, command: str) -> str:
        """A Markdown document; `command` is quoted in it."""
        tables = [markdown_table(table) for table in self._tables()]
        notes = [f"{OVER_SEEDS}, ECE has 10 uniform bins. {UNCORRECTED}"]
        if self.tests:
            notes.append(self.tests_note)
        return "\n\n".join([*self._heading(), *tables, *notes, f"```\n{command}\n```"])

    @property
    def tests_note(self) -> str:
        """What each test takes for the sample."""
        return (
            f"DeLong takes the samples of {self.split} as independent; the bootstrap draws {self._runs[0].drawn}; the paired t test takes the "
            "seeds as the sample and the samples as given."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain types."""
        return {
            "split": self.split,
            "groups": {name: _group_dict(runs) for name, runs in self.groups.items()},
            "recipe_differences": self.recipe_differences,
            "tests": [
                {"metric": entry.metric, "seed": entry.seed, **dataclasses.asdict(entry.test)} for entry in self.tests
            ],
        }

    def _heading(self) -> list[str]:
        lines = [f"{self.split} split: {self._runs[0].count_samples()}"]
        if len(self.groups) == 2 and self.recipe_differences:
            first, second = self.groups
            shared = [key for key in self.recipe_differences if key not in self.unshared]
            own = f", and {len(self.unshared)} keys that only one of the families has" * bool(self.unshared)
            lines.append(f"the recipes of {first} and {second} differ in: {', '.join(shared)}{own}")
        return lines

    @property
    def _runs(self) -> list[RunPredictions]:
        """The first group."""
        return next(iter(self.groups.values()))

    def _tables(self) -> list[list[list[str]]]:
        names = self._runs[0].names
        rows = [["run", "seed", *(METRIC_TITLES[name] for name in names)]]
        for name, runs in self.groups.items():
            rows += [[str(run.path), str(run.seed), *metric_cells([run], names)] for run in runs]
            if len(runs) > 1:
                rows.append([f"mean of {name}", f"{len(runs)} seeds", *metric_cells(runs, names)])
        for name in self._runs[0].baselines:
            cells = {
                group: metric_cells([run.baselines[name] for run in runs], names)
                for group, runs in self.groups.items()
                if all(name in run.baselines for run in runs)
            }
            several = len({tuple(own) for own in cells.values()}) > 1  # of runs that were refitted, and not
            for group, own in list(cells.items()) if several else list(cells.items())[:1]:
                rows.append([f"{name.replace('_', ' ')} baseline{f' of {group}' * several}", "", *own])
        if not self.tests:
            return [rows]
        first, second = self.groups
        tests = [["metric", "seed", first, second, "difference", "interval", "p", "test"]]
        for entry in self.tests:
            test, seed = entry.test, "all" if entry.seed is None else str(entry.seed)
            cells = [METRIC_TITLES[entry.metric], seed, *test.cells(), f"{test.method}, n = {test.num_pairs:,}"]
            tests.append(cells)
        return [rows, tests]


@step("comparing runs")
def compare_runs(
    runs: Sequence[str],
    others: Sequence[str] = (),
    split: str = "test",
    num_resamples: int = 1000,
    label: str | None = None,
) -> Comparison:
    """Read the stored scores of runs and compare them.

    Args:
        runs: run folders, seeds of one recipe.
        others: run folders of another recipe with the same seeds; none: only mean and spread of `runs`.
        split: "validation" or "test".
        num_resamples: draws per bootstrap.
        label: of runs with several labels, the one to compare; None: the first.

    Raises:
        FileNotFoundError, ValueError: a run that is not finished, damaged files, scores of different samples, seeds that were
            trained on different data, groups with other seeds, recipes that differ inside a group in more than the seed.
    """
    if split == "train":
        raise ValueError("--split train: runs keep scores of validation and test only; choose one of them")
    for folder in (RunFolder(Path(path)) for path in (*runs, *others) if Path(path).is_dir()):
        if not folder.finished:
            folder.check_finished()  # of a grid's folder it names a run
    # what the groups' folders have in common (runs/sink-0 runs/sink-1: "sink")
    names = [_group_name(group) for group in (runs, others) if group]
    if not all(names) or len(set(names)) < len(names):
        names = ["runs", "compared"][: len(names)]
    groups = {
        name: [read_predictions(path, split, label) for path in paths] for name, paths in zip(names, (runs, others))
    }
    for group in groups.values():
        check_group(group)
        for other in group[1:]:
            differing = _recipe_differences(group[0], other)
            if differing:
                raise ValueError(
                    f"{other.path} is no other seed of {group[0].path}: their recipes differ in {', '.join(differing)}"
                )
        check_same_data(RunFolder(run.path) for run in group)
    tests, differences, unshared = [], None, frozenset[str]()
    if others:
        first, second = groups.values()
        tests = compare_groups(first, second, num_resamples)
        differences = _recipe_differences(first[0], second[0])
        if "model.family" in (differences or ()):
            own, other = (dotted_keys(RunFolder(group[0].path).recipe()) for group in (first, second))
            unshared = frozenset(differences) & (own.keys() ^ other.keys())
    return Comparison(split, groups, tests, differences, unshared)


def write_comparison(comparison: Comparison, path: str | Path, command: str) -> None:
    """Write the comparison as Markdown (.md) or JSON (.json), with the command that made it."""
    write_result(path, comparison.to_dict() | {"command": command}, comparison.markdown(command))


def _recipe_differences(run: RunPredictions, other: RunPredictions) -> list[str] | None:
    recipes = [RunFolder(entry.path).recipe() for entry in (run, other)]
    if None in recipes:
        return None
    return [key for key in differing_keys(*recipes) if key not in _NOT_COMPARED]


def _group_name(paths: Sequence[str]) -> str:
    names = [Path(path).resolve().name for path in paths]
    return names[0] if len(names) == 1 else os.path.commonprefix(names).rstrip("-_. ")  # noqa: RUF071 (of characters)


def _group_dict(runs: list[RunPredictions]) -> dict[str, Any]:
    summary = mean_and_spread(runs)
    return {
        "runs": [
            {"run": str(run.path), "seed": run.seed, "metrics": run.metrics, "baselines": run.baselines}
            for run in runs
        ],
        "mean": {name: value for name, (value, _) in summary.items()},
        "standard_deviation": {name: spread for name, (_, spread) in summary.items()},
    }
