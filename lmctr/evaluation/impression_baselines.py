"""What a user would try on impressions before a neural network: no order at all, counting by ad, and gradient boosting.

- random: a random order.
- popularity: in how large a share of its training impressions the ad was among the m best by v, smoothed towards the mean.
- mean eCPM: the mean eCPM of the ad in training, smoothed. The ad is its categorical field with the most values.
- gradient boosting: scikit-learn's trees on log(1 + eCPM), from numbers and categories (of up to 255 values) of user and ad and the ad's two counts
  above, without a training ad's own fold of impressions.

Weights of impressions count in all of it. Nothing is fitted on validation and test impressions, unless a refit is asked for. Stores are read by
attribute, as those of `lmctr.data.impressions.store.ImpressionStore`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lmctr.evaluation.baseline_parts import NUM_FOLDS, FoldSums
from lmctr.evaluation.ranking_evaluator import RankingSettings, evaluate_ranking
from lmctr.utils.ragged import ragged_arange

BOUND = "best_reachable"
"""Name under which generated data give the metrics of the best possible scores: no rival."""
MAX_FITTED_ADS = 300_000
"""Training ads that the trees are fitted on at most; the counts see all of them."""
_MOST_CATEGORIES = 255  # of HistGradientBoosting
_STRENGTH = 20.0  # imaginary ads with the mean that smooth a count


def impression_baseline_metrics(
    store: Any, splits: Mapping[str, np.ndarray], settings: RankingSettings, seed: int = 0, refit: bool = False
) -> dict[str, dict[str, dict[str, Any]]]:
    """Metrics of the baselines by name and part.

    Args:
        store: the impressions. splits: impressions of "train", and of the parts to measure. settings: of the metrics. seed: of what is drawn.
        refit: fit on training and validation for the test split.

    Returns:
        name -> part -> [`~lmctr.evaluation.ranking_evaluator.evaluate_ranking`]; the best possible scores too, as [`BOUND`], where the store knows them.

    Raises:
        ValueError: ads without a categorical field.
    """
    if refit:
        both = np.sort(np.concatenate([splits["train"], splits["validation"]]))
        again = impression_baseline_metrics(store, {"train": both, "test": splits["test"]}, settings, seed)
        found = impression_baseline_metrics(store, splits, settings, seed)
        return {name: own | again[name] for name, own in found.items()}
    if store.ad_input_ids is None:
        raise ValueError("baselines count by ad, but the ads have no categorical field; set data.baselines to false")
    parts = {part: np.asarray(rows) for part, rows in splits.items() if part != "train"}
    train = np.asarray(splits["train"])
    train = train if store.weight is None else train[np.asarray(store.weight)[train] > 0]
    generator = np.random.default_rng([seed, 78])
    counting = _Counting(store, train, settings.m, generator)
    boosting = _Boosting(store, counting, generator, seed)
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for part, rows in parts.items():
        counts = np.asarray(store.counts)[rows]
        ads = ragged_arange(store.offsets[:-1][rows], counts)
        known = counting.of(ads)
        scores = {
            "random": generator.random(len(ads)),
            "popularity": known[:, 0],
            "mean_ecpm": known[:, 1],
            "ad_gradient_boosting": boosting.scores(rows, ads),
        }
        if store.oracle is not None:
            scores[BOUND] = np.asarray(store.oracle)[ads]
        ranks, ecpm = np.asarray(store.ranks)[ads], np.asarray(store.ecpm)[ads]
        weight = None if store.weight is None else np.asarray(store.weight)[rows]
        for name, values in scores.items():
            result.setdefault(name, {})[part] = evaluate_ranking(counts, ranks, values, ecpm, settings, weight)
    return result


class _Counting:
    """Share of wins and mean eCPM by ad."""

    def __init__(self, store: Any, train: np.ndarray, m: int, generator: np.random.Generator) -> None:
        sizes = [int(store.ad_input_ids[:, field].max(initial=0)) + 1 for field in range(store.ad_input_ids.shape[1])]
        self.ids = np.asarray(store.ad_input_ids[:, int(np.argmax(sizes))]).astype(np.int64)
        counts = np.asarray(store.counts)[train].astype(np.int64)
        self.ads = ragged_arange(store.offsets[:-1][train], counts)
        impression = np.repeat(np.arange(len(train)), counts)
        place = np.empty(len(self.ads), dtype=np.int64)
        order = np.lexsort((-np.asarray(store.ranks)[self.ads], impression))
        place[order] = ragged_arange(np.zeros(len(train), np.int64), counts)
        self.fold = generator.integers(0, NUM_FOLDS, len(train))[impression]
        self.targets = np.stack(
            [(place < m).astype(np.float64), np.asarray(store.ecpm)[self.ads].astype(np.float64)], 1
        )
        weight = None if store.weight is None else np.asarray(store.weight, np.float64)[train][impression]
        self.weight, counted = weight, np.ones(len(self.ads)) if weight is None else weight
        self.prior = np.average(self.targets, axis=0, weights=weight)
        columns = (*(self.targets * counted[:, None]).T, counted)
        self.sums = FoldSums(self.ids[self.ads], self.fold, max(sizes), columns)

    def of(self, ads: np.ndarray) -> np.ndarray:
        """(R, 2) of some ads, from the whole training part."""
        return self._smoothed(*self.sums.totals)[self.ids[ads]]

    def left_out(self, chosen: np.ndarray) -> np.ndarray:
        """(R, 2) of training ads (places in `self.ads`), from the other folds."""
        return self._smoothed(*self.sums.without(self.fold[chosen], self.ids[self.ads[chosen]]))

    def _smoothed(self, wins: np.ndarray, ecpm: np.ndarray, seen: np.ndarray) -> np.ndarray:
        return (np.stack([wins, ecpm], 1) + _STRENGTH * self.prior) / (seen[:, None] + _STRENGTH)


class _Boosting:
    """Trees on the fields of user and ad."""

    def __init__(self, store: Any, counting: _Counting, generator: np.random.Generator, seed: int) -> None:
        from lmctr.evaluation.weighted_trees import BoostedTreesRegressor

        self.store, self.counting = store, counting
        chosen = np.arange(len(counting.ads))
        if len(chosen) > MAX_FITTED_ADS:
            chosen = np.sort(generator.choice(len(chosen), MAX_FITTED_ADS, replace=False))
        ads = counting.ads[chosen]
        users = np.searchsorted(store.offsets, ads, side="right") - 1
        features, categories = self._features(users, ads, counting.left_out(chosen))
        self.trees = BoostedTreesRegressor(
            max_iter=200, learning_rate=0.1, categorical_features=categories, random_state=seed
        )
        weight = None if counting.weight is None else counting.weight[chosen]
        self.trees.fit(features, np.log1p(counting.targets[chosen, 1]), sample_weight=weight)

    def scores(self, rows: np.ndarray, ads: np.ndarray) -> np.ndarray:
        """(R,) predictions for the ads of some impressions."""
        users = np.repeat(rows, np.asarray(self.store.counts)[rows])
        return self.trees.predict(self._features(users, ads, self.counting.of(ads))[0])

    def _features(self, users: np.ndarray, ads: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        store, categories, numbers_read = self.store, [], [counts]
        for side, rows in (("user", users), ("ad", ads)):
            ids, numbers = getattr(store, f"{side}_input_ids"), getattr(store, f"{side}_numeric_values")
            if ids is not None:
                small = [f for f in range(ids.shape[1]) if int(ids[:, f].max(initial=0)) < _MOST_CATEGORIES]
                categories.append(np.asarray(ids)[rows][:, small])
            if numbers is not None:
                numbers_read.append(np.asarray(numbers)[rows])
        widths = [sum(column.shape[1] for column in columns) for columns in (categories, numbers_read)]
        columns = np.concatenate([column.astype(np.float32) for column in (*categories, *numbers_read)], axis=1)
        return columns, np.repeat([True, False], widths)
