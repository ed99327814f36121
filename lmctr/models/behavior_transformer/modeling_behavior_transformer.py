"""BehaviorTransformer: one Transformer encoder over a user's behaviours and the candidate.

The "Transformer" that Climber (https://arxiv.org/abs/2502.09888) compares with, built after BST (https://arxiv.org/abs/1905.06874):
its post-norm blocks (Eq. 4-5), softmax attention divided by sqrt(d_head), LeakyReLU, learned positions and final network.

Shapes: B rows (users), N events of a row, C candidates, d hidden size, h heads, T tasks.

**Decided: a causal history.** In BST every item of the sequence, the candidate among them, sees every other. Here an event sees the events up to
itself, and a candidate sees the events that its dependence allows and itself, never another candidate, and no event sees a candidate.
Then a history is encoded once for all candidates, and rows of several candidates (SUMI) give the logits of single rows exactly: with a
history that sees all of itself, a candidate would hear, through earlier events, of events after it. Two consequences:

- BST's position of an event is the time between it and the candidate. That depends on the candidate. Instead an event has its place in the
  row and the time since the event before; a candidate has the place behind its last event and the time since that.
- BST's final network reads the outputs of all positions of a fixed-length sequence. Here it reads the candidate's output, which has
  attended to all of them.

Memory: training keeps the history's attention as the fused kernel does, and (B, h, C, N) for the candidates per layer.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.layers import MLP, at_least_float32, split_heads
from lmctr.models.common.sequence import (
    CachedHistoryMixin,
    CandidateContext,
    ItemEmbedding,
    SequenceForCTRMixin,
    SequenceInputs,
    SequencePreTrainedModel,
    time_bucket,
    visible_events,
)

from .configuration_behavior_transformer import BehaviorTransformerConfig

__all__ = ["BehaviorTransformerForCTR", "BehaviorTransformerModel", "BehaviorTransformerPreTrainedModel"]


class TransformerBlock(GradientCheckpointingLayer):
    """S' = LayerNorm(S + Dropout(MH(S))) (Eq. 4), F = LayerNorm(S' + Dropout(LeakyReLU(S' W1 + b1) W2 + b2)) (Eq. 5)."""

    def __init__(self, config: BehaviorTransformerConfig):
        super().__init__()
        dim, heads = config.hidden_size, config.num_attention_heads
        self.num_heads, self.head_dim = heads, dim // heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.down = nn.Linear(config.intermediate_size, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        states: torch.Tensor,
        visible: torch.Tensor | None,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        is_last: bool = False,
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """One block for events or for candidates.

        Args:
            states: events (B, N, d), or candidates (B, C, d).
            visible: (B, C, N) bool, for candidates; None for events.
            key, value: (B, h, N, d_head) of the events, for candidates; of the events in front of `states`, for events.
            is_last: of events only keys and values are needed.

        Returns:
            New states (None for events of the last block), keys and values of `states`, and the candidates' attention
            (B, h, C, N + 1), themselves last.
        """
        own_key, own_value = (split_heads(x, self.num_heads) for x in self.key_value(states).chunk(2, dim=-1))
        if is_last:
            return None, own_key, own_value, None
        query = split_heads(self.query(states), self.num_heads)
        weights = None
        if visible is None and key is not None:
            place = torch.arange(key.shape[2] + states.shape[1], device=states.device)
            causal = place <= place[key.shape[2] :, None]
            all_key, all_value = torch.cat([key, own_key], dim=2), torch.cat([value, own_value], dim=2)
            mixed = F.scaled_dot_product_attention(query, all_key, all_value, attn_mask=causal)
        elif visible is None:
            # Histories are right-padded: no real event sees padding. What padding sees is read by nobody.
            mixed = F.scaled_dot_product_attention(query, own_key, own_value, is_causal=True)
        else:
            scores = (query @ key.transpose(-1, -2)).masked_fill(~visible[:, None], torch.finfo(query.dtype).min)
            own = (query * own_key).sum(-1, keepdim=True)
            scores = at_least_float32(torch.cat([scores, own], dim=-1)) / math.sqrt(self.head_dim)
            weights = scores.softmax(-1).to(value.dtype)
            mixed = weights[..., :-1] @ value + weights[..., -1:] * own_value
        states = self.norm1(states + self.dropout(self.output(mixed.transpose(1, 2).flatten(2))))
        hidden = self.down(self.activation(self.up(states)))
        return self.norm2(states + self.dropout(hidden)), own_key, own_value, weights


class BehaviorTransformerPreTrainedModel(SequencePreTrainedModel):
    """Base of the BehaviorTransformer models."""

    config_class = BehaviorTransformerConfig


class BehaviorTransformerModel(CachedHistoryMixin, BehaviorTransformerPreTrainedModel):
    """BehaviorTransformer up to the last hidden layer of the final network, (B, C, W).

    `hidden_states`: the candidates' states (B, C, d) before the first and after each block. `attentions`: per block (B, h, C, N + 1), the
    weight of each event and, last, of the candidate itself.
    """

    def __init__(self, config: BehaviorTransformerConfig):
        super().__init__(config)
        dim = config.hidden_size
        self.item_embedding = ItemEmbedding(config, dim)
        # The last row stands for "not decided yet" and marks candidates.
        self.behavior_embedding = nn.Embedding(config.num_behaviors + 1, dim)
        self.scenario_embedding = nn.Embedding(config.num_scenarios, dim)
        self.position_embedding = nn.Embedding(config.num_positions + 1, dim)
        self.time_embedding = nn.Embedding(config.num_time_buckets, dim)
        self.layers = nn.ModuleList([TransformerBlock(config) for _ in range(config.num_hidden_layers)])
        self.context = CandidateContext(config, dim)
        width = dim + self.context.out_size
        self.mlp = MLP(width, config.head_hidden_sizes, config.hidden_act, config.dropout)
        self.post_init()

    def embed_history(self, inputs: SequenceInputs, known: int) -> tuple[torch.Tensor | None, ...]:
        self._check_length(inputs)
        new, times = inputs.events_after(known), inputs.history_times
        since = F.pad(times.diff(dim=1), (1, 0))
        place = torch.arange(times.shape[1], device=times.device).clamp_max(self.config.num_positions)
        states = self._embed(
            new.history_items,
            new.history_features,
            new.history_behaviors,
            new.history_scenarios,
            place.expand_as(times)[:, known:],
            since[:, known:],
        )
        return states, None

    def embed_candidates(self, inputs: SequenceInputs) -> tuple[torch.Tensor, ...]:
        dependence = inputs.dependence
        last = inputs.history_times.gather(1, (dependence - 1).clamp_min(0))
        since = torch.where(dependence > 0, inputs.candidate_times - last, 0)
        states = self._embed(
            inputs.candidate_items,
            inputs.candidate_features,
            torch.full_like(inputs.candidate_items, self.config.num_behaviors),
            inputs.candidate_scenarios,
            dependence,
            since,
        )
        return states, visible_events(inputs)

    def represent(self, states: torch.Tensor, inputs: SequenceInputs) -> torch.Tensor:
        return self.mlp(torch.cat([states, self.context(inputs)], dim=-1))

    def _embed(
        self,
        items: torch.Tensor,
        features: torch.Tensor | None,
        behaviors: torch.Tensor,
        scenarios: torch.Tensor,
        positions: torch.Tensor,
        since: torch.Tensor,
    ) -> torch.Tensor:
        return (
            self.item_embedding(items, features)
            + self.behavior_embedding(behaviors)
            + self.scenario_embedding(scenarios)
            + self.position_embedding(positions)
            + self.time_embedding(time_bucket(since, self.config.num_time_buckets))
        )

    def _check_length(self, inputs: SequenceInputs) -> None:
        if torch.compiler.is_exporting():
            return
        most = self.config.num_positions
        too_long = inputs.history_mask[:, most:].any(1)
        if not too_long.is_cpu or torch.compiler.is_compiling():
            torch._assert_async(~too_long.any(), f"history_items: a row has more than num_positions={most} events")
        elif too_long.any():
            row = int(too_long.nonzero()[0])
            raise ValueError(
                f"history_items: row {row} has {int(inputs.history_mask[row].sum())} events, the model has positions for "
                f"num_positions={most}; give the latest {most} (max_history_length of the processor), or build a model with more"
            )


class BehaviorTransformerForCTR(SequenceForCTRMixin, BehaviorTransformerPreTrainedModel):
    """BehaviorTransformer with one logit per task."""

    base_class = BehaviorTransformerModel
