"""Configuration of HSTU (arXiv 2402.17152)."""

from lmctr.models.common.configuration import SequenceCTRConfig

__all__ = ["HSTUConfig"]


class HSTUConfig(SequenceCTRConfig):
    r"""Configuration of [`HSTUModel`] and [`HSTUForCTR`]; see [`SequenceCTRConfig`] for the keys of the data.

    Args:
        hidden_size (`int`, defaults to 64): d.
        num_hidden_layers (`int`, defaults to 2): HSTU layers.
        num_attention_heads (`int`, defaults to 2): h; queries, keys, values and gates have d / h values per head.
        num_position_buckets (`int`, defaults to 128): rows of the table of relative positions, counted in tokens (two per event): one by one
            in the first half, then on a log scale up to `max_position_distance`.
        max_position_distance (`int`, defaults to 4096): first distance of the last, open bucket, at most.
        num_time_buckets (`int`, defaults to 128): rows of the table of time differences, floor(ln(seconds) / 0.301).
        time_of (`str`, defaults to `"query"`): which time a query brings to that difference: its own, or that of the token behind it
            (`"next"`, as in the authors' code: t[i + 1] - t[j]), so that an action knows how long its user waited until the next item.
            The keys of the last action then depend on the candidate, and each candidate computes them for itself.
        head_hidden_sizes (`list[int]`, *optional*): hidden layers of the final network; default `[128, 64]`.
        hidden_act (`str`, defaults to `"relu"`): their activation. HSTU itself always uses SiLU.
        dropout (`float`, defaults to 0.0): in front of each layer's last linear map and in the final network, in training.
        micro_batch_size (`int`, defaults to 512): candidates scored at once where no gradients are needed. Bounds the memory.
    """

    model_type = "hstu"
    default_head_sizes = (128, 64)

    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 2
    num_position_buckets: int = 128
    max_position_distance: int = 4096
    num_time_buckets: int = 128
    time_of: str = "query"
    head_hidden_sizes: list[int] | None = None
    hidden_act: str = "relu"
    dropout: float = 0.0
    micro_batch_size: int = 512

    def validate_values(self) -> None:
        super().validate_values()
        self._require_whole_heads()
        self._validate_layers(("num_hidden_layers", "max_position_distance", "micro_batch_size"))
        self._require_whole("num_position_buckets", "num_time_buckets", least=2)
        self._require(self.time_of in ("query", "next"), "time_of", '"query" or "next"')
        self._require_activation()
