"""Events without an item (searches, starts of an app) or without a user: left out where the schema says so, and counted."""

import numpy as np
import pyarrow as pa
import pytest
from guess_logs import ROWS, guessed, table

from lmctr.cli.main import main
from lmctr.data import load_log, log_from_table

COLUMNS = {"user": "user_id", "item": "item_id", "time": "ts", "label": "click"}


def with_searches(**more):
    """Every fifth row is a search, and of no item."""
    columns = table(**more)
    search = np.arange(ROWS) % 5 == 0
    columns["item_id"] = ["" if own else item for own, item in zip(search, columns["item_id"])]
    columns["action"] = np.where(search, "search", np.choose(np.arange(ROWS) % 3, ["view", "click", "cart"])).tolist()
    return columns, search


@pytest.mark.parametrize("name", ["e.csv", "e.parquet"])
def test_rows_without_an_item_are_left_out_and_counted(tmp_path, name):
    columns, search = with_searches()
    guess, log = guessed(tmp_path / "e.csv", columns)
    spec = guess.schema["columns"]
    assert spec["item"] == {"column": "item_id", "missing": "drop"}
    assert spec["user"] == "user_id"
    (line,) = [line for line in guess.lines() if "left out (missing: drop)" in line]
    assert "no item" in line
    assert "80 rows (20.0%) have none" in line
    assert "those with action 'search'" in line
    if name == "e.parquet":
        items = pa.array([None if own == "" else own for own in columns["item_id"]], pa.int64())
        own = pa.table({**columns, "item_id": items})
        log = log_from_table(own, {"columns": spec})
    assert log.num_events == ROWS - 80
    assert sorted(log.time.tolist()) == sorted(np.array(columns["ts"])[~search].tolist())
    assert log.catalogue["item_id"].type == pa.int64()
    assert log.feedback_names == ("unknown", "cart", "click", "view")  # what histories hold
    assert "80 of 400 rows without a value of 'item_id' were left out." in log.info.notes


def test_floats_of_a_frame_without_an_item(tmp_path):
    columns, search = with_searches()
    items = np.array([np.nan if own == "" else own for own in columns["item_id"]], float)
    keys = COLUMNS | {"item": {"column": "item_id", "missing": "drop"}}
    log = log_from_table(
        {**{name: columns[name] for name in ("user_id", "ts", "click")}, "item_id": items}, {"columns": keys}
    )
    assert log.num_events == (~search).sum()


def test_rows_without_a_user_too(tmp_path):
    columns, search = with_searches()
    columns["user_id"] = ["" if row % 8 == 1 else f"u{user}" for row, user in enumerate(columns["user_id"])]
    guess, log = guessed(tmp_path / "e.csv", columns)
    assert guess.schema["columns"]["user"] == {"column": "user_id", "missing": "drop"}
    kept = ~search & (np.arange(ROWS) % 8 != 1)
    assert log.num_events == kept.sum()
    # users first, then items of the rest
    assert "50 of 400 rows without a value of 'user_id' were left out." in log.info.notes
    assert "70 of 350 rows without a value of 'item_id' were left out." in log.info.notes


def test_where_the_schema_does_not_say_so_the_line_to_write_is_told(tmp_path):
    columns, _ = with_searches()
    guessed(tmp_path / "e.csv", columns)
    told = r"column 'item_id': 80 of 400 values are empty \(row 1: ''; .*`item: \{column: item_id, missing: drop\}`"
    with pytest.raises(ValueError, match=told):
        load_log(tmp_path / "e.csv", columns=COLUMNS)
    with pytest.raises(ValueError, match=r"missing of item in columns of .*accepted: error, drop"):
        load_log(tmp_path / "e.csv", columns=COLUMNS | {"item": {"column": "item_id", "missing": "history"}})
    empty = columns | {"item_id": [""] * ROWS}
    with pytest.raises(ValueError, match=r"400 of 400 values are missing .*No row has the item\."):
        log_from_table(
            {**empty, "item_id": pa.nulls(ROWS, pa.string())},
            {"columns": COLUMNS | {"item": {"column": "item_id", "missing": "drop"}}},
        )


def test_init_and_training_say_how_many(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns, _ = with_searches()
    guessed(tmp_path / "e.csv", columns)
    assert main(["init", "e.csv", "--yes", "--output", "own"]) == 0
    assert "80 of 400 rows without a value of 'item_id' were left out." in capsys.readouterr().out
    assert "item: {column: item_id, missing: drop}" in (tmp_path / "own/schema.yaml").read_text()
    recipe = (tmp_path / "own/ctr_sink.yaml").read_text()
    assert "cart" in recipe
    assert "search" not in recipe  # a kind of feedback that no history holds
    short = ["--training.epochs", "1", "--training.use_cpu", "true"]
    assert main(["train", "own/din.yaml", "--output-dir", "run", *short]) == 0
    assert "80 of 400 rows without a value of 'item_id' were left out." in capsys.readouterr().out
    assert main(["recommend", "run", "--top", "1", "--output", "best.csv"]) == 0
    assert (tmp_path / "best.csv").read_text().startswith("user_id,rank,item_id,")


def test_rows_of_a_catalogue_that_say_nothing_are_left_out_and_told(tmp_path):
    """Those of no id, and those that stand there twice; two that say different things of one id are refused."""
    guess, _ = guessed(tmp_path / "e.csv", table())
    names = [f"{item},Title {item}" for item in range(30)]
    wrong = {"i.csv": [*names, ",none", names[3], names[3]], "j.csv": [*names, "3,Other"]}
    for name, lines in wrong.items():
        (tmp_path / name).write_text("item_id,title\n" + "\n".join(lines) + "\n")
    keys = {"columns": guess.schema["columns"], "catalogue": {"path": str(tmp_path / "i.csv")}}
    log = load_log(tmp_path / "e.csv", **keys)
    assert log.catalogue["item_id"].to_pylist() == list(range(30))
    assert log.catalogue["title"].to_pylist()[3] == "Title 3"
    assert "3 rows of i.csv without a value of 'item_id', or as another row, were left out." in log.info.notes
    with pytest.raises(ValueError, match="1 of 31 values repeat an earlier row"):
        load_log(tmp_path / "e.csv", **keys | {"catalogue": {"path": str(tmp_path / "j.csv")}})
