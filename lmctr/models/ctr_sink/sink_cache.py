"""The sinks of a row that is encoded in parts: what the sink bias (Eq. 10) of later positions needs of earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .sink_attention import SinkContext

__all__ = ["SinkCache"]


class SinkCache:
    """Keys K_S of the sinks among the first P positions of one row, for each enhanced layer. Needs no gradient.

    Args:
        keys: by place among the enhanced layers, (1, A, M, d); empty for a row whose encoding begins.
        index: (1, M) int64 positions of these sinks in the row, ascending.
        length: P, positions encoded so far.
    """

    def __init__(
        self, keys: dict[int, torch.Tensor] | None = None, index: torch.Tensor | None = None, length: int = 0
    ):
        self.keys = dict(keys or {})
        self.index = index
        self.length = length

    def append(self, slot: int, key: torch.Tensor, sinks: SinkContext) -> tuple[torch.Tensor, SinkContext]:
        """Keys (1, A, M, d) of a layer's new sinks behind its cached ones.

        Returns:
            The keys of all sinks, and their positions in the row.

        Raises:
            ValueError: more than one row.
        """
        if key.shape[0] != 1:
            raise ValueError(f"sink_cache: {key.shape[0]} rows, but it keeps the sinks of one row; encode row by row")
        index = sinks.index + self.length
        valid = sinks.valid
        if slot in self.keys:
            key = torch.cat([self.keys[slot], key], dim=2)
            index = torch.cat([self.index, index], dim=1)
            valid = torch.cat([torch.ones_like(self.index, dtype=torch.bool), valid], dim=1)
        self.keys[slot] = key[:, :, valid[0]]
        return key, sinks._replace(index=index, valid=valid)

    def advance(self, index: torch.Tensor, length: int) -> None:
        """Count the positions of a call that is over: sinks at `index` (M,) of it, `length` positions in all."""
        index = index.reshape(1, -1) + self.length
        self.index = index if self.index is None else torch.cat([self.index, index], dim=1)
        self.length += length
