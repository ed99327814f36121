"""Metrics on impressions against loops, and their properties."""

import itertools
import time

import evaluate
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from lmctr.evaluation import evaluate_module_path, metrics
from lmctr.evaluation.ranking_metrics import (
    ndcg_per_impression,
    ordered_pair_accuracy_per_impression,
    recall_at_per_impression,
    revenue_ratio_per_impression,
)


def orders(keys):
    """Every order of positions by descending key: all permutations of those with equal keys."""
    equals = [[i for i in range(len(keys)) if keys[i] == key] for key in sorted(set(keys), reverse=True)]
    for parts in itertools.product(*map(itertools.permutations, equals)):
        yield list(itertools.chain(*parts))


def over_orders(keys, value, ties):
    found = [value(order) for order in orders(keys)]
    return sum(found) / len(found) if ties == "expected" else min(found)


def loop_revenue_ratio(v, s, ecpm, m, ideal="v", ties="expected"):
    def revenue(order):
        return sum(ecpm[i] for i in order[:m])

    below = over_orders(v if ideal == "v" else ecpm, revenue, "expected")
    return over_orders(s, revenue, ties) / below if below else float("nan")


def loop_opa(v, s):
    right = total = 0
    for i in range(len(v)):
        for j in range(len(v)):
            if v[i] > v[j]:
                total += 1
                right += 1.0 if s[i] > s[j] else 0.5 if s[i] == s[j] else 0.0
    return right / total if total else float("nan")


def loop_ndcg(v, s, k, gain, ties="expected"):
    def gained(order):
        gains = [v[i] if gain == "linear" else 2.0 ** v[i] - 1 for i in order]
        return sum(x / np.log2(place + 2) for place, x in enumerate(gains[:k]))

    top = over_orders(v, gained, "expected")
    return over_orders(s, gained, ties) / top if top else float("nan")


def loop_recall(v, s, m, k, ties="expected"):
    wanted = {frozenset(order[:k]) for order in orders(v)}  # any of equal ads is as good

    def found(order):
        return max(len(chosen & set(order[:m])) for chosen in wanted)

    return over_orders(s, found, ties) / min(k, len(v)) if v else float("nan")


TIES = ["expected", "worst"]


@st.composite
def impressions(draw):
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    small = st.integers(0, 3)  # many ties

    def column(values):
        return [[float(draw(values)) for _ in range(length)] for length in lengths]

    return column(small), column(small), column(st.integers(0, 3)), draw(st.integers(1, 8)), draw(st.integers(1, 8))


def padded(rows, fill):
    width = max(map(len, rows)) + 1
    return np.array([row + [fill] * (width - len(row)) for row in rows])


@settings(max_examples=80, deadline=None)
@given(impressions(), st.sampled_from(["v", "ecpm"]), st.sampled_from(["linear", "exp2"]), st.sampled_from(TIES))
def test_against_loops(sample, ideal, gain, ties):
    v, s, ecpm, m, k = sample
    mask = padded([[True] * len(row) for row in v], False).astype(bool)
    junk = [padded(x, np.nan) for x in (v, s, ecpm)]  # what stands in masked places is never read
    for columns, real in (((v, s, ecpm), None), (junk, mask)):
        if real is None and not any(v):
            continue
        ranks, scores, money = columns
        pairs = [
            (
                revenue_ratio_per_impression(ranks, scores, money, m, real, ideal, ties),
                [loop_revenue_ratio(*row, m, ideal, ties) for row in zip(v, s, ecpm)],
            ),
            (ordered_pair_accuracy_per_impression(ranks, scores, real), [loop_opa(*row) for row in zip(v, s)]),
            (
                ndcg_per_impression(ranks, scores, k, real, gain, ties),
                [loop_ndcg(*row, k, gain, ties) for row in zip(v, s)],
            ),
            (
                recall_at_per_impression(ranks, scores, m, k, real, ties),
                [loop_recall(*row, m, k, ties) for row in zip(v, s)],
            ),
        ]
        for value, expected in pairs:
            np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-300)


@settings(max_examples=60, deadline=None)
@given(impressions())
def test_bounds_and_the_true_order(sample):
    v, s, ecpm, m, k = sample
    if not any(v):
        return
    bounded = revenue_ratio_per_impression(v, s, ecpm, m, ideal="ecpm")
    assert np.nanmax(np.append(bounded, 0)) <= 1
    true = revenue_ratio_per_impression(v, v, ecpm, m)
    assert (true[~np.isnan(true)] == 1).all()
    for values in (
        ordered_pair_accuracy_per_impression(v, v),
        ndcg_per_impression(v, v, k),
        recall_at_per_impression(v, v, k, k),
    ):
        assert (values[~np.isnan(values)] == 1).all()
    shifted = [[2 * x + 1 for x in row] for row in s]  # only the order of the scores matters
    np.testing.assert_array_equal(
        revenue_ratio_per_impression(v, s, ecpm, m), revenue_ratio_per_impression(v, shifted, ecpm, m)
    )


def test_r_ratio_by_hand():
    ranks, scores, ecpm = [[3, 2, 1], [1, 2, 3]], [[0.1, 0.9, 0.5], [1, 2, 3]], [[10.0, 5, 0], [1, 0, 4]]
    assert metrics.revenue_ratio(ranks, scores, ecpm, m=1) == (0.5 + 1) / 2
    assert metrics.revenue_ratio(ranks, scores, ecpm, m=[2, 1]) == (5 / 15 + 1) / 2
    # v that does not follow the eCPM: above 1 as written, 1 at most for ideal="ecpm"
    assert metrics.revenue_ratio([[2, 1]], [[0, 1]], [[1.0, 4.0]], m=1) == 4
    assert metrics.revenue_ratio([[2, 1]], [[0, 1]], [[1.0, 4.0]], m=1, ideal="ecpm") == 1
    # ties: one of the equals goes on, each equally often
    assert metrics.revenue_ratio([[2, 1]], [[0.5, 0.5]], [[3.0, 1.0]], m=1) == 2 / 3
    assert metrics.revenue_ratio([[1, 2]], [[0.5, 0.5]], [[1.0, 4.0]], m=1) == 2.5 / 4
    assert metrics.revenue_ratio([[1, 2]], [[0.5, 0.5]], [[1.0, 4.0]], m=1, ties="worst") == 0.25
    assert metrics.revenue_ratio(torch.tensor(ranks), torch.tensor(scores).bfloat16(), torch.tensor(ecpm), m=1) == 0.75


def test_a_constant_score_is_never_perfect():
    """However the ads of an impression are sorted in the file."""
    v, ecpm = np.arange(12.0)[::-1] + 1, np.arange(12.0)[::-1]
    for order in (np.arange(12), np.arange(12)[::-1], np.random.default_rng(0).permutation(12)):
        one = {"ranks": v[order], "scores": np.zeros(12)}
        for ties, expected in (("expected", ecpm.mean() / 10.5), ("worst", 0.5 / 10.5)):
            assert metrics.revenue_ratio(**one, ecpm=ecpm[order], m=2, ties=ties) == pytest.approx(expected, rel=1e-12)
        assert metrics.recall_at(**one, m=3, k=3) == pytest.approx(0.25, rel=1e-12)
        assert metrics.recall_at(**one, m=3, k=3, ties="worst") == 0
        assert metrics.ndcg(**one, ties="worst") < metrics.ndcg(**one) < 0.9
        assert metrics.ndcg(**one, k=5) == pytest.approx(ndcg_score([v], [np.zeros(12)], k=5), rel=1e-12)
        stream = metrics.RankingMetrics(m=3, ties="worst")
        stream.update([one["ranks"]], [one["scores"]])
        assert stream.compute()["recall"] == 0


def test_ties_of_many_ads_against_draws():
    """Recall where few of many equal scores go on: the mean of 4,000 random orders, within four standard errors."""
    rng = np.random.default_rng(3)
    ranks, scores = rng.integers(0, 9, 300).astype(float), rng.integers(0, 3, 300).astype(float)
    rows = np.tile(ranks, (4_000, 1))
    draws = recall_at_per_impression(rows, scores + rng.random((4_000, 300)) / 2, 40, 50)
    error = np.std(draws) / len(draws) ** 0.5
    assert abs(metrics.recall_at(ranks, scores, 40, 50) - np.mean(draws)) < 4 * error < 0.01


def test_opa_of_binary_ranks_is_the_auc():
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, (6, 40)), rng.integers(0, 9, (6, 40))
    expected = np.mean([metrics.auc(a, b) for a, b in zip(labels, scores)])
    assert metrics.ordered_pair_accuracy(labels, scores) == pytest.approx(expected, abs=1e-12)


def test_pairs_are_compared_in_chunks(monkeypatch):
    rng = np.random.default_rng(1)
    ranks, scores = rng.random((9, 11)), rng.random((9, 11))
    whole = ordered_pair_accuracy_per_impression(ranks, scores)
    monkeypatch.setattr("lmctr.evaluation.ranking_metrics._PAIRS_AT_ONCE", 300)
    np.testing.assert_array_equal(whole, ordered_pair_accuracy_per_impression(ranks, scores))


def test_streaming_equals_the_whole_and_counts_what_it_drops():
    rng = np.random.default_rng(2)
    ranks, scores = rng.permuted(np.tile(np.arange(6.0), (40, 1)), axis=1), rng.random((40, 6))
    ecpm = rng.random((40, 6)) * (ranks > 2)
    mask = rng.random((40, 6)) < 0.8
    mask[3], ecpm[5] = False, 0
    m = rng.integers(1, 4, 40)
    first, second = metrics.RankingMetrics(ndcg_k=3, k=2), metrics.RankingMetrics(ndcg_k=3, k=2)
    for stream, part in ((first, slice(0, 13)), (first, slice(13, 20)), (second, slice(20, 40))):
        stream.update(ranks[part], scores[part], ecpm[part], mask[part], m[part])
    values = first.merge(second).compute()
    assert values["revenue_ratio"] == pytest.approx(metrics.revenue_ratio(ranks, scores, ecpm, m, mask), abs=1e-12)
    assert values["ordered_pair_accuracy"] == pytest.approx(metrics.ordered_pair_accuracy(ranks, scores, mask))
    assert values["ndcg"] == pytest.approx(metrics.ndcg(ranks, scores, 3, mask), abs=1e-12)
    assert values["recall"] == pytest.approx(metrics.recall_at(ranks, scores, m, 2, mask), abs=1e-12)
    dropped = np.isnan(revenue_ratio_per_impression(ranks, scores, ecpm, m, mask)).sum()
    assert values["revenue_ratio_dropped"] == dropped >= 2
    assert (values["num_impressions"], values["num_empty"]) == (40, (~mask.any(1)).sum())
    only = metrics.RankingMetrics(m=2)
    only.update(ranks, scores)
    assert "revenue_ratio" not in only.compute()
    with pytest.raises(ValueError, match="every update or with none"):
        only.update(ranks, scores, ecpm)
    with pytest.raises(ValueError, match="not defined on no impressions"):
        metrics.RankingMetrics(m=2).compute()
    with pytest.raises(ValueError, match="m is missing"):
        metrics.RankingMetrics().update(ranks, scores)
    with pytest.raises(ValueError, match="different settings"):
        only.merge(metrics.RankingMetrics(m=3))


def test_a_bad_batch_adds_nothing():
    stream = metrics.RankingMetrics(m=1)
    stream.update([[1, 2]], [[0, 1]], [[1, 1]])
    before = stream.compute()
    with pytest.raises(ValueError, match="scores must be a number, got nan at impression 0, ad 1"):
        stream.update([[1, 2]], [[0, np.nan]], [[1, 1]])
    with pytest.raises(ValueError, match="ecpm must be finite and not negative"):
        stream.update([[1, 2]], [[0, 1]], [[1, -1]])
    assert stream.compute() == before


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"scores": [[np.nan, 1.0]]}, "scores must be a number, got nan at impression 0, ad 0"),
        ({"scores": [[1.0, 2.0, 3.0]]}, "scores has shape"),
        ({"ecpm": [[-1.0, 1.0]]}, "ecpm must be finite and not negative, got -1.0"),
        ({"ecpm": [[np.inf, 1.0]]}, "ecpm must be finite"),
        ({"ecpm": [[0.0, 0.0]]}, "none of the 1 impressions has eCPM above 0"),
        ({"mask": [[False, False]]}, "none of the 1 impressions"),
        ({"mask": [[2, 1]]}, "mask must be True"),
        ({"mask": [[True]]}, "mask has shape"),
        ({"m": 0}, "m must be at least 1"),
        ({"m": 1.5}, "m must be an integer"),
        ({"m": [1, 2]}, r"m must be a number or have shape \(1,\)"),
        ({"m": [-1]}, "m must not be negative"),
        ({"ideal": "best"}, "ideal must be one of 'v', 'ecpm'"),
        ({"ties": "first"}, "ties must be one of 'expected', 'worst'"),
        ({"scores": [["a", "b"]]}, "scores must be numbers"),
        ({"scores": [[[1.0]]]}, "scores must have shape"),
        ({"scores": [["a", "b"], ["c"]]}, "scores must be numbers, a list of them per impression: could not convert"),
        ({"scores": np.ma.masked_array([[0.1, 0.2]], [[False, True]])}, "scores is masked at 0, 1"),
    ],
)
def test_bad_input(change, match):
    arguments = {"ranks": [[2.0, 1.0]], "scores": [[0.1, 0.2]], "ecpm": [[1.0, 2.0]], "m": 1}
    with pytest.raises(ValueError, match=match):
        metrics.revenue_ratio(**(arguments | change))


def test_columns_of_lists_are_taken():
    ranks, scores = [[3, 2, 1], [1, 0]], [[0.1, 0.9, 0.5], [0.3, 0.2]]
    expected = metrics.ndcg(ranks, scores)
    for column in (pd.Series, pa.array):
        assert metrics.ndcg(column(ranks), column(scores)) == expected
    assert metrics.ndcg(pd.Series(ranks[:1]), pd.Series(scores[:1])) == metrics.ndcg(ranks[:1], scores[:1])


def test_more_bad_input():
    with pytest.raises(ValueError, match="another number of ads than ranks in impression 0"):
        metrics.ordered_pair_accuracy([[1, 2], [1]], [[1], [1, 2]])
    with pytest.raises(ValueError, match="ranks is empty"):
        metrics.ordered_pair_accuracy(np.zeros((0, 3)), np.zeros((0, 3)))
    with pytest.raises(ValueError, match="two ads of different ranks"):
        metrics.ordered_pair_accuracy([[1, 1]], [[0, 1]])
    with pytest.raises(ValueError, match="ranks must be finite and not negative"):
        metrics.ndcg([[-1, 1]], [[0, 1]])
    with pytest.raises(ValueError, match="gain='exp2'"):
        metrics.ndcg([[1500, 1]], [[0, 1]], gain="exp2")
    with pytest.raises(ValueError, match="gain must be one of"):
        metrics.ndcg([[1, 1]], [[0, 1]], gain="log")


@pytest.mark.parametrize(
    ("name", "extra", "options"),
    [
        ("revenue_ratio", {"ecpm": [[10.0, 5.0, 0.0], [1.0, 4.0]]}, {"m": 1, "ideal": "ecpm", "ties": "worst"}),
        ("ordered_pair_accuracy", {}, {}),
        ("ndcg", {}, {"k": 2, "gain": "exp2"}),
        ("recall_at", {}, {"m": 2, "k": 1}),
    ],
)
def test_evaluate_modules(name, extra, options, tmp_path):
    ranks, scores = [[3.0, 2.0, 1.0], [1.0, 2.0]], [[0.1, 0.9, 0.5], [0.3, 0.2]]
    module = evaluate.load(evaluate_module_path(name), cache_dir=str(tmp_path))
    expected = getattr(metrics, name)(ranks, scores, *extra.values(), **options)
    assert module.compute(predictions=scores, references=ranks, **extra, **options) == {name: pytest.approx(expected)}


def test_few_ads_beside_an_impression_of_many_cost_their_own_pairs():
    """Two hundred of three ads beside one of 3,000: at 9 million pairs each they took five seconds, now a twentieth of one."""
    draw = np.random.default_rng(0)
    ranks, scores = ([draw.integers(0, 9, n) for n in (3000, *[3] * 200)] for _ in range(2))
    began = time.perf_counter()
    found = ordered_pair_accuracy_per_impression(ranks, scores)
    assert time.perf_counter() - began < 2
    np.testing.assert_array_equal(found[1:], ordered_pair_accuracy_per_impression(ranks[1:], scores[1:]))
