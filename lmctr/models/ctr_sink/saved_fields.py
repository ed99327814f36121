"""Vectors of text fields in a file beside the weights, so that what loads a model need not encode its texts again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from lmctr.models.common.base import weights_version
from lmctr.utils.files import replacing
from lmctr.utils.tensors import save_tensors

from .split_layout import field_encoder, lower_parameters

FIELD_VECTORS = "field_vectors.safetensors"
_FORMAT = "lmctr.field_vectors.1"


@torch.no_grad()
def save_field_vectors(model: PreTrainedModel, folder: Path) -> None:
    """Write what the `field_store` of a `CTRSinkModel` holds, encoded again where its weights have changed; nothing where it is empty.

    The file holds `vectors` (F, H), the fields' tokens one behind the other, `token_ids` (T,), and their `lengths` (F,); its metadata
    a hash of the weights that made the vectors.
    """
    (folder / FIELD_VECTORS).unlink(missing_ok=True)
    if model.field_store is None or not len(model.field_store):
        return
    tensors = stored_tensors(model, weights_version(model, lower_parameters(model)))
    with replacing(folder / FIELD_VECTORS) as temporary:
        save_tensors(tensors, temporary, {"format": _FORMAT, "weights": _weights_hash(model)})


def load_field_vectors(model: PreTrainedModel, folder: Path) -> None:
    """Fill the `field_store` of a `CTRSinkModel` from the file of a folder, where there is one in the model's precision.

    Raises:
        ValueError: a damaged file, one of another version, of other weights or of vectors of another size.
    """
    path = folder / FIELD_VECTORS
    if model.field_store is None or not path.is_file():
        return
    fix = "; delete it (the texts are then encoded at their first use), or put the run's own back"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                found = metadata.get("format")
                raise ValueError(
                    f"{path} holds no vectors of this version: its format is {found!r}, not {_FORMAT!r}{fix}"
                )
            ids, lengths, vectors = (file.get_tensor(name) for name in ("token_ids", "lengths", "vectors"))
    except SafetensorError as error:
        raise ValueError(f"{path} is no whole file of vectors ({error}){fix}") from error
    if vectors.dtype != model.dtype:  # it was loaded in another precision than it has in the folder
        return
    if metadata.get("weights") != _weights_hash(model):
        raise ValueError(f"{path} holds vectors of other weights than those of the model{fix}")
    shape = (len(lengths), model.config.text_config.hidden_size)
    if tuple(vectors.shape) != shape or int(lengths.sum()) != len(ids) or (len(lengths) and int(lengths.min()) < 1):
        raise ValueError(
            f"{path}: {tuple(vectors.shape)} vectors and {len(ids)} tokens do not fit {shape} fields{fix}"
        )
    tensors = {"token_ids": ids, "lengths": lengths, "vectors": vectors}
    fill_store(model, tensors, weights_version(model, lower_parameters(model)))


@contextmanager
def kept_vectors(model: PreTrainedModel) -> Iterator[None]:
    """A block in which the weights of a `CTRSinkModel` are copied, moved or rounded, and its vectors go with them."""
    store = model.field_store
    before = None if store is None else weights_version(model, lower_parameters(model))
    yield
    if store is not None:
        store.move(before, weights_version(model, lower_parameters(model)), model.device, model.dtype)


def stored_tensors(model: PreTrainedModel, version: Any = None) -> dict[str, torch.Tensor]:
    """What the `field_store` of a `CTRSinkModel`, which is not empty, holds for weights of a version, as files have it."""
    texts, vectors = model.field_store.refreshed(field_encoder(model), version, model.device)
    return {
        "token_ids": torch.from_numpy(np.concatenate(texts)),
        "lengths": torch.tensor([len(text) for text in texts]),
        "vectors": vectors.cpu().clone(),
    }


def fill_store(model: PreTrainedModel, tensors: dict[str, torch.Tensor], version: Any) -> None:
    """Let the `field_store` hold what [`stored_tensors`] gave, as made by weights of a version."""
    texts = np.split(tensors["token_ids"].numpy(), tensors["lengths"].cumsum(0)[:-1].numpy())
    model.field_store.fill(texts, tensors["vectors"].to(model.device), version)


def _weights_hash(model: PreTrainedModel) -> str:
    """Hexadecimal hash of the weights that a field's vector depends on."""
    digest = hashlib.blake2b(digest_size=16)
    for weight in lower_parameters(model):
        digest.update(f"{weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(memoryview(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()
