"""Baselines of a grid: computed once per data configuration, because prompt, order and feedback do not touch them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lmctr.evaluation.evaluator import METRIC_TITLES
from lmctr.runs.folder import RunFolder
from lmctr.runs.inputs import input_class, input_of
from lmctr.runs.recipe import Recipe
from lmctr.utils.files import read_json, write_json


def configuration(recipe: Recipe) -> dict[str, Any]:
    """What the baselines of a recipe depend on; points with equal values are measured on the same samples."""
    keys = input_class(recipe.model["family"]).baseline_data_keys(recipe.data)
    data = {key: recipe.data.get(key) for key in keys}
    if isinstance(data["options"], dict):
        data["options"] = {key: value for key, value in data["options"].items() if key != "path"}
    return data | ({"refit": True} if recipe.training.get("refit") else {})


def configuration_key(recipe: Recipe) -> str:
    """A short name of [`configuration`]."""
    text = json.dumps(configuration(recipe), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def data_place(recipe: Recipe) -> str:
    """Where the data of a recipe lie, by whose content baselines of one [`configuration`] differ."""
    data = recipe.data
    return json.dumps([data.get("path"), (data.get("options") or {}).get("path")])


def data_keys(recipes: Mapping[str, Recipe], runs: Mapping[str, Iterable[RunFolder]]) -> dict[str, tuple[str, str]]:
    """By point, what points with the same baselines have alike: the [`configuration_key`], and what the first finished run at their data's place
    tells of the data, else the place."""
    of_point = {point: (configuration_key(recipe), data_place(recipe)) for point, recipe in recipes.items()}
    told: dict[tuple[str, str], str] = {}
    for point, key in of_point.items():
        for run in runs.get(point, ()):
            if (found := (run.data() or {}).get("data_fingerprint")) is not None:
                told.setdefault(key, found)
    return {point: (key[0], told.get(key, key[1])) for point, key in of_point.items()}


def baselines_file(output_dir: Path, recipe: Recipe, fingerprint: str) -> Path:
    """Where the baselines of a recipe are kept that were measured on data of a fingerprint ([`InputKind.data_fingerprint`])."""
    return output_dir / "baselines" / f"{configuration_key(recipe)}-{fingerprint}.json"


def kept_file(output_dir: Path, recipe: Recipe, runs: Iterable[RunFolder] = ()) -> Path | None:
    """The kept baselines of the data of some finished runs, of which the first tells its data; where none does, as runs and baselines from
    before data were told, the only ones of the recipe's configuration. None where there are none."""
    told = [found for run in runs if (found := (run.data() or {}).get("data_fingerprint")) is not None]
    if told:
        path = baselines_file(output_dir, recipe, told[0])
        return path if path.is_file() else None
    key, folder = configuration_key(recipe), output_dir / "baselines"
    if (path := folder / f"{key}.json").is_file():
        return path
    found = list(folder.glob(f"{key}-*.json"))
    return found[0] if len(found) == 1 else None


def stored_baselines(path: Path | None, seeds: Iterable[int]) -> dict[str, dict[int, Any]]:
    """Kept baselines: name -> seed -> part ("validation", "test") -> metrics. Only the seeds that are there."""
    kept = {} if path is None else read_json(path).get("seeds", {})
    found: dict[str, dict[int, Any]] = {}
    for seed in seeds:
        for name, parts in kept.get(str(seed), {}).items():
            found.setdefault(name, {})[seed] = parts
    return found


def has_seeds(output_dir: Path, recipe: Recipe, seeds: Iterable[int], runs: Iterable[RunFolder]) -> bool:
    """Whether kept baselines of the data of one of the recipe's finished runs have all these seeds."""
    files = {kept_file(output_dir, recipe, [run]) for run in runs} - {None}
    return any({*map(str, seeds)} <= read_json(path).get("seeds", {}).keys() for path in files)


def compute_baselines(output_dir: Path, recipe: Recipe, seeds: list[int], say: Callable[[str], None]) -> None:
    """Compute the baselines of a recipe's data seed by seed, as its view of the data does, and write them after each seed, but for
    those that are kept of the very data."""
    with tempfile.TemporaryDirectory() as scratch:
        view = input_of(recipe)
        view.load(Path(scratch))
        view.check()  # fills the store of a table
        path = baselines_file(output_dir, recipe, view.data_fingerprint())
        written = read_json(path) if path.is_file() else {"data": configuration(recipe), "seeds": {}}
        path.parent.mkdir(parents=True, exist_ok=True)
        for seed in seeds:
            if str(seed) in written["seeds"]:
                continue
            measured, num_samples = view.baselines(seed, bool(recipe.training.get("refit")))
            written["seeds"][str(seed)] = measured
            written["training_samples"] = num_samples
            written["best_auc"] = view.best_auc
            write_json(path, written)
            key = "revenue_ratio" if any("revenue_ratio" in parts["test"] for parts in measured.values()) else "auc"
            shown = [f"{name.replace('_', ' ')} {values['test'][key]:.4f}" for name, values in measured.items()]
            say(
                f"baselines of {recipe.data['name']}, seed {seed}: test {METRIC_TITLES[key]} {', '.join(shown) or '(none)'}"
            )
