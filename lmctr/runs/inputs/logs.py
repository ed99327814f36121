"""What the inputs of an interaction log share: reading and splitting it, the summary of `data.json`, the baselines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.batches.rows import LogBatches
from lmctr.data.features.unknown import check_unknown, shares_of
from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.queries import Queried
from lmctr.data.logs.splits import Splits, split_log
from lmctr.data.logs.table import UNMET_RULES
from lmctr.data.logs.validation import validate_log
from lmctr.data.registry import is_own_log, load_log
from lmctr.data.synthetic.log import best_reader_auc
from lmctr.evaluation.baseline_parts import MAX_FITTED_EVENTS, newest
from lmctr.runs.folder import ITEM_STATISTICS
from lmctr.runs.inputs.base import PARTS, InputKind, RunContext, check_part, checksum
from lmctr.runs.inputs.linear_start import LinearSamples
from lmctr.runs.inputs.log_results import LogResults
from lmctr.statistics import STATISTIC_SETS, ItemStatistics, StatisticsReader, statistic
from lmctr.statistics.table import SHOWN
from lmctr.utils.arrow import decoded, is_list, is_number


class LogInput(InputKind):
    """Samples that are events of an interaction log.

    Attributes:
        splits: the parts of the log, cut down to the recipe's largest numbers of samples, in their order in time.
        whole_train: the whole training part, on which baselines are fitted: a limit on the model's training samples saves the model's
            time; counting and boosted trees need no such limit, and would look worse than they are with it.
    """

    log: InteractionLog
    splits: Splits
    whole_train: np.ndarray
    view: LogBatches
    reads_descriptions: ClassVar[bool] = False

    @classmethod
    def baseline_data_keys(cls, data: dict[str, Any]) -> tuple[str, ...]:
        keys = super().baseline_data_keys(data)
        if data.get("since") is not None:
            keys = (*keys, "since")
        return (*keys, "statistics") if len(baseline_statistics(data)) > 1 else keys

    def load(self, scratch: Path | None = None) -> None:
        self.load_log()
        self._split()

    def _split(self) -> None:
        whole = self.log_parts()
        self.whole_train = whole.train
        limited = {part: self.limited(own, part, self._labels_of) for part, own in whole.items()}
        self.splits = dataclasses.replace(whole, **limited)

    def freeze(self, part: str) -> None:
        self.log, places = frozen_log(self.log, self.log_parts(), part)
        self.splits, self.whole_train = moved(self.splits, places), places[self.whole_train]

    def load_log(self) -> InteractionLog:
        """The log alone, to score queries with."""
        options = dict(self.data["options"])
        if self.data["path"] is not None:
            options["path"] = self.data["path"]
        self.log = load_log(self.data["name"], **options)
        return self.log

    def log_parts(self) -> Splits:
        """The whole parts of the log of [`load_log`]."""
        cut = {key: self.data[key] for key in ("fractions", "seed", "since")}
        return split_log(self.log, rule=self.data["split"], **cut)

    @property
    def reads_other_users(self) -> bool:
        """Whether what a sample's user did is not all of the log that the model reads of."""
        return bool(self.data["statistics"])

    def open_queries(self, processor: Any, queried: Queried, run: RunContext) -> np.ndarray:
        """Makes the queries of the log of [`load_log`] ready for [`query_batch`]; gives their numbers in the order that suits batches."""
        none = queried.queries[:0]
        self.log, self.splits = queried.log, Splits(none, none, queried.queries, "given")
        self.open(processor, ("test",), run)
        return np.argsort(-self.view.lengths(queried.queries), kind="stable")

    def query_batch(self, places: np.ndarray) -> dict[str, Any]:
        """A batch of the model of some queries by their numbers; -1 for none."""
        batch = self.view.batch(np.where(places < 0, -1, self.splits.test[places]))
        return {key: values for key, values in batch.items() if key not in ("labels", "sample_weight")}

    def unknown_in_queries(self) -> tuple[dict[str, dict[str, int]], dict[str, list[str]]]:
        """Counts of values, and of the unknown among them, and examples of these, by what they are."""
        return self.view.unknown(self.splits.test)

    def unknown_warnings(self, part: str, kept: dict[str, Any] | None = None, allowed: bool = True) -> list[str]:
        found, where = self.view.unknown(self.splits[part]), f"the {part} part of {self.log.info.name}"
        return check_unknown(self.view.processor, *found, where, allowed, kept)

    def check(self) -> list[str]:
        lines = validate_log(self.log, self.splits, allow=self.data["allow_leaks"]).lines()
        self._check_labels(PARTS)
        return lines

    def _check_labels(self, parts: tuple[str, ...]) -> None:
        unmet = self.log.info.extra.get(UNMET_RULES, {})
        for part in parts:
            events = self.splits[part]
            labels = dict(zip(self.tasks, self._labels_of(events).T))
            weight = None if self.log.weight is None else self.log.weight[events]
            check_part(part, labels, weight, lambda task: unmet.get(task, ""))

    def first_label(self) -> np.ndarray:
        """(E,) labels of the first task, which metrics without a task's name measure."""
        return self.log.label if self.tasks[0] == "label" else self.log.extra_labels[self.tasks[0]]

    def _labels_of(self, events: np.ndarray) -> np.ndarray:
        """(S, T) labels of all tasks."""
        columns = (self.log.label if task == "label" else self.log.extra_labels[task] for task in self.tasks)
        return np.stack([column[events] for column in columns], axis=1)

    def share(self, folder: Path) -> None:
        self.log.save(folder / "log")

    def load_shared(self, folder: Path) -> None:
        self.log = InteractionLog.load(folder / "log")
        self._split()

    def statistics_reader(self, earlier: StatisticsReader | None = None) -> StatisticsReader | None:
        """The reader of the recipe's statistics, fitted on the training part, or an earlier run's, widened by it; None without any."""
        names = self.data["statistics"]
        if not names:
            return None
        events = self.splits.train if self.data["negative_share"] is None else self.whole_train
        if earlier is not None:
            return earlier.widened(self.log, events, label=self.first_label())
        return StatisticsReader.fit(self.log, events, names, label=self.first_label())

    def feedback_labels(self) -> list[int] | None:
        """Label of each feedback code, where the code says it: all events of a code that may stand in histories have one label."""
        codes, labels = self.log.feedback[self.log.seen], self.first_label()[self.log.seen]
        found = [np.unique(labels[codes == code]) for code in range(len(self.log.feedback_names))]
        return None if any(len(own) > 1 for own in found) else [int(own[0]) if len(own) else -1 for own in found]

    def save_beside(self, folder: Path, processor: Any) -> None:
        reader = getattr(processor, "statistics_reader", None)
        if reader is not None:
            ItemStatistics.from_log(self.log, reader, label=self.first_label()).save(folder / ITEM_STATISTICS)

    def with_validation(self, folder: Path, is_first: bool) -> LogInput:
        other = type(self)(self.data, self.model_group)
        more = self.with_some_negatives(self.splits.validation, "validation", self._labels_of)
        drawn = dataclasses.replace(self.splits, validation=more)
        other.log, other.splits, other.before = self.log, drawn.with_validation(self.log.time), self.before
        whole = dataclasses.replace(self.splits, train=self.whole_train)
        other.whole_train = whole.with_validation(self.log.time).train
        return other

    def earlier(self, count: int) -> LogInput:
        other = type(self)(self.data, self.model_group)
        whole = self.splits
        if self.data["negative_share"] is not None:  # validation has all its negatives
            whole = dataclasses.replace(whole, train=self.whole_train)
        cut = whole.earlier(count, self.log.time)
        other.log, other.before, other.whole_train = self.log, self.before, cut.train
        train = other.with_some_negatives(cut.train, "train", other._labels_of)
        other.splits = dataclasses.replace(cut, train=train)
        return other

    def linear_samples(self) -> LinearSamples:
        events = self._newest(self.splits.train)
        return self._as_drawn(self._samples(events, self.view.statistics.of(events)))

    def tree_samples(self, model: Any) -> LinearSamples:
        events = self.whole_train
        if len(events) == len(self.splits.train):
            return self.linear_samples()
        events = np.sort(self._newest(events))
        reader = self.view.processor.statistics_reader
        return self._samples(events, reader.of_events(self.log, events, label=self.first_label()))

    def _newest(self, events: np.ndarray) -> np.ndarray:
        """Events that models are fitted on at once, in their order: of more than a million the newest."""
        return events[newest(self.log.time[events], MAX_FITTED_EVENTS)]

    def _samples(self, events: np.ndarray, values: np.ndarray) -> LinearSamples:
        return LinearSamples(values, self.view.labels(events), self.view.sample_weight(events), self.log.time[events])

    def num_samples(self, part: str) -> int:
        return len(self.splits[part])

    @property
    def best_auc(self) -> float | None:
        if self.tasks[0] != "label":
            return None
        found = (
            None if self.behaviors_read is None else best_reader_auc(self.log, self.splits.test, self.behaviors_read)
        )
        return log_best_auc(self.log, self.data.get("statistics")) if found is None else found

    @property
    def behaviors_read(self) -> int | None:
        """How many of a user's last events the model reads; None where it reads, or counts, all of them."""
        if self.data.get("statistics") or self.data.get("order", "recent") != "recent":
            return None
        return self.data.get("num_behaviors") or self.data.get("max_history_length")

    def identify(self, part: str) -> dict[str, Any]:
        return log_columns(self.log, self.splits[part])

    def describe(self, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        """Origin, counts, split and label rates; the kinds add what they make of it, and the fingerprint."""
        log, splits = self.log, self.splits
        parts = {name: events for name, events in splits.items() if len(events)}
        rates = {name: float(np.mean(log.label[events] == 1)) for name, events in parts.items()}
        samples = {name: len(events) for name, events in splits.items()}
        say(
            f"{log.info.name}: {log.num_users:,} users, {log.num_items:,} items, {log.num_events:,} events; samples "
            + ", ".join(f"{name} {count:,}" for name, count in samples.items())
            + f"; {self._positive_words(rates.get('train', float('nan')))}"
        )
        if log.info.notes and is_own_log(self.data["name"], self.data["options"]):
            say(log.info.notes)  # such as how many rows were left out
        checksums = {} if log.weight is None else {"inputs_fingerprint": checksum(log.weight)}
        checksums["described_fingerprint"] = described_fingerprint(log)
        return {
            "info": log.info.to_dict(),
            "feedback_names": list(log.feedback_names),
            "counts": {
                "users": int(log.num_users),
                "items": int(log.num_items),
                "events": int(log.num_events),
                "samples": samples,
            },
            "split": split_facts(log, splits),
            "label_rates": rates,
            "unknown_by_field": shares_of({name: self.view.unknown(events)[0] for name, events in parts.items()}),
            **checksums,
        }

    def data_fingerprint(self) -> str:
        return whole_fingerprint(self.log, self.log_parts(), None if self.tasks[0] == "label" else self.first_label())

    def _statistics_read(self) -> dict[str, Any]:
        """The statistics that the opened model reads, for `data.json`; nothing without any."""
        reader = self.view.processor.statistics_reader
        if reader is None:
            return {}
        return {"statistics": {"names": list(reader.names), "prior": reader.prior, "strength": reader.strength}}

    @cached_property
    def results(self) -> LogResults:
        """Baselines and slices; they measure what the model's metrics measure, the first task."""
        label = None if self.tasks[0] == "label" else self.first_label()
        splits = dataclasses.replace(self.splits, train=self.whole_train)
        return LogResults(self.log, splits, label, baseline_statistics(self.data))

    def baselines(self, seed: int, refit: bool = False) -> tuple[dict[str, dict[str, dict[str, Any]]], int]:
        return self.results.baselines(seed, refit)

    def baseline_scores(self, name: str, part: str) -> tuple[np.ndarray, np.ndarray] | None:
        return self.results.scores(name, part)

    def slices(
        self, part: str, events: np.ndarray, logits: np.ndarray, seed: int, **options: bool
    ) -> list[dict[str, Any]]:
        return self.results.slices(part, events, logits, seed, **options)


def frozen_log(log: InteractionLog, whole: Splits, part: str) -> tuple[InteractionLog, np.ndarray]:
    """A log as it was known when one of its `whole` parts began, and the position (E,) in it of each event; see `InputKind.freeze`."""
    if whole.rule == "user":
        raise ValueError(
            "frozen_histories: the parts are cut by user, so that none of them begins at a time; leave it out"
        )
    begin = log.time[whole[part]].min(initial=np.iinfo(np.int64).max)  # an empty part is refused where it is opened
    return log.frozen_at(int(begin))


def moved(splits: Splits, places: np.ndarray) -> Splits:
    """The same samples where a log has its events at other places (E,)."""
    return dataclasses.replace(splits, **{part: places[own] for part, own in splits.items()})


def split_facts(log: InteractionLog, splits: Splits) -> dict[str, Any]:
    """How a log was parted, and the first and last second of each part, for `data.json`."""
    times = {name: log.time[events] for name, events in splits.items() if len(events)}
    return {
        "rule": splits.rule,
        "boundaries": dict(splits.boundaries),
        "times": {name: [int(own.min()), int(own.max())] for name, own in times.items()},
    }


def statistic_names(data: dict[str, Any]) -> list[str]:
    """The sets and names of a recipe's `data.statistics`."""
    return [data["statistics"]] if isinstance(data["statistics"], str) else data["statistics"]


def baseline_statistics(data: dict[str, Any]) -> tuple[str, ...]:
    """What the baselines read: no less than the model."""
    names = statistic_names(data)
    more = [
        chosen for chosen in ("repeats", "factors") if any(name in (chosen, *STATISTIC_SETS[chosen]) for name in names)
    ]
    context = any(name == "context" or (name.startswith("context:") and SHOWN not in name) for name in names)
    return "full", *more, *(("context",) if context else ())


def check_statistics(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with a recipe's `data.statistics`, before the log is read; see `InputKind.check_recipe`."""
    names = statistic_names(data)
    if len(set(names)) < len(names):
        yield "data.statistics", f"data.statistics is {names}, accepted: all different"
    for name in names:
        try:
            if name not in STATISTIC_SETS:
                statistic(name)
        except ValueError as error:
            yield "data.statistics", str(error)


def check_task_weights(weights: list[float] | None, tasks: list[str] | None, what: str) -> Iterator[tuple[str, str]]:
    """As [`check_statistics`], of `model.task_weights`."""
    if None not in (weights, tasks) and len(weights) != len(tasks):
        yield "model.task_weights", f"model.task_weights has {len(weights)} numbers for the {len(tasks)} {what}"


def may_hold(chosen: str | Sequence[str], wanted: str) -> bool:
    """Whether `data.statistics` may hold a statistic: what some sets give is known with the log only."""
    names = [chosen] if isinstance(chosen, str) else chosen
    if wanted.startswith("context:"):
        return not {"context", wanted}.isdisjoint(names)
    fixed = any(wanted in members for members in STATISTIC_SETS.values())
    return any(
        wanted in STATISTIC_SETS[name] or (name == "full" and not fixed)
        if name in STATISTIC_SETS
        else statistic(name).name == statistic(wanted).name
        for name in names
    )


def log_fingerprint(log: InteractionLog, splits: Splits, *more: np.ndarray | None) -> str:
    """Checksum of events and samples (and of `more` columns): a resumed run must see the data that it started with."""
    parts = (splits.train, splits.validation, splits.test)
    more = (log.feedback_values, log.hidden, *more)  # a log without them keeps its checksum
    return checksum(log.offsets, log.item, log.time, log.label, log.feedback, *parts, *more)


def whole_fingerprint(log: InteractionLog, parts: Splits, label: np.ndarray | None = None) -> str:
    """[`log_fingerprint`] of a log's whole parts and of what else its baselines read: weights, what describes events, and `label` where it is
    another."""
    return log_fingerprint(log, parts, label, log.weight, *_described(log))


def described_fingerprint(log: InteractionLog) -> str:
    """Checksum of what describes events, which views read by a recipe's choice: the items that occur, users, context."""
    return checksum(*_described(log))


def _described(log: InteractionLog) -> Iterator[np.ndarray]:
    for table in (log.catalogue.take(np.flatnonzero(np.bincount(log.item))), log.users, log.context):
        for name in [] if table is None else table.column_names:
            yield _bytes(name)
            yield from _contents(table[name].combine_chunks())


def _contents(column: pa.Array) -> Iterator[np.ndarray]:
    """Arrays that are equal where two columns have the same values, in whatever chunks, encoding or width of offsets they are stored."""
    column = decoded(column)
    if is_list(column.type):
        yield pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        yield from _contents(column.flatten())
    elif is_number(column.type):
        yield column.is_null().to_numpy(zero_copy_only=False)
        yield column.fill_null(0).to_numpy(zero_copy_only=False)
    else:
        coded = column.dictionary_encode()
        yield coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        yield _bytes(coded.dictionary.to_pylist())


def _bytes(value: Any) -> np.ndarray:
    return np.frombuffer(repr(value).encode(), dtype=np.uint8)


def log_best_auc(log: InteractionLog, statistics: Sequence[str] | str | None) -> float | None:
    """The best reachable test AUC of a log whose truth is known; None beside statistics, if its reader does not know the labels they count."""
    if statistics and log.info.extra.get("best_auc_knows", "events") != "events":
        return None
    return log.info.best_auc


def log_columns(log: InteractionLog, events: np.ndarray) -> dict[str, Any]:
    """The identifying columns of samples of an interaction log, see `InputKind.identify`: `user` and `item` are the original ids."""
    columns = {
        "event": pa.array(events, pa.int64()),
        "user": pa.array(log.user_ids[log.user[events]]),
        "item": log.catalogue["item_id"].take(pa.array(log.item[events])),
        "time": pa.array(log.time[events], pa.int64()),
    }
    if log.weight is not None:
        columns["weight"] = pa.array(log.weight[events], pa.float32())
    return columns
