"""`lmctr scaling allocate FILE`: one design per scenario under one budget.

A CSV file has a row per candidate, with the columns scenario, design, gain and cost. A YAML file names a file or lists the candidates of each
scenario, and may scale them:

    budget: 40                      # or --budget
    minimal_roi: 1                  # or --minimal-roi; the paper's 1 is the default
    scenarios:
      - {name: matching, candidates: matching.csv, gain: revenue, cost: machines, cost_factor: 12.5}
      - {name: pre_ranking, candidates: [{design: small, gain: 10, cost: 4}, {design: large, gain: 14, cost: 9}]}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from lmctr.scaling.allocation import Allocation, allocate, check_designs
from lmctr.scaling.design import Design
from lmctr.studies.scaling.options import AllocateOptions
from lmctr.studies.scaling.tables import compact, show_and_write, sizes_text
from lmctr.utils.files import check_file, read_yaml
from lmctr.utils.suggest import errors_of
from lmctr.utils.tables import read_csv
from lmctr.utils.values import Values, read_values


class _Plan(Values):
    budget: float | None = None
    minimal_roi: float = 1.0
    scenarios: Any = None


class _Scenario(Values):
    name: str = Field(min_length=1)
    candidates: Any = None
    gain: str = "gain"
    cost: str = "cost"
    gain_factor: float = 1.0
    cost_factor: float = 1.0


class _Candidate(Values):
    design: Any = None
    gain: float
    cost: float


def run(options: AllocateOptions) -> None:
    found = allocate_file(options)
    show_and_write(options, allocation_lines(found), allocation_table(found), allocation_dict(found))


def allocate_file(options: AllocateOptions) -> Allocation:
    """One design per scenario of a file.

    Raises:
        ValueError: wrong columns, keys or values, no budget, a scenario or budget that is infeasible. FileNotFoundError: no such file.
    """
    scenarios, budget, minimal_roi = read_scenarios(options.file)
    budget = budget if options.budget is None else options.budget
    minimal_roi = minimal_roi if options.minimal_roi is None else options.minimal_roi
    if budget is None:
        raise ValueError(f"{options.file} sets no budget: give --budget")
    return allocate(scenarios, budget, minimal_roi)


def read_scenarios(path: str) -> tuple[dict[str, list[Design]], float | None, float]:
    """Candidates by scenario, budget (None where the file has none) and minimal ROI.

    Raises:
        ValueError: wrong columns, keys or values. FileNotFoundError: no such file.
    """
    check_file(path)
    if Path(path).suffix not in (".yaml", ".yml"):
        found: dict[str, list[Design]] = {}
        for row in read_csv(path, text=["scenario", "design"], numbers=["gain", "cost"]):
            found.setdefault(row["scenario"], []).append(Design(row["design"], row["gain"], row["cost"]))
        for name, designs in found.items():
            _check_names(f"{path}: scenario {name!r}", designs)
        return found, None, 1.0
    plan, found = read_values(_Plan, read_yaml(path), path), {}
    if not isinstance(plan.scenarios, list) or not plan.scenarios:
        raise ValueError(f"{path}: scenarios is {plan.scenarios!r}, accepted: a list of {{name, candidates}}")
    for number, entry in enumerate(plan.scenarios):
        name, designs = read_scenario(entry, Path(path), f"{path}: scenarios, entry {number + 1}")
        if name in found:
            raise ValueError(f"{path}: two scenarios are named {name!r}")
        found[name] = designs
    return found, plan.budget, plan.minimal_roi


def read_scenario(entry: Any, path: Path, where: str) -> tuple[str, list[Design]]:
    """Name and candidates of one scenario; files are beside `path`."""
    values = read_values(_Scenario, entry, where)
    if isinstance(values.candidates, str):
        beside, columns = path.parent / values.candidates, [values.gain, values.cost]
        rows = read_csv(beside if beside.is_file() else values.candidates, text=["design"], numbers=columns)
        triples = [(row["design"], row[values.gain], row[values.cost]) for row in rows]
    elif isinstance(values.candidates, list) and values.candidates:
        spots = (f"{where}, candidate {place + 1}" for place in range(len(values.candidates)))
        rows = [read_values(_Candidate, row, spot) for row, spot in zip(values.candidates, spots)]
        triples = [(str(row.design), row.gain, row.cost) for row in rows]
    else:
        raise ValueError(
            f"{where}: candidates is {values.candidates!r}, accepted: a CSV file, or a list of {{design, gain, cost}}"
        )
    designs = [Design(design, gain * values.gain_factor, cost * values.cost_factor) for design, gain, cost in triples]
    _check_names(where, designs)
    with errors_of(where):
        check_designs(values.name, designs)
    return values.name, designs


def _check_names(where: str, designs: list[Design]) -> None:
    """Two candidates of one name could not be told apart in the result. Those without one are."""
    names = [design.sizes for design in designs if design.sizes != "None"]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{where}: design {twice!r} is there twice; give each a name of its own")


def allocation_lines(found: Allocation) -> list[str]:
    """The result in words."""
    given, admissible = found.num_candidates
    return [
        f"{len(found.chosen)} scenarios, {given:,} candidates, {admissible:,} with ROI of at least {found.minimal_roi:g}",
        f"gain {found.gain:.6g} for {found.cost:.6g} of the budget of {found.budget:.6g}",
    ]


def allocation_table(found: Allocation) -> list[list[str]]:
    rows = [["scenario", "design", "gain", "cost", "ROI"]]
    for name, design in found.chosen.items():
        rows.append([name, sizes_text(design.sizes), f"{design.gain:.6g}", f"{design.cost:.6g}", compact(design.roi)])
    return [*rows, ["together", "", f"{found.gain:.6g}", f"{found.cost:.6g}", ""]]


def allocation_dict(found: Allocation) -> dict[str, Any]:
    """As JSON can hold it."""
    chosen = {
        name: {"design": sizes_text(design.sizes), "gain": design.gain, "cost": design.cost}
        for name, design in found.chosen.items()
    }
    totals = {name: getattr(found, name) for name in ("gain", "cost", "budget", "minimal_roi")}
    return {"chosen": chosen, **totals}
