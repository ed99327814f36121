"""Requests of many callers, done together by a few threads: bounded in size and waiting, each with a deadline of its own."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple


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
    key: Hashable


_ALONE = object()  # the key of work beside which nothing is done


class Batcher:
    """Does the work of many callers in batches, begun in the order in which it came, in threads of its own.

    A batch begins with the oldest work. It takes on what comes until it holds `max_positions` (a larger piece goes alone) or `max_wait`
    seconds have passed since its first was submitted; what queued up during the batch before is taken without a wait, by each thread an
    equal part. Works of one key are never done at the same time, and in their order.

    Args:
        run: does a batch, in any of the threads; gives for each piece of work its result, or the exception that its caller gets. An
            exception that it raises goes to all callers of the batch.
        workers: threads.
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
        workers: int = 1,
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
        self._keys: Counter[Hashable] = Counter()  # of what is in work; empty when nothing is
        self._threads = [
            threading.Thread(target=self._work, name=f"lmctr-batcher-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def unfinished(self) -> set[Hashable]:
        """Keys of what waits and of what is in work."""
        with self._changed:
            return {one.key for one in self._queue} | {*self._keys}

    def submit(
        self, work: Any, positions: int = 1, deadline: float = math.inf, *, key: Hashable = None, alone: bool = False
    ) -> Future:
        """A future of the result. `deadline`: of `time.monotonic()`, by which the work must have begun. `key`: of works that must not be
        done at the same time; None: it has none. `alone`: it goes before all that waits, also where the queue is full, and nothing else is
        done meanwhile.

        Raises:
            QueueFull, Draining: nothing was taken.
        """
        future: Future = Future()
        waiting = _Waiting(work, positions, deadline, future, time.monotonic(), _ALONE if alone else key)
        with self._changed:
            if self._closed:
                raise Draining("the server is stopping")
            if len(self._queue) >= self.max_queue and not alone:
                seconds = len(self._queue) * self._seconds_each / len(self._threads)
                raise QueueFull(len(self._queue), max(1, math.ceil(seconds)))
            (self._queue.appendleft if alone else self._queue.append)(waiting)
            self._changed.notify_all()
        return future

    def close(self, timeout: float | None = None) -> bool:
        """Take no more work, do what waits, and end the threads; whether they ended within `timeout` seconds (None: however long it takes)."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if end is None else max(end - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while batch := self._next():
            self._do([one for one in batch if self._begins(one)])
            with self._changed:
                self._keys.subtract(one.key for one in batch)
                self._keys = +self._keys
                self._changed.notify_all()
            del batch  # what was done, such as a model that was taken over, is not held until more comes

    def _next(self) -> list[_Waiting]:
        """The next batch; empty at the end."""
        with self._changed:
            while True:
                if self._closed and not self._queue:
                    return []
                free = self._free()
                batch = self._fitting(free)
                if batch:
                    full = len(batch) < len(free) or sum(one.positions for one in batch) >= self.max_positions
                    left = batch[0].arrived + self.max_wait - time.monotonic()
                    if full or self._closed or left <= 0:
                        break
                self._changed.wait(left if batch else None)
            taken = set(map(id, batch))
            self._queue = deque(one for one in self._queue if id(one) not in taken)
            self._keys.update(one.key for one in batch)
            return batch

    def _free(self) -> list[_Waiting]:
        """What may be begun now."""
        if not self._queue or self._keys[_ALONE]:
            return []
        if self._queue[0].key is _ALONE:
            return [] if self._keys else [self._queue[0]]
        return [one for one in self._queue if one.key is None or not self._keys[one.key]]

    def _fitting(self, free: list[_Waiting]) -> list[_Waiting]:
        """The first of them that make a batch, and no more than one thread's part."""
        batch: list[_Waiting] = []
        positions = 0
        for one in free[: math.ceil(len(free) / len(self._threads))]:
            if batch and positions + one.positions > self.max_positions:
                break
            batch.append(one)
            positions += one.positions
        return batch

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
