"""Module for `evaluate.load`: Recall@m@k, the share of the k best ads by ground truth among the m best by score. The computation is `lmctr.evaluation.metrics.recall_at`."""

import datasets
import evaluate

from lmctr.evaluation import metrics

_DESCRIPTION = "Recall@m@k, the share of the k best ads by ground truth among the m best by score, as lmctr.evaluation.metrics.recall_at computes it."

_KWARGS_DESCRIPTION = """
Args:
    predictions: scores of the ads, one list per impression; the lists may differ in length.
    references: rank index v of the ads, higher is better, lists alike.
    m: ads that the model passes on. k: ads that are wanted. Numbers, or one per impression.

Returns:
    recall_at: float.

Example:
    >>> import evaluate
    >>> from lmctr.evaluation import evaluate_module_path
    >>> metric = evaluate.load(evaluate_module_path("recall_at"))
    >>> metric.compute(predictions=[[0.1, 0.9, 0.5]], references=[[3, 2, 1]], m=2, k=2)
    {'recall_at': 0.5}
"""

_CITATION = """@inproceedings{wang2024adaptive, title={Adaptive Neural Ranking Framework: Toward Maximized Business Goal for
  Cascade Ranking Systems}, author={Wang, Yunli and others}, booktitle={WWW}, year={2024}}"""


class RecallAt(evaluate.Metric):
    """Recall@m@k, the share of the k best ads by ground truth among the m best by score; see `inputs_description`."""

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
        m: int | list[int],
        k: int | list[int],
    ) -> dict[str, float]:
        return {"recall_at": metrics.recall_at(references, predictions, m, k)}
