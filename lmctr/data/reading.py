"""Reading of raw files into pyarrow tables, with errors that name file, column and row.

CSV and TSV (plain or .gz), Parquet and JSON lines are read by pyarrow, column by column; nothing loops over rows in Python.
"""

from __future__ import annotations

import atexit
import contextlib
import csv
import io
import json
import os
import re
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from lmctr.utils.arrow import decoded, is_number, plain_type, whole_numbers, with_plain_types
from lmctr.utils.files import for_arrow, parse_json
from lmctr.utils.progress import Work, over
from lmctr.utils.suggest import did_you_mean, first_listed, first_quoted

from .amounts import number_form
from .names import HEAD, are_values, first_rows, names_of_first, names_of_rows, no_header_hint
from .tables.arrays import array_of

# that pandas reads, and by which function
_OF_PANDAS = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "read_excel"),
    **dict.fromkeys((".feather", ".ftr", ".arrow"), "read_feather"),
    **dict.fromkeys((".pkl", ".pickle"), "read_pickle"),
    **{".orc": "read_orc", ".h5": "read_hdf", ".hdf5": "read_hdf", ".dta": "read_stata", ".sas7bdat": "read_sas"},
}
PACKED = {".zip": "zip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".xz": "xz"}
"""What packs files, by their suffix, that `lmctr data convert` unpacks; `.gz` is read as it is."""
PYTHON_DICT = re.compile(r"\s*\{u?'")
OBJECT_LINE = re.compile(r"""\ufeff?\s*\{\s*u?(["'])[^"'\r\n]*\1\s*:""")
"""How a file of objects begins, JSON's or Python's."""
FORMATS = (
    dict.fromkeys((".csv", ".txt", ".dat", ".data"), "csv")
    | dict.fromkeys((".tsv", ".tab", ".inter", ".item", ".user"), "tsv")  # the last three: RecBole's
    | dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl")
    | {".parquet": "parquet"}
)
_TYPED = r"(.+):(token|float)(_seq)?"
"""A column's name and type in the header line of RecBole's files."""
_WHOLE = r"^\s*[+-]?\d+\s*$"
_NUMBER = rf"^\s*{number_form()}\s*$"
# in the names of folders, as Spark and Hive write them: whole numbers, and no 01, which is a code; what is missing
_CODELESS, _NO_VALUE = r"0|-?[1-9]\d{0,17}", "__HIVE_DEFAULT_PARTITION__"
_MANY_BRACKETS = 5_000
ONE_SIGN = "\x1f"
"""Stands for a delimiter of several signs, such as `::`, which pyarrow cannot take."""
ID = pa.dictionary(pa.int32(), pa.string())
"""Type to ask for an id column of a text file: each distinct id is kept once."""

# A thread of pyarrow may still let go of Python's bytes, and one that asks for Python's lock once the interpreter ends aborts it.
atexit.register(time.sleep, 0.02)


class _Stream(io.RawIOBase):
    """A binary stream as Python's own text layers and pyarrow take it, which tells how much was read."""

    def __init__(self, stream: BinaryIO, read: Callable[[int], Any] = int) -> None:
        self._stream, self._read = stream, read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._read(len(data))
        return len(data)


@contextlib.contextmanager
def opened(path: Path, progress: bool) -> Iterator[BinaryIO]:
    """The file's bytes (decompressed when the name ends in .gz), with a progress shown by the bytes on disk."""
    with open(path, "rb") as file, Work(f"reading {path.name}", path.stat().st_size, "B", show=progress) as work:
        counted = pa.PythonFile(_Stream(file, work.update), mode="r")
        yield pa.CompressedInputStream(counted, "gzip") if path.suffix == ".gz" else counted


def text_lines(path: Path, progress: bool = False) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of each line that is not blank; for formats that only a loop can read."""
    with opened(path, progress) as stream:
        text = io.TextIOWrapper(io.BufferedReader(_Stream(stream), 1 << 20), encoding="utf-8-sig")
        number = 0
        try:
            for number, line in enumerate(text, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 text after line {number} ({error}); {TO_UTF8}.") from None
        except OSError as error:
            raise ValueError(f"{path}: damaged after line {number} ({error}).") from None


def suffix_of(path: Path) -> str:
    """What a file's name ends in, as written: that before `.gz` where it is packed."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def format_of(path: Path, given: str | None = None) -> str:
    """ "csv", "tsv", "parquet" or "jsonl", from the file's extension unless given; of a folder "parquet"."""
    if given is not None:
        if given not in FORMATS.values():
            raise ValueError(f"{path}: format {given!r}; accepted: {', '.join(dict.fromkeys(FORMATS.values()))}.")
        return given
    if path.is_dir():
        return "parquet"
    suffix = suffix_of(path)
    if suffix.lower() in PACKED:
        raise ValueError(f"{path}: a packed file; unpack it: {_CONVERT}.")
    if suffix.lower() not in FORMATS:
        if (reads := _OF_PANDAS.get(suffix.lower())) is not None:
            raise ValueError(
                f"{path}: {suffix} files are not read; save it as CSV, or write it as Parquet: pandas.{reads}({str(path)!r}).to_parquet({str(path.with_suffix('.parquet'))!r})"
            )
        raise ValueError(
            f"{path}: the format cannot be told from the extension {suffix!r}; accepted extensions: {', '.join(FORMATS)} "
            f"(CSV, TSV and JSON lines may end in .gz too), or set `format`; "
            f"of LIBSVM's or libffm's lines {_CONVERT} makes a table."
        )
    return FORMATS[suffix.lower()]


_CONVERT = "lmctr data convert FILE --output FILE.parquet"
TO_UTF8 = "convert the file to UTF-8: lmctr data convert FILE --encoding latin-1 (or cp1252, utf-16, gbk, ...) --output FILE.parquet"
_OTHER_FILES = {
    b"PAR1": "a Parquet file; end its name in .parquet, or set `format: parquet`",
    b"PK\x03\x04": "a zip or Excel file; unpack it, or save the sheet as CSV",
    b"\x1f\x8b": "compressed by gzip; end its name in .gz",
    b"\xff\xfe": f"UTF-16 text; {TO_UTF8}",
    b"\xfe\xff": f"UTF-16 text; {TO_UTF8}",
}


def parquet_files(path: Path) -> dict[Path, dict[str, pa.Scalar]]:
    """The Parquet files of a folder, by name, with the values in the names of the folders that they stand in, `day=2024-01-01`, as Spark and Hive
    part a table: whole numbers where all of a key are written as such, else texts. A file itself.

    Raises:
        ValueError: files that do not all stand in folders of the same keys.
    """
    if path.is_file():
        return {path: {}}
    found = sorted([*path.glob("*.parquet"), *path.glob("*=*/**/*.parquet")])
    parts = {file: file.relative_to(path).parts[:-1] for file in found}
    parts = {file: own for file, own in parts.items() if not any(part.startswith(("_", ".")) for part in own)}
    if not any(parts.values()):
        return {file: {} for file in parts}
    values = {
        file: {
            unquote(key): None if text == _NO_VALUE else unquote(text)
            for key, sign, text in (part.partition("=") for part in own)
            if sign
        }
        for file, own in parts.items()
    }
    first = next(iter(parts))
    for file, own in parts.items():
        if [*values[file]] != [*values[first]] or len(values[file]) < len(own):
            raise ValueError(
                f"{path}: {file.relative_to(path)} and {first.relative_to(path)} do not stand in folders of the same keys, such as "
                "day=2024-01-01, as Spark and Hive part a table; give a folder whose files all do."
            )
    texts = {key: [own[key] for own in values.values() if own[key] is not None] for key in values[first]}
    whole = {key for key, own in texts.items() if own and all(re.fullmatch(_CODELESS, text) for text in own)}
    kinds = {key: pa.int64() if key in whole else pa.string() for key in texts}
    return {file: {key: pa.scalar(text).cast(kinds[key]) for key, text in own.items()} for file, own in values.items()}


@contextlib.contextmanager
def read_errors(path: Path, kind: str = "parquet") -> Iterator[None]:
    """Errors of pyarrow and the system as `ValueError`s that name the file."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise ValueError(f"{path}: cannot be read as {kind}: {printable(error)}") from None


def files_with_rows(path: Path) -> dict[Path, tuple[dict[str, pa.Scalar], pa.Schema]]:
    """[`parquet_files`] without those of no row, where any has one, and each file's own columns."""
    found, filled = {}, {}
    for file, held in parquet_files(path).items():
        with read_errors(file):
            footer = pq.read_metadata(for_arrow(file))
            found[file] = held, footer.schema.to_arrow_schema()
        if footer.num_rows:
            filled[file] = found[file]
    return filled or found


def columns_of_file(
    names: Sequence[str], held: Collection[str], wanted: Sequence[str] | None, path: Path
) -> list[str] | None:
    """Those of the wanted columns (None: all) to read of a Parquet file itself; those in `held` stand in the names of its folders.

    Raises:
        ValueError: a column that stands in both; as [`check_columns`].
    """
    if both := next((name for name in held if name in names), None):
        raise ValueError(
            f"{path}: the column {both!r} stands in the file and in the name of its folder; call one of them otherwise, or leave it out of the files."
        )
    check_columns([*names, *held], wanted, str(path))
    return None if wanted is None else [name for name in dict.fromkeys(wanted) if name not in held]


def with_held(rows: Any, held: Mapping[str, pa.Scalar], wanted: Sequence[str] | None) -> Any:
    """A table, or batch, of a file with those of its folders' values that are wanted (None: all) as columns."""
    for name, value in held.items():
        if wanted is None or name in wanted:
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def checked_file(path: str | os.PathLike, format: str | None = None) -> tuple[Path, str]:
    """The file, or the folder of Parquet files that are one table, and its format. Raises for a file that is absent or empty, and for one
    that holds no text where its format is text."""
    path = Path(path)
    try:
        is_folder = path.is_dir()
    except OSError as error:
        raise ValueError(f"{str(path)[:200]}: no path of a file: {error.strerror}.") from None
    if is_folder:
        if format not in (None, "parquet") or not parquet_files(path):
            if format in (None, "parquet") and (inner := next(path.glob("*/**/*.parquet"), None)) is not None:
                raise FileNotFoundError(
                    f"{path}: a folder whose .parquet files stand in folders of its own, such as {inner.parent.relative_to(path)}; put them into one "
                    "folder, or name the folders by a column and its value, such as day=2024-01-01, as Spark and Hive do"
                )
            raise FileNotFoundError(
                f"{path}: a folder without .parquet files, which alone may be several in a folder; give a file, or write each as Parquet "
                f"into one folder: lmctr data convert FILE --output FOLDER/NAME.parquet"
            )
        return path, "parquet"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    kind = format_of(path, format)
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty.")
    if kind != "parquet":
        head = b""
        with opened(path, False) as file, contextlib.suppress(OSError):  # of a damaged one, of which its reader tells
            head = file.read(1 << 12)
        for start, what in _OTHER_FILES.items():
            if head.startswith(start):
                raise ValueError(f"{path}: cannot be read as {kind}: this is {what}.")
        if kind == "jsonl" and head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
            raise ValueError(
                f"{path}: cannot be read as JSON lines: this is one JSON array; {_CONVERT} makes rows of it."
            )
        if kind != "jsonl" and format is None and OBJECT_LINE.match(head.decode("utf-8", "replace")):
            raise ValueError(f"{path}: its lines are objects, no {kind.upper()}; {_CONVERT} makes rows of them.")
        if b"\0" in head:
            raise ValueError(
                f"{path}: cannot be read as {kind}: the file holds no text (byte {head.index(0)} is zero). Accepted: CSV, TSV and JSON "
                "lines as UTF-8 text, and Parquet."
            )
    return path, kind


def printable(message: object) -> str:
    """A message of pyarrow without what a terminal would take for commands."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in str(message))


def first_not_utf8(column: pa.Array | pa.ChunkedArray) -> tuple[int, bytes] | None:
    """Row (from 0) and value of the first cell of a binary column that is no UTF-8 text."""
    try:
        column.cast(pa.large_string())
    except pa.ArrowInvalid:
        for row, value in enumerate(column):
            try:
                value.as_py().decode("utf-8")
            except UnicodeDecodeError:
                return row, value.as_py()
    return None


def read_table(
    path: str | os.PathLike,
    wanted: Sequence[str] | None = None,
    types: Mapping[str, pa.DataType] | None = None,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    names: Sequence[str] | None = None,
    decimal: str = ".",
    na_values: Sequence[str] | None = None,
    progress: bool = False,
) -> pa.Table:
    """Reads one file, or a folder of Parquet files.

    Args:
        path: the file or folder.
        wanted: columns to read; None reads all.
        types: types of columns of CSV files; others are inferred from the whole file. Parquet and JSON lines keep their own.
        format: overrides the extension.
        delimiter: of CSV files, default a comma (TSV: a tab); one of several signs, such as `::`, parts texts without quotes.
        names: column names of a CSV file without a header line; one whose first line holds two of them, or nothing else, is read by its own.
        decimal: decimal point of CSV files.
        na_values: texts of CSV files that mean a missing value, also in columns of text; empty ones too, then.
        progress: show it here, see `lmctr.utils.progress`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is empty, has no rows, has duplicate columns, lacks a wanted column or has values of the wrong type.
    """
    path, kind = checked_file(path, format)
    if kind in ("csv", "tsv"):
        return read_delimited(
            path,
            wanted,
            types,
            delimiter=delimiter or ("\t" if kind == "tsv" else ","),
            names=names,
            decimal=decimal,
            na_values=na_values,
            progress=progress,
        )
    if na_values is not None or decimal != ".":
        raise ValueError(
            f"{path}: `na_values` and `decimal` are for CSV and TSV files, and this one is {kind}; leave them out."
        )
    with read_errors(path, kind):
        if kind == "parquet":
            table = _read_parquet(path, wanted, types or {}, progress)
        else:
            with opened(path, False) as stream:
                refuse_deep(io.BufferedReader(_Stream(stream), 1 << 20), path)
            asked = [name for name, own in (types or {}).items() if own in (ID, pa.string())]
            with opened(path, progress) as stream:
                try:
                    table = pajson.read_json(stream)
                    if times := [own for own in table.schema if own.name in asked and pa.types.is_timestamp(own.type)]:
                        texts = pajson.ParseOptions(pa.schema([(own.name, pa.string()) for own in times]))
                        with opened(path, False) as again:
                            table = pajson.read_json(again, parse_options=texts)
                    if large := [name for name in asked if name in table.column_names and _is_large(table[name])]:
                        with opened(path, False) as again:
                            table = as_written(table, io.BufferedReader(_Stream(again), 1 << 20), large, 1)
                except pa.ArrowInvalid as error:
                    texts = dict.fromkeys(asked, "text")
                    with opened(path, progress) as again:
                        lines = io.BufferedReader(_Stream(again), 1 << 20)
                        table = json_of_mixed(path, error, lines, texts, wanted)
            check_columns(table.column_names, wanted, str(path))
            table = table if wanted is None else table.select(list(dict.fromkeys(wanted)))
    return _with_rows(table, str(path))


def refuse_deep(lines: Iterable[bytes], path: Path) -> None:
    """Arrow's reader of JSON ends the process at a line that is nested some ten thousand deep; Python's says so."""
    for line in lines:
        if line.count(b"[") + line.count(b"{") > _MANY_BRACKETS:
            try:
                parse_json(line, keys_once=False)
            except ValueError as error:
                raise ValueError(f"{path}: cannot be read as JSON lines: {error}") from None


def json_of_mixed(
    path: Path,
    error: pa.ArrowInvalid,
    lines: Iterable[bytes],
    kinds: Mapping[str, str],
    wanted: Container[str] | None,
    done: int = 0,
) -> pa.Table:
    """JSON lines that Arrow refused for a column of values of several types, where the column is one of texts.

    Args:
        kinds: what columns hold: "text", "number" or "any". wanted: columns to read; None: all. done: rows of the file before these.

    Raises:
        ValueError: whatever else is wrong, with column and row.
    """
    rows = []
    for row, line in enumerate((line for line in lines if line.strip()), done + 1):
        try:
            rows.append(parse_json(line, keys_once=False))
        except ValueError as own:
            of_python = (
                f"; these are dicts of Python: {_CONVERT}"
                if PYTHON_DICT.match(line[:20].decode("utf-8", "replace"))
                else ""
            )
            raise ValueError(f"{path}: cannot be read as JSON lines: row {row}: {own!s:.200}{of_python}") from None
        if not isinstance(rows[-1], Mapping):
            raise ValueError(f"{path}: row {row} is {rows[-1]!r:.60}, expected an object of columns.")
    column = re.search(r"Column\(/([^)]*)\)( changed from)?", str(error))
    if column is None or column[2] is None:
        where = f"{path}, column {column[1]!r}" if column else str(path)
        message = re.sub(r"row (\d+)", lambda match: f"row {int(match[1]) + done + 1}", printable(error))
        raise ValueError(f"{where}: cannot be read as JSON lines: {message}") from None
    names = list(dict.fromkeys(name for row in rows for name in row if wanted is None or name in wanted))
    try:
        return pa.table({n: array_of([row.get(n) for row in rows], n, kinds.get(n), done + 1) for n in names})
    except ValueError as own:  # which begins with the column
        raise ValueError(f"{path}, {own}") from None


def _is_large(column: pa.ChunkedArray) -> bool:
    """Whether Arrow read numbers as floats of which some no longer tell neighbouring whole numbers apart."""
    return pa.types.is_floating(column.type) and (pc.max(pc.abs(column)).as_py() or 0) >= 2.0**53


def as_written(table: pa.Table, lines: Iterable[bytes], names: Sequence[str], first: int) -> pa.Table:
    """A table of JSON lines, whose first row has the number `first`, with the texts of some columns' values as they stand in the file."""
    rows = [parse_json(line, keys_once=False) for line in lines if line.strip()]
    for name in names:
        values = array_of([row.get(name) for row in rows], name, "text", first)
        table = table.set_column(table.column_names.index(name), name, values)
    return table


def _read_parquet(
    folder: Path, wanted: Sequence[str] | None, types: Mapping[str, pa.DataType], progress: bool
) -> pa.Table:
    """Files with the same columns, one below the other; whole numbers asked for as ids are encoded file by file, in half the memory."""
    tables: dict[Path, pa.Table] = {}
    files = files_with_rows(folder)
    name = (next(iter(files)) if len(files) == 1 else folder).name
    for path in over(files, f"reading {name}", "files", show=progress):
        held, own = files[path]
        columns = columns_of_file(own.names, held, wanted, path)
        with read_errors(path), pq.ParquetFile(for_arrow(path)) as file:
            table = with_held(with_plain_types(file.read(columns=columns)), held, wanted)
        for name in (name for name, kind in types.items() if kind == ID and name in table.column_names):
            if pa.types.is_integer(table.schema.field(name).type):
                values = whole_numbers(table[name]).dictionary_encode()
                table = table.set_column(table.column_names.index(name), name, values)
        tables[path] = table
    kinds = common_types({path: table.schema for path, table in tables.items()})
    names = next(iter(tables.values())).column_names
    return pa.concat_tables(in_types(table.select(names), kinds) for table in tables.values())


def common_types(schemas: Mapping[Path, pa.Schema]) -> dict[str, pa.DataType]:
    """By column that files of one folder write in several types, the one that holds them all.

    Raises:
        ValueError: a column that stands in some files only; types that none holds.
    """
    (first_path, first), *others = schemas.items()
    found: dict[str, pa.DataType] = {}
    for path, schema in others:
        if odd := sorted({*schema.names} ^ {*first.names}):
            raise ValueError(
                f"{path}: the column {odd[0]!r} stands in only one of this file and {first_path}; give all files the same columns."
            )
        for field in schema:
            own, kind = field.type, found.get(field.name, first.field(field.name).type)
            if own == kind:
                continue
            pair = [pa.schema([(field.name, plain_type(one))]) for one in (kind, own)]
            try:
                found[field.name] = pa.unify_schemas(pair, promote_options="permissive")[0].type
            except pa.ArrowTypeError:
                raise ValueError(
                    f"{path}, column {field.name!r}: its type is {own}, in {first_path} it is {kind}; write both alike."
                ) from None
    return found


def in_types(rows: Any, kinds: Mapping[str, pa.DataType]) -> Any:
    """A table, or batch, in the types of [`common_types`]."""
    for place, name in enumerate(rows.schema.names):
        if name in kinds:
            rows = rows.set_column(place, name, decoded(rows.column(place)).cast(kinds[name]))
    return rows


def read_delimited(
    path: Path,
    wanted: Sequence[str] | None,
    types: Mapping[str, pa.DataType] | None = None,
    *,
    delimiter: str = ",",
    names: Sequence[str] | None = None,
    quoted: bool = True,
    data: bytes | None = None,
    decimal: str = ".",
    na_values: Sequence[str] | None = None,
    progress: bool = False,
) -> pa.Table:
    """[`read_table`] for CSV; `data` are the bytes when they are not read from `path` (which then only names them)."""
    types = dict(types or {})
    if len(delimiter) > 1:
        with opened(path, progress) if data is None else io.BytesIO(data) as stream:
            data = b"".join(iter(lambda: stream.read(1 << 24), b"")).replace(delimiter.encode(), ONE_SIGN.encode())
        delimiter, quoted = ONE_SIGN, False
    parse = pacsv.ParseOptions(delimiter=delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted)

    def source(bar: bool = False) -> contextlib.AbstractContextManager[BinaryIO]:
        return opened(path, bar) if data is None else pa.BufferReader(data)

    if names:
        with source() as stream:
            names = names_of_first(first_rows(stream.read(HEAD), delimiter, quoted), names, str(path), delimiter)
    read = pacsv.ReadOptions(column_names=list(names) if names else None, block_size=1 << 24)
    try:
        if names:
            check_columns(names, wanted, str(path))
        else:
            with source() as stream:
                head = stream.read(1 << 20).lstrip(b"\r\n")
            written, rows = _header(first_line(head), parse, path), first_rows(head[:HEAD], delimiter, quoted)[1:]
            if (plain := names_of_rows(_plain(written), rows, str(path), delimiter)) != written:
                read.column_names, read.skip_rows = plain, 1
            check_columns(plain, wanted, str(path))
        convert = pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(dict.fromkeys(wanted)) if wanted is not None else None,
            decimal_point=decimal,
            null_values=None if na_values is None else ["", *na_values],
            strings_can_be_null=na_values is not None,
        )
        with source(progress) as stream:
            table = pacsv.read_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            raise ValueError(f"{path}: the file is empty.") from None
        if "conversion error" in str(error):
            raw = pacsv.ConvertOptions(column_types={name: pa.binary() for name in types}, include_columns=list(types))
            with source() as stream:
                bad = bad_cell(path, pacsv.read_csv(stream, read, parse, raw), types, 0, convert)
            if bad is not None:
                raise bad from None
        if "parse error" not in str(error):
            raise ValueError(f"{path}: cannot be read as delimited text: {printable(error)}") from None
        with source() as stream:
            message = parse_error(error, stream, read, parse, 0 if names else -1)
        raise ValueError(f"{path}: {message}") from None
    # binary is what pyarrow makes of text that is not UTF-8
    if bad := bad_cell(path, table.select([own.name for own in table.schema if pa.types.is_binary(own.type)]), {}, 0):
        raise bad
    return _with_rows(table, str(path))


def head_of(path: Path) -> str:
    """The text that a file begins with."""
    try:
        with pa.input_stream(str(path), compression="gzip" if path.suffix == ".gz" else None) as stream:
            return stream.read(HEAD).decode("utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None


def delimiter_of(path: Path) -> str:
    """What parts the first lines of a CSV file into the same number of columns, one sign or `::`; a space where it parts numbers; else a comma."""
    text = head_of(path)
    lines = text[: text.rfind("\n") + 1] or text
    best = (0.0, 0, True, ",")
    rows = {sign: csv.reader(io.StringIO(lines, newline=""), delimiter=sign) for sign in ",;\t|"}
    rows["::"] = (line.split("::") for line in lines.splitlines())  # of what MovieLens is written in
    for sign, own in rows.items():
        widths = [len(row) for row in own if row][:200]
        if widths and widths[0] > 1:
            same = sum(width == widths[0] for width in widths) / len(widths)
            best = max(best, (same, widths[0], len(sign) == 1, sign))
    return best[3] if best[0] or not _numbers_with_spaces(lines.split("\n")[:200]) else " "


def _numbers_with_spaces(lines: Sequence[str]) -> bool:
    """Whether lines hold as many words each, and numbers behind the first line."""
    first, *rows = [line.rstrip("\r").split(" ") for line in lines if line] or [[]]
    return (
        len(first) > 1
        and bool(rows)
        and all(len(row) == len(first) and all(re.fullmatch(_NUMBER, word) for word in row) for row in rows)
    )


def csv_header(line: bytes, parse: pacsv.ParseOptions, path: Path) -> list[str]:
    """The names in the header line, without types where all have one as in RecBole's files."""
    try:
        return _plain(_header(line, parse, path))
    except pa.ArrowInvalid as error:
        said = f"cannot be read as delimited text: {printable(error)}"
        raise ValueError(f"{path}: {'the file is empty.' if 'Empty CSV' in str(error) else said}") from None


def first_line(block: bytes) -> bytes:
    """The bytes up to the first line break that stands between no quotes; up to the first one where there is none such."""
    ends = [found.end() for found in re.finditer(rb"\r\n|\n|\r", block[: 1 << 20])] or [len(block)]
    return block[: next((end for end in ends if block.count(b'"', 0, end) % 2 == 0), ends[0])]


def _header(line: bytes, parse: pacsv.ParseOptions, path: Path) -> list[str]:
    read = pacsv.ReadOptions(block_size=1 << 20, use_threads=False)
    try:
        return pacsv.open_csv(pa.py_buffer(line), parse_options=parse, read_options=read).schema.names
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error}); {TO_UTF8}.") from None


def _plain(names: list[str]) -> list[str]:
    return [found[1] for found in _typed(names)] or names


def _typed(names: Sequence[str]) -> list[re.Match]:
    """Name and type of each column; nothing unless all have a type."""
    found = [re.fullmatch(_TYPED, name) for name in names]
    return found if all(found) else []


def list_columns(path: Path) -> list[str]:
    """Columns that the header line of a RecBole file says hold several words."""
    line = head_of(path).split("\n", 1)[0].rstrip("\r")
    return [found[1] for found in _typed(line.split("\t")) if found[3]]


def parse_error(
    error: Exception, source: BinaryIO | pa.Buffer, read: pacsv.ReadOptions, parse: pacsv.ParseOptions, shift: int
) -> str:
    """pyarrow's message about a row that cannot be parsed, `shift` added to its number; `source` is read again to find it."""
    if "Row #" not in str(error):  # only a reader on one thread counts rows
        read.use_threads = False
        try:
            pacsv.read_csv(source, read, parse)
        except pa.ArrowInvalid as located:
            error = located if "Row #" in str(located) else error
    said = str(error).replace(ONE_SIGN, "::") if parse.delimiter == ONE_SIGN else error
    told = re.sub(r"Row #(\d+)", lambda match: f"row {int(match[1]) + shift}", printable(said))
    if re.search(r"\brow 1: Expected", told):  # as in all rows, perhaps
        told += ". Does a title, a comment or sep=; stand above the line of names? Delete it"
    return told


def bad_cell(
    path: Path,
    table: pa.Table,
    types: Mapping[str, pa.DataType],
    done: int,
    convert: pacsv.ConvertOptions | None = None,
) -> ValueError | None:
    """The error for the first cell that does not fit its column; `done` rows stand before the table, and `convert` read its numbers."""
    for name in table.column_names:
        raw = table[name].combine_chunks()
        bad, problem = first_not_utf8(raw), f"is not UTF-8 text; {TO_UTF8}"
        if bad is None and name in types and is_number(types[name]):
            text = raw.cast(pa.large_string())
            is_whole = pa.types.is_integer(types[name])
            form = _WHOLE if is_whole else rf"^\s*{number_form(convert.decimal_point)}\s*$"
            number = pc.match_substring_regex(text, form, ignore_case=True)
            rows = pc.indices_nonzero(
                pc.invert(pc.or_(number, pc.is_in(text, pa.array(convert.null_values, text.type))))
            )
            bad = (rows[0].as_py(), text[rows[0].as_py()].as_py()) if len(rows) else None
            are_before = bad is not None and (done or bad[0])
            problem = f"is no {'whole ' * is_whole}number, {'as the values before it are' if are_before else 'and the column is read as one of numbers'}"
            other = "," if convert.decimal_point == "." else "."
            if bad is not None and re.fullmatch(number_form(other), bad[1].strip(), re.IGNORECASE):
                problem += f", whose decimal point is {convert.decimal_point!r} (`decimal` says which)"
        if bad is not None:
            row, value = bad
            return ValueError(f"{path}, column {name!r}: row {done + row + 1} {problem} ({value!r}).")
    return None


class MissingColumnsError(ValueError):
    """A file has not all columns that are read of it."""


def check_columns(found: Sequence[str], wanted: Sequence[str] | None, source: str) -> None:
    """Raises on duplicate columns and on columns that are wanted and missing."""
    doubled = sorted({name for name in found if list(found).count(name) > 1})
    if doubled:
        numbers = any(re.fullmatch(_NUMBER, name) for name in found)
        values = found if are_values(found, doubled) else doubled if numbers else ()
        again = next((f" {_CONVERT} calls the second one {name + '_2'!r}." for name in doubled if name.strip()), "")
        hint = no_header_hint(found, values, source) or again
        raise ValueError(f"{source}: duplicate columns {doubled}; give each column a name of its own.{hint}")
    missing = [name for name in dict.fromkeys(wanted or ()) if name not in found]
    if missing:
        sign = next((sign for sign in ";\t|, " if len(found) == 1 and sign in found[0]), None)
        hint = (
            f" They look separated by {sign!r}: set `delimiter: {json.dumps(sign)}`."
            if sign
            else no_header_hint(found, source=source) or did_you_mean(missing[0], found)
        )
        raise MissingColumnsError(
            f"{source}: no column {first_quoted(missing)}; its columns are {first_listed(found)}.{hint}"
        )


def _with_rows(table: pa.Table, source: str) -> pa.Table:
    if not table.num_rows:
        raise ValueError(
            f"{source}: the file has a header and no rows." if table.column_names else f"{source}: no rows."
        )
    return table
