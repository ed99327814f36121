"""Views: how a model family reads data. The verbs know a view by one interface ([`~lmctr.runs.inputs.base.View`]) only.

A new kind of input is a module with a subclass and a row of `_VIEWS`; a new family is a row of `_FAMILIES`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmctr.runs.inputs.base import View
    from lmctr.runs.recipe import Recipe

_VIEWS = {
    "text": "lmctr.runs.inputs.text:TextRunView",
    "tabular": "lmctr.runs.inputs.tabular:TabularRunView",
    "sequence": "lmctr.runs.inputs.sequence:SequenceRunView",
    "impressions": "lmctr.runs.inputs.impressions:ImpressionRunView",
}
_FAMILIES = {
    "ctr_sink": "text",
    "dnn": "tabular",
    "ffm": "tabular",
    "deepfm": "tabular",
    "xdeepfm": "tabular",
    "autoint": "tabular",
    "dcnv2": "tabular",
    "wukong": "tabular",
    "hiformer": "tabular",
    "fat": "tabular",
    "rank_mixer": "tabular",
    "rank_elastor": "tabular",
    "astro": "sequence",
    "din": "sequence",
    "twin": "sequence",
    "dlrm_twin": "sequence",
    "behavior_transformer": "sequence",
    "hstu": "sequence",
    "retrieval_mlp": "impressions",
    "two_tower": "impressions",
}

DEFAULT_FAMILY = "ctr_sink"
FAMILIES = tuple(_FAMILIES)
"""Families that a recipe may name, in the order in which messages list them."""


def view_class(family: str) -> type[View]:
    """The view of a family.

    Raises:
        KeyError: a family that is not in the table.
    """
    module, name = _VIEWS[_FAMILIES[family]].split(":")
    return getattr(importlib.import_module(module), name)


def view_of(recipe: Recipe) -> View:
    """The view of a recipe's family, before any data are read."""
    return view_class(recipe.model["family"])(recipe)


def config_class(family: str) -> type[Any]:
    """The configuration class of a family."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    import lmctr  # noqa: F401 (registers the families)

    return CONFIG_MAPPING[family]
