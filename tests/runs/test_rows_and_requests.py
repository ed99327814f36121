"""The same users and items get the same scores, however their ids are written, and as rows of a table or as requests."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score
from tiny_backbones import TINY_BERT

import lmctr
from lmctr.cli.main import main
from lmctr.data import split_log
from lmctr.data.processors.extend_sequence import extend_sequence_processor
from lmctr.data.processors.feature_values import OOV
from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.runs.answers.served import ServedModel

ROWS, ITEMS = 1500, 60
COLUMNS = {
    "user": "user",
    "item": "item",
    "time": "time",
    "label": "click",
    "context": {"device": "device", "place": "place"},
}


def write_log(folder):
    """Items of which the second half comes after training; each has a kind that says a lot."""
    rng = np.random.default_rng(0)
    time = np.sort(rng.integers(1_700_000_000, 1_700_900_000, ROWS))
    item = np.where(time < time[1300], rng.integers(1, ITEMS // 2, ROWS), rng.integers(1, ITEMS, ROWS))
    click = (item % 3 == 0) ^ (rng.random(ROWS) < 0.1)
    rows = {"user": rng.integers(1, 40, ROWS), "item": item, "time": time, "click": click.astype(int)}
    rows |= {"device": rng.choice(["phone", "desk"], ROWS), "place": rng.integers(0, 4, ROWS)}
    pd.DataFrame(rows).to_csv(folder / "clicks.csv", index=False)
    kinds = [f"kind {number % 3}" for number in range(1, ITEMS)]
    pd.DataFrame({"item": np.arange(1, ITEMS), "kind": kinds}).to_csv(folder / "items.csv", index=False)
    schema = {"events": "clicks.csv", "columns": COLUMNS, "catalogue": "items.csv"}
    (folder / "schema.yaml").write_text(json.dumps(schema))
    return folder / "schema.yaml"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    data = {"name": str(write_log(folder)), "item_features": ["kind"], "statistics": ["full", "factors", "context"]}
    data |= {"baselines": False, "max_history_length": 20}
    recipe = {"data": data, "model": {"family": "din", "embedding_dim": 4}, "training": {"epochs": 2, "use_cpu": True}}
    recipe["training"]["learning_rate"] = 0.03  # so that items of a kind are told apart
    return lmctr.runs.train(recipe, output_dir=folder / "run")


@pytest.fixture(scope="module")
def rows(run):
    """Rows after all of the log, of items that training knows and others of the catalogue."""
    count = 150
    rng = np.random.default_rng(1)
    rows = {"user": rng.integers(1, 40, count), "item": rng.integers(1, ITEMS, count), "time": 1_700_900_100}
    return pd.DataFrame(rows | {"device": "phone", "place": rng.integers(0, 4, count)})


def test_requests_know_the_features_of_items_that_training_did_not_meet(run, rows, tmp_path):
    processor = run.processor
    unknown = set(processor.unknown_items(range(1, ITEMS)))
    assert len(unknown) > 20
    none = np.zeros((1, ITEMS, len(processor.statistics)))
    batch = processor(histories=[[]], candidates=[[*range(1, ITEMS), ITEMS + 7]], times=[5], statistics=none)
    kinds = [f"kind {number % 3}" for number in range(1, ITEMS)]
    expected = [processor.features["kind"].index(kind) + 2 for kind in kinds] + [OOV]
    assert batch["candidate_features"][0, :, 0].tolist() == expected
    wanted = [OOV if number in unknown or number > ITEMS else processor.item_codes(pa.array([number]))[0] for number in
              [*range(1, ITEMS), ITEMS + 7]]  # fmt: skip
    assert batch["candidate_items"][0].tolist() == wanted
    # An item that nobody knows has the features that the request says; a known one those that are known.
    new = {"item": ITEMS + 7, "kind": "kind 1"}
    told = processor(
        histories=[[{"item": 3, "time": 1}, {**new, "behavior": "positive", "time": 2}], []],
        candidates=[
            [5, new, {"item": 3, "kind": "kind 2"}],
            [{"item": ITEMS + 8, "kind": "no such"}, {**new, "kind": None}, 3],
        ],
        times=[5, 5],
        statistics=np.zeros((2, 3, len(processor.statistics))),
    )
    code = {kind: place + 2 for place, kind in enumerate(processor.features["kind"])}
    expected = [[code["kind 2"], code["kind 1"], code["kind 0"]], [OOV, OOV, code["kind 0"]]]
    assert told["history_features"][:, :, 0].tolist() == [[code["kind 0"], code["kind 1"]], [0, 0]]
    assert told["candidate_features"][:, :, 0].tolist() == expected
    assert told["candidate_items"][0, 1] == told["history_items"][0, 1] == OOV
    candidates = [{"context": {"device": "phone", "place": 1}, **own} for own in ({"item": ITEMS + 7}, new)]
    first, second = run.score([], candidates, 1_700_950_000)
    assert abs(first - second) > 1e-4
    processor.save_pretrained(tmp_path)
    again = SequenceProcessor.from_pretrained(tmp_path)
    assert again.items.equals(processor.items)
    assert again.others.equals(processor.others)
    np.testing.assert_array_equal(run.predict(rows.head(9).to_dict("records")), run.predict(rows.head(9)))
    with pytest.raises(ValueError, match=r"no list of values, got .*; give \[row\] for a single row"):
        run.predict(rows.to_dict("records")[0])
    log = pd.read_csv(run.path.parent / "clicks.csv")
    for number, row in enumerate(rows.head(40).itertuples()):
        own = log[log.user == row.user]
        history = [
            {"item": int(item), "time": int(time), "label": int(click), "behavior": ("negative", "positive")[click]}
            for item, time, click in zip(own.item, own.time, own.click)
        ]
        context = {"device": row.device, "place": row.place}
        target = {"item": int(row.item), "context": context}
        found = run.predict([{"history": history, "candidates": [target], "time": int(row.time)}])
        np.testing.assert_allclose(found, run.predict(rows.iloc[[number]]), atol=1e-5)
        wrong = {**target, "item": float(row.item)}  # a whole number all the same
        same = run.predict([{"history": history, "candidates": [wrong], "time": int(row.time)}])
        np.testing.assert_array_equal(same, found)


@pytest.mark.parametrize(
    "once",
    [
        lambda table: table.to_reader(max_chunksize=4),
        lambda table: iter(table.to_batches(max_chunksize=4)),
        lambda table: table.to_batches(max_chunksize=4),
        lambda table: (row for row in table.to_pylist()),
        lambda table: table.to_pandas().itertuples(index=False),
        lambda table: [table.slice(at, 4).to_pandas() for at in range(0, max(1, len(table)), 4)],
        lambda table: (table.slice(at, 4).to_pandas() for at in range(0, max(1, len(table)), 4)),
    ],
    ids=["reader", "batches", "list of batches", "dicts", "tuples", "list of frames", "frames"],
)
def test_rows_that_can_be_read_once_are_joined_too(run, rows, once):
    table = pa.Table.from_pandas(rows.head(9), preserve_index=False)
    np.testing.assert_array_equal(run.predict(once(table)), run.predict(table))
    with pytest.raises(ValueError, match="no column 'time'"):
        run.predict(once(table.drop_columns("time")))
    assert run.predict(once(table.slice(0, 0))).shape == (0,)
    users = pa.table({"user": [3, 1]})
    assert run.recommend(once(users), top=2).equals(run.recommend(users, top=2))
    assert run.recommend(iter([3, 1]), top=2).equals(run.recommend([3, 1], top=2))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("zone", ["+02:00", ""])
def test_times_with_a_zone_beside_times_without_one_are_told(run, rows, tmp_path, caplog, zone, kind):
    """Both are read, what has none as UTC, and a night may lie between them."""
    schema = write_log(tmp_path)
    written = {
        own: lambda seconds, own=own: pd.to_datetime(seconds, unit="s").dt.strftime(f"%Y-%m-%dT%H:%M:%S{own}")
        for own in ("+02:00", "")
    }
    log, asked = pd.read_csv(tmp_path / "clicks.csv"), rows.head(9)
    if kind == "csv":
        log.assign(time=written[zone](log.time)).to_csv(tmp_path / "clicks.csv", index=False)
    else:
        times = pd.to_datetime(log.time, unit="s", utc=bool(zone))
        log.assign(time=times).to_parquet(tmp_path / "clicks.parquet", index=False)
        schema.write_text(schema.read_text().replace("clicks.csv", "clicks.parquet"))
    for own, write in written.items():
        caplog.clear()
        run.predict(asked.assign(time=write(asked.time)), log=str(schema))
        words = ("a zone, and those of the log none", "no zone, and those of the log one")[not own]
        told = [f"rows: the times have {words}: what has none is read as UTC"] if own != zone else []
        assert [message for message in caplog.messages if "zone" in message] == told
    caplog.clear()
    run.predict(asked, log=str(schema))  # unix seconds
    assert not any("zone" in message for message in caplog.messages)


@pytest.mark.parametrize("family", ["dnn", "din", "ctr_sink"])
def test_rows_of_new_items_and_users_bring_their_columns(tmp_path, family):
    """Columns of the events describe items and users: tomorrow's new ad has its campaign in the row that is to be scored, and stands in no log yet."""
    write_log(tmp_path)
    events = pd.read_csv(tmp_path / "clicks.csv")
    events = events.assign(
        kind=[f"kind {own % 3}" for own in events.item], land=[f"{own % 2:02}" for own in events.user]
    )
    data = {"baselines": False, "max_train_samples": 300, "max_eval_samples": 50}
    model, training = {"family": family}, {"epochs": 3, "use_cpu": True, "learning_rate": 0.03, "boosting_share": 0}
    if family == "ctr_sink":
        data |= {"prompt": {"base": "generic/en", "item": "{kind}"}, "num_behaviors": 3}
        model |= {"backbone": TINY_BERT, "tokenizer": {"type": "wordpiece", "vocab_size": 200}}
        training = {"stage1_epochs": 0, "stage2_epochs": 3, "use_cpu": True, "learning_rate": 0.01}
    elif family == "din":
        data |= {"item_features": ["kind"], "user_features": ["land"]}
    schema = {"columns": {**COLUMNS, "context": {}}, "catalogue": {"columns": {"kind": {"column": "kind"}}}}
    schema |= {"users": {"columns": {"land": {"column": "land", "type": "text"}}}}
    events.to_csv(tmp_path / "events.csv", index=False)
    (tmp_path / "own.yaml").write_text(json.dumps({"events": "events.csv", **schema}))
    options = [(str(tmp_path / "own.yaml"), {}), (str(tmp_path / "events.csv"), schema)]
    name, own = options[family == "dnn"]
    data |= {"name": name, "options": own}
    run = lmctr.runs.train({"data": data, "model": model, "training": training}, output_dir=tmp_path / "run")
    known = {"user": 1, "time": 1_700_900_100, "land": "01"}
    rows = [
        {**known, "item": item, "kind": f"kind {kind}"}
        for item, kind in ((901, 0), (902, 0), (903, 1), (3, 0), (3, 1))
    ]
    found = run.predict(pd.DataFrame(rows))
    assert abs(found[0] - found[1]) < 1e-5 < 1e-3 < abs(found[0] - found[2])
    assert abs(found[3] - found[4]) < 1e-5  # what the log says of a known one
    mixed = run.predict(pd.DataFrame(rows * 2 + rows[::-1]))  # each new one once
    np.testing.assert_allclose(mixed, [*found, *found, *found[::-1]], atol=1e-5)
    lacking = pd.DataFrame(rows).drop(columns="kind")
    if family == "ctr_sink":
        with pytest.raises(ValueError, match="row 1: 901"):
            run.predict(lacking)
        return
    assert np.ptp(run.predict(lacking)[:3]) < 1e-5
    users = [{**rows[2], "user": 900 + number, "land": land} for number, land in enumerate(("00", "00", "01"))]
    found = run.predict(pd.DataFrame(users))
    assert abs(found[0] - found[1]) < 1e-5 < 1e-3 < abs(found[0] - found[2])


def test_codes_of_the_context_are_read_as_they_are_written(tmp_path):
    """What the schema calls a text: 00123 is no 123, neither of the events nor of the rows to score."""
    write_log(tmp_path)
    events = pd.read_csv(tmp_path / "clicks.csv")
    events = events.assign(place=[f"{number:05}" for number in events.item % 3], device=events.user % 2 == 0)
    events.to_csv(tmp_path / "clicks.csv", index=False)
    context = {"place": {"column": "place", "type": "text"}, "device": {"column": "device", "type": "text"}}
    schema = {"events": "clicks.csv", "columns": {**COLUMNS, "context": context}}
    (tmp_path / "schema.yaml").write_text(json.dumps(schema))
    log = lmctr.data.load_log(tmp_path / "schema.yaml")
    assert {*log.context["place"].to_pylist()} == {"00000", "00001", "00002"}
    data = {"name": str(tmp_path / "schema.yaml"), "statistics": ["full", "context"], "baselines": False}
    recipe = {"data": data, "model": {"family": "dnn"}, "training": {"epochs": 1, "use_cpu": True}}
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    last = events.sort_values("time", kind="stable").tail(100)
    last.to_csv(tmp_path / "last.csv", index=False)
    found = run.predict(tmp_path / "last.csv")
    right = roc_auc_score(last.click, found)
    assert right == pytest.approx(run.metrics["test"]["auc"], abs=0.1)
    assert right > 0.8


def test_an_extended_processor_knows_them_too(run):
    log = lmctr.data.load_log(run.path.parent / "schema.yaml")
    events = split_log(log).train
    early, late = events[log.time[events] < 1_700_300_000], events[log.time[events] >= 1_700_300_000]
    old = SequenceProcessor.fit(log, early, item_features=["kind"], min_count=14)
    assert 3 < old.items.num_rows < 25
    counts = np.bincount(log.item[late], minlength=log.num_items)
    new, _ = extend_sequence_processor(old, log, late, min_count=int(np.median(counts[counts > 0])), max_idle=1)
    both = [*new.items["item_id"].to_pylist(), *new.others["item_id"].to_pylist()]
    assert sorted(both) == list(range(1, ITEMS))
    assert min(new.items.num_rows, new.others.num_rows) > 5
    for own in (new.items, new.others):
        kinds = [f"kind {number % 3}" for number in own["item_id"].to_pylist()]
        assert own["kind"].to_pylist() == [new.features["kind"].index(kind) + 2 for kind in kinds]


@pytest.mark.parametrize("write", [lambda own: f"{own}.0", lambda own: f"{own:05}", lambda own: f" {own} "])
@pytest.mark.parametrize("column", ["user", "item"])
def test_ids_of_whole_numbers_are_read_as_such(run, rows, tmp_path, column, write):
    expected = run.predict(rows)
    assert np.std(expected) > 0.1
    changed = rows.assign(**{column: [write(own) for own in rows[column]]})
    changed.to_csv(tmp_path / "rows.csv", index=False)
    np.testing.assert_array_equal(run.predict(tmp_path / "rows.csv"), expected)
    changed.loc[3, column] = "guest7"
    found = run.predict(changed)
    np.testing.assert_allclose(np.delete(found, 3), np.delete(expected, 3), atol=1e-5)
    assert found[3] != expected[3]


def test_rows_as_json_lines(run, rows, tmp_path):
    rows.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    np.testing.assert_array_equal(run.predict(tmp_path / "rows.jsonl"), run.predict(rows))


def predict(run, folder, rows, *words):
    rows.to_csv(folder / "rows.csv", index=False)
    words = ["--input", str(folder / "rows.csv"), "--output", str(folder / "out.csv"), *words]
    return main(["predict", str(run.path), *words])


def test_ids_of_another_kind_are_told(run, rows, tmp_path, capsys):
    assert predict(run, tmp_path, rows) == 0
    assert "not in the log: 100" not in capsys.readouterr().err
    assert predict(run, tmp_path, rows.assign(user=rows.user + 1000)) == 0
    told = capsys.readouterr().err
    assert f"users not in the log: 100.0% ({rows.user[0] + 1000}, " in told
    assert "are they written as in the log?" in told
    assert predict(run, tmp_path, rows.assign(user=rows.user + 1000).head(99)) == 0  # a few new users are no wonder
    assert "are they written" not in capsys.readouterr().err
    assert predict(run, tmp_path, rows.assign(time=rows.time // 1000)) == 0  # of another unit: all in 1970
    told = capsys.readouterr().err
    assert (
        "rows.csv: times before the log: 100.0% (1700900, 1700900, 1700900, ...); are they written as in the log?"
        in told
    )


def test_a_column_of_the_context_that_is_not_there_is_told(run, rows, tmp_path, capsys):
    assert predict(run, tmp_path, rows.drop(columns="device")) == 0
    told = capsys.readouterr().err
    assert "no column 'device', which the log has as context: scored as if that were missing on every row" in told
    np.testing.assert_array_equal(
        pd.read_csv(tmp_path / "out.csv").logit.to_numpy(np.float32), run.predict(rows.assign(device=None))
    )


def test_a_served_model_of_texts_reads_the_context(tmp_path):
    data = {"name": str(write_log(tmp_path)), "statistics": ["user_rate", "context"], "num_behaviors": 3}
    data |= {"prompt": {"base": "generic/en", "item": "{kind}"}, "baselines": False, "max_train_samples": 200}
    model = {"family": "ctr_sink", "backbone": TINY_BERT, "tokenizer": {"type": "wordpiece", "vocab_size": 200}}
    training = {"stage1_epochs": 0, "stage2_epochs": 1, "use_cpu": True, "learning_rate": 0.01}
    run = lmctr.runs.train({"data": data, "model": model, "training": training}, output_dir=tmp_path / "run")
    served, history = ServedModel(str(run.path)), [{"text": "kind 1", "time": 1_700_000_000, "item": 1}]
    candidates = [{"text": "kind 2", "item": 2, "context": {"device": "phone", "place": place}} for place in (0, 3)]
    request = {"history": history, "candidates": candidates, "time": 1_700_900_100}
    expected = run.predict([request])
    assert abs(expected[0] - expected[1]) > 1e-4
    state = served.new_state()
    state.extend(history)
    own = served.check({key: request[key] for key in ("candidates", "time")}, has_state=True)
    for asked in ((served.check(request), None), (own, state)):
        (found,) = served.score([asked])
        np.testing.assert_allclose(found.logits, expected, atol=1e-5)


def test_what_rows_say_of_items_is_told_where_the_file_of_items_says_it(run, rows, tmp_path, capsys):
    assert predict(run, tmp_path, rows.assign(kind="another kind")) == 0
    assert "rows.csv: 'kind': not read, as the log's files of items and users tell that" in capsys.readouterr().err
    assert predict(run, tmp_path, rows) == 0
    assert "not read" not in capsys.readouterr().err


def test_a_model_that_does_not_read_it_does_not_miss_it(run, rows, tmp_path, capsys):
    data = {**run.recipe.data, "statistics": []}
    recipe = {"data": data, "model": {"family": "din", "embedding_dim": 4}, "training": {"epochs": 1, "use_cpu": True}}
    other = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert predict(other, tmp_path, rows.drop(columns="device")) == 0
    assert "'device'" not in capsys.readouterr().err


def test_one_bad_value_of_the_context_is_one_row(run, rows, tmp_path, capsys):
    bad = rows.astype({"place": object})
    bad.loc[7, "place"] = "top"
    assert predict(run, tmp_path, bad) == 2
    told = capsys.readouterr().err
    assert "rows.csv, column 'place': the log has values of the type int64 there" in told
    assert "(row 8: 'top')" in told
    assert predict(run, tmp_path, bad, "--on-error", "skip") == 0
    found = pd.read_csv(tmp_path / "out.csv")
    assert found.error.notna().tolist() == [row == 7 for row in range(len(rows))]
    np.testing.assert_allclose(np.delete(found.logit, 7), np.delete(run.predict(rows), 7), rtol=1e-5)


def test_a_parquet_file_whose_first_rows_have_no_score(run, rows, tmp_path, monkeypatch):
    """The rows that are handled together are all skipped; those behind have numbers in the same columns."""
    monkeypatch.setattr("lmctr.runs.answers.joined.ROWS", 5)
    bad = rows.assign(place=rows["place"].astype(object))
    bad.loc[:6, "place"] = "top"
    bad.to_csv(tmp_path / "rows.csv", index=False)
    words = ["predict", str(run.path), "--input", str(tmp_path / "rows.csv"), "--on-error", "skip"]
    assert main([*words, "--output", str(tmp_path / "out.parquet")]) == 0
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert np.flatnonzero(found["logit"].isna()).tolist() == [*range(7)]
    np.testing.assert_allclose(found["logit"][7:], run.predict(rows)[7:], rtol=1e-5)


def test_one_bad_value_of_a_table_is_one_row(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"site": rng.integers(0, 9, 900), "price": rng.normal(size=900).round(2), "click": rng.integers(0, 2, 900)}
    )
    rows.to_csv("clicks.csv", index=False)
    few = ["--training.epochs", "1", "--training.use_cpu", "true", "--data.baselines", "false", "--quiet"]
    assert main(["train", "clicks.csv", "--model", "deepfm", "--output-dir", "run", *few]) == 0
    words = ["predict", "run", "--quiet", "--input"]
    assert main([*words, "clicks.csv", "--output", "whole.csv"]) == 0
    broken = rows.astype({"price": object})
    broken.loc[[70, 555], "price"] = "dear"
    broken.to_csv("broken.csv", index=False)
    capsys.readouterr()
    assert main([*words, "broken.csv", "--output", "none.csv"]) == 2
    assert "row 71 " in capsys.readouterr().err
    assert main([*words, "broken.csv", "--output", "some.csv", "--on-error", "skip"]) == 0
    assert "898 rows scored, 2 skipped (see the column error)" in capsys.readouterr().err
    whole, some = pd.read_csv("whole.csv"), pd.read_csv("some.csv")
    assert some["row"].tolist() == whole["row"].tolist() == [*range(1, 901)]
    assert np.flatnonzero(some["logit"].isna()).tolist() == [70, 555]
    assert "column 'price': 1 values are no numbers (row 71: 'dear')" in some["error"][70]
    good = some["error"].isna()
    assert good.sum() == 898
    np.testing.assert_allclose(some["logit"][good], whole["logit"][good], atol=1e-6)
    broken["price"] = "dear"
    broken.to_csv("broken.csv", index=False)
    assert main([*words, "broken.csv", "--output", "none.csv", "--on-error", "skip"]) == 2
    assert "no row could be scored; the last one: " in capsys.readouterr().err
    before = (tmp_path / "clicks.csv").read_bytes()
    assert main([*words, "clicks.csv", "--output", "./clicks.csv"]) == 2
    assert "--output ./clicks.csv is the input itself, which would be lost" in capsys.readouterr().err
    assert (tmp_path / "clicks.csv").read_bytes() == before


def test_texts_of_the_context_are_read_as_the_log_reads_them(rows, tmp_path):
    """A file to score may hold codes alone, which its reader would take for numbers, and lists as texts."""
    log = pd.read_csv(write_log(tmp_path).parent / "clicks.csv")
    log["shelf"] = np.where(log.click == 1, "07", "08")
    log.loc[:9, "shelf"] = "none"
    log["tags"] = np.where(log.item % 2 == 0, "a|b", "")
    log.to_csv(tmp_path / "clicks.csv", index=False)
    context = {"shelf": "shelf", "tags": {"column": "tags", "separator": "|"}}
    (tmp_path / "schema.yaml").write_text(
        json.dumps({"events": "clicks.csv", "columns": COLUMNS | {"context": context}})
    )
    data = {"name": str(tmp_path / "schema.yaml"), "statistics": ["context"], "baselines": False}
    training = {"epochs": 1, "use_cpu": True, "learning_rate": 0.03}
    recipe = {"data": data, "model": {"family": "din", "embedding_dim": 4}, "training": training}
    other = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    rows = rows.assign(shelf=np.where(rows.item % 2 == 0, "07", "08"), tags=np.where(rows.item % 3 == 0, "a|b", ""))
    expected = other.predict(rows)
    lists = rows.assign(tags=[text.split("|") if text else [] for text in rows.tags])
    np.testing.assert_array_equal(other.predict(lists), expected)
    assert np.ptp(expected) > 0.1
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.to_parquet(tmp_path / "rows.parquet")
    for name in ("csv", "parquet"):
        np.testing.assert_array_equal(other.predict(tmp_path / f"rows.{name}"), expected)


def test_scenarios_of_digits_are_names_where_the_schema_names_none(rows, tmp_path):
    """A file to score may hold digits alone, which its reader would take for places among the names."""
    log = pd.read_csv(write_log(tmp_path).parent / "clicks.csv")
    log["page"] = np.where(log.click == 1, "2", "0")
    log.loc[:9, "page"] = "x"
    log.to_csv(tmp_path / "clicks.csv", index=False)
    (tmp_path / "schema.yaml").write_text(
        json.dumps({"events": "clicks.csv", "columns": COLUMNS | {"scenario": "page"}})
    )
    data = {"name": str(tmp_path / "schema.yaml"), "baselines": False}
    training = {"epochs": 1, "use_cpu": True, "learning_rate": 0.03}
    other = lmctr.runs.train(
        {"data": data, "model": {"family": "astro"}, "training": training}, output_dir=tmp_path / "run"
    )
    assert other.processor.scenario_names == ("0", "2", "x")
    rows = rows.assign(page=np.where(rows.item % 2 == 0, "2", "0"))
    expected = other.predict(rows)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.astype({"page": int}).to_parquet(tmp_path / "rows.parquet")
    for name in ("csv", "parquet"):
        np.testing.assert_array_equal(other.predict(tmp_path / f"rows.{name}"), expected)


def test_one_bad_number_with_a_decimal_comma_is_one_row(rows, tmp_path, capsys):
    """Beside it the others of the column, which are texts for its sake, stay the numbers that they are."""
    write_log(tmp_path)
    log = pd.read_csv(tmp_path / "clicks.csv")
    log.assign(place=log.place + 0.5).to_csv(tmp_path / "clicks.csv", sep=";", decimal=",", index=False)
    schema = {"events": {"path": "clicks.csv", "delimiter": ";", "decimal": ","}, "columns": COLUMNS}
    (tmp_path / "schema.yaml").write_text(json.dumps(schema))
    data = {"name": str(tmp_path / "schema.yaml"), "statistics": ["context"], "baselines": False}
    recipe = {"data": data, "model": {"family": "din", "embedding_dim": 4}, "training": {"epochs": 1, "use_cpu": True}}
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    texts = rows.assign(place=[f"{place},5" for place in rows.place])
    assert predict(run, tmp_path, texts) == 0
    whole = pd.read_csv(tmp_path / "out.csv")
    texts.loc[7, "place"] = "1.234,50"
    capsys.readouterr()
    assert predict(run, tmp_path, texts) == 2
    assert "type double there, which this is not (row 8: '1.234,50')" in capsys.readouterr().err
    assert predict(run, tmp_path, texts, "--on-error", "skip") == 0
    found = pd.read_csv(tmp_path / "out.csv")
    assert found.logit.isna().to_numpy().nonzero()[0].tolist() == [7]
    np.testing.assert_allclose(found.logit.drop(7), whole.logit.drop(7), rtol=1e-5)
