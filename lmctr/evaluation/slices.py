"""Metrics by slice: where a model is better or worse than the strongest baseline, and where its predictions are too high.

`log` is read by attribute, see `lmctr.statistics.reader`. S: samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmctr.evaluation import metrics
from lmctr.statistics.reader import StatisticsReader
from lmctr.utils.tables import text_table

__all__ = ["sample_slices", "slice_metrics", "slices_text"]

_BOUNDS = (1, 10, 50, 200)


def sample_slices(
    log: Any, events: np.ndarray, train: np.ndarray, statistics: np.ndarray | None = None
) -> dict[str, tuple[np.ndarray, list[str]]]:
    """The slices of samples: name -> code (S,) and the names of the codes.

    Args:
        log: the log. events: (S,) samples. train: training events: a user or an item without one is new.
        statistics: (S, F) their raw statistics; a slice by the share that is missing comes of it.
    """
    counts = StatisticsReader(("user_count", "item_count"), 0.5).raw(log, events)
    labels = ["0", *(f"{low} to {high - 1}" for low, high in zip(_BOUNDS, _BOUNDS[1:])), f"{_BOUNDS[-1]} or more"]
    slices = {
        name: (np.searchsorted(_BOUNDS, column, side="right"), labels)
        for name, column in zip(("events of the user before", "events of the item before"), counts.T)
    }
    for name, column in (("user", np.asarray(log.user)), ("item", np.asarray(log.item))):
        new = ~np.isin(column[events], column[train])
        slices[name] = (new.astype(np.int64), ["in the training part", "new"])
    if statistics is not None:
        share = np.isnan(statistics).mean(1)
        slices["statistics missing"] = (np.digitize(share, (1e-9, 0.1)), ["none", "up to 10 %", "10 % or more"])
    return slices


def slice_metrics(
    slices: Mapping[str, tuple[np.ndarray, Sequence[str]]],
    labels: np.ndarray,
    predictions: Mapping[str, np.ndarray],
    groups: np.ndarray | None = None,
    weight: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """One row per slice and value that occurs: `slice`, `value`, `num_samples`, `mean_label`, and per prediction NAME `NAME_auc`,
    `NAME_grouped_auc` (None where not defined) and `NAME_mean`.

    Args:
        slices: see `sample_slices`. labels: (S,) in {0, 1}. predictions: name -> (S,) probabilities. groups: (S,) of the grouped AUC.
        weight: (S,) sample weights.
    """
    rows = []
    for name, (codes, values) in slices.items():
        for code, value in enumerate(values):
            chosen = np.flatnonzero(codes == code)
            if not len(chosen):
                continue
            own_weight = None if weight is None else weight[chosen]
            row = {"slice": name, "value": value, "num_samples": len(chosen)}
            row["mean_label"] = _mean(labels[chosen], own_weight)
            for model, scores in predictions.items():
                row[f"{model}_auc"] = _defined(metrics.auc, labels[chosen], scores[chosen], sample_weight=own_weight)
                if groups is not None:
                    row[f"{model}_grouped_auc"] = _defined(
                        metrics.grouped_auc, labels[chosen], scores[chosen], groups[chosen], sample_weight=own_weight
                    )
                row[f"{model}_mean"] = _mean(scores[chosen], own_weight)
            rows.append(row)
    return rows


def slices_text(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """A plain text table of `slice_metrics`, with these predictions side by side."""
    titles = {"auc": "AUC", "grouped_auc": "gAUC", "mean": "mean"}
    keys = [f"{name}_{key}" for key in titles for name in names if any(f"{name}_{key}" in row for row in rows)]
    heads = [f"{titles[key]} {name.replace('_', ' ')}" for key in titles for name in names if f"{name}_{key}" in keys]
    table = [["slice", "", "samples", *heads, "mean label"]]
    for row in rows:
        cells = ["-" if row.get(key) is None else f"{row[key]:.4f}" for key in (*keys, "mean_label")]
        table.append([row["slice"], row["value"], f"{row['num_samples']:,}", *cells])
    return text_table(table)


def _mean(values: np.ndarray, weight: np.ndarray | None) -> float | None:
    return None if weight is not None and not weight.sum() else float(np.average(values, weights=weight))


def _defined(metric: Any, *values: np.ndarray, **options: Any) -> float | None:
    """The metric, None where a slice has one class only or weights of 0."""
    try:
        return metric(*values, **options)
    except metrics.UndefinedMetricError:
        return None
