"""Module for `evaluate.load`: impression-weighted mean of the AUC inside each group (gAUC). The computation is `lmctr.evaluation.metrics.grouped_auc`."""

import datasets
import evaluate

from lmctr.evaluation import metrics

_DESCRIPTION = "Impression-weighted mean of the AUC inside each group (gAUC), as lmctr.evaluation.metrics.grouped_auc computes it."

_KWARGS_DESCRIPTION = """
Args:
    predictions: float64 scores (logits or probabilities), one per sample.
    references: labels, 0 or 1.
    groups: group of each sample, usually the user: integers or strings.
    sample_weight: one non-negative weight per sample; optional.

Returns:
    grouped_auc: float.

Example:
    >>> import evaluate
    >>> from lmctr.evaluation import evaluate_module_path
    >>> metric = evaluate.load(evaluate_module_path("grouped_auc"))
    >>> metric.compute(predictions=[0.9, 0.2, 0.4, 0.6], references=[1, 0, 1, 0], groups=[7, 7, 8, 8])
    {'grouped_auc': 0.5}
"""

_CITATION = """@inproceedings{zhou2018deep, title={Deep Interest Network for Click-Through Rate Prediction},
  author={Zhou, Guorui and others}, booktitle={KDD}, year={2018}}"""


class GroupedAUC(evaluate.Metric):
    """Impression-weighted mean of the AUC inside each group (gAUC); see `inputs_description`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=[
                datasets.Features(
                    {
                        "predictions": datasets.Value("float64"),
                        "references": datasets.Value("float64"),
                        "groups": datasets.Value(kind),
                    }
                )
                for kind in ("int64", "string")
            ],
        )

    def _compute(
        self, predictions: list[float], references: list[float], groups: list, sample_weight: list[float] | None = None
    ) -> dict[str, float]:
        value = metrics.grouped_auc(references, predictions, groups, sample_weight)
        return {"grouped_auc": value}
