"""Rows as dicts to the arrays of a tabular model, without the fixed cost of a table's columns.

A request of 39 fields costs ten milliseconds and more where each field becomes an array of Arrow. Here a value that was read before costs one
look-up in a dict, and the numbers of all fields are scaled together. What is not a plain value (text, number, boolean, list of such) or is no
valid one is left to [`lmctr.data.features.transform`], which knows all kinds and words the errors; the results are equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.data.tables.arrays import array_of
from lmctr.utils.rows import MAX_SECONDS

from .canonical import EXACT, SPACE, canonical_text, neutral_text
from .columns import CROSSED, Rows, iso_seconds, parse_time
from .fields import OOV_ID, Field
from .fit import FittedState
from .transform import MAX_EXAMPLES, TabularArrays, coded_values, word_ids
from .vocabulary import hash_string

_NONE = type(None)
_PLAIN = (str, int, np.integer, np.bool_, _NONE)
_MISSING = -1  # in the place of an id
_KEPT = 1 << 17  # ids of values that are kept, of all fields together: about 25 MB
_LONGEST = 64  # of such a value
_AT_ONCE = 500  # that may come to be kept of a field at once
_MANY = 100  # new values of a field, from which on columns are faster
_ENTRIES = 20_000  # of lists, beyond which columns are faster
_WORD = re.compile("[a-z0-9]+")  # of a text of ASCII
_LARGEST = float(np.finfo(np.float32).max)


class _NotPlain(Exception):
    """Some value is for the general way."""


class FewRows:
    """Turns rows into arrays by the fields and the state of a processor.

    Args:
        fields, state: of the processor.
    """

    most = 1024
    """Of more rows, columns are as fast, and faster where few values come again."""

    def __init__(self, fields: Sequence[Field], state: FittedState, words: dict[str, _Words] | None = None) -> None:
        self._fields, self._state = tuple(fields), state
        self._ids, self._values, self._lists = (
            [field for field in fields if field.kind == kind] for kind in ("id", "value", "list")
        )
        self._longest = max((field.max_length for field in self._lists), default=0)
        self._names = list(
            dict.fromkeys(name for field in fields for part in field.parts or (field,) for name in part.columns())
        )
        self._applies = bool(fields) and not any(field.time_column or field.weight_separator for field in fields)
        self._numbers = _Numbers([field for field in fields if field.type == "numeric"], state)
        if words is None:
            own = [field for field in fields if field.type != "numeric"]
            words = {field.name: _Words(field, state, _KEPT // len(own)) for field in own}
        self._words = words

    def of(self, fields: Sequence[Field]) -> FewRows:
        """One for some of the fields, which shares what this one keeps."""
        return FewRows(fields, self._state, self._words)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> TabularArrays | None:
        """The inputs of some dicts, None where the general way must be taken."""
        if not self._applies or len(rows) > self.most or set(map(type, rows)) != {dict}:
            return None
        try:
            return self._arrays(rows)
        except (_NotPlain, KeyError, TypeError, ValueError, OverflowError):
            return None

    def __reduce__(self) -> tuple:
        return FewRows, (self._fields, self._state)

    def _arrays(self, rows: Sequence[Mapping[str, Any]]) -> TabularArrays:
        result, counts, examples = {}, {}, {}
        read = itemgetter(*self._names, self._names[0])  # a tuple even of one name
        columns = dict(zip(self._names, zip(*map(read, rows))))
        if self._lists:
            grid = result["sequence_ids"] = np.zeros((len(rows), len(self._lists), self._longest), dtype=np.int32)
            for place, field in enumerate(self._lists):
                entries = [_entries(value, field) for value in columns[field.source_column]]
                if sum(map(len, entries)) > _ENTRIES:
                    raise _NotPlain
                ids = iter(self._words[field.name]([list(chain.from_iterable(entries))], counts, examples))
                for row, own in enumerate(entries):
                    known = [one for one in islice(ids, len(own)) if one != _MISSING]
                    shown = known[-field.max_length :] if field.keeps_last else known[: field.max_length]
                    grid[row, place, : len(shown)] = shown
        numbers = self._numbers(columns, counts)
        if self._ids:
            ids = []
            for field in self._ids:
                if field.type == "numeric":
                    ids.append(numbers[field.name].tolist())
                    continue
                given = [columns[part.source_column] for part in field.parts or (field,)]
                own, missing = self._words[field.name](given, counts, examples), field.first_id - 1
                has_missing = counts[field.name]["missing"]
                ids.append([missing if one == _MISSING else one for one in own] if has_missing else own)
            result["input_ids"] = np.array(ids, dtype=np.int32).T.copy()
        if self._values:
            values = np.stack([numbers[field.name] for field in self._values], 1)
            if (np.abs(values) > _LARGEST).any():
                raise _NotPlain
            result["numeric_values"] = values.astype(np.float32)
        names = [field.name for field in (*self._ids, *self._values, *self._lists)]
        return TabularArrays(result, {name: counts[name] for name in names}, unknown_examples=examples)


class _Words:
    """Ids of the values of a field with words. Of those that it was asked for, the last `most` or fewer are kept."""

    def __init__(self, field: Field, state: FittedState, most: int) -> None:
        self._field, self._state, self._most = field, state, most
        self._texts = [_text_of(part, state.value_types.get(part.name)) for part in field.parts or (field,)]
        if field.hash_buckets is not None:
            self._id_of = lambda text: hash_string(text) % field.hash_buckets + field.first_id
        else:
            self._id_of = state.vocabularies[field.share_with or field.name].id_of
        # 1, 1.0 and True are one key of a dict; integers and texts are never equal
        self._kept: list[tuple[set[type], dict[Hashable, int]]] = [
            (types | {_NONE}, {}) for types in ({str, int}, {float}, {bool})
        ]

    def __call__(
        self, given: Sequence[Sequence[Any]], counts: dict[str, dict[str, int]], examples: dict[str, list[str]]
    ) -> list[int]:
        """The id of each value, of a cross of two fields from the values of both."""
        values = given[0] if len(given) == 1 else list(zip(*given))
        types = set(map(type, chain.from_iterable(given)))
        kept = next((kept for accepted, kept in self._kept if types <= accepted), None)
        if kept is None and any(map(_may_blur, given)):
            raise _NotPlain
        ids = self._read(values) if kept is None else list(map(kept.get, values))
        fresh = ids.count(None)
        if fresh:
            places = [place for place, known in enumerate(ids) if known is None]
            if fresh > _MANY:
                ids = self._through_columns(given)
                new = {values[place]: ids[place] for place in islice(places, _AT_ONCE)}
            else:
                new = dict.fromkeys(values[place] for place in places)
                new = dict(zip(new, self._read(new)))
                for place in places:
                    ids[place] = new[values[place]]
            if len(kept) + len(new) > self._most:
                kept.clear()
            kept.update((value, own) for value, own in new.items() if len(str(value)) <= _LONGEST)
        unknown, name = ids.count(OOV_ID), self._field.name
        counts[name] = {"values": len(ids), "missing": ids.count(_MISSING), "unknown": unknown}
        if unknown:
            texts = dict.fromkeys(self._text(value) for value, own in zip(values, ids) if own == OOV_ID)
            examples[name] = list(texts)[:MAX_EXAMPLES]
        return ids

    def _read(self, values: Iterable[Any]) -> list[int]:
        texts = map(self._text, values)
        return [_MISSING if text is None else self._id_of(text) for text in texts]

    def _through_columns(self, given: Sequence[Sequence[Any]]) -> list[int]:
        """The same of many values, as arrays."""
        field, columns = self._field, {}
        for part, values in zip(field.parts or (field,), given):
            kind = "any" if part.extract is not None and part.time_format is None else "text"
            columns[part.source_column] = array_of(values, part.source_column, kind)
        codes, words = coded_values(field, self._state, Rows(pa.table(columns)))
        return np.append(word_ids(field, self._state, words), _MISSING)[codes].tolist()

    def _text(self, value: Any) -> str | None:
        if len(self._texts) == 1:
            return self._texts[0](value)
        texts = [text_of(part) for text_of, part in zip(self._texts, value)]
        return None if None in texts else CROSSED.join(texts)


def _may_blur(values: Sequence[Any]) -> bool:
    """Whether whole numbers stand among floats that Arrow makes floats of, and that are too large to keep their text then."""
    has_float = any(isinstance(value, float) for value in values)
    return has_float and any(isinstance(value, (int, np.integer)) and abs(value) >= EXACT for value in values)


def _text_of(field: Field, kind: str | None) -> Callable[[Any], str | None]:
    """From a value of a field to the text that stands in its vocabulary, None where missing."""
    if field.extract is not None:
        return lambda value: _part_of_time(value, field)

    def text_of(value: Any) -> str | None:
        if type(value) is int:
            return str(value)
        if not isinstance(value, _PLAIN) and type(value) is not float:
            raise _NotPlain
        text = neutral_text(value)
        return text if text is None or isinstance(value, (bool, np.bool_)) else canonical_text(text, kind)

    return text_of


class _Numbers:
    """Numeric fields of some rows at once."""

    def __init__(self, fields: Sequence[Field], state: FittedState) -> None:
        self._fields, self._bounds = fields, state.bounds
        moments = np.array([state.moments_of(field.name) for field in fields]).reshape(-1, 4, 1)
        self._means, self._deviations, self._low, self._high = moments.transpose(1, 0, 2)
        self._fills = np.array([[math.nan if field.fill_value is None else field.fill_value] for field in fields])
        places = {}
        for place, field in enumerate(fields):
            places.setdefault(field.before, []).append(place)
        self._before = [own for key, own in places.items() if key is not None]
        self._logs = [place for place, field in enumerate(fields) if field.transform == "log1p"]
        self._scaled = [place for place, field in enumerate(fields) if field.transform == "standardize"]

    def __call__(
        self, columns: Mapping[str, Sequence[Any]], counts: dict[str, dict[str, int]]
    ) -> dict[str, np.ndarray]:
        """By field (N,) float64 what the model reads, of quantile fields ids."""
        if not self._fields:
            return {}
        raw = np.array([_numbers(columns, field) for field in self._fields], dtype=np.float64)
        if np.isinf(raw).any():
            raise _NotPlain
        missing = np.isnan(raw)
        raw = np.where(missing, self._fills, raw)
        for places in self._before:
            raw[places] = self._fields[places[0]].curved(raw[places])
        raw = np.where(np.isnan(raw), self._means, raw)
        if self._logs:
            raw[self._logs] = np.sign(raw[self._logs]) * np.log1p(np.abs(raw[self._logs]))
        if self._scaled:
            places = self._scaled
            own = np.clip(raw[places], self._low[places], self._high[places])
            raw[places] = (own - self._means[places]) / self._deviations[places]
        found = {}
        for field, own, absent, number in zip(self._fields, raw, missing, missing.sum(1).tolist()):
            counts[field.name] = {"values": len(own), "missing": number, "unknown": 0}
            if field.transform == "quantile":
                own = np.searchsorted(self._bounds[field.name], own, side="right") + field.first_id
                if field.fill_value is None:
                    own[absent] = field.first_id - 1
            found[field.name] = own
        return found


def _numbers(columns: Mapping[str, Sequence[Any]], field: Field) -> Sequence[float | None]:
    """The values of a numeric field, None or NaN where missing."""
    given = columns[field.source_column]
    if field.extract is not None:
        since = _days(given, field)
        return since if field.last is None else _days(columns[field.until], field.last) - since
    if set(map(type, given)) <= {float, int, _NONE}:
        return given
    if field.written or len({isinstance(value, str) for value in given if value is not None}) > 1:
        raise _NotPlain
    return [_number(value) for value in given]


def _entries(value: Any, field: Field) -> Sequence[Any]:
    """The entries of a list, or of a text with a separator."""
    if value is None:
        return []
    if isinstance(value, str) and field.parse is not None:
        if field.parse != "words" or not value.isascii():
            raise _NotPlain
        return _WORD.findall(value.lower())
    if isinstance(value, str) and field.separator is not None:
        return value.split(field.separator) if value else []
    if not isinstance(value, (list, tuple)):
        raise _NotPlain
    return value


def _number(value: Any) -> float:
    if isinstance(value, str):
        value = value.strip(SPACE)
        if not value.isascii() or "_" in value:
            raise _NotPlain
        value = float(value) if value else None
    elif isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, type(None))):
        raise _NotPlain
    return math.nan if value is None else float(value)


def _seconds(value: Any, field: Field) -> int | None:
    """Unix seconds of a time, None where missing."""
    if value is None or (value == "" and field.time_format is not None):
        return None
    if field.time_format is not None and isinstance(value, str):
        value = parse_time(value, field.time_format)
    elif field.time_format is not None:
        raise _NotPlain
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_SECONDS:
        raise _NotPlain
    return value


def _days(given: Sequence[Any], field: Field) -> np.ndarray:
    """(N,) float64 days since 1970, NaN where missing."""
    if field.time_format is None and set(map(type, given)) <= {str, _NONE}:
        found = [iso_seconds(value) if value and value[4:5] == "-" else None for value in given]
        if any(value and own is None for value, own in zip(given, found)):
            raise _NotPlain  # texts of numbers, and no times
        given = found
    seconds = [_seconds(value, field) for value in given]
    return np.array([math.nan if value is None else value for value in seconds], dtype=np.float64) / 86_400


def _part_of_time(value: Any, field: Field) -> str | None:
    value = _seconds(value, field)
    if value is None:
        return None
    try:
        moment = datetime.fromtimestamp(value, UTC)
    except (OverflowError, OSError, ValueError) as error:  # a year that the calendar has not
        raise _NotPlain from error
    if field.extract == "weekend":
        return str(int(moment.weekday() >= 5))
    return str(moment.weekday() if field.extract == "weekday" else getattr(moment, field.extract))
