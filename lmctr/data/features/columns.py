"""Columns of a table as the feature processor reads them, the same for fitting, transforming and serving.

Every function takes one pyarrow column and the place where it stands ([`Rows`]), and raises a `ValueError` that names the
source, the column, the number of bad values and the first bad rows, counted from 1 over the whole source.
"""

from __future__ import annotations

import calendar
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.amounts import accepted_numbers, numbers_in
from lmctr.data.logs.columns import place, with_zone_names
from lmctr.data.logs.times import iso_times
from lmctr.data.reading import TO_UTF8
from lmctr.data.texts import LITERALS, literal_lists, words_of_texts
from lmctr.utils.arrow import decoded, is_list, is_number, is_text, plain_type, texts_of_bytes, without_empty
from lmctr.utils.ragged import offsets_from_lengths, ragged_arange
from lmctr.utils.rows import MAX_SECONDS
from lmctr.utils.suggest import first_listed

from .canonical import canonical_words, neutral_words
from .fields import DAYS, Field
from .vocabulary import hash_strings

CROSSED = "\x1f"  # between the two values of a cross: the unit separator of ASCII
NO_LABEL = -100.0  # what models take for an entry that is left out


@dataclass(frozen=True)
class Rows:
    """Some consecutive rows of a table.

    Args:
        table: the rows.
        source: file name (or another name) for messages.
        first: number of the first row in its source, from 1.
        split: (N,) int8 codes of the part that each row belongs to (index into "train", "validation", "test"; -1: none), or None.
        numbers: (N,) number of each row in its source, where the rows are not consecutive (`first` is ignored then).
    """

    table: pa.Table | pa.RecordBatch
    source: str | None = None
    first: int = 1
    split: np.ndarray | None = None
    numbers: np.ndarray | None = None

    def __len__(self) -> int:
        return self.table.num_rows

    @property
    def whole(self) -> pa.Table:
        return self.table if isinstance(self.table, pa.Table) else pa.Table.from_batches([self.table])

    def column(self, name: str) -> pa.Array:
        """A column as one array. Raises `ValueError` when there is none, or more than one of the name."""
        names = self.table.schema.names
        if names.count(name) != 1:
            what = f"no column {name!r}" if name not in names else f"{names.count(name)} columns {name!r}"
            raise ValueError(f"{self.source or 'rows'}: {what}; the columns are {first_listed(names)}.")
        column = self.table.column(name)
        if isinstance(column, pa.ChunkedArray):
            if pa.types.is_dictionary(column.type):
                column = column.unify_dictionaries()
            column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        return column

    def take(self, mask: np.ndarray) -> Rows:
        """The rows where `mask` is true."""
        if mask.all():
            return self
        split = None if self.split is None else self.split[mask]
        return Rows(self.table.filter(pa.array(mask)), self.source, self.first, split, self._numbers()[mask])

    def _numbers(self) -> np.ndarray:
        return np.arange(self.first, self.first + len(self)) if self.numbers is None else self.numbers

    def refuse(self, mask: np.ndarray, values: Any, column: str, problem: str, accepted: str) -> None:
        """Raises `ValueError` for the rows where the mask is true, if there are any."""
        if not mask.any():
            return
        rows, row_numbers = np.flatnonzero(mask), self._numbers()
        shown = []
        for row in rows[:3]:
            value = values[int(row)]
            value = value.as_py() if isinstance(value, pa.Scalar) else value
            shown.append(f"row {row_numbers[row]}: {value.item() if isinstance(value, np.generic) else value!r}")
        span = f" among rows {row_numbers[0]} to {row_numbers[-1]}"
        more = ", ..." if len(rows) > 3 else ""
        raise ValueError(
            f"{place(self.source, column)}: {len(rows)} values {problem}{span if self.source else ''} "
            f"({'; '.join(shown)}{more}). {accepted}"
        )


def text_codes(
    array: pa.Array, field: Field, rows: Rows, value_type: str | None = None
) -> tuple[np.ndarray, pa.Array]:
    """Values of a categorical column as codes into distinct texts. Null, NaN and empty text are missing.

    Args:
        value_type: the canonical form (see [`lmctr.data.features.canonical`]); None: before a type is known.

    Returns:
        (N,) int32 codes, -1 where missing, and a large_string array without nulls, each on some row (its values need not be unique).
    """
    name = field.source_column
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), -1, dtype=np.int32), pa.array([], pa.large_string())
    of_value = plain_type(kind)
    if pa.types.is_nested(of_value) or isinstance(of_value, pa.BaseExtensionType):  # pandas' intervals and periods
        way = (
            "declare it as a sequence or multi_value field"
            if is_list(kind)
            else "write its values as texts or numbers"
        )
        raise ValueError(
            f"{place(rows.source, name)}: the values are {of_value}, and the field {field.name!r} takes one value per row; {way}."
        )
    encoded = array.dictionary_encode()
    codes = _filled(encoded.indices, -1).astype(np.int32, copy=False)
    refused = f"{place(rows.source, name)}: some values are not UTF-8 text; {TO_UTF8}."
    words = texts_of_bytes(encoded.dictionary, refused)
    kind = words.type
    if field.extract is not None:
        words = _extract(words, field, rows, codes, array)
    else:
        words = neutral_words(words)
        kinds_apart = not (pa.types.is_integer(kind) or pa.types.is_boolean(kind))
        if value_type is not None and kinds_apart:
            words = canonical_words(words, value_type)
    empty = pc.or_kleene(pc.is_null(words), pc.equal(words, "")).fill_null(True).to_numpy(zero_copy_only=False)
    if encoded is array:  # some rows of a table list the values of all
        empty = empty | (np.bincount(codes + 1, minlength=len(words) + 1)[1:] == 0)
    if empty.any():
        place_of = np.where(empty, -1, np.cumsum(~empty) - 1).astype(np.int32)
        codes = np.where(codes >= 0, place_of[codes], np.int32(-1))
        words = words.filter(pa.array(~empty))
    return codes, words


def cross_codes(parts: Sequence[Field], rows: Rows, kinds: Sequence[str | None]) -> tuple[np.ndarray, pa.Array]:
    """[`text_codes`] of the pairs of values of two fields, in the forms `kinds`; missing where either value is."""
    (left, words), (right, others) = (
        text_codes(rows.column(part.source_column), part, rows, kind) for part, kind in zip(parts, kinds)
    )
    codes = np.full(len(rows), -1, dtype=np.int32)
    there = (left >= 0) & (right >= 0)
    pairs = left[there].astype(np.int64) * max(len(others), 1) + right[there]
    distinct, codes[there] = np.unique(pairs, return_inverse=True)
    places = np.divmod(distinct, max(len(others), 1))
    texts = (own.cast(pa.large_string()).take(pa.array(place)) for own, place in zip((words, others), places))
    return codes, pc.binary_join_element_wise(*texts, pa.scalar(CROSSED, pa.large_string()))


def crossed_words(words: pa.Array, kinds: Sequence[str | None]) -> pa.Array:
    """Words of [`cross_codes`] in neutral form in the forms `kinds`; null where a part is missing in its form."""
    parts = pc.split_pattern(words, CROSSED, max_splits=1)
    texts = [
        own if kind is None else canonical_words(own, kind)
        for own, kind in (
            (pc.list_element(parts, place).cast(pa.large_string()), kind) for place, kind in enumerate(kinds)
        )
    ]
    return pc.binary_join_element_wise(*texts, pa.scalar(CROSSED, pa.large_string()))


def _filled(array: pa.Array, missing: float) -> np.ndarray:
    """An array as numpy, with `missing` for null; without a copy where there is none."""
    return (array.fill_null(missing) if array.null_count else array).to_numpy(zero_copy_only=False)


def _extract(words: pa.Array, field: Field, rows: Rows, codes: np.ndarray, array: pa.Array) -> pa.Array:
    """The asked-for part of times, given as timestamps, unix seconds or texts in `time_format`."""
    kind, moments = words.type, words
    if field.time_format is not None:
        texts = words.cast(pa.string()).to_pylist()
        seconds = [parse_time(value, field.time_format) for value in texts]
        wrong = np.array([bool(text) and found is None for text, found in zip(texts, seconds)] or [False])
        accepted = f"Accepted: times like {field.time_format!r}."
        rows.refuse((codes >= 0) & wrong[codes], array, field.source_column, "are no times", accepted)
        moments = pa.array(seconds, pa.timestamp("s"))
    elif is_number(kind) or is_text(kind):
        moments = _moments(words, field, rows, codes, array)
    elif pa.types.is_date(kind):
        moments = words.cast(pa.timestamp("s"))
    elif not pa.types.is_timestamp(kind):
        raise ValueError(
            f"{place(rows.source, field.source_column)}: values of type {kind} hold no time for extract={field.extract!r}; "
            "give time_format for texts, or pass timestamps or whole unix seconds."
        )
    if moments.type.tz is not None:  # its parts would be those of its zone, unlike those of the same moment as seconds
        moments = moments.cast(pa.timestamp(moments.type.unit, "UTC"))
    if field.extract == DAYS:
        seconds = pc.floor_temporal(moments, unit="second").cast(pa.timestamp("s")).cast(pa.int64())
        part = pc.divide(seconds.cast(pa.float64()), 86_400.0)
    elif field.extract == "weekend":
        part = pc.greater_equal(pc.day_of_week(moments), 5).cast(pa.int64())
    else:
        part = getattr(pc, {"weekday": "day_of_week"}.get(field.extract, field.extract))(moments)
    return part.cast(pa.large_string())


def _moments(words: pa.Array, field: Field, rows: Rows, codes: np.ndarray, array: pa.Array) -> pa.Array:
    """Times of unix seconds, as numbers or texts, and of ISO texts."""
    texts = neutral_words(words)
    in_digits = pc.match_substring_regex(texts, r"^-?[0-9]{1,12}(\.[0-9]*)?$").fill_null(False)
    given = pc.and_(pc.is_valid(texts), pc.not_equal(texts, "")).fill_null(False)
    numbers = pc.floor(pc.if_else(in_digits, texts, "0").cast(pa.float64()))
    in_digits = pc.and_(in_digits, pc.less_equal(pc.abs(numbers), MAX_SECONDS))
    others = pc.if_else(pc.and_not(given, in_digits), texts, None)
    moments = iso_times(others)
    if moments is None:  # some are none, or only some have a zone
        moments = pa.array([text and iso_seconds(text) for text in others.to_pylist()], pa.timestamp("s"))
    seconds = pc.floor_temporal(moments, unit="second").cast(pa.timestamp("s"))
    moments = pc.if_else(in_digits, numbers.cast(pa.int64()).cast(pa.timestamp("s")), seconds)
    bad = pc.and_(given, pc.is_null(moments)).to_numpy(zero_copy_only=False)
    accepted = f"Accepted: unix seconds up to {MAX_SECONDS}, timestamps, ISO times, or texts with time_format."
    rows.refuse((codes >= 0) & np.append(bad, False)[codes], array, field.source_column, "are no times", accepted)
    return moments


def iso_seconds(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return calendar.timegm(moment.utctimetuple())
    except ValueError:
        return None


def parse_time(value: str | None, time_format: str) -> int | None:
    """Unix seconds of one distinct text, in UTC where it names no zone (%z). Python's own parser: pyarrow's takes no two-digit fields without separators."""
    for own in with_zone_names(time_format):
        with suppress(ValueError):
            return calendar.timegm(datetime.strptime(value, own).utctimetuple()) if value else None
    return None


def field_numbers(field: Field, rows: Rows) -> np.ndarray:
    """(N,) float64 of a numeric field's column, NaN where missing; of times the days, see `extract`."""
    if field.extract is None:
        accepted = accepted_numbers(field.written) if field.written else _NAMES
        return numbers(rows.column(field.source_column), field.source_column, rows, accepted, field.written)
    if field.last is not None:
        since = replace(field, until=None, until_format=None)
        return field_numbers(field.last, rows) - field_numbers(since, rows)
    codes, words = text_codes(rows.column(field.source_column), field, rows)
    return np.append(words.cast(pa.float64()).to_numpy(zero_copy_only=False), np.nan)[codes]


_NAMES = "Declare the field as categorical if it has names."


def numbers(
    array: pa.Array, column: str, rows: Rows, accepted: str = _NAMES, written: Mapping[str, str] | None = None
) -> np.ndarray:
    """(N,) float64 of a numeric column (or text that holds numbers, `written` so), NaN where missing; `accepted` is said of other texts."""
    array = decoded(array)
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan)
    if is_text(kind):
        text = without_empty(pc.utf8_trim_whitespace(array))
        try:
            array = numbers_in(text, **written) if written else text.cast(pa.float64())
        except pa.ArrowInvalid:
            array = pa.array([_number(value) for value in text.to_pylist()], pa.float64())
        bad = pc.and_(pc.is_null(array), pc.is_valid(text)).to_numpy(zero_copy_only=False)
        rows.refuse(bad, text, column, "are no numbers", accepted)
    elif not (is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind)):
        raise ValueError(f"{place(rows.source, column)}: values of type {kind} are no numbers.")
    values = _filled(array.cast(pa.float64(), safe=False), np.nan)
    rows.refuse(
        np.isinf(values), array, column, "are infinite", "Accepted: finite numbers; leave missing cells empty."
    )
    return values


def _number(value: str | None) -> float | None:
    try:
        return None if value is None or "_" in value else float(value)  # Python's 1_000 is nobody else's number
    except ValueError:
        return None


def value_lists(array: pa.Array, field: Field, rows: Rows) -> tuple[pa.Array, np.ndarray]:
    """A list column as its flat values and the (N,) int64 length of each row's list."""
    array = decoded(array)
    kind, name = array.type, field.source_column
    if pa.types.is_null(kind):
        return pa.array([], pa.string()), np.zeros(len(array), dtype=np.int64)
    if is_text(kind):
        if field.separator is None and field.parse is None:
            raise ValueError(
                f"{place(rows.source, name)}: the values are text, and the {field.type} field {field.name!r} has no separator; "
                "set separator, or parse (words, or literal for ['a', 'b']), or pass lists."
            )
        # an empty list, not one of an empty text
        array = _split(without_empty(array), field, rows)
        kind = array.type
    if pa.types.is_fixed_size_list(kind):
        array = array.cast(pa.list_(kind.value_type))
    elif not is_list(kind):
        raise ValueError(
            f"{place(rows.source, name)}: the values are {kind}; the {field.type} field {field.name!r} takes lists, or text with "
            "a separator."
        )
    return array.flatten(), _filled(pc.list_value_length(array), 0).astype(np.int64)


def _split(texts: pa.Array, field: Field, rows: Rows) -> pa.Array:
    if field.parse is None:
        return pc.split_pattern(texts, field.separator)
    if field.parse == "words":
        return words_of_texts(texts)
    lists = literal_lists(texts)
    bad = pc.and_(pc.is_null(lists), pc.is_valid(texts)).to_numpy(zero_copy_only=False)
    rows.refuse(bad, texts, field.source_column, "are no lists", LITERALS)
    return lists


def list_entries(field: Field, rows: Rows) -> tuple[pa.Array, np.ndarray, np.ndarray | None]:
    """A list field's flat values, the (N,) length of each row's list, and the (E,) float64 weights of a weighted field's values.

    Raises:
        ValueError: an entry without a weight, or with one that is no number of at least 0.
    """
    column, mark = rows.column(field.source_column), field.weight_separator
    flat, lengths = value_lists(column, field, rows)
    if mark is None:
        return flat, lengths, None
    accepted = f"Accepted: entries like 'red{mark}0.5', with weights of at least 0."
    if not (is_text(flat.type) or pa.types.is_null(flat.type)):
        raise ValueError(
            f"{place(rows.source, field.source_column)}: the entries are {flat.type}, without weights. {accepted}"
        )
    flat = flat.cast(pa.large_string())
    given = pc.and_(pc.is_valid(flat), pc.not_equal(flat, "")).fill_null(False)
    whole = pc.match_substring(flat, mark)
    texts = pc.if_else(pc.and_(given, whole).fill_null(False), flat, f"{mark}nan")
    parts = pc.split_pattern(texts, mark, max_splits=1, reverse=True)
    words = pc.utf8_trim_whitespace(pc.list_element(parts, 1))
    try:
        weights = _filled(words.cast(pa.float64()), np.nan)
    except pa.ArrowInvalid:
        weights = np.array([_number(text) if _number(text) is not None else np.nan for text in words.to_pylist()])
    there = given.to_numpy(zero_copy_only=False)
    wrong = there & ~(np.isfinite(weights) & (weights >= 0))
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    bad = np.bincount(row_of[wrong], minlength=len(lengths)) > 0
    rows.refuse(bad, column, field.source_column, "hold entries without a weight", accepted)
    return pc.list_element(parts, 0), lengths, weights


def padded(
    ids: np.ndarray, lengths: np.ndarray, field: Field, others: Sequence[np.ndarray] = ()
) -> tuple[np.ndarray, ...]:
    """(N, max_length) arrays from flat ids (0 = left out), padded with 0 on the right; `others` are cut alongside."""
    ends = np.cumsum(lengths)
    if not ids.all():
        kept = ids != 0
        running = offsets_from_lengths(kept)
        lengths = running[ends] - running[ends - lengths]
        ids, others = ids[kept], [other[kept] for other in others]
        ends = np.cumsum(lengths)
    shown = np.minimum(lengths, field.max_length)
    starts = ends - shown if field.keeps_last else ends - lengths
    from_ = ragged_arange(starts, shown)
    to = ragged_arange(np.arange(len(shown)) * field.max_length, shown)
    result = []
    for values in (ids, *others):
        flat = np.zeros(len(shown) * field.max_length, dtype=values.dtype)
        flat[to] = values[from_]
        result.append(flat.reshape(len(shown), field.max_length))
    return tuple(result)


def label_columns_of(rows: Rows, columns: Sequence[str]) -> np.ndarray:
    """(N,) float32 labels of one column, (N, T) of several, where -100 stands for an empty cell; a row has one label at least.

    Raises:
        ValueError: anything but 0 and 1, and with several columns -100; a row without any label.
    """
    if len(columns) == 1:
        return labels_of(rows, columns[0])
    labels = np.stack([labels_of(rows, column, may_miss=True) for column in columns], 1)
    accepted = f"Leave such rows out: one of {', '.join(columns)} is needed."
    rows.refuse(
        (labels == NO_LABEL).all(1), rows.column(columns[0]), columns[0], "stand in rows without any label", accepted
    )
    return labels


def count_labels(rows: Rows, columns: Sequence[str]) -> tuple[int, int]:
    """How many rows have the first label, and in how many it is positive. Raises as `label_columns_of`."""
    first = label_columns_of(rows, columns).reshape(len(rows), -1)[:, 0]
    return int((first >= 0).sum()), int((first > 0).sum())


def labels_of(rows: Rows, column: str, may_miss: bool = False) -> np.ndarray:
    """(N,) float32 labels. Raises `ValueError` for anything but 0 and 1; with `may_miss`, an empty cell and -100 are -100."""
    array = decoded(rows.column(column))
    accepted = "Accepted: 0 and 1, and empty or -100 for what is not known." if may_miss else "Accepted: 0 and 1."
    if pa.types.is_boolean(array.type) and not array.null_count:
        return array.cast(pa.int8()).to_numpy(zero_copy_only=False).astype(np.float32)
    if is_text(array.type):  # as files of texts are read
        words = pc.utf8_lower(pc.utf8_trim_whitespace(array))
        array = pc.if_else(pc.equal(words, "true"), "1", pc.if_else(pc.equal(words, "false"), "0", array))
    rule = f"Of words, a rule tells which is 1, in a table's schema `label: {{column: {column}, equals: WORD}}`."
    values = numbers(array, column, rows, f"{accepted} {rule}")
    if may_miss:
        values = np.where(np.isnan(values), NO_LABEL, values)
    rows.refuse(
        np.isnan(values),
        array,
        column,
        "are missing",
        f"{accepted} Leave rows without a label out: in a table's schema `label: {{column: {column}, missing: drop}}`.",
    )
    rows.refuse(
        (values != 0) & (values != 1) & ~(may_miss & (values == NO_LABEL)),
        array,
        column,
        "are other than 0 and 1",
        accepted,
    )
    return values.astype(np.float32)


def weights_of(rows: Rows, column: str) -> np.ndarray:
    """(N,) float32 sample weights, finite and not negative."""
    array = rows.column(column)
    values = numbers(array, column, rows)
    bad = np.isnan(values) | (values < 0)
    rows.refuse(bad, array, column, "are no weights", "Weights are finite and at least 0.")
    return values.astype(np.float32)


def group_codes(rows: Rows, column: str) -> np.ndarray:
    """(N,) int64: whole numbers from 0 below 10^18 as they are, others and texts as a stable 63-bit hash; a missing value is the group -1."""
    array = rows.column(column)
    if pa.types.is_integer(array.type) and len(array):
        low, high = (scalar.as_py() for scalar in pc.min_max(array).values())
        if low is not None and low >= 0 and high < 10**18:
            return _filled(array.cast(pa.int64()), -1)
    codes, words = text_codes(array, Field(column, "categorical"), rows, "text")
    whole = words.cast(pa.string())
    digits = pc.match_substring_regex(whole, r"^(0|[1-9][0-9]{0,17})$").to_numpy(zero_copy_only=False)
    hashed = (hash_strings(words) >> np.uint64(1)).astype(np.int64)
    number = pc.if_else(pa.array(digits), whole, "0").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return np.append(np.where(digits, number, hashed), -1)[codes]


def checked_labels(label: str | None, extra: Sequence[str] | None) -> list[str] | None:
    """The further label columns as a list, None without any. Raises `ValueError` for others than different names beside the first."""
    if not extra:
        return None
    is_list = isinstance(extra, (list, tuple)) and all(isinstance(name, str) and name for name in extra)
    if label is None or not is_list or len({label, *extra}) <= len(extra):
        raise ValueError(
            f"extra_labels={extra!r}; accepted: a list of columns beside the label {label!r}, all different."
        )
    return list(extra)
