"""CTR metrics on arrays, in scikit-learn's argument order (labels, scores).

All metrics are exact: no binning of scores, ties count one half, sums in float64. They take lists, numpy arrays or CPU
tensors of shape (S,) with labels in {0, 1}, and an optional `sample_weight` (S,) of non-negative finite numbers. Input that a
metric is not defined on (one class, NaN, a probability outside [0, 1]) is a `ValueError`, never a substituted value.
The metrics of retrieval on impressions, (B, n), come from `ranking_metrics`.

S: samples, G: groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from .errors import UndefinedMetricError
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
    labels, scores, weight = _check(labels, scores, sample_weight, "scores")
    _require_both_classes(labels, weight, "auc")
    return float(_auc_per_group(labels, scores, np.zeros(len(labels), dtype=np.int64), 1, weight)[0][0])


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

    Args:
        labels: (S,) values in {0, 1}.
        scores: (S,) scores.
        groups: (S,) group of each sample, usually the user: integers or strings, in any order.
        sample_weight: (S,) weights.
        weighting: what a group counts: "samples" or "groups".

    Raises:
        ValueError: as `auc`, where no group holds both classes, and for another weighting.
    """
    if weighting not in ("samples", "groups"):
        raise ValueError(f"weighting must be 'samples' or 'groups', got {weighting!r}")
    labels, scores, weight = _check(labels, scores, sample_weight, "scores")
    codes, num_groups = _encode_groups(groups, len(labels))
    per_group, impressions = _auc_per_group(labels, scores, codes, num_groups, weight)
    defined = ~np.isnan(per_group)
    if not defined.any():
        raise UndefinedMetricError(
            f"grouped_auc is not defined: none of the {num_groups} groups has both a positive and a negative sample; "
            "give more samples per group or use auc"
        )
    return float(np.average(per_group[defined], weights=impressions[defined] if weighting == "samples" else None))


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
    labels, values, weight = _check_predictions(labels, probabilities, from_logits, sample_weight)
    if from_logits:
        losses = np.logaddexp(0.0, np.where(labels == 1, -values, values))
    else:
        epsilon = _epsilon(probabilities)
        inside = np.clip(values, epsilon, 1.0 - epsilon)
        losses = -np.where(labels == 1, np.log(inside), np.log1p(-inside))
    return _mean(losses, weight)


def normalized_entropy(
    labels: ArrayLike, probabilities: ArrayLike, from_logits: bool = False, sample_weight: ArrayLike | None = None
) -> float:
    """Log loss divided by the entropy of the labels' own positive rate (He et al., "Practical Lessons from Predicting Clicks
    on Ads at Facebook", ADKDD 2014, Eq. 1). 1 is what the constant prediction of that rate gets; lower is better.

    Arguments and errors are those of `log_loss`; one class only is an error too, the denominator would be 0.
    """
    loss = log_loss(labels, probabilities, from_logits=from_logits, sample_weight=sample_weight)
    labels, _, weight = _check_predictions(labels, probabilities, from_logits, sample_weight)
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
    labels, values, weight, bins = _in_bins(labels, probabilities, num_bins, strategy, from_logits, sample_weight)
    gaps = np.bincount(bins, weights=weight * (labels - values), minlength=num_bins)
    return float(np.abs(gaps).sum() / weight.sum())


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
    labels, values, weight, bins = _in_bins(labels, probabilities, num_bins, strategy, from_logits, sample_weight)
    total = np.bincount(bins, weights=weight, minlength=num_bins)
    kept = total > 0
    sums = (np.bincount(bins, weights=weight * column, minlength=num_bins)[kept] for column in (values, labels))
    mean, rate = (column / total[kept] for column in sums)
    return mean, rate, np.bincount(bins, weights=weight > 0, minlength=num_bins)[kept].astype(np.int64)


def _in_bins(
    labels: ArrayLike,
    probabilities: ArrayLike,
    num_bins: int,
    strategy: str,
    from_logits: bool,
    sample_weight: ArrayLike | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Labels, probabilities, weights and the bin of each sample, see `expected_calibration_error`."""
    if isinstance(num_bins, bool) or not isinstance(num_bins, (int, np.integer)) or not 1 <= num_bins <= _MOST_BINS:
        raise ValueError(f"num_bins must be an integer from 1 to {_MOST_BINS:,}, got {num_bins!r}")
    if strategy not in ("uniform", "quantile"):
        raise ValueError(f"strategy must be 'uniform' or 'quantile', got {strategy!r}")
    labels, values, weight = _check_predictions(labels, probabilities, from_logits, sample_weight)
    if from_logits:
        values = expit(values)
    if strategy == "uniform":
        edges = np.arange(1, num_bins) / num_bins  # correctly rounded: 0.3 lies in [0.3, 0.4)
        bins = np.searchsorted(edges, values, side="right")
    else:
        bins = _quantile_bins(values, num_bins, weight)
    return labels, values, np.ones(len(values)) if weight is None else weight, bins


def _auc_per_group(
    labels: np.ndarray, scores: np.ndarray, groups: np.ndarray, num_groups: int, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """AUC of each group (G,), NaN where a group has one class, and the weight of each group (G,).

    One sort by (group, score); runs of equal (group, score) share half of their pairs. Without weights the pair counts are
    integers, so the result is exact up to one division.
    """
    order = np.lexsort((scores, groups)) if num_groups > 1 else np.argsort(scores, kind="stable")
    groups, scores, labels = groups[order], scores[order], labels[order]
    kind = np.int64 if weight is None else np.float64
    mass = np.ones(len(order), dtype=kind) if weight is None else weight[order]
    positive = np.where(labels == 1, mass, 0).astype(kind)
    negative = np.where(labels == 0, mass, 0).astype(kind)

    new_run = np.ones(len(order), dtype=bool)
    new_run[1:] = (groups[1:] != groups[:-1]) | (scores[1:] != scores[:-1])
    starts = np.flatnonzero(new_run)
    run_group = groups[starts]
    run_positive = np.add.reduceat(positive, starts)
    run_negative = np.add.reduceat(negative, starts)

    # Negatives below a run inside its own group: the running sum, less what came before the group's first run.
    before = np.cumsum(run_negative) - run_negative
    first_run = np.flatnonzero(np.r_[True, run_group[1:] != run_group[:-1]])
    before -= np.repeat(before[first_run], np.diff(np.r_[first_run, len(run_group)]))

    present = run_group[first_run]
    total = np.zeros((3, num_groups), dtype=kind)
    total[0, present] = np.add.reduceat(run_positive * (2 * before + run_negative), first_run)
    total[1, present] = np.add.reduceat(run_positive, first_run)
    total[2, present] = np.add.reduceat(run_negative, first_run)
    twice_pairs, positives, negatives = total
    pairs = positives * negatives
    values = np.full(num_groups, np.nan)
    np.divide(twice_pairs, 2 * pairs, out=values, where=pairs > 0)
    if weight is not None:  # rounding of the running sums may leave [0, 1] by an ulp
        values = np.clip(values, 0.0, 1.0)
    return values, (positives + negatives).astype(np.float64)


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


def _check(
    labels: ArrayLike, scores: ArrayLike, sample_weight: ArrayLike | None, name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Labels as int8, scores and weights as float64, or a ValueError that says what is wrong and where."""
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
    weight = None
    if sample_weight is not None:
        weight = _to_array(sample_weight, "sample_weight").astype(np.float64)
        if len(weight) != len(labels):
            raise ValueError(f"sample_weight has {len(weight)} values, labels has {len(labels)}")
        bad = ~(np.isfinite(weight) & (weight >= 0))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ValueError(f"sample_weight must be finite and not negative, got {weight[row]} at row {row}")
        if weight.sum() <= 0:
            raise ValueError("sample_weight is 0 for every sample: a metric needs at least one weighted sample")
    return labels.astype(np.int8), scores, weight


def _check_predictions(
    labels: ArrayLike, values: ArrayLike, from_logits: bool, sample_weight: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """`_check`, and that the values are probabilities (or finite logits)."""
    name = "logits" if from_logits else "probabilities"
    labels, values, weight = _check(labels, values, sample_weight, name)
    bad = ~np.isfinite(values) if from_logits else (values < 0) | (values > 1)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        accepted = "finite" if from_logits else "in [0, 1] (for logits pass from_logits=True)"
        raise ValueError(f"{name} must be {accepted}, got {values[row]} at row {row} ({int(bad.sum())} rows)")
    return labels, values, weight


def _to_array(values: ArrayLike, name: str) -> np.ndarray:
    if hasattr(values, "detach"):  # a tensor: bfloat16 has no numpy type, so go through float32
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension (one value per sample), got shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers, got dtype {array.dtype}")
    return array


def _encode_groups(groups: ArrayLike, num_samples: int) -> tuple[np.ndarray, int]:
    if hasattr(groups, "detach"):
        groups = groups.detach().cpu()
    groups = np.asarray(groups)
    if groups.shape != (num_samples,):
        raise ValueError(f"groups must have shape ({num_samples},), one group per sample, got {groups.shape}")
    if groups.dtype.kind == "f" and np.isnan(groups).any():
        raise ValueError(
            f"groups is NaN at row {int(np.flatnonzero(np.isnan(groups))[0])}: every sample needs a group"
        )
    names, codes = np.unique(groups, return_inverse=True)
    return codes.reshape(-1), len(names)


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
    kind = np.asarray(values.detach().cpu().float() if hasattr(values, "detach") else values).dtype
    return float(np.finfo(kind if kind.kind == "f" else np.float64).eps)
