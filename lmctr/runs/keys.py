"""A reference of every key that a recipe of a family may set: type, default and meaning."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lmctr.models.families import family_of
from lmctr.runs.inputs import config_class, input_class
from lmctr.runs.recipe import elsewhere_keys, training_keys
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.utils.values import Values, describe, inner_values

# "    name (`type`, defaults to `x`): text" of an Args section, and what is indented below it.
_ARGUMENT = re.compile(
    r"^( *)(\w+(?:, \w+)*) ?\((?:[^()\n]|\([^()\n]*\))*\):(.*(?:\n(?:\1 +\S.*| *$))*)", re.MULTILINE
)


@dataclass(frozen=True)
class Key:
    """A key of a recipe: `data.num_behaviors`, its type in words, its default (`...`: it must be given) and its meaning."""

    name: str
    accepts: str
    default: Any
    meaning: str


def recipe_keys(family: str) -> list[Key]:
    """Every key of the groups data, model and training of a family.

    Raises:
        ValueError: an unknown family.
    """
    family_of(family)
    kind = input_class(family)
    training = training_keys()
    elsewhere = {*elsewhere_keys(kind), *(() if kind.has_stages else ("stage1_epochs", "stage2_epochs"))}
    told = {
        field.name: field.metadata.get("help", "").replace("%%", "%")
        for field in dataclasses.fields(CTRTrainingArguments)
    }
    return [
        *_keys("data", kind.data_keys, {}),
        *_keys("model", kind.model_keys(family), _meanings(config_class(family))),
        *(
            dataclasses.replace(
                key, default=kind.training_defaults.get(key.name.removeprefix("training."), key.default)
            )
            for key in _keys("training", training, told | _meanings(CTRTrainingArguments))
            if key.name.removeprefix("training.") not in elsewhere
        ),
    ]


def key_reference(family: str) -> str:
    """The keys of a family as text, group by group."""
    lines = [f"Keys of a recipe of the family {family}"]
    for key in recipe_keys(family):
        told = json.dumps(key.default) if key.default is None or isinstance(key.default, bool) else key.default
        default = "must be given" if key.default is ... else f"default {told}"
        lines += ["", f"{key.name}: {key.accepts}; {default}"]
        lines += textwrap.wrap(key.meaning, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _keys(group: str, values: type[Values], meanings: dict[str, str]) -> Iterator[Key]:
    for name, field in values.model_fields.items():
        default = ... if field.is_required() else field.get_default(call_default_factory=True)
        yield Key(
            f"{group}.{name}",
            describe(field.annotation, field.metadata),
            default.model_dump() if isinstance(default, Values) else default,
            field.description or meanings.get(name, ""),
        )
        inner = inner_values(field.annotation)
        if inner is not None:
            yield from _keys(f"{group}.{name}", inner, {})


def _meanings(cls: type) -> dict[str, str]:
    """What the docstrings of a class and of its bases say of its arguments."""
    found = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("lmctr."):
            for _, names, text in _ARGUMENT.findall(inspect.getdoc(base) or ""):
                words = " ".join(text.split())
                found |= dict.fromkeys(names.split(", "), words[:1].upper() + words[1:])
    return found
