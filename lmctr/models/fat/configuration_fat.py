"""Configuration of the Field-Aware Transformer."""

from typing import Any

from lmctr.models.common.configuration import TabularCTRConfig

__all__ = ["FATConfig"]

_PRESETS = {
    "small": {"hidden_size": 256, "num_hidden_layers": 4},
    "large": {"hidden_size": 512, "num_hidden_layers": 10},
    "xl": {"hidden_size": 1024, "num_hidden_layers": 7},
}


class FATConfig(TabularCTRConfig):
    r"""Configuration of a FAT model. The keys of the fields and their embeddings are those of [`TabularCTRConfig`].

    Args:
        hidden_size (`int`, defaults to 64): d, the width of a token.
        num_hidden_layers (`int`, defaults to 2): L.
        num_attention_heads (`int`, defaults to 8): H; divides `hidden_size`.
        intermediate_size (`int`, *optional*): width of the feed-forward layer; default 4 d.
        projection (`str`, defaults to `"hypernetwork"`): where W_Q, W_K, W_V come from. `"hypernetwork"`: generated per field
            from shared bases (Sec. 3.4). The ablations of Tab. 2: `"full"`: stored per field; `"shared"`: one for all
            fields (decided: of each kind, where the table's row names W_Q alone); `"pair"`: one per ordered field pair (Eq. 3, 4).
        num_bases (`int`, defaults to 64): M, bases per kind and layer.
        top_k (`int`, defaults to 3): K, bases that make a field's matrix.
        meta_dim (`int`, defaults to 64): k, the size of the meta-embedding phi_f, which all layers share.
        max_pair_parameters (`int`, defaults to 100000000): most parameters that `projection="pair"` may take.
        use_field_bias (`bool`, defaults to `True`): add b_f to each token of field f (Eq. 1).
        use_pair_modulation (`bool`, *optional*): scale scores by w of the field pair (Eq. 5). Default: on, except with
            `projection="pair"`, where the paper's Eq. 4 has none.
        pair_init (`str`, defaults to `"one_plus"`): new w. `"paper"`: N(0, 0.01), which makes attention uniform at first and
            leaves W_Q and W_K about a hundredth of the gradient. `"one_plus"`: 1 + N(0, 0.01), standard attention at
            first. Decided: `"one_plus"` by default.
        block (`str`, defaults to `"paper"`): `"paper"`: Z + FFN(LN(Attn(Z))) (Eq. 9); `"prenorm"`: Z + Attn(LN(Z)), then
            Z + FFN(LN(Z)).
        scale (`str`, defaults to `"head_dim"`): scores are divided by the root of d / H, or of d (`"d"`, the letter of Eq. 8).
            Decided: d x d matrices are split into heads, and the usual root of the head size is the default.
        use_output_projection (`bool`, defaults to `True`): a d x d projection after the heads. Decided: on, as is usual.
        tokens_per_field (`int` or `list[int]`, defaults to 1): tokens that each field's embedding is projected to, one number
            or one per field.
        monotonic_units (`int`, defaults to 16): hidden units per numeric field with `numeric_encoding="monotonic_mlp"`.
        sequence_attention_size (`int`, defaults to 36): hidden width of the DIN-style attention unit of sequence fields.
        hidden_act (`str`, defaults to `"gelu"`): activation of the feed-forward layer.
        hidden_dropout (`float`, defaults to 0): dropout after attention and feed-forward layer.
        attention_dropout (`float`, defaults to 0): dropout of the attention weights.
        layer_norm_eps (`float`, defaults to 1e-5): epsilon of the layer norms.

    Example:

    ```python
    >>> config = lmctr.FATConfig.preset("small", vocab_sizes=[1000, 50, 7])
    ```
    """

    model_type = "fat"
    numeric_encodings = (*TabularCTRConfig.numeric_encodings, "monotonic_mlp")

    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    intermediate_size: int | None = None
    projection: str = "hypernetwork"
    num_bases: int = 64
    top_k: int = 3
    meta_dim: int = 64
    max_pair_parameters: int = 100_000_000
    use_field_bias: bool = True
    use_pair_modulation: bool | None = None
    pair_init: str = "one_plus"
    block: str = "paper"
    scale: str = "head_dim"
    use_output_projection: bool = True
    tokens_per_field: int | list[int] = 1
    monotonic_units: int = 16
    sequence_attention_size: int = 36
    hidden_act: str = "gelu"
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    layer_norm_eps: float = 1e-5

    def __post_init__(self, **kwargs):
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.use_pair_modulation is None:
            self.use_pair_modulation = self.projection != "pair"
        super().__post_init__(**kwargs)

    @classmethod
    def preset(cls, name: str, **values: Any) -> "FATConfig":
        """A size of the paper: `"small"` (52M dense parameters), `"large"` (0.53B) or `"xl"` (1.47B), with H = 8, M = 64, K = 3.

        Args:
            name: which size. The widths and depths are ours: the paper gives only the parameter counts, which they fit.
            values: any key of the config, `vocab_sizes` above all; they win over the preset.

        Raises:
            ValueError: an unknown name.
        """
        if name not in _PRESETS:
            raise ValueError(f"FATConfig.preset: {name!r} is not known; use one of {', '.join(map(repr, _PRESETS))}")
        return cls(**{**_PRESETS[name], **values})

    @property
    def token_counts(self) -> list[int]:
        """Tokens of each field, in the order of `field_names`."""
        return self._per_field(self.tokens_per_field)

    @property
    def pair_parameters(self) -> int:
        """Parameters of the projections with `projection="pair"`: 3 L F^2 d^2."""
        return 3 * self.num_hidden_layers * self.num_fields**2 * self.hidden_size**2

    def validate_values(self) -> None:
        super().validate_values()
        self._require_whole("num_hidden_layers", "intermediate_size", "num_bases", "top_k")
        self._require_whole("meta_dim", "monotonic_units", "sequence_attention_size")
        self._require_whole_heads()
        self._require_activation()
        self._require_above_zero("layer_norm_eps")
        self._require_choice("projection", ("hypernetwork", "full", "shared", "pair"))
        self._require_choice("pair_init", ("paper", "one_plus"))
        self._require_choice("block", ("paper", "prenorm"))
        self._require_choice("scale", ("head_dim", "d"))
        self._require(
            self.top_k <= self.num_bases, "top_k", f"at most num_bases={self.num_bases}: each choice is another basis"
        )
        self._require_share("hidden_dropout", "attention_dropout")
        accepted = f"a number of at least 1, or one for each of the {self.num_fields} fields"
        self._require_counts("tokens_per_field", self.token_counts, accepted)
        if self.projection == "pair" and self.pair_parameters > self.max_pair_parameters:
            raise ValueError(
                f"FATConfig: projection='pair' takes 3 L F^2 d^2 = {self.pair_parameters:,} parameters for {self.num_fields} "
                f"fields, hidden_size={self.hidden_size} and {self.num_hidden_layers} layers, more than max_pair_parameters="
                f"{self.max_pair_parameters:,}; use projection='hypernetwork', or raise max_pair_parameters"
            )
