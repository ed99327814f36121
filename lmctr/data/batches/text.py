"""Text view of an interaction log: batches of token ids from a catalogue that is tokenised once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lmctr.data.logs.log import InteractionLog
from lmctr.utils.progress import Work
from lmctr.utils.ragged import blocks
from lmctr.utils.rows import check_kind

from .rows import EventStatistics, LogBatches, RowCollator, RowDataset, statistic_columns

if TYPE_CHECKING:
    from lmctr.data.logs.retrieval import Retrieval

_CHUNK = 8192  # rows planned at once; bounds the memory of `lengths`
_BUILT = 1024  # rows of them, at a time


def feedback_codes(names: Sequence[str], prompt: Any) -> np.ndarray:
    """(C,) int8 the prompt's code of each of a log's kinds of feedback: by name where the prompt has them all, else by order.

    Args:
        names: of the log's codes; code 0 is the unknown feedback. prompt: has `feedback_names`.

    Raises:
        ValueError: more kinds than the prompt describes, or a name that both have and that stands elsewhere.
    """
    described = prompt.feedback_names
    places = [described.index(name) if name in described else None for name in ("unknown", *names[1:])]
    if None not in places:
        return np.array(places, dtype=np.int8)
    moved = [place is not None and place != code for code, place in enumerate(places)]
    if len(names) > len(described) or any(moved):
        raise ValueError(
            f"the log's feedback has the names {', '.join(names)}, the prompt describes only {', '.join(described)}; add an entry of that "
            "name to the prompt's `feedback` for each, or, where none of its names is the log's, in the log's order"
        )
    return np.arange(len(names), dtype=np.int8)


class TextView(LogBatches):
    """Samples of a log as a text processor writes them.

    The texts of the log's items are tokenised once, here; a batch is then put together from cached token ids by array operations,
    without a tokenizer call. Memory beside the log's own arrays: these tokens and, when histories come in groups of feedback, one
    index of the events.

    Args:
        log: the log. Histories follow its rule: events of the same user strictly before the sample's time.
        processor: a text processor such as [`CTRSinkProcessor`].
        retrieval: the result of [`build_retrieval`] for the events that will be asked for; needed when the processor's order or
            a sink signal needs similarities.
        samples: events whose statistics will be asked for, where the processor has a `statistics_reader`; default: all samples.

    Raises:
        ValueError: a catalogue that lacks a column of the prompt, feedback that the prompt does not describe, a missing or
            unsuited retrieval.
    """

    def __init__(
        self,
        log: InteractionLog,
        processor: Any,
        retrieval: Retrieval | None = None,
        samples: np.ndarray | None = None,
    ):
        check_kind(log, InteractionLog, "log")
        if getattr(processor, "request_kind", None) != "text":
            raise ValueError(f"processor: expected one of a text family, got {type(processor).__name__}")
        if processor.needs_similarity and retrieval is None:
            raise ValueError(
                f"retrieval is missing: the processor's order {processor.sink_order!r} and signals {list(processor.signals)} "
                f"need the similarity of behaviours; build one with lmctr.data.build_retrieval(log, events, ...)"
            )
        if retrieval is not None and processor.needs_similarity:
            retrieval.check(log, processor)
        self.log = log
        self.processor = processor
        self.retrieval = retrieval if processor.needs_similarity else None
        met = np.unique(log.item)  # the others of the catalogue are in no batch
        catalogue = log.catalogue.take(met)
        texts, self._target_offset = _placed(processor.item_texts(catalogue), met, log.num_items), 0
        if processor.prompt.behavior_item is not None:  # behaviours first, so that an event's item is its row
            behaviors = _placed(processor.behavior_texts(catalogue), met, log.num_items)
            texts, self._target_offset = behaviors + texts, log.num_items
        with Work(f"tokenising {sum(text is not None for text in texts):,} texts"):
            self.pieces = processor.encode_items(texts)
        # 1 of a text of which a tokenizer without an unknown token leaves nothing
        self._gone = (self.pieces.item_length == 0).astype(np.int64)
        for row in np.flatnonzero(self._gone):
            self._gone[row] = bool((texts[row] or "").strip())
        feedback = None
        if processor.needs_feedback:
            codes, feedback = feedback_codes(log.feedback_names, processor.prompt), log.feedback
            if (codes != np.arange(len(codes))).any():  # else without a copy
                feedback = codes[feedback]
        statistics = behavior_statistics(log, processor.statistics_reader, processor.sink_statistics)
        self.events = processor.event_table(log.item, log.time, feedback, log.feedback_values, statistics)
        self.statistics = None
        if processor.statistics_reader is not None:
            events = np.unique(self.samples(samples))
            reader = processor.statistics_reader
            self.statistics = EventStatistics(events, reader.of_events(log, events))

    def batch(
        self, events: Sequence[int] | np.ndarray, pad_to_multiple_of: int | None = None
    ) -> dict[str, torch.Tensor]:
        """Tensors of some samples.

        Args:
            events: (B,) positions of the samples in the log. -1 is a filler row: it repeats the first real row of the batch (or
                event 0 when there is none) with the label -100, which losses and metrics ignore.
            pad_to_multiple_of: pad the rows to a multiple of this many tokens.

        Returns:
            `input_ids`, `attention_mask` (B, N) int64, `sink_buckets` (B, N) or (B, N, S) int64, `target_mask` (B, N) bool,
            `statistics` (B, Fs) float32 when the processor has them, `labels` (B,) float32, and `sample_weight` (B,) float32 when the log has weights (0 for filler rows).

        Raises:
            ValueError: events outside the log, or without a label.
        """
        events = np.asarray(events)
        if events.ndim != 1 or len(events) == 0:
            raise ValueError(f"events must be a list of at least one position, got shape {events.shape}")
        events, filler = self.filled(events)
        events = self.log.positions(events)
        targets = self.targets(events, filler)
        arrays = self._call(self.processor.assemble, events, pad_to_multiple_of=pad_to_multiple_of)
        del arrays["num_dropped"]
        if self.statistics is not None:
            arrays["statistics"] = self.statistics.of(events)
        return {key: torch.from_numpy(values) for key, values in (arrays | targets).items()}

    def of_one_history(self, events: np.ndarray) -> dict[str, Any]:
        """Samples of one user and second as what they share and what is theirs, for who reads a history once for all of them."""
        start, end = self.log.history_bounds(events[:1])
        return {
            "pieces": self.pieces,
            "events": self.events,
            "start": int(start[0]),
            "end": int(end[0]),
            "time": int(self.log.time[events[0]]),
            "target": self.log.item[events].astype(np.int64) + self._target_offset,
            "statistics": None if self.statistics is None else self.statistics.of(events),
        }

    def columns(self) -> dict[str, dict[str, list[int] | None]]:
        reader = self.processor.statistics_reader
        return {} if reader is None else statistic_columns(reader.names)

    def shuffled(self, rows: np.ndarray, order: np.ndarray) -> Iterator[tuple[str | None, dict[str, torch.Tensor]]]:
        batches = [*super().shuffled(rows, order)]
        yield from batches
        _, batch = batches[0]
        for name, histories, items in (("history", rows[order], rows), ("item", rows, rows[order])):
            arrays = self._call(self.processor.assemble, histories, items)
            texts = {key: torch.from_numpy(values) for key, values in arrays.items() if key in batch}
            yield name, {**batch, **texts}

    def unknown(self, events: np.ndarray) -> tuple[dict[str, dict[str, int]], dict[str, list[str]]]:
        """Tokens of items that the tokenizer does not know, see [`~lmctr.data.batches.rows.LogBatches.unknown_of`]."""
        before = np.append(0, np.cumsum(self.pieces.values == self.processor.tokenizer.unk_token_id))
        own = []
        for offset in (self._target_offset, 0):
            rows = slice(offset, offset + self.log.num_items)
            first, length = self.pieces.item_start[rows], self.pieces.item_length[rows].astype(np.int64)
            gone = self._gone[rows]
            own.append((length + gone, before[first + length] - before[first] + gone))

        def bounds(events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            start, end = self.log.history_bounds(events)
            return np.maximum(start, end - self.processor.num_behaviors), end

        def texts(items: np.ndarray) -> list[str]:
            return [str(text)[:60] for text in self.processor.item_texts(self.log.catalogue.take(items))]

        return self.unknown_of(events, "tokens", *own, bounds, texts)

    def samples(self, events: Sequence[int] | np.ndarray | None) -> np.ndarray:
        return super().samples(None if events is None else self.log.positions(events))

    def lengths(self, events: Sequence[int] | np.ndarray) -> np.ndarray:
        """(S,) int64 exact token lengths of samples, without building them."""
        return self._plan(events)[0]

    def truncation(self, events: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """How much of the histories the samples show.

        Returns:
            `samples`; `max_length` (tokens, None without limit); `mean_length`, `longest` (tokens); `histories_cut`: samples
            whose history is longer than the processor's number of behaviours; `samples_truncated`: samples that lost selected
            behaviours to `max_length`, and `share_truncated`; `share_emptied`: those that lost all of them, of which the last alone is longer
            than the room beside the target; `behaviors_shown`, `behaviors_dropped` and `share_dropped`.

        Raises:
            ValueError: a sample that no batch could hold, before there is one.
        """
        events = self.log.positions(events)
        length, shown, dropped = self._plan(events)
        if self.processor.layout == "fields":  # whose lines only whole rows show: one for each target is built
            targets = events[np.unique(self.log.item[events], return_index=True)[1]]
            for some in blocks(len(targets), _BUILT):
                self._call(self.processor.assemble, targets[some])
        samples, selected = max(len(events), 1), max(int(shown.sum() + dropped.sum()), 1)
        return {
            "samples": len(events),
            "max_length": self.processor.effective_max_length,
            "mean_length": float(length.mean()) if len(events) else 0.0,
            "longest": int(length.max(initial=0)),
            "histories_cut": int((self.log.history_lengths(events) > shown + dropped).sum()),
            "samples_truncated": int((dropped > 0).sum()),
            "share_truncated": float((dropped > 0).sum() / samples),
            "share_emptied": float(((dropped > 0) & (shown == 0)).sum() / samples),
            "behaviors_shown": int(shown.sum()),
            "behaviors_dropped": int(dropped.sum()),
            "share_dropped": float(dropped.sum() / selected),
        }

    def _plan(self, events: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Length, behaviours shown and behaviours dropped, each (S,)."""
        events = self.log.positions(events)
        parts = [self._call(self.processor.plan_lengths, events[some]) for some in blocks(len(events), _CHUNK)]
        if not parts:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, empty
        length, shown, dropped = (np.concatenate(columns) for columns in zip(*parts))
        return length, shown, dropped

    def _call(
        self, method: Callable[..., Any], events: np.ndarray, items_of: np.ndarray | None = None, **options: Any
    ) -> Any:
        """Run a method of the processor on rows of the log, with the items of these or of other events; errors of a row name its event."""
        start, end = self.log.history_bounds(events)
        if self.retrieval is not None:
            options["candidates"] = self.retrieval.candidates(events)
        items = self.log.item[events if items_of is None else items_of]
        target, time = items + self._target_offset, self.log.time[events]
        try:
            return method(self.pieces, self.events, start=start, end=end, target=target, time=time, **options)
        except ValueError as error:
            if not hasattr(error, "row"):
                raise
            event = int(events[error.row])
            user = self.log.user_ids[self.log.user[event]]
            item = self.log.catalogue["item_id"][int(items[error.row])].as_py()
            raise ValueError(f"sample at event {event} (user {user}, item {item}): {error.reason}") from error


def _placed(texts: list[str], rows: np.ndarray, count: int) -> list[str | None]:
    """So many texts, of which some rows are known."""
    found = np.full(count, None, dtype=object)
    found[rows] = texts
    return found.tolist()


def unread_signal(name: str) -> ValueError:
    """The error of sinks that carry a statistic which is not read."""
    return ValueError(
        f"sink_signal holds statistic:{name}, which is none of the data's statistics; name it (or its set) in data.statistics"
    )


def behavior_statistics(
    log: InteractionLog, reader: Any, names: Sequence[str], events: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """(E,) raw statistics of events of a log (default: of all) at their times, NaN where not known, of some names that a reader knows.

    Raises:
        ValueError: a name that the reader has not.
    """
    if not names:
        return {}
    unknown = [name for name in names if reader is None or name not in reader.names]
    if unknown:
        raise unread_signal(unknown[0])
    events = np.arange(log.num_events) if events is None else events
    raw = replace(reader, names=tuple(names), mean=(), scale=(), low=(), high=()).raw(log, events)
    return dict(zip(names, raw.T))


TextDataset, TextCollator = RowDataset, RowCollator
