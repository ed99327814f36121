"""Options of a piece of work as a dataclass: Python fills it by keyword, the command line makes its flags from it.

A module that holds only such dataclasses imports nothing heavy, so that `--help` and usage errors come at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, field, fields
from typing import Any

DEVICE = "cpu, cuda, cuda:1, ... (default: cuda where there is one)"
"""What `--device` accepts."""

MODEL = "folder of the model and its processor, or a Hub id (user/name[@revision])"
"""What `run` is where a model answers."""

DTYPE = "precision of weights and scores; int8: of a language model's matrices, on CPUs (default: as stored)"
"""What `--dtype` says where a model answers."""


def option(
    says: str,
    default: Any = MISSING,
    *,
    positional: bool = False,
    choices: Sequence[Any] | None = None,
    metavar: str | None = None,
    repeated: bool = False,
    count: int | None = None,
    short: Sequence[str] = (),
    **notes: Any,
) -> Any:
    """A dataclass field that is a flag of the command line too.

    The flag is the field's name with hyphens (`batch_size` is `--batch-size`); its type is the annotation: `str`, `int`, `float`,
    `Path`, each also `| None`; `bool`, a switch (`--no-batch-size` where the default is True); `list[...]`, several words after one flag.

    Args:
        says: the help.
        default: the default; left out: the option is required.
        positional: whether the value is given without a flag.
        choices: accepted values.
        metavar: what the help calls the value.
        repeated: for a list, whether the flag is given once for each value (`--only A --only B`).
        count: for a list after one flag, how many values it has; None takes any number.
        short: further spellings of the flag, such as "--license".
        notes: more for the field's `metadata`, for methods of the dataclass.
    """
    metadata = {
        "says": says,
        "positional": positional,
        "choices": choices,
        "metavar": metavar,
        "repeated": repeated,
        "count": count,
        "short": tuple(short),
        **notes,
    }
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def given(default: Any = MISSING) -> Any:
    """A dataclass field that the command line fills by itself: `overrides` (pairs of a recipe's dotted key and the value's text)
    and `command` (the words that were typed)."""
    return field(default=default)


def options_of(kind: type, options: Any) -> dict[str, Any]:
    """The values that `options` has for the fields of a dataclass, without those of a class that adds some."""
    return {field.name: getattr(options, field.name) for field in fields(kind)}


def check_counts(options: Any, names: Iterable[str]) -> None:
    """Raise `ValueError` that names the first of these options below 1; None is not looked at."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def check_port(options: Any) -> None:
    """Raise `ValueError` for an option `port` that no port has."""
    if not 0 <= options.port < 65536:
        raise ValueError(f"--port must lie between 0 and 65535, got {options.port}")
