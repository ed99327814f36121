"""What the scorers of `lmctr predict` share: the model of a run, lines in, answers out."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, TYPE_CHECKING, Any

from lmctr.utils.suggest import unknown_key_message

if TYPE_CHECKING:
    import numpy as np

    from lmctr.runs.folder import RunFolder


def load_for_scoring(folder: RunFolder, device: str | None = None) -> tuple[Any, Any]:
    """Model, ready to score on `device` (default: cuda where there is one), and processor of a finished run."""
    import torch
    import transformers

    from lmctr.runs.loading import load_run

    transformers.utils.logging.disable_progress_bar()
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model, processor = load_run(folder.path)
    return model.eval().to(place), processor


def load_retriever(folder: RunFolder, processor: Any) -> Any:
    """The run's `TextRetriever` where its processor needs similarities and the folder holds one, else None."""
    if not getattr(processor, "needs_similarity", False) or not folder.retriever.is_dir():
        return None
    from lmctr.data.logs.retrieval import TextRetriever

    return TextRetriever.from_pretrained(folder.retriever)


def open_text(path: str, mode: str) -> AbstractContextManager[IO[str]]:
    """A text file that is closed at the end, or standard input or output for "-", which stay open."""
    if path == "-":
        return nullcontext(sys.stdin if mode == "r" else sys.stdout)
    return open(path, mode, encoding="utf-8")


def name_of_input(path: str) -> str:
    """A file or standard input, for messages."""
    return "standard input" if path == "-" else path


def write_answers(answers: Iterable[Mapping[str, Any]], path: str) -> int:
    """Write one JSON object per line, to a file or standard output; returns their number."""
    count = 0
    with open_text(path, "w") as target:
        for answer in answers:
            target.write(json.dumps(answer, ensure_ascii=False) + "\n")
            count += 1
        target.flush()
    return count


def read_object(line: str, where: str, keys: Sequence[str]) -> dict[str, Any]:
    """One line of input as an object with no keys but `keys`.

    Raises:
        ValueError: anything else; starts with `where`.
    """
    try:
        request = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(request, dict):
        raise ValueError(f"{where}: a request is a JSON object, got {type(request).__name__}")
    for key in request:
        if key not in keys:
            raise ValueError(f"{where}: {unknown_key_message(key, keys, 'the request')}")
    return request


def answer_of(request: Mapping[str, Any], logits: np.ndarray, tasks: Sequence[str] = ("label",)) -> dict[str, Any]:
    """The answer to a request from its (C,) logits, or (C, T) of several tasks."""
    import numpy as np

    values = logits.astype(np.float64)
    answer = {"id": request["id"]} if "id" in request else {}
    for single, several, found in (
        ("logit", "logits", values),
        ("probability", "probabilities", 1.0 / (1.0 + np.exp(-values))),
    ):
        rows = found.tolist()
        if values.ndim == 1:
            answer |= {single: rows[0]} if request["single"] else {several: rows}
        elif request["single"]:
            answer[single] = dict(zip(tasks, rows[0]))
        else:
            answer[several] = {task: [row[place] for row in rows] for place, task in enumerate(tasks)}
    return answer


def process_lines(
    process: Callable[[list[Any]], Any],
    rows: list[Any],
    number_of: Callable[[Any], int],
    name: str,
    in_words: Callable[[str], str] = str,
) -> Any:
    """`process(rows)`; where it refuses them, the message names the first line that it refuses alone.

    Args:
        process: makes a batch of the model of some rows, or raises ValueError.
        rows: the requests, or parts of them.
        number_of: the line of a row.
        name: the input, for messages.
        in_words: turns the message about a batch of one row into one about the request.
    """
    try:
        return process(rows)
    except ValueError:
        for row in rows:
            try:
                process([row])
            except ValueError as error:
                raise ValueError(f"{name}, line {number_of(row)}: {in_words(str(error))}") from error
        raise


class RequestScorer(ABC):
    """Scores requests with the model and processor of a run, several requests per forward pass.

    Args:
        folder: a finished run.
        batch_size: candidates per forward pass.
        device: torch device, default: cuda where there is one.
    """

    def __init__(self, folder: RunFolder, batch_size: int, device: str | None = None):
        self.model, self.processor = load_for_scoring(folder, device)
        self.batch_size = batch_size

    @abstractmethod
    def _parse(self, line: str, where: str) -> dict[str, Any]:
        """A line as a checked request with `candidates`; raises ValueError that starts with `where`."""

    @abstractmethod
    def _score(self, waiting: list[tuple[int, dict[str, Any]]], name: str) -> Iterator[dict[str, Any]]:
        """Answers to requests, which come with the numbers of their lines."""

    def answers(self, lines: IO[str], name: str) -> Iterator[dict[str, Any]]:
        """Answers in the order of the lines; blank lines are skipped.

        Raises:
            ValueError: a line that is no valid request; the message names the file and the line.
        """
        waiting: list[tuple[int, dict[str, Any]]] = []
        count = 0
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            request = self._parse(line, f"{name}, line {number}")
            waiting.append((number, request))
            count += len(request["candidates"])
            if count >= 8 * self.batch_size:  # enough rows to sort by length
                yield from self._score(waiting, name)
                waiting, count = [], 0
        if waiting:
            yield from self._score(waiting, name)

    def _forward(self, batch: Any) -> np.ndarray:
        import torch

        with torch.inference_mode():
            return self.model(**batch.to(self.model.device)).logits.float().cpu().numpy()
