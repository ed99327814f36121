"""Types of Arrow columns, and columns in plain types."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type are whole or floating numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists of any length."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def decoded(values: pa.Array) -> pa.Array:
    """A column as its values, also where it is codes of a dictionary."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def texts_of_bytes(values: pa.Array, refused: str) -> pa.Array:
    """A column of bytes as its texts; others as they are.

    Raises:
        ValueError: `refused`, for bytes that are no UTF-8 text.
    """
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        return values
    try:
        return values.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise ValueError(refused) from None


def without_empty(texts: pa.Array) -> pa.Array:
    """Texts with missing values for the empty ones, as which a text file writes them."""
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
