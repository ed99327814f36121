"""Base of the library's configurations: unknown keys are errors that offer the nearest known key."""

import os
from collections.abc import Callable, Iterable
from dataclasses import field, fields
from functools import wraps
from math import isfinite
from typing import Any, ClassVar

from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN

from lmctr.utils.files import local_paths_cut
from lmctr.utils.hub_uploads import upload_modified_files
from lmctr.utils.in_package import stays_in_package
from lmctr.utils.suggest import unknown_key_message
from lmctr.utils.values import type_error_of, without_numpy

# Keys outside the dataclass fields that transformers' own base class and Trainer consume or write, in 5.17 to 5.24
# (the Trainer of 5.17 writes the tokenizer's special ids into the outermost config).
_BASE_KEYS = frozenset(
    [
        "attn_implementation", "auto_map", "bos_token_id", "dtype", "eos_token_id", "experts_implementation", "model_type",
        "name_or_path", "num_labels", "output_attentions", "pad_token_id", "per_layer_config", "quantization_config", "torch_dtype",
        "transformers_version", "use_cache",
    ]
)  # fmt: skip


class NeverAccepted(ValueError):
    """A value of a configuration that is refused whatever the data are."""

    def __init__(self, config: str, key: str, value: Any, accepted: str) -> None:
        super().__init__(config, key, value, accepted)
        self.config, self.key, self.value, self.accepted = config, key, value, accepted

    def __str__(self) -> str:
        return f"{self.config}: {self.key}={self.value!r} is not accepted; use {self.accepted}"


def own_keys(config: PreTrainedConfig) -> list[str]:
    """The keys that a configuration has beside those of transformers' own class."""
    base = {field.name for field in fields(PreTrainedConfig)}
    return [field.name for field in fields(config) if field.name not in base]


def _of_right_types(check: Callable[..., None]) -> Callable[..., None]:
    """`__post_init__` that may take every value to be of the type that its annotation says: numpy's numbers become Python's, which JSON
    has, and another type is told before it is called."""

    @wraps(check)
    def checked(self: Any, **kwargs: Any) -> None:
        if type(self).__post_init__ is checked:  # once, in the family's own
            own = own_keys(self)
            for name in own:
                setattr(self, name, without_numpy(getattr(self, name)))
            wrong = type_error_of(self, own)
            if wrong is not None:
                raise ValueError(f"{type(self).__name__}: {wrong}")
            for name in own:
                self._require(not _is_beyond(getattr(self, name)), name, "whole numbers of at most 64 bits")
        check(self, **kwargs)

    return checked


def _is_beyond(value: Any) -> bool:
    """Whether a value, or one in a list or mapping, is a whole number beyond 64 bits, which no size of a tensor can be."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(_is_beyond, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(2**63) <= value < 2**63


class CTRConfig(PreTrainedConfig):
    """Base configuration of every lmctr family.

    A key that no family member declares raises `ValueError` with the nearest known key, both when a config is built
    in Python and when it is read from `config.json`.

    Args:
        soft_labels (`bool`, defaults to `False`): whether labels may be probabilities between 0 and 1, not only 0 and 1.
        boosted_trees (`dict`, *optional*): boosted trees beside the network, where it has a linear way from statistics to the logits, or fields
            of a table (`training.boosting_share`): how many `trees` a task has, their `leaves` at most, their `share` in the logits, and, on
            fields, `rated_fields`, the places of the categorical ones whose values they know by their rates, of pairs of them, and, behind these places, of lists.
        calibration (`list`, *optional*): what is added to the logits of each task, found on validation (`training.calibration`).
        processor_fingerprint (`str`, *optional*): `fingerprint` of the processor whose ids the weights know; one with another is refused
            where both are loaded together.

    Attributes:
        keys_shared_with_processor: keys that the processor holds too, with the same values in every folder.
        has_tokenizer: whether the processor holds a tokenizer.
        task_names: what the model predicts, in the order of its logits; None for one thing without a name.
    """

    register_for_auto_class = classmethod(stays_in_package)
    _upload_modified_files = upload_modified_files
    keys_shared_with_processor: ClassVar[tuple[str, ...]] = ()
    has_tokenizer: ClassVar[bool] = False
    task_names: ClassVar[list[str] | None] = None

    soft_labels: bool = False
    boosted_trees: dict[str, int | float | list[int | list[int]]] | None = None
    calibration: list[float] | None = None
    processor_fingerprint: str | None = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "__post_init__" in vars(cls):
            cls.__post_init__ = _of_right_types(cls.__post_init__)

    @_of_right_types
    def __post_init__(self, **kwargs):
        known = {field.name for field in fields(self)}
        generation = GenerationConfig._get_default_generation_params()
        for key in kwargs:
            if key in known or key in _BASE_KEYS or key in generation or key.startswith("_"):
                continue
            raise ValueError(unknown_key_message(key, sorted(own_keys(self)), type(self).__name__))
        if isinstance(self.dtype, str):
            import torch

            is_dtype = isinstance(getattr(torch, self.dtype, None), torch.dtype)
            self._require(is_dtype, "dtype", "a torch.dtype or its name, such as 'bfloat16'")
        super().__post_init__(**kwargs)
        self._require(  # 1 and 2: what transformers has for one logit of yes or no
            self.num_labels in (1, 2, len(self.task_names or [])),
            "num_labels",
            f"1 or 2: a logit per task ({', '.join(self.task_names or ['click'])}); name more in task_names, where the family has it",
        )
        self._require(self.return_dict, "return_dict", "True; forward(..., return_dict=False) gives a tuple")
        sizes = self.boosted_trees
        self._require(
            sizes is None
            or (
                set(sizes) - {"rated_fields"} == {"trees", "leaves", "share"}
                and sizes["trees"] in range(1, 10_001)
                and sizes["leaves"] in range(2, 32)
                and 0 <= sizes["share"] <= 1
                and all(
                    place
                    in range(
                        len(getattr(self, "vocab_sizes", None) or ())
                        + (0 if is_pair else getattr(self, "num_sequences", 0))
                    )
                    for own in sizes.get("rated_fields", ())
                    for is_pair in [isinstance(own, list) and len(own) == 2]
                    for place in (own if is_pair else [own])
                )
            ),
            "boosted_trees",
            "None, or trees (1 to 10,000), leaves (2 to 31), share (0 to 1) and, of a table, rated_fields (places of categorical fields, of two, or of lists)",
        )
        tasks = len(self.task_names or ("click",))
        self._require(
            self.calibration is None or (len(self.calibration) == tasks and all(map(isfinite, self.calibration))),
            "calibration",
            f"None, or a finite number for each task, here {tasks}",
        )
        self.validate_values()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs) -> "CTRConfig":
        """As in the parent, but the configuration of another family is an error. Raises `ValueError` that names it."""
        found = config_dict.get("model_type")
        if cls.model_type and found is not None and found != cls.model_type:
            raise ValueError(
                f"this checkpoint is {found}, and {cls.__name__} is of {cls.model_type}; use AutoModelForCTR (or AutoConfig), which "
                "reads any family"
            )
        # An Auto class hands on what its model takes: there `variant` is the file of the weights, which a key of two families is called too.
        of_weights = {"variant": kwargs.pop("variant")} if {"return_unused_kwargs", "variant"} <= set(kwargs) else {}
        checked = [*own_keys(cls), "return_dict"]  # which the parent would set unchecked
        given = {key: kwargs.pop(key) for key in checked if key in kwargs}
        for key in set(given) & set(cls.sub_configs):
            if isinstance(given[key], dict):
                given[key] = {**(config_dict.get(key) or {}), **given[key]}
        found = super().from_dict({**config_dict, **given}, **kwargs)
        if of_weights:
            found[1].update(of_weights)
        return found

    def save_pretrained(self, save_directory: str | os.PathLike, *args, **kwargs) -> None:
        """As in the parent. Raises `ValueError` for what could not be read again: an attribute that is no key, a value that is not accepted."""
        type(self).from_dict(self.to_dict())
        super().save_pretrained(save_directory, *args, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """As in the parent, without what is true of one place only: the folder that a backbone was loaded from, and the `auto_map` of a
        download, whose file `lmctr push` alone writes."""
        values = local_paths_cut(super().to_dict())
        values.pop("auto_map", None)
        return values

    def validate_values(self) -> None:
        """Check the values of the family's keys. Raises `ValueError` that names the key."""

    def _require_whole(self, *keys: str, least: int = 1) -> None:
        for key in keys:
            self._require(getattr(self, key) >= least, key, f"a whole number of at least {least}", alone=True)

    def _require_above_zero(self, *keys: str) -> None:
        for key in keys:
            self._require(getattr(self, key) > 0, key, "a number above 0", alone=True)

    def _require_share(self, *keys: str) -> None:
        for key in keys:
            self._require(0.0 <= getattr(self, key) < 1.0, key, "a number in [0, 1)", alone=True)

    def _require_choice(self, key: str, accepted: Iterable[str]) -> None:
        self._require(getattr(self, key) in accepted, key, f"one of {', '.join(accepted)}", alone=True)

    def _require_activation(self, key: str = "hidden_act") -> None:
        self._require_choice(key, sorted(ACT2FN))

    def _require_whole_heads(self) -> None:
        self._require_whole("num_attention_heads", "hidden_size")
        heads = self.num_attention_heads
        fits = self.hidden_size % heads == 0
        self._require(fits, "hidden_size", f"a multiple of num_attention_heads={heads}", alone=True)

    def _require_widths(self, *keys: str, may_be_empty: bool = False, empty: str = "nothing") -> None:
        """Lists of widths of layers."""
        accepted = "a list of widths of at least 1" + (f", or [] for {empty}" if may_be_empty else ", at least one")
        for key in keys:
            widths = getattr(self, key)
            fits = all(width >= 1 for width in widths)
            self._require(fits and (may_be_empty or bool(widths)), key, accepted, alone=True)

    def _require_vocabularies(self, *keys: str) -> None:
        """Lists of sizes of vocabularies."""
        for key in keys:
            fits = all(size >= 2 for size in getattr(self, key))
            self._require(fits, key, "sizes of at least 2: padding and out-of-vocabulary")

    def _require_tasks(self, names: list[str]) -> None:
        """`task_names`, and a weight of each in `task_weights`."""
        self._require(bool(names) and len(set(names)) == len(names), "task_names", "a list of different names")
        weights = self.task_weights
        self._require(
            len(weights) == len(names) and all(0 <= weight < float("inf") for weight in weights) and any(weights),
            "task_weights",
            f"one number of at least 0 for each of the {len(names)} tasks, not all 0",
        )

    def _require_names(self, key: str, count: int, of: str) -> None:
        """A list of `count` different names."""
        names = getattr(self, key)
        self._require(len(names) == count == len(set(names)), key, f"{count} different names{of}")

    def _require_tables(self, key: str, count: int, num_fields: int, num_own: int, fields: str, own: str) -> None:
        """For each of `count` sequences the vocabulary that it reads: one of a field, or one of its own."""
        tables = getattr(self, key)
        num_tables = num_fields + num_own
        self._require(
            len(tables) == count and all(0 <= table < num_tables for table in tables),
            key,
            f"one index from 0 to {num_tables - 1} for each of the {count} sequences: {fields}, or {num_fields} + j for {own}[j]",
        )
        unread = sorted(set(range(num_fields, num_tables)) - set(tables))
        self._require(not unread, key, f"a list in which every own vocabulary occurs; {unread} do not")

    def _require(self, condition: bool, key: str, accepted: str, alone: bool = False) -> None:
        """alone: what is accepted does not depend on data."""
        if not condition:
            error = NeverAccepted(type(self).__name__, key, getattr(self, key), accepted)
            raise error if alone else ValueError(str(error))


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
        item_feature_widths (`list[int]`, *optional*): how many ids each of them has, side by side: more than 1 of a list, the mean of whose
            values' embeddings is read; default 1 for each. `user_feature_widths`: the same for features of the user.
        user_feature_vocab_sizes (`list[int]`, *optional*): the same for features of the user. `user_feature_names` names them.
        num_statistics (`int`, defaults to 0): float columns that describe a candidate in its context (counts, rates).
        use_statistics_skip (`bool`, defaults to `True`): a linear map from the statistics straight to the logits, beside the
            final network that reads them too; it starts at zero.
        max_history_length (`int`, *optional*): latest events of a user that a row holds; `None`: the whole lifetime.
            A record of what the processor builds.
        task_names (`list[str]`, *optional*): one logit per task; default `["click"]`.
        task_weights (`list[float]`, *optional*): factor of each task's loss; default 1 for each.
        initializer_range (`float`, defaults to 0.02): standard deviation of new weights.
    """

    item_vocab_size: int = 1000
    num_behaviors: int = 3
    num_scenarios: int = 1
    behavior_names: list[str] | None = None
    scenario_names: list[str] | None = None
    item_feature_vocab_sizes: list[int] | None = None
    item_feature_names: list[str] | None = None
    item_feature_widths: list[int] | None = None
    user_feature_vocab_sizes: list[int] | None = None
    user_feature_names: list[str] | None = None
    user_feature_widths: list[int] | None = None
    num_statistics: int = 0
    use_statistics_skip: bool = True
    max_history_length: int | None = None
    task_names: list[str] | None = None
    task_weights: list[float | int] | None = None
    initializer_range: float = 0.02

    default_head_sizes = ()  # of a family whose key `head_hidden_sizes` may be None

    def __post_init__(self, **kwargs):
        if self.default_head_sizes and self.head_hidden_sizes is None:
            self.head_hidden_sizes = list(self.default_head_sizes)
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
        for side in ("item", "user"):
            if getattr(self, f"{side}_feature_widths") is None:
                setattr(self, f"{side}_feature_widths", [1] * len(getattr(self, f"{side}_feature_vocab_sizes")))
        if self.task_names is None:
            self.task_names = ["click"]
        if self.task_weights is None:
            self.task_weights = [1.0] * len(self.task_names)
        super().__post_init__(**kwargs)

    @property
    def num_tasks(self) -> int:
        """T, the number of logits per candidate."""
        return len(self.task_names)

    def feature_sizes(self, side: str) -> list[int]:
        """Size of the vocabulary of each column of ids of features of "item" or "user"."""
        sizes, widths = (getattr(self, f"{side}_feature_{what}") for what in ("vocab_sizes", "widths"))
        return [size for size, width in zip(sizes, widths) for _ in range(width)]

    def validate_values(self) -> None:
        self._require(self.item_vocab_size >= 2, "item_vocab_size", "at least 2: padding and out-of-vocabulary")
        for names, key in (("behavior_names", "num_behaviors"), ("scenario_names", "num_scenarios")):
            self._require_whole(key)
            self._require_names(names, getattr(self, key), f" ({key}={getattr(self, key)})")
        for kind in ("item", "user"):
            sizes = f"{kind}_feature_vocab_sizes"
            self._require_vocabularies(sizes)
            self._require_names(f"{kind}_feature_names", len(getattr(self, sizes)), f" (see {sizes})")
            widths = f"{kind}_feature_widths"
            counts = getattr(self, widths)
            fits = len(counts) == len(getattr(self, sizes)) and all(count >= 1 for count in counts)
            self._require(fits, widths, f"a whole number of at least 1 for each of {sizes}")
        self._require_whole("num_statistics", least=0)
        longest = self.max_history_length
        self._require(longest is None or longest >= 1, "max_history_length", "at least 1, or None")
        self._require_tasks(self.task_names)
        self._require_above_zero("initializer_range")

    def _validate_layers(
        self, positive: tuple[str, ...] = (), sizes: tuple[str, ...] = ("head_hidden_sizes",)
    ) -> None:
        """Check keys that families share: whole numbers of at least 1, lists of layer sizes, and `dropout`."""
        self._require_whole(*positive)
        self._require_widths(*sizes)
        self._require_share("dropout")


class TabularCTRConfig(CTRConfig):
    r"""Shared configuration of the tabular families: rows of fields.

    The fields of a row, in this order everywhere: the categorical ones (`vocab_sizes`; binned numerics count here), the
    raw numeric ones (`num_numeric`), the sequences (`num_sequences`). Ids are local to their field.

    Args:
        vocab_sizes (`list[int]`): ids of each categorical field, padding (0) and out-of-vocabulary (1) included.
        num_numeric (`int`, defaults to 0): numeric fields, given as float values.
        embedding_dim (`int` or `list[int]`, defaults to 16):
            Width of the fields' vectors: one for all, or one per field in the order of `field_names`.
        field_names (`list[str]`, *optional*): a name per field; default `"C0"`, ..., `"N0"`, ..., `"S0"`, ...
        num_sequences (`int`, defaults to 0): fields whose value is a list of ids.
        sequence_tables (`list[int]`, *optional*):
            The vocabulary that each sequence reads. An index below `len(vocab_sizes)` shares that categorical field's
            ids and vectors; `len(vocab_sizes) + j` is the sequences' own vocabulary j.
        sequence_vocab_sizes (`list[int]`, *optional*): sizes of the vocabularies that only sequences read.
        numeric_encoding (`str`, defaults to `"linear"`):
            How a number x becomes a vector: `"linear"`, x w + b; `"vector"`, x w, as AutoInt's and the factorisation machines' papers have
            it; w and b are learned per field.
        embedding_regularization (`float` or `list[float]`, defaults to 0.0):
            Strength of the L2 penalty on the vectors that a training batch reads, for all fields or one per field:
            half the strength times the squared norm of the field's vector, averaged over the rows like the loss.
        regularize_tables (`bool`, defaults to `False`):
            The penalty is on whole tables instead, as in the BARS benchmark's code: half the strength times the squared norm of all
            vectors of a field's vocabulary, in the loss of every batch. So rare values are pulled as hard as frequent ones. Numeric
            fields and vectors made elsewhere have none then.
        unknown_share (`dict[str, float]`, *optional*):
            By name of a categorical field, the share of its ids that a training batch takes as unknown (id 1), drawn anew for each row,
            so that rows of new users or items are scored by what else is known of them (as DropoutNet, Volkovs et al., NeurIPS 2017).
        sparse_embedding_grad (`bool`, defaults to `False`):
            Gradients of the tables as sparse COO tensors that hold the rows of the batch only.
        initializer_range (`float`, defaults to 0.01): standard deviation of new embedding rows.
        numeric_initializer_range (`float`, *optional*):
            Standard deviation of new weights w of numeric fields; biases b get twice as much, because numbers after `log1p` are
            about 2. Default: `initializer_range`, and at least 0.03 (b: 0.06) in DNN, DCNv2 and Wukong, 0.08 in FFM, which learn
            sooner so. In factorisation machines over all fields such numbers drown the other products.
        use_numeric_skip (`bool`, defaults to `False`): a linear map from the numeric fields straight to the logit, beside the network
            that reads them too; boosted trees (`training.boosting_share`) read these fields alone then, and not all of the row. Where the logit is a linear map of hidden
            states and nothing else (DNN, DCNv2, HiFormer, Wukong) it starts as `training.linear_start` says, else at zero.
        pretrained_dims (`dict[str, int]`, *optional*):
            By name of a categorical field, the width of vectors made elsewhere that stand in place of learned ones, see
            [`~lmctr.models.common.embeddings.PretrainedVectors`].
        trained_vectors (`list[str]`, *optional*): those of them whose vectors are trained too; the others stay as they are.
        task_names (`list[str]`, *optional*): the labels of a row, one logit each; default: one label without a name.
        task_weights (`list[float]`, *optional*): factor of each task's loss; default 1 for each.
        task_head (`str`, defaults to `"shared_bottom"`):
            What several tasks read of the representation, see [`lmctr.models.common.tasks`]: `"shared_bottom"` all of it, `"mmoe"` a
            mixture of shared experts by a gate of each task, `"ple"` shared experts and each task's own, `"esmm"` as
            `"shared_bottom"`, each task being meant given the one before it, so that its probability is the product of all up to it.
        task_units (`list[int]`, defaults to `[64]`): width of each layer of a task's tower; `[]` for a linear one.
        task_dropout (`float`, defaults to 0.0): after each of these layers.
        task_expert_units (`list[int]`, defaults to `[128]`): width of each layer of an expert.
        num_task_experts (`int`, defaults to 4): experts that all tasks share.
        num_own_experts (`int`, defaults to 2): for `"ple"`, experts of each task.
        num_task_levels (`int`, defaults to 1): for `"ple"`, levels of experts; 1 is CGC.
    """

    task_heads = ("shared_bottom", "mmoe", "ple", "esmm")
    numeric_encodings = ("linear", "vector")  # what the family accepts
    least_numeric_range: ClassVar[float] = 0.0

    vocab_sizes: list[int] | None = None
    num_numeric: int = 0
    embedding_dim: int | list[int] = 16
    field_names: list[str] | None = None
    num_sequences: int = 0
    sequence_tables: list[int] | None = None
    sequence_vocab_sizes: list[int] | None = None
    numeric_encoding: str = "linear"
    embedding_regularization: float | int | list[float | int] = 0.0
    regularize_tables: bool = False
    unknown_share: dict[str, float | int] | None = None
    sparse_embedding_grad: bool = False
    initializer_range: float = 0.01
    numeric_initializer_range: float | None = None
    use_numeric_skip: bool = False
    pretrained_dims: dict[str, int] | None = None
    trained_vectors: list[str] | None = None
    task_names: list[str] | None = None
    task_weights: list[float | int] | None = None
    task_head: str = "shared_bottom"
    task_units: list[int] = field(default_factory=lambda: [64])
    task_dropout: float | int = 0.0
    task_expert_units: list[int] = field(default_factory=lambda: [128])
    num_task_experts: int = 4
    num_own_experts: int = 2
    num_task_levels: int = 1

    def __post_init__(self, **kwargs):
        if self.task_weights is None:
            self.task_weights = [1.0] * self.num_tasks
        self.vocab_sizes = list(self.vocab_sizes or [])
        self.sequence_tables = list(self.sequence_tables or [])
        self.sequence_vocab_sizes = list(self.sequence_vocab_sizes or [])
        if self.field_names is None:
            kinds = (("C", len(self.vocab_sizes)), ("N", self.num_numeric), ("S", self.num_sequences))
            self.field_names = [f"{kind}{index}" for kind, count in kinds for index in range(count)]
        super().__post_init__(**kwargs)

    @property
    def num_tasks(self) -> int:
        """T, the number of logits per row."""
        return len(self.task_names or [""])

    @property
    def num_fields(self) -> int:
        """Categorical, numeric and sequence fields together."""
        return len(self.vocab_sizes) + self.num_numeric + self.num_sequences

    @property
    def field_dims(self) -> list[int]:
        """The width of each field's vector, in the order of `field_names`."""
        return self._per_field(self.embedding_dim)

    @property
    def field_regularization(self) -> list[float]:
        """The strength of each field's penalty, in the order of `field_names`."""
        return [float(strength) for strength in self._per_field(self.embedding_regularization)]

    def _per_field(self, value: float | list[float]) -> list[float]:
        return [value] * self.num_fields if isinstance(value, (int, float)) else list(value)

    def validate_values(self) -> None:
        self._require_vocabularies("vocab_sizes", "sequence_vocab_sizes")
        self._require_whole("num_numeric", "num_sequences", least=0)
        per_field = f"a list of one per field ({self.num_fields} fields)"
        self._require_counts("embedding_dim", self.field_dims, f"a whole number of at least 1, or {per_field}")
        num_categorical = len(self.vocab_sizes)
        kinds = (
            f": {num_categorical} categorical fields (vocab_sizes), {self.num_numeric} numeric ones (num_numeric), "
            f"{self.num_sequences} sequences (num_sequences)"
        )
        self._require_names("field_names", self.num_fields, kinds)
        own = len(self.sequence_vocab_sizes), "a categorical field", "sequence_vocab_sizes"
        self._require_tables("sequence_tables", self.num_sequences, num_categorical, *own)
        self._require_one_width_per_vocabulary()
        self._require_choice("numeric_encoding", self.numeric_encodings)
        strengths = self.field_regularization
        self._require(
            len(strengths) == self.num_fields and all(0 <= strength < float("inf") for strength in strengths),
            "embedding_regularization",
            f"a number of at least 0, or {per_field}",
        )
        self._require(
            not (self.regularize_tables and self.sparse_embedding_grad),
            "regularize_tables",
            "false where tables are trained sparsely (training.embedding_optimizer): it moves every row in every step",
        )
        names = self.field_names[:num_categorical]
        self._require(
            all(name in names and 0 <= share < 1 for name, share in (self.unknown_share or {}).items()),
            "unknown_share",
            f"shares from 0 to below 1 by name of a categorical field ({', '.join(names)})",
        )
        self._require_tasks(["label"] if self.task_names is None else self.task_names)
        self._require_choice("task_head", self.task_heads)
        is_chain = self.task_head == "esmm"
        self._require(
            not is_chain or self.num_tasks > 1, "task_head", "another one: esmm needs two task_names or more"
        )
        self._require_widths("task_units", may_be_empty=True, empty="a linear tower")
        self._require_widths("task_expert_units")
        self._require_share("task_dropout")
        self._require_whole("num_task_experts", "num_own_experts", "num_task_levels")
        given, shared = (
            self.pretrained_dims or {},
            {names[table] for table in self.sequence_tables if table < len(names)},
        )
        self._require(
            all(name in names and name not in shared and dim >= 1 for name, dim in given.items()),
            "pretrained_dims",
            f"widths of at least 1 by name of a categorical field ({', '.join(names)}) whose vocabulary no sequence reads",
        )
        self._require(set(self.trained_vectors or ()) <= set(given), "trained_vectors", "names of pretrained_dims")
        self._require_above_zero("initializer_range")
        if self.numeric_initializer_range is not None:
            self._require_above_zero("numeric_initializer_range")

    @property
    def numeric_deviations(self) -> tuple[float, float]:
        """Standard deviations of new weights and biases of numeric fields."""
        if self.numeric_initializer_range is not None:
            return self.numeric_initializer_range, 2 * self.numeric_initializer_range
        least = self.least_numeric_range
        return max(self.initializer_range, least), max(self.initializer_range, 2 * least)

    def _require_counts(self, key: str, counts: list[int], accepted: str) -> None:
        """A whole number of at least 1 for each field."""
        fits = all(count >= 1 for count in counts)
        self._require(len(counts) == self.num_fields and fits, key, accepted)

    def _validate_mlp(self, *keys: str, may_be_empty: bool = False) -> None:
        """Check the keys that families with an MLP share: `hidden_units` and other widths, `hidden_act`, `dropout`."""
        self._require_widths("hidden_units", *keys, may_be_empty=may_be_empty, empty="no MLP")
        self._require_activation()
        self._require_share("dropout")

    def _require_one_width_per_vocabulary(self) -> None:
        dims, first = self.field_dims, len(self.vocab_sizes) + self.num_numeric
        widths = dict(enumerate(dims[: len(self.vocab_sizes)]))
        for table, dim, name in zip(self.sequence_tables, dims[first:], self.field_names[first:]):
            self._require(
                widths.setdefault(table, dim) == dim,
                "embedding_dim",
                f"one width for everything that reads one vocabulary: field {name!r} has {dim} and its vocabulary {table} has "
                f"{widths[table]}",
            )


class MLPTabularConfig(TabularCTRConfig):
    r"""Configuration of the tabular families with an MLP on the fields' vectors.

    Args:
        hidden_units (`list[int]`, defaults to `[400, 400, 400]`):
            Width of each layer of the MLP. Where a family takes `[]`, no MLP, the three keys below change nothing then.
        hidden_act (`str`, defaults to `"relu"`): activation of the MLP, a name that transformers knows.
        dropout (`float`, defaults to 0.0): after each activation of the MLP.
        use_batch_norm (`bool`, defaults to `False`): before each activation of the MLP.
    """

    mlp_may_be_empty: ClassVar[bool] = False

    hidden_units: list[int] = field(default_factory=lambda: [400, 400, 400])
    hidden_act: str = "relu"
    dropout: float | int = 0.0
    use_batch_norm: bool = False

    def validate_values(self) -> None:
        super().validate_values()
        self._validate_mlp(may_be_empty=self.mlp_may_be_empty)


class RetrievalConfig(CTRConfig):
    r"""Shared configuration of the retrieval families: a user, and the ads of an impression.

    The fields of a side, in this order everywhere: the categorical ones, the numeric ones, the sequences (of users only). Ids are local
    to their field; 0 = padding, 1 = out-of-vocabulary. Every categorical field and every sequence becomes a vector of
    `embedding_dim` numbers, a numeric field enters as the number that the processor gives (log1p of a statistic, say): the input of a
    side is `embedding_dim` x (categorical fields + sequences) + numeric fields wide. The paper's 3328 is 16 x 200 + 128.

    Args:
        user_vocab_sizes, ad_vocab_sizes (`list[int]`): ids of each categorical field, padding and out-of-vocabulary included.
        user_num_numeric, ad_num_numeric (`int`, defaults to 0): numeric fields.
        user_field_names, ad_field_names (`list[str]`, *optional*):
            A name per field; default `"user_C0"`, ..., `"user_N0"`, ..., `"user_S0"`, ..., and `"ad_C0"`, ...
        user_num_sequences (`int`, defaults to 0): fields of the user whose value is a list of ids; it becomes the mean of their vectors.
        user_sequence_tables (`list[int]`, *optional*):
            The vocabulary that each sequence reads: an index into `user_vocab_sizes + ad_vocab_sizes` shares that field's ids and vectors
            (clicked ads read the field of the ad's id); the number of these fields + j is the sequences' own vocabulary j.
        user_sequence_vocab_sizes (`list[int]`, *optional*): sizes of the vocabularies that only sequences read.
        embedding_dim (`int`, defaults to 16): width of every field's vector.
        hidden_units (`list[int]`, defaults to `[1024, 256, 256, 256]`): widths of the hidden layers of the foundation MLP.
        sparse_embedding_grad (`bool`, defaults to `False`):
            Gradients of the table as sparse COO tensors that hold the rows of the batch only.
        initializer_range (`float`, defaults to 0.01): standard deviation of new embedding rows.
        loss (`str`, defaults to `"arf"`):
            `"arf"` (Eq. 2-4), `"bce"` (pointwise), `"pairwise"` (logistic) or `"list"` (softmax), see
            [`~lmctr.models.common.impressions.ImpressionLoss`].
        arf_top_m (`int`, defaults to 10): ads that the model passes on, m of ARF.
        arf_top_k (`int`, *optional*): wanted ads, k of ARF, at most m; default m.
        arf_tau (`float`, defaults to 1.0): temperature of NeuralSort on the scores.
        arf_target_tau (`float`, *optional*): temperature of NeuralSort on the rank indices; default `arf_tau`.
        positive_from (`float`, *optional*): the rank index v from which an ad is positive; `"bce"` and `"list"` need it.
    """

    losses = ("arf", "bce", "pairwise", "list")

    user_vocab_sizes: list[int] | None = None
    user_num_numeric: int = 0
    user_field_names: list[str] | None = None
    user_num_sequences: int = 0
    user_sequence_tables: list[int] | None = None
    user_sequence_vocab_sizes: list[int] | None = None
    ad_vocab_sizes: list[int] | None = None
    ad_num_numeric: int = 0
    ad_field_names: list[str] | None = None
    embedding_dim: int = 16
    hidden_units: list[int] | None = None
    sparse_embedding_grad: bool = False
    initializer_range: float = 0.01
    loss: str = "arf"
    arf_top_m: int = 10
    arf_top_k: int | None = None
    arf_tau: float | int = 1.0
    arf_target_tau: float | int | None = None
    positive_from: float | int | None = None

    def __post_init__(self, **kwargs):
        for key in ("user_vocab_sizes", "ad_vocab_sizes", "user_sequence_tables", "user_sequence_vocab_sizes"):
            setattr(self, key, list(getattr(self, key) or []))
        self.hidden_units = [1024, 256, 256, 256] if self.hidden_units is None else list(self.hidden_units)
        for side, counts in self._field_counts().items():
            if getattr(self, f"{side}_field_names") is None:
                names = [f"{side}_{kind}{index}" for kind, count in zip("CNS", counts) for index in range(count)]
                setattr(self, f"{side}_field_names", names)
        super().__post_init__(**kwargs)

    def _field_counts(self) -> dict[str, tuple[int, int, int]]:
        """Categorical, numeric and sequence fields of each side."""
        return {
            "user": (len(self.user_vocab_sizes), self.user_num_numeric, self.user_num_sequences),
            "ad": (len(self.ad_vocab_sizes), self.ad_num_numeric, 0),
        }

    @property
    def user_size(self) -> int:
        """U, the width of the user's input."""
        categorical, numeric, sequences = self._field_counts()["user"]
        return self.embedding_dim * (categorical + sequences) + numeric

    @property
    def ad_size(self) -> int:
        """A, the width of an ad's input."""
        return self.embedding_dim * len(self.ad_vocab_sizes) + self.ad_num_numeric

    def validate_values(self) -> None:
        self._require_vocabularies("user_vocab_sizes", "ad_vocab_sizes", "user_sequence_vocab_sizes")
        self._require_whole("user_num_numeric", "user_num_sequences", "ad_num_numeric", least=0)
        for side, (categorical, numeric, sequences) in self._field_counts().items():
            kinds = f": {categorical} categorical, {numeric} numeric, {sequences} sequence fields"
            self._require_names(f"{side}_field_names", categorical + numeric + sequences, kinds)
        num_fields = len(self.user_vocab_sizes) + len(self.ad_vocab_sizes)
        fields = "a field of user_vocab_sizes + ad_vocab_sizes"
        own = len(self.user_sequence_vocab_sizes), fields, "user_sequence_vocab_sizes"
        self._require_tables("user_sequence_tables", self.user_num_sequences, num_fields, *own)
        self._require(self.embedding_dim >= 1, "embedding_dim", "a whole number of at least 1, for all fields")
        self._require_widths("hidden_units")
        self._require_above_zero("initializer_range")
        self._require_choice("loss", self.losses)
        self._require(self.calibration is None, "calibration", "None: the logits rank ads, and are no log-odds")
        self._require_whole("arf_top_m")
        self._require(
            self.arf_top_k is None or 1 <= self.arf_top_k <= self.arf_top_m,
            "arf_top_k",
            f"a whole number from 1 to arf_top_m={self.arf_top_m}, or None for arf_top_m",
        )
        for key in ("arf_tau", "arf_target_tau"):
            value = getattr(self, key)
            self._require((value is None and key != "arf_tau") or 0 < value < float("inf"), key, "a number above 0")
        if self.loss in ("bce", "list"):
            self._require(
                self.positive_from is not None and self.positive_from == self.positive_from,
                "positive_from",
                f'the rank index v from which an ad is positive, which loss="{self.loss}" needs',
            )
