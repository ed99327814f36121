"""Batches of an [`~lmctr.data.impressions.store.ImpressionStore`], padded to the longest impression of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lmctr.data.impressions.store import AD_INPUTS, USER_INPUTS, ImpressionStore
from lmctr.models.common.base import IGNORED_LABEL
from lmctr.utils.ragged import padded_grids, ragged_arange

from .rows import RowCollator, RowDataset, StoreBatches, as_tensor


class ImpressionView(StoreBatches):
    """Impressions of a store as a retrieval model takes them; see [`StoreBatches`] for the arguments."""

    row = "impression"
    store: ImpressionStore

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """(S,) ads of each impression, by which batches of like widths are made."""
        return np.asarray(self.store.counts)[rows]

    def candidate_mask(self, rows: np.ndarray) -> np.ndarray:
        """(S, n) bool, True where an ad stands; n is the most ads of an impression."""
        counts = self.lengths(rows)
        return np.arange(counts.max(initial=0)) < counts[:, None]

    def ecpm(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.store.ecpm[self.ads(rows)])

    def ads(self, rows: np.ndarray) -> np.ndarray:
        """Places in the store of the ads of some impressions, impression by impression."""
        return ragged_arange(self.store.offsets[:-1][rows], self.store.counts[rows])

    def grids(
        self, rows: Sequence[int] | np.ndarray, names: Sequence[str]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Arrays of ads (`ranks`, `ecpm`, `stages`, `oracle`, inputs) of some impressions as (B, n, ...), and the mask (B, n)."""
        rows = self.check(rows)
        places = self.ads(rows)
        return padded_grids({name: getattr(self.store, name)[places] for name in names}, self.store.counts[rows])

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
        batch = self._inputs(USER_INPUTS, rows)
        self._trimmed(batch, "user_sequence_ids")
        names = [name for name in AD_INPUTS if getattr(self.store, name) is not None]
        grids, mask = self.grids(np.maximum(rows, 0), [*names, "ranks", "ecpm"])
        mask &= rows[:, None] >= 0
        batch |= {name: as_tensor(grids[name]) for name in names}
        batch["ad_mask"] = torch.from_numpy(mask)
        batch["labels"] = torch.from_numpy(np.where(mask, grids["ranks"], np.float32(IGNORED_LABEL)))
        batch["ecpm"] = torch.from_numpy(np.where(mask, grids["ecpm"], np.float32(0)))
        if self.store.weight is not None:
            batch["sample_weight"] = torch.from_numpy(self.sample_weight(rows))
        return batch


ImpressionDataset, ImpressionCollator = RowDataset, RowCollator
