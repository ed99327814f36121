"""What the finished runs of a grid say: mean and spread over seeds, paired tests, baselines, and what is missing.

Nothing is filled in: a run that is not there counts as missing and is listed, with its reason, under the tables.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from lmctr.evaluation.comparison import (
    COMPARED_METRICS,
    RunPredictions,
    SeedTest,
    check_same_samples,
    compare_groups,
    dotted_keys,
    metric_cells,
    read_predictions,
)
from lmctr.evaluation.evaluator import METRIC_NAMES, METRIC_TITLES, RANKING_METRIC_NAMES
from lmctr.runs.folder import DATA, check_same_data
from lmctr.runs.recipe import Recipe
from lmctr.studies.grids.baselines import configuration, data_keys, kept_file, stored_baselines
from lmctr.studies.grids.file import Grid, Point, check_recipes, load_grid
from lmctr.studies.grids.options import GridReportOptions
from lmctr.studies.grids.state import DONE, GridRun, inspect_runs
from lmctr.utils.files import read_json, write_text
from lmctr.utils.suggest import errors_of
from lmctr.utils.tables import markdown_table, write_csv

TESTED = ("auc", "log_loss")
RANKING_TESTED = ("revenue_ratio", "recall", "ndcg")
_WRITTEN = ("best_step", "steps", "train_seconds", "samples_per_second")
_NOTES = (
    "Mean ± sample standard deviation over the seeds that are done (done/wanted). AUC is exact (ties count half), gAUC the "
    "impression-weighted mean of the AUC per user, ECE has 10 uniform bins. Differences are to the row named in brackets, on equal "
    "seeds; p values are two-sided and not corrected for the number of tests.",
    "t test: paired over seeds, the test samples as given; detectable: the least difference that it would call significant (p < 0.05), "
    "with the spread between seeds as it is. DeLong: test samples independent, one p per seed. Bootstrap: draws of users "
    "(of samples, where there are no users), one p per seed.",
)
_RANKING_NOTE = (
    "Mean ± sample standard deviation over the seeds that are done (done/wanted). R/R* is the eCPM of the ads passed on relative to the "
    "ground truth's, OPA the share of pairs of ads in the right order, as means over impressions that have a value. Differences are to the row "
    "named in brackets, on equal seeds; p values are two-sided and not corrected for the number of tests. t test: paired over seeds; "
    "detectable: the least difference that it would call significant (p < 0.05). Bootstrap: draws of impressions, one p per seed."
)


@dataclasses.dataclass
class Contrast:
    """Paired tests of one point against another; empty where nothing can be compared, and `note` says why."""

    point: Point
    other: Point | None
    tests: list[SeedTest]
    note: str = ""


@dataclasses.dataclass
class PointResult:
    """What is known of one point.

    Attributes:
        runs: stored scores by seed, of finished runs only.
        written: `metrics.json` by seed.
        missing: the other runs.
        compared: the tests against the point's `compare_to`; None without one.
    """

    point: Point
    runs: dict[int, RunPredictions]
    written: dict[int, dict[str, Any]]
    missing: list[GridRun]
    compared: Contrast | None = None

    @property
    def num_wanted(self) -> int:
        return len(self.runs) + len(self.missing)

    def mean(self, key: str, show: Callable[[float], str]) -> str:
        """Mean of a cost over the seeds that counted it."""
        values = [entry[key] for entry in self.written.values() if entry.get(key)]
        return show(np.mean(values)) if values else "-"


@dataclasses.dataclass
class Section:
    """Points on the same data, with the tests that the grid asks for beside those against `compare_to`, and the baselines of these data. notes: what
    was found to be of other data."""

    title: str
    points: list[PointResult]
    contrasts: list[Contrast]
    baselines: dict[str, dict[int, dict[str, Any]]]
    best_auc: float | None = None
    num_fitted: int | None = None
    notes: list[str] = dataclasses.field(default_factory=list)

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
    label: str | None = None

    @property
    def results(self) -> list[PointResult]:
        """The points of all sections."""
        return [result for section in self.sections for result in section.points]

    @property
    def comparisons(self) -> list[Contrast]:
        """All tests, with those that could not be made."""
        against = [result.compared for result in self.results if result.compared]
        return against + [contrast for section in self.sections for contrast in section.contrasts]

    def write(self, folder: str | Path) -> None:
        """Write `<name>.md`, `<name>.csv` and `<name>_tests.csv`; of a label behind the first, `<name>_<label>.md` and so on."""
        path = Path(folder) / "_".join(filter(None, (self.grid.name, self.label)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(f"{path}.md", self.markdown())
        write_csv(f"{path}.csv", self.run_rows(), digits=6)
        write_csv(f"{path}_tests.csv", self.test_rows(), digits=6)

    def markdown(self) -> str:
        """The report as Markdown."""
        lines = [f"# {self.grid.name}{f': {self.label}' if self.label else ''}"]
        if self.grid.description:
            lines.append(self.grid.description)
        for section in self.sections:
            lines += [f"## {section.title}", _table(section)]
            if section.notes:
                lines += ["Not of the same samples:", "\n".join(f"- {note}" for note in section.notes)]
            if section.contrasts:
                lines += ["Contrasts:", _contrast_table(section)]
            if section.best_auc is not None and self.split == "test":
                lines.append(f"Best reachable test AUC: {section.best_auc:.4f}.")
            if section.num_fitted is not None:
                written = [entry for result in section.points for entry in result.written.values()]
                trained = {entry.get("training_samples", {}).get("model") for entry in written} - {None}
                shown = " or ".join(f"{number:,}" for number in sorted(trained)) or "-"
                lines.append(f"Training samples: models {shown}, baselines {section.num_fitted:,}.")
        missing = [run for result in self.results for run in result.missing]
        notes = [f"{one.point.name}: {one.note}" for one in self.comparisons if one.note]
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
                "point": one.point.name,
                "compare_to": one.other.name,
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
            for one in self.comparisons
            for entry in one.tests
        ]


def report_grid(options: GridReportOptions, say: Callable[[str], None] = print) -> GridReport:
    """`lmctr grid report GRID`: print the report as Markdown and, with `output`, write it to that folder too.

    Raises:
        ValueError: a wrong grid or recipe, stored scores that are damaged. FileNotFoundError: no such grid.
    """
    if options.resamples < 100:
        raise ValueError(
            f"--resamples {options.resamples}: accepted: 100 or more, p values would have steps of over 0.01"
        )
    grid = load_grid(options.grid, options.output_dir).select(options.only)
    recipes = check_recipes(grid, options.overrides)
    sections = collect(grid, recipes, options.split, options.resamples, options.label)
    report = GridReport(grid, sections, options.split, options.command, options.label)
    say(report.markdown())
    if options.output is not None:
        report.write(options.output)
    return report


def collect(
    grid: Grid,
    recipes: dict[tuple[str, int], Recipe],
    split: str = "test",
    num_resamples: int = 1000,
    label: str | None = None,
) -> list[Section]:
    """Read the finished runs, test each point against its `compare_to`, and sort points by their data. A `label` behind the first has no
    baselines and no best AUC.

    Raises:
        ValueError: stored scores that are damaged; seeds of a point on different data; no such label.
    """
    runs = inspect_runs(grid, recipes)
    results: dict[str, PointResult] = {}
    for point in grid.points:
        mine = [run for run in runs if run.point == point.name]
        done = [run for run in mine if run.state == DONE]
        with errors_of(point.name):
            check_same_data(run.folder for run in done)
        results[point.name] = PointResult(
            point,
            {run.seed: read_predictions(run.folder.path, split, label) for run in done},
            {run.seed: run.metrics() for run in done},
            [run for run in mine if run.state != DONE],
        )
    for result in results.values():
        if result.point.compare_to is not None and result.runs:
            result.compared = _compare(results, result.point.name, result.point.compare_to, num_resamples)
    contrasts = [_compare(results, *pair, num_resamples) for pair in grid.contrasts]
    sections: dict[tuple[str, str], Section] = {}
    files: dict[tuple[str, str], Path | None] = {}
    done = {point: [run.folder for run in runs if run.point == point and run.state == DONE] for point in results}
    keys = data_keys({name: recipes[name, grid.seeds[0]] for name in results}, done)
    for result in results.values():
        recipe, key = recipes[result.point.name, grid.seeds[0]], keys[result.point.name]
        if key not in sections:
            of_key = [name for name in results if keys[name] == key]
            files[key] = kept_file(grid.output_dir, recipe, [run for name in of_key for run in done[name]])
            path = files[key] if label is None else None
            kept = stored_baselines(path, grid.seeds)
            parts = {
                name: {seed: parts[split] for seed, parts in seeds.items() if split in parts}
                for name, seeds in kept.items()
            }
            written = {} if path is None else read_json(path)
            sections[key] = Section("", [], [], parts, written.get("best_auc"), written.get("training_samples"))
        sections[key].points.append(result)
        sections[key].contrasts += [contrast for contrast in contrasts if contrast.point is result.point]
    for key, section in sections.items():
        _tell_samples_apart(section, files[key])
    named: dict[str, list[Section]] = {}
    for section in sections.values():
        named.setdefault(_dataset(section, recipes), []).append(section)
    for name, alike in named.items():
        for section, told in zip(alike, _what_differs([_first_recipe(section, recipes) for section in alike])):
            section.title = _title(section, name, split) + told
    return list(sections.values())


def _tell_samples_apart(section: Section, path: Path | None) -> None:
    """Note what of a section was measured on other samples than its first run, as where the data changed in between; such baselines, which lie in
    `path`, are left out."""
    first, *others = [next(iter(result.runs.values())) for result in section.points if result.runs] or [None]
    for run in others:
        try:
            check_same_samples(first, run)
        except ValueError as error:
            section.notes.append(str(error))
    measured = [values for seeds in section.baselines.values() for values in seeds.values()] if first else []
    for key in ("num_samples", "positive_rate", "revenue_ratio_dropped"):
        found = {values[key] for values in measured if key in values and key in first.metrics}
        other = [value for value in found if not math.isclose(value, first.metrics[key], rel_tol=1e-6)]
        if other:
            section.notes.append(
                f"the baselines in {path} are left out: their {key} is {other[0]:.6g}, that of {first.path} {first.metrics[key]:.6g}; delete the file, "
                "and `lmctr grid run` measures them anew"
            )
            section.baselines, section.best_auc, section.num_fitted = {}, None, None
            return


def _compare(results: dict[str, PointResult], name: str, other: str, num_resamples: int) -> Contrast:
    """Paired tests of one point against another, over the seeds that both sides have."""
    found = Contrast(results[name].point, results[other].point if other in results else None, [])
    if found.other is None:
        found.note = f"{other} is not among the chosen points"
        return found
    runs, others = results[name].runs, results[other].runs
    seeds = sorted(runs.keys() & others.keys())
    if not seeds:
        found.note = f"no seed of {other} to compare with is done"
        return found
    try:
        found.tests = compare_groups(
            [runs[seed] for seed in seeds],
            [others[seed] for seed in seeds],
            num_resamples,
            RANKING_TESTED if runs[seeds[0]].ranking is not None else TESTED,
        )
    except ValueError as error:  # other samples: a difference of means would compare nothing
        found.note = f"not comparable with {other}: {error}"
    return found


def _first_recipe(section: Section, recipes: dict[tuple[str, int], Recipe]) -> Recipe:
    first = section.points[0].point.name
    return next(recipe for (point, _), recipe in recipes.items() if point == first)


def _dataset(section: Section, recipes: dict[tuple[str, int], Recipe]) -> str:
    """The name of its data set, as the first finished run has it, else as the recipe has."""
    name = _first_recipe(section, recipes).data["name"]
    files = [run.path / DATA for result in section.points for run in result.runs.values()]
    return read_json(files[0]).get("info", {}).get("name", name) if files and files[0].is_file() else name


def _what_differs(recipes: list[Recipe]) -> list[str]:
    """Of sections on one data set, what each one's baselines are measured with and another's are not: " (data.seed: 1)"."""
    all_values = []
    for recipe in recipes:
        data = configuration(recipe) | {"path": recipe.data.get("path")}
        refit = {"training": {"refit": True}} if data.pop("refit", False) else {}
        all_values.append(
            dotted_keys({"data": {key: value for key, value in data.items() if value not in (None, {}, [])}} | refit)
        )
    keys = dict.fromkeys(key for values in all_values for key in values)
    keys = [key for key in keys if any(values.get(key) != all_values[0].get(key) for values in all_values)]
    told = [
        ", ".join(f"{key}: {shorten(str(values.get(key, 'not set')), 60)}" for key in keys) for values in all_values
    ]
    return [f" ({words})" if words else "" for words in told]


def _title(section: Section, name: str, split: str) -> str:
    run = next((run for result in section.points for run in result.runs.values()), None)
    return f"{name}: no run is done" if run is None else f"{name}, {split} split: {run.count_samples()}"


# ---- cells of the tables ----


def _table(section: Section) -> str:
    names = section.names
    metrics = [METRIC_TITLES[name] for name in names]
    tests = _test_titles(section)
    costs = _costs(section)
    rows = [["point", "seeds", *metrics, *tests, "train s", *costs]]
    for result in section.points:
        rows.append(
            [
                result.point.label,
                f"{len(result.runs)}/{result.num_wanted}",
                *metric_cells(list(result.runs.values()), names),
                *(_test_cells(result.compared, section.is_ranking) or [""] * len(tests)),
                result.mean("train_seconds", lambda seconds: f"{seconds:.0f}"),
                *(result.mean(key, lambda cost: f"{float(f'{cost:.3g}'):,.0f}") for key in costs.values()),
            ]
        )
    for name, seeds in section.baselines.items():
        if seeds:
            cells = [*metric_cells(list(seeds.values()), names), *[""] * (len(tests) + 1 + len(costs))]
            rows.append([f"{name.replace('_', ' ')} baseline", str(len(seeds)), *cells])
    return markdown_table(rows)


def _contrast_table(section: Section) -> str:
    rows = [["contrast", "seeds", *_test_titles(section)]]
    for one in section.contrasts:
        other = f"- ({one.other.own_label})" if one.other else "-"
        cells = _test_cells(one, section.is_ranking) or [other, *["-"] * (len(rows[0]) - 3)]
        over = sum(
            entry.metric == one.tests[0].metric and entry.test.method.endswith("bootstrap") for entry in one.tests
        )
        rows.append([one.point.label, str(over), *cells])
    return markdown_table(rows)


def _test_titles(section: Section) -> list[str]:
    delong = [] if section.is_ranking else ["DeLong"]
    return [f"{METRIC_TITLES[section.names[0]]} difference", "detectable", "t test", *delong, "bootstrap"]


def _test_cells(comparison: Contrast | None, is_ranking: bool) -> list[str]:
    """Difference of the means over common seeds, the least detectable one, and p values of the AUC, or of R/R*; empty without tests."""
    tests = comparison.tests if comparison else []
    tests = [entry for entry in tests if entry.metric == ("revenue_ratio" if is_ranking else "auc")]
    if not tests:
        return []
    delong = [entry.test for entry in tests if entry.test.method == "DeLong"]
    pairs = [entry.test for entry in tests if entry.test.method.endswith("bootstrap")]
    over = [entry.test for entry in tests if entry.seed is None]
    p_values = [", ".join(f"{test.p_value:.2g}" for test in own) or "-" for own in (over, delong, pairs)]
    if is_ranking:
        del p_values[1]
    difference = f"{np.mean([test.difference for test in pairs]):+.4f} ({comparison.other.own_label})"
    return [difference, f"{over[0].detectable:.4f}" if over else "-", *p_values]


def _costs(section: Section) -> dict[str, str]:
    """Columns on the cost of the models, title to key of `metrics.json`; none where not every run counted its FLOPs."""
    written = [entry for result in section.points for entry in result.written.values()]
    if not written or not all(entry.get("flops_per_sample") for entry in written):
        return {}
    return {"FLOPs per sample": "flops_per_sample", "training samples/s": "samples_per_second"}
