"""Sequence inputs: an interaction log as users' event sequences with candidates, for the sequence families.

Training rows are MUMI (one sample per row) or SUMI (`data.candidates_per_row` samples of a user per row); metrics, predictions and counts
are those of samples either way. Evaluation takes one sample per row, unless `data.eval_candidates_per_row` says otherwise: a row's history
is the latest `data.max_history_length` events before its last sample, and so are the blocks of ASTRO, so that the earlier samples of a row
whose history (or block) is cut see fewer events than in a row of their own. Where nothing is cut, both give the same logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from lmctr.data.batches.sequence import SequenceCollator, SequenceDataset, SequenceView
from lmctr.data.processors.extend_sequence import extend_sequence_processor, sequence_sources
from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.runs.inputs import config_keys
from lmctr.runs.inputs.base import ALONE, PARTS, RunContext, count_cost
from lmctr.runs.inputs.going_on import GoingOn
from lmctr.runs.inputs.keys import COMMON_DATA_KEYS, SequenceDataKeys
from lmctr.runs.inputs.logs import LogInput, check_statistics, check_task_weights, log_columns, log_fingerprint
from lmctr.training.growth import bank_rows
from lmctr.utils.suggest import refuse_unknown
from lmctr.utils.values import Values

# Config keys that follow from data and processor, and what a recipe sets instead.
_SET_BY_DATA = {
    "max_history_length": "set data.max_history_length",
    "task_names": "set data.tasks",
    **{
        f"{side}_feature_{what}": f"set data.{'list_values' if what == 'widths' else f'{side}_features'}"
        for side in ("item", "user")
        for what in ("names", "vocab_sizes", "widths")
    },
    "num_statistics": "set data.statistics",
    **dict.fromkeys(
        (
            "item_vocab_size",
            "num_behaviors",
            "num_scenarios",
            "behavior_names",
            "scenario_names",
            "processor_fingerprint",
        ),
        "it follows from the data",
    ),
}
_COST_ROWS = 32
_LONG_HISTORY, _SHORT_HISTORY = 1000, 200  # events: longer ones are told of, and what is offered in their place


class SequenceInput(GoingOn, LogInput):
    """Histories of events and candidates, for families of `SequenceCTRConfig`."""

    data_keys: ClassVar = SequenceDataKeys
    free_data_keys: ClassVar = (*COMMON_DATA_KEYS, "since", "eval_candidates_per_row", "baselines")
    shares_histories: ClassVar = True

    view: SequenceView

    # ---- the recipe ----

    @classmethod
    def model_keys(cls, family: str) -> type[Values]:
        return config_keys(family, set(_SET_BY_DATA))

    @classmethod
    def set_elsewhere(cls, family: str) -> Mapping[str, str]:
        return _SET_BY_DATA

    @classmethod
    def check_recipe(cls, data: dict[str, Any], model: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for key, default in (("window_seconds", None), ("same_scenario", False)):
            if data["candidates_per_row"] == 1 and data[key] != default:
                yield (
                    f"data.{key}",
                    f"data.{key} parts the samples of a user into rows, but data.candidates_per_row is 1; "
                    f"set data.candidates_per_row, or leave data.{key} out",
                )
        yield from check_statistics(data)
        if len(set(data["tasks"])) < len(data["tasks"]) or not data["tasks"]:
            yield "data.tasks", f"data.tasks is {data['tasks']}, accepted: at least one label, all different"
        yield from check_task_weights(model["task_weights"], data["tasks"], "tasks of data.tasks")

    @classmethod
    def baseline_data_keys(cls, data: dict[str, Any]) -> tuple[str, ...]:
        # Baselines know the first task only; where that is the label, all inputs of a log share them.
        keys = super().baseline_data_keys(data)
        return keys if data["tasks"][0] == "label" else (*keys, "tasks")

    # ---- data ----

    def _split(self) -> None:
        refuse_unknown(self.tasks, ["label", *self.log.extra_labels], "data.tasks")
        super()._split()

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.data["tasks"])

    def check(self) -> list[str]:
        lines = super().check()
        lengths = self.log.history_lengths(self.splits.train)
        if not lengths.any():
            raise ValueError(
                f"no training sample of {self.log.info.name!r} has an event before it: there are no sequences to learn from; "
                "take a log with several events per user"
            )
        if self.data["max_history_length"] is None and lengths.max() > _LONG_HISTORY:
            whole, short = (int(own.sum(dtype=np.int64)) for own in (lengths, np.minimum(lengths, _SHORT_HISTORY)))
            lines.append(
                f"data.max_history_length is null, so that histories are read whole: the longest of a training sample has {lengths.max():,} events, and "
                f"memory grows with it, as a batch has all its rows that long; an epoch reads {whole:,} events, which data.max_history_length: "
                f"{_SHORT_HISTORY} would make {short:,}"
            )
        return lines

    def make_processor(self) -> SequenceProcessor:
        data = self.data
        if self.before is not None:
            processor = self._continued()
            self._check_positions(self.config(processor))
            return processor
        processor = SequenceProcessor.fit(
            self.log,
            self.splits.train,
            tasks=self.tasks,
            max_history_length=data["max_history_length"],
            min_count=data["min_count"],
            item_features=data["item_features"],
            user_features=data["user_features"],
            list_values=data["list_values"],
            statistics_reader=self.statistics_reader(),
            behavior_labels=self.feedback_labels(),
        )
        config = self.config(processor)  # a wrong model key is an error before the run folder exists
        self._check_strategies(config)
        self._check_positions(config)
        return processor

    def _continued(self) -> SequenceProcessor:
        """The earlier run's processor with the items and values of these data; `ValueError` where the recipe's settings are others."""
        data, earlier = self.data, SequenceProcessor.from_pretrained(self.before)
        before = self.recipe_before("data") or data
        given = (
            ("data.tasks", self.tasks, earlier.tasks),
            ("data.item_features", data["item_features"], earlier.item_feature_names),
            ("data.user_features", data["user_features"], earlier.user_feature_names),
            ("data.max_history_length", data["max_history_length"], earlier.max_history_length),
            ("data.list_values", data["list_values"], before.get("list_values")),
        )
        files = {f"data.{side}_features": f" (--{side}s FILE, where columns are guessed)" for side in ("item", "user")}
        self.refuse_changes(given, files)
        unread = self.statistics_kept(self.log, earlier.statistics)
        limits = {"min_count": data["min_count"], "max_idle": data["max_idle"]}
        processor, report = extend_sequence_processor(earlier, self.log, self.splits.train, **limits)
        processor.statistics_reader = self.statistics_reader(earlier.statistics_reader)
        self.say_extended(report)
        self.extended += unread
        self.say_times(self.log.time, self.splits)
        return processor

    def rows_before(self, old: Any, model: Any, earlier: Any, processor: Any) -> dict[str, torch.Tensor]:
        return bank_rows(model, sequence_sources(earlier, processor))

    def _check_positions(self, config: Any) -> None:
        """A history longer than a model has positions for is told before the training, not in the middle of it or in the test behind it."""
        most, kept = getattr(config, "num_positions", None), self.data["max_history_length"]
        if most is None:
            return
        for part, events in self.splits.items():
            longest = int(self.log.history_lengths(events).max(initial=0))
            longest = longest if kept is None else min(longest, kept)
            if longest > most:
                raise ValueError(
                    f"a sample of the {part} part has a history of {longest:,} events, and {config.model_type} has positions for "
                    f"model.num_positions: {most}; set data.max_history_length: {most}, or model.num_positions to {longest}"
                )

    def _check_strategies(self, config: Any) -> None:
        """A block that never holds an event is a mistake in the recipe; that it is empty for some users is no problem."""
        strategies = getattr(config, "parsed_strategies", ())
        if not strategies:
            return
        log, train = self.log, self.splits.train
        last = np.zeros(log.num_users, dtype=np.int64)
        np.maximum.at(last, log.user[train], log.history_end[train])
        seen = np.arange(log.num_events) < last[log.user]
        for strategy in strategies:
            matches = seen
            if strategy.behaviors is not None:
                matches = matches & np.isin(log.feedback, strategy.behaviors)
            if isinstance(strategy.scenarios, tuple) and log.scenario is not None:
                matches = matches & np.isin(log.scenario, strategy.scenarios)
            if not matches.any():
                found = [log.feedback_names[code] for code in np.unique(log.feedback[seen])]
                raise ValueError(
                    f"the strategy {strategy.name!r} of model.strategies selects no event in the histories of the training part, whose "
                    f"behaviours are {', '.join(found)}; set model.strategies to such as select some, for example "
                    "[{name: recent}, {name: one, behaviors: [" + found[-1] + "]}]"
                )

    def load_processor(self, folder: Path) -> SequenceProcessor:
        return SequenceProcessor.from_pretrained(folder)

    def open(self, processor: Any, parts: tuple[str, ...] = PARTS, run: RunContext = ALONE) -> None:
        if run.measures:
            self._check_labels(parts)
        samples = np.concatenate([own for _, own in self.splits.items()]) if processor.statistics_reader else None
        self.view = SequenceView(self.log, processor, samples=samples)

    def dataset(self, part: str) -> SequenceDataset:
        return SequenceDataset(self.view, self.splits[part], self.data["eval_candidates_per_row"])

    def _training_rows(self) -> SequenceDataset:
        data = self.data
        gathered = (data["candidates_per_row"], data["window_seconds"], data["same_scenario"])
        return SequenceDataset(self.view, self.splits.train, *gathered)

    def collator(self, half_precision: bool) -> SequenceCollator:
        return SequenceCollator(self.view, pad_to_multiple_of=8 if half_precision else None)

    def describe(self, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        log, splits, data = self.log, self.splits, self.data
        result = super().describe(say)
        events = {part: own for part, own in splits.items() if len(own)}
        result["histories"] = {part: self._history_facts(own) for part, own in events.items()}
        result["behaviours"] = _shares(log.feedback, log.feedback_names)
        if log.scenario is not None:
            result["scenarios"] = _shares(log.scenario, log.scenario_names)
        rows = len(self.training_dataset())
        result["rows"] = {"train": rows, "candidates_per_row": data["candidates_per_row"]}
        labels = [log.extra_labels[task] for task in self.tasks if task != "label"]
        result["fingerprint"] = log_fingerprint(log, splits, log.scenario, *labels)
        result |= self._statistics_read()
        facts = result["histories"]["train"]
        most = data["candidates_per_row"]
        packed = f"; {rows:,} training rows of up to {most} samples" if most > 1 else ""
        say(
            f"history of a training sample: mean {facts['mean_length']:.0f} events, longest {facts['longest']}{packed}"
        )
        return result

    def _history_facts(self, events: np.ndarray) -> dict[str, float | int]:
        lengths = self.view.lengths(events)
        whole = self.log.history_lengths(events)
        return {
            "mean_length": float(lengths.mean()),
            "longest": int(lengths.max()),
            "share_empty": float((lengths == 0).mean()),
            "share_cut": float((lengths < whole).mean()),
        }

    def identify(self, part: str) -> dict[str, Any]:
        return log_columns(self.log, self.dataset(part).events)

    # ---- model ----

    def cost(self, model: Any) -> dict[str, Any]:
        """Counted forward FLOPs: of a test sample in a row of its own, and of a training sample in its row; mean over a few of
        each length, without padding between rows."""
        single = SequenceDataset(self.view, self.splits.test)
        return count_cost(
            model,
            {
                "flops_per_sample": self._some_rows(single),
                "flops_per_training_sample": self._some_rows(self.training_dataset()),
            },
        )

    def _some_rows(self, dataset: SequenceDataset) -> Iterator[tuple[dict[str, Any], int]]:
        rng = np.random.default_rng(0)
        order = rng.permutation(len(dataset))
        order = order[np.argsort(dataset.lengths[order], kind="stable")]
        for row in map(rng.choice, np.array_split(order, min(_COST_ROWS, len(order)))):
            yield self.view.batch(dataset.rows[row : row + 1]), int((dataset.rows[row] >= 0).sum())


def _shares(codes: np.ndarray, names: tuple[str, ...]) -> dict[str, float]:
    """Share of the events of each code that occurs."""
    counts = np.bincount(codes, minlength=len(names))
    return {name: float(count / len(codes)) for name, count in zip(names, counts) if count}
