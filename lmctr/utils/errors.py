"""Which errors end a command with one line for the user, and which are faults of the program."""

from __future__ import annotations

import errno
import os
import re
import select
import time
from contextlib import suppress
from pathlib import Path

import yaml

from lmctr.utils.files import NOT_ALLOWED

_NOT_WRITTEN = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "unexpected pos ",
)  # the last: torch's
_NO_MEMORY = ("out of memory", "allocate memory", "start new thread", "Resource temporarily unavailable")
_TAKEN = "EADDRINUSE"
# Parts of messages of other packages' RuntimeErrors and AssertionErrors about what is not there.
_NOT_THERE = (
    "to be installed",
    "not installed",
    "not compiled with",
    "No CUDA",
    "no NVIDIA",
    "device string",
    _TAKEN,
)
_SECONDS_TO_END = 5
_PEER_ENDED = ("Connection closed by peer", "Connection closed by remote peer", "Connection reset by peer")


def is_debugging() -> bool:
    """Whether LMCTR_DEBUG asks for tracebacks."""
    return os.environ.get("LMCTR_DEBUG", "") not in ("", "0")


def is_for_users(error: Exception) -> bool:
    """Whether an error speaks of what the user gave or lacks, and not of a fault of the program."""
    if _lacks_memory(error) or any(part in str(error) for part in _NOT_WRITTEN):
        return True
    if isinstance(error, ImportError):  # a package that is wanted only where it is used
        return not (error.name or "").startswith("lmctr") and "cannot import name" not in str(error)
    if isinstance(error, (RuntimeError, AssertionError)):
        return any(part in str(error) for part in (*_NOT_THERE, *_PEER_ENDED))
    return isinstance(error, (ValueError, OSError, yaml.YAMLError))


def _lacks_memory(error: Exception) -> bool:
    told = isinstance(error, (OSError, RuntimeError)) and any(part in str(error) for part in _NO_MEMORY)
    return told or isinstance(error, MemoryError)


def told(error: Exception, way: str = "") -> str:
    """What the user reads of such an error; `way` is what this command can do where a place may not be written."""
    if _lacks_memory(error):
        first = str(error).partition("\n")[0] or type(error).__name__
        return f"not enough memory ({first:.300}); fewer rows (data.max_train_samples) or smaller batches need less"
    if isinstance(error, OSError) and error.errno in NOT_ALLOWED and error.filename:
        path = error.filename
        if os.path.exists(path) and not os.access(path, os.R_OK):
            return f"{path}: may not be read ({error.strerror})"
        return f"{path}: may not be written ({error.strerror}){way and f'; {way}'}"
    if isinstance(error, (FileExistsError, NotADirectoryError)) and error.filename:
        path = Path(error.filename)
        places = (place for place in (path, *path.parents) if os.path.lexists(place) and not place.is_dir())
        if (file := next(places, None)) is not None:  # None: it has gone since
            kind = "a file" if file.exists() else "a link to what is not there"
            return f"{path}: {'that' if file == path else file} is {kind}, where a folder is wanted"
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error):
        return f"{error.strerror}; set TMPDIR to a folder that may be written"
    if isinstance(error, RuntimeError) and any(part in str(error) for part in _PEER_ENDED):
        return "another process of this launch has ended, so this one cannot go on; what that one printed says why"
    if isinstance(error, RuntimeError) and _TAKEN in str(error):
        port = os.environ.get("MASTER_PORT", "")
        return f"port {port} of this launch is taken; name another (main_process_port of accelerate launch, or MASTER_PORT)"
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:  # Python's reading of other bytes
        word = re.search(r"\S*$", error.object[: error.start])[0] + re.match(r"\S*", error.object[error.start :])[0]
        return f"{word!r:.200}: the name of this file or folder is no UTF-8; rename it"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = str(error.filename)
        return (
            f"{name[:50]!r}...: no path; its {len(name):,} characters, or one part's, are more than the system takes"
        )
    if not any(part in str(error) for part in _NOT_WRITTEN):
        return str(error)
    folder = getattr(error, "in_folder", "")  # named where the error names nothing itself
    place = f"{folder}: " if not getattr(error, "filename", None) and folder not in str(error) else ""
    full = "ulimit -f too low? Raise it" if "too large" in str(error) else "the disk full? Free some"
    return f"{place}{error}; is {full} and give the same command again (train: with --resume)"


def let_first_speak() -> None:
    """Before a process of a launch tells its error: wait, unless it is the first, whose own error lets the launcher end all."""
    if os.environ.get("RANK", "0") != "0":
        with suppress(KeyboardInterrupt):
            time.sleep(_SECONDS_TO_END)


def is_unread() -> bool:
    """Whether whoever read this process's output has gone, as `head` does; a broken pipe is then no error, any other is one."""
    if not hasattr(select, "poll"):
        return True
    polled = select.poll()
    for output in (1, 2):
        polled.register(output, 0)  # errors are told always
    return any(event & select.POLLERR for _, event in polled.poll(0))
