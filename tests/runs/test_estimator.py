"""`lmctr.CTRClassifier`: families behind scikit-learn's interface."""

import gc
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

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
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).decision_function(X), logits)


def test_it_goes_into_cross_validation_and_searches(rows):
    X, click = rows
    assert cross_val_score(lmctr.CTRClassifier(overrides=FEW), X, click, cv=2, scoring="roc_auc").min() > 0.65
    grid = {"model": ["deepfm", "dnn"]}
    few = FEW | {"training.epochs": 1, "training.refit": False}
    search = GridSearchCV(lmctr.CTRClassifier(overrides=few), grid, cv=2, scoring="roc_auc", refit=False).fit(X, click)
    assert len(set(search.cv_results_["mean_test_score"])) == 2
    assert clone(lmctr.CTRClassifier("dnn", quiet=False)).get_params()["model"] == "dnn"


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
    few = FEW | {"training.max_steps": 1, "training.refit": False}
    with pytest.raises(ValueError, match="fitted in a folder that goes with it; give output_dir to keep it"):
        pickle.dumps(lmctr.CTRClassifier(overrides=few).fit(X, click))
    pickle.dumps(lmctr.CTRClassifier())


def test_a_folder_that_nobody_named_goes_with_its_object(rows):
    few = FEW | {"training.max_steps": 1, "training.refit": False}
    model = lmctr.CTRClassifier(overrides=few).fit(*rows)
    folder = model.run_.path.parent
    assert folder.is_dir()
    del model
    gc.collect()
    assert not folder.exists()
