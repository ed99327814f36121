"""Configuration of DeepFM."""

from lmctr.models.common.configuration import MLPTabularConfig

__all__ = ["DeepFMConfig"]


class DeepFMConfig(MLPTabularConfig):
    r"""Configuration of [`DeepFMModel`] and [`DeepFMForCTR`]; [`TabularCTRConfig`] has the keys of the fields, [`MLPTabularConfig`]
    those of the MLP.

    Fields of different widths go to the MLP as they are; the factorisation machine sees them projected to the largest.
    """

    model_type = "deepfm"
