"""Trainings that go on from a finished run: its weights and its optimiser's state for a model whose tables have other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lmctr.data.logs.splits import Splits
from lmctr.data.reading import MissingColumnsError
from lmctr.runs.folder import RunFolder, open_run
from lmctr.runs.loading import load_folder
from lmctr.statistics import resolve_statistics, statistic
from lmctr.statistics.table import ITEM, Statistic, catalogue_column, context_of
from lmctr.training.growth import carry_optimizer, carry_weights
from lmctr.utils.suggest import first_of


@contextmanager
def lost_columns_told(run: str | None) -> Iterator[None]:
    """Say of a column that newer data lack what becomes of a training that goes on from a run, if it does."""
    try:
        yield
    except MissingColumnsError as error:
        if run is None:
            raise
        raise ValueError(
            f"{error} What goes on from {run} reads the columns that it was trained on, the label too: leave another that is no longer known "
            "empty, or train anew without it and without --from"
        ) from error


class GoingOn:
    """What kinds of input share whose runs can go on; those whose tables grow give `rows_before`.

    Attributes:
        extended: what became of the earlier run's processor, in words.
    """

    extended: str = ""
    share_before: float | None = None  # of boosted trees in the logits of the earlier run's model

    def go_on_from(self, run: str) -> None:
        folder = open_run(run)
        if folder.model_type != self.model_group["family"]:
            raise ValueError(
                f"training.from_run: {folder.path} holds a model of the type {folder.model_type}, the recipe makes one of the type "
                f"{self.model_group['family']}; give a run of that family"
            )
        self.before = folder.path

    def say_extended(self, report: Mapping[str, Mapping[str, int]]) -> None:
        """Keep the report of an extension in words."""
        words = (f"{name} {own['size']:,} (+{own['added']:,} -{own['evicted']:,})" for name, own in report.items())
        self.extended = "values of " + ", ".join(words)
        if strange := [name for name, own in report.items() if own["added"] and not own["met"]]:
            self.extended += f"; of {', '.join(strange)} no value of the earlier run is met in these data: if they are coded otherwise, what it learnt of them is lost"

    def refuse_changes(self, values: Iterable[tuple[str, Any, Any]], hints: Mapping[str, str] | None = None) -> None:
        """Raises `ValueError` for the first key whose own value is not that of the earlier run, in (key, own, earlier) triples; `hints` say by
        key how to keep it."""
        for key, *both in values:
            own, found = (list(one) if isinstance(one, tuple) else one for one in both)
            if own != found:
                raise ValueError(
                    f"{key} is {own!r} here and {found!r} in {self.before}; keep it{(hints or {}).get(key, '')}, or train anew"
                )

    def recipe_before(self, section: str) -> dict[str, Any]:
        """A section of the earlier run's recipe; nothing of a model of the Hub, which has none."""
        return (RunFolder(self.before).recipe() or {}).get(section, {})

    def statistics_kept(self, log: Any, earlier: Sequence[str]) -> str:
        """Words on what `data.statistics` asks for beyond the statistics of the `earlier` run, which stay: values of a log's context, and columns of items that
        have come to be categories. No recipe can keep newer events from having new values.

        Raises:
            ValueError: other statistics than those of the earlier run, for another reason.
        """
        wanted, before = self.data["statistics"], tuple(earlier)
        names = resolve_statistics(wanted, log) if wanted else ()
        asked = self.recipe_before("data").get("statistics")
        (others, columns, read), (others_before, known, read_before) = _parted(names), _parted(before)
        told = context_of(log)
        context = set() if told is None else set(told.column_names)
        lost = [
            name for name in read_before if catalogue_column(log.catalogue, name) not in log.catalogue.column_names
        ]
        if wanted != asked or others != others_before or not columns <= known <= context or lost:
            self.refuse_changes([("data.statistics", names, before)])
        new = [name.removeprefix("context:") for name in names if name not in before and name.startswith("context:")]
        told = f"; it has no statistic of {first_of(new)} of the context: read as unknown values" if new else ""
        more = sorted(read - read_before)
        return told + (f"; it has no statistic by {first_of(more)} of the items: as it was trained" if more else "")

    def say_times(self, time: np.ndarray, splits: Splits) -> None:
        """Say what of a log with the (E,) times of its events the earlier run has not seen, or has been trained on already."""
        folder = RunFolder(self.before)
        times = (folder.data() or {}).get("split", {}).get("times", {})
        if not times:
            return
        if time.min() > max(last for _, last in times.values()):
            self.extended += (
                "; histories and statistics begin with these data, which all come after those of the earlier run: to keep them, give "
                "both in one file"
            )
        trained = ("train", "validation") if "before_refit" in folder.metrics() else ("train",)
        last = max(times[part][1] for part in trained if part in times)
        known = {part: int((time[samples] <= last).sum()) for part, samples in splits.items()}
        if known["train"]:
            only = f": with data.since {last + 1} they stand in histories and statistics only"
            self.extended += (
                f"; {known['train']:,} of {len(splits.train):,} training samples are no newer than those that it was trained on"
                f"{only if known['train'] < len(splits.train) else ''}"
            )
        measured = [
            f"{known[part]:,} of {len(splits[part]):,} {part}" for part in ("validation", "test") if known[part]
        ]
        if measured and splits.rule == "time":
            self.extended += f"; {' and '.join(measured)} samples are no newer either: it may have been trained on them, and their metrics be too good"

    def rows_before(self, old: Any, model: Any, earlier: Any, processor: Any) -> dict[str, torch.Tensor]:
        """By the name of each table's weight, the row that each of its rows was in the earlier model, -1 for new ones; none where no table
        grows."""
        return {}

    def follow(self, model: Any, earlier: Any, processor: Any) -> None:
        """Let what else of the model knows ids go with those that moved."""

    def carried(self, model: Any, processor: Any) -> Callable[[Any], str] | None:
        if self.before is None:
            return None
        folder = open_run(self.before)
        old, earlier = load_folder(folder)
        model.config.calibration = old.config.calibration
        self.share_before = _share(old)
        if old.config.boosted_trees is not None and model.trees_beside() is not None:
            model.config.boosted_trees = old.config.boosted_trees
            model.trees_beside().grow(model.config)
        rows = self.rows_before(old, model, earlier, processor)
        carry_weights(old, model, rows)
        self.follow(model, earlier, processor)
        metrics, file = folder.metrics(), folder.refit_optimizer
        if "before_refit" not in metrics:
            file = folder.checkpoints / f"checkpoint-{metrics['best_step']}" / "optimizer.pt"

        adapted = folder.recipe()["training"].get("lora") is not None

        def start(optimizer: Any) -> str:
            if adapted or dict(model.named_parameters()).keys() - dict(old.named_parameters()).keys():
                return (
                    "LoRA: adapters are merged at the end of a run and new in the next, so the optimiser starts anew"
                )
            if not file.is_file():
                return f"no optimiser state in {file.parent}: it starts anew"
            without = carry_optimizer(file, optimizer, old, model, rows)
            lacking = f", which has none of {', '.join(without)}: it starts anew there" if without else ""
            return f"optimiser state of {file.parent}{lacking}"

        return start

    def share_moved(self, model: Any) -> str:
        now = _share(model)
        if self.share_before in (None, now):
            return ""
        return f"boosting_share {self.share_before:g} -> {now:g}, which moves probabilities of known rows by itself"


def _share(model: Any) -> float:
    """The share of boosted trees in a model's logits; 0 without trees."""
    return (model.config.boosted_trees or {}).get("share", 0.0)


def _parted(names: Sequence[str]) -> tuple[list[str], set[str], set[str]]:
    """Of statistics those that read columns neither of the context nor of items, the columns of the context that the others read, and those of items."""
    rows = [statistic(name) for name in names]
    context = {row.feature.partition("=")[0] for row in rows if row.family == "context"}
    read = {column for row in rows if (column := _column_read(row))}
    return [row.name for row in rows if row.family != "context" and not _column_read(row)], context, read


def _column_read(row: Statistic) -> str:
    """The column of the items that a statistic counts by, or whose numbers it is a taste for; empty where there is none that data may lack."""
    taste = row.feature if row.aggregation == "taste" and row.feature not in ("mean", "count", "year") else ""
    return taste or ("" if row.column == ITEM else row.column)
