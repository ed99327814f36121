"""Is a difference real? Paired tests on the same samples (DeLong, cluster bootstrap) and over seeds (t test, bootstrap).

On CTR data 0.001 of AUC counts, so a difference is reported with its interval. Which test answers which question:

- `delong_test`: two fixed models, one test set, samples taken as independent.
- `cluster_bootstrap_test`: the same for any metric, where the samples of one user are not independent.
- `paired_t_test`, `paired_bootstrap_test`: two recipes, each trained with the same seeds; the seeds are the sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from lmctr.evaluation.metrics import (
    UndefinedMetricError,
    _check,
    _check_weight,
    _encode_groups,
    _require_both_classes,
    auc,
    of_weights,
)

__all__ = ["PairedTest", "cluster_bootstrap_test", "delong_test", "paired_bootstrap_test", "paired_t_test"]

_DRAWS_AT_ONCE = 1 << 22  # of a bootstrap held in memory
_ROUNDING = 1e-12  # differences that lie closer together, relative to the values, are the same but for rounding


@dataclass(frozen=True)
class PairedTest:
    """Result of a paired comparison of A and B; every difference is A - B.

    Attributes:
        method: name of the test.
        value_a, value_b: the metric (or its mean over seeds) of each.
        difference: value_a - value_b.
        standard_error: of the difference.
        p_value: two-sided, for the hypothesis that the difference is 0.
        confidence_interval: (low, high) of the difference.
        confidence: level of the interval.
        num_pairs: samples (or seeds, or clusters) that the test is based on.
    """

    method: str
    value_a: float
    value_b: float
    difference: float
    standard_error: float
    p_value: float
    confidence_interval: tuple[float, float]
    confidence: float
    num_pairs: int

    @property
    def detectable(self) -> float:
        """The least difference, up or down, that such a test calls significant: half of the interval."""
        return (self.confidence_interval[1] - self.confidence_interval[0]) / 2

    def cells(self) -> list[str]:
        """For tables: both values, their difference, its interval, and p."""
        low, high = self.confidence_interval
        values = [f"{self.value_a:.4f}", f"{self.value_b:.4f}", f"{self.difference:+.4f}"]
        return [*values, f"{low:+.4f} to {high:+.4f}", f"{self.p_value:.2g}"]

    def __str__(self) -> str:
        low, high = self.confidence_interval
        return (
            f"{self.method}: {self.value_a:.4f} - {self.value_b:.4f} = {self.difference:+.4f} "
            f"({100 * self.confidence:g} % interval {low:+.4f} to {high:+.4f}, p = {self.p_value:.3g}, n = {self.num_pairs})"
        )


def delong_test(labels: ArrayLike, scores_a: ArrayLike, scores_b: ArrayLike, confidence: float = 0.95) -> PairedTest:
    """DeLong's test for two correlated AUCs on the same samples (DeLong, DeLong and Clarke-Pearson, Biometrics 1988),
    by mid-ranks in O(S log S) (Sun and Xu, IEEE Signal Processing Letters 2014).

    Args:
        labels: (S,) values in {0, 1}.
        scores_a, scores_b: (S,) scores of the two models for the same samples.
        confidence: level of the interval, in (0, 1).

    Raises:
        ValueError: fewer than two samples of a class, and what `metrics.auc` refuses.
    """
    quantile = _normal_quantile(confidence)
    checked, scores_a = _check(labels, scores_a, "scores_a")
    _, scores_b = _check(labels, scores_b, "scores_b")
    _require_both_classes(checked, None, "delong_test")
    positive = checked == 1
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if min(num_positive, num_negative) < 2:
        raise ValueError(
            f"delong_test needs at least two samples of each class, got {num_positive} positive and {num_negative} negative"
        )
    from scipy.stats import rankdata  # takes a third of a second, which predictions need not wait for

    scores = np.stack([scores_a, scores_b])
    # Structural components: share of the other class that a sample is ranked rightly against, ties one half.
    rank_all = rankdata(scores, axis=1)
    above = (rank_all[:, positive] - rankdata(scores[:, positive], axis=1)) / num_negative
    below = 1.0 - (rank_all[:, ~positive] - rankdata(scores[:, ~positive], axis=1)) / num_positive
    values = above.mean(axis=1)
    covariance = np.cov(above) / num_positive + np.cov(below) / num_negative
    variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    difference = float(values[0] - values[1])
    if np.array_equal(above[0], above[1]) and np.array_equal(below[0], below[1]):
        variance, difference = 0.0, 0.0
    error = math.sqrt(max(variance, 0.0))
    p_value = math.erfc(abs(difference) / error / math.sqrt(2)) if error else float(difference == 0)
    interval = difference - quantile * error, difference + quantile * error
    a, b = values.tolist()
    return PairedTest("DeLong", a, b, difference, error, p_value, interval, confidence, num_pairs=len(checked))


def cluster_bootstrap_test(
    labels: ArrayLike,
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    clusters: ArrayLike,
    metric: Callable[..., float] = auc,
    num_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> PairedTest:
    """Bootstrap of the difference of a metric that draws whole clusters (users) with replacement.

    Args:
        labels, scores_a, scores_b: (S,) as for `metric`.
        clusters: (S,) cluster of each sample, usually the user.
        metric: `metric(labels, scores, sample_weight=...) -> float`, such as those of `lmctr.evaluation.metrics`; a draw is
            given as integer weights. Fix further arguments with `functools.partial`. Where `grouped_auc` counts groups alike, one that
            is drawn twice counts twice.
        num_resamples: number of draws, at least 100.
        confidence: level of the percentile interval.
        seed: seed of the draws.

    The p value is twice the smaller share of draws on one side of 0 (ties half), at least 1 / (num_resamples + 1). Draws
    on which the metric is not defined (`UndefinedMetricError`: one class) are drawn again; ValueError where more than half are so.

    Raises:
        ValueError: fewer than two clusters, and what `metric` refuses.
    """
    pairs, metrics = [(scores_a, scores_b)], [metric]
    return cluster_bootstrap_tests(labels, pairs, clusters, metrics, None, num_resamples, confidence, seed)[0][0]


def cluster_bootstrap_tests(
    labels: ArrayLike,
    pairs: Sequence[tuple[ArrayLike, ArrayLike]],
    clusters: ArrayLike,
    metrics: Sequence[Callable[..., float]],
    sample_weight: ArrayLike | None = None,
    num_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[list[PairedTest]]:
    """`cluster_bootstrap_test` of several pairs of scores of the same samples by several metrics, under the same draws: for each pair a test
    per metric. `sample_weight`: (S,) the samples' own weights, by which those of a draw are multiplied; one of 0 is as if it
    were not there.

    Raises:
        ValueError: as `cluster_bootstrap_test`.
    """
    _normal_quantile(confidence)
    _check_resamples(num_resamples)
    checked = [
        [_check(labels, scores, name) for scores, name in zip(pair, ("scores_a", "scores_b"))] for pair in pairs
    ]
    own = _check_weight(sample_weight, labels)
    codes, num_clusters = _encode_groups(clusters, len(labels))
    if own is not None:  # nobody draws samples of weight 0
        kept, codes = np.unique(np.where(own > 0, codes, num_clusters), return_inverse=True)
        num_clusters = int((kept < num_clusters).sum())
    if num_clusters < 2:
        raise ValueError("cluster_bootstrap_test needs at least two clusters; got one")
    measures = [[[of_weights(metric, *side, own) for side in pair] for metric in metrics] for pair in checked]
    values = [[[side(own) for side in sides] for sides in of_pair] for of_pair in measures]
    generator, even = np.random.default_rng(seed), np.full(num_clusters, 1.0 / num_clusters)
    draws: list[list[list[float]]] = [[[] for _ in metrics] for _ in pairs]
    open_ones = [(i, k) for i in range(len(pairs)) for k in range(len(metrics))]
    failures = dict.fromkeys(open_ones, 0)
    while open_ones:
        drawn = generator.multinomial(num_clusters, even)
        weight = drawn.astype(np.float64)[codes] if own is None else np.append(drawn, 0)[codes] * own
        for i, k in open_ones:
            measure_a, measure_b = measures[i][k]
            try:
                draws[i][k].append(measure_a(weight) - measure_b(weight))
            except UndefinedMetricError:
                failures[i, k] += 1
                if failures[i, k] > num_resamples:
                    raise ValueError(
                        f"most draws of {num_clusters} clusters hold one class only: the data is too small for this test"
                    ) from None
        open_ones = [(i, k) for i, k in open_ones if len(draws[i][k]) < num_resamples]
    return [
        [
            _bootstrap_result("cluster bootstrap", (a, b, a - b), np.asarray(drawn), confidence, num_clusters)
            for (a, b), drawn in zip(*of_pair)
        ]
        for of_pair in zip(values, draws)
    ]


def paired_t_test(values_a: Sequence[float], values_b: Sequence[float], confidence: float = 0.95) -> PairedTest:
    """Student's paired t test over runs: `values_a[i]` and `values_b[i]` come from the same seed (and split).

    Differences that are equal but for rounding say nothing of how far those of other seeds would spread, and decide nothing: unless they are 0,
    p is 1 and the interval without end.

    Raises:
        ValueError: lengths that differ, fewer than two pairs, non-finite values.
    """
    a, b = _paired_values(values_a, values_b, confidence)
    gaps = a - b
    difference, error = float(gaps.mean()), float(gaps.std(ddof=1) / math.sqrt(len(gaps)))
    from scipy.stats import t  # see above

    student, rounding = t(df=len(gaps) - 1), _ROUNDING * max(np.abs(a).max(), np.abs(b).max())
    reach, p_value = float(student.ppf(0.5 + confidence / 2)) * error, 1.0
    if np.ptp(gaps) > rounding:
        p_value = float(2 * student.sf(abs(difference) / error))
    elif abs(difference) > rounding:
        reach = math.inf
    means, interval = (float(a.mean()), float(b.mean())), (difference - reach, difference + reach)
    return PairedTest("paired t test", *means, difference, error, p_value, interval, confidence, num_pairs=len(gaps))


def paired_bootstrap_test(
    values_a: Sequence[float],
    values_b: Sequence[float],
    num_resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
    sample_weight: ArrayLike | None = None,
) -> PairedTest:
    """Bootstrap over runs of the mean of the paired differences; percentile interval, p value as `cluster_bootstrap_test`.

    With three seeds a bootstrap has ten different draws: read it as a range, and prefer the t test there. `sample_weight`: weights above 0 of the
    pairs, by which means are taken.

    Raises:
        ValueError: lengths that differ, fewer than two pairs, fewer than 100 resamples, non-finite values.
    """
    a, b = _paired_values(values_a, values_b, confidence)
    _check_resamples(num_resamples)
    gaps = a - b
    generator = np.random.default_rng(seed)
    step = max(1, _DRAWS_AT_ONCE // len(gaps))
    sizes = [min(step, num_resamples - start) for start in range(0, num_resamples, step)]
    draws = (generator.integers(len(gaps), size=(size, len(gaps))) for size in sizes)
    weight = _check_weight(sample_weight, gaps)
    if weight is None:
        means = [gaps[drawn].mean(axis=1) for drawn in draws]
    else:
        means = [(weight * gaps)[drawn].sum(axis=1) / weight[drawn].sum(axis=1) for drawn in draws]
    values = tuple(float(np.average(own, weights=weight)) for own in (a, b, gaps))
    return _bootstrap_result("paired bootstrap", values, np.concatenate(means), confidence, len(gaps))


def _bootstrap_result(
    method: str, values: tuple[float, float, float], draws: np.ndarray, confidence: float, num_pairs: int
) -> PairedTest:
    """`values`: the metric of A and of B, and their difference."""
    low, high = np.quantile(draws, [0.5 - confidence / 2, 0.5 + confidence / 2])
    at_or_below = float((draws < 0).mean() + (draws == 0).mean() / 2)
    p_value = max(2 * min(at_or_below, 1 - at_or_below), 1 / (len(draws) + 1))
    error, interval = float(draws.std(ddof=1)), (float(low), float(high))
    return PairedTest(method, *map(float, values), error, p_value, interval, confidence, num_pairs)


def _paired_values(
    values_a: Sequence[float], values_b: Sequence[float], confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    _normal_quantile(confidence)
    a, b = np.asarray(values_a, dtype=np.float64), np.asarray(values_b, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(
            f"values_a and values_b must be paired lists of one length, got shapes {a.shape} and {b.shape}"
        )
    if len(a) < 2:
        raise ValueError(f"a paired test over runs needs at least two pairs, got {len(a)}: train with more seeds")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("values_a and values_b must be finite; leave out the runs that failed, in both lists")
    return a, b


def _check_resamples(number: int) -> None:
    if number < 100:
        raise ValueError(f"num_resamples must be at least 100, got {number}")


def _normal_quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    return NormalDist().inv_cdf(0.5 + confidence / 2)
