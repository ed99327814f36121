"""A model that answers requests of many callers together: any kind of input, each request by itself right or wrong."""

from __future__ import annotations

import copy
import logging
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from lmctr.data.features.unknown import kept_shares, num_present
from lmctr.runs.download import open_model
from lmctr.runs.loading import load_folder
from lmctr.runs.reference import REFERENCE_FILE, compare_with_reference
from lmctr.serving import UserState, scorer_for
from lmctr.serving.fingerprint import model_fingerprint
from lmctr.serving.precision import in_precision
from lmctr.serving.registry import Request
from lmctr.utils.measure import usable_device
from lmctr.utils.ragged import padded_grids
from lmctr.utils.suggest import refuse_unknown

from .base import by_place, grid_batches, isolated, no_score, without_score
from .joined import joined_files_of
from .predict import answers_for, load_item_statistics, load_retriever
from .requests import answer_of
from .tables import table_logits, with_files

logger = logging.getLogger("lmctr.server")

T, R = TypeVar("T"), TypeVar("R")
_LETTERS = 4  # of a token, about
_OF_SHARED = ("id", "shared", "candidates")


class Scored(NamedTuple):
    """What a request gets: (C,) or (C, T) logits, by name how many values were read and how many of them unknown, and by which model."""

    request: dict[str, Any]
    logits: np.ndarray
    counts: Mapping[str, Mapping[str, int]]
    served: ServedModel

    def answer(self, with_logits: bool = False) -> dict[str, Any]:
        """As JSON has it: probabilities (of retrieval families `scores`), and what they come from."""
        request, served = self.request, self.served
        if served.kind == "table":
            request = {**request, "single": False}
        answer = answer_of(request, self.logits, served.tasks)
        if not with_logits:
            answer = {key: value for key, value in answer.items() if key not in ("logit", "logits")}
        return answer | {
            "unknown_share": unknown_share(self.counts),
            "model_version": served.version,
            "processor_fingerprint": served.fingerprint,
        }


class ServedModel:
    """A model and its processor, loaded, and held against the run's reference rows.

    Args:
        run: a run folder, any folder that `from_pretrained` loads, or a Hub id. device: as torch names it; default: cuda where there
            is one. batch_size: rows of a forward pass. max_tokens: positions of one, where a history is shared by its candidates.
            dtype: one of `PRECISIONS`; default: as the weights are stored.

    Attributes:
        folder: what was loaded. kind: what it reads: "text", "events", "table" or "impressions".
        version: fingerprint of configuration and weights. fingerprint: of the processor.
        probe: number of reference rows and the largest difference of a logit; None: the folder has none (they are not shared on the Hub).
        usual_unknown: the share of unknown values that the validation part had, by name.
        joined: the files that complete rows of a table, as they are now; not_joined: why not, where they are not there.

    Raises:
        FileNotFoundError, ValueError: what `load_run` and [`compare_with_reference`] raise: other logits than the run's are refused.
    """

    def __init__(
        self,
        run: str,
        device: str | None = None,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        dtype: str | None = None,
    ):
        folder = open_model(run)
        model, self.processor = load_folder(folder)
        with torch.no_grad(), model.same_weights():  # of its own: files that are mapped change with the folder
            for tensor in chain(model.parameters(), model.buffers()):
                tensor.data = tensor.data.clone()
            model.to(usable_device(device)).eval()
        self.name, self.folder = str(run), folder
        self.version, self.fingerprint = model_fingerprint(model), self.processor.fingerprint
        known = (folder.path / REFERENCE_FILE).is_file()
        if known and dtype is not None:
            compare_with_reference(folder.path, model)  # as stored; what the precision changes is told, not refused
        with model.same_weights():
            self.model = in_precision(model, dtype).bake()  # nothing is made anew for each request
        self.probe = compare_with_reference(folder.path, self.model, dtype is not None) if known else None
        self.kind = self.processor.request_kind
        self.usual_unknown = kept_shares(self.processor, folder.unknown_shares()).usual_unknown
        self.batch_size, self.max_tokens = batch_size, max_tokens
        self.items = load_item_statistics(folder.path, self.processor)
        self.retriever = None if self.kind == "table" else load_retriever(folder.path, self.processor)
        self.joined, self.not_joined = (), None
        if self.kind == "table":
            try:
                self.joined = joined_files_of(folder)
                if self.joined:  # so that they are read now
                    with_files([dict.fromkeys(file.by for file in self.joined)], self.joined, self.processor, ())
            except (FileNotFoundError, ValueError) as error:
                self.not_joined = str(error)
        self._prepare()

    def _prepare(self) -> None:
        """What a call leaves something behind in."""
        self.answers = None
        if self.kind != "table":
            self.answers = answers_for(
                self.model, self.processor, self.retriever, self.batch_size, self.max_tokens, self.items
            )
        # Whether what is encoded of a history is kept and shared by its candidates.
        self._keeps = self.reads_histories and self.answers.keeps_states
        self._scorer = scorer_for(self.model, self.processor) if self._keeps or self.kind == "table" else None

    def twins(self, count: int) -> list[ServedModel]:
        """This and others of the same weights, vocabularies and statistics, each to be used by one thread at a time."""
        found = [self]
        for _ in range(count - 1):
            twin = copy.copy(self)
            twin.processor = copy.copy(self.processor)
            twin._prepare()
            found.append(twin)
        return found

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.processor.tasks if self.answers is None else self.answers.tasks

    @property
    def reads_histories(self) -> bool:
        return self.kind in ("text", "events")

    # ---- in the caller's thread ----

    def check(self, body: Mapping[str, Any], has_state: bool = False) -> dict[str, Any]:
        """A request as [`score`] takes it. `has_state`: the history is that of a kept state.

        Raises:
            ValueError: unknown or missing keys, values of the wrong type.
        """
        if has_state and not self.reads_histories:
            raise ValueError(f"request: this model reads {self.kind}, no histories; it keeps no state of a user")
        if has_state and "history" in body:
            raise ValueError("request: give either the history or the user_id of a kept state, not both")
        if self.answers is not None:
            return self.answers.check({**body, "history": []} if has_state else dict(body), "request")
        name, keys = ("candidates", _OF_SHARED) if "shared" in body else ("rows", ("rows", *_OF_SHARED))
        refuse_unknown(body, keys, "the request", "request: ")
        if name == "rows" and "candidates" in body:
            raise ValueError(
                "request: give either rows, or candidates and shared, the columns that they have in common ({} for none)"
            )
        if not isinstance(body.get("shared", {}), dict):
            raise ValueError("request: shared must be an object, the columns that all candidates have in common")
        rows = body.get(name)
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"request: {name} must be a list of at least one object with the columns of the fields")
        return dict(body)

    def positions(self, request: Mapping[str, Any]) -> int:
        """About how many positions a checked request has, for the size of batches."""
        if self.kind == "table":
            return len(request.get("rows", request.get("candidates")))
        if self.kind == "impressions":
            return len(request["ads"])
        history, candidates = request["history"], request["candidates"]
        if self.kind == "events":
            return len(history) + len(candidates)
        before, own = (sum(_length(entry) for entry in entries) for entries in (history, candidates))
        if self._is_shared(request):
            return before + own
        longest = self.processor.effective_max_length or math.inf
        return sum(int(min(before + _length(entry), longest)) for entry in candidates)

    # ---- in the worker's thread ----

    def new_state(self) -> UserState:
        """A state of a user without behaviours.

        Raises:
            ValueError: a model that keeps none.
        """
        if not self.reads_histories:
            raise ValueError(f"this model reads {self.kind}, no histories; it keeps no state of a user")
        return UserState(self.model, self.processor, items=self.items)

    def score(self, asked: Sequence[tuple[dict[str, Any], UserState | None]]) -> list[Scored | Exception]:
        """Scores of checked requests, or why one has none; what is wrong with a request touches no other."""
        if self.reads_histories:
            found = self._histories(asked)
        else:
            way = self._table if self.kind == "table" else self._impressions
            with torch.inference_mode():
                found = isolated(way, [request for request, _ in asked])
        return [one if isinstance(one, Exception) else _finite(one) for one in found]

    def _table(self, requests: Sequence[dict[str, Any]]) -> list[Scored]:
        rows = [request for request in requests if "rows" in request]
        scored = iter(self._rows(rows) if rows else ())
        return [next(scored) if "rows" in request else self._candidates(request) for request in requests]

    def _candidates(self, request: dict[str, Any]) -> Scored:
        def score() -> Any:
            shared, rows = request["shared"], request["candidates"]
            names = {*shared, *rows[0]}
            shared = with_files([shared], self.joined, self.processor, names)[0]
            asked = Request([shared], with_files(rows, self.joined, self.processor, {*shared, *rows[0]}), 0)
            return self._scorer.score(asked, None)

        logits = _by_place("candidates", score)[0].numpy()
        return Scored(request, logits, self.processor.oov_counts, self)

    def _rows(self, requests: Sequence[dict[str, Any]]) -> list[Scored]:
        inputs, counts = [], []
        for request in requests:
            inputs.append(_by_place("rows", lambda: self._inputs(request["rows"])))  # noqa: B023
            counts.append(self.processor.oov_counts)
        joined = {key: torch.from_numpy(np.concatenate([one[key] for one in inputs])) for key in inputs[0]}
        ends = np.cumsum([len(one["rows"]) for one in requests])[:-1]
        logits = np.split(table_logits(self.model, joined, self.batch_size), ends)
        return [Scored(*one, count, self) for *one, count in zip(requests, logits, counts)]

    def _inputs(self, rows: Sequence[dict[str, Any]]) -> Any:
        return self.processor(with_files(rows, self.joined, self.processor, rows[0]), return_tensors="np")

    def _impressions(self, requests: Sequence[dict[str, Any]]) -> list[Scored]:
        own, counts = [], []
        for request in requests:
            self.answers.unknown = {}
            own.append(self.answers.inputs([("request", request, request["ads"])]))
            counts.append(self.answers.unknown)
        found: list[Any] = [None] * len(requests)
        sizes = [len(request["ads"]) for request in requests]
        order = sorted(range(len(requests)), key=lambda place: -sizes[place])
        for places in grid_batches(order, lambda place: sizes[place], self.answers.batch_size):
            logits = self.model(**self._joined([own[place] for place in places])).logits.float().cpu().numpy()
            for place, values in zip(places, logits):
                found[place] = Scored(requests[place], values[: sizes[place]], counts[place], self)
        return found

    def _joined(self, own: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Impressions of one user each as one batch, ads padded."""
        sizes = np.array([one["ad_mask"].shape[1] for one in own])
        users = {key: torch.cat([one[key] for one in own]) for key in own[0] if not key.startswith("ad_")}
        names = [key for key in own[0] if key.startswith("ad_") and key != "ad_mask"]
        ads, mask = padded_grids({key: torch.cat([one[key][0] for one in own]).numpy() for key in names}, sizes)
        batch = users | {key: torch.from_numpy(values) for key, values in (ads | {"ad_mask": mask}).items()}
        return {key: values.to(self.model.device) for key, values in batch.items()}

    def _histories(self, asked: Sequence[tuple[dict[str, Any], UserState | None]]) -> list[Scored | Exception]:
        ready = isolated(self._prepared, asked)
        found, shared, together = list(ready), [], []
        for place, (request, (_, state)) in enumerate(zip(ready, asked)):
            if not isinstance(request, Exception):
                alone = self._keeps and (state is not None or self._is_shared(request))
                (shared if alone else together).append(place)
        for run, places in ((self._together, together), (self._shared, shared)):
            for place, logits in zip(places, isolated(run, [(ready[place], asked[place][1]) for place in places])):
                found[place] = logits
        scored = [place for place, one in enumerate(found) if not isinstance(one, Exception)]
        counted = isolated(lambda some: [self.answers.unknown_in(asked[place][0]) for place in some], scored)
        for request, state in ((ready[place], asked[place][1]) for place in scored):
            self.answers.count_cut(request if state is None else {**request, "history": state.history})
        if self.answers.counts_cut and self.answers.cut_words():
            self.answers.counts_cut = False
            logger.warning(
                "a request lost behaviours to max_length (%d), the oldest of those that its rows would show; told once",
                self.processor.effective_max_length,
            )
        for place, count in zip(scored, counted):
            found[place] = (
                count if isinstance(count, Exception) else Scored(asked[place][0], found[place], count, self)
            )
        return found

    def _is_shared(self, request: Mapping[str, Any]) -> bool:
        return self._keeps and len(request["candidates"]) >= self.answers.many()

    def _prepared(self, asked: Sequence[tuple[dict[str, Any], UserState | None]]) -> list[dict[str, Any]]:
        """With the statistics of the candidates, and the history of states that are not scored by themselves."""
        kept = [(state, request["candidates"], request["time"]) for request, state in asked if state is not None]
        filled = iter(UserState.filled(kept))
        inline = iter(self.answers.prepare([request for request, state in asked if state is None]))
        prepared = []
        for request, state in asked:
            if state is None:
                prepared.append(next(inline))
                continue
            history = {} if self._keeps else {"history": state.history}
            prepared.append({**request, **history, "candidates": next(filled)})
        return prepared

    def _together(self, asked: Sequence[tuple[dict[str, Any], UserState | None]]) -> list[np.ndarray]:
        return self.answers.together([("request", request) for request, _ in asked])

    def _shared(self, asked: Sequence[tuple[dict[str, Any], UserState | None]]) -> list[np.ndarray]:
        wanted, most = [], self.answers.max_tokens
        for request, state in asked:
            history = request["history"] if state is None else state.history
            candidates, time = request["candidates"], request["time"]
            cosines = self.answers.similarity(history, candidates)
            if state is None:
                wanted.append((Request(history, candidates, time, cosines, most), None))
            else:
                wanted.append(state.request(candidates, time, similarity=cosines, max_tokens=most, is_filled=True))
        found = self._scorer.score_many(wanted)
        for (_, state), (_, encoded, reencoded) in zip(asked, found):
            if state is not None:
                state.keep(encoded, reencoded)
        return [logits.numpy() for logits, _, _ in found]

    def unknown_events(self, events: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
        """By name how many values of behaviours were read, and how many of them unknown."""
        return self.answers.unknown_in({"history": events, "candidates": []})


def _by_place(name: str, read: Callable[[], R]) -> R:
    """`read` a request's rows, which errors call by their places in it."""
    try:
        return read()
    except ValueError as error:
        text = str(error).removeprefix(f"{name}: ")
        raise ValueError(by_place(text, None if text.startswith("shared: ") else name)) from error


def _finite(scored: Scored) -> Scored | ValueError:
    lost = without_score(scored.logits)
    if not len(lost):
        return scored
    name = next(key for key in ("candidates", "rows", "ads") if key in scored.request)
    return no_score(f"request: {name}[{lost[0]}]")


def unknown_share(counts: Mapping[str, Mapping[str, int]]) -> float:
    """Of the values that were there, over all names, the unknown ones."""
    there = sum(map(num_present, counts.values()))
    return sum(own["unknown"] for own in counts.values()) / there if there else 0.0


def _length(entry: Mapping[str, Any]) -> int:
    return len(entry.get("text") or "") // _LETTERS + 1


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the address, and does not listen yet: who asks is refused until there is somebody to answer."""
    address = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        address.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address.bind((host, port))
    except OSError as error:
        address.close()
        raise OSError(f"--host {host} --port {port}: cannot listen there: {error}") from error
    return address
