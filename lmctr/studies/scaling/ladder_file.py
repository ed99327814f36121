"""Ladder files: one YAML from sizes of a model to a design, read strictly.

name: dnn                              # also the output folder: runs/dnn
recipe: dnn/synthetic                  # base recipe of every size: beside this file, or a shipped name
seeds: [0, 1, 2]
set: {training.stage2_epochs: 1}       # values of every size
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmctr.studies.grids.file import _NAME, Grid, _find_base, load_grid
from lmctr.studies.scaling.allocate import read_scenario
from lmctr.studies.scaling.options import LAWS, LawOptions, MeasureOptions, RequestOptions
from lmctr.utils.files import read_yaml, write_text
from lmctr.utils.suggest import nearest, unknown_key_message
from lmctr.utils.values import dataclass_values, read_values

X_COLUMNS = ("flops_per_sample", "flops_per_request", "dense_parameters", "embedding_parameters", "parameters")
KEYS = ("name", "description", "recipe", "output_dir", "seeds", "set", "sizes", "metric", "split", "x", "request", "fit", "cost", "revenue", "design", "allocate")  # fmt: skip
SIZE_KEYS = ("name", "label", "recipe", "set")


@dataclass(frozen=True, kw_only=True)
class CostSection(MeasureOptions):
    """How sizes are measured. base: the size in use. base_machines: that serve it."""

    base: str
    base_machines: float = 1.0


@dataclass(frozen=True)
class RevenueSection:
    """G: revenue = slope x metric + intercept. price: of a machine, in the same unit. unit: its name."""

    slope: float = 1.0
    intercept: float = 0.0
    price: float = 1.0
    unit: str = ""


@dataclass(frozen=True)
class DesignSection:
    """The search. base: default that of cost. relative: to the base. grid: keys of `DesignGrid`, for MLP sizes between those of the ladder."""

    minimal_roi: float
    base: str | None = None
    relative: bool = True
    grid: dict[str, Any] | None = None


@dataclass(frozen=True)
class ScenarioSection:
    """A scenario that serves the ladder's sizes: its own revenue, machines of its base model today, price of one.

    set: recipe values; the ladder is then climbed again with them, in OUTPUT_DIR/scenarios/NAME. seeds: of that; default the ladder's.
    """

    name: str
    slope: float
    intercept: float = 0.0
    base_machines: float = 1.0
    price: float = 1.0
    set: dict[str, Any] | None = None
    seeds: list[int] | None = None


@dataclass(frozen=True)
class AllocateSection:
    """Budget over scenarios. scenarios: of the ladder. files: name -> designs of other scenarios, see `lmctr scaling allocate`."""

    budget: float
    minimal_roi: float
    scenarios: tuple[ScenarioSection, ...]
    files: dict[str, list[Any]]


@dataclass(frozen=True)
class Ladder:
    """A checked ladder file."""

    path: Path
    name: str
    description: str
    output_dir: Path
    grid: Grid
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


def load_ladder(name: str | Path, output_dir: str | None = None) -> Ladder:
    """Read and check a ladder file, and write its grid of runs to `OUTPUT_DIR/grid.yaml`.

    Args:
        name: path of a YAML file, or the name of a ladder that ships with lmctr (`scaling/ladder_dnn`). output_dir: instead of the file's own.

    Raises:
        ValueError: unknown keys (with the nearest known one), wrong types, names that lead nowhere, fewer than four sizes.
        FileNotFoundError: no such ladder, or no such recipe.
    """
    from lmctr.runs.recipe import find_recipe

    path = find_recipe(name)
    where = str(name)
    values = _mapping(read_yaml(path), KEYS, where)
    title = str(values.get("name") or path.stem)
    if not _NAME.fullmatch(title):
        raise ValueError(f"{where}: the name {title!r} becomes a folder; accepted: letters, digits and _ . + -")
    sizes = values.get("sizes")
    if not isinstance(sizes, list) or len(sizes) < 4:
        found = len(sizes) if isinstance(sizes, list) else repr(sizes)
        raise ValueError(f"{where}: sizes is a list of at least 4 (a power law needs as many), got {found}")
    for number, entry in enumerate(sizes):
        _mapping(entry, SIZE_KEYS, f"{where}: sizes, entry {number + 1}")
    metric, x, split = values.get("metric"), values.get("x", "flops_per_sample"), values.get("split", "test")
    if not isinstance(metric, str) or not metric:
        raise ValueError(f"{where}: metric is {metric!r}, accepted: the name of a metric of metrics.json, such as auc")
    if x not in X_COLUMNS:
        raise ValueError(f"{where}: x is {x!r}, accepted: {', '.join(X_COLUMNS)}")
    if split not in ("test", "validation"):
        raise ValueError(f"{where}: split is {split!r}, accepted: test, validation")
    fit = _section(LawOptions, values.get("fit") or {}, f"{where}: fit")
    if fit.law not in LAWS:
        raise ValueError(f"{where}: fit.law is {fit.law!r}, accepted: {', '.join(LAWS)}")
    names = [str(entry.get("name")) for entry in sizes]
    cost = _optional(CostSection, values, "cost", where)
    if cost is not None:
        _check_size(cost.base, names, f"{where}: cost.base")
        try:
            cost.limits()
        except ValueError as error:
            raise ValueError(f"{where}: cost: {error}") from error
        if not cost.base_machines > 0:
            raise ValueError(f"{where}: cost.base_machines is {cost.base_machines}, accepted: a number above 0")
    design = _optional(DesignSection, values, "design", where)
    allocation = _allocation(values.get("allocate"), path, where)
    for key, section in (("design", design), ("allocate", allocation)):
        if section is not None and cost is None:
            raise ValueError(f"{where}: {key} needs machine costs: give the section cost")
    if design is not None and design.base is not None:
        _check_size(design.base, names, f"{where}: design.base")
    if design is not None and design.grid is not None and x != "flops_per_sample":
        raise ValueError(f"{where}: design.grid knows its sizes' flops_per_sample only, but x is {x}")
    folder = Path(output_dir or values.get("output_dir") or f"runs/{title}")
    ladder = Ladder(
        path,
        title,
        str(values.get("description") or ""),
        folder,
        _grid(values, path, folder, title),
        metric,
        split,
        x,
        _section(RequestOptions, values.get("request") or {}, f"{where}: request"),
        fit,
        cost,
        _section(RevenueSection, values.get("revenue") or {}, f"{where}: revenue"),
        design,
        allocation,
    )
    for scenario in allocation.scenarios if allocation else ():
        if scenario.set is None and scenario.seeds is None:
            continue
        own = folder / "scenarios" / scenario.name
        name = f"{title}-{scenario.name}"
        changed = values | {"set": {**(values.get("set") or {}), **(scenario.set or {})}}
        if scenario.seeds is not None:
            changed["seeds"] = scenario.seeds
        ladder.scenarios[scenario.name] = dataclasses.replace(
            ladder,
            name=name,
            description=f"Scenario {scenario.name} of {title}.",
            output_dir=own,
            grid=_grid(changed, path, own, name),
            design=None,
            allocate=None,
            scenarios={},
        )
    return ladder


def _grid(values: dict[str, Any], path: Path, folder: Path, title: str) -> Grid:
    """The runs as a grid file, so that `lmctr grid report OUTPUT_DIR/grid.yaml` works too."""
    import yaml

    content: dict[str, Any] = {"name": f"{title}-sizes", "output_dir": str(folder / "runs")}
    if values.get("recipe") is not None:
        content["recipe"] = str(_base(path, values["recipe"]))
    for key in ("seeds", "set"):
        if key in values:
            content[key] = values[key]
    content["points"] = [
        entry | ({"recipe": str(_base(path, entry["recipe"]))} if entry.get("recipe") else {})
        for entry in values["sizes"]
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "grid.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return load_grid(folder / "grid.yaml")


def _base(path: Path, recipe: Any) -> Path:
    if not isinstance(recipe, str):
        raise ValueError(f"{path}: recipe is {recipe!r}, accepted: the name or path of a recipe")
    return _find_base(path, recipe).resolve()


def _allocation(raw: Any, path: Path, where: str) -> AllocateSection | None:
    if raw is None:
        return None
    spot = f"{where}: allocate"
    values = _mapping(raw, ("budget", "minimal_roi", "scenarios"), spot)
    entries = values.get("scenarios")
    if not isinstance(entries, list) or not entries:
        raise ValueError(
            f"{spot}: scenarios is {entries!r}, accepted: a list of {{name, slope, base_machines, price}}"
        )
    own, files = [], {}
    for number, entry in enumerate(entries):
        place = f"{spot}: scenarios, entry {number + 1}"
        if isinstance(entry, dict) and "candidates" in entry:
            name, designs = read_scenario(entry, path, place)
            files[name] = designs
        else:
            own.append(_section(ScenarioSection, entry, place))
    names = [scenario.name for scenario in own] + list(files)
    for scenario in own:
        if not _NAME.fullmatch(scenario.name):
            raise ValueError(
                f"{spot}: the name {scenario.name!r} becomes a folder; accepted: letters, digits and _ . + -"
            )
        if not scenario.base_machines > 0:
            raise ValueError(
                f"{spot}: base_machines of {scenario.name} is {scenario.base_machines}, accepted: above 0"
            )
    if len(set(names)) < len(entries):
        raise ValueError(f"{spot}: two scenarios have one name: {', '.join(names)}")
    top = _section(_Top, {key: value for key, value in values.items() if key != "scenarios"}, spot)
    return AllocateSection(top.budget, top.minimal_roi, tuple(own), files)


@dataclass(frozen=True)
class _Top:
    budget: float
    minimal_roi: float = 1.0


def _optional(kind: type, values: dict[str, Any], key: str, where: str) -> Any:
    return None if values.get(key) is None else _section(kind, values[key], f"{where}: {key}")


def _section(kind: type, raw: Any, where: str) -> Any:
    """A mapping as a dataclass. Raises `ValueError`: an unknown or missing key, a wrong type."""
    return kind(**read_values(dataclass_values(kind), raw, where).model_dump())


def _mapping(raw: Any, known: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"{where}: expected a mapping with the keys {', '.join(known)}, got {raw!r}")
    for key in raw:
        if key not in known:
            raise ValueError(unknown_key_message(str(key), known, where))
    return raw


def _check_size(name: str, names: list[str], where: str) -> None:
    if name not in names:
        guess = nearest(name, names)
        hint = f" did you mean {guess!r}?" if guess else ""
        raise ValueError(f"{where} is {name!r}, which is no size;{hint} sizes: {', '.join(names)}")
