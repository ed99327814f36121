"""What a folder that others made may hold: nothing that leaves it, no class from outside the family table, no size without its weights.

These checks read names, links, and headers; they come before any file is loaded. See SECURITY.md for what is promised.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import PreTrainedConfig
from transformers.initialization import no_init_weights

from lmctr.auto import AutoModelForCTR
from lmctr.models.families import families
from lmctr.utils.files import read_json

_READ_WHOLE = ("retriever", "predictions", "adapter")
_OWN_FOLDERS = ("checkpoints", ".cache", ".refit", "analysis")
_CLASS_KEYS = ("processor_class", "feature_extractor_type", "image_processor_type", "video_processor_type")
_CLASS_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json", "config.json")


def inner_files(folder: Path) -> Iterator[Path]:
    """What lies at the top of a folder, and what the folders in it hold that are read."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.name in _READ_WHOLE and path.is_dir() and not path.is_symlink():
            yield from sorted(path.rglob("*"))


def leaves(folder: Path, path: Path) -> bool:
    """Whether a path is, by links or by its name, outside a folder. A download's files are links to those that the Hub's cache keeps."""
    root, target = folder.resolve(), path.resolve()
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    return not any(target.is_relative_to(place) for place in roots)


def check_links(folder: Path) -> None:
    """Raise `ValueError` for a link that leads out of a folder; the trainer's checkpoints may lie elsewhere."""
    for path in inner_files(folder):
        if path.is_symlink() and path.name not in _OWN_FOLDERS and leaves(folder, path):
            raise ValueError(
                f"{path} is a link to {path.resolve()}, outside the folder; nothing is read from there: put a copy of the file "
                "in the link's place"
            )


def check_classes(folder: Path, model_type: str) -> None:
    """Raise `ValueError` where a file names a class of processor that is not the family's own."""
    row = next((row for row in families() if row.model_type == model_type), None)
    wanted = None if row is None else row.processor.rpartition(":")[2]
    for name in _CLASS_FILES if row is not None else ():
        values = read_json(folder / name) if (folder / name).is_file() else {}
        for key in _CLASS_KEYS:
            if values.get(key) not in (None, wanted):
                raise ValueError(
                    f"{folder / name}: {key} is {values[key]!r}; that of a {row.title} is {wanted!r}, and no other class is loaded"
                )


def check_size(folder: Path, config: PreTrainedConfig, held: Mapping[str, int]) -> None:
    """Raise `ValueError` where a configuration describes a far larger model than the weights, before any memory is taken for it.

    Args:
        held: number of values of each tensor in the weight files.
    """
    file, most = folder / "config.json", 4 * sum(held.values()) + 10_000_000
    try:
        with _limited_modules(2_000 + 50 * len(held)), no_init_weights(), torch.device("meta"):
            model = AutoModelForCTR.from_config(config)
        described = sum(tensor.numel() for tensor in {*model.parameters(), *model.buffers()})
    except Exception as error:  # whatever a wrong configuration leads to, the user needs the file's name
        raise ValueError(f"{file} does not describe a model that can be built: {error}") from error
    if described > most:
        raise ValueError(
            f"{file} describes a model of {described:,} values, the weight files hold {sum(held.values()):,}; they do not belong together"
        )


@contextmanager
def _limited_modules(most: int) -> Iterator[None]:
    """Ends the building of a model that has more modules than `most`, in this thread."""
    count, thread = 0, threading.get_ident()

    def registered(*_: Any) -> None:
        nonlocal count
        count += threading.get_ident() == thread
        if count > most:
            raise ValueError(f"it has more than {most:,} modules, far more than the weight files hold tensors for")

    handle = register_module_module_registration_hook(registered)
    try:
        yield
    finally:
        handle.remove()
