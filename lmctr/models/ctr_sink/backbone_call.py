"""How the sinks of a batch reach the attention of every type of backbone.

Most types pass a call's keywords on to their attention modules: the keyword `sink_context` travels there, and a forward pre-hook
adds the bias to the attention mask. MPNet and DeBERTa-v2 lose keywords on the way:

- MPNet's encoder passes them as far as its layers. A layer normalises behind its attention, so what enters the layer enters the
  attention, and the hook is the layer's.
- DeBERTa-v2's attention takes a mask of yes and no only. Its scores get the bias where they get their relative positions, and
  the relative positions, which its encoder hands from layer to layer, carry the sinks.

Nothing is kept on a module during a call, so that recomputed layers (activation checkpointing) and threads see their own call.
"""

import inspect
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput

from .configuration_ctr_sink import BackboneSpec
from .sink_attention import SinkContext


class _Carried(NamedTuple):
    """Relative positions of DeBERTa-v2 with what travels beside them: the sinks to a layer, their bias to its attention."""

    positions: torch.Tensor
    sinks: Any


def hook_sink_bias(model: nn.Module, add_to_mask: Callable) -> None:
    """Let the enhanced layers of a `CTRSinkModel` add their sink bias.

    Args:
        model: holds `language_model`, `config` and `sink_bias`.
        add_to_mask: bound method, a forward pre-hook of a module that reads its `sink_layer` (number of the layer) and `mask_place`
            (place of `attention_mask` among its arguments).

    Raises:
        ValueError: a DeBERTa-v2 without relative positions.
    """
    config, spec = model.config, model.config.backbone_spec
    enhanced, attentions = config.resolved_sink_bias_layers, model.self_attentions()
    if config.text_config.model_type == "deberta-v2":
        if not config.text_config.relative_attention:
            raise ValueError(
                "sink_bias_layers: a deberta-v2 backbone without relative_attention cannot carry the sink bias; set "
                "relative_attention of the backbone, as DeBERTa's checkpoints do, or sink_bias_layers=[]"
            )
        for index, layer in enumerate(attrgetter(spec.layers_path)(model.language_model)):
            layer.sink_layer = index if index in enhanced else None
            layer.register_forward_pre_hook(partial(_bias_relative_positions, model), with_kwargs=True)
            attentions[index].disentangled_attention_bias = partial(_relative_scores, attentions[index])
        return
    modules = attentions if spec.passes_keywords else attrgetter(spec.layers_path)(model.language_model)
    for index in enhanced:
        module = modules[index]
        module.sink_layer = index
        module.mask_place = list(inspect.signature(module.forward).parameters).index("attention_mask")
        module.register_forward_pre_hook(add_to_mask, with_kwargs=True)


def cache_keyword(function: Callable) -> str:
    """What a function of transformers calls a cache: `past_key_values` before 5.24, which 5.40 will not take."""
    return "cache" if "cache" in inspect.signature(function).parameters else "past_key_values"


def call_backbone(
    language_model: PreTrainedModel, spec: BackboneSpec | None, sinks: SinkContext | None, **kwargs: Any
) -> BaseModelOutput:
    """Call a backbone with `kwargs` (`inputs_embeds`, `attention_mask`, `position_ids`, ...), the sinks at hand for its layers."""
    mask = kwargs.pop("attention_mask")
    if sinks is None or spec.passes_keywords:
        kwargs |= {} if sinks is None else {"sink_context": sinks}
        return language_model(attention_mask=readable(mask, kwargs["inputs_embeds"]), **kwargs)
    hidden = language_model.embeddings(
        inputs_embeds=kwargs.pop("inputs_embeds"), position_ids=kwargs.pop("position_ids"), mask=mask
    )
    encoder, asked = language_model.encoder, ("output_hidden_states", "output_attentions")
    options = {name: bool(kwargs.get(name) or getattr(language_model.config, name)) for name in asked}
    if hasattr(encoder, "get_rel_pos"):
        carried = _Carried(encoder.get_rel_pos(hidden), sinks)
        return encoder(hidden, mask, relative_pos=carried, return_dict=True, **options)
    mask = create_bidirectional_mask(language_model.config, hidden, readable(mask, hidden))
    return encoder(hidden, mask, sink_context=sinks, return_dict=True, **options)


def readable(mask: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor | None:
    """A mask as transformers takes it. It looks into one of two axes, and into positions beside none: on the meta device it gets all four axes."""
    if not states.is_meta or (mask is not None and mask.dim() == 4):
        return mask
    batch, length, _ = states.shape
    return states.new_zeros(batch, 1, length, length)


def _bias_relative_positions(
    model: nn.Module, layer: nn.Module, args: tuple, kwargs: dict
) -> tuple[tuple, dict] | None:
    """Forward pre-hook of a DeBERTa-v2 layer: takes the sinks out of what it is handed, and puts their bias in."""
    carried = kwargs.get("relative_pos")
    if not isinstance(carried, _Carried):
        return None
    positions, bias = carried.positions, None
    if layer.sink_layer is not None:
        bias = model.sink_bias(args[0], carried.sinks, layer.sink_layer)
    return args, {**kwargs, "relative_pos": _Carried(positions, bias)}


def _relative_scores(
    attention: nn.Module, query_layer: torch.Tensor, key_layer: torch.Tensor, relative_pos: Any, *others: Any
) -> torch.Tensor:
    """DeBERTa-v2's own scores of relative positions, (B A, N, N), with the (B, N, N) sink bias for each head."""
    bias = None
    if isinstance(relative_pos, _Carried):
        relative_pos, bias = relative_pos
    own = type(attention).disentangled_attention_bias
    scores = own(attention, query_layer, key_layer, relative_pos, *others)
    return scores if bias is None else scores + bias.repeat_interleave(attention.num_attention_heads, dim=0)
