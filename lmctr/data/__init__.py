"""Interaction logs, their splits and checks, and the views that turn samples into tensors.

The names below are imported when they are first used, so that reading a log does not wait for torch.
"""

from lmctr.utils.lazy import lazy_names

_MODULES = {
    "batches.impressions": ("ImpressionCollator", "ImpressionDataset", "ImpressionView"),
    "batches.requests": ("RequestCollator",),
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
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)
__getattr__, __dir__ = lazy_names(__name__, _MODULE_OF)
