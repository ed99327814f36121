"""Request scoring of the tabular families: what a user's candidates have in common is read and computed once.

Shapes: C candidates, F fields, d width of their vectors, n sequences of a group of fields.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lmctr.models.common.base import KeptOfWeights, copy_with_same_weights
from lmctr.models.common.embeddings import FieldEmbedding, FieldGroup
from lmctr.utils.ragged import blocks

from .row_scorer import RowScorer

ROWS_AT_ONCE = 4096
"""Candidates that run at once: bounds the memory of a request, not its result."""
_SPLIT_FROM = 256
"""Candidates from which on a layer split in two is the faster: to pick its columns costs what so few products do not save."""


class TableScorer(RowScorer):
    """Scores rows of a table that have some columns in common.

    The history is one dict, the columns that all candidates share (the user's, the moment's); candidates are dicts of the others, as the
    [`TabularFeatureProcessor`] takes them. The request's time is not read. Shared columns become ids once, shared sequences are pooled
    once, and of many candidates layers that read the vectors of all fields side by side (MLPs, the first cross layer) compute the shared
    fields' part once.
    """

    reason = (
        "the fields of shared columns are computed once for all candidates; nothing of a history of events is kept"
    )
    reads, instead = "columns of a table", "the columns that the candidates share"
    of_user, of_candidate = instead, "the other columns"

    def score_rows(self, user: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]], size: int) -> torch.Tensor:
        inputs, shared = self.processor.of_candidates(user, candidates)
        masks = {name: torch.from_numpy(mask) for name, mask in shared.items()}
        return _SHARING.of(self._model, _SharedFields).logits(inputs, masks)


class _SharedFields:
    """A model, in evaluation mode, that is told which fields have one value in all rows of a batch."""

    def __init__(self, model: nn.Module):
        self.model = copy_with_same_weights(model).eval()
        self.lock = threading.Lock()
        self.count = 0  # rows of the batch
        self.shared: dict[str, torch.Tensor] = {}  # by input, (columns,) bool
        self.fields: torch.Tensor | None = None  # the vectors of the batch
        embedding = self.model.get_input_embeddings()
        embedding.register_forward_hook(self._keep)
        for module in list(self.model.modules()):
            if isinstance(module, FieldGroup) and module.pooling is not None and not module.pooling.uses_target:
                own = module.sequence_vectors
                module.sequence_vectors = lambda ids, group=module, own=own: own(
                    ids[:1] if self._is_once(group) else ids
                )
                module.pooling = _PooledOnce(module, self)
            if isinstance(module, nn.Linear) and module.in_features == embedding.output_size:
                module.forward = _Split(module, module.forward, embedding, self)

    def logits(self, inputs: Mapping[str, torch.Tensor], shared: dict[str, torch.Tensor]) -> torch.Tensor:
        """(C,) float32 logits, (C, T) of several tasks, on the CPU, of rows whose columns `shared` are alike."""
        parts, device = [], self.model.device
        with self.lock, torch.inference_mode():
            self.shared = shared
            for some in blocks(len(next(iter(inputs.values()))), ROWS_AT_ONCE):
                batch = {key: own[some].to(device) for key, own in inputs.items()}
                self.count = len(next(iter(batch.values())))
                parts.append(self.model(**batch).logits.float().cpu())
            self.fields = None
        return torch.cat(parts)

    def _keep(self, embedding: nn.Module, given: Any, fields: torch.Tensor) -> None:
        self.fields = fields

    def _is_once(self, group: FieldGroup) -> bool:
        return bool(self.shared["sequence_ids"][group.sequence_fields].all())


class _PooledOnce(nn.Module):
    """A group's sequence encoder that runs on one row where all its sequences are shared."""

    uses_target = False

    def __init__(self, group: FieldGroup, about: _SharedFields):
        super().__init__()
        self.pooling, self.is_once, self.about = group.pooling, lambda: about._is_once(group), about
        self.takes_weights = getattr(group.pooling, "takes_weights", False)

    def forward(
        self, vectors: torch.Tensor, mask: torch.Tensor, times: torch.Tensor | None, *more: torch.Tensor | None
    ) -> torch.Tensor:
        if not self.is_once():
            return self.pooling(vectors, mask, times, *more)
        times, *more = (None if one is None else one[:1] for one in (times, *more))
        return self.pooling(vectors, mask, times, *more).expand(self.about.count, -1, -1)


class _Split:
    """W x + b = (W_u u + b) + W_c c, of one user's vectors u and the candidates' vectors c; another input goes the layer's own way."""

    def __init__(self, layer: nn.Linear, own: Any, embedding: FieldEmbedding, about: _SharedFields):
        self.layer, self.own, self.about, self.embedding = layer, own, about, embedding

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        fields = self.about.fields
        same = fields is not None and states.data_ptr() == fields.data_ptr() and states.numel() == fields.numel()
        if not same or states.dim() != 2 or len(states) < _SPLIT_FROM:
            return self.own(states)
        shared = [self.about.shared.get(key) for key in ("input_ids", "numeric_values", "sequence_ids")]
        shared = torch.cat([own for own in shared if own is not None])
        columns = shared.repeat_interleave(torch.tensor(self.embedding.dims)).to(states.device)
        if not columns.any():
            return self.own(states)
        weight, ours, theirs = self.layer.weight, columns.nonzero()[:, 0], (~columns).nonzero()[:, 0]
        user = nn.functional.linear(states[:1, ours], weight[:, ours], self.layer.bias)
        return torch.addmm(user, states[:, theirs], weight[:, theirs].t())


_SHARING = KeptOfWeights()
