"""Module for `evaluate.load`: NDCG@k of the ads of each impression, ties sorted stably. The computation is `lmctr.evaluation.metrics.ndcg`."""

import datasets
import evaluate

from lmctr.evaluation import metrics

_DESCRIPTION = (
    "NDCG@k of the ads of each impression, ties sorted stably, as lmctr.evaluation.metrics.ndcg computes it."
)

_KWARGS_DESCRIPTION = """
Args:
    predictions: scores of the ads, one list per impression; the lists may differ in length.
    references: rank index v of the ads, higher is better, lists alike.
    k: places that count; None (default) counts all.
    gain: "linear" (default) or "exp2".

Returns:
    ndcg: float.

Example:
    >>> import evaluate
    >>> from lmctr.evaluation import evaluate_module_path
    >>> metric = evaluate.load(evaluate_module_path("ndcg"))
    >>> metric.compute(predictions=[[0.1, 0.9, 0.5]], references=[[0, 1, 0]])
    {'ndcg': 1.0}
"""

_CITATION = """@article{jarvelin2002cumulated, title={Cumulated gain-based evaluation of IR techniques},
  author={Jarvelin, Kalervo and Kekalainen, Jaana}, journal={ACM TOIS}, year={2002}}"""


class NDCG(evaluate.Metric):
    """NDCG@k of the ads of each impression, ties sorted stably; see `inputs_description`."""

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
        k: int | None = None,
        gain: str = "linear",
    ) -> dict[str, float]:
        return {"ndcg": metrics.ndcg(references, predictions, k, gain=gain)}
