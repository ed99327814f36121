"""Grid files: one YAML that spans many training runs, read strictly.

    name: table1
    recipe: ctr_sink/movielens_small_scratch    # base recipe of every point: a path (also beside the grid file) or a shipped name
    output_dir: runs/table1                     # default: runs/<name>
    seeds: [0, 1, 2]
    compare_to: lm_ctr                          # the point that the others are tested against
    contrasts: [[two_stage, double]]            # further pairs to test, first - second
    set: {data.num_behaviors: 20}               # values of every point
    axes:                                       # crossed with each other and with the points
      backbone:
        - {name: roberta, label: RoBERTa, set: {model.backbone: FacebookAI/roberta-base}}
        - {name: qwen2, label: Qwen2, set: {model.backbone: Qwen/Qwen2-0.5B}}
    points:
      - {name: lm_ctr, label: LM-CTR, set: {model.sink_kind: none}}
      - {name: sink, label: "w [SINK]", set: {model.sink_kind: sink}}

With axes a combination's name joins its parts (`roberta-lm_ctr`); `compare_to: lm_ctr` and the names in `contrasts` mean the points of
the same axis values. An axis value or a point may have its own `recipe`, a point its own `compare_to` (null: none). Values are applied in the
order grid, axes, point, command line.

A grid may start from another one, its `base` (a file beside it, or a shipped name), and state only what differs: mappings are merged key
by key, lists replaced.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from lmctr.runs.recipe import Recipe, RecipeError, find_recipe, load_recipe, read_with_base
from lmctr.utils.suggest import did_you_mean
from lmctr.utils.values import Values, read_values

# Recipe keys that the grid itself decides.
_OWN = {"training.seed": "the grid's `seeds` decide it", "training.output_dir": "the grid's `output_dir` decides it"}


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        raise ValueError(
            f"the name {name!r} becomes a folder; accepted: letters, digits and _ . + - , a letter or digit first"
        )
    return name


def _dotted_keys(values: dict[str, Any]) -> dict[str, Any]:
    for key in values:
        if not isinstance(key, str) or "." not in key:
            raise ValueError(f"set: {key!r} is no dotted recipe key; write for example data.num_behaviors")
        if key in _OWN:
            raise ValueError(f"set: {key} is not set in a grid; {_OWN[key]}")
    return values


Name = Annotated[str, AfterValidator(_folder_name)]
Text = Annotated[str, Field(min_length=1)]
Changes = Annotated[dict, AfterValidator(_dotted_keys)]


class AxisKeys(Values):
    """A value of an axis, or a size of a ladder: values over a recipe."""

    name: Name
    label: Text | None = None
    recipe: Text | None = None
    set: Changes | None = None


class PointKeys(AxisKeys):
    """A point of a grid."""

    compare_to: Text | None = None


class GridKeys(Values):
    """A grid file."""

    name: Name | None = None
    description: str | None = None
    recipe: Text | None = None
    output_dir: Text | None = None
    seeds: list[int] = Field([0], min_length=1)
    compare_to: Text | None = None
    contrasts: list[Annotated[list[Text], Field(min_length=2, max_length=2)]] | None = None
    set: Changes | None = None
    axes: dict[str, Annotated[list[AxisKeys], Field(min_length=1)]] | None = None
    points: Annotated[list[PointKeys], Field(min_length=1)] | None = None

    @field_validator("seeds", mode="before")
    @classmethod
    def _check_seeds(cls, seeds: Any) -> Any:
        whole = isinstance(seeds, list) and all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds)
        if not whole or not seeds or min(seeds) < 0:
            raise ValueError(f"seeds is {seeds!r}, accepted: a list of whole numbers from 0, such as [0, 1, 2]")
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds holds {_first_double(seeds)} twice")
        return seeds

    @model_validator(mode="after")
    def _has_points(self) -> GridKeys:
        if not self.points and not self.axes:
            raise ValueError("a grid needs points, or axes, or both")
        return self


@dataclass(frozen=True)
class Point:
    """One point of a grid: a recipe without its seed.

    Attributes:
        name: folder name below the grid's `output_dir`.
        label: what tables call it: the labels of its axis values and its own.
        own_label: its own label.
        recipe: path of the base recipe.
        values: dotted recipe keys and their values, in the order in which they are applied.
        compare_to: name of the point that it is tested against, or None.
        axes: names of the axis values by axis.
    """

    name: str
    label: str
    own_label: str
    recipe: Path
    values: dict[str, Any]
    compare_to: str | None = None
    axes: dict[str, str] = field(default_factory=dict)

    def overrides(self, seed: int, more: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str]]:
        """The point as `lmctr train` overrides: (dotted key, YAML text) pairs; `more` come from the command line."""
        own = [(key, json.dumps(value, ensure_ascii=False)) for key, value in self.values.items()]
        return [*own, *more, ("training.seed", str(seed))]


@dataclass(frozen=True)
class Grid:
    """A checked grid file."""

    path: Path
    name: str
    description: str
    output_dir: Path
    seeds: list[int]
    points: list[Point]
    contrasts: list[tuple[str, str]] = field(default_factory=list)

    def point(self, name: str) -> Point:
        """The point of this name."""
        return next(point for point in self.points if point.name == name)

    def select(self, patterns: Sequence[str]) -> Grid:
        """The points whose names match one of the shell-like patterns; all of them without patterns.

        Raises:
            ValueError: a pattern that matches nothing.
        """
        for pattern in patterns:
            if not any(fnmatchcase(point.name, pattern) for point in self.points):
                raise ValueError(
                    f"--only {pattern}: no point of {self.path} has such a name; points: "
                    f"{', '.join(point.name for point in self.points)}"
                )
        chosen = [p for p in self.points if not patterns or any(fnmatchcase(p.name, pattern) for pattern in patterns)]
        names = {point.name for point in chosen}
        return replace(self, points=chosen, contrasts=[pair for pair in self.contrasts if names.issuperset(pair)])


def load_grid(name: str | Path, output_dir: str | None = None) -> Grid:
    """Read and check a grid file.

    Args:
        name: path of a YAML file, or the name of a grid that ships with lmctr (`ctr_sink/tables/trial_synthetic`).
        output_dir: instead of the file's own.

    Raises:
        ValueError: unknown keys (with the nearest known one), wrong types, doubled names, names that lead nowhere.
        FileNotFoundError: no such grid, or no such recipe.
    """
    path = find_recipe(name, "grid")
    return grid_of(read_with_base(path, str(name)), path, str(name), output_dir)


def grid_of(content: Any, path: Path, name: str, output_dir: str | None = None) -> Grid:
    """The content of a grid file, checked as `load_grid` does. path: what its recipes are looked up beside. name: the file in messages."""
    keys = read_values(GridKeys, content, name)
    title = keys.name or path.stem
    points = list(_cross(path, name, keys))
    known = [point.name for point in points]
    if len(set(known)) < len(known):
        raise ValueError(f"{name}: two points are named {_first_double(known)!r}")
    contrasts = list(dict.fromkeys(_contrasts(keys)))
    named = [(f"compare_to of point {point.name!r} is", point.compare_to) for point in points if point.compare_to]
    for what, other in [*named, *(("contrasts names", end) for pair in contrasts for end in pair)]:
        if other not in known:
            hint = did_you_mean(other, [*known, *(entry.name for entry in keys.points or ())], "did you mean")
            raise ValueError(f"{name}: {what} {other!r}, which is no point;{hint} points: {', '.join(known)}")
    points = [replace(point, compare_to=None) if point.compare_to == point.name else point for point in points]
    folder = Path(output_dir or keys.output_dir or f"runs/{title}")
    return Grid(path, title, keys.description or "", folder, keys.seeds, points, contrasts)


def check_recipes(grid: Grid, more: Sequence[tuple[str, str]] = ()) -> dict[tuple[str, int], Recipe]:
    """The checked recipe of each point and seed, read before anything trains.

    Raises:
        ValueError: a key or value that the recipe reader refuses, a learning rate that trains nothing; the message names the point.
    """
    recipes = {}
    for point in grid.points:
        of_point = dict.fromkeys(point.values.keys() - dict(more).keys(), f"set of point {point.name!r}")
        for seed in grid.seeds:
            try:
                recipe = load_recipe(point.recipe, point.overrides(seed, more), of_point)
            except RecipeError as error:
                raise ValueError(f"{grid.path}: point {point.name!r}: {error}") from error
            _check_rates(recipe.training, f"{grid.path}: point {point.name!r}")
            recipe.training.pop("output_dir", None)
            recipes[point.name, seed] = recipe
    return recipes


def _check_rates(training: dict[str, Any], where: str) -> None:
    """A run without a rate would be done without having learned, and be compared with the others."""
    rates = [training.get(f"{name}learning_rate") for name in ("", "new_modules_", "embedding_")]
    if isinstance(rates[0], (int, float)) and not any(isinstance(rate, (int, float)) and rate > 0 for rate in rates):
        raise ValueError(f"{where}: training.learning_rate is {rates[0]:g}, accepted in a grid: a number above 0")


def _cross(path: Path, where: str, keys: GridKeys) -> Iterator[Point]:
    """Every combination of axis values and points."""
    names = [entry.name for entry in keys.points or ()]
    for choice in itertools.product(*(keys.axes or {}).values()):
        prefix = "-".join(value.name for value in choice)
        for number, entry in enumerate(keys.points or [None]):
            parts = [*choice] if entry is None else [*choice, entry]
            # the last that names one
            recipe = next((part.recipe for part in reversed(parts) if part.recipe), keys.recipe)
            if recipe is None:
                raise ValueError(
                    f"{where}: points, entry {number + 1} has no recipe: give the grid, an axis or each point a base recipe"
                )
            labels = [part.label or part.name for part in parts]
            values = dict(keys.set or {})
            for part in parts:
                values |= part.set or {}
            against = entry.compare_to if entry and "compare_to" in entry.model_fields_set else keys.compare_to
            yield Point(
                "-".join(part.name for part in parts),
                " ".join(labels),
                labels[-1],
                find_base(path, recipe),
                values,
                _beside(prefix, against, names),
                {axis: value.name for axis, value in zip(keys.axes or {}, choice)},
            )


def _contrasts(keys: GridKeys) -> Iterator[tuple[str, str]]:
    """The pairs to test, at every combination of axis values."""
    names = [entry.name for entry in keys.points or ()]
    for choice in itertools.product(*(keys.axes or {}).values()):
        prefix = "-".join(value.name for value in choice)
        yield from (
            (_beside(prefix, one, names), _beside(prefix, other, names)) for one, other in keys.contrasts or ()
        )


def _beside(prefix: str, name: str | None, names: Sequence[str]) -> str | None:
    """The point of this name at the same axis values; a combination's whole name stays as it is."""
    return f"{prefix}-{name}" if prefix and name in names else name


def find_base(grid: Path, recipe: str) -> Path:
    """The base recipe of a grid: beside its file, or as `lmctr train` finds it."""
    beside = Path(grid).parent / recipe
    if beside.is_file():
        return beside
    try:
        return find_recipe(recipe)
    except (FileNotFoundError, ValueError) as error:
        raise FileNotFoundError(f"{grid}: recipe {recipe!r}: there is no file {beside}; {error}") from None


def _first_double(values: Sequence[Any]) -> Any:
    return next(value for number, value in enumerate(values) if value in values[:number])
