"""Layers that three or more model families share."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .products import Linear


class NormalWeight(nn.Module):
    """A weight of a shape of its own; new ones are drawn from N(mean, std).

    It is a module because transformers asks modules, not parameters, how new weights are made.
    """

    def __init__(self, *shape: int, std: float, mean: float = 0.0):
        super().__init__()
        self.mean, self.std = mean, std
        self.weight = nn.Parameter(torch.empty(shape))

    def init_parameters(self, config: PreTrainedConfig) -> None:
        init.normal_(self.weight, mean=self.mean, std=self.std)

    def forward(self) -> torch.Tensor:
        """The weight: what brings weights from elsewhere does so for calls."""
        return self.weight


class RowNorm(nn.BatchNorm1d):
    """Batch normalisation over rows.

    A training batch with fewer than two rows has no variance: it is normalised by the running statistics, and moves none. Under gradient
    accumulation they move with each of the step's batches, by which its rows are normalised. In data-parallel training the statistics are
    those of each process's rows, unless the model is converted with `nn.SyncBatchNorm.convert_sync_batchnorm`.
    """

    def check_variances(self) -> None:
        """Raises `ValueError` where float16 made variances infinite, by which what is normalised would be 0; on accelerators an assertion."""
        if self.running_var.dtype != torch.float16 or torch.compiler.is_exporting():
            return
        words = "batch normalisation: a variance is too large for float16, which ends at 65,504; compute in bfloat16 or float32"
        good = self.running_var.isfinite().all()
        if not good.is_cpu or torch.compiler.is_compiling():
            torch._assert_async(good, words)
        elif not good:
            raise ValueError(words)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(R, size) to the same; R = 0 is fine. Raises `ValueError` as `check_variances`."""
        self.check_variances()
        if self.training and states.shape[0] < 2:
            mean, var = self.running_mean, self.running_var
            return nn.functional.batch_norm(states, mean, var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(states)


class DenseLayer(GradientCheckpointingLayer):
    """Linear, batch normalisation when asked for, activation, dropout."""

    def __init__(self, in_size: int, out_size: int, activation: str, dropout: float, use_batch_norm: bool):
        super().__init__()
        self.linear = Linear(in_size, out_size)
        self.norm = RowNorm(out_size) if use_batch_norm else None
        self.activation = ACT2FN[activation]
        self.dropout = nn.Dropout(dropout) if dropout else None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(B, in_size) to (B, out_size)."""
        states = self.linear(states)
        if self.norm is not None:
            states = self.norm(states)
        states = self.activation(states)
        return states if self.dropout is None else self.dropout(states)


class MLP(nn.Module):
    """Dense layers one after the other.

    Args:
        in_size: width of the input.
        hidden_units: width of each layer; the last one is the width of the output, `out_size`.
        activation: a name that transformers knows, see `transformers.activations.ACT2FN`.
        dropout: after each activation.
        use_batch_norm: before each activation.
    """

    def __init__(
        self,
        in_size: int,
        hidden_units: list[int],
        activation: str,
        dropout: float = 0.0,
        use_batch_norm: bool = False,
    ):
        super().__init__()
        sizes = [in_size, *hidden_units]
        self.layers = nn.ModuleList(
            [DenseLayer(*pair, activation, dropout, use_batch_norm) for pair in pairwise(sizes)]
        )
        self.out_size = sizes[-1]

    def forward(self, states: torch.Tensor, hidden_states: list[torch.Tensor] | None = None) -> torch.Tensor:
        """(B, in_size) to (B, out_size). The output of every layer is appended to `hidden_states` where given."""
        for layer in self.layers:
            states = layer(states)
            if hidden_states is not None:
                hidden_states.append(states)
        return states


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """Half precision as float32; wider numbers as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def in_blocks(
    function: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor, rows: int, dim: int = 0
) -> torch.Tensor:
    """`function(states)` for a function that treats every row (of dimension `dim`) alone, on the CPU `rows` rows at a time.

    Several tensors per field and row, of thousands of rows, are written to memory and read back by each operation of a
    layer; those of a block stay in the cache. The result is the same.
    """
    if not states.is_cpu or torch.compiler.is_compiling() or states.shape[dim] <= rows:
        return function(states)
    return torch.cat([function(block) for block in states.split(rows, dim)], dim)


def split_heads(states: torch.Tensor, num_heads: int) -> torch.Tensor:
    """(..., N, d) to (..., h, N, d / h)."""
    return states.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    dropout: float = 0.0,
    output_attentions: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Softmax attention between few tokens.

    Args:
        query: (B, H, N, d).
        key, value: (B, H, M, d).
        scale: factor of the scores.
        dropout: on the attention weights; the caller passes 0 outside training.
        output_attentions: return the weights.

    Returns:
        (B, H, N, d), and the weights (B, H, N, M) or None.
    """
    # With few tokens the fused kernel's backward is slower than the plain form on CPUs, in 16 bits by far.
    if output_attentions or query.is_cpu:
        query = query if scale == 1 else query * scale  # fewer numbers than the scores have, forward and backward
        weights = (query @ key.transpose(-1, -2)).softmax(-1).to(value.dtype)
        mixed = nn.functional.dropout(weights, dropout) @ value
        return mixed, weights if output_attentions else None
    return nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scale), None
