"""`BoostedTreesClassifier`: scikit-learn's trees on weighted rows, found with one sort of each column."""

import numpy as np
import pytest
import sklearn.ensemble._hist_gradient_boosting.binning as binning
from sklearn.ensemble import HistGradientBoostingClassifier

from lmctr.evaluation.baseline_parts import boosted_trees, field_trees
from lmctr.evaluation.weighted_trees import BoostedTreesClassifier, with_known_columns

pytest.importorskip("sklearn", minversion="1.8")  # whose bins have equal weights


def table(rows, seed):
    """Columns of many values, of few, rounded, skewed, mostly zero, and with missing values; labels; weights, of which some are zero."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(rows, 8)).astype(np.float32)
    values[:, 1] = generator.integers(0, 9, rows)
    values[:, 2] = np.round(values[:, 2], 1)
    values[:, 3] = np.exp(3 * values[:, 3])
    values[:, 4] = np.where(generator.random(rows) < 0.7, 0, values[:, 4])
    values[:, 5] = generator.integers(0, 400, rows)
    values[generator.random(rows) < 0.1, 6] = np.nan
    scores = (
        values[:, 0] + np.nan_to_num(values[:, 6]) * values[:, 4] + values[:, 5] / 200 + generator.normal(size=rows)
    )
    weights = {
        0: generator.uniform(0.2, 1.0, rows),
        1: generator.integers(0, 3, rows).astype(float),
        2: np.full(rows, 2.0),
    }
    return values, (scores > 1).astype(np.int64), weights[seed % 3]


def test_trees_of_a_table_go_on_while_they_gain():
    """Beyond 500, and those of the baseline may."""
    values = np.random.default_rng(0).random((2000, 6))
    labels = (values.sum(1) > 3).astype(float)
    trees = field_trees(labels, 0).fit(values, labels)
    assert 500 < trees.n_iter_ < trees.max_iter == boosted_trees(labels, 0).max_iter


@pytest.mark.parametrize("seed", range(3))
def test_the_trees_are_those_of_scikit_learn(seed):
    settings = {
        "max_iter": 40,
        "max_leaf_nodes": 15,
        "l2_regularization": 5.0,
        "max_features": 0.5,
        "random_state": seed,
    }
    values, labels, weights = table([1500, 700][seed % 2], seed)
    expected = HistGradientBoostingClassifier(**settings, early_stopping=False).fit(values, labels, weights)
    found = BoostedTreesClassifier(**settings, early_stopping=False).fit(values, labels, weights)
    for rows in (values, table(2000, seed + 10)[0]):  # rows between those that it was fitted on, too
        assert np.ptp(found.decision_function(rows)) > 1
        np.testing.assert_array_equal(found.decision_function(rows), expected.decision_function(rows))


def test_without_weights_and_stopped_early():
    values, labels, weights = table(1500, 3)
    settings = {"max_iter": 200, "early_stopping": True, "random_state": 0}
    plain = [made(**settings).fit(values, labels) for made in (HistGradientBoostingClassifier, BoostedTreesClassifier)]
    np.testing.assert_array_equal(*(trees.predict_proba(values) for trees in plain))
    ones = BoostedTreesClassifier(**settings).fit(
        values, labels, np.ones(1500)
    )  # the same, with the bins of no weights
    np.testing.assert_array_equal(ones.predict_proba(values), plain[0].predict_proba(values))
    weighted = BoostedTreesClassifier(**settings).fit(values, labels, weights)
    assert 5 < weighted.n_iter_ < 200
    assert np.corrcoef(weighted.decision_function(values), plain[0].decision_function(values))[0, 1] > 0.9


def test_no_percentile_is_looked_up_alone(monkeypatch):
    """What makes it fast: scikit-learn's search, a sort for each percentile, is never reached."""
    values, labels, weights = table(1500, 0)

    def searched(*args, **options):
        raise AssertionError("a percentile was looked up")

    monkeypatch.setattr(binning, "_weighted_percentile", searched)
    with pytest.raises(AssertionError, match="a percentile was looked up"):
        HistGradientBoostingClassifier(max_iter=2).fit(values, labels, weights)
    BoostedTreesClassifier(max_iter=2).fit(values, labels, weights)


def test_a_threshold_beside_an_empty_bin_is_the_lower_one():
    """Rows of weight 4 among rows of 1: a value fills a bin, and the threshold behind it is half-way to the next value, with no row between."""
    generator = np.random.default_rng(0)
    weights = np.where(np.isin(np.arange(360), 2 + 7 * np.arange(50)), 4.0, 1.0)
    values = np.arange(360, dtype=np.float32)[:, None]
    labels = (generator.random(360) < 0.5).astype(np.int64)  # splits anywhere
    settings = {"max_iter": 30, "max_leaf_nodes": 31, "min_samples_leaf": 1, "early_stopping": False}
    expected = HistGradientBoostingClassifier(**settings).fit(values, labels, weights)
    found = BoostedTreesClassifier(**settings).fit(values, labels, weights)
    between = np.arange(0, 359, 0.125)[:, None]
    np.testing.assert_array_equal(found.decision_function(between), expected.decision_function(between))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("known", [0, 1, 19])
def test_columns_that_training_hardly_knows(known, weighted):
    """scikit-learn fails where no row of those that its bins come from has a value; no tree could divide such a column."""
    values, labels, weights = table(1500, 0)
    settings = {"max_iter": 60, "early_stopping": True, "validation_fraction": 0.3, "random_state": 0}
    given = [values, labels, weights] if weighted else [values, labels]
    expected = BoostedTreesClassifier(**settings).fit(np.insert(values, 3, 0, axis=1), *given[1:])
    for seed in range(4):
        column = np.full(len(values), np.nan)
        column[np.random.default_rng(seed).permutation(len(values))[:known]] = 5.0
        trees = BoostedTreesClassifier(**settings).fit(np.insert(values, 3, column, axis=1), *given[1:])
        for later in (np.nan, 7.0):
            rows = np.insert(values, 3, later, axis=1)
            np.testing.assert_array_equal(trees.decision_function(rows), expected.decision_function(rows))


def test_columns_with_values_enough_are_kept():
    values = np.full((1000, 2), np.nan)
    values[:30, 0] = values[:29, 1] = 1.0
    found = with_known_columns(values, 30)
    np.testing.assert_array_equal(found[:, 0], values[:, 0])
    assert not found[:, 1].any()
    weight = np.ones(1000)
    weight[:5] = 0
    assert not with_known_columns(values, 26, weight).any()
    BoostedTreesClassifier(max_iter=2).fit(values, np.arange(1000) % 2, np.where(np.isnan(values[:, 0]), 1.0, 0.0))
    many = np.full((600_000, 1), np.nan)
    many[:59] = 1.0
    assert not with_known_columns(many, 20).any()
    many[59] = 1.0
    assert with_known_columns(many, 20) is many
