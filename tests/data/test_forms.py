"""Files whose lines are no rows of a table."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from guess_logs import table, write

from lmctr.data import InteractionLog, load
from lmctr.data.guess import sample_file

PAGE = Path(__file__).parents[2] / "docs" / "own_data.md"


@pytest.mark.parametrize("line", ["{label} 3:1 11:0.5 14:-1e-3 ", "{label} 1:7:1 2:9:0.25"])
@pytest.mark.parametrize("rows", [1, 300])
def test_index_value_pairs_are_named(tmp_path, line, rows):
    path = tmp_path / "a9a.txt"
    path.write_text("".join(line.format(label="+1" if row % 3 else "-1") + "\n" for row in range(rows)))
    with pytest.raises(
        ValueError,
        match=r"a9a\.txt: a label and index:value pairs on each line, as LIBSVM.*lmctr data convert .*a9a.txt --output a9a.parquet",
    ):
        sample_file(path)


def test_times_and_texts_with_colons_are_no_pairs(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text("a b\n" + "1 12:30\n2 12:31\n" * 20)
    assert sample_file(path).table.column_names == ["a b"]
    path.write_text("7 1:2\n" * 20 + "7 x\n")
    with pytest.raises(ValueError, match="label and index:value"):
        sample_file(path)
    path.write_text("7 1:2\n" + "".join(f"{row} x\n" for row in range(20)))
    assert sample_file(path).table.num_rows == 20
    (tmp_path / "a9a.libsvm").write_text("1 1:2\n")
    with pytest.raises(
        ValueError, match=r"from the extension '\.libsvm'.*LIBSVM's or libffm's lines lmctr data convert"
    ):
        sample_file(tmp_path / "a9a.libsvm")


def test_lines_of_a_user_and_all_items_are_named(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("".join(" ".join(map(str, range(row, row + 2 + row % 5))) + " \n" for row in range(60)))
    with pytest.raises(
        ValueError, match=r"train\.txt: lines of more or fewer numbers, .*give each pair a line of its own"
    ):
        sample_file(path)
    path.write_text("".join(f"{row % 7} {row % 9}\n" for row in range(60)))  # as many on each
    assert sample_file(path, ["user", "item"]).rows == 60


def behaviors(path):
    rng = np.random.default_rng(0)
    rows = []
    for row in range(300):
        shown = " ".join(f"N{item}-{int(rng.random() < 0.3)}" for item in rng.choice(20, 4, replace=False))
        rows.append(
            [
                f"{row + 1}",
                f"U{row % 29}",
                f"11/{10 + row // 60}/2019 {1 + row // 30 % 11}:05:{row % 60:02d} AM",
                "N1 N2",
                shown,
            ]
        )
    path.write_text("".join("\t".join(row) + "\n" for row in rows))


def test_impressions_in_one_cell_are_named_and_become_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    behaviors(tmp_path / "behaviors.tsv")
    for names in (None, ["impression", "user", "time", "history", "shown"]):
        with pytest.raises(
            ValueError, match=r"column 5: whole impressions in one cell \(N\d+-[01] .*docs/own_data\.md"
        ):
            sample_file("behaviors.tsv", names)
    lines = re.search(r"## Impressions in one cell.*?```python\n(.*?)```", PAGE.read_text(), flags=re.S)[1]
    exec(lines, {})
    log = load("rows.csv")
    assert isinstance(log, InteractionLog)
    assert (log.num_events, log.num_users, log.num_items) == (1200, 29, 20)
    assert log.label.sum() == pd.read_csv("rows.csv")["clicked"].sum() > 0


def test_codes_that_end_so_are_no_impressions(tmp_path):
    codes = [f"A-{row % 2}" for row in range(400)]
    assert write(tmp_path / "e.csv", table(code=codes)).distinct["code"] == 2
