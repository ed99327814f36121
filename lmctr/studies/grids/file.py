"""Grid files: one YAML that spans many training runs, read strictly.

    name: table1
    recipe: ctr_sink/movielens_small_scratch    # base recipe of every point: a path (also beside the grid file) or a shipped name
    output_dir: runs/table1                     # default: runs/<name>
    seeds: [0, 1, 2]
    compare_to: lm_ctr                          # the point that the others are tested against
    set: {data.num_behaviors: 20}               # values of every point
    axes:                                       # crossed with each other and with the points
      backbone:
        - {name: roberta, label: RoBERTa, set: {model.backbone: FacebookAI/roberta-base}}
        - {name: qwen2, label: Qwen2, set: {model.backbone: Qwen/Qwen2-0.5B}}
    points:
      - {name: lm_ctr, label: LM-CTR, set: {model.sink_kind: none}}
      - {name: sink, label: "w [SINK]", set: {model.sink_kind: sink}}

With axes a combination's name joins its parts (`roberta-lm_ctr`), and `compare_to: lm_ctr` means the point of the same axis
values. An axis value or a point may have its own `recipe`, a point its own `compare_to` (null: none). Values are applied in the
order grid, axes, point, command line.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmctr.runs.recipe import Recipe, RecipeError, find_recipe, load_recipe
from lmctr.utils.files import read_yaml
from lmctr.utils.suggest import nearest, unknown_key_message

GRID_KEYS = ("name", "description", "recipe", "output_dir", "seeds", "compare_to", "set", "axes", "points")
POINT_KEYS = ("name", "label", "recipe", "compare_to", "set")
AXIS_KEYS = ("name", "label", "recipe", "set")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
# Recipe keys that the grid itself decides.
_OWN = {
    "training.seed": "the grid's `seeds` decide it",
    "training.output_dir": "the grid's `output_dir` decides it",
}


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

    def point(self, name: str) -> Point:
        """The point of this name."""
        return next(point for point in self.points if point.name == name)

    def select(self, patterns: Sequence[str]) -> Grid:
        """The points whose names match one of the shell-like patterns; all of them without patterns.

        Raises:
            ValueError: a pattern that matches nothing.
        """
        from dataclasses import replace
        from fnmatch import fnmatchcase

        for pattern in patterns:
            if not any(fnmatchcase(point.name, pattern) for point in self.points):
                raise ValueError(
                    f"--only {pattern}: no point of {self.path} has such a name; points: "
                    f"{', '.join(point.name for point in self.points)}"
                )
        chosen = [p for p in self.points if not patterns or any(fnmatchcase(p.name, pattern) for pattern in patterns)]
        return replace(self, points=chosen)


def load_grid(name: str | Path, output_dir: str | None = None) -> Grid:
    """Read and check a grid file.

    Args:
        name: path of a YAML file, or the name of a grid that ships with lmctr (`ctr_sink/tables/table1_small`).
        output_dir: instead of the file's own.

    Raises:
        ValueError: unknown keys (with the nearest known one), wrong types, doubled names, names that lead nowhere.
        FileNotFoundError: no such grid, or no such recipe.
    """
    path = find_recipe(name)
    where = str(name)
    raw = read_yaml(path)
    values = _mapping(raw, GRID_KEYS, where)
    title = _text(values, "name", where, default=Path(path).stem)
    _check_name(title, f"{where}: name")
    seeds = values.get("seeds", [0])
    if (
        not isinstance(seeds, list)
        or not seeds
        or any(not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 for seed in seeds)
    ):
        raise ValueError(f"{where}: seeds is {seeds!r}, accepted: a list of whole numbers from 0, such as [0, 1, 2]")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{where}: seeds holds {_first_double(seeds)} twice")
    axes = _axes(values.get("axes"), where)
    entries = values.get("points")
    if entries is None:
        if not axes:
            raise ValueError(f"{where}: a grid needs points, or axes, or both")
        entries = [{}]
    elif not isinstance(entries, list) or not entries:
        raise ValueError(f"{where}: points is {entries!r}, accepted: a list of points {{name, label, set}}")
    common = _values(values.get("set"), f"{where}: set")
    points = _cross(path, where, values, axes, entries, common, implicit="points" not in values)
    folder = output_dir or _text(values, "output_dir", where, default=f"runs/{title}")
    description = _text(values, "description", where, default="")
    return Grid(path, title, description, Path(folder), seeds, points)


def check_recipes(grid: Grid, more: Sequence[tuple[str, str]] = ()) -> dict[tuple[str, int], Recipe]:
    """The checked recipe of each point and seed, read before anything trains.

    Raises:
        ValueError: a key or value that the recipe reader refuses; the message names the point.
    """
    recipes = {}
    for point in grid.points:
        of_point = dict.fromkeys(point.values.keys() - dict(more).keys(), f"set of point {point.name!r}")
        for seed in grid.seeds:
            try:
                recipe = load_recipe(point.recipe, point.overrides(seed, more), of_point)
            except RecipeError as error:
                raise ValueError(f"{grid.path}: point {point.name!r}: {error}") from error
            recipe.training.pop("output_dir", None)
            recipes[point.name, seed] = recipe
    return recipes


def _cross(
    path: Path, where: str, values: Mapping, axes: dict, entries: list, common: dict, implicit: bool
) -> list[Point]:
    base = _text(values, "recipe", where, default=None)
    reference = _text(values, "compare_to", where, default=None)
    names = []
    for number, entry in enumerate(entries):
        place = f"{where}: points, entry {number + 1}"
        _mapping(entry, POINT_KEYS, place)
        if not implicit:
            names.append(_text(entry, "name", place, default=...))
            _check_name(names[-1], place)
    points = []
    for choice in itertools.product(*axes.values()):
        prefix = "-".join(value["name"] for value in choice)
        for number, entry in enumerate(entries):
            place = f"{where}: points, entry {number + 1}"
            name = "-".join(part for part in (prefix, None if implicit else names[number]) if part)
            recipe = _text(entry, "recipe", place, default=None)
            for value in reversed(choice):  # the point's own, else the last axis that names one, else the grid's
                recipe = recipe or value["recipe"]
            recipe = recipe or base
            if recipe is None:
                raise ValueError(f"{place} has no recipe: give the grid, an axis or each point a base recipe")
            labels = [value.get("label", value["name"]) for value in choice]
            if not implicit:
                labels.append(_text(entry, "label", place, default=names[number]))
            merged = dict(common)
            for value in choice:
                merged |= value["set"]
            merged |= _values(entry.get("set"), f"{place}: set")
            against = _text(entry, "compare_to", place, default=None) if "compare_to" in entry else reference
            points.append(
                Point(
                    name,
                    " ".join(labels),
                    labels[-1],
                    _find_base(path, recipe),
                    merged,
                    _full_name(against, prefix, names),
                    {axis: value["name"] for axis, value in zip(axes, choice)},
                )
            )
    known = [point.name for point in points]
    if len(set(known)) < len(known):
        raise ValueError(f"{where}: two points are named {_first_double(known)!r}")
    for point in points:
        if point.compare_to is not None and point.compare_to not in known:
            guess = nearest(point.compare_to, [*known, *names])
            hint = f" did you mean {guess!r}?" if guess else ""
            raise ValueError(
                f"{where}: compare_to of point {point.name!r} is {point.compare_to!r}, which is no point;{hint} "
                f"points: {', '.join(known)}"
            )
    # A point is not tested against itself.
    return [point if point.compare_to != point.name else _without_comparison(point) for point in points]


def _without_comparison(point: Point) -> Point:
    from dataclasses import replace

    return replace(point, compare_to=None)


def _full_name(against: str | None, prefix: str, names: list[str]) -> str | None:
    """`lm_ctr` is the point of the same axis values; a combination's whole name stays as it is."""
    return f"{prefix}-{against}" if against in names and prefix else against


def _axes(raw: Any, where: str) -> dict[str, list[dict[str, Any]]]:
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not raw:
        raise ValueError(
            f"{where}: axes is {raw!r}, accepted: a mapping of axis names to lists of {{name, label, set}}"
        )
    axes = {}
    for axis, entries in raw.items():
        place = f"{where}: axes.{axis}"
        if not isinstance(entries, list) or not entries:
            raise ValueError(f"{place} is {entries!r}, accepted: a list of values {{name, label, recipe, set}}")
        axes[str(axis)] = []
        for number, entry in enumerate(entries):
            spot = f"{place}, entry {number + 1}"
            entry = dict(_mapping(entry, AXIS_KEYS, spot))
            entry["name"] = _text(entry, "name", spot, default=...)
            _check_name(entry["name"], spot)
            entry["label"] = _text(entry, "label", spot, default=entry["name"])
            entry["recipe"] = _text(entry, "recipe", spot, default=None)
            entry["set"] = _values(entry.get("set"), f"{spot}: set")
            axes[str(axis)].append(entry)
    return axes


def _find_base(grid: Path, recipe: str) -> Path:
    """The base recipe: beside the grid file, or as `lmctr train` finds it."""
    beside = Path(grid).parent / recipe
    if beside.is_file():
        return beside
    try:
        return find_recipe(recipe)
    except (FileNotFoundError, ValueError) as error:
        raise FileNotFoundError(f"{grid}: recipe {recipe!r}: there is no file {beside}; {error}") from None


def _values(raw: Any, where: str) -> dict[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ValueError(f"{where} is {raw!r}, accepted: a mapping of dotted recipe keys to values")
    for key in raw:
        if not isinstance(key, str) or "." not in key:
            raise ValueError(f"{where}: {key!r} is no dotted recipe key; write for example data.num_behaviors")
        if key in _OWN:
            raise ValueError(f"{where}: {key} is not set in a grid; {_OWN[key]}")
    return dict(raw)


def _mapping(raw: Any, known: Sequence[str], where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"{where}: expected a mapping with the keys {', '.join(known)}, got {raw!r}")
    for key in raw:
        if key not in known:
            raise ValueError(unknown_key_message(str(key), known, where))
    return raw


def _text(values: Mapping[str, Any], key: str, where: str, default: Any) -> Any:
    value = values.get(key)
    if value is None:
        if default is ...:
            raise ValueError(f"{where}: {key} is missing; accepted: text")
        return default
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: {key} is {value!r}, accepted: text (put quotes around numbers)")
    return value


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{where}: the name {name!r} becomes a folder; accepted: letters, digits and _ . + - , a letter or digit first"
        )


def _first_double(values: Sequence[Any]) -> Any:
    return next(value for number, value in enumerate(values) if value in values[:number])
