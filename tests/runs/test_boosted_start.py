"""`training.linear_start: boosting`: the model starts as cross-fitted boosted trees, exactly those of scikit-learn, and learns what they leave."""

import copy

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import lmctr
from lmctr.data import load_log, split_log
from lmctr.hub.export import export_model
from lmctr.models.common.boosted_trees import FoldedTrees, folds_of
from lmctr.runs.inputs.linear_start import LinearSamples, start_boosted
from tests.runs.test_linear_start import HALF_LIFE, LOG, MODELS, fitted, logits_of, run_of

FOLDS = 5


def samples(count=1500, tasks=1, seed=0):
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(count, 4)).astype(np.float32)
    step = generator.integers(0, 4, (count, 1))
    values[:, 3:] = np.float32(1) + step * np.spacing(np.float32(1))  # neighbours: no float32 lies between them
    scores = values[:, :tasks] + values[:, 1:2] * values[:, 2:3] + step + generator.normal(size=(count, tasks)) - 1.5
    return values, (scores > 0).astype(np.float32)


def forests(values, labels, weight, seed):
    """Log-odds of a forest per fold, by rows (S, Fs): put together by hand from scikit-learn's own scores."""
    folds, found = folds_of(values, FOLDS), []
    for fold in range(FOLDS):
        rows = folds != fold
        own = None if weight is None else weight[rows]
        line = LogisticRegression(C=0.1, max_iter=500).fit(values[rows], labels[rows], own)
        coefficients, intercept = line.coef_[0].astype(np.float32), line.intercept_[0].astype(np.float32)

        def columns(some, coefficients=coefficients, intercept=intercept):
            return np.column_stack(
                [some, (some.astype(float) @ coefficients.astype(float) + intercept).astype(np.float32)]
            )

        trees = HistGradientBoostingClassifier(
            learning_rate=0.05,
            max_iter=150 if rows.sum() >= 1000 else 50,
            max_leaf_nodes=15,
            min_samples_leaf=20,
            l2_regularization=5.0,
            max_features=0.3,
            early_stopping=False,
            random_state=seed,
        ).fit(columns(values[rows]), labels[rows], own)
        found.append(lambda some, trees=trees, columns=columns: trees.decision_function(columns(some)))
    return folds, found


def model_of(num_statistics=4, tasks=1):
    names = ["click", "like"][:tasks]
    config = lmctr.DINConfig(item_vocab_size=9, embedding_dim=4, num_statistics=num_statistics, task_names=names)
    return lmctr.DINForCTR(config)


@pytest.mark.parametrize("count", [1500, 900])
def test_rows_are_scored_by_trees_that_have_not_seen_them_and_new_ones_by_all(count):
    values, labels = samples(count, tasks=2)
    labels[:200, 1] = -100  # without a label of the second task
    weight = np.random.default_rng(1).uniform(0.5, 2.0, count).astype(np.float32)
    model = model_of(tasks=2)
    start_boosted(model, LinearSamples(values, labels, weight, None), None, seed=3)
    new, trees = samples(400, seed=9)[0], model.linear_path().skip.trees
    for task, known in enumerate((slice(0, count), slice(200, count))):
        folds, found = forests(values[known], labels[known, task], weight[known], 3)
        mean = np.mean([forest(new) for forest in found], 0)
        np.testing.assert_allclose(trees.eval()(torch.from_numpy(new))[:, task], mean, atol=1e-5)
        expected = np.empty(len(folds))
        for fold, forest in enumerate(found):
            expected[folds == fold] = forest(values[known][folds == fold])
        for rows in (slice(0, 300), slice(0, None)):  # few rows and many: two ways
            given = torch.from_numpy(values[known][rows])
            np.testing.assert_allclose(trees.train()(given)[:, task], expected[rows], atol=1e-5)
        assert np.abs(mean).std() > 0.1
        assert np.abs(expected - np.mean([forest(values[known]) for forest in found], 0)).max() > 0.1
    model.eval()  # the rest of the model adds nothing yet
    inputs = {"history_items": torch.randint(1, 9, (400, 4)), "candidate_items": torch.randint(1, 9, (400,))}
    logits = model(**inputs, statistics=torch.from_numpy(new)).logits
    assert torch.equal(logits, trees(torch.from_numpy(new)))


def test_folds_are_those_of_the_bits():
    values = np.random.default_rng(0).normal(size=(6, 1000, 7)).astype(np.float32)
    folds = folds_of(values, FOLDS)
    assert np.array_equal(folds, folds_of(torch.from_numpy(values), FOLDS))
    assert np.array_equal(folds[2, 5:9], folds_of(values[2, 5:9].copy(), FOLDS))
    assert np.bincount(folds.ravel(), minlength=FOLDS).min() > 1100  # 1,200 each
    one, other = values[0, :1].copy(), values[0, :1].copy()
    other[0, 3] = np.nextafter(other[0, 3], np.float32(9))
    assert {int(folds_of(one, 1000)[0]) == int(folds_of(other, 1000)[0])} == {False}


def test_saved_loaded_cast_and_exported(tmp_path):
    values, labels = samples()
    model = model_of()
    start_boosted(model, LinearSamples(values, labels[:, 0], None, None), None, seed=0)
    model.eval().save_pretrained(tmp_path / "saved")
    inputs = {"history_items": torch.randint(1, 9, (20, 4)), "candidate_items": torch.randint(1, 9, (20,))}
    inputs["statistics"] = torch.from_numpy(values[:20])
    expected = model(**inputs).logits
    assert expected.std() > 0.1
    loaded = lmctr.AutoModelForCTR.from_pretrained(tmp_path / "saved")
    assert torch.equal(loaded(**inputs).logits, expected)
    assert loaded.config.boosted_trees == {"folds": FOLDS, "trees": 150, "leaves": 15}
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

    session = onnxruntime.InferenceSession(export_model(model, Processor(), tmp_path / "graph"))
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
def test_a_run_starts_as_the_trees(kind, tmp_path):
    run = run_of(kind, tmp_path / "run", linear_start="boosting")
    log = load_log("synthetic", **LOG)
    splits = split_log(log)
    reader, _ = fitted(log, splits.train, HALF_LIFE)
    values = reader.scaled(reader.raw(log, splits.train)).astype(np.float32)
    age = (log.time[splits.train].max() - log.time[splits.train]) / 86400.0
    _, found = forests(values, log.label[splits.train], (0.5 ** (age / HALF_LIFE)).astype(np.float32), 42)
    events, logits = logits_of(run, "test")
    new = reader.scaled(reader.raw(log, events)).astype(np.float32)
    expected = np.mean([forest(new) for forest in found], 0)
    assert np.std(expected) > 0.5
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_a_run_that_is_gone_on_from_keeps_its_trees(tmp_path):
    first = run_of("sequence", tmp_path / "first", linear_start="boosting")
    second = run_of("sequence", tmp_path / "second", linear_start="boosting", from_run=str(first.path))
    before, after = (lmctr.AutoModelForCTR.from_pretrained(run.path) for run in (first, second))
    assert after.config.boosted_trees == before.config.boosted_trees
    for name, bits in before.linear_path().skip.trees.named_buffers():
        assert torch.equal(dict(after.linear_path().skip.trees.named_buffers())[name], bits), name


def test_what_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="linear_start is boosting, but the model has no linear way"):
        lmctr.runs.train(
            {
                "data": {"name": "synthetic", "options": LOG, "statistics": [], "baselines": False},
                "model": MODELS["sequence"],
                "training": {"linear_start": "boosting", "use_cpu": True},
            },
            output_dir=tmp_path / "none",
        )
    for sizes in ({"folds": 5}, {"folds": 5, "trees": 10, "leaves": 17}, {"folds": 0, "trees": 1, "leaves": 2}):
        with pytest.raises(ValueError, match=r"boosted_trees=.* is not accepted; use None, or folds"):
            lmctr.DINConfig(boosted_trees=sizes)
    values, labels = samples(40)
    labels[:] = 0
    labels[0] = 1  # in one fold only
    with pytest.raises(ValueError, match=r"labels of task 0 are of one class; set training\.linear_start to zero"):
        start_boosted(model_of(), LinearSamples(values, labels[:, 0], None, None), None, seed=0)
    assert isinstance(FoldedTrees(3, 1, 2, 4, 8)(torch.zeros(5, 3)), torch.Tensor)
