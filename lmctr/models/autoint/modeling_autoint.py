"""AutoInt: multi-head self-attention over fields.

Paper: https://arxiv.org/abs/1810.11921 (CIKM 2019).

Shapes: B batch, F fields, d vector width, H heads of width d', W width of the last hidden layer of the MLP.
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.embeddings import FieldEmbedding, LinearTerm, project_fields
from lmctr.models.common.layers import attend, in_blocks
from lmctr.models.common.products import Linear
from lmctr.models.common.tabular import (
    Encoded,
    TabularForCTRMixin,
    TabularInputs,
    TabularModelMixin,
    TabularPreTrainedModel,
    Trace,
)

from .configuration_autoint import AutoIntConfig

__all__ = ["AutoIntForCTR", "AutoIntModel", "AutoIntPreTrainedModel"]


ROWS = 256  # held at a time on the CPU


class JointProjection(Linear):
    """W_Query, W_Key, W_Value and W_Res of all heads in one product; each initialised as a matrix of its own."""

    def __init__(self, in_size: int, out_size: int, parts: int):
        super().__init__(in_size, parts * out_size, bias=False)
        self.parts = parts

    def init_parameters(self, config: AutoIntConfig) -> None:
        init.normal_(self.weight, std=(2 / (self.in_features + self.out_features / self.parts)) ** 0.5)


class InteractingLayer(GradientCheckpointingLayer):
    """Eq. 5-8: each field as a mixture of the fields that matter to it, ReLU(heads + W_Res e)."""

    def __init__(self, config: AutoIntConfig, in_size: int):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // self.num_heads
        self.scale = self.head_dim**-0.5 if config.use_scale else 1.0
        self.use_residual = config.use_residual
        self.dropout = config.attention_dropout
        self.projection = JointProjection(in_size, config.hidden_size, 4 if config.use_residual else 3)

    def forward(
        self, states: torch.Tensor, output_attentions: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, F, d) to (B, F, H d'), and the attention maps (B, H, F, F) when asked for."""
        if output_attentions:
            return self.mix(states, True)
        return in_blocks(lambda block: self.mix(block)[0], states, ROWS), None

    def mix(self, states: torch.Tensor, output_attentions: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`forward` of one block of rows."""
        query, key, value, *residual = self.projection(states).chunk(4 if self.use_residual else 3, -1)
        query, key, value = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (query, key, value))
        dropout = self.dropout if self.training else 0.0
        mixed, maps = attend(query, key, value, self.scale, dropout, output_attentions)
        mixed = mixed.transpose(1, 2).flatten(2)
        return torch.relu(mixed + residual[0] if residual else mixed), maps


class AutoIntPreTrainedModel(TabularPreTrainedModel):
    """Base class of the AutoInt models."""

    config_class = AutoIntConfig


class AutoIntModel(TabularModelMixin, AutoIntPreTrainedModel):
    """Interacting layers; the representation is all fields of the last one side by side, then the MLP's output if there
    is an MLP: (B, F H d' + W).

    `hidden_states`: the fields' vectors, each interacting layer's output (B, F, H d'), each layer of the MLP.
    `attentions`: the maps (B, H, F, F) of each interacting layer.
    """

    points = ("layers", "mlp")

    def __init__(self, config: AutoIntConfig):
        super().__init__(config)
        self.embedding = FieldEmbedding(config)
        self.projection = project_fields(config)
        sizes = [max(config.field_dims)] + [config.hidden_size] * (config.num_hidden_layers - 1)
        self.layers = nn.ModuleList([InteractingLayer(config, size) for size in sizes])
        self.linear = LinearTerm(config) if config.use_wide else None
        self.add_mlp(self.embedding.output_size, beside=config.num_fields * config.hidden_size)
        self.post_init()

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        states = self.projection(fields)
        for layer in self.layers:
            states, maps = layer(states, trace.attentions is not None)
            trace.add(states, maps)
        representation = self.beside_mlp(states.flatten(1), fields, trace)  # Eq. 9
        if self.linear is None:
            return Encoded(representation)
        terms = self.linear(*inputs)
        return Encoded(representation, terms.sum(1), self.linear.penalty(terms))


class AutoIntForCTR(TabularForCTRMixin, AutoIntPreTrainedModel):
    """AutoInt with its linear head (Eq. 9)."""

    base_class = AutoIntModel
