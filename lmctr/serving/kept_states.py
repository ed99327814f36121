"""User states that are kept between requests: bounded in memory, the least recently used go first, and none outlives its time."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from .saved_states import SavedState
from .user_state import UserState

_IDLE = 3.0  # times as long as the move of a state took, between two of them


@dataclass
class _Kept:
    state: UserState | SavedState
    num_bytes: int
    used: float


class KeptStates:
    """[`UserState`]s by the users' ids, for any number of threads; a state itself is one thread's at a time.

    Args:
        max_bytes: of all states together, as `UserState.num_bytes` counts them. A state that is larger by itself is not kept.
        time_to_live: seconds after its last use at which a state goes; None: it stays.
        clock: gives the seconds.

    Attributes:
        num_bytes: of all states now.
        counts: "hits" and "misses" of [`get`]; states that went: "memory", "expired", "model" (of another model, by [`begin_move`]).
    """

    def __init__(self, max_bytes: int, time_to_live: float | None = None, clock: Callable[[], float] = time.monotonic):
        self.max_bytes, self.time_to_live, self._clock = max_bytes, time_to_live, clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # the least recently used first
        self._unmoved: dict[str, None] = {}  # users whose states `begin_move` has left to go over
        self._moved: Callable[[UserState | SavedState], UserState | None] | None = None
        self._gone_before = 0
        self._lock = threading.RLock()
        self.num_bytes = 0
        self.counts: Counter[str] = Counter(dict.fromkeys(("hits", "misses", "memory", "expired", "model"), 0))

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, user: str, counted: bool = True) -> UserState | None:
        """The state of a user, which counts as used now; None where there is none. `counted`: among hits and misses."""
        with self._lock:
            self.expire()
            if user in self._unmoved:
                self._move(user)
            kept = self._kept.get(user)
            self.counts["misses" if kept is None else "hits"] += counted
            if kept is None:
                return None
            kept.used = self._clock()
            self._kept.move_to_end(user)
            return kept.state

    def put(self, user: str, state: UserState | SavedState, idle: float = 0.0) -> bool:
        """Keep a state, in the place of an earlier one; others go where memory is short. idle: seconds since its last use; a saved state is
        put before [`begin_move`], which makes one of the model of it.

        Returns:
            Whether it is kept; not where it is larger than all of the memory.
        """
        with self._lock:
            self.remove(user)
            self._kept[user] = _Kept(state, 0, self._clock() - idle)
            return self._fits(user)

    def grown(self, user: str) -> bool:
        """Measure the state of a user again, after a use that may have changed it and ends now; whether it is still kept."""
        with self._lock:
            kept = self._kept.get(user)
            if kept is None:
                return False
            kept.used = self._clock()
            self._kept.move_to_end(user)
            return self._fits(user)

    def _fits(self, user: str) -> bool:
        self._measure(user, self._kept[user])
        self._make_room()
        return user in self._kept

    def _measure(self, user: str, kept: _Kept) -> None:
        size = kept.state.num_bytes
        self.num_bytes, kept.num_bytes = self.num_bytes + size - kept.num_bytes, size
        if size > self.max_bytes:  # goes by itself, and takes no other with it
            self.remove(user, "memory")

    def _make_room(self) -> None:
        while self.num_bytes > self.max_bytes:
            self.remove(next(iter(self._kept)), "memory")

    def remove(self, user: str, why: str | None = None) -> bool:
        """Forget a user; whether there was a state. `why`: what it is counted as."""
        with self._lock:
            kept = self._kept.pop(user, None)
            if kept is None:
                return False
            self._unmoved.pop(user, None)
            self.num_bytes -= kept.num_bytes
            if why is not None:
                self.counts[why] += 1
            return True

    def expire(self) -> None:
        """Forget the states whose time is up."""
        with self._lock:
            if self.time_to_live is None:
                return
            before = self._clock() - self.time_to_live
            while self._kept and next(iter(self._kept.values())).used < before:
                self.remove(next(iter(self._kept)), "expired")

    def all(self) -> list[tuple[str, UserState | SavedState, float]]:
        """Users, their states and the seconds since their last use, the least recently used first."""
        with self._lock:
            self.expire()
            now = self._clock()
            return [(user, kept.state, now - kept.used) for user, kept in self._kept.items()]

    def begin_move(self, moved: Callable[[UserState | SavedState], UserState | None]) -> None:
        """Go over to another model: each state is replaced by what `moved` gives for it, at the latest before its next use; None, or a
        `ValueError`: it goes. [`finish_move`] does the others, in any thread, while those that are moved are in use."""
        with self._lock:
            # Those that a move before has left go over at once from the model that they are of.
            self._moved, self._unmoved = moved, dict.fromkeys(reversed(self._kept))  # the latest used first
            self._gone_before = self.counts["model"]

    def finish_move(self) -> int:
        """Move the states that nobody has used since, one at a time. Returns how many went since [`begin_move`]."""
        while True:
            began = time.perf_counter()
            with self._lock:
                user = next(iter(self._unmoved), None)
                if user is None:
                    self._moved = None  # it holds the model
                    return self.counts["model"] - self._gone_before
                self._move(user)
            # requests have the interpreter the other part of the time
            time.sleep(_IDLE * (time.perf_counter() - began))

    def _move(self, user: str) -> None:
        self._unmoved.pop(user)
        kept = self._kept[user]
        try:
            state = self._moved(kept.state)
        except ValueError:
            state = None
        if state is None:
            self.remove(user, "model")
            return
        kept.state = state
        self._measure(user, kept)
        self._make_room()
