"""`lmctr train RECIPE --from RUN` where the rows are the samples of a log: fields, statistics and rates stay those of the earlier run."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import yaml
from safetensors.torch import load_file

import lmctr
from lmctr.cli.main import main
from lmctr.data import InteractionLog
from lmctr.data.features.processor import TabularFeatureProcessor

SECOND = 86_400 * 101  # where the second day begins
RECIPE = {
    "data": {"baselines": False, "statistics": ["basic", "hour"]},
    "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [16], "initializer_range": 0.1},
    "training": {"epochs": 1, "learning_rate": 1e-2, "per_device_train_batch_size": 64, "use_cpu": True, "seed": 0},
}


def make_log(days, codes):
    """Users and items move on from day to day, clicks become rarer. codes: different whole numbers of the items' column `code`."""
    parts = []
    for day in days:
        draw, count = np.random.default_rng([0, day]), 900
        user, item = 15 * day + draw.integers(0, 40, count), 20 * day + draw.integers(0, 60, count)
        time = 86_400 * (100 + day) + draw.integers(0, 86_400, count)
        parts.append((user, item, time, (draw.random(count) < 0.5 - 0.3 * day) * 1))
    items = np.arange(400)
    catalogue = pa.table({"item_id": items, "code": items % codes})
    return InteractionLog.from_columns(*map(np.concatenate, zip(*parts)), catalogue=catalogue)


def of(log, **data):
    return {**RECIPE, "data": {**RECIPE["data"], "name": log, **data}}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    return [
        str(make_log(days, codes).save(folder / str(codes))) for days, codes in (([0], 7), ([0, 1], 300), ([0], 9))
    ]


@pytest.fixture(scope="module", params=[["basic", "hour"], []], ids=["reader", "rates as they are"])
def both(request, logs, tmp_path_factory):
    """A finished run of the first day, and one of the second that went on at a learning rate of 0. Read them only."""
    folder, on = tmp_path_factory.mktemp("runs"), {"statistics": request.param}
    first = lmctr.runs.train(of(logs[0], **on), output_dir=folder / "first")
    still = {"training.learning_rate": 0.0, "training.weight_decay": 0.0, "training.from_run": str(first.path)}
    return first, lmctr.runs.train(of(logs[1], since=SECOND, **on), output_dir=folder / "second", overrides=still)


def test_values_keep_their_vectors_and_fields_their_types(both):
    earlier, later = (TabularFeatureProcessor.from_pretrained(run.path) for run in both)
    assert [field.type for field in later.fields] == [field.type for field in earlier.fields]
    assert "code" in later.state.vocabularies  # 300 whole numbers would by themselves be no categories
    assert earlier.state.moments.keys() == later.state.moments.keys()
    for name, (*scale, low, high) in earlier.state.moments.items():
        *kept, least, most = later.state.moments[name]
        assert kept == scale, name
        assert least <= low <= high <= most
    assert later.state.moments["user_count"][3] > earlier.state.moments["user_count"][3]
    tables = [load_file(run.path / "model.safetensors")["model.embedding.groups.4.table.weight"] for run in both]
    ids = [own.state.vocabularies["user_id"].values.to_pylist() for own in (earlier, later)]
    assert set(ids[1]) - set(ids[0]) == {str(user) for user in range(40, 55)}
    for user in ids[0]:
        rows = [table[2 + own.index(user)] for table, own in zip(tables, ids)]
        torch.testing.assert_close(*rows, atol=0, rtol=0)


def test_rates_are_smoothed_towards_those_of_the_first_training(both):
    """Also where a run is evaluated, by whatever parts: the last tenth has the same samples in all."""
    prior, again = (json.loads((run.path / "log_statistics.json").read_text())["prior"] for run in both)
    assert prior == again > 0.4
    for run in both:
        for parts in ({}, {"data.fractions": [0.3, 0.6, 0.1]}):
            found = run.evaluate("test", overrides=parts)
            assert found == pytest.approx({name: run.metrics["test"][name] for name in found}, abs=1e-6)


def test_what_was_seen_is_told_with_the_way_around(logs, both, tmp_path, capsys):
    overrides = {"training.from_run": str(both[0].path), "training.max_steps": 2}
    statistics = both[0].recipe.data["statistics"]
    lmctr.runs.train(of(logs[1], statistics=statistics), output_dir=tmp_path / "run", overrides=overrides)
    said = capsys.readouterr().out
    assert "720 of 1,440 training samples are no newer than those that it was trained on: with data.since " in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"history_length": 3}}, "field 'liked_items' is .* only .* may change"),
        ({"options": {"strength": 3.0}}, "data.options.strength is 3.0 here and None in "),
        ({"statistics": "full"}, "data.statistics is .*keep it, or train anew"),
    ],
)
def test_other_settings_are_refused(both, logs, tmp_path, changes, words):
    changes = {"statistics": both[0].recipe.data["statistics"], **changes}
    with pytest.raises(ValueError, match=words):
        lmctr.runs.train(
            of(logs[2], **changes),
            output_dir=tmp_path / "run",
            overrides={"training.from_run": str(both[0].path)},
        )


def test_since_is_of_logs(tmp_path, capsys):
    assert main(["train", "dnn/synthetic", "--data.since", "2024-03-01", "--output-dir", str(tmp_path / "run")]) == 2
    assert "but 'synthetic_table' is a table; leave it out" in capsys.readouterr().err


def test_columns_are_the_fields_that_they_were_however_their_values_grow(tmp_path, capsys):
    """A text that comes to tell most users apart stays a field, one that no longer does becomes none, which is told where a training goes on."""
    rng = np.random.default_rng(0)
    user, later = rng.integers(0, 60, 1200), rng.integers(0, 300, 1200)
    columns = {
        "user": user,
        "item": user % 7,
        "time": np.arange(1200) * 60 + 1_700_000_000,
        "label": (user % 2) | (rng.random(1200) < 0.3),
    }
    early = pd.DataFrame(columns)
    newer = early.assign(user=later, item=later % 7, time=early["time"] + 100_000, label=later % 2)
    people = pd.DataFrame(
        {"user": range(300), "city": [f"c{place if place > 60 else place % 40}" for place in range(300)]}
    )
    people["nick"] = [f"n{place}" for place in range(60)] + ["n"] * 240
    people["number"] = [f"x{place}" for place in range(300)]
    for name, rows, known in (("early", early, people.head(60)), ("all", pd.concat([early, newer]), people)):
        (tmp_path / name).mkdir()
        rows.to_csv(tmp_path / name / "clicks.csv", index=False)
        known.to_csv(tmp_path / name / "people.csv", index=False)
        schema = {"events": "clicks.csv", "columns": {key: key for key in columns}, "users": "people.csv"}
        (tmp_path / name / "schema.yaml").write_text(yaml.safe_dump(schema))

    def recipe(name, **more):
        data = {"name": str(tmp_path / name / "schema.yaml"), "baselines": False, "statistics": "basic", **more}
        training = {"max_steps": 5, "use_cpu": True}
        return {
            "data": data,
            "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [8]},
            "training": training,
        }

    first = lmctr.runs.train(recipe("early"), output_dir=tmp_path / "a", quiet=True)
    assert [field.name for field in first.processor.fields if field.name in people] == ["city"]
    asked, schema = newer.drop(columns="label").query("user < 60"), tmp_path / "all" / "schema.yaml"
    scores = first.predict(asked, log=schema, allow_unknown=True)
    people.assign(city="c1").to_csv(tmp_path / "all" / "people.csv", index=False)
    assert np.abs(scores - first.predict(asked, log=schema, allow_unknown=True)).max() > 1e-4
    people.to_csv(tmp_path / "all" / "people.csv", index=False)
    assert 0 < first.evaluate("test", overrides={"data.name": str(schema)})["auc"] < 1
    on = {"training.from_run": str(first.path)}
    later = lmctr.runs.train(recipe("all", since=1_700_100_000), output_dir=tmp_path / "b", overrides=on)
    assert [field.name for field in later.processor.fields] == [field.name for field in first.processor.fields]
    assert "; it has no field nick: train anew without --from to read it" in capsys.readouterr().out
