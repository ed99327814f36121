"""What a log tells of the moment of an event, its context and its scenario, is read by models: the baselines beside them read it too, and `init` gives the
context to the trees of a table."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from place_logs import events_of_places

from lmctr.cli.main import main
from lmctr.runs.inputs import input_of
from lmctr.runs.recipe import load_recipe

SCHEMA = {
    "name": "shop",
    "events": {"path": "log.csv"},
    "columns": {"user": "user", "item": "item", "time": "ts", "label": "clicked", "context": ["place"]},
}
RECIPE = {
    "data": {"name": "shop.yaml", "statistics": ["full"]},
    "model": {"family": "dnn", "embedding_dim": 4, "use_numeric_skip": True},
    "training": {"epochs": 1, "per_device_train_batch_size": 128, "use_cpu": True, "seed": 0},
}


@pytest.fixture
def log(tmp_path, monkeypatch):
    """1,500 events in the working folder, whose place alone says how likely a click is."""
    monkeypatch.chdir(tmp_path)
    rows = events_of_places(1500, [0.05, 0.1, 0.6, 0.9], place=lambda draw, place: [f"p{number}" for number in place])
    rows.to_csv("log.csv", index=False)
    Path("shop.yaml").write_text(yaml.safe_dump(SCHEMA))
    Path("dnn.yaml").write_text(yaml.safe_dump(RECIPE))
    return rows


def trained(output, *words):
    """Metrics of the baselines of a run, and what its data are known by."""
    assert main(["train", "dnn.yaml", "--output-dir", output, "--quiet", *words]) == 0
    folder = Path(output)
    found = json.loads((folder / "metrics.json").read_text())["baselines"]
    return found, json.loads((folder / "data.json").read_text())["data_fingerprint"]


@pytest.mark.parametrize("statistics", ["[full]", "[full, context]"])
def test_baselines_read_the_context_that_the_model_reads(log, statistics):
    found, known = trained("with", "--data.statistics", statistics)
    for name in ("logistic_regression", "gradient_boosting"):
        assert found[name]["validation"]["auc"] > 0.8
    if statistics == "[full]":  # of a model that reads no context they read none, and are not those kept of the other
        other, other_known = trained("without", "--data.options.own_columns", "[]")
        assert other["logistic_regression"]["validation"]["auc"] < 0.65
        assert known != other_known


@pytest.mark.parametrize("family", ["dnn", "din"])
def test_baselines_read_the_scenario(log, family):
    columns = {**SCHEMA["columns"], "context": [], "scenario": "place"}
    Path("shop.yaml").write_text(yaml.safe_dump({**SCHEMA, "columns": columns}))
    view = input_of(load_recipe({**RECIPE, "model": {"family": family, "embedding_dim": 4}}))
    view.load(Path())
    view.check()
    for name, parts in view.baselines(0)[0].items():
        assert (parts["validation"]["auc"] > 0.8) == (name != "counting")


def test_init_gives_trees_a_context_of_few_values(log):
    assert main(["init", "log.csv", "--yes"]) == 0
    recipe = yaml.safe_load(Path("log/deepfm.yaml").read_text())
    assert recipe["data"]["statistics"] == ["full", "repeats", "factors", "context"]
    codes = [f"c{number}" for number in np.random.default_rng(1).integers(0, 90, len(log))]
    log.assign(ad=codes).to_csv("wide.csv", index=False)
    assert main(["init", "wide.csv", "--yes", "--item", "item"]) == 0
    assert set(yaml.safe_load(Path("wide/schema.yaml").read_text())["columns"]["context"]) == {"place", "ad"}
    recipes = {name: yaml.safe_load(Path(f"wide/{name}.yaml").read_text()) for name in ("deepfm", "din")}
    assert recipes["deepfm"]["data"]["statistics"] == ["full", "repeats", "factors"]
    assert recipes["din"]["data"]["statistics"] == ["full", "repeats", "factors", "context"]
