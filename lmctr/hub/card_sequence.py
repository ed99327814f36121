"""What a model card says of a model that reads sequences of events, and example inputs for it."""

from __future__ import annotations

from typing import Any

from lmctr.runs.folder import RunFolder

__all__ = ["event_call", "event_rows", "facts", "limits", "usage_note"]

_TABLES = ("item_embedding.items.weight", "item_embedding.features.", "user_features.")
# Keys of a configuration that say how the data look, or nothing about the model's make.
_NOT_SHOWN = frozenset(
    (
        "architectures",
        "behavior_names",
        "dtype",
        "item_feature_names",
        "item_feature_vocab_sizes",
        "item_vocab_size",
        "micro_batch_size",
        "model_type",
        "num_behaviors",
        "num_scenarios",
        "num_statistics",
        "preset",
        "processor_fingerprint",
        "scenario_names",
        "serving_micro_batch_size",
        "strategies",
        "task_names",
        "task_weights",
        "transformers_version",
        "use_cache",
        "user_feature_names",
        "user_feature_vocab_sizes",
    )
)


def facts(folder: RunFolder, recipe: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Items, behaviours, scenarios, sizes, strategies, and the keys of the family's configuration."""
    from transformers import PreTrainedConfig

    config = folder.config
    total = sum(folder.num_parameters.values())
    tables = sum(count for name, count in folder.num_parameters.items() if any(part in name for part in _TABLES))
    rows = [
        ("Model type", f"`{folder.model_type}`"),
        ("Items", f"{config.get('item_vocab_size', 0) - 2:,} known items"),
        ("Behaviours", ", ".join(config.get("behavior_names") or [])),
        ("Scenarios", ", ".join(config.get("scenario_names") or [])),
        ("Predicts", ", ".join(config.get("task_names") or [])),
        ("Parameters", f"{total:,}, of which {tables:,} are in tables of items, features and users"),
    ]
    for key, title in (("item_feature_names", "Features of items"), ("user_feature_names", "Features of users")):
        if config.get(key):
            rows.append((title, ", ".join(config[key])))
    strategies = config.get("strategies")
    if strategies and config.get("use_partitioning", True):
        rows.append(("Strategies", "; ".join(_strategy(entry) for entry in strategies)))
    weights = config.get("task_weights") or []
    if len(weights) > 1:
        rows.append(("Task weights", ", ".join(map(str, weights))))
    base = set(PreTrainedConfig().to_dict())
    for key, value in config.items():
        if key not in _NOT_SHOWN and key not in base and value is not None:
            rows.append((f"`{key}`", ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return rows


def _strategy(entry: dict[str, Any]) -> str:
    """One extraction strategy in words."""
    parts = []
    for key in ("behaviors", "scenarios"):
        value = entry.get(key)
        if value is not None:
            parts.append(f"{key} {value if isinstance(value, str) else ', '.join(map(str, value))}")
    for unit in ("seconds", "days"):
        if entry.get(f"window_{unit}") is not None:
            parts.append(f"the last {entry[f'window_{unit}']} {unit}")
    return f"{entry['name']} ({'; '.join(parts) or 'all events'})"


def usage_note(folder: RunFolder, recipe: dict[str, Any] | None) -> str:
    """How the processor is called."""
    from lmctr.data.processors.sequence import SequenceProcessor

    note = (
        "`histories` are users' events, oldest first, with the original ids of the items, times in unix seconds, and the names of behaviours and "
        "scenarios; a candidate sees the events before its time. An item that was not in the training data gets the id for unknown items. "
        "`lmctr.serving.score` scores many candidates of one user, and `lmctr predict` whole files of requests."
    )
    processor = SequenceProcessor.from_pretrained(folder.path)
    names, prior = processor.statistics, processor.statistics_prior
    if names:
        rate = "" if prior is None else f", with `prior={prior:.6g}`"
        note += (
            f" `statistics` are the columns {', '.join(f'`{name}`' for name in names)} of each candidate, from what happened before its "
            f"second, as `lmctr.utils.history_features.history_features` counts them on a log{rate}; NaN (null in requests) where one is not known."
        )
    return note


def limits(folder: RunFolder) -> list[str]:
    """What the model cannot do."""
    lines = [
        "It knows the items that were in its training data; new ones share one vector, and how often they come grows with time."
    ]
    longest = folder.config.get("max_history_length")
    if longest:
        lines.append(f"It reads the latest {longest:,} events of a history; older ones are not seen.")
    length = folder.config.get("sequence_length")
    if length:
        lines.append(
            f"Its blocks hold {length:,} events in all; what no strategy selects, or does not fit, is not seen."
        )
    return lines


def event_rows(folder: RunFolder) -> dict[str, Any]:
    """Arguments of the processor for two users, one with a short history, one with none."""
    from lmctr.data.processors.sequence import SequenceProcessor

    processor = SequenceProcessor.from_pretrained(folder.path)
    known = processor.items["item_id"].slice(0, 3).to_pylist() or [1]
    items = (known * 3)[:3]
    behaviour, scenario = processor.behavior_names[-1], processor.scenario_names[0]
    history = [
        {"item": item, "behavior": behaviour, "scenario": scenario, "time": 1_500_000_000 + 86_400 * place}
        for place, item in enumerate(items[:2])
    ]
    rows = {
        "histories": [history, []],
        "candidates": [[items[2]], [items[2]]],
        "times": [1_500_172_800, 1_500_172_800],
        "scenarios": [scenario, scenario],
    }
    if processor.user_feature_names:
        user = {name: (processor.features[name] or ("a",))[0] for name in processor.user_feature_names}
        rows["users"] = [user, user]
    if processor.statistics:
        rows["statistics"] = [[[0.0] * len(processor.statistics)]] * 2
    return rows


def event_call(rows: dict[str, Any]) -> str:
    """Python source of a processor call with one row."""
    lines = ["batch = processor(", "    histories=[["]
    lines += [f"        {event!r}," for event in rows["histories"][0]]
    lines.append("    ]],")
    lines += [f"    {key}={value!r}," for key, value in rows.items() if key != "histories"]
    return "\n".join([*lines, '    return_tensors="pt",', ")"])
