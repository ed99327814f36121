"""For `evaluate.load`."""

from lmctr.evaluation import evaluate_base


class AUC(evaluate_base.MetricModule):
    """Exact ROC AUC, ties counted one half."""

    name_, inputs = "auc", "scores"
    options = {"sample_weight": None}
    example = "predictions=[0.9, 0.2, 0.4, 0.6], references=[1, 0, 1, 0]"
    value = 0.75
