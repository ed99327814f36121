"""A row's weight: 2 is the row twice, 0 the row left out."""

import json

import numpy as np
import pandas as pd
import pytest
from toy_training import ToyDataset, make_trainer

import lmctr
from lmctr.runs.folder import unlike_data


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (lambda click: ["much"] * len(click), r"column 'sample_weight': weights of type string are not accepted"),
        (lambda click: [None] * len(click), r"column 'sample_weight': 300 of 300 values are missing"),
        (lambda click: np.full(len(click), -1.0), r"column 'sample_weight': 300 of 300 values are no weights"),
        (lambda click: np.zeros(len(click)), r"sample_weight: rows of both values of y need a weight above 0"),
        (lambda click: click, r"sample_weight: rows of both values of y need a weight above 0"),
    ],
)
def test_weights_of_a_classifier_that_are_none(weight, message):
    rng = np.random.default_rng(0)
    click = rng.random(300) < 0.5
    with pytest.raises(ValueError, match=f"^{message}"):
        lmctr.CTRClassifier().fit(rng.random((300, 2)), click, sample_weight=weight(click))


def test_a_part_whose_rows_of_a_class_weigh_nothing_is_of_one_class(tmp_path):
    rng = np.random.default_rng(0)
    click = (rng.random(300) < 0.5).astype(int)
    rows = pd.DataFrame({"price": rng.random(300), "click": click, "w": click})
    with pytest.raises(
        ValueError, match=r"^the train part \(\d+ samples of a weight above 0\) has only the label 1; AUC needs"
    ):
        lmctr.runs.train(rows, model="deepfm", label="click", weight="w", output_dir=tmp_path / "run", quiet=True)
    dataset = ToyDataset(20, weighted=True)
    dataset.sample_weight *= dataset.labels == 0
    with pytest.raises(ValueError, match=r"eval_dataset \(\d+ samples of a weight above 0\) has only the label 0"):
        make_trainer(tmp_path, evaluation=dataset).train()


def test_a_run_knows_the_weights_of_its_log(tmp_path):
    """A training that is taken up again, and the mean of runs, are of one data: other weights are other data."""
    rng = np.random.default_rng(0)
    rows = {
        "user_id": rng.integers(0, 9, 200),
        "item_id": rng.integers(0, 9, 200),
        "ts": np.arange(200) + 1_600_000_000,
    }
    rows |= {"clicked": rng.integers(0, 2, 200), "w": rng.integers(1, 4, 200)}
    frame, found = pd.DataFrame(rows), []
    roles = "{user: user_id, item: item_id, time: {column: ts, unit: s}, label: clicked%s}"
    for name, weight in (("none", ""), ("one", ", weight: w"), ("other", ", weight: w")):
        frame.assign(w=frame["w"] + (name == "other") * (frame.index == 5)).to_csv(tmp_path / "log.csv", index=False)
        (tmp_path / "log.yaml").write_text(f"events: log.csv\ncolumns: {roles % weight}\n")
        recipe = {
            "data": {"name": str(tmp_path / "log.yaml"), "baselines": False},
            "model": {"family": "din", "embedding_dim": 2},
            "training": {"max_steps": 1},
        }
        run = lmctr.runs.train(recipe, output_dir=tmp_path / name, quiet=True)
        found.append(json.loads((run.path / "data.json").read_text()))
    assert "inputs_fingerprint" not in found[0]
    assert unlike_data(found[0], found[1]) is None, "a run of an earlier release has none"
    assert unlike_data(found[1], found[2]) == "inputs_fingerprint"
