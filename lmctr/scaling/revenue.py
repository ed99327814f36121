"""From an offline metric to revenue: the linear map G, and which metric it works for (Figures 3-6).

Section 4.1 of arXiv 2411.13322: online revenue is close to linear in R/R*, less so in NDCG,
Recall and OPA. The pairs (offline metric, online revenue of the same model) are the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lmctr.utils.suggest import errors_of

from .points import check_numbers, equal_lists

__all__ = ["RevenueFit", "compare_metrics", "fit_revenue"]


@dataclass(frozen=True)
class RevenueFit:
    """revenue = slope x metric + intercept, by least squares.

    Args:
        r2: 1 - RSS / TSS. mean_deviation, max_deviation: mean and largest |fitted - revenue|, in the units of the revenue.
        num_points: pairs.
    """

    slope: float
    intercept: float
    r2: float
    mean_deviation: float
    max_deviation: float
    num_points: int

    def predict(self, metric: ArrayLike) -> np.ndarray:
        """G(metric), any shape."""
        return self.slope * np.asarray(metric, dtype=np.float64) + self.intercept

    def gain(self, metric: ArrayLike, base: ArrayLike) -> np.ndarray:
        """G(metric) - G(base)."""
        return self.slope * (np.asarray(metric, dtype=np.float64) - np.asarray(base, dtype=np.float64))


def fit_revenue(metric: ArrayLike, revenue: ArrayLike) -> RevenueFit:
    """Fit G.

    Args:
        metric: (P,) offline metric of a model. revenue: (P,) its online revenue, or its relative increase.

    Raises:
        ValueError: lengths that differ, fewer than 3 pairs, values that are not finite, one value only of either.
    """
    metric, revenue = equal_lists(metric=metric, revenue=revenue)
    if len(metric) < 3:
        raise ValueError(f"a line with R^2 needs at least 3 pairs, got {len(metric)}")
    for name, values in (("metric", metric), ("revenue", revenue)):
        check_numbers(name, values, positive=False)
        if np.ptp(values) == 0:
            raise ValueError(
                f"{name} has the same value, {values[0]}, in all {len(values)} pairs: no line can be fitted"
            )
    centred = metric - metric.mean()
    slope = float(centred @ (revenue - revenue.mean()) / (centred @ centred))
    intercept = float(revenue.mean() - slope * metric.mean())
    deviation = np.abs(slope * metric + intercept - revenue)
    r2 = 1.0 - float(np.square(deviation).sum() / np.square(revenue - revenue.mean()).sum())
    return RevenueFit(slope, intercept, r2, float(deviation.mean()), float(deviation.max()), len(metric))


def compare_metrics(metrics: Mapping[str, ArrayLike], revenue: ArrayLike) -> dict[str, RevenueFit]:
    """G of each metric on the same pairs, by descending R^2.

    Args:
        metrics: name -> (P,), such as revenue_ratio, ndcg, recall and ordered_pair_accuracy of the same models.

    Raises:
        ValueError: as `fit_revenue`, naming the metric; no metrics.
    """
    if not metrics:
        raise ValueError("metrics: there are none to compare")
    fits = {}
    for name, values in metrics.items():
        with errors_of(name):
            fits[name] = fit_revenue(values, revenue)
    return dict(sorted(fits.items(), key=lambda item: -item[1].r2))
