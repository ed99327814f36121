"""Request scoring of CTR-Sink: which path a model takes, and rows batched by length where nothing can be shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from lmctr.models.ctr_sink.assembly import Candidates, EventTable, Pieces, Plan, RowError, Samples, make_plan
from lmctr.models.ctr_sink.raw_rows import (
    check_behavior,
    feedback_code,
    similarity_of,
)
from lmctr.models.ctr_sink.split_layout import FieldCache
from lmctr.utils.ragged import offsets_from_lengths
from lmctr.utils.rows import whole_seconds

from .prefix import EncodedPrefix, encode_prefix, score_packed
from .registry import RequestScorer

__all__ = ["CTRSinkScorer"]


class _Request(NamedTuple):
    """A user's behaviours and candidates as the processor's array functions take them; C candidates, n behaviours."""

    pieces: Pieces
    events: EventTable
    target: np.ndarray  # (C,)
    time: int
    similarity: np.ndarray | None  # (C, n)

    def rows(self, chosen: np.ndarray) -> dict[str, Any]:
        """Keywords of `CTRSinkProcessor.assemble` for some candidates."""
        count, length = len(chosen), len(self.events.item)
        keywords = {
            "start": np.zeros(count, dtype=np.int64),
            "end": np.full(count, length, dtype=np.int64),
            "target": self.target[chosen],
            "time": np.full(count, self.time, dtype=np.int64),
        }
        if self.similarity is not None:
            offsets = offsets_from_lengths(np.full(count, length))
            event = np.tile(np.arange(length), count)
            keywords["candidates"] = Candidates(offsets, event, self.similarity[chosen].reshape(-1))
        return keywords


class CTRSinkScorer(RequestScorer):
    """Scores with a [`CTRSinkForCTR`]: the history encoded once in decoders with order `"recent"`, else row by row in batches."""

    def __init__(self, model: torch.nn.Module, processor: Any):
        super().__init__(model, processor)
        self.shares_prefix, self.reason = _sharing(model, processor)
        self.encoded_class = EncodedPrefix if self.shares_prefix else None

    def check_behaviors(self, behaviors: Sequence[Mapping[str, Any]], after: float | None) -> None:
        last = None if after is None else whole_seconds(after, "after")
        with _named_errors(history="behaviors"):
            for number, behavior in enumerate(behaviors):
                check_behavior(behavior, 0, number)
                time = _time(behavior, number)
                if last is not None and time < last:
                    raise ValueError(
                        f"histories[0][{number}] has time {time}, before the one ahead of it ({last}); give behaviours oldest "
                        "first, and none that is earlier than those the state has seen"
                    )
                last = time
                if not self.processor.needs_feedback:
                    continue
                code = feedback_code(behavior, self.processor.prompt.feedback_names, 0, number)
                if self.processor.feedback == "groups" and code == 0:
                    raise ValueError(
                        f"histories[0][{number}] has unknown feedback; feedback='groups' places every behaviour under a group"
                    )

    def needed(self, history: Sequence[Mapping[str, Any]]) -> int:
        # A random draw is keyed by the history's length, and retrieval may choose any behaviour.
        if self.processor.sink_order != "recent" or "random" in self.processor.signals:
            return len(history)
        most = self.processor.num_behaviors
        if self.processor.feedback != "groups":
            return min(len(history), most)
        # The last K of each group; what lies between them stays too, because recency counts it.
        names = self.processor.prompt.feedback_names
        codes = np.array([feedback_code(b, names, 0, i) for i, b in enumerate(history)], dtype=np.int64)
        shown = [np.flatnonzero(codes == code)[-most:] for code in range(1, len(names))]
        first = min((int(own[0]) for own in shown if len(own)), default=len(history))
        return len(history) - first

    def encode(
        self, history: Sequence[Mapping[str, Any]], encoded: EncodedPrefix | None, time: float | None
    ) -> tuple[EncodedPrefix | None, int]:
        if not self.shares_prefix or not history:
            return encoded, 0
        if time is None:
            if "elapsed" in self.processor.signals:
                return encoded, 0  # at the first request, when the time is known
            time = whole_seconds(history[-1]["time"], "time") + 1
        # How much of the history fits beside a target depends on its length; the last behaviour stands in for one here.
        request = self._request(history, [history[-1]["text"]], time, None)
        if not request.pieces.item_length[request.target[0]]:
            return encoded, 0
        with _named_errors():
            plan = make_plan(self.processor.settings, request.pieces, request.events, _samples(request), None)
        with self.inference():
            return self._encode(request, plan, np.array([0]), encoded)[:2]

    def score(
        self,
        history: Sequence[Mapping[str, Any]],
        candidates: Sequence[Mapping[str, Any] | str],
        time: float,
        encoded: EncodedPrefix | None,
        *,
        similarity: np.ndarray | None = None,
        max_tokens: int,
    ) -> tuple[torch.Tensor, EncodedPrefix | None, int]:
        request = self._request(history, candidates, time, similarity)
        if not len(request.target):
            return torch.zeros(0), encoded, 0
        everything = request.rows(np.arange(len(request.target)))
        with _named_errors():
            plan = make_plan(
                self.processor.settings,
                request.pieces,
                request.events,
                _samples(request),
                everything.get("candidates"),
            )
        with self.inference():
            if not self.shares_prefix:
                return self._score_rows(request, plan, max_tokens), encoded, 0
            return self._score_shared(request, plan, encoded, max_tokens)

    def _score_shared(
        self, request: _Request, plan: Plan, encoded: EncodedPrefix | None, max_tokens: int
    ) -> tuple[torch.Tensor, EncodedPrefix | None, int]:
        _check_positions(self.model, int(plan.length.max()))
        pieces = request.pieces
        suffix = pieces.values[pieces.suffix[0] : pieces.suffix[0] + pieces.suffix[1]]
        logits = torch.empty(len(request.target))
        # Rows that lost the same number of behaviours to max_length begin alike. The largest part stays in the state.
        values, counts = np.unique(plan.dropped, return_counts=True)
        kept, reencoded = encoded, 0
        for place in np.argsort(-counts, kind="stable"):
            rows = np.flatnonzero(plan.dropped == values[place])
            prefix, again, rest = self._encode(request, plan, rows, kept)
            if place == np.argmax(counts):
                kept, reencoded = prefix, again
            starts, lengths = pieces.item_start[request.target[rows]], pieces.item_length[request.target[rows]]
            own = [
                np.concatenate([rest, pieces.values[start : start + length], suffix])
                for start, length in zip(starts, lengths)
            ]
            logits[torch.from_numpy(rows)] = score_packed(self.model, prefix, own, max_tokens)
        return logits, kept, reencoded

    def _encode(
        self, request: _Request, plan: Plan, rows: np.ndarray, encoded: EncodedPrefix | None
    ) -> tuple[EncodedPrefix, int, np.ndarray]:
        """What the texts of `rows` begin with, as `encode_prefix` returns it, and the ids between that and their targets."""
        pieces = request.pieces
        own = pieces.item_length[request.target[rows]] + pieces.suffix[1]
        shortest = rows[np.argmin(own)]  # fails where the text of a target and the prompt around it are empty
        with _named_errors(int(shortest)):
            batch = self.processor.assemble(pieces, request.events, **request.rows(shortest[None]))
        ids, buckets = batch["input_ids"][0], batch["sink_buckets"][0]
        shared = len(ids) - int(own.min())
        body = shared - pieces.prefix[1] - pieces.empty[1] * bool(plan.is_empty[shortest])
        # One position at least is each candidate's own, so that there is something to run.
        length = min(shared, len(ids) - 1)
        buckets = buckets.reshape(len(ids), -1)[:length]
        prefix, again = encode_prefix(self.model, ids[:length], buckets, min(body, length), encoded)
        return prefix, again, ids[length:shared]

    def _score_rows(self, request: _Request, plan: Plan, max_tokens: int) -> torch.Tensor:
        """Rows of like length together, each batch padded to its longest."""
        device = next(self.model.parameters()).device
        # The layout "split" has vectors of behaviours that do not depend on the row: each is computed once per request.
        fields = FieldCache(self.model) if self.model.config.layout == "split" else None
        logits = torch.empty(len(plan.length))
        order = np.argsort(-plan.length, kind="stable")
        begin = 0
        while begin < len(order):
            count = max(1, max_tokens // max(int(plan.length[order[begin]]), 1))
            rows = order[begin : begin + count]
            begin += count
            with _named_errors():
                batch = self.processor.assemble(request.pieces, request.events, **request.rows(rows))
            inputs = {key: torch.from_numpy(batch[key]).to(device) for key in self.processor.model_input_names}
            if fields is not None:
                inputs = fields(**inputs)
            logits[torch.from_numpy(rows)] = self.model(**inputs).logits.float().cpu()
        return logits

    def _request(
        self, history: Sequence[Mapping[str, Any]], candidates: Sequence[Any], time: float, similarity: Any
    ) -> _Request:
        """Checked and tokenised; each different text once."""
        with _named_errors():
            pieces, events, _, target, times = self.processor.read_rows([history], candidates, [time])
            return _Request(pieces, events, target, int(times[0]), self._similarity(history, candidates, similarity))

    def _similarity(
        self, history: Sequence[Mapping[str, Any]], candidates: Sequence[Any], given: Any
    ) -> np.ndarray | None:
        if not self.processor.needs_similarity:
            return None
        shape = (len(candidates), len(history))
        if given is None:
            row = np.array([similarity_of(b, 0, i) for i, b in enumerate(history)], dtype=np.float64)
            return np.broadcast_to(row, shape)
        given = np.asarray(given, dtype=np.float64)
        if given.shape != shape:
            raise ValueError(
                f"similarity: shape {given.shape}, but there are {shape[0]} candidates and {shape[1]} behaviours; give one "
                f"cosine for each pair, {shape}"
            )
        return given


def _sharing(model: torch.nn.Module, processor: Any) -> tuple[bool, str]:
    """Whether candidates can share one encoded history, and why (not)."""
    config = model.config
    spec, kind = config.backbone_spec, config.text_config.model_type
    if config.layout != "single":
        return (
            False,
            f"layout {config.layout!r} computes the vector of each text once per request; rows of vectors are short and are batched",
        )
    if spec is None:
        return False, f"it is not known of {kind} whether its histories are independent of what follows them"
    if not spec.is_causal:
        return (
            False,
            f"every position of {kind} sees the candidate, so its history has other states for each candidate",
        )
    if processor.sink_order != "recent":
        return False, f"order {processor.sink_order!r} retrieves other behaviours for each candidate"
    dependent = [signal for signal in processor.signals if signal in ("similarity", "random")]
    if dependent:
        return False, f"the sink signal {dependent[0]!r} depends on the candidate"
    other = set(getattr(config.text_config, "layer_types", None) or ()) - {"full_attention"}
    if other:
        return False, f"layers with {', '.join(sorted(other))} keep only a part of their history"
    used = model.model.language_model.config._attn_implementation
    if used not in ("eager", "sdpa"):
        return (
            False,
            f"attn_implementation={used!r} takes no mask for packed candidates; load with 'sdpa' to share histories",
        )
    return True, f"{kind} is causal and order 'recent' does not depend on the candidate: the history is encoded once"


def _samples(request: _Request) -> Samples:
    rows = request.rows(np.arange(len(request.target)))
    return Samples(rows["start"], rows["end"], rows["target"], rows["time"])


def _check_positions(model: torch.nn.Module, longest: int) -> None:
    limit = getattr(model.config.text_config, "max_position_embeddings", None)
    if limit is not None and longest > limit:
        raise ValueError(
            f"a row has {longest} tokens, but the backbone has positions for {limit}; give the processor max_length={limit}"
        )


def _time(behavior: Mapping[str, Any], number: int) -> int:
    return whole_seconds(behavior["time"], f"histories[0][{number}]['time']")


@contextmanager
def _named_errors(row: int | None = None, history: str = "history") -> Iterator[None]:
    """Errors of batches name row and history. Here there is one history, and the rows are candidates.

    Args:
        row: number of the candidate in a batch of one. history: what the caller names the history.
    """
    try:
        yield
    except RowError as error:
        about_history = error.reason.startswith("behaviour ")
        place = history if about_history else f"candidates[{error.row if row is None else row}]"
        raise ValueError(f"{place}: {error.reason}") from error
    except ValueError as error:
        text = (
            str(error).replace("histories[0]", history).replace("targets[", "candidates[").replace("times[0]", "time")
        )
        raise ValueError(text) from error
