"""What the views of an interaction log share: reading and splitting it, the summary of `data.json`, the baselines' samples."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.splits import Splits, split_log
from lmctr.data.registry import load_log
from lmctr.runs.inputs.base import draw


def build_log(data: Mapping[str, Any]) -> InteractionLog:
    """The interaction log of a recipe's data group."""
    options = dict(data["options"])
    if data["path"] is not None:
        options["path"] = data["path"]
    return load_log(data["name"], **options)


def build_splits(log: InteractionLog, data: Mapping[str, Any]) -> Splits:
    """The parts of the log, cut down to the recipe's largest numbers of samples.

    A smaller part is drawn at random with `data.seed` (not the training seed, so that runs with different seeds see
    the same samples) and keeps its order in time.
    """
    splits = _whole_splits(log, data)
    limits = {
        "train": data["max_train_samples"],
        "validation": data["max_eval_samples"],
        "test": data["max_eval_samples"],
    }
    parts = {name: draw(getattr(splits, name), limit, data["seed"], name) for name, limit in limits.items()}
    return dataclasses.replace(splits, **parts)


def baseline_splits(log: InteractionLog, splits: Splits, data: Mapping[str, Any]) -> Splits:
    """What the baselines get: the same validation and test samples, and the whole training part to fit on.

    A limit on the model's training samples saves the model's time; counting and boosted trees need no such limit, and
    would look worse than they are with it.
    """
    return dataclasses.replace(splits, train=_whole_splits(log, data).train)


def _whole_splits(log: InteractionLog, data: Mapping[str, Any]) -> Splits:
    return split_log(log, rule=data["split"], fractions=tuple(data["fractions"]), seed=data["seed"])


def log_fingerprint(log: InteractionLog, splits: Splits, *more: np.ndarray | None) -> str:
    """Checksum of events and samples (and of `more` columns): a resumed run must see the data that it started with."""
    value = 0
    arrays = (log.offsets, log.item, log.time, log.label, log.feedback, splits.train, splits.validation, splits.test)
    for array in (*arrays, *(column for column in more if column is not None)):
        value = zlib.crc32(np.ascontiguousarray(array).tobytes(), value)
    return f"{value:08x}"


def describe_log(
    log: InteractionLog, splits: Splits, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """What `data.json` says of a log: origin, counts, split, label rates. `say` gets it in a sentence."""
    parts = dict(splits.items())
    rates = {name: float(np.mean(log.label[events] == 1)) for name, events in parts.items() if len(events)}
    dates = {
        name: [int(log.time[events].min()), int(log.time[events].max())]
        for name, events in parts.items()
        if len(events)
    }
    say(
        f"{log.info.name}: {log.num_users:,} users, {log.num_items:,} items, {log.num_events:,} events; samples "
        + ", ".join(f"{name} {len(events):,}" for name, events in parts.items())
        + f"; positive {rates.get('train', float('nan')):.1%} of training"
    )
    return {
        "info": log.info.to_dict(),
        "counts": {
            "users": int(log.num_users),
            "items": int(log.num_items),
            "events": int(log.num_events),
            "samples": {name: len(events) for name, events in parts.items()},
        },
        "split": {"rule": splits.rule, "boundaries": dict(splits.boundaries), "times": dates},
        "label_rates": rates,
    }
