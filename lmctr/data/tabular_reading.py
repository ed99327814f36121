"""Streaming of table files in blocks of bounded size, with errors that name file, column and row.

CSV and TSV (plain or .gz), Parquet and JSON lines. A reader yields [`Rows`]; what it holds at a time is a few blocks, however
long the file is.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from .builders.reading import check_columns, format_of
from .features_columns import Rows

__all__ = ["BLOCK_SIZE", "block_size_for", "stream_file"]

BLOCK_SIZE = 8 << 20
"""Bytes of text read at a time by default."""
_SHARE = 24  # a stream holds at most about this many times its block: raw, parsed and converted copies, read ahead
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+|nan|inf|infinity)([eE][+-]?\d+)?\s*$"
_MISSING = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")  # fmt: skip


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
    block_size: int = BLOCK_SIZE,
) -> Iterator[Rows]:
    """Rows of one file, block by block.

    Args:
        path: the file.
        columns: columns to read, with what they hold: "text", "number" or "any" (as the reader finds it). None reads all.
        format: "csv", "tsv", "parquet" or "jsonl"; default: from the extension.
        delimiter: of CSV files, default a comma (TSV: a tab).
        names: column names of a CSV file without a header line.
        block_size: bytes of text per block; for Parquet about as many bytes of decoded values.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an empty file, duplicate or missing columns, rows of different length, text that is not UTF-8, values that
            do not fit their column; names file, column and row.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    kind = format_of(path, format)
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty.")
    if kind == "parquet":
        stream = _stream_parquet(path, columns, block_size)
    elif kind == "jsonl":
        stream = _stream_json(path, columns, block_size)
    else:
        delimiter = delimiter or ("\t" if kind == "tsv" else ",")
        stream = _stream_csv(path, columns, delimiter, names, block_size)
    first = 1
    for table in _ahead(stream):
        if table.num_rows:
            yield Rows(table, str(path), first)
            first += table.num_rows
    if first == 1:
        raise ValueError(f"{path}: the file has no rows.")


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
    delimiter: str,
    names: Sequence[str] | None,
    block_size: int,
) -> Iterator[pa.RecordBatch]:
    parse = pacsv.ParseOptions(delimiter=delimiter)
    wanted = None if columns is None else list(dict.fromkeys(columns))
    types = {"text": pa.string(), "number": pa.float64()}
    types = {name: types[kind] for name, kind in (columns or {}).items() if kind in types}
    read = pacsv.ReadOptions(column_names=list(names) if names else None, block_size=block_size)
    convert = pacsv.ConvertOptions(
        column_types=types, include_columns=wanted, null_values=list(_MISSING), strings_can_be_null=False
    )
    done = 0
    try:
        check_columns(names or _csv_header(path, parse), wanted, str(path))
        with _opened(path) as stream:
            for batch in pacsv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert):
                yield batch
                done += batch.num_rows
    except pa.ArrowInvalid as error:
        raise _csv_error(path, error, types, read, parse, wanted, done) from None
    except UnicodeDecodeError as error:  # in the header line
        raise ValueError(f"{path}: not UTF-8 text ({error}); convert the file to UTF-8.") from None
    except (EOFError, OSError) as error:
        raise ValueError(f"{path}: cannot be read to its end after row {done}: {error}") from None


def _csv_header(path: Path, parse: pacsv.ParseOptions) -> list[str]:
    with _opened(path) as stream:
        return pacsv.open_csv(
            stream, parse_options=parse, read_options=pacsv.ReadOptions(block_size=1 << 20, use_threads=False)
        ).schema.names


def _csv_error(
    path: Path,
    error: pa.ArrowInvalid,
    types: dict[str, pa.DataType],
    read: pacsv.ReadOptions,
    parse: pacsv.ParseOptions,
    wanted: list[str] | None,
    done: int,
) -> ValueError:
    """pyarrow's error with the row (from 1, a header line not counted), found by a second look from row `done` on."""
    message = str(error)
    if "Empty CSV" in message:
        return ValueError(f"{path}: the file is empty.")
    header = not read.column_names
    if "conversion error" in message or "UTF8" in message:
        column = re.search(r"In CSV column #(\d+)", message)
        raw = pacsv.ConvertOptions(column_types={}, include_columns=wanted)
        names = read.column_names or _csv_header(path, parse)
        raw.column_types = dict.fromkeys(names, pa.binary())
        first = 1
        with _opened(path) as stream:
            for batch in pacsv.open_csv(stream, read_options=read, parse_options=parse, convert_options=raw):
                if first + batch.num_rows > done + 1:
                    bad = _bad_cell(batch, types, names[int(column[1])] if column else None)
                    if bad is not None:
                        name, row, value, problem = bad
                        return ValueError(f"{path}, column {name!r}: row {first + row} {problem} ({value!r}).")
                first += batch.num_rows
    if "parse error" in message:
        if "Row #" not in message:  # only a reader on one thread counts rows
            read.use_threads = False
            try:
                with _opened(path) as stream:
                    for _ in pacsv.open_csv(stream, read_options=read, parse_options=parse):
                        pass
            except pa.ArrowInvalid as located:
                message = str(located)
        message = re.sub(r"Row #(\d+)", lambda match: f"row {int(match[1]) - header}", message)
    return ValueError(f"{path}: cannot be read as delimited text: {message}")


def _bad_cell(
    batch: pa.RecordBatch, types: dict[str, pa.DataType], suspect: str | None
) -> tuple[str, int, str, str] | None:
    """Column, row (from 0), value and problem of the first cell that does not fit its column."""
    for name in batch.schema.names:
        raw = batch.column(name)
        try:
            text = raw.cast(pa.large_string())
        except pa.ArrowInvalid:
            for row, value in enumerate(raw):
                try:
                    value.as_py().decode("utf-8")
                except UnicodeDecodeError:
                    return name, row, value.as_py(), "is not UTF-8 text; convert the file to UTF-8"
            continue
        if types.get(name) == pa.float64() or (name == suspect and name not in types):
            fits = pc.or_(
                pc.match_substring_regex(text, _NUMBER, ignore_case=True),
                pc.is_in(text, pa.array(_MISSING, pa.large_string())),
            )
            bad = pc.indices_nonzero(pc.invert(fits))
            if len(bad):
                row = bad[0].as_py()
                return name, row, text[row].as_py(), "is no number, as the values before it are"
    return None


def _stream_parquet(path: Path, columns: Mapping[str, str] | None, block_size: int) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            check_columns(names, None if columns is None else list(columns), str(path))
            wanted = None if columns is None else list(dict.fromkeys(columns))
            rows = max(1024, block_size // (8 * max(len(wanted or names), 1)))
            yield from file.iter_batches(batch_size=rows, columns=wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise ValueError(f"{path}: cannot be read as parquet: {error}") from None


def _stream_json(path: Path, columns: Mapping[str, str] | None, block_size: int) -> Iterator[pa.Table]:
    done = 0
    with _opened(path) as stream:
        for block in _line_blocks(stream, block_size):
            try:
                table = pajson.read_json(
                    io.BytesIO(block), read_options=pajson.ReadOptions(block_size=len(block) + 1, use_threads=False)
                )
            except pa.ArrowInvalid as error:
                message = re.sub(
                    r"row (\d+)", lambda match, before=done: f"row {int(match[1]) + 1 + before}", str(error)
                )
                column = re.search(r"Column\(/([^)]*)\)", message)
                where = f"{path}, column {column[1]!r}" if column else str(path)
                raise ValueError(f"{where}: cannot be read as JSON lines: {message}") from None
            if columns is not None:
                if not done:
                    check_columns(table.column_names, list(columns), str(path))
                for name in columns:  # a key that a block leaves out everywhere
                    if name not in table.column_names:
                        table = table.append_column(name, pa.nulls(table.num_rows))
                table = table.select(list(dict.fromkeys(columns)))
            yield table
            done += table.num_rows


def _line_blocks(stream: BinaryIO, block_size: int) -> Iterator[bytes]:
    """Blocks of whole lines."""
    rest = b""
    while True:
        try:
            data = stream.read(block_size)
        except (EOFError, OSError) as error:
            raise ValueError(f"the file cannot be read to its end: {error}") from None
        if not data:
            break
        cut = data.rfind(b"\n") + 1
        if not cut:
            rest += data
            continue
        block, rest = rest + data[:cut], data[cut:]
        if block.strip():
            yield block
    if rest.strip():
        yield rest
