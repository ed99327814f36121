"""Configuration of HiFormer."""

from dataclasses import field

from lmctr.models.common.configuration import TabularCTRConfig

__all__ = ["HiFormerConfig"]


class HiFormerConfig(TabularCTRConfig):
    r"""Configuration of [`HiFormerModel`] and [`HiFormerForCTR`]; [`TabularCTRConfig`] has the keys of the fields.

    Args:
        hidden_size (`int`, defaults to 32): width d of a token; fields of another width are projected.
        num_hidden_layers (`int`, defaults to 2): layers.
        num_attention_heads (`int`, defaults to 4): heads of hidden_size / num_attention_heads each.
        intermediate_size (`int`, defaults to 64): width inside a token's own feed-forward network.
        projection (`str`, defaults to `"composite"`):
            How keys and values are made: from all tokens together (the composite projection, HiFormer), or `"heterogeneous"`: from the
            token alone, with matrices of its own (the heterogeneous attention layer). Queries are the
            token's own in both.
        key_rank, value_rank (`int`, *optional*, default to 64 and 128):
            Ranks of the low-rank form of each head's composite projections. `None`: full matrices,
            (T d) x (T d / H) numbers per head for T tokens.
        hidden_act (`str`, defaults to `"gelu"`): activation of the feed-forward networks.
        hidden_units (`list[int]`, defaults to `[]`): layers of an MLP (ReLU) on the task token before the head.
        dropout (`float`, defaults to 0.0): after attention, inside feed-forward networks and in the MLP.
        attention_dropout (`float`, defaults to 0.0): on the attention weights.
        layer_norm_eps (`float`, defaults to 1e-5): epsilon of the layer norms.
    """

    model_type = "hiformer"

    hidden_size: int = 32
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 64
    projection: str = "composite"
    key_rank: int | None = 64
    value_rank: int | None = 128
    hidden_act: str = "gelu"
    hidden_units: list[int] = field(default_factory=list)
    dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    layer_norm_eps: float = 1e-5

    def validate_values(self) -> None:
        super().validate_values()
        self._validate_mlp(may_be_empty=True)
        self._require_whole("num_hidden_layers", "intermediate_size")
        for key in ("key_rank", "value_rank"):
            value = getattr(self, key)
            self._require(value is None or value >= 1, key, "a whole number of at least 1, or None for full matrices")
        self._require_whole_heads()
        self._require_choice("projection", ("composite", "heterogeneous"))
        self._require_share("attention_dropout")
        self._require_above_zero("layer_norm_eps")
