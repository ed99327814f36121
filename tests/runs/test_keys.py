"""The reference of recipe keys: complete for every family, and of the same source as the reader."""

import pytest

from lmctr.models.families import families
from lmctr.runs.keys import key_reference, recipe_keys
from lmctr.runs.recipe import load_recipe

FAMILIES = [family.model_type for family in families()]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_has_type_and_meaning(family):
    keys = recipe_keys(family)
    assert [key.name for key in keys if not key.accepts or not key.meaning] == []
    names = {key.name for key in keys}
    assert len(names) == len(keys)
    assert {"data.name", "model.family", "training.learning_rate"} <= names
    stages = {"training.stage1_epochs", "training.stage2_epochs"}
    assert names & {"training.epochs", *stages} == (stages if family == "ctr_sink" else {"training.epochs"})
    text = key_reference(family)
    assert all(f"\n{name}: " in text for name in names)


@pytest.mark.parametrize(("family", "recipe"), [("ctr_sink", "ctr_sink/quickstart"), ("din", "din/synthetic")])
def test_the_reference_names_the_keys_that_the_reader_takes(family, recipe):
    read = load_recipe(recipe)
    for group, values in (("data", read.data), ("model", read.model)):
        named = {key.name.split(".")[1] for key in recipe_keys(family) if key.name.startswith(f"{group}.")}
        assert named == values.keys()


def test_lines_of_the_reference():
    since = (
        "data.since: unix seconds or an ISO time (2024-03-01) or null; default null\n    Events before this time (UTC "
    )
    assert since in key_reference("din")
    text = key_reference("two_tower")
    assert "data.name: text; must be given\n    A known data set" in text
    assert "data.metrics.m: a whole number from 1; default 10\n    Ads that go on." in text
    assert "training.metric_for_best_model: text or null; default eval_revenue_ratio" in text


def test_an_unknown_family():
    with pytest.raises(ValueError, match="did you mean 'deepfm'"):
        key_reference("deepfn")
