"""Which behaviour types a sequence model's candidates attend to (Climber, arXiv 2502.09888, Fig. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lmctr.data.batches.sequence import SequenceView
from lmctr.models.common.base import evaluation_mode


@dataclass(frozen=True)
class BehaviorAttention:
    """Shares of attention by behaviour type.

    Args:
        behavior_names: G names. block_names: K names; one, "all", for a model without blocks.
        shares: (L, K, G) share of the attention on events that falls on each behaviour type, mean over candidates that see an
            event of the block and over heads; nan where no candidate does. Weights below 0 (DIN without softmax, HSTU) count by their sizes.
        own: (L, K) attention that candidates pay to themselves, mean over all candidates.
        events: (K, G) share of each behaviour type among the events that get attention, counted.
        num_candidates: candidates that were read.
    """

    behavior_names: tuple[str, ...]
    block_names: tuple[str, ...]
    shares: np.ndarray
    own: np.ndarray
    events: np.ndarray
    num_candidates: int

    def overall(self) -> np.ndarray:
        """(G,) share of each behaviour type over the whole model: the mean over layers and blocks that see events."""
        return np.nanmean(self.shares.reshape(-1, self.shares.shape[-1]), axis=0)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it; nan becomes None."""

        def plain(values: np.ndarray) -> Any:
            return [plain(v) for v in values] if values.ndim else (None if np.isnan(values) else float(values))

        return {
            "behavior_names": list(self.behavior_names),
            "block_names": list(self.block_names),
            "overall": plain(self.overall()),
            "shares": plain(self.shares),
            "own": plain(self.own),
            "events": plain(self.events),
            "num_candidates": self.num_candidates,
        }


@torch.no_grad()
def behavior_attention(
    model: torch.nn.Module, view: SequenceView, events: np.ndarray | Sequence[int], batch_size: int = 64
) -> BehaviorAttention:
    """Reads the candidates' attention, sample by sample, and adds it up by the behaviour type of the event it falls on.

    Args:
        model: a sequence model whose `attentions`, per layer, are weights of the row's N events and, last, of the candidate itself:
            (B, K, h, C, N + 1), as those of [`ASTROForCTR`], or (B, h, C, N + 1) for a model without blocks.
        view: the sequence view. events: positions of the samples to read. batch_size: samples at a time.

    Raises:
        ValueError: no samples; a model without such attentions.
    """
    events = view.log.positions(events)
    if not len(events):
        raise ValueError("events: there are no samples to read.")
    names = view.processor.behavior_names
    device = next(model.parameters()).device
    sums: list[Any] = [0, 0, 0, 0]
    with evaluation_mode(model):
        for begin in range(0, len(events), batch_size):
            batch = {k: v.to(device) for k, v in view.batch(events[begin : begin + batch_size]).items()}
            batch.pop("labels")
            batch.pop("sample_weight", None)
            output = model(**batch, output_attentions=True)
            width = batch["history_items"].shape[1] + 1
            if not output.attentions or output.attentions[0].shape[-1] != width:
                raise ValueError(
                    f"model: {type(model).__name__} gives no attention of candidates on the row's events; it cannot be read here"
                )
            attention = torch.stack([a if a.dim() == 5 else a.unsqueeze(1) for a in output.attentions]).float()
            kinds = torch.nn.functional.one_hot(batch["history_behaviors"], len(names))
            kinds = (kinds * (batch["history_items"] != 0)[..., None]).float()  # (B, N, G)
            sizes = attention[..., :-1].abs()  # of softmax the same
            on = torch.einsum("lbkhcn,bng->lkbhcg", sizes, kinds)
            total = on.sum(-1, keepdim=True)
            sees = total > 0
            part = torch.where(sees, on / total.clamp_min(torch.finfo(torch.float32).tiny), 0).sum((2, 3, 4))
            present = (sizes.amax((0, 3, 4)) > 0).float()  # (B, K, N)
            count = torch.einsum("bkn,bng->kg", present, kinds)
            found = (part, attention[..., -1].mean((3, 4)).sum(1), count, sees.sum((2, 3, 4))[..., 0])
            sums = [a + b for a, b in zip(sums, found)]
    shares, own, counted, readers = sums
    strategies = getattr(getattr(model, "model", None), "strategies", None)
    blocks = tuple(s.name for s in strategies) if strategies else ("all",)
    readers = readers[..., None].cpu().numpy().astype(float)
    seen = counted.sum(-1, keepdim=True).cpu().numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        return BehaviorAttention(
            behavior_names=tuple(names),
            block_names=blocks,
            shares=np.where(readers > 0, shares.cpu().numpy() / readers, np.nan),
            own=own.cpu().numpy() / len(events),
            events=np.where(seen > 0, counted.cpu().numpy() / seen, np.nan),
            num_candidates=len(events),
        )
