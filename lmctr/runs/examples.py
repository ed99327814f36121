"""Example inputs and requests of a model, for its card, its demo and its server, and for trying whether a folder works."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.features.times import TIME_UNITS
from lmctr.data.processors.impressions import ImpressionProcessor
from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.runs.folder import RunFolder
from lmctr.runs.raw_values import categories, is_category_name, is_category_value, num_rows
from lmctr.statistics import ItemStatistics


def example_batch(folder: RunFolder, processor: Any) -> dict[str, Any]:
    """Model inputs for two example rows, made by a loaded processor."""
    return dict(processor(**example_rows(folder), return_tensors="pt"))


def example_rows(folder: RunFolder) -> dict[str, Any]:
    """Arguments of the processor for two rows.

    Raises:
        ValueError: a processor without example.
    """
    return _example(folder)[0](folder)


def example_call(folder: RunFolder) -> str:
    """Python source of a processor call with one row, as a model card shows it."""
    make_rows, make_source = _example(folder)
    return make_source({key: values[:1] for key, values in make_rows(folder).items()})


def example_request(folder: RunFolder, items: ItemStatistics | None) -> dict[str, Any]:
    """A request with the first of the example rows, as `lmctr predict` and `lmctr serve` take it. items: the run's, where it counts statistics."""
    rows = example_rows(folder)
    if "rows" in rows:
        return {"rows": rows["rows"][:1]}
    if "ads" in rows:
        return {"user": rows["users"][0], "ads": rows["ads"][0]}
    candidate = rows["targets"][0] if "targets" in rows else {"item": rows["candidates"][0][0]}
    if rows.get("statistics"):
        candidate["statistics"] = rows["statistics"][0][0]
    history, time = rows["histories"][0], rows["times"][0]
    # statistics are counted from items, of which these are none that was seen, after the table's time
    if items is not None:
        candidate.pop("statistics", None)
        for entry in (candidate, *history):
            entry.setdefault("item", None)
        if context := items.reader.asked_context:
            candidate["context"] = dict.fromkeys(context)
        later, known = max(0, items.time + 1 - time), folder.processor
        is_told = any(key in history[0] and known.get(f"{key}_labels") for key in ("feedback", "behavior"))
        told: dict[str, Any] = {} if is_told else {"label": 1}
        if items.reader.graded:
            told["value"] = float(f"{items.reader.value_prior:.3g}")
        history, time = [told | entry | {"time": entry["time"] + later} for entry in history], time + later
    request = {"history": history, "candidates": [candidate], "time": time}
    return request | {key: rows[f"{key}s"][0] for key in ("scenario", "user") if rows.get(f"{key}s")}


def _example(folder: RunFolder) -> tuple[Callable[[RunFolder], dict], Callable[[dict], str]]:
    name = folder.processor.get("processor_class")
    if name not in _EXAMPLES:
        raise ValueError(
            f"no example inputs are known for model_type {folder.model_type!r} with the processor {name!r}"
        )
    return _EXAMPLES[name]


_MOST_CATEGORIES = 100  # of a feature of users
_UNKNOWN = re.compile(r"\[nan(, nan)*\]")  # statistics, of which there may be dozens

# Histories as text


def _text_rows(folder: RunFolder) -> dict[str, Any]:
    """Two users, one with a short history, one with none.

    Behaviours carry what this processor reads: feedback by the prompt's names, graded feedback, similarity where it retrieves.
    """
    processor = folder.processor
    signals = processor.get("sink_signal") or "none"
    signals = [signals] if isinstance(signals, str) else signals
    names = [entry["name"] for entry in (processor.get("prompt") or {}).get("feedback") or ()]
    history = [
        {"text": "Heat (Action, Crime)", "time": 1_500_000_000},
        {"text": "Toy Story (Animation, Comedy)", "time": 1_500_086_400},
    ]
    for position, behaviour in enumerate(history):
        if names and (processor.get("feedback", "none") != "none" or "feedback" in signals):
            behaviour["feedback"] = names[(position + 1) % len(names)]
        if levels := processor.get("value_levels"):
            behaviour["value"] = levels[-1 - position % len(levels)]
        if bounds := processor.get("statistic_bounds"):
            behaviour["statistics"] = {name: (own or [0.0])[0] for name, own in bounds.items()}
        if processor.get("sink_order", "recent") != "recent" or "similarity" in signals:
            behaviour["similarity"] = 0.25 * (position + 1)
    lines = 1
    if processor.get("layout") == "fields":
        lines += processor["prompt"]["item"].count("\n")
    target: dict[str, Any] = {"text": "\n".join(["Casino (Crime, Drama)", *["Crime, Drama"] * (lines - 1)])}
    if processor.get("statistics_reader"):
        target["statistics"] = [math.nan] * len(processor["statistics_reader"]["names"])
    return {"histories": [history, []], "targets": [target, target], "times": [1_500_172_800, 1_500_172_800]}


def _history_call(rows: dict[str, Any]) -> str:
    lines = ["batch = processor(", "    histories=[["]
    lines += [f"        {entry!r}," for entry in rows["histories"][0]]
    lines.append("    ]],")
    lines += [f"    {key}={value!r}," for key, value in rows.items() if key != "histories"]
    text = "\n".join([*lines, '    return_tensors="pt",', ")"])
    return _UNKNOWN.sub(lambda found: f'[float("nan")] * {found[0].count("nan")}', text)


# Rows of a table


def _table_rows(folder: RunFolder) -> dict[str, Any]:
    """A row of frequent categories (of a user who is not known), and one with nothing but missing values."""
    processor = TabularFeatureProcessor.from_pretrained(folder.path)
    first = _columns(processor)
    if any(field.time_column for field in processor.fields):
        first.setdefault(processor.time, _a_time(processor.time_format))
    if processor.group in first:  # a card names no one
        first[processor.group] = "a new user"
    missing: dict[str, Any] = dict.fromkeys(first)
    if processor.time in missing:  # the time of a row is never missing
        missing[processor.time] = first[processor.time]
    return {"rows": [first, missing]}


def _columns(processor: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    rows = num_rows(processor)
    for field in processor.fields:
        for column, value in _column_values(field, processor, rows).items():
            if values.get(column) is None:
                values[column] = value
    return values


def _column_values(field: Any, processor: Any, rows: int) -> dict[str, Any]:
    """An example value of each column that a field reads; a missing one where its values are no categories."""
    if field.cross is not None:  # reads those of its parts
        return {}
    if field.extract is not None:
        return {own.source_column: _a_time(own.time_format) for own in (field, field.last) if own is not None}
    if field.type == "numeric":
        return {field.source_column: _number(field.source_column, processor)}
    vocabulary = processor.state.vocabularies.get(field.share_with or field.name)
    names = [name for name in (field.name, field.source_column, field.share_with) if name is not None]
    if vocabulary is None:
        words = ["a", "b"]
    else:
        words = [] if processor.group in names else categories(names, vocabulary, rows)[:2]
    if field.kind == "id":
        return {field.source_column: words[0] if words else None}
    if field.weight_separator is not None:
        words = [f"{word}{field.weight_separator}1" for word in words]
    values = {field.source_column: words, field.time_column: [1_500_000_000] * len(words)}
    values = {column: entries for column, entries in values.items() if column is not None}
    separator = " " if field.parse == "words" else field.separator
    if separator is None:
        return values
    return {column: separator.join(map(str, entries)) for column, entries in values.items()}


def _number(column: str, processor: Any) -> float:
    """The middle of a column's bins, else the mean of its values, to four digits; 1 where neither is known as it is written, or may name someone."""
    if not is_category_name(column):
        return 1.0
    plain = [own for own in processor.fields if own.source_column == column and own.extract is own.before is None]
    bounds = (processor.state.bounds.get(field.name) for field in plain)
    middles = [own[len(own) // 2] for own in bounds if own is not None and len(own)]
    means = [processor.state.moments[field.name][0] for field in plain if field.name in processor.state.moments]
    return float(f"{[*middles, *means, 1.0][0]:.4g}")


def _a_time(time_format: str | None) -> Any:
    seconds = 1_500_172_800
    if time_format is None or time_format in TIME_UNITS:
        return seconds * TIME_UNITS.get(time_format, 1)
    return datetime.fromtimestamp(seconds, UTC).strftime(time_format)


def _table_call(rows: dict[str, Any]) -> str:
    return f'batch = processor(\n    [{_row_source(rows["rows"][0])}],\n    return_tensors="pt",\n)'


def _row_source(row: dict[str, Any]) -> str:
    items = ", ".join(f"{json.dumps(key)}: {value!r}" for key, value in row.items())
    text = textwrap.fill(items, 110, break_long_words=False, break_on_hyphens=False)
    return f"{{\n{textwrap.indent(text, ' ' * 8)}\n    }}"


# Impressions


def _impression_rows(folder: RunFolder) -> dict[str, Any]:
    """A user and two ads of frequent categories, and a user and an ad with nothing but missing values."""
    processor = ImpressionProcessor.from_pretrained(folder.path)
    user, ad = _columns(processor.user), _columns(processor.ad)
    return {"users": [user, dict.fromkeys(user)], "ads": [[ad, ad], [dict.fromkeys(ad)]]}


def _impression_call(rows: dict[str, Any]) -> str:
    user, ad = _row_source(rows["users"][0]), _row_source(rows["ads"][0][0])
    return f'batch = processor(\n    users=[{user}],\n    ads=[[{ad}]],\n    return_tensors="pt",\n)'


# Sequences of events


def _event_rows(folder: RunFolder) -> dict[str, Any]:
    """Arguments of the processor for two users, one with a short history, one with none."""
    processor = SequenceProcessor.from_pretrained(folder.path)
    known = processor.items["item_id"].slice(0, 3).to_pylist() or [1]
    items = (known * 3)[:3]
    behaviour, scenario = processor.behavior_names[-1], processor.scenario_names[0]
    history = [
        {"item": item, "behavior": behaviour, "scenario": scenario, "time": 1_500_000_000 + 86_400 * place}
        for place, item in enumerate(items[:2])
    ]
    rows = {
        "histories": [history, []],
        "candidates": [[items[2]], [items[2]]],
        "times": [1_500_172_800, 1_500_172_800],
        "scenarios": [scenario, scenario],
    }
    if processor.user_feature_names:
        user = {name: _feature_example(name, processor.features[name]) for name in processor.user_feature_names}
        rows["users"] = [user, user]
    if processor.statistics:
        rows["statistics"] = [[[math.nan] * len(processor.statistics)]] * 2
    return rows


def _feature_example(name: str, values: Sequence[str]) -> str | None:
    """A value of a feature of users, where it has no more than categories have; how many users have one is not known."""
    if len(values) > _MOST_CATEGORIES or not is_category_name(name):
        return None
    return next(filter(is_category_value, values), None)


_EXAMPLES: dict[str, tuple[Callable[[RunFolder], dict], Callable[[dict], str]]] = {
    "CTRSinkProcessor": (_text_rows, _history_call),
    "TabularFeatureProcessor": (_table_rows, _table_call),
    "ImpressionProcessor": (_impression_rows, _impression_call),
    "SequenceProcessor": (_event_rows, _history_call),
}
