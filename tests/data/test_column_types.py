"""A log and a table are the same, whatever types their columns have."""

import decimal
import json
import uuid

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml
from datasets import Dataset

from lmctr.data import SequenceProcessor, TabularFeatureProcessor, TabularStore, load_log, log_from_table, table_source
from lmctr.data.guess.sample import sample_file
from lmctr.data.logs.schema import LabelSpec
from lmctr.data.logs.table import follows
from lmctr.data.reading import read_table
from lmctr.data.tables.reading import stream_file
from lmctr.statistics import StatisticsReader

SCHEMA = {
    "columns": {
        "user": "user",
        "item": "item",
        "time": "time",
        "label": {"column": "share", "greater_than": 0.3},
        "weight": "weight",
        "feedback_values": "stars",
        "part": "part",
        "context": ["price"],
    },
    "catalogue": {"columns": ["price"]},
}
ROWS = {
    "user": [3, 1, 1, 2],
    "item": [7, 7, 8, 9],
    "time": ["2024-03-01", "2024-03-02", "2024-03-01", "2024-03-01"],
    "share": [0.3, 0.7, 0.2, 0.9],
    "weight": [1.0, 0.5, 1.0, 2.0],
    "stars": [4.5, None, 1.0, 3.25],
    "part": [0, 0, 1, 2],
    "price": [0.7, 0.1, None, 12.25],
}


def contents(log):
    arrays = {name: values.tolist() for name, values in log.event_arrays().items()}
    return arrays, log.catalogue.to_pydict(), log.context.to_pydict(), log.user_ids.tolist()


def decimals(values, places=2):
    quantum = decimal.Decimal(1).scaleb(-places)
    return pa.array([None if value is None else decimal.Decimal(str(value)).quantize(quantum) for value in values])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, decimals) for name in ("share", "weight", "stars", "price")),
        ("part", lambda values: decimals(values, 0)),
        *(
            (name, lambda values: pa.array(values).dictionary_encode())
            for name in ROWS
            if name not in ("user", "item")
        ),
        *((name, lambda values: pa.array(values, pa.float32())) for name in ("share", "weight", "stars")),
        ("share", lambda values: pa.array([str(value) for value in values])),
        ("time", lambda values: [f"{value}T00:00:00.123456789Z" for value in values]),
    ],
)
def test_another_type_of_a_column_changes_nothing(name, change):
    wanted = log_from_table(pa.table(ROWS), SCHEMA)
    found = log_from_table(pa.table(ROWS | {name: change(ROWS[name])}), SCHEMA)
    np.testing.assert_equal(contents(found), contents(wanted))
    assert wanted.label.tolist() == [0, 1, 1, 0]


def test_uuids_are_their_texts(tmp_path):
    """Databases give ids so, and Parquet and Arrow have a type for them."""
    ids = [uuid.UUID(int=2**127 + number) for number in ROWS["user"]]
    texts = list(map(str, ids))
    wanted = contents(log_from_table(ROWS | {"user": texts}, SCHEMA))
    typed = pa.table(ROWS | {"user": pa.array([own.bytes for own in ids], pa.uuid())})
    pq.write_table(typed, tmp_path / "rows.parquet")
    frame = pandas.DataFrame(ROWS | {"user": ids})
    chunked = pa.concat_tables([typed.slice(0, 1), typed.slice(1)])
    for form in (ROWS | {"user": ids}, typed, chunked, frame, pq.read_table(tmp_path / "rows.parquet")):
        np.testing.assert_equal(contents(log_from_table(form, SCHEMA)), wanted)
    assert read_table(tmp_path / "rows.parquet")["user"].to_pylist() == texts
    fields = [{"name": "user", "type": "categorical"}]
    processor = TabularFeatureProcessor(fields, label=None).fit(str(tmp_path / "rows.parquet"))
    expected = processor({"user": texts})["input_ids"].tolist()
    assert len({*map(tuple, expected)}) == len({*ids})
    for form in ({"user": ids}, typed, frame, [{"user": own} for own in ids], {"user": [None, *ids]}):
        assert processor(form)["input_ids"].tolist()[-4:] == expected


def test_lists_of_uuids_are_lists_of_their_texts(tmp_path):
    ids = [uuid.UUID(int=2**127 + number) for number in range(3)]
    lists = [[ids[0], ids[2]], None, [], [ids[1]]]
    flat = pa.array([own.bytes for one in lists for own in one or ()], pa.uuid())
    typed = pa.ListArray.from_arrays(pa.array([0, None, 2, 2, 3], pa.int32()), flat)
    pq.write_table(pa.table({"seen": typed}), tmp_path / "rows.parquet")
    texts = [None if one is None else [*map(str, one)] for one in lists]
    assert read_table(tmp_path / "rows.parquet")["seen"].to_pylist() == texts
    field = {"name": "seen", "type": "sequence", "max_length": 2}
    processor = TabularFeatureProcessor([field], label=None).fit(str(tmp_path / "rows.parquet"))
    expected = processor({"seen": texts})["sequence_ids"].tolist()
    assert len({*map(str, expected)}) == 3
    for form in (pa.table({"seen": typed}), pa.table({"seen": typed.slice(0)}), {"seen": texts}, {"seen": lists}):
        assert processor(form)["sequence_ids"].tolist() == expected
    assert processor(pa.table({"seen": typed}).slice(3))["sequence_ids"].tolist() == expected[3:]


def test_a_rule_for_tables_takes_the_types_too():
    labels = []
    for change in (pa.array, decimals, lambda values: pa.array(values, pa.float32())):
        table = pa.table(ROWS | {"share": change(ROWS["share"])})
        source = table_source(
            table, {"column": "share", "greater_than": 0.3}, [{"name": "user", "type": "categorical"}]
        )
        processor = TabularFeatureProcessor(source.fields, label=source.label).fit(source)
        labels.append([processor.transform(rows)["labels"].tolist() for rows in source.rows(processor.all_columns())])
    assert labels == [[[0, 1, 0, 1]]] * 3


def test_whole_numbers_equal_no_fraction():
    stars = ROWS | {"share": [3, 4, 3, 5]}
    for value, wanted in (([3.5, 4.0], [0, 1, 0, 0]), ([3.5], [0, 0, 0, 0]), ([3, 4.5], [1, 0, 0, 1])):
        schema = {"columns": SCHEMA["columns"] | {"label": {"column": "share", "in": value}}}
        assert log_from_table(pa.table(stars), schema).label.tolist() == wanted


def test_feedback_that_nobody_gave_is_unknown(tmp_path):
    schema = {"columns": SCHEMA["columns"] | {"feedback": "action"}}
    log = log_from_table(ROWS | {"action": [None] * 4}, schema)
    assert (log.feedback.tolist(), log.feedback_names) == ([0] * 4, ("unknown",))


def test_ids_in_lists_may_have_64_bits_without_a_sign():
    ids = [2**63 + 1, 5, 2**64 - 1, 5]
    in_a_list, in_an_array = (log_from_table(ROWS | {"user": own}, SCHEMA) for own in (ids, np.array(ids, np.uint64)))
    np.testing.assert_equal(contents(in_a_list), contents(in_an_array))
    with pytest.raises(ValueError, match="column 'user': a whole number needs more than 64 bits"):
        log_from_table(ROWS | {"user": [2**64, 5, 6, 7]}, SCHEMA)


def test_ids_in_json_lines_may_have_64_bits_without_a_sign(tmp_path):
    """Arrow reads such numbers as floats, which are one and the same for neighbours."""
    columns = ROWS | {"user": [2**63 + 1, 2**63 + 2, 2**64 - 1, 5]}
    schema = {"name": "own", "columns": SCHEMA["columns"] | {"user": "user"}}
    logs = []
    for kind in ("csv", "jsonl"):
        path = tmp_path / f"events.{kind}"
        if kind == "csv":
            pacsv.write_csv(pa.table(columns | {"user": pa.array(columns["user"], pa.uint64())}), path)
        else:
            rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema | {"events": path.name}))
        logs.append(load_log(tmp_path / "schema.yaml"))
    assert sorted(map(str, logs[1].user_ids)) == sorted(map(str, columns["user"]))
    np.testing.assert_equal(contents(logs[0]), contents(logs[1]))


@pytest.mark.parametrize("encode", [lambda values: values, lambda values: values.dictionary_encode()])
def test_words_of_other_parts_are_not_counted(encode):
    code = encode(pa.array(["1", "2", "1", "x"]))
    fields = [{"name": "code", "type": "categorical"}]
    source = table_source(
        pa.table({"code": code, "label": [0, 1, 0, 1]}), fields=fields, split="rows", fractions=[0.75, 0, 0.25]
    )
    processor = TabularFeatureProcessor(fields).fit(source)
    assert processor.value_types == {"code": "integer"}
    assert processor.statistics["fields"]["code"] == {"missing": 0, "distinct": 2, "kept": 2}
    (rows,) = source.rows(processor.all_columns(), "train")
    assert processor.transform(rows).unknown_examples == {}


BRANDS = ["a", None, "b", "a", None, "b"] * 2
PRICES = [0.5, None, 1e-7, 12.0, 0.5, None] * 2


@pytest.mark.parametrize(
    "catalogue",
    [
        {"brand": ["" if own is None else own for own in BRANDS], "price": np.array(PRICES, float)},
        {"brand": pa.array(BRANDS).dictionary_encode(), "price": pa.array(PRICES).dictionary_encode()},
        {"brand": BRANDS, "price": [None if own is None else decimal.Decimal(f"{own:.7f}") for own in PRICES]},
    ],
)
def test_what_is_missing_of_an_item_is_missing_however_it_is_written(catalogue):
    rows = ROWS | {"item": [0, 1, 2, 5]}
    schema = {
        "columns": {"user": "user", "item": "item", "time": "time", "label": {"column": "share", "at_least": 0.7}}
    }
    found = []
    for own in ({"brand": BRANDS, "price": PRICES}, catalogue):
        log = log_from_table(rows, schema, catalogue={"item_id": [*range(12)], **own})
        processor = SequenceProcessor.fit(log, item_features=["brand", "price"])
        reader = StatisticsReader.fit(log, np.arange(4), ["brand_rate_mean", "rate_taste_price"])
        found.append(
            (log.catalogue.to_pydict(), processor.features, processor.fingerprint, reader.raw(log, np.arange(4)))
        )
    np.testing.assert_equal(found[1], found[0])
    assert found[0][1] == {"brand": ("a", "b"), "price": ("0.5", "1e-07")}
    assert np.isnan(found[0][3][:, 0]).sum() == 1


def test_features_of_unknown_items_are_read_as_those_of_known_ones():
    catalogue = {"item_id": [7, 8, 9], "price": [1e-7, 3.0, 2.5e-9], "tags": [["x", None], ["y"], ["x"]]}
    log = log_from_table(ROWS, {"columns": SCHEMA["columns"]}, catalogue=catalogue)
    processor = SequenceProcessor.fit(log, item_features=["price", "tags"])
    codes = processor.item_feature_codes(log.catalogue)
    for item, known in enumerate(codes):
        told = {"item": 99, "time": 5, **{name: catalogue[name][item] for name in ("price", "tags")}}
        found = processor([[told]], [[7]], [10], return_tensors="np")["history_features"]
        assert (known > 1).all()
        np.testing.assert_array_equal(found[0, 0], known)


LISTS = [["a", "b"], ["a"], None, ["b", "c"]]


@pytest.mark.parametrize(
    "kind",
    [pa.large_list(pa.large_string()), pa.list_(pa.dictionary(pa.int32(), pa.string())), pa.list_(pa.string(), 2)],
)
def test_lists_of_any_kind_are_lists(kind):
    lists = [None if own is None else (own * 2)[:2] for own in LISTS]
    schema = {"columns": SCHEMA["columns"] | {"context": ["tags"]}}
    found = []
    for own in (pa.list_(pa.string()), kind):
        tags = pa.array(lists, own)
        catalogue = {"item_id": [7, 8, 9, 10], "tags": tags}
        log = log_from_table(pa.table(ROWS | {"tags": tags}), schema, catalogue=pa.table(catalogue))
        names = ["tags_rate_mean", "context", "user_count"]
        reader = StatisticsReader.fit(log, np.arange(4), names)
        codes = SequenceProcessor.fit(log, item_features=["tags"]).item_feature_codes(log.catalogue)
        found.append((contents(log), reader.names, reader.raw(log, np.arange(4)), codes))
    np.testing.assert_equal(found[1], found[0])
    assert found[0][1] == ("tags_rate_mean", "user_count")  # lists of the context have no statistics
    with pytest.raises(ValueError, match="'context:tags', but 'tags' holds lists, which have no statistics"):
        StatisticsReader.fit(log, np.arange(4), ["context:tags"])


@pytest.mark.parametrize("value", [{"os": "a"}, [["a"]]])
def test_objects_are_no_context(value):
    schema = {"columns": SCHEMA["columns"] | {"context": ["about"]}}
    with pytest.raises(
        ValueError, match=r"data: context: the column 'about' holds .*; accepted: one value for each event"
    ):
        log_from_table(ROWS | {"about": [value] * 4}, schema)


def log_of_file(folder, form, rows, schema):
    path, table = folder / f"rows.{form}", pa.table(rows)
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        {"csv": pacsv.write_csv, "parquet": pq.write_table}[form](table, path)
    (folder / "schema.yaml").write_text(yaml.safe_dump(schema | {"events": path.name}))
    return load_log(folder / "schema.yaml")


KINDS = [pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1)]


@pytest.mark.parametrize("kind", KINDS, ids=map(str, KINDS))
def test_texts_of_parquet_files_may_be_views_and_bytes(tmp_path, kind):
    """As other programs write them, at every place that a column may have."""
    words = ["a", "b", "a", "c"]
    column = pa.array(words if kind == pa.string_view() else [word.encode() for word in words], kind)
    columns = SCHEMA["columns"] | {"user": "word", "context": ["word"]}
    columns["label"] = {"column": "word", "equals": "a"}
    logs = (log_of_file(tmp_path, "parquet", ROWS | {"word": own}, {"columns": columns}) for own in (words, column))
    wanted, found = map(contents, logs)
    np.testing.assert_equal(found, wanted)
    assert wanted[0]["label"] == [1, 1, 0, 0]
    pq.write_table(
        pa.table({"word": column, "words": pa.array([[word] for word in words])}), tmp_path / "rows.parquet"
    )
    for table in (
        next(iter(stream_file(tmp_path / "rows.parquet"))).table,
        sample_file(tmp_path / "rows.parquet").table,
    ):
        assert table["word"].to_pylist() == words
        assert pa.types.is_large_string(table["word"].type)


def test_numbers_of_parquet_files_may_have_half_precision(tmp_path):
    share, many = np.array([0.25, 0.75, 0.5, 1.0], np.float16), [[0.5], [], None, [1.0, 2.0]]
    columns = SCHEMA["columns"] | {"label": {"column": "share", "at_least": 0.75}, "context": ["share"]}
    log = log_of_file(tmp_path, "parquet", ROWS | {"share": share}, {"columns": columns})
    assert sorted(zip(log.context["share"].to_pylist(), log.label)) == [(0.25, 0), (0.5, 0), (0.75, 1), (1.0, 1)]
    pq.write_table(
        pa.table({"share": share, "many": pa.array(many, pa.list_(pa.float16()))}), tmp_path / "rows.parquet"
    )
    table = next(iter(stream_file(tmp_path / "rows.parquet"))).table
    assert table.to_pydict() == {"share": share.tolist(), "many": many}
    assert table.schema.types == [pa.float32(), pa.large_list(pa.float32())]


def test_lists_of_one_length_are_lists(tmp_path):
    """As a fixed length of a `datasets` feature is written."""
    codes = [[0, 1], [2, 0], None, [1, 1]]
    columns = {"columns": SCHEMA["columns"] | {"context": ["codes"]}}
    log = log_of_file(tmp_path, "parquet", ROWS | {"codes": pa.array(codes, pa.list_(pa.int64(), 2))}, columns)
    assert sorted(log.context["codes"].to_pylist(), key=str) == sorted(codes, key=str)
    pq.write_table(pa.table({"codes": pa.array(codes, pa.list_(pa.int64(), 2))}), tmp_path / "rows.parquet")
    table = next(iter(stream_file(tmp_path / "rows.parquet"))).table
    assert table.schema.types == [pa.large_list(pa.int64())]
    assert table["codes"].to_pylist() == codes


def test_a_label_rule_reads_blocks_without_a_value():
    told = follows(pa.nulls(3), LabelSpec(column="share", equals="yes"), "rows")
    assert told.to_pylist() == [None] * 3


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_timezone_is_that_of_dates_too_and_of_no_time_that_names_its_own(tmp_path, form):
    columns = SCHEMA["columns"] | {"time": {"column": "time", "timezone": "Europe/Oslo"}}
    log = log_of_file(tmp_path, form, ROWS, {"columns": columns})
    assert sorted(log.time.tolist()) == [1_709_247_600] * 3 + [1_709_334_000]  # midnight there
    zoned = ROWS | {"time": [f"{day}T10:00:00Z" for day in ROWS["time"]]}
    with pytest.raises(
        ValueError, match="`timezone` is for times without a zone, and the column has the type timestamp"
    ):
        log_of_file(tmp_path, form, zoned, {"columns": columns})


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_dates_in_a_column_of_texts_stay_as_they_are_written(tmp_path, form):
    columns = SCHEMA["columns"] | {"context": {"season": {"type": "text"}}}
    log = log_of_file(tmp_path, form, ROWS | {"season": ["2024-01-01"] * 3 + ["2023-07-01"]}, {"columns": columns})
    assert sorted(log.context["season"].to_pylist()) == ["2023-07-01"] + ["2024-01-01"] * 3


@pytest.mark.parametrize("value", [{"brand": "a"}, [{"brand": "a"}]])
def test_objects_are_no_features(value):
    catalogue = {"item_id": [7, 8, 9], "about": [value] * 3}
    log = log_from_table(ROWS, {"columns": SCHEMA["columns"] | {"context": []}}, catalogue=catalogue)
    with pytest.raises(
        ValueError, match=r"item_features: 'about' of the catalogue holds .*; accepted: columns of one value"
    ):
        SequenceProcessor.fit(log, item_features=["about"])


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_dates_are_no_numbers(tmp_path, form, kind):
    columns = SCHEMA["columns"] | {"context": {"since": {"type": kind}}}
    with pytest.raises(ValueError, match=f"column 'since': the schema says {kind}, and the values do not fit"):
        log_of_file(tmp_path, form, ROWS | {"since": ["2024-01-01"] * 4}, {"columns": columns})


def test_features_of_datasets_of_their_own_types(tmp_path):
    """Texts in another layout, JSON as a type, lists of one length; arrays are left out by `lmctr init`."""
    rows, rng = 60, np.random.default_rng(0)
    columns = {
        "view": [f"x{n % 3}" for n in range(rows)],
        "json": [json.dumps({"a": n % 3}) for n in range(rows)],
        "codes": (np.arange(2 * rows) % 5).reshape(rows, 2).tolist(),
        "label": [n % 2 for n in range(rows)],
    }
    kinds = {"view": pa.string_view(), "json": pa.json_(), "codes": pa.list_(pa.int64(), 2), "label": pa.int64()}
    storage = pa.array(columns["json"])
    data = {name: pa.array(values, kinds[name]) for name, values in columns.items() if name != "json"}
    data = Dataset(pa.table(data | {"json": pa.ExtensionArray.from_storage(kinds["json"], storage)}))
    path = tmp_path / "rows.parquet"
    squares = pa.array(rng.random((rows, 2, 2)).tolist())
    pq.write_table(data.data.table.append_column("squares", squares), path)
    assert sample_file(path).no_values == {"squares": "lists of lists; give each a column"}
    fields = [{"name": name, "type": "sequence" if name == "codes" else "categorical"} for name in kinds][:3]
    store = TabularStore.build(table_source(path, label="label", fields=fields))
    known = {
        name: {*map(str, store.processor.state.vocabularies[name].values.to_pylist())}
        for name in kinds
        if name != "label"
    }
    assert known == {"view": {*columns["view"]}, "json": {*columns["json"]}, "codes": {*"01234"}}
