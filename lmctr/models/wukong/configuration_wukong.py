"""Configuration of Wukong."""

from dataclasses import field

from lmctr.models.common.configuration import TabularCTRConfig

__all__ = ["WukongConfig"]


class WukongConfig(TabularCTRConfig):
    r"""Configuration of [`WukongModel`] and [`WukongForCTR`]; [`TabularCTRConfig`] has the keys of the fields.

    Fields of different widths are projected to the largest.

    Args:
        num_hidden_layers (`int`, defaults to 3): layers of the interaction stack, l in the paper.
        num_fmb_tokens (`int`, defaults to 16): embeddings that a factorisation machine block gives, n_F.
        num_lcb_tokens (`int`, defaults to 16): embeddings that a linear compression block gives, n_L.
        fm_projection (`str`, defaults to `"attentive"`):
            The optimised factorisation machine X X^T Y ("optimized FM" in the paper): Y from the row itself, by an MLP of the linearly
            compressed input (the paper's experiments), `"static"`: a learned matrix, `"none"`: the plain X X^T.
        fm_rank (`int`, defaults to 16): columns k of Y.
        num_compressed_tokens (`int`, defaults to 8): embeddings that the attentive Y is made from.
        fm_attention_units (`list[int]`, defaults to `[64]`): hidden layers of the MLP that makes the attentive Y.
        fmb_units (`list[int]`, defaults to `[256]`): hidden layers of the MLP of a factorisation machine block.
        hidden_units (`list[int]`, defaults to `[400, 400]`): hidden layers of the final MLP; `[]`: a linear map.
        hidden_act (`str`, defaults to `"relu"`): activation of all MLPs, a name that transformers knows.
        dropout (`float`, defaults to 0.0): after each activation.
        layer_norm_eps (`float`, defaults to 1e-5): epsilon of the layer norms.
    """

    model_type = "wukong"
    least_numeric_range = 0.03

    num_hidden_layers: int = 3
    num_fmb_tokens: int = 16
    num_lcb_tokens: int = 16
    fm_projection: str = "attentive"
    fm_rank: int = 16
    num_compressed_tokens: int = 8
    fm_attention_units: list[int] = field(default_factory=lambda: [64])
    fmb_units: list[int] = field(default_factory=lambda: [256])
    hidden_units: list[int] = field(default_factory=lambda: [400, 400])
    hidden_act: str = "relu"
    dropout: float | int = 0.0
    layer_norm_eps: float = 1e-5

    def validate_values(self) -> None:
        super().validate_values()
        self._validate_mlp("fmb_units", "fm_attention_units", may_be_empty=True)
        self._require_whole(
            "num_hidden_layers", "num_fmb_tokens", "num_lcb_tokens", "fm_rank", "num_compressed_tokens"
        )
        self._require_choice("fm_projection", ("attentive", "static", "none"))
        self._require_above_zero("layer_norm_eps")
