"""Negatives of a log of clicks alone: items drawn beside each event, as samples that no other event sees.

Histories and statistics hold what happened, as the requests of a server do. Only items are drawn that somebody met before, so that nothing tells a
draw by what comes later; for the same reason an item's first event, which no draw could have had, stands in histories and is no sample.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from lmctr.utils.progress import step

from .log import InteractionLog
from .queries import with_queries

DRAWS = ("uniform", "popular")
_ROUNDS = 10  # of drawing again what was drawn already


@step("drawing negatives")
def with_negatives(log: InteractionLog, per_event: int, draw: str = "uniform", seed: int = 0) -> InteractionLog:
    """Draws items that were not clicked beside each event of a log of clicks.

    A draw has its click's user, time, scenario, context, weight and part, the label 0 (of further labels too), and is hidden. It is none of the
    user's clicks of that second, and no item stands twice in one; clicks of other times may be drawn, as leaving them out would tell the past
    (or the future) by the label. Later events change no draw of earlier seconds.

    Args:
        log: E events, all with the label 1, none hidden.
        per_event: items beside each event, from 1; early events, before which fewer items were met, have fewer.
        draw: "uniform" over the items met before that second, or "popular": by their events so far, so that popularity tells nothing.
        seed: of the draws.

    Returns:
        The log with up to E * per_event hidden events more. Its `part` is -1 at each item's first second, and elsewhere as it was, or 0.

    Raises:
        ValueError: another number, draw or seed; a label other than 1, hidden events; times that are all alike.
    """
    for name, value, least in (("per_event", per_event, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}: got {value!r}, accepted: a whole number from {least}.")
    if draw not in DRAWS:
        raise ValueError(f"draw: got {draw!r}, accepted: {', '.join(map(repr, DRAWS))}.")
    if log.hidden is not None or not (log.label == 1).all():
        raise ValueError(
            "negatives are drawn beside clicks alone: expected the label 1 on every event, and no hidden ones."
        )
    events, items, is_first = _drawn(log, per_event, draw == "popular", seed)
    if not len(events):
        raise ValueError(
            "negatives: there is nothing to draw: no event comes after one of another item at an earlier second; are the times right?"
        )
    part = np.zeros(log.num_events, dtype=np.int8) if log.part is None else log.part.copy()
    part[is_first] = -1
    log = dataclasses.replace(log, part=part)
    queried = with_queries(
        log,
        pa.DictionaryArray.from_arrays(pa.array(log.user[events]), pa.array(log.user_ids)),
        pa.DictionaryArray.from_arrays(pa.array(items), log.catalogue["item_id"].combine_chunks()),
        log.time[events],
        None if log.scenario is None else log.scenario[events],
        None if log.context is None else log.context.take(pa.array(events)),
    )
    result, copied = queried.log, {}
    for name in ("weight", "part"):
        if (values := getattr(log, name)) is not None:
            copied[name] = getattr(result, name).copy()
            copied[name][queried.queries] = values[events]
    return dataclasses.replace(result, **copied)


def _drawn(
    log: InteractionLog, per_event: int, by_events: bool, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The events (N,) beside which items (N,) were drawn, and the events of each item's first second."""
    order = np.argsort(log.time, kind="stable")
    time, item = log.time[order], log.item[order]
    first = np.sort(np.unique(item, return_index=True)[1])  # of each item, in the order of time
    known = item[first]
    met = np.searchsorted(time[first], time)  # items of earlier seconds
    place = np.empty(log.num_items, dtype=np.int64)
    place[known] = np.arange(len(known))
    is_sample = place[item] < met
    pool, items = (np.searchsorted(time, time), item) if by_events else (met, known)  # of earlier seconds
    second = log.history_end[order].astype(np.int64)  # of a user: its first event
    taken = np.sort(second * log.num_items + item)
    shape = (len(order), per_event)
    drawn, open_ = np.full(shape, -1, dtype=np.int64), np.broadcast_to(is_sample[:, None], shape).copy()
    for round_ in range(_ROUNDS):
        rows, columns = np.nonzero(open_)
        if not len(rows):
            break
        chance = np.random.default_rng([seed, round_]).random(shape)[rows, columns]
        found = items[(chance * pool[rows]).astype(np.int64)]
        keys = second[rows] * log.num_items + found
        good = np.zeros(len(keys), dtype=bool)
        good[np.unique(keys, return_index=True)[1]] = True
        good &= taken[np.searchsorted(taken[:-1], keys)] != keys
        rows, columns = rows[good], columns[good]
        drawn[rows, columns], open_[rows, columns] = found[good], False
        taken = np.sort(np.concatenate([taken, keys[good]]))
    rows, columns = np.nonzero(drawn >= 0)
    return order[rows], drawn[rows, columns].astype(np.int32), order[~is_sample]
