"""The grids of CTR-Sink's trial and of its paper: what is compared differs in what the contrast says, and in the rates that each arm was given."""

import pytest

from lmctr.studies.grids.file import check_recipes, load_grid
from lmctr.utils.resources import list_resources

GRIDS = [name for name in list_resources("recipes") if name.startswith("ctr_sink/tables/trial_")]
SINKS = {"model.sink_kind", "model.sink_signal"}
STAGES = {"training.stage1_epochs", "training.stage2_epochs"}
DIFFERENCES = {
    ("sink", "lm_ctr"): SINKS,
    ("sink_1", "lm_ctr_1"): SINKS,
    ("sink", "cls"): SINKS,
    ("sink", "random"): {"model.sink_signal"},
    ("sink", "plain"): {"model.sink_signal"},
    ("plain", "lm_ctr"): {"model.sink_kind"},
    ("two_stage", "sink"): STAGES,
    ("bias", "sink"): {"model.sink_bias_layers"},
    ("full", "two_stage"): {"model.sink_bias_layers"},
    ("full", "sink"): {"model.sink_bias_layers", *STAGES},
}
RATES = {"training.learning_rate", "training.new_modules_learning_rate"}


def values(recipe):
    groups = {"data": recipe.data, "model": recipe.model, "training": recipe.training}
    return {f"{group}.{key}": value for group, keys in groups.items() for key, value in keys.items()}


def test_there_are_trials():
    assert {name.rpartition("_")[2] for name in GRIDS} >= {"synthetic", "statistics", "decoder", "movielens"}


@pytest.mark.parametrize("name", GRIDS)
def test_contrasts_change_one_thing(name):
    grid = load_grid(name)
    recipes = {point: values(recipe) for (point, seed), recipe in check_recipes(grid).items() if seed == 0}
    tested = [*grid.contrasts, *((point.name, point.compare_to) for point in grid.points if point.compare_to)]
    assert ("sink", "lm_ctr") in tested
    for pair in tested:
        one, other = (recipes[end] for end in pair)
        differ = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)} - RATES
        if pair in DIFFERENCES:
            assert differ == DIFFERENCES[pair], pair
        assert differ <= {*SINKS, *STAGES, "model.sink_bias_layers"}, pair
        epochs = [sum(recipe[key] for key in STAGES) for recipe in (one, other)]
        assert epochs[0] == epochs[1], f"{pair}: not the same number of steps"
    # `sink_bias_layers: null` means the backbone's default layers, `[]` none.
    biased = {point for point, one in recipes.items() if one["model.sink_bias_layers"] is None}
    assert biased == {"bias", "full"} & recipes.keys()


@pytest.mark.parametrize("table", ["table1", "table2", "table3", "table4", "table5", "table6", "table8", "feedback"])
def test_texts_of_the_paper_hold_its_number_of_behaviours(table):
    """`num_behaviors` is of each group; the paper's K is of both together. Points of one K and encoder read the same behaviours."""
    grid, prompts = load_grid(f"ctr_sink/tables/{table}"), {}
    for (point, _), recipe in check_recipes(grid).items():
        if recipe.model["family"] != "ctr_sink":
            continue
        wanted = int(point.rpartition("-k")[2].removesuffix("_full")) if table == "table5" else 50
        lists = 2 if recipe.data["feedback"] == "groups" else 1
        assert lists * recipe.data["num_behaviors"] == wanted, point
        if "movielens-roberta" in point:  # 512 positions: titles, not genres
            assert recipe.data["prompt"]["behavior_item"] == "{title}", point
        prompts.setdefault((recipe.data["name"], recipe.model["backbone"]), []).append(recipe.data["prompt"])
    assert all(one == same[0] for same in prompts.values() for one in same)
