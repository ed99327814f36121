"""Making and loading the language model inside CTR-Sink, whatever its type."""

import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils.peft_utils import find_adapter_config_file
from transformers.utils.quantization_config import QuantizationConfigMixin

from ...utils.load_report import held_load_report, print_load_report
from ...utils.suggest import first_of


def _constructor_options(config: PreTrainedConfig) -> dict:
    """Leave out the pooler where the type has one: CTR-Sink averages tokens, and unused weights break DDP."""
    try:
        model_class = MODEL_MAPPING[type(config)]
    except KeyError:
        raise ValueError(
            f"text_config: model type {config.model_type!r} has no base model in transformers' AutoModel"
        ) from None
    options = inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in options else {}


def new_backbone(config: PreTrainedConfig) -> PreTrainedModel:
    """A backbone with random weights, without pooler."""
    if getattr(config, "attn_logit_softcapping", None) is not None and config._attn_implementation in (None, "sdpa"):
        config._attn_implementation = "eager"  # sdpa would leave the softcapping out (transformers 5.17 lets it)
    # In the type that the rest of the model is made in, not in the one that a published configuration names for its own weights.
    own = {} if config.dtype is None else {"dtype": torch.get_default_dtype()}
    model = AutoModel.from_config(config, **own, **_constructor_options(config))
    if "inputs_embeds" not in inspect.signature(model.forward).parameters:
        raise ValueError(
            f"text_config: {type(model).__name__} takes no inputs_embeds, which the sinks need; use another backbone"
        )
    return model


def backbone_config(
    name_or_path: str, text_config_values: Mapping[str, Any], hub: Mapping[str, Any]
) -> PreTrainedConfig:
    """Configuration of a pretrained backbone, with some values replaced.

    Raises:
        ValueError: the name is unknown, it is a PEFT adapter's, or a value of `text_config_values` is no key of the configuration.
    """
    try:
        config = AutoConfig.from_pretrained(name_or_path, **hub)
    except (OSError, ValueError, KeyError) as error:
        if _holds_adapter(name_or_path, hub):
            raise ValueError(_adapter(name_or_path)) from error
        raise ValueError(
            f"backbone: {name_or_path!r} is neither a model id on the Hub, nor a folder with a config.json of a known "
            f"model type, nor, in a recipe, package:NAME ({error})"
        ) from error
    for key, value in text_config_values.items():
        if not hasattr(config, key):
            raise ValueError(f"text_config_values: {config.model_type} has no configuration key {key!r}")
        setattr(config, key, value)
    return config


def _holds_adapter(name_or_path: str, hub: Mapping[str, Any]) -> bool:
    with suppress(OSError, ValueError):  # no such repository
        return find_adapter_config_file(name_or_path, **hub) is not None
    return False


def _adapter(name_or_path: str) -> str:
    return (
        f"backbone: {name_or_path!r} holds a PEFT adapter (adapter_config.json); merge it into its base model and give the folder that "
        "comes of it: peft.PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(FOLDER), and the tokenizer beside it"
    )


def load_backbone(
    name_or_path: str, text_config_values: dict, hub: dict, quantization_config: Any = None
) -> PreTrainedModel:
    """A pretrained backbone without pooler: float32 on the CPU, or as the quantisation places it.

    Raises:
        ValueError: see [`backbone_config`]; quantised weights without `quantization_config`, a checkpoint that does not hold all the
            backbone's weights, or an adapter beside them.
        ImportError: `quantization_config` asks for a package that is not installed.
    """
    config = backbone_config(name_or_path, text_config_values, hub)
    if _holds_adapter(name_or_path, hub):  # transformers would put it into the layers, or ask for a newer PEFT
        raise ValueError(_adapter(name_or_path))
    held = getattr(config, "quantization_config", None)
    if held is not None and quantization_config is None:
        method = held.get("quant_method") if isinstance(held, Mapping) else held.quant_method
        raise ValueError(
            f"backbone: the weights of {name_or_path!r} are quantised (quantization_config of its config.json, {method}), and CTR-Sink "
            "trains float32 ones; give the checkpoint that they were made of, or in Python from_backbone(..., quantization_config=...) for LoRA"
        )
    options = _constructor_options(config)
    if quantization_config is not None:
        options["quantization_config"] = _checked_quantization(quantization_config)
    # Nearly every encoder is published with a pooler or an LM head, which CTR-Sink has no use for: no table for these.
    try:
        with held_load_report() as report:
            model, info = AutoModel.from_pretrained(
                name_or_path,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                **options,
                **hub,
            )
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"backbone: the weights of {name_or_path!r} cannot be read as safetensors ({error}){_conversion(name_or_path)}"
        ) from error
    except RuntimeError as error:
        print_load_report(report)
        raise ValueError(
            f"backbone: the weights of {name_or_path!r} do not fit its configuration ({error}); leave out the "
            "text_config_values that change a shape"
        ) from error
    missing = sorted(info["missing_keys"]) + sorted(str(key) for key in info.get("mismatched_keys", ()))
    if missing:
        raise ValueError(
            f"backbone: {name_or_path!r} lacks {len(missing)} of the weights that {type(model).__name__} needs ({first_of(missing)}); "
            "they would stay random. Use a complete checkpoint of this type"
        )
    if _surplus_inside(model, info["unexpected_keys"]):
        print_load_report(report)
    model.config.dtype = None
    return model


def _conversion(name_or_path: str) -> str:
    """How to make safetensors of a folder's old weights; empty where it has none."""
    if not any(Path(name_or_path).glob("pytorch_model*.bin")):
        return ""
    return (
        ". It holds weights as pytorch_model.bin only, a pickle; if you trust it, convert it once and give the new folder: "
        f'python -c "from transformers import AutoModel as M, AutoTokenizer as T; n = {str(name_or_path)!r}; '
        "M.from_pretrained(n).save_pretrained('FOLDER'); T.from_pretrained(n).save_pretrained('FOLDER')\""
    )


def _checked_quantization(quantization_config: Any) -> Any:
    """The quantisation, if its package is there: transformers' own message comes after the download."""
    if not isinstance(quantization_config, QuantizationConfigMixin):
        raise ValueError(
            f"quantization_config must be one of transformers' quantisation configurations, for example "
            f"BitsAndBytesConfig(load_in_4bit=True), got {quantization_config!r}"
        )
    method = str(getattr(quantization_config.quant_method, "value", quantization_config.quant_method))
    if method.startswith("bitsandbytes") and find_spec("bitsandbytes") is None:
        raise ImportError(
            "quantization_config asks for bitsandbytes, which is not installed: pip install bitsandbytes, or load the "
            "backbone without quantization_config"
        )
    return quantization_config


def _surplus_inside(model: PreTrainedModel, unexpected: Iterable[str]) -> bool:
    """Whether weights were left over inside the backbone's own modules (further layers), not only beside them (a head)."""
    own = {name for name, _ in model.named_children()}
    names = [str(name).removeprefix(f"{model.base_model_prefix}.") for name in unexpected]
    return any(name.split(".")[0] in own and not name.endswith(".position_ids") for name in names)


def first_position(config: PreTrainedConfig) -> int:
    """Number of the first real token; types that do not begin at 0 give padding the number before."""
    if config.model_type == "mpnet":
        return 2  # whatever its padding token
    return config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0


def max_positions(config: PreTrainedConfig) -> int | None:
    """Most tokens that a backbone has positions for; None without limit."""
    limit = getattr(config, "max_position_embeddings", None)
    return None if limit is None else limit - first_position(config)


def turning_length(config: PreTrainedConfig) -> int | None:
    """Tokens of a row above which its rotary positions turn otherwise, the first ones too (longrope), in some layer; None where they always turn alike."""
    lengths = [*_turning_lengths(config).values()]
    return min(lengths) if lengths else None  # as dynamo takes it


def _turning_lengths(config: PreTrainedConfig) -> dict[str | None, int]:
    """[`turning_length`] by type of layer, where the types have rotary positions of their own (Gemma 3); else by None."""
    rope = getattr(config, "rope_parameters", None) or {}
    types = rope if any(isinstance(own, dict) for own in rope.values()) else {None: rope}
    return {
        kind: own["original_max_position_embeddings"]
        for kind, own in types.items()
        if own is not None and own.get("rope_type") == "longrope"
    }


def turn_by_row(language_model: PreTrainedModel) -> None:
    """Let each row's positions turn by its own length, where they turn by a batch's longest in transformers."""
    edges = _turning_lengths(language_model.config)
    if edges and hasattr(language_model, "rotary_emb"):
        language_model.rotary_emb.register_forward_hook(partial(_turned_by_row, edges), with_kwargs=True)


def _turned_by_row(
    edges: Mapping[str | None, int], rotary: nn.Module, args: tuple, kwargs: dict, found: tuple
) -> tuple[torch.Tensor, ...]:
    """Forward hook of rotary positions: of a row that is no longer than the edge (of its type of layer) those of a batch without longer ones."""
    states, positions, *kind = (*args, *kwargs.values())
    edge = edges.get(kind[0] if kind else None)
    if edge is None:
        return found
    short = rotary.forward(states, positions.clamp_max(edge - 1), *kind)
    is_long = (positions.amax(1) >= edge)[:, None, None]
    return tuple(torch.where(is_long, *both) for both in zip(found, short))


def position_ids_from_mask(attention_mask: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """(B, N) positions counted over the real tokens, so that left and right padding agree."""
    mask, first = attention_mask.long(), first_position(config)
    return ((mask.cumsum(1) + first - 1) * mask + max(first - 1, 0) * (1 - mask)).clamp_min(0)
