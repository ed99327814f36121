"""Requests of many callers, done together by one thread: bounded in size and waiting, each with a deadline of its own."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

__all__ = ["Batcher", "DeadlinePassed", "Draining", "QueueFull"]


class QueueFull(Exception):
    """There is no place in the queue; `retry_after` says in how many whole seconds there may be."""

    def __init__(self, waiting: int, retry_after: int):
        super().__init__(f"{waiting} requests are waiting already; try again in {retry_after} s")
        self.retry_after = retry_after


class DeadlinePassed(Exception):
    """A request's time was up before its turn came; nothing was done for it."""


class Draining(Exception):
    """No request is taken any more: the batcher was closed."""


class _Waiting(NamedTuple):
    work: Any
    positions: int
    deadline: float
    future: Future
    arrived: float


class Batcher:
    """Does the work of many callers in batches, in the order in which it came, in a thread of its own.

    A batch begins with the oldest work. It takes on what comes until it holds `max_positions` (a larger piece goes alone) or `max_wait`
    seconds have passed since its first was submitted; what queued up during the batch before is taken without a wait.

    Args:
        run: does a batch; gives for each piece of work its result, or the exception that its caller gets. An exception that it raises
            goes to all callers of the batch.
        max_positions: size of a batch, in whatever `submit` counts. max_wait: seconds. max_queue: most pieces of work that wait.
        on_batch: told the number of pieces, their positions and the seconds of each batch.

    Example:

    ```python
    >>> batcher = Batcher(lambda works: [work + 1 for work in works])
    >>> batcher.submit(41).result()
    42
    >>> batcher.close()
    ```
    """

    def __init__(
        self,
        run: Callable[[list[Any]], Sequence[Any]],
        *,
        max_positions: int = 8192,
        max_wait: float = 0.002,
        max_queue: int = 256,
        on_batch: Callable[[int, int, float], None] | None = None,
    ):
        self._run, self._on_batch = run, on_batch
        self.max_positions, self.max_wait, self.max_queue = max_positions, max_wait, max_queue
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._seconds_each = 0.0  # smoothed time of a piece of work
        self._thread = threading.Thread(target=self._work, name="lmctr-batcher", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def submit(self, work: Any, positions: int = 1, deadline: float = math.inf, *, first: bool = False) -> Future:
        """A future of the result. `deadline`: of `time.monotonic()`, by which the work must have begun. `first`: it goes before all that
        waits, also where the queue is full.

        Raises:
            QueueFull, Draining: nothing was taken.
        """
        future: Future = Future()
        with self._changed:
            if self._closed:
                raise Draining("the server is stopping")
            if len(self._queue) >= self.max_queue and not first:
                raise QueueFull(len(self._queue), max(1, math.ceil(len(self._queue) * self._seconds_each)))
            put = self._queue.appendleft if first else self._queue.append
            put(_Waiting(work, positions, deadline, future, time.monotonic()))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Take no more work, do what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next():
            self._do([one for one in batch if self._begins(one)])

    def _next(self) -> list[_Waiting]:
        """The next batch; empty at the end."""
        with self._changed:
            while not self._queue:
                if self._closed:
                    return []
                self._changed.wait()
            until = self._queue[0].arrived + self.max_wait
            while True:
                count, positions = self._fitting()
                left = until - time.monotonic()
                full = count < len(self._queue) or positions >= self.max_positions
                if full or self._closed or left <= 0:
                    return [self._queue.popleft() for _ in range(count)]
                self._changed.wait(left)

    def _fitting(self) -> tuple[int, int]:
        """How many pieces of the queue's beginning make a batch, and their positions."""
        count = positions = 0
        for one in self._queue:
            if count and positions + one.positions > self.max_positions:
                break
            count, positions = count + 1, positions + one.positions
        return count, positions

    def _begins(self, one: _Waiting) -> bool:
        """Whether somebody still waits for it."""
        if not one.future.set_running_or_notify_cancel():
            return False
        if time.monotonic() > one.deadline:
            one.future.set_exception(DeadlinePassed("the deadline passed while the request waited"))
            return False
        return True

    def _do(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        began = time.monotonic()
        try:
            results = self._run([one.work for one in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results for {len(batch)} pieces of work")
        except Exception as error:
            results = [error] * len(batch)
        seconds = time.monotonic() - began
        self._seconds_each += 0.2 * (seconds / len(batch) - self._seconds_each)
        if self._on_batch is not None:
            self._on_batch(len(batch), sum(one.positions for one in batch), seconds)
        for one, result in zip(batch, results):
            if isinstance(result, Exception):
                one.future.set_exception(result)
            else:
                one.future.set_result(result)
