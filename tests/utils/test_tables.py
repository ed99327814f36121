import csv

import pytest

from lmctr.utils.tables import markdown_table, read_csv, spread_cells, text_table, write_csv

TABLE = [["", "AUC", "samples"], ["a|b", "0.7100", "1,000"], ["long name", "-", "2"]]


def test_text_is_aligned_and_without_trailing_spaces():
    assert text_table(TABLE).splitlines() == [
        "              AUC  samples",
        "a|b        0.7100    1,000",
        "long name       -        2",
    ]
    assert text_table([["a", "b"], ["long", "x"]], left=(0, 1)) == "a     b\nlong  x"


def test_markdown_escapes_bars():
    assert markdown_table(TABLE, left=(0, 2)).splitlines() == [
        "|  | AUC | samples |",
        "| --- | ---: | --- |",
        "| a\\|b | 0.7100 | 1,000 |",
        "| long name | - | 2 |",
    ]


def test_cells_of_means():
    assert spread_cells({"a": (0.5, None), "b": (0.25, 0.125)}, ["b", "a", "c"]) == ["0.2500 ± 0.1250", "0.5000", "-"]


def test_csv_holds_all_columns_of_all_rows(tmp_path):
    path = write_csv(tmp_path / "x.csv", [{"a": 1, "b": None}, {"c": 1 / 3, "a": "é, x"}], digits=3)
    assert path.read_bytes() == 'a,b,c\r\n1,,\r\n"é, x",,0.333\r\n'.encode()
    write_csv(path, [{"a": 1 / 3}], line_end="\n")
    assert path.read_bytes() == f"a\n{1 / 3!r}\n".encode()
    with open(path, newline="") as file:
        assert float(next(csv.DictReader(file))["a"]) == 1 / 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"name,gain,cost\na,3,4\na,1,000,4\n", "line 3: 4 values for 3 columns; write numbers with a decimal point"),
        (b"name,gain,cost\na,0,5,4\n", "line 2: 4 values for 3 columns; .* without thousand separators"),
        (b"gain,gain,cost\n1,2,3\n", "has two columns 'gain'"),
        (b"\x89PNG\r\n\xff\xfe\n", "t.csv is no CSV file in UTF-8: "),
        (b"name,gain,cost\na,1\n", "line 2: cost is no number: None"),
    ],
)
def test_csv_rows_that_do_not_fit_the_header_are_refused(tmp_path, content, words):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_csv(path, numbers=["gain", "cost"])


def test_csv_values_in_quotes_and_columns_without_a_name(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(',"name","gain",\n0,"a, b",1.5,\n')
    assert read_csv(path, ["name"], ["gain"]) == [{"name": "a, b", "gain": 1.5}]
