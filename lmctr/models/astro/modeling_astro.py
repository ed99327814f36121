"""ASTRO: adaptive scalable Transformer for recommendation, with the two-stage forward of TURBO.

Paper: https://arxiv.org/abs/2502.09888 (Climber).

Shapes: B rows (users), N events of a row, K blocks (Nb, one per strategy), S slots of a block, C candidates, d hidden size,
h heads, R scenarios, T tasks. States of blocks have the block dimension in front: (K, B, S, d).

**Scenario r (decided).** The paper lets temperature and bias depend on the recommendation scenario. Here r is the scenario of the
*query*: a candidate's own, and for an event of the history the one in which it happened. The history's keys and values therefore
do not depend on the candidates: they are computed once per user, serve candidates of any scenario, and stay valid in a kept state.

**Two stages (3.3.2).** Stage 1 turns the history into keys and values of every layer (of the last layer only those: its attention
and feed-forward network would serve nobody). Stage 2 lets each candidate see its visible history and itself, never another candidate.
Training runs both in one forward; scoring keeps stage 1 and runs stage 2 in micro-batches.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput

from lmctr.models.common.sequence import (
    FeatureTables,
    ItemEmbedding,
    SequenceForCTRMixin,
    SequenceInputs,
    SequenceModelMixin,
    SequencePreTrainedModel,
)

from .configuration_astro import ASTROConfig
from .layers import ALL, AdaptiveLayer, BlockLinear, BlockNorm, GatingFusion, RelativeBias, Temperature
from .partition import BiasSizes, Slots, block_starts, candidate_pairs, history_pairs, matching_events, take_slots

__all__ = ["ASTROCache", "ASTROForCTR", "ASTROModel", "ASTROPreTrainedModel"]


HISTORY_CHUNK = 512
"""Events of a block that are encoded at once where no gradients are needed."""


class ASTROCache(NamedTuple):
    """What stage 1 knows of histories: the slots of the blocks, and keys and values of each layer (K, B, h, S, d_head)."""

    slots: Slots
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


class ASTROPreTrainedModel(SequencePreTrainedModel):
    """Base of the ASTRO models."""

    config_class = ASTROConfig

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, BlockLinear):
            init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)
            init.zeros_(module.bias)
        elif isinstance(module, BlockNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, (Temperature, RelativeBias)):
            for parameter in module.parameters(recurse=False):
                init.zeros_(parameter)


class ASTROModel(SequenceModelMixin, ASTROPreTrainedModel):
    """ASTRO without the final network; returns the fused representation Y(S) of Eq. 4 of each candidate, (B, C, Nb * d).

    `hidden_states`: the candidates' states (B, C, Nb, d) before the first and after each layer. `attentions`: per layer
    (B, Nb, h, C, N + 1), the weight of each event of the row and, last, of the candidate itself.
    """

    run_options = ("block_starts", "loop_blocks")

    def __init__(self, config: ASTROConfig):
        super().__init__(config)
        self.strategies = config.parsed_strategies
        scenarios = config.num_scenarios if config.use_adaptive_layers else 0
        self.bias_sizes = BiasSizes(
            scenarios, config.num_position_buckets, config.num_time_buckets, config.block_length
        )
        self.item_embedding = ItemEmbedding(config, config.hidden_size)
        # The last row stands for "not decided yet" and marks candidates.
        self.behavior_embedding = nn.Embedding(config.num_behaviors + 1, config.hidden_size)
        self.scenario_embedding = nn.Embedding(config.num_scenarios, config.hidden_size)
        self.layers = nn.ModuleList([AdaptiveLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = BlockNorm(config.num_blocks, config.hidden_size)
        self.fusion = GatingFusion(config) if config.use_gating_fusion else None
        self.post_init()

    # ---- stage 1 ----

    def wanted_scenarios(self, inputs: SequenceInputs) -> torch.Tensor:
        """(B, R) bool, the scenarios of each row's candidates."""
        real = (
            F.one_hot(inputs.candidate_scenarios, self.config.num_scenarios) * (inputs.candidate_items != 0)[..., None]
        )
        return real.any(1)

    def matching_events(self, inputs: SequenceInputs, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """(K, B, N) bool, the events that the strategies select; `wanted` (B, R) scenarios, default those of the candidates."""
        return matching_events(
            self.strategies,
            inputs.history_behaviors,
            inputs.history_scenarios,
            inputs.history_mask,
            self.wanted_scenarios(inputs) if wanted is None else wanted,
        )

    def block_starts(self, inputs: SequenceInputs, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """(B, K, R) first event that each block may hold, see [`~lmctr.models.astro.partition.block_starts`]."""
        return block_starts(
            self.strategies,
            self.matching_events(inputs, wanted),
            inputs.history_scenarios,
            self.config.num_scenarios,
            self.config.block_length,
        )

    def slots(
        self, inputs: SequenceInputs, starts: torch.Tensor | None = None, wanted: torch.Tensor | None = None
    ) -> Slots:
        """The events that each block reads, see [`~lmctr.models.astro.partition`]."""
        starts = self.block_starts(inputs, wanted) if starts is None else starts
        return take_slots(
            self.strategies,
            self.matching_events(inputs, wanted),
            inputs.history_times,
            inputs.history_scenarios,
            starts,
        )

    def embed_events(self, inputs: SequenceInputs, slots: Slots) -> torch.Tensor:
        """(K, B, S, d) input vectors of the events in `slots`: item, features, behaviour and scenario, summed.

        Only these are looked up: a row may hold a whole lifetime, of which the blocks read n events.
        """
        count = len(slots.index)

        def at(values: torch.Tensor) -> torch.Tensor:
            return values.expand(count, -1, -1).gather(2, slots.index)

        features = None
        if inputs.history_features is not None:
            features = torch.stack([at(column) for column in inputs.history_features.unbind(-1)], dim=-1)
        return (
            self.item_embedding(at(inputs.history_items), features)
            + self.behavior_embedding(at(inputs.history_behaviors))
            + self.scenario_embedding(slots.scenario)
        )

    def encode_history(
        self,
        inputs: SequenceInputs,
        slots: Slots,
        past: ASTROCache | None = None,
        blocks: slice = ALL,
        short_circuit: bool = True,
    ) -> ASTROCache:
        """Stage 1: keys and values of the events in `slots`.

        Without gradients, long histories are encoded in chunks, each of which sees the keys so far: the same result with memory
        that grows linearly in the length, and without the pairs that a causal mask leaves out.

        Args:
            inputs: the history that `slots` point to.
            slots: the new events, of `blocks` only when these are given.
            past: an earlier cache of the same users, to which the new events are appended; its blocks and the new slots must fit
                into n_k together, and positions go on from the past ones.
            blocks: which blocks to encode; default all, in one batched pass.
            short_circuit: compute only keys and values in the last layer; False runs all of it, for nothing, as a measure of what
                is saved.
        """
        width = slots.index.shape[-1]
        if not torch.is_grad_enabled() and width > HISTORY_CHUNK:
            for start in range(0, width, HISTORY_CHUNK):
                part = slots.slots(slice(start, start + HISTORY_CHUNK))
                past = self.encode_history(inputs, part, past, blocks, short_circuit)
            return past
        states = self.embed_events(inputs, slots)
        if past is None:
            known = slots
        else:
            known = Slots(*(torch.cat(pair, dim=-1) for pair in zip(past.slots, slots)))
        attending = len(self.layers) - short_circuit
        pairs = history_pairs(self.strategies[blocks], slots, known, self.bias_sizes) if attending else None
        keys, values = [], []
        for number, layer in enumerate(self.layers):
            before = (None, None) if past is None else (past.keys[number], past.values[number])
            states, key, value, _ = layer(states, *before, pairs if number < attending else None, True, blocks)
            keys.append(key if past is None else torch.cat([before[0], key], dim=3))
            values.append(value if past is None else torch.cat([before[1], value], dim=3))
        return ASTROCache(known, tuple(keys), tuple(values))

    # ---- stage 2 ----

    def embed_candidates(self, inputs: SequenceInputs) -> torch.Tensor:
        """(B, C, d) input vectors of candidates."""
        last = len(self.behavior_embedding.weight) - 1
        undecided = self.behavior_embedding(inputs.candidate_items.new_full((), last))
        items = self.item_embedding(inputs.candidate_items, inputs.candidate_features)
        return items + undecided + self.scenario_embedding(inputs.candidate_scenarios)

    def read_history(
        self, inputs: SequenceInputs, cache: ASTROCache, blocks: slice = ALL, keep: bool = False
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """Stage 2 without fusion: E(S_k) of each candidate, (K, B, C, d); with `keep` the states and attentions of each layer."""
        strategies = self.strategies[blocks]
        pairs = candidate_pairs(
            strategies,
            inputs.dependence,
            inputs.candidate_times,
            inputs.candidate_scenarios,
            cache.slots,
            self.bias_sizes,
        )
        states = self.embed_candidates(inputs).expand(len(strategies), -1, -1, -1)
        all_states, attentions = [states] if keep else [], []
        for layer, key, value in zip(self.layers, cache.keys, cache.values):
            states, _, _, attention = layer(states, key, value, [pairs], False, blocks)
            if keep:
                all_states.append(states)
                attentions.append(attention)
        return self.norm(states, blocks), all_states, attentions

    def fuse(self, states: torch.Tensor, scenario: torch.Tensor) -> torch.Tensor:
        """E (K, B, C, d) to Y (B, C, K * d), Eq. 4; plain concatenation without gating fusion."""
        states = states.permute(1, 2, 0, 3)
        return states.flatten(2) if self.fusion is None else self.fusion(states, scenario)

    def run(
        self,
        inputs: SequenceInputs,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        block_starts: torch.Tensor | None = None,
        loop_blocks: bool = False,
        short_circuit: bool = True,
    ) -> BaseModelOutput:
        """Both stages in one forward, for inputs that are checked; `forward` takes the first two options too.

        Args:
            block_starts: (B, Nb, R), first event of the row that each block may hold, for rows cut out of longer ones; see
                [`~lmctr.models.astro.partition.block_starts`].
            loop_blocks: run the blocks one after the other instead of as one batched module; the same result, slower.
            short_circuit: see `encode_history`.
        """
        slots = self.slots(inputs, block_starts)
        count = self.config.num_blocks
        keep = output_hidden_states or output_attentions
        parts = [slice(k, k + 1) for k in range(count)] if loop_blocks else [ALL]
        read = []
        for part in parts:
            cache = self.encode_history(inputs, slots.blocks(part), None, part, short_circuit)
            read.append(self.read_history(inputs, cache, part, keep))
        states = torch.cat([part[0] for part in read])
        hidden_states = attentions = None
        if output_hidden_states:
            hidden_states = tuple(torch.cat(layer).permute(1, 2, 0, 3) for layer in zip(*(part[1] for part in read)))
        if output_attentions:
            attentions = tuple(
                _on_events(torch.cat(layer), slots, inputs.history_items.shape[1])
                for layer in zip(*(part[2] for part in read))
            )
        fused = self.fuse(states, inputs.candidate_scenarios)
        return BaseModelOutput(last_hidden_state=fused, hidden_states=hidden_states, attentions=attentions)


def _on_events(attention: torch.Tensor, slots: Slots, num_events: int) -> torch.Tensor:
    """Attention on slots (K, B, h, C, S + 1) as attention on the row's events (B, K, h, C, N + 1)."""
    blocks, rows, heads, candidates, _ = attention.shape
    index = torch.where(slots.valid, slots.index, num_events)[:, :, None, None].expand(*attention.shape[:-1], -1)
    full = attention.new_zeros(blocks, rows, heads, candidates, num_events + 1)
    full = full.scatter_add(-1, index, attention[..., :-1])  # unused slots have no weight and end in the last column
    full[..., -1] = attention[..., -1]
    return full.transpose(0, 1)


class ASTROForCTR(SequenceForCTRMixin, ASTROPreTrainedModel):
    """ASTRO with the final network: an MLP (128, 64) on Y(S) of Eq. 4 with one logit per task.

    Features of the user and statistics of the candidate, where the configuration has them, enter the MLP beside Y(S); the paper's
    model has none. `forward` takes the options of [`ASTROModel.run`] too.
    """

    base_class = ASTROModel

    def new_head(self, config: ASTROConfig) -> nn.Module:
        dim = config.hidden_size
        self.user_features = FeatureTables(config, "user", dim)
        width = config.num_blocks * dim + len(self.user_features) * dim + config.num_statistics
        sizes = [width, *config.head_hidden_sizes]
        layers: list[nn.Module] = []
        for below, above in pairwise(sizes):
            layers += [nn.Linear(below, above), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], config.num_tasks))

    def head_input(self, fused: torch.Tensor, inputs: SequenceInputs) -> torch.Tensor:
        """Y (B, C, Nb * d), with features of the user and statistics behind."""
        parts = [fused]
        for own in self.user_features.vectors(inputs.user_features):
            parts.append(own[:, None].expand(-1, fused.shape[1], -1))
        if inputs.statistics is not None:
            parts.append(inputs.statistics.to(fused.dtype))
        return torch.cat(parts, dim=-1)

    @torch.no_grad()
    def score_candidates(
        self, cache: ASTROCache, inputs: SequenceInputs, micro_batch_size: int | None = None
    ) -> torch.Tensor:
        """Stage 2 on a kept cache: (B, C, T) float32 logits, computed `micro_batch_size` candidates at a time.

        Args:
            cache: of [`ASTROModel.encode_history`] for the same rows.
            inputs: candidates, dependence, user features and statistics are read.
            micro_batch_size: default `config.serving_micro_batch_size`. Bounds the memory, not the result.
        """
        size = self.config.serving_micro_batch_size if micro_batch_size is None else micro_batch_size
        logits = []
        for part in inputs.split_candidates(size):
            states, _, _ = self.model.read_history(part, cache)
            logits.append(self.task_logits(self.model.fuse(states, part.candidate_scenarios), part).float())
        return torch.cat(logits, dim=1)
