"""Items to be scored, as events of a log that no other event sees: each has the history and the statistics of its user and second."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import columns
from .log import InteractionLog, align_users

__all__ = ["Queried", "with_queries"]


@dataclass(frozen=True)
class Queried:
    """A log with queries among its events.

    Attributes:
        log: the log. The queries are hidden events with the label 0 and an unknown feedback.
        kept: (E,) positions in it of the events of the log before. queries: (Q,) those of the queries, in their order.
        new_users, new_items: (Q,) bool, the queries whose user or item the log before did not know.
    """

    log: InteractionLog
    kept: np.ndarray
    queries: np.ndarray
    new_users: np.ndarray
    new_items: np.ndarray


def with_queries(
    log: InteractionLog,
    user: Any,
    item: Any,
    time: np.ndarray,
    scenario: np.ndarray | None = None,
    context: pa.Table | None = None,
) -> Queried:
    """Adds queries to a log.

    Args:
        log: the log, whose events are histories and statistics.
        user, item: (Q,) ids; unknown ones get rows without a description.
        time: (Q,) unix seconds. The history of a query is the user's events strictly before.
        scenario: (Q,) codes, for a log with scenarios; default code 0.
        context: Q rows with the columns of the log's context; a column that lacks is missing everywhere.

    Raises:
        ValueError: ids that are missing or of no accepted type.
    """
    users, user_ids, new_users = _codes(user, "user", pa.array(log.user_ids))
    items, item_ids, new_items = _codes(item, "item", log.catalogue["item_id"].combine_chunks())
    count, old = len(time), np.zeros(log.num_events, dtype=bool)
    hidden = np.r_[old if log.hidden is None else log.hidden, np.ones(count, dtype=bool)]
    whole = {
        "item": np.r_[log.item, items.astype(np.int32)],
        "time": np.r_[log.time, np.asarray(time, dtype=np.int64)],
    }
    whole |= {name: np.r_[getattr(log, name), np.zeros(count, np.int8)] for name in ("label", "feedback")}
    filler = {"scenario": 0, "weight": 1, "feedback_values": np.nan, "part": -1}
    for name, value in filler.items():
        values = getattr(log, name)
        if values is not None:
            own = scenario if name == "scenario" and scenario is not None else np.full(count, value)
            whole[name] = np.concatenate([values, own.astype(values.dtype)])
    owner = np.r_[log.user, users]
    order = np.lexsort((whole["time"], hidden, owner))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    extra = {name: np.r_[values, np.zeros(count, np.int8)][order] for name, values in log.extra_labels.items()}
    table = log.context
    if table is not None:
        given = {} if context is None else {name: context[name] for name in context.column_names}
        missing = pa.chunked_array([pa.nulls(count)])
        own = {kind.name: _as_type(given.get(kind.name, missing), kind.type, kind.name) for kind in table.schema}
        table = pa.concat_tables([table, pa.table(own)]).take(pa.array(order))
    queried = dataclasses.replace(
        log,
        user_ids=columns.ids_to_numpy(user_ids),
        offsets=np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(user_ids)))]).astype(np.int64),
        **{name: values[order] for name, values in whole.items()},
        hidden=hidden[order],
        extra_labels=extra,
        catalogue=_longer(log.catalogue, "item_id", item_ids),
        users=None if log.users is None else align_users(log.users, user_ids),
        context=table,
    )
    return Queried(queried, place[: log.num_events], place[log.num_events :], new_users, new_items)


def _codes(values: Any, name: str, known: pa.Array) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """Codes of ids, all ids with the unknown ones behind the known, and which values were unknown."""
    codes, distinct = columns.encode_ids(values, name)
    if pa.types.is_integer(known.type) != pa.types.is_integer(
        distinct.type
    ):  # as the log's events and catalogue may differ
        distinct = distinct.cast(pa.string())
        known = known.cast(pa.string())
    distinct = distinct.cast(known.type)
    rows = pc.index_in(distinct, value_set=known)
    new = columns.nulls(rows)
    place = np.array(rows.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    place[new] = len(known) + np.arange(new.sum())
    return place[codes], pa.concat_arrays([known, distinct.filter(pa.array(new))]), new[codes]


def _longer(table: pa.Table, key: str, ids: pa.Array) -> pa.Table:
    """A catalogue with the ids, in their order; rows behind its own have no description."""
    rows = np.arange(len(ids))
    described = table.take(pa.array(rows, mask=rows >= table.num_rows))
    return described.set_column(described.column_names.index(key), key, ids)


def _as_type(values: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"column {name!r}: the log has values of the type {kind} there, which these are not: {error}"
        ) from None
