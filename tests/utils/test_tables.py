import csv

from lmctr.utils.tables import markdown_table, spread_cells, text_table, write_csv

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
