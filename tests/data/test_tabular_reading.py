"""Reading of files and data sets in blocks: every format gives the same rows, the parts are right, and memory is bounded."""

import gzip
import json
import os
import textwrap
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import warm

from lmctr.data import TableSource, TabularFeatureProcessor, TabularStore, load_tabular, table_source
from lmctr.data.features.columns import Rows
from lmctr.data.features.times import seconds_of
from lmctr.data.tables.reading import block_size_for, stream_file
from lmctr.data.tables.source import SplitRule, file_piece, rows_of

FIELDS = [
    {"name": "c", "type": "categorical"},
    {"name": "n", "type": "categorical"},
    {"name": "x", "type": "numeric"},
    {"name": "s", "type": "sequence", "separator": " ", "max_length": 4},
]


def make_table(count=5000, seed=0):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "label": rng.integers(0, 2, count),
            "c": [f"v{n}" if n else "" for n in rng.integers(0, 30, count)],
            "n": rng.integers(0, 12, count),
            "x": pa.array(rng.normal(size=count), mask=rng.random(count) < 0.1),
            "s": [" ".join(map(str, rng.integers(0, 9, rng.integers(0, 6)))) for _ in range(count)],
            "user": rng.integers(0, 100, count),
            "time": 1_000_000 + rng.permutation(count),
        }
    )


@pytest.fixture(scope="module")
def table():
    return make_table()


def write(table, path):
    kind = path.name.removesuffix(".gz").rsplit(".", 1)[1]
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=700)
        return path
    if kind in ("csv", "tsv"):
        sink = pa.BufferOutputStream()
        pacsv.write_csv(table, sink, pacsv.WriteOptions(delimiter="\t" if kind == "tsv" else ","))
        data = sink.getvalue().to_pybytes()
    else:
        import json

        data = "\n".join(json.dumps(row) for row in table.to_pylist()).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.parquet", "t.jsonl", "t.jsonl.gz"])
def test_every_format_gives_the_same_arrays(table, tmp_path, name):
    file = write(table, tmp_path / name)
    processor = TabularFeatureProcessor(FIELDS)
    expected = processor.fit(table).transform(table)
    blocks = list(stream_file(file, processor.all_columns(), block_size=1 << 14))
    assert len(blocks) > 3
    assert [block.first for block in blocks] == np.cumsum([1, *(len(b) for b in blocks[:-1])]).tolist()
    again = TabularFeatureProcessor(FIELDS).fit(iter_tables(blocks))
    assert again.fingerprint == processor.fingerprint
    for key, values in again.transform(file).items():
        np.testing.assert_array_equal(values, expected[key])


def iter_tables(blocks):
    return [
        block.table if isinstance(block.table, pa.RecordBatch) else block.table.combine_chunks() for block in blocks
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a,b\r\n1,x\r\n2,y\r\n",
        "a,b\n1,x\n2,y",
        '"a","b"\n1,"x"\n2,"y"\n',
        "a,b\n1,x\n\n2,y\n\n",
        "\ufeffa,b\n1,x\n2,y\n",
    ],
)
@pytest.mark.parametrize("block_size", [1, 5, 1 << 20])
def test_ways_to_write_lines(tmp_path, text, block_size):
    (tmp_path / "t.csv").write_bytes(text.encode())
    blocks = list(stream_file(tmp_path / "t.csv", {"a": "number", "b": "text"}, block_size=block_size))
    rows = [row for block in blocks for row in block.table.to_pylist()]
    assert rows == [{"a": 1.0, "b": "x"}, {"a": 2.0, "b": "y"}]
    assert [block.first for block in blocks] == list(range(1, len(blocks) + 1))


def test_line_breaks_between_quotes_end_no_block(tmp_path):
    values = [f"line {n}\nand, {n}" if n % 3 else f"plain {n}" for n in range(300)]
    lines = [f'{n},"{value}"' for n, value in enumerate(values)]
    (tmp_path / "t.csv").write_text("n,text\n" + "\n".join(lines) + "\n")
    for block_size in (64, 100, 1000):
        blocks = list(stream_file(tmp_path / "t.csv", {"text": "text"}, block_size=block_size))
        assert len(blocks) > 3
        assert [value for block in blocks for value in block.column("text").to_pylist()] == values


@pytest.mark.parametrize("kind", ["dataset", "stream"])
def test_datasets(table, kind):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset(table)
    expected = TabularFeatureProcessor(FIELDS).fit(table)
    data = data.to_iterable_dataset(num_shards=3) if kind == "stream" else data
    processor = TabularFeatureProcessor(FIELDS).fit(data)
    assert processor.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(processor.transform(data)["input_ids"], expected.transform(table)["input_ids"])
    store = TabularStore.build(table_source(data, "label", FIELDS, split="rows", fractions=(0.5, 0.25, 0.25)))
    assert [len(rows) for _, rows in store.splits.items()] == [2500, 1250, 1250]
    with pytest.raises(
        ValueError, match=r"a DatasetDict holds several parts; .* all together, datasets.concatenate_datasets\(\["
    ):
        processor.transform(datasets.DatasetDict(train=datasets.Dataset(table)))


def test_fields_are_guessed_from_a_file(table, tmp_path):
    source = load_tabular(write(table, tmp_path / "t.parquet"), label="label", time="time", group="user")
    assert [(field["name"], field["type"]) for field in source.fields] == [
        ("c", "categorical"),
        ("n", "categorical"),
        ("x", "numeric"),
        ("s", "categorical"),
    ]


def test_schema_files(table, tmp_path):
    write(table.slice(0, 3000), tmp_path / "a.csv")
    write(table.slice(3000, 1000), tmp_path / "b.csv")
    write(table.slice(4000), tmp_path / "c.csv")
    schema = tmp_path / "shop.yaml"
    schema.write_text(
        textwrap.dedent("""
        files: {train: a.csv, validation: b.csv, test: c.csv}
        label: label
        group: user
        time: time
        fields:
          - {name: c, type: categorical, min_count: 2}
          - {name: hour, type: categorical, column: time, extract: hour}
        info: {licence: ours, notes: a note}
        """)
    )
    source = load_tabular(schema)
    assert source.info.name == "shop"
    assert source.info.licence == "ours"
    store = TabularStore.build(source)
    assert [len(rows) for _, rows in store.splits.items()] == [3000, 1000, 1000]
    np.testing.assert_array_equal(store.groups, table["user"].to_numpy())
    np.testing.assert_array_equal(store.times, table["time"].to_numpy())
    assert store.processor.statistics["num_rows"] == 3000  # fitted on the training part only
    with pytest.raises(ValueError, match=r"c.csv is a file, and the schema .* has 3 files; give a folder"):
        load_tabular(schema, path=tmp_path / "c.csv")
    schema.write_text(
        schema.read_text().replace("{train: a.csv, validation: b.csv, test: c.csv}", "a.csv")
        + "split: {rule: rows, fractions: [0.5, 0.5, 0.0]}\n"
    )
    assert [len(rows) for _, rows in TabularStore.build(load_tabular(schema)).splits.items()] == [1500, 1500, 0]
    assert (
        TabularStore.build(load_tabular(schema, path=tmp_path / "b.csv")).num_rows == 1000
    )  # another file of such rows


def test_a_table_as_a_spreadsheet_writes_it(table, tmp_path):
    """Semicolons, decimal commas, words for missing values and for the label: the same arrays; a loaded processor reads such files too."""
    texts = {name: ["" if value is None else str(value) for value in table[name].to_pylist()] for name in "cnxs"}
    texts["x"] = [text.replace(".", ",") or "?" for text in texts["x"]]
    texts["c"] = [text or "?" for text in texts["c"]]
    texts["label"] = ["ja" if value else "nein" for value in table["label"].to_pylist()]
    rows = [";".join(row) for row in zip(*texts.values())]
    (tmp_path / "s.csv").write_text("\n".join([";".join(texts), *rows]) + "\n")
    write(table.select(["c", "n", "x", "s", "label"]), tmp_path / "p.csv")
    fields = [
        {"name": "c", "type": "categorical"},
        {"name": "x", "type": "numeric"},
        {"name": "s", "type": "sequence", "separator": " "},
    ]
    written = {"decimal": ",", "na_values": ["?"]}
    label = {"column": "label", "equals": "ja"}
    plain, other = (
        table_source(tmp_path / name, label, fields, fractions=(1, 0, 0), **reading)
        for name, label, reading in (("p.csv", "label", {}), ("s.csv", label, written))
    )
    turned = table_source(tmp_path / "s.csv", {**label, "equals": "nein"}, fields, fractions=(1, 0, 0), **written)
    assert other.fingerprint != turned.fingerprint
    stores = [TabularStore.build(source) for source in (plain, other)]
    for key in ("input_ids", "numeric_values", "sequence_ids", "labels"):
        np.testing.assert_array_equal(getattr(stores[1], key), getattr(stores[0], key), err_msg=key)
    stores[1].processor.save_pretrained(tmp_path / "p")
    loaded = TabularFeatureProcessor.from_pretrained(tmp_path / "p")
    np.testing.assert_array_equal(loaded(tmp_path / "s.csv")["numeric_values"], stores[0].numeric_values)
    message = r"s\.csv, column 'x': row \d+ is no number, .* whose decimal point is '.' \(`decimal` says which\)"
    with pytest.raises(ValueError, match=message):
        list(stream_file(tmp_path / "s.csv", {"x": "number"}, na_values=["?"]))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"decimal": ";"}, "decimal=';'; accepted: '.' and ','"),
        ({"na_values": "?"}, r"na_values='\?'; accepted: a list of texts"),
        (
            {"label": {"column": "label", "equals": 1, "missing": "history"}},
            "label 'label': `missing: history` is for events of a log",
        ),
        ({"label": {"column": "label", "equal": 1}}, "unknown.*'equal'.*did you mean 'equals'"),
        ({"labels": [{"column": "label", "at_least": 1}, "label"]}, "beside the label 'label', all different"),
        ({"label": 3}, "label of the table: expected"),
    ],
)
def test_labels_and_readings_that_are_refused(tmp_path, table, given, says):
    with pytest.raises(ValueError, match=says):
        table_source(write(table, tmp_path / "t.csv"), **given)


def test_a_label_by_a_threshold(tmp_path, table):
    """A row without the value has no label, which is an error as any other missing one is; several labels may lack some."""
    path = write(table, tmp_path / "t.csv")
    rule = {"column": "x", "at_least": 0.25}
    (rows,) = table_source(path, labels=[rule, "label"], fields=[{"name": "c", "type": "categorical"}]).rows()
    x = table["x"].to_pylist()
    assert rows.table["x"].to_pylist() == [None if value is None else float(value >= 0.25) for value in x]
    (rows,) = table_source(path, {"column": "x", "equals": x[0]}).rows()
    assert rows.table["x"].to_pylist() == [None if value is None else float(value == x[0]) for value in x]
    source = table_source(path, rule, fields=[{"name": "c", "type": "categorical"}])
    with pytest.raises(ValueError, match=r"column 'x': \d+ values are missing among .*Accepted: 0 and 1"):
        TabularStore.build(source)


def parts_of(source):
    blocks = list(source.rows({"label": "number", "user": "text", "time": "any"}))
    return np.concatenate([block.split for block in blocks]), pa.concat_tables(
        [
            pa.table(block.table) if isinstance(block.table, pa.Table) else pa.Table.from_batches([block.table])
            for block in blocks
        ]
    )


def test_random_and_group_splits_do_not_depend_on_blocks(table, tmp_path):
    file = write(table, tmp_path / "t.csv")
    for rule in ("random", "group"):
        drawn = []
        for size in (1 << 13, 1 << 22):
            pieces = (file_piece(file, block_size=size),)
            source = TableSource(pieces, tuple(FIELDS), group="user", time="time", split=SplitRule(rule, seed=3))
            drawn.append(parts_of(source)[0])
        np.testing.assert_array_equal(*drawn)
        shares = np.bincount(drawn[0], minlength=3) / len(drawn[0])
        np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.02 if rule == "random" else 0.12)
        if rule == "group":
            users = table["user"].to_numpy()
            assert all(len(set(drawn[0][users == user])) == 1 for user in range(100))
        other = TableSource((file_piece(file),), tuple(FIELDS), group="user", split=SplitRule(rule, seed=4))
        assert (parts_of(other)[0] != drawn[0]).any()
        assert other.fingerprint != source.fingerprint


def test_time_split_keeps_equal_times_together(table):
    shuffled = table.set_column(6, "time", pa.array(np.random.default_rng(0).integers(0, 40, 5000)))
    codes, rows = parts_of(table_source(shuffled, "label", FIELDS, group="user", time="time", split="time"))
    times = rows["time"].to_numpy()
    assert times[codes == 0].max() < times[codes == 1].min()
    assert times[codes == 1].max() < times[codes == 2].min()
    np.testing.assert_allclose(np.bincount(codes) / 5000, [0.8, 0.1, 0.1], atol=0.03)
    given = SplitRule("time", boundaries=(10, 20))
    from lmctr.data.tables.source import table_piece

    source = TableSource((table_piece(shuffled, None, given),), tuple(FIELDS), group="user", time="time")
    np.testing.assert_array_equal(parts_of(source)[0], np.digitize(times, [10, 20]))


def test_rows_split_is_in_the_order_of_the_file(table):
    source = table_source(table, "label", FIELDS, group="user", time="time", split="rows", fractions=(0.6, 0.3, 0.1))
    np.testing.assert_array_equal(parts_of(source)[0], np.repeat([0, 1, 2], [3000, 1500, 500]))
    assert sum(len(block) for block in source.rows({"label": "number"}, "validation")) == 1500


def test_a_validation_share_of_a_given_training_part(table, tmp_path):
    train, test = write(table.slice(0, 4000), tmp_path / "a.csv"), write(table.slice(4000), tmp_path / "b.csv")
    source = table_source(train, "label", FIELDS, group="user", time="time", test=test)
    codes, _ = parts_of(source)
    assert (codes[:4000] != 2).all()
    assert (codes[4000:] == 2).all()
    assert 300 < (codes == 1).sum() < 500


def test_fingerprints_follow_the_content(table, tmp_path):
    file = write(table, tmp_path / "t.csv")
    first = table_source(file, "label", FIELDS).fingerprint
    assert table_source(file, "label", FIELDS).fingerprint == first
    data = file.read_bytes()
    file.write_bytes(data[:-2] + (b"1" if data[-2:-1] != b"1" else b"2") + b"\n")
    assert table_source(file, "label", FIELDS).fingerprint != first
    assert table_source(table, "label", FIELDS).fingerprint == table_source(make_table(), "label", FIELDS).fingerprint
    assert (
        table_source(table, "label", FIELDS).fingerprint != table_source(table.slice(1), "label", FIELDS).fingerprint
    )


def test_mixed_values_of_a_dict_row():
    blocks = list(rows_of([{"a": 1}, {"a": "b"}, {"a": None}, {"a": 2.0}, {"a": True}], {"a": "text"}))
    assert blocks[0].column("a").to_pylist() == ["1", "b", None, "2", "true"]
    with pytest.raises(ValueError, match=r"column 'a': the values have no common type \(row 1: 1; row 3: 'b'\)\. Acc"):
        list(rows_of([{"a": 1}, {"a": 2.5}, {"a": "b"}], {"a": "number"}))
    with pytest.raises(
        ValueError, match=r"data: got int; accepted: a pyarrow table, .*, a list of dicts, the path of a file"
    ):
        list(rows_of(5))


def test_limits_of_memory_become_blocks():
    assert block_size_for(None) == 8 << 20
    assert block_size_for(40 << 20) == 2 << 20
    assert block_size_for(1 << 40) == 64 << 20


_STREAM = """
import sys
from lmctr.data import TabularFeatureProcessor, TabularStore, table_source
fields = [{"name": f"C{n}", "type": "categorical"} for n in range(10)] + [{"name": "x", "type": "numeric", "transform": "quantile"}]
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
small, large, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
def run(path):
    source = table_source(path, "label", fields, split="random", memory_limit=limit)
    return TabularStore.build(source, TabularFeatureProcessor(fields, quantile_sample=1000), sys.argv[4])
run(small)  # everything is imported and warm
before = peak()
store = run(large)
print(len(store), peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak from /proc")
def test_peak_memory_stays_under_the_limit_for_a_larger_file(tmp_path):
    limit = 24 << 20  # the least that is accepted
    rng = np.random.default_rng(0)
    path = tmp_path / "large.csv"
    columns = {"label": rng.integers(0, 2, 100_000)}
    columns |= {f"C{n}": np.char.mod("%010d", rng.integers(0, 50, 100_000)) for n in range(10)}
    part = pa.table(columns | {"x": rng.normal(size=100_000)})
    with pacsv.CSVWriter(path, part.schema) as writer:
        for _ in range(4):
            writer.write_table(part)
    write(part.slice(0, 20_000), tmp_path / "small.csv")
    assert path.stat().st_size > 2 * limit
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = ["-c", _STREAM, tmp_path / "small.csv", path, str(limit), tmp_path / "stores"]
    rows, grown = map(int, warm.run(*words, environment=environment).out.split())
    assert rows == 400_000
    assert grown < limit, f"{grown / 2**20:.0f} MiB"


@pytest.mark.parametrize("deep", ["[" * 60_000 + "]" * 60_000, '{"a":' * 60_000 + "1" + "}" * 60_000], ids=["lists", "objects"])  # fmt: skip
def test_lines_nested_too_deep_end_no_process(tmp_path, deep):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"x": 1}\n' * 3 + f'{{"x": {deep}}}\n')
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from lmctr.data.reading import read_table\nfrom lmctr.data.tables.reading import names_in_file, stream_file\n"
        "path = Path(sys.argv[1])\n"
        "for read in (lambda: read_table(path, ['x']), lambda: list(stream_file(path)), lambda: names_in_file(path)):\n"
        "    try:\n        read()\n    except ValueError as error:\n        print(error)\n"
    )
    done = warm.run("-c", script, path)
    assert done.stdout.splitlines() == [f"{path}: cannot be read as JSON lines: not valid JSON: nested too deep"] * 3


def test_many_brackets_are_not_deep(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"x": [[number] for number in range(9000)]}) + "\n")
    (rows,) = stream_file(path)
    assert len(rows.table["x"][0]) == 9000


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({40: {"c": "u"}}, r", column 'c': the values have no common type \(row \d\d: \d\d.0; row 40: 'u'\)"),
        (
            {39: {"b": 5}, 40: {"c": "u"}},
            r", column 'c': the values have no common type \(row \d\d: \d\d.0; row 40: 'u'\)",
        ),
        ({39: {"b": 5}, 40: [5]}, r": row 40 is \[5\], expected an object of columns"),
        (
            {39: {"b": 5}, 40: {"b": "\ud800"}},
            r", column 'b': half of a surrogate pair, which is no text \(row 40: '\\ud800'\)",
        ),
    ],
)
def test_rows_of_mixed_json_lines_are_counted_through_the_file(tmp_path, changes, told):
    """Beside a column that may hold several types, another may be wrong; blocks after the first."""
    rows = [{"b": f"x{place}", "c": float(place)} for place in range(1, 61)]
    for place, change in changes.items():
        rows[place - 1] = rows[place - 1] | change if isinstance(change, dict) else change
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=f"rows.jsonl{told}"):
        list(stream_file(path, {"b": "text", "c": "number"}, block_size=200))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_lines_of_any_end_and_names_over_two_lines(tmp_path, start, end):
    path = tmp_path / "rows.csv"
    lines = ['"i\nd",x', '1,"2"', '"a\nb",3', ""]
    path.write_text(start + end.join(lines), newline="")
    for size, count in ((1 << 20, 1), (20, 2)):
        blocks = list(stream_file(path, {"i\nd": "text", "x": "number"}, block_size=size))
        found = [row for block in blocks for row in block.table.to_pylist()]
        assert len(blocks) == count
        assert found == [{"i\nd": "1", "x": 2.0}, {"i\nd": "a\nb", "x": 3.0}]
    path.write_text(start + end.join([*lines[:2], "1,x"]), newline="")
    with pytest.raises(
        ValueError, match=r"rows.csv, column 'x': row 2 is no number, as the values before it are \('x'\)"
    ):
        list(stream_file(path, {"x": "number"}))


def test_what_breaks_off_or_is_of_another_type_names_its_file(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"id,x\n1,2\n" * 100)[:-20])
    with pytest.raises(ValueError, match=r"rows.csv.gz: cannot be read: Truncated"):
        list(stream_file(path))
    path = tmp_path / "rows.csv"
    path.write_text("\ufeff")
    with pytest.raises(ValueError, match=r"rows.csv: the file is empty"):
        list(stream_file(path, delimiter=","))
    path.write_text("id,x\n" + "1,true\n" * 30 + "2,5\n")
    with pytest.raises(ValueError, match=r"column 'x': row 31 is no bool, as the values before it are \('5'\)"):
        list(stream_file(path, {"x": "number"}, block_size=40))


@pytest.mark.parametrize("count", [1, 2000])
def test_a_number_with_underscores_is_none(count):
    """As in a CSV column of numbers; Python takes it for one."""
    processor = TabularFeatureProcessor([{"name": "x", "type": "numeric"}], label=None).fit([{"x": 1.0}, {"x": 2.0}])
    with pytest.raises(ValueError, match="column 'x': 1 values are no numbers"):
        processor([{"x": "2"}] * (count - 1) + [{"x": "1_0"}])


@pytest.mark.filterwarnings("error")
def test_floats_of_sixteen_bits_are_values():
    table = pa.table({"x": pa.array(np.array([0.1, 2.0] * 3, dtype=np.float16))})
    processor = TabularFeatureProcessor([{"name": "x", "type": "categorical"}], label=None).fit(table)
    assert processor([{"x": "0.1"}, {"x": 2}])["input_ids"].tolist() == processor(table[:2])["input_ids"].tolist()
    assert processor([{"x": np.float16(2)}])["input_ids"].item() == processor([{"x": 2}])["input_ids"].item()


def test_the_name_of_a_zone_is_that_of_no_machine(monkeypatch):
    """strptime takes the names that the machine's own zone has, and reads over them."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        rows = Rows(pa.table({"t": ["2024-07-01 10:00 UTC", "2024-07-01 10:00 GMT"]}))
        assert seconds_of(rows, "t", "%Y-%m-%d %H:%M %Z").tolist() == [1719828000] * 2
        with pytest.raises(ValueError, match=r"are no times .row 1: '2024-07-01 12:00 CEST'"):
            seconds_of(Rows(pa.table({"t": ["2024-07-01 12:00 CEST"]})), "t", "%Y-%m-%d %H:%M %Z")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_zone_of_a_time_in_a_format_counts():
    given = ["01/02/2024 01:30 +0200", "31/01/2024 18:30 -0500", "31/01/2024 23:30 +0000"]
    seconds = seconds_of(Rows(pa.table({"t": given})), "t", "%d/%m/%Y %H:%M %z")
    assert seconds.tolist() == [1706743800] * 3
    field = {
        "name": "hour",
        "column": "t",
        "type": "categorical",
        "extract": "hour",
        "time_format": "%d/%m/%Y %H:%M %z",
    }
    processor = TabularFeatureProcessor([field], label=None).fit(pa.table({"t": given}))
    for rows in ([{"t": text} for text in given], pa.table({"t": given})):  # few rows, and columns
        assert len(set(processor(rows)["input_ids"].flatten().tolist())) == 1


def test_labels_that_are_texts(tmp_path):
    """A Parquet file's `True` and `1.0` are read as those of a text file; words are told what reads them."""
    for number, words in enumerate((["True", "False", "true"], ["1.0", "0.0", "1"])):
        frame = pd.DataFrame({"c": ["a", "b", "a"], "click": words})
        frame.to_csv(tmp_path / f"{number}.csv", index=False)
        frame.to_parquet(tmp_path / f"{number}.parquet")
        for end in ("csv", "parquet"):
            source = table_source(tmp_path / f"{number}.{end}", "click", fields=[{"name": "c", "type": "categorical"}])
            assert TabularStore.build(source).labels.tolist() == [1, 0, 1]
    frame.assign(click=["yes", "no", "yes"]).to_parquet(tmp_path / "w.parquet")
    with pytest.raises(ValueError, match=r"'yes'.* Accepted: 0 and 1\. .* `label: {column: click, equals: WORD}`"):
        TabularStore.build(
            table_source(tmp_path / "w.parquet", "click", fields=[{"name": "c", "type": "categorical"}])
        )
