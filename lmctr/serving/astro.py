"""Request scoring of ASTRO: the history's keys and values once per user, candidates in micro-batches (TURBO, 3.3.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lmctr.modeling_sequence import SequenceInputs, sequence_inputs
from lmctr.models.astro.cache import event_identity, update_cache
from lmctr.models.astro.modeling_astro import ASTROCache
from lmctr.models.astro.partition import Slots

from .registry import EncodedHistory, RequestScorer

__all__ = ["ASTROScorer", "EncodedBlocks"]


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


class ASTROScorer(RequestScorer):
    """Scores with an [`ASTROForCTR`].

    Histories are events as [`SequenceProcessor`] takes them (`item`, `time`, and optionally `behavior` and `scenario`), candidates
    are item ids or dicts with `item` and optionally `scenario`; `user` (a dict of the user's features) and `statistics` (a list of
    floats) where the processor has such columns.

    A kept state extends each block by the new events that its strategy selects. A block whose window of n_k events is full gives
    up its oldest, and is encoded again; the others are not. A state serves candidates of every scenario.
    """

    encoded_class = EncodedBlocks
    reason = "no state of the history depends on the candidate: its keys and values are computed once"

    def check_behaviors(self, behaviors: Sequence[Mapping[str, Any]], after: float | None = None) -> None:
        self._batch(behaviors, None, 0, "behaviors")
        if after is not None and behaviors and behaviors[0]["time"] < after:
            raise ValueError(
                f"behaviors[0] has time {behaviors[0]['time']}, before the last one of the state ({after}); give behaviours oldest "
                "first"
            )

    def needed(self, history: Sequence[Mapping[str, Any]]) -> int:
        if not history:
            return 0
        inputs = self._inputs(history, None, history[-1]["time"] + 1)
        slots = self.model.model.slots(inputs, wanted=self._all(inputs))
        if not slots.valid.any():
            return 0
        held = inputs.history_items.shape[1]  # the processor may have cut the history
        return held - int(slots.index[slots.valid].min())

    def encode(
        self, history: Sequence[Mapping[str, Any]], encoded: EncodedBlocks | None, time: float | None
    ) -> tuple[EncodedBlocks | None, int]:
        if not history:
            return encoded, 0
        with self.inference():
            inputs = self._inputs(history, None, history[-1]["time"] + 1)
            return self._encode(inputs, self._all(inputs), encoded)

    def score(
        self,
        history: Sequence[Mapping[str, Any]],
        candidates: Sequence[Any],
        time: float,
        encoded: EncodedBlocks | None,
        *,
        similarity: Any = None,
        max_tokens: int,
    ) -> tuple[torch.Tensor, EncodedBlocks | None, int]:
        if similarity is not None:
            raise ValueError("similarity: ASTRO takes none; leave it out")
        if not len(candidates):
            return torch.zeros(0), encoded, 0
        with self.inference():
            inputs = self._inputs(history, candidates, time)
            wanted = self.model.model.wanted_scenarios(inputs)
            if encoded is not None:  # a kept state serves all scenarios, now and later
                wanted = self._all(inputs)
            encoded, reencoded = self._encode(inputs, wanted, encoded)
            size = max(1, min(self.model.config.serving_micro_batch_size, max_tokens // self.model.config.num_blocks))
            logits = self.model.score_candidates(encoded.cache, inputs, size)[0].cpu()
        return logits.squeeze(-1), encoded, reencoded

    def _encode(
        self, inputs: SequenceInputs, wanted: torch.Tensor, encoded: EncodedBlocks | None
    ) -> tuple[EncodedBlocks, int]:
        model = self.model.model
        slots = model.slots(inputs, wanted=wanted)
        past = (None, None) if encoded is None else (encoded.cache, encoded.identity)
        cache, reencoded = update_cache(model, inputs, slots, *past)
        return EncodedBlocks(cache, event_identity(inputs, slots), wanted), reencoded

    def _all(self, inputs: SequenceInputs) -> torch.Tensor:
        return torch.ones(1, self.model.config.num_scenarios, dtype=torch.bool, device=inputs.history_items.device)

    def _inputs(
        self, history: Sequence[Mapping[str, Any]], candidates: Sequence[Any] | None, time: float
    ) -> SequenceInputs:
        batch = self._batch(history, candidates, time, "history")
        device = next(self.model.parameters()).device
        return sequence_inputs(self.model.config, **{name: tensor.to(device) for name, tensor in batch.items()})

    def _batch(
        self, history: Sequence[Mapping[str, Any]], candidates: Sequence[Any] | None, time: float, what: str
    ) -> Mapping[str, torch.Tensor]:
        """The processor's tensors; without candidates some item stands in for one."""
        processor = self.processor
        users, statistics = list(processor.user_feature_names), list(processor.statistics)
        if candidates is None:
            known = processor.items["item_id"]
            entries = [{"item": known[0].as_py() if len(known) else 0, "time": time}]
            entries[0] |= {"user": dict.fromkeys(users), "statistics": [0.0] * len(statistics)}
        else:
            entries = [dict(c) if isinstance(c, Mapping) else {"item": c} for c in candidates]
            times = [time if entry.get("time") is None else entry["time"] for entry in entries]
            if len(history) and min(times) <= history[-1]["time"]:
                raise ValueError(
                    f"time: the last behaviour is at {history[-1]['time']}; candidates come after it, got {min(times)}"
                )
        options: dict[str, Any] = {}
        for place, entry in enumerate(entries):
            for key, names in (("user", users), ("statistics", statistics)):
                if names and entry.get(key) is None:
                    raise ValueError(f"candidates[{place}] has no {key!r}; it needs {names}")
        if users:
            options["users"] = [entries[0]["user"]]
        if statistics:
            options["statistics"] = [[entry["statistics"] for entry in entries]]
        plain = [{key: value for key, value in e.items() if key not in ("user", "statistics")} for e in entries]
        try:
            return processor([history], [plain], times=[time], **options)
        except ValueError as error:
            text = str(error)
            for long, short in (("histories: row 0, event ", what), ("candidates: row 0, candidate ", "candidates")):
                text = re.sub(rf"{long}(\d+)", rf"{short}[\1]", text)
            raise ValueError(text) from error
