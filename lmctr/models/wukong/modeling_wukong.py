"""Wukong: stacked factorisation machines.

Paper: https://arxiv.org/abs/2403.02545 (ICML 2024).

Shapes: B batch, n embeddings that a layer reads, d their width, k columns of the projection Y, n_F and n_L embeddings of the
factorisation machine and the linear compression block.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.embeddings import FieldEmbedding, project_fields
from lmctr.models.common.layers import MLP
from lmctr.models.common.products import weight_and_bias
from lmctr.models.common.tabular import (
    Encoded,
    TabularForCTRMixin,
    TabularInputs,
    TabularModelMixin,
    TabularPreTrainedModel,
    Trace,
)

from .configuration_wukong import WukongConfig

__all__ = ["WukongForCTR", "WukongModel", "WukongPreTrainedModel"]


def units_and_linear(config: WukongConfig, in_size: int, units: list[int], out_size: int) -> nn.Sequential:
    """An MLP whose last layer is linear (decided; the paper does not say): it writes into a residual stream."""
    hidden = MLP(in_size, units, config.hidden_act, config.dropout)
    return nn.Sequential(hidden, nn.Linear(hidden.out_size, out_size))


class WukongTokenMixing(nn.Linear):
    """A linear map over embeddings, W X with X (n, d); keeps W (n_out, n) without a bias."""

    def __init__(self, num_in: int, num_out: int):
        super().__init__(num_in, num_out, bias=False)


class WukongLayer(GradientCheckpointingLayer):
    """The paper's interaction layer: LN(concat(FMB(X), LCB(X)) + X), the residual through a linear map where the numbers of embeddings differ.

    FMB ("factorization machine block"): reshape(MLP(LN(flatten(FM(X))))), with FM(X) = X X^T Y ("optimized FM").
    LCB ("linear compression block"): W_L X.
    """

    def __init__(self, config: WukongConfig, num_in: int, dim: int):
        super().__init__()
        self.kind, self.num_fmb, self.num_lcb = config.fm_projection, config.num_fmb_tokens, config.num_lcb_tokens
        num_out = self.num_fmb + self.num_lcb
        self.lcb = WukongTokenMixing(num_in, self.num_lcb)
        self.residual = WukongTokenMixing(num_in, num_out) if num_in != num_out else None
        rank = num_in if self.kind == "none" else config.fm_rank
        self.projection = WukongTokenMixing(num_in, rank) if self.kind == "static" else None  # Y^T
        self.compress = self.attention = None
        if self.kind == "attentive":
            compressed = config.num_compressed_tokens
            self.compress = WukongTokenMixing(num_in, compressed)
            self.attention = units_and_linear(config, compressed * dim, config.fm_attention_units, num_in * rank)
        self.fm_norm = nn.LayerNorm(num_in * rank, eps=config.layer_norm_eps)
        self.fm_mlp = units_and_linear(config, num_in * rank, config.fmb_units, self.num_fmb * dim)
        self.norm = nn.LayerNorm(dim, eps=config.layer_norm_eps)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(B, n, d) to (B, n_F + n_L, d)."""
        # All that is linear in the embeddings in one product, in the layout (B, d, n): one copy instead of several.
        transposed = states.transpose(1, 2).contiguous()
        mixings = [self.lcb, self.residual, self.projection if self.kind == "static" else self.compress]
        weights = [weight_and_bias(mixing, states)[0] for mixing in mixings if mixing is not None]
        parts = F.linear(transposed, torch.cat(weights)).split([len(weight) for weight in weights], -1)

        if self.kind == "none":
            interactions = states @ transposed
        else:
            if self.kind == "static":
                narrow = parts[-1]  # X^T Y, (B, d, k)
            else:
                attentive = self.attention(parts[-1].flatten(1))
                narrow = transposed @ attentive.unflatten(1, (states.shape[1], -1))
            interactions = states @ narrow  # (B, n, k): linear in n, where X X^T is quadratic
        fmb = self.fm_mlp(self.fm_norm(interactions.flatten(1))).unflatten(1, (self.num_fmb, -1))
        both = torch.cat([fmb, parts[0].transpose(1, 2)], 1)
        return self.norm(both + (states if self.residual is None else parts[1].transpose(1, 2)))


class WukongPreTrainedModel(TabularPreTrainedModel):
    """Base class of the Wukong models."""

    config_class = WukongConfig


class WukongModel(TabularModelMixin, WukongPreTrainedModel):
    """Interaction stack and the hidden layers of the final MLP; the representation is (B, W).

    `hidden_states`: the fields' vectors, each layer's embeddings (B, n_F + n_L, d), each layer of the final MLP.
    """

    points = ("layers", "mlp")

    def __init__(self, config: WukongConfig):
        super().__init__(config)
        self.embedding = FieldEmbedding(config)
        self.projection = project_fields(config)
        dim, num_tokens = max(config.field_dims), config.num_fmb_tokens + config.num_lcb_tokens
        counts = [config.num_fields] + [num_tokens] * (config.num_hidden_layers - 1)
        self.layers = nn.ModuleList([WukongLayer(config, count, dim) for count in counts])
        self.mlp = MLP(num_tokens * dim, config.hidden_units, config.hidden_act, config.dropout)
        self.out_size = self.mlp.out_size
        self.post_init()

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        states = self.projection(fields)
        for layer in self.layers:
            states = layer(states)
            trace.add(states)
        return Encoded(self.mlp(states.flatten(1), trace.hidden_states))


class WukongForCTR(TabularForCTRMixin, WukongPreTrainedModel):
    """Wukong with its head, the last layer of the final MLP."""

    base_class = WukongModel
