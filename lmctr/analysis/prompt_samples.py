"""Samples of a log as a prompt writes them, and their token counts, for `lmctr data inspect`."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from lmctr.data.batches.text import TextView
from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.splits import Splits
from lmctr.data.options import InspectOptions
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.prompt import Prompt
from lmctr.models.ctr_sink.sink_signals import fit_value_levels


def show_prompt(
    log: InteractionLog, splits: Splits | None, options: InspectOptions
) -> tuple[list[str], dict[str, Any]]:
    """Samples written by a prompt and, with a tokenizer, the token counts of the parts."""
    prompt, behaviors = Prompt.load(options.prompt), options.num_behaviors or 50
    parts = splits.items() if splits is not None else [("all", log.sample_events())]
    events = parts[-1][1]
    chosen = events[np.linspace(0, len(events) - 1, min(options.samples, len(events))).astype(np.int64)]
    lines, texts = ["", f"samples as the prompt {prompt.name!r} writes them (K = {behaviors})"], []
    for event in chosen:
        text = _sample_text(log, prompt, int(event), options)
        texts.append({"event": int(event), "label": int(log.label[event]), "text": text})
        lines.append(f"  event {event}, label {log.label[event]}:")
        lines += textwrap.wrap(text, 112, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    figures: dict[str, Any] = {"prompt": prompt.name, "num_behaviors": behaviors, "samples": texts}
    if options.tokenizer:
        processor = CTRSinkProcessor(
            AutoTokenizer.from_pretrained(options.tokenizer),
            prompt=prompt,
            num_behaviors=behaviors,
            sink_kind="sink",
            feedback=options.feedback,
            value_levels=_levels(log, prompt),
            max_length=options.max_length,
        )
        view = TextView(log, processor)
        figures["tokens"] = {name: view.truncation(events) for name, events in parts if len(events)}
        lines += ["", "token counts (with a sink after each behaviour)"]
        for name, counts in figures["tokens"].items():
            lines.append(f"  {name}: " + ", ".join(f"{key} {_number(value)}" for key, value in counts.items()))
    elif options.max_length:
        raise ValueError("--max-length goes with --tokenizer.")
    return lines, figures


def _sample_text(log: InteractionLog, prompt: Any, event: int, options: InspectOptions) -> str:
    start, end = (int(bound[0]) for bound in log.history_bounds([event]))
    behaviors = np.arange(start, end)
    words = {code + 1: entry for code, entry in enumerate(prompt.feedback)}
    if options.feedback == "groups":
        groups = [(entry.header, behaviors[log.feedback[behaviors] == code]) for code, entry in words.items()]
    else:
        groups = [("", behaviors)]
    text = prompt.head
    for header, members in groups:
        members = members[-(options.num_behaviors or 50) :]
        titles = prompt.behavior_texts(log.catalogue.take(log.item[members].astype(np.int64))) if len(members) else []
        text += header if len(members) else ""
        for member, title in zip(members, titles):
            word = words.get(int(log.feedback[member])) if options.feedback == "inline" else None
            text += (word.word_for(_value(log, member)) if word else "") + title + prompt.separator
    if not len(behaviors):
        text += prompt.empty_history
    target = prompt.item_texts(log.catalogue.take([int(log.item[event])]))[0]
    return text + prompt.target_prefix + target + prompt.target_suffix


def _value(log: InteractionLog, event: int) -> float | None:
    """Graded feedback of an event, None where it is unknown."""
    value = math.nan if log.feedback_values is None else float(log.feedback_values[event])
    return None if math.isnan(value) else value


def _levels(log: InteractionLog, prompt: Prompt) -> list[float] | None:
    """Values that stand for graded feedback, where the prompt's words tell it."""
    if not prompt.tells_values or log.feedback_values is None:
        return None
    return fit_value_levels(log.feedback_values)


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
