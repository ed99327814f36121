"""Labels that a rule tells from a column of words or numbers: `label: {column: answer, equals: "yes"}`, as in the schema of a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lmctr.data.features.columns import Rows
from lmctr.data.logs.columns import nulls, place
from lmctr.data.logs.schema import Label, LabelSpec
from lmctr.data.logs.table import follows, unmet_rule
from lmctr.data.schemas import SchemaWording
from lmctr.utils.arrow import decoded, is_text, without_empty
from lmctr.utils.values import Values, read_values

from .source import Piece


class _Given(Values):
    label: Label


def label_spec(label: str | Mapping[str, Any] | LabelSpec) -> LabelSpec:
    """A label as it is given: the column of 0 and 1, or a rule on a column.

    Raises:
        ValueError: unknown keys, several rules, `missing: history`, which is for events of a log.
    """
    if not isinstance(label, LabelSpec):
        label = read_values(_Given, {"label": label}, SchemaWording("the table")).label
    if label.missing == "history":
        raise ValueError(
            f"label {label.column!r}: `missing: history` is for events of a log, which stand in histories; `missing: drop` leaves such rows out."
        )
    return label


def told_by(piece: Piece, labels: list[LabelSpec]) -> Piece:
    """The piece with 1 where a label's rule holds, 0 where not, and empty where its column is; without the rows that `missing: drop` leaves out."""
    rules = {spec.column: spec for spec in labels if spec.rule is not None}
    dropped = {spec.column: "number" for spec in labels if spec.missing == "drop"}
    if not rules and not dropped:
        return piece

    def read(columns: Mapping[str, str] | None) -> Iterator[Rows]:
        kinds = {name: _kind(spec) for name, spec in rules.items()}
        wanted = None if columns is None else dropped | dict(columns)  # always, so that rows are numbered alike
        wanted = wanted and {name: kinds.get(name, kind) for name, kind in wanted.items()}
        for rows in piece.read(wanted):
            told = Rows(_told(rows, rules), rows.source, rows.first, rows.split, rows.numbers)
            for name in dropped:
                told = told.take(~nulls(without_empty(decoded(told.column(name)))))
            yield told

    def unmet(column: str) -> str:
        if column not in rules:
            return ""
        spec = rules[column]
        return unmet_rule((rows.column(column) for rows in piece.read({column: _kind(spec)})), spec, "")

    said = repr(sorted(spec.describe() for spec in labels))
    return replace(piece, read=read, fingerprint=lambda: f"{piece.fingerprint()} {said}", unmet=unmet)


def _kind(spec: LabelSpec) -> str:
    """What a file's column is read as, to be compared."""
    values = spec.value if isinstance(spec.value, list) else [spec.value]
    if all(isinstance(value, str) for value in values):
        return "text"
    return "any" if any(isinstance(value, (str, bool)) for value in values) else "number"


def _told(rows: Rows, rules: Mapping[str, LabelSpec]) -> pa.Table:
    table = rows.whole
    for name in {*rules} & {*table.schema.names}:
        words, rule = decoded(rows.column(name)), rules[name]
        if not is_text(words.type) or "" not in (rule.value if isinstance(rule.value, list) else [rule.value]):
            words = without_empty(words)
        held = follows(words, rule, place(rows.source, name)).cast(pa.float64())
        table = table.set_column(table.schema.get_field_index(name), name, held)
    return table
