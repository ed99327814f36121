"""DIN: deep interest network.

Paper: https://arxiv.org/abs/1706.06978.

Shapes: B rows (users), N events of a row, C candidates, F fields of an item (the item itself and its features), d width of a
field's vector, H hidden units, T tasks.

A candidate's interest vector is a weighted sum over the events that it sees, with weights of a small network, the local activation
unit: v_U(A) = sum_j a(e_j, v_A) e_j (Eq. 3). No event hears of another and no candidate of another, so rows of several candidates
(SUMI) give the logits of single rows.

**Decided.** The unit reads [q, k, q - k, q * k], as the authors' code does where the paper speaks of an outer product. Each field of an
item has its unit (for goods, shops and categories alike). To each field's vector of an event are added the vectors of the event's
behaviour type and scenario, to that of a candidate those of "not decided yet" and of its scenario, as in ASTRO: without them DIN
could not tell a play from a like. Times are not used.

**Memory.** The tensor (B, C, N, 4 d) of the pairs never exists: the first layer is linear, so that [q, k, q - k, q * k] W is
q (W1 + W3) + k (W2 - W3 + diag(q) W4), the last being one product of (N, d) and (d, C H) per row. What remains is (B, N, C, H)
per field, H = 36, once in front of each activation and once behind it. In evaluation candidates are also taken in parts of at most
`MAX_PAIR_VALUES` such values. In training the statistics of Dice are those of the whole batch, so it cannot be cut: take smaller batches.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput

from lmctr.models.common.layers import at_least_float32
from lmctr.models.common.products import weight_and_bias
from lmctr.models.common.sequence import (
    CandidateContext,
    ItemEmbedding,
    SequenceForCTRMixin,
    SequenceInputs,
    SequenceModelMixin,
    SequencePreTrainedModel,
    visible_events,
)

from .activations import activation
from .configuration_din import DINConfig

__all__ = ["DINForCTR", "DINModel", "DINPreTrainedModel"]

MAX_PAIR_VALUES = 2**20
"""Values of a (B, N, C, H) tensor in evaluation on the CPU: 4 MiB in float32, which stay in the cache. Elsewhere 32 times as many."""


class LocalActivationUnit(GradientCheckpointingLayer):
    """The weights a(e_j, v_A) of Eq. 3: [q, k, q - k, q * k] through hidden layers to one value per pair of candidate and event."""

    def __init__(self, config: DINConfig, dim: int):
        super().__init__()
        sizes = config.attention_hidden_sizes
        self.first = nn.Linear(4 * dim, sizes[0])
        self.layers = nn.ModuleList([nn.Linear(below, above) for below, above in pairwise(sizes)])
        self.activations = nn.ModuleList([activation(config, size) for size in sizes])
        self.out = nn.Linear(sizes[-1], 1)
        self.use_softmax = config.use_softmax

    def forward(self, query: torch.Tensor, key: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """(B, C, d), (B, N, d) and (B, C, N) bool to the weights (B, C, N), 0 where an event is not seen."""
        weight, bias = weight_and_bias(self.first, query)
        of_query, of_key, of_difference, of_product = weight.T.chunk(4)  # (d, H) each
        # What is linear in k is one product with k per row, of all candidates: (B, N, d) and (B, d, C H).
        of_pairs = query.transpose(1, 2)[..., None] * of_product[:, None] + (of_key - of_difference)[:, None]
        of_queries = query @ (of_query + of_difference) + bias  # (B, C, H)
        states = torch.baddbmm(of_queries.flatten(1)[:, None], key, of_pairs.flatten(2))
        states = states.unflatten(-1, of_queries.shape[1:])  # (B, N, C, H)
        visible = visible.transpose(1, 2)
        states = self.activations[0](states, visible)
        for layer, function in zip(self.layers, self.activations[1:]):
            states = function(layer(states), visible)
        weights = self.out(states).squeeze(-1)
        if self.use_softmax:
            weights = at_least_float32(weights)
            weights = weights.masked_fill(~visible, torch.finfo(weights.dtype).min).softmax(1)
        return (weights * visible).to(query.dtype).transpose(1, 2)


class HeadLayer(GradientCheckpointingLayer):
    """Linear, Dice or PReLU, dropout."""

    def __init__(self, config: DINConfig, below: int, above: int):
        super().__init__()
        self.linear = nn.Linear(below, above)
        self.activation = activation(config, above)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.activation(self.linear(states), mask))


class DINPreTrainedModel(SequencePreTrainedModel):
    """Base of the DIN models."""

    config_class = DINConfig


class FieldEmbeddings(ItemEmbedding):
    """Vectors of the fields of an item, side by side; id 0 of each is padding."""

    def forward(self, items: torch.Tensor, features: torch.Tensor | None = None) -> torch.Tensor:
        """(...) ids and (..., F - 1) feature ids to (..., F, d)."""
        return torch.stack([self.items(items), *self.features.vectors(features)], dim=-2)


class DINModel(SequenceModelMixin, DINPreTrainedModel):
    """DIN up to the last hidden layer of the final network, (B, C, W).

    `hidden_states`: the input and each layer's output of the final network. `attentions`: one tensor (B, F, C, N + 1), the weights
    of the units; a candidate has none for itself, so the last column is 0. Without softmax weights may be negative.
    """

    def __init__(self, config: DINConfig):
        super().__init__(config)
        dim, fields = config.embedding_dim, 1 + len(config.item_feature_vocab_sizes)
        self.item_embedding = FieldEmbeddings(config, dim)
        # The last row stands for "not decided yet" and marks candidates.
        self.behavior_embedding = nn.Embedding(config.num_behaviors + 1, dim)
        self.scenario_embedding = nn.Embedding(config.num_scenarios, dim)
        self.groups = fields if config.use_field_attention else 1
        width = fields * dim // self.groups
        self.units = nn.ModuleList([LocalActivationUnit(config, width) for _ in range(self.groups)])
        self.context = CandidateContext(config, dim)
        sizes = [2 * fields * dim + self.context.out_size, *config.head_hidden_sizes]
        self.layers = nn.ModuleList([HeadLayer(config, below, above) for below, above in pairwise(sizes)])
        self.post_init()

    def interests(
        self, queries: torch.Tensor, keys: torch.Tensor, visible: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Eq. 3 for each group of fields: (B, C, G, D), (B, N, G, D) to (B, C, G, D) and the weights (B, G, C, N)."""
        found, weights = [], []
        for group, unit in enumerate(self.units):
            key = keys[:, :, group]
            weight = unit(queries[:, :, group], key, visible)
            weights.append(weight)
            found.append(weight @ key)
        return torch.stack(found, dim=2), torch.stack(weights, dim=1)

    def run(
        self, inputs: SequenceInputs, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> BaseModelOutput:
        undecided = torch.full_like(inputs.candidate_items, self.config.num_behaviors)
        queries = self._fields(
            inputs.candidate_items, inputs.candidate_features, undecided, inputs.candidate_scenarios
        )
        keys = self._fields(
            inputs.history_items, inputs.history_features, inputs.history_behaviors, inputs.history_scenarios
        )
        visible = visible_events(inputs)
        # Filler candidates have no item; they are no data for the statistics of Dice either.
        present = inputs.candidate_items != 0
        visible = visible & present[..., None]
        interests, kept = [], []
        for start, end in self._parts(queries, keys):
            found, weights = self.interests(queries[:, start:end], keys, visible[:, start:end])
            interests.append(found)
            if output_attentions:
                kept.append(weights)
        interest = torch.cat(interests, dim=1)
        states = torch.cat([interest.flatten(2), queries.flatten(2), self.context(inputs)], dim=-1)
        hidden_states = [states]
        for layer in self.layers:
            hidden_states.append(layer(hidden_states[-1], present))
        return BaseModelOutput(
            last_hidden_state=hidden_states[-1],
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attentions=(F.pad(torch.cat(kept, dim=2), (0, 1)),) if output_attentions else None,
        )

    def _parts(self, queries: torch.Tensor, keys: torch.Tensor) -> list[tuple[int, int]]:
        """Ranges of candidates that are read at once."""
        rows, candidates, _, width = queries.shape
        if torch.compiler.is_exporting():  # a graph has no loop over candidates
            return [(0, candidates)]
        size = candidates
        if not self.training and not torch.is_grad_enabled():
            per_candidate = rows * max(keys.shape[1], width) * max(self.config.attention_hidden_sizes)
            size = max(1, MAX_PAIR_VALUES * (1 if queries.is_cpu else 32) // per_candidate)
        return [(start, start + size) for start in range(0, candidates, size)]

    def _fields(
        self, items: torch.Tensor, features: torch.Tensor | None, behaviors: torch.Tensor, scenarios: torch.Tensor
    ) -> torch.Tensor:
        """(B, M) ids to (B, M, G, D)."""
        added = self.behavior_embedding(behaviors) + self.scenario_embedding(scenarios)
        states = self.item_embedding(items, features) + added[:, :, None]
        return states.flatten(2).unflatten(2, (self.groups, -1))


class DINForCTR(SequenceForCTRMixin, DINPreTrainedModel):
    """DIN with one logit per task."""

    base_class = DINModel
