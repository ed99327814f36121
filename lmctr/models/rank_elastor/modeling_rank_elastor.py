"""RankElastor: parameterised full mixing and gated per-token networks.

Paper: https://arxiv.org/abs/2605.23191 (KDD 2026). `variant="reference"` follows the authors' released code where it differs.

Shapes: B batch, T tokens, D token size. Matrices act from the right. Inside the per-token networks tokens lie first,
(T, B, D), so that those of all tokens are one batched product.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.layers import in_blocks
from lmctr.models.common.products import linear
from lmctr.models.common.tabular import TabularPreTrainedModel
from lmctr.models.common.tokens import (
    ROWS,
    TokenForCTRMixin,
    TokenModelMixin,
    TokenwiseLinear,
    TokenwiseRMSNorm,
    block_transpose,
)

from .configuration_rank_elastor import RankElastorConfig

__all__ = ["RankElastorForCTR", "RankElastorModel", "RankElastorPreTrainedModel"]

_ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu}


class KroneckerMixing(nn.Module):
    """(W kron I) x over blocks of d* neighbouring numbers of vec(X^T) (Theorem 3.1); d* = 1 is full mixing (Eq. 3).

    With d* = D/T and the commutation matrix as W this is RankMixer's block transpose. The authors' code calls its cut-down
    mixing the Kronecker one too, and mixes numbers within each of d* long pieces, I kron W; the paper's form is kept here.
    """

    def __init__(self, width: int, grain: int, bias: bool):
        super().__init__()
        self.grain = grain
        self.weight = nn.Parameter(torch.empty(width // grain, width // grain))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def init_parameters(self, config: RankElastorConfig) -> None:
        init.normal_(self.weight, std=self.weight.shape[0] ** -0.5)  # Xavier
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, flat: torch.Tensor) -> torch.Tensor:
        """(B, TD) to (B, TD)."""
        if self.grain == 1:
            return linear(flat, self.weight, self.bias)
        mixed = (self.weight @ flat.unflatten(1, (-1, self.grain))).flatten(1)
        return mixed if self.bias is None else mixed + self.bias


class RankElastorTokenMixing(nn.Module):
    """Mixing with its residual and norm, by `config.mixing` and `config.variant`: (B, T, D) to (B, T, D)."""

    def __init__(self, config: RankElastorConfig):
        super().__init__()
        tokens, size = config.num_tokens, config.token_dim
        self.is_transpose, self.is_reference = config.mixing == "transpose", config.variant == "reference"
        self.is_flat = config.mixing_norm == "flat"
        self.pre_norm = self.matrix = self.norm = None
        if not self.is_transpose:
            # The authors' cut-down mixing has no bias; their full one has.
            bias = self.is_reference and config.mixing == "full"
            self.matrix = KroneckerMixing(tokens * size, config.mixing_grain, bias)
        if self.is_reference:
            self.pre_norm = None if self.is_transpose else nn.RMSNorm(tokens * size, eps=1e-12)
            self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps) if self.is_transpose else None
            self.post_norm = nn.RMSNorm(size, eps=1e-12)
        else:
            self.norm = nn.LayerNorm(tokens * size if self.is_flat else size, eps=config.layer_norm_eps)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.is_transpose:
            mixed = tokens + block_transpose(tokens)
        else:
            flat = tokens.flatten(1)
            mixed = tokens + self.matrix(flat if self.pre_norm is None else self.pre_norm(flat)).view(tokens.shape)
        if self.norm is not None:
            mixed = self.norm(mixed.flatten(1)).view(tokens.shape) if self.is_flat else self.norm(mixed)
        return self.post_norm(mixed) if self.is_reference else mixed


class GatedNetwork(nn.Module):
    """Eq. 4 for all tokens at once: (GELU(M W1) * (M W2)) W3 + M W_r, (T, B, D) to (T, B, D)."""

    def __init__(self, config: RankElastorConfig):
        super().__init__()
        tokens, size = config.num_tokens, config.token_dim
        hidden = round(config.ffn_ratio * size)
        self.lift = TokenwiseLinear(tokens, size, 2 * hidden, num_parts=2)  # W1, W2
        self.reduce = TokenwiseLinear(tokens, hidden, size)  # W3
        self.residual = TokenwiseLinear(tokens, size, size)  # W_r
        self.dropout = nn.Dropout(config.ffn_dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        gate, value = self.lift(tokens).chunk(2, -1)
        return self.dropout(self.reduce(F.gelu(gate) * value)) + self.residual(tokens)


class PlainNetwork(nn.Module):
    """RankMixer's two-layer network with residual and layer norm: LN(M + act(M W1) W2), (T, B, D) to (T, B, D)."""

    def __init__(self, config: RankElastorConfig):
        super().__init__()
        tokens, size = config.num_tokens, config.token_dim
        hidden = round(config.ffn_ratio * size)
        self.act = _ACTIVATIONS[config.ffn]
        self.up = TokenwiseLinear(tokens, size, hidden)
        self.down = TokenwiseLinear(tokens, hidden, size)
        self.dropout = nn.Dropout(config.ffn_dropout)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(tokens + self.dropout(self.down(self.act(self.up(tokens)))))


class ReferenceGate(nn.Module):
    """The authors' gated layer: ((M W_s + GELU(M W1)) * (M W2)) W3 + M W_r, with biases, width unchanged.

    At ratio 1 their code has no W3, and W_s is W_r.
    """

    def __init__(self, num_tokens: int, size: int, ratio: float):
        super().__init__()
        hidden = int(size * ratio)
        self.is_plain = ratio == 1
        parts = 2 if self.is_plain else 3
        self.lift = TokenwiseLinear(num_tokens, size, parts * hidden, num_parts=parts)  # W1, W2 and W_s
        self.reduce = None if self.is_plain else TokenwiseLinear(num_tokens, hidden, size)
        self.residual = TokenwiseLinear(num_tokens, size, size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        residual = self.residual(tokens)
        if self.is_plain:
            gate, value = self.lift(tokens).chunk(2, -1)
            return (residual + F.gelu(gate)) * value + residual
        gate, value, skip = self.lift(tokens).chunk(3, -1)
        return self.reduce((skip + F.gelu(gate)) * value) + residual


class ReferenceLayer(nn.Module):
    """One of the authors' stacked layers: RMS norm, gate, a linear layer where the width changes; or linear, norm, GELU."""

    def __init__(self, config: RankElastorConfig, in_size: int, out_size: int):
        super().__init__()
        tokens = config.num_tokens
        self.is_gated = config.ffn == "glu"
        norm_size = in_size if self.is_gated else out_size
        self.norm = TokenwiseRMSNorm(tokens, norm_size) if config.ffn_norm else None
        self.gate = ReferenceGate(tokens, in_size, config.ffn_ratio) if self.is_gated else None
        self.act = None if self.is_gated else _ACTIVATIONS[config.ffn]
        self.linear = None
        if not self.is_gated or out_size != in_size:
            self.linear = TokenwiseLinear(tokens, in_size, out_size)
        self.dropout = nn.Dropout(config.ffn_dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.is_gated:
            tokens = self.gate(tokens if self.norm is None else self.norm(tokens))
            return self.dropout(tokens if self.linear is None else self.linear(tokens))
        tokens = self.linear(tokens)
        return self.dropout(self.act(tokens if self.norm is None else self.norm(tokens)))


class ReferenceNetwork(nn.Module):
    """The authors' per-token network: stacked layers, a last linear layer, the identity as residual."""

    def __init__(self, config: RankElastorConfig):
        super().__init__()
        sizes = [config.token_dim, *config.ffn_hidden_sizes]
        self.layers = nn.ModuleList([ReferenceLayer(config, *pair) for pair in pairwise(sizes)])
        self.last = TokenwiseLinear(config.num_tokens, sizes[-1], config.token_dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = tokens
        for layer in self.layers:
            states = layer(states)
        return tokens + self.last(states)


class RankElastorPerTokenNetwork(nn.Module):
    """The P-FFN with its residual and norm, by `config.ffn` and `config.variant`: (B, T, D) to (B, T, D)."""

    def __init__(self, config: RankElastorConfig):
        super().__init__()
        if config.variant == "reference":
            self.network = ReferenceNetwork(config)
        else:
            self.network = GatedNetwork(config) if config.ffn == "glu" else PlainNetwork(config)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return in_blocks(self.network, tokens.transpose(0, 1), ROWS, dim=1).transpose(0, 1)


class RankElastorBlock(GradientCheckpointingLayer):
    """Mixing, then the per-token networks."""

    def __init__(self, config: RankElastorConfig):
        super().__init__()
        self.mixing = RankElastorTokenMixing(config)
        self.ffn = RankElastorPerTokenNetwork(config)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.ffn(self.mixing(tokens))


class RankElastorPreTrainedModel(TabularPreTrainedModel):
    """Loading, saving and initialisation of the RankElastor models."""

    config_class = RankElastorConfig
    config: RankElastorConfig
    _no_split_modules = ["RankElastorBlock"]  # noqa: RUF012 (transformers' own convention)


class RankElastorModel(TokenModelMixin, RankElastorPreTrainedModel):
    """Field embeddings to tokens, through the blocks; the representation is the tokens (B, T, D)."""

    block_class = RankElastorBlock


class RankElastorForCTR(TokenForCTRMixin, RankElastorPreTrainedModel):
    """RankElastor with one of its three heads."""

    base_class = RankElastorModel
