"""Sources of tables: streams of rows that know their label, fields, parts and origin. See [`lmctr.data.tables.load`]."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.data.features.columns import Rows, group_codes
from lmctr.data.features.times import seconds_of, time_kind
from lmctr.data.in_memory import arrow_tables
from lmctr.data.logs.log import DatasetInfo
from lmctr.data.logs.splits import PARTS, check_fractions, time_cuts
from lmctr.data.reading import parquet_files
from lmctr.statistics import StatisticsReader
from lmctr.utils.progress import over

from .arrays import array_of
from .reading import stream_file

_BATCH = 1 << 17  # rows of a table in memory handled at a time
RULES = ("given", "random", "rows", "time", "group")

Reader = Callable[[Mapping[str, str] | None], Iterator[Rows]]


@dataclass(frozen=True)
class SplitRule:
    """How rows without a given part are split.

    Args:
        rule: "random" (each row by a hash of its number and the seed), "group" (each group, such as a user, likewise), "rows"
            (in the order of the rows), "time" (two cuts in the order of the time column; equal times stay together) or "given".
        fractions: shares of train, validation and test; they sum to 1.
        seed: of "random" and "group".
        boundaries: of "time", in place of fractions: the first second (unix) of validation and of test.
    """

    rule: str = "random"
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    seed: int = 0
    boundaries: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"split rule: got {self.rule!r}, accepted: {', '.join(map(repr, RULES))}.")
        object.__setattr__(self, "fractions", check_fractions(self.fractions))
        if self.boundaries is not None and (self.rule != "time" or not self.boundaries[0] <= self.boundaries[1]):
            raise ValueError(
                f"boundaries: got {self.boundaries!r} for the rule {self.rule!r}; accepted: two times in order, for the rule 'time'."
            )

    def at_random(self, keys: np.ndarray) -> np.ndarray:
        """(R,) int8 part of each row, 0 to 2, by its number or the code of its group."""
        values = _uniform(keys.astype(np.uint64), self.seed)
        return np.searchsorted(np.cumsum(self.fractions[:2]), values, side="right").astype(np.int8)


@dataclass(frozen=True)
class Piece:
    """One stream of a source: a file, a table or a data set.

    Args:
        read: gives the rows anew at every call; takes the columns to read (see [`stream_file`]), None for all.
        part: "train", "validation" or "test"; None leaves it to the source's split rule.
        fingerprint: gives a text that changes with the content.
        rule: split rule of this piece alone, such as a validation share cut from the training file.
        unmet: says of a label column whose rule no value follows what values it has; else no words.
    """

    read: Reader
    fingerprint: Callable[[], str]
    part: str | None = None
    rule: SplitRule | None = None
    unmet: Callable[[str], str] = lambda column: ""


def file_piece(
    path: str | os.PathLike, part: str | None = None, rule: SplitRule | None = None, **options: Any
) -> Piece:
    """A file as a piece; `options` as in [`stream_file`]."""
    path = Path(path)
    return Piece(lambda columns: stream_file(path, columns, **options), lambda: file_fingerprint(path), part, rule)


def table_piece(data: Any, part: str | None = None, rule: SplitRule | None = None) -> Piece:
    """A table in memory or a `datasets` Dataset or IterableDataset as a piece."""
    return Piece(lambda columns: rows_of(data, columns), lambda: _data_fingerprint(data), part, rule)


@dataclass(frozen=True, eq=False)
class TableSource:
    """A table to learn from: rows in a stream, and what is known about them.

    Args:
        pieces: the streams, in the order of the rows.
        fields: the default fields, as [`TabularFeatureProcessor`] takes them.
        label: label column, or None for rows to score. extra_labels: further ones, for models with several tasks.
        group: column of the grouped AUC, such as the user, or None.
        time: time column (unix seconds, timestamps or ISO texts), or None. time_format: of other texts, or the unit of numbers: ms, us, ns.
        weight: column of sample weights, or None.
        reading: how text files are written, where not as usual: `decimal`, `na_values`, `names` (see [`stream_file`]); None: as usual.
        joined: files whose columns the pieces' rows have besides their own, which rows to score lack (see [`~lmctr.data.tables.joined.Joined`]).
        split: rule for pieces without a part.
        info: origin, licence, counts, label rule.
        published_split: whether the rows are parted as a published benchmark parts them, at random though they have a time.
        merges_validation: whether the rows of validation belong to training, see [`with_validation`].
        statistics_reader: what gave columns that count earlier events of a log, or None.
    """

    pieces: tuple[Piece, ...]
    fields: tuple[dict[str, Any], ...] = ()
    label: str | None = "label"
    extra_labels: tuple[str, ...] = ()
    group: str | None = None
    time: str | None = None
    time_format: str | None = None
    weight: str | None = None
    reading: Mapping[str, Any] | None = None
    joined: tuple[Any, ...] = ()
    split: SplitRule = field(default_factory=SplitRule)
    info: DatasetInfo = field(default_factory=DatasetInfo)
    statistics_reader: StatisticsReader | None = None
    merges_validation: bool = False
    published_split: bool = False
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.pieces:
            raise ValueError("TableSource: no pieces; a source needs one stream of rows at least.")
        for piece in self.pieces:
            if piece.part is not None and piece.part not in PARTS:
                raise ValueError(f"part: got {piece.part!r}, accepted: {', '.join(PARTS)}.")
            rule = piece.rule or self.split
            if piece.part is None:
                if rule.rule == "given":
                    raise ValueError("split rule 'given': a piece does not say which part it is.")
                if rule.rule in ("group", "time") and getattr(self, rule.rule) is None:
                    raise ValueError(
                        f"split rule {rule.rule!r} needs a {rule.rule} column; name it as {rule.rule}=..."
                    )

    def with_validation(self) -> TableSource:
        """The same rows, those of validation being training rows: what a model is trained on again."""
        return replace(self, merges_validation=True, _cache={})

    def special_columns(self) -> dict[str, str]:
        """Columns beside the fields, with what they hold."""
        kinds = dict.fromkeys((self.label, *self.extra_labels), "number") | {self.group: "text", self.weight: "number"}
        kinds[self.time] = time_kind(self.time_format)
        return {name: kind for name, kind in kinds.items() if name is not None}

    def unmet_rule(self, column: str) -> str:
        """Words on a label column whose rule no value of any piece follows; else none."""
        words = [piece.unmet(column) for piece in self.pieces]
        return words[0] if all(words) else ""

    def rows(self, columns: Mapping[str, str] | None = None, part: str | None = None) -> Iterator[Rows]:
        """The rows in a stream.

        Args:
            columns: columns to read, with what they hold ("text", "number", "any"); None reads all.
            part: only the rows of this part; None gives all, with their part in `Rows.split`.
        """
        if part is not None and part not in PARTS:
            raise ValueError(f"part: got {part!r}, accepted: {', '.join(PARTS)}.")
        for piece in self.pieces:
            own = "train" if self.merges_validation and piece.part == "validation" else piece.part
            if part is not None and own not in (None, part):
                continue
            rule = None if piece.part is not None else (piece.rule or self.split)
            needed = {"group": self.group, "time": self.time}.get(rule.rule) if rule else None
            wanted = columns
            if columns is not None and needed is not None and needed not in columns:
                wanted = dict(columns) | {needed: self.special_columns()[needed]}
            start = 0
            for rows in piece.read(wanted):
                codes = self._codes(piece, rule, rows, start)
                if self.merges_validation:
                    codes = np.where(codes == PARTS.index("validation"), np.int8(0), codes)
                start += len(rows)
                rows = Rows(rows.table, rows.source, rows.first, codes, rows.numbers)
                if part is not None:
                    rows = rows.take(codes == PARTS.index(part))
                if len(rows):
                    yield rows

    def _codes(self, piece: Piece, rule: SplitRule | None, rows: Rows, start: int) -> np.ndarray:
        if rule is None:
            return np.full(len(rows), PARTS.index(piece.part), dtype=np.int8)
        numbers = np.arange(start, start + len(rows))
        shares = np.cumsum(rule.fractions[:2])
        if rule.rule == "rows":
            values, cuts = numbers, np.floor(shares * self._num_rows(piece) + 1e-9)
        elif rule.rule == "time":
            values, cuts = seconds_of(rows, self.time, self.time_format), self._time_cuts(piece, rule)
        else:
            return rule.at_random(numbers if rule.rule == "random" else group_codes(rows, self.group))
        return np.searchsorted(cuts, values, side="right").astype(np.int8)

    def _piece_columns(self, piece: Piece, name: str | None) -> Iterator[Rows]:
        return piece.read(None if name is None else {name: self.special_columns()[name]})

    def _num_rows(self, piece: Piece) -> int:
        """The number of rows of a piece, counted once over one column."""
        key = ("rows", id(piece))
        if key not in self._cache:
            stream = self._piece_columns(piece, self.label or self.group or self.time)
            self._cache[key] = sum(len(rows) for rows in stream)
        return self._cache[key]

    def _time_cuts(self, piece: Piece, rule: SplitRule) -> np.ndarray:
        """The first second of validation and of test, found once over all times of a piece."""
        if rule.boundaries is not None:
            return np.array(rule.boundaries)
        key = ("cuts", id(piece))
        if key not in self._cache:
            stream = self._piece_columns(piece, self.time)
            times = np.sort(np.concatenate([seconds_of(rows, self.time, self.time_format) for rows in stream]))
            cuts = time_cuts(times, rule.fractions)
            self._cache[key] = np.array([times[cut] if cut < len(times) else times[-1] + 1 for cut in cuts])
        return self._cache[key]

    @property
    def fingerprint(self) -> str:
        """Hex string over the content as it is now, the parts and the special columns; of another content, what was counted is forgotten."""
        digest = hashlib.sha256(repr((self.special_columns(), self.time_format)).encode())
        if self.merges_validation:
            digest.update(b"with validation")
        for piece in self.pieces:
            rule = None if piece.part else (piece.rule or self.split)
            digest.update(repr((piece.part, rule, piece.fingerprint())).encode())
        if self._cache.get("fingerprint") != digest.hexdigest():
            self._cache.clear()
            self._cache["fingerprint"] = digest.hexdigest()
        return self._cache["fingerprint"]


def _uniform(keys: np.ndarray, seed: int) -> np.ndarray:
    """Numbers in [0, 1) from whole numbers: SplitMix64 of key and seed."""
    with np.errstate(over="ignore"):
        x = keys * np.uint64(0x9E3779B97F4A7C15) + np.uint64((2 * seed + 1) * 0xD1342543DE82EF95 % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def watched(stream: Iterator[Rows], what: str, progress: bool) -> Iterator[Rows]:
    """The stream itself, with progress shown by its rows."""
    return over(stream, what, "rows", count=len, show=progress)


def rows_of(
    data: Any,
    columns: Mapping[str, str] | None = None,
    part: str | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Iterator[Rows]:
    """Rows of anything that holds a table.

    Args:
        data: a [`TableSource`], a path of a file, [`Rows`], or what [`~lmctr.data.in_memory.arrow_tables`] takes.
        columns: columns to read, with what they hold; None reads all.
        part: only the rows of this part, for a [`TableSource`].
        reading: of a path, how a text file is written: `decimal`, `na_values`, `names`.

    Raises:
        ValueError: no rows, missing or duplicate columns.
    """
    if isinstance(data, TableSource):
        yield from data.rows(columns, part)
        return
    if isinstance(data, Rows):
        yield data
        return
    if isinstance(data, (str, os.PathLike)):
        yield from stream_file(data, columns, **(reading or {}))
        return
    first, kinds = 1, columns or {}
    arrays = lambda own, name: array_of(own, name, kinds.get(name))  # noqa: E731
    for table in arrow_tables(data, columns, "data", arrays, ", the path of a file"):
        for start in range(0, table.num_rows, _BATCH):
            part_of = table.slice(start, _BATCH)
            yield Rows(part_of, None, first)
            first += part_of.num_rows
    if first == 1:
        raise ValueError("data: the table has no rows.")


def file_fingerprint(path: Path) -> str:
    """Size and content of a file; of one beyond 64 MiB, size, time of change and 64 blocks of 1 MiB spread over it. Of a folder, those of its
    Parquet files."""
    if path.is_dir():
        files = [*parquet_files(path)]
        parts = [own for file in files if (own := file.parent.relative_to(path).as_posix()) != "."]
        return hashlib.blake2b(repr([*map(file_fingerprint, files), *parts]).encode(), digest_size=16).hexdigest()
    stat = path.stat()
    digest = hashlib.blake2b(repr((path.name, stat.st_size)).encode(), digest_size=16)
    block, count = 1 << 20, -(-stat.st_size // (1 << 20))
    if count > 64:
        digest.update(str(stat.st_mtime_ns).encode())
    with open(path, "rb") as file:
        for index in range(count) if count <= 64 else np.linspace(0, count - 1, 64).astype(int):
            file.seek(int(index) * block)
            digest.update(file.read(block))
    return digest.hexdigest()


def _data_fingerprint(data: Any) -> str:
    """Content of a table in memory; a `datasets` Dataset has a fingerprint of its own."""
    own = getattr(data, "_fingerprint", None)
    if isinstance(own, str):
        return own
    digest = hashlib.blake2b(digest_size=16)
    for rows in rows_of(data):
        for name in rows.table.schema.names:
            digest.update(name.encode())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.table.schema) as writer:
            writer.write_table(rows.whole.combine_chunks())
        digest.update(sink.getvalue())
    return digest.hexdigest()
