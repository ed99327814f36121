"""Configuration of DNN: field embeddings and an MLP."""

from dataclasses import field

from lmctr.models.common.configuration import TabularCTRConfig

__all__ = ["DNNConfig"]


class DNNConfig(TabularCTRConfig):
    r"""Configuration of [`DNNModel`] and [`DNNForCTR`]; [`TabularCTRConfig`] has the keys of the fields.

    Args:
        hidden_units (`list[int]`, defaults to `[400, 400, 400]`): width of each layer of the MLP.
        hidden_act (`str`, defaults to `"relu"`): activation, a name that transformers knows.
        dropout (`float`, defaults to 0.0): after each activation.
        use_batch_norm (`bool`, defaults to `False`): before each activation.

    Example:

    ```python
    >>> from lmctr import DNNConfig, DNNForCTR
    >>> model = DNNForCTR(DNNConfig(vocab_sizes=[1000, 50], num_numeric=2, hidden_units=[64, 64]))
    ```
    """

    model_type = "dnn"

    hidden_units: list[int] = field(default_factory=lambda: [400, 400, 400])
    hidden_act: str = "relu"
    dropout: float | int = 0.0
    use_batch_norm: bool = False

    def validate_values(self) -> None:
        super().validate_values()
        self._validate_mlp()
