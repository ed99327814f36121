import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lmctr.data import InteractionLog, split_log
from lmctr.data.logs.splits import time_cuts


def make(times, users=None, labels=None):
    users = np.arange(len(times)) % 7 if users is None else users
    labels = [1] * len(times) if labels is None else labels
    return InteractionLog.from_columns(users, list(range(len(times))), times, labels)


def test_split_by_time():
    log = make(np.random.default_rng(0).permutation(100))
    splits = split_log(log)
    assert [len(events) for _, events in splits.items()] == [80, 10, 10]
    assert log.time[splits.train].tolist() == list(range(80))
    assert log.time[splits.validation].tolist() == list(range(80, 90))
    assert log.time[splits.test].tolist() == list(range(90, 100))
    assert splits.boundaries == {"validation": 80, "test": 90}
    assert splits.rule == "time"
    assert splits["test"] is splits.test
    assert splits.train.dtype == np.int64


@settings(deadline=None)
@given(st.lists(st.integers(0, 12), min_size=12, max_size=80))
def test_no_second_stands_on_both_sides_of_a_cut(times):
    log = make(times)
    try:
        splits = split_log(log, fractions=(0.6, 0.2, 0.2))
    except ValueError:  # too few seconds for three parts
        assume(False)
    parts = [set(log.time[events].tolist()) for _, events in splits.items()]
    assert max(parts[0]) < min(parts[1])
    assert max(parts[1]) < min(parts[2])
    assert sorted(np.concatenate([events for _, events in splits.items()]).tolist()) == list(range(len(times)))


def test_events_without_label_are_in_no_part():
    log = make(np.arange(100), labels=[1, -1] * 50)
    splits = split_log(log)
    assert sum(len(events) for _, events in splits.items()) == 50
    assert (log.label[np.concatenate([splits.train, splits.validation, splits.test])] == 1).all()


def test_split_by_user_keeps_users_whole_and_depends_on_the_seed():
    users = np.repeat(np.arange(50), 4)
    log = make(np.arange(200), users)
    splits = split_log(log, "user", seed=1)
    owners = [set(log.user[events].tolist()) for _, events in splits.items()]
    assert [len(owner) for owner in owners] == [40, 5, 5]
    assert not owners[0] & owners[1]
    assert not owners[0] & owners[2]
    assert not owners[1] & owners[2]
    assert np.array_equal(split_log(log, "user", seed=1).test, splits.test)
    assert not np.array_equal(split_log(log, "user", seed=2).test, splits.test)
    for _, events in splits.items():
        assert (np.diff(log.time[events]) >= 0).all()


def test_given_boundaries_and_parts():
    log = make(np.arange(10))
    splits = split_log(log, "given", boundaries=(6, 8))
    assert log.time[splits.train].tolist() == [0, 1, 2, 3, 4, 5]
    assert log.time[splits.validation].tolist() == [6, 7]
    assert log.time[splits.test].tolist() == [8, 9]
    names = np.array(["train"] * 5 + ["validation"] * 2 + ["test"] * 2 + [""])
    splits = split_log(log, "given", parts=names)
    assert [len(events) for _, events in splits.items()] == [5, 2, 2]
    same = split_log(log, "given", parts=np.array([0] * 5 + [1] * 2 + [2] * 2 + [-1]))
    assert np.array_equal(same.validation, splits.validation)


def test_a_part_may_be_left_out():
    log = make(np.arange(10))
    assert [len(events) for _, events in split_log(log, fractions=(0.8, 0.2, 0)).items()] == [8, 2, 0]
    assert [len(events) for _, events in split_log(log, fractions=(0.8, 0, 0.2)).items()] == [8, 0, 2]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"rule": "random"}, "split rule: got 'random', accepted: 'time', 'user', 'given'"),
        ({"fractions": (0.8, 0.1)}, "fractions: got"),
        ({"fractions": (0.8, 0.1, 0.2)}, "sum to 1"),
        ({"fractions": (0.0, 0.5, 0.5)}, "train above 0"),
        ({"rule": "given"}, "needs either boundaries"),
        ({"rule": "given", "boundaries": (8, 6)}, "in this order"),
        ({"rule": "given", "parts": [0, 1]}, "one value for each of the 10 events"),
        ({"rule": "given", "parts": ["train"] * 9 + ["tset"]}, "event 9: .*'tset'"),
        ({"boundaries": (1, 2)}, "belong to the rule 'given'"),
    ],
)
def test_bad_arguments(keywords, message):
    with pytest.raises(ValueError, match=message):
        split_log(make(np.arange(10)), **keywords)


def test_parts_that_would_be_empty():
    with pytest.raises(
        ValueError, match=r"leaves the part 'validation' empty \(20 samples at 1 times, .*\). .* they are a table"
    ):
        split_log(make([5] * 20))
    with pytest.raises(ValueError, match=r"at 2 times, .*Use other fractions, the rule 'user'"):
        split_log(make([5, 6] * 10))
    with pytest.raises(ValueError, match="empty"):
        split_log(make(np.arange(20), users=["one"] * 20), "user")
    with pytest.raises(ValueError, match="no event has a label"):
        split_log(make(np.arange(5), labels=[-1] * 5))
    with pytest.raises(ValueError, match="split: got 'tst'"):
        split_log(make(np.arange(10)))["tst"]


@pytest.mark.parametrize("rule", ["time", "user", "given"])
def test_events_before_since_are_in_no_part(rule):
    log = make(np.arange(100))
    parts = {"parts": np.arange(100) % 3} if rule == "given" else {}
    splits = split_log(log, rule, (0.5, 0.25, 0.25), since=40, **parts)
    assert sorted(log.time[np.concatenate([own for _, own in splits.items()])].tolist()) == list(range(40, 100))
    if rule == "time":
        assert [len(own) for _, own in splits.items()] == [30, 15, 15]
    with pytest.raises(
        ValueError, match="since: got 100, accepted: a unix second up to 99, the time of the newest sample"
    ):
        split_log(log, since=100)


@pytest.mark.parametrize(
    ("sizes", "shares", "expected"),
    [
        ([50, 10, 40], (0.8, 0.1, 0.1), [50, 60]),  # the last day alone is more than validation and test
        ([5, 20, 5, 70], (0.8, 0.1, 0.1), [25, 30]),
        ([90, 5, 5], (0.4, 0.3, 0.3), [90, 95]),  # and the first one more than training
        ([10, 90], (0.9, 0.0, 0.1), [10, 10]),
        ([10, 90], (0.9, 0.1, 0.0), [10, 100]),
        ([50, 50], (0.8, 0.1, 0.1), [100, 100]),  # too few days: the test stays empty, which is refused
        ([80, 10, 10], (0.8, 0.1, 0.1), [80, 90]),
    ],
)
def test_a_day_that_holds_more_than_a_part(sizes, shares, expected):
    assert time_cuts(np.repeat(np.arange(len(sizes)) * 86_400, sizes), shares) == expected
