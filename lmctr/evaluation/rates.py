"""What the rates of a field's values are: their share of positives, smoothed, and of training rows without the row itself.

Two fields whose values together tell what neither tells are one more field, whose values are their pairs of values: `chosen_pairs`.

S: rows to fit on, R: training rows, T: tasks, Cr: fields, V: values of a field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import expit, logit

from lmctr.evaluation.baseline_parts import NUM_FOLDS, FoldSums, can_stop_early, statistic_regression

STRENGTH = 5.0
"""Imaginary rows with the rate of all rows that smooth a value's: chosen on the validation parts of ten public tables among 1 to 40."""
MOST_PAIRS = 8
"""Pairs of fields at most: chosen on held-out rows of ten public tables among 4, 8 and 16."""
MOST_CELLS = 1 << 14
"""Values of a pair at most, all that two fields could have together."""
_FEWEST_DEVIATIONS = 3.5
_LEAST_GAIN, _LEAST_OF_BEST = 0.01, 0.03  # of the regression's log loss


def pair_ids(ids: np.ndarray, sizes: Sequence[int], pair: Sequence[int]) -> np.ndarray:
    """(R,) the values of two fields of (R, C) ids together, below the product of their `sizes`, (C,)."""
    return ids[:, pair[0]].astype(np.int64) * sizes[pair[1]] + ids[:, pair[1]]


def chosen_pairs(
    ids: np.ndarray,
    sizes: Sequence[int],
    fields: Sequence[Any],
    rates: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None,
) -> list[tuple[int, int]]:
    """Pairs of fields whose values together tell of labels what a logistic regression on the rates of all fields does not.

    What rows of a pair of values have above the regression, one Newton step of it smoothed by `STRENGTH` rows, is taken from four of five folds and
    measured on the fifth, as a log loss. Pairs are chosen where this falls by 3.5 standard errors and by a hundredth, those by which it falls the most
    first; none where the first gains less than three hundredths, which harmed as often as it helped, or rows are too few for trees to stop early. Not
    tried are bins of two numbers, which trees divide by themselves, fields of one column, and pairs of more than `MOST_CELLS` values.

    Args:
        ids: (S, C) all categorical fields. sizes: by field, V. fields: the fields. rates: (S, C) log-odds from the folds that a row is not in, see
            [`value_rates`].
        labels: (S,), below 0 where there is none. weight: (S,), None: ones.

    Returns:
        Places of two fields each, at most `MOST_PAIRS`.
    """
    known = labels >= 0 if weight is None else (labels >= 0) & (weight > 0)
    ids, rates, labels = ids[known], rates[known], labels[known].astype(np.float64)
    if not can_stop_early(labels):
        return []
    weight = np.ones(len(labels)) if weight is None else weight[known].astype(np.float64)
    fold = np.random.default_rng([0, 77]).integers(0, NUM_FOLDS, len(known))[known]
    line = statistic_regression().fit(rates, labels, weight).decision_function(rates)
    rate = expit(line)
    left, slope = weight * (labels - rate), weight * rate * (1 - rate)
    before, found = _losses(labels, line), {}
    columns = [(field.source_column, field.extract) for field in fields]
    whole = (weight * before).mean()
    for pair in combinations(range(len(sizes)), 2):
        one, two = pair
        cells = int(sizes[one]) * int(sizes[two])
        if columns[one] == columns[two] or (fields[one].type == fields[two].type == "numeric") or cells > MOST_CELLS:
            continue
        own = pair_ids(ids, sizes, pair)
        above, room = FoldSums(own, fold, cells, (left, slope)).without(fold, own)
        gain = weight * (before - _losses(labels, line + above / (room + STRENGTH * slope.mean())))
        deviation = max(gain.std(), 1e-12) / np.sqrt(len(gain))
        if gain.mean() >= max(_FEWEST_DEVIATIONS * deviation, _LEAST_GAIN * whole):
            found[pair] = gain.mean()
    if max(found.values(), default=0.0) < _LEAST_OF_BEST * whole:  # little to win, and trees err by more columns
        return []
    chosen = {}  # one of each two columns
    for pair in sorted(found, key=found.get, reverse=True):
        chosen.setdefault(frozenset(columns[place] for place in pair), pair)
    return list(chosen.values())[:MOST_PAIRS]


def _losses(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, logits) - labels * logits


def value_rates(
    ids: Iterable[np.ndarray],
    sizes: Sequence[int],
    labels: np.ndarray,
    weight: np.ndarray | None,
    fitted: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The log-odds of the rates of all values of some fields, and those of the rows to fit a model on.

    Args:
        ids: by field (R,) its values, or (R, L) lists of them, padded with 0: the mean of their values', and at 0 what an empty list has. sizes: by field, V.
        labels: (R,) or (R, T); below 0 where there is none, which counts for nothing. weight: (R,), None: ones.
        fitted: (S,) places among the R rows.

    Returns:
        (all V one field after the other, T), and (S, T, Cr) from the folds that a row is not in; both float32.
    """
    labels = labels.reshape(len(labels), -1)
    fold = np.random.default_rng([0, 77]).integers(0, NUM_FOLDS, len(labels))
    encoders = []
    for own in labels.T:
        counted = (own >= 0) * (1.0 if weight is None else np.asarray(weight, np.float64))
        positives = np.maximum(own, 0).astype(np.float64)
        encoders.append(RateEncoder(positives, counted, fold, fitted, STRENGTH))
    whole = np.empty((sum(sizes), len(encoders)), np.float32)
    rows = np.empty((len(fitted), len(encoders), len(sizes)), np.float32)
    start = 0
    for field, (values, size) in enumerate(zip(ids, sizes)):
        for task, encoder in enumerate(encoders):
            each = np.arange(size).reshape(-1, *[1] * (values.ndim - 1))
            rates, _ = encoder.encode(values, {"whole": each})
            whole[start : start + size, task], rows[:, task, field] = rates["whole"], rates["train"]
        start += size
    return whole, rows


@dataclass(frozen=True)
class RateEncoder:
    """Log-odds of smoothed rates: of a training row without its fold, of other rows with all folds."""

    labels: np.ndarray
    weight: np.ndarray
    fold: np.ndarray
    fitted: np.ndarray
    strength: float

    @cached_property
    def prior(self) -> float:
        """The rate of all rows."""
        return float(np.average(self.labels, weights=self.weight))

    def encode(
        self, ids: np.ndarray, values: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Log-odds, and the training rows with the value (of a training row: the others), whatever they weigh, by part.

        Args:
            ids: (R,) values of the training part; or lists (R, L) of them, padded with 0, whose log-odds are the mean of their values',
                and the prior's where a list is empty.
            values: part to (R',) or (R', L).
        """
        size = max(int(part.max(initial=0)) for part in (ids, *values.values())) + 1
        length = ids[0].size
        used = slice(None) if ids.ndim == 1 else ids.ravel() > 0
        fold, labels, weight = (np.repeat(array, length)[used] for array in (self.fold, self.labels, self.weight))
        flat = ids.ravel()[used].astype(np.int64)
        sums, counts = FoldSums(flat, fold, size, (labels * weight, weight)), np.bincount(flat, minlength=size)
        whole = self._log_odds(*sums.totals)
        rates = {name: whole[part] for name, part in values.items()}
        seen = {name: counts[part] for name, part in values.items()}
        own = ids[self.fitted]
        left = sums.without(self.fold[self.fitted].reshape(-1, *[1] * (ids.ndim - 1)), own)
        rates["train"] = self._log_odds(*left)
        # Trees know values by their counts: without its fold a value would have another one than in rows to score, and weights would tell the row's,
        # which is its label where negatives are thinned out.
        seen["train"] = counts[own] - 1
        if ids.ndim == 2:
            rates = {name: self._mean(rates[name], part > 0) for name, part in {**values, "train": own}.items()}
        return rates, seen

    def _log_odds(self, positives: np.ndarray, totals: np.ndarray) -> np.ndarray:
        rate = (positives + self.strength * self.prior) / (np.maximum(totals, 0) + self.strength)
        return logit(np.clip(rate, 1e-9, 1 - 1e-9))  # differences of sums may leave the interval by rounding

    def _mean(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        count = mask.sum(1)
        return np.where(count > 0, (values * mask).sum(1) / np.maximum(count, 1), logit(self.prior))
