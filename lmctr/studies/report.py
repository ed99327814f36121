"""One HTML page about finished runs, from what their folders hold: `lmctr report RUN ...`. No model and no data are loaded."""

from __future__ import annotations

import base64
import csv
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined

from lmctr.analysis.plots import require_matplotlib
from lmctr.analysis.plots_report import plot_calibration, plot_curves, plot_slices
from lmctr.evaluation.comparison import RunPredictions, check_same_samples, differing_keys, read_predictions, value_at
from lmctr.evaluation.evaluator import METRIC_TITLES
from lmctr.evaluation.metrics import calibration_curve
from lmctr.models.families import family_of
from lmctr.runs.about import data_lines, dataset_info, shown, shown_command, without_paths
from lmctr.runs.folder import METRICS, SLICES, RunFolder, open_run, unlike_data
from lmctr.studies.analyses.common import run_names
from lmctr.studies.compare import OVER_SEEDS, UNCORRECTED, compare_runs
from lmctr.studies.options import ReportOptions
from lmctr.utils.files import write_text
from lmctr.utils.lock import owned
from lmctr.utils.progress import step
from lmctr.utils.suggest import errors_of
from lmctr.utils.tables import seed_cells

_MAIN = ("revenue_ratio", "auc")
_RESULTS_NOTE = f"{OVER_SEEDS}, UAUC their plain mean, NE the log loss over that of the mean rate, ECE has 10 uniform bins. What was chosen was chosen on validation."


@dataclass(frozen=True)
class Table:
    """Lines of cells, the head first. left: how many columns stand to the left."""

    caption: str
    lines: Sequence[Sequence[str]]
    left: int = 1


@dataclass(frozen=True)
class Picture:
    """source: a data URI."""

    source: str
    alt: str
    caption: str


@dataclass
class PageSection:
    """Shown in this order; texts are (name, text as it is)."""

    title: str
    notes: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class ReportedRun:
    """A finished run, by the name that the page calls it. scores: None where it keeps none of the part."""

    name: str
    folder: RunFolder
    metrics: dict[str, Any]
    recipe: dict[str, Any]
    data: dict[str, Any] | None
    scores: RunPredictions | None


def run_report(options: ReportOptions, say: Callable[[str], None] = print) -> int:
    """`lmctr report RUN ...`. Returns the exit code."""
    output = Path(options.output or Path(options.run[0]) / "analysis" / "report.html")
    if output.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--output {output}: the page is HTML; give a name that ends in .html")
    if options.resamples < 100:
        raise ValueError(f"--resamples must be at least 100, got {options.resamples}")
    for path in options.run:  # or the place would be made in a folder that is no run
        open_run(path)
    with owned(output.parent, "`lmctr report`", ".report.lock"):  # a place that may not be written is told at once
        page = build_report(
            options.run, options.split, options.resamples, plots=not options.no_plots, command=options.command
        )
        write_text(output, page)
    say(f"wrote {output} ({len(page.encode()) / 1024:,.0f} KiB)")
    return 0


@step("making the report")
def build_report(
    runs: Sequence[str | Path],
    split: str = "test",
    num_resamples: int = 1000,
    *,
    plots: bool = True,
    command: str = "",
) -> str:
    """The page.

    Args:
        runs: folders of finished runs. Those of different seeds whose recipes differ in nothing else, on the same data, are one group.
        split: part that is tested and drawn.
        num_resamples: draws per bootstrap.
        plots: whether pictures are drawn.
        command: quoted at the end.

    Raises:
        FileNotFoundError, ValueError: no finished run, broken files, a run given twice.
        MissingExtraError: plots without matplotlib.
    """
    folders = [open_run(path) for path in runs]
    if plots:
        require_matplotlib()
    found = [_read(name, folder, split) for name, folder in zip(run_names(folders), folders)]
    groups = _groups(found)
    draw = _draw if plots else None
    sections = [
        _results(groups),
        _significance(groups, split, num_resamples),
        _curves(found, draw),
        _calibration(found, split, draw),
        *(_slices(group[0], split, draw) for group in groups),
        _data(groups),
        _settings(groups, command),
    ]
    families: dict[str, dict[str, None]] = {}
    for run in found:
        families.setdefault(_data_name(run), {})[family_of(run.recipe["model"].get("family", "ctr_sink")).title] = None
    datasets: dict[frozenset[str], tuple[str, list[str]]] = {}
    for name, own in families.items():
        datasets.setdefault(frozenset(own), (", ".join(own), []))[1].append(name)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    return template.render(
        title="; ".join(f"{own} on {', '.join(names)}" for own, names in datasets.values()),
        subtitle=f"{len(found)} run{'s' * (len(found) > 1)}: {', '.join(run.name for run in found)}",
        verdicts=[f"{run.name}: {run.metrics['verdict']}" for run in found if run.metrics.get("verdict")],
        sections=[section for section in sections if section is not None],
    )


def _read(name: str, folder: RunFolder, split: str) -> ReportedRun:
    has_scores = (folder.path / "predictions" / f"{split}.parquet").is_file()
    scores = read_predictions(folder.path, split) if has_scores else None
    written = {key: value for key, value in (folder.metrics() or {}).items() if value is not None}
    if not isinstance(written.get("split metrics"), dict):
        raise ValueError(f"{folder.path / METRICS} has no 'split metrics', the metrics of each part: it is damaged")
    metrics = {"baselines": {}, "training_samples": {}} | written  # what a run of another version may lack
    return ReportedRun(name, folder, metrics, {"model": {}} | (folder.recipe() or {}), folder.data(), scores)


def _groups(runs: Sequence[ReportedRun]) -> list[list[ReportedRun]]:
    """Runs of one recipe, but for the seed, on the same data, in the order in which they come."""

    def is_another_seed(run: ReportedRun, group: list[ReportedRun]) -> bool:
        return (
            run.metrics.get("seed") not in [own.metrics.get("seed") for own in group]
            and not any(unlike_data(run.data or {}, own.data or {}) for own in group)
            and not differing_keys(group[0].recipe, run.recipe)
        )

    return _together(runs, is_another_seed)


def _together(entries: Sequence[Any], belongs: Callable[[Any, list[Any]], bool]) -> list[list[Any]]:
    """The entries in lists: each stands in the first list that it belongs to, or opens the next."""
    lists: list[list[Any]] = []
    for entry in entries:
        own = next((own for own in lists if belongs(entry, own)), None)
        if own is None:
            lists.append(own := [])
        own.append(entry)
    return lists


def _results(groups: list[list[ReportedRun]]) -> PageSection:
    measured = {part for group in groups for part in group[0].metrics["split metrics"]}
    parts = [part for part in ("test", "validation") if part in measured]
    section = PageSection("Results", [_RESULTS_NOTE, *_apart(groups)])
    for part in parts:
        own = [[run.metrics["split metrics"].get(part, {}) for run in group] for group in groups]
        keys = [key for key in METRIC_TITLES if any(key in values for group in own for values in group)]
        lines = [["", "seed", *(METRIC_TITLES[key] for key in keys)]]
        for group, values in zip(groups, own):
            lines += [
                [run.name, str(run.metrics["seed"]), *seed_cells([one], keys)] for run, one in zip(group, values)
            ]
            if len(group) > 1:
                lines.append([f"mean of {_group_name(group)}", f"{len(group)} seeds", *seed_cells(values, keys)])
        for name in dict.fromkeys(name for group in groups for run in group for name in run.metrics["baselines"]):
            rows: dict[tuple[str, ...], list[str]] = {}  # runs of one log share theirs, unless they were refitted
            for group in groups:
                measured = [run.metrics["baselines"].get(name, {}).get(part) for run in group]
                if all(measured):
                    rows.setdefault(tuple(seed_cells(measured, keys)), []).append(_group_name(group))
            for cells, names in rows.items():
                of = f" of {', '.join(names)}" * (len(names) < len(groups))
                lines.append([f"baseline: {name.replace('_', ' ')}{of}", "", *cells])
        section.tables.append(Table(part, lines))
    bests: dict[float | None, list[str]] = {}
    for group in groups:
        bests.setdefault(group[0].metrics.get("best_auc"), []).append(_group_name(group))
    for best, names in bests.items():
        if best is not None:
            of = f" of {', '.join(names)}" * (len(bests) > 1)
            section.notes.append(f"The data{of} are generated; the best reachable test AUC is {best:.4f}.")
    return section


def _apart(groups: list[list[ReportedRun]]) -> list[str]:
    """A note about groups whose numbers are not of the same samples."""
    alike = _together(groups, lambda group, own: _are_alike(own[0][0], group[0]))
    if len(alike) == 1:
        return []
    told = [f"{', '.join(map(_group_name, own))} (data {_data_name(own[0][0])})" for own in alike]
    return [
        f"Not measured on the same samples by the same metrics: {'; '.join(told)}. Compare numbers within each only."
    ]


def _are_alike(run: ReportedRun, other: ReportedRun) -> bool:
    if run.scores is None or other.scores is None:
        return _data_name(run) == _data_name(other)
    try:
        check_same_samples(run.scores, other.scores)
    except ValueError:
        return False
    return True


def _data_name(run: ReportedRun) -> str:
    return dataset_info(run.data).get("name", "a CTR log")


def _group_name(group: Sequence[ReportedRun]) -> str:
    return group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}"


def _significance(groups: list[list[ReportedRun]], split: str, num_resamples: int) -> PageSection:
    section = PageSection("Significance")
    if len(groups) == 1:
        section.notes.append(
            "Runs of one recipe: nothing to test against. Give runs of another recipe with the same seeds."
        )
        return section
    section.notes.append(f"Differences are first minus second. {UNCORRECTED}")
    first = [str(run.folder.path) for run in groups[0]]
    for group in groups[1:]:
        against = f"{_group_name(groups[0])} against {_group_name(group)}"
        try:
            comparison = compare_runs(first, [str(run.folder.path) for run in group], split, num_resamples)
        except (FileNotFoundError, ValueError) as error:
            section.notes.append(f"{against}: not tested: {without_folders(str(error), groups)}")
            continue
        if not section.tables:
            section.notes[0] += f" {comparison.tests_note}"
        lines = [["metric", "test", "seed", "first", "second", "difference", "95 % interval", "p", "pairs"]]
        for entry in comparison.tests:
            test, seed = entry.test, "all" if entry.seed is None else str(entry.seed)
            lines.append([METRIC_TITLES[entry.metric], test.method, seed, *test.cells(), f"{test.num_pairs:,}"])
        section.tables.append(Table(f"{against}, {split}", lines, 2))
    return section


def without_folders(text: str, groups: list[list[ReportedRun]]) -> str:
    """A message that calls runs by their names."""
    for run in (run for group in groups for run in group):
        text = text.replace(str(run.folder.path), run.name)
    return text


# ---- pictures ----


def _draw(plot: Callable[[Path], Path], alt: str, caption: str) -> Picture:
    """A picture of what a plot function writes into a file."""
    with tempfile.TemporaryDirectory() as folder:
        content = plot(Path(folder) / "plot.svg").read_bytes()
    return Picture(f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}", alt, caption)


def _curves(runs: Sequence[ReportedRun], draw: Callable[..., Picture] | None) -> PageSection:
    section = PageSection("Training")
    measured = [run.metrics.get("evaluations", ()) for run in runs]
    mains = {next((key for key in _MAIN if any(key in entry for entry in own)), None) for own in measured}
    wanted = [(f"validation {METRIC_TITLES[key]}", "evaluations", key) for key in _MAIN if key in mains]
    wanted.append(("training loss", "losses", "loss"))
    for title, where, key in wanted:
        entries = {run.name: [e for e in run.metrics.get(where, ()) if key in e] for run in runs}
        curves = {
            name: ([entry["step"] for entry in own], [entry[key] for entry in own])
            for name, own in entries.items()
            if own
        }
        if draw is not None and curves:
            alt = "; ".join(_curve_words(name, *curve) for name, curve in curves.items())
            caption = f"{title.capitalize() if title.islower() else title[0].upper() + title[1:]} by step."
            section.pictures.append(
                draw(partial(plot_curves, curves, title=title, among=[*entries]), f"{caption} {alt}.", caption)
            )
    lines = [["", "best step", "steps", "epochs", "training samples", "seconds", "samples per second"]]
    for run in runs:
        metrics = run.metrics
        values = [metrics.get("best_step"), metrics.get("steps"), metrics.get("epochs")]
        values += [metrics.get("training_samples", {}).get("model"), metrics.get("train_seconds")]
        lines.append([run.name, *map(_number, [*values, metrics.get("samples_per_second")])])
    section.tables.append(Table("what was trained", lines))
    return section


def _curve_words(name: str, steps: Sequence[float], values: Sequence[float]) -> str:
    if len(steps) == 1:
        return f"{name}: {values[0]:.4f} at step {steps[0]:,}"
    return (
        f"{name}: from {values[0]:.4f} at step {steps[0]:,} to {values[-1]:.4f} at step {steps[-1]:,}, between "
        f"{min(values):.4f} and {max(values):.4f}"
    )


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _calibration(runs: Sequence[ReportedRun], split: str, draw: Callable[..., Picture] | None) -> PageSection:
    section = PageSection("Calibration")
    curves = {}
    for run in runs:
        if run.scores is not None and run.scores.ranking is None:
            with errors_of(run.folder.path):
                labels, logits = (run.scores.columns[name] for name in ("label", "logit"))
                curves[run.name] = calibration_curve(labels, logits, from_logits=True, sample_weight=run.scores.weight)
    if not curves:
        section.notes.append(f"No scores of clicks are kept for {split}: nothing to compare with.")
        return section
    section.notes.append(
        f"Ten bins of equal weight in the order of the predicted probability, {split}. Above the dotted line a model predicts too low, below "
        "it too high."
    )
    if draw is not None:
        words = (
            f"{name}: largest gap between rate and prediction {max(abs(rate - mean)):.3f}, mean prediction from {mean[0]:.3f} to {mean[-1]:.3f}"
            for name, (mean, rate, _) in curves.items()
        )
        caption = "Share of positives by predicted probability."
        section.pictures.append(
            draw(
                partial(plot_calibration, curves, among=[run.name for run in runs]),
                f"{caption} {'; '.join(words)}.",
                caption,
            )
        )
    for name, columns in curves.items():
        lines = [["bin", "mean prediction", "share of positives", "samples"]]
        for place, (mean, rate, count) in enumerate(zip(*columns), 1):
            lines.append([str(place), f"{mean:.4f}", f"{rate:.4f}", f"{count:,}"])
        section.tables.append(Table(name, lines))
    return section


def _slices(run: ReportedRun, split: str, draw: Callable[..., Picture] | None) -> PageSection | None:
    path = run.folder.path / SLICES
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("split") == split]
    if not rows:
        return None
    numbers = [key for key in rows[0] if key not in ("split", "slice", "value", "num_samples")]
    for row in rows:
        row |= {key: float(row[key]) if row[key] else None for key in numbers}
    names = [key.removesuffix("_auc") for key in numbers if key.endswith("_auc") and not key.endswith("_grouped_auc")]
    section = PageSection(f"Slices of {run.name}")
    if draw is not None:
        first = names[0]
        known = [row for row in rows if row[f"{first}_auc"] is not None]
        caption = f"AUC by slice, {split}."
        alt = "; ".join(f"{row['slice']} {row['value']}: {row[f'{first}_auc']:.3f}" for row in known)
        alt = f"{caption} {first.replace('_', ' ')}: {alt or 'not defined in any slice'}."
        section.pictures.append(draw(partial(plot_slices, rows, names), alt, caption))
    lines = [["slice", "", "samples", *(_column(key) for key in numbers)]]
    for row in rows:
        cells = ["-" if row[key] is None else f"{row[key]:.4f}" for key in numbers]
        lines.append([row["slice"], row["value"], f"{int(row['num_samples']):,}", *cells])
    section.tables.append(Table(split, lines, 2))
    return section


def _column(key: str) -> str:
    words = key.replace("_grouped_auc", " gAUC").removesuffix("_auc") + (" AUC" if key.endswith("_auc") else "")
    return words.replace(" gAUC AUC", " gAUC").replace("_", " ")


# ---- what was trained on, and how ----


def _data(groups: list[list[ReportedRun]]) -> PageSection:
    section = PageSection("Data")
    texts = {_group_name(group): "\n".join(data_lines(group[0].data, str)) for group in groups}
    if len(set(texts.values())) == 1:
        texts = {"all runs" if len(groups) > 1 else name: text for name, text in texts.items()}
    section.texts = [(name, text or "the run keeps no data.json") for name, text in texts.items()]
    return section


def _settings(groups: list[list[ReportedRun]], command: str) -> PageSection:
    section = PageSection("Settings")
    for group in groups[1:]:
        differing = differing_keys(groups[0][0].recipe, group[0].recipe)
        pairs = (groups[0][0].recipe, group[0].recipe)
        lines = [["key", "first", "second"]]
        lines += [[key, *(shown(str(value_at(recipe, key, "(not set)"))) for recipe in pairs)] for key in differing]
        caption = f"{_group_name(groups[0])} and {_group_name(group)} differ in{'' if differing else ' no key'}"
        section.tables.append(Table(caption, lines, 3))
    for group in groups:
        recipe = yaml.safe_dump(without_paths(group[0].recipe), sort_keys=False, allow_unicode=True)
        section.texts.append((f"recipe of {_group_name(group)}", recipe.strip()))
    lines = []
    for run in (run for group in groups for run in group):
        lines += [f"# {run.name}", _said(run.metrics.get("command"))]
        lines.append(f"# machine: {run.metrics.get('machine', 'not known')}")
        lines += [f"# {name} {value}" for name, value in (run.metrics.get("versions") or {}).items()]
        if commit := run.metrics.get("commit"):
            lines.append(f"# commit {commit['id']}{', with changes' * commit['is_changed']}")
    section.texts.append(
        ("commands, machine and versions", "\n".join([*lines, "# this page", _said(command)]).strip())
    )
    return section


def _said(command: str | None) -> str:
    """A command without folders of the machine that it ran on."""
    return shown_command(command) if command else "not known"
