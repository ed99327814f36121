"""`lmctr.CTRClassifier`: families behind scikit-learn's interface."""

import copy
import gc
import os
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score

import lmctr

ROWS = 600
FEW = {"training.use_cpu": True, "training.epochs": 2, "training.boosting_share": 0.0, "training.learning_rate": 0.02}


@pytest.fixture(scope="module")
def rows():
    """(600 rows) of ads and prices, with a column that bears the name of a label; and who clicked."""
    rng = np.random.default_rng(0)
    ad, price = rng.integers(0, 8, ROWS), rng.random(ROWS)
    click = rng.random(ROWS) < expit(3.0 * (ad < 4) - 3.0 * price)
    return pd.DataFrame({"ad": [f"ad{a}" for a in ad], "price": price, "label": rng.integers(0, 3, ROWS)}), click


def test_it_is_the_run_that_the_same_rows_train(rows, tmp_path):
    X, click = rows
    model = lmctr.CTRClassifier("dcnv2", output_dir=tmp_path / "run", overrides=FEW).fit(
        X, np.where(click, "yes", "no")
    )
    assert model.classes_.tolist() == ["no", "yes"]
    logits = lmctr.runs.load(tmp_path / "run").predict(X)
    np.testing.assert_array_equal(model.decision_function(X), logits)
    np.testing.assert_allclose(model.predict_proba(X), np.stack([expit(-logits), expit(logits)], 1), atol=1e-6)
    assert set(model.predict(X)) == {"no", "yes"}
    np.testing.assert_array_equal(model.predict(X) == "yes", logits > 0)
    assert model.score(X, np.where(click, "yes", "no")) > 0.65
    assert model.run_.metrics["validation"]["auc"] > 0.7
    assert {field.name for field in model.run_.processor.fields} >= {"ad", "price"}
    assert model.run_.recipe.data["options"]["label"] == "label_", "a column called label stays one"


def test_it_goes_into_cross_validation_and_searches(rows):
    X, click = rows
    assert cross_val_score(lmctr.CTRClassifier(overrides=FEW), X, click, cv=2, scoring="roc_auc").min() > 0.65
    grid = {"model": ["deepfm", "dnn"]}
    few = FEW | {"training.epochs": 1, "training.refit": False}
    search = GridSearchCV(lmctr.CTRClassifier(overrides=few), grid, cv=2, scoring="roc_auc", refit=False).fit(X, click)
    assert len(set(search.cv_results_["mean_test_score"])) == 2
    assert clone(lmctr.CTRClassifier("dnn", quiet=False)).get_params()["model"] == "dnn"


def test_groups_that_training_did_not_meet_are_scored(rows, caplog):
    """Each fold of a cross-validation by users has users that no other has, and a column of them."""
    X, click = rows
    X = X.assign(user=[f"u{number % 200}" for number in range(ROWS)])
    groups = {"cv": GroupKFold(2), "groups": X["user"], "error_score": "raise", "scoring": "roc_auc"}
    assert cross_val_score(lmctr.CTRClassifier("dnn", overrides=FEW), X, click, **groups).min() > 0.65
    assert "field 'user': 100.0% of the values are unknown" in caplog.text
    run = lmctr.CTRClassifier("dnn", overrides=FEW).fit(X, click).run_
    with pytest.raises(ValueError, match="allow_unknown=True"):
        run.predict(X.assign(user=X["user"] + "x"))
    assert np.isfinite(run.predict(X.assign(user=X["user"] + "x"), allow_unknown=True)).all()


def test_numbers_without_names_and_histories(rows):
    X, click = rows
    values = X[["price", "label"]].to_numpy()
    numbers = lmctr.CTRClassifier(overrides=FEW).fit(values, click)
    assert numbers.predict_proba(values[:3]).shape == (3, 2)
    events = pd.DataFrame(
        {
            "who": [f"u{n % 20}" for n in range(ROWS)],
            "what": X["ad"],
            "when": 1_700_000_000 + np.arange(ROWS) * 500,
        }
    )
    few = FEW | {"training.max_steps": 3}
    of_log = lmctr.CTRClassifier("din", user="who", item="what", time="when", overrides=few).fit(events, click)
    assert of_log.run_.model.config.model_type == "din"
    assert of_log.predict_proba(events.tail(5)).shape == (5, 2)


def test_mistakes_are_told(rows):
    X, click = rows
    with pytest.raises(ValueError, match=r"^y: 3 different values, accepted: two, of which the greater is the click"):
        lmctr.CTRClassifier().fit(X, np.arange(ROWS) % 3)
    with pytest.raises(
        ValueError, match=r"^y: got values of shape \(5,\), accepted: one for each of the 600 rows of X"
    ):
        lmctr.CTRClassifier().fit(X, click[:5])
    with pytest.raises(ValueError, match=r"^X: got int; accepted: a pyarrow table"):
        lmctr.CTRClassifier().fit(5, click)
    for call in ("predict", "predict_proba", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(lmctr.CTRClassifier(), call)(X)
    with pytest.raises(ValueError, match=r"^X: got a sparse csr_matrix; accepted: a table of columns"):
        lmctr.CTRClassifier().fit(csr_matrix(np.eye(ROWS)), click)
    with pytest.raises(ValueError, match=r"^X: got values of shape \(600,\), accepted: \(rows, columns\)"):
        lmctr.CTRClassifier().fit(X["price"].to_numpy(), click)
    with pytest.raises(ValueError, match=r"^y: 2 of 600 values are missing; accepted: a value for each row of X"):
        lmctr.CTRClassifier().fit(X, [None, np.nan, *click[2:]])
    with pytest.raises(
        ValueError, match=r"^sample_weight: got values of shape \(3,\), accepted: one for each of the 600"
    ):
        lmctr.CTRClassifier().fit(X, click, sample_weight=[1, 2, 3])


def test_a_folder_that_nobody_named_goes_with_its_object(rows):
    few = FEW | {"training.max_steps": 1, "training.refit": False}
    model = lmctr.CTRClassifier(overrides=few).fit(*rows)
    run = model.run_
    folder = run.path.parent
    del model
    gc.collect()
    assert folder.is_dir(), "whoever has the run"
    del run
    gc.collect()
    assert not folder.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_that_ends_takes_no_folder_with_it(rows, tmp_path):
    """As the workers of a server that was forked after fitting."""
    X, click = rows
    model = lmctr.CTRClassifier(overrides=FEW).fit(X, click)
    child = os.fork()
    if child == 0:
        try:
            del model  # what the end of the interpreter does
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert model.run_.path.is_dir()
    assert model.predict_proba(X[:3]).shape == (3, 2)


@pytest.mark.parametrize("named", [False, True])
def test_a_pickle_holds_all_that_predicts(rows, tmp_path, named):
    X, click = rows
    events = X[["ad"]].assign(who=[f"u{n % 20}" for n in range(ROWS)], when=1_700_000_000 + np.arange(ROWS) * 500)
    few = FEW | {"training.max_steps": 3, "training.refit": False}
    roles = {"user": "who", "item": "ad", "time": "when"}
    items = pd.DataFrame({"ad": [f"ad{n}" for n in range(8)], "topic": list("abababab")})
    output_dir = tmp_path / "run" if named else None
    model = lmctr.CTRClassifier("din", **roles, items=items, output_dir=output_dir, overrides=few).fit(events, click)
    expected, content, path = model.decision_function(events.tail(9)), pickle.dumps(model), model.run_.path
    measured = model.run_.metrics["test"]["auc"]
    del model
    gc.collect()
    shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(tmp_path / "run.data", ignore_errors=True)
    again = pickle.loads(content)
    np.testing.assert_array_equal(again.decision_function(events.tail(9)), expected)
    assert again.run_.evaluate("test")["auc"] == pytest.approx(measured)
    assert again.run_.folder.verify()
    np.testing.assert_array_equal(copy.deepcopy(again).decision_function(events.tail(9)), expected)
    assert pickle.loads(pickle.dumps(lmctr.CTRClassifier("dnn"))).model == "dnn"


def test_a_folder_that_another_fit_took_is_told(rows, tmp_path):
    X, click = rows
    few = FEW | {"training.max_steps": 2, "training.refit": False}
    first = lmctr.CTRClassifier(output_dir=tmp_path / "run", overrides=few).fit(X, click)
    first.run_.evaluate("test")
    first.predict(X)
    second = clone(first).fit(X[:300], click[:300])
    second.predict(X)
    for use in (first.predict, lambda _: pickle.dumps(first)):
        with pytest.raises(
            ValueError, match=r"^output_dir: .*run was deleted, or written anew, since .* leave output_dir"
        ):
            use(X)


def test_weights_and_names(rows):
    """Rows of no weight teach nothing, and measure nothing."""
    X, click = rows
    few = FEW | {"training.refit": False}
    wrong, weight = np.where(X["price"] > 0.5, ~click, click), np.where(X["price"] > 0.5, 0.0, 2.0)
    found = [
        lmctr.CTRClassifier(overrides=few).fit(X.assign(weight=1.0), labels, sample_weight=weight)
        for labels in (click, wrong)
    ]
    np.testing.assert_array_equal(*(model.decision_function(X.assign(weight=1.0)) for model in found))
    assert found[0].run_.metrics["test"]["auc"] == found[1].run_.metrics["test"]["auc"]
    assert found[0].run_.recipe.data["options"]["weight"] == "weight_", "a column called weight stays one"
    assert (found[0].n_features_in_, found[0].feature_names_in_.tolist()) == (4, ["ad", "price", "label", "weight"])
    with pytest.warns(DataConversionWarning):
        model = found[0].fit(X[["price", "label"]].to_numpy().tolist(), click[:, None])
    assert not hasattr(model, "feature_names_in_")
    with pytest.raises(ValueError, match=r"^X: got 3 columns, accepted: the 2 of fit"):
        model.predict(np.ones((4, 3)))
    assert not model.__sklearn_tags__().classifier_tags.multi_class


@pytest.mark.parametrize("weighted", [False, True])
def test_rare_clicks_are_in_every_part(rows, weighted):
    X = rows[0]
    clicks = np.arange(ROWS) % 120 == 7  # five of 600
    weight = np.ones(ROWS)
    if weighted:  # those that do not count are no help
        weight[ROWS // 2 :][rows[1][ROWS // 2 :]] = 0.0
        clicks |= weight == 0.0
    few = FEW | {"training.max_steps": 1, "training.refit": False}
    model = lmctr.CTRClassifier(overrides=few).fit(X, clicks, sample_weight=weight)
    assert {part: model.run_.metrics[part]["auc"] for part in ("validation", "test")}
    assert model.run_.recipe.data["seed"] > 0
    with pytest.raises(ValueError, match=r"part .* has only the label 0"):
        lmctr.CTRClassifier(overrides=few | {"data.seed": 0}).fit(X[:240], clicks[:240], sample_weight=weight[:240])
