"""From fields to the tokens of FAT (Sec. 3.1): lookups, numeric and sequence encoders, projection to one width.

Shapes: B batch, F fields, N tokens, d hidden size, s embedding size of a field, Nn numeric fields, S sequences, T their length.
"""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init

from lmctr.models.common.embeddings import DerivedBuffers, FieldProjection, linear_numerics
from lmctr.models.common.layers import at_least_float32

from .configuration_fat import FATConfig


class MonotonicEncoding(nn.Module):
    """A monotonic network per numeric field (`numeric_encoding="monotonic_mlp"`), all fields in one product.

    x -> tanh(x a + b) A * c + e with a, A > 0 (softplus of free weights): every coordinate only rises or only falls with x,
    by the sign of c, which is learned. The tanh bounds what an outlier can do.
    """

    def __init__(self, config: FATConfig, dim: int, fields: Sequence[int]):
        super().__init__()
        count, units = len(fields), config.monotonic_units
        self.slope = nn.Parameter(torch.empty(count, units))
        self.shift = nn.Parameter(torch.empty(count, units))
        self.mixing = nn.Parameter(torch.empty(count, units, dim))
        self.direction = nn.Parameter(torch.empty(count, dim))
        self.bias = nn.Parameter(torch.empty(count, dim))

    def init_parameters(self, config: FATConfig) -> None:
        init.normal_(self.slope, std=1.0)
        init.normal_(self.shift, std=1.0)
        init.normal_(self.mixing, mean=-2.0, std=0.5)  # softplus(-2) = 0.13: the mean over 16 units is of size 1
        init.normal_(self.direction, std=config.initializer_range)
        init.normal_(self.bias, std=config.initializer_range)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(B, Nn) values to (B, Nn, s)."""
        slope = at_least_float32(self.slope)  # raw numbers are too large or too long for half precision
        values = values.to(slope.dtype).unsqueeze(-1)
        hidden = torch.tanh(values * F.softplus(slope) + self.shift).to(self.slope.dtype)
        return torch.einsum("bnu,nus->bns", hidden, F.softplus(self.mixing)) * self.direction + self.bias


class SequenceAttention(nn.Module):
    """A sequence as one vector by an attention unit in the style of DIN (arXiv 1706.06978), a unit per sequence.

    Each entry k is weighed against a query q by a two-layer ReLU network on k, q and k * q (with k - q, which these span),
    and the weighted entries are summed; as in DIN the weights are not normalised, so that a long interest counts more. q
    is the row's own value of the field that shares the sequence's vocabulary plus a learned vector; for a vocabulary of
    its own, the learned vector alone. A sequence without entries gives zeros.
    """

    uses_target = True

    def __init__(self, config: FATConfig, dim: int, sequences: Sequence[int]):
        super().__init__()
        count, hidden = len(sequences), config.sequence_attention_size
        self.query = nn.Parameter(torch.empty(count, dim))
        self.weight_entry = nn.Parameter(torch.empty(count, dim, hidden))
        self.weight_query = nn.Parameter(torch.empty(count, dim, hidden))
        self.weight_product = nn.Parameter(torch.empty(count, dim, hidden))
        self.bias = nn.Parameter(torch.empty(count, hidden))
        self.weight_out = nn.Parameter(torch.empty(count, hidden))
        self.bias_out = nn.Parameter(torch.empty(count))

    def init_parameters(self, config: FATConfig) -> None:
        init.normal_(self.query, std=config.initializer_range)
        dim, hidden = self.weight_entry.shape[1:]
        for weight in (self.weight_entry, self.weight_query, self.weight_product):
            init.normal_(weight, std=(2.0 / (3 * dim + hidden)) ** 0.5)
        init.zeros_(self.bias)
        init.normal_(self.weight_out, std=hidden**-0.5)
        init.constant_(self.bias_out, 0.1)  # at first about a tenth of the plain sum, not nothing

    def forward(
        self,
        vectors: torch.Tensor,
        mask: torch.Tensor,
        times: torch.Tensor | None = None,
        targets: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, S, T, s) entries, (B, S, T) bool mask and (B, S, s) targets to (B, S, s). `times` are not used."""
        query = targets + self.query
        entries = vectors.transpose(0, 1)  # (S, B, T, s)
        count, batch, length, dim = entries.shape
        query = query.transpose(0, 1)
        flat = entries.reshape(count, batch * length, dim)
        product = (entries * query.unsqueeze(2)).reshape(count, batch * length, dim)
        hidden = torch.bmm(flat, self.weight_entry) + torch.bmm(product, self.weight_product)
        of_query = torch.bmm(query, self.weight_query) + self.bias.unsqueeze(1)
        hidden = (hidden.view(count, batch, length, -1) + of_query.unsqueeze(2)).relu()
        weights = hidden @ self.weight_out[:, None, :, None] + self.bias_out[:, None, None, None]  # (S, B, T, 1)
        weights = weights * mask.transpose(0, 1).unsqueeze(-1)
        return (weights * entries).sum(2).transpose(0, 1)


def numeric_encoder(config: FATConfig, dim: int, fields: Sequence[int]) -> nn.Module:
    """The encoder of raw numbers by `config.numeric_encoding`; binned numbers are categorical fields."""
    if config.numeric_encoding == "monotonic_mlp":
        return MonotonicEncoding(config, dim, fields)
    return linear_numerics(config, dim, fields)


class FieldTokens(DerivedBuffers):
    """e_i of Eq. 1: the vectors of the fields to tokens (B, N, d).

    A field's vector becomes `tokens_per_field` tokens, each by a matrix of its own, without a bias (b_f is the bias). Where
    every field has one token and a vector of width d, the vector is the token.
    """

    def __init__(self, config: FATConfig):
        super().__init__()
        counts = config.token_counts
        self.dims = config.field_dims
        self.is_uniform = len(set(self.dims)) == 1
        self.has_several = any(count > 1 for count in counts)
        self.owners = [field for field, count in enumerate(counts) for _ in range(count)]
        self.projection = None
        if self.has_several or any(dim != config.hidden_size for dim in self.dims):
            tokens = SimpleNamespace(field_dims=[self.dims[field] for field in self.owners])
            self.projection = FieldProjection(tokens, config.hidden_size, use_bias=False)
        self.register_derived()

    def derived(self) -> dict[str, torch.Tensor]:
        buffers = {"field_ids": torch.tensor(self.owners)}
        if self.has_several and not self.is_uniform:
            # Vectors of several widths lie side by side: the columns of each token's field, token after token.
            starts = [0]
            for dim in self.dims:
                starts.append(starts[-1] + dim)
            columns = [column for field in self.owners for column in range(starts[field], starts[field + 1])]
            buffers["columns"] = torch.tensor(columns)
        return buffers

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """What [`FieldEmbedding`] returned to tokens (B, N, d)."""
        if self.has_several:
            fields = fields[:, self.field_ids] if self.is_uniform else fields.index_select(1, self.columns)
        return fields if self.projection is None else self.projection(fields)
