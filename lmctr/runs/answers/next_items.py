"""How much of what users of a part of a log took next stands in the lists that a run recommends, beside plain lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.evaluation.item_lists import METRICS, Clicks, best_of, list_metrics
from lmctr.evaluation.significance import paired_t_test
from lmctr.utils.progress import over
from lmctr.utils.tables import text_table

from .recommend import BestItems

MODEL = "model"


@dataclass(frozen=True)
class ListQuality:
    """Means over users.

    Attributes:
        recall: of the items that a user took next, the share in the list. ndcg: the same by place in the list. hit_rate: share of users of whose next items
            at least one is there. items: how many different items the lists hold.
    """

    recall: float
    ndcg: float
    hit_rate: float
    items: int


@dataclass(frozen=True)
class NextItems:
    """What the lists of a model are worth, and plain lists of the same candidates.

    Attributes:
        part: of the data. top: items in a list. num_users: measured. candidates: mean number of items that were ranked for one. wanted: mean number of
            items that a user took next. unmet: the share of these that nobody had met, which no list could hold. shown: whether the log's users met items
            without a click, which the model learnt from.
        lists: by name, "model" first. strongest: the plain list with the best NDCG. difference: the model's NDCG less its, and low, high: the 95 %
            interval of that over users (paired t), None of fewer than two users.
    """

    part: str
    top: int
    num_users: int
    candidates: float
    wanted: float
    unmet: float
    shown: bool
    lists: dict[str, ListQuality]
    strongest: str
    difference: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        head = ["", *(f"{name}@{self.top}" for name in ("recall", "NDCG", "hit rate")), "different items"]
        rows = [
            [name, *(f"{getattr(own, metric):.4f}" for metric in METRICS), f"{own.items:,}"]
            for name, own in self.lists.items()
        ]
        interval = "" if self.low is None else f" (95 % interval over users {self.low:+.4f} to {self.high:+.4f})"
        hint = (
            "\nthis model learnt which of the items that users meet they click, not which they meet; a log of clicks alone with drawn negatives (lmctr "
            "init --negatives 2) teaches that"
        )
        return (
            f"{self.part}: {self.num_users:,} users, {self.candidates:,.0f} items ranked for each; of the {self.wanted:.1f} that one took next "
            f"{self.unmet:.1%} nobody had met before\n{text_table([head, *rows])}\n"
            f"NDCG less that of {self.strongest!r}, the strongest plain list: {self.difference:+.4f}{interval}"
            + (hint if self.shown and self.difference < 0 else "")
        )


def next_items(
    ranked: BestItems, part: str = "test", top: int = 10, num_users: int | None = None, seed: int = 0
) -> NextItems:
    """Ranks all candidates for the users of a part, at the second of each one's first sample there (or all at the time of `ranked`), and looks for
    what they then took: the items of a user's positive samples of the part from that second on; unless items met before are candidates, those
    that were new to the user. Scenario and context of all candidates are those of that first sample.

    Plain lists: the items with the most clicks so far; the sums of the cosines of items to those that the user clicked; where items met before are
    candidates, those that the user clicked most.

    Args:
        ranked: the run and its candidates. part: "train", "validation" or "test". top: items in a list. num_users: at most, drawn at random by `seed`;
            None: all.

    Raises:
        ValueError: a part of which no user took an item that is a candidate.
    """
    log, label, rows = ranked.log, ranked.kind.first_label(), ranked.candidates[1]
    samples = ranked.kind.log_parts()[part]
    if ranked.time is not None:
        samples = samples[log.time[samples] >= ranked.time]
    samples = samples[np.lexsort((log.time[samples], log.user[samples]))]
    _, begins = np.unique(log.user[samples], return_index=True)
    first, own = samples[begins], np.split(samples, begins[1:])
    time = log.time[first] if ranked.time is None else np.full(len(first), ranked.time)
    given = rows if ranked.items is not None else np.arange(log.num_items)
    wanted = [_wanted(ranked, events[label[events] == 1], at, given) for events, at in zip(own, time)]
    some = np.flatnonzero([len(items) for items in wanted])
    if not len(some):
        hint = "" if ranked.seen else "; where people come back to things, rank those too that a user has met (--seen)"
        raise ValueError(
            f"{part}: no user of its {len(samples):,} samples took an item that could be recommended{hint}"
        )
    if num_users is not None:
        some = np.random.default_rng(seed).permutation(some)[:num_users]
    some = some[np.argsort(time[some], kind="stable")]
    first, time, wanted = first[some], time[some], [wanted[place] for place in some]
    places = [ranked.candidates_of(int(code), int(at)) for code, at in zip(log.user[first], time)]
    lists = {MODEL: _of_model(ranked, first, time, top)}
    lists |= _plain(ranked, log.user[first], time, [rows[own] for own in places], top)
    found = {name: list_metrics(items, wanted, top) for name, items in lists.items()}
    qualities = {
        name: ListQuality(*map(float, found[name].mean(0)), len(np.unique(np.concatenate(items))))
        for name, items in lists.items()
    }
    strongest = max((name for name in lists if name != MODEL), key=lambda name: qualities[name].ndcg)
    ours, theirs = (found[name][:, METRICS.index("ndcg")] for name in (MODEL, strongest))
    low, high = paired_t_test(ours, theirs).confidence_interval if len(some) > 1 else (None, None)
    met = sum(int(np.isin(items, rows[own]).sum()) for items, own in zip(wanted, places))
    count = sum(map(len, wanted))
    return NextItems(
        part,
        top,
        len(some),
        float(np.mean([*map(len, places)])),
        count / len(some),
        1 - met / count,
        bool((log.seen & (label == 0)).any()),
        qualities,
        strongest,
        float((ours - theirs).mean()),
        low,
        high,
    )


def _wanted(ranked: BestItems, taken: np.ndarray, time: int, given: np.ndarray) -> np.ndarray:
    """The items, of those given, that a user took by these events; unless `ranked.seen` without those met before."""
    items = np.intersect1d(ranked.log.item[taken], given)
    if ranked.seen or not len(items):
        return items
    return np.setdiff1d(items, ranked.met(int(ranked.log.user[taken[0]]), time))


def _of_model(ranked: BestItems, first: np.ndarray, time: np.ndarray, top: int) -> list[np.ndarray]:
    """The model's lists for the users of events (U,), at a time of each."""
    log = ranked.log
    asked: dict[str, Any] = {"user": pa.array(log.user_ids[log.user[first]]), "time": time}
    if log.scenario is not None:
        asked["scenario"] = log.scenario[first]
    if log.context is not None:
        asked["context"] = log.context.take(pa.array(first))
    blocks = ranked.ranked(asked, log.user[first], top)
    told = over(blocks, "ranking items", "users", len(first), lambda block: len(np.unique(block[0])))
    owner, places = map(np.concatenate, zip(*((rows, best) for rows, best, _, _ in told)))
    return np.split(ranked.candidates[1][places], np.searchsorted(owner, np.arange(1, len(first))))


def _plain(
    ranked: BestItems, user: np.ndarray, time: np.ndarray, candidates: list[np.ndarray], top: int
) -> dict[str, list[np.ndarray]]:
    """Lists of the candidates (rows of the catalogue) of each user (U,) that no model makes, at times that rise."""
    log, label = ranked.log, ranked.kind.first_label()
    events = np.flatnonzero(log.seen & (label == 1))
    events = events[np.argsort(log.time[events], kind="stable")]
    clicks = Clicks(log.user[events], log.item[events], log.time[events], log.num_users, log.num_items)
    candidates = [items[items >= 0] for items in candidates]  # what is not in the log has no clicks
    mine = clicks.of_users(user, time)
    alike = clicks.cosines(mine, int(time[0]))  # the first of them
    lists: dict[str, list[np.ndarray]] = {}
    for items, counts, own, scores in zip(candidates, clicks.before(time), mine, alike):
        more = {"the user's most clicked": (own.toarray().ravel(), counts)} if ranked.seen else {}
        for name, keys in {"most clicked": (counts,), "item-to-item cosines": (scores, counts), **more}.items():
            lists.setdefault(name, []).append(best_of(items, top, *keys))
    return lists
