"""Checks of the rows that users hand to processors and models."""

from __future__ import annotations

import math
import re
import time as clock
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from lmctr.utils.suggest import one_line

T = TypeVar("T")

MAX_SECONDS = 253_402_300_799  # 9999-12-31 23:59:59 UTC, the last time that ISO dates can write
"""Times beyond it are taken for milliseconds (or finer) that were passed as seconds."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,100}")
_EXACT = 1 << 24  # whole numbers up to here are all float32's
_LARGEST = float(np.finfo(np.float32).max)
_AHEAD = 366 * 86_400  # a request may be for a time to come, but not for a far one
_ABSENT = object()
_NOT_NUMBERS = {str, type(None), object}


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, Python's or numpy's, of at least 1; booleans are none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= 1


def graded_value(entry: Mapping[str, Any], where: str) -> float:
    """A behaviour's `value` (stars, watched share) as a log holds it, rounded to float32; NaN where it is not given or None."""
    value = entry.get("value")
    if value is None:
        return math.nan
    is_number = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    if not is_number or not abs(value) <= _LARGEST:  # false for NaN
        raise ValueError(f"{where}: 'value' must be graded feedback, a finite number or None, got {value!r}")
    return float(np.float32(value))


def each(entries: Iterable[Any], where: Callable[[int], str], read: Callable[[Any, str], T]) -> list[T]:
    """`read` of each entry, and of the words that say where it stands; these are made where one is refused, since for all they cost more than to
    read it."""
    entries = list(entries)
    try:
        return [read(entry, "") for entry in entries]
    except ValueError:
        return [read(entry, where(place)) for place, entry in enumerate(entries)]


def each_kind(
    entries: Sequence[Any], keys: Sequence[str], known: Collection[str], read: Callable[[Any, str], T]
) -> list[T] | None:
    """`read` of each entry, which goes by some of its `keys`: it is called once for those that are alike there.

    Returns:
        None where one is refused, has keys that are not `known`, or is no dict: what is wrong with which is found by reading [`each`].
    """
    if not len(entries):
        return []
    if set(map(type, entries)) != {dict} or not (there := set().union(*entries)) <= set(known):
        return None
    columns = [[entry.get(key, _ABSENT) for entry in entries] for key in keys if key in there]
    # true, 1 and 1.0 are one key of a dict
    if any(len({*map(type, column)} - _NOT_NUMBERS) > 1 for column in columns):
        return None
    kinds = list(zip(*columns)) if columns else [()] * len(entries)
    try:
        found = {kind: read(entry, "") for kind, entry in dict(zip(kinds, entries)).items()}
    except (TypeError, ValueError):
        return None
    return [found[kind] for kind in kinds]


def plain_seconds(entries: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """The `time` of each, where [`whole_seconds`] gives all of them back as they are, else None."""
    times = [entry.get("time") for entry in entries]
    if set(map(type, times)) - {int}:
        return None
    try:
        for time in {min(times, default=0), max(times, default=0)}:
            whole_seconds(time, "")
    except ValueError:
        return None
    return times


def plain_values(entries: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """The [`graded_value`] of each, where all are finite numbers or None, else None."""
    values = [entry.get("value") for entry in entries]
    if set(map(type, values)) - {float, int, type(None)}:
        return None
    try:
        found = np.array(values, dtype=np.float64)
    except OverflowError:
        return None
    if np.count_nonzero(abs(found) <= _LARGEST) < len(values) - values.count(None):
        return None
    return found.astype(np.float32).astype(np.float64).tolist()


def check_list(value: Any, where: str, holds: str) -> None:
    """Raise `ValueError`, which starts with `where`, unless a value is a list (or array) of what it `holds`."""
    try:
        len(value)
        is_list = not isinstance(value, (str, bytes, Mapping))
    except TypeError:
        is_list = False
    if not is_list:
        raise ValueError(f"{where}: expected a list of {holds}, got {value!r:.80}; give [...] around a single one")


def check_kind(value: Any, kind: type, where: str) -> None:
    """Raise `ValueError`, which starts with `where`, unless a value is of a class."""
    if not isinstance(value, kind):
        raise ValueError(
            f"{where}: expected a value of the type {kind.__name__}, got {type(value).__name__} {one_line(value):.80}"
        )


def each_batch(batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Batches one after the other. Raises `ValueError` for a batch in place of several, and for what is none."""
    if isinstance(batches, Mapping):
        raise ValueError(
            f"batches: got one batch, of {', '.join(map(str, batches))}; accepted: several, [batch] for one"
        )
    for batch in batches:
        check_kind(batch, Mapping, "batches")
        yield batch


def unformatted(value: Any) -> Any:
    """A tensor or array as plain values, as a `datasets.Dataset` has them without a format; other values as they are."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "ndim") else value


def refuse_parts(data: Any, where: str) -> None:
    """Raise `ValueError`, which starts with `where`, for a `datasets.DatasetDict`."""
    if isinstance(data, Mapping) and hasattr(data, "with_format"):
        raise ValueError(
            f"{where}: a DatasetDict holds several parts; pass one of them: {', '.join(map(repr, data))}, or all together, "
            "datasets.concatenate_datasets([*parts.values()])."
        )


def is_missing_mark(value: Any) -> bool:
    """Whether a value is pandas' NA or NaT, which stand for a missing one."""
    return type(value).__name__ in ("NAType", "NaTType")


def is_column(value: Any) -> bool:
    """Whether a value of a dict is a list or array: the cells of a column, or those of one cell."""
    is_plain = isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__len__")
    return not is_plain and getattr(value, "ndim", 1) > 0


def is_table(value: Any) -> bool:
    """Whether a value is a `datasets` data set, a pyarrow Table, a pandas DataFrame or a dict of nothing but lists and arrays."""
    if isinstance(value, Mapping):
        return bool(value) and all(map(is_column, value.values()))
    return hasattr(value, "with_format") or hasattr(value, "to_pylist") or hasattr(value, "itertuples")


def rows_of_table(table: Any) -> Iterable[Any]:
    """The rows of what `is_table`, as dicts. Raises `ValueError` for columns that differ in length."""
    if hasattr(table, "itertuples"):
        return table.astype(object).where(table.notna(), None).to_dict("records")
    if hasattr(table, "to_pylist"):
        return table.to_pylist()
    if not isinstance(table, Mapping):
        return table
    lengths = {name: len(values) for name, values in table.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns differ in length: {lengths}")
    return [dict(zip(table, row)) for row in zip(*table.values())]


def requests_of(table: Any) -> Iterable[dict[str, Any]]:
    """The rows of a table of requests, without what is None: as a data set has it, where another row has a value."""
    return ({key: own for key, own in row.items() if own is not None} for row in rows_of_table(table))


def row_of_frame(value: Any) -> Any:
    """One of pandas' `itertuples`, or of `iterrows`, whose labels are names and no numbers as those of a column, as a dict; others as they are."""
    if hasattr(value, "_asdict"):
        return value._asdict()
    if hasattr(value, "to_dict") and getattr(value, "ndim", 0) == 1:
        row = value.to_dict()
        return row if all(isinstance(name, str) for name in row) else value
    return value


def plain_row(row: Any) -> Any:
    """A row of a `datasets.Dataset` with a format (torch, numpy, arrow, pandas) as it is without one: a dict of plain values, at any depth; so
    are rows of a frame's `iterrows` and `itertuples`. What is no such row stays as it is."""
    if not isinstance(row, Mapping):
        if is_table(row) and len(row) == 1:
            (row,) = rows_of_table(row)
        row = row_of_frame(row)
    if not (isinstance(row, Mapping) and any(hasattr(value, "ndim") for value in row.values())):
        return row

    def plain(value: Any) -> Any:
        value = row_of_frame(value)
        if isinstance(value, Mapping):
            return {key: plain(own) for key, own in value.items()}
        value = unformatted(value)
        return [plain(own) for own in value] if isinstance(value, (list, tuple)) else value

    return plain(row)


def whole_seconds(value: Any, where: str) -> int:
    """A time as whole seconds; fractions are cut off.

    Raises:
        ValueError: no finite number, or one that can only be milliseconds; starts with `where`.
    """
    if type(value) is not int:  # most are
        kind, value = str(getattr(value, "dtype", "")), unformatted(value)
        if kind.endswith(("float32", "float16")) and abs(value) > _EXACT:
            raise ValueError(f"{where}: {kind} cannot hold unix times to the second; use int64 or float64 numbers")
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        time = int(value)
    elif isinstance(value, (float, np.floating)) and np.isfinite(value):
        time = int(np.floor(value))
    else:
        raise ValueError(f"{where} must be a number of seconds, got {value!r}, which is no unix time")
    if abs(time) > MAX_SECONDS:
        raise ValueError(
            f"{where} must be a number of seconds; {value!r} is outside the years up to 9999. Is it in milliseconds or finer? Divide it"
        )
    if time > clock.time() + _AHEAD:
        year = datetime.fromtimestamp(time, UTC).year
        raise ValueError(
            f"{where} must be a number of seconds; {value!r} lies in the year {year}, more than a year ahead of this machine's clock. "
            "Is it in another unit?"
        )
    return time


def plain_id(value: Any, is_text: bool, where: str) -> str | int:
    """An item's or a user's id as the catalogue writes it. Nothing is rounded or cut: 11, 11.0 and "11" are one id, 11.5 and true are none.

    Args:
        is_text: whether the catalogue's ids are texts.

    Raises:
        ValueError: what can be no id there; starts with `where`.
    """
    if type(value) is (str if is_text else int):  # most are
        return value
    whole = isinstance(value, (float, np.floating)) and abs(value) < 2**53 and value == int(value)
    if not isinstance(value, (bool, np.bool_)):
        if isinstance(value, (int, np.integer)) or whole:
            return str(int(value)) if is_text else int(value)
        if isinstance(value, str) and (is_text or _WHOLE.fullmatch(value.strip())):
            return value if is_text else int(value)
    kind = "texts" if is_text else "integers"
    raise ValueError(f"{where}: {value!r:.80} is no id; those of the catalogue's items are {kind}")
