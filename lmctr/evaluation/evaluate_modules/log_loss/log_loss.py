"""For `evaluate.load`."""

from lmctr.evaluation import evaluate_base


class LogLoss(evaluate_base.MetricModule):
    """Mean binary cross entropy in nats."""

    name_, inputs = "log_loss", "probabilities"
    options = {"from_logits": None, "sample_weight": None}
    example = "predictions=[0.5, 0.5], references=[1, 0]"
    value = 0.6931471805599453
