"""Views: how a model family reads data. The verbs know a view by one interface ([`~lmctr.runs.inputs.base.View`]) only.

A new kind of input is a module with a subclass and a row of `_VIEWS`; which families read it, `lmctr.models.families` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmctr.models.families import family_of
from lmctr.utils.lazy import load_target

if TYPE_CHECKING:
    from lmctr.runs.inputs.base import View
    from lmctr.runs.recipe import Recipe

_VIEWS = {
    "text": "lmctr.runs.inputs.text:TextRunView",
    "tabular": "lmctr.runs.inputs.tabular:TabularRunView",
    "sequence": "lmctr.runs.inputs.sequence:SequenceRunView",
    "impressions": "lmctr.runs.inputs.impressions:ImpressionRunView",
}


def view_class(family: str) -> type[View]:
    """The view of a family.

    Raises:
        ValueError: a family that is not in the table.
    """
    return load_target(_VIEWS[family_of(family).input])


def view_of(recipe: Recipe) -> View:
    """The view of a recipe's family, before any data are read."""
    return view_class(recipe.model["family"])(recipe)


def config_class(family: str) -> type[Any]:
    """The configuration class of a family."""
    return family_of(family).load("Config")
