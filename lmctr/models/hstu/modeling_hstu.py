"""HSTU: hierarchical sequential transduction unit, in its ranking form.

Paper: https://arxiv.org/abs/2402.17152.

Shapes: B rows (users), N events of a row, L = 2 N tokens, C candidates, d hidden size, h heads, T tasks.

**Items and actions interleaved, target-aware (2.2).** A history is the sequence x_0, a_0, x_1, a_1, ...: each item (with its features
and scenario) is followed by the action taken, the behaviour type. A candidate is the next item behind the events that it may see; its
output, which has met the history in every layer, predicts the action. In training the paper predicts the action of every item in
the sequence; here the candidates of a row are those samples, which SUMI rows score together in one pass just as well.

**Candidates (as in M-FALCON, 3.4).** Tokens are causal. Each candidate sees the tokens of its events and itself, with the position and time
that it would have alone, never another candidate. So the history's keys and values are computed once, and rows of several candidates
(SUMI) give the logits of single rows.

**Decided.**
- Eq. 2 is divided by the number of tokens that a query sees. The paper leaves a constant open, its authors' code divides by the padded
  length, with which a row would depend on its batch.
- As in that code: one relative bias per layer for all heads, time buckets floor(ln(seconds) / 0.301), norms without parameters in the
  layers, a residual. Positions beyond half of the table share buckets on a log scale, where the code has one row for each distance of
  a fixed length.
- `time_of="next"` takes that code's time of a query, the next token's: t[i + 1] - t[j]. It differs from the query's own only at actions,
  whose next token is the next item; for the last action that a candidate sees it is the candidate. So the tokens are taken as pairs
  (a_{n-1}, x_n), which have one time, a candidate is such a pair too, and what is kept of a history depends on no candidate.
- Features of the user and statistics enter the final network. The paper would put them into the sequence.

Memory: training keeps half of (B, h, L, L) per layer; queries are taken some at a time, each with the keys that it may see.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.layers import MLP, split_heads
from lmctr.models.common.products import weight_and_bias
from lmctr.models.common.relative_bias import add_bias, pair_bias
from lmctr.models.common.sequence import (
    CachedHistoryMixin,
    CandidateContext,
    ItemEmbedding,
    SequenceForCTRMixin,
    SequenceInputs,
    SequencePreTrainedModel,
)

from .configuration_hstu import HSTUConfig
from .pairs import CandidatePairs, HistoryPairs

__all__ = ["HSTUForCTR", "HSTUModel", "HSTUPreTrainedModel"]


def _one_back(values: torch.Tensor) -> torch.Tensor:
    """(B, N) with each value in the place behind its own, and the first one, which nothing asks for there, in its own too."""
    return values.gather(1, (torch.arange(values.shape[1], device=values.device) - 1).clamp_min(0).expand_as(values))


class HSTURelativeBias(nn.Module):
    """rab^{p,t} of Eq. 2: a learned number per position bucket plus one per time bucket."""

    def __init__(self, config: HSTUConfig):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(config.num_position_buckets))
        self.time = nn.Parameter(torch.zeros(config.num_time_buckets))

    def init_parameters(self, config: HSTUConfig) -> None:
        init.normal_(self.position, mean=0.0, std=config.initializer_range)
        init.normal_(self.time, mean=0.0, std=config.initializer_range)

    def forward(self, rows: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The bias of each pair, for all heads; so low where a pair is not visible that SiLU makes it zero."""
        return pair_bias(rows, self.position[None, None], self.time[None, None])[0].unsqueeze(1)


class HSTULayer(GradientCheckpointingLayer):
    """Eq. 1-3, with a norm in front and a residual, as in the authors' code.

    U, V, Q, K = split(SiLU(f1(X))) (Eq. 1); A V = SiLU(Q K^T + rab) V / n (Eq. 2); Y = f2(norm(A V) * U) (Eq. 3).
    """

    def __init__(self, config: HSTUConfig):
        super().__init__()
        dim, heads = config.hidden_size, config.num_attention_heads
        self.num_heads = heads
        self.norm_input = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.f1 = nn.Linear(dim, 4 * dim, bias=False)  # rows: U, Q, V, K
        self.bias = HSTURelativeBias(config)
        self.norm_attention = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self.f2 = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        states: torch.Tensor,
        pairs: HistoryPairs | CandidatePairs,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        is_last: bool = False,
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """One layer for the tokens of histories or for candidates.

        Args:
            states: tokens (B, L, d), or candidates of K tokens each (B, C K, d).
            pairs: what each of them sees.
            key, value: (B, h, L, d_head) of the tokens in front.
            is_last: of tokens only keys and values are needed.

        Returns:
            New states (None for tokens of the last layer), keys and values of `states`, and the candidates' attention
            (B, h, C, L + 1), themselves last.
        """
        normed = self.norm_input(states)
        if is_last:
            of_both = weight_and_bias(self.f1, normed)[0][2 * normed.shape[-1] :]
            own_value, own_key = F.silu(F.linear(normed, of_both)).chunk(2, dim=-1)
            return None, split_heads(own_key, self.num_heads), split_heads(own_value, self.num_heads), None
        gate, *rest = F.silu(self.f1(normed)).chunk(4, dim=-1)  # Eq. 1
        query, own_value, own_key = (split_heads(x, self.num_heads) for x in rest)
        weights = None
        if isinstance(pairs, CandidatePairs):
            mixed, weights = self._attend_candidates(query, key, value, own_key, own_value, pairs)
        else:
            all_key, all_value = own_key, own_value
            if key is not None:
                all_key, all_value = torch.cat([key, own_key], dim=2), torch.cat([value, own_value], dim=2)
            mixed = self._attend_history(query, all_key, all_value, pairs)
        mixed = self.norm_attention(mixed.transpose(1, 2).flatten(2))
        states = states + self.f2(self.dropout(gate * mixed))  # Eq. 3
        return states, own_key, own_value, weights

    def _attend_candidates(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        own_key: torch.Tensor,
        own_value: torch.Tensor,
        pairs: CandidatePairs,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Eq. 2 for each candidate behind its events: (B, h, C K, d_head), and its attention (B, h, C, L + 1)."""
        size = pairs.counts.shape[-1]
        seen = F.silu(add_bias(query @ key.transpose(-1, -2), self.bias(pairs.seen)))
        split_query, own_key, own_value = (x.unflatten(2, (-1, size)) for x in (query, own_key, own_value))
        own = (split_query[..., None, :] * own_key[..., None, :, :]).sum(-1)
        own = F.silu(own + self.bias(pairs.own))

        count = pairs.counts
        seen, own = seen / count.flatten(1)[:, None, :, None], own / count[:, None, ..., None]  # Eq. 2
        mixed = seen @ value + (own[..., None] * own_value[..., None, :, :]).sum(-2).flatten(2, 3)
        on_history, on_own = seen[:, :, size - 1 :: size], own[..., -1, :]
        if size > 1:  # back to x_0, a_0, ...: the last action is the candidate's own
            last = pairs.last[:, None, :, None].expand(*on_own.shape[:-1], 1)
            on_history = F.pad(on_history[..., 1:], (0, 1)).scatter_add(-1, last, on_own[..., :1])
        return mixed, torch.cat([on_history, on_own[..., -1:]], dim=-1)

    def _attend_history(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pairs: HistoryPairs
    ) -> torch.Tensor:
        """Eq. 2 for the last tokens of a sequence, causal. Histories are right-padded: no real token sees padding."""
        before, found = key.shape[2] - query.shape[2], []
        for number, part in enumerate(pairs.parts):
            seen = slice(before + part.stop)
            scores = query[:, :, part] @ key[:, :, seen].transpose(-1, -2)
            weights = F.silu(add_bias(scores, self.bias(pairs.rows(number))))
            found.append(weights @ value[:, :, seen] / pairs.counts(part))
        return torch.cat(found, dim=2)


class HSTUPreTrainedModel(SequencePreTrainedModel):
    """Base of the HSTU models."""

    config_class = HSTUConfig


class HSTUModel(CachedHistoryMixin, HSTUPreTrainedModel):
    """HSTU up to the last hidden layer of the final network, (B, C, W).

    `hidden_states`: the candidates' states (B, C, d) before the first and after each layer. `attentions`: per layer (B, h, C, N + 1), the
    weights of each event (its item and its action together) and, last, of the candidate itself; they may be negative and do not sum
    to 1.
    """

    def __init__(self, config: HSTUConfig):
        super().__init__(config)
        dim = config.hidden_size
        self.item_embedding = ItemEmbedding(config, dim)
        self.behavior_embedding = nn.Embedding(config.num_behaviors, dim)  # the actions
        self.scenario_embedding = nn.Embedding(config.num_scenarios, dim)
        self.layers = nn.ModuleList([HSTULayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.context = CandidateContext(config, dim)
        width = dim + self.context.out_size
        self.mlp = MLP(width, config.head_hidden_sizes, config.hidden_act, config.dropout)
        self.is_paired = config.time_of == "next"
        self.post_init()

    def embed_history(self, inputs: SequenceInputs, known: int) -> tuple[torch.Tensor, HistoryPairs]:
        new = inputs.events_after(known // 2)  # keys and values are those of the tokens, two per event
        items = self.item_embedding(new.history_items, new.history_features)
        items = items + self.scenario_embedding(new.history_scenarios)
        times = inputs.history_times.repeat_interleave(2, dim=1)
        positions = torch.arange(known, times.shape[1], device=items.device).expand(items.shape[0], -1)
        if self.is_paired:  # a_{-1}, x_0, a_0, x_1, ...; the first of them, in place -1, is seen by none
            positions = positions - 1
            pairs = self.behavior_embedding(_one_back(inputs.history_behaviors)[:, known // 2 :]), items
        else:  # x_0, a_0, x_1, a_1, ...
            pairs = items, self.behavior_embedding(new.history_behaviors)
        states = torch.stack(pairs, dim=2).flatten(1, 2)
        return states, HistoryPairs(self.config, positions, times[:, known:], self._key_times(inputs))

    def embed_candidates(self, inputs: SequenceInputs) -> tuple[torch.Tensor, CandidatePairs]:
        states = self.item_embedding(inputs.candidate_items, inputs.candidate_features)
        states = states + self.scenario_embedding(inputs.candidate_scenarios)
        own_times = inputs.candidate_times[..., None]
        if self.is_paired:
            last = (inputs.dependence - 1).clamp_min(0)
            actions = self.behavior_embedding(inputs.history_behaviors.gather(1, last))
            states = torch.stack([actions, states], dim=2).flatten(1, 2)
            own_times = torch.cat([inputs.history_times.gather(1, last)[..., None], own_times], dim=-1)
        seen = 2 * inputs.dependence, inputs.candidate_times, self._key_times(inputs), own_times
        return states, CandidatePairs.find(self.config, *seen)

    def read_history(
        self, inputs: SequenceInputs, history: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        states, attentions = super().read_history(inputs, history)
        return [layer[:, 1::2] for layer in states] if self.is_paired else states, attentions

    def represent(self, states: torch.Tensor, inputs: SequenceInputs) -> torch.Tensor:
        return self.mlp(torch.cat([self.norm(states), self.context(inputs)], dim=-1))

    def events_of(self, attention: torch.Tensor) -> torch.Tensor:
        """Attention on tokens (B, h, C, 2 N + 1) as attention on events (B, h, C, N + 1)."""
        return torch.cat([attention[..., :-1].unflatten(-1, (-1, 2)).sum(-1), attention[..., -1:]], dim=-1)

    def _key_times(self, inputs: SequenceInputs) -> torch.Tensor:
        times = inputs.history_times
        return torch.stack([_one_back(times) if self.is_paired else times, times], dim=2).flatten(1)


class HSTUForCTR(SequenceForCTRMixin, HSTUPreTrainedModel):
    """HSTU with one logit per task."""

    base_class = HSTUModel
