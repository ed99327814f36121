"""What the builders of tabular data sets share: finding the files of a data set, and saying where they come from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmctr.data.logs.log import DatasetInfo

from .reading import block_size_for
from .source import SplitRule, file_piece


def find_files(
    path: str | os.PathLike, wanted: Mapping[str, Sequence[str]], info: DatasetInfo
) -> dict[str, Path] | None:
    """The files of a folder by role, or None when one is absent.

    Args:
        path: the folder.
        wanted: file names by role, in order of preference; each may end in .gz too.
        info: of the data set, for the message when the folder is absent.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        raise FileNotFoundError(absent(folder, info))
    found = {}
    for role, names in wanted.items():
        every = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
        file = next((file for file in every if file.is_file()), None)
        if file is None:
            return None
        found[role] = file
    return found


def absent(path: Path, info: DatasetInfo, needed: str = "") -> str:
    """Message for files that are not there: where they are published, and under which terms."""
    return (
        f"{path}: {needed or 'no such file or folder'}. {info.name} is published at {info.url}; download it there. "
        f"Terms: {info.licence}"
    )


def split_pieces(
    files: Mapping[str, Path], memory_limit: int | None, validation_fraction: float | None, seed: int
) -> tuple[tuple[Any, ...], SplitRule]:
    """Pieces of given train, (validation) and test files; without a validation file a share of the training rows is drawn."""
    options = {"block_size": block_size_for(memory_limit)}
    if "validation" in files:
        return tuple(file_piece(files[part], part, **options) for part in ("train", "validation", "test")), SplitRule()
    share = 0.1 if validation_fraction is None else validation_fraction
    rule = SplitRule("random", (1 - share, share, 0.0), seed)
    return (file_piece(files["train"], None, rule, **options), file_piece(files["test"], "test", **options)), rule
