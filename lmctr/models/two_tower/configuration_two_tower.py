"""Configuration of TwoTower."""

from lmctr.models.common.configuration import RetrievalConfig

__all__ = ["TwoTowerConfig"]


class TwoTowerConfig(RetrievalConfig):
    r"""Configuration of [`TwoTowerModel`] and [`TwoTowerForCTR`]; [`RetrievalConfig`] has the keys of fields and loss.

    Args:
        hidden_units (`list[int]`, defaults to `[1024, 256, 256, 256]`): widths of the hidden layers of each tower.
        vector_size (`int`, defaults to 64): width of the vectors that the towers end in.

    Example:

    ```python
    >>> from lmctr import TwoTowerConfig, TwoTowerForCTR
    >>> config = TwoTowerConfig(user_vocab_sizes=[1000, 50], ad_vocab_sizes=[500], hidden_units=[64, 32], vector_size=16)
    >>> model = TwoTowerForCTR(config)
    ```
    """

    model_type = "two_tower"

    vector_size: int = 64

    def validate_values(self) -> None:
        super().validate_values()
        self._require_whole("vector_size")
