"""Progress of what takes longer than two seconds, on stderr: a bar on a terminal, now and then a line elsewhere.

The command line shows it unless `--quiet` is given; so do `lmctr.runs.train` and `evaluate` unless they get `quiet=True`, and any code inside
`with showing():`. `logging.getLogger("lmctr.progress").setLevel("WARNING")` silences it for good. Results and warnings do not come this way.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE = 2.0  # seconds before anything is shown
_BETWEEN_BARS = 0.2
# seconds between lines: the first at least, the second at most, else a quarter of what has passed
_LINES = (10.0, 60.0)

_logger = logging.getLogger("lmctr.progress")
_logger.setLevel(logging.INFO)
# None: nobody said; lines of `say` alone are shown
_showing: ContextVar[bool | None] = ContextVar("showing", default=None)
_lock = threading.RLock()  # held while something is drawn
_open: list[Work] = []  # what is being shown, the innermost last
if hasattr(os, "register_at_fork"):  # a child must not find a lock held by a thread that it has not
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@contextmanager
def showing(value: bool = True) -> Iterator[None]:
    """Shows progress inside, or (False) silences it, whatever is asked for further inside."""
    token = _showing.set(value and not is_silenced())
    try:
        yield
    finally:
        _showing.reset(token)


def is_silenced() -> bool:
    """Whether somebody asked for silence."""
    return _showing.get() is False or not _logger.isEnabledFor(logging.INFO)


def say(line: str, stream: Any = None) -> None:
    """Prints a line of progress to a stream (default: stdout), above the bars, unless progress is silenced."""
    if is_silenced():
        return
    stream = stream or sys.stdout
    with _lock:
        if any(work.bar is not None for work in _open):
            from tqdm import tqdm

            tqdm.write(line, file=stream)
        else:
            print(line, file=stream)
        stream.flush()
        for work in _open:  # somebody who reads lines has just got one
            work.shown_again(time.monotonic())


class Work:
    """A piece of work, as a context: shown when it takes longer than two seconds.

    Args:
        what: its name. total: how much there is to do, where that is known. unit: of what is counted ("B": bytes); "" for work that is
            not counted, which a thread shows.
        done: how much was done before.
        show: True shows it though nobody asked for progress here.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "", done: int = 0, show: bool = False) -> None:
        self.what, self.total, self.unit, self.first, self.done = what, total, unit, done, done
        is_first = os.environ.get("RANK", "0") == "0"  # of several processes
        self.shown = is_first and not is_silenced() and bool(show or _showing.get())
        self.bar: Any = None
        self.has_lines = False

    def __enter__(self) -> Work:
        if self.shown:
            self.on_terminal = sys.stderr.isatty()
            self.began = time.monotonic()
            with _lock:
                is_step = not self.unit and any(work.unit for work in _open)
                _open.append(self)
            # a short step leaves the lines to what is counted
            self.next = self.began + (_LINES[0] if is_step else PATIENCE)
            self._ended = threading.Event()
            self._thread = None if self.unit else threading.Thread(target=self._watch, daemon=True)
            if self._thread is not None:
                self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if not self.shown:
            return
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with _lock:
            _open.remove(self)
            if self.bar is not None:
                self.bar.close()
            elif kind is None and (self.has_lines or self._is_late()):
                self._line(f"done in {clock(time.monotonic() - self.began)}")

    def update(self, count: int = 1) -> None:
        """Counts what was done."""
        self.done += count
        if self.shown and time.monotonic() >= self.next:
            self._show()

    def shown_again(self, now: float) -> None:
        """Puts the next line off."""
        if not self.on_terminal:
            least, most = _LINES
            self.next = max(self.next, now + min(max(least, (now - self.began) / 4), most))

    def _is_late(self) -> bool:
        """Whether a line is due that a busy machine kept the thread from showing."""
        return self._thread is not None and not self.on_terminal and time.monotonic() >= self.next

    def _watch(self) -> None:
        while not self._ended.wait(max(self.next - time.monotonic(), 0.01)):
            if time.monotonic() >= self.next:
                self._show()

    def _show(self) -> None:
        with _lock:
            now = time.monotonic()
            if self not in _open or now < self.next:
                return
            if self.on_terminal:
                self._draw()
                self.next = now + _BETWEEN_BARS
                return
            if _open[-1] is self:  # what is inside tells more
                self._line(self._words(now - self.began))
            self.next = now
            self.shown_again(now)

    def _draw(self) -> None:
        if self.bar is None:
            from tqdm import tqdm

            counted: dict[str, Any] = {"unit": self.unit if self.unit == "B" else f" {self.unit}", "unit_scale": True}
            self.bar = tqdm(
                desc=self.what,
                total=self.total,
                initial=self.first,
                leave=False,
                delay=1e-9,  # draws nothing before its start is set
                dynamic_ncols=True,
                **(counted if self.unit else {"bar_format": "{desc}: {elapsed}"}),
            )
            self.bar.start_t -= time.monotonic() - self.began
        self.bar.n = self.done
        self.bar.refresh()

    def _words(self, passed: float) -> str:
        if self.done == self.first or not self.unit:
            return f"{clock(passed)} passed"
        if self.total is None:
            return f"{_amount(self.done, self.unit)}, {clock(passed)} passed"
        left = passed / (self.done - self.first) * max(self.total - self.done, 0)
        share = f"{self.done / max(self.total, 1):.0%} of {_amount(self.total, self.unit)}"
        return f"{share}, {clock(passed)} passed, {clock(left)} left"

    def _line(self, words: str) -> None:
        print(f"{self.what}: {words}", file=sys.stderr, flush=True)
        self.has_lines = True


def over(
    items: Iterable[T],
    what: str,
    unit: str,
    total: int | None = None,
    count: Callable[[T], int] | None = None,
    **values: Any,
) -> Iterator[T]:
    """The items themselves; counted when the next one is asked for, each as `count` says (default: 1). values: see [`Work`]."""
    if total is None and hasattr(items, "__len__"):
        total = len(items)
    with Work(what, total, "" if total == 1 else unit, **values) as work:  # of one thing only the time tells something
        for item in items:
            yield item
            work.update(1 if count is None else count(item))


@contextmanager
def step(what: str) -> Iterator[None]:
    """Decorates a function whose calls are a piece of work that is not counted."""
    with Work(what):
        yield


@contextmanager
def without_bars_of(*packages: Any) -> Iterator[None]:
    """Inside, these packages (`datasets`, `huggingface_hub.utils`) draw no bars of their own."""
    drawing = [package for package in packages if not package.are_progress_bars_disabled()]
    try:
        for package in drawing:
            package.disable_progress_bars()
        yield
    finally:
        for package in drawing:
            package.enable_progress_bars()


def clock(seconds: float) -> str:
    """Seconds as 1:05, or 2:01:05."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _amount(count: int, unit: str) -> str:
    return f"{count / 1e6:,.1f} MB" if unit == "B" else f"{count:,} {unit}"
