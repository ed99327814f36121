"""CTR metrics on arrays, in scikit-learn's argument order (labels, scores).

All metrics are exact: no binning of scores, ties count one half, sums in float64. They take lists, numpy arrays or CPU
tensors of shape (S,) with labels in {0, 1}, and an optional `sample_weight` (S,) of non-negative finite numbers. Input that a
metric is not defined on (one class, NaN, a probability outside [0, 1]) is a `ValueError`, never a substituted value.
The metrics of retrieval on impressions, (B, n), come from `ranking_metrics`.

S: samples, G: groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from .errors import UndefinedMetricError, plain
from .ranking_metrics import RankingMetrics, ndcg, ordered_pair_accuracy, recall_at, revenue_ratio

_MOST_BINS = 1_000_000

__all__ = [
    "RankingMetrics",
    "UndefinedMetricError",
    "auc",
    "calibration_curve",
    "expected_calibration_error",
    "grouped_auc",
    "log_loss",
    "ndcg",
    "normalized_entropy",
    "ordered_pair_accuracy",
    "recall_at",
    "revenue_ratio",
]


OfWeights = Callable[[np.ndarray | None], float]
"""A metric of fixed labels and scores as a function of float64 weights (S,), or of None, that are taken as valid."""


def auc(labels: ArrayLike, scores: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """Area under the ROC curve: the probability that a positive is scored above a negative, ties counted one half.

    Args:
        labels: (S,) values in {0, 1}.
        scores: (S,) any real scores (logits or probabilities); only their order matters. Infinities are legal.
        sample_weight: (S,) weights; a weight of 2 equals the sample given twice.

    Returns:
        The AUC in [0, 1].

    Raises:
        ValueError: one class only, NaN scores, shapes that differ, labels outside {0, 1}, negative weights.
    """
    return _auc_of_weights(labels, scores)(_check_weight(sample_weight, labels))


def _auc_of_weights(labels: ArrayLike, scores: ArrayLike) -> OfWeights:
    labels, scores = _check(labels, scores, "scores")
    per_group = _auc_per_group(labels, scores, np.zeros(len(labels), dtype=np.int64), 1)

    def measure(weight: np.ndarray | None) -> float:
        value = per_group(weight)[0][0]
        if np.isnan(value):
            _require_both_classes(labels, weight, "auc")
        return float(value)

    return measure


def grouped_auc(
    labels: ArrayLike,
    scores: ArrayLike,
    groups: ArrayLike,
    sample_weight: ArrayLike | None = None,
    weighting: str = "samples",
) -> float:
    """Mean of the AUC inside each group, by default weighted by impressions (gAUC; Zhou et al., "Deep Interest Network", KDD 2018,
    Eq. 10).

    A group counts with the number (with `sample_weight`: the weight) of all its samples, or each group alike (UAUC, when the
    groups are users). Groups with one class have no AUC and are left out of both sums.

    Samples of a user at different times are pairs that no list holds. A score that has seen the earlier of their labels loses by it here: after a
    click it is higher, and of the clicks that the user has, one fewer is left. So the exact probabilities of users that differ in their rate alone
    have less than one half. Where that decides, compare scores of one moment, or of users as they were before the first sample.

    Args:
        labels: (S,) values in {0, 1}.
        scores: (S,) scores.
        groups: (S,) group of each sample, usually the user: integers or strings, in any order.
        sample_weight: (S,) weights.
        weighting: what a group counts: "samples" or "groups".

    Raises:
        ValueError: as `auc`, where no group holds both classes, and for another weighting.
    """
    weight = _check_weight(sample_weight, labels)
    return _grouped_auc_of_weights(labels, scores, groups, weighting, weight)(weight)


def _grouped_auc_of_weights(
    labels: ArrayLike,
    scores: ArrayLike,
    groups: ArrayLike,
    weighting: str = "samples",
    own: np.ndarray | None = None,
) -> OfWeights:
    if weighting not in ("samples", "groups"):
        raise ValueError(f"weighting must be 'samples' or 'groups', got {weighting!r}")
    labels, scores = _check(labels, scores, "scores")
    codes, num_groups = _encode_groups(groups, len(labels))
    per_group = _auc_per_group(labels, scores, codes, num_groups)
    # where groups count alike, one that is drawn twice counts twice: by its weight now over that of its samples as they are
    unit = per_group(own)[1] if weighting == "groups" else np.ones(num_groups)

    def measure(weight: np.ndarray | None) -> float:
        values, impressions = per_group(weight)
        defined = ~np.isnan(values)
        if not defined.any():
            raise UndefinedMetricError(
                f"grouped_auc is not defined: none of the {num_groups} groups has both a positive and a negative sample; "
                "give more samples per group or use auc"
            )
        return float(np.average(values[defined], weights=impressions[defined] / unit[defined]))

    return measure


def log_loss(
    labels: ArrayLike, probabilities: ArrayLike, from_logits: bool = False, sample_weight: ArrayLike | None = None
) -> float:
    """Mean binary cross entropy in nats.

    Args:
        labels: (S,) values in {0, 1}.
        probabilities: (S,) probabilities of the positive class; with `from_logits`, logits.
        from_logits: compute from logits, without going through probabilities (exact for large logits).
        sample_weight: (S,) weights.

    Probabilities of exactly 0 or 1 are moved inside by the epsilon of their own floating type, as scikit-learn does.

    Raises:
        ValueError: probabilities outside [0, 1], NaN or infinite values, shapes that differ, labels outside {0, 1}.
    """
    return _log_loss_of_weights(labels, probabilities, from_logits)(_check_weight(sample_weight, labels))


def _log_loss_of_weights(labels: ArrayLike, probabilities: ArrayLike, from_logits: bool = False) -> OfWeights:
    labels, values = _check_predictions(labels, probabilities, from_logits)
    if from_logits:
        losses = np.logaddexp(0.0, np.where(labels == 1, -values, values))
    else:
        epsilon = _epsilon(probabilities)
        inside = np.clip(values, epsilon, 1.0 - epsilon)
        losses = -np.where(labels == 1, np.log(inside), np.log1p(-inside))
    return partial(_mean, losses)


def normalized_entropy(
    labels: ArrayLike, probabilities: ArrayLike, from_logits: bool = False, sample_weight: ArrayLike | None = None
) -> float:
    """Log loss divided by the entropy of the labels' own positive rate (He et al., "Practical Lessons from Predicting Clicks
    on Ads at Facebook", ADKDD 2014, Eq. 1). 1 is what the constant prediction of that rate gets; lower is better.

    Arguments and errors are those of `log_loss`; one class only is an error too, the denominator would be 0.
    """
    loss = log_loss(labels, probabilities, from_logits=from_logits, sample_weight=sample_weight)
    labels, _ = _check_predictions(labels, probabilities, from_logits)
    weight = _check_weight(sample_weight, labels)
    _require_both_classes(labels, weight, "normalized_entropy")
    rate = _mean(labels.astype(np.float64), weight)
    return loss / float(-(rate * np.log(rate) + (1.0 - rate) * np.log1p(-rate)))


def expected_calibration_error(
    labels: ArrayLike,
    probabilities: ArrayLike,
    num_bins: int = 10,
    strategy: str = "uniform",
    from_logits: bool = False,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Expected calibration error: mean over bins of |positive rate - mean probability|, weighted by the bins' samples
    (Naeini et al., "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015, for the positive class).

    Args:
        labels: (S,) values in {0, 1}.
        probabilities: (S,) probabilities of the positive class; with `from_logits`, logits.
        num_bins: number of bins, at least 1.
        strategy: "uniform": bins [i / num_bins, (i + 1) / num_bins), the last one closed. "quantile": bins of equal weight
            in the order of the probabilities; equal probabilities share a bin, so bins may differ where there are ties.
        from_logits: `probabilities` are logits.
        sample_weight: (S,) weights.

    Raises:
        ValueError: as `log_loss`, and for an unknown strategy or fewer than one bin.
    """
    of_weights = _calibration_error_of_weights(labels, probabilities, num_bins, strategy, from_logits)
    return of_weights(_check_weight(sample_weight, labels))


def _calibration_error_of_weights(
    labels: ArrayLike,
    probabilities: ArrayLike,
    num_bins: int = 10,
    strategy: str = "uniform",
    from_logits: bool = False,
) -> OfWeights:
    labels, values, bins_of = _in_bins(labels, probabilities, num_bins, strategy, from_logits)
    residuals, ones = labels - values, np.ones(len(values))

    def measure(weight: np.ndarray | None) -> float:
        bins, weight = bins_of(weight), ones if weight is None else weight
        gaps = np.bincount(bins, weights=weight * residuals, minlength=num_bins)
        return float(np.abs(gaps).sum() / weight.sum())

    return measure


def calibration_curve(
    labels: ArrayLike,
    probabilities: ArrayLike,
    num_bins: int = 10,
    strategy: str = "quantile",
    from_logits: bool = False,
    sample_weight: ArrayLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `expected_calibration_error` compares, with its arguments: mean probability (B,), positive rate (B,) and number of samples
    (B,) of the bins that hold any weight, in the order of the probabilities."""
    labels, values, bins_of = _in_bins(labels, probabilities, num_bins, strategy, from_logits)
    weight = _check_weight(sample_weight, labels)
    bins, weight = bins_of(weight), np.ones(len(values)) if weight is None else weight
    total = np.bincount(bins, weights=weight, minlength=num_bins)
    kept = total > 0
    sums = (np.bincount(bins, weights=weight * column, minlength=num_bins)[kept] for column in (values, labels))
    mean, rate = (column / total[kept] for column in sums)
    return mean, rate, np.bincount(bins, weights=weight > 0, minlength=num_bins)[kept].astype(np.int64)


def of_weights(
    metric: Callable[..., float], labels: ArrayLike, scores: ArrayLike, own: np.ndarray | None = None
) -> OfWeights:
    """`metric(labels, scores, sample_weight=weights)` as a function of the weights; what a metric of this module does for labels and scores
    alone (checks, orders, losses, bins) is done once. `metric` may be a `functools.partial` that fixes further arguments. `own`: the
    samples' weights before a draw multiplies them, by which [`grouped_auc`] tells how often a group was drawn."""
    function, fixed = (
        (metric.func, metric.keywords) if isinstance(metric, partial) and not metric.args else (metric, {})
    )
    if function in _OF_WEIGHTS and "sample_weight" not in fixed:
        given = {"own": own} if function is grouped_auc else {}
        return _OF_WEIGHTS[function](labels, scores, **fixed, **given)
    return lambda weights: metric(labels, scores, **({} if weights is None else {"sample_weight": weights}))


_OF_WEIGHTS = {
    auc: _auc_of_weights,
    grouped_auc: _grouped_auc_of_weights,
    log_loss: _log_loss_of_weights,
    expected_calibration_error: _calibration_error_of_weights,
}


def _in_bins(
    labels: ArrayLike, probabilities: ArrayLike, num_bins: int, strategy: str, from_logits: bool
) -> tuple[np.ndarray, np.ndarray, Callable[[np.ndarray | None], np.ndarray]]:
    """Labels, probabilities, and the bin of each sample as a function of the weights, see `expected_calibration_error`."""
    if isinstance(num_bins, bool) or not isinstance(num_bins, (int, np.integer)) or not 1 <= num_bins <= _MOST_BINS:
        raise ValueError(f"num_bins must be an integer from 1 to {_MOST_BINS:,}, got {num_bins!r}")
    if strategy not in ("uniform", "quantile"):
        raise ValueError(f"strategy must be 'uniform' or 'quantile', got {strategy!r}")
    labels, values = _check_predictions(labels, probabilities, from_logits)
    if from_logits:
        values = expit(values)
    if strategy == "quantile":
        return labels, values, partial(_quantile_bins, values, num_bins)
    edges = np.arange(1, num_bins) / num_bins  # correctly rounded: 0.3 lies in [0.3, 0.4)
    bins = np.searchsorted(edges, values, side="right")
    return labels, values, lambda _: bins


def _auc_per_group(
    labels: np.ndarray, scores: np.ndarray, groups: np.ndarray, num_groups: int
) -> Callable[[np.ndarray | None], tuple[np.ndarray, np.ndarray]]:
    """A function of the weights (S,), or of None: the AUC of each group (G,), NaN where a group has one class, and its weight (G,).

    One sort by (group, score), for all weights: a positive stands above the negatives of lower scores of its group and shares those of its own
    score. Without weights the pair counts are integers, so the result is exact up to one division.
    """
    order = np.lexsort((scores, groups)) if num_groups > 1 else np.argsort(scores, kind="stable")
    is_positive = labels[order] == 1
    positives, negatives = order[is_positive], order[~is_positive]
    group, own_group = groups[positives], groups[negatives]
    ordered = np.stack([groups[order], scores[order]])
    place = np.cumsum(np.r_[False, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)])  # equal where group and score are
    below, up_to = (np.searchsorted(place[~is_positive], place[is_positive], side) for side in ("left", "right"))
    first = np.searchsorted(own_group, group)

    def per_group(of: np.ndarray, values: np.ndarray) -> np.ndarray:
        return values.sum(keepdims=True) if num_groups == 1 else np.bincount(of, values, num_groups)

    def measure(weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        mass = np.ones(len(order), dtype=np.int64) if weight is None else weight
        positive, negative = mass[positives], mass[negatives]
        before = np.concatenate((np.zeros(1, mass.dtype), np.cumsum(negative)))
        under = before[below] + before[up_to]
        if num_groups > 1:
            under -= 2 * before[first]
        twice_pairs = per_group(group, positive * under)
        positive, negative = per_group(group, positive), per_group(own_group, negative)
        pairs = positive * negative
        values = np.full(num_groups, np.nan)
        np.divide(twice_pairs, 2 * pairs, out=values, where=pairs > 0)
        if weight is not None:  # rounding of the running sums may leave [0, 1] by an ulp
            values = np.clip(values, 0.0, 1.0)
        return values, (positive + negative).astype(np.float64)

    return measure


def _quantile_bins(values: np.ndarray, num_bins: int, weight: np.ndarray | None) -> np.ndarray:
    """Bin floor(num_bins * share of the weight strictly below the value): ties share a bin, no edge is interpolated."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first_of_run = np.searchsorted(ordered, values, side="left")
    if weight is None:
        return first_of_run * num_bins // len(values)
    before = np.concatenate(([0.0], np.cumsum(weight[order])))
    bins = before[first_of_run] * num_bins / before[-1] + 1e-9  # so that equal weights are as none
    return np.minimum(bins.astype(np.int64), num_bins - 1)


def _check(labels: ArrayLike, scores: ArrayLike, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Labels as int8 and scores as float64, or a ValueError that says what is wrong and where."""
    labels, scores = _to_array(labels, "labels"), _to_array(scores, name)
    if len(labels) == 0:
        raise ValueError("labels is empty: a metric needs at least one sample")
    if len(scores) != len(labels):
        raise ValueError(f"{name} has {len(scores)} values, labels has {len(labels)}: give one of each per sample")
    valid = (labels == 0) | (labels == 1)
    if not valid.all():
        row = int(np.flatnonzero(~valid)[0])
        raise ValueError(
            f"labels must be 0 or 1, got {labels[row]} at row {row} ({int((~valid).sum())} of {len(labels)} rows)"
        )
    scores = scores.astype(np.float64)
    if np.isnan(scores).any():
        row = int(np.flatnonzero(np.isnan(scores))[0])
        raise ValueError(f"{name} is NaN at row {row} ({int(np.isnan(scores).sum())} of {len(scores)} rows)")
    return labels.astype(np.int8), scores


def _check_weight(sample_weight: ArrayLike | None, labels: ArrayLike) -> np.ndarray | None:
    """Weights as float64, one per label, or a ValueError that says what is wrong and where."""
    if sample_weight is None:
        return None
    weight = _to_array(sample_weight, "sample_weight").astype(np.float64)
    if len(weight) != len(labels):
        raise ValueError(f"sample_weight has {len(weight)} values, labels has {len(labels)}")
    bad = ~(np.isfinite(weight) & (weight >= 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(f"sample_weight must be finite and not negative, got {weight[row]} at row {row}")
    if not weight.any():
        raise UndefinedMetricError("sample_weight is 0 for every sample: a metric needs at least one weighted sample")
    # only their ratios count, and products and sums of very small or large ones would leave float64; a power of two rounds nothing
    return np.ldexp(weight, -np.frexp(weight.max())[1])


def _check_predictions(labels: ArrayLike, values: ArrayLike, from_logits: bool) -> tuple[np.ndarray, np.ndarray]:
    """`_check`, and that the values are probabilities (or finite logits)."""
    name = "logits" if from_logits else "probabilities"
    labels, values = _check(labels, values, name)
    bad = ~np.isfinite(values) if from_logits else (values < 0) | (values > 1)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        accepted = "finite" if from_logits else "in [0, 1] (for logits pass from_logits=True)"
        raise ValueError(f"{name} must be {accepted}, got {values[row]} at row {row} ({int(bad.sum())} rows)")
    return labels, values


def _to_array(values: ArrayLike, name: str) -> np.ndarray:
    array = np.asarray(plain(values, name))
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension (one value per sample), got shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers, got dtype {array.dtype}")
    return array


def _encode_groups(groups: ArrayLike, num_samples: int) -> tuple[np.ndarray, int]:
    groups = _check_groups(groups, num_samples)
    try:
        names, codes = np.unique(groups, return_inverse=True)
    except TypeError as error:  # values that have no order
        kinds = ", ".join(sorted({type(own).__name__ for own in groups}))
        raise ValueError(f"groups are of different types ({kinds}): give numbers only, or text only") from error
    return codes.reshape(-1), len(names)


def _check_groups(groups: ArrayLike, num_samples: int) -> np.ndarray:
    """Groups as an array of any type, one per sample, none of which is missing."""
    groups = _of_samples(groups, "groups", num_samples)
    if groups.dtype.kind in "fOmM":
        is_object = groups.dtype == object
        missing = np.fromiter(map(_is_missing, groups), bool, num_samples) if is_object else groups != groups
        if missing.any():
            row = int(missing.argmax())
            word = "NaN" if isinstance(groups[row], float) else groups[row]
            raise ValueError(f"groups is {word} at row {row}: every sample needs a group")
    return groups


def _of_samples(values: ArrayLike, name: str, num_samples: int) -> np.ndarray:
    """Values of any type, one per sample."""
    values = np.asarray(plain(values, name))
    if values.shape != (num_samples,):
        raise ValueError(f"{name} must have shape ({num_samples},), one per sample, got {values.shape}")
    return values


def _is_missing(value: object) -> bool:
    try:
        return value is None or bool(value != value)  # NaN is not itself
    except TypeError:  # pandas' NA, of which that cannot be said
        return True


def _require_both_classes(labels: np.ndarray, weight: np.ndarray | None, name: str) -> None:
    counted = labels if weight is None else labels[weight > 0]
    positives = int(counted.sum())
    if positives in (0, len(counted)):
        only = "positive" if positives else "negative"
        raise UndefinedMetricError(
            f"{name} is not defined on one class: all {len(counted)} samples are {only}; "
            "evaluate on samples of both classes"
        )


def _mean(values: np.ndarray, weight: np.ndarray | None) -> float:
    return float(values.mean() if weight is None else np.average(values, weights=weight))


def _epsilon(values: ArrayLike) -> float:
    """Epsilon of the values' own floating type; that of float64 for other types."""
    kind = np.asarray(plain(values, "probabilities")).dtype
    return float(np.finfo(kind if kind.kind == "f" else np.float64).eps)
