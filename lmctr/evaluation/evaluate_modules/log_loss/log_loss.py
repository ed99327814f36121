"""Module for `evaluate.load`: mean binary cross entropy in nats. The computation is `lmctr.evaluation.metrics.log_loss`."""

import datasets
import evaluate

from lmctr.evaluation import metrics

_DESCRIPTION = "Mean binary cross entropy in nats, as lmctr.evaluation.metrics.log_loss computes it."

_KWARGS_DESCRIPTION = """
Args:
    predictions: float64 probabilities of the positive class, or logits with from_logits=True, one per sample.
    references: labels, 0 or 1.
    from_logits: predictions are logits, default False.
    sample_weight: one non-negative weight per sample; optional.

Returns:
    log_loss: float.

Example:
    >>> import evaluate
    >>> from lmctr.evaluation import evaluate_module_path
    >>> metric = evaluate.load(evaluate_module_path("log_loss"))
    >>> metric.compute(predictions=[0.5, 0.5], references=[1, 0])
    {'log_loss': 0.6931471805599453}
"""

_CITATION = """"""


class LogLoss(evaluate.Metric):
    """Mean binary cross entropy in nats; see `inputs_description`."""

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
        value = metrics.log_loss(references, predictions, from_logits, sample_weight)
        return {"log_loss": value}
