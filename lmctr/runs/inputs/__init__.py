"""Kinds of input: how a model family reads data, known by one interface ([`~lmctr.runs.inputs.base.InputKind`]) only.

A new kind is a module with a subclass and a row of `_KINDS`; which families read it, `lmctr.models.families` says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lmctr.models.families import family_of
from lmctr.utils.lazy import load_target

if TYPE_CHECKING:
    from lmctr.runs.inputs.base import InputKind
    from lmctr.utils.values import Values

_KINDS = {
    "text": "lmctr.runs.inputs.text:TextInput",
    "tabular": "lmctr.runs.inputs.tabular:TabularInput",
    "sequence": "lmctr.runs.inputs.sequence:SequenceInput",
    "impressions": "lmctr.runs.inputs.impressions:ImpressionInput",
}


def input_class(family: str) -> type[InputKind]:
    """The kind of input of a family.

    Raises:
        ValueError: a family that is not in the table.
    """
    return load_target(_KINDS[family_of(family).input])


def input_of(recipe: Any) -> InputKind:
    """The input of a recipe, before any data are read."""
    return input_class(recipe.model["family"])(recipe.data, recipe.model)


def config_class(family: str) -> type[Any]:
    """The configuration class of a family."""
    return family_of(family).load("Config")


def config_keys(family: str, hidden: Iterable[str], base: type[Values] | None = None) -> type[Values]:
    """Model keys of a family: those of its configuration without the `hidden` ones, after those of `base`."""
    from lmctr.models.common.configuration import CTRConfig
    from lmctr.runs.inputs.keys import ModelKeys
    from lmctr.utils.values import dataclass_values

    common = {field.name for field in dataclasses.fields(CTRConfig)}
    return dataclass_values(config_class(family), common | set(hidden), base or ModelKeys)
