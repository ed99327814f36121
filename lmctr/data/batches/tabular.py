"""Tabular view: batches of a [`TabularStore`] by fancy indexing, without a Python step per row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lmctr.data.tables.store import TabularStore
from lmctr.models.common.base import IGNORED_LABEL

from .store import StoreCollator, StoreDataset, StoreView

__all__ = ["TabularCollator", "TabularDataset", "TabularView"]

_INPUTS = ("input_ids", "numeric_values", "sequence_ids", "sequence_times")


class TabularView(StoreView):
    """Samples of a store as a tabular model takes them.

    Args:
        store: the store.
        trim: cut sequences to the longest of the batch (they are padded on the right).
    """

    store: TabularStore

    def batch(self, rows: Sequence[int] | np.ndarray) -> dict[str, torch.Tensor]:
        """Tensors of some rows.

        Args:
            rows: (B,) row numbers of the store. -1 is a filler row: row 0 with the label -100, which losses and metrics ignore.

        Returns:
            The forward keys `input_ids` (B, F) int32, `numeric_values` (B, Nn) float32, `sequence_ids` (B, S, L) int32,
            `sequence_times` (B, S, L) float32 that the store has, `labels` (B,) float32 when it has labels, and
            `sample_weight` (B,) float32 when it has weights (0 for filler rows).

        Raises:
            ValueError: no rows, or rows outside the store.
        """
        rows = self.check(rows, lowest=-1)
        if not len(rows):
            raise ValueError("rows must hold at least one row number")
        filler = rows < 0 if rows.min() < 0 else None
        if filler is not None:
            rows = np.where(filler, 0, rows)
        batch = {}
        for name in _INPUTS:
            values = getattr(self.store, name)
            if values is None:
                continue
            values = values[rows]
            if values.dtype.kind == "i":
                values = values.astype(np.int32, copy=False)
            batch[name] = torch.from_numpy(values)
        if self.trim and "sequence_ids" in batch:
            used = batch["sequence_ids"].amax(dim=(0, 1)).nonzero()
            longest = int(used[-1]) + 1 if len(used) else 1
            for name in ("sequence_ids", "sequence_times"):
                if name in batch:
                    batch[name] = batch[name][..., :longest].contiguous()
        if self.store.labels is not None:
            labels = self.store.labels[rows]
            batch["labels"] = torch.from_numpy(
                labels if filler is None else np.where(filler, np.float32(IGNORED_LABEL), labels)
            )
        if self.store.weight is not None:
            weight = self.store.weight[rows]
            batch["sample_weight"] = torch.from_numpy(
                weight if filler is None else np.where(filler, np.float32(0), weight)
            )
        return batch


class TabularDataset(StoreDataset):
    """Samples of a [`TabularView`]. An item is a row number; [`TabularCollator`] turns a list of them into a batch.

    Args:
        view: the view.
        rows: (S,) row numbers of the store, for example a part of its splits; None takes all.

    Attributes:
        rows: (S,) int64 in the order of the dataset. labels: (S,) float32. groups: (S,) int64 or None. sample_weight: (S,) float32
            or None.

    Raises:
        ValueError: rows outside the store, or a store without labels.
    """

    view: TabularView

    @property
    def labels(self) -> np.ndarray:
        """(S,) float32 labels, 0 or 1."""
        if self.view.store.labels is None:
            raise ValueError("the store has no labels: its processor was made without a label column")
        return self.view.store.labels[self.rows]

    @property
    def groups(self) -> np.ndarray | None:
        """(S,) int64 groups of the grouped AUC, None when the table has none."""
        return None if self.view.store.groups is None else self.view.store.groups[self.rows]


class TabularCollator(StoreCollator):
    """Turns row numbers into a batch, see [`TabularView.batch`]; -1 makes a filler row with the label -100."""
