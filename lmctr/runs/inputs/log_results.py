"""What a run on an interaction log is measured beside: the baselines of the log, and slices of its samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.splits import Splits
from lmctr.evaluation.baselines import baseline_metrics, baseline_predictions
from lmctr.evaluation.slices import sample_slices, slice_metrics
from lmctr.runs.verdict import strongest_baseline
from lmctr.statistics.table import SCENARIO, tells_scenarios


class LogResults:
    """Baselines and slices, which share the baselines' predictions.

    Args:
        log: the log. label: (E,) what is predicted, where that is not the log's label.
        splits: the samples that the model is evaluated on, and the whole training part. statistics: what the baselines read, beside the
            scenario of a log of several.
    """

    def __init__(
        self,
        log: InteractionLog,
        splits: Splits,
        label: np.ndarray | None = None,
        statistics: Sequence[str] = ("full",),
    ) -> None:
        if label is not None:
            log = dataclasses.replace(log, label=label)
            splits = dataclasses.replace(splits, **{part: own[label[own] >= 0] for part, own in splits.items()})
        self.log, self.splits = log, splits
        reads_more = tells_scenarios(log) and SCENARIO not in statistics
        self.statistics = (*statistics, *([SCENARIO] if reads_more else []))
        self._found: tuple[tuple[int, bool], dict[str, dict[str, np.ndarray]]] | None = None

    def _predictions(self, seed: int, refit: bool) -> dict[str, dict[str, np.ndarray]]:
        if self._found is None or self._found[0] != (seed, refit):
            self._found = (seed, refit), baseline_predictions(self.log, self.splits, seed, refit, self.statistics)
        return self._found[1]

    def baselines(self, seed: int, refit: bool = False) -> tuple[dict[str, dict[str, dict[str, Any]]], int]:
        """Metrics by name and part, and the number of samples that were fitted on, for the test part."""
        predictions = self._predictions(seed, refit)
        fitted = len(self.splits.train) + (len(self.splits.validation) if refit else 0)
        return baseline_metrics(self.log, self.splits, predictions=predictions), fitted

    def scores(self, name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
        """After `baselines`: the events of a part and what a baseline gave them, both (S,)."""
        return self.splits[part], self._found[1][name][part]

    def slices(
        self, part: str, events: np.ndarray, logits: np.ndarray, seed: int, with_baseline: bool, refit: bool = False
    ) -> list[dict[str, Any]]:
        """Rows of `slice_metrics`, of the model and of the strongest baseline on the validation part.

        Args:
            events: (S,) the samples. logits: (S,) the model's. with_baseline: whether to fit the baselines.
        """
        log = self.log
        labelled = log.label[events] >= 0
        events, logits = events[labelled], np.asarray(logits, dtype=np.float64)[labelled]
        predictions = {"model": expit(logits)}
        if with_baseline:
            name = strongest_baseline(
                self.baselines(seed, refit)[0], "validation" if len(self.splits.validation) else part
            )
            scores = np.full(log.num_events, np.nan)
            scores[self.splits[part]] = self._predictions(seed, refit)[name][part]
            predictions[name] = scores[events]
        weight = None if log.weight is None else log.weight[events]
        slices = sample_slices(log, events, self.splits.train)
        return slice_metrics(slices, log.label[events], predictions, log.user[events], weight)
