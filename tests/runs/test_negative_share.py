"""`data.negative_share`: a share of the negatives is trained on and counts for all of them."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from scipy.special import expit
from transformers import default_data_collator

import lmctr
from lmctr.models.common.base import IGNORED_LABEL
from lmctr.runs.inputs import input_of
from lmctr.runs.inputs.sequence import SequenceInput
from lmctr.runs.recipe import load_recipe
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.trainer import CTRTrainer

SHARE = 0.25
LOG = {"num_users": 60, "num_items": 40, "events_per_user": 50, "num_topics": 2}
TABLE = {
    "num_rows": 8000,
    "num_categorical": 3,
    "num_numeric": 2,
    "num_pairs": 2,
    "vocab_size": 60,
    "positive_rate": 0.08,
}
QUIET = {"use_cpu": True, "seed": 3, "epochs": 1, "per_device_train_batch_size": 64}
TEXT = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
RECIPES = {
    "table": {
        "data": {"name": "synthetic_table", "options": TABLE, "baselines": False},
        "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [16]},
        "training": {**QUIET, "learning_rate": 1e-2},
    },
    "log as table": {
        "data": {"name": "synthetic_sequence", "options": LOG, "baselines": False},
        "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [16]},
        "training": QUIET,
    },
    "sequence": {
        "data": {
            "name": "synthetic_sequence",
            "options": LOG,
            "baselines": False,
            "candidates_per_row": 4,
            "statistics": "basic",
            "tasks": ["label", "like"],
        },
        "model": {"family": "din", "embedding_dim": 4},
        "training": QUIET,
    },
    "text": {
        "data": {
            "name": "synthetic",
            "options": {**LOG, "num_users": 30, "num_items": 100},
            "baselines": False,
            "num_behaviors": 3,
        },
        "model": {"family": "ctr_sink", "backbone": TEXT, "tokenizer": {"type": "wordpiece", "vocab_size": 300}},
        "training": {key: value for key, value in QUIET.items() if key != "epochs"},
    },
}


def opened(kind, folder, **data):
    """A recipe's data, ready to be trained on."""
    view = input_of(load_recipe(RECIPES[kind], {f"data.{key}": value for key, value in data.items()}))
    view.load(folder)
    view.check()
    view.open(view.make_processor())
    return view


def positive(labels, rows):
    """Whether a sample has a positive label, over its tasks."""
    return (labels > 0).any(-1) if labels.ndim > rows.ndim else labels > 0


@pytest.mark.parametrize("kind", RECIPES)
def test_some_negatives_count_for_all(tmp_path, kind):
    whole, view = (opened(kind, tmp_path / str(share), negative_share=share) for share in (None, SHARE))
    every, drawn = whole.training_dataset(), view.training_dataset()
    is_positive = positive(every.labels, every.rows)
    assert set(drawn.events) < set(every.events)
    assert set(every.rows[is_positive]) <= set(drawn.events)
    negatives = (drawn.events.size - is_positive.sum()) / (every.events.size - is_positive.sum())
    assert negatives == pytest.approx(SHARE, abs=0.06)
    assert not hasattr(every, "loss_weight")
    assert drawn.loss_weight.shape == drawn.rows.shape
    assert drawn.loss_weight.dtype == np.float32
    np.testing.assert_array_equal(drawn.loss_weight, np.where(positive(drawn.labels, drawn.rows), 1, 1 / SHARE))
    for part in ("validation", "test"):
        np.testing.assert_array_equal(whole.dataset(part).events, view.dataset(part).events)


@pytest.mark.parametrize("kind", RECIPES)
def test_batches_of_a_training_have_the_weights(tmp_path, kind):
    view = opened(kind, tmp_path, negative_share=SHARE)
    args = CTRTrainingArguments(str(tmp_path / "run"), use_cpu=True, per_device_train_batch_size=32, stage2_epochs=1)
    model = view.model(view.make_processor())
    trainer = CTRTrainer(model, args, view.collator(False), view.training_dataset(), view.dataset("validation"))
    batch = next(iter(trainer.get_train_dataloader()))
    known = (batch["labels"] != IGNORED_LABEL).reshape(*batch["sample_weight"].shape, -1).any(-1).numpy()
    expected = np.where(positive(batch["labels"].numpy(), known), 1, 1 / SHARE)
    assert batch["sample_weight"].shape == known.shape
    assert {1, 1 / SHARE} == set(expected[known])
    np.testing.assert_array_equal(batch["sample_weight"].numpy()[known], expected[known])
    assert "sample_weight" not in next(iter(trainer.get_eval_dataloader()))


def test_what_is_trained_on_is_made_once(tmp_path, monkeypatch):
    made, make = [], SequenceInput._training_rows
    monkeypatch.setattr(SequenceInput, "_training_rows", lambda view: made.append(view) or make(view))
    changed = {"data.negative_share": SHARE, "training.refit": True, "training.max_steps": 4}
    lmctr.runs.train(RECIPES["sequence"], output_dir=tmp_path, overrides=changed)
    assert len(made) == len(set(made)) == 2  # by the validation part, and with it


def test_older_negatives_count_less(tmp_path):
    view = opened("sequence", tmp_path, negative_share=SHARE, candidates_per_row=1)
    args = {"use_cpu": True, "recency_half_life": 50.0, "per_device_train_batch_size": 10_000, "stage2_epochs": 1}
    data = view.training_dataset()
    args = CTRTrainingArguments(str(tmp_path / "run"), **args)
    trainer = CTRTrainer(
        view.model(view.make_processor()), args, view.collator(False), data, view.dataset("validation")
    )
    found = next(iter(trainer.get_train_dataloader()))["sample_weight"].flatten().numpy()
    age = (data.times.max() - data.times) / 86400
    np.testing.assert_allclose(np.sort(found), np.sort(data.loss_weight * 0.5 ** (age / 50)).flatten(), rtol=1e-5)


def mean_prediction(run, part="test"):
    logits = pq.read_table(run.path / "predictions" / f"{part}.parquet")["logit"].to_numpy()
    return float(expit(logits).mean())


@pytest.mark.parametrize("start", ["zero", "logistic"])
def test_probabilities_are_those_of_all_samples(tmp_path, start):
    changed = {
        "data.negative_share": 0.1,
        "training.epochs": 10,
        "training.linear_start": start,
        "model.use_numeric_skip": start == "logistic",
    }
    run = lmctr.runs.train(RECIPES["table"], output_dir=tmp_path / "run", overrides=changed)
    test = pq.read_table(run.path / "predictions" / "test.parquet")["label"].to_numpy()
    assert mean_prediction(run) == pytest.approx(test.mean(), rel=0.4)  # unweighted, it would be five times that
    assert run.metrics["training_samples"]["model"] < 2000


def test_a_linear_start_and_trees_know_what_was_drawn(tmp_path):
    statistics = {"statistics": "basic", "tasks": ["label"]}
    view = opened("sequence", tmp_path, negative_share=SHARE, **statistics)
    whole = opened("sequence", tmp_path, **statistics)
    assert view.view.processor.statistics_reader == whole.view.processor.statistics_reader
    model = view.model(view.make_processor())
    samples, trees = view.linear_samples(), view.tree_samples(model)
    np.testing.assert_array_equal(samples.weight, np.where(samples.labels > 0, 1, 1 / SHARE))
    assert len(samples.labels) == view.num_samples("train") < len(trees.labels) == whole.num_samples("train")
    assert trees.weight is None
    assert whole.linear_samples().weight is None
    table = opened("table", tmp_path, negative_share=SHARE)
    samples = table.linear_samples()
    np.testing.assert_array_equal(samples.weight, np.where(samples.labels > 0, 1, 1 / SHARE))
    trees = table.tree_samples(table.model(table.make_processor()))
    assert len(trees.labels) == len(table.store.splits["train"])
    assert trees.weight is None


@pytest.mark.parametrize("kind", ["table", "log as table", "sequence"])
def test_a_refit_draws_of_validation_too(tmp_path, kind):
    view = opened(kind, tmp_path, negative_share=SHARE)
    both = view.with_validation(tmp_path / "both", True)
    both.open(both.make_processor(), ("train", "test"))
    drawn, own = both.training_dataset(), view.dataset("validation")
    assert set(view.training_dataset().events) < set(drawn.events)
    of_validation = np.isin(own.events, drawn.events)
    is_positive = positive(own.labels, own.rows)[own.rows >= 0]
    assert of_validation[is_positive].all()
    assert of_validation[~is_positive].mean() == pytest.approx(SHARE, abs=0.15)


def test_trials_at_earlier_times_are_measured_on_all(tmp_path):
    view, whole = (opened("sequence", tmp_path, negative_share=share) for share in (SHARE, None))
    earlier, all_of_it = view.earlier(1), whole.earlier(1)
    np.testing.assert_array_equal(earlier.splits.validation, all_of_it.splits.validation)
    assert set(earlier.splits.train) < set(all_of_it.splits.train)
    np.testing.assert_array_equal(earlier.whole_train, all_of_it.splits.train)


def test_which_are_drawn_follows_from_the_seed_of_the_data(tmp_path):
    seeds = [opened("table", tmp_path, negative_share=SHARE, seed=seed).rows("train").tolist() for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.1])
def test_a_share_that_is_none(share):
    with pytest.raises(ValueError, match=r"data\.negative_share is"):
        load_recipe(RECIPES["table"], {"data.negative_share": share})


def test_impressions_have_no_negatives():
    recipe = {
        "data": {"name": "synthetic_cascade", "negative_share": 0.1},
        "model": {"family": "retrieval_mlp"},
        "training": {},
    }
    with pytest.raises(ValueError, match="negative_share"):
        load_recipe(recipe)


def test_a_column_of_ones_own_data(tmp_path):
    """Plain data with a column `loss_weight` train as with each row as often as it says."""
    rng = np.random.default_rng(0)
    rows = {"input_ids": rng.integers(2, 9, (64, 3)).tolist(), "labels": rng.integers(0, 2, 64).astype(float).tolist()}
    weight = rng.integers(1, 4, 64)
    once = Dataset.from_dict({**rows, "loss_weight": weight.astype(np.float32).tolist()})
    often = Dataset.from_dict(rows).select(np.repeat(np.arange(64), weight).tolist())
    found = []
    for place, data in enumerate((once, often)):
        torch.manual_seed(0)
        model = lmctr.DNNForCTR(lmctr.DNNConfig(vocab_sizes=[9, 9, 9], embedding_dim=2, hidden_units=[4], dropout=0.0))
        options = {"use_cpu": True, "per_device_train_batch_size": len(data), "stage2_epochs": 1, "optim": "sgd"}
        args = CTRTrainingArguments(
            str(tmp_path / str(place)), **options, learning_rate=0.1, save_strategy="no", eval_strategy="no"
        )
        CTRTrainer(model, args, default_data_collator, data).train()
        found.append(model.state_dict())
    for name, values in found[0].items():
        torch.testing.assert_close(values, found[1][name], atol=1e-6, rtol=1e-5)
