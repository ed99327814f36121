"""`lmctr analyze next RUN...`: how much of what users took next the lists of a run hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from lmctr.runs.answers.next_items import NextItems, next_items
from lmctr.runs.answers.recommend import BestItems
from lmctr.runs.folder import RunFolder
from lmctr.runs.loading import load_run
from lmctr.runs.recipe import Recipe
from lmctr.studies.analyses.common import Measure
from lmctr.utils.measure import usable_device


class _Next(Measure):
    """Runs of a log; results are [`NextItems`]."""

    name, input = "next", "samples"

    @contextmanager
    def opened(self, folder: RunFolder, recipe: Recipe) -> Iterator[BestItems]:
        options = self.options
        model, processor = load_run(folder.path)
        model.to(usable_device(options.device))
        yield BestItems(
            folder, model, processor, options.log, None, options.seen, options.time, batch_size=options.batch_size
        )

    def measure(self, run: BestItems) -> NextItems:
        options = self.options
        if (hint := run.hint()) is not None:
            print(f"warning: {hint}", file=sys.stderr)
        return next_items(run, options.split, options.top, options.num_users, options.seed)

    def text(self, name: str, found: NextItems) -> str:
        return f"{name}: {found}"

    def content(self, results: dict[str, NextItems], folders: dict[str, RunFolder]) -> dict[str, Any]:
        return self.of_runs(map(asdict, results.values()), folders, seen=self.options.seen, time=self.options.time)

    def rows(self, name: str, found: NextItems) -> list[dict[str, Any]]:
        return [{"run": name, "list": kind, **asdict(own)} for kind, own in found.lists.items()]


analyze_next = _Next.analyze
