"""Boosted trees beside a model's network: which they are, and what their share in the logits is.

S: samples, Fs: columns that the trees read, T: tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmctr.evaluation.baseline_parts import TREE_BINS, field_draws, field_trees, statistic_regression, statistic_trees
from lmctr.models.common.base import plain_model
from lmctr.models.common.boosted_trees import FieldTrees
from lmctr.runs.inputs.calibration import measured
from lmctr.runs.inputs.linear_start import LinearSamples, by_task
from lmctr.training.checkpoints import newest_complete_checkpoint
from lmctr.utils.files import read_json
from lmctr.utils.progress import over

__all__ = ["SHARES", "add_trees", "choose_share", "keep_trees", "set_share"]

SHARES = np.linspace(0.0, 1.0, 21)
"""Those that `boosting_share: auto` chooses from."""
_PRIOR_MEAN, _PRIOR_DEVIATION = 0.75, 0.35
"""Of the shares that are best: about those of 29 public tables of 600 to 6,000 rows and of logs of 1,500 to 12,000 events."""
_ROUNDING = 1e-6  # of scaled statistics, between what a log and what a request counts


def add_trees(model: Any, samples: LinearSamples, half_life: float | None, seed: int, share: float) -> None:
    """Put boosted trees beside a new model, see [`~lmctr.models.common.boosted_trees.TreesBeside`].

    On statistics they have the settings of the baseline; half of each task's read what the baseline reads, half a logistic regression too:
    the mean of both is above either. On the fields of a table half read numbers and ids, and the rates of lists and of fields of many values, half the
    rates of all fields and pairs of fields too; of samples without rates both halves read the same.

    Args:
        model: with a place for trees. samples: the training part, what the trees read as their values.
        half_life, raises: as in `start_linear`. seed: of the trees' columns. share: of the trees in the logits.
    """
    beside, forests = model.trees_beside(), []
    for values, labels, weight in over(
        by_task(samples, half_life), "fitting boosted trees", "tasks", beside.num_tasks
    ):
        values = values.astype(np.float32)
        if isinstance(beside, FieldTrees):
            rates = beside.num_columns + len(forests) * len(samples.rated) + np.arange(len(samples.rated))  # its own
            sizes = model.config.vocab_sizes
            many = [isinstance(own, int) and (own >= len(sizes) or sizes[own] > TREE_BINS) for own in samples.rated]
            many = np.array(many, bool)
            read = [np.r_[: beside.num_columns, own] for own in (rates[many], rates)]
            halves = read[1:] if many.any() and many.all() else read
            forests.append(_field_forest(values, halves, labels, weight, seed))
        else:
            forests.append(_forest(values, labels, weight, seed))
    model.config.boosted_trees = {
        "trees": max(len(forest) for _, forest in forests),
        "leaves": max(2, *(len(tree["value"]) for _, forest in forests for tree in forest)),
        "share": share,
        **({"rated_fields": list(samples.rated)} if samples.rated else {}),
    }
    beside.grow(model.config)
    if samples.rated:
        beside.rates.fill(samples.rates)
    for task, forest in enumerate(forests):
        beside.trees.fill(task, *forest)
    beside.to(model.device)


def keep_trees(model: Any, checkpoints: str | Path) -> bool:
    """Make room for the trees of the newest checkpoint in a folder, whose weights are loaded later: those that another version fits may be of
    another size. Whether it has any (one of adapters alone has none)."""
    checkpoint, _ = newest_complete_checkpoint(checkpoints)
    if checkpoint is not None and (checkpoint / "config.json").is_file():
        model.config.boosted_trees = read_json(checkpoint / "config.json").get("boosted_trees")
        model.trees_beside().grow(model.config)
        model.trees_beside().to(model.device)
    return bool(model.config.boosted_trees)


def choose_share(trainer: Any, samples: Any) -> float:
    """The share of the trees in the logits by the log loss on samples, set in the trainer's model; at 0 the trees go.

    It is the mode of a posterior: few samples tell little, and a normal prior around three quarters speaks then.

    Args:
        trainer: a `CTRTrainer` whose model has trees. samples: as it measures them; their weights count, one on average.
    """
    model = plain_model(trainer.model)
    beside, ends = model.trees_beside(), []
    for share in (0.0, 1.0):  # the network's logits, then the trees'
        beside.share = share
        with torch.inference_mode(share == 1.0):  # in which the network is left out
            logits, labels, weight = measured(trainer, samples)
        ends.append(logits)
    weight = weight / (weight.sum() / max(np.count_nonzero(weight), 1) or 1.0)

    def against(share: float) -> float:
        logits = (1.0 - share) * ends[0] + share * ends[1]
        seen = weight * (np.logaddexp(0.0, logits) - labels * logits)
        return float(seen.sum() + (share - _PRIOR_MEAN) ** 2 / (2 * _PRIOR_DEVIATION**2))

    share = round(float(min(SHARES, key=against)), 2)
    set_share(model, share)
    return share


def set_share(model: Any, share: float) -> None:
    """The share of a model's trees in its logits; at 0 the trees go."""
    model.config.boosted_trees = {**model.config.boosted_trees, "share": share} if share else None
    if share:
        model.trees_beside().share = share
    else:
        model.trees_beside().grow(model.config)


def _field_forest(
    values: np.ndarray, read: list[np.ndarray], labels: np.ndarray, weight: np.ndarray | None, seed: int
) -> tuple[np.ndarray, list[dict[str, np.ndarray]]]:
    """The mean of trees on the columns of rows at some places and of trees on those at others, of several draws each where rows are few, as
    `BoostedTrees.fill` takes them, with a regression that none of them reads."""
    forest, drawn = [], read * field_draws(labels)
    for number, places in enumerate(drawn):
        for tree in _trees(field_trees(labels, _seed(seed, number)).fit(values[:, places], labels, weight)):
            forest.append({**tree, "feature": places[tree["feature"]], "value": tree["value"] / len(drawn)})
    return np.zeros(values.shape[1] + 1, np.float32), forest


def _forest(
    values: np.ndarray, labels: np.ndarray, weight: np.ndarray | None, seed: int
) -> tuple[np.ndarray, list[dict[str, np.ndarray]]]:
    """A regression (Fs + 1,) float32, and the mean of trees boosted on the values and of trees boosted on both, as `BoostedTrees.fill` takes them."""
    fitted = statistic_regression().fit(values, labels, weight)
    line = np.append(fitted.coef_[0], fitted.intercept_[0]).astype(np.float32)
    sums = values.astype(np.float64) @ line[:-1].astype(np.float64) + line[-1]
    columns = np.column_stack([values, sums.astype(np.float32)])
    forest, distinct = [], [np.unique(own[np.isfinite(own)]) for own in columns.T]
    for number, read in enumerate((values, columns)):
        model = statistic_trees(labels, _seed(seed, number)).fit(read, labels, weight)
        forest += [{**_with_room(tree, distinct), "value": tree["value"] / 2} for tree in _trees(model)]
    return line, forest


def _seed(seed: int, number: int) -> int:
    """Of one of several forests, which draw other columns, and stop by other rows; numpy's seeds end at 2**32."""
    return (seed + 1000 * number) % 2**32


def _trees(model: Any) -> list[dict[str, np.ndarray]]:
    """scikit-learn's trees, the first of them with the constant that their sum starts from."""
    trees = [_columns(tree.nodes) for (tree,) in model._predictors]
    trees[0]["value"] = trees[0]["value"] + float(model._baseline_prediction.item())
    return trees


def _with_room(tree: dict[str, np.ndarray], distinct: list[np.ndarray]) -> dict[str, np.ndarray]:
    """A tree whose thresholds are moved a little towards the next of the distinct values that samples have, so that these part as before.

    scikit-learn's may be the very value that many samples have, such as a prior, whose last bits depend on how it is counted.
    """
    threshold = tree["threshold"].astype(np.float64)
    room = _ROUNDING * np.maximum(1, np.abs(threshold))
    for node, (place, value) in enumerate(zip(tree["feature"], threshold)):
        own = distinct[place]
        following = np.searchsorted(own, value, "right")
        if following < len(own):
            room[node] = min(room[node], (float(own[following]) - value) / 2)
    return {**tree, "threshold": _rounded_down(threshold + room)}


def _rounded_down(exact: np.ndarray) -> np.ndarray:
    """As float32 values, none of which is above what it stands for."""
    found = exact.astype(np.float32)
    above = found > exact
    found[above] = np.nextafter(found[above], np.float32(-np.inf))
    return found


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
    return {
        "feature": nodes["feature_idx"][inner],
        # float32 values are sorted as by the threshold itself if it is rounded down
        "threshold": _rounded_down(nodes["num_threshold"][inner]),
        "kept": np.array(kept, dtype=np.int64),
        "value": np.array(values),
    }
