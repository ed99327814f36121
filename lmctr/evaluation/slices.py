"""Metrics by slice: where a model is better or worse than the strongest baseline, and where its predictions are too high.

`log` is read by attribute, see `lmctr.statistics.reader`. S: samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lmctr.evaluation import metrics
from lmctr.statistics import Statistic, StatisticsReader, resolve_statistics, statistic
from lmctr.utils.tables import text_table

__all__ = ["sample_slices", "slice_metrics", "slices_text"]

_BOUNDS = (1, 10, 50, 200)


def sample_slices(log: Any, events: np.ndarray, train: np.ndarray) -> dict[str, tuple[np.ndarray, list[str]]]:
    """The slices of samples: name -> code (S,) and the names of the codes.

    Args:
        log: the log. events: (S,) samples. train: training events: a user or an item without one is new.
    """
    rows = [statistic(name) for name in resolve_statistics("full", log)]
    alike: dict[tuple[str, ...], list[Statistic]] = {}  # what is missing together
    for row in rows:
        if row.missing:
            alike.setdefault((row.family, row.column, row.missing), []).append(row)
    reader = StatisticsReader(("user_count", "item_count", *(own[0].name for own in alike.values())), 0.5)
    statistics = reader.raw(log, events)
    labels = ["0", *(f"{low} to {high - 1}" for low, high in pairwise(_BOUNDS)), f"{_BOUNDS[-1]} or more"]
    slices = {}
    for side in ("user", "item"):
        counts = statistics[:, reader.names.index(f"{side}_count")]
        slices[f"labelled events of the {side}"] = (np.searchsorted(_BOUNDS, counts, side="right"), labels)
    for side in ("user", "item"):
        column = np.asarray(getattr(log, side))
        is_new = np.ones(int(column.max(initial=0)) + 1, dtype=np.int64)
        is_new[column[train]] = 0
        slices[side] = (is_new[column[events]], ["seen in training", "new"])
    share = np.isnan(statistics[:, 2:]) @ [len(own) for own in alike.values()] / len(rows)
    slices["missing statistics"] = (np.digitize(share, (1e-9, 0.1)), ["none", "below 10 %", "10 % or more"])
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


def slices_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A plain text table of `slice_metrics`, the predictions side by side."""
    titles = {"auc": "AUC", "grouped_auc": "gAUC", "mean": "mean"}
    names = [key.removesuffix("_grouped_auc") for key in rows[0] if key.endswith("_grouped_auc")]
    keys = [f"{name}_{key}" for key in titles for name in names]
    heads = [f"{title} {name.replace('_', ' ')}" for title in titles.values() for name in names]
    table = [["slice", "", "samples", *heads, "mean label"]]
    for row in rows:
        cells = ["-" if row[key] is None else f"{row[key]:.4f}" for key in (*keys, "mean_label")]
        table.append([row["slice"], row["value"], f"{row['num_samples']:,}", *cells])
    return text_table(table, left=(0, 1))


def _mean(values: np.ndarray, weight: np.ndarray | None) -> float | None:
    return None if weight is not None and not weight.sum() else float(np.average(values, weights=weight))


def _defined(metric: Any, *values: np.ndarray, **options: Any) -> float | None:
    """The metric, None where a slice has one class only or weights of 0."""
    try:
        return metric(*values, **options)
    except metrics.UndefinedMetricError:
        return None
