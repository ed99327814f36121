"""Proof by example that a processed table leaks nothing that is known to leak. See [`lmctr.data.leaks`]."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from lmctr.data.leaks import (
    Finding,
    duplicate_rows,
    encodings,
    row_hashes,
    settle,
    some_of,
    telling_fields,
    times_in_another_unit,
)
from lmctr.data.logs.splits import PARTS

from .source import TableSource
from .store import INPUTS, TabularStore

_MOST = 5_000_000  # rows up to which whole columns are gone through


def validate_table(
    store: TabularStore,
    source: TableSource | None = None,
    allow: Mapping[str, str] | None = None,
    counted: Collection[str] = (),
) -> list[str]:
    """Checks a table for leaks.

    Args:
        store: the processed table. source: where it comes from, which knows how its rows were parted.
        allow: reasons for what is no leak, by check or by check and name: `{"field:price": "known before"}`.
        counted: fields that are statistics of a log, causal to the second, which [`~lmctr.data.logs.validation.validate_log`] judges.

    Returns:
        Lines about what was allowed.

    Raises:
        ValueError: what was found and not allowed, with figures.
    """
    return settle(table_findings(store, source, counted), allow, store.info.name or "table")


def table_findings(
    store: TabularStore, source: TableSource | None = None, counted: Collection[str] = ()
) -> list[Finding]:
    """Everything that [`validate_table`] looks for."""
    findings = []
    train, validation, test = (store.splits[part] for part in PARTS)
    held = np.concatenate([validation, test])
    if source is not None:
        findings += _random_split(source)
    if store.times is not None:
        findings += times_in_another_unit(np.asarray(store.times), store.processor.time or "time")
    if store.processor is not None:
        findings += _fitted_on_more(store, train, validation, test)
    if store.labels is None or not len(train) or not len(held):
        return findings
    columns = np.asarray(store.labels).reshape(len(store), -1)
    known: dict[tuple[str, str], Finding] = {}
    for labels in columns.T:  # a field may tell of any of them
        own = (rows[labels[rows] >= 0] for rows in (train, test if len(test) else held, held))
        known |= {(one.check, one.name): one for one in reversed(_label_findings(store, labels, *own, counted))}
    return findings + list(reversed(known.values()))


def _label_findings(
    store: TabularStore,
    labels: np.ndarray,
    train: np.ndarray,
    last: np.ndarray,
    held: np.ndarray,
    counted: Collection[str],
) -> list[Finding]:
    """What tells of one label: labels (S,), and the rows of training, of the last part and of all parts held out that have it."""
    if not len(train) or not len(held):
        return []
    codes, numbers = ({name: own for name, own in kind.items() if name not in counted} for kind in _columns(store))
    found = telling_fields({**codes, **numbers}, labels, *some_of(train, last))
    findings = list(found)
    if len(store) <= _MOST:
        told = {finding.name for finding in found}
        bins = codes.keys() & store.processor.state.bounds.keys()
        numbers |= {name: codes[name].astype(np.float64) for name in bins}
        numbers = {name: values for name, values in numbers.items() if name not in told}
        categories = {name: values for name, values in codes.items() if name not in bins | told}
        findings += encodings(numbers, categories, labels, train, held)
        arrays = [getattr(store, name) for name in (*INPUTS, "groups", "times") if getattr(store, name) is not None]
        findings += duplicate_rows(row_hashes(arrays), labels, train, held, lambda: _alike(store, train))
    return findings


def _alike(store: TabularStore, train: np.ndarray) -> float:
    """How likely two rows are alike, were the columns that fields are made of independent: the product of their shares of equal pairs."""
    column_of = {field.name: field.source_column for field in store.processor.ordered_fields()}
    shares: dict[str, float] = {}
    others = {name: getattr(store, name) for name in (*INPUTS[2:], "groups", "times")}
    others = {name: row_hashes([values]) for name, values in others.items() if values is not None}
    for name, values in [own for kind in (*_columns(store), others) for own in kind.items()]:
        counts = np.unique(values[train], return_counts=True)[1] / len(train)
        column = column_of.get(name, name)
        shares[column] = min(shares.get(column, 1.0), float(counts @ counts))
    return float(np.prod([*shares.values()]))


def _columns(store: TabularStore) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Ids and numbers of each field."""
    fields = store.processor.ordered_fields()
    kinds = {kind: [field.name for field in fields if field.kind == kind] for kind in ("id", "value")}
    codes = {name: np.asarray(store.input_ids[:, place]) for place, name in enumerate(kinds["id"])}
    numbers = {name: np.asarray(store.numeric_values[:, place]) for place, name in enumerate(kinds["value"])}
    return codes, numbers


def _random_split(source: TableSource) -> list[Finding]:
    """Rows with a time whose test part is drawn at random."""
    rules = [piece.rule or source.split for piece in source.pieces if piece.part is None]
    if (
        source.time is None
        or source.published_split
        or not any(rule.rule == "random" and rule.fractions[2] for rule in rules)
    ):
        return []
    text = f"rows are parted at random although they have the time column {source.time!r}: training looks past the test (set split: time)"
    return [Finding("random_split", "", text)]


def _fitted_on_more(store: TabularStore, train: np.ndarray, validation: np.ndarray, test: np.ndarray) -> list[Finding]:
    """A processor that has seen as many rows as training and test have together."""
    rows = store.processor.statistics.get("num_rows")
    sizes = {len(train) + len(test), len(train) + len(validation) + len(test)}
    if not len(test) or rows is None or rows == len(train) or rows not in sizes:
        return []
    text = (
        f"the processor was fitted on {rows:,} rows, as many as training ({len(train):,}) and test ({len(test):,}) have together: fit it on "
        "the training part"
    )
    return [Finding("processor", "", text)]
