"""Tables in memory, of whatever library, as Arrow's: one door for logs and for tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from lmctr.data.logs.columns import MixedValuesError, as_arrow
from lmctr.data.reading import check_columns
from lmctr.data.tables.arrays import array_of
from lmctr.utils.arrow import of_other_library, without_extensions
from lmctr.utils.rows import is_column, plain_row, refuse_parts
from lmctr.utils.suggest import first_listed, first_quoted

Table = pa.Table | pa.RecordBatch
ArrayOf = Callable[[Any, str], pa.Array | pa.ChunkedArray]
_BATCH = 1 << 14  # rows of a data set that are read at once


def arrow_table(data: Any, name: str, wanted: list[str] | None = None) -> pa.Table:
    """A table in memory, its `wanted` columns or all, of what [`arrow_tables`] takes. A column of texts, numbers and booleans becomes their texts.

    Raises:
        ValueError: another kind of table, no rows of a data set, a missing or doubled column; starts with `name`.
    """

    def array(values: Any, column: str) -> pa.Array:
        try:
            return as_arrow(values, column, name)
        except MixedValuesError:
            with suppress(ValueError):
                return array_of(values, column, "text")
            raise

    data = of_other_library(data)
    found = list(arrow_tables(data, wanted, name, array))
    tables = [pa.Table.from_batches([own]) if isinstance(own, pa.RecordBatch) else own for own in found]
    if not tables:
        raise ValueError(f"{name}: the table has no rows.")
    if isinstance(data, Table):
        return tables[0]
    # what pandas writes there may differ from part to part
    said = {key: value for key, value in (tables[0].schema.metadata or {}).items() if key == b"huggingface"}
    return pa.concat_tables(table.replace_schema_metadata(said) for table in tables)


def arrow_tables(
    data: Any, wanted: Collection[str] | None, name: str, array_of: ArrayOf, also: str = ""
) -> Iterator[Table]:
    """What holds a table in memory as one Arrow table, or as several, one after the other.

    Args:
        data: a pyarrow Table, RecordBatch or RecordBatchReader, a `datasets` Dataset or IterableDataset, a pandas DataFrame, a table of another
            library that hands out Arrow (polars, DuckDB), a dict of columns, a list of dicts, or an iterable of dicts or of RecordBatches.
        wanted: columns to read; None: all. name: what messages call the data. array_of: makes an array of a column's values and its name.
        also: what the caller takes besides, for messages.

    Raises:
        ValueError: another kind of table, a missing or doubled column, columns that differ in length.
    """
    data = of_other_library(data)
    refuse_parts(data, name)
    if isinstance(data, Table):
        yield _select(data, wanted, name)
    elif hasattr(data, "with_format") and hasattr(data, "column_names"):  # datasets
        if wanted is not None and data.column_names is not None:
            _check(data.column_names, wanted, name)
            data = data.select_columns(list(wanted))
        for table in data.with_format("arrow").iter(batch_size=_BATCH):
            yield _select(table, wanted, name)
    elif isinstance(data, Mapping):
        yield _from_columns(data, wanted, name, array_of)
    elif hasattr(data, "columns") and hasattr(data, "dtypes"):  # pandas
        names = [str(column) for column in data.columns]
        _check(names, wanted, name)
        yield pa.table({own: array_of(data.iloc[:, names.index(own)], own) for own in wanted or names})
    elif isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        if data and isinstance(data[0], Table):
            yield from (_select(table, wanted, name) for table in data)
        else:
            yield _from_dicts(data, wanted, array_of)
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        for table in (stream := iter(data)):
            if isinstance(table, Mapping):
                yield _from_dicts([table, *stream], wanted, array_of)
            elif isinstance(table, Table):
                yield _select(table, wanted, name)
            else:
                raise ValueError(
                    f"{name}: expected rows (dicts) or pyarrow RecordBatches in a {type(data).__name__}, got {type(table).__name__}; "
                    "give [row] for a single row."
                )
    else:
        raise ValueError(
            f"{name}: got {type(data).__name__}; accepted: a pyarrow table, a datasets Dataset, a pandas DataFrame, a dict of columns, a list of dicts{also}."
        )


def _check(found: Sequence[str], wanted: Collection[str] | None, name: str) -> None:
    doubled = sorted({own for own in found if list(found).count(own) > 1} & {*(wanted or found)})
    if doubled:
        raise ValueError(f"{name}: duplicate columns {doubled}; give each column a name of its own.")
    check_columns(list(dict.fromkeys(found)), wanted, name)


def _select(table: Table, wanted: Collection[str] | None, name: str) -> Table:
    _check(table.schema.names, wanted, name)
    return without_extensions(table if wanted is None else table.select(list(wanted)))


def _from_columns(data: Mapping[str, Any], wanted: Collection[str] | None, name: str, array_of: ArrayOf) -> pa.Table:
    check_columns(list(data), wanted, name)
    for own in wanted or data:
        if not is_column(data[own]):
            raise ValueError(
                f"{name}: the column {own!r} is no list of values, got {data[own]!r:.80}; give [row] for a single row."
            )
    arrays = {own: array_of(data[own], own) for own in wanted or data}
    lengths = {own: len(array) for own, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name}: the columns differ in length: {lengths}.")
    return pa.table(arrays)


def _from_dicts(data: Sequence[Mapping[str, Any]], wanted: Collection[str] | None, array_of: ArrayOf) -> pa.Table:
    data = [row if isinstance(row, Mapping) else plain_row(row) for row in data]
    for number, row in enumerate(data, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"row {number}: expected a dict of columns, got {type(row).__name__} {row!r:.80}.")
    names = list(wanted) if wanted is not None else list(dict.fromkeys(key for row in data for key in row))
    for number, row in enumerate(data, 1):
        missing = [name for name in names if name not in row]
        if missing:
            raise ValueError(
                f"row {number}: no column {first_quoted(missing)}; pass None (in JSON null) for a missing value. It has {first_listed(row)}."
            )
    return pa.table({name: array_of([row[name] for row in data], name) for name in names})
