"""What a model looked at: attention on the sinks (texts), share by behaviour (events), learned field interactions (FAT)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.special import expit

from lmctr.analysis.attention import attention_map, text_of
from lmctr.analysis.field_interactions import field_interactions
from lmctr.runs.answers.served import ServedModel

from .drawing import bars, heat_map, note

_MOST = 20  # bars of a picture
_MOST_FIELDS = 60


def explanation(served: ServedModel, request: Mapping[str, Any], place: int, names: Mapping[str, str]) -> str:
    """HTML about a candidate of a request that was scored, by its place among the candidates.

    Args:
        names: what items are called, by their ids.
    """
    if served.kind == "table":
        return _fields(served.model)
    if not served.reads_histories:
        return note("Ads are ranked as a whole; this kind of model shows no parts of its scores.")
    if not request["history"]:
        return note("The user has no behaviours: nothing of the score comes from a history.")
    (request,) = served.answers.prepare([dict(request)])
    request["candidates"] = [request["candidates"][place]]
    found = _sinks(served, request) if served.kind == "text" else _events(served, request, names)
    return found or _left_out(served, request, names)


def _fields(model: torch.nn.Module) -> str:
    if not hasattr(model, "field_interactions"):
        return note("Models of tables show no parts of their scores, except FAT.")
    try:
        found = field_interactions(model)
    except ValueError as error:  # a model without modulation
        return note(str(error))
    low, high = float(found.matrix().min()), float(found.matrix().max())
    rows = [
        (f"{row['query']} reads {row['key']}", row["weight"] - low, f"{row['weight']:.3f}") for row in found.table()
    ]
    says = (
        "What the model has learned for all rows: the modulation of attention from field to field, mean over heads and layers. Bars begin at "
        f"the least of all pairs, {low:.3f}."
    )
    top = bars("Strongest field interactions", rows[:_MOST], says)
    if len(found.field_names) > _MOST_FIELDS:
        return top
    return top + heat_map(
        "Field interactions",
        found.field_names,
        found.matrix(),
        f"Row: the field that reads; column: the one that is read. From {low:.3f}, the palest, to {high:.3f}.",
    )


def _sinks(served: ServedModel, request: dict[str, Any]) -> str:
    """Attention of the candidate's tokens on the sinks; empty where it sees none."""
    if served.model.config.layout == "fields":
        return ""
    batch = served.answers.process([("request", request, request["candidates"])])
    found = attention_map(served.model, batch, 0, tokenizer=served.processor)
    sinks = np.flatnonzero(found.is_sink)
    if not len(sinks):
        return ""
    readers = found.is_target if found.is_target.any() else np.arange(len(found.tokens)) == len(found.tokens) - 1
    shares = found.weights[readers][:, sinks].mean(0)
    starts = [0, *(sinks[:-1] + 1)]
    texts = [_text(found.tokens[start:place]) for start, place in zip(starts, sinks)]
    order = np.argsort(-shares)[:_MOST]
    even = len(sinks) / len(found.tokens)
    says = (
        f"Share of the candidate's attention that falls on the sink behind each behaviour, mean over layers and heads. Together {shares.sum():.1%}; "
        f"sinks are {even:.1%} of what it reads."
    )
    return bars(
        "Attention on the sinks", [(texts[row], float(shares[row]), f"{shares[row]:.2%}") for row in order], says
    )


def _text(tokens: list[str]) -> str:
    """The end of what some tokens say: before the first sink stands the prompt's head."""
    text = text_of(tokens)
    return text if len(text) <= 70 else f"…{text[-69:]}"


def _events(served: ServedModel, request: dict[str, Any], names: Mapping[str, str]) -> str:
    """Weights of the candidate on the events, and by behaviour type; empty for models that show none."""
    batch = served.answers.process([("request", request, request["candidates"])])
    inputs = {key: values.to(served.model.device) for key, values in batch.items()}
    width = inputs["history_items"].shape[1]
    with torch.inference_mode():
        layers = served.model(**inputs, output_attentions=True).attentions
    if not layers or layers[0].shape[-1] != width + 1:
        return ""
    weights = torch.stack([layer.float().reshape(-1, width + 1).abs().mean(0) for layer in layers]).mean(0)
    events = request["history"][-width:]
    shares = weights[: len(events)].cpu().numpy()
    if not shares.sum() > 0:
        return ""
    shares = shares / shares.sum()
    kinds: dict[str, float] = {}
    for event, share in zip(events, shares):
        kind = str(event.get("behavior", served.processor.behavior_names[0]))
        kinds[kind] = kinds.get(kind, 0.0) + float(share)
    says = "Share of the candidate's attention on events, mean over layers and heads."
    by_kind = [(kind, share, f"{share:.1%}") for kind, share in sorted(kinds.items(), key=lambda pair: -pair[1])]
    order = np.argsort(-shares)[:_MOST]
    rows = [(_behavior(events[row], names), float(shares[row]), f"{shares[row]:.1%}") for row in order]
    return bars("Share by behaviour type", by_kind, says) + bars("Share by behaviour", rows)


def _behavior(event: Mapping[str, Any], names: Mapping[str, str]) -> str:
    if "item" not in event or event.get("text"):
        return str(event.get("text") or "(no text)")
    kind = f", {event['behavior']}" if "behavior" in event else ""
    return f"{names.get(str(event['item']), event['item'])}{kind}"


def _left_out(served: ServedModel, request: dict[str, Any], names: Mapping[str, str]) -> str:
    """What the probability would lose without each of the last behaviours: for models that show no attention."""
    history = request["history"]
    chosen = range(max(0, len(history) - _MOST), len(history))
    without = [{**request, "history": history[:place] + history[place + 1 :]} for place in chosen]
    found = served.answers.together([("request", one) for one in (request, *without)])
    logits = np.array([values.reshape(-1)[0] for values in found], dtype=np.float64)
    chances = expit(logits)
    lost = chances[0] - chances[1:]
    rows = [(_behavior(history[place], names), float(own), f"{own:+.4f}") for place, own in zip(chosen, lost)]
    says = "This model shows no attention on behaviours: how much of the probability goes when one of the last behaviours is left out."
    return bars("Share by behaviour", sorted(rows, key=lambda row: -abs(row[1])), says)
