"""Smaller or other files of the same rows: whole users drawn for trials, and text files as Parquet; in blocks, however long a file is."""

from __future__ import annotations

import codecs
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from lmctr.data.amounts import number_form
from lmctr.data.containers import as_readers_take_it, flat, with_plain_quotes
from lmctr.data.features.vocabulary import hash_strings
from lmctr.data.guess import sample_file
from lmctr.data.guess.shown import rows_of_items
from lmctr.data.logs.schema import read_schema
from lmctr.data.names import names_from
from lmctr.data.options import ConvertOptions, UserSampleOptions
from lmctr.data.reading import checked_file, opened
from lmctr.data.registry import find, is_schema
from lmctr.data.tables.reading import BLOCK_SIZE, MISSING_WORDS, are_codes, kinds_in_json, stream_file
from lmctr.utils.arrow import is_number
from lmctr.utils.files import beside, replacing
from lmctr.utils.progress import over
from lmctr.utils.suggest import no_column, retold

_HASHES = float(2**64)
_FIRST_LINES = 20_000  # that are looked at for quotes which part nothing


def sample_data(options: UserSampleOptions, say: Callable[[str], None] = print) -> int:
    """Writes the rows of some users, whole histories, so that a small log is like the large one. Returns the exit code.

    Who is drawn depends on the id and the seed only: the same users of every file of a log.

    Raises:
        FileNotFoundError, ValueError: a file that cannot be read, no column of this name, a share outside (0, 1].
    """
    if not 0 < options.share <= 1:
        raise ValueError(f"--share {options.share}: accepted: above 0, up to 1")
    path, column, reading = Path(options.name), options.by, {}
    if is_schema(path):
        find(str(path), "log")  # one of impressions is told as such
        schema = read_schema(path)
        path, column, reading = (
            beside(path.parent, schema.events.path),
            column or schema.columns.user.column,
            schema.events.reading(),
        )
    elif column is None:
        named = sample_file(path).named("user")
        if not named:
            raise ValueError(f"{path}: no column is called like a user; name it: --by COLUMN")
        column = named[0]
    kept = _copy(path, options.output, reading, lambda table: _chosen(table, column, options, path))
    say(f"{options.output}: {kept[0]:,} of {kept[1]:,} rows, whole {column!r}s")
    return 0


def convert_data(options: ConvertOptions, say: Callable[[str], None] = print) -> int:
    """Writes a data file in the format that the output's name ends in, with a column for each entry of objects. Returns the exit code.

    Raises:
        FileNotFoundError, ValueError: as [`~lmctr.data.containers.as_readers_take_it`] and [`~lmctr.data.tables.reading.stream_file`] do.
    """
    names = None if options.names is None else names_from(options.names)
    reading = {"delimiter": options.delimiter, "names": names}
    like = options.like and Path(options.like)

    def convert(path: Path) -> int:
        with rows_of_items(path, reading, say) as (found, how):
            return _copy(found, options.output, how, partial(flat, source=path))[1]

    with (
        _in_utf8(Path(options.name), options.encoding) as text,
        as_readers_take_it(text, say, names is not None, like) as path,
        tempfile.TemporaryDirectory() as folder,
    ):
        plain = with_plain_quotes(path, Path(folder), options.delimiter, _FIRST_LINES)
        try:
            with retold(plain or path, path):
                rows = convert(plain or path)
        except ValueError:  # such quotes stand further below, perhaps
            if plain is not None or (plain := with_plain_quotes(path, Path(folder), options.delimiter)) is None:
                raise
            with retold(plain, path):
                rows = convert(plain)
        if plain is not None:
            say(f"{path.name}: quotes are signs of its texts, as each line has as many columns without them")
    say(f"{options.output}: {rows:,} rows")
    return 0


@contextmanager
def _in_utf8(path: Path, encoding: str | None) -> Iterator[Path]:
    """A file of text; of one in another encoding a copy, for the time of the block."""
    if encoding is None:
        yield path
        return
    try:
        "".encode(encoding)
    except LookupError:
        raise ValueError(f"--encoding {encoding}: not known; accepted: such as latin-1, cp1252, utf-16, gbk") from None
    if not path.is_file() or path.suffix == ".parquet":
        raise ValueError(f"--encoding {encoding}: {path} is no file of text")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name.removesuffix(".gz")
        try:
            with opened(path, True) as stream, open(copy, "wb") as file:
                blocks = iter(lambda: stream.read(1 << 22), b"")
                file.writelines(text.encode() for text in codecs.iterdecode(blocks, encoding))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not {encoding} text ({error})") from None
        with retold(copy, path):
            yield copy


def _chosen(table: pa.Table, column: str, options: UserSampleOptions, path: Path) -> pa.Table:
    if column not in table.column_names:
        raise ValueError(f"--by: {path} has {no_column(column, table.column_names)}")
    ids = pc.binary_join_element_wise(str(options.seed), pc.cast(table[column], pa.string()).fill_null(""), ":")
    ids = pc.dictionary_encode(ids.combine_chunks())
    keep = hash_strings(ids.dictionary) < np.uint64(min(options.share * _HASHES, _HASHES - 2048))
    return table.filter(pa.array(keep[ids.indices.to_numpy(zero_copy_only=False)]))


def _copy(
    source: Path, target: str, reading: Mapping[str, Any], choose: Callable[[pa.Table], pa.Table]
) -> tuple[int, int]:
    """Rows written and read. A schema's keys read the CSV file that is written as they read the source."""
    output = Path(target)
    if output.suffix not in (".parquet", ".csv"):
        raise ValueError(f"--output {target}: give a file that ends in .parquet or .csv")
    if output.resolve() == source.resolve():
        raise ValueError(f"--output {target} is the file that is read; name another one")
    written = read = 0
    make_writer: Callable[..., Any] = pq.ParquetWriter
    if output.suffix == ".csv":
        sign = reading.get("delimiter") or ","
        if len(sign) > 1:
            raise ValueError(
                f"--output {target}: no CSV is written whose columns {sign!r} parts; give a .parquet file"
            )
        make_writer = partial(pacsv.CSVWriter, write_options=pacsv.WriteOptions(delimiter=sign))
        reading = {key: value for key, value in reading.items() if key not in ("decimal", "na_values")}
    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(output.resolve()) as temporary:
        writer = None
        columns = _as_written(source, reading)
        for rows in over(stream_file(source, columns, **reading), f"reading {source.name}", "rows", count=len):
            part = choose(rows.whole)
            if writer is None:
                schema = pa.schema([_written(field, (columns or {}).get(field.name)) for field in part.schema])
                writer = make_writer(temporary, schema)
            try:
                writer.write_table(part.cast(schema))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
                raise ValueError(
                    f"{source}: from row {rows.first} on, a column has another type than above: {error}"
                ) from None
            written, read = written + part.num_rows, read + len(rows)
        if writer is not None:
            writer.close()
    return written, read


def _as_written(source: Path, reading: Mapping[str, Any]) -> dict[str, str] | None:
    """How a text file's columns are read, by all of their values: one of numbers in which whole ones begin with a zero holds codes, 00123, and stays a text,
    as one does that goes on with words; whole numbers that go on with fractions are numbers."""
    kind = checked_file(source, reading.get("format"))[1]
    if kind == "jsonl":
        try:
            return kinds_in_json(source, BLOCK_SIZE, None)
        except ValueError:
            return None  # whose reader says what is wrong, and where
    if kind not in ("csv", "tsv"):
        return None
    schema = next(stream_file(source, **reading)).table.schema
    kinds = dict.fromkeys(schema.names, "any")
    whole, texts = (
        {field.name: "text" for field in schema if is_type(field.type)} for is_type in (pa.types.is_integer, is_number)
    )
    missing = pa.array([*MISSING_WORDS, *(reading.get("na_values") or ())])
    looked = stream_file(source, texts, **reading) if texts else ()
    for rows in over(looked, f"looking at {source.name}", "rows", count=len):
        for name in (name for name in texts if kinds[name] != "text"):
            values = rows.table[name].drop_null()
            values = values.filter(pc.invert(pc.is_in(values, missing)))
            if (name in whole and are_codes(values)) or not _all_match(
                values, rf"\s*{number_form(reading.get('decimal') or '.')}\s*"
            ):
                kinds[name] = "text"
            elif name in whole and not _all_match(values, r"\s*[+-]?\d+\s*"):
                kinds[name] = "number"
        if all(kinds[name] == "text" for name in texts):
            break
    return kinds


def _all_match(values: pa.ChunkedArray, form: str) -> bool:
    return pc.all(pc.match_substring_regex(values, f"^{form}$", ignore_case=True), min_count=0).as_py()


def _written(field: pa.Field, kind: str | None) -> pa.Field:
    """A column as what is below needs it: one that was empty so far may hold texts there, one of whole numbers fractions."""
    if kind == "number":
        return field.with_type(pa.float64())
    return field.with_type(pa.string()) if kind == "text" or pa.types.is_null(field.type) else field
