"""`lmctr analyze importance RUN...`: what the answers of a model of tables, sequences or texts hang on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lmctr.analysis.importance import Importance, column_importance
from lmctr.analysis.plots_report import plot_importance
from lmctr.runs.folder import RunFolder
from lmctr.studies.analyses.common import Measure, OpenedRun
from lmctr.utils.tables import text_table


class _Importance(Measure):
    """Runs whose samples have labels; results are [`Importance`]."""

    name, input = "importance", "samples"

    def measure(self, run: OpenedRun) -> Importance:
        options = self.options
        run.open(options.split)
        rows = run.inputs.dataset(options.split).events
        rows = rows[np.random.default_rng(options.seed).permutation(len(rows))[: options.num_samples]]
        return column_importance(run.model, run.inputs.view, rows, options.batch_size, options.seed)

    def text(self, name: str, found: Importance) -> str:
        table = [["shuffled", "AUC lost", "95 % interval", "log loss gained"]]
        for loss in found.losses[: self.options.top]:
            interval = "-" if loss.low is None else f"{loss.low:+.4f} to {loss.high:+.4f}"
            table.append([loss.column, f"{loss.auc:+.4f}", interval, f"{loss.log_loss:+.4f}"])
        more = len(found.losses) - len(table) + 1
        head = f"{name}: {found.num_samples:,} samples, AUC {found.auc:.4f}, log loss {found.log_loss:.4f}"
        return f"{head}\n{text_table(table)}" + (
            f"\n({more} more lose less; --top says how many to print)" if more > 0 else ""
        )

    def content(self, results: dict[str, Importance], folders: dict[str, RunFolder]) -> dict[str, Any]:
        entries = (
            {"num_samples": one.num_samples, "auc": one.auc, "log_loss": one.log_loss, "losses": one.rows()}
            for one in results.values()
        )
        return self.of_runs(entries, folders)

    def rows(self, name: str, found: Importance) -> list[dict[str, Any]]:
        return [{"run": name, **row} for row in found.rows()]

    def plots(self, results: dict[str, Importance], stem: Path) -> Iterator[Path]:
        for name, found in results.items():
            end = "" if len(results) == 1 else "_" + name.replace("/", "_")
            yield plot_importance(found, f"{stem}{end}.png")


analyze_importance = _Importance.analyze
