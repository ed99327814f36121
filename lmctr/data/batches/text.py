"""Text view of an interaction log: batches of token ids from a catalogue that is tokenised once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lmctr.data.logs.log import InteractionLog
from lmctr.models.common.base import IGNORED_LABEL

if TYPE_CHECKING:
    from lmctr.data.logs.retrieval import Retrieval

__all__ = ["TextDataset", "TextView"]

_CHUNK = 8192  # rows planned at once; bounds the memory of `lengths`


class TextView:
    """Samples of a log as a text processor writes them.

    The catalogue's texts are tokenised once, here; a batch is then put together from cached token ids by array operations,
    without a tokenizer call. Memory beside the log's own arrays: the catalogue's tokens and, when histories come in groups
    of feedback, one index of the events.

    Args:
        log: the log. Histories follow its rule: events of the same user strictly before the sample's time.
        processor: a text processor such as [`CTRSinkProcessor`].
        retrieval: the result of [`build_retrieval`] for the events that will be asked for; needed when the processor's order or
            a sink signal needs similarities.

    Raises:
        ValueError: a catalogue that lacks a column of the prompt, more feedback codes than the prompt describes, a missing or
            unsuited retrieval.
    """

    def __init__(self, log: InteractionLog, processor: Any, retrieval: Retrieval | None = None):
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
        texts, self._target_offset = processor.item_texts(log.catalogue), 0
        if processor.prompt.behavior_item is not None:  # behaviours first, so that an event's item is its row
            texts, self._target_offset = processor.behavior_texts(log.catalogue) + texts, log.num_items
        self.pieces = processor.encode_items(texts)
        feedback = None
        if processor.needs_feedback:
            described = processor.prompt.feedback_names
            if len(log.feedback_names) > len(described):
                raise ValueError(
                    f"the log's feedback has the names {', '.join(log.feedback_names)}, the prompt describes only "
                    f"{', '.join(described)}; add an entry to the prompt's `feedback` for each code"
                )
            feedback = log.feedback
        self.events = processor.event_table(log.item, log.time, feedback)

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
            `labels` (B,) float32, and `sample_weight` (B,) float32 when the log has weights (0 for filler rows).

        Raises:
            ValueError: events outside the log, or without a label.
        """
        events = np.asarray(events)
        if events.ndim != 1 or len(events) == 0:
            raise ValueError(f"events must be a list of at least one position, got shape {events.shape}")
        filler = events == -1
        if filler.any():
            real = events[~filler]
            events = np.where(filler, real[0] if len(real) else 0, events)
        events = self._check(events)
        labels = self.log.label[events].astype(np.float32)
        unlabelled = (labels < 0) & ~filler
        if unlabelled.any():
            wrong = events[np.argmax(unlabelled)]
            raise ValueError(
                f"event {int(wrong)} has no label: it may stand in histories but is no sample; take samples from "
                f"log.sample_events() or a split"
            )
        arrays = self._call(self.processor.assemble, events, pad_to_multiple_of=pad_to_multiple_of)
        del arrays["num_dropped"]
        batch = {key: torch.from_numpy(values) for key, values in arrays.items()}
        batch["labels"] = torch.from_numpy(np.where(filler, np.float32(IGNORED_LABEL), labels))
        if self.log.weight is not None:
            batch["sample_weight"] = torch.from_numpy(np.where(filler, np.float32(0), self.log.weight[events]))
        return batch

    def lengths(self, events: Sequence[int] | np.ndarray) -> np.ndarray:
        """(S,) int64 exact token lengths of samples, without building them."""
        return self._plan(events)[0]

    def truncation(self, events: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """How much of the histories the samples show.

        Returns:
            `samples`; `max_length` (tokens, None without limit); `mean_length`, `longest` (tokens); `histories_cut`: samples
            whose history is longer than the processor's number of behaviours; `samples_truncated`: samples that lost selected
            behaviours to `max_length`, and `share_truncated`; `behaviors_shown`, `behaviors_dropped` and `share_dropped`.
        """
        events = self._check(np.asarray(events))
        length, shown, dropped = self._plan(events)
        samples, selected = max(len(events), 1), max(int(shown.sum() + dropped.sum()), 1)
        return {
            "samples": len(events),
            "max_length": self.processor.effective_max_length,
            "mean_length": float(length.mean()) if len(events) else 0.0,
            "longest": int(length.max(initial=0)),
            "histories_cut": int((self.log.history_lengths(events) > shown + dropped).sum()),
            "samples_truncated": int((dropped > 0).sum()),
            "share_truncated": float((dropped > 0).sum() / samples),
            "behaviors_shown": int(shown.sum()),
            "behaviors_dropped": int(dropped.sum()),
            "share_dropped": float(dropped.sum() / selected),
        }

    def _plan(self, events: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Length, behaviours shown and behaviours dropped, each (S,)."""
        events = self._check(np.asarray(events))
        parts = [
            self._call(self.processor.plan_lengths, events[begin : begin + _CHUNK])
            for begin in range(0, len(events), _CHUNK)
        ]
        if not parts:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, empty
        length, shown, dropped = (np.concatenate(columns) for columns in zip(*parts))
        return length, shown, dropped

    def _call(self, method: Callable[..., Any], events: np.ndarray, **options: Any) -> Any:
        """Run a method of the processor on rows of the log; errors of a row name its event."""
        start, end = self.log.history_bounds(events)
        if self.retrieval is not None:
            options["candidates"] = self.retrieval.candidates(events)
        target, time = self.log.item[events] + self._target_offset, self.log.time[events]
        try:
            return method(self.pieces, self.events, start=start, end=end, target=target, time=time, **options)
        except ValueError as error:
            if not hasattr(error, "row"):
                raise
            event = int(events[error.row])
            user = self.log.user_ids[self.log.user[event]]
            raise ValueError(f"sample at event {event} (user {user}): {error.reason}") from error

    def _check(self, events: np.ndarray) -> np.ndarray:
        if events.size == 0:
            return np.zeros(0, dtype=np.int64)
        if events.dtype.kind not in "iu" or events.ndim != 1:
            raise ValueError(f"events must be a list of whole numbers, got {events.dtype} of shape {events.shape}")
        if events.min() < 0 or events.max() >= self.log.num_events:
            raise ValueError(
                f"events must be positions from 0 to {self.log.num_events - 1}, got {events.min()} to {events.max()}"
            )
        return events.astype(np.int64, copy=False)


class TextDataset(Dataset):
    """Samples of a [`TextView`]. An item is the sample's event position; [`TextCollator`] turns a list of them into a batch.

    Args:
        view: the text view.
        events: (S,) positions of the samples in the log, for example a part of a split.
        sort_by_length: order the samples by token length (for inference with little padding).

    Attributes:
        events: (S,) int64 in the order of the dataset.
        order: (S,) int64 place of each sample in the `events` that were given.
        lengths: (S,) int64 exact token lengths, computed when first asked for.
        labels: (S,) float32. groups: (S,) int64 user numbers. sample_weight: (S,) float32 or None.

    Raises:
        ValueError: events outside the log or without a label.
    """

    def __init__(self, view: TextView, events: Sequence[int] | np.ndarray, sort_by_length: bool = False):
        self.view = view
        self.events = view._check(np.asarray(events))
        unlabelled = int((view.log.label[self.events] < 0).sum())
        if unlabelled:
            raise ValueError(
                f"{unlabelled} of {len(self.events)} events have no label; take samples from log.sample_events() or a split"
            )
        self.order = np.arange(len(self.events))
        if sort_by_length:
            lengths = view.lengths(self.events)
            self.order = np.argsort(lengths, kind="stable")
            self.events = self.events[self.order]
            self.lengths = lengths[self.order]  # fills the cached property

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, index: int) -> int:
        return int(self.events[index])

    @cached_property
    def lengths(self) -> np.ndarray:
        """(S,) exact token lengths."""
        return self.view.lengths(self.events)

    @property
    def labels(self) -> np.ndarray:
        """(S,) labels, 0 or 1."""
        return self.view.log.label[self.events].astype(np.float32)

    @property
    def groups(self) -> np.ndarray:
        """(S,) user numbers."""
        return self.view.log.user[self.events].astype(np.int64)

    @property
    def sample_weight(self) -> np.ndarray | None:
        """(S,) sample weights, or None when the log has none."""
        return None if self.view.log.weight is None else np.asarray(self.view.log.weight[self.events])
