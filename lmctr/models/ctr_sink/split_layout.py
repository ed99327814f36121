"""Layout "split" of CTR-Sink: text fields one by one through the lower layers, their vectors through the upper ones.

After BAHE (Geng et al., 2024). This is not the layout of CTR-Sink's research code, which reads each history as one text with its
sinks inside: that is "fields", see `fields_layout.py`. Here a behaviour's vector is computed once for all rows. A row's text is cut into
elements, numbered in text order by `field_ids`: the prompt's opening, each header, each behaviour (with its feedback word and
separator), each sink, the target with the text around it. What is decided here:

- A field is the same tokens as in the layout "single", with positions counted anew; special tokens stay where they are.
- A field's vector depends on its own tokens only, so a behaviour or a candidate is encoded once, whatever row it stands in.
- A [SINK] never passes the lower layers: its embedding (Eq. 4) enters the upper half as a vector among the fields' vectors.
  An aggregation token of `sink_kind="cls"` is a field of one token.
- The vectors enter the upper half as `inputs_embeds` enter the backbone: encoders add positions and normalise.
- The head reads two parts, so that their number is fixed: the mean over the history's elements (stage 1: its sinks), and the
  target, always the last element.

Shapes: B rows, N tokens, P elements of the longest row, F fields, n tokens of the longest field, H hidden size, S signals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutput

from lmctr.models.common.base import evaluation_mode, weights_version, without_values

from .backbone import first_position, turning_length
from .backbone_call import cache_keyword, readable
from .configuration_ctr_sink import BackboneSpec, CTRSinkConfig
from .field_store import FieldStore
from .head import LayoutHead, projection

_CACHE = cache_keyword(create_causal_mask)
_CHUNK = 512  # fields that are encoded for a store at once
_GAP = "field_ids: the elements of each row must be numbered 0, 1, ... without a gap; padding is -1"
_SHARED = "field_ids: a sink shares its element with other tokens; a sink is an element of its own"


class Fields(NamedTuple):
    """The fields of a batch and where they stand.

    input_ids, attention_mask (F, n): the fields' tokens, padded on the right;
    slot (B, P) int64: the field at each element, -1 at sinks and padding;
    mask (B, P) bool: which elements are real;
    buckets (B, P, S) int64: sink buckets, -1 where the element is no sink.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    slot: torch.Tensor
    mask: torch.Tensor
    buckets: torch.Tensor


def cut_fields(
    input_ids: torch.Tensor, field_ids: torch.Tensor, sink_buckets: torch.Tensor, *, sinks_are_text: bool, unique: bool
) -> Fields:
    """Cut rows into fields.

    Args:
        input_ids: (B, N). field_ids: (B, N), the element of each token, -1 for padding. sink_buckets: (B, N, S).
        sinks_are_text: whether a sink's own token is looked up (`sink_kind="cls"`).
        unique: give fields of equal tokens one place.

    Raises:
        ValueError: elements that are not numbered 0, 1, ... in every row; a sink that shares its element with other tokens.
    """
    batch = input_ids.shape[0]
    num_elements = max(int(field_ids.max()) + 1, 1)
    real = field_ids >= 0
    row = torch.arange(batch, device=field_ids.device)[:, None].expand_as(field_ids)
    element = row * num_elements + field_ids
    tokens = torch.bincount(element[real], minlength=batch * num_elements)
    filled = (tokens > 0).view(batch, num_elements)
    numbers = torch.arange(num_elements, device=field_ids.device)
    if not bool((filled == (numbers < filled.sum(1, keepdim=True))).all()):
        raise ValueError(_GAP)
    is_sink = (sink_buckets[..., 0] >= 0) & real
    if bool((tokens[element[is_sink]] > 1).any()):
        raise ValueError(_SHARED)
    buckets = sink_buckets.new_full((batch * num_elements, sink_buckets.shape[-1]), -1)
    buckets[element[is_sink]] = sink_buckets[is_sink]

    is_text = real if sinks_are_text else real & ~is_sink
    order = torch.argsort(element[is_text], stable=True)
    ids, owner = input_ids[is_text][order], element[is_text][order]
    lengths = torch.bincount(owner, minlength=batch * num_elements)
    starts = lengths.cumsum(0) - lengths
    has_text = lengths > 0
    slot = torch.where(has_text, has_text.cumsum(0) - 1, -1)
    num_fields, longest = torch.stack([has_text.sum(), lengths.amax()]).tolist()
    place = torch.arange(len(owner), device=owner.device) - starts[owner]
    fields = input_ids.new_full((num_fields, longest), -1)
    fields[slot[owner], place] = ids
    if unique and num_fields:
        fields, inverse = fields.unique(dim=0, return_inverse=True)
        slot = torch.where(has_text, inverse[slot.clamp_min(0)], -1)
    return Fields(
        fields.clamp_min(0),
        (fields >= 0).long(),
        slot.view(batch, num_elements),
        filled,
        buckets.view(batch, num_elements, -1),
    )


def check_split(what: str, config: CTRSinkConfig) -> None:
    """Raise `ValueError`, which starts with `what`, unless the model has text fields."""
    if config.layout != "split":
        raise ValueError(
            f'{what}: the model has layout="{config.layout}"; fields are vectors in the layout "split" only'
        )


def mean_over(states: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """(B, N, H) states to their (B, H) mean over a (B, N) set; zeros where the set is empty."""
    weight = chosen.to(states.dtype)
    return torch.einsum("bnh,bn->bh", states, weight) / weight.sum(1, keepdim=True).clamp_min(1)


def run_layers(
    backbone: PreTrainedModel,
    spec: BackboneSpec,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor,
    first: int,
    stop: int,
    *,
    position_ids: torch.Tensor | None = None,
    embed: bool = True,
    always_norm: bool = False,
    **kwargs: Any,
) -> list[torch.Tensor]:
    """Pass vectors through layers `first` to `stop` - 1 of a backbone.

    Args:
        inputs_embeds: (B, N, H). They enter layer `first` as word embeddings enter layer 0: encoders add position and type
            embeddings and normalise, unless `embed` is false.
        attention_mask: (B, N), 1 for real vectors, which stand on the left; or a float mask (B, 1, N, N).
        position_ids: (B, N), counted from 0; default: from the left.
        always_norm: whether a decoder's final norm follows these layers in any case, not only behind its last layer.
        kwargs: passed to the layers.

    Returns:
        The states before layer `first` and after each layer, (B, N, H) each.
    """
    config, layers = backbone.config, attrgetter(spec.layers_path)(backbone)
    turned = position_ids
    if position_ids is None:
        turned = position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)[None]
        if turning_length(config) is not None:  # by each row's own length
            turned = position_ids.minimum(attention_mask.sum(1, keepdim=True) - 1).clamp_min(0)
    attention_mask = readable(attention_mask, inputs_embeds)
    types = (getattr(config, "layer_types", None) or ["full_attention"] * len(layers))[first:stop]
    if spec.is_causal:
        hidden = inputs_embeds
        common = {"inputs_embeds": hidden, "attention_mask": attention_mask, _CACHE: None}
        masks = {"full_attention": create_causal_mask(config, position_ids=position_ids, **common)}
        if "sliding_attention" in types:
            masks["sliding_attention"] = create_sliding_window_causal_mask(config, position_ids=position_ids, **common)
        kwargs |= {"position_ids": position_ids, "use_cache": False}
        kwargs["position_embeddings"] = backbone.rotary_emb(hidden, turned)
        if not getattr(config, "is_causal", True):
            kwargs["is_causal"] = (
                False  # as transformers' own forward says it: without padding there is no mask that could
            )
    else:
        hidden = inputs_embeds
        if embed:
            hidden = backbone.embeddings(inputs_embeds=hidden, position_ids=position_ids + first_position(config))
        if getattr(config, "is_decoder", False):
            common = {"inputs_embeds": hidden, "attention_mask": attention_mask, _CACHE: None}
            masks = {"full_attention": create_causal_mask(config, **common)}
        else:
            masks = {"full_attention": create_bidirectional_mask(config, hidden, attention_mask)}
    states = [hidden]
    for index, kind in zip(range(first, stop), types, strict=True):
        hidden = layers[index](hidden, attention_mask=masks[kind], **kwargs)
        states.append(hidden)
    if spec.is_causal and (always_norm or stop == len(layers)):
        states[-1] = backbone.norm(hidden)
    return states


def encode_in_place(
    model: PreTrainedModel, inputs_embeds: torch.Tensor, field_ids: torch.Tensor, own: torch.Tensor, **kwargs: Any
) -> torch.Tensor:
    """(B, N, H) states after the lower half of tokens that stay in their rows: a mask keeps a token to its own field, in which
    positions are counted; the numbers of a call per field, in one call, with nothing cut apart.

    Args:
        inputs_embeds: (B, N, H). field_ids: (B, N), -1 for padding. own: (B, N, F) bool, the same. kwargs: of `run_layers`.
    """
    place = (own.long().cumsum(1) * own).sum(-1).sub(1).clamp_min(0)
    seen = field_ids[:, :, None] == field_ids[:, None, :]
    if model.config.is_causal:
        seen = seen.tril()
    lowest = torch.finfo(inputs_embeds.dtype).min
    mask = torch.zeros(seen.shape, dtype=inputs_embeds.dtype, device=seen.device).masked_fill(~seen, lowest)[:, None]
    spec, stop = model.config.backbone_spec, model.config.num_lower_layers
    return run_layers(model.language_model, spec, inputs_embeds, mask, 0, stop, position_ids=place, **kwargs)[-1]


def vectors_in_place(
    model: PreTrainedModel, input_ids: torch.Tensor, field_ids: torch.Tensor, sink_buckets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The vectors (B, P, H) of the elements, which are real (B, P), and their buckets (B, P, S), as one graph: the numbers of
    `cut_fields` and `encode_fields` without shapes that depend on the texts. P is the longest row's in exported graphs, which check
    nothing; else `config.max_elements`, and no look from the host."""
    count = input_ids.shape[1] if model.max_positions is None else min(model.max_positions, input_ids.shape[1])
    if torch.compiler.is_exporting():
        most, count = count, (field_ids.max() + 1).clamp_min(2).item()  # a graph takes two places or more
        torch._check(count >= 2)
        torch._check(count <= most)
    elif model.config.max_elements is not None:
        count = min(model.config.max_elements, count)
    own = field_ids[..., None] == torch.arange(count, device=field_ids.device)
    is_sink = (sink_buckets[..., 0] >= 0) & (field_ids >= 0)
    is_word = torch.zeros_like(is_sink) if model.sink_embedding is None else is_sink  # its own token is not looked up
    embeds = model.get_input_embeddings()(input_ids.masked_fill(is_word, 0))
    states = encode_in_place(model, embeds, field_ids, own, always_norm=model.config.field_norm)
    weight = own.to(states.dtype)
    vectors = torch.einsum("bnh,bnp->bph", states, weight) / weight.sum(1).clamp_min(1)[..., None]
    mask = own.any(1)
    if not torch.compiler.is_exporting():
        most = model.config.max_elements or "max_positions"  # a size of the batch in a text would bind the graph to it
        torch._assert_async(field_ids.max() < count, f"field_ids: a row has more than {most} elements (max_elements)")
        torch._assert_async((mask[:, 1:] <= mask[:, :-1]).all(), _GAP)
        alone = (own & is_sink[..., None]).any(1) <= (own.sum(1) == 1)
        torch._assert_async(alone.all(), _SHARED)
    first = own.long().argmax(1)[..., None].expand(-1, -1, sink_buckets.shape[-1])
    return vectors, mask, torch.where(mask[..., None], sink_buckets.gather(1, first), -1)


def lower_parameters(model: PreTrainedModel) -> list[nn.Parameter]:
    """What vectors of text fields depend on: all of the backbone but its upper half and, without `field_norm`, a decoder's final norm."""
    backbone, layers = model.language_model, attrgetter(model.config.backbone_spec.layers_path)(model.language_model)
    upper = list(layers[model.config.num_lower_layers :]) + (
        [backbone.norm] if model.config.backbone_spec.is_causal and not model.config.field_norm else []
    )
    others = {id(parameter) for module in upper for parameter in module.parameters()}
    return [parameter for parameter in backbone.parameters() if id(parameter) not in others]


def field_encoder(model: PreTrainedModel) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """What a `FieldStore` encodes texts with: without dropout, some at a time."""

    def encode(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        with evaluation_mode(model):
            parts = zip(input_ids.split(_CHUNK), attention_mask.split(_CHUNK))
            return torch.cat([model.encode_fields(*part) for part in parts])

    return encode


def stored_vectors(model: PreTrainedModel, store: FieldStore, fields: Fields, checked: bool) -> torch.Tensor:
    """(F, H) vectors of fields from a store, which encodes new ones; with `checked` those of other weights go, and none has autocast's
    precision: a store outlives its block."""
    version = weights_version(model, lower_parameters(model)) if checked else None
    precise = torch.autocast(fields.input_ids.device.type, enabled=False) if checked else nullcontext()
    with precise:
        return store(field_encoder(model), fields.input_ids, fields.attention_mask, version)


@dataclass
class SplitOutput(BaseModelOutput):
    """States of the upper half: `last_hidden_state` (B, P, H), `hidden_states` and `attentions` of its layers.

    Args:
        mask: (B, P) bool, which elements are real.
        is_sink: (B, P) bool, which elements are sinks.
    """

    mask: torch.Tensor | None = None
    is_sink: torch.Tensor | None = None


def forward_split(
    model: PreTrainedModel,
    input_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    sink_buckets: torch.Tensor | None,
    field_ids: torch.Tensor | None,
    field_vectors: torch.Tensor | None,
    output_hidden_states: bool | None = None,
    output_attentions: bool | None = None,
) -> SplitOutput:
    """The forward pass of a `CTRSinkModel` in the layout "split"; see there."""
    given = {"input_ids": input_ids, "field_ids": field_ids, "field_vectors": field_vectors}
    if (field_vectors is None) == (input_ids is None or field_ids is None):
        raise ValueError(
            'layout="split" takes either input_ids with field_ids (from a processor with layout="split") or field_vectors; '
            f"got {', '.join(name for name, value in given.items() if value is not None) or 'none'}"
        )
    if field_vectors is None:
        _check_shape("field_ids", field_ids, input_ids.shape)
        if sink_buckets is not None:
            _check_shape("sink_buckets", sink_buckets, input_ids.shape)
        if attention_mask is not None:
            field_ids = field_ids.masked_fill(~attention_mask.bool(), -1)
        buckets, _ = model.locate(input_ids, sink_buckets)
    ahead, config, spec = model.config.items_ahead, model.config, model.config.backbone_spec
    stored = ahead == "frozen" or (ahead == "epoch" and model.training)
    cut = stored or "sliding_attention" in (getattr(config.text_config, "layer_types", None) or ())
    if field_vectors is None and (without_values(input_ids) or (torch.compiler.is_compiling() and not cut)):
        field_vectors, mask, buckets = vectors_in_place(model, input_ids, field_ids, buckets)
    elif field_vectors is None:
        fields = cut_fields(
            input_ids,
            field_ids,
            buckets,
            sinks_are_text=model.sink_embedding is None,
            unique=not (stored or model.training),  # in training each occurrence has its own dropout
        )
        if stored:
            vectors = stored_vectors(model, model.field_store, fields, checked=ahead == "frozen")
        else:
            vectors = model.encode_fields(fields.input_ids, fields.attention_mask)
        mask, buckets = fields.mask, fields.buckets
        field_vectors = vectors[fields.slot.clamp_min(0)] * (fields.slot >= 0)[..., None]
        if stored and ahead == "epoch":  # the target is read, and trains the lower half
            row, last = torch.arange(len(mask), device=mask.device), mask.sum(1) - 1
            own = fields.slot[row, last]
            read = model.encode_fields(fields.input_ids[own], fields.attention_mask[own])
            field_vectors = field_vectors.index_put((row, last), read.to(field_vectors.dtype))
    else:
        mask = field_vectors.new_ones(field_vectors.shape[:2]) if attention_mask is None else attention_mask
        mask, shape = mask.bool(), field_vectors.shape[:2]
        _check_shape("attention_mask", mask, shape)
        if not bool((mask[:, 1:] <= mask[:, :-1]).all()):
            raise ValueError("attention_mask: field_vectors must be padded on the right")
        if sink_buckets is not None:
            _check_shape("sink_buckets", sink_buckets, shape)
        buckets = sink_buckets
    buckets, sinks = model.locate(mask, buckets)
    model.check_length("field_ids:", mask.shape[1], "elements")
    is_sink = (buckets[..., 0] >= 0) & mask
    if model.sink_embedding is not None:
        embeds = model.sink_embedding(buckets.clamp_min(0)).to(field_vectors.dtype)
        field_vectors = torch.where(is_sink[..., None], embeds, field_vectors)
    extra = {} if model.sink_bias is None else {"sink_context": sinks}
    first, stop = config.num_lower_layers, config.text_config.num_hidden_layers
    if output_attentions and model.language_model.config._attn_implementation != "eager":
        raise ValueError("output_attentions=True needs a model loaded with attn_implementation='eager'")
    attentions: list[torch.Tensor] = []
    with ExitStack() as hooks:
        for attention in model.self_attentions()[first:stop] if output_attentions else ():
            hook = attention.register_forward_hook(lambda module, args, output: attentions.append(output[1]))
            hooks.enter_context(hook)
        states = run_layers(model.language_model, spec, field_vectors, mask.long(), first, stop, **extra)
    return SplitOutput(
        last_hidden_state=states[-1],
        hidden_states=tuple(states) if output_hidden_states else None,
        attentions=tuple(attentions) if output_attentions else None,
        mask=mask,
        is_sink=is_sink,
    )


def _check_shape(name: str, value: torch.Tensor, shape: torch.Size) -> None:
    if value.shape[:2] != shape:
        raise ValueError(f"{name}: shape {tuple(value.shape)} does not fit {tuple(shape)} tokens or elements")


class SplitHead(LayoutHead):
    """Head of the layout "split": per part H -> H/2 -> 128, concatenation, LayerNorm, LeakyReLU, then the head of Eq. 5.

    Two parts: the mean over the history and the target. A LeakyReLU stands between the two maps of a projection, which
    would be one map of lower rank without it.
    """

    def __init__(self, config: CTRSinkConfig):
        hidden_size, size = config.text_config.hidden_size, config.field_projection_size
        history, target = (projection(hidden_size, size) for _ in range(2))
        super().__init__(config, 2 * size, history=history, target=target, norm=nn.LayerNorm(2 * size))

    def forward(self, outputs: SplitOutput, pooling: str, statistics: torch.Tensor | None = None) -> torch.Tensor:
        """Upper states, and (B, Fs) statistics where the model has them, to (B,) logits.

        `pooling="all"` (Eq. 5): the history is the mean over all its elements. `"sinks"` (Eq. 6): over its sinks; in a row
        without sinks the target stands in for them. The target is a part of its own in both.
        """
        states, mask = outputs.last_hidden_state, outputs.mask
        count = mask.sum(1, keepdim=True)
        is_target = torch.arange(mask.shape[1], device=mask.device) == count - 1
        chosen = mask & ~is_target
        if pooling == "sinks":
            chosen = torch.where(outputs.is_sink.any(1, keepdim=True), outputs.is_sink, is_target)
        history, target = self.history(mean_over(states, chosen)), self.target(mean_over(states, is_target))
        return self.logits(self.activation(self.norm(torch.cat([history, target], dim=-1))), statistics)


class FieldCache:
    """Vectors of text fields that were encoded before, by their tokens: a catalogue is encoded once, then scored at will.

    Args:
        model: a model with `layout="split"`; used in evaluation mode and without gradients.
        store: keeps the vectors, as long as the lower half's weights stay what they are; default: a new one.

    Memory: 4 H bytes per distinct field in float32.

    Example:

    ```python
    >>> cache = FieldCache(model)
    >>> logits = model(**cache(**processor(histories=..., targets=..., times=...))).logits
    ```
    """

    def __init__(self, model: PreTrainedModel, store: FieldStore | None = None):
        check_split("FieldCache", model.config)
        self.model = model
        self.store = FieldStore() if store is None else store

    def __len__(self) -> int:
        return len(self.store)

    def clear(self) -> None:
        """Forget all vectors."""
        self.store.clear()

    @torch.no_grad()
    def __call__(self, **batch: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Replace the tokens of a processor's batch by vectors; only fields that were never seen pass the lower layers.

        Returns:
            `field_vectors` (B, P, H), `attention_mask` (B, P) and `sink_buckets` (B, P, S), with the further keys of the batch
            (`labels`, ...) as they are. `target_mask` is left out.
        """
        if self.model.training:
            raise ValueError(
                "FieldCache: the model is in training mode, where dropout changes the vectors; call model.eval()"
            )
        model = self.model.model
        device = model.device
        batch = {key: value.to(device) for key, value in batch.items()}
        input_ids, field_ids = batch.pop("input_ids"), batch.pop("field_ids")
        batch.pop("target_mask", None)
        attention_mask = batch.pop("attention_mask", None)
        if attention_mask is not None:
            field_ids = field_ids.masked_fill(~attention_mask.bool(), -1)
        buckets, _ = model.locate(input_ids, batch.pop("sink_buckets", None))
        fields = cut_fields(input_ids, field_ids, buckets, sinks_are_text=model.sink_embedding is None, unique=False)
        vectors = stored_vectors(model, self.store, fields, checked=True)
        return {
            **batch,
            "field_vectors": vectors[fields.slot.clamp_min(0)] * (fields.slot >= 0)[..., None],
            "attention_mask": fields.mask.long(),
            "sink_buckets": fields.buckets,
        }
