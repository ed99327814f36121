"""What `lmctr init` takes columns for."""

import gzip
import json
import operator
import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from transformers import AutoProcessor

from lmctr.cli.main import main
from lmctr.data import load_log, load_tabular
from lmctr.data.features.columns import Rows, label_columns_of
from lmctr.data.features.times import seconds_of
from lmctr.data.guess import NoLogError, guess_files, guess_log, guess_table, sample_file
from lmctr.data.reading import FORMATS
from lmctr.data.tables.load import table_source
from lmctr.data.tables.store import TabularStore
from lmctr.runs.find import is_data_file

ROWS = 400


def table(**more):
    rng = np.random.default_rng(0)
    item = rng.integers(0, 30, ROWS)
    columns = {
        "user_id": rng.integers(0, 40, ROWS),
        "item_id": item,
        "ts": np.sort(rng.integers(1_700_000_000, 1_700_900_000, ROWS)),
        "click": rng.integers(0, 2, ROWS),
    }
    return {name: list(values) for name, values in (columns | more).items() if values is not None}


def write(path, columns, delimiter=","):
    rows = list(zip(*columns.values()))
    if ".jsonl" in path.name:
        plain = [{n: v.item() if isinstance(v, np.generic) else v for n, v in zip(columns, row)} for row in rows]
        text = "".join(json.dumps(row) + "\n" for row in plain)
    else:
        text = "".join(delimiter.join(map(str, row)) + "\n" for row in [tuple(columns), *rows])
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return sample_file(path)


def guessed(path, columns, delimiter=",", **options):
    """The guess, whose schema must read the file."""
    guess = guess_log(write(path, columns, delimiter), **options)
    keys = {key: value for key, value in guess.schema.items() if key != "events"}
    reading = {key: value for key, value in guess.schema["events"].items() if key != "path"}
    return guess, load_log(path, **keys, **reading)


@pytest.mark.parametrize(
    ("name", "delimiter"),
    [("e.csv", ","), ("e.csv", ";"), ("e.csv", "|"), ("e.tsv", "\t"), ("e.csv.gz", ","), ("e.jsonl", None)],
)
def test_formats(tmp_path, name, delimiter):
    guess, log = guessed(tmp_path / name, table(), delimiter)
    assert guess.schema["columns"] == {"user": "user_id", "item": "item_id", "time": "ts", "label": "click"}
    assert log.num_events == ROWS
    assert guess.schema["events"].get("delimiter", ",") == (delimiter if name == "e.csv" else ",")


@pytest.mark.parametrize(
    ("times", "spec"),
    [
        (lambda t: t * 1000, {"column": "ts", "unit": "ms"}),
        (lambda t: np.datetime_as_string(t.astype("datetime64[s]")), "ts"),
        (
            lambda t: [
                f"{d[8:10]}.{d[5:7]}.{d[:4]} {d[11:16]}" for d in np.datetime_as_string(t.astype("datetime64[s]"))
            ],
            {"column": "ts", "format": "%d.%m.%Y %H:%M"},
        ),
    ],
)
def test_times(tmp_path, times, spec):
    plain = np.array(table()["ts"])
    guess, log = guessed(tmp_path / "e.csv", table(ts=times(plain)))
    assert guess.schema["columns"]["time"] == spec
    assert abs(np.sort(log.time) - plain).max() < 60


@pytest.mark.parametrize("name", ["timestamp", "rating_time"])
def test_times_of_the_nineties_where_the_name_says_times(tmp_path, name):
    times = np.linspace(828_124_615, 900_000_000, ROWS).astype(int)  # 1996, as in MovieLens
    guess, log = guessed(tmp_path / "e.csv", table(ts=None, **{name: times}))
    assert guess.schema["columns"]["time"] == name
    assert log.time.min() == 828_124_615
    with pytest.raises(NoLogError, match="no column looks like the time"):
        guessed(tmp_path / "e.csv", table(ts=None, price=times))
    guess, _ = guessed(tmp_path / "e.csv", table(ts=None, price=times), given={"time": "price"})
    assert guess.schema["columns"]["time"] == "price"


def test_ids_with_a_point_are_whole_numbers(tmp_path):
    """As pandas writes a column that once had a missing value."""
    columns = table()
    plain, log = guessed(tmp_path / "e.csv", columns)
    points = columns | {name: [f"{own}.0" for own in columns[name]] for name in ("user_id", "item_id")}
    guess, same = guessed(tmp_path / "f.csv", points)
    assert guess.schema["columns"] == plain.schema["columns"]
    for one, other in zip(
        (log.user_ids, log.catalogue["item_id"].to_numpy()), (same.user_ids, same.catalogue["item_id"].to_numpy())
    ):
        assert other.dtype == np.int64
        assert one.tolist() == other.tolist()
    mixed = points | {
        "item_id": [own if place % 2 else int(float(own)) for place, own in enumerate(points["item_id"])]
    }
    _, same = guessed(tmp_path / "g.csv", mixed, given={"item": "item_id"})
    assert same.item.tolist() == log.item.tolist()
    assert same.num_items == log.num_items


def test_grades_come_before_what_only_sounds_like_a_click(tmp_path):
    grades = [1 + place % 5 for place in range(ROWS)]
    more = {"verified_purchase": [place % 3 // 2 for place in range(ROWS)], "rating": grades}
    guess, log = guessed(tmp_path / "e.csv", table(click=None, **more))
    assert guess.schema["columns"]["label"] == {"column": "rating", "at_least": 4}
    assert log.label.mean() == pytest.approx(0.4)
    guess, _ = guessed(tmp_path / "e.csv", table(click=None, **more), given={"label": "verified_purchase"})
    assert guess.schema["columns"]["label"] == "verified_purchase"
    guess, _ = guessed(tmp_path / "e.csv", table(**more))
    assert guess.schema["columns"]["label"] == "click"
    clicks = table()["click"]
    for name in ("ad_click", "itemClicked"):  # a word that says a click
        guess, _ = guessed(tmp_path / "e.csv", table(click=None, **{name: clicks}, rating=grades))
        assert guess.schema["columns"]["label"] == name
    thumbs = {"verified_purchase": more["verified_purchase"], "rating": clicks}  # of two values: no grades
    guess, _ = guessed(tmp_path / "e.csv", table(click=None, **thumbs))
    assert guess.schema["columns"]["label"] == "verified_purchase"
    guess, _ = guessed(tmp_path / "e.csv", table(click=None, video_like=clicks, duration=grades))  # no grade
    assert guess.schema["columns"]["label"] == "video_like"
    counts = [place % 40 for place in range(ROWS)]
    guess, _ = guessed(tmp_path / "e.csv", table(click=None, plays=counts), given={"label": "plays"})
    assert guess.schema["columns"]["label"] == {"column": "plays", "at_least": 19.5}
    assert next(entry for entry in guess.guesses if entry.role == "label").sure


@pytest.mark.parametrize(
    ("label", "rule"),
    [
        ("plays>=30", {"at_least": 30}),
        (" plays > 30", {"greater_than": 30}),
        ("plays<=2.5", {"at_most": 2.5}),
        ("plays<1", {"less_than": 1}),
        ("bit>=1", {"at_least": 1}),  # of two values too
    ],
)
def test_a_bound_says_which_numbers_are_clicks(tmp_path, label, rule):
    more = {"plays": [place % 40 for place in range(ROWS)], "bit": [place % 2 for place in range(ROWS)]}
    name = label.strip("<>=.0123456789 ")
    guess, log = guessed(tmp_path / "e.csv", table(click=None, **more), given={"label": label})
    assert guess.schema["columns"]["label"] == {"column": name, **rule}
    ((kind, limit),) = rule.items()
    signs = {"at_least": operator.ge, "greater_than": operator.gt, "at_most": operator.le, "less_than": operator.lt}
    expected = np.mean([signs[kind](value, limit) for value in more[name]])
    assert 0 < expected < 1
    assert log.label.mean() == pytest.approx(expected)
    said = next(entry for entry in guess.guesses if entry.role == "label")
    assert said.sure
    assert f"{limit:g}" in said.why
    assert f"{expected:.1%} of the rows" in said.why
    assert guess_table(write(tmp_path / "t.csv", more), {"label": label}).schema["label"] == {"column": name, **rule}


def test_words_for_bounds_that_are_none(tmp_path):
    file = write(
        tmp_path / "e.csv", {"plays": [place % 40 for place in range(ROWS)], "size": ["big", "small"] * (ROWS // 2)}
    )
    with pytest.raises(ValueError, match="--label plays>many: expected a number after >, got 'many'"):
        guess_table(file, {"label": "plays>many"})
    with pytest.raises(ValueError, match=r"--label size: expected 0 and 1, .* the column holds 'big', 'small'"):
        guess_table(file, {"label": "size>3"})


def test_grades_of_a_table(tmp_path):
    columns = {"user": [place % 50 for place in range(ROWS)], "book": [place % 7 for place in range(ROWS)]}
    columns |= {"is_read": [place % 2 for place in range(ROWS)], "rating": [1 + place % 10 for place in range(ROWS)]}
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert guess.schema["label"] == {"column": "rating", "at_least": 5.5}
    assert "rating" not in {entry.get("column", entry["name"]) for entry in guess.schema["fields"]}
    table = pa.concat_tables(rows.table for rows in load_tabular(tmp_path / "e.csv", **guess.options()).rows())
    assert table["rating"].to_pylist()[:6] == [0, 0, 0, 0, 0, 1]
    assert guess_table(write(tmp_path / "f.csv", columns), {"label": "is_read"}).schema["label"] == "is_read"
    ends = columns | {"exited": columns["is_read"]}  # where labels often stand
    assert guess_table(write(tmp_path / "h.csv", ends)).schema["label"] == "exited"
    assert guess_table(write(tmp_path / "g.csv", columns), {"label": "book"}).schema["label"]["at_least"] == 3


def test_json_lines_by_the_name_of_json(tmp_path):
    guess, _ = guessed(tmp_path / "reviews.jsonl", table())
    for name in ("reviews.json", "reviews.json.gz"):
        data = (tmp_path / "reviews.jsonl").read_bytes()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        assert guess_log(sample_file(tmp_path / name)).schema["columns"] == guess.schema["columns"]
    (tmp_path / "array.json").write_text('[{"user": 1}]')
    with pytest.raises(ValueError, match=r"array\.json: cannot be read as JSON lines: this is one JSON array"):
        sample_file(tmp_path / "array.json")


def test_files_of_recbole(tmp_path):
    columns = table(price=np.linspace(0, 1, ROWS).round(3))
    kinds = {"user_id": "token", "item_id": "token", "ts": "float", "click": "float", "price": "float"}
    typed = {f"{name}:{kinds[name]}": values for name, values in columns.items()}
    rng = np.random.default_rng(1)
    items = {
        "item_id:token": range(30),
        "name:token_seq": [f"Film {rng.integers(1e9)} of {rng.integers(1e9)}" for _ in range(30)],
        "class:token_seq": [" ".join(rng.choice(["Comedy", "Drama", "War"], 2)) for _ in range(30)],
    }
    found = write(tmp_path / "clicks.item", items, "\t")
    guess, log = guessed(tmp_path / "clicks.inter", typed, "\t", items=found)
    assert guess.schema["columns"] == {
        "user": "user_id",
        "item": "item_id",
        "time": "ts",
        "label": "click",
        "context": ["price"],
    }
    catalogue = guess.schema["catalogue"]["columns"]
    assert catalogue["class"] == {"column": "class", "separator": " "}
    assert guess.title == "name"
    plain = load_log(write(tmp_path / "plain.tsv", columns, "\t").path, columns=guess.schema["columns"])
    for name in ("time", "label", "item", "user"):
        np.testing.assert_array_equal(getattr(log, name), getattr(plain, name))
    mixed = {"user_id": [1], "click:float": [0]}
    assert write(tmp_path / "mixed.tsv", mixed, "\t").table.column_names == list(mixed)  # no header of types


def test_columns_parted_by_two_signs_are_told(tmp_path):
    (tmp_path / "ratings.dat").write_text("1::1193::5::978300760\n1::661::3::978302109\n")
    with pytest.raises(ValueError, match=r"ratings\.dat: its columns are parted by '::'.*data\.name movielens"):
        sample_file(tmp_path / "ratings.dat")


def test_what_is_read_is_no_recipe():
    assert all(is_data_file(f"clicks{suffix}") for suffix in FORMATS)
    assert not any(map(is_data_file, ("clicks.yaml", "clicks.data.yaml", "users.item.yaml", "quickstart")))
    assert is_data_file("clicks.v2.csv.gz")


@pytest.mark.parametrize("name", ["e.dat", "e.data"])
def test_other_ends_of_names(tmp_path, name):
    guess, log = guessed(tmp_path / name, table(), "\t")
    assert guess.schema["events"]["delimiter"] == "\t"
    assert log.num_events == ROWS


def test_excel_csv(tmp_path):
    price = ["3,5", "?", "12,0", "7,25"] * (ROWS // 4)
    guess, log = guessed(tmp_path / "e.csv", table(price=price), ";")
    assert guess.schema["events"] | {"path": ""} == {"path": "", "delimiter": ";", "decimal": ",", "na_values": ["?"]}
    assert guess.schema["columns"]["context"] == ["price"]
    assert sorted({value for value in log.context["price"].to_pylist() if value is not None}) == [3.5, 7.25, 12.0]
    assert log.context["price"].null_count == ROWS // 4


@pytest.mark.parametrize(
    ("columns", "label", "positive"),
    [
        ({"click": ["yes", "no"] * 200}, {"column": "click", "equals": "yes"}, 200),
        ({"click": ["true", "false"] * 200}, "click", 200),
        ({"click": None, "rating": [1, 5, 3, 4] * 100}, {"column": "rating", "at_least": 4}, 200),
        (
            {"click": None, "action": ["view", "click", "view", "buy"] * 100},
            {"column": "action", "equals": "click"},
            100,
        ),
    ],
)
def test_labels(tmp_path, columns, label, positive):
    guess, log = guessed(tmp_path / "e.csv", table(**columns))
    assert guess.schema["columns"]["label"] == label
    assert (log.label == 1).sum() == positive
    if "rating" in columns:
        assert guess.schema["columns"].get("feedback_values", "rating") == "rating"


def test_other_reactions_are_no_context(tmp_path):
    columns = table(bought=[0, 1, 0, 0] * 100, watch_time=list(np.arange(ROWS) / 7), action=["a", "b"] * 200)
    guess, log = guessed(tmp_path / "e.csv", columns)
    found = guess.schema["columns"]
    assert found["label"] == "click"
    assert found["extra_labels"] == {"bought": "bought"}
    assert (found["feedback_values"], found["feedback"]) == ("watch_time", "action")
    assert "context" not in found
    assert log.extra_labels["bought"].sum() == 100


def test_a_column_that_tells_the_label_is_left_out(tmp_path):
    columns = table()
    click = np.array(columns["click"])
    noise = np.random.default_rng(1).random(ROWS)
    guess, _ = guessed(
        tmp_path / "e.csv",
        {**columns, "seen_for": click * 5 + noise, "slot": list("ab") * 200, "page_no": click * 2 + 7},
    )
    assert guess.schema["columns"]["context"] == {"slot": {"column": "slot", "type": "text"}}
    left = {entry.column: entry.why for entry in guess.guesses if entry.role == "left out"}
    assert set(left) == {"seen_for", "page_no"}
    assert "alone tells the label (AUC 1.00)" in left["seen_for"]


def test_columns_of_items_and_users_in_the_events(tmp_path):
    columns = table()
    kinds, towns = ["hat", "shoe", "sock"], ["Oslo", "Bergen"]
    columns |= {
        "title": [f"Thing number {item}" for item in columns["item_id"]],
        "kind": [kinds[item % 3] for item in columns["item_id"]],
        "town": [towns[user % 2] for user in columns["user_id"]],
        "row": list(range(ROWS)),
        "site": ["one"] * ROWS,
    }
    guess, log = guessed(tmp_path / "e.csv", columns)
    said = {name: {"column": name, "type": "text"} for name in ("title", "kind", "town")}
    assert guess.schema["catalogue"] == {"columns": {name: said[name] for name in ("title", "kind")}}
    assert guess.schema["users"] == {"columns": {"town": said["town"]}}
    assert (guess.title, guess.item_categories, guess.user_categories) == ("title", ["kind"], ["town"])
    assert [entry.column for entry in guess.guesses if entry.role == "left out"] == ["row", "site"]
    assert log.users.column_names == ["user_id", "town"]


def test_items_file_with_another_key_and_gaps(tmp_path):
    items = {
        "sku": list(range(2, 30)),
        "genres": ["a|b", "c"] * 14,
        "price": list(range(300, 328)),
        "name": [f"Item {n}" for n in range(28)],
    }
    guess, log = guessed(tmp_path / "e.csv", table(), items=write(tmp_path / "items.csv", items))
    assert guess.schema["catalogue"]["item"] == "sku"
    assert guess.schema["catalogue"]["columns"]["genres"] == {"column": "genres", "separator": "|"}
    assert guess.schema["missing_items"] == "empty"
    assert guess.title == "name"
    assert log.num_items == 30


def test_questions_where_it_is_not_sure(tmp_path):
    columns = table(click=None, user_id=None, who=table()["user_id"], action=["view", "tap"] * 200)
    asked = []

    def ask(question, answers, guess):
        asked.append(question)
        return "tap" if "counts as a click" in question else guess

    guess, _ = guessed(tmp_path / "e.csv", columns, ask=ask)
    assert asked == ["which column is the user?", "which value of action counts as a click?"]
    assert guess.schema["columns"]["label"] == {"column": "action", "equals": "tap"}
    assert all(entry.sure for entry in guess.guesses)


@pytest.mark.parametrize(
    ("columns", "given", "says"),
    [
        ({"click": None}, {}, r"no column looks like the label .*--label COLUMN"),
        ({"ts": None}, {}, r"no column looks like the time .*--time COLUMN"),
        ({}, {"user": "usr"}, r"--user: unknown key 'usr'.*did you mean 'user_id'"),
        ({}, {"time": "click"}, "--time click: holds no times"),
    ],
)
def test_errors(tmp_path, columns, given, says):
    with pytest.raises(ValueError, match=says):
        guess_log(write(tmp_path / "e.csv", table(**columns)), given=given)


def test_a_file_without_a_line_of_names_says_so(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text("1,17,0.5,68fd1e64\n0,18,,68fd1e64\n")
    with pytest.raises(ValueError, match="Its first line holds values, no column names"):
        sample_file(path)
    path.write_text("1,17,17,0.5\n0,18,18,0.2\n")
    with pytest.raises(ValueError, match=r"duplicate columns.*first line holds values.*`names:`"):
        sample_file(path)


def test_objects_are_left_out_and_named(tmp_path):
    ads = [{"id": row % 30, "kind": row % 3} for row in range(ROWS)]
    guess, _ = guessed(tmp_path / "e.jsonl", table(ad=ads))
    assert "context" not in guess.schema["columns"]
    assert next(entry.why for entry in guess.guesses if entry.column == "ad").startswith("holds objects")
    with pytest.raises(ValueError, match=r"like the user.*item_id is the item; ad holds objects.*--model deepfm"):
        guess_log(write(tmp_path / "f.jsonl", table(ad=ads, user_id=[None] * ROWS)))
    with pytest.raises(
        ValueError, match=r"; candidates holds objects, as requests do that `lmctr predict .* each candidate a line"
    ):
        guess_log(write(tmp_path / "g.jsonl", table(candidates=ads, user_id=[None] * ROWS)))


def clicks(**more):
    """Rows of a table without users, items and times."""
    rng = np.random.default_rng(1)
    columns = {
        "clicked": rng.integers(0, 2, ROWS),
        "visits": rng.integers(0, 60, ROWS),
        "price": rng.normal(size=ROWS).round(3),
        "site_id": rng.integers(0, 90, ROWS),
        "slot": rng.integers(0, 7, ROWS),
        "browser": rng.choice(["fox", "bear", "owl"], ROWS),
        "topics": rng.choice(["a|b", "b", "a|c|d"], ROWS),
        "same": np.zeros(ROWS, dtype=int),
    }
    return {name: list(values) for name, values in (columns | more).items() if values is not None}


def test_a_table_of_clicks(tmp_path):
    rows, of_64_bits = ([10**19 + 10**6 * (row % count) for row in range(ROWS)] for count in (ROWS, 9))
    columns = clicks(converted=[0, 1] * (ROWS // 2), id=rows, advertiser_id=of_64_bits)
    sample = write(tmp_path / "e.csv", columns, ";")
    with pytest.raises(NoLogError, match="like the time"):
        guess_log(sample)
    guess = guess_table(sample)
    schema = dict(guess.schema)
    assert schema.pop("events") == {"path": str(tmp_path / "e.csv"), "delimiter": ";"}
    assert schema.pop("label") == "clicked"
    fields = {field["name"]: {key: field[key] for key in field if key != "name"} for field in schema.pop("fields")}
    assert schema == {}
    codes = {"type": "categorical", "min_count": 2, "value_type": "integer"}
    bins = {"type": "numeric", "transform": "quantile", "num_bins": 32, "missing": "own_id"}
    assert fields == {
        "visits": codes,
        "visits_number": {"column": "visits", "type": "numeric", "before": "log1p", "transform": "standardize"},
        "visits_bin": bins | {"column": "visits"},
        "price": {"type": "numeric", "transform": "standardize"},
        "price_bin": bins | {"column": "price"},
        "site_id": codes,
        "slot": codes,
        "browser": codes | {"value_type": "text"},
        "topics": {"type": "multi_value", "separator": "|"},
        "advertiser_id": {"type": "categorical", "min_count": 2},
    }
    left = {entry.column: entry.why for entry in guess.guesses if entry.role == "left out"}
    assert left == {
        "same": "one value only",
        "converted": "another reaction: told later than the label",
        "id": "another value on (almost) every row",
    }
    source = table_source(tmp_path / "e.csv", guess.schema["label"], guess.schema["fields"], delimiter=";")
    assert [field["name"] for field in source.fields] == [field["name"] for field in guess.schema["fields"]]


def test_the_time_and_the_users_of_a_table(tmp_path):
    times = list(range(1_700_000_000, 1_700_000_000 + ROWS))
    users = [row % 40 for row in range(ROWS)]
    guess = guess_table(write(tmp_path / "e.csv", clicks(ts=times, user_id=users)))
    assert (guess.schema["time"], guess.schema["group"]) == ("ts", "user_id")
    names = [field["name"] for field in guess.schema["fields"]]
    assert "ts" not in names
    assert "user_id" in names


@pytest.mark.parametrize(
    ("columns", "given", "says"),
    [
        ({"clicked": ["many", "few"] * (ROWS // 2)}, {}, r"like the label \(0 and 1, yes and no, or numbers.*--label"),
        ({}, {"label": "browser"}, r"--label browser: .* holds ('\w+', ){2}'\w+'; .*--label browser=VALUE"),
        ({}, {"label": "browser=cat"}, r"--label browser=cat: no row has that value; the column holds '"),
        ({}, {"label": "brewser=owl"}, r"--label: unknown key 'brewser=owl'.*did you mean 'browser'"),
        ({}, {"time": "slot"}, "--time slot: holds no times"),
    ],
)
def test_errors_of_tables(tmp_path, columns, given, says):
    with pytest.raises(ValueError, match=says):
        guess_table(write(tmp_path / "e.csv", clicks(**columns)), given)


@pytest.mark.parametrize(
    ("words", "given", "rule"),
    [
        (["yes", "no"], {}, {"column": "clicked", "equals": "yes"}),
        (["True", "False"], {}, "clicked"),
        (["many", "few"], {"label": "clicked=few"}, {"column": "clicked", "equals": "few"}),
        ([1, 2], {"label": "clicked=2"}, {"column": "clicked", "equals": 2}),
        ([1, 0], {"label": "clicked=0"}, {"column": "clicked", "equals": 0}),
    ],
)
def test_labels_of_a_table_in_words(tmp_path, words, given, rule):
    """The rule that the guess writes gives the labels; another column of yes and no is a field."""
    yes = words[1 if given else 0]
    columns = clicks(clicked=words * (ROWS // 2), member=["no", "yes", "no", "no"] * (ROWS // 4))
    guess = guess_table(write(tmp_path / "e.csv", columns), given)
    assert guess.schema["label"] == rule
    assert "member" in [field["name"] for field in guess.schema["fields"]]
    source = table_source(tmp_path / "e.csv", guess.schema["label"], guess.schema["fields"])
    labels = np.concatenate([label_columns_of(rows, ["clicked"]) for rows in source.rows({"clicked": "number"})])
    assert labels.tolist() == [float(word == yes) for word in columns["clicked"]]
    kept = np.concatenate([rows.table["clicked"].to_numpy() for rows in source.rows()])  # all columns
    assert kept.astype(float).tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("values", "types"),
    [
        (lambda rng: rng.integers(0, 60, ROWS), ["categorical", "numeric", "numeric"]),  # codes, or counts
        (lambda rng: rng.integers(0, 15, ROWS), ["categorical"]),  # few
        (lambda rng: rng.integers(10**6, 10**9, ROWS // 8).repeat(8), ["categorical", "numeric", "numeric"]),
        (lambda rng: rng.integers(0, 10**6, ROWS), ["numeric", "numeric"]),  # hardly met again
        (lambda rng: rng.normal(size=ROWS), ["numeric", "numeric"]),
    ],
)
def test_what_numbers_are_read_as(tmp_path, values, types):
    guess = guess_table(write(tmp_path / "e.csv", clicks(amount=values(np.random.default_rng(3)))))
    found = [field for field in guess.schema["fields"] if field.get("column", field["name"]) == "amount"]
    assert [field["type"] for field in found] == types


def test_fields_have_names_that_no_column_has(tmp_path):
    columns = clicks(price_bin=list("ab") * (ROWS // 2), visits_number=list("cd") * (ROWS // 2))
    names = [field["name"] for field in guess_table(write(tmp_path / "e.csv", columns)).schema["fields"]]
    assert len(names) == len(set(names))
    assert {"price_bin", "price_bin_", "visits_number", "visits_number_"} <= {*names}


def test_counts_of_many_sizes_are_numbers_and_names_without_gaps_are_codes_too(tmp_path):
    rng = np.random.default_rng(4)
    rows = {"counts": np.floor(rng.exponential(150, 6000)), "names": rng.integers(0, 300, 6000)}
    columns = {"clicked": rng.integers(0, 2, 6000), **{name: values.astype(int) for name, values in rows.items()}}
    guess = guess_table(write(tmp_path / "e.csv", columns))
    found = [(field["name"], field["type"]) for field in guess.schema["fields"]]
    numbers = [("names_number", "numeric"), ("names_bin", "numeric")]
    assert found == [("counts", "numeric"), ("counts_bin", "numeric"), ("names", "categorical"), *numbers]


def test_the_last_column_may_be_the_label_and_the_users_come_again(tmp_path):
    """Among several columns of two values none of which has a label's name; a kind of visitor is no user, nor an id that never comes again."""
    words = ["no", "yes", "no", "no"] * (ROWS // 4)
    columns = {"weekend": [0, 1] * (ROWS // 2), "member": words, "visitor_type": list("ab") * (ROWS // 2)}
    columns |= {"customer_id": [f"c{row}" for row in range(ROWS)], "sold": words[::-1]}
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert guess.schema["label"] == {"column": "sold", "equals": "yes"}
    assert "group" not in guess.schema
    assert not next(entry for entry in guess.guesses if entry.role == "label").sure
    columns_of_numbers = {"equals": [0, 1] * (ROWS // 2), "member": words}
    assert guess_table(write(tmp_path / "h.csv", columns_of_numbers), {"label": "equals"}).schema["label"] == "equals"
    blanks = {f" {name}": values for name, values in columns.items()}
    stated = guess_table(write(tmp_path / "f.csv", blanks), {"label": "member=no"})
    assert stated.schema["label"] == {"column": " member", "equals": "no"}
    with pytest.raises(ValueError, match=r"like the label \(0 and 1, yes and no, or numbers.*--label"):
        guess_table(write(tmp_path / "g.csv", columns | {"note": list("abcd") * (ROWS // 4)}))


def test_numbers_of_a_table_as_spreadsheets_write_them(tmp_path):
    price = ["3,5", "?", "12,0", "7,25"] * (ROWS // 4)
    guess = guess_table(write(tmp_path / "e.csv", clicks(price=price, browser=["owl", "?"] * (ROWS // 2)), ";"))
    assert guess.schema["events"] | {"path": ""} == {"path": "", "delimiter": ";", "decimal": ",", "na_values": ["?"]}
    found = {field["name"]: field["type"] for field in guess.schema["fields"]}
    assert found["price"] == "numeric"
    source = load_tabular(tmp_path / "e.csv", **guess.options())
    (rows,) = source.rows({"price": "number", "browser": "text"})
    assert rows.table.to_pydict() == {
        "price": [3.5, None, 12.0, 7.25] * (ROWS // 4),
        "browser": ["owl", None] * (ROWS // 2),
    }


def test_codes_are_declared_so_that_a_later_file_gives_the_same(tmp_path):
    codes = [3 + row % 4 for row in range(ROWS)]
    guess, log = guessed(tmp_path / "e.csv", table(zone=codes))
    assert guess.schema["columns"]["context"] == {"zone": {"column": "zone", "type": "integer"}}
    write(tmp_path / "later.csv", table(zone=[f"{code}.0" for code in codes]))
    schema = guess.schema | {"events": {**guess.schema["events"], "path": "later.csv"}}
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema))
    later = load_log(tmp_path / "schema.yaml")
    assert later.context["zone"].equals(log.context["zone"])


def test_a_column_that_describes_the_item_or_the_user_is_no_time_of_events(tmp_path):
    rng = np.random.default_rng(1)
    columns = table(ts=None)
    days = lambda numbers: [f"20{10 + number // 12 % 12:02d}-{1 + number % 12:02d}-05" for number in numbers]  # noqa: E731
    viewed = [f"2024-01-{1 + row * 28 // ROWS:02d} 10:00:{row % 60:02d}" for row in range(ROWS)]
    for name, ids in (("release_date", "item_id"), ("signup_date", "user_id")):
        guess, log = guessed(tmp_path / f"{name}.csv", {name: days(columns[ids]), **columns, "viewed_at": viewed})
        assert guess.schema["columns"]["time"] == "viewed_at"
        assert log.time.min() == 1_704_103_200
    drawn = [f"2024-01-{1 + day:02d}" for day in rng.integers(0, 28, ROWS)]  # another time, that nothing has one of
    guess, _ = guessed(tmp_path / "e.csv", {**columns, "due_date": drawn, "event_time": viewed})
    assert guess.schema["columns"]["time"] == "event_time"


def test_days_as_whole_numbers_are_times(tmp_path):
    days = [20240101 + row * 28 // ROWS for row in range(ROWS)]
    guess, log = guessed(tmp_path / "e.csv", table(ts=None, date=days))
    assert guess.schema["columns"]["time"] == {"column": "date", "format": "%Y%m%d"}
    assert log.time.min() == 1_704_067_200
    guess = guess_table(write(tmp_path / "t.csv", clicks(date=days)))
    assert (guess.schema["time"], guess.schema["time_format"]) == ("date", "%Y%m%d")
    (rows,) = table_source(tmp_path / "t.csv", **guess.options()).rows()
    assert seconds_of(rows, "date", "%Y%m%d").min() == 1_704_067_200
    words = guess_table(write(tmp_path / "n.csv", clicks(date=[1, 2] * (ROWS // 2))))
    assert "time" not in words.schema


@pytest.mark.parametrize(("unit", "per_second"), [("ms", 1000), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("given", [{}, {"time": "timestamp"}])
def test_the_unit_of_a_tables_times(tmp_path, unit, per_second, given):
    times = [(1_700_000_000 + row) * per_second + per_second - 1 for row in range(ROWS)]
    guess = guess_table(write(tmp_path / "e.csv", clicks(timestamp=times)), given)
    assert (guess.schema["time"], guess.schema["time_format"]) == ("timestamp", unit)
    assert "timestamp" not in [field["name"] for field in guess.schema["fields"]]
    (rows,) = table_source(tmp_path / "e.csv", **guess.options()).rows()
    assert seconds_of(rows, "timestamp", unit).tolist() == list(range(1_700_000_000, 1_700_000_000 + ROWS))


def test_rows_of_people_are_not_parted_by_their_birth_dates(tmp_path):
    rng = np.random.default_rng(2)
    births = [f"19{year:02d}-03-01" for year in rng.integers(50, 99, ROWS)]
    assert "time" not in guess_table(write(tmp_path / "e.csv", clicks(birth_date=births))).schema
    assert guess_table(write(tmp_path / "f.csv", clicks(order_date=sorted(births)))).schema["time"] == "order_date"
    assert (
        guess_table(write(tmp_path / "g.csv", clicks(birth_date=births)), {"time": "birth_date"}).schema["time"]
        == "birth_date"
    )


@pytest.mark.parametrize(
    ("label", "values", "rule"),
    [
        ("rating=5", [1.0, 5.0, 4.5, 5.0], {"equals": 5.0}),
        ("skipped=false", [True, False, False, True], {"equals": False}),
        ("playtime", [0, 0, 0, 7], {"greater_than": 0.0}),
    ],
)
def test_context_beside_a_label_of_a_rule(tmp_path, label, values, rule):
    name = label.partition("=")[0]
    columns = table(click=None) | {
        "place": ["top", "top", "end", "mid", "end"] * (ROWS // 5),
        name: values * (ROWS // 4),
    }
    guess = guess_log(write(tmp_path / "e.csv", columns), given={"label": label})
    assert guess.schema["columns"]["label"] == {"column": name, **rule}
    assert list(guess.schema["columns"]["context"]) == ["place"]


def test_everyday_words_are_no_sure_labels(tmp_path):
    bits = [row % 3 % 2 for row in range(ROWS)]
    for name, word in (("e", "share"), ("f", "click_position"), ("g", "bought_last_week")):
        columns = {"amount": list(range(ROWS)), word: bits, "is_fraud": bits[::-1]}
        guess = guess_table(write(tmp_path / f"{name}.csv", columns))
        assert guess.schema["label"] == "is_fraud"
        assert word in [field["name"] for field in guess.schema["fields"]]
        assert not next(found for found in guess.guesses if found.role == "label").sure
    columns = {"ad_click": bits, "share": bits[::-1], "size": [2, 3, 5, 7] * (ROWS // 4), "is_new": bits}
    guess = guess_table(write(tmp_path / "h.csv", columns))
    assert guess.schema["label"] == "ad_click"
    assert "share" not in [field["name"] for field in guess.schema["fields"]]  # another reaction


def test_kinds_of_events_none_of_which_is_known(tmp_path):
    columns = table(click=None) | {"action": ["impression", "skip"] * (ROWS // 2)}
    with pytest.raises(
        ValueError, match=r"'action' tells what happened \(impression, skip\).*--label action=impression"
    ):
        guess_log(write(tmp_path / "e.csv", columns))


def test_categories_and_decimals_of_parquet(tmp_path):
    columns = clicks(price=None)
    cents = [Decimal(row % 90 * 7 + 1) / 100 for row in range(ROWS)]
    made = pa.table({**columns, "browser": pa.array(columns["browser"]).dictionary_encode(), "price": cents})
    pq.write_table(made, tmp_path / "e.parquet")
    guess = guess_table(sample_file(tmp_path / "e.parquet"))
    kinds = {field["name"]: field["type"] for field in guess.schema["fields"]}
    assert kinds["browser"] == "categorical"
    assert kinds["price"] == "numeric"
    store = TabularStore.build(table_source(tmp_path / "e.parquet", **guess.options()))
    assert store.numeric_values.shape[0] == ROWS


@pytest.mark.parametrize("end", ["Z", "+02:00", ".125", ""])
def test_iso_texts_part_the_rows_of_a_parquet_table(tmp_path, end):
    times = [f"2024-01-{1 + row * 28 // ROWS:02d}T10:00:{row % 60:02d}{end}" for row in range(ROWS)]
    pq.write_table(pa.table(clicks(ts=times)), tmp_path / "e.parquet")
    guess = guess_table(sample_file(tmp_path / "e.parquet"))
    (rows,) = table_source(tmp_path / "e.parquet", **guess.options()).rows()
    found = seconds_of(rows, guess.schema["time"], guess.schema.get("time_format"))
    assert found[0] == 1_704_103_200 - (7200 if end == "+02:00" else 0)
    bad = pa.table({"ts": [*times[:5], "soon", *times[6:]]})
    with pytest.raises(
        ValueError, match=r"'ts': 1 values are no times among rows 1 to 400 \(row 6: 'soon'\).*ISO times"
    ):
        seconds_of(Rows(bad, "e.parquet", 1), "ts")


def test_a_label_of_words_that_is_empty_is_not_known(tmp_path):
    """An empty cell of a text file is no 'no'."""
    columns = clicks(clicked=["yes", "no", "yes", ""] * (ROWS // 4), member=["a", "b"] * (ROWS // 2))
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert guess.schema["label"] == {"column": "clicked", "equals": "yes"}
    with pytest.raises(ValueError, match=r"'clicked': \d+ values are missing .*Leave rows without a label out"):
        TabularStore.build(table_source(tmp_path / "e.csv", **guess.options()))
    rules = [{"column": "clicked", "equals": "yes"}, {"column": "member", "in": ["a"]}]
    fields = [field for field in guess.schema["fields"] if field["name"] not in ("member", "clicked")]
    source = table_source(tmp_path / "e.csv", labels=rules, fields=fields)
    (rows,) = source.rows()
    assert label_columns_of(rows, ["clicked", "member"])[:4].tolist() == [[1, 1], [0, 0], [1, 1], [-100, 0]]


def test_words_for_missing_numbers_are_known(tmp_path):
    """R writes NA, also in columns that are read as codes."""
    columns = clicks(slot=["NA" if row % 7 == 0 else row % 5 for row in range(ROWS)])
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert guess.schema["events"]["na_values"] == ["NA"]
    assert {field["name"]: field["type"] for field in guess.schema["fields"]}["slot"] == "categorical"
    store = TabularStore.build(table_source(tmp_path / "e.csv", **guess.options()))
    assert store.input_ids.shape[0] == ROWS
    guess, log = guessed(tmp_path / "log.csv", table(slot=columns["slot"]))
    assert log.context["slot"].null_count == ROWS // 7 + 1


def test_a_rare_flag_is_no_copy_of_the_label(tmp_path):
    rng = np.random.default_rng(4)
    for share in (0.005, 0.02, 0.5):
        flag = (rng.random(ROWS) < share).astype(int)
        guess, _ = guessed(tmp_path / "e.csv", table(flag=flag))
        assert "flag" in guess.schema["columns"]["context"]
    guess, _ = guessed(tmp_path / "f.csv", table(flag=[f"f{bit}" for bit in table()["click"]]))
    assert any(found.column == "flag" and "tells the label" in found.why for found in guess.guesses)


def test_ids_that_come_again_a_few_times(tmp_path):
    rng = np.random.default_rng(5)
    pages = rng.integers(10**5, 10**6, 130)[rng.integers(0, 130, ROWS)]
    guess = guess_table(write(tmp_path / "e.csv", clicks(page=pages, category_id=pages * 10**11, ratio_id=pages / 7)))
    kinds = {field["name"]: field["type"] for field in guess.schema["fields"]}
    assert kinds["page"] == kinds["category_id"] == "categorical"
    assert "page_number" in kinds
    assert kinds["ratio_id"] == "numeric"
    assert "group" not in guess_table(write(tmp_path / "f.csv", clicks(ratio_user_id=pages / 7))).schema
    guess, _log = guessed(
        tmp_path / "g.csv", table(category_id=2**60 + table()["item_id"][0] + np.array(table()["item_id"]))
    )
    assert guess.schema["catalogue"]["columns"] == {"category_id": {"column": "category_id", "type": "integer"}}


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S UTC"),
        ("%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M:%S %p"),
        ("%b %d, %Y", "%b %d, %Y"),
        ("%m/%d/%y", "%m/%d/%y"),
    ],
)
def test_times_as_people_write_them(tmp_path, form, name):
    moments = [datetime(2024, 1, 3) + timedelta(hours=7 * row) for row in range(ROWS)]
    text = [f'"{moment.strftime(form)}"' for moment in moments]
    guess, log = guessed(tmp_path / "e.csv", table(ts=None, viewed=text))
    assert guess.schema["columns"]["time"] == {"column": "viewed", "format": name}
    assert datetime.fromtimestamp(int(log.time.max()), timezone.utc).strftime(form) == moments[-1].strftime(form)
    guess = guess_table(write(tmp_path / "f.csv", clicks(signed=text)))
    assert "signed" not in [field["name"] for field in guess.schema["fields"]]  # a time, no category


def test_day_and_month_are_told_by_all_rows_and_the_shorter_span(tmp_path):
    days = [f"11/{6 + row * 4 // ROWS}/2017" for row in range(ROWS)]
    guess, _log = guessed(tmp_path / "e.csv", table(ts=None, date=days))
    assert guess.schema["columns"]["time"]["format"] == "%m/%d/%Y"
    assert "%d/%m/%Y fits too" in next(found.why for found in guess.guesses if found.role == "time")
    late = [f"01/{1 + row * 13 // ROWS:02d}/2024" for row in range(1, ROWS + 1)]  # the 13th comes last
    guess, _ = guessed(tmp_path / "f.csv", table(ts=None, date=late))
    assert guess.schema["columns"]["time"]["format"] == "%m/%d/%Y"


def test_what_is_no_log_is_a_table(tmp_path):
    columns = {
        "Ad Topic Line": [f"line {row}" for row in range(ROWS)],
        "customer_type": ["a", "b", "c", "d"] * (ROWS // 4),
    }
    for name in ("Ad Topic Line", "customer_type"):
        with pytest.raises(NoLogError):
            guess_log(write(tmp_path / "e.csv", clicks(ts=table()["ts"]) | {name: columns[name]}))
    write(tmp_path / "g.csv", table(ts=None))
    guess = guess_files(tmp_path / "g.csv")
    assert guess.is_table
    assert re.search(r"table +no column looks like the time .*\(not sure\)", "\n".join(guess.lines()))
    file = write(tmp_path / "f.csv", table(ts=None))
    with pytest.raises(NoLogError, match=r"--model deepfm, without --item"):
        guess_log(file, given={"user": "user_id", "item": "item_id"})


def test_ids_that_most_rows_lack_are_not_guessed(tmp_path):
    columns = table(item_id=None) | {"shelf": table()["item_id"]}
    orders = ["" if row % 10 else f"o{row // 10}" for row in range(ROWS)]
    guess, _ = guessed(tmp_path / "e.csv", {"shop_order": orders, **columns})
    assert guess.schema["columns"]["item"] == "shelf"


def test_labels_of_plus_and_minus_one(tmp_path):
    signs = [1 if row % 3 == 0 else -1 for row in range(ROWS)]
    for given in ({}, {"label": "clicked"}):
        guess = guess_table(write(tmp_path / "e.csv", clicks(clicked=signs, promo=[0, 1] * (ROWS // 2))), given)
        assert guess.schema["label"] == {"column": "clicked", "equals": 1}
    guess, log = guessed(tmp_path / "f.csv", table(click=None) | {"promo": [0, 1] * (ROWS // 2), "clicked": signs})
    assert guess.schema["columns"]["label"] == {"column": "clicked", "equals": 1}
    assert (log.label == 1).sum() == signs.count(1)


def test_columns_that_number_the_rows_are_left_out(tmp_path):
    columns = {"": list(range(ROWS)), "RowNumber": list(range(1, ROWS + 1)), **clicks()}
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert {"", "RowNumber"}.isdisjoint(field["name"] for field in guess.schema["fields"])
    TabularStore.build(table_source(tmp_path / "e.csv", **guess.options()))


def test_a_first_row_of_words_is_no_header(tmp_path):
    rows = [(f"{row}", f"U{row % 9}", f"11/{9 + row % 9}/2019 9:05:58 AM", "N1 N2") for row in range(ROWS)]
    (tmp_path / "e.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="Its first line holds values, no column names"):
        sample_file(tmp_path / "e.tsv")
    sample = write(
        tmp_path / "f.csv",
        {
            "click": ["click", "skip"] * (ROWS // 2),
            "size": ["big", "size"] * (ROWS // 2),
            "x": [1] * ROWS,
            "y": [2] * ROWS,
            "z": [2] * ROWS,
        },
    )
    assert sample.table.num_rows == ROWS


def test_what_people_write_as_text_is_said(tmp_path):
    guess = guess_table(
        write(
            tmp_path / "e.csv",
            clicks(income=['"$84,835.00"', '"$1.50 "'] * (ROWS // 2), date=["noon", "later"] * (ROWS // 2)),
        )
    )
    said = {found.column: found for found in guess.guesses}
    assert "amounts of money as texts" in said["income"].why
    assert "called like a time" in said["date"].why
    assert not said["income"].sure


def test_a_column_that_is_called_like_a_statistic(tmp_path):
    """A log's own columns and statistics stand beside one another in a table."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"user": rng.integers(30, size=600), "ad": rng.integers(20, size=600), "hour": rng.integers(24, size=600)}
    ).assign(when=1_700_000_000 + 60 * np.arange(600), click=rng.integers(2, size=600))
    table.to_csv(tmp_path / "clicks.csv", index=False)
    found = guess_log(sample_file(tmp_path / "clicks.csv"))
    assert "row_hour" in found.schema["columns"]["context"]
    assert any("is called 'row_hour'" in guess.why for guess in found.guesses)
    words = [
        "train",
        str(tmp_path / "clicks.csv"),
        "--model",
        "dnn",
        "--kind",
        "log",
        "--output-dir",
        str(tmp_path / "run"),
    ]
    assert main([*words, "--training.epochs", "1", "--quiet"]) == 0
    processor = AutoProcessor.from_pretrained(tmp_path / "run")
    assert {"hour", "row_hour"} <= {field.name for field in processor.fields}
