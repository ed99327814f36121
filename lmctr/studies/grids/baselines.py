"""Baselines of a grid: computed once per data configuration, because prompt, order and feedback do not touch them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lmctr.evaluation.evaluator import METRIC_TITLES
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


def baselines_file(output_dir: Path, recipe: Recipe) -> Path:
    """Where the baselines of a recipe are kept."""
    text = json.dumps(configuration(recipe), sort_keys=True)
    return output_dir / "baselines" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def read_baselines(output_dir: Path, recipe: Recipe) -> dict[str, Any]:
    """What is kept of the baselines of a recipe; empty before they are computed."""
    path = baselines_file(output_dir, recipe)
    return read_json(path) if path.is_file() else {}


def stored_baselines(output_dir: Path, recipe: Recipe, seeds: Iterable[int]) -> dict[str, dict[int, Any]]:
    """Kept baselines: name -> seed -> part ("validation", "test") -> metrics. Only the seeds that are there."""
    kept = read_baselines(output_dir, recipe).get("seeds", {})
    found: dict[str, dict[int, Any]] = {}
    for seed in seeds:
        for name, parts in kept.get(str(seed), {}).items():
            found.setdefault(name, {})[seed] = parts
    return found


def missing_seeds(output_dir: Path, recipe: Recipe, seeds: Iterable[int]) -> list[int]:
    """Seeds without kept baselines."""
    kept = read_baselines(output_dir, recipe).get("seeds", {})
    return [seed for seed in seeds if str(seed) not in kept]


def compute_baselines(output_dir: Path, recipe: Recipe, seeds: list[int], say: Callable[[str], None]) -> None:
    """Compute the baselines of a recipe's data seed by seed, as its view of the data does, and write them after each seed."""
    path = baselines_file(output_dir, recipe)
    written = read_baselines(output_dir, recipe) or {"data": configuration(recipe), "seeds": {}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        view = input_of(recipe)
        view.load(Path(scratch))
        view.check()  # fills the store of a table
        for seed in seeds:
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
