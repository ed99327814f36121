"""RankMixer: block-transpose token mixing and per-token networks.

Paper: https://arxiv.org/abs/2507.15551 (CIKM 2025); the reading is that of the RankElastor paper (arXiv 2605.23191, Sec. 2.1).
`variant="reference"` is RankMixer as the latter's authors built it.

Shapes: B batch, T tokens, D token size. Inside the per-token networks tokens lie first, (T, B, D), so that those of all
tokens are one batched product.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.layers import in_blocks
from lmctr.models.common.tabular import Encoded, TabularInputs, TabularPreTrainedModel, Trace
from lmctr.models.common.tokens import (
    ROWS,
    TokenForCTRMixin,
    TokenModelMixin,
    TokenwiseLinear,
    TokenwiseRMSNorm,
    block_transpose,
)

from .configuration_rank_mixer import RankMixerConfig
from .sparse_experts import RouterPenalty, SparseExperts

__all__ = ["RankMixerForCTR", "RankMixerModel", "RankMixerPreTrainedModel"]


class RankMixerTokenMixing(nn.Module):
    """M = LN(X + T(X)), (B, T, D) to (B, T, D); then an RMS norm in `variant="reference"`."""

    def __init__(self, config: RankMixerConfig):
        super().__init__()
        self.norm = nn.LayerNorm(config.token_dim, eps=config.layer_norm_eps)
        self.post_norm = nn.RMSNorm(config.token_dim, eps=1e-12) if config.variant == "reference" else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mixed = self.norm(tokens + block_transpose(tokens))
        return mixed if self.post_norm is None else self.post_norm(mixed)


class PerTokenMLP(nn.Module):
    """An MLP of its own for each token, (T, B, D) to (T, B, D)."""

    def __init__(self, config: RankMixerConfig):
        super().__init__()
        hidden = config.ffn_hidden_sizes or [round(config.ffn_ratio * config.token_dim)]
        tokens = config.num_tokens
        self.layers = nn.ModuleList([TokenwiseLinear(tokens, *pair) for pair in pairwise([config.token_dim, *hidden])])
        self.norms = nn.ModuleList([TokenwiseRMSNorm(tokens, size) for size in hidden]) if config.ffn_norm else None
        self.last = TokenwiseLinear(tokens, hidden[-1], config.token_dim)
        self.act = F.gelu if config.ffn == "gelu" else F.relu
        self.dropout = nn.Dropout(config.ffn_dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            tokens = layer(tokens)
            if self.norms is not None:
                tokens = self.norms[number](tokens)
            tokens = self.dropout(self.act(tokens))
        return self.last(tokens)


class RankMixerPerTokenNetwork(nn.Module):
    """LN(M + PFFN(M)), without the norm in `variant="reference"`: (B, T, D) to (B, T, D).

    With experts the second and third result are what [`SparseExperts`] says about its routers, else None.
    """

    def __init__(self, config: RankMixerConfig):
        super().__init__()
        self.has_experts = config.num_experts > 1
        self.network = SparseExperts(config) if self.has_experts else PerTokenMLP(config)
        is_paper = config.variant == "paper"
        self.norm = nn.LayerNorm(config.token_dim, eps=config.layer_norm_eps) if is_paper else None

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        tokens = tokens.transpose(0, 1)
        penalty = active = None
        if self.has_experts:
            outputs, penalty, active = self.network(tokens)
        else:
            outputs = in_blocks(self.network, tokens, ROWS, dim=1)
        outputs = tokens + outputs
        return (outputs if self.norm is None else self.norm(outputs)).transpose(0, 1), penalty, active


class RankMixerBlock(GradientCheckpointingLayer):
    """Mixing, then the per-token networks."""

    def __init__(self, config: RankMixerConfig):
        super().__init__()
        self.mixing = RankMixerTokenMixing(config)
        self.ffn = RankMixerPerTokenNetwork(config)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        return self.ffn(self.mixing(tokens))


class RankMixerPreTrainedModel(TabularPreTrainedModel):
    """Loading, saving and initialisation of the RankMixer models."""

    config_class = RankMixerConfig
    config: RankMixerConfig
    _no_split_modules = ["RankMixerBlock"]  # noqa: RUF012 (transformers' own convention)


class RankMixerModel(TokenModelMixin, RankMixerPreTrainedModel):
    """Field embeddings to tokens, through the blocks; the representation is the tokens (B, T, D).

    The routers' penalty joins the loss with the embeddings' penalty, in training mode.
    """

    block_class = RankMixerBlock

    def __init__(self, config: RankMixerConfig):
        super().__init__(config)
        self.router_penalty = RouterPenalty(config) if config.num_experts > 1 else None
        self.post_init()

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        tokens = self.tokenizer(fields.flatten(1))
        trace.add(tokens)
        penalties, shares = [], []
        for layer in self.layers:
            tokens, penalty, active = layer(tokens)
            penalties.append(penalty)
            shares.append(active)
            trace.add(tokens)
        if self.router_penalty is None:
            return Encoded(tokens)
        trained = None
        if self.training:
            trained = next((weight for weight in self.layers.parameters() if weight.requires_grad), None)
        return Encoded(tokens, penalty=self.router_penalty(penalties, shares, trained))


class RankMixerForCTR(TokenForCTRMixin, RankMixerPreTrainedModel):
    """RankMixer with one of its three heads."""

    base_class = RankMixerModel
