"""DeepFM: a factorisation machine and an MLP on the same vectors.

Paper: https://arxiv.org/abs/1703.04247 (IJCAI 2017).

Shapes: B batch, F fields, d vector width, W width of the last hidden layer.
"""

import torch
from torch import nn

from lmctr.models.common.embeddings import FieldEmbedding, LinearTerm, project_fields
from lmctr.models.common.layers import at_least_float32
from lmctr.models.common.tabular import (
    Encoded,
    TabularForCTRMixin,
    TabularInputs,
    TabularModelMixin,
    TabularPreTrainedModel,
    Trace,
)

from .configuration_deepfm import DeepFMConfig

__all__ = ["DeepFMForCTR", "DeepFMModel", "DeepFMPreTrainedModel"]


class FactorizationMachine(nn.Module):
    """The second-order term of Eq. 2, before the sum over d: sum of v_i * v_j over pairs of fields i < j."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """(B, F, d) to (B, d), as half of (square of the sum - sum of the squares): linear in F.

        In float32 at least, whatever the vectors have: the two cancel nearly, and half precision would leave little of the rest.
        """
        vectors = at_least_float32(vectors)
        total = vectors.sum(1)
        return 0.5 * (total.square() - vectors.square().sum(1))


class DeepFMPreTrainedModel(TabularPreTrainedModel):
    """Base class of the DeepFM models."""

    config_class = DeepFMConfig


class DeepFMModel(TabularModelMixin, DeepFMPreTrainedModel):
    """The deep component; the representation is its last hidden layer, (B, W).

    The factorisation machine, first and second order, goes past the head (Eq. 1: the logits are summed).
    `hidden_states`: the fields' vectors, then each layer of the MLP.
    """

    points = ("fm", "mlp")

    def __init__(self, config: DeepFMConfig):
        super().__init__(config)
        self.embedding = FieldEmbedding(config)
        self.projection = project_fields(config)
        self.linear = LinearTerm(config)
        self.fm = FactorizationMachine()
        self.add_mlp(self.embedding.output_size)
        self.post_init()

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        terms = self.linear(*inputs)
        wide = terms.sum(1) + self.fm(self.projection(fields)).sum(1)  # Eq. 2
        return Encoded(self.mlp(fields.flatten(1), trace.hidden_states), wide, self.linear.penalty(terms))


class DeepFMForCTR(TabularForCTRMixin, DeepFMPreTrainedModel):
    """DeepFM with the head of its deep component; its bias is the global bias."""

    base_class = DeepFMModel
