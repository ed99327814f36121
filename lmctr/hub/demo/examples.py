"""Requests to begin with: users, rows or impressions of a run's test part, those that a Space was given, or the card's example."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lmctr.data.batches.text import behavior_statistics, feedback_codes
from lmctr.data.logs.log import InteractionLog
from lmctr.runs.answers import load_item_statistics
from lmctr.runs.examples import example_request
from lmctr.runs.folder import RunFolder
from lmctr.runs.inputs import input_of
from lmctr.runs.recipe import load_recipe
from lmctr.utils.arrow import is_text
from lmctr.utils.files import read_json

EXAMPLES_FILE = "demo_examples.json"
CANDIDATES = 10
BEHAVIORS = 100


class Examples(NamedTuple):
    """Requests by the words by which they are chosen, and what items are called by their ids."""

    requests: dict[str, dict[str, Any]]
    names: dict[str, str]


def kept_examples(path: Path) -> Examples:
    """Those of a Space's file. Raises `ValueError` for a file of another form."""
    values = read_json(path)
    found = Examples(values.get("requests"), values.get("names"))
    if not all(isinstance(own, dict) for own in (*found, *(found.requests or {None: None}).values())):
        raise ValueError(f'{path}: accepted is {{"requests": {{title: request}}, "names": {{item: name}}}}')
    return found


def card_example(folder: RunFolder, processor: Any) -> Examples:
    """The example of the model's card, which names no one."""
    return Examples({"an example": example_request(folder, load_item_statistics(folder.path, processor))}, {})


def run_examples(folder: RunFolder, processor: Any, count: int) -> Examples:
    """`count` requests of the run's test part, drawn at random; of logs users with ten items that they have not met lately.

    Raises:
        FileNotFoundError, ValueError: the folder has no recipe, or its data cannot be read here.
    """
    if not folder.started:
        raise FileNotFoundError(f"{folder.path} has no recipe, which would name the data")
    recipe = load_recipe(folder.path / "recipe.yaml")
    kind = input_of(recipe)
    kind.load()
    names: dict[str, str] = {}
    if processor.request_kind in ("text", "events"):
        names = {} if processor.request_kind == "text" else _names(kind.log.catalogue)
        found = _of_log(kind.log, kind.splits.test, processor, np.random.default_rng(0))
    elif processor.request_kind == "table":
        found = _of_table(kind.source, processor)
    else:
        found = _of_impressions(kind.source)
    requests = dict(itertools.islice(found, count))
    ids = {
        str(entry["item"])
        for one in requests.values()
        for entry in (*one.get("history", ()), *one.get("candidates", ()))
        if "item" in entry
    }
    return Examples(requests, {item: name for item, name in names.items() if item in ids})


def _names(catalogue: pa.Table) -> dict[str, str]:
    """Items' titles by their ids: a column of that name, else the first one of texts."""
    texts = [entry.name for entry in catalogue.schema if entry.name != "item_id" and is_text(entry.type)]
    column = next((name for name in ("title", "name", *texts) if name in texts), None)
    if column is None:
        return {}
    pairs = zip(catalogue["item_id"].to_pylist(), catalogue[column].to_pylist())
    return {str(item): text for item, text in pairs if text}


def _of_log(
    log: InteractionLog, events: np.ndarray, processor: Any, draw: np.random.Generator
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Users of some events with all that the log tells of them, asked a second after its end: statistics of items are those of then."""
    describe, now = (_texts if processor.request_kind == "text" else _ids), int(log.time.max()) + 1
    seen = np.ones(log.num_events, dtype=bool) if log.hidden is None else ~log.hidden
    for user in draw.permutation(np.unique(log.user[events])):
        own = np.arange(log.offsets[user], log.offsets[user + 1])
        own = own[seen[own]]
        last = own[-BEHAVIORS:]
        fresh = np.setdiff1d(np.arange(log.num_items), log.item[last])
        weights = np.bincount(log.item, minlength=log.num_items)[fresh] + 1.0  # what is often shown more often
        count = min(CANDIDATES, len(fresh))
        items = draw.choice(fresh, count, replace=False, p=weights / weights.sum()) if count else log.item[last[-1:]]
        history, candidates = describe(log, processor, last, items)
        if context := getattr(processor.statistics_reader, "asked_context", ()):  # as it was the last time
            known = (
                log.context.select(context).slice(int(last[-1]), 1).to_pylist()[0]
                if len(last)
                else dict.fromkeys(context)
            )
            candidates = [entry | {"context": known} for entry in candidates]
        more = f", the last {len(last)}" if len(last) < len(own) else ""
        request: dict[str, Any] = {"history": history, "candidates": candidates, "time": now}
        if describe is _ids and log.scenario is not None and len(last):
            request["scenario"] = log.scenario_names[log.scenario[last[-1]]]
        if names := getattr(processor, "user_feature_names", ()):
            row = log.users.slice(int(user), 1).to_pylist()[0]
            request["user"] = {name: row[name] for name in names}
        yield f"{log.user_ids[user]} ({len(own):,} behaviours{more})", request


def _texts(
    log: InteractionLog, processor: Any, events: np.ndarray, items: np.ndarray
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Behaviours and candidates as texts; with items' ids where statistics are counted by them."""
    shown = processor.item_texts(log.catalogue.take(items))
    of_behaviors = processor.item_texts if processor.prompt.behavior_item is None else processor.behavior_texts
    history = _events(log, events)
    if processor.needs_feedback:
        codes = feedback_codes(log.feedback_names, processor.prompt)[log.feedback[events]]
        for entry, code in zip(history, codes):
            entry["feedback"] = processor.prompt.feedback_names[code]
    for entry, text in zip(history, of_behaviors(log.catalogue.take(log.item[events]))):
        entry["text"] = text
    for name, values in behavior_statistics(
        log, processor.statistics_reader, processor.sink_statistics, events
    ).items():
        for entry, value in zip(history, values):
            entry.setdefault("statistics", {})[name] = None if np.isnan(value) else float(value)
    candidates = [{"text": text} for text in shown]
    if processor.statistics_reader is not None:
        ids = log.catalogue["item_id"]
        candidates = [entry | {"item": ids[int(item)].as_py()} for entry, item in zip(candidates, items)]
        history = [
            entry | {"item": ids[int(log.item[event])].as_py(), "label": _label(log, event)}
            for entry, event in zip(history, events)
        ]
    return history, candidates


def _ids(
    log: InteractionLog, processor: Any, events: np.ndarray, items: np.ndarray
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    ids = log.catalogue["item_id"]
    history = _events(log, events)
    for entry, event in zip(history, events):
        entry |= {"item": ids[int(log.item[event])].as_py(), "behavior": log.feedback_names[log.feedback[event]]}
        if log.scenario is not None:
            entry["scenario"] = log.scenario_names[log.scenario[event]]
        if processor.statistics_reader is not None:
            entry["label"] = _label(log, event)
    return history, [{"item": ids[int(item)].as_py()} for item in items]


def _events(log: InteractionLog, events: np.ndarray) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [{"time": int(log.time[event])} for event in events]
    for entry, event in zip(entries, events):
        if log.feedback_values is not None and not np.isnan(log.feedback_values[event]):
            entry["value"] = float(log.feedback_values[event])
    return entries


def _label(log: InteractionLog, event: int) -> int | None:
    return None if log.label[event] < 0 else int(log.label[event])


def _of_table(source: Any, processor: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Ten rows of the test part each."""
    number = 0
    for rows in source.rows(processor.input_columns(), "test"):
        for start in range(0, len(rows), CANDIDATES):
            some = rows.table.slice(start, CANDIDATES).to_pylist()
            yield f"rows {number + 1:,} to {number + len(some):,} of the test part", {"rows": some}
            number += len(some)


def _of_impressions(source: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    for block in source.blocks("test"):
        ends = np.cumsum(block.counts)
        for row in np.flatnonzero(block.counts):
            number += 1
            ads = block.ads.slice(int(ends[row] - block.counts[row]), int(block.counts[row])).to_pylist()
            user = block.users.slice(int(row), 1).to_pylist()[0]
            yield f"impression {number:,} of the test part", {"user": user, "ads": ads}
