"""Users or items whose column is called as one of the output's own is."""

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest

from lmctr.cli.main import main

ROWS = 400


@pytest.mark.parametrize(("user", "item"), [("row", "rank"), ("logit", "error"), ("probability", "thing")])
def test_ids_stay_in_the_output(tmp_path, monkeypatch, capsys, user, item):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    columns = {user: rng.integers(100, 120, ROWS), item: rng.integers(200, 230, ROWS)}
    rows = pd.DataFrame({**columns, "time": 1_600_000_000 + 60 * np.arange(ROWS), "click": rng.integers(0, 2, ROWS)})
    rows.to_csv("log.csv", index=False)
    short = ["--training.epochs", "1", "--training.use_cpu", "true", "--training.boosting_share", "0"]
    named = ["--user", user, "--item", item]
    assert main(["train", "log.csv", "--model", "din", *named, "--output-dir", "run", *short]) == 0
    capsys.readouterr()
    shown = {"user": f"user_{user}", "item": item if item == "thing" else f"item_{item}"}
    assert main(["predict", "run", "--input", "log.csv", "--output", "scores.csv"]) == 0
    assert f"the column {user!r} is {shown['user']!r} in the output" in capsys.readouterr().err
    scores = pyarrow.csv.read_csv("scores.csv")
    assert scores.column_names == ["row", *shown.values(), "logit", "probability"]
    for role, own in (("user", user), ("item", item)):
        assert scores[shown[role]].to_pylist() == columns[own].tolist()
    rows.head(5)[[user]].to_csv("users.csv", index=False)
    assert main(["recommend", "run", "--users", "users.csv", "--top", "2", "--output", "best.csv"]) == 0
    assert f"the column {user!r} is {shown['user']!r} in the output" in capsys.readouterr().err
    best = pyarrow.csv.read_csv("best.csv")
    assert best.column_names == ["row", shown["user"], "rank", shown["item"], "logit", "probability"]
    assert best["rank"].to_pylist() == [1, 2] * 5
    assert best["row"].to_pylist() == np.repeat(np.arange(1, 6), 2).tolist()
    assert best[shown["user"]].to_pylist() == np.repeat(columns[user][:5], 2).tolist()
