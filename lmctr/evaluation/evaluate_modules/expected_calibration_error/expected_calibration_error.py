"""For `evaluate.load`."""

from lmctr.evaluation import evaluate_base


class ExpectedCalibrationError(evaluate_base.MetricModule):
    """Expected calibration error of the positive class."""

    name_, inputs = "expected_calibration_error", "probabilities"
    options = {
        "num_bins": "number of bins, default 10.",
        "strategy": '"uniform" or "quantile" bins, default "uniform".',
        "from_logits": None,
        "sample_weight": None,
    }
    example = "predictions=[0.75, 0.75], references=[1, 0]"
    value = 0.25
    citation_ = """@inproceedings{naeini2015obtaining, title={Obtaining Well Calibrated Probabilities Using Bayesian Binning},
  author={Naeini, Mahdi Pakdaman and Cooper, Gregory and Hauskrecht, Milos}, booktitle={AAAI}, year={2015}}"""
