"""From the scores of ads to the metrics dict of a retrieval run, and a table's worth of rivals to compare with.

Ads come flat, impression by impression, as run folders keep them: (A,) arrays and the (B,) number of ads of each impression.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lmctr.evaluation.ranking_metrics import RankingMetrics, metrics_per_impression
from lmctr.utils.ragged import blocks, offsets_from_lengths, padded_grids

_CHUNK = 4096  # impressions measured at a time


@dataclass(frozen=True)
class RankingSettings:
    """What the metrics of impressions count.

    Args:
        m: ads that go on (R/R*, Recall@m@k). k: wanted ads of Recall@m@k; None takes m. ndcg_k: places of NDCG; None counts all.
        ideal: what the denominator of R/R* sorts by, "v" (Eq. 5 as written) or "ecpm".
        ties: what ads of equal scores count as: the mean over their orders ("expected") or the "worst" one.
    """

    m: int = 10
    k: int | None = None
    ndcg_k: int | None = 10
    ideal: str = "v"
    ties: str = "expected"

    def titles(self) -> dict[str, str]:
        """What the metrics are called with these settings: {"ndcg": "NDCG@10", ...}."""
        k = self.m if self.k is None else self.k
        bound = "" if self.ideal == "v" else " (bounded)"
        worst = "" if self.ties == "expected" else " (ties: worst)"
        return {
            "revenue_ratio": f"R/R*@{self.m}{bound}{worst}",
            "ordered_pair_accuracy": "OPA",
            "ndcg": ("NDCG" if self.ndcg_k is None else f"NDCG@{self.ndcg_k}") + worst,
            "recall": f"Recall@{self.m}@{k}{worst}",
        }


def evaluate_ranking(
    counts: ArrayLike,
    ranks: ArrayLike,
    scores: ArrayLike,
    ecpm: ArrayLike,
    settings: RankingSettings,
    weight: ArrayLike | None = None,
) -> dict[str, float | int]:
    """Measure scores of ads.

    Args:
        counts: (B,) ads of each impression. ranks: (A,) v. scores: (A,). ecpm: (A,).
        settings: see there. weight: (B,) what each impression counts in the means, 0 and above; None: 1 each.

    Returns:
        `revenue_ratio`, `ordered_pair_accuracy`, `ndcg`, `recall` (absent where no impression of a weight has a value), `<metric>_dropped`, the impressions
        that have none, and `num_samples`, B.

    Raises:
        ValueError: arrays that differ in length, no impressions, NaN scores (with the impression and the ad), wrong weights.
    """
    counts, columns = _columns(counts, {"ranks": ranks, "scores": scores, "ecpm": ecpm})
    weight = None if weight is None else np.asarray(weight)
    if weight is not None and weight.shape != counts.shape:
        raise ValueError(f"weight has the shape {weight.shape}; {len(counts)} impressions have one each")
    stream = RankingMetrics(**vars(settings))
    for first, grids, mask in _grids(counts, columns):
        try:
            own = None if weight is None else weight[first : first + _CHUNK]
            stream.update(grids["ranks"], grids["scores"], grids["ecpm"], mask, weight=own)
        except ValueError as error:
            if first:
                raise ValueError(f"{error} (impressions counted from {first})") from error
            raise
    found = stream.compute()
    names = settings.titles()
    result: dict[str, float | int] = {name: found[name] for name in names if found[name] is not None}
    result |= {f"{name}_dropped": found[f"{name}_dropped"] for name in names}
    return result | {"num_samples": found["num_impressions"]}


def ranking_per_impression(
    counts: ArrayLike, ranks: ArrayLike, scores: ArrayLike, ecpm: ArrayLike, settings: RankingSettings
) -> dict[str, np.ndarray]:
    """(B,) values of each metric, NaN where an impression has none: what paired tests draw from. Arguments as in `evaluate_ranking`."""
    counts, columns = _columns(counts, {"ranks": ranks, "scores": scores, "ecpm": ecpm})
    chunks = [
        metrics_per_impression(**grids, mask=mask, settings=vars(settings))
        for _, grids, mask in _grids(counts, columns)
    ]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in settings.titles()}


def _columns(counts: ArrayLike, columns: dict[str, ArrayLike]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    counts = np.asarray(counts, dtype=np.int64)
    if counts.ndim != 1 or not len(counts):
        raise ValueError("there are no impressions to measure")
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    for name, values in arrays.items():
        if values.shape != (counts.sum(),):
            raise ValueError(f"{name} has the shape {values.shape}; {len(counts)} impressions have {counts.sum()} ads")
    return counts, arrays


def _grids(counts: np.ndarray, columns: dict[str, np.ndarray]):
    """Number of the first impression, columns as (b, n) and mask, chunk by chunk."""
    offsets = offsets_from_lengths(counts)
    for rows in blocks(len(counts), _CHUNK):
        own = slice(offsets[rows.start], offsets[rows.stop])
        yield rows.start, *padded_grids({name: values[own] for name, values in columns.items()}, counts[rows])
