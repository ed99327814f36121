"""The engine of a scoring server, which knows no protocol: requests in, futures of scores out; kept states; models swapped in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from lmctr.serving import Batcher, KeptStates
from lmctr.serving.saved_states import read_states, write_states
from lmctr.utils.suggest import refuse_unknown

from .served import Scored, ServedModel, unknown_share

_OF_EVENTS = ("events", "start", "num_seen")
_LONGEST_ID = 256


class UnknownUser(LookupError):
    """There is no kept state of a user."""

    def __init__(self, user: str):
        super().__init__(
            f"no state is kept of the user {user!r}: none was started, or it expired or gave way to others; send the whole history, "
            'with the scores or as events with "start": true'
        )


class Conflict(ValueError):
    """A state has seen another number of behaviours than the caller believes."""


class Appended(NamedTuple):
    """What became of behaviours: seen in all, still kept, positions encoded again; whether the state found a place in memory."""

    user: str
    num_seen: int
    num_kept: int
    reencoded: int
    kept: bool
    counts: Mapping[str, Mapping[str, int]]
    served: ServedModel

    def answer(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "user_id": self.user,
            "num_seen": self.num_seen,
            "num_kept": self.num_kept,
            "reencoded": self.reencoded,
            "kept": self.kept,
            "unknown_share": unknown_share(self.counts),
            "model_version": self.served.version,
            "processor_fingerprint": self.served.fingerprint,
        }


class _Events(NamedTuple):
    user: str
    events: list[Any]
    start: bool
    num_seen: int | None


class _Score(NamedTuple):
    request: dict[str, Any]
    user: str | None


class Engine:
    """Scores requests of many callers at a time with one model; those of one kept state one after the other.

    Args:
        served: the model. workers: threads that score, each with the threads of torch; so many batches are in work at a time.
        max_positions, max_wait, max_queue, on_batch: of the [`~lmctr.serving.Batcher`].
        max_candidates, max_history: most candidates, rows or ads, and behaviours of a request, which nothing ends once it is in work.
        max_state_bytes, time_to_live: of the kept states.

    Scores do not depend on what else is scored at the time: probabilities to 1e-5 in float32, logits to 1e-5 of a request's largest.

    Example: an adapter to another server is

    ```python
    >>> engine = Engine(ServedModel("runs/din"))
    >>> engine.score({"history": [], "candidates": [318, 296], "time": 1700000000}).result().answer()["probabilities"]
    ```
    """

    def __init__(
        self,
        served: ServedModel,
        *,
        workers: int = 1,
        max_positions: int = 8192,
        max_wait: float = 0.002,
        max_queue: int = 256,
        max_candidates: int = 10_000,
        max_history: int = 10_000,
        max_state_bytes: int = 1 << 30,
        time_to_live: float | None = None,
        on_batch: Callable[[int, int, float], None] | None = None,
    ):
        self.served, self.workers, self.max_candidates, self.max_history = served, workers, max_candidates, max_history
        self._idle = served.twins(workers)
        self.states = KeptStates(max_state_bytes, time_to_live)
        self.swaps = {"done": 0, "refused": 0}
        self.batcher = Batcher(
            self._run,
            workers=workers,
            max_positions=max_positions,
            max_wait=max_wait,
            max_queue=max_queue,
            on_batch=on_batch,
        )

    def score(self, body: Mapping[str, Any], deadline: float = math.inf) -> Future[Scored]:
        """The scores of a request: as a line of `lmctr predict`, for tables `{"rows": [...]}`, or
        `{"shared": {...}, "candidates": [...]}` where candidates have columns in common; with `user_id` in the place of the history
        for a kept state. `deadline`: of `time.monotonic()`.

        Raises:
            ValueError: a request that is not valid, as far as that is seen without the processor.
            QueueFull, Draining: see [`~lmctr.serving.batching`].

        The future raises `ValueError` (what the processor refuses), [`UnknownUser`], `DeadlinePassed`.
        """
        body = dict(body)
        user = _user_id(body.pop("user_id")) if "user_id" in body else None
        served = self.served
        request = served.check(body, has_state=user is not None)
        name = next(key for key in ("candidates", "rows", "ads") if key in request)
        if len(request[name]) > self.max_candidates:
            raise ValueError(
                f"request: {len(request[name]):,} {name}, and this server takes at most {self.max_candidates:,} at a time; send them in parts"
            )
        self._check_length(request.get("history", ()))
        return self.batcher.submit(_Score(request, user), served.positions(request), deadline, key=user)

    def add_events(self, user: str, body: Mapping[str, Any], deadline: float = math.inf) -> Future[Appended]:
        """Append behaviours to the kept state of a user: `{"events": [...]}`; with `"start": true` a new state of these begins, in the place
        of an earlier one. `"num_seen"`: how many behaviours the state must have seen before, so that none is added twice.

        Raises:
            ValueError, QueueFull, Draining: as [`score`].

        The future raises [`UnknownUser`] and [`Conflict`] besides.
        """
        refuse_unknown(body, _OF_EVENTS, "the request", "request: ")
        events, start, seen = body.get("events"), body.get("start", False), body.get("num_seen")
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise ValueError("request: events must be a list of behaviours, oldest first, each an object")
        self._check_length(events)
        if not isinstance(start, bool):
            raise ValueError(f"request: start must be true or false, got {start!r}")
        if seen is not None and (isinstance(seen, bool) or not isinstance(seen, int)):
            raise ValueError(f"request: num_seen must be a whole number, got {seen!r}")
        if not self.served.reads_histories:
            raise ValueError(f"this model reads {self.served.kind}, no histories; it keeps no state of a user")
        work = _Events(_user_id(user), events, start, seen)
        return self.batcher.submit(work, len(events) + 1, deadline, key=work.user)

    def _check_length(self, behaviors: Sequence[Any]) -> None:
        if len(behaviors) > self.max_history:
            raise ValueError(
                f"request: {len(behaviors):,} behaviours, and this server takes at most {self.max_history:,} at a time; keep the user's "
                "state, and append them in parts by POST /v1/users/{id}/events"
            )

    def swap(self, served: ServedModel) -> tuple[int, int]:
        """Go on with another model, between two batches; kept states go over where that is exact (`UserState.moved_to`), each before its next use,
        and the others in this thread: requests wait for the state of their own user only.

        Returns:
            How many states are kept, and how many went.

        Raises:
            ValueError: a model of another kind of input; the earlier one stays.
        """
        if served.kind != self.served.kind or served.tasks != self.served.tasks:
            raise ValueError(
                f"{served.name} reads {served.kind} (tasks {', '.join(served.tasks)}), the model that is served {self.served.kind} "
                f"({', '.join(self.served.tasks)}); start another server for it"
            )
        self.batcher.submit(served, alone=True).result()
        gone = self.states.finish_move()
        self.swaps["done"] += 1
        return len(self.states), gone

    def restore(self, path: Path) -> int:
        """Take up the states that [`save`] wrote; they go over to this model as at a [`swap`], `states.finish_move` does those that nobody uses. To be
        called before the first request. Returns how many there are.

        Raises:
            ValueError: no file of states of this kind of model, or one that is damaged.
        """
        for user, state, idle in read_states(path, self.served.kind):
            self.states.put(user, state, idle)
        self._begin_move(self.served)
        return len(self.states)

    def save(self, path: Path) -> tuple[int, int]:
        """Write the kept states, after [`close`]. Returns how many, and how many not, because work for their user had not ended."""
        busy, states = self.batcher.unfinished(), self.states.all()
        done = [entry for entry in states if entry[0] not in busy]
        return write_states(path, self.served.kind, done), len(states) - len(done)

    def last_time(self, user: str) -> float | None:
        """The time of the last behaviour of a kept state; None: there is none."""
        state = self.states.get(user, counted=False)
        return state.last_time if state is not None else None

    def close(self, timeout: float | None = None) -> bool:
        """Take no more requests, answer those that wait, and stop; see `Batcher.close`."""
        return self.batcher.close(timeout)

    # ---- in the workers' threads ----

    def _run(self, works: list[Any]) -> list[Any]:
        if isinstance(works[0], ServedModel):
            self._swap(works[0])
            return [None]
        served = self._idle.pop()
        try:
            return self._done(works, served)
        finally:
            self._idle.append(served)

    def _done(self, works: list[Any], served: ServedModel) -> list[Any]:
        found: list[Any] = [None] * len(works)
        scores: list[int] = []
        for place, work in enumerate(works):
            if isinstance(work, _Score):
                scores.append(place)
                continue
            self._score(works, scores, found, served)  # in the order in which they came
            scores = []
            try:
                found[place] = self._append(work, served)
            except Exception as error:
                found[place] = error
        self._score(works, scores, found, served)
        return found

    def _score(self, works: list[Any], places: list[int], found: list[Any], served: ServedModel) -> None:
        asked, states = [], []
        for place in places:
            request, user = works[place]
            state = None if user is None else self.states.get(user)
            if user is not None and state is None:
                found[place] = UnknownUser(user)
            else:
                asked.append(place)
                states.append((request, state))
        for place, scored in zip(asked, served.score(states)):
            found[place] = scored
            user = works[place].user
            if user is not None:
                self.states.grown(user)

    def _append(self, work: _Events, served: ServedModel) -> Appended:
        state = None if work.start else self.states.get(work.user)
        if state is None and not work.start:
            raise UnknownUser(work.user)
        seen = 0 if state is None else state.num_seen
        if work.num_seen is not None and work.num_seen != seen:
            raise Conflict(f"the state of the user {work.user!r} has seen {seen} behaviours, not {work.num_seen}")
        state = served.new_state() if state is None else state
        state.extend(work.events, name="events")
        kept = self.states.put(work.user, state)
        unknown = served.unknown_events(work.events)
        return Appended(work.user, state.num_seen, state.num_kept, state.reencoded, kept, unknown, served)

    def _swap(self, served: ServedModel) -> None:
        self._begin_move(served)
        self.served, self._idle = served, served.twins(self.workers)

    def _begin_move(self, served: ServedModel) -> None:
        self.states.begin_move(lambda state: state.moved_to(served.model, served.processor, served.items))


def _user_id(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ValueError(f"request: user_id must be a text or a whole number, got {value!r}")
    user = str(value)
    if len(user) > _LONGEST_ID or "\ufffd" in user:
        raise ValueError(
            f"request: user_id must be UTF-8 text of at most {_LONGEST_ID} characters, got {len(user)}: {user!r:.80}"
        )
    return user
