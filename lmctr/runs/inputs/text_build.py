"""Configurations of the backbones of text inputs: pretrained ones, and ones from scratch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModel, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from lmctr.models.ctr_sink.backbone import backbone_config
from lmctr.training.tokenizers import resolve_backbone
from lmctr.utils.suggest import unknown_key_message


def build_text_config(model: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Any:
    """The backbone's configuration, without its weights."""
    backbone = model["backbone"]
    if isinstance(backbone, dict):
        values = scratch_text_config(backbone, tokenizer)
        return CONFIG_MAPPING[values.pop("model_type")](**values)
    return pretrained_text_config(model)


def pretrained_text_config(model: Mapping[str, Any]) -> Any:
    """The configuration of a named backbone, with the recipe's changes.

    Raises:
        ValueError: no such backbone, or no such key of its configuration.
    """
    try:
        return backbone_config(resolve_backbone(model["backbone"]), model["text_config_values"], {})
    except ValueError as error:
        raise ValueError(f"model.{error}") from error


def check_backbone(values: Mapping[str, Any]) -> None:
    """Check what can be known of a backbone from scratch before there are data.

    Raises:
        ValueError: an unknown model type or configuration key, heads that do not divide the width.
    """
    model_type = values["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise ValueError(f"model.backbone: unknown model_type {model_type!r}; for example bert, roberta, qwen2, qwen3")
    config_class = CONFIG_MAPPING[model_type]
    known = set(config_class().to_dict()) | set(inspect.signature(config_class.__init__).parameters)
    known |= set(config_class.attribute_map)  # hidden_size of GPT-2, whose own name is n_embd
    for key in values:
        if key not in known:
            meant = next(
                (own for own in ("hidden_dim", "n_inner") if own in known and key == "intermediate_size"), None
            )
            raise ValueError(
                unknown_key_message(key, known - {"self", "args", "kwargs"}, "model.backbone", meant=meant)
            )
    try:
        config = config_class(**{key: value for key, value in values.items() if key != "model_type"})
    except StrictDataclassError as error:
        raise ValueError(f"model.backbone: {' '.join(str(error).split())}") from error
    width, heads = (getattr(config, key, None) for key in ("hidden_size", "num_attention_heads"))
    if width and heads and width % heads:
        try:
            with torch.device("meta"):
                AutoModel.from_config(config)
        except ValueError as error:
            raise ValueError(
                f"model.backbone.num_attention_heads is {heads}, accepted: a divisor of model.backbone.hidden_size, which is {width} ({error})"
            ) from error


def scratch_text_config(
    values: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, sink_token_id: int | None = None
) -> dict[str, Any]:
    """Configuration of a backbone from scratch: the recipe's values, with the tokenizer's vocabulary and ids.

    The sink token needs no row in the vocabulary: the model never looks it up.

    Raises:
        ValueError: an unknown model type or configuration key, a `vocab_size` smaller than the tokenizer's.
    """
    check_backbone(values)
    needed = max(number for number in tokenizer.get_vocab().values() if number != sink_token_id) + 1
    if values.get("vocab_size", needed) < needed:
        raise ValueError(
            f"model.backbone: vocab_size is {values['vocab_size']}, but the tokenizer has {needed} tokens; leave it out"
        )
    own = [key for key in ("cls_token_id", "sep_token_id") if key in vars(CONFIG_MAPPING[values["model_type"]]())]
    ids = {key: getattr(tokenizer, key) for key in ("pad_token_id", "bos_token_id", "eos_token_id", *own)}
    return {"vocab_size": needed, **ids, **values}
