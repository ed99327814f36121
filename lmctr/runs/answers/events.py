"""`lmctr predict` for runs that read event sequences: requests of items by their ids.

A request is one JSON object per line:

    {"history": [{"item": 318, "behavior": "like", "scenario": "home", "time": 1700000000}, ...],
     "candidates": [296, {"item": 47, "scenario": "search"}], "scenario": "home", "time": 1700100000}

`history` is the user's events, oldest first; `behavior` and `scenario` are names (or codes) of the run's log. A candidate (or the one `target`)
is an item's id, or an object with `item` and, where it differs from the request's, `scenario` and `time`. `user` holds the user's features
where the run has such. Several tasks: `logits` and `probabilities` are objects by task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lmctr.runs.answers.common import RequestScorer, answer_of, process_lines
from lmctr.runs.answers.predict import REQUEST_KEYS, parse_request

if TYPE_CHECKING:
    import numpy as np


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


class EventScorer(RequestScorer):
    """Scores requests of items; a forward pass has at most `batch_size` candidates, padding included.

    Candidates of a request that share a time are one row of the model; so each has the logit of a row of its own.
    """

    def _parse(self, line: str, where: str) -> dict[str, Any]:
        return parse_event_request(line, where)

    def _score(self, waiting: list[tuple[int, dict[str, Any]]], name: str) -> Iterator[dict[str, Any]]:
        import numpy as np

        rows = [row for place in range(len(waiting)) for row in self._rows(place, waiting[place][1])]
        rows.sort(key=lambda row: (-len(waiting[row[0]][1]["history"]), -len(row[1])))
        tasks = self.processor.tasks
        found: list[dict[int, np.ndarray]] = [{} for _ in waiting]
        for batch in self._batches(rows):
            of_batch = [(waiting[place], chosen) for place, chosen in batch]
            inputs = process_lines(self._process, of_batch, lambda row: row[0][0], name, _in_words)
            logits = self._forward(inputs)
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
