"""Configuration of TWIN (arXiv 2302.02352)."""

from transformers.activations import ACT2FN

from lmctr.models.common.configuration import SequenceCTRConfig
from lmctr.models.common.target_attention import TwinAttentionConfigMixin

__all__ = ["TWINConfig"]


class TWINConfig(TwinAttentionConfigMixin, SequenceCTRConfig):
    r"""Configuration of [`TWINModel`] and [`TWINForCTR`]; see [`SequenceCTRConfig`] for the keys of the data.

    The events that GSU searches are those of the row, `max_history_length` of the processor (2000 in Climber's comparison).

    Args:
        hidden_size (`int`, defaults to 64): width of items, queries, keys and values over all heads.
        num_attention_heads (`int`, defaults to 4): as in the paper.
        cross_dim (`int`, defaults to 8): width of each cross feature (behaviour type, scenario, time since), as in the paper.
        num_time_buckets (`int`, defaults to 32): powers of two of the seconds between event and candidate.
        num_selected (`int`, defaults to 100): events that GSU hands on to ESU, as in the paper (1000 in Climber's comparison).
        head_hidden_sizes (`list[int]`, *optional*): hidden layers of the final network; default `[200, 80]`.
        hidden_act (`str`, defaults to `"relu"`): their activation.
        dropout (`float`, defaults to 0.0): after each of them, in training.
        micro_batch_size (`int`, defaults to 512): candidates searched at once where no gradients are needed. Bounds the memory.
    """

    model_type = "twin"

    hidden_size: int = 64
    num_attention_heads: int = 4
    cross_dim: int = 8
    num_time_buckets: int = 32
    num_selected: int = 100
    head_hidden_sizes: list[int] | None = None
    hidden_act: str = "relu"
    dropout: float = 0.0
    micro_batch_size: int = 512

    def __post_init__(self, **kwargs):
        if self.head_hidden_sizes is None:
            self.head_hidden_sizes = [200, 80]
        super().__post_init__(**kwargs)

    def validate_values(self) -> None:
        super().validate_values()
        self._validate_twin()
        self._require(self.hidden_act in ACT2FN, "hidden_act", f"one of {', '.join(sorted(ACT2FN))}")
