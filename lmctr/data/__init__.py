# ruff: noqa: F401 - what type checkers read; `__all__` follows from the table
"""Interaction logs, their splits and checks, and the views that turn samples into tensors.

The names below are imported when they are first used, so that reading a log does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmctr.data.batches.impressions import ImpressionCollator, ImpressionDataset, ImpressionView
    from lmctr.data.batches.sequence import SequenceCollator, SequenceDataset, SequenceView, sumi_rows
    from lmctr.data.batches.tabular import TabularCollator, TabularDataset, TabularView
    from lmctr.data.batches.text import TextCollator, TextDataset, TextView
    from lmctr.data.features.processor import TabularFeatureProcessor
    from lmctr.data.impressions.source import ImpressionSource
    from lmctr.data.impressions.store import ImpressionStore
    from lmctr.data.logs.log import DatasetInfo, InteractionLog
    from lmctr.data.logs.retrieval import Retrieval, TextRetriever, build_retrieval
    from lmctr.data.logs.splits import Splits, split_log
    from lmctr.data.logs.table import load_table, log_from_table
    from lmctr.data.logs.validation import LeakageReport, validate_histories, validate_log
    from lmctr.data.processors.impressions import ImpressionProcessor
    from lmctr.data.processors.sequence import SequenceProcessor
    from lmctr.data.registry import load, load_impressions, load_log, load_tabular, register_dataset
    from lmctr.data.synthetic.cascade import SyntheticCascade, synthetic_cascade
    from lmctr.data.synthetic.log import SyntheticLog, synthetic_log
    from lmctr.data.synthetic.sequence import SyntheticSequenceLog, synthetic_sequence_log
    from lmctr.data.synthetic.tables import SyntheticTable, synthetic_table
    from lmctr.data.tables.load import table_source
    from lmctr.data.tables.source import TableSource
    from lmctr.data.tables.store import TabularStore

_MODULES = {
    "batches.impressions": ("ImpressionCollator", "ImpressionDataset", "ImpressionView"),
    "batches.sequence": ("SequenceCollator", "SequenceDataset", "SequenceView", "sumi_rows"),
    "batches.tabular": ("TabularCollator", "TabularDataset", "TabularView"),
    "batches.text": ("TextCollator", "TextDataset", "TextView"),
    "features.processor": ("TabularFeatureProcessor",),
    "impressions.source": ("ImpressionSource",),
    "impressions.store": ("ImpressionStore",),
    "logs.log": ("DatasetInfo", "InteractionLog"),
    "logs.retrieval": ("Retrieval", "TextRetriever", "build_retrieval"),
    "logs.splits": ("Splits", "split_log"),
    "logs.table": ("load_table", "log_from_table"),
    "logs.validation": ("LeakageReport", "validate_histories", "validate_log"),
    "processors.impressions": ("ImpressionProcessor",),
    "processors.sequence": ("SequenceProcessor",),
    "registry": ("load", "load_impressions", "load_log", "load_tabular", "register_dataset"),
    "synthetic.cascade": ("SyntheticCascade", "synthetic_cascade"),
    "synthetic.log": ("SyntheticLog", "synthetic_log"),
    "synthetic.sequence": ("SyntheticSequenceLog", "synthetic_sequence_log"),
    "synthetic.tables": ("SyntheticTable", "synthetic_table"),
    "tables.load": ("table_source",),
    "tables.source": ("TableSource",),
    "tables.store": ("TabularStore",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
