"""The table of items at a moment: what serving and pre-computed candidates read in place of the whole log."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmctr.utils.files import as_path, replacing
from lmctr.utils.parquet import read_parquet
from lmctr.utils.progress import step
from lmctr.utils.ragged import offsets_from_lengths, ragged_arange, ragged_searchsorted
from lmctr.utils.rows import plain_id

from .events import COUNT, EventRows, Signals, described_numbers, side_means, side_rows
from .factors import CLICK, ItemFactors
from .reader import StatisticsReader
from .scan import DAY
from .states import Prior, finish, number_key, number_of, suffix, sums_needed
from .table import ITEM, category_values

FORMAT_VERSION = 1
_METADATA = b"lmctr.item_statistics"


class ItemStatistics:
    """States of all items of a catalogue at a moment, and what statistics need to know of their descriptions.

    Sums are kept as sums, with the second up to which they hold, so that the table of one moment gives the exact values of any later one
    as long as the items get no new events. Where residuals of users are wanted, the course of each item's mean is kept too (two or three
    numbers an event), so that the history of a user can be read in long after it happened.

    Args:
        reader: whose statistics. item_ids: (I,) ids of the catalogue. time: the second up to which events count, itself not.
        state: name -> (I,) sums of `lmctr.statistics.states`; `first`, `last` seconds of the item's events, NaN without.
        course: offsets (I + 1,), the seconds (T,) of the items' events, and by "label" and "value" the mean (T,) before each and (I,) at last, "count"
            likewise.
        categories: column -> codes (P,), lengths (I,) and names of the items' categories. numbers: column -> (I,), NaN where unknown.
        factors: by signal those of the items, where they are wanted.
    """

    def __init__(
        self,
        reader: StatisticsReader,
        item_ids: pa.Array,
        time: int,
        state: Mapping[str, np.ndarray],
        course: Mapping[str, np.ndarray],
        categories: Mapping[str, tuple[np.ndarray, np.ndarray, list[str]]],
        numbers: Mapping[str, np.ndarray],
        factors: Mapping[str, ItemFactors] = {},
    ) -> None:
        self.reader, self.item_ids, self.time = reader, item_ids, int(time)
        self.course, self.categories, self.numbers = dict(course), dict(categories), dict(numbers)
        self.state, self.factors = dict(state), dict(factors)
        self._is_text = not pa.types.is_integer(item_ids.type)
        self._place = {item: place for place, item in enumerate(item_ids.to_pylist())}
        self._compared: tuple[Callable[[], Any], bool] = (lambda: None, False)
        self._rows = side_rows(reader.rows, "item")
        self._category_offsets = {column: offsets_from_lengths(own[1]) for column, own in self.categories.items()}

    def __len__(self) -> int:
        return len(self.item_ids)

    @classmethod
    @step("counting statistics")
    def from_log(
        cls, log: Any, reader: StatisticsReader, time: int | None = None, *, label: np.ndarray | None = None
    ) -> ItemStatistics:
        """The table of a log.

        Args:
            log: see `lmctr.statistics.reader`. reader: whose statistics and priors.
            time: only events before this second count; default: all of them.
            label: (E,) another label than `log.label`.
        """
        events, size = EventRows.of_log(log, label), log.catalogue.num_rows
        time = int(events.time.max()) + 1 if time is None else int(time)
        before = events.time < time
        if events.real is not None:
            before &= events.real
        nothing = np.full(size, np.nan)
        looks = (np.full(size, -1), np.arange(size), np.full(size, time), nothing, nothing)
        own = (events.user, events.item, events.time, events.label, events.value)
        rows = EventRows(
            *(np.concatenate([column[before], look]) for column, look in zip(own, looks)),
            np.r_[np.ones(int(before.sum()), dtype=bool), np.zeros(size, dtype=bool)],
        )
        signals = Signals(side_means(rows, reader.rows, reader.priors))
        wanted, looking = side_rows(reader.rows, "item"), np.arange(len(rows.item) - size, len(rows.item))
        state: dict[str, np.ndarray] = {}
        for places, some in rows.states("item", signals.of_side("item", rows), wanted, looking):
            for name, values in some.items():
                state.setdefault(name, np.empty(size))[places] = values
        for since, moment in (("since_last", "last"), ("since_first", "first")):
            if since in state:
                state[moment] = time - state.pop(since)
        return cls(
            reader,
            log.catalogue["item_id"].combine_chunks(),
            time,
            state,
            _course(rows, signals.means.get("item", {}), reader.priors, size),
            {column: category_values(log.catalogue, column) for column in _columns(reader)},
            described_numbers(log.catalogue, reader.rows),
            _factors(rows, signals, reader, size),
        )

    def places(self, items: Sequence[Any]) -> np.ndarray:
        """(C,) rows of item ids, -1 for an unknown one; ids are read as [`plain_id`] does."""
        find, kind = self._place.get, str if self._is_text else int
        found = (find(item if type(item) is kind else self._plain(item), -1) for item in items)
        return np.fromiter(found, dtype=np.int64, count=len(items))

    def check(self, item: Any, where: str) -> None:
        """Raise `ValueError` that starts with `where` for what can be no id here; None, an item that was never seen, is let through."""
        if item is not None:
            plain_id(item, self._is_text, where)

    def keys(self, items: Sequence[Any]) -> list[str]:
        """One text for each way to write an item id, unknown ones too; empty for what is no id."""
        return ["" if (plain := self._plain(item)) is None else str(plain) for item in items]

    def _plain(self, item: Any) -> str | int | None:
        try:
            return plain_id(item, self._is_text, "items")
        except ValueError:
            return None

    def at(self, places: np.ndarray, time: int | np.ndarray) -> dict[str, np.ndarray]:
        """Statistic -> (C,) of these rows at a second from the table's own on, or one (C,) each; an unknown item is one without events.

        Raises:
            ValueError: an earlier second.
        """
        if (first := np.min(time, initial=self.time)) < self.time:
            raise ValueError(
                f"the item statistics hold up to second {self.time}; they cannot give those of second {first}: write a table with an "
                "earlier time, or ask for a later one"
            )
        state = {}
        for name, values in self.state.items():
            state[name] = _at(places, values, np.nan if name in ("first", "last") else 0.0)
        for since, moment in (("since_last", "last"), ("since_first", "first")):
            if moment in state:
                state[since] = time - state[moment]
        for half_life in {half_life for _, kind, half_life in sums_needed(self._rows) if kind == "days"}:
            faded = np.exp2(-(time - self.time) / (DAY * half_life))
            for name in [name for name in state if name.endswith(suffix("days", half_life))]:
                state[name] = state[name] * faded
        return {row.name: finish(row, state, self.reader.priors) for row in self._rows}

    def expected(self, places: np.ndarray, times: np.ndarray) -> dict[str, np.ndarray]:
        """The items' smoothed mean label and value (N,), and their number of labelled events as `count`, before a second each; where residuals
        of users are wanted."""
        if not self.course:
            return {}
        offsets = self.course["offsets"]
        starts, ends = _at(places, offsets[:-1], 0), _at(places, offsets[1:], 0)
        later = ragged_searchsorted(self.course["time"], times, starts, ends)
        later = np.where(later < ends, later, -1)
        return {name: _at(later, self.course[name], own) for name, own in self.latest(places).items()}

    def latest(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """[`expected`] of several items (C,) at the table's own second or later."""
        start = {"label": self.reader.prior, "value": self.reader.value_prior, "count": 0.0}
        own = {name: value for name, value in start.items() if name in self.course}
        return {name: _at(places, self.course[f"{name}_at_last"], value) for name, value in own.items()}

    def taste_numbers(self, places: np.ndarray, known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The numbers (C,) of items that users may have a taste for, standardised; `known`: see `expected`."""
        described = {name: self.number(name, places) for name in self.numbers}
        keys = dict.fromkeys(number_key(row) for row in self.reader.rows if row.aggregation == "taste")
        priors = self.reader.priors
        return {key: priors.standardised(key, number_of(key, known, known.get("count"), described)) for key in keys}

    def number(self, name: str, places: np.ndarray) -> np.ndarray:
        """(C,) numbers of a catalogue column, NaN where unknown."""
        return _at(places, self.numbers.get(name, np.zeros(0)), np.nan)

    def category_pairs(self, column: str, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """How many categories each of some items (C,) has, the codes of them all in one array, and the names of codes."""
        (codes, _, names), offsets = self.categories[column], self._category_offsets[column]
        starts = _at(places, offsets[:-1], 0)
        lengths = _at(places, offsets[1:], 0) - starts
        return lengths, codes[ragged_arange(starts, lengths)], names

    @cached_property
    def described(self) -> str:
        """Checksum of the items' categories and numbers, which users' counts go by; empty where no statistic reads any."""
        if not (self.categories or self.numbers):
            return ""
        digest = hashlib.blake2b(repr(self.item_ids.to_pylist()).encode(), digest_size=8)
        for column, (codes, lengths, names) in sorted(self.categories.items()):
            for part in (repr((column, list(names))).encode(), codes.astype(np.int64), lengths.astype(np.int64)):
                digest.update(part)
        for name, values in sorted(self.numbers.items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(values, dtype=np.float64))
        return digest.hexdigest()

    def describes_as(self, earlier: ItemStatistics) -> bool:
        """Whether the items of an earlier table that are in this one have the categories and numbers that they had there. Kept for the last table
        asked about: a server asks once for each user."""
        known, alike = self._compared
        if known() is not earlier:
            alike = self is earlier or self._describes_as(earlier)
            self._compared = weakref.ref(earlier), alike
        return alike

    def _describes_as(self, earlier: ItemStatistics) -> bool:
        if self.categories.keys() != earlier.categories.keys() or self.numbers.keys() != earlier.numbers.keys():
            return False
        places = self.places(earlier.item_ids.to_pylist())
        before, places = np.flatnonzero(places >= 0), places[places >= 0]
        for column in self.categories:
            now, then = (table.category_pairs(column, own) for table, own in ((self, places), (earlier, before)))
            if not np.array_equal(now[0], then[0]):
                return False
            if not np.array_equal(*(np.array([*names, ""], dtype=object)[codes] for _, codes, names in (now, then))):
                return False
        pairs = ((self.number(name, places), earlier.number(name, before)) for name in self.numbers)
        return all(np.array_equal(*pair, equal_nan=True) for pair in pairs)

    @property
    def num_told(self) -> int:
        """Seconds of events that the table tells one by one, with the label (or what it is a part of) of each: those of the courses."""
        return len(self.course.get("time", ()))

    def coarse(self, every: int) -> ItemStatistics:
        """The table with every n-th step of each item's course only, for who must not know when each event was and what it said. A moment gets
        the means of the step at or before it: never of later events, but of up to n fewer ones. What holds at the end stays exact.

        Raises:
            ValueError: `every` below 2.
        """
        if isinstance(every, bool) or not isinstance(every, int) or every < 2:
            raise ValueError(f"every: got {every!r}, accepted: a whole number from 2; 1 would change nothing")
        if not self.course:
            return self
        offsets = np.asarray(self.course["offsets"])
        lengths = np.diff(offsets)
        item = np.repeat(np.arange(len(self)), lengths)
        kept = np.flatnonzero((np.arange(len(item)) - offsets[item]) % every == 0)
        is_last = np.append(item[kept][1:] != item[kept][:-1], True)[: len(kept)]
        # the last second of which a step is read
        until = np.where(is_last, offsets[item[kept] + 1] - 1, np.roll(kept, -1))
        course = {"offsets": offsets_from_lengths(np.bincount(item[kept], minlength=len(self)))}
        for name, values in self.course.items():
            if name != "offsets":
                course[name] = values if name.endswith("_at_last") else values[until if name == "time" else kept]
        known = (self.categories, self.numbers, self.factors)
        return ItemStatistics(self.reader, self.item_ids, self.time, self.state, course, *known)

    def save(self, path: str | Path) -> None:
        """Write the table as Parquet, one row an item."""
        offsets = pa.array(self.course["offsets"], pa.int64()) if self.course else None
        columns: dict[str, Any] = {"item_id": self.item_ids} | {name: pa.array(x) for name, x in self.state.items()}
        for name, values in self.course.items():
            if name != "offsets":
                listed = not name.endswith("_at_last")
                columns[f"course.{name}"] = (
                    pa.LargeListArray.from_arrays(offsets, pa.array(values)) if listed else pa.array(values)
                )
        for column, (codes, lengths, names) in self.categories.items():
            values = pa.array(np.asarray(names, dtype=object)[codes] if len(codes) else [], pa.string())
            columns[f"category.{column}"] = pa.ListArray.from_arrays(
                pa.array(offsets_from_lengths(lengths), pa.int32()), values
            )
        columns |= {f"number.{name}": pa.array(own) for name, own in self.numbers.items()}
        for signal, own in self.factors.items():
            columns[f"factors.{signal}"] = pa.FixedSizeListArray.from_arrays(own.factors.ravel(), own.factors.shape[1])
        facts = {
            "version": FORMAT_VERSION,
            "time": self.time,
            "reader": self.reader.to_dict(),
            "fingerprint": self.reader.fingerprint,
        }
        table = pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(facts).encode()})
        with replacing(as_path(path, "path")) as temporary:
            pq.write_table(table, temporary)

    @classmethod
    def load(cls, path: str | Path, reader: StatisticsReader | None = None) -> ItemStatistics:
        """Read a table.

        Args:
            reader: the reader that the statistics are for; default: the one that the table was written with.

        Raises:
            FileNotFoundError, ValueError: no such table; one of another version, or of a reader with other statistics or priors.
        """
        path = as_path(path, "path")
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no table of item statistics; lmctr data statistics writes one")
        table = read_parquet(path)
        facts = json.loads((table.schema.metadata or {}).get(_METADATA, b"{}"))
        if facts.get("version") != FORMAT_VERSION:
            raise ValueError(
                f"{path}: item statistics of version {facts.get('version')}, accepted: {FORMAT_VERSION}; write it again with lmctr data statistics"
            )
        reader = StatisticsReader.from_dict(facts["reader"]) if reader is None else reader
        if reader.fingerprint != facts["fingerprint"]:
            raise ValueError(
                f"{path}: written for other statistics or priors (checksum {facts['fingerprint']}) than the model's ({reader.fingerprint}); "
                "write it again with lmctr data statistics RUN"
            )
        state, course, categories, numbers, factors = {}, {}, {}, {}, {}
        for name in table.column_names:
            column = table[name].combine_chunks()
            kind, _, rest = name.partition(".")
            if kind == "category":
                categories[rest] = category_values(pa.table({rest: column}), rest)
            elif kind == "course" and pa.types.is_large_list(column.type):
                course["offsets"] = column.offsets.to_numpy()
                course[rest] = column.flatten().to_numpy()
            elif kind == "course":
                course[rest] = column.to_numpy()
            elif kind == "number":
                numbers[rest] = column.to_numpy(zero_copy_only=False)
            elif kind == "factors":
                factors[rest] = ItemFactors(column.flatten().to_numpy().reshape(len(column), -1), rest == CLICK)
            elif name != "item_id":
                state[name] = column.to_numpy(zero_copy_only=False)
        ids = table["item_id"].combine_chunks()
        return cls(reader, ids, facts["time"], state, course, categories, numbers, factors)


def _at(places: np.ndarray, values: np.ndarray, otherwise: Any) -> np.ndarray:
    """The values of rows, and another where there is none: at places below 0. Nothing is done for each row of the table."""
    if not len(values):
        return np.broadcast_to(otherwise, places.shape)
    return np.where(places >= 0, values[places], otherwise)


def _columns(reader: StatisticsReader) -> list[str]:
    return list(dict.fromkeys(row.column for row in reader.rows if row.column not in ("", ITEM)))


def _factors(rows: EventRows, signals: Signals, reader: StatisticsReader, size: int) -> dict[str, ItemFactors]:
    """By signal those of all items; the last rows only look."""
    left = signals.residuals_left(rows, [row for row in reader.rows if row.of_factors], reader.priors)
    own = [column[:-size] for column in (rows.user, rows.item, rows.time)]
    return {
        signal: ItemFactors.of_events(*own, reader.priors.scaled_left(signal, values[:-size]), size, signal == CLICK)
        for signal, values in left.items()
    }


def _course(rows: EventRows, expected: Mapping[str, np.ndarray], prior: Prior, size: int) -> dict[str, np.ndarray]:
    """The course of the items' means, one entry per item and second with events; nothing where none is wanted of users."""
    if not expected:
        return {}
    (count,) = rows.columns("item", {"label": rows.label}, [COUNT], prior)
    num_events = len(rows.item) - size
    order = np.lexsort((rows.time[:num_events], rows.item[:num_events]))
    item, time = rows.item[order], rows.time[order]
    first = np.r_[True, (item[1:] != item[:-1]) | (time[1:] != time[:-1])][: len(order)]
    order = order[first]
    course = {"offsets": offsets_from_lengths(np.bincount(item[first], minlength=size)), "time": time[first]}
    for name, values in {**expected, "count": count}.items():
        course |= {name: values[order], f"{name}_at_last": values[num_events:]}
    return course
