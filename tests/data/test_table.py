import gzip
import json
import time
from datetime import UTC, datetime
from decimal import Decimal

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from lmctr.data import TabularStore, load_log, load_table, load_tabular, log_from_table, table_source, validate_log
from lmctr.data.logs.schema import TimeSpec
from lmctr.data.logs.times import seconds_of

ROWS = {
    "customer": ["b", "a", "a", "b"],
    "product": [10, 20, 10, 20],
    "ts": [300, 200, 100, 400],
    "clicked": [1, 0, 1, 0],
    "title": ["Hat", "Shoe", "Hat", "Shoe"],
    "tags": ["warm|red", "", "warm|red", ""],
}
SCHEMA = """
name: shop
events: {path: FILE}
columns: {user: customer, item: product, time: ts, label: clicked}
catalogue: {columns: {title: , tags: {separator: "|"}}}
info: {licence: mine, language: en}
"""


def write(folder, name, rows=None):
    table = pa.table(ROWS if rows is None else rows)
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(table, path)
        return path
    if ".jsonl" in name:
        text = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
    else:
        sink = pa.BufferOutputStream()
        pacsv.write_csv(table, sink, pacsv.WriteOptions(delimiter="\t" if ".tsv" in name else ","))
        text = sink.getvalue().to_pybytes().decode()
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def schema_file(folder, file="events.csv", text=SCHEMA):
    path = folder / "schema.yaml"
    path.write_text(text.replace("FILE", file))
    return path


def load_csv(folder, csv, text=SCHEMA):
    (folder / "events.csv").write_text(csv)
    return load_log(schema_file(folder, text=text))


def check(log):
    assert log.user_ids.tolist() == ["a", "b"]
    assert log.time.tolist() == [100, 200, 300, 400]
    assert log.label.tolist() == [1, 0, 1, 0]
    assert log.catalogue.to_pylist() == [
        {"item_id": 10, "title": "Hat", "tags": ["warm", "red"]},
        {"item_id": 20, "title": "Shoe", "tags": []},
    ]
    assert log.item.tolist() == [0, 1, 0, 1]
    validate_log(log)


@pytest.mark.parametrize("name", ["e.csv", "e.csv.gz", "e.tsv", "e.tsv.gz", "e.parquet", "e.jsonl", "e.jsonl.gz"])
def test_formats(tmp_path, name):
    write(tmp_path, name)
    log = load_log(schema_file(tmp_path, name), progress=False)
    check(log)
    assert log.info.name == "shop"
    assert log.info.licence == "mine"


def test_path_replaces_folder_or_file(tmp_path):
    schema = schema_file(tmp_path)
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", "events.csv")
    with pytest.raises(FileNotFoundError, match=r"events\.csv: no such file"):
        load_log(schema)
    check(load_log(schema, path=tmp_path / "other"))
    check(load_log(schema, path=tmp_path / "other" / "events.csv"))
    with pytest.raises(FileNotFoundError, match="neither a folder nor an event file"):
        load_table(schema, path=tmp_path / "nowhere")


def test_catalogue_and_users_in_files_of_their_own(tmp_path):
    write(tmp_path, "events.csv")
    write(
        tmp_path, "items.parquet", {"code": ["30", "20", "10"], "name": [None, "", "Hat"], "price": [1.5, None, 2.0]}
    )
    write(tmp_path, "people.csv", {"customer": ["b"], "age": [7]})
    text = SCHEMA.split("catalogue")[0] + (
        "catalogue: {path: items.parquet, item: code, columns: {title: name, price: {type: number}}}\nusers: people.csv\n"
    )
    log = load_log(schema_file(tmp_path, text=text))
    assert log.catalogue.to_pylist() == [
        {"item_id": "30", "title": None, "price": 1.5},
        {"item_id": "20", "title": None, "price": None},
        {"item_id": "10", "title": "Hat", "price": 2.0},
    ]
    assert log.item.tolist() == [2, 1, 2, 1]
    assert log.users.to_pylist() == [{"user_id": "a", "age": None}, {"user_id": "b", "age": 7}]
    write(tmp_path, "people.csv", {"customer": ["b"]})  # ids alone
    assert load_log(schema_file(tmp_path, text=text)).users.to_pylist() == [{"user_id": "a"}, {"user_id": "b"}]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("{column: x, greater_than: 3}", [0, 0, 1, 1]),
        ("{column: x, at_least: 3}", [0, 1, 1, 1]),
        ("{column: x, less_than: 3}", [1, 0, 0, 0]),
        ("{column: x, at_most: 3}", [1, 1, 0, 0]),
        ("{column: x, equals: 4.5}", [0, 0, 0, 1]),
        ("{column: x, in: [1, 4]}", [1, 0, 1, 0]),
        ("{column: w, equals: buy}", [0, 1, 0, 0]),
        ("{column: w, in: [buy, like]}", [0, 1, 1, 0]),
        ("{column: w, equals: buy, otherwise: [see, like]}", [0, 1, 0, 0]),
        ("{column: said, equals: 'yes', otherwise: 'no', missing: history}", [1, -1, 0, 1]),
        ("{column: flag}", [1, 0, 1, 0]),
        ("{column: gap, missing: history}", [1, -1, 0, 1]),
        ("{column: half, greater_than: 2, missing: history}", [1, 0, -1, 1]),
        ("{column: said, equals: 'yes', missing: history}", [1, -1, 0, 1]),
    ],
)
@pytest.mark.parametrize("name", ["e.csv", "e.parquet", "e.jsonl"])
def test_label_rules(tmp_path, name, rule, expected):
    rows = {
        "u": [1] * 4,
        "i": [1, 2, 3, 4],
        "t": [1, 2, 3, 4],
        "x": [1.0, 3.0, 4.0, 4.5],
        "w": ["see", "buy", "like", "see"],
        "flag": [True, False, True, False],
        "gap": [1, None, 0, 1],
        "half": [3, 2, None, 4],
        "said": ["yes", "", "no", "yes"],
    }
    write(tmp_path, name, rows)
    text = "events: FILE\ncolumns: {user: u, item: i, time: t, label: RULE}\n".replace("RULE", rule)
    log = load_log(schema_file(tmp_path, name, text))
    assert log.label.tolist() == expected


@pytest.mark.parametrize("kind", ["log", "table"])
@pytest.mark.parametrize("name", ["e.csv", "e.parquet"])
def test_labels_of_other_values_than_a_rule_names(tmp_path, name, kind):
    """What is no click is named too: a file that writes its labels otherwise is no file without clicks."""
    rows = {"u": [1] * 4, "i": [1, 2, 3, 4], "t": [1, 2, 3, 4], "x": [1, 2, 2, 1], "w": ["Yes", "No", "Yes", "No"]}
    write(tmp_path, name, rows)

    def read(label):
        if kind == "log":
            return load_log(tmp_path / name, columns={"user": "u", "item": "i", "time": "t", "label": label})
        return TabularStore.build(table_source(tmp_path / name, label, fields=[{"name": "i", "type": "categorical"}]))

    for column, equals, otherwise, found in (
        ("x", 1, [-1, 0], r"2 values are neither 1 \(a click\) nor -1 or 0 \(none\): 2"),
        ("w", "yes", "no", r"4 values are neither 'yes' \(a click\) nor 'no' \(none\): 'Yes', 'No'"),
    ):
        label = {"column": column, "equals": equals, "otherwise": otherwise}
        with pytest.raises(ValueError, match=rf"{name}, column '{column}': {found}"):
            read(label)
    for otherwise in (1, None, [0, 1]):
        label = {"column": "x", "equals": 1, "otherwise": otherwise}
        with pytest.raises(ValueError, match="`otherwise` needs other values than `equals`"):
            read(label)
    with pytest.raises(ValueError, match=r"`otherwise` needs .* beside it, got 0"):
        read({"column": "x", "otherwise": 0})


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        (
            pa.array(["yes", "no", "", "yes"]).dictionary_encode(),
            {"equals": "yes", "otherwise": "no", "missing": "drop"},
        ),
        (pa.array(["True", "false", None, " TRUE"]).dictionary_encode(), {"missing": "drop"}),
        (pa.array([1.0, -1.0, float("nan"), 1.0]), {"equals": 1, "otherwise": [-1, 0], "missing": "drop"}),
        (pa.array([5.0, 1.0, float("nan"), 4.0]), {"at_least": 4, "missing": "drop"}),
        (pa.array([1.0, 0.0, float("nan"), 1.0]), {"missing": "drop"}),
        (pa.array(["1", "0", "", "1"]), {"missing": "drop"}),
        (pa.array([1, 0, None, 1], pa.uint8()), {"equals": 1, "otherwise": [-1, 0], "missing": "drop"}),
    ],
)
def test_labels_of_a_table_as_parquet_files_hold_them(tmp_path, labels, rule):
    """Codes of words, as pandas writes categorical columns, NaN where there is no value, as others write numbers, and numbers without a sign."""
    pq.write_table(pa.table({"i": ["a", "b", "c", "d"], "clicked": labels}), tmp_path / "rows.parquet")
    label = {"column": "clicked", **rule}
    fields = [{"name": "i", "type": "categorical"}]
    assert TabularStore.build(table_source(tmp_path / "rows.parquet", label, fields=fields)).labels.tolist() == [
        1,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("time_spec", "values"),
    [
        ("t", [5, 3]),
        ("{column: t, unit: ms}", [5999, 3000]),
        ("{column: t, unit: ns}", [5_000_000_001, 3_000_000_000]),
        ("t", ["1970-01-01 00:00:05", "1970-01-01 00:00:03"]),
        ('{column: t, format: "%Y-%m-%d %H:%M:%S"}', ["1970-01-01 00:00:05", "1970-01-01 00:00:03"]),
        (
            '{column: t, format: "%Y-%m-%d %H:%M:%S", timezone: Asia/Tokyo}',
            ["1970-01-01 09:00:05", "1970-01-01 09:00:03"],
        ),
        ('{column: t, format: "%d.%m.%Y %H-%M-%S"}', ["01.01.1970 00-00-05", "01.01.1970 00-00-03"]),
        (
            '{column: t, format: "%d.%m.%Y %H-%M-%S", timezone: Asia/Tokyo}',
            ["01.01.1970 09-00-05", "01.01.1970 09-00-03"],
        ),
    ],
)
def test_times(tmp_path, time_spec, values):
    write(tmp_path, "events.csv", {"u": [1, 1], "i": [1, 2], "t": values, "c": [1, 0]})
    text = f"events: events.csv\ncolumns: {{user: u, item: i, time: {time_spec}, label: c}}\n"
    log = load_log(schema_file(tmp_path, text=text))
    assert log.time.tolist() == [3, 5]
    assert log.label.tolist() == [0, 1]


def test_times_of_another_file_need_no_format_of_texts(tmp_path):
    """Tomorrow's rows may be Parquet, or hold ISO texts, where the schema says how the log's texts are written."""
    moments = [datetime(1970, 1, 2, 0, 0, 5), datetime(1970, 1, 1, 0, 0, 3)]
    for form in ("%d.%m.%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p"):
        spec = TimeSpec(column="t", format=form)
        texts = [moment.strftime(form) for moment in moments]
        for column in (texts, moments, [moment.replace(tzinfo=UTC) for moment in moments]):
            assert seconds_of(pa.array(column), spec, "rows").tolist() == [86_405, 3]


def test_a_format_that_is_not_the_readers_is_refused(tmp_path):
    """The reader took day and month the other way round: nothing is read silently otherwise than the schema says."""
    write(tmp_path, "events.csv", {"u": [1], "i": [1], "t": ["1970-01-02 00:00:05"], "c": [1]})
    text = (
        'events: events.csv\ncolumns: {user: u, item: i, time: {column: t, format: "%Y-%d-%m %H:%M:%S"}, label: c}\n'
    )
    with pytest.raises(ValueError, match=r"column 't': `format` reads strings, and the column has the type timestamp"):
        load_log(schema_file(tmp_path, text=text))


@pytest.mark.parametrize(
    ("feedback", "values", "names", "codes"),
    [
        ("f", ["b", "a", ""], ("unknown", "a", "b"), [2, 1, 0]),
        ("{column: f, names: [view, buy]}", ["buy", "", "view"], ("unknown", "view", "buy"), [2, 0, 1]),
        ("{column: f, names: [unknown, view, buy]}", ["buy", "", "view"], ("unknown", "view", "buy"), [2, 0, 1]),
        ("{column: f, names: [view, buy]}", [2, 0, 1], ("unknown", "view", "buy"), [2, 0, 1]),
        ("f", [True, False, True], ("unknown", "negative", "positive"), [2, 1, 2]),
    ],
)
def test_feedback(tmp_path, feedback, values, names, codes):
    write(tmp_path, "events.csv", {"u": [1] * 3, "i": [1] * 3, "t": [1, 2, 3], "c": [1, 0, 1], "f": values})
    text = f"events: events.csv\ncolumns: {{user: u, item: i, time: t, label: c, feedback: {feedback}}}\n"
    log = load_log(schema_file(tmp_path, text=text))
    assert log.feedback_names == names
    assert log.feedback.tolist() == codes


def test_scenario_weight_and_extra_labels(tmp_path):
    rows = ROWS | {"page": ["x", "y", "x", "x"], "w": [1.0, 0.5, 2.0, 1.0]}
    write(tmp_path, "events.csv", rows)
    text = SCHEMA.replace(
        "label: clicked",
        "label: clicked, scenario: page, weight: w, extra_labels: {late: {column: ts, at_least: 300}}",
    )
    log = load_log(schema_file(tmp_path, text=text))
    assert [log.scenario_names[code] for code in log.scenario] == ["x", "y", "x", "x"]
    assert log.weight.tolist() == [2.0, 0.5, 1.0, 1.0]
    assert log.extra_labels["late"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_graded_feedback(tmp_path, kind):
    text = SCHEMA.replace("label: clicked", "label: clicked, feedback_values: stars")
    write(tmp_path, f"events.{kind}", ROWS | {"stars": [4.5, None, 2.0, 0.5]})
    log = load_log(schema_file(tmp_path, f"events.{kind}", text))
    assert np.array_equal(log.feedback_values, np.array([2.0, np.nan, 4.5, 0.5], np.float32), equal_nan=True)
    write(tmp_path, "words.csv", ROWS | {"stars": ["4.5", "", "two", "1"]})
    with pytest.raises(ValueError, match=r"words\.csv, column 'stars': 1 of 4 values are no numbers \(row 3: 'two'\)"):
        load_log(schema_file(tmp_path, "words.csv", text))
    with pytest.raises(ValueError, match="no column 'rating'"):
        load_log(schema_file(tmp_path, "words.csv", text.replace("stars", "rating")))


def test_ids_beyond_64_bits_and_decimal_ones(tmp_path):
    rows = ROWS | {"customer": pa.array([2**64 - 1, 2**64 - 2, 2**64 - 2, 2**64 - 1], pa.uint64())}
    rows |= {"product": pa.array([Decimal("10.00"), Decimal(20), Decimal(10), Decimal(20)], pa.decimal128(20, 2))}
    write(tmp_path, "e.parquet", rows)
    log = load_log(schema_file(tmp_path, "e.parquet"))
    assert log.user_ids.tolist() == [str(2**64 - 2), str(2**64 - 1)]
    assert log.catalogue["item_id"].to_pylist() == [10, 20]
    assert log.user.tolist() == [0, 0, 1, 1]
    write(tmp_path, "f.parquet", rows | {"product": pa.array([Decimal("1.5"), *map(Decimal, (2, 3, 4))])})
    with pytest.raises(ValueError, match=r"f.parquet, column 'product': 1 of 4 values are no ids \(row 1: Decimal"):
        load_log(schema_file(tmp_path, "f.parquet"))


def test_ids_with_leading_zeros_stay_apart(tmp_path):
    log = load_csv(tmp_path, "customer,product,ts,clicked,title,tags\n01,10,1,1,x,\n1,10,2,0,x,\n")
    assert log.user_ids.tolist() == ["01", "1"]
    log = load_csv(tmp_path, "customer,product,ts,clicked,title,tags\n7,10,1,1,x,\n11,10,2,0,x,\n")
    assert log.user_ids.tolist() == [7, 11]


def test_ids_that_another_file_writes_with_zeros_in_front(tmp_path):
    write(tmp_path, "events.csv", ROWS | {"customer": [7, 12, 12, 7]})
    text = SCHEMA.split("catalogue")[0] + "catalogue: items.csv\nusers: people.csv\n"
    (tmp_path / "items.csv").write_text("product,title\n0020,Shoe\n0010,Hat\n")
    (tmp_path / "people.csv").write_text("customer,age\n0012,30\n0007,50\n")
    log = load_log(schema_file(tmp_path, text=text))
    assert log.catalogue["title"].take(log.item).to_pylist() == ["Hat", "Shoe", "Hat", "Shoe"]
    assert log.users.to_pylist() == [{"user_id": 7, "age": 50}, {"user_id": 12, "age": 30}]
    (tmp_path / "people.csv").write_text("customer,age\n012,30\n12,40\n")  # two ones
    assert load_log(schema_file(tmp_path, text=text)).users["age"].to_pylist() == [None, 40]


HEADER = "customer,product,ts,clicked,title,tags\n"


@pytest.mark.parametrize(
    ("csv", "message"),
    [
        ("", r"events\.csv: the file is empty"),
        ("\n", r"events\.csv: the file is empty"),
        (HEADER, r"events\.csv: the file has a header and no rows"),
        (HEADER.replace("ts,", ""), r"events\.csv: no column 'ts'; its columns are \['customer', 'product'"),
        (
            HEADER.replace("ts,", "".join(f"c{number}," for number in range(300))),
            r"no column 'ts'; its columns are \['customer', 'product', 'c0', .*'c17' and 285 more\]\. Did you mean 'tags'\?$",
        ),
        (HEADER.replace("title", "ts") + "a,1,5,1,6,y\n", r"events\.csv: duplicate columns \['ts'\]"),
        (
            HEADER + "a,1,5,1,x,y\na,1,6,2,x,y\n",
            r"events\.csv, column 'clicked': 1 of 2 values are other than 0 and 1 \(row 2: 2\)",
        ),
        (HEADER + "a,1,5,-1,x,y\n", r"column 'clicked': 1 of 1 values are other than 0 and 1 \(row 1: -1\)"),
        (HEADER + "a,1,5,yes,x,y\na,1,5,1,x,y\n", r"column 'clicked': 1 of 2 values are no numbers \(row 1: 'yes'\)"),
        (
            HEADER + "a,1,5,1,x,y\na,1,5,,x,y\n",
            r"column 'clicked': 1 of 2 values are missing \(row 2.*missing: history",
        ),
        (HEADER + "a,1,5,1,x,y\na,1,,1,x,y\n", r"events\.csv, column 'ts': 1 of 2 values are missing \(row 2"),
        (HEADER + "a,1,5.0,1,x,y\na,1,nan,1,x,y\n", r"column 'ts': 1 of 2 values are (missing|not finite) \(row 2"),
        (
            HEADER + "a,1,2024-03-01 12:00:00,1,x,y\n" * 3 + "a,1,noon,1,x,y\n",
            r"'ts': 1 of 4 values are no ISO times without a zone.*row 4: 'noon'",
        ),
        (
            HEADER + "a,1,2024-03-01T12:00,1,x,y\n" * 3 + "a,1,2024-03-01T12:00Z,1,x,y\n",
            r"'ts': 1 of 4 .*without a zone.*row 4: '.*Z'",
        ),
        (
            HEADER
            + "a,1,2024-03-01,1,x,y\na,1,2024-03-01T12:00:00+01:00,1,x,y\n" * 3
            + "a,1,2024-03-01T12:00+01:00,1,x,y\n",
            "3 of 7 values .*with a zone.*row 1",
        ),
        (HEADER + "a,1,noon,1,x,y\n", r"column 'ts': 1 of 1 values are no numbers \(row 1: 'noon'\).*`format`"),
        (HEADER + "a,1,5,1,x,y\na,1,9999999999,1,x,y\n", r"column 'ts': 1 of 2 values lie in the future \(row 2"),
        (HEADER + "a,1,1700000000000,1,x,y\n", r"column 'ts': .*outside the years.*time unit in the schema"),
        (HEADER + "a,1,5,1,x,y\n,1,5,1,x,y\n", r"column 'customer': 1 of 2 values are empty \(row 2"),
        (HEADER + "a,1,5,1,x,y\na,1,5,1,x,y,z\n", r"events\.csv: .*row 2: Expected 6 columns, got 7"),
    ],
)
def test_bad_files(tmp_path, csv, message):
    with pytest.raises(ValueError, match=message):
        load_csv(tmp_path, csv)


def test_rows_are_counted_beyond_the_first_block(tmp_path):
    rows = 700_000
    csv = HEADER + "someone,123456,5,1,some title,tag\n" * rows + "a,1,5,1,x,y,z\n"
    assert len(csv) > 1 << 24
    with pytest.raises(ValueError, match=rf"row {rows + 1}: Expected 6 columns, got 7"):
        load_csv(tmp_path, csv)


@pytest.mark.parametrize("column", ["customer", "title"])
def test_text_that_is_not_utf8(tmp_path, column):
    row = {"customer": "a", "title": "x"}
    row[column] = "café"
    csv = HEADER + "b,1,5,1,x,y\n" + f"{row['customer']},1,5,1,{row['title']},y\n"
    (tmp_path / "events.csv").write_bytes(csv.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"events\.csv, column '{column}': row 2 is not UTF-8 text"):
        load_log(schema_file(tmp_path))
    (tmp_path / "events.csv").write_bytes(csv.encode("utf-8-sig"))
    assert load_log(schema_file(tmp_path)).num_events == 2


def test_bad_parquet_and_json(tmp_path):
    (tmp_path / "e.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"e\.parquet: cannot be read as parquet"):
        load_log(schema_file(tmp_path, "e.parquet"))
    (tmp_path / "e.jsonl").write_text('{"customer": ')
    with pytest.raises(ValueError, match=r"e\.jsonl: cannot be read as JSON lines: row 1: Expecting value"):
        load_log(schema_file(tmp_path, "e.jsonl"))
    write(tmp_path, "f.parquet", {name: values for name, values in ROWS.items() if name != "ts"})
    with pytest.raises(ValueError, match=r"f\.parquet: no column 'ts'"):
        load_log(schema_file(tmp_path, "f.parquet"))
    write(tmp_path, "g.parquet", ROWS | {"clicked": ["a", "b", "c", "d"]})
    with pytest.raises(ValueError, match=r"g\.parquet, column 'clicked': 4 of 4 values are no numbers"):
        load_log(schema_file(tmp_path, "g.parquet"))
    write(tmp_path, "h.parquet", ROWS | {"ts": [1.0, float("nan"), 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"h\.parquet, column 'ts': 1 of 4 values are empty \(row 2: nan\)"):
        load_log(schema_file(tmp_path, "h.parquet"))
    (tmp_path / "e.npy").write_text("x")
    with pytest.raises(ValueError, match=r"the format cannot be told from the extension '\.npy'"):
        load_log(schema_file(tmp_path, "e.npy"))
    for name, reader in (("e.feather", "read_feather"), ("e.xlsx", "read_excel")):
        (tmp_path / name).write_text("x")
        told = rf"save it as CSV, or write it as Parquet: pandas\.{reader}\('.*{name}'\)\.to_parquet\('.*e\.parquet'\)"
        with pytest.raises(ValueError, match=told):
            load_log(schema_file(tmp_path, name))


COLUMNS = "{user: customer, item: product, time: ts, label: clicked}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("event: e.csv\n", r"unknown key 'event' in .*schema\.yaml; did you mean 'events'"),
        ("events: e.csv\ncolumns: {user: u, itm: i}\n", "did you mean 'item'"),
        ("events: e.csv\n", "the key 'columns' is missing"),
        (f"columns: {COLUMNS}\n", "the key 'events' is missing"),
        (
            "events: e.csv\ncolumns: {user: u, item: i, time: t}\n",
            "`label` of `columns` is missing: .*write `negatives: 2`",
        ),
        ("events: e.csv\nevents: f.csv\n", "line 2: not valid YAML: key 'events' is given twice"),
        ("events: [\n", r"schema\.yaml, line 2: not valid YAML"),
        ("- 1\n", "expected keys"),
        ("", "expected keys"),
        (f"events: e.csv\ncolumns: {COLUMNS}\ninfo: {{license: x}}\n", "did you mean 'licence'"),
        (f"events: {{path: e.csv, delimeter: x}}\ncolumns: {COLUMNS}\n", "did you mean 'delimiter'"),
        (
            "events: e.csv\ncolumns: {user: u, item: i, time: {column: t, unit: h}, label: c}\n",
            "got 'h', accepted: s, ms, us, ns",
        ),
        (
            "events: e.csv\ncolumns: {user: u, item: i, time: {column: t, unit: s, format: x}, label: c}\n",
            "give one of them",
        ),
        (
            "events: e.csv\ncolumns: {user: u, item: i, time: t, label: {column: c, greater: 3}}\n",
            "did you mean 'greater_than'",
        ),
        (
            "events: e.csv\ncolumns: {user: u, item: i, time: t, label: {column: c, at_most: 3, equals: 1}}\n",
            "one rule at most",
        ),
        (
            "events: e.csv\ncolumns: {user: u, item: i, time: t, label: {column: c, at_most: x}}\n",
            "needs a number, got 'x'",
        ),
        ("events: e.csv\ncolumns: {user: u, item: i, time: t, label: {column: c, in: 3}}\n", "needs a list"),
        ("events: e.csv\ncolumns: {user: u, item: i, time: t, label: 3}\n", "expected keys"),
        (
            "events: e.csv\ncolumns: {user: 3, item: i, time: t, label: c}\n",
            "user in columns of .*expected a name, got 3",
        ),
        (f"events: e.csv\ncolumns: {COLUMNS}\ncatalogue: {{item: x}}\n", "'item' belongs to a file of its own"),
        (f"events: e.csv\ncolumns: {COLUMNS}\ncatalogue: {{}}\n", "give `path`"),
        (
            f"events: e.csv\ncolumns: {COLUMNS}\ncatalogue: {{columns: {{a: {{type: date}}}}}}\n",
            "got 'date', accepted: text",
        ),
    ],
)
def test_bad_schemas(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load_log(schema_file(tmp_path, text=text))


def test_bad_catalogue_files(tmp_path):
    write(tmp_path, "events.csv")
    base = SCHEMA.split("catalogue")[0]
    write(tmp_path, "items.csv", {"product": [10, 10, 20], "title": ["a", "b", "c"]})
    with pytest.raises(
        ValueError,
        match=r"items\.csv, column 'product': 1 of 3 values repeat an earlier row \(row 2.*into one cell, parted by \|",
    ):
        load_log(schema_file(tmp_path, text=base + "catalogue: items.csv\n"))
    write(tmp_path, "items.csv", {"product": [10], "title": ["a"]})
    with pytest.raises(
        ValueError, match=r"events\.csv, column 'product': 2 of 4 values are not in the catalogue \(row 2: 20"
    ):
        load_log(schema_file(tmp_path, text=base + "catalogue: items.csv\n"))
    with pytest.raises(ValueError, match=r"items\.csv: no column 'name'"):
        load_log(schema_file(tmp_path, text=base + "catalogue: {path: items.csv, columns: [name]}\n"))
    with pytest.raises(FileNotFoundError, match=r"things\.csv: no such file"):
        load_log(schema_file(tmp_path, text=base + "catalogue: things.csv\n"))
    write(tmp_path, "items.csv", {"product": [10, 20], "price": ["1.5", "cheap"]})
    with pytest.raises(ValueError, match=r"items\.csv, column 'price': row 2 is no number, .*'cheap'"):
        load_log(schema_file(tmp_path, text=base + "catalogue: {path: items.csv, columns: {price: {type: number}}}\n"))


IN_MEMORY = {
    "columns": {"user": "customer", "item": "product", "time": "ts", "label": "clicked"},
    "catalogue": {"columns": {"title": "title", "tags": {"separator": "|"}}},
}


@pytest.mark.parametrize(
    "convert",
    [
        pa.table,
        dict,
        lambda rows: pa.table(rows).to_pandas(),
        lambda rows: pa.table(rows).to_pandas().convert_dtypes().astype({"customer": "category"}),
        datasets.Dataset.from_dict,
        lambda rows: datasets.Dataset.from_dict(rows).to_iterable_dataset(),
        lambda rows: datasets.Dataset.from_dict(
            {name: [*reversed(values), values[0]] for name, values in rows.items()}
        ).select([3, 2, 1, 0]),
    ],
    ids=["arrow", "dict", "pandas", "nullable", "dataset", "stream", "selection"],
)
def test_tables_in_memory(convert):
    check(log_from_table(convert(ROWS), IN_MEMORY))


def test_bad_tables_in_memory():
    with pytest.raises(ValueError, match="data: no column 'ts'"):
        log_from_table(datasets.Dataset.from_dict({"customer": [1], "product": [1], "clicked": [1]}), IN_MEMORY)
    with pytest.raises(ValueError, match="DatasetDict holds several parts; pass one of them: 'train'"):
        log_from_table(datasets.DatasetDict(train=datasets.Dataset.from_dict(ROWS)), IN_MEMORY)
    with pytest.raises(ValueError, match="data: got int"):
        log_from_table(3, IN_MEMORY)
    with pytest.raises(ValueError, match="leave it out"):
        log_from_table(ROWS, IN_MEMORY | {"events": "x.csv"})
    with pytest.raises(FileNotFoundError, match=r"x\.csv"):
        log_from_table(ROWS, IN_MEMORY | {"catalogue": "x.csv"})
    with pytest.raises(ValueError, match="the table has no rows"):
        log_from_table({name: [] for name in ROWS}, IN_MEMORY)
    with pytest.raises(ValueError, match=r"data, column 'clicked': .*row 2: 5"):
        log_from_table(ROWS | {"clicked": [1, 5, 0, 0]}, IN_MEMORY)
    with pytest.raises(ValueError, match="differ in length"):
        log_from_table(ROWS | {"clicked": [1]}, IN_MEMORY)


@pytest.mark.parametrize("where", ["context", "catalogue", "items"])
def test_infinite_numbers_of_events_and_items_are_named(tmp_path, where):
    """A model would read them as the largest that it knows; the row is that of the file."""
    write(tmp_path, "e.parquet", ROWS | {"price": [1.0, 2.0, 1.0, np.inf]})
    write(tmp_path, "items.csv", {"product": [20, 10], "price": [np.inf, 3.0]})
    parts = {
        "context": "catalogue: {columns: {title: }}\n",
        "catalogue": "catalogue: {columns: {title: , price: }}\n",
        "items": "catalogue: {path: items.csv, item: product}\n",
    }
    columns = "{user: customer, item: product, time: ts, label: clicked}"
    columns = columns[:-1] + ", context: [price]}" if where == "context" else columns
    schema = f"events: {{path: e.parquet}}\ncolumns: {columns}\n{parts[where]}"
    told = {"items": r"items\.csv, column 'price': 1 of 2 values are infinite \(row 1: inf\)"}
    told = told.get(where, r"e\.parquet, column 'price': 1 of 4 values are infinite \(row 4: inf\)")
    with pytest.raises(ValueError, match=told):
        load_log(schema_file(tmp_path, text=schema))


def test_a_catalogue_given_as_a_table():
    catalogue = pa.table({"item_id": [20, 10, 5], "title": ["x", "y", None]})
    log = log_from_table(ROWS, {"columns": IN_MEMORY["columns"]}, catalogue=catalogue)
    assert log.num_items == 3
    assert log.item.tolist() == [1, 0, 1, 0]


def test_files_beside_a_table_in_memory(tmp_path, monkeypatch):
    """As a data set of the Hub has them, whose events are no file here; a table that is given stands in place of one."""
    write(tmp_path, "items.csv", {"product": [20, 10, 5], "title": ["x", "y", None]})
    monkeypatch.chdir(tmp_path)
    schema = {"columns": IN_MEMORY["columns"], "catalogue": "items.csv", "users": "users.csv"}
    with pytest.raises(FileNotFoundError, match=r"users\.csv"):
        log_from_table(ROWS, schema)
    log = log_from_table(ROWS, schema, users=pa.table({"user_id": pa.array(ROWS["customer"]).unique()}))
    assert log.catalogue["title"].to_pylist() == ["x", "y", None]
    assert log.item.tolist() == [1, 0, 1, 0]


def test_long_history_and_one_user(tmp_path):
    rows = 10_000
    table = {"u": ["one"] * rows, "i": np.arange(rows) % 50, "t": np.arange(rows)[::-1], "c": np.arange(rows) % 2}
    log = log_from_table(table, {"columns": {"user": "u", "item": "i", "time": "t", "label": "c"}})
    assert log.num_users == 1
    assert log.history_lengths([rows - 1]).tolist() == [rows - 1]
    assert log.time[-1] < time.time()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER.replace(",", ";") + "a;1;5;1;x;y\n", r"They look separated by ';': set `delimiter: \";\"`"),
        (HEADER.replace(",", " ") + "1 1 5 1 2 3\n", r"set `delimiter: \" \"`"),
        (HEADER.replace(",", "\t") + "a\t1\t5\t1\tx\ty\n", r"set `delimiter: \"\\t\"`"),
        (
            b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
            r"e\.csv: cannot be read as csv: the file holds no text \(byte 8 is zero\)",
        ),
        (b"PK\x03\x04\x14\x00", "this is a zip or Excel file"),
        (b"PAR1\x15\x04", "this is a Parquet file; end its name in .parquet"),
        ("a,b".encode("utf-16"), "this is UTF-16 text; convert the file to UTF-8"),
        (b"customer,product\na,b\nx\x1b[31m,y,z\n", r"row 2: .*x\\x1b\[31m"),
    ],
)
def test_files_that_are_no_comma_separated_text(tmp_path, content, message):
    (tmp_path / "e.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    if b"\x1b" in (tmp_path / "e.csv").read_bytes():
        text = "events: FILE\ncolumns: {user: customer, item: product, time: customer, label: product}\n"
        path = schema_file(tmp_path, "e.csv", text)
    else:
        path = schema_file(tmp_path, "e.csv")
    with pytest.raises(ValueError, match=message):
        load_log(path)
    if "delimiter" in message:  # a table finds out what its columns are parted by
        table = load_tabular(tmp_path / "e.csv", label="clicked")
        assert [rows.table["clicked"].to_pylist() for rows in table.rows({"clicked": "number"})] == [[1.0]]
    elif b"\x1b" not in (tmp_path / "e.csv").read_bytes():
        with pytest.raises(ValueError, match=message):
            list(load_tabular(tmp_path / "e.csv", label="clicked").rows({"clicked": "number"}))


@pytest.mark.parametrize(
    ("unit", "time", "fix"),
    [
        ("ms", 1_700_000_000, "the numbers look like s: leave `unit` out"),
        ("us", 1_700_000_000_000, "the numbers look like ms: set `unit: ms`"),
        ("ns", 1_700_000_000, "the numbers look like s"),
    ],
)
def test_seconds_read_as_a_finer_unit_are_refused(tmp_path, unit, time, fix):
    write(tmp_path, "events.csv", {"u": [1, 1], "i": [1, 2], "t": [time, time + 1], "c": [1, 0]})
    text = f"events: events.csv\ncolumns: {{user: u, item: i, time: {{column: t, unit: {unit}}}, label: c}}\n"
    with pytest.raises(ValueError, match=f"all times lie in January 1970.*{fix}"):
        load_log(schema_file(tmp_path, "events.csv", text))


def test_a_schema_of_the_other_kind_is_told_as_such(tmp_path):
    table = schema_file(tmp_path, text="files: t.csv\nlabel: y\n")
    with pytest.raises(
        ValueError, match=r"is the schema of a table .files, fields., and an interaction log is wanted"
    ):
        load_log(table)
    log = schema_file(tmp_path, text=SCHEMA)
    with pytest.raises(
        ValueError, match=r"is the schema of an interaction log .*; or prepare the log, lmctr data prep"
    ):
        load_tabular(log)
