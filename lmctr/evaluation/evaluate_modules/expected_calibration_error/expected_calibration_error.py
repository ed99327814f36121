"""Module for `evaluate.load`: expected calibration error of the positive class. The computation is `lmctr.evaluation.metrics.expected_calibration_error`."""

import datasets
import evaluate

from lmctr.evaluation import metrics

_DESCRIPTION = "Expected calibration error of the positive class, as lmctr.evaluation.metrics.expected_calibration_error computes it."

_KWARGS_DESCRIPTION = """
Args:
    predictions: float64 probabilities of the positive class, or logits with from_logits=True, one per sample.
    references: labels, 0 or 1.
    num_bins: number of bins, default 10.
    strategy: "uniform" or "quantile" bins, default "uniform".
    from_logits: predictions are logits, default False.
    sample_weight: one non-negative weight per sample; optional.

Returns:
    expected_calibration_error: float.

Example:
    >>> import evaluate
    >>> from lmctr.evaluation import evaluate_module_path
    >>> metric = evaluate.load(evaluate_module_path("expected_calibration_error"))
    >>> metric.compute(predictions=[0.75, 0.75], references=[1, 0])
    {'expected_calibration_error': 0.25}
"""

_CITATION = """@inproceedings{naeini2015obtaining, title={Obtaining Well Calibrated Probabilities Using Bayesian Binning},
  author={Naeini, Mahdi Pakdaman and Cooper, Gregory and Hauskrecht, Milos}, booktitle={AAAI}, year={2015}}"""


class ExpectedCalibrationError(evaluate.Metric):
    """Expected calibration error of the positive class; see `inputs_description`."""

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
        num_bins: int = 10,
        strategy: str = "uniform",
        from_logits: bool = False,
        sample_weight: list[float] | None = None,
    ) -> dict[str, float]:
        value = metrics.expected_calibration_error(
            references, predictions, num_bins, strategy, from_logits, sample_weight
        )
        return {"expected_calibration_error": value}
