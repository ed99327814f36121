"""FAT: the Field-Aware Transformer for CTR prediction.

Paper: https://arxiv.org/abs/2511.12081. There is no released code; what the text leaves open is decided in [`FATConfig`].

Shapes: B batch, F fields, N tokens (one per field by default), d hidden size, H heads, L layers. Inside the layers tokens lie
first, (N, B, d), so that the projections of all fields are one batched matrix product; outputs are (B, N, d).
"""

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from lmctr.models.common.embeddings import INTEGERS, FieldEmbedding
from lmctr.models.common.layers import NormalWeight, in_blocks
from lmctr.models.common.outputs import TabularModelOutput, or_tuple
from lmctr.models.common.products import Linear
from lmctr.models.common.tabular import (
    Encoded,
    TabularForCTRMixin,
    TabularInputs,
    TabularModelMixin,
    TabularPreTrainedModel,
    Trace,
)

from .configuration_fat import FATConfig
from .field_projections import build_projection
from .field_tokens import FieldTokens, SequenceAttention, numeric_encoder

__all__ = ["FATForCTR", "FATModel", "FATPreTrainedModel"]

ROWS = 64  # held at a time on the CPU


class FieldAwareAttention(nn.Module):
    """Field-decomposed attention (Eq. 5-8): softmax over j of (q_i . k_j) w_{f_i, f_j} / scale, with field-wise q, k, v."""

    def __init__(self, config: FATConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // self.num_heads
        self.kind = config.projection
        self.scaling = (self.head_dim if config.scale == "head_dim" else config.hidden_size) ** -0.5
        self.projection = build_projection(config)
        self.modulation = None
        if config.use_pair_modulation:
            # w (H, F, F) of Eq. 5: how strongly a query field (second axis) reads a key field (third axis), not symmetric.
            fields, mean = config.num_fields, 1.0 if config.pair_init == "one_plus" else 0.0
            self.modulation = NormalWeight(self.num_heads, fields, fields, mean=mean, std=0.01)
        self.output = (
            nn.Linear(config.hidden_size, config.hidden_size, bias=False) if config.use_output_projection else None
        )
        self.attention_dropout = nn.Dropout(config.attention_dropout)

    def forward(
        self,
        tokens: torch.Tensor,
        meta: torch.Tensor | None,
        field_ids: torch.Tensor | None,
        output_attentions: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens (N, B, d) to outputs (N, B, d), and attention weights (B, H, N, N) when asked for.

        `field_ids` (N,) is None where token i belongs to field i.
        """
        factor, matrices = self._factor(field_ids), self._matrices(meta, field_ids)
        mix = self._pairwise if self.kind == "pair" else self._fieldwise
        if output_attentions:
            outputs, weights = mix(tokens, matrices, factor)
        else:
            outputs = in_blocks(lambda block: mix(block, matrices, factor)[0], tokens, ROWS, dim=1)
            weights = None
        return (outputs if self.output is None else self.output(outputs)), weights

    def _factor(self, field_ids: torch.Tensor | None) -> torch.Tensor | float:
        """What scores are multiplied by: the scale, times w (H, N, N)."""
        if self.modulation is None:
            return self.scaling
        weight = self.modulation()
        if field_ids is not None:
            weight = weight[:, field_ids[:, None], field_ids]
        return weight * self.scaling

    def _matrices(self, meta: torch.Tensor | None, field_ids: torch.Tensor | None) -> torch.Tensor:
        """The projections: (d, 3 d), (N, d, 3 d) of each token, or (3, N, N, d, d) of each pair."""
        if self.kind == "pair":
            matrices = self.projection()
            return matrices if field_ids is None else matrices[:, field_ids[:, None], field_ids]
        matrices = self.projection(meta)
        return matrices if self.kind == "shared" or field_ids is None else matrices[field_ids]

    def _fieldwise(
        self, tokens: torch.Tensor, matrices: torch.Tensor, factor: torch.Tensor | float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_tokens, batch, size = tokens.shape
        mixed = tokens @ matrices if self.kind == "shared" else torch.bmm(tokens, matrices)
        heads = mixed.view(num_tokens, batch, 3, self.num_heads, self.head_dim)
        query, key, value = heads.permute(2, 1, 3, 0, 4)  # each (B, H, N, d / H)
        weights = self._softmax(query @ key.transpose(-1, -2), factor)
        outputs = self.attention_dropout(weights) @ value
        return outputs.permute(2, 0, 1, 3).reshape(num_tokens, batch, size), weights

    def _pairwise(
        self, tokens: torch.Tensor, matrices: torch.Tensor, factor: torch.Tensor | float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Eq. 3-4: q_i, k_j and v_j are made anew for every pair (i, j)."""
        num_tokens, batch, size = tokens.shape
        query = torch.einsum("ibd,ijde->bije", tokens, matrices[0])
        key, value = torch.einsum("jbd,kijde->kbije", tokens, matrices[1:])
        scores = (query * key).unflatten(-1, (self.num_heads, self.head_dim)).sum(-1).permute(0, 3, 1, 2)
        weights = self._softmax(scores, factor)
        value = value.unflatten(-1, (self.num_heads, self.head_dim))
        outputs = torch.einsum("bhij,bijhe->ibhe", self.attention_dropout(weights), value)
        return outputs.reshape(num_tokens, batch, size), weights

    @staticmethod
    def _softmax(scores: torch.Tensor, factor: torch.Tensor | float) -> torch.Tensor:
        scores = scores * factor if torch.is_grad_enabled() else scores.mul_(factor)  # no copy when nothing is learned
        return scores.softmax(-1)


class FATLayer(GradientCheckpointingLayer):
    """One layer: Eq. 9 (`block="paper"`), or attention and feed-forward layer with a residual each (`"prenorm"`)."""

    def __init__(self, config: FATConfig):
        super().__init__()
        size = config.hidden_size
        self.is_prenorm = config.block == "prenorm"
        self.attention = FieldAwareAttention(config)
        self.attention_norm = nn.LayerNorm(size, eps=config.layer_norm_eps) if self.is_prenorm else None
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.up = Linear(size, config.intermediate_size)
        self.act = ACT2FN[config.hidden_act]
        self.down = Linear(config.intermediate_size, size)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        hidden_states: torch.Tensor,
        meta: torch.Tensor | None = None,
        field_ids: torch.Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states (B, N, d) to (B, N, d), laid out tokens first in memory, and attention weights (B, H, N, N) when asked for."""
        tokens = hidden_states.transpose(0, 1)
        if self.is_prenorm:
            mixed, weights = self.attention(self.attention_norm(tokens), meta, field_ids, output_attentions)
            tokens = tokens + self.dropout(mixed)
            tokens = tokens + self._feed_forward(self.norm(tokens))
        else:
            mixed, weights = self.attention(tokens, meta, field_ids, output_attentions)
            tokens = tokens + self._feed_forward(self.norm(self.dropout(mixed)))
        return tokens.transpose(0, 1), weights

    def _feed_forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.down(self.act(self.up(tokens))))


class FATHead(NormalWeight):
    """Eq. 10: w . (sum of the token states), (B, N, d) to (B,) logits, without a bias."""

    def __init__(self, config: FATConfig):
        # Small against the sum over N tokens, so that the first logits are of size 1 at most.
        super().__init__(config.hidden_size, std=1.0 / (config.hidden_size**0.5 * sum(config.token_counts)))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states.sum(1) @ self.weight


class FATPreTrainedModel(TabularPreTrainedModel):
    """Loading, saving and initialisation of the FAT models."""

    config_class = FATConfig
    config: FATConfig
    _no_split_modules = ["FATLayer"]  # noqa: RUF012 (transformers' own convention)


class FATModel(TabularModelMixin, FATPreTrainedModel):
    """Tokens through L layers of field-decomposed attention; the representation is the token states (B, N, d)."""

    def __init__(self, config: FATConfig):
        super().__init__(config)
        self.embedding = FieldEmbedding(config, numeric_encoder=numeric_encoder, sequence_encoder=SequenceAttention)
        self.tokens = FieldTokens(config)
        self.field_bias = self.meta_embedding = None
        if config.use_field_bias:  # b_f (F, d) of Eq. 1
            self.field_bias = NormalWeight(config.num_fields, config.hidden_size, std=config.initializer_range)
        # phi_f (F, k), spread enough that fields choose different bases from the start
        if config.projection == "hypernetwork":
            self.meta_embedding = NormalWeight(config.num_fields, config.meta_dim, std=1.0)
        self.layers = nn.ModuleList([FATLayer(config) for _ in range(config.num_hidden_layers)])
        self.out_size = config.hidden_size
        self.post_init()

    def for_tasks(self, representation: torch.Tensor) -> torch.Tensor:
        return representation.mean(1)  # the sum of Eq. 10, which any number of tokens has, over that number

    @or_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        numeric_values: torch.Tensor | None = None,
        sequence_ids: torch.Tensor | None = None,
        sequence_times: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        sequence_weights: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        field_ids: torch.Tensor | None = None,
    ) -> TabularModelOutput:
        """Encode a batch. The fields' inputs are those of `TabularForCTRMixin.forward`, which takes the arguments below too.

        Args:
            inputs_embeds: (B, N, d) tokens e_i in place of those of the fields; needs `field_ids` and no other input, but those that the
                model reads beside its tokens (`use_numeric_skip`, `boosted_trees`).
            field_ids: (N,) integers, the field of each token of `inputs_embeds`, in any order and number.

        Raises:
            ValueError: inputs that do not fit the fields; `inputs_embeds` without `field_ids` or the other way round, or with other inputs.
        """
        inputs = TabularInputs(input_ids, numeric_values, sequence_ids, sequence_times, sequence_weights)
        if inputs_embeds is None and field_ids is None:
            return super().forward(*inputs[:4], output_hidden_states, output_attentions, sequence_weights)
        self._check_tokens(inputs_embeds, field_ids, inputs)
        field_ids = field_ids.long()
        trace = self.new_trace(output_hidden_states, output_attentions)
        states = self._encode_tokens(inputs_embeds, field_ids, field_ids, trace)
        return TabularModelOutput(states, None, None, *trace.tuples())

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        owners = self.tokens.field_ids
        states = self._encode_tokens(self.tokens(fields), owners, owners if self.tokens.has_several else None, trace)
        return Encoded(states)

    def _encode_tokens(
        self, states: torch.Tensor, owners: torch.Tensor, field_ids: torch.Tensor | None, trace: Trace
    ) -> torch.Tensor:
        """Tokens e_i (B, N, d) to their last states. `field_ids` is None where token i belongs to field i."""
        if self.field_bias is not None:
            states = states + self.field_bias()[owners]
        states = states.transpose(0, 1).contiguous().transpose(0, 1)  # tokens first in memory from here on
        meta = None if self.meta_embedding is None else self.meta_embedding()
        trace.add(states)
        for layer in self.layers:
            states, weights = layer(states, meta, field_ids, trace.attentions is not None)
            trace.add(states, weights)
        return states

    def _check_tokens(
        self, inputs_embeds: torch.Tensor | None, field_ids: torch.Tensor | None, inputs: TabularInputs
    ) -> None:
        if inputs_embeds is None or field_ids is None:
            raise ValueError("inputs_embeds and field_ids come together: field_ids (N,) is the field of each token")
        others = [name for name, values in inputs._asdict().items() if values is not None]
        if others and not (self.config.use_numeric_skip or self.config.boosted_trees):
            raise ValueError(
                f"inputs_embeds stand in place of the fields' inputs, and {' and '.join(others)} came with them; give one or the other"
            )
        if inputs_embeds.dim() != 3 or inputs_embeds.shape[2] != self.config.hidden_size:
            raise ValueError(
                f"inputs_embeds: shape {tuple(inputs_embeds.shape)} is not accepted; use (B, N, {self.config.hidden_size}), "
                "with the model's hidden_size last"
            )
        if field_ids.shape != inputs_embeds.shape[1:2]:
            raise ValueError(
                f"field_ids: shape {tuple(field_ids.shape)} does not fit inputs_embeds of {inputs_embeds.shape[1]} "
                "tokens; give one field per token"
            )
        if field_ids.dtype not in INTEGERS:
            raise ValueError(f"field_ids: {field_ids.dtype} is not accepted; use int32 or int64")
        if field_ids.is_cpu and field_ids.numel() and not torch.compiler.is_compiling():
            low, high = (int(end) for end in field_ids.aminmax())
            if low < 0 or high >= self.config.num_fields:
                raise ValueError(
                    f"field_ids: {low if low < 0 else high} is no field; fields go from 0 to {self.config.num_fields - 1}"
                )

    @torch.no_grad()
    def bake(self) -> "FATModel":
        """Store the matrices that the hypernetwork makes (`projection="full"`): the same logits, nothing made anew for a request.

        The model itself is changed; it is saved and loaded as such. One without a hypernetwork stays as it is.
        """
        if self.meta_embedding is None:
            return self
        self.config.projection = "full"
        for layer in self.layers:
            matrices = layer.attention.projection(self.meta_embedding.weight)
            stored = build_projection(self.config).to(matrices)
            stored.weight.copy_(matrices)
            layer.attention.projection, layer.attention.kind = stored.train(self.training), "full"
            stored.requires_grad_(self.meta_embedding.weight.requires_grad)
        self.meta_embedding = None
        return self

    def field_interactions(self) -> torch.Tensor:
        """w of all layers, (L, H, F, F): [layer, head, field of the query, field of the key].

        Raises `ValueError` for a model without modulation.
        """
        if not self.config.use_pair_modulation:
            raise ValueError("the model has no field interactions: its config says use_pair_modulation=False")
        return torch.stack([layer.attention.modulation.weight for layer in self.layers])

    @torch.no_grad()
    def basis_usage(self) -> torch.Tensor:
        """(L, 3, M): the share of fields whose query, key and value matrix draws on each basis.

        A basis at 0 is not in use and gets no gradient. Raises `ValueError` for a model without a hypernetwork.
        """
        if self.meta_embedding is None:
            raise ValueError(f"the model has no bases: its config says projection={self.config.projection!r}")
        weights = [layer.attention.projection.mixing_weights(self.meta_embedding.weight) for layer in self.layers]
        return (torch.stack(weights) > 0).float().mean(2)

    def diagnostic_points(self) -> dict[str, nn.Module]:
        """The fields' vectors, their tokens, and every layer."""
        layers = {f"layer_{number}": layer for number, layer in enumerate(self.layers, 1)}
        return {"embedding": self.embedding, "tokens": self.tokens, **layers}


class FATForCTR(TabularForCTRMixin, FATPreTrainedModel):
    """FAT with the head of Eq. 10."""

    base_class = FATModel

    def new_head(self, config: FATConfig) -> nn.Module:
        return FATHead(config)

    def bake(self) -> "FATForCTR":
        """Plain matrices in place of the hypernetwork; see [`FATModel.bake`]."""
        self.model.bake()
        return self

    def field_interactions(self) -> torch.Tensor:
        """w of all layers (L, H, F, F); see [`FATModel.field_interactions`]."""
        return self.model.field_interactions()

    def basis_usage(self) -> torch.Tensor:
        """Use of the bases (L, 3, M); see [`FATModel.basis_usage`]."""
        return self.model.basis_usage()
