"""Files whose cells hold whole impressions, `N1-0 N2-1`, as MIND's behaviors.tsv: found, and written with a row for each item."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmctr.data.features.columns import Rows
from lmctr.data.logs.schema import TimeSpec
from lmctr.data.logs.times import seconds_of
from lmctr.data.reading import format_of
from lmctr.data.tables.reading import stream_file
from lmctr.utils.arrow import without_empty
from lmctr.utils.progress import over

from .base import times_in
from .forms import is_shown, place_of_shown
from .sample import FileSample

_OF_MIND = ["impression_id", "user", "time", "history", "shown"]  # whose files have no line of names
_OWN = ("item", "clicked", "event", "time")


@contextmanager
def rows_of_items(
    path: Path, reading: Mapping[str, Any], say: Callable[[str], None]
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The file and how it is read; of one whose cells hold impressions a copy for the time of the block, which is said.

    Each item that was shown has a row, with `item`, `clicked` and the other columns. The items of a column named like `history` are clicks before the user's
    first row: events one second apart in front of it, without `clicked`.

    Raises:
        ValueError: no names of columns, one that is called as these rows are, times that are none.
    """
    is_text = not path.is_dir() and format_of(path) in ("csv", "tsv")
    first = next(stream_file(path, **reading)).whole if is_text else None
    place = None if first is None else place_of_shown(first)
    if place is None:
        yield path, reading
        return
    names = first.column_names
    if reading.get("names") is None and is_shown(pa.array([names[place]])):
        if len(names) != len(_OF_MIND) or place != len(names) - 1:
            raise ValueError(
                f"{path}: impressions in column {place + 1}, and no line of names; say what the columns are: --names"
            )
        names, reading = _OF_MIND, {**reading, "names": _OF_MIND}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "rows.parquet"
        say(_Impressions(path, reading, names[place]).write(target))
        yield target, {}


class _Impressions:
    """The rows of one file. shown: the column of the impressions."""

    def __init__(self, path: Path, reading: Mapping[str, Any], shown: str):
        self.path, self.reading, self.shown = path, reading, shown
        sample = next(stream_file(path, **reading)).whole
        named, names = FileSample(path, {}, sample, 0, False), [name for name in sample.column_names if name != shown]
        self.user, self.time = (
            next((name for name in named.named(role) if name != shown), None) for role in ("user", "time")
        )
        self.history = next((name for name in names if "hist" in name.lower()), None)
        self.others = [name for name in names if name not in (self.history, self.time)]
        if taken := [name for name in self.others if name in _OWN]:
            raise ValueError(f"{path}: column {taken[0]!r} would stand there twice; give it another name")
        self.kinds = {name: "text" for name in (shown, self.history) if name}
        self.kinds |= {name: "any" for name in names if name not in self.kinds}
        self.spec = None
        if self.time is not None:
            found = times_in(sample[self.time].combine_chunks().drop_null(), True)
            self.spec = TimeSpec(column=self.time, **({} if found is None else found[1]))

    def write(self, target: Path) -> str:
        """Writes the rows as Parquet, and says what they are."""
        reads = self.history is not None and self.user is not None and self.spec is not None
        first, clicks, changed, writer = self._first_rows() if reads else {}, 0, 0, None
        for rows in self._blocks("writing"):
            table, seconds = rows.whole, self._seconds(rows)
            shown = _parts(table[self.shown])
            row, flat = pc.list_parent_indices(shown).to_numpy(), pc.list_flatten(shown)
            clicked = pc.ends_with(flat, "-1").cast(pa.int8())
            items = pc.utf8_slice_codeunits(flat, 0, -2)
            before = np.zeros(len(row), dtype=np.int64)  # how many events of the history are behind each
            if reads:
                own, behind, told, others = self._histories(table, seconds, first, rows.first)
                clicks, changed = clicks + len(own), changed + others
                row, before = np.concatenate([row, own]), np.concatenate([before, behind])
                items = pa.concat_arrays([items, told.cast(items.type)])
                clicked = pa.concat_arrays([clicked, pa.nulls(len(told), pa.int8())])
            order = np.lexsort((-before, row))
            row, before, clicked = row[order], before[order], clicked.take(pa.array(order))
            of_row = pa.array(row, mask=before > 0)  # of an event before it the user is known alone
            columns = {
                name: table[name].take(pa.array(row) if name == self.user else of_row).combine_chunks()
                for name in self.others
            }
            columns["item"] = items.take(pa.array(order))
            if seconds is not None:
                columns["time"] = pa.array(seconds[row] - before, pa.timestamp("s"))
            columns |= {
                "clicked": clicked,
                "event": pc.if_else(pc.equal(clicked, 0).fill_null(False), "skip", "click"),
            }
            found = pa.table(columns)
            writer = writer or pq.ParquetWriter(target, found.schema)
            writer.write_table(found.cast(writer.schema))
        writer.close()
        words = f"{self.path.name}: each item of the impressions in {self.shown!r} is a row"
        if reads:
            words += f"; {clicks:,} clicks of {self.history!r} stand before their user's first row, a second apart, and are no samples"
            words += f"; rows whose history is another than that row's ({changed:,}) add none" if changed else ""
        elif self.history is not None:
            words += (
                f"; {self.history!r} is left out: no column looks like the {'user' if self.user is None else 'time'}"
            )
        return words

    def _blocks(self, what: str) -> Iterator[Rows]:
        blocks = stream_file(self.path, self.kinds, **self.reading)
        return over(blocks, f"{what} {self.path.name}", "rows", count=len)

    def _seconds(self, rows: Rows) -> np.ndarray | None:
        return None if self.spec is None else seconds_of(rows.whole[self.time], self.spec, str(self.path))

    def _first_rows(self) -> dict[Any, tuple[int, int, str | None]]:
        """Of each user the time, the number and the history of the first row."""
        first: dict[Any, tuple[int, int, str | None]] = {}
        for rows in self._blocks("reading"):
            users, told = (rows.whole[name].to_pylist() for name in (self.user, self.history))
            for place, (user, time, history) in enumerate(zip(users, self._seconds(rows).tolist(), told), rows.first):
                if user not in first or time < first[user][0]:
                    first[user] = (time, place, history)
        return first

    def _histories(
        self, table: pa.Table, seconds: np.ndarray, first: Mapping[Any, tuple[int, int, str | None]], start: int
    ) -> tuple[np.ndarray, np.ndarray, pa.Array, int]:
        """Of the users whose first row stands here: the row of each event of their histories, how many stand behind it, and its item; and how many rows
        have another history than their user's first."""
        users, histories = (table[name].to_pylist() for name in (self.user, self.history))
        rows, changed = [], 0
        for place, (user, history) in enumerate(zip(users, histories)):
            if first[user][1] == start + place:
                rows.append(place)
            else:
                changed += history != first[user][2]
        lists = _parts(table[self.history].take(pa.array(rows, pa.int64())))
        parents, items = pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists)
        counts = np.bincount(parents, minlength=len(rows))
        behind = np.cumsum(counts)[parents] - np.arange(len(parents))
        return np.array(rows, dtype=np.int64)[parents], behind, items, changed


def _parts(texts: pa.ChunkedArray) -> pa.Array:
    """What blanks part, of empty texts nothing."""
    return pc.split_pattern_regex(without_empty(pc.utf8_trim_whitespace(texts.combine_chunks())), r"\s+")
