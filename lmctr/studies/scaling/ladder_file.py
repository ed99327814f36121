"""Ladder files: one YAML from sizes of a model to a design, read strictly.

name: dnn                              # also the output folder: runs/dnn
recipe: dnn/synthetic                  # base recipe of every size: beside this file, or a shipped name
seeds: [0, 1, 2]
set: {training.epochs: 1}              # values of every size
sizes:                                 # at least four, each a name and values over the recipe
  - {name: w8, set: {model.hidden_units: [8]}}
  - {name: w16, set: {model.hidden_units: [16]}}
metric: auc                            # of the test part (split: validation for the other one)
x: flops_per_sample                    # or flops_per_request, dense_parameters, embedding_parameters, parameters
request: {candidates: 100}             # of FLOPs per request and cost; default: the family's
fit: {complement: true, held_out: 2}   # keys of `lmctr scaling fit`
cost: {latency_ms: 20, base: w16}      # keys of `lmctr scaling cost`; left out: no cost, no design
revenue: {slope: 1000, price: 2}       # G: what the metric is worth, what a machine costs; default: 1 and 1
design: {minimal_roi: 1}               # left out: no design
allocate: {budget: 40, scenarios: [{name: feed, slope: 900}, {name: search, slope: 300, base_machines: 4}]}
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ConfigDict, Field, field_validator, model_validator

from lmctr.evaluation.evaluator import LOWER_IS_BETTER, METRIC_NAMES, RANKING_METRIC_NAMES
from lmctr.runs.recipe import find_recipe, read_with_base
from lmctr.scaling.design import DesignGrid
from lmctr.scaling.fits import LEAST_SIZES, allowed_laws
from lmctr.scaling.options import SizeGridOptions
from lmctr.studies.grids.file import AxisKeys, Grid, Name, Text, find_base, grid_of
from lmctr.studies.scaling.allocate import read_scenario
from lmctr.studies.scaling.options import (
    CRITERIA,
    LAWS,
    X_COLUMNS,
    LawOptions,
    MeasureOptions,
    RequestOptions,
    check_sizes_x,
)
from lmctr.utils.files import write_text
from lmctr.utils.options import check_counts
from lmctr.utils.suggest import did_you_mean
from lmctr.utils.values import Values, dataclass_values, read_values


@dataclass(frozen=True, kw_only=True)
class CostSection(MeasureOptions):
    """How sizes are measured. base: the size in use. base_machines: that serve it."""

    base: str
    base_machines: float = 1.0


class _Numbers(Values):
    """Values whose numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


_LawKeys, _CostKeys, _RequestKeys = map(dataclass_values, (LawOptions, CostSection, RequestOptions))
_GridKeys = dataclass_values(SizeGridOptions)


@contextmanager
def _keys_of(section: str) -> Iterator[None]:
    """What the command line says of its flags, said of the keys of a section."""
    try:
        yield
    except ValueError as error:
        text = str(error).replace("--model", "law")
        text = re.sub(r"--([a-z-]+)", lambda flag: flag[1].replace("-", "_"), text)
        raise ValueError(f"{section}: {text}") from error


class RevenueSection(_Numbers):
    """G: revenue = slope x metric + intercept; the slope is negative of a metric of which less is better. price: of a machine, in the same
    unit. unit: its name."""

    slope: float = 1.0
    intercept: float = 0.0
    price: float = Field(1.0, gt=0)
    unit: str = ""


class DesignSection(_Numbers):
    """The search. base: default that of cost. relative: to the base. grid: keys of `DesignGrid`, for MLP sizes between those of the ladder."""

    minimal_roi: float
    base: str | None = None
    relative: bool = True
    grid: dict[str, Any] | None = None

    def sizes(self) -> DesignGrid:
        """The grid. Raises `ValueError`: an unknown key, or a value out of its range."""
        with _keys_of("design.grid"):
            return DesignGrid(**read_values(_GridKeys, self.grid, "grid").model_dump())


class ScenarioSection(_Numbers):
    """A scenario that serves the ladder's sizes: its own revenue, machines of its base model today, price of one.

    set: recipe values; the ladder is then climbed again with them, in OUTPUT_DIR/scenarios/NAME. seeds: of that; default the ladder's.
    """

    name: Name
    slope: float
    intercept: float = 0.0
    base_machines: float = Field(1.0, gt=0)
    price: float = Field(1.0, gt=0)
    set: dict | None = None
    seeds: list[int] | None = None


class AllocateKeys(_Numbers):
    """The allocation as a ladder file states it."""

    budget: float = Field(ge=0)
    minimal_roi: float = 1.0
    scenarios: list[dict] = Field(min_length=1)


class LadderKeys(Values):
    """A ladder file."""

    name: Name | None = None
    description: str | None = None
    recipe: Text | None = None
    output_dir: Text | None = None
    seeds: list[int] | None = None
    set: dict | None = None
    sizes: list[AxisKeys]
    metric: Text
    split: Literal["test", "validation"] = "test"
    x: Literal[X_COLUMNS] = "flops_per_sample"
    request: _RequestKeys | None = None
    fit: _LawKeys | None = None
    cost: _CostKeys | None = None
    revenue: RevenueSection | None = None
    design: DesignSection | None = None
    allocate: AllocateKeys | None = None

    @field_validator("sizes", mode="before")
    @classmethod
    def _enough(cls, sizes: Any) -> Any:
        if not isinstance(sizes, list) or len(sizes) < LEAST_SIZES:
            found = len(sizes) if isinstance(sizes, list) else repr(sizes)
            raise ValueError(f"sizes is a list of at least {LEAST_SIZES} (a power law needs as many), got {found}")
        return sizes

    @field_validator("metric")
    @classmethod
    def _known(cls, metric: str) -> str:
        known = (*METRIC_NAMES, *RANKING_METRIC_NAMES)
        if metric not in known:
            hint = did_you_mean(metric, known, "did you mean")
            raise ValueError(f"metric is {metric!r}, which no run has;{hint} accepted: {', '.join(known)}")
        return metric

    @model_validator(mode="after")
    def _go_together(self) -> LadderKeys:
        names = [entry.name for entry in self.sizes]
        for key, section in (("cost", self.cost), ("design", self.design)):
            if section is not None and section.base not in (None, *names):
                hint = did_you_mean(section.base, names, "did you mean")
                raise ValueError(f"{key}.base is {section.base!r}, which is no size;{hint} sizes: {', '.join(names)}")
        if self.cost is not None and not 0 < self.cost.base_machines < math.inf:
            raise ValueError(f"cost.base_machines is {self.cost.base_machines}, accepted: a number above 0")
        if self.fit is not None and self.fit.law not in LAWS:
            raise ValueError(f"fit.law is {self.fit.law!r}, accepted: {', '.join(LAWS)}")
        if self.fit is not None and self.fit.criterion not in CRITERIA:
            raise ValueError(f"fit.criterion is {self.fit.criterion!r}, accepted: {', '.join(CRITERIA)}")
        with _keys_of("fit"):
            law = LawOptions(**self.fit.model_dump() if self.fit else {})
        if law.held_out > (most := len(names) - LEAST_SIZES):
            raise ValueError(
                f"fit.held_out is {law.held_out}, accepted for {len(names)} sizes: up to {most}, as a law needs {LEAST_SIZES} others"
            )
        if law.breaks is None or not law.allow_overfit:
            with _keys_of(f"fit, {law.held_out} of {len(names)} sizes held out" if law.held_out else "fit"):
                allowed_laws(law.law, law.breaks, len(names) - law.held_out, law.max_breaks, False)
        with _keys_of("request"):
            request = RequestOptions(**self.request.model_dump() if self.request else {})
            check_counts(request, ("candidates", "length"))
        if self.cost is not None:
            with _keys_of("cost"):
                CostSection(**self.cost.model_dump()).limits()
        for key, section in (("design", self.design), ("allocate", self.allocate)):
            if section is not None and self.cost is None:
                raise ValueError(f"{key} needs machine costs: give the section cost")
        if self.design is not None and self.design.grid is not None:
            check_sizes_x(self.x, "design.grid")
            self.design.sizes()
        return self


@dataclass(frozen=True)
class AllocateSection:
    """Budget over scenarios. scenarios: of the ladder. files: name -> designs of other scenarios, see `lmctr scaling allocate`."""

    budget: float
    minimal_roi: float
    scenarios: tuple[ScenarioSection, ...]
    files: dict[str, list[Any]]


@dataclass(frozen=True)
class Ladder:
    """A checked ladder file. grid_file: its runs as the text of a grid file."""

    path: Path
    name: str
    description: str
    output_dir: Path
    grid: Grid
    grid_file: str
    metric: str
    split: str
    x: str
    request: RequestOptions
    fit: LawOptions
    cost: CostSection | None
    revenue: RevenueSection
    design: DesignSection | None
    allocate: AllocateSection | None
    scenarios: dict[str, Ladder] = field(default_factory=dict)
    """Scenarios with values of their own: the same sizes, without design and allocation."""

    def write_grid(self) -> None:
        """The runs as a grid file, so that `lmctr grid report OUTPUT_DIR/grid.yaml` works too."""
        self.output_dir.mkdir(parents=True, exist_ok=True)
        write_text(self.output_dir / "grid.yaml", self.grid_file)


def load_ladder(name: str | Path, output_dir: str | None = None) -> Ladder:
    """Read and check a ladder file. Nothing is written.

    Args:
        name: path of a YAML file, or the name of a ladder that ships with lmctr (`scaling/ladder_dnn`). output_dir: instead of the file's own.

    Raises:
        ValueError: unknown keys (with the nearest known one), wrong types, names that lead nowhere, fewer than four sizes.
        FileNotFoundError: no such ladder, or no such recipe.
    """
    path, where = find_recipe(name, "ladder"), str(name)
    content = read_with_base(path, where)
    keys = read_values(LadderKeys, content, where)
    title = keys.name or path.stem
    allocation = None if keys.allocate is None else _allocation(keys.allocate, path, f"{where}: allocate")
    folder = Path(output_dir or keys.output_dir or f"runs/{title}")
    ladder = Ladder(
        path,
        title,
        keys.description or "",
        folder,
        *_grid(content, path, where, folder, title),
        keys.metric,
        keys.split,
        keys.x,
        RequestOptions(**keys.request.model_dump() if keys.request else {}),
        LawOptions(**keys.fit.model_dump() if keys.fit else {}),
        keys.cost and CostSection(**keys.cost.model_dump()),
        keys.revenue or RevenueSection(),
        keys.design,
        allocation,
    )
    _check_worth(ladder, where)
    for scenario in allocation.scenarios if allocation else ():
        if scenario.set is None and scenario.seeds is None:
            continue
        own = folder / "scenarios" / scenario.name
        changed = content | {"set": {**(keys.set or {}), **(scenario.set or {})}}
        if scenario.seeds is not None:
            changed["seeds"] = scenario.seeds
        grid, grid_file = _grid(changed, path, where, own, f"{title}-{scenario.name}")
        ladder.scenarios[scenario.name] = dataclasses.replace(
            ladder,
            name=f"{title}-{scenario.name}",
            description=f"Scenario {scenario.name} of {title}.",
            output_dir=own,
            grid=grid,
            grid_file=grid_file,
            design=None,
            allocate=None,
            scenarios={},
        )
    return ladder


def _check_worth(ladder: Ladder, where: str) -> None:
    """Raise `ValueError` where more of a metric would be worth more, of which less is better: the worst size would be chosen."""
    worth = {} if ladder.design is None else {"revenue.slope": ladder.revenue.slope}
    for scenario in ladder.allocate.scenarios if ladder.allocate else ():
        worth[f"allocate: slope of {scenario.name}"] = scenario.slope
    for key, slope in worth.items():
        if slope > 0 and ladder.metric.endswith(LOWER_IS_BETTER):
            raise ValueError(
                f"{where}: {key} is {slope:g}, but a lower {ladder.metric} is the better one: give a negative slope, what a unit of it costs"
            )


def _grid(values: dict[str, Any], path: Path, where: str, folder: Path, title: str) -> tuple[Grid, str]:
    """The runs as a checked grid, and as the text of a grid file."""
    content: dict[str, Any] = {"name": f"{title}-sizes", "output_dir": str(folder / "runs")}
    if values.get("recipe") is not None:
        content["recipe"] = str(find_base(path, values["recipe"]).resolve())
    for key in ("seeds", "set"):
        if key in values:
            content[key] = values[key]
    content["points"] = [
        entry | ({"recipe": str(find_base(path, entry["recipe"]).resolve())} if entry.get("recipe") else {})
        for entry in values["sizes"]
    ]
    return grid_of(content, path, where), yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _allocation(keys: AllocateKeys, path: Path, where: str) -> AllocateSection:
    own, files = [], {}
    for number, entry in enumerate(keys.scenarios):
        place = f"{where}: scenarios, entry {number + 1}"
        if "candidates" in entry:
            name, designs = read_scenario(entry, path, place)
            files[name] = designs
        else:
            own.append(read_values(ScenarioSection, entry, place))
    names = [scenario.name for scenario in own] + list(files)
    if len(set(names)) < len(keys.scenarios):
        raise ValueError(f"{where}: two scenarios have one name: {', '.join(names)}")
    return AllocateSection(keys.budget, keys.minimal_roi, tuple(own), files)
