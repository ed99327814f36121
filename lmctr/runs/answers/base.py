"""What answers to all kinds of requests share: several requests per forward pass, in order, and what was unknown in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from lmctr.data.features.transform import add_counts

__all__ = ["Answers", "Request", "grid_batches", "process_rows", "unknown_words"]

Request = tuple[str, dict[str, Any]]
"""Where a request stands, for messages, and the request."""
Row = TypeVar("Row")


class Answers(ABC):
    """Scores requests with a model and its processor.

    Args:
        model: a model with its CTR head, in evaluation mode. processor: its processor.
        batch_size: candidates per forward pass; default: the kind's own.

    Attributes:
        unknown: what was unknown to the processor so far: "values" and "unknown" by the name of what was counted.
        reason: why lines were scored on their own, where some were.
        tasks: what the logits of a candidate are of.
    """

    default_batch_size: ClassVar[int] = 64
    batches_at_a_time: ClassVar[int] = 8  # so that there is something to sort by length
    candidates_key: ClassVar[str] = "candidates"
    tasks: tuple[str, ...] = ("label",)

    def __init__(self, model: torch.nn.Module, processor: Any, batch_size: int | None = None):
        self.model, self.processor = model, processor
        self.batch_size = batch_size or self.default_batch_size
        self.unknown: dict[str, dict[str, int]] = {}
        self.reason: str | None = None

    @abstractmethod
    def check(self, request: Any, where: str) -> dict[str, Any]:
        """The request as the other methods take it; raises `ValueError` that starts with `where`."""

    @abstractmethod
    def together(self, requests: Sequence[Request]) -> list[np.ndarray]:
        """(C,) or (C, T) logits of each request, several of them per forward pass."""

    def goes_alone(self, request: dict[str, Any]) -> bool:
        """Whether the next request is scored by `alone`."""
        return False

    def alone(self, request: dict[str, Any]) -> np.ndarray:
        """(C,) or (C, T) logits of one request."""
        raise NotImplementedError

    def unknown_in(self, request: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Counts of what the processor did not know in a request that was scored, as `unknown` has them."""
        return {}

    def scored(self, requests: Iterable[tuple[str, Any]]) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """Each request and its logits, in order; holds a few batches at a time.

        Raises:
            ValueError: a request that is not valid; starts with where it stands.
        """
        waiting: list[Request] = []
        done: dict[int, np.ndarray] = {}
        count = 0
        for where, given in requests:
            request = self.check(given, where)
            if self.goes_alone(request):
                try:
                    done[len(waiting)] = self.alone(request)
                except ValueError as error:
                    raise ValueError(f"{where}: {error}") from error
            waiting.append((where, request))
            count += len(request[self.candidates_key])
            if len(done) == len(waiting) or count >= self.batches_at_a_time * self.batch_size:
                yield from self._finish(waiting, done)
                waiting, done, count = [], {}, 0
        yield from self._finish(waiting, done)

    def _finish(
        self, waiting: list[Request], done: dict[int, np.ndarray]
    ) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        places = [place for place in range(len(waiting)) if place not in done]
        if places:
            done = done | dict(zip(places, self.together([waiting[place] for place in places])))
        for place, (_, request) in enumerate(waiting):
            self.unknown = add_counts([self.unknown, self.unknown_in(request)])
            yield request, done[place]

    def forward(self, batch: Any) -> np.ndarray:
        """The model's logits of a batch, float32."""
        with torch.inference_mode():
            return self.model(**batch.to(self.model.device)).logits.float().cpu().numpy()


def unknown_words(counts: dict[str, dict[str, int]]) -> str:
    """The share of unknown values for the closing line of `lmctr predict`; nothing where nothing was counted."""
    shares = {name: entry["unknown"] / entry["values"] for name, entry in counts.items() if entry["unknown"]}
    if not shares:
        return ", no unknown values" if counts else ""
    return "; unknown values: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def process_rows(
    process: Callable[[list[Row]], Any],
    rows: list[Row],
    where: Callable[[Row], str],
    in_words: Callable[[str], str] = str,
) -> Any:
    """`process(rows)`; where it refuses them, the message names the first row that it refuses alone.

    Args:
        process: makes a batch of the model of some rows, or raises ValueError.
        rows: the requests, or parts of them.
        where: names a row.
        in_words: turns the message about a batch of one row into one about the request.
    """
    try:
        return process(rows)
    except ValueError:
        for row in rows:
            try:
                process([row])
            except ValueError as error:
                raise ValueError(f"{where(row)}: {in_words(str(error))}") from error
        raise


def grid_batches(rows: Iterable[Row], width: Callable[[Row], int], size: int) -> Iterator[list[Row]]:
    """Batches of consecutive rows that have, padded to the widest, at most `size` places; one row at least."""
    batch: list[Row] = []
    widest = 0
    for row in rows:
        widest = max(widest, width(row))
        if batch and widest * (len(batch) + 1) > size:
            yield batch
            batch, widest = [], width(row)
        batch.append(row)
    if batch:
        yield batch
