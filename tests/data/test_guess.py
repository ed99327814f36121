"""What `lmctr init` takes columns for."""

import gzip
import operator
import re
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from guess_logs import ROWS, clicks, guessed, table, write
from transformers import AutoProcessor

from lmctr.cli.main import main
from lmctr.data import load_log
from lmctr.data.guess import NoLogError, guess_files, guess_log, guess_table, sample_file
from lmctr.data.reading import FORMATS, delimiter_of
from lmctr.data.tables.load import table_source
from lmctr.data.tables.store import TabularStore
from lmctr.runs.find import is_data_file

FAR = list(range(4_000_000_000, 4_000_000_000 + ROWS))  # 2096


@pytest.mark.parametrize(
    ("name", "delimiter"),
    [
        ("e.csv", ","),
        ("e.csv", ";"),
        ("e.csv", "|"),
        ("e.csv", " "),
        ("e.tsv", "\t"),
        ("e.csv.gz", ","),
        ("e.jsonl", None),
    ],
)
def test_formats(tmp_path, name, delimiter):
    guess, log = guessed(tmp_path / name, table(), delimiter)
    assert guess.schema["columns"] == {"user": "user_id", "item": "item_id", "time": "ts", "label": "click"}
    assert log.num_events == ROWS
    assert guess.schema["events"].get("delimiter", ",") == (delimiter if name == "e.csv" else ",")


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


def test_numbers_with_signs_in_logs_are_numbers(tmp_path):
    amounts = [f'"{1000 + 7 * row:,}"' for row in range(ROWS)]
    items = {"item_id": list(range(120)), "price": [f"{row},5 kg" for row in range(120)], "brand": ["ab", "c"] * 60}
    items["price"] = [f'"{price}"' for price in items["price"]]
    guess = guess_log(write(tmp_path / "e.csv", table(paid=amounts)), write(tmp_path / "i.csv", items))
    said = {found.column: f"{found.role}: {found.why}" for found in guess.guesses}
    assert said["paid"] == "context: numbers, written as '1,000'"
    assert said["price"] == "items column: numbers, written as '0,5 kg'"
    assert guess.schema["columns"]["context"]["paid"] == {"column": "paid", "type": "number", "thousands": ","}
    price = {"column": "price", "type": "number", "decimal": ",", "unit": "kg"}
    assert guess.schema["catalogue"]["columns"]["price"] == price
    assert "price" not in guess.item_categories
    assert guess.title is None


def test_ids_that_name_rows_of_a_log_are_left_out_as_those_of_a_table(tmp_path):
    """Of the rows that have one; written as fractions too, and where a few come again, which would be read as numbers."""
    draw = np.random.default_rng(0)
    ids, has = draw.permutation(10**6)[:ROWS], draw.random(ROWS) < 0.5
    half = [one if own else None for one, own in zip(ids.tolist(), has)]
    more = {
        "callID": half,
        "couponID": [one and f"{one}.0" for one in half],
        "token": [one and f"t{one}" for one in half],
    }
    more |= {"partID": ids[draw.integers(0, ROWS, ROWS)].tolist(), "cents": half}
    guess, log = guessed(tmp_path / "e.csv", table(**more))
    said = {found.column: f"{found.role}: {found.why}" for found in guess.guesses}
    assert {said[name] for name in ("callID", "couponID", "token")} == {
        "left out: another value on (almost) every row"
    }
    assert said["partID"] == f"left out: {len({*more['partID']}):,} ids on {ROWS:,} rows"
    assert said["cents"] == "context: numbers"
    assert not {*more} - {"cents"} & {*log.context.column_names}


def test_texts_that_the_prompt_leaves_out_are_said(tmp_path):
    items = {"item_id": list(range(120)), "title": [f"Thing {row}" for row in range(120)]}
    items |= {name: [f"Thing {row} is long told {name}" for row in range(120)] for name in ("about", "of")}
    guess = guess_log(write(tmp_path / "e.csv", table()), write(tmp_path / "i.csv", items))
    assert guess.title == "title"
    (said,) = [found for found in guess.guesses if found.role == "items not in prompt"]
    assert said.column == "about, of"
    assert "{about:.200} {of:.200} in data.prompt.item" in said.why


def test_json_lines_by_the_name_of_json(tmp_path):
    guess, _ = guessed(tmp_path / "reviews.jsonl", table())
    for name in ("reviews.json", "reviews.json.gz"):
        data = (tmp_path / "reviews.jsonl").read_bytes()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        assert guess_log(sample_file(tmp_path / name)).schema["columns"] == guess.schema["columns"]
    for start in ("", "\ufeff"):
        (tmp_path / "array.json").write_text(f'{start}[{{"user": 1}}]')
        with pytest.raises(ValueError, match=r"array\.json: cannot be read as JSON lines: this is one JSON array"):
            sample_file(tmp_path / "array.json")


@pytest.mark.parametrize(
    ("title", "delimiter"), [("sep=;", ";"), ("# exported in 2024", ","), ("Report: clicks, of May", ";")]
)
def test_a_title_above_the_line_of_names(tmp_path, title, delimiter):
    write(tmp_path / "e.csv", table(), delimiter)
    (tmp_path / "t.csv").write_text(f"{title}\n{(tmp_path / 'e.csv').read_text()}")
    with pytest.raises(
        ValueError, match=r"t.csv: .* row 1: Expected \d columns?.* above the line of names\? Delete it"
    ):
        sample_file(tmp_path / "t.csv")


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


@pytest.mark.parametrize("text", ["a title\n12 13 14\n1 2\n", "film\nthe thing\n", "a  b\n1  2\n", "a b\n", ""])
def test_spaces_part_numbers_only(tmp_path, text):
    (tmp_path / "e.csv").write_text(text)
    assert delimiter_of(tmp_path / "e.csv") == ","


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
    price = ["3,5", "?", "1,2E+01", "7,25"] * (ROWS // 4)
    guess, log = guessed(tmp_path / "e.csv", table(price=price), ";")
    assert guess.schema["events"] | {"path": ""} == {"path": "", "delimiter": ";", "decimal": ",", "na_values": ["?"]}
    assert guess.schema["columns"]["context"] == ["price"]
    assert sorted({value for value in log.context["price"].to_pylist() if value is not None}) == [3.5, 7.25, 12.0]
    assert log.context["price"].null_count == ROWS // 4


@pytest.mark.parametrize(
    ("columns", "label", "positive"),
    [
        ({"click": ["yes", "no"] * 200}, {"column": "click", "equals": "yes", "otherwise": "no"}, 200),
        ({"click": ["true", "false"] * 200}, "click", 200),
        ({"click": None, "rating": [1, 5, 3, 4] * 100}, {"column": "rating", "at_least": 4}, 200),
        (
            {"click": None, "action": ["view", "click", "view", "buy"] * 100},
            {"column": "action", "equals": "click"},
            100,
        ),
        ({"click": None, "行为": ["pv", "fav", "pv", "buy"] * 100}, {"column": "行为", "equals": "buy"}, 100),
        (
            {"click": None, "type": ["carts", "views", "orders", "views"] * 100},
            {"column": "type", "equals": "orders"},
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


def test_ids_that_an_items_file_shares_are_the_items(tmp_path):
    """Under no name that says so, and beside another column of more values; another column of that file that does not tell its rows apart is none."""
    rng = np.random.default_rng(3)
    places, towns = rng.integers(0, 40, ROWS), rng.integers(0, 60, ROWS)
    columns = table(item_id=None, page=rng.integers(0, 120, ROWS), place=places, town=towns)
    venues = {"place": list(range(40)), "town": [n % 20 for n in range(40)]}
    guess, log = guessed(tmp_path / "e.csv", columns, items=write(tmp_path / "i.csv", venues))
    (item,) = (entry for entry in guess.guesses if entry.role == "item")
    assert (item.column, item.sure, log.num_items) == ("place", True, 40)
    assert guess_log(write(tmp_path / "e.csv", columns)).schema["columns"]["item"] == "page"


def test_a_file_of_items_or_users_tells_which_column_holds_their_ids(tmp_path):
    """Where no name does: of the columns of ids that come again the one of most different ones would be the item."""
    given = table(zahl=[row * 7 % 90 for row in range(ROWS)])
    columns = {"klant": given["user_id"], "stuk": [f"A{item:02d}" for item in given["item_id"]]}
    columns |= {name: given[name] for name in ("ts", "click", "zahl")}
    items = {"nr": [f"A{item:02d}" for item in range(30)], "farbe": ["rot", "blau"] * 15}
    guess, log = guessed(tmp_path / "e.csv", columns, items=write(tmp_path / "items.csv", items))
    assert (guess.schema["columns"]["item"], guess.schema["catalogue"]["item"], log.num_items) == ("stuk", "nr", 30)
    (said,) = [entry for entry in guess.guesses if entry.role == "item"]
    assert said.sure
    assert said.why == f"100.0% of its ids stand in {tmp_path / 'items.csv'}"
    films = [row * 7 % 120 for row in range(ROWS)]
    numbered = {"wer": given["user_id"], "was": films, "ts": given["ts"], "click": given["click"]}
    catalogue = {"film": list(range(110)), "art": ["a", "b"] * 55}  # every user's number, and most of the items'
    guess, _ = guessed(tmp_path / "n.csv", numbered, items=write(tmp_path / "films.csv", catalogue))
    assert guess.schema["columns"]["item"] == "was"
    users = {"id": sorted({*given["user_id"]}), "ort": ["Bonn", "Ulm"] * (len({*given["user_id"]}) // 2)}
    guess, _ = guessed(tmp_path / "f.csv", columns, users=write(tmp_path / "users.csv", users), given={"item": "stuk"})
    assert guess.schema["columns"]["user"] == "klant"
    with pytest.raises(ValueError, match="If another column of the events holds them, state it: --item COLUMN"):
        guessed(
            tmp_path / "g.csv", table(), items=write(tmp_path / "others.csv", {"nr": ["x", "y"], "b": [1000, 2000]})
        )


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
        ({"click": None}, {}, r"COLUMN>=NUMBER'; no other column is there; ts is the time; "),
        ({"ts": None}, {}, r"no column looks like the time .*--time COLUMN"),
        ({}, {"user": "usr"}, r"--user: .* has no column 'usr'; did you mean 'user_id'\? its columns: "),
        ({}, {"time": "click"}, "--time click: holds no times"),
        (
            {},
            {"label": "click=1", "user": "click"},
            "^--label and --user are both 'click': state a column of its own ",
        ),
        ({}, {"item": "ts"}, r"no column looks like the time .* the columns are user_id, item_id, ts, click\."),
        (
            {"ts": FAR},
            {"time": "ts"},
            r"--time ts: holds no times .*\(4000000000, .*from 1990 to today such as 1700000000",
        ),
        ({"click": [1] * ROWS}, {}, r"no column looks like the label .*; 'click' holds 1 only\)"),
        (
            {"click": ["yes", ""] * (ROWS // 2)},
            {},
            r"'click' holds 'yes' only; 200 rows have no value: .* write one there",
        ),
        (
            {"click": ["yes", ""] * (ROWS // 2)},
            {"label": "click=yes"},
            r"'click': it holds 'yes' only, and a label needs",
        ),
        (
            {},
            {"label": "click>=0"},
            r"'click': all 400 rows with a value are clicks, and a label needs clicks and others",
        ),
        ({"ts": FAR}, {}, r"e.csv: ts holds no times .*from 1990 to today.*--time COLUMN.*--model deepfm"),
        (
            {"ts": None, "day": [1, 31] * 200, "month": [2, 3] * 200, "year": [2009] * 400},
            {},
            r"e.csv: day holds a part of a date: write year, month, day into one column, such as 2024-03-01\. State",
        ),
        (
            {"ts": None, "day": [1, 31] * 200, "month": [2, 3] * 200, "year": [2009] * 400, "hour": [1, 9] * 200},
            {},
            r"e.csv: day holds a part of a date: write year, month, day, hour into one column, such as 2024-03-01 13:00\. State",
        ),
        (
            {"ts": None, "Created On": ["9/1/2014 8:00", "27-01-2014 9:30"] * (ROWS // 2)},
            {},
            r"Created On holds no times that can be told \(dates, but written in more than one way: '9/1/2014 8:00', '27-01-2014 9:30'\)",
        ),
    ],
)
def test_errors(tmp_path, columns, given, says):
    with pytest.raises(ValueError, match=says):
        guess_log(write(tmp_path / "e.csv", table(**columns)), given=given)


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


def test_codes_are_declared_so_that_a_later_file_gives_the_same(tmp_path):
    codes = [3 + row % 4 for row in range(ROWS)]
    guess, log = guessed(tmp_path / "e.csv", table(zone=codes))
    assert guess.schema["columns"]["context"] == {"zone": {"column": "zone", "type": "integer"}}
    write(tmp_path / "later.csv", table(zone=[f"{code}.0" for code in codes]))
    schema = guess.schema | {"events": {**guess.schema["events"], "path": "later.csv"}}
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema))
    later = load_log(tmp_path / "schema.yaml")
    assert later.context["zone"].equals(log.context["zone"])


@pytest.mark.parametrize("point", ["", ".0"])
def test_many_whole_numbers_are_codes_where_things_are_called_so(tmp_path, point):
    """Taobao's brands, with a point where pandas wrote a column of which a value is missing."""
    codes = [f"{10**6 + 7919 * (row % 300)}{point}" for row in range(3 * ROWS)]
    columns = {name: values * 3 for name, values in table().items()} | {"item_brand": codes, "clicks_before": codes}
    columns["ts"] = sorted(columns["ts"])
    guess, log = guessed(tmp_path / "e.csv", columns)
    context = guess.schema["columns"]["context"]
    assert context["item_brand"] == {"column": "item_brand", "type": "integer"}
    assert context["clicks_before"] in ({"column": "clicks_before", "type": "number"}, "clicks_before")
    assert len(log.context["item_brand"].unique()) == 300


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
    write(tmp_path / "h.csv", table(ts=None, click=None))
    with pytest.raises(ValueError, match=r"looks like the label .* No log either: no column looks like the time \("):
        guess_files(tmp_path / "h.csv")
    write(tmp_path / "far.csv", table(ts=FAR))
    guess = guess_files(tmp_path / "far.csv")
    assert re.search(
        r"no time +ts +holds no times.*from 1990.*parted at random  \(not sure\)", "\n".join(guess.lines())
    )
    file = write(tmp_path / "f.csv", table(ts=None))
    with pytest.raises(NoLogError, match=r"--model deepfm, without --item"):
        guess_log(file, given={"user": "user_id", "item": "item_id"})
    with pytest.raises(NoLogError, match=r"--model deepfm, without --items and --users$"):
        guess_log(file, file, file)


def test_ids_that_most_rows_lack_are_not_guessed(tmp_path):
    columns = table(item_id=None) | {"shelf": table()["item_id"]}
    orders = ["" if row % 10 else f"o{row // 10}" for row in range(ROWS)]
    guess, _ = guessed(tmp_path / "e.csv", {"shop_order": orders, **columns})
    assert guess.schema["columns"]["item"] == "shelf"
    items = table()["item_id"]
    titles = {"movie_year": [1990 + item % 15 for item in items], "movie_title": [f"Film {item}" for item in items]}
    guess, _ = guessed(tmp_path / "g.csv", table(item_id=None) | titles)  # a year of a film is no film
    assert next(entry for entry in guess.guesses if entry.role == "item").why.startswith("by its name")
    assert guess.schema["columns"]["item"] == "movie_title"
    lands = table(item_id=None) | {"Country": table()["item_id"]}  # of users, and nothing that they meet
    with pytest.raises(NoLogError, match="no column looks like the item"):
        guess_log(write(tmp_path / "f.csv", lands))


def test_visits_are_users_where_most_users_are_not_known(tmp_path):
    visits = {"session_id": [row // 3 for row in range(ROWS)]}
    users = ["" if visit % 3 else f"u{visit % 20}" for visit in visits["session_id"]]
    guess, log = guessed(tmp_path / "e.csv", table(user_id=users) | visits)
    assert guess.schema["columns"]["user"] == "session_id"
    assert any("user_id has no value on 66.2% of the rows" in entry.why for entry in guess.guesses)
    assert log.users.column_names == ["user_id", "row_user_id"]  # `user_id` is what a log calls its users
    assert guess.user_categories == ["row_user_id"]
    assert any("is called 'row_user_id'" in line for line in guess.lines())
    owners = {"item_id": [f"i{item}" for item in table()["item_id"]], "sku": table()["item_id"]}
    guess, log = guessed(tmp_path / "f.csv", table(item_id=None) | owners, given={"item": "sku"})
    assert "row_item_id" in log.catalogue.column_names


def test_reviewers_are_users_though_they_come_once(tmp_path):
    reviews = {"reviewerID": [f"A{row}" for row in range(ROWS)], "overall": [5, 3] * (ROWS // 2)}
    guess = guess_log(write(tmp_path / "e.csv", table(user_id=None, click=None) | reviews))
    assert guess.schema["columns"]["user"] == "reviewerID"


def test_labels_of_plus_and_minus_one(tmp_path):
    signs = [1 if row % 3 == 0 else -1 for row in range(ROWS)]
    for given in ({}, {"label": "clicked"}):
        guess = guess_table(write(tmp_path / "e.csv", clicks(clicked=signs, promo=[0, 1] * (ROWS // 2))), given)
        assert guess.schema["label"] == {"column": "clicked", "equals": 1, "otherwise": [-1, 0]}
    guess, log = guessed(tmp_path / "f.csv", table(click=None) | {"promo": [0, 1] * (ROWS // 2), "clicked": signs})
    assert guess.schema["columns"]["label"] == {"column": "clicked", "equals": 1, "otherwise": [-1, 0]}
    assert (log.label == 1).sum() == signs.count(1)


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


def test_columns_of_parquet_that_no_field_reads(tmp_path):
    """Durations and times of day are said to be left out; bytes that are texts are read."""
    columns = table() | {
        "lasted": pa.array(range(ROWS), pa.duration("s")),
        "opens": pa.array([3_600 * (row % 24) for row in range(ROWS)], pa.time32("s")),
        "shop": [b"north" if row % 3 else b"south" for row in range(ROWS)],
        "blob": [b"\xff\xfe"] * ROWS,
        "month": pa.array(pd.Series(pd.period_range("2020-01", periods=ROWS, freq="M"))),
    }
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    for guess in (guess_log(sample_file(tmp_path / "e.parquet")), guess_table(sample_file(tmp_path / "e.parquet"))):
        said = {entry.column: entry.why for entry in guess.guesses if entry.role == "left out"}
        assert said["lasted"] == "holds durations; write seconds, as numbers"
        assert said["opens"] == "holds times of day; write hours, as numbers, or whole times"
        assert said["blob"] == "holds bytes that are no UTF-8 text"
        assert said["month"].startswith("holds values of the type pandas.period, which no field reads")
        assert any(entry.column == "shop" and entry.why == "2 categories" for entry in guess.guesses)


def test_json_lines_whose_columns_hold_texts_and_numbers(tmp_path):
    """Prices that are numbers, or `free`, and ids of both kinds."""
    prices = [3.5 if row % 3 else "free" for row in range(ROWS)]
    users = [f"u{row % 9}" if row % 2 else row % 8 for row in range(ROWS)]
    guess, log = guessed(tmp_path / "e.jsonl", table(user_id=users, price=prices))
    assert guess.schema["columns"]["context"] == {"price": {"column": "price", "type": "text"}}
    assert any("texts and numbers mixed" in line for line in guess.lines())
    assert log.context["price"].to_pylist()[:4] == ["free", "3.5", "3.5", "free"]
    assert log.num_users == 13
    items = {"item_id": list(range(30)), "name": [f"Film {n}" if n % 3 else 1900 + n for n in range(30)]}
    catalogue = write(tmp_path / "items.jsonl.gz", items)
    events = write(tmp_path / "f.jsonl", table())
    schema = guess_log(events, catalogue).schema
    path, keys = schema["events"]["path"], {key: value for key, value in schema.items() if key != "events"}
    assert load_log(path, **keys).catalogue["name"].to_pylist()[:3] == ["1900", "Film 1", "Film 2"]
    guess = guess_table(write(tmp_path / "t.jsonl", clicks(price=prices)))
    assert next(field for field in guess.schema["fields"] if field["name"] == "price")["value_type"] == "text"
    columns = {"user": "user_id", "item": "item_id", "time": "ts", "label": "click", "context": ["price"]}
    with pytest.raises(
        ValueError, match=r"e.jsonl, column 'price': the values have no common type \(row 1: 'free'; row 2: 3.5\)"
    ):
        load_log(tmp_path / "e.jsonl", columns=columns)  # nobody said that it holds texts


@pytest.mark.parametrize("name", ["~x.csv", "two\nlines.csv", "-x.csv", "a: [b@c#d%41.csv"])
def test_files_whose_names_mean_something_elsewhere(name, tmp_path, monkeypatch):
    """A home, the end of a comment, an option, a key."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name, table())
    stem = name.removesuffix(".csv")
    assert main(["init", "--yes", f"--output=of {stem}", "--", name]) == 0
    recipe = yaml.safe_load((tmp_path / f"of {stem}/din.yaml").read_text())
    assert recipe["data"]["name"] == "schema.yaml"
    assert load_log(tmp_path / f"of {stem}/schema.yaml").num_events == ROWS


def test_files_that_call_columns_alike(tmp_path):
    """Items and users have a city each, events a `user_city`, and items a `label`, a `time` and what statistics are called."""
    rng = np.random.default_rng(0)
    write(tmp_path / "e.csv", table(user_city=rng.integers(0, 9, ROWS), label_x=rng.integers(0, 9, ROWS)))
    items = {"item_id": range(30), "city": [f"c{n % 7}" for n in range(30)], "label": [f"l{n % 4}" for n in range(30)]}
    items |= {
        "time": [n % 3 for n in range(30)],
        "item_time": [n % 4 for n in range(30)],
        "hour": [n % 5 for n in range(30)],
    }
    users = {"user_id": range(40), "city": [f"c{n % 9}" for n in range(40)], "hour": [n % 6 for n in range(40)]}
    write(tmp_path / "items.csv", items)
    write(tmp_path / "users.csv", users)
    command = ["init", str(tmp_path / "e.csv"), "--items", str(tmp_path / "items.csv"), "--yes"]
    assert main([*command, "--users", str(tmp_path / "users.csv"), "--output", str(tmp_path / "shop")]) == 0
    log = load_log(tmp_path / "shop" / "schema.yaml")
    assert log.context.column_names == ["user_city", "label_x"]
    assert log.catalogue.column_names == ["item_id", "city", "item_label", "item_time_", "item_time", "item_hour"]
    assert log.users.column_names == ["user_id", "user_city_", "user_hour"]
    assert log.catalogue["item_time_"].to_pylist()[:4] == [0, 1, 2, 0]
    recipe = yaml.safe_load((tmp_path / "shop" / "din.yaml").read_text())
    assert recipe["data"]["user_features"] == ["user_city_", "user_hour"]
    for family in ("deepfm", "din"):  # what a log's samples call columns does not meet twice
        words = ["train", str(tmp_path / "shop" / f"{family}.yaml"), "--output-dir", str(tmp_path / family), "--quiet"]
        assert main([*words, "--training.epochs", "1"]) == 0


LEARNERS = {
    "the KDD Cup": ("Anon Student Id", "Problem Name", "Correct First Attempt"),
    "ASSISTments": ("studentId", "problemId", "correct"),
    "ProgSnap2": ("SubjectID", "ProblemID", "Correct"),
    "skills alone": ("learner_id", "skill_id", "is_correct"),
}


@pytest.mark.parametrize("source", LEARNERS)
def test_answers_of_students_to_problems_are_a_log(source, tmp_path):
    user, item, label = LEARNERS[source]
    columns = table(user_id=None, item_id=None, click=None) | {user: table()["user_id"], item: table()["item_id"]}
    columns |= {"original": [n % 2 for n in range(ROWS)], label: table()["click"]}
    guess, _ = guessed(tmp_path / "e.csv", columns)
    assert [guess.schema["columns"][role] for role in ("user", "item", "label")] == [user, item, label]
    assert all(entry.sure for entry in guess.guesses)


def test_users_stay_longer_than_their_visits(tmp_path):
    """In any language: of two columns whose values come again, the one that holds the other's over a longer time."""
    rng = np.random.default_rng(8)
    visits = np.repeat(np.arange(200), 10)
    users, start = rng.integers(0, 40, 200)[visits], 1_700_000_000 + 7_200 * visits
    columns = {
        "sitzung": [f"s{visit}" for visit in visits],
        "klant": [f"k{user}" for user in users],
        "land": [f"l{user % 12}" for user in users],
        "item_id": rng.integers(0, 30, 2_000),
        "tijd": start + 60 * np.tile(np.arange(10), 200),
        "click": rng.integers(0, 2, 2_000),
    }
    guess, log = guessed(tmp_path / "e.csv", columns)
    assert guess.schema["columns"]["user"] == "klant"
    assert not next(entry for entry in guess.guesses if entry.role == "user").sure
    assert log.num_users == 40
    columns["klant"] = [f"k{visit // 2}" for visit in visits]  # who stay no longer than twice a visit and a pause
    columns["tijd"] = np.arange(2_000) * 60 + 1_700_000_000
    assert guessed(tmp_path / "f.csv", columns)[0].schema["columns"]["user"] == "sitzung"


def test_what_is_filled_after_the_label_is_no_context(tmp_path):
    bits = np.array(table()["click"])
    actions = np.where(bits, np.random.default_rng(9).choice(["kauf", "korb", "nichts"], ROWS), "nichts")
    guess, _ = guessed(
        tmp_path / "e.csv", table(aktion=actions, gewicht=np.random.default_rng(1).integers(0, 9, ROWS))
    )
    assert next(entry.why for entry in guess.guesses if entry.column == "aktion").startswith("'nichts' in all ")
    assert [*guess.schema["columns"]["context"]] == ["gewicht"]


def test_what_is_said_of_columns_stands_below_one_another(tmp_path):
    guess = guess_log(write(tmp_path / "e.csv", table(required_car_parking_space=["x", "y"] * (ROWS // 2))))
    assert len({line.index(own.why) for line, own in zip(guess.lines()[1:], guess.guesses)}) == 1


def test_what_is_not_sure_says_how_it_is_stated(tmp_path):
    grades = [1 + row % 5 for row in range(ROWS)]
    guess = guess_log(
        write(tmp_path / "e.csv", table(item_id=None, click=None, shelf=table()["item_id"], stars=grades))
    )
    unsure = [line for line in guess.lines() if "not sure" in line]
    assert [line.partition("  (not sure; ")[2] for line in unsure] == [
        "another one: --item COLUMN)",
        "another one: --label COLUMN)",
    ]
