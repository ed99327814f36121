"""Answers to requests of a history and candidates, as texts or as events with items' ids.

Two ways lead to the same logits. **Together**: the candidates of many requests are rows of common batches. **Alone**: one request by
`lmctr.serving.score`, with the history encoded once where the model can share it among candidates, and kept. A request goes alone where its
history goes on from that of the request before it and the model keeps states of histories; texts also where there are several candidates
to share the history, or, where the model cannot share it, enough of them to fill a batch. All others go together.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch

from lmctr.data.batches.rows import CONTEXTS, GRADED, reads_graded
from lmctr.data.features.transform import merged_examples
from lmctr.models.ctr_sink.piece_tokens import TokenCache, tokenize
from lmctr.models.ctr_sink.raw_rows import feedback_code
from lmctr.serving import UserState, score, scorer_for
from lmctr.serving.scoring import DEFAULT_MAX_TOKENS
from lmctr.serving.statistics import RequestStatistics
from lmctr.statistics import ItemStatistics
from lmctr.utils.ragged import Ragged, blocks

from .base import Answers, Request, Row, grid_batches
from .requests import event_request, text_request


class HistoryAnswers(Answers):
    """What texts and events share; `counted` are the values of which some may be unknown.

    Args:
        model, processor, batch_size: see [`Answers`].
        max_tokens: most positions of a forward pass for a request on its own.
        retriever: gives the similarity of texts where the processor needs it.
        items: the items' statistics, for candidates that do not bring their own; of a model that reads statistics.
    """

    counted: ClassVar[str]

    def __init__(
        self,
        model: torch.nn.Module,
        processor: Any,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        retriever: Any = None,
        items: ItemStatistics | None = None,
    ):
        super().__init__(model, processor, batch_size)
        self.items = items
        self._counted: tuple[RequestStatistics, list[dict[str, Any]]] | None = None  # of the last history
        self.max_tokens = max_tokens or DEFAULT_MAX_TOKENS
        self.retriever = retriever
        try:
            self._scorer = scorer_for(model, processor)
        except ValueError:  # a family without request scoring
            self._scorer = None
        self.keeps_states = self._scorer is not None and self._scorer.encoded_class is not None
        self._state: tuple[UserState, list[dict[str, Any]]] | None = None  # the last, and the history that it has seen

    def prepare(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Fills in the statistics of candidates that have none; they are counted on where a history goes on from the last one."""
        prepared, counted, self._counted = list(requests), self._counted, None
        if counted is not None and len(requests) > 1:  # so that they can be prepared again
            self._counted, counted = counted, (copy.copy(counted[0]), counted[1])
        # By how many of its kind come before: these are counted at once.
        steps: list[list[tuple[int, RequestStatistics, list[dict[str, Any]]]]] = []
        step = 0
        for place, request in enumerate(requests):
            candidates, history = request["candidates"], request["history"]
            if self.items is None or all(entry.get("statistics") is not None for entry in candidates):
                continue
            if counted is None or not _goes_on(history, counted[1]):
                counted, step = (RequestStatistics(self.processor, self.items), []), 0
            known, seen = counted
            if step == len(steps):
                steps.append([])
            steps[step].append((place, known, history[len(seen) :]))
            counted, step = (known, history), step + 1
        for some in steps:
            places, those, behaviors = zip(*some)
            try:
                RequestStatistics.extend_many(those, behaviors)
            except ValueError:
                for place in places:  # whole, which says the behaviour's place
                    RequestStatistics(self.processor, self.items).extend(requests[place]["history"])
                raise
            candidates, times = ([requests[place][key] for place in places] for key in ("candidates", "time"))
            for place, filled in zip(places, RequestStatistics.fill_many(those, candidates, times)):
                contexts = [entry.get("context") for entry in requests[place]["candidates"]]
                prepared[place] = {**requests[place], "candidates": filled, "contexts": contexts}
        self._counted = counted
        return prepared

    def unknown_in(self, request: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        counts, found = {}, {}
        for role, entries in (("candidates", request["candidates"]), ("histories", request["history"])):
            name = f"{self.counted} of {role}"
            values, unknown, found[name] = self.unknown_entries(entries)
            counts[name] = {"values": values, "unknown": unknown}
        reader = self.processor.statistics_reader
        if reader is not None and reader.context:
            contexts = request.get("contexts") or [entry.get("context") for entry in request["candidates"]]
            own = {name: [((context or {}).get(name), 1) for context in contexts] for name in reader.told}
            counts[CONTEXTS], found[CONTEXTS] = reader.unknown_context(own)
        if reads_graded(self.processor):
            unsaid = sum(entry.get("value") is None for entry in request["history"])
            counts[GRADED] = {"values": len(request["history"]), "unknown": unsaid}
        self.examples = merged_examples([self.examples, found])
        return counts

    def unknown_entries(self, entries: Sequence[Mapping[str, Any]]) -> tuple[int, int, list[str]]:
        """How many values behaviours or candidates have, how many of them are unknown, and examples."""
        raise NotImplementedError

    def many(self) -> float:
        """From how many candidates on a request goes alone."""
        return math.inf

    def goes_alone(self, request: dict[str, Any]) -> bool:
        goes_on = self.keeps_states and self.last is not None and _goes_on(request["history"], self.last["history"])
        return goes_on or len(request["candidates"]) >= self.many()

    def alone(self, request: dict[str, Any]) -> np.ndarray:
        self.reason = self._scorer.reason
        found = score(
            self.model,
            self.processor,
            self._state_of(request["history"]) if self.keeps_states else request["history"],
            request["candidates"],
            request["time"],
            similarity=self.similarity(request["history"], request["candidates"]),
            max_tokens=self.max_tokens,
        )
        return found.numpy()

    def _state_of(self, history: list[dict[str, Any]]) -> UserState:
        """The last state, extended, where the history goes on from what it has seen, else a new one."""
        kept, self._state = self._state, None  # so that a history that is refused leaves none behind
        if kept is not None and _goes_on(history, kept[1]):
            state = kept[0]
            try:
                state.extend(history[len(kept[1]) :])
            except ValueError:  # see above
                state = UserState(self.model, self.processor, history)
        else:
            state = UserState(self.model, self.processor, history)
        self._state = (state, history)
        return state

    def similarity(self, history: list[dict[str, Any]], targets: list[dict[str, Any]]) -> np.ndarray | None:
        """(C, history) cosines by the retriever; None without one, or where the behaviours have theirs."""
        if self.retriever is None or all("similarity" in entry for entry in history):
            return None
        return self.retriever.similarity(
            [target["text"] for target in targets], [entry.get("text") for entry in history]
        )


def _goes_on(history: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> bool:
    try:
        return bool(earlier) and history[: len(earlier)] == earlier
    except ValueError:  # arrays among the values: such a history is read anew
        return False


class TextAnswers(HistoryAnswers):
    """Answers requests of texts; together, a row of the model per candidate, rows of like length in a batch."""

    counted = "tokens"
    _read = _cut = 0  # requests whose rows were planned, and those that lost behaviours

    @cached_property
    def _tokens(self) -> TokenCache:
        """Of texts, what `_count_tokens` says."""
        return TokenCache()

    def check(self, request: Any, where: str) -> dict[str, Any]:
        return text_request(request, where, self.processor.prompt.item)

    def unknown_entries(self, entries: Sequence[Mapping[str, Any]]) -> tuple[int, int, list[str]]:
        texts = [entry.get("text") or "" for entry in entries]
        unique = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        counts = self._tokens.rows(unique, self._count_tokens).values.reshape(-1, 2)
        values, unknown = counts[[unique[text] for text in texts]].T
        examples = [texts[place][:60] for place in np.flatnonzero(unknown)]
        return int(values.sum()), int(unknown.sum()), examples

    def _count_tokens(self, texts: list[str]) -> Ragged:
        """How many tokens texts have, and how many of these are unknown; a text of which a tokenizer leaves nothing counts as an unknown one."""
        unknown = self.processor.tokenizer.unk_token_id
        rows = tokenize(self.processor.tokenizer, texts)
        rows = [row if row or not text.strip() else [unknown] for text, row in zip(texts, rows)]
        return Ragged.from_rows([[len(row), row.count(unknown)] for row in rows])

    def unknown_in(self, request: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        counts, history, processor = super().unknown_in(request), request["history"], self.processor
        if processor.needs_feedback:
            names = processor.prompt.feedback_names
            unknown = sum(feedback_code(entry, names, 0, place) == 0 for place, entry in enumerate(history))
            counts["feedback of histories"] = {"values": len(history), "unknown": unknown}
        if self.items is not None:  # by which statistics are found
            for role, entries in (("candidates", request["candidates"]), ("histories", history)):
                items = [entry.get("item") for entry in entries]
                absent = int((self.items.places(items) < 0).sum())
                missing = items.count(None)  # said to be new
                own = {"values": len(items), "missing": missing, "unknown": absent - missing}
                counts[f"items of {role}"] = own
        return counts

    def count_cut(self, request: Mapping[str, Any]) -> None:
        is_planned = self.processor.effective_max_length is not None and not self.processor.needs_similarity
        if self.counts_cut and request["candidates"] and is_planned:
            self._read, self._cut = self._read + 1, self._cut + self._is_cut(request)

    def _is_cut(self, request: Mapping[str, Any]) -> bool:
        """Whether the rows of a request drop selected behaviours, the oldest, to have no more than `max_length` tokens."""
        history, candidates = request["history"], request["candidates"]
        pieces, events, _, target, time = self.processor.read_rows([history], candidates, [request["time"]])
        start, end, times = (np.full(len(target), value, dtype=np.int64) for value in (0, len(history), time[0]))
        return bool(
            self.processor.plan_lengths(pieces, events, start=start, end=end, target=target, time=times)[2].any()
        )

    def cut_words(self) -> str:
        longest = self.processor.effective_max_length
        return (
            f"{self._cut / self._read:.1%} of requests lost behaviours to max_length ({longest})" if self._cut else ""
        )

    def many(self) -> float:
        return 2 if self.keeps_states else math.inf if self._scorer is None else self.batch_size

    def batches(self, requests: Sequence[Request]) -> Iterable[list[tuple[int, Sequence[int]]]]:
        texts = [[len(entry.get("text") or "") for entry in request["history"]] for _, request in requests]
        order = sorted(range(len(requests)), key=lambda place: -sum(texts[place]))
        rows = [(place, [number]) for place in order for number in range(len(requests[place][1]["candidates"]))]
        return (rows[some] for some in blocks(len(rows), self.batch_size))

    def process(self, rows: list[Row]) -> Any:
        return self.processor(
            histories=[self._with_similarity(request["history"], target) for _, request, (target,) in rows],
            targets=[target for _, _, (target,) in rows],
            times=[request["time"] for _, request, _ in rows],
        )

    def in_words(self, error: str, row: Row) -> str:
        _, request, (target,) = row
        number = next(n for n, entry in enumerate(request["candidates"]) if entry is target)
        place = "target" if request["single"] else f"candidates[{number}]"
        own = {"row 0: behaviour": "history: behaviour", "row 0": place, "targets[0]": place, "times[0]": "time"}
        for name, words in (own | {"histories[0]": "history"}).items():
            error = error.replace(name, words, 1)
        return error

    def _with_similarity(self, history: list[dict[str, Any]], target: dict[str, Any]) -> list[dict[str, Any]]:
        cosines = self.similarity(history, [target])
        if cosines is None:
            return history
        return [{**entry, "similarity": float(cosine)} for entry, cosine in zip(history, cosines[0])]


class EventAnswers(HistoryAnswers):
    """Answers requests of items; together, a forward pass has at most `batch_size` candidates, padding included.

    Candidates of a request that share a time are one row of the model; so each has the logit of a row of its own.
    """

    counted = "items"

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.processor.tasks

    def unknown_entries(self, entries: Sequence[Mapping[str, Any]]) -> tuple[int, int, list[str]]:
        items = [entry["item"] for entry in entries]
        unknown = self.processor.unknown_items(items)
        return len(items), len(unknown), [str(item) for item in unknown]

    def unknown_in(self, request: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        counts, history, candidates = super().unknown_in(request), request["history"], request["candidates"]
        if self.processor.knows_no_behavior:
            perhaps = (None, 0, self.processor.behavior_names[0])
            unsaid = (event for event in history if event.get("behavior") in perhaps)
            unknown = sum(self.processor.behavior_of(event, "history") == 0 for event in unsaid)
            counts["behaviors of histories"] = {"values": len(history), "unknown": unknown}
        if len(self.processor.scenario_names) > 1:  # one that is not said is read as the first
            for role, entries in (("candidates", candidates), ("histories", history)):
                unsaid = sum(entry.get("scenario") is None for entry in entries)
                counts[f"scenarios of {role}"] = {"values": len(entries), "unknown": unsaid}
        return counts

    check = staticmethod(event_request)

    def goes_alone(self, request: dict[str, Any]) -> bool:
        # On its own, a request has all of its history before all of its candidates.
        return super().goes_alone(request) and _is_latest(request)

    def batches(self, requests: Sequence[Request]) -> Iterable[list[tuple[int, Sequence[int]]]]:
        rows = [row for place in range(len(requests)) for row in self._rows(place, requests[place][1])]
        rows.sort(key=lambda row: (-len(requests[row[0]][1]["history"]), -len(row[1])))
        return grid_batches(rows, lambda row: len(row[1]), self.batch_size)

    def _rows(self, place: int, request: Mapping[str, Any]) -> Iterator[tuple[int, list[int]]]:
        """Candidates of one time, at most `batch_size` of them, by their numbers."""
        times: dict[Any, list[int]] = {}
        for number, candidate in enumerate(request["candidates"]):
            times.setdefault(str(candidate.get("time")), []).append(number)
        for chosen in times.values():
            yield from ((place, chosen[some]) for some in blocks(len(chosen), self.batch_size))

    def process(self, rows: list[Row]) -> Any:
        return self.processor.of_requests(
            [request["history"] for _, request, _ in rows],
            [candidates for _, _, candidates in rows],
            [request["time"] for _, request, _ in rows],
        )

    def in_words(self, error: str, row: Row) -> str:
        error = re.sub(r"histories: row 0, event (\d+)", r"history[\1]", error)
        return error.replace("candidates: row 0, ", "candidates: ").replace("candidates: row 0: ", "")


def _is_latest(request: dict[str, Any]) -> bool:
    own = [entry.get("time") for entry in request["candidates"]]
    times = [request["time"] if time is None else time for time in own]
    last = [entry.get("time") for entry in request["history"][-1:]]
    if not all(isinstance(time, Real) and math.isfinite(time) for time in [*times, *last]):
        return False  # the processor will say so
    return not last or math.floor(min(times)) > last[0]
