"""For `evaluate.load`."""

from lmctr.evaluation import evaluate_base


class OrderedPairAccuracy(evaluate_base.MetricModule):
    """Ordered-pair accuracy of the ads of each impression."""

    name_, inputs = "ordered_pair_accuracy", "impressions"
    example = "predictions=[[0.1, 0.9, 0.5]], references=[[1, 3, 2]]"
    value = 1.0
    citation_ = evaluate_base.ADAPTIVE_RANKING
