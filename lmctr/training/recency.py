"""Recency weights: training samples count less the older they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

_SECONDS_PER_DAY = 86400.0


def recency_weights(times: np.ndarray, half_life: float) -> np.ndarray:
    """2^(-age / half-life) of each sample, float32 in the shape of `times`; age is the time to the newest sample.

    From 100 half-lives on it stays the same: a batch of old samples only must not count nothing, and float32 ends soon after.

    Args:
        times: unix seconds.
        half_life: in days.
    """
    age = (times.max() - times) / _SECONDS_PER_DAY
    return np.exp2(-np.minimum(age / half_life, 100)).astype(np.float32)


class WeightedDataset:
    """A dataset whose items come with a weight, (item, weight); [`WeightedCollator`] takes them apart.

    Args:
        dataset: map-style.
        weight: (S,), or (S, C) for rows of several samples, float32.
    """

    def __init__(self, dataset: Sequence, weight: np.ndarray):
        self.dataset, self.weight = dataset, weight

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, np.ndarray]:
        return self.dataset[index], self.weight[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, np.ndarray]]:
        if hasattr(self.dataset, "__getitems__"):
            return list(zip(self.dataset.__getitems__(indices), self.weight[np.asarray(indices)]))
        return [self[index] for index in indices]


class WeightedCollator:
    """Collates the items of a [`WeightedDataset`]; their weights are multiplied with the batch's own `sample_weight`, where it has one."""

    def __init__(self, collator: Callable[[list], dict]):
        self.collator = collator

    def __call__(self, rows: list[tuple[Any, np.ndarray]]) -> dict[str, torch.Tensor]:
        items, weights = zip(*rows)
        batch, weight = self.collator(list(items)), torch.from_numpy(np.stack(weights))
        batch["sample_weight"] = weight * batch["sample_weight"] if "sample_weight" in batch else weight
        return batch
