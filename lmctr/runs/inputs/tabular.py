"""Tabular inputs: rows of a table through a feature processor, for families that read fields."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch

from lmctr.data.batches.tabular import TabularCollator, TabularDataset, TabularView
from lmctr.data.features.extend import id_sources
from lmctr.data.features.fields import override_fields
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.features.unknown import UnknownValues
from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.queries import Queried
from lmctr.data.logs.splits import Splits, split_log
from lmctr.data.logs.table import UNMET_RULES
from lmctr.data.logs.validation import validate_log
from lmctr.data.registry import DATASETS, find, is_log, is_schema, load_log, load_tabular
from lmctr.data.tables.source import TableSource
from lmctr.data.tables.store import TabularStore, processor_arguments
from lmctr.data.tables.validation import validate_table
from lmctr.evaluation.baseline_parts import MANY_ROWS, MAX_FITTED_EVENTS, newest
from lmctr.evaluation.rates import chosen_pairs, pair_ids, value_rates
from lmctr.evaluation.table_baselines import table_baseline_metrics, table_baseline_predictions
from lmctr.models.common.base import IGNORED_LABEL
from lmctr.models.common.boosted_trees import FieldTrees, rated_sizes
from lmctr.runs.folder import ITEM_STATISTICS, LOG_STATISTICS, RunFolder
from lmctr.runs.inputs.base import ALONE, PARTS, RunContext, check_part, checksum
from lmctr.runs.inputs.going_on import GoingOn
from lmctr.runs.inputs.keys import COMMON_DATA_KEYS, TabularDataKeys
from lmctr.runs.inputs.linear_start import LinearSamples
from lmctr.runs.inputs.log_results import LogResults
from lmctr.runs.inputs.logs import (
    baseline_statistics,
    check_statistics,
    check_task_weights,
    frozen_log,
    log_best_auc,
    log_columns,
    moved,
    split_facts,
    whole_fingerprint,
)
from lmctr.runs.inputs.pretrained import PretrainedKeys, fill_vectors, read_pretrained, read_vectors
from lmctr.runs.inputs.stored import StoredInput
from lmctr.statistics import STATISTIC_SETS, ItemStatistics, StatisticsReader
from lmctr.statistics.table import context_names
from lmctr.training.growth import table_rows
from lmctr.utils.files import expanded, read_json, write_json
from lmctr.utils.suggest import first_of, refuse_unknown


class TabularInput(GoingOn, StoredInput):
    """Rows of categorical, numeric and sequence fields, for families of `TabularCTRConfig`."""

    data_keys: ClassVar = TabularDataKeys
    free_data_keys: ClassVar = (*COMMON_DATA_KEYS, "since", "cache_dir", "baselines")
    store_class: ClassVar = TabularStore
    view_class: ClassVar = TabularView
    features_of_data: ClassVar = "data.features"
    set_by_processor: ClassVar = (
        "vocab_sizes",
        "num_numeric",
        "field_names",
        "num_sequences",
        "sequence_tables",
        "sequence_vocab_sizes",
        "task_names",
        "pretrained_dims",
        "trained_vectors",
        "processor_fingerprint",
    )
    set_by_processor_hint: ClassVar = "it follows from the data and data.features"

    source: TableSource | None = None
    store: TabularStore | None = None
    filled: Sequence[str] = ()  # what was said of vectors made elsewhere
    reads_descriptions: ClassVar[bool] = False
    reads_other_users: ClassVar[bool] = True  # fields may tell of an item's clicks
    log: InteractionLog | None = None  # where the table is a view of one
    log_splits: Splits | None = None

    # ---- the recipe ----

    @classmethod
    def check_recipe(cls, data: dict[str, Any], model: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if _is_log(data) and data["split"] not in (None, "time", "user", "given"):
            yield (
                "data.split",
                f"data.split is {data['split']!r}, but {data['name']!r} is an interaction log; "
                "accepted: time, user, given, or null for the log's own parts, by time where it has none",
            )
        # of a schema that is not there nobody knows; who reads it will say so
        is_absent = is_schema(data["name"]) and not expanded(data["name"]).is_file()
        if data["statistics"] and not _is_log(data) and not is_absent:
            yield (
                "data.statistics",
                f"data.statistics counts the events of an interaction log, but {data['name']!r} is a table; leave it out",
            )
        if data["since"] is not None and not _is_log(data) and not is_absent:
            yield (
                "data.since",
                f"data.since is the time from which on the events of an interaction log are samples, but {data['name']!r} is a table; leave it out",
            )
        if data["labels"] is not None and _is_log(data):
            yield (
                "data.labels",
                f"data.labels are columns of a table, but {data['name']!r} is an interaction log, whose table has one label; leave it out",
            )
        yield from check_task_weights(model["task_weights"], data["labels"], "labels of data.labels")
        yield from check_statistics(data)

    @classmethod
    def set_elsewhere(cls, family: str) -> Mapping[str, str]:
        return {**super().set_elsewhere(family), "task_names": "set data.labels"} | dict.fromkeys(
            ("pretrained_dims", "trained_vectors"), "set data.pretrained"
        )

    @classmethod
    def baseline_data_keys(cls, data: dict[str, Any]) -> tuple[str, ...]:
        keys = super().baseline_data_keys(data)
        if not _is_log(data):
            return (*keys, "labels", "features")  # those of a log read the log, not its fields
        keys = (*keys, "since") if data.get("since") is not None else keys
        return (*keys, "statistics") if len(baseline_statistics(data)) > 1 else keys

    # ---- data ----

    def load(self, scratch: Path | None = None) -> None:
        self.scratch = scratch
        data = self.data
        if _is_log(data):
            self._read_log()
            self.source = self._log_table()
            return
        options = self._options("table", "split", "fractions", says="parts its rows itself; leave it out")
        if {"split", "seed"} <= {*find(data["name"], "table").options}:
            options.setdefault("seed", data["seed"])
        if data["labels"] is not None:
            if "labels" not in find(data["name"], "table").options:
                raise ValueError(
                    f"data.labels is {data['labels']}, but {data['name']!r} has its own label; leave it out"
                )
            options["labels"] = data["labels"]
        self.source = load_tabular(data["name"], **options)

    @property
    def lacks_times(self) -> bool:
        return self.source.time is None

    def open(self, processor: Any, parts: tuple[str, ...] = PARTS, run: RunContext = ALONE) -> None:
        if self.log is not None and self.store is None:
            read = {"prior": self._prior, **self._table_options}
            self._read_as(processor, run.folder)
            fields = _types(processor)
            if not {*fields} <= {field["name"] for field in self.source.fields}:  # as its values look in these data
                self._table_options["earlier"] = fields
            if read != {"prior": self._prior, **self._table_options}:  # no recipe, newer data or other parts
                self.source = self._log_table()
        super().open(processor, parts, run)

    def _read_as(self, processor: TabularFeatureProcessor, folder: Path | None) -> None:
        """Let the log be counted as a run's training counted its own, whose processor this is: smoothed towards the same rates."""
        if folder is not None and (folder / LOG_STATISTICS).is_file():
            self._table_options["prior"] = self._prior = read_json(folder / LOG_STATISTICS)["prior"]
        if processor.statistics_reader is not None:
            self._table_options["statistics"] = processor.statistics_reader

    def _log_table(self) -> TableSource:
        from lmctr.data.builders.movielens_table import movielens_table

        return movielens_table(self.log, self.log_splits, **self._table_options)

    def _read_log(self) -> None:
        """Reads an interaction log. Options are those of the log and those of `movielens_table`."""
        from lmctr.data.builders.movielens_table import movielens_table

        data = self.data
        name = data["name"]
        of_log = find(name, "log").options
        of_table = [
            key
            for key, entry in inspect.signature(movielens_table).parameters.items()
            if entry.kind == entry.KEYWORD_ONLY and key not in ("statistics", "prior", "earlier")
        ]
        refuse_unknown(data["options"], [*of_log, *of_table], f"data.options of {name!r} as a table")
        options = {key: value for key, value in data["options"].items() if key in of_log}
        if data["path"] is not None:
            options["path"] = data["path"]
        self.log = load_log(name, **options)
        self._table_options = {key: value for key, value in data["options"].items() if key not in options}
        if name not in DATASETS["log"]:
            self._table_options.setdefault("own_columns", None)
        fractions = tuple(data["fractions"] or (0.8, 0.1, 0.1))
        rule = data["split"] or ("time" if self.log.part is None else "given")
        self.log_splits = split_log(self.log, rule=rule, fractions=fractions, seed=data["seed"], since=data["since"])
        train = self.log_splits.train
        self._prior = float((self.log.label[train] == 1).mean())
        if self.before is not None:
            self._read_as_before()
        elif data["statistics"]:
            self._table_options["statistics"] = StatisticsReader.fit(self.log, train, data["statistics"])

    def _read_as_before(self) -> None:
        """Let the log be read as the earlier run read its own; `ValueError` where the recipe's settings are others."""
        if not (self.before / LOG_STATISTICS).is_file():
            raise ValueError(
                f"training.from_run: {self.before} has no {LOG_STATISTICS}, and {self.data['name']!r} is an interaction log; give a run that read "
                "one as a table"
            )
        from lmctr.data.builders.movielens_table import columns_of

        earlier, recipe = TabularFeatureProcessor.from_pretrained(self.before), RunFolder(self.before).recipe()
        options = (self.data["options"], recipe["data"].get("options") or {})
        self.refuse_changes([("data.options.strength", *(own.get("strength") for own in options))])
        reader = earlier.statistics_reader
        self._unread = self.statistics_kept(self.log, () if reader is None else reader.names)
        self._read_as(earlier, self.before)
        known = dict.fromkeys(self.data["features"].get("drop") or ()) | _types(earlier)
        self._table_options["earlier"] = known
        if new := [
            name for name in columns_of(self.log, self._table_options.get("own_columns", ())) if name not in known
        ]:
            self._unread += f"; it has no field {first_of(new)}: train anew without --from to read it"

    def freeze(self, part: str) -> None:
        if self.log is None:
            super().freeze(part)
        self.log, places = frozen_log(self.log, self.log_splits, part)
        self.log_splits = moved(self.log_splits, places)
        self.source = self._log_table()

    def load_log(self) -> InteractionLog:
        """The log alone, to score queries with."""
        self._read_log()
        return self.log

    def log_parts(self) -> Splits:
        """The whole parts of the log of [`load_log`]."""
        return self.log_splits

    def first_label(self) -> np.ndarray:
        """(E,) labels of the log."""
        return self.log.label

    def open_queries(self, processor: Any, queried: Queried, run: RunContext) -> np.ndarray:
        """Makes the queries of the log of [`load_log`] ready for [`query_batch`]; gives their numbers."""
        from lmctr.data.builders.movielens_table import movielens_table

        self._read_as(processor, run.folder)
        options = {"prior": self._prior, **self._table_options, "earlier": _types(processor)}
        none = queried.queries[:0]
        (piece,) = movielens_table(queried.log, Splits(none, none, queried.queries, "given"), **options).pieces
        found, self._unknown = [], UnknownValues(processor)
        for rows in piece.read(processor.input_columns()):
            found.append(processor(rows))
            self._unknown.add()
        self._queries = {key: torch.cat([inputs[key] for inputs in found]) for key in found[0]}
        return np.arange(len(queried.queries))

    def query_batch(self, places: np.ndarray) -> dict[str, torch.Tensor]:
        """A batch of the model of some queries by their numbers."""
        return {key: values[places] for key, values in self._queries.items()}

    def unknown_in_queries(self) -> tuple[dict[str, dict[str, int]], dict[str, list[str]]]:
        """Counts of values, and of the unknown among them, and examples of these, by field."""
        return self._unknown.counts, self._unknown.examples

    def _events(self, part: str) -> np.ndarray:
        """(S,) positions in the log of a part's samples, in the order of `rows`: a part's rows are in the order of its events."""
        return self.limited(self.log_splits[part], part, lambda events: self.log.label[events])

    def _new_processor(self) -> TabularFeatureProcessor:
        arguments = processor_arguments(self.source)
        fields = override_fields(arguments["fields"], self.data["features"], "data.features")
        processor = TabularFeatureProcessor(**{**arguments, "fields": fields})
        if self.before is None:
            return processor
        self.say_extended(
            processor.continued(TabularFeatureProcessor.from_pretrained(self.before)).extend(self.source)
        )
        if self.log is not None:
            self.extended += self._unread
            self.say_times(self.log.time, self.log_splits)
        return processor

    def rows_before(self, old: Any, model: Any, earlier: Any, processor: Any) -> dict[str, torch.Tensor]:
        return table_rows(old, model, id_sources(earlier, processor))

    def follow(self, model: Any, earlier: Any, processor: Any) -> None:
        if isinstance(beside := model.trees_beside(), FieldTrees):
            beside.follow(id_sources(earlier, processor)[: len(model.config.vocab_sizes or ())])
        # Fixed vectors are those of the file, which may be a newer one.
        keys = read_pretrained(self.data["pretrained"], processor)
        fill_vectors(model, processor, {name: self._vectors(own) for name, own in keys.items() if not own.trained})

    def _check_leaks(self) -> list[str]:
        allow = self.data["allow_leaks"]
        if self.log is None:
            return validate_table(self.store, self.source, allow)
        reader = self.store.processor.statistics_reader
        counted = STATISTIC_SETS["basic"] if reader is None else reader.names
        lines = validate_log(self.log, self.log_splits, allow=allow).lines()
        return lines + validate_table(self.store, self.source, allow, counted)

    def _check_parts(self, parts: tuple[str, ...]) -> None:
        for part in parts:
            rows = self.rows(part)
            weight = None if self.store.weight is None else np.asarray(self.store.weight[rows])
            check_part(part, self._labels_by_task(rows), weight, self._unmet_rule)

    def _unmet_rule(self, task: str) -> str:
        """Words on a task's label rule that no value of the data follows; else none."""
        if self.log is not None:
            return self.log.info.extra.get(UNMET_RULES, {}).get("label", "")
        columns = (self.source.label, *self.source.extra_labels)
        return self.source.unmet_rule(dict(zip(self.tasks, columns))[task])

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.store.processor.tasks if self.store is not None else super().tasks

    def _labels_by_task(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """By task, its labels of some rows, -100 where there is none."""
        labels = np.asarray(self.store.labels[rows]).reshape(len(rows), len(self.tasks))
        return dict(zip(self.tasks, labels.T))

    def _known(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """By task, its labels of some rows without those that are not known."""
        return {task: own[own != IGNORED_LABEL] for task, own in self._labels_by_task(rows).items()}

    def save_beside(self, folder: Path, processor: Any) -> None:
        if self.log is not None:
            write_json(folder / LOG_STATISTICS, {"prior": self._prior})
        if processor.statistics_reader is not None:
            ItemStatistics.from_log(self.log, processor.statistics_reader).save(folder / ITEM_STATISTICS)

    def dataset(self, part: str) -> TabularDataset:
        return TabularDataset(self.view, self.rows(part))

    def collator(self, half_precision: bool) -> Callable[[list], dict]:
        return TabularCollator(self.view)

    def describe(self, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        store, processor = self.store, self.store.processor
        rows = {part: self.rows(part) for part in PARTS}
        known = {part: self._known(own).items() for part, own in rows.items()}
        task_rates = {part: {task: float(np.mean(y == 1)) for task, y in own if len(y)} for part, own in known.items()}
        rates = {part: own[self.tasks[0]] for part, own in task_rates.items() if self.tasks[0] in own}
        config = processor.model_config_values()
        sizes, num_numeric, num_sequences = config["vocab_sizes"], config["num_numeric"], config["num_sequences"]
        result = {
            "info": store.info.to_dict(),
            "counts": {
                "rows": len(store),
                "samples": {part: len(own) for part, own in rows.items()},
                "categorical fields": len(sizes),
                "numeric fields": num_numeric,
                "sequence fields": num_sequences,
                "values": sum(sizes) + sum(config["sequence_vocab_sizes"]),
            },
            **({} if self.log is None else {"split": split_facts(self.log, self.log_splits)}),
            "label_rates": rates,
            **({"task_rates": task_rates} if len(self.tasks) > 1 else {}),
            "unknown_values": {part: share for part in PARTS if (share := _unknown_share(store, part)) is not None},
            "unknown_by_field": self.unknown_shares(),
            "processor_fingerprint": processor.fingerprint,
            "fingerprint": checksum(store.labels, *rows.values()),
            "inputs_fingerprint": self.inputs_checksum(),
        }
        say(
            f"{store.info.name}: {len(sizes)} categorical, {num_numeric} numeric, {num_sequences} sequence fields, "
            f"{result['counts']['values']:,} values; samples "
            + ", ".join(f"{part} {len(own):,}" for part, own in rows.items())
            + f"; {self._positive_words(rates.get('train', float('nan')))}"
        )
        if store.groups is not None:
            without = sum(int((store.groups[rows[part]] < 0).sum()) for part in ("validation", "test"))
            if without:
                say(
                    f"{without:,} samples of validation and test have no group: gAUC, UAUC and tests take them for one"
                )
        return result

    def data_fingerprint(self) -> str:
        if self.log is None:
            return super().data_fingerprint()
        found = whole_fingerprint(self.log, self.log_parts())
        return found if self._statistics_beside == baseline_statistics(self.data) else f"{found}-context"

    @property
    def best_auc(self) -> float | None:
        return self.store.info.best_auc if self.log is None else log_best_auc(self.log, self.data["statistics"])

    def identify(self, part: str) -> dict[str, Any]:
        if self.log is not None:  # the same columns as the other views of the log, so that runs can be compared
            return log_columns(self.log, self._events(part))
        rows, store = self.rows(part), self.store
        columns = {"event": pa.array(rows, pa.int64())}
        if store.groups is not None:
            columns["user"] = pa.array(store.groups[rows], pa.int64())
        if store.times is not None:
            columns["time"] = pa.array(store.times[rows], pa.int64())
        if store.weight is not None:
            columns["weight"] = pa.array(store.weight[rows], pa.float32())
        return columns

    @cached_property
    def results(self) -> LogResults:
        """Baselines and slices of the log: they count in the order of time."""
        parts = {part: self._events(part) for part in ("validation", "test")}
        return LogResults(self.log, dataclasses.replace(self.log_splits, **parts), statistics=self._statistics_beside)

    @cached_property
    def _statistics_beside(self) -> tuple[str, ...]:
        """What the baselines of a log read: no less than the model, which has columns of the context as fields."""
        names, context = baseline_statistics(self.data), self.log.context
        if context is None or "context" in names:
            return names
        fields = {field.source_column for field in self.store.processor.ordered_fields()}
        return (*names, *context_names(context.select([name for name in context.column_names if name in fields])))

    def baselines(self, seed: int, refit: bool = False) -> tuple[dict[str, dict[str, dict[str, Any]]], int]:
        if self.log is not None:
            return self.results.baselines(seed, refit)
        train = self.store.splits["train"]  # a limit on the model's samples is none on theirs
        parts = {part: self.rows(part) for part in ("validation", "test")}
        self._beside = table_baseline_predictions(self.store, {"train": train, **parts}, seed=seed, refit=refit)
        metrics = table_baseline_metrics(self.store, parts, self._beside)
        return metrics, len(train) + (len(parts["validation"]) if refit else 0)

    def baseline_scores(self, name: str, part: str) -> tuple[np.ndarray, np.ndarray] | None:
        if self.log is not None:
            return self.results.scores(name, part)
        return self.rows(part), self._beside[name][part]

    def slices(
        self, part: str, events: np.ndarray, logits: np.ndarray, seed: int, **options: bool
    ) -> list[dict[str, Any]]:
        return [] if self.log is None else self.results.slices(part, events, logits, seed, **options)

    def linear_samples(self) -> LinearSamples:
        rows = self.rows("train")
        rows = rows[self._fitted(rows)]
        return self._as_drawn(self._samples(self.store.numeric_values[rows], rows))

    def tree_samples(self, model: Any) -> LinearSamples:
        beside, train = model.trees_beside(), self.store.splits["train"]
        fitted = self._fitted(train)
        rows = train[fitted]
        if not isinstance(beside, FieldTrees):
            return self._samples(self.store.numeric_values[rows], rows)
        fields = [
            own[rows].astype(np.float32)
            for own in (self.store.numeric_values, self.store.input_ids)
            if own is not None
        ]
        columns = np.concatenate([np.empty((len(rows), 0), np.float32), *fields], 1)
        ordered, numbers = self.store.processor.ordered_fields(), set()
        # rates of bins of numbers that trees read tell nothing new, and of few rows the more of a row's own label
        if len(rows) < MANY_ROWS:
            numbers = {field.source_column for field in ordered if field.kind == "value"}
        categorical = [field for field in ordered if field.kind == "id"]
        rated = [
            place for place, own in enumerate(categorical) if own.type != "numeric" or own.source_column not in numbers
        ]
        samples, sizes = self._samples(columns, rows), rated_sizes(model.config)
        lists = range(len(categorical), len(sizes))
        if not rated and not lists:
            return samples
        ids = np.empty((len(train), 0), np.int64) if self.store.input_ids is None else self.store.input_ids[train]
        given = self.store.labels[train], self.view.sample_weight(train), fitted
        of_fields = sizes[: len(categorical)]
        whole, own = value_rates(ids.T, of_fields, *given)
        pairs = itertools.chain.from_iterable(  # of any task
            chosen_pairs(ids[fitted], of_fields, categorical, own[:, task], labels, samples.weight)
            for task, labels in enumerate(samples.labels.reshape(len(rows), -1).T if of_fields else ())
        )
        pairs = [list(pair) for pair in dict.fromkeys(pairs)]
        cells = [*(prod(sizes[field] for field in pair) for pair in pairs), *(sizes[place] for place in lists)]
        of_lists = (self.store.sequence_ids[train, place - len(categorical)] for place in lists)
        more_ids = itertools.chain((pair_ids(ids, sizes, pair) for pair in pairs), of_lists)
        of_more, more = value_rates(more_ids, cells, *given)
        rates = np.split(whole, np.cumsum(of_fields))
        own = np.concatenate([own[:, :, rated], more], 2)
        return samples._replace(
            values=np.concatenate([columns, own.reshape(len(rows), -1)], 1),
            rated=[*rated, *pairs, *lists],
            rates=np.concatenate([*(rates[field] for field in rated), of_more]),
        )

    def _fitted(self, rows: np.ndarray) -> np.ndarray:
        """Places of training rows for models that are fitted at once: all, of too many the newest, or some drawn where there are no times."""
        times = self.store.times
        if len(rows) <= MAX_FITTED_EVENTS:
            return np.arange(len(rows))
        if times is not None:
            return newest(times[rows], MAX_FITTED_EVENTS)
        return np.sort(np.random.default_rng(0).choice(len(rows), MAX_FITTED_EVENTS, replace=False))

    def _samples(self, values: np.ndarray, rows: np.ndarray) -> LinearSamples:
        store = self.store
        times = None if store.times is None else store.times[rows]
        return LinearSamples(values, store.labels[rows], self.view.sample_weight(rows), times)

    # ---- model ----

    def config_values(self, processor: Any) -> dict[str, Any]:
        width = self.model_group.get("embedding_dim", 16)
        data_values = processor.model_config_values(**({"embedding_dim": width} if isinstance(width, int) else {}))
        if "embedding_dim" in data_values and not isinstance(width, int):
            raise ValueError(
                "model.embedding_dim is a list, but data.features gives fields widths of their own; keep one of the two"
            )
        keys = read_pretrained(self.data["pretrained"], processor)
        if keys:
            data_values["pretrained_dims"] = {name: self._vectors(own)[1].shape[1] for name, own in keys.items()}
            data_values["trained_vectors"] = [name for name, own in keys.items() if own.trained]
        return data_values

    @cached_property
    def _files(self) -> dict[tuple[str, ...], tuple[list[Any], np.ndarray]]:
        """What files of vectors hold, each read once."""
        return {}

    def _vectors(self, keys: PretrainedKeys) -> tuple[list[Any], np.ndarray]:
        place = (keys.file, keys.value, keys.vector)
        if place not in self._files:
            self._files[place] = read_vectors(keys)
        return self._files[place]

    def model(self, processor: Any) -> Any:
        model = super().model(processor)
        keys = read_pretrained(self.data["pretrained"], processor)
        self.filled = fill_vectors(model, processor, {name: self._vectors(own) for name, own in keys.items()})
        return model

    def describe_model(self, model: Any) -> str:
        return "; ".join([super().describe_model(model), *self.filled])


def _types(processor: TabularFeatureProcessor) -> dict[str, str | None]:
    """Types of a processor's fields by name."""
    return {field.name: field.type for field in processor.fields}


def _is_log(data: dict[str, Any]) -> bool:
    """Whether a recipe's data are an interaction log: a known one, a folder of `lmctr data prepare`, the schema of one, or a data file
    with the keys of such a schema in `data.options`."""
    return is_log(data["name"], data["options"])


def _unknown_share(store: TabularStore, part: str) -> float | None:
    """Share of the values of a part that the processor did not know; None where it is not kept by part."""
    counts = store.statistics.get(part, {}).get("values")
    if not counts:
        return None
    total = sum(entry["values"] for entry in counts.values())
    return sum(entry["unknown"] for entry in counts.values()) / max(total, 1)
