"""Layers of models that mix T tokens of size D: tokenizers, per-token products, block transpose, heads.

RankMixer and RankElastor use the same layers. They are shared at their second user, earlier than is the rule: two equal copies of
two hundred lines would only drift apart.

Shapes: B batch, P width of the field embeddings side by side, T tokens, D token size.
"""

from typing import ClassVar

import torch
from torch import nn
from transformers import initialization as init

from .configuration import TabularCTRConfig
from .embeddings import FieldEmbedding
from .layers import in_blocks
from .products import Linear
from .tabular import Encoded, TabularForCTRMixin, TabularInputs, TabularModelMixin, Trace

ROWS = 256  # held at a time on the CPU


def block_transpose(tokens: torch.Tensor) -> torch.Tensor:
    """T(X) of (B, T, D): the D columns as T blocks, (T(X))_ij = X_ji. Its own inverse; T must divide D."""
    batch, num_tokens, size = tokens.shape
    return tokens.view(batch, num_tokens, num_tokens, size // num_tokens).transpose(1, 2).reshape(tokens.shape)


class TokenwiseLinear(nn.Module):
    """A linear layer of its own for each token, all in one batched product: (T, B, in) to (T, B, out).

    The output may be `num_parts` matrices' side by side; new weights are then those of the parts.
    """

    def __init__(self, num_tokens: int, in_features: int, out_features: int, num_parts: int = 1):
        super().__init__()
        self.num_parts = num_parts
        self.weight = nn.Parameter(torch.empty(num_tokens, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(num_tokens, 1, out_features))

    def init_parameters(self, config: TabularCTRConfig) -> None:
        fan_in, fan_out = self.weight.shape[1], self.weight.shape[2] // self.num_parts
        init.normal_(self.weight, std=(2.0 / (fan_in + fan_out)) ** 0.5)  # Xavier for each token's own matrix
        init.zeros_(self.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, tokens, self.weight)


class TokenwiseRMSNorm(nn.Module):
    """RMS normalisation over the last axis of (T, B, size) with a gain per token."""

    def __init__(self, num_tokens: int, size: int, eps: float = 1e-12):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(num_tokens, 1, size))

    def init_parameters(self, config: TabularCTRConfig) -> None:
        init.ones_(self.weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(tokens, tokens.shape[-1:], eps=self.eps) * self.weight


class Tokenizer(nn.Module):
    """Field embeddings side by side (B, P) to tokens (B, T, D), by `config.tokenizer`.

    `chunk`: cut into T equal pieces, one projection for all. `groups`: the fields of a group are a token's input, each
    group has its own projection. `dense`: one network over everything. `none`: cut into T pieces of D. A projection is
    linear, or has a hidden ReLU layer of `config.tokenizer_hidden_size`; `dense` always has one. With
    `variant="reference"` an RMS norm comes before the flat vector is cut and, with `ffn_norm`, one after the hidden layer (authors' code).
    """

    def __init__(self, config: TabularCTRConfig):
        super().__init__()
        self.kind = config.tokenizer
        self.num_tokens, self.size = config.num_tokens, config.token_dim
        width = sum(config.field_dims)
        is_reference = config.variant == "reference"
        has_norm = is_reference and config.ffn_norm
        self.norm = nn.RMSNorm(width, eps=1e-12) if is_reference else None
        hidden = config.tokenizer_hidden_size
        tokens, size = self.num_tokens, self.size
        if self.kind == "groups":
            columns = padded_columns(config)
            longest = columns.shape[1]
            self.register_buffer("columns", columns, persistent=False)
            if hidden is None:
                self.first, self.last = None, TokenwiseLinear(tokens, longest, size)
            else:
                self.first, self.last = TokenwiseLinear(tokens, longest, hidden), TokenwiseLinear(tokens, hidden, size)
            self.hidden_norm = TokenwiseRMSNorm(tokens, hidden) if has_norm and hidden else None
        elif self.kind != "none":
            inputs, outputs = (width, tokens * size) if self.kind == "dense" else (width // tokens, size)
            if self.kind == "dense" and hidden is None:
                hidden = outputs
            self.first = Linear(inputs, hidden) if hidden else None
            self.last = Linear(hidden or inputs, outputs)
            self.hidden_norm = nn.RMSNorm(hidden, eps=1e-12) if has_norm and hidden else None
        self.dropout = nn.Dropout(config.tokenizer_dropout)

    def init_parameters(self, config: TabularCTRConfig) -> None:
        if self.kind == "groups":  # buffers that no checkpoint holds come from the meta device without values
            init.copy_(self.columns, padded_columns(config))

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        if self.norm is not None:
            embeddings = self.norm(embeddings)
        if self.kind == "none":
            return embeddings.unflatten(-1, (self.num_tokens, self.size))
        if self.kind == "chunk":
            return self._project(embeddings.unflatten(-1, (self.num_tokens, -1)))
        if self.kind == "dense":
            return self._project(embeddings).unflatten(-1, (self.num_tokens, self.size))
        padded = nn.functional.pad(embeddings, (0, 1))
        return self._project(padded[:, self.columns].transpose(0, 1)).transpose(0, 1)

    def _project(self, inputs: torch.Tensor) -> torch.Tensor:
        """(B, T, in) to (B, T, D), or with tokens first; `dense` without a token axis."""
        if self.first is None:
            return self.last(inputs)
        return in_blocks(self._hidden, inputs, ROWS, dim=1 if self.kind == "groups" else 0)

    def _hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        states = self.first(inputs)
        if self.hidden_norm is not None:
            states = self.hidden_norm(states)
        return self.last(self.dropout(states.relu()))


class TokenHead(nn.Module):
    """Tokens (B, T, D) to logits (B,), by `config.head`.

    `mean`: a linear layer on the mean token; with `variant="reference"` the mean of all T D numbers, without weights
    (authors' code). `flatten`: a linear layer on all numbers. `mlp`: TD -> 2TD, ReLU, 1.
    """

    def __init__(self, config: TabularCTRConfig):
        super().__init__()
        width = config.num_tokens * config.token_dim
        self.kind = config.head
        if self.kind == "mlp":
            self.hidden = Linear(width, 2 * width)
            self.output = nn.Linear(2 * width, 1)
        elif self.kind == "flatten":
            self.output = nn.Linear(width, 1)
        else:
            self.output = None if config.variant == "reference" else nn.Linear(config.token_dim, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.kind == "mean":
            pooled = tokens.mean(1)
            return (pooled.mean(-1) if self.output is None else self.output(pooled)[:, 0]).float()
        flat = tokens.flatten(1)
        if self.kind == "mlp":
            flat = self.hidden(flat).relu()
        return self.output(flat)[:, 0].float()


def padded_columns(config: TabularCTRConfig) -> torch.Tensor:
    """(T, widest group) int64: the columns of the flat embedding vector that each token reads.

    A narrower group is filled up with the column after the last, which holds zeros.
    """
    ends = [0]
    for size in config.field_dims:
        ends.append(ends[-1] + size)
    place = {name: number for number, name in enumerate(config.field_names)}
    groups = [
        [column for name in group for column in range(ends[place[name]], ends[place[name] + 1])]
        for group in resolved_groups(config)
    ]
    longest = max(map(len, groups))
    return torch.tensor([group + [ends[-1]] * (longest - len(group)) for group in groups])


def resolved_groups(config: TabularCTRConfig) -> list[list[str]]:
    """`config.token_groups`, or, without them, the fields in order, equally many for each token."""
    if config.token_groups is not None:
        return config.token_groups
    count = config.num_fields // config.num_tokens
    return [config.field_names[at : at + count] for at in range(0, config.num_fields, count)]


class TokenModelMixin(TabularModelMixin):
    """Field embeddings to tokens, through the blocks; the representation is the tokens (B, T, D).

    Attributes:
        block_class: one block, from tokens to tokens, with the parts `mixing` and `ffn`.
    """

    block_class: ClassVar[type[nn.Module]]

    def __init__(self, config: TabularCTRConfig):
        super().__init__(config)
        self.embedding = FieldEmbedding(config)
        self.tokenizer = Tokenizer(config)
        self.layers = nn.ModuleList([self.block_class(config) for _ in range(config.num_hidden_layers)])
        self.out_size = config.num_tokens * config.token_dim
        self.post_init()

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        tokens = self.tokenizer(fields.flatten(1))
        trace.add(tokens)
        for layer in self.layers:
            tokens = layer(tokens)
            trace.add(tokens)
        return Encoded(tokens)

    def diagnostic_points(self) -> dict[str, nn.Module]:
        """The fields' vectors, the tokens, and each block's mixing and per-token networks (RankElastor's Figs. 2, 6)."""
        points = {"embedding": self.embedding, "tokens": self.tokenizer}
        for number, layer in enumerate(self.layers, 1):
            points |= {f"mixing_{number}": layer.mixing, f"ffn_{number}": layer.ffn}
        return points


class TokenForCTRMixin(TabularForCTRMixin):
    """A token mixer's model with one of the three heads."""

    def new_head(self, config: TabularCTRConfig) -> nn.Module:
        return TokenHead(config)


class TokenMixerConfig(TabularCTRConfig):
    r"""Configuration of the token mixers; the keys of the fields and their embeddings are those of [`TabularCTRConfig`].

    Args:
        num_hidden_layers (`int`, defaults to 2): blocks.
        tokenizer (`str`, defaults to `"chunk"`): `"chunk"`: the field embeddings cut into T pieces, one projection; `"groups"`:
            given groups of fields, a projection each; `"dense"`: one network over everything; `"none"`: cut into T x D.
        token_groups (`list[list[str]]`, *optional*): field names of each token, for `"groups"`; default: equally many, in order.
        tokenizer_hidden_size (`int`, *optional*): hidden ReLU layer of the projection; default none (`"dense"`: T D).
        tokenizer_dropout (`float`, defaults to 0): dropout after that layer.
        ffn_dropout (`float`, defaults to 0): dropout in the per-token networks.
        layer_norm_eps (`float`, defaults to 1e-5): epsilon of the layer norms.
    """

    num_tokens: int = 16
    token_dim: int = 32
    num_hidden_layers: int = 2
    variant: str = "paper"
    tokenizer: str = "chunk"
    token_groups: list[list[str]] | None = None
    tokenizer_hidden_size: int | None = None
    tokenizer_dropout: float = 0.0
    ffn_hidden_sizes: list[int] | None = None
    ffn_dropout: float = 0.0
    layer_norm_eps: float = 1e-5

    def validate_values(self) -> None:
        super().validate_values()
        self._validate_tokens()
        self._require_above_zero("ffn_ratio")
        self._require_share("ffn_dropout")
        is_paper = self.variant == "paper"
        accepted = "None: only variant='reference' stacks layers"
        self._require(not is_paper or self.ffn_hidden_sizes is None, "ffn_hidden_sizes", accepted)

    def _validate_tokens(self) -> None:
        name = type(self).__name__
        tokens, size, width = self.num_tokens, self.token_dim, sum(self.field_dims)
        self._require_whole("num_tokens", "token_dim", "num_hidden_layers")
        self._require_choice("tokenizer", ("chunk", "groups", "dense", "none"))
        self._require_choice("head", ("mean", "flatten", "mlp"))
        self._require_choice("variant", ("paper", "reference"))
        hidden = self.tokenizer_hidden_size
        self._require(hidden is None or hidden >= 1, "tokenizer_hidden_size", "a whole number of at least 1, or None")
        self._require_share("tokenizer_dropout")
        if self.tokenizer == "chunk" and width % tokens:
            near = [t for t in range(1, width + 1) if width % t == 0]
            raise ValueError(
                f"{name}: tokenizer='chunk' cuts the {width} numbers of the field embeddings ({self.num_fields} fields) into "
                f"num_tokens={tokens} equal pieces, and {tokens} does not divide {width}; use a num_tokens among "
                f"{near}, another embedding_dim, or another tokenizer"
            )
        if self.tokenizer == "none" and width != tokens * size:
            raise ValueError(
                f"{name}: tokenizer='none' needs num_tokens * token_dim = {tokens} * {size} = {tokens * size} to equal the "
                f"{width} numbers of the field embeddings ({self.num_fields} fields); change one of them, or the tokenizer"
            )
        if self.token_groups is not None and self.tokenizer != "groups":
            raise ValueError(f"{name}: token_groups are read by tokenizer='groups' only, not by {self.tokenizer!r}")
        if self.tokenizer != "groups":
            return
        if self.token_groups is None:
            if self.num_fields % tokens:
                raise ValueError(
                    f"{name}: num_tokens={tokens} does not divide the {self.num_fields} fields into equal groups; give "
                    "token_groups, a list of field names for each token"
                )
            return
        listed = [field for group in self.token_groups for field in group]
        wrong = sorted(set(listed) ^ set(self.field_names)) or sorted({f for f in listed if listed.count(f) > 1})
        if len(self.token_groups) != tokens or wrong or not all(self.token_groups):
            raise ValueError(
                f"{name}: token_groups must be num_tokens={tokens} lists that hold each of the {self.num_fields} fields "
                f"once; there are {len(self.token_groups)} lists"
                + (f", and these fields are missing, unknown or repeated: {', '.join(wrong)}" if wrong else "")
            )
