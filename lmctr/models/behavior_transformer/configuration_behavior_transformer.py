"""Configuration of BehaviorTransformer (after BST, arXiv 1905.06874)."""

from lmctr.models.common.configuration import SequenceCTRConfig

__all__ = ["BehaviorTransformerConfig"]


class BehaviorTransformerConfig(SequenceCTRConfig):
    r"""Configuration of [`BehaviorTransformerModel`] and [`BehaviorTransformerForCTR`]; see [`SequenceCTRConfig`] for the keys of the
    data.

    Args:
        hidden_size (`int`, defaults to 64): d.
        num_hidden_layers (`int`, defaults to 1): BST's best number of blocks.
        num_attention_heads (`int`, defaults to 8): as BST.
        intermediate_size (`int`, *optional*): width of the feed-forward network; default 4 d.
        num_positions (`int`, *optional*): events of the longest history, each with a learned position; default
            `max_history_length`, or 1000 without one. Longer rows are refused.
        num_time_buckets (`int`, defaults to 32): powers of two of the seconds since the event before.
        head_hidden_sizes (`list[int]`, *optional*): hidden layers of the final network; default `[1024, 512, 256]`, as BST.
        hidden_act (`str`, defaults to `"leaky_relu"`): activation of the feed-forward network and the final one, as BST.
        dropout (`float`, defaults to 0.0): in the blocks and the final network, in training. BST: 0.2.
        micro_batch_size (`int`, defaults to 512): candidates scored at once where no gradients are needed. Bounds the memory.
    """

    model_type = "behavior_transformer"
    default_head_sizes = (1024, 512, 256)

    hidden_size: int = 64
    num_hidden_layers: int = 1
    num_attention_heads: int = 8
    intermediate_size: int | None = None
    num_positions: int | None = None
    num_time_buckets: int = 32
    head_hidden_sizes: list[int] | None = None
    hidden_act: str = "leaky_relu"
    dropout: float = 0.0
    micro_batch_size: int = 512

    def __post_init__(self, **kwargs):
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.num_positions is None:
            self.num_positions = self.max_history_length or 1000
        super().__post_init__(**kwargs)

    def validate_values(self) -> None:
        super().validate_values()
        self._require_whole_heads()
        self._validate_layers(("num_hidden_layers", "intermediate_size", "num_positions", "micro_batch_size"))
        self._require_whole("num_time_buckets", least=2)
        self._require_activation()
