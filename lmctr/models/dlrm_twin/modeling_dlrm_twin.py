"""DLRMTwin: sequence features of TWIN, statistics, and an MLP that lets them interact.

This is what Climber (https://arxiv.org/abs/2502.09888, Appendix B.2) calls DLRM, its model in production before: "a two-stage TWIN
approach to extract user sequence representations", "combined with statistical features and processed through MLP layers for feature
interaction". It is *not* the DLRM of Meta (https://arxiv.org/abs/1906.00091), which has neither TWIN nor statistics and lets embeddings
interact by dot products. TWIN: https://arxiv.org/abs/2302.02352.

Shapes: B rows (users), N events of a row, C candidates, d hidden size, h heads, G behaviour types, Fs statistics, T tasks.

**Decided.** The paper lists no statistics. Here they are the float columns of the data, if it has any, and counts that the row itself holds: per
behaviour type the events that a candidate sees, and those with the candidate's own item (none for an item out of vocabulary, whose id
stands for many items). Counts and rates have long tails, so every statistic x enters as sign(x) log(1 + |x|), then through a small MLP
of its own. All of it depends on the candidate and the events that it sees, so rows of several candidates (SUMI) give the logits of single
rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers.modeling_outputs import BaseModelOutput

from lmctr.models.common.layers import MLP, at_least_float32
from lmctr.models.common.sequence import (
    CandidateContext,
    ItemEmbedding,
    SequenceForCTRMixin,
    SequenceInputs,
    SequenceModelMixin,
    SequencePreTrainedModel,
    final_network,
    visible_events,
)
from lmctr.models.common.target_attention import TwinEncoder

from .configuration_dlrm_twin import DLRMTwinConfig

__all__ = ["DLRMTwinForCTR", "DLRMTwinModel", "DLRMTwinPreTrainedModel", "history_statistics"]

OUT_OF_VOCABULARY = 1


class DLRMTwinPreTrainedModel(SequencePreTrainedModel):
    """Base of the DLRMTwin models."""

    config_class = DLRMTwinConfig


def history_statistics(inputs: SequenceInputs, num_behaviors: int) -> torch.Tensor:
    """(B, C, 2 G) float32 counts of the events that each candidate sees: per behaviour type, and of its own item per type."""
    kinds = F.one_hot(inputs.history_behaviors, num_behaviors).float()  # (B, N, G)
    visible = visible_events(inputs)
    known = inputs.candidate_items > OUT_OF_VOCABULARY
    same = visible & (inputs.candidate_items[..., None] == inputs.history_items[:, None]) & known[..., None]
    return torch.cat([visible.float() @ kinds, same.float() @ kinds], dim=-1)


class DLRMTwinModel(SequenceModelMixin, DLRMTwinPreTrainedModel):
    """DLRMTwin up to the last hidden layer of the interaction network, (B, C, W).

    `hidden_states`: the input and each layer's output of the interaction network. `attentions`: one tensor (B, h, C, N + 1), the
    weights of TWIN's exact search unit; a candidate has none for itself, so the last column is 0.
    """

    def __init__(self, config: DLRMTwinConfig):
        super().__init__(config)
        dim = config.hidden_size
        self.item_embedding = ItemEmbedding(config, dim)
        self.encoder = TwinEncoder(config)
        self.context = CandidateContext(config, dim, use_statistics=False)
        count = config.num_statistics + 2 * config.num_behaviors * config.use_history_statistics
        self.statistics = MLP(count, [*config.statistics_hidden_sizes, dim], config.hidden_act, config.dropout)
        self.mlp = MLP(3 * dim + self.context.out_size, config.head_hidden_sizes, config.hidden_act, config.dropout)
        self.post_init()

    def run(
        self, inputs: SequenceInputs, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> BaseModelOutput:
        queries = self.item_embedding(inputs.candidate_items, inputs.candidate_features)
        inherent = self.item_embedding(inputs.history_items, inputs.history_features)
        found = self.encoder(inputs, inherent, queries)
        statistics = [] if inputs.statistics is None else [at_least_float32(inputs.statistics)]
        if self.config.use_history_statistics:
            statistics.append(history_statistics(inputs, self.config.num_behaviors))
        values = torch.cat(statistics, dim=-1)
        values = (values.sign() * values.abs().log1p()).to(queries.dtype)
        states = torch.cat([found.interest, queries, self.statistics(values), self.context(inputs)], dim=-1)
        attentions = (F.pad(found.weights, (0, 1)),) if output_attentions else None
        return final_network(self.mlp, states, attentions, output_hidden_states)


class DLRMTwinForCTR(SequenceForCTRMixin, DLRMTwinPreTrainedModel):
    """DLRMTwin with one logit per task."""

    base_class = DLRMTwinModel
