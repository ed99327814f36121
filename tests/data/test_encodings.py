"""Text in other encodings: errors name the command that converts it, and that writes what an UTF-8 file holds."""

import gzip
import re
import sys

import pyarrow.parquet as pq
import pytest

from lmctr.cli.main import main
from lmctr.data.reading import read_table
from lmctr.data.tables.reading import stream_file

ROWS = "user,item,título\n" + "".join(f"u{n},i{n % 7},Caf\u00e9 {n} \u00fc\n" for n in range(40))


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8"])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_a_file_is_converted(tmp_path, capsys, encoding, ending):
    source = tmp_path / f"old{ending}"
    raw = ROWS.encode(encoding)
    source.write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
    target = tmp_path / "new.parquet"
    assert main(["data", "convert", str(source), "--encoding", encoding, "--output", str(target)]) == 0
    assert "40 rows" in capsys.readouterr().out
    table = pq.read_table(target)
    assert table.column_names == ["user", "item", "título"]
    assert table["título"].to_pylist() == [f"Café {n} ü" for n in range(40)]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_what_cannot_be_read_names_the_command(tmp_path, encoding):
    path = tmp_path / "old.csv"
    path.write_bytes(ROWS.encode(encoding))
    for read in (read_table, lambda path: list(stream_file(path))):
        with pytest.raises(
            ValueError, match=r"old.csv.*UTF-8.*: lmctr data convert FILE --encoding latin-1 \(or cp1252, utf-16"
        ):
            read(path)


@pytest.mark.parametrize(
    ("encoding", "content", "message"),
    [
        ("latin-one", ROWS.encode(), "--encoding latin-one: not known; accepted: such as latin-1, cp1252"),
        ("base64", ROWS.encode(), "--encoding base64: not known"),  # no encoding of text
        ("ascii", ROWS.encode("latin-1"), r"old.csv: not ascii text \('ascii' codec can't decode byte 0xed"),
        ("latin-1", b"a,b\n1,2\n1,2,3\n", r"old.csv: .*row"),
    ],
)
def test_what_cannot_be_converted(tmp_path, capsys, encoding, content, message):
    path = tmp_path / "old.csv"
    path.write_bytes(content)
    assert main(["data", "convert", str(path), "--encoding", encoding, "--output", str(tmp_path / "new.csv")]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert not (tmp_path / "new.csv").exists()
    assert error.count(str(path)) == ("--encoding" not in message)


def test_damaged_rows_are_told_by_the_error_alone(tmp_path, monkeypatch):
    """Python writes what fails in a reader's callback to standard error by itself."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    (tmp_path / "e.csv").write_bytes(b"a,b\n1,2\n\xff\xfe\n3,4\n")
    with pytest.raises(ValueError, match=r"e\.csv: .*row 2: Expected 2 columns, got 1"):
        read_table(tmp_path / "e.csv")
    assert not told
