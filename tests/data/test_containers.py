"""Files that `lmctr data convert` makes readable: packed ones, JSON arrays, Python's dicts, objects with entries."""

import bz2
import gzip
import json
import lzma
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmctr.cli.main import main
from lmctr.data import sampling
from lmctr.data.guess import sample_file
from lmctr.data.tables.reading import stream_file

ROWS = [
    {
        "user": f"u{n}",
        "item": n % 3,
        "ok": n % 2 == 0,
        "os": {"name": "a", "at": {"x": n}},
        "price": 1.5 if n else "free",
    }
    for n in range(40)
]
FLAT = {"user": "u1", "item": 1, "ok": False, "os_name": "a", "os_at_x": 1, "price": "1.5"}
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def converted(path, output="out.parquet"):
    assert main(["data", "convert", str(path), "--output", str(path.parent / output)]) == 0
    return pq.read_table(path.parent / output).to_pylist()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.jsonl", LINES),
        ("array.json", json.dumps(ROWS)),
        ("pretty.json", json.dumps(ROWS, indent=2)),
        ("array.json.gz", json.dumps(ROWS)),
        ("wrapped.json", json.dumps({"count": 40, "rows": ROWS, "none": []})),
        ("wrapped_pretty.json", json.dumps({"count": 40, "rows": ROWS}, indent=1)),
        ("python.json", "".join(f"{row}\n" for row in ROWS)),
        ("python.json.gz", "".join(f"{row}\n" for row in ROWS)),
        ("python.txt", "".join(f"{row}\n" for row in ROWS)),
        ("python.txt.gz", "".join(f"{row}\n" for row in ROWS)),
        ("lines.csv", "\ufeff" + LINES),
    ],
)
def test_objects_become_rows(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    rows = converted(path)
    assert (len(rows), rows[1], rows[0]["price"]) == (40, FLAT, "free")


def test_nan_in_dicts_of_python_is_missing(tmp_path, capsys):
    path = tmp_path / "rows.json"
    rows = [{"price": 1.5, "brand": "nan"}, {"price": float("nan"), "brand": float("nan")}]
    path.write_text("".join(f"{row}\n" for row in rows))
    assert converted(path) == [rows[0], {"price": None, "brand": None}]
    path.write_text("{'price': none}\n")
    assert main(["data", "convert", str(path), "--output", str(tmp_path / "out.parquet")]) == 2
    assert "rows.json: line 1 is no dict of Python: \"{'price': none}\"" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["{'user': 'u1', 'item': 3}\n", '{"user": "u1", "item": 3}\n'])
@pytest.mark.parametrize("name", ["rows.txt", "rows.tsv", "rows.txt.gz"])
def test_lines_of_objects_are_no_delimited_text(tmp_path, line, name):
    path = tmp_path / name
    pack = gzip.compress if name.endswith(".gz") else bytes
    path.write_bytes(pack(line.encode() * 3))
    told = rf"{name}: its lines are objects, no .SV; lmctr data convert FILE --output FILE.parquet makes rows of them"
    with pytest.raises(ValueError, match=told):
        sample_file(path)
    with pytest.raises(ValueError, match=told):
        list(stream_file(path))
    path.write_bytes(pack(b"{'user'} and more\n1\n"))  # no object: a name
    assert next(iter(stream_file(path))).table.column_names == ["{'user'} and more"]


@pytest.mark.parametrize("end", ["zip", "bz2", "zst", "xz"])
def test_packed_files_are_unpacked(tmp_path, end):
    path, text = tmp_path / f"rows.csv.{end}", b"user,zip\nu1,01234\nu2,9\n"
    if end == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("folder/", "")
            archive.writestr("folder/rows.csv", text)
            archive.writestr("__MACOSX/rows.csv", b"x")
    else:
        pack = {"bz2": bz2.compress, "xz": lzma.compress, "zst": lambda data: pa.compress(data, "zstd", asbytes=True)}
        path.write_bytes(pack[end](text))
    with pytest.raises(ValueError, match=rf"rows.csv.{end}: a packed file; unpack it: lmctr data convert FILE"):
        sample_file(path)
    assert converted(path) == [{"user": "u1", "zip": "01234"}, {"user": "u2", "zip": "9"}]


@pytest.mark.parametrize("end", ["", ".gz"])
def test_columns_of_one_name_are_told_apart(tmp_path, capsys, end):
    path = tmp_path / f"rows.csv{end}"
    text = 'a,b,a,a_2,a\n1,"two\n\nlines",3,4,5\n6,7,8,9,0\n'.encode("utf-8-sig")
    path.write_bytes(gzip.compress(text) if end else text)
    with pytest.raises(
        ValueError, match=r"duplicate columns \['a'\]; .* lmctr data convert .* calls the second one 'a_2'"
    ):
        sample_file(path)
    rows = converted(path)
    assert rows[0] == {"a": 1, "b": "two\n\nlines", "a_3": 3, "a_2": 4, "a_4": 5}
    assert rows[1]["a_4"] == 0
    assert "columns of one name are told apart: a_3, a_4" in capsys.readouterr().out
    path.write_bytes(gzip.compress(b"1,1,0\n1,2,0\n") if end else b"1,1,0\n1,2,0\n")  # values, no names
    assert main(["data", "convert", str(path), "--output", str(tmp_path / "x.parquet")]) == 2
    assert "--names" in capsys.readouterr().err
    command = ["data", "convert", str(path), "--names", "u,v,w", "--output", str(tmp_path / "x.parquet")]
    assert main(command) == 0
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 2


def test_what_is_no_table(tmp_path, capsys):
    def refused(name, content, *told):
        (tmp_path / name).write_bytes(content)
        assert main(["data", "convert", str(tmp_path / name), "--output", str(tmp_path / "x.parquet")]) == 2
        error = capsys.readouterr().err
        assert all(part in error for part in (name, *told)), error
        assert not (tmp_path / "x.parquet").exists()

    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.csv", "u\n1\n")
        archive.writestr("b.csv", "u\n1\n")
    refused("two.zip", (tmp_path / "two.zip").read_bytes(), "holds 2 files (a.csv, b.csv)")
    refused("cut.bz2", bz2.compress(b"u\n1\n" * 99)[:-9], "cannot be unpacked")
    refused("no.csv.xz", b"u,v", "cannot be unpacked")
    refused("numbers.json", b"[1, 2]", "entries are no objects")
    refused("half.json", b'[{"u": 1},', "cannot be read as JSON")
    refused("odd.json", b"{'u': 1}\n{'u': open('x')}\n", "line 2 is no dict of Python")
    refused("same.jsonl", b'{"os": {"name": 1}, "os_name": 2}\n', "'os_name', as another column is")
    (tmp_path / "python.jsonl").write_text("{'u': 1}\n")
    with pytest.raises(ValueError, match=r"python.jsonl: .* row 1: .*these are dicts of Python: lmctr data convert"):
        sample_file(tmp_path / "python.jsonl")


LATE = {
    "code": ["1", "07"],
    "price": [3, 0.5],
    "word": [4, "free"],
    "bill": [1.5, "C9"],
    "count": [1, 2],
    "note": ["", "new"],
}


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_what_a_column_holds_is_told_by_all_of_it(tmp_path, monkeypatch, form):
    monkeypatch.setitem(stream_file.__kwdefaults__, "block_size", 200)
    monkeypatch.setattr(sampling, "BLOCK_SIZE", 200)
    rows = [{name: own[row == 39] for name, own in LATE.items()} for row in range(40)]
    path = tmp_path / f"rows.{form}"
    if form == "csv":
        lines = [",".join(LATE), *(",".join(map(str, row.values())) for row in rows)]
    else:
        lines = [json.dumps({name: value for name, value in row.items() if value != ""}) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    found = converted(path)
    assert found[39] == {name: own[1] for name, own in LATE.items()}
    assert found[0] | {"note": None} == {
        "code": "1",
        "price": 3.0,
        "word": "4",
        "bill": "1.5",
        "count": 1,
        "note": None,
    }
    assert (type(found[0]["price"]), type(found[0]["count"])) == (float, int)
    with path.open("a") as file:
        file.write("{" if form == "jsonl" else "1,2\n")
    assert main(["data", "convert", str(path), "--output", str(tmp_path / "x.parquet")]) == 2
