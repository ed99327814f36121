"""ROI-constrained design of a retrieval MLP: the grid of sizes, its FLOPs, and the best size under a return on machine cost.

Section 5.1 and Appendix B.1 of arXiv 2411.13322, Eq. 7 and 8. A size is a list
SP = [a_0, a_1, ..., a_n]: the input's width, then each layer's; FLOPs are 2 x multiply-accumulates of its linear layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TypeVar

import numpy as np

from .options import SizeGridOptions

__all__ = ["Design", "DesignGrid", "DesignResult", "choose_design", "mlp_flops", "pareto_front"]

Candidate = TypeVar("Candidate")


def mlp_flops(sizes: Sequence[int]) -> int:
    """2 x multiply-accumulates of one user-ad pair through the linear layers of [a_0, ..., a_n].

    >>> mlp_flops([3328, 1024, 256, 256, 256, 1])
    7602688

    Raises:
        ValueError: fewer than two sizes, or one that is no whole number from 1.
    """
    if len(sizes) < 2 or not all(isinstance(size, Integral) and size >= 1 for size in sizes):
        raise ValueError(
            f"sizes must be whole numbers from 1, the input's width and at least one layer's; got {list(sizes)}"
        )
    return 2 * sum(below * above for below, above in itertools.pairwise(sizes))


@dataclass(frozen=True, kw_only=True)
class DesignGrid(SizeGridOptions):
    """The grid of Appendix B.1; iterating gives its sizes. Arguments: see `SizeGridOptions`.

    Decided: `ratio` bounds the step from the input to the first layer too (`ratio_on_input`), which gives 1,553 sizes, near the paper's
    "approximately 1000"; without it there are 9,191, with embedding dimensions below 2,000 (all up to the limit on FLOPs, `max_embedding_dim`
    None: 9,241, the 50 others being wider inputs of the narrowest network).
    """

    def __post_init__(self):
        above_0 = ("embedding_step", "width_step", "num_hidden_layers", "max_first_width", "ratio", "max_flops")
        for name in (*above_0, "num_sparse_features", "num_dense"):
            least = 0 if name == "num_dense" else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def input_size(self, embedding_dim: int) -> int:
        """a_0."""
        return embedding_dim * self.num_sparse_features + self.num_dense

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Sizes (a_0, ..., a_n, 1) by ascending embedding dimension, widths descending within."""
        embedding_dim = self.embedding_step
        # the narrowest network of an input costs at least its first layer: past the limit no wider input fits
        while 2 * self.input_size(embedding_dim) * self.width_step <= self.max_flops:
            if self.max_embedding_dim is not None and embedding_dim > self.max_embedding_dim:
                return
            yield from self._extend((self.input_size(embedding_dim),))
            embedding_dim += self.embedding_step

    def _extend(self, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(sizes) == self.num_hidden_layers + 1:
            if mlp_flops((*sizes, 1)) <= self.max_flops:
                yield (*sizes, 1)
            return
        first = len(sizes) == 1
        most = min(self.max_first_width, sizes[0]) if first else sizes[-1]
        for width in range(most - most % self.width_step, 0, -self.width_step):
            if (not first or self.ratio_on_input) and width * self.ratio < sizes[-1]:
                break
            yield from self._extend((*sizes, width))

    def configurations(self) -> list[tuple[int, ...]]:
        """All sizes of the grid."""
        return list(self)


@dataclass(frozen=True)
class Design:
    """A candidate: its sizes (or any name), its gain and its cost. ROI = gain / cost; infinite for a gain without cost."""

    sizes: tuple[int, ...] | str
    gain: float
    cost: float
    flops: float | None = None

    @property
    def roi(self) -> float:
        """gain / cost (Eq. 7)."""
        if self.cost == 0:
            return float("inf") if self.gain > 0 else 0.0
        return self.gain / self.cost


class UnreachableReturnError(ValueError):
    """No candidate has the return that was asked for; the command line ends with a code of its own then."""

    exit_code = 3


@dataclass(frozen=True)
class DesignResult:
    """What `choose_design` found.

    Args:
        best: the design of most gain with ROI >= minimal_roi; of equal gains the cheaper one. front: the Pareto front, by cost.
        base: what gains and costs are relative to, None for absolute ones. num_candidates, num_feasible: in all, and under the constraint
            (without the base, which has no return).
    """

    best: Design
    front: tuple[Design, ...]
    base: Design | None
    minimal_roi: float
    num_candidates: int
    num_feasible: int
    candidates: tuple[Design, ...] = field(default=(), repr=False)

    @property
    def is_reached(self) -> bool:
        """Whether some design gains with the return that was asked for; relative to a base, keeping it is always feasible and gains nothing."""
        return self.base is None or self.best.gain > 0

    @property
    def highest_roi(self) -> float | None:
        """The highest ROI of a design that gains, infinite where it costs no more than the base; None where none gains."""
        gains = (design for design in self.candidates if design.gain > 0)
        return max((design.roi if design.cost > 0 else float("inf") for design in gains), default=None)


def choose_design(
    sizes: Sequence[Sequence[int] | str],
    gain: Callable[[tuple[int, ...] | str], float],
    cost: Callable[[tuple[int, ...] | str], float],
    minimal_roi: float,
    base: Sequence[int] | str | None = None,
    relative: bool = True,
) -> DesignResult:
    """Maximise the gain subject to gain / cost >= lambda (Eq. 8), over all candidates.

    Args:
        sizes: candidates, such as `DesignGrid()`, or names of models (whose FLOPs stay None).
        gain: expected revenue of a size, G(BNSL(F(SP))). cost: its machine cost, measured or interpolated, not negative. Units are the
            caller's: lambda is in gain's over cost's.
        minimal_roi: lambda.
        base: the size in use. relative: gain and cost are differences to the base's (decided: the default, since the revenue of a system is not due
            to its last model); candidates no dearer than the base then have ROI infinite where they gain and are infeasible where they
            lose.

    Raises:
        ValueError: no candidates, no base for relative gains, gains or costs that are not finite, no feasible candidate.
    """
    candidates = [_key(size) for size in sizes]
    if not candidates:
        raise ValueError("sizes: there are no candidates")
    if not np.isfinite(minimal_roi):
        raise ValueError(f"minimal_roi must be a finite number, got {minimal_roi}")
    if relative and base is None:
        raise ValueError("base is missing: gains are relative to it; give the size in use, or relative=False")
    reference = _evaluate(_key(base), gain, cost) if relative else None
    designs = [_evaluate(size, gain, cost) for size in candidates]
    if reference is not None:
        designs = [Design(x.sizes, x.gain - reference.gain, x.cost - reference.cost, x.flops) for x in designs]
    # with cost <= 0 (no dearer than the base) any gain is enough, a loss never
    feasible = [design for design in designs if design.gain >= minimal_roi * max(design.cost, 0.0)]
    if not feasible:
        gaining = [design for design in designs if design.gain > 0]
        reached = f"the highest ROI of a gain is {max(x.roi for x in gaining):.6g}" if gaining else "none has a gain"
        raise UnreachableReturnError(f"no candidate of {len(designs)} reaches ROI {minimal_roi:g}: {reached}")
    best = max(feasible, key=lambda design: (design.gain, -design.cost))
    counted = sum(reference is None or design.sizes != reference.sizes for design in feasible)
    return DesignResult(
        best, tuple(pareto_front(designs)), reference, minimal_roi, len(designs), counted, tuple(designs)
    )


def pareto_front(designs: Sequence[Candidate]) -> list[Candidate]:
    """The designs (or others with gain and cost) that none beats in gain at the same or a lower cost, by ascending cost."""
    front: list[Candidate] = []
    for design in sorted(designs, key=lambda design: (design.cost, -design.gain)):
        if not front or design.gain > front[-1].gain:
            front.append(design)
    return front


def _key(size: Sequence[int] | str) -> tuple[int, ...] | str:
    return size if isinstance(size, str) else tuple(int(a) for a in size)


def _evaluate(sizes: tuple[int, ...] | str, gain: Callable, cost: Callable) -> Design:
    values = float(gain(sizes)), float(cost(sizes))
    for name, value in zip(("gain", "cost"), values):
        if not np.isfinite(value) or (name == "cost" and value < 0):
            accepted = "finite and not negative" if name == "cost" else "finite"
            shown = sizes if isinstance(sizes, str) else list(sizes)
            raise ValueError(f"{name} of {shown} must be {accepted}, got {value}")
    return Design(sizes, *values, None if isinstance(sizes, str) else mlp_flops(sizes))
