"""Rows of different length in one array, handled without a Python loop over the rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_BLOCK = 1 << 20


def blocks(length: int, size: int | None = None) -> Iterator[slice]:
    """The places of an array of this length, `size` (or about a million) at a time: what is worked out of it needs no copy."""
    size = _BLOCK if size is None else size
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def whole_rows(offsets: np.ndarray, size: int | None = None) -> Iterator[slice]:
    """The places of an array of rows with these offsets (R + 1,), whole rows of about `size` (or a million) places at a time."""
    size, length = _BLOCK if size is None else size, int(offsets[-1])
    stops = np.searchsorted(offsets, np.arange(size, length, size))
    bounds = np.unique(np.concatenate([[0], offsets[stops], [length]]))
    return (slice(start, end) for start, end in itertools.pairwise(bounds.tolist()))


def offsets_from_lengths(lengths: np.ndarray) -> np.ndarray:
    """Offsets (R + 1,) int64 of rows with these lengths (R,): row i is [offsets[i], offsets[i + 1])."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ragged_arange(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenation of the ranges [starts[i], starts[i] + lengths[i]).

    Args:
        starts: (R,) integers.
        lengths: (R,) integers of at least 0.

    Returns:
        (sum of lengths,) int64.

    Example:
        `ragged_arange([5, 0, 9], [2, 0, 3])` gives `[5, 6, 9, 10, 11]`.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    offsets = offsets_from_lengths(lengths)
    shift = np.asarray(starts, dtype=np.int64) - offsets[:-1]
    return np.repeat(shift, lengths) + np.arange(offsets[-1], dtype=np.int64)


def padded_grids(flat: Mapping[str, np.ndarray], lengths: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Ragged rows as grids.

    Args:
        flat: name to (T, ...) values, row by row. lengths: (R,) of the rows, summing to T.

    Returns:
        Name to (R, n, ...) with zeros behind the rows, n the largest length, and the mask (R, n), True where a value stands.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    width = int(lengths.max(initial=0))
    place = ragged_arange(np.arange(len(lengths)) * width, lengths)
    grids = {}
    for name, values in flat.items():
        grid = np.zeros((len(lengths) * width, *values.shape[1:]), dtype=values.dtype)
        grid[place] = values
        grids[name] = grid.reshape(len(lengths), width, *values.shape[1:])
    return grids, np.arange(width) < lengths[:, None]


def ragged_searchsorted(
    values: np.ndarray, wanted: np.ndarray, starts: np.ndarray, stops: np.ndarray, side: str = "left"
) -> np.ndarray:
    """Like `numpy.searchsorted`, each value in a range of its own.

    Args:
        values: (T,) numbers that rise inside each range.
        wanted: (R,) numbers to find a place for.
        starts, stops: (R,) ranges `[starts[i], stops[i])` of `values`.
        side: "left", before equal values, or "right", behind them.

    Returns:
        (R,) int64 places in `values`.
    """
    low, high = (np.array(ends, dtype=np.int64) for ends in (starts, stops))
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) // 2
        found, asked = values[middle], wanted[open_]
        is_before = found < asked if side == "left" else found <= asked
        low[open_] = np.where(is_before, middle + 1, low[open_])
        high[open_] = np.where(is_before, high[open_], middle)
    return low


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different length.

    Args:
        values: (T, ...) the rows, one after the other.
        offsets: (R + 1,) integers that never fall, from 0 to T: row i is `values[offsets[i] : offsets[i + 1]]`.

    Raises:
        ValueError: offsets that do not describe `values`.
    """

    values: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        offsets = self.offsets
        if offsets.ndim != 1 or len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(self.values):
            ends = f"{offsets[0]} to {offsets[-1]}" if offsets.ndim == 1 and len(offsets) else "nothing"
            raise ValueError(
                f"offsets must be one row of numbers from 0 to {len(self.values)} (the number of values), got {ends}"
            )
        if np.any(np.diff(offsets) < 0):
            raise ValueError(f"offsets fall after row {int(np.argmax(np.diff(offsets) < 0))}; they must never fall")

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int]]) -> Ragged:
        """Build from a list of rows (lists or arrays), as int32."""
        rows = list(rows)
        offsets = offsets_from_lengths(np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows)))
        flat = (value for row in rows for value in row)
        return cls(np.fromiter(flat, dtype=np.int32, count=int(offsets[-1])), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} rows")
        row %= len(self)
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """(R,) length of each row."""
        return np.diff(self.offsets)
