"""The space of a search: one YAML file, a recipe key per line with the values that it may take.

training.learning_rate: {low: 1e-4, high: 1e-2, log: true}      # numbers between the two
training.per_device_train_batch_size: {low: 128, high: 1024, step: 128}     # whole ones, where both are
model.hidden_units: [[64, 32], [128, 64], [256]]                # one of these, of any kind
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from lmctr.runs.find import GROUPS
from lmctr.utils.files import check_file, read_yaml
from lmctr.utils.values import Values, read_values, show

_ELSEWHERE = {
    "training.seed": "all trials have the recipe's seed, and the comparison those of --seeds",
    "training.data_seed": "all trials have the recipe's seed, and the comparison those of --seeds",
    "training.output_dir": "--output-dir decides it",
    "training.metric_for_best_model": "it is what trials are compared by",
    "model.family": "search each family by itself, and compare the best recipes",
    "data.baselines": "trials measure none",
    **dict.fromkeys(("data.labels", "data.tasks"), "it decides what trials are measured on"),
    **dict.fromkeys(
        (
            "training.refit",
            "training.rolling_origin",
            "training.effective_rank_samples",
            "training.save_strategy",
            "training.load_best_model_at_end",
            "training.report_to",
        ),
        "trials do without",
    ),
}


class RangeKeys(Values):
    """A range of numbers."""

    low: int | float
    high: int | float
    log: bool = Field(False, description="draw the logarithm evenly")
    step: int | float | None = Field(None, description="only low, low + step, ...")

    @model_validator(mode="after")
    def _check_range(self) -> RangeKeys:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError(f"low is {self.low} and high {self.high}, accepted: finite numbers")
        if not self.low < self.high:
            raise ValueError(f"low is {self.low} and high {self.high}: low must be below high")
        if self.log and (self.step is not None or self.low <= 0):
            raise ValueError("log: true needs a low above 0, and no step")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(f"step is {self.step}, accepted: a number above 0, up to high - low")
        return self

    @property
    def last(self) -> int | float:
        """The highest value: `high`, or with a step the last of low, low + step, ... up to it, in decimals as Optuna counts."""
        if self.step is None:
            return self.high
        low, high, step = (Decimal(str(value)) for value in (self.low, self.high, self.step))
        return type(self.low + self.high + self.step)(low + (high - low) // step * step)


@dataclass(frozen=True)
class Parameter:
    """A recipe key and its values: `choices` (of any YAML type), or a `range`. A choice is named by its JSON text."""

    key: str
    choices: tuple[Any, ...] | None = None
    range: RangeKeys | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the range is of whole numbers."""
        return all(not isinstance(value, float) for value in (self.range.low, self.range.high, self.range.step))

    def suggest(self, trial: Any) -> Any:
        """The value that a trial of Optuna takes."""
        if self.choices is not None:
            return json.loads(trial.suggest_categorical(self.key, [_text(choice) for choice in self.choices]))
        low, high, log, step = self.range.low, self.range.last, self.range.log, self.range.step
        if self.is_whole:
            return trial.suggest_int(self.key, low, high, log=log, step=step or 1)
        return trial.suggest_float(self.key, low, high, log=log, step=step)

    def encode(self, value: Any) -> Any:
        """What Optuna calls a value; None where the space does not hold it."""
        if self.choices is not None:
            return _text(value) if _text(value) in map(_text, self.choices) else None
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or (self.is_whole and value != int(value)) or not self.range.low <= value <= self.range.last:
            return None
        steps = 0.0 if self.range.step is None else (value - self.range.low) / self.range.step
        return value if abs(steps - round(steps)) < 1e-9 else None

    def corners(self) -> Iterable[Any]:
        """The choices, or the ends of the range."""
        return self.choices if self.choices is not None else (self.range.low, self.range.last)


def read_space(path: str | Path, fixed_data_keys: Iterable[str] = ()) -> list[Parameter]:
    """The parameters of a space.

    Args:
        path: the file. fixed_data_keys: keys of the group data that decide what is measured.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no mapping, a key that is not searched (with the reason), values that are no list and no range.
    """
    content = read_yaml(check_file(path))
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{path} must map recipe keys to values, such as training.learning_rate: [1e-3, 1e-2]")
    elsewhere = _ELSEWHERE | {f"data.{key}": "it decides what trials are measured on" for key in fixed_data_keys}
    parameters = []
    for key, given in content.items():
        if not isinstance(key, str) or key.split(".")[0] not in GROUPS or "." not in key:
            raise ValueError(f"{path}: {key!r} is no dotted recipe key; write for example training.learning_rate")
        reason = next((why for name, why in elsewhere.items() if f"{key}.".startswith(f"{name}.")), None)
        if reason is not None:
            raise ValueError(f"{path}: {key} is not searched: {reason}")
        if isinstance(given, Mapping):
            parameters.append(Parameter(key, range=read_values(RangeKeys, given, f"{path}: {key}")))
            continue
        if not isinstance(given, list) or len(given) < 2 or len(set(map(_text, given))) < len(given):
            accepted = "a list of two or more different values, or {low, high, log, step}"
            raise ValueError(f"{path}: {key} is {show(given)}, accepted: {accepted}")
        if key == "training.boosting_share" and "auto" in given:
            raise ValueError(f"{path}: {key}: trials have no share chosen for them, which auto is; give numbers")
        parameters.append(Parameter(key, choices=tuple(given)))
    return parameters


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
