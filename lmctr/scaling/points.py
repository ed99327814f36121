"""Points that a caller gives, as arrays that are checked."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def equal_lists(**lists: ArrayLike) -> list[np.ndarray]:
    """Two lists by their names as float64 arrays (P,). ValueError: lengths that differ, or no lists."""
    try:
        first, second = arrays = [np.asarray(values, dtype=np.float64) for values in lists.values()]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{' and '.join(lists)} must be lists of numbers of equal length: {error}") from error
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(
            f"{' and '.join(lists)} must be lists of equal length, got shapes {first.shape} and {second.shape}"
        )
    return arrays


def check_numbers(name: str, values: np.ndarray, positive: bool = True) -> None:
    """Raise `ValueError` that names the first value which is not finite, or not above 0."""
    bad = ~(np.isfinite(values) & (values > 0)) if positive else ~np.isfinite(values)
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        accepted = "positive and finite" if positive else "finite"
        raise ValueError(f"{name} must be {accepted}, got {values[place]} at point {place}")


def fitted_part(y: np.ndarray, complement: bool) -> np.ndarray:
    """What a law is fitted to, y or 1 - y. ValueError: it is not positive and finite at some point."""
    if not complement:
        check_numbers("y", y)
        return y
    try:
        check_numbers("1 - y", 1.0 - y)
    except ValueError as error:
        raise ValueError(f"{error}; with complement y is a share below 1, such as 0.72 (not 72 per cent)") from None
    return 1.0 - y


def check_changes(name: str, values: np.ndarray) -> None:
    """Raise `ValueError` where a metric is the same at every point, up to rounding: a law of it would be one of rounding."""
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        raise ValueError(
            f"{name} is {values[0]:g} at all {len(values)} points: there is nothing that a law could explain"
        )
