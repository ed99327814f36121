"""What the two kinds of schema files, of logs and of tables, share: keys, and how errors are worded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from lmctr.data.logs.log import DatasetInfo
from lmctr.utils.values import Values, Wording, dataclass_values

ColumnName = Annotated[str, Field(min_length=1)]
InfoKeys = dataclass_values(DatasetInfo, {"name"})


class ReadingKeys(Values):
    """How a file is read; `na_values` (words for "missing"), `decimal` and `names` (of a file without a line of them) are of CSV and TSV files."""

    format: str | None = None
    delimiter: str | None = None
    decimal: Literal[".", ","] = "."
    na_values: list[str] | None = None
    names: list[ColumnName] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _different_names(self) -> ReadingKeys:
        if doubled := [name for name in self.names or () if self.names.count(name) > 1]:
            raise ValueError(f"names: each column has a name of its own, and {doubled[0]!r} stands twice.")
        return self

    def reading(self) -> dict[str, Any]:
        """The arguments of [`lmctr.data.reading.read_table`]."""
        return {key: getattr(self, key) for key in ReadingKeys.model_fields}


class TimeKeys(Values):
    """A time column: numbers in `unit`, or words, ISO times or in `format`."""

    column: ColumnName | None = None
    format: str | None = None
    unit: Literal["s", "ms", "us", "ns"] = "s"

    @model_validator(mode="after")
    def _one_way(self) -> TimeKeys:
        if {"format", "unit"} <= self.model_fields_set:
            raise ValueError("`format` reads strings, `unit` numbers; give one of them.")
        return self


def short_for(key: str, kind: type = str) -> BeforeValidator:
    """A text, or a value of another type, stands for a mapping with this key."""
    return BeforeValidator(lambda value: {key: value} if type(value) is kind else value)


class SchemaWording(Wording):
    """Places are named from the inside out: `time in columns of shop.yaml`."""

    def place(self, path: Sequence[str | int]) -> str:
        text = self.where
        for depth, part in enumerate(path):
            joint = "in" if depth and path[depth - 1] == "columns" else "of"
            text = f"entry {part + 1} {joint} {text}" if isinstance(part, int) else f"{part} {joint} {text}"
        return text

    def mapping(self, path: Sequence[str | int], known: Sequence[str], value: Any) -> str:
        keys = f"keys ({', '.join(sorted(known))})"
        if {*known} == {"column", "missing"}:  # of ids, whose column alone is what nearly all write
            return f"{self.place(path)}: expected a name, got {value!r}; or {keys}."
        return f"{self.place(path)}: expected {keys}, got {value!r}."

    def missing(self, path: Sequence[str | int], accepted: str) -> str:
        return f"{self.place(path[:-1])}: the key {path[-1]!r} is missing."

    def wrong(self, path: Sequence[str | int], value: Any, accepted: str, in_type: bool) -> str:
        hint = "; YAML reads this word as true or false, put it in quotes" if isinstance(value, bool) else ""
        if "," in accepted:
            return f"{self.place(path)}: got {value!r}, accepted: {accepted}{hint}."
        return f"{self.place(path)}: expected {accepted.replace('text', 'a name')}, got {value!r}{hint}."

    def refused(self, path: Sequence[str | int], message: str, of_mapping: bool) -> str:
        return f"{self.place(path)}: {message}"


def info_values(keys: Values | None) -> dict[str, Any]:
    """The part `info` of a schema, what is stated of it."""
    return {} if keys is None else keys.model_dump(exclude_unset=True)


def refuse_other_schema(values: Any, where: str, is_log: bool) -> None:
    """A schema of the other kind is told as such. Raises `ValueError`."""
    own, other = (
        ({"events", "columns"}, {"files", "fields"}) if is_log else ({"files", "fields"}, {"events", "columns"})
    )
    if not isinstance(values, Mapping) or own & values.keys() or not other & values.keys():
        return
    if is_log:
        raise ValueError(
            f"{where} is the schema of a table (files, fields), and an interaction log is wanted here, whose schema has events and "
            "columns (see lmctr.data.logs.table); a table's rows are read by tabular families, such as deepfm. Rows that have a user, an item "
            "and a time can be a log, which every family reads: `lmctr init FILE` writes its schema"
        )
    raise ValueError(
        f"{where} is the schema of an interaction log (events, columns), and a table is wanted here, whose schema has files and "
        "fields (see lmctr.data.tables.load); a recipe of a tabular family takes it as it is in data.name, with the log's samples as rows; "
        f"or prepare the log, lmctr data prepare {where} --output FOLDER, and name FOLDER in data.name"
    )
