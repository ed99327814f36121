"""Configuration of AutoInt."""

from dataclasses import field

from lmctr.models.common.configuration import MLPTabularConfig

__all__ = ["AutoIntConfig"]


class AutoIntConfig(MLPTabularConfig):
    r"""Configuration of [`AutoIntModel`] and [`AutoIntForCTR`]; [`TabularCTRConfig`] has the keys of the fields, [`MLPTabularConfig`]
    those of the MLP.

    Fields of different widths are projected to the largest before the attention; the MLP takes them as they are.

    Args:
        hidden_size (`int`, defaults to 64): width of an attention layer's output, all heads together.
        num_hidden_layers (`int`, defaults to 3): interacting layers.
        num_attention_heads (`int`, defaults to 2): heads of hidden_size / num_attention_heads each.
        use_residual (`bool`, defaults to `True`): Eq. 8's projection of the layer's input.
        use_scale (`bool`, defaults to `False`): divide the scores by the root of a head's width; the paper does not.
        attention_dropout (`float`, defaults to 0.0): on the attention weights.
        use_wide (`bool`, defaults to `False`): add a first-order term to the logit.
        hidden_units (`list[int]`, defaults to `[]`): layers of an MLP beside the attention; any make it "AutoInt+".
    """

    model_type = "autoint"
    mlp_may_be_empty = True

    hidden_size: int = 64
    num_hidden_layers: int = 3
    num_attention_heads: int = 2
    use_residual: bool = True
    use_scale: bool = False
    attention_dropout: float | int = 0.0
    use_wide: bool = False
    hidden_units: list[int] = field(default_factory=list)

    def validate_values(self) -> None:
        super().validate_values()
        self._require_whole("num_hidden_layers")
        self._require_whole_heads()
        self._require_share("attention_dropout")
