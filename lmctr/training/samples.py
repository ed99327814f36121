"""What a data set tells of its samples besides what its items hold, and gathered values in its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from lmctr.evaluation.evaluator import evaluate_predictions
from lmctr.evaluation.ranking_evaluator import RankingSettings, evaluate_ranking
from lmctr.models.common.base import IGNORED_LABEL
from lmctr.utils.ragged import ragged_arange


def sample_values(dataset: Any, name: str) -> np.ndarray | None:
    """What a data set tells of each sample, as an attribute or a column; of samples that torch takes from others, as these tell it."""
    if isinstance(dataset, Subset):
        values = sample_values(dataset.dataset, name)
        return None if values is None else values[_places(dataset)]
    if isinstance(dataset, ConcatDataset):
        parts = [sample_values(part, name) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate(parts)
    values = getattr(dataset, name, None)
    if values is None and name in (getattr(dataset, "column_names", None) or ()):
        values = dataset.with_format("numpy")[name]
    return None if values is None else np.asarray(values)


def measure_samples(
    dataset: Any, labels: np.ndarray, logits: np.ndarray, tasks: Sequence[str] = ()
) -> dict[str, float]:
    """Metrics of a data set's samples, in its order and without fillers: its own, or those of clicks.

    Args:
        labels, logits: (S,), or (S, T) of several `tasks`.

    Returns:
        `auc`, ... of the first task, with several also `<task>_auc`, ... and `mean_auc`. A further task whose known labels of a weight above 0 are
        of one class is left out.

    Raises:
        ValueError: labels of the first task of one class, see [`~lmctr.evaluation.evaluator.evaluate_predictions`].
    """
    own = own_metrics(dataset, labels, logits)
    if own is not None:
        return own
    groups, weight = sample_values(dataset, "groups"), sample_values(dataset, "sample_weight")
    mask = sample_values(dataset, "candidate_mask")
    if mask is not None:
        groups = None if groups is None else np.repeat(groups, mask.sum(axis=1))
        if weight is not None:  # of a row, or of each sample
            weight = np.repeat(weight, mask.sum(axis=1)) if weight.ndim == 1 else weight[mask]
    columns: Sequence[str | None] = [None]  # None for the only one of (S,) logits
    if logits.ndim > 1:
        columns = tasks if len(tasks) > 1 and logits.shape[1:] == (len(tasks),) else []
    metrics, of_each = {}, []
    for task, column in enumerate(columns):
        names = [f"{column}_"] * (column is not None) + [""] * (task == 0)
        own_logits, own_labels = (x if column is None else x[:, task] for x in (logits, labels))
        is_known = own_labels != IGNORED_LABEL
        counted = is_known if weight is None else is_known & (weight > 0)
        if not is_known.any() or (task > 0 and len(np.unique(own_labels[counted])) < 2):
            continue  # not defined: left out
        measured = evaluate_predictions(own_labels.astype(np.float64), own_logits, groups=groups, sample_weight=weight)
        for name in names:
            metrics[f"{name}loss"] = measured["log_loss"]
            metrics.update({f"{name}{key}": value for key, value in measured.items()})
        of_each.append(measured["auc"])
    if len(of_each) > 1:
        metrics["mean_auc"] = float(np.mean(of_each))
    return metrics


def own_metrics(dataset: Any, labels: np.ndarray, logits: np.ndarray) -> dict[str, float] | None:
    """What a data set is measured by whose samples are no rows of one click each; None for others."""
    if hasattr(dataset, "measure"):
        return dataset.measure(labels, logits)
    ecpm = _ecpm(dataset)
    if ecpm is None:
        return None
    counts, weight = sample_values(dataset, "lengths"), sample_values(dataset, "sample_weight")
    return evaluate_ranking(counts, labels, logits, ecpm, RankingSettings(), weight)


def _ecpm(dataset: Any) -> np.ndarray | None:
    """eCPM of the ads of impressions, one after the other; None where samples are none."""
    if isinstance(dataset, ConcatDataset):
        parts = [_ecpm(part) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate(parts)
    if not isinstance(dataset, Subset):
        return getattr(dataset, "ecpm", None)
    whole, lengths = _ecpm(dataset.dataset), sample_values(dataset.dataset, "lengths")
    if whole is None:
        return None
    starts, places = np.cumsum(lengths) - lengths, _places(dataset)
    return whole[ragged_arange(starts[places], lengths[places])]


def _places(dataset: Subset) -> np.ndarray:
    return np.asarray(dataset.indices, dtype=np.int64)


def in_order(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Undo sorting and sharding: gathered values to the dataset's order, fillers dropped."""
    real = rows >= 0
    ordered = np.empty((int(real.sum()), *values.shape[1:]), dtype=values.dtype)
    ordered[rows[real]] = values[real]
    return ordered


def training_speed(dataset: Any, steps: int, batch_size: int, seconds: float) -> dict[str, float]:
    """Metrics of a training's speed, of all its steps and seconds: transformers counts from where a run goes on, full batches with `max_steps`,
    and rows, not samples. `batch_size`: rows per step; the last step of an epoch has fewer."""
    rows = len(dataset)
    epochs, rest = divmod(steps, -(-rows // batch_size))
    samples = (epochs * rows + rest * batch_size) * (getattr(dataset, "num_samples", None) or rows) / rows
    return {
        "train_runtime": seconds,
        "train_samples_per_second": round(samples / seconds, 3),
        "train_steps_per_second": round(steps / seconds, 3),
    }
