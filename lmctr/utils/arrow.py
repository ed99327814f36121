"""Types of Arrow columns, and columns in plain types."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .rows import row_of_frame


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type are whole or floating numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def whole_numbers(values: Any) -> Any:
    """Whole numbers, or their texts, as int64; as texts where one needs more bits."""
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return values.cast(pa.string())


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists of any length."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def plain_number(values: Any) -> Any:
    """Codes of numbers as these, and decimals, as databases write prices and grades, as whole numbers, or as floats where they have places behind the
    point; others as they are."""
    kind = plain_type(values.type)
    if is_number(kind):
        return decoded(values)
    if not pa.types.is_decimal(kind):
        return values
    values = decoded(values)
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return values.cast(pa.string()).cast(pa.float64())  # directly 0.7 may become 0.7000000000000001


def known_value(values: Any) -> Any:
    """What describes an item, a user or an event, whatever it came from: no codes, lists of one kind, and missing values for empty texts and NaN."""
    values = plain_number(decoded(values))
    if is_list(values.type) or pa.types.is_fixed_size_list(values.type):
        kind = values.type.value_type
        kind = plain_type(kind)
        return values.cast(pa.list_(pa.string() if is_text(kind) else kind))
    return without_empty(values)


def with_columns(
    table: pa.Table, ids: Collection[str], change: Callable[[pa.ChunkedArray], pa.ChunkedArray]
) -> pa.Table:
    """The table with its columns changed, but for the ids."""
    for place, name in enumerate(table.column_names):
        if name not in ids:
            table = table.set_column(place, name, change(table.column(place)))
    return table


def of_other_library(value: Any) -> Any:
    """A table that another library hands out by Arrow's interface (polars, DuckDB) as a pyarrow Table; of pandas' an index with a name is a column; what
    else there is as it is."""
    if hasattr(value, "iloc") and hasattr(value, "columns"):
        return value.reset_index() if any(own not in (None, *value.columns) for own in value.index.names) else value
    is_own = isinstance(value, (pa.Table, pa.RecordBatch, pa.RecordBatchReader))
    if is_own or not (hasattr(value, "__arrow_c_stream__") and hasattr(value, "columns")):
        return value
    table = pa.table(value)
    columns = {name: map(_plain, column.chunks) for name, column in zip(table.column_names, table.columns)}
    return pa.table(
        {name: pa.chunked_array([*chunks]) if table.num_rows else pa.array([]) for name, chunks in columns.items()}
    )


def held(value: Any) -> Any:
    """[`of_other_library`]; what can be read only once is read: batches, tables or frames of the same columns as one, else as a list."""
    value = of_other_library(value)
    if isinstance(value, Iterator):
        value = [row_of_frame(own) for own in value]
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "columns"):
        parts = [*map(of_other_library, value)]
        if {*map(type, parts)} in ({pa.RecordBatch}, {pa.Table}):
            with contextlib.suppress(pa.ArrowInvalid):  # of other columns, whose reader says what it lacks
                return pa.concat_tables(map(pa.table, parts))
        elif all(hasattr(own, "iloc") and {*own.columns} == {*parts[0].columns} for own in parts):
            import pandas

            return pandas.concat(parts, ignore_index=True)
    return value


_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary(), pa.float16(): pa.float32()}


def _plain(values: pa.Array) -> pa.Array:
    """Texts, bytes and numbers in the layout that Parquet and most functions know."""
    if pa.types.is_dictionary(values.type):
        return pa.DictionaryArray.from_arrays(values.indices, _plain(values.dictionary))
    return values.cast(_PLAIN.get(values.type, values.type))


def with_plain_types(table: Any) -> Any:
    """A table, or batch, in types that most functions know: texts, bytes, numbers, lists, JSON, UUIDs and arrays of types of their own in their usual
    layout; bytes that are UTF-8 as texts, which some programs write so."""
    table = without_extensions(table)
    for place, own in enumerate(table.schema):
        kind, column = own.type, table.column(place)
        is_fixed = pa.types.is_fixed_size_list(kind)
        if is_fixed or (is_list(kind) and kind.value_type in _PLAIN):
            column = column.cast(pa.large_list(_PLAIN.get(kind.value_type, kind.value_type)))
        elif kind in _PLAIN:
            column = column.cast(_PLAIN[kind])
        if is_bytes(column.type):
            with contextlib.suppress(pa.ArrowInvalid):
                column = column.cast(pa.large_binary()).cast(pa.large_string())
        if column.type != own.type:
            table = table.set_column(place, own.name, column)
    return table


def without_extension(values: Any) -> Any:
    """A column of JSON or of arrays, which have types of their own, as texts or lists, and one of UUIDs, or lists of them, as their texts; others as they
    are."""
    kind = values.type
    of_list = is_list(kind) and isinstance(kind.value_type, pa.BaseExtensionType)
    if not of_list and not isinstance(kind, pa.BaseExtensionType):
        return values
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks else pa.nulls(0, kind)
    if of_list:
        ends = np.cumsum(pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int64())
        return pa.LargeListArray.from_arrays(offsets, without_extension(values.flatten()), mask=values.is_null())
    if is_text(kind.storage_type) or is_list(kind.storage_type):
        return values.cast(kind.storage_type)
    if kind.extension_name != "arrow.uuid":
        return values
    encoded = values.cast(kind.storage_type).dictionary_encode()
    texts = [None if own is None else str(uuid.UUID(bytes=own)) for own in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.large_string()).take(encoded.indices)


def without_extensions(table: Any) -> Any:
    """[`without_extension`] of each column of a table or batch."""
    for place, own in enumerate(table.schema):
        column = without_extension(table.column(place))
        if column.type != own.type:
            table = table.set_column(place, own.name, column)
    return table


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values of this type are bytes, which may be a text's."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def decoded(values: Any) -> Any:
    """A column as its values, also where it is codes of a dictionary."""
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's values, of codes their dictionary's."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def texts_of_bytes(values: pa.Array, refused: str) -> pa.Array:
    """A column of bytes as its texts; others as they are.

    Raises:
        ValueError: `refused`, for bytes that are no UTF-8 text.
    """
    if not is_bytes(values.type):
        return values
    try:
        return values.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        raise ValueError(refused) from None


def without_empty(values: Any) -> Any:
    """Texts with missing values for the empty ones, as which a text file writes them, and floats for NaN; others as they are."""
    if is_text(values.type):
        empty = pc.equal(values, "")
    elif pa.types.is_floating(values.type):
        empty = pc.is_nan(values)
    else:
        return values
    return pc.if_else(empty, pa.scalar(None, values.type), values) if pc.any(empty).as_py() else values


def first_of_each(rows: pa.Table) -> pa.Array:
    """(K,) numbers of the first of all rows that are alike, in their order; lists are alike where their texts are."""
    flat = [pa.array(map(str, own.to_pylist())) if pa.types.is_nested(own.type) else own for own in rows.columns]
    names = [str(place) for place in range(len(flat))]
    numbered = pa.table([*flat, np.arange(rows.num_rows)], [*names, "row"])
    return pa.array(np.sort(numbered.group_by(names).aggregate([("row", "min")])["row_min"].to_numpy()))
