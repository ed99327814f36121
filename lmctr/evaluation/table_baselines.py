"""What a user would try on a table before a neural network: counting, and gradient boosting.

Both see a categorical value as its positive rate on the training part, smoothed towards the training part's rate. The model on top is
fitted on rates that leave the row itself out (each row's rates come from the other four of five random folds), else it would
trust the rates of rare values, which then hold the row's own label. Validation and test rows get the rates of the whole
training part. Nothing is fitted on validation and test rows.

Tables are read by attribute (`lmctr.data.tables.store.TabularStore`, or anything with the same ones): `input_ids` (S, F),
`numeric_values` (S, Nn), `sequence_ids` (S, N, L), `labels` (S,), `groups` (S,), `weight` (S,), each array or None.

S: rows, F: fields, R: rows of a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from lmctr.evaluation.evaluator import evaluate_probabilities

__all__ = [
    "TableFeatures",
    "table_baseline_metrics",
    "table_counting_baseline",
    "table_features",
    "table_gradient_boosting_baseline",
]

PARTS = ("train", "validation", "test")
NUM_FOLDS = 5
NUM_BINS = 32
MAX_FITTED_ROWS = 1_000_000
"""Training rows that the logistic regression and the trees are fitted on at most; rates count all of them."""


@dataclass(frozen=True)
class TableFeatures:
    """Features of the rows of each part.

    Attributes:
        rates: part to (R, F') float32, log-odds of each field's smoothed rate; numeric fields as `NUM_BINS` bins of equal counts, a
            sequence as the mean of its values' log-odds.
        numbers: part to (R, Nn) float32 values of the numeric fields.
        counts: part to (R, F) float32, log(1 + training rows) with the categorical value.
        fitted: (R',) places in the training part of the rows that "train" holds here.
    """

    rates: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]
    counts: dict[str, np.ndarray]
    fitted: np.ndarray


def table_features(
    table: Any,
    splits: Mapping[str, np.ndarray],
    seed: int = 0,
    strength: float = 20.0,
    max_rows: int = MAX_FITTED_ROWS,
) -> TableFeatures:
    """The features that both baselines read, see the module's docstring.

    Args:
        table: the processed table.
        splits: row numbers of "train", "validation" and "test".
        seed: of the folds and of the rows drawn where there are more than `max_rows`.
        strength: imaginary rows with the training part's rate that smooth a value's rate, greater than 0.
        max_rows: training rows to keep, all of them counted.

    Raises:
        ValueError: a training part with one class only, `strength` <= 0, a table without fields.
    """
    if not strength > 0:
        raise ValueError(f"strength must be greater than 0, got {strength}")
    train = np.asarray(splits["train"])
    labels = np.asarray(table.labels)[train].astype(np.float64)
    if len(labels) == 0 or labels.min() == labels.max():
        raise ValueError(
            f"the train part has {len(labels)} rows of {len(np.unique(labels))} class(es): a baseline needs positives and negatives"
        )
    generator = np.random.default_rng([seed, 77])
    fold = generator.integers(0, NUM_FOLDS, len(train))
    fitted = np.arange(len(train))
    if len(train) > max_rows:
        fitted = np.sort(generator.choice(len(train), max_rows, replace=False))
    rows = {name: np.asarray(splits[name]) for name in PARTS if name in splits}
    rows["train"] = train[fitted]
    weight = np.ones(len(train)) if table.weight is None else np.asarray(table.weight)[train].astype(np.float64)
    prior = float(np.average(labels, weights=weight))
    encoder = _RateEncoder(labels, weight, fold, fitted, prior, strength)
    rates: dict[str, list[np.ndarray]] = {name: [] for name in rows}
    counts: dict[str, list[np.ndarray]] = {name: [] for name in rows}
    numbers = {name: np.empty((len(part), 0), np.float32) for name, part in rows.items()}

    def add(column: np.ndarray, with_counts: bool) -> None:
        values = {name: column[part] for name, part in rows.items()}
        found, seen = encoder.encode(column[train].astype(np.int64), values)
        for name in rows:
            rates[name].append(found[name])
            if with_counts:
                counts[name].append(seen[name])

    if table.input_ids is not None:
        for field in range(table.input_ids.shape[1]):
            add(np.asarray(table.input_ids[:, field]), with_counts=True)
    if table.numeric_values is not None:
        for field in range(table.numeric_values.shape[1]):
            values = np.asarray(table.numeric_values[:, field])
            bounds = np.unique(np.quantile(values[rows["train"]], np.linspace(0, 1, NUM_BINS + 1)[1:-1]))
            add(np.searchsorted(bounds, values, side="right"), with_counts=False)
        numbers = {name: np.asarray(table.numeric_values[part], dtype=np.float32) for name, part in rows.items()}
    if table.sequence_ids is not None:
        for field in range(table.sequence_ids.shape[1]):
            sequences = {name: np.asarray(table.sequence_ids[part, field]) for name, part in rows.items()}
            found = encoder.encode_lists(np.asarray(table.sequence_ids[train, field]), sequences)
            for name in rows:
                rates[name].append(found[name])
    if not rates["train"]:
        raise ValueError("the table has no fields: a baseline needs input_ids, numeric_values or sequence_ids")
    empty = {name: np.empty((len(part), 0), np.float32) for name, part in rows.items()}
    return TableFeatures(
        rates={name: np.column_stack(columns).astype(np.float32) for name, columns in rates.items()},
        numbers=numbers,
        counts={name: np.column_stack(cs).astype(np.float32) if cs else empty[name] for name, cs in counts.items()},
        fitted=fitted,
    )


def table_counting_baseline(
    table: Any, splits: Mapping[str, np.ndarray], features: TableFeatures | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """Logistic regression over the log-odds of the fields' rates: naive Bayes with a learned weight per field.

    Args:
        table, splits, seed: see `table_features`.
        features: what `table_features` returned, when it is there already.

    Returns:
        "validation" and "test" to probabilities (R,).
    """
    features = table_features(table, splits, seed) if features is None else features
    labels, weight = _fitted(table, splits, features)
    model = LogisticRegression(C=1.0, max_iter=200)
    model.fit(features.rates["train"], labels, sample_weight=weight)
    return {
        name: model.predict_proba(values)[:, 1] if len(values) else np.empty(0)
        for name, values in features.rates.items()
        if name != "train"
    }


def table_gradient_boosting_baseline(
    table: Any, splits: Mapping[str, np.ndarray], features: TableFeatures | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """Boosted trees over the fields' rates, the counts of their values and the numeric values themselves.

    Up to 500 trees, fewer when a tenth of the training rows stops to gain (from 1,000 rows on); learning rate 0.05.

    Args, returns: as `table_counting_baseline`.
    """
    features = table_features(table, splits, seed) if features is None else features
    labels, weight = _fitted(table, splits, features)
    stops_early = len(labels) >= 1000
    model = HistGradientBoostingClassifier(
        learning_rate=0.05,
        max_iter=500 if stops_early else 50,
        min_samples_leaf=min(100, max(20, len(labels) // 200)),
        early_stopping=stops_early,
        random_state=seed,
    )
    inputs = {
        name: np.concatenate([values, features.counts[name], features.numbers[name]], axis=1)
        for name, values in features.rates.items()
    }
    model.fit(inputs["train"], labels, sample_weight=weight)
    return {
        name: model.predict_proba(values)[:, 1] if len(values) else np.empty(0)
        for name, values in inputs.items()
        if name != "train"
    }


def table_baseline_metrics(
    table: Any, splits: Mapping[str, np.ndarray], seed: int = 0, max_rows: int = MAX_FITTED_ROWS
) -> dict[str, dict[str, dict[str, float | int]]]:
    """Metrics of both baselines on validation and test, in the form of a run's `metrics.json`.

    Args:
        table: the processed table; its groups are those of the grouped AUC, its weights the sample weights.
        splits: row numbers: those that the model is evaluated on as "validation" and "test", the whole training part as "train".
        seed: of folds, drawn rows and trees.
        max_rows: see `table_features`.

    Returns:
        {"field_counting": {"validation": metrics, "test": metrics}, "field_gradient_boosting": {...}}: other names than those of the
        baselines of a log, which count otherwise.
    """
    features = table_features(table, splits, seed, max_rows=max_rows)
    predictions = {
        "field_counting": table_counting_baseline(table, splits, features, seed),
        "field_gradient_boosting": table_gradient_boosting_baseline(table, splits, features, seed),
    }
    result: dict[str, dict[str, dict[str, float | int]]] = {name: {} for name in predictions}
    for part in ("validation", "test"):
        rows = np.asarray(splits.get(part, ()))
        if not len(rows):
            continue
        labels = np.asarray(table.labels)[rows]
        groups = None if table.groups is None else np.asarray(table.groups)[rows]
        weight = None if table.weight is None else np.asarray(table.weight)[rows]
        for name, values in predictions.items():
            result[name][part] = evaluate_probabilities(labels, values[part], groups, weight)
    return result


@dataclass(frozen=True)
class _RateEncoder:
    """Log-odds of smoothed rates: of a training row without its fold, of other rows with all folds."""

    labels: np.ndarray
    weight: np.ndarray
    fold: np.ndarray
    fitted: np.ndarray
    prior: float
    strength: float

    def encode(
        self, ids: np.ndarray, values: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Log-odds, and log(1 + training rows) of the value, by part; `ids` are those of the training part."""
        size = max(int(part.max(initial=0)) for part in (ids, *values.values())) + 1
        positives, totals = self._sums(ids, self.fold, self.labels, self.weight, size)
        whole, seen = self._log_odds(positives.sum(0), totals.sum(0)), np.log1p(totals.sum(0))
        rates, counts = {}, {}
        for name, part in values.items():
            rates[name], counts[name] = whole[part], seen[part]
        own = ids[self.fitted]
        cell = self.fold[self.fitted], own
        left = positives.sum(0)[own] - positives[cell], totals.sum(0)[own] - totals[cell]
        rates["train"], counts["train"] = self._log_odds(*left), np.log1p(left[1])
        return rates, counts

    def encode_lists(self, ids: np.ndarray, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Mean log-odds of a list's values, by part; 0, the log-odds of an empty list, is the prior's."""
        size = max(int(part.max(initial=0)) for part in (ids, *values.values())) + 1
        length = ids.shape[1]
        flat = ids.ravel()
        used = flat > 0
        fold, labels, weight = (np.repeat(array, length)[used] for array in (self.fold, self.labels, self.weight))
        positives, totals = self._sums(flat[used].astype(np.int64), fold, labels, weight, size)
        whole = self._log_odds(positives.sum(0), totals.sum(0))
        rates = {name: self._mean(whole[part], part > 0) for name, part in values.items()}
        own, own_fold = ids[self.fitted], self.fold[self.fitted, None]
        left = positives.sum(0)[own] - positives[own_fold, own], totals.sum(0)[own] - totals[own_fold, own]
        rates["train"] = self._mean(self._log_odds(*left), own > 0)
        return rates

    def _sums(
        self, ids: np.ndarray, fold: np.ndarray, labels: np.ndarray, weight: np.ndarray, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        cells = fold * size + ids
        positives = np.bincount(cells, labels * weight, minlength=NUM_FOLDS * size)
        totals = np.bincount(cells, weight, minlength=NUM_FOLDS * size)
        return positives.reshape(NUM_FOLDS, size), totals.reshape(NUM_FOLDS, size)

    def _log_odds(self, positives: np.ndarray, totals: np.ndarray) -> np.ndarray:
        rate = (positives + self.strength * self.prior) / (np.maximum(totals, 0) + self.strength)
        rate = np.clip(rate, 1e-9, 1 - 1e-9)  # differences of sums may leave the interval by rounding
        return np.log(rate) - np.log1p(-rate)

    def _mean(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        prior = np.log(self.prior) - np.log1p(-self.prior)
        count = mask.sum(1)
        return np.where(count > 0, (values * mask).sum(1) / np.maximum(count, 1), prior)


def _fitted(
    table: Any, splits: Mapping[str, np.ndarray], features: TableFeatures
) -> tuple[np.ndarray, np.ndarray | None]:
    """Labels and weights of the rows that the models are fitted on."""
    rows = np.asarray(splits["train"])[features.fitted]
    return np.asarray(table.labels)[rows], None if table.weight is None else np.asarray(table.weight)[rows]
