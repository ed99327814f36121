"""What a model's answers hang on: permutation importance (Breiman, Random Forests, Machine Learning 45, 2001)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from lmctr.data.batches.rows import Batches
from lmctr.evaluation.metrics import auc, log_loss
from lmctr.evaluation.significance import delong_test
from lmctr.models.common.base import evaluation_mode
from lmctr.utils.progress import Work
from lmctr.utils.rows import check_kind


@dataclass(frozen=True)
class Loss:
    """What is lost where one thing is another sample's.

    Attributes:
        column: what it is: a field, a statistic, "history", "item". auc: by how much the AUC falls; low, high: the 95 % interval of that by DeLong's
            test on the same samples, None where these are weighted or too few. log_loss: by how much the log loss rises, in nats.
    """

    column: str
    auc: float
    low: float | None
    high: float | None
    log_loss: float


@dataclass(frozen=True)
class Importance:
    """What each thing that a model reads is worth to it, the dearest first.

    Attributes:
        num_samples: with a label. auc, log_loss: of the model as it is. losses: of each thing by itself, while all others stay.
    """

    num_samples: int
    auc: float
    log_loss: float
    losses: tuple[Loss, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The losses as dicts."""
        return [asdict(loss) for loss in self.losses]


@torch.no_grad()
def column_importance(
    model: torch.nn.Module,
    view: Batches,
    rows: np.ndarray | Sequence[int],
    batch_size: int = 128,
    seed: int = 0,
) -> Importance:
    """Scores samples as they are, and again with one thing that the model reads of each (a column, a statistic, the history, the item) taken from another
    sample: how much worse that is, is what the thing is worth beside all others. Two that say the same are worth little each, because the one stands in
    for the other.

    Args:
        model: a model of tables, of sequences or of texts; of several tasks the first is measured.
        view: its samples: a [`~lmctr.data.TabularView`], [`~lmctr.data.SequenceView`] or [`~lmctr.data.TextView`].
        rows: (S,) row numbers. batch_size: samples at a time. seed: of the order in which they are dealt into batches, where each takes the thing of
            the next one.

    Raises:
        ValueError: a view whose samples have no parts by name; samples of one class.
    """
    check_kind(view, Batches, "view")
    rows, draw = view.samples(rows), np.random.default_rng(seed)
    if not len(rows):
        raise ValueError("rows: there are no samples to score")
    if len([*view.shuffled(rows[:1], np.zeros(1, dtype=np.int64))]) < 2:
        raise ValueError(f"view: nothing that a model reads of samples of a {type(view).__name__} can be shuffled")
    rows = rows[draw.permutation(len(rows))]
    device = next(model.parameters()).device
    found: dict[str | None, list[np.ndarray]] = {}
    labels, weights = [], []
    with evaluation_mode(model), _encoded_once(model), Work("shuffling columns", len(rows), "samples") as work:
        for some in np.array_split(rows, -(-len(rows) // batch_size)):  # none of a single sample
            plain: dict[str, torch.Tensor] = {}
            there: dict[str, torch.Tensor] = {}
            for name, batch in view.shuffled(some, np.roll(np.arange(len(some)), 1)):
                batch = dict(batch)
                known, weight = batch.pop("labels"), batch.pop("sample_weight", None)
                if name is None:
                    labels.append(known.reshape(len(some), -1)[:, 0].numpy())
                    weights += [] if weight is None else [weight.numpy()]
                    plain = batch
                    there = {key: value.to(device) for key, value in batch.items()}
                same = (key for key, value in batch.items() if value is plain[key])
                inputs = {key: value.to(device) for key, value in batch.items()} | {key: there[key] for key in same}
                logits = model(**inputs).logits.float().reshape(len(some), -1)[:, 0].cpu().numpy()
                found.setdefault(name, []).append(logits)
            work.update(len(some))
    label = np.concatenate(labels)
    is_known = label >= 0
    label, weight = label[is_known], np.concatenate(weights)[is_known] if weights else None
    scores = {name: np.concatenate(own)[is_known] for name, own in found.items()}
    own = scores.pop(None)
    whole, loss = auc(label, own, weight), log_loss(label, own, from_logits=True, sample_weight=weight)
    has_interval = weight is None and min(label.sum(), len(label) - label.sum()) >= 2
    losses = []
    for name, other in scores.items():
        low, high = delong_test(label, own, other).confidence_interval if has_interval else (None, None)
        rise = log_loss(label, other, from_logits=True, sample_weight=weight) - loss
        losses.append(Loss(name, whole - auc(label, other, weight), low, high, rise))
    return Importance(len(label), whole, loss, tuple(sorted(losses, key=lambda one: -one.auc)))


@contextmanager
def _encoded_once(model: torch.nn.Module) -> Iterator[None]:
    """Inside the block the inner model, which of texts reads no statistics, is not run again where it is given the very tensors of the time before."""
    inner = getattr(model, "model", None)
    if not isinstance(inner, torch.nn.Module):
        yield
        return
    plain, kept = inner.forward, []

    def forward(*args: Any, **options: Any) -> Any:
        given = [*args, *options, *options.values()]
        if not kept or len(kept[0]) != len(given) or any(a is not b for a, b in zip(kept[0], given)):
            kept[:] = given, plain(*args, **options)
        return kept[1]

    inner.forward = forward
    try:
        yield
    finally:
        del inner.forward
