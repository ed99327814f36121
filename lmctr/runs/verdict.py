"""One sentence on a finished run: how it stands beside the strongest baseline, and what to try next where it stands below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.evaluation.impression_baselines import BOUND
from lmctr.evaluation.significance import PairedTest, delong_test

_LEVEL = 0.0005  # what three decimals cannot tell from nothing
_RARE = 0.995  # AUC that columns known before seldom reach


def strongest_baseline(baselines: Mapping[str, Any], part: str = "validation", key: str = "auc") -> str | None:
    """The name of the baseline with the highest AUC, or another metric, on a part; None where none was measured by it."""
    measured = {name: parts[part][key] for name, parts in baselines.items() if key in parts.get(part, {})}
    return max(measured, key=lambda name: measured[name]) if measured else None


def difference_test(predictions: pa.Table, events: np.ndarray, scores: np.ndarray) -> PairedTest | None:
    """DeLong's test of a model's AUC against a baseline's on the same samples; None where these are weighted or of one class.
    One sample of a class tells nothing: any difference is in the interval.

    Args:
        predictions: the model's, with `event`, `label` and `logit`. events, scores: (S,) the baseline's samples, and what it gave them.
    """
    if "weight" in predictions.column_names:
        return None
    _, own, other = np.intersect1d(predictions["event"].to_numpy(), events, assume_unique=True, return_indices=True)
    labels, logits = (predictions[name].to_numpy()[own] for name in ("label", "logit"))
    known = labels >= 0
    positives, negatives = (np.count_nonzero(labels == one) for one in (1, 0))
    if min(positives, negatives) < 1 or positives + negatives < known.sum():  # soft labels
        return None
    if min(positives, negatives) < 2:
        return PairedTest("none", *[np.nan] * 3, np.inf, 1.0, (-1.0, 1.0), 1.0, positives + negatives)
    return delong_test(labels[known], logits[known], scores[other][known])


def verdict(
    result: Mapping[str, Any],
    data: Mapping[str, Any],
    has_log: bool = True,
    can_have_trees: bool = False,
    test_of: Callable[[str], PairedTest | None] = lambda name: None,
) -> str | None:
    """The sentence, or None where there is no baseline by AUC, or R/R* of impressions.

    Args:
        result: the content of `metrics.json`. data: the recipe's data group. has_log: whether the samples are events of a log; the
            statistics of a plain table cannot be counted. can_have_trees: whether boosted trees could be put beside the model, and are not.
        test_of: a test of the model's AUC against that of the baseline of a name, on the test part.
    """
    baselines = {name: own for name, own in result["baselines"].items() if name != BOUND}
    test = result["split metrics"].get("test", {})
    key, unit = ("revenue_ratio", "R/R*") if "revenue_ratio" in test else ("auc", "AUC")
    name = strongest_baseline(baselines, key=key)
    if name is None or key not in test or "test" not in baselines[name]:
        return None
    gap = test[key] - baselines[name]["test"][key]
    if key == "revenue_ratio" and test[key] == baselines[name]["test"][key] == 1.0:  # all ads go on
        return None
    called = name.replace("_", " ")
    best = strongest_baseline(baselines, "test", key)
    ahead = baselines[best]["test"][key] - test[key]
    way = "level with" if abs(ahead) < _LEVEL else f"{abs(ahead):.3f} {'above' if ahead > 0 else 'below'}"
    is_other = ahead + gap >= _LEVEL  # of the two baselines
    other = f"; on test the strongest, {best.replace('_', ' ')}, is {way} the model" if is_other else ""
    where = " on validation" if other else ""
    if (entropy := test.get("normalized_entropy", 0.0)) >= 1:
        other += (
            f"; the constant click rate of test has a log loss that is no higher than the model's (NE {entropy:.4f})"
        )
    if key == "auc" and test[key] >= _RARE > (result.get("best_auc") or 0.0):
        other += "; so high an AUC is rare: look for columns that are filled after the label (lmctr analyze importance), and for copies of rows"
    if gap > -_LEVEL:
        losses = [own.get("log_loss") for own in (test, baselines[name]["test"])]
        if None not in losses and losses[0] > losses[1]:
            other += f"; the model's log loss is higher, {losses[0]:.4f} against {losses[1]:.4f}"
        if gap < _LEVEL:
            return f"level with {called}, the strongest baseline{where}: {unit} {test[key]:.4f}, it {test[key] - gap:.4f}{other}"
        return (
            f"above {called}, the strongest baseline{where}, by {gap:.3f} {unit}{_chance(test_of(name), gap)}{other}"
        )
    return f"below {called} by {-gap:.3f} {unit}{_chance(test_of(name), gap)}{other}: try {_next_thing(result, data if has_log else {}, can_have_trees, key, unit)}"


def _chance(test: PairedTest | None, gap: float) -> str:
    """What a test says of a difference that is shown without its sign."""
    if test is None:
        return ""
    low, high = sorted(np.sign(gap) * np.array(test.confidence_interval))
    return f" ({'which may be chance, ' if low <= 0 else ''}95 % interval {low:.3f} to {high:.3f})"


def _next_thing(result: Mapping[str, Any], data: Mapping[str, Any], can_have_trees: bool, key: str, unit: str) -> str:
    """What to try next, the likeliest first."""
    if "statistics" in data:
        names = [data["statistics"]] if isinstance(data["statistics"], str) else data["statistics"] or []
        if "full" not in names:
            return "data.statistics: full"
    if can_have_trees:
        return "training.boosting_share: 0.5, which puts boosted trees beside the network"
    counts = result.get("training_samples", {})
    if data.get("max_train_samples") and counts["model"] < (read := counts.get("baselines", 0)):
        return f"a larger data.max_train_samples: the model read {counts['model']:,} samples, the baselines {read:,}"
    found = [entry[key] for entry in result["evaluations"] if key in entry]
    if len(found) > 1 and found[-1] == max(found):
        return f"more epochs: validation {unit} still rose at the end"
    if len(found) > 1 and found[0] == max(found):
        return f"a lower training.learning_rate or fewer epochs: validation {unit} fell from its first measurement on"
    return "lmctr search over training.learning_rate and the model's width"
