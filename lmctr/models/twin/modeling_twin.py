"""TWIN: two-stage interest network.

Paper: https://arxiv.org/abs/2302.02352.

Shapes: B rows (users), N events of a row, C candidates, d hidden size, h heads, T tasks.

The general search unit (GSU) picks the `num_selected` events that matter most for a candidate, the exact search unit (ESU) attends to
them; both use the same target attention with the same weights, [`~lmctr.models.common.target_attention.TwinAttention`], where the equations
stand. A candidate's selection depends on the candidate and the events that it sees, so rows of several candidates (SUMI) give the
logits of single rows.

The found interest, the candidate's own vector and its context go through an MLP. The paper leaves the rest of its ranking model (short-
term interests, other features) to the system around it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers.modeling_outputs import BaseModelOutput

from lmctr.models.common.layers import MLP
from lmctr.models.common.sequence import (
    CandidateContext,
    ItemEmbedding,
    SequenceForCTRMixin,
    SequenceInputs,
    SequenceModelMixin,
    SequencePreTrainedModel,
    final_network,
)
from lmctr.models.common.target_attention import TwinEncoder

from .configuration_twin import TWINConfig

__all__ = ["TWINForCTR", "TWINModel", "TWINPreTrainedModel"]


class TWINPreTrainedModel(SequencePreTrainedModel):
    """Base of the TWIN models."""

    config_class = TWINConfig


class TWINModel(SequenceModelMixin, TWINPreTrainedModel):
    """TWIN up to the last hidden layer of the final network, (B, C, W).

    `hidden_states`: the input and each layer's output of the final network. `attentions`: one tensor (B, h, C, N + 1), ESU's weights on
    the events of the row, 0 on those that GSU left out; a candidate has none for itself, so the last column is 0.
    """

    def __init__(self, config: TWINConfig):
        super().__init__(config)
        self.item_embedding = ItemEmbedding(config, config.hidden_size)
        self.encoder = TwinEncoder(config)
        self.context = CandidateContext(config, config.hidden_size)
        width = 2 * config.hidden_size + self.context.out_size
        self.mlp = MLP(width, config.head_hidden_sizes, config.hidden_act, config.dropout)
        self.post_init()

    def run(
        self, inputs: SequenceInputs, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> BaseModelOutput:
        queries = self.item_embedding(inputs.candidate_items, inputs.candidate_features)
        inherent = self.item_embedding(inputs.history_items, inputs.history_features)
        found = self.encoder(inputs, inherent, queries)
        states = torch.cat([found.interest, queries, self.context(inputs)], dim=-1)
        attentions = (F.pad(found.weights, (0, 1)),) if output_attentions else None
        return final_network(self.mlp, states, attentions, output_hidden_states)


class TWINForCTR(SequenceForCTRMixin, TWINPreTrainedModel):
    """TWIN with one logit per task."""

    base_class = TWINModel
