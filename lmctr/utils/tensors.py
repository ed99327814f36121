"""Files of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch


def save_tensors(
    tensors: Mapping[str, torch.Tensor] | Mapping[str, np.ndarray],
    path: str | Path,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write one safetensors file, which may be read by whoever may read its folder."""
    is_torch = any(isinstance(values, torch.Tensor) for values in tensors.values())
    save = safetensors.torch.save_file if is_torch else safetensors.numpy.save_file
    save(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
    as_readable_as_its_folder(path)


def as_readable_as_its_folder(path: str | Path) -> None:
    """Let who may read a folder read a file in it; safetensors keeps what it writes to the owner."""
    path = Path(path)
    path.chmod(path.parent.stat().st_mode & 0o666)
