"""Recipes: one YAML file of three groups (data, model, training), read strictly and overridden from the command line.

A recipe may start from another one, its `base`, and set only what differs.

Nothing is guessed: an unknown key, a value of the wrong type or a doubled key is an error that names the key, the
file, the value and what is accepted.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import yaml

from lmctr.models.common.configuration import NeverAccepted, own_keys
from lmctr.models.families import DEFAULT_FAMILY, ELSEWHERE, families
from lmctr.runs.find import GROUPS, RecipeError, find_recipe
from lmctr.runs.inputs import config_class, input_class
from lmctr.runs.inputs.keys import TrainingKeys
from lmctr.runs.words import OTHER_WORDS
from lmctr.training.arguments import REFUSED, CTRTrainingArguments
from lmctr.utils import files
from lmctr.utils.files import expanded
from lmctr.utils.rows import unformatted
from lmctr.utils.suggest import did_you_mean, unknown_key_message
from lmctr.utils.values import Values, Wording, dataclass_values, read_values, show

if TYPE_CHECKING:
    from lmctr.runs.inputs.base import InputKind

# Training arguments that lmctr decides itself, and where a user should look instead.
SET_BY_LMCTR = {
    "num_train_epochs": "set training.epochs",
    "label_names": "lmctr sets it",
    "remove_unused_columns": "lmctr sets it",
    "push_to_hub": "train first, then run `lmctr push RUN user/name`",
    "resume_from_checkpoint": "use `lmctr train RECIPE --resume`",
    **dict.fromkeys(("do_train", "do_eval", "do_predict", "length_column_name"), "it has no effect here"),
    **dict.fromkeys(
        ("hub_token", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision"),
        "train first, then run `lmctr push RUN user/name`",
    ),
    **{name: reason for name, (_, reason) in REFUSED.items()},
    "local_rank": "the launcher sets it",
}
# Families without stages have `epochs`, which is stage 2 alone; `stage2_epochs` is its old name there.
_EPOCHS = {"epochs": "stage2_epochs"}
_SAME_EPOCHS = {"epochs": "stage2_epochs", "stage2_epochs": "epochs"}
_KINDS = ("model_type", "type")  # of a backbone, of a tokenizer: another one has other keys
_TWICE = "training.epochs and training.stage2_epochs are both set, and mean the same; keep epochs"
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
        keys = training_keys().model_fields
        training = {key: _plain(keys[key].get_default(call_default_factory=True)) for key in _ALWAYS_WRITTEN}
        training.update({key: _plain(value) for key, value in self.training.items() if key != "output_dir"})
        return with_epochs({"data": _plain(self.data), "model": _plain(self.model), "training": training})

    def save(self, path: str | Path) -> None:
        """Write the resolved recipe as YAML, whole or not at all: a run that is killed meanwhile can still be resumed."""
        text = yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True, default_flow_style=None)
        files.write_text(path, text)


def refuse_other_overrides(overrides: Any) -> None:
    """Raises `RecipeError` for overrides that are neither a dict nor the command line's pairs of texts."""
    pairs = isinstance(overrides, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        for pair in overrides
    )
    if not pairs and not isinstance(overrides, Mapping):
        raise RecipeError(
            f"overrides: expected a dict of dotted keys, such as {{'training.seed': 1}}, got {show(overrides)}"
        )


def load_recipe(
    name: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | Sequence[tuple[str, str]] = (),
    said_by: Mapping[str, str] | None = None,
) -> Recipe:
    """Read, override and check a recipe.

    Args:
        name: path of a YAML file, or the name of a recipe that ships with lmctr
            (`recipes/ctr_sink/quickstart.yaml`, `ctr_sink/quickstart`), or the groups themselves. A key `base` beside the groups names
            a recipe (beside the file, or of the package) whose values hold where this one sets none.
        overrides: values by dotted key, `{"training.learning_rate": 1e-3}`; or the command line's (dotted key, text) pairs such as
            `("training.learning_rate", "1e-3")`, whose texts are read as YAML.
        said_by: who gave an override, by its key, for messages; default: the command line, or the argument.

    Raises:
        RecipeError: unknown or missing key, wrong type, YAML that cannot be read.
        FileNotFoundError: no such file and no such shipped recipe.
    """
    if not isinstance(name, str | Path | Mapping):
        raise RecipeError(f"recipe: expected the groups, a file or a name, got {show(name)}")
    refuse_other_overrides(overrides)
    in_python, source = isinstance(overrides, Mapping), "recipe" if isinstance(name, Mapping) else str(name)
    if isinstance(name, Mapping):
        groups = _over_base(_plain(name), source, Path("recipe"), _check_groups)
    else:
        path = find_recipe(name)
        groups = _over_base(_read_yaml(path), source, path, _check_groups) or {}
        _find_beside(groups, path)
    if in_python:
        overrides = _plain(overrides)
    else:
        overrides = {key: parse_yaml(text, f"--{key}") if text != "" else "" for key, text in overrides}
    for key, value in overrides.items():
        _apply_override(groups, key, value, "" if in_python else "--")
    said_by = dict.fromkeys(overrides, "overrides" if in_python else "the command line") | dict(said_by or {})
    epochs = [said_by[key] for key in overrides if key in ("training.epochs", "training.stage2_epochs")]
    if len(set(epochs)) < len(epochs):
        raise RecipeError(f"{epochs[0]}: {_TWICE}")

    def where(key: str) -> str:
        return said_by.get(key, source)

    for group in GROUPS:
        value = groups.get(group)
        if value is not None and not isinstance(value, dict):
            raise RecipeError(f"{source}: group {group} must be a mapping of keys to values, got {show(value)}")
        groups[group] = value or {}
    family = groups["model"].get("family", DEFAULT_FAMILY)
    known = [row.model_type for row in families()]
    if family not in known:
        hint = did_you_mean(str(family), known) or f" {ELSEWHERE}."
        raise RecipeError(
            f"{where('model.family')}: model.family is {show(family)}, accepted: {', '.join(known)}.{hint}"
        )
    kind = input_class(family)
    every = f"lmctr train --list-keys {family}"
    data = _check_group("data", kind.data_keys, groups["data"], where, every=every)
    without = "" if "family" in groups["model"] else f"without model.family it is {DEFAULT_FAMILY}"
    model = _check_group(
        "model", _model_keys(kind, family), groups["model"], where, kind.set_elsewhere(family), without, every
    )
    for key, says in kind.check_recipe(data, model):
        raise RecipeError(f"{where(key)}: {says}")
    config = config_class(family)
    try:
        config(**{key: model[key] for key in own_keys(config) if key in model})
    except NeverAccepted as error:
        key = f"model.{error.key}"
        raise RecipeError(f"{where(key)}: {key} is {show(error.value)}, accepted: {error.accepted}") from error
    except ValueError:
        pass  # what depends on data is told when they are read
    given = groups["training"]
    checked = _check_group("training", training_keys(), given, where, elsewhere_keys(kind), every=every)
    training = {_EPOCHS.get(key, key): checked[key] for key in given}
    if checked["stage1_epochs"] > 0 and (not kind.has_stages or model.get("sink_kind") == "none"):
        reason = "model.sink_kind is 'none'" if kind.has_stages else f"the family {family} has none"
        raise RecipeError(
            f"{where('training.stage1_epochs')}: training.stage1_epochs is {checked['stage1_epochs']}, in which the sinks are pooled only, but {reason}; "
            "accepted: 0"
        )
    return Recipe(data=data, model=model, training={**kind.training_defaults, **training}, source=source)


@functools.cache
def training_keys() -> type[Values]:
    """Keys of the training group: `epochs`, and the fields of `CTRTrainingArguments` that a user may set."""
    return dataclass_values(CTRTrainingArguments, frozenset(SET_BY_LMCTR), TrainingKeys)


@functools.cache
def _model_keys(kind: type[InputKind], family: str) -> type[Values]:
    return kind.model_keys(family)


def elsewhere_keys(kind: type[InputKind]) -> dict[str, str]:
    """Training keys that a recipe does not set, and what to do instead. Families with two stages have no single number of epochs."""
    both = "set training.stage1_epochs and training.stage2_epochs; their sum is trained"
    return SET_BY_LMCTR | (dict.fromkeys(("epochs", "num_train_epochs"), both) if kind.has_stages else {})


def with_epochs(groups: Mapping[str, Any]) -> dict[str, Any]:
    """The groups of a resolved recipe, with `training.epochs` where the family has no stages; run folders of before say `stage2_epochs`."""
    training, model = groups.get("training"), groups.get("model")
    if not isinstance(training, Mapping) or not isinstance(model, Mapping) or "stage2_epochs" not in training:
        return dict(groups)
    name = model.get("family", DEFAULT_FAMILY)
    if name not in [row.model_type for row in families()] or input_class(name).has_stages:
        return dict(groups)
    training = {"epochs": training["stage2_epochs"], **training}
    del training["stage2_epochs"]
    if training.get("stage1_epochs") == 0:
        del training["stage1_epochs"]
    return {**groups, "training": training}


def compare_recipes(before: Mapping[str, Any], now: Mapping[str, Any], apart_from: Collection[str] = ()) -> list[str]:
    """Differences between two resolved recipes, one line each: `training.learning_rate: 0.001 before, 0.01 now`. apart_from: keys, with
    their groups, that may differ."""
    lines = []
    for group in GROUPS:
        old, new = before.get(group, {}), now.get(group, {})
        for key in [*old, *(key for key in new if key not in old)]:
            left, right = old.get(key, "(not set)"), new.get(key, "(not set)")
            if left != right and f"{group}.{key}" not in apart_from:
                lines.append(f"{group}.{key}: {left!r} before, {right!r} now")
    return lines


# ---- YAML ----


def parse_yaml(text: str, where: str) -> Any:
    """YAML text, read strictly. Raises `RecipeError`."""
    try:
        return files.parse_yaml(text, where)
    except ValueError as error:
        quoted = f"""; a text that begins with {text[:1]} stands in quotes of its own: {where} '"{text:.60}"'"""
        raise RecipeError(f"{error}{quoted if text[:1] in ('{', '[') else ''}") from error


def _read_yaml(path: Path) -> Any:
    try:
        return files.read_yaml(path)
    except ValueError as error:
        raise RecipeError(str(error)) from error


def read_with_base(path: Path, source: str) -> Any:
    """The content of a file over that of its `base`, a file beside it or a shipped name: mappings are merged key by key, other values
    replaced, as is a mapping that names another kind of backbone or tokenizer."""

    def no_recipe(content: Any, source: str) -> None:
        if isinstance(content, Mapping) and set(GROUPS) & content.keys():
            raise RecipeError(f"{source} is a recipe, which one run is trained by: lmctr train {source}")

    return _over_base(_read_yaml(path), source, path, no_recipe)


def _find_beside(groups: dict[str, Any], recipe: Path) -> None:
    """Data that a recipe names by a file beside it, such as the schema of `lmctr init`, are found from every folder."""
    data = groups.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    if isinstance(name, str) and not expanded(name).exists() and (recipe.parent / name).is_file():
        data["name"] = str(recipe.parent / name)


def _check_groups(content: Any, source: str) -> None:
    """A recipe, or what it starts from: the groups, and one name for the number of epochs."""
    if content is not None and not isinstance(content, Mapping):
        raise RecipeError(f"{source}: a recipe is a mapping with the groups {', '.join(GROUPS)}, got {show(content)}")
    for key in content or ():
        if key not in (*GROUPS, "base"):
            raise RecipeError(_another_file(content, source) or unknown_key_message(key, GROUPS, source))
    training = (content or {}).get("training")
    if isinstance(training, dict) and {"epochs", "stage2_epochs"} <= training.keys():
        raise RecipeError(f"{source}: {_TWICE}")


def _over_base(
    content: Any, source: str, path: Path, check: Callable[[Any, str], None], above: tuple[Path, ...] = ()
) -> Any:
    check(content, source)
    if not isinstance(content, Mapping) or "base" not in content:
        return copy.deepcopy(content)
    own = copy.deepcopy(dict(content))
    base = own.pop("base")
    if not isinstance(base, str):
        raise RecipeError(f"{source}: base is {show(base)}, accepted: the recipe that this one starts from")
    beside = path.parent / base
    base_path = beside if beside.is_file() else find_recipe(base)
    chain = (*above, path.resolve())
    if base_path.resolve() in chain:
        raise RecipeError(f"{source}: base {base!r} leads back to a recipe that starts from it")
    below = _over_base(_read_yaml(base_path), f"{base} (the base of {source})", base_path, check, chain)
    return _merge(below or {}, own)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        merged.pop(_SAME_EPOCHS.get(key), None)
        own = merged.get(key)
        both = isinstance(value, dict) and isinstance(own, dict)
        other = both and any(name in value and value[name] != own.get(name, value[name]) for name in _KINDS)
        merged[key] = _merge(own, value) if both and not other else value
    return merged


def _another_file(content: Mapping[str, Any], source: str) -> str | None:
    """What a file is that was given as a recipe."""
    if "sizes" in content:
        return f"{source} is a ladder, not a recipe: lmctr scaling ladder {source}"
    if {"points", "axes"} & content.keys():
        return f"{source} is a grid, not a recipe: lmctr grid run {source}"
    if {"columns", "events", "files", "fields"} & content.keys():
        example = "deepfm/synthetic" if {"files", "fields"} & content.keys() else "din/movielens_small"
        return (
            f"{source} is a data schema, not a recipe: name it in data.name of one, for example "
            f"lmctr train {example} --data.name {source} --data.options '{{}}'"
        )
    return None


def _apply_override(groups: dict[str, Any], dotted: str, value: Any, dashes: str) -> None:
    path = dotted.split(".")
    if "" in path or len(path) < 2 or path[0] not in GROUPS:
        told = f"{dashes}{dotted}" if dashes else f"overrides: {dotted!r}"
        empty = "an empty key; " if "" in path else ""
        raise RecipeError(f"{told}: {empty}give a group and a key, such as training.seed; groups: {', '.join(GROUPS)}")
    target = groups
    for depth, part in enumerate(path[:-1]):
        inner = target.get(part)
        if inner is None:
            inner = target[part] = {}
        elif not isinstance(inner, dict):
            name = ".".join(path[: depth + 1])
            raise RecipeError(
                f"{dashes}{dotted}: {name} is {show(inner)} in the recipe, not a group of keys; set {dashes}{name}"
            )
        target = inner
    target.pop(_SAME_EPOCHS.get(path[-1]), None)
    target[path[-1]] = value


_IN_MEMORY = (
    ", the name of a data set or a path; data in memory go through a folder or a file: lmctr.data.InteractionLog.from_columns(...) or from_dataset "
    "and its save(FOLDER), rows of a table as Parquet with a schema"
)

# ---- keys ----


def _kinds_with(key: str) -> list[str]:
    """The kinds of input whose data group has a key."""
    kinds = {family.input: family.model_type for family in families()}
    return sorted(kind for kind, family in kinds.items() if key in input_class(family).data_keys.model_fields)


class _RecipeWording(Wording):
    """Keys are named with their group, and a value that came from elsewhere is told as such."""

    def __init__(self, group: str, where: Callable[[str], str], note: str, every: str) -> None:
        self.group, self.said_by, self.note, self.every = group, where, note, every

    def _named(self, path: Sequence[str | int], says: str) -> str:
        dotted = ".".join(map(str, (self.group, *path)))
        return f"{self.said_by(dotted)}: {dotted} {says}"

    def unknown(self, path: Sequence[str | int], known: Iterable[str]) -> str:
        place, key = ".".join(map(str, (self.group, *path[:-1]))), str(path[-1])
        where, known = f"{place} ({self.said_by(f'{place}.{key}')})", [*known]
        if place == "data" and (kinds := _kinds_with(key)):
            note = f"families of the kind {' or '.join(kinds)} have it, this one has not"
            return unknown_key_message(key, known, where, note, every=self.every)
        group, _, meant = OTHER_WORDS.get(key, "").partition(".")
        meant = meant if group == place and meant in known else None
        return unknown_key_message(key, known, where, self.note, meant, self.every)

    def mapping(self, path: Sequence[str | int], known: Iterable[str], value: Any) -> str:
        return self._named(path, f"must be a mapping of keys to values, got {show(value)}")

    def missing(self, path: Sequence[str | int], accepted: str) -> str:
        return self._named(path, f"is missing; accepted: {accepted}{self.note and f'; {self.note}'}")

    def wrong(self, path: Sequence[str | int], value: Any, accepted: str, in_type: bool) -> str:
        is_plain = isinstance(value, str | int | float | list | dict | None)
        more = "" if is_plain or (self.group, *path) != ("data", "name") else _IN_MEMORY
        return self._named(path, f"is {value if in_type else show(value)}, accepted: {accepted}{more}")

    def refused(self, path: Sequence[str | int], message: str, of_mapping: bool) -> str:
        return f"{self.said_by('.'.join(map(str, (self.group, *path))))}: {message}"


def _check_group(
    group: str,
    keys: type[Values],
    given: dict[str, Any],
    where: Callable[[str], str],
    elsewhere: Mapping[str, str] | None = None,
    note: str = "",
    every: str = "",
) -> dict[str, Any]:
    """Every key of a group, with defaults filled in; `note` is said with unknown and missing ones, and that `every` prints the known ones."""
    for key in given:
        if elsewhere and key in elsewhere:
            name = f"{group}.{key}"
            raise RecipeError(f"{where(name)}: {name} is not set in a recipe; {elsewhere[key]}")
    try:
        return read_values(keys, given, _RecipeWording(group, where, note, every)).model_dump()
    except ValueError as error:
        raise RecipeError(str(error)) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, PurePath) else unformatted(value)  # numbers of numpy
