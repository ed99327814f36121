"""What the views of logs and of stores share: they are [`Batches`], which one data set and one collator read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.utils.data import Dataset

from lmctr.data.array_store import ArrayStore
from lmctr.data.features.transform import MAX_EXAMPLES
from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.splits import Splits
from lmctr.models.common.base import IGNORED_LABEL
from lmctr.utils.ragged import blocks
from lmctr.utils.rows import check_kind, is_whole

ROLES = ("candidates", "histories")  # what the values of a sample's log are read as
CONTEXTS = "contexts of candidates"
GRADED = "graded values of histories"


def reads_graded(processor: Any) -> bool:
    """Whether a log's processor reads the graded values (stars, watched share) of a history's events."""
    reader = processor.statistics_reader
    return (reader is not None and reader.graded) or getattr(processor, "needs_values", False)


class Batches(ABC):
    """Samples by number, as a model takes them.

    Row numbers are (S,), or (S, C) where a row has up to C samples, -1 where it has fewer. What a view does not have is None.

    Attributes:
        pads: whether `batch` takes `pad_to_multiple_of`.
    """

    pads: ClassVar[bool] = False

    @abstractmethod
    def samples(self, rows: Sequence[int] | np.ndarray | None) -> np.ndarray:
        """Row numbers as int64, None: all samples. Raises `ValueError` for rows that are no samples."""

    @abstractmethod
    def batch(self, rows: Sequence[int] | np.ndarray) -> dict[str, torch.Tensor]:
        """Tensors of some rows; -1 makes a filler row with the label -100."""

    def columns(self) -> dict[str, dict[str, list[int] | None]]:
        """What a model reads of a sample, by name: keys of a batch, with the places on their axis 1, None for all of a key."""
        return {}

    def shuffled(self, rows: np.ndarray, order: np.ndarray) -> Iterator[tuple[str | None, dict[str, torch.Tensor]]]:
        """The batch of some samples under the name None; then under the name of each thing that a model reads of them the batch with that
        thing, and nothing else, of the rows in another order.

        Args:
            rows: (B,) row numbers. order: (B,) a permutation of their places.
        """
        batch = self.batch(rows)
        yield None, batch
        for name, keys in self.columns().items():
            yield name, {**batch, **_of_others(batch, keys, order)}

    def lengths(self, rows: np.ndarray) -> np.ndarray | None:
        """(S,) int64 what a row costs, by which batches of like widths are made."""
        return None

    def labels(self, rows: np.ndarray) -> np.ndarray | None:
        """float32 labels in the shape of `rows`, -100 where there is none, with a task axis behind for several tasks."""
        return None

    def groups(self, rows: np.ndarray) -> np.ndarray | None:
        """(S,) int64 groups of the grouped AUC."""
        return None

    def candidate_mask(self, rows: np.ndarray) -> np.ndarray | None:
        """(S, C) bool, where a row has a sample; None for one sample per row."""
        return rows >= 0 if rows.ndim == 2 else None

    def ecpm(self, rows: np.ndarray) -> np.ndarray | None:
        """float32 eCPM of the samples, row by row, where these are ads of impressions."""
        return None

    def times(self, rows: np.ndarray) -> np.ndarray | None:
        """int64 unix seconds in the shape of `rows`, those of the first sample for padding."""
        times = self._times()
        if times is None or not rows.size:
            return None
        return np.asarray(times)[np.where(rows < 0, rows.reshape(-1)[np.argmax(rows >= 0)], rows)]

    def _times(self) -> np.ndarray | None:
        """The time of every sample."""
        return None

    def sample_weight(self, rows: np.ndarray) -> np.ndarray | None:
        """float32 sample weights in the shape of `rows`, 0 for padding."""
        weight = self._weight()
        return None if weight is None else values_at(weight, rows, 0)

    def _weight(self) -> np.ndarray | None:
        """The weight of every sample."""
        return None


ALL_STATISTICS = "all statistics"


def _of_others(
    batch: Mapping[str, torch.Tensor], keys: Mapping[str, list[int] | None], order: np.ndarray
) -> dict[str, torch.Tensor]:
    """These keys of a batch with their named places in another order of rows."""
    places, found = torch.from_numpy(order), {}
    for key, columns in keys.items():
        if key in batch:
            values = batch[key][places]
            if columns is not None:
                values, moved = batch[key].clone(), values
                values[:, columns] = moved[:, columns]
            found[key] = values
    return found


def statistic_columns(names: Sequence[str]) -> dict[str, dict[str, list[int] | None]]:
    """[`Batches.columns`] of the statistics of a batch: all of them, and each."""
    each: dict[str, dict[str, list[int] | None]] = {name: {"statistics": [place]} for place, name in enumerate(names)}
    return {ALL_STATISTICS: {"statistics": [*range(len(names))]}, **each} if len(each) > 1 else each


def values_at(column: np.ndarray, rows: np.ndarray, filler: float) -> np.ndarray:
    """What stands in a column, in the shape of `rows` and behind it that of an entry, with `filler` where a row is -1."""
    is_filler = (rows < 0).reshape(rows.shape + (1,) * (column.ndim - 1))
    return np.where(is_filler, np.float32(filler), column[np.maximum(rows, 0)])


class EventStatistics:
    """Scaled statistics of some events of a log.

    Args:
        events: (S,) their positions, ascending. values: (S, Fs) float32.
    """

    def __init__(self, events: np.ndarray, values: np.ndarray):
        self.events, self.values = events, values

    def of(self, rows: np.ndarray) -> np.ndarray:
        """(.., Fs) float32 of events (..), 0 for those of -1.

        Raises:
            ValueError: an event that is none of these.
        """
        place = np.searchsorted(self.events, rows).clip(max=len(self.events) - 1)
        unknown = (self.events[place] != rows) & (rows >= 0)
        if unknown.any():
            raise ValueError(
                f"event {int(rows[unknown][0])}: its statistics were not computed; make the view with `samples` that hold it"
            )
        return self.values[place] * (rows >= 0)[..., None]


class LogBatches(Batches):
    """Samples of an interaction log; a row number is the position of an event."""

    pads = True
    log: InteractionLog

    def samples(self, rows: Sequence[int] | np.ndarray | None) -> np.ndarray:
        rows = self.log.sample_events() if rows is None else np.asarray(rows)
        own = (rows[block] for block in blocks(len(rows)))
        unlabelled = sum(int(self._unlabelled(some, self.labels(some)).sum()) for some in own)
        if unlabelled:
            raise ValueError(
                f"{unlabelled} of {int((rows >= 0).sum())} events have no label; take samples from log.sample_events() or a split"
            )
        return rows

    def unknown_of(
        self,
        events: np.ndarray,
        what: str,
        candidates: tuple[np.ndarray, np.ndarray],
        histories: tuple[np.ndarray, np.ndarray],
        bounds: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
        named: Callable[[np.ndarray], list[str]],
    ) -> tuple[dict[str, dict[str, int]], dict[str, list[str]]]:
        """Counts of values and of the unknown among them, of samples and of their histories, and examples of items that have some; of the
        samples' context too, where its values have statistics of their own, and of graded values of histories, where they are read.

        Args:
            events: (S,) positions of the samples. what: what the values are called.
            candidates, histories: (I,) values of each item and the unknown among them, where it is a candidate and in histories.
            bounds: from samples to the first event and the end of their histories. named: from numbers of items to examples.
        """
        item, inside, one = self.log.item, np.zeros(self.log.num_events + 1, dtype=np.int32), np.int32(1)
        read = {role: np.zeros(self.log.num_items, dtype=np.int64) for role in ROLES}
        for block in blocks(len(events)):
            start, end = bounds(events[block])
            np.add.at(inside, start, one)
            np.add.at(inside, end, -one)
            read["candidates"] += np.bincount(item[events[block]], minlength=self.log.num_items)
        np.cumsum(inside, out=inside)  # how many of the histories hold an event
        for block in blocks(self.log.num_events):
            read["histories"] += np.bincount(item[block], inside[block], self.log.num_items).astype(np.int64)
        counts, examples = {}, {}
        for role, (values, unknown) in (("candidates", candidates), ("histories", histories)):
            times, name = read[role], f"{what} of {role}"
            counts[name] = {"values": int(times @ values), "unknown": int(times @ unknown)}
            examples[name] = named(np.flatnonzero(times * unknown)[:MAX_EXAMPLES])
        reader = self.processor.statistics_reader
        told = [] if reader is None else [name for name in reader.told if name in reader.asked_context]
        if told and self.log.context is not None:
            context = self.log.context.select(told).take(pa.array(events))
            columns = {name: pc.value_counts(context[name].combine_chunks()).to_pylist() for name in told}
            own = {name: [(one["values"], one["counts"]) for one in entries] for name, entries in columns.items()}
            counts[CONTEXTS], found = reader.unknown_context(own)
            examples[CONTEXTS] = found[:MAX_EXAMPLES]
        if reads_graded(self.processor):
            graded, times = self.log.feedback_values, inside[:-1]
            unknown = times if graded is None else times[np.isnan(graded)]
            counts[GRADED] = {"values": int(times.sum()), "unknown": int(unknown.sum())}
        return counts, examples

    @staticmethod
    def _unlabelled(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        if not rows.size:
            return np.zeros(rows.shape, dtype=bool)
        return (labels == IGNORED_LABEL).reshape(*rows.shape, -1).all(axis=-1) & (rows >= 0)

    @staticmethod
    def filled(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows whose fillers (-1 only) repeat the first real row, or event 0 when there is none, and (B,) where a filler stands."""
        filler = (rows.reshape(len(rows), -1) == -1).all(axis=1)
        if filler.any():
            real = rows[~filler]
            rows = rows.copy()
            rows[filler] = real[0] if len(real) else 0
        return rows, filler

    def targets(self, rows: np.ndarray, filler: np.ndarray) -> dict[str, np.ndarray]:
        """`labels` of the rows of a batch, -100 for fillers, and `sample_weight`, 0 for fillers, where the log has weights.

        Raises:
            ValueError: a row without any of its labels.
        """
        labels, weight = self.labels(rows), self.sample_weight(rows)
        unlabelled = self._unlabelled(rows, labels)
        unlabelled[filler] = False
        if unlabelled.any():
            raise ValueError(
                f"event {int(rows[unlabelled][0])} has no label: it may stand in histories but is no sample; take samples from "
                f"log.sample_events() or a split"
            )
        labels[filler] = IGNORED_LABEL
        if weight is None:
            return {"labels": labels}
        weight[filler] = 0
        return {"labels": labels, "sample_weight": weight.astype(np.float32, copy=False)}

    def labels(self, rows: np.ndarray) -> np.ndarray:
        return self._labels(self.log.label, rows)

    @staticmethod
    def _labels(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
        taken = values_at(column, rows, IGNORED_LABEL).astype(np.float32, copy=False)
        return np.where(taken < 0, np.float32(IGNORED_LABEL), taken)

    def groups(self, rows: np.ndarray) -> np.ndarray:
        last = rows if rows.ndim == 1 else rows.max(axis=1)
        return self.log.user[last].astype(np.int64)

    def _times(self) -> np.ndarray:
        return self.log.time

    def _weight(self) -> np.ndarray | None:
        return self.log.weight


class StoreBatches(Batches):
    """Samples of a store.

    Args:
        store: the store.
        trim: cut sequences to the longest of the batch (they are padded on the right).

    Attributes:
        row: what a row is, for messages.
    """

    row: ClassVar[str] = "row number"

    def __init__(self, store: ArrayStore, trim: bool = True) -> None:
        check_kind(store, ArrayStore, "store")
        self.store: Any = store
        self.trim = trim

    @property
    def processor(self) -> Any:
        """The processor that made the store."""
        return self.store.processor

    @property
    def splits(self) -> Splits:
        """Row numbers of each part."""
        return self.store.splits

    def samples(self, rows: Sequence[int] | np.ndarray | None) -> np.ndarray:
        return np.arange(len(self.store)) if rows is None else self.check(rows)

    def check(self, rows: Sequence[int] | np.ndarray, lowest: int = 0) -> np.ndarray:
        """Row numbers as (B,) int64. Raises `ValueError` for what is none of the store's."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise ValueError(f"rows must be a list of whole numbers, got {rows.dtype} of shape {rows.shape}")
        if rows.size and (rows.min() < lowest or rows.max() >= len(self.store)):
            raise ValueError(f"rows must be from 0 to {len(self.store) - 1}, got {rows.min()} to {rows.max()}")
        return rows.astype(np.int64, copy=False)

    def _times(self) -> np.ndarray | None:
        return self.store.times

    def _weight(self) -> np.ndarray | None:
        return self.store.weight

    def _inputs(self, names: Sequence[str], rows: np.ndarray) -> dict[str, torch.Tensor]:
        """Those of the named arrays that the store has, for a batch of at least one row; -1 reads row 0."""
        if not len(rows):
            raise ValueError(f"rows must hold at least one {self.row}")
        arrays = {name: getattr(self.store, name) for name in names}
        rows = np.maximum(rows, 0)
        return {name: as_tensor(values[rows]) for name, values in arrays.items() if values is not None}

    def _trimmed(self, batch: dict[str, torch.Tensor], name: str, *more: str) -> None:
        """Cut sequences behind the last id of `name`."""
        if self.trim and name in batch:
            used = batch[name].amax(dim=(0, 1)).nonzero()
            longest = int(used[-1]) + 1 if len(used) else 1
            for key in (name, *more):
                if key in batch:
                    batch[key] = batch[key][..., :longest].contiguous()


def as_tensor(values: np.ndarray) -> torch.Tensor:
    """An array as a tensor; whole numbers as int32."""
    if values.dtype.kind == "i":
        values = values.astype(np.int32, copy=False)
    return torch.from_numpy(np.ascontiguousarray(values))


class RowDataset(Dataset):
    """Samples of a view. An item is a row number, or (C,) of them; [`RowCollator`] turns a list of items into a batch.

    Args:
        view: the view.
        rows: (S,) row numbers, for example a part of a split; None takes all samples.
        sort_by_length: order the samples by length (for inference with little padding).

    Attributes:
        rows: (S,) or (S, C) int64 in the order of the dataset.
        events: the row numbers row by row, without padding. num_samples: their number. candidate_mask: (S, C) bool, where a row has a
            sample; None for one sample per row.
        lengths: (S,) int64. labels: float32 like `rows`, -100 for padding, with a task axis for several tasks. groups: (S,) int64 users or
            groups. sample_weight: float32 like `rows`. times: int64 unix seconds like `rows`. ecpm: (A,) float32 of the ads of impressions, which are
            their samples. Each is None where the view has none.

    Raises:
        ValueError: rows outside the data or without a label.
    """

    def __init__(
        self, view: Batches, rows: Sequence[int] | np.ndarray | None = None, sort_by_length: bool = False
    ) -> None:
        check_kind(view, Batches, "view")
        self.view: Any = view
        self.rows = view.samples(rows)
        if sort_by_length:
            lengths = view.lengths(self.rows)
            if lengths is None:
                raise ValueError(f"sort_by_length: rows of a {type(view).__name__} have no length; leave it out")
            self.order = np.argsort(lengths, kind="stable")
            self.rows = self.rows[self.order]
            self.lengths = lengths[self.order]  # fills the cached property

    @cached_property
    def order(self) -> np.ndarray:
        """(S,) int64 place of each sample in the rows that were given."""
        return np.arange(len(self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | slice | Sequence[int]) -> int | np.ndarray | list:
        """An item, or the list of those of a slice or of several places."""
        rows = self.rows[index]
        if self.rows.ndim == 1:
            return rows.tolist()
        return [*rows] if rows.ndim == 2 else rows

    def __getitems__(self, indices: Sequence[int]) -> list:
        """The items of a whole batch; the data loader asks for this in place of one item at a time."""
        return self[np.asarray(indices)]

    @property
    def events(self) -> np.ndarray:
        """(S,) int64 row numbers without padding."""
        return self.rows[self.rows >= 0]

    @property
    def num_samples(self) -> int:
        """Samples in all rows."""
        mask = self.candidate_mask
        return int((self.rows >= 0).sum() if mask is None else mask.sum())

    @property
    def candidate_mask(self) -> np.ndarray | None:
        """(S, C) bool, where a row has a sample."""
        return self.view.candidate_mask(self.rows)

    @property
    def ecpm(self) -> np.ndarray | None:
        """eCPM of the samples, row by row."""
        return self.view.ecpm(self.rows)

    @cached_property
    def lengths(self) -> np.ndarray | None:
        """(S,) lengths of the rows."""
        return self.view.lengths(self.rows)

    @property
    def labels(self) -> np.ndarray | None:
        """Labels in the shape of `rows`."""
        return self.view.labels(self.rows)

    @property
    def groups(self) -> np.ndarray | None:
        """(S,) groups of the grouped AUC."""
        return self.view.groups(self.rows)

    @property
    def times(self) -> np.ndarray | None:
        """Unix seconds of the samples in the shape of `rows`, those of the first sample for padding."""
        return self.view.times(self.rows)

    @property
    def sample_weight(self) -> np.ndarray | None:
        """Sample weights in the shape of `rows`."""
        return self.view.sample_weight(self.rows)


class RowCollator:
    """Turns items of a [`RowDataset`] into a batch, see the view's `batch`; the row -1 makes a filler with the label -100.

    Args:
        view: the view that the dataset was made from.
        pad_to_multiple_of: pad texts and histories to a multiple of this length, for example 8 for tensor cores.
    """

    def __init__(self, view: Batches, pad_to_multiple_of: int | None = None) -> None:
        check_kind(view, Batches, "view")
        if pad_to_multiple_of is not None and not (is_whole(pad_to_multiple_of) and view.pads):
            accepted = (
                "a whole number of at least 1, or None"
                if view.pads
                else f"None for a {type(view).__name__}, which pads nothing"
            )
            raise ValueError(f"pad_to_multiple_of must be {accepted}, got {pad_to_multiple_of!r:.80}")
        self.view = view
        self.pad_to_multiple_of = pad_to_multiple_of

    def __call__(self, rows: Sequence[int] | Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
        padding = {} if self.pad_to_multiple_of is None else {"pad_to_multiple_of": self.pad_to_multiple_of}
        return self.view.batch(np.asarray(rows), **padding)
