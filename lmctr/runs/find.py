"""Where a recipe lies. Imports nothing heavy, so that a mistyped name is told at once."""

from __future__ import annotations

import os
from pathlib import Path

from lmctr.utils.files import holds_parquet
from lmctr.utils.resources import find_resource

GROUPS = ("data", "model", "training")
RECIPE = "recipe.yaml"  # of a run folder
_READ = (".csv", ".tsv", ".tab", ".txt", ".dat", ".data", ".inter", ".item", ".user", ".parquet", ".jsonl", ".ndjson", ".json")  # fmt: skip
_PACKED = (".gz", ".zip", ".bz2", ".zst", ".lz4", ".xz")
_DATA_SUFFIXES = (*_READ, *_PACKED, ".xlsx", ".libsvm", ".svm", ".libffm", ".ffm")


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the key, the file, the value and what is accepted."""


def is_data_file(name: str | Path) -> bool:
    """Whether a file holds data, by its name; or a folder of Parquet files, which are one table, that is neither a run nor a saved log."""
    path = Path(name)
    if os.path.isdir(path):
        from lmctr.data.logs.log import LOG_FILE  # loads pyarrow

        return holds_parquet(path) and not any((path / own).is_file() for own in (RECIPE, LOG_FILE))
    return path.suffix.lower() in _DATA_SUFFIXES


def find_recipe(name: str | Path, what: str = "recipe") -> Path:
    """The path of a recipe (or of what else stands with them): an existing file as given, else one that ships with lmctr."""
    path = Path(name)
    if os.path.isdir(path):  # unlike Path's methods, takes a name that is too long for one that is not there
        hint = f": give {path / RECIPE}" if what == "recipe" and (path / RECIPE).is_file() else ""
        raise RecipeError(f"{name} is a folder; a {what} is a YAML file{hint}")
    if is_data_file(name):
        raise RecipeError(
            f"{name} is a data file by its name, and a recipe is a YAML file: give a recipe, and name the data in it, for example "
            f"lmctr train deepfm/synthetic --data.name {name}; or lmctr train {name} --model deepfm, which makes a recipe for it; or "
            f"lmctr init {name}, which writes some"
        )
    if os.path.isfile(path):
        return path
    if path.is_absolute():
        raise FileNotFoundError(f"recipe file {name} does not exist")
    return find_resource("recipes", str(name))
