"""A few rows as dicts to the arrays of a tabular model, without the fixed cost of a table's columns.

A request of one row with 39 fields costs tens of milliseconds where each field becomes an array, and a fraction of one here. What is not a plain
value (text, number, boolean, list of such) or is no valid one is left to [`lmctr.data.features.transform`], which knows all kinds and words
the errors; the results are equal.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from .canonical import SPACE, canonical_text, neutral_text
from .columns import parse_time
from .fields import OOV_ID, PADDING_ID, Field
from .fit import FittedState
from .transform import MAX_EXAMPLES, TabularArrays
from .vocabulary import hash_string

_PLAIN = (str, int, np.integer, np.bool_, type(None))


class _NotPlain(Exception):
    """Some value is for the general way."""


class FewRows:
    """Turns rows into arrays by the fields and the state of a processor.

    Args:
        fields, state: of the processor.
    """

    most = 32
    """From about so many rows on, columns are faster."""

    def __init__(self, fields: Sequence[Field], state: FittedState) -> None:
        self._fields, self._state = tuple(fields), state
        self._ids, self._values, self._lists = (
            [f for f in fields if f.kind == kind] for kind in ("id", "value", "list")
        )
        self._longest = max((field.max_length for field in self._lists), default=0)
        self._applies = not any(field.time_column or field.cross or field.weight_separator for field in fields)
        self._of = {field.name: self._reader(field) for field in fields if self._applies}

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> TabularArrays | None:
        """The inputs of some dicts, None where the general way must be taken."""
        if not self._applies or not 0 < len(rows) <= self.most:
            return None
        try:
            return self._arrays(rows)
        except (_NotPlain, KeyError, TypeError, ValueError, OverflowError):
            return None

    def _arrays(self, rows: Sequence[Mapping[str, Any]]) -> TabularArrays:
        result, counts, examples, size = {}, {}, {}, len(rows)
        for key, fields, dtype in (("input_ids", self._ids, np.int32), ("numeric_values", self._values, np.float32)):
            if fields:
                columns = [self._column(field, rows, counts, examples) for field in fields]
                result[key] = np.array(columns, dtype=dtype).T.copy()
        if self._lists:
            result["sequence_ids"] = np.zeros((size, len(self._lists), self._longest), dtype=np.int32)
            for place, field in enumerate(self._lists):
                for row, ids in enumerate(self._column(field, rows, counts, examples)):
                    result["sequence_ids"][row, place, : len(ids)] = ids
        return TabularArrays(result, counts, unknown_examples=examples)

    def _column(
        self,
        field: Field,
        rows: Sequence[Mapping[str, Any]],
        counts: dict[str, dict[str, int]],
        examples: dict[str, list[str]],
    ) -> list[Any]:
        count = {"values": 0, "missing": 0, "unknown": 0}
        read, name = self._of[field.name], field.source_column
        given = [row[name] for row in rows]
        if field.type == "numeric" and len({isinstance(value, str) for value in given if value is not None}) > 1:
            raise _NotPlain
        counts[field.name], found = count, [read(value, count) for value in given]
        if count["unknown"]:
            text_of, id_of = self._text_of(field), self._id_of(field)
            entries = given if field.kind == "id" else [entry for value in given for entry in _entries(value, field)]
            texts = dict.fromkeys(text for entry in entries if (text := text_of(entry)) is not None)
            examples[field.name] = [text for text in texts if id_of(text) == OOV_ID][:MAX_EXAMPLES]
        return found

    def _reader(self, field: Field) -> Callable[[Any, dict[str, int]], Any]:
        """From a value of a field to what the arrays hold of it."""
        if field.kind == "list":
            return self._list_reader(field)
        if field.type == "numeric":
            return self._number_reader(field)
        text_of, id_of, missing = self._text_of(field), self._id_of(field), field.first_id - 1

        def read(value: Any, count: dict[str, int]) -> int:
            text = text_of(value)
            count["values"] += 1
            if text is None:
                count["missing"] += 1
                return missing
            found = id_of(text)
            count["unknown"] += found == OOV_ID
            return found

        return read

    def _list_reader(self, field: Field) -> Callable[[Any, dict[str, int]], list[int]]:
        text_of, id_of = self._text_of(field), self._id_of(field)

        def read(value: Any, count: dict[str, int]) -> list[int]:
            texts = [text_of(entry) for entry in _entries(value, field)]
            ids = [PADDING_ID if text is None else id_of(text) for text in texts]
            count["values"] += len(ids)
            count["missing"] += ids.count(PADDING_ID)
            count["unknown"] += ids.count(OOV_ID)
            ids = [found for found in ids if found != PADDING_ID]
            return ids[-field.max_length :] if field.keeps_last else ids[: field.max_length]

        return read

    def _id_of(self, field: Field) -> Callable[[str], int]:
        if field.hash_buckets is not None:
            buckets, first = field.hash_buckets, field.first_id
            return lambda text: hash_string(text) % buckets + first
        return self._state.vocabularies[field.share_with or field.name].id_of

    def _text_of(self, field: Field) -> Callable[[Any], str | None]:
        kind = self._state.value_types.get(field.name)
        if field.extract is not None:
            return lambda value: _part_of_time(value, field)
        if kind is None:
            return _old_text

        def text_of(value: Any) -> str | None:
            if not isinstance(value, _PLAIN) and type(value) is not float:
                raise _NotPlain
            text = neutral_text(value)
            return text if text is None or isinstance(value, (bool, np.bool_)) else canonical_text(text, kind)

        return text_of

    def __reduce__(self) -> tuple:
        return FewRows, (self._fields, self._state)

    def _number_reader(self, field: Field) -> Callable[[Any, dict[str, int]], Any]:
        mean, deviation = self._state.moments.get(field.name, (0.0, 1.0))
        quantile = field.transform == "quantile"
        bounds = self._state.bounds[field.name].tolist() if quantile else []

        def read(value: Any, count: dict[str, int]) -> float:
            number = _number(value)
            count["values"] += 1
            is_mean = number != number and field.fill_value is None  # that of curved numbers
            if number != number:
                count["missing"] += 1
                if quantile and field.fill_value is None:
                    return field.first_id - 1
                number = mean if field.fill_value is None else field.fill_value
            if field.before is not None and not is_mean:
                number = float(field.curved(np.float64(number)))
            if quantile:
                return bisect_right(bounds, number) + field.first_id
            if field.transform == "log1p":
                number = math.copysign(np.log1p(abs(number)), number)
            elif field.transform == "standardize":
                number = (number - mean) / deviation
            if abs(number) > _LARGEST:
                raise _NotPlain
            return number

        return read


_LARGEST = float(np.finfo(np.float32).max)


def _entries(value: Any, field: Field) -> Sequence[Any]:
    """The entries of a list, or of a text with a separator."""
    if value is None:
        return []
    if isinstance(value, str) and field.separator is not None:
        return value.split(field.separator) if value else []
    if not isinstance(value, (list, tuple)):
        raise _NotPlain
    return value


def _number(value: Any) -> float:
    """A value of a numeric field, NaN where missing."""
    if isinstance(value, str):
        value = value.strip(SPACE)
        if not value.isascii():
            raise _NotPlain
        value = float(value) if value else None
    elif isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, type(None))):
        raise _NotPlain
    number = math.nan if value is None else float(value)
    if math.isinf(number):
        raise _NotPlain
    return number


def _part_of_time(value: Any, field: Field) -> str | None:
    if value is None or (value == "" and field.time_format is not None):
        return None
    if field.time_format is not None and isinstance(value, str):
        value = parse_time(value, field.time_format)
    elif field.time_format is not None:
        raise _NotPlain
    if isinstance(value, bool) or not isinstance(value, int):
        raise _NotPlain
    try:
        moment = datetime.fromtimestamp(value, timezone.utc)
    except (OverflowError, OSError, ValueError) as error:  # a year that the calendar has not
        raise _NotPlain from error
    if field.extract == "weekend":
        return str(int(moment.weekday() >= 5))
    return str(moment.weekday() if field.extract == "weekday" else getattr(moment, field.extract))


def _old_text(value: Any) -> str | None:
    """A value in the form of processors without types."""
    if isinstance(value, str):
        return value or None
    if type(value) is float and (value != value or abs(value) >= 2**53 or value != math.floor(value)):
        if value != value:
            return None
        raise _NotPlain
    if type(value) not in (int, bool, float, type(None)):
        raise _NotPlain
    return neutral_text(int(value) if type(value) is float else value)
