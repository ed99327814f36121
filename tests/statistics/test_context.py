"""What a log tells of the moment of an event, as statistics: against plain loops, in requests, and in a training."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lmctr.cli.main import main
from lmctr.data import InteractionLog, load_log, split_log
from lmctr.runs import train
from lmctr.runs.answers import predict_rows
from lmctr.runs.inputs import input_of
from lmctr.runs.recipe import load_recipe
from lmctr.statistics import StatisticsReader, resolve_statistics
from lmctr.statistics.table import context_values

EVENTS = 1500
SCHEMA = """
events: clicks.csv
columns:
  user: user
  item: item
  time: time
  label: click
  context: {place: {column: place, type: integer}, device: device, price: {column: price, type: number}, shown: {column: shown, type: integer}}
"""


@pytest.mark.parametrize("name", ["shop_id", "shop", "shown"])
def test_whole_numbers_under_the_name_of_a_code_are_no_amounts(name):
    """However many there are: their order says nothing."""
    codes = np.repeat(np.arange(60), np.arange(60, 0, -1))
    events = (np.arange(len(codes)), codes, np.arange(len(codes)), codes % 2)
    log = InteractionLog.from_columns(*events, context=pa.table({name: codes}))
    often = tuple(f"context:{name}={code}" for code in sorted(map(str, range(50))))
    assert resolve_statistics("context", log) == (("context:shown",) if name == "shown" else often)


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    """Clicks that follow the place alone."""
    folder, rng = tmp_path_factory.mktemp("context"), np.random.default_rng(0)
    place = rng.integers(1, 5, EVENTS)
    rows = {
        "user": rng.integers(0, 50, EVENTS),
        "item": rng.integers(0, 40, EVENTS),
        "time": np.sort(rng.integers(1_700_000_000, 1_700_900_000, EVENTS)),
        "place": place,
        "device": rng.choice(["phone", "tablet", ""], EVENTS),
        "price": np.round(rng.random(EVENTS), 3),
        "shown": rng.integers(0, 1000, EVENTS),
        "click": (rng.random(EVENTS) < np.where(place <= 2, 0.85, 0.15)).astype(int),
    }
    pd.DataFrame(rows).to_csv(folder / "clicks.csv", index=False)
    (folder / "schema.yaml").write_text(SCHEMA)
    return folder / "schema.yaml"


def test_values_against_loops(schema):
    log = load_log(schema)
    names = resolve_statistics("context", log)
    places = tuple(f"context:place={place}" for place in range(1, 5))
    assert names == (*places, "context:device=phone", "context:device=tablet", "context:price", "context:shown")
    assert resolve_statistics(["user_rate", "context:price"], log) == ("user_rate", "context:price")
    splits = split_log(log)
    reader = StatisticsReader.fit(log, splits.train, ["user_rate", "context"])
    assert reader.context == ("place", "device", "price", "shown")
    raw = reader.raw(log, splits.test)
    rows = log.context.to_pylist()
    for event, values in zip(splits.test, raw):
        row = rows[event]
        expected = [float(row["place"] == place) for place in range(1, 5)]
        expected += [np.nan if not row["device"] else float(row["device"] == name) for name in ("phone", "tablet")]
        np.testing.assert_array_equal(values[1:], [*expected, row["price"], row["shown"]])
    # "" is a missing text
    loaded = StatisticsReader.from_dict(reader.to_dict())
    assert loaded == reader
    assert loaded.whole == ("place", "shown")
    own = rows[splits.test[0]]["place"]
    for place in (own, float(own), str(own), f"0{own}", f" {own}.0 "):
        given = {**rows[splits.test[0]], "place": place, "shown": f"0{rows[splits.test[0]]['shown']}"}
        np.testing.assert_array_equal(loaded.with_context(np.full((1, 9), np.nan), [given])[0, 1:], raw[0, 1:])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("context:pric", "names 'context:pric', but the log's context has place, device, price, shown"),
        (["context:colour=red"], "names 'context:colour=red', but the log's context has place"),
    ],
)
def test_columns_that_are_not_there(schema, names, message):
    with pytest.raises(ValueError, match=message):
        resolve_statistics(names, load_log(schema))


def test_each_value_is_read_once(schema, monkeypatch):
    """A column of few values costs no look at every event for each of its indicators."""
    log = load_log(schema)
    places = [None if place == 3 else place for place in log.context["place"].to_pylist()]
    log = dataclasses.replace(log, context=pa.table({"place": places}))
    read = []

    def counted(row, values):
        read.append(len(values))
        return context_values(row, values)

    monkeypatch.setattr("lmctr.statistics.events.context_values", counted)
    wanted = StatisticsReader.fit(log, split_log(log).train, ["context:place=2", "context:place"])
    raw = wanted.raw(log, np.arange(EVENTS))
    assert max(read) == 4  # 1, 2, 4, and none
    expected = [[np.nan, np.nan] if place is None else [float(place == 2), place] for place in places]
    np.testing.assert_array_equal(raw, expected)


def test_a_log_without_context():
    with pytest.raises(ValueError, match="the log's context has no columns; name them"):
        resolve_statistics("context", load_log("synthetic", num_users=20, num_items=120))


def test_a_sequence_model_reads_the_place_of_an_item(schema, tmp_path, capsys):
    data = {"name": str(schema), "max_history_length": 5, "statistics": ["user_rate", "item_rate", "context"]}
    recipe = {"data": data, "model": {"family": "din"}, "training": {"epochs": 1, "use_cpu": True, "seed": 0}}
    run = train(recipe, output_dir=tmp_path / "run")
    assert run.metrics["split metrics"]["test"]["auc"] > 0.75
    assert run.metrics["baselines"]["gradient_boosting"]["test"]["auc"] > 0.75, "which reads what the model reads"
    blind = {**recipe, "data": {**data, "statistics": ["user_rate", "item_rate"], "baselines": False}}
    blind = train(blind, output_dir=tmp_path / "blind")
    assert blind.metrics["split metrics"]["test"]["auc"] < 0.65

    # A request says the context of each candidate.
    from lmctr.runs.answers.predict import answers_for, load_item_statistics
    from lmctr.runs.answers.served import ServedModel

    context = {"place": 1, "device": None, "price": 0.5, "shown": 7}
    low = {**context, "place": 4}
    request = {"history": [], "time": 1_700_950_000, "candidates": [{"item": 3, "context": c} for c in (context, low)]}
    items = load_item_statistics(run.path, run.processor)
    high, behind = predict_rows(run.model, run.processor, [request], items=items)
    assert high > behind + 1
    for candidate, message in (
        ({"item": 3}, r"candidates\[0\] needs 'context', an object of 'place', 'device', 'price', 'shown'; got none"),
        ({"item": 3, "context": {"place": 1}}, r"candidates\[0\]: context lacks device, price, shown"),
        (
            {"item": 3, "context": {**context, "devise": "phone"}},
            r"unknown key 'devise' in candidates\[0\]: context; did you mean 'device'\? known keys: device, place, price, shown",
        ),
        ({"item": 3, "context": {**context, "price": "1"}}, r"candidates\[0\]: context: 'price' is '1'"),
        (
            {"item": 3, "context": {**context, "device": ["phone"]}},
            r"candidates\[0\]: context: 'device' is \['phone'\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            predict_rows(run.model, run.processor, [{**request, "candidates": [candidate]}], items=items)
    counts = answers_for(run.model, run.processor, items=items)
    odd = {"item": 3, "context": {**context, "place": 9, "device": "Phone"}}
    list(counts.scored([("here", {**request, "candidates": [*request["candidates"], odd]})]))
    assert counts.unknown["contexts of candidates"] == {
        "values": 4,
        "unknown": 2,
    }  # a device that is null has no value
    assert counts.examples["contexts of candidates"] == ["place=9", "device=Phone"]
    served = ServedModel(str(run.path))
    (scored,) = served.score([(served.check({**request, "candidates": [odd]}), None)])
    assert {key: sum(own[key] for own in scored.counts.values()) for key in ("values", "unknown")} == {
        "values": 3,
        "unknown": 2,
    }
    # Values that no training showed are held against validation, as items are.
    kept = run.folder.data()["unknown_by_field"]
    assert {part: shares["contexts of candidates"] for part, shares in kept.items()} == dict.fromkeys(kept, 0.0)
    known = {**context, "device": "phone"}
    for name, told in (("known", known), ("odd", {**known, "device": "Phone"})):
        lines = [json.dumps({**request, "candidates": [{"item": 3, "context": told}]})] * 80
        (tmp_path / name).write_text("\n".join(lines))
        words = ("predict", str(run.path), "--input", str(tmp_path / name), "--output", str(tmp_path / "out.jsonl"))
        assert main(words) == 0
        warning = (
            "field 'contexts of candidates': 50.0% of the values are unknown ('device=Phone', ...), 0.0% in validation"
        )
        assert (warning in capsys.readouterr().err) == (name == "odd")
    clicks = pd.read_csv(schema.parent / "clicks.csv", keep_default_na=False)
    clicks["device"] = clicks["device"].str.upper()
    clicks.to_csv(tmp_path / "clicks.csv", index=False)
    (tmp_path / "other.yaml").write_text(SCHEMA)
    view = input_of(load_recipe(run.recipe.resolved(), {"data.name": str(tmp_path / "other.yaml")}))
    view.load()
    view.open(run.processor)
    counts, examples = view.view.unknown(view.splits.test)
    shown = [view.log.context["device"][int(event)].as_py() for event in view.splits.test]
    unknown = sum(device in ("PHONE", "TABLET") for device in shown)
    assert counts["contexts of candidates"] == {"values": len(shown) + unknown, "unknown": unknown}
    assert sorted(examples["contexts of candidates"]) == ["device=PHONE", "device=TABLET"]
    unordered = [{"item": 3, "time": time, "label": 1} for time in (1_700_940_000, 1_700_930_000)]
    with pytest.raises(ValueError, match=r"history\[1\]: time is 1700930000, before the event at 1700940000"):
        predict_rows(run.model, run.processor, [{**request, "history": unordered}], items=items)
