"""What the finished runs of a grid say: mean and spread over seeds, paired tests, baselines, and what is missing.

Nothing is filled in: a run that is not there counts as missing and is listed, with its reason, under the tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lmctr.evaluation.comparison import (
    COMPARED_METRICS,
    RunPredictions,
    SeedTest,
    compare_groups,
    metric_cells,
    read_predictions,
)
from lmctr.evaluation.evaluator import METRIC_NAMES, METRIC_TITLES, RANKING_METRIC_NAMES
from lmctr.runs.folder import DATA
from lmctr.runs.recipe import Recipe
from lmctr.studies.grids.baselines import baselines_file, read_baselines, stored_baselines
from lmctr.studies.grids.file import Grid, Point, check_recipes, load_grid
from lmctr.studies.grids.options import GridReportOptions
from lmctr.studies.grids.state import DONE, GridRun, inspect_runs
from lmctr.utils.files import read_json, write_text
from lmctr.utils.tables import markdown_table, write_csv

TESTED = ("auc", "log_loss")
RANKING_TESTED = ("revenue_ratio", "recall", "ndcg")
_WRITTEN = ("best_step", "steps", "train_seconds", "samples_per_second")
_NOTES = (
    "Mean ± sample standard deviation over the seeds that are done (done/wanted). AUC is exact (ties count half), gAUC the "
    "impression-weighted mean of the AUC per user, ECE has 10 uniform bins. Differences are to the row named in brackets, on equal "
    "seeds; p values are two-sided and not corrected for the number of tests.",
    "t test: paired over seeds, the test samples as given. DeLong: test samples independent, one p per seed. Bootstrap: draws of users "
    "(of samples, where there are no users), one p per seed.",
)
_RANKING_NOTE = (
    "Mean ± sample standard deviation over the seeds that are done (done/wanted). R/R* is the eCPM of the ads passed on relative to the "
    "ground truth's, OPA the share of pairs of ads in the right order, as means over impressions that have a value. Differences are to the row "
    "named in brackets, on equal seeds; p values are two-sided and not corrected for the number of tests. t test: paired over seeds. "
    "Bootstrap: draws of impressions, one p per seed."
)


@dataclasses.dataclass
class PointResult:
    """What is known of one point.

    Attributes:
        runs: stored scores by seed, of finished runs only.
        written: `metrics.json` by seed.
        missing: the other runs.
        compared: label of the point that it is tested against.
        tests: paired tests against the point's `compare_to`; empty without one, or where nothing can be compared.
        note: why there are no tests, where there should be.
    """

    point: Point
    runs: dict[int, RunPredictions]
    written: dict[int, dict[str, Any]]
    missing: list[GridRun]
    compared: str = ""
    tests: list[SeedTest] = dataclasses.field(default_factory=list)
    note: str = ""

    @property
    def num_wanted(self) -> int:
        return len(self.runs) + len(self.missing)

    def mean(self, key: str, show: Callable[[float], str]) -> str:
        """Mean of a cost over the seeds that counted it."""
        values = [entry[key] for entry in self.written.values() if entry.get(key)]
        return show(np.mean(values)) if values else "-"


@dataclasses.dataclass
class Section:
    """Points on the same data, with the baselines of these data."""

    title: str
    points: list[PointResult]
    baselines: dict[str, dict[int, dict[str, Any]]]
    best_auc: float | None = None
    num_fitted: int | None = None

    @property
    def is_ranking(self) -> bool:
        """Whether the samples are impressions: known from the runs, or else from the baselines."""
        if any(run.ranking is not None for point in self.points for run in point.runs.values()):
            return True
        return any("revenue_ratio" in values for seeds in self.baselines.values() for values in seeds.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics to show."""
        return RANKING_METRIC_NAMES if self.is_ranking else COMPARED_METRICS

    @property
    def written(self) -> tuple[str, ...]:
        """The metrics of the CSV."""
        return RANKING_METRIC_NAMES if self.is_ranking else METRIC_NAMES


@dataclasses.dataclass
class GridReport:
    """Sections of a grid's points on one split, as Markdown and as rows; `command` is quoted."""

    grid: Grid
    sections: list[Section]
    split: str
    command: str

    @property
    def results(self) -> list[PointResult]:
        """The points of all sections."""
        return [result for section in self.sections for result in section.points]

    def write(self, folder: str | Path) -> None:
        """Write `<name>.md`, `<name>.csv` and `<name>_tests.csv`."""
        path = Path(folder) / self.grid.name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(f"{path}.md", self.markdown())
        write_csv(f"{path}.csv", self.run_rows(), digits=6)
        write_csv(f"{path}_tests.csv", self.test_rows(), digits=6)

    def markdown(self) -> str:
        """The report as Markdown."""
        lines = [f"# {self.grid.name}"]
        if self.grid.description:
            lines.append(self.grid.description)
        for section in self.sections:
            lines += [f"## {section.title}", _table(section)]
            if section.best_auc is not None and self.split == "test":
                lines.append(f"Best reachable test AUC: {section.best_auc:.4f}.")
            if section.num_fitted is not None:
                written = [entry for result in section.points for entry in result.written.values()]
                trained = {entry.get("training_samples", {}).get("model") for entry in written} - {None}
                shown = " or ".join(f"{number:,}" for number in sorted(trained)) or "-"
                lines.append(f"Training samples: models {shown}, baselines {section.num_fitted:,}.")
        missing = [run for result in self.results for run in result.missing]
        notes = [f"{result.point.name}: {result.note}" for result in self.results if result.note]
        if missing:
            lines += [
                f"Missing ({len(missing)} of {sum(result.num_wanted for result in self.results)} runs):",
                "\n".join(f"- {run.name}: {run.why_missing()}" for run in missing),
            ]
        if notes:
            lines += ["Not tested:", "\n".join(f"- {note}" for note in notes)]
        is_ranking = [section.is_ranking for section in self.sections]
        if any(is_ranking):
            lines.append(_RANKING_NOTE)
        lines += [*([] if all(is_ranking) else _NOTES), f"```\n{self.command}\n```"]
        return "\n\n".join(lines) + "\n"

    def run_rows(self) -> list[dict[str, Any]]:
        """One row per run that is done or missing, and one per baseline and seed."""
        axes = list(dict.fromkeys(axis for point in self.grid.points for axis in point.axes))
        rows = []
        for section in self.sections:
            for result in section.points:
                places = {axis: result.point.axes.get(axis) for axis in axes}
                own = {"point": result.point.name, "label": result.point.label, **places}
                for seed in sorted(result.runs):
                    measured, written = result.runs[seed].metrics, result.written[seed]
                    counted = ("flops_per_sample",) if "flops_per_sample" in written else ()
                    rows.append(
                        {**own, "seed": seed, "state": DONE, "split": self.split}
                        | {name: measured.get(name) for name in (*section.written, "num_samples")}
                        | {"training_samples": written.get("training_samples", {}).get("model")}
                        | {key: written.get(key) for key in (*_WRITTEN, *counted, "machine")}
                    )
                for run in result.missing:
                    rows.append({**own, "seed": run.seed, "state": run.why_missing(), "split": self.split})
            same = [result.point.axes for result in section.points]
            shared = {a: same[0].get(a) if len({axes_of.get(a) for axes_of in same}) == 1 else None for a in axes}
            for name, seeds in section.baselines.items():
                for seed, values in sorted(seeds.items()):
                    rows.append(
                        {"point": f"baseline:{name}", "label": f"{name.replace('_', ' ')} baseline", **shared}
                        | {"seed": seed, "state": DONE, "split": self.split}
                        | {key: values.get(key) for key in (*section.written, "num_samples")}
                        | {"training_samples": section.num_fitted}
                    )
        return rows

    def test_rows(self) -> list[dict[str, Any]]:
        """One row per paired test; `seed` is empty for tests over seeds."""
        return [
            {
                "point": result.point.name,
                "compare_to": result.point.compare_to,
                "split": self.split,
                "metric": entry.metric,
                "seed": entry.seed,
                "value": entry.test.value_a,
                "value_compared": entry.test.value_b,
                "difference": entry.test.difference,
                "low": entry.test.confidence_interval[0],
                "high": entry.test.confidence_interval[1],
                "p_value": entry.test.p_value,
                "test": entry.test.method,
                "num_pairs": entry.test.num_pairs,
            }
            for result in self.results
            for entry in result.tests
        ]


def report_grid(options: GridReportOptions, say: Callable[[str], None] = print) -> GridReport:
    """`lmctr grid report GRID`: print the report as Markdown and, with `output`, write it to that folder too.

    Raises:
        ValueError: a wrong grid or recipe, stored scores that are damaged. FileNotFoundError: no such grid.
    """
    grid = load_grid(options.grid, options.output_dir).select(options.only)
    recipes = check_recipes(grid, options.overrides)
    sections = collect(grid, recipes, options.split, options.resamples)
    report = GridReport(grid, sections, options.split, options.command)
    say(report.markdown())
    if options.output is not None:
        report.write(options.output)
    return report


def collect(
    grid: Grid, recipes: dict[tuple[str, int], Recipe], split: str = "test", num_resamples: int = 1000
) -> list[Section]:
    """Read the finished runs, test each point against its `compare_to`, and sort points by their data.

    Raises:
        ValueError: stored scores that are damaged.
    """
    runs = inspect_runs(grid, recipes)
    results: dict[str, PointResult] = {}
    for point in grid.points:
        mine = [run for run in runs if run.point == point.name]
        done = [run for run in mine if run.state == DONE]
        results[point.name] = PointResult(
            point,
            {run.seed: read_predictions(run.folder.path, split) for run in done},
            {run.seed: run.metrics() for run in done},
            [run for run in mine if run.state != DONE],
        )
    for result in results.values():
        _test(result, results, num_resamples)
    sections: dict[Path, Section] = {}
    for result in results.values():
        recipe = recipes[result.point.name, grid.seeds[0]]
        path = baselines_file(grid.output_dir, recipe)
        if path not in sections:
            kept = stored_baselines(grid.output_dir, recipe, grid.seeds)
            parts = {
                name: {seed: parts[split] for seed, parts in seeds.items() if split in parts}
                for name, seeds in kept.items()
            }
            written = read_baselines(grid.output_dir, recipe)
            sections[path] = Section("", [], parts, written.get("best_auc"), written.get("training_samples"))
        sections[path].points.append(result)
    for section in sections.values():
        section.title = _title(section, recipes, split)
    return list(sections.values())


def _test(result: PointResult, results: dict[str, PointResult], num_resamples: int) -> None:
    """Fill in the paired tests of one point, over the seeds that both sides have."""
    against = result.point.compare_to
    if against is None or not result.runs:
        return
    if against not in results:
        result.note = f"{against} is not among the chosen points"
        return
    other = results[against]
    result.compared = other.point.own_label
    seeds = sorted(result.runs.keys() & other.runs.keys())
    if not seeds:
        result.note = f"no seed of {against} to compare with is done"
        return
    try:
        result.tests = compare_groups(
            [result.runs[seed] for seed in seeds],
            [other.runs[seed] for seed in seeds],
            num_resamples,
            RANKING_TESTED if result.runs[seeds[0]].ranking is not None else TESTED,
        )
    except ValueError as error:  # other samples: a difference of means would compare nothing
        result.note = f"not comparable with {against}: {error}"


def _title(section: Section, recipes: dict[tuple[str, int], Recipe], split: str) -> str:
    done = [(result, run) for result in section.points for run in result.runs.values()]
    first = section.points[0].point.name
    name = next(recipe.data["name"] for (point, _), recipe in recipes.items() if point == first)
    if not done:
        return f"{name}: no run is done"
    run = done[0][1]
    path = run.path / DATA
    if path.is_file():
        name = read_json(path).get("info", {}).get("name", name)
    return f"{name}, {split} split: {run.count_samples()}"


# ---- cells of the tables ------------------------------------------------------------------------------------------


def _table(section: Section) -> str:
    names = section.names
    metrics = [METRIC_TITLES[name] for name in names]
    delong = [] if section.is_ranking else ["DeLong"]
    tests = [f"{METRIC_TITLES[names[0]]} difference", "t test", *delong, "bootstrap"]
    costs = _costs(section)
    rows = [["point", "seeds", *metrics, *tests, "train s", *costs]]
    for result in section.points:
        rows.append(
            [
                result.point.label,
                f"{len(result.runs)}/{result.num_wanted}",
                *metric_cells(list(result.runs.values()), names),
                *_test_cells(result, section.is_ranking),
                result.mean("train_seconds", lambda seconds: f"{seconds:.0f}"),
                *(result.mean(key, lambda cost: f"{float(f'{cost:.3g}'):,.0f}") for key in costs.values()),
            ]
        )
    for name, seeds in section.baselines.items():
        if seeds:
            cells = [*metric_cells(list(seeds.values()), names), *[""] * (len(tests) + 1 + len(costs))]
            rows.append([f"{name.replace('_', ' ')} baseline", str(len(seeds)), *cells])
    return markdown_table(rows)


def _test_cells(result: PointResult, is_ranking: bool) -> list[str]:
    """Difference of the means over common seeds, and p values of the AUC, or of R/R*."""
    tests = [entry for entry in result.tests if entry.metric == ("revenue_ratio" if is_ranking else "auc")]
    if not tests:
        return [""] * (3 if is_ranking else 4)
    delong = [entry.test for entry in tests if entry.test.method == "DeLong"]
    pairs = [entry.test for entry in tests if entry.test.method.endswith("bootstrap")]
    over = [entry.test for entry in tests if entry.seed is None]
    p_values = [", ".join(f"{test.p_value:.2g}" for test in own) or "-" for own in (over, delong, pairs)]
    if is_ranking:
        del p_values[1]
    return [f"{np.mean([test.difference for test in pairs]):+.4f} ({result.compared})", *p_values]


def _costs(section: Section) -> dict[str, str]:
    """Columns on the cost of the models, title to key of `metrics.json`; none where not every run counted its FLOPs."""
    written = [entry for result in section.points for entry in result.written.values()]
    if not written or not all(entry.get("flops_per_sample") for entry in written):
        return {}
    return {"FLOPs per sample": "flops_per_sample", "training samples/s": "samples_per_second"}
