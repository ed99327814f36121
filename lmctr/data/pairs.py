"""Files of LIBSVM (svmlight) and of libffm as tables: lines of a label and `index:value` pairs, or `field:index:value` triples.

Such files name no columns, and what they become hangs on the whole file: it is read twice, in blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .amounts import number_form
from .reading import head_of, text_lines

LABEL, LIST = "label", "features"
MANY = 500
"""Different indices of pairs up to which each is a column of numbers."""
_NUMBER = number_form(words="")
_LINE = re.compile(rf"\s*{_NUMBER}(?P<pairs>(?:\s+\d+:{_NUMBER})+|(?P<triples>(?:\s+\d+:\d+:{_NUMBER})+)|)\s*(?:#.*)?")
_BLOCK = 1 << 15  # lines
_EXACT = 2**53  # whole numbers that float64 holds


class _Block(NamedTuple):
    """Some lines: their labels and numbers in the file (L,), and of all pairs the line (P,), from 0, the field (0 without), index and value."""

    labels: np.ndarray
    number: np.ndarray
    line: np.ndarray
    field: np.ndarray
    index: np.ndarray
    value: np.ndarray

    @property
    def place(self) -> np.ndarray:
        """(P,) which pair of its line each is."""
        counts = np.bincount(self.line, minlength=len(self.labels))
        return np.arange(len(self.line)) - np.repeat(np.cumsum(counts) - counts, counts)


class _Column:
    """What a file holds in one column, block by block."""

    def __init__(self) -> None:
        # the first indices, more than `MANY` at most
        self.index, self.low, self.high = np.zeros(0, np.int64), _EXACT, -1
        self.least, self.most, self.in_a_line = np.inf, -np.inf, 0

    def add(self, block: _Block, own: np.ndarray | slice) -> None:
        index, value, line = block.index[own], block.value[own], block.line[own]
        if len(index):
            self.low, self.high = min(self.low, int(index.min())), max(self.high, int(index.max()))
            self.least, self.most = min(self.least, value.min()), max(self.most, value.max())
            self.in_a_line = max(self.in_a_line, int(np.bincount(line).max()))
            if len(self.index) <= MANY:
                self.index = np.union1d(self.index, index)

    @property
    def is_one_value(self) -> bool:
        return self.least >= self.most

    def lists(self, path: Path, what: str) -> str:
        if not self.is_one_value and self.least < 0:
            raise ValueError(
                f"{path}: {what} has {'more than ' if len(self.index) > MANY else ''}{min(len(self.index), MANY)} indices and values below 0, such as "
                f"{self.least:g}; a list weighs its entries by values of at least 0. Write a table of it yourself, with the columns that you mean."
            )
        return "list" if self.is_one_value else "weighted list"


def are_pairs(path: Path) -> bool:
    """Whether the first line of a file and nine in ten of the next hold a label and pairs or triples."""
    found = [*islice(_matches(head_of(path)), 100)]
    lines = [match for match in found[:1] if match] and [match for match in found if match]
    return len(lines) >= max(1, 0.9 * len(found)) and any(match["pairs"] for match in lines)


def pairs_as_table(path: Path, folder: Path, like: Path | None = None) -> tuple[Path, str]:
    """The file as Parquet, and a line that says what its columns are.

    `label` comes first, as it stands. Of triples each field is a column `fN`: of categories where all of its values are the same, of numbers where it has
    one index, of lists where a line has several. Of pairs: where all lines have as many, of one value, and the indices at each place are a range of their
    own (fields, one-hot), a column `fN` of categories for each place; else a column `fN` of numbers for each of up to 500 indices; else one column
    `features` of lists. A number that a line has not is 0, a category none. Lists are texts: `3|17`, with values where these differ, `3:0.5|17:2`.

    Where a file is named that it is to be `like`, as a test part is of its training part, the columns are that one's; fields, and indices with a column of
    their own, that it has none of are left out, which is said.

    Raises:
        FileNotFoundError: no file of that name that it is to be like.
        ValueError: a line of another form, indices of pairs that do not ascend, values below 0 in a list, what the columns of `like` cannot hold.
    """
    is_ffm = _has_fields(path)
    if like is not None and not like.exists():
        raise FileNotFoundError(f"--like {like}: no such file")
    if like is not None and not (like.is_file() and are_pairs(like) and _has_fields(like) == is_ffm):
        form = "field:index:value triples" if is_ffm else "index:value pairs"
        raise ValueError(f"--like {like}: no file of a label and {form}, as {path.name} is")
    own = _Seen(path, is_ffm)
    seen = own if like is None else _Seen(like, is_ffm)
    layout = seen.of_fields() if is_ffm else seen.of_pairs()
    whole = own.values_are_whole and seen.values_are_whole, own.labels_are_whole
    number, label = (pa.int64() if one else pa.float64() for one in whole)
    strange = _Strange("fields" if is_ffm else "indices")
    named = [(name, number if kind == "number" else pa.string()) for name, kind in layout.columns.values()]
    schema = pa.schema([(LABEL, label), *named])
    target = folder / "rows.parquet"
    with pq.ParquetWriter(target, schema) as writer:
        for block in _blocks(path, is_ffm):
            key = layout.key(block)
            if like is not None:
                _refuse_unlike(block, key, layout, path, like)
                strange.add(block, key, layout)
            order = np.argsort(key, kind="stable")
            bounds = np.searchsorted(key[order], [(one, one + 1) for one in layout.columns]).tolist()
            columns = [pa.array(block.labels)]
            for (_, kind), ends in zip(layout.columns.values(), bounds):
                columns.append(_values(kind, block, order[slice(*ends)]))
            cast = [column.cast(one.type) for column, one in zip(columns, schema)]
            writer.write_table(pa.table(cast, schema=schema))
    lines = "field:index:value triples (libffm)" if is_ffm else "index:value pairs (LIBSVM)"
    told = layout.told if like is None else f"the columns of {like.name}, {layout.told}{strange.told}"
    return target, f"{path.name}: {own.rows:,} lines of a label and {lines}: {told}"


def _has_fields(path: Path) -> bool:
    """Whether lines hold triples."""
    return next(match for match in _matches(head_of(path)) if match and match["pairs"])["triples"] is not None


def _refuse_unlike(block: _Block, key: np.ndarray, layout: _Layout, path: Path, like: Path) -> None:
    """Raises `ValueError` for the first pair that does not go into its column."""
    counts = np.bincount(block.line, minlength=len(block.labels))
    if layout.width is not None and (counts != layout.width).any():
        line = int((counts != layout.width).argmax())
        raise ValueError(
            f"{path}: line {block.number[line]} has {counts[line]} pairs, and each of {like} has {layout.width}, one for each column"
        )
    for one, column in layout.seen.items():
        name, kind = layout.columns[one]
        own = np.flatnonzero(key == one)
        index, value = block.index[own], block.value[own]
        twice = np.diff(block.line[own], prepend=-1) == 0
        wrong, holds = {
            "category": (twice | (value != column.least), f"one index of a line, of the value {column.least:g}"),
            "number": (twice | ~np.isin(index, column.index), f"the value of the index {column.low} alone"),
            "list": (value != column.least, f"lists of indices of the value {column.least:g}"),
            "weighted list": (value < 0, "lists of indices, weighted by values of at least 0"),
        }[kind]
        if layout.width is not None:  # a range of another column
            before, after = layout.seen.get(one - 1), layout.seen.get(one + 1)
            wrong |= index <= (-1 if before is None else before.high)
            wrong |= index >= (_EXACT if after is None else after.low)
            holds += f", from {column.low} to {column.high} in {like}"
        if wrong.any():
            pair = own[wrong.argmax()]
            raise ValueError(
                f"{path}: line {block.number[block.line[pair]]}: {block.index[pair]}:{block.value[pair]:g} does not go into the column {name!r}, which "
                f"holds {holds}"
            )


class _Strange:
    """What a file has no column for."""

    def __init__(self, what: str) -> None:
        self.what, self.count, self.first = what, 0, ""

    def add(self, block: _Block, key: np.ndarray, layout: _Layout) -> None:
        places = np.flatnonzero(~np.isin(key, [*layout.columns]))
        if len(places) and not self.count:
            self.first = f"{key[places[0]]} in line {block.number[block.line[places[0]]]}"
        self.count += len(places)

    @property
    def told(self) -> str:
        return f"; {self.count:,} values of {self.what} that it has none of are left out, such as {self.first}" * bool(
            self.count
        )


class _Layout(NamedTuple):
    """What a file becomes: the `key` of each pair of a block, name and kind of the column of each key, and what is said of them; what was `seen` of each
    key that could be another's, and the `width` of all lines where the key is a pair's place."""

    key: Callable[[_Block], np.ndarray]
    columns: dict[int, tuple[str, str]]
    told: str
    seen: dict[int, _Column]
    width: int | None = None


class _Seen:
    """What a whole file holds: all of it, and by field of triples, or by place while all lines have as many pairs, that alone."""

    def __init__(self, path: Path, is_ffm: bool) -> None:
        self.path, self.rows, self.widths = path, 0, set()
        self.values_are_whole = self.labels_are_whole = True
        self.whole, parts = _Column(), {}
        for block in _blocks(path, is_ffm):
            self.rows += len(block.labels)
            self.values_are_whole &= bool((block.value == np.floor(block.value)).all())
            self.labels_are_whole &= bool((block.labels == np.floor(block.labels)).all())
            self.whole.add(block, slice(None))
            self.widths.update(np.bincount(block.line, minlength=len(block.labels)).tolist())
            if is_ffm or len(self.widths) == 1:
                key = block.field if is_ffm else block.place
                for one in np.unique(key).tolist():
                    parts.setdefault(one, _Column()).add(block, key == one)
        self.parts: dict[int, _Column] = dict(sorted(parts.items()))

    def of_fields(self) -> _Layout:
        columns = {}
        for field, own in self.parts.items():
            if own.in_a_line == 1 and own.is_one_value:
                kind = "category"
            elif own.in_a_line == 1 and len(own.index) == 1:
                kind = "number"
            else:
                kind = own.lists(self.path, f"field {field}")
            columns[field] = f"f{field}", kind
        return _Layout(lambda block: block.field, columns, "a column for each field", self.parts)

    def of_pairs(self) -> _Layout:
        ranges = [(own.low, own.high) for own in self.parts.values()]
        are_fields = len(self.widths) == 1 and all(one[1] < other[0] for one, other in pairwise(ranges))
        if are_fields and self.whole.is_one_value:
            columns = {place: (f"f{place + 1}", "category") for place in self.parts}
            told = "a column of categories for each place of a line"
            return _Layout(lambda block: block.place, columns, told, self.parts, len(columns))
        if len(self.whole.index) <= MANY:
            columns = {index: (f"f{index}", "number") for index in self.whole.index.tolist()}
            told = "a column of numbers for each index, 0 where a line has none"
            return _Layout(lambda block: block.index, columns, told, {})
        columns = {0: (LIST, self.whole.lists(self.path, "the file"))}
        return _Layout(lambda block: block.field, columns, f"one column of lists, {LIST!r}", {0: self.whole})


def _values(kind: str, block: _Block, own: np.ndarray) -> pa.Array:
    """A column of the block's lines from those pairs that are its own."""
    line, size = block.line[own], len(block.labels)
    if kind == "number":
        values = np.zeros(size)
        values[line] = block.value[own]
        return pa.array(values)
    texts = pa.array(block.index[own]).cast(pa.string())
    if kind == "weighted list":
        texts = pc.binary_join_element_wise(texts, pa.array(block.value[own]).cast(pa.string()), ":")
    ends = np.cumsum(np.bincount(line, minlength=size))
    lists = pa.ListArray.from_arrays(pa.array(np.r_[0, ends], pa.int32()), texts)
    joined = pc.binary_join(lists, "|")
    return pc.if_else(pc.equal(joined, ""), pa.scalar(None, pa.string()), joined)


def _matches(text: str) -> Iterator[re.Match | None]:
    lines = text[: text.rfind("\n") + 1] or text  # the last line may be cut
    return (_LINE.fullmatch(line) for line in lines.splitlines() if line.strip())


def _blocks(path: Path, is_ffm: bool) -> Iterator[_Block]:
    form = "field:index:value" if is_ffm else "index:value"
    read = text_lines(path, progress=True)
    while lines := [*islice(read, _BLOCK)]:
        texts, counts = [], np.zeros(len(lines), np.int64)
        for place, (number, line) in enumerate(lines):
            match = _LINE.fullmatch(line)
            if match is None or (match["pairs"] and bool(match["triples"]) != is_ffm):
                raise ValueError(f"{path}: line {number} is no label with {form} behind it: {line[:60]!r}")
            texts.append(line.partition("#")[0])
            counts[place] = match["pairs"].count(":") // (1 + is_ffm)
        width = 2 + is_ffm
        numbers = np.fromstring(" ".join(texts).replace(":", " "), sep=" ")
        of_line = 1 + width * counts
        first = np.cumsum(of_line) - of_line
        is_label = np.zeros(len(numbers), bool)
        is_label[first] = True
        pairs = numbers[~is_label].reshape(-1, width)
        index = pairs[:, -2].astype(np.int64)
        block = _Block(
            labels=numbers[first],
            number=np.array([number for number, _ in lines]),
            line=np.repeat(np.arange(len(lines)), counts),
            field=pairs[:, 0].astype(np.int64) if is_ffm else np.zeros(len(pairs), np.int64),
            index=index,
            value=pairs[:, -1],
        )
        if (pairs[:, :-1] >= _EXACT).any():
            raise ValueError(f"{path}: an index of 2**53 or more, which is not told apart from its neighbours")
        falls = (np.diff(index) <= 0) & (np.diff(block.line) == 0)
        if not is_ffm and falls.any():
            number, line = lines[block.line[int(falls.argmax())]]
            raise ValueError(f"{path}: line {number}: its indices do not ascend, as LIBSVM writes them: {line[:60]!r}")
        yield block
