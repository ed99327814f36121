"""Baselines: every feature against a plain loop over all earlier events, no look at the future, quality on a planted log."""

import math
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from lmctr.data import InteractionLog
from lmctr.evaluation import baselines, metrics
from lmctr.statistics import STATISTIC_SETS, StatisticsReader, resolve_statistics

GENRES = [["a", "b"], ["b"], [], ["a", "c", "b"], ["c"], None]
YEARS = [1990, None, 2001, 2010, 1977, 2000]


def make_log(seed=0, num_users=8, num_events=300, seconds=60, unlabelled=0.15, catalogue=None, weight=None):
    """Few seconds for many events, so that events of one second are common; some events are history without label."""
    generator = np.random.default_rng(seed)
    if catalogue is None:
        catalogue = pa.table({"item_id": list(range(6)), "genres": GENRES, "year": pa.array(YEARS, pa.int16())})
    label = generator.integers(0, 2, num_events)
    label[generator.uniform(size=num_events) < unlabelled] = -1
    return InteractionLog.from_columns(
        user=generator.integers(0, num_users, num_events),
        item=generator.integers(0, catalogue.num_rows, num_events),
        time=1_000_000 + generator.integers(0, seconds, num_events),
        label=label,
        catalogue=catalogue,
        weight=weight,
    )


def make_splits(log):
    events = log.sample_events()
    events = events[np.argsort(log.time[events], kind="stable")]
    first, second = int(0.6 * len(events)), int(0.8 * len(events))
    return SimpleNamespace(train=events[:first], validation=events[first:second], test=events[second:])


def loop_features(log, event, prior, strength):
    """One event's features by looking at every other event of the log."""
    user, item, time = log.user[event], log.item[event], log.time[event]
    genres = log.catalogue["genres"].to_pylist()
    earlier = [e for e in range(log.num_events) if log.time[e] < time]
    mine = [e for e in earlier if log.user[e] == user]  # in log order: by time

    def rate(events):
        labels = [int(log.label[e]) for e in events if log.label[e] >= 0]
        return (sum(labels) + strength * prior) / (len(labels) + strength), len(labels)

    per_genre = [rate([e for e in mine if genre in (genres[log.item[e]] or [])])[0] for genre in genres[item] or []]
    labels = [int(log.label[e]) for e in mine if log.label[e] >= 0]
    year = log.catalogue["year"][int(item)].as_py()
    nan = math.nan
    return [
        *rate(mine),
        *rate([e for e in earlier if log.item[e] == item]),
        sum(per_genre) / len(per_genre) if per_genre else nan,
        max(per_genre, default=nan),
        min(per_genre, default=nan),
        sum(labels[-5:]) / len(labels[-5:]) if labels else nan,
        sum(labels[-20:]) / len(labels[-20:]) if labels else nan,
        math.log1p(time - max(log.time[e] for e in mine)) if mine else nan,
        nan if year is None else float(year),
    ]


def basic_statistics(log, events, prior, strength=10.0):
    return StatisticsReader(resolve_statistics("basic", log), prior, strength=strength).raw(log, events)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_features_equal_the_loop(seed):
    log = make_log(seed)
    events = np.random.default_rng(seed).permutation(log.num_events)[:120]
    assert resolve_statistics("basic", log) == STATISTIC_SETS["basic"]
    features = basic_statistics(log, events, prior=0.4, strength=3.0)
    expected = [loop_features(log, event, 0.4, 3.0) for event in events]
    np.testing.assert_allclose(features, expected, rtol=1e-12, atol=1e-12)
    assert np.isnan(features).any(axis=0)[[4, 5, 6, 7, 8, 9, 10]].all()  # the loop has met every missing value


def test_counting_equals_the_formula():
    log = make_log(3)
    splits = make_splits(log)
    prior = log.label[splits.train].mean()
    result = baselines.counting_baseline(log, splits, strength=2.0)
    for name in ("validation", "test"):
        events = getattr(splits, name)
        assert result[name].shape == events.shape
        for event, probability in zip(events, result[name]):
            user_rate, _, item_rate, *_ = loop_features(log, event, prior, 2.0)
            odds = user_rate / (1 - user_rate) * item_rate / (1 - item_rate) / (prior / (1 - prior))
            assert probability == pytest.approx(odds / (1 + odds), rel=1e-12)


@pytest.mark.parametrize("name", ["counting", "logistic_regression", "gradient_boosting"])
def test_nothing_at_or_after_a_second_is_seen(name):
    """Change every label from one second on: predictions up to and including that second stay, later ones move."""
    log = make_log(4, num_events=600, seconds=300, unlabelled=0.0)
    splits = make_splits(log)
    second = int(np.median(log.time[splits.test]))
    label = np.where(log.time >= second, 1 - log.label, log.label).astype(np.int8)
    changed = InteractionLog(
        user_ids=log.user_ids,
        offsets=log.offsets,
        item=log.item,
        time=log.time,
        label=label,
        feedback=log.feedback,
        catalogue=log.catalogue,
    )
    before, after = (baselines.baseline_predictions(data, splits)[name]["test"] for data in (log, changed))
    known = log.time[splits.test] <= second
    assert 0 < known.sum() < len(known)
    np.testing.assert_array_equal(before[known], after[known])
    assert (before[~known] != after[~known]).any()


def test_only_the_training_part_is_fitted_on():
    """Predictions of an event do not depend on which other events are validated or tested."""
    log = make_log(5, num_events=600)
    splits = make_splits(log)
    fewer = SimpleNamespace(train=splits.train, validation=splits.validation[:0], test=splits.test[::3])
    of_all, of_fewer = (baselines.baseline_predictions(log, parts) for parts in (splits, fewer))
    for name, every in of_all.items():
        some = of_fewer[name]
        np.testing.assert_array_equal(every["test"][::3], some["test"])
        assert some["validation"].shape == (0,)


def planted_log(seed=0, num_users=60, per_user=80):
    """Runs of likes and dislikes per user and a taste for one genre each: what the features are for."""
    generator = np.random.default_rng(seed)
    names = ["a", "b", "c", "d"]
    catalogue = pa.table({"item_id": list(range(80)), "genres": [[names[i % 4]] for i in range(80)]})
    user = np.repeat(np.arange(num_users), per_user)
    item = generator.integers(0, 80, len(user))
    mood = np.repeat(generator.integers(0, 2, len(user) // 10), 10) * 2 - 1
    logit = 1.5 * mood + np.where(item % 4 == user % 4, 1.5, -0.5)
    label = (generator.uniform(size=len(user)) < 1 / (1 + np.exp(-logit))).astype(int)
    time = np.tile(np.arange(per_user) * 60, num_users) + user
    return InteractionLog.from_columns(user, item, time, label, catalogue=catalogue)


def boosted(log, splits):
    return baselines.baseline_predictions(log, splits)["gradient_boosting"]


def test_gradient_boosting_learns_runs_and_tastes():
    log = planted_log()
    splits = make_splits(log)
    result = baselines.baseline_metrics(log, splits, seed=1)
    assert result["gradient_boosting"]["test"]["auc"] > 0.72
    assert result["gradient_boosting"]["test"]["auc"] > result["counting"]["test"]["auc"] + 0.1
    labels = log.label[splits.test]
    expected = baselines.baseline_predictions(log, splits, seed=1)
    assert result["gradient_boosting"]["test"]["auc"] == metrics.auc(labels, expected["gradient_boosting"]["test"])
    assert set(result) == {"counting", "logistic_regression", "gradient_boosting"}
    assert result["logistic_regression"]["test"]["auc"] == metrics.auc(labels, expected["logistic_regression"]["test"])
    assert result["logistic_regression"]["test"]["auc"] > result["counting"]["test"]["auc"] + 0.1
    assert set(result["counting"]) == {"validation", "test"}
    keys = {"auc", "log_loss", "grouped_auc", "user_auc", "normalized_entropy", "expected_calibration_error"}
    assert set(result["counting"]["test"]) == keys | {"num_samples", "positive_rate"}


@pytest.mark.parametrize("name", ["logistic_regression", "gradient_boosting"])
def test_a_refit_reads_the_labels_of_validation_for_the_test_part_only(name):
    log = planted_log(seed=3, num_users=20)
    splits = make_splits(log)
    plain, refit = (baselines.baseline_predictions(log, splits, refit=refit)[name] for refit in (False, True))
    np.testing.assert_array_equal(plain["validation"], refit["validation"])
    assert (plain["test"] != refit["test"]).any()
    # about a fit on both parts: only priors, scales and the columns that trees draw are others
    joined = SimpleNamespace(
        train=np.concatenate([splits.train, splits.validation]), validation=splits.validation[:0], test=splits.test
    )
    assert np.corrcoef(baselines.baseline_predictions(log, joined)[name]["test"], refit["test"])[0, 1] > 0.9


@pytest.mark.parametrize("num_train", [300, 1500])
def test_few_training_samples_do_not_make_it_overconfident(num_train):
    """Trees that run on to the end of 500 rounds would give a log loss above that of the constant rate."""
    log = planted_log(seed=2)
    splits = make_splits(log)
    splits.train = splits.train[:: len(splits.train) // num_train]
    assert baselines.baseline_metrics(log, splits)["gradient_boosting"]["test"]["normalized_entropy"] < 0.95


def test_a_catalogue_without_genres_or_year_has_fewer_features():
    names = STATISTIC_SETS["basic"]
    log = make_log(catalogue=pa.table({"item_id": list(range(6)), "genres": GENRES}))
    assert resolve_statistics("basic", log) == names[:10]
    log = make_log(catalogue=pa.table({"item_id": list(range(6)), "year": YEARS}))
    assert resolve_statistics("basic", log) == names[:4] + names[7:]
    # columns of these names in another type are other columns
    other = pa.table({"item_id": list(range(6)), "genres": ["a|b"] * 6, "year": ["1990"] * 6})
    log = make_log(catalogue=other)
    assert resolve_statistics("basic", log) == names[:4] + names[7:10]
    assert len(boosted(log, make_splits(log))["test"])
    empty = pa.table({"item_id": list(range(6)), "genres": pa.array([[]] * 6, pa.list_(pa.string()))})
    assert np.isnan(basic_statistics(make_log(catalogue=empty), np.arange(5), 0.5)[:, 4:7]).all()


def test_weights_and_seed_reach_the_fit():
    weight = np.random.default_rng(0).uniform(0.1, 5, 2000)
    plain, weighted = make_log(6, num_events=2000), make_log(6, num_events=2000, weight=weight)
    splits = make_splits(plain)
    first = boosted(plain, splits)["test"]
    assert (first != boosted(weighted, splits)["test"]).any()
    np.testing.assert_array_equal(first, boosted(plain, splits)["test"])


def test_samples_of_weight_0_are_left_out_of_the_fits():
    weight = np.random.default_rng(0).integers(0, 3, 2000).astype(np.float64)
    log = make_log(6, num_events=2000, weight=weight)
    splits = make_splits(log)
    samples = baselines._Samples(log, splits, ("full",))
    kept = log.weight[splits.train] > 0
    without = SimpleNamespace(**vars(samples))  # of the same reader, whose scales count events
    without.events = samples.events | {"train": splits.train[kept]}
    without.raw = samples.raw | {"train": samples.raw["train"][kept]}
    one, other = (baselines._fitted(each, refit=False, seed=0) for each in (samples, without))
    for name in ("logistic_regression", "gradient_boosting"):
        np.testing.assert_array_equal(one[name]["test"], other[name]["test"])


def test_forty_five_thousand_events_take_seconds():
    """As many events as the last ten years of MovieLens latest-small; it takes about a second."""
    import time

    catalogue = pa.table({"item_id": list(range(5000)), "genres": [["a", "b", "c"][: i % 4] for i in range(5000)]})
    log = make_log(7, num_users=280, num_events=45_000, seconds=10**8, unlabelled=0, catalogue=catalogue)
    start = time.perf_counter()
    baselines.baseline_metrics(log, make_splits(log))
    assert time.perf_counter() - start < 15


def test_errors():
    log = make_log()
    splits = make_splits(log)
    with pytest.raises(ValueError, match="strength must be greater than 0, got 0"):
        baselines.counting_baseline(log, splits, strength=0)
    with pytest.raises(ValueError, match="prior must lie between 0 and 1"):
        basic_statistics(log, splits.test, prior=1.0)
    one_class = SimpleNamespace(
        train=splits.train[log.label[splits.train] == 1], validation=splits.validation, test=splits.test
    )
    for baseline in (baselines.counting_baseline, boosted):
        with pytest.raises(ValueError, match=r"of 1 class\(es\): a baseline needs positives and negatives"):
            baseline(log, one_class)
    unlabelled = np.flatnonzero(log.label < 0)
    broken = SimpleNamespace(train=splits.train, validation=splits.validation, test=unlabelled)
    with pytest.raises(ValueError, match=f"splits.test holds {len(unlabelled)} events without a label"):
        baselines.counting_baseline(log, broken)
