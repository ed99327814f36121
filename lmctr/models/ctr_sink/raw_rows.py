"""Checks of the rows that users hand to the processor; messages name row and behaviour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmctr.utils.suggest import refuse_unknown

from .assembly import RowError

BEHAVIOR_KEYS = ("text", "time", "feedback", "group", "value", "similarity", "item", "label", "statistics")
FEEDBACK_KEYS = ("feedback", "group")
TARGET_KEYS = ("text", "item", "statistics")


def feedback_code(entry: Mapping[str, Any], names: Sequence[str], row: int, number: int) -> int:
    """Code of a behaviour's `feedback` or `group`; `names` are the prompt's, code 0 being unknown."""
    if "group" in entry and "feedback" in entry:
        raise ValueError(f"histories[{row}][{number}] has both 'feedback' and 'group'; give one of them")
    value = entry.get("feedback", entry.get("group"))
    if value is None:
        return 0
    if isinstance(value, (bool, np.bool_)) and len(names) == 3:
        return 2 if value else 1
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)) and 0 <= value < len(names):
        return int(value)
    if isinstance(value, str):
        if value in names:
            return names.index(value)
        if len(names) == 3 and value in ("negative", "positive"):
            return 1 + (value == "positive")
    accepted = f"a code from 0 to {len(names) - 1}, a name ({', '.join(names)}) or None"
    accepted += ", or True / False" if len(names) == 3 else ""
    raise ValueError(f"histories[{row}][{number}]: feedback {value!r} is not accepted; use {accepted}")


def behavior_statistic(entry: Mapping[str, Any], name: str, row: int, number: int) -> float:
    """A statistic of a behaviour at its time; NaN where it is None."""
    given = entry.get("statistics")
    where = f"histories[{row}][{number}]"
    if not isinstance(given, Mapping) or name not in given:
        raise ValueError(
            f"{where} needs 'statistics' with {name!r}, which a sink carries: an object of raw numbers as they were at the behaviour's "
            "time, null where one is not known"
        )
    value = given[name]
    if value is None:
        return math.nan
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
        raise ValueError(f"{where}: the statistic {name!r} must be a finite number or None, got {value!r}")
    return float(value)


def check_behavior(entry: Any, row: int, number: int) -> None:
    """Raise `ValueError` unless a behaviour has the keys and the text that it must have."""
    where = f"histories[{row}][{number}]"
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where} must hold 'text' and 'time', got {entry!r}")
    refuse_unknown(entry, BEHAVIOR_KEYS, where)
    for key in ("text", "time"):
        if key not in entry:
            raise ValueError(f"{where} has no {key!r}; a behaviour needs 'text' and 'time'")
    if entry["text"] is not None and not isinstance(entry["text"], str):
        raise ValueError(f"{where}: text must be a text or None, got {entry['text']!r}")


def target_text(target: Any, row: int) -> str | None:
    """Text of a target given as `{"text": ...}` or as a text."""
    text = target
    if isinstance(target, Mapping):
        refuse_unknown(target, TARGET_KEYS, f"targets[{row}]")
        if "text" not in target:
            raise ValueError(f"targets[{row}] has no 'text'")
        text = target["text"]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"targets[{row}]: text must be a text or None, got {text!r}")
    return text


def target_statistics(target: Any, row: int, names: Sequence[str]) -> np.ndarray:
    """(Fs,) float64 raw statistics of a target, NaN where one is not known (None)."""
    given = target.get("statistics") if isinstance(target, Mapping) else None
    if given is None:
        raise ValueError(
            f"targets[{row}] has no 'statistics', of which the model reads {len(names)} ({', '.join(names[:3])}, ...); give their "
            "numbers as they are in the data, null where one is not known, or score with a table of items (see lmctr.serving.score)"
        )
    try:
        values = np.array([np.nan if value is None else value for value in given], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"targets[{row}]: statistics must be a list of numbers, got {given!r}") from error
    if values.shape != (len(names),):
        raise ValueError(f"targets[{row}]: {values.size} statistics, expected {len(names)}: {', '.join(names)}")
    return values


def similarity_of(entry: Mapping[str, Any], row: int, number: int) -> float:
    """A behaviour's `similarity`."""
    value = entry.get("similarity")
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float, np.number)):
        raise ValueError(
            f"histories[{row}][{number}]: 'similarity' must be a cosine with the target, got {value!r}; the order or a sink "
            f"signal of this processor needs it"
        )
    return float(value)


def check_times(time: np.ndarray, target_time: np.ndarray, offsets: np.ndarray) -> None:
    """Raise unless the histories [offsets[b], offsets[b + 1]) ascend in time and end before their targets."""
    row = np.repeat(np.arange(len(target_time)), np.diff(offsets))
    late = time >= target_time[row]
    if late.any():
        wrong = int(np.argmax(late))
        raise RowError(
            int(row[wrong]),
            f"behaviour {wrong - int(offsets[row[wrong]])} of the history has time {int(time[wrong])}, not before the "
            f"target's time {int(target_time[row[wrong]])}; a history may hold earlier behaviours only",
        )
    falls = (time[1:] < time[:-1]) & (row[1:] == row[:-1])
    if falls.any():
        wrong = int(np.argmax(falls)) + 1
        raise RowError(
            int(row[wrong]),
            f"behaviour {wrong - int(offsets[row[wrong]])} of the history has time {int(time[wrong])}, before the one "
            f"ahead of it ({int(time[wrong - 1])}); sort the history by time, oldest first",
        )
