"""Module for `evaluate.load`: exact ROC AUC, ties counted one half. The computation is `lmctr.evaluation.metrics.auc`."""

import datasets
import evaluate

from lmctr.evaluation import metrics

_DESCRIPTION = "Exact ROC AUC, ties counted one half, as lmctr.evaluation.metrics.auc computes it."

_KWARGS_DESCRIPTION = """
Args:
    predictions: float64 scores (logits or probabilities), one per sample.
    references: labels, 0 or 1.
    sample_weight: one non-negative weight per sample; optional.

Returns:
    auc: float.

Example:
    >>> import evaluate
    >>> from lmctr.evaluation import evaluate_module_path
    >>> metric = evaluate.load(evaluate_module_path("auc"))
    >>> metric.compute(predictions=[0.9, 0.2, 0.4, 0.6], references=[1, 0, 1, 0])
    {'auc': 0.75}
"""

_CITATION = """"""


class AUC(evaluate.Metric):
    """Exact ROC AUC, ties counted one half; see `inputs_description`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {
                    "predictions": datasets.Value("float64"),
                    "references": datasets.Value("float64"),
                }
            ),
        )

    def _compute(
        self, predictions: list[float], references: list[float], sample_weight: list[float] | None = None
    ) -> dict[str, float]:
        value = metrics.auc(references, predictions, sample_weight)
        return {"auc": value}
