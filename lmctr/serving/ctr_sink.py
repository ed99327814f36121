"""Request scoring of CTR-Sink: which path a model takes, and rows batched by length where nothing can be shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from lmctr.models.ctr_sink.assembly import (
    AssemblySettings,
    Candidates,
    EventTable,
    Pieces,
    Plan,
    RowError,
    Samples,
    make_plan,
)
from lmctr.models.ctr_sink.backbone import turning_length
from lmctr.models.ctr_sink.raw_rows import (
    behavior_statistic,
    check_behavior,
    feedback_code,
    similarity_of,
)
from lmctr.utils.ragged import offsets_from_lengths
from lmctr.utils.rows import graded_value, whole_seconds

from .fingerprint import settings_fingerprint
from .prefix import EncodedPrefix, Pack, encode_prefix, score_packs
from .registry import DEFAULT_MAX_TOKENS, Request, RequestScorer


class _Rows(NamedTuple):
    """A user's behaviours and candidates as the processor's array functions take them; C different candidates, n behaviours."""

    pieces: Pieces
    events: EventTable
    target: np.ndarray  # (C,)
    time: int
    similarity: np.ndarray | None  # (C, n)
    statistics: np.ndarray | None  # (C, Fs)
    number: np.ndarray  # (C,) of the first candidate that reads so in the request
    start: int = 0  # of the user's behaviours among the events
    end: int | None = None  # None: they are all

    def rows(self, chosen: np.ndarray) -> dict[str, Any]:
        """Keywords of `CTRSinkProcessor.assemble` for some candidates."""
        count, length = len(chosen), len(self.events.item)
        keywords = {
            "start": np.full(count, self.start, dtype=np.int64),
            "end": np.full(count, length if self.end is None else self.end, dtype=np.int64),
            "target": self.target[chosen],
            "time": np.full(count, self.time, dtype=np.int64),
        }
        if self.similarity is not None:
            offsets = offsets_from_lengths(np.full(count, length))
            event = np.tile(np.arange(length), count)
            keywords["candidates"] = Candidates(offsets, event, self.similarity[chosen].reshape(-1))
        return keywords

    def plan(self, settings: AssemblySettings) -> Plan:
        rows = self.rows(np.arange(len(self.target)))
        similarity = rows.pop("candidates", None)
        with _named_errors(self.number):
            return make_plan(settings, self.pieces, self.events, Samples(**rows), similarity)


class CTRSinkScorer(RequestScorer):
    """Scores with a [`CTRSinkForCTR`]: the history encoded once in decoders with order `"recent"`, else row by row in batches."""

    def __init__(self, model: torch.nn.Module, processor: Any):
        super().__init__(model, processor)
        against = _why_not_shared(model, processor)
        self.shares_prefix, kind = against is None, model.config.text_config.model_type
        why = f"{kind} is causal and order 'recent' does not depend on the candidate: the history is encoded once"
        if model.config.encoder_prefix:
            why = f"the history does not see the candidate in this {kind} (encoder_prefix): it is encoded once"
        self.reason = against or why
        self.encoded_class = EncodedPrefix if self.shares_prefix else None

    def check_behaviors(
        self, behaviors: Sequence[Mapping[str, Any]], after: float | None, name: str = "behaviors"
    ) -> None:
        last = None if after is None else whole_seconds(after, "after")
        with _named_errors(history=name):
            for number, behavior in enumerate(behaviors):
                check_behavior(behavior, 0, number)
                time = whole_seconds(behavior["time"], f"histories[0][{number}]['time']")
                if last is not None and time < last:
                    raise ValueError(
                        f"histories[0][{number}] has time {time}, before the one ahead of it ({last}); give behaviours oldest "
                        "first, and none that is earlier than those the state has seen"
                    )
                last = time
                if self.processor.needs_values:
                    graded_value(behavior, f"histories[0][{number}]")
                for statistic in self.processor.sink_statistics:
                    behavior_statistic(behavior, statistic, 0, number)
                if not self.processor.needs_feedback:
                    continue
                code = feedback_code(behavior, self.processor.prompt.feedback_names, 0, number)
                if self.processor.feedback == "groups" and code == 0:
                    raise ValueError(
                        f"histories[0][{number}] has unknown feedback; feedback='groups' places every behaviour under a group"
                    )

    def needed(self, history: Sequence[Mapping[str, Any]]) -> int:
        # A random draw is keyed by the history's length, ordinals count from its start, and retrieval may choose any behaviour.
        if self.processor.sink_order != "recent" or {"random", "ordinal"} & set(self.processor.signals):
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

    @property
    def window(self) -> Any:
        return settings_fingerprint(self.processor)

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
        rows, _ = self._read(Request(history, [history[-1]["text"]], time), with_statistics=False)
        if not rows.pieces.item_length[rows.target[0]]:
            return encoded, 0
        plan = rows.plan(self.processor.settings)
        with self.inference():
            return self._encode(rows, plan, np.array([0]), encoded)[:2]

    def score(self, request: Request, encoded: EncodedPrefix | None) -> tuple[torch.Tensor, EncodedPrefix | None, int]:
        return self.score_many([(request, encoded)])[0]

    def score_many(
        self, asked: Sequence[tuple[Request, EncodedPrefix | None]]
    ) -> list[tuple[torch.Tensor, EncodedPrefix | None, int]]:
        found, shared, most = [], [], min((request.max_tokens for request, _ in asked), default=1)
        with self.inference():
            for request, encoded in asked:
                rows, places = self._read(request)
                if not len(places):
                    found.append((torch.zeros(0, dtype=torch.float32), places, encoded, 0))
                    continue
                plan = rows.plan(self.processor.settings)
                if not self.shares_prefix:
                    found.append((self._score_rows(rows, plan, request.max_tokens), places, encoded, 0))
                    continue
                parts, kept, reencoded = self._shared_parts(rows, plan, encoded)
                shared.append((torch.empty(len(rows.target), dtype=torch.float32, device="cpu"), parts))
                found.append((shared[-1][0], places, kept, reencoded))
            self._score_parts(shared, most)
        return [(logits[torch.from_numpy(places)], kept, again) for logits, places, kept, again in found]

    def score_samples(self, asked: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
        """(C,) logits of samples of a view of texts that share a history, for each of `asked`, as `TextView.of_one_history` gives them; of a
        model that shares prefixes."""
        shared = []
        with self.inference():
            for samples in asked:
                rows = _Rows(similarity=None, number=np.arange(len(samples["target"])), **samples)
                parts, _, _ = self._shared_parts(rows, rows.plan(self.processor.settings), None)
                shared.append((torch.empty(len(rows.target), dtype=torch.float32, device="cpu"), parts))
            self._score_parts(shared, DEFAULT_MAX_TOKENS)
        return [logits for logits, _ in shared]

    def _score_parts(
        self, shared: Sequence[tuple[torch.Tensor, Sequence[tuple[np.ndarray, Pack]]]], max_tokens: int
    ) -> None:
        """Fills in the logits of each of `shared`, whose parts run together."""
        flat = [(logits, chosen, pack) for logits, parts in shared for chosen, pack in parts]
        found = score_packs(self.model, [pack for _, _, pack in flat], max_tokens)
        for (logits, chosen, _), values in zip(flat, found):
            logits[torch.from_numpy(chosen)] = values

    def _shared_parts(
        self, rows: _Rows, plan: Plan, encoded: EncodedPrefix | None
    ) -> tuple[list[tuple[np.ndarray, Pack]], EncodedPrefix, int]:
        """Numbers of the candidates that begin alike, and what is to run of them; then what `encode` returns."""
        self.model.model.check_length("a row has", int(plan.length.max()), "tokens")
        pieces = rows.pieces
        suffix = pieces.values[pieces.suffix[0] : pieces.suffix[0] + pieces.suffix[1]]
        # Rows that lost the same number of behaviours to max_length begin alike. The largest part stays in the state. Where a target
        # has no text, the prompt's own tokens around it are the target, which the history of an encoder does not see.
        alike = plan.dropped * 2 + (self.model.config.encoder_prefix & (rows.pieces.item_length[rows.target] == 0))
        values, counts = np.unique(alike, return_counts=True)
        parts, kept, reencoded = [], encoded, 0
        for place in np.argsort(-counts, kind="stable"):
            chosen = np.flatnonzero(alike == values[place])
            prefix, again, rest = self._encode(rows, plan, chosen, kept)
            if place == np.argmax(counts):
                kept, reencoded = prefix, again
            starts, lengths = pieces.item_start[rows.target[chosen]], pieces.item_length[rows.target[chosen]]
            own = [
                np.concatenate([rest, pieces.values[start : start + length], suffix])
                for start, length in zip(starts, lengths)
            ]
            beside = (
                None if rows.statistics is None else torch.from_numpy(rows.statistics[chosen]).to(self.model.device)
            )
            parts.append((chosen, Pack(prefix, own, beside)))
        return parts, kept, reencoded

    def _encode(
        self, rows: _Rows, plan: Plan, chosen: np.ndarray, encoded: EncodedPrefix | None
    ) -> tuple[EncodedPrefix, int, np.ndarray]:
        """What the texts of the chosen rows begin with, as `encode_prefix` returns it, and the ids between that and their targets."""
        pieces = rows.pieces
        own = pieces.item_length[rows.target[chosen]] + pieces.suffix[1]
        shortest = chosen[np.argmin(own)]  # fails where the text of a target and the prompt around it are empty
        with _named_errors(rows.number[shortest[None]]):
            batch = self.processor.assemble(pieces, rows.events, **rows.rows(shortest[None]))
        ids, buckets = batch["input_ids"][0], batch["sink_buckets"][0]
        shared = len(ids) - int(own.min())
        body = shared - pieces.prefix[1] - pieces.empty[1] * bool(plan.is_empty[shortest])
        if self.model.config.encoder_prefix and not pieces.item_length[rows.target[shortest]]:
            length = shared - pieces.prefix[1]
        else:  # one position at least is each candidate's own, so that there is something to run
            length = min(shared, len(ids) - 1)
        buckets = buckets.reshape(len(ids), -1)[:length]
        prefix, again = encode_prefix(self.model, ids[:length], buckets, min(body, length), encoded)
        return prefix, again, ids[length:shared]

    def _score_rows(self, rows: _Rows, plan: Plan, max_tokens: int) -> torch.Tensor:
        """Rows of like length together, each batch padded to its longest."""
        device = next(self.model.parameters()).device
        logits = torch.empty(len(plan.length), dtype=torch.float32, device="cpu")
        order = np.argsort(-plan.length, kind="stable")
        begin = 0
        while begin < len(order):
            longest = int(plan.length[order[begin]])
            chosen = order[begin : begin + max(1, max_tokens // max(longest, 1))]
            begin += len(chosen)
            with _named_errors(rows.number[chosen]):
                batch = self.processor.assemble(rows.pieces, rows.events, **rows.rows(chosen))
            names = [key for key in self.processor.model_input_names if key != "statistics"]
            inputs = {key: torch.from_numpy(batch[key]).to(device) for key in names}
            if rows.statistics is not None:
                inputs["statistics"] = torch.from_numpy(rows.statistics[chosen]).to(device)
            logits[torch.from_numpy(chosen)] = self.model(**self.model.with_kept(inputs)).logits.float().cpu()
        return logits

    def _read(self, request: Request, with_statistics: bool = True) -> tuple[_Rows, np.ndarray]:
        """Checked and tokenised, each different text once; and the place of each candidate among the different ones."""
        with _named_errors():
            pieces, events, _, target, times = self.processor.read_rows(
                [request.history], request.candidates, [request.time]
            )
            similarity, statistics = self._similarity(request), None
            if with_statistics and self.processor.statistics_reader is not None:
                statistics = self.processor.scaled_statistics(request.candidates)
        # Equal are candidates of the same text with the same similarities and statistics, which are compared as bits.
        known = [[values.tobytes() for values in column] for column in (similarity, statistics) if column is not None]
        first: dict[tuple, int] = {}
        keys = list(zip(target.tolist(), *known))
        for candidate, key in enumerate(keys):
            first.setdefault(key, candidate)
        number = np.array(list(first.values()), dtype=np.int64)
        place = {key: row for row, key in enumerate(first)}
        places = np.array([place[key] for key in keys], dtype=np.int64)
        similarity, statistics = (None if column is None else column[number] for column in (similarity, statistics))
        return _Rows(pieces, events, target[number], int(times[0]), similarity, statistics, number), places

    def _similarity(self, request: Request) -> np.ndarray | None:
        if not self.processor.needs_similarity:
            return None
        shape = (len(request.candidates), len(request.history))
        if request.similarity is None:
            row = np.array([similarity_of(b, 0, i) for i, b in enumerate(request.history)], dtype=np.float64)
            return np.broadcast_to(row, shape)
        given = np.asarray(request.similarity, dtype=np.float64)
        if given.shape != shape:
            raise ValueError(
                f"similarity: shape {given.shape}, but there are {shape[0]} candidates and {shape[1]} behaviours; give one "
                f"cosine for each pair, {shape}"
            )
        return given


def _why_not_shared(model: torch.nn.Module, processor: Any) -> str | None:
    """Why candidates cannot share one encoded history; None where they can."""
    config = model.config
    spec, kind = config.backbone_spec, config.text_config.model_type
    used = model.model.language_model.config._attn_implementation
    longest = processor.effective_max_length
    windows, edge = _window_that_cuts(config.text_config, longest), turning_length(config.text_config)
    dependent = [signal for signal in processor.signals if signal in ("similarity", "random")]
    if config.layout == "fields":
        return "the fields of layout 'fields' are read as wholes, and its upper half sees the candidate's; rows are batched"
    if config.layout != "single":
        once = "computes the vector of each text once per request"
        return f"layout {config.layout!r} {once}; rows of vectors are short and are batched"
    if spec is None:
        return f"it is not known of {kind} whether its histories are independent of what follows them"
    if not (config.is_causal or config.encoder_prefix):
        return (
            f"every position of {kind} sees the candidate, so its history has other states for each candidate (a model trained with "
            "encoder_prefix shares it)"
        )
    if processor.sink_order != "recent":
        return f"order {processor.sink_order!r} retrieves other behaviours for each candidate"
    if dependent:
        return f"the sink signal {dependent[0]!r} depends on the candidate"
    if windows:
        return f"layers of {kind} {windows}"
    if edge is not None and (longest is None or longest > edge):
        return (
            f"positions of this {kind} (longrope) turn otherwise in rows of more than {edge} tokens, the candidate's counted; give the processor "
            f"max_length={edge} or less, so that no row is longer"
        )
    if used not in ("eager", "sdpa"):
        return f"attn_implementation={used!r} takes no mask for packed candidates; load with 'sdpa' to share histories"
    return None


def _window_that_cuts(text_config: Any, longest: int | None) -> str | None:
    """What layers do not see of rows of up to `longest` tokens; None where every layer sees all of them."""
    kinds = set(getattr(text_config, "layer_types", None) or ())
    window = getattr(text_config, "sliding_window", None)
    if others := kinds - {"full_attention", "sliding_attention"}:
        return f"with {', '.join(sorted(others))} keep only a part of their history"
    if window is None or (kinds and "sliding_attention" not in kinds) or (longest is not None and longest <= window):
        return None
    return f"with sliding_attention see {window} tokens back; give the processor max_length={window} or less, so that no history is longer"


@contextmanager
def _named_errors(number: np.ndarray | None = None, history: str = "history") -> Iterator[None]:
    """Errors of batches name row and history. Here there is one history, which the caller names `history`, and the rows are candidates `number` (B,)."""
    try:
        yield
    except RowError as error:
        about_history = error.reason.startswith("behaviour ")
        place = history if about_history else f"candidates[{error.row if number is None else number[error.row]}]"
        raise ValueError(f"{place}: {error.reason}") from error
    except ValueError as error:
        text = (
            str(error).replace("histories[0]", history).replace("targets[", "candidates[").replace("times[0]", "time")
        )
        raise ValueError(text) from error
