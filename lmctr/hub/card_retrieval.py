"""What a model card says of a model that ranks the ads of impressions."""

from __future__ import annotations

from typing import Any

from lmctr.runs.folder import RunFolder

__all__ = ["facts", "limits", "usage_note"]

_SHOWN = ("loss", "arf_top_m", "arf_top_k", "arf_tau", "arf_target_tau", "positive_from")


def facts(folder: RunFolder, recipe: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Fields of both sides, sizes, the loss, and what the metrics count."""
    config = folder.config
    total = sum(folder.num_parameters.values())
    tables = sum(count for name, count in folder.num_parameters.items() if "embedding" in name)
    rows = [("Model type", f"`{folder.model_type}`")]
    for side in ("user", "ad"):
        sizes, numeric = config.get(f"{side}_vocab_sizes") or [], config.get(f"{side}_num_numeric", 0)
        fields = [f"{len(sizes)} categorical ({sum(sizes):,} values)", f"{numeric} numeric"]
        if config.get(f"{side}_num_sequences"):
            fields.append(f"{config[f'{side}_num_sequences']} sequence")
        rows.append((f"Fields of the {side}", ", ".join(fields)))
    rows += [
        ("Parameters", f"{total:,}, of which {tables:,} are in embedding tables"),
        ("Embedding size", str(config.get("embedding_dim"))),
        ("`hidden_units`", ", ".join(map(str, config.get("hidden_units") or []))),
    ]
    rows += [(f"`{key}`", str(config[key])) for key in _SHOWN if config.get(key) is not None]
    metrics = ((recipe or {}).get("data") or {}).get("metrics")
    if metrics:
        rows.append(("Metrics count", ", ".join(f"{key} = {value}" for key, value in metrics.items())))
    return rows


def usage_note(folder: RunFolder, recipe: dict[str, Any] | None) -> str:
    """How the processor is called."""
    return (
        "The processor takes the users of some impressions and the ads of each; `None` is a missing value, and a value that was not in the "
        "training data gets the id for unknown values. Where users have different numbers of ads, `batch.ad_mask` says where an ad stands. "
        "`lmctr predict` scores JSON lines of `user` and `ads`."
    )


def limits(folder: RunFolder) -> list[str]:
    """What the model cannot do."""
    return [
        "Its scores order the ads of one impression; they are no probabilities, no eCPM, and not comparable between impressions.",
        "It learnt from ads that earlier stages of a cascade had let through; on ads that these would have dropped nothing was measured.",
        "It knows the values that were in its training data; new ads share one vector until it is trained again.",
    ]
