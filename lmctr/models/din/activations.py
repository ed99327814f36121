"""The activations of DIN's networks: Dice and PReLU (Eq. 8 and 9), over the entries that a mask names.

Dice in training is some thirty operations, forward and backward, over the largest tensor that DIN makes. Here it is one function
with a gradient of its own: it keeps its input alone, and on a CPU works on some rows at a time, whose values stay in the cache.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from transformers import initialization as init

from .configuration_din import DINConfig

BLOCK_VALUES = 2**16
"""Values that are worked on at once on a CPU."""


class Dice(nn.Module):
    """f(s) = p(s) s + (1 - p(s)) alpha s, p(s) = sigmoid((s - E[s]) / sqrt(Var[s] + eps)) (Eq. 9).

    In training E and Var are those of the batch, otherwise moving averages. Both are taken over the entries that a mask names: padding
    is no data.
    """

    def __init__(self, size: int, momentum: float = 0.1, eps: float = 1e-8):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.alpha = nn.Parameter(torch.zeros(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

    def init_parameters(self, config: DINConfig) -> None:
        init.zeros_(self.alpha)
        init.zeros_(self.running_mean)
        init.ones_(self.running_var)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(..., size), mask (...) bool."""
        if not self.training:
            kind = torch.promote_types(states.dtype, torch.float32)
            mean, var = self.running_mean.to(kind), self.running_var.to(kind)
            gate = torch.sigmoid((states.to(kind) - mean) * torch.rsqrt(var + self.eps)).to(states.dtype)
            return states * (gate + (1 - gate) * self.alpha)
        found, mean, var = _BatchDice.apply(states, self.alpha, mask, self.eps)
        with torch.no_grad():  # a batch without any entry moves nothing
            rate = self.momentum * mask.any().to(self.running_mean.dtype)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
            self.running_var.lerp_(var.to(self.running_var.dtype), rate)
        return found


class _BatchDice(torch.autograd.Function):
    """Dice by the mean and variance of a batch; returns these too, for which there is no gradient.

    With x the normalised value, r = 1 / sqrt(Var + eps), n entries in the mask m, g = sigmoid(x), dy the gradient of the output
    and h = dy s (1 - alpha) g (1 - g), that of x: ds = dy (alpha + (1 - alpha) g) + r h - m r / n (sum h + x sum (h x)).
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        states: torch.Tensor,
        alpha: torch.Tensor,
        mask: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        kind = torch.promote_types(states.dtype, torch.float32)
        flat, weight = states.reshape(-1, states.shape[-1]), mask.reshape(-1, 1).to(kind)
        own = alpha.to(kind)
        count = weight.sum().clamp_min(1)
        mean, var = torch.zeros_like(own), torch.zeros_like(own)
        for rows in _blocks(flat):
            mean += (flat[rows].to(kind) * weight[rows]).sum(0)
        mean /= count
        for rows in _blocks(flat):
            var += (flat[rows].to(kind) - mean).square_().mul_(weight[rows]).sum(0)
        var /= count
        scale, found = torch.rsqrt(var + eps), torch.empty_like(flat)
        for rows in _blocks(flat):
            values = flat[rows].to(kind)
            gate = (values - mean).mul_(scale).sigmoid_()
            torch.mul(gate.mul_(1 - own).add_(own), values, out=found[rows])
        ctx.save_for_backward(states, own, weight, mean, scale, count)
        ctx.alpha_dtype = alpha.dtype
        ctx.mark_non_differentiable(mean, var)
        return found.view(states.shape), mean, var

    @staticmethod
    @once_differentiable
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor, *_: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        states, alpha, weight, mean, scale, count = ctx.saved_tensors
        flat, given = states.reshape(-1, states.shape[-1]), gradient.reshape(-1, states.shape[-1])
        found = torch.empty(flat.shape, dtype=alpha.dtype, device=flat.device)
        of_alpha, total, along = (torch.zeros_like(alpha) for _ in range(3))
        for rows in _blocks(flat):
            values, above = flat[rows].to(alpha.dtype), given[rows].to(alpha.dtype)
            normed = (values - mean).mul_(scale)
            gate = normed.sigmoid()
            both = values.mul(above)
            gated = both * gate
            of_alpha += both.sub_(gated).sum(0)
            of_normed = gated.mul_(1 - gate).mul_(1 - alpha)
            total += of_normed.sum(0)
            along += normed.mul_(of_normed).sum(0)
            torch.add(gate.mul_(1 - alpha).add_(alpha).mul_(above), of_normed.mul_(scale), out=found[rows])
        slope = along * scale.square() / count
        shift = total * scale / count - slope * mean
        for rows in _blocks(flat):
            found[rows] -= (flat[rows].to(alpha.dtype) * slope).add_(shift).mul_(weight[rows])
        return found.view(states.shape).to(states.dtype), of_alpha.to(ctx.alpha_dtype), None, None


def _blocks(flat: torch.Tensor) -> list[slice]:
    """Rows of (M, size) that are worked on at once: all, but on a CPU."""
    if not flat.is_cpu or torch.compiler.is_compiling():  # a compiled graph is of any number of rows
        return [slice(None)]
    step = max(BLOCK_VALUES // flat.shape[1], 1)
    return [slice(start, start + step) for start in range(0, len(flat), step)]


class PReLU(nn.Module):
    """f(s) = s for s > 0, alpha s otherwise (Eq. 8); alpha per unit."""

    def __init__(self, size: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.full((size,), 0.25))

    def init_parameters(self, config: DINConfig) -> None:
        init.constant_(self.alpha, 0.25)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(..., size); the mask is not needed."""
        return torch.where(states > 0, states, states * self.alpha)


def activation(config: DINConfig, size: int) -> nn.Module:
    """Dice or PReLU."""
    return Dice(size) if config.use_dice else PReLU(size)
