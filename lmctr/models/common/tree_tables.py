"""Trees by tables: which leaves of which trees a column of a row leaves open, looked up instead of asked node by node.

Shapes: B rows, K columns, N trees, n inner nodes of a tree, S thresholds of a column.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

FEW_LEAVES = 15  # of a tree: they are bits of an int16 with a sign; more, up to 31, of an int32
MOST_BYTES = 1 << 27  # of all tables


class TreeTables(NamedTuple):
    """The columns that trees ask, each with its thresholds (S,) in order, and a table (S + 1, N) int16 or int32: the leaves of each tree that are open to a
    row with so many thresholds below its value. Copies of a model share them.

    Args:
        source: the tensors that they were made of, and how often these had been changed then. columns: one entry for each; None where the tables
            would be too large.
    """

    source: list[tuple[torch.Tensor, int]]
    columns: list[tuple[int, torch.Tensor, torch.Tensor]] | None

    def __deepcopy__(self, memo: dict) -> TreeTables:
        return self

    def __reduce__(self) -> tuple:
        return _none, ()  # they are made again of a model that was pickled

    def leaves(self, values: torch.Tensor) -> torch.Tensor:
        """(K, B) columns to the leaf (B, N) int32 of each tree that each row ends in: the first that is open. A NaN lies above no threshold."""
        values, left = values.nan_to_num(-torch.inf, torch.inf, -torch.inf), None
        for column, thresholds, table in self.columns:
            own = table.index_select(0, torch.searchsorted(thresholds, values[column]))
            left = own if left is None else left.bitwise_and_(own)
        lowest = (left & -left).clamp_(min=1)  # a power of two; 0 only in trees without values
        return (lowest.float().view(torch.int32) >> 23).sub_(127)  # its exponent


def _none() -> None:
    """What a pickle keeps of tables."""


def can_use_tables(values: torch.Tensor) -> bool:
    """Whether trees can be asked by tables: on a CPU, outside of graphs."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def tables_of(
    known: TreeTables | None, feature: torch.Tensor, threshold: torch.Tensor, kept: torch.Tensor
) -> TreeTables:
    """The tables of trees, those that are known where they are still theirs.

    Args:
        feature, threshold, kept: (N, n) of each node the column that it asks, what larger values go right of (inf: none do; float32, or its bits),
            and, as bits, the leaves that it leaves to those.
    """
    source = [(own, 0 if own.is_inference() else own._version) for own in (feature, threshold, kept)]
    if known is not None and all(
        own is other and version == then for (own, version), (other, then) in zip(source, known.source)
    ):
        return known
    asked, bounds, masks = (own.detach().numpy() for own in (feature, threshold, kept))
    bounds, made, size = bounds.view(np.float32), [], 0
    dtype = np.int16 if asked.shape[1] < FEW_LEAVES else np.int32
    for column in np.unique(asked):
        tree, node = np.nonzero((asked == column) & (bounds < np.inf))
        own = bounds[tree, node]
        thresholds = np.unique(own)
        size += np.dtype(dtype).itemsize * (len(thresholds) + 1) * len(asked)
        if size > MOST_BYTES:
            return TreeTables(source, None)
        table = np.full((len(thresholds) + 1, len(asked)), -1, dtype)
        np.bitwise_and.at(table, (np.searchsorted(thresholds, own) + 1, tree), masks[tree, node].astype(dtype))
        np.bitwise_and.accumulate(table, 0, out=table)
        if not made:
            table &= np.iinfo(dtype).max  # the sign is no leaf
        made.append((int(column), torch.from_numpy(thresholds), torch.from_numpy(table)))
    return TreeTables(source, made)
