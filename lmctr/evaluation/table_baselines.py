"""What a user would try on a table before a neural network: counting, and gradient boosting.

Both see a categorical value as its positive rate on the training part, smoothed towards that of all rows. Training rows have those of the other four
of five random folds, else rates of rare values would hold the row's own label; validation and test rows those of the whole training part. Weights
count in rates and fits (bins of numbers, folds, counts and what a leaf needs count rows), and a row of weight 0 is left out. Nothing is fitted on validation
and test rows.

Tables are read by attribute, as `lmctr.data.tables.store.TabularStore`: `input_ids` (S, F), `numeric_values` (S, Nn), `sequence_ids` (S, N, L),
`labels` (S,), `groups` (S,), `weight` (S,), each array or None.

S: rows, F: fields, R: rows of a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmctr.evaluation import baseline_parts as shared
from lmctr.evaluation.baseline_parts import NUM_FOLDS
from lmctr.evaluation.rates import STRENGTH, RateEncoder

PARTS = ("train", "validation", "test")
NUM_BINS = 32
MAX_FITTED_ROWS = 1_000_000
"""Training rows that the logistic regression and the trees are fitted on at most; rates count all of them."""


@dataclass(frozen=True)
class TableFeatures:
    """Of the rows of each part.

    Attributes:
        rates: part to (R, F') float32, log-odds of smoothed rates; of numbers by `NUM_BINS` bins of equal counts, of a sequence the mean of its values'.
        numbers: part to (R, Nn) float32 values of the numeric fields.
        counts: part to (R, F) float32, log(1 + training rows) with the categorical value, the row itself left out.
        fitted: (R',) places of the rows that "train" holds here, in the training part without rows of no label or of weight 0.
        labels: (R',) theirs, and weight: (R',), or None.
    """

    rates: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]
    counts: dict[str, np.ndarray]
    fitted: np.ndarray
    labels: np.ndarray
    weight: np.ndarray | None


def table_features(
    table: Any,
    splits: Mapping[str, np.ndarray],
    seed: int = 0,
    strength: float = STRENGTH,
    max_rows: int = MAX_FITTED_ROWS,
) -> TableFeatures:
    """What both baselines read, see the module's docstring.

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
    train = train[first_labels(table)[train] >= 0]
    train = train if table.weight is None else train[np.asarray(table.weight)[train] > 0]
    labels = first_labels(table)[train].astype(np.float64)
    shared.check_classes(labels, "the train part", "rows")
    generator = np.random.default_rng([seed, 77])
    fold = generator.integers(0, NUM_FOLDS, len(train))
    fitted = np.arange(len(train))
    if len(train) > max_rows:
        fitted = np.sort(generator.choice(len(train), max_rows, replace=False))
    rows = {name: np.asarray(splits[name]) for name in PARTS if name in splits}
    rows["train"] = train[fitted]
    weight = np.ones(len(train)) if table.weight is None else np.asarray(table.weight)[train].astype(np.float64)
    encoder = RateEncoder(labels, weight, fold, fitted, strength)
    rates: dict[str, list[np.ndarray]] = {name: [] for name in rows}
    numbers = {name: np.empty((len(part), 0), np.float32) for name, part in rows.items()}
    counts = {name: [none] for name, none in numbers.items()}

    def add(column: np.ndarray, with_counts: bool = False) -> None:
        found, seen = encoder.encode(column[train], {name: column[part] for name, part in rows.items()})
        for name in rows:
            rates[name].append(found[name])
            if with_counts:
                counts[name].append(np.log1p(seen[name]))

    if table.input_ids is not None:
        for field in range(table.input_ids.shape[1]):
            add(np.asarray(table.input_ids[:, field]), with_counts=True)
    if table.numeric_values is not None:
        for field in range(table.numeric_values.shape[1]):
            values = np.asarray(table.numeric_values[:, field])
            bounds = np.unique(np.quantile(values[rows["train"]], np.linspace(0, 1, NUM_BINS + 1)[1:-1]))
            add(np.searchsorted(bounds, values, side="right"))
        numbers = {name: np.asarray(table.numeric_values[part], dtype=np.float32) for name, part in rows.items()}
    if table.sequence_ids is not None:
        for field in range(table.sequence_ids.shape[1]):
            add(np.asarray(table.sequence_ids[:, field]))
    if not rates["train"]:
        raise ValueError("the table has no fields: a baseline needs input_ids, numeric_values or sequence_ids")

    def stacked(columns: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: np.column_stack(own).astype(np.float32) for name, own in columns.items()}

    known = None if table.weight is None else weight[fitted]
    return TableFeatures(stacked(rates), numbers, stacked(counts), fitted, labels[fitted], known)


def table_counting_baseline(features: TableFeatures) -> dict[str, np.ndarray]:
    """Logistic regression over the log-odds of the fields' rates: naive Bayes with a learned weight per field.

    Returns:
        "validation" and "test" to probabilities (R,).
    """
    from sklearn.linear_model import LogisticRegression

    return _probabilities(LogisticRegression(C=1.0, max_iter=1000), features.rates, features)


def table_gradient_boosting_baseline(features: TableFeatures, seed: int = 0) -> dict[str, np.ndarray]:
    """Boosted trees (`baseline_parts.boosted_trees`, drawn by `seed`) over the fields' rates, the counts of their values and the numeric values
    themselves. Returns: as `table_counting_baseline`.
    """
    inputs = {
        name: np.concatenate([values, features.counts[name], features.numbers[name]], axis=1)
        for name, values in features.rates.items()
    }
    return _probabilities(shared.boosted_trees(features.labels, seed), inputs, features)


def table_baseline_predictions(
    table: Any, splits: Mapping[str, np.ndarray], seed: int = 0, max_rows: int = MAX_FITTED_ROWS, refit: bool = False
) -> dict[str, dict[str, np.ndarray]]:
    """Probabilities (R,) of both baselines, by name and part, "validation" and "test".

    Args:
        table: the processed table.
        splits: row numbers: those that the model is evaluated on as "validation" and "test", the whole training part as "train".
        seed: of folds, drawn rows and trees.
        max_rows: see `table_features`.
        refit: fit on training and validation for the test split.

    Returns:
        {"field_counting": {"validation": probabilities, "test": probabilities}, "field_gradient_boosting": {...}}.
    """

    def predicted(splits: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
        features = table_features(table, splits, seed, max_rows=max_rows)
        return {
            "field_counting": table_counting_baseline(features),
            "field_gradient_boosting": table_gradient_boosting_baseline(features, seed),
        }

    predictions = predicted(splits)
    if not refit:
        return predictions
    both = np.sort(np.concatenate([splits["train"], splits["validation"]]))
    again = predicted({"train": both, "test": splits["test"]})
    return {name: own | again[name] for name, own in predictions.items()}


def table_baseline_metrics(
    table: Any,
    splits: Mapping[str, np.ndarray],
    predictions: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    **options: Any,
) -> dict[str, dict[str, dict[str, float | int]]]:
    """Metrics of both baselines on validation and test, in the form of a run's `metrics.json`.

    Args:
        table: the processed table; its groups are those of the grouped AUC, its weights the sample weights.
        splits, options: see `table_baseline_predictions`.
        predictions: what that returned, when it is there already.
    """
    predictions = table_baseline_predictions(table, splits, **options) if predictions is None else predictions
    return shared.metrics_by_part(predictions, splits, first_labels(table), table.groups, table.weight)


def first_labels(table: Any) -> np.ndarray:
    """(S,) labels of the first task of a table."""
    labels = np.asarray(table.labels)
    return labels if labels.ndim == 1 else labels[:, 0]


def _probabilities(model: Any, inputs: dict[str, np.ndarray], features: TableFeatures) -> dict[str, np.ndarray]:
    """Of validation and test, by a model that is fitted on the training rows."""
    model.fit(inputs["train"], features.labels, sample_weight=features.weight)
    return {part: shared.probabilities(model, inputs[part]) for part in shared.EVALUATED_PARTS if part in inputs}
