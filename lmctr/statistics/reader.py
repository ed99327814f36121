"""Statistics of the events of a log, causal to the second, and scaled for models that are no trees.

The statistics of an event use only events with a time below its own, so events of the same second do not see each other, whichever split
they belong to.

`log` is read by attribute (`lmctr.data.InteractionLog`, or anything with the same ones): `log.user`, `log.item`, `log.time`, `log.label` (E,),
`log.catalogue` (a pyarrow table), and where there are any `log.feedback_values` (E,), graded values with NaN where unknown, and `log.hidden`
(E,), which marks events that no other event sees.

E: events, S: samples, F: statistics, R: rows, which are events and rows that only look.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import logit

from lmctr.utils.progress import step
from lmctr.utils.ragged import offsets_from_lengths, ragged_arange
from lmctr.utils.suggest import refuse_unknown

from .scan import DAY, KeyedRows
from .states import Prior, finish, key_states, number_key, number_of, taste
from .table import (
    Statistic,
    category_values,
    context_values,
    context_word,
    item_numbers,
    resolve_statistics,
    statistic,
    whole_number,
)

_KEYS = ("names", "prior", "value_prior", "strength", "numbers", "mean", "scale", "whole")
STRENGTH = 3.0
"""Imaginary events that smooth the statistics of models; chosen among 1, 3 and 10 on the validation part of MovieLens latest-small."""
RESIDUALS = {"label": "residual", "value": "value_residual"}
_CLIP = 1e-6  # of rates, before their log-odds
_PART = 1 << 20  # events that statistics are counted in at once, where they can be counted in parts


@dataclass(frozen=True)
class StatisticsReader:
    """Which statistics, what their rates are smoothed towards, and how they are scaled.

    Attributes:
        names: (F,).
        prior: positive rate, and value_prior: mean graded value, of the training events.
        strength: imaginary events of the smoothing.
        numbers: mean and scale of the items' numbers that users may have a taste for.
        mean, scale: (F,) of the transformed statistics of the training events.
        whole: columns of the context that hold whole numbers: "03", "3.0" and 3 are one there, as in tables.

    Example:
        >>> reader = StatisticsReader.fit(log, splits.train, "full")  # doctest: +SKIP
        >>> reader.scaled(reader.raw(log, splits.test))  # doctest: +SKIP
    """

    names: tuple[str, ...]
    prior: float
    value_prior: float = 0.0
    strength: float = 10.0
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    whole: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        log: Any,
        events: np.ndarray,
        names: str | Sequence[str],
        *,
        label: np.ndarray | None = None,
        strength: float = STRENGTH,
    ) -> StatisticsReader:
        """Priors and scales from the training events.

        Args:
            log: the log. events: (S,) training events. names: see `resolve_statistics`.
            label: (E,) another label than `log.label`, -1 where there is none.
            strength: imaginary events of smoothed means, greater than 0.

        Raises:
            ValueError: training events of one class, names that the log cannot give, a single name that is known for no training event.
        """
        resolved, events = resolve_statistics(names, log), np.asarray(events, dtype=np.int64)
        labels = np.asarray(log.label if label is None else label)[events]
        labels = labels[labels >= 0]
        if len(labels) == 0 or labels.min() == labels.max():
            raise ValueError(
                f"statistics: {len(labels)} training events of {len(np.unique(labels))} class(es): their rates are smoothed towards "
                "that of the training events, which must lie between 0 and 1"
            )
        values = getattr(log, "feedback_values", None)
        known = np.zeros(0) if values is None else np.asarray(values, dtype=np.float64)[events]
        known = known[~np.isnan(known)]
        reader = cls(resolved, float(labels.mean()), float(known.mean()) if len(known) else 0.0, float(strength))
        if reader.context:
            is_whole = {name: pa.types.is_integer(log.context[name].type) for name in reader.context}
            reader = replace(reader, whole=tuple(name for name in reader.context if is_whole[name]))
        if any(row.aggregation == "taste" for row in reader.rows):
            found = log_numbers(EventRows.of_log(log, label), log.catalogue, reader.rows, reader.priors)
            numbers = {key: _moments(own[events]) for key, own in found.items()}
            reader = replace(reader, numbers=numbers)
        transformed = reader._transformed(reader.raw(log, events, label=label))
        some = ~np.isnan(transformed)
        single = {statistic(name).name for name in ([names] if isinstance(names, str) else names) if name in resolved}
        for place, name in enumerate(resolved):
            if name in single and not some[:, place].any():
                raise ValueError(
                    f"data.statistics names {name!r}, which is known for no training event: {statistic(name).missing or 'there is none'}"
                )
        count = np.maximum(some.sum(0), 1)
        mean = np.where(some, transformed, 0).sum(0) / count
        scale = np.sqrt((np.where(some, transformed - mean, 0) ** 2).sum(0) / count)
        scale[scale < 1e-9] = 1.0  # a constant becomes 0
        return replace(reader, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))

    @cached_property
    def rows(self) -> list[Statistic]:
        """The row of each name."""
        return [statistic(name) for name in self.names]

    @property
    def priors(self) -> Prior:
        """What rates and means are smoothed towards."""
        return Prior(self.prior, self.value_prior, self.strength, self.numbers)

    @cached_property
    def fingerprint(self) -> str:
        """Checksum of everything that the values depend on, but for the scales."""
        values = [self.names, self.prior, self.value_prior, self.strength, sorted(self.numbers.items())]
        return f"{zlib.crc32(json.dumps(values).encode()):08x}"

    @step("counting statistics")
    def raw(self, log: Any, events: np.ndarray, *, label: np.ndarray | None = None) -> np.ndarray:
        """(S, F) float64 statistics of events from the whole log before their second, NaN where not known.

        Where no statistic reads both sides of an event, those of users are counted in the events of the samples' users, those of items in
        the events of the samples' items, some millions of events at a time.
        """
        context, wanted, events = getattr(log, "context", None), self.rows, np.asarray(events, dtype=np.int64)
        if bases_left(wanted):
            rows = EventRows.of_log(log, label)
            return sample_statistics(rows, log.catalogue, wanted, self.priors, events, context)
        result = np.empty((len(events), len(wanted)))
        for side in ("user", "item"):
            places = [place for place, row in enumerate(wanted) if (row.family == "item") == (side == "item")]
            own = [wanted[place] for place in places]
            for asked, seen in _parts(np.asarray(getattr(log, side)), events) if own else ():
                rows, around = EventRows.of_log(log, label, seen), context
                if any(row.family == "context" for row in own):
                    around = None if context is None else context.take(seen)
                found = np.searchsorted(seen, events[asked])
                result[np.ix_(asked, places)] = sample_statistics(rows, log.catalogue, own, self.priors, found, around)
        return result

    @cached_property
    def context(self) -> tuple[str, ...]:
        """Columns of an event's context that are read."""
        return tuple(dict.fromkeys(row.feature.partition("=")[0] for row in self.rows if row.family == "context"))

    @cached_property
    def told(self) -> dict[str, set[str]]:
        """The values that have a statistic, as texts, of each column of the context that is told value by value."""
        told: dict[str, set[str]] = {}
        for name, is_indicator, value in (row.feature.partition("=") for row in self.rows if row.family == "context"):
            if is_indicator:
                told.setdefault(name, set()).add(value)
        return told

    def unknown_context(self, columns: Mapping[str, Iterable[tuple[Any, int]]]) -> tuple[dict[str, int], list[str]]:
        """Of values and how often each is there, by the columns of [`told`]: the numbers of "values" and of the "unknown" among them, which
        no statistic is of, and these as `column=value`."""
        counts, unknown = {"values": 0, "unknown": 0}, []
        for name, entries in columns.items():
            for value, count in entries:
                value = whole_number(value) if name in self.whole else value
                if value in (None, ""):
                    continue
                counts["values"] += count
                if (word := context_word(value)) not in self.told[name]:
                    counts["unknown"] += count
                    unknown.append(f"{name}={word}")
        return counts, unknown

    def with_context(self, raw: np.ndarray, contexts: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """(C, F) raw statistics of candidates with those of each one's context, by column.

        Raises:
            ValueError: a column that is not given, or a number that is none.
        """
        for context in contexts:
            missing = [name for name in self.context if name not in context]
            if missing:
                given = ", ".join(map(str, context)) or "nothing"
                raise ValueError(
                    f"context lacks {', '.join(missing)} and has {given}; give every column, null where it is not known"
                )
        values = {name: [context[name] for context in contexts] for name in self.context}
        values |= {name: list(map(whole_number, values[name])) for name in self.whole}
        result = np.array(raw, dtype=np.float64)
        for place, row in enumerate(self.rows):
            if row.family == "context":
                result[:, place] = context_values(row, values[row.feature.partition("=")[0]])
        return result

    def _transformed(self, raw: np.ndarray) -> np.ndarray:
        result = np.array(raw, dtype=np.float64)
        for place, row in enumerate(self.rows):
            column = result[..., place]
            if row.transform == "log1p":
                result[..., place] = np.log1p(column)
            elif row.transform == "logit":
                result[..., place] = logit(np.clip(column, _CLIP, 1 - _CLIP))
        return result

    def scaled(self, raw: np.ndarray) -> np.ndarray:
        """(.., F) float32: transformed, less the mean, by the scale; 0 where not known.

        Raises:
            ValueError: another number of columns.
        """
        raw = np.asarray(raw, dtype=np.float64)
        if raw.shape[-1:] != (len(self.names),):
            raise ValueError(
                f"statistics: got shape {raw.shape}, accepted: {len(self.names)} columns: {', '.join(self.names)}"
            )
        return np.nan_to_num((self._transformed(raw) - self.mean) / self.scale, nan=0.0).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = asdict(self)
        if not self.whole:  # so it is in files from before there was the key
            del values["whole"]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StatisticsReader:
        """Inverse of [`to_dict`].

        Raises:
            ValueError: unknown or missing keys, unknown statistics, numbers that do not fit.
        """
        refuse_unknown(values, _KEYS, "statistics_reader")
        missing = [key for key in _KEYS if key not in values and key != "whole"]
        if missing:
            raise ValueError(f"statistics_reader lacks {', '.join(missing)}; fit the processor again")
        names = tuple(statistic(name).name for name in values["names"])
        for key in ("mean", "scale"):
            if len(values[key]) != len(names):
                raise ValueError(
                    f"statistics_reader.{key} has {len(values[key])} numbers for {len(names)} statistics; fit the processor again"
                )
        numbers = {key: float(values[key]) for key in ("prior", "value_prior", "strength")}
        numbers["numbers"] = {key: list(map(float, pair)) for key, pair in values["numbers"].items()}
        return cls(
            names,
            **numbers,
            mean=tuple(values["mean"]),
            scale=tuple(values["scale"]),
            whole=tuple(values.get("whole", ())),
        )


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


def _parts(key: np.ndarray, asked: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Parts of asked events (S,), as places among them, and with each the positions of all events of the same keys, in order.

    A part has about a million events, or those of one key.
    """
    own = key[asked]
    keys = np.unique(own)
    part_of = np.full(int(key.max(initial=-1)) + 1, -1, dtype=np.int32)
    part_of[keys] = np.cumsum(np.bincount(key, minlength=len(part_of))[keys]) // _PART
    parts, part_of_event = part_of[own], part_of[key]
    for part in np.unique(parts):
        yield np.flatnonzero(parts == part), np.flatnonzero(part_of_event == part)


def sample_statistics(
    rows: EventRows,
    catalogue: pa.Table,
    wanted: Sequence[Statistic],
    prior: Prior,
    asked: np.ndarray,
    context: pa.Table | None = None,
) -> np.ndarray:
    """(S, F) float64 statistics of some rows (S,); `context` has a row for each of `rows`."""
    keyed = {"user": rows.keyed(rows.user), "item": rows.keyed(rows.item)}
    signals, expected = side_signals(rows, keyed, wanted, prior)
    asked = np.asarray(asked, dtype=np.int64)
    columns: dict[str, np.ndarray] = {}
    tastes = [row for row in wanted if row.aggregation == "taste"]
    numbers = _numbers(rows, keyed["item"], expected["item"], catalogue, tastes)
    left = {signal: signals["user"][signal] for signal in dict.fromkeys(row.signal for row in tastes)}
    for signal in left:  # the users' residuals, less their mean so far
        mean = Statistic("", "user", "", "", "mean", signal)
        left[signal] = left[signal] - finish(mean, key_states(keyed["user"], signals["user"], [mean]), prior)
    for side in keyed:
        own, keyed[side].asked = side_rows(wanted, side), asked
        state = key_states(keyed[side], signals[side], own)
        columns |= {row.name: finish(row, state, prior) for row in own}
    for column in dict.fromkeys(row.column for row in wanted if row.column):
        own = [row for row in wanted if row.column == column]
        codes, lengths, known = category_values(catalogue, column)
        event, pair_codes = cross_pairs(rows.item, codes, lengths)
        real = None if rows.real is None else rows.real[event]
        keyed_pairs = KeyedRows(rows.user[event] * max(len(known), 1) + pair_codes, rows.time[event], real)
        own_lengths = lengths[rows.item]
        keyed_pairs.asked = ragged_arange(offsets_from_lengths(own_lengths)[asked], own_lengths[asked])
        state = key_states(keyed_pairs, {name: values[event] for name, values in signals["user"].items()}, own)
        columns |= {row.name: reduce_pairs(finish(row, state, prior), own_lengths[asked], row.reduce) for row in own}
    for row in tastes:
        number, known = prior.standardised(number_key(row), numbers[number_key(row)]), ~np.isnan(left[row.signal])
        sums = keyed["user"].sums(np.stack([np.nan_to_num(left[row.signal]) * number, known * number**2]))
        columns[row.name] = taste(sums, number[asked])
    years, moments = described_numbers(catalogue, wanted).get("year"), {}
    for row in wanted:
        if row.aggregation == "expected":
            columns[row.name] = sum(columns[part] for part in EXPECTED_PARTS.values())
        elif row.family == "time":
            columns[row.name] = time_statistic(row, rows.time[asked], rows.item[asked], years)
        elif row.family == "context":
            name = row.feature.partition("=")[0]
            if context is None or name not in context.column_names:
                raise ValueError(f"the statistics read the context column {name!r}, which these data lack")
            if name not in moments:
                moments[name] = _by_value(context[name].take(asked))
            values, place = moments[name]
            columns[row.name] = context_values(row, values)[place]
    return np.column_stack([columns[row.name] for row in wanted]).astype(np.float64)


def _by_value(column: pa.ChunkedArray) -> tuple[list, np.ndarray]:
    """The distinct values of a column, None last, and the place (S,) of each row's: there may be an indicator of each value to be read."""
    if pa.types.is_nested(column.type):
        return column.to_pylist(), np.arange(len(column))
    coded = column.combine_chunks().dictionary_encode()
    return [*coded.dictionary.to_pylist(), None], coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)


def _moments(values: np.ndarray) -> list[float]:
    """Mean and standard deviation of what is known; 0 and 1 of nothing, 1 of a constant."""
    known = values[~np.isnan(values)]
    if not len(known):
        return [0.0, 1.0]
    std = float(known.std())
    return [float(known.mean()), std if std > 1e-9 else 1.0]


def log_numbers(
    rows: EventRows, catalogue: pa.Table, wanted: Sequence[Statistic], prior: Prior
) -> dict[str, np.ndarray]:
    """The numbers (R,) of the rows' items that these statistics have tastes for, before each row's second."""
    keyed = {"user": rows.keyed(rows.user), "item": rows.keyed(rows.item)}
    _, expected = side_signals(rows, keyed, wanted, prior)
    return _numbers(
        rows, keyed["item"], expected["item"], catalogue, [row for row in wanted if row.aggregation == "taste"]
    )


def _numbers(
    rows: EventRows,
    keyed: KeyedRows,
    means: Mapping[str, np.ndarray],
    catalogue: pa.Table,
    tastes: Sequence[Statistic],
) -> dict[str, np.ndarray]:
    keys = dict.fromkeys(map(number_key, tastes))
    count = keyed.sums((~np.isnan(rows.label))[None])[0] if "count" in keys else None
    described = {key: own[rows.item] for key, own in described_numbers(catalogue, tastes).items()}
    return {key: number_of(key, means, count, described) for key in keys}


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


EXPECTED_PARTS = {"user": "user_value", "item": "item_value_residual"}
"""The statistics whose sum is what is to be expected of a graded value: the user's mean, and how much better the item was than its raters'
means."""


def side_rows(wanted: Sequence[Statistic], side: str) -> list[Statistic]:
    """The statistics of one side, "user" or "item", that these need."""
    own = [row for row in wanted if row.family == side]
    more = [EXPECTED_PARTS[side]] if any(row.aggregation == "expected" for row in wanted) else []
    if side == "user":
        more += dict.fromkeys(f"user_{row.signal}" for row in wanted if row.aggregation == "taste")
    return own + [statistic(name) for name in more]


def bases_left(wanted: Sequence[Statistic]) -> list[str]:
    """The signals whose residuals these statistics aggregate."""
    signals = {row.signal for side in ("user", "item") for row in side_rows(wanted, side)} | {
        row.signal for row in wanted
    }
    return [base for base, residual in RESIDUALS.items() if residual in signals]


def side_signals(
    rows: EventRows, keyed: Mapping[str, KeyedRows], wanted: Sequence[Statistic], prior: Prior
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, np.ndarray]]]:
    """By side the signals of its events, and the smoothed means before each row from which residuals are taken."""
    bases = bases_left(wanted)
    expected: dict[str, dict[str, np.ndarray]] = {side: {} for side in keyed}
    for side in keyed if bases else ():
        means = [Statistic("", side, "", "", "mean", base) for base in bases]
        state = key_states(keyed[side], {"label": rows.label, "value": rows.value}, means)
        expected[side] = {row.signal: finish(row, state, prior) for row in means}
    other = {"user": "item", "item": "user"}
    return {side: residuals(rows.label, rows.value, expected[other[side]]) for side in keyed}, expected


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
