"""What a model card says of a language model that reads histories as text (CTR-Sink)."""

from __future__ import annotations

from typing import Any

from lmctr.hub.card_data import shown
from lmctr.hub.examples import example_rows
from lmctr.runs.folder import RunFolder

__all__ = ["facts", "limits", "summary", "usage_note"]


def summary(folder: RunFolder) -> str:
    """What the model is, in a sentence."""
    return (
        "A language model that reads a user's history as text and predicts the probability of a positive response "
        f"to a target item, after [CTR-Sink](https://arxiv.org/abs/2508.03668): {_variant(folder.config)}."
    )


def _variant(config: dict[str, Any]) -> str:
    kind, signal = config.get("sink_kind", "sink"), config.get("sink_signal")
    signals = [signal] if isinstance(signal, str) else list(signal or [])
    if kind == "none":
        return "the plain LM-CTR baseline, without attention sinks"
    if kind == "cls":
        return "the variant with the backbone's own [CLS] token after each behaviour"
    carried = "no signal" if signals in ([], ["none"]) else " and ".join(signals)
    return f"a [SINK] token after each behaviour, whose embedding carries {carried}"


def facts(folder: RunFolder, recipe: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What the model is."""
    config, text = folder.config, folder.config.get("text_config") or {}
    backbone = ((recipe or {}).get("model") or {}).get("backbone")
    if isinstance(backbone, str):
        origin = f", started from `{shown(backbone)}`"
    else:
        origin = ", trained from scratch" if isinstance(backbone, dict) else ""
    size = ", ".join(
        f"{text[key]} {name}"
        for key, name in (("num_hidden_layers", "layers"), ("hidden_size", "wide"))
        if key in text
    )
    language_model = sum(n for name, n in folder.num_parameters.items() if "language_model." in name)
    total = sum(folder.num_parameters.values())
    rows = [
        ("Model type", f"`{folder.model_type}`"),
        ("Backbone", f"{text.get('model_type', 'unknown')}{f' ({size})' if size else ''}{origin}"),
        ("Parameters", f"{total:,}, of which {total - language_model:,} are not the backbone's"),
    ]
    for key, title in (
        ("sink_kind", "Sink kind"),
        ("sink_signal", "Sink signal"),
        ("sink_order", "Order of behaviours"),
        ("feedback", "Feedback"),
    ):
        value = config.get(key)
        if value is not None:
            rows.append((title, " + ".join(value) if isinstance(value, list) else str(value)))
    for key, title in (("num_behaviors", "Behaviours read"), ("max_length", "Most tokens")):
        if folder.processor.get(key) is not None:
            rows.append((title, str(folder.processor[key])))
    prompt = (folder.processor.get("prompt") or {}).get("name")
    return rows + ([("Prompt", f"`{prompt}`")] if prompt else [])


def usage_note(folder: RunFolder, recipe: dict[str, Any] | None) -> str:
    """How the processor is called."""
    note = "`histories` are whole histories, oldest first, with times in unix seconds; the processor picks the behaviours."
    if "similarity" not in example_rows(folder)["histories"][0][0]:
        return note
    note += " `similarity` is a behaviour's cosine with the target"
    if folder.has_retriever:
        return f"{note}, by the encoder in `retriever/` (`lmctr.data.TextRetriever.from_pretrained`)."
    retrieval = ((recipe or {}).get("data") or {}).get("retrieval") or {}
    encoder = retrieval.get("encoder")
    return f"{note}{f', by the encoder `{shown(encoder)}`' if encoder else ''}; this repository does not hold the encoder."


def limits(folder: RunFolder) -> list[str]:
    """What the model cannot do."""
    lines = []
    behaviours = folder.processor.get("num_behaviors")
    if behaviours:
        lines.append(
            f"It reads {behaviours} behaviours of a history at most; what is older, or does not fit, is not seen."
        )
    lines.append(
        "It reads item texts: an item without text, or with another language's text, is judged by little or nothing."
    )
    return lines
