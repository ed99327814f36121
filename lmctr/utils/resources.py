"""Find the files that ship beside the code: recipes, prompts, model card templates."""

from __future__ import annotations

import difflib
from pathlib import Path

_WORDS = {"recipes": "recipe", "prompts": "prompt", "model_cards": "model card"}
KINDS = tuple(_WORDS)
_SUFFIXES = ("", ".yaml", ".yml", ".md")
_LONGEST_NAME = 200


def resource_dir(kind: str) -> Path:
    """Folder of one kind of resource, in an editable checkout or in the installed wheel.

    A wheel holds them under `lmctr/_resources/<kind>`; an editable checkout has them beside the `lmctr` folder.

    Raises:
        ValueError: `kind` is not one of `recipes`, `prompts`, `model_cards`.
        FileNotFoundError: the installation lacks the folder.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    package = Path(__file__).resolve().parent.parent
    places = (package / "_resources" / kind, package.parent / kind)
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(
        f"this installation of lmctr has no {kind} folder (looked in {places[0]} and {places[1]}); reinstall lmctr"
    )


def list_resources(kind: str) -> list[str]:
    """Names of all resources of one kind, as `find_resource` takes them: relative paths without the suffix."""
    root = resource_dir(kind)
    files = (path for path in root.rglob("*") if path.is_file() and path.suffix in _SUFFIXES[1:])
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in files)


def nearest_resources(kind: str, name: str) -> list[str]:
    """Names of at most three resources that are much like `name`."""
    return difflib.get_close_matches(Path(name).with_suffix("").as_posix(), list_resources(kind), n=3, cutoff=0.6)


def find_resource(kind: str, name: str) -> Path:
    """Path of the resource `name`, for example `find_resource("prompts", "movielens/en")`.

    The name is a path inside the folder of its kind; the suffix (.yaml, .yml, .md) and a leading `<kind>/` may be
    left out, so `recipes/ctr_sink/quickstart.yaml` finds the recipe from any working directory.

    Raises:
        ValueError: unknown `kind`, or a name that leads out of the folder.
        FileNotFoundError: no such resource; the message offers the nearest names.
    """
    root = resource_dir(kind)
    short = str(name).replace("\\", "/").removeprefix("./").removeprefix(f"{kind}/")
    if Path(short).is_absolute() or ".." in Path(short).parts:
        raise ValueError(f"the name of a {kind} resource stays inside its folder, got {str(name)!r}")
    if len(short) > _LONGEST_NAME:
        raise ValueError(
            f"the name of a {_WORDS[kind]} has at most {_LONGEST_NAME} characters, got {len(short)}: {short[:50]!r}..."
        )
    for suffix in _SUFFIXES:
        path = root / f"{short}{suffix}"
        if path.is_file():
            return path
    close = nearest_resources(kind, short)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ";"
    raise FileNotFoundError(
        f"{name}: neither a file nor the name of a {_WORDS[kind]} that ships with lmctr{hint} all of them lie in {root}"
    )
