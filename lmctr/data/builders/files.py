"""What the builders share: finding the files of a data set, and saying where they come from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmctr.data.logs.log import DatasetInfo
from lmctr.data.tables.reading import block_size_for
from lmctr.data.tables.source import Piece, SplitRule, file_piece
from lmctr.utils.files import expanded

Roles = Mapping[str, Sequence[str]]
"""File names by role, in order of preference; each file may end in .gz too."""

TRAIN_AND_TEST = {"train": ["train.csv"], "test": ["test.csv"]}
ALL_PARTS = {"train": ["train.csv"], "validation": ["valid.csv"], "test": ["test.csv"]}


@dataclass(frozen=True)
class Published:
    """Files that a log is read from, for messages.

    Args:
        title: the data set's name.
        info: the published data.
        files: what to download.
        then: what to do next.
    """

    title: str
    info: DatasetInfo
    files: str
    then: str = ""

    @property
    def where(self) -> str:
        """Where to get the files, and under which terms."""
        return f"Download {self.files} from {self.info.url}{self.then}. Terms: {self.info.licence}"

    def folder(self, path: str | os.PathLike | None) -> tuple[Path, str]:
        """The folder that was given, by the environment variable `LMCTR_DATA` if not by `path`; and its name in messages."""
        given = "path"
        if path is None:
            path, given = os.environ.get("LMCTR_DATA"), "the environment variable LMCTR_DATA"
        if not path:
            raise FileNotFoundError(
                f"{self.title}: give the folder with the files as `path`, or set LMCTR_DATA. {self.where}"
            )
        folder = expanded(path)
        return folder, f"{folder} (from {given})"

    def below(self, path: str | os.PathLike | None, names: Iterable[str]) -> dict[str, Path]:
        """The files by name, wherever they lie below the folder; the least deep where there are several."""
        folder, called = self.folder(path)
        found = {}
        for name in names:
            every = sorted(folder.rglob(name), key=lambda file: (len(file.parts), file))
            if not every:
                raise self.absent(folder, called, name)
            found[name] = every[0]
        return found

    def absent(self, folder: Path, name: str, wanted: str) -> FileNotFoundError:
        """The error for a folder, with its name in messages, without the `wanted` files."""
        state = "there is no" if folder.exists() else "the folder does not exist, so there is no"
        return FileNotFoundError(f"{name}: {state} {wanted}. {self.where}")


def find_files(path: str | os.PathLike, wanted: Roles, info: DatasetInfo) -> dict[str, Path] | None:
    """The files of a folder by role, or None when one is absent. Raises `FileNotFoundError` for an absent folder."""
    folder = expanded(path)
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


def require_files(path: str | os.PathLike, wanted: Roles, info: DatasetInfo) -> dict[str, Path]:
    """[`find_files`]; an absent file is an error too."""
    files = find_files(path, wanted, info)
    if files is None:
        names = [" or ".join(alternatives) for alternatives in wanted.values()]
        needed = f"no {names[0]} in it"
        if len(names) > 1:
            every = "both" if len(names) == 2 else "all"
            needed = f"{', '.join(names[:-1])} and {names[-1]} are not {every} there"
        raise FileNotFoundError(absent(Path(path), info, needed))
    return files


def find_variant(
    path: str | os.PathLike, variant: str | None, wanted: Mapping[str, Roles], info: Mapping[str, DatasetInfo]
) -> tuple[str, dict[str, Path]]:
    """The variant that was asked for, or else the first of `wanted` that is there, and its files."""
    check_variant(variant, info)
    *others, last = wanted if variant is None else [variant]
    for name in others:
        files = find_files(path, wanted[name], info[last])
        if files is not None:
            return name, files
    return last, require_files(path, wanted[last], info[last])


def check_variant(variant: str | None, known: Mapping[str, Any]) -> None:
    """Raises `ValueError` for an unknown variant; None leaves it to the files."""
    if variant not in (None, *known):
        raise ValueError(f"variant: got {variant!r}, accepted: {', '.join(known)}.")


def absent(path: Path, info: DatasetInfo, needed: str = "") -> str:
    """Message for files that are not there: where they are published, and under which terms."""
    return (
        f"{path}: {needed or 'no such file or folder'}. {info.name} is published at {info.url}; download it there. "
        f"Terms: {info.licence}"
    )


def split_pieces(
    files: Mapping[str, Path], memory_limit: int | None, rule: SplitRule, **options: Any
) -> tuple[tuple[Piece, ...], SplitRule]:
    """Pieces of the training file and of those of the validation and test part that are there, and the rule that parts the first.

    Args:
        files: by part.
        memory_limit: bytes that reading may take.
        rule: for a training file that holds other parts too.
        options: as in [`~lmctr.data.tables.reading.stream_file`].
    """
    if "validation" in files:
        rule = SplitRule()
    options["block_size"] = block_size_for(memory_limit)
    pieces = [file_piece(files["train"], "train" if "validation" in files else None, rule, **options)]
    pieces += [file_piece(files[part], part, **options) for part in ("validation", "test") if part in files]
    return tuple(pieces), rule


def validation_share(share: float, seed: int) -> SplitRule:
    """The rule that draws a share of the training file for validation."""
    return SplitRule("random", (1 - share, share, 0.0), seed)
