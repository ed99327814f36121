"""Checkpoints of CTR-Sink's research code (`best.pt`, `last.pt`) as models of this library.

Such a file is a pickle of a dict: `model_state_dict`, `config` (the training's settings) and `metrics`. Only tensors, plain values
and NumPy numbers are read of it (`weights_only`), so nothing in it is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedConfig

from .configuration_ctr_sink import BACKBONES, CTRSinkConfig
from .modeling_ctr_sink import CTRSinkForCTR

_FIELDS = ("positive", "negative", "title", "genres")
_SIGNALS = {"temporal": "recency", "similarity": "similarity", "random": "random", "none": "none"}
_SCALAR_TYPES = [np._core.multiarray.scalar, np.dtype, *{type(np.dtype(kind)) for kind in ("f4", "f8", "i8")}]

# The sink bias sits in the attention there, and beside the backbone here: place in the layer -> place in `SinkBiasLayer`.
_BIAS = {
    "sink_interaction.norm": "norm",
    "sink_interaction.query_proj": "query",
    "sink_interaction.key_proj": "key",
    "sink_scale": "scale",
}


def from_research_checkpoint(path: str | Path, backbone: str | PreTrainedConfig | None = None) -> CTRSinkForCTR:
    """The model of a checkpoint of the research code, with the same outputs.

    Args:
        path: the file. backbone: name, folder or configuration of its language model; default: what the checkpoint's settings name.

    Returns:
        The model in evaluation mode, with `layout="fields"`; fields stand in the order liked, disliked, title, genres. Adapters
        (LoRA) are merged. A bias there looks ahead and depends on the batch by its padded sinks; here it does the first only.

    Raises:
        ValueError: no such checkpoint, settings that have no layout here (`use_split_layer=false`, `use_cls_token=true`), weights that
            do not fit the backbone.
    """
    state, settings = _read(Path(path))
    for key, wanted in (("use_split_layer", True), ("use_cls_token", False)):
        if settings.get(key, wanted) is not wanted:
            raise ValueError(f"{path}: {key}={settings[key]!r} has no layout here; accepted: {key}={wanted}")
    signal = settings.get("sink_signal", "temporal")
    if signal not in _SIGNALS:
        raise ValueError(f"{path}: sink_signal={signal!r} is not known; accepted: {', '.join(_SIGNALS)}")
    state = _merge_lora(state, 64 if "qwen2" in settings["backbone"].lower() else 32)
    text = backbone
    if not isinstance(text, PreTrainedConfig):
        try:
            text = AutoConfig.from_pretrained(backbone or settings["backbone"])
        except (OSError, ValueError) as error:
            raise ValueError(f"backbone: {backbone or settings['backbone']!r} cannot be read ({error})") from error
    if text.model_type not in BACKBONES:
        raise ValueError(
            f"backbone: type {text.model_type!r} is not accepted; use one of {', '.join(sorted(BACKBONES))}"
        )
    words = next(
        value for name, value in state.items() if name.endswith(("word_embeddings.weight", "embed_tokens.weight"))
    )
    text.vocab_size = len(words)  # the sink token was added to it
    biased = {int(found[1]) for name in state if (found := re.search(r"\.(\d+)\..*sink_scale$", name))}
    with_sinks = bool(settings.get("use_sink"))
    layers = sorted(biased)
    dropout = next((getattr(text, key, None) for key in ("attention_dropout", "attention_probs_dropout_prob")), None)
    config = CTRSinkConfig(
        text_config=text,
        layout="fields",
        sink_kind="sink" if with_sinks else "none",
        sink_signal=_SIGNALS[signal] if with_sinks else "none",
        feedback="groups",
        num_sink_buckets=settings["sink_num_embeddings"],
        sink_embedding_dim=settings["sink_embedding_dim"],
        sink_bias_layers=layers,
        sink_bias_causal=False,
        sink_bias_head_dim=text.hidden_size // text.num_attention_heads,
        sink_bias_dropout=dropout or 0.0,
        field_projection_size=settings["emb_output_size"],
        head_hidden_size=settings["ctr_hidden_size"],
    )
    model = CTRSinkForCTR(config)
    renamed = {_renamed(name, layers): value for name, value in state.items()}
    wanted = model.state_dict()
    renamed = {
        name: value.reshape(wanted[name].shape) if name.endswith(".scale") else value
        for name, value in renamed.items()
    }
    own = {name: value for name, value in renamed.items() if name in wanted}
    left = sorted(
        name for name in renamed if name not in wanted and "pooler" not in name and "position_ids" not in name
    )
    left = [name for name in left if with_sinks or not name.startswith("model.sink_embedding")]
    missing = sorted(set(wanted) - set(own))
    if missing or left:
        raise ValueError(
            f"{path}: the weights do not fit a {text.model_type} backbone: lacking {', '.join(missing[:3]) or 'none'}, left over "
            f"{', '.join(left[:3]) or 'none'}; give the backbone that it was trained with"
        )
    try:
        model.load_state_dict(own, strict=True)
    except RuntimeError as error:
        raise ValueError(
            f"{path}: the weights do not fit the backbone ({error}); give the one it was trained with"
        ) from error
    return model.eval()


def _read(path: Path) -> tuple[dict[str, torch.Tensor], Mapping[str, Any]]:
    """Weights and settings of the file."""
    try:
        with torch.serialization.safe_globals(_SCALAR_TYPES):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, UnpicklingError) as error:
        raise ValueError(f"{path}: no checkpoint that can be read without running it ({error})") from error
    keys = ("model_state_dict", "config")
    if not isinstance(found, dict) or any(key not in found for key in keys):
        raise ValueError(f"{path}: expected a dict with {' and '.join(keys)}, as the research code saves it")
    return {name: value.float() for name, value in found["model_state_dict"].items()}, found["config"]


def _merge_lora(state: Mapping[str, torch.Tensor], alpha: int) -> dict[str, torch.Tensor]:
    """Weights without adapters: W + alpha / r B A where there were some, under the names that they had before."""
    merged = {}
    for name, value in state.items():
        name = name.replace("encoder.base_model.model.", "encoder.")
        if ".lora_A." in name or ".lora_B." in name:
            continue
        merged[name.replace(".base_layer.", ".")] = value
    for name, down in state.items():
        if ".lora_A." in name:
            up = state[name.replace(".lora_A.", ".lora_B.")]
            own = name.replace("encoder.base_model.model.", "encoder.").split(".lora_A.")[0] + ".weight"
            merged[own] = merged[own] + alpha / len(down) * (up @ down)
    return merged


def _renamed(name: str, layers: list[int]) -> str:
    """The name here of one of the research code's weights."""
    for place, part in _BIAS.items():
        if found := re.search(rf"\.(\d+)\.\S*{re.escape(place)}(\.\w+)?$", name):
            return f"model.sink_bias.layers.{layers.index(int(found[1]))}.{part}{found[2] or ''}"
    if found := re.fullmatch(r"projectors\.(\w+)\.net\.(\S+)", name):
        return f"head.projections.{_FIELDS.index(found[1])}.{found[2]}"
    parts = {
        "encoder.": "model.language_model.",
        "sink_embedding.0.": "model.sink_embedding.tables.0.",
        "sink_embedding.1.": "model.sink_embedding.projection.",
        "feature_fusion.0.": "head.fusion.",
        "feature_fusion.1.": "head.norm.",
        "ctr_head.fc1.": "head.dense.",
        "ctr_head.fc2.": "head.out.",
    }
    return next((new + name.removeprefix(old) for old, new in parts.items() if name.startswith(old)), name)
