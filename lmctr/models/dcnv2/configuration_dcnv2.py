"""Configuration of DCNv2."""

from lmctr.models.common.configuration import MLPTabularConfig

__all__ = ["DCNv2Config"]


class DCNv2Config(MLPTabularConfig):
    r"""Configuration of [`DCNv2Model`] and [`DCNv2ForCTR`]; [`TabularCTRConfig`] has the keys of the fields, [`MLPTabularConfig`]
    those of the MLP.

    Fields may have different widths: the cross network works on the vectors side by side.

    Args:
        structure (`str`, defaults to `"parallel"`): the MLP beside the cross network, or `"stacked"` on it.
        num_cross_layers (`int`, defaults to 3): layers of the cross network.
        cross_type (`str`, defaults to `"matrix"`): Eq. 1's full matrices, or `"mixture"`: low-rank experts (Eq. 3).
        low_rank (`int`, defaults to 32): rank r of an expert.
        num_experts (`int`, defaults to 4): experts of a layer.
        hidden_units (`list[int]`, defaults to `[400, 400, 400]`): layers of the MLP; `[]`: the cross network alone.
    """

    model_type = "dcnv2"
    least_numeric_range = 0.03
    mlp_may_be_empty = True

    structure: str = "parallel"
    num_cross_layers: int = 3
    cross_type: str = "matrix"
    low_rank: int = 32
    num_experts: int = 4

    def validate_values(self) -> None:
        super().validate_values()
        self._require_choice("structure", ("stacked", "parallel"))
        self._require_choice("cross_type", ("matrix", "mixture"))
        self._require_whole("num_cross_layers", "low_rank", "num_experts")
