"""Planning of SUMI rows: how many samples N_c of a user to gather into one row (Climber, arXiv 2502.09888, Eq. 5-8).

The formulas see a data set through its histogram g(n), the number of groups of n samples (the samples of a user, or of a user within
a time window). `plan_compression` puts beside them what the rows of this log take: bytes of their Arrow serialisation, rows as the
sampler builds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.data.batches.sequence import SequenceView, sumi_rows
from lmctr.data.logs.log import InteractionLog
from lmctr.models.astro.configuration_astro import ASTROConfig
from lmctr.utils.ragged import blocks, offsets_from_lengths, ragged_arange

from .flops import StageFlops, astro_flops

SIZE_OF_INT = 4
_CHUNK = 4096


def sample_histogram(log: InteractionLog, events: np.ndarray, window_seconds: int | None = None) -> dict[int, int]:
    """g(n): how many groups have n samples. A group: samples of a user no more than `window_seconds` after the group's first."""
    counts = np.unique(log.user[events], return_counts=True)[1]
    if window_seconds is not None and len(counts):
        counts = (sumi_rows(log, events, int(counts.max()), window_seconds) >= 0).sum(axis=1)
    sizes, groups = np.unique(counts, return_counts=True)
    return dict(zip(sizes.tolist(), groups.tolist()))


def padded_samples(histogram: Mapping[int, int], num_candidates: int) -> int:
    """N_p, places of candidates that stay empty: sum over n of g(n) p(n), p(n) = ceil(n / N_c) N_c - n (Eq. 5, 6)."""
    return sum(groups * (-(-n // num_candidates) * num_candidates - n) for n, groups in histogram.items())


def compression_ratio(
    histogram: Mapping[int, int], num_candidates: int, user_bytes: float, item_bytes: float
) -> float:
    """alpha, size of the rows relative to one row per sample (Eq. 7).

    Args:
        user_bytes, item_bytes: D_user and D_item, mean bytes of a sample's user part (with its history) and item part.
    """
    samples = sum(n * groups for n, groups in histogram.items())
    places = samples + padded_samples(histogram, num_candidates)
    rows = places * user_bytes / num_candidates + places * (item_bytes + SIZE_OF_INT)
    return rows / (samples * (user_bytes + item_bytes))


def epoch_flops(histogram: Mapping[int, int], num_candidates: int, stages: Callable[[int], StageFlops]) -> float:
    """F_total, FLOPs of one pass over the data: (N + N_p) / N_c (F_stage1 + F_stage2(N_c)) (Eq. 8).

    Args:
        stages: the cost of a row with so many candidates; forward, or forward and backward, as the result should be.
    """
    samples = sum(n * groups for n, groups in histogram.items())
    places = samples + padded_samples(histogram, num_candidates)
    return places / num_candidates * stages(num_candidates).total


def row_bytes(view: SequenceView, rows: np.ndarray) -> tuple[int, int, int]:
    """Bytes of rows in Arrow's format: user part (events of the history and user features), item part, dependence lists.

    Histories are stored at their own length, candidate lists at the width of `rows`; the smallest usual type is taken for each
    column (ids 32 bits, behaviours 8, scenarios 16, times 64, labels 8, features 32, dependence 32).
    """
    totals = [0, 0, 0]
    for some in blocks(len(rows), _CHUNK):
        batch = {name: values.numpy() for name, values in view.batch(rows[some]).items()}
        count = len(batch["history_items"])
        lengths = (batch["history_items"] != 0).sum(axis=1)
        inside = np.arange(batch["history_items"].shape[1]) < lengths[:, None]
        parts: tuple[dict[str, pa.Array], ...] = ({}, {}, {})
        for name, values in batch.items():
            place = {"history": 0, "user": 0, "dependence": 2}.get(name.split("_")[0], 1)
            taken, counts = (values[inside], lengths) if name.startswith("history") else (values, np.ones(count, int))
            parts[place][name] = _lists(taken.astype(_TYPES.get(name, np.int32)), counts)
        for place, columns in enumerate(parts):
            totals[place] += pa.ipc.get_record_batch_size(pa.RecordBatch.from_pydict(columns))
    return totals[0], totals[1], totals[2]


_TYPES = {
    "history_behaviors": np.int8,
    "history_scenarios": np.int16,
    "history_times": np.int64,
    "candidate_scenarios": np.int16,
    "candidate_times": np.int64,
    "labels": np.int8,
    "statistics": np.float32,
    "sample_weight": np.float32,
}


def _lists(values: np.ndarray, lengths: np.ndarray) -> pa.Array:
    """Lists of `lengths` entries, each of all numbers on the other axes."""
    offsets = offsets_from_lengths(lengths * math.prod(values.shape[1:])).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)))


@dataclass(frozen=True)
class CompressionPoint:
    """One degree of aggregation.

    Args:
        num_candidates: N_c. rows: rows that the sampler builds. rows_by_formula: (N + N_p) / N_c. padded: N_p by formula.
        ratio: alpha by Eq. 7. measured_bytes, measured_ratio: of the rows as built, against one row per sample without a dependence list.
        flops: F_total by Eq. 8 (forward and backward, three times the forward cost). measured_flops: the same for the rows as built
            with their own history lengths.
    """

    num_candidates: int
    rows: int
    rows_by_formula: float
    padded: int
    ratio: float
    measured_bytes: int
    measured_ratio: float
    flops: float
    measured_flops: float


@dataclass(frozen=True)
class CompressionPlan:
    """What `plan_compression` found.

    Args:
        points: one per degree, in the order asked for. histogram: g(n). user_bytes, item_bytes: D_user and D_item, measured.
        num_samples: N.
    """

    points: tuple[CompressionPoint, ...]
    histogram: dict[int, int]
    user_bytes: float
    item_bytes: float
    num_samples: int

    def best(self, by: str = "measured_bytes") -> CompressionPoint:
        """The point with the least `by`: "ratio", "measured_bytes", "flops" or "measured_flops"; the smaller N_c of equals."""
        accepted = ("ratio", "measured_bytes", "measured_ratio", "flops", "measured_flops")
        if by not in accepted:
            raise ValueError(f"by: got {by!r}, accepted: {', '.join(accepted)}.")
        return min(self.points, key=lambda point: (getattr(point, by), point.num_candidates))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        return {
            "num_samples": self.num_samples,
            "user_bytes": self.user_bytes,
            "item_bytes": self.item_bytes,
            "best_by_bytes": self.best("measured_bytes").num_candidates,
            "best_by_flops": self.best("measured_flops").num_candidates,
            "histogram": {str(n): groups for n, groups in sorted(self.histogram.items())},
            "points": [asdict(point) for point in self.points],
        }


def plan_compression(
    view: SequenceView,
    events: np.ndarray,
    config: ASTROConfig,
    degrees: Sequence[int] = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20),
    window_seconds: int | None = None,
    max_samples: int | None = 100_000,
    seed: int = 0,
) -> CompressionPlan:
    """Sizes and costs of the rows of a log for several N_c, by the formulas of the paper and as measured.

    Args:
        view: the sequence view that rows are built with. events: the samples, such as a training part.
        config: the model whose FLOPs are planned.
        degrees: the N_c to compare. window_seconds: of the sampler.
        max_samples: work on whole users, drawn at random, with about this many samples at most; None takes all.

    Raises:
        ValueError: no samples, no degree, a degree below 1.
    """
    if not len(degrees) or min(degrees) < 1:
        raise ValueError(f"degrees: got {list(degrees)}, accepted: whole numbers from 1, at least one.")
    events = _some_users(view.log, np.asarray(events), max_samples, seed)
    if not len(events):
        raise ValueError("events: there are no samples to plan for.")
    histogram = sample_histogram(view.log, events, window_seconds)
    single = row_bytes(view, np.sort(events))
    user_bytes, item_bytes = single[0] / len(events), single[1] / len(events)

    def stages(candidates: int, length: float | None = None) -> StageFlops:
        cost = astro_flops(config, candidates, length)
        return StageFlops(3 * cost.stage1, 3 * cost.stage2)

    points = []
    for degree in degrees:
        rows = sumi_rows(view.log, events, degree, window_seconds)
        total = sum(row_bytes(view, rows) if degree > 1 else single)
        padded = padded_samples(histogram, degree)
        lengths = np.minimum(view.lengths(rows), config.sequence_length)
        sizes, counts = np.unique(lengths, return_counts=True)
        points.append(
            CompressionPoint(
                num_candidates=int(degree),
                rows=len(rows),
                rows_by_formula=(len(events) + padded) / degree,
                padded=padded,
                ratio=compression_ratio(histogram, degree, user_bytes, item_bytes),
                measured_bytes=int(total),
                measured_ratio=total / (single[0] + single[1]),
                flops=epoch_flops(histogram, degree, stages),
                measured_flops=float(sum(c * stages(degree, float(n)).total for n, c in zip(sizes, counts))),
            )
        )
    return CompressionPlan(tuple(points), histogram, user_bytes, item_bytes, len(events))


def _some_users(log: InteractionLog, events: np.ndarray, most: int | None, seed: int) -> np.ndarray:
    events = np.sort(events)
    if most is None or len(events) <= most:
        return events
    users, first, counts = np.unique(log.user[events], return_index=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(users))
    taken = order[: max(1, int(np.searchsorted(np.cumsum(counts[order]), most, side="right")))]
    return events[np.sort(ragged_arange(first[taken], counts[taken]))]
