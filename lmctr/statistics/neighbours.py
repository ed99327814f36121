"""What the items that a user judged say of a candidate: item-based collaborative filtering (Sarwar et al. 2001; residuals and shrinkage of
Koren 2008), counted causally.

An event's `left` is the user's residual less its mean so far, by its standard deviation. Each event with a known `left` meets the last
[`HISTORY`] such events of its user before its second; items i and j get `left * left'` of each meeting, seen from the later event's second on.
The weight of two items is w = (sum of these) / (their number n + [`SHRINKAGE`]), and 0 below [`SUPPORT`] meetings. For a candidate and the
user's last [`HISTORY`] events h: `sum` of w_h left_h; `mean`, that by (sum of |w_h| + [`DAMPING`]); `weight`, sum of |w_h|; `share` of the h
that have a weight.

E: events, M: meetings, C: candidates, H: events of a user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from lmctr.utils.ragged import offsets_from_lengths, ragged_arange

from .scan import KeyedRows

HISTORY = 200
SHRINKAGE = 10.0
SUPPORT = 3
DAMPING = 0.1
"""All chosen on the validation parts of MovieLens latest-small, two earlier releases of it, and 100K."""
_PART = 1 << 21  # meetings that are counted at once
_KEPT = 2
_counted: dict[bytes, dict[str, np.ndarray]] = {}
"""The last results by a checksum of what they were counted of: fit, samples and baselines of a run ask for the same."""


def neighbour_statistics(
    user: np.ndarray, item: np.ndarray, time: np.ndarray, left: np.ndarray
) -> dict[str, np.ndarray]:
    """The statistics (E,) of all events, by name.

    Args:
        user, item, time: (E,) whole numbers. left: (E,) float64, NaN where not known: such an event is met by no other.
    """
    key = hashlib.blake2b(str((len(left), HISTORY)).encode())
    for column in (user, item, time, left):
        key.update(np.ascontiguousarray(column))
    if (known := _counted.pop(key.digest(), None)) is None:
        known = _count(user, item, time, left)
    _counted[key.digest()] = known
    while len(_counted) > _KEPT:
        del _counted[next(iter(_counted))]
    return known


def _count(user: np.ndarray, item: np.ndarray, time: np.ndarray, left: np.ndarray) -> dict[str, np.ndarray]:
    size, span = len(left), int(item.max(initial=0)) + 1
    found = {"sum": np.zeros(size), "weight": np.zeros(size), "share": np.zeros(size)}
    lengths = np.zeros(size, dtype=np.int64)
    for event, earlier in _meetings(user, item, time, left):
        weight, met = _weights(
            *_summed(_pair(item[event], item[earlier], span), time[event], left[event] * left[earlier])
        )
        for name, values in (("sum", weight * left[earlier]), ("weight", np.abs(weight)), ("share", met)):
            found[name] += np.bincount(event, values, size)
        lengths += np.bincount(event, minlength=size)
    return _finished(found, lengths)


class ItemPairs:
    """The weights of pairs of items at a moment.

    Args:
        pair: (P,) later place * number of items + earlier place, rising. weight: (P,). num_items: of the table.
    """

    def __init__(self, pair: np.ndarray, weight: np.ndarray, num_items: int) -> None:
        self.pair, self.weight, self.num_items = pair, weight, num_items

    @classmethod
    def of_events(
        cls, user: np.ndarray, item: np.ndarray, time: np.ndarray, left: np.ndarray, num_items: int
    ) -> ItemPairs:
        """All pairs of these events (E,) that have a weight."""
        pairs, weights = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
        for event, earlier in _meetings(user, item, time, left, known_only=True):
            pair, code = np.unique(_pair(item[event], item[earlier], num_items), return_inverse=True)
            weight, met = _weights(np.bincount(code, left[event] * left[earlier]), np.bincount(code))
            pairs.append(pair[met])
            weights.append(weight[met])
        pair = np.concatenate(pairs)
        order = np.argsort(pair)
        return cls(pair[order], np.concatenate(weights)[order], num_items)

    def statistics(self, candidates: np.ndarray, history: np.ndarray, left: np.ndarray) -> dict[str, np.ndarray]:
        """The statistics (C,) of candidates for a user.

        Args:
            candidates: (C,) and history: (H,) places of items, -1 for an unknown one. left: (H,) of the user's last events.
        """
        asked = _pair(candidates[:, None], history[None], self.num_items)
        met, weight = np.zeros(asked.shape, dtype=bool), np.zeros(asked.shape)
        if len(self.pair):
            place = np.minimum(np.searchsorted(self.pair, asked), len(self.pair) - 1)
            met = (self.pair[place] == asked) & (candidates[:, None] >= 0) & (history >= 0)
            weight = np.where(met, self.weight[place], 0.0)
        found = {"sum": weight @ left, "weight": np.abs(weight).sum(1), "share": met.sum(1).astype(np.float64)}
        return _finished(found, np.full(len(candidates), len(history)))


def _meetings(
    user: np.ndarray, item: np.ndarray, time: np.ndarray, left: np.ndarray, known_only: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Later and earlier event (M,) of each meeting, all of the same two items in one part; `known_only`: without those that only look."""
    known = ~np.isnan(left)
    rows = KeyedRows(user, time)
    of_known, (starts, ends) = rows.order[known[rows.order]], rows.last(known[rows.order], HISTORY)
    starts, ends = rows.unsorted(np.stack([starts, ends]))
    events = np.flatnonzero((ends > starts) & (known | (not known_only)))
    before = offsets_from_lengths((ends - starts)[events])
    parts, span = max(1, -(-int(before[-1]) // _PART)), int(item.max(initial=0)) + 1
    small = np.int32 if len(left) < 2**31 else np.int64  # all meetings are held at once
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(parts)]
    cuts = np.searchsorted(before, np.arange(parts) * (before[-1] / parts))
    for some in np.split(events, cuts[1:]):
        own = (ends - starts)[some]
        event, earlier = np.repeat(some, own).astype(small), of_known[ragged_arange(starts[some], own)].astype(small)
        part = _pair(item[event], item[earlier], span) % parts
        for number in range(parts):
            inside = slice(None) if parts == 1 else part == number
            found[number].append((event[inside], earlier[inside]))
    while found:
        yield tuple(np.concatenate(columns) for columns in zip(*found.pop()))


def _summed(pair: np.ndarray, time: np.ndarray, product: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number (M,) of the known products of each meeting's pair before its second."""
    known = ~np.isnan(product)
    sums, count = KeyedRows(pair, time).sums(np.stack([np.nan_to_num(product), known]))
    return sums, count


def _pair(one: np.ndarray, other: np.ndarray, span: int) -> np.ndarray:
    return np.maximum(one, other).astype(np.int64) * span + np.minimum(one, other)


def _weights(sums: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight of pairs, and whether each has one."""
    met = count >= SUPPORT
    return np.where(met, sums / (count + SHRINKAGE), 0.0), met


def _finished(found: dict[str, np.ndarray], lengths: np.ndarray) -> dict[str, np.ndarray]:
    """With the mean, and the share of so many (E,) events."""
    mean = found["sum"] / (found["weight"] + DAMPING)
    return found | {"mean": mean, "share": found["share"] / np.maximum(lengths, 1)}
