"""What models of ad retrieval share: the foundation MLP, and its first layer split for serving.

Section 3.3, 3.4 and Appendix A of arXiv 2411.13322.

Shapes: R rows (user-ad pairs), B requests, n ads, U width of the user's inputs, A width of the ad's, H width of the first layer. The MLP's input
is [u; a], U + A wide: the user's columns come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .layers import RowNorm


class HeLinear(nn.Linear):
    """A linear layer with He initialisation for PReLU (its initial slope is 0.25), and a zero bias."""

    def init_parameters(self, config: object = None) -> None:
        init.kaiming_normal_(self.weight, a=0.25)
        init.zeros_(self.bias)

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, a=0.25)
        nn.init.zeros_(self.bias)


class SlopePReLU(nn.PReLU):
    """PReLU with one slope for the layer, 0.25 at first (He et al., ICCV 2015)."""

    def init_parameters(self, config: object = None) -> None:
        init.constant_(self.weight, 0.25)


class FoundationLayer(GradientCheckpointingLayer):
    """Batch normalisation, linear map, PReLU, in this order."""

    def __init__(self, in_size: int, out_size: int):
        super().__init__()
        self.norm = RowNorm(in_size)
        self.linear = HeLinear(in_size, out_size)
        self.activation = SlopePReLU()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(R, in_size) to (R, out_size)."""
        return self.activation(self.linear(self.norm(states)))


class FoundationMLP(nn.Module):
    """Hidden layers, then a purely linear layer of width `out_size`.

    Args:
        in_size: U + A. hidden_units: widths of the hidden layers; the paper's base is 3328 and [1024, 256, 256, 256]. out_size: 1 for a score, the
            width of a tower's vector otherwise; None: no output layer, the last hidden layer is the result.

    Batch normalisation counts every row that it is given: padded ads must be left out of the rows.
    """

    def __init__(self, in_size: int, hidden_units: Sequence[int], out_size: int | None = 1):
        super().__init__()
        sizes = [in_size, *hidden_units]
        if min(sizes) < 1 or (out_size is not None and out_size < 1) or len(sizes) < 2:
            raise ValueError(
                f"in_size, hidden_units (at least one) and out_size must be from 1, got {in_size}, "
                f"{list(hidden_units)}, {out_size}"
            )
        self.in_size, self.out_size = in_size, sizes[-1] if out_size is None else out_size
        self.layers = nn.ModuleList(FoundationLayer(*pair) for pair in pairwise(sizes))
        self.output = None if out_size is None else HeLinear(sizes[-1], out_size)

    def forward(self, states: torch.Tensor, hidden_states: list[torch.Tensor] | None = None) -> torch.Tensor:
        """(R, in_size) to (R, out_size). The output of every hidden layer is appended to `hidden_states` where given."""
        for layer in self.layers:
            states = layer(states)
            if hidden_states is not None:
                hidden_states.append(states)
        return states if self.output is None else self.output(states)


class SplitMLP(nn.Module):
    """A foundation MLP for serving: W [u; a] = W_u u + W_a a, batch normalisation folded into the linear layers ("first-layer optimisation").

    The user half is computed once per request, the ad half once per ad and kept. Made by [`split_mlp`]; inference only.

    Args:
        user_size, ad_size: U and A. hidden_units: widths. out_size: of the output.

    Example:
        >>> served = split_mlp(mlp.eval(), user_size=128)
        >>> cache = served.ad_half(ads)  # (n, H), once
        >>> cache[7] = served.ad_half(changed_ad)  # one ad again
        >>> scores = served(user, cache)  # (n,)
    """

    def __init__(self, user_size: int, ad_size: int, hidden_units: Sequence[int], out_size: int = 1):
        super().__init__()
        hidden_units = list(hidden_units)
        self.out_size = out_size
        self.user = nn.Linear(user_size, hidden_units[0])
        self.ad = nn.Linear(ad_size, hidden_units[0], bias=False)
        self.activations = nn.ModuleList(nn.PReLU() for _ in hidden_units)
        self.linears = nn.ModuleList(nn.Linear(*pair) for pair in pairwise([*hidden_units, out_size]))
        self.requires_grad_(False).eval()

    def user_half(self, user: torch.Tensor) -> torch.Tensor:
        """(..., U) to (..., H), the bias included."""
        return self.user(user)

    def ad_half(self, ads: torch.Tensor) -> torch.Tensor:
        """(..., A) to (..., H): what a cache keeps."""
        return self.ad(ads)

    def forward(self, user: torch.Tensor, ad_halves: torch.Tensor) -> torch.Tensor:
        """Scores of cached ads.

        Args:
            user: (U,) or (B, U). ad_halves: (n, H), the same ads for every request, or (B, n, H).

        Returns:
            (n,) or (B, n) for `out_size` 1, with a last axis of `out_size` otherwise.
        """
        return self.from_halves(self.user(user), ad_halves)

    def from_halves(self, user_half: torch.Tensor, ad_halves: torch.Tensor) -> torch.Tensor:
        """As `forward`, from (H,) or (B, H) of `user_half`."""
        states = user_half.unsqueeze(-2) + ad_halves
        for activation, linear in zip(self.activations, self.linears):
            states = linear(activation(states))
        return states.squeeze(-1) if self.out_size == 1 else states


class FoldedMLP(nn.Module):
    """A foundation MLP for serving, batch normalisation folded into the linear layers: linear and PReLU, then the output layer. Made by [`fold_mlp`]."""

    def __init__(self, in_size: int, hidden_units: Sequence[int], out_size: int):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(*pair) for pair in pairwise([in_size, *hidden_units, out_size]))
        self.activations = nn.ModuleList(nn.PReLU() for _ in hidden_units)
        self.requires_grad_(False).eval()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(..., in_size) to (..., out_size)."""
        for linear, activation in zip(self.linears, self.activations):
            states = activation(linear(states))
        return self.linears[-1](states)


class SplitTowers(nn.Module):
    """Two folded towers with the interface of [`SplitMLP`]: the ad's half is its vector, a score the inner product with `scale` times the user's.

    Args:
        user_size, ad_size: U and A. hidden_units: widths of each tower's hidden layers. vector_size: D.
    """

    def __init__(self, user_size: int, ad_size: int, hidden_units: Sequence[int], vector_size: int):
        super().__init__()
        self.user = FoldedMLP(user_size, hidden_units, vector_size)
        self.ad = FoldedMLP(ad_size, hidden_units, vector_size)
        self.register_buffer("scale", torch.ones(()))

    def user_half(self, user: torch.Tensor) -> torch.Tensor:
        """(..., U) to (..., D), times `scale`: an index of inner products can search with it."""
        return self.user(user) * self.scale

    def ad_half(self, ads: torch.Tensor) -> torch.Tensor:
        """(..., A) to (..., D): what a cache keeps."""
        return self.ad(ads)

    def from_halves(self, user_half: torch.Tensor, ad_halves: torch.Tensor) -> torch.Tensor:
        """(..., D) and (n, D) or (..., n, D) to scores (..., n)."""
        return (ad_halves @ user_half.unsqueeze(-1)).squeeze(-1)

    def forward(self, user: torch.Tensor, ad_halves: torch.Tensor) -> torch.Tensor:
        """Scores of cached ads, as [`SplitMLP`]."""
        return self.from_halves(self.user_half(user), ad_halves)


@torch.no_grad()
def fold_mlp(mlp: FoundationMLP, output: nn.Linear | None = None) -> FoldedMLP:
    """The evaluation mode of a foundation MLP, normalisation folded, with its output layer or, where it has none, `output`.
    Raises `ValueError` as [`RowNorm.check_variances`]."""
    output = mlp.output if output is None else output
    folded = FoldedMLP(mlp.in_size, [layer.linear.out_features for layer in mlp.layers], output.out_features)
    folded.to(output.weight.device, output.weight.dtype)
    for layer, linear, activation in zip(mlp.layers, folded.linears, folded.activations):
        # W (g (x - mean) / sqrt(var + eps) + beta) + b = (W s) x + W (beta - mean s) + b, s = g / sqrt(var + eps), in float64.
        norm, weight = layer.norm, layer.linear.weight.double()
        norm.check_variances()
        scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        shift = norm.bias.double() - norm.running_mean.double() * scale
        linear.weight.copy_(weight * scale)
        linear.bias.copy_(weight @ shift + layer.linear.bias.double())
        activation.weight.copy_(layer.activation.weight)
    folded.linears[-1].load_state_dict(output.state_dict())
    return folded


@torch.no_grad()
def split_mlp(mlp: FoundationMLP, user_size: int, output: nn.Linear | None = None) -> SplitMLP:
    """Fold the normalisation of a foundation MLP and split its first layer.

    Args:
        mlp: its running statistics are folded, so the result equals its evaluation mode, whatever mode it is in.
        user_size: U, the first columns of its input.
        output: the output layer of an MLP without one.

    Raises:
        ValueError: a `user_size` that leaves the user or the ad without columns, no output layer.
    """
    if output is None and mlp.output is None:
        raise ValueError("output is missing: the MLP has no output layer of its own, give the one that follows it")
    if not 0 < user_size < mlp.in_size:
        raise ValueError(f"user_size must be between 1 and {mlp.in_size - 1}, got {user_size}")
    folded = fold_mlp(mlp, output)
    first, *others = folded.linears
    hidden_units = [linear.out_features for linear in folded.linears[:-1]]
    served = SplitMLP(user_size, mlp.in_size - user_size, hidden_units, others[-1].out_features)
    served.to(first.weight.device, first.weight.dtype)
    served.user.weight.copy_(first.weight[:, :user_size])
    served.user.bias.copy_(first.bias)
    served.ad.weight.copy_(first.weight[:, user_size:])
    for linear, other in zip(served.linears, others):
        linear.load_state_dict(other.state_dict())
    served.activations.load_state_dict(folded.activations.state_dict())
    return served
