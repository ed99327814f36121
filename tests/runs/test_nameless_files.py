"""Files without a line of names, from `lmctr train FILE --names` to scores."""

import numpy as np
import pytest
import yaml

import lmctr
from lmctr.cli.main import main

ROWS = 600
NAMES = "user,item,rating,time"
FEW = ["--training.epochs", "1", "--training.use_cpu", "true", "--training.boosting_share", "0"]


def _write(path, rows, delimiter):
    path.write_text("".join(delimiter.join(map(str, row)) + "\n" for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("nameless"), np.random.default_rng(0)
    rows = [(rng.integers(20), rng.integers(30), rng.integers(1, 6), 1_600_000_000 + 60 * row) for row in range(ROWS)]
    rows[0] = (7, 7, 3, 1_600_000_000)  # no two columns are called 7
    _write(folder / "ratings.dat", rows, "::")
    _write(folder / "pairs.tsv", [(user, item, time + 99_999) for user, item, _, time in rows[:9]], "\t")
    named = [("time", "item", "user"), *((time + 99_999, item, user) for user, item, _, time in rows[:9])]
    _write(folder / "pairs.csv", named, ",")
    _write(folder / "films.dat", [(item, f"film: {item}", "War|Drama") for item in range(30)], "::")
    return folder


@pytest.mark.parametrize("family", ["din", "deepfm"])
def test_rows_of_a_log_are_read_as_its_file_was(folder, monkeypatch, capsys, family):
    monkeypatch.chdir(folder)
    films = ["--items", "films.dat", "--items-names", "item,title,genres"]
    run = f"runs/{family}"
    train = ["train", "ratings.dat", "--names", NAMES, *films, "--model", family, "--output-dir", run]
    assert main([*train, *FEW]) == 0
    options = yaml.safe_load((folder / run / "recipe.yaml").read_text())["data"]["options"]
    assert options["names"] == NAMES.split(",")
    assert options["catalogue"]["names"] == ["item", "title", "genres"]
    capsys.readouterr()
    day = folder / "day.dat"  # of the same form
    day.write_text("".join((folder / "ratings.dat").read_text().splitlines(True)[-5:]))
    assert main(["predict", run, "--input", "day.dat", "--output", "day.csv"]) == 0
    assert len((folder / "day.csv").read_text().splitlines()) == 6
    assert main(["predict", run, "--input", "pairs.tsv"]) == 2
    assert "4 names (user, item, rating, time), and the first row has 3 columns" in capsys.readouterr().err
    assert main(["predict", run, "--input", "pairs.tsv", "--names", "user,item,time", "--output", "a.csv"]) == 0
    assert main(["predict", run, "--input", "pairs.csv", "--output", "b.csv"]) == 0  # which has a line of names
    assert (folder / "a.csv").read_text() == (folder / "b.csv").read_text()
    best = lmctr.runs.load(run).recommend("day.dat", top=2)  # ranked at the time of each row
    assert best["row"].to_pylist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert np.isfinite(lmctr.runs.load(run).predict("day.dat")).all()


def test_rows_of_a_table_are_read_as_its_file_was(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [(rng.integers(2), rng.integers(9), f"{rng.integers(12):x}", "") for _ in range(ROWS)]
    _write(tmp_path / "train.txt", rows, "\t")
    _write(tmp_path / "test.txt", [row[1:] for row in rows[:7]], "\t")
    _write(tmp_path / "day.txt", rows[:7], "\t")
    train = ["train", "train.txt", "--names", "label,I1,C1,C2", "--model", "deepfm", "--output-dir", "runs/one"]
    assert main([*train, *FEW]) == 0
    capsys.readouterr()
    assert main(["predict", "runs/one", "--input", "day.txt", "--output", "a.csv"]) == 0
    assert main(["predict", "runs/one", "--input", "test.txt"]) == 2
    assert "4 names (label, I1, C1, C2), and the first row has 3 columns" in capsys.readouterr().err
    assert main(["predict", "runs/one", "--input", "test.txt", "--names", "I1,C1..C2", "--output", "b.csv"]) == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 8
