"""Recipes: one YAML file of three groups (data, model, training), read strictly and overridden from the command line.

A recipe may start from another one, its `base`, and set only what differs.

Nothing is guessed: an unknown key, a value of the wrong type or a doubled key is an error that names the key, the
file, the value and what is accepted.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import yaml

from lmctr.models.families import DEFAULT_FAMILY, families
from lmctr.utils import files
from lmctr.utils.resources import find_resource
from lmctr.utils.suggest import unknown_key_message

GROUPS = ("data", "model", "training")

# Training arguments that lmctr decides itself, and where a user should look instead.
SET_BY_LMCTR = {
    "num_train_epochs": "set training.stage1_epochs and training.stage2_epochs; their sum is trained",
    "label_names": "lmctr sets it",
    "remove_unused_columns": "lmctr sets it",
    "push_to_hub": "train first, then run `lmctr push RUN user/name`",
    "resume_from_checkpoint": "use `lmctr train RECIPE --resume`",
    **dict.fromkeys(("do_train", "do_eval", "do_predict", "length_column_name"), "it has no effect here"),
    **dict.fromkeys(
        ("hub_token", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision"),
        "train first, then run `lmctr push RUN user/name`",
    ),
    **dict.fromkeys(
        ("prediction_loss_only", "batch_eval_metrics", "eval_do_concat_batches", "include_for_metrics"),
        "metrics are exact and computed from all scores",
    ),
    "dataloader_drop_last": "each sample is seen exactly once per epoch",
    "auto_find_batch_size": "set training.per_device_train_batch_size and training.gradient_accumulation_steps",
    "label_smoothing_factor": "the loss is binary cross-entropy of 0/1 labels",
    "local_rank": "the launcher sets it",
}
# Training values that a recipe written to a run folder states even when the user left them at their default.
_ALWAYS_WRITTEN = (
    "stage1_epochs",
    "stage2_epochs",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "optim",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "length_group_batches",
    "eval_strategy",
    "save_strategy",
    "eval_steps",
    "save_steps",
    "metric_for_best_model",
    "early_stopping_patience",
    "early_stopping_threshold",
    "lora",
    "bf16",
    "fp16",
    "seed",
)


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the key, the file, the value and what is accepted."""


@dataclass
class Recipe:
    """A checked recipe.

    Args:
        data: the data group with every default filled in.
        model: the model group, likewise.
        training: the training group as given (keys and types checked, defaults of the training arguments left out).
        source: what to call the recipe in messages, normally its path.
    """

    data: dict[str, Any]
    model: dict[str, Any]
    training: dict[str, Any]
    source: str = "recipe"

    def resolved(self) -> dict[str, dict[str, Any]]:
        """Every value of the recipe, as plain YAML types; reading it back gives the same recipe."""
        defaults = {key: default for key, (_, default) in training_keys().items()}
        training = {key: _plain(defaults[key]) for key in _ALWAYS_WRITTEN if key in defaults}
        training.update({key: _plain(value) for key, value in self.training.items() if key != "output_dir"})
        return {"data": _plain(self.data), "model": _plain(self.model), "training": training}

    def save(self, path: str | Path) -> None:
        """Write the resolved recipe as YAML, whole or not at all: a run that is killed meanwhile can still be resumed."""
        text = yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True, default_flow_style=None)
        files.write_text(path, text)


def load_recipe(
    name: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | typing.Sequence[tuple[str, str]] = (),
    require_all: bool = True,
) -> Recipe:
    """Read, override and check a recipe.

    Args:
        name: path of a YAML file, or the name of a recipe that ships with lmctr
            (`recipes/ctr_sink/quickstart.yaml`, `ctr_sink/quickstart`), or the groups themselves. A key `base` beside the groups names
            a recipe (beside the file, or of the package) whose values hold where this one sets none.
        overrides: values by dotted key, `{"training.learning_rate": 1e-3}`; or the command line's (dotted key, text) pairs such as
            `("training.learning_rate", "1e-3")`, whose texts are read as YAML.
        require_all: whether keys without a default must be present.

    Raises:
        RecipeError: unknown or missing key, wrong type, YAML that cannot be read.
        FileNotFoundError: no such file and no such shipped recipe.
    """
    from lmctr.runs.inputs import view_class

    source = "recipe" if isinstance(name, Mapping) else str(name)
    groups = _read_groups(name if isinstance(name, Mapping) else find_recipe(name), source)
    in_python = isinstance(overrides, Mapping)
    if not in_python:
        overrides = {key: parse_yaml(text, f"--{key}") if text != "" else "" for key, text in overrides}
    for key, value in overrides.items():
        _apply_override(groups, key, _plain(value) if in_python else value, "" if in_python else "--")
    origin = set(overrides)
    for group in GROUPS:
        value = groups.setdefault(group, {})
        if value is None:
            groups[group] = {}
        elif not isinstance(value, dict):
            raise RecipeError(f"{source}: group {group} must be a mapping of keys to values, got {_show(value)}")

    def where(key: str) -> str:
        return ("overrides" if in_python else "the command line") if key in origin else source

    family = groups["model"].get("family", DEFAULT_FAMILY)
    known = [row.model_type for row in families()]
    if family not in known:
        raise RecipeError(f"{where('model.family')}: model.family is {_show(family)}, accepted: {', '.join(known)}")
    view = view_class(family)
    data = _check_group("data", groups["data"], view.data_keys, where, require_all)
    keys = {"family": (str, DEFAULT_FAMILY), **view.model_keys(family)}
    model = _check_group("model", groups["model"], keys, where, require_all, view.set_elsewhere(family))
    for dotted, known in view.nested_keys.items():
        group, _, key = dotted.partition(".")
        values = {"data": data, "model": model}[group]
        if isinstance(values.get(key), dict):
            values[key] = _check_group(dotted, values[key], known, where, require_all)
    _check_data(data, where)
    view.check_recipe(data, model, where)
    training = _check_group("training", groups["training"], training_keys(), where, False, SET_BY_LMCTR, fill=False)
    return Recipe(data=data, model=model, training={**view.training_defaults, **training}, source=source)


def find_recipe(name: str | Path) -> Path:
    """A recipe's path: an existing file as given, else a recipe that ships with lmctr."""
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        raise RecipeError(f"{name} is a folder; a recipe is a YAML file (a run folder holds recipe.yaml)")
    if path.is_absolute():
        raise FileNotFoundError(f"recipe file {name} does not exist")
    return find_resource("recipes", str(name))


def training_keys() -> dict[str, tuple[Any, Any]]:
    """Keys of the training group: the fields of `CTRTrainingArguments` that a user may set."""
    from lmctr.training.arguments import CTRTrainingArguments

    return dataclass_keys(CTRTrainingArguments, set(SET_BY_LMCTR))


def compare_recipes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Differences between two resolved recipes, one line each: `training.learning_rate: 0.001 before, 0.01 now`."""
    lines = []
    for group in GROUPS:
        old, new = before.get(group, {}), now.get(group, {})
        for key in [*old, *(key for key in new if key not in old)]:
            left, right = old.get(key, "(not set)"), new.get(key, "(not set)")
            if left != right:
                lines.append(f"{group}.{key}: {left!r} before, {right!r} now")
    return lines


# ---- YAML ---------------------------------------------------------------------------------------------------------


def parse_yaml(text: str, where: str) -> Any:
    """YAML text, read strictly. Raises `RecipeError`."""
    try:
        return files.parse_yaml(text, where)
    except ValueError as error:
        raise RecipeError(str(error)) from error


def _read_yaml(path: Path) -> Any:
    try:
        return files.read_yaml(path)
    except ValueError as error:
        raise RecipeError(str(error)) from error


def _read_groups(path: Path | Mapping[str, Any], source: str, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The groups of a recipe file, or the given ones, over those of its `base`: mappings are merged key by key, other values replaced."""
    if isinstance(path, Mapping):
        groups, path = _plain(path), Path("recipe")
    else:
        groups = _read_yaml(path)
    if groups is None:
        groups = {}
    if not isinstance(groups, dict):
        raise RecipeError(f"{source}: a recipe is a mapping with the groups {', '.join(GROUPS)}, got {_show(groups)}")
    groups = copy.deepcopy(groups)
    for key in groups:
        if key not in (*GROUPS, "base"):
            raise RecipeError(unknown_key_message(key, GROUPS, source))
    if "base" not in groups:
        return groups
    base = groups.pop("base")
    if not isinstance(base, str):
        raise RecipeError(f"{source}: base is {_show(base)}, accepted: the recipe that this one starts from")
    beside = path.parent / base
    base_path = beside if beside.is_file() else find_recipe(base)
    chain = (*above, path.resolve())
    if base_path.resolve() in chain:
        raise RecipeError(f"{source}: base {base!r} leads back to a recipe that starts from it")
    return _merge(_read_groups(base_path, f"{base} (the base of {source})", chain), groups)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _apply_override(groups: dict[str, Any], dotted: str, value: Any, dashes: str) -> None:
    path = dotted.split(".")
    if "" in path:
        raise RecipeError(f"{dashes}{dotted}: empty key")
    if len(path) < 2 or path[0] not in GROUPS:
        raise RecipeError(
            f"{dashes}{dotted}: give a group and a key, such as training.seed; groups: {', '.join(GROUPS)}"
        )
    target = groups
    for depth, part in enumerate(path[:-1]):
        inner = target.get(part)
        if inner is None:
            inner = target[part] = {}
        elif not isinstance(inner, dict):
            name = ".".join(path[: depth + 1])
            raise RecipeError(
                f"{dashes}{dotted}: {name} is {_show(inner)} in the recipe, not a group of keys; set {dashes}{name}"
            )
        target = inner
    target[path[-1]] = value


# ---- types --------------------------------------------------------------------------------------------------------


def _check_group(
    group: str,
    given: Any,
    known: Mapping[str, tuple[Any, Any]],
    where: typing.Callable[[str], str],
    require_all: bool,
    elsewhere: Mapping[str, str] | None = None,
    fill: bool = True,
) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise RecipeError(f"{where(group)}: {group} must be a mapping of keys to values, got {_show(given)}")
    result = {}
    for key, value in given.items():
        name = f"{group}.{key}"
        if elsewhere and key in elsewhere:
            raise RecipeError(f"{where(name)}: {name} is not set in a recipe; {elsewhere[key]}")
        if key not in known:
            raise RecipeError(unknown_key_message(key, known, f"{group} ({where(name)})"))
        hint = known[key][0]
        converted = coerce(value, hint)
        if converted is _WRONG:
            raise RecipeError(f"{where(name)}: {name} is {_show(value)}, accepted: {describe(hint)}")
        result[key] = converted
    if not fill:
        return result
    missing = [key for key, (_, default) in known.items() if default is ... and key not in result]
    if missing and require_all:
        raise RecipeError(
            f"{where(group)}: {group}.{missing[0]} is missing; accepted: {describe(known[missing[0]][0])}"
        )
    return {key: result.get(key, copy.deepcopy(default)) for key, (_, default) in known.items() if key not in missing}


def _check_data(data: dict[str, Any], where: typing.Callable[[str], str]) -> None:
    if data["path"] is not None and "path" in data["options"]:
        raise RecipeError(f"{where('data.path')}: data.path and data.options.path are both set; keep one")
    for key in ("max_train_samples", "max_eval_samples"):
        if data[key] is not None and data[key] < 1:
            raise RecipeError(f"{where(f'data.{key}')}: data.{key} is {data[key]}, accepted: a whole number from 1")
    fractions = data["fractions"]
    if fractions is None:
        return
    if len(fractions) != 3 or fractions[0] <= 0 or min(fractions) < 0 or not math.isclose(sum(fractions), 1.0):
        raise RecipeError(
            f"{where('data.fractions')}: data.fractions is {fractions}, accepted: three positive numbers "
            "(train, validation, test) that add up to 1"
        )


_WRONG = object()
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping"}


def coerce(value: Any, hint: Any) -> Any:
    """Convert a YAML value to a type hint without guessing; `_WRONG` when it does not fit."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        for option in sorted(options, key=lambda option: option is not type(value)):
            converted = coerce(value, option)
            if converted is not _WRONG:
                return converted
        return _WRONG
    if origin is Literal:
        return (
            value
            if any(value == option and type(value) is type(option) for option in typing.get_args(hint))
            else _WRONG
        )
    if origin in (list, tuple) or hint in (list, tuple):
        if not isinstance(value, list):
            return _WRONG
        arguments = typing.get_args(hint)
        items = [coerce(item, arguments[0]) for item in value] if arguments else list(value)
        return _WRONG if any(item is _WRONG for item in items) else items
    if origin is dict or hint is dict:
        return dict(value) if isinstance(value, dict) else _WRONG
    if hint in (type(None), None):
        return None if value is None else _WRONG
    if hint is bool:
        return value if isinstance(value, bool) else _WRONG
    if hint is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else _WRONG
    if hint is float:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else _WRONG
    if hint is str:
        return value if isinstance(value, str) else _WRONG
    if isinstance(hint, type) and issubclass(hint, Enum):
        return value if value in [member.value for member in hint] else _WRONG
    return _WRONG  # a type that YAML cannot hold


def describe(hint: Any) -> str:
    """A type hint in words: `a whole number or null`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        words = [describe(option) for option in arguments if option is not type(None)]
        words += ["null"] if type(None) in arguments else []
        return " or ".join(dict.fromkeys(words))
    if origin is Literal:
        return ", ".join(str(option) for option in arguments)
    if origin in (list, tuple) or hint in (list, tuple):
        return f"a list of {describe(arguments[0])}" if arguments else "a list"
    if origin is dict:
        return "a mapping"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(str(member.value) for member in hint)
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def dataclass_keys(cls: type, hidden: set[str]) -> dict[str, tuple[Any, Any]]:
    """Fields of a dataclass as keys of a recipe, without the hidden ones: type and default."""
    keys = {}
    for field in fields(cls):
        if field.name in hidden or not field.init or field.name.startswith("_"):
            continue
        default = field.default if field.default is not MISSING else None
        if field.default_factory is not MISSING:
            default = field.default_factory()
        keys[field.name] = (_field_type(cls, field.name), default)
    return keys


def _field_type(cls: type, name: str) -> Any:
    """Type of one field; base classes may hold annotations of other fields that cannot be evaluated here."""
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    hint = inspect.get_annotations(owner)[name]
    return eval(hint, dict(vars(sys.modules[owner.__module__]))) if isinstance(hint, str) else hint


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _show(value: Any) -> str:
    if value is None:
        return "null"
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({_NAMES.get(type(value), type(value).__name__)})"
