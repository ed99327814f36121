"""Layout "fields" of CTR-Sink: the model of the authors' published configurations.

A row is a few text fields: one per list of the history (liked, disliked), each ONE text with its sinks inside, and the target's
(title, genres). Each field passes the lower half of the layers on its own, with sinks and sink bias there; its states are averaged
over its tokens, or in stage 1 over its sinks; the field vectors, without sinks and bias, pass the upper half together; a projection
per field, concatenated, Linear, LayerNorm, LeakyReLU, and the head of Eq. 5. A decoder's final norm follows both halves; an
encoder's embeddings stand before the lower one only.

The fields of a row stand one behind the other, and a mask keeps a token to its own field: the same numbers as a call per field, in
one call, with nothing cut apart. So a row's fields share the attention's N x N, which the authors' four calls do not pay for.

Shapes: B rows, N tokens of all fields, F fields, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from .configuration_ctr_sink import CTRSinkConfig
from .head import LayoutHead, projection
from .split_layout import encode_in_place, run_layers


@dataclass
class FieldsOutput(BaseModelOutput):
    """States of the upper half: `last_hidden_state` (B, F, H), `hidden_states` of its layers."""


def forward_fields(
    model: PreTrainedModel,
    input_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    sink_buckets: torch.Tensor | None,
    field_ids: torch.Tensor | None,
    pooling: str,
    output_hidden_states: bool | None = None,
) -> FieldsOutput:
    """The forward pass of a `CTRSinkModel` in the layout "fields"; see there. `pooling`: "all" or "sinks", of each field."""
    config, backbone = model.config, model.language_model
    if input_ids is None or field_ids is None or field_ids.shape != input_ids.shape:
        raise ValueError(
            'layout="fields" takes input_ids (B, N) with field_ids (B, N), from a processor with layout="fields"; got '
            f"{None if input_ids is None else tuple(input_ids.shape)} and "
            f"{None if field_ids is None else tuple(field_ids.shape)}"
        )
    if attention_mask is not None:
        field_ids = field_ids.masked_fill(~attention_mask.bool(), -1)
    inputs_embeds, buckets, sinks = model.embed(input_ids, sink_buckets)
    own = field_ids[..., None] == torch.arange(config.num_fields, device=field_ids.device)  # (B, N, F)
    check_fields(model, own)
    if (
        field_ids.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and bool((field_ids >= config.num_fields).any())
    ):
        raise ValueError(
            f"field_ids: a token of field {int(field_ids.max())}; the model reads the fields 0 to {config.num_fields - 1}, and -1 is padding"
        )
    options = {}
    if model.sink_bias is not None:
        options["sink_context"] = sinks._replace(group=field_ids.gather(1, sinks.index))
    spec, middle = config.backbone_spec, config.num_lower_layers
    tokens = encode_in_place(model, inputs_embeds, field_ids, own, always_norm=True, **options)
    chosen = own
    if pooling == "sinks":
        is_sink = (buckets[..., :1] >= 0) & own
        # A history without sinks gives its first token, as in the authors' code; the target's fields all of theirs.
        instead = own & (own.long().cumsum(1) == 1)
        instead = torch.where(is_sink.any(1, keepdim=True), is_sink, instead)
        is_history = torch.arange(config.num_fields, device=own.device) < config.num_history_fields
        chosen = torch.where(is_history, instead, own)
    weight = chosen.to(tokens.dtype)
    vectors = torch.einsum("bnh,bnf->bfh", tokens, weight) / weight.sum(1).clamp_min(1)[..., None]
    ones = torch.ones(vectors.shape[:2], dtype=torch.long, device=vectors.device)
    last = config.text_config.num_hidden_layers
    states = run_layers(backbone, spec, vectors, ones, middle, last, embed=False, always_norm=True)
    hidden = tuple(states) if output_hidden_states else None
    return FieldsOutput(last_hidden_state=states[-1], hidden_states=hidden)


def check_fields(model: PreTrainedModel, own: torch.Tensor) -> None:
    """Raise unless every row has every field, none longer than the backbone has positions for; looks only where that is free."""
    if own.device.type != "cpu" or torch.compiler.is_compiling():
        return
    length = own.sum(1)
    if not bool((length > 0).all()):
        row, field = torch.nonzero(length == 0)[0].tolist()
        raise ValueError(
            f"field_ids: row {row} has no token of field {field}; the model reads {model.config.num_fields} fields "
            f"(num_history_fields={model.config.num_history_fields}, num_target_fields={model.config.num_target_fields})"
        )
    model.check_length("field_ids: a field of", int(length.max()), "tokens")


class FieldsHead(LayoutHead):
    """Per field H -> H/2 -> 128, concatenation, Linear, LayerNorm, LeakyReLU, then the head of Eq. 5."""

    def __init__(self, config: CTRSinkConfig):
        size = config.field_projection_size
        projections = nn.ModuleList(
            [projection(config.text_config.hidden_size, size) for _ in range(config.num_fields)]
        )
        fusion = nn.Linear(config.num_fields * size, size)
        super().__init__(config, size, projections=projections, fusion=fusion, norm=nn.LayerNorm(size))

    def forward(self, outputs: FieldsOutput, pooling: str, statistics: torch.Tensor | None = None) -> torch.Tensor:
        """Upper states, and (B, Fs) statistics where the model has them, to (B,) logits; `pooling` has been done."""
        fields = outputs.last_hidden_state.unbind(1)
        projected = [part(field) for part, field in zip(self.projections, fields, strict=True)]
        fused = self.activation(self.norm(self.fusion(torch.cat(projected, dim=-1))))
        return self.logits(fused, statistics)
