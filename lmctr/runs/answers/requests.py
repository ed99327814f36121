"""Requests and answers: one JSON object each, checked before a model sees them. Errors start with where the request stands."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import IO, Any

import numpy as np
from scipy.special import expit

from lmctr.utils.files import parse_json
from lmctr.utils.suggest import refuse_unknown

_KEYS = ("id", "history", "target", "candidates", "time")
_OF_CANDIDATES = ("scenario", "user")


def read_objects(
    lines: IO[str], name: str, what: str = "a request", skip: bool = False
) -> Iterator[tuple[str, dict[str, Any] | ValueError]]:
    """The JSON objects of a stream, one per line, each with its place for messages; blank lines are skipped.

    Raises:
        ValueError: a line that is no JSON object (with `skip`, the error stands in the object's place), or no UTF-8 text.
    """
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{name}, line {number}"
            value = _value(line, where, what)
            if isinstance(value, ValueError) and not skip:
                raise value
            yield where, value
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text, from about line {number + 1} on ({error.reason})") from error


def _value(line: str, where: str, what: str) -> dict[str, Any] | ValueError:
    """The object of a line, or why it is none."""
    try:
        value = parse_json(line)
    except json.JSONDecodeError as error:
        return ValueError(f"{where}: not valid JSON: {error.msg} at column {error.colno}")
    except ValueError as error:
        return ValueError(f"{where}: {error}")
    if not isinstance(value, dict):
        return ValueError(f"{where}: {what} is a JSON object, got {type(value).__name__}")
    return value


def text_request(request: Any, where: str, item: str | None = None) -> dict[str, Any]:
    """A request of texts, with `candidates` (a list of `{"text": ...}`) and `single` (whether it had one `target`). A text of null is an empty
    one, as an item without a title has in training. `item`: the prompt's template of an item's text, for messages.

    Raises:
        ValueError: unknown or missing keys, values of the wrong type.
    """
    request = _history_request(request, where, _KEYS, "text", partial(_text_target, item=item))
    for place, entry in enumerate(request["history"]):
        if not isinstance(entry.get("text"), str | None):
            raise ValueError(f"{where}: history[{place}]: text must be a text or null, got {entry['text']!r}")
    return request


def event_request(request: Any, where: str) -> dict[str, Any]:
    """A request of items by their ids, with `candidates` (dicts, which have taken over `scenario` and `user`) and `single`.

    Raises:
        ValueError: unknown or missing keys, values of the wrong type.
    """
    request = _history_request(request, where, (*_KEYS, *_OF_CANDIDATES), "item", _item_target)
    common = {key: request[key] for key in _OF_CANDIDATES if key in request}
    request["candidates"] = [{**common, **candidate} for candidate in request["candidates"]]
    return request


def impression_request(request: Any, where: str) -> dict[str, Any]:
    """A request of a `user` and its `ads`, as dicts of columns: all that their fields read; others are ignored, as in rows of a table.

    Raises:
        ValueError: unknown or missing keys, values of the wrong type.
    """
    _check_keys(request, where, ("id", "user", "ads"))
    if not isinstance(request.get("user"), dict):
        raise ValueError(
            f"{where}: user must be an object with the columns of the user's fields, got {request.get('user')!r:.80}"
        )
    ads = request.get("ads")
    if not isinstance(ads, list) or not ads or not all(isinstance(ad, dict) for ad in ads):
        raise ValueError(f"{where}: ads must be a list of at least one object with the columns of the ads' fields")
    return dict(request)


def _check_keys(request: Any, where: str, keys: Sequence[str]) -> None:
    if not isinstance(request, Mapping):
        raise ValueError(f"{where}: a request is a JSON object (a dict), got {type(request).__name__}")
    refuse_unknown(request, keys, "the request", f"{where}: ")


def _history_request(
    request: Any, where: str, keys: Sequence[str], named: str, read_target: Callable[[Any, str], dict[str, Any]]
) -> dict[str, Any]:
    _check_keys(request, where, keys)
    for key in ("history", "time"):
        if key not in request:
            hint = "; [] for a new user, on a server also the user_id of a kept one" * (key == "history")
            raise ValueError(f"{where}: the request has no {key!r}{hint}")
    if not isinstance(request["history"], list):
        raise ValueError(
            f"{where}: history must be a list of behaviours, oldest first, got {request['history']!r:.80}; [] for a new user"
        )
    if not all(isinstance(entry, dict) for entry in request["history"]):
        raise ValueError(f'{where}: each behaviour of the history is an object with "{named}" and "time"')
    if (
        isinstance(request["time"], bool)
        or not isinstance(request["time"], Real)
        or not math.isfinite(request["time"])
    ):
        raise ValueError(f"{where}: time must be a number of seconds, got {request['time']!r}")
    if ("target" in request) == ("candidates" in request):
        raise ValueError(f'{where}: give either "target" (one item) or "candidates" (a list of items)')
    single = "target" in request
    targets = [request["target"]] if single else request["candidates"]
    if not isinstance(targets, list) or not targets:
        raise ValueError(f"{where}: candidates must be a list of at least one item, got {targets!r:.80}")
    places = [where] if single else [f"{where}: candidates[{place}]" for place in range(len(targets))]
    return {**request, "candidates": list(map(read_target, targets, places)), "single": single}


def _text_target(value: Any, where: str, item: str | None) -> dict[str, Any]:
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, dict) and "text" in value and isinstance(value["text"], str | None):
        return value  # the processor checks the rest
    shown = json.dumps(value, ensure_ascii=False, default=repr)[:80]
    written = "" if item is None else f"; this model reads the texts of items as {item!r} writes them"
    raise ValueError(f'{where}: a target is a text or {{"text": ...}}, got {shown}{written}')


def _item_target(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value  # the processor checks it
    if isinstance(value, (str, Integral, float)) and not isinstance(value, bool):
        return {"item": value}  # 9.0 is 9, and 9.5 is refused with the ids
    raise ValueError(f'{where}: a candidate is the id of an item, or an object with "item"; got {value!r}')


def answer_of(request: Mapping[str, Any], logits: np.ndarray, tasks: Iterable[str] = ("label",)) -> dict[str, Any]:
    """The answer to a request from its (C,) logits, or (C, T) of several tasks."""
    answer = {"id": request["id"]} if "id" in request else {}
    if "error" in request:
        return answer | {"error": request["error"]}
    values = logits.astype(np.float64)
    if "ads" in request:
        return answer | {"scores": logits.tolist()}
    for single, several, found in (("logit", "logits", values), ("probability", "probabilities", expit(values))):
        rows = found.tolist()
        if values.ndim == 1:
            answer |= {single: rows[0]} if request["single"] else {several: rows}
        elif request["single"]:
            answer[single] = dict(zip(tasks, rows[0]))
        else:
            answer[several] = {task: [row[place] for row in rows] for place, task in enumerate(tasks)}
    return answer
