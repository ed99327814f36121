"""For `evaluate.load`."""

from lmctr.evaluation import evaluate_base


class RevenueRatio(evaluate_base.MetricModule):
    """R/R*, the eCPM of the ads that a model passes on relative to the ground truth's."""

    name_, inputs = "revenue_ratio", "impressions"
    extra = {
        "ecpm": (
            "revenue per mille of the ads, lists alike.",
            (evaluate_base.datasets.Sequence(evaluate_base.datasets.Value("float64")),),
        )
    }
    options = {
        "m": "ads that go on, a number or one per impression.",
        "ideal": '"v" (as written, default) or "ecpm" (bounded by 1).',
        "ties": None,
    }
    example = "predictions=[[0.1, 0.9, 0.5]], references=[[3, 2, 1]], ecpm=[[10.0, 5.0, 0.0]], m=1"
    value = 0.5
    citation_ = """@misc{wang2024scaling, title={Scaling Laws for Online Advertisement Retrieval}, author={Wang, Yunli and others},
  year={2024}, eprint={2411.13322}, archivePrefix={arXiv}}"""
