"""Slices: which samples they hold, and their metrics against plain sums."""

import numpy as np
import pytest
from test_baselines import make_log, make_splits

from lmctr.evaluation import metrics
from lmctr.evaluation.slices import sample_slices, slice_metrics, slices_text
from lmctr.statistics import StatisticsReader, resolve_statistics


def test_slices_hold_the_samples_that_they_name():
    log = make_log(0, num_events=900, num_users=4, seconds=2000)
    splits = make_splits(log)
    train = splits.train[: len(splits.train) // 3]
    train = train[(log.user[train] != 2) & (log.item[train] != 3)]
    slices = sample_slices(log, splits.test, train)
    assert set(slices) == {
        "labelled events of the user",
        "labelled events of the item",
        "user",
        "item",
        "missing statistics",
    }
    for side in ("user", "item"):
        column = getattr(log, side)
        codes, names = slices[f"labelled events of the {side}"]
        for event, code in zip(splits.test, codes):
            before = (column == column[event]) & (log.time < log.time[event]) & (log.label >= 0)
            low, _, high = names[code].replace(" or more", " to 100000").partition(" to ")
            assert int(low) <= before.sum() <= int(high or low)
        codes, names = slices[side]
        assert [names[code] for code in codes] == [
            "seen in training" if column[e] in column[train] else "new" for e in splits.test
        ]
        assert len(set(codes)) == 2


def test_metrics_of_a_slice():
    draw = np.random.default_rng(0)
    labels, groups = draw.integers(0, 2, 60), draw.integers(0, 5, 60)
    scores = {"model": draw.uniform(size=60), "gradient_boosting": draw.uniform(size=60)}
    codes = draw.integers(0, 2, 60)
    one = np.where(np.arange(60) == 7, 1, 0)
    weight = draw.uniform(0.5, 2, 60)
    slices = {"side": (codes, ["left", "right", "never"]), "one": (one, ["others", "alone"])}
    rows = slice_metrics(slices, labels, scores, groups, weight)
    assert [(row["slice"], row["value"]) for row in rows] == [
        ("side", "left"),
        ("side", "right"),
        ("one", "others"),
        ("one", "alone"),
    ]
    chosen = codes == 1
    row = rows[1]
    assert row["num_samples"] == chosen.sum()
    assert row["mean_label"] == pytest.approx((labels * weight)[chosen].sum() / weight[chosen].sum())
    for name, values in scores.items():
        assert row[f"{name}_auc"] == metrics.auc(labels[chosen], values[chosen], weight[chosen])
        assert row[f"{name}_grouped_auc"] == metrics.grouped_auc(
            labels[chosen], values[chosen], groups[chosen], weight[chosen]
        )
        assert row[f"{name}_mean"] == pytest.approx((values * weight)[chosen].sum() / weight[chosen].sum())
    assert rows[3]["model_auc"] is None
    lines = slices_text(rows).splitlines()
    assert lines[0].split("  ")[0] == "slice"
    assert "gAUC gradient boosting" in lines[0]
    assert f"{row['model_auc']:.4f}" in lines[2]


def test_a_slice_whose_samples_weigh_nothing_has_no_metrics():
    labels, weight = np.array([0, 1, 0, 1]), np.array([1.0, 2.0, 0.0, 0.0])
    scores, groups = {"model": np.linspace(0.2, 0.8, 4)}, np.array([0, 0, 1, 1])
    rows = slice_metrics({"user": (groups, ["old", "new"])}, labels, scores, groups, weight)
    assert rows[0]["model_auc"] == rows[0]["model_grouped_auc"] == 1.0
    told = {key: value for key, value in rows[1].items() if key.startswith(("model", "mean"))}
    assert set(told.values()) == {None}
    assert slices_text(rows).splitlines()[-1].split()[-1] == "-"


def test_missing_statistics_are_a_share_of_all_of_them():
    log = make_log(1, num_events=400, num_users=30, seconds=500)
    events = np.arange(400)
    raw = StatisticsReader(resolve_statistics("full", log), 0.5).raw(log, events)
    share = np.isnan(raw).mean(1)
    codes, names = sample_slices(log, events, events)["missing statistics"]
    assert [names[code] for code in codes] == [
        "none" if own == 0 else "below 10 %" if own < 0.1 else "10 % or more" for own in share
    ]
    assert len(set(codes)) > 1
