"""What is in a table or in impressions, for `lmctr data`: figures of their rows, parts and fields."""

from __future__ import annotations

from typing import Any

import numpy as np

from lmctr.data.features.columns import label_columns_of
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.features.times import seconds_of
from lmctr.data.impressions.source import ImpressionSource
from lmctr.data.impressions.store import ImpressionStore, count_block
from lmctr.data.impressions.validation import impression_findings
from lmctr.data.logs.splits import PARTS
from lmctr.data.processors.impressions import ImpressionProcessor
from lmctr.data.tables.source import TableSource
from lmctr.data.tables.store import TabularStore
from lmctr.data.tables.validation import table_findings


def describe_store(source: TableSource | ImpressionSource, store: TabularStore | ImpressionStore) -> dict[str, Any]:
    """The figures of a table or of impressions, with what looks like a leak in their processed rows."""
    if isinstance(store, TabularStore):
        figures, findings = describe_table(source, store.processor), table_findings(store, source)
    else:
        figures, findings = describe_impressions(source, store.processor), impression_findings(store)
    return figures | {"leaks": {finding.key: finding.text for finding in findings}}


def describe_table(source: TableSource, processor: TabularFeatureProcessor) -> dict[str, Any]:
    """Figures of a table: rows, label rate and dates of each part, and what its fields hold.

    Args:
        source: the table; its label, group and time columns are read once.
        processor: fitted on its training part, of which the figures of the fields are.
    """
    parts = {name: {"rows": 0} for name in PARTS}
    rates: dict[tuple[int, str], list[int]] = {}
    for rows in source.rows(source.special_columns()):
        names = [] if source.label is None else [source.label, *source.extra_labels]
        labels = label_columns_of(rows, names).reshape(len(rows), -1) if names else None
        times = None if source.time is None else seconds_of(rows, source.time, source.time_format)
        for code, part in enumerate(parts.values()):
            own = np.ones(len(rows), bool) if rows.split is None else rows.split == code
            if not own.any():
                continue
            part["rows"] += int(own.sum())
            if labels is not None:
                for name, column in zip(names, labels[own].T):
                    counted = rates.setdefault((id(part), name), [0, 0])
                    counted[0] += int((column > 0).sum())
                    counted[1] += int((column >= 0).sum())
            if times is not None:
                first, last = int(times[own].min()), int(times[own].max())
                part["first"], part["last"] = min(part.get("first", first), first), max(part.get("last", last), last)
    for part in parts.values():
        found = {name: counts[0] / counts[1] for (own, name), counts in rates.items() if own == id(part) and counts[1]}
        if source.label in found:
            part["label_rate"] = found[source.label]
        if source.extra_labels and found:
            part["label_rates"] = found
    special = {"label": source.label, "group": source.group, "time": source.time, "weight": source.weight}
    return {
        "kind": "table",
        "info": source.info.to_dict(),
        "counts": {"rows": sum(part["rows"] for part in parts.values()), "fields": len(processor.fields)},
        "columns": {name: column for name, column in special.items() if column is not None},
        "split": {"parts": {name: part for name, part in parts.items() if part["rows"]}},
        "fields": _fields(processor),
    }


def describe_impressions(source: ImpressionSource, processor: ImpressionProcessor) -> dict[str, Any]:
    """Figures of impressions: impressions and ads of each part, and what the fields of both sides hold.

    Args:
        source: the impressions, which are read once.
        processor: fitted on their training part, of which the figures of the fields are.
    """
    parts: dict[str, Any] = {}
    for block in source.read():
        count_block(block, parts)
    return {
        "kind": "impressions",
        "info": source.info.to_dict(),
        "counts": {name: sum(part[name] for part in parts.values()) for name in ("impressions", "ads")},
        "split": {"parts": {name: part for name, part in parts.items() if part["impressions"] or part["empty"]}},
        "user_fields": _fields(processor.user),
        "ad_fields": _fields(processor.ad),
    }


def _fields(processor: TabularFeatureProcessor) -> dict[str, dict[str, Any]]:
    rows = max(processor.statistics["num_rows"], 1)
    return {
        field.name: {
            "type": field.type,
            "share_missing": counted.get("missing", 0) / rows,
            "values": counted.get("distinct"),
            "values_kept": counted.get("kept"),
        }
        for field in processor.fields
        for counted in (processor.statistics["fields"].get(field.name, {}),)
    }
