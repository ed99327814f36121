"""Configuration of CTR-Sink (arXiv 2508.03668): a language model that reads user histories with behaviour sinks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from lmctr.models.common.configuration import CTRConfig
from lmctr.statistics import statistic
from lmctr.utils.suggest import errors_of

__all__ = ["BACKBONES", "SINK_KINDS", "SINK_ORDERS", "SINK_SIGNALS", "STATISTIC", "BackboneSpec", "CTRSinkConfig"]

SINK_KINDS = ("none", "cls", "sink")
SINK_SIGNALS = ("none", "recency", "elapsed", "similarity", "random", "feedback", "feedback_value", "ordinal")
STATISTIC = "statistic:"
SINK_ORDERS = ("recent", "similarity", "time")
LAYOUTS = ("single", "split", "fields")
FEEDBACK_MODES = ("none", "groups", "inline", "sink")


@dataclass(frozen=True)
class BackboneSpec:
    """What the sink bias must know of a backbone type.

    Args:
        attention_path: attribute path of the self-attention module inside a layer.
        layers_path: attribute path of the layer list inside the model.
        is_causal: whether token i sees tokens j <= i only.
        default_share: sink-bias layers by default: this share of the layers, counted from the first (rounded down,
            at least one), or a fixed number when 1 or more.
        passes_keywords: whether keywords of a forward call reach the attention; else see `backbone_call.py`.
    """

    attention_path: str
    layers_path: str
    is_causal: bool
    default_share: float
    passes_keywords: bool = True

    def default_layers(self, num_hidden_layers: int) -> list[int]:
        count = int(self.default_share) if self.default_share >= 1 else int(num_hidden_layers * self.default_share)
        return list(range(min(max(count, 1), num_hidden_layers)))


_BERT = BackboneSpec("attention.self", "encoder.layer", False, 2)
_LLAMA = BackboneSpec("self_attn", "layers", True, 1 / 2)

# Defaults of the layers: the authors' setting for BERT, RoBERTa, Qwen2 and Qwen3, the same for what is built like them; the
# paper's text ("in the calculation of attention") implies all.
BACKBONES = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "distilbert": BackboneSpec("attention", "transformer.layer", False, 2),
    "modernbert": BackboneSpec("attn", "layers", False, 2),
    "mpnet": BackboneSpec("attention.attn", "encoder.layer", False, 2, passes_keywords=False),
    "deberta-v2": BackboneSpec("attention.self", "encoder.layer", False, 2, passes_keywords=False),
    **dict.fromkeys(("qwen2", "llama", "mistral", "gemma", "gemma2", "gemma3_text", "phi3"), _LLAMA),
    "qwen3": BackboneSpec("self_attn", "layers", True, 1 / 3),
    "gpt2": BackboneSpec("attn", "h", True, 1 / 2),
}
# Types whose layers can be run in two halves (layouts "split" and "fields").
_HALVED_BACKBONES = ("bert", "camembert", "llama", "qwen2", "qwen3", "roberta", "xlm-roberta")

# Encoders whose attention takes the keys and values of earlier positions.
PREFIX_ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "electra")


def reads_feedback(feedback: str, signals: Sequence[str]) -> bool:
    """Whether the feedback codes of behaviours are read."""
    return feedback in ("groups", "inline") or "feedback" in signals


def usual_signal(sink_kind: str) -> str:
    """What sinks carry where nothing is said."""
    return "recency" if sink_kind == "sink" else "none"


def signals_of(sink_signal: str | Sequence[str]) -> tuple[str, ...]:
    """One signal or several, always as a tuple."""
    return (sink_signal,) if isinstance(sink_signal, str) else tuple(sink_signal)


def statistic_signals(signals: Sequence[str]) -> list[str]:
    """The statistics that sinks carry."""
    return [signal.removeprefix(STATISTIC) for signal in signals if signal.startswith(STATISTIC)]


def check_sink_settings(settings: Any, require: Callable[[bool, str, str], None]) -> None:
    """Check the keys that the configuration and the processor share.

    Args:
        settings: holds them, with `signals`. require: takes whether a value is right, its key, and what is accepted.
    """
    signals = settings.signals
    choices = {"sink_kind": SINK_KINDS, "sink_order": SINK_ORDERS, "feedback": FEEDBACK_MODES, "layout": LAYOUTS}
    for key, known in choices.items():
        require(getattr(settings, key) in known, key, f"one of {', '.join(known)}")
    known = bool(signals) and all(
        isinstance(s, str) and (s in SINK_SIGNALS or s.startswith(STATISTIC)) for s in signals
    )
    known = known and len(set(signals)) == len(signals)
    require(known, "sink_signal", f"one of {', '.join(SINK_SIGNALS)}, {STATISTIC}NAME, or a list of different ones")
    for name in statistic_signals(signals):
        with errors_of(f"sink_signal holds {STATISTIC}{name}"):
            statistic(name)
    require("none" not in signals or len(signals) == 1, "sink_signal", '"none" alone, or signals without it')
    applies = settings.sink_kind == "sink" or signals == ("none",)
    require(applies, "sink_signal", f'"none" with sink_kind={settings.sink_kind!r}')


def check_feedback_settings(settings: Any, require: Callable[[bool, str, str], None]) -> None:
    """Check, beyond [`check_sink_settings`], that what the texts tell of feedback and what sinks carry fit together."""
    carried = not {"feedback", "feedback_value"}.isdisjoint(settings.signals)
    said = "one that holds 'feedback' or 'feedback_value', for example ['recency', 'feedback'], with feedback='sink'"
    require(settings.feedback != "sink" or carried, "sink_signal", said)
    require(settings.layout != "fields" or settings.feedback == "groups", "feedback", "'groups' with layout='fields'")
    said = f"'sink' (in the sinks only), 'inline' or 'groups' with sink_signal={settings.sink_signal!r}"
    require(settings.feedback != "none" or not carried, "feedback", said)


class CTRSinkConfig(CTRConfig):
    r"""Configuration of [`CTRSinkModel`] and [`CTRSinkForCTR`].

    Args:
        text_config (`PreTrainedConfig` or `dict`, defaults to a BERT config):
            The backbone's own configuration; a dict must hold `model_type`.
        sink_kind (`str`, defaults to `"sink"`):
            `"none"`: LM-CTR (Eq. 1). `"cls"`: the backbone's own aggregation token, with its own embedding, after each
            behaviour (Eq. 2). `"sink"`: the [SINK] token (Eq. 3-4).
        sink_signal (`str` or `list[str]`, *optional*):
            What a [SINK] carries: `"recency"` (default), `"ordinal"`, `"elapsed"`, `"similarity"`, `"random"`, `"feedback"`,
            `"feedback_value"`, `"statistic:NAME"` (a statistic of the behaviour, binned), `"none"` (one learned embedding), or several of
            them, summed. Applies to `sink_kind="sink"` only.
        sink_order (`str`, defaults to `"recent"`):
            How the text places behaviours: `"recent"`, `"similarity"`, `"time"`. The processor does it; the model keeps
            the value because only `"recent"` makes a prefix that does not depend on the target.
        feedback (`str`, defaults to `"none"`):
            How the text gives feedback: `"none"`, `"groups"`, `"inline"`, `"sink"`. Kept beside the weights as a record.
        num_sink_buckets (`int`, defaults to 100): rows of each signal's embedding table (Eq. 4).
        sink_embedding_dim (`int`, defaults to 128): width e of that table; the paper takes 128 (RoBERTa), 256 (Qwen).
        max_sinks (`int`, *optional*): most sinks of a row, as many as the processor makes (`CTRSinkProcessor.max_sinks`). With it no
            forward on an accelerator waits for the host, and a compiled one makes room for so many; `None`: each batch's own
            number, counted on the host (compiled: as many as tokens).
        max_elements (`int`, *optional*): most elements of a row with `layout="split"` (`CTRSinkProcessor.max_elements`), for which a
            compiled forward makes room; `None`: as many as tokens.
        sink_bias_layers (`list[int]`, `"all"` or `None`):
            Layers with sink-bias attention (Eq. 9-11). `None`: the backbone's default (first half for decoders, first third
            for Qwen3, first two for encoders) when `sink_kind="sink"`, no layer otherwise. `[]`: none, which a backbone of a
            type outside `BACKBONES` needs.
        sink_bias_causal (`bool`, defaults to `True`):
            In causal backbones a sink's row of the bias looks at earlier sinks only. `False` reproduces the authors'
            code, whose bias looks ahead.
        sink_bias_scale_init (`float`, *optional*): initial scale s of the bias; default 1.0 (causal), 10.0 (encoders).
        sink_bias_head_dim (`int`, *optional*): width of a head of Q' and K' in Eq. 10; default: that of the backbone's own
            heads. The authors take `hidden_size // num_attention_heads`, which is another width in Qwen3 and Gemma.
        sink_bias_dropout (`float`, defaults to 0.1): dropout on the bias.
        encoder_prefix (`bool`, defaults to `False`): the history does not see the target, which sees all, in training and after: an
            encoder's states of a history then are the same for every candidate, and requests encode it once, as with decoders.
            For encoders of BERT's kind with `layout="single"`; the history is all that stands before the target's own tokens.
        layout (`str`, defaults to `"single"`): `"single"`: one text for history and target (the paper). `"split"`: each
            behaviour's text and the target's pass the lower half of the layers (the first `num_hidden_layers // 2`) on their
            own; their mean vectors and the sinks pass the upper half together, see `split_layout.py`. No sink passes the
            lower half, so there the sink bias works in the upper half only: the default layers are counted from its first
            layer, `"all"` means all of it, and a layer below it is an error. `"fields"`: the authors' published model, see
            `fields_layout.py`: each of a few text fields passes the lower half with its sinks in it, their vectors the upper half;
            the sink bias works in the lower half only.
        items_ahead (`str`, *optional*): with `layout="split"`, how training reads texts. `None`: each text in each batch. `"frozen"`: the
            lower half stays as it is, and each text passes it once, without dropout; what it gave is kept in memory. `"epoch"`: so do
            the texts of histories, anew in each epoch, while the target's text is read and trains the lower half; each process of a launch
            keeps its own, by the weights of when it first met the text, so that here results depend on the number of processes.
        field_norm (`bool`, defaults to `False`): with `layout="split"` and a decoder, its final norm follows the lower half too, as in
            the authors' code, before the mean over a text is taken. In pretrained decoders the first token of a text has a state a
            hundred times as large as the others; without the norm the vectors of all texts are nearly the same.
        num_history_fields (`int`, defaults to 2): with `layout="fields"`, histories (one per feedback), which come first.
        num_target_fields (`int`, defaults to 2): with `layout="fields"`, texts of the target (its title and its genres).
        field_projection_size (`int`, defaults to 128): with `layout="split"`, width of the projected history and target; with
            `"fields"`, of each projected field.
        head_hidden_size (`int`, defaults to 32): width of the head's hidden layer.
        num_statistics (`int`, defaults to 0): float columns that describe a sample (rates, counts, times since), which an MLP
            and a linear skip bring into the head beside the pooled state.
        statistics_hidden_sizes (`list[int]`, *optional*): hidden layers of that MLP; default: `[64, 32]`.
        statistics_knots (`list[float]`, *optional*): the MLP also reads max(0, x - k) of each scaled statistic x for each of these knots k,
            so that its first layer finds thresholds as trees do; default: none.
        statistics_dropout (`float`, defaults to 0.0): dropout after each of them.
        initializer_range (`float`, *optional*): standard deviation of new weights; default: the backbone's.

    Example:

    ```python
    >>> from lmctr import CTRSinkConfig, CTRSinkForCTR
    >>> config = CTRSinkConfig(text_config={"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2,
    ...     "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}, sink_signal=["recency", "feedback"])
    >>> model = CTRSinkForCTR(config)
    ```
    """

    model_type = "ctr_sink"
    keys_shared_with_processor = ("sink_kind", "sink_signal", "sink_order", "num_sink_buckets", "feedback", "layout")
    has_tokenizer = True
    sub_configs = {"text_config": AutoConfig}  # noqa: RUF012 (transformers' own convention)

    text_config: PreTrainedConfig | dict | None = None
    sink_kind: str = "sink"
    sink_signal: str | list[str] | None = None
    sink_order: str = "recent"
    feedback: str = "none"
    num_sink_buckets: int = 100
    sink_embedding_dim: int = 128
    max_sinks: int | None = None
    max_elements: int | None = None
    sink_bias_layers: str | list[int] | None = None
    sink_bias_causal: bool = True
    sink_bias_scale_init: float | None = None
    sink_bias_head_dim: int | None = None
    sink_bias_dropout: float = 0.1
    encoder_prefix: bool = False
    layout: str = "single"
    items_ahead: str | None = None
    field_norm: bool = False
    num_history_fields: int = 2
    num_target_fields: int = 2
    field_projection_size: int = 128
    head_hidden_size: int = 32
    num_statistics: int = 0
    statistics_hidden_sizes: list[int] | None = None
    statistics_knots: list[float | int] | None = None
    statistics_dropout: float = 0.0
    initializer_range: float | None = None

    def __post_init__(self, **kwargs):
        if self.text_config is None:
            self.text_config = CONFIG_MAPPING["bert"]()
        elif isinstance(self.text_config, dict):
            values = dict(self.text_config)
            model_type = values.pop("model_type", None)
            if model_type is None or model_type not in CONFIG_MAPPING:
                raise ValueError(
                    f"CTRSinkConfig: text_config has model_type={model_type!r}; it must be a model type that "
                    f"transformers knows, for example {', '.join(sorted(BACKBONES))}"
                )
            self.text_config = CONFIG_MAPPING[model_type](**values)
        if self.sink_signal is None:
            self.sink_signal = usual_signal(self.sink_kind)
        if self.statistics_hidden_sizes is None:
            self.statistics_hidden_sizes = [64, 32]
        self.statistics_knots = list(self.statistics_knots or [])
        if self.initializer_range is None:
            self.initializer_range = float(getattr(self.text_config, "initializer_range", None) or 0.02)
        super().__post_init__(**kwargs)

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals whose embeddings are summed at a sink."""
        return signals_of(self.sink_signal)

    @property
    def backbone_spec(self) -> BackboneSpec | None:
        """What is known of the backbone, or None for a type without sink bias."""
        return BACKBONES.get(self.text_config.model_type)

    @property
    def is_causal(self) -> bool:
        """Whether a token of the backbone sees earlier ones only; False where the type is not known."""
        text, spec = self.text_config, self.backbone_spec
        causal = spec is not None and (spec.is_causal or getattr(text, "is_decoder", False))
        # Decoders may look both ways: Gemma 3 by a key of its own, all others by one that transformers' masks read.
        both_ways = getattr(text, "use_bidirectional_attention", None) or not getattr(text, "is_causal", True)
        return bool(causal and not both_ways)

    @property
    def word_embedding_size(self) -> int:
        """Width of the backbone's word embeddings; ELECTRA's smallest are narrower than its layers."""
        return getattr(self.text_config, "embedding_size", None) or self.text_config.hidden_size

    @property
    def num_lower_layers(self) -> int:
        """Layers that a text field passes on its own: half of all, none with `layout="single"`."""
        return getattr(self.text_config, "num_hidden_layers", 0) // 2 if self.layout != "single" else 0

    @property
    def num_fields(self) -> int:
        """Text fields of a row with `layout="fields"`."""
        return self.num_history_fields + self.num_target_fields

    @property
    def layers_with_sinks(self) -> range:
        """The layers that sinks pass, among which those with sink bias are chosen."""
        lower, num_layers = self.num_lower_layers, getattr(self.text_config, "num_hidden_layers", 0)
        return range(lower) if self.layout == "fields" else range(lower, num_layers)

    @property
    def resolved_sink_bias_layers(self) -> tuple[int, ...]:
        """The layers with sink bias, in order, after defaults."""
        able, layers = self.layers_with_sinks, self.sink_bias_layers
        if layers is None:
            spec, has_sinks = self.backbone_spec, self.sink_kind == "sink"
            # The authors' shares are of all layers; those of "split" are counted inside its upper half.
            whole = len(able) if self.layout == "split" else getattr(self.text_config, "num_hidden_layers", 0)
            layers = able[: len(spec.default_layers(whole))] if spec is not None and has_sinks else []
        elif layers == "all":
            layers = able
        return tuple(layers)

    @property
    def resolved_sink_bias_scale_init(self) -> float:
        """Initial scale of the sink bias after defaults."""
        if self.sink_bias_scale_init is not None:
            return float(self.sink_bias_scale_init)
        return 1.0 if self.is_causal else 10.0

    def get_text_config(self, *args, **kwargs) -> PreTrainedConfig:
        """The backbone's configuration."""
        return self.text_config

    def _check_backbone(self) -> None:
        text, known = self.text_config, ", ".join(sorted(BACKBONES))
        if getattr(text, "is_encoder_decoder", False):
            raise ValueError(
                f"CTRSinkConfig: text_config is of type {text.model_type!r}, an encoder-decoder; history and target are one text, "
                f"which one stack of layers reads. Use an encoder or a decoder, for example of type {known}"
            )
        if getattr(text, "hidden_size", None) is None:
            raise ValueError(
                f"CTRSinkConfig: text_config is of type {text.model_type!r}, which has no hidden_size of its own; a model of "
                f"several parts holds a language model: give that one, for example of type {known}"
            )

        heads, shared = (getattr(text, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
        if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
            raise ValueError(
                f"CTRSinkConfig: text_config has num_attention_heads={heads} and num_key_value_heads={shared}, which must divide it; "
                f"set num_key_value_heads, whose default is that of a large {text.model_type}"
            )
        width = getattr(text, "head_dim", None) or (
            text.hidden_size // heads if isinstance(heads, int) and heads else 2
        )
        if getattr(text, "rope_parameters", None) and width % 2:
            raise ValueError(
                f"CTRSinkConfig: text_config has hidden_size={text.hidden_size} and num_attention_heads={heads}: heads of width {width}, which rotary "
                f"positions of a {text.model_type} need even; set num_attention_heads, whose default is that of a large one"
            )

    def validate_values(self) -> None:
        self._check_backbone()
        check_sink_settings(self, self._require)
        if self.layout != "single":
            known = self.text_config.model_type in _HALVED_BACKBONES and self.text_config.num_hidden_layers >= 2
            types = ", ".join(_HALVED_BACKBONES)
            needs = f'"single"; {self.layout!r} needs a backbone of two layers or more of type {types}'
            self._require(known, "layout", needs)
        ahead = self.items_ahead is None or (self.layout == "split" and self.items_ahead in ("frozen", "epoch"))
        self._require(ahead, "items_ahead", 'None, or "frozen" or "epoch" with layout="split"')
        decoder = self.backbone_spec is not None and self.backbone_spec.is_causal
        normed = not self.field_norm or (self.layout == "split" and decoder)
        self._require(normed, "field_norm", 'false, or true with layout="split" and a decoder')
        if self.layout == "fields":
            windows = "sliding_attention" in (getattr(self.text_config, "layer_types", None) or ())
            self._require(not windows, "layout", '"single": "fields" has no sliding windows, which this backbone has')
            self._require_whole("num_history_fields", "num_target_fields")
        if self.encoder_prefix:
            able = self.layout == "single" and self.text_config.model_type in PREFIX_ENCODERS
            needs = f'false; true needs layout="single" and a backbone of type {", ".join(PREFIX_ENCODERS)}'
            self._require(able, "encoder_prefix", needs)
        self._require_whole("num_sink_buckets", "sink_embedding_dim", "head_hidden_size", "field_projection_size")
        self._require_whole("num_statistics", least=0)
        given = ("max_sinks", "max_elements", "sink_bias_head_dim")
        self._require_whole(*(key for key in given if getattr(self, key) is not None))
        self._require_widths("statistics_hidden_sizes")
        knots = all(abs(knot) < float("inf") for knot in self.statistics_knots)
        self._require(knots, "statistics_knots", "a list of finite numbers, in standard deviations of a statistic")
        self._require_share("sink_bias_dropout", "statistics_dropout")
        self._validate_sink_bias_layers()

    def _validate_sink_bias_layers(self) -> None:
        if isinstance(self.sink_bias_layers, str):
            self._require(self.sink_bias_layers == "all", "sink_bias_layers", 'a list of layer indices, "all" or None')
        layers = self.resolved_sink_bias_layers
        able = self.layers_with_sinks
        half = {"split": " (no sink passes the lower half)", "fields": " (no sink passes the upper half)"}
        self._require(
            all(layer in able for layer in layers) and len(set(layers)) == len(layers),
            "sink_bias_layers",
            f"different layer indices from {able.start} to {able.stop - 1}{half.get(self.layout, '')}",
        )
        has_sinks = not layers or self.sink_kind != "none"
        self._require(has_sinks, "sink_bias_layers", '[] or None with sink_kind="none": no sinks')
        if self.backbone_spec is None and (layers or (self.sink_kind == "sink" and self.sink_bias_layers is None)):
            raise ValueError(
                f"CTRSinkConfig: sink_bias_layers={self.sink_bias_layers!r}, but the sink bias is known for backbones of type "
                f"{', '.join(sorted(BACKBONES))} only, and this one is {self.text_config.model_type!r}; set sink_bias_layers=[] "
                "to go without it"
            )
