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

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmctr.scaling.allocation import Allocation, allocate
from lmctr.scaling.design import Design
from lmctr.studies.scaling.options import AllocateOptions
from lmctr.studies.scaling.tables import compact, sizes_text
from lmctr.utils.files import check_file, read_yaml
from lmctr.utils.results import check_output, write_result
from lmctr.utils.suggest import unknown_key_message
from lmctr.utils.tables import markdown_table, read_csv, text_table

_KEYS = ("budget", "minimal_roi", "scenarios")
_SCENARIO_KEYS = ("name", "candidates", "gain", "cost", "gain_factor", "cost_factor")
_CANDIDATE_KEYS = ("design", "gain", "cost")


def run(options: AllocateOptions) -> None:
    """Allocate, print, and write where `options.output` asks for it."""
    check_output(options.output)
    found, minimal_roi = allocate_file(options)
    lines, table = allocation_lines(found, minimal_roi), allocation_table(found)
    print("\n".join([*lines, text_table(table)]))
    text = "\n\n".join([*lines, markdown_table(table), f"`{options.command}`"])
    write_result(options.output, allocation_dict(found, minimal_roi) | {"command": options.command}, text)


def allocate_file(options: AllocateOptions) -> tuple[Allocation, float]:
    """One design per scenario of a file, and the minimal ROI that was taken.

    Raises:
        ValueError: wrong columns, keys or values, no budget, a scenario or budget that is infeasible. FileNotFoundError: no such file.
    """
    scenarios, budget, minimal_roi = read_scenarios(options.file)
    budget = budget if options.budget is None else options.budget
    minimal_roi = minimal_roi if options.minimal_roi is None else options.minimal_roi
    if budget is None:
        raise ValueError(f"{options.file} sets no budget: give --budget")
    return allocate(scenarios, budget, minimal_roi), minimal_roi


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
        return found, None, 1.0
    values = read_yaml(path)
    _check_keys(values, _KEYS, path)
    entries = values.get("scenarios")
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path}: scenarios is {entries!r}, accepted: a list of {{name, candidates}}")
    found = {}
    for number, entry in enumerate(entries):
        name, designs = read_scenario(entry, Path(path), f"{path}: scenarios, entry {number + 1}")
        if name in found:
            raise ValueError(f"{path}: two scenarios are named {name!r}")
        found[name] = designs
    budget = values.get("budget")
    minimal_roi = number_of(values, "minimal_roi", 1.0, path)
    return found, None if budget is None else number_of(values, "budget", 0.0, path), minimal_roi


def read_scenario(entry: Any, path: Path, where: str) -> tuple[str, list[Design]]:
    """Name and candidates of one scenario; files are beside `path`."""
    _check_keys(entry, _SCENARIO_KEYS, where)
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: name is {name!r}, accepted: text")
    candidates = entry.get("candidates")
    columns = [entry.get("gain", "gain"), entry.get("cost", "cost")]
    if isinstance(candidates, str):
        beside = path.parent / candidates
        rows = read_csv(beside if beside.is_file() else candidates, text=["design"], numbers=columns)
        triples = [(row["design"], row[columns[0]], row[columns[1]]) for row in rows]
    elif isinstance(candidates, list) and candidates:
        triples = []
        for place, row in enumerate(candidates):
            spot = f"{where}, candidate {place + 1}"
            _check_keys(row, _CANDIDATE_KEYS, spot)
            triples.append(
                (str(row.get("design")), number_of(row, "gain", None, spot), number_of(row, "cost", None, spot))
            )
    else:
        raise ValueError(
            f"{where}: candidates is {candidates!r}, accepted: a CSV file, or a list of {{design, gain, cost}}"
        )
    gain_factor, cost_factor = (number_of(entry, f"{kind}_factor", 1.0, where) for kind in ("gain", "cost"))
    return name, [Design(design, gain * gain_factor, cost * cost_factor) for design, gain, cost in triples]


def number_of(values: Mapping[str, Any], key: str, default: float | None, where: Any) -> float:
    """A finite number of a mapping. Raises `ValueError`."""
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{where}: {key} is {value!r}, accepted: a number")
    return float(value)


def _check_keys(values: Any, known: tuple[str, ...], where: Any) -> None:
    if not isinstance(values, dict):
        raise ValueError(f"{where}: expected a mapping with the keys {', '.join(known)}, got {values!r}")
    for key in values:
        if key not in known:
            raise ValueError(unknown_key_message(str(key), known, str(where)))


def allocation_lines(found: Allocation, minimal_roi: float) -> list[str]:
    """The result in words."""
    given, admissible = found.num_candidates
    return [
        f"{len(found.chosen)} scenarios, {given:,} candidates, {admissible:,} with ROI of at least {minimal_roi:g}",
        f"gain {found.gain:.6g} for {found.cost:.6g} of the budget of {found.budget:.6g}",
    ]


def allocation_table(found: Allocation) -> list[list[str]]:
    """Cells for people."""
    rows = [["scenario", "design", "gain", "cost", "ROI"]]
    for name, design in found.chosen.items():
        rows.append([name, sizes_text(design.sizes), f"{design.gain:.6g}", f"{design.cost:.6g}", compact(design.roi)])
    return [*rows, ["together", "", f"{found.gain:.6g}", f"{found.cost:.6g}", ""]]


def allocation_dict(found: Allocation, minimal_roi: float) -> dict[str, Any]:
    """As JSON can hold it."""
    return {
        "chosen": {
            name: {"design": sizes_text(design.sizes), "gain": design.gain, "cost": design.cost}
            for name, design in found.chosen.items()
        },
        "gain": found.gain,
        "cost": found.cost,
        "budget": found.budget,
        "minimal_roi": minimal_roi,
    }
