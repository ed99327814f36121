"""What the baselines of logs, tables and impressions share: boosted trees, sums without a row's own fold, metrics by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lmctr.evaluation.evaluator import evaluate_probabilities

if TYPE_CHECKING:  # scikit-learn takes a second to import, and only baselines need it
    from sklearn.linear_model import LogisticRegression

    from lmctr.evaluation.weighted_trees import BoostedTreesClassifier

NUM_FOLDS = 5
_FEWEST_OF_CLASS = 20
EVALUATED_PARTS = ("validation", "test")
MANY_ROWS = 19_000
"""Rows of a table from which on its trees are larger, and drawn once."""
MAX_FITTED_EVENTS = 1_000_000
"""Training samples that models of statistics are fitted on at most, the newest ones."""
MOST_TREES = 1500
"""Trees of a table at most, where they stop early."""
TREE_BINS = 255
"""How many bins trees sort the values of a column into at most."""


class FoldSums:
    """Sums of columns by value: over all rows, and without a row's own fold, so that no row's features hold its label.

    Args:
        ids: (R,) value of each row. fold: (R,) random numbers below `NUM_FOLDS`. size: number of values.
        columns: (R,) each; None counts rows.

    Attributes:
        totals: per column (size,).
    """

    def __init__(self, ids: np.ndarray, fold: np.ndarray, size: int, columns: Sequence[np.ndarray | None]) -> None:
        sums = (np.bincount(fold * size + ids, column, NUM_FOLDS * size) for column in columns)
        self._by_fold = [column.reshape(NUM_FOLDS, size) for column in sums]
        self.totals = [column.sum(0) for column in self._by_fold]

    def without(self, fold: np.ndarray, ids: np.ndarray) -> list[np.ndarray]:
        """Per column the sums over the other folds."""
        return [total[ids] - own[fold, ids] for total, own in zip(self.totals, self._by_fold)]


def check_classes(labels: np.ndarray, part: str, rows: str) -> None:
    """Raise `ValueError` unless the labels to fit on are of both classes."""
    if len(labels) == 0 or labels.min() == labels.max():
        raise ValueError(
            f"{part} has {len(labels)} {rows} of {len(np.unique(labels))} class(es): "
            "a baseline needs positives and negatives to fit on"
        )


def boosted_trees(labels: np.ndarray, seed: int) -> BoostedTreesClassifier:
    """Learning rate 0.05, leaves of at least 0.5 % of the rows (between 20 and 100). From 1,000 rows on, up to 1,500 trees, stopped early on a
    random tenth of the rows, which `seed` draws; below, or with fewer than 20 rows of a class, 50 trees."""
    return _trees(
        can_stop_early(labels), seed, most=MOST_TREES, min_samples_leaf=min(100, max(20, len(labels) // 200))
    )


def _trees(stops_early: bool, seed: int, few: int = 50, most: int = 500, **options: Any) -> BoostedTreesClassifier:
    """Up to `most` trees that stop early, or `few` of them."""
    from lmctr.evaluation.weighted_trees import BoostedTreesClassifier

    options = {"learning_rate": 0.05, "max_iter": most if stops_early else few, **options}
    return BoostedTreesClassifier(early_stopping=stops_early, random_state=seed, **options)


def can_stop_early(labels: np.ndarray, least: int = 1000) -> bool:
    """Whether there are enough rows, of both classes, for a tenth of them to say when to stop."""
    positives = int(np.count_nonzero(labels > 0))
    return len(labels) >= least and min(positives, len(labels) - positives) >= _FEWEST_OF_CLASS


def newest(times: np.ndarray, most: int) -> np.ndarray:
    """(S,) places of the newest samples, at most so many, in their order."""
    return np.sort(np.argsort(times, kind="stable")[-most:])


def statistic_regression() -> LogisticRegression:
    """The linear model of scaled statistics."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=0.1, max_iter=500)


def statistic_trees(labels: np.ndarray, seed: int) -> BoostedTreesClassifier:
    """Trees for the statistics of a log: learning rate 0.05, 15 leaves, a random third of the columns per split. 150 trees, 50 below 1,000
    rows, from 100,000 on up to 500, stopped early as in `boosted_trees`.

    Chosen on the validation part of MovieLens latest-small among 100 to 600 trees, 8 to 31 leaves, leaves of 20 to 200 rows.
    """
    num_rows = len(labels)
    options = {"max_leaf_nodes": 15, "l2_regularization": 5.0, "max_features": 0.3}
    options["min_samples_leaf"] = 50 if num_rows >= 10_000 else 20
    return _trees(can_stop_early(labels, 100_000), seed, 150 if num_rows >= 1000 else 50, **options)


def field_draws(labels: np.ndarray) -> int:
    """How many forests of [`field_trees`], drawn by seeds of their own, are averaged: three where trees stop early by fewer than 19,000 rows, else one.

    Chosen on held-out rows of ten public tables among one to three of rates 0.05 and 0.1: three of 0.1 take up to twice the time of one, and lose less than
    three of 0.05.
    """
    return 3 if len(labels) < MANY_ROWS and can_stop_early(labels) else 1


def field_trees(labels: np.ndarray, seed: int) -> BoostedTreesClassifier:
    """Trees for numbers and ids of a table: 15 leaves, 31 from 19,000 rows on, a random half of the columns per split; learning rate 0.05, 0.1 where
    several forests are drawn, see [`field_draws`]. From 1,000 rows on, up to 1,500 trees, stopped early as in `boosted_trees` after 20 without a gain;
    below, 50.

    Chosen on the validation parts of public tables (model_cards/own_tables.md) among 8 to 31 leaves, and a third to all columns; of eight more, two had
    a lower loss with more than 500 trees.
    """
    options = {
        "max_leaf_nodes": 31 if len(labels) >= MANY_ROWS else 15,
        "l2_regularization": 5.0,
        "max_features": 0.5,
    }
    options |= {"n_iter_no_change": 20, "learning_rate": 0.1 if field_draws(labels) > 1 else 0.05}
    return _trees(can_stop_early(labels), seed, most=MOST_TREES, **options)


def probabilities(model: Any, inputs: np.ndarray) -> np.ndarray:
    """(R,) of a click, by a fitted classifier; inputs: (R, F), R may be 0."""
    return model.predict_proba(inputs)[:, 1] if len(inputs) else np.empty(0)


def metrics_by_part(
    predictions: Mapping[str, Mapping[str, np.ndarray]],
    rows: Mapping[str, np.ndarray],
    labels: np.ndarray,
    groups: np.ndarray | None,
    weight: np.ndarray | None,
) -> dict[str, dict[str, dict[str, float | int]]]:
    """Metrics on "validation" and "test" by baseline and part; empty parts are left out.

    Args:
        predictions: baseline and part to probabilities (R,). rows: part to the rows (R,) of labels, groups and weights.
    """
    result: dict[str, dict[str, dict[str, float | int]]] = {name: {} for name in predictions}
    for part in EVALUATED_PARTS:
        chosen = np.asarray(rows.get(part, ()), dtype=np.int64)
        if len(chosen):
            own = [None if column is None else np.asarray(column)[chosen] for column in (labels, groups, weight)]
            for name, values in predictions.items():
                result[name][part] = evaluate_probabilities(own[0], values[part], *own[1:])
    return result
