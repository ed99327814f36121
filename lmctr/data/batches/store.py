"""What the views of stores share: row numbers, data sets of them, and collators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lmctr.data.array_store import ArrayStore
from lmctr.data.logs.splits import Splits


class StoreView(ABC):
    """Samples of a store as a model takes them.

    Args:
        store: the store.
        trim: cut sequences to the longest of the batch (they are padded on the right).
    """

    def __init__(self, store: ArrayStore, trim: bool = True) -> None:
        self.store: Any = store
        self.trim = trim

    @property
    def processor(self) -> Any:
        """The processor that made the store."""
        return self.store.processor

    @property
    def splits(self) -> Splits:
        """Row numbers of each part."""
        return self.store.splits

    @abstractmethod
    def batch(self, rows: Sequence[int] | np.ndarray) -> dict[str, torch.Tensor]:
        """Tensors of some rows."""

    def check(self, rows: Sequence[int] | np.ndarray, lowest: int = 0) -> np.ndarray:
        """Row numbers as (B,) int64. Raises `ValueError` for what is none of the store's."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise ValueError(f"rows must be a list of whole numbers, got {rows.dtype} of shape {rows.shape}")
        if rows.size and (rows.min() < lowest or rows.max() >= len(self.store)):
            raise ValueError(f"rows must be from 0 to {len(self.store) - 1}, got {rows.min()} to {rows.max()}")
        return rows.astype(np.int64, copy=False)


class StoreDataset(Dataset):
    """Samples of a [`StoreView`]. An item is a row number; [`StoreCollator`] turns a list of them into a batch.

    Args:
        view: the view.
        rows: (S,) row numbers of the store, for example a part of its splits; None takes all.

    Attributes:
        rows: (S,) int64 in the order of the dataset. sample_weight: (S,) float32 or None.

    Raises:
        ValueError: rows outside the store.
    """

    def __init__(self, view: StoreView, rows: Sequence[int] | np.ndarray | None = None) -> None:
        self.view: Any = view
        self.rows = np.arange(len(view.store)) if rows is None else view.check(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        return int(self.rows[index])

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        """Row numbers of a whole batch; the data loader asks for this in place of one item at a time."""
        return self.rows[np.asarray(indices)].tolist()

    @property
    def sample_weight(self) -> np.ndarray | None:
        """(S,) float32 sample weights, None when the data have none."""
        return None if self.view.store.weight is None else self.view.store.weight[self.rows]


class StoreCollator:
    """Turns row numbers into a batch, see the view's `batch`; -1 makes a filler row with labels -100."""

    def __init__(self, view: StoreView) -> None:
        self.view = view

    def __call__(self, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        return self.view.batch(rows)
