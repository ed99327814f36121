"""What other users' labels tell of a film and of the films liked before, for CoLLM's ML-1M: each user's columns are fitted without that user.

So a training row looks to a model as the row of a user whom the training part does not have, which two fifths of the test rows are.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

NAMES = ("film_level", "film_rows", "liked_level", "liked_level_10", "liked_rows", "co_liked", "co_liked_10")
_RECENT = 10
_LEVEL_PRIOR, _PAIR_PRIOR = 5.0, 20.0  # imaginary rows


def levels_without_the_user(
    user: np.ndarray, item: np.ndarray, time: np.ndarray, label: np.ndarray, liked: np.ndarray, num_items: int
) -> dict[str, np.ndarray]:
    """The columns [`NAMES`] (E,) of the events of a log sorted by user and time.

    For an event of the user u on the film i, with sums over the labelled rows of all users but u, later ones as well:
    `film_level` l(i) = sum(label - m) / (n + 5), m = (p + 5 P) / (q + 5) of a row's user with p positives among q rows, P the share of all
    rows; `film_rows` log(1 + n). Over the films j that u liked before the event's second: `liked_level`, `liked_rows`, their means of l(j)
    and of log(1 + n); `liked_level_10`, that of the last ten; `co_liked`, the mean of logit((a + 20 r) / (a + b + 20)) - logit(r), where a
    users like i and b do not, of those who like j too, and r = P + l(i) kept within 0.02 and 0.98; `co_liked_10`, that of the ten
    greatest. NaN where nothing was liked.

    Args:
        user, item: (E,) numbers from 0; num_items: of the films.
        time: (E,) seconds.
        label: (E,) 0 or 1, -1 where none may be seen.
        liked: (E,) bool, the likes that may be seen by later events of their user. Those after the last label pair no films.
    """
    seen = np.flatnonzero(label >= 0)
    shape = int(user.max()) + 1, num_items
    rated, positive, likes = (np.zeros(shape, dtype=np.float32) for _ in range(3))
    rated[user[seen], item[seen]] = 1
    positive[user[seen], item[seen]] = label[seen]
    early = liked & (time <= time[seen].max())
    likes[user[early], item[early]] = 1
    share = float(label[seen].mean())
    own = (positive.sum(1) + _LEVEL_PRIOR * share) / (rated.sum(1) + _LEVEL_PRIOR)
    residual = positive - own[:, None] * rated
    sums, counts = residual.sum(0, dtype=np.float64), rated.sum(0)
    negative = rated - positive
    both, only = likes.T @ positive, likes.T @ negative  # (I, I): users who like j, and like or do not like i
    found = {name: np.full(len(user), np.nan) for name in NAMES}
    bounds = np.searchsorted(user, np.arange(shape[0] + 1))
    for u, (start, end) in enumerate(pairwise(bounds)):
        level = (sums - residual[u]) / (counts - rated[u] + _LEVEL_PRIOR)
        rows = np.log1p(counts - rated[u])
        films, before = item[start:end], start + np.flatnonzero(liked[start:end])
        found["film_level"][start:end], found["film_rows"][start:end] = level[films], rows[films]
        known = np.searchsorted(time[before], time[start:end])  # likes before each event's second
        of = item[before]
        sums_of = [np.concatenate([[0], np.cumsum(values[of])]) for values in (level, rows)]
        some = known > 0
        last = np.maximum(known - _RECENT, 0)
        place, number = np.flatnonzero(some) + start, known[some]
        found["liked_level"][place] = sums_of[0][number] / number
        found["liked_rows"][place] = sums_of[1][number] / number
        found["liked_level_10"][place] = (sums_of[0][number] - sums_of[0][last[some]]) / (number - last[some])
        rate = np.clip(share + level[films], 0.02, 0.98)
        liking, owned = likes[u, of][:, None], np.ix_(of, films)
        a = both[owned] - liking * positive[u, films]
        b = only[owned] - liking * negative[u, films]
        lift = _logit((a + _PAIR_PRIOR * rate) / (a + b + _PAIR_PRIOR)) - _logit(rate)  # (liked, events)
        for event, count in zip(place, number):
            values = lift[:count, event - start]
            found["co_liked"][event] = values.mean()
            found["co_liked_10"][event] = np.sort(values)[-_RECENT:].mean()
    return found


def _logit(share: np.ndarray) -> np.ndarray:
    return np.log(share / (1 - share))
