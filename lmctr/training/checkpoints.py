"""Checkpoints that survive a kill at any moment: a marker file is written last and says what belongs to them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from lmctr.utils.files import write_json
from lmctr.utils.integrity import check_files, checksums, read_sealed, sealed
from lmctr.utils.tensors import save_tensors

MARKER = "checkpoint_complete.json"
_NAME = re.compile(r"^checkpoint-(\d+)$")


def list_checkpoints(folder: str | Path) -> list[Path]:
    """All checkpoint folders of a run, complete or not, oldest step first."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.match(path.name)) and path.is_dir()]
    return [path for _, path in sorted(found)]


def save_epoch_state(checkpoint: str | Path, process: int, state: dict[str, torch.Tensor]) -> None:
    """Write what a process's model keeps from batch to batch (`CTRPreTrainedModel.epoch_state`), where there is some."""
    if state:
        save_tensors(state, Path(checkpoint) / f"epoch_state_{process}.safetensors")


def load_epoch_state(checkpoint: str | Path, process: int) -> dict[str, torch.Tensor]:
    """What [`save_epoch_state`] wrote; empty where there was nothing."""
    file = Path(checkpoint) / f"epoch_state_{process}.safetensors"
    return load_file(file) if file.is_file() else {}


def mark_complete(checkpoint: str | Path, **facts: float) -> None:
    """Declare a checkpoint complete: list its files with their checksums, in one atomic write, when all of them are on disk.

    Args:
        checkpoint: the folder.
        facts: numbers that a resumed run must agree with or goes on from, for example `global_batch_size`.
    """
    checkpoint = Path(checkpoint)
    names = (path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file())
    files = checksums(checkpoint, (name for name in names if not name.startswith(MARKER)))
    write_json(checkpoint / MARKER, sealed({"files": files, **facts}))


def read_marker(checkpoint: str | Path) -> dict:
    """The marker of a checkpoint whose files are those that it lists.

    Raises:
        ValueError: the checkpoint is not complete, or was damaged since; the message names the file.
    """
    checkpoint = Path(checkpoint)
    try:
        marker = read_sealed(checkpoint / MARKER)
    except FileNotFoundError:
        raise ValueError(f"{checkpoint} is not complete: it has no {MARKER}") from None
    except ValueError as error:
        raise ValueError(f"{checkpoint} is not complete: its {MARKER} cannot be read ({error})") from error
    try:
        check_files(checkpoint, marker["files"])
    except ValueError as error:
        raise ValueError(f"{checkpoint} is not complete: {error}") from error
    return marker


def newest_complete_checkpoint(folder: str | Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is complete and undamaged.

    Returns:
        Its path, or None, and one message per newer checkpoint that was skipped because a kill cut it short or a file was damaged.
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
