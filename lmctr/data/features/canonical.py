"""One text for each value of a categorical field, whatever reader it came through.

A field's values are of one type, declared (`value_type`) or found out by fitting, and a value of the type has one canonical text:

| type | 127, 127.0, "127", "127.0", " 127 " | "0127" | 0.1, "0.10", "1e-1" | true, "True", "TRUE" |
| --- | --- | --- | --- | --- |
| text | 127 | 0127 | 0.1, 0.10, 1e-1 | true |
| integer | 127 | 127 | no whole number: as they are | true, which is not 1 |
| number | 127 | 127 | 0.1 | true, which is not 1 |

ASCII white space around a text is dropped in every type, and a text of nothing else is missing. What does not fit the type stays as it is: a
value that no training row had. Whole floats keep their identity up to 15 digits; beyond, a float no longer tells neighbours apart, so it is
taken for the decimal number that it prints as, never for an integer of an `integer` field.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.amounts import number_form

VALUE_TYPES = ("text", "integer", "number")

SPACE = " \t\n\v\f\r"
EXACT = 1e15  # whole floats below it are written as integers
_INTEGER = re.compile(r"([+-]?)0*([0-9]+)")
_WHOLE_FLOAT = re.compile(r"([+-]?)0*([0-9]{1,15})\.0*")
_NUMBER = re.compile(number_form(words=""))
# What a column of words must look like to be taken for numbers: zeros in front, or a plus, are marks of a code
_LIKE_INTEGER = r"^(-?0|-?[1-9][0-9]*|-?(0|[1-9][0-9]{0,14})\.0+)$"
_LIKE_NUMBER = r"^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_NAN = r"^(?i:nan)$"
_MAY_CHANGE = {  # words that are no canonical text yet, or perhaps not
    "text": r"\.0+$|^-0$|^(?i:true|false)$",
    "integer": r"^[^1-9-]|^-[^1-9]|[^0-9]",
    "number": r"^[^1-9-]|^-[^1-9]|[^0-9]",
}


def neutral_text(value: Any) -> str | None:
    """A value as the text that keeps all that the types tell apart, None where missing.

    Raises:
        TypeError: a value of a class that has no such text by itself (arrays, dates, decimals, ...).
    """
    if isinstance(value, str):
        return value.strip(SPACE) or None
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        if value != value:
            return None
        if abs(float(value)) < EXACT and value == math.floor(value):
            return str(int(value))
        return repr(value) if type(value) is float else repr(float(str(value)))  # of a float32, its own digits
    raise TypeError(f"{type(value).__name__} has no text of its own")


def canonical_text(text: str, kind: str) -> str | None:
    """The canonical text of a type for a neutral text, None where it says that there is no value."""
    if kind != "text":
        if text in ("NaN", "nan", "NAN"):
            return None
        found = _INTEGER.fullmatch(text) or _WHOLE_FLOAT.fullmatch(text)
        if found:
            sign, digits = found.groups()
            return f"-{digits}" if sign == "-" and digits != "0" else digits
        if kind == "number" and _NUMBER.fullmatch(text):
            number = float(text)
            return str(int(number)) if math.isfinite(number) and number == math.floor(number) else repr(number)
    elif text == "-0":
        return "0"
    elif text.endswith("0"):
        found = _WHOLE_FLOAT.fullmatch(text)
        if found and re.match(_LIKE_INTEGER, text):
            return "0" if found[2] == "0" else text[: text.index(".")]
    lower = text.lower()
    return lower if lower in ("true", "false") and text in (lower, lower.title(), lower.upper()) else text


def neutral_words(words: pa.Array) -> pa.Array:
    """[`neutral_text`] of an array of plain values, as large_string; binary must be UTF-8."""
    kind = words.type
    if pa.types.is_floating(kind):
        numbers = words.to_numpy(zero_copy_only=False)
        whole = (np.abs(numbers.astype(np.float64)) < EXACT) & (numbers == np.floor(numbers))  # float16 has no EXACT
        texts = pc.cast(pa.array(np.where(whole, numbers, 0).astype(np.int64)), pa.large_string())
        if not whole.all():
            rest = np.flatnonzero(~whole)
            values = numbers[rest].tolist() if kind == pa.float64() else numbers[rest]
            given = words.is_valid().to_numpy(zero_copy_only=False)[rest]
            found = [neutral_text(value) if there else None for value, there in zip(values, given)]
            texts = pc.replace_with_mask(texts, pa.array(~whole), pa.array(found, pa.large_string()))
        return texts
    texts = words if pa.types.is_large_string(kind) else words.cast(pa.large_string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return texts
    if pa.types.is_timestamp(kind):
        texts = pc.replace_substring_regex(texts, r"\.0+(Z?)$", r"\1")
    return pc.ascii_trim_whitespace(texts)


def canonical_words(texts: pa.Array, kind: str) -> pa.Array:
    """[`canonical_text`] of neutral texts; null where there is no value."""
    change = pc.match_substring_regex(texts, _MAY_CHANGE[kind]).fill_null(False)
    if not pc.any(change).as_py():
        return texts
    given = texts.filter(change).to_pylist()
    return pc.replace_with_mask(
        texts, change, pa.array([canonical_text(text, kind) for text in given], pa.large_string())
    )


def fits(texts: pa.Array, kind: str) -> pa.Array:
    """Bools: which canonical texts are of a type."""
    if kind == "text":
        return pa.array(np.ones(len(texts), dtype=bool))
    return pc.match_substring_regex(texts, r"^-?[0-9]+$" if kind == "integer" else _LIKE_NUMBER)


def types_that_fit(texts: pa.Array, types: tuple[str, ...] = VALUE_TYPES) -> tuple[tuple[str, ...], np.ndarray]:
    """Those of some types (the narrowest last) that all neutral texts without nulls may be of, and which of the texts say "nan"."""
    nan = pc.match_substring_regex(texts, _NAN)
    for kind, pattern in (("number", _LIKE_NUMBER), ("integer", _LIKE_INTEGER)):
        if kind in types and not pc.all(pc.or_(nan, pc.match_substring_regex(texts, pattern)), min_count=0).as_py():
            types = tuple(other for other in types if other != kind)
            if kind == "number":
                types = ("text",)
    return types, nan.to_numpy(zero_copy_only=False)
