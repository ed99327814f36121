"""The verdict of a run: beside which baseline, by how much, and what it says to try."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from lmctr.runs.training import results_table
from lmctr.runs.verdict import difference_test, strongest_baseline, verdict


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
        "below gradient boosting by 0.100 AUC; on test the strongest, counting, is 0.200 above the model: try "
    )
    assert verdict(result(0.8156, counting=0.7, gradient_boosting=0.8), {}) == (
        "above gradient boosting, the strongest baseline, by 0.016 AUC"
    )


@pytest.mark.parametrize(("counting", "way"), [(0.79, "0.010 below"), (0.8001, "level with"), (0.82, "0.020 above")])
def test_another_that_is_stronger_on_test_is_told(counting, way):
    assert verdict(result(0.8, counting=counting, gradient_boosting=0.75), {}) == (
        f"above gradient boosting, the strongest baseline on validation, by 0.050 AUC; on test the strongest, counting, is {way} the model"
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
    found = verdict(result(0.81, counting=0.8102, gradient_boosting=0.8), {})
    assert found.endswith("; on test the strongest, counting, is level with the model")
    assert "on test" not in verdict(result(0.81, counting=0.8003, gradient_boosting=0.8), {})


def test_an_auc_that_is_rarely_true_is_told():
    told = "; so high an AUC is rare: look for columns that are filled after the label"
    assert told in verdict(result(0.9996, counting=0.9), {})
    assert told in verdict(result(0.9996, counting=0.9999), {}).partition(": try")[0]
    assert told not in verdict(result(0.99, counting=0.9), {})
    assert told not in verdict(result(0.9996, counting=0.9) | {"best_auc": 0.9999}, {})  # data whose best is known


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
        "above gradient boosting, the strongest baseline on validation, by 0.016 AUC; on test the strongest, counting, is 0.084 above the model"
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


def test_a_model_that_read_fewer_samples_than_the_baselines_is_told_to_read_more():
    found = result(0.7, (0.6, 0.7), gradient_boosting=0.8) | {"training_samples": {"model": 2000, "baselines": 19_199}}
    says = ": try a larger data.max_train_samples: the model read 2,000 samples, the baselines 19,199"
    assert says in verdict(found, {"statistics": "full", "max_train_samples": 2000})
    assert ": try more epochs" in verdict(
        found, {"statistics": "full", "max_train_samples": None}
    )  # by a negative_share
    found["training_samples"]["model"] = 19_199
    assert ": try more epochs" in verdict(found, {"statistics": "full", "max_train_samples": 20_000})


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
        "above gradient boosting, the strongest baseline, by 0.016 AUC; the model's log loss is higher, 0.3100 against 0.3054"
    )
    found["split metrics"]["test"]["log_loss"] = 0.3
    assert "log loss" not in verdict(found, {})


def scored(quality, size, seed=0):
    """Predictions of a model, and the events and scores of a baseline without skill, in another order."""
    generator = np.random.default_rng(seed)
    label = (np.arange(size) % 3 == 0).astype(np.int8)
    logit = quality * label + generator.normal(size=size)
    order = generator.permutation(size)
    table = pa.table({"event": 7 * np.arange(size), "label": label, "logit": logit})
    return table, 7 * order, generator.normal(size=size)


@pytest.mark.parametrize(("quality", "size", "chance"), [(0.2, 40, True), (1.0, 2000, False), (-1.0, 2000, False)])
def test_a_difference_that_may_be_chance_is_said_to_be(quality, size, chance):
    predictions, events, scores = scored(quality, size)
    test = difference_test(predictions, events, scores)
    label, back = predictions["label"].to_numpy(), np.argsort(events)
    own = roc_auc_score(label, predictions["logit"].to_numpy())
    assert (test.value_a, test.value_b) == pytest.approx((own, roc_auc_score(label, scores[back])))
    said = verdict(result(test.value_a, gradient_boosting=test.value_b), {}, test_of=lambda name: test)
    low, high = (
        test.confidence_interval if test.difference > 0 else (-bound for bound in test.confidence_interval[::-1])
    )
    words = "which may be chance, " if chance else ""
    assert f"by {abs(test.difference):.3f} AUC ({words}95 % interval {low:.3f} to {high:.3f})" in said
    assert said.startswith("above" if test.difference > 0 else "below")


def test_what_no_difference_can_be_tested_on():
    predictions, events, scores = scored(1.0, 60)
    weighted = predictions.append_column("weight", pa.array(np.ones(60)))
    assert difference_test(weighted, events, scores) is None
    label = predictions["label"].to_numpy()
    for labels in (np.where(label, 0.75, 0), np.where(label, 1, -100)):
        assert difference_test(predictions.set_column(1, "label", pa.array(labels)), events, scores) is None
    one = difference_test(predictions.set_column(1, "label", pa.array(np.r_[1, np.zeros(59)])), events, scores)
    assert verdict(result(0.7, gradient_boosting=0.2), {}, test_of=lambda name: one) == (
        "above gradient boosting, the strongest baseline, by 0.500 AUC (which may be chance, 95 % interval -1.000 to 1.000)"
    )
    some = predictions.set_column(1, "label", pa.array(np.r_[label[:30], np.full(30, -100)].astype(np.int8)))
    assert difference_test(some, events, scores).num_pairs == 30


@pytest.mark.parametrize(("entropy", "told"), [(0.9999, False), (1.0067, True)])
def test_a_model_that_says_no_more_than_a_constant_does(entropy, told):
    found = result(0.51, counting=0.49)
    found["split metrics"]["test"]["normalized_entropy"] = entropy
    assert ("no higher than the model's (NE 1.0067)" in verdict(found, {})) == told
    assert verdict(found, {}).startswith("above counting, the strongest baseline, by 0.020 AUC")
