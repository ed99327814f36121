"""Parquet files that others wrote, read within a budget: a small file can stand for more values than memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmctr.utils.files import for_arrow

_LEAST, _FACTOR = 256 << 20, 64
"""What a file may take in memory: this many bytes, or this many times its size."""


def read_parquet(path: str | Path) -> pa.Table:
    """A whole file, as `row_groups` reads it."""
    groups = list(row_groups(path))
    return pa.concat_tables(groups) if groups else pq.read_schema(for_arrow(path)).empty_table()


def row_groups(path: str | Path) -> Iterator[pa.Table]:
    """A file's row groups, or a refusal before the memory is taken.

    Raises:
        ValueError: no parquet file, a damaged one, or one that takes far more memory than its size lets expect; names it.
    """
    path = Path(path)
    try:
        taken, plain = 0, pq.read_schema(for_arrow(path))
        words = [field.name for field in plain if _is_words(field.type)]
        # words as codes: written out they may be any size
        with pq.ParquetFile(for_arrow(path), read_dictionary=words) as file:
            stated = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            values = sum(group.column(place).num_values for group in stated for place in range(group.num_columns))
            _check(path, max(sum(group.total_byte_size for group in stated), 8 * values))
            for number in range(file.num_row_groups):
                batches = []
                for batch in file.iter_batches(batch_size=1 << 16, row_groups=[number]):
                    taken += sum(map(_size, batch.columns))
                    _check(path, taken)
                    batches.append(batch)
                yield pa.Table.from_batches(batches, None if batches else file.schema_arrow).cast(plain)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: cannot be read as parquet ({error}); it is damaged or cut off") from error


def _size(column: pa.Array) -> int:
    if not (pa.types.is_dictionary(column.type) and _is_words(column.type.value_type)):
        return column.nbytes
    lengths = pc.binary_length(column.dictionary)
    return pc.sum(lengths.take(column.indices)).as_py() or 0


def _is_words(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary))


def _check(path: Path, taken: int) -> None:
    size = path.stat().st_size
    budget = max(_LEAST, _FACTOR * size)
    if taken > budget:
        raise ValueError(
            f"{path}: its {size:,} bytes stand for {taken:,} or more in memory, accepted are {budget:,}; no such table is written here: "
            "make it anew"
        )
