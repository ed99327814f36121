"""What a user would pick instead of a language model: two counting statistics, and gradient boosting on history features.

Both read the labels of the past in strict time order: the features of a sample use only events with a time below its own,
so events of the same second do not see each other, whichever split they belong to. Only the training split is fitted on:
the prior of the smoothed rates and the boosted trees know nothing of validation and test labels.

`log` and `splits` are read by attribute (`lmctr.data.InteractionLog` and `Splits`, or anything with the same ones):
`log.offsets` (U+1,), `log.user` (E,), `log.item` (E,), `log.time` (E,), `log.label` (E,), `log.history_end` (E,),
`log.weight` (E,) or None, `log.catalogue` (a pyarrow table); `splits.train`, `.validation`, `.test` event indices.

E: events, S: samples, U: users.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lmctr.evaluation import baseline_parts as shared
from lmctr.statistics.history_features import HISTORY_FEATURES, HistoryFeatures, history_features
from lmctr.statistics.reader import StatisticsReader

__all__ = [
    "HISTORY_FEATURES",
    "SPLIT_NAMES",
    "HistoryFeatures",
    "baseline_metrics",
    "counting_baseline",
    "gradient_boosting_baseline",
    "history_features",
]

SPLIT_NAMES = ("train", "validation", "test")


def counting_baseline(log: Any, splits: Any, strength: float = 10.0) -> dict[str, np.ndarray]:
    """Probability from two counts: the user's and the item's positive rate so far.

    Each rate is smoothed towards the training split's positive rate p with `strength` imaginary events,
    r = (positives + strength * p) / (events + strength), and the two are combined as independent evidence:
    logit(probability) = logit(r_user) + logit(r_item) - logit(p).

    Args:
        log: the interaction log.
        splits: event indices of the parts; each event must have a label 0 or 1.
        strength: number of imaginary events, greater than 0.

    Returns:
        "train", "validation" and "test" to probabilities (S,), aligned with `splits.<name>`.

    Raises:
        ValueError: a training split with one class only, a split with an event without label, `strength` <= 0.
    """
    prior = _training_rate(log, splits)
    rates = StatisticsReader(("user_rate", "item_rate"), prior, strength=strength)
    probabilities = {}
    for name in SPLIT_NAMES:
        odds = shared.log_odds(rates.raw(log, _events_of(log, splits, name))).sum(1)
        probabilities[name] = 1.0 / (1.0 + np.exp(shared.log_odds(prior) - odds))
    return probabilities


def gradient_boosting_baseline(log: Any, splits: Any, seed: int = 0, strength: float = 10.0) -> dict[str, np.ndarray]:
    """scikit-learn's boosted trees (`baseline_parts.boosted_trees`) on `history_features`, fitted on the training split.

    Args:
        log: the interaction log. Its `weight` column, where there is one, weights the fit.
        splits: event indices of the parts; each event must have a label 0 or 1.
        seed: seed of the classifier.
        strength: smoothing of the rates, see `history_features`.

    Returns:
        "train", "validation" and "test" to probabilities (S,), aligned with `splits.<name>`.

    Raises:
        ValueError: as `counting_baseline`.
    """
    prior = _training_rate(log, splits)
    events = {name: _events_of(log, splits, name) for name in SPLIT_NAMES}
    every = np.concatenate(list(events.values()))
    features = history_features(log, every, prior, strength).values
    parts = dict(zip(SPLIT_NAMES, np.split(features, np.cumsum([len(events[name]) for name in SPLIT_NAMES[:-1]]))))
    weight = None if log.weight is None else np.asarray(log.weight)[events["train"]]
    model = shared.boosted_trees(len(events["train"]), seed)
    return shared.fitted_probabilities(model, parts, np.asarray(log.label)[events["train"]], weight)


def baseline_metrics(log: Any, splits: Any, seed: int = 0) -> dict[str, dict[str, dict[str, float | int]]]:
    """Metrics of both baselines on validation and test, in the form of a run's `metrics.json`.

    Args:
        log: the interaction log; users are the groups of the grouped AUC, `log.weight` the sample weights.
        splits: event indices. Give the samples that the model is evaluated on as `splits.validation` and `splits.test`, and
            the whole training split as `splits.train`. An empty part is left out of the result.
        seed: seed of the gradient boosting.

    Returns:
        {"counting": {"validation": metrics, "test": metrics}, "gradient_boosting": {...}}.

    Example:
        >>> baseline_metrics(log, splits)["gradient_boosting"]["test"]["auc"]  # doctest: +SKIP
    """
    predictions = {
        "counting": counting_baseline(log, splits),
        "gradient_boosting": gradient_boosting_baseline(log, splits, seed=seed),
    }
    events = {part: _events_of(log, splits, part) for part in SPLIT_NAMES}
    return shared.metrics_by_part(predictions, events, log.label, log.user, log.weight)


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
