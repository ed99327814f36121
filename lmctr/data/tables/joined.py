"""Columns of rows that stand in files of their own, such as those of items and of users: `joined: [{path: items.csv, by: item_id}]`."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator

from lmctr.data.features.canonical import canonical_words, neutral_words
from lmctr.data.features.columns import Rows
from lmctr.data.logs.columns import refuse_repeated
from lmctr.data.logs.schema import FileSpec
from lmctr.data.schemas import ColumnName, SchemaWording
from lmctr.utils.arrow import decoded, first_of_each, without_empty
from lmctr.utils.files import expanded
from lmctr.utils.values import Values, read_values

from .reading import names_in_file, stream_file
from .source import Piece, Reader, file_fingerprint


class JoinedSpec(FileSpec):
    """A file with a row for each value of the column `by` of the rows, which stands in its own column `id` (default: the same name); `columns`: those to
    take, a list or names with a column each (default: all others)."""

    by: ColumnName
    id: ColumnName | None = None
    columns: (
        Annotated[dict[str, ColumnName], BeforeValidator(lambda c: dict(zip(c, c)) if isinstance(c, list) else c)]
        | None
    ) = None


class _Given(Values):
    joined: list[JoinedSpec]


@dataclass(frozen=True, eq=False)
class Joined:
    """A file whose columns stand on each row that has one of its ids.

    Args:
        path: the file, which is held in memory, what is read of it. by: the column of the rows that holds ids. id: that of the file. columns: the
            file's columns by the names that they have among the rows. reading: how the file is written, see [`stream_file`]. is_held: whether it
            stays as it was first read, however the file goes on.
    """

    path: Path
    by: str
    id: str
    columns: Mapping[str, str]
    reading: Mapping[str, Any]
    is_held: bool = False
    _kept: dict[tuple, tuple[pa.Array, str, pa.Table]] = field(default_factory=dict, repr=False)

    def held(self) -> Joined:
        """The file as it is when it is next read, from then on."""
        return replace(self, is_held=True, _kept={})

    def complete(self, rows: Rows, wanted: Mapping[str, str]) -> Rows:
        """The rows with columns of the file by name, with what they hold; missing where the file has no row for theirs.

        Raises:
            FileNotFoundError, ValueError: as [`stream_file`] does; an id that stands on two rows of the file.
        """
        ids, kind, table = self._read(wanted)
        own = rows.column(self.by)
        if pa.types.is_nested(own.type):
            raise ValueError(
                f"column {self.by!r}: got {own[0].as_py()!r:.80}; accepted: one id of {self.path.name}, or none, in each row"
            )
        keys = canonical_words(_words(own), kind)
        places = pc.index_in(keys, value_set=ids, skip_nulls=True)
        whole = rows.whole
        for name in wanted:
            whole = whole.append_column(name, table[self.columns[name]].take(places))
        return replace(rows, table=whole)

    def _read(self, wanted: Mapping[str, str]) -> tuple[pa.Array, str, pa.Table]:
        """The canonical ids, their type, and the columns of the file in the order of the ids."""
        about = None if self.is_held else self.path.stat()
        version = about and (about.st_ino, about.st_size, about.st_mtime_ns)
        key = (version, *wanted.items())
        if key not in self._kept:
            if any(known[0] != version for known in self._kept):  # of another content
                self._kept.clear()
            kinds = {self.id: "text"} | {self.columns[name]: kind for name, kind in wanted.items()}
            blocks = stream_file(self.path, kinds, **self.reading)
            table = pa.concat_tables(rows.whole for rows in blocks).combine_chunks()
            table = table.take(first_of_each(table))
            self._kept[key] = (*keys_of(table[self.id], self.id, str(self.path)), table)
        return self._kept[key]


def keys_of(values: pa.ChunkedArray, column: str, source: str) -> tuple[pa.Array, str]:
    """The canonical texts of a column of ids and their type: whole numbers, with which 007 is 7, unless that makes one of two.

    Raises:
        ValueError: an id that stands on two rows.
    """
    texts = _words(values.combine_chunks())
    whole = canonical_words(texts, "integer")
    kind = "integer" if pc.count_distinct(whole).as_py() == pc.count_distinct(texts).as_py() else "text"
    keys = whole if kind == "integer" else canonical_words(texts, "text")
    codes = keys.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    refuse_repeated(codes, texts, column, source)
    return keys, kind


def _words(values: pa.Array) -> pa.Array:
    """Ids as texts; null where there is none."""
    return without_empty(neutral_words(decoded(values)))


def joined_files(given: Sequence[Mapping[str, Any] | JoinedSpec], special: Collection[str]) -> tuple[Joined, ...]:
    """The files that the key `joined` names; `special`: names of columns that only the rows themselves may have.

    Raises:
        FileNotFoundError: a file that is not there.
        ValueError: unknown keys; a column that the file lacks, one of two files, or one of `special`.
    """
    if not all(isinstance(own, JoinedSpec) for own in given):
        given = read_values(_Given, {"joined": list(given)}, SchemaWording("the table")).joined
    files: list[Joined] = []
    for spec in given:
        path = expanded(spec.path)
        reading, key = spec.reading(), spec.id or spec.by
        names = names_in_file(path, **reading)
        columns = spec.columns or {name: name for name in names if name != key and name.strip()}
        for column in (key, *columns.values()):
            if column not in names:
                raise ValueError(f"{path}: no column {column!r}; its columns are {', '.join(map(repr, names))}.")
        for name in columns:
            others = [str(other.path) for other in files if name in other.columns]
            if others or name in special:
                raise _called_twice(name, path, others[0] if others else "the rows")
        files.append(Joined(path, spec.by, key, columns, reading))
    return tuple(files)


def _called_twice(name: str, path: Path, other: str) -> ValueError:
    return ValueError(
        f"{path}: a column of {other} is called {name!r} too; list this file's `columns` and give it another name, as in "
        f"`columns: {{{path.stem}_{name}: {name}}}`."
    )


def with_joined(read: Reader, files: Sequence[Joined]) -> Reader:
    """A reader of rows that reads columns of the files with them."""
    if not files:
        return read

    def whole(columns: Mapping[str, str] | None) -> Iterator[Rows]:
        if columns is None:
            parts = [(file, dict.fromkeys(file.columns, "any")) for file in files]
            own = None
        else:
            parts = [(file, {name: kind for name, kind in columns.items() if name in file.columns}) for file in files]
            parts = [(file, wanted) for file, wanted in parts if wanted]
            elsewhere = {name for _, wanted in parts for name in wanted}
            own = {file.by: "text" for file, _ in parts}
            own |= {name: kind for name, kind in columns.items() if name not in elsewhere}
        for rows in read(own):
            for file, wanted in parts:
                rows = file.complete(rows, wanted)
            yield rows if columns is None else replace(rows, table=rows.table.select(list(columns)))

    return whole


def lacking(files: Sequence[Joined], columns: Container[str], names: Container[str]) -> list[Joined]:
    """The files with some of the wanted `columns` that rows with columns of these `names` lack; of these rows' own, none is read from the file."""
    lacks = [
        {name: own for name, own in file.columns.items() if name in columns and name not in names} for file in files
    ]
    return [replace(file, columns=own) for file, own in zip(files, lacks) if own]


def joined_to(piece: Piece, files: Sequence[Joined]) -> Piece:
    """The piece with the columns of the files.

    Raises:
        ValueError: rows with a column of a file's own.
    """
    if not files:
        return piece
    names = next(piece.read(None)).table.schema.names
    for file in files:
        for name in {*names} & {*file.columns}:
            raise _called_twice(name, file.path, "the rows")

    def fingerprint() -> str:
        told = (
            f" {file_fingerprint(file.path)} {(file.by, file.id, dict(file.columns), dict(file.reading))}"
            for file in files
        )
        return piece.fingerprint() + "".join(told)

    return replace(piece, read=with_joined(piece.read, files), fingerprint=fingerprint)
