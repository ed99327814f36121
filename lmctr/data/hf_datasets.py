"""Logs and stores to and from the package `datasets`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lmctr.data.in_memory import arrow_table
from lmctr.data.reading import check_columns

if TYPE_CHECKING:
    import datasets

EVENTS, ITEMS, USERS = "events", "items", "users"
_OWN = ("weight", "feedback_values", "part", "hidden")  # of a log, where it has them
_LABEL, _CONTEXT = "label.", "context."


# ---- logs ----


def log_to(log: Any) -> datasets.DatasetDict:
    """See `InteractionLog.to_dataset`."""
    import datasets

    users = pa.array(log.user_ids)
    columns: dict[str, Any] = {
        "user_id": users.take(pa.array(log.user)),
        "item_id": log.catalogue["item_id"].take(pa.array(log.item)),
        "time": pa.array(log.time),
        "label": pa.array(log.label),
        "feedback": pa.array(log.feedback.astype(np.int64)),
    }
    names = {"feedback": log.feedback_names}
    if log.scenario is not None:
        columns["scenario"], names["scenario"] = pa.array(log.scenario.astype(np.int64)), log.scenario_names
    columns |= {name: pa.array(getattr(log, name)) for name in _OWN if getattr(log, name) is not None}
    columns |= {f"{_LABEL}{name}": pa.array(values) for name, values in log.extra_labels.items()}
    if log.context is not None:
        columns |= {f"{_CONTEXT}{name}": log.context[name] for name in log.context.column_names}
    table = pa.table(columns)
    features = datasets.Features.from_arrow_schema(table.schema)
    features.update({name: datasets.ClassLabel(names=list(own)) for name, own in names.items()})
    info = datasets.DatasetInfo(description=json.dumps(log.info.to_dict()), features=features)
    parts = {
        EVENTS: datasets.Dataset(table.cast(features.arrow_schema), info=info),
        ITEMS: datasets.Dataset(log.catalogue),
    }
    if log.users is not None:
        others = [] if log.other_users is None else [log.other_users]
        parts[USERS] = datasets.Dataset(pa.concat_tables([log.users, *others]))
    return datasets.DatasetDict(parts)


def log_columns(data: Any, items: Any, users: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of `InteractionLog.from_columns` for what `InteractionLog.from_dataset` takes; `info` is a dict."""
    if isinstance(data, Mapping) and "user_id" not in data:  # no columns
        if EVENTS not in data:
            raise ValueError(
                f"data: a DatasetDict of {', '.join(map(repr, data))}; accepted: one with 'events', or a Dataset of events"
            )
        data, items, users = data[EVENTS], data.get(ITEMS, items), data.get(USERS, users)
    table, features = arrow_table(data, "data"), getattr(data, "features", None) or {}
    check_columns(table.column_names, ["user_id", "item_id", "time", "label"], "data")
    given: dict[str, Any] = {name: table[name] for name in _OWN if name in table.column_names}
    for name in ("feedback", "scenario"):
        if name in table.column_names:
            given[name] = table[name]
            if hasattr(features.get(name), "names"):  # codes of a ClassLabel
                given |= {name: table[name].to_numpy(), f"{name}_names": features[name].names}
    extra = {name.removeprefix(_LABEL): table[name] for name in table.column_names if name.startswith(_LABEL)}
    context = [name for name in table.column_names if name.startswith(_CONTEXT)]
    if context:
        given["context"] = table.select(context).rename_columns([name.removeprefix(_CONTEXT) for name in context])
    given |= {
        name: arrow_table(own, word)
        for name, word, own in (("catalogue", "items", items), ("users", "users", users))
        if own is not None
    }
    info = None if isinstance(data, pa.Table) else getattr(data, "info", None)
    try:
        given["info"] = json.loads(info.description)
    except (ValueError, AttributeError):  # no log of ours has written it
        given["info"] = {"name": getattr(info, "dataset_name", None) or "dataset"}
    return [table[name] for name in ("user_id", "item_id", "time", "label")], {**given, "extra_labels": extra}


# ---- stores ----


def arrays_to(arrays: Mapping[str, np.ndarray], inner: Iterable[str], counts: np.ndarray | None) -> datasets.Dataset:
    """Arrays as a Dataset, an axis behind the first as a list of a known length.

    Args:
        inner: names of arrays with a row for each of several entries of a row of the others. counts: (R,) how many entries.
    """
    import datasets

    columns = {}
    for name, values in arrays.items():
        column = pa.array(np.ascontiguousarray(values).reshape(-1))
        for width in reversed(values.shape[1:]):
            column = pa.FixedSizeListArray.from_arrays(column, width)
        if name in inner:
            column = pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), column)
        columns[name] = column
    return datasets.Dataset(pa.table(columns))


def arrays_from(data: Any, known: Iterable[str], inner: Iterable[str]) -> dict[str, np.ndarray]:
    """Inverse of [`arrays_to`].

    Raises:
        ValueError: a column that is none of the known arrays, missing values.
    """
    table, arrays = arrow_table(data, "data"), {}
    for name in table.column_names:
        if name not in known:
            raise ValueError(f"data: the column {name!r} is no array of the store; known: {', '.join(known)}")
        column = table[name].combine_chunks()
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if column.null_count:
            raise ValueError(f"data: the column {name!r} has {column.null_count} missing values; a store has none")
        if name in inner:
            column = column.flatten()
        widths = []
        while pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
            rows, column = len(column), column.flatten()
            widths.append(len(column) // max(rows, 1))
        values = column.to_numpy(zero_copy_only=False)
        rows = len(values) // max(int(np.prod(widths)), 1)
        arrays[name] = values.reshape(rows, *widths)
    return arrays
