"""Small files: read strictly, written whole."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lmctr.data
from lmctr.utils.files import (
    beside,
    parse_json,
    parse_yaml,
    read_json,
    read_yaml,
    replacing,
    whole_folder,
    write_json,
    write_text,
)
from lmctr.utils.parquet import read_parquet

_BOMB = b"l0: &l0 [" + b"1, " * 9 + b"1]\n"
_BOMB += b"".join(b"l%d: &l%d [%s]\n" % (n, n, b", ".join([b"*l%d" % (n - 1)] * 9)) for n in range(1, 11))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1', r"file is not valid JSON \(line 1, column 8: .*\); it may be cut off"),
        (b"[1]", "file must hold a JSON object, got list"),
        (b'{"a": "\xff"}', "file is not UTF-8 text .* at byte 7"),
        (b'{"a": {"b": 1, "b": 2}}', "file: the key 'b' stands twice"),
        (b'{"a": ' + b"[" * 200_000, "file: not valid JSON: nested too deep"),
        (b'{"a": ' + b"1" * 5000 + b"}", "file: a whole number of thousands of digits is not accepted$"),
    ],
)
def test_bad_json_names_the_file_and_the_place(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "file")


def test_json_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"name": "é"})
    with pytest.raises(TypeError):
        write_json(path, {"name": object()})
    assert read_json(path) == {"name": "é"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: [", "file, line 2: not valid YAML"),
        (b"a:\n  b: 1\n  b: 2", "file, line 3: not valid YAML: key 'b' is given twice"),
        (
            "a:\n  b: 1\n\xa0 c: 2".encode(),
            r"file, line 3: not valid YAML: key 'c' has U\+00A0 \(no-break space\) beside it; YAML takes plain",
        ),
        ("a:\n  b\u2003: 1".encode(), r"file, line 2: not valid YAML: key 'b' has U\+2003 \(em space\) beside it"),
        (b"a:\n  b: 1\n\tc: 2", "file, line 3: not valid YAML: .* no tabs, to indent"),
        (b"a: !!python/object:os.system {}", "file, line 1: not valid YAML: could not determine a constructor"),
        (b"\xff", "file is not UTF-8 text"),
        (b"a: " + b"[" * 20_000, "file, line 1: not valid YAML: nested too deep"),
        (b"a: &a\n  b: *a", "file, line 2: not valid YAML: an alias inside"),
        (_BOMB, "file, line [0-9]+: not valid YAML: more than 200,000 values"),
        (b"a: " + b"1" * 5000, "file: not valid YAML: a whole number of thousands of digits is not accepted$"),
        (b"a: \x07", "file.*: not valid YAML"),
    ],
)
def test_bad_yaml_names_the_file_and_the_line(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_yaml(tmp_path / "file")


@pytest.mark.parametrize("text", [f"a: !{'x' * 9000} 1", f"{{{'k' * 9000}: 1, {'k' * 9000}: 2}}"], ids=["tag", "key"])
def test_a_refusal_of_yaml_is_of_bounded_length(text):
    with pytest.raises(ValueError, match=r"x\.yaml, line 1: not valid YAML: ") as refused:
        parse_yaml(text, "x.yaml")
    assert len(str(refused.value)) < 600


def test_a_refusal_of_json_is_of_bounded_length():
    with pytest.raises(ValueError, match="stands twice in one object; give it one value") as refused:
        parse_json(json.dumps({"k" * 9000: 1})[:-1] + ', "' + "k" * 9000 + '": 2}')
    assert len(str(refused.value)) < 300


def test_yaml_scalars_are_those_of_version_1_2():
    text = "{rate: 1e-3, answer: no, day: 2020-01-01, on: true, half: .5}"
    assert parse_yaml(text, "here") == {"rate": 0.001, "answer": "no", "day": "2020-01-01", "on": True, "half": 0.5}


def test_a_text_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "recipe.yaml"
    write_text(path, "old: 1\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new: \ud800\n" * 100_000)
    assert path.read_text() == "old: 1\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["recipe.yaml"]


def test_aliases_that_stand_for_little_are_read():
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc: [*a, *a]", "text") == {
        "a": {"x": 1},
        "b": {"x": 1},
        "c": [{"x": 1}] * 2,
    }


def test_what_a_killed_writer_left_is_deleted(tmp_path, monkeypatch):
    """And nothing of a writer that lives, of another machine's or of another file."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path, host = tmp_path / "a[1].json", socket.gethostname()
    left = tmp_path / f"a[1].json.{host}-{ended.pid}-1.tmp"
    others = [
        tmp_path / name
        for name in (
            f"a[1].json.{host}-{os.getppid()}-1.tmp",
            f"a[1].json.other-{ended.pid}-1.tmp",
            f"a1.json.{host}-{ended.pid}-1.tmp",
            "a[1].json.x.tmp",
        )
    ]
    for place in (left, *others):
        place.touch()
    write_json(path, {"a": 1})
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_two_writers_of_one_file_are_not_in_each_others_way(tmp_path):
    path = tmp_path / "states.tsv"
    with replacing(path) as one:
        one.write_text("one")
        with replacing(path) as two:
            two.write_text("two")
        assert path.read_text() == "two"
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, b"caf\xe9.json".decode(errors="surrogateescape")])
def test_every_name_that_the_system_takes_can_be_written(name, tmp_path):
    write_json(tmp_path / name, {"a": 1})
    assert read_json(tmp_path / name) == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(OSError, match="name too long") as told, replacing(tmp_path / (255 * "é")):
        pytest.fail("the work was done before")
    assert told.value.filename == str(tmp_path / (255 * "é"))


def test_no_path_is_an_address(tmp_path, monkeypatch):
    """As pyarrow takes exp:1/... for one."""
    monkeypatch.chdir(tmp_path)
    Path("exp:1").mkdir()
    with replacing("exp:1/a.parquet") as temporary:
        pq.write_table(pa.table({"a": [1]}), temporary)
    assert read_parquet("exp:1/a.parquet")["a"].to_pylist() == [1]


def test_an_error_names_the_file_itself(tmp_path):
    (tmp_path / "folder").mkdir()
    for place in ("folder", "none/x.json"):
        with pytest.raises(OSError, match=f"^[^>]*{place}'$"):
            write_json(tmp_path / place, {})
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_appears_whole_or_not_at_all(is_there, tmp_path):
    """And what a killed process left is deleted; a folder that is there, and empty, stays the same one."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    place = tmp_path / "space"
    left = tmp_path / f"space.{socket.gethostname()}-{ended.pid}-1.tmp"
    left.mkdir()
    (left / "half").touch()
    if is_there:
        place.mkdir()
    before = place.stat().st_ino if is_there else None
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), whole_folder(place) as made:  # noqa: PT012
            (made / "half").touch()
            raise error
        assert list(tmp_path.rglob("*")) == [place] * is_there
    with pytest.raises(OSError, match=r"space/none/x'$"), whole_folder(place) as made:
        (made / "none/x").touch()
    with whole_folder(place) as made:
        (made / "a/b").mkdir(parents=True)
        (made / "c").touch()
        assert not place.is_dir() or not any(place.iterdir())
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "space",
        "space/a",
        "space/a/b",
        "space/c",
    ]
    assert before in (None, place.stat().st_ino)
    with whole_folder(place) as made:
        (made / "later").touch()
    assert not (place / "later").exists()


def test_what_a_file_names_beside_itself_goes_no_way_down_and_up_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("shop", "far/away"):
        Path(folder).mkdir(parents=True)
    Path("link").symlink_to("far/away")
    assert str(beside("shop", "../x.csv")) == "x.csv"
    assert str(beside("", "./shop//x.csv")) == "shop/x.csv"
    assert str(beside("..", "x.csv")) == "../x.csv"
    assert beside("shop", "/data/x.csv") == Path("/data/x.csv")
    assert str(beside("link", "../x.csv")) == "link/../x.csv"  # is far/x.csv
    columns = {"user": "u", "item": "i", "time": "t", "label": "y"}
    Path("shop/log.yaml").write_text(json.dumps({"name": "shop", "events": "../rows.csv", "columns": columns}))
    files = {"train": "../rows.csv", "test": "../rows.csv"}
    field = {"name": "u", "type": "categorical"}
    Path("shop/table.yaml").write_text(json.dumps({"files": files, "label": "y", "fields": [field]}))
    ads = {"impression": "r", "rank": "i", "ecpm": "e"}
    Path("shop/ads.yaml").write_text(json.dumps({"name": "shop", "impressions": "../rows.csv", "columns": ads}))
    for load, name in ((lmctr.data.load_log, "log"), (lmctr.data.load, "table"), (lmctr.data.load, "ads")):
        with pytest.raises(FileNotFoundError, match=r"^rows\.csv: no such file"):
            load(f"shop/{name}.yaml")
