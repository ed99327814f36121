"""The layers of ASTRO: adaptive Transformer layers with a leading block dimension (Eq. 3) and gating fusion (Eq. 4).

Shapes: K blocks, B rows, Q queries, S slots of a block, d hidden size, h heads, R scenarios.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.layers import at_least_float32, split_heads
from lmctr.models.common.relative_bias import add_bias, pair_bias

from .configuration_astro import ASTROConfig
from .partition import PairContext

ALL = slice(None)


class BlockLinear(nn.Module):
    """Nb linear layers as one batched product (3.3.2, block-wise parallelism)."""

    def __init__(self, num_blocks: int, in_features: int, out_features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_blocks, in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(num_blocks, out_features))

    def forward(self, states: torch.Tensor, blocks: slice = ALL) -> torch.Tensor:
        """(K, B, S, in) to (K, B, S, out); `blocks` are the layers that the K blocks of `states` belong to."""
        flat = torch.baddbmm(self.bias[blocks, None], states.flatten(1, 2), self.weight[blocks])
        return flat.view(*states.shape[:3], -1)


class BlockNorm(nn.Module):
    """Nb layer norms."""

    def __init__(self, num_blocks: int, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_blocks, dim))
        self.bias = nn.Parameter(torch.zeros(num_blocks, dim))

    def forward(self, states: torch.Tensor, blocks: slice = ALL) -> torch.Tensor:
        normed = F.layer_norm(states, states.shape[-1:])
        return normed * self.weight[blocks, None, None] + self.bias[blocks, None, None]


class Temperature(nn.Module):
    """f_tc of Eq. 3: sqrt(d_head) times a positive factor per (strategy, scenario, head), 1 at the start.

    The factor is softplus(theta) / softplus(0) with theta = 0 at the start, so the start is sqrt(d_head) to the last bit.
    """

    def __init__(self, num_blocks: int, num_scenarios: int, num_heads: int, head_dim: int):
        super().__init__()
        self.scale = math.sqrt(head_dim)
        self.raw = nn.Parameter(torch.zeros(num_blocks, num_scenarios, num_heads))

    def forward(self, blocks: slice = ALL) -> torch.Tensor:
        """(K, R, h), at least float32."""
        raw = at_least_float32(self.raw[blocks])
        return self.scale * (F.softplus(raw) / F.softplus(torch.zeros_like(raw)))


class RelativeBias(nn.Module):
    """f_b^{p,t} of Eq. 3: tables of position and time buckets per (strategy, head), each plus an offset per scenario.

    The offset is a value per bucket: one value per scenario for all events would cancel in the softmax. Without adaptive layers one
    table serves all strategies and scenarios.
    """

    def __init__(self, config: ASTROConfig):
        super().__init__()
        heads, positions, times = config.num_attention_heads, config.num_position_buckets, config.num_time_buckets
        blocks = config.num_blocks if config.use_adaptive_layers else 1
        self.is_shared = not config.use_adaptive_layers
        self.position = nn.Parameter(torch.zeros(blocks, heads, positions))
        self.time = nn.Parameter(torch.zeros(blocks, heads, times))
        if config.use_adaptive_layers:
            self.position_offset = nn.Parameter(torch.zeros(blocks, config.num_scenarios, heads, positions))
            self.time_offset = nn.Parameter(torch.zeros(blocks, config.num_scenarios, heads, times))

    def tables(self, blocks: slice = ALL) -> tuple[torch.Tensor, torch.Tensor]:
        """Position and time tables (K, R, h, buckets); K and R are 1 where one table serves all."""
        if self.is_shared:
            return self.position[:, None], self.time[:, None]
        return (
            self.position[blocks, None] + self.position_offset[blocks],
            self.time[blocks, None] + self.time_offset[blocks],
        )

    def forward(
        self, pairs: PairContext, temperature: torch.Tensor | float, blocks: slice = ALL
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Bias over temperature, at least float32, of each pair (K, B, h, Q, S), and of a query towards itself (K, R, h).

        Args:
            temperature: (K, R, h), or a number for all.
        """
        if isinstance(temperature, torch.Tensor):
            temperature = temperature.unsqueeze(-1)
        position, time = (at_least_float32(table) / temperature for table in self.tables(blocks))
        heads_first = (table.permute(2, 0, 1, 3).flatten(1, 2) for table in (position, time))
        return torch.stack(pair_bias(pairs.rows, *heads_first), dim=2), position[..., 0] + time[..., 0]


def _of_queries(table: torch.Tensor, scenario: torch.Tensor) -> torch.Tensor:
    """Numbers (K, R, h) of each query (K, B, Q) by its scenario, (K, B, h, Q, 1); R = 1: of all."""
    if table.shape[1] == 1:
        return table[..., None, None]
    blocks = torch.arange(len(table), device=table.device)[:, None, None]
    return table[blocks, scenario].transpose(2, 3).unsqueeze(-1)


class AdaptiveLayer(GradientCheckpointingLayer):
    """Adaptive Transformer layer (Eq. 3) of all blocks: pre-norm, residuals, feed-forward network of width 4 d."""

    def __init__(self, config: ASTROConfig):
        super().__init__()
        blocks, dim, heads = config.num_blocks, config.hidden_size, config.num_attention_heads
        self.num_heads, self.head_dim = heads, dim // heads
        self.norm1 = BlockNorm(blocks, dim)
        self.query = BlockLinear(blocks, dim, dim)
        self.key_value = BlockLinear(blocks, dim, 2 * dim)
        self.output = BlockLinear(blocks, dim, dim)
        self.bias = RelativeBias(config)
        self.temperature = None
        if config.use_adaptive_layers:
            self.temperature = Temperature(blocks, config.num_scenarios, heads, self.head_dim)
        self.norm2 = BlockNorm(blocks, dim)
        self.up = BlockLinear(blocks, dim, config.intermediate_size)
        self.down = BlockLinear(blocks, config.intermediate_size, dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        states: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        pairs: Sequence[PairContext] | None,
        is_history: bool,
        blocks: slice = ALL,
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """One layer for events or candidates.

        Args:
            states: (K, B, Q, d), the events that are new, or the candidates.
            key, value: (K, B, h, S0, d_head) of the events so far, None for none.
            pairs: parts of the queries, in order, against the earlier events, followed by the new ones when `is_history`; candidates are
                one part. None short-circuits: only the keys and values of new events are computed.
            is_history: the queries are events, which later ones see.
            blocks: which blocks `states` holds.

        Returns:
            New states (None after a short-circuit), keys and values of the queries (K, B, h, Q, d_head), and the attention of candidates
            (K, B, h, Q, S + 1), themselves last.
        """
        normed = self.norm1(states, blocks)
        new_key, new_value = (split_heads(x, self.num_heads) for x in self.key_value(normed, blocks).chunk(2, dim=-1))
        if pairs is None:
            return None, new_key, new_value, None
        query = split_heads(self.query(normed, blocks), self.num_heads)
        if is_history:
            key = new_key if key is None else torch.cat([key, new_key], dim=3)
            value = new_value if value is None else torch.cat([value, new_value], dim=3)
            attention, found = None, []
            for part in pairs:
                keys = slice(part.rows[0].shape[-1])
                weights = self._weights(query[..., part.queries, :], key[..., keys, :], part, blocks)
                found.append(weights @ value[..., keys, :])
            mixed = torch.cat(found, dim=3)
        else:
            attention = self._weights(query, key, pairs[0], blocks, new_key)
            mixed = attention[..., :-1] @ value + attention[..., -1:] * new_value
        states = states + self.dropout(self.output(mixed.transpose(2, 3).flatten(3), blocks))
        hidden = F.gelu(self.up(self.norm2(states, blocks), blocks))
        return states + self.dropout(self.down(hidden, blocks)), new_key, new_value, attention

    def _weights(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        pairs: PairContext,
        blocks: slice,
        own_key: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention (K, B, h, Q, S) of Eq. 3; with the queries' own keys in a last column where they are given."""
        # Eq. 3 divides scores and biases of all pairs; the queries and the tables are fewer numbers.
        if self.temperature is None:
            temperature = math.sqrt(self.head_dim)
            query = query / temperature
        else:
            temperature = self.temperature(blocks)
            query = query / _of_queries(temperature, pairs.scenario).to(query.dtype)
        bias, own_bias = self.bias(pairs, temperature, blocks)
        # A pair that is not visible has a finite bias, so that the unused slots of a block without events keep finite states
        # that nobody reads.
        scores = add_bias(at_least_float32(query @ key.transpose(-1, -2)), bias)
        if own_key is not None:
            own = at_least_float32((query * own_key).sum(-1, keepdim=True)) + _of_queries(own_bias, pairs.scenario)
            scores = torch.cat([scores, own], dim=-1)
        return scores.softmax(-1).to(query.dtype)


class FusionLayer(nn.Module):
    """The layer of Eq. 4 over the Nb vectors of a candidate: no relative bias, a temperature of the scenario only, all see all."""

    def __init__(self, config: ASTROConfig):
        super().__init__()
        dim, heads = config.hidden_size, config.num_attention_heads
        self.num_heads, self.head_dim = heads, dim // heads
        self.norm1 = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.temperature = None
        if config.use_adaptive_layers:
            self.temperature = Temperature(1, config.num_scenarios, heads, self.head_dim)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, dim)

    def forward(self, states: torch.Tensor, scenario: torch.Tensor) -> torch.Tensor:
        """(B, C, K, d) and scenarios (B, C) to (B, C, K, d)."""
        projected = self.query_key_value(self.norm1(states)).unflatten(-1, (3, self.num_heads, self.head_dim))
        query, key, value = projected.permute(3, 0, 1, 4, 2, 5)  # (B, C, h, K, d_head) each
        scores = at_least_float32(query @ key.transpose(-1, -2))
        if self.temperature is None:
            scores = scores / math.sqrt(self.head_dim)
        else:
            scores = scores / self.temperature()[0][scenario][..., None, None]
        mixed = scores.softmax(-1).to(value.dtype) @ value
        states = states + self.output(mixed.transpose(2, 3).flatten(3))
        return states + self.down(F.gelu(self.up(self.norm2(states))))


class GatingFusion(nn.Module):
    """Bit-wise gating fusion (Eq. 4): Y = G * sigmoid(f_gate(G)), G = ATL(E).

    f_gate is a squeeze-and-excitation network over all Nb d elements of G (one gate per element, "bit-wise"), so nothing is
    pooled away first as it is over the pixels of an image.
    """

    def __init__(self, config: ASTROConfig):
        super().__init__()
        width = config.num_blocks * config.hidden_size
        self.layer = FusionLayer(config)
        self.squeeze = nn.Linear(width, max(width // config.gate_ratio, 1))
        self.excite = nn.Linear(max(width // config.gate_ratio, 1), width)

    def forward(self, states: torch.Tensor, scenario: torch.Tensor) -> torch.Tensor:
        """E (B, C, K, d) to Y (B, C, K * d)."""
        mixed = self.layer(states, scenario).flatten(2)
        return mixed * torch.sigmoid(self.excite(F.relu(self.squeeze(mixed))))
