"""Tabular view: batches of a [`TabularStore`] by fancy indexing, without a Python step per row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from lmctr.data.tables.store import INPUTS, TabularStore
from lmctr.models.common.base import IGNORED_LABEL

from .rows import ALL_STATISTICS, RowCollator, RowDataset, StoreBatches, values_at

_KEYS_OF = {
    "id": ("input_ids",),
    "value": ("numeric_values",),
    "list": ("sequence_ids", "sequence_times", "sequence_weights"),
}


class TabularView(StoreBatches):
    """Samples of a store as a tabular model takes them; see [`StoreBatches`] for the arguments."""

    store: TabularStore

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """(S,) float32 labels, 0 or 1; (S, T) of several, -100 where there is none. Raises `ValueError` for a store without labels."""
        if self.store.labels is None:
            raise ValueError("the store has no labels: its processor was made without a label column")
        return self.store.labels[rows]

    def groups(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.store.groups is None else self.store.groups[rows]

    def columns(self) -> dict[str, dict[str, list[int] | None]]:
        places, names, read = Counter(), {}, {}
        reader = self.processor.statistics_reader
        statistics, known = [], reader.names if reader else ()
        for field in self.processor.ordered_fields():
            place, source = places[field.kind], field.source_column
            places[field.kind] += 1
            statistics += [place] if field.name in known and field.kind == "value" else []
            names.setdefault(source, []).append(field.name)
            for key in _KEYS_OF[field.kind]:
                read.setdefault(source, {}).setdefault(key, []).append(place)
        named = {", ".join(sorted(own)): read[source] for source, own in names.items()}
        return {ALL_STATISTICS: {"numeric_values": statistics}, **named} if len(statistics) > 1 else named

    def batch(self, rows: Sequence[int] | np.ndarray) -> dict[str, torch.Tensor]:
        """Tensors of some rows.

        Args:
            rows: (B,) row numbers of the store. -1 is a filler row: row 0 with the label -100, which losses and metrics ignore.

        Returns:
            The forward keys `input_ids` (B, F) int32, `numeric_values` (B, Nn) float32, `sequence_ids` (B, S, L) int32,
            `sequence_times` and `sequence_weights` (B, S, L) float32 that the store has, `labels` (B,) or (B, T) float32 when it has labels, and
            `sample_weight` (B,) float32 when it has weights (0 for filler rows).

        Raises:
            ValueError: no rows, or rows outside the store.
        """
        rows = self.check(rows, lowest=-1)
        batch = self._inputs(INPUTS, rows)
        self._trimmed(batch, "sequence_ids", "sequence_times", "sequence_weights")
        if self.store.labels is not None:
            batch["labels"] = torch.from_numpy(values_at(self.store.labels, rows, IGNORED_LABEL))
        if self.store.weight is not None:
            batch["sample_weight"] = torch.from_numpy(self.sample_weight(rows))
        return batch


TabularDataset, TabularCollator = RowDataset, RowCollator
