"""Sums over what stands earlier under the same key, plain and fading, without a Python loop over rows.

R: rows, K: signals summed together.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg.lapack import dtbtrs

from lmctr.utils.ragged import offsets_from_lengths

DAY = 86_400.0


def scan(keep: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(K, R) running sums y[r] = keep[r] * y[r - 1] + values[r]: forward substitution in a matrix of two diagonals.

    Factors between 0 and 1 can underflow to the 0 that they mean, but nothing overflows, however long the time.

    Args:
        keep: (R,) factors in [0, 1]; 0 begins a new run. values: (K, R) finite; float64 ones are overwritten.
    """
    if not values.size:
        return np.zeros(values.shape)
    diagonals = np.ones((2, len(keep)), order="F")
    diagonals[1, :-1] = -keep[1:].astype(np.float64)
    given = np.ascontiguousarray(values, dtype=np.float64)
    sums, _ = dtbtrs(diagonals, given.T, uplo="L", diag="U", overwrite_b=True)
    return sums.T


class KeyedRows:
    """Rows sorted by key and time, each of which sees the rows of its key before its second.

    Args:
        key: (R,) whole numbers. time: (R,) seconds. real: (R,) whether a row is an event; the others only look. None: all are.

    Attributes:
        asked: the rows to answer for, in this order; all, to begin with.
    """

    def __init__(self, key: np.ndarray, time: np.ndarray, real: np.ndarray | None = None) -> None:
        sorted_already = (key[1:] > key[:-1]) | (key[1:] == key[:-1]) & (time[1:] >= time[:-1])
        self.order = np.arange(len(key)) if sorted_already.all() else _order(key, time)
        self.asked = np.arange(len(key))
        key, self.time = key[self.order], time[self.order]
        self.real = np.ones(len(key), dtype=bool) if real is None else real[self.order]
        self.row = np.arange(len(key))
        self.new_key = np.r_[True, key[1:] != key[:-1]][: len(key)]
        new_second = self.new_key | np.r_[True, self.time[1:] != self.time[:-1]][: len(key)]
        self.start = np.maximum.accumulate(np.where(self.new_key, self.row, 0))
        self.end = np.maximum.accumulate(np.where(new_second, self.row, 0))
        self.seen = self.end > self.start

    @cached_property
    def _place(self) -> np.ndarray:
        """Where each row stands among the sorted ones."""
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(self.order))
        return place

    def unsorted(self, values: np.ndarray) -> np.ndarray:
        """Values (.., R) of the sorted rows, for the rows that are asked for."""
        return values[..., self._place[self.asked]]

    def _before(self, running: np.ndarray, keep: np.ndarray | None = None) -> np.ndarray:
        """Running sums (K, R) up to the second before each row that is asked for, times its `keep` (R,)."""
        place = self._place[self.asked]
        found = running[..., self.end[place] - 1]
        return np.where(self.seen[place], found if keep is None else found * keep[place], 0.0)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(K, R) sums of `values` (K, R) over the earlier rows."""
        return self._before(scan(~self.new_key, values[:, self.order]))

    def fading_by_event(
        self, values: np.ndarray, counts: np.ndarray, half_life: float, has_order: bool = True
    ) -> np.ndarray:
        """(K, R) sums in which each later row that counts (R,) makes a row weigh 2 ** (-1 / half_life) of what it did.

        `has_order`: rows of one second come one after the other as they stand; else none is the later one, and each of them weighs what it does in the
        mean over their orders.
        """
        counts, values, step = counts[self.order], values[:, self.order], 0.5 ** (1 / half_life)
        if has_order:
            return self._before(scan(np.where(counts, step, 1.0) * ~self.new_key, values))
        alike = np.bincount(self.end, counts, len(self.row))[self.end]  # rows of its second that count
        weight = (1 - step**alike) / ((1 - step) * np.maximum(alike, 1))
        keep = np.where(self.end == self.row, step**alike, 1.0) * ~self.new_key
        return self._before(scan(keep, values * weight))

    def fading_by_day(self, values: np.ndarray, half_life: float) -> np.ndarray:
        """(K, R) sums in which a row weighs 2 ** (-days / half_life)."""
        gaps = np.diff(self.time, prepend=self.time[:1])
        keep = np.where(self.new_key, 0.0, np.exp2(-np.where(self.new_key, 0, gaps) / (DAY * half_life)))
        passed = self.time - self.time[self.end - 1]
        return self._before(scan(keep, values[:, self.order]), np.exp2(-np.maximum(passed, 0) / (DAY * half_life)))

    def _last_event(self) -> tuple[np.ndarray, np.ndarray]:
        """The last event before each sorted row's second, and whether there is one."""
        last = np.maximum.accumulate(np.where(self.real, self.row, -1))[self.end - 1]
        return last, self.seen & (last >= self.start)

    def since_last(self) -> np.ndarray:
        """(R,) seconds since the last earlier event, NaN without one."""
        last, known = self._last_event()
        return self.unsorted(np.where(known, (self.time - self.time[last]).astype(np.float64), np.nan))

    def since_first(self) -> np.ndarray:
        """(R,) seconds since the first event, NaN where none is earlier."""
        after = np.minimum.accumulate(np.where(self.real, self.row, len(self.row))[::-1])[::-1]
        first = after[self.start]
        known = first < self.end
        first = np.where(known, first, 0)
        return self.unsorted(np.where(known, (self.time - self.time[first]).astype(np.float64), np.nan))

    def session(self, values: np.ndarray, gap: float) -> np.ndarray:
        """(K, R) sums over the earlier events of the session that is still open: no gap above `gap` seconds up to the row itself."""
        events = np.flatnonzero(self.real)  # a row that only looks neither prolongs nor parts a session
        begins = self.new_key[events] | (np.diff(self.time[events], prepend=self.time[events][:1]) > gap)
        begins |= np.r_[True, self.start[events][1:] != self.start[events][:-1]][: len(events)]
        running = np.zeros((len(values), len(self.row)))
        running[:, events] = scan(~begins, values[:, self.order[events]])
        last, known = self._last_event()
        known &= self.time - self.time[last] <= gap
        return self.unsorted(np.where(known, running[:, last], 0.0))

    def last(self, known: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The last `length` known ones (R,) of the sorted rows before each of them, as a range (R,) of places among the known ones."""
        count = offsets_from_lengths(known)
        ends = count[self.end]
        return np.maximum(ends - length, count[self.start]), ends

    def last_mean(self, values: np.ndarray, length: int) -> np.ndarray:
        """(R,) mean of the last `length` earlier values that are not NaN, NaN without any."""
        values = values[self.order]
        known = ~np.isnan(values)
        starts, ends = self.last(known, length)
        total = np.r_[0.0, np.cumsum(values[known])]
        with np.errstate(invalid="ignore"):
            return self.unsorted((total[ends] - total[starts]) / (ends - starts))


def _order(key: np.ndarray, time: np.ndarray) -> np.ndarray:
    """The rows by key, then time, equal ones as they come."""
    first, span = int(time.min()), int(time.max()) - int(time.min()) + 1
    if (int(key.max()) + 1) * span < 2**63:
        return np.argsort(key.astype(np.int64) * span + (time - first), kind="stable")
    return np.lexsort((time, key))
