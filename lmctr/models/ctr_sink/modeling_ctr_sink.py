"""CTR-Sink: behaviour-level attention sinks for language models in CTR prediction.

Paper: https://arxiv.org/abs/2508.03668 (KDD 2026). Input texts are made by `CTRSinkProcessor`.

Shapes: B batch, N tokens, P elements (layout "split"), F fields (layout "fields"), H hidden size, A heads, S signals per sink.
"""

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import TransformersKwargs

from lmctr.models.common.base import CTRPreTrainedModel, ctr_loss, without_values
from lmctr.models.common.linear_path import LinearPath
from lmctr.models.common.outputs import CTROutput, or_tuple
from lmctr.models.common.products import use_products

from .backbone import load_backbone, max_positions, new_backbone, position_ids_from_mask, turn_by_row
from .backbone_call import cache_keyword, call_backbone, hook_sink_bias
from .configuration_ctr_sink import CTRSinkConfig
from .field_store import FieldStore
from .fields_layout import FieldsHead, FieldsOutput, forward_fields
from .head import LayoutHead
from .saved_fields import fill_store, kept_vectors, load_field_vectors, save_field_vectors, stored_tensors
from .sink_attention import (
    SinkBias,
    SinkBiasLayer,
    SinkCache,
    SinkContext,
    SinkEmbedding,
    SinkProjection,
    SinkTable,
    locate_sinks,
    prefix_mask,
)
from .sink_mask import biased_mask
from .split_layout import (
    FieldCache,
    SplitHead,
    SplitOutput,
    check_split,
    forward_split,
    lower_parameters,
    mean_over,
    run_layers,
)
from .statistics_tower import check_statistics

__all__ = ["CTRSinkForCTR", "CTRSinkModel", "CTRSinkPreTrainedModel"]

POOLINGS = ("all", "sinks")
_NO_PROMPTS = ". PEFT's prompt and prefix tuning are not taken; LoRA and other adapters of layers are (lmctr.training.lora.add_lora)"
_QUANTIZATION_FLAGS = ("is_quantized", "quantization_method", "hf_quantizer", "is_loaded_in_4bit", "is_loaded_in_8bit")


class CTRSinkPreTrainedModel(CTRPreTrainedModel):
    """Loading, saving and initialisation of the CTR-Sink models."""

    config_class = CTRSinkConfig
    config: CTRSinkConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True  # of a model: where its backbone does
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    # Trained and saved whole under LoRA; the authors' code freezes them silently.
    peft_modules_to_save = ("sink_embedding", "sink_bias", "head")

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # Decided: tables of unit variance and a projection that brings a sink to the scale of a word embedding.
        if isinstance(module, SinkTable):
            init.normal_(module.weight, std=1.0)
        elif isinstance(module, SinkProjection):
            fan_in = module.in_features * module.num_signals
            init.normal_(module.weight, std=self.config.initializer_range * module.embed_scale / fan_in**0.5)
            init.zeros_(module.bias)
        elif isinstance(module, SinkBiasLayer):
            init.constant_(module.scale, module.scale_init)
        else:
            super()._init_weights(module)

    def _set_gradient_checkpointing(self, enable: bool = True, *args, **kwargs) -> None:
        is_reentrant = getattr(kwargs.get("gradient_checkpointing_func"), "keywords", {}).get("use_reentrant")
        if enable and is_reentrant and getattr(self.config.text_config, "relative_attention", False):
            raise ValueError(
                f"gradient_checkpointing_kwargs: use_reentrant=true does not work with a {self.config.text_config.model_type}, all layers of which read "
                "the same relative positions; set it to false"
            )
        super()._set_gradient_checkpointing(enable, *args, **kwargs)


class CTRSinkModel(CTRSinkPreTrainedModel):
    """The backbone with [SINK] embeddings and sink-bias attention; returns last hidden states.

    The backbone is at `language_model`. Raises `ValueError` for attention implementations other than eager and sdpa
    when sink-bias layers are set.
    """

    def __init__(self, config: CTRSinkConfig, language_model: PreTrainedModel | None = None):
        super().__init__(config)
        self.language_model = new_backbone(config.text_config) if language_model is None else language_model
        self.supports_gradient_checkpointing = self.language_model.supports_gradient_checkpointing
        forward = type(self.language_model).forward
        self._cache, named = cache_keyword(forward), set(inspect.signature(forward).parameters)
        self._options = frozenset(named | set(TransformersKwargs.__annotations__) | {self._cache, "use_cache"})
        use_products(self.language_model)
        turn_by_row(self.language_model)
        self.sink_embedding = SinkEmbedding(config) if config.sink_kind == "sink" else None
        if self.sink_embedding is not None:
            words = self.language_model.get_input_embeddings()
            self.sink_embedding.projection.embed_scale = float(getattr(words, "scalar_embed_scale", 1.0))
        self.sink_bias = None
        spec = config.backbone_spec
        self.is_causal = config.is_causal
        self.field_store = FieldStore() if config.layout == "split" else None
        if config.items_ahead == "frozen":
            for parameter in lower_parameters(self):
                parameter.requires_grad_(False)
        if config.resolved_sink_bias_layers:
            self.sink_bias = SinkBias(config, self.is_causal)
            hook_sink_bias(self, self._bias_attention)
        self.post_init()
        if spec is not None:
            # What is sharded or placed as a whole: layers only. The embeddings' module is not, because forward looks words up
            # in their table without calling it.
            layers = attrgetter(spec.layers_path)(self.language_model)
            self._no_split_modules = {type(layer).__name__ for layer in layers}

    def _apply(self, *args, **kwargs):
        """As in the parent, but a cast to fewer bits leaves the frequencies of rotary positions alone, as loading in that type does."""
        held = [
            (module._buffers, name, module._buffers[name])
            for module in self.language_model.modules()
            for name in module._non_persistent_buffers_set
            if module._buffers.get(name) is not None
        ]
        applied = super()._apply(*args, **kwargs)
        for buffers, name, before in held:
            if buffers[name].dtype.itemsize < before.dtype.itemsize:
                buffers[name] = before.to(buffers[name].device)
        return applied

    def self_attentions(self) -> list[nn.Module]:
        """The self-attention of each layer of the backbone, which must be of a known type."""
        spec = self.config.backbone_spec
        layers = attrgetter(spec.layers_path)(self.language_model)
        return [attrgetter(spec.attention_path)(layer) for layer in layers]

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.set_input_embeddings(value)

    def _bias_attention(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Forward pre-hook of an enhanced layer's self-attention: adds the sink bias to its mask."""
        sinks = kwargs.get("sink_context")
        if sinks is None:
            return None
        hidden_states = args[0] if args else kwargs["hidden_states"]
        bias = partial(self.sink_bias, hidden_states, sinks, module.sink_layer)
        add = partial(biased_mask, bias, is_causal=self.is_causal, sinks=sinks, length=hidden_states.shape[1])
        place = module.mask_place
        if "attention_mask" not in kwargs and len(args) > place:
            return (*args[:place], add(args[place]), *args[place + 1 :]), kwargs
        return args, {**kwargs, "attention_mask": add(kwargs.get("attention_mask"))}

    @property
    def max_positions(self) -> int | None:
        """Most tokens that the backbone has positions for; None without limit."""
        return max_positions(self.config.text_config)

    def check_length(self, what: str, length: int, unit: str) -> None:
        """Raise unless the backbone has positions for `length`."""
        limit = self.max_positions
        if limit is not None and length > limit:
            raise ValueError(
                f"{what} {length} {unit}, but the backbone has positions for {limit}; give the processor max_length={limit}"
            )

    def check_attention(self) -> None:
        """Raise unless the backbone's attention takes the masks that the model gives it."""
        used = self.language_model.config._attn_implementation
        masked = self.sink_bias is not None or self.config.encoder_prefix or self.config.layout == "fields"
        if masked and used not in ("eager", "sdpa"):
            raise ValueError(
                f"attn_implementation={used!r} cannot carry the sink bias, encoder_prefix or layout=\"fields\"; use 'sdpa' or 'eager', or "
                "sink_bias_layers=[], encoder_prefix=False and another layout"
            )

    def locate(self, places: torch.Tensor, sink_buckets: torch.Tensor | None) -> tuple[torch.Tensor, SinkContext]:
        """Buckets of (B, N) places as (B, N, S), checked against the config, and where the sinks are."""
        if sink_buckets is None:
            sink_buckets = torch.full((*places.shape, len(self.config.signals)), -1, device=places.device)
        if sink_buckets.dim() == 2:
            sink_buckets = sink_buckets[..., None]
        num_signals = len(self.config.signals)
        if sink_buckets.shape[-1] != num_signals:
            raise ValueError(
                f"sink_buckets: {sink_buckets.shape[-1]} signals per position, but the model's sink_signal is "
                f"{self.config.sink_signal!r}; use the processor saved with this checkpoint"
            )
        if sink_buckets.is_floating_point():
            raise ValueError(f"sink_buckets: {sink_buckets.dtype} is not accepted; use int64")
        is_sink = sink_buckets[..., 0] >= 0
        if torch.compiler.is_exporting():
            # An exported graph cannot raise; it makes room for the batch's own number of sinks.
            most = is_sink.sum(1).amax(0).clamp_min(1).item()
            torch._check(most >= 1)
            torch._check(most <= is_sink.shape[1])
            return sink_buckets, locate_sinks(is_sink, most)
        counted, highest = is_sink.sum(1).amax(), sink_buckets.amax()
        bound = self.config.max_sinks
        unseen = torch.compiler.is_compiling() or without_values(sink_buckets)
        if unseen or (bound is not None and sink_buckets.device.type != "cpu"):
            # Without a look from the host: room for as many as there may be, and checks where the batch is.
            most = min(bound or is_sink.shape[1], is_sink.shape[1])
            allowed = 0 if self.config.sink_kind == "none" else most
            told = bound if allowed else 0  # a size of the batch in a text would bind the graph to it
            torch._assert_async(
                counted <= allowed, f"sink_buckets: a row has more than {told} sinks (config.max_sinks)"
            )
            torch._assert_async(highest < self.config.num_sink_buckets, "sink_buckets: a bucket is out of range")
            return sink_buckets, locate_sinks(is_sink, most)
        most, highest = torch.stack([counted, highest]).tolist()
        if most and self.config.sink_kind == "none":
            raise ValueError(
                'sink_buckets: the text holds sinks, but the model has sink_kind="none"; use the processor saved with it'
            )
        if highest >= self.config.num_sink_buckets:
            raise ValueError(
                f"sink_buckets: bucket {highest} is out of range; the model has num_sink_buckets={self.config.num_sink_buckets}"
            )
        if bound is not None and most > bound:
            raise ValueError(
                f"sink_buckets: a row has {most} sinks, but the model has max_sinks={bound}; use the processor saved with it, "
                "or a model with a larger max_sinks"
            )
        # At least one (empty) place, so that every parameter takes part in every step of distributed training.
        return sink_buckets, locate_sinks(is_sink, max(most, 1))

    def embed(
        self, input_ids: torch.Tensor, sink_buckets: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, SinkContext]:
        """Input embeddings (B, N, H) with those of Eq. 4 at the sinks, the buckets (B, N, S), and where the sinks are."""
        if sink_buckets is not None and sink_buckets.shape[:2] != input_ids.shape:
            raise ValueError(
                f"sink_buckets: shape {tuple(sink_buckets.shape)} does not fit input_ids of shape {tuple(input_ids.shape)}"
            )
        sink_buckets, sinks = self.locate(input_ids, sink_buckets)
        if self.sink_embedding is None:
            return self._words(input_ids), sink_buckets, sinks
        is_sink = sink_buckets[..., :1] >= 0
        inputs_embeds = self._words(input_ids.masked_fill(is_sink[..., 0], 0))
        sink_embeds = self.sink_embedding(sink_buckets.clamp_min(0)).to(inputs_embeds.dtype)
        return torch.where(is_sink, sink_embeds, inputs_embeds), sink_buckets, sinks

    def _words(self, input_ids: torch.Tensor) -> torch.Tensor:
        embeddings = self.language_model.get_input_embeddings()
        if input_ids.is_cpu and input_ids.numel() and not torch.compiler.is_compiling():
            least, most = input_ids.aminmax()
            if least < 0 or most >= len(embeddings.weight):
                raise ValueError(
                    f"input_ids: {int(least if least < 0 else most)} is out of range; the backbone's words are 0 to "
                    f"{len(embeddings.weight) - 1}: use the processor saved with this checkpoint"
                )
        return embeddings(input_ids)

    def encode_fields(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Vectors of text fields, each on its own: the mean of its tokens' states after the lower half (`layout="split"`).

        Args:
            input_ids: (F, n) int64 tokens of the fields. attention_mask: (F, n), 1 for real tokens; default: all real.

        Returns:
            (F, H), what `forward` takes as `field_vectors`. A behaviour's or a candidate's vector does not depend on its row.

        Raises:
            ValueError: a model with `layout="single"`, a field longer than the backbone has positions for.
        """
        check_split("encode_fields", self.config)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        real = attention_mask.bool()
        order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)  # padding to the right
        input_ids, real = input_ids.gather(1, order), real.gather(1, order)
        longest = max(int(real.sum(1).amax()), 1)
        input_ids, real = input_ids[:, :longest].masked_fill(~real[:, :longest], 0), real[:, :longest]
        self.check_length("input_ids: a field of", longest, "tokens")
        embeds, spec = self._words(input_ids), self.config.backbone_spec
        stop, norm = self.config.num_lower_layers, self.config.field_norm
        states = run_layers(self.language_model, spec, embeds, real.long(), 0, stop, always_norm=norm)[-1]
        return mean_over(states, real)

    @or_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        sink_buckets: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        sink_cache: SinkCache | None = None,
        field_ids: torch.Tensor | None = None,
        field_vectors: torch.Tensor | None = None,
        target_mask: torch.Tensor | None = None,
        pooling: str = "all",
        **kwargs,
    ) -> BaseModelOutput:
        """Encode a batch.

        Args:
            input_ids: (B, N) int64. Ids at [SINK] positions are not looked up.
            attention_mask: (B, N), 1 for real tokens; default: all real. Padding may be on either side.
            sink_buckets: (B, N) or (B, N, S) int64, -1 where the position is no sink; default: no sinks.
            position_ids: (B, N) int64; default: counted over the real tokens.
            sink_cache: the sinks of cached positions, with `past_key_values` in causal backbones; needs `position_ids` and a
                float mask (1, 1, N, P + N), and gets this call's sinks appended.
            field_ids: (B, N) int64, only with `layout="split"` and `"fields"`: the element or field of each token, -1 for padding.
            field_vectors: (B, P, H), in place of `input_ids` and `field_ids`: vectors of `encode_fields`, element by element,
                padded on the right; then `attention_mask` (B, P) and `sink_buckets` (B, P) or (B, P, S) go by elements, too.
                The vectors at [SINK] elements are not read.
            target_mask: (B, N) bool, the target item's tokens; read with `encoder_prefix` and a two-dimensional `attention_mask`.
            pooling: "all" or "sinks", read with `layout="fields"`, which averages each field before the upper half.
            kwargs: passed to the backbone (`output_hidden_states`, `output_attentions`).

        Returns:
            `BaseModelOutput` with `last_hidden_state` (B, N, H); `SplitOutput` (B, P, H) with `layout="split"`, whose hidden
            states and attentions are the upper half's; `FieldsOutput` (B, F, H) with `layout="fields"`.
        """
        if kwargs.pop("inputs_embeds", None) is not None:  # PEFT gives None
            raise ValueError(
                f"inputs_embeds is not taken: [SINK]s are embedded among the words; give input_ids and sink_buckets{_NO_PROMPTS}"
            )
        if (past := kwargs.pop("past_key_values", None)) is not None:
            kwargs[self._cache] = past
        if kwargs.get(self._cache) is not None and position_ids is None:
            raise ValueError(f"past_key_values needs position_ids and a mask of all positions; give them{_NO_PROMPTS}")
        for name in kwargs:  # backbones leave out silently what they do not know
            if name not in self._options:
                raise TypeError(f"forward() got an unexpected keyword argument {name!r}")
        self.check_attention()
        if input_ids is not None:
            check_tokens(input_ids, attention_mask=attention_mask, target_mask=target_mask)
        for name in ("output_hidden_states", "output_attentions"):
            if kwargs.get(name) is None and getattr(self.config, name):
                kwargs[name] = True
        if self.config.layout != "single" and (position_ids is not None or sink_cache is not None):
            layout = self.config.layout
            raise ValueError(f'position_ids and sink_cache are not used with layout="{layout}"; leave them out')
        if self.config.layout == "fields":
            if field_vectors is not None:
                raise ValueError('field_vectors are not used with layout="fields", only with "split"; leave them out')
            if kwargs.pop("output_attentions", None):
                raise ValueError(
                    'output_attentions=True is not accepted with layout="fields", which gives none; leave it out'
                )
            return forward_fields(self, input_ids, attention_mask, sink_buckets, field_ids, pooling, **kwargs)
        if self.config.layout == "split":
            return forward_split(self, input_ids, attention_mask, sink_buckets, field_ids, field_vectors, **kwargs)
        if input_ids is None or field_ids is not None or field_vectors is not None:
            raise ValueError(
                'layout="single" takes input_ids, and neither field_ids nor field_vectors; use the processor saved with this '
                "checkpoint"
            )
        self.check_length("input_ids:", input_ids.shape[1], "tokens")
        inputs_embeds, _, sinks = self.embed(input_ids, sink_buckets)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if position_ids is None:
            position_ids = position_ids_from_mask(attention_mask, self.config.text_config)
        if self.config.encoder_prefix and attention_mask.dim() == 2:
            if target_mask is None:
                raise ValueError("target_mask is needed with encoder_prefix: what stands before it does not see it")
            attention_mask = prefix_mask(attention_mask, target_mask, inputs_embeds.dtype)
        if self.is_causal or (self.config.backbone_spec is not None and self.config.backbone_spec.is_causal):
            kwargs.setdefault("use_cache", False)
        kwargs |= {"inputs_embeds": inputs_embeds, "attention_mask": attention_mask, "position_ids": position_ids}
        sinks = None if self.sink_bias is None else sinks._replace(cache=sink_cache)
        outputs = call_backbone(self.language_model, self.config.backbone_spec, sinks, **kwargs)
        return BaseModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
        )


def check_tokens(input_ids: torch.Tensor, **others: torch.Tensor | None) -> None:
    """Raises `ValueError` for ids that are no (B, N) whole numbers, and for what goes by these tokens and has another shape: it might be broadcast.
    A float mask (B, 1, N, P + N) goes as it is."""
    if input_ids.dim() != 2 or input_ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"input_ids: expected int64 of shape (B, N), got {input_ids.dtype} of shape {tuple(input_ids.shape)}"
        )
    for name, values in others.items():
        if values is not None and values.dim() != 4 and values.shape != input_ids.shape:
            raise ValueError(
                f"{name}: shape {tuple(values.shape)} does not fit input_ids of shape {tuple(input_ids.shape)}"
            )


def pooled_tokens(
    pooling: str, attention_mask: torch.Tensor, sink_buckets: torch.Tensor | None, target_mask: torch.Tensor | None
) -> torch.Tensor:
    """The (B, N) bool set of tokens that Eq. 5 ("all") or Eq. 6 ("sinks") averages.

    "sinks": the row's sinks; a row without sinks uses its target's tokens. Padding never contributes.
    """
    real = attention_mask.bool()
    if pooling == "all":
        return real
    if target_mask is None:
        raise ValueError('target_mask is needed with pooling="sinks": rows without sinks use their target\'s tokens')
    if sink_buckets is None:
        return real & target_mask.bool()
    is_sink = (sink_buckets if sink_buckets.dim() == 2 else sink_buckets[..., 0]) >= 0
    return real & torch.where(is_sink.any(1, keepdim=True), is_sink, target_mask.bool())


class CTRSinkHead(LayoutHead):
    """Eq. 5: masked mean over tokens, then Linear, LeakyReLU, Linear to one logit; with statistics beside, see `StatisticsTower`."""

    def __init__(self, config: CTRSinkConfig):
        super().__init__(config, config.text_config.hidden_size)

    def forward(
        self, hidden_states: torch.Tensor, tokens: torch.Tensor, statistics: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B, N, H) states, a (B, N) bool token set and (B, Fs) statistics to (B,) logits."""
        return self.logits(mean_over(hidden_states, tokens), statistics)


class CTRSinkForCTR(CTRSinkPreTrainedModel):
    """CTR-Sink with its prediction head (Eq. 5-6)."""

    def __init__(self, config: CTRSinkConfig, language_model: PreTrainedModel | None = None):
        super().__init__(config)
        self.model = CTRSinkModel(config, language_model)
        self.supports_gradient_checkpointing = self.model.supports_gradient_checkpointing
        heads = {"single": CTRSinkHead, "split": SplitHead, "fields": FieldsHead}
        self.head = heads[config.layout](config)
        self.poolings = POOLINGS if config.sink_kind != "none" else ("all",)
        self.post_init()
        self._no_split_modules = self.model._no_split_modules

    @classmethod
    def from_backbone(
        cls,
        name_or_path: str,
        *,
        attn_implementation: str | None = None,
        revision: str = "main",
        token: str | bool | None = None,
        cache_dir: str | None = None,
        local_files_only: bool = False,
        text_config_values: dict | None = None,
        quantization_config: Any = None,
        dtype: torch.dtype | str | None = None,
        **config_values,
    ) -> "CTRSinkForCTR":
        """A CTR-Sink model around a pretrained language model; sinks, bias and head are new.

        Args:
            name_or_path: a model id on the Hub or a local folder with `config.json` and weights in safetensors.
            attn_implementation: "sdpa" or "eager".
            revision, token, cache_dir, local_files_only: as in `from_pretrained`.
            text_config_values: values that replace some of the backbone's own configuration (dropout, for example).
            quantization_config: loads the backbone quantised, for training by LoRA (QLoRA, https://arxiv.org/abs/2305.14314):
                `BitsAndBytesConfig(load_in_4bit=True, ...)`. All new modules stay float32, on the backbone's device. Save such
                a model's adapter (`lmctr.training.lora.save_adapter`), not the model.
            dtype: of the model's weights; default float32, in which it can be trained.
            config_values: keys of `CTRSinkConfig`.

        Returns:
            The model, in evaluation mode as after `from_pretrained`.

        Raises:
            ValueError: unknown backbone, a checkpoint that leaves weights of the backbone random, unknown config key.
            ImportError: the package of `quantization_config` is not installed.

        Example:

        ```python
        >>> model = CTRSinkForCTR.from_backbone("FacebookAI/roberta-base", sink_signal="recency")
        ```
        """
        hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        backbone = load_backbone(name_or_path, text_config_values or {}, hub, quantization_config)
        if quantization_config is not None and attn_implementation is None:
            attn_implementation = backbone.config._attn_implementation  # it is not made anew, which would choose one
        given = {} if dtype is None else {"dtype": dtype}
        config = cls.config_class(text_config=backbone.config, **given, **config_values)
        if attn_implementation is not None:
            config._attn_implementation = attn_implementation
        if quantization_config is None:
            model = cls(config)
            model.model.language_model.load_state_dict(backbone.state_dict(), strict=True)
            return model.to(dtype=config.dtype or torch.float32).eval()
        if config.dtype is not None:
            raise ValueError(
                f"dtype={config.dtype}: quantization_config says how the backbone is held; leave dtype out"
            )
        for module in backbone.modules():
            module._is_hf_initialized = True  # its weights are final
        model = cls(config, language_model=backbone)
        for name in _QUANTIZATION_FLAGS:  # PEFT and the Trainer ask the outermost model
            if hasattr(backbone, name):
                setattr(model, name, getattr(backbone, name))
        for part in model.peft_modules_to_save:
            for module in (getattr(owner, part, None) for owner in (model, model.model)):
                if module is not None:
                    module.to(device=backbone.device, dtype=torch.float32)
        return model.eval()

    def begin_epoch(self) -> None:
        if self.config.items_ahead == "epoch":
            self.model.field_store.clear()

    def epoch_state(self) -> dict[str, torch.Tensor]:
        return stored_tensors(self.model) if self.config.items_ahead == "epoch" and self.model.field_store else {}

    def load_epoch_state(self, state: dict[str, torch.Tensor]) -> None:
        fill_store(self.model, state, None)

    def save_beside(self, folder: Path) -> None:
        save_field_vectors(self.model, folder)

    def load_beside(self, folder: Path) -> None:
        load_field_vectors(self.model, folder)

    def with_kept(self, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The vectors of texts in place of their tokens, of the layout "split", whose texts are encoded one by one."""
        store = self.model.field_store
        return inputs if store is None else FieldCache(self, store)(**inputs)

    def same_weights(self) -> AbstractContextManager[None]:
        return kept_vectors(self.model)

    def linear_path(self) -> LinearPath | None:
        tower = self.head.statistics
        return None if tower is None else LinearPath(tower.skip, self.head.out)

    def encode_fields(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """See `CTRSinkModel.encode_fields`."""
        return self.model.encode_fields(input_ids, attention_mask)

    @or_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        sink_buckets: torch.Tensor | None = None,
        target_mask: torch.Tensor | None = None,
        pooling: str = "all",
        labels: torch.Tensor | None = None,
        sample_weight: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | float | None = None,
        field_ids: torch.Tensor | None = None,
        field_vectors: torch.Tensor | None = None,
        statistics: torch.Tensor | None = None,
        **kwargs,
    ) -> CTROutput:
        """Score a batch.

        Args:
            input_ids, attention_mask, sink_buckets, position_ids, field_ids, field_vectors: see `CTRSinkModel.forward`.
            target_mask: (B, N) bool, the target item's tokens; needed with `pooling="sinks"` and `encoder_prefix`. Not read with
                `layout="split"`, where the target is the last element.
            pooling: "all" (stage 2 and evaluation, Eq. 5) or "sinks" (stage 1, Eq. 6).
            statistics: (B, Fs) float, scaled as the processor scales them; given exactly where `num_statistics` is above 0.
            labels: (B,) float, 0 or 1; -100 leaves a row out of the loss.
            sample_weight: (B,) float.
            num_items_in_batch: divisor of the loss; default: the weight of the rows that count.
            kwargs: passed to the backbone.

        Returns:
            `CTROutput` with `logits` (B,) float32.
        """
        if pooling not in POOLINGS:
            raise ValueError(f"pooling={pooling!r} is not accepted; use one of {', '.join(POOLINGS)}")
        rows = input_ids if input_ids is not None else field_vectors
        if rows is not None:
            check_statistics(statistics, self.config, rows.shape[0])
        if self.is_trees_alone(kwargs):
            outputs, logits = BaseModelOutput(), self.head.logits(None, statistics)
        else:
            outputs = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                sink_buckets=sink_buckets,
                position_ids=position_ids,
                field_ids=field_ids,
                field_vectors=field_vectors,
                target_mask=target_mask,
                pooling=pooling,
                **kwargs,
            )
            if isinstance(outputs, (SplitOutput, FieldsOutput)):
                read = outputs, pooling
            else:
                attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
                read = outputs.last_hidden_state, pooled_tokens(pooling, attention_mask, sink_buckets, target_mask)
            logits = self.head(*read, statistics)
        logits, loss = logits.float(), None
        if labels is not None:
            loss = ctr_loss(logits, labels, sample_weight, num_items_in_batch, self.config.soft_labels)
        return CTROutput(loss, logits, outputs.hidden_states, outputs.attentions)
