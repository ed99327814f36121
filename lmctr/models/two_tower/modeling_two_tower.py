"""TwoTower: a foundation MLP for the user, one for the ad, and their inner product, for the matching of ads.

Paper: "Scaling Laws for Online Advertisement Retrieval", https://arxiv.org/abs/2411.13322 (section 3.3, Appendix A: the matching models "use the
twin-tower structure, inheriting all settings", and score by the inner product).

Decided, where the paper says nothing: the towers have parameters of their own and the same hidden layers; the score is exp(s) <u, a> with a trained
s, at first -log(D) / 2. Without it the scores of D-wide vectors with He initialisation spread over sqrt(D), and NeuralSort at temperature 1 gets
no gradient from most pairs. The vectors are not normalised. Serving multiplies the factor into the user's vector, so the score stays an inner product.

Shapes: B impressions, n ads, R ads that are there, D width of the vectors.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers import initialization as init
from transformers.utils import ModelOutput

from lmctr.models.common.impressions import (
    ImpressionEmbedding,
    ImpressionInputs,
    RetrievalForCTRMixin,
    RetrievalModelMixin,
    RetrievalPreTrainedModel,
)
from lmctr.models.common.retrieval import FoundationMLP

from .configuration_two_tower import TwoTowerConfig

__all__ = ["TwoTowerForCTR", "TwoTowerModel", "TwoTowerModelOutput", "TwoTowerPreTrainedModel"]


@dataclass
class TwoTowerModelOutput(ModelOutput):
    """Output of [`TwoTowerModel`].

    Args:
        last_hidden_state: (B, n, D), the ads' vectors, 0 where there is no ad.
        user_vectors: (B, D), 0 for impressions without ads.
        hidden_states: when asked for: the user's input (B, U) and each layer's output (B, width), then the ads' (B, n, A) and (B, n, width).
    """

    last_hidden_state: torch.Tensor | None = None
    user_vectors: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class InnerProduct(nn.Module):
    """exp(s) <u, a>."""

    def __init__(self, vector_size: int):
        super().__init__()
        self.vector_size = vector_size
        self.log_scale = nn.Parameter(torch.empty(()))

    def init_parameters(self, config: TwoTowerConfig) -> None:
        init.constant_(self.log_scale, -0.5 * math.log(self.vector_size))

    def forward(self, users: torch.Tensor, ads: torch.Tensor) -> torch.Tensor:
        """(B, D) and (B, n, D) to (B, n)."""
        return (ads @ (users * self.log_scale.exp()).unsqueeze(-1)).squeeze(-1)


class TwoTowerPreTrainedModel(RetrievalPreTrainedModel):
    """Base class of the TwoTower models."""

    config_class = TwoTowerConfig


class TwoTowerModel(RetrievalModelMixin, TwoTowerPreTrainedModel):
    """Embeddings and towers. The user's tower runs once per impression, the ad's on the ads that are there.

    Batch normalisation of the user's tower counts every impression with an ad once.
    """

    def __init__(self, config: TwoTowerConfig):
        super().__init__(config)
        self.embedding = ImpressionEmbedding(config)
        self.user_tower = FoundationMLP(config.user_size, config.hidden_units, config.vector_size)
        self.ad_tower = FoundationMLP(config.ad_size, config.hidden_units, config.vector_size)
        self.post_init()

    def run(self, inputs: ImpressionInputs, output_hidden_states: bool) -> TwoTowerModelOutput:
        sides = ((self.user_tower, inputs.users, inputs.user_rows), (self.ad_tower, inputs.ads, inputs.ad_rows))
        vectors, seen = [], []
        for tower, values, rows in sides:
            states = [values] if output_hidden_states else None
            vectors.append(rows.scatter(tower(values, states)))
            seen.extend(map(rows.scatter, states or ()))
        users, ads = vectors
        return TwoTowerModelOutput(ads, users, tuple(seen) if output_hidden_states else None)


class TwoTowerForCTR(RetrievalForCTRMixin, TwoTowerPreTrainedModel):
    """TwoTower with the scaled inner product and the loss on impressions."""

    base_class = TwoTowerModel

    def new_head(self, config: TwoTowerConfig) -> InnerProduct:
        return InnerProduct(config.vector_size)

    def score(self, outputs: TwoTowerModelOutput) -> torch.Tensor:
        return self.head(outputs.user_vectors, outputs.last_hidden_state)
