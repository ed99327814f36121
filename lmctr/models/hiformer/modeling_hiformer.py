"""HiFormer: attention with projections of each field's own and over all fields.

Paper: https://arxiv.org/abs/2311.05884.

Shapes: B batch, T tokens (the task token, then one per field), Q tokens that ask (T; 1 in the last layer), d token width,
H heads of width d_h, r rank.

Decided where the paper leaves it open: layer norms after the residuals, as in the Transformer that it starts from; the
heads' outputs go through a matrix of the token's own.
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.embeddings import FieldEmbedding, project_fields
from lmctr.models.common.layers import MLP, attend, in_blocks
from lmctr.models.common.tabular import (
    Encoded,
    TabularForCTRMixin,
    TabularInputs,
    TabularModelMixin,
    TabularPreTrainedModel,
    Trace,
)
from lmctr.models.common.tokens import TokenwiseLinear

from .configuration_hiformer import HiFormerConfig

__all__ = ["HiFormerForCTR", "HiFormerModel", "HiFormerPreTrainedModel"]


ROWS = 512  # held at a time on the CPU


class TokenLinear(TokenwiseLinear):
    """A linear map of each token's own, x_i W_i + b_i, for all tokens in one batched product."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, in) to (B, T, out)."""
        product = torch.bmm(states.transpose(0, 1), self.weight)
        return (product + self.bias.to(product.dtype)).transpose(0, 1)


class OwnProjection(nn.Module):
    """Heterogeneous attention: each token's keys (or values) by a matrix of its own."""

    def __init__(self, num_tokens: int, size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.linear = TokenLinear(num_tokens, size, size)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, d) to (B, H, T, d_h)."""
        return self.linear(states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class CompositeProjection(nn.Module):
    """HiFormer's composite projection: all tokens' keys (or values) of a head from all tokens together, [k_1 ... k_T] = [e_1 ... e_T] K.

    K is (T d, T d_h), or the product of (T d, r) and (r, T d_h).
    """

    def __init__(self, num_tokens: int, size: int, num_heads: int, rank: int | None):
        super().__init__()
        self.num_tokens, self.num_heads = num_tokens, num_heads
        width, out = num_tokens * size, num_tokens * (size // num_heads)
        self.down = nn.Linear(width, num_heads * (out if rank is None else rank), bias=False)
        self.up = None if rank is None else nn.Parameter(torch.empty(num_heads, rank, out))

    def init_parameters(self, config: HiFormerConfig) -> None:
        # Variances are kept: Xavier of a head's own matrices would shrink what all tokens add up to.
        init.normal_(self.down.weight, std=self.down.in_features**-0.5)
        if self.up is not None:
            init.normal_(self.up, std=self.up.shape[1] ** -0.5)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(B, T, d) to (B, H, T, d_h)."""
        heads = self.down(states.flatten(1)).unflatten(1, (self.num_heads, -1))
        if self.up is not None:
            heads = torch.bmm(heads.transpose(0, 1), self.up).transpose(0, 1)
        return heads.unflatten(-1, (self.num_tokens, -1))


class HiFormerLayer(GradientCheckpointingLayer):
    """Attention and feed-forward networks, all with parameters of each token's own, each with a residual and a norm.

    The last layer computes the task token only, which is all that the model reads (the paper's pruning; exact here).
    """

    def __init__(self, config: HiFormerConfig, num_tokens: int, is_last: bool):
        super().__init__()
        size, heads = config.hidden_size, config.num_attention_heads
        self.num_heads, self.num_queries = heads, 1 if is_last else num_tokens
        self.scale, self.attention_dropout = (size // heads) ** -0.5, config.attention_dropout
        self.query = TokenLinear(self.num_queries, size, size)
        if config.projection == "composite":
            self.key = CompositeProjection(num_tokens, size, heads, config.key_rank)
            self.value = CompositeProjection(num_tokens, size, heads, config.value_rank)
        else:
            self.key = OwnProjection(num_tokens, size, heads)
            self.value = OwnProjection(num_tokens, size, heads)
        self.out = TokenLinear(self.num_queries, size, size)
        self.attention_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.up = TokenLinear(self.num_queries, size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.down = TokenLinear(self.num_queries, config.intermediate_size, size)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, states: torch.Tensor, output_attentions: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, T, d) to (B, Q, d), and the attention maps (B, H, Q, T) when asked for."""
        if output_attentions:
            return self.mix(states, True)
        return in_blocks(lambda block: self.mix(block)[0], states, ROWS), None

    def mix(self, states: torch.Tensor, output_attentions: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`forward` of one block of rows."""
        asking = states[:, : self.num_queries]
        query = self.query(asking).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        dropout = self.attention_dropout if self.training else 0.0
        mixed, maps = attend(query, self.key(states), self.value(states), self.scale, dropout, output_attentions)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        states = self.attention_norm(asking + self.dropout(mixed))
        inner = self.dropout(self.activation(self.up(states)))
        return self.norm(states + self.dropout(self.down(inner))), maps


class TaskToken(nn.Module):
    """A learned token before the fields' (the paper's task embedding)."""

    def __init__(self, size: int):
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(1, 1, size))

    def init_parameters(self, config: HiFormerConfig) -> None:
        init.normal_(self.embedding, std=config.initializer_range)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """(B, F, d) to (B, T, d)."""
        token = self.embedding.to(fields.dtype).expand(fields.shape[0], -1, -1)
        return torch.cat([token, fields], 1)


class HiFormerPreTrainedModel(TabularPreTrainedModel):
    """Base class of the HiFormer models."""

    config_class = HiFormerConfig


class HiFormerModel(TabularModelMixin, HiFormerPreTrainedModel):
    """HiFormer layers; the representation is the task token, (B, d), after the MLP if there is one.

    `hidden_states`: the fields' vectors, each layer's tokens (B, T, d), the last one's task token (B, 1, d), each layer of
    the MLP. `attentions`: (B, H, T, T) per layer, (B, H, 1, T) for the last.
    """

    def __init__(self, config: HiFormerConfig):
        super().__init__(config)
        self.embedding = FieldEmbedding(config)
        self.projection = project_fields(config, config.hidden_size)
        self.task = TaskToken(config.hidden_size)
        last = config.num_hidden_layers - 1
        self.layers = nn.ModuleList(
            [HiFormerLayer(config, config.num_fields + 1, index == last) for index in range(config.num_hidden_layers)]
        )
        self.mlp = MLP(config.hidden_size, config.hidden_units, "relu", config.dropout)
        self.out_size = self.mlp.out_size
        self.post_init()

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        states = self.task(self.projection(fields))
        for layer in self.layers:
            states, maps = layer(states, trace.attentions is not None)
            trace.add(states, maps)
        return Encoded(self.mlp(states[:, 0], trace.hidden_states))

    def diagnostic_points(self) -> dict[str, nn.Module]:
        """The fields' vectors, the tokens, each layer (its first output) but the last, which has one token."""
        points = {"embedding": self.embedding, "tokens": self.task}
        return points | {f"layer.{i}": layer for i, layer in enumerate(self.layers[:-1])}


class HiFormerForCTR(TabularForCTRMixin, HiFormerPreTrainedModel):
    """HiFormer with its head on the task token."""

    base_class = HiFormerModel
