"""Which class scores the requests of a model family, and what such a class does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from lmctr.models.common.base import CTRPreTrainedModel, check_head, evaluation_copy, plain_model
from lmctr.models.families import families
from lmctr.utils.lazy import load_target
from lmctr.utils.rows import check_kind

from .fingerprint import plain_config, settings_fingerprint

if TYPE_CHECKING:
    import numpy as np
    import torch


DEFAULT_MAX_TOKENS = 8192

# model_type -> "module:class" of scorers that were registered apart from the family table.
_SCORERS: dict[str, str] = {}


class EncodedHistory(ABC):
    """What a model has computed of a history: tensors that candidates share. Treated as immutable."""

    @property
    @abstractmethod
    def num_positions(self) -> int:
        """Positions that are encoded."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """All of it as named tensors, as `from_tensors` of the same class takes them."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> EncodedHistory:
        """The inverse of `tensors`."""


ScoredRequest = tuple["torch.Tensor", EncodedHistory | None, int]
"""Logits (C,) of a request, and what [`RequestScorer.encode`] returns."""


class Request(NamedTuple):
    """One user's candidates; arguments as in [`lmctr.serving.score`]."""

    history: Sequence[Mapping[str, Any]]
    candidates: Sequence[Mapping[str, Any] | str]
    time: float
    similarity: np.ndarray | Sequence[Sequence[float]] | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS


class RequestScorer(ABC):
    """Scores one user's candidates with a model of one family; made by `scorer_for`.

    Args:
        model: the model with its CTR head. processor: its processor.

    Attributes:
        model: it, or where it is being trained its copy in evaluation mode (see [`evaluation_copy`]): a scorer never changes the mode.
        encoded_class: class of the encoded history, or None where this model has nothing to keep of a history.
        reason: one sentence: why the history is shared among the candidates, or why not.
    """

    encoded_class: type[EncodedHistory] | None = None
    reason: str = ""

    def __init__(self, model: torch.nn.Module, processor: Any):
        self._model, self._is_partly_trained = model, any(module.training for module in model.modules())
        self.processor = processor

    @property
    def model(self) -> torch.nn.Module:
        is_trained = self._is_partly_trained or self._model.training
        return evaluation_copy(self._model) if is_trained else self._model

    def is_of(self, model: torch.nn.Module) -> bool:
        """Whether it scores with this model object, or with that which PEFT has wrapped in it."""
        return plain_model(model) is self._model

    @abstractmethod
    def check_behaviors(
        self, behaviors: Sequence[Mapping[str, Any]], after: float | None, name: str = "behaviors"
    ) -> None:
        """Raise `ValueError`, naming `behaviors[i]` by their `name`, for behaviours that no request could hold, or earlier than time `after`."""

    @abstractmethod
    def needed(self, history: Sequence[Mapping[str, Any]]) -> int:
        """How many of the latest behaviours can have a part in any later score; the earlier ones may be forgotten."""

    @property
    def window(self) -> Any:
        """What `needed` and the statistics read of model and processor: where it is equal, what one scorer kept is all that another needs.
        Of families that know it better, no values that came or went are part of it."""
        return settings_fingerprint(self.processor), plain_config(self.model.config.to_dict())

    def encode(
        self, history: Sequence[Mapping[str, Any]], encoded: EncodedHistory | None, time: float | None
    ) -> tuple[EncodedHistory | None, int]:
        """Encode a history before any candidate is known, going on from what is encoded.

        Returns:
            The encoded history (None where nothing can be encoded yet), and the number of positions of behaviours that had
            been encoded and had to be encoded again.
        """
        return None, 0

    @abstractmethod
    def score(self, request: Request, encoded: EncodedHistory | None) -> ScoredRequest:
        """(C,) float32 logits on the CPU, and what `encode` returns."""

    def score_many(self, asked: Sequence[tuple[Request, EncodedHistory | None]]) -> list[ScoredRequest]:
        """[`score`] of several users' requests; families that can run them in common passes do."""
        return [self.score(request, encoded) for request, encoded in asked]

    def refuse_similarity(self, request: Request) -> None:
        """Raise `ValueError` for similarities, which a model does not read."""
        if request.similarity is not None:
            raise ValueError(f"similarity: {type(self.model).__name__} takes none; leave it out")

    @contextmanager
    def inference(self) -> Iterator[None]:
        """No gradients are kept."""
        import torch

        with torch.inference_mode():
            yield


def register_scorer(model_type: str, scorer: str) -> None:
    """Name the class that scores the requests of a family.

    Args:
        model_type: the family's `model_type`. scorer: `"module:class"`, a subclass of [`RequestScorer`].

    Raises:
        ValueError: no such form, or the family has a scorer already.
    """
    if scorer.count(":") != 1:
        raise ValueError(f"scorer must read 'module:class', got {scorer!r}")
    known, _ = _scorers().get(model_type, (scorer, None))
    if known != scorer:
        raise ValueError(f"model_type {model_type!r} is scored by {known} already")
    _SCORERS[model_type] = scorer


def _scorers() -> dict[str, tuple[str, str | None]]:
    """The class of every family that has one, and that of the family's processor (None: of no family), imported when the first model of the
    family is scored."""
    own = {family.model_type: (family.scorer, family.processor) for family in families()}
    registered = {name: (scorer, own.get(name, (None, None))[1]) for name, scorer in _SCORERS.items()}
    return {name: found for name, found in (own | registered).items() if found[0] is not None}


def scorer_for(model: torch.nn.Module, processor: Any) -> RequestScorer:
    """The scorer of a model.

    Args:
        model: a model with a CTR head; one that PEFT has wrapped is unwrapped, its adapters stay in place.
        processor: the processor saved with it.

    Raises:
        ValueError: a family without request scoring; a processor of another kind than the family's.
    """
    model = plain_model(model)
    model_type = model.config.model_type if isinstance(model, CTRPreTrainedModel) else None
    scorers = _scorers()
    if model_type not in scorers:
        raise ValueError(
            f"model: {type(model).__name__} (model_type {model_type!r}) has no request scoring; families that have it: "
            f"{', '.join(sorted(scorers))}. Score its rows with the model itself"
        )
    check_head(model)
    scorer, processor_class = scorers[model_type]
    if processor_class is not None:
        check_kind(processor, load_target(processor_class), "processor")
    return load_target(scorer)(model, processor)
