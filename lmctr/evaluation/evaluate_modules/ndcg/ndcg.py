"""For `evaluate.load`."""

from lmctr.evaluation import evaluate_base


class NDCG(evaluate_base.MetricModule):
    """NDCG@k of the ads of each impression."""

    name_, inputs = "ndcg", "impressions"
    options = {
        "k": "places that count; None (default) counts all.",
        "gain": '"linear" (default) or "exp2".',
        "ties": None,
    }
    example = "predictions=[[0.1, 0.9, 0.5]], references=[[0, 1, 0]]"
    value = 1.0
    citation_ = """@article{jarvelin2002cumulated, title={Cumulated gain-based evaluation of IR techniques},
  author={Jarvelin, Kalervo and Kekalainen, Jaana}, journal={ACM TOIS}, year={2002}}"""
