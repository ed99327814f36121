"""Scores for the rows of a table, for models that read fields."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lmctr.data.features.columns import Rows
from lmctr.data.features.transform import add_counts
from lmctr.data.tables.source import rows_of

from .files import whole_output
from .requests import read_objects

__all__ = ["FORMATS", "predict_table", "table_logits"]

BATCH_SIZE = 4096
_LINES_AT_A_TIME = 4096
FORMATS = (".jsonl", ".csv", ".parquet")


def predict_table(
    model: torch.nn.Module,
    processor: Any,
    source: str,
    target: str = "-",
    id_column: str | None = None,
    batch_size: int | None = None,
) -> tuple[int, dict[str, dict[str, int]]]:
    """Score every row of a file, in order, with memory that does not grow with the file.

    Args:
        model, processor: of a tabular family.
        source: CSV or TSV (also .gz), Parquet or JSON lines file with the raw columns; `-` reads JSON lines from standard input. Columns
            that the processor does not read are ignored; the label need not be there.
        target: `.jsonl`, `.csv` or `.parquet` file, or `-` for JSON lines on standard output. Each row has `row` (1 is the first row
            of data), the `id_column` where one is given, `logit` and `probability`.
        id_column: a column of the input to copy.
        batch_size: rows per forward pass.

    Returns:
        The number of rows, and what was unknown in each field.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a missing column, a value that does not fit its field (with file, column and row).
    """
    columns = processor.input_columns()
    if id_column is not None:
        columns.setdefault(id_column, "any")
    count, unknown = 0, {}
    with _writer(target, id_column) as write:
        for rows in _rows(source, columns):
            logits = table_logits(model, processor(rows), batch_size)
            unknown = add_counts([unknown, processor.oov_counts])
            ids = None if id_column is None else rows.column(id_column).to_pylist()
            write(count + 1, ids, logits)
            count += len(logits)
    return count, unknown


def table_logits(model: torch.nn.Module, inputs: Any, batch_size: int | None = None) -> np.ndarray:
    """(N,) float32 logits of a processor's output, `batch_size` rows at a time."""
    parts = []
    num_rows, size = len(next(iter(inputs.values()))), batch_size or BATCH_SIZE
    with torch.inference_mode():
        for start in range(0, num_rows, size):
            batch = {key: values[start : start + size].to(model.device) for key, values in inputs.items()}
            parts.append(model(**batch).logits.float().cpu())
    return torch.cat(parts).numpy()


def _rows(source: str, columns: dict[str, str]) -> Iterator[Rows]:
    if source != "-":
        yield from rows_of(source, columns)
        return
    objects = (row for _, row in read_objects(sys.stdin, "standard input", "a row"))
    first = 1
    while block := list(itertools.islice(objects, _LINES_AT_A_TIME)):
        for rows in rows_of(block, columns):
            yield Rows(rows.table, "standard input", first)  # rows that know their place in it
        first += len(block)


@contextmanager
def _writer(target: str, id_column: str | None) -> Iterator[Callable[[int, list | None, np.ndarray], None]]:
    """A function that writes the scores of some rows: number of the first, their ids, their logits."""
    names = ["row", *([id_column] if id_column is not None else []), "logit", "probability"]
    opened = {".parquet": _parquet, ".csv": _csv}.get(
        target[target.rfind(".") :] if target != "-" else "", _json_lines
    )
    with whole_output(target, binary=target.endswith(".parquet")) as stream, opened(stream, names) as write_columns:

        def write(first: int, ids: list | None, logits: np.ndarray) -> None:
            values = logits.astype(np.float64)
            columns = [list(range(first, first + len(logits))), *([ids] if ids is not None else [])]
            write_columns([*columns, values.tolist(), (1 / (1 + np.exp(-values))).tolist()])

        yield write


@contextmanager
def _csv(stream: IO[str], names: list[str]) -> Iterator[Callable[[list[list[Any]]], None]]:
    writer = csv.writer(stream)
    writer.writerow(names)
    yield lambda columns: writer.writerows(zip(*columns))


@contextmanager
def _json_lines(stream: IO[str], names: list[str]) -> Iterator[Callable[[list[list[Any]]], None]]:
    def write(columns: list[list[Any]]) -> None:
        for row in zip(*columns):
            stream.write(json.dumps(dict(zip(names, row)), ensure_ascii=False, default=str) + "\n")

    yield write


@contextmanager
def _parquet(stream: IO[bytes], names: list[str]) -> Iterator[Callable[[list[list[Any]]], None]]:
    writer = None

    def write(columns: list[list[Any]]) -> None:
        nonlocal writer
        block = pa.table(dict(zip(names, columns)), schema=None if writer is None else writer.schema)
        if writer is None:
            writer = pq.ParquetWriter(stream, block.schema)
        writer.write_table(block)

    yield write
    if writer is None:
        write([[] for _ in names])
    writer.close()
