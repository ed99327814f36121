"""The sink bias in training without attention dropout, where it need not keep torch from its fused attention.

The bias is there in the rows of sinks only. A mask that needs a gradient sends all rows to the slow kernel, so the fused one takes all
rows without the bias, and those of the sinks are computed again with it.

Shapes: B batch, A heads, N positions, M sinks (most in the batch), d width of a head.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only

from .sink_attention import SinkContext, add_bias_to_mask, scatter_sinks

_LEAST_LENGTH = 384
_LEAST_HEAD_DIM = 64
"""From this many positions on, or with heads narrower than this, two passes take less time than one slow one: on a CPU, with N / 12 to
N / 3 sinks, forward and backward took 0.5 to 0.95 of it; else (heads of 64, 160 to 288 positions) 1.0 to 1.4."""


def biased_mask(
    bias: Callable[..., torch.Tensor], mask: torch.Tensor | None, is_causal: bool, sinks: SinkContext, length: int
) -> torch.Tensor:
    """The attention mask of a layer with its sink bias (Eq. 11).

    Args:
        bias: called with `scattered`, gives (B, N, N) where it is true, (B, M, M) else. mask, is_causal: as `add_bias_to_mask` takes them.
    """
    in_graph = torch.compiler.is_compiling() or torch.compiler.is_exporting() or torch.jit.is_tracing()
    if in_graph or not torch.is_grad_enabled() or sinks.index.device.type != "cpu" or sinks.cache is not None:
        return add_bias_to_mask(bias(scattered=True), mask, is_causal)
    # In training the mask is made where attention asks for it only.
    made = sinks.valid.new_empty(0).as_subclass(SinkMask)
    made.parts = bias(scattered=False), mask, is_causal, sinks, length
    return made


class SinkMask(torch.Tensor):
    """The (B, 1, N, N) float mask of `add_bias_to_mask`, made when it is asked for; attention that has no dropout does without it."""

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and isinstance(kwargs.get("attn_mask"), cls):
            key = args[1]
            gains = key.shape[-2] >= _LEAST_LENGTH or key.shape[-1] < _LEAST_HEAD_DIM
            if gains and not kwargs.get("dropout_p") and not kwargs.get("enable_gqa"):
                return _attend(*args, *kwargs["attn_mask"].parts, kwargs.get("scale"))
        args, kwargs = tree_map_only(cls, lambda mask: _whole(*mask.parts), (args, kwargs))
        return func(*args, **kwargs)


def _whole(
    bias: torch.Tensor, mask: torch.Tensor | None, is_causal: bool, sinks: SinkContext, length: int
) -> torch.Tensor:
    return add_bias_to_mask(scatter_sinks(bias, sinks, sinks, length), mask, is_causal)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    sinks: SinkContext,
    length: int,
    scale: float | None,
) -> torch.Tensor:
    """Attention of all rows without the bias, (B, A, N, d); those of the sinks are replaced by their attention with it."""
    batch, num_heads, _, width = query.shape
    num_sinks, scale = bias.shape[1], width**-0.5 if scale is None else scale
    states = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None and is_causal, scale=scale
    )
    if mask is None and is_causal:
        mask = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    places = sinks.index[:, None, :, None]
    if mask is not None:
        mask = mask.expand(batch, 1, length, length).gather(2, places.expand(-1, -1, -1, length))
    columns = sinks.index[:, None, :].expand(-1, num_sinks, -1)
    bias = bias.new_zeros(batch, num_sinks, length).scatter_add(2, columns, bias)
    places = places.expand(-1, num_heads, -1, width)
    scores = (query.gather(2, places) * scale) @ key.transpose(2, 3) + add_bias_to_mask(bias, mask, is_causal=False)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    of_sinks = (weights @ value) * sinks.valid[:, None, :, None]  # places of padded sinks hold another row's
    is_sink = sinks.index.new_zeros(batch, length).scatter_add(1, sinks.index, sinks.valid.long()) > 0
    return states.masked_fill(is_sink[:, None, :, None], 0).scatter_add(2, places, of_sinks)
