"""For `evaluate.load`."""

from lmctr.evaluation import evaluate_base


class GroupedAUC(evaluate_base.MetricModule):
    """Impression-weighted mean of the AUC inside each group (gAUC)."""

    name_, inputs = "grouped_auc", "scores"
    extra = {
        "groups": (
            "group of each sample, usually the user: numbers or strings.",
            (evaluate_base.datasets.Value("string"),),
        )
    }
    options = {"sample_weight": None, "weighting": "'samples' (default), or 'groups': each group counts alike (UAUC)."}
    example = "predictions=[0.9, 0.2, 0.4, 0.6], references=[1, 0, 1, 0], groups=[7, 7, 8, 8]"
    value = 0.5
    citation_ = """@inproceedings{zhou2018deep, title={Deep Interest Network for Click-Through Rate Prediction},
  author={Zhou, Guorui and others}, booktitle={KDD}, year={2018}}"""
