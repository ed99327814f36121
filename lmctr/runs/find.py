"""Where a recipe lies. Imports nothing heavy, so that a mistyped name is told at once."""

from __future__ import annotations

from pathlib import Path

from lmctr.utils.resources import find_resource

__all__ = ["RecipeError", "find_recipe"]

_DATA_SUFFIXES = {".csv", ".tsv", ".parquet", ".jsonl", ".json", ".gz", ".zip", ".txt", ".xlsx"}


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the key, the file, the value and what is accepted."""


def find_recipe(name: str | Path) -> Path:
    """A recipe's path: an existing file as given, else a recipe that ships with lmctr."""
    path = Path(name)
    if path.is_dir():
        raise RecipeError(f"{name} is a folder; a recipe is a YAML file (a run folder holds recipe.yaml)")
    if {*map(str.lower, path.suffixes)} & _DATA_SUFFIXES:
        raise RecipeError(
            f"{name} is a data file by its name, and a recipe is a YAML file: give a recipe, and name the data in it, "
            f"for example lmctr train deepfm/synthetic --data.name {name}"
        )
    if path.is_file():
        return path
    if path.is_absolute():
        raise FileNotFoundError(f"recipe file {name} does not exist")
    return find_resource("recipes", str(name))
