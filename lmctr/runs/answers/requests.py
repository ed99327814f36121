"""`lmctr predict RUN --requests FILE`: one user and many candidates per line, by `lmctr.serving.score`.

Lines and answers are those of `--input`. Each line is scored on its own, with the history encoded once where the model can
share it; a line whose history goes on from that of the line before takes over what was encoded there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lmctr.runs.answers.common import (
    answer_of,
    load_for_scoring,
    load_retriever,
    name_of_input,
    open_text,
    write_answers,
)
from lmctr.runs.answers.events import parse_event_request
from lmctr.runs.answers.predict import parse_request
from lmctr.runs.folder import open_run

if TYPE_CHECKING:
    import numpy as np

    from lmctr.serving import UserState

__all__ = ["RequestAnswers", "predict_requests"]


def predict_requests(args: argparse.Namespace) -> int:
    """Run `lmctr predict RUN --requests FILE`.

    Raises:
        ValueError: options of `--input`, a run whose model has no request scoring, a line that is no valid request.
    """
    for option, value in (("--batch_size", args.batch_size), ("--id-column", args.id_column)):
        if value is not None:
            raise ValueError(f"{option} goes with --input; with --requests, --max_tokens bounds a forward pass")
    if args.max_tokens < 1:
        raise ValueError(f"--max_tokens must be at least 1, got {args.max_tokens}")
    folder = open_run(args.run)
    with open_text(args.requests, "r") as source:
        answers = RequestAnswers(folder, args.max_tokens, args.device)
        count = write_answers(answers(source, name_of_input(args.requests)), args.output)
    print(f"{count} requests scored ({answers.reason})", file=sys.stderr)
    return 0


class RequestAnswers:
    """Answers requests with the model and processor of a run.

    Args:
        folder: a finished run.
        max_tokens: most positions of a forward pass.
        device: torch device, default: cuda where there is one.

    Raises:
        ValueError: a run whose model has no request scoring.
    """

    def __init__(self, folder: Any, max_tokens: int, device: str | None = None):
        from lmctr.serving import scorer_for

        self.model, self.processor = load_for_scoring(folder, device)
        scorer = scorer_for(self.model, self.processor)
        self.reason, self.keeps_states = scorer.reason, scorer.encoded_class is not None
        self.max_tokens = max_tokens
        self.retriever = load_retriever(folder, self.processor)
        self._state: UserState | None = None
        self._history: list[dict[str, Any]] = []

    def __call__(self, lines: Iterable[str], name: str) -> Iterator[dict[str, Any]]:
        """Answers in the order of the lines; blank lines are skipped.

        Raises:
            ValueError: a line that is no valid request; the message names the file and the line.
        """
        parse = parse_request if hasattr(self.processor, "tokenizer") else parse_event_request
        tasks = getattr(self.processor, "tasks", ("label",))
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{name}, line {number}"
            request = parse(line, where)
            try:
                logits = self._score(request)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
            yield answer_of(request, logits, tasks)

    def _score(self, request: Mapping[str, Any]) -> np.ndarray:
        from lmctr.serving import score

        history: Any = request["history"]
        if self.keeps_states:
            history = self._state_of(history)
        similarity = None
        if self.retriever is not None and not all("similarity" in entry for entry in request["history"]):
            texts = [entry.get("text") for entry in request["history"]]
            similarity = self.retriever.similarity([target["text"] for target in request["candidates"]], texts)
        return score(
            self.model,
            self.processor,
            history,
            request["candidates"],
            request["time"],
            similarity=similarity,
            max_tokens=self.max_tokens,
        ).numpy()

    def _state_of(self, history: list[dict[str, Any]]) -> UserState:
        """The state of the line before where this history goes on from it, else a new one."""
        from lmctr.serving import UserState

        old, self._history = self._history, history
        if self._state is not None and old and history[: len(old)] == old:
            self._state.extend(history[len(old) :])
        else:
            self._state = None  # so that a history that is refused leaves none behind
            self._state = UserState(self.model, self.processor, history)
        return self._state
