"""Checks of the rows that users hand to processors and models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["MAX_SECONDS", "check_list", "whole_seconds"]

MAX_SECONDS = 253_402_300_799  # 9999-12-31 23:59:59 UTC, the last time that ISO dates can write
"""Times beyond it are taken for milliseconds (or finer) that were passed as seconds."""


def check_list(value: Any, where: str, holds: str) -> None:
    """Raise `ValueError`, which starts with `where`, unless a value is a list (or array) of what it `holds`."""
    try:
        len(value)
        is_list = not isinstance(value, (str, bytes, Mapping))
    except TypeError:
        is_list = False
    if not is_list:
        raise ValueError(f"{where}: expected a list of {holds}, got {value!r:.80}; give [...] around a single one")


def whole_seconds(value: Any, where: str) -> int:
    """A time as whole seconds; fractions are cut off.

    Raises:
        ValueError: no finite number, or one that can only be milliseconds; starts with `where`.
    """
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
    return time
