"""Bad fields and bad data: each error names the place, what came and what is accepted."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lmctr.data import TableSource, TabularFeatureProcessor, TabularStore, load_tabular, table_source
from lmctr.data.tables.source import file_piece

FIELDS = [{"name": "c", "type": "categorical"}, {"name": "x", "type": "numeric"}]


def write(path, text):
    path.write_text(text)
    return path


def rows(**changes):
    return {"label": [0, 1, 0], "c": ["a", "b", "a"], "x": [1.0, 2.0, 3.0]} | changes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "a processor needs one field at least"),
        ("c", "expected a list of mappings"),
        ([{"type": "numeric"}], "a field needs a name"),
        ([{"name": "c", "type": "categoric"}], "field 'c': type 'categoric'.*Did you mean 'categorical'"),
        ([{"name": "c", "type": "categorical", "mincount": 2}], "unknown key 'mincount' in the categorical field 'c'; did you mean 'min_count'"),
        ([{"name": "x", "type": "numeric", "min_count": 2}], "unknown key 'min_count' in the numeric field 'x'"),
        ([{"name": "x", "type": "numeric", "transform": "log"}], "transform='log'; accepted: 'raw', 'log1p'"),
        ([{"name": "x", "type": "numeric", "num_bins": 1}], "num_bins=1; accepted: a whole number of at least 2"),
        ([{"name": "x", "type": "numeric", "missing": "own_id"}], "missing='own_id' needs an id"),
        ([{"name": "c", "type": "categorical", "hash_buckets": 9, "min_count": 2}], "hash_buckets takes the place"),
        ([{"name": "c", "type": "categorical", "time_format": "%H"}], "time_format needs extract"),
        ([{"name": "x", "type": "numeric", "time_format": "%H"}], r"time_format needs extract \(days\)"),
        ([{"name": "x", "type": "numeric", "extract": "hour"}], "extract='hour'; accepted: 'days'"),
        ([{"name": "c", "type": "categorical", "extract": "days"}], "extract='days'; accepted: 'hour', "),
        ([{"name": "x", "type": "numeric", "until": "t"}], "until='t' needs extract: days"),
        ([{"name": "x", "type": "numeric", "extract": "days", "until_format": "%H"}], "until_format='%H' needs until"),
        ([{"name": "x", "type": "numeric", "extract": "days", "until": "t", "until_format": "H"}], "until_format='H' is no strptime"),
        ([{"name": "c", "type": "categorical"}] * 2, "the name 'c' is given twice"),
        ([{"name": "s", "type": "sequence", "share_with": "cc"}, {"name": "c", "type": "categorical"}], "names no field. Did you mean 'c'"),
        ([{"name": "s", "type": "sequence", "max_length": 2**32}], "max_length=4294967296; accepted: at most 65,536"),
        ([{"name": "s", "type": "sequence", "share_with": "s"}], "another field with a vocabulary of its own"),
        ([{"name": "s", "type": "sequence", "time_column": "t"}], "time_column needs the processor's time column"),
        ([{"name": "label", "type": "categorical"}], "reads the label column 'label'"),
        (
            [{"name": "c", "type": "categorical", "embedding_dim": 4}, {"name": "s", "type": "sequence", "share_with": "c", "embedding_dim": 8}],
            "embedding_dim=8 differs from that of 'c'",
        ),
    ],
)  # fmt: skip
def test_bad_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        TabularFeatureProcessor(fields)


def test_unknown_keys_of_the_processor():
    with pytest.raises(ValueError, match="unknown key 'lable' in TabularFeatureProcessor; did you mean 'label'"):
        TabularFeatureProcessor(FIELDS, lable="y")
    with pytest.raises(ValueError, match="quantile_sample=0"):
        TabularFeatureProcessor(FIELDS, quantile_sample=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": [0, 2, 1]}, r"column 'label': 1 values are other than 0 and 1 \(row 2: 2\). Accepted: 0 and 1"),
        ({"label": [0, None, 1]}, r"column 'label': 1 values are missing \(row 2: None\)"),
        ({"label": [0.0, float("nan"), 1.0]}, r"column 'label': 1 values are missing \(row 2: nan\)"),
        ({"label": ["0", "yes", "1"]}, r"column 'label': 1 values are no numbers \(row 2: 'yes'\)"),
        ({"x": [1.0, float("inf"), 2.0]}, r"column 'x': 1 values are infinite \(row 2: inf\)"),
        ({"x": ["1", "two", "3"]}, r"column 'x': 1 values are no numbers \(row 2: 'two'\)"),
        ({"x": [None, None, None]}, r"column 'x': no value in any of the 3 rows fitted on, so the field 'x'"),
        ({"c": [None, "", None]}, r"column 'c': no value in any of the 3 rows fitted on"),
        ({"c": [["a"], ["b"], []]}, r"column 'c': the values are list<.*declare it as a sequence"),
        (
            {"c": pd.period_range("2020", periods=3)},
            r"column 'c': the values are extension<pandas.period.*write its values as",
        ),
        (
            {"c": pd.cut([1, 2, 3], 2)},
            r"column 'c': the values are extension<pandas.interval.*write its values as texts",
        ),
        ({"c": [{"a": 1}] * 3}, r"column 'c': the values are struct<a: int64>.*write its values as texts or numbers"),
        ({"x": 5}, r"the column 'x' is no list of values, got 5; give \[row\] for a single row"),
        ({"x": [1.0, 2.0]}, "the columns differ in length"),
        ({"label": [], "c": [], "x": []}, "the table has no rows"),
    ],
)
def test_bad_values_in_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        TabularFeatureProcessor(FIELDS).fit(rows(**changes))


def test_missing_and_doubled_columns():
    processor = TabularFeatureProcessor(FIELDS)
    with pytest.raises(ValueError, match="no column 'x'; its columns are"):
        processor.fit({"label": [0], "c": ["a"]})
    doubled = pa.Table.from_arrays([pa.array([0])] * 4, names=["label", "c", "x", "x"])
    with pytest.raises(ValueError, match=r"duplicate columns \['x'\]"):
        processor.fit(doubled)
    with pytest.raises(ValueError, match="this processor is not fitted"):
        processor([{"c": "a", "x": 1}])
    processor.fit(rows())
    with pytest.raises(ValueError, match=r"row 2: no column 'x'; pass None \(in JSON null\) for a missing value"):
        processor([{"c": "a", "x": 1}, {"c": "a"}])
    with pytest.raises(ValueError, match="got one dict of single values"):
        processor({"c": "a", "x": 1.0})
    with pytest.raises(ValueError, match="has no rows"):
        processor([])
    with pytest.raises(ValueError, match="row 1: expected a dict of columns, got str 'a'"):
        processor(["a"])
    with pytest.raises(
        ValueError, match=r"expected rows \(dicts\) or pyarrow RecordBatches in a Series, got str; give"
    ):
        processor(pd.Series({"c": "a"}))
    with pytest.raises(ValueError, match=r"column 'x': 1 values do not fit float32 \(row 1: 1e\+300\)"):
        processor([{"c": "a", "x": 1e300}])


def test_unseen_categories_are_counted():
    processor = TabularFeatureProcessor(FIELDS).fit(rows())
    arrays = processor.transform({"c": ["new", "a", None, "newer"], "x": [1, 2, 3, 4]})
    assert arrays["input_ids"][:, 0].tolist() == [1, 2, 1, 1]
    assert arrays.oov_counts["c"] == {"values": 4, "missing": 1, "unknown": 2}


@pytest.mark.parametrize("when", [[1, None, 2], [1.0, float("nan"), 2.0]])
def test_missing_times(when):
    processor = TabularFeatureProcessor(FIELDS, time="t").fit(rows())
    with pytest.raises(ValueError, match=r"column 't': 1 values are missing \(row 2: .*Every row needs a time"):
        processor.transform(rows(t=when))


def test_a_column_of_booleans_is_no_time():
    processor = TabularFeatureProcessor(FIELDS, time="t").fit(rows())
    with pytest.raises(ValueError, match="column 't': 3 values are true or false"):
        processor.transform(rows(t=[True, False, True]))


def test_times_in_milliseconds():
    processor = TabularFeatureProcessor(FIELDS, time="t").fit(rows())
    with pytest.raises(ValueError, match="column 't': 3 values are outside the years up to 9999"):
        processor.transform(rows(t=[1_700_000_000_000] * 3))


def test_negative_weights():
    processor = TabularFeatureProcessor(FIELDS, weight="w").fit(rows())
    with pytest.raises(ValueError, match=r"column 'w': 1 values are no weights \(row 3: -1\)"):
        processor.transform(rows(w=[1, 2, -1]))


# files


def make_csv(path, count, bad):
    """A file of many blocks whose line `bad` (from 1) holds a word where numbers stand."""
    lines = ["label,c,x"]
    lines += [f"{n % 2},v{n % 7},{'oops' if n == bad else n / 4}" for n in range(1, count + 1)]
    return write(path, "\n".join(lines) + "\n")


@pytest.mark.parametrize("bad", [1, 2900, 60_000])
def test_a_column_that_changes_type_mid_file_names_file_column_and_row(tmp_path, bad):
    file = make_csv(tmp_path / "t.csv", 60_000, bad)
    source = TableSource((file_piece(file, block_size=1 << 16),), tuple(FIELDS))
    why = "and the column is read as one of numbers" if bad == 1 else "as the values before it are"
    with pytest.raises(ValueError, match=rf"t.csv, column 'x': row {bad} is no number, {why} \('oops'\)"):
        TabularStore.build(source)


def test_a_bad_label_names_its_row_in_a_split_file(tmp_path):
    file = write(tmp_path / "t.csv", "label,c,x\n" + "".join(f"{5 if n == 40 else n % 2},a,1\n" for n in range(1, 60)))
    with pytest.raises(ValueError, match=r"t.csv, column 'label': 1 values are other than 0 and 1 .*\(row 40: 5.0\)"):
        TabularStore.build(table_source(file, "label", FIELDS, split="rows"))


def test_of_many_missing_columns_the_first_are_named(tmp_path):
    names = [f"c{n}" for n in range(30)]
    processor = TabularFeatureProcessor([{"name": name, "type": "numeric"} for name in names])
    processor.fit({"label": [0, 1]} | {name: [0.0, 1.0] for name in names})
    file = write(tmp_path / "t.csv", "a,b\n1,2\n")
    for given, first in ((file, "t.csv: "), ([{"a": 1}], "row 1: "), ({"a": [1]}, "data: ")):
        with pytest.raises(ValueError, match=rf"{first}no column 'c0', 'c1', 'c2', 'c3', 'c4' and 25 more; "):
            processor(given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv: the file is empty"),
        ("label,c,x\n", "t.csv: the file has no rows"),
        ("label,c,c,x\n0,a,b,1\n", r"t.csv: duplicate columns \['c'\]"),
        ("label,c\n0,a\n", "t.csv: no column 'x'; its columns are"),
        ("label,c,x\n0,a,1\n1,b\n", "t.csv: .*row 2: Expected 3 columns, got 2"),
    ],
)
def test_bad_csv_files(tmp_path, text, message):
    file = write(tmp_path / "t.csv", text)
    with pytest.raises(ValueError, match=message):
        TabularFeatureProcessor(FIELDS).fit(file)


def test_text_that_is_not_utf8(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(b"label,c,x\n0,a,1\n1,\xff\xfe,2\n")
    with pytest.raises(ValueError, match=r"t.csv, column 'c': row 2 is not UTF-8 text"):
        TabularFeatureProcessor(FIELDS).fit(file)


def test_json_lines_that_change_type(tmp_path):
    lines = [f'{{"label": 0, "c": "a", "x": {n}}}' for n in range(20)]
    lines[12] = '{"label": 0, "c": "a", "x": "word"}'
    file = write(tmp_path / "t.jsonl", "\n".join(lines))
    with pytest.raises(ValueError, match=r"t.jsonl, column 'x': .*row 13"):
        TabularFeatureProcessor(FIELDS).fit(file)
    lines[12] = '{"label": 0, "c" "a"}'
    with pytest.raises(ValueError, match=r"t.jsonl: cannot be read as JSON lines: .*row 13"):
        TabularFeatureProcessor(FIELDS).fit(write(file, "\n".join(lines)))


def test_files_cut_off(tmp_path):
    import gzip

    whole = gzip.compress(b"label,c,x\n" + b"0,a,1\n" * 50_000)
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"t.csv.gz: cannot be read"):
        TabularFeatureProcessor(FIELDS).fit(tmp_path / "t.csv.gz")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"t.parquet: cannot be read as parquet"):
        TabularFeatureProcessor(FIELDS).fit(tmp_path / "t.parquet")


def test_names_that_are_not_known(tmp_path):
    with pytest.raises(ValueError, match=r"table 'critoe'.*Did you mean 'criteo'"):
        load_tabular("critoe")
    with pytest.raises(
        ValueError, match="unknown key 'num_row' in options of the table 'synthetic_table'; did you mean 'num_rows'"
    ):
        load_tabular("synthetic_table", num_row=5)
    with pytest.raises(FileNotFoundError, match="no such schema file"):
        load_tabular(tmp_path / "x.yaml")
    with pytest.raises(ValueError, match="a folder"):
        load_tabular(tmp_path)
    schema = write(tmp_path / "s.yaml", "name: t\nfile: t.csv\nlabel: y\n")
    with pytest.raises(ValueError, match=r"unknown key 'file' in .*s.yaml; did you mean 'files'"):
        load_tabular(schema)
    with pytest.raises(FileNotFoundError, match=r"no.csv: no such file"):
        load_tabular(write(schema, "files: no.csv\nlabel: y\n"))


def test_split_rules():
    table = pa.table(rows())
    for options, message in [
        ({"split": "randomly"}, "split rule: got 'randomly'"),
        ({"fractions": (0.5, 0.6, 0.1)}, "three shares"),
        ({"split": "group"}, "split rule 'group' needs a group column"),
        ({"split": "time"}, "split rule 'time' needs a time column"),
        ({"validation": table}, "validation is given and test is not"),
        ({"test": table, "fractions": (0.8, 0.1, 0.1)}, "the test part is given, so its share must be 0"),
        ({"memory_limit": 100}, "memory_limit=100; accepted: a number of bytes"),
    ]:
        with pytest.raises(ValueError, match=message):
            table_source(table, "label", FIELDS, **options)


def test_a_lookup_of_nothing():
    processor = TabularFeatureProcessor(FIELDS).fit(rows())
    with pytest.raises(ValueError, match="unknown key 'x' in fields"):
        processor.lookup("x", ["a"])
    with pytest.raises(ValueError, match="unknown key 'x' in fields with ids"):
        processor.vocab_size("x")
    assert np.array_equal(processor.lookup("c", ["a", "zzz"]), [2, 1])


@pytest.mark.parametrize("values", [[10**13], [-(10**13)], pa.array([2**63], pa.uint64())])
def test_whole_seconds_beyond_the_calendar_are_no_times(values):
    fields = [{"name": "hour", "type": "categorical", "column": "at", "extract": "hour"}]
    processor = TabularFeatureProcessor(fields, label=None).fit({"at": [1_700_000_000, 1_700_003_600]})
    with pytest.raises(ValueError, match=r"column 'at'.*are no times.*unix seconds up to"):
        processor({"at": values})
    if isinstance(values, list):
        with pytest.raises(ValueError, match=r"column 'at'.*are no times.*unix seconds up to"):
            processor([{"at": values[0]}])
    with pytest.raises(ValueError, match="column 'at'"):  # as columns, and as Arrow takes them
        processor([{"at": ""}, {"at": 1_700_000_000}])
