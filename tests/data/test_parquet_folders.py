"""A folder of Parquet files as one log and as one table; leakage counts block by block."""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from lmctr.data import load_log, load_tabular
from lmctr.data.guess import guess_files, sample_file
from lmctr.data.logs import validation
from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.splits import split_log
from lmctr.data.options import ConvertOptions
from lmctr.data.reading import read_table
from lmctr.data.sampling import convert_data
from lmctr.data.tables.reading import stream_file
from lmctr.data.tables.store import TabularStore
from lmctr.utils.files import holds_parquet

SCHEMA = "name: big\nevents: {path: events}\ncolumns: {user: u, item: i, time: {column: t}, label: {column: y}}\n"


def events(seed=0, size=600):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "u": rng.integers(0, 20, size) * 7,
            "i": pa.array(rng.integers(0, 30, size), pa.int32()),
            "t": 1_600_000_000 + rng.integers(0, 5000, size),
            "y": (rng.random(size) < 0.4).astype(np.int8),
        }
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "events").mkdir()
    whole = events()
    for number, start in enumerate(range(0, 600, 250)):
        part = whole.slice(start, 250)
        part = part.select(part.column_names[::-1]) if number == 1 else part  # columns in another order
        pq.write_table(part, tmp_path / "events" / f"part-{number}.parquet")
    (tmp_path / "log.yaml").write_text(SCHEMA)
    return tmp_path


@pytest.mark.parametrize("read", [stream_file, read_table])
def test_a_file_is_opened_for_its_columns_and_for_its_rows(folder, monkeypatch, read):
    opened, own = [], pq.ParquetFile
    for module in (pq, pq.core):  # whose functions open files too
        monkeypatch.setattr(module, "ParquetFile", lambda file, **more: opened.append(str(file)) or own(file, **more))
    assert sum(len(rows) for rows in read(folder / "events")) >= 600
    assert len(opened) == 2 * 3


def test_a_folder_is_one_log(folder):
    log = load_log(folder / "log.yaml")
    table = events()
    expected = InteractionLog.from_columns(*(table[name] for name in "uity"))
    assert log.user_ids.tolist() == expected.user_ids.tolist()
    for name in ("offsets", "item", "time", "label", "feedback"):
        assert np.array_equal(getattr(log, name), getattr(expected, name)), name
    assert log.catalogue["item_id"].to_pylist() == expected.catalogue["item_id"].to_pylist()


def test_texts_of_a_folder_stay_texts(folder):
    for file in (folder / "events").glob("*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.set_column(table.column_names.index("u"), "u", table["u"].cast(pa.string())), file)
    assert load_log(folder / "log.yaml").user_ids.dtype.kind == "U"


def test_a_folder_is_one_table(folder):
    """Built into arrays under a fingerprint of all files; a table and its files of items may be folders both."""
    (folder / "items").mkdir()
    pq.write_table(pa.table({"i": range(30), "kind": ["a", "b", "c"] * 10}), folder / "items" / "all.parquet")

    def source(kind=False):
        fields = [{"name": name, "type": "categorical"} for name in ("u", "i", *["kind"] * kind)]
        joined = [{"path": str(folder / "items"), "by": "i"}] * kind
        own = {"fields": fields, "fractions": (0.8, 0.1, 0.1), "joined": joined}
        return load_tabular(folder / "events", label="y", time="t", **own)

    rows = [rows.table.num_rows for rows in source().pieces[0].read(["u", "y"])]
    assert sum(rows) == 600
    assert TabularStore.build(source()).labels.sum() == sum(events()["y"].to_pylist())
    assert TabularStore.build(source(kind=True)).processor.fields[2].name == "kind"
    before = [source(kind).fingerprint for kind in (False, True)]
    assert before == [source(kind).fingerprint for kind in (False, True)]
    for file in (folder / "events" / "part-1.parquet", folder / "items" / "all.parquet"):
        pq.write_table(pq.read_table(file).slice(1), file)
        now = [source(kind).fingerprint for kind in (False, True)]
        assert (now[0] != before[0]) == (file.parent.name == "events")
        assert now[1] != before[1]
        before = now


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["i"]), r"part-1\.parquet.*column.*'?i'?"),
        (
            lambda t: t.set_column(t.column_names.index("u"), "u", t["u"].cast(pa.string())),
            r"part-1.parquet, column 'u': its type is",
        ),
    ],
)
def test_files_that_differ(folder, change, message):
    file = folder / "events" / "part-1.parquet"
    pq.write_table(change(pq.read_table(file)), file)
    with pytest.raises(ValueError, match=message):
        load_log(folder / "log.yaml")


def test_files_of_other_programs_are_one_table(folder):
    """Days that pandas, polars and `lmctr data convert` wrote: other layouts of texts, lengths of numbers, units of times; a column that came later and
    one day without rows."""
    files = sorted((folder / "events").glob("*.parquet"))
    before, table = read_table(folder / "events"), pq.read_table(files[1])
    kinds = {"y": pa.float64(), "u": pa.int32()}
    for name, kind in kinds.items():
        table = table.set_column(table.column_names.index(name), name, table[name].cast(kind))
    pq.write_table(table.append_column("os", [["ios"] * table.num_rows]), files[1])
    pq.write_table(pa.table({"u": pa.array([], pa.float64())}), folder / "events" / "part-9.parquet")
    names = before.column_names
    streamed = pa.concat_tables(rows.whole for rows in stream_file(folder / "events", dict.fromkeys(names, "any")))
    for read in (read_table(folder / "events", names), streamed):
        assert read.schema.field("y").type == pa.float64()
        assert read.schema.field("u").type == before.schema.field("u").type
        assert read.cast(before.schema).equals(before.combine_chunks())
    assert load_log(folder / "log.yaml").num_events == before.num_rows
    for number, kind in enumerate((pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string())):
        pq.write_table(pa.table({"a": pa.array(["x", None], kind)}), folder / f"{number}.parquet")
    for read in (read_table(folder), next(stream_file(folder)).whole):
        assert read.schema.field("a").type == pa.large_string()
    files[1].write_text("hello")
    with pytest.raises(ValueError, match=rf"{files[1].name}: cannot be read as parquet"):
        read_table(folder / "events")


def test_a_folder_without_parquet_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a folder without \.parquet files"):
        read_table(tmp_path)


def parted(folder, table, *keys):
    """Written as Spark and Hive do: what the keys hold stands in the names of folders alone."""
    rule = ds.partitioning(pa.schema([(key, pa.string()) for key in keys]), flavor="hive")
    ds.write_dataset(table, folder, format="parquet", partitioning=rule, existing_data_behavior="overwrite_or_ignore")
    return folder


def of_days(days=("01", "02", "10"), size=600):
    table = events(size=size).append_column("day", [np.repeat(days, size // len(days))])
    return table.append_column("place", [np.array(["a/b c", "d=e", None])[np.arange(size) % 3].tolist()])


def test_the_names_of_folders_are_columns(tmp_path):
    table = of_days()
    folder = parted(tmp_path / "log", table, "day", "place")
    (folder / "_temporary" / "day=03").mkdir(parents=True)
    pq.write_table(events(), folder / "_temporary" / "day=03" / "part-0.parquet")  # of a job that was cut off
    order = [(name, "ascending") for name in table.column_names]
    read = read_table(folder)
    assert read.sort_by(order) == table.sort_by(order).cast(read.schema)
    assert read.schema.field("day").type == pa.string()  # 01 is a code
    assert read_table(folder, ["day"]).column_names == ["day"]
    assert sum(rows.table.num_rows for rows in stream_file(folder, {"place": "text"})) == 600
    whole = read_table(parted(tmp_path / "whole", of_days(("9", "10")), "day"))
    assert whole.schema.field("day").type == pa.int64()
    assert set(whole["day"].to_pylist()) == {9, 10}


def test_a_folder_parted_by_a_column_is_one_log_and_one_table(tmp_path):
    """Read, guessed, converted and known again by its content, of which the folders' names are a part."""
    folder = parted(tmp_path / "log", of_days(), "day")
    (tmp_path / "log.yaml").write_text(
        SCHEMA.replace("path: events", "path: log").replace("}}\n", "}, context: [day]}\n")
    )
    log = load_log(tmp_path / "log.yaml")
    assert sorted(log.context["day"].to_pylist()) == sorted(of_days()["day"].to_pylist())
    convert_data(ConvertOptions(name=str(folder), output=str(tmp_path / "log.csv")))
    assert (tmp_path / "log.csv").read_text().splitlines()[0].split(",")[-1] == '"day"'
    source = partial(load_tabular, folder, label="y", fields=[{"name": "day", "type": "categorical"}])
    assert holds_parquet(folder)
    before = source(fractions=(0.8, 0.1, 0.1)).fingerprint
    (folder / "day=02").rename(folder / "day=03")
    assert source(fractions=(0.8, 0.1, 0.1)).fingerprint != before


def test_guesses_are_of_all_folders_of_a_large_table(tmp_path, monkeypatch):
    """The first rows all stand in one folder, where its column would have one value only."""
    monkeypatch.setattr("lmctr.data.guess.sample._BYTES", 60_000)
    table = of_days(size=9000).rename_columns(["user_id", "item_id", "time", "clicked", "day", "place"])
    found = sample_file(parted(tmp_path / "log", table, "day"))
    assert not found.whole
    assert found.rows == 9000
    assert found.distinct["day"] == 3


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("part-0.parquet", "part-0.parquet do not stand in folders of the same keys"),
        ("day=04/hour=1/part-0.parquet", r"day=04/hour=1/part-0.parquet and day=01/part-0.parquet do not stand"),
        ("day=04/old/part-0.parquet", r"day=04/old/part-0.parquet and day=01/part-0.parquet do not stand"),
        ("day=00/part-0.parquet", "the column 'day' stands in the file and in the name of its folder"),
    ],
)
def test_folders_of_other_keys(tmp_path, place, message):
    folder = parted(tmp_path / "log", of_days(), "day")
    file = folder / place
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(of_days() if "00" in place else events(), file)
    for read in (read_table, lambda path: next(stream_file(path))):
        with pytest.raises(ValueError, match=message):
            read(folder)


def test_files_in_folders_without_keys(tmp_path):
    (tmp_path / "log" / "2024" / "01").mkdir(parents=True)
    pq.write_table(events(), tmp_path / "log" / "2024" / "01" / "part-0.parquet")
    with pytest.raises(FileNotFoundError, match=r"such as 2024/01; put them into one folder, or name .* day=2024"):
        read_table(tmp_path / "log")


@pytest.mark.parametrize("chunk", [1, 7, 100, 1 << 20])
def test_counts_by_blocks_of_users_are_those_of_all_events(monkeypatch, chunk):
    table = events()
    doubled = pa.concat_tables([table, table.slice(0, 60)])
    log = InteractionLog.from_columns(*(doubled[name] for name in "uity"))
    splits = split_log(log)
    rows = list(zip(*(getattr(log, name).tolist() for name in ("user", "item", "time", "label"))))
    pairs = [row[:2] for row in rows]
    repeated = sum(any(p == q and rows[a][2] < rows[b][2] for a, p in enumerate(pairs)) for b, q in enumerate(pairs))
    tied = len(rows) - len({row[:3] for row in rows})
    monkeypatch.setattr(validation, "_CHUNK", chunk)
    found = validation._repeats(log, ~log.seen)
    assert found[:2] == (repeated, tied)
    assert rows.index(rows[found[2]]) <= found[2]
    assert log.history_lengths(splits.train).tolist() == [
        sum(r[0] == rows[e][0] and r[2] < rows[e][2] for r in rows) for e in splits.train
    ]
    (finding,) = validation._doubled_events(log)
    assert finding.text.startswith(f"{len(rows) - len(set(rows)):,} of {len(rows):,} events repeat")


def test_init_reads_a_folder_of_days_converted_from_csv(tmp_path):
    """Ids with zeros at their head stay what they are, so the items' CSV file still describes them."""
    days = tmp_path / "days"
    days.mkdir()
    rows = [
        (f"{u:04d}", f"{(u * 7 + k) % 11:03d}", 1_600_000_000 + 500 * u + k, k % 2)
        for u in range(40)
        for k in range(9)
    ]
    rows.sort(key=lambda row: (row[1][0], row[2]))
    for number in range(3):
        file = tmp_path / f"day{number}.csv"
        lines = [";".join(map(str, row)) for row in rows[number::3]]
        file.write_text("\ufeff" + "\n".join(["user_id;item_id;time;clicked", *lines]) + "\n", encoding="utf-8")
        convert_data(ConvertOptions(name=str(file), output=str(days / f"day{number}.parquet")))
    table = pq.read_table(days)
    assert pa.types.is_string(table.schema.field("user_id").type)
    assert sorted({*table["item_id"].to_pylist()}) == [f"{i:03d}" for i in range(11)]
    assert pa.types.is_integer(table.schema.field("time").type)
    (tmp_path / "items.csv").write_text("item_id,topic\n" + "".join(f"{i:03d},t{i % 3}\n" for i in range(11)))
    guess = guess_files(str(days), items=str(tmp_path / "items.csv"))
    assert guess.schema["columns"]["item"] == "item_id"
    assert "missing_items" not in guess.schema["catalogue"]
    assert guess.events.rows == len(rows)


def test_a_zero_at_the_head_far_down_a_file_keeps_the_column_a_text(tmp_path, monkeypatch):
    monkeypatch.setattr("lmctr.data.sampling.stream_file", partial(stream_file, block_size=64))
    file = tmp_path / "rows.csv"
    file.write_text("id,n\n" + "".join(f"{i},{i}\n" for i in range(100, 200)) + "0007,0\n")
    convert_data(ConvertOptions(name=str(file), output=str(tmp_path / "rows.parquet")))
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table["id"].to_pylist()[-2:] == ["199", "0007"]
    assert table["n"].to_pylist()[-2:] == [199, 0]


def test_guesses_are_of_all_small_files_of_a_folder(tmp_path):
    """Parts of some rows each, as Spark writes them: one alone would hide what comes after the label, and that ids come again."""
    folder, table = tmp_path / "days", events().rename_columns(["user_id", "item_id", "time", "clicked"])
    watched = pc.if_else(pc.equal(table["clicked"], 1), table["time"], None)
    table = table.append_column("closed", watched)
    folder.mkdir()
    for number in range(20):
        pq.write_table(table.slice(30 * number, 30), folder / f"part-{number:05d}-0.c000.snappy.parquet")
    guess = guess_files(str(folder))
    assert guess.events.whole
    assert guess.events.table.num_rows == guess.events.rows == 600
    assert {"user", "item"} <= {*guess.schema["columns"]}
    assert next(own.role for own in guess.guesses if own.column == "closed") == "left out"
