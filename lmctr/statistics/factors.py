"""What the users of a log have in common says of a candidate: matrix factorisation (Koren, Bell and Volinsky 2009), fitted causally.

An event's `left` is the user's residual less its mean so far, by its standard deviation. The known ones fill a matrix of users by items, which
[`NUM_FACTORS`] factors of each fit by alternating least squares with a ridge. The factors are fitted anew, from where they were, when the known
events are [`FIRST`] and then each time that they are [`GROWTH`] times as many, and hold for the seconds after: what an event gets depends on
earlier ones only, however the log goes on. Those of users are then dropped. Each event has the user's own by ridge regression on the last
[`HISTORY`] known events of its user before its second, and `score` is their product with the candidate's: what may be expected to be left.

Where every event is a click (the signal [`CLICK`]), nothing is left to tell them apart by: a click is 1, and all other pairs of user and item are 0
with a weight of [`UNSEEN`] (Hu, Koren and Volinsky 2008), which adds that share of the factors' sums over all items, or users.

E: events, K: known events, C: candidates, H: events of a user, I: items, D: factors.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from lmctr.utils.progress import over
from lmctr.utils.ragged import offsets_from_lengths, ragged_arange

from .scan import KeyedRows

NUM_FACTORS = 12
RIDGE = 15.0
CLICK_RIDGE, UNSEEN = 1.0, 0.05
CLICK = "click"
HISTORY = 200
FIRST, GROWTH = 100, 1.15
SWEEPS = 2
NOISE = 0.1
LEAST_SPREAD = 0.01
"""All chosen on the validation parts of MovieLens latest-small, two earlier releases of it, 100K, and half of 1M; the weights of clicks on those of
latest-small's high ratings and of New York's check-ins. The noise keeps factors that early events left at 0 from staying there. Where the ridge
leaves them at 0 throughout training, what is left of it in scores of residuals has no scale of its own: these are at least on that of a hundredth of a
standard deviation, so that later ones are no outliers."""
_PART = 1 << 16  # events that are counted at once
_FEW = 8  # less than one of so many events: what they get is counted for them alone
_KEPT = 4
_FITS_KEPT = 1 << 28  # bytes
_Fit = tuple[float, float, np.ndarray, np.ndarray]
_counted: dict[bytes, Any] = {}
"""The last scores and fits by a checksum of what they were counted of: fit, samples, baselines and table of items of a run ask for the same scores, and
queries to a log, part by part, for what the same events tell."""
_ROW, _COLUMN = np.triu_indices(NUM_FACTORS)
_PLACES = np.zeros((NUM_FACTORS, NUM_FACTORS), dtype=np.int64)
_PLACES[_ROW, _COLUMN] = _PLACES[_COLUMN, _ROW] = np.arange(len(_ROW))


def changed_settings() -> list[float]:
    """The constants that factors and scores depend on, where they are not those of files from before fingerprints told them; none where they are."""
    now = [NUM_FACTORS, RIDGE, CLICK_RIDGE, UNSEEN, HISTORY, FIRST, GROWTH, SWEEPS, NOISE]
    return [] if now == [12, 15.0, 1.0, 0.05, 200, 100, 1.15, 2, 0.1] else now


def factor_scores(
    user: np.ndarray,
    item: np.ndarray,
    time: np.ndarray,
    left: np.ndarray,
    of_clicks: bool = False,
    events: np.ndarray | None = None,
    alone: bool = False,
) -> np.ndarray:
    """The scores (S,) of some events, or of all, 0 before the first fit and of items that it did not see.

    Args:
        user, item, time: (E,) whole numbers. left: (E,) float64, NaN where not known: such an event tells nothing of others.
        of_clicks: whether they are 1 for clicks, all others 0.
        events: (S,) places; None for all. alone: whether few are counted for themselves, which may differ from those of all in their last bits.
    """
    if not len(left) or (events is not None and not len(events)):
        return np.zeros(0)
    key = _checksum("scores", of_clicks, user, item, time, left)
    scores = _kept(key)
    if scores is None and alone and _FEW * len(events) < len(left):
        return _scores(user, item, time, left, of_clicks, events)[events]
    if scores is None:
        scores = _keep(key, _scores(user, item, time, left, of_clicks, np.arange(len(left))))
    return scores if events is None else scores[events]


def _checksum(of: str, of_clicks: bool, *events: np.ndarray) -> bytes:
    checksum = hashlib.blake2b(str((of, len(events[0]), HISTORY, of_clicks)).encode())
    for column in events:
        checksum.update(np.ascontiguousarray(column))
    return checksum.digest()


def _kept(key: bytes) -> Any:
    """What was kept, which is then the last to go; None where nothing was."""
    value = _counted.pop(key, None)
    return None if value is None else _keep(key, value)


def _keep(key: bytes, value: Any) -> Any:
    _counted[key] = value
    while len(_counted) > _KEPT:
        del _counted[next(iter(_counted))]
    return value


class ItemFactors:
    """The factors of items at a moment.

    Args:
        factors: (I, D) float64. of_clicks: as in [`factor_scores`].
    """

    def __init__(self, factors: np.ndarray, of_clicks: bool = False) -> None:
        self.factors, self.of_clicks = factors, of_clicks

    @classmethod
    def of_events(
        cls,
        user: np.ndarray,
        item: np.ndarray,
        time: np.ndarray,
        left: np.ndarray,
        num_items: int,
        of_clicks: bool = False,
    ) -> ItemFactors:
        """Those that hold after these events (E,)."""
        last = np.zeros((num_items, NUM_FACTORS))
        for fit in _fits(user, item, time, left, num_items, of_clicks, since=np.inf):
            last = fit[2]
        return cls(last, of_clicks)

    def scores(
        self, candidates: Sequence[np.ndarray], histories: Sequence[np.ndarray], left: Sequence[np.ndarray]
    ) -> np.ndarray:
        """The scores of the candidates of users (U,), one behind the other.

        Args:
            candidates: (C,) and histories: (H,) places of items, -1 for an unknown one. left: (H,) of the user's last events.
        """
        sums, totals = np.zeros((len(left), len(_ROW))), np.zeros((len(left), NUM_FACTORS))
        for user, (history, told) in enumerate(zip(histories, left)):
            own = self._at(history)
            sums[user], totals[user] = (own.T @ own)[_ROW, _COLUMN], told @ own
        of_users = _solved(sums + self._of_unseen, totals, self.of_clicks)
        return np.concatenate([self._at(asked) @ own for asked, own in zip(candidates, of_users)])

    @cached_property
    def _of_unseen(self) -> np.ndarray | float:
        return _of_unseen(self.factors, self.of_clicks)

    def _at(self, places: np.ndarray) -> np.ndarray:
        """Of these places, 0 of unknown ones; nothing is done for each item."""
        found = np.zeros((len(places), NUM_FACTORS))
        found[places >= 0] = self.factors[places[places >= 0]]
        return found


def _scores(
    user: np.ndarray, item: np.ndarray, time: np.ndarray, left: np.ndarray, of_clicks: bool, events: np.ndarray
) -> np.ndarray:
    """The scores (E,) of events at some places (S,), 0 elsewhere."""
    known, rows, found = ~np.isnan(left), KeyedRows(user, time), np.zeros(len(left))
    of_known = rows.order[known[rows.order]]
    starts, ends = rows.unsorted(np.stack(rows.last(known[rows.order], HISTORY)))  # places among those of `of_known`
    is_asked = np.zeros(len(left), dtype=bool)
    is_asked[events] = True
    all_asked = rows.order[is_asked[rows.order]]
    moments = time[all_asked]
    fits = _fits(user, item, time, left, int(item.max(initial=0)) + 1, of_clicks, float(moments.min()))
    parts = ((factors, all_asked[(moments > after) & (moments <= until)]) for after, until, factors in fits)
    for factors, due in over(parts, "factors of users and items", "events", len(all_asked), lambda part: len(part[1])):
        of_unseen = _of_unseen(factors, of_clicks)
        for events in _of_whole_users(due, user):
            begins = np.flatnonzero(np.diff(user[events], prepend=-1))
            lows, counts = starts[events[begins]], np.diff(begins, append=len(events))
            lengths = ends[events[begins + counts - 1]] - lows
            own = of_known[ragged_arange(lows, lengths)]
            running = np.zeros((len(_ROW) + NUM_FACTORS, len(own) + 1))  # each sum runs through memory
            seen = np.ascontiguousarray(factors[item[own]].T)
            _products(seen, running[: len(_ROW), 1:])
            np.multiply(seen, left[own], out=running[len(_ROW) :, 1:])
            np.cumsum(running, axis=1, out=running)
            shift = np.repeat(offsets_from_lengths(lengths)[:-1] - lows, counts)
            bounds = np.stack([starts[events], ends[events]]) + shift
            # events behind the first have read the same, as candidates of a second
            is_first = (np.diff(bounds, prepend=-1) != 0).any(0)
            low, high = bounds[:, is_first]
            sums = (running.take(high, axis=1) - running.take(low, axis=1)).T
            of_users = _solved(sums[:, : len(_ROW)] + of_unseen, sums[:, len(_ROW) :], of_clicks)
            found[events] = (of_users[np.cumsum(is_first) - 1] * factors[item[events]]).sum(1)
    return found


def _of_whole_users(events: np.ndarray, user: np.ndarray) -> list[np.ndarray]:
    """Events (N,) sorted by user in parts that end with a user."""
    new = np.diff(user[events], prepend=-1) > 0
    size = np.cumsum(1 + HISTORY * new) // _PART
    part = np.maximum.accumulate(np.where(new, size, 0))
    return np.split(events, np.flatnonzero(np.diff(part)) + 1) if len(events) else []


def _fits(
    user: np.ndarray,
    item: np.ndarray,
    time: np.ndarray,
    left: np.ndarray,
    num_items: int,
    of_clicks: bool,
    since: float,
) -> Iterator[tuple[float, float, np.ndarray]]:
    """The seconds behind which and up to which factors hold, and these (I, D), 0 of items without a known event; not those before `since`."""
    known = np.flatnonzero(~np.isnan(left))
    # items that first come in one second by their own order, so that their noise does not follow that of the users
    known = known[np.lexsort((item[known], time[known]))]
    events = tuple(column[known] for column in (user, item, time, left))
    key = _checksum("fits", of_clicks, *events)
    first, kept = _kept(key) or (np.inf, deque())
    for after, until, places, own in kept if since > first else _noted(key, _fits_anew(*events, of_clicks)):
        if until >= since:
            factors = np.zeros((num_items, NUM_FACTORS))
            factors[places] = own
            yield after, until, factors


def _noted(key: bytes, fits: Iterator[_Fit]) -> Iterator[_Fit]:
    """The fits, of which the last ones are kept that there is room for, with the second up to which they tell nothing."""
    first, size, kept = -np.inf, 0, deque()
    for fit in fits:
        yield fit
        kept.append(fit)
        size += fit[-1].nbytes
        while size > _FITS_KEPT and len(kept) > 1:
            _, first, _, own = kept.popleft()
            size -= own.nbytes
    _keep(key, (first, kept))


def _fits_anew(
    user: np.ndarray, item: np.ndarray, time: np.ndarray, left: np.ndarray, of_clicks: bool
) -> Iterator[_Fit]:
    """Of known events (K,), in order: the seconds behind which and up to which factors hold, the items (N,) that have some, and these (N, D)."""
    counts, count = [], float(FIRST)
    while count <= len(left):
        counts.append(int(count))
        count *= GROWTH
    own, random = np.zeros((0, NUM_FACTORS)), np.random.default_rng(0)
    bounds = np.unique(time[np.array(counts, dtype=np.int64) - 1])
    (users, _), (items, places) = _by_appearance(user), _by_appearance(item)
    for after, until in zip(bounds, [*bounds[1:], np.inf]):
        size = int(np.searchsorted(time, after, side="right"))
        shape = (int(users[:size].max()) + 1, int(items[:size].max()) + 1)
        where = (users[:size], items[:size])
        total, number = (sparse.csr_array((of, where), shape) for of in (left[:size], np.ones(size)))
        total_of_items, number_of_items = total.T.tocsr(), number.T.tocsr()
        own = np.vstack([own, np.zeros((shape[1] - len(own), NUM_FACTORS))])
        own += NOISE * random.standard_normal(own.shape)
        for _ in range(SWEEPS):
            of_users = _half(number, total, own, of_clicks)
            own = _half(number_of_items, total_of_items, of_users, of_clicks)
        yield after, until, places[: len(own)], own


def _by_appearance(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (K,) of values in the order in which they first come, and the value of each number."""
    known, first, place = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return number[place], known[order]


def _half(number: sparse.csr_array, total: sparse.csr_array, factors: np.ndarray, of_clicks: bool) -> np.ndarray:
    """The factors (N, D) of one side from those of the other (M, D): number and total of the events (N, M) of each pair."""
    products = _products(np.ascontiguousarray(factors.T), np.empty((len(_ROW), len(factors)))).T
    return _solved(number @ products + _of_unseen(factors, of_clicks), total @ factors, of_clicks)


def _of_unseen(factors: np.ndarray, of_clicks: bool) -> np.ndarray | float:
    """The weighted sum of x x' over all rows x (N, D), as a triangle."""
    return UNSEEN * (factors.T @ factors)[_ROW, _COLUMN] if of_clicks else 0.0


def _products(columns: np.ndarray, out: np.ndarray) -> np.ndarray:
    """The upper triangle of x x' of each column x (D, N) in `out`, one number after the other: all at once run out of the processor's cache."""
    for place, (row, column) in enumerate(zip(_ROW, _COLUMN)):
        np.multiply(columns[row], columns[column], out=out[place])
    return out


def _solved(products: np.ndarray, sums: np.ndarray, of_clicks: bool) -> np.ndarray:
    """Ridge regression (N, D) from the sums of x x' as a triangle, and of x times what is left (N, D)."""
    matrix = products[:, _PLACES.ravel()]
    matrix[:, :: NUM_FACTORS + 1] += CLICK_RIDGE if of_clicks else RIDGE
    return np.linalg.solve(matrix.reshape(-1, *_PLACES.shape), sums[..., None])[..., 0]
