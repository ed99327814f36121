"""Lists of items: their metrics, and plain lists, against loops."""

import math

import numpy as np
import pytest

from lmctr.evaluation import item_lists
from lmctr.evaluation.item_lists import SHRINKAGE, Clicks, best_of, list_metrics


def test_metrics_of_lists():
    lists = [np.array([5, 2, 9]), np.array([1]), np.array([4, 3, 8])]
    wanted = [np.array([2, 7]), np.array([1, 2, 3, 4]), np.array([0])]
    expected = [
        [1 / 2, (1 / math.log2(3)) / (1 + 1 / math.log2(3)), 1],
        [1 / 4, 1 / (1 + 1 / math.log2(3) + 1 / 2), 1],  # at most three could be shown
        [0, 0, 0],
    ]
    np.testing.assert_allclose(list_metrics(lists, wanted, 3), expected)


@pytest.fixture(scope="module")
def clicks():
    rng = np.random.default_rng(0)
    time = np.sort(rng.integers(0, 300, 400))
    return Clicks(rng.integers(0, 20, 400), rng.integers(0, 12, 400), time, 20, 13)  # one item without any


def test_counts_before_each_moment(clicks):
    moments = np.array([-1, 10, 10, 200, 900])
    for moment, counts in zip(moments, clicks.before(moments)):
        assert list(counts) == [sum(clicks.item[clicks.time < moment] == item) for item in range(13)]
    user, moments = np.array([4, 0, 7]), np.array([100, 250, 0])
    found = clicks.of_users(user, moments).toarray()
    for row, (own, moment) in enumerate(zip(user, moments)):
        items = clicks.item[(clicks.user == own) & (clicks.time < moment)]
        assert list(found[row]) == [sum(items == item) for item in range(13)]
    assert found[:2].max() > 1
    assert found[2].sum() == 0


def test_cosines_count_users_before_the_first_moment(clicks, monkeypatch):
    monkeypatch.setattr(item_lists, "_SCORES", 26)  # two users at a time
    monkeypatch.setattr(item_lists, "_ITEMS", 3)
    user, moments = np.array([4, 0, 7, 9]), np.array([250, 150, 280, 290])
    users_of = [set(clicks.user[(clicks.item == item) & (clicks.time < 150)]) for item in range(13)]
    for own, moment, scores in zip(user, moments, clicks.cosines(clicks.of_users(user, moments), 150)):
        mine = set(clicks.item[(clicks.user == own) & (clicks.time < moment)])
        expected = [
            sum(
                len(users_of[i] & users_of[j]) / (math.sqrt(len(users_of[i]) * len(users_of[j])) + SHRINKAGE)
                for i in mine
            )
            for j in range(13)
        ]
        np.testing.assert_allclose(scores, expected)


def test_equal_scores_are_told_apart_by_the_next():
    first, second = np.array([1, 3, 3, 3, 0]), np.array([9, 1, 2, 2, 9])
    assert list(best_of(np.array([4, 3, 2, 1, 0]), 4, first, second)) == [3, 2, 1, 0]
    assert list(best_of(np.array([0, 1]), 4, first)) == [1, 0]
