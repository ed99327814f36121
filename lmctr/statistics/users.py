"""What one user did, kept so that the statistics of candidates follow at once: for serving."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from lmctr.utils.measure import size_of

from .events import EXPECTED_PARTS, clicks, reduce_pairs, residuals, side_rows, signals_left, time_statistic
from .factors import CLICK, HISTORY
from .items import ItemStatistics
from .reader import StatisticsReader
from .scan import DAY
from .states import SESSION_GAP, base_of, finish, number_key, suffix, sums_needed, taste
from .table import ITEM, Statistic


class UserStatistics:
    """The state of one user: exactly what the reader counts of the user's events in a log, but event by event.

    Args:
        reader: whose statistics.
        items: the table of items, for what candidates are and did, and for the residuals of the user's events. A newer table may be put in
            its place at any time (`user.items = table`).

    Example:
        >>> user = UserStatistics(reader, ItemStatistics.load("items.parquet"))  # doctest: +SKIP
        >>> user.extend(["7", "12"], [1700000000, 1700000060], [1, 0])  # doctest: +SKIP
        >>> reader.scaled(user.at(["3", "9"], 1700000120))  # (C, F)  # doctest: +SKIP
    """

    def __init__(self, reader: StatisticsReader, items: ItemStatistics) -> None:
        if items.reader.fingerprint != reader.fingerprint:
            raise ValueError(
                f"items was made for other statistics or priors (checksum {items.reader.fingerprint}) than reader ({reader.fingerprint})"
            )
        self.reader, self.items = reader, items
        self._now = _State(reader.rows)
        self._before = self._now.copy()  # the events of the last second left out

    def extend(
        self, items: Sequence[Any], times: Sequence[int], labels: Sequence[int], values: Sequence[float] | None = None
    ) -> None:
        """Add events, in the order of time.

        Args:
            items: (N,) item ids; unknown ones are items without events and categories.
            times: (N,) seconds. labels: (N,) 0, 1, or -1 for an event without a label. values: (N,) graded values, NaN where unknown.

        Raises:
            ValueError: lengths that differ, a time before the last event's, another label. Nothing is added then.
        """
        values = [math.nan] * len(items) if values is None else values
        lengths = {"items": len(items), "times": len(times), "labels": len(labels), "values": len(values)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the events differ in length: {lengths}")
        last = self._now.last
        for place, (time, label) in enumerate(zip(times, labels)):
            if last is not None and time < last:
                raise ValueError(
                    f"times[{place}] is {time}, before the event at {last}: events come in the order of time"
                )
            if label not in (0, 1, -1):
                raise ValueError(f"labels[{place}] is {label!r}, accepted: 0, 1, or -1 for an event without a label")
            last = time
        if not len(items):
            return
        moments, labelled = np.array(times, dtype=np.int64), np.array(labels, dtype=np.float64)
        labelled[labelled < 0] = np.nan
        places, graded = self.items.places(items), np.array(values, dtype=np.float64)  # None is NaN
        known = self.items.expected(places, moments)
        signals = residuals(labelled, graded, {base: mean for base, mean in known.items() if base != "count"})
        left, numbers = self._residuals_left(moments, signals), self.items.taste_numbers(places, known)
        end = int(np.searchsorted(moments, last))
        for part in (slice(0, end), slice(end, None)):
            if part.start == end and (end or last != self._now.last):
                self._before = self._now.copy()  # what is seen at the last second; no earlier one is asked for
            own = [{name: values[part] for name, values in one.items()} for one in (signals, left, numbers)]
            self._now.extend(moments[part], self._keys(items[part], places[part]), *own)
            if self._now.recent:
                self._now.meet(self.items.keys(items[part]), own[1])

    def _keys(self, items: Sequence[Any], places: np.ndarray) -> dict[str, tuple[np.ndarray, list[str]]]:
        """By column of categories the event and the category of each pair of them."""
        found = {}
        for column in self._now.cross:
            if column == ITEM:
                names = self.items.keys(items)
                events = np.flatnonzero([name != "" for name in names])
                found[column] = events, [names[event] for event in events]
            else:
                lengths, codes, names = self.items.category_pairs(column, places)
                found[column] = np.repeat(np.arange(len(places)), lengths), [names[code] for code in codes]
        return found

    def _residuals_left(self, times: np.ndarray, signals: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The residuals of events that tastes are fitted to, less the user's mean before the second of each; and which are clicks."""
        found, first = {}, np.searchsorted(times, times)
        if CLICK in self._now.recent:
            found[CLICK] = clicks(signals["label"])
        for signal in signals_left(self.reader.rows):
            sums = []
            for name, own in (
                (f"s.{signal}", np.nan_to_num(signals[signal])),
                (f"n.{base_of(signal)}", ~np.isnan(signals[base_of(signal)])),
            ):
                now, before = (state.own.at(("",), int(times[0]))[name] for state in (self._now, self._before))
                sums.append(np.where(times == self._now.last, before, now + np.append(0.0, np.cumsum(own))[first]))
            found[signal] = signals[signal] - self.reader.priors.mean(signal, *sums)
        return found

    def at(self, candidate_items: Sequence[Any], time: int) -> np.ndarray:
        """(C, F) float64 raw statistics of candidates at a second; the user's events of that very second are not seen.

        Raises:
            ValueError: a second before the last event's, or before the table of items.
        """
        state = self._now
        if state.last is not None and time <= state.last:
            if time < state.last:
                raise ValueError(f"time is {time}, before the user's last event at {state.last}")
            state = self._before
        places = self.items.places(candidate_items)
        size, prior, rows = len(places), self.reader.priors, self.reader.rows
        columns = self.items.at(places, int(time))
        own = state.user(time)
        columns |= {row.name: np.broadcast_to(finish(row, own, prior), size) for row in side_rows(rows, "user")}
        for column in self.items.categories:
            lengths, pairs, names = self.items.category_pairs(column, places)
            sums = state.crossed(column, [names[code] for code in pairs], time)
            columns |= {
                row.name: reduce_pairs(finish(row, sums, prior), lengths, row.reduce)
                for row in rows
                if row.column == column
            }
        if ITEM in state.cross:
            sums = state.crossed(ITEM, self.items.keys(candidate_items), time)
            columns |= {row.name: finish(row, sums, prior) for row in rows if row.column == ITEM}
        numbers = self.items.taste_numbers(places, self.items.latest(places))
        for row in state.tastes:
            columns[row.name] = taste(state.taste_sums[row.name], numbers[number_key(row)])
        for row in state.factors:
            events = state.recent[row.signal]
            left = prior.scaled_left(row.signal, np.array([own for _, own in events]))
            history = self.items.places([key for key, _ in events])
            columns[row.name] = self.items.factors[row.signal].scores(places, history, left)
        years = self.items.number("year", places)
        for row in rows:
            if row.aggregation == "expected":
                columns[row.name] = sum(columns[part] for part in EXPECTED_PARTS.values())
            elif row.family == "time":
                columns[row.name] = time_statistic(row, np.full(size, time), np.arange(size), years)
            elif row.family == "context":  # which the candidates tell
                columns[row.name] = np.full(size, np.nan)
        return np.column_stack([columns[row.name] for row in rows]).astype(np.float64)

    @property
    def num_bytes(self) -> int:
        """Memory of what is kept of the user, about."""
        return self._now.num_bytes + self._before.num_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"fingerprint": self.reader.fingerprint, "now": self._now.to_dict(), "before": self._before.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], reader: StatisticsReader, items: ItemStatistics) -> UserStatistics:
        """Inverse of [`to_dict`].

        Raises:
            ValueError: missing keys, the state of another reader.
        """
        missing = [key for key in ("fingerprint", "now", "before") if key not in values]
        if missing:
            raise ValueError(f"the state of the user's statistics lacks {', '.join(missing)}")
        if values["fingerprint"] != reader.fingerprint:
            raise ValueError(
                f"the state of the user's statistics was made for other statistics or priors (checksum {values['fingerprint']}) than the "
                f"reader's ({reader.fingerprint}); build it again from the user's events"
            )
        user = cls(reader, items)
        user._now, user._before = (_State.from_dict(reader.rows, values[key]) for key in ("now", "before"))
        return user


@lru_cache(maxsize=256)
def _columns(rows: tuple[Statistic, ...]) -> tuple[Any, ...]:
    """What the sums of some statistics are, the same for all users: names, bases, signals, which are counts, how they fade."""
    names, bases, by_event, by_day = [], [], [], []
    for (base, kind, half_life), signals in sums_needed(rows).items():
        for name in (f"n.{base}", *(f"s.{signal}" for signal in signals)):
            names.append(name + suffix(kind, half_life))
            bases.append(base)
            by_event.append(1 / half_life if kind == "events" else 0.0)
            by_day.append(1 / (DAY * half_life) if kind == "days" else 0.0)
    counts = np.array([name.startswith("n.") for name in names], dtype=bool)
    return names, bases, [name.split(".")[1] for name in names], counts, np.array(by_event), np.array(by_day)


@lru_cache(maxsize=256)
def _sides(rows: tuple[Statistic, ...]) -> tuple[Any, ...]:
    """What the states of all users have in common: rows of the user and of each column of categories, labels needed, tastes, factors."""
    own = tuple(side_rows(rows, "user"))
    columns = dict.fromkeys(row.column for row in rows if row.column)
    crossed = {column: tuple(row for row in rows if row.column == column) for column in columns}
    longest = max((int(row.span) for row in own if row.aggregation == "last"), default=0)
    tastes = [row for row in rows if row.aggregation == "taste"]
    return own, crossed, longest, tastes, [row for row in rows if row.of_factors]


class _Sums:
    """Sums of several keys that share their statistics: (K, J) numbers, and the second up to which each key's have faded."""

    __slots__ = (
        "bases",
        "by_day",
        "by_event",
        "counts",
        "names",
        "place",
        "signals",
        "times",
        "values",
    )  # many are kept

    def __init__(self, rows: tuple[Statistic, ...]) -> None:
        self.names, self.bases, self.signals, self.counts, self.by_event, self.by_day = _columns(rows)
        self.values, self.times = np.zeros((0, len(self.names))), np.zeros(0)
        self.place: dict[str, int] = {}

    def copy(self) -> _Sums:
        """Sums of their own; what never changes is shared."""
        twin = copy.copy(self)
        twin.values, twin.times, twin.place = self.values.copy(), self.times.copy(), dict(self.place)
        return twin

    @property
    def num_bytes(self) -> int:
        return sum(map(size_of, (self, self.values, self.times, self.place)))

    def extend(
        self, events: np.ndarray, keys: Sequence[str], times: np.ndarray, signals: Mapping[str, np.ndarray]
    ) -> None:
        """Events (N,) in the order of time: one pair (P,) of event and key for each key that an event counts under, in the order of events."""
        if not len(keys):
            return
        for key in keys:
            self.place.setdefault(key, len(self.place))
        new = len(self.place) - len(self.times)
        self.values = np.vstack([self.values, np.zeros((new, len(self.names)))])
        place = np.array([self.place[key] for key in keys])
        order = np.argsort(place, kind="stable")
        place, events = place[order], events[order]
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        ends = np.append(starts[1:], len(place)) - 1
        own, last = place[starts], times[events[ends]]
        self.times = np.append(self.times, np.zeros(new))
        earlier, self.times[own] = self.times[own], last
        group = np.repeat(np.arange(len(own)), ends - starts + 1)
        shape = (len(self.names), len(times))
        known = ~np.isnan(np.array([signals[base] for base in self.bases]).reshape(shape).T)[events]
        count = known.cumsum(0)
        later = count[ends][group] - count  # events that count for a sum and come after this one
        counted = later[starts] + known[starts]
        ones = np.ones(len(times))
        given = np.array([ones if n else signals[s] for n, s in zip(self.counts, self.signals)]).reshape(shape).T
        weights = np.exp2(-(later * self.by_event + (last[group] - times[events])[:, None] * self.by_day))
        added = np.add.reduceat(np.where(known, given[events], 0.0) * weights, starts)
        kept = np.exp2(-(counted * self.by_event + (last - earlier)[:, None] * self.by_day))
        self.values[own] = self.values[own] * kept + added

    def at(self, keys: Sequence[str], time: int) -> dict[str, np.ndarray]:
        """Name -> (len(keys),) sums at a second, 0 for a key without events, and the seconds `since_last`, NaN for such a key."""
        places = np.array([self.place.get(key, -1) for key in keys], dtype=np.int64)
        values = np.vstack([self.values, np.zeros(len(self.names))])[places]
        passed = time - np.append(self.times, float(time))[places]
        sums = dict(zip(self.names, (values * np.exp2(-passed[:, None] * self.by_day)).T))
        return sums | {"since_last": np.where(places < 0, np.nan, passed)}


class _State:
    """Everything of one user before some second."""

    def __init__(self, rows: Sequence[Statistic]) -> None:
        own, crossed, self.longest, self.tastes, self.factors = _sides(tuple(rows))
        self.own, self.cross = _Sums(own), {column: _Sums(those) for column, those in crossed.items()}
        self.labels: list[float] = []  # the last, oldest first
        self.first: int | None = None
        self.last: int | None = None
        self.session = [0.0, 0.0, 0.0]  # events, labels, their sum
        self.taste_sums = {row.name: [0.0, 0.0] for row in self.tastes}
        # the last items, oldest first, and the residual left of each
        self.recent: dict[str, list[tuple[str, float]]] = {row.signal: [] for row in self.factors}

    def copy(self) -> _State:
        """A state of its own; what never changes, or is replaced as a whole, is shared."""
        twin = copy.copy(self)
        twin.own, twin.cross = self.own.copy(), {column: sums.copy() for column, sums in self.cross.items()}
        twin.taste_sums, twin.recent = dict(self.taste_sums), dict(self.recent)
        return twin

    @property
    def num_bytes(self) -> int:
        parts = (self, self.labels, self.session, self.taste_sums, self.recent)
        sums = sum(part.num_bytes for part in (self.own, *self.cross.values()))
        return sum(map(size_of, parts)) + sys.getsizeof(vars(self)) + sums

    def extend(
        self,
        times: np.ndarray,
        keys: Mapping[str, tuple[np.ndarray, list[str]]],
        signals: Mapping[str, np.ndarray],
        left: Mapping[str, np.ndarray],
        numbers: Mapping[str, np.ndarray],
    ) -> None:
        """Events (N,) in the order of time; `keys`: by column the event and the category of each pair."""
        if not len(times):
            return
        for row in self.tastes:
            own, number, sums = left[row.signal], numbers[number_key(row)], self.taste_sums[row.name]
            more = (np.nansum(own * number), (number[~np.isnan(own)] ** 2).sum())
            self.taste_sums[row.name] = [total + float(one) for total, one in zip(sums, more)]
        self.own.extend(np.arange(len(times)), [""] * len(times), times, signals)
        for column, sums in self.cross.items():
            sums.extend(*keys[column], times, signals)
        labels = signals["label"][~np.isnan(signals["label"])].tolist()
        if self.longest:
            self.labels = [*self.labels, *labels][-self.longest :]
        begins = np.flatnonzero(np.diff(times, prepend=-np.inf if self.last is None else self.last) > SESSION_GAP)
        if len(begins):
            self.session = [0.0, 0.0, 0.0]
        label = signals["label"][begins[-1] if len(begins) else 0 :]
        counted = (len(label), np.sum(~np.isnan(label)), np.nansum(label))
        self.session = [total + float(one) for total, one in zip(self.session, counted)]
        self.first = int(times[0]) if self.first is None else self.first
        self.last = int(times[-1])

    def meet(self, keys: Sequence[str], left: Mapping[str, np.ndarray]) -> None:
        """The items of events (N,), of which the user's factors are made."""
        for signal, events in self.recent.items():
            more = [(key, own) for key, own in zip(keys, left[signal].tolist()) if not math.isnan(own)]
            self.recent[signal] = [*events, *more][-HISTORY:]

    def user(self, time: int) -> dict[str, np.ndarray]:
        """The state of `lmctr.statistics.states` of the user, (1,) each."""
        state = self.own.at(("",), time)
        open_session = self.last is not None and time - self.last <= SESSION_GAP
        state |= dict(
            zip(("session.events", "session.n", "session.label"), np.array(self.session)[:, None] * open_session)
        )
        for name, moment in (("since_last", self.last), ("since_first", self.first)):
            state[name] = np.array([math.nan if moment is None else float(time - moment)])
        for length in range(1, self.longest + 1):
            last = self.labels[-length:]
            state[f"last.{length}"] = np.array([sum(last) / len(last) if last else math.nan])
        return state

    def crossed(self, column: str, categories: Sequence[str], time: int) -> dict[str, np.ndarray]:
        """The same of some categories, (P,) each."""
        return self.cross[column].at(categories, time)

    def to_dict(self) -> dict[str, Any]:
        sums = {"": self.own, **self.cross}
        stored = {name: [list(s.place), s.values.tolist(), s.times.tolist()] for name, s in sums.items()}
        return {
            "sums": stored,
            "tastes": self.taste_sums,
            "recent": self.recent,
            "labels": self.labels,
            "first": self.first,
            "last": self.last,
            "session": self.session,
        }

    @classmethod
    def from_dict(cls, rows: Sequence[Statistic], values: Mapping[str, Any]) -> _State:
        state = cls(rows)
        for name, (keys, sums, times) in values["sums"].items():
            own = state.own if name == "" else state.cross[name]
            own.place = {key: place for place, key in enumerate(keys)}
            own.values = np.array(sums, dtype=np.float64).reshape(len(keys), len(own.names))
            own.times = np.array(times, dtype=np.float64)
        state.labels, state.session = list(values["labels"]), list(values["session"])
        state.first, state.last, state.taste_sums = values["first"], values["last"], dict(values["tastes"])
        # up to 0.1.0 there were none
        state.recent |= {signal: [tuple(one) for one in own] for signal, own in values.get("recent", {}).items()}
        return state
