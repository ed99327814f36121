"""Scores for the rows of a table, for models that read fields."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy.special import expit

from lmctr.data.features.columns import Rows
from lmctr.data.features.unknown import UnknownValues
from lmctr.data.tables.source import rows_of
from lmctr.utils.progress import over

from .files import whole_output
from .requests import read_objects

__all__ = ["FORMATS", "ScoreWriter", "predict_table", "scores_to", "table_logits"]

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
            of data), the `id_column` where one is given, `logit` and `probability`, of further tasks `logit_<task>` and `probability_<task>`.
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
    tasks = processor.tasks
    with scores_to(target, tasks) as writer:
        for rows in over(_rows(source, columns, processor.reading), f"scoring {name}", "rows", count=len):
            logits = table_logits(model, processor(rows), batch_size)
            unknown.add()
            unknown.check(name, allow_unknown)
            ids = {} if id_column is None else {id_column: rows.column(id_column).to_pylist()}
            writer.write(
                {"row": list(range(count + 1, count + 1 + len(logits))), **ids}, logits.reshape(len(logits), -1)
            )
            count += len(logits)
        if not count:
            writer.write(
                {"row": [], **({} if id_column is None else {id_column: []})}, np.zeros((0, len(tasks)), np.float32)
            )
    return count, unknown.counts, unknown.check(name, allow_unknown)


def table_logits(model: torch.nn.Module, inputs: Any, batch_size: int | None = None) -> np.ndarray:
    """(N,) float32 logits, (N, T) of several tasks, of a processor's output, `batch_size` rows at a time."""
    parts = []
    num_rows, size = len(next(iter(inputs.values()))), batch_size or BATCH_SIZE
    with torch.inference_mode():
        for start in range(0, num_rows, size):
            batch = {key: values[start : start + size].to(model.device) for key, values in inputs.items()}
            parts.append(model(**batch).logits.float().cpu())
    return torch.cat(parts).numpy()


def _rows(source: str, columns: dict[str, str], reading: Mapping[str, Any] | None) -> Iterator[Rows]:
    if source != "-":
        yield from rows_of(source, columns, reading=reading)
        return
    objects = (row for _, row in read_objects(sys.stdin, "standard input", "a row"))
    first = 1
    while block := list(itertools.islice(objects, _LINES_AT_A_TIME)):
        for rows in rows_of(block, columns):
            yield Rows(rows.table, "standard input", first)  # rows that know their place in it
        first += len(block)


class ScoreWriter:
    """Writes the scores of some rows after the other to a stream, in the format that the target's name ends in.

    Args:
        tasks: names of the logits of a row; those behind the first have it in the names of their columns.
    """

    def __init__(self, stream: IO[Any], target: str, tasks: Sequence[str] = ("label",)):
        self.stream, self.suffix, self.tasks = stream, Path(target).suffix, tasks
        self.names: list[str] | None = None
        self.parquet: pq.ParquetWriter | None = None

    def write(self, ids: Mapping[str, list], logits: np.ndarray, reasons: Sequence[str | None] | None = None) -> None:
        """Rows with their identifying columns, (N, T) logits (NaN: none) and, where rows may be skipped, the reason of each or None."""
        columns = dict(ids)
        for task, values in zip(self.tasks, logits.T.astype(np.float64)):
            end = "" if task == self.tasks[0] else f"_{task}"
            for name, found in (("logit", values), ("probability", expit(values))):
                columns[f"{name}{end}"] = [None if value != value else value for value in found.tolist()]
        if reasons is not None:
            columns["error"] = list(reasons)
        if self.suffix == ".parquet":
            self._to_parquet(columns)
        elif self.suffix == ".csv":
            rows = csv.writer(self.stream)
            if self.names is None:
                rows.writerow(columns)
            rows.writerows(zip(*columns.values()))
        else:
            for row in zip(*columns.values()):
                self.stream.write(json.dumps(dict(zip(columns, row)), ensure_ascii=False, default=str) + "\n")
        self.names = list(columns)

    def _to_parquet(self, columns: dict[str, list]) -> None:
        if self.parquet is None:
            block = pa.table(columns)
            kinds = {"error": pa.string()}  # no row may have one yet
            schema = pa.schema([field.with_type(kinds.get(field.name, field.type)) for field in block.schema])
            self.parquet = pq.ParquetWriter(self.stream, schema)
        self.parquet.write_table(pa.table(columns, schema=self.parquet.schema))


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
