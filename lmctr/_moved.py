"""Modules by the paths that they had up to 0.1.0: importing one warns and gives the module of today itself, for one release."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType
from typing import Any

# Old path to new. One that ends in "_" or "." stands for all that begin so; the first that fits holds.
_MOVES = {
    "configuration_utils": "models.common.configuration",
    "modeling_utils": "models.common.base",
    "modeling_": "models.common.",
    "data.log": "data.logs.log",
    "data.splits": "data.logs.splits",
    "data.validation": "data.logs.validation",
    "data.retrieval": "data.logs.retrieval",
    "data.text_encoders": "data.logs.text_encoders",
    "data.columns": "data.logs.columns",
    "data.builders.schema": "data.logs.schema",
    "data.builders.table": "data.logs.table",
    "data.builders.reading": "data.reading",
    "data.builders.tabular_files": "data.builders.files",
    "data.tabular": "data.tables.load",
    "data.tabular_view": "data.batches.tabular",
    "data.tabular_": "data.tables.",
    "data.table_store": "data.tables.store",
    "data.impressions_processor": "data.processors.impressions",
    "data.impressions_view": "data.batches.impressions",
    "data.impressions_": "data.impressions.",
    "data.sequence_processor": "data.processors.sequence",
    "data.sequence": "data.batches.sequence",
    "data.text": "data.batches.text",
    "data.store_view": "data.batches.rows",
    "data.collators": "data.batches.text",
    "data.features_": "data.features.",
    "data.synthetic_": "data.synthetic.",
    "utils.history_features": "statistics.history_features",
    "hub.loading": "runs.loading",
    "hub.run_folder": "runs.folder",
    "hub.reference": "runs.reference",
    "cli.recipe": "runs.recipe",
    "cli.runs": "runs.folder",
    "cli.progress": "runs.progress",
    "cli.compare": "studies.compare",
    "cli.views": "runs.inputs",
    "cli.views.": "runs.inputs.",
    "cli.answers": "runs.answers.base",
    "cli.requests": "runs.answers.requests",
    "cli.predict_events": "runs.answers.histories",
    "cli.predict_table": "runs.answers.tables",
    "cli.predict_": "runs.answers.",
    "cli.grid_": "studies.grids.",
    "cli.scaling_": "studies.scaling.",
    "cli.analyze_sequence": "studies.analyses.behaviors",
    "cli.analyze_": "studies.analyses.",
    "cli.benchmark_tools": "benchmarks.harness",
    "cli.benchmark_": "benchmarks.",
    "analysis.plots_importance": "analysis.plots_report",
}


def _new_path(name: str) -> str | None:
    """Where a module of the package stands now; None where it was not moved."""
    path = name.removeprefix("lmctr.")
    if path == name:
        return None
    for old, new in _MOVES.items():
        if path == old:
            return f"lmctr.{new}"
        if old[-1] in "._" and path.startswith(old):
            return f"lmctr.{new}{path.removeprefix(old)}"
    return None


class _Moved(MetaPathFinder, Loader):
    """Finds a moved module under its old path, and loads what stands under the new one: the same object, so the same classes."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        new = _new_path(name)
        return None if new is None or find_spec(new) is None else spec_from_loader(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = _new_path(spec.name)
        warnings.warn(f"{spec.name} is now {new}; the old path goes with the next release", DeprecationWarning, 2)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already; Python has given it the spec of the old path, and gets the module's own back."""
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Let Python find the modules by their old paths.

    Before its other finders, which would load the content of a moved package once more.
    """
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
