"""Error messages that name names: what was given, the nearest known one, the rest, and of many the first."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

NAMED, LISTED = 5, 20  # at most, of what is wrong and of what there is


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `name`, or None when nothing is close.

    Case, hyphens and underscores do not count against a name: `"Learning-Rate"` finds `"learning_rate"`.
    """
    known = [str(candidate) for candidate in known]
    folded = {_fold(candidate): candidate for candidate in reversed(known)}
    match = difflib.get_close_matches(_fold(str(name)), folded, n=1, cutoff=0.6)
    return folded[match[0]] if match else None


def did_you_mean(name: str, known: Iterable[str], words: str = "Did you mean") -> str:
    """` Did you mean 'known name'?` for a message, or nothing when no known name is close; `words` within a sentence are small."""
    guess = nearest(name, known)
    return "" if guess is None else f" {words} {guess!r}?"


def first_of(names: Sequence[str], most: int = NAMED) -> str:
    """The first names, and how many more there are: `a, b, c, d, e and 2 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def first_quoted(names: Iterable[str]) -> str:
    """`first_of` names as Python writes them: `'a', 'b'`."""
    return first_of([*map(repr, names)])


def first_listed(names: Iterable[str]) -> str:
    """Names of which one may be meant, as Python writes a list; of many the first twenty."""
    return f"[{first_of([*map(repr, names)], LISTED)}]"


def no_column(name: str, columns: Sequence[str]) -> str:
    """`no column 'tme'; did you mean 'time'? its columns: time, user`."""
    hint = did_you_mean(name, columns, "did you mean")
    return f"no column {name!r};{hint} its columns: {first_of(columns, LISTED)}"


def unknown_key_message(
    key: str, known: Iterable[str], where: str, note: str = "", meant: str | None = None, every: str = ""
) -> str:
    """Message for a key that nobody knows.

    Args:
        key: the key that was given.
        known: the keys that are accepted.
        where: what holds the key, for example `"training"` or `"the prompt file x.yaml"`.
        note: what else is known of the key.
        meant: the key that it is another word for: named alone.
        every: what prints all known keys; of more than twenty the nearest few are then named.

    Returns:
        One line, for example
        `unknown key 'lerning_rate' in training; did you mean 'learning_rate'? known keys: learning_rate, seed`.
    """
    told = f"unknown key {str(key)!r} in {where};{f' {note};' if note else ''}"
    if meant is not None:
        return f"{told} did you mean {meant!r}?"
    names = sorted(str(name) for name in known)
    hint = did_you_mean(key, names, "did you mean")
    if every and len(names) > LISTED:
        near = difflib.get_close_matches(_fold(str(key)), names, n=NAMED, cutoff=0.0)
        return f"{told}{hint} the nearest of {len(names)} known keys: {', '.join(near)}; {every} prints all"
    return f"{told}{hint} known keys: {', '.join(names) if names else '(none)'}"


def refuse_unknown(
    keys: Iterable[str], known: Collection[str], where: str, start: str = "", what: str = "key"
) -> None:
    """Raises `ValueError`, which begins with `start` and then says what [`unknown_key_message`] does, for the first key, or `what` it is called,
    that is not known."""
    for key in keys:
        if key not in known:
            raise ValueError(start + unknown_key_message(key, known, where).replace("key", what, 1))


def refuse_misspelt(keys: Iterable[str], known: Collection[str], where: str) -> None:
    """As [`refuse_unknown`], but only of keys that are near a known one; others may be somebody else's."""
    refuse_unknown((key for key in keys if nearest(key, known) is not None), known, where)


@contextmanager
def errors_of(where: object) -> Iterator[None]:
    """A `ValueError` inside the block begins with what it is about, once."""
    try:
        yield
    except ValueError as error:
        start = f"{where}: "
        raise ValueError(start + str(error).removeprefix(start)) from error


@contextmanager
def reworded(change: Callable[[str], str]) -> Iterator[None]:
    """Errors inside the block say what `change` makes of their text."""
    try:
        yield
    except (FileNotFoundError, ValueError) as error:
        if len(error.args) == 1:
            error.args = (change(str(error)),)
        raise


def retold(said: object, own: object) -> AbstractContextManager[None]:
    """Errors inside the block say what a user knows in the place of what they said."""
    return reworded(lambda text: text.replace(str(said), str(own)))


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")


def one_line(value: Any) -> str:
    """A value for a message: frames and processors have several lines."""
    return " ".join(repr(value).split())
