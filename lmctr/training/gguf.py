"""Backbones that come as one GGUF file: converted once to the folder that everything else reads."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from lmctr.data.tables.source import file_fingerprint
from lmctr.utils.files import expanded, whole_folder


def backbone_of_gguf(file: Path) -> Path:
    """Folder with configuration, float32 weights in safetensors and tokenizer of a GGUF file.

    Made at the first use, in `$XDG_CACHE_HOME/lmctr/backbones`, else `~/.cache/lmctr/backbones`; that takes a minute or two and four
    bytes a parameter.

    Raises:
        ValueError: the package gguf is not installed, or transformers cannot read the file.
    """
    name = f"{file.stem}-{file_fingerprint(file)[:12]}"
    folder = expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "lmctr/backbones" / name
    if folder.is_dir():
        return folder
    if find_spec("gguf") is None:
        raise ValueError(f"backbone: {file.name} is a GGUF file, which the package gguf reads: pip install gguf")
    with whole_folder(folder) as made:
        try:
            source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
            loaded = AutoModel.from_pretrained(**source, dtype=torch.float32)
            # Saved would be a model that calls itself quantised; its weights, which are not any more, go into one that does not.
            values = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
            plain = AutoModel.from_config(type(loaded.config).from_dict(values))
            plain.load_state_dict(loaded.state_dict(), strict=True)
            plain.save_pretrained(made)
            AutoTokenizer.from_pretrained(**source).save_pretrained(made)
        except (KeyError, RuntimeError, ImportError) as error:
            raise ValueError(f"backbone: transformers cannot read {file} ({error})") from error
    return folder
