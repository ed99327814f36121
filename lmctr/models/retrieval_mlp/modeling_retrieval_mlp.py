"""RetrievalMLP: the foundation MLP on [user; ad], for the pre-ranking of ads.

Paper: "Scaling Laws for Online Advertisement Retrieval", https://arxiv.org/abs/2411.13322 (section 3.3 the model, Eq. 2-4 the loss).

Shapes: B impressions, n ads, R ads that are there, U and A width of the user's and the ad's input, W width of the last hidden layer.
"""

import torch
from transformers.modeling_outputs import BaseModelOutput

from lmctr.models.common.impressions import (
    ImpressionEmbedding,
    ImpressionInputs,
    RetrievalForCTRMixin,
    RetrievalModelMixin,
    RetrievalPreTrainedModel,
)
from lmctr.models.common.retrieval import FoundationMLP, HeLinear

from .configuration_retrieval_mlp import RetrievalMLPConfig

__all__ = ["RetrievalMLPForCTR", "RetrievalMLPModel", "RetrievalMLPPreTrainedModel"]


class RetrievalMLPPreTrainedModel(RetrievalPreTrainedModel):
    """Base class of the RetrievalMLP models."""

    config_class = RetrievalMLPConfig


class RetrievalMLPModel(RetrievalModelMixin, RetrievalMLPPreTrainedModel):
    """Embeddings and the hidden layers; the representation is the last one, (B, n, W), 0 where there is no ad.

    The user's input is computed once per impression; the MLP runs on the ads that are there, and batch normalisation counts only these.
    `hidden_states`: the input (B, n, U + A), then each layer's output (B, n, width).
    """

    def __init__(self, config: RetrievalMLPConfig):
        super().__init__(config)
        self.embedding = ImpressionEmbedding(config)
        self.mlp = FoundationMLP(config.user_size + config.ad_size, config.hidden_units, out_size=None)
        self.post_init()

    def run(self, inputs: ImpressionInputs, output_hidden_states: bool) -> BaseModelOutput:
        rows = torch.cat((inputs.users.index_select(0, inputs.owner), inputs.ads), 1)
        seen = [rows] if output_hidden_states else None
        states = self.mlp(rows, seen)
        return BaseModelOutput(
            last_hidden_state=inputs.ad_rows.scatter(states),
            hidden_states=tuple(map(inputs.ad_rows.scatter, seen)) if seen else None,
        )


class RetrievalMLPForCTR(RetrievalForCTRMixin, RetrievalMLPPreTrainedModel):
    """RetrievalMLP with its output layer, purely linear, and the loss on impressions."""

    base_class = RetrievalMLPModel

    def new_head(self, config: RetrievalMLPConfig) -> HeLinear:
        return HeLinear(config.hidden_units[-1], 1)

    def score(self, outputs: BaseModelOutput) -> torch.Tensor:
        return self.head(outputs.last_hidden_state).squeeze(-1)
