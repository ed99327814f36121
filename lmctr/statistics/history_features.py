"""The set `basic` by the call that it had before there were others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .reader import StatisticsReader
from .table import STATISTIC_SETS, resolve_statistics

HISTORY_FEATURES = STATISTIC_SETS["basic"]
"""The eleven features, in column order; a log has those of them that its catalogue can give."""


@dataclass(frozen=True)
class HistoryFeatures:
    """Features of samples. `values` (S, F) float64, NaN where a value is not known; `names` (F,) names the columns."""

    names: tuple[str, ...]
    values: np.ndarray


def history_features(log: Any, events: np.ndarray, prior: float, strength: float = 10.0) -> HistoryFeatures:
    """The statistics `basic` of events, with rates smoothed towards `prior`, in (0, 1), with `strength` imaginary events."""
    names = resolve_statistics("basic", log)
    return HistoryFeatures(names, StatisticsReader(names, prior, strength=strength).raw(log, events))
