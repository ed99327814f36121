"""Types of Arrow columns."""

from __future__ import annotations

import pyarrow as pa


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type are whole or floating numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
