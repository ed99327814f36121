"""Linear layers in float32 on processors whose BLAS leaves half of the speed unused.

torch multiplies float32 matrices on CPUs by MKL, which takes 256 bits at a time on processors of other makers, also where they have 512;
oneDNN, which torch ships too, takes all. The choice follows from the processor and the shapes alone, so that a run's numbers do not depend on
what else the machine does.
"""

import functools
import math
import platform
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.flop_counter import register_flop_formula

_LEAST_WORK = 1 << 21  # multiplications of a product below which its call costs more than it saves
_LEAST_SIDE = 128  # of a weight, below which its gradient, a sum over many rows, is faster by MKL


@functools.cache
def prefers_onednn() -> bool:
    """Whether this processor has 512-bit registers that MKL does not use."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    told = Path("/proc/cpuinfo")
    maker = told.read_text(errors="replace") if told.is_file() else platform.processor()
    return "AuthenticAMD" in maker


def _product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """(N, K) left times (M, K) right transposed, by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")


if hasattr(torch.ops.mkldnn, "_linear_pointwise"):

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def _flop(left_shape: Any, right_shape: Any, *unused: Any, **options: Any) -> int:
        """What torch counts for a matrix product."""
        return 2 * math.prod(left_shape) * right_shape[0]


def _gains(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the product of (..., K) and (M, K) transposed is faster by oneDNN."""
    return (
        not torch.compiler.is_compiling()
        and prefers_onednn()
        and left.numel() * len(right) >= _LEAST_WORK
        and left.is_cpu
        and left.dtype == right.dtype == torch.float32
        and type(left) is torch.Tensor
        and type(right) in (torch.Tensor, nn.Parameter)
    )


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """(N, K) left times (M, K) right transposed, for code that makes its gradients itself."""
    return _product(left, right) if _gains(left, right) else left @ right.t()


class _Linear(torch.autograd.Function):
    """`nn.functional.linear` of (N, K) states, and its gradients, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        return _product(states, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_states = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_states = _product(gradient, weight.t())
        if ctx.needs_input_grad[1]:
            by_onednn = min(weight.shape) >= _LEAST_SIDE
            of_weight = _product(gradient.t(), states.t()) if by_onednn else gradient.t() @ states
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(0)
        return of_states, of_weight, of_bias


def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`nn.functional.linear`: (..., K) states and an (M, K) weight to (..., M), by the faster way of the two on this processor.

    Graphs that are traced, compiled or exported, autocast, other types and devices and small products go torch's own way.
    """
    if not _gains(states, weight) or torch.is_autocast_enabled("cpu") or torch.jit.is_tracing():
        return nn.functional.linear(states, weight, bias)
    if has_torch_function((states, weight)):  # who counts torch's functions sees this one
        return handle_torch_function(linear, (states, weight), states, weight, bias)
    return _Linear.apply(states.reshape(-1, states.shape[-1]), weight, bias).unflatten(0, states.shape[:-1])


class Linear(nn.Linear):
    """`nn.Linear` by [`linear`]."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return linear(states, self.weight, self.bias)


def weight_and_bias(layer: nn.Module, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight (M, K) and the bias (M,) of a linear layer, for code that reads it in parts and does not call it.

    What stands in a layer's place (an adapter of PEFT around it, eight bits, a hook that brings its weight from elsewhere) answers calls
    only: there they are what it makes of unit vectors, of the type and on the device of `like`.
    """
    if isinstance(layer, nn.Linear) and layer.weight.device == like.device:
        weight = layer.weight
        if isinstance(weight, DTensor) or not is_traceable_wrapper_subclass(weight):
            return weight, layer.bias
    units = torch.eye(layer.in_features, dtype=like.dtype, device=like.device)
    found = layer(torch.cat([units, torch.zeros_like(units[:1])]))
    return (found[:-1] - found[-1]).T, found[-1]


def use_products(module: nn.Module) -> None:
    """Let the linear layers inside a module of another package multiply by [`linear`]; they stay the objects that they are."""
    for part in module.modules():
        if type(part) is nn.Linear:
            part.__class__ = Linear  # the same parameters under the same names; whoever asks finds an nn.Linear
