"""Fields of a tabular feature processor: what each is made from and how. See [`lmctr.data.features.processor`]."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logit

from lmctr.data.amounts import WRITTEN, check_written
from lmctr.data.texts import PARSES
from lmctr.utils.suggest import did_you_mean, refuse_unknown, unknown_key_message

from .canonical import VALUE_TYPES

SMALLEST_RATE = 1e-6  # before its log-odds
PADDING_ID, OOV_ID, FIRST_ID = 0, 1, 2
TYPES = ("categorical", "numeric", "sequence", "multi_value")
TRANSFORMS = ("raw", "log1p", "standardize", "quantile")
BEFORE = (None, "log1p", "logit")
EXTRACTS = ("hour", "weekday", "weekend", "day", "month", "year")  # of categorical fields
DAYS = "days"  # of numeric ones
MISSING = ("oov", "own_id")
LONGEST = 65_536
"""Most values of a list field."""
_COMMON = ("name", "type", "column", "embedding_dim")
_VOCABULARY = ("min_count", "max_size", "max_idle", "hash_buckets", "share_with", "value_type", "max_unknown")
_DAYS = ("extract", "time_format", "until", "until_format")
_KEYS = {
    "categorical": (*_COMMON, *_VOCABULARY, "missing", "extract", "time_format", "cross"),
    "numeric": (*_COMMON, *_DAYS, *WRITTEN, "before", "transform", "num_bins", "missing", "fill_value"),
    "sequence": (
        *_COMMON,
        *_VOCABULARY,
        "max_length",
        "separator",
        "weight_separator",
        "keep",
        "time_column",
        "parse",
    ),
    "multi_value": (*_COMMON, *_VOCABULARY, "max_length", "separator", "weight_separator", "keep", "parse"),
}


@dataclass(frozen=True)
class Field:
    """One field of a table.

    Args:
        name: name of the field, unique in a processor.
        type: "categorical" (one value), "numeric", "sequence" (values in the order of time, oldest first) or "multi_value" (a
            set of values; handled as a sequence without times).
        column: column that it reads; default: `name`. Several fields may read one column.
        embedding_dim: width of its embedding, when it is not the model's.
        min_count: values seen less often in the data fitted on share the id of unknown values.
        max_size: keep at most this many values, the most frequent.
        max_idle: a value that was absent in so many extensions in a row (see [`lmctr.data.features.extend`]) loses its id.
        hash_buckets: no vocabulary; a value's id is a stable hash of it, 2 to `hash_buckets` + 1. Nothing is fitted, so memory
            does not grow with the number of distinct values.
        share_with: field whose vocabulary is used (the counts of all fields that share it are added up). A sequence then reads
            that field's embedding table too.
        value_type: what the values are: "text", "integer" or "number", which says what texts and numbers are one value (see
            [`lmctr.data.features.canonical`]); default: the narrowest that all values fitted on are of. Fields that share a vocabulary share it.
        max_unknown: largest share of unknown values that a table to score may have; default: see [`lmctr.data.features.unknown`].
        missing: categorical and quantile fields: "oov" gives missing values the id of unknown values, "own_id" the id 2.
        extract: part of a time that is the value: "hour" (0-23), "weekday" (0 = Monday), "weekend" (0 or 1), "day", "month",
            "year"; of numeric fields "days" since 1970, with the part of the day behind the point.
        time_format: `strptime` format of the column for `extract`; without it the column holds timestamps, ISO times or unix seconds. The parts are those of
            UTC.
        until, until_format: numeric fields of `extract` "days": another column of times, and its format; the value is the days up to that one, so that a
            date of birth and the row's own time make an age.
        decimal, thousands, unit: numeric fields, how their texts are written: "$84,835.00" with `thousands` "," and `unit` "$"; "1.234,50 kg" with `decimal`
            ",", `thousands` "." and `unit` "kg". Without thousands, or a unit that is no word, a text is a number too; another unit is an error.
        cross: two other categorical fields, whose values together are the value: missing where either is. Take a `min_count` above 1, or
            `hash_buckets`, where the pairs are many.
        before: numeric fields: what a number becomes before `transform`, and before anything is fitted: "log1p" (sign(x) log(1 + |x|))
            or "logit" (log-odds of a rate); default: nothing.
        transform: numeric fields: "raw", "log1p" (sign(x) log(1 + |x|)), "standardize" ((x - mean) / standard deviation of the
            data fitted on, what lies beyond their least and most read as these) or "quantile" (the id of one of `num_bins` bins of about equal
            counts: a categorical field then).
        num_bins: most bins of "quantile"; equal bounds fall together.
        fill_value: value of missing cells before `before` and the transform; default 0, for "standardize" the mean.
        max_length: most values of a sequence or multi-value field.
        separator: splits text into values; without it the column holds lists.
        parse: in place of a separator: "words" (runs of letters and digits of a text, in lower case), or "literal" (lists as pandas, JSON and databases
            write them, ['a', 'b'], [1 2], {a,b}; of objects their `name`).
        weight_separator: entries are texts of a value and its weight with this between them ("red:0.5" with ":"), and the list becomes the
            weighted mean of its vectors; weights are at least 0.
        keep: "last" (default for sequences) or "first" (multi-value): which values stay when there are more.
        time_column: column with the time (unix seconds) of each value of the sequence, a list or text with the same separator.
    """

    name: str
    type: str
    column: str | None = None
    embedding_dim: int | None = None
    min_count: int = 1
    max_size: int | None = None
    max_idle: int | None = None
    hash_buckets: int | None = None
    share_with: str | None = None
    value_type: str | None = None
    max_unknown: float | None = None
    missing: str = "oov"
    extract: str | None = None
    time_format: str | None = None
    until: str | None = None
    until_format: str | None = None
    decimal: str = "."
    thousands: str | None = None
    unit: str | None = None
    cross: list[str] | None = None
    before: str | None = None
    transform: str = "raw"
    num_bins: int = 100
    fill_value: float | None = None
    max_length: int = 50
    separator: str | None = None
    parse: str | None = None
    weight_separator: str | None = None
    keep: str | None = None
    time_column: str | None = None
    parts: tuple[Field, ...] = dataclasses.field(default=(), repr=False, compare=False)  # the fields of a cross

    @property
    def source_column(self) -> str:
        """The column that the field reads."""
        return self.column or self.name

    @property
    def last(self) -> Field | None:
        """The field of `until`, read as this one is; None without one."""
        if self.until is None:
            return None
        return dataclasses.replace(
            self, column=self.until, time_format=self.until_format, until=None, until_format=None
        )

    @property
    def kind(self) -> str:
        """How the model sees it: "id" (one id per row), "value" (one float) or "list" (several ids)."""
        if self.type == "numeric":
            return "id" if self.transform == "quantile" else "value"
        return "id" if self.type == "categorical" else "list"

    @property
    def keeps_last(self) -> bool:
        """Whether a list that is too long keeps its last values."""
        return (self.keep or ("last" if self.type == "sequence" else "first")) == "last"

    @property
    def first_id(self) -> int:
        """Id of the first known value: 2, or 3 where missing values have an id of their own."""
        return FIRST_ID + (self.missing == "own_id")

    @property
    def written(self) -> dict[str, str]:
        """How the texts of its numbers are written, where not as usual."""
        own = {key: getattr(self, key) for key in WRITTEN}
        return {key: value for key, value in own.items() if value != getattr(Field, key)}

    @property
    def owns_vocabulary(self) -> bool:
        """Whether a vocabulary is counted under the field's name."""
        return self.type != "numeric" and self.hash_buckets is None and self.share_with is None

    @property
    def is_typed(self) -> bool:
        """Whether its values are of a type, see [`lmctr.data.features.canonical`]: no parts of times, no pairs."""
        return self.type != "numeric" and self.extract is None and self.cross is None

    def curved(self, values: np.ndarray) -> np.ndarray:
        """Numbers (float64, NaN stays NaN) after `before`."""
        if self.before == "log1p":
            return np.sign(values) * np.log1p(np.abs(values))
        if self.before == "logit":
            return logit(np.clip(values, SMALLEST_RATE, 1 - SMALLEST_RATE))
        return values

    def columns(self) -> list[str]:
        """Columns that it reads itself; a cross reads those of its fields."""
        if self.cross is not None:
            return []
        return [name for name in (self.source_column, self.until, self.time_column) if name]

    def __deepcopy__(self, memo: dict[int, Any]) -> Field:
        return self  # frozen: settings are copied each time that a processor is saved

    def to_dict(self) -> dict[str, Any]:
        """Name, type and the keys that differ from their defaults."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "parts"}
        return {key: value for key, value in values.items() if key in ("name", "type") or value != getattr(Field, key)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | Field) -> Field:
        """Checks the keys of one field. Raises `ValueError` that names the field and the key."""
        if isinstance(values, Field):
            values = values.to_dict()
        if not isinstance(values, Mapping):
            raise ValueError(f"fields: each field is a mapping with name and type, got {values!r}.")
        name = values.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"fields: a field needs a name, got {dict(values)!r}.")
        kind = values.get("type")
        if kind not in TYPES:
            hint = did_you_mean(str(kind), TYPES)
            raise ValueError(f"field {name!r}: type {kind!r}; accepted: {', '.join(TYPES)}.{hint}")
        refuse_unknown(values, _KEYS[kind], f"the {kind} field {name!r}")
        field = cls(**{key: value for key, value in values.items() if value is not None})
        field._check()
        return field

    def _check(self) -> None:
        where = f"field {self.name!r}"
        for key in ("embedding_dim", "min_count", "max_size", "max_idle", "hash_buckets", "num_bins", "max_length"):
            value, lowest = getattr(self, key), 2 if key == "num_bins" else 1
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < lowest):
                raise ValueError(f"{where}: {key}={value!r}; accepted: a whole number of at least {lowest}.")
        if self.max_length > LONGEST:
            raise ValueError(
                f"{where}: max_length={self.max_length!r}; accepted: at most {LONGEST:,}, since every row has so many places."
            )
        choices = {"missing": MISSING, "before": BEFORE, "transform": TRANSFORMS}
        choices["extract"] = (None, DAYS) if self.type == "numeric" else (None, *EXTRACTS)
        for key, accepted in (
            choices | {"keep": (None, "last", "first"), "value_type": (None, *VALUE_TYPES), "parse": (None, *PARSES)}
        ).items():
            if getattr(self, key) not in accepted:
                names = ", ".join(repr(value) for value in accepted if value is not None)
                raise ValueError(f"{where}: {key}={getattr(self, key)!r}; accepted: {names}.")
        for key in ("column", "share_with", "separator", "weight_separator", "time_column", *_DAYS[1:]):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"{where}: {key}={value!r}; accepted: a non-empty text.")
        self._check_cross(where)
        share = self.max_unknown
        if share is not None and (
            isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1
        ):
            raise ValueError(f"{where}: max_unknown={share!r}; accepted: a share above 0, at most 1.")
        limits = self.min_count > 1 or self.max_size or self.max_idle
        if self.hash_buckets is not None and (limits or self.share_with):
            raise ValueError(
                f"{where}: hash_buckets takes the place of a vocabulary; leave out min_count, max_size, max_idle and share_with."
            )
        if self.share_with is not None and limits:
            raise ValueError(
                f"{where}: min_count, max_size and max_idle belong to the field {self.share_with!r}, whose vocabulary is shared."
            )
        if self.value_type is not None and (self.share_with is not None or self.extract is not None):
            why = (
                f"the field {self.share_with!r}, whose vocabulary is shared"
                if self.share_with
                else "fields without extract"
            )
            raise ValueError(f"{where}: value_type={self.value_type!r} belongs to {why}.")
        if self.time_format is not None and self.extract is None:
            names = DAYS if self.type == "numeric" else ", ".join(EXTRACTS)
            raise ValueError(f"{where}: time_format needs extract ({names}).")
        if self.until is not None and self.extract is None:
            raise ValueError(f"{where}: until={self.until!r} needs extract: {DAYS}.")
        if self.until is None and self.until_format is not None:
            raise ValueError(f"{where}: until_format={self.until_format!r} needs until.")
        for key in ("time_format", "until_format"):
            if "%" not in (getattr(self, key) or "%"):
                raise ValueError(
                    f"{where}: {key}={getattr(self, key)!r} is no strptime format such as '%Y-%m-%d %H:%M'."
                )
        if self.parse is not None and (self.separator or (self.weight_separator and self.parse == "words")):
            raise ValueError(f"{where}: parse={self.parse!r} takes the place of separator; leave that out.")
        check_written(where, self.decimal, self.thousands, self.unit)
        if self.written and self.extract is not None:
            raise ValueError(f"{where}: {next(iter(self.written))} belongs to fields without extract.")
        if self.fill_value is not None and (
            isinstance(self.fill_value, bool) or not isinstance(self.fill_value, (int, float))
        ):
            raise ValueError(f"{where}: fill_value={self.fill_value!r}; accepted: a number.")
        if self.type == "numeric" and self.transform != "quantile" and self.missing != "oov":
            raise ValueError(f"{where}: missing='own_id' needs an id: use transform='quantile', or fill_value.")
        if self.transform == "quantile" and self.fill_value is not None and self.missing == "own_id":
            raise ValueError(f"{where}: fill_value and missing='own_id' exclude each other.")

    def _check_cross(self, where: str) -> None:
        if self.cross is None:
            return
        is_pair = isinstance(self.cross, list) and len(self.cross) == 2 == len({*map(str, self.cross)})
        if not is_pair or not all(isinstance(name, str) for name in self.cross):
            raise ValueError(f"{where}: cross={self.cross!r}; accepted: a list of two different fields.")
        for key in ("column", "extract", "share_with", "value_type"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"{where}: {key} belongs to a field with a column of its own, not to a cross; leave it out."
                )


def parse_fields(values: Iterable[Mapping[str, Any] | Field]) -> tuple[Field, ...]:
    """Checks the fields of a processor, one by one and together.

    Raises:
        ValueError: no fields, a name given twice, `share_with` that names no field or no vocabulary of its own.
    """
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise ValueError(f"fields: expected a list of mappings with name and type, got {values!r}.")
    fields = tuple(Field.from_dict(value) for value in values)
    if not fields:
        raise ValueError("fields: a processor needs one field at least.")
    by_name: dict[str, Field] = {}
    for field in fields:
        if field.name in by_name:
            raise ValueError(f"fields: the name {field.name!r} is given twice.")
        by_name[field.name] = field
    fields = tuple(
        field if field.cross is None else dataclasses.replace(field, parts=tuple(map(by_name.get, field.cross)))
        for field in fields
    )
    for field in fields:
        for name in field.cross or ():
            part = by_name.get(name)
            if part is None or part.type != "categorical" or part.cross is not None:
                hint = did_you_mean(name, by_name) if part is None else ""
                what = "no field" if part is None else "no categorical field with a column of its own"
                raise ValueError(f"field {field.name!r}: cross names {name!r}, which is {what}.{hint}")
        if field.share_with is None:
            continue
        if field.share_with in by_name and by_name[field.share_with].cross is not None:
            raise ValueError(
                f"field {field.name!r}: share_with={field.share_with!r} is a cross, whose values are pairs."
            )
        owner = by_name.get(field.share_with)
        if owner is None:
            hint = did_you_mean(field.share_with, by_name)
            raise ValueError(f"field {field.name!r}: share_with={field.share_with!r} names no field.{hint}")
        if owner is field or owner.share_with or owner.type == "numeric":
            raise ValueError(
                f"field {field.name!r}: share_with={field.share_with!r}; accepted: another field with a vocabulary of its own."
            )
        if field.kind == "id" and field.missing != owner.missing:
            raise ValueError(f"field {field.name!r}: missing={field.missing!r} differs from that of {owner.name!r}.")
        if field.kind == "id" and owner.kind == "list":
            raise ValueError(
                f"field {field.name!r}: a categorical field cannot borrow from the list field {owner.name!r}; let that one share."
            )
        if field.embedding_dim not in (None, owner.embedding_dim):
            raise ValueError(
                f"field {field.name!r}: embedding_dim={field.embedding_dim} differs from that of {owner.name!r} "
                f"({owner.embedding_dim}), whose vocabulary it shares."
            )
    return fields


def override_fields(
    fields: Sequence[Mapping[str, Any]], overrides: Mapping[str, Any] | None, where: str = "features"
) -> list[dict[str, Any]]:
    """A field list with some of its options changed, as a recipe's `features` asks for.

    Args:
        fields: the data set's own fields.
        overrides: any of `categorical`, `numeric`, `sequence`, `multi_value` (options for all fields of the type), `fields` (by
            name; a name that is new adds a field and needs its `type`), `only` (names of the fields to keep) and `drop` (names).

    Raises:
        ValueError: an unknown key, or a name that is no field (the nearest one is offered).

    Example:
        >>> override_fields([{"name": "price", "type": "numeric"}], {"numeric": {"transform": "log1p"}})
        [{'name': 'price', 'type': 'numeric', 'transform': 'log1p'}]
    """
    result = {field["name"]: dict(field) for field in fields}
    overrides = {} if overrides is None else overrides
    if not isinstance(overrides, Mapping):
        raise ValueError(f"{where}: expected a mapping, got {overrides!r}.")
    for key, value in overrides.items():
        if key not in (*TYPES, "fields", "only", "drop"):
            raise ValueError(unknown_key_message(key, (*TYPES, "fields", "only", "drop"), where))
        accepted = list if key in ("only", "drop") else Mapping
        if not isinstance(value, accepted):
            wanted = "a list of field names" if accepted is list else "a mapping"
            raise ValueError(f"{where}.{key}: expected {wanted}, got {value!r}.")
    for key in ("only", "drop"):
        refuse_unknown(overrides.get(key, ()), result, f"{where}.{key}", what="field")
    if "only" in overrides:
        result = {name: field for name, field in result.items() if name in overrides["only"]}
    for name in overrides.get("drop", ()):
        result.pop(name, None)
    for field in result.values():
        field.update(overrides.get(field["type"], {}))
    for name, values in overrides.get("fields", {}).items():
        if not isinstance(values, Mapping):
            raise ValueError(f"{where}.fields.{name}: expected a mapping of field options, got {values!r}.")
        if name not in result and "type" not in values:
            raise ValueError(
                unknown_key_message(name, result, f"{where}.fields").replace("key", "field", 1)
                + "; a new field needs its type"
            )
        result[name] = result.get(name, {"name": name}) | dict(values)
    return list(result.values())
