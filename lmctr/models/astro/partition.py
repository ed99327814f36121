"""Multi-scale partitioning (Eq. 1-2): from a row's events to the slots of the blocks, and who sees whom.

Shapes: K blocks (Nb), B rows, N events of a row, S slots of a block, Q queries, R scenarios.

Rules (decided), chosen so that a history is encoded once for all candidates of a user and SUMI rows stay exact:

- Block k keeps the latest n_k events of the row that match strategy k's behaviours and scenarios.
- What depends on the candidate is a mask between a query and an event, never a choice of events: a query sees an event of block k
  when the event is not later, is at most the strategy's window older than the query and, for "same", of the query's scenario. The
  query is a candidate or a later event: an event sees what a candidate in its place would have seen. So a state never depends on
  the candidates, and with l layers it hears of events at most l windows older than itself.
- For "same", a block keeps the latest n_k events of each scenario that a candidate of the row has, and positions are counted
  within a scenario: as if each scenario had the block for itself.
- A row's blocks begin where its last candidate's do; see `block_starts` for a row cut at an earlier candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from lmctr.models.common.base import without_values
from lmctr.models.common.relative_bias import causal_parts, distance_bucket, pair_rows
from lmctr.models.common.sequence import time_bucket

from .strategies import SAME, Strategy


class Slots(NamedTuple):
    """The events that the blocks hold, (K, B, S) each; unused slots are not `valid`.

    index: place in the row's history. position: rank among the block's events, for "same" among those of its scenario. time: unix seconds. scenario: code.
    """

    index: torch.Tensor
    position: torch.Tensor
    time: torch.Tensor
    scenario: torch.Tensor
    valid: torch.Tensor

    def blocks(self, chosen: slice) -> Slots:
        """The slots of some blocks."""
        return Slots(*(tensor[chosen] for tensor in self))

    def slots(self, chosen: slice) -> Slots:
        """Some slots of all blocks."""
        return Slots(*(tensor[..., chosen] for tensor in self))


class PairContext(NamedTuple):
    """What attention needs to know of each (query, event) pair, and of each query.

    rows: of the bias tables, see [`~lmctr.models.common.relative_bias.pair_rows`], (K, B, Q, S) each. scenario: (K, B, Q) of the query.
    queries: which ones these are.
    """

    rows: tuple[torch.Tensor, ...]
    scenario: torch.Tensor
    queries: slice = slice(None)


def matching_events(
    strategies: Sequence[Strategy],
    behaviors: torch.Tensor,
    scenarios: torch.Tensor,
    mask: torch.Tensor,
    wanted: torch.Tensor,
) -> torch.Tensor:
    """(K, B, N) bool: events that strategy k selects by behaviour and scenario.

    Args:
        behaviors, scenarios: (B, N) codes. mask: (B, N) bool, real events. wanted: (B, R) bool, scenarios of the candidates.
    """
    matches = []
    for strategy in strategies:
        match = mask
        if strategy.behaviors is not None:
            match = match & _among(behaviors, strategy.behaviors)
        if strategy.scenarios == SAME:
            match = match & wanted.gather(1, scenarios)
        elif strategy.scenarios is not None:
            match = match & _among(scenarios, strategy.scenarios)
        matches.append(match)
    return torch.stack(matches)


def _among(codes: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
    """Which codes are among the wanted; `torch.isin` sorts, which ONNX cannot."""
    return (codes[..., None] == torch.tensor(wanted, device=codes.device)).any(-1)


def block_starts(
    strategies: Sequence[Strategy],
    matches: torch.Tensor,
    scenarios: torch.Tensor,
    num_scenarios: int,
    block_length: int,
) -> torch.Tensor:
    """(B, K, R) int64 first event of a row that each block may hold of each scenario.

    0, or that of the latest `block_length` matches (of the scenario, for "same"; of all scenarios otherwise). A candidate's own
    single-item row, cut at its dependence, needs the starts of the row it is taken from: with fewer events behind them the blocks
    would otherwise reach further back.
    """
    later = matches.flip(-1).cumsum(-1).flip(-1)  # matches from here on
    starts = (later > block_length).sum(-1)[..., None].expand(-1, -1, num_scenarios)
    same = _same(strategies)
    if same:
        by_scenario = matches[same][..., None] & F.one_hot(scenarios, num_scenarios).bool()
        later = by_scenario.flip(2).cumsum(2).flip(2)
        starts = starts.contiguous().index_put(
            (torch.tensor(same, device=matches.device),), (later > block_length).sum(2)
        )
    return starts.transpose(0, 1)


def take_slots(
    strategies: Sequence[Strategy],
    matches: torch.Tensor,
    times: torch.Tensor,
    scenarios: torch.Tensor,
    starts: torch.Tensor,
) -> Slots:
    """The matches of each block from its start on, moved together to the left.

    Args:
        matches: (K, B, N) bool. times, scenarios: (B, N). starts: (B, K, R), see `block_starts`.
    """
    blocks, rows, events = matches.shape
    place = torch.arange(events, device=matches.device)
    own_start = starts.transpose(0, 1).gather(-1, scenarios.expand(blocks, -1, -1))
    kept = matches & (place >= own_start)
    counts = kept.sum(-1)
    # As wide as the fullest block, which parts the graph of torch.compile in two. The bound that shapes give, n_k, would keep it whole, and costs
    # more than compiling gains: 1.4 to 2.2 times the processor time of a step (60 to 200 events of 3 behaviours, n_k 100; compiled: 0.8).
    width = events if without_values(counts) else max(int(counts.max()), 1)
    rank = kept.cumsum(-1) - 1
    target = torch.where(kept, rank, width)  # the column `width` takes what is not kept
    index = place.new_zeros(blocks, rows, width + 1).scatter(-1, target, place.expand(blocks, rows, -1))[..., :width]
    same = _same(strategies)
    if same:
        by_scenario = (kept[same][..., None] & F.one_hot(scenarios, starts.shape[-1]).bool()).cumsum(2)
        rank = rank.index_put(
            (torch.tensor(same, device=matches.device),),
            by_scenario.gather(-1, scenarios.expand(len(by_scenario), -1, -1)[..., None])[..., 0] - 1,
        )
    time, scenario, position = (x.expand(blocks, -1, -1).gather(-1, index) for x in (times, scenarios, rank))
    return Slots(index, position, time, scenario, torch.arange(width, device=matches.device) < counts[..., None])


def _same(strategies: Sequence[Strategy]) -> list[int]:
    """The places of the strategies that read the candidate's own scenario only."""
    return [place for place, strategy in enumerate(strategies) if strategy.scenarios == SAME]


def history_pairs(strategies: Sequence[Strategy], queries: Slots, keys: Slots, sizes: BiasSizes) -> list[PairContext]:
    """Pairs of events: each sees the events up to itself (causal). Some queries at a time, with the keys that they may see."""
    width = queries.index.shape[-1]
    before, found = keys.index.shape[-1] - width, []
    for part in causal_parts(width, keys.index.device):
        own, seen = queries.slots(part), keys.slots(slice(before + part.stop))
        distance = own.position[..., None] - seen.position[..., None, :]
        # Slots are in the order of events, so that a later slot, whatever its position, is a later event.
        visible = seen.valid[..., None, :] & (own.index[..., None] >= seen.index[..., None, :])
        pairs = _pairs(strategies, visible, distance, own.time, own.scenario, seen, sizes)
        found.append(pairs._replace(queries=part))
    return found


def candidate_pairs(
    strategies: Sequence[Strategy],
    dependence: torch.Tensor,
    times: torch.Tensor,
    scenarios: torch.Tensor,
    keys: Slots,
    sizes: BiasSizes,
) -> PairContext:
    """Pairs of a candidate (B, C) and an event: the candidate stands behind the last event that its dependence allows."""
    shape = (len(strategies), *times.shape)
    times, scenarios = times.expand(shape), scenarios.expand(shape)
    before = keys.valid[..., None, :] & (keys.index[..., None, :] < dependence[None, ..., None])
    before = _in_scenario(strategies, before, scenarios, keys)
    position = torch.where(before, keys.position[..., None, :] + 1, 0).amax(-1)
    distance = position[..., None] - keys.position[..., None, :]
    return _pairs(strategies, before, distance, times, scenarios, keys, sizes)


def _in_scenario(
    strategies: Sequence[Strategy], visible: torch.Tensor, scenarios: torch.Tensor, keys: Slots
) -> torch.Tensor:
    if not _same(strategies):
        return visible
    same = torch.tensor([strategy.scenarios == SAME for strategy in strategies], device=visible.device)
    return visible & (~same[:, None, None, None] | (scenarios[..., None] == keys.scenario[..., None, :]))


class BiasSizes(NamedTuple):
    """Of the relative bias: scenarios with tables of their own (0: one table serves all blocks and scenarios), rows of a position
    and of a time table, and the distance of the last position bucket."""

    num_scenarios: int
    num_position_buckets: int
    num_time_buckets: int
    max_distance: int


def position_edges(num_buckets: int, max_distance: int) -> list[int]:
    """First distance of each bucket: one by one in the first half, then on a log scale up to `max_distance`."""
    exact = (num_buckets + 1) // 2
    rest = num_buckets - exact
    edges = list(range(exact))
    for step in range(rest):
        ratio = max(max_distance, exact) / exact
        edges.append(max(edges[-1] + 1, int(exact * ratio ** (step / rest))))
    return edges


def _pairs(
    strategies: Sequence[Strategy],
    visible: torch.Tensor,
    distance: torch.Tensor,
    times: torch.Tensor,
    scenarios: torch.Tensor,
    keys: Slots,
    sizes: BiasSizes,
) -> PairContext:
    elapsed = times[..., None] - keys.time[..., None, :]
    if any(strategy.window_seconds is not None for strategy in strategies):
        longest = torch.iinfo(torch.int64).max
        windows = [longest if s.window_seconds is None else s.window_seconds for s in strategies]
        visible = visible & (elapsed <= torch.tensor(windows, device=times.device)[:, None, None, None])
    visible = _in_scenario(strategies, visible, scenarios, keys)
    position = distance_bucket(distance, tuple(position_edges(sizes.num_position_buckets, sizes.max_distance)))
    time = time_bucket(elapsed, sizes.num_time_buckets)
    groups, group = 1, 0
    if sizes.num_scenarios:
        groups = len(strategies) * sizes.num_scenarios
        block = torch.arange(len(strategies), device=times.device)[:, None, None]
        group = (block * sizes.num_scenarios + scenarios)[..., None]
    shape = groups, sizes.num_position_buckets, sizes.num_time_buckets
    return PairContext(pair_rows(visible, position, time, shape, group), scenarios)
