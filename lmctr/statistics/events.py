"""Statistics of some events of a log from those before them, a part of the keys after the other.

E: events, S: samples, F: statistics, R: rows, which are events and rows that only look, P: pairs of a row and a category of its item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.utils.ragged import offsets_from_lengths, ragged_arange

from .factors import CLICK, factor_scores
from .scan import DAY, KeyedRows
from .states import Prior, finish, key_states, number_key, number_of, taste
from .table import Statistic, category_values, context_of, context_values, item_numbers, statistic

SIDES = ("user", "item")
RESIDUALS = {"label": "residual", "value": "value_residual"}
EXPECTED_PARTS = {"user": "user_value", "item": "item_value_residual"}
"""The statistics whose sum is what is to be expected of a graded value: the user's mean, and how much better the item was than its raters'
means."""
COUNT = Statistic("", "item", "", "", "count")
_PART = 1 << 18  # events that are counted at once


@dataclass(frozen=True)
class EventRows:
    """Events, and rows that only look.

    Attributes:
        user, item, time: (R,). label, value: (R,) float64, NaN where there is none. real: (R,) whether it is an event; None: all are.
    """

    user: np.ndarray
    item: np.ndarray
    time: np.ndarray
    label: np.ndarray
    value: np.ndarray
    real: np.ndarray | None = None

    @classmethod
    def of_log(cls, log: Any, label: np.ndarray | None = None, events: np.ndarray | slice = slice(None)) -> EventRows:
        """The events of a log, or some of them; the hidden ones only look."""
        hidden, value = getattr(log, "hidden", None), getattr(log, "feedback_values", None)
        label = np.asarray(log.label if label is None else label)[events].astype(np.float64)
        value = np.full(len(label), np.nan) if value is None else np.asarray(value)[events].astype(np.float64)
        columns = (np.asarray(column)[events] for column in (log.user, log.item, log.time))
        columns = [column.astype(np.int64, copy=False) for column in columns]
        label = np.where(label < 0, np.nan, label)
        if hidden is None:
            return cls(*columns, label, value)
        hidden = np.asarray(hidden)[events]
        label, value = (np.where(hidden, np.nan, signal) for signal in (label, value))
        return cls(*columns, label, value, ~hidden)

    def keyed(self, key: np.ndarray) -> KeyedRows:
        """The rows by another key."""
        return KeyedRows(key, self.time, self.real)

    def states(
        self,
        side: str,
        signals: Mapping[str, np.ndarray],
        wanted: Sequence[Statistic],
        asked: np.ndarray | None = None,
    ) -> Iterator[tuple[np.ndarray | slice, dict[str, np.ndarray]]]:
        """The states of one side, "user" or "item", before rows (S,), or before all: places among them, and what `key_states` gives of these."""
        key = getattr(self, side)
        for places, seen in key_parts(key, asked):
            keyed = KeyedRows(key[seen], self.time[seen], None if self.real is None else self.real[seen])
            if asked is not None:
                keyed.asked = _found(seen, asked[places])
            yield places, key_states(keyed, _taken(signals, seen), list(wanted))

    def columns(
        self, side: str, signals: Mapping[str, np.ndarray], wanted: Sequence[Statistic], prior: Prior
    ) -> list[np.ndarray]:
        """Statistics (R,) of one side of all rows from their signals (R,)."""
        found = [np.empty(len(self.time)) for _ in wanted]
        for places, state in self.states(side, signals, wanted):
            for row, values in zip(wanted, found):
                values[places] = finish(row, state, prior)
        return found


def key_parts(
    key: np.ndarray, asked: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray | slice, np.ndarray | slice]]:
    """Parts of asked events (S,), as places among them, and with each the positions of all events of the same keys, in order.

    A part has about a quarter of a million events, or those of one key. `asked`: None for all of them.
    """
    if not len(key) or (asked is not None and not len(asked)):
        return
    first = int(key.min())
    size = np.bincount(key - first)
    keys = np.flatnonzero(size) if asked is None else np.unique(key[asked]) - first
    part_of = np.full(len(size), -1, dtype=np.int32)
    part_of[keys] = np.cumsum(size[keys]) // _PART
    if part_of.max() == 0 and len(keys) == np.count_nonzero(size):
        yield slice(None), slice(None)
        return
    seen = _grouped(part_of[key - first])
    own = seen if asked is None else _grouped(part_of[key[asked] - first])
    for part in sorted(own):
        yield own[part], seen[part]


def _found(seen: np.ndarray | slice, rows: np.ndarray) -> np.ndarray:
    """Where rows stand among those seen."""
    return rows if isinstance(seen, slice) else np.searchsorted(seen, rows)


def _grouped(part: np.ndarray) -> dict[int, np.ndarray]:
    """The positions of each part, in order; of those below 0 nothing."""
    order = np.argsort(part, kind="stable")
    parts, starts = np.unique(part[order], return_index=True)
    return {int(number): places for number, places in zip(parts, np.split(order, starts[1:])) if number >= 0}


@dataclass(frozen=True)
class Signals:
    """What the events of a log tell beside their labels and values, (R,) each, as it was before each of them.

    Attributes:
        means: by side and base the smoothed means so far, from which the residuals of the other side are taken.
        numbers: by key the numbers of their items that users may have a taste for. left: by signal the users' residuals, less their
            mean so far. expected: what was to be expected of the graded value.
    """

    means: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)
    left: Mapping[str, np.ndarray] = field(default_factory=dict)
    expected: np.ndarray | None = None

    @classmethod
    def of(cls, rows: EventRows, catalogue: pa.Table, wanted: Sequence[Statistic], prior: Prior) -> Signals:
        """Those that these statistics need.

        Raises:
            ValueError: a catalogue column that is not there.
        """
        means = side_means(rows, wanted, prior)
        found = cls(means)
        tastes = [row for row in wanted if row.aggregation == "taste"]
        numbers, keys = {}, dict.fromkeys(map(number_key, tastes))
        if keys:
            count = rows.columns("item", found.of_side("item", rows), [COUNT], prior)[0] if "count" in keys else None
            described = {key: values[rows.item] for key, values in described_numbers(catalogue, tastes).items()}
            numbers = {key: number_of(key, means["item"], count, described) for key in keys}
        left = found.residuals_left(rows, wanted, prior)
        expected = None
        if any(row.aggregation == "expected" for row in wanted):
            expected = sum(
                rows.columns(side, found.of_side(side, rows), [statistic(name)], prior)[0]
                for side, name in EXPECTED_PARTS.items()
            )
        return cls(means, numbers, left, expected)

    def of_side(self, side: str, rows: EventRows) -> dict[str, np.ndarray]:
        """The signals of one side's events: label, value and what is left of them."""
        other = {"user": "item", "item": "user"}[side]
        return residuals(rows.label, rows.value, self.means.get(other, {}))

    def residuals_left(self, rows: EventRows, wanted: Sequence[Statistic], prior: Prior) -> dict[str, np.ndarray]:
        """By signal the users' residuals (R,) less their mean so far, of which these statistics are made; and their clicks."""
        signals, left = self.of_side("user", rows), {}
        if any(row.signal == CLICK for row in wanted):
            left[CLICK] = clicks(rows.label if rows.real is None else np.where(rows.real, rows.label, 0))
        for signal in signals_left(wanted):
            (mean,) = rows.columns("user", signals, [Statistic("", "user", "", "", "mean", signal)], prior)
            left[signal] = signals[signal] - mean
        return left

    def take(self, seen: np.ndarray | slice) -> Signals:
        """Those of some rows."""
        means = {side: _taken(own, seen) for side, own in self.means.items()}
        expected = None if self.expected is None else self.expected[seen]
        return Signals(means, _taken(self.numbers, seen), _taken(self.left, seen), expected)


def side_means(rows: EventRows, wanted: Sequence[Statistic], prior: Prior) -> dict[str, dict[str, np.ndarray]]:
    """By side and base the smoothed means (R,) before each row from which the residuals that these statistics aggregate are taken."""
    bases, own = bases_left(wanted), {"label": rows.label, "value": rows.value}
    asked = {side: [Statistic("", side, "", "", "mean", base) for base in bases] for side in SIDES if bases}
    return {side: dict(zip(bases, rows.columns(side, own, some, prior))) for side, some in asked.items()}


def _taken(values: Mapping[str, np.ndarray], seen: np.ndarray | slice) -> dict[str, np.ndarray]:
    return {name: own[seen] for name, own in values.items()}


def log_signals(log: Any, wanted: Sequence[Statistic], prior: Prior, label: np.ndarray | None = None) -> Signals:
    """The signals of a log's events that these statistics need; nothing is read of the log where they need none."""
    if not bases_left(wanted) and all(row.signal != CLICK for row in wanted):
        return Signals()
    return Signals.of(EventRows.of_log(log, label), log.catalogue, wanted, prior)


def counted(
    log: Any,
    wanted: Sequence[Statistic],
    prior: Prior,
    events: np.ndarray,
    label: np.ndarray | None = None,
    signals: Signals | None = None,
) -> Iterator[tuple[np.ndarray | slice, list[int], np.ndarray]]:
    """Statistics of events (S,) of a log, in parts: those of users by users, those of items by items, those of factors at once.

    Yields:
        Places among the events (N,), places among the statistics (K,), and the values (N, K) float64.
    """
    context = context_of(log) if any(row.family == "context" for row in wanted) else None
    signals = log_signals(log, wanted, prior, label) if signals is None else signals
    rest = [(place, row) for place, row in enumerate(wanted) if not row.of_factors]
    # samples have the same bits whatever is asked beside them, so that a training that goes on reads what it read
    hidden = getattr(log, "hidden", None)
    alone = hidden is not None and bool(np.asarray(hidden)[events].all())
    for place, row in enumerate(wanted):
        if row.of_factors:
            columns = (np.asarray(column).astype(np.int64, copy=False) for column in (log.user, log.item, log.time))
            left = prior.scaled_left(row.signal, signals.left[row.signal])
            yield slice(None), [place], factor_scores(*columns, left, row.signal == CLICK, events, alone)[:, None]
    for side in SIDES:
        places = [place for place, row in rest if (row.family == "item") == (side == "item")]
        own = [wanted[place] for place in places]
        columns = dict.fromkeys(row.column for row in own if row.column)
        categories = {column: category_values(log.catalogue, column) for column in columns}
        years = described_numbers(log.catalogue, own).get("year")
        for asked, seen in key_parts(np.asarray(getattr(log, side)), events) if own else ():
            rows, around, found = EventRows.of_log(log, label, seen), context, _found(seen, events[asked])
            if context is not None and any(row.family == "context" for row in own) and not isinstance(seen, slice):
                around = context.take(seen)
            part = signals.take(seen)
            yield asked, places, _sample_statistics(rows, side, part, own, prior, found, categories, years, around)


def _sample_statistics(
    rows: EventRows,
    side: str,
    signals: Signals,
    wanted: Sequence[Statistic],
    prior: Prior,
    asked: np.ndarray,
    categories: Mapping[str, tuple[np.ndarray, np.ndarray, Sequence[str | int]]],
    years: np.ndarray | None,
    context: pa.Table | None,
) -> np.ndarray:
    """(S, F) float64 statistics of some rows (S,), all of items or none; `signals` and `context` have a row for each of `rows`, `categories` what
    `category_values` gives of each column."""
    result, place = np.empty((len(asked), len(wanted))), {row.name: number for number, row in enumerate(wanted)}
    of_side = signals.of_side(side, rows)
    own = [row for row in wanted if row.family == side]
    tastes = [row for row in wanted if row.aggregation == "taste"]
    if own or tastes:
        keyed = rows.keyed(getattr(rows, side))
        keyed.asked = asked
    if own:
        state = key_states(keyed, of_side, own)
    for row in own:
        result[:, place[row.name]] = finish(row, state, prior)
    for row in tastes:
        left, key = signals.left[row.signal], number_key(row)
        number = prior.standardised(key, signals.numbers[key])
        sums = keyed.sums(np.stack([np.nan_to_num(left) * number, ~np.isnan(left) * number**2]))
        result[:, place[row.name]] = taste(sums, number[asked])
    for column, (codes, lengths, known) in categories.items():
        own = [row for row in wanted if row.column == column]
        event, pair_codes = cross_pairs(rows.item, codes, lengths)
        real = None if rows.real is None else rows.real[event]
        keyed = KeyedRows(rows.user[event] * max(len(known), 1) + pair_codes, rows.time[event], real)
        own_lengths = lengths[rows.item]
        keyed.asked = ragged_arange(offsets_from_lengths(own_lengths)[asked], own_lengths[asked])
        state = key_states(keyed, _taken(of_side, event), own)
        for row in own:
            result[:, place[row.name]] = reduce_pairs(finish(row, state, prior), own_lengths[asked], row.reduce)
    moments: dict[str, tuple[list, np.ndarray]] = {}
    for row in wanted:
        values = result[:, place[row.name]]
        if row.aggregation == "expected":
            values[:] = signals.expected[asked]
        elif row.family == "time":
            values[:] = time_statistic(row, rows.time[asked], rows.item[asked], years)
        elif row.family == "context":
            name = row.feature.partition("=")[0]
            if context is None or name not in context.column_names:
                raise ValueError(f"the statistics read the context column {name!r}, which these data lack")
            if name not in moments:
                moments[name] = _by_value(context[name].take(asked))
            told, code = moments[name]
            values[:] = context_values(row, told)[code]
    return result


def _by_value(column: pa.ChunkedArray) -> tuple[list, np.ndarray]:
    """The distinct values of a column, None last, and the place (S,) of each row's: there may be an indicator of each value to be read."""
    if pa.types.is_nested(column.type):
        return column.to_pylist(), np.arange(len(column))
    coded = column.combine_chunks().dictionary_encode()
    return [*coded.dictionary.to_pylist(), None], coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)


def described_numbers(catalogue: pa.Table, wanted: Sequence[Statistic]) -> dict[str, np.ndarray]:
    """The numbers (I,) of the catalogue that these statistics read, by column.

    Raises:
        ValueError: a column that is not there.
    """
    names = {row.feature for row in wanted if row.aggregation == "taste"} - {"mean", "count"}
    names |= {"year"} if any(row.aggregation == "year" for row in wanted) else set()
    found = {name: item_numbers(catalogue, name) for name in sorted(names)}
    for name, numbers in found.items():
        if numbers is None:
            raise ValueError(f"the statistics read the numeric catalogue column {name!r}, which these data lack")
    return found


def side_rows(wanted: Sequence[Statistic], side: str) -> list[Statistic]:
    """The statistics of one side, "user" or "item", that these need."""
    own = [row for row in wanted if row.family == side]
    more = [EXPECTED_PARTS[side]] if any(row.aggregation == "expected" for row in wanted) else []
    if side == "user":
        more += (f"user_{signal}" for signal in signals_left(wanted))
    return own + [statistic(name) for name in more]


def signals_left(wanted: Sequence[Statistic]) -> list[str]:
    """The signals of which these statistics take the residuals left."""
    return list(dict.fromkeys(row.signal for row in wanted if row.takes_left))


def bases_left(wanted: Sequence[Statistic]) -> list[str]:
    """The signals whose residuals these statistics aggregate."""
    signals = {row.signal for side in SIDES for row in side_rows(wanted, side)} | {row.signal for row in wanted}
    return [base for base, residual in RESIDUALS.items() if residual in signals]


def clicks(label: np.ndarray) -> np.ndarray:
    """1 where an event (N,) is a click, or its label is not known; NaN where it is none."""
    return np.where(label == 0, np.nan, 1.0)


def residuals(label: Any, value: Any, expected: Mapping[str, Any]) -> dict[str, Any]:
    """The signals of events: label and value, and of each with an expectation what is left of it."""
    signals = {"label": label, "value": value}
    return signals | {RESIDUALS[base]: signals[base] - mean for base, mean in expected.items()}


def cross_pairs(item: np.ndarray, codes: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One pair per row and category of its item: row and code (P,)."""
    offsets = offsets_from_lengths(lengths)
    return np.repeat(np.arange(len(item)), lengths[item]), codes[ragged_arange(offsets[item], lengths[item])]


def reduce_pairs(values: np.ndarray, lengths: np.ndarray, reduce: str) -> np.ndarray:
    """(R,) mean, maximum or minimum of each row's pairs (P,), NaN for a row without."""
    filled = lengths > 0
    result = np.full(len(lengths), np.nan)
    if filled.any():
        starts = offsets_from_lengths(lengths)[:-1][filled]
        function = {"mean": np.add, "max": np.maximum, "min": np.minimum}[reduce]
        result[filled] = function.reduceat(values, starts)
        if reduce == "mean":
            result[filled] /= lengths[filled]
    return result


def time_statistic(row: Statistic, time: np.ndarray, item: np.ndarray, years: np.ndarray) -> np.ndarray:
    """(R,) what depends on the moment and the item's description only."""
    if row.aggregation == "year":
        return years[item]
    if row.aggregation == "hour":
        return (time % DAY) // 3600
    return (time // DAY + 3) % 7  # 1 January 1970 was a Thursday; Monday is 0
