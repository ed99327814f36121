"""Metrics with histories and statistics as they were when a part began."""

import dataclasses

import pytest

import lmctr
from lmctr.data import split_log, synthetic_log
from lmctr.runs.inputs import input_of
from lmctr.runs.recipe import load_recipe

MODELS = {"din": {"family": "din"}, "dnn": {"family": "dnn", "embedding_dim": 2, "hidden_units": [8]}}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """A log, and the same with what happened since its test part began hidden by hand."""
    log = synthetic_log(num_users=60, seed=0)
    hidden = log.time >= log.time[split_log(log).test].min()
    assert 0.05 < hidden.mean() < 0.5
    folder = tmp_path_factory.mktemp("logs")
    return log.save(folder / "plain"), dataclasses.replace(log, hidden=hidden).save(folder / "hidden")


@pytest.mark.parametrize("family", MODELS)
def test_metrics_are_those_of_a_log_whose_later_events_are_hidden(logs, tmp_path, family):
    plain, by_hand = map(str, logs)
    recipe = {"data": {"name": plain, "statistics": "full"}, "model": MODELS[family], "training": {"max_steps": 60}}
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run", quiet=True)
    expected = run.evaluate("test", {"data.name": by_hand})
    found = run.evaluate("test", frozen_histories=True)
    assert found == pytest.approx(expected, abs=1e-6)
    assert abs(found["log_loss"] - run.metrics["test"]["log_loss"]) > 1e-3
    assert found["num_samples"] == run.metrics["test"]["num_samples"]


@pytest.mark.parametrize(("data", "family", "message"), [
    ({"name": "synthetic_table", "options": {"num_rows": 600}}, "dnn", "'synthetic_table' is no interaction log"),
    ({"name": "synthetic_sequence", "split": "user"}, "din", "cut by user"),
    ({"name": "synthetic_sequence", "split": "user"}, "dnn", "cut by user"),
])  # fmt: skip
def test_data_without_such_a_moment_are_refused(data, family, message):
    view = input_of(load_recipe({"data": data, "model": MODELS[family], "training": {}}))
    view.load()
    with pytest.raises(ValueError, match=f"^frozen_histories: .*{message}"):
        view.freeze("test")
