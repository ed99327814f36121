"""Boosted trees on weighted rows, as scikit-learn fits them, without its way to their bins."""

from __future__ import annotations

from typing import Self

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

_BINS = 255  # scikit-learn's `max_bins`
_KNOWN = 1e-4  # share of rows: bins come from 200,000 of them at most


class _BoostedTrees:
    """scikit-learn's boosted trees, several times as fast on weighted rows.

    From scikit-learn 1.8 on bins of weighted rows have equal weights, for which each column is sorted 254 times. Here one sort tells all; the trees
    are fitted on the numbers of the bins, then their thresholds are put back. Where trees are stopped early, or rows are more than 200,000, the
    bins are those of all rows, not of the part, or the sample, that scikit-learn takes them from; else the trees are the same.

    Columns are numbers, NaN where missing; those of `categorical_features`, of at most 255 values, come first.
    """

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None = None) -> Self:
        """Fits on (N, C) columns and (N,) labels; `sample_weight`: (N,), or None."""
        if sample_weight is None or (np.asarray(sample_weight) == 1).all():  # weights that say nothing change no bins
            return super().fit(with_known_columns(X, self.min_samples_leaf), y)
        codes, thresholds = np.array(with_known_columns(X, self.min_samples_leaf, sample_weight), dtype=np.float64), {}
        for place, column in enumerate(codes.T):  # its views
            found = _equal_weights(column, np.asarray(sample_weight, dtype=np.float64))
            if found is not None:
                thresholds[place] = found
                column[:] = np.where(np.isnan(column), np.nan, np.searchsorted(found, column))
        super().fit(codes, y, sample_weight=sample_weight)
        present = {place: np.unique(codes[:, place]) for place in thresholds}
        for (tree,) in self._predictors:
            nodes = tree.nodes
            for node in np.flatnonzero(~nodes["is_leaf"].astype(bool) & np.isfinite(nodes["num_threshold"])):
                place, between = int(nodes["feature_idx"][node]), nodes["num_threshold"][node]
                if place in thresholds:  # between two numbers that rows have, of which the lower goes left
                    lower = present[place][np.searchsorted(present[place], between) - 1]
                    nodes["num_threshold"][node] = thresholds[place][int(lower)]
        return self


class BoostedTreesClassifier(_BoostedTrees, HistGradientBoostingClassifier):
    __doc__ = f"{_BoostedTrees.__doc__.rstrip()} Labels of two classes."


class BoostedTreesRegressor(_BoostedTrees, HistGradientBoostingRegressor):
    __doc__ = f"{_BoostedTrees.__doc__.rstrip()} Labels are numbers."


def with_known_columns(X: np.ndarray, min_samples_leaf: int, weight: np.ndarray | None = None) -> np.ndarray:
    """(N, C) columns for scikit-learn's boosted trees, which refuse a column without values among the rows that they take their bins from.

    A column with values in fewer rows than a leaf must have, no tree can divide; in fewer than one row of 10,000, its bins might see none.
    Rows of weight 0 do not count.
    Such a column is given as zeros; others stay as they are.
    """
    X = np.asarray(X)
    known = ~np.isnan(X if weight is None else X[np.asarray(weight) != 0])
    rare = known.sum(0) < max(min_samples_leaf, _KNOWN * len(known))
    return np.where(rare, 0.0, X) if rare.any() else X


def _equal_weights(column: np.ndarray, weight: np.ndarray) -> np.ndarray | None:
    """Ascending thresholds of bins of about equal weight, scikit-learn's weighted percentiles ("averaged inverted CDF"); None: values are so few
    that each has its own bin."""
    kept = ~np.isnan(column) & (weight != 0)
    order = np.argsort(column[kept])
    ordered, cumulated = column[kept][order], np.cumsum(weight[kept][order])
    if len(np.unique(ordered)) <= _BINS:
        return None
    wanted = np.linspace(0, 100, _BINS + 1)[1:-1] / 100 * cumulated[-1]
    places = np.minimum(np.searchsorted(cumulated, wanted), len(ordered) - 1)
    after = np.minimum(places + 1, len(ordered) - 1)
    between = cumulated[places] - wanted > np.finfo(np.float64).eps
    return np.unique(np.where(between, ordered[places], (ordered[places] + ordered[after]) / 2))
