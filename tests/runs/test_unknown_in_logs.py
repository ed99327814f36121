"""What items and words of a log a model does not know: counted by part, kept with the run, held against what comes later."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from tiny_backbones import TINY_BERT

from lmctr.cli.main import main
from lmctr.runs import evaluate, train
from lmctr.runs.inputs import input_of
from lmctr.runs.recipe import load_recipe

ITEMS, COLUMNS = 30, "{user: user, item: item, time: time, label: click}"
DIN = {"family": "din"}
TEXT = {
    "backbone": TINY_BERT,
    "tokenizer": {"type": "wordpiece", "vocab_size": 200},
}


def write_log(folder, first_item=0, script="Thing"):
    """A schema and its files, in which the second half of the items comes after training."""
    rng, folder = np.random.default_rng(0), folder / f"log{first_item}{script}"
    folder.mkdir()
    time = np.sort(rng.integers(1_700_000_000, 1_700_900_000, 1200))
    item = np.where(time < time[960], rng.integers(0, ITEMS, 1200), rng.integers(0, 2 * ITEMS, 1200)) + first_item
    rows = {"user": rng.integers(0, 60, 1200), "item": item, "time": time, "click": rng.integers(0, 2, 1200)}
    pd.DataFrame(rows).to_csv(folder / "clicks.csv", index=False)
    items = np.unique(item)
    titles = [f"{script} {number}" if number < first_item + ITEMS else f"вещь {number}" for number in items]
    pd.DataFrame({"item": items, "title": titles}).to_csv(folder / "items.csv", index=False)
    text = f"events: clicks.csv\ncolumns: {COLUMNS}\ncatalogue: items.csv\n"
    (folder / "schema.yaml").write_text(text)
    return folder / "schema.yaml"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unknown")
    data = {"name": str(write_log(folder)), "max_history_length": 5, "baselines": False}
    recipe = {"data": data, "model": DIN, "training": {"epochs": 1, "use_cpu": True}}
    return train(recipe, output_dir=folder / "run")


@pytest.mark.parametrize("what", ["items", "tokens"])
def test_counts_against_loops(tmp_path, what):
    name = str(write_log(tmp_path))
    own = {"max_history_length": 5} if what == "items" else {"num_behaviors": 5, "prompt": "generic/en"}
    recipe = {"data": {"name": name, **own}, "model": DIN if what == "items" else TEXT, "training": {}}
    view = input_of(load_recipe(recipe))
    view.load()
    processor = view.make_processor()
    view.open(processor)
    log, seen = view.log, set()
    titles, ids = (log.catalogue[column].to_pylist() for column in ("title", "item_id"))
    for event in view.splits.train:
        seen |= {log.item[event], *log.item[slice(*(bound[0] for bound in log.history_bounds(np.array([event]))))]}

    def values(item):
        if what == "items":
            return 1, int(item not in seen)
        tokens = processor.tokenizer(processor.item_texts(log.catalogue.slice(item, 1)), add_special_tokens=False)
        tokens = tokens["input_ids"][0]
        return len(tokens), tokens.count(processor.tokenizer.unk_token_id)

    events = view.splits.test
    expected = {"candidates": np.zeros(2, int), "histories": np.zeros(2, int)}
    for event in events:
        expected["candidates"] += values(log.item[event])
        earlier = [
            e for e in range(log.num_events) if log.user[e] == log.user[event] and log.time[e] < log.time[event]
        ]
        for other in earlier[-5:]:
            expected["histories"] += values(log.item[other])
    counts, examples = view.view.unknown(events)
    for role, (total, unknown) in expected.items():
        assert counts[f"{what} of {role}"] == {"values": total, "unknown": unknown}
        assert 0 < unknown < total
    new = {
        str(ids[item]) if what == "items" else titles[item] for item in np.unique(log.item[events]) if values(item)[1]
    }
    assert examples[f"{what} of candidates"][0] in new


def requests(path, first_item, count=40, **more):
    lines = []
    for number in range(count):
        history = [{"item": first_item + (number + n) % ITEMS, "time": 1_700_000_000 + n, **more} for n in range(4)]
        lines.append({"history": history, "target": {"item": first_item + number % ITEMS}, "time": 1_700_950_000})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines * 4))
    return str(path)


def test_shares_are_kept_and_held_against_requests(run, tmp_path, capsys):
    kept = json.loads((run.path / "data.json").read_text())["unknown_by_field"]
    assert kept["train"]["items of candidates"] == 0
    assert 0.3 < kept["test"]["items of candidates"] < 0.7
    words = ["predict", str(run.path), "--output", str(tmp_path / "out.jsonl"), "--input"]
    for behavior in ({"behavior": "positive"}, {"label": 1}, {"label": 0}):
        assert main([*words, requests(tmp_path / "known.jsonl", 0, **behavior)]) == 0
        error = capsys.readouterr().err
        assert "warning" not in error
        assert "no unknown values" in error
    for behavior in ({}, {"behavior": "unknown"}):
        assert main([*words, requests(tmp_path / "unsaid.jsonl", 0, **behavior)]) == 0
        error = capsys.readouterr().err
        assert "field 'behaviors of histories': 100.0% of the values are unknown, 0.0% in validation" in error
        assert "unknown values: behaviors of histories 100.0%" in error
    other = requests(tmp_path / "other.jsonl", 5000)
    assert main([*words, other]) == 2
    error = capsys.readouterr().err
    assert "'items of candidates': 100.0% of the values are unknown ('50" in error
    assert "--allow-unknown" in error
    assert main([*words, other, "--allow-unknown"]) == 0
    assert "warning: " in capsys.readouterr().err


def test_graded_values_that_requests_do_not_say_are_told(tmp_path, capsys):
    """Statistics of stars or watched seconds are of what a history's events say: without, a request has other scores than its row."""
    schema = write_log(tmp_path)
    rows = pd.read_csv(schema.parent / "clicks.csv")
    rows["watched"] = np.where(rows["click"] == 1, 1 + rows["item"] % 3, np.where(rows.index % 5, 0, np.nan))
    rows.to_csv(schema.parent / "clicks.csv", index=False)
    schema.write_text(schema.read_text().replace("label: click", "label: click, feedback_values: watched"))
    data = {"name": str(schema), "max_history_length": 5, "baselines": False, "statistics": "full"}
    recipe = {"data": data, "model": DIN, "training": {"epochs": 1, "use_cpu": True}}
    run = train(recipe, output_dir=tmp_path / "run")
    view = input_of(load_recipe(recipe))
    view.load()
    view.open(view.make_processor())
    log, events = view.log, view.splits.test
    values = [
        own
        for event in events
        for own in log.feedback_values[slice(*(bound[0] for bound in log.history_bounds(np.array([event]))))][-5:]
    ]
    expected = {"values": len(values), "unknown": int(np.isnan(values).sum())}
    assert view.view.unknown(events)[0]["graded values of histories"] == expected
    words = ["predict", str(run.path), "--output", str(tmp_path / "out.jsonl"), "--input"]
    for more, share in (({"value": 2.0}, ""), ({"value": None}, "100.0%"), ({}, "100.0%")):
        assert main([*words, requests(tmp_path / "lines.jsonl", 0, label=1, **more)]) == 0
        error = capsys.readouterr().err
        assert ("warning" in error) == bool(share)
        assert (f"unknown values: graded values of histories {share}" if share else "no unknown values") in error


def test_other_logs_are_refused_by_evaluate_and_joined_predictions(run, tmp_path, capsys):
    other = write_log(tmp_path, first_item=5000)
    with pytest.raises(ValueError, match=r"'items of candidates': 100.0% of the values are unknown"):
        evaluate(run.path, overrides={"data.name": str(other)})
    assert evaluate(run.path, overrides={"data.name": str(other)}, allow_unknown=True)
    pd.read_csv(other.parent / "clicks.csv").drop(columns="click").tail(150).to_csv(tmp_path / "rows.csv", index=False)
    words = ["predict", str(run.path), "--input", str(tmp_path / "rows.csv"), "--log", str(other), "--output"]
    assert main([*words, str(tmp_path / "out.csv")]) == 2
    assert "'items of candidates': 100.0% of the values are unknown" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "out.csv"), "--allow-unknown"]) == 0
    assert "warning: " in capsys.readouterr().err
    assert len(pd.read_csv(tmp_path / "out.csv")) == 150


def test_a_run_of_another_machine_takes_the_log_that_is_here(run, tmp_path, capsys):
    """What a Hub id gives: the run folder, without the files that its recipe names."""
    home = run.path.parent / "log0Thing"
    pd.read_csv(home / "clicks.csv").drop(columns="click").tail(50).to_csv(tmp_path / "rows.csv", index=False)
    words = ["predict", str(run.path), "--input", str(tmp_path / "rows.csv"), "--output"]
    assert main([*words, str(tmp_path / "own.csv")]) == 0
    shutil.move(home, tmp_path / "here")
    try:
        assert main([*words, str(tmp_path / "out.csv"), "--log", str(tmp_path / "here" / "schema.yaml")]) == 0
        capsys.readouterr()
        assert main([*words, str(tmp_path / "none.csv")]) == 2
        error = capsys.readouterr().err
    finally:
        shutil.move(tmp_path / "here", home)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out.csv"), pd.read_csv(tmp_path / "own.csv"))
    assert "no such schema file" in error
    assert "--log" in error
