"""The metrics dict, and the modules for `evaluate.load`."""

import evaluate
import numpy as np
import pytest

from lmctr.evaluation import evaluate_module_path, list_evaluate_modules, metrics
from lmctr.evaluation.evaluator import METRIC_NAMES, evaluate_predictions, evaluate_probabilities, format_metrics


@pytest.fixture
def sample():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 400).astype(np.float32)
    logits = generator.normal(size=400) + labels
    return labels, logits, generator.integers(0, 25, 400), generator.uniform(0.5, 2, 400)


def test_keys_and_values(sample):
    labels, logits, groups, weight = sample
    result = evaluate_predictions(labels, logits, groups, weight)
    assert list(result) == [*METRIC_NAMES, "num_samples", "positive_rate"]
    assert result["auc"] == metrics.auc(labels, logits, weight)
    assert result["log_loss"] == metrics.log_loss(labels, logits, True, weight)
    assert result["grouped_auc"] == metrics.grouped_auc(labels, logits, groups, weight)
    assert result["user_auc"] == metrics.grouped_auc(labels, logits, groups, weight, weighting="groups")
    assert result["normalized_entropy"] == metrics.normalized_entropy(labels, logits, True, weight)
    assert result["expected_calibration_error"] == metrics.expected_calibration_error(
        labels, logits, from_logits=True, sample_weight=weight
    )
    assert result["num_samples"] == 400
    assert result["positive_rate"] == pytest.approx((labels * weight).sum() / weight.sum())
    assert all(type(value) in (float, int) for value in result.values())  # numpy scalars are not JSON


def test_probabilities_give_what_their_logits_give(sample):
    labels, logits, groups, weight = sample
    from_logits = evaluate_predictions(labels, logits, groups, weight)
    from_probabilities = evaluate_probabilities(labels, 1 / (1 + np.exp(-logits)), groups, weight)
    assert from_probabilities == pytest.approx(from_logits, rel=1e-9)


def test_filler_rows_do_not_count(sample):
    labels, logits, groups, weight = sample
    filled = evaluate_predictions(
        np.r_[labels, -100, -100], np.r_[logits, np.nan, 5.0], np.r_[groups, 0, 0], np.r_[weight, 1, 1]
    )
    assert filled == evaluate_predictions(labels, logits, groups, weight)
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate_predictions([-100, -100], [0.1, 0.2])
    with pytest.raises(ValueError, match=r"groups must have shape \(3,\), one per sample, got \(2,\)"):
        evaluate_predictions([1, 0, -100], [0.1, 0.2, 0.3], [1, 1])


def test_grouped_auc_is_left_out_where_it_is_not_defined(sample):
    labels, logits, _, _ = sample
    assert "grouped_auc" not in evaluate_predictions(labels, logits)
    assert "grouped_auc" not in evaluate_predictions(labels, logits, np.arange(400))
    # the only mixed group has a negative of weight 0
    assert "grouped_auc" not in evaluate_predictions([1, 0, 1, 0], [1, 2, 3, 4], [0, 0, 1, 2], [1, 0, 1, 1])


def test_one_class_and_broken_logits_are_errors():
    with pytest.raises(ValueError, match="one class"):
        evaluate_predictions([1, 1], [0.1, 0.2])
    with pytest.raises(ValueError, match="NaN at row 1"):
        evaluate_predictions([1, 0], [0.1, np.nan])
    with pytest.raises(ValueError, match="3 predictions for 2 labels"):
        evaluate_predictions([1, -100], [0.1, 0.2, 0.3])


def test_table_shows_what_there_is():
    table = format_metrics(
        {"model": {"auc": 0.87654, "num_samples": 12345}, "baseline": {"auc": 0.8, "log_loss": 0.5}}
    )
    lines = [line.split() for line in table.splitlines()]
    assert lines == [
        ["AUC", "logloss", "samples"],
        ["model", "0.8765", "-", "12,345"],
        ["baseline", "0.8000", "0.5000", "-"],
    ]


ON_IMPRESSIONS = {
    "ndcg",
    "ordered_pair_accuracy",
    "recall_at",
    "revenue_ratio",
}  # tests/evaluation/test_ranking_metrics.py


@pytest.mark.parametrize("name", sorted(set(list_evaluate_modules()) - ON_IMPRESSIONS))
def test_evaluate_modules_load_and_agree(name, sample, tmp_path):
    labels, logits, groups, weight = sample
    probabilities = 1 / (1 + np.exp(-logits))
    module = evaluate.load(evaluate_module_path(name), cache_dir=str(tmp_path))
    extra = {"groups": groups} if name == "grouped_auc" else {}
    function = getattr(metrics, name)
    expected = function(labels, probabilities, *extra.values(), sample_weight=weight)
    value = module.compute(predictions=probabilities, references=labels, sample_weight=weight, **extra)
    assert value == {name: pytest.approx(expected, abs=1e-12)}
    for part in (slice(0, 150), slice(150, 400)):  # in batches
        module.add_batch(
            predictions=probabilities[part], references=labels[part], **{k: v[part] for k, v in extra.items()}
        )
    expected = function(labels, probabilities, *extra.values())
    assert module.compute() == {name: pytest.approx(expected, abs=1e-12)}


def test_evaluate_modules_pass_their_options_on(sample, tmp_path):
    labels, logits, groups, _ = sample
    module = evaluate.load(evaluate_module_path("expected_calibration_error"), cache_dir=str(tmp_path))
    value = module.compute(predictions=logits, references=labels, num_bins=5, strategy="quantile", from_logits=True)
    expected = metrics.expected_calibration_error(labels, logits, 5, "quantile", True)
    assert value["expected_calibration_error"] == pytest.approx(expected, abs=1e-12)
    module = evaluate.load(evaluate_module_path("grouped_auc"), cache_dir=str(tmp_path))
    names = [f"user {group}" for group in groups]
    value = module.compute(predictions=logits, references=labels, groups=names)
    assert value["grouped_auc"] == pytest.approx(metrics.grouped_auc(labels, logits, groups), abs=1e-12)
    value = module.compute(predictions=logits, references=labels, groups=names, weighting="groups")
    expected = metrics.grouped_auc(labels, logits, groups, weighting="groups")
    assert value["grouped_auc"] == pytest.approx(expected, abs=1e-12)


def test_the_grouped_module_takes_groups_of_any_kind(tmp_path):
    module = evaluate.load(evaluate_module_path("grouped_auc"), cache_dir=str(tmp_path))
    values = {"predictions": [0.9, 0.2, 0.4, 0.6], "references": [1, 0, 1, 0]}
    for groups in ([1.2, 1.2, 1.7, 1.7], np.array([2**63, 2**63, 1, 1], np.uint64), [True, True, False, False]):
        assert module.compute(**values, groups=groups) == {"grouped_auc": 0.5}
    with pytest.raises(ValueError, match="groups is None at row 1"):
        module.compute(**values, groups=["a", None, "b", "b"])
    for row, group in enumerate((1, 1, "a", "a")):
        module.add(prediction=values["predictions"][row], reference=values["references"][row], groups=group)
    assert module.compute() == {"grouped_auc": 0.5}


def test_evaluate_modules_are_measured_together(sample, tmp_path):
    labels, logits, _, weight = sample
    paths = (evaluate_module_path(name) for name in ("auc", "log_loss"))
    together = evaluate.combine([evaluate.load(path, cache_dir=str(tmp_path)) for path in paths])
    found = together.compute(predictions=logits, references=labels, from_logits=True, sample_weight=weight)
    expected = evaluate_predictions(labels, logits, sample_weight=weight)
    assert found == {name: pytest.approx(expected[name], abs=1e-12) for name in ("auc", "log_loss")}


def test_of_modules_measured_together_each_takes_its_own(sample, tmp_path):
    """`evaluate.combine` hands all inputs and options to all; what none of them takes, and others' options to one alone, are refused."""
    labels, logits, groups, _ = sample
    values = {"predictions": logits, "references": labels}
    names = ("auc", "grouped_auc", "expected_calibration_error")
    modules = [evaluate.load(evaluate_module_path(name), cache_dir=str(tmp_path)) for name in names]
    options = {"groups": groups, "weighting": "groups", "num_bins": 5, "from_logits": True}
    found = evaluate.combine(modules).compute(**values, **options)
    alone = [{}, {"groups": groups, "weighting": "groups"}, {"num_bins": 5, "from_logits": True}]
    expected = {
        key: value for module, own in zip(modules, alone) for key, value in module.compute(**values, **own).items()
    }
    assert found == expected
    assert found["grouped_auc"] == pytest.approx(metrics.grouped_auc(labels, logits, groups, weighting="groups"))
    with pytest.raises(TypeError, match="auc has no option 'num_bin'"):
        evaluate.combine(modules).compute(**values, groups=groups, num_bin=5)
    with pytest.raises(TypeError, match="auc has no option 'groups'"):
        modules[0].compute(**values, groups=groups)
    with pytest.raises(TypeError, match="auc has no option 'num_bins'"):
        evaluate.combine(modules[:2]).compute(**values, groups=groups, num_bins=5)


def test_every_metric_has_an_evaluate_module():
    assert set(list_evaluate_modules()) == set(metrics.__all__) - {
        "UndefinedMetricError",
        "RankingMetrics",
        "calibration_curve",
    }
    with pytest.raises(ValueError, match="unknown evaluate module 'f1'; known modules: auc"):
        evaluate_module_path("f1")


@pytest.mark.parametrize("name", list_evaluate_modules())
def test_the_example_of_an_evaluate_module_is_true(name, tmp_path):
    module = evaluate.load(evaluate_module_path(name), cache_dir=str(tmp_path))
    call, value = module.inputs_description.strip().splitlines()[-2:]
    assert str(eval(call.removeprefix("    >>> metric."), {"compute": module.compute})) == value.strip()
    assert f"metrics.{name} computes it" in module.description


def test_an_evaluate_module_refuses_unknown_options(tmp_path):
    module = evaluate.load(evaluate_module_path("auc"), cache_dir=str(tmp_path))
    with pytest.raises(TypeError, match=r"auc has no option 'prediction_scores'.*its inputs: predictions, references"):
        module.compute(references=[0, 1], prediction_scores=[0.1, 0.2])
    with pytest.raises(ValueError, match="auc: predictions not given; give all of predictions, references"):
        module.compute(references=[0, 1])
    with pytest.raises(TypeError, match="auc has no option 'num_bins'; its options: sample_weight"):
        module.compute(predictions=[0.1, 0.2], references=[0, 1], num_bins=3)
