"""Statistics of the events of a log, causal to the second, and scaled for models that are no trees.

The statistics of an event use only events with a time below its own, so events of the same second do not see each other, whichever split
they belong to.

`log` is read by attribute (`lmctr.data.InteractionLog`, or anything with the same ones): `log.user`, `log.item`, `log.time`, `log.label` (E,),
`log.catalogue` (a pyarrow table), and where there are any `log.feedback_values` (E,), graded values with NaN where unknown, and `log.hidden`
(E,), which marks events that no other event sees.

E: events, S: samples, F: statistics.
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

from lmctr.utils.progress import over
from lmctr.utils.suggest import refuse_unknown

from .events import counted, log_signals
from .factors import LEAST_SPREAD, changed_settings
from .states import Prior
from .table import (
    SHOWN,
    Statistic,
    context_of,
    context_values,
    context_word,
    resolve_statistics,
    statistic,
    whole_number,
)

_OF_EACH = ("mean", "scale", "low", "high")
_NEWER = ("whole", "low", "high")  # which files from before do not have
_KEYS = ("names", "prior", "value_prior", "strength", "numbers", "mean", "scale", *_NEWER)
STRENGTH = 3.0
"""Imaginary events that smooth the statistics of models; chosen among 1, 3 and 10 on the validation part of MovieLens latest-small."""
_CLIP = 1e-6  # of rates, before their log-odds


@dataclass(frozen=True)
class StatisticsReader:
    """Which statistics, what their rates are smoothed towards, and how they are scaled.

    Attributes:
        names: (F,).
        prior: positive rate, and value_prior: mean graded value, of the training events.
        strength: imaginary events of the smoothing.
        numbers: mean and scale of the items' numbers that users may have a taste for, and of the residuals left for factors.
        mean, scale: (F,) of the transformed statistics of the training events.
        whole: columns of the context that hold whole numbers: "03", "3.0" and 3 are one there, as in tables.
        low, high: (F,) least and most of the transformed statistics of the training events. What lies beyond is read as if it were there: counts
            grow as a log goes on, and of what was never seen a model that is no tree would say ever more. Empty: no limits.

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
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

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
            context = context_of(log)
            whole = tuple(name for name in reader.context if pa.types.is_integer(context.schema.field(name).type))
            reader = replace(reader, whole=whole)
        signals = log_signals(log, reader.rows, reader.priors, label)
        factors = [row.signal for row in reader.rows if row.of_factors]
        numbers = signals.numbers | {signal: signals.left[signal] for signal in factors}
        reader = replace(reader, numbers={key: _moments(own[events]) for key, own in numbers.items()})
        count, mean, squares = (np.zeros(len(resolved)) for _ in range(3))
        low, high = np.full((2, len(resolved)), np.nan)
        for _, places, values in counted(log, reader.rows, reader.priors, events, label, signals):
            values = _transformed([reader.rows[place] for place in places], values)
            some = ~np.isnan(values)
            more = some.sum(0)
            own = np.where(some, values, 0).sum(0) / np.maximum(more, 1)
            spread = (np.where(some, values - own, 0) ** 2).sum(0)
            # of two parts (Chan, Golub and LeVeque 1979)
            share, apart = more / np.maximum(count[places] + more, 1), own - mean[places]
            _widen(low, high, places, values)
            squares[places] += spread + apart**2 * count[places] * share
            mean[places] += apart * share
            count[places] += more
        single = {statistic(name).name for name in ([names] if isinstance(names, str) else names) if name in resolved}
        for place, name in enumerate(resolved):
            if name in single and not count[place]:
                raise ValueError(
                    f"data.statistics names {name!r}, which is known for no training event: {statistic(name).missing or 'there is none'}"
                )
        scale = np.sqrt(squares / np.maximum(count, 1))
        scale[scale < 1e-9] = 1.0  # a constant becomes 0
        scores = [place for place, row in enumerate(reader.rows) if row.is_score]
        scale[scores] = np.maximum(scale[scores], LEAST_SPREAD)
        low, high = map(np.nan_to_num, (low, high))  # what nobody knows is 0
        return replace(reader, **{key: tuple(own.tolist()) for key, own in zip(_OF_EACH, (mean, scale, low, high))})

    def widened(self, log: Any, events: np.ndarray, *, label: np.ndarray | None = None) -> StatisticsReader:
        """The same with limits that these events (S,), on which a training goes on, lie within."""
        low, high = np.array(self.low), np.array(self.high)
        for _, places, values in counted(log, self.rows, self.priors, events, label) if self.low else ():
            _widen(low, high, places, _transformed([self.rows[place] for place in places], values))
        return replace(self, low=tuple(low.tolist()), high=tuple(high.tolist()))

    @cached_property
    def rows(self) -> list[Statistic]:
        """The row of each name."""
        return [statistic(name) for name in self.names]

    @cached_property
    def graded(self) -> bool:
        """Whether graded values of events are read."""
        return any(row.graded for row in self.rows)

    @property
    def priors(self) -> Prior:
        """What rates and means are smoothed towards."""
        return Prior(self.prior, self.value_prior, self.strength, self.numbers)

    @cached_property
    def fingerprint(self) -> str:
        """Checksum of everything that the values depend on, but for the scales."""
        values = [self.names, self.prior, self.value_prior, self.strength, sorted(self.numbers.items())]
        values += changed_settings() if any(row.of_factors for row in self.rows) else []
        return f"{zlib.crc32(json.dumps(values).encode()):08x}"

    def raw(self, log: Any, events: np.ndarray, *, label: np.ndarray | None = None) -> np.ndarray:
        """(S, F) float64 statistics of events from the whole log before their second, NaN where not known."""
        events = np.asarray(events, dtype=np.int64)
        result = np.empty((len(events), len(self.names)))
        for asked, places, values in self._counted(log, events, label):
            _put(result, asked, places, values)
        return result

    def of_events(self, log: Any, events: np.ndarray, *, label: np.ndarray | None = None) -> np.ndarray:
        """(S, F) float32: [`scaled`] of [`raw`], some hundred thousand events at a time."""
        events = np.asarray(events, dtype=np.int64)
        result = np.empty((len(events), len(self.names)), dtype=np.float32)
        for asked, places, values in self._counted(log, events, label):
            _put(result, asked, places, self._scaled(values, places))
        return result

    def _counted(
        self, log: Any, events: np.ndarray, label: np.ndarray | None
    ) -> Iterator[tuple[Any, Any, np.ndarray]]:
        parts = counted(log, self.rows, self.priors, events, label)
        return over(parts, "counting statistics", "values", len(events) * len(self.rows), lambda part: part[2].size)

    @cached_property
    def context(self) -> tuple[str, ...]:
        """Columns of an event's context that are read."""
        return tuple(dict.fromkeys(row.feature.partition("=")[0] for row in self.rows if row.family == "context"))

    @cached_property
    def asked_context(self) -> tuple[str, ...]:
        """Those of `context` that a request says in the `context` of a candidate: all but its scenario."""
        return tuple(name for name in self.context if name != SHOWN)

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

    def scaled(self, raw: np.ndarray) -> np.ndarray:
        """(.., F) float32: transformed, at most `high` and at least `low`, less the mean, by the scale; 0 where not known.

        Raises:
            ValueError: another number of columns.
        """
        raw = np.asarray(raw, dtype=np.float64)
        if raw.shape[-1:] != (len(self.names),):
            raise ValueError(
                f"statistics: got shape {raw.shape}, accepted: {len(self.names)} columns: {', '.join(self.names)}"
            )
        return self._scaled(raw, range(len(self.names)))

    def _scaled(self, raw: np.ndarray, places: Sequence[int]) -> np.ndarray:
        mean, scale, low, high = self._each[:, places]
        values = np.clip(_transformed([self.rows[place] for place in places], raw), low, high)
        return np.nan_to_num((values - mean) / scale, nan=0.0).astype(np.float32)

    @cached_property
    def _each(self) -> np.ndarray:
        """(4, F) mean, scale, low and high; no limits are infinite."""
        limits = (self.low, self.high) if self.low else np.full((len(self.mean), 2), (-np.inf, np.inf)).T
        return np.array([self.mean, self.scale, *limits])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = asdict(self)
        values = {key: value for key, value in values.items() if value or key not in _NEWER}  # as in files from before
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StatisticsReader:
        """Inverse of [`to_dict`].

        Raises:
            ValueError: unknown or missing keys, unknown statistics, numbers that do not fit.
        """
        refuse_unknown(values, _KEYS, "statistics_reader")
        missing = [key for key in _KEYS if key not in values and key not in _NEWER]
        if missing:
            raise ValueError(f"statistics_reader lacks {', '.join(missing)}; fit the processor again")
        names = tuple(statistic(name).name for name in values["names"])
        for key in _OF_EACH:
            if len(values.get(key) or (names if key in _NEWER else ())) != len(names):
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
            **{key: tuple(values.get(key, ())) for key in _NEWER},
        )


def _put(result: np.ndarray, asked: np.ndarray | slice, places: Sequence[int], values: np.ndarray) -> None:
    """Values (N, K) at rows and columns."""
    result[asked if isinstance(asked, slice) else asked[:, None], places] = values


def _widen(low: np.ndarray, high: np.ndarray, places: Sequence[int], values: np.ndarray) -> None:
    """Let limits hold values (N, K), NaN where not known."""
    low[places] = np.fmin(low[places], np.fmin.reduce(values, initial=np.nan))
    high[places] = np.fmax(high[places], np.fmax.reduce(values, initial=np.nan))


def _transformed(rows: Sequence[Statistic], raw: np.ndarray) -> np.ndarray:
    """Raw values (.., K) of these statistics as linear and neural models take them."""
    result = np.array(raw, dtype=np.float64)
    for place, row in enumerate(rows):
        column = result[..., place]
        if row.transform == "log1p":
            result[..., place] = np.log1p(column)
        elif row.transform == "logit":
            result[..., place] = logit(np.clip(column, _CLIP, 1 - _CLIP))
    return result


def _moments(values: np.ndarray) -> list[float]:
    """Mean and standard deviation of what is known; 0 and 1 of nothing, 1 of a constant."""
    known = values[~np.isnan(values)]
    if not len(known):
        return [0.0, 1.0]
    std = float(known.std())
    return [float(known.mean()), std if std > 1e-9 else 1.0]
