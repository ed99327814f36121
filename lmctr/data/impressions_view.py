"""Batches of an [`~lmctr.data.impressions.ImpressionStore`], padded to the longest impression of the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lmctr.utils.ragged import ragged_arange

from ..modeling_utils import IGNORED_LABEL
from .impressions_processor import pad_ads
from .splits import Splits

if TYPE_CHECKING:
    from .impressions import ImpressionStore

__all__ = ["ImpressionCollator", "ImpressionDataset", "ImpressionView"]

_USER_INPUTS = ("user_input_ids", "user_numeric_values", "user_sequence_ids")
_AD_INPUTS = ("ad_input_ids", "ad_numeric_values")


class ImpressionView:
    """Impressions of a store as a retrieval model takes them.

    Args:
        store: the store.
        trim: cut sequences to the longest of the batch (they are padded on the right).
    """

    def __init__(self, store: ImpressionStore, trim: bool = True) -> None:
        self.store, self.trim = store, trim

    @property
    def processor(self) -> Any:
        """The processor that made the store."""
        return self.store.processor

    @property
    def splits(self) -> Splits:
        """Impressions of each part."""
        return self.store.splits

    def ads(self, rows: np.ndarray) -> np.ndarray:
        """Places in the store of the ads of some impressions, impression by impression."""
        return ragged_arange(self.store.offsets[:-1][rows], self.store.counts[rows])

    def grids(
        self, rows: Sequence[int] | np.ndarray, names: Sequence[str]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Arrays of ads (`ranks`, `ecpm`, `stages`, `oracle`, inputs) of some impressions as (B, n, ...), and the mask (B, n)."""
        rows = self.check(rows)
        places = self.ads(rows)
        return pad_ads({name: getattr(self.store, name)[places] for name in names}, self.store.counts[rows])

    def batch(self, rows: Sequence[int] | np.ndarray) -> dict[str, torch.Tensor]:
        """Tensors of some impressions.

        Args:
            rows: (B,) impressions of the store. -1 is a filler row: impression 0 with labels -100 and the mask False everywhere.

        Returns:
            The forward keys that the store has: `user_input_ids` (B, Fu) int32, `user_numeric_values` (B, Nu) float32, `user_sequence_ids`
            (B, S, L) int32, `ad_input_ids` (B, n, Fa) int32, `ad_numeric_values` (B, n, Na) float32, `ad_mask` (B, n) bool, `labels` (B, n)
            float32 v with -100 where no ad stands, `ecpm` (B, n) float32, and `sample_weight` (B,) float32 (0 for fillers).

        Raises:
            ValueError: no rows, or rows outside the store.
        """
        rows = self.check(rows, lowest=-1)
        if not len(rows):
            raise ValueError("rows must hold at least one impression")
        filler = rows < 0
        rows = np.where(filler, 0, rows)
        store, batch = self.store, {}
        for name in _USER_INPUTS:
            values = getattr(store, name)
            if values is not None:
                batch[name] = _tensor(values[rows])
        if self.trim and "user_sequence_ids" in batch:
            used = batch["user_sequence_ids"].amax(dim=(0, 1)).nonzero()
            longest = int(used[-1]) + 1 if len(used) else 1
            batch["user_sequence_ids"] = batch["user_sequence_ids"][..., :longest].contiguous()
        names = [name for name in _AD_INPUTS if getattr(store, name) is not None]
        grids, mask = self.grids(rows, [*names, "ranks", "ecpm"])
        mask &= ~filler[:, None]
        for name in names:
            batch[name] = _tensor(grids[name])
        batch["ad_mask"] = torch.from_numpy(mask)
        batch["labels"] = torch.from_numpy(np.where(mask, grids["ranks"], np.float32(IGNORED_LABEL)))
        batch["ecpm"] = torch.from_numpy(np.where(mask, grids["ecpm"], np.float32(0)))
        if store.weight is not None:
            batch["sample_weight"] = torch.from_numpy(np.where(filler, np.float32(0), store.weight[rows]))
        return batch

    def check(self, rows: Sequence[int] | np.ndarray, lowest: int = 0) -> np.ndarray:
        """Row numbers as (B,) int64. Raises `ValueError` for what is none of the store's."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise ValueError(f"rows must be a list of whole numbers, got {rows.dtype} of shape {rows.shape}")
        if rows.size and (rows.min() < lowest or rows.max() >= len(self.store)):
            raise ValueError(f"rows must be from 0 to {len(self.store) - 1}, got {rows.min()} to {rows.max()}")
        return rows.astype(np.int64, copy=False)


class ImpressionDataset(Dataset):
    """Impressions of a [`ImpressionView`]. An item is a row number; [`ImpressionCollator`] turns a list of them into a batch.

    Args:
        view: the view.
        rows: (S,) impressions of the store, for example a part of its splits; None takes all.

    Attributes:
        rows: (S,) int64 in the order of the dataset. lengths: (S,) ads of each impression, by which batches of like widths are made.
        sample_weight: (S,) float32 or None.
    """

    def __init__(self, view: ImpressionView, rows: Sequence[int] | np.ndarray | None = None) -> None:
        self.view = view
        self.rows = np.arange(len(view.store)) if rows is None else view.check(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        return int(self.rows[index])

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        """Row numbers of a whole batch; the data loader asks for this in place of one item at a time."""
        return self.rows[np.asarray(indices)].tolist()

    @property
    def lengths(self) -> np.ndarray:
        """(S,) ads of each impression."""
        return np.asarray(self.view.store.counts)[self.rows]

    @property
    def sample_weight(self) -> np.ndarray | None:
        """(S,) float32 sample weights, None when the data have none."""
        return None if self.view.store.weight is None else self.view.store.weight[self.rows]


class ImpressionCollator:
    """Turns row numbers into a batch, see [`ImpressionView.batch`]; -1 makes a filler row with labels -100."""

    def __init__(self, view: ImpressionView) -> None:
        self.view = view

    def __call__(self, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
        return self.view.batch(rows)


def _tensor(values: np.ndarray) -> torch.Tensor:
    if values.dtype.kind == "i":
        values = values.astype(np.int32, copy=False)
    return torch.from_numpy(np.ascontiguousarray(values))
