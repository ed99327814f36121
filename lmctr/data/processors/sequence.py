"""Ids of items, behaviours, scenarios and features for the sequence models: fitted on a log, kept beside the weights.

Item ids: 0 is padding, 1 an item that the training part never shows (out of vocabulary), known items follow from 2.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from transformers import BatchFeature
from transformers.utils import cached_file

from lmctr.data.features.settings import FittedExtractor
from lmctr.data.logs.log import InteractionLog
from lmctr.statistics import StatisticsReader
from lmctr.utils.arrow import is_list, is_text
from lmctr.utils.files import for_arrow
from lmctr.utils.parquet import read_parquet
from lmctr.utils.ragged import blocks
from lmctr.utils.rows import (
    check_kind,
    check_list,
    each,
    each_kind,
    graded_value,
    plain_id,
    plain_seconds,
    plain_values,
    whole_seconds,
)
from lmctr.utils.suggest import did_you_mean, first_listed, refuse_unknown

from .feature_values import (
    FIRST_ID,
    OOV,
    as_column,
    as_matrix,
    codes_of,
    feature_codes,
    fitted_values,
    given_values,
    values_of,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ABSENT, _KNOWN = "absent", "in_vocabulary"  # columns of both files, and of the items'
ITEMS_FILE, FEATURES_FILE = "sequence_items.parquet", "sequence_features.parquet"
_EVENT_KEYS = ("item", "behavior", "scenario", "time", "label", "value")
_KIND_KEYS = ("behavior", "scenario", "label")  # what else events of a history say has many values
_NEEDED = {"item": "the id of an item, a text or a whole number,", "time": "a number of seconds since 1970"}
_CANDIDATE_KEYS = ("item", "scenario", "time")
_MANY_NUMBERS = 100
_NO_STATISTICS = "statistics"  # an empty list in all files, of which fingerprints are made


class SequenceProcessor(FittedExtractor):
    """Turns users' events and candidates into the tensors of the sequence models.

    Build one with [`~SequenceProcessor.fit`]. `save_pretrained` writes `preprocessor_config.json` and two parquet files (the
    items, the values of features) beside the weights.

    Args:
        behavior_names: name of each behaviour code; code 0 is an unknown behaviour in logs whose feedback says so.
        scenario_names: name of each scenario code; one name for logs without scenarios.
        tasks: label of each logit: "label", or names of the log's extra labels.
        max_history_length: latest events that a row holds; None keeps the whole lifetime.
        statistics_reader: the statistics of a candidate that the model reads, as a [`~lmctr.statistics.StatisticsReader`] or its dict; numbers of
            one's own are columns of the log's `context`.
        behavior_labels: label (0, 1, or -1 for none) of each behaviour code, where the behaviour says it: what statistics of requests count
            where an event does not state its `label`, and what an event is that states only its `label`.
        item_feature_names, user_feature_names: categorical columns of the catalogue and of the user table.
        list_lengths: by the name of each feature that is a list how many of its values are read, each as an id.
        items: table with the column `item_id` and, for each item feature, an int column of the item's code, of a list of its codes; row i has id i + 2.
        others: the same of items of the catalogue that are out of vocabulary: their features are known all the same.
        features: values of each feature by name (strings); value j has the code j + 2.
        absent: of a processor that was extended, by "items" and feature from how many extensions in a row each value was absent.
        fingerprint: what a saved file states; checked against the content.

    Example:
        ```python
        processor = SequenceProcessor.fit(log, splits.train, max_history_length=200)
        batch = processor(
            histories=[[{"item": 7, "behavior": "like", "scenario": "home", "time": 1_700_000_000}]],
            candidates=[[3, 9]], times=[1_700_000_500], scenarios=["home"],
        )
        model(**batch).logits  # (1, 2)
        ```
    """

    model_input_names = ["history_items", "candidate_items"]  # noqa: RUF012 (transformers' own convention)
    request_kind: ClassVar[str] = "events"
    fitted: ClassVar[tuple[str, ...]] = ("items", "others", "features", "absent", "fingerprint")
    is_fitted = True

    def __init__(
        self,
        behavior_names: Sequence[str] = ("unknown", "negative", "positive"),
        scenario_names: Sequence[str] = ("default",),
        tasks: Sequence[str] = ("label",),
        max_history_length: int | None = None,
        statistics_reader: StatisticsReader | Mapping[str, Any] | None = None,
        behavior_labels: Sequence[int] | None = None,
        item_feature_names: Sequence[str] = (),
        user_feature_names: Sequence[str] = (),
        list_lengths: Mapping[str, int] | None = None,
        items: pa.Table | None = None,
        features: Mapping[str, Sequence[str]] | None = None,
        absent: Mapping[str, Sequence[int]] | None = None,
        others: pa.Table | None = None,
        fingerprint: str | None = None,
        **kwargs: Any,
    ):
        if names := kwargs.pop(_NO_STATISTICS, None):
            raise ValueError(
                f"statistics: got {list(names)!s:.200}; a statistics_reader names them, and reads numbers of one's own from a log's context."
            )
        super().__init__(**kwargs)
        self.behavior_names, self.scenario_names = tuple(behavior_names), tuple(scenario_names)
        self.tasks = tuple(tasks)
        if isinstance(statistics_reader, Mapping):
            statistics_reader = StatisticsReader.from_dict(statistics_reader)
        self.statistics_reader = statistics_reader
        self.behavior_labels = None if behavior_labels is None else tuple(map(int, behavior_labels))
        self.item_feature_names, self.user_feature_names = tuple(item_feature_names), tuple(user_feature_names)
        self.list_lengths = {name: int(length) for name, length in (list_lengths or {}).items()}
        self.max_history_length = max_history_length
        self.items = pa.table({"item_id": pa.array([], pa.int64())}) if items is None else items
        self.others = self.items.slice(0, 0) if others is None else others
        self.features = {name: tuple(values) for name, values in (features or {}).items()}
        self.absent = {name: tuple(map(int, values)) for name, values in (absent or {}).items()}
        for name in ("behavior_names", "scenario_names", "tasks"):
            values = getattr(self, name)
            if (
                not values
                or len({*map(repr, values)}) < len(values)
                or not all(isinstance(one, str) for one in values)
            ):
                raise ValueError(f"{name}: got {list(values)!s:.200}, accepted: at least one name, all different.")
        for name in (*self.item_feature_names, *self.user_feature_names):
            if name not in self.features:
                raise ValueError(f"features: no values for the feature {name!r}; there are {sorted(self.features)}.")
        for name, length in self.list_lengths.items():
            if name not in self.features or length < 1:
                raise ValueError(
                    f"list_lengths: got {name!r}: {length}, accepted: features, and at least 1 value of each."
                )
        labels = self.behavior_labels
        if labels is not None and (len(labels) != len(self.behavior_names) or not set(labels) <= {-1, 0, 1}):
            raise ValueError(
                f"behavior_labels: got {list(labels)}, accepted: 0, 1 or -1 for each of {len(self.behavior_names)} behaviours, or None."
            )
        if max_history_length is not None and max_history_length < 1:
            raise ValueError(f"max_history_length: got {max_history_length}, accepted: at least 1, or None.")
        if fingerprint is not None and fingerprint != self.fingerprint:
            raise ValueError(
                f"fingerprint: the settings and vocabularies have {self.fingerprint}, the file states {fingerprint}: one of the "
                f"processor's files was changed or comes from another model. Save the processor again."
            )

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics of a candidate, in order."""
        return () if self.statistics_reader is None else self.statistics_reader.names

    @property
    def statistics_prior(self) -> float | None:
        """Positive rate that rates among them are smoothed towards, wherever the model is used; None without statistics."""
        return None if self.statistics_reader is None else self.statistics_reader.prior

    # ---- fitting ----

    @classmethod
    def fit(
        cls,
        log: InteractionLog,
        train_events: np.ndarray | None = None,
        *,
        tasks: Sequence[str] = ("label",),
        max_history_length: int | None = None,
        min_count: int = 1,
        item_features: Sequence[str] = (),
        user_features: Sequence[str] = (),
        list_values: int | None = None,
        statistics_reader: StatisticsReader | None = None,
        behavior_labels: Sequence[int] | None = None,
    ) -> SequenceProcessor:
        """Vocabularies from the training part of a log: its samples and the events in their histories.

        Args:
            log: the log.
            train_events: positions of the training samples; None takes all samples.
            min_count: items seen less often in the training part are out of vocabulary.
            item_features: columns of the catalogue. user_features: columns of the log's user table.
            list_values: how many values of a list among these are read at most, the first that stand at two or more items (users) of training; None: a list
                is taken as one value, its entries joined by "|".
            tasks, max_history_length, statistics_reader, behavior_labels: see the class.

        Raises:
            ValueError: an unknown task or column, `min_count` or `list_values` below 1, no training sample.
        """
        check_kind(log, InteractionLog, "log")
        events = log.sample_events() if train_events is None else log.positions(train_events)
        if not len(events):
            raise ValueError("train_events: there are none; the vocabulary comes from the training part.")
        if min_count < 1:
            raise ValueError(f"min_count: got {min_count}, accepted: a whole number from 1.")
        if list_values is not None and list_values < 1:
            raise ValueError(f"list_values: got {list_values}, accepted: a whole number from 1, or None.")
        refuse_unknown(tasks, ["label", *log.extra_labels], "tasks")
        counts = item_counts(log, events)
        rows = np.flatnonzero(counts >= min_count)
        table: dict[str, Any] = {"item_id": log.catalogue["item_id"].combine_chunks()}
        features: dict[str, list[str]] = {}
        lengths: dict[str, int] = {}

        def learn(name: str, side: str, source: pa.Table, where: str, trained: np.ndarray) -> pa.Array:
            as_lists = list_values is not None and name in source.column_names and is_list(source[name].type)
            values = values_of(source, name, f"{side}_features", where, as_lists)
            features[name], length = fitted_values(values.filter(pa.array(trained)), name, list_values)
            if length is not None:
                lengths[name] = length
            return values

        for name in item_features:
            values = learn(name, "item", log.catalogue, "the catalogue", counts >= min_count)
            kind = log.catalogue[name].type
            if (pa.types.is_floating(kind) or pa.types.is_decimal(kind)) and len(features[name]) > _MANY_NUMBERS:
                logger.warning(
                    "item_features: %r has %d different numbers, each of which gets an id of its own and says nothing of the next; bin it first",
                    name,
                    len(features[name]),
                )
            table[name] = as_column(feature_codes(values, features[name], lengths.get(name)))
        catalogue = pa.table(table)
        rest = np.flatnonzero(counts < min_count) if item_features else rows[:0]
        trained = np.zeros(log.num_users, dtype=bool)
        trained[log.user[events]] = True
        for name in user_features:
            if log.users is None:
                raise ValueError(f"user_features: got {name!r}, but the log has no user table.")
            if name in features:
                raise ValueError(f"user_features: {name!r} is an item feature already; rename one of the columns.")
            learn(name, "user", log.users, "the user table", trained)
        return cls(
            behavior_names=log.feedback_names,
            scenario_names=log.scenario_names or ("default",),
            tasks=tasks,
            max_history_length=max_history_length,
            statistics_reader=statistics_reader,
            behavior_labels=behavior_labels,
            item_feature_names=item_features,
            user_feature_names=user_features,
            list_lengths=lengths,
            items=catalogue.take(pa.array(rows)).combine_chunks(),
            others=catalogue.take(pa.array(rest)),
            features=features,
        )

    def item_codes(self, item_ids: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Ids (int64) of original item ids; items outside the vocabulary are 1."""
        known = self.items["item_id"].combine_chunks()
        if pa.types.is_integer(known.type) != pa.types.is_integer(item_ids.type):
            known, item_ids = known.cast(pa.string()), item_ids.cast(pa.string())
        return codes_of(item_ids.cast(known.type), known)

    def feature_widths(self, names: Sequence[str]) -> list[int]:
        """How many ids each of these features has: 1, or the most values of a list."""
        return [self.list_lengths.get(name, 1) for name in names]

    def item_feature_codes(self, catalogue: pa.Table) -> np.ndarray:
        """(I, Fi) int64 codes of the catalogue's item features, those of a list side by side."""
        return self._feature_codes(catalogue, self.item_feature_names, "item_features", "the catalogue")

    def user_feature_codes(self, users: pa.Table | None, num_users: int) -> np.ndarray:
        """(U, Fu) int64 codes of the user table's features, those of a list side by side."""
        if not self.user_feature_names:
            return np.zeros((num_users, 0), np.int64)
        if users is None:
            raise ValueError(
                f"users: the processor takes the user features {list(self.user_feature_names)}; got none."
            )
        return self._feature_codes(users, self.user_feature_names, "user_features", "the user table")

    def _feature_codes(self, table: pa.Table, names: Sequence[str], argument: str, where: str) -> np.ndarray:
        parts = [
            self.codes_of_feature(values_of(table, name, argument, where, name in self.list_lengths), name)
            for name in names
        ]
        return np.concatenate([np.zeros((table.num_rows, 0), np.int64), *parts], 1)

    def codes_of_feature(self, values: pa.Array, name: str) -> np.ndarray:
        """(N, L) int64 codes of a feature's values, which are lists where the feature is one."""
        return feature_codes(values, self.features[name], self.list_lengths.get(name))

    @cached_property
    def known_features(self) -> np.ndarray:
        """(V + O, Fi) int64 codes of the features by item id, then those of the `others`; of items that are neither out-of-vocabulary ones."""
        count, names = self.item_vocab_size + self.others.num_rows, self.item_feature_names
        table = np.zeros((count, sum(self.feature_widths(names))), dtype=np.int64)
        start = 0
        for name, width in zip(names, self.feature_widths(names)):
            table[OOV, start] = OOV
            codes = [as_matrix(own[name]) for own in (self.items, self.others)]
            table[FIRST_ID:, start : start + width] = np.concatenate(codes)
            start += width
        return table

    @property
    def item_vocab_size(self) -> int:
        """Item ids, padding and out-of-vocabulary included."""
        return self.items.num_rows + FIRST_ID

    def model_config_values(self) -> dict[str, Any]:
        """The keys of [`SequenceCTRConfig`] that follow from the processor."""
        return {
            "item_vocab_size": self.item_vocab_size,
            "num_behaviors": len(self.behavior_names),
            "num_scenarios": len(self.scenario_names),
            "behavior_names": list(self.behavior_names),
            "scenario_names": list(self.scenario_names),
            "item_feature_vocab_sizes": [len(self.features[name]) + FIRST_ID for name in self.item_feature_names],
            "item_feature_names": list(self.item_feature_names),
            "item_feature_widths": self.feature_widths(self.item_feature_names),
            "user_feature_vocab_sizes": [len(self.features[name]) + FIRST_ID for name in self.user_feature_names],
            "user_feature_names": list(self.user_feature_names),
            "user_feature_widths": self.feature_widths(self.user_feature_names),
            "num_statistics": len(self.statistics),
            "max_history_length": self.max_history_length,
            "task_names": list(self.tasks),
            "processor_fingerprint": self.fingerprint,
        }

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of settings and vocabularies; models keep it as `processor_fingerprint`."""
        digest = hashlib.sha256(json.dumps(self._settings(), sort_keys=True).encode())
        for name in self.items.column_names:
            digest.update(json.dumps([name, self.items[name].to_pylist()]).encode())
            if self.others.num_rows:
                digest.update(json.dumps(["others", name, self.others[name].to_pylist()]).encode())
        digest.update(json.dumps(self.features, sort_keys=True).encode())
        if self.absent:
            digest.update(json.dumps(self.absent, sort_keys=True).encode())
        return digest.hexdigest()[:16]

    # ---- serving ----

    def __call__(
        self,
        histories: Sequence[Sequence[Mapping[str, Any]]],
        candidates: Sequence[Sequence[Any]],
        times: Sequence[int] | None = None,
        scenarios: Sequence[str | int] | None = None,
        users: Sequence[Mapping[str, Any]] | None = None,
        statistics: Sequence[Sequence[Sequence[float]]] | None = None,
        return_tensors: str | None = "pt",
    ) -> BatchFeature:
        """Rows of raw events and candidates.

        Args:
            histories: per row the user's events, oldest first: dicts with `item` (original id), `time` (unix seconds), and
                `behavior` and `scenario` (names or codes). May be empty. `label` (0, 1 or None) says the behaviour where just one
                of `behavior_labels` is that, and is counted by `statistics_events` as `value` (graded feedback) is. Without
                either the behaviour is the unknown one. The scenario is by default that of code 0.
            candidates: per row original item ids, or dicts with `item` and optionally `time` and `scenario`. Events and candidates may
                hold item features by name: they count for items of which the processor knows nothing.
            times: time of each row's candidates (unix seconds). Events at or after a candidate's time are invisible to it.
            scenarios: scenario of each row's candidates, name or code; default code 0.
            users: per row a dict of the user features.
            statistics: (B, C, Fs) floats as they are in the data, for a processor with statistics.
            return_tensors: "pt", "np" or None (numpy).

        Returns:
            The tensors of the sequence models with (B, C) candidates: see [`SequenceView.batch`]. Rows with fewer candidates
            are padded with item 0.

        Raises:
            ValueError: names the row and the place: unknown keys, behaviours or scenarios, times that fall, no time for a
                candidate, no candidates.
        """
        if return_tensors not in ("pt", "np", None):
            raise ValueError(f'return_tensors: got {return_tensors!r}, accepted: "pt", "np", None (numpy).')
        check_list(histories, "histories", "histories, one per row")
        num_rows = len(histories)
        for name, given in (("candidates", candidates), ("times", times), ("scenarios", scenarios), ("users", users)):
            if given is None and name != "candidates":
                continue
            check_list(given, name, f"{name}, one entry per row")
            if len(given) != num_rows:
                raise ValueError(f"{name}: {len(given)} rows for {num_rows} histories; give one entry per history.")
        if self.user_feature_names and users is None:
            raise ValueError(
                f"users: the processor takes the user features {list(self.user_feature_names)}; give them."
            )
        read = [self._row(row, histories[row], candidates[row], times, scenarios) for row in range(num_rows)]
        if not read:
            raise ValueError("histories: there are no rows.")
        rows, told = zip(*read)
        width = max(max(len(row["history_items"]) for row in rows), 1)
        count = max(len(row["candidate_items"]) for row in rows)
        batch = {}
        for name in rows[0]:
            size = width if name.startswith("history") else count
            batch[name] = np.zeros((num_rows, size), dtype=np.int64)
            for padded, row in zip(batch[name], rows):
                padded[: len(row[name])] = row[name]
        for side in ("history", "candidate"):
            places = batch[f"{side}_items"]
            if self.item_feature_names:
                batch[f"{side}_features"] = self.known_features[places]
                for row, own in enumerate(told):
                    for place, codes in own[side].items():
                        batch[f"{side}_features"][row, place] = codes
            batch[f"{side}_items"] = self._ids(places)
        if self.user_feature_names:
            columns = {
                name: given_values(
                    [_entry(user, name, row) for row, user in enumerate(users)], name in self.list_lengths
                )
                for name in self.user_feature_names
            }
            batch["user_features"] = self.user_feature_codes(pa.table(columns), num_rows)
        if self.statistics:
            values = np.asarray([] if statistics is None else statistics, dtype=np.float32)
            if values.shape != (num_rows, count, len(self.statistics)):
                raise ValueError(
                    f"statistics: shape {values.shape}, expected {(num_rows, count, len(self.statistics))}: rows, candidates, and "
                    f"the columns {list(self.statistics)}."
                )
            batch["statistics"] = self.statistics_reader.scaled(values)
        elif statistics is not None:
            raise ValueError("statistics: the processor was fitted without any.")
        return BatchFeature(batch, tensor_type=return_tensors)

    @staticmethod
    def as_target(item: Any) -> dict[str, Any]:
        """A candidate that is given by its item, as a dict."""
        return {"item": item}

    def statistics_events(
        self, behaviors: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Any], list[int], list[int], list[float]]:
        """What statistics count of a user's events: items' ids, times in seconds, labels (0, 1, -1 for none), graded values.

        Raises:
            ValueError: an event without `item` or `time`; one without `label` where its behaviour does not say it; a `value` that is no
                number.
        """
        plain = self._plain(behaviors, self._statistics_event)
        if plain is not None and (values := plain_values(behaviors)) is not None:
            told, items, times = plain
            return items, times, [event[2] for event in told], values
        events = each(behaviors, "histories[0][{}]".format, self._statistics_event)
        return tuple(map(list, zip(*events))) if events else ([], [], [], [])

    def _plain(
        self, events: Sequence[Any], read: Callable[[Any, str], T]
    ) -> tuple[list[T], list[Any], list[int]] | None:
        """What one of the ways to `read` an event says of the kind of each, and their items and times, where these are as most are: what they say
        themselves, in the catalogue's type and in whole seconds. Else None."""
        told = each_kind(events, _KIND_KEYS, self._event_keys, read)
        if told is None or (times := plain_seconds(events)) is None:
            return None
        items = [event.get("item") for event in events]
        return (told, items, times) if {*map(type, items)} <= {str if self._ids_are_texts else int} else None

    def _statistics_event(self, entry: Mapping[str, Any], where: str) -> tuple[Any, int, int, float]:
        _check_keys(entry, self._event_keys, ("item", "time"), where)
        label = entry.get("label")
        if "label" not in entry:
            if self.behavior_labels is None:
                raise ValueError(
                    f"{where} has no 'label', which its behavior does not say here; give 0, 1 or null for none"
                )
            label = self.behavior_labels[self.behavior_of(entry, where)]
        elif label not in (None, 0, 1):
            raise ValueError(f"{where}: label {label!r} is not accepted; use 0, 1 or null for none")
        time = whole_seconds(entry["time"], f"{where}: time")
        return entry["item"], time, -1 if label is None else int(label), graded_value(entry, where)

    @cached_property
    def _event_keys(self) -> tuple[str, ...]:
        return (*_EVENT_KEYS, *self.item_feature_names)

    @cached_property
    def _ids_are_texts(self) -> bool:
        return is_text(self.items["item_id"].type)

    def of_requests(
        self,
        histories: Sequence[Sequence[Mapping[str, Any]]],
        candidates: Sequence[Sequence[Any]],
        times: Sequence[int],
    ) -> BatchFeature:
        """`__call__` on requests whose candidates hold what belongs to them: dicts with `item` and optionally `time` and `scenario`,
        `user` (one for all candidates of a row) and `statistics` (a list of floats) where the processor reads such.

        Raises:
            ValueError: as `__call__`; a candidate without `user` or `statistics`, or with one that the processor does not read.
        """
        users, names = self.user_feature_names, self.statistics
        width = max(map(len, candidates), default=0)
        options: dict[str, Any] = {"users": [] if users else None, "statistics": [] if names else None}
        for row, own in enumerate(candidates):
            for place, entry in enumerate(own):
                where = f"candidates: row {row}: candidate {place}"
                for key, read in (("user", users), ("statistics", names)):
                    value = None if read else entry.get(key)
                    if value is not None and (not hasattr(value, "__len__") or len(value)):
                        raise ValueError(f"{where} has {key!r}, of which this model reads nothing; leave {key!r} out")
                if users and not isinstance(entry.get("user"), Mapping):
                    raise ValueError(f"{where} needs 'user', an object of {', '.join(users)}")
                if users and entry["user"] != own[0]["user"]:
                    raise ValueError(
                        f"{where} has another 'user' than candidate 0; the candidates of a request are of one user"
                    )
                if names and np.shape(entry.get("statistics")) != (len(names),):
                    raise ValueError(
                        f"{where} needs 'statistics', a list of {', '.join(names)}; or predict with the run's table of items"
                    )
            if users:
                options["users"].append(own[0]["user"])
            if names:
                missing = [[0.0] * len(names)] * (width - len(own))
                options["statistics"].append([entry["statistics"] for entry in own] + missing)
        plain = [
            [{key: value for key, value in entry.items() if key not in ("user", "statistics")} for entry in own]
            for own in candidates
        ]
        return self(histories, plain, times, **options)

    def _row(
        self,
        row: int,
        history: Sequence[Mapping[str, Any]],
        candidates: Sequence[Any],
        times: Sequence[int] | None,
        scenarios: Sequence[str | int] | None,
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[int, np.ndarray]]]:
        """Arrays of a row, and by side and place the codes of the features of items that only the request knows."""
        check_list(history, f"histories: row {row}", "events, oldest first")
        check_list(candidates, f"candidates: row {row}", "items")
        if not len(candidates):
            raise ValueError(f"candidates: row {row} has none.")
        chosen = []
        for place, candidate in enumerate(candidates):
            where = f"candidates: row {row}, candidate {place}"
            entry = dict(candidate) if isinstance(candidate, Mapping) else {"item": candidate}
            _check_keys(entry, (*_CANDIDATE_KEYS, *self.item_feature_names), ("item",), where)
            if entry.get("time") is None:
                if times is None:
                    raise ValueError(f"{where}: no time; give `times`, one per row, or `time` in the candidate.")
                entry["time"] = times[row]
            if entry.get("scenario") is None:
                entry["scenario"] = None if scenarios is None else scenarios[row]
            chosen.append(self._parsed(entry, where, 0))
        plain = self._plain(history, self._event)
        if plain is None:
            events = each(history, f"histories: row {row}, event {{}}".format, self._event)
            items, times = [event[0] for event in events], [event[3] for event in events]
        else:
            events, items, times = plain
        moments, seconds = np.array([entry[3] for entry in chosen], dtype=np.int64), np.array(times, dtype=np.int64)
        falls = np.flatnonzero(np.diff(seconds) < 0)
        if len(falls):
            place = int(falls[0]) + 1
            raise ValueError(
                f"histories: row {row}, event {place}: time {seconds[place]} is before the event in front of it "
                f"({seconds[place - 1]}); give events oldest first."
            )
        ends = np.searchsorted(seconds, moments, side="left")
        end = int(ends.max())
        start = 0 if self.max_history_length is None else max(0, end - self.max_history_length)
        events = events[start:end]
        arrays = {
            "history_items": self._places(items[start:end]),
            "history_behaviors": np.array([event[1] for event in events], dtype=np.int64),
            "history_scenarios": np.array([event[2] for event in events], dtype=np.int64),
            "history_times": seconds[start:end],
            "candidate_items": self._places([entry[0] for entry in chosen]),
            "candidate_scenarios": np.array([entry[2] for entry in chosen], dtype=np.int64),
            "candidate_times": moments,
            "dependence": np.maximum(ends - start, 0),
        }
        sides = {
            "history": (arrays["history_items"], history[start:end]),
            "candidate": (arrays["candidate_items"], candidates),
        }
        return arrays, {side: self._told_features(*own) for side, own in sides.items()}

    def _told_features(self, places: np.ndarray, entries: Sequence[Any]) -> dict[int, np.ndarray]:
        """Codes of the features of items that are not known, by place, where their entries say some."""
        names, found = self.item_feature_names, {}
        for place in np.flatnonzero(places == OOV) if names else ():
            entry = entries[place]
            if isinstance(entry, Mapping) and any(entry.get(name) is not None for name in names):
                told = (
                    self.codes_of_feature(given_values([entry.get(name)], name in self.list_lengths), name)
                    for name in names
                )
                found[int(place)] = np.concatenate([own[0] for own in told])
        return found

    def behavior_of(self, event: Mapping[str, Any], where: str) -> int:
        """Code of an event's behaviour; `where` names the event in errors."""
        if event.get("behavior") is not None:
            return _code(event["behavior"], self.behavior_names, "behavior", where)
        label = event.get("label")
        codes = [] if label is None else [code for code, own in enumerate(self.behavior_labels or ()) if own == label]
        if len(codes) == 1:
            return codes[0]
        if self.knows_no_behavior or len(self.behavior_names) == 1:
            return 0
        raise ValueError(f"{where} has no 'behavior'; give one of {', '.join(self.behavior_names)}.")

    def scenario_of(self, entry: Mapping[str, Any], where: str) -> str:
        """Name of the scenario of an event or a candidate, the first one where it is not said; `where` names the entry in errors."""
        return self.scenario_names[self._scenario_code(entry, where)]

    def _scenario_code(self, entry: Mapping[str, Any], where: str) -> int:
        given = entry.get("scenario")
        return 0 if given is None else _code(given, self.scenario_names, "scenario", where)

    @property
    def knows_no_behavior(self) -> bool:
        """Whether code 0 is a behaviour that is not known."""
        return self.behavior_names[0] == "unknown"

    def _event(self, event: Mapping[str, Any], where: str) -> tuple[Any, int, int, int]:
        _check_keys(event, self._event_keys, ("item", "time"), where)
        return self._parsed(event, where, self.behavior_of(event, where))

    def _parsed(self, entry: Mapping[str, Any], where: str, behavior: int) -> tuple[Any, int, int, int]:
        """Item, codes of behaviour and scenario, and time of an event or a candidate."""
        scenario = self._scenario_code(entry, where)
        item = plain_id(entry["item"], self._ids_are_texts, f"{where}: item")
        return item, behavior, scenario, whole_seconds(entry["time"], f"{where}: time")

    @cached_property
    def _place_of(self) -> dict[Any, int]:
        both = chain(self.items["item_id"].to_pylist(), self.others["item_id"].to_pylist())
        return {item: place for place, item in enumerate(both, FIRST_ID)}

    def _places(self, items: Sequence[Any]) -> np.ndarray:
        """Rows of the known features: ids of items, and behind them the `others`."""
        as_text, find, kind = self._ids_are_texts, self._place_of.get, str if self._ids_are_texts else int
        found = (find(item if type(item) is kind else plain_id(item, as_text, "items"), OOV) for item in items)
        return np.fromiter(found, dtype=np.int64, count=len(items))

    def _ids(self, places: np.ndarray) -> np.ndarray:
        """Those that a model knows: the `others` are out of vocabulary."""
        return np.where(places < self.item_vocab_size, places, OOV)

    def unknown_items(self, items: Sequence[Any]) -> list[Any]:
        """Those of these original item ids that are out of vocabulary."""
        return [item for item, found in zip(items, self._ids(self._places(items))) if found == OOV]

    # ---- files ----

    def _settings(self) -> dict[str, Any]:
        # What does not apply is left out, so that a processor has the fingerprint that it always had.
        left_out = ("statistics_reader", "behavior_labels", "list_lengths")
        values = {name: getattr(self, name) for name in self.settings if name not in left_out} | {_NO_STATISTICS: []}
        if self.statistics_reader is not None:
            values["statistics_reader"] = self.statistics_reader.to_dict()
        if self.behavior_labels is not None:
            values["behavior_labels"] = self.behavior_labels
        if self.list_lengths:
            values["list_lengths"] = self.list_lengths
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"fingerprint": self.fingerprint}

    def _write_side(self, directory: str | os.PathLike) -> list[str]:
        names = [name for name, values in self.features.items() for _ in values]
        values = [value for values in self.features.values() for value in values]
        features = pa.table({"feature": pa.array(names, pa.string()), "value": pa.array(values, pa.string())})
        items, others = self.items, self.others
        if self.absent:
            items = items.append_column(_ABSENT, pa.array(self.absent["items"], pa.int64()))
            others = others.append_column(_ABSENT, pa.array([0] * others.num_rows, pa.int64()))
            absent = [count for name in self.features for count in self.absent[name]]
            features = features.append_column(_ABSENT, pa.array(absent, pa.int64()))
        if others.num_rows:
            is_known = np.arange(items.num_rows + others.num_rows) < items.num_rows
            items = pa.concat_tables([items, others]).append_column(_KNOWN, pa.array(is_known))
        paths = [os.path.join(directory, name) for name in (ITEMS_FILE, FEATURES_FILE)]
        for table, path in zip((items, features), paths):
            pq.write_table(table, for_arrow(path))
        return paths

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs: Any) -> SequenceProcessor:
        """Reads what [`~SequenceProcessor.save_pretrained`] wrote, from a folder or the Hub.

        Raises:
            ValueError: a side file is missing, or does not belong to the settings (see `fingerprint`); a setting other than the saved ones.
        """
        hub, place = cls._hub_options(kwargs), str(pretrained_model_name_or_path)
        if told := [name for name in cls.settings if name in kwargs]:
            raise ValueError(
                f"{told[0]}: models know a {cls.__name__} by the settings that it was saved with; leave it out, or fit another one"
            )
        values, _ = cls.get_feature_extractor_dict(pretrained_model_name_or_path, **kwargs)
        tables = {}
        for name in (ITEMS_FILE, FEATURES_FILE):
            path = cached_file(place, name, _raise_exceptions_for_missing_entries=False, **hub)
            if path is None:
                raise ValueError(f"{place}: no {name}; the processor was not saved whole.")
            tables[name] = read_parquet(path)
        names = (*values.get("item_feature_names", ()), *values.get("user_feature_names", ()))
        features: dict[str, list[str]] = {name: [] for name in names}
        for name, value in zip(*(tables[FEATURES_FILE][key].to_pylist() for key in ("feature", "value"))):
            features.setdefault(name, []).append(value)
        items, absent, others = tables[ITEMS_FILE], {}, None
        if _KNOWN in items.column_names:
            is_known, items = items[_KNOWN], items.drop_columns([_KNOWN])
            items, others = items.filter(is_known), items.filter(pc.invert(is_known))
            others = others.drop_columns([_ABSENT]) if _ABSENT in others.column_names else others
        if _ABSENT in items.column_names:
            absent = {"items": items[_ABSENT].to_pylist(), **{name: [] for name in names}}
            for name, count in zip(*(tables[FEATURES_FILE][key].to_pylist() for key in ("feature", _ABSENT))):
                absent[name].append(count)
            items = items.drop_columns([_ABSENT])
        return cls(**values, items=items, others=others, features=features, absent=absent)


def item_counts(log: InteractionLog, events: np.ndarray) -> np.ndarray:
    """(I,) how often the training part shows each item: in its samples and the events of their histories."""
    seen, counts = log.seen_events(events), np.zeros(log.num_items, dtype=np.int64)
    for block in blocks(log.num_events):
        counts += np.bincount(log.item[block][seen[block]], minlength=log.num_items)
    return counts


def _entry(user: Mapping[str, Any], name: str, row: int) -> Any:
    if name not in user:
        raise ValueError(f"users: row {row} lacks the feature {name!r}; it has {first_listed(sorted(user))}.")
    return user[name]


def _check_keys(entry: Any, known: Sequence[str], needed: Sequence[str], where: str) -> None:
    if type(entry) is not dict and not isinstance(entry, Mapping):
        raise ValueError(f"{where}: expected a dict with {', '.join(known)}, got {type(entry).__name__}.")
    refuse_unknown(entry, known, where)
    for key in needed:
        if entry.get(key) is None:
            found = "it is null (None)" if key in entry else f"it has {first_listed(sorted(entry))}"
            raise ValueError(f"{where}: no {key!r}; {found}, and {_NEEDED[key]} is accepted.")


def _code(value: Any, names: Sequence[str], what: str, where: str) -> int:
    if isinstance(value, str):
        if value in names:
            return names.index(value)
        raise ValueError(f"{where}: unknown {what} {value!r}.{did_you_mean(value, names)} Known: {', '.join(names)}.")
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value < len(names):
        return int(value)
    raise ValueError(f"{where}: unknown {what} {value!r}. Known: {', '.join(names)}, or their codes from 0.")
