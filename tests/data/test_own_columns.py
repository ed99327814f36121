"""A log's own columns: of its events, items and users, in the schema, in the log and in its tabular view."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmctr.data import InteractionLog, load, load_log, split_log
from lmctr.data.builders.movielens_table import movielens_table

EVENTS = """who;what;when;hit;slot;price;device
a;1;2024-03-01 10:00:00;1;top;1,5;phone
b;2;2024-03-01 11:00:00;0;side;?;desktop
a;2;2024-03-02 10:00:00;0;top;3,0;phone
c;9;2024-03-03 10:00:00;1;side;4,0;?
b;1;2024-03-04 10:00:00;1;top;2,5;phone
"""
ITEMS = "id,name,kind,weight\n1,Hat,clothes,0.5\n2,Pan,kitchen,2\n"
USERS = "who,age,town\na,30,Oslo\nb,41,Bergen\n"
SCHEMA = """
events: {path: e.csv, delimiter: ";", decimal: ",", na_values: ["?"]}
columns: {user: who, item: what, time: when, label: hit, context: {slot: , cost: price, device: }}
catalogue: {path: items.csv, item: id}
users: {path: users.csv}
"""


@pytest.fixture
def shop(tmp_path):
    for name, text in (("e.csv", EVENTS), ("items.csv", ITEMS), ("users.csv", USERS)):
        (tmp_path / name).write_text(text)

    def schema(more="missing_items: empty\n"):
        (tmp_path / "shop.yaml").write_text(SCHEMA + more)
        return tmp_path / "shop.yaml"

    return schema


def test_context_follows_the_order_of_the_events(shop):
    log = load_log(shop())
    assert log.user_ids.tolist() == ["a", "b", "c"]
    assert log.context.column_names == ["slot", "cost", "device"]
    # a's two events, b's two, c's one; `?` is missing in text and numbers, and the comma is a decimal point
    assert log.context["slot"].to_pylist() == ["top", "top", "side", "top", "side"]
    assert log.context["cost"].to_pylist() == [1.5, 3.0, None, 2.5, 4.0]
    assert log.context["device"].to_pylist() == ["phone", "phone", "desktop", "phone", None]


def test_context_is_saved(shop, tmp_path):
    log = load_log(shop())
    again = InteractionLog.load(log.save(tmp_path / "saved"))
    assert again.context.equals(log.context)
    plain = InteractionLog.from_columns([1, 2], [1, 2], [10, 20], [0, 1])
    assert InteractionLog.load(plain.save(tmp_path / "saved")).context is None
    with pytest.raises(ValueError, match=r"differ in length.*'context': 1"):
        InteractionLog.from_columns([1, 2], [1, 2], [10, 20], [0, 1], context=pa.table({"x": [1]}))
    with pytest.raises(ValueError, match="context: 1 rows for 2 events"):
        InteractionLog(**{**vars(plain), "context": pa.table({"x": [1]})})


def test_missing_items(shop):
    with pytest.raises(
        ValueError, match=r"e.csv, column 'what': 1 of 5 .*`missing_items: drop`.*`missing_items: empty`"
    ):
        load_log(shop(""))
    kept = load_log(shop())
    assert kept.catalogue.to_pylist()[-1] == {"item_id": 9, "name": None, "kind": None, "weight": None}
    assert kept.num_events == 5
    assert kept.info.notes == ("1 events of 1 items that the catalogue lacks are kept without a description.")
    left = load_log(shop("missing_items: drop\n"))
    assert left.num_events == 4
    assert left.num_users == 2
    assert left.context["cost"].to_pylist() == [1.5, 3.0, None, 2.5]
    assert "were left out" in left.info.notes
    with pytest.raises(ValueError, match=r"missing_items of .*got 'maybe'"):
        load_log(shop("missing_items: maybe\n"))


def test_missing_items_needs_a_catalogue_file(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "events: e.csv\ncolumns: {user: who, item: what, time: when, label: hit}\nmissing_items: drop\n"
    )
    with pytest.raises(ValueError, match="missing_items is 'drop', but the catalogue is no file of its own"):
        load_log(tmp_path / "s.yaml")


def test_a_data_file_with_the_keys_of_a_schema(shop, tmp_path, monkeypatch):
    by_schema = load_log(shop())
    monkeypatch.chdir(tmp_path)
    options = {
        "columns": {"user": "who", "item": "what", "time": "when", "label": "hit", "context": ["slot"]},
        "catalogue": {"path": "items.csv", "item": "id"},
        "missing_items": "empty",
        "delimiter": ";",
    }
    log = load("e.csv", kind="log", **options)
    assert log.time.tolist() == by_schema.time.tolist()
    assert log.catalogue.equals(by_schema.catalogue)
    assert log.context["slot"].equals(by_schema.context["slot"])
    with pytest.raises(ValueError, match=r"e.csv: a raw data file needs a schema.*lmctr init e.csv"):
        load_log("e.csv")
    with pytest.raises(ValueError, match=r"unknown key 'usr' in columns of options of e.csv; did you mean 'user'"):
        load_log("e.csv", columns={"usr": "who"})


def test_own_columns_are_fields_of_the_table(shop):
    log = load_log(shop())
    splits = split_log(log, "given", parts=["train", "train", "train", "validation", "test"])
    source = movielens_table(log, splits, own_columns=None, history_length=0)
    types = {field["name"]: field["type"] for field in source.fields}
    wanted = {"kind": "categorical", "weight": "numeric", "age": "categorical", "town": "categorical"}
    wanted |= {"slot": "categorical", "cost": "numeric", "device": "categorical", "name": "categorical"}
    assert {name: types[name] for name in wanted} == wanted
    rows = {piece.part: next(piece.read(None)).table for piece in source.pieces}
    train = rows["train"].to_pylist()
    by_key = {(row["user_id"], row["item_id"]): row for row in train}
    assert by_key["a", 2]["cost"] == 3.0
    assert by_key["a", 2]["kind"] == "kitchen"
    assert by_key["a", 2]["town"] == "Oslo"
    assert by_key["b", 2]["cost"] is None
    assert by_key["b", 2]["age"] == 41
    (test,) = rows["test"].to_pylist()  # an item without a description, a user without a row
    assert (test["user_id"], test["item_id"], test["kind"], test["age"]) == ("c", 9, None, None)
    plain = movielens_table(log, splits, history_length=0)
    assert not wanted.keys() & {field["name"] for field in plain.fields}


def test_which_columns_are_no_fields():
    count = 300
    rng = np.random.default_rng(0)
    context = pa.table(
        {
            "note": [f"a text of its own {row}" for row in range(count)],
            "cents": pa.array(np.arange(count)),
            "hour": pa.array(np.arange(count) % 24),
            "shown": pa.array(np.arange(count), pa.timestamp("s")),
            "logged_in": pa.array(rng.random(count) < 0.5),
            "tags": [["x", "y"]] * count,
        }
    )
    times = np.arange(count) + 10**9
    columns = (rng.integers(0, 9, count), rng.integers(0, 9, count), times, rng.integers(0, 2, count))
    log = InteractionLog.from_columns(*columns, context=context)
    source = movielens_table(log, split_log(log), own_columns=None, history_length=0)
    types = {field["name"]: field["type"] for field in source.fields if field["name"] in context.column_names}
    assert types == {"cents": "numeric", "hour": "categorical", "logged_in": "categorical", "tags": "multi_value"}
    doubled = InteractionLog.from_columns(*columns, context=context.rename_columns(["time", *"abcde"]))
    movielens_table(doubled, split_log(doubled), own_columns=None)  # a text is no field, and so takes no name
    doubled = InteractionLog.from_columns(*columns, context=context.rename_columns(["a", "time", *"bcde"]))
    with pytest.raises(ValueError, match="two columns are called 'time'"):
        movielens_table(doubled, split_log(doubled), own_columns=None)


@pytest.mark.parametrize(
    ("times", "spec", "seconds"),
    [
        (["2024-03-01T10:00:00Z", "2024-03-01T11:00:00+01:00"], "t", [1709287200, 1709287200]),
        (["2024-03-01 10:00", "2024-03-02 10:00:30.5"], "t", [1709287200, 1709373630]),
    ],
)
def test_iso_texts_of_parquet(tmp_path, times, spec, seconds):
    pq.write_table(pa.table({"u": [1, 1], "i": [1, 2], "t": times, "y": [0, 1]}), tmp_path / "e.parquet")
    log = load(tmp_path / "e.parquet", kind="log", columns={"user": "u", "item": "i", "time": spec, "label": "y"})
    assert log.time.tolist() == seconds


def test_names_of_zones_are_read_where_they_say_an_offset(tmp_path):
    """CEST was read over as if it were UTC, two hours off."""
    columns = {"user": "u", "item": "i", "time": {"column": "t", "format": "%Y-%m-%d %H:%M %Z"}, "label": "y"}

    def loaded(*times):
        pq.write_table(pa.table({"u": [1, 1], "i": [1, 2], "t": times, "y": [0, 1]}), tmp_path / "e.parquet")
        return load(tmp_path / "e.parquet", kind="log", columns=columns).time.tolist()

    assert loaded("2024-07-01 10:00 UTC", "2024-07-01 10:01 GMT") == [1719828000, 1719828060]
    with pytest.raises(
        ValueError, match=r"row 2: '2024-07-01 12:00 CEST'.*UTC and GMT are read; for another one state `timezone`"
    ):
        loaded("2024-07-01 10:00 UTC", "2024-07-01 12:00 CEST")
    columns["time"]["timezone"] = "Europe/Berlin"
    assert loaded("2024-07-01 12:00 CEST", "2024-12-01 12:00 CET") == [1719828000, 1733050800]


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        (
            "t",
            [1_709_287_200_000, 1_709_287_300_000],
            "look like ms: set the time unit in the schema, `time: {column: t, unit: ms}`",
        ),
        ("t", ["31.03.2024 10:00", "01.04.2024 09:30"], r'write `time: {column: t, format: "%d.%m.%Y %H:%M"}`'),
        ("y", ["yes", "no"], r'Write `label: {column: y, equals: "yes"}` for \'yes\' as a click'),
    ],
)
def test_refusals_give_the_line_to_write(tmp_path, column, values, says):
    table = {"u": [1, 1], "i": [1, 2], "t": [1_709_287_200, 1_709_287_300], "y": [0, 1], column: values}
    pq.write_table(pa.table(table), tmp_path / "e.parquet")
    columns = {"user": "u", "item": "i", "time": "t", "label": "y"}
    with pytest.raises(ValueError) as refused:
        load(tmp_path / "e.parquet", kind="log", columns=columns)
    assert says.replace("\\'", "'") in str(refused.value)
    line = says.split("`")[1]
    key, spec = line.split(": ", 1)
    import yaml

    load(tmp_path / "e.parquet", kind="log", columns=columns | {key: yaml.safe_load(spec)})  # as it says
