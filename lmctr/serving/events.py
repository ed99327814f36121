"""Request scoring of the families that read event sequences: what they share, and the rivals of ASTRO.

Where no state of a history depends on the candidate (HSTU, BehaviorTransformer), keys and values are computed once per user and kept. DIN,
TWIN and DLRMTwin compare each event with each candidate: their histories are embedded once per request, for all candidates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lmctr.models.common.sequence import SequenceInputs, sequence_inputs, sequence_logits

from .registry import EncodedHistory, Request, RequestScorer, ScoredRequest


class EventScorer(RequestScorer):
    """Scores with a sequence model, one row of all candidates.

    Histories are events as [`SequenceProcessor`] takes them (`item`, `time`, `behavior`, and `scenario` where there
    are several), candidates are item ids or dicts with `item` and `scenario`; `user` (a dict of the user's features) and `statistics` (a list of
    floats) where the processor has such columns. Logits are (C,), or (C, T) for several tasks.
    """

    reason = "each candidate weighs the events of the history: they are embedded once for all candidates of a request"

    def check_behaviors(
        self, behaviors: Sequence[Mapping[str, Any]], after: float | None = None, name: str = "behaviors"
    ) -> None:
        self._batch(behaviors, None, 0, name)
        if after is not None and behaviors and behaviors[0]["time"] < after:
            raise ValueError(
                f"{name}[0] has time {behaviors[0]['time']}, before the last one of the state ({after}); give behaviours oldest "
                "first"
            )

    def needed(self, history: Sequence[Mapping[str, Any]]) -> int:
        longest = self.processor.max_history_length
        return len(history) if longest is None else min(len(history), longest)

    @property
    def window(self) -> Any:
        own = self.processor
        return own.max_history_length, own.behavior_names, own.behavior_labels, own.scenario_names

    def score(self, request: Request, encoded: EncodedHistory | None) -> ScoredRequest:
        self.refuse_similarity(request)
        if not len(request.candidates):
            tasks = self.model.config.num_tasks
            return torch.zeros((0,) if tasks == 1 else (0, tasks), dtype=torch.float32), encoded, 0
        with self.inference():
            inputs = self._inputs(request.history, request.candidates, request.time)
            logits, encoded, reencoded = self._run(inputs, encoded, request.max_tokens)
        return sequence_logits(logits, False)[0].cpu(), encoded, reencoded

    def _run(self, inputs: SequenceInputs, encoded: EncodedHistory | None, max_tokens: int) -> ScoredRequest:
        """(1, C, T) logits, and what `encode` returns."""
        return self._heads(inputs, max_tokens, self.model.model.run), encoded, 0

    def _heads(self, inputs: SequenceInputs, max_tokens: int, read: Callable[[SequenceInputs], Any]) -> torch.Tensor:
        """(1, C, T) logits of what `read` makes of some of the candidates at a time."""
        if self.model.is_trees_alone({}):
            return self.model.task_logits(None, inputs)
        size = max(1, max_tokens // max(inputs.history_items.shape[1], 1))
        parts = inputs.split_candidates(size)
        return torch.cat([self.model.task_logits(read(part).last_hidden_state, part) for part in parts], dim=1)

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
        if candidates is None:
            known = processor.items["item_id"]
            entries = [{"item": known[0].as_py() if len(known) else 0, "time": time, "scenario": 0}]
            entries[0] |= {"user": dict.fromkeys(processor.user_feature_names)}
            entries[0] |= {"statistics": [0.0] * len(processor.statistics)}
        else:
            entries = [c if isinstance(c, Mapping) else {"item": c} for c in candidates]
        try:
            batch = processor.of_requests([history], [entries], [time])
        except ValueError as error:
            text = re.sub(r"histories: row 0, event (\d+)", rf"{what}[\1]", str(error))
            text = re.sub(r"candidates: row 0: candidate (\d+) needs", r"candidates[\1] has no", text)
            raise ValueError(re.sub(r"candidates: row 0[,:] candidate (\d+)", r"candidates[\1]", text)) from error
        first = int(batch["candidate_times"].min())
        if candidates is not None and len(history) and first <= history[-1]["time"]:
            raise ValueError(
                f"time: the last behaviour is at {history[-1]['time']}; candidates come after it, got {first}"
            )
        return batch


class EncodedLayers(EncodedHistory):
    """Keys and values of every event in each layer.

    Args:
        layers: per layer keys and values (1, h, L, d_head). table: (N, 4 + Fi) what the model reads of each event.
    """

    def __init__(self, layers: list[tuple[torch.Tensor, torch.Tensor]], table: torch.Tensor):
        self.layers, self.table = layers, table

    @property
    def num_positions(self) -> int:
        """Events that are encoded."""
        return len(self.table)

    def tensors(self) -> dict[str, torch.Tensor]:
        named = {"table": self.table}
        for number, (keys, values) in enumerate(self.layers):
            named |= {f"keys.{number}": keys, f"values.{number}": values}
        return named

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> EncodedLayers:
        count = sum(name.startswith("keys.") for name in tensors)
        return cls([(tensors[f"keys.{n}"], tensors[f"values.{n}"]) for n in range(count)], tensors["table"])


def event_table(inputs: SequenceInputs) -> torch.Tensor:
    """(N, 4 + Fi) int64 of one row without padding: all that a model reads of each event."""
    return inputs.event_table()[0, inputs.history_mask[0]]


class CachedEventScorer(EventScorer):
    """Scores with a model whose base is a [`~lmctr.models.common.sequence.CachedHistoryMixin`] on a kept history.

    New events are encoded behind the kept ones. Where the history is at its longest (`max_history_length` of the processor), the oldest event
    leaves it, every later one moves a place forward, and all is encoded again.
    """

    encoded_class = EncodedLayers
    reason = "no state of the history depends on the candidate: its keys and values are computed once"

    def encode(
        self, history: Sequence[Mapping[str, Any]], encoded: EncodedHistory | None, time: float | None
    ) -> tuple[EncodedHistory | None, int]:
        if not history:
            return encoded, 0
        with self.inference():
            return self._encode(self._inputs(history, None, history[-1]["time"] + 1), encoded)

    def _run(self, inputs: SequenceInputs, encoded: EncodedHistory | None, max_tokens: int) -> ScoredRequest:
        kept, reencoded = self._encode(inputs, encoded)
        logits = self._heads(inputs, max_tokens, lambda part: self.model.model.read(part, kept.layers))
        # The place of padding that stands for an empty history is nothing to go on from.
        return logits, kept if kept.num_positions else None, reencoded

    def _encode(self, inputs: SequenceInputs, encoded: EncodedLayers | None) -> tuple[EncodedLayers, int]:
        """Keys and values of the history, going on from the kept ones where these are its beginning."""
        table = event_table(inputs)
        known = 0 if encoded is None else encoded.num_positions
        if known and known <= len(table) and torch.equal(encoded.table, table[:known]):
            if known == len(table):
                return encoded, 0
            return EncodedLayers(self.model.model.encode_history(inputs, encoded.layers), table), 0
        return EncodedLayers(self.model.model.encode_history(inputs), table), known
