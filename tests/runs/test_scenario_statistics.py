"""The set `scenario`: where a candidate is shown is a statistic, of training, of rows joined with the log and of requests alike."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from place_logs import events_of_places

import lmctr
from lmctr.cli.main import main
from lmctr.runs.recipe import RecipeError

PLACES = ["feed", "home", "search"]
NAMES = tuple(f"context:@scenario={place}" for place in PLACES)
SCHEMA = {
    "name": "shop",
    "events": {"path": "log.csv"},
    "columns": {"user": "user", "item": "item", "time": "ts", "label": "clicked", "scenario": "scene"},
}


@pytest.fixture
def log(tmp_path, monkeypatch):
    """1,200 events in the working folder, whose place alone says how likely a click is; a column of the context is called as the set."""
    monkeypatch.chdir(tmp_path)
    rows = events_of_places(
        1200,
        [0.05, 0.5, 0.9],
        scene=lambda draw, place: np.array(PLACES)[place],
        scenario=lambda draw, place: draw.choice(["x", "y"], 1200),
    )
    rows.to_csv("log.csv", index=False)
    return rows


def trained(family, context=(), **data):
    columns = {**SCHEMA["columns"], "context": list(context)}
    Path("shop.yaml").write_text(yaml.safe_dump({**SCHEMA, "columns": columns}))
    recipe = {
        "data": {"name": "shop.yaml", "baselines": False, **data},
        "model": {"family": family, "embedding_dim": 4} | ({"use_numeric_skip": True} if family == "dnn" else {}),
        "training": {"epochs": 1, "per_device_train_batch_size": 64, "use_cpu": True, "boosting_share": 0.5},
    }
    return lmctr.runs.train(recipe, output_dir=f"runs/{family}")


@pytest.mark.parametrize("family", ["din", "dnn"])
def test_rows_have_the_statistics_of_the_training(log, family):
    run = trained(family, statistics=["basic", "scenario"])
    assert set(NAMES) <= set(run.processor.statistics_reader.names)
    kept = pd.read_parquet(Path("runs", family, "predictions", "test.parquet"))
    assert run.metrics["test"]["auc"] > 0.75
    rows = log.iloc[-len(kept) :]
    found = run.predict(rows.drop(columns="clicked"))
    np.testing.assert_allclose(found, kept["logit"], atol=1e-5)
    assert np.corrcoef(rows["scene"].map(PLACES.index), found)[0, 1] > 0.8


@pytest.mark.parametrize("context", [(), ("scenario",)])
def test_requests_have_those_of_rows(log, context):
    run = trained("din", context, statistics=["basic", "scenario", *(["context"] if context else [])])
    later = int(log["ts"].max()) + 100
    rows = pd.DataFrame({"user": "a new one", "item": "i3", "ts": later, "scene": PLACES, "scenario": "y"})
    expected = run.predict(rows)
    assert len({*np.round(expected, 3)}) == 3
    told = {"context": {"scenario": "y"}} if context else {}
    candidates = [{"item": "i3", "scenario": place, **told} for place in PLACES]
    np.testing.assert_allclose(run.score([], candidates, later), expected, atol=1e-5)
    codes = [{**entry, "scenario": PLACES.index(entry["scenario"])} for entry in candidates]
    np.testing.assert_allclose(run.score([], codes, later), expected, atol=1e-5)
    unsaid = run.score([], [{"item": "i3", **told}], later)
    np.testing.assert_allclose(unsaid, expected[run.processor.scenario_names.index("feed")], atol=1e-5)
    with pytest.raises(ValueError, match=r"candidates\[1\].*scenario 'shop'"):
        run.score([], [candidates[0], {**candidates[1], "scenario": "shop"}], later)
    with pytest.raises(ValueError, match=r"candidates\[0\]: context"):
        run.score([], [{**candidates[0], "context": {**told.get("context", {}), "@scenario": "home"}}], later)


def test_where_there_is_no_scenario(log):
    Path("one.yaml").write_text(
        yaml.safe_dump({**SCHEMA, "columns": {k: v for k, v in SCHEMA["columns"].items() if k != "scenario"}})
    )
    with pytest.raises(ValueError, match="'scenario', of which the log has less than two"):
        trained("din", statistics=["basic", "scenario"], name="one.yaml")
    with pytest.raises(RecipeError, match="requests of texts tell no scenario"):
        lmctr.runs.train(
            "ctr_sink/quickstart", output_dir="runs/t", overrides={"data.statistics": ["full", "scenario"]}
        )


def test_init_names_it_where_requests_tell_it(log):
    assert main(["init", "log.csv", "--yes"]) == 0
    assert yaml.safe_load(Path("log/schema.yaml").read_text())["columns"]["scenario"] in ("scene", "scenario")
    sets = {
        name: yaml.safe_load(Path(f"log/{name}.yaml").read_text())["data"]["statistics"]
        for name in ("din", "deepfm", "ctr_sink")
    }
    assert {name: "scenario" in own for name, own in sets.items()} == {"din": True, "deepfm": True, "ctr_sink": False}
