"""Features of a sample from what its user and its item did before it: rates, counts, recency.

The features of a sample use only events with a time below its own, so events of the same second do not see each other, whichever
split they belong to. Every statistic is a difference of two running sums over a sorted copy of the events, so the feature pass is a
few sorts and no Python loop over events.

`log` is read by attribute (`lmctr.data.InteractionLog`, or anything with the same ones): `log.offsets` (U+1,), `log.user` (E,),
`log.item` (E,), `log.time` (E,), `log.label` (E,), `log.history_end` (E,), `log.catalogue` (a pyarrow table).

E: events, S: samples, U: users, P: (event, genre) pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.utils.ragged import offsets_from_lengths, ragged_arange

__all__ = ["HISTORY_FEATURES", "HistoryFeatures", "Smoothing", "history_features", "item_counts", "user_counts"]

HISTORY_FEATURES = (
    "user_rate",
    "user_count",
    "item_rate",
    "item_count",
    "genre_rate_mean",
    "genre_rate_max",
    "genre_rate_min",
    "last_5_mean",
    "last_20_mean",
    "log_seconds_since_last_event",
    "release_year",
)
"""The eleven features, in column order. Without a `genres` column the three genre features, without a `year` column the
release year are left out (see `history_features`)."""


@dataclass(frozen=True)
class HistoryFeatures:
    """Features of samples. `values` (S, F) float64, NaN where a value is not known; `names` (F,) names the columns."""

    names: tuple[str, ...]
    values: np.ndarray


def history_features(log: Any, events: np.ndarray, prior: float, strength: float = 10.0) -> HistoryFeatures:
    """The history features of events, each from what happened strictly before its second.

    user_rate, item_rate: smoothed positive rate (towards `prior`, with `strength` imaginary events) of the user's, the
    item's events so far; user_count, item_count: their number. genre_rate_mean, _max, _min: over the genres of the item,
    the user's smoothed rate on items of that genre. last_5_mean, last_20_mean: mean label of the user's last 5, 20
    events. log_seconds_since_last_event: log(1 + seconds) since the user's last event. release_year: of the item.

    Events without label (label -1) count for the time since the last event only. Means over nothing are NaN, which
    the boosted trees treat as a value of its own; so are the genre features of an item without genres.

    A catalogue without a `genres` column (of lists) has no genre features, one without a numeric `year` column no release
    year: `names` says which columns there are.

    Args:
        log: the interaction log.
        events: (S,) event indices.
        prior: positive rate of the training split, in (0, 1).
        strength: number of imaginary events of the smoothing, greater than 0.
    """
    events = np.asarray(events, dtype=np.int64)
    smoothed = Smoothing(prior, strength)
    user, item = user_counts(log, events), item_counts(log, events)
    columns = {
        "user_rate": smoothed.rate(*user),
        "user_count": user[1],
        "item_rate": smoothed.rate(*item),
        "item_count": item[1],
    }
    genres = _item_genres(log)
    if genres is not None:
        columns |= _genre_features(log, events, genres, smoothed)
    for length in (5, 20):
        columns[f"last_{length}_mean"] = _last_labels_mean(log, events, length)
    columns["log_seconds_since_last_event"] = _log_seconds_since_last_event(log, events)
    if _column_type(log, "year", lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        year = log.catalogue["year"].to_numpy(zero_copy_only=False).astype(np.float64)
        columns["release_year"] = year[np.asarray(log.item)[events]]
    return HistoryFeatures(names=tuple(columns), values=np.column_stack([*columns.values()]).astype(np.float64))


@dataclass(frozen=True)
class Smoothing:
    """Rates smoothed towards `prior` (in (0, 1)) with `strength` imaginary events (greater than 0)."""

    prior: float
    strength: float

    def __post_init__(self) -> None:
        if not 0 < self.prior < 1:
            raise ValueError(f"prior must lie between 0 and 1, got {self.prior}")
        if not self.strength > 0:
            raise ValueError(f"strength must be greater than 0, got {self.strength}")

    def rate(self, positives: np.ndarray, count: np.ndarray) -> np.ndarray:
        """(positives + strength * prior) / (count + strength)."""
        return (positives + self.strength * self.prior) / (count + self.strength)


def _history(log: Any, events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds (S,) of the events of each event's user before its second."""
    return np.asarray(log.offsets)[np.asarray(log.user)[events]], np.asarray(log.history_end)[events]


def user_counts(log: Any, events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positives and labelled events of the event's user before its second."""
    label, (start, end) = np.asarray(log.label), _history(log, events)
    positives, count = offsets_from_lengths(label == 1), offsets_from_lengths(label >= 0)
    return positives[end] - positives[start], count[end] - count[start]


def item_counts(log: Any, events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positives and labelled events of the event's item before its second."""
    positives, count = _counts_before(np.asarray(log.item), np.asarray(log.time), np.asarray(log.label))
    return positives[events], count[events]


def _counts_before(key: np.ndarray, time: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row, positives and labelled rows of the same key with a strictly smaller time."""
    order = np.lexsort((time, key))
    key, time, label = key[order], time[order], label[order]
    row = np.arange(len(order))
    new_key = np.r_[True, key[1:] != key[:-1]]
    new_second = new_key | np.r_[True, time[1:] != time[:-1]]
    start = np.maximum.accumulate(np.where(new_key, row, 0))
    end = np.maximum.accumulate(np.where(new_second, row, 0))
    result = []
    for values in (label == 1, label >= 0):
        total = offsets_from_lengths(values)
        unsorted = np.empty(len(order), dtype=np.int64)
        unsorted[order] = total[end] - total[start]
        result.append(unsorted)
    return result[0], result[1]


def _column_type(log: Any, name: str, accepted: Callable[[pa.DataType], bool]) -> bool:
    """Whether the catalogue has the column, in a type that the feature can be made from."""
    schema = log.catalogue.schema
    return name in schema.names and accepted(schema.field(name).type)


def _item_genres(log: Any) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Genre codes of all items in one array, offsets (I+1,) of each item's, and the number of genres."""
    if not _column_type(log, "genres", lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    column = log.catalogue["genres"].combine_chunks()
    lengths = np.array(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    names = column.flatten().to_numpy(zero_copy_only=False)
    known, codes = np.unique(names.astype(str), return_inverse=True)
    return codes.astype(np.int64), offsets_from_lengths(lengths), len(known)


def _genre_features(
    log: Any, events: np.ndarray, genres: tuple[np.ndarray, np.ndarray, int], smoothed: Smoothing
) -> dict[str, np.ndarray]:
    """Mean, maximum and minimum over the item's genres of the user's rate on that genre."""
    codes, offsets, num_genres = genres
    item, user = np.asarray(log.item), np.asarray(log.user).astype(np.int64)
    # One row per (event, genre of its item), of all events: they are the history.
    first, length = offsets[item], np.diff(offsets)[item]
    pair_end = np.cumsum(length)
    event = np.repeat(np.arange(len(item)), length)
    key = user[event] * max(num_genres, 1) + codes[ragged_arange(first, length)]
    positives, count = _counts_before(key, np.asarray(log.time)[event], np.asarray(log.label)[event])
    rate = smoothed.rate(positives, count)

    filled = length > 0
    starts = (pair_end - length)[filled]
    result = {}
    for name, reduce in (("mean", np.add), ("max", np.maximum), ("min", np.minimum)):
        values = np.full(len(item), np.nan)
        if len(starts):
            values[filled] = reduce.reduceat(rate, starts)
        if name == "mean":
            values[filled] /= length[filled]
        result[f"genre_rate_{name}"] = values[events]
    return result


def _last_labels_mean(log: Any, events: np.ndarray, length: int) -> np.ndarray:
    """Mean of the user's last `length` labels before the event's second, NaN without any."""
    label, (start, end) = np.asarray(log.label), _history(log, events)
    count = offsets_from_lengths(label >= 0)
    positives = offsets_from_lengths(label[label >= 0])  # over labelled events only, so that `length` counts labels
    last = count[end]
    first = np.maximum(last - length, count[start])
    means = np.full(len(events), np.nan)
    np.divide(positives[last] - positives[first], last - first, out=means, where=last > first)
    return means


def _log_seconds_since_last_event(log: Any, events: np.ndarray) -> np.ndarray:
    time, (start, end) = np.asarray(log.time), _history(log, events)
    seconds = (time[events] - time[np.maximum(end - 1, 0)]).astype(np.float64)
    return np.where(end > start, np.log1p(np.where(end > start, seconds, 0.0)), np.nan)
