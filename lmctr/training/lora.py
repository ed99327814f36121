"""Low-rank adaptation (LoRA) of the language model, with everything new trained and saved whole.

QLoRA, where bitsandbytes is installed: the backbone is loaded quantised, everything new stays float32.

```python
>>> quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
>>> model = add_lora(CTRSinkForCTR.from_backbone("Qwen/Qwen2-0.5B", quantization_config=quantised), {"r": 32})
>>> save_adapter(model, "adapter")  # after training
>>> model = merge_lora(load_adapter(CTRSinkForCTR.from_backbone("Qwen/Qwen2-0.5B"), "adapter"))
```
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from torch import nn
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from lmctr.models.common.base import plain_model
from lmctr.models.common.configuration import own_keys
from lmctr.utils.files import as_path, named_place, place_name, read_json, write_json
from lmctr.utils.rows import check_kind
from lmctr.utils.suggest import first_of, refuse_unknown

__all__ = ["add_lora", "check_lora", "load_adapter", "merge_lora", "save_adapter", "save_base_config"]

logger = logging.get_logger(__name__)

CONFIG_FILE = "ctr_config.json"
_WEIGHTS, _BASE = "base_weights", "base"
_RECOMPUTED = 1e-5  # most that two machines' decompositions of one matrix leave different
_RANDOM = "random weights, which no file keeps: what has the adapters in it is the run's own model alone"

DEFAULTS = {"r": 32, "alpha": 64, "dropout": 0.1}
"""Those of the published configurations of CTR-Sink's authors; the paper (arXiv 2508.03668) trains all weights."""


def check_lora(settings: Mapping[str, Any], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """The settings, with `DEFAULTS` where they say nothing.

    Raises:
        ValueError: a family without a language model, an unknown key or a value out of range.
    """
    if "text_config" not in config_class.sub_configs:
        raise ValueError(
            f"training.lora adapts a language model, and {config_class.model_type} has none; leave it out, or train the family ctr_sink"
        )
    check_kind(settings, Mapping, "training.lora")
    refuse_unknown(settings, DEFAULTS, "training.lora")
    values = {**DEFAULTS, **settings}
    for key, least in (("r", 1), ("alpha", 1)):
        if isinstance(values[key], bool) or not isinstance(values[key], int) or values[key] < least:
            raise ValueError(f"training.lora.{key} is {values[key]!r}, accepted: a whole number from {least}")
    if (
        isinstance(values["dropout"], bool)
        or not isinstance(values["dropout"], Real)
        or not 0.0 <= values["dropout"] < 1.0
    ):
        raise ValueError(f"training.lora.dropout is {values['dropout']!r}, accepted: a number from 0 to below 1")
    return values


def add_lora(model: nn.Module, settings: Mapping[str, Any]) -> PeftModel:
    """Freeze the language model and adapt all its linear layers (but those of a frozen lower half, see `items_ahead`); sinks, bias and
    head stay fully trainable.

    Args:
        model: a model whose `peft_modules_to_save` names the modules to train and save whole.
        settings: `r`, `alpha`, `dropout`; what is left out is as in `DEFAULTS` (32, 64, 0.1).

    Returns:
        The model wrapped by PEFT. `merge_lora` turns it back into a plain model.

    Raises:
        ValueError: a model without a language model, an unknown key or a value out of range.
    """
    values = check_lora(settings, type(model.config))
    present = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    quantised = getattr(model, "is_quantized", False)
    targets = [
        name
        for name, module in model.model.language_model.named_modules(prefix="model.language_model")
        if isinstance(module, (nn.Linear, Conv1D)) and (quantised or module.weight.requires_grad)
    ]
    if not targets:
        raise ValueError(
            f"model: a language model of type {model.config.text_config.model_type!r} has no linear layer that is trained; train it without "
            "training.lora"
        )
    config = LoraConfig(
        r=values["r"],
        lora_alpha=values["alpha"],
        lora_dropout=float(values["dropout"]),
        target_modules=targets,
        # GPT-2 holds its matrices the other way round
        fan_in_fan_out=isinstance(model.get_submodule(targets[0]), Conv1D),
        modules_to_save=[name for name in model.peft_modules_to_save if name in present],
    )
    with _without_word_of_transformers():
        return get_peft_model(model, config)


@contextmanager
def _without_word_of_transformers() -> Iterator[None]:
    """PEFT asks transformers by a name that is to go; whoever trains can do nothing about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def check_adapters(model: nn.Module, loads_best: bool) -> None:
    """Says which new modules of a model, beside adapters that were made by hand, are neither trained nor saved, and which running statistics
    are not.

    Args:
        loads_best: whether the best checkpoint is loaded at the end, which transformers does for models of PEFT alone.

    Raises:
        ValueError: what is no adapter of layers but a prompt, or a prefix, of vectors ahead of the texts; adapters of `model.add_adapter`, where
            the best checkpoint is to be loaded.
    """
    if loads_best and not isinstance(model, PeftModel):
        raise ValueError(
            "model: it has adapters of model.add_adapter, whose best checkpoint transformers cannot load at the end; give lmctr.training.lora"
            ".add_lora(model, {...}) or peft.get_peft_model(model, config), or set load_best_model_at_end=False"
        )
    for config in model.peft_config.values():
        if getattr(config, "is_prompt_learning", False):
            raise ValueError(
                f"model: {type(config).__name__} puts vectors ahead of a text, for which {type(plain_model(model)).__name__} has no place; "
                "accepted: LoRA and other adapters of layers, see lmctr.training.lora.add_lora"
            )
        if getattr(config, "task_type", None) and not getattr(plain_model(model).config, "has_tokenizer", True):
            raise ValueError(
                f"model: adapters of the task_type {config.task_type} hand on the inputs of texts, which {type(plain_model(model)).__name__} "
                "does not read; leave task_type out"
            )
    adapter, frozen = getattr(model.base_model, "prefix", "lora_"), []
    own = {f".{name}": parameter for name, parameter in model.named_parameters() if adapter not in name}
    for part in getattr(plain_model(model), "peft_modules_to_save", ()):
        trained = [parameter.requires_grad for name, parameter in own.items() if f".{part}." in name]
        if trained and not any(trained):
            frozen.append(part)
    if frozen:
        logger.warning(
            "the adapters leave %s as they are, new or not, and save nothing of them; name them: "
            "LoraConfig(..., modules_to_save=list(model.peft_modules_to_save)), or use lmctr.training.lora.add_lora",
            ", ".join(frozen),
        )
    of_others = (".modules_to_save.", ".original_module.")
    moved = [name for name, _ in model.named_buffers() if name.endswith(".running_mean")]
    moved = [
        name.removesuffix(".running_mean").removeprefix("base_model.model.")
        for name in moved
        if not any(part in name for part in of_others)
    ]
    if moved:
        logger.warning(
            "training moves the running statistics of %s, of which adapters save nothing: name these modules in modules_to_save, or keep the "
            "whole model (lmctr.training.lora.merge_lora), which scores as this one does",
            first_of(moved),
        )


def merge_lora(model: nn.Module) -> nn.Module:
    """The plain model with the adapters, of LoRA or another kind that PEFT can merge, added to its weights; other models are returned as they are.

    Raises:
        ValueError: a quantised backbone, whose weights would be rounded again: save the adapter, load it on the backbone
            without quantisation, and merge there.
    """
    if not isinstance(model, PeftModel):
        return model
    if getattr(model.get_base_model(), "is_quantized", False):
        raise ValueError(
            "model: its backbone is quantised, and merging would round the sum again; save_adapter(model, folder), then "
            "merge_lora(load_adapter(CTRSinkForCTR.from_backbone(...), folder)) with the backbone loaded unquantised"
        )
    # PEFT unwraps modules without a weight of their own, such as a head, under LoRA only.
    for name, module in [*model.named_modules()]:
        if isinstance(module, ModulesToSaveWrapper):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, module.modules_to_save[module.active_adapters[0]])
    return model.merge_and_unload()


def save_adapter(model: PeftModel, folder: str | Path, from_run: str | None = None) -> None:
    """Write the adapters and the modules trained whole, without the language model: some megabytes instead of gigabytes.

    Leaves `adapter_config.json`, `adapter_model.safetensors` (both PEFT's own, so `PeftModel.from_pretrained` reads them) and
    `ctr_config.json`, the configuration that the base must have and, as `base`, which it is.

    Args:
        model: from `add_lora`.
        folder: to write to.
        from_run: the run whose model is the base, where the training went on from one; else it is named by where it was loaded from.

    Raises:
        ValueError: a model without adapters.
    """
    if not isinstance(model, PeftModel):
        raise ValueError(f"model: only a model from add_lora has adapters to save, got {type(model).__name__}")
    folder = as_path(folder, "folder")
    with _without_card(model):
        model.save_pretrained(str(folder))
    save_base_config(model, folder, from_run)


@contextmanager
def _without_card(model: PeftModel) -> Iterator[None]:
    """PEFT's is a form to fill in, and it writes into one that is there."""
    model.create_or_update_model_card = lambda output_dir: None
    try:
        yield
    finally:
        del model.create_or_update_model_card


def save_base_config(model: PeftModel, folder: str | Path, from_run: str | None) -> None:
    """Write the configuration that the base of saved adapters must have beside them, which one it is, and some of its weights, by which it is
    known again."""
    base = model.get_base_model()
    adapted = [name for name, module in base.named_modules() if isinstance(module, BaseTunerLayer)]
    values = base.config.to_diff_dict()
    backbone = getattr(base.config, "text_config", None)
    named = place_name(base.name_or_path) or place_name(getattr(backbone, "name_or_path", "")) or _RANDOM
    told = {_BASE: f"the model of the run {named_place(from_run)}" if from_run else named}
    write_json(Path(folder) / CONFIG_FILE, values | told | {_WEIGHTS: _sample(base, adapted[-1])})


def _sample(model: nn.Module, layer: str) -> dict[str, Any]:
    """The first weights of a layer, none of a quantised or an absent one."""
    module = dict(model.named_modules()).get(layer)
    weight = getattr(getattr(module, "base_layer", module), "weight", torch.empty(0)).detach()
    values = weight.flatten()[:32].double().tolist() if weight.is_floating_point() else []
    return {
        "layer": layer,
        "shape": list(weight.shape),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "values": values,
    }


def _same(one: Mapping[str, Any], other: Mapping[str, Any], rounding: float) -> bool:
    """Whether weights are equal but for the rounding of the coarser type; also where one is not known, or of another shape, which PEFT tells."""
    if not (one["values"] and other["values"]) or one["shape"] != other["shape"]:
        return True
    relative = max(torch.finfo(getattr(torch, own["dtype"])).eps for own in (one, other))
    return np.allclose(one["values"], other["values"], rtol=relative, atol=rounding)


def _check_weights(
    model: nn.Module, weights: Mapping[str, Any] | None, folder: Path, base: str, start: str | None = None
) -> None:
    """Raises `ValueError` where the weights that were written down, if any, are another base's; `start`: which `init_lora_weights` has taken a part
    of the model's since."""
    if weights is None or _same(weights, _sample(model, weights["layer"]), 1e-7 if start is None else _RECOMPUTED):
        return
    hint = (
        f"; if it is that one, init_lora_weights={start!r} has left another part of them than in the training, as where it draws random numbers: "
        "keep the whole model then (merge_lora, save_pretrained)"
    )
    raise ValueError(
        f"model: its weights are not those that the adapters in {folder} were trained on ({weights['layer']} differs); "
        f"{'these were' if base == _RANDOM else 'give that base:'} {base}{hint if start else ''}"
    )


def load_adapter(model: nn.Module, folder: str | Path, is_trainable: bool = False) -> PeftModel:
    """Put saved adapters on a base model.

    Args:
        model: a plain model with the same backbone, for example from `CTRSinkForCTR.from_backbone`, with the same values of
            its configuration. Its sinks, bias and head are replaced by the saved ones. The backbone may be quantised.
        folder: what `save_adapter` wrote.
        is_trainable: whether to go on training; else the model is in evaluation mode.

    Raises:
        ValueError: no adapters there, adapters of a model with other configuration values or other weights, or weights that do not fit.
    """
    check_kind(model, nn.Module, "model")
    folder = as_path(folder, "folder")
    for name in ("adapter_config.json", "adapter_model.safetensors", CONFIG_FILE):
        if not (folder / name).is_file():
            raise ValueError(f"folder: {folder} has no {name}; give a folder that save_adapter wrote")
    if isinstance(model, PeftModel):
        raise ValueError("model: it has adapters already; give a plain model")
    values = read_json(folder / CONFIG_FILE)
    weights = values.pop(_WEIGHTS, None)  # none of adapters from before they were kept
    base = values.pop(_BASE, "of a run with training.from_run the model of that earlier run, else the backbone")
    saved = type(model.config).from_dict(values)
    if model.config.processor_fingerprint is None:  # of a model that was saved before it met its processor
        model.config.processor_fingerprint = saved.processor_fingerprint
    for key in sorted({*own_keys(model.config)} - {"text_config"}):
        if getattr(saved, key) != getattr(model.config, key):
            raise ValueError(
                f"model: {key}={getattr(model.config, key)!r}, but the adapters in {folder} were trained with "
                f"{getattr(saved, key)!r}; build the base with that value"
            )
    start = read_json(folder / "adapter_config.json").get("init_lora_weights")
    takes_part = isinstance(start, str)  # of the weights, as PiSSA and OLoRA do: what they leave was written down
    if not takes_part:
        _check_weights(model, weights, folder, base)
    try:
        with _without_word_of_transformers():
            loaded = PeftModel.from_pretrained(model, str(folder), is_trainable=is_trainable)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"folder: the adapters in {folder} do not fit this model's backbone: {error}") from error
    if takes_part:
        _check_weights(model, weights, folder, base, start)
    return loaded if is_trainable else loaded.eval()
