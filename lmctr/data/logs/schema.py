"""The schema file that says which column of a table is what. See [`lmctr.data.logs.table`] for its keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from lmctr.data.amounts import WRITTEN, check_written
from lmctr.data.reading import format_of
from lmctr.data.schemas import (
    ColumnName,
    InfoKeys,
    ReadingKeys,
    SchemaWording,
    TimeKeys,
    refuse_other_schema,
    short_for,
)
from lmctr.utils.files import read_yaml
from lmctr.utils.values import Values, read_values

# Rules of labels, by their sign in words.
RULES = {"greater_than": ">", "at_least": ">=", "less_than": "<", "at_most": "<=", "equals": "=", "in": "in"}

OWN_NAMES = {"user_id", "item_id", "label", "time", "liked_items", "other_items", "liked_times", "other_times"}
"""What a log's samples as a table call columns of their own, so that no other may be called so."""


class FileSpec(ReadingKeys):
    """Where a table stands and how to read it."""

    path: ColumnName

    def at(self, path: Path) -> FileSpec:
        """Another file, which is read alike; what is said of texts is nothing to a Parquet or JSON lines file."""
        is_text = self.format is not None or format_of(path) in ("csv", "tsv")
        return FileSpec(**{**(self.model_dump() if is_text else {}), "path": str(path)})


class TimeSpec(TimeKeys):
    """A time column; naive times are in `timezone` (default UTC)."""

    column: ColumnName
    timezone: str | None = None


class EventTimeSpec(TimeSpec):
    """The time of events; `missing` is "error" or "drop" (an event without one is left out)."""

    missing: Literal["error", "drop"] = "error"


class LabelSpec(Values):
    """A label column of 0 and 1, or a rule on a column; beside `equals`, `otherwise` holds the value or values that are no clicks, and any other
    is an error: it may be a click of a file that is written otherwise. `missing` is "error", "history" (of a log: the event is no sample) or "drop" (of a
    table: the row is left out)."""

    column: ColumnName
    missing: Literal["error", "history", "drop"] = "error"
    greater_than: Any = None
    at_least: Any = None
    less_than: Any = None
    at_most: Any = None
    equals: Any = None
    in_: Any = Field(None, alias="in")
    otherwise: Any = None

    @model_validator(mode="after")
    def _check_rule(self) -> LabelSpec:
        rules = [rule for rule in RULES if _field(rule) in self.model_fields_set]
        if len(rules) > 1:
            raise ValueError(f"one rule at most, got {', '.join(rules)}.")
        rule, value = self.rule, self.value
        if rule == "in" and (not isinstance(value, list) or not value):
            raise ValueError(f"`in` needs a list of values, got {value!r}.")
        if rule == "equals" and isinstance(value, (list, dict, type(None))):
            raise ValueError(f"`equals` needs one value, got {value!r}.")
        if "otherwise" in self.model_fields_set and (rule != "equals" or value in self.others or None in self.others):
            raise ValueError(f"`otherwise` needs other values than `equals`, beside it, got {self.otherwise!r}.")
        if rule not in (None, "in", "equals") and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError(f"`{rule}` needs a number, got {value!r}.")
        return self

    @property
    def rule(self) -> str | None:
        """The key of the rule; None: the column holds 0 and 1."""
        return next((rule for rule in RULES if _field(rule) in self.model_fields_set), None)

    @property
    def value(self) -> Any:
        """What the rule compares with."""
        return None if self.rule is None else getattr(self, _field(self.rule))

    @property
    def others(self) -> list[Any]:
        """The values that are no clicks; empty: all that the rule does not name."""
        if "otherwise" not in self.model_fields_set:
            return []
        return self.otherwise if isinstance(self.otherwise, list) else [self.otherwise]

    def describe(self) -> str:
        """The rule in words, such as "rating > 3"."""
        dropped = ", rows without it left out" if self.missing == "drop" else ""
        return (
            f"column {self.column!r}" if self.rule is None else f"{self.column} {RULES[self.rule]} {self.value}"
        ) + dropped


def _field(rule: str) -> str:
    return "in_" if rule == "in" else rule


class KeySpec(Values):
    """A column of users or items; `missing` is "error" or "drop" (a row without one, such as of a search or the start of an app, is left out)."""

    column: ColumnName
    missing: Literal["error", "drop"] = "error"


class CodeSpec(Values):
    """A column of names or codes."""

    column: ColumnName
    names: list[str] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _different(self) -> CodeSpec:
        if self.names is not None and len(set(self.names)) < len(self.names):
            raise ValueError(f"names: each name may stand once, got {self.names}.")
        return self


class AttributeSpec(Values):
    """A column of the catalogue, the user table or the context; `separator` splits text into a list, `parse: literal` reads lists such as ['a', 'b']; `decimal`, `thousands` and `unit` say how texts of
    numbers are written, see [`lmctr.data.amounts`]."""

    column: ColumnName
    type: Literal["text", "integer", "number"] | None = None
    separator: Annotated[str, Field(min_length=1)] | None = None
    parse: Literal["literal"] | None = None
    decimal: str = "."
    thousands: str | None = None
    unit: str | None = None

    @property
    def is_list(self) -> bool:
        """Whether its texts hold lists."""
        return self.separator is not None or self.parse is not None

    @property
    def written(self) -> dict[str, str]:
        """How the texts of its numbers are written, where not as usual."""
        return self.model_dump(include=set(WRITTEN), exclude_defaults=True)

    @model_validator(mode="after")
    def _splits_text(self) -> AttributeSpec:
        check_written(self.column, self.decimal, self.thousands, self.unit)
        if self.written and self.type != "number":
            raise ValueError(
                f"`{next(iter(self.written))}` says how numbers are written, and needs `type: number`, got type {self.type!r}."
            )
        if self.separator is not None and self.parse is not None:
            raise ValueError("`parse` takes the place of `separator`; leave one out.")
        if self.is_list and self.type not in (None, "text"):
            way = f"parse {self.parse!r}" if self.separator is None else f"separator {self.separator!r}"
            raise ValueError(f"`{way.split()[0]}` splits text, got {way} with type {self.type!r}.")
        return self


def _named(columns: Any) -> Any:
    """A list of columns, or names with a column each, as names with the keys of a column."""
    if isinstance(columns, list):
        columns = {name: name for name in columns}
    if not isinstance(columns, dict):
        return columns
    whole = {}
    for name, spec in columns.items():
        spec = {"column": spec} if isinstance(spec, str) else {} if spec is None else spec
        whole[str(name)] = {"column": str(name), **spec} if isinstance(spec, dict) else spec
    return whole


NamedColumns = Annotated[dict[str, AttributeSpec], BeforeValidator(_named)]


class AttributesSpec(FileSpec):
    """The catalogue or user table: a file of its own, or columns of the event table."""

    path: ColumnName | None = None
    item: ColumnName | None = None
    user: ColumnName | None = None
    columns: NamedColumns | None = None

    @model_validator(mode="after")
    def _one_place(self) -> AttributesSpec:
        for name in () if self.path is not None else (*ReadingKeys.model_fields, "item", "user"):
            if name in self.model_fields_set:
                raise ValueError(f"{name!r} belongs to a file of its own; add `path`, or leave it out.")
        if self.path is None and not self.columns:
            raise ValueError("give `path` (a file of its own) or `columns` (columns of the event table).")
        return self


class NegativesSpec(Values):
    """Items drawn beside each event of a table of clicks alone, see [`~lmctr.data.logs.negatives.with_negatives`]."""

    per_event: Annotated[int, Field(ge=1)]
    draw: Literal["uniform", "popular"] = "uniform"
    seed: Annotated[int, Field(ge=0)] = 0

    def describe(self) -> str:
        """The rule in words."""
        which = {"uniform": "uniformly", "popular": "by their events so far"}[self.draw]
        return f"every row a click, {self.per_event} items drawn beside each ({which})"


Label = Annotated[LabelSpec, short_for("column")]
Key = Annotated[KeySpec, short_for("column")]
Codes = Annotated[CodeSpec, short_for("column")]
AttributeTable = Annotated[AttributesSpec, short_for("path")]


class ColumnKeys(Values):
    """Which column of the event table is what."""

    user: Key
    item: Key
    time: Annotated[EventTimeSpec, short_for("column")]
    label: Label | None = None
    feedback: Codes | None = None
    scenario: Codes | None = None
    weight: ColumnName | None = None
    feedback_values: ColumnName | None = None
    part: ColumnName | None = None
    context: NamedColumns = {}  # noqa: RUF012 (pydantic copies it)
    extra_labels: dict[str, Label] = {}  # noqa: RUF012 (pydantic copies it)


class Schema(Values):
    """A schema file."""

    name: ColumnName = "table"
    events: Annotated[FileSpec, short_for("path")] | None = None
    columns: ColumnKeys
    negatives: Annotated[NegativesSpec, short_for("per_event", int)] | None = None
    catalogue: AttributeTable | None = None
    users: AttributeTable | None = None
    missing_items: Literal["error", "drop", "empty"] = "error"
    info: InfoKeys | None = None

    @model_validator(mode="after")
    def _misses_of_a_file(self) -> Schema:
        if self.missing_items != "error" and (self.catalogue is None or self.catalogue.path is None):
            raise ValueError(
                f"missing_items is {self.missing_items!r}, but the catalogue is no file of its own, so that no item can be missing; leave "
                "missing_items out."
            )
        return self

    @model_validator(mode="after")
    def _label_or_negatives(self) -> Schema:
        if self.columns.label is None and self.negatives is None:
            raise ValueError(
                "`label` of `columns` is missing: the column that tells clicks; where every row is one, write `negatives: 2` beside `columns`: "
                "items drawn beside each."
            )
        if self.columns.label is not None and self.negatives is not None:
            raise ValueError(
                "`negatives` are drawn where every row is a click, and `label` tells which are; leave one of them out."
            )
        return self

    def tables(self) -> Iterator[tuple[str, AttributesSpec, str, str]]:
        """Of the catalogue and the user table, where there are such: name, keys, name of the ids in the log, id column."""
        if self.catalogue is not None:
            yield "catalogue", self.catalogue, "item_id", self.catalogue.item or self.columns.item.column
        if self.users is not None:
            yield "users", self.users, "user_id", self.users.user or self.columns.user.column

    def event_columns(self) -> list[str]:
        """Every column of the event table that the schema uses."""
        keys = self.columns
        specs = [keys.user, keys.item, keys.time, keys.label, keys.feedback, keys.scenario]
        specs += [*keys.extra_labels.values(), *keys.context.values()]
        for _, table, _, _ in self.tables():
            specs += () if table.path is not None else table.columns.values()
        names = [keys.weight, keys.feedback_values, keys.part]
        names += [spec.column for spec in specs if spec is not None]
        return list(dict.fromkeys(name for name in names if name is not None))


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
    refuse_other_schema(values, where, is_log=True)
    schema = read_values(Schema, values, SchemaWording(where))
    if needs_events and schema.events is None:
        raise ValueError(f"{where}: the key 'events' is missing.")
    return schema
