"""A row's weight: 2 is the row twice, 0 the row left out."""

import numpy as np
import pandas as pd
import pytest
from toy_training import ToyDataset, make_trainer

import lmctr


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
