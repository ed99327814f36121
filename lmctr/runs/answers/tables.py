"""Scores for the rows of a table, for models that read fields."""

from __future__ import annotations

import csv
import itertools
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from scipy.special import expit

from lmctr.data.features.columns import Rows
from lmctr.data.features.processor import column_names
from lmctr.data.features.unknown import UnknownValues
from lmctr.data.reading import FORMATS as READ
from lmctr.data.reading import suffix_of
from lmctr.data.tables.joined import Joined, lacking, with_joined
from lmctr.data.tables.source import Reader, rows_of
from lmctr.utils.arrow import decoded, is_text, texts_of_bytes, without_empty
from lmctr.utils.ragged import blocks

from .base import moved_on, no_score, refuse_without_score, without_score
from .files import whole_output
from .requests import read_objects

Block = tuple[dict[str, Any], np.ndarray, list[str | None]]
"""Of some rows the identifying columns, (N, T) logits, and the reason why a row has none (None: scored)."""

BATCH_SIZE = 4096
RANKING = ("score",)
"""In place of tasks: a score that ranks, and stands for no probability."""
_LINES_AT_A_TIME = 4096
FORMATS = (".jsonl", ".csv", ".parquet")
_PLAIN_NUMBER = r"^(0|-?[1-9][0-9]{0,17})$"


class TableRows:
    """Scores the rows of a file with a model of a tabular family, with memory that does not grow with the file.

    Args:
        model, processor: of a tabular family.
        batch_size: rows per forward pass.
        skip: whether rows that cannot be read are skipped, with the reason, or an error.
        allow_unknown: go on where nearly all values of a field are unknown.
        names: of the columns of files without a line of them; default: those of the files of training.
        joined: gives the files with columns that an input may lack, see [`~lmctr.runs.answers.joined.joined_files_of`].

    Attributes:
        warnings: about what was unknown in the rows so far.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        processor: Any,
        batch_size: int | None = None,
        skip: bool = False,
        allow_unknown: bool = False,
        names: Sequence[str] | None = None,
        joined: Callable[[], Sequence[Joined]] = tuple,
    ):
        self.joined = joined
        self.model, self.processor, self.tasks = model, processor, processor.tasks
        self.batch_size, self.skip, self.allow_unknown = batch_size, skip, allow_unknown
        self.limits, self.reading = UnknownValues(processor), with_names(processor.reading, names)
        self.warnings: list[str] = []

    @property
    def unknown(self) -> dict[str, dict[str, int]]:
        """By field how many values there were, and how many of them unknown."""
        return self.limits.counts

    def blocks(self, source: str, id_column: str | None = None) -> Iterator[Block]:
        """The identifying columns, (N, T) logits and reasons (None: scored) of some rows after the other, in order; of no rows one empty block.

        Args:
            source: CSV or TSV (also .gz), Parquet or JSON lines file with the raw columns; `-` reads JSON lines from standard input.
                Columns that the processor does not read are ignored; the label need not be there.
            id_column: a column of the input to copy.

        Raises:
            FileNotFoundError: no such file.
            ValueError: a missing column, a value that does not fit its field (with file, column and row); a field whose values are nearly
                all unknown (see [`lmctr.data.features.unknown`]).
        """
        columns = self.processor.input_columns()
        if self.skip and "decimal" not in self.reading:
            # Numbers are read as they are written, so that one that is none is one row's.
            columns = {name: "text" if kind == "number" else kind for name, kind in columns.items()}
        check_id_column(id_column, self.tasks)
        if id_column is not None:
            columns.setdefault(id_column, "text")
        rows, read = None, partial(rows_of, source, reading=self.reading)
        if source == "-":
            read = partial(_standard_input, self.joined)
        else:
            read = _completed(read, columns, columns_of(source, self.reading), self.joined)
        for rows in read(columns):
            yield from self._block(rows, id_column)
            self.limits.add()
            self.warnings = self.limits.check(source_name(source), self.allow_unknown)
        if rows is None:
            none = {"row": [], **({} if id_column is None else {id_column: []})}
            yield none, np.zeros((0, len(self.tasks)), np.float32), []

    def _block(self, rows: Rows, id_column: str | None) -> Iterator[Block]:
        good, reasons = np.ones(len(rows), dtype=bool), [None] * len(rows)
        try:
            inputs = self.processor(rows)
        except ValueError:
            for row, error in bad_rows(lambda start, stop: self.processor(_part(rows, start, stop)), len(rows)):
                good[row], reasons[row] = False, re.sub(r" among rows (\d+) to \1\b", "", str(error))
            if not self.skip:
                if before := int(np.argmin(good)):  # is kept
                    some = _part(rows, 0, before)
                    yield _ids(some, id_column), self._logits(self.processor(some), before), reasons[:before]
                raise
            if good.any():
                inputs = self.processor(Rows(rows.table.filter(pa.array(good)), rows.source, rows.first))
        logits = np.full((len(rows), len(self.tasks)), np.nan, dtype=np.float32)
        if good.any():
            logits[good] = self._logits(inputs, int(good.sum()))
        yield from scored_blocks(rows, logits, reasons, self.skip, lambda rows: _ids(rows, id_column))

    def _logits(self, inputs: Any, count: int) -> np.ndarray:
        return table_logits(self.model, inputs, self.batch_size).reshape(count, -1)


def scored_blocks(
    rows: Rows,
    logits: np.ndarray,
    reasons: list[str | None],
    skip: bool,
    ids_of: Callable[[Rows], dict[str, Any]],
) -> Iterator[Block]:
    """Rows with (N, T) logits as a block; one without a finite logit has that as its reason, or, where none is skipped, ends all behind it.

    Raises:
        ValueError: names that row.
    """
    for row in without_score(logits):
        if reasons[row] is None:
            error = no_score(f"{rows.source}: row {rows.first + row}")
            logits[row], reasons[row] = np.nan, str(error)
            if not skip:
                if row:
                    yield ids_of(_part(rows, 0, row)), logits[:row], reasons[:row]
                raise error
    yield ids_of(rows), logits, reasons


def source_name(source: str) -> str:
    """What messages call an input."""
    return "standard input" if source == "-" else source


def bad_rows(read: Callable[[int, int], Any], stop: int, start: int = 0) -> Iterator[tuple[int, ValueError]]:
    """The rows that `read(start, stop)` refuses, with the reason of each, found by halving."""
    try:
        read(start, stop)
    except ValueError as error:
        if stop - start == 1:
            yield start, error
        else:
            middle = (start + stop) // 2
            yield from bad_rows(read, middle, start)
            yield from bad_rows(read, stop, middle)


def _part(rows: Rows, start: int, stop: int) -> Rows:
    return Rows(rows.table.slice(start, stop - start), rows.source, rows.first + start)


def _ids(rows: Rows, id_column: str | None) -> dict[str, Any]:
    ids = {} if id_column is None else {id_column: copied(rows, id_column)}
    return {"row": list(range(rows.first, rows.first + len(rows))), **ids}


def with_names(reading: Mapping[str, Any] | None, names: Sequence[str] | None) -> dict[str, Any]:
    """How text files are written, with other names of the columns where some are given."""
    return {**(reading or {}), **({} if names is None else {"names": [*names]})}


def own_columns(tasks: Sequence[str]) -> tuple[str, ...]:
    """The columns that an output of scores has of itself."""
    return ("row", "error", *(name for task in tasks for name in _score_names(task, tasks)))


def check_id_column(name: str | None, tasks: Sequence[str]) -> None:
    """Raise `ValueError` for a column to copy that the output has of itself."""
    if name in own_columns(tasks):
        raise ValueError(f"--id-column {name}: the output has a column of this name itself; rename that of the input")


def copied(rows: Rows, name: str) -> list[Any]:
    """A column that is copied, read as text: each value as it stands; those of a CSV file that are all whole numbers, or missing, as numbers.

    Raises:
        ValueError: bytes that are no UTF-8 text.
    """
    refused = f"{rows.source}, column {name!r}: bytes that are no UTF-8 text, which cannot be copied"
    column = texts_of_bytes(decoded(rows.column(name)), refused)
    if is_text(column.type) and READ.get(suffix_of(Path(rows.source or "")).lower()) in ("csv", "tsv"):
        column = without_empty(column)
        if pc.all(pc.match_substring_regex(column, _PLAIN_NUMBER)).as_py():
            column = column.cast(pa.int64())
    return column.to_pylist()


def table_logits(model: torch.nn.Module, inputs: Any, batch_size: int | None = None) -> np.ndarray:
    """(N,) float32 logits, (N, T) of several tasks, of a processor's output, `batch_size` rows at a time."""
    parts = []
    with torch.inference_mode():
        for some in blocks(len(next(iter(inputs.values()))), batch_size or BATCH_SIZE):
            batch = {key: values[some].to(model.device) for key, values in inputs.items()}
            parts.append(model(**batch).logits.float().cpu())
    return torch.cat(parts).numpy()


def finite_table_logits(
    model: torch.nn.Module, inputs: Any, batch_size: int | None = None, before: int = 0
) -> np.ndarray:
    """[`table_logits`]; raises `ValueError` for a row without a finite one, counted from 1 with those `before` it."""
    return refuse_without_score(table_logits(model, inputs, batch_size), lambda row: f"row {before + row + 1}")


def completed(rows: Any, processor: Any, joined: Callable[[], Sequence[Joined]]) -> Any:
    """Rows as `processor(rows)` takes them, with the columns that they lack and the files have."""
    columns, names = processor.input_columns(), column_names(rows, processor.reading)
    read = partial(rows_of, rows, reading=processor.reading)
    whole = read if names is None else _completed(read, columns, names, joined)
    return rows if whole is read else [own.table for own in whole(columns)]


def _completed(
    read: Reader, columns: Mapping[str, str], names: Collection[str], joined: Callable[[], Sequence[Joined]]
) -> Reader:
    return read if {*columns} <= {*names} else with_joined(read, lacking(joined(), columns, names))


def with_files(
    rows: Sequence[dict[str, Any]], files: Sequence[Joined], processor: Any, names: Collection[str]
) -> Sequence[dict[str, Any]]:
    """Objects with the columns that are not among `names` and that files have by a column of theirs.

    Raises:
        ValueError: an object without that column, called `row 1` where it is the first.
    """
    if not files:  # as of most models, for each of their requests
        return rows
    columns = processor.input_columns()
    files = [file for file in files if file.by in rows[0] and {*file.columns} & {*columns} - {*names}]
    if not files:
        return rows
    # All that the processor reads of a file, so that it is read from disk once.
    kinds = {name: columns[name] for file in files for name in file.columns if name in columns}
    for place, row in enumerate(rows, 1):
        for file in files:
            if file.by not in row:
                own = ", ".join(map(repr, (name for name in file.columns if name in columns)))
                raise ValueError(f"row {place}: no column {file.by!r}, by which {own} are known; null where it is")
    ids = [{file.by: row[file.by] for file in files} for row in rows]
    tables = (own.table.to_pylist() for own in with_joined(partial(rows_of, ids), files)(kinds))
    found = itertools.chain.from_iterable(tables)
    return [row | {name: more[name] for name in more if name not in names} for row, more in zip(rows, found)]


def columns_of(source: Any, reading: Mapping[str, Any] | None = None) -> list[str]:
    """Names of an input's columns; what Python holds tells them without its rows. reading: as in [`rows_of`]."""
    names = column_names(source, reading)
    return next(rows_of(source, None, reading=reading)).table.schema.names if names is None else names


def _standard_input(joined: Callable[[], Sequence[Joined]], columns: Mapping[str, str]) -> Iterator[Rows]:
    joined = cache(joined)  # the files are read once
    objects = (row for _, row in read_objects(sys.stdin, "standard input", "a row"))
    first = 1
    while block := list(itertools.islice(objects, _LINES_AT_A_TIME)):
        try:
            for rows in _completed(partial(rows_of, block), columns, block[0], joined)(columns):
                yield Rows(rows.table, "standard input", first + rows.first - 1)  # rows that know their place in it
        except ValueError as error:
            raise ValueError(f"standard input: {moved_on(str(error), first - 1)}") from error
        first += len(block)


def _score_names(task: str, tasks: Sequence[str]) -> tuple[str, ...]:
    """Of a task, the columns of its logit and its probability; of scores that rank, theirs."""
    end = "" if task == tasks[0] else f"_{task}"
    return RANKING if tasks is RANKING else (f"logit{end}", f"probability{end}")


def score_columns(logits: np.ndarray, tasks: Sequence[str]) -> dict[str, pa.Array]:
    """The columns `logit` and `probability` of each task of (N, T) logits, or their `score`, doubles, null where these are NaN."""
    columns = {}
    for task, values in zip(tasks, logits.T.astype(np.float64)):
        for name, found in zip(_score_names(task, tasks), (values, expit(values))):
            columns[name] = pa.array(found, from_pandas=True)
    return columns


class ScoreWriter:
    """Writes the scores of some rows after the other to a stream, in the format that the target's name ends in.

    Args:
        tasks: names of the logits of a row; those behind the first have it in the names of their columns.
    """

    def __init__(self, stream: IO[Any], target: str, tasks: Sequence[str] = ("label",)):
        self.stream, self.suffix, self.tasks = stream, Path(target).suffix, tasks
        self.names: list[str] | None = None
        self.parquet: pq.ParquetWriter | None = None

    def write(self, ids: Mapping[str, Any], logits: np.ndarray, reasons: Sequence[str | None] | None = None) -> None:
        """Rows with their identifying columns, (N, T) logits (NaN: none) and, where rows may be skipped, the reason of each or None."""
        columns = dict(ids) | score_columns(logits, self.tasks)
        if reasons is not None:
            columns["error"] = pa.array(reasons, pa.string())  # no row may have one yet
        if self.suffix == ".parquet":
            self._to_parquet(columns)
            return
        columns = {name: values if isinstance(values, list) else values.tolist() for name, values in columns.items()}
        if self.suffix == ".csv":
            rows = csv.writer(self.stream)
            if self.names is None:
                rows.writerow(columns)
            rows.writerows(zip(*columns.values()))
        else:
            for row in zip(*columns.values()):
                self.stream.write(json.dumps(dict(zip(columns, row)), ensure_ascii=False, default=str) + "\n")
        self.names = list(columns)

    def _to_parquet(self, columns: dict[str, Any]) -> None:
        if self.parquet is None:
            self.parquet = pq.ParquetWriter(self.stream, pa.table(columns).schema)
        try:
            self.parquet.write_table(pa.table(columns, schema=self.parquet.schema))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(
                f"a copied column has values of another type than in the rows before, which Parquet cannot hold ({error}); write .jsonl or .csv"
            ) from None


@contextmanager
def scores_to(target: str, tasks: Sequence[str] = ("label",)) -> Iterator[ScoreWriter]:
    """A writer to a file, or to standard output for "-", see [`whole_output`]."""
    with whole_output(target, binary=target.endswith(".parquet")) as stream:
        writer = ScoreWriter(stream, target, tasks)
        try:
            yield writer
        finally:
            if writer.parquet is not None:
                writer.parquet.close()
