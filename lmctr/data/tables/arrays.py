"""Values of a column in memory as one pyarrow array, by what the column holds."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from lmctr.data.features.canonical import neutral_text
from lmctr.utils.arrow import without_extension
from lmctr.utils.rows import is_missing_mark

_LISTS = (list, tuple, np.ndarray)
_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def array_of(values: Any, name: str, kind: str | None, first: int = 1) -> pa.Array | pa.ChunkedArray:
    """A column's values as an array.

    Args:
        values: a list, a numpy array, a torch tensor or a pandas Series (NaN is missing there), a pyarrow array.
        name: of the column, for messages.
        kind: "text": values of several types, and integers beyond 64 bits, become their texts; "number": such integers become floats.
        first: number of the first row, for messages.

    Raises:
        ValueError: values without a common type; names the column and, where one value is to blame, the row.
    """
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return without_extension(values)
    if hasattr(values, "numpy"):  # a tensor, of a data set with the format "torch"
        values = values.numpy(force=True)
    if isinstance(values, np.ndarray) and values.ndim == 2:
        values = list(values)
    of_frame = hasattr(values, "dtype")
    problem: Exception = ValueError("numbers and booleans mixed")
    try:
        array = without_extension(pa.array(values, from_pandas=True) if of_frame else pa.array(values))
        if kind != "text" or isinstance(values, np.ndarray) or not _has_bools(array, values):
            return array
    except UnicodeEncodeError:
        raise _no_text(values, name, first) from None
    except (*_ERRORS, TypeError, ValueError) as error:  # TypeError: arrays inside lists
        if any(map(is_missing_mark, values)):  # rows of a frame with missing values, one by one
            return array_of([None if is_missing_mark(value) else value for value in values], name, kind, first)
        if any(map(_holds_uuids, values)):  # in lists, which Arrow takes none of
            return array_of([*map(_uuids_as_texts, values)], name, kind, first)
        problem = error
    of_value = {"text": _text, "number": _number}.get(kind)
    try:
        if of_value is not None:
            return pa.array([of_value(value) for value in values], from_pandas=True)
    except UnicodeEncodeError:
        raise _no_text(values, name, first) from None
    except (*_ERRORS, TypeError) as error:
        problem = problem if isinstance(problem, pa.ArrowException) else error
    raise ValueError(
        f"column {name!r}: the values have no common type{_unlike(values, first) or f': {problem}'}. Accepted: values of one type in a column; of categorical "
        "fields also texts, numbers and booleans mixed."
    ) from None


def _unlike(values: Any, first: int) -> str:
    """The first value of a column, and the first of another type, with their rows, for messages; nothing where all are alike."""
    there = [(row, value) for row, value in enumerate(values, first) if value is not None]
    kinds = [type(value) if isinstance(value, bool) or not isinstance(value, Real) else Real for _, value in there]
    odd = next((one for one, kind in zip(there, kinds) if kind is not kinds[0]), None)
    return "" if odd is None else " (" + "; ".join(f"row {row}: {value!r:.60}" for row, value in (there[0], odd)) + ")"


def _no_text(values: Any, name: str, first: int) -> ValueError:
    """The refusal of a column that holds half of a surrogate pair, with its first row."""

    def broken(value: Any) -> bool:
        if isinstance(value, (list, tuple, np.ndarray, Mapping)):
            return any(map(broken, [*value, *value.values()] if isinstance(value, Mapping) else value))
        return isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value)

    row, value = next(((row, value) for row, value in enumerate(values, first) if broken(value)), ("?", None))
    return ValueError(f"column {name!r}: half of a surrogate pair, which is no text (row {row}: {value!a:.80})")


def _has_bools(array: pa.Array, values: Any) -> bool:
    """Whether Arrow took booleans among floats for numbers."""
    if pa.types.is_list(array.type):
        flat = [value for entry in values if isinstance(entry, (list, tuple)) for value in entry]
        return _has_bools(array.flatten(), flat)
    return pa.types.is_floating(array.type) and any(isinstance(value, (bool, np.bool_)) for value in values)


def _holds_uuids(value: Any) -> bool:
    return any(map(_holds_uuids, value)) if isinstance(value, _LISTS) else isinstance(value, UUID)


def _uuids_as_texts(value: Any) -> Any:
    if isinstance(value, _LISTS):
        return [*map(_uuids_as_texts, value)]
    return str(value) if isinstance(value, UUID) else value


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, _LISTS):
        return [_text(entry) for entry in value]
    try:
        return neutral_text(value)
    except TypeError:  # dates, decimals, bytes: what Arrow makes of one by itself
        scalar = pa.scalar(value)
        return None if scalar.as_py() is None else str(scalar.cast(pa.string()))


def _number(value: Any) -> Any:
    if isinstance(value, _LISTS):
        return [_number(entry) for entry in value]
    return float(value) if isinstance(value, int) and abs(value) > 2**53 else value
