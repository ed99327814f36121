"""The schema file that says which column of a table is what. See [`lmctr.data.logs.table`] for its keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lmctr.utils.files import read_yaml
from lmctr.utils.suggest import unknown_key_message

from .log import DatasetInfo

RULES = ("greater_than", "at_least", "less_than", "at_most", "equals", "in")
TYPES = ("text", "integer", "number")


@dataclass(frozen=True)
class FileSpec:
    """Where a table stands and how to read it."""

    path: str
    format: str | None = None
    delimiter: str | None = None


@dataclass(frozen=True)
class TimeSpec:
    """A time column: numbers in `unit`, or strings in `format`; naive times are in `timezone` (default UTC)."""

    column: str
    unit: str = "s"
    format: str | None = None
    timezone: str | None = None


@dataclass(frozen=True)
class LabelSpec:
    """A label column of 0 and 1, or a rule on a column; `missing` is "error" or "history" (the event is no sample)."""

    column: str
    rule: str | None = None
    value: Any = None
    missing: str = "error"

    def describe(self) -> str:
        """The rule in words, such as "rating > 3"."""
        sign = {"greater_than": ">", "at_least": ">=", "less_than": "<", "at_most": "<=", "equals": "=", "in": "in"}
        return f"column {self.column!r}" if self.rule is None else f"{self.column} {sign[self.rule]} {self.value}"


@dataclass(frozen=True)
class CodeSpec:
    """A column of names or codes."""

    column: str
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class AttributeSpec:
    """A column of the catalogue or user table; `separator` splits text into a list."""

    column: str
    type: str | None = None
    separator: str | None = None


@dataclass(frozen=True)
class AttributesSpec:
    """The catalogue or user table: a file of its own, or columns of the event table (`file` is None)."""

    file: FileSpec | None
    key: str
    columns: dict[str, AttributeSpec] | None


@dataclass(frozen=True)
class Schema:
    """A parsed schema; `where` names it in error messages."""

    where: str
    user: str
    item: str
    time: TimeSpec
    label: LabelSpec
    events: FileSpec | None = None
    feedback: CodeSpec | None = None
    scenario: CodeSpec | None = None
    weight: str | None = None
    extra_labels: dict[str, LabelSpec] = field(default_factory=dict)
    catalogue: AttributesSpec | None = None
    users: AttributesSpec | None = None
    info: dict[str, Any] = field(default_factory=dict)

    def event_columns(self) -> list[str]:
        """Every column of the event table that the schema uses."""
        names = [self.user, self.item, self.time.column, self.label.column]
        names += [spec.column for spec in (self.feedback, self.scenario) if spec is not None]
        names += [self.weight] if self.weight is not None else []
        names += [spec.column for spec in self.extra_labels.values()]
        for table in (self.catalogue, self.users):
            if table is not None and table.file is None:
                names += [spec.column for spec in (table.columns or {}).values()]
        return list(dict.fromkeys(names))


def read_schema(path: str | os.PathLike) -> Schema:
    """Reads a schema file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is no YAML mapping, repeats or lacks a key, has an unknown key (with the nearest known one) or a
            value of the wrong kind.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such schema file.")
    return parse_schema(read_yaml(path), str(path), needs_events=True)


def parse_schema(values: Any, where: str = "schema", needs_events: bool = False) -> Schema:
    """Checks a schema given as a mapping (the content of a schema file)."""
    values = _mapping(values, where, {"name", "events", "columns", "catalogue", "users", "info"})
    columns = _mapping(
        _need(values, "columns", where),
        f"columns of {where}",
        {"user", "item", "time", "label", "feedback", "scenario", "weight", "extra_labels"},
    )
    at = f"columns of {where}"
    if needs_events or "events" in values:
        events = _file(_need(values, "events", where), f"events of {where}")
    else:
        events = None
    user, item = (_text(_need(columns, key, at), f"{key} in {at}") for key in ("user", "item"))
    info = _mapping(
        values.get("info", {}), f"info of {where}", {entry.name for entry in fields(DatasetInfo)} - {"name"}
    )
    name = _text(values.get("name", "table"), f"name in {where}")
    extra = columns.get("extra_labels", {})
    if not isinstance(extra, Mapping):
        raise ValueError(f"extra_labels in {at}: expected label names with a column or rule each, got {extra!r}.")
    return Schema(
        where=where,
        user=user,
        item=item,
        time=_time(_need(columns, "time", at), f"time in {at}"),
        label=_label(_need(columns, "label", at), f"label in {at}"),
        events=events,
        feedback=_codes(columns["feedback"], f"feedback in {at}") if "feedback" in columns else None,
        scenario=_codes(columns["scenario"], f"scenario in {at}") if "scenario" in columns else None,
        weight=_text(columns["weight"], f"weight in {at}") if "weight" in columns else None,
        extra_labels={str(key): _label(value, f"extra_labels.{key} in {at}") for key, value in extra.items()},
        catalogue=_attributes(values["catalogue"], f"catalogue of {where}", "item", item)
        if "catalogue" in values
        else None,
        users=_attributes(values["users"], f"users of {where}", "user", user) if "users" in values else None,
        info=dict(info) | {"name": name},
    )


def _mapping(value: Any, where: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected keys ({', '.join(sorted(known))}), got {value!r}.")
    for key in value:
        if key not in known:
            raise ValueError(unknown_key_message(key, known, where))
    return dict(value)


def _need(values: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in values or values[key] is None:
        raise ValueError(f"{where}: the key {key!r} is missing.")
    return values[key]


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        hint = "; YAML reads this word as true or false, put it in quotes" if isinstance(value, bool) else ""
        raise ValueError(f"{where}: expected a name, got {value!r}{hint}.")
    return value


def _one_of(value: Any, accepted: tuple[str, ...], where: str) -> str:
    if value not in accepted:
        raise ValueError(f"{where}: got {value!r}, accepted: {', '.join(accepted)}.")
    return value


def _file(value: Any, where: str) -> FileSpec:
    if isinstance(value, str):
        return FileSpec(value)
    value = _mapping(value, where, {"path", "format", "delimiter"})
    return FileSpec(
        _text(_need(value, "path", where), f"path in {where}"), value.get("format"), value.get("delimiter")
    )


def _time(value: Any, where: str) -> TimeSpec:
    if isinstance(value, str):
        return TimeSpec(value)
    value = _mapping(value, where, {"column", "unit", "format", "timezone"})
    unit = _one_of(value.get("unit", "s"), ("s", "ms", "us", "ns"), f"unit of {where}")
    if "format" in value and "unit" in value:
        raise ValueError(f"{where}: `format` reads strings, `unit` numbers; give one of them.")
    return TimeSpec(
        _text(_need(value, "column", where), f"column of {where}"), unit, value.get("format"), value.get("timezone")
    )


def _label(value: Any, where: str) -> LabelSpec:
    if isinstance(value, str):
        return LabelSpec(value)
    value = _mapping(value, where, {"column", "missing", *RULES})
    rules = [rule for rule in RULES if rule in value]
    if len(rules) > 1:
        raise ValueError(f"{where}: one rule at most, got {', '.join(rules)}.")
    rule = rules[0] if rules else None
    number = value.get(rule) if rule else None
    if rule in RULES[:4] and (isinstance(number, bool) or not isinstance(number, (int, float))):
        raise ValueError(f"{where}: `{rule}` needs a number, got {number!r}.")
    if rule == "in" and (not isinstance(number, list) or not number):
        raise ValueError(f"{where}: `in` needs a list of values, got {number!r}.")
    if rule == "equals" and isinstance(number, (list, dict, type(None))):
        raise ValueError(f"{where}: `equals` needs one value, got {number!r}.")
    missing = _one_of(value.get("missing", "error"), ("error", "history"), f"missing of {where}")
    return LabelSpec(_text(_need(value, "column", where), f"column of {where}"), rule, number, missing)


def _codes(value: Any, where: str) -> CodeSpec:
    if isinstance(value, str):
        return CodeSpec(value)
    value = _mapping(value, where, {"column", "names"})
    names = value.get("names")
    if names is not None:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not names:
            raise ValueError(f"names of {where}: expected a list of names, got {names!r}.")
        if len(set(names)) < len(names):
            raise ValueError(f"names of {where}: each name may stand once, got {names}.")
    return CodeSpec(
        _text(_need(value, "column", where), f"column of {where}"), None if names is None else tuple(names)
    )


def _attributes(value: Any, where: str, key: str, event_column: str) -> AttributesSpec:
    if isinstance(value, str):
        return AttributesSpec(FileSpec(value), event_column, None)
    value = _mapping(value, where, {"path", "format", "delimiter", key, "columns"})
    given = value.get("columns")
    if given is None:
        columns = None
    elif isinstance(given, list):
        columns = {_text(name, f"columns of {where}"): AttributeSpec(name) for name in given}
    elif isinstance(given, Mapping):
        columns = {
            str(name): _attribute(str(name), spec, f"{name} in columns of {where}") for name, spec in given.items()
        }
    else:
        raise ValueError(
            f"columns of {where}: expected a list of columns, or names with a column each, got {given!r}."
        )
    if "path" in value:
        file = _file({name: value[name] for name in ("path", "format", "delimiter") if name in value}, where)
        return AttributesSpec(file, _text(value.get(key, event_column), f"{key} in {where}"), columns)
    for name in ("format", "delimiter", key):
        if name in value:
            raise ValueError(f"{where}: {name!r} belongs to a file of its own; add `path`, or leave it out.")
    if not columns:
        raise ValueError(f"{where}: give `path` (a file of its own) or `columns` (columns of the event table).")
    return AttributesSpec(None, event_column, columns)


def _attribute(name: str, value: Any, where: str) -> AttributeSpec:
    if isinstance(value, str):
        return AttributeSpec(value)
    value = _mapping({} if value is None else value, where, {"column", "type", "separator"})
    kind = value.get("type")
    if kind is not None:
        _one_of(kind, TYPES, f"type of {where}")
    separator = value.get("separator")
    if separator is not None and (kind not in (None, "text") or not isinstance(separator, str) or not separator):
        raise ValueError(f"{where}: `separator` splits text, got separator {separator!r} with type {kind!r}.")
    return AttributeSpec(_text(value.get("column", name), f"column of {where}"), kind, separator)
