"""What users did, kept so that the statistics of candidates follow at once: for serving."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from lmctr.utils.measure import size_of
from lmctr.utils.ragged import offsets_from_lengths, ragged_arange

from .events import EXPECTED_PARTS, clicks, reduce_pairs, residuals, side_rows, signals_left, time_statistic
from .factors import CLICK, HISTORY
from .items import ItemStatistics
from .reader import StatisticsReader
from .scan import DAY, scan
from .states import SESSION_GAP, base_of, finish, number_key, suffix, sums_needed, taste
from .table import ITEM, Statistic, statistic

Events = tuple[Sequence[Any], Sequence[int], Sequence[int], Sequence[float] | None]
"""Of one user, in the order of time: ids of items, seconds, labels (0, 1, or -1 for none), graded values (NaN where unknown; None: all of them)."""


class UserStatistics:
    """The state of one user: exactly what the reader counts of the user's events in a log, but event by event.

    What many users did is counted at once by [`extend_many`] and [`at_many`], with the same values to the bit.

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
        self.reader, self._items = reader, items
        self._now = _State(_kept(reader.names))
        self._before = self._now.copy()  # the events of the last second left out

    @property
    def items(self) -> ItemStatistics:
        """The table of items."""
        return self._items

    @items.setter
    def items(self, table: ItemStatistics) -> None:
        self._items = table
        for state in (self._now, self._before):
            state.moved()

    def __copy__(self) -> UserStatistics:
        """The same user, who goes on by itself; reader and table are the same objects."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, _now=self._now.copy(), _before=self._before.copy())
        return twin

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
        self.extend_many([self], [(items, times, labels, values)])

    def at(self, candidate_items: Sequence[Any], time: int) -> np.ndarray:
        """(C, F) float64 raw statistics of candidates at a second; the user's events of that very second are not seen.

        Raises:
            ValueError: a second before the last event's, or before the table of items.
        """
        return self.at_many([self], [candidate_items], [time])

    @staticmethod
    def extend_many(users: Sequence[UserStatistics], events: Sequence[Events]) -> None:
        """[`extend`] each of several users, all different, of one reader and table.

        Raises:
            ValueError: as [`extend`]; nothing is added then.
        """
        events = [_checked(user, *own) for user, own in zip(users, events, strict=True)]
        some = [place for place, own in enumerate(events) if len(own[0])]
        if not some:
            return
        users, events = [users[place] for place in some], [events[place] for place in some]
        table, kept = users[0].items, _kept(users[0].reader.names)
        items, times, labels, values = (list(chain.from_iterable(column)) for column in zip(*events))
        moments, labelled = np.array(times, dtype=np.int64), np.array(labels, dtype=np.float64)
        labelled[labelled < 0] = np.nan
        places, graded = table.places(items), np.array(values, dtype=np.float64)  # None is NaN
        known = table.expected(places, moments)
        signals = residuals(labelled, graded, {base: mean for base, mean in known.items() if base != "count"})
        lengths = np.array([len(own[0]) for own in events])
        owner, ends = np.repeat(np.arange(len(users)), lengths), np.cumsum(lengths)
        left = _residuals_left(users, kept, owner, moments, signals)
        numbers = table.taste_numbers(places, known)
        last = moments[ends - 1]
        is_last = moments == last[owner]
        for part, those in ((~is_last, np.unique(owner[~is_last])), (is_last, np.arange(len(users)))):
            if part is is_last:  # what is seen at the last second; no earlier one is asked for
                for user, moment in zip(users, last.tolist()):
                    if user._now.last != moment:
                        user._before = user._now.copy()
            chosen = np.flatnonzero(part)
            if not len(chosen):
                continue
            own = [{name: column[chosen] for name, column in one.items()} for one in (signals, left, numbers)]
            those = [users[place]._now for place in those.tolist()]
            met = [items[place] for place in chosen.tolist()]
            counted = np.bincount(owner[chosen], minlength=len(users))
            _State.extend(those, kept, table, counted[counted > 0], met, places[chosen], moments[chosen], *own)

    @staticmethod
    def at_many(
        users: Sequence[UserStatistics], candidate_items: Sequence[Sequence[Any]], times: Sequence[int]
    ) -> np.ndarray:
        """[`at`] of several users of one reader and table, one below the other; a user may come several times.

        Raises:
            ValueError: as [`at`].
        """
        reader, table = users[0].reader, users[0].items
        kept, rows, prior = _kept(reader.names), reader.rows, reader.priors
        states = [user._seen(time) for user, time in zip(users, times, strict=True)]
        sizes = [len(own) for own in candidate_items]
        owner, asked = np.repeat(np.arange(len(users)), sizes), list(chain.from_iterable(candidate_items))
        at = np.array(times, dtype=np.float64)
        places, moments = table.places(asked), at[owner]
        columns = table.at(places, moments.astype(np.int64))
        own = _of_users(states, kept, at)
        columns |= {row.name: finish(row, own, prior)[owner] for row in kept.own_rows}
        for column in table.categories:
            lengths, pairs, names = table.category_pairs(column, places)
            of_pairs = np.repeat(owner, lengths)
            keys = [names[code] for code in pairs.tolist()]
            sums = _Sums.at([state.cross[column] for state in states], kept.cross[column], of_pairs, keys, at)
            columns |= {
                row.name: reduce_pairs(finish(row, sums, prior), lengths, row.reduce)
                for row in rows
                if row.column == column
            }
        if ITEM in kept.cross:
            sums = _Sums.at([state.cross[ITEM] for state in states], kept.cross[ITEM], owner, table.keys(asked), at)
            columns |= {row.name: finish(row, sums, prior) for row in rows if row.column == ITEM}
        numbers = table.taste_numbers(places, table.latest(places)) if kept.tastes else {}
        for row in kept.tastes:
            sums = np.array([state.taste_sums[row.name] for state in states]).T[:, owner]
            columns[row.name] = taste(sums, numbers[number_key(row)])
        for row in kept.factors:
            met = [state.met(row.signal, table) for state in states]
            left = [prior.scaled_left(row.signal, one.left) for one in met]
            asked_of = np.split(places, np.cumsum(sizes)[:-1])
            columns[row.name] = table.factors[row.signal].scores(asked_of, [one.places for one in met], left)
        years = table.number("year", places)
        for row in rows:
            if row.aggregation == "expected":
                columns[row.name] = sum(columns[part] for part in EXPECTED_PARTS.values())
            elif row.family == "time":
                columns[row.name] = time_statistic(row, moments, np.arange(len(places)), years)
            elif row.family == "context":  # which the candidates tell
                columns[row.name] = np.full(len(places), np.nan)
        return np.column_stack([columns[row.name] for row in rows]).astype(np.float64, copy=False)

    def _seen(self, time: int) -> _State:
        """What counts at a second."""
        state = self._now
        if state.last is not None and time <= state.last:
            if time < state.last:
                raise ValueError(f"time is {time}, before the user's last event at {state.last}")
            state = self._before
        return state

    @property
    def num_bytes(self) -> int:
        """Memory of what is kept of the user, about."""
        return self._now.num_bytes + self._before.num_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        now, before = (state.to_dict(self.items) for state in (self._now, self._before))
        return {"fingerprint": self.reader.fingerprint, "now": now, "before": before}

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
        user._now, user._before = (_State.from_dict(_kept(reader.names), values[key]) for key in ("now", "before"))
        return user


def _checked(
    user: UserStatistics,
    items: Sequence[Any],
    times: Sequence[int],
    labels: Sequence[int],
    values: Sequence[float] | None,
) -> Events:
    """Events that may be added to a user's."""
    values = [math.nan] * len(items) if values is None else values
    lengths = {"items": len(items), "times": len(times), "labels": len(labels), "values": len(values)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the events differ in length: {lengths}")
    last = user._now.last
    for place, (time, label) in enumerate(zip(times, labels)):
        if last is not None and time < last:
            raise ValueError(f"times[{place}] is {time}, before the event at {last}: events come in the order of time")
        if label not in (0, 1, -1):
            raise ValueError(f"labels[{place}] is {label!r}, accepted: 0, 1, or -1 for an event without a label")
        last = time
    return items, times, labels, values


def _residuals_left(
    users: Sequence[UserStatistics],
    kept: _Kept,
    owner: np.ndarray,
    times: np.ndarray,
    signals: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The residuals of events that tastes are fitted to, less the user's mean before the second of each; and which are clicks."""
    found, is_new = {}, np.diff(owner, prepend=-1) > 0
    if any(row.signal == CLICK for row in kept.factors):
        found[CLICK] = clicks(signals["label"])
    for signal in kept.left:
        told = {f"s.{signal}": signals[signal], f"n.{base_of(signal)}": ~np.isnan(signals[base_of(signal)])}
        running = scan(~is_new, np.nan_to_num(np.stack(list(told.values()))))
        # Up to the second before: events of one second do not see each other.
        first = np.maximum.accumulate(np.where(is_new | (np.diff(times, prepend=-1) != 0), np.arange(len(times)), 0))
        earlier = np.where(is_new[first], 0.0, running[:, first - 1])
        places = [kept.own.names.index(name) for name in told]
        now, before = (
            np.array([state.own.values[0, places] if len(state.own.values) else (0.0, 0.0) for state in states])
            for states in ([user._now for user in users], [user._before for user in users])
        )
        last = np.array([-math.inf if user._now.last is None else user._now.last for user in users])
        sums = np.where(times == last[owner], before.T[:, owner], now.T[:, owner] + earlier)
        found[signal] = signals[signal] - users[0].reader.priors.mean(signal, *sums)
    return found


class _Columns:
    """What the sums of some statistics are, the same for all users: names, of what numbers of events, and how they fade.

    Attributes:
        names: (J,). given: base and signal of the different numbers, no signal where events are counted; of_given: (J,) which of them.
        bases: the different ones. base, by_event, by_day: (W,) of the different ways to fade, base as a place; of_fading: (J,) which of them.
        days: (J,) `by_day` of each. fades: whether any does.
    """

    def __init__(self, rows: Sequence[Statistic]) -> None:
        self.names: list[str] = []
        given, fading = [], []
        for (base, kind, half_life), signals in sums_needed(rows).items():
            for signal in ("", *signals):
                self.names.append((f"s.{signal}" if signal else f"n.{base}") + suffix(kind, half_life))
                given.append((base, signal))
                by_event, by_day = 1 / half_life if kind == "events" else 0.0, 0.0
                if kind == "days":
                    by_day = 1 / (DAY * half_life)
                fading.append((base, by_event, by_day))
        self.bases = list(dict.fromkeys(base for base, _ in given))
        self.given, ways = list(dict.fromkeys(given)), list(dict.fromkeys(fading))
        self.of_given = np.array([self.given.index(one) for one in given], dtype=np.int64)
        self.of_fading = np.array([ways.index(one) for one in fading], dtype=np.int64)
        self.base = np.array([self.bases.index(base) for base, _, _ in ways], dtype=np.int64)
        self.by_event, self.by_day = np.array([way[1:] for way in ways]).reshape(-1, 2).T[..., None]
        self.days = np.array([by_day for _, _, by_day in fading])
        self.fades = bool(self.by_event.any() or self.by_day.any())

    def weights(self, later: np.ndarray, passed: np.ndarray) -> np.ndarray:
        """(J, N) weights of what is `later` (B, N) events and `passed` (N,) seconds old."""
        return np.exp2(-(later[self.base] * self.by_event + passed * self.by_day))[self.of_fading]


class _Kept(NamedTuple):
    """What the states of all users have in common: statistics of the user, sums of them and by column of categories, numbers of last labels, tastes,
    factors, signals of which the residuals are left."""

    own_rows: list[Statistic]
    own: _Columns
    cross: dict[str, _Columns]
    spans: list[int]
    tastes: list[Statistic]
    factors: list[Statistic]
    left: list[str]


@lru_cache(maxsize=256)
def _kept(names: tuple[str, ...]) -> _Kept:
    rows = [statistic(name) for name in names]
    own = side_rows(rows, "user")
    cross = {
        column: [row for row in rows if row.column == column] for column in (row.column for row in rows) if column
    }
    return _Kept(
        own,
        _Columns(own),
        {column: _Columns(those) for column, those in cross.items()},
        sorted({int(row.span) for row in own if row.aggregation == "last"}),
        [row for row in rows if row.aggregation == "taste"],
        [row for row in rows if row.of_factors],
        signals_left(rows),
    )


class _Sums:
    """Sums of several keys that share their statistics: (K, J) numbers, and the second up to which each key's have faded. Arrays are never changed."""

    __slots__ = ("place", "times", "values")  # many are kept

    def __init__(self, columns: _Columns) -> None:
        self.values, self.times = np.zeros((0, len(columns.names))), np.zeros(0)
        self.place: dict[str, int] = {}

    def copy(self) -> _Sums:
        """Sums of their own."""
        twin = copy.copy(self)
        twin.place = dict(self.place)
        return twin

    @property
    def num_bytes(self) -> int:
        return sum(map(size_of, (self, self.values, self.times, self.place)))

    @staticmethod
    def extend(
        those: Sequence[_Sums],
        columns: _Columns,
        codes: np.ndarray,
        names: Sequence[str],
        events: np.ndarray,
        times: np.ndarray,
        signals: Mapping[str, np.ndarray],
    ) -> None:
        """Add events (N,) in the order of time to the sums of users (U,): one pair (P,) of event and key for each key that an event counts under,
        in the order of events. `codes` (P,): the user times the number of `names`, and the place of the key among these."""
        if not len(codes):
            return
        order = np.argsort(codes, kind="stable")
        codes, events = codes[order], events[order]
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        ends = np.append(starts[1:], len(codes)) - 1
        group = np.repeat(np.arange(len(starts)), ends - starts + 1)
        owner, keys = np.divmod(codes[starts], len(names))
        own = []
        for user, key in zip(owner.tolist(), keys.tolist()):
            place = those[user].place
            own.append(place.setdefault(names[key], len(place)))
        before, now = (
            offsets_from_lengths(np.array(sizes))
            for sizes in ([len(one.times) for one in those], [len(one.place) for one in those])
        )
        values, moments = np.zeros((now[-1], len(columns.names))), np.zeros(now[-1])
        if before[-1]:
            kept = ragged_arange(now[:-1], np.diff(before))
            values[kept] = np.concatenate([one.values for one in those])
            moments[kept] = np.concatenate([one.times for one in those])
        own = now[owner] + np.array(own)
        last, seconds = times[events[ends]], times[events]
        if len(columns.names):
            known = np.stack([~np.isnan(signals[base]) for base in columns.bases])[:, events]
            of_base = dict(zip(columns.bases, known))
            given = [np.where(of_base[b], signals[s][events], 0.0) if s else of_base[b] for b, s in columns.given]
            added, kept = np.stack(given).astype(np.float64)[columns.of_given], values[own].T
            if columns.fades:
                count = known.cumsum(1)
                later = count[:, ends][:, group] - count  # events that count for a sum and come after this one
                added *= columns.weights(later, last[group] - seconds)
                kept = kept * columns.weights(later[:, starts] + known[:, starts], last - moments[own])
            values[own] = (kept + np.add.reduceat(added, starts, axis=1)).T
        moments[own] = last
        for one, start, end in zip(those, now[:-1].tolist(), now[1:].tolist()):
            one.values, one.times = values[start:end], moments[start:end]

    @staticmethod
    def at(
        those: Sequence[_Sums], columns: _Columns, owner: np.ndarray, keys: Iterable[str], times: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Name -> (P,) sums of `owner` (P,) and one key each at the seconds (U,) of users, 0 for a key without events, and the seconds `since_last`,
        NaN for such a key."""
        own = [those[user].place.get(key, -1) for user, key in zip(owner.tolist(), keys)]
        own, start = np.array(own, dtype=np.int64), offsets_from_lengths(np.array([len(one.times) for one in those]))
        is_new = own < 0
        own = np.where(is_new, start[-1], start[owner] + own)
        values = np.concatenate([*(one.values for one in those), np.zeros((1, len(columns.names)))])[own].T
        passed = times[owner] - np.append(np.concatenate([one.times for one in those]), 0.0)[own]
        passed[is_new] = 0.0
        fades = np.flatnonzero(columns.days)
        values[fades] *= np.exp2(-passed * columns.days[fades, None])
        return dict(zip(columns.names, values)) | {"since_last": np.where(is_new, np.nan, passed)}


class _Recent(NamedTuple):
    """The last items that a user met, oldest first, the residual `left` (H,) of each, and their places (H,) in the table of items, None: not yet
    looked up."""

    items: Sequence[Any] = ()
    left: np.ndarray = np.zeros(0)
    places: np.ndarray | None = None


class _State:
    """Everything of one user before some second."""

    def __init__(self, kept: _Kept) -> None:
        self.own, self.cross = _Sums(kept.own), {column: _Sums(own) for column, own in kept.cross.items()}
        self.labels: list[float] = []  # the last, oldest first
        self.first: int | None = None
        self.last: int | None = None
        self.session = [0.0, 0.0, 0.0]  # events, labels, their sum
        self.taste_sums = {row.name: [0.0, 0.0] for row in kept.tastes}
        self.recent = {row.signal: _Recent() for row in kept.factors}

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

    @staticmethod
    def extend(
        states: Sequence[_State],
        kept: _Kept,
        table: ItemStatistics,
        lengths: np.ndarray,
        items: Sequence[Any],
        places: np.ndarray,
        times: np.ndarray,
        signals: Mapping[str, np.ndarray],
        left: Mapping[str, np.ndarray],
        numbers: Mapping[str, np.ndarray],
    ) -> None:
        """Events (N,) of several users, those of each in the order of time; `lengths` (U,), from 1 on, of each user's; the others as they are there."""
        ends = np.cumsum(lengths)
        starts, owner = ends - lengths, np.repeat(np.arange(len(states)), lengths)
        for signal in dict.fromkeys(row.signal for row in kept.tastes):
            rows, own = [row for row in kept.tastes if row.signal == signal], left[signal]
            number, known = np.stack([numbers[number_key(row)] for row in rows]), ~np.isnan(own)
            more = _totals(np.where(known, own * number, 0.0), lengths)
            squares = _totals(number[:, known] ** 2, np.bincount(owner[known], minlength=len(states)))
            for state, *both in zip(states, more.T.tolist(), squares.T.tolist()):
                for row, *one in zip(rows, *both):
                    state.taste_sums[row.name] = [
                        total + added for total, added in zip(state.taste_sums[row.name], one)
                    ]
        every = np.arange(len(times))
        _Sums.extend([state.own for state in states], kept.own, owner, ("",), every, times, signals)
        for column, sums in kept.cross.items():
            events, codes, names = _keys(table, column, items, places)
            codes = owner[events] * max(len(names), 1) + codes
            _Sums.extend([state.cross[column] for state in states], sums, codes, names, events, times, signals)
        label = signals["label"]
        is_known = ~np.isnan(label)
        previous = np.append(0, times[:-1])
        previous[starts] = [time if state.last is None else state.last for state, time in zip(states, times[starts])]
        begins = np.maximum.reduceat(np.where(times - previous > SESSION_GAP, every, -1), starts)
        begins = np.where((begins < 0) & [state.last is None for state in states], starts, begins)
        running = np.zeros((3, len(times) + 1))
        np.cumsum([np.ones(len(times)), is_known, np.where(is_known, label, 0.0)], axis=1, out=running[:, 1:])
        session = (running[:, ends] - running[:, np.where(begins < 0, starts, begins)]).T.tolist()
        last_labels = np.split(label[is_known], running[1, ends[:-1]].astype(np.int64)) if kept.spans else ()
        for state, labels in zip(states, last_labels):
            state.labels = [*state.labels, *labels[-kept.spans[-1] :].tolist()][-kept.spans[-1] :]
        for state, begin, counted, first, last in zip(
            states, begins.tolist(), session, times[starts].tolist(), times[ends - 1].tolist()
        ):
            earlier = [0.0, 0.0, 0.0] if begin >= 0 else state.session
            state.session = [total + one for total, one in zip(earlier, counted)]
            state.first, state.last = first if state.first is None else state.first, last
        for row in kept.factors:
            told = left[row.signal]
            for state, start, end in zip(states, starts.tolist(), ends.tolist()):
                state.meet(row.signal, table, items[start:end], places[start:end], told[start:end])

    def meet(
        self, signal: str, table: ItemStatistics, items: Sequence[Any], places: np.ndarray, left: np.ndarray
    ) -> None:
        """The items of events (N,), of which the user's factors are made."""
        known = np.flatnonzero(~np.isnan(left))[-HISTORY:]
        if not len(known):
            return
        before = self.met(signal, table)
        self.recent[signal] = _Recent(
            [*before.items, *(items[place] for place in known.tolist())][-HISTORY:],
            np.append(before.left, left[known])[-HISTORY:],
            np.append(before.places, places[known])[-HISTORY:],
        )

    def met(self, signal: str, table: ItemStatistics) -> _Recent:
        """The last items, with their places in the table."""
        found = self.recent[signal]
        if found.places is None:
            found = self.recent[signal] = found._replace(places=table.places(found.items))
        return found

    def moved(self) -> None:
        """The table of items is another one."""
        self.recent = {signal: own._replace(places=None) for signal, own in self.recent.items()}

    def to_dict(self, table: ItemStatistics) -> dict[str, Any]:
        sums = {"": self.own, **self.cross}
        stored = {name: [list(s.place), s.values.tolist(), s.times.tolist()] for name, s in sums.items()}
        recent = {signal: list(zip(table.keys(own.items), own.left.tolist())) for signal, own in self.recent.items()}
        return {
            "sums": stored,
            "tastes": self.taste_sums,
            "recent": recent,
            "labels": self.labels,
            "first": self.first,
            "last": self.last,
            "session": self.session,
        }

    @classmethod
    def from_dict(cls, kept: _Kept, values: Mapping[str, Any]) -> _State:
        state = cls(kept)
        for name, (keys, sums, times) in values["sums"].items():
            own = state.own if name == "" else state.cross[name]
            own.place = {key: place for place, key in enumerate(keys)}
            own.values = np.array(sums, dtype=np.float64).reshape(len(keys), own.values.shape[1])
            own.times = np.array(times, dtype=np.float64)
        state.labels, state.session = list(values["labels"]), list(values["session"])
        state.first, state.last, state.taste_sums = values["first"], values["last"], dict(values["tastes"])
        for signal, own in values.get("recent", {}).items():  # up to 0.1.0 there were none
            left = np.array([one for _, one in own], dtype=np.float64)
            state.recent[signal] = _Recent([key for key, _ in own], left)
        return state


def _of_users(states: Sequence[_State], kept: _Kept, times: np.ndarray) -> dict[str, np.ndarray]:
    """The state of `lmctr.statistics.states` of users, (U,) each, at a second each."""
    found = _Sums.at([state.own for state in states], kept.own, np.arange(len(states)), [""] * len(states), times)
    first, last = (
        np.array([math.nan if moment is None else moment for moment in own])
        for own in ([state.first for state in states], [state.last for state in states])
    )
    found |= {"since_last": times - last, "since_first": times - first}
    session = np.array([state.session for state in states]).T * (found["since_last"] <= SESSION_GAP)
    found |= dict(zip(("session.events", "session.n", "session.label"), session))
    for span in kept.spans:
        labels = [state.labels[-span:] for state in states]
        found[f"last.{span}"] = np.array([sum(own) / len(own) if own else math.nan for own in labels])
    return found


def _keys(
    table: ItemStatistics, column: str, items: Sequence[Any], places: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Sequence[str]]:
    """The event and the category (P,) of each pair of them, and the names of categories."""
    if column != ITEM:
        lengths, codes, names = table.category_pairs(column, places)
        return np.repeat(np.arange(len(places)), lengths), codes, names
    number: dict[str, int] = {}
    codes = np.array([number.setdefault(name, len(number)) if name else -1 for name in table.keys(items)])
    events = np.flatnonzero(codes >= 0)
    return events, codes[events], list(number)


def _totals(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(K, U) `np.sum` of each user's values (K, N), to the bit: reduceat begins with the first number, that with 0."""
    size, count = len(lengths), values.shape[1]
    padded = np.zeros((len(values), count + size))
    padded[:, np.arange(count) + np.repeat(np.arange(1, size + 1), lengths)] = values
    return np.add.reduceat(padded, offsets_from_lengths(lengths + 1)[:-1], axis=1)
