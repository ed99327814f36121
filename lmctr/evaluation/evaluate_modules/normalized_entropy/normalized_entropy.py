"""For `evaluate.load`."""

from lmctr.evaluation import evaluate_base


class NormalizedEntropy(evaluate_base.MetricModule):
    """Log loss divided by the entropy of the labels' positive rate."""

    name_, inputs = "normalized_entropy", "probabilities"
    options = {"from_logits": None, "sample_weight": None}
    example = "predictions=[0.5, 0.5], references=[1, 0]"
    value = 1.0
    citation_ = """@inproceedings{he2014practical, title={Practical Lessons from Predicting Clicks on Ads at Facebook},
  author={He, Xinran and others}, booktitle={ADKDD}, year={2014}}"""
