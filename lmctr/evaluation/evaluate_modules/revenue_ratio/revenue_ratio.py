"""Module for `evaluate.load`: R/R*, the eCPM of the ads that a model passes on relative to the ground truth's. The computation is `lmctr.evaluation.metrics.revenue_ratio`."""

import datasets
import evaluate

from lmctr.evaluation import metrics

_DESCRIPTION = "R/R*, the eCPM of the ads that a model passes on relative to the ground truth's, as lmctr.evaluation.metrics.revenue_ratio computes it."

_KWARGS_DESCRIPTION = """
Args:
    predictions: scores of the ads, one list per impression; the lists may differ in length.
    references: rank index v of the ads, higher is better, lists alike.
    ecpm: revenue per mille of the ads, lists alike.
    m: ads that go on, a number or one per impression.
    ideal: "v" (as written, default) or "ecpm" (bounded by 1).

Returns:
    revenue_ratio: float.

Example:
    >>> import evaluate
    >>> from lmctr.evaluation import evaluate_module_path
    >>> metric = evaluate.load(evaluate_module_path("revenue_ratio"))
    >>> metric.compute(predictions=[[0.1, 0.9, 0.5]], references=[[3, 2, 1]], ecpm=[[10.0, 5.0, 0.0]], m=1)
    {'revenue_ratio': 0.5}
"""

_CITATION = """@misc{wang2024scaling, title={Scaling Laws for Online Advertisement Retrieval}, author={Wang, Yunli and others},
  year={2024}, eprint={2411.13322}, archivePrefix={arXiv}}"""


class RevenueRatio(evaluate.Metric):
    """R/R*, the eCPM of the ads that a model passes on relative to the ground truth's; see `inputs_description`."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {
                    "predictions": datasets.Sequence(datasets.Value("float64")),
                    "references": datasets.Sequence(datasets.Value("float64")),
                    "ecpm": datasets.Sequence(datasets.Value("float64")),
                }
            ),
        )

    def _compute(
        self,
        predictions: list[list[float]],
        references: list[list[float]],
        ecpm: list[list[float]],
        m: int | list[int],
        ideal: str = "v",
    ) -> dict[str, float]:
        return {"revenue_ratio": metrics.revenue_ratio(references, predictions, ecpm, m, ideal=ideal)}
