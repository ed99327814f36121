"""The multi-behaviour generator: its Bayes filter against enumeration, and where the signal is."""

import itertools

import numpy as np
import pytest

from lmctr.data import load_log, split_log
from lmctr.data.synthetic.generator import auc
from lmctr.data.synthetic.sequence import SyntheticSequenceLog


def test_filter_against_enumeration():
    """P(y = 1 | earlier items, scenarios and behaviours), summed over every taste that a user can have."""
    arguments = {
        "num_users": 2,
        "num_items": 4,
        "events_per_user": 9,
        "num_topics": 2,
        "num_scenarios": 2,
        "impression_share": 0.6,
        "like_share": 0.7,
        "taste_effect": 1.3,
        "scenario_bias": 0.4,
        "scenario_flip": 0.2,
        "taste_share": 0.35,
    }
    log, truth = SyntheticSequenceLog(seed=5, **arguments).generate()
    topic, liked = truth.topic[log.item], log.feedback == 2
    assert liked.sum() >= 2

    def positive(scenario, taste):
        return 1 / (1 + np.exp(-((-0.4, 0.4)[scenario] + 1.3 * taste)))

    tastes = list(itertools.product([1, -1], repeat=6))  # per topic: the base, then one per scenario
    for user in range(2):
        own = range(log.offsets[user], log.offsets[user + 1])
        for event in own:
            total = found = 0.0
            for taste in tastes:
                weight = 1.0
                for about in range(2):
                    base, acting = taste[3 * about], taste[3 * about + 1 : 3 * about + 3]
                    weight *= 0.35 if base > 0 else 0.65
                    for t in acting:
                        weight *= 0.8 if t == base else 0.2
                for earlier in own:
                    if earlier < event:
                        t = taste[3 * topic[earlier] + 1 + log.scenario[earlier]]
                        like = 0.6 * 0.7 * positive(log.scenario[earlier], t)
                        weight *= like if liked[earlier] else 1 - like
                total += weight
                found += weight * positive(log.scenario[event], taste[3 * topic[event] + 1 + log.scenario[event]])
            assert truth.bayes_probability[event] == pytest.approx(found / total, abs=1e-9)


def test_truth_is_calibrated_and_the_signal_sits_in_likes():
    log, truth = SyntheticSequenceLog(num_users=500, events_per_user=150, seed=1).generate()
    samples = np.flatnonzero(log.label >= 0)
    label = log.label[samples]
    for scores in (truth.probability[samples], truth.bayes_probability[samples]):
        for low in (0.0, 0.5):
            chosen = (scores >= low) & (scores < low + 0.5)
            assert label[chosen].mean() == pytest.approx(scores[chosen].mean(), abs=0.02)
    assert truth.oracle_auc() > truth.best_auc() > 0.75
    assert 0.02 < (log.feedback == 2).mean() < 0.08  # likes are rare
    assert log.info.best_auc == round(truth.best_auc(split_log(log).test), 6)
    # A count of the user's earlier likes of the topic tells much; a count of full-plays of it hardly anything.
    topic = truth.topic[log.item]
    counts = np.zeros((2, log.num_events))
    for user in range(log.num_users):
        seen = np.zeros((2, 6))
        for event in range(log.offsets[user], log.offsets[user + 1]):
            counts[:, event] = seen[:, topic[event]]
            seen[log.feedback[event] - 1, topic[event]] += 1
    plays, likes = (auc(log.label, count, samples) for count in counts)
    assert likes > 0.68
    assert abs(plays - 0.5) < 0.08


def test_labels_and_behaviours_agree():
    log, _ = SyntheticSequenceLog(num_users=50, seed=2).generate()
    like = log.extra_labels["like"]
    assert ((log.label == -1) == (like == -1)).all()
    assert ((like == 1) == (log.feedback == 2)).all()
    assert (log.label[like == 1] == 1).all()
    assert log.scenario_names == ("home", "search", "radio")
    assert set(np.unique(log.scenario)) == {0, 1, 2}


def test_same_seed_same_log_and_by_name():
    one = load_log("synthetic_sequence", num_users=20, seed=3)
    two, _ = SyntheticSequenceLog(num_users=20, seed=3).generate()
    three, _ = SyntheticSequenceLog(num_users=20, seed=4).generate()
    for name in ("item", "time", "label", "feedback", "scenario"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert not np.array_equal(one.item, three.item)
    assert one.info.extra["arguments"]["num_users"] == 20


def test_lengths_vary_with_spread():
    log, _ = SyntheticSequenceLog(num_users=60, events_spread=0.8, seed=1).generate()
    lengths = np.diff(log.offsets)
    assert lengths.std() > 50
    assert np.isfinite(
        SyntheticSequenceLog(num_users=60, events_spread=0.8, seed=1).generate()[1].bayes_probability
    ).all()


@pytest.mark.parametrize("values", [
    {"num_users": 0}, {"num_topics": 1}, {"num_scenarios": 9}, {"impression_share": 0}, {"like_share": 1.2}, {"taste_share": 1},
    {"scenario_flip": 0.6}, {"topic_stickiness": 1}, {"zipf_exponent": -1}, {"days": 0.0001},
], ids=str)  # fmt: skip
def test_bad_arguments(values):
    with pytest.raises(ValueError, match=f"{next(iter(values))} = .*accepted"):
        SyntheticSequenceLog(**values).generate()
