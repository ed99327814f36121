"""What the model families share besides layers: the base class and the loss."""

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

__all__ = ["IGNORED_LABEL", "CTRPreTrainedModel", "ctr_loss", "row_weights"]

IGNORED_LABEL = -100
"""A row with this label counts nowhere: the collators use it for filler rows in distributed batches."""


def row_weights(labels: torch.Tensor, sample_weight: torch.Tensor | None = None) -> torch.Tensor:
    """What each entry of `labels` counts in the loss: its weight (default 1), 0 for an ignored one. float32."""
    weight = (labels != IGNORED_LABEL).to(torch.float32)
    return weight if sample_weight is None else weight * sample_weight.to(torch.float32)


def ctr_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    sample_weight: torch.Tensor | None = None,
    num_items_in_batch: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """Binary cross-entropy with logits, averaged over the rows that count.

    Args:
        logits: any shape, float.
        labels: the shape of `logits`, 0 or 1; `IGNORED_LABEL` (-100) leaves an entry out.
        sample_weight: broadcastable to `logits`, non-negative.
        num_items_in_batch: divisor. Default: the summed weight of the entries that count in this call. The trainer
            passes the sum over all processes and accumulation steps, so that the loss is the mean over the whole batch.

    Returns:
        () float32. Zero (with zero gradient) when no entry counts.

    Raises:
        ValueError: when the shapes of `logits` and `labels` differ.
    """
    if logits.shape != labels.shape:
        raise ValueError(
            f"labels: shape {tuple(labels.shape)} does not fit logits of shape {tuple(logits.shape)}; "
            "give one label per logit"
        )
    labels = labels.to(torch.float32)
    weight = row_weights(labels, sample_weight)
    loss = F.binary_cross_entropy_with_logits(logits.float(), labels.clamp(0.0, 1.0), weight=weight, reduction="sum")
    if num_items_in_batch is None:
        num_items_in_batch = weight.sum().clamp_min(torch.finfo(torch.float32).tiny)
    return loss / num_items_in_batch


class CTRPreTrainedModel(PreTrainedModel):
    """Base of every lmctr model: `PreTrainedModel` that reads weights from safetensors only, never from pickles."""

    @classmethod
    def from_pretrained(cls, *args, use_safetensors: bool = True, **kwargs) -> "CTRPreTrainedModel":
        """As `PreTrainedModel.from_pretrained`. Raises `ValueError` for `use_safetensors=False`."""
        if not use_safetensors:
            raise ValueError("use_safetensors=False is not accepted: lmctr reads no pickled weights")
        return super().from_pretrained(*args, use_safetensors=True, **kwargs)
