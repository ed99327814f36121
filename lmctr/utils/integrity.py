"""Checksums of a folder's files: written when all of them are on disk, compared before any of them is used.

A file of checksums is JSON: `files` gives each file's `size` and `sha256`, and `seal` the checksum of all the rest, so that a damaged
list is not taken for damaged files.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmctr.utils.files import read_json, sync, write_json
from lmctr.utils.lock import LOCK, owned

MANIFEST = "lmctr_manifest.json"
"""The file of checksums of a folder with a model."""

_SEAL = "seal"
_SMALL = 1 << 20  # bytes; files below are read anew each time
_SETTLED = 2.0  # seconds; a file changed since then may change again within one tick of the file system's clock
_known: dict[tuple[int, ...], str] = {}


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file, in hex. That of a big file is remembered until its size, its times or its place change."""
    found = os.stat(path)
    key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    if key in _known:
        return _known[key]
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    if found.st_size >= _SMALL and time.time() - max(found.st_mtime, found.st_ctime) > _SETTLED:
        _known[key] = digest.hexdigest()
    return digest.hexdigest()


def checksums(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of files, by their place in the folder, after they and the folders they lie in were written to disk."""
    names = sorted(names)
    for place in sorted({(folder / name).parent for name in names} | {folder}):
        sync(place)
    entries = {}
    for name in names:
        sync(folder / name)
        entries[name] = {"size": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)}
    return entries


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with the checksum of itself."""
    plain = {key: value for key, value in content.items() if key != _SEAL}
    return {**plain, _SEAL: hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()}


def read_sealed(path: Path) -> dict[str, Any]:
    """The content of a file of checksums.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is damaged, or was edited.
    """
    content = read_json(path)
    files = content.get("files")
    if not isinstance(files, dict):
        raise ValueError(f"{path} lists no files")
    for name, entry in files.items():
        whole = isinstance(entry, dict) and isinstance(entry.get("size"), int) and isinstance(entry.get("sha256"), str)
        if not whole or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(
                f"{path} lists {name!r} as {entry!r:.80}; expected a file of the folder with size and sha256"
            )
    if sealed(content)[_SEAL] != content.get(_SEAL):
        raise ValueError(f"{path} is damaged: it does not have the checksum that it names for itself")
    return content


def check_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Compare files, by their place in the folder, with `size` and `sha256`.

    Raises:
        ValueError: a file is missing or another than the one that was listed; starts with its place in the folder.
    """
    for name, entry in files.items():
        path, size = folder / name, entry["size"]
        if not path.is_file():
            raise ValueError(f"{name} is missing")
        if path.stat().st_size != size:
            raise ValueError(f"{name} has {path.stat().st_size} bytes instead of {size}")
        if sha256_of(path) != entry["sha256"]:
            raise ValueError(f"{name} is damaged: its {size:,} bytes do not have the checksum that was written down")


@contextmanager
def resealing(folder: str | Path) -> Iterator[None]:
    """The block in which a model or a processor is saved into a folder, which may have checksums: those of the files that are written
    there are written anew. Files that are not touched keep theirs; a kill in between leaves a folder without checksums.

    Raises:
        ValueError: the folder's checksums are damaged, or somebody else writes in it.
    """
    folder = Path(folder)
    manifest = folder / MANIFEST
    if not manifest.is_file():
        yield
        return
    with owned(folder, "`save_pretrained`"):
        before, content = read_sealed(manifest)["files"], manifest.read_bytes()
        states = _states(folder)
        manifest.unlink()
        try:
            yield
        except BaseException:
            manifest.write_bytes(content)  # so that what was written until then is refused
            raise
        found = _states(folder)
        changed = [name for name, state in found.items() if states.get(name) != state and name != MANIFEST]
        kept = {name: entry for name, entry in before.items() if name not in states or name in found}
        write_json(manifest, sealed({"files": kept | checksums(folder, changed)}))


def _states(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """What changes when a file at the top of a folder is written, by its name."""
    found = {}
    for path in folder.iterdir():
        if path.is_file() and path.name != LOCK:
            state = path.stat()
            found[path.name] = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    return found
