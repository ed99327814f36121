"""Sequence view of an interaction log: rows of one user's events and one or several candidates (MUMI and SUMI rows).

A row holds one slice of a user's events and up to C candidates of the same user. C = 1 gives the usual sample, "multiple users,
multiple items" (MUMI); more candidates per row, "single user, multiple items" (SUMI), share the history's encoding (Climber,
arXiv 2502.09888, 3.3.1).

**What a candidate may see (decided).** A row's history is the latest n events before its *last* candidate. Each candidate has its
`dependence`: how many of the row's history events it may see, those with a time strictly before its own (`log.history_end`).
A candidate's own single-item row is therefore the same start with the history cut at its dependence. It equals the MUMI row of
the candidate whenever the user's history before the row's last candidate is not longer than n.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch

from lmctr.data.logs.log import InteractionLog
from lmctr.data.processors.feature_values import OOV, PADDING
from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.utils.ragged import blocks
from lmctr.utils.rows import check_kind, check_list

from .rows import ROLES, EventStatistics, LogBatches, RowCollator, RowDataset, statistic_columns


def sumi_rows(
    log: InteractionLog,
    events: np.ndarray | Sequence[int],
    num_candidates: int,
    window_seconds: int | None = None,
    same_scenario: bool = False,
) -> np.ndarray:
    """Gathers samples of one user into rows, `num_candidates` at a time (the paper's degree of aggregation N_c).

    Samples of a user are taken in time order; a row is closed when it is full or when the next sample is more than
    `window_seconds` after the row's first one.

    Args:
        log: the log.
        events: positions of the samples.
        num_candidates: N_c, at least 1; 1 gives MUMI rows.
        window_seconds: longest time from the first to the last sample of a row; None: no limit.
        same_scenario: a row's samples are of one scenario.

    Returns:
        (R, N_c) int64 positions in time order, -1 where a row has fewer samples; rows are sorted by user and time.

    Raises:
        ValueError: `num_candidates` below 1, a negative window, events outside the log.
    """
    if num_candidates < 1:
        raise ValueError(f"num_candidates: got {num_candidates}, accepted: a whole number from 1.")
    if window_seconds is not None and window_seconds < 0:
        raise ValueError(f"window_seconds: got {window_seconds}, accepted: at least 0, or None.")
    events = np.sort(log.positions(events))  # by user and time, as the log is where nothing is hidden
    if log.hidden is not None:
        events = events[np.lexsort((log.time[events], log.user[events]))]
    if not len(events):
        return np.zeros((0, num_candidates), dtype=np.int64)
    group = log.user[events].astype(np.int64)
    if same_scenario and log.scenario is not None:
        group = group * (int(log.scenario.max()) + 1) + log.scenario[events]
        order = np.argsort(group, kind="stable")
        events, group = events[order], group[order]
    total = len(events)
    starts_group = np.append(True, group[1:] != group[:-1])
    first = np.flatnonzero(starts_group)
    group_end = np.repeat(np.append(first[1:], total), np.diff(np.append(first, total)))
    follow = np.minimum(np.arange(total) + num_candidates, group_end)  # where a row that begins here ends
    if window_seconds is not None:
        dense = np.cumsum(starts_group) - 1
        time = log.time[events] - log.time[events].min()
        span = int(time.max()) + int(window_seconds) + 1
        key = dense * span + time
        follow = np.minimum(follow, np.searchsorted(key, key + int(window_seconds), side="right"))
    begins, current = [], first
    while len(current):  # all groups step from row to row at once
        begins.append(current)
        following = follow[current]
        current = following[following < group_end[current]]
    begin = np.sort(np.concatenate(begins))
    place = begin[:, None] + np.arange(num_candidates)
    inside = place < follow[begin][:, None]
    rows = np.where(inside, events[np.minimum(place, total - 1)], -1)
    return rows[np.argsort(rows[:, 0], kind="stable")]


class SequenceView(LogBatches):
    """Rows of a log as tensors: slices of the event arrays, taken when a batch is built.

    Args:
        log: the log. Behaviour types are its feedback codes.
        processor: the fitted [`SequenceProcessor`].
        samples: events whose statistics will be asked for, where the processor's `statistics_reader` gives some; default: all samples.

    Raises:
        ValueError: behaviours, scenarios or tasks of the log that the processor does not know; missing feature columns.
    """

    def __init__(
        self,
        log: InteractionLog,
        processor: SequenceProcessor,
        samples: np.ndarray | None = None,
    ):
        check_kind(log, InteractionLog, "log")
        check_kind(processor, SequenceProcessor, "processor")
        self.log = log
        self.processor = processor
        self._item = processor.item_codes(log.catalogue["item_id"])
        self._item_features = processor.item_feature_codes(log.catalogue)
        self._user_features = processor.user_feature_codes(log.users, log.num_users)
        self._behavior = _recode(
            log.feedback_names, processor.behavior_names, "behaviours (feedback)", processor.knows_no_behavior
        )
        if log.scenario is None:
            self._scenario = None
        else:
            self._scenario = _recode(log.scenario_names, processor.scenario_names, "scenarios")
        for task in processor.tasks:
            if task != "label" and task not in log.extra_labels:
                raise ValueError(
                    f"the processor's task {task!r} is no label of the log: it has {['label', *log.extra_labels]}."
                )
        reader, self.statistics = processor.statistics_reader, None
        if reader is not None:
            task = processor.tasks[0]
            label = log.label if task == "label" else log.extra_labels[task]
            events = np.unique(self.samples(samples))
            self.statistics = EventStatistics(events, reader.of_events(log, events, label=label))

    def rows(
        self,
        events: np.ndarray | Sequence[int],
        num_candidates: int = 1,
        window_seconds: int | None = None,
        same_scenario: bool = False,
    ) -> np.ndarray:
        """Rows of samples: (S,) positions for one candidate per row in the given order, else (R, C), see [`sumi_rows`]."""
        if num_candidates == 1:
            return self.log.positions(events)
        return sumi_rows(self.log, events, num_candidates, window_seconds, same_scenario)

    def bounds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First event and end (int64, (R,), end excluded) of each row's history."""
        grid = rows if rows.ndim == 2 else rows[:, None]
        last = grid.max(axis=1)
        end = np.where(grid < 0, 0, self.log.history_end[grid]).max(axis=1)  # of the latest sample
        start = self.log.offsets[self.log.user[last]]
        if self.processor.max_history_length is not None:
            start = np.maximum(start, end - self.processor.max_history_length)
        return start, end

    def unknown(self, events: np.ndarray) -> tuple[dict[str, dict[str, int]], dict[str, list[str]]]:
        """Items without an id of their own, and behaviours that are not known, see [`~lmctr.data.batches.rows.LogBatches.unknown_of`]."""
        own = np.ones_like(self._item), (self._item == OOV).astype(np.int64)
        ids = self.log.catalogue["item_id"]
        counts, examples = self.unknown_of(
            events, "items", own, own, self.bounds, lambda items: [str(ids[i]) for i in items]
        )
        if self.processor.knows_no_behavior:
            # how many events in front of each have an unknown behaviour
            before = np.zeros(self.log.num_events + 1, dtype=np.int64)
            np.cumsum(self._behavior[self.log.feedback] == 0, out=before[1:])
            read = {"values": 0, "unknown": 0}
            for block in blocks(len(events)):
                start, end = self.bounds(events[block])
                read["values"] += int((end - start).sum())
                read["unknown"] += int((before[end] - before[start]).sum())
            counts["behaviors of histories"] = read
        if len(self.processor.scenario_names) > 1:  # a log says it of all events
            for role in ROLES:
                values = counts[f"items of {role}"]["values"]
                counts[f"scenarios of {role}"] = {
                    "values": values,
                    "unknown": values if self.log.scenario is None else 0,
                }
        return counts, examples

    def labels(self, events: np.ndarray) -> np.ndarray:
        """Labels float32 in the shape of `events` (with a task axis behind for several tasks), -100 where there is none."""
        columns = []
        for task in self.processor.tasks:
            values = self.log.label if task == "label" else self.log.extra_labels[task]
            columns.append(self._labels(values, events))
        return columns[0] if len(columns) == 1 else np.stack(columns, -1)

    def batch(self, rows: np.ndarray | Sequence, pad_to_multiple_of: int | None = None) -> dict[str, torch.Tensor]:
        """Tensors of some rows.

        Args:
            rows: (B,) positions of samples, one candidate per row, or (B, C) positions, -1 where a row has fewer. The samples of
                a row belong to one user. A row of -1 only is a filler: it repeats the first real row with labels -100.
            pad_to_multiple_of: pad histories to a multiple of this many events.

        Returns:
            `history_items`, `history_behaviors`, `history_scenarios`, `history_times` (B, N) int64, oldest first, right-padded
            with item 0; `candidate_items`, `candidate_scenarios`, `candidate_times`, `dependence` (B,) or (B, C) int64; `labels`
            (B,), (B, C), with a task axis behind for several tasks, float32, -100 = ignored; and, where the processor or log has
            them, `history_features` (B, N, Fi), `candidate_features`, `user_features` (B, Fu), `statistics`, `sample_weight`.

        Raises:
            ValueError: positions outside the log, a row with samples of several users, a sample without any label.
        """
        rows = np.asarray(rows)
        if rows.ndim not in (1, 2) or rows.size == 0 or rows.dtype.kind not in "iu":
            raise ValueError(
                f"rows: expected positions of shape (B,) or (B, C), got {rows.dtype} of shape {rows.shape}."
            )
        grid, filler = self.filled(rows[:, None] if rows.ndim == 1 else rows)
        grid = grid.astype(np.int64, copy=False)
        self._check(grid)
        targets = self.targets(grid, filler)
        log, present = self.log, grid >= 0
        start, end = self.bounds(grid)
        length = end - start
        width = max(int(length.max()), 1)
        if pad_to_multiple_of is not None:
            width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
        place = np.arange(width)
        inside = place < length[:, None]
        source = np.minimum(start[:, None] + place, log.num_events - 1)
        candidate = np.maximum(grid, 0)
        arrays = {
            "history_items": np.where(inside, self._item[log.item[source]], PADDING),
            "history_behaviors": np.where(inside, self._behavior[log.feedback[source]], 0),
            "history_scenarios": np.where(inside, self._scenarios(source), 0),
            "history_times": np.where(inside, log.time[source], 0),
            "candidate_items": np.where(present, self._item[log.item[candidate]], PADDING),
            "candidate_scenarios": np.where(present, self._scenarios(candidate), 0),
            "candidate_times": np.where(present, log.time[candidate], 0),
            "dependence": np.where(present, np.maximum(log.history_end[candidate] - start[:, None], 0), 0),
            **targets,
        }
        if self._item_features.shape[1]:
            arrays["history_features"] = self._item_features[log.item[source]] * inside[..., None]
            arrays["candidate_features"] = self._item_features[log.item[candidate]] * present[..., None]
        if self.statistics is not None:
            arrays["statistics"] = self.statistics.of(np.where(present, grid, -1))
        if rows.ndim == 1:
            per_candidate = (*_CANDIDATE_KEYS, "labels", "statistics", "sample_weight")
            arrays |= {name: arrays[name][:, 0] for name in per_candidate if name in arrays}
        if self._user_features.shape[1]:
            arrays["user_features"] = self._user_features[log.user[grid.max(axis=1)]]
        return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}

    def columns(self) -> dict[str, dict[str, list[int] | None]]:
        processor = self.processor
        named = {"item": {"candidate_items": None}}
        if len(processor.scenario_names) > 1:
            named["scenario"] = {"candidate_scenarios": None}
        for role, key, names in (
            ("item", "candidate_features", processor.item_feature_names),
            ("user", "user_features", processor.user_feature_names),
        ):
            ends = np.cumsum(processor.feature_widths(names)).tolist()
            named |= {
                f"{role} {name}": {key: list(range(start, end))} for name, start, end in zip(names, [0, *ends], ends)
            }
        # with its moment, so that the seconds between stay what they are
        return {
            "history": dict.fromkeys(_HISTORY_KEYS),
            **named,
            **statistic_columns(processor.statistics),
        }

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """(R,) int32 history length of each row."""
        lengths = np.empty(len(rows), dtype=np.int32)
        for block in blocks(len(rows)):
            start, end = self.bounds(rows[block])
            lengths[block] = end - start
        return lengths

    def _scenarios(self, events: np.ndarray) -> np.ndarray:
        if self._scenario is None:
            return np.zeros(events.shape, dtype=np.int64)
        return self._scenario[self.log.scenario[events]]

    def _check(self, grid: np.ndarray) -> None:
        if grid.min() < -1 or grid.max() >= self.log.num_events:
            raise ValueError(
                f"rows: positions go from 0 to {self.log.num_events - 1} (-1: none), got {grid.min()} to {grid.max()}."
            )
        user = self.log.user[grid]
        mixed = ((user != self.log.user[grid.max(axis=1)][:, None]) & (grid >= 0)).any(axis=1)
        if mixed.any():
            row = int(np.argmax(mixed))
            raise ValueError(f"rows: row {row} holds samples of several users (events {grid[row].tolist()}).")


logger = logging.getLogger(__name__)
_HISTORY_KEYS = (
    *(f"history_{what}" for what in ("items", "behaviors", "scenarios", "times", "features")),
    "dependence",
    "candidate_times",
)
_CANDIDATE_KEYS = ("candidate_items", "candidate_scenarios", "candidate_times", "dependence", "candidate_features")


def _recode(names: Sequence[str], known: Sequence[str], what: str, first_is_unknown: bool = False) -> np.ndarray:
    """Codes of the processor by those of the log; new names get code 0 where that stands for what is not known."""
    unknown = [name for name in names if name not in known]
    if unknown and not first_is_unknown:
        raise ValueError(
            f"the log has the {what} {unknown}, which the processor does not know; it has {list(known)}. Train anew, or leave these events out."
        )
    if unknown:
        logger.warning("the %s %s are newer than the processor and count as %r", what, unknown, known[0])
    return np.array([0 if name in unknown else list(known).index(name) for name in names], dtype=np.int64)


class SequenceDataset(RowDataset):
    """Rows of a [`SequenceView`]; [`SequenceCollator`] turns a list of them into a batch.

    Args:
        view: the sequence view.
        events: (S,) positions of the samples, for example a part of a split; None takes all samples.
        num_candidates: samples per row, N_c; 1 (MUMI) keeps the order of `events`.
        window_seconds, same_scenario: see [`sumi_rows`].

    Raises:
        ValueError: see [`sumi_rows`]; events without any label.
    """

    def __init__(
        self,
        view: SequenceView,
        events: np.ndarray | Sequence[int] | None = None,
        num_candidates: int = 1,
        window_seconds: int | None = None,
        same_scenario: bool = False,
    ):
        check_kind(view, SequenceView, "view")
        events = view.log.sample_events() if events is None else events
        check_list(events, "events", "positions of events")
        super().__init__(view, view.rows(events, num_candidates, window_seconds, same_scenario))


SequenceCollator = RowCollator
