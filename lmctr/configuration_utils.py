"""Base of the library's configurations: unknown keys are errors that offer the nearest known key."""

from dataclasses import fields

from transformers import GenerationConfig, PreTrainedConfig

from .utils.suggest import unknown_key_message

__all__ = ["CTRConfig"]

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
