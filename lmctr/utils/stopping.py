"""SIGTERM as Ctrl-C, and a Ctrl-C that is heard where it fits."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

_SAME = 0.5  # seconds
_SOON = 0.01


class Terminated(KeyboardInterrupt):
    """A SIGTERM that was taken as Ctrl-C; exit_code: what a shell has of a process that ended by it."""

    exit_code = 128 + signal.SIGTERM


@contextlib.contextmanager
def stopped_by_term() -> Iterator[None]:
    """Treat SIGTERM (a batch system's end) as Ctrl-C, so that no child is left behind and it is said how to go on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    previous = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _stop(number: int, frame: Any) -> None:
    raise Terminated


def hear_in_finalizers() -> None:
    """From here on a Ctrl-C (and SIGTERM, where that is one) that comes while Python finalises an object, where nothing can be raised, comes again a moment
    later. Otherwise some would be lost, above all while transformers is imported."""
    sys.unraisablehook = _come_again


def _come_again(unraisable: Any) -> None:
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    number = getattr(unraisable.exc_type, "exit_code", 128 + signal.SIGINT) - 128
    with contextlib.suppress(RuntimeError):  # the process is at its end
        threading.Timer(_SOON, os.kill, (os.getpid(), number)).start()


class HeldInterrupt:
    """While it is a context, the first Ctrl-C (and SIGTERM, where that is one) is kept for who asks, and the second interrupts at once. What comes
    within half a second of the first is the same one: a terminal's Ctrl-C reaches a grid and its run, and the grid ends its run by SIGTERM.

    In the main thread of a process whose signals nobody else handles; elsewhere it does nothing.

    Args:
        told: what is printed at the first one.

    Attributes:
        came: whether there was one.
        interrupt: what it is raised as where it fits.
    """

    def __init__(self, told: str):
        self.told, self.came = told, False
        self.interrupt: type[KeyboardInterrupt] = KeyboardInterrupt
        self._at = 0.0
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    def _hear(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a forked worker hears a terminal's Ctrl-C too, and ends with its parent
            return
        if self.came:
            if time.monotonic() - self._at >= _SAME:
                before = self._before[number]
                self._release()
                before(number, frame)
            return
        self.came, self._at = True, time.monotonic()
        self.interrupt = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        # stderr is closed, or in the middle of a line of its own
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            print(self.told, file=sys.stderr, flush=True)

    def _release(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __enter__(self) -> HeldInterrupt:
        if threading.current_thread() is threading.main_thread():
            found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            raising = (signal.default_int_handler, _stop)
            self._before = {number: handler for number, handler in found.items() if handler in raising}
            for number in self._before:
                signal.signal(number, self._hear)
        return self

    def __exit__(self, *error: Any) -> None:
        self._release()
