"""Outputs that every CTR model of the library returns."""

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput

__all__ = ["CTROutput"]


@dataclass
class CTROutput(ModelOutput):
    """Output of an `XForCTR` model.

    Args:
        loss: () float, present when `labels` were given: binary cross-entropy with logits.
        logits: (B,) float, one logit per row; (B, C) for C candidates per row; a trailing task axis for several tasks.
        hidden_states: tuple of (B, N, H), when asked for.
        attentions: tuple of (B, heads, N, N), when asked for.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
