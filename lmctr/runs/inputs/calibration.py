"""Logits of a trained model that are calibrated on its validation part.

S: samples, T: tasks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from lmctr.models.common.base import plain_model

_PRIOR = 4.0  # the inverse variance of a normal prior around no change: few samples tell little


def measured(trainer: Any, samples: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A model's logits of samples, their labels, and what each counts, 0 where there is no label; (S,), or (S, T) of several tasks.

    Args:
        trainer: a `CTRTrainer`. samples: as it measures them; their weights count.
    """
    output = trainer.predict(samples)
    labels, weight = output.label_ids, getattr(samples, "sample_weight", None)
    if weight is not None:
        mask = getattr(samples, "candidate_mask", None)
        weight = np.asarray(weight if mask is None else weight[mask]).reshape(-1, *[1] * (labels.ndim - 1))
    weight = np.where(labels >= 0, 1.0 if weight is None else weight, 0.0)
    return output.predictions.astype(np.float64), labels, weight


def calibrate(trainer: Any, samples: Any) -> list[float]:
    """Add to each task's logits the intercept with which its probabilities sum up to its labels, in the trainer's model; what was added.

    Calibration in the large: the logits keep their order and their scale. A clicks' rate that drifts, or statistics that have grown since
    the training part, shift all logits alike.

    Args:
        trainer: a `CTRTrainer`. samples: as it measures them; their weights count.
    """
    config = plain_model(trainer.model).config
    columns = (values.reshape(len(values), -1).T for values in measured(trainer, samples))
    found = [round(_intercept(*column), 4) for column in zip(*columns)]
    config.calibration = [own + more for own, more in zip(config.calibration or [0.0] * len(found), found)]
    return found


def _intercept(logits: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> float:
    """The mode of an intercept's posterior, for (S,) samples of one task."""

    def slope(added: float) -> float:
        return float((weight * (expit(logits + added) - labels)).sum() + _PRIOR * added)

    reach = 1.0 + float(weight.sum()) / _PRIOR
    return brentq(slope, -reach, reach, xtol=1e-6)
