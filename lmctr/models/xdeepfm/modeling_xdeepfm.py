"""xDeepFM: compressed interaction network (CIN), linear part and MLP.

Paper: https://arxiv.org/abs/1803.05170 (KDD 2018).

Shapes: B batch, m fields, D vector width, H_k feature maps of layer k, W width of the last hidden layer, R = B D rows.
"""

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.embeddings import FieldEmbedding, LinearTerm, project_fields
from lmctr.models.common.products import product
from lmctr.models.common.tabular import (
    Encoded,
    TabularForCTRMixin,
    TabularInputs,
    TabularModelMixin,
    TabularPreTrainedModel,
    Trace,
)

from .configuration_xdeepfm import XDeepFMConfig

__all__ = ["XDeepFMForCTR", "XDeepFMModel", "XDeepFMPreTrainedModel"]

# Numbers of the outer product that are held at a time: on the CPU what stays in a core's cache.
CHUNK = {"cpu": 3 * 2**18}
CHUNK_ELSEWHERE = 2**27


class CompressedProduct(torch.autograd.Function):
    """Eq. 6: every row's outer product of x (R, H) and x0 (R, m), compressed by a weight (H', H m) to (R, H').

    The outer products of a batch are large (R H m numbers) and cheap to make, so they are made in blocks of rows, used
    and dropped, in both directions, and never stored.
    """

    @staticmethod
    def blocks(x: torch.Tensor, x0: torch.Tensor) -> range:
        size = max(CHUNK.get(x.device.type, CHUNK_ELSEWHERE) // (x.shape[1] * x0.shape[1]), 1)
        return range(0, x.shape[0], size)

    @staticmethod
    def forward(ctx, x: torch.Tensor, x0: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ANN001
        ctx.save_for_backward(x, x0, weight)
        result = x.new_empty(x.shape[0], weight.shape[0])
        blocks = CompressedProduct.blocks(x, x0)
        for start in blocks:
            rows = slice(start, start + blocks.step)
            pairs = (x[rows].unsqueeze(2) * x0[rows].unsqueeze(1)).flatten(1)
            result[rows] = product(pairs, weight)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # noqa: ANN001
        x, x0, weight = ctx.saved_tensors
        grad_x, grad_x0 = torch.empty_like(x), torch.empty_like(x0)
        grad_weight = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        blocks = CompressedProduct.blocks(x, x0)
        for start in blocks:
            rows = slice(start, start + blocks.step)
            pairs = (x[rows].unsqueeze(2) * x0[rows].unsqueeze(1)).flatten(1)
            grad_weight += product(grad[rows].T, pairs.T)
            grad_product = product(grad[rows], weight.T).unflatten(1, (x.shape[1], x0.shape[1]))
            torch.bmm(grad_product, x0[rows].unsqueeze(2), out=grad_x[rows].unsqueeze(2))
            torch.bmm(x[rows].unsqueeze(1), grad_product, out=grad_x0[rows].unsqueeze(1))
        return grad_x, grad_x0, grad_weight.to(weight.dtype)


class CINLayer(GradientCheckpointingLayer):
    """Eq. 6: X^k_h = sum over i, j of W^{k,h}_{ij} (X^{k-1}_i * X^0_j), in the layout (B, D, maps)."""

    def __init__(self, num_maps: int, num_fields: int, num_new: int, activation: str):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_new, num_maps * num_fields))
        self.activation = ACT2FN[activation]

    def init_parameters(self, config: XDeepFMConfig) -> None:
        init.xavier_normal_(self.weight)

    def forward(self, maps: torch.Tensor, fields: torch.Tensor) -> torch.Tensor:
        """(B, D, H) maps and (B, D, m) fields to (B, D, H')."""
        weight = self.weight
        if not maps.is_meta and torch.is_autocast_enabled(maps.device.type):
            dtype = torch.get_autocast_dtype(maps.device.type)
            maps, fields, weight = maps.to(dtype), fields.to(dtype), weight.to(dtype)
        if torch.compiler.is_exporting():  # in one piece: a graph has no loop over blocks
            return self.activation((maps.unsqueeze(3) * fields.unsqueeze(2)).flatten(2) @ weight.T)
        product = CompressedProduct.apply(maps.flatten(0, 1), fields.flatten(0, 1), weight)
        return self.activation(product.unflatten(0, fields.shape[:2]))


class CIN(nn.Module):
    """Compressed interaction network (section 3.1): layers of compressed outer products, each sum-pooled over D."""

    def __init__(self, config: XDeepFMConfig):
        super().__init__()
        self.split_half = config.cin_split_half
        self.layers = nn.ModuleList()
        num_maps, self.out_size = config.num_fields, 0
        for index, units in enumerate(config.cin_units):
            self.layers.append(CINLayer(num_maps, config.num_fields, units, config.cin_act))
            splits = self.split_half and index < len(config.cin_units) - 1
            num_maps = units // 2 if splits else units
            self.out_size += num_maps

    def forward(self, fields: torch.Tensor, hidden_states: list[torch.Tensor] | None = None) -> torch.Tensor:
        """(B, m, D) to (B, sum of the maps that go out), Eq. 7."""
        fields = fields.transpose(1, 2).contiguous()
        maps, pooled = fields, []
        for index, layer in enumerate(self.layers):
            maps = layer(maps, fields)
            if hidden_states is not None:
                hidden_states.append(maps.transpose(1, 2))
            out = maps
            if self.split_half and index < len(self.layers) - 1:
                maps, out = maps.chunk(2, -1)
            pooled.append(out.sum(1))
        return torch.cat(pooled, 1)


class XDeepFMPreTrainedModel(TabularPreTrainedModel):
    """Base class of the xDeepFM models."""

    config_class = XDeepFMConfig


class XDeepFMModel(TabularModelMixin, XDeepFMPreTrainedModel):
    """Interaction network and MLP; the representation is what both give, (B, sum of the maps + W) (Eq. 9).

    The linear part goes past the head. `hidden_states`: the fields' vectors, the maps of each CIN layer (B, H_k, D), each
    layer of the MLP.
    """

    points = ("cin", "mlp")  # a CIN layer gives (B, D, H_k): features as columns

    def __init__(self, config: XDeepFMConfig):
        super().__init__(config)
        self.embedding = FieldEmbedding(config)
        self.projection = project_fields(config)
        self.linear = LinearTerm(config)
        self.cin = CIN(config)
        self.add_mlp(self.embedding.output_size, beside=self.cin.out_size)
        self.post_init()

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        terms = self.linear(*inputs)
        maps = self.cin(self.projection(fields), trace.hidden_states)
        return Encoded(self.beside_mlp(maps, fields, trace), terms.sum(1), self.linear.penalty(terms))


class XDeepFMForCTR(TabularForCTRMixin, XDeepFMPreTrainedModel):
    """xDeepFM with its head, linear in what CIN and MLP give (Eq. 9)."""

    base_class = XDeepFMModel
