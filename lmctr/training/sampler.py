"""Batches that depend on the seed and the epoch, never on the number of processes.

A *global batch* is what one optimiser step sees: all processes and all accumulation steps together. It is drawn first
and cut into the processes' micro-batches afterwards, so one process with batches of 2b and two processes with batches
of b train on the same global batches in the same order.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler

from lmctr.utils.ragged import blocks


def filler(row: int) -> int:
    """The dataset index, below 0, of a row that only fills a batch: it repeats another one, with label -100, and counts nowhere."""
    return -1 - int(row)


class GlobalBatchSampler(Sampler[list[int]]):
    """Yields this process's micro-batches of each global batch, as lists of dataset indices.

    Args:
        num_samples: size of the dataset.
        batch_size: rows per process and micro-batch, b.
        accumulation_steps: micro-batches per optimiser step, A.
        num_processes: P; the global batch has b * A * P rows.
        process_index: which process this is.
        lengths: (num_samples,) token lengths for grouping, or None.
        strategy: `"group_by_length"` (needs `lengths`), `"random"`, or `"sequential"` (dataset order, no shuffling).
        group_batches: global batches that are sorted by length together.
        seed: the order is a function of (seed, epoch) only.

    Each sample is in exactly one micro-batch per epoch. All processes yield the same number of micro-batches; where
    the last global batch has fewer rows than parts, a part holds one [`filler`], of a row of that batch: an optimiser of touched rows touches
    no others.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        accumulation_steps: int = 1,
        num_processes: int = 1,
        process_index: int = 0,
        lengths: np.ndarray | None = None,
        strategy: str = "group_by_length",
        group_batches: int = 50,
        seed: int = 0,
    ):
        if num_samples < 1:
            raise ValueError("the training set is empty: there is nothing to train on")
        self.num_samples, self.lengths = num_samples, None if lengths is None else np.asarray(lengths)
        if self.lengths is not None and len(self.lengths) != num_samples:
            raise ValueError(f"lengths has {len(self.lengths)} values for {num_samples} samples")
        self.accumulation_steps = accumulation_steps
        self.num_processes, self.process_index = num_processes, process_index
        self.strategy, self.group_batches, self.seed, self.epoch = strategy, group_batches, seed, 0
        self.step_size = batch_size * num_processes  # rows of a micro-batch, all processes together
        self.global_batch_size = self.step_size * accumulation_steps  # rows per optimiser step

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration follows."""
        self.epoch = int(epoch)

    def __len__(self) -> int:
        full, rest = divmod(self.num_samples, self.global_batch_size)
        return full * self.accumulation_steps + math.ceil(rest / self.step_size)

    def global_batches(self, epoch: int) -> list[np.ndarray]:
        """Row indices of each global batch of an epoch; only the last one may be smaller than the others."""
        if self.strategy == "sequential":
            return self._cut(np.arange(self.num_samples))
        rng = np.random.default_rng([self.seed, epoch])
        kind = np.int32 if self.num_samples < 2**31 else np.int64
        order = rng.permutation(np.arange(self.num_samples, dtype=kind))
        if self.strategy == "random" or self.lengths is None:
            return self._cut(order)
        group = self.global_batch_size * self.group_batches
        for part in (order[some] for some in blocks(self.num_samples, group)):
            part[:] = part[np.argsort(self.lengths[part], kind="stable")]
        batches = self._cut(order)
        num_full = self.num_samples // self.global_batch_size
        return [batches[index] for index in rng.permutation(num_full)] + batches[num_full:]

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self.global_batches(self.epoch):
            parts = np.array_split(rows, math.ceil(len(rows) / self.step_size) * self.num_processes)
            for part in parts[self.process_index :: self.num_processes]:
                yield part.tolist() if len(part) else [filler(rows[0])]

    def _cut(self, order: np.ndarray) -> list[np.ndarray]:
        return [order[some] for some in blocks(len(order), self.global_batch_size)]


class EvaluationBatchSampler(Sampler[list[int]]):
    """Yields this process's evaluation batches, longest samples first.

    In every step all processes get batches of the same size (fillers make them so), so their results can be gathered
    without further padding; `gathered_rows` tells which dataset row each gathered value belongs to.

    Args:
        num_samples, batch_size, num_processes, process_index, lengths: as in `GlobalBatchSampler`.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        num_processes: int = 1,
        process_index: int = 0,
        lengths: np.ndarray | None = None,
    ):
        if num_samples < 1:
            raise ValueError("the evaluation set is empty: there is nothing to measure")
        order = np.arange(num_samples) if lengths is None else np.argsort(-np.asarray(lengths), kind="stable")
        self._steps = []
        for rows in (order[some] for some in blocks(num_samples, batch_size * num_processes)):
            width = math.ceil(len(rows) / num_processes)
            grid = np.full(width * num_processes, filler(rows[-1]), dtype=np.int64)
            grid[: len(rows)] = rows
            self._steps.append(grid.reshape(num_processes, width))
        self.process_index = process_index

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[list[int]]:
        for grid in self._steps:
            yield grid[self.process_index].tolist()

    @property
    def gathered_rows(self) -> np.ndarray:
        """Dataset row of each value gathered over the processes, step by step; below 0 where it is to be dropped."""
        return np.concatenate([grid.reshape(-1) for grid in self._steps])


@dataclass
class Filler:
    """An item that only fills a batch."""

    item: Any


class FillerDataset(Dataset):
    """A map-style dataset that answers the index of a [`filler`] with a [`Filler`]; with weights its items are (item, weight).

    Args:
        dataset: map-style. weight: (S,), or (S, C) for rows of several samples, float32.

    A dataset with `__getitems__` is asked once per batch: for large batches of small rows, one call per row would take longer
    than the rest of the reading.
    """

    def __init__(self, dataset: Sequence, weight: np.ndarray | None = None):
        self.dataset, self.weight = dataset, weight

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if index < 0:
            return Filler(self[filler(index)])
        return self.dataset[index] if self.weight is None else (self.dataset[index], self.weight[index])

    def __getitems__(self, indices: list[int]) -> list:
        if min(indices) < 0 or not hasattr(self.dataset, "__getitems__"):
            return [self[index] for index in indices]
        items = self.dataset.__getitems__(indices)
        return items if self.weight is None else list(zip(items, self.weight[np.asarray(indices)]))


class FillerCollator:
    """Collates rows with the given collator and turns [`Filler`]s into rows that count nowhere: their label is -100.

    A filler among impressions has no ads (`ad_mask` False): batch normalisation does not count them either.
    """

    def __init__(self, collator: Any):
        self.collator = collator

    def __call__(self, rows: list) -> dict:
        fillers = [index for index, row in enumerate(rows) if isinstance(row, Filler)]
        batch = self.collator([row.item if isinstance(row, Filler) else row for row in rows] if fillers else rows)
        for name, value in {"labels": -100, "ad_mask": False}.items() if fillers else ():
            if name in batch:
                batch[name][fillers] = value
        return batch


class EpochDataLoader(DataLoader):
    """A DataLoader over a batch sampler that follows the epoch."""

    _latest = None

    def __iter__(self) -> Any:
        iterator = super().__iter__()
        self._latest = weakref.ref(iterator)
        return iterator

    def end_workers(self) -> None:
        """End the worker processes, also those that persist or stand in the middle of an epoch.

        Left to the collection of garbage they would be waited for, five seconds each: the queue that tells them to end may go first.
        """
        iterator = self._latest() if self._latest is not None else None
        if hasattr(iterator, "_shutdown_workers"):  # a private name of torch
            iterator._shutdown_workers()
        self._iterator = None

    def set_epoch(self, epoch: int) -> None:
        """Forward the epoch to the batch sampler."""
        self.batch_sampler.set_epoch(epoch)
