"""Batches of labelled requests, such as the rows of a `datasets.Dataset`, for any trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lmctr.utils.rows import check_list, plain_row
from lmctr.utils.suggest import LISTED, first_of

_KEPT = ("text", "item")  # of behaviours and targets also where they are None


class RequestCollator:
    """Makes batches of requests as `pipeline("click-prediction")` takes them, with their labels; each is read when its batch is made.

    A row has `history` (behaviours, oldest first), `target`, `time` and `label`, and where it matters `scenario`, `user` (its features) and `sample_weight`;
    of a table its columns, among them the processor's label. Keys of behaviours and targets that are None are left out, as a `datasets.Dataset`
    has them where another row has a value. For `transformers.Trainer` set `remove_unused_columns=False`; [`CTRTrainer`] measures by the columns
    `labels`, `groups` and `sample_weight` of the data set, so `labels` is accepted for `label`.

    Args:
        processor: of a text, sequence or tabular family.

    Raises:
        ValueError: a processor of impressions; a row without one of these keys, and what the processor refuses, by the row's place in its batch.

    Example:

    ```python
    >>> rows = datasets.Dataset.from_list([{"history": [{"text": "Heat", "time": 1}], "target": "Casino", "time": 9, "label": 1.0}, ...])
    >>> Trainer(model, TrainingArguments("out", remove_unused_columns=False), RequestCollator(processor), rows).train()
    ```
    """

    def __init__(self, processor: Any) -> None:
        self.kind = getattr(processor, "request_kind", None)
        if self.kind not in ("text", "events", "table"):
            raise ValueError(
                f"processor: {type(processor).__name__} reads {self.kind or 'no requests'}; accepted: one of a text, sequence or tabular family"
            )
        self.processor = processor

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """The tensors of a batch, with `labels` (B,), and `sample_weight` (B,) where rows have one."""
        check_list(rows, "rows", "requests with their labels")
        if not len(rows):
            raise ValueError("rows: there are none")
        rows = [plain_row(row) for row in rows]
        for place, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise ValueError(
                    f"row {place} of the batch: expected a dict, got {type(row).__name__} {row!r:.80}; give a list of rows"
                )
        if self.kind == "table":
            batch = dict(self.processor(list(rows), return_tensors="pt", return_labels=True))
        else:
            batch = dict(self.processor(**self._requests(rows), return_tensors="pt"))
            if self.kind == "events":  # of one candidate a row
                of_candidates = {
                    key for key in batch if key.startswith("candidate") or key in ("dependence", "statistics")
                }
                batch = {key: value[:, 0] if key in of_candidates else value for key, value in batch.items()}
            batch["labels"] = torch.tensor(
                [_number(_of(row, place, "label", "labels"), place) for place, row in enumerate(rows)]
            )
        if any(row.get("sample_weight") is not None for row in rows):
            weights = [_of(row, place, "sample_weight") for place, row in enumerate(rows)]
            batch["sample_weight"] = torch.from_numpy(np.array(weights, dtype=np.float32))
        return batch

    def _requests(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {"histories": [], "times": []}
        targets = []
        for place, row in enumerate(rows):
            history = _of(row, place, "history")
            check_list(history, f"row {place} of the batch: history", "behaviours")
            found["histories"].append([_plain(behavior) for behavior in history])
            found["times"].append(_of(row, place, "time"))
            targets.append(_plain(_of(row, place, "target")))
        if self.kind == "text":
            return found | {"targets": targets}
        for key, name in (("scenario", "scenarios"), ("user", "users")):
            if key in rows[0]:
                found[name] = [_plain(_of(row, place, key)) for place, row in enumerate(rows)]
        if self.processor.statistics_reader is not None:
            found["statistics"] = [[_of(target, place, "statistics")] for place, target in enumerate(targets)]
            targets = [{key: value for key, value in target.items() if key != "statistics"} for target in targets]
        return found | {"candidates": [[target] for target in targets]}


def _number(label: Any, place: int) -> float:
    try:
        return float(label)
    except (TypeError, ValueError):
        raise ValueError(f"row {place} of the batch: the label {label!r:.80} is no number; accepted: 0 or 1") from None


def _of(row: Any, place: int, *names: str) -> Any:
    """The value of a key that a row must have."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    given = first_of([key for key, value in row.items() if value is not None], LISTED)
    hint = ""
    if not {"history", "target", "time"} & set(row):
        hint = "; transformers' Trainer leaves out what the model's forward does not take: set remove_unused_columns=False"
    raise ValueError(f"row {place} of the batch has no {names[0]!r}; it has {given}{hint}")


def _plain(value: Any) -> Any:
    """A behaviour or target without what it does not say."""
    if not isinstance(value, Mapping):
        return value
    return {key: own for key, own in value.items() if own is not None or key in _KEPT}
