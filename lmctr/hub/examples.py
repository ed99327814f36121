"""Example inputs of a shared model, for its card and for trying whether a folder works."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import Any

from lmctr.hub.card_sequence import event_call, event_rows
from lmctr.runs.folder import RunFolder

__all__ = ["example_batch", "example_call", "example_rows"]


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


def _example(folder: RunFolder) -> tuple[Callable[[RunFolder], dict], Callable[[dict], str]]:
    name = folder.processor.get("processor_class")
    if name not in _EXAMPLES:
        raise ValueError(
            f"no example inputs are known for model_type {folder.model_type!r} with the processor {name!r}"
        )
    return _EXAMPLES[name]


# Histories as text


def _text_rows(folder: RunFolder) -> dict[str, Any]:
    """Two users, one with a short history, one with none.

    Behaviours carry what this processor reads: feedback by the prompt's names, similarity where it retrieves.
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
        if processor.get("sink_order", "recent") != "recent" or "similarity" in signals:
            behaviour["similarity"] = 0.25 * (position + 1)
    return {
        "histories": [history, []],
        "targets": [{"text": "Casino (Crime, Drama)"}, {"text": "Casino (Crime, Drama)"}],
        "times": [1_500_172_800, 1_500_172_800],
    }


def _text_call(rows: dict[str, Any]) -> str:
    lines = ["batch = processor("]
    lines.append("    histories=[[")
    lines += [f"        {behaviour!r}," for behaviour in rows["histories"][0]]
    lines.append("    ]],")
    lines += [f"    {key}={rows[key]!r}," for key in ("targets", "times")]
    return "\n".join([*lines, '    return_tensors="pt",', ")"])


# Rows of a table


def _table_rows(folder: RunFolder) -> dict[str, Any]:
    """A row of the most frequent values (of a user who is not known), and one with nothing but missing values."""
    from lmctr.data.features.processor import TabularFeatureProcessor

    processor = TabularFeatureProcessor.from_pretrained(folder.path)
    first: dict[str, Any] = {}
    for field in processor.fields:
        for column, value in _column_values(field, processor).items():
            first.setdefault(column, value)
    if any(field.time_column for field in processor.fields):
        first.setdefault(processor.time, _a_time(processor.time_format))
    if processor.group in first:  # a card names no one
        first[processor.group] = "a new user"
    missing: dict[str, Any] = dict.fromkeys(first)
    if processor.time in missing:  # the time of a row is never missing
        missing[processor.time] = first[processor.time]
    return {"rows": [first, missing]}


def _column_values(field: Any, processor: Any) -> dict[str, Any]:
    """An example value of each column that a field reads."""
    if field.extract is not None:
        return {field.source_column: _a_time(field.time_format)}
    if field.type == "numeric":
        return {field.source_column: 1.0}
    vocabulary = processor.state.vocabularies.get(field.share_with or field.name)
    words = ["a", "b"] if vocabulary is None else vocabulary.values[:2].to_pylist()
    if field.kind == "id":
        return {field.source_column: words[0]}
    values = {field.source_column: words, field.time_column: [1_500_000_000] * len(words)}
    values = {column: entries for column, entries in values.items() if column is not None}
    if field.separator is None:
        return values
    return {column: field.separator.join(map(str, entries)) for column, entries in values.items()}


def _a_time(time_format: str | None) -> Any:
    from datetime import datetime, timezone

    seconds = 1_500_172_800
    return seconds if time_format is None else datetime.fromtimestamp(seconds, timezone.utc).strftime(time_format)


def _table_call(rows: dict[str, Any]) -> str:
    items = [f"{json.dumps(key)}: {value!r}" for key, value in rows["rows"][0].items()]
    text = textwrap.fill(", ".join(items), 110, break_long_words=False, break_on_hyphens=False)
    row = textwrap.indent(text, "        ")
    return f'batch = processor(\n    [{{\n{row}\n    }}],\n    return_tensors="pt",\n)'


# Impressions


def _impression_rows(folder: RunFolder) -> dict[str, Any]:
    """A user and two ads of the most frequent values, and a user and an ad with nothing but missing values."""
    from lmctr.data.processors.impressions import ImpressionProcessor

    processor = ImpressionProcessor.from_pretrained(folder.path)
    user, ad = _columns(processor.user), _columns(processor.ad)
    return {"users": [user, dict.fromkeys(user)], "ads": [[ad, ad], [dict.fromkeys(ad)]]}


def _columns(processor: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in processor.fields:
        for column, value in _column_values(field, processor).items():
            values.setdefault(column, value)
    return values


def _impression_call(rows: dict[str, Any]) -> str:
    lines = ["batch = processor("]
    for key, value, opening, closing in (
        ("users", rows["users"][0], "[", "]"),
        ("ads", rows["ads"][0][0], "[[", "]]"),
    ):
        items = ", ".join(f"{json.dumps(name)}: {entry!r}" for name, entry in value.items())
        text = textwrap.fill(items, 110, break_long_words=False, break_on_hyphens=False)
        lines.append(f"    {key}={opening}{{\n{textwrap.indent(text, ' ' * 8)}\n    }}{closing},")
    return "\n".join([*lines, '    return_tensors="pt",', ")"])


_EXAMPLES: dict[str, tuple[Callable[[RunFolder], dict], Callable[[dict], str]]] = {
    "CTRSinkProcessor": (_text_rows, _text_call),
    "TabularFeatureProcessor": (_table_rows, _table_call),
    "ImpressionProcessor": (_impression_rows, _impression_call),
    "SequenceProcessor": (event_rows, event_call),
}
