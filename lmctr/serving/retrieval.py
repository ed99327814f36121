"""Request scoring of the retrieval families: the user's half once, the candidates' halves in blocks."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lmctr.models.common.base import version_of, weights_version
from lmctr.utils.ragged import blocks

from .retrieval_split import SplitRetrievalModel, split_first_layer
from .row_scorer import RowScorer


class RetrievalScorer(RowScorer):
    """Scores with a RetrievalMLP or a TwoTower.

    The history is one dict, the user's columns as the [`ImpressionProcessor`] takes them (lists of clicked ads among them); candidates are dicts
    of the ads' columns. There are no events and so no user states; the request's time is not read. Where the same ads
    are asked for again and again, keep their halves in a [`SplitRetrievalModel`].
    """

    reason = "the user's half is computed once for all candidates; nothing of a history of events is kept"
    reads, of_user, of_candidate = "a user's columns", "the user's columns", "the ad's columns"
    instead = "and keep ads with lmctr.serving.split_first_layer"

    def score_rows(self, user: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]], size: int) -> torch.Tensor:
        batch = self.processor(users=[user], ads=[list(candidates)], return_tensors="pt")
        columns = {name: values for name, values in batch.items() if name.startswith("user_")}
        ads = {name: values[0] for name, values in batch.items() if name.startswith("ad_") and name != "ad_mask"}
        served = _split(self._model)
        half = served.user_half(**columns)
        halves = (
            served.ad_half(**{name: own[some] for name, own in ads.items()}) for some in blocks(len(candidates), size)
        )
        return torch.cat([served.score_halves(half, own)[0] for own in halves]).cpu()


_SPLITS: weakref.WeakKeyDictionary[torch.nn.Module, tuple[object, SplitRetrievalModel]] = weakref.WeakKeyDictionary()


def _split(model: torch.nn.Module) -> SplitRetrievalModel:
    """The model's halves, kept until its weights or running statistics change; tables are the model's own."""
    # A batch in training mode moves running statistics without a new version of theirs; it counts itself in `num_batches_tracked`.
    version = (weights_version(model), *map(version_of, model.buffers()))
    known = _SPLITS.get(model)
    if known is None or known[0] != version:
        known = _SPLITS[model] = (version, split_first_layer(model, copy_tables=False))
    return known[1]
