"""Conversion of event columns, shared by [`InteractionLog`] and the dataset builders.

Every function takes one column (numpy array, list, pyarrow array or chunked array) and gives numpy arrays, or raises a
`ValueError` that names the source (a file, when there is one), the column, the number of bad values and the first bad row.
Rows are counted from 1, in the order of the input, a header line not counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.amounts import number_form
from lmctr.data.texts import LITERALS, literal_lists
from lmctr.utils.arrow import decoded, is_number, is_text, plain_type, whole_numbers, without_extension
from lmctr.utils.rows import MAX_SECONDS


def place(source: str | None, column: str) -> str:
    """`"ratings.csv, column 'time'"`, or `"column 'time'"` when the values come from memory."""
    return f"{source}, column {column!r}" if source else f"column {column!r}"


PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units of unix times."""
_ONE_ROW = "Each id may stand on one row only; put several values of one id into one cell, parted by | (`separator` in a schema)."


def nulls(array: pa.Array) -> np.ndarray:
    """(R,) bool, the rows without a value."""
    return pc.is_null(array).to_numpy(zero_copy_only=False)


def refuse(
    bad: np.ndarray, values: pa.Array | np.ndarray, column: str, source: str | None, problem: str, accepted: str
) -> None:
    """Raises `ValueError` when the mask `bad` is true anywhere, with the number of such rows and the first three of them."""
    if not bad.any():
        return
    rows = np.flatnonzero(bad)
    values = [values[int(row)] for row in rows[:3]]
    values = [value.as_py() if isinstance(value, pa.Scalar) else value.item() for value in values]
    shown = "; ".join(f"row {row + 1}: {value!r}" for row, value in zip(rows, values))
    more = ", ..." if len(rows) > 3 else ""
    raise ValueError(
        f"{place(source, column)}: {len(rows)} of {len(bad)} values {problem} ({shown}{more}). {accepted}"
    )


def refuse_repeated(codes: np.ndarray, values: pa.Array, column: str, source: str | None) -> None:
    """Raises `ValueError` where a code stands on two rows, as [`refuse`] does; below 0 there is none."""
    again = codes >= 0
    again[np.unique(codes, return_index=True)[1]] = False
    refuse(again, values, column, source, "repeat an earlier row", _ONE_ROW)


class MixedValuesError(ValueError):
    """Values of a column that have no common type."""


def as_arrow(values: Any, column: str, source: str | None = None) -> pa.Array:
    """One contiguous pyarrow array of a one-dimensional column."""
    if isinstance(values, pa.ChunkedArray):
        if pa.types.is_dictionary(values.type):
            values = values.unify_dictionaries()
        elif pa.types.is_string(values.type):
            values = values.cast(pa.large_string())  # 32-bit offsets end at 2 GiB of text
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    dtype = getattr(values, "dtype", None)
    # may hold pandas' NA
    of_frame = hasattr(values, "iloc") and not (isinstance(dtype, np.dtype) and dtype.kind != "O")
    if not isinstance(values, (list, tuple)) and not of_frame:
        values = np.asarray(values)
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ValueError(f"{place(source, column)}: expected one value per row, got an array of shape {values.shape}.")
    if str(getattr(values, "dtype", "object")) == "object" and any(isinstance(own, np.ndarray) for own in values):
        # lists, of which Arrow takes arrays of one type only: an empty one is of floats
        values = [list(own) if isinstance(own, np.ndarray) else own for own in values]
    try:
        return without_extension(decoded(pa.array(values, from_pandas=True)) if of_frame else pa.array(values))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise MixedValuesError(f"{place(source, column)}: the values have no common type: {error}") from None
    except OverflowError:
        try:
            return pa.array(values, pa.uint64())
        except (pa.ArrowException, OverflowError):
            raise ValueError(f"{place(source, column)}: a whole number needs more than 64 bits") from None


def whole_column(
    values: Any, column: str, source: str | None = None, accepted: str = "Every event needs a value here."
) -> pa.Array:
    """[`as_arrow`] of a column without missing values."""
    array = as_arrow(values, column, source)
    if array.null_count:
        refuse(nulls(array), array, column, source, "are missing", accepted)
    return array


def encode_ids(
    values: Any, column: str, source: str | None = None, dtype: type[np.signedinteger] = np.int64
) -> tuple[np.ndarray, pa.Array]:
    """Codes 0 .. n - 1 of the ids, of type `dtype`, and the sorted distinct ids (int64 or string).

    Ids are integers or strings; a float column is accepted when all its values are whole (a table reader's doing).
    """
    indices, dictionary = _encoded(_plain_ids(whole_column(values, column, source), column, source))
    used = np.bincount(indices, minlength=len(dictionary)) > 0
    order = pc.sort_indices(dictionary).to_numpy()
    order = order[used[order]]
    rank = np.zeros(len(dictionary), dtype=dtype)
    rank[order] = np.arange(len(order))
    return rank[indices], dictionary.take(pa.array(order))


def _encoded(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Indices (R,) and the values that they point to, of which some may stand on no row."""
    encoded = array.dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary


def item_rows(
    values: Any, column: str, source: str | None, catalogue_ids: Any, missing: int | None = None
) -> np.ndarray:
    """Row (int32) of each event's item in the catalogue; an item that the catalogue lacks has the row `missing`, and is an error without."""
    array = _plain_ids(whole_column(values, column, source), column, source)
    known = _plain_ids(as_arrow(catalogue_ids, "item_id", "catalogue"), "item_id", "catalogue")
    indices, dictionary = _encoded(array)
    rows = places_among(dictionary, known)
    if rows.null_count and missing is None:
        accepted = (
            "Every event's item needs a row in the catalogue: add one with its id, or write `missing_items: drop` (leave such events out) or "
            "`missing_items: empty` (keep them without a description) in the schema."
        )
        refuse(nulls(rows)[indices], array, column, source, "are not in the catalogue", accepted)
    return rows.fill_null(-1 if missing is None else missing).to_numpy(zero_copy_only=False).astype(np.int32)[indices]


def places_among(ids: pa.Array, known: pa.Array) -> pa.Array:
    """(N,) of N distinct ids their places among known ones, null where these lack them. Beside whole numbers texts are read without zeros in front,
    007 as 7, unless that makes one of two."""
    if pa.types.is_integer(ids.type) == pa.types.is_integer(known.type):
        return pc.index_in(ids.cast(known.type), value_set=known)
    ids, known = (_without_zeros(own.cast(pa.string())) for own in (ids, known))
    return pc.index_in(ids, value_set=known)


def _without_zeros(texts: pa.Array) -> pa.Array:
    plain = pc.replace_substring_regex(texts, r"^0+(\d+)$", r"\1")
    return plain if pc.count_distinct(plain) == pc.count_distinct(texts) else texts


def without_id(array: pa.Array) -> np.ndarray:
    """(R,) bool, the rows of a column of ids that have none: no value, no number, or an empty text."""
    lacking = nulls(array)
    if pa.types.is_floating(array.type):
        return lacking | pc.is_nan(array).fill_null(False).to_numpy(zero_copy_only=False)
    words = array.dictionary if pa.types.is_dictionary(array.type) else array
    if not is_text(words.type):
        return lacking
    empty = pc.equal(words, "").fill_null(False).to_numpy(zero_copy_only=False)
    if pa.types.is_dictionary(array.type) and empty.any():
        rows = array.indices.fill_null(len(empty)).to_numpy(zero_copy_only=False)
        empty = np.append(empty, True)[rows]
    return lacking | empty if empty.any() else lacking


def without_empty_id(array: pa.Array) -> pa.Array:
    """Ids none of which is the empty text, without that among the values that a dictionary lists: the others may be whole numbers."""
    place = (
        pc.index(array.dictionary, "").as_py()
        if pa.types.is_dictionary(array.type) and is_text(array.type.value_type)
        else -1
    )
    if place < 0:
        return array
    behind = pc.greater(array.indices, place).cast(array.indices.type)
    kept = pc.not_equal(array.dictionary, "")
    return pa.DictionaryArray.from_arrays(pc.subtract(array.indices, behind), array.dictionary.filter(kept))


def _plain_ids(array: pa.Array, column: str, source: str | None) -> pa.Array:
    """Ids as int64 or string (dictionary-encoded arrays stay so), with the values checked; unsigned ones that int64 does not hold as strings."""
    kind = plain_type(array.type)
    if pa.types.is_floating(kind) and not pa.types.is_dictionary(array.type):
        numbers = array.to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):
            bad = ~np.isfinite(numbers) | (numbers != np.floor(numbers)) | (np.abs(numbers) >= 2**53)
        refuse(bad, array, column, source, "are no ids", "Ids are integers or strings.")
        return array.cast(pa.int64())
    if pa.types.is_decimal(kind):
        texts = pc.replace_substring_regex(decoded(array).cast(pa.string()), r"\.0+$", "")
        bad = pc.match_substring(texts, ".").to_numpy(zero_copy_only=False)
        refuse(bad, array, column, source, "are no ids", "Ids are integers or strings.")
        return whole_numbers(texts)
    if pa.types.is_integer(kind):
        return array if pa.types.is_dictionary(array.type) else whole_numbers(array)
    if is_text(kind):
        hint = "Ids are integers or non-empty strings; take out rows that belong to none."
        refuse(without_id(array), array, column, source, "are empty", hint)
        return array
    raise ValueError(f"{place(source, column)}: ids of type {kind} are not accepted; ids are integers or strings.")


def ids_to_numpy(ids: pa.Array) -> np.ndarray:
    """Distinct ids as an int64 or fixed-width string array (never object, so that nothing is pickled)."""
    if pa.types.is_integer(ids.type):
        return ids.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return np.array(ids.to_pylist(), dtype=np.str_)


def whole_arrays(table: pa.Table, names: Mapping[str, str], source: str) -> dict[str, np.ndarray]:
    """Columns without missing values as arrays, by the keys of `names`. Raises `ValueError` for a missing value."""
    return {key: whole_column(table[name], name, source).to_numpy(zero_copy_only=False) for key, name in names.items()}


def split_texts(
    texts: pa.Array, separator: str | None, empty: Sequence[str] = ("",), column: str = "", source: str = ""
) -> pa.Array:
    """Texts split into lists, without a separator as [`~lmctr.data.texts.literal_lists`]; no list is null: it is empty for a missing text and those of `empty`.

    Raises:
        ValueError: texts that hold no such lists, with the column and the source.
    """
    none = pc.or_kleene(pc.is_null(texts), pc.is_in(texts, value_set=pa.array(list(empty), texts.type)))
    texts = pc.if_else(none, pa.scalar(None, texts.type), texts)
    lists = literal_lists(texts) if separator is None else pc.split_pattern(texts, separator)
    lists = pc.if_else(none, pa.scalar([], lists.type), lists)
    refuse(nulls(lists), texts, column, source, "are no lists", LITERALS)
    return lists


def users_with(user: np.ndarray, min_events: int) -> np.ndarray:
    """(E,) bool, the events of users who have at least `min_events`."""
    _, codes, counts = np.unique(user, return_inverse=True, return_counts=True)
    return counts[codes] >= min_events


def with_zone_names(time_format: str) -> list[str]:
    """A `strptime` format with each name of a zone that says an offset in place of its `%Z`: what parsers do with other names differs by parser and
    machine. The format itself where it has none."""
    formats = [re.sub(r"(?<!%)((?:%%)*)%Z", rf"\g<1>{name}", time_format) for name in ("UTC", "GMT")]
    return formats if formats[0] != time_format else [time_format]


def to_seconds(values: Any, column: str = "time", source: str | None = None, unit: str = "s") -> np.ndarray:
    """Unix seconds (int64) of a time column.

    Numbers are counted in `unit` ("s", "ms", "us" or "ns") since 1970-01-01 UTC and rounded down to whole seconds; timestamp and
    date columns are taken as they are (UTC when they carry no time zone).
    """
    if unit not in PER_SECOND:
        raise ValueError(f"time unit: got {unit!r}, accepted: {', '.join(map(repr, PER_SECOND))}.")
    array = whole_column(values, column, source)
    kind = array.type
    if pa.types.is_timestamp(kind):
        seconds = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
        seconds = np.floor_divide(seconds, PER_SECOND[kind.unit])
    elif pa.types.is_date(kind):
        seconds = array.cast(pa.date32()).cast(pa.int32()).to_numpy(zero_copy_only=False).astype(np.int64) * 86_400
    elif pa.types.is_integer(kind):
        seconds = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
        if unit != "s":  # otherwise they are the column itself: a large log has no room for copies
            seconds = np.floor_divide(seconds, PER_SECOND[unit])
    elif pa.types.is_floating(kind):
        numbers = array.to_numpy(zero_copy_only=False)
        refuse(~np.isfinite(numbers), array, column, source, "are not finite", "Every event needs a time.")
        if kind != pa.float64() and len(numbers) and np.abs(numbers).max() > 2**24 * PER_SECOND[unit]:
            raise ValueError(
                f"{place(source, column)}: {kind} cannot hold unix times to the second; use int64 or float64 numbers."
            )
        limit = (MAX_SECONDS + 1) * PER_SECOND[unit]
        seconds = np.floor(np.clip(numbers.astype(np.float64), -limit, limit) / PER_SECOND[unit]).astype(np.int64)
    else:
        raise ValueError(
            f"{place(source, column)}: times of type {kind} are not accepted; pass numbers (unix time) or timestamps"
            " (in a schema file, `format` reads strings)."
        )
    problem = "are outside the years up to 9999 when read as unix time"
    hint = "Are they in milliseconds or finer? Divide them, or set the time unit in the schema."
    refuse(np.abs(seconds) > MAX_SECONDS, array, column, source, problem, hint)
    return np.ascontiguousarray(seconds, dtype=np.int64)


def to_labels(
    values: Any, column: str = "label", source: str | None = None, accepted: Sequence[int] = (0, 1)
) -> np.ndarray:
    """Labels as int8. Integers, booleans and floats are accepted when each value is one of `accepted`."""
    rule = f"Accepted: {', '.join(map(str, accepted))}."
    array = whole_column(values, column, source, rule)
    kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8()).to_numpy(zero_copy_only=False)
    if not is_number(kind):
        raise ValueError(f"{place(source, column)}: labels of type {kind} are not accepted. {rule}")
    numbers = array.to_numpy(zero_copy_only=False)
    bad = ~np.isin(numbers, accepted)
    refuse(bad, array, column, source, "are other than " + " and ".join(map(str, accepted)), rule)
    return numbers.astype(np.int8)


def to_codes(
    values: Any, column: str, source: str | None, names: Sequence[str] | None, dtype: type[np.signedinteger]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Integer codes and the names that they index.

    Integer columns are codes already (with `names` given, each must index it); string columns are looked up in `names`, or, without
    names, numbered in sorted order.
    """
    array = whole_column(values, column, source)
    limit = np.iinfo(dtype).max
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if pa.types.is_integer(array.type):
        codes = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
        top = limit + 1 if names is None else len(names)
        known = "" if names is None else f" of the {top} names {tuple(names)}"
        bad = (codes < 0) | (codes >= top)
        refuse(bad, array, column, source, "are no codes", f"Accepted: 0 to {top - 1}{known}.")
        if names is None:
            names = tuple(str(code) for code in range(int(codes.max()) + 1 if len(codes) else 0))
        return codes.astype(dtype), tuple(names)
    if names is None:
        codes, found = encode_ids(array, column, source)
        if len(found) > limit + 1:
            raise ValueError(
                f"{place(source, column)}: {len(found)} distinct values, at most {limit + 1} are accepted."
            )
        return codes.astype(dtype), tuple(str(name) for name in found.to_pylist())
    indices, dictionary = _encoded(array)
    rows = pc.index_in(dictionary.cast(pa.string()), value_set=pa.array(list(names), pa.string()))
    if rows.null_count:
        accepted = f"Accepted: {', '.join(map(repr, names))}."
        refuse(nulls(rows)[indices], array, column, source, "are unknown", accepted)
    return rows.fill_null(0).to_numpy(zero_copy_only=False).astype(dtype)[indices], tuple(names)


def text_numbers(array: pa.Array, name: str, source: str, accepted: str) -> pa.Array:
    """Strings that are numbers as numbers; others are an error."""
    if not is_text(array.type):
        return array
    good = pc.match_substring_regex(array, rf"^\s*{number_form(words='')}\s*$")
    bad = pc.invert(good).fill_null(False).to_numpy(zero_copy_only=False)
    refuse(bad, array, name, source, "are no numbers", accepted)
    trimmed = pc.utf8_trim_whitespace(array)
    whole = pc.all(pc.match_substring_regex(trimmed, r"^[+-]?\d+$")).as_py()
    return pc.replace_substring_regex(trimmed, r"^\+", "").cast(pa.int64() if whole else pa.float64())


def to_graded(values: Any, column: str = "feedback_values", source: str | None = None) -> np.ndarray:
    """Graded feedback as float32; NaN where a value is missing."""
    array = as_arrow(values, column, source)
    array = array.cast(pa.float32()) if pa.types.is_null(array.type) else array
    if not is_number(array.type):
        raise ValueError(
            f"{place(source, column)}: graded feedback of type {array.type} is not accepted; pass numbers, null where unknown."
        )
    numbers = array.to_numpy(zero_copy_only=False).astype(np.float32)
    problem = "are no finite numbers"
    refuse(np.isinf(numbers), array, column, source, problem, "Graded feedback is finite, or missing where unknown.")
    return numbers


def to_weights(values: Any, column: str = "weight", source: str | None = None) -> np.ndarray:
    """Sample weights as float32: finite and not negative."""
    array = whole_column(values, column, source)
    if not is_number(array.type):
        raise ValueError(f"{place(source, column)}: weights of type {array.type} are not accepted; pass numbers.")
    numbers = array.to_numpy(zero_copy_only=False).astype(np.float32)
    bad = ~np.isfinite(numbers) | (numbers < 0)
    refuse(bad, array, column, source, "are no weights", "Weights are finite and at least 0.")
    return numbers
