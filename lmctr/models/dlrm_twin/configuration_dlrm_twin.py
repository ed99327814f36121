"""Configuration of DLRMTwin, the DLRM of Climber (arXiv 2502.09888)."""

from transformers.activations import ACT2FN

from lmctr.models.common.configuration import SequenceCTRConfig
from lmctr.models.common.target_attention import TwinAttentionConfigMixin

__all__ = ["DLRMTwinConfig"]


class DLRMTwinConfig(TwinAttentionConfigMixin, SequenceCTRConfig):
    r"""Configuration of [`DLRMTwinModel`] and [`DLRMTwinForCTR`]; see [`SequenceCTRConfig`] for the keys of the data.

    Args:
        hidden_size (`int`, defaults to 64): width of items, of TWIN's attention and of the statistics' vector.
        num_attention_heads, cross_dim, num_time_buckets, num_selected (`int`, default to 4, 8, 32, 100): TWIN's, see [`TWINConfig`].
        use_history_statistics (`bool`, defaults to `True`): count, for each behaviour type, the events that a candidate sees and those
            of them with its own item. They join the `num_statistics` columns of the data.
        statistics_hidden_sizes (`list[int]`, *optional*): hidden layers on the statistics, in front of a layer of `hidden_size`;
            default `[64]`.
        head_hidden_sizes (`list[int]`, *optional*): hidden layers of the interaction network; default `[512, 256, 128]`.
        hidden_act (`str`, defaults to `"relu"`): activation of both.
        dropout (`float`, defaults to 0.0): after each hidden layer, in training.
        micro_batch_size (`int`, defaults to 512): candidates searched at once where no gradients are needed. Bounds the memory.
    """

    model_type = "dlrm_twin"

    hidden_size: int = 64
    num_attention_heads: int = 4
    cross_dim: int = 8
    num_time_buckets: int = 32
    num_selected: int = 100
    use_history_statistics: bool = True
    statistics_hidden_sizes: list[int] | None = None
    head_hidden_sizes: list[int] | None = None
    hidden_act: str = "relu"
    dropout: float = 0.0
    micro_batch_size: int = 512

    def __post_init__(self, **kwargs):
        if self.statistics_hidden_sizes is None:
            self.statistics_hidden_sizes = [64]
        if self.head_hidden_sizes is None:
            self.head_hidden_sizes = [512, 256, 128]
        super().__post_init__(**kwargs)

    def validate_values(self) -> None:
        super().validate_values()
        self._validate_twin()
        self._validate_layers((), ("statistics_hidden_sizes", "head_hidden_sizes"))
        self._require(self.hidden_act in ACT2FN, "hidden_act", f"one of {', '.join(sorted(ACT2FN))}")
        self._require(
            self.use_history_statistics or self.num_statistics > 0,
            "use_history_statistics",
            "True, or data with statistics (num_statistics above 0): without any statistic the model is TWIN",
        )
