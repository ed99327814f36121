"""Module for `evaluate.load`: log loss divided by the entropy of the labels' positive rate. The computation is `lmctr.evaluation.metrics.normalized_entropy`."""

import datasets
import evaluate

from lmctr.evaluation import metrics

_DESCRIPTION = "Log loss divided by the entropy of the labels' positive rate, as lmctr.evaluation.metrics.normalized_entropy computes it."

_KWARGS_DESCRIPTION = """
Args:
    predictions: float64 probabilities of the positive class, or logits with from_logits=True, one per sample.
    references: labels, 0 or 1.
    from_logits: predictions are logits, default False.
    sample_weight: one non-negative weight per sample; optional.

Returns:
    normalized_entropy: float.

Example:
    >>> import evaluate
    >>> from lmctr.evaluation import evaluate_module_path
    >>> metric = evaluate.load(evaluate_module_path("normalized_entropy"))
    >>> metric.compute(predictions=[0.5, 0.5], references=[1, 0])
    {'normalized_entropy': 1.0}
"""

_CITATION = """@inproceedings{he2014practical, title={Practical Lessons from Predicting Clicks on Ads at Facebook},
  author={He, Xinran and others}, booktitle={ADKDD}, year={2014}}"""


class NormalizedEntropy(evaluate.Metric):
    """Log loss divided by the entropy of the labels' positive rate; see `inputs_description`."""

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
        self,
        predictions: list[float],
        references: list[float],
        from_logits: bool = False,
        sample_weight: list[float] | None = None,
    ) -> dict[str, float]:
        value = metrics.normalized_entropy(references, predictions, from_logits, sample_weight)
        return {"normalized_entropy": value}
