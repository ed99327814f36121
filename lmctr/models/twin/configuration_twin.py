"""Configuration of TWIN (arXiv 2302.02352)."""

from lmctr.models.common.target_attention import TwinAttentionConfig

__all__ = ["TWINConfig"]


class TWINConfig(TwinAttentionConfig):
    r"""Configuration of [`TWINModel`] and [`TWINForCTR`]; [`TwinAttentionConfig`] has the keys of the attention.

    The events that GSU searches are those of the row, `max_history_length` of the processor (2000 in Climber's comparison).

    Args:
        head_hidden_sizes (`list[int]`, *optional*): hidden layers of the final network; default `[200, 80]`.
    """

    model_type = "twin"
    default_head_sizes = (200, 80)
