"""A served table whose recipe joins files: requests give ids, as the rows of `lmctr predict` and of the pipeline do."""

import io
import json
import pickle

import numpy as np
import pandas as pd
import pytest
from served_runs import live
from transformers import pipeline

import lmctr
from lmctr.cli.main import main
from lmctr.runs.answers.served import ServedModel
from lmctr.server.options import ServeOptions
from lmctr.server.running import _load

FIELDS = """
label: click
fields:
- {name: ad, type: categorical}
- {name: hour, type: categorical}
- {name: price, type: numeric}
- {name: topics, type: sequence, max_length: 3, separator: "|"}
- {name: age, type: numeric}
- {name: city, type: categorical}
joined:
- {path: ads.csv, by: ad}
- {path: users.csv, by: user, id: who, columns: [age, city]}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("shop"), np.random.default_rng(0)
    rows = {"user": draw.integers(1, 20, 400), "ad": draw.integers(100, 130, 400), "hour": draw.integers(0, 24, 400)}
    pd.DataFrame({**rows, "click": draw.integers(0, 2, 400)}).to_csv(folder / "rows.csv", index=False)
    topics = ["|".join(draw.choice(["a", "b", "c"], 2)) for _ in range(30)]
    ads = pd.DataFrame({"ad": range(100, 130), "price": draw.random(30).round(2), "topics": topics})
    ads.to_csv(folder / "ads.csv", index=False)
    people = {"who": range(1, 20), "age": draw.integers(18, 80, 19), "city": [f"c{n % 5}" for n in range(19)]}
    pd.DataFrame(people).to_csv(folder / "users.csv", index=False)
    (folder / "shop.yaml").write_text(f"name: shop\nfiles: rows.csv\n{FIELDS}")
    recipe = {
        "data": {"name": str(folder / "shop.yaml"), "baselines": False},
        "model": {"family": "deepfm", "embedding_dim": 4, "hidden_units": [8], "initializer_range": 0.5},
        "training": {"epochs": 1, "per_device_train_batch_size": 100},
    }
    return lmctr.runs.train(recipe, output_dir=folder / "run"), folder


def test_requests_with_ids_are_scored_as_rows_of_predict(run):
    """Whole rows, and columns in common; ids that no file has, missing ones, and columns that a row has itself."""
    run, folder = run
    rows = [{"user": 3, "ad": 100 + n, "hour": 5} for n in range(4)]
    rows += [
        {"user": "7", "ad": "104", "hour": "6"},
        {"user": 99, "ad": 999, "hour": 1},
        {"user": None, "ad": None, "hour": 2},
    ]
    pd.DataFrame(rows).to_csv(folder / "asked.csv", index=False)
    expected = run.predict(pd.read_csv(folder / "asked.csv", dtype=str))
    own = [{"user": 3, "ad": 101, "hour": 5, "price": 7.5, "topics": ["a"], "age": 44, "city": "c1"}]
    with live(run.path) as server:
        scored = lambda body: server.score(body)["logits"]  # noqa: E731
        np.testing.assert_allclose(scored({"rows": rows}), expected, atol=1e-5)
        for shared in (["user", "hour"], ["user"], ["hour"]):
            candidates = [{name: row[name] for name in row if name not in shared} for row in rows[:4]]
            found = scored({"shared": {name: rows[0][name] for name in shared}, "candidates": candidates})
            np.testing.assert_allclose(found, expected[:4], atol=1e-5)
        np.testing.assert_allclose(scored({"rows": own}), run.predict(own), atol=1e-5)
        cheap = [{**rows[1], "price": 7.5, "city": "c1"}]  # the others from the files
        assert scored({"rows": cheap}) == pytest.approx(run.predict([{**own[0], **_of(folder, cheap[0])}]), abs=1e-5)
        for body, message in (
            (
                {"rows": [rows[0], {"user": 3, "hour": 5}]},
                "rows[1]: no column 'ad', by which 'price', 'topics' are known",
            ),
            ({"rows": [{**rows[0], "ad": [101]}]}, "column 'ad': got [101]; accepted: one id of ads.csv"),
            ({"shared": {}, "candidates": [rows[0], {"ad": 1}]}, "candidates[1]: no column 'user', by which"),
            ({"rows": [{"hour": 5}]}, "rows[0]: no column 'ad', 'price'"),
        ):
            response = server.post("/v1/score", body)
            assert response.status_code == 400
            assert message in response.json()["error"]["message"]


def test_standard_input_and_the_pipeline_take_rows_with_ids_too(run, monkeypatch, capsys):
    """As files do, also where there are more rows than are read at a time."""
    run, _ = run
    rows = [{"user": n % 22, "ad": 100 + n % 33, "hour": n % 24} for n in range(40)]
    expected = run.predict(pd.DataFrame(rows))
    assert np.ptp(expected) > 1e-3
    monkeypatch.setattr("lmctr.runs.answers.tables._LINES_AT_A_TIME", 16)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(row) + "\n" for row in rows)))
    assert main(["predict", str(run.path), "--input", "-"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["row"] for one in found] == [*range(1, 41)]
    np.testing.assert_allclose([one["logit"] for one in found], expected, atol=1e-5)
    pipe = pickle.loads(pickle.dumps(pipeline("click-prediction", model=str(run.path))))
    for some in (rows, pd.DataFrame(rows), iter(rows)):
        np.testing.assert_allclose([one["logit"] for one in pipe(some)], expected, atol=1e-5)
    monkeypatch.setattr("sys.stdin", io.StringIO('{"hour": 5}\n'))
    assert main(["predict", str(run.path), "--input", "-"]) == 2
    assert "standard input: row 1: no column 'ad', 'user'" in capsys.readouterr().err


def _of(folder, row):
    ad = pd.read_csv(folder / "ads.csv").set_index("ad").loc[row["ad"]]
    user = pd.read_csv(folder / "users.csv").set_index("who").loc[row["user"]]
    return {"topics": ad["topics"], "age": int(user["age"])}


def test_files_are_those_of_the_start_and_what_is_not_there_is_told(run, capsys):
    run, folder = run
    rows, own = [{"user": 3, "ad": 101, "hour": 5}], [{"user": 3, "ad": 101, "hour": 5, "topics": "a"}]
    whole = (folder / "ads.csv").read_bytes()
    try:
        with live(run.path) as server:
            before = server.score({"rows": rows})["logits"]
            expected = run.predict(own)
            ads = pd.read_csv(folder / "ads.csv")
            ads["price"] += 3
            ads.to_csv(folder / "ads.csv", index=False)
            assert server.score({"rows": rows})["logits"] == before
            np.testing.assert_allclose(server.score({"rows": own})["logits"], expected, atol=1e-5)
            server.engine.swap(ServedModel(str(run.path)))  # as SIGHUP does
            after = server.score({"rows": rows})["logits"]
            assert after != before
            assert after == pytest.approx(lmctr.runs.load(run.path).predict(rows), abs=1e-5)
        (folder / "ads.csv").unlink()
        assert _load(ServeOptions(str(run.path))).joined == ()
        told = capsys.readouterr().err
        assert "warning: rows need all columns, none is joined: " in told
        assert "ads.csv" in told
    finally:
        (folder / "ads.csv").write_bytes(whole)
