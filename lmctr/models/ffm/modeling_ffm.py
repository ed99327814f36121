"""FFM: field-aware factorisation machines.

Paper: Juan et al., "Field-aware Factorization Machines for CTR Prediction", RecSys 2016,
https://doi.org/10.1145/2959100.2959134.

Shapes: B batch, F fields, k vector width.
"""

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.embeddings import FieldEmbedding, LinearTerm
from lmctr.models.common.layers import in_blocks
from lmctr.models.common.tabular import (
    Encoded,
    SumHead,
    TabularForCTRMixin,
    TabularInputs,
    TabularModelMixin,
    TabularPreTrainedModel,
    Trace,
)

from .configuration_ffm import FFMConfig

__all__ = ["FFMForCTR", "FFMModel", "FFMPreTrainedModel"]


ROWS = 256  # held at a time on the CPU


class FieldAwareInteraction(GradientCheckpointingLayer):
    """Section 3: the sum over pairs i < j of <v_{i, field j}, v_{j, field i}>, kept apart by field."""

    def __init__(self, num_fields: int):
        super().__init__()
        self.num_fields = num_fields

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """(B, F, F k): each field's vectors for field 0, 1, ...; returns (B, F), half of each pair at either field."""
        return in_blocks(self.shares, vectors, ROWS)

    def shares(self, vectors: torch.Tensor) -> torch.Tensor:
        """`forward` of one block of rows."""
        vectors = vectors.unflatten(2, (self.num_fields, -1))
        pairs = (vectors * vectors.transpose(1, 2)).sum(-1)  # symmetric; the diagonal is no pair
        return 0.5 * (pairs.sum(2) - pairs.diagonal(dim1=1, dim2=2))


class FFMPreTrainedModel(TabularPreTrainedModel):
    """Base class of the FFM models."""

    config_class = FFMConfig


class FFMModel(TabularModelMixin, FFMPreTrainedModel):
    """Field-aware interactions; the representation is each field's share of them, (B, F).

    The first-order term goes past the head. A field's vector for itself (k of its F k numbers) is stored, as in the
    paper's count n F k, and never read. `hidden_states`: the vectors (B, F, F k), then the shares (B, F).
    """

    points = ("interaction",)

    def __init__(self, config: FFMConfig):
        super().__init__(config)
        width = max(config.field_dims, default=0) * config.num_fields
        self.embedding = FieldEmbedding(config, embedding_dim=width)
        self.linear = LinearTerm(config)
        self.interaction = FieldAwareInteraction(config.num_fields)
        self.out_size = config.num_fields
        self.post_init()

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        terms = self.linear(*inputs)
        shares = self.interaction(fields)
        trace.add(shares)
        return Encoded(shares, terms.sum(1), self.linear.penalty(terms))


class FFMForCTR(TabularForCTRMixin, FFMPreTrainedModel):
    """FFM: global bias, first-order term and interactions."""

    base_class = FFMModel

    def new_head(self, config: FFMConfig) -> nn.Module:
        return SumHead()
