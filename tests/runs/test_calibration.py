"""`training.calibration`: the intercept that makes the probabilities of validation sum up to its clicks."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.special import expit
from tiny_backbones import TINY_BERT

import lmctr
from lmctr.cli.main import main
from lmctr.hub.model_card import build_card

LOG = {"num_users": 60, "num_items": 40, "events_per_user": 50, "num_topics": 2}
TABLE = {"num_rows": 4000, "num_categorical": 3, "num_numeric": 2, "num_pairs": 2, "vocab_size": 60}
TRAINING = {"use_cpu": True, "seed": 3, "max_steps": 4, "per_device_train_batch_size": 64, "calibration": "intercept"}
RECIPES = {
    "table": {
        "data": {"name": "synthetic_table", "options": {**TABLE, "positive_rate": 0.08}},
        "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [16]},
    },
    "sequence": {
        "data": {"name": "synthetic_sequence", "options": LOG, "tasks": ["label", "like"], "statistics": "basic"},
        "model": {"family": "din", "embedding_dim": 4},
    },
    "text": {
        "data": {"name": "synthetic", "options": {**LOG, "num_users": 30, "num_items": 100}, "num_behaviors": 3},
        "model": {"family": "ctr_sink", "backbone": TINY_BERT, "tokenizer": {"type": "wordpiece", "vocab_size": 300}},
    },
}


def trained(kind, folder, **training):
    recipe = {**RECIPES[kind], "training": {**TRAINING, "linear_start": "zero", **training}}
    return lmctr.runs.train(recipe, output_dir=folder, overrides={"data.baselines": False})


def columns(run, part):
    """Logits and labels (S, T) of a part."""
    table = pq.read_table(run.path / "predictions" / f"{part}.parquet")
    names = [name for name in table.column_names if name.startswith("logit")]
    return [
        np.stack([table[name.replace("logit", of)].to_numpy() for name in names], 1).astype(float)
        for of in ("logit", "label")
    ]


@pytest.mark.parametrize("kind", RECIPES)
def test_probabilities_of_validation_sum_up_to_its_clicks(tmp_path, kind):
    run, plain = trained(kind, tmp_path / "run"), trained(kind, tmp_path / "plain", calibration="none")
    added = run.model.config.calibration
    assert added == run.metrics["calibration"]
    assert plain.model.config.calibration is None
    assert min(map(abs, added)) > 0.02  # four steps leave much to do
    logits, labels = columns(run, "validation")
    known = labels >= 0
    for task, own in enumerate(added):
        excess = (expit(logits[:, task]) - labels[:, task])[known[:, task]].sum()
        assert excess + 4 * own == pytest.approx(0, abs=0.05)  # and what few samples cannot tell is taken for nothing
    for part in ("validation", "test"):
        np.testing.assert_allclose(columns(run, part)[0], columns(plain, part)[0] + added, atol=1e-5)
    assert run.metrics["validation"]["log_loss"] < plain.metrics["validation"]["log_loss"]
    assert run.metrics["validation"]["auc"] == pytest.approx(plain.metrics["validation"]["auc"])
    assert f"{added[0]:+.3f}" in str(build_card(run.path))
    assert main(["export", str(run.path), "--format", "torch", "--output", str(tmp_path / "graph")]) == 0


@pytest.mark.parametrize("kind", ["sequence", "text"])
def test_one_users_candidates_are_scored_by_it_too(tmp_path, kind):
    event = {
        "sequence": {"item": 3, "time": 1_700_000_000, "behavior": "like", "label": 1},
        "text": {"item": 3, "text": "Crime", "time": 1_700_000_000, "feedback": "chosen"},
    }[kind]
    candidates = [{"item": 5, "text": "Crime"}, {"item": 6, "text": "Romance"}]
    if kind == "sequence":
        candidates = [{"item": own["item"]} for own in candidates]
    run = trained(kind, tmp_path / "run")
    with_it = run.score([event], candidates, 1_700_003_600)
    added, run.model.config.calibration = run.model.config.calibration, None
    without = run.score([event], candidates, 1_700_003_600)
    np.testing.assert_allclose((with_it - without).reshape(2, -1), [added] * 2, atol=1e-5)


def test_a_refit_and_a_run_that_goes_on_keep_it(tmp_path):
    plain, run = trained("sequence", tmp_path / "plain"), trained("sequence", tmp_path / "run", refit=True)
    assert run.metrics["calibration"] == plain.metrics["calibration"] == run.model.config.calibration
    assert not torch.equal(run.model.head.weight, plain.model.head.weight)
    second = {"from_run": str(run.path), "learning_rate": 0.0, "refit": False}
    kept = trained("sequence", tmp_path / "kept", calibration="none", **second)
    assert kept.model.config.calibration == run.model.config.calibration
    again = trained("sequence", tmp_path / "again", **second)
    logits, labels = columns(kept, "validation")
    before = abs((expit(logits) - labels)[:, 0].sum())
    logits, labels = columns(again, "validation")
    assert abs((expit(logits) - labels)[:, 0].sum()) < before


def test_what_calibrates_nothing():
    with pytest.raises(ValueError, match="calibration must be 'none' or 'intercept', got 'platt'"):
        lmctr.CTRTrainingArguments("out", calibration="platt")


def test_impressions_are_not_calibrated(tmp_path):
    recipe = {"data": {"name": "synthetic_cascade"}, "model": {"family": "retrieval_mlp"}, "training": TRAINING}
    with pytest.raises(
        ValueError, match=r"training\.calibration is 'intercept', accepted: 'none'; logits of impressions"
    ):
        lmctr.runs.train(recipe, output_dir=tmp_path / "run")
