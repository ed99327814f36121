"""Metrics dicts of impressions from flat scores, the rivals of a retrieval model, and runs on impressions side by side."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from lmctr.data.impressions.store import ImpressionStore
from lmctr.data.synthetic.cascade import synthetic_cascade
from lmctr.evaluation import ranking_metrics
from lmctr.evaluation.comparison import compare_groups, mean_and_spread, read_predictions
from lmctr.evaluation.impression_baselines import impression_baseline_metrics
from lmctr.evaluation.ranking_evaluator import RankingSettings, evaluate_ranking, ranking_per_impression
from lmctr.utils.ragged import ragged_arange

COUNTS = np.array([2, 1, 4, 3])
RANKS = np.array([2, 1, 1, 4, 3, 2, 1, 3, 2, 1.0])
SCORES = np.array([0.1, 0.9, 0.5, 0.3, 0.8, 0.2, 0.1, 0.9, 0.2, 0.1])
ECPM = np.array([5, 2, 0, 9, 4, 0, 0, 3, 3, 0.0])
SETTINGS = RankingSettings(m=1, k=2, ndcg_k=3)


def ragged(values):
    return [part.tolist() for part in np.split(values, np.cumsum(COUNTS)[:-1])]


def test_flat_arrays_give_the_metrics_of_ragged_lists():
    found = evaluate_ranking(COUNTS, RANKS, SCORES, ECPM, SETTINGS)
    v, s, e = ragged(RANKS), ragged(SCORES), ragged(ECPM)
    assert found["revenue_ratio"] == pytest.approx(ranking_metrics.revenue_ratio(v, s, e, 1))
    assert found["revenue_ratio"] == pytest.approx((2 / 5 + 4 / 9 + 1) / 3)
    assert found["ordered_pair_accuracy"] == pytest.approx(ranking_metrics.ordered_pair_accuracy(v, s))
    assert found["ndcg"] == pytest.approx(ranking_metrics.ndcg(v, s, 3))
    assert found["recall"] == pytest.approx(ranking_metrics.recall_at(v, s, 1, 2))
    assert found["num_samples"] == 4
    assert found["revenue_ratio_dropped"] == 1  # no eCPM
    assert found["ordered_pair_accuracy_dropped"] == 1  # one ad
    assert found["recall_dropped"] == found["ndcg_dropped"] == 0


def test_what_no_impression_has_is_left_out():
    found = evaluate_ranking([2], [2, 1], [1, 2], [0, 0], SETTINGS)
    assert "revenue_ratio" not in found
    assert found["revenue_ratio_dropped"] == 1
    assert "recall" in found


def test_values_of_impressions_average_to_the_metrics():
    values = ranking_per_impression(COUNTS, RANKS, SCORES, ECPM, SETTINGS)
    found = evaluate_ranking(COUNTS, RANKS, SCORES, ECPM, SETTINGS)
    for name, own in values.items():
        assert own.shape == (4,)
        assert np.nanmean(own) == pytest.approx(found[name])


def test_chunks_do_not_matter(monkeypatch):
    from lmctr.evaluation import ranking_evaluator

    whole = evaluate_ranking(COUNTS, RANKS, SCORES, ECPM, SETTINGS)
    monkeypatch.setattr(ranking_evaluator, "_CHUNK", 2)
    assert evaluate_ranking(COUNTS, RANKS, SCORES, ECPM, SETTINGS) == pytest.approx(whole)
    bad = SCORES.copy()
    bad[8] = np.nan
    with pytest.raises(ValueError, match=r"scores must be a number, got nan at impression 1, ad 1 .*counted from 2"):
        evaluate_ranking(COUNTS, RANKS, bad, ECPM, SETTINGS)


def test_titles_name_the_settings():
    titles = RankingSettings(m=4, ndcg_k=None, ideal="ecpm").titles()
    assert titles == {
        "revenue_ratio": "R/R*@4 (bounded)",
        "ordered_pair_accuracy": "OPA",
        "ndcg": "NDCG",
        "recall": "Recall@4@4",
    }


def test_wrong_lengths_are_named():
    with pytest.raises(ValueError, match=r"scores has the shape \(9,\); 4 impressions have 10 ads"):
        evaluate_ranking(COUNTS, RANKS, SCORES[:9], ECPM, SETTINGS)
    with pytest.raises(ValueError, match="no impressions"):
        evaluate_ranking([], [], [], [], SETTINGS)


def test_a_weight_is_the_impression_so_many_times(monkeypatch):
    from lmctr.evaluation import ranking_evaluator

    weight = np.array([3, 0, 1, 2])
    flat = [
        np.concatenate([part for own, part in zip(weight, ragged(values)) for _ in range(own)])
        for values in (RANKS, SCORES, ECPM)
    ]
    expected = evaluate_ranking(np.repeat(COUNTS, weight), *flat, SETTINGS)
    for chunk in (4096, 2):
        monkeypatch.setattr(ranking_evaluator, "_CHUNK", chunk)
        found = evaluate_ranking(COUNTS, RANKS, SCORES, ECPM, SETTINGS, weight)
        for name in SETTINGS.titles():
            assert found[name] == pytest.approx(expected[name], abs=1e-12)
    assert found != evaluate_ranking(COUNTS, RANKS, SCORES, ECPM, SETTINGS)
    streams = [ranking_metrics.RankingMetrics(m=1, k=2, ndcg_k=3) for _ in range(2)]
    for stream, own in zip(streams, (slice(0, 2), slice(2, 4))):
        stream.update(*(ragged(values)[own] for values in (RANKS, SCORES, ECPM)), weight=weight[own])
    merged = streams[0].merge(streams[1]).compute()
    assert merged["ndcg"] == pytest.approx(expected["ndcg"])
    without = evaluate_ranking(COUNTS, RANKS, SCORES, ECPM, SETTINGS, np.array([0, 1, 0, 0]))
    assert without["recall"] == 1
    assert "ordered_pair_accuracy" not in without, "only an impression of one ad counts"
    for wrong, message in (
        ([1, 1], r"weight has the shape \(2,\); 4 impressions"),
        ([1, -1, 0, 0], "not negative, got -1.0 at impression 1"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_ranking(COUNTS, RANKS, SCORES, ECPM, SETTINGS, wrong)


# rivals


def chosen(store, rows, weight):
    """Some impressions of a store, with weights."""
    counts, ads = store.counts[rows], ragged_arange(store.offsets[:-1][rows], store.counts[rows])
    names = ("ranks", "ecpm", "oracle", "ad_input_ids", "ad_numeric_values")
    arrays = {name: None if (own := getattr(store, name)) is None else own[ads] for name in names}
    arrays |= {
        name: None if (own := getattr(store, name)) is None else own[rows]
        for name in ("user_input_ids", "user_numeric_values")
    }
    return SimpleNamespace(counts=counts, offsets=np.r_[0, np.cumsum(counts)], weight=weight, **arrays)


def test_baselines_count_weights(store):
    rng, splits, settings = np.random.default_rng(0), parts(store), RankingSettings(m=4)
    rows = np.concatenate([splits["train"], splits["test"]])
    num_train, weight = len(splits["train"]), rng.integers(0, 3, len(rows))
    more = np.repeat(rows, weight)
    several = int(weight[:num_train].sum())
    one = chosen(store, rows, weight.astype(np.float32))
    other = chosen(store, more, None)
    found = impression_baseline_metrics(
        one, {"train": np.arange(num_train), "test": np.arange(num_train, len(rows))}, settings
    )
    expected = impression_baseline_metrics(
        other, {"train": np.arange(several), "test": np.arange(several, len(more))}, settings
    )
    for name in ("popularity", "mean_ecpm", "best_reachable"):
        for metric in settings.titles():
            assert found[name]["test"][metric] == pytest.approx(expected[name]["test"][metric], abs=1e-9)
    trees = (own["ad_gradient_boosting"]["test"]["revenue_ratio"] for own in (found, expected))
    assert next(trees) == pytest.approx(next(trees), abs=0.05)  # whose leaves and folds count impressions


@pytest.fixture(scope="module")
def store():
    return ImpressionStore.build(
        synthetic_cascade(
            600, 300, 100, num_matched=60, num_preranked=30, num_ranked=12, num_components=4, fractions=[0.6, 0.2, 0.2]
        )
    )


def parts(store):
    return {name: rows for name, rows in store.splits.items() if name != "validation"}


def test_baselines_stand_in_their_order(store):
    found = impression_baseline_metrics(store, parts(store), RankingSettings(m=4))
    values = {name: entry["test"]["revenue_ratio"] for name, entry in found.items()}
    assert set(values) == {"random", "popularity", "mean_ecpm", "ad_gradient_boosting", "best_reachable"}
    assert values["random"] < values["popularity"] < values["best_reachable"]
    assert values["random"] < values["ad_gradient_boosting"] < values["best_reachable"]
    assert found["random"]["test"]["num_samples"] == 120


def test_counting_against_a_loop(store):
    from lmctr.evaluation.impression_baselines import _Counting

    train = store.splits.train
    counting = _Counting(store, train, 4, np.random.default_rng(0))
    wins, values = {}, {}
    for row in train:
        own = range(store.offsets[row], store.offsets[row + 1])
        best = sorted(own, key=lambda ad: -store.ranks[ad])[:4]
        for ad in own:
            key = int(store.ad_input_ids[ad, 0])
            wins.setdefault(key, []).append(float(ad in best))
            values.setdefault(key, []).append(float(store.ecpm[ad]))
    prior = [np.mean([x for entry in d.values() for x in entry]) for d in (wins, values)]
    table = counting._smoothed(*counting.sums.totals)
    for key in wins:
        expected = [(sum(d[key]) + 20 * p) / (len(d[key]) + 20) for d, p in zip((wins, values), prior)]
        np.testing.assert_allclose(table[key], expected, rtol=1e-6)
    # a training ad's own fold counts nothing
    fold = counting.fold[0]
    key = counting.ids[counting.ads[0]]
    others = [i for i in range(len(counting.ads)) if counting.fold[i] != fold and counting.ids[counting.ads[i]] == key]
    expected = (counting.targets[others].sum(0) + 20 * counting.prior) / (len(others) + 20)
    np.testing.assert_allclose(counting.left_out(np.array([0]))[0], expected, rtol=1e-9)


def test_baselines_see_nothing_of_the_part_that_they_are_measured_on(store):
    before = impression_baseline_metrics(store, parts(store), RankingSettings(m=4))
    arrays = store._arrays()
    test_ads = np.isin(np.repeat(np.arange(len(store)), store.counts), store.splits.test)
    arrays["ranks"] = np.where(test_ads, 17 - store.ranks, store.ranks).astype(np.float32)
    turned = ImpressionStore(arrays, store.processor, store.info, store.statistics)
    after = impression_baseline_metrics(turned, parts(store), RankingSettings(m=4))
    for name in before:  # the same scores: every pair of ads is now the other way round
        total = before[name]["test"]["ordered_pair_accuracy"] + after[name]["test"]["ordered_pair_accuracy"]
        assert total == pytest.approx(1.0)


# runs side by side


def write_run(folder, scores, seed, metrics=None, weight=None):
    folder.mkdir()
    impression = np.repeat([3, 5, 8, 9], COUNTS)
    table = pa.table(
        {
            "event": pa.array(np.arange(10) + 20),
            "impression": impression,
            "ecpm": pa.array(ECPM, pa.float32()),
            "label": pa.array(RANKS, pa.float32()),
            "logit": pa.array(scores, pa.float32()),
        }
    )
    if weight is not None:
        table = table.append_column("weight", pa.array(np.repeat(weight, COUNTS), pa.float32()))
    (folder / "predictions").mkdir()
    pq.write_table(
        table.take(pa.array(np.random.default_rng(seed).permutation(10))), folder / "predictions" / "test.parquet"
    )
    (folder / "metrics.json").write_text(json.dumps({"seed": seed}))
    counted = {"m": 1, "k": 2, "ndcg_k": 3, "ideal": "v"} | (metrics or {})
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"data": {"metrics": counted}}))
    return folder


def test_stored_scores_give_the_metrics_again_and_paired_tests(tmp_path):
    mine = [read_predictions(write_run(tmp_path / f"a{seed}", SCORES + 0.01 * seed, seed)) for seed in (0, 1)]
    theirs = [read_predictions(write_run(tmp_path / f"b{seed}", RANKS, seed)) for seed in (0, 1)]
    assert mine[0].metrics == pytest.approx(evaluate_ranking(COUNTS, RANKS, SCORES, ECPM, SETTINGS))
    assert mine[0].count_samples() == "4 impressions with 10 ads"
    assert mean_and_spread(mine)["revenue_ratio"][0] == pytest.approx(mine[0].metrics["revenue_ratio"])
    tests = compare_groups(mine, theirs, 200)
    assert {entry.metric for entry in tests} == {"revenue_ratio", "ordered_pair_accuracy", "ndcg", "recall"}
    of_seed = next(entry.test for entry in tests if entry.metric == "revenue_ratio" and entry.seed == 0)
    assert of_seed.method == "impression bootstrap"
    assert of_seed.num_pairs == 3
    assert of_seed.difference == pytest.approx((2 / 5 + 4 / 9 + 1) / 3 - 1)


def test_stored_weights_count_in_metrics_and_tests(tmp_path):
    weight = np.array([3, 1, 1, 0.0])
    mine, theirs = (
        read_predictions(write_run(tmp_path / name, scores, 0, weight=weight))
        for name, scores in (("a", SCORES), ("b", RANKS))
    )
    assert mine.metrics == pytest.approx(evaluate_ranking(COUNTS, RANKS, SCORES, ECPM, SETTINGS, weight))
    of_ratio = next(entry.test for entry in compare_groups([mine], [theirs], 200) if entry.metric == "revenue_ratio")
    assert of_ratio.num_pairs == 2
    assert of_ratio.difference == pytest.approx((3 * 2 / 5 + 4 / 9) / 4 - 1)
    assert of_ratio.difference == pytest.approx(mine.metrics["revenue_ratio"] - theirs.metrics["revenue_ratio"])


def test_runs_that_count_other_metrics_are_not_compared(tmp_path):
    first = read_predictions(write_run(tmp_path / "a", SCORES, 0))
    second = read_predictions(write_run(tmp_path / "b", SCORES, 0, {"m": 2}))
    with pytest.raises(
        ValueError, match=r"a and .*b count other metrics: data\.metrics\.m \d+ and 2; evaluate both with the same"
    ):
        compare_groups([first], [second])


def test_impressions_are_not_compared_with_single_samples(tmp_path):
    first = read_predictions(write_run(tmp_path / "a", SCORES, 0))
    second = dataclasses.replace(first, path=tmp_path / "b", ranking=None)
    message = "a orders the ads of impressions and .*b scores single samples: no metric is of both"
    for one, other in ((first, second), (second, first)):
        with pytest.raises(ValueError, match=message):
            compare_groups([one], [other])


def test_scores_of_impressions_need_the_recipe(tmp_path):
    folder = write_run(tmp_path / "a", SCORES, 0)
    (folder / "recipe.yaml").unlink()
    with pytest.raises(ValueError, match=r"recipe.yaml is missing: scores of impressions"):
        read_predictions(folder)


def test_baselines_are_refitted_on_training_and_validation_for_the_test_part(store, monkeypatch):
    class Counts:  # in place of the trees, which take seconds: ads by the counts that these would read
        def __init__(self, store, counting, *draws):
            self.counting = counting

        def scores(self, rows, ads):
            return self.counting.of(ads).sum(1)

    monkeypatch.setattr("lmctr.evaluation.impression_baselines._Boosting", Counts)
    settings, splits = RankingSettings(m=4), dict(store.splits.items())
    plain, found = (impression_baseline_metrics(store, splits, settings, refit=refit) for refit in (False, True))
    both = np.sort(np.concatenate([splits["train"], splits["validation"]]))
    again = impression_baseline_metrics(store, {"train": both, "test": splits["test"]}, settings)
    for name, own in found.items():
        assert own == {"validation": plain[name]["validation"], "test": again[name]["test"]}
    assert found["popularity"]["test"] != plain["popularity"]["test"]
