"""Request scoring of models that read columns, no events: one dict of the user, one of each candidate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from .registry import EncodedHistory, Request, RequestScorer, ScoredRequest


class RowScorer(RequestScorer):
    """The history is one dict, candidates are dicts; there are no events and so no user states, and the request's time is not read.

    Attributes:
        reads: what the model reads, in words. instead: what to give in the place of a user's state. of_user, of_candidate: what the dicts hold.
    """

    reads: ClassVar[str]
    instead: ClassVar[str]
    of_user: ClassVar[str]
    of_candidate: ClassVar[str]

    def check_behaviors(
        self, behaviors: Sequence[Mapping[str, Any]], after: float | None, name: str = "behaviors"
    ) -> None:
        raise ValueError(
            f"{type(self.model).__name__} reads {self.reads}, no events, so there is no state to keep of a user; give "
            f"lmctr.serving.score [user], {self.instead}"
        )

    def needed(self, history: Sequence[Mapping[str, Any]]) -> int:
        return len(history)

    def score(self, request: Request, encoded: EncodedHistory | None) -> ScoredRequest:
        self.refuse_similarity(request)
        history, candidates = request.history, request.candidates
        if len(history) != 1 or not isinstance(history[0], Mapping):
            raise ValueError(f"history: expected one dict, {self.of_user}, got {len(history)} entries; give [user]")
        for place, candidate in enumerate(candidates):
            if not isinstance(candidate, Mapping):
                raise ValueError(f"candidates[{place}]: expected a dict of {self.of_candidate}, got {candidate!r}")
        if not candidates:
            return torch.zeros(0, dtype=torch.float32), encoded, 0
        return self.score_rows(history[0], candidates, request.max_tokens), encoded, 0

    @abstractmethod
    def score_rows(self, user: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]], size: int) -> torch.Tensor:
        """(C,) float32 logits on the CPU, of at least one candidate; `size`: the request's bound on what runs at once."""
