"""Base of the library's configurations: unknown keys are errors that offer the nearest known key."""

from dataclasses import fields

from transformers import GenerationConfig, PreTrainedConfig

from .utils.suggest import unknown_key_message

__all__ = ["CTRConfig", "SequenceCTRConfig"]

# Keys outside the dataclass fields that transformers' own base class and Trainer consume or write, in 5.17 to 5.23
# (the Trainer of 5.17 writes the tokenizer's special ids into the outermost config).
_BASE_KEYS = frozenset(
    {
        "attn_implementation",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "experts_implementation",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "pad_token_id",
        "per_layer_config",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)


class CTRConfig(PreTrainedConfig):
    """Base configuration of every lmctr family.

    A key that no family member declares raises `ValueError` with the nearest known key, both when a config is built
    in Python and when it is read from `config.json`.
    """

    def __post_init__(self, **kwargs):
        own = {field.name for field in fields(self)}
        generation = GenerationConfig._get_default_generation_params()
        for key in kwargs:
            if key in own or key in _BASE_KEYS or key in generation or key.startswith("_"):
                continue
            base = {field.name for field in fields(PreTrainedConfig)}
            raise ValueError(unknown_key_message(key, sorted(own - base), type(self).__name__))
        super().__post_init__(**kwargs)
        self.validate_values()

    def validate_values(self) -> None:
        """Check the values of the family's keys. Raises `ValueError` that names the key."""

    def _require(self, condition: bool, key: str, accepted: str) -> None:
        if not condition:
            raise ValueError(f"{type(self).__name__}: {key}={getattr(self, key)!r} is not accepted; use {accepted}")


class SequenceCTRConfig(CTRConfig):
    r"""Shared configuration of the sequence families: a user's events, and candidates to score.

    Args:
        item_vocab_size (`int`, defaults to 1000): item ids, padding (0) and out-of-vocabulary (1) included.
        num_behaviors (`int`, defaults to 3): behaviour types; codes go from 0 to num_behaviors - 1.
        num_scenarios (`int`, defaults to 1): scenarios (places where events happen); a log without scenarios has one.
        behavior_names (`list[str]`, *optional*): a name per behaviour code; default `"behavior_0"`, ...
        scenario_names (`list[str]`, *optional*): a name per scenario code; default `"scenario_0"`, ...
        item_feature_vocab_sizes (`list[int]`, *optional*): vocabulary of each categorical item feature column, padding and
            out-of-vocabulary included. `item_feature_names` names them.
        user_feature_vocab_sizes (`list[int]`, *optional*): the same for features of the user. `user_feature_names` names them.
        num_statistics (`int`, defaults to 0): float columns that describe a candidate in its context (counts, rates).
        max_history_length (`int`, *optional*): latest events of a user that a row holds; `None`: the whole lifetime.
            A record of what the processor builds.
        task_names (`list[str]`, *optional*): one logit per task; default `["click"]`.
        task_weights (`list[float]`, *optional*): factor of each task's loss; default 1 for each.
        initializer_range (`float`, defaults to 0.02): standard deviation of new weights.
        processor_fingerprint (`str`, *optional*): the [`SequenceProcessor`] whose ids the weights know.
    """

    item_vocab_size: int = 1000
    num_behaviors: int = 3
    num_scenarios: int = 1
    behavior_names: list[str] | None = None
    scenario_names: list[str] | None = None
    item_feature_vocab_sizes: list[int] | None = None
    item_feature_names: list[str] | None = None
    user_feature_vocab_sizes: list[int] | None = None
    user_feature_names: list[str] | None = None
    num_statistics: int = 0
    max_history_length: int | None = None
    task_names: list[str] | None = None
    task_weights: list[float | int] | None = None
    initializer_range: float = 0.02
    processor_fingerprint: str | None = None

    def __post_init__(self, **kwargs):
        self.item_feature_vocab_sizes = list(self.item_feature_vocab_sizes or [])
        self.user_feature_vocab_sizes = list(self.user_feature_vocab_sizes or [])
        if self.behavior_names is None:
            self.behavior_names = [f"behavior_{code}" for code in range(self.num_behaviors)]
        if self.scenario_names is None:
            self.scenario_names = [f"scenario_{code}" for code in range(self.num_scenarios)]
        if self.item_feature_names is None:
            self.item_feature_names = [f"item_feature_{i}" for i in range(len(self.item_feature_vocab_sizes))]
        if self.user_feature_names is None:
            self.user_feature_names = [f"user_feature_{i}" for i in range(len(self.user_feature_vocab_sizes))]
        if self.task_names is None:
            self.task_names = ["click"]
        if self.task_weights is None:
            self.task_weights = [1.0] * len(self.task_names)
        super().__post_init__(**kwargs)

    @property
    def num_tasks(self) -> int:
        """T, the number of logits per candidate."""
        return len(self.task_names)

    def validate_values(self) -> None:
        self._require(self.item_vocab_size >= 2, "item_vocab_size", "at least 2: padding and out-of-vocabulary")
        for names, count in (("behavior_names", "num_behaviors"), ("scenario_names", "num_scenarios")):
            self._require(getattr(self, count) >= 1, count, "a whole number of at least 1")
            listed = getattr(self, names)
            self._require(
                len(listed) == getattr(self, count) == len(set(listed)),
                names,
                f"{getattr(self, count)} different names ({count}={getattr(self, count)})",
            )
        for kind in ("item", "user"):
            sizes, names = f"{kind}_feature_vocab_sizes", f"{kind}_feature_names"
            self._require(
                all(size >= 2 for size in getattr(self, sizes)),
                sizes,
                "sizes of at least 2: padding and out-of-vocabulary",
            )
            listed = getattr(self, names)
            count = len(getattr(self, sizes))
            self._require(len(listed) == count == len(set(listed)), names, f"{count} different names (see {sizes})")
        self._require(self.num_statistics >= 0, "num_statistics", "a whole number of at least 0")
        self._require(
            self.max_history_length is None or self.max_history_length >= 1,
            "max_history_length",
            "at least 1, or None",
        )
        names = self.task_names
        self._require(bool(names) and len(set(names)) == len(names), "task_names", "a list of different names")
        weights = self.task_weights
        self._require(
            len(weights) == len(names) and all(0 <= weight < float("inf") for weight in weights) and any(weights),
            "task_weights",
            f"one number of at least 0 for each of the {len(names)} tasks, not all 0",
        )
        self._require(self.initializer_range > 0, "initializer_range", "a number above 0")
