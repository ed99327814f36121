"""Items to be scored, as events of a log that no other event sees: each has the history and the statistics of its user and second."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.utils.ragged import offsets_from_lengths, ragged_searchsorted

from . import columns
from .log import InteractionLog, align_users

_FILLERS = {"weight": 1, "feedback_values": np.nan, "part": -1}  # of what a query does not say; else 0


@dataclass(frozen=True)
class Queried:
    """A log with queries among its events.

    Attributes:
        log: the log. The queries are hidden events with the label 0 and an unknown feedback.
        queries: (Q,) positions in it of the queries, in their order.
        new_users, new_items: (Q,) bool, the queries whose user or item the log before did not know.
    """

    log: InteractionLog
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
    theirs_only: bool = False,
    described: Mapping[str, pa.Table] | None = None,
) -> Queried:
    """Adds queries to a log.

    Args:
        log: the log, whose events are histories and statistics.
        user, item: (Q,) ids; unknown ones get rows with what the log, or else `described`, tells of them.
        time: (Q,) unix seconds. The history of a query is the user's events strictly before.
        scenario: (Q,) codes, for a log with scenarios; default code 0.
        context: Q rows with the columns of the log's context; a column that lacks is missing everywhere.
        theirs_only: leave the events of all other users out, for who reads histories alone: the work is that of the queries then, however
            large the log is.
        described: by "catalogue" and "users" Q rows with columns of these tables, of which new ids keep the first.

    Raises:
        ValueError: ids that are missing or of no accepted type.
    """
    users, user_ids, new_users = _codes(user, "user", pa.array(log.user_ids))
    items, item_ids, new_items = _codes(item, "item", log.catalogue["item_id"].combine_chunks())
    if theirs_only:
        asked = np.unique(users)
        known = asked[asked < log.num_users]
        log, users = log.of_users(known), np.searchsorted(asked, users)
        user_ids = user_ids.take(pa.array(asked))
    count, old = len(time), log.num_events
    own = {"item": items, "time": time, "hidden": np.ones(count, dtype=bool)}
    own |= {} if scenario is None else {"scenario": scenario}
    arrays = log.event_arrays() | ({} if log.hidden is not None else {"hidden": np.zeros(old, dtype=bool)})
    # Behind the seen events of their user, and among the hidden ones in the order of time: there the log stays sorted.
    first = np.lexsort((time, users))
    begins, ends = (
        np.r_[bounds, np.full(len(user_ids) - log.num_users, old)] for bounds in (log.seen_end, log.offsets[1:])
    )
    owner = users[first]
    at = ragged_searchsorted(log.time, time[first], begins[owner], ends[owner], "right")
    queries = np.empty(count, dtype=np.int64)
    queries[first] = at + np.arange(count)

    def joined(values: np.ndarray, others: np.ndarray) -> np.ndarray:
        return np.insert(values, at, others[first])

    def filled(name: str, values: np.ndarray) -> np.ndarray:
        given = own.get(name, _FILLERS.get(name, 0))
        return joined(values, np.broadcast_to(np.asarray(given, dtype=values.dtype), count))

    table = log.context
    if table is not None:
        given = {} if context is None else {name: context[name] for name in context.column_names}
        missing = pa.chunked_array([pa.nulls(count)])
        rows = {kind.name: _as_type(given.get(kind.name, missing), kind.type, kind.name) for kind in table.schema}
        order = joined(np.arange(old), old + np.arange(count))
        table = pa.concat_tables([table, pa.table(rows)]).take(pa.array(order))
    described = described or {}
    about_users, untold = _about_users(log, user_ids)
    queried = dataclasses.replace(
        log,
        user_ids=columns.ids_to_numpy(user_ids),
        offsets=np.concatenate([log.offsets, np.full(len(user_ids) - log.num_users, old)])
        + offsets_from_lengths(np.bincount(users, minlength=len(user_ids))),
        **{name: filled(name, values) for name, values in arrays.items()},
        extra_labels={name: filled("label", values) for name, values in log.extra_labels.items()},
        catalogue=_told(_longer(log.catalogue, "item_id", item_ids), items, new_items, described.get("catalogue")),
        users=_told(about_users, users, untold[users], described.get("users")),
        context=table,
    )
    return Queried(queried, queries, new_users, new_items)


def _codes(values: Any, name: str, known: pa.Array) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """Codes of ids, all ids with the unknown ones behind the known, and which values were unknown."""
    codes, distinct = columns.encode_ids(values, name)
    rows = columns.places_among(distinct, known)
    new = columns.nulls(rows)
    # as the log's events and catalogue may differ
    if new.any() and pa.types.is_integer(known.type) != pa.types.is_integer(distinct.type):
        known = known.cast(pa.string())
    distinct = distinct.cast(known.type)
    place = np.array(rows.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    place[new] = len(known) + np.arange(new.sum())
    return place[codes], pa.concat_arrays([known, distinct.filter(pa.array(new))]), new[codes]


def _about_users(log: InteractionLog, user_ids: pa.Array) -> tuple[pa.Table | None, np.ndarray]:
    """A log's table of users, longer by the ids behind its own, and which (U,) of them neither it nor that of other users knows."""
    new, untold = user_ids[log.num_users :], np.arange(len(user_ids)) >= log.num_users
    if log.users is None or not len(new):
        return log.users, untold
    others = log.users.slice(0, 0) if log.other_users is None else log.other_users
    untold[log.num_users :] = columns.item_rows(new, "user_id", None, others["user_id"], missing=-1) < 0
    more = align_users(others, new)
    names = [name for name in log.users.column_names if name != "user_id"]
    longer = {name: pa.chunked_array([*log.users[name].chunks, *more[name].chunks]) for name in names}
    return pa.table({"user_id": user_ids, **longer}), untold


def _longer(table: pa.Table, key: str, ids: pa.Array) -> pa.Table:
    """A catalogue with the ids, in their order; rows behind its own have no description."""
    rows = np.arange(len(ids))
    described = table.take(pa.array(rows, mask=rows >= table.num_rows))
    return described.set_column(described.column_names.index(key), key, ids)


def _told(table: pa.Table | None, codes: np.ndarray, new: np.ndarray, given: pa.Table | None) -> pa.Table | None:
    """A catalogue, or user table, with what the first query of each new id gives; codes: (Q,) rows of the queries' ids."""
    if table is None or given is None or not new.any():
        return table
    rows, first = np.unique(codes[new], return_index=True)
    order = np.arange(table.num_rows)
    order[rows] = table.num_rows + np.arange(len(rows))
    given = given.take(pa.array(np.flatnonzero(new)[first]))
    for place, field in enumerate(table.schema):
        if field.name in given.column_names:
            own = _as_type(given[field.name], field.type, field.name)
            values = pa.chunked_array([*table.column(place).chunks, *own.chunks]).take(pa.array(order))
            table = table.set_column(place, field.name, values)
    return table


def _as_type(values: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"column {name!r}: the log has values of the type {kind} there, which these are not: {error}"
        ) from None
