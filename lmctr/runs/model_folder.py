"""What a run folder must hold to be shared, read without loading the model.

Every problem is a `ValueError` (or `FileNotFoundError` where a file is absent) that names the folder and the file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmctr.utils.files import read_json, read_yaml

__all__ = ["RunFolder", "is_shared", "open_run"]

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
"""Formats that are, or may hold, pickles. A folder with one of them at its top is not shared."""

_UPLOADED = (
    "config.json",
    "generation_config.json",
    *PROCESSOR_FILES,
    WEIGHTS_INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
)
_UPLOADED_SUFFIXES = (
    ".safetensors",
    ".model",
    ".parquet",
)  # weights, SentencePiece, vocabularies of feature processors
_RETRIEVER_FILES = ("retriever.json", "retriever.safetensors")
_ENCODER_SUFFIXES = (".json", ".safetensors", ".txt", ".model")
_NEVER_UPLOADED = ("reference.safetensors",)


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds a model: the result of `open_run`.

    Attributes:
        path: the folder.
        config: `config.json`.
        processor: `processor_config.json` (or `preprocessor_config.json`).
        weight_files: names of the safetensors files.
        num_parameters: tensor name to number of values, from the files' headers.
    """

    path: Path
    config: dict[str, Any]
    processor: dict[str, Any]
    weight_files: tuple[str, ...]
    num_parameters: dict[str, int]

    @property
    def model_type(self) -> str:
        return self.config["model_type"]

    def metrics(self) -> dict[str, Any] | None:
        """`metrics.json`, or None."""
        return _optional(self.path / "metrics.json", read_json)

    def data(self) -> dict[str, Any] | None:
        """`data.json`, or None."""
        return _optional(self.path / "data.json", read_json)

    def recipe(self) -> dict[str, Any] | None:
        """`recipe.yaml`, or None."""
        return _optional(self.path / "recipe.yaml", read_recipe)

    @property
    def has_retriever(self) -> bool:
        """Whether the run holds the saved text retriever that its behaviours were chosen with."""
        return (self.path / "retriever" / _RETRIEVER_FILES[0]).is_file()

    def upload_files(self) -> list[Path]:
        """The files to share, relative to the folder: weights, configurations, tokenizer and a saved retriever; no
        checkpoints, predictions, caches or reference rows."""
        names = [path for path in self.path.iterdir() if path.is_file() and is_shared(path.name)]
        if self.has_retriever:
            retriever = self.path / "retriever"
            names += [path for path in retriever.iterdir() if path.name in _RETRIEVER_FILES]
            names += [path for path in (retriever / "encoder").rglob("*") if path.suffix in _ENCODER_SUFFIXES]
        return sorted(path.relative_to(self.path) for path in names)


def open_run(run_dir: str | Path, refuse_pickles: bool = True) -> RunFolder:
    """Check that a folder holds a complete model in safetensors, and read its small files.

    Args:
        run_dir: the folder.
        refuse_pickles: whether pickle files beside the model are an error (nothing ever reads them).

    Raises:
        FileNotFoundError: the folder, `config.json`, the processor's or the weight files are not there.
        ValueError: broken JSON, a truncated or overlong safetensors file, a pickle file at the top of the folder.
    """
    path = Path(run_dir)
    if not path.is_dir():
        raise FileNotFoundError(
            f"run folder {str(run_dir)!r} does not exist; give the folder that `lmctr train` wrote"
        )
    if not (path / "config.json").is_file():
        checkpoints = sorted(path.glob("checkpoints/checkpoint-*/config.json"))
        hint = (
            f"; it has checkpoints but no finished model: continue the training with --resume, or give {checkpoints[-1].parent}"
            if checkpoints
            else ": it is not the folder of a finished run"
        )
        raise FileNotFoundError(f"{path} has no config.json{hint}")
    config = read_json(path / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ValueError(f"{path / 'config.json'} has no model_type; save the model with save_pretrained")
    if refuse_pickles:
        _refuse_pickles(path)
    weight_files = _weight_files(path)
    num_parameters: dict[str, int] = {}
    for name in weight_files:
        num_parameters |= _read_header(path / name)
    return RunFolder(
        path=path,
        config=config,
        processor=_read_processor(path),
        weight_files=weight_files,
        num_parameters=num_parameters,
    )


def read_recipe(path: Path) -> dict[str, Any]:
    """A YAML mapping. Raises ValueError with the file and the place of the mistake."""
    value = read_yaml(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a YAML mapping, got {type(value).__name__}")
    return value


def _optional(path: Path, read: Any) -> dict[str, Any] | None:
    return read(path) if path.is_file() else None


def is_shared(name: str) -> bool:
    """Whether a file of this name, at the top of a run folder, belongs to what is shared."""
    return "/" not in name and (
        name in _UPLOADED or (name.endswith(_UPLOADED_SUFFIXES) and name not in _NEVER_UPLOADED)
    )


def _refuse_pickles(path: Path) -> None:
    found = sorted(entry.name for entry in path.iterdir() if entry.suffix.lower() in PICKLE_SUFFIXES)
    if found:
        raise ValueError(
            f"{path} holds files in a format that can run code when it is loaded: {', '.join(found)}; lmctr shares "
            "safetensors only: save the model with save_pretrained (which writes model.safetensors) and delete these files"
        )


def _weight_files(path: Path) -> tuple[str, ...]:
    if (path / WEIGHTS).is_file():
        return (WEIGHTS,)
    if not (path / WEIGHTS_INDEX).is_file() and (path / "adapter_model.safetensors").is_file():
        raise FileNotFoundError(
            f"{path} holds a PEFT adapter without the model that it belongs to; merge it (merge_and_unload) and save the "
            "whole model with save_pretrained"
        )
    if not (path / WEIGHTS_INDEX).is_file():
        raise FileNotFoundError(f"{path} has no {WEIGHTS} (nor {WEIGHTS_INDEX}): the model was not saved there")
    index = read_json(path / WEIGHTS_INDEX)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{path / WEIGHTS_INDEX} has no weight_map")
    names = tuple(sorted(set(weight_map.values())))
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{path} lacks {len(missing)} of {len(names)} weight files that {WEIGHTS_INDEX} names: {', '.join(missing)}"
        )
    return names


def _read_header(path: Path) -> dict[str, int]:
    """Number of values of each tensor of a safetensors file, after a check that the file has the length it declares."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            raise ValueError(f"{path} is cut off or no safetensors file: {size:,} bytes do not hold its header")
        try:
            header = json.loads(file.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
            counts = {name: _product(entry["shape"]) for name, entry in tensors.items()}
        except (UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{path} is no safetensors file: its header cannot be read ({error})") from error
    if 8 + length + end != size:
        state = "cut off" if size < 8 + length + end else "damaged"
        raise ValueError(
            f"{path} is {state}: its header declares {8 + length + end:,} bytes, the file has {size:,}; "
            "copy it again or save the model again"
        )
    return counts


def _product(shape: Iterator[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _read_processor(path: Path) -> dict[str, Any]:
    for name in PROCESSOR_FILES:
        if (path / name).is_file():
            values = read_json(path / name)
            if name == PROCESSOR_FILES[0] and not isinstance(values.get("processor_class"), str):
                raise ValueError(f"{path / name} has no processor_class; save it with processor.save_pretrained")
            return values
    raise FileNotFoundError(
        f"{path} has no {PROCESSOR_FILES[0]}: without the processor nobody can make inputs for the model; "
        "save it with processor.save_pretrained"
    )
