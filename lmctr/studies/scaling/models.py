"""Models by name for `lmctr scaling`: a folder with a saved model, or a recipe, whose model has its initial weights."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import set_seed

from lmctr.runs.download import is_hub_id, local_folder
from lmctr.runs.folder import PROCESSOR_FILES, RunFolder
from lmctr.runs.inputs import input_of
from lmctr.runs.loading import load_bare_model, load_run
from lmctr.runs.recipe import load_recipe
from lmctr.utils.resources import nearest_resources


def open_model(name: str, overrides: Sequence[tuple[str, str]] = ()) -> Any:
    """The model of a run folder, of the Hub or of a recipe, in evaluation mode, on the CPU.

    Args:
        name: folder with `config.json` and weights; a recipe; or a Hub id, behind "hf://" where it is much like a recipe's name.
        overrides: of a recipe; the data are read, since vocabularies decide the tables.

    Raises:
        FileNotFoundError, ValueError: nothing of that name, or what is there cannot be read.
    """
    if Path(name).is_dir() or _is_on_hub(name):
        if overrides:
            raise ValueError(f"--{overrides[0][0]}: {name} is a saved model, only recipes take overrides")
        return saved_model(local_folder(name))
    recipe = load_recipe(name, overrides)
    with tempfile.TemporaryDirectory() as scratch:
        view = input_of(recipe)
        view.load(Path(scratch))
        view.check()
        set_seed(recipe.training.get("seed", 0))
        return view.model(view.make_processor()).eval()


def _is_on_hub(name: str) -> bool:
    """Names of recipes have the form of Hub ids; a mistyped one is told without asking the Hub."""
    if name.startswith("hf://"):
        return True
    return is_hub_id(name) and nearest_resources("recipes", name) == []


def saved_folder(path: str | Path) -> RunFolder:
    """A folder that holds a saved model. Raises `FileNotFoundError`: no folder, or none with a saved model."""
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        raise FileNotFoundError(f"run folder {path} {'is a file' if folder.path.exists() else 'does not exist'}")
    if not (folder.path / "config.json").is_file():
        raise FileNotFoundError(
            f"{path} holds no saved model: it has no config.json (train one with `lmctr train RECIPE`){folder.run_inside}"
        )
    return folder


def saved_model(path: str | Path) -> Any:
    """The model of a folder, with or without a processor, in evaluation mode, on the CPU.

    Raises:
        FileNotFoundError: no folder, or none with a saved model. ValueError: weights and configuration do not belong together.
    """
    folder = saved_folder(path)
    has_processor = any((folder.path / name).is_file() for name in PROCESSOR_FILES)
    return load_run(path)[0] if has_processor else load_bare_model(folder)
