import itertools

import numpy as np
import pytest

from lmctr.data import load_log, split_log, synthetic_log, validate_log
from lmctr.data.synthetic.generator import TOPICS
from lmctr.data.synthetic.log import SyntheticLog, best_reader_auc

ARRAYS = ("user_ids", "offsets", "item", "time", "label", "feedback")


def plain_auc(labels, scores):
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[labels == 1] for n in scores[labels == 0]]
    return sum(pairs) / len(pairs)


def test_same_seed_same_log():
    first, second, other = (synthetic_log(num_users=20, num_items=60, events_per_user=15, seed=s) for s in (3, 3, 4))
    for name in ARRAYS:
        assert np.array_equal(getattr(first, name), getattr(second, name))
    assert first.catalogue.equals(second.catalogue)
    assert first.info == second.info
    assert not np.array_equal(first.item, other.item)
    loaded = load_log("synthetic", num_users=20, num_items=60, events_per_user=15, seed=3)
    assert np.array_equal(loaded.label, first.label)


def test_probabilities_against_a_plain_loop():
    """Both probabilities from the written definition; the Bayes one by a sum over all 2 ** topics taste vectors."""
    settings = {"recency_effect": 1.5, "recency_decay": 0.6, "taste_effect": 1.2, "bias": -0.3, "topic_appeal": 0.25}
    log, truth = SyntheticLog(
        num_users=6, num_items=50, events_per_user=20, num_topics=3, seed=1, events_spread=0.4, **settings
    ).generate()
    liked = [0.75, 0.5, 0.25]
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    for user in range(6):
        tastes = list(itertools.product([1, -1], repeat=3))
        weight = np.array(
            [np.prod([liked[k] if sign > 0 else 1 - liked[k] for k, sign in enumerate(taste)]) for taste in tastes]
        )
        average = 0.0
        for event in range(log.offsets[user], log.offsets[user + 1]):
            topic = truth.topic[log.item[event]]
            chances = np.array([sigmoid(-0.3 + 1.5 * average + 1.2 * taste[topic]) for taste in tastes])
            expected = sigmoid(-0.3 + 1.5 * average + 1.2 * truth.taste[user, topic])
            assert truth.probability[event] == pytest.approx(expected, abs=1e-12)
            assert truth.bayes_probability[event] == pytest.approx((weight * chances).sum() / weight.sum(), abs=1e-9)
            positive = log.label[event] == 1
            weight = weight * (chances if positive else 1 - chances)
            average = 0.6 * average + 0.4 * (1.0 if positive else -1.0)


def test_best_auc_is_exact_and_on_the_test_part():
    log, truth = SyntheticLog(num_users=30, num_items=60, events_per_user=20).generate()
    test = split_log(log).test
    expected = plain_auc(log.label[test], truth.bayes_probability[test])
    assert log.info.best_auc == pytest.approx(expected, abs=1e-6)
    assert truth.best_auc() == pytest.approx(plain_auc(log.label, truth.bayes_probability))
    assert log.info.extra["best_auc_all_events"] == pytest.approx(truth.best_auc(), abs=1e-6)
    assert f"{log.info.best_auc}" in log.info.notes
    assert truth.oracle_auc() > truth.best_auc()


def test_the_best_auc_of_a_reader_of_the_last_behaviours():
    """The figures of the quickstart's log, worked out elsewhere by a loop over samples and behaviours."""
    log, truth = SyntheticLog(400, 300, 60, 0).generate()
    test = split_log(log).test
    known = {5: 0.8981, 8: 0.902, 12: 0.9083, 20: 0.9127, 30: 0.9171, 40: 0.9209, 60: 0.9249}
    for num_behaviors, expected in known.items():
        assert best_reader_auc(log, test, num_behaviors) == pytest.approx(expected, abs=6e-5)
    assert best_reader_auc(log, test) == pytest.approx(truth.best_auc(test), abs=1e-9)
    every = log.sample_events()
    whole = SyntheticLog(400, 300, 60, 0).history_probability(log, every, 60)
    np.testing.assert_allclose(whole, truth.bayes_probability, rtol=1e-9)
    assert best_reader_auc(log, test[log.label[test] == 1], 5) is None
    assert best_reader_auc(load_log("synthetic_sequence", num_users=20), np.arange(5)) is None


def test_stars_follow_the_label_and_tell_no_more_than_it():
    """The rest of the log, and its best AUC, are those of a log without stars; among equal labels stars are chance."""
    plain, (log, truth) = synthetic_log(seed=5), SyntheticLog(seed=5, stars=True).generate()
    for name in ARRAYS:
        assert np.array_equal(getattr(plain, name), getattr(log, name))
    assert plain.feedback_values is None
    assert log.info.best_auc == plain.info.best_auc
    assert np.array_equal(log.feedback_values > 3, log.label == 1)
    assert np.unique(log.feedback_values).tolist() == [0.5 * step for step in range(1, 11)]
    taste = truth.taste[log.user, truth.topic[log.item]]
    for label in (0, 1):
        chosen = log.label == label
        assert abs(np.corrcoef(log.feedback_values[chosen], truth.probability[chosen])[0, 1]) < 0.03
        assert abs(np.corrcoef(log.feedback_values[chosen], taste[chosen])[0, 1]) < 0.03


def test_a_log_too_small_to_split_states_the_auc_of_all_events():
    log = synthetic_log(num_users=1, num_items=10, events_per_user=4, num_topics=2, seed=2)
    assert log.info.extra["best_auc_on"] == "all events"


def test_labels_are_drawn_from_the_probabilities():
    log, truth = SyntheticLog(num_users=1000, events_per_user=60).generate()
    for probability in (truth.probability, truth.bayes_probability):
        bins = np.digitize(probability, np.linspace(0, 1, 11)) - 1
        for index in range(10):
            chosen = bins == index
            expected = probability[chosen].mean()
            error = np.sqrt(expected * (1 - expected) / chosen.sum())
            assert abs(log.label[chosen].mean() - expected) < 5 * error


def test_each_effect_can_be_switched_off():
    both = synthetic_log(seed=5).info.best_auc
    recency = synthetic_log(seed=5, taste_effect=0.0).info.best_auc
    taste = synthetic_log(seed=5, recency_effect=0.0).info.best_auc
    _, nothing = SyntheticLog(seed=5, recency_effect=0.0, taste_effect=0.0).generate()
    assert both > max(recency, taste) + 0.02
    assert min(recency, taste) > 0.6
    assert nothing.best_auc() == 0.5


def test_a_reader_of_twenty_behaviours_recovers_most_of_the_effects():
    """Logistic regression on what a short history shows: recent feedback, and feedback on the target's topic."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    log, truth = SyntheticLog().generate()
    splits, topic = split_log(log), truth.topic[log.item]
    start, end = log.history_bounds(np.arange(log.num_events))
    recent, same = np.zeros(log.num_events), np.zeros(log.num_events)
    for back in range(1, 21):
        at = np.maximum(end - back, 0)
        feedback = np.where(end - back >= start, 2.0 * log.label[at] - 1, 0.0)
        recent += 0.3 * 0.7 ** (back - 1) * feedback
        same += feedback * (topic[at] == topic)
    features = np.column_stack([recent, same, np.eye(6)[topic]])
    model = LogisticRegression().fit(features[splits.train], log.label[splits.train])
    auc = roc_auc_score(log.label[splits.test], model.predict_proba(features[splits.test])[:, 1])
    assert (auc - 0.5) / (log.info.best_auc - 0.5) > 0.9
    order_only = roc_auc_score(log.label[splits.test], recent[splits.test])
    assert order_only < auc - 0.02, "taste adds to recency"


def test_titles_tell_the_topic_and_vary():
    log, truth = SyntheticLog(num_items=300, num_topics=12, num_users=5).generate()
    names = list(TOPICS)
    titles, genres = log.catalogue["title"].to_pylist(), log.catalogue["genres"].to_pylist()
    for title, kinds, topic in zip(titles, genres, truth.topic):
        words = {word.lower() for word in title.split()}
        assert kinds[0] == names[topic]
        assert words & set(TOPICS[names[topic]])
        assert not any(words & set(TOPICS[name]) for name in names if name != names[topic])
        assert len(words) >= 3
    assert len(set(titles)) > 200


def test_times_rise_and_items_do_not_repeat():
    log = synthetic_log(num_users=50, num_items=120, events_per_user=60, events_spread=0.3)
    validate_log(log, split_log(log), allow_repeats=False)
    assert np.array_equal(log.history_end, np.arange(log.num_events)), "no two events of a user at one second"
    assert len(set(np.diff(log.offsets).tolist())) > 5
    assert log.time.min() >= 1_577_836_800
    assert log.time.max() < 1_577_836_800 + 365 * 86_400
    fixed = synthetic_log(num_users=50, num_items=120, events_per_user=60)
    assert np.diff(fixed.offsets).tolist() == [60] * 50


def test_popularity_follows_zipf():
    log, truth = SyntheticLog(
        num_users=3000, num_items=40, num_topics=2, allow_repeats=True, zipf_exponent=1.0
    ).generate()
    for topic in range(2):
        counts = np.sort(np.bincount(log.item, minlength=40)[truth.topic == topic])[::-1]
        expected = (1 / np.arange(1, 21)) / (1 / np.arange(1, 21)).sum()
        assert np.abs(counts / counts.sum() - expected).max() < 0.01


def test_neighbouring_events_share_a_topic_as_often_as_asked():
    for stickiness in (0.0, 0.8):
        log, truth = SyntheticLog(num_users=500, topic_stickiness=stickiness, allow_repeats=True).generate()
        topic = truth.topic[log.item]
        same = (topic[1:] == topic[:-1])[log.user[1:] == log.user[:-1]].mean()
        by_chance = synthetic_share(log, topic)
        assert same == pytest.approx(stickiness + (1 - stickiness) * by_chance, abs=0.03)


def synthetic_share(log, topic):
    """Chance that two events of one user, far apart, have one topic."""
    first, second = log.offsets[:-1], log.offsets[:-1] + 30
    return (topic[first] == topic[second]).mean()


def test_long_histories_and_large_logs():
    log = synthetic_log(num_users=2, num_items=100, events_per_user=10_000, allow_repeats=True)
    assert log.history_lengths([9_999]).tolist() == [9_999]
    large = synthetic_log(num_users=5_000, num_items=2_000, events_per_user=40)
    assert large.num_events == 200_000
    assert 0.85 < large.info.best_auc < 0.97


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"num_users": 0}, "num_users = 0; accepted: an integer from 1"),
        ({"events_per_user": 2.5}, "events_per_user = 2.5"),
        ({"num_topics": 13}, "num_topics = 13; accepted: an integer from 2 to 12"),
        ({"num_topics": 5, "num_items": 4, "events_per_user": 2}, "from 2 to 4"),
        ({"recency_decay": 1.0}, r"recency_decay = 1\.0"),
        ({"topic_appeal": 0.5}, r"topic_appeal = 0\.5"),
        ({"topic_stickiness": 1.0}, r"topic_stickiness = 1\.0"),
        ({"zipf_exponent": -1}, "zipf_exponent = -1"),
        ({"events_spread": -1}, "events_spread = -1"),
        ({"days": 0.001}, r"days = 0\.001"),
        ({"events_per_user": 301}, "Raise num_items or set allow_repeats=True"),
    ],
)
def test_bad_arguments(keywords, message):
    with pytest.raises(ValueError, match=message):
        synthetic_log(**keywords)
