"""Checkpoints that survive a kill at any moment: a marker file is written last and says what belongs to them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from lmctr.utils.files import read_json, write_json

MARKER = "checkpoint_complete.json"
_NAME = re.compile(r"^checkpoint-(\d+)$")


def list_checkpoints(folder: str | Path) -> list[Path]:
    """All checkpoint folders of a run, complete or not, oldest step first."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.match(path.name)) and path.is_dir()]
    return [path for _, path in sorted(found)]


def mark_complete(checkpoint: str | Path, **facts: int) -> None:
    """Declare a checkpoint complete: list its files with their sizes, in one atomic write.

    Args:
        checkpoint: the folder.
        facts: numbers that a resumed run must agree with, for example `global_batch_size`.
    """
    checkpoint = Path(checkpoint)
    files = {
        path.relative_to(checkpoint).as_posix(): path.stat().st_size
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and not path.name.startswith(MARKER)
    }
    write_json(checkpoint / MARKER, {"files": files, **facts})


def read_marker(checkpoint: str | Path) -> dict:
    """The marker of a checkpoint.

    Raises:
        ValueError: the checkpoint is not complete; the message says what is missing.
    """
    checkpoint = Path(checkpoint)
    try:
        marker = read_json(checkpoint / MARKER)
        files = dict(marker["files"])
    except FileNotFoundError:
        raise ValueError(f"{checkpoint} is not complete: it has no {MARKER}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{checkpoint} is not complete: its {MARKER} cannot be read ({error})") from error
    for name, size in files.items():
        path = checkpoint / name
        if not path.is_file():
            raise ValueError(f"{checkpoint} is not complete: {name} is missing")
        if path.stat().st_size != size:
            raise ValueError(f"{checkpoint} is not complete: {name} has {path.stat().st_size} bytes instead of {size}")
    return marker


def newest_complete_checkpoint(folder: str | Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is complete.

    Returns:
        Its path, or None, and one message per newer checkpoint that was skipped because a kill cut it short.
    """
    skipped = []
    for checkpoint in reversed(list_checkpoints(folder)):
        try:
            read_marker(checkpoint)
        except ValueError as error:
            skipped.append(str(error))
            continue
        return checkpoint, skipped
    return None, skipped


def rotate(folder: str | Path, limit: int | None, best: str | Path | None) -> None:
    """Delete old checkpoints so that `limit` remain: the newest ones and the best one.

    Checkpoints that a kill left half-written are deleted too.
    """
    checkpoints = list_checkpoints(folder)
    complete = [path for path in checkpoints if (path / MARKER).is_file()]
    best = None if best is None else Path(best).name
    keep = {path.name for path in complete}
    if limit is not None and limit > 0:
        newest = complete[-1:]
        others = [path for path in complete[:-1] if path.name != best]
        kept_best = [path for path in complete[:-1] if path.name == best]
        room = max(limit - len(newest) - len(kept_best), 0)
        keep = {path.name for path in [*newest, *kept_best, *others[len(others) - room :]]}
    for path in checkpoints:
        if path.name not in keep:
            (path / MARKER).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
