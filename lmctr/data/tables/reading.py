"""Streaming of table files in blocks of bounded size, with errors that name file, column and row.

CSV and TSV (plain or .gz), Parquet and JSON lines. A reader yields [`Rows`]; what it holds at a time is a few blocks, however
long the file is.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from lmctr.data.features.columns import Rows
from lmctr.data.names import HEAD, first_rows, names_of_first, names_of_rows
from lmctr.data.reading import (
    ONE_SIGN,
    as_written,
    bad_cell,
    check_columns,
    checked_file,
    columns_of_file,
    common_types,
    csv_header,
    delimiter_of,
    files_with_rows,
    first_line,
    in_types,
    json_of_mixed,
    parse_error,
    printable,
    read_errors,
    refuse_deep,
    with_held,
)
from lmctr.utils.arrow import is_number, is_text, with_plain_types
from lmctr.utils.files import for_arrow, parse_json

BLOCK_SIZE = 8 << 20
"""Bytes of text read at a time by default."""
# Fitting and transforming hold at most about this many times a block: text, columns, ids, two blocks at a time.
_SHARE = 20
MISSING_WORDS = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")  # fmt: skip
"""Words of text files that are no number but a missing one."""


_CsvOptions = tuple[pacsv.ReadOptions, pacsv.ParseOptions, pacsv.ConvertOptions]


def block_size_for(memory_limit: int | None) -> int:
    """Block size in bytes for a limit (bytes) on the memory that streaming may take beside vocabularies.

    Raises:
        ValueError: a limit below 24 MiB.
    """
    if memory_limit is None:
        return BLOCK_SIZE
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, int) or memory_limit < 24 << 20:
        raise ValueError(f"memory_limit={memory_limit!r}; accepted: a number of bytes from {24 << 20} (24 MiB) on.")
    return min(max(memory_limit // _SHARE, 1 << 20), 64 << 20)


def stream_file(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    names: Sequence[str] | None = None,
    decimal: str = ".",
    na_values: Sequence[str] | None = None,
    block_size: int = BLOCK_SIZE,
) -> Iterator[Rows]:
    """Rows of one file, block by block.

    Args:
        path: the file.
        columns: columns to read, with what they hold: "text", "number" or "any" (as the reader finds it). None reads all.
        format: "csv", "tsv", "parquet" or "jsonl"; default: from the extension.
        delimiter: of CSV files; default: a tab (TSV), else what parts the first lines.
        names: column names of a CSV file without a header line; one whose first line holds two of them, or nothing else, is read by its own.
        decimal: decimal point of CSV files.
        na_values: further texts of CSV files that mean a missing value, also in columns of text.
        block_size: bytes of text per block; for Parquet about as many bytes of decoded values.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an empty file, duplicate or missing columns, rows of different length, text that is not UTF-8, values that
            do not fit their column; names file, column and row.
    """
    path, kind = checked_file(path, format)
    if kind == "parquet":
        stream = _stream_parquet(path, columns, block_size)
    elif kind == "jsonl":
        stream = _stream_json(path, columns, block_size)
    else:
        if delimiter is None:
            delimiter = "\t" if kind == "tsv" else _default_delimiter(path, columns, names)
        stream = _stream_csv(path, columns, block_size, delimiter, names, decimal, tuple(na_values or ()))
    first = 1
    for table in _ahead(stream):
        if table.num_rows:
            yield Rows(table, str(path), first)
            first += table.num_rows
    if first == 1:
        raise ValueError(f"{path}: the file has no rows.")


def names_in_file(path: str | Path, **reading: Any) -> list[str]:
    """Names of a file's columns; of JSON lines, the keys of the first 1,000, whose values may be of several types. reading: see [`stream_file`]."""
    path, kind = checked_file(path)
    if kind != "jsonl":
        return next(stream_file(path, **reading)).table.schema.names
    try:
        return list(dict.fromkeys(name for row in next(_objects(path, BLOCK_SIZE), [])[:1000] for name in row))
    except ValueError:
        return next(stream_file(path)).table.schema.names  # which says what is wrong


def are_codes(texts: pa.Array | pa.ChunkedArray) -> bool:
    """Whether whole numbers, as they are written, hold one with a zero in front: they are codes, such as 00123."""
    return bool(pc.any(pc.match_substring_regex(texts, r"^\s*-?0\d")).as_py())


def kinds_in_json(path: Path, block_size: int, blocks: int | None = 1) -> dict[str, str]:
    """By column of JSON lines "text" where the first blocks (None: all) hold texts, numbers and booleans mixed (NaN is a number), "number" where they hold
    whole numbers and others, else "any".

    Raises:
        ValueError: a line that is no object.
    """
    types: dict[str, set[type]] = {}
    for rows in islice(_objects(path, block_size), blocks):
        for row in rows:
            for name, value in row.items():
                types.setdefault(name, set()).add(type(value))
    types = {name: own - {type(None)} for name, own in types.items()}
    numbers = {int, float}
    mixed = {name for name, own in types.items() if len(own) > 1 and own <= {str, bool} | numbers}
    return {
        name: "any" if name not in mixed else "number" if own == numbers else "text" for name, own in types.items()
    }


def _objects(path: Path, block_size: int) -> Iterator[list[dict[str, Any]]]:
    with _opened(path) as stream:
        for block in _line_blocks(stream, block_size, path):
            rows = [parse_json(line, keys_once=False) for line in block.splitlines() if line.strip()]
            if not all(isinstance(row, Mapping) for row in rows):
                raise ValueError(f"{path}: a line that is no object.")
            yield rows


def _default_delimiter(path: Path, columns: Mapping[str, str] | None, names: Sequence[str] | None) -> str:
    """What the first lines are parted by; a comma where it finds one of the columns in the header line, or one for each name."""
    sign = delimiter_of(path)
    if sign == "," or (columns is None and names is None):
        return sign
    with _opened(path) as stream:
        line = first_line(next(_line_blocks(stream, 1 << 16, path, quoted=True)))
    found = csv_header(line, pacsv.ParseOptions(), path)
    return "," if {*(columns or ())} & {*found} or 1 < len(found) == len(names or ()) else sign


def _ahead(stream: Iterator[pa.RecordBatch | pa.Table]) -> Iterator[pa.RecordBatch | pa.Table]:
    """The stream itself; its next block is read (outside the interpreter's lock) while the caller works on the last one."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, stream, None)
        while (table := coming.result()) is not None:
            coming = pool.submit(next, stream, None)
            yield table


def _opened(path: Path) -> pa.NativeFile:
    """The file's bytes, decompressed when the name ends in .gz; read by Arrow itself, which is faster than through Python."""
    return pa.input_stream(str(path), compression="gzip" if path.suffix == ".gz" else None)


def _stream_csv(
    path: Path,
    columns: Mapping[str, str] | None,
    block_size: int,
    sign: str,
    given: Sequence[str] | None,
    decimal: str,
    na_values: tuple[str, ...],
) -> Iterator[pa.Table]:
    # Blocks of whole lines are cut here and parsed one by one: Arrow's own streaming reader holds more than 30 blocks at a time
    quoted, delimiter = len(sign) == 1, sign if len(sign) == 1 else ONE_SIGN
    parse, names = pacsv.ParseOptions(delimiter=delimiter, quote_char='"' if quoted else False), given
    types = {"text": pa.string(), "number": pa.float64()}
    types = {name: types[kind] for name, kind in (columns or {}).items() if kind in types}
    wanted = None if columns is None else list(columns)
    done = 0
    with _opened(path) as stream:
        for block in _line_blocks(stream, block_size, path, quoted):
            if not quoted:
                block = block.replace(sign.encode(), ONE_SIGN.encode())
            if names is not None and names is given:
                names = names_of_first(first_rows(block[:HEAD], delimiter, quoted), names, str(path), delimiter)
            if names is None:
                block = block.lstrip(b"\r\n")
                line = first_line(block)
                names, block = csv_header(line, parse, path), block[len(line) :]
                names = names_of_rows(names, first_rows(block[:HEAD], delimiter, quoted), str(path), delimiter)
            if not done:
                check_columns(names, wanted, str(path))
            if not block.strip():  # the header line alone
                continue
            read = pacsv.ReadOptions(column_names=list(names), block_size=len(block) + 1)
            convert = pacsv.ConvertOptions(
                column_types=types,
                include_columns=wanted,
                null_values=[*MISSING_WORDS, *na_values],
                strings_can_be_null=False,
                decimal_point=decimal,
            )
            try:
                table = _parsed(block, (read, parse, convert), types, is_first=not done)
            except pa.ArrowInvalid as error:
                raise _csv_error(path, error, block, (read, parse, convert), types, done) from None
            for field in table.schema:  # what the first values were taken for holds for the rest
                if not pa.types.is_null(field.type):
                    types.setdefault(field.name, field.type)
                if pa.types.is_binary(field.type):  # what Arrow makes of text that is not UTF-8
                    raise bad_cell(path, table, {}, done) or ValueError(f"{path}: not UTF-8 text.")
            yield _without(table, na_values)
            done += table.num_rows


def _parsed(block: bytes, options: _CsvOptions, types: dict[str, pa.DataType], is_first: bool) -> pa.Table:
    """A block's columns; where they are to hold numbers and hold words for true and false in the first block, these are their numbers."""
    read, parse, convert = options
    try:
        return pacsv.read_csv(pa.py_buffer(block), read, parse, convert)
    except pa.ArrowInvalid as error:
        numbers = [name for name, kind in types.items() if is_number(kind)]
        if not is_first or "conversion error" not in str(error):
            raise
        plain = pacsv.ConvertOptions(include_columns=numbers, null_values=convert.null_values)
        found = pacsv.read_csv(pa.py_buffer(block), read, parse, plain).schema
        words = {field.name: field.type for field in found if pa.types.is_boolean(field.type)}
        if not words:
            raise
        types.update(words)
        convert.column_types = types
        return pacsv.read_csv(pa.py_buffer(block), read, parse, convert)


def _without(table: pa.Table, na_values: Sequence[str]) -> pa.Table:
    """The table whose texts that mean a missing value are null."""
    for place, name in enumerate(table.column_names if na_values else ()):
        if is_text(table[name].type):
            missing = pc.is_in(table[name], pa.array(na_values, table[name].type))
            table = table.set_column(place, name, pc.if_else(missing, pa.scalar(None, table[name].type), table[name]))
    return table


def _csv_error(
    path: Path, error: pa.ArrowInvalid, block: bytes, options: _CsvOptions, types: Mapping[str, pa.DataType], done: int
) -> ValueError:
    """Arrow's error with the row, from 1, a header line not counted; `done` rows stand before the block."""
    (read, parse, convert), message = options, printable(error)
    if "parse error" not in message:
        raw = pacsv.ConvertOptions(
            column_types=dict.fromkeys(read.column_names, pa.binary()), include_columns=convert.include_columns
        )
        table = pacsv.read_csv(pa.py_buffer(block), read, parse, raw)
        found = bad_cell(path, table, types, done, convert) or _odd_cell(path, table, message, done)
        if found is not None:
            return found
    else:
        message = parse_error(error, pa.py_buffer(block), read, parse, done)
    return ValueError(f"{path}: cannot be read as delimited text: {message}")


def _odd_cell(path: Path, table: pa.Table, message: str, done: int) -> ValueError | None:
    """The error for the first cell with the value that Arrow's message names, of a column of another type than numbers."""
    named = re.search(r"CSV conversion error to (.+): invalid value '(.*)'", message)
    for name in table.column_names if named else ():
        row = pc.index(table[name], pa.scalar(named[2].encode(), pa.binary())).as_py()
        if row >= 0:
            return ValueError(
                f"{path}, column {name!r}: row {done + row + 1} is no {named[1]}, as the values before it are ({named[2]!r})."
            )
    return None


def _stream_parquet(folder: Path, columns: Mapping[str, str] | None, block_size: int) -> Iterator[pa.RecordBatch]:
    files, wanted = files_with_rows(folder), None if columns is None else list(columns)
    schemas = {}
    for path, (held, schema) in files.items():
        table = pa.Table.from_batches([], schema)
        own = columns_of_file(table.column_names, held, wanted, path)
        schemas[path] = with_plain_types(table if own is None else table.select(own)).schema
    own = next(iter(schemas.values())).names
    kinds = common_types(schemas)
    for path, (held, _) in files.items():
        with read_errors(path), pq.ParquetFile(for_arrow(path)) as file:
            rows = max(1024, block_size // (8 * max(len(own), 1)))
            for batch in file.iter_batches(batch_size=rows, columns=own):
                yield with_held(in_types(with_plain_types(batch), kinds), held, wanted)


def _stream_json(path: Path, columns: Mapping[str, str] | None, block_size: int) -> Iterator[pa.Table]:
    done = 0
    with _opened(path) as stream:
        for block in _line_blocks(stream, block_size, path):
            refuse_deep(block.splitlines(), path)
            read = pajson.ReadOptions(block_size=len(block) + 1, use_threads=False)
            try:
                table = pajson.read_json(io.BytesIO(block), read)
                texts = [name for name in table.column_names if (columns or {}).get(name) == "text"]
                other = [name for name in texts if _reads_otherwise(table[name])]
                table = as_written(table, block.splitlines(), other, done + 1) if other else table
            except pa.ArrowInvalid as error:
                table = json_of_mixed(path, error, block.splitlines(), columns or {}, columns, done)
            if columns is not None:
                if not done:
                    late = {*columns} - {*table.column_names} and kinds_in_json(path, block_size, None)
                    check_columns([*dict.fromkeys([*table.column_names, *late])], list(columns), str(path))
                for name in columns:  # a key that a block leaves out everywhere
                    if name not in table.column_names:
                        table = table.append_column(name, pa.nulls(table.num_rows))
                table = table.select(list(columns))
            yield table
            done += table.num_rows


def _reads_otherwise(column: pa.ChunkedArray) -> bool:
    """Whether Arrow made something else of a column of texts than what stands in the file: times of texts, floats of large integers."""
    kind = column.type
    while pa.types.is_list(kind):
        kind = kind.value_type
    return pa.types.is_timestamp(kind) or pa.types.is_floating(kind)


def _line_blocks(stream: pa.NativeFile, block_size: int, path: Path, quoted: bool = False) -> Iterator[bytes]:
    """Blocks of whole lines, which end as the first one does; with `quoted`, a line break between quotes ends no line."""
    rest, end = b"", b""
    while True:
        data = _read(stream, block_size, path)
        if len(data) < block_size:  # the end
            if (rest + data).strip():
                yield rest + data
            return
        data = rest + data
        end = end or (b"\r" if first_line(data.lstrip(b"\r\n"))[-1:] == b"\r" else b"\n")
        cut = data.rfind(end) + 1
        if quoted and data.count(b'"', 0, cut) % 2:
            cut = _even_cut(data, cut, end)
        block, rest = data[:cut], data[cut:]
        if block.strip():
            yield block


def _even_cut(data: bytes, cut: int, end: bytes) -> int:
    """The last line break before which every quote is closed; `cut` itself when none is near (a stray quote in a text)."""
    place = cut
    for _ in range(1000):
        before = data.rfind(end, 0, place - 1) + 1
        if not before:
            break
        place = before
        if data.count(b'"', 0, place) % 2 == 0:
            return place
    return cut


def _read(stream: pa.NativeFile, size: int, path: Path) -> bytes:
    """`size` bytes, fewer only at the end (a compressed stream gives a few at a time)."""
    parts, left = [], size
    try:
        while left and (data := stream.read(left)):
            parts.append(data)
            left -= len(data)
    except (EOFError, OSError) as error:
        raise ValueError(f"{path}: cannot be read to its end: {error}") from None
    return b"".join(parts)
