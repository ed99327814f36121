"""Users of a log who stand there twice, under two ids."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lmctr.data.leaks import row_hashes
from lmctr.utils.ragged import whole_rows

from .log import InteractionLog

_COARSE = 900  # seconds
_HASHED = 4_000_000  # events, of more of which some stand for all
_FEWEST, _SHARE = 5, 0.8  # events of two users that are the same, and their share of the fewer ones
_BEGIN_APART = 0.25  # of the users: where so many begin in seconds of their own, times are no places
_ITEMS = 80  # of a user whose labels are compared
_LOOKED_AT = 2000  # pairs of such users
_DIFFERENT = 40  # labels of two users that are to be expected to differ
_SAME = 0.05  # of them that differ between copies

_Found = tuple[int, int, int, int, str]  # two users, events that are the same, of how many, in what


def copied_users(log: InteractionLog, samples: np.ndarray, what: str) -> tuple[str, ...]:
    """A line about users most of whose events stand under another user's id too; none where there are none.

    Args:
        samples: (S,) of which to say how many are theirs. what: they are, for the line.
    """
    found = [*_same_seconds(log), *_same_labels(log)]
    if not found:
        return ()
    copied = np.zeros(log.num_users, dtype=bool)
    for one, other, *_ in found:
        copied[[one, other]] = True
    one, other, count, size, means = max(found, key=lambda pair: pair[2])
    names = " and ".join(repr(log.user_ids[user].item()) for user in (one, other))
    theirs = f"{int(copied[log.user[samples]].sum()):,} of {len(samples):,} {what}"
    return (
        f"users whose events stand under another user's id too: {int(copied.sum()):,} of {log.num_users:,}, such as {names} ({count:,} of {size:,} "
        f"{means}); {theirs} are theirs. Leave one of each out: where one is trained on, as by a split by user, the other is no test, and elsewhere "
        "they count twice",
    )


def tells_minutes(log: InteractionLog) -> bool:
    """Whether times tell more than quarters of an hour, or days."""
    return bool((log.time % _COARSE).any())


def _same_seconds(log: InteractionLog) -> Iterator[_Found]:
    """Two users with the same items and labels in the same seconds.

    None are found where times tell days or quarters of an hour alone, or most users begin in the same seconds, as where times are numbers of events: there
    two users may do the same.
    """
    begins = np.unique(log.time[log.offsets[:-1][np.diff(log.offsets) > 0]])
    if not tells_minutes(log) or len(begins) < _BEGIN_APART * log.num_users:
        return
    seen, every = log.seen, _every(log)
    hashes, users = [], []
    for block in whole_rows(log.offsets):
        own = row_hashes([values[block] for values in (log.item, log.time, log.label)])
        kept = seen[block] & (own % every == 0)
        hashes.append(own[kept])
        users.append(log.user[block][kept].astype(np.int64))
    user = np.concatenate(users)
    size = np.bincount(user, minlength=log.num_users)
    one, other, count = _neighbours(np.concatenate(hashes), user, log.num_users)
    least = np.minimum(size[one], size[other])
    found = (count >= _FEWEST) & (count >= _SHARE * least)
    for pair in zip(*(values[found].tolist() for values in (one, other, count, least))):
        yield *pair, f"events{_some(every)}, to the second"


def _same_labels(log: InteractionLog) -> Iterator[_Found]:
    """Two users of many items who have nearly all of them in common, with labels that differ next to nowhere, at whatever times.

    How often they would differ by chance is the less of what the rates of both users and what other users' labels of the items say.
    """
    seen, every = log.seen & (log.label >= 0), _every(log)
    firsts = []
    for block in whole_rows(log.offsets):
        kept = np.flatnonzero(seen[block] & (row_hashes([log.item[block]]) % every == 0)) + block.start
        pair = log.user[kept].astype(np.int64) * log.num_items + log.item[kept]
        firsts.append(kept[np.unique(pair, return_index=True)[1]])  # by user and item
    first = np.concatenate(firsts)
    user, item, label = (values[first].astype(np.int64) for values in (log.user, log.item, log.label))
    if not label.any() or label.all():
        return
    size, clicks = (np.bincount(user, weights, minlength=log.num_users) for weights in (None, label))
    of_users = clicks / np.maximum(size, 1)
    met, liked = np.bincount(item), np.bincount(item, label)
    of_items = 2 * liked * (met - liked) / np.maximum(met * (met - 1), 1)  # two of an item's users differ
    many = size[user] >= _ITEMS
    one, other, count = _neighbours(2 * item[many] + label[many], user[many], log.num_users)
    likely = np.flatnonzero(count >= 0.05 * np.minimum(size[one], size[other]))
    likely = likely[np.argsort(-count[likely], kind="stable")][:_LOOKED_AT]
    bounds = np.searchsorted(user, np.arange(log.num_users + 1))
    for pair in zip(one[likely].tolist(), other[likely].tolist()):
        own, others = (slice(bounds[place], bounds[place + 1]) for place in pair)
        both, place, other_place = np.intersect1d(item[own], item[others], assume_unique=True, return_indices=True)
        least = int(size[list(pair)].min())
        rate, other_rate = of_users[list(pair)]
        by_users = len(both) * (rate * (1 - other_rate) + other_rate * (1 - rate))
        by_chance = min(by_users, float(of_items[both].sum()))
        differ = int((label[own][place] != label[others][other_place]).sum())
        if len(both) >= _SHARE * least and by_chance >= _DIFFERENT and differ <= _SAME * by_chance:
            yield *pair, len(both) - differ, least, f"items{_some(every)}, with the same label"


def _every(log: InteractionLog) -> np.uint64:
    """One in how many is looked at: of all users the same."""
    return np.uint64(1 + log.num_events // _HASHED)


def _some(every: np.uint64) -> str:
    return "" if every == 1 else f" of 1 in {every}"


def _neighbours(keys: np.ndarray, user: np.ndarray, num_users: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two users, the lower first, and how many of their keys (N,) are the same; of many users of a key, those next to each other in an order of its own."""
    order = np.lexsort((row_hashes([user, keys]), keys))
    ranked, alike = user[order], np.diff(keys[order]) == 0
    low, high = (
        function(ranked[:-1][alike], ranked[1:][alike]).astype(np.int64) for function in (np.minimum, np.maximum)
    )
    pairs, count = np.unique((low * num_users + high)[low < high], return_counts=True)
    return *np.divmod(pairs, num_users), count
