"""From events to statistics in two steps: the state of a key before each row (sums, plain and fading, and times), and what follows from it.

The first step is done for many rows at once here, and event by event in `lmctr.statistics.users`; the second is shared.

A state is a dict of arrays: `n.<base>` and `s.<signal>` number and sum, with `.5e` or `.30d` behind where they fade with a half-life of 5
events or 30 days; `since_last`, `since_first` seconds (NaN: no event); `session.n`, `session.label`; `last.5`. `base` is the signal whose
presence decides whether an event counts: `label` or `value`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .scan import KeyedRows
from .table import Statistic

SESSION_GAP = 1800.0
"""Seconds without an event of the user that end a session."""
FADING_STRENGTH = 1.0
"""Imaginary events with the key's own mean so far that fading means and those of a session are smoothed with."""
TASTE_RIDGE = 20.0
"""Ridge of tastes, in events at one standard deviation of the number."""


@dataclass(frozen=True)
class Prior:
    """Rates smoothed towards `label`, graded values towards `value`, with `strength` imaginary events (greater than 0).

    `numbers` has the mean and the scale of what users may have a taste for, see `number_key`, and of the residuals left for factors.
    """

    label: float
    value: float = 0.0
    strength: float = 10.0
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.label < 1:
            raise ValueError(f"prior must lie between 0 and 1, got {self.label}")
        if not self.strength > 0:
            raise ValueError(f"strength must be greater than 0, got {self.strength}")

    def standardised(self, key: str, number: np.ndarray) -> np.ndarray:
        """A number of items around 0; where it is not known, 0."""
        mean, scale = self.numbers.get(key, (0.0, 1.0))
        return np.nan_to_num((number - mean) / scale, nan=0.0)

    def scaled_left(self, signal: str, left: np.ndarray) -> np.ndarray:
        """Residuals less the user's mean, by their standard deviation, as factors are fitted to them."""
        return left / self.numbers.get(signal, (0.0, 1.0))[1]

    def mean(self, signal: str, total: np.ndarray, count: np.ndarray) -> np.ndarray:
        """(total + strength * prior) / (count + strength); residuals are smoothed towards 0."""
        towards = {"label": self.label, "value": self.value}.get(signal, 0.0)
        return (total + self.strength * towards) / (count + self.strength)


def number_key(row: Statistic) -> str:
    """The key of the number that a taste is for: the mean is that of labels or of graded values."""
    return f"{base_of(row.signal)}.mean" if row.feature == "mean" else row.feature


def number_of(key: str, means: Mapping[str, Any], count: Any, described: Mapping[str, Any]) -> Any:
    """The number of items at events: from the items' means so far by base, their labelled events so far, their descriptions."""
    if key.endswith(".mean"):
        return means[key.removesuffix(".mean")]
    if key == "count":
        return np.log1p(count)
    number = described[key]
    return number if key == "year" else np.sign(number) * np.log1p(np.abs(number))


def taste(sums: Sequence[np.ndarray], number: np.ndarray) -> np.ndarray:
    """Ridge regression through the origin of residuals z on a number x, at `number`; sums: those of z x and of x x."""
    return sums[0] / (sums[1] + TASTE_RIDGE) * number


def base_of(signal: str) -> str:
    """The signal whose presence makes an event count for `signal`."""
    return "value" if signal.startswith("value") else "label"


def sums_needed(rows: Iterable[Statistic]) -> dict[tuple[str, str, float], list[str]]:
    """By (base, "" or "events" or "days", half-life) the signals to sum for these statistics of one key."""
    needed: dict[tuple[str, str, float], list[str]] = {}
    for row in rows:
        base, kinds = base_of(row.signal), []
        if row.aggregation in ("mean", "count", "events", "days", "session_mean"):
            kinds.append(("", 0.0))
        if row.aggregation in ("events", "days", "fading_count"):
            kinds.append((row.aggregation.replace("fading_count", "days"), row.span))
        for kind in kinds:
            signals = needed.setdefault((base, *kind), [])
            if row.signal not in signals:
                signals.append(row.signal)
    return needed


def suffix(kind: str, half_life: float) -> str:
    """End of the names of sums: nothing for plain ones, `.5e`, `.30d`."""
    return f".{half_life:g}{kind[0]}" if kind else ""


def key_states(keyed: KeyedRows, signals: Mapping[str, np.ndarray], rows: list[Statistic]) -> dict[str, np.ndarray]:
    """The states (R,) that these statistics need, before the second of each row.

    Args:
        signals: (R,) each, NaN where an event lacks it, and everywhere in rows that are no events.
    """
    state: dict[str, np.ndarray] = {}
    for (base, kind, half_life), names in sums_needed(rows).items():
        counts = ~np.isnan(signals[base])
        values = np.nan_to_num(np.stack([counts, *(signals[name] for name in names)]))
        if kind == "events":
            of_user = all(
                row.family != "item" for row in rows
            )  # users' events have an order; of an item's it would be that of its users' ids
            sums = keyed.fading_by_event(values, counts, half_life, has_order=of_user)
        else:
            sums = keyed.fading_by_day(values, half_life) if kind else keyed.sums(values)
        end = suffix(kind, half_life)
        state |= dict(zip((f"n.{base}{end}", *(f"s.{name}{end}" for name in names)), sums))
    aggregations = {row.aggregation for row in rows}
    if aggregations & {"since_last", "log_since_last"}:
        state["since_last"] = keyed.since_last()
    if "since_first" in aggregations:
        state["since_first"] = keyed.since_first()
    if aggregations & {"session_count", "session_mean"}:
        known = ~np.isnan(signals["label"])
        values = np.stack([np.ones(len(known)), known, np.nan_to_num(signals["label"])])
        state |= dict(zip(("session.events", "session.n", "session.label"), keyed.session(values, SESSION_GAP)))
    for row in rows:
        if row.aggregation == "last":
            state[f"last.{row.span:g}"] = keyed.last_mean(signals["label"], int(row.span))
    return state


def finish(row: Statistic, state: dict[str, np.ndarray], prior: Prior) -> np.ndarray:
    """The statistic from the state of its key, float64; the state keeps the means that it is made of."""
    base, signal = base_of(row.signal), row.signal
    if row.aggregation == "count":
        return state[f"n.{base}"]
    if row.aggregation == "fading_count":
        return state[f"n.{base}{suffix('days', row.span)}"]
    if row.aggregation in ("since_last", "since_first"):
        return state[row.aggregation]
    if row.aggregation == "log_since_last":
        return np.log1p(state["since_last"])
    if row.aggregation == "last":
        return state[f"last.{row.span:g}"]
    if row.aggregation == "session_count":
        return state["session.events"]
    if (mean := state.get(f"mean.{signal}")) is None:  # which several statistics begin with
        mean = state[f"mean.{signal}"] = prior.mean(signal, state[f"s.{signal}"], state[f"n.{base}"])
    if row.aggregation == "mean":
        return mean
    if row.aggregation == "session_mean":
        total, count = state["session.label"], state["session.n"]
    else:
        end = suffix(row.aggregation, row.span)
        total, count = state[f"s.{signal}{end}"], state[f"n.{base}{end}"]
    return (total + FADING_STRENGTH * mean) / (count + FADING_STRENGTH)
