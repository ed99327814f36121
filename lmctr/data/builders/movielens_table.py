"""Tabular view of MovieLens: user, movie, genres, year and features of what happened before, in time order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.schema import OWN_NAMES
from lmctr.data.logs.splits import Splits, split_log
from lmctr.data.logs.table import UNMET_RULES
from lmctr.data.tables.source import SplitRule, TableSource, table_piece
from lmctr.statistics import StatisticsReader, resolve_statistics
from lmctr.statistics.factors import LEAST_SPREAD
from lmctr.utils.arrow import is_list, is_text
from lmctr.utils.ragged import offsets_from_lengths, ragged_arange

from .movielens import load_movielens

_COUNTS = ("user_count", "item_count")
_MOST_CODES = 256  # distinct whole numbers, up to which a column of them counts as a category


def movielens_table(
    log: InteractionLog,
    splits: Splits,
    *,
    history_length: int = 20,
    numeric: str = "standardize",
    num_bins: int = 32,
    min_count: int = 1,
    strength: float = 10.0,
    own_columns: Sequence[str] | None = ("genres", "year"),
    statistics: StatisticsReader | None = None,
    prior: float | None = None,
    earlier: Mapping[str, str | None] | None = None,
) -> TableSource:
    """The samples of a log as a table.

    Columns: `user_id`, `item_id`; the log's `own_columns`; statistics of what happened before the sample's second, a column each as
    [`~lmctr.statistics.StatisticsReader.raw`] gives them (NaN where nothing is known yet); `liked_items` and
    `other_items`, the last items with a positive and with another label (ids, oldest first; fields where the log has such) and `liked_times`,
    `other_times`;
    `label`, `time`, and `weight` when the log has weights. The rows of each part are in the order of its events.

    Any log with a catalogue will do. Of its own columns (catalogue, users, context, scenario), lists are fields of several values,
    texts, yes/no and up to 256 whole numbers are categories, other numbers numeric; a text that tells most rows apart (a title) and
    times are no fields.

    Args:
        log: the log.
        splits: its parts. A sample's history may hold events of any part, as it would when the model serves.
        history_length: items of each sequence; 0 leaves the sequences out.
        numeric: transform of the statistics ("standardize", "quantile", "raw").
        num_bins: bins of "quantile".
        min_count: of users and items.
        strength: imaginary events of the smoothed rates.
        own_columns: columns of the log to take where it has them; None takes all that can be fields.
        statistics: the reader of the statistics; a statistic enters as its own transform says. Default: the set `basic`, where counts are
            written as logarithms, rates enter as they are and the release year is left to `year`, as before there were readers.
        prior: positive rate that the rates of that default are smoothed towards; default: the training part's. With it, or with
            `statistics`, the training part may be empty: other parts are read as the one that both come from was.
        earlier: types of the fields, by name, of a processor that reads this log, or goes on with it: statistics, histories and columns are fields
            where they were, whatever their values have come to look like (a type of None: what they look like). Default: what the training part tells.

    Raises:
        ValueError: a column of the log with the name of another one; a part with an event without a label; a training part without positives or negatives.
    """
    labels = log.label[splits.train]
    if statistics is None and prior is None and (not len(labels) or labels.min() < 0 or labels.min() == labels.max()):
        words = log.info.extra.get(UNMET_RULES, {}).get("label")
        raise ValueError(
            f"splits.train has {len(labels)} samples; it needs labelled positives and negatives for the smoothed rates"
            f"{f': {words}' if words else '.'}"
        )
    given, logarithms = statistics, ()
    names = statistics.names if statistics is not None else ()
    if statistics is None:
        prior = float(labels.mean()) if prior is None else prior
        statistics = StatisticsReader(resolve_statistics("basic", log), prior, strength=strength)
        names = tuple(name for name in statistics.names if name != "release_year")
        logarithms = _COUNTS if numeric != "quantile" else ()
        before = {}
    else:
        before = {
            row.name: row.transform for row in statistics.rows if row.transform != "none" and numeric != "quantile"
        }
    own = columns_of(log, own_columns, names, earlier)
    fields: list[dict[str, Any]] = [
        {"name": name, "type": "categorical", "min_count": min_count} for name in ("user_id", "item_id")
    ]
    numeric_field = {"type": "numeric", "transform": numeric}
    if numeric == "quantile":
        numeric_field |= {"num_bins": num_bins, "missing": "own_id"}
    for name, (table, _) in own.items():
        type_ = _field_type(table[name], name, earlier)
        fields.append(
            {"name": name, "type": type_}
            | {"multi_value": {"max_length": 8}, "categorical": {"min_count": min_count}, "numeric": numeric_field}[
                type_
            ]
        )
    tables = {}
    for part, events in splits.items():
        if len(events):
            found = dict(zip(statistics.names, statistics.raw(log, events).T))
            columns = {name: np.log1p(found[name]) if name in logarithms else found[name] for name in names}
            tables[part] = _table(log, events, own, columns, history_length)
    of_train = tables.get("train")  # what none of its rows knows is no field, nor are factors that shrank to nothing
    scores = {row.name for row in statistics.rows if row.is_score}

    def is_known(name: str) -> bool:
        if earlier is not None:
            return name in earlier
        if of_train is None:
            return True
        column = of_train[name]
        if column.null_count == len(column):
            return False
        return name not in scores or pc.stddev(column).as_py() >= LEAST_SPREAD

    fields += [{"name": name, **numeric_field, "before": before.get(name)} for name in names if is_known(name)]
    history = {"type": "sequence", "max_length": history_length, "share_with": "item_id"}
    for name, chosen in _histories(log).items() if history_length else ():
        some = chosen.any() if of_train is None else pc.sum(pc.list_value_length(of_train[f"{name}_items"])).as_py()
        if some if earlier is None else f"{name}_items" in earlier:  # in a log of clicks alone there are no others
            fields.append({"name": f"{name}_items", **history, "time_column": f"{name}_times"})
    pieces = [table_piece(table, part) for part, table in tables.items()]
    return TableSource(
        tuple(pieces),
        tuple(fields),
        label="label",
        group="user_id",
        time="time",
        weight="weight" if log.weight is not None else None,
        split=SplitRule("given"),
        info=log.info,
        statistics_reader=given,
    )


OwnColumns = dict[str, tuple[pa.Table, np.ndarray]]
"""Columns by name: the table that has each, and the row (E,) of it that belongs to each event."""


def columns_of(
    log: InteractionLog,
    chosen: Sequence[str] | None = None,
    statistics: Sequence[str] = (),
    earlier: Mapping[str, str | None] | None = None,
) -> OwnColumns:
    """The columns of a log's catalogue, users, context and scenario that are fields of tabular models, or the `chosen` ones of them.

    Args:
        statistics: names of columns that the table has besides. earlier: as [`movielens_table`] takes them.

    Raises:
        ValueError: two columns of one name.
    """
    found: OwnColumns = {}
    for table, rows in _described(log):
        for name in table.column_names:
            if (chosen is not None and name not in chosen) or _field_type(table[name], name, earlier) is None:
                continue
            if name in found or name in {*OWN_NAMES, *statistics} or (name == "weight" and log.weight is not None):
                raise ValueError(
                    f"{log.info.name!r} as a table: two columns are called {name!r}; give one of them another name in the schema, as in "
                    f"`columns: {{shop_{name}: {name}}}`."
                )
            found[name] = (table, rows)
    return found


def _described(log: InteractionLog) -> Iterator[tuple[pa.Table, np.ndarray]]:
    yield log.catalogue.drop_columns(["item_id"]), log.item
    if log.users is not None:
        yield log.users.drop_columns(["user_id"]), log.user
    if log.context is not None:
        yield log.context, np.arange(log.num_events)
    if log.scenario is not None:
        yield pa.table({"scenario": pa.array(log.scenario_names)}), log.scenario


def _field_type(values: pa.ChunkedArray, name: str, earlier: Mapping[str, str | None] | None = None) -> str | None:
    """The type of field that a column is; None for one that is no field."""
    if earlier is not None:
        return (earlier[name] or _field_type(values, name) or "categorical") if name in earlier else None
    kind = values.type
    if is_list(kind):
        return "multi_value"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "numeric"
    if pa.types.is_integer(kind):
        return "categorical" if name == "year" or pc.count_distinct(values).as_py() <= _MOST_CODES else "numeric"
    if is_text(kind):
        distinct, known = pc.count_distinct(values).as_py(), len(values) - values.null_count
        return "categorical" if distinct <= max(50, known / 2) else None
    return "categorical" if pa.types.is_boolean(kind) else None


def _table(
    log: InteractionLog, events: np.ndarray, own: OwnColumns, statistics: dict[str, np.ndarray], length: int
) -> pa.Table:
    if (log.label[events] < 0).any():
        raise ValueError("splits: a part holds events without a label; take samples from log.sample_events().")
    columns: dict[str, Any] = {
        "user_id": pa.array(log.user_ids[log.user[events]]),
        "item_id": log.catalogue["item_id"].take(pa.array(log.item[events])),
        "label": pa.array(log.label[events]),
        "time": pa.array(log.time[events]),
    }
    columns |= {name: table[name].take(pa.array(place[events])) for name, (table, place) in own.items()}
    columns |= {name: pa.array(values, from_pandas=True) for name, values in statistics.items()}
    if length:
        ids = pc.cast(log.catalogue["item_id"], pa.string()).combine_chunks()
        for name, chosen in _histories(log).items():
            columns[f"{name}_items"], columns[f"{name}_times"] = _last(log, events, chosen, ids, length)
    if log.weight is not None:
        columns["weight"] = pa.array(log.weight[events])
    return pa.table(columns)


def _histories(log: InteractionLog) -> dict[str, np.ndarray]:
    """By kind of history the events (E,) that may stand in one."""
    return {"liked": log.seen & (log.label == 1), "other": log.seen & (log.label != 1)}


def _last(
    log: InteractionLog, events: np.ndarray, chosen: np.ndarray, ids: pa.Array, length: int
) -> tuple[pa.Array, pa.Array]:
    """Ids and times of the last `length` chosen events of the user before each event's second."""
    places = np.flatnonzero(chosen)
    before = offsets_from_lengths(chosen)
    start, end = log.history_bounds(events)
    end = before[end]
    start = np.maximum(before[start], end - length)
    taken = places[ragged_arange(start, end - start)]
    offsets = pa.array(offsets_from_lengths(end - start), pa.int32())
    items = pa.ListArray.from_arrays(offsets, ids.take(pa.array(log.item[taken])))
    return items, pa.ListArray.from_arrays(offsets, pa.array(log.time[taken]))


def load_movielens_table(
    path: str | os.PathLike | None = None,
    *,
    variant: str | None = None,
    min_user_events: int = 20,
    last_years: float | None = 10,
    positive_above: float = 3.0,
    split: str = "time",
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    history_length: int = 20,
    numeric: str = "standardize",
    num_bins: int = 32,
    min_count: int = 1,
    progress: bool = False,
) -> TableSource:
    """MovieLens as a table: [`~lmctr.data.builders.movielens.load_movielens`], a split, and [`movielens_table`].

    Args:
        path: as `variant`, `min_user_events`, `last_years`, `positive_above` and `progress`: see `load_movielens`.
        split: "time" or "user", with `fractions` and `seed`: see [`~lmctr.data.logs.splits.split_log`].
        history_length: as `numeric`, `num_bins` and `min_count`: see [`movielens_table`].
    """
    log = load_movielens(
        path,
        variant=variant,
        min_user_events=min_user_events,
        last_years=last_years,
        positive_above=positive_above,
        progress=progress,
    )
    return movielens_table(
        log,
        split_log(log, split, fractions, seed),
        history_length=history_length,
        numeric=numeric,
        num_bins=num_bins,
        min_count=min_count,
    )
