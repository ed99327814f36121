"""From logits to the metrics dict that every report, run folder and model card of the library uses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from numpy.typing import ArrayLike

from lmctr.evaluation import metrics
from lmctr.models.common.base import IGNORED_LABEL
from lmctr.utils.tables import text_table

METRIC_NAMES = ("auc", "log_loss", "grouped_auc", "user_auc", "normalized_entropy", "expected_calibration_error")
"""Keys of a metrics dict in the order in which they are shown; `num_samples` and `positive_rate` follow them."""

RANKING_METRIC_NAMES = ("revenue_ratio", "ordered_pair_accuracy", "ndcg", "recall")
"""Keys of the metrics dict of a run on impressions (`lmctr.evaluation.ranking_evaluator`), likewise; `<metric>_dropped` counts the
impressions that have no value."""

LOWER_IS_BETTER = ("loss", "normalized_entropy", "expected_calibration_error")
"""How the names of metrics end that are the better the lower they are."""

METRIC_TITLES = {
    **dict(zip(RANKING_METRIC_NAMES, ("R/R*", "OPA", "NDCG", "Recall"))),
    "revenue_ratio_dropped": "R/R* dropped",
    "auc": "AUC",
    "log_loss": "logloss",
    "grouped_auc": "gAUC",
    "user_auc": "UAUC",
    "normalized_entropy": "NE",
    "expected_calibration_error": "ECE",
    "num_samples": "samples",
    "positive_rate": "positive",
}
"""What tables call the entries of a metrics dict."""


def evaluate_predictions(
    labels: ArrayLike,
    logits: ArrayLike,
    groups: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    from_logits: bool = True,
) -> dict[str, float | int]:
    """Measure logits against labels.

    Args:
        labels: (S,) values in {0, 1}; rows with label -100 are ignored.
        logits: (S,) logits; probabilities without `from_logits`.
        groups: (S,) group of each sample (the user) for the grouped AUC.
        sample_weight: (S,) weights.

    Returns:
        `auc`, `log_loss`, `grouped_auc` (groups weighted by their samples), `user_auc` (each group alike), `normalized_entropy`,
        `expected_calibration_error` (10 uniform bins), `num_samples` (rows measured) and `positive_rate`. `grouped_auc` and
        `user_auc` are absent without `groups`, and where no group holds both classes (a value that is not defined is left out,
        never replaced).

    Raises:
        ValueError: an empty or one-class set of labels, non-finite logits, shapes that differ.

    Example:
        >>> evaluate_predictions([1, 0, 1, 0], [2.0, -1.0, 0.5, 0.7])["auc"]
        0.75
    """
    labels = metrics._to_array(labels, "labels")
    values = metrics._to_array(logits, "logits" if from_logits else "probabilities")
    weight, keep = sample_weight, labels != IGNORED_LABEL
    if not keep.all():
        if len(values) != len(labels):
            raise ValueError(f"{len(values)} predictions for {len(labels)} labels: give one of each per sample")
        groups, weight = (
            None if own is None else metrics._of_samples(own, name, len(labels))[keep]
            for own, name in ((groups, "groups"), (weight, "sample_weight"))
        )
        labels, values = labels[keep], values[keep]
    if len(labels) == 0:
        raise ValueError(f"nothing to evaluate: no row has a label other than {IGNORED_LABEL}")
    result: dict[str, float | int] = {
        "auc": metrics.auc(labels, values, weight),
        "log_loss": metrics.log_loss(labels, values, from_logits, weight),
    }
    with suppress(metrics.UndefinedMetricError):
        if groups is not None:
            result["grouped_auc"] = metrics.grouped_auc(labels, values, groups, weight)
            result["user_auc"] = metrics.grouped_auc(labels, values, groups, weight, weighting="groups")
    result["normalized_entropy"] = metrics.normalized_entropy(labels, values, from_logits, weight)
    result["expected_calibration_error"] = metrics.expected_calibration_error(
        labels, values, from_logits=from_logits, sample_weight=weight
    )
    result["num_samples"] = len(labels)
    result["positive_rate"] = metrics._mean(labels, metrics._check_weight(weight, labels))
    return result


def evaluate_probabilities(
    labels: ArrayLike,
    probabilities: ArrayLike,
    groups: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> dict[str, float | int]:
    """`evaluate_predictions` for probabilities in [0, 1] (baselines, other libraries' models)."""
    return evaluate_predictions(labels, probabilities, groups, sample_weight, from_logits=False)


def rows_by_task(name: str, values: dict[str, float | int]) -> dict[str, dict[str, float | int]]:
    """Rows for [`format_metrics`]: a metrics dict, and where it has those of several labels (`<label>_auc`), a row for each."""
    rows = {name: values}
    for task in (key.removesuffix("_log_loss") for key in values if key.endswith("_log_loss")):
        rows[f"{name}, {task}"] = {key: values[f"{task}_{key}"] for key in METRIC_TITLES if f"{task}_{key}" in values}
    return rows


def words_on_undefined(values: dict[str, float | int], tasks: Sequence[str] = (), has_groups: bool = False) -> str:
    """What a metrics dict of samples of these labels lacks, and why; empty where it lacks nothing."""
    said = [
        f"no metrics of {task}, which has no positives or no negatives of a weight above 0"
        for task in tasks[1:]
        if f"{task}_auc" not in values
    ]
    if has_groups and "auc" in values and "grouped_auc" not in values:
        said.append("no gAUC and UAUC: no user has both positives and negatives")
    said += [
        f"no {METRIC_TITLES[name]}: no impression has one"
        for name in RANKING_METRIC_NAMES
        if f"{name}_dropped" in values and name not in values
    ]
    return "; ".join(said)


def format_metrics(rows: dict[str, dict[str, float | int]]) -> str:
    """A plain text table of metrics dicts: one line per row name, columns in the order of `METRIC_NAMES`.

    Args:
        rows: name (a model, a baseline, a split) to metrics dict. Values that a dict lacks are shown as "-".
    """
    columns = [key for key in METRIC_TITLES if any(key in values for values in rows.values())]

    def cell(value: float | int | None) -> str:
        if value is None:
            return "-"
        return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"

    table = [["", *(METRIC_TITLES[key] for key in columns)]]
    table += [[name, *(cell(values.get(key)) for key in columns)] for name, values in rows.items()]
    return text_table(table)
