"""Fingerprints of models and processors: a kept state is only right with the ones that made it."""

from __future__ import annotations

import hashlib
import json
import weakref
from typing import Any

import torch


def model_fingerprint(model: torch.nn.Module) -> str:
    """Hexadecimal hash over the configuration and every weight and buffer of a model. Reads all weights once."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(_canonical(plain_config(model.config.to_dict())))
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(memoryview(flat.numpy()))
    return digest.hexdigest()


def settings_fingerprint(processor: Any) -> str:
    """What a kept state depends on: of a text processor its lengths too, which its `fingerprint` leaves out; else the `fingerprint`."""
    if processor.request_kind != "text":
        return processor.fingerprint
    digest = hashlib.blake2b(digest_size=16)
    digest.update(processor.canonical_settings.encode())
    digest.update(_canonical({"max_length": processor.effective_max_length}))
    digest.update(_tokenizer_hash(processor.tokenizer))
    return digest.hexdigest()


def window_fingerprint(window: Any) -> str:
    """Of what a scorer says that its states hang on (`RequestScorer.window`)."""
    return hashlib.blake2b(_canonical(window), digest_size=16).hexdigest()


def _tokenizer_hash(tokenizer: Any) -> bytes:
    """Hash over vocabulary and rules; kept per tokenizer, because writing out a large one takes half a second. What its last call was to cut and pad
    to, which a tokenizer remembers, is no rule."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = [repr(getattr(backend, name, None)) for name in ("normalizer", "pre_tokenizer", "post_processor")]
    version = (len(tokenizer), *rules)
    before, known = _TOKENIZERS.get(tokenizer, (None, b""))
    if before == version:
        return known
    if backend is None:
        text = json.dumps(sorted(tokenizer.get_vocab().items()))
    else:
        text = backend.to_str()
        if backend.truncation is not None or backend.padding is not None:
            plain = type(backend).from_str(text)
            plain.no_truncation()
            plain.no_padding()
            text = plain.to_str()
    known = hashlib.blake2b(text.encode(), digest_size=16).digest()
    _TOKENIZERS[tokenizer] = (version, known)
    return known


_TOKENIZERS: weakref.WeakKeyDictionary[Any, tuple[tuple[Any, ...], bytes]] = weakref.WeakKeyDictionary()

# Written by whoever saves or loads; no part of what the model computes.
_NOT_THE_MODEL = ("_name_or_path", "transformers_version", "architectures", "dtype", "auto_map")


def plain_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as `to_dict` gives it, without what says nothing of the model."""
    return {
        key: plain_config(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in _NOT_THE_MODEL
    }


def _canonical(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, default=str).encode()
