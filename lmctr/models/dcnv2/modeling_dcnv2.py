"""DCNv2: cross network and MLP.

Paper: https://arxiv.org/abs/2008.13535 (WWW 2021). Numbers have vectors, as in every tabular family here; the paper puts them into x_0 as they are.

Shapes: B batch, N width of all fields' vectors side by side, K experts of rank r, W width of the last hidden layer.
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.embeddings import FieldEmbedding
from lmctr.models.common.products import Linear
from lmctr.models.common.tabular import (
    Encoded,
    TabularForCTRMixin,
    TabularInputs,
    TabularModelMixin,
    TabularPreTrainedModel,
    Trace,
)

from .configuration_dcnv2 import DCNv2Config

__all__ = ["DCNv2ForCTR", "DCNv2Model", "DCNv2PreTrainedModel"]


class CrossLayer(GradientCheckpointingLayer):
    """Eq. 1: x_{l+1} = x_0 * (W x_l + b) + x_l."""

    def __init__(self, config: DCNv2Config, size: int):
        super().__init__()
        self.linear = Linear(size, size)

    def forward(self, states: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """x_l and x_0, (B, N), to x_{l+1}."""
        return torch.addcmul(states, first, self.linear(states))


class MixtureCrossLayer(GradientCheckpointingLayer):
    """Eq. 3-4: x_{l+1} = sum over experts of G_i(x_l) x_0 * (U_i tanh(C_i tanh(V_i^T x_l)) + b) + x_l, G a softmax.

    All experts in four products: the gates weigh the narrow (r) side of U, and their sum, 1, leaves b as it is.
    """

    def __init__(self, config: DCNv2Config, size: int):
        super().__init__()
        self.num_experts, self.rank, self.size = config.num_experts, config.low_rank, size
        self.down = nn.Parameter(torch.empty(self.num_experts * self.rank, size))  # V_i^T, one under the other
        self.core = nn.Parameter(torch.empty(self.num_experts, self.rank, self.rank))  # C_i^T
        self.up = nn.Parameter(torch.empty(size, self.num_experts * self.rank))  # U_i, side by side
        self.bias = nn.Parameter(torch.empty(size))
        self.gate = nn.Linear(size, self.num_experts)

    def init_parameters(self, config: DCNv2Config) -> None:
        # Xavier for each expert's own matrices.
        init.normal_(self.down, std=(2 / (self.size + self.rank)) ** 0.5)
        init.normal_(self.up, std=(2 / (self.size + self.rank)) ** 0.5)
        init.normal_(self.core, std=self.rank**-0.5)
        init.zeros_(self.bias)

    def forward(self, states: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """x_l and x_0, (B, N), to x_{l+1}."""
        narrow = nn.functional.linear(states, self.down).tanh().unflatten(1, (self.num_experts, self.rank))
        narrow = torch.einsum("bkr,krs->bks", narrow, self.core).tanh()
        gates = self.gate(states).softmax(-1).to(narrow.dtype)
        mixed = nn.functional.linear((narrow * gates.unsqueeze(-1)).flatten(1), self.up, self.bias)
        return torch.addcmul(states, first, mixed)


CROSS_LAYERS = {"matrix": CrossLayer, "mixture": MixtureCrossLayer}


class DCNv2PreTrainedModel(TabularPreTrainedModel):
    """Base class of the DCNv2 models."""

    config_class = DCNv2Config


class DCNv2Model(TabularModelMixin, DCNv2PreTrainedModel):
    """Cross network and MLP; the representation is (B, W) for `"stacked"`, (B, N + W) for `"parallel"` (section 3.4).

    `hidden_states`: the fields' vectors, each cross layer's output (B, N), each layer of the MLP.
    """

    points = ("cross", "mlp")

    def __init__(self, config: DCNv2Config):
        super().__init__(config)
        self.embedding = FieldEmbedding(config)
        size = self.embedding.output_size
        self.cross = nn.ModuleList(
            [CROSS_LAYERS[config.cross_type](config, size) for _ in range(config.num_cross_layers)]
        )
        self.is_stacked = config.structure == "stacked" and bool(config.hidden_units)
        self.add_mlp(size, beside=0 if self.is_stacked else size)
        self.post_init()

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        first = states = fields.flatten(1)
        for layer in self.cross:
            states = layer(states, first)
            trace.add(states)
        if self.is_stacked:
            return Encoded(self.mlp(states, trace.hidden_states))
        return Encoded(self.beside_mlp(states, first, trace))


class DCNv2ForCTR(TabularForCTRMixin, DCNv2PreTrainedModel):
    """DCNv2 with its linear head."""

    base_class = DCNv2Model
