"""What a model with a linear way from statistics to its logits starts as: a logistic regression.

S: samples, Fs: statistics, T: tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lmctr.evaluation.baseline_parts import statistic_regression
from lmctr.training.recency import recency_weights


class LinearSamples(NamedTuple):
    """Training samples as a model's linear way, or the trees beside it, read them.

    Args:
        values: (S, Fs) scaled statistics, or columns of fields. labels: (S,), or (S, T) for several tasks; below 0 where there is none.
        weight: (S,) or None. times: (S,) unix seconds, or None.
        rated: places of the categorical fields, two of a pair, whose rates, one task after the other, are the last columns. rates: of all
            their values, (all V, T), see [`~lmctr.evaluation.rates.value_rates`].
    """

    values: np.ndarray
    labels: np.ndarray
    weight: np.ndarray | None
    times: np.ndarray | None
    rated: Sequence[int | list[int]] = ()
    rates: np.ndarray | None = None


def start_linear(model: Any, samples: LinearSamples, half_life: float | None) -> None:
    """Let a new model's logits be those of a logistic regression per task, with the settings of the baseline.

    Args:
        model: with a `linear_path`.
        samples: the training part, or what is fitted on of it.
        half_life: days after which a sample counts half, as in the training that follows; None: equal weights.

    Raises:
        ValueError: a task whose labels are of one class.
    """
    found = []
    for values, labels, weight in by_task(samples, half_life):
        fitted = statistic_regression().fit(values, labels, weight)
        found.append((fitted.coef_[0], fitted.intercept_[0]))
    model.linear_path().start(
        *(torch.as_tensor(np.array(part), dtype=torch.float32).to(model.device) for part in zip(*found))
    )


def by_task(
    samples: LinearSamples, half_life: float | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Values, labels and weights of each task's samples that have a label, and a weight above 0."""
    values, labels, weight, times = samples[:4]
    if half_life is not None and times is not None:
        recent = recency_weights(times, half_life)
        weight = recent if weight is None else weight * recent
    for task, own in enumerate(labels.reshape(len(values), -1).T):
        known = own >= 0 if weight is None else (own >= 0) & (weight > 0)
        if len(np.unique(own[known])) < 2:
            raise ValueError(
                f"training.linear_start and boosting_share fit models beside the network, but the {int(known.sum())} training labels of task "
                f"{task} are of one class; set training.linear_start to zero and boosting_share to 0"
            )
        yield values[known], own[known], None if weight is None else weight[known]
