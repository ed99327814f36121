"""The page: choose a user or paste a request, see candidates ranked and what the model looked at."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from lmctr.models.families import family_of
from lmctr.runs.answers.served import Scored, ServedModel, unknown_share
from lmctr.utils.files import parse_json
from lmctr.utils.outside import checked
from lmctr.utils.suggest import errors_of

from .drawing import bars, note
from .examples import Examples
from .explain import explanation

_ERROR = "#c1272d"
_SHOWN = 200  # candidates of the ranking: a browser is slow with thousands of bars
_FIELDS = {  # what a kind of request is typed into: key, label; None is what remains of the request
    "text": (
        ("history", "History: behaviours, oldest first"),
        ("candidates", "Candidates, one text per line"),
        (None, "Time"),
    ),
    "events": (
        ("history", "History: events, oldest first"),
        ("candidates", "Candidates, one item per line"),
        (None, "Time, scenario, user"),
    ),
    "table": (("rows", "Rows"),),
    "impressions": (("user", "User"), ("ads", "Ads")),
}


def _fields(served: ServedModel) -> Sequence[tuple[str | None, str]]:
    if served.kind != "text" or served.processor.statistics_reader is None:
        return _FIELDS[served.kind]
    labels = {"candidates": 'Candidates, one {"item": id or null, "text": ...} per line'}  # counted by the items' ids
    return [(key, labels.get(key, label)) for key, label in _FIELDS["text"]]


def plain_theme() -> Any:
    """A look that loads no font from elsewhere."""
    import gradio

    return gradio.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"])


def build_page(served: ServedModel, examples: Examples) -> Any:
    """The page as `gradio.Blocks`; `launch` it with `theme=plain_theme()`.

    Args:
        served: the model. examples: what there is to choose from, at least one.

    Raises:
        ImportError: the extra `demo` is not installed.
    """
    try:
        import gradio
    except ImportError as error:
        raise ImportError(f"lmctr demo needs the extra demo: pip install 'lmctr[demo]' ({error})") from error
    family, fields = family_of(served.model.config.model_type), _fields(served)
    first = next(iter(examples.requests))
    lock = threading.Lock()  # attention is read from the same model that scores

    def score(*texts: str) -> tuple[str, str]:
        with lock:
            return scored_html(served, dict(zip([key for key, _ in fields], texts)), examples.names)

    def fill(title: str) -> list[str]:
        return _written(examples.requests[title], served.kind)

    with gradio.Blocks(title=f"{family.title}: {served.name}", analytics_enabled=False) as page:
        gradio.Markdown(
            f"# {family.title}\n{family.says[:1].upper()}{family.says[1:]}. Model `{served.name}`, version `{served.version}`."
        )
        with gradio.Row():
            with gradio.Column():
                who = gradio.Dropdown(list(examples.requests), value=first, label="Begin with", interactive=True)
                boxes = []
                for (key, label), value in zip(fields, fill(first)):
                    if key == "candidates":
                        boxes.append(gradio.Textbox(value=value, label=label, lines=4, max_lines=12, interactive=True))
                    else:
                        boxes.append(
                            gradio.Code(value=value, label=label, language="json", max_lines=16, interactive=True)
                        )
                button = gradio.Button("Score", variant="primary")
            with gradio.Column():
                ranking, seen = gradio.HTML(), gradio.HTML()
        who.change(fill, who, boxes).then(score, boxes, [ranking, seen])
        button.click(score, boxes, [ranking, seen])
        page.load(score, boxes, [ranking, seen])
    return page


def scored_html(served: ServedModel, texts: Mapping[str | None, str], names: Mapping[str, str]) -> tuple[str, str]:
    """The ranking, and what the model looked at for the first candidate, or why there are none."""
    try:
        request = served.check(checked(_read(texts, served.kind), "request"))
        (scored,) = served.score([(request, None)])
        if isinstance(scored, Exception):
            raise scored
        order = np.argsort(-scored.logits.reshape(len(scored.logits), -1)[:, 0], kind="stable")
        return _ranking(scored, order, names), explanation(served, scored.request, int(order[0]), names)
    except ValueError as error:
        return note(str(error), _ERROR), ""


def _ranking(scored: Scored, order: np.ndarray, names: Mapping[str, str]) -> str:
    served, request = scored.served, scored.request
    logits = scored.logits.reshape(len(scored.logits), -1).astype(np.float64)
    is_chance = served.kind != "impressions"
    values = expit(logits) if is_chance else logits
    entries = request[{"table": "rows", "impressions": "ads"}.get(served.kind, "candidates")]
    rows = []
    for rank, place in enumerate(order[:_SHOWN], 1):
        own = [f"{value:.2%}" if is_chance else f"{value:.4f}" for value in values[place]]
        words = own[0] if len(own) == 1 else ", ".join(f"{task} {value}" for task, value in zip(served.tasks, own))
        rows.append((f"{rank}. {_label(entries[place], place, names)}", float(values[place, 0]), words))
    unknown = unknown_share(scored.counts)
    says = [f"{unknown:.0%} of the values are unknown to the model."] if unknown else []
    says += [f"The first {_SHOWN} of {len(order):,}."] if len(order) > _SHOWN else []
    return bars("Candidates by probability" if is_chance else "Ads by score", rows, " ".join(says))


def _label(entry: Mapping[str, Any], place: int, names: Mapping[str, str]) -> str:
    if "text" in entry:
        return entry["text"]
    if "item" in entry:
        return names.get(str(entry["item"]), str(entry["item"]))
    words = ", ".join(f"{key} {value}" for key, value in entry.items())
    return f"row {place + 1}: {words if len(words) <= 80 else words[:79] + '…'}"


def _written(request: Mapping[str, Any], kind: str) -> list[str]:
    """What stands in the boxes for a request."""
    taken = [key for key, _ in _FIELDS[kind] if key is not None]
    texts = []
    for key, _ in _FIELDS[kind]:
        if key is None:
            texts.append(_json({name: value for name, value in request.items() if name not in taken}))
        elif key == "candidates":
            texts.append("\n".join(_candidate(entry, kind) for entry in request[key]))
        elif isinstance(request[key], list):
            texts.append(
                "[\n" + ",\n".join(f"  {_json(entry)}" for entry in request[key]) + "\n]" if request[key] else "[]"
            )
        else:
            texts.append(_json(request[key]))
    return texts


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _candidate(entry: Any, kind: str) -> str:
    named = "text" if kind == "text" else "item"
    if isinstance(entry, Mapping) and set(entry) == {named}:
        entry = entry[named]
    return entry if kind == "text" and isinstance(entry, str) and "\n" not in entry else _json(entry)


def _read(texts: Mapping[str | None, str], kind: str) -> dict[str, Any]:
    """The request that stands in the boxes. Raises `ValueError` that names the box."""
    request: dict[str, Any] = {}
    for key, label in _FIELDS[kind]:
        if key == "candidates":
            lines = [line.strip() for line in texts[key].splitlines() if line.strip()]
            request[key] = [line if kind == "text" and line[0] != "{" else _item_line(line) for line in lines]
            continue
        with errors_of(f"{label}: no valid JSON"):
            value = parse_json(texts[key])
        if key is None and not isinstance(value, dict):
            raise ValueError(f'{label}: accepted is an object, such as {{"time": 1700000000}}')
        request |= value if key is None else {key: value}
    return request


def _item_line(line: str) -> Any:
    try:
        return parse_json(line)
    except ValueError:
        return line  # an id that is no JSON is a text
