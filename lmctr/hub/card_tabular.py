"""What a model card says of a model that reads rows of a table."""

from __future__ import annotations

from typing import Any

from lmctr.runs.folder import RunFolder

__all__ = ["facts", "limits", "usage_note"]

_TABLE = "table.weight"  # how the parameters of embedding tables end
# Keys of a configuration that say how the data look, or nothing about the model's make.
_NOT_SHOWN = frozenset(
    (
        "architectures",
        "dtype",
        "embedding_dim",
        "field_names",
        "model_type",
        "num_numeric",
        "num_sequences",
        "processor_fingerprint",
        "sequence_tables",
        "sequence_vocab_sizes",
        "sparse_embedding_grad",
        "transformers_version",
        "use_cache",
        "vocab_sizes",
    )
)


def facts(folder: RunFolder, recipe: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Fields, sizes, and the keys of the family's configuration."""
    config = folder.config
    total = sum(folder.num_parameters.values())
    tables = sum(count for name, count in folder.num_parameters.items() if name.endswith(_TABLE))
    sizes, numeric = config.get("vocab_sizes") or [], config.get("num_numeric", 0)
    fields = [f"{len(sizes)} categorical ({sum(sizes):,} values)", f"{numeric} numeric"]
    if config.get("num_sequences"):
        fields.append(f"{config['num_sequences']} sequence")
    rows = [
        ("Model type", f"`{folder.model_type}`"),
        ("Fields", ", ".join(fields)),
        ("Parameters", f"{total:,}, of which {tables:,} are in embedding tables"),
        ("Embedding size", _size(config.get("embedding_dim"))),
    ]
    from transformers import PreTrainedConfig

    base = set(PreTrainedConfig().to_dict())
    for key, value in config.items():
        if key not in _NOT_SHOWN and key not in base and value is not None:
            rows.append((f"`{key}`", ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return rows


def _size(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return str(value[0]) if len(set(value)) == 1 else f"by field, {min(value)} to {max(value)}"


def usage_note(folder: RunFolder, recipe: dict[str, Any] | None) -> str:
    """How the processor is called."""
    return (
        "The processor takes a list of rows (dicts), a dict of columns or a pyarrow Table with the columns of the raw data; `None` is a "
        "missing value, and a value that was not in the training data gets the id for unknown values. "
        "`lmctr predict` scores whole files (CSV, Parquet, JSON lines)."
    )


def limits(folder: RunFolder) -> list[str]:
    """What the model cannot do."""
    return [
        "It knows the values that were in its training data; new users, items or categories all share one vector, and how often they come "
        "grows with time."
    ]
