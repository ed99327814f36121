"""`lmctr analyze behaviors RUN...`: which behaviour types the candidates of sequence models attend to (Climber, Fig. 7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lmctr.analysis.behavior_attention import BehaviorAttention, behavior_attention
from lmctr.analysis.plots_sequence import plot_behavior_attention
from lmctr.runs.folder import RunFolder
from lmctr.studies.analyses.common import Measure, OpenedRun
from lmctr.utils.tables import text_table


class _Behaviors(Measure):
    """Runs of sequence families; those that know the same behaviour types share a picture. Results are [`BehaviorAttention`]."""

    name, input = "behaviors", "sequence"

    def measure(self, run: OpenedRun) -> BehaviorAttention:
        options, inputs = self.options, run.inputs
        run.open(options.split)
        events = getattr(inputs.splits, options.split)
        events = events[np.random.default_rng(options.seed).permutation(len(events))[: options.num_samples]]
        return behavior_attention(run.model, inputs.view, events, options.batch_size)

    def text(self, name: str, found: BehaviorAttention) -> str:
        """The whole model, then each block in each layer."""

        def cells(values: Any) -> list[str]:
            return ["-" if value != value else f"{value:.1%}" for value in values]

        table = [["", *found.behavior_names], ["attention, whole model", *cells(found.overall())]]
        for place, block in enumerate(found.block_names):
            table.append([f"events in {block}", *cells(found.events[place])])
        for layer, of_layer in enumerate(found.shares):
            for block, shares in zip(found.block_names, of_layer):
                table.append([f"attention, layer {layer}, {block}", *cells(shares)])
        return f"{name}: {found.num_candidates:,} candidates\n{text_table(table)}"

    def content(self, results: dict[str, BehaviorAttention], folders: dict[str, RunFolder]) -> dict[str, Any]:
        return self.of_runs((found.to_dict() for found in results.values()), folders)

    def rows(self, name: str, found: BehaviorAttention) -> list[dict[str, Any]]:
        """A row per layer, block and behaviour type; None where no candidate sees an event of the block."""
        rows = []
        for layer, of_layer in enumerate(found.shares):
            for block, shares, events in zip(found.block_names, of_layer, found.events):
                for behavior, share, count in zip(found.behavior_names, shares, events):
                    values = {"attention": share, "events": count}
                    plain = {key: None if np.isnan(value) else float(value) for key, value in values.items()}
                    rows.append({"run": name, "layer": layer, "block": block, "behavior": behavior, **plain})
        return rows

    def plots(self, results: dict[str, BehaviorAttention], stem: Path) -> Iterator[Path]:
        groups: dict[tuple[str, ...], dict[str, BehaviorAttention]] = {}
        for name, found in results.items():
            groups.setdefault(found.behavior_names, {})[name] = found
        for group in groups.values():
            end = "" if len(groups) == 1 else "_" + next(iter(group)).replace("/", "_")
            yield plot_behavior_attention(group, f"{stem}{end}.png")


analyze_behaviors = _Behaviors.analyze
