"""Configuration of RetrievalMLP."""

from lmctr.models.common.configuration import RetrievalConfig

__all__ = ["RetrievalMLPConfig"]


class RetrievalMLPConfig(RetrievalConfig):
    r"""Configuration of [`RetrievalMLPModel`] and [`RetrievalMLPForCTR`]; [`RetrievalConfig`] has all keys.

    The paper's base model [3328, 1024, 256, 256, 256, 1] has 200 fields of 16 numbers, 128 statistics and the default `hidden_units`.

    Example:

    ```python
    >>> from lmctr import RetrievalMLPConfig, RetrievalMLPForCTR
    >>> config = RetrievalMLPConfig(user_vocab_sizes=[1000, 50], ad_vocab_sizes=[500], ad_num_numeric=4, hidden_units=[64, 32])
    >>> model = RetrievalMLPForCTR(config)
    ```
    """

    model_type = "retrieval_mlp"
