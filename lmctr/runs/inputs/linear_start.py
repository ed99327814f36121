"""What a model with a linear way from statistics to its logits starts as, a logistic regression, and the boosted trees put beside it.

S: samples, Fs: statistics, T: tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from lmctr.evaluation.baseline_parts import MAX_FITTED_EVENTS, newest, statistic_regression, statistic_trees
from lmctr.training.recency import recency_weights
from lmctr.utils.progress import over

__all__ = ["LinearSamples", "add_trees", "start_linear"]


class LinearSamples(NamedTuple):
    """Training samples as the model's linear way reads them.

    Args:
        values: (S, Fs) scaled statistics. labels: (S,), or (S, T) for several tasks; below 0 where there is none.
        weight: (S,) or None. times: (S,) unix seconds, or None.
    """

    values: np.ndarray
    labels: np.ndarray
    weight: np.ndarray | None
    times: np.ndarray | None


def start_linear(model: Any, samples: LinearSamples, half_life: float | None) -> None:
    """Let a new model's logits be those of a logistic regression per task, with the settings of the baseline.

    Args:
        model: with a `linear_path`.
        samples: the training part; of more than a million samples with times the newest million are fitted on.
        half_life: days after which a sample counts half, as in the training that follows; None: equal weights.

    Raises:
        ValueError: a task whose labels are of one class.
    """
    found = []
    for values, labels, weight in _by_task(samples, half_life):
        fitted = statistic_regression().fit(values, labels, weight)
        found.append((fitted.coef_[0], fitted.intercept_[0]))
    model.linear_path().start(
        *(torch.as_tensor(np.array(part), dtype=torch.float32).to(model.device) for part in zip(*found))
    )


def add_trees(model: Any, samples: LinearSamples, half_life: float | None, seed: int, share: float) -> None:
    """Put boosted trees with the settings of the baseline beside a new model; see
    [`~lmctr.models.common.linear_path.StatisticsSkip`]. Half of each task's read what the baseline reads, half a logistic regression too: the
    mean of both is above either.

    Args:
        model, samples, half_life, raises: as in `start_linear`. seed: of the trees' columns. share: of the trees in the logits.
    """
    forests = []
    for values, labels, weight in over(_by_task(samples, half_life), "fitting boosted trees", "tasks"):
        forests.append(_forest(values.astype(np.float32), labels, weight, seed))
    model.config.boosted_trees = {
        "trees": max(len(forest) for _, forest in forests),
        "leaves": max(2, *(len(tree["value"]) for _, forest in forests for tree in forest)),
        "share": share,
    }
    skip = model.linear_path().skip
    skip.grow(model.config)
    for task, forest in enumerate(forests):
        skip.trees.fill(task, *forest)
    skip.trees.to(model.device)


def _forest(
    values: np.ndarray, labels: np.ndarray, weight: np.ndarray | None, seed: int
) -> tuple[np.ndarray, list[dict[str, np.ndarray]]]:
    """A regression (Fs + 1,) float32, and the mean of trees boosted on the values and of trees boosted on both, as `BoostedTrees.fill` takes them."""
    fitted = statistic_regression().fit(values, labels, weight)
    line = np.append(fitted.coef_[0], fitted.intercept_[0]).astype(np.float32)
    sums = values.astype(np.float64) @ line[:-1].astype(np.float64) + line[-1]
    columns = np.column_stack([values, sums.astype(np.float32)])
    forest = []
    for read in (values, columns):
        model = statistic_trees(len(values), seed).fit(read, labels, weight)
        trees = [_columns(tree.nodes) for (tree,) in model._predictors]
        trees[0]["value"] = trees[0]["value"] + float(model._baseline_prediction.item())
        forest += [{**tree, "value": tree["value"] / 2} for tree in trees]
    return line, forest


def _columns(nodes: np.ndarray) -> dict[str, np.ndarray]:
    """scikit-learn's nodes as inner nodes and leaves of `BoostedTrees.fill`."""
    inner, kept, values = [], [], []

    def walk(place: int) -> None:
        node = nodes[place]
        if node["is_leaf"]:
            values.append(node["value"])
            return
        before = len(values)
        walk(node["left"])
        inner.append(place)
        kept.append(~((1 << len(values)) - (1 << before)))
        walk(node["right"])

    walk(0)
    exact = nodes["num_threshold"][inner]
    threshold = exact.astype(np.float32)
    above = threshold > exact  # float32 values are sorted as by the threshold itself if it is rounded down
    threshold[above] = np.nextafter(threshold[above], np.float32(-np.inf))
    return {
        "feature": nodes["feature_idx"][inner],
        "threshold": threshold,
        "kept": np.array(kept, dtype=np.int64),
        "value": np.array(values),
    }


def _by_task(
    samples: LinearSamples, half_life: float | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Values, labels and weights of each task's samples that have a label."""
    values, labels, weight, times = samples
    if half_life is not None and times is not None:
        recent = recency_weights(times, half_life)
        weight = recent if weight is None else weight * recent
    if times is not None and len(values) > MAX_FITTED_EVENTS:
        kept = newest(times, MAX_FITTED_EVENTS)
        values, labels, weight = values[kept], labels[kept], None if weight is None else weight[kept]
    for task, own in enumerate(labels.reshape(len(values), -1).T):
        known = own >= 0
        if len(np.unique(own[known])) < 2:
            raise ValueError(
                f"training.linear_start and boosting_share fit models of the statistics, but the {int(known.sum())} training labels of task "
                f"{task} are of one class; set training.linear_start to zero and boosting_share to 0"
            )
        yield values[known], own[known], None if weight is None else weight[known]
