"""Batches of CTR-Sink from token ids: selection, truncation, layout and sink buckets as array operations.

Nothing here loops over rows or tokens and nothing calls a tokenizer, so the same functions build one request and
training batches from a catalogue that was tokenised once. Shape letters: E events, B rows of the batch, U selected
behaviours of all rows together, G feedback codes above 0, S signals, N tokens of the longest row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lmctr.utils.ragged import Ragged, offsets_from_lengths, ragged_arange
from lmctr.utils.rows import is_whole

from .configuration_ctr_sink import STATISTIC, reads_feedback
from .sink_signals import (
    elapsed_buckets,
    ordinal_buckets,
    random_buckets,
    recency_buckets,
    similarity_buckets,
    statistic_buckets,
    value_buckets,
)


class RowError(ValueError):
    """A row that cannot be built. `row` is its number in the batch, `reason` the message without it."""

    def __init__(self, row: int, reason: str):
        super().__init__(f"row {row}: {reason}")
        self.row, self.reason = row, reason


@dataclass(frozen=True)
class AssemblySettings:
    """What the processor is set to. See `CTRSinkProcessor` for the meaning of each value.

    `feedback_codes` is the number of feedback codes, code 0 included; `sink_id` is None without sinks. `words_per_code` is the
    number of words of each feedback code: one for each bucket of graded feedback where words tell it, else 1. `break_id` stands in
    pieces where a text field ends and the next begins, and `num_fields` is their number, both for the layout "fields".
    """

    num_behaviors: int
    order: str
    feedback: str
    signals: tuple[str, ...]
    num_sink_buckets: int
    sink_id: int | None
    trailing_sink: bool
    max_length: int | None
    pad_id: int
    padding_side: str
    feedback_codes: int
    layout: str = "single"
    value_levels: tuple[float, ...] = ()
    words_per_code: int = 1
    statistic_bounds: tuple[tuple[str, tuple[float, ...]], ...] = ()
    break_id: int | None = None
    num_fields: int = 0

    @property
    def needs_feedback(self) -> bool:
        return reads_feedback(self.feedback, self.signals)

    @property
    def needs_values(self) -> bool:
        """Whether the graded feedback of behaviours is read."""
        return self.words_per_code > 1 or "feedback_value" in self.signals


@dataclass(frozen=True, eq=False)
class Pieces:
    """Token ids of all pieces of a prompt and of all items in one array; a piece is a span (start, length) of it.

    Args:
        values: (T,) token ids.
        item_start, item_length: (I,) spans of the item texts. Each is followed directly by the tail: separator and
            sink, so that a behaviour is one span.
        head, empty, prefix, suffix: spans; `head` starts with the tokenizer's opening special tokens, `suffix` ends
            with its closing ones.
        suffix_text: number of tokens of `suffix` that are not special.
        tail_length: tokens after each item (separator, sink).
        word_start, word_length: ((G + 1) * words per code,) spans by feedback code and, where words tell it, by the bucket of the
            graded feedback. header_start, header_length: (G + 1,) spans by feedback code.
    """

    values: np.ndarray
    item_start: np.ndarray
    item_length: np.ndarray
    head: tuple[int, int]
    empty: tuple[int, int]
    prefix: tuple[int, int]
    suffix: tuple[int, int]
    suffix_text: int
    tail_length: int
    word_start: np.ndarray
    word_length: np.ndarray
    header_start: np.ndarray
    header_length: np.ndarray

    @classmethod
    def build(
        cls,
        items: Ragged,
        *,
        head: list[int],
        empty: list[int],
        prefix: list[int],
        suffix: list[int],
        suffix_text: int,
        tail: list[int],
        words: list[list[int]],
        headers: list[list[int]],
    ) -> Pieces:
        """Put the pieces and the items (rows of token ids) into one array."""
        fixed = Ragged.from_rows([head, empty, prefix, suffix, *words, *headers])
        spans = [(int(start), int(length)) for start, length in zip(fixed.offsets[:-1], fixed.lengths)]
        item_length = items.lengths
        item_start = items.offsets[:-1] + np.arange(len(items)) * len(tail) + len(fixed.values)
        values = np.empty(len(fixed.values) + len(items.values) + len(items) * len(tail), dtype=np.int32)
        values[: len(fixed.values)] = fixed.values
        values[ragged_arange(item_start, item_length)] = items.values
        for offset, token in enumerate(tail):
            values[item_start + item_length + offset] = token
        count = len(words)
        return cls(
            values=values,
            item_start=item_start,
            item_length=item_length,
            **dict(zip(("head", "empty", "prefix", "suffix"), spans)),
            suffix_text=suffix_text,
            tail_length=len(tail),
            word_start=fixed.offsets[4 : 4 + count],
            word_length=fixed.lengths[4 : 4 + count],
            header_start=fixed.offsets[4 + count : -1],
            header_length=fixed.lengths[4 + count :],
        )


@dataclass(frozen=True, eq=False)
class EventTable:
    """Behaviours that histories are slices of, each history in time order.

    Args:
        item: (E,) row of the item in [`Pieces`].
        time: (E,) int64 seconds.
        feedback: (E,) feedback codes, or None when nothing asks for them.
        buckets: (E,) buckets of sink signals that are the behaviour's own, by signal.
    """

    item: np.ndarray
    time: np.ndarray
    feedback: np.ndarray | None = None
    by_code: np.ndarray | None = None
    code_offsets: np.ndarray | None = None
    buckets: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        item: np.ndarray,
        time: np.ndarray,
        feedback: np.ndarray | None,
        settings: AssemblySettings,
        value: np.ndarray | None = None,
        statistics: Mapping[str, np.ndarray] | None = None,
    ) -> EventTable:
        """Check the feedback codes, put graded feedback and statistics into buckets and, for groups, index the events by code. Memory is O(E)."""
        buckets = {}
        if settings.needs_values:
            if value is None:
                raise ValueError(
                    "the graded feedback of each event is needed for its bins or words, got none; a log holds it as "
                    "`feedback_values` (stars, watched share, dwell time), which a schema names under `columns`"
                )
            buckets["feedback_value"] = value_buckets(value, settings.value_levels)
        for name, bounds in settings.statistic_bounds:
            if statistics is None or name not in statistics:
                raise ValueError(f"the statistic {name!r} of each event is needed for the sinks, got none")
            buckets[f"{STATISTIC}{name}"] = statistic_buckets(statistics[name], bounds)
        if not settings.needs_feedback:
            return cls(item, time, buckets=buckets)
        if feedback is None:
            raise ValueError(f"feedback={settings.feedback!r} needs the feedback of each event, got none")
        if len(feedback) and (feedback.min() < 0 or feedback.max() >= settings.feedback_codes):
            wrong = int(np.argmax((feedback < 0) | (feedback >= settings.feedback_codes)))
            raise ValueError(
                f"feedback code {int(feedback[wrong])} of event {wrong} is not accepted; the prompt describes codes 0 "
                f"(unknown) to {settings.feedback_codes - 1}; add an entry to the prompt's `feedback` for each code"
            )
        if settings.feedback != "groups":
            return cls(item, time, feedback, buckets=buckets)
        by_code = np.argsort(feedback, kind="stable")
        counts = np.bincount(feedback, minlength=settings.feedback_codes)
        return cls(item, time, feedback, by_code, offsets_from_lengths(counts), buckets)


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows to build.

    Args:
        start, end: (B,) the history of row b is events [start[b], end[b]).
        target: (B,) row of the target item in [`Pieces`].
        time: (B,) int64 seconds of the target.
    """

    start: np.ndarray
    end: np.ndarray
    target: np.ndarray
    time: np.ndarray

    def __len__(self) -> int:
        return len(self.start)


class Candidates(NamedTuple):
    """Behaviours with a known similarity to the target.

    Args:
        offsets: (B + 1,) the candidates of row b are [offsets[b], offsets[b + 1]).
        event: (C,) event numbers inside the row's history.
        similarity: (C,) cosine in [-1, 1].
    """

    offsets: np.ndarray
    event: np.ndarray
    similarity: np.ndarray


@dataclass(frozen=True, eq=False)
class Plan:
    """Which behaviours each row shows, in the order of the text, after truncation.

    Args:
        offsets: (B + 1,) the behaviours of row b are [offsets[b], offsets[b + 1]) of the arrays below.
        event: (U,) event numbers. code: (U,) feedback codes (0 when unused). word: (U,) their words' rows in [`Pieces`].
        similarity: (U,) or None.
        opens_group: (U,) bool, the group's header stands before this behaviour; None without groups.
        is_empty: (B,) bool, the history had nothing to show (not: everything was dropped).
        length: (B,) exact number of tokens. dropped: (B,) behaviours dropped to keep to the maximum length.
    """

    offsets: np.ndarray
    event: np.ndarray
    code: np.ndarray
    word: np.ndarray
    similarity: np.ndarray | None
    opens_group: np.ndarray | None
    is_empty: np.ndarray
    length: np.ndarray
    dropped: np.ndarray


def make_plan(
    settings: AssemblySettings, pieces: Pieces, events: EventTable, samples: Samples, candidates: Candidates | None
) -> Plan:
    """Select the behaviours of each row, order them and drop what does not fit.

    Truncation drops whole behaviours, the oldest-placed first; with groups, the one farthest from the end of its own
    group first (of two equally far, the one of the earlier group). The target is never cut.

    Raises:
        ValueError: head and target alone exceed the maximum length; a target without a token to read; a behaviour of unknown feedback
            with groups; a similarity that is missing or no cosine. Messages name the row of the batch.
    """
    offsets, event, similarity = _select(settings, events, samples, candidates)
    row = np.repeat(np.arange(len(samples)), np.diff(offsets))
    needs_code = events.feedback is not None
    code = events.feedback[event].astype(np.int64) if needs_code else np.zeros(len(event), dtype=np.int64)
    word = code
    if settings.words_per_code > 1:
        word = code * settings.words_per_code + events.buckets["feedback_value"][event]
    cost = pieces.item_length[events.item[event]] + pieces.tail_length
    if settings.feedback == "inline":
        cost = cost + pieces.word_length[word]
    from_end = None
    if settings.feedback == "groups":
        group_lengths = np.diff(np.flatnonzero(np.diff(row * settings.feedback_codes + code, prepend=-1, append=-1)))
        from_end = _rank_from_end(group_lengths)
        if settings.layout != "fields":
            cost = cost + np.where(from_end == 0, pieces.header_length[code], 0)
    is_empty = np.diff(offsets) == 0
    fixed = pieces.head[1] + pieces.prefix[1] + pieces.suffix[1] + is_empty * pieces.empty[1]
    fixed = fixed + pieces.item_length[samples.target]
    unread = pieces.item_length[samples.target] + pieces.prefix[1] + pieces.suffix_text == 0
    if np.any(unread):
        raise RowError(
            int(np.argmax(unread)),
            "the target's text is empty and the prompt has no text around the target; "
            "give the target a text or write some text around {item} in the prompt's target",
        )
    if settings.layout == "fields":  # every history has its header, also where it is empty
        fixed = fixed + pieces.header_length.sum()
    if settings.max_length is not None and np.any(fixed > settings.max_length):
        wrong = int(np.argmax(fixed > settings.max_length))
        raise RowError(
            wrong,
            f"the prompt's head and the target alone take {int(fixed[wrong])} tokens, more than max_length="
            f"{settings.max_length}; raise max_length, or shorten the prompt or the target's text (in the prompt's item template "
            "{column:.200} reads 200 characters of a column at most)",
        )
    sink_discount = int(settings.sink_id is not None and not settings.trailing_sink)  # no sink after the last one
    if settings.layout == "fields":  # nor after the last one of each history
        cost, sink_discount = cost - sink_discount * (from_end == 0), 0
    length = fixed + _row_sums(cost, offsets) - sink_discount * ~is_empty
    dropped = np.zeros(len(samples), dtype=np.int64)
    if settings.max_length is not None and np.any(length > settings.max_length):
        keep = _fits(row, cost, code, from_end, offsets, settings.max_length - fixed + sink_discount)
        kept = _row_sums(keep, offsets)
        dropped = np.diff(offsets) - kept
        offsets, event, code, cost = offsets_from_lengths(kept), event[keep], code[keep], cost[keep]
        row, word = row[keep], word[keep]
        similarity = similarity[keep] if similarity is not None else None
        length = fixed + _row_sums(cost, offsets) - sink_discount * (kept > 0)
    opens_group = None
    if settings.feedback == "groups":
        opens_group = np.diff(row * settings.feedback_codes + code, prepend=-1) != 0
    return Plan(offsets, event, code, word, similarity, opens_group, is_empty, length, dropped)


def assemble(
    settings: AssemblySettings,
    pieces: Pieces,
    events: EventTable,
    samples: Samples,
    candidates: Candidates | None = None,
    pad_to_multiple_of: int | None = None,
) -> dict[str, np.ndarray]:
    """Build the padded arrays of a batch.

    Returns:
        input_ids, attention_mask: (B, N) int64. sink_buckets: (B, N) int64, (B, N, S) for two and more signals, -1
        where the token is no sink. target_mask: (B, N) bool, the tokens of the target's text; when that text is empty,
        the prompt's own tokens around it. num_dropped: (B,) int64, behaviours dropped by truncation. For the layout "split"
        also field_ids: (B, N) int64, the element of each token, see `split_layout.py`, and -1 for padding; for "fields" its field, and
        -1 also between fields.

    Raises:
        ValueError: see [`make_plan`]; also a target without any token, and a `pad_to_multiple_of` that is no whole number of at least 1.
    """
    if pad_to_multiple_of is not None and not is_whole(pad_to_multiple_of):
        raise ValueError(
            f"pad_to_multiple_of must be a whole number of at least 1, or None, got {pad_to_multiple_of!r:.80}"
        )
    plan = make_plan(settings, pieces, events, samples, candidates)
    num_rows, counts = len(samples), np.diff(plan.offsets)
    row = np.repeat(np.arange(num_rows), counts)
    last = plan.offsets[1:][counts > 0] - 1
    is_fields = settings.layout == "fields"

    # Each row is a list of spans: head, per behaviour `width` spans of which the last is the behaviour itself, then
    # empty text, target prefix, target, target suffix. Spans of length 0 cost nothing.
    width = 1 + (settings.feedback == "inline") + (settings.feedback == "groups")
    span_offsets = offsets_from_lengths(5 + counts * width)
    starts = np.zeros(span_offsets[-1], dtype=np.int64)
    lengths = np.zeros(span_offsets[-1], dtype=np.int64)
    first, close = span_offsets[:-1], span_offsets[1:]
    starts[first], lengths[first] = pieces.head
    starts[close - 4], lengths[close - 4] = pieces.empty[0], pieces.empty[1] * plan.is_empty
    starts[close - 3], lengths[close - 3] = pieces.prefix
    starts[close - 2], lengths[close - 2] = pieces.item_start[samples.target], pieces.item_length[samples.target]
    starts[close - 1], lengths[close - 1] = pieces.suffix
    item = events.item[plan.event]
    own = first[row] + 1 + (np.arange(len(row)) - plan.offsets[:-1][row]) * width + width - 1
    starts[own] = pieces.item_start[item]
    lengths[own] = pieces.item_length[item] + pieces.tail_length
    has_sink = np.full(len(row), settings.sink_id is not None)
    if settings.sink_id is not None and not settings.trailing_sink:
        if is_fields:
            last = np.flatnonzero(np.append(plan.opens_group, True)[1:])
        lengths[own[last]] -= 1
        has_sink[last] = False
    if settings.feedback == "inline":
        starts[own - 1], lengths[own - 1] = pieces.word_start[plan.word], pieces.word_length[plan.word]
    elif is_fields:
        # Headers stand one behind the other in the pieces, so those of the empty groups before a group are one span with its own.
        edges = np.append(pieces.header_start, pieces.header_start[-1] + pieces.header_length[-1])
        before = np.where(np.isin(np.arange(len(row)), plan.offsets[:-1]), 0, np.roll(plan.code, 1))
        starts[own - 1] = edges[before + 1]
        lengths[own - 1] = (edges[plan.code + 1] - edges[before + 1]) * plan.opens_group
        shown = np.zeros(num_rows, dtype=np.int64)
        shown[counts > 0] = plan.code[plan.offsets[1:][counts > 0] - 1]
        starts[close - 4], lengths[close - 4] = edges[shown + 1], edges[-1] - edges[shown + 1]
    elif settings.feedback == "groups":
        starts[own - 1] = pieces.header_start[plan.code]
        lengths[own - 1] = pieces.header_length[plan.code] * plan.opens_group

    token_offsets = offsets_from_lengths(lengths)  # of the spans, over the batch's tokens without padding
    row_start = token_offsets[first]
    longest = int(plan.length.max(initial=0))
    if pad_to_multiple_of is not None:
        rounded = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
        longest = min(rounded, settings.max_length or rounded)  # the backbone may have no positions for more
    columns = np.arange(longest)
    left = settings.padding_side == "left"
    real = columns >= longest - plan.length[:, None] if left else columns < plan.length[:, None]
    shift = (longest - plan.length if left else 0) - row_start  # column = token number + shift of its row
    input_ids = np.full((num_rows, longest), settings.pad_id, dtype=np.int64)
    input_ids[real] = pieces.values[ragged_arange(starts, lengths)]

    num_signals = len(settings.signals)
    sink_buckets = np.full((num_rows, longest, num_signals), -1, dtype=np.int64)
    sink_token = token_offsets[own + 1][has_sink] - 1
    if settings.sink_id is not None:
        sink_row = row[has_sink]
        sink_column = sink_token + shift[sink_row]
        for number, signal in enumerate(settings.signals):
            buckets = _buckets(signal, settings, pieces, events, samples, plan, row)
            sink_buckets[sink_row, sink_column, number] = buckets[has_sink]

    arrays = {
        "input_ids": input_ids,
        "attention_mask": real.astype(np.int64),
        "sink_buckets": sink_buckets[..., 0] if num_signals == 1 else sink_buckets,
        "target_mask": _target_mask(pieces, lengths, token_offsets, close, shift, real.shape),
        "num_dropped": plan.dropped,
    }
    if settings.layout == "split":
        # Each of these spans and each sink begins an element; a feedback word begins its behaviour's. A span without tokens
        # begins where the next one does, and so adds none; the last, the target, never is without.
        begins = np.zeros(token_offsets[-1], dtype=np.int64)
        begin_spans = [first, own - (width - 1), close - 4, close - 3]
        begin_spans += [own] if settings.feedback == "groups" else []
        begins[token_offsets[np.concatenate(begin_spans)]] = 1
        begins[sink_token] = 1
        number = np.cumsum(begins) - 1
        arrays["field_ids"] = np.full((num_rows, longest), -1, dtype=np.int64)
        arrays["field_ids"][real] = number - np.repeat(number[row_start], plan.length)
    return _as_fields(settings, arrays) if is_fields else arrays


def _as_fields(settings: AssemblySettings, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Number the fields of rows and mask what stands between them. The history of the last feedback code, the best, comes first."""
    real = arrays["attention_mask"].astype(bool)
    between = real & (arrays["input_ids"] == settings.break_id)
    found = between.sum(axis=1) + 1
    if np.any(found != settings.num_fields):
        wrong = int(np.argmax(found != settings.num_fields))
        histories = settings.feedback_codes - 1
        raise RowError(
            wrong,
            f"its texts make {int(found[wrong])} fields, but the prompt makes {settings.num_fields}: {histories} histories and a target "
            f"of {settings.num_fields - histories} lines; give the target's text so many lines",
        )
    number = np.cumsum(between, axis=1)
    histories = settings.feedback_codes - 1
    number = np.where(number < histories, histories - 1 - number, number)
    real &= ~between
    for place in range(settings.num_fields):
        without = ~np.any(real & (number == place), axis=1)
        if without.any():
            raise RowError(
                int(np.argmax(without)),
                f"text field {place} of {settings.num_fields} is empty, and the tokenizer puts nothing around it; write some text before the column in "
                "the prompt's item template, or in the prompt's header of a history",
            )
    return {
        **arrays,
        "input_ids": np.where(between, settings.pad_id, arrays["input_ids"]),
        "attention_mask": real.astype(np.int64),
        "target_mask": arrays["target_mask"] & real,
        "field_ids": np.where(real, number, -1),
    }


def _buckets(
    signal: str,
    settings: AssemblySettings,
    pieces: Pieces,
    events: EventTable,
    samples: Samples,
    plan: Plan,
    row: np.ndarray,
) -> np.ndarray:
    """(U,) buckets of one signal."""
    num_buckets = settings.num_sink_buckets
    if signal == "recency":
        return recency_buckets(samples.end[row] - 1 - plan.event, num_buckets)
    if signal == "ordinal":
        return ordinal_buckets(plan.event - samples.start[row], num_buckets)
    if signal == "elapsed":
        return elapsed_buckets(samples.time[row] - events.time[plan.event], num_buckets)
    if signal == "similarity":
        return similarity_buckets(plan.similarity, num_buckets)
    if signal == "feedback":
        return plan.code
    if signal in events.buckets:
        return events.buckets[signal][plan.event]
    if signal == "random":
        length = pieces.item_length[samples.target]
        tokens = pieces.values[ragged_arange(pieces.item_start[samples.target], length)]
        target = Ragged(tokens, offsets_from_lengths(length))
        position = plan.offsets[1:][row] - 1 - np.arange(len(row))
        return random_buckets(samples.time, samples.end - samples.start, target, row, position, num_buckets)
    return np.zeros(len(row), dtype=np.int64)


def _target_mask(
    pieces: Pieces,
    lengths: np.ndarray,
    token_offsets: np.ndarray,
    close: np.ndarray,
    shift: np.ndarray,
    shape: tuple[int, int],
) -> np.ndarray:
    """(B, N) bool mask of the target's tokens; `close` is the end of each row's spans."""
    empty = lengths[close - 2] == 0
    first = np.where(empty, token_offsets[close - 3], token_offsets[close - 2]) + shift
    stop = token_offsets[close - 1] + empty * pieces.suffix_text + shift
    columns = np.arange(shape[1])
    return (columns >= first[:, None]) & (columns < stop[:, None])


def _rank_from_end(lengths: np.ndarray) -> np.ndarray:
    """Of consecutive groups of these lengths, how many members of its group follow each one."""
    return np.repeat(lengths, lengths) - 1 - ragged_arange(np.zeros_like(lengths), lengths)


def _row_sums(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(B,) sums of consecutive values; also right for rows without values."""
    sums = offsets_from_lengths(values)
    return sums[offsets[1:]] - sums[offsets[:-1]]


def _fits(
    row: np.ndarray,
    cost: np.ndarray,
    code: np.ndarray,
    from_end: np.ndarray | None,
    offsets: np.ndarray,
    budget: np.ndarray,
) -> np.ndarray:
    """(U,) bool: behaviours that stay when the least important ones of each row are dropped until it fits."""
    if from_end is None:  # later in the text = more important
        used = offsets_from_lengths(cost)
        return used[offsets[1:]][row] - used[:-1] <= budget[row]
    order = np.lexsort((-code, from_end, row))
    used = offsets_from_lengths(cost[order])
    keep = np.empty(len(row), dtype=bool)
    keep[order] = used[1:] - used[offsets[:-1]][row] <= budget[row]  # rows are contiguous and stay in order
    return keep


def _select(
    settings: AssemblySettings, events: EventTable, samples: Samples, candidates: Candidates | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Offsets (B + 1,), event numbers (U,) in the order of the text, and their similarities where something asks."""
    grouped = settings.feedback == "groups"
    if grouped:
        _check_known_feedback(events, samples)
    ranked = settings.order != "recent"
    if ranked or "similarity" in settings.signals:
        candidates = _check_candidates(settings, samples, candidates)
    if ranked:
        return _most_similar(settings, events, samples, candidates, grouped)
    if not grouped:
        count = np.minimum(samples.end - samples.start, settings.num_behaviors)
        offsets, event = offsets_from_lengths(count), ragged_arange(samples.end - count, count)
    else:
        first, count = [], []  # per code (B,), in the events by code
        for base, end in pairwise(events.code_offsets[1:]):
            low, high = (np.searchsorted(events.by_code[base:end], edge) for edge in (samples.start, samples.end))
            count.append(np.minimum(high - low, settings.num_behaviors))
            first.append(base + high - count[-1])
        first, count = np.stack(first, axis=1), np.stack(count, axis=1)
        offsets = offsets_from_lengths(count.sum(axis=1))
        event = events.by_code[ragged_arange(first.ravel(), count.ravel())]
    similarity = None
    if "similarity" in settings.signals:
        similarity = _look_up(candidates, offsets, event, len(events.item))
    return offsets, event, similarity


def _most_similar(
    settings: AssemblySettings, events: EventTable, samples: Samples, candidates: Candidates, grouped: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The K most similar candidates of each row (of each group); of equal ones the later event counts as nearer."""
    row = np.repeat(np.arange(len(samples)), np.diff(candidates.offsets))
    code = events.feedback[candidates.event].astype(np.int64) if grouped else np.zeros(len(row), dtype=np.int64)
    group = row * settings.feedback_codes + code
    order = np.lexsort((candidates.event, candidates.similarity, group))
    lengths = np.bincount(group, minlength=len(samples) * settings.feedback_codes)
    order = order[_rank_from_end(lengths) < settings.num_behaviors]
    if settings.order == "time":
        order = order[np.lexsort((candidates.event[order], group[order]))]
    offsets = offsets_from_lengths(np.bincount(row[order], minlength=len(samples)))
    return offsets, candidates.event[order], candidates.similarity[order]


def _look_up(candidates: Candidates, offsets: np.ndarray, event: np.ndarray, num_events: int) -> np.ndarray:
    """(U,) similarity of each selected event among the candidates of its own row."""
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    have = np.repeat(np.arange(len(offsets) - 1), np.diff(candidates.offsets)) * num_events + candidates.event
    want = row * num_events + event
    order = np.argsort(have, kind="stable")
    place = np.searchsorted(have[order], want)
    found = place < len(have)
    found[found] = have[order[place[found]]] == want[found]
    if not found.all():
        wrong = int(np.argmin(found))
        raise RowError(
            int(row[wrong]),
            f"the behaviour at event {int(event[wrong])} has no similarity; the signal 'similarity' "
            f"with the order 'recent' needs the similarity of the latest num_behaviors behaviours",
        )
    return candidates.similarity[order[place]]


def _check_known_feedback(events: EventTable, samples: Samples) -> None:
    unknown = events.by_code[: events.code_offsets[1]]
    count = np.searchsorted(unknown, samples.end) - np.searchsorted(unknown, samples.start)
    if np.any(count > 0):
        wrong = int(np.argmax(count > 0))
        raise RowError(
            wrong,
            f"{int(count[wrong])} behaviours have unknown feedback; feedback='groups' places every behaviour "
            f"under a group, so give each one its feedback or use feedback='inline'",
        )


def _check_candidates(settings: AssemblySettings, samples: Samples, candidates: Candidates | None) -> Candidates:
    if candidates is None:
        raise ValueError(
            f"order={settings.order!r} with signals {list(settings.signals)} needs a similarity for each behaviour; give one "
            f"(a retrieval result for a log) or use order='recent' without the signal 'similarity'"
        )
    row = np.repeat(np.arange(len(samples)), np.diff(candidates.offsets))
    outside = (candidates.event < samples.start[row]) | (candidates.event >= samples.end[row])
    if np.any(outside):
        wrong = int(np.argmax(outside))
        raise RowError(
            int(row[wrong]),
            f"retrieved event {int(candidates.event[wrong])} is not in the row's history; "
            f"the retrieval result belongs to another log",
        )
    good = np.abs(candidates.similarity) <= 1.0 + 1e-3  # false for NaN
    if not np.all(good):
        wrong = int(np.argmin(good))
        raise RowError(int(row[wrong]), f"similarity {float(candidates.similarity[wrong])} is no cosine in [-1, 1]")
    return candidates
