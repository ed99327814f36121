"""Any table of events (CSV, TSV, Parquet, JSON lines, a `datasets` Dataset) through a small schema.

A schema file for `load_log("shop.yaml")`; paths are relative to it:

```yaml
name: shop
events: events.csv.gz              # or {path: ..., format: csv|tsv|parquet|jsonl, delimiter: ";", decimal: ",", na_values: ["?", NULL]};
                                   # names: [customer, product, ts, clicked] of a file without a line of names
columns:
  user: customer                   # ids are integers or strings
  item: product                    # or {column: product, missing: drop}: rows without one (searches, starts of an app) are left out; users and times likewise
  time: {column: ts, unit: ms}     # unix time in s (default), ms, us or ns; or format: "%d.%m.%Y %H:%M", timezone: Europe/Oslo
  label: clicked                   # 0 or 1; or a rule:
  # label: {column: rating, greater_than: 3}       # at_least, less_than, at_most, equals, in
  # label: {column: bought, missing: history}      # a row without a label is history, no sample
  # no label: every row is a click, see negatives
  feedback: {column: action, names: [viewed, clicked, bought]}   # optional; default: from the label
  scenario: page                   # optional
  weight: w                        # optional
  context: [device, position]      # optional: further columns of an event that are known when the item is shown; fields of tabular models
  feedback_values: stars           # optional: graded feedback (stars, watched share, dwell time), empty where unknown
  part: split                      # optional: 0 training, 1 validation, 2 test, for data.split: given; -1: no sample by any rule
  extra_labels: {bought: {column: action, equals: bought}}       # optional
catalogue:                         # optional: a file of its own, or `columns` of the event table
  path: products.parquet
  item: product
  columns: {title: name, genres: {column: tags, separator: "|"}, price: {type: number}}   # default: all; or [title, price]
negatives: 2                       # without a label: items drawn beside each row; or {per_event: 2, draw: popular, seed: 0} (default: uniform)
missing_items: error               # of a catalogue file: or drop (events of items that it lacks), or empty (items without a description)
users: {path: customers.csv, user: customer}       # optional, likewise
info: {url: ..., licence: ..., citation: ..., language: en, notes: ...}
```

Rows may come in any order. Feedback code 0 means unknown (a missing value); the names count from 1. An empty text of the catalogue, the
users or the context is a missing value; a column with a separator, or with `parse: literal` (['a', 'b'], as pandas
writes lists), becomes a list; `type` is text, integer or number (default: as the reader finds it), and a number's `thousands`, `decimal` and `unit` say how
texts write it: {type: number, thousands: ",", unit: $} reads $84,835.00. Errors name the file, the column and the row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.amounts import accepted_numbers, numbers_in
from lmctr.data.in_memory import arrow_table
from lmctr.data.reading import ID, checked_file, read_table
from lmctr.data.schemas import info_values
from lmctr.utils.arrow import (
    decoded,
    first_of_each,
    is_list,
    is_number,
    is_text,
    plain_number,
    with_columns,
    without_empty,
)
from lmctr.utils.files import beside, expanded
from lmctr.utils.measure import release_memory
from lmctr.utils.suggest import LISTED, first_quoted

from . import columns
from .log import DatasetInfo, InteractionLog, check_keys
from .negatives import with_negatives
from .schema import (
    AttributeSpec,
    AttributesSpec,
    CodeSpec,
    EventTimeSpec,
    FileSpec,
    KeySpec,
    LabelSpec,
    Schema,
    parse_schema,
    read_schema,
)
from .times import seconds_of

POSITIVE_WORDS = frozenset(
    ("1", "yes", "y", "true", "t", "ja", "oui", "sí", "sim", "click", "clicked", "like", "liked", "positive", "pos")
)
"""Words, in lower case, that a label column may hold for a click."""


def turned_codes(schema: pa.Schema) -> dict[str, list[str]]:
    """By column the two names of a `datasets.ClassLabel`, as tables and Parquet files of that package have them, that say that 0 is a click and 1 none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    labels = {
        name: own["names"]
        for name, own in features.items()
        if isinstance(own, dict) and own.get("_type") == "ClassLabel"
    }
    return {
        name: names
        for name, names in labels.items()
        if [str(own).strip().lower() in POSITIVE_WORDS for own in names] == [True, False]
    }


def check_codes(schema: pa.Schema, label: LabelSpec | None, source: str) -> None:
    """Raises `ValueError` for a label without a rule whose codes have names the other way round."""
    if label is not None and label.rule is None and (names := turned_codes(schema).get(label.column)):
        raise ValueError(
            f"{source}: the label {label.column!r} holds the codes of a ClassLabel, 0 for {names[0]!r} and 1 for {names[1]!r}; write "
            f"`label: {{column: {label.column}, equals: 0}}`, or `equals: 1` where that is a click"
        )


def load_table(
    schema: str | os.PathLike, path: str | os.PathLike | None = None, progress: bool = False
) -> InteractionLog:
    """Reads the table that a schema file describes.

    Args:
        schema: the schema file (see the module's description).
        path: another folder for the files of the schema, or another event file. None takes the schema's own folder.
        progress: show progress bars.

    Raises:
        FileNotFoundError: a file is absent.
        ValueError: the schema or a file's content is wrong; names the file, the column and the row.
    """
    spec = read_schema(schema)
    folder, events = Path(schema).parent, spec.events
    if path is not None:
        path = expanded(path)
        if path.is_file():
            events = events.at(path.resolve())
        elif path.is_dir():
            folder = path
        else:
            raise FileNotFoundError(f"{path}: neither a folder nor an event file for the schema {schema}.")
    return _read(spec, events, folder, progress)


def log_from_file(
    events: str | os.PathLike,
    columns: Mapping[str, Any] | None = None,
    catalogue: Any = None,
    users: Any = None,
    negatives: int | Mapping[str, Any] | None = None,
    missing_items: str = "error",
    info: Mapping[str, Any] | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    na_values: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    progress: bool = False,
) -> InteractionLog:
    """Reads a data file by the keys of a schema, given as arguments; paths among them are relative to the current folder.

    Raises:
        ValueError: as [`load_table`]; no `columns`.
    """
    if columns is None:
        raise ValueError(
            f"{events}: a raw data file needs a schema that says which column is what: `lmctr init {events}` writes one (a .yaml file, "
            f"see lmctr.data.logs.table), or give its keys in data.options; in Python lmctr.data.load({str(events)!r}) looks at the columns."
        )
    reading = {"format": format, "delimiter": delimiter, "decimal": decimal, "na_values": na_values}
    reading["names"] = None if names is None else [*names]
    keys = {"columns": columns, "catalogue": catalogue, "users": users, "negatives": negatives}
    keys |= {"missing_items": missing_items, "info": info}
    reading = {key: value for key, value in reading.items() if value is not None}
    file = {"name": Path(events).name.split(".")[0], "events": {"path": str(events), **reading}}
    spec = parse_schema(
        file | {key: value for key, value in keys.items() if value is not None}, f"options of {events}"
    )
    return _read(spec, spec.events, Path(), progress)


def _read(spec: Schema, events: FileSpec, folder: Path, progress: bool) -> InteractionLog:
    file = beside(folder, events.path)
    own = (part.columns for _, part, _, _ in spec.tables() if part.path is None)
    parts = [part for columns in (spec.columns.context, *own) for part in columns.values()]
    # texts as they are written, as in rows to score: 00123 is no 123
    types = {part.column: pa.string() for part in parts if _kind_of(part) == "text"}
    types |= dict.fromkeys((spec.columns.user.column, spec.columns.item.column), ID)
    # a reader of JSON leaves out what zone a time names
    if spec.columns.time.timezone is not None and checked_file(file, events.format)[1] == "jsonl":
        types[spec.columns.time.column] = pa.string()
    read = [read_table(file, spec.event_columns(), types, progress=progress, **events.reading())]
    notes: list[str] = []
    tables = _attribute_files(spec, folder, notes, progress)
    log = _build(read.pop(), spec, str(file), tables, notes)  # which lets go of columns that it has used
    release_memory()
    return log


def _attribute_files(
    spec: Schema, folder: Path, notes: list[str], progress: bool = False, without: Collection[str] = ()
) -> dict[str, pa.Table]:
    """The catalogue and users, by these names, that a schema has files of, but those of some names; `notes` gets what was left out of them."""
    return {
        name: _read_attributes(part, key, ids, beside(folder, part.path), notes, progress)
        for name, part, key, ids in spec.tables()
        if part.path is not None and name not in without
    }


def log_from_table(
    data: Any, schema: Mapping[str, Any], *, catalogue: Any = None, users: Any = None
) -> InteractionLog:
    """Builds a log from a table in memory.

    Args:
        data: what [`~lmctr.data.in_memory.arrow_tables`] takes: a pyarrow table, a `datasets` Dataset, a DataFrame, a dict of columns, a list of dicts.
        schema: the keys of a schema file as a dict, without `events`; its files stand in the current folder.
        catalogue: likewise, with a column `item_id`; in place of the schema's `catalogue`.
        users: likewise, with a column `user_id`; in place of the schema's `users`.

    Raises:
        ValueError: the schema or the data are wrong; names the column and the row.

    Example:
        ```python
        log = log_from_table(dataset, {"columns": {"user": "u", "item": "i", "time": "t", "label": "clicked"}})
        ```
    """
    spec = parse_schema(schema, "schema")
    if spec.events is not None:
        raise ValueError("schema: `events` names a file, and the events come from the data given here; leave it out.")
    table = arrow_table(data, "data", spec.event_columns())
    if not table.num_rows:
        raise ValueError("data: the table has no rows.")
    given = {name: own for name, own in (("catalogue", catalogue), ("users", users)) if own is not None}
    tables = {name: arrow_table(own, name) for name, own in given.items()}
    notes: list[str] = []
    tables = _attribute_files(spec, Path(), notes, without=given) | tables
    return _build(table, spec, "data", tables, notes)


def _build(
    table: pa.Table, spec: Schema, source: str, tables: Mapping[str, pa.Table | None], of_tables: Sequence[str]
) -> InteractionLog:
    keys = spec.columns
    check_codes(table.schema, keys.label, source)
    table = with_columns(table, (keys.user.column, keys.item.column), plain_number)
    table, notes = _with_keys(table, spec, source)
    if spec.missing_items != "error":
        table, tables, more = _mend_missing_items(table, spec, source, dict(tables))
        notes += more
    if spec.negatives is not None:
        table, more = _without_repeats(table, spec)
        notes += more
    names = {"user": keys.user.column, "item": keys.item.column, "time": keys.time.column}
    ids = {f"{role}_id": whole_ids(table[names[role]], names[role], source) for role in ("user", "item")}
    from_events = {
        name: _attributes_from_events(table, ids[key], part, key, id_column, source)
        for name, part, key, id_column in spec.tables()
        if tables.get(name) is None
    }
    feedback = feedback_names = None
    if keys.feedback is not None:
        feedback, feedback_names = _feedback(table[keys.feedback.column], keys.feedback, source)
    elif keys.label is None:  # all are alike, so that a request need not say what a behaviour was
        feedback, feedback_names = np.zeros(table.num_rows, np.int8), ("clicked",)
    names |= {} if keys.label is None else {"label": keys.label.column}
    names |= {name: getattr(keys, name) or name for name in ("weight", "feedback_values", "part")}
    if keys.scenario is not None:
        names["scenario"] = keys.scenario.column
    info = {"name": spec.name, "label_rule": (keys.label or spec.negatives).describe()} | info_values(spec.info)
    info["notes"] = " ".join(filter(None, (info.get("notes"), *of_tables, *notes))) or None
    context = _described(table, keys.context, source) if keys.context else None
    given = {
        "feedback": feedback,
        "feedback_names": feedback_names,
        "extra_labels": {name: _labels(table[rule.column], rule, source) for name, rule in keys.extra_labels.items()},
        "scenario": None if keys.scenario is None else table[keys.scenario.column],
        "scenario_names": None if keys.scenario is None else keys.scenario.names,
        "weight": None if keys.weight is None else table[keys.weight],
        "feedback_values": _graded(table, keys.feedback_values, source),
        "part": None if keys.part is None else table[keys.part],
    }
    seconds = seconds_of(table[keys.time.column], keys.time, source)
    labels = (
        np.ones(len(seconds), np.int8) if keys.label is None else _labels(table[keys.label.column], keys.label, source)
    )
    told = {"label": (keys.label, labels)} | {
        name: (rule, given["extra_labels"][name]) for name, rule in keys.extra_labels.items()
    }
    without = {name: rule for name, (rule, own) in told.items() if rule is not None and not (own == 1).any()}
    unmet = {name: unmet_rule([table[rule.column]], rule, source) for name, rule in without.items()}
    if any(unmet.values()):
        info["extra"] = {**info.get("extra", {}), UNMET_RULES: unmet}
    del table
    release_memory()  # a large log has no room for what reading took
    log = InteractionLog.from_columns(
        *ids.values(),
        seconds,
        labels,
        **given,
        **tables | from_events,
        context=None if context is None else pa.table(context),
        info=DatasetInfo.from_dict(info),
        source=source,
        names=names,
    )
    return log if spec.negatives is None else with_negatives(log, **spec.negatives.model_dump())


def _with_keys(table: pa.Table, spec: Schema, source: str) -> tuple[pa.Table, tuple[str, ...]]:
    """The rows with a user, an item and a time, where the schema says that others are left out; and notes that say how many were. Raises `ValueError` for
    such rows where it does not, and where no row has one."""
    notes: tuple[str, ...] = ()
    for role in ("user", "item", "time"):
        key: KeySpec | EventTimeSpec = getattr(spec.columns, role)
        array = columns.as_arrow(table[key.column], key.column, source)
        lacking = columns.without_id(array)
        if not lacking.any():
            continue
        if key.missing == "error" or lacking.all():
            hint = f"With `{role}: {{column: {key.column}, missing: drop}}` in the schema such rows are left out."
            hint = f"No row has the {role}." if lacking.all() else hint
            problem = "are missing" if array.null_count else "are empty"
            columns.refuse(lacking, array, key.column, source, problem, f"Every event needs a value here. {hint}")
        notes += (f"{int(lacking.sum()):,} of {len(lacking):,} rows without a value of {key.column!r} were left out.",)
        table = _rows_with(table, key.column, lacking, source)
    return table, notes


def _rows_with(table: pa.Table, column: str, lacking: np.ndarray, source: str) -> pa.Table:
    """The rows with an id; no row has the empty text any more."""
    table = table.filter(pa.array(~lacking))
    ids = columns.without_empty_id(columns.as_arrow(table[column], column, source))
    return table.set_column(table.column_names.index(column), column, ids)


def _without_repeats(table: pa.Table, spec: Schema) -> tuple[pa.Table, tuple[str, ...]]:
    """Clicks of one user, item and time once, as several of one product in a basket are; and a note that says how many were left out."""
    keys = {role: getattr(spec.columns, role).column for role in ("user", "item", "time")}
    first = first_of_each(pa.table({key: table[name] for key, name in keys.items()}))
    if len(first) == table.num_rows:
        return table, ()
    return table.take(first), (
        f"{table.num_rows - len(first):,} rows that repeat another one's user, item and time were left out.",
    )


def _mend_missing_items(
    table: pa.Table, spec: Schema, source: str, tables: dict[str, pa.Table | None]
) -> tuple[pa.Table, dict[str, pa.Table | None], tuple[str, ...]]:
    """Events of items without a row in the catalogue left out, or rows without a description added; and a note that says how many."""
    name = spec.columns.item.column
    ids = whole_ids(table[name], name, source)
    rows = columns.item_rows(ids, name, source, tables["catalogue"]["item_id"], missing=-1)
    lacking = rows < 0
    if not lacking.any():
        return table, tables, ()
    missing = columns.encode_ids(pc.filter(ids, pa.array(lacking)), name, source)[1]
    found = f"{int(lacking.sum()):,} events of {len(missing):,} items that the catalogue lacks"
    if spec.missing_items == "drop":
        if lacking.all():
            raise ValueError(
                f"{source}: no event's item stands in the catalogue, such as {ids[0].as_py()!r}; check its id column."
            )
        return table.filter(pa.array(~lacking)), tables, (f"{found} were left out.",)
    known = tables["catalogue"]
    if pa.types.is_integer(known["item_id"].type) != pa.types.is_integer(missing.type):
        known = known.set_column(0, "item_id", known["item_id"].cast(pa.string()))
    added = pa.table({"item_id": missing.cast(known["item_id"].type)})
    tables["catalogue"] = pa.concat_tables([known, added], promote_options="default")
    return table, tables, (f"{found} are kept without a description.",)


def whole_ids(values: Any, name: str, source: str) -> pa.Array:
    """Ids of a text file as integers, when all are written as such: 12 or, as tables with missing values are written, 12.0; not 012."""
    array = columns.as_arrow(values, name, source)
    if not pa.types.is_dictionary(array.type) or pa.types.is_integer(array.type.value_type):
        return array
    plain = pc.match_substring_regex(array.dictionary, r"^(0|-?[1-9][0-9]{0,17})(\.0+)?$")
    if not pc.all(plain).as_py():
        return array
    numbers = pc.replace_substring_regex(array.dictionary, r"\.0+$", "").cast(pa.int64())
    whole = pa.DictionaryArray.from_arrays(array.indices, numbers)
    if len(pc.unique(numbers)) == len(numbers):
        return whole
    return whole.dictionary_decode().dictionary_encode()  # of 12 and 12.0


_COMPARE = {
    "greater_than": pc.greater, "at_least": pc.greater_equal, "less_than": pc.less, "at_most": pc.less_equal
}  # fmt: skip


def _labels(values: Any, spec: LabelSpec, source: str) -> np.ndarray:
    array = without_empty(decoded(columns.as_arrow(values, spec.column, source)))
    missing, place = columns.nulls(array), columns.place(source, spec.column)
    if spec.missing == "error":
        hint = "Accepted: 0, 1." if spec.rule is None else f"The rule {spec.describe()!r} needs a value."
        hint += " With `missing: history` such a row stands in histories and is no sample."
        columns.refuse(missing, array, spec.column, source, "are missing", hint)
    if spec.missing == "drop":
        raise ValueError(f"{place}: `missing: drop` is for tables; accepted for a log: error, history.")
    labels = np.full(len(array), -1, dtype=np.int8)
    if missing.all():
        return labels
    if spec.rule not in ("equals", "in"):
        hint = f"Accepted: 0, 1.{_rule_of_words(array, spec)}" if spec.rule is None else "The rule compares numbers."
        array = columns.text_numbers(array, spec.column, source, hint)
    if spec.rule is None:
        if missing.any():
            array = pc.fill_null(array, pa.scalar(0).cast(array.type))
        labels[~missing] = columns.to_labels(array, spec.column, source)[~missing]
        return labels
    positive = pc.fill_null(follows(array, spec, place), False).to_numpy(zero_copy_only=False)
    labels[~missing] = positive[~missing]
    return labels


def follows(array: pa.Array, spec: LabelSpec, place: str) -> pa.BooleanArray:
    """Whether each value of a column follows the rule of a label; null where there is no value. `place` names the column in errors."""
    array = plain_number(array)
    if pa.types.is_null(array.type):  # a column, or a block of lines, without any
        return pa.nulls(len(array), pa.bool_())
    if spec.rule in ("equals", "in"):
        chosen = _is_one_of(array, spec.value if spec.rule == "in" else [spec.value], place)
        if spec.others:
            # -1 can be asked for
            signed = array.cast(pa.int64()) if pa.types.is_unsigned_integer(array.type) else array
            told = pc.or_(chosen, _is_one_of(signed, spec.others, place))
            strange = array.filter(pc.and_(pc.is_valid(array), pc.invert(told)))
            if len(strange):
                found = first_quoted(pc.unique(strange).to_pylist())
                raise ValueError(
                    f"{place}: {len(strange)} values are neither {spec.value!r} (a click) nor {' or '.join(map(repr, spec.others))} (none): {found}. "
                    "Write the labels as those are written, or let the label's rule in the schema or recipe name what they mean (equals, otherwise)."
                )
        return pc.if_else(pc.is_null(array), pa.scalar(None, pa.bool_()), chosen)
    if not is_number(array.type):
        raise ValueError(
            f"{place}: the rule {spec.describe()!r} compares numbers, and the column has the type {array.type}."
        )
    value = pa.scalar(spec.value)
    if pa.types.is_floating(array.type):  # 0.3 in single precision is above 0.3
        value = value.cast(array.type)
    return _COMPARE[spec.rule](array, value)


UNMET_RULES = "unmet_rules"
"""Key of a log's `info.extra`: by label, the words of [`unmet_rule`]."""


def unmet_rule(blocks: Iterable[Any], spec: LabelSpec, source: str) -> str:
    """Of a label's rule that names values, in blocks of a column that has none of them: that, and what values it has; else no words."""
    if spec.rule not in ("equals", "in"):
        return ""
    found: dict[Any, None] = {}
    for values in blocks:
        array = without_empty(decoded(columns.as_arrow(values, spec.column, source)))
        if pc.any(follows(array, spec, columns.place(source, spec.column))).as_py():
            return ""
        found |= dict.fromkeys(pc.unique(array.drop_null())[: LISTED + 1].to_pylist())
    return f"no value follows the label rule {spec.describe()!r}; found: {first_quoted(found)}" if found else ""


def _is_one_of(array: pa.Array, wanted: list[Any], place: str) -> pa.BooleanArray:
    try:
        of_type = pa.array(wanted)
        if pa.types.is_integer(array.type) and pa.types.is_floating(of_type.type):  # no whole number is 3.5
            of_type = of_type.filter(pc.equal(pc.floor(of_type), of_type))
        return pc.is_in(array, value_set=of_type.cast(array.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        raise ValueError(
            f"{place}: the column has the type {array.type}, and the label rule compares it with {wanted!r}."
        ) from None


def _rule_of_words(array: pa.Array, spec: LabelSpec) -> str:
    """The rule to write for a label of two words, one of which says yes."""
    found = pc.unique(array.drop_null()).to_pylist() if is_text(array.type) else []
    chosen = [word for word in found if str(word).strip().lower() in POSITIVE_WORDS]
    if len(found) != 2 or len(chosen) != 1:
        return ""
    return f" Write `label: {{column: {spec.column}, equals: {json.dumps(chosen[0])}}}` for {chosen[0]!r} as a click."


def _graded(table: pa.Table, name: str | None, source: str) -> pa.Array | None:
    if name is None:
        return None
    array = without_empty(decoded(columns.as_arrow(table[name], name, source)))
    return columns.text_numbers(array, name, source, "Graded feedback is a number, or empty where unknown.")


def _feedback(values: Any, spec: CodeSpec, source: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes from 1 and names with "unknown" in front; a missing value has code 0."""
    array = columns.as_arrow(values, spec.column, source)
    names = spec.names
    if names is not None and names[0] == "unknown":
        names = names[1:]
    if pa.types.is_boolean(array.type):
        names = names or ("negative", "positive")
        if len(names) != 2:
            raise ValueError(
                f"{columns.place(source, spec.column)}: a yes/no column has two feedback names, got {names}."
            )
        array = pc.add(array.cast(pa.int8()), 1)
    if pa.types.is_integer(array.type):
        array = pc.fill_null(array, 0)
        known = None if names is None else ("unknown", *names)
        codes, known = columns.to_codes(array, spec.column, source, known, np.int8)
        return codes, ("unknown", *known[1:])
    array = decoded(array.cast(pa.string()) if pa.types.is_null(array.type) else array)  # unknown everywhere
    if not is_text(array.type):
        raise ValueError(
            f"{columns.place(source, spec.column)}: feedback of type {array.type} is not accepted; pass names or integer codes."
        )
    array = pc.fill_null(without_empty(array), "unknown")
    if names is None:
        names = sorted(set(pc.unique(array).to_pylist()) - {"unknown"})
    return columns.to_codes(array, spec.column, source, ("unknown", *names), np.int8)


_TYPES = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64()}


def _read_attributes(
    spec: AttributesSpec, key: str, id_column: str, file: Path, notes: list[str], progress: bool
) -> pa.Table:
    """The catalogue (`key` = "item_id") or user table ("user_id") from a file of its own. Rows that say nothing, of no id or written twice, are left out."""
    wanted, types = None, {id_column: ID}
    if spec.columns is not None:
        wanted = [id_column, *(part.column for part in spec.columns.values())]
        kinds = {part.column: _kind_of(part) for part in spec.columns.values()}
        types |= {name: _TYPES[kind] for name, kind in kinds.items() if kind is not None}
    table = read_table(file, wanted, types, progress=progress, **spec.reading())
    count, lacking = table.num_rows, columns.without_id(columns.as_arrow(table[id_column], id_column, str(file)))
    if 0 < lacking.sum() < count:
        table = _rows_with(table, id_column, lacking, str(file))
    if len(pc.unique(decoded(table[id_column]))) < table.num_rows:
        table = table.take(first_of_each(table))
    if less := count - table.num_rows:
        notes.append(
            f"{less:,} rows of {file.name} without a value of {id_column!r}, or as another row, were left out."
        )
    check_keys(table, id_column, str(file))
    parts = spec.columns
    if parts is None:
        parts = {name: AttributeSpec(column=name) for name in table.column_names if name != id_column}
    return _attributes(table, parts, key, whole_ids(table[id_column], id_column, str(file)), str(file))


def _kind_of(part: AttributeSpec) -> str | None:
    """What a file's column is read as."""
    return "text" if part.written else part.type or ("text" if part.is_list else None)


def _attributes_from_events(
    table: pa.Table, ids: pa.Array, spec: AttributesSpec, key: str, id_column: str, source: str
) -> pa.Table:
    """The catalogue or user table from columns of the event table: each id's first row counts."""
    _refuse_infinite(table, spec.columns or {}, source)
    codes, known = columns.encode_ids(ids, id_column, source)
    first = np.unique(codes, return_index=True)[1]
    return _attributes(table.take(pa.array(first)), spec.columns or {}, key, known, source)


def _attributes(table: pa.Table, parts: Mapping[str, AttributeSpec], key: str, ids: pa.Array, source: str) -> pa.Table:
    if key in parts:
        raise ValueError(
            f"{source}: a column may not be called {key!r}, the name of the ids; rename it in the schema."
        )
    return pa.table({key: decoded(ids)} | _described(table, parts, source))


def _described(table: pa.Table, parts: Mapping[str, AttributeSpec], source: str) -> dict[str, pa.Array]:
    """The columns of a schema's `columns` or `context` by their names, in the types and lists that it states."""
    _refuse_infinite(table, parts, source)
    result = {}
    for name, part in parts.items():
        values = decoded(table[part.column].combine_chunks())
        kind = part.type or _kind_of(part)
        if part.written and is_text(values.type):
            texts = without_empty(values)
            own = numbers_in(texts, **part.written)
            bad = pc.and_(pc.is_null(own), pc.is_valid(texts)).to_numpy(zero_copy_only=False)
            columns.refuse(bad, texts, part.column, source, "are no numbers", accepted_numbers(part.written))
            values = own
        elif kind is not None and not (part.is_list and is_list(values.type)):  # of a file that has lists
            try:
                if kind != "text" and pa.types.is_temporal(values.type):
                    raise pa.ArrowInvalid(f"they are times ({values.type})")  # whose numbers hang on the reader's unit
                values = values.cast(_TYPES[kind])
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ValueError(
                    f"{columns.place(source, part.column)}: the schema says {kind}, and the values do not fit: {error}"
                ) from None
        if part.is_list and is_text(values.type):
            values = columns.split_texts(values, part.separator, column=part.column, source=source)
        result[name] = values
    return result


def _refuse_infinite(table: pa.Table, parts: Mapping[str, AttributeSpec], source: str) -> None:
    for name in (part.column for part in parts.values()):
        if pa.types.is_floating(table[name].type):
            problem, accepted = "are infinite", "Accepted: finite numbers; leave missing cells empty."
            columns.refuse(np.isinf(table[name].to_numpy()), table[name], name, source, problem, accepted)
