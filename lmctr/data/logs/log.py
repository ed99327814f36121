"""The interaction log: one store of events from which every view (text, sequence, tabular) is built.

Events are kept once, sorted by user and time; the history of a sample is a slice of its user's events, taken when a batch is
built. Memory and disk therefore grow with the number of events, not with events times history length.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmctr.data import hf_datasets
from lmctr.data.in_memory import arrow_table
from lmctr.data.reading import check_columns
from lmctr.utils.arrow import is_list, known_value, with_columns
from lmctr.utils.files import for_arrow, replacing, write_json
from lmctr.utils.ragged import blocks, offsets_from_lengths, ragged_arange, ragged_searchsorted
from lmctr.utils.rows import check_kind
from lmctr.utils.suggest import first_listed, refuse_unknown

from . import columns

LOG_FILE = "log.json"
FORMAT_VERSION = 1
_HEADER_KEYS = frozenset(
    ["num_users", "num_items", "num_events", "arrays", "extra_labels", "has_users", "feedback_names", "scenario_names", "info"]
)  # fmt: skip
FEEDBACK_NAMES = ("unknown", "negative", "positive")
_EVENT_TYPES = {"item": np.int32, "time": np.int64, "label": np.int8, "feedback": np.int8}
_EVENT_TYPES |= {"scenario": np.int16, "weight": np.float32, "feedback_values": np.float32}
_EVENT_TYPES |= {"part": np.int8, "hidden": np.bool_}


@dataclass(frozen=True)
class DatasetInfo:
    """Where a log comes from and what its label means; model cards and run folders repeat it.

    Args:
        name: short name, such as `"movielens-latest-small"`.
        url: where the raw files are published.
        licence: terms of use, in words.
        citation: the paper to cite.
        label_rule: how the label was made, such as `"rating > 3"`.
        language: language code of the catalogue texts.
        notes: what was filtered or changed.
        best_auc: the best reachable AUC, known for generated logs only.
        extra: anything else that can be written as JSON.
    """

    name: str = "unnamed"
    url: str | None = None
    licence: str | None = None
    citation: str | None = None
    label_rule: str | None = None
    language: str | None = None
    notes: str | None = None
    best_auc: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dict that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DatasetInfo:
        """Inverse of [`~DatasetInfo.to_dict`]; unknown keys are an error."""
        refuse_unknown(values, [entry.name for entry in dataclasses.fields(cls)], "DatasetInfo")
        return cls(**values)


@dataclass(frozen=True, eq=False, repr=False)
class InteractionLog:
    """Events of U users on I items, sorted by (user, hidden, time, input order), E in all.

    Build one with [`~InteractionLog.from_columns`] (it sorts, encodes and checks) or read one with [`lmctr.data.load_log`].

    Args:
        user_ids: (U,) original ids, int64 or string.
        offsets: (U + 1,) int64; the events of user u are `[offsets[u], offsets[u + 1])`.
        item: (E,) int32 row of the item in `catalogue`.
        time: (E,) int64 unix seconds.
        label: (E,) int8 in {0, 1}; -1 is an event that may stand in histories but is no sample.
        feedback: (E,) int8 index into `feedback_names`: what the user's reaction looks like inside a history.
        catalogue: table with the column `item_id` and text, category or numeric columns; row i describes item i. Null and empty
            texts are legal: a text view decides how to write them.
        feedback_names: names of the feedback codes; code 0 means that the feedback is unknown.
        extra_labels: further (E,) int8 labels by name, for multi-task models.
        scenario: (E,) int16 index into `scenario_names`, or None.
        scenario_names: names of the scenario codes.
        weight: (E,) float32 sample weights, or None.
        feedback_values: (E,) float32 graded feedback (stars, watched share, dwell time), NaN where unknown, or None. Like `feedback` it
            is a reaction: it may be read in histories only.
        part: (E,) int8 part that the data set itself gives each sample: 0 training, 1 validation, 2 test; or None. The split rule "given"
            takes it. Events of -1, none, are no samples by any rule.
        hidden: (E,) bool, the events that no other event sees: they stand in no history, and statistics do not count them; or None.
            Hidden events of a user come behind its others.
        users: table with the column `user_id`, row u describes user u, or None. other_users: likewise of users without an event, who may be asked for.
        context: table of E rows with further columns of each event, known when the item was shown (position, device, price), or None.
            A reaction (dwell time, watched share) does not belong here: it would tell the label.
        info: origin, licence, label rule.

    The **history rule**: the history of event e is the events `[offsets[user[e]], history_end[e])`, those of the same user with
    a time strictly before `time[e]`. Events at the same second are excluded, because their order is unknown.
    """

    user_ids: np.ndarray
    offsets: np.ndarray
    item: np.ndarray
    time: np.ndarray
    label: np.ndarray
    feedback: np.ndarray
    catalogue: pa.Table
    feedback_names: tuple[str, ...] = FEEDBACK_NAMES
    extra_labels: dict[str, np.ndarray] = field(default_factory=dict)
    scenario: np.ndarray | None = None
    scenario_names: tuple[str, ...] = ()
    weight: np.ndarray | None = None
    feedback_values: np.ndarray | None = None
    part: np.ndarray | None = None
    hidden: np.ndarray | None = None
    users: pa.Table | None = None
    context: pa.Table | None = None
    info: DatasetInfo = field(default_factory=DatasetInfo)
    other_users: pa.Table | None = None

    def __post_init__(self) -> None:
        kinds = dict.fromkeys(("user_ids", "offsets", "item", "time", "label", "feedback"), np.ndarray)
        kinds |= {"catalogue": pa.Table, "extra_labels": Mapping, "info": DatasetInfo}
        kinds |= {name: pa.Table for name in ("users", "other_users", "context") if getattr(self, name) is not None}
        for name, kind in kinds.items():
            check_kind(getattr(self, name), kind, f"InteractionLog.{name}")
        num_events = len(self.item)
        arrays = {name: (values, _EVENT_TYPES[name]) for name, values in self.event_arrays().items()}
        arrays |= {f"extra_labels[{name!r}]": (values, np.int8) for name, values in self.extra_labels.items()}
        for name, (values, dtype) in arrays.items():
            if values.shape != (num_events,) or values.dtype != dtype:
                raise ValueError(
                    f"InteractionLog.{name}: expected {num_events} values of type {np.dtype(dtype)}, got shape {values.shape} of "
                    f"type {values.dtype}. InteractionLog.from_columns converts columns."
                )
        if self.offsets.shape != (len(self.user_ids) + 1,) or self.offsets.dtype != np.int64:
            raise ValueError(
                f"InteractionLog.offsets: expected {len(self.user_ids) + 1} values of type int64 (one more than users), got "
                f"shape {self.offsets.shape} of type {self.offsets.dtype}."
            )
        if self.offsets[0] != 0 or self.offsets[-1] != num_events or (np.diff(self.offsets) < 0).any():
            raise ValueError(f"InteractionLog.offsets: expected values that rise from 0 to the {num_events} events.")
        if "item_id" not in self.catalogue.column_names:
            raise ValueError(
                f"InteractionLog.catalogue: no column 'item_id'; its columns are {first_listed(self.catalogue.column_names)}."
            )
        if self.users is not None and self.users.num_rows != len(self.user_ids):
            raise ValueError(
                f"InteractionLog.users: {self.users.num_rows} rows for {len(self.user_ids)} users; row u describes user u."
            )
        if self.context is not None and self.context.num_rows != num_events:
            raise ValueError(
                f"InteractionLog.context: {self.context.num_rows} rows for {num_events} events; row e describes event e."
            )

    def __repr__(self) -> str:
        return (
            f"InteractionLog({self.info.name!r}, num_users={self.num_users}, num_items={self.num_items}, "
            f"num_events={self.num_events})"
        )

    def __len__(self) -> int:
        return self.num_events

    @property
    def num_users(self) -> int:
        """U, the number of users."""
        return len(self.user_ids)

    @property
    def num_items(self) -> int:
        """I, the number of rows of the catalogue."""
        return self.catalogue.num_rows

    @property
    def num_events(self) -> int:
        """E, the number of events."""
        return len(self.item)

    def event_arrays(self) -> dict[str, np.ndarray]:
        """By name, the arrays with a value per event that the log has; `extra_labels` and `context` stand beside them."""
        return {name: values for name in _EVENT_TYPES if (values := getattr(self, name)) is not None}

    @functools.cached_property
    def user(self) -> np.ndarray:
        """(E,) int32 user of each event."""
        return np.repeat(np.arange(self.num_users, dtype=np.int32), np.diff(self.offsets))

    @functools.cached_property
    def history_end(self) -> np.ndarray:
        """(E,) first event of the same user whose time is not before the event's own (see the history rule); where events are hidden, the
        end of the seen ones that are before it. int32, int64 from 2^31 events on."""
        if not self.num_events:
            return np.zeros(0, dtype=np.int32)
        kind = np.int32 if self.num_events < 2**31 else np.int64
        starts_run = np.empty(self.num_events, dtype=bool)  # a run: events of one user at one second
        starts_run[0] = True
        np.not_equal(self.time[1:], self.time[:-1], out=starts_run[1:])
        first_events = self.offsets[:-1][np.diff(self.offsets) > 0]
        starts_run[first_events] = True
        backwards = self.time[1:] < self.time[:-1]
        if self.hidden is not None:
            backwards = np.where(self.hidden[1:] == self.hidden[:-1], backwards, self.hidden[:-1])
        backwards[first_events[1:] - 1] = False
        if backwards.any():
            rows = np.flatnonzero(backwards) + 1
            raise ValueError(
                f"InteractionLog.time: {len(rows)} events are earlier than the event before them of the same user, or seen and behind a "
                f"hidden one (first: event {rows[0]}). Events must be sorted by user, hidden and time; InteractionLog.from_columns sorts "
                "them."
            )
        ends = np.arange(self.num_events, dtype=kind)
        ends *= starts_run
        np.maximum.accumulate(ends, out=ends)
        if self.hidden is not None:
            rows = np.flatnonzero(self.hidden)
            owner = self.user[rows]
            ends[rows] = ragged_searchsorted(self.time, self.time[rows], self.offsets[owner], self.seen_end[owner])
        return ends

    @property
    def seen(self) -> np.ndarray:
        """(E,) bool, the events that are not hidden: those that may stand in histories."""
        return np.ones(self.num_events, dtype=bool) if self.hidden is None else ~np.asarray(self.hidden)

    @functools.cached_property
    def seen_end(self) -> np.ndarray:
        """(U,) int64 end of each user's events that are not hidden."""
        if self.hidden is None:
            return self.offsets[1:]
        return self.offsets[1:] - np.bincount(self.user[self.hidden], minlength=self.num_users)

    def of_users(self, users: np.ndarray) -> InteractionLog:
        """The events of some users alone, by their numbers (V,), in that order; the catalogue stays whole."""
        lengths = np.diff(self.offsets)[users]
        return self._taken(
            ragged_arange(self.offsets[:-1][users], lengths),
            user_ids=self.user_ids[users],
            offsets=offsets_from_lengths(lengths),
            users=None if self.users is None else self.users.take(pa.array(users)),
        )

    def frozen_at(self, time: int) -> tuple[InteractionLog, np.ndarray]:
        """The log with all events from a unix second on hidden, and the position (E,) in it of each event."""
        hidden = (self.time >= time) | ~self.seen
        order = np.lexsort((self.time, hidden, self.user))
        places = np.empty_like(order)
        places[order] = np.arange(self.num_events)
        return dataclasses.replace(self._taken(order), hidden=hidden[order]), places

    def _taken(self, events: np.ndarray, **changes: Any) -> InteractionLog:
        """Events in this order, with other `changes`."""
        return dataclasses.replace(
            self,
            **{name: values[events] for name, values in self.event_arrays().items()},
            extra_labels={name: values[events] for name, values in self.extra_labels.items()},
            context=None if self.context is None else self.context.take(pa.array(events)),
            **changes,
        )

    def history_bounds(self, events: np.ndarray | Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Start and end (int64, end excluded) of the full history of each event, as positions in the event arrays."""
        events = self.positions(events)
        return self.offsets[self.user[events]], self.history_end[events].astype(np.int64)

    def history_lengths(self, events: np.ndarray | Sequence[int]) -> np.ndarray:
        """(S,) int64 number of behaviours before each event."""
        events = self.positions(events)
        lengths = np.empty(len(events), dtype=np.int64)
        for block in blocks(len(events)):
            start, end = self.history_bounds(events[block])
            lengths[block] = end - start
        return lengths

    def seen_events(self, events: np.ndarray | Sequence[int]) -> np.ndarray:
        """(E,) bool: the given events and the events of their full histories."""
        events = self.positions(events)
        last = np.zeros(self.num_users, dtype=np.int64)  # end of the events that a user's samples see
        for block in blocks(len(events)):
            np.maximum.at(last, self.user[events[block]], self.history_end[events[block]].astype(np.int64))
        seen = np.empty(self.num_events, dtype=bool)
        for block in blocks(self.num_events):
            seen[block] = np.arange(block.start, block.stop) < last[self.user[block]]
        seen[events] = True
        return seen

    def sample_events(self) -> np.ndarray:
        """Positions (int64) of the events that are samples: those with a label that the data set does not put in no part."""
        return np.flatnonzero(self.label >= 0 if self.part is None else (self.label >= 0) & (self.part >= 0))

    def positions(self, events: np.ndarray | Sequence[int]) -> np.ndarray:
        """Positions of events as int64, in the shape given. Raises `ValueError` for what is no event of the log."""
        events = np.asarray(events)
        if events.size == 0:
            return np.zeros(events.shape, dtype=np.int64)
        if events.dtype.kind not in "iu":
            raise ValueError(f"events: expected whole numbers (integer positions), got type {events.dtype}.")
        if events.min() < 0 or events.max() >= self.num_events:
            raise ValueError(
                f"events: expected positions from 0 to {self.num_events - 1}, got {events.min()} to {events.max()}."
            )
        return events.astype(np.int64, copy=False)

    @classmethod
    def from_columns(
        cls,
        user: Any,
        item: Any,
        time: Any,
        label: Any,
        *,
        catalogue: Any = None,
        feedback: Any = None,
        feedback_names: Sequence[str] | None = None,
        extra_labels: Mapping[str, Any] | None = None,
        scenario: Any = None,
        scenario_names: Sequence[str] | None = None,
        weight: Any = None,
        feedback_values: Any = None,
        part: Any = None,
        hidden: Any = None,
        users: Any = None,
        context: Any = None,
        info: DatasetInfo | None = None,
        source: str | None = None,
        names: Mapping[str, str] | None = None,
    ) -> InteractionLog:
        """Builds a log from columns in any order of rows (numpy arrays, lists or pyarrow columns of one length).

        Args:
            user: user ids, integers or strings.
            item: item ids as in `catalogue["item_id"]`.
            time: unix seconds (fractions are rounded down) or timestamps. Rows need not be sorted: events are sorted by user,
                time and input order.
            label: 0, 1, or -1 for an event that is history but no sample.
            catalogue: table (of pyarrow, pandas or `datasets`, or a dict of columns) with a column `item_id` (unique); made from the items seen when None.
            feedback: codes or names; None derives them from the label (unknown, negative, positive).
            feedback_names: names of the codes, code 0 being the unknown feedback. Required for names in an order of your own.
            extra_labels: further columns of 0, 1 or -1.
            scenario: codes or names of the place where the event happened.
            weight: sample weights, finite and not negative.
            feedback_values: graded feedback, finite; a missing value or NaN is unknown.
            part: 0, 1, 2 or -1: the part (training, validation, test, none) that the data set gives each sample.
            hidden: whether no other event sees an event, see the class.
            users: table with a column `user_id`, one row per user at most; users that it lacks get nulls, those without an event are `other_users`.
            context: table of further columns, in the order of the other columns' rows.
            source: file name to put in front of error messages.
            names: the columns' names in that file, where they differ from the argument names.

        Raises:
            ValueError: columns of different length, no rows, missing or non-finite values, times that are no unix seconds, labels
                other than those above, items outside the catalogue, duplicate ids in `catalogue` or `users`; each names column,
                count and first row.
        """
        names, where = dict(names or {}), source or "InteractionLog.from_columns"
        given = {"user": user, "item": item, "time": time, "label": label, "feedback": feedback, "weight": weight}
        given |= {"scenario": scenario, "feedback_values": feedback_values, "part": part, "hidden": hidden} | dict(
            extra_labels or {}
        )
        for name in ("user", "item", "time", "label"):
            if given[name] is None:
                raise ValueError(f"{where}: {name} is None; every log has it.")
        tables = {"catalogue": catalogue, "users": users, "context": context}
        catalogue, users, context = (
            None if table is None else with_columns(arrow_table(table, name), ("item_id", "user_id"), known_value)
            for name, table in tables.items()
        )
        given = {name: values for name, values in given.items() if values is not None}
        arrays = {name: columns.as_arrow(values, names.get(name, name), source) for name, values in given.items()}
        lengths = {name: len(values) for name, values in arrays.items()}
        if context is not None:
            _check_context(context, where)
            lengths["context"] = context.num_rows
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{where}: the columns differ in length: {lengths}.")
        if not lengths["user"]:
            raise ValueError(f"{where}: there are no rows; a log needs one event at least.")

        def named(name: str) -> tuple[pa.Array, str, str | None]:
            return arrays[name], names.get(name, name), source

        user_codes, user_ids = columns.encode_ids(*named("user"), dtype=np.int32)
        seconds = columns.to_seconds(*named("time"))
        labels = columns.to_labels(*named("label"), accepted=(0, 1, -1))
        if catalogue is None:
            rows, item_ids = columns.encode_ids(*named("item"), dtype=np.int32)
            catalogue = pa.table({"item_id": item_ids})
        else:
            check_keys(catalogue, "item_id", "catalogue")
            rows = columns.item_rows(*named("item"), catalogue["item_id"])
        if feedback is None:
            codes, feedback_names = np.maximum(labels + 1, 0).astype(np.int8), tuple(feedback_names or FEEDBACK_NAMES)
            if len(feedback_names) != 3:
                raise ValueError(
                    f"feedback_names: three names (unknown, negative, positive) for feedback made from the label, got "
                    f"{feedback_names}."
                )
        else:
            codes, feedback_names = columns.to_codes(*named("feedback"), feedback_names, np.int8)
        extra = {name: columns.to_labels(*named(name), accepted=(0, 1, -1)) for name in extra_labels or {}}
        events = {"item": rows, "time": seconds, "label": labels, "feedback": codes}
        if scenario is not None:
            events["scenario"], scenario_names = columns.to_codes(*named("scenario"), scenario_names, np.int16)
        if weight is not None:
            events["weight"] = columns.to_weights(*named("weight"))
        if feedback_values is not None:
            events["feedback_values"] = columns.to_graded(*named("feedback_values"))
        if part is not None:
            events["part"] = columns.to_labels(*named("part"), accepted=(0, 1, 2, -1))
        if hidden is not None:
            events["hidden"] = columns.to_labels(*named("hidden"), accepted=(0, 1)).astype(bool)

        keys = (seconds, user_codes) if hidden is None else (seconds, events["hidden"], user_codes)
        order = np.lexsort(keys)  # stable: equal keys keep the input order
        counts = np.bincount(user_codes, minlength=len(user_ids))
        return cls(
            user_ids=columns.ids_to_numpy(user_ids),
            offsets=offsets_from_lengths(counts),
            **{name: values[order] for name, values in events.items()},
            catalogue=catalogue,
            feedback_names=tuple(feedback_names),
            extra_labels={name: values[order] for name, values in extra.items()},
            scenario_names=tuple(scenario_names or ()),
            users=None if users is None else align_users(users, user_ids),
            context=None if context is None else context.take(pa.array(order)),
            info=info or DatasetInfo(),
            other_users=None if users is None else _others(users, user_ids),
        )

    def save(self, directory: str | os.PathLike) -> Path:
        """Writes the log as npy files (one per array), parquet tables and `log.json`.

        `log.json` is written last, so a folder that was cut off in the middle does not load. A log that is memory-mapped from the
        same folder may be saved over itself.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / LOG_FILE).unlink(missing_ok=True)
        for name, values in self._arrays().items():
            with replacing(directory / f"{name}.npy") as part, open(part, "wb") as file:
                np.save(file, values, allow_pickle=False)
        for name in ("catalogue", "users", "other_users", "context"):
            if (table := getattr(self, name)) is not None:
                with replacing(directory / f"{name}.parquet") as part:
                    pq.write_table(table, part, use_compliant_nested_type=False)
        header = {
            "format_version": FORMAT_VERSION,
            "num_users": self.num_users,
            "num_items": self.num_items,
            "num_events": self.num_events,
            "arrays": sorted(self._arrays()),
            "extra_labels": list(self.extra_labels),
            "has_users": self.users is not None,
            "has_other_users": self.other_users is not None,
            "has_context": self.context is not None,
            "feedback_names": list(self.feedback_names),
            "scenario_names": list(self.scenario_names),
            "info": self.info.to_dict(),
        }
        write_json(directory / LOG_FILE, header)
        return directory

    def to_dataset(self) -> Any:
        """The log as a `datasets.DatasetDict` of "events", "items" and, where it has any, "users"; [`from_dataset`] reads it back.

        An event is a row of `user_id`, `item_id`, `time`, `label` and `feedback` (a ClassLabel), and where the log has them `scenario` (likewise),
        `weight`, `feedback_values`, `part`, `hidden`, `label.NAME` of further labels and `context.NAME`. The three have different columns: push
        them to the Hub as configurations of one data set (`log.to_dataset()["events"].push_to_hub("user/name", "events")`, ...).
        """
        return hf_datasets.log_to(self)

    @classmethod
    def from_dataset(cls, data: Any, items: Any = None, users: Any = None) -> InteractionLog:
        """Inverse of [`to_dataset`].

        Args:
            data: that DatasetDict; or a `datasets.Dataset` of events with its columns (other names: [`lmctr.data.log_from_table`]).
            items: a Dataset or pyarrow Table with the column `item_id`; default: the items seen. users: likewise with `user_id`.

        Raises:
            ValueError: a missing column; what [`from_columns`] refuses.
        """
        columns, given = hf_datasets.log_columns(data, items, users)
        return cls.from_columns(*columns, **{**given, "info": DatasetInfo.from_dict(given["info"])}, source="data")

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {"user_ids": self.user_ids, "offsets": self.offsets, **self.event_arrays()}
        return arrays | {f"extra_label_{index}": values for index, values in enumerate(self.extra_labels.values())}

    @classmethod
    def load(cls, directory: str | os.PathLike, *, mmap: bool = True) -> InteractionLog:
        """Reads a saved log; with `mmap` the event arrays stay on disk and are read as they are used.

        Raises:
            FileNotFoundError: `directory` holds no `log.json`, or one of the files that it lists is missing.
            ValueError: a file is damaged, or does not have the size that `log.json` states.
        """
        directory = Path(directory)
        header_file = directory / LOG_FILE
        if not header_file.is_file():
            raise FileNotFoundError(
                f"{directory}: no {LOG_FILE} in this folder; is it a log written by `lmctr data prepare`?"
            )
        try:
            header = json.loads(header_file.read_text(encoding="utf-8"))
            version = header["format_version"]
            missing = sorted(_HEADER_KEYS - set(header))
            if version == FORMAT_VERSION and missing:
                raise ValueError(f"no {', '.join(missing)}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{header_file}: damaged or not a log header ({error!r}); prepare the log again."
            ) from None
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{header_file}: format version {version!r}, this release reads {FORMAT_VERSION}; prepare the log again."
            )
        arrays = {
            name: _read_array(directory / f"{name}.npy", mmap and name not in ("user_ids", "offsets"))
            for name in header["arrays"]
        }
        log = cls(
            catalogue=_read_file(directory / "catalogue.parquet", _read_table),
            users=_read_file(directory / "users.parquet", _read_table) if header["has_users"] else None,
            **{
                name: _read_file(directory / f"{name}.parquet", _read_table)
                for name in ("context", "other_users")
                if header.get(f"has_{name}")
            },
            extra_labels={name: arrays.pop(f"extra_label_{i}") for i, name in enumerate(header["extra_labels"])},
            feedback_names=tuple(header["feedback_names"]),
            scenario_names=tuple(header["scenario_names"]),
            info=DatasetInfo.from_dict(header["info"]),
            **arrays,
        )
        for name in ("num_users", "num_items", "num_events"):
            if getattr(log, name) != header[name]:
                raise ValueError(
                    f"{directory}: {LOG_FILE} states {name} = {header[name]}, the files have {getattr(log, name)}; "
                    "prepare the log again."
                )
        if mmap:
            object.__setattr__(log, "_folder", directory.resolve())
        return log

    def __reduce__(self) -> tuple:
        # A memory-mapped log travels to worker processes as its folder, not as a copy of its arrays.
        folder = self.__dict__.get("_folder")
        if folder is not None:
            return InteractionLog.load, (folder,)
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return functools.partial(InteractionLog, **values), ()


def _check_context(context: pa.Table, where: str) -> None:
    """Raises for columns of objects, or of lists of lists."""
    for name, column in zip(context.column_names, context.columns):
        kind = column.type.value_type if is_list(column.type) else column.type
        if pa.types.is_nested(kind):
            raise ValueError(
                f"{where}: context: the column {name!r} holds {column.type}; accepted: one value for each event, or a list of such; give the "
                "entries of objects columns of their own."
            )


def check_keys(table: pa.Table, key: str, what: str) -> None:
    """Raises unless `table` has exactly one column `key`, without nulls or duplicates, and distinct column names."""
    check_columns(table.column_names, [key], what)
    codes, ids = columns.encode_ids(table[key], key, what)
    if len(ids) < len(codes):
        columns.refuse_repeated(codes, table[key], key, what)


def align_users(users: pa.Table, user_ids: pa.Array) -> pa.Table:
    """The rows of `users` in the order of `user_ids`, nulls for users that it lacks."""
    check_keys(users, "user_id", "users")
    encoded, known = columns.encode_ids(users["user_id"], "user_id", "users")
    row_of_code = np.argsort(encoded)  # each id stands on one row
    rows = pc.take(pa.array(row_of_code), columns.places_among(user_ids, known))
    others = users.take(rows).drop_columns(["user_id"])  # with the ids, for a table of no columns has no rows
    return pa.table({"user_id": user_ids, **dict(zip(others.column_names, others.columns))})


def _others(users: pa.Table, user_ids: pa.Array) -> pa.Table:
    """What `users` says of those who are none of `user_ids`, in the columns and types of [`align_users`]; beside whole numbers a text is nobody's id."""
    _, known = columns.encode_ids(users["user_id"], "user_id", "users")
    others = known.filter(pc.is_null(columns.places_among(known, user_ids)))
    if pa.types.is_integer(user_ids.type) and not pa.types.is_integer(others.type):
        others = others.filter(pc.match_substring_regex(others, r"^-?\d{1,18}$"))
    return align_users(users, others.cast(user_ids.type))


def _read_array(path: Path, mmap: bool) -> np.ndarray:
    if mmap:
        try:
            return _read_file(path, np.load, mmap_mode="r", allow_pickle=False)
        except ValueError:  # numpy cannot map a file of zero values
            pass
    return _read_file(path, np.load, allow_pickle=False)


def _read_table(path: Path) -> pa.Table:
    return pq.read_table(for_arrow(path))


def _read_file(path: Path, read: Callable[..., Any], **options: Any) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: this file of the log is missing; prepare the log again.")
    try:
        return read(path, **options)
    except (ValueError, OSError, EOFError) as error:  # pa.ArrowInvalid is a ValueError
        raise ValueError(f"{path}: damaged ({error}); prepare the log again.") from None
