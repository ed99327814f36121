"""Sink signals of CTR-Sink (Eq. 4): from what is known of a behaviour to a row of the signal's embedding table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmctr.utils.ragged import Ragged, ragged_arange

ELAPSED_HORIZON = 3650 * 86400  # seconds; longer spans share the last bucket
ORDINAL_HORIZON = 10**7  # behaviours, likewise

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def recency_buckets(distance: np.ndarray, num_buckets: int) -> np.ndarray:
    """Ordinal distance to the target in the full history, 0 = latest behaviour; the last bucket holds all beyond."""
    return np.minimum(distance, num_buckets - 1)


def elapsed_buckets(seconds: np.ndarray, num_buckets: int) -> np.ndarray:
    """Logarithmic time buckets: floor(n * ln(1 + seconds) / ln(1 + H)), at most n - 1, with H = 3650 days."""
    return _log_buckets(seconds, ELAPSED_HORIZON, num_buckets)


def ordinal_buckets(number: np.ndarray, num_buckets: int) -> np.ndarray:
    """The behaviour's number in the full history, 0 = first: floor(n * ln(1 + number) / ln(1 + 10^7)), at most n - 1.

    It tells how much is known of the user. What the latest behaviours say of a new user's mood is little: it orders their items
    worse than chance, because in a short history each label lowers what the others average.
    """
    return _log_buckets(number, ORDINAL_HORIZON, num_buckets)


def _log_buckets(values: np.ndarray, horizon: int, num_buckets: int) -> np.ndarray:
    share = np.log1p(values.astype(np.float64)) / np.log1p(float(horizon))
    return np.minimum((share * num_buckets).astype(np.int64), num_buckets - 1)


def similarity_buckets(cosine: np.ndarray, num_buckets: int) -> np.ndarray:
    """Equal buckets of the cosine over [-1, 1]: floor(n * (cosine + 1) / 2), kept in [0, n - 1].

    The authors stretch the cosines of each row from its least to its largest. Then a bucket says where a behaviour stands among those
    chosen, and changes with them; here equal cosines have equal buckets in every row. Retrievers whose cosines lie close together use
    few of the buckets.
    """
    bucket = np.floor((cosine.astype(np.float64) + 1.0) / 2.0 * num_buckets).astype(np.int64)
    return np.clip(bucket, 0, num_buckets - 1)


def fit_value_levels(values: np.ndarray, most: int = 32) -> list[float]:
    """Levels that stand for graded feedback: the values themselves where at most `most` differ (half stars), else the middles of
    `most` equally frequent bins, to three digits. NaN is left out; the levels ascend."""
    known = values[~np.isnan(values)].astype(np.float64)
    levels, digits = np.unique(known), 6
    if len(levels) > most:
        levels, digits = np.quantile(known, (np.arange(most) + 0.5) / most), 3
    return sorted({float(f"{level:.{digits}g}") for level in levels})


def value_buckets(values: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """1 + the number of the nearest level (of two equally near, the higher), 0 where the value is unknown (NaN). Values count as float32,
    in which logs hold them: 2.3 of a log and 2.3 of a request are the same value."""
    levels, values = np.asarray(levels, dtype=np.float64), np.asarray(values, dtype=np.float32)
    nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, values, side="right")
    return np.where(np.isnan(values), 0, 1 + nearest)


def fit_statistic_bounds(values: np.ndarray, most: int) -> list[float]:
    """At most `most` ascending bounds between equally frequent bins of what is known of a statistic, to six digits; of what is a
    constant, none."""
    known = values[~np.isnan(values)].astype(np.float64)
    if not len(known):
        return []
    bounds = sorted({float(f"{bound:.6g}") for bound in np.quantile(known, np.arange(1, most + 1) / (most + 1))})
    return [bound for bound in bounds if known.min() < bound]


def statistic_buckets(values: np.ndarray, bounds: Sequence[float]) -> np.ndarray:
    """1 + how many bounds are at most the value, 0 where it is unknown (NaN)."""
    found = np.searchsorted(np.asarray(bounds, dtype=np.float64), values, side="right")
    return np.where(np.isnan(values), 0, 1 + found)


def random_buckets(
    time: np.ndarray,
    history_length: np.ndarray,
    target: Ragged,
    row: np.ndarray,
    position: np.ndarray,
    num_buckets: int,
) -> np.ndarray:
    """Random buckets that stay the same in every epoch, batch and process: splitmix64 of (sample, position).

    Args:
        time, history_length: (B,) of the samples; with the token ids `target` of the target's text they are the
            sample's key.
        row: (U,) sample of each behaviour. position: (U,) its place counted back from the target, 0 = next to it.
    """
    token = target.values.astype(np.uint64) + _GOLDEN * (
        ragged_arange(np.zeros(len(target), dtype=np.int64), target.lengths).astype(np.uint64) + np.uint64(1)
    )
    sums = np.zeros(len(token) + 1, dtype=np.uint64)
    np.cumsum(_splitmix64(token), out=sums[1:])  # modulo 2**64
    text = sums[target.offsets[1:]] - sums[target.offsets[:-1]]
    key = _splitmix64(_splitmix64(_splitmix64(time.astype(np.uint64)) ^ history_length.astype(np.uint64)) ^ text)
    draw = _splitmix64(key[row] + _GOLDEN * (position.astype(np.uint64) + np.uint64(1)))
    return (draw % np.uint64(num_buckets)).astype(np.int64)


def _splitmix64(x: np.ndarray) -> np.ndarray:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
