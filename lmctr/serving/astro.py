"""Request scoring of ASTRO: the history's keys and values once per user, candidates in micro-batches (TURBO, 3.3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lmctr.models.astro.cache import event_identity, update_cache
from lmctr.models.astro.modeling_astro import ASTROCache
from lmctr.models.astro.partition import Slots
from lmctr.models.common.sequence import SequenceInputs

from .events import CachedEventScorer
from .registry import EncodedHistory


class EncodedBlocks(EncodedHistory):
    """Keys and values of the events that the blocks hold.

    Args:
        cache: of one user. identity: (K, 1, S, .) what the model reads of each event. wanted: (1, R) bool, the scenarios that it
            can serve ("same" strategies hold the events of these only).
    """

    def __init__(self, cache: ASTROCache, identity: torch.Tensor, wanted: torch.Tensor):
        self.cache, self.identity, self.wanted = cache, identity, wanted

    @property
    def num_positions(self) -> int:
        """Events that are encoded, counted in each block that holds them."""
        return int(self.cache.slots.valid.sum())

    def tensors(self) -> dict[str, torch.Tensor]:
        named = {f"slots.{name}": value for name, value in self.cache.slots._asdict().items()}
        for kind in ("keys", "values"):
            named |= {f"{kind}.{layer}": value for layer, value in enumerate(getattr(self.cache, kind))}
        return {**named, "identity": self.identity, "wanted": self.wanted}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> EncodedBlocks:
        layers = sum(name.startswith("keys.") for name in tensors)
        slots = Slots(*(tensors[f"slots.{name}"] for name in Slots._fields))
        keys, values = (tuple(tensors[f"{kind}.{layer}"] for layer in range(layers)) for kind in ("keys", "values"))
        return cls(ASTROCache(slots, keys, values), tensors["identity"], tensors["wanted"])


class ASTROScorer(CachedEventScorer):
    """Scores with an [`ASTROForCTR`]; for histories and candidates see [`~lmctr.serving.events.EventScorer`].

    A kept state extends each block by the new events that its strategy selects. A block whose window of n_k events is full gives
    up its oldest, and is encoded again; the others are not. A state serves candidates of every scenario.
    """

    encoded_class = EncodedBlocks

    def needed(self, history: Sequence[Mapping[str, Any]]) -> int:
        if not history:
            return 0
        inputs = self._inputs(history, None, history[-1]["time"] + 1)
        slots = self.model.model.slots(inputs, wanted=self._all(inputs))
        if not slots.valid.any():
            return 0
        held = inputs.history_items.shape[1]  # the processor may have cut the history
        return held - int(slots.index[slots.valid].min())

    @property
    def window(self) -> Any:
        return super().window, self.model.config.parsed_strategies, self.model.config.block_length

    def _run(
        self, inputs: SequenceInputs, encoded: EncodedBlocks | None, max_tokens: int
    ) -> tuple[torch.Tensor, EncodedBlocks | None, int]:
        # A kept state serves all scenarios, now and later.
        wanted = self.model.model.wanted_scenarios(inputs) if encoded is None else self._all(inputs)
        encoded, reencoded = self._encode(inputs, encoded, wanted)
        size = max(1, min(self.model.config.serving_micro_batch_size, max_tokens // self.model.config.num_blocks))
        return self.model.score_candidates(encoded.cache, inputs, size), encoded, reencoded

    def _encode(
        self, inputs: SequenceInputs, encoded: EncodedBlocks | None, wanted: torch.Tensor | None = None
    ) -> tuple[EncodedBlocks, int]:
        model, wanted = self.model.model, self._all(inputs) if wanted is None else wanted
        slots = model.slots(inputs, wanted=wanted)
        past = (None, None) if encoded is None else (encoded.cache, encoded.identity)
        cache, reencoded = update_cache(model, inputs, slots, *past)
        return EncodedBlocks(cache, event_identity(inputs, slots), wanted), reencoded

    def _all(self, inputs: SequenceInputs) -> torch.Tensor:
        return torch.ones(1, self.model.config.num_scenarios, dtype=torch.bool, device=inputs.history_items.device)
