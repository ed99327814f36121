"""Scores for the rows of a table, for models that read fields."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lmctr.data.features.columns import Rows
from lmctr.data.features.unknown import UnknownValues
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
    allow_unknown: bool = False,
) -> tuple[int, dict[str, dict[str, int]], list[str]]:
    """Score every row of a file, in order, with memory that does not grow with the file.

    Args:
        model, processor: of a tabular family.
        source: CSV or TSV (also .gz), Parquet or JSON lines file with the raw columns; `-` reads JSON lines from standard input. Columns
            that the processor does not read are ignored; the label need not be there.
        target: `.jsonl`, `.csv` or `.parquet` file, or `-` for JSON lines on standard output. Each row has `row` (1 is the first row
            of data), the `id_column` where one is given, `logit` and `probability`.
        id_column: a column of the input to copy.
        batch_size: rows per forward pass.
        allow_unknown: go on where nearly all values of a field are unknown.

    Returns:
        The number of rows, what was unknown in each field, and warnings about it.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a missing column, a value that does not fit its field (with file, column and row); a field whose values are nearly all
            unknown (see [`lmctr.data.features.unknown`]).
    """
    columns = processor.input_columns()
    if id_column is not None:
        columns.setdefault(id_column, "any")
    count, unknown, name = 0, UnknownValues(processor), "standard input" if source == "-" else source
    with whole_output(target, binary=target.endswith(".parquet")) as stream:
        writer = _Writer(stream, target, id_column)
        for rows in _rows(source, columns):
            logits = table_logits(model, processor(rows), batch_size)
            unknown.add()
            unknown.check(name, allow_unknown)
            ids = None if id_column is None else rows.column(id_column).to_pylist()
            writer.write(count + 1, ids, logits)
            count += len(logits)
        writer.close()
    return count, unknown.counts, unknown.check(name, allow_unknown)


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


class _Writer:
    """Writes the scores of some rows after the other to a stream, in the format that the target's name ends in."""

    def __init__(self, stream: IO[Any], target: str, id_column: str | None):
        self.stream, self.suffix = stream, Path(target).suffix
        self.names = ["row", *([] if id_column is None else [id_column]), "logit", "probability"]
        self.parquet: pq.ParquetWriter | None = None
        if self.suffix == ".csv":
            csv.writer(stream).writerow(self.names)

    def write(self, first: int, ids: list | None, logits: np.ndarray) -> None:
        """The rows from number `first` on, with their ids."""
        values = logits.astype(np.float64)
        columns = [list(range(first, first + len(logits))), values.tolist(), (1 / (1 + np.exp(-values))).tolist()]
        if len(self.names) > len(columns):
            columns.insert(1, ids)
        if self.suffix == ".parquet":
            block = pa.table(dict(zip(self.names, columns)), schema=self.parquet and self.parquet.schema)
            self.parquet = self.parquet or pq.ParquetWriter(self.stream, block.schema)
            self.parquet.write_table(block)
        elif self.suffix == ".csv":
            csv.writer(self.stream).writerows(zip(*columns))
        else:
            for row in zip(*columns):
                self.stream.write(json.dumps(dict(zip(self.names, row)), ensure_ascii=False, default=str) + "\n")

    def close(self) -> None:
        """Nothing more comes."""
        if self.suffix == ".parquet":
            if self.parquet is None:
                self.write(1, [], np.zeros(0, dtype=np.float32))
            self.parquet.close()
