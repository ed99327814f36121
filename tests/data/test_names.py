"""Lines of names: files that have one, none, two, and what their columns are called then."""

import gzip
import re
import subprocess

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from guess_logs import ROWS, clicks, table, write

from lmctr.cli.main import main
from lmctr.data import load_log, load_tabular
from lmctr.data.guess import guess_files, guess_log, sample_file
from lmctr.data.names import names_from
from lmctr.data.reading import delimiter_of, read_table
from lmctr.data.tables.reading import stream_file

NAMES = ["user_id", "item_id", "ts", "click"]


def nameless(path, columns, delimiter=","):
    """The file without its line of names."""
    rows = zip(*columns.values())
    text = "".join(delimiter.join(map(str, row)) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize(
    ("name", "delimiter"),
    [("u.data", "\t"), ("e.tsv", "\t"), ("e.csv", ","), ("e.csv", ";"), ("ratings.dat", "::"), ("e.dat.gz", "::")],
)
def test_names_of_a_file_without_a_line_of_them(tmp_path, name, delimiter):
    columns = table(title=["a, b"] * ROWS) if delimiter != "," else table(title=["a: b"] * ROWS)
    path = nameless(tmp_path / name, columns, delimiter)
    guess = guess_files(path, names={"events": [*columns]})
    assert guess.schema["events"]["names"] == [*NAMES, "title"]
    assert guess.schema["columns"]["user"] == "user_id"
    log = load_log(path, **guess.options())
    of_names = write(tmp_path / f"named{''.join(path.suffixes)}", columns, delimiter)
    same = load_log(of_names.path, **guess_log(of_names).options())
    assert log.num_events == ROWS  # the first row too
    for own in ("user", "item", "time", "label"):
        assert np.array_equal(getattr(log, own), getattr(same, own)), own


def test_ranges_of_names():
    assert names_from("label, I1..I3,C9..C11") == ["label", "I1", "I2", "I3", "C9", "C10", "C11"]
    assert names_from("c1..3") == ["c1", "c2", "c3"]
    for text, says in [
        ("a,,b", "a name is empty"),
        ("a,b,a", "'a' stands twice"),
        ("I1..I3,I2", "'I2' stands twice"),
        ("I3..I1", "no range"),
        ("I1..C3", "no range"),
    ]:
        with pytest.raises(ValueError, match=rf"^--names.*{says}"):
            names_from(text)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("196,242,3,881250949", "user,item,rating,time"),
        ("196,242,881250949", "user,item,time"),
        ("0,2010-10-19T23:55:27Z,30.2,-97.7,22847", "c1,time,c3..c5"),
        (",".join(["1", *"23456789"]), "label,c2..c9"),
        ("17,2,3,4,5,6", "c1..c6"),
        ("151603700,a,buy,1.0,0", "c1..c5"),  # ids of nine digits are no times
        ("user_1,2009-05-04T23:08:57Z,,a,,b", "c1,time,c3..c6"),  # a name that stands twice
        ("ab,7,x,y,0,z,0,w", "c1..c8"),
    ],
)
def test_the_command_that_gives_names_is_said(tmp_path, row, names):
    path = tmp_path / "e.csv"
    path.write_text(f"{row}\n" * 3)
    with pytest.raises(ValueError, match=rf"lmctr init {re.escape(str(path))} --names {re.escape(names)} "):
        sample_file(path)
    sample_file(path, names_from(names))


def test_what_names_do_not_fit_is_told(tmp_path):
    path = nameless(tmp_path / "e.csv", table())
    for read in (lambda names: sample_file(path, names), lambda names: read_table(path, names=names)):
        with pytest.raises(ValueError, match=r"3 names \(a, b, c\), and the first row has 4 columns \('\d+', "):
            read(["a", "b", "c"])
    with pytest.raises(ValueError, match=r"no column 'time'; its columns are \['a', 'b', 'c', 'd'\]"):
        read_table(path, ["time"], names=["a", "b", "c", "d"])
    write(tmp_path / "named.csv", table())
    with pytest.raises(ValueError, match=r"its first line holds names \(user_id, item_id, ts, click\).*leave"):
        sample_file(tmp_path / "named.csv", ["user_id", "item_id", "when", "what"])
    with pytest.raises(ValueError, match=r"a line of names stands at the top; leave a, b, c, d out"):
        sample_file(tmp_path / "named.csv", ["a", "b", "c", "d"])
    pq.write_table(read_table(tmp_path / "named.csv"), tmp_path / "e.parquet")
    with pytest.raises(ValueError, match="parquet has names of its own"):
        sample_file(tmp_path / "e.parquet", NAMES)
    with pytest.raises(ValueError, match=r"^--items-names a,b: of a file that is not given: --items FILE"):
        guess_files(path, names={"events": NAMES, "items": ["a", "b"]})
    (tmp_path / "films.dat").write_text("1::Heat (1995)::1995\n2::Babe (1995)::1995\n")
    with pytest.raises(ValueError, match=r"such as lmctr init FILE --items \S*films.dat --items-names c1..c3 "):
        guess_files(path, tmp_path / "films.dat", names={"events": NAMES})
    with pytest.raises(ValueError, match="names: each column has a name of its own, and 'a' stands twice"):
        load_log(path, columns={"user": "a", "item": "b", "time": "c", "label": "d"}, names=["a", "b", "c", "a"])


def test_a_first_line_of_names_stands_for_those_given(tmp_path):
    """What is scored may have a line of names where the file of training has none."""
    path = tmp_path / "pairs.csv"
    path.write_text("item_id,user_id,note\n5,7,x\n6,8,y\n")
    assert read_table(path, names=NAMES).to_pydict() == {"item_id": [5, 6], "user_id": [7, 8], "note": ["x", "y"]}
    (rows,) = stream_file(path, {"user_id": "text"}, names=NAMES)
    assert rows.table.to_pydict() == {"user_id": ["7", "8"]}
    path.write_text("click\n1\n")  # nothing else
    assert read_table(path, names=NAMES).to_pydict() == {"click": [1]}
    path.write_text("1,2,3,click\n4,5,6,click\n")  # one of the cells is a value
    assert read_table(path, names=NAMES).num_rows == 2


def test_rows_that_end_in_a_delimiter_beside_names(tmp_path):
    path = tmp_path / "e.tsv"
    path.write_text("7\t8\t\n7\t9\t\n")
    for found in (read_table(path, names=["a", "b"]), next(stream_file(path, names=["a", "b"])).table):
        assert found.column_names == ["a", "b", ""]
    path.write_text("7\t8\t\n7\t9\t1\n")
    with pytest.raises(ValueError, match=r"2 names .*3 columns"):
        read_table(path, names=["a", "b"])


def test_two_signs_part_columns(tmp_path):
    path = tmp_path / "movies.dat"
    path.write_text('1::"Great" Film: 2, or 3 (1995)::Drama|War\n2::Cats: "x::Drama\n' * 20)
    assert delimiter_of(path) == "::"
    names = ["item", "title", "genres"]
    whole = read_table(path, names=names, delimiter="::")
    assert whole["title"].to_pylist()[:2] == ['"Great" Film: 2, or 3 (1995)', 'Cats: "x']
    assert next(stream_file(path, names=names)).table.to_pydict() == whole.to_pydict()
    path.write_text("1::2::3\n4::5\n")
    for read in (
        lambda: read_table(path, names=names, delimiter="::"),
        lambda: list(stream_file(path, names=names, delimiter="::")),
    ):
        with pytest.raises(ValueError, match="row 2: Expected 3 columns, got 2: 4::5"):
            read()
    path.write_text("fe80::1,5\nfe80::2,6\n")  # addresses
    assert delimiter_of(path) == ","


def test_conversion_writes_the_names(tmp_path, capsys):
    path = nameless(tmp_path / "u.data", table(), "\t")
    output = tmp_path / "u.parquet"
    assert main(["data", "convert", str(path), "--names", ",".join(NAMES), "--output", str(output)]) == 0
    assert pq.read_table(output).to_pydict() == {name: [*map(int, values)] for name, values in table().items()}
    assert main(["data", "convert", str(path), "--names", "a,b", "--output", str(output)]) == 2
    assert "2 names (a, b), and the first row has 4 columns" in capsys.readouterr().err
    assert main(["data", "convert", str(path), "--names", "a", "--output", str(output)]) == 2
    assert "1 names (a), and the first row has 4 columns" in capsys.readouterr().err


def test_bars_part_a_file_that_is_called_as_recboles_are(tmp_path):
    films = {"item": range(30), "title": [f"film, {row}" for row in range(30)], "war": [row % 2 for row in range(30)]}
    path = nameless(tmp_path / "u.item", films, "|")
    assert sample_file(path, [*films]).reading == {"names": [*films], "delimiter": "|"}
    events = nameless(tmp_path / "u.data", table(), "\t")
    guess = guess_files(events, path, names={"events": NAMES, "items": [*films]})
    log = load_log(events, **guess.options())
    assert log.catalogue["title"].to_pylist() == films["title"]
    one = nameless(tmp_path / "e.tsv", {"a": ["x, y"] * 5, "b": ["u, v"] * 5}, "\t")
    assert sample_file(one, ["a", "b"]).table["b"].to_pylist() == ["u, v"] * 5


def test_a_table_of_names_given(tmp_path):
    columns = clicks()
    path = nameless(tmp_path / "train.txt", columns, "\t")
    guess = guess_files(path, names={"events": [*columns]})
    assert guess.is_table
    source = load_tabular(path, **guess.options())
    assert sum(len(rows) for rows in source.rows({"clicked": "any"}, None)) == ROWS
    assert source.reading == {"names": [*columns]}


def test_a_sample_of_a_file_without_names_is_read_by_its_schema(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = table(price=["3,5", "?", "12,0", "7,25"] * (ROWS // 4))
    nameless(tmp_path / "u.data", columns, ";")
    assert main(["init", "u.data", "--names", ",".join(columns), "--output", "own", "--yes"]) == 0
    assert yaml.safe_load((tmp_path / "own/schema.yaml").read_text())["events"] == {
        "path": "../u.data", "names": [*columns], "delimiter": ";", "decimal": ",", "na_values": ["?"]
    }  # fmt: skip
    found = []
    for name in ("half.parquet", "half.csv"):
        assert main(["data", "sample", "own/schema.yaml", "--share", "0.5", "--output", name]) == 0
        found.append(load_log("own/schema.yaml", path=name))
    assert 0 < found[0].num_events < ROWS
    assert np.array_equal(found[0].time, found[1].time)
    assert found[0].context["price"].to_pylist() == found[1].context["price"].to_pylist()
    assert found[0].context["price"].null_count
    nameless(tmp_path / "ratings.dat", table(), "::")
    assert main(["init", "ratings.dat", "--names", ",".join(NAMES), "--output", "two", "--yes"]) == 0
    assert main(["data", "sample", "two/schema.yaml", "--share", "0.5", "--output", "other.csv"]) == 2
    assert "'::' parts; give a .parquet file" in capsys.readouterr().err


def test_a_line_of_names_within_the_file_is_told(tmp_path):
    write(tmp_path / "e.csv", table())
    text = (tmp_path / "e.csv").read_text()
    (tmp_path / "both.csv").write_text(text + text)
    with pytest.raises(ValueError, match=rf"both\.csv, row {ROWS + 1}: the names of the columns again"):
        sample_file(tmp_path / "both.csv")


def test_a_separator_at_the_end_of_each_row_alone(tmp_path):
    write(tmp_path / "e.dat", table(), "\t")
    names, *rows = (tmp_path / "e.dat").read_text().splitlines()
    (tmp_path / "e.dat").write_text("\n".join([names, *(f"{row}\t" for row in rows)]) + "\n")
    guess = guess_log(sample_file(tmp_path / "e.dat"))
    assert any("behind a last separator" in line for line in guess.lines())
    assert len(load_log(tmp_path / "e.dat", columns=guess.schema["columns"], delimiter="\t").label) == ROWS
    (tmp_path / "e.dat").write_text("\n".join([names, *(f"{row}\t7" for row in rows)]) + "\n")
    with pytest.raises(ValueError, match="row 1: Expected 4 columns, got 5"):
        sample_file(tmp_path / "e.dat")


def test_a_file_without_a_line_of_names_says_so(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text("1,17,0.5,68fd1e64\n0,18,,68fd1e64\n")
    with pytest.raises(ValueError, match="Its first line holds values, no column names"):
        sample_file(path)
    for text in ("1,17,17,0.5\n0,18,18,0.2\n", "b,30.8,g,t,t,g,+\na,58.6,g,t,f,g,+\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"duplicate columns.*first line holds values.*`names:`"):
            sample_file(path)


def test_names_in_two_lines_and_places_as_names(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text("a,X1,X2,Y\nkind,AGE,SUM,default\nb,17,0.5,1\nc,18,,0\n")
    with pytest.raises(
        ValueError,
        match=r"e\.csv, row 1: 'AGE', 'SUM', 'default' \.\.\., and numbers below, .* delete one of the two lines",
    ):
        sample_file(path)
    path.write_text("size,1,2,click\nunknown,3,4,0\n5,6,7,1\n")  # one text among numbers is a value
    assert sample_file(path).table.num_rows == 2
    for names in (
        "1,2,history,4,age",
        "0,1,history,3,age",
        "0,1,2,3,4",
    ):  # as pandas writes where some names were lacking
        path.write_text(f"{names}\n7,1,2,3,4\n8,1,2,3,5\n")
        assert sample_file(path).table.column_names == names.split(",")
    path.write_text("1,2,3,4,5\n7,1,2,3,4\n")
    with pytest.raises(ValueError, match="Its first line holds values, no column names"):
        sample_file(path)


def test_a_first_row_of_words_is_no_header(tmp_path):
    rows = [(f"{row}", f"U{row % 9}", f"11/{9 + row % 9}/2019 9:05:58 AM", "N1 N2") for row in range(ROWS)]
    (tmp_path / "e.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="Its first line holds values, no column names"):
        sample_file(tmp_path / "e.tsv")
    sample = write(
        tmp_path / "f.csv",
        {
            "click": ["click", "skip"] * (ROWS // 2),
            "size": ["big", "size"] * (ROWS // 2),
            "x": [1] * ROWS,
            "y": [2] * ROWS,
            "z": [2] * ROWS,
        },
    )
    assert sample.table.num_rows == ROWS


def test_what_is_said_of_a_name_over_two_lines_is_one_line(tmp_path):
    """The lines stand in the schema's file as comments."""
    guess = guess_log(write(tmp_path / "e.csv", table(**{'"a\nb"': ["x", "y"] * (ROWS // 2)})))
    (line,) = [line for line in guess.lines() if "2 categories" in line]
    assert "a\\nb" in line
    assert "\n" not in line


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_that_stand_in_quotes_are_told_with_the_command(tmp_path, capsys, end):
    plain = write(tmp_path / "e.csv", clicks(ts=[1_700_000_000 + 60 * row for row in range(ROWS)]))
    text = (tmp_path / "e.csv").read_text()
    lines = [f'"{line.replace(chr(34), chr(34) * 2)}"' for line in text.splitlines()]
    (tmp_path / "quoted.csv").write_bytes(("\ufeff" + end.join(lines) + end).encode())
    assert main(["init", str(tmp_path / "quoted.csv"), "--output", str(tmp_path / "own")]) == 2
    error = capsys.readouterr().err
    assert "every line stands in quotes, as one text ('" in error
    command = error.split("take the quotes away: ")[1]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "plain.csv").read_text().lstrip("\ufeff") == text
    assert plain.path
    with pytest.raises(ValueError, match="every line stands in quotes"):
        list(stream_file(tmp_path / "quoted.csv", {}))
    with pytest.raises(ValueError, match="every line stands in quotes"):
        read_table(tmp_path / "quoted.csv")
    (tmp_path / "texts.csv").write_text('"said, or so"\n"yes, I do"\n"no"\n')
    assert read_table(tmp_path / "texts.csv").column_names[0] == "said, or so"
