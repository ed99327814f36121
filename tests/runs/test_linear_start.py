"""`training.linear_start`: before the first step a model with a linear way from statistics to its logits is the logistic regression on them."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tiny_backbones import TINY_BERT

import lmctr
from lmctr.data import load_log, split_log
from lmctr.evaluation.baselines import baseline_predictions
from lmctr.runs import train
from lmctr.runs.inputs.linear_start import LinearSamples, start_linear
from lmctr.statistics import StatisticsReader

LOG = {"num_users": 40, "num_items": 80, "events_per_user": 40, "num_topics": 2}
MODELS = {
    "text": {
        "family": "ctr_sink",
        "backbone": TINY_BERT,
        "tokenizer": {"type": "wordpiece", "vocab_size": 200},
    },
    "sequence": {"family": "din", "embedding_dim": 4},
    "astro": {"family": "astro", "hidden_size": 8, "num_hidden_layers": 1},
    "table": {"family": "dnn", "embedding_dim": 4, "hidden_units": [16], "use_numeric_skip": True},
}
HALF_LIFE = 60.0


def run_of(kind, folder, more=(), **training):
    """A run whose only step has a learning rate of 0; `more` data keys."""
    data = {"name": "synthetic", "options": LOG, "statistics": "full", "baselines": False, **dict(more)}
    data |= {"prompt": {"base": "generic/en", "item": "{genres}"}, "num_behaviors": 3} if kind == "text" else {}
    values = {"learning_rate": 0.0, "max_steps": 1, "eval_strategy": "no", "save_strategy": "no", "use_cpu": True}
    training = {**values, "recency_half_life": HALF_LIFE, **training}
    return train({"data": data, "model": MODELS[kind], "training": training}, output_dir=folder)


def logits_of(run, part):
    found = pq.read_table(run.path / "predictions" / f"{part}.parquet")
    return found["event"].to_numpy(), found["logit"].to_numpy()


def fitted(log, train_events, half_life):
    """The regression and the reader of the training events, put together by hand."""
    reader = StatisticsReader.fit(log, train_events, "full", strength=3.0)
    age = (log.time[train_events].max() - log.time[train_events]) / 86400.0
    weight = None if half_life is None else 0.5 ** (age / half_life)
    values = reader.scaled(reader.raw(log, train_events))
    return reader, LogisticRegression(C=0.1, max_iter=500).fit(values, log.label[train_events], weight)


@pytest.mark.parametrize("kind", list(MODELS))
def test_the_first_logits_are_those_of_the_logistic_regression(kind, tmp_path):
    run = run_of(kind, tmp_path / "run")
    log = load_log("synthetic", **LOG)
    splits = split_log(log)
    reader, regression = fitted(log, splits.train, HALF_LIFE)
    events, found = logits_of(run, "test")
    expected = regression.decision_function(reader.scaled(reader.raw(log, events)))
    assert np.std(expected) > 0.5
    np.testing.assert_allclose(found, expected, atol=2e-4)
    _, plain = logits_of(run_of(kind, tmp_path / "zero", linear_start="zero"), "test")
    assert np.abs(plain - expected).max() > 0.3


def test_without_weights_it_is_the_baseline_and_a_refit_fits_it_on_both_parts(tmp_path):
    log = load_log("synthetic", **LOG)
    splits = split_log(log)
    for refit, options in ((False, {}), (True, {"eval_strategy": "epoch", "save_strategy": "epoch"})):
        run = run_of("sequence", tmp_path / str(refit), recency_half_life=None, refit=refit, **options)
        if not refit:
            expected = baseline_predictions(log, splits)["logistic_regression"]["test"]
        else:  # statistics, too, are scaled by both parts
            both = np.concatenate([splits.train, splits.validation])
            reader, regression = fitted(log, both, None)
            expected = regression.predict_proba(reader.scaled(reader.raw(log, splits.test)))[:, 1]
        events, found = logits_of(run, "test")
        assert events.tolist() == splits.test.tolist()
        np.testing.assert_allclose(1 / (1 + np.exp(-found)), expected, atol=1e-4)


def test_each_task_has_its_own_regression():
    generator = np.random.default_rng(0)
    values = generator.normal(size=(300, 3)).astype(np.float32)
    labels = (values[:, :2] + generator.normal(size=(300, 2)) > 0).astype(np.float32)
    labels[:50, 1] = -100  # without a label of the second task
    weight = generator.uniform(0.5, 2.0, 300).astype(np.float32)
    config = lmctr.DINConfig(
        item_vocab_size=9, embedding_dim=4, num_statistics=3, task_names=["click", "like"], initializer_range=0.5
    )
    model = lmctr.DINForCTR(config).eval()
    start_linear(model, LinearSamples(values, labels, weight, None), None)
    statistics = torch.from_numpy(values[:20])
    history, candidates = torch.randint(1, 9, (20, 4)), torch.randint(1, 9, (20,))
    found = model(history_items=history, candidate_items=candidates, statistics=statistics).logits
    for task, rows in enumerate((slice(0, 300), slice(50, 300))):
        one = LogisticRegression(C=0.1, max_iter=500).fit(values[rows], labels[rows, task], weight[rows])
        np.testing.assert_allclose(found[:, task].detach().numpy(), one.decision_function(values[:20]), atol=1e-4)
    labels[:, 1] = 1.0
    with pytest.raises(ValueError, match=r"labels of task 1 are of one class; set training\.linear_start to zero"):
        start_linear(model, LinearSamples(values, labels, None, None), None)


def test_what_cannot_be():
    with pytest.raises(ValueError, match="linear_start must be 'logistic' or 'zero', got 'warm'"):
        lmctr.CTRTrainingArguments("out", linear_start="warm")
    fields = {"vocab_sizes": [5, 5], "num_numeric": 2, "embedding_dim": 4, "use_numeric_skip": True}
    for make in (
        lambda: lmctr.DeepFMForCTR(lmctr.DeepFMConfig(**fields, task_names=["click", "like"])),
        lambda: lmctr.DNNForCTR(lmctr.DNNConfig(**{**fields, "num_numeric": 0})),
    ):
        with pytest.raises(ValueError, match="use_numeric_skip=True is not accepted"):
            make()
    for model in (
        lmctr.DeepFMForCTR(lmctr.DeepFMConfig(**fields)),
        lmctr.FATForCTR(lmctr.FATConfig(**fields, hidden_size=8)),
    ):
        assert model.linear_path().last is None  # logits of other terms too
    assert lmctr.DNNForCTR(lmctr.DNNConfig(**{**fields, "use_numeric_skip": False})).linear_path() is None
