"""`lmctr predict` for runs that read event sequences: requests of items by their ids.

A request is one JSON object per line:

    {"history": [{"item": 318, "behavior": "like", "scenario": "home", "time": 1700000000}, ...],
     "candidates": [296, {"item": 47, "scenario": "search"}], "scenario": "home", "time": 1700100000}

`history` is the user's events, oldest first; `behavior` and `scenario` are names (or codes) of the run's log. A candidate (or the one `target`)
is an item's id, or an object with `item` and, where it differs from the request's, `scenario` and `time`. `user` holds the user's features
where the run has such. Several tasks: `logits` and `probabilities` are objects by task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from lmctr.cli.predict import REQUEST_KEYS, parse_request

if TYPE_CHECKING:
    import numpy as np

    from lmctr.cli.runs import RunFolder

_OF_CANDIDATES = ("scenario", "user")


def parse_event_request(line: str, where: str) -> dict[str, Any]:
    """One line of input as a checked request with `history`, `time`, `candidates` (dicts) and `single`.

    Raises:
        ValueError: no JSON object, unknown or missing keys, values of the wrong type; starts with `where`.
    """
    request = parse_request(line, where, _candidate, (*REQUEST_KEYS, *_OF_CANDIDATES))
    common = {key: request[key] for key in _OF_CANDIDATES if key in request}
    request["candidates"] = [{**common, **candidate} for candidate in request["candidates"]]
    return request


def _candidate(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value  # the processor checks it
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return {"item": value}
    raise ValueError(f'{where}: a candidate is the id of an item, or an object with "item"; got {value!r}')


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


class EventScorer:
    """Scores requests with the model and processor of a run, several requests per forward pass.

    Candidates of a request that share a time are one row of the model; so each has the logit of a row of its own.

    Args:
        folder: a finished run.
        batch_size: candidates per forward pass, padding included.
        device: torch device, default: cuda where there is one.
    """

    def __init__(self, folder: RunFolder, batch_size: int, device: str | None = None):
        import torch
        import transformers

        from lmctr.hub.loading import load_run

        transformers.utils.logging.disable_progress_bar()
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        model, self.processor = load_run(folder.path)
        self.model = model.eval().to(self.device)
        self.batch_size = batch_size

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
            request = parse_event_request(line, f"{name}, line {number}")
            waiting.append((number, request))
            count += len(request["candidates"])
            if count >= 8 * self.batch_size:  # enough rows to sort by length
                yield from self._score(waiting, name)
                waiting, count = [], 0
        yield from self._score(waiting, name)

    def _score(self, waiting: list[tuple[int, dict[str, Any]]], name: str) -> Iterator[dict[str, Any]]:
        import numpy as np

        rows = [row for place in range(len(waiting)) for row in self._rows(place, waiting[place][1])]
        rows.sort(key=lambda row: (-len(waiting[row[0]][1]["history"]), -len(row[1])))
        tasks = self.processor.tasks
        found: list[dict[int, np.ndarray]] = [{} for _ in waiting]
        for batch in self._batches(rows):
            logits = self._forward([(waiting[place], chosen) for place, chosen in batch], name)
            for (place, chosen), values in zip(batch, logits):
                found[place] |= dict(zip(chosen, values))  # the rest is padding
        for (_, request), values in zip(waiting, found):
            ordered = np.stack([values[place] for place in range(len(values))])
            yield answer_of(request, ordered, tasks)

    def _rows(self, place: int, request: Mapping[str, Any]) -> list[tuple[int, list[int]]]:
        """Candidates of one time, at most `batch_size` of them, by their numbers."""
        times: dict[Any, list[int]] = {}
        for number, candidate in enumerate(request["candidates"]):
            times.setdefault(str(candidate.get("time")), []).append(number)
        size = self.batch_size
        return [
            (place, chosen[start : start + size]) for chosen in times.values() for start in range(0, len(chosen), size)
        ]

    def _batches(self, rows: list[tuple[int, list[int]]]) -> Iterator[list[tuple[int, list[int]]]]:
        batch: list[tuple[int, list[int]]] = []
        widest = 0
        for row in rows:
            widest = max(widest, len(row[1]))
            if batch and widest * (len(batch) + 1) > self.batch_size:
                yield batch
                batch, widest = [], len(row[1])
            batch.append(row)
        if batch:
            yield batch

    def _forward(self, rows: list[tuple[tuple[int, dict[str, Any]], list[int]]], name: str) -> np.ndarray:
        import torch

        try:
            batch = self._process(rows)
        except ValueError:
            for row in rows:  # one by one, to name the line
                try:
                    self._process([row])
                except ValueError as error:
                    raise ValueError(f"{name}, line {row[0][0]}: {_in_words(str(error))}") from error
            raise
        with torch.inference_mode():
            return self.model(**batch.to(self.device)).logits.float().cpu().numpy()

    def _process(self, rows: list[tuple[tuple[int, dict[str, Any]], list[int]]]) -> Any:
        chosen = [[request["candidates"][number] for number in numbers] for (_, request), numbers in rows]
        options: dict[str, Any] = {}
        if self.processor.user_feature_names:
            options["users"] = [self._user(candidates) for candidates in chosen]
        if self.processor.statistics:
            width = max(len(candidates) for candidates in chosen)
            options["statistics"] = [self._statistics(candidates, width) for candidates in chosen]
        left_out = ("user", "statistics") if options else ()
        return self.processor(
            histories=[request["history"] for (_, request), _ in rows],
            candidates=[
                [{key: value for key, value in entry.items() if key not in left_out} for entry in candidates]
                for candidates in chosen
            ],
            times=[request["time"] for (_, request), _ in rows],
            **options,
        )

    def _user(self, candidates: list[dict[str, Any]]) -> Mapping[str, Any]:
        users = [entry.get("user") for entry in candidates]
        if not isinstance(users[0], dict) or any(user != users[0] for user in users):
            raise ValueError(f"the request needs one 'user' with {', '.join(self.processor.user_feature_names)}")
        return users[0]

    def _statistics(self, candidates: list[dict[str, Any]], width: int) -> list[list[float]]:
        names = self.processor.statistics
        for place, entry in enumerate(candidates):
            if not isinstance(entry.get("statistics"), list) or len(entry["statistics"]) != len(names):
                raise ValueError(f"candidate {place} needs 'statistics', a list of {', '.join(names)}")
        missing = [[0.0] * len(names)] * (width - len(candidates))
        return [entry["statistics"] for entry in candidates] + missing


def _in_words(error: str) -> str:
    """The processor's message about its only row, as one about the request."""
    return error.replace("histories: row 0, event", "history: event").replace("candidates: row 0, ", "candidates: ")
