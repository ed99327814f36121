"""Configuration of DLRMTwin, the DLRM of Climber (arXiv 2502.09888)."""

from lmctr.models.common.target_attention import TwinAttentionConfig

__all__ = ["DLRMTwinConfig"]


class DLRMTwinConfig(TwinAttentionConfig):
    r"""Configuration of [`DLRMTwinModel`] and [`DLRMTwinForCTR`]; [`TwinAttentionConfig`] has the keys of the attention.

    Args:
        hidden_size (`int`, defaults to 64): width of items, of TWIN's attention and of the statistics' vector.
        use_history_statistics (`bool`, defaults to `True`): count, for each behaviour type, the events that a candidate sees and those
            of them with its own item. They join the `num_statistics` columns of the data.
        statistics_hidden_sizes (`list[int]`, *optional*): hidden layers on the statistics, in front of a layer of `hidden_size`;
            default `[64]`.
        head_hidden_sizes (`list[int]`, *optional*): hidden layers of the interaction network; default `[512, 256, 128]`.
    """

    model_type = "dlrm_twin"
    default_head_sizes = (512, 256, 128)

    use_history_statistics: bool = True
    statistics_hidden_sizes: list[int] | None = None

    def __post_init__(self, **kwargs):
        if self.statistics_hidden_sizes is None:
            self.statistics_hidden_sizes = [64]
        super().__post_init__(**kwargs)

    def validate_values(self) -> None:
        super().validate_values()
        self._validate_layers((), ("statistics_hidden_sizes", "head_hidden_sizes"))
        self._require(
            self.use_history_statistics or self.num_statistics > 0,
            "use_history_statistics",
            "True, or data with statistics (num_statistics above 0): without any statistic the model is TWIN",
        )
