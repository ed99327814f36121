"""For `evaluate.load`."""

from lmctr.evaluation import evaluate_base


class RecallAt(evaluate_base.MetricModule):
    """Recall@m@k, the share of the k best ads by ground truth among the m best by score."""

    name_, inputs = "recall_at", "impressions"
    options = {
        "m": "ads that the model passes on, a number or one per impression.",
        "k": "ads that are wanted, a number or one per impression.",
        "ties": None,
    }
    example = "predictions=[[0.1, 0.9, 0.5]], references=[[3, 2, 1]], m=2, k=2"
    value = 0.5
    citation_ = evaluate_base.ADAPTIVE_RANKING
