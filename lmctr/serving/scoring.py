"""`score`: the logits of one user's candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmctr.utils.outside import checked, entries

from .registry import DEFAULT_MAX_TOKENS, Request, scorer_for
from .statistics import RequestStatistics
from .user_state import UserState

if TYPE_CHECKING:
    import numpy as np
    import torch

    from lmctr.statistics import ItemStatistics


def score(
    model: torch.nn.Module,
    processor: Any,
    history: Sequence[Mapping[str, Any]] | UserState,
    candidates: Sequence[Mapping[str, Any] | str],
    time: float,
    *,
    similarity: np.ndarray | Sequence[Sequence[float]] | None = None,
    items: ItemStatistics | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
) -> torch.Tensor:
    """Score one user's candidates by the fastest path of the model that gives the logits of scoring row by row.

    Where the model can share a history among candidates (`scorer_for(model, processor).reason` says whether and why), it is
    encoded once. The model runs in evaluation mode, without gradients, on its own device, and keeps the mode it was in.

    Args:
        model: a model with a CTR head, for example a [`CTRSinkForCTR`].
        processor: the processor saved with it.
        history: the user's full history as the processor takes it, oldest first, or a [`UserState`], which is brought up to
            date: what this request had to encode stays in it. For retrieval families `[user]`, one dict of the user's columns; for
            tabular families that of the columns that all candidates share.
        candidates: items as `{"text": ...}` or texts, or as the family's processor takes them. May be empty.
        time: the request's time in seconds, after every behaviour. Retrieval and tabular families do not read it.
        similarity: (C, history) cosines of candidates and behaviours, where the processor's order or a sink signal needs them.
            Default: the `"similarity"` of each behaviour, for every candidate.
        items: the table of the items' statistics (`ItemStatistics`), for a model that reads statistics and candidates that do not
            bring their own raw `"statistics"`. Behaviours and candidates then name their `"item"`, and the whole history counts. A
            [`UserState`] has its own table.
        max_tokens: most positions of a forward pass; bounds the memory, not the result. A single longer row still runs.

    Returns:
        (C,) float32 logits on the CPU, in the order of the candidates. Equal to the model's on rows of one candidate each,
        up to rounding (1e-4 in float32).

    Raises:
        ValueError: a family without request scoring, behaviours or candidates that the processor refuses, a state of another
            model or processor, or of weights that have changed since.

    Example:

    ```python
    >>> history = [{"text": "Heat (1995)", "time": 10, "feedback": "liked"}]
    >>> logits = lmctr.serving.score(model, processor, history, [{"text": "Casino (1995)"}, {"text": "Babe (1995)"}], time=20)
    ```
    """
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ValueError(f"max_tokens must be a whole number of at least 1, got {max_tokens!r}")
    if isinstance(candidates, (str, Mapping)):
        raise ValueError(f"candidates must be a list of items, got {candidates!r:.200}; give [item] for a single one")
    if isinstance(history, UserState):
        history.check_belongs(model, processor)
        if items is not None:
            raise ValueError("items: a UserState reads the table that it was made with; give it there")
        return history.score(candidates, time, similarity=similarity, max_tokens=max_tokens)
    history, candidates = entries(history, "history"), entries(candidates, "candidates")
    time = checked(time, "time")
    scorer = scorer_for(model, processor)
    if items is not None:
        known = RequestStatistics(processor, items)
        scorer.check_behaviors(history, None, "history")
        known.extend(history)
        candidates = known.fill(candidates, time)
    return scorer.score(Request(history, candidates, time, similarity, max_tokens), None)[0]
