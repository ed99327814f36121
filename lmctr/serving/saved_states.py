"""Kept states in one file, from one process to the next."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lmctr.utils.files import replacing

from .user_state import UserState, json_of

_FORMAT = "lmctr kept states 1"
_OVERHEAD = 512  # bytes of a state beside its text


class SavedState(NamedTuple):
    """A state as a file has it (`UserState.left`), to be read when it is needed."""

    text: str

    @property
    def num_bytes(self) -> int:
        """Memory of it, about."""
        return _OVERHEAD + len(self.text)

    def moved_to(self, model: Any, processor: Any, items: Any = None) -> UserState | None:
        """See `UserState.moved_to`."""
        return UserState.gone_on(json.loads(self.text), model, processor, items)


def write_states(path: Path, kind: str, states: Iterable[tuple[str, UserState | SavedState, float]]) -> int:
    """Write states of users, each with the seconds since its last use. Returns how many.

    Args:
        kind: of the models' input; the file is read for the same only.

    Raises:
        OSError: the file cannot be written; what stood there before is as it was.
    """
    count, now, digest, windows = 0, time.time(), hashlib.blake2b(digest_size=16), {}
    with replacing(path) as temporary, open(temporary, "wb") as file:

        def write(*values: str) -> None:
            line = "\t".join(values).encode() + b"\n"
            digest.update(line)
            file.write(line)

        write(_FORMAT, kind)
        for user, state, idle in states:
            count += 1
            text = state.text if isinstance(state, SavedState) else json_of(state.left(windows))
            write(json.dumps(user), repr(now - idle), text)
        write(f"{count} states, checksum {digest.hexdigest()}")
    return count


def read_states(path: Path, kind: str) -> Iterator[tuple[str, SavedState, float]]:
    """What [`write_states`] wrote, one after the other.

    Raises:
        ValueError: no such file, another kind's, one that is cut off or damaged; before the first is given.
    """
    digest, last, count = hashlib.blake2b(digest_size=16), b"", -1
    with open(path, "rb") as file:
        first = file.readline(200).decode(errors="replace").rstrip("\n").split("\t")
        if first[0] != _FORMAT:
            raise ValueError(f"{path} holds no kept states of this version: it does not begin with {_FORMAT!r}")
        if first[1:] != [kind]:
            raise ValueError(f"{path} holds states of models that read {' '.join(first[1:])}, this one reads {kind}")
        file.seek(0)
        for line in file:
            digest.update(last)
            last, count = line, count + 1
        if last != f"{count - 1} states, checksum {digest.hexdigest()}\n".encode():
            raise ValueError(f"{path} is cut off or damaged: its last line is not the checksum of the others")
        file.seek(0)
        file.readline()
        now = time.time()
        for _ in range(count - 1):
            user, used, text = file.readline().decode().rstrip("\n").split("\t")
            yield json.loads(user), SavedState(text), max(now - float(used), 0.0)
