"""Significance tests against direct formulas, scipy and simulations."""

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from lmctr.evaluation import metrics, significance


def loop_delong(labels, a, b):
    """DeLong's estimator from the kernel matrix psi(x, y), as written in the paper."""
    components = []
    for scores in (a, b):
        x, y = scores[labels == 1], scores[labels == 0]
        psi = np.array([[1.0 if u > v else 0.5 if u == v else 0.0 for v in y] for u in x])
        components.append((psi.mean(), psi.mean(axis=1), psi.mean(axis=0)))
    (auc_a, v10_a, v01_a), (auc_b, v10_b, v01_b) = components
    m, n = len(v10_a), len(v01_a)
    s10 = sum((v10_a - auc_a - v10_b + auc_b) ** 2) / (m - 1)
    s01 = sum((v01_a - auc_a - v01_b + auc_b) ** 2) / (n - 1)
    return auc_a, auc_b, math.sqrt(s10 / m + s01 / n)


@pytest.fixture
def scores():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 300)
    shared = generator.normal(size=300)
    a = np.round(labels + shared + 0.5 * generator.normal(size=300), 1)
    b = np.round(0.7 * labels + shared + 0.5 * generator.normal(size=300), 1)
    return labels, a, b


def test_delong_equals_the_paper(scores):
    labels, a, b = scores
    result = significance.delong_test(labels, a, b)
    auc_a, auc_b, error = loop_delong(*scores)
    assert (result.value_a, result.value_b) == pytest.approx((auc_a, auc_b), abs=1e-12)
    assert result.value_a == pytest.approx(metrics.auc(labels, a), abs=1e-12)
    assert result.standard_error == pytest.approx(error, abs=1e-12)
    assert result.p_value == pytest.approx(2 * stats.norm.sf(abs(auc_a - auc_b) / error), rel=1e-9)
    low, high = result.confidence_interval
    assert (high - low) == pytest.approx(2 * stats.norm.ppf(0.975) * error, rel=1e-9)
    assert low + high == pytest.approx(2 * result.difference)
    swapped = significance.delong_test(labels, b, a)
    assert swapped.difference == pytest.approx(-result.difference)
    assert swapped.p_value == pytest.approx(result.p_value)


def test_delong_holds_its_level():
    """Under the null hypothesis about 10 % of p values are below 0.1."""
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        labels = np.r_[np.ones(60, int), np.zeros(60, int)]
        shared = labels + generator.normal(size=120)
        a, b = shared + generator.normal(size=120), shared + generator.normal(size=120)
        hits += significance.delong_test(labels, a, b).p_value < 0.1
    assert 20 <= hits <= 62


def test_delong_of_equal_rankings_is_no_difference(scores):
    labels, a, _ = scores
    result = significance.delong_test(labels, a, 2 * a + 1)
    assert (result.difference, result.standard_error, result.p_value) == (0.0, 0.0, 1.0)
    perfect = significance.delong_test([0, 0, 1, 1], [1, 2, 3, 4], [4, 3, 2, 1])
    assert (perfect.difference, perfect.p_value) == (1.0, 0.0)


def test_paired_t_equals_scipy():
    a, b = [0.871, 0.868, 0.874], [0.866, 0.865, 0.867]
    result = significance.paired_t_test(a, b, confidence=0.9)
    expected = stats.ttest_rel(a, b)
    interval = expected.confidence_interval(0.9)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert result.confidence_interval == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert result.difference == pytest.approx(np.mean(a) - np.mean(b))


@pytest.mark.parametrize("shift", [0.25, 0.1, -0.1, 1e-4, 1000.0])
@pytest.mark.parametrize("b", [[0.25, 0.5], [0.7, 0.8], [0.7, 0.8, 0.9]])
def test_seeds_of_equal_differences_decide_nothing(b, shift):
    """Whether they are equal to the last bit, as the first are, or but for rounding."""
    result = significance.paired_t_test([value + shift for value in b], b)
    assert (result.p_value, result.standard_error) == (1.0, pytest.approx(0.0, abs=1e-12))
    assert result.detectable == math.inf
    assert result.difference == pytest.approx(shift)
    near = significance.paired_t_test([value + shift + 1e-8 * i for i, value in enumerate(b)], b)
    assert near.p_value == pytest.approx(
        stats.ttest_rel([shift + 1e-8 * i for i in range(len(b))], [0.0] * len(b)).pvalue, rel=1e-2
    )


def test_equal_values_are_no_difference():
    result = significance.paired_t_test([0.5, 0.6], [0.5, 0.6])
    assert (result.p_value, result.confidence_interval) == (1.0, (0.0, 0.0))
    near = significance.paired_t_test([0.1 + 0.2, 0.6], [0.3, 0.6])
    assert (near.p_value, near.detectable) == (1.0, pytest.approx(0.0, abs=1e-12))


def test_paired_bootstrap_mean_and_spread():
    generator = np.random.default_rng(2)
    b = generator.normal(size=40)
    a = b + generator.normal(0.1, 0.5, size=40)
    result = significance.paired_bootstrap_test(a, b, num_resamples=20_000)
    gaps = a - b
    assert result.difference == pytest.approx(gaps.mean())
    assert result.standard_error == pytest.approx(gaps.std() / math.sqrt(40), rel=0.03)
    assert result == significance.paired_bootstrap_test(a, b, num_resamples=20_000)  # seeded
    reached = significance.paired_bootstrap_test(b + 1, b, num_resamples=999)
    assert reached.p_value == pytest.approx(1 / 1000)


def test_cluster_bootstrap_of_single_clusters_agrees_with_delong(scores):
    labels, a, b = scores
    delong = significance.delong_test(labels, a, b)
    result = significance.cluster_bootstrap_test(labels, a, b, np.arange(300), num_resamples=1500)
    assert result.difference == pytest.approx(delong.difference, abs=1e-12)
    assert result.standard_error == pytest.approx(delong.standard_error, rel=0.1)


def test_cluster_bootstrap_sees_dependence_inside_clusters(scores):
    """Every sample ten times: a test that ignores users is ten times too sure of itself."""
    labels, a, b = (np.repeat(column, 10) for column in scores)
    users = np.repeat(np.arange(300), 10)
    single = significance.cluster_bootstrap_test(*scores, np.arange(300), num_resamples=400)
    clustered = significance.cluster_bootstrap_test(labels, a, b, users, num_resamples=400)
    assert clustered.standard_error == pytest.approx(single.standard_error, rel=1e-6)  # same draws, same weights
    assert significance.delong_test(labels, a, b).standard_error < 0.4 * clustered.standard_error


def test_cluster_bootstrap_takes_any_metric(scores):
    labels, a, b = scores
    metric = partial(metrics.log_loss, from_logits=True)
    result = significance.cluster_bootstrap_test(labels, a, b, np.arange(300) // 3, metric, num_resamples=200)
    assert result.value_a == metrics.log_loss(labels, a, from_logits=True)
    assert result.num_pairs == 100
    assert "cluster bootstrap" in str(result)
    assert f"{result.difference:+.4f}" in str(result)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_group_that_counts_alike_is_drawn_as_often_as_its_cluster(weighted):
    """UAUC of a draw is that of its users one after the other, the same one twice as two."""
    generator = np.random.default_rng(4)
    users = np.repeat(np.arange(60), generator.integers(4, 9, 60))
    labels = generator.integers(0, 2, len(users))
    a, b = (labels + generator.normal(size=len(users)) for _ in range(2))
    own = generator.uniform(0.1, 2, len(users)) if weighted else None
    alone = {}  # user -> AUC of each model
    for user in range(60):
        rows = users == user
        if len(set(labels[rows])) == 2:
            weight = None if own is None else own[rows]
            alone[user] = [metrics.auc(labels[rows], side[rows], weight) for side in (a, b)]
    gaps = [first - second for first, second in alone.values()]
    metric = partial(metrics.grouped_auc, groups=users, weighting="groups")
    [[result]] = significance.cluster_bootstrap_tests(labels, [(a, b)], users, [metric], own, num_resamples=2000)
    assert result.difference == pytest.approx(np.mean(gaps), abs=1e-12)
    assert result.standard_error == pytest.approx(np.std(gaps) / math.sqrt(len(gaps)), rel=0.08)
    draw = np.random.default_rng(0).multinomial(60, np.full(60, 1 / 60))[users]
    of_draw = metrics.of_weights(metric, labels, a, own)(draw if own is None else draw * own)
    drawn = [one for user, (one, _) in alone.items() for _ in range(draw[users == user][0])]
    assert of_draw == pytest.approx(np.mean(drawn), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: significance.delong_test([0, 0, 1], [1, 2, 3], [3, 2, 1]), "two samples of each class"),
        (lambda: significance.delong_test([1, 1], [1, 2], [3, 2]), "one class"),
        (lambda: significance.delong_test([0, 1], [1, 2], [3, np.nan]), "scores_b is NaN"),
        (lambda: significance.delong_test([0, 1], [1, 2], [3, 4], confidence=95), "confidence must lie"),
        (lambda: significance.paired_t_test([0.5], [0.6]), "at least two pairs"),
        (lambda: significance.paired_t_test([0.5, 0.6], [0.6]), "one length"),
        (lambda: significance.paired_bootstrap_test([0.5, np.nan], [0.6, 0.6]), "must be finite"),
        (lambda: significance.paired_bootstrap_test([0.5, 0.5], [0.6, 0.6], num_resamples=3), "at least 100"),
        (lambda: significance.cluster_bootstrap_test([0, 1], [1, 2], [1, 2], [0, 0]), "at least two clusters"),
        (lambda: significance.cluster_bootstrap_test([0, 1], [1, 2], [1, 2], [0, 1], num_resamples=1), "at least 100"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_draws_without_a_value_are_drawn_again():
    """Two of three users hold one class only: many draws have no grouped AUC, and those are left out."""
    labels = [1, 0, 1, 1, 0, 0]
    users = [0, 0, 1, 1, 2, 2]
    metric = partial(metrics.grouped_auc, groups=users)
    result = significance.cluster_bootstrap_test(
        labels, [2, 1, 0, 0, 0, 0], [1, 2, 0, 0, 0, 0], users, metric, num_resamples=200
    )
    assert (result.difference, result.confidence_interval) == (1.0, (1.0, 1.0))


METRICS = [
    metrics.auc,
    partial(metrics.grouped_auc, groups=np.arange(300) // 7),
    partial(metrics.log_loss, from_logits=True),
    partial(metrics.expected_calibration_error, from_logits=True),
    partial(metrics.expected_calibration_error, from_logits=True, strategy="quantile"),
]


@pytest.mark.parametrize("weighted", [False, True])
def test_tests_under_the_same_draws_are_those_made_one_by_one_by_plain_metrics(scores, weighted):
    """With ties of scores; without weights of the samples to the last bit."""
    labels, a, b = scores
    a, b = np.round(a, 1), np.round(b, 1)
    users = np.arange(300) // 3
    own = np.random.default_rng(1).random(300) if weighted else None
    together = significance.cluster_bootstrap_tests(labels, [(a, b), (b, a)], users, METRICS, own, num_resamples=150)
    for metric, there, back in zip(METRICS, *together):

        def plain(labels, scores, sample_weight=None, metric=metric):
            weights = [weight for weight in (sample_weight, own) if weight is not None]
            return metric(labels, scores, sample_weight=math.prod(weights) if weights else None)

        expected = significance.cluster_bootstrap_test(labels, a, b, users, plain, num_resamples=150)
        if not weighted:
            assert there == expected
        assert there.confidence_interval == pytest.approx(expected.confidence_interval, abs=1e-12)
        assert there.p_value == expected.p_value
        assert back.difference == -there.difference


def test_what_does_not_depend_on_the_draw_is_done_once(scores, monkeypatch):
    labels, a, b = scores
    checks, check = [], metrics._check
    monkeypatch.setattr(metrics, "_check", lambda *arguments: checks.append(1) or check(*arguments))
    significance.cluster_bootstrap_tests(labels, [(a, b)], np.arange(300), METRICS[:4], num_resamples=100)
    assert len(checks) == 8  # two scores by four metrics


@pytest.mark.parametrize("users", [np.arange(300), np.arange(300) // 6], ids=["samples", "users"])
def test_samples_without_weight_are_as_if_they_were_not_there(scores, users):
    labels, a, b = scores
    weights = np.random.default_rng(2).integers(0, 3, 300).astype(np.float64)
    weights[60:120] = 0
    measures = [partial(metrics.log_loss, from_logits=True), metrics.auc]
    found, expected = (
        significance.cluster_bootstrap_tests(
            labels[rows], [(a[rows], b[rows])], users[rows], measures, weights[rows], num_resamples=200
        )[0]
        for rows in (np.arange(300), np.flatnonzero(weights))
    )
    for one, other in zip(found, expected):
        assert one.num_pairs == other.num_pairs < len(np.unique(users))
        assert one.standard_error == pytest.approx(other.standard_error, rel=1e-9)
        assert one.p_value == other.p_value


def test_weights_of_clusters_are_repeated_samples(scores):
    labels, a, b = scores
    weights, users = np.random.default_rng(2).integers(0, 3, 300), np.arange(300) // 6
    rows = np.repeat(np.arange(300), weights)
    one = significance.cluster_bootstrap_tests(labels, [(a, b)], users, [metrics.auc], weights, num_resamples=200)
    other = significance.cluster_bootstrap_tests(
        labels[rows], [(a[rows], b[rows])], users[rows], [metrics.auc], num_resamples=200
    )
    assert one[0][0].standard_error == pytest.approx(other[0][0].standard_error, rel=1e-9)


def test_a_bootstrap_of_weighted_pairs_takes_their_means():
    a, b = np.random.default_rng(0).normal(size=(2, 50))
    weight = np.random.default_rng(1).uniform(0.1, 3, 50)
    plain, even = (
        significance.paired_bootstrap_test(a, b, 500, sample_weight=given) for given in (None, np.full(50, 2.0))
    )
    assert even.standard_error == pytest.approx(plain.standard_error)
    found = significance.paired_bootstrap_test(a, b, 500, sample_weight=weight)
    assert found.difference == pytest.approx(np.average(a - b, weights=weight))
    drawn = np.random.default_rng(0).integers(50, size=(500, 50))
    means = [np.average((a - b)[own], weights=weight[own]) for own in drawn]
    assert found.standard_error == pytest.approx(np.std(means, ddof=1))


def test_a_metric_that_most_draws_do_not_define_is_an_error():
    def metric(labels, scores, sample_weight=None):
        if sample_weight is not None and sample_weight[0] < 2:
            raise metrics.UndefinedMetricError
        return metrics.auc(labels, scores)

    with pytest.raises(ValueError, match="most draws of 6 clusters hold one class only"):
        significance.cluster_bootstrap_test([1, 0, 1, 0, 1, 0], range(6), range(6), range(6), metric, 100)
