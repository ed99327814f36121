"""Trainings that go on from a finished run: its weights and its optimiser's state for a model whose tables have other rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lmctr.runs.folder import open_run
from lmctr.runs.loading import load_folder
from lmctr.training.growth import carry_optimizer, carry_weights


class GoingOn:
    """What kinds of input share whose processors can be extended; they give `rows_before`.

    Attributes:
        extended: what became of the vocabularies, in words.
    """

    extended: str = ""

    def go_on_from(self, run: str) -> None:
        self.before = open_run(run).path

    def say_extended(self, report: Mapping[str, Mapping[str, int]]) -> None:
        """Keep the report of an extension in words."""
        words = (f"{name} {own['size']:,} (+{own['added']:,} -{own['evicted']:,})" for name, own in report.items())
        self.extended = ", ".join(words)

    def rows_before(self, old: Any, model: Any, earlier: Any, processor: Any) -> dict[str, torch.Tensor]:
        """By the name of each table's weight, the row that each of its rows was in the earlier model, -1 for new ones."""
        raise NotImplementedError(f"{type(self).__name__} has no rows_before")

    def follow(self, model: Any, earlier: Any, processor: Any) -> None:
        """Let what else of the model knows ids go with those that moved."""

    def carried(self, model: Any, processor: Any) -> Callable[[Any], str] | None:
        if self.before is None:
            return None
        folder = open_run(self.before)
        old, earlier = load_folder(folder)
        if type(old) is not type(model):
            raise ValueError(
                f"training.from_run: {self.before} holds a {type(old).__name__}, the recipe makes a {type(model).__name__}"
            )
        if old.config.boosted_trees is not None and model.trees_beside() is not None:
            model.config.boosted_trees = old.config.boosted_trees
            model.trees_beside().grow(model.config)
        rows = self.rows_before(old, model, earlier, processor)
        carry_weights(old, model, rows)
        self.follow(model, earlier, processor)
        metrics, file = folder.metrics(), folder.refit_optimizer
        if "before_refit" not in metrics:
            file = folder.checkpoints / f"checkpoint-{metrics['best_step']}" / "optimizer.pt"

        def start(optimizer: Any) -> str:
            if not file.is_file():
                return f"no optimiser state in {file.parent}: it starts anew"
            without = carry_optimizer(file, optimizer, old, model, rows)
            lacking = f", which has none of {', '.join(without)}: it starts anew there" if without else ""
            return f"optimiser state of {file.parent}{lacking}"

        return start
