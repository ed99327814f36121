"""Machines for several scenarios under one budget: one design each, the most revenue in all (Eq. 9).

Eq. 9 of arXiv 2411.13322 is a multiple-choice knapsack. Decided: it is solved exactly over the
candidates. Scenario by scenario all non-dominated (cost, revenue) sums within the budget are kept, so costs may be any real numbers; a sum that
is dearer and earns no more can be part of no best solution that the cheaper one is not part of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .design import Design, UnreachableReturnError, pareto_front

__all__ = ["Allocation", "allocate", "check_designs"]

_SLACK = 1e-12  # a budget that the costs meet exactly must not be missed by rounding


@dataclass(frozen=True)
class Allocation:
    """The chosen design of each scenario, and their totals.

    Args:
        chosen: scenario -> design. gain, cost: sums. budget: B. minimal_roi: of each scenario.
        num_candidates: designs given and, of those, with a sufficient ROI.
    """

    chosen: dict[str, Design]
    gain: float
    cost: float
    budget: float
    minimal_roi: float
    num_candidates: tuple[int, int]


class _Sum(NamedTuple):
    cost: float
    gain: float
    chosen: tuple[Design, ...]


def check_designs(scenario: str, designs: Sequence[Design]) -> None:
    """Raise `ValueError` that names the first candidate whose gain or cost is not finite, or whose cost is negative."""
    for design in designs:
        if not (math.isfinite(design.gain) and math.isfinite(design.cost) and design.cost >= 0):
            raise ValueError(
                f"scenario {scenario!r}, {design.sizes}: gain and cost must be finite and the cost not negative, "
                f"got {design.gain} and {design.cost}"
            )


def allocate(scenarios: Mapping[str, Sequence[Design]], budget: float, minimal_roi: float = 1.0) -> Allocation:
    """Choose one design per scenario: most gain, sum of costs <= budget, gain / cost >= minimal_roi in each (Eq. 9).

    Args:
        scenarios: name -> candidates, with gains and costs in absolute terms (not differences to a base); a scenario that may stay without
            machines needs a candidate of cost 0.
        budget: B, in the units of the costs.

    Raises:
        ValueError: no scenarios, a scenario without candidates or without one of sufficient ROI, values that are not finite, negative costs, a
            budget that the cheapest admissible designs exceed.

    Time is the number of kept sums times the candidates of the next scenario; of equal gains the cheaper sum is kept.
    """
    if not scenarios:
        raise ValueError("scenarios: there are none")
    if not math.isfinite(minimal_roi):
        raise ValueError(f"minimal_roi must be finite, got {minimal_roi}")
    if not math.isfinite(budget) or budget < 0:
        raise ValueError(f"budget must be finite and not negative, got {budget}")
    admissible: dict[str, list[Design]] = {}
    total = 0
    for name, designs in scenarios.items():
        total += len(designs)
        check_designs(name, designs)
        admissible[name] = [design for design in designs if design.gain >= minimal_roi * design.cost]
        if not admissible[name]:
            best = f"the highest is {max(x.roi for x in designs):.6g}" if designs else "it has no candidates"
            raise UnreachableReturnError(
                f"scenario {name!r} has no candidate with ROI of at least {minimal_roi:g}: {best}"
            )
    least = math.fsum(min(design.cost for design in designs) for designs in admissible.values())
    limit = budget + _SLACK * max(budget, 1.0)
    if least > limit:
        raise ValueError(f"budget {budget:g} is too small: the cheapest admissible designs cost {least:g} together")

    states = [_Sum(0.0, 0.0, ())]
    for designs in admissible.values():
        sums = (
            _Sum(state.cost + design.cost, state.gain + design.gain, (*state.chosen, design))
            for state in states
            for design in designs
        )
        states = pareto_front([state for state in sums if state.cost <= limit])
    cost, gain, chosen = states[-1]
    counts = (total, sum(map(len, admissible.values())))
    return Allocation(dict(zip(admissible, chosen)), gain, cost, float(budget), minimal_roi, counts)
