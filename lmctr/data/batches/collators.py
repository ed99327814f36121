"""Collators: from dataset items to batches of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .text import TextView

__all__ = ["TextCollator"]


class TextCollator:
    """Turns items of a [`TextDataset`] (event positions) into a batch, padded to its longest sample.

    Args:
        view: the text view that the dataset was made from.
        pad_to_multiple_of: pad to a multiple of this many tokens, for example 8 for tensor cores.

    The event -1 makes a filler row with the label -100, see [`TextView.batch`].
    """

    def __init__(self, view: TextView, pad_to_multiple_of: int | None = None):
        if pad_to_multiple_of is not None and pad_to_multiple_of < 1:
            raise ValueError(f"pad_to_multiple_of must be at least 1 or None, got {pad_to_multiple_of}")
        self.view = view
        self.pad_to_multiple_of = pad_to_multiple_of

    def __call__(self, events: Sequence[int]) -> dict[str, torch.Tensor]:
        return self.view.batch(events, pad_to_multiple_of=self.pad_to_multiple_of)
