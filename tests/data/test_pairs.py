"""Lines of LIBSVM and of libffm become tables."""

import bz2
import gzip
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.datasets import dump_svmlight_file

import lmctr
from lmctr.cli.main import main
from lmctr.data import pairs


def converted(path, text=None, pack=bytes, like=None):
    if text is not None:
        path.write_bytes(pack(text.encode()))
    words = ["data", "convert", str(path), "--output", str(path.parent / "rows.parquet")]
    assert main([*words, *(["--like", str(like)] if like else ["--quiet"])]) == 0
    return pq.read_table(path.parent / "rows.parquet").to_pylist()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(pairs, "_BLOCK", 7)


def lines_of(rows):
    return "".join(f"{label} {' '.join(entries)}\n" for label, entries in rows)


@pytest.mark.parametrize("name", ["avazu-app", "a.txt", "a.libsvm.gz", "a.tr.bz2"])
def test_one_hot_fields_are_categories(tmp_path, name):
    """As Avazu's and Criteo's files are: each line of length 1, so each value is one over the root of the number of fields."""
    indices = np.random.default_rng(0).integers(1, 9, (50, 3)) + [0, 10, 20]
    rows = [(1 if row % 3 else -1, [f"{index}:0.57735" for index in own]) for row, own in enumerate(indices)]
    pack = {"gz": gzip.compress, "bz2": bz2.compress}.get(name.split(".")[-1], bytes)
    found = converted(tmp_path / name, lines_of(rows), pack)
    assert found == [
        {"label": label} | {f"f{place + 1}": str(index) for place, index in enumerate(own)}
        for (label, _), own in zip(rows, indices)
    ]


def test_few_indices_are_numbers_as_scikit_learn_reads_them(tmp_path):
    rng = np.random.default_rng(1)
    x = np.round(rng.normal(size=(40, 12)) * (rng.random((40, 12)) < 0.4), 3)
    x[5] = 0  # a line with its label alone
    y = rng.integers(0, 2, 40)
    dump_svmlight_file(x, y, str(tmp_path / "x.svm"), zero_based=False, comment="made by hand")
    text = (tmp_path / "x.svm").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    lines[3] += "  # a remark 7:1"
    found = converted(tmp_path / "x.svm", "\r\n".join([*lines[:9], "", *lines[9:]]))
    assert [list(row) for row in found] == [["label", *(f"f{index}" for index in range(1, 13))]] * 40
    np.testing.assert_array_equal([[row[f"f{index}"] for index in range(1, 13)] for row in found], x)
    assert [row["label"] for row in found] == y.tolist()


def test_dense_lines_are_numbers(tmp_path):
    rows = [(row % 2, [f"1:{row / 4}", "2:1", f"7:{-row}"]) for row in range(20)]
    found = converted(tmp_path / "x.svm", lines_of(rows))
    assert found[5] == {"label": 1, "f1": 1.25, "f2": 1.0, "f7": -5.0}


@pytest.mark.parametrize("weighted", [False, True])
def test_many_indices_are_one_list(tmp_path, weighted):
    rng = np.random.default_rng(2)
    rows = []
    for row in range(80):
        own = np.sort(rng.choice(3000, rng.integers(0, 30), replace=False))
        rows.append((row % 2, [f"{index}:{rng.integers(1, 9) / 4 if weighted else 1}" for index in own]))
    found = converted(tmp_path / "x.txt", lines_of(rows))
    kept = [[one if weighted else one.split(":")[0] for one in own] for _, own in rows]
    read = [[] if row["features"] is None else row["features"].split("|") for row in found]
    if weighted:
        kept, read = (
            [[(a, float(b)) for a, b in (e.split(":") for e in own)] for own in all_] for all_ in (kept, read)
        )
    assert (read, [row["label"] for row in found]) == (kept, [label for label, _ in rows])


def test_fields_of_libffm_are_columns(tmp_path):
    rows = [
        (0, ["0:5:1", "1:11:0.25", "3:31:1", "3:32:1", "4:41:0.5"]),
        (1, ["1:11:-2", "0:6:1", "4:41:2", "4:43:1"]),
        (1, ["0:5:1", "3:33:1", "5:51:1", "5:51:3"]),  # one index twice
    ] * 9
    found = converted(tmp_path / "x.ffm", lines_of(rows))
    assert found[:3] == [
        {"label": 0, "f0": "5", "f1": 0.25, "f3": "31|32", "f4": "41:0.5", "f5": None},
        {"label": 1, "f0": "6", "f1": -2.0, "f3": None, "f4": "41:2|43:1", "f5": None},
        {"label": 1, "f0": "5", "f1": 0.0, "f3": "33", "f4": None, "f5": "51:1|51:3"},
    ]
    assert len(found) == 27


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:2 3:4\n" * 120 + "0 1:2 x\n", r"line 121 is no label with index:value behind it: '0 1:2 x'"),
        ("1 1:2 3:4\n" * 120 + "0 1:2:3\n", r"line 121 is no label with index:value behind it"),
        ("1 0:1:1\n" * 120 + "0 1:2\n", r"line 121 is no label with field:index:value behind it"),
        ("1 1:2 3:4\n" * 9 + "0 3:2 2:1\n", r"line 10: its indices do not ascend"),
        ("1 1:2 3:4\n" * 9 + "0 3:2 3:1\n", r"line 10: its indices do not ascend"),
        ("1 1:1 9007199254740993:2\n", r"an index of 2\*\*53 or more"),
        ("1 0:1:-1 0:2:3\n" * 9, r"field 0 has 2 indices and values below 0, such as -1"),
        (lines_of((0, [f"{i + 9 * row}:-1.5" for i in range(9)][: row % 2 + 8] + ["9999:1"]) for row in range(99)), "500"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path, capsys, text, message):
    (tmp_path / "x.txt").write_text(text)
    assert main(["data", "convert", str(tmp_path / "x.txt"), "--output", str(tmp_path / "out.parquet")]) == 2
    error = capsys.readouterr().err
    assert "x.txt: " in error
    assert re.search(message, error), error
    assert not (tmp_path / "out.parquet").exists()


TRIPLES = [
    (0, ["0:5:1", "1:11:2", "3:31:1", "3:32:1", "4:41:0.5"]),
    (1, ["1:11:-2", "0:6:1", "4:41:2", "4:43:1"]),
] * 9
PLACES = [(row % 2, [f"{1 + row % 4}:1", f"{10 + row % 5}:1"]) for row in range(40)]
SPARSE = [(row % 2, [f"{1 + row % 3}:{row}", "9:1"]) for row in range(40)]
MANY = [(row % 2, [f"{index}:1" for index in range(row, 40 * row + 2, 7)]) for row in range(40)]
LIKE = {"triples": TRIPLES, "places": PLACES, "sparse": SPARSE, "many": MANY}


@pytest.mark.parametrize(
    ("kind", "entries", "expected", "left"),
    [
        ("triples", ["1:11:0.5", "3:99:1"], {"f0": None, "f1": 0.5, "f3": "99", "f4": None}, None),
        ("triples", ["7:1:1", "0:8:1", "8:1:1"], {"f0": "8", "f1": 0, "f3": None, "f4": None}, "2 values of fields"),
        ("places", ["7:1", "99:1"], {"f1": "7", "f2": "99"}, None),
        ("sparse", ["2:4", "5:1", "9:0.5"], {"f1": 0, "f2": 4, "f3": 0, "f9": 0.5}, "1 values of indices"),
        ("many", ["2:1", "70000:1"], {"features": "2|70000"}, None),
    ],
)
def test_a_test_part_has_the_columns_of_its_training_part(tmp_path, capsys, kind, entries, expected, left):
    train = tmp_path / "train.bz2"
    train.write_bytes(bz2.compress(lines_of(LIKE[kind]).encode()))
    found = converted(tmp_path / "test.txt", f"\n1 {' '.join(entries)}\n", like=train)
    assert found == [{"label": 1, **expected}]
    told = capsys.readouterr().out
    assert "the columns of train" in told
    strange = entries[0].split(":")[0] if kind == "triples" else "5"
    assert (left is None) or f"{left} that it has none of are left out, such as {strange} in line 2" in told
    assert ("left out" in told) == (left is not None)


@pytest.mark.parametrize(
    ("kind", "entries", "message"),
    [
        ("triples", ["0:5:2"], "line 3: 5:2 does not go into the column 'f0', which holds one index of a line, of the value 1"),
        ("triples", ["0:5:1", "0:6:1"], "line 3: 6:1 does not go into the column 'f0'"),
        ("triples", ["1:12:1"], "line 3: 12:1 does not go into the column 'f1', which holds the value of the index 11 alone"),
        ("triples", ["3:31:3"], "line 3: 31:3 does not go into the column 'f3', which holds lists of indices of the value 1"),
        ("triples", ["4:41:-1"], "line 3: 41:-1 does not go into the column 'f4', .* weighted by values of at least 0"),
        ("places", ["1:1"], "line 3 has 1 pairs, and each of .*train.txt has 2"),
        ("places", ["11:1", "12:1"], "line 3: 11:1 does not go into the column 'f1', .* from 1 to 4 in .*train.txt"),
        ("places", ["1:1", "2:1"], "line 3: 2:1 does not go into the column 'f2', .* from 10 to 14"),
        ("many", ["1:2"], "line 3: 1:2 does not go into the column 'features'"),
        ("sparse", ["1:2:1"], "--like .*train.txt: no file of a label and field:index:value triples, as test.txt is"),
        ("none", ["1:1"], "--like .*train.txt: no such file"),
    ],
)  # fmt: skip
def test_what_the_columns_of_the_training_part_cannot_hold_is_refused(tmp_path, capsys, kind, entries, message):
    if kind in LIKE:
        (tmp_path / "train.txt").write_text(lines_of(LIKE[kind]))
    good = {"triples": "0 0:5:1\n", "places": "0 1:1 10:1\n", "sparse": "", "many": "0 1:1\n"}.get(kind, "")
    (tmp_path / "test.txt").write_text(f"{good}\n1 {' '.join(entries)}\n")
    words = ["data", "convert", str(tmp_path / "test.txt"), "--output", str(tmp_path / "out.parquet")]
    assert main([*words, "--like", str(tmp_path / "train.txt")]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    (tmp_path / "test.txt").write_text("a,b\n1,2\n")
    assert main([*words, "--like", str(tmp_path / "train.txt")]) == 2
    assert "test.txt: holds no lines of LIBSVM or libffm; leave out --like" in capsys.readouterr().err


def test_from_libffm_to_scores(tmp_path, capsys):
    """Lists of values and weights are guessed as what they are, and a table model reads them."""
    rng = np.random.default_rng(3)
    rows = []
    for _ in range(2000):
        tags = rng.choice(12, rng.integers(1, 5), replace=False)
        label = int(rng.random() < 0.1 + 0.8 * (0 in tags))
        rows.append((label, [f"0:{rng.integers(20)}:1", *(f"1:{100 + tag}:{rng.integers(1, 9) / 8}" for tag in tags)]))
    converted(tmp_path / "x.ffm", lines_of(rows))
    assert main(["init", str(tmp_path / "rows.parquet"), "--output", str(tmp_path / "made"), "--quiet"]) == 0
    schema = yaml.safe_load((tmp_path / "made" / "schema.yaml").read_text())
    assert schema["fields"][1]["weight_separator"] == ":"
    run = lmctr.runs.train(
        str(tmp_path / "made" / "deepfm.yaml"),
        output_dir=tmp_path / "run",
        overrides={
            "training.epochs": 3,
            "model.embedding_dim": 4,
            "data.baselines": False,
            "training.boosting_share": 0,
        },
    )
    assert run.processor.fields[1].weight_separator == ":"
    assert 0.6 < run.metrics["test"]["auc"] <= 1


def test_hours_are_no_weights(tmp_path):
    hours = ["9:30|12:15", "10:00", "12:15|18:45|9:30"]
    lines = "".join(f"{row % 2},{hours[row % 3]},{row % 7}\n" for row in range(90))
    (tmp_path / "shops.csv").write_text("clicked,hours,city\n" + lines)
    assert main(["init", str(tmp_path / "shops.csv"), "--output", str(tmp_path / "made"), "--quiet"]) == 0
    fields = yaml.safe_load((tmp_path / "made" / "schema.yaml").read_text())["fields"]
    (own,) = [field for field in fields if field["name"] == "hours"]
    assert (own["type"], "weight_separator" in own) == ("multi_value", False)
