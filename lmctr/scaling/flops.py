"""Floating-point operations: counted from the modules that run, and by formula. FLOPs = 2 x multiply-accumulates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from lmctr.models.astro.configuration_astro import ASTROConfig

__all__ = ["StageFlops", "astro_flops", "count_flops", "paper_flops"]

PAPER_CONSTANT = 1.92e6
"""What the paper's Table 3 adds to the history's cost; fitted by us so that all eight rows of ASTRO are within 3 %."""


class StageFlops(NamedTuple):
    """Forward FLOPs of a row. stage1: the history. stage2: its candidates, all of them. total: both."""

    stage1: float
    stage2: float

    @property
    def total(self) -> float:
        return self.stage1 + self.stage2


def count_flops(model: torch.nn.Module, inputs: Mapping[str, Any], backward: bool = False) -> int:
    """FLOPs of the matrix products of one call, counted by [`torch.utils.flop_counter.FlopCounterMode`] as it runs.

    Args:
        model: called with `inputs`. backward: also run and count the backward pass of its loss (`inputs` then hold labels).
    """
    with FlopCounterMode(display=False) as counter:
        if backward:
            model(**inputs).loss.backward()
        else:
            with torch.no_grad():
                model(**inputs)
    return counter.get_total_flops()


def paper_flops(length: int, num_layers: int, dim: int = 100, num_blocks: int = 2) -> float:
    """The cost that the paper states for an ASTRO of this size (Climber, Tab. 3).

    4 d^2 s + const + (l - 1) s (24 d^2 + 4 d s / Nb): keys and values of the last layer, a constant, and full layers below it. Fits
    Table 3 within 3 %. By it the rows of Table 2, "equal FLOPs", are not equal: (1600, 1) costs 6.6e7, not 4.11e8.

    Args:
        length: s, events over all blocks. num_layers: l. dim: d. num_blocks: Nb.
    """
    full = length * (24 * dim**2 + 4 * dim * length / num_blocks)
    return 4 * dim**2 * length + PAPER_CONSTANT + (num_layers - 1) * full


def astro_flops(
    config: ASTROConfig, num_candidates: int = 1, length: int | None = None, num_side_features: int = 0
) -> StageFlops:
    """Forward FLOPs of one row of ASTRO by formula: the matrix products that the model runs.

    Args:
        config: the model's configuration. num_candidates: candidates in the row. length: events over all blocks, equally many in
            each; default `config.sequence_length`.
        num_side_features: width of what enters the final network beside Y(S).

    Attention is counted for all pairs of a block, as it is computed; a causal mask saves nothing.
    """
    blocks, dim, inner = config.num_blocks, config.hidden_size, config.intermediate_size
    total = config.sequence_length if length is None else length
    slots = total / blocks
    per_token = 8 * dim**2 + 4 * dim * inner  # query, key, value, output; feed-forward network
    stage1 = 4 * dim**2 * total + (config.num_hidden_layers - 1) * total * (per_token + 4 * dim * slots)
    layers = config.num_hidden_layers * blocks * (per_token + 4 * dim * slots)
    width, fusion = blocks * dim, 0.0
    if config.use_gating_fusion:
        gate = 4 * width * max(width // config.gate_ratio, 1)
        fusion = blocks * per_token + 4 * dim * blocks**2 + gate
    sizes = [width + num_side_features, *config.head_hidden_sizes, config.num_tasks]
    head = sum(2 * below * above for below, above in zip(sizes, sizes[1:]))  # noqa: RUF007
    return StageFlops(float(stage1), float(num_candidates * (layers + fusion + head)))
