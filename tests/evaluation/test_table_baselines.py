"""Counting and gradient boosting on tables."""

from types import SimpleNamespace

import numpy as np
import pytest

from lmctr.evaluation.metrics import auc
from lmctr.evaluation.table_baselines import (
    NUM_FOLDS,
    table_baseline_metrics,
    table_baseline_predictions,
    table_counting_baseline,
    table_features,
    table_gradient_boosting_baseline,
)


def make_table(num_rows=6000, seed=0, effect=1.0, vocabulary=30, **arrays):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocabulary, (num_rows, 3)).astype(np.int16)
    values = rng.normal(size=(num_rows, 2)).astype(np.float32)
    weight = np.random.default_rng(5).normal(size=(3, vocabulary))
    logit = effect * (weight[[0, 1, 2], ids].sum(1) + 1.5 * (np.abs(values[:, 0]) > 0.7) - 1)
    labels = (rng.random(num_rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    table = {"input_ids": ids, "numeric_values": values, "sequence_ids": None, "labels": labels}
    table |= {"groups": None, "weight": None}
    return SimpleNamespace(**{**table, **arrays}), logit


def parts(num_rows, cuts=(0.6, 0.8)):
    bounds = [int(cut * num_rows) for cut in cuts]
    return dict(zip(("train", "validation", "test"), np.split(np.arange(num_rows), bounds)))


def test_rates_of_validation_rows_are_the_smoothed_rates_of_the_training_part():
    table, _ = make_table(400)
    splits = parts(400)
    features = table_features(table, splits, strength=7.0)
    train = splits["train"]
    prior = table.labels[train].mean(dtype=np.float64)
    for place, row in enumerate(splits["validation"][:20]):
        for field in range(3):
            same = train[table.input_ids[train, field] == table.input_ids[row, field]]
            rate = (table.labels[same].sum(dtype=np.float64) + 7 * prior) / (len(same) + 7)
            assert features.rates["validation"][place, field] == pytest.approx(np.log(rate / (1 - rate)), rel=1e-5)
            assert features.counts["validation"][place, field] == pytest.approx(np.log1p(len(same)), rel=1e-6)


def test_counts_of_training_rows_are_those_of_rows_to_score_less_themselves():
    """By folds a value would count a fifth less in the rows that trees are fitted on than in those that they score."""
    table, _ = make_table(400)
    splits = parts(400)
    features = table_features(table, splits)
    train = splits["train"]
    for field in range(3):
        ids = table.input_ids[train, field]
        others = [(ids == value).sum() - 1 for value in ids]
        np.testing.assert_allclose(features.counts["train"][:, field], np.log1p(others), rtol=1e-5)


def test_weights_that_tell_the_label_do_not_tell_it_to_the_trees():
    """Negatives thinned out to a tenth, which stand for ten: a row's weight, and so its label, is not to be read from its values' counts."""
    whole, logit = make_table(60_000, vocabulary=600)
    thinned = (logit - 2.5 > np.random.default_rng(2).logistic(size=60_000)).astype(np.float32)
    kept = np.flatnonzero((thinned == 1) | (np.random.default_rng(1).random(60_000) < 0.1))
    table = SimpleNamespace(**{name: None if own is None else own[kept] for name, own in vars(whole).items()})
    table.labels = thinned[kept]
    table.weight = np.where(table.labels == 1, 1, 10).astype(np.float32)
    splits = parts(len(kept))
    counts = table_features(table, splits).counts
    table.weight = None
    np.testing.assert_array_equal(counts["train"], table_features(table, splits).counts["train"])
    table.weight = np.where(table.labels == 1, 1, 10).astype(np.float32)
    metrics = table_baseline_metrics(table, splits)
    losses = [metrics[name]["test"]["log_loss"] for name in ("field_counting", "field_gradient_boosting")]
    assert losses[1] < 1.02 * losses[0]


def test_a_training_row_never_sees_its_own_label():
    """Turning one label over changes the features of other rows of its values, never its own (but for the common prior)."""
    table, _ = make_table(300)
    splits = parts(300)
    before = table_features(table, splits).rates["train"]
    flipped, row = table.labels.copy(), 17
    flipped[row] = 1 - flipped[row]
    other = next(place for place in splits["train"] if table.labels[place] == flipped[row])
    flipped[other] = table.labels[row]  # keeps the prior
    table.labels = flipped
    after = table_features(table, splits).rates["train"]
    ids = table.input_ids
    changed = [field for field in range(3) if ids[row, field] != ids[other, field]]
    assert changed
    rng = np.random.default_rng([0, 77])
    fold = rng.integers(0, NUM_FOLDS, len(splits["train"]))
    for field in changed:
        assert after[row, field] == pytest.approx(before[row, field], abs=1e-6)
        same = (ids[splits["train"], field] == ids[row, field]) & (fold != fold[row])
        if same.any():
            assert np.abs(after[same, field] - before[same, field]).min() > 1e-3


def test_counting_finds_first_order_effects_and_trees_the_rest():
    table, logit = make_table(20000)
    splits = parts(20000)
    test = splits["test"]
    best = auc(table.labels[test], logit[test])
    features = table_features(table, splits)
    counting = auc(table.labels[test], table_counting_baseline(features)["test"])
    trees = auc(table.labels[test], table_gradient_boosting_baseline(features)["test"])
    assert counting > 0.5 + 0.9 * (best - 0.5)
    assert trees > 0.5 + 0.9 * (best - 0.5)


def test_rare_values_without_effect_give_no_score():
    """With in-fold rates the regression would trust rates that hold the row's own label: far below 0.5 + noise on test."""
    table, _ = make_table(6000, effect=0.0, vocabulary=3000)
    splits = parts(6000)
    features = table_features(table, splits)
    train_auc = auc(table.labels[splits["train"]], features.rates["train"][:, 0])
    assert abs(train_auc - 0.5) < 0.06
    metrics = table_baseline_metrics(table, splits)
    assert all(abs(metrics[name]["test"]["auc"] - 0.5) < 0.06 for name in metrics)
    assert all(metrics[name]["test"]["log_loss"] < 0.72 for name in metrics)


def test_sequences_groups_weights_and_a_limit_of_rows():
    table, _ = make_table(3000)
    rng = np.random.default_rng(3)
    table.sequence_ids = rng.integers(0, 9, (3000, 1, 4)).astype(np.int16)
    table.labels = (rng.random(3000) < 0.2 + 0.6 * (table.sequence_ids == 3).any((1, 2))).astype(np.float32)
    table.sequence_ids[:5] = 0
    table.groups, table.weight = rng.integers(0, 40, 3000), rng.uniform(0.5, 2, 3000).astype(np.float32)
    splits = parts(3000)
    metrics = table_baseline_metrics(table, splits, max_rows=1500)
    assert list(metrics) == ["field_counting", "field_gradient_boosting"]
    assert metrics["field_counting"]["test"]["auc"] > 0.6
    assert {"grouped_auc", "num_samples"} <= set(metrics["field_counting"]["validation"])
    features = table_features(table, splits, max_rows=1500)
    assert features.rates["train"].shape == (1500, 6)
    train = splits["train"]
    prior = np.average(table.labels[train], weights=table.weight[train])
    np.testing.assert_allclose(features.rates["train"][features.fitted < 5, 5], np.log(prior / (1 - prior)), rtol=1e-5)


@pytest.mark.parametrize("refit", [False, True])
def test_rows_of_weight_0_are_left_out(refit):
    table, _ = make_table(3000)
    table.weight = np.random.default_rng(1).integers(0, 3, 3000).astype(np.float32)
    splits, kept = parts(3000), np.flatnonzero(table.weight)
    less = SimpleNamespace(**{name: None if own is None else own[kept] for name, own in vars(table).items()})
    splits_of_less = {part: np.flatnonzero(np.isin(kept, rows)) for part, rows in splits.items()}
    found, expected = (
        table_baseline_predictions(one, own, refit=refit) for one, own in ((table, splits), (less, splits_of_less))
    )
    for name in found:
        of_kept = np.flatnonzero(table.weight[splits["test"]])
        np.testing.assert_allclose(found[name]["test"][of_kept], expected[name]["test"], rtol=1e-6)


def test_same_seed_same_scores():
    table, _ = make_table(1500)
    splits = parts(1500)
    assert table_baseline_metrics(table, splits) == table_baseline_metrics(table, splits)


def test_bad_input():
    table, _ = make_table(100)
    with pytest.raises(ValueError, match="strength must be greater than 0"):
        table_features(table, parts(100), strength=0)
    with pytest.raises(ValueError, match="no fields"):
        table_features(SimpleNamespace(**{**vars(table), "input_ids": None, "numeric_values": None}), parts(100))
    table.labels = np.ones(100, np.float32)
    with pytest.raises(ValueError, match="positives and negatives"):
        table_features(table, parts(100))


def test_a_refit_gives_the_test_part_baselines_of_training_and_validation():
    table, _ = make_table(3000)
    splits = parts(3000)
    plain, again = (table_baseline_metrics(table, splits, refit=refit) for refit in (False, True))
    both = {"train": np.sort(np.concatenate([splits["train"], splits["validation"]])), "test": splits["test"]}
    fitted = table_baseline_metrics(table, both)
    for name, metrics in again.items():
        assert metrics["validation"] == plain[name]["validation"]
        assert metrics["test"] == fitted[name]["test"] != plain[name]["test"]
