"""Recency weights: training samples count less the older they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_SECONDS_PER_DAY = 86400.0


def no_times(half_life: float) -> ValueError:
    """Of training samples without times, which have no age."""
    return ValueError(
        f"recency_half_life={half_life} needs the time of each training sample, but these have none; leave it out, or take data with a "
        "time column"
    )


def recency_weights(times: np.ndarray, half_life: float) -> np.ndarray:
    """2^(-age / half-life) of each sample, float32 in the shape of `times`; age is the time to the newest sample.

    From 100 half-lives on it stays the same: a batch of old samples only must not count nothing, and float32 ends soon after.

    Args:
        times: unix seconds.
        half_life: in days.
    """
    age = (times.max() - times) / _SECONDS_PER_DAY
    return np.exp2(-np.minimum(age / half_life, 100)).astype(np.float32)


class WeightedCollator:
    """Collates the items of a [`~lmctr.training.sampler.FillerDataset`] with weights; these are multiplied with the batch's own `sample_weight`,
    where it has one."""

    def __init__(self, collator: Callable[[list], dict]):
        self.collator = collator

    def __call__(self, rows: list[tuple[Any, np.ndarray]]) -> dict[str, torch.Tensor]:
        items, weights = zip(*rows)
        batch, weight = self.collator(list(items)), torch.from_numpy(np.stack(weights))
        batch["sample_weight"] = weight * batch["sample_weight"] if "sample_weight" in batch else weight
        return batch
