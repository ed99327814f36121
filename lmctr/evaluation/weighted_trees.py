"""Boosted trees as scikit-learn fits them, without its way to the bins of weighted rows, and faster on many."""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any, Self

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.ensemble._hist_gradient_boosting.grower import HistogramBuilder, TreeGrower

_BINS = 255  # scikit-learn's `max_bins`
_KNOWN = 1e-4  # share of rows: bins come from 200,000 of them at most
_LARGE = 1 << 24  # bytes of bins: more than a core's own cache holds
_SMALL = 8  # a node with at most one in so many rows, by thread
_BLOCK = 512


class _BoostedTrees:
    """scikit-learn's boosted trees, faster on many rows, see [`_histograms`], and several times as fast on weighted ones.

    From scikit-learn 1.8 on bins of these have equal weights, for which each column is sorted 254 times. Here one sort tells all; trees are fitted on
    the numbers of the bins, then their thresholds are put back. Where they are stopped early, or rows are more than 200,000, bins are those of all
    rows, not of the part, or the sample, that scikit-learn takes them from; else the trees are the same.

    Columns are numbers, NaN where missing; those of `categorical_features`, of at most 255 values, come first.
    """

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None = None) -> Self:
        """Fits on (N, C) columns and (N,) labels; `sample_weight`: (N,), or None."""
        if sample_weight is None:
            return self._fit(with_known_columns(X, self.min_samples_leaf), y)
        codes, thresholds = np.array(with_known_columns(X, self.min_samples_leaf, sample_weight), dtype=np.float64), {}
        for place, column in enumerate(codes.T):  # its views
            found = _equal_weights(column, np.asarray(sample_weight, dtype=np.float64))
            if found is not None:
                thresholds[place] = found
                column[:] = np.where(np.isnan(column), np.nan, np.searchsorted(found, column))
        self._fit(codes, y, sample_weight)
        present = {place: np.unique(codes[:, place]) for place in thresholds}
        for (tree,) in self._predictors:
            nodes = tree.nodes
            for node in np.flatnonzero(~nodes["is_leaf"].astype(bool) & np.isfinite(nodes["num_threshold"])):
                place, between = int(nodes["feature_idx"][node]), nodes["num_threshold"][node]
                if place in thresholds:  # between two numbers that rows have, of which the lower goes left
                    lower = present[place][np.searchsorted(present[place], between) - 1]
                    nodes["num_threshold"][node] = thresholds[place][int(lower)]
        return self

    def _fit(self, *given: Any) -> Self:
        """scikit-learn's own function, which finds [`_Grower`] by the name of its grower."""
        own = inspect.unwrap(super().fit)
        names = {**own.__globals__, "TreeGrower": partial(_Grower, [])}
        fit = FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)
        fit.__kwdefaults__ = own.__kwdefaults__
        self._validate_params()
        return fit(self, *given)


class _Grower(TreeGrower):
    """scikit-learn's, which sums by [`_histograms`] where the table is large. rows: kept for the next tree."""

    def __init__(self, rows: list[np.ndarray], X_binned: np.ndarray, *given: Any, **options: Any) -> None:
        if not rows and X_binned.nbytes >= _LARGE:
            rows.append(np.ascontiguousarray(X_binned))
        self._rows = rows
        super().__init__(X_binned, *given, **options)

    def _initialize_root(self, *given: Any) -> None:  # the first to sum
        own = self.histogram_builder
        if self._rows:
            kept = ("hessians", "hessians_are_constant", "compute_histograms_subtraction")
            self.histogram_builder = SimpleNamespace(
                compute_histograms_brute=partial(_histograms, own, *self._rows),
                **{name: getattr(own, name) for name in kept},
            )
        super()._initialize_root(*given)


def _histograms(own: HistogramBuilder, rows: np.ndarray, places: np.ndarray, *allowed: np.ndarray | None) -> Any:
    """scikit-learn's sums by bin at places (n,) of all rows (N, C), of few from a copy: in a column they lie so far apart that each is waited for, in a row
    all columns come at once. The order is the same, so all bits are."""
    places = np.asarray(places)
    if len(places) * _SMALL * own.n_threads > len(rows):
        return own.compute_histograms_brute(places, *allowed)
    few, bins = rows.take(places, axis=0), np.empty((len(places), rows.shape[1]), np.uint8, order="F")
    for start in range(0, len(few), _BLOCK):  # what is turned at once stays in the cache
        bins[start : start + _BLOCK] = few[start : start + _BLOCK]
    slopes = [kept if len(kept) == 1 else kept[places] for kept in map(np.asarray, (own.gradients, own.hessians))]
    builder = HistogramBuilder(bins, own.n_bins, *slopes, own.hessians_are_constant, own.n_threads)
    return builder.compute_histograms_brute(np.arange(len(places), dtype=np.uint32), *allowed)


class BoostedTreesClassifier(_BoostedTrees, HistGradientBoostingClassifier):
    __doc__ = f"{_BoostedTrees.__doc__.rstrip()} Labels of two classes."


class BoostedTreesRegressor(_BoostedTrees, HistGradientBoostingRegressor):
    __doc__ = f"{_BoostedTrees.__doc__.rstrip()} Labels are numbers."


def with_known_columns(X: np.ndarray, min_samples_leaf: int, weight: np.ndarray | None = None) -> np.ndarray:
    """(N, C) columns for scikit-learn's boosted trees, which refuse a column without values among the rows that they take their bins from.

    A column with values in fewer rows than a leaf must have, no tree can divide; in fewer than one row of 10,000, its bins might see none. Such a column
    is given as zeros. Rows of weight 0 do not count.
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
