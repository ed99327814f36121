"""`training.boosting_share`: boosted trees on the statistics become a part of the model, exactly those of scikit-learn."""

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import test_linear_start
import torch
from sklearn.linear_model import LogisticRegression
from test_linear_start import HALF_LIFE, MODELS, fitted, logits_of
from tiny_backbones import TINY_BERT

import lmctr
from lmctr.data import load_log, split_log
from lmctr.evaluation.weighted_trees import BoostedTreesClassifier
from lmctr.hub.export import export_model
from lmctr.hub.export_inputs import random_inputs
from lmctr.hub.model_card import build_card
from lmctr.runs.inputs import boosting
from lmctr.runs.inputs.boosting import add_trees
from lmctr.runs.inputs.linear_start import LinearSamples

LOG = test_linear_start.LOG | {"events_per_user": 30}  # of fewer than 1,000 samples trees are a third as many


def run_of(kind, folder, more=(), **training):
    return test_linear_start.run_of(kind, folder, {"options": LOG, **dict(more)}, **training)


def samples(count=1500, tasks=1, seed=0):
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(count, 4)).astype(np.float32)
    step = generator.integers(0, 4, (count, 1))
    values[:, 3:] = np.float32(1) + step * np.spacing(np.float32(1))  # neighbours: no float32 lies between them
    scores = values[:, :tasks] + values[:, 1:2] * values[:, 2:3] + step + generator.normal(size=(count, tasks)) - 1.5
    return values, (scores > 0).astype(np.float32)


def forest(values, labels, weight, seed):
    """What gives the log-odds of rows (S, Fs): put together by hand from scores of scikit-learn's trees (see test_weighted_trees)."""
    line = LogisticRegression(C=0.1, max_iter=500).fit(values, labels, weight)
    coefficients, intercept = line.coef_[0].astype(np.float32), line.intercept_[0].astype(np.float32)

    def columns(some):
        return np.column_stack(
            [some, (some.astype(float) @ coefficients.astype(float) + intercept).astype(np.float32)]
        )

    settings = {
        "learning_rate": 0.05,
        "max_iter": 150 if len(values) >= 1000 else 50,
        "max_leaf_nodes": 15,
        "min_samples_leaf": 20,
        "l2_regularization": 5.0,
        "max_features": 0.3,
        "early_stopping": False,
    }
    plain, more = (
        BoostedTreesClassifier(**settings, random_state=own).fit(read(values), labels, weight)
        for own, read in ((seed, np.asarray), ((seed + 1000) % 2**32, columns))
    )
    return lambda some: (plain.decision_function(some) + more.decision_function(columns(some))) / 2


def model_of(num_statistics=4, tasks=1):
    names = ["click", "like"][:tasks]
    values = {"embedding_dim": 4, "attention_hidden_sizes": [4], "head_hidden_sizes": [4]}
    return lmctr.DINForCTR(
        lmctr.DINConfig(item_vocab_size=9, num_statistics=num_statistics, task_names=names, **values)
    )


@pytest.mark.parametrize(("count", "seed"), [(1500, 3), (900, 2**32 - 1)])
def test_the_trees_are_those_of_the_baseline(count, seed):
    values, labels = samples(count, tasks=2)
    labels[:200, 1] = -100  # without a label of the second task
    weight = np.random.default_rng(1).uniform(0.5, 2.0, count).astype(np.float32)
    model = model_of(tasks=2)
    torch.nn.init.normal_(model.linear_path().skip.weight)
    new = samples(400, seed=9)[0]
    inputs = {"history_items": torch.randint(1, 9, (400, 4)), "candidate_items": torch.randint(1, 9, (400,))}
    inputs["statistics"] = torch.from_numpy(new)
    alone = model.eval()(**inputs).logits.detach()
    add_trees(model, LinearSamples(values, labels, weight, None), None, seed=seed, share=0.3)
    trees = model.linear_path().skip.trees(inputs["statistics"])
    for task, known in enumerate((slice(0, count), slice(200, count))):
        expected = forest(values[known], labels[known, task], weight[known], seed)(new)
        assert expected.std() > 0.1
        np.testing.assert_allclose(trees[:, task], expected, atol=1e-5)
    torch.testing.assert_close(model.eval()(**inputs).logits, 0.7 * alone + 0.3 * trees)
    model.linear_path().skip.train()  # the network learns by itself
    torch.testing.assert_close(model(**inputs).logits.detach(), alone)


@pytest.mark.parametrize("kind", ["sequence", "text"])
def test_trees_alone_need_no_network(kind, monkeypatch):
    """In inference mode, as predictions are made; who asks for the network's states gets them."""
    values, labels = samples()
    text = {"text_config": TINY_BERT, "num_statistics": 4, "sink_signal": "recency"}
    model = model_of() if kind == "sequence" else lmctr.CTRSinkForCTR(lmctr.CTRSinkConfig(**text))
    add_trees(model, LinearSamples(values, labels[:, 0], None, None), None, seed=0, share=1.0)
    inputs, calls = random_inputs(model.eval().config, 5, 8, 3), []
    with torch.no_grad():
        expected = model(**inputs).logits
    name = "run" if kind == "sequence" else "forward"
    network = getattr(model.model, name)
    monkeypatch.setattr(model.model, name, lambda *own, **more: calls.append(1) or network(*own, **more))
    with torch.inference_mode():
        assert torch.equal(model(**inputs).logits, expected)
        assert not calls
        assert model(**inputs, output_hidden_states=True).hidden_states is not None
        model.trees_beside().share = 0.95
        assert not torch.equal(model(**inputs).logits, expected)
    assert len(calls) == 2


@pytest.mark.usefixtures("one_registry_of_operators")
def test_saved_loaded_cast_and_exported(tmp_path):
    values, labels = samples(900)
    model = model_of()
    add_trees(model, LinearSamples(values, labels[:, 0], None, None), None, seed=0, share=1.0)
    model.eval().save_pretrained(tmp_path / "saved")
    inputs = {"history_items": torch.randint(1, 9, (20, 4)), "candidate_items": torch.randint(1, 9, (20,))}
    inputs["statistics"] = torch.from_numpy(values[:20])
    expected = model(**inputs).logits
    assert expected.std() > 0.1
    loaded = lmctr.AutoModelForCTR.from_pretrained(tmp_path / "saved")
    assert torch.equal(loaded(**inputs).logits, expected)
    assert loaded.config.boosted_trees == {"trees": 100, "leaves": 15, "share": 1.0}
    for half in (
        copy.deepcopy(model).to(torch.bfloat16),
        lmctr.AutoModelForCTR.from_pretrained(tmp_path / "saved", dtype=torch.bfloat16),
    ):
        trees = half.linear_path().skip.trees
        assert torch.equal(
            trees(inputs["statistics"])[:, 0], model.linear_path().skip.trees(inputs["statistics"])[:, 0]
        )
        torch.testing.assert_close(half(**inputs).logits.float(), expected, atol=0.05, rtol=0)

    class Processor:
        def save_pretrained(self, folder):
            pass

    file = export_model(model, Processor(), tmp_path / "graph")
    session = onnxruntime.InferenceSession(file)
    weights = {weight.name for weight in onnx.load(file).graph.initializer}
    assert not any("embedding" in name for name in weights), weights  # nothing of the network
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    given = inputs | {
        "candidate_items": inputs["candidate_items"][:, None],
        "statistics": inputs["statistics"][:, None],
    }
    rows = {}
    for entry in session.get_inputs():
        shape = [
            {"batch": 20, "candidates": 1}.get(size, 4) if isinstance(size, str) else size for size in entry.shape
        ]
        found = given[entry.name].numpy() if entry.name in given else np.zeros(shape)
        rows[entry.name] = found.astype(types[entry.type])
    (logits,) = session.run(["logits"], rows)
    np.testing.assert_allclose(logits.reshape(-1), expected.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["text", "sequence", "table"])
def test_a_run_is_the_mean_of_regression_and_trees_before_it_learns(kind, tmp_path):
    run = run_of(kind, tmp_path / "run", boosting_share=0.5)
    log = load_log("synthetic", **LOG)
    splits = split_log(log)
    reader, regression = fitted(log, splits.train, HALF_LIFE)
    values = reader.scaled(reader.raw(log, splits.train)).astype(np.float32)
    age = (log.time[splits.train].max() - log.time[splits.train]) / 86400.0
    trees = forest(values, log.label[splits.train], (0.5 ** (age / HALF_LIFE)).astype(np.float32), 42)
    events, logits = logits_of(run, "test")
    new = reader.scaled(reader.raw(log, events)).astype(np.float32)
    expected = 0.5 * trees(new) + 0.5 * regression.decision_function(new)
    assert np.abs(trees(new) - regression.decision_function(new)).max() > 0.3
    np.testing.assert_allclose(logits, expected, atol=2e-4)
    assert "| Boosted trees | 100 on the statistics; their share in the logits is 0.5, the network's 0.5 |" in str(
        build_card(run.path)
    )


@pytest.mark.parametrize("kind", ["text", "sequence", "table"])
def test_a_limit_on_the_samples_of_the_model_is_none_on_those_of_trees(kind, tmp_path):
    run = run_of(kind, tmp_path / "run", {"max_train_samples": 300}, boosting_share=1.0)
    assert run.metrics["training_samples"]["model"] == 300
    log = load_log("synthetic", **LOG)
    splits = split_log(log)
    reader = run.processor.statistics_reader

    def read(events):
        values = reader.raw(log, events)
        return (reader.scaled(values) if kind != "table" else values).astype(np.float32)

    events, logits = logits_of(run, "test")
    scale = (lambda values: values) if kind != "table" else fitted(log, splits.train, None)[0].scaled
    train, new = (np.asarray(scale(read(some)), np.float32) for some in (splits.train, events))
    age = (log.time[splits.train].max() - log.time[splits.train]) / 86400.0
    trees = forest(train, log.label[splits.train], (0.5 ** (age / HALF_LIFE)).astype(np.float32), 42)
    np.testing.assert_allclose(logits, trees(new), atol=2e-4)


def test_a_run_that_is_gone_on_from_keeps_its_trees(tmp_path):
    first = run_of("sequence", tmp_path / "first", boosting_share=0.5)
    second = run_of("sequence", tmp_path / "second", boosting_share=0.5, from_run=str(first.path))
    before, after = (lmctr.AutoModelForCTR.from_pretrained(run.path) for run in (first, second))
    assert after.config.boosted_trees == before.config.boosted_trees
    for name, bits in before.linear_path().skip.trees.named_buffers():
        assert torch.equal(dict(after.linear_path().skip.trees.named_buffers())[name], bits), name


def test_a_run_that_goes_on_has_the_share_of_its_own_recipe(tmp_path):
    first = run_of("sequence", tmp_path / "first", boosting_share=0.9)
    shares = {}
    for name, values in {
        "stated": {"boosting_share": 0.3},
        "chosen": {"boosting_share": "auto", "refit": True},
        "kept": {},
    }.items():
        run = run_of("sequence", tmp_path / name, from_run=str(first.path), **values)
        shares[name] = (lmctr.AutoModelForCTR.from_pretrained(run.path).config.boosted_trees or {"share": 0.0})[
            "share"
        ]
        if name == "chosen":
            assert shares[name] == run.metrics["boosting_share"] != 0.9
    assert shares["stated"] == 0.3
    assert shares["kept"] == 0.9


def test_what_cannot_be(tmp_path):
    with pytest.raises(ValueError, match=r"boosting_share is 0\.5, but the model has nothing that trees could read"):
        lmctr.runs.train(
            {
                "data": {"name": "synthetic", "options": LOG, "statistics": [], "baselines": False},
                "model": MODELS["sequence"],
                "training": {"boosting_share": 0.5, "use_cpu": True},
            },
            output_dir=tmp_path / "none",
        )
    assert not (tmp_path / "none").exists()  # before the data were read
    with pytest.raises(ValueError, match=r"boosting_share is auto, but the model has nothing that trees could read"):
        lmctr.runs.train("two_tower/cascade", output_dir=tmp_path, overrides={"training.boosting_share": "auto"})
    with pytest.raises(ValueError, match=r"boosting_share must lie between 0 .* and 1, or be 'auto', got 1\.5"):
        lmctr.CTRTrainingArguments("out", boosting_share=1.5)
    for sizes in ({"trees": 5}, {"trees": 10, "leaves": 32, "share": 0.5}, {"trees": 0, "leaves": 2, "share": 0.5}):
        with pytest.raises(ValueError, match=r"boosted_trees=.* is not accepted; use None, or trees"):
            lmctr.DINConfig(boosted_trees=sizes)
    values, labels = samples(40)
    with pytest.raises(ValueError, match=r"labels of task 0 are of one class; set training\.linear_start to zero"):
        add_trees(model_of(), LinearSamples(values, 0 * labels[:, 0], None, None), None, seed=0, share=0.5)


def test_a_value_that_many_samples_have_is_on_one_side_of_thresholds():
    """Whatever the last bits of it: a prior, say, is counted from a log or from the statistics of requests."""
    rng = np.random.default_rng(0)
    prior = np.float32(0.0074749328)
    values = np.where(rng.random((4000, 1)) < 0.9, prior, rng.normal(0.5, 0.2, (4000, 1))).astype(np.float32)
    labels = (rng.random(4000) < np.where(values[:, 0] == prior, 0.2, 0.8)).astype(np.int64)
    _, forest = boosting._forest(values, labels, None, 0)
    thresholds = np.concatenate([tree["threshold"][tree["feature"] == 0] for tree in forest])
    assert thresholds.dtype == np.float32
    assert len(thresholds) > 50
    assert not ((thresholds > prior - 2e-7) & (thresholds < prior + 2e-7)).any()
