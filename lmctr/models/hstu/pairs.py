"""Who sees whom in HSTU, and which rows of the relative bias tables each pair takes; found once for all layers.

Shapes: B rows, L tokens of a history, Q queries, S keys, C candidates of K tokens each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lmctr.models.common.relative_bias import causal_parts, distance_bucket, pair_rows

from .configuration_hstu import HSTUConfig

KEPT_TOKENS = 512
"""Without gradients, up to this many tokens of a history the layers share one search of the rows of their bias tables; beyond, each
searches again for some queries at a time, so that memory grows linearly in the length."""


def position_edges(num_buckets: int, max_distance: int) -> tuple[int, ...]:
    """First distance of each bucket, in tokens: one by one in the first half, then on a log scale up to `max_distance`."""
    exact = num_buckets // 2
    rest = num_buckets - exact
    edges = list(range(exact))
    for step in range(rest):
        edges.append(max(edges[-1] + 1, int(exact * (max(max_distance, exact) / exact) ** (step / max(rest - 1, 1)))))
    return tuple(edges)


def time_buckets(elapsed: torch.Tensor, num_buckets: int) -> torch.Tensor:
    """floor(ln(max(1, seconds)) / 0.301), at most `num_buckets` - 1."""
    if elapsed.device.type == "mps":  # which has no doubles
        return time_buckets(elapsed.cpu(), num_buckets).to(elapsed.device)
    return (elapsed.clamp_min(1).double().log() / 0.301).int().clamp_max(num_buckets - 1)


class HistoryPairs:
    """The last tokens of a sequence as queries, and as keys these and the tokens in front.

    Args:
        config: sizes of the bias tables. positions: (B, L), places of the queries, -1 for none, the same in every row. times: (B, L), seconds
            that each brings as a query. key_times: (B, all tokens).

    Attributes:
        parts: the queries whose attention is computed at once.
    """

    def __init__(self, config: HSTUConfig, positions: torch.Tensor, times: torch.Tensor, key_times: torch.Tensor):
        self.config, self.positions, self.times, self.key_times = config, positions[:1], times, key_times
        total = positions.shape[1]
        self.parts = causal_parts(total, positions.device)
        self._kept: dict[int, tuple[torch.Tensor, ...]] | None = {}
        if not (torch.is_grad_enabled() or torch.compiler.is_exporting() or total <= KEPT_TOKENS):
            self._kept = None

    def rows(self, number: int) -> tuple[torch.Tensor, ...]:
        """Rows of the bias tables, (B, Q, S) each, of a part of the queries and the keys up to its end."""
        if self._kept is not None and number in self._kept:
            return self._kept[number]
        part = self.parts[number]
        own = self.positions[:, part]
        before = self.key_times.shape[1] - self.positions.shape[1]
        place = self.positions[:, :1] - before + torch.arange(before + part.stop, device=own.device)
        distance = own[..., None] - place
        elapsed = self.times[:, part, None] - self.key_times[:, None, : before + part.stop]
        found = _rows(self.config, (distance >= 0) & (place >= 0), distance, elapsed)
        if self._kept is not None:
            self._kept[number] = found
        return found

    def counts(self, part: slice) -> torch.Tensor:
        """(1, 1, Q, 1), how many tokens each query sees."""
        return (self.positions[:, part] + 1).clamp_min(1)[:, None, :, None]


class CandidatePairs(NamedTuple):
    """Candidates, of K tokens each, against the tokens that they see and against their own.

    seen: rows of the bias tables, (B, C K, L) each. own: (B, C, K, K) each. counts: (B, C, K), how many tokens each sees. last: (B, C), the
    place of the last action that each sees.
    """

    seen: tuple[torch.Tensor, ...]
    own: tuple[torch.Tensor, ...]
    counts: torch.Tensor
    last: torch.Tensor

    @classmethod
    def find(
        cls,
        config: HSTUConfig,
        positions: torch.Tensor,
        times: torch.Tensor,
        key_times: torch.Tensor,
        own_times: torch.Tensor,
    ) -> CandidatePairs:
        """Of `positions` (B, C), the number of tokens that each candidate sees, and `times` (B, C), seconds that each brings as a query;
        `key_times` (B, L) and `own_times` (B, C, K) are those of the history's tokens and of the candidates' own."""
        size = own_times.shape[-1]
        place = torch.arange(key_times.shape[1], device=positions.device) - (size - 1)
        own_place = positions[..., None] - torch.arange(size - 1, -1, -1, device=positions.device)  # (B, C, K)
        flat_place, first = own_place.flatten(1), own_place[..., :1].expand_as(own_place).flatten(1)  # (B, C K)
        visible = (place >= 0) & (place < first[..., None])  # (B, C K, L)
        elapsed = times.repeat_interleave(size, dim=1)[..., None] - key_times[:, None]
        seen = _rows(config, visible, flat_place[..., None] - place, elapsed)

        distance = own_place[..., None] - own_place[..., None, :]  # (B, C, K, K)
        visible = (distance >= 0) & (own_place[..., None, :] >= 0)
        elapsed = (times[..., None] - own_times)[:, :, None].expand_as(distance)
        own = _rows(config, visible, distance, elapsed)
        return cls(seen, own, (own_place + 1).clamp_min(1), (positions - 1).clamp_min(0))


def _rows(
    config: HSTUConfig, visible: torch.Tensor, distance: torch.Tensor, elapsed: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Rows of the bias tables that pairs take, by distance in tokens and seconds."""
    sizes = config.num_position_buckets, config.num_time_buckets
    position = distance_bucket(distance, position_edges(sizes[0], config.max_position_distance))
    return pair_rows(visible.expand_as(elapsed), position, time_buckets(elapsed, sizes[1]), (1, *sizes))
