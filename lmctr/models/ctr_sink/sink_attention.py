"""The [SINK] embedding (Eq. 4) and the sink bias of attention (Eq. 9-11) of CTR-Sink (https://arxiv.org/abs/2508.03668).

Shapes: B batch, N tokens, M sinks (most in the batch), P cached positions, H hidden size, A heads, S signals per sink.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from lmctr.models.common.layers import at_least_float32
from lmctr.models.common.products import weight_and_bias

from .configuration_ctr_sink import CTRSinkConfig


class SinkContext(NamedTuple):
    """Where the sinks of a batch are. Travels to the attention layers as a keyword of the call, never as state.

    index (B, M) int64: positions of each row's sinks in text order, 0 where the row has fewer;
    valid (B, M) bool: which entries are sinks;
    cache: the sinks of the positions before these, where a row is encoded in parts;
    group (B, M) int64: the text that each sink stands in, where a row holds several; sinks see those of their own text.
    """

    index: torch.Tensor
    valid: torch.Tensor
    cache: "SinkCache | None" = None
    group: torch.Tensor | None = None


class SinkCache:
    """The sinks of a row that is encoded in parts: what the sink bias (Eq. 10) of later positions needs of earlier ones.

    Keys K_S of the sinks among the first P positions of one row, for each enhanced layer. Needs no gradient.

    Args:
        keys: by place among the enhanced layers, (1, A, M, d); empty for a row whose encoding begins.
        index: (1, M) int64 positions of these sinks in the row, ascending.
        length: P, positions encoded so far.
    """

    def __init__(
        self, keys: dict[int, torch.Tensor] | None = None, index: torch.Tensor | None = None, length: int = 0
    ):
        self.keys = dict(keys or {})
        self.index = index
        self.length = length

    def append(self, slot: int, key: torch.Tensor, sinks: SinkContext) -> tuple[torch.Tensor, SinkContext]:
        """Keys (1, A, M, d) of a layer's new sinks behind its cached ones.

        Returns:
            The keys of all sinks, and their positions in the row.

        Raises:
            ValueError: more than one row.
        """
        if key.shape[0] != 1:
            raise ValueError(f"sink_cache: {key.shape[0]} rows, but it keeps the sinks of one row; encode row by row")
        index = sinks.index + self.length
        valid = sinks.valid
        if slot in self.keys:
            key = torch.cat([self.keys[slot], key], dim=2)
            index = torch.cat([self.index, index], dim=1)
            valid = torch.cat([torch.ones_like(self.index, dtype=torch.bool), valid], dim=1)
        self.keys[slot] = key[:, :, valid[0]]
        return key, sinks._replace(index=index, valid=valid)


def locate_sinks(is_sink: torch.Tensor, num_sinks: int) -> SinkContext:
    """`SinkContext` of a (B, N) bool mask whose rows hold at most `num_sinks` sinks."""
    places = torch.arange(is_sink.shape[1], device=is_sink.device)
    rank = is_sink.long() * 2**40 - places  # sinks first, both kinds in text order
    order = rank.topk(num_sinks, dim=1).indices
    valid = is_sink.gather(1, order)
    return SinkContext(order * valid, valid)


class SinkTable(nn.Embedding):
    """One signal's embedding table; a class of its own because it is initialised differently from words."""


class SinkProjection(nn.Linear):
    """The linear layer of Eq. 4; a class of its own because it is initialised differently."""

    def __init__(self, in_features: int, out_features: int, num_signals: int):
        super().__init__(in_features, out_features)
        self.num_signals = num_signals
        self.embed_scale = 1.0  # what the backbone's own word embeddings are multiplied by (Gemma)


class SinkEmbedding(nn.Module):
    """Eq. 4: the input embedding of a sink, Linear(sum over signals of Emb_s[bucket_s]).

    The linear layer is applied to the tables (num_sink_buckets rows), not to the tokens: the same sum, at a cost that
    does not grow with the batch.
    """

    def __init__(self, config: CTRSinkConfig):
        super().__init__()
        self.tables = nn.ModuleList(
            [SinkTable(config.num_sink_buckets, config.sink_embedding_dim) for _ in config.signals]
        )
        self.projection = SinkProjection(config.sink_embedding_dim, config.word_embedding_size, len(config.signals))

    def forward(self, buckets: torch.Tensor) -> torch.Tensor:
        """(B, N, S) buckets, all in range, to (B, N, H)."""
        rows = torch.arange(len(self.tables[0].weight), device=buckets.device)
        tables = [table(rows) for table in self.tables]
        weight, embeddings = weight_and_bias(self.projection, tables[0])
        for signal, table in enumerate(tables):
            embeddings = embeddings + F.embedding(buckets[..., signal], F.linear(table, weight))
        return embeddings


class SinkBiasLayer(nn.Module):
    """Eq. 10 for one layer: B = mean over heads of softmax(Q_S K_S^T / sqrt(d_h)), times the layer's scale s."""

    def __init__(self, config: CTRSinkConfig, is_causal: bool):
        super().__init__()
        hidden_size = config.text_config.hidden_size
        self.num_heads = config.text_config.num_attention_heads
        self.is_causal = is_causal and config.sink_bias_causal
        self.scale_init = config.resolved_sink_bias_scale_init
        # By default as wide as the backbone's own heads: a bias on their scores, from queries and keys like theirs. The authors'
        # hidden_size // num_heads is half of that in Qwen3-0.6B; it is there for their weights.
        own = getattr(config.text_config, "head_dim", None) or hidden_size // self.num_heads
        head_dim = config.sink_bias_head_dim or own
        self.scaling = head_dim**-0.5
        self.norm = nn.LayerNorm(hidden_size)
        self.query = nn.Linear(hidden_size, self.num_heads * head_dim)
        self.key = nn.Linear(hidden_size, self.num_heads * head_dim)
        self.scale = nn.Parameter(torch.full((1,), self.scale_init))  # FSDP2 shards no () parameters
        # On B, the mean over heads, as the paper's text has it. The authors drop in each head before the mean, at the rate of the
        # backbone's attention (0 in Qwen), which averages most of the noise away; here a whole entry of B is missing.
        self.dropout = nn.Dropout(config.sink_bias_dropout)

    def forward(
        self, hidden_states: torch.Tensor, sinks: SinkContext, slot: int = 0, scattered: bool = True
    ) -> torch.Tensor:
        """Hidden states (B, N, H) that enter the attention; returns s * scatter(B), (B, N, N), or s * B, (B, M, M), where it is not `scattered`.

        With a cache of P earlier positions the columns begin with theirs: (1, N, P + N). `slot` is the layer's place there.
        """
        batch, length, hidden_size = hidden_states.shape
        num_sinks = sinks.index.shape[1]
        states = hidden_states.gather(1, sinks.index[..., None].expand(-1, -1, hidden_size))
        states = self.norm(states)
        split = (batch, num_sinks, self.num_heads, -1)
        query = self.query(states).view(split).transpose(1, 2)
        key = self.key(states).view(split).transpose(1, 2)
        seen = sinks  # the sinks that stand in the columns
        if sinks.cache is not None:
            key, seen = sinks.cache.append(slot, key, sinks)
        num_seen = seen.index.shape[1]
        scores = (query @ key.transpose(-1, -2)) * self.scaling
        # Padded sinks leave before the softmax, so that a row's bias does not depend on its batch.
        visible = seen.valid[:, None, None, :]
        if self.is_causal:
            causal = torch.ones(num_sinks, num_seen, dtype=torch.bool, device=scores.device)
            visible = visible & causal.tril(num_seen - num_sinks)
        if sinks.group is not None:
            visible = visible & (sinks.group[:, None, :, None] == sinks.group[:, None, None, :])
        scores = at_least_float32(scores)
        scores = torch.where(visible, scores, torch.finfo(scores.dtype).min)
        bias = scores.softmax(-1).mean(1).to(hidden_states.dtype)
        bias = self.dropout(bias) * self.scale.to(hidden_states.dtype)
        bias = bias * (sinks.valid[:, :, None] & seen.valid[:, None, :])
        return scatter_sinks(bias, sinks, seen, length) if scattered else bias


def scatter_sinks(bias: torch.Tensor, sinks: SinkContext, seen: SinkContext, length: int) -> torch.Tensor:
    """(B, M, S) values of sinks towards the sinks they see to a (B, N, P + N) matrix of zeros at their rows and columns.

    P is the number of cached positions. Entries of padded sinks are 0, and add nothing to the cells that they fall on.
    """
    width = length + (sinks.cache.length if sinks.cache is not None else 0)
    stride = torch.full((1,), width, device=bias.device)  # as a tensor, for ONNX
    cells = sinks.index[:, :, None] * stride + seen.index[:, None, :]
    full = bias.new_zeros(bias.shape[0], length * width).scatter_add(1, cells.flatten(1), bias.flatten(1))
    return full.view(-1, length, width)


class SinkBias(nn.Module):
    """The sink-bias layers of a model, in one module with a forward, so that PEFT can train and save it whole."""

    def __init__(self, config: CTRSinkConfig, is_causal: bool):
        super().__init__()
        self.slots = {layer: slot for slot, layer in enumerate(config.resolved_sink_bias_layers)}
        self.layers = nn.ModuleList([SinkBiasLayer(config, is_causal) for _ in self.slots])

    def forward(
        self, hidden_states: torch.Tensor, sinks: SinkContext, layer_idx: int, scattered: bool = True
    ) -> torch.Tensor:
        slot = self.slots[layer_idx]
        return self.layers[slot](hidden_states, sinks, slot, scattered)


def prefix_mask(attention_mask: torch.Tensor, target_mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Float mask (B, 1, N, N) by which what stands before the first target token does not see what comes from there on.

    Args:
        attention_mask: (B, N), 1 for real tokens. target_mask: (B, N) bool, the target's tokens.
    """
    own = target_mask.long().cumsum(1) > 0
    seen = attention_mask.bool()[:, None, :] & (own[:, :, None] | ~own[:, None, :])
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill(~seen, torch.finfo(dtype).min)[:, None]


def add_bias_to_mask(bias: torch.Tensor, mask: torch.Tensor | None, is_causal: bool) -> torch.Tensor:
    """Eq. 11: the (B, N, N) bias on top of an attention mask, as a float mask (B, 1, N, N) shared by all heads.

    Args:
        bias: (B, N, N) float.
        mask: None (no padding; causal models then rely on a flag that an explicit mask switches off, so the causal part
            is added here), bool (True = may look), or additive float, broadcastable to (B, 1, N, N).
        is_causal: whether the backbone is causal.
    """
    bias = bias[:, None]
    lowest = torch.finfo(bias.dtype).min
    if mask is None:
        if not is_causal:
            return bias.contiguous()
        length = bias.shape[-1]
        mask = torch.ones(length, length, dtype=torch.bool, device=bias.device).tril()
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, lowest)
    return mask.to(bias.dtype) + bias
