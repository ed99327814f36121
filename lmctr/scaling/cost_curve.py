"""Machine cost of sizes that were not measured, from those that were.

Section 4.3 of arXiv 2411.13322 measures every configuration of its grid. Measuring some of them and
interpolating between is decided here as the cheaper way: a measured size keeps its own cost; for another one the cost is interpolated in log
FLOPs and log cost between the two nearest measured FLOPs. MCET is no function of the FLOPs alone, so that is an estimate; nothing is
extrapolated unless asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from .points import check_numbers, equal_lists

__all__ = ["CostCurve"]


class CostCurve:
    """Measured costs and what lies between them.

    Args:
        flops: (P,) positive. cost: (P,) positive. Equal FLOPs share the geometric mean of their costs.
        measured: size -> its own cost, which is returned as it is.
        extrapolate: go on with the slope of the outermost two points instead of refusing.

    Raises:
        ValueError: lengths that differ, no points, values that are not positive and finite, one point only.
    """

    def __init__(
        self,
        flops: ArrayLike,
        cost: ArrayLike,
        measured: Mapping[Hashable, float] | None = None,
        extrapolate: bool = False,
    ):
        flops, cost = equal_lists(flops=flops, cost=cost)
        check_numbers("flops", flops)
        check_numbers("cost", cost)
        self.x, place = np.unique(np.log(flops), return_inverse=True)
        if len(self.x) < 2:
            raise ValueError(f"costs of at least 2 different FLOPs are needed to interpolate, got {len(self.x)}")
        self.y = np.bincount(place, np.log(cost)) / np.bincount(place)
        self.measured, self.extrapolate = dict(measured or {}), extrapolate

    def __repr__(self) -> str:
        return f"CostCurve({len(self.x)} sizes from {self.low:g} to {self.high:g} FLOPs, {len(self.measured)} measured, extrapolate={self.extrapolate})"

    @property
    def low(self) -> float:
        """The smallest measured FLOPs."""
        return float(np.exp(self.x[0]))

    @property
    def high(self) -> float:
        """The largest measured FLOPs."""
        return float(np.exp(self.x[-1]))

    def way(self, flops: float, size: Hashable = None) -> str:
        """How the cost of a size with these FLOPs comes about: "measured", "interpolated", or beyond what was measured "extrapolated"."""
        if size in self.measured:
            return "measured"
        inside = self.x[0] - 1e-9 <= np.log(flops) <= self.x[-1] + 1e-9
        return "interpolated" if inside else "extrapolated"

    def covers(self, flops: float, size: Hashable = None) -> bool:
        """Whether there is a cost of a size with these FLOPs."""
        return self.extrapolate or self.way(flops, size) != "extrapolated"

    def __call__(self, flops: float, size: Hashable = None) -> float:
        """The cost of a size with these FLOPs. ValueError: outside the measured range."""
        if size in self.measured:
            return float(self.measured[size])
        if not self.covers(flops):
            raise ValueError(
                f"flops {flops:g} lie outside the measured range {self.low:g} to {self.high:g}; measure sizes there, or extrapolate"
            )
        x = float(np.log(flops))
        place = int(np.clip(np.searchsorted(self.x, x) - 1, 0, len(self.x) - 2))
        share = (x - self.x[place]) / (self.x[place + 1] - self.x[place])
        return float(np.exp(self.y[place] + share * (self.y[place + 1] - self.y[place])))
