"""Files whose lines are no rows of a table."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from guess_logs import table, write

from lmctr.cli.main import main
from lmctr.data import InteractionLog, load
from lmctr.data.guess import sample_file
from lmctr.data.tables import reading


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


def behaviors(path, header="", users=29):
    """MIND's impressions, of which every user's rows have one history but for the last user's."""
    rng, rows = np.random.default_rng(0), []
    for row in range(300):
        shown = " ".join(f"N{item}-{int(rng.random() < 0.3)}" for item in rng.choice(20, 4, replace=False))
        user = row % users
        history = " ".join(f"N{item}" for item in range(30, 30 + user % 4))
        if user == users - 1 and row % 2:
            history += " N99"
        time = f"11/{14 - row // 60}/2019 {1 + row // 30 % 11}:05:{row % 60:02d} PM"  # the latest rows first
        rows.append([f"{row + 1}", f"U{user}", time, history, shown])
    path.write_text(header + "".join("\t".join(row) + "\n" for row in rows))
    return rows


def rows_by_hand(rows):
    """The events as a loop finds them: (user, item, time, clicked)."""
    found, first = [], {}
    for row in rows:
        time = pd.to_datetime(row[2], format="%m/%d/%Y %I:%M:%S %p")
        if row[1] not in first or time < first[row[1]][0]:
            first[row[1]] = (time, row[3].split())
        found += [(row[1], shown[:-2], time, float(shown[-1])) for shown in row[4].split()]
    for user, (time, history) in first.items():
        for place, item in enumerate(history):
            found.append((user, item, time - pd.Timedelta(seconds=len(history) - place), None))
    changed = sum(row[3].split() != first[row[1]][1] for row in rows)
    return pd.DataFrame(found, columns=["user", "item", "time", "clicked"]), changed


def converted(capsys, *arguments):
    code = main(["data", "convert", *arguments])
    told = capsys.readouterr()
    assert code == 0, told.err
    return told.out


@pytest.mark.parametrize("header", ["", "impression_id\tuser\ttime\thistory\tshown\n"])
@pytest.mark.parametrize("block", [None, 3000])
def test_impressions_in_one_cell_become_rows_with_the_history_in_front(tmp_path, monkeypatch, capsys, header, block):
    monkeypatch.chdir(tmp_path)
    if block is not None:
        monkeypatch.setattr(reading, "BLOCK_SIZE", block)
        monkeypatch.setitem(reading.stream_file.__kwdefaults__, "block_size", block)
    rows = behaviors(tmp_path / "behaviors.tsv", header)
    with pytest.raises(
        ValueError,
        match=r"column 5: whole impressions in one cell \(N\d+-[01] .*data convert .*behaviors\.tsv --output",
    ):
        sample_file("behaviors.tsv")
    told = converted(capsys, "behaviors.tsv", "--output", "rows.parquet")
    found, (expected, changed) = pd.read_parquet("rows.parquet"), rows_by_hand(rows)
    clicks = int(expected["clicked"].isna().sum())
    assert f"{clicks} clicks of 'history' stand before their user's first row" in told
    assert f"; rows whose history is another than that row's ({changed}) add none" in told
    assert list(found.columns) == ["impression_id", "user", "item", "time", "clicked", "event"]
    keys = ["user", "item", "time", "clicked"]
    ordered = [own[keys].sort_values(keys).reset_index(drop=True) for own in (found, expected)]
    pd.testing.assert_frame_equal(*ordered, check_dtype=False)
    assert (found["event"] == np.where(found["clicked"] == 0, "skip", "click")).all()
    assert (found["impression_id"].isna() == found["clicked"].isna()).all()
    assert len(found[found["clicked"].notna()]) == 1200
    assert main(["init", "rows.parquet", "--yes"]) == 0
    assert "left out         impression_id" in capsys.readouterr().out
    log = load("rows/schema.yaml")
    assert isinstance(log, InteractionLog)
    assert (log.num_events, len(log.sample_events())) == (len(expected), 1200)
    kinds = [log.feedback_names[code] for code in log.feedback]
    assert [kind == "click" for kind in kinds] == (log.label != 0).tolist()  # those of the histories too
    assert log.label.max() == 1


def test_the_page_measures_within_impressions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("runs/mind/predictions").mkdir(parents=True)
    label, logit = [1, 0, 0, 1, 0, 1], [3.0, 1.0, 2.0, 0.0, 1.0, 9.0]
    scores = {"user": [1, 1, 1, 2, 2, 2], "time": [5, 5, 5, 5, 5, 6], "label": label, "logit": logit}
    pq.write_table(pa.table(scores), "runs/mind/predictions/test.parquet")
    page = (Path(__file__).parents[2] / "docs" / "own_data.md").read_text()
    exec(re.search(r"The AUC within each impression.*?```python\n(.*?)```", page, flags=re.S)[1], {})
    assert float(capsys.readouterr().out) == 0.5  # 1 and 0, and a list of clicks alone


def test_impressions_without_users_or_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = behaviors(tmp_path / "b.tsv")
    (tmp_path / "four.tsv").write_text("".join("\t".join(row[1:]) + "\n" for row in rows))
    assert main(["data", "convert", "four.tsv", "--output", "o.parquet"]) == 2
    assert (
        "impressions in column 4, and no line of names; say what the columns are: --names" in capsys.readouterr().err
    )
    told = converted(capsys, "four.tsv", "--names", "who,time,history,shown", "--output", "o.parquet")
    assert "'history' is left out: no column looks like the user" in told
    assert pq.read_table("o.parquet").num_rows == 1200
    assert main(["data", "convert", "four.tsv", "--names", "user,time,item,shown", "--output", "o.parquet"]) == 2
    assert "column 'item' would stand there twice" in capsys.readouterr().err


def test_quotes_that_part_nothing_are_signs_of_texts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [[f"N{row}", "news", 'a "b" c' if row % 7 else "\"He said, ''ok", "x"] for row in range(50)]
    Path("news.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    told = converted(capsys, "news.tsv", "--names", "item,category,title,kind", "--output", "news.parquet")
    assert "news.tsv: quotes are signs of its texts" in told
    assert pq.read_table("news.parquet")["title"].to_pylist() == [row[2] for row in rows]
    with pytest.raises(
        ValueError, match=r"news\.tsv: quotes that part nothing.*data convert news\.tsv --output news\.parquet"
    ):
        sample_file("news.tsv", ["item", "category", "title", "kind"])
    # rows between two of them would be one, with as many columns
    Path("even.csv").write_text("item,title,kind\n" + "".join(f'{row},"Title {row},x\n' for row in range(50)))
    converted(capsys, "even.csv", "--output", "even.parquet")
    assert pq.read_table("even.parquet")["title"].to_pylist() == [f'"Title {row}' for row in range(50)]
    Path("lines.csv").write_text("item,title\n" + "".join(f'{row},"a\nb, c\nd"\n' for row in range(50)))  # which part
    assert "quotes" not in converted(capsys, "lines.csv", "--output", "lines.parquet")
    assert pq.read_table("lines.parquet")["title"].to_pylist() == ["a\nb, c\nd"] * 50
    Path("odd.tsv").write_text("a\tb\n1\t2\n1\t2\t3\n" + '"\t1\n')  # nor without quotes
    assert main(["data", "convert", "odd.tsv", "--output", "o.parquet"]) == 2
    assert "Expected 2 columns, got 3" in capsys.readouterr().err


def test_codes_that_end_so_are_no_impressions(tmp_path):
    codes = [f"A-{row % 2}" for row in range(400)]
    assert write(tmp_path / "e.csv", table(code=codes)).distinct["code"] == 2
