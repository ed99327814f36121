"""The door for values from outside: whatever JSON, Python or HTTP hands in is plain and bounded behind it, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from datetime import date
from typing import Any

import numpy as np

from .rows import is_missing_mark, is_table, row_of_frame, rows_of_table
from .suggest import one_line

_DEPTH = 16
_LARGEST = 2**64


def check_text(text: str, where: str) -> str:
    """A text that can be written as UTF-8. Raises `ValueError`, which starts with `where`, for half of a surrogate pair."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{where}: the text {text!a:.80} holds half of a surrogate pair at character {error.start}, which is no text; "
                "write the character itself, or both halves"
            ) from None
    return text


def entries(values: Any, where: str) -> list[Any]:
    """[`checked`] entries of a list, such as a history, or rows of a table. Raises `ValueError`, which starts with `where`: no list, or a refused entry."""
    if is_table(values) and not isinstance(values, Mapping):
        values = rows_of_table(values)
    if (
        isinstance(values, (str, bytes, Mapping, Set))
        or getattr(values, "ndim", 1) == 0
        or not isinstance(values, Iterable)
    ):
        raise ValueError(f"{where}: expected a list, got {values!r:.80}")
    return [checked(value, f"{where}[{place}]") for place, value in enumerate(values)]


def _is_plain(value: Any) -> bool:
    """Whether [`checked`] gives the value back, seen without the words that say where it stands: most values of large requests are such."""
    kind = type(value)
    if kind is str:
        return value.isascii()
    if kind is int:
        return -_LARGEST < value < _LARGEST
    return (kind is float and not math.isinf(value)) or value is None or kind is bool


def checked(value: Any, where: str, depth: int = 0) -> Any:
    """A request, or a part of it, as it was given, with tuples as lists and mappings as dicts.

    What is inside: texts, finite or missing numbers that 64 bits hold, true, false, null, dates, and lists, arrays, columns, tables and objects of
    them, not nested without end. What a value means is for its reader to check.

    Raises:
        ValueError: starts with `where` and the place in the value, and says what was found and what is accepted.
    """
    if type(value) not in (dict, list):  # most are
        if value is None or isinstance(value, (bool, np.bool_)):
            return value
        if isinstance(value, str):
            return check_text(value, where)
        if isinstance(value, (int, np.integer)):
            if not -_LARGEST < value < _LARGEST:
                size = int(value).bit_length()
                raise ValueError(
                    f"{where}: a whole number of {size} bits; at most 64 are accepted, write a longer id as text"
                )
            return value
        if isinstance(value, (float, np.floating)):
            if math.isinf(value):
                raise ValueError(f"{where}: got {value!r}, expected a finite number, or null where none is known")
            return value
        if is_missing_mark(value):
            return None
        if isinstance(value, date) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf"):
            return value
    if depth >= _DEPTH:
        raise ValueError(f"{where}: nested too deep; objects and lists stand in one another up to {_DEPTH} times")
    if type(value) is dict or isinstance(value, Mapping):
        found = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}: the key {key!r:.80} is no text; keys are names")
            if not key.isascii():
                check_text(key, where)
            if not _is_plain(inner):
                inner = checked(inner, f"{where}.{key}" if depth else f"{where}: {key}", depth + 1)
            found[key] = inner
        return found
    if isinstance(value, (list, tuple)):
        return [
            inner if _is_plain(inner) else checked(inner, f"{where}[{place}]", depth + 1)
            for place, inner in enumerate(value)
        ]
    if is_table(value):  # of what Python holds: JSON has nothing of the kind
        return checked(list(rows_of_table(value)), where, depth)
    if (row := row_of_frame(value)) is not value:
        return checked(row, where, depth)
    if hasattr(value, "ndim") and hasattr(value, "tolist") and getattr(value.dtype, "kind", "O") not in "MmSV":
        return checked(value.tolist(), where, depth + 1)
    raise ValueError(
        f"{where}: a value of the type {type(value).__name__} ({one_line(value):.80}) is not accepted; give texts, numbers, true, false, null, "
        "or lists and objects of them"
    )
