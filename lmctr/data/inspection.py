"""What is in a data set: figures of a log, a table or impressions, and data sets read once and kept; `lmctr data` prints both."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import yaml

from lmctr.data.array_store import ArrayStore
from lmctr.data.impressions.source import ImpressionSource
from lmctr.data.leaks import are_enough
from lmctr.data.logs.log import LOG_FILE, InteractionLog
from lmctr.data.logs.splits import RULES, Splits, split_log
from lmctr.data.logs.table import log_from_file
from lmctr.data.logs.validation import LeakageReport, validate_log
from lmctr.data.options import DataOptions, PrepareOptions
from lmctr.data.registry import Loader, find, looked_at
from lmctr.data.tables.load import table_source
from lmctr.data.tables.source import TableSource
from lmctr.utils.arrow import is_text
from lmctr.utils.files import write_json
from lmctr.utils.lazy import imported
from lmctr.utils.lock import LOCK, owned
from lmctr.utils.progress import Work, showing
from lmctr.utils.tables import text_table

REPORT_FILE = "report.json"
_UNFINISHED = ".unfinished"
_STORES = "lmctr.data.store_figures"  # imported for tables and impressions: it waits for transformers
_LENGTH_STEPS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_ODD = {"empty": "without ads, left out", "single": "with one ad", "no_revenue": "without an eCPM above 0"}


@dataclass(frozen=True)
class Inspected:
    """A data set that was read and checked: the data, its parts (of a log that can be split) and its figures."""

    data: InteractionLog | TableSource | ImpressionSource
    splits: Splits | None
    figures: dict[str, Any]


def inspect(options: DataOptions) -> Inspected:
    """Reads and checks any data set; `figures` say what is in it, see [`lines_of`].

    Raises:
        ValueError: bad options or data; a log that leaks.
        FileNotFoundError: the data are absent.
    """
    with showing(not options.quiet):
        return _inspect(options)


def _inspect(options: DataOptions) -> Inspected:
    data, guessed = _read(options)
    if isinstance(data, InteractionLog):
        with Work(f"checking {options.name}"):
            splits, report, problem = _split_and_check(data, options)
        figures = describe_log(data, splits, report, problem, options.num_behaviors or 50)
        return Inspected(data, splits, figures | guessed)
    with tempfile.TemporaryDirectory(prefix="lmctr-") as folder:  # on disk: tables may be of any size
        stores = imported(_STORES)
        if isinstance(data, TableSource):
            store = stores.TabularStore.build(data, directory=folder)
        else:
            with Work(f"processing {options.name}"):
                store = stores.ImpressionStore.build(data, directory=folder)
        return Inspected(data, None, stores.describe_store(data, store) | guessed)


def prepare_data(options: PrepareOptions, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Reads and checks any data set and writes it into a folder, with its figures in `report.json`.

    Returns:
        The figures.

    Raises:
        ValueError: what [`inspect`] raises; a folder that holds something else, or the data already.
    """
    output = Path(options.output)
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output}: a file of this name exists.")
    with showing(not options.quiet), owned(output, "`lmctr data prepare`"):
        return _prepare(options, output, say)


def _prepare(options: PrepareOptions, output: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Writes into a folder in the output and moves what is there when all of it is, so that a kill at any moment leaves the old
    data, or the sign by which the same command goes on."""
    kind = _loader(options)[0].kind
    stores = None if kind == "log" else imported(_STORES)
    store_class = (
        None if stores is None else {"table": stores.TabularStore, "impressions": stores.ImpressionStore}[kind]
    )
    what = "log" if store_class is None else store_class.kind
    work = output / _UNFINISHED
    new, sign = work / "new", work / "first"  # the sign: there were no data before
    pattern = LOG_FILE if store_class is None else f"[!.]*/{store_class.header_file}"
    is_there = any(file.is_file() for file in output.glob(pattern))
    if not is_there and not work.is_dir() and any(path.name != LOCK for path in output.iterdir()):
        raise ValueError(f"--output {output}: the folder is not empty and holds no {what}; name another one.")
    if is_there and not options.overwrite and not sign.is_file():
        raise ValueError(
            f"--output {output}: the folder holds a {what} already; name another one, or pass --overwrite."
        )
    is_new = not work.is_dir()
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        if not is_there:
            sign.touch()
        if store_class is None:
            found = inspect(options)
            with Work(f"writing {options.name}"):
                found.data.save(new)
            figures, rows, use, last = found.figures, found.data.num_events, "event", LOG_FILE
        else:
            source, guessed = _read(options)
            with Work(f"writing {options.name}"):
                store: ArrayStore = store_class.build(source, directory=new)
            figures = stores.describe_store(source, store) | guessed
            rows, last = len(store), store.directory.name
            use = f"{'row' if kind == 'table' else 'impression'}\na recipe reads it with data.cache_dir: {output}"
        size = sum(file.stat().st_size for file in new.rglob("*") if file.is_file())
        write_json(new / REPORT_FILE, figures)
    except BaseException:
        if is_new:
            shutil.rmtree(work, ignore_errors=True)
        raise
    if store_class is None:
        (output / LOG_FILE).unlink(missing_ok=True)  # no longer whole from here on
        if is_there:
            sign.touch()
    for path in sorted(new.iterdir(), key=lambda path: path.name == last):  # what makes it whole comes last
        target = output / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)
    shutil.rmtree(work)
    say("\n".join(lines_of(figures)))
    say(f"\nwritten to {output}: {size / 1e6:,.1f} MB, {size / max(rows, 1):.0f} bytes per {use}")
    return figures


def _read(options: DataOptions) -> tuple[InteractionLog | TableSource | ImpressionSource, dict[str, Any]]:
    """The data that the options name, and where their columns were guessed the figure that says so."""
    if options.num_behaviors is not None and options.num_behaviors < 1:
        raise ValueError(f"--num-behaviors: got {options.num_behaviors}, accepted: an integer from 1.")
    loader, values, guessed = _loader(options)
    if loader.kind != "log":
        if options.num_behaviors is not None:
            raise ValueError(f"--num-behaviors: {options.name!r} is no log, which alone has behaviours; leave it out.")
        for key in ("split", "fractions", "seed"):
            value = getattr(options, key)
            if value is not None:
                if key not in loader.options:
                    raise ValueError(f"--{key}: {options.name!r} parts its rows itself; leave it out.")
                values[key] = value
    with Work(f"reading {options.name}"):
        return loader(**values), guessed


def _loader(options: DataOptions) -> tuple[Loader, dict[str, Any], dict[str, Any]]:
    """What reads the data, its options, and the figure of what was guessed: the columns of a file without options."""
    loader, values = find(options.name, options.kind), _options(options)
    is_file = loader.function in (table_source, log_from_file) or "impressions" in loader.fixed
    if not is_file or values:
        return loader, values, {}
    loader, values, lines = looked_at(options.name, options.kind)
    return loader, values, {"guessed": lines}


def _options(options: DataOptions) -> dict[str, Any]:
    """The options of the data set, as `--option` and `--path` give them."""
    values: dict[str, Any] = {}
    for text in options.option:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"--option {text!r}: expected KEY=VALUE, such as last_years=5.")
        try:
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            values[key] = value
    if options.path is not None:
        values["path"] = options.path
    return values


def _split_and_check(log: InteractionLog, options: DataOptions) -> tuple[Splits | None, LeakageReport, str | None]:
    """The splits, or None and the reason why the log cannot be split; the leakage report of what there is."""
    rule = options.split or "time"
    if rule not in RULES[:2]:
        raise ValueError(f"--split: got {rule!r}, accepted: {', '.join(RULES[:2])}.")
    splits, problem = None, None
    num_samples = len(log.sample_events())
    if num_samples < 3:
        problem = f"{num_samples} samples are too few for three parts"
    else:
        try:
            splits = split_log(log, rule, options.fractions or (0.8, 0.1, 0.1), options.seed or 0)
        except ValueError as error:
            if "fractions:" in str(error):
                raise
            problem = str(error)
    return splits, validate_log(log, splits), problem


def describe_log(
    log: InteractionLog, splits: Splits | None, report: LeakageReport, problem: str | None, num_behaviors: int = 50
) -> dict[str, Any]:
    """Figures of a log: counts, parts, history lengths, leakage report.

    Args:
        splits: its parts, or None when it cannot be split, which `problem` explains.
        report: what the validator saw.
        num_behaviors: K; histories longer than K are counted as truncated.
    """
    samples = log.sample_events()
    counts = np.bincount(log.feedback[log.seen], minlength=len(log.feedback_names))
    parts = splits.items() if splits is not None else []
    return {
        "kind": "log",
        "info": log.info.to_dict(),
        "counts": {
            "users": log.num_users,
            "items": log.num_items,
            "items_with_events": len(np.unique(log.item)),
            "events": log.num_events,
            "samples": len(samples),
            "events_without_label": log.num_events - len(samples),
            "events_in_no_history": int((~log.seen).sum()),
        },
        "columns": {
            "catalogue": {column.name: str(column.type) for column in log.catalogue.schema},
            "feedback": dict(zip(log.feedback_names, counts.tolist())),
            "feedback_values": _graded(log),
            "empty_texts": _empty_texts(log),
        },
        "time": {"first": int(log.time.min()), "last": int(log.time.max())},
        "split": {
            "rule": None if splits is None else splits.rule,
            "problem": problem,
            "parts": {name: _part(log, events, num_behaviors) for name, events in parts if len(events)},
        },
        "all_samples": _part(log, samples, num_behaviors),
        "history_lengths": _histogram(log.history_lengths(samples)),
        "leakage": dataclasses.asdict(report),
        "leakage_lines": report.lines(),
    }


def _part(log: InteractionLog, events: np.ndarray, num_behaviors: int) -> dict[str, Any]:
    lengths, times = log.history_lengths(events), log.time[events]
    total = int(lengths.sum())
    return {
        "samples": len(events),
        "users": len(np.unique(log.user[events])),
        "label_rate": float(np.mean(log.label[events])),
        "first": int(times.min()),
        "last": int(times.max()),
        "history": {
            "mean": float(lengths.mean()),
            "median": float(np.median(lengths)),
            "p90": float(np.quantile(lengths, 0.9)),
            "max": int(lengths.max()),
            "share_empty": float((lengths == 0).mean()),
            "num_behaviors": num_behaviors,
            "share_truncated": float((lengths > num_behaviors).mean()),
            "share_of_behaviors_cut": float(np.maximum(lengths - num_behaviors, 0).sum() / total) if total else 0.0,
        },
    }


def _empty_texts(log: InteractionLog) -> dict[str, int]:
    """Items whose text column is null or empty."""
    texts = [column.name for column in log.catalogue.schema if is_text(column.type)]
    return {name: pc.sum(pc.equal(pc.fill_null(log.catalogue[name], ""), "")).as_py() or 0 for name in texts}


def _graded(log: InteractionLog) -> dict[str, Any] | None:
    """Range of the graded feedback and how often it is known; None for a log without it."""
    if log.feedback_values is None:
        return None
    known = log.feedback_values[~np.isnan(log.feedback_values)]
    some = {"min": float(known.min()), "mean": float(known.mean()), "max": float(known.max())} if len(known) else {}
    return {"share_known": len(known) / log.num_events, "distinct": len(np.unique(known)), **some}


def _histogram(lengths: np.ndarray) -> list[dict[str, int]]:
    """Counts of samples by history length: 0, 1, 2, 3-5, 6-10, ..."""
    longest = int(lengths.max())
    edges = [step for step in _LENGTH_STEPS if step < longest]
    edges.append(next((step for step in _LENGTH_STEPS if step >= longest), longest))
    which = np.searchsorted(edges, lengths, side="left")
    counts = np.bincount(which, minlength=len(edges))
    starts = [0] + [edge + 1 for edge in edges[:-1]]
    return [{"from": start, "to": end, "samples": int(count)} for start, end, count in zip(starts, edges, counts)]


def lines_of(figures: dict[str, Any]) -> list[str]:
    """The figures as text."""
    info = figures["info"]
    lines = [f"{info['name']}"]
    for key, label in (("url", "source"), ("licence", "licence"), ("label_rule", "label"), ("notes", "notes")):
        if info[key]:
            lines += textwrap.wrap(info[key], 110, initial_indent=f"  {label:<9}", subsequent_indent=" " * 11)
    if info["best_auc"] is not None:
        lines.append(f"  best reachable AUC: {info['best_auc']:.4f}")
    lines += ["", *figures["guessed"]] if "guessed" in figures else []
    lines += ["", "counts"]
    lines += [f"  {name.replace('_', ' '):<22}{count:>14,}" for name, count in figures["counts"].items()]
    own = {"log": _log_lines, "table": _table_lines, "impressions": _impression_lines}[figures["kind"]]
    return lines + own(figures) + _leak_lines(figures)


def _leak_lines(figures: dict[str, Any]) -> list[str]:
    """What looks like a leak; a log that leaks is refused, with the same words."""
    if (leaks := figures.get("leaks")) is None:
        return []
    allow = ", ".join(f"{key!r}: <why>" for key in leaks)
    found = [f"  {text}" for text in leaks.values()]
    advice = [
        "  a training refuses this: mend the data, or say why it is no leak:",
        f"    data.allow_leaks: {{{allow}}}",
    ]
    last = [*figures["split"]["parts"].values()][-1]
    few = figures["kind"] == "table" and not are_enough(last["rows"], last["rows"] * last.get("label_rate", 0))
    none = "  none found" + few * ", in too few held-out rows to see whether a field tells the label alone"
    return ["", "leaks", *(found + advice if leaks else [none])]


def _table_lines(figures: dict[str, Any]) -> list[str]:
    lines = [f"  {name:<22}{column:>14}" for name, column in figures["columns"].items()]
    table = [["part", "rows", "label rate", "first", "last"]]
    for name, part in figures["split"]["parts"].items():
        rate = f"{part['label_rate']:.4f}" if "label_rate" in part else "-"
        dates = [_date(part[key]) if key in part else "-" for key in ("first", "last")]
        table.append([name, f"{part['rows']:,}", rate, *dates])
    return [*lines, "", "parts", *_indented(table), *_field_lines("fields", figures["fields"])]


def _impression_lines(figures: dict[str, Any]) -> list[str]:
    parts = figures["split"]["parts"]
    table = [["part", "impressions", "ads", *_ODD.values()]]
    table += [[name, *(f"{part[key]:,}" for key in ("impressions", "ads", *_ODD))] for name, part in parts.items()]
    lines = ["", "parts", *_indented(table)]
    for side in ("user", "ad"):
        lines += _field_lines(f"fields of the {side}", figures[f"{side}_fields"])
    return lines


def _field_lines(title: str, fields: dict[str, dict[str, Any]]) -> list[str]:
    table = [["field", "type", "missing", "values", "kept"]]
    for name, field in fields.items():
        counts = ("-" if field[key] is None else f"{field[key]:,}" for key in ("values", "values_kept"))
        table.append([name, field["type"], f"{field['share_missing']:.1%}", *counts])
    return ["", f"{title} (in the training part)", *_indented(table, left=(0, 1))]


def _indented(table: list[list[str]], left: tuple[int, ...] = (0,)) -> list[str]:
    return [f"  {line}" for line in text_table(table, left).splitlines()]


def _log_lines(figures: dict[str, Any]) -> list[str]:
    first, last = (_date(figures["time"][end]) for end in ("first", "last"))
    lines = [f"  {'time':<22}  {first} to {last} UTC"]
    for title, key in (("feedback in histories", "feedback"), ("items with empty text", "empty_texts")):
        counted = ", ".join(f"{name}: {count:,}" for name, count in figures["columns"][key].items())
        lines += [f"  {title}   {counted}"] if counted or key == "feedback" else []
    graded = figures["columns"]["feedback_values"]
    if graded is not None:
        span = f"{graded['min']:g} to {graded['max']:g}, mean {graded['mean']:.3g}, " if graded["distinct"] else ""
        known = f"{graded['distinct']:,} distinct values, known of {graded['share_known']:.1%} of the events"
        lines.append(f"  graded feedback         {span}{known}")
    split = figures["split"]
    parts = split["parts"]
    lines += ["", f"split by {split['rule']}" if split["rule"] else f"no split: {split['problem']}"]
    everything = ("all", figures["all_samples"])
    if parts:
        lines.append(f"  {'part':<11}{'samples':>12}{'users':>10}{'label rate':>12}  {'first':<18}{'last':<16}")
    for name, part in (*parts.items(), everything):
        dates = "" if name == "all" else f"  {_date(part['first']):<18}{_date(part['last'])}"
        lines.append(f"  {name:<11}{part['samples']:>12,}{part['users']:>10,}{part['label_rate']:>12.4f}{dates}")
    lines += ["", "behaviours before a sample"]
    longer = f"longer than {everything[1]['history']['num_behaviors']}"
    lines.append(
        f"  {'part':<11}{'mean':>9}{'median':>9}{'90 %':>9}{'max':>9}{'empty':>9}{longer:>18}{'behaviours cut':>17}"
    )
    for name, part in (*parts.items(), everything):
        history = part["history"]
        lines.append(
            f"  {name:<11}{history['mean']:>9.1f}{history['median']:>9.0f}{history['p90']:>9.0f}{history['max']:>9,}"
            f"{history['share_empty']:>9.1%}{history['share_truncated']:>18.1%}{history['share_of_behaviors_cut']:>17.1%}"
        )
    lines += ["", "distribution of history lengths (samples)"]
    most = max(step["samples"] for step in figures["history_lengths"])
    for step in figures["history_lengths"]:
        span = f"{step['from']:,}" if step["from"] == step["to"] else f"{step['from']:,} - {step['to']:,}"
        bar = "#" * round(40 * step["samples"] / most)
        lines.append(f"  {span:>16}{step['samples']:>12,}  {bar}".rstrip())
    lines += ["", "leakage report", *(f"  {line}" for line in figures["leakage_lines"])]
    return lines


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M")
