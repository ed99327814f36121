"""Columns of a table that stand in files of their own."""

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmctr.data import load_tabular, table_source
from lmctr.data.guess import guess_table, sample_file
from lmctr.data.tables.source import rows_of

ROWS = {"click": [1, 0, 1, 0], "item": ["07", "9", "x", None], "user": [2, 1, 2, 3]}
ITEMS = {  # one without an id, which stands for no row without one
    "item_id": ["9", "07", None, "12"],
    "brand": ["b9", "b7", "b0", "b12"],
    "price": [9.5, None, 3.0, 1.0],
    "code": ["09", "07", "00", "12"],
}


def written(path, columns):
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif ".jsonl" in path.name:
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()))
    else:
        table.to_pandas().to_csv(path, index=False)
    return str(path)


def read(source, columns=None):
    return pa.concat_tables([pa.table(rows.table) for rows in source.rows(columns)]).to_pydict()


@pytest.mark.parametrize("name", ["items.csv", "items.parquet", "items.jsonl.gz"])
def test_columns_stand_on_the_rows_with_their_ids(tmp_path, name):
    items = written(tmp_path / name, ITEMS)
    rows = written(tmp_path / "rows.csv", ROWS)
    source = table_source(rows, "click", joined=[{"path": items, "by": "item", "id": "item_id"}])
    kinds = {"click": "number", "code": "text", "price": "number", "user": "text"}
    found = read(source, kinds)
    assert list(found) == list(kinds)
    assert found["code"] == ["07", "09", None, None]  # 07 stands for itself, and so does the code's zero
    assert found["price"] == [None, 9.5, None, None]
    assert read(source)["brand"] == ["b7", "b9", None, None]
    assert {"brand", "price", "code"} <= {field["name"] for field in source.fields}
    other = table_source(rows, "click", joined=[{"path": items, "by": "item", "id": "item_id", "columns": ["brand"]}])
    assert "price" not in read(other)
    assert other.fingerprint != source.fingerprint
    before = source.fingerprint
    written(tmp_path / name, ITEMS | {"price": [90.5, None, 3.0, 1.0]})
    assert read(source, kinds)["price"] == [None, 90.5, None, None]  # of the file as it is now
    assert source.fingerprint != before


def test_ids_that_differ_by_zeros_alone_stay_apart(tmp_path):
    items = {"item": ["7", "07"], "brand": ["a", "b"]}
    rows = {"click": [1, 0, 1], "item": ["07", "7", "007"]}
    source = table_source(rows, "click", joined=[{"path": written(tmp_path / "i.parquet", items), "by": "item"}])
    assert read(source)["brand"] == ["b", "a", None]
    numbers = written(tmp_path / "n.parquet", {"item": [7, 8], "brand": ["a", "b"]})
    source = table_source(rows | {"item": ["07", "7", "8"]}, "click", joined=[{"path": numbers, "by": "item"}])
    assert read(source)["brand"] == ["a", "a", "b"]
    source = table_source(rows | {"item": [7.0, None, 8.0]}, "click", joined=[{"path": numbers, "by": "item"}])
    assert read(source)["brand"] == ["a", None, "b"]


def test_a_schema_and_another_file_for_its_rows(tmp_path):
    written(tmp_path / "rows.csv", ROWS)
    written(tmp_path / "items.csv", ITEMS)
    (tmp_path / "s.yaml").write_text(
        "files: rows.csv\nlabel: click\njoined: [{path: items.csv, by: item, id: item_id, columns: {made_by: brand}}]\n"
    )
    assert read(load_tabular(tmp_path / "s.yaml"))["made_by"] == ["b7", "b9", None, None]
    (tmp_path / "other").mkdir()
    more = written(tmp_path / "other" / "more.csv", {**ROWS, "item": ["12"] * 4})
    assert read(load_tabular(tmp_path / "s.yaml", path=more))["made_by"] == ["b12"] * 4


@pytest.mark.parametrize(
    ("spec", "items", "message"),
    [
        (
            {"id": "item_id"},
            ITEMS | {"item_id": ["9", "9", None, None]},
            r"items.csv, column 'item_id': 1 of 4 values repeat an earlier row \(row 2: '9'\)",
        ),
        ({}, ITEMS, r"items.csv: no column 'item'; its columns are 'item_id'"),
        ({"id": "item_id", "columns": ["size"]}, ITEMS, r"items.csv: no column 'size'"),
        (
            {"id": "item_id", "columns": {"user": "brand"}},
            ITEMS,
            r"items.csv: a column of the rows is called 'user' too; .*`columns: \{items_user: user\}`",
        ),
        ({"id": "item_id", "columns": {"click": "brand"}}, ITEMS, r"a column of the rows is called 'click' too"),
        ({"key": "item_id"}, ITEMS, r"key.*joined of the table.*|unknown key 'key'"),
    ],
)
def test_wrong_files(tmp_path, spec, items, message):
    path = written(tmp_path / "items.csv", items)
    with pytest.raises(ValueError, match=message):
        read(table_source(ROWS, "click", joined=[{"path": path, "by": "item", **spec}]))


def test_which_column_a_file_is_found_by(tmp_path):
    """A position's small numbers stand among the ids of items too."""
    rng = np.random.default_rng(0)
    rows = {"click": rng.integers(0, 2, 300), "position": rng.integers(1, 4, 300), "thing": rng.integers(0, 90, 300)}
    written(tmp_path / "rows.csv", rows)
    things = {"thing": range(90), "position": [n % 5 for n in range(90)], "town": [f"t{n % 9}" for n in range(90)]}
    written(tmp_path / "items.csv", things)
    events, items = sample_file(tmp_path / "rows.csv"), sample_file(tmp_path / "items.csv")
    guess = guess_table(events, items=items)
    assert guess.schema["joined"][0]["by"] == "thing"
    assert guess.schema["joined"][0]["columns"] == {"item_position": "position", "town": "town"}
    source = table_source(tmp_path / "rows.csv", **guess.options())
    assert {"item_position", "town", "thing"} <= {field["name"] for field in source.fields}
    assert read(source, {"town": "text"})["town"] == [f"t{n % 9}" for n in rows["thing"]]
    pd.concat([pd.DataFrame(things)] * 2).to_csv(
        tmp_path / "items.csv", index=False
    )  # each row twice says nothing else
    again = guess_table(events, items=sample_file(tmp_path / "items.csv"))
    assert again.schema == guess.schema
    assert read(table_source(tmp_path / "rows.csv", **again.options()), {"town": "text"}) == read(
        source, {"town": "text"}
    )
    others = pd.DataFrame({"thing": [1, 1], "town": ["a", "b"]})
    others.to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(ValueError, match=r"twice.csv, column 'thing': 1 of 2 values repeat .*one cell, parted by \|"):
        guess_table(events, items=sample_file(tmp_path / "twice.csv"))
    assert next(rows_of(source, {"town": "text"})).table.schema.names == ["town"]
