"""What answers to all kinds of requests share: several requests per forward pass, in order, and what was unknown in them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from lmctr.data.features.transform import add_counts
from lmctr.utils.outside import checked
from lmctr.utils.suggest import errors_of

Request = tuple[str, dict[str, Any]]
"""Where a request stands, for messages, and the request."""
Row = tuple[str, dict[str, Any], list[Any]]
"""A row of a batch: where the request stands, the request, and some of its candidates."""
T, R = TypeVar("T"), TypeVar("R")
_ROW = re.compile(r"(?:^|(?<=\()|(?<=; ))row (\d+): ")  # at the start, or as `Rows.refuse` lists values


class Answers(ABC):
    """Scores requests with a model and its processor.

    Args:
        model: a model with its CTR head, in evaluation mode. processor: its processor.
        batch_size: candidates per forward pass; default: the kind's own.

    Attributes:
        check: the request as the other methods take it, from what was given and where; raises `ValueError` that starts with where.
        unknown: what was unknown to the processor so far: "values" and "unknown" by the name of what was counted. examples: of it.
        reason: why lines were scored on their own, where some were.
        last: the request before, as it was prepared.
        tasks: what the logits of a candidate are of.
        skips: whether a request that cannot be scored is given back with its "error", in place of an error.
        counts_cut: whether it counts what `cut_words` tells.
    """

    skips: bool = False
    last: dict[str, Any] | None = None
    counts_cut: bool = True
    default_batch_size: ClassVar[int] = 64
    batches_at_a_time: ClassVar[int] = 8  # so that there is something to sort by length
    candidates_key: ClassVar[str] = "candidates"
    check: ClassVar[Callable[[Any, str], dict[str, Any]]]
    tasks: tuple[str, ...] = ("label",)

    def __init__(self, model: torch.nn.Module, processor: Any, batch_size: int | None = None):
        self.model, self.processor = model, processor
        self.batch_size = batch_size or self.default_batch_size
        self.unknown: dict[str, dict[str, int]] = {}
        self.examples: dict[str, list[str]] = {}
        self.reason: str | None = None

    @abstractmethod
    def batches(self, requests: Sequence[Request]) -> Iterable[list[tuple[int, Sequence[int]]]]:
        """The candidates of several requests as rows of batches: the number of the request, and those of some of its candidates."""

    @abstractmethod
    def process(self, rows: list[Row]) -> Any:
        """A batch of the model; raises `ValueError` for what the processor refuses."""

    def in_words(self, error: str, row: Row) -> str:
        """The processor's message about a batch of one row, as one about its request."""
        return error

    def together(self, requests: Sequence[Request]) -> list[np.ndarray]:
        """(C,) or (C, T) logits of each request, several of them per forward pass."""
        found: dict[int, np.ndarray] = {}
        for batch in self.batches(requests):
            rows = []
            for place, numbers in batch:
                where, request = requests[place]
                rows.append((where, request, [request[self.candidates_key][number] for number in numbers]))
            inputs = self.inputs(rows).to(self.model.device)
            with torch.inference_mode():
                logits = self.model(**self.model.with_kept(inputs)).logits.float().cpu().numpy()
            if logits.ndim == 1:  # a candidate per row
                logits = logits[:, None]
            for (place, numbers), values in zip(batch, logits):
                count = len(requests[place][1][self.candidates_key])
                own = found.setdefault(place, np.empty((count, *values.shape[1:]), dtype=np.float32))
                own[list(numbers)] = values[: len(numbers)]  # the rest is padding
        return [found[place] for place in range(len(requests))]

    def inputs(self, rows: list[Row]) -> Any:
        """`process(rows)`; where it refuses them, the message names the request of the first row that it refuses alone."""
        try:
            return self.process(rows)
        except ValueError:
            for row in rows:
                try:
                    self.process([row])
                except ValueError as error:
                    raise ValueError(f"{row[0]}: {self.in_words(str(error), row)}") from error
            raise

    def prepare(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Checked requests with what the model reads besides, in the order in which requests come."""
        return list(requests)

    def goes_alone(self, request: dict[str, Any]) -> bool:
        """Whether the next request, behind `last`, is scored by `alone`."""
        return False

    def alone(self, request: dict[str, Any]) -> np.ndarray:
        """(C,) or (C, T) logits of one request."""
        raise NotImplementedError

    def unknown_in(self, request: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Counts of what the processor did not know in a request that was scored, as `unknown` has them."""
        return {}

    def cut_words(self) -> str:
        """What share of the requests so far the model read less of than was selected for it; nothing where none."""
        return ""

    def scored(self, requests: Iterable[tuple[str, Any]]) -> Iterator[tuple[dict[str, Any], np.ndarray | None]]:
        """Each request and its logits (None: it was skipped), in order; holds a few batches at a time.

        Raises:
            ValueError: a request that is not valid; starts with where it stands.
        """
        waiting: list[tuple[str, Any, dict[str, Any] | ValueError]] = []
        ready: list[Request] = []
        done: dict[int, np.ndarray | None] = {}
        count, is_held, requests = 0, False, iter(requests)
        while True:
            try:
                where, given = next(requests, (None, None))
            except ValueError:
                self._make_ready(waiting, ready, done)  # what is wrong with a request before it is told first
                raise
            has_ended = where is None
            if not has_ended:
                request = self._checked(given, where)
                waiting.append((where, given, request))
                if isinstance(request, ValueError):
                    is_held &= self.skips
                else:
                    count += len(request[self.candidates_key])
                    is_held = is_held or not self.goes_alone(request)
            if not has_ended and is_held and count < self.batches_at_a_time * self.batch_size:
                continue
            self._make_ready(waiting, ready, done)
            waiting, count = [], sum(len(request.get(self.candidates_key, ())) for _, request in ready)
            if has_ended or len(done) == len(ready) or count >= self.batches_at_a_time * self.batch_size:
                yield from self._finish(ready, done)
                ready, done, count, is_held = [], {}, 0, False
            if has_ended:
                return

    def _checked(self, given: Any, where: str) -> dict[str, Any] | ValueError:
        """A request as the other methods take it, or what is wrong with it."""
        try:
            if isinstance(given, ValueError):
                raise given
            return self.check(checked(given, where), where)
        except ValueError as error:
            return error

    def _make_ready(
        self,
        waiting: Sequence[tuple[str, Any, dict[str, Any] | ValueError]],
        ready: list[Request],
        done: dict[int, np.ndarray | None],
    ) -> None:
        """Prepare requests, and put them behind those that are `ready`; `done`: by place the logits of those that went alone (None: it was skipped)."""
        right = [request for _, _, request in waiting if not isinstance(request, ValueError)]
        prepared = iter(isolated(self.prepare, right))
        for where, given, request in waiting:
            try:
                if isinstance(request, ValueError):
                    raise request
                with errors_of(where):
                    if isinstance(request := next(prepared), Exception):
                        raise request
                    is_alone, self.last = self.goes_alone(request), request
                    if is_alone:
                        done[len(ready)] = self.alone(request)
            except ValueError as error:
                if not self.skips:
                    raise
                request, done[len(ready)] = _failed(given, error), None
            ready.append((where, request))

    def _finish(
        self, waiting: list[Request], done: dict[int, np.ndarray | None]
    ) -> Iterator[tuple[dict[str, Any], np.ndarray | None]]:
        places = [place for place in range(len(waiting)) if place not in done]
        if places:
            done = done | dict(zip(places, self._together([waiting[place] for place in places])))
        for place, (where, request) in enumerate(waiting):
            logits = done[place]
            if isinstance(logits, np.ndarray) and len(lost := without_score(logits)):
                logits = no_score(f"{where}: {self._shown(request, int(lost[0]))}")
                if not self.skips:
                    raise logits
            if isinstance(logits, ValueError):
                request, logits = _failed(request, logits), None
            if logits is not None:
                self.unknown = add_counts([self.unknown, self.unknown_in(request)])
            yield request, logits

    def _shown(self, request: dict[str, Any], number: int) -> str:
        """What messages call a candidate of a request."""
        return "target" if request.get("single") else f"{self.candidates_key}[{number}]"

    def _together(self, requests: Sequence[Request]) -> list[np.ndarray | ValueError]:
        """`together`; where one of the requests is refused and may be skipped, each by itself."""
        try:
            return self.together(requests)
        except ValueError as error:
            if not self.skips:
                raise
            if len(requests) == 1:
                return [error]
            return [self._together([request])[0] for request in requests]


def isolated(run: Callable[[Sequence[T]], list[R]], asked: Sequence[T]) -> list[R | Exception]:
    """`run` of all; where it fails, of either half, so that a wrong one is found in a few more runs and harms no other."""
    if not asked:
        return []
    try:
        return run(asked)
    except Exception as error:
        if len(asked) == 1:
            return [error]
        half = len(asked) // 2
        return [*isolated(run, asked[:half]), *isolated(run, asked[half:])]


def _failed(request: Any, error: ValueError) -> dict[str, Any]:
    """What stands for a request that cannot be scored."""
    own = {"id": request["id"]} if isinstance(request, dict) and "id" in request else {}
    return own | {"error": str(error)}


def without_score(logits: np.ndarray) -> np.ndarray:
    """The rows of (N,) or (N, T) logits that have one which is no finite number."""
    return np.flatnonzero(~np.isfinite(logits).reshape(*logits.shape[:1], -1).all(axis=1) if logits.size else [])


def no_score(where: str) -> ValueError:
    """The error about a row, target or candidate whose logit is no finite number: its numbers ran over."""
    return ValueError(f"{where} gets no finite score; look for numbers out of all proportion")


def refuse_without_score(logits: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
    """The logits; raises `ValueError` where a row has none, by the words that `where` has for the first of them."""
    if len(lost := without_score(logits)):
        raise no_score(where(int(lost[0])))
    return logits


def by_place(error: str, name: str | None) -> str:
    """A message about rows, which processors count from 1, as one about the objects of a request's list: `name[0]` is the first. None: there
    is one object, whose place need not be said."""
    return _ROW.sub(lambda row: "" if name is None else f"{name}[{int(row[1]) - 1}]: ", error)


def moved_on(error: str, rows: int) -> str:
    """A message about rows of a block, as one about those of the stream in which `rows` stand before it."""
    return _ROW.sub(lambda row: f"row {int(row[1]) + rows}: ", error)


def unknown_words(counts: dict[str, dict[str, int]]) -> str:
    """The share of unknown values for the closing line of `lmctr predict`; nothing where nothing was counted."""
    shares = {name: entry["unknown"] / entry["values"] for name, entry in counts.items() if entry["unknown"]}
    if not shares:
        return ", no unknown values" if counts else ""
    return "; unknown values: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def grid_batches(rows: Iterable[T], width: Callable[[T], int], size: int) -> Iterator[list[T]]:
    """Batches of consecutive rows that have, padded to the widest, at most `size` places; one row at least."""
    batch: list[T] = []
    widest = 0
    for row in rows:
        widest = max(widest, width(row))
        if batch and widest * (len(batch) + 1) > size:
            yield batch
            batch, widest = [], width(row)
        batch.append(row)
    if batch:
        yield batch
