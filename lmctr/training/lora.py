"""Low-rank adaptation (LoRA) of the language model, with everything new trained and saved whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from lmctr.utils.suggest import unknown_key_message

DEFAULTS = {"r": 32, "alpha": 64, "dropout": 0.1}
"""The paper's settings (arXiv 2508.03668, section 4.1)."""


def add_lora(model: nn.Module, settings: Mapping[str, Any]) -> PeftModel:
    """Freeze the language model and adapt all its linear layers; sinks, bias and head stay fully trainable.

    Args:
        model: a model whose `peft_modules_to_save` names the modules to train and save whole.
        settings: `r`, `alpha`, `dropout`; what is left out has the paper's value (32, 64, 0.1).

    Returns:
        The model wrapped by PEFT. `merge_lora` turns it back into a plain model.

    Raises:
        ValueError: an unknown key or a value out of range.
    """
    for key in settings:
        if key not in DEFAULTS:
            raise ValueError(unknown_key_message(key, DEFAULTS, "training.lora"))
    values = {**DEFAULTS, **settings}
    for key, least in (("r", 1), ("alpha", 1)):
        if isinstance(values[key], bool) or not isinstance(values[key], int) or values[key] < least:
            raise ValueError(f"training.lora.{key} is {values[key]!r}, accepted: a whole number from {least}")
    if isinstance(values["dropout"], bool) or not 0.0 <= float(values["dropout"]) < 1.0:
        raise ValueError(f"training.lora.dropout is {values['dropout']!r}, accepted: a number from 0 to below 1")
    present = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    targets = [
        name
        for name, module in model.model.language_model.named_modules(prefix="model.language_model")
        if isinstance(module, nn.Linear)
    ]
    config = LoraConfig(
        r=values["r"],
        lora_alpha=values["alpha"],
        lora_dropout=float(values["dropout"]),
        target_modules=targets,
        modules_to_save=[name for name in model.peft_modules_to_save if name in present],
    )
    return get_peft_model(model, config)


def merge_lora(model: nn.Module) -> nn.Module:
    """The plain model with the adapters added to its weights; other models are returned as they are."""
    return model.merge_and_unload() if isinstance(model, PeftModel) else model
