"""Example inputs of a shared model, for its card and for trying whether a folder works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmctr.hub.run_folder import RunFolder

__all__ = ["example_batch", "example_call", "example_rows"]


def example_batch(folder: RunFolder, processor: Any) -> dict[str, Any]:
    """Model inputs for two example rows, made by a loaded processor."""
    return dict(processor(**example_rows(folder), return_tensors="pt"))


def example_rows(folder: RunFolder) -> dict[str, Any]:
    """Arguments of the processor for two users: one with a short history, one with none.

    Raises:
        ValueError: a family without example (there is none today).
    """
    if folder.model_type not in _EXAMPLES:
        raise ValueError(f"no example inputs are known for model_type {folder.model_type!r}")
    return _EXAMPLES[folder.model_type](folder.processor)


def example_call(folder: RunFolder) -> str:
    """Python source of a processor call with one user's row, as a model card shows it."""
    rows = {key: values[:1] for key, values in example_rows(folder).items()}
    lines = ["batch = processor("]
    lines.append("    histories=[[")
    lines += [f"        {behaviour!r}," for behaviour in rows["histories"][0]]
    lines.append("    ]],")
    lines += [f"    {key}={rows[key]!r}," for key in ("targets", "times")]
    return "\n".join([*lines, '    return_tensors="pt",', ")"])


def _ctr_sink_rows(processor: dict[str, Any]) -> dict[str, Any]:
    """Behaviours carry what this processor reads: feedback by the prompt's names, similarity where it retrieves."""
    signals = processor.get("sink_signal") or "none"
    signals = [signals] if isinstance(signals, str) else signals
    names = [entry["name"] for entry in (processor.get("prompt") or {}).get("feedback") or ()]
    history = [
        {"text": "Heat (Action, Crime)", "time": 1_500_000_000},
        {"text": "Toy Story (Animation, Comedy)", "time": 1_500_086_400},
    ]
    for position, behaviour in enumerate(history):
        if names and (processor.get("feedback", "none") != "none" or "feedback" in signals):
            behaviour["feedback"] = names[(position + 1) % len(names)]
        if processor.get("sink_order", "recent") != "recent" or "similarity" in signals:
            behaviour["similarity"] = 0.25 * (position + 1)
    return {
        "histories": [history, []],
        "targets": [{"text": "Casino (Crime, Drama)"}, {"text": "Casino (Crime, Drama)"}],
        "times": [1_500_172_800, 1_500_172_800],
    }


_EXAMPLES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"ctr_sink": _ctr_sink_rows}
