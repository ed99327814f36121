"""Metrics of retrieval on impressions: how well the scores of a model order the ads of each impression.

R/R* is Eq. 5 of arXiv 2411.13322; ordered-pair accuracy and Recall@m@k are those of
ARF ("Adaptive Neural Ranking Framework", WWW 2024); NDCG is Jarvelin and Kekalainen's (TOIS 2002).

Every metric takes (B, n) arrays, lists or CPU tensors, or lists of B lists of different lengths, and a `mask` (B, n) that is True where
there is an ad (default: every place, or every place of the ragged lists). One impression may come as (n,). What stands in masked
places is never read. An impression that a metric has no value for (its denominator is 0) is left out of the mean; [`RankingMetrics`] counts
them. Sums in float64.

**Ties.** Ads of equal scores have no order. With `ties="expected"` a metric is its mean over all their orders, with "worst" its value in
the order that is worst for the model; so no metric depends on the order in which ads are given, and a model that scores all alike gets
no perfect value. Equal ranks v are equally good: R/R* compares with the mean over their orders, Recall wants any of them.

B: impressions, n: ads per impression, v: ground-truth rank index, higher is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lmctr.utils.ragged import blocks

from .errors import UndefinedMetricError, plain

__all__ = [
    "RankingMetrics",
    "ndcg",
    "ndcg_per_impression",
    "ordered_pair_accuracy",
    "ordered_pair_accuracy_per_impression",
    "recall_at",
    "recall_at_per_impression",
    "revenue_ratio",
    "revenue_ratio_per_impression",
]

_WORDS = {"ideal": ("v", "ecpm"), "gain": ("linear", "exp2"), "ties": ("expected", "worst")}
_PAIRS_AT_ONCE = 1 << 22  # entries of the (b, n, n) comparisons held at a time


def revenue_ratio(
    ranks: ArrayLike,
    scores: ArrayLike,
    ecpm: ArrayLike,
    m: int | ArrayLike,
    mask: ArrayLike | None = None,
    ideal: str = "v",
    ties: str = "expected",
) -> float:
    """R/R*: eCPM of the m best ads by score over that of the m best by ground truth, averaged over impressions (Eq. 5).

    Args:
        ranks: (B, n) v, the ground-truth rank index, higher is better.
        scores: (B, n) scores of the model; only their order matters, infinities are legal.
        ecpm: (B, n) revenue per mille, not negative; 0 where an ad never reached the ranking stage. Any currency: it cancels.
        m: ads that go on, a number or (B,) one per impression; one above the number of ads takes all.
        mask: (B, n) bool, True where there is an ad.
        ideal: what the denominator sorts by. "v" is Eq. 5 as written: the value can exceed 1 where v does not follow the eCPM.
            "ecpm" sorts by the eCPM itself, which bounds the value by 1.
        ties: of equal scores, "expected" or "worst"; see above.

    Returns:
        The mean over impressions whose denominator is above 0.

    Raises:
        UndefinedMetricError: no impression has a denominator above 0.
        ValueError: shapes that differ, NaN scores, ranks or eCPM, a negative or infinite eCPM, an m below 1, an unknown `ideal` or `ties`.

    Example:
        >>> revenue_ratio(ranks=[[3, 2, 1]], scores=[[0.1, 0.9, 0.5]], ecpm=[[10.0, 5.0, 0.0]], m=1)
        0.5
    """
    return _mean(
        revenue_ratio_per_impression(ranks, scores, ecpm, m, mask, ideal, ties), "revenue_ratio", "eCPM above 0"
    )


def revenue_ratio_per_impression(
    ranks: ArrayLike,
    scores: ArrayLike,
    ecpm: ArrayLike,
    m: int | ArrayLike,
    mask: ArrayLike | None = None,
    ideal: str = "v",
    ties: str = "expected",
) -> np.ndarray:
    """(B,) `revenue_ratio` of each impression, NaN where the denominator is 0. Arguments and errors as there."""
    _check_words(ideal=ideal, ties=ties)
    (ranks, scores, ecpm), mask = _grids({"ranks": ranks, "scores": scores, "ecpm": ecpm}, mask)
    _require(mask & ~(np.isfinite(ecpm) & (ecpm >= 0)), ecpm, "ecpm", "finite and not negative")
    m = _counts(m, len(scores), "m")
    ecpm = np.where(mask, ecpm, 0.0)
    got = _top_sum(ecpm, scores, mask, m, ties)
    best = _top_sum(ecpm, ranks if ideal == "v" else ecpm, mask, m)
    ratio = _ratio(got, best)
    # The same ads summed in another order may differ by an ulp; the bound is exact.
    return np.minimum(ratio, 1.0) if ideal == "ecpm" else ratio


def ordered_pair_accuracy(ranks: ArrayLike, scores: ArrayLike, mask: ArrayLike | None = None) -> float:
    """OPA: of the pairs of ads that v orders, the share that the scores order alike, averaged over impressions.

    A pair of equal scores counts one half (as in `auc`: with v in {0, 1} the OPA of an impression is its AUC), a pair of equal v is none.

    Args:
        ranks: (B, n) v. scores: (B, n). mask: (B, n) bool.

    Raises:
        UndefinedMetricError: no impression has two ads of different v. ValueError: shapes that differ, NaN.

    Time O(B n^2), memory bounded by chunks of impressions.
    """
    per_impression = ordered_pair_accuracy_per_impression(ranks, scores, mask)
    return _mean(per_impression, "ordered_pair_accuracy", "two ads of different ranks")


def ordered_pair_accuracy_per_impression(
    ranks: ArrayLike, scores: ArrayLike, mask: ArrayLike | None = None
) -> np.ndarray:
    """(B,) `ordered_pair_accuracy` of each impression, NaN where no two ads differ in v. Arguments and errors as there."""
    (ranks, scores), mask = _grids({"ranks": ranks, "scores": scores}, mask)
    count, width = scores.shape
    values = np.full(count, np.nan)
    step = max(1, _PAIRS_AT_ONCE // max(width * width, 1))
    for rows in blocks(count, step):
        used = mask[rows].any(axis=0)  # a few ads beside an impression of thousands are no thousands of pairs each
        v, s, real = (array[rows][:, used] for array in (ranks, scores, mask))
        pair = (v[:, :, None] > v[:, None, :]) & real[:, :, None] & real[:, None, :]
        above = (pair & (s[:, :, None] > s[:, None, :])).sum(axis=(1, 2))
        equal = (pair & (s[:, :, None] == s[:, None, :])).sum(axis=(1, 2))
        pairs = pair.sum(axis=(1, 2))
        np.divide(2 * above + equal, 2 * pairs, out=values[rows], where=pairs > 0)
    return values


def ndcg(
    ranks: ArrayLike,
    scores: ArrayLike,
    k: int | None = None,
    mask: ArrayLike | None = None,
    gain: str = "linear",
    ties: str = "expected",
) -> float:
    """NDCG@k: discounted gain of the k best ads by score over the best possible one, averaged over impressions.

    Args:
        ranks: (B, n) relevance, not negative: v, or 0 / 1 labels.
        scores: (B, n).
        k: places that count; None counts all.
        mask: (B, n) bool.
        gain: "linear": the relevance. "exp2": 2^relevance - 1, for grades (a rank index of 1,500 ads would overflow).
        ties: of equal scores, "expected" (as scikit-learn's default) or "worst"; see above.

    Place p from 1 is discounted by log2(p + 1).

    Raises:
        UndefinedMetricError: no impression has an ad with a relevance above 0.
        ValueError: shapes that differ, NaN, negative or infinite relevance, a k below 1, an unknown gain or `ties`.
    """
    return _mean(ndcg_per_impression(ranks, scores, k, mask, gain, ties), "ndcg", "rank above 0")


def ndcg_per_impression(
    ranks: ArrayLike,
    scores: ArrayLike,
    k: int | None = None,
    mask: ArrayLike | None = None,
    gain: str = "linear",
    ties: str = "expected",
) -> np.ndarray:
    """(B,) `ndcg` of each impression, NaN where all relevances are 0. Arguments and errors as there."""
    _check_words(gain=gain, ties=ties)
    (ranks, scores), mask = _grids({"ranks": ranks, "scores": scores}, mask)
    accepted = "finite and not negative" if gain == "linear" else "between 0 and 1000 for gain='exp2'"
    limit = np.inf if gain == "linear" else 1000
    _require(mask & ~(np.isfinite(ranks) & (ranks >= 0) & (ranks <= limit)), ranks, "ranks", accepted)
    k = _counts(scores.shape[1] or 1 if k is None else k, len(scores), "k")
    relevance = np.where(mask, ranks, 0.0)
    gains = relevance if gain == "linear" else np.exp2(relevance) - 1.0
    discount = 1.0 / np.log2(np.arange(2, scores.shape[1] + 2))
    best = _top_sum(gains, gains, mask, k, discount=discount)
    return _ratio(_top_sum(gains, scores, mask, k, ties, discount), best)


def recall_at(
    ranks: ArrayLike,
    scores: ArrayLike,
    m: int | ArrayLike,
    k: int | ArrayLike,
    mask: ArrayLike | None = None,
    ties: str = "expected",
) -> float:
    """Recall@m@k: the share of the k best ads by v that are among the m best by score, averaged over impressions.

    m and k are those of ARF's L_relax: the model passes m ads on, k of them are wanted. An impression of fewer than k ads wants them all.

    Args:
        ranks: (B, n) v. scores: (B, n).
        m, k: numbers from 1, or (B,) one per impression.
        mask: (B, n) bool. ties: of equal scores, "expected" or "worst"; see above.

    Raises:
        UndefinedMetricError: no impression has an ad. ValueError: shapes that differ, NaN, m or k below 1, an unknown `ties`.
    """
    return _mean(recall_at_per_impression(ranks, scores, m, k, mask, ties), "recall_at", "an ad and a k above 0")


def recall_at_per_impression(
    ranks: ArrayLike,
    scores: ArrayLike,
    m: int | ArrayLike,
    k: int | ArrayLike,
    mask: ArrayLike | None = None,
    ties: str = "expected",
) -> np.ndarray:
    """(B,) `recall_at` of each impression, NaN where there is no ad. Arguments and errors as there."""
    _check_words(ties=ties)
    (ranks, scores), mask = _grids({"ranks": ranks, "scores": scores}, mask)
    m, k = _counts(m, len(scores), "m"), _counts(k, len(scores), "k")
    k = np.minimum(k, mask.sum(axis=1))
    if not scores.size:
        return np.full(len(scores), np.nan)
    by_rank = np.take_along_axis(ranks, _order(ranks, mask), axis=1)
    last = np.take_along_axis(by_rank, np.maximum(k - 1, 0)[:, None], axis=1)  # the lowest v that is wanted
    above, equal = (np.where(mask, found, False).astype(np.float64) for found in (ranks > last, ranks == last))
    room = k - above.sum(axis=1)  # of the ads with the lowest v, so many are wanted, whichever
    if ties == "worst":
        order = _order(scores, mask, ranks)
        passed = np.arange(scores.shape[1]) < m[:, None]
        above, equal = ((np.take_along_axis(column, order, axis=1) * passed).sum(axis=1) for column in (above, equal))
        return _ratio(above + np.minimum(equal, room), k)
    got = _top_sum(above, scores, mask, m) + _expected_least(equal, scores, mask, m, room)
    return _ratio(got, k)


def metrics_per_impression(
    ranks: ArrayLike, scores: ArrayLike, ecpm: ArrayLike | None, mask: ArrayLike | None, settings: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """(B,) values of all four metrics, by name; without `ecpm` there is no R/R*. `settings`: those of [`RankingMetrics`]."""
    m, k, gain = settings["m"], settings["k"], settings.get("gain", "linear")
    ties = settings.get("ties", "expected")
    values = {
        "ordered_pair_accuracy": ordered_pair_accuracy_per_impression(ranks, scores, mask),
        "ndcg": ndcg_per_impression(ranks, scores, settings["ndcg_k"], mask, gain, ties),
        "recall": recall_at_per_impression(ranks, scores, m, m if k is None else k, mask, ties),
    }
    if ecpm is not None:
        values["revenue_ratio"] = revenue_ratio_per_impression(ranks, scores, ecpm, m, mask, settings["ideal"], ties)
    return values


class RankingMetrics:
    """The four metrics over a stream of batches, with memory that does not grow.

    Args:
        m: ads that go on (R/R*, Recall); None: one per impression, given to each `update`.
        k: wanted ads of Recall@m@k; None takes m.
        ndcg_k: places of NDCG; None counts all.
        ideal: see `revenue_ratio`. gain: see `ndcg`. ties: of equal scores, "expected" or "worst"; see above.

    Example:
        >>> stream = RankingMetrics(m=1)
        >>> stream.update(ranks=[[3, 2, 1]], scores=[[0.1, 0.9, 0.5]], ecpm=[[10.0, 5.0, 0.0]])
        >>> stream.compute()["revenue_ratio"]
        0.5
    """

    _NAMES = ("revenue_ratio", "ordered_pair_accuracy", "ndcg", "recall")

    def __init__(
        self,
        m: int | None = None,
        k: int | None = None,
        ndcg_k: int | None = None,
        ideal: str = "v",
        gain: str = "linear",
        ties: str = "expected",
    ):
        _check_words(ideal=ideal, gain=gain, ties=ties)
        for name, value in (("m", m), ("k", k), ("ndcg_k", ndcg_k)):
            if value is not None:
                _counts(value, 1, name)
        self.settings = {"m": m, "k": k, "ndcg_k": ndcg_k, "ideal": ideal, "gain": gain, "ties": ties}
        self.reset()

    def reset(self) -> None:
        """Forget every batch."""
        self.num_impressions = self.num_empty = 0
        self._has_revenue: bool | None = None  # before the first batch
        # of the impressions that have a value: the weighted sum of these, the weights, how many
        self._totals = {name: np.zeros(3) for name in self._NAMES}

    def update(
        self,
        ranks: ArrayLike,
        scores: ArrayLike,
        ecpm: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        m: int | ArrayLike | None = None,
        weight: ArrayLike | None = None,
    ) -> None:
        """Add a batch of impressions.

        Args:
            ranks, scores, ecpm, mask: as in `revenue_ratio`. Without `ecpm` there is no R/R*; give it always or never.
            m: (B,) one per impression, instead of the m of the stream.
            weight: (B,) what each impression counts in the means, 0 and above; one of 2 equals the impression given twice. None: 1 each.

        Raises:
            ValueError: as the functions; no m; batches with and without eCPM.
        """
        own = self.settings["m"]
        if m is not None and own is not None:
            raise ValueError(f"m is {own} for the whole stream: leave it out of update, or of RankingMetrics")
        m = own if m is None else m
        if m is None:
            raise ValueError("m is missing: give it to RankingMetrics, or one per impression to update")
        if self._has_revenue not in (None, ecpm is not None):
            raise ValueError("ecpm must be given with every update or with none")
        # All of them before any is added: a bad batch adds nothing.
        values = metrics_per_impression(ranks, scores, ecpm, mask, {**self.settings, "m": m})
        _, real = _grids({"scores": scores}, mask)
        weight = np.ones(len(real)) if weight is None else _weights(weight, len(real))
        self._has_revenue = ecpm is not None
        self.num_impressions += len(real)
        self.num_empty += int((~real.any(axis=1)).sum())
        for name, value in values.items():
            defined = ~np.isnan(value)
            self._totals[name] += (weight[defined] * value[defined]).sum(), weight[defined].sum(), defined.sum()

    def merge(self, other: RankingMetrics) -> RankingMetrics:
        """Add what another stream (of another process) saw; returns self. ValueError: other settings."""
        if self.settings != other.settings:
            raise ValueError(f"streams of different settings: {self.settings} and {other.settings}")
        if None not in (self._has_revenue, other._has_revenue) and self._has_revenue != other._has_revenue:
            raise ValueError("one stream has ecpm, the other has none")
        if other._has_revenue is not None:
            self._has_revenue = other._has_revenue
        self.num_impressions += other.num_impressions
        self.num_empty += other.num_empty
        for name in self._NAMES:
            self._totals[name] += other._totals[name]
        return self

    def compute(self) -> dict[str, float | int | None]:
        """The means, and how many impressions each of them leaves out.

        Returns:
            "revenue_ratio" (with eCPM), "ordered_pair_accuracy", "ndcg", "recall": floats, None where no impression of a weight has a value;
            "<metric>_dropped": impressions without a value; "num_impressions"; "num_empty": impressions without ads.

        Raises:
            UndefinedMetricError: nothing was added.
        """
        if not self.num_impressions:
            raise UndefinedMetricError("RankingMetrics is not defined on no impressions: call update first")
        result: dict[str, float | int | None] = {}
        for name in self._NAMES:
            if name == "revenue_ratio" and not self._has_revenue:
                continue
            total, mass, count = self._totals[name].tolist()
            result[name] = total / mass if mass else None
            result[f"{name}_dropped"] = self.num_impressions - int(count)
        return result | {"num_impressions": self.num_impressions, "num_empty": self.num_empty}


def _check_words(**given: str) -> None:
    for name, word in given.items():
        if word not in _WORDS[name]:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, _WORDS[name]))}, got {word!r}")


def _ratio(got: np.ndarray, best: np.ndarray) -> np.ndarray:
    """(B,) shares, NaN where the denominator is 0."""
    return np.divide(got, best, out=np.full(len(best), np.nan), where=best > 0)


def _order(keys: np.ndarray, mask: np.ndarray, worth: np.ndarray | None = None) -> np.ndarray:
    """(B, n) positions by descending key, of equal keys those of less worth first, else stable; masked places last."""
    tied = () if worth is None else (np.where(mask, worth, 0.0),)
    return np.lexsort((*tied, -np.where(mask, keys, 0.0), ~mask), axis=-1)


def _groups(keys: np.ndarray, mask: np.ndarray, order: np.ndarray) -> np.ndarray:
    """(B, n) number of the group of equal keys that each place of the order belongs to, counted over all rows."""
    keys, mask = np.take_along_axis(np.where(mask, keys, 0.0), order, axis=1), np.take_along_axis(mask, order, axis=1)
    first = np.ones(keys.shape, dtype=bool)
    first[:, 1:] = (keys[:, 1:] != keys[:, :-1]) | (mask[:, 1:] != mask[:, :-1])
    return first.ravel().cumsum().reshape(keys.shape) - 1


def _top_sum(
    values: np.ndarray,
    keys: np.ndarray,
    mask: np.ndarray,
    count: np.ndarray,
    ties: str = "expected",
    discount: np.ndarray | None = None,
) -> np.ndarray:
    """(B,) sum of the values of the `count` best ads by key, each place times its discount. Masked values are 0."""
    order = _order(keys, mask, values if ties == "worst" else None)
    ordered = np.take_along_axis(values, order, axis=1)
    if ties == "expected":  # each of the places that equal keys share holds each of their values equally often
        groups = _groups(keys, mask, order)
        sizes = np.bincount(groups.ravel())
        ordered = (np.bincount(groups.ravel(), ordered.ravel()) / sizes)[groups]
    if discount is not None:
        ordered = ordered * discount
    return np.where(np.arange(values.shape[1]) < count[:, None], ordered, 0.0).sum(axis=1)


def _expected_least(
    marked: np.ndarray, keys: np.ndarray, mask: np.ndarray, count: np.ndarray, most: np.ndarray
) -> np.ndarray:
    """(B,) mean over the orders of equal keys of min(marked ads among the `count` best by key, `most`).

    Of the g ads that share the key of the last place, t are drawn; b of the g are marked. So many marked ones are drawn as the hypergeometric
    distribution says, beside the marked ads of higher keys.
    """
    order = _order(keys, mask)
    groups, marked = _groups(keys, mask, order), np.take_along_axis(marked, order, axis=1)
    count = np.minimum(count, mask.sum(axis=1))
    last = np.take_along_axis(groups, np.maximum(count - 1, 0)[:, None], axis=1)
    surely = (marked * (groups < last)).sum(axis=1)
    b, g = (marked * (groups == last)).sum(axis=1).astype(np.int64), (groups == last).sum(axis=1)
    t = count - (groups < last).sum(axis=1)
    factorial = np.concatenate(([0.0], np.log(np.arange(1, marked.shape[1] + 1)).cumsum()))  # log of each

    def ways(of: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Log of the number of ways to draw."""
        return factorial[of] - factorial[drawn] - factorial[of - drawn]

    total = np.zeros(len(keys))
    for x in range(int(np.minimum(b, t).max(initial=0)) + 1):
        possible = (count > 0) & (x <= np.minimum(b, t)) & (t - x <= g - b)
        of, drawn, ads = b[possible], t[possible], g[possible]
        share = np.exp(ways(of, np.full_like(of, x)) + ways(ads - of, drawn - x) - ways(ads, drawn))
        total[possible] += share * np.minimum(surely[possible] + x, most[possible])
    return total


def _grids(columns: dict[str, ArrayLike], mask: ArrayLike | None) -> tuple[list[np.ndarray], np.ndarray]:
    """Columns as (B, n) float64 with NaN checked, and the mask (B, n) bool; ValueError naming the column otherwise."""
    arrays, real = [], None
    for name, values in columns.items():
        array, present = _grid(values, name)
        if arrays and array.shape != arrays[0].shape:
            raise ValueError(
                f"{name} has shape {array.shape}, {next(iter(columns))} has {arrays[0].shape}: one of each per ad"
            )
        if real is not None and not np.array_equal(present, real):
            row = int(np.flatnonzero((present != real).any(axis=1))[0])
            raise ValueError(f"{name} has another number of ads than {next(iter(columns))} in impression {row}")
        arrays.append(array)
        real = present
    if mask is not None:
        given, _ = _grid(mask, "mask")
        if given.shape != real.shape:
            raise ValueError(f"mask has shape {given.shape}, {next(iter(columns))} has {real.shape}")
        if not np.isin(given, (0.0, 1.0)).all():
            raise ValueError("mask must be True (an ad) or False (padding) everywhere")
        real = real & (given == 1)
    if not len(real):
        raise ValueError(f"{next(iter(columns))} is empty: a metric needs at least one impression")
    for (name, _), array in zip(columns.items(), arrays):
        _require(real & np.isnan(array), array, name, "a number")
    return arrays, real


def _grid(values: ArrayLike, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(B, n) float64 and where it has values: everywhere, or the places of ragged lists."""
    values = plain(values, name)
    if not isinstance(values, Sequence):
        values = np.asarray(values)
        if values.dtype == object and values.ndim:  # a column of lists
            values = list(values)
    try:
        if isinstance(values, Sequence) and len(values):
            lengths = [len(row) if hasattr(row, "__len__") else -1 for row in values]
            if min(lengths) >= 0 and len(set(lengths)) > 1:
                present = np.arange(max(lengths)) < np.asarray(lengths)[:, None]
                array = np.zeros(present.shape)
                array[present] = np.concatenate([np.asarray(row, dtype=np.float64) for row in values])
                return array, present
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers, a list of them per impression: {error}") from error
    if array.ndim == 1 and array.size:
        array = array[None]
    if array.ndim != 2:
        raise ValueError(f"{name} must have shape (impressions, ads), got {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers, got dtype {array.dtype}")
    return array.astype(np.float64), np.ones(array.shape, dtype=bool)


def _require(bad: np.ndarray, values: np.ndarray, name: str, accepted: str) -> None:
    if bad.any():
        row, place = (int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name} must be {accepted}, got {values[row, place]} at impression {row}, ad {place} ({int(bad.sum())} ads)"
        )


def _counts(value: int | ArrayLike, rows: int, name: str) -> np.ndarray:
    """(B,) int64 counts from a number of at least 1 or one per impression of at least 0."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be an integer, or one per impression, got {value!r}")
    if array.ndim == 0:
        if array < 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}")
        return np.full(rows, int(array), dtype=np.int64)
    if array.shape != (rows,):
        raise ValueError(f"{name} must be a number or have shape ({rows},), one per impression, got {array.shape}")
    if (array < 0).any():
        row = int(np.flatnonzero(array < 0)[0])
        raise ValueError(f"{name} must not be negative, got {array[row]} at impression {row}")
    return array.astype(np.int64)


def _weights(values: ArrayLike, rows: int) -> np.ndarray:
    """(B,) float64 weights of impressions."""
    weight = np.asarray(plain(values, "weight"), dtype=np.float64)
    if weight.shape != (rows,):
        raise ValueError(f"weight must have shape ({rows},), one per impression, got {weight.shape}")
    bad = ~(np.isfinite(weight) & (weight >= 0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(f"weight must be finite and not negative, got {weight[row]} at impression {row}")
    return weight


def _mean(values: np.ndarray, name: str, need: str) -> float:
    defined = values[~np.isnan(values)]
    if not len(defined):
        raise UndefinedMetricError(f"{name} is not defined: none of the {len(values)} impressions has {need}")
    return float(defined.mean())
