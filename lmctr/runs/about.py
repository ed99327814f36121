"""What is said of a run's data in cards and reports, and texts without the folders of the machine that the run was made on."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from lmctr.utils.files import named_place


def as_text(value: Any) -> str:
    """What a run's files say, as text of a card: one line, in which neither a tag nor a link under another name stands."""
    return " ".join(str(value).split()).replace("<", "&lt;").replace("](", "]&#40;")


def dataset_info(data: dict[str, Any] | None) -> dict[str, Any]:
    """Origin, licence and label rule out of a run's `data.json`; empty without the file."""
    data = data or {}
    return data["info"] if isinstance(data.get("info"), dict) else data


def data_lines(data: dict[str, Any] | None, as_text: Callable[[Any], str] = as_text) -> list[str]:
    """One line per thing that `data.json` says, written by `as_text`; keys that are not known here are shown as they are."""
    if not data:
        return []
    info = dataset_info(data)
    lines = [
        f"{title}: {as_text(info[key])}"
        for key, title in (
            ("name", "Data set"),
            ("url", "Source"),
            ("licence", "Licence of the data"),
            ("label_rule", "Positive label"),
            ("language", "Language"),
            ("notes", "Notes"),
            ("best_auc", "Best reachable AUC"),
        )
        if info.get(key) is not None
    ]
    known = {*_INFO_KEYS, "info", "truncation"}
    lines += [
        f"{as_text(_words(key)).capitalize()}: {as_text(text)}"
        for key, value in data.items()
        if key not in known and value and (text := _value(value))
    ]
    if data.get("truncation"):
        lines.append(f"Length of texts: {as_text(_truncation(data['truncation']))}")
    return lines


def _truncation(parts: dict[str, dict[str, Any]]) -> str:
    """Tokens per sample and the share of samples that lost behaviours to the limit, per split."""
    facts = {
        "mean_length": lambda value: f"{value:.0f} tokens on average",
        "longest": lambda value: f"longest {value:,}",
        "max_length": lambda value: f"limit {value:,}",
        "share_truncated": lambda value: f"{value:.1%} of samples lost behaviours to the limit",
    }
    return "; ".join(
        f"{split} {', '.join(show(values[key]) for key, show in facts.items() if values.get(key) is not None)}"
        for split, values in parts.items()
    )


_INFO_KEYS = ("name", "url", "licence", "citation", "label_rule", "language", "notes", "best_auc", "extra")


def _value(value: Any, seconds: bool = False) -> str:
    """`seconds`: whether numbers are called times."""
    if isinstance(value, dict):
        timed = {name: seconds or name in ("boundaries", "times") for name in value}
        shown_values = {name: _value(inner, timed[name]) for name, inner in value.items() if inner not in (None, {})}
        return ", ".join(
            f"{_words(name)} {f'({inner})' if isinstance(value[name], dict) else inner}"
            for name, inner in shown_values.items()
        )
    if isinstance(value, (list, tuple)):
        is_range = len(value) == 2 and all(_is_time(inner, seconds) for inner in value)
        return (" to " if is_range else ", ").join(_value(inner, seconds) for inner in value)
    if isinstance(value, str):
        return shown(value)
    if _is_time(value, seconds):
        return datetime.fromtimestamp(value, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _is_time(value: Any, seconds: bool) -> bool:
    """Whether a number reads as unix seconds: from 2001 on, of what is called a time from 1973 on."""
    return type(value) is int and (10**8 if seconds else 10**9) <= value < 10**11


def _words(key: Any) -> str:
    return str(key).replace("_", " ")


def shown(text: str) -> str:
    """Text with an absolute (or home) path cut down to its last part; `key=/path` too."""
    head, equals, tail = text.rpartition("=")
    return f"{head}{equals}{named_place(tail)}"


def shown_command(command: str) -> str:
    """A command line without folders of the machine that it ran on, in one line, quoted for a shell as it was."""
    try:
        words = shlex.split(command)
    except ValueError:  # an earlier version did not quote
        words = command.split()
    without = [" ".join(map(shown, shown(word).split())) for word in words]
    return " ".join(command.split()) if without == words else shlex.join(without)


def without_paths(recipe: Any) -> Any:
    """A recipe whose texts went through `shown`."""
    if isinstance(recipe, dict):
        return {key: without_paths(value) for key, value in recipe.items()}
    if isinstance(recipe, list):
        return [without_paths(value) for value in recipe]
    return shown(recipe) if isinstance(recipe, str) else recipe
