"""Module for `evaluate.load`: Ordered-pair accuracy of the ads of each impression. The computation is `lmctr.evaluation.metrics.ordered_pair_accuracy`."""

import datasets
import evaluate

from lmctr.evaluation import metrics

_DESCRIPTION = "Ordered-pair accuracy of the ads of each impression, as lmctr.evaluation.metrics.ordered_pair_accuracy computes it."

_KWARGS_DESCRIPTION = """
Args:
    predictions: scores of the ads, one list per impression; the lists may differ in length.
    references: rank index v of the ads, higher is better, lists alike.

Returns:
    ordered_pair_accuracy: float.

Example:
    >>> import evaluate
    >>> from lmctr.evaluation import evaluate_module_path
    >>> metric = evaluate.load(evaluate_module_path("ordered_pair_accuracy"))
    >>> metric.compute(predictions=[[0.1, 0.9, 0.5]], references=[[1, 3, 2]])
    {'ordered_pair_accuracy': 1.0}
"""

_CITATION = """@inproceedings{wang2024adaptive, title={Adaptive Neural Ranking Framework: Toward Maximized Business Goal for
  Cascade Ranking Systems}, author={Wang, Yunli and others}, booktitle={WWW}, year={2024}}"""


class OrderedPairAccuracy(evaluate.Metric):
    """Ordered-pair accuracy of the ads of each impression; see `inputs_description`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {
                    "predictions": datasets.Sequence(datasets.Value("float64")),
                    "references": datasets.Sequence(datasets.Value("float64")),
                }
            ),
        )

    def _compute(
        self,
        predictions: list[list[float]],
        references: list[list[float]],
    ) -> dict[str, float]:
        return {"ordered_pair_accuracy": metrics.ordered_pair_accuracy(references, predictions)}
