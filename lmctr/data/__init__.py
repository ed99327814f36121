"""Interaction logs, their splits and checks, and the views that turn samples into tensors.

The names below are imported when they are first used, so that reading a log does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .builders.table import load_table, log_from_table
    from .collators import TextCollator
    from .features import TabularFeatureProcessor
    from .impressions import (
        ImpressionCollator,
        ImpressionDataset,
        ImpressionSource,
        ImpressionStore,
        ImpressionView,
        load_impressions,
    )
    from .impressions_processor import ImpressionProcessor
    from .load import load_log
    from .log import DatasetInfo, InteractionLog
    from .retrieval import Retrieval, TextRetriever, build_retrieval
    from .sequence import SequenceCollator, SequenceDataset, SequenceView, sumi_rows
    from .sequence_processor import SequenceProcessor
    from .splits import Splits, split_log
    from .synthetic import synthetic_log
    from .synthetic_cascade import synthetic_cascade
    from .synthetic_tables import synthetic_table
    from .table_store import TabularStore
    from .tabular import load_tabular, table_source
    from .tabular_source import TableSource
    from .tabular_view import TabularCollator, TabularDataset, TabularView
    from .text import TextDataset, TextView
    from .validation import LeakageReport, validate_histories, validate_log

_MODULES = {
    "builders.table": ("load_table", "log_from_table"),
    "collators": ("TextCollator",),
    "features": ("TabularFeatureProcessor",),
    "impressions": (
        "ImpressionCollator",
        "ImpressionDataset",
        "ImpressionSource",
        "ImpressionStore",
        "ImpressionView",
        "load_impressions",
    ),
    "impressions_processor": ("ImpressionProcessor",),
    "load": ("load_log",),
    "log": ("DatasetInfo", "InteractionLog"),
    "retrieval": ("Retrieval", "TextRetriever", "build_retrieval"),
    "sequence": ("SequenceCollator", "SequenceDataset", "SequenceView", "sumi_rows"),
    "sequence_processor": ("SequenceProcessor",),
    "splits": ("Splits", "split_log"),
    "synthetic": ("synthetic_log",),
    "synthetic_cascade": ("synthetic_cascade",),
    "synthetic_tables": ("synthetic_table",),
    "table_store": ("TabularStore",),
    "tabular": ("load_tabular", "table_source"),
    "tabular_source": ("TableSource",),
    "tabular_view": ("TabularCollator", "TabularDataset", "TabularView"),
    "text": ("TextDataset", "TextView"),
    "validation": ("LeakageReport", "validate_histories", "validate_log"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "DatasetInfo",
    "ImpressionCollator",
    "ImpressionDataset",
    "ImpressionProcessor",
    "ImpressionSource",
    "ImpressionStore",
    "ImpressionView",
    "InteractionLog",
    "LeakageReport",
    "Retrieval",
    "SequenceCollator",
    "SequenceDataset",
    "SequenceProcessor",
    "SequenceView",
    "Splits",
    "TableSource",
    "TabularCollator",
    "TabularDataset",
    "TabularFeatureProcessor",
    "TabularStore",
    "TabularView",
    "TextCollator",
    "TextDataset",
    "TextRetriever",
    "TextView",
    "build_retrieval",
    "load_impressions",
    "load_log",
    "load_table",
    "load_tabular",
    "log_from_table",
    "split_log",
    "sumi_rows",
    "synthetic_cascade",
    "synthetic_log",
    "synthetic_table",
    "table_source",
    "validate_histories",
    "validate_log",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
