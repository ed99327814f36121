"""How much of what users took next their lists of items hold, and plain lists to compare with.

U: users, I: items, C: clicks. Recall is over all that a user took next, NDCG that of binary relevance (Jarvelin and Kekalainen, TOIS 2002); both see the
whole catalogue: ranks among a few drawn items order models otherwise (Krichene and Rendle, KDD 2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from lmctr.utils.ragged import blocks

METRICS = ("recall", "ndcg", "hit_rate")
SHRINKAGE = 20.0
"""Imaginary clicks of either item that cosines are lowered by, so that two rare items are not alike by chance."""
_SCORES, _ITEMS = 1 << 24, 512  # scores of users, and items whose neighbours are counted, in memory at once


def list_metrics(lists: Sequence[np.ndarray], wanted: Sequence[np.ndarray], top: int) -> np.ndarray:
    """(U, 3) recall, NDCG and whether there is a hit ([`METRICS`]) of each user's list.

    Args:
        lists: U arrays of at most `top` different items, the best first. wanted: U arrays of different items, at least one.
    """
    gain = 1 / np.log2(np.arange(top) + 2)
    found = np.empty((len(lists), len(METRICS)))
    for row, (items, own) in enumerate(zip(lists, wanted)):
        hits = np.isin(items, own)
        best = gain[: min(len(own), top)].sum()
        found[row] = hits.sum() / len(own), gain[: len(items)][hits].sum() / best, hits.any()
    return found


@dataclass(frozen=True)
class Clicks:
    """Clicks in order of time: user, item, time (C,), by number and in unix seconds. num_users, num_items: of the log."""

    user: np.ndarray
    item: np.ndarray
    time: np.ndarray
    num_users: int
    num_items: int

    def before(self, time: np.ndarray) -> Iterator[np.ndarray]:
        """How often each item (I,) was clicked before each of some moments (U,), which rise; one array, which changes."""
        counts, done = np.zeros(self.num_items, dtype=np.int64), 0
        for until in np.searchsorted(self.time, time):
            np.add.at(counts, self.item[done:until], 1)
            done = until
            yield counts

    def of_users(self, user: np.ndarray, time: np.ndarray) -> sparse.csr_array:
        """(U, I) how often some users clicked each item before a moment of each."""
        place = np.full(self.num_users, -1)
        place[user] = np.arange(len(user))
        rows = place[self.user]
        own = (rows >= 0) & (self.time < time[rows])
        shape = len(user), self.num_items
        return sparse.coo_array((np.ones(own.sum()), (rows[own], self.item[own])), shape).tocsr()

    def cosines(self, counts: sparse.csr_array, before: int) -> Iterator[np.ndarray]:
        """For each of some users how alike all items (I,) are to those that the user clicked, as `counts` (U, I) of [`of_users`] has them: sums of
        n(i, j) / (sqrt(n(i) n(j)) + [`SHRINKAGE`]), n the users who clicked both and each `before` a moment (Sarwar et al., WWW 2001)."""
        early = self.time < before
        shape = self.num_users, self.num_items
        clicked = sparse.coo_array((np.ones(early.sum()), (self.user[early], self.item[early])), shape).tocsr().sign()
        norm = np.sqrt(np.bincount(clicked.indices, minlength=self.num_items))
        of_item = clicked.T.tocsr()
        mine = counts.sign()
        step = max(_SCORES // max(self.num_items, 1), 1)
        for own in (mine[users] for users in blocks(mine.shape[0], step)):
            scores = np.zeros(own.shape)
            items = np.unique(own.indices)
            for some in blocks(len(items), _ITEMS):
                both = (of_item[items[some]] @ clicked).tocoo()
                row, column = both.coords
                both.data /= norm[items[some]][row] * norm[column] + SHRINKAGE
                scores += (own[:, items[some]] @ both.tocsr()).toarray()
            yield from scores


def best_of(items: np.ndarray, top: int, *scores: np.ndarray) -> np.ndarray:
    """Of some items the `top` with the best of the scores (I,) of all, the best first; of equal ones those with the better of the next scores, then the
    earlier."""
    return items[np.lexsort([-own[items] for own in reversed(scores)])[:top]]
