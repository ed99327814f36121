"""The verdict of a run: beside which baseline, by how much, and what it says to try."""

import pytest

from lmctr.runs.training import results_table
from lmctr.runs.verdict import strongest_baseline, verdict


def result(model, evaluations=(0.6, 0.7, 0.65), **test):
    """Validation AUCs in the order of the names, test AUCs as given."""
    baselines = {
        name: {"validation": {"auc": 0.6 + 0.01 * place}, "test": {"auc": auc}}
        for place, (name, auc) in enumerate(test.items())
    }
    return {
        "split metrics": {"test": {"auc": model}},
        "baselines": baselines,
        "evaluations": [{"auc": auc} for auc in evaluations],
    }


def test_the_strongest_is_chosen_on_validation():
    found = result(0.7, counting=0.9, gradient_boosting=0.8)
    assert strongest_baseline(found["baselines"]) == "gradient_boosting"
    assert verdict(found, {}).startswith(
        "below gradient boosting by 0.100 AUC; on test counting is 0.200 above the model: try "
    )
    assert verdict(result(0.8156, counting=0.7, gradient_boosting=0.8), {}) == (
        "above gradient boosting, the strongest baseline, by 0.016 AUC"
    )


@pytest.mark.parametrize(
    ("reached", "best", "says"),
    [
        (0.75, 0.9, "0.7500, 62% of the way from 0.5"),
        (0.5, 0.9, "0.5000, 0% of the way from 0.5"),
        (0.4131, 0.9, "0.4131, below the 0.5 of a constant"),
        (0.52, 0.5, "0.5200"),
    ],
)
def test_how_far_a_model_came(reached, best, says):
    found = result(reached) | {"best_auc": best, "training_samples": {"model": 9}}
    found["split metrics"]["test"] |= {
        "log_loss": 0.6,
        "normalized_entropy": 0.9,
        "num_samples": 9,
        "positive_rate": 0.5,
    }
    assert results_table(found).splitlines()[-1] == f"best reachable test AUC {best:.4f}; the model reached {says}"


@pytest.mark.parametrize("model", [0.8003, 0.8, 0.7996])
def test_a_difference_that_three_decimals_do_not_show_is_none(model):
    assert verdict(result(model, counting=0.7, gradient_boosting=0.8), {}) == (
        f"level with gradient boosting, the strongest baseline: AUC {model:.4f}, it 0.8000"
    )
    assert "on test" not in verdict(result(0.81, counting=0.8102, gradient_boosting=0.8), {})


def test_impressions_are_judged_by_what_they_earn():
    found = {
        "split metrics": {"test": {"revenue_ratio": 0.7073}},
        "baselines": {"ad_boosting": {part: {"revenue_ratio": 0.7545} for part in ("validation", "test")}},
        "evaluations": [{"revenue_ratio": 0.6}, {"revenue_ratio": 0.7}],
    }
    assert (
        verdict(found, {}) == "below ad boosting by 0.047 R/R*: try more epochs: validation R/R* still rose at the end"
    )
    found["baselines"]["best_reachable"] = {
        part: {"revenue_ratio": 0.97} for part in ("validation", "test")
    }  # no baseline
    found["split metrics"]["test"]["revenue_ratio"] = 0.8
    assert verdict(found, {}) == "above ad boosting, the strongest baseline, by 0.046 R/R*"


def test_a_baseline_that_leads_on_test_alone_is_named():
    assert verdict(result(0.8156, counting=0.9, gradient_boosting=0.8), {}) == (
        "above gradient boosting, the strongest baseline on validation, by 0.016 AUC; on test counting is 0.084 above the model"
    )


@pytest.mark.parametrize(
    ("data", "evaluations", "expected"),
    [
        ({"statistics": []}, (0.6, 0.7), "data.statistics: full"),
        ({"statistics": "basic"}, (0.6, 0.7), "data.statistics: full"),
        ({"statistics": ["full"]}, (0.6, 0.7), "more epochs"),
        ({"statistics": "full"}, (0.7, 0.6), "a lower training.learning_rate or fewer epochs"),
        ({}, (0.6, 0.7, 0.65), "lmctr search over"),
        ({}, (), "lmctr search over"),
    ],
)
def test_what_to_try_next(data, evaluations, expected):
    assert f": try {expected}" in verdict(result(0.7, evaluations, gradient_boosting=0.8), data)


def test_a_plain_table_has_no_statistics_to_try():
    found = result(0.7, field_counting=0.8)
    assert "statistics" not in verdict(found, {"statistics": []}, has_log=False)
    assert "statistics" in verdict(found, {"statistics": []}, has_log=True)


def test_trees_may_stand_beside_a_model_with_statistics():
    found = result(0.7, (0.6, 0.7), gradient_boosting=0.8)
    assert ": try training.boosting_share: 0.5" in verdict(found, {"statistics": "full"}, can_have_trees=True)
    assert ": try data.statistics: full" in verdict(found, {"statistics": []}, can_have_trees=True)


def test_without_a_baseline_by_auc_there_is_none():
    assert verdict(result(0.7), {}) is None
    impressions = {
        "split metrics": {"test": {"revenue_ratio": 0.9}},
        "baselines": {"random": {"test": {"revenue_ratio": 0.8}}},
    }
    assert verdict(impressions, {}) is None


def test_a_log_loss_that_is_worse_is_said():
    found = result(0.8156, counting=0.7, gradient_boosting=0.8)
    found["split metrics"]["test"]["log_loss"] = 0.31
    found["baselines"]["gradient_boosting"]["test"]["log_loss"] = 0.3054
    assert verdict(found, {}) == (
        "above gradient boosting, the strongest baseline, by 0.016 AUC; its log loss is higher, 0.3100 against 0.3054"
    )
    found["split metrics"]["test"]["log_loss"] = 0.3
    assert "log loss" not in verdict(found, {})
