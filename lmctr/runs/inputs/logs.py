"""What the inputs of an interaction log share: reading and splitting it, the summary of `data.json`, the baselines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.splits import Splits, split_log
from lmctr.data.logs.validation import validate_log
from lmctr.data.registry import load_log
from lmctr.evaluation.baselines import baseline_metrics
from lmctr.runs.inputs.base import PARTS, InputKind, check_labels, checksum, draw


class LogInput(InputKind):
    """Samples that are events of an interaction log."""

    log: InteractionLog
    splits: Splits

    def load(self, scratch: Path | None = None) -> None:
        self.log = build_log(self.data)
        self._split()

    def _split(self) -> None:
        self.splits = build_splits(self.log, self.data)

    def check(self) -> list[str]:
        lines = validate_log(self.log, self.splits).lines()
        self._check_labels(PARTS)
        return lines

    def _check_labels(self, parts: tuple[str, ...]) -> None:
        for part in parts:
            labels = self._first_label()[self.splits[part]]
            check_labels(part, labels[labels >= 0])

    def _first_label(self) -> np.ndarray:
        """(E,) labels of the first task, which metrics without a task's name measure."""
        return self.log.label if self.tasks[0] == "label" else self.log.extra_labels[self.tasks[0]]

    def share(self, folder: Path) -> None:
        self.log.save(folder / "log")

    def load_shared(self, folder: Path) -> None:
        self.log = InteractionLog.load(folder / "log")
        self._split()

    def num_samples(self, part: str) -> int:
        return len(self.splits[part])

    @property
    def best_auc(self) -> float | None:
        return self.log.info.best_auc if self.tasks[0] == "label" else None

    def identify(self, part: str) -> dict[str, Any]:
        return log_columns(self.log, self.splits[part])

    def baselines(self, seed: int) -> tuple[dict[str, dict[str, dict[str, Any]]], int]:
        log, parts = self.log, baseline_splits(self.log, self.splits, self.data)
        if self.tasks[0] != "label":  # they measure what the model's metrics measure
            label = self._first_label()
            log = dataclasses.replace(log, label=label)
            kept = {part: own[label[own] >= 0] for part, own in parts.items()}
            parts = dataclasses.replace(parts, **kept)
        return baseline_metrics(log, parts, seed=seed), len(parts.train)


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
    parts = (splits.train, splits.validation, splits.test)
    return checksum(log.offsets, log.item, log.time, log.label, log.feedback, *parts, *more)


def log_columns(log: InteractionLog, events: np.ndarray) -> dict[str, Any]:
    """The identifying columns of samples of an interaction log, see `InputKind.identify`: `user` and `item` are the original ids."""
    columns = {
        "event": pa.array(events, pa.int64()),
        "user": pa.array(log.user_ids[log.user[events]]),
        "item": log.catalogue["item_id"].take(pa.array(log.item[events])),
        "time": pa.array(log.time[events], pa.int64()),
    }
    if log.weight is not None:
        columns["weight"] = pa.array(log.weight[events], pa.float32())
    return columns


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
