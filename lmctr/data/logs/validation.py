"""Proof that a log and its splits leak nothing: every violation is an error with its count and examples.

Checked, for every sample: no event at or after the sample's time stands in its history, the sample itself does not stand in its
history, and (for splits by time) no training sample is later than a validation or test sample. The checks compare times directly,
they do not trust the code that built the log.
"""

from __future__ import annotations

import itertools
import time as clock
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.leaks import (
    Finding,
    future_attribute,
    row_hashes,
    settle,
    some_of,
    telling_fields,
    times_in_another_unit,
)
from lmctr.utils.arrow import is_list, is_number
from lmctr.utils.ragged import blocks, whole_rows
from lmctr.utils.rows import check_kind

from .copies import copied_users, tells_minutes
from .log import InteractionLog
from .splits import Splits

_CHUNK = 1 << 20
_SOON = 3600  # seconds, within which the step of an act before another one lies
_BACK = 20  # events before a sample, among which that step is looked for
_SINCE_LAST = ("log_seconds_since_last_event", "user_item_seconds_since_last_event")


@dataclass(frozen=True)
class LeakageReport:
    """What [`validate_log`] looked at. A report exists only when nothing was violated.

    Args:
        num_events: events of the log.
        num_samples: samples whose histories were checked.
        empty_histories: samples without any behaviour before them.
        tied_samples: samples that share their second with another event of the same user, which is kept out of their history.
        repeated_items: samples whose item the user had met before (legal where users return to items; see `allow_repeats`).
        duplicate_events: events that repeat user, item and second of another.
        split_rule: the rule of the splits, None without splits.
        split_sizes: samples of each part.
        split_times: first and last time (unix seconds) of each part that has samples.
        time_order: whether the order in time of the parts was checked.
        allowed: what was found and allowed, with the reasons.
        notes: what else was found, and what to do about it.
    """

    num_events: int
    num_samples: int
    empty_histories: int
    tied_samples: int
    repeated_items: int
    duplicate_events: int
    split_rule: str | None = None
    split_sizes: dict[str, int] | None = None
    split_times: dict[str, tuple[int, int]] | None = None
    time_order: bool = False
    allowed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report as lines of text."""
        count = f"{self.num_samples:,} samples"
        lines = [
            f"events at or after the sample's time in its history: 0 of {count}",
            f"targets in their own history: 0 of {count}",
        ]
        if self.split_rule is not None:
            order = (
                "0 training samples after the first validation or test sample" if self.time_order else "not required"
            )
            lines.append(f"order in time of the parts (rule {self.split_rule!r}): {order}")
        return [
            *lines,
            f"samples with an empty history: {self.empty_histories:,}",
            f"samples at the same second as another event of their user (kept out of the history): {self.tied_samples:,}",
            f"samples of an item that the user met before: {self.repeated_items:,}",
            f"events that repeat user, item and second of another: {self.duplicate_events:,}",
            *self.allowed,
            *self.notes,
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def validate_log(
    log: InteractionLog,
    splits: Splits | None = None,
    *,
    allow_repeats: bool = True,
    require_time_order: bool | None = None,
    now: int | None = None,
    allow: Mapping[str, str] | None = None,
) -> LeakageReport:
    """Checks a log, and its splits when given.

    Args:
        allow_repeats: whether a user may meet an item again. With False, an earlier event on the target's item in its history is
            a violation.
        require_time_order: whether training must end before validation and test begin, and validation before test. None requires
            it for every split rule but "user".
        allow: reasons for what is no leak, by check (duplicates, time_unit, future, field) or by check and name; see
            [`lmctr.data.leaks`].
        now: unix seconds; events later than a day after it are a violation. None takes the clock.

    Raises:
        ValueError: all violations, each with its count and examples.
    """
    check_kind(log, InteractionLog, "log")
    if splits is not None:
        check_kind(splits, Splits, "splits")
    problems = _check_columns(log, now)
    if problems:
        raise _error(log, problems)
    samples = log.sample_events()
    if not len(samples):
        raise _error(log, ["no event has a label, so there is no sample"])
    empty = tied = 0
    hidden = ~log.seen
    for events in (samples[some] for some in blocks(len(samples), _CHUNK)):
        start, end = log.history_bounds(events)
        problems += _check_slices(log, hidden, events, start, end)
        empty += int((end == start).sum())
        events, end = events[~hidden[events]], end[~hidden[events]]
        tied += int((end < events).sum())
        following = np.minimum(events + 1, log.num_events - 1)
        tied += int(
            (
                (end == events)
                & (following > events)
                & (log.user[following] == log.user[events])
                & (log.time[following] == log.time[events])
            ).sum()
        )
    repeated, duplicates, example = _repeats(log, hidden)
    if repeated and not allow_repeats:
        problems.append(f"{repeated} samples have their item in their own history, such as {_event(log, example)}")
    details: dict = {}
    if splits is not None:
        if require_time_order is None:
            require_time_order = splits.rule != "user"
        problems += _check_splits(log, splits, require_time_order)
        if problems:
            raise _error(log, problems)
        times = {name: log.time[events] for name, events in splits.items() if len(events)}
        details = {
            "split_rule": splits.rule,
            "split_sizes": {name: len(events) for name, events in splits.items()},
            "split_times": {name: (int(values.min()), int(values.max())) for name, values in times.items()},
            "time_order": require_time_order,
        }
    if problems:
        raise _error(log, problems)
    details["allowed"] = tuple(settle(log_findings(log, splits), allow, f"log {log.info.name!r}"))
    details["notes"] = copied_users(log, *((samples, "samples") if splits is None else (splits.test, "test samples")))
    if not _tells_seconds(log):
        details["notes"] += tuple(
            f"{finding.text}: times tell minutes alone, and what a user did twice in one looks alike; where rows were written twice, keep one of each"
            for finding in _doubled_events(log)
        )
    return LeakageReport(log.num_events, len(samples), empty, tied, repeated, duplicates, **details)


def log_findings(log: InteractionLog, splits: Splits | None = None) -> list[Finding]:
    """Signs of leakage that are no proof: see [`lmctr.data.leaks`]."""
    findings = times_in_another_unit(log.time) + (_doubled_events(log) if _tells_seconds(log) else [])
    if splits is None or not len(splits.train):
        return findings
    held = splits.test if len(splits.test) else splits.validation
    findings += _copied_samples(log, splits.train, held)
    end = log.time[splits.train].max()
    tables = [("catalogue", log.catalogue, log.item, log.num_items)]
    if log.users is not None:
        tables.append(("users", log.users, log.user, log.num_users))
    for table_name, table, rows, size in tables:
        columns = {
            name: table[name].to_numpy(zero_copy_only=False).astype(np.float64)
            for name in table.column_names
            if is_number(table[name].type) and not name.endswith("_id")
        }
        columns = {f"{table_name}.{name}": values for name, values in columns.items()}
        if not columns:
            continue
        own = {name: values[rows] for name, values in columns.items()}
        findings += telling_fields(own, log.label, splits.train, held)
        if splits.rule == "user":
            continue
        later = log.time > end
        counts = [
            np.stack([np.bincount(rows[part], weights, minlength=size) for weights in (None, log.label[part] == 1)], 1)
            for part in (~later, later)
        ]
        for name, values in columns.items():
            findings += future_attribute(name, values, *counts)
    train, last = some_of(splits.train, held)
    some = np.concatenate([train, last])
    places = np.split(np.arange(len(some)), [len(train)])
    if log.context is not None:
        context = log.context.take(pa.array(some))
        own = {name: _numbers_or_codes(context[name]) for name in context.column_names}
        findings += telling_fields(own, log.label[some], *places)
    return findings + _steps_before(log, some, *places)


def _steps_before(log: InteractionLog, some: np.ndarray, train: np.ndarray, held: np.ndarray) -> list[Finding]:
    """Statistics of how long ago the user's last event was, of any item and of this one, that tell the label.

    What is longer ago than an hour is one value: what users do again on another day is theirs to be foretold. Other statistics are not judged: where
    negatives were drawn, popularity and what the user took before tell them from clicks, as they should. So does the last event of this
    item, which is not looked at where the log knows of such.

    Args:
        some: (S,) samples. train, held: places among them.
    """
    since = dict(zip(_SINCE_LAST if log.hidden is None else _SINCE_LAST[:1], _seconds_since(log, some)))
    codes = {name: np.rint(4 * np.log2(1 + values)).astype(np.int64) for name, values in since.items()}
    findings = []
    for finding in telling_fields(codes, log.label[some], train, held, "statistic"):
        clicked = log.label[some] == 1
        median, others = (np.median(since[finding.name][rows]) for rows in (clicked, ~clicked))
        if median >= _SOON:  # a click begins a visit
            continue
        text = (
            f"{finding.text} (median {_ago(median)} before positive samples, {_ago(others)} before the others): the step before, such as the cart of a "
            "purchase, is an event of its own, or times are those of the end of what the label tells; keep one event of each act, with the time at "
            "which it began"
        )
        findings.append(replace(finding, text=text))
    return findings


def _seconds_since(log: InteractionLog, events: np.ndarray) -> np.ndarray:
    """(2, S) seconds since the user's last event before each of these, and since that of its item; an hour where there is none within it."""
    result = np.full((2, len(events)), _SOON)
    start, end = log.history_bounds(events)
    left = np.arange(len(events))
    for back in range(1, _BACK + 1):
        left = left[end[left] - back >= start[left]]
        place = end[left] - back
        ago = log.time[events[left]] - log.time[place]
        left, place, ago = (values[ago < _SOON] for values in (left, place, ago))
        if back == 1:
            result[0, left] = ago
        same = log.item[place] == log.item[events[left]]
        result[1, left[same]] = ago[same]
        left = left[~same]
    return result


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _SOON else "an hour or more"


def _numbers_or_codes(column: pa.ChunkedArray) -> np.ndarray:
    """(E,) floats of numbers, NaN where there is none; of other values codes from 1, 0 where there is none."""
    if is_number(column.type):
        return column.to_numpy().astype(np.float64)
    return _value_codes(column) + 1


def _tells_seconds(log: InteractionLog) -> bool:
    return bool((log.time % 60).any())


def _doubled_events(log: InteractionLog) -> list[Finding]:
    """Events with a label that repeat another in all that the log knows of them, more than a slip of the recording explains.

    Those without one may: a user gives a film several tags in one go. And so may all events where times tell days or hours alone (a quarter of an hour is
    what zones differ by): what a user did twice on a day looks alike. Where times tell minutes alone they are no finding but a note.
    """
    if not tells_minutes(log):
        return []
    columns = [log.user, log.item, log.time, log.label, log.feedback]
    columns += [values for values in (log.scenario, log.weight) if values is not None] + list(
        log.extra_labels.values()
    )
    if log.context is not None:
        columns += [_value_codes(log.context[name]) for name in log.context.column_names]
    count = 0
    for block in whole_rows(log.offsets, _CHUNK):
        own = [values[block] for values in columns]
        own += [np.nan_to_num(values[block], nan=-1.0) for values in (log.feedback_values,) if values is not None]
        own = [values[own[3] >= 0] for values in own]
        if log.hidden is None:  # a user's events are in the order of time: only neighbours of one second can be alike
            tied = (own[0][1:] == own[0][:-1]) & (own[2][1:] == own[2][:-1])
            near = np.r_[tied, False] | np.r_[False, tied]
            own = [values[near] for values in own]
        count += len(own[0]) - len(np.unique(row_hashes(own)))
    labelled = int((log.label >= 0).sum())
    if count < max(20, 0.005 * labelled):
        return []
    return [Finding("duplicates", "", f"{count:,} of {labelled:,} events repeat another in every column")]


def _value_codes(column: pa.ChunkedArray) -> np.ndarray:
    """(E,) a number of each value, -1 where there is none."""
    if is_list(column.type):
        column = pc.binary_join(column.cast(pa.list_(pa.string())), "\x1f")
    codes = column.combine_chunks().dictionary_encode().indices
    return codes.fill_null(-1).to_numpy(zero_copy_only=False)


def _copied_samples(log: InteractionLog, train: np.ndarray, held: np.ndarray) -> list[Finding]:
    """Samples that repeat a training sample's user, item and label, in a log whose users do not return to items by themselves."""
    if len(train) < 200 or len(held) < 50:
        return []
    part = np.zeros(log.num_events, dtype=np.int8)
    part[train], part[held] = 1, 2
    distinct = count = alike = 0
    for block in whole_rows(log.offsets, _CHUNK):
        pair = log.user[block].astype(np.int64) * log.num_items + log.item[block]
        own, late = (np.flatnonzero(part[block] == code) for code in (1, 2))
        own = own[np.argsort(log.time[block][own], kind="stable")]
        known, first = np.unique(pair[own], return_index=True)
        distinct += len(known)
        if len(known):
            place = np.minimum(np.searchsorted(known, pair[late]), len(known) - 1)
            again = known[place] == pair[late]
            label = log.label[block]
            count += int(again.sum())
            alike += int((label[own[first[place[again]]]] == label[late[again]]).sum())
    by_itself, share = 1 - distinct / len(train), count / len(held)
    same = alike / count if count else 0.0
    if count < 20 or share < 0.01 + 5 * by_itself or same < 0.99:
        return []
    text = (
        f"{count:,} of {len(held):,} test samples repeat user, item and label of a training sample ({same:.1%} the same label), which training "
        f"samples among themselves do in {by_itself:.1%}: rows of training were copied, or the same event was written twice"
    )
    return [Finding("duplicates", "", text)]


def validate_histories(
    log: InteractionLog, events: np.ndarray, histories: np.ndarray, *, allow_repeats: bool = True
) -> None:
    """Checks histories that were chosen by other means, such as retrieval.

    Args:
        events: (S,) sample events.
        histories: (S, K) events chosen for each sample, -1 where there is none.
        allow_repeats: as in [`validate_log`].

    Raises:
        ValueError: an event of another user, at or after the sample's time, chosen twice, or out of range; with counts and examples.
    """
    histories = np.asarray(histories)
    events = np.asarray(events)
    if histories.ndim != 2 or len(histories) != len(events):
        raise ValueError(f"histories: expected shape ({len(events)}, K), got {histories.shape}.")
    problems: list[str] = []
    rows_at_once = max(1, _CHUNK // max(1, histories.shape[1]))
    for some in blocks(len(events), rows_at_once):
        target, chosen = events[some, None], histories[some].astype(np.int64)
        if chosen.size and (chosen.min() < -1 or chosen.max() >= log.num_events):
            raise ValueError(f"histories: events from {chosen.min()} to {chosen.max()}, the log has {log.num_events}.")
        real = chosen >= 0
        for what, bad in (
            ("are of another user", log.user[chosen] != log.user[target]),
            ("are the target itself", chosen == target),
            ("are at or after the sample's time", log.time[chosen] >= log.time[target]),
        ):
            problems += _pairs(log, target, chosen, real & bad, what)
        if not allow_repeats:
            problems += _pairs(
                log, target, chosen, real & (log.item[chosen] == log.item[target]), "have the target's item"
            )
        ordered = np.sort(chosen, axis=1)
        twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).sum(axis=1)
        for _, row in _bad_events(twice > 0):
            problems.append(
                f"{int(twice.sum())} events are chosen twice, the first for {_event(log, int(target[row, 0]))}"
            )
        if problems:
            raise _error(log, problems)


def _pairs(log: InteractionLog, target: np.ndarray, chosen: np.ndarray, bad: np.ndarray, what: str) -> list[str]:
    if not bad.any():
        return []
    row, place = np.argwhere(bad)[0]
    return [
        f"{int(bad.sum())} behaviours {what}, such as {_event(log, int(chosen[row, place]))} in the history of "
        f"{_event(log, int(target[row, 0]))}"
    ]


def _check_columns(log: InteractionLog, now: int | None) -> list[str]:
    limit = (int(clock.time()) if now is None else int(now)) + 86_400
    ranges = {
        "item": (0, log.num_items - 1, "rows of the catalogue"),
        "label": (-1, 1, "0, 1, or -1 for no sample"),
        "feedback": (0, len(log.feedback_names) - 1, f"codes of {log.feedback_names}"),
    }
    if log.scenario is not None:
        ranges["scenario"] = (0, len(log.scenario_names) - 1, f"codes of {log.scenario_names}")
    problems = []
    for name, (low, high, what) in ranges.items():
        values = getattr(log, name)
        for count, event in _bad_events((values < low) | (values > high)):
            problems.append(f"{count} values of {name} are not {what}, such as {values[event]} at event {event}")
    for name, values in log.extra_labels.items():
        for count, _ in _bad_events((values < -1) | (values > 1)):
            problems.append(f"{count} values of the label {name!r} are other than 0, 1 and -1")
    if log.weight is not None:
        for count, event in _bad_events(~(np.isfinite(log.weight) & (log.weight >= 0))):
            problems.append(f"{count} weights are negative or not finite (first: event {event})")
    if log.feedback_values is not None:
        for count, event in _bad_events(np.isinf(log.feedback_values)):
            problems.append(f"{count} values of feedback_values are not finite (first: event {event})")
    backwards = (log.time[1:] < log.time[:-1]) & (log.user[1:] == log.user[:-1])
    if log.hidden is not None:  # behind a user's other events
        backwards &= log.hidden[1:] == log.hidden[:-1]
    for count, before in _bad_events(backwards):
        problems.append(
            f"{count} events are earlier than the event before them of the same user, such as "
            f"{_event(log, before + 1)}; events must be sorted by user and time"
        )
    for count, event in _bad_events(log.time > limit):
        problems.append(f"{count} events lie in the future, such as {_event(log, event)}")
    return problems


def _bad_events(bad: np.ndarray) -> list[tuple[int, int]]:
    """The number of places where `bad` is true and the first of them; nothing when there is none."""
    return [(int(bad.sum()), int(np.argmax(bad)))] if bad.any() else []


def _check_slices(
    log: InteractionLog, hidden: np.ndarray, events: np.ndarray, start: np.ndarray, end: np.ndarray
) -> list[str]:
    problems = []
    last, following = np.maximum(end - 1, 0), np.minimum(end, log.num_events - 1)
    some = end > start
    for what, bad in (
        ("have an event at or after their own time in their history", some & (log.time[last] >= log.time[events])),
        ("stand in their own history", some & (start <= events) & (events < end)),
        (
            "have a history that leaves their user's events",
            some & ((log.user[start] != log.user[events]) | (log.user[last] != log.user[events])),
        ),
        ("have a hidden event in their history", some & hidden[last]),
        (
            "lack an earlier event of their user in their history",
            (end < events) & ~hidden[following] & (log.time[following] < log.time[events]),
        ),
    ):
        for count, sample in _bad_events(bad):
            problems.append(f"{count} samples {what}, such as {_event(log, int(events[sample]))}")
    return problems


def _repeats(log: InteractionLog, hidden: np.ndarray) -> tuple[int, int, int]:
    """Samples with an earlier event on the same item, events that double another, and one such sample."""
    repeated = tied = 0
    example = -1
    for block in whole_rows(log.offsets, _CHUNK):
        pair, time = log.user[block].astype(np.int64) * log.num_items + log.item[block], log.time[block]
        order = np.lexsort((time, pair))
        pair, time, unseen = pair[order], time[order], hidden[block][order]
        same = pair[1:] == pair[:-1]
        tied += int((same & (time[1:] == time[:-1]) & (unseen[1:] == unseen[:-1])).sum())
        # Every event of a (user, item) run that is later than the first one that others see has an earlier one.
        first = np.concatenate([[True], ~same])
        earliest = np.minimum.reduceat(np.where(unseen, np.iinfo(np.int64).max, time), np.flatnonzero(first))
        found = order[time > earliest[np.cumsum(first) - 1]] + block.start
        found = found[log.label[found] >= 0]
        if len(found) and not repeated:
            example = int(found[0])
        repeated += len(found)
    return repeated, tied, example


def _check_splits(log: InteractionLog, splits: Splits, time_order: bool) -> list[str]:
    problems = []
    part = np.full(log.num_events, -1, dtype=np.int8)
    parts = splits.items()
    for code, (name, events) in enumerate(parts):
        if len(events) and (events.min() < 0 or events.max() >= log.num_events):
            return [
                f"the part {name!r} has events from {events.min()} to {events.max()}, the log has {log.num_events}"
            ]
        for count, sample in _bad_events(log.label[events] < 0):
            problems.append(f"{count} events of {name!r} have no label, such as {_event(log, int(events[sample]))}")
        own = np.zeros(log.num_events, dtype=bool)
        own[events] = True
        twice = len(events) - int(own.sum())
        taken = events[part[events] >= 0]
        if twice or len(taken):
            example = int(taken[0]) if len(taken) else int(events[0])
            problems.append(
                f"{twice + len(taken)} samples stand in {name!r} twice or in an earlier part too, such as {_event(log, example)}"
            )
        part[events] = code
    if splits.rule == "user":
        seen = np.stack([np.bincount(log.user[events], minlength=log.num_users) > 0 for _, events in parts])
        for count, user in _bad_events(seen.sum(axis=0) > 1):
            problems.append(
                f"{count} users stand in two parts of a split by user, such as user {log.user_ids[user].item()!r}"
            )
    if time_order:
        for (early, events), (late, later) in itertools.combinations(parts, 2):
            if not len(events) or not len(later):
                continue
            first = int(log.time[later].min())
            for count, sample in _bad_events(log.time[events] > first):
                problems.append(
                    f"{count} samples of {early!r} are later than the first of {late!r} (time {first}), such as "
                    f"{_event(log, int(events[sample]))}"
                )
    return problems


def _event(log: InteractionLog, event: int) -> str:
    user = log.user_ids[log.user[event]]
    item = log.catalogue["item_id"][int(log.item[event])].as_py()
    return f"event {event} (user {user.item()!r}, item {item!r}, time {int(log.time[event])})"


def _error(log: InteractionLog, problems: list[str]) -> ValueError:
    return ValueError(f"log {log.info.name!r}: " + "; ".join(problems) + ".")
