"""Values of the features of items and users as ids: of one value an id, of a list those of its first values.

Ids: 0 is padding, 1 a value that the training part never shows (out of vocabulary), known values follow from 2.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.features.canonical import neutral_text, neutral_words
from lmctr.utils.arrow import is_list
from lmctr.utils.suggest import refuse_unknown

logger = logging.getLogger(__name__)

PADDING, OOV, FIRST_ID = 0, 1, 2
_FEWEST = 2  # items or users that a value of lists stands at: of one alone it says no more than the id of that


def values_of(table: pa.Table, name: str, argument: str, where: str, as_lists: bool = False) -> pa.Array:
    """(N,) texts of a column, lists joined by "|"; or lists of texts, of texts what "|" parts.

    Raises:
        ValueError: no such column, or one of other values than these.
    """
    refuse_unknown([name], table.column_names, f"{argument} (columns of {where})")
    column = table[name].combine_chunks()
    several = is_list(column.type)
    if pa.types.is_nested(column.type.value_type if several else column.type):
        raise ValueError(
            f"{argument}: {name!r} of {where} holds {column.type}; accepted: columns of one value, or of a list of values."
        )
    if several and as_lists:
        return column.cast(pa.list_(pa.string()))
    if several and column.flatten().null_count:
        return pa.array(map(text_of, column.to_pylist()), pa.string())
    if several:
        return pc.binary_join(column.cast(pa.list_(pa.string())), "|")
    texts = (neutral_words(column) if pa.types.is_floating(column.type) else column).cast(pa.string())
    return pc.split_pattern(texts, "|") if as_lists else texts


def text_of(value: Any) -> str | None:
    """A value of a request as a text, a list joined by "|"."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return "|".join(filter(None, map(text_of, value)))
    try:
        return value if isinstance(value, str) else neutral_text(value)
    except TypeError:
        return str(value)


def given_values(values: Sequence[Any], as_lists: bool) -> pa.Array:
    """(N,) what requests say of a feature, as [`values_of`] a column."""
    if not as_lists:
        return pa.array(map(text_of, values), pa.string())
    lists = [list(map(text_of, value)) if isinstance(value, (list, tuple)) else text_of(value) for value in values]
    return pa.array([own.split("|") if isinstance(own, str) else own for own in lists], pa.list_(pa.string()))


def distinct(values: pa.Array) -> list[str]:
    """The different texts among values or lists of them, sorted."""
    values = pc.list_flatten(values) if is_list(values.type) else values
    return sorted(value for value in pc.unique(values).to_pylist() if value is not None)


def codes_of(values: pa.Array | pa.ChunkedArray, known: pa.Array | Sequence[str]) -> np.ndarray:
    """(N,) int64 ids of values."""
    known = known if isinstance(known, pa.Array) else pa.array(list(known), pa.string())
    found = pc.fill_null(pc.index_in(values, value_set=known), OOV - FIRST_ID)
    return found.to_numpy(zero_copy_only=False).astype(np.int64) + FIRST_ID


def feature_codes(values: pa.Array, known: Sequence[str], length: int | None) -> np.ndarray:
    """(N, 1) int64 ids of values, or (N, length) those of the first known, different values of lists, padding behind them; a list without any is
    unknown."""
    if length is None:
        return codes_of(values, known)[:, None]
    rows, codes, place = _known_entries(values, known)
    found = np.zeros((len(values), length), dtype=np.int64)
    found[:, 0] = OOV
    inside = place < length
    found[rows[inside], place[inside]] = codes[inside]
    return found


def fitted_values(values: pa.Array, name: str, list_values: int | None) -> tuple[list[str], int | None]:
    """The vocabulary of a feature, of values or lists of the training part, and how many of a list are read."""
    if not is_list(values.type):
        return distinct(values), None
    every = distinct(values)
    _, codes, _ = _known_entries(values, every)
    counts = np.bincount(codes, minlength=len(every) + FIRST_ID)[FIRST_ID:]
    known = [value for value, count in zip(every, counts) if count >= _FEWEST]
    _, _, place = _known_entries(values, known)
    longest, cut = int(place.max(initial=0)) + 1, int((place == list_values).sum())
    if cut:
        logger.warning(
            f"list_values: {cut:,} of {len(values):,} lists of {name!r} have more than {list_values} known values, of which the first {list_values} are read; "
            f"the longest has {longest:,}"
        )
    return known, min(longest, list_values)


def _known_entries(lists: pa.Array, known: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the known, different values of lists: rows, ids, and places in their lists."""
    rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    codes = codes_of(pc.list_flatten(lists), known)
    is_known = codes != OOV
    rows, codes = rows[is_known], codes[is_known]
    _, first = np.unique(rows * (len(known) + FIRST_ID) + codes, return_index=True)
    first.sort()
    rows, codes = rows[first], codes[first]
    return rows, codes, np.arange(len(rows)) - np.searchsorted(rows, rows)


def as_column(codes: np.ndarray) -> pa.Array:
    """(N, L) ids as a column: of whole numbers, or of lists of them."""
    flat = pa.array(codes.ravel())
    return flat if codes.shape[1] == 1 else pa.FixedSizeListArray.from_arrays(flat, codes.shape[1])


def as_matrix(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """(N, L) what [`as_column`] was made of."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    several = pa.types.is_fixed_size_list(column.type)
    flat, width = (column.flatten(), column.type.list_size) if several else (column, 1)
    return flat.to_numpy(zero_copy_only=False).reshape(len(column), width)
