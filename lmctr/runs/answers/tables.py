"""Scores for the rows of a table: what `lmctr predict` does with a run whose model reads fields."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lmctr.runs.answers.common import load_for_scoring
from lmctr.runs.folder import RunFolder

if TYPE_CHECKING:
    import numpy as np

    from lmctr.data.features.columns import Rows

BATCH_SIZE = 4096
_LINES_AT_A_TIME = 4096
_FORMATS = (".jsonl", ".csv", ".parquet")


def predict_table(
    folder: RunFolder,
    source: str,
    target: str = "-",
    id_column: str | None = None,
    batch_size: int | None = None,
    device: str | None = None,
) -> int:
    """Score every row of a file, in order, with memory that does not grow with the file.

    Args:
        folder: a finished run of a tabular family.
        source: CSV or TSV (also .gz), Parquet or JSON lines file with the raw columns; `-` reads JSON lines from standard input. Columns
            that the processor does not read are ignored; the label need not be there.
        target: `.jsonl`, `.csv` or `.parquet` file, or `-` for JSON lines on standard output. Each row has `row` (1 is the first row
            of data), the `id_column` where one is given, `logit` and `probability`.
        id_column: a column of the input to copy.
        batch_size: rows per forward pass.
        device: torch device, default: cuda where there is one.

    Returns:
        The number of rows.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a missing column, a value that does not fit its field (with file, column and row), another file extension.
    """
    if target != "-" and Path(target).suffix not in _FORMATS:
        raise ValueError(
            f"--output {target}: give a file that ends in {', '.join(_FORMATS)}, or - for standard output"
        )
    model, processor = load_for_scoring(folder, device)
    columns = processor.input_columns()
    if id_column is not None:
        columns.setdefault(id_column, "any")
    count = 0
    with _writer(target, id_column) as write:
        for rows in _rows(source, columns):
            inputs = processor(rows, return_tensors="pt")
            logits = _scores(model, inputs, batch_size or BATCH_SIZE)
            ids = None if id_column is None else rows.column(id_column).to_pylist()
            write(count + 1, ids, logits)
            count += len(logits)
    return count


def _scores(model: Any, inputs: Any, batch_size: int) -> np.ndarray:
    """(N,) float32 logits, `batch_size` rows at a time."""
    import torch

    parts = []
    num_rows = len(next(iter(inputs.values())))
    with torch.inference_mode():
        for start in range(0, num_rows, batch_size):
            batch = {key: values[start : start + batch_size].to(model.device) for key, values in inputs.items()}
            parts.append(model(**batch).logits.float().cpu())
    return torch.cat(parts).numpy()


def _rows(source: str, columns: dict[str, str]) -> Iterator[Rows]:
    from lmctr.data.tables.source import rows_of

    if source != "-":
        yield from rows_of(source, columns)
        return
    for first, lines in _blocks(sys.stdin):
        yield from (_numbered(rows, first) for rows in rows_of(lines, columns))


def _numbered(rows: Rows, first: int) -> Rows:
    """Rows that know their place in standard input."""
    from lmctr.data.features.columns import Rows

    return Rows(rows.table, "standard input", first)


def _blocks(stream: IO[str]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """JSON lines in blocks, with the number of each block's first row; blank lines are skipped."""
    block: list[dict[str, Any]] = []
    count = 0
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"standard input, line {number}: not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"standard input, line {number}: a row is a JSON object, got {type(row).__name__}")
        block.append(row)
        if len(block) == _LINES_AT_A_TIME:
            yield count + 1, block
            count, block = count + len(block), []
    if block:
        yield count + 1, block


@contextmanager
def _writer(target: str, id_column: str | None) -> Iterator[Callable[[int, list | None, np.ndarray], None]]:
    """A function that writes the scores of some rows: number of the first, their ids, their logits."""
    import numpy as np

    names = ["row", *([id_column] if id_column is not None else []), "logit", "probability"]

    def table(first: int, ids: list | None, logits: np.ndarray) -> list[list[Any]]:
        values = logits.astype(np.float64)
        columns = [list(range(first, first + len(logits))), *([ids] if ids is not None else [])]
        return [*columns, values.tolist(), (1 / (1 + np.exp(-values))).tolist()]

    if target.endswith(".parquet"):
        with _parquet(target, names) as write_columns:
            yield lambda *part: write_columns(table(*part))
        return
    stream = sys.stdout if target == "-" else open(target, "w", encoding="utf-8", newline="")  # noqa: SIM115
    try:
        if target.endswith(".csv"):
            writer = csv.writer(stream)
            writer.writerow(names)
            yield lambda *part: writer.writerows(zip(*table(*part)))
        else:

            def write_lines(*part: Any) -> None:
                for row in zip(*table(*part)):
                    stream.write(json.dumps(dict(zip(names, row)), ensure_ascii=False, default=str) + "\n")

            yield write_lines
        stream.flush()
    finally:
        if stream is not sys.stdout:
            stream.close()


@contextmanager
def _parquet(target: str, names: list[str]) -> Iterator[Callable[[list[list[Any]]], None]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None

    def write(columns: list[list[Any]]) -> None:
        nonlocal writer
        block = pa.table(dict(zip(names, columns)), schema=None if writer is None else writer.schema)
        if writer is None:
            writer = pq.ParquetWriter(target, block.schema)
        writer.write_table(block)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
