"""The precision in which a loaded model scores: floating point, or the language model's matrices in eight bits, on CPUs.

In eight bits each row of a weight matrix and each position's input get a scale of their own, 127 for the largest magnitude
(Dettmers et al., LLM.int8(), https://arxiv.org/abs/2208.07339, vector-wise quantisation): what a position gives depends on no
other in its batch.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from lmctr.utils.measure import PRECISIONS

M = TypeVar("M", bound=nn.Module)
_SHIFT = 128  # the product takes unsigned inputs


def in_precision(model: M, dtype: str | None) -> M:
    """A model that scores in one of `PRECISIONS`, changed in place; None: as its weights are stored.

    Raises:
        ValueError: another name, or what [`quantise_language_model`] raises.
    """
    if dtype is not None and dtype not in PRECISIONS:
        raise ValueError(f"dtype: expected {', '.join(PRECISIONS)}, got {dtype!r}")
    if dtype == "int8":
        return quantise_language_model(model)
    return model if dtype is None else model.to(getattr(torch, dtype))


class _Packed:
    """An (N, K) int8 matrix as the processor multiplies it; copies of a model share it, since nothing changes it."""

    def __init__(self, rows: torch.Tensor):
        self._matrix = torch.ops.onednn.qlinear_prepack(rows, None)
        self._zero = torch.zeros(len(rows), dtype=torch.int64)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Packed:
        return self

    def product(self, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """(R, K) int8 with each row of the matrix, times its scale (N,): (R, N) float32. The values are used up."""
        shifted = values.view(torch.uint8).bitwise_xor_(_SHIFT)  # adds 128
        return torch.ops.onednn.qlinear_pointwise(
            shifted, 1.0, _SHIFT, self._matrix, scale, self._zero, None, 1.0, 0, torch.float32, "none", [], ""
        )


class Int8Linear(nn.Module):
    """(..., K) float32 to (..., N) float32 by an int8 matrix of N rows; without gradients.

    Args:
        weight: (N, K), on the CPU. bias: (N,) or None.

    Source: vector-wise quantisation of LLM.int8(), section 2.1.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__()
        rows, scale = _scaled(weight.detach().float().contiguous())
        self.out_features, self.in_features = weight.shape
        self.register_buffer("scale", scale[:, 0].contiguous())
        self.register_buffer("bias", None if bias is None else bias.detach().float().clone())
        self._packed = _Packed(rows.to(torch.int8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            values, scale = _scaled(inputs.reshape(-1, self.in_features))
            found = self._packed.product(values.to(torch.int8), self.scale)
            found = found.mul_(scale) if self.bias is None else torch.addcmul(self.bias, found, scale)
        return found.view(*inputs.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def quantise_language_model(model: M) -> M:
    """Hold the matrices of a CTR-Sink model's language model in eight bits, in place of its linear layers. Embeddings, norms,
    sinks and the head stay in float32.

    Args:
        model: in evaluation mode, on the CPU; changed in place.

    Raises:
        ValueError: a model without a language model, or on another device; a language model that is quantised already; a processor
            whose product of eight bits is not exact.
    """
    owner = getattr(model.base_model, "language_model", None)
    if owner is None:
        raise ValueError(
            f"dtype int8: {model.config.model_type} has no language model; accepted for it: float32, bfloat16, float16"
        )
    if model.device.type != "cpu":
        raise ValueError(
            f"dtype int8: computes on CPUs, got {model.device}; accepted there: float32, bfloat16, float16"
        )
    if getattr(model, "is_quantized", False):
        raise ValueError("dtype int8: the language model is quantised already; leave dtype out")
    if not int8_is_exact():
        raise ValueError("dtype int8: this processor multiplies eight bits inexactly (it has no VNNI); use float32")
    model.float()
    for name, module in list(owner.named_modules()):
        if isinstance(module, (nn.Linear, Conv1D)):
            weight = module.weight.T if isinstance(module, Conv1D) else module.weight
            owner.set_submodule(name, Int8Linear(weight, module.bias).train(module.training))
    return model


def _scaled(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers of -127 to 127 in float32, (R, K), and what a row's are multiples of, (R, 1)."""
    largest = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True))
    scale = largest.clamp_(min=torch.finfo(torch.float32).tiny * _SHIFT).div_(127)
    return (rows / scale).round_(), scale


@cache
def int8_is_exact() -> bool:
    """Whether sums of extreme products come out right: without VNNI they end at 16 bits."""
    if not torch.backends.mkldnn.is_available():
        return False
    values, weight = torch.full((2, 64), 127, dtype=torch.int8), torch.full((16, 64), 127, dtype=torch.int8)
    expected = values.float() @ weight.float().T
    return torch.equal(_Packed(weight).product(values, torch.ones(16)), expected)
