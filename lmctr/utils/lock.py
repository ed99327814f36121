"""One writer per folder: a lock file that says who holds it, and shows by its time that they are still there."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from lmctr.utils.files import new_beside

try:
    import fcntl
except ImportError:  # Windows: the heartbeat alone says who is there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lmctr.lock"
HEARTBEAT = 10.0  # seconds between two signs of life
STALE = 60.0  # seconds without one after which a holder on another machine counts as gone
_PATIENCE = 2.0  # seconds in which a holder that was just killed is gone
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_held: dict[int, Path] = {}


def _let_go() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):  # a forked loader worker that outlives a killed run must not hold its lock
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def owned(folder: str | Path, what: str, name: str = LOCK) -> Iterator[None]:
    """The block in which this process alone writes in a folder, which is made, and removed again if it stays empty.

    The system lifts the lock when the process ends, however it ends. Where the folder is shared between machines whose locks do not
    reach each other, a holder on another machine counts as gone when its file was not touched for a minute. An error of the block bears the
    folder as `in_folder`.

    Args:
        what: the work, as the one who is refused reads it ("`lmctr train`").
        name: the lock file.

    Raises:
        ValueError: somebody else holds it; the message says who and since when.
    """
    folder = Path(folder)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    handle = _take(path, what, time.monotonic() + _PATIENCE)
    _held[handle] = path
    ended = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, ended), daemon=True)
    try:
        text = json.dumps(
            {
                "what": what,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
            }
        )
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, text.encode())
        beat.start()
        yield
    except Exception as error:
        if not hasattr(error, "in_folder"):  # of a full disk some name no file
            error.in_folder = str(folder)  # type: ignore[attr-defined]
        raise
    finally:
        ended.set()
        if _held.pop(handle, None) is not None:  # not in a forked child
            os.ftruncate(handle, 0)
            with suppress(OSError):  # Windows removes no open file; an empty one is nobody's
                path.unlink()
            os.close(handle)
            if made:
                with suppress(OSError):  # not empty
                    folder.rmdir()


def _beat(path: Path, ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT):
        with suppress(OSError):
            os.utime(path)


def _take(path: Path, what: str, deadline: float) -> int:
    """An open lock file that nobody else holds."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        locked = _lock(handle)
        if path in _held.values() or locked is False:  # by another thread of this process
            holder = _holder(handle)
        elif not _is_current(handle, path):  # the holder before removed the file that was opened here
            os.close(handle)
            continue
        else:
            holder = _elsewhere(handle, path, locked is not None)
            if holder is None:
                return handle
        os.close(handle)
        if time.monotonic() > deadline:
            raise ValueError(
                f"another {holder.get('what', what)} is at work in {path.parent}"
                + (" (process {pid} on {host}, since {since})".format(**holder) if holder else "")
                + "; wait for it, or stop it"
            )
        time.sleep(0.1)


def _lock(handle: int) -> bool | None:
    """Whether the system's lock is ours now; None where there are no such locks, as on some clusters' file systems."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def _is_current(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _elsewhere(handle: int, path: Path, is_locked: bool) -> dict[str, str] | None:
    """A holder that the system's lock does not tell of: on another machine, or any where there are no such locks."""
    holder = _holder(handle)
    if not holder or (is_locked and holder["host"] == socket.gethostname()):
        return None
    probe = new_beside(path)  # the file server's clock, not this machine's
    probe.touch()
    age = probe.stat().st_mtime - os.fstat(handle).st_mtime
    probe.unlink()
    return holder if abs(age) < STALE else None  # a clock that was set back leaves signs of life in the future


def _holder(handle: int) -> dict[str, str]:
    """What the lock file says; nothing where it is empty or cut off."""
    try:
        found = json.loads(os.read(handle, 4096))
        return {key: str(found[key]) for key in ("what", "pid", "host", "since")}
    except (ValueError, KeyError, TypeError):
        return {}
