"""What a user would pick instead of a language model: two counting statistics, a linear model and gradient boosting on the statistics `full`.

All read the labels of the past in strict time order, see `lmctr.statistics`, which count events whatever these weigh: weights say what a sample counts
in fits and metrics, and one of weight 0 is left out there. Only the training split is fitted on, unless a refit on training and validation is asked for.

`log` and `splits` are read by attribute (`lmctr.data.InteractionLog` and `Splits`, or anything with the same ones): see
`lmctr.statistics.reader`, and `log.weight` (E,) or None; `splits.train`, `.validation`, `.test` event indices.

E: events, S: samples, U: users, F: statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit

from lmctr.evaluation import baseline_parts as shared
from lmctr.statistics.reader import StatisticsReader

SPLIT_NAMES = ("train", *shared.EVALUATED_PARTS)


def counting_baseline(log: Any, splits: Any, strength: float = 10.0) -> dict[str, np.ndarray]:
    """Probability from two counts: the user's and the item's positive rate so far.

    Each rate is smoothed towards the training split's positive rate p with `strength` imaginary events,
    r = (positives + strength * p) / (events + strength), and the two are combined as independent evidence:
    logit(probability) = logit(r_user) + logit(r_item) - logit(p).

    Where the past holds clicks alone (negatives are drawn, and hidden), all rates are 1: there a logistic regression on the logarithms of both counts
    of events takes their place.

    Args:
        log: the interaction log.
        splits: event indices of the parts; each event must have a label 0 or 1.
        strength: number of imaginary events, greater than 0.

    Returns:
        "validation" and "test" to probabilities (S,), aligned with `splits.<name>`.

    Raises:
        ValueError: a training split with one class only, a split with an event without label, `strength` <= 0.
    """
    prior, hidden = _training_rate(log, splits), getattr(log, "hidden", None)
    if hidden is not None and (np.asarray(log.label)[~np.asarray(hidden)] == 1).all():
        return _fitted(_Samples(log, splits, ("user_count", "item_count")), False)["logistic_regression"]
    rates = StatisticsReader(("user_rate", "item_rate"), prior, strength=strength)
    probabilities = {}
    for name in shared.EVALUATED_PARTS:
        odds = logit(rates.raw(log, _events_of(log, splits, name))).sum(1)
        probabilities[name] = expit(odds - logit(prior))
    return probabilities


def baseline_predictions(
    log: Any, splits: Any, seed: int = 0, refit: bool = False, statistics: Sequence[str] = ("full",)
) -> dict[str, dict[str, np.ndarray]]:
    """Probabilities of the baselines, by name and part: `counting_baseline`; logistic regression on statistics as neural models get them (log-odds
    of rates, logarithms of counts, standardised); scikit-learn's boosted trees (`baseline_parts.statistic_trees`) on statistics and on the
    log-odds of that regression.

    Args:
        log: the interaction log. Its `weight` column, where there is one, weights the fits.
        splits: event indices of the parts, each with a label 0 or 1: the samples that the model is evaluated on as `splits.validation` and
            `splits.test`, the whole training split as `splits.train`.
        seed: seed of the trees.
        refit: fit on training and validation for the test split.
        statistics: what those read that read statistics.

    Returns:
        {"counting": {"validation": probabilities (S,), "test": ...}, "logistic_regression": {...}, "gradient_boosting": {...}},
        aligned with `splits.<part>`.

    Raises:
        ValueError: as `counting_baseline`.
    """
    return {"counting": counting_baseline(log, splits)} | _fitted(_Samples(log, splits, statistics), refit, seed)


def baseline_metrics(
    log: Any, splits: Any, seed: int = 0, predictions: Mapping[str, Mapping[str, np.ndarray]] | None = None
) -> dict[str, dict[str, dict[str, float | int]]]:
    """Metrics of the baselines on validation and test, in the form of a run's `metrics.json`.

    Args:
        log: the interaction log; users are the groups of the grouped AUC, `log.weight` the sample weights.
        splits, seed: see `baseline_predictions`. An empty part is left out of the result.
        predictions: what `baseline_predictions` returned, when it is there already.

    Returns:
        {"counting": {"validation": metrics, "test": metrics}, "logistic_regression": {...}, "gradient_boosting": {...}}.
    """
    predictions = baseline_predictions(log, splits, seed) if predictions is None else predictions
    events = {part: _events_of(log, splits, part) for part in SPLIT_NAMES}
    return shared.metrics_by_part(predictions, events, log.label, log.user, log.weight)


class _Samples:
    """The parts' events, and their statistics, worked out once for all baselines that read them."""

    def __init__(self, log: Any, splits: Any, names: Sequence[str]) -> None:
        _training_rate(log, splits)
        self.log, self.events = log, {name: _events_of(log, splits, name) for name in SPLIT_NAMES}
        self.reader = StatisticsReader.fit(log, self.events["train"], names)
        train = self.events["train"]
        if len(train) > shared.MAX_FITTED_EVENTS:  # statistics count all of them
            self.events["train"] = np.sort(train[shared.newest(np.asarray(log.time)[train], shared.MAX_FITTED_EVENTS)])
        raw = self.reader.raw(log, np.concatenate([*self.events.values()]))
        cuts = np.cumsum([len(self.events[name]) for name in SPLIT_NAMES[:-1]])
        self.raw = dict(zip(SPLIT_NAMES, np.split(raw, cuts)))


class _Models:
    """Logistic regression on scaled statistics, and, given a seed, boosted trees on raw statistics and on the log-odds of that regression: trees
    add up poorly what a sum tells."""

    def __init__(self, reader: StatisticsReader, seed: int | None) -> None:
        self.reader, self.seed, self.linear = reader, seed, shared.statistic_regression()

    def fit(self, raw: np.ndarray, labels: np.ndarray, weight: np.ndarray | None) -> None:
        scaled = self.reader.scaled(raw)
        self.linear.fit(scaled, labels, sample_weight=weight)
        if self.seed is not None:
            self.trees = shared.statistic_trees(labels, self.seed)
            self.trees.fit(self._with_odds(raw, scaled), labels, sample_weight=weight)

    def probabilities(self, raw: np.ndarray) -> dict[str, np.ndarray]:
        """(R,) by model; raw: (R, F)."""
        if not len(raw):
            return dict.fromkeys(("logistic_regression", "gradient_boosting"), np.empty(0))
        scaled = self.reader.scaled(raw)
        found = {"logistic_regression": shared.probabilities(self.linear, scaled)}
        if self.seed is not None:
            found["gradient_boosting"] = shared.probabilities(self.trees, self._with_odds(raw, scaled))
        return found

    def _with_odds(self, raw: np.ndarray, scaled: np.ndarray) -> np.ndarray:
        return np.column_stack([raw, self.linear.decision_function(scaled)])


def _fitted(samples: _Samples, refit: bool, seed: int | None = None) -> dict[str, dict[str, np.ndarray]]:
    """Probabilities by model of raw statistics and part. seed: of boosted trees; None leaves them out."""
    label = np.asarray(samples.log.label)
    weight = None if samples.log.weight is None else np.asarray(samples.log.weight)

    def fitted(rows: np.ndarray, raw: np.ndarray) -> _Models:
        if weight is not None:
            counted = weight[rows] > 0
            rows, raw = rows[counted], raw[counted]
        models = _Models(samples.reader, seed)
        models.fit(raw, label[rows], None if weight is None else weight[rows])
        return models

    parts, result = (samples.events, samples.raw), {}
    models = fitted(*(own["train"] for own in parts))
    for part in shared.EVALUATED_PARTS:
        if refit and part == "test":
            models = fitted(*(np.concatenate([own["train"], own["validation"]]) for own in parts))
        for name, own in models.probabilities(samples.raw[part]).items():
            result.setdefault(name, {})[part] = own
    return result


def _training_rate(log: Any, splits: Any) -> float:
    labels = np.asarray(log.label)[_events_of(log, splits, "train")]
    shared.check_classes(labels, "splits.train", "samples")
    return float(labels.mean())


def _events_of(log: Any, splits: Any, name: str) -> np.ndarray:
    events = np.asarray(getattr(splits, name), dtype=np.int64)
    without = np.asarray(log.label)[events] < 0
    if without.any():
        event = int(events[without][0])
        raise ValueError(
            f"splits.{name} holds {int(without.sum())} events without a label, the first is event {event}"
        )
    return events
