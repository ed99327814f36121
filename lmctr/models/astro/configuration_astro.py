"""Configuration of ASTRO (Climber, arXiv 2502.09888)."""

from typing import Any

from lmctr.models.common.configuration import SequenceCTRConfig

from .strategies import Strategy, default_strategies, parse_strategies

__all__ = ["PRESETS", "ASTROConfig"]

PRESETS: dict[str, dict[str, int]] = {
    "astro": {"sequence_length": 200, "num_hidden_layers": 2},
    "astro-large": {"sequence_length": 800, "num_hidden_layers": 12},
}
"""Appendix B.2: ASTRO-large has four times the length and six times the layers."""


class ASTROConfig(SequenceCTRConfig):
    r"""Configuration of [`ASTROModel`] and [`ASTROForCTR`]; see [`SequenceCTRConfig`] for the keys of the data.

    Args:
        preset (`str`, *optional*): `"astro"` (length 200, 2 layers; the default) or `"astro-large"` (800, 12). Gives the defaults
            of the two keys below.
        sequence_length (`int`, *optional*): n, events over all blocks. Each block keeps its latest n_k = n / Nb matching
            events, so n must be a multiple of the number of strategies. Default: the preset's, rounded down to a multiple.
        num_hidden_layers (`int`, *optional*): adaptive Transformer layers of each block.
        strategies (`list[dict]`, *optional*): extraction strategies a_1..a_Nb, one block each: `name`, and any of `behaviors`
            (names or codes), `scenarios` (names or codes, or `"same"`: the candidate's own scenario), `window_seconds` or
            `window_days` (before the candidate). Default: one per behaviour type, without an unknown one.
        hidden_size (`int`, defaults to 100): d. The paper's FLOPs (Tab. 3) fit d = 100.
        num_attention_heads (`int`, defaults to 4): h; not stated in the paper.
        intermediate_size (`int`, *optional*): width of the feed-forward network; default 4 d.
        num_position_buckets, num_time_buckets (`int`, default to 32): rows of the relative bias tables. Distances are counted
            one by one in the first half of the position buckets, then on a log scale up to n_k; time buckets are powers of two
            of the seconds in between.
        head_hidden_sizes (`list[int]`, *optional*): hidden layers of the final network; default `[128, 64]`.
        gate_ratio (`int`, defaults to 4): reduction of the squeeze-and-excitation gate (Eq. 4).
        dropout (`float`, defaults to 0.0): on the outputs of attention and feed-forward network of the blocks, in training.
        use_adaptive_layers (`bool`, defaults to `True`): `False` is the paper's "-ATL": temperature sqrt(d_head), and one relative
            bias per layer and head for all strategies and scenarios.
        use_gating_fusion (`bool`, defaults to `True`): `False` is "-BGF": the blocks' vectors are concatenated.
        use_partitioning (`bool`, defaults to `True`): `False` is "-MSP": one block with the latest n events of any kind.
        serving_micro_batch_size (`int`, defaults to 512): candidates scored at once on a cached history. The training
            micro-batch is the number of candidates per row, a setting of the data.

    Example:

    ```python
    >>> config = ASTROConfig(**processor.model_config_values(), strategies=[
    ...     {"name": "like", "behaviors": ["like"]},
    ...     {"name": "recent", "window_days": 7},
    ...     {"name": "here", "scenarios": "same"},
    ... ], sequence_length=300)
    ```
    """

    model_type = "astro"
    default_head_sizes = (128, 64)

    preset: str | None = None
    sequence_length: int | None = None
    num_hidden_layers: int | None = None
    strategies: list[dict[str, Any]] | None = None
    hidden_size: int = 100
    num_attention_heads: int = 4
    intermediate_size: int | None = None
    num_position_buckets: int = 32
    num_time_buckets: int = 32
    head_hidden_sizes: list[int] | None = None
    gate_ratio: int = 4
    dropout: float = 0.0
    use_adaptive_layers: bool = True
    use_gating_fusion: bool = True
    use_partitioning: bool = True
    serving_micro_batch_size: int = 512

    def __post_init__(self, **kwargs):
        preset = PRESETS.get(self.preset or "astro", PRESETS["astro"])
        if self.strategies is None:
            names = self.behavior_names
            self.strategies = default_strategies(names or [f"behavior_{code}" for code in range(self.num_behaviors)])
        if self.sequence_length is None:
            count = max(self.num_blocks, 1)
            self.sequence_length = max(preset["sequence_length"] // count, 1) * count
        if self.num_hidden_layers is None:
            self.num_hidden_layers = preset["num_hidden_layers"]
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        super().__post_init__(**kwargs)

    @property
    def parsed_strategies(self) -> tuple[Strategy, ...]:
        """The strategies of the blocks that the model has, with names turned into codes."""
        strategies = parse_strategies(self.strategies, self.behavior_names, self.scenario_names)
        return strategies if self.use_partitioning else (Strategy("all"),)

    @property
    def num_blocks(self) -> int:
        """Nb."""
        return len(self.strategies) if self.use_partitioning else 1

    @property
    def block_length(self) -> int:
        """n_k = n / Nb."""
        return self.sequence_length // self.num_blocks

    def validate_values(self) -> None:
        super().validate_values()
        self._require(self.preset is None or self.preset in PRESETS, "preset", f"one of {', '.join(PRESETS)}, or None")
        self._require_whole_heads()
        self._require_whole("sequence_length", "gate_ratio")
        self._validate_layers(("num_hidden_layers", "intermediate_size", "serving_micro_batch_size"))
        self._require_whole("num_position_buckets", "num_time_buckets", least=2)
        parse_strategies(self.strategies, self.behavior_names, self.scenario_names)
        count = self.num_blocks
        below = self.sequence_length // count * count
        accepted = f"{below} or {below + count}" if below else f"{count}"
        self._require(
            self.sequence_length % count == 0,
            "sequence_length",
            f"a multiple of the {count} strategies, such as {accepted}",
        )
