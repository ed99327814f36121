"""Configuration of DeepFM: a factorisation machine and an MLP on the same vectors."""

from dataclasses import field

from lmctr.models.common.configuration import TabularCTRConfig

__all__ = ["DeepFMConfig"]


class DeepFMConfig(TabularCTRConfig):
    r"""Configuration of [`DeepFMModel`] and [`DeepFMForCTR`]; [`TabularCTRConfig`] has the keys of the fields.

    Fields of different widths go to the MLP as they are; the factorisation machine sees them projected to the largest.

    Args:
        hidden_units (`list[int]`, defaults to `[400, 400, 400]`): width of each layer of the MLP.
        hidden_act (`str`, defaults to `"relu"`): activation of the MLP, a name that transformers knows.
        dropout (`float`, defaults to 0.0): after each activation of the MLP.
        use_batch_norm (`bool`, defaults to `False`): before each activation of the MLP.
    """

    model_type = "deepfm"

    hidden_units: list[int] = field(default_factory=lambda: [400, 400, 400])
    hidden_act: str = "relu"
    dropout: float | int = 0.0
    use_batch_norm: bool = False

    def validate_values(self) -> None:
        super().validate_values()
        self._validate_mlp()
