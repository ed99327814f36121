"""Metrics against scikit-learn and against plain float64 loops."""

import itertools
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from lmctr.evaluation import metrics


def loop_auc(labels, scores, weights):
    """Sum over all pairs of a positive and a negative, ties one half."""
    total = pairs = 0.0
    for label_i, score_i, weight_i in zip(labels, scores, weights):
        for label_j, score_j, weight_j in zip(labels, scores, weights):
            if label_i == 1 and label_j == 0:
                pairs += weight_i * weight_j
                total += weight_i * weight_j * (1.0 if score_i > score_j else 0.5 if score_i == score_j else 0.0)
    return total / pairs if pairs else None


def loop_grouped_auc(labels, scores, groups, weights, alike=False):
    total = mass = 0.0
    for group in set(groups):
        rows = [i for i, other in enumerate(groups) if other == group]
        value = loop_auc([labels[i] for i in rows], [scores[i] for i in rows], [weights[i] for i in rows])
        if value is not None:
            impressions = 1.0 if alike else sum(weights[i] for i in rows)
            total += impressions * value
            mass += impressions
    return total / mass if mass else None


def loop_ece(labels, probabilities, weights, num_bins, strategy):
    bins = {}
    for label, p, weight in zip(labels, probabilities, weights):
        if strategy == "uniform":
            index = max(i for i in range(num_bins) if i == 0 or p >= np.linspace(0, 1, num_bins + 1)[i])
        else:
            below = sum(w for q, w in zip(probabilities, weights) if q < p)
            index = math.floor(num_bins * (below / sum(weights)))
        bins.setdefault(index, []).append((label, p, weight))
    total = 0.0
    for rows in bins.values():
        mass = sum(w for _, _, w in rows)
        total += mass * abs(sum(w * y for y, _, w in rows) / mass - sum(w * p for _, p, w in rows) / mass)
    return total / sum(weights)


# Few different scores, so that ties are common.
rows = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5000001, 0.9, 1.0]),
        st.integers(0, 3),
        st.sampled_from([0.5, 1.0, 2.0, 3.25]),
    ),
    min_size=1,
    max_size=40,
)


@given(rows)
@settings(max_examples=200, deadline=None)
def test_every_metric_equals_its_loop(data):
    labels, scores, groups, weights = (list(column) for column in zip(*data))
    for weight in (None, weights):
        plain = weight or [1.0] * len(labels)
        expected = loop_auc(labels, scores, plain)
        if expected is None:
            with pytest.raises(ValueError, match="one class"):
                metrics.auc(labels, scores, weight)
            with pytest.raises(ValueError, match="one class"):
                metrics.normalized_entropy(labels, scores, sample_weight=weight)
        else:
            assert metrics.auc(labels, scores, weight) == pytest.approx(expected, abs=1e-12)
        expected = loop_grouped_auc(labels, scores, groups, plain)
        if expected is None:
            with pytest.raises(ValueError, match="none of the"):
                metrics.grouped_auc(labels, scores, groups, weight)
        else:
            assert metrics.grouped_auc(labels, scores, groups, weight) == pytest.approx(expected, abs=1e-12)
            expected = loop_grouped_auc(labels, scores, groups, plain, alike=True)
            value = metrics.grouped_auc(labels, scores, groups, weight, weighting="groups")
            assert value == pytest.approx(expected, abs=1e-12)
        for strategy in ("uniform", "quantile"):
            for num_bins in (1, 2, 10):
                value = metrics.expected_calibration_error(
                    labels, scores, num_bins=num_bins, strategy=strategy, sample_weight=weight
                )
                assert value == pytest.approx(loop_ece(labels, scores, plain, num_bins, strategy), abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_against_scikit_learn(weighted):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 3000)
    logits = np.round(generator.normal(size=3000) + labels, 2)  # rounding makes ties
    probabilities = 1 / (1 + np.exp(-logits))
    weight = generator.uniform(0, 2, 3000) if weighted else None
    assert metrics.auc(labels, logits, weight) == pytest.approx(
        sk.roc_auc_score(labels, logits, sample_weight=weight), abs=1e-12
    )
    loss = sk.log_loss(labels, probabilities, sample_weight=weight)
    assert metrics.log_loss(labels, probabilities, sample_weight=weight) == pytest.approx(loss, abs=1e-12)
    assert metrics.log_loss(labels, logits, from_logits=True, sample_weight=weight) == pytest.approx(loss, abs=1e-12)
    rate = np.average(labels, weights=weight)
    entropy = sk.log_loss(labels, np.full(3000, rate), sample_weight=weight)
    for values, from_logits in ((probabilities, False), (logits, True)):
        value = metrics.normalized_entropy(labels, values, from_logits=from_logits, sample_weight=weight)
        assert value == pytest.approx(loss / entropy, abs=1e-12)
    same = metrics.expected_calibration_error(labels, logits, from_logits=True, sample_weight=weight)
    assert same == pytest.approx(metrics.expected_calibration_error(labels, probabilities, sample_weight=weight))


@pytest.mark.parametrize(("length", "inside"), [(2, 0), (3, 1 / 12)])
def test_grouped_auc_of_exact_probabilities_that_learn_from_earlier_labels(length, inside):
    """Users whose rate is drawn uniformly: Laplace's rule is exact, and yet below the one half of knowing nothing."""
    users = list(itertools.product([0, 1], repeat=length))  # every course of labels, as often as it happens
    chance = [1 / ((length + 1) * math.comb(length, sum(course))) for course in users]
    labels, weight = np.ravel(users), np.repeat(chance, length)
    exact = np.ravel([[(sum(course[:seen]) + 1) / (seen + 2) for seen in range(length)] for course in users])
    before, user = np.full(len(labels), 0.5), np.repeat(np.arange(len(users)), length)
    of_exact, of_before = (metrics.log_loss(labels, own, sample_weight=weight) for own in (exact, before))
    assert of_exact < of_before
    assert metrics.auc(labels, exact, weight) > 0.5
    assert metrics.grouped_auc(labels, before, user, weight) == pytest.approx(0.5)
    assert metrics.grouped_auc(labels, exact, user, weight) == pytest.approx(inside)


def test_grouped_auc_against_scikit_learn_per_group():
    generator = np.random.default_rng(1)
    users = np.repeat([f"user {i}" for i in range(200)], generator.integers(1, 30, 200))
    labels = generator.integers(0, 2, len(users))
    labels[users == "user 3"] = 1  # a group of one class is left out
    scores = np.round(generator.normal(size=len(users)), 1)
    shuffled = generator.permutation(len(users))
    users, labels, scores = users[shuffled], labels[shuffled], scores[shuffled]
    total = mass = 0.0
    for user in np.unique(users):
        inside = users == user
        if labels[inside].min() != labels[inside].max():
            total += inside.sum() * sk.roc_auc_score(labels[inside], scores[inside])
            mass += inside.sum()
    assert metrics.grouped_auc(labels, scores, users) == pytest.approx(total / mass, abs=1e-12)


def test_integer_weights_are_repetitions():
    generator = np.random.default_rng(2)
    labels, scores = generator.integers(0, 2, 300), np.round(generator.uniform(size=300), 2)
    groups, weight = generator.integers(0, 9, 300), generator.integers(0, 4, 300)
    again = np.repeat(np.arange(300), weight)
    calls = [
        lambda y, p, g, w: metrics.auc(y, p, w),
        lambda y, p, g, w: metrics.grouped_auc(y, p, g, w),
        lambda y, p, g, w: metrics.log_loss(y, p, sample_weight=w),
        lambda y, p, g, w: metrics.normalized_entropy(y, p, sample_weight=w),
        lambda y, p, g, w: metrics.expected_calibration_error(y, p, sample_weight=w),
        lambda y, p, g, w: metrics.expected_calibration_error(y, p, num_bins=7, strategy="quantile", sample_weight=w),
    ]
    for call in calls:
        expected = call(labels[again], scores[again], groups[again], None)
        assert call(labels, scores, groups, weight) == pytest.approx(expected, abs=1e-12)


def test_auc_is_exact_where_binned_scores_are_not():
    """All scores inside one thousandth, in the right order: a binned AUC sees one bin."""
    labels = np.repeat([0, 1], 5000)
    assert metrics.auc(labels, 0.5 + np.arange(10_000) * 1e-9) == 1.0
    assert metrics.auc(labels, 0.5 - np.arange(10_000) * 1e-9) == 0.0
    assert metrics.auc(labels, np.zeros(10_000)) == 0.5


def test_log_loss_from_logits_is_exact_far_out():
    assert metrics.log_loss([1, 0], [-800.0, 800.0], from_logits=True) == 800.0
    assert metrics.log_loss([1, 0], [800.0, -800.0], from_logits=True) == 0.0
    for kind in (np.float32, np.float64):
        values = np.array([1.0, 0.0], dtype=kind)
        assert metrics.log_loss([0, 1], values) == pytest.approx(-np.log(np.finfo(kind).eps), rel=1e-6)


def test_uniform_bin_edges_belong_to_the_upper_bin():
    # 0.29 * 100 is 28.999... in floating point: the bin comes from the edges, not from the product.
    labels, probabilities = [0, 1], [0.29, 0.295]
    assert metrics.expected_calibration_error(labels, probabilities, num_bins=100) == pytest.approx(abs(0.5 - 0.2925))


def test_decimals_lie_in_the_bins_that_they_begin():
    for tenth in range(10):
        found = metrics.expected_calibration_error([1, 0], [tenth / 10, tenth / 10 + 0.05])
        assert found == pytest.approx(abs(0.5 - tenth / 10 - 0.025))


def test_equal_weights_make_the_quantiles_of_none():
    rng = np.random.default_rng(0)
    for count in range(20, 400, 7):
        labels, probabilities = rng.integers(0, 2, count), rng.random(count)
        plain = metrics.calibration_curve(labels, probabilities, 100)
        for weight in (1.0, 0.1):
            found = metrics.calibration_curve(labels, probabilities, 100, sample_weight=np.full(count, weight))
            for one, two in zip(found, plain, strict=True):
                np.testing.assert_allclose(one, two)


def test_quantile_bins_hold_equal_counts_and_ties_share_one():
    bins = metrics._quantile_bins(np.array([0.4, 0.1, 0.3, 0.2]), 2, None)
    assert bins.tolist() == [1, 0, 1, 0]
    tied = metrics._quantile_bins(np.array([0.1, 0.5, 0.5, 0.5]), 4, None)
    assert tied.tolist() == [0, 1, 1, 1]


def test_lists_tensors_and_bfloat16_are_taken():
    labels, scores = [0, 1, 1, 0], [0.125, 0.5, 0.25, 0.25]
    expected = metrics.auc(labels, scores)
    assert (
        metrics.auc(torch.tensor(labels), torch.tensor(scores, dtype=torch.bfloat16, requires_grad=True)) == expected
    )
    assert metrics.auc(np.array(labels, dtype=bool), np.array(scores, dtype=np.float16)) == expected
    groups = torch.tensor([0, 0, 1, 1])
    assert metrics.grouped_auc(torch.tensor(labels), torch.tensor(scores), groups) == 0.75
    assert metrics.log_loss(torch.tensor(labels), torch.tensor(scores)) == pytest.approx(sk.log_loss(labels, scores))


def test_tensors_in_float64_keep_their_digits():
    labels, scores = [0, 1], [0.5, 0.5 + 1e-12]
    assert metrics.auc(torch.tensor(labels), torch.tensor(scores, dtype=torch.float64)) == 1.0
    loss = metrics.log_loss(torch.tensor([1, 0]), torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert loss == metrics.log_loss([1, 0], [0.0, 1.0])


@pytest.mark.parametrize("factor", [1e-310, 1e-300, 1e200, 1e305])
def test_only_the_ratios_of_weights_count(factor):
    """Products and sums of such weights leave float64."""
    generator = np.random.default_rng(5)
    labels, weight, groups = (
        generator.integers(0, 2, 300),
        generator.integers(1, 4, 300),
        generator.integers(0, 20, 300),
    )
    scores = np.round(generator.random(300), 2)
    for metric in (
        metrics.auc,
        partial(metrics.grouped_auc, groups=groups),
        metrics.log_loss,
        metrics.normalized_entropy,
        metrics.expected_calibration_error,
    ):
        expected = metric(labels, scores, sample_weight=weight)
        assert metric(labels, scores, sample_weight=weight * factor) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.auc([], []), "labels is empty"),
        (lambda: metrics.auc([1, 1], [0.1, 0.2]), "all 2 samples are positive"),
        (lambda: metrics.auc([0, 0, 1], [0.1, 0.2, 0.3], [1, 1, 0]), "all 2 samples are negative"),
        (lambda: metrics.auc([0, 2], [0.1, 0.2]), "labels must be 0 or 1, got .*2.* at row 1"),
        (lambda: metrics.auc([0, -100], [0.1, 0.2]), "at row 1"),
        (lambda: metrics.auc([0, 1], [0.1]), "scores has 1 values, labels has 2"),
        (lambda: metrics.auc([0, 1], [0.1, np.nan]), "scores is NaN at row 1"),
        (lambda: metrics.auc([[0, 1]], [[0.1, 0.2]]), r"one dimension .* got shape \(1, 2\)"),
        (lambda: metrics.auc([0, 1], ["a", "b"]), "scores must be numbers"),
        (lambda: metrics.auc([0, 1], [0.1, 0.2], [1.0]), "sample_weight has 1 values"),
        (lambda: metrics.auc([0, 1], [0.1, 0.2], [1.0, -1.0]), "not negative, got -1.0 at row 1"),
        (lambda: metrics.auc([0, 1], [0.1, 0.2], [0.0, 0.0]), "sample_weight is 0 for every sample"),
        (lambda: metrics.log_loss([0, 1], [0.1, 1.2]), r"in \[0, 1\] .* got 1.2 at row 1"),
        (lambda: metrics.log_loss([0, 1], [0.1, np.inf], from_logits=True), "finite, got inf at row 1"),
        (lambda: metrics.normalized_entropy([1, 1], [0.4, 0.5]), "not defined on one class"),
        (lambda: metrics.grouped_auc([0, 1], [0.1, 0.2], [1, 2]), "none of the 2 groups"),
        (lambda: metrics.grouped_auc([0, 1], [0.1, 0.2], [1]), "groups must have shape .*one per sample"),
        (
            lambda: metrics.grouped_auc([0, 1], [0.1, 0.2], [1, 1], weighting="users"),
            "'samples' or 'groups', got 'users'",
        ),
        (lambda: metrics.grouped_auc([0, 1], [0.1, 0.2], [1, np.nan]), "groups is NaN at row 1"),
        (lambda: metrics.grouped_auc([0, 1], [0.1, 0.2], pd.array(["a", None], "string")), "groups is <NA> at row 1"),
        (
            lambda: metrics.grouped_auc([0, 1], [0.1, 0.2], np.array(["2024-01-01", "NaT"], "datetime64[D]")),
            "groups is NaT at row 1",
        ),
        (lambda: metrics.grouped_auc([0, 1], [0.1, 0.2], np.array([1, "a"], object)), r"different types \(int, str\)"),
        (lambda: metrics.auc([0, 1], np.ma.masked_array([0.1, 0.2], [0, 1])), r"scores is masked at 1 \(1 values\)"),
        (lambda: metrics.auc(np.ma.masked_array([0, 1], [1, 0]), [0.1, 0.2]), "labels is masked at 0"),
        (lambda: metrics.grouped_auc([0, 1], [1, 2], np.ma.masked_array([0, 1], [0, 1])), "groups is masked at 1"),
        (lambda: metrics.expected_calibration_error([0, 1], [0.1, 0.2], num_bins=0), "num_bins must be an integer"),
        (
            lambda: metrics.expected_calibration_error([0, 1], [0.1, 0.2], True),
            "integer from 1 to 1,000,000, got True",
        ),
        (lambda: metrics.calibration_curve([0, 1], [0.1, 0.2], 10**30), "num_bins must be an integer from 1 to 1,000"),
        (lambda: metrics.expected_calibration_error([0, 1], [0.1, 0.2], strategy="even"), "'uniform' or 'quantile'"),
    ],
)
def test_input_without_a_value_is_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_million_samples_in_a_hundred_thousand_groups_take_seconds():
    """A loop over groups would take minutes; the bound leaves room for a slow machine."""
    import time

    generator = np.random.default_rng(3)
    labels, scores = generator.integers(0, 2, 1_000_000), generator.normal(size=1_000_000)
    groups = generator.integers(0, 100_000, 1_000_000)
    start = time.perf_counter()
    metrics.grouped_auc(labels, scores, groups)
    assert time.perf_counter() - start < 10
