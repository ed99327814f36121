"""Parting a log's samples into training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lmctr.utils.rows import check_kind

from .log import InteractionLog

RULES = ("time", "user", "given")
PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Splits:
    """Sample events of each part, as positions in the log, sorted by (time, event).

    Args:
        train: (S,) int64.
        validation: (S,) int64.
        test: (S,) int64.
        rule: "time", "user" or "given".
        boundaries: rule-dependent description: for "time" the first times (unix seconds) of validation and test; for "user"
            the number of users of each part.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    rule: str
    boundaries: dict[str, Any] = field(default_factory=dict)

    def items(self) -> list[tuple[str, np.ndarray]]:
        """`[("train", events), ("validation", events), ("test", events)]`."""
        return [(name, getattr(self, name)) for name in PARTS]

    def with_validation(self, time: np.ndarray) -> Splits:
        """The same with the validation part added to training, in order by the (E,) `time` of the events."""
        both = np.concatenate([self.train, self.validation])
        return replace(self, train=both[np.lexsort((both, time[both]))], validation=self.validation[:0])

    def earlier(self, count: int, time: np.ndarray) -> Splits:
        """Parts for a trial at an earlier time: the newest `count` times as many training samples as validation has are left out, the
        newest of the others are validation; nothing is tested.

        Args:
            count: from 1.
            time: (E,) of the events; samples of one second stay together.

        Raises:
            ValueError: parts that are not cut by time, or too few samples for so many trials.
        """
        if self.rule != "time":
            raise ValueError(
                f"trials at earlier times need parts that are cut by time, these are cut by {self.rule!r}"
            )
        size, both = len(self.validation), np.concatenate([self.train, self.validation])
        stops = [len(both) - (count + back) * size for back in (1, 0)]
        if stops[0] < max(size, 1):
            raise ValueError(
                f"{count} trials at earlier times leave {max(stops[0], 0)} of {len(self.train)} training samples, fewer than the {size} of "
                "validation; take fewer trials"
            )
        first, last = np.searchsorted(time[both], time[both[stops]], side="left")
        return replace(self, train=both[:first], validation=both[first:last], test=both[:0], boundaries={})

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in PARTS:
            raise ValueError(f"split: got {name!r}, accepted: {', '.join(PARTS)}.")
        return getattr(self, name)


def split_log(
    log: InteractionLog,
    rule: str = "time",
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    *,
    boundaries: Sequence[int] | None = None,
    parts: np.ndarray | Sequence | None = None,
    since: int | None = None,
) -> Splits:
    """Parts the samples (events with a label) of `log`.

    Args:
        rule: "time" cuts at two points of global time so that the parts hold about `fractions` of the samples; samples of one
            second never stand on both sides of a cut. "user" gives whole users to one part each, drawn with `seed`. "given"
            takes `boundaries` (the first second of validation and of test), `parts`, or else the log's own `part`.
        fractions: shares of train, validation and test; they sum to 1. A share of validation or test may be 0.
        seed: for the rule "user" only.
        boundaries: two times in unix seconds, for the rule "given".
        parts: (E,) "train" / "validation" / "test" / "" or 0 / 1 / 2 / -1 of each event in the log's order, for the rule "given".
        since: events before this unix second are no samples, though they stand in histories; None: all with a label are.

    Raises:
        ValueError: unknown rule, bad fractions, no sample since then, or a part that was asked for and is empty.
    """
    check_kind(log, InteractionLog, "log")
    if rule not in RULES:
        raise ValueError(f"split rule: got {rule!r}, accepted: {', '.join(map(repr, RULES))}.")
    if rule != "given" and (boundaries is not None or parts is not None):
        raise ValueError(f"boundaries and parts belong to the rule 'given', not to {rule!r}.")
    samples = log.sample_events()
    if not len(samples):
        raise ValueError(f"log {log.info.name!r}: no event has a label, so there is nothing to split.")
    if since is not None:
        if isinstance(since, bool) or not isinstance(since, (int, float, np.number)):
            raise ValueError(f"since: got {since!r:.80}, accepted: a unix second.")
        newest = int(log.time[samples].max())
        samples = samples[log.time[samples] >= since]
        if not len(samples):
            raise ValueError(
                f"since: got {since}, accepted: a unix second up to {newest}, the time of the newest sample of {log.info.name!r}."
            )
    if rule == "given":
        return _given(log, samples, boundaries, parts)
    shares = check_fractions(fractions)
    if rule == "user":
        return _by_user(log, samples, shares, seed)
    samples = _by_time(log, samples)
    times = log.time[samples]
    cuts = time_cuts(times, shares)
    splits = Splits(samples[: cuts[0]], samples[cuts[0] : cuts[1]], samples[cuts[1] :], rule)
    for name, first in (("validation", cuts[0]), ("test", cuts[1])):
        splits.boundaries[name] = int(times[first]) if first < len(times) else None
    _require(splits, shares, log)
    return splits


def check_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    """The shares of train, validation and test as floats. Raises `ValueError` for other than three that sum to 1."""
    try:
        shares = tuple(float(share) for share in fractions)
    except (TypeError, ValueError):
        shares = ()
    if len(shares) != 3 or not all(0 <= s <= 1 for s in shares) or abs(sum(shares) - 1) > 1e-6 or not shares[0]:
        raise ValueError(
            f"fractions: got {fractions!r:.80}, accepted: three shares (train, validation, test) that sum to 1, train above 0."
        )
    return shares


def _by_time(log: InteractionLog, events: np.ndarray) -> np.ndarray:
    return events[np.argsort(log.time[events], kind="stable")]


def time_cuts(times: np.ndarray, shares: Sequence[float]) -> list[int]:
    """Where validation and test begin in sorted times: at the runs of equal times nearest to the shares; nearest among those that leave no part empty, where
    one run, such as the last day, holds more than a part and others are enough."""
    wanted = [min(int(np.floor(share * len(times) + 1e-9)), len(times)) for share in np.cumsum(shares[:2])]
    wanted[1] = wanted[1] if shares[2] else len(times)
    runs = np.append(0, np.flatnonzero(np.diff(times)) + 1)
    starts = np.append(runs, len(times))
    cuts = [_nearest(starts, place) for place in wanted]
    cuts[0] = cuts[0] if shares[1] else cuts[1]
    sizes = np.diff([0, *cuts, len(times)])
    if len(runs) >= np.count_nonzero(shares) and any(not size for size, share in zip(sizes, shares) if share):
        last = _nearest(runs[2:] if shares[1] else runs[1:], wanted[1]) if shares[2] else len(times)
        cuts = [_nearest(runs[(runs > 0) & (runs < last)], wanted[0]) if shares[1] else last, last]
    return cuts


def _nearest(starts: np.ndarray, place: int) -> int:
    """The start nearest to a place; of two, the earlier one."""
    return int(starts[np.argmin(np.abs(starts - place))])


def _by_user(log: InteractionLog, samples: np.ndarray, shares: tuple[float, float, float], seed: int) -> Splits:
    users = np.unique(log.user[samples])
    order = np.random.default_rng(seed).permutation(len(users))
    stops = [int(np.floor(sum(shares[:count]) * len(users) + 1e-9)) for count in (1, 2)]
    part_of_user = np.full(log.num_users, 2, dtype=np.int8)
    part_of_user[users[order[: stops[1]]]] = 1
    part_of_user[users[order[: stops[0]]]] = 0
    part = part_of_user[log.user[samples]]
    splits = Splits(*(_by_time(log, samples[part == code]) for code in range(3)), rule="user")
    splits.boundaries.update(
        {name: len(np.unique(log.user[events])) for name, events in splits.items()} | {"seed": int(seed)}
    )
    _require(splits, shares, log)
    return splits


def _given(log: InteractionLog, samples: np.ndarray, boundaries: Sequence[int] | None, parts: Any) -> Splits:
    if boundaries is None and parts is None:
        parts = log.part
    if (boundaries is None) == (parts is None):
        raise ValueError(
            f"the rule 'given' needs either boundaries (two times) or parts (one value per event); the log {log.info.name!r} has "
            "no `part` of its own."
        )
    if boundaries is not None:
        if len(boundaries) != 2 or not boundaries[0] <= boundaries[1]:
            raise ValueError(
                f"boundaries: got {list(boundaries)}, accepted: the first second of validation and of test, in this order."
            )
        part = np.searchsorted(np.asarray(boundaries, dtype=np.int64), log.time[samples], side="right")
        described = {"validation": int(boundaries[0]), "test": int(boundaries[1])}
    else:
        values = np.asarray(parts)
        if values.shape != (log.num_events,):
            raise ValueError(
                f"parts: expected one value for each of the {log.num_events} events, got shape {values.shape}."
            )
        codes = np.full(log.num_events, -2)
        for name, code in zip((*PARTS, ""), (0, 1, 2, -1)):
            codes[values == (name if values.dtype.kind in "UO" else code)] = code
        unknown = codes == -2
        if unknown.any():
            first = int(np.argmax(unknown))
            raise ValueError(
                f"parts: {int(unknown.sum())} values are unknown (first: event {first}: {values[first]!r}); accepted: "
                "'train', 'validation', 'test', '' or 0, 1, 2, -1."
            )
        part, described = codes[samples], {}
    splits = Splits(*(_by_time(log, samples[part == code]) for code in range(3)), rule="given", boundaries=described)
    if not len(splits.train):
        raise ValueError("the given parts leave no sample for training.")
    return splits


def _require(splits: Splits, shares: tuple[float, float, float], log: InteractionLog) -> None:
    for (name, events), share in zip(splits.items(), shares):
        if share > 0 and not len(events):
            samples = log.sample_events()
            seconds = len(np.unique(log.time[samples]))
            advice = "Use other fractions, the rule 'user' (data.split: user) or a larger log."
            if seconds == 1:  # which users have as well
                advice = "Rows of one time have no histories: they are a table (lmctr init FILE --kind table)."
            raise ValueError(
                f"log {log.info.name!r}: the rule {splits.rule!r} with fractions {list(shares)} leaves the part {name!r} empty "
                f"({len(samples):,} samples at {seconds:,} times, {log.num_users:,} users). {advice}"
            )
