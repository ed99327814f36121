"""Tables for tabular models: sources, processed stores, and the view that makes batches.

[`~lmctr.data.registry.load_tabular`] gives a [`TableSource`] from a known data set or from files of one's own, through a schema file:

```yaml
name: shop
files: {train: train.csv.gz, test: test.csv.gz}   # or one file: part it by `split`; paths are relative to the schema
# format: csv | tsv | parquet | jsonl             # default: from the extension
# delimiter: ";"
# names: [click, ad, price]                       # of CSV files without a header line
# decimal: ","                                    # na_values: ["?", NULL]: both of CSV files
label: click                                      # 0 or 1; several: labels: [click, conversion], whose cells may be empty
# label: {column: answer, equals: "yes"}          # greater_than, at_least, less_than, at_most, equals, in; missing: drop (rows without it)
group: user                                       # optional: column of the grouped AUC
time: {column: ts, format: "%Y-%m-%d %H:%M:%S"}   # optional; a name alone: unix seconds or timestamps
weight: w                                         # optional
joined: [{path: items.csv, by: ad}]               # optional: files with a row for each value of a column; id: its name there, columns: those to take
split: {rule: random, fractions: [0.8, 0.1, 0.1], seed: 0}   # random, group, rows, time; with `files` it parts the training file
fields:                                           # default: text and whole numbers categorical, other numbers numeric, lists sequences
  - {name: ad, type: categorical, min_count: 2}
  - {name: price, type: numeric, transform: log1p}          # written as $84,835.00: thousands: ",", unit: $
info: {url: ..., licence: ..., notes: ...}
```

Then `TabularStore.build(source, processor, directory)` fits and transforms it in blocks, and `TabularView`, `TabularDataset` and
`TabularCollator` read shuffled batches from the arrays.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmctr.data.amounts import check_written
from lmctr.data.features.columns import checked_labels
from lmctr.data.features.fields import parse_fields
from lmctr.data.logs.log import DatasetInfo
from lmctr.data.logs.schema import Label, LabelSpec
from lmctr.data.logs.splits import check_fractions
from lmctr.data.logs.table import check_codes
from lmctr.data.schemas import (
    ColumnName,
    InfoKeys,
    ReadingKeys,
    SchemaWording,
    TimeKeys,
    info_values,
    refuse_other_schema,
    short_for,
)
from lmctr.utils.arrow import is_list, plain_type
from lmctr.utils.files import beside, expanded, for_arrow, read_yaml
from lmctr.utils.values import Values, read_values

from .joined import JoinedSpec, joined_files, joined_to
from .labels import label_spec, told_by
from .reading import block_size_for
from .source import Piece, SplitRule, TableSource, file_piece, table_piece


def table_source(
    data: Any,
    label: str | Mapping[str, Any] | None = "label",
    fields: Sequence[Mapping[str, Any]] | None = None,
    *,
    labels: Sequence[str | Mapping[str, Any]] | None = None,
    validation: Any = None,
    test: Any = None,
    group: str | None = None,
    time: str | None = None,
    time_format: str | None = None,
    weight: str | None = None,
    split: str | None = None,
    fractions: Sequence[float] | None = None,
    seed: int = 0,
    format: str | None = None,
    delimiter: str | None = None,
    names: Sequence[str] | None = None,
    decimal: str = ".",
    na_values: Sequence[str] | None = None,
    joined: Sequence[Mapping[str, Any]] = (),
    info: DatasetInfo | None = None,
    memory_limit: int | None = None,
) -> TableSource:
    """A source from files, or from tables in memory or `datasets` Datasets and streams.

    Args:
        data: the whole table, or the training part when `test` is given. A path, or whatever
            [`~lmctr.data.tables.source.rows_of`] takes. A stream that can be read once only (a generator) does not do.
        label: column of 0 and 1, or a rule on a column such as `{"column": "answer", "equals": "yes"}` (`greater_than`, `at_least`, `less_than`,
            `at_most`, `equals`, `in`; beside `equals` the values of `otherwise` are no clicks, and others are an error); None: no label.
        labels: several label columns in place of `label`, for models with several tasks; empty cells of them are labels not known.
        fields: fields of the processor. None takes all other columns of the first block: text, whole numbers and booleans as
            categorical, other numbers as numeric, lists as sequences.
        validation: the validation part. When `test` is given and this is not, a share of `data` is parted off.
        test: the test part.
        group: column of the grouped AUC.
        time: time column.
        time_format: its `strptime` format, for texts other than ISO times, or the unit of numbers other than seconds: "ms", "us", "ns".
        weight: column of sample weights.
        split: rule for what is not given: "random", "group", "rows" or "time" (see [`SplitRule`]); default: "time" where there is a time
            column, else "random".
        fractions: shares of train, validation and test; default (0.8, 0.1, 0.1), or (0.9, 0.1, 0) with a given test part.
        seed: of the split.
        format: of files, see [`stream_file`].
        delimiter: of CSV files.
        names: column names of CSV files without a header line.
        decimal: decimal point of CSV files, "." or ",".
        na_values: further texts of CSV files that mean a missing value.
        joined: files whose columns stand on the rows too, such as those of items, see [`~lmctr.data.tables.joined.JoinedSpec`].
        info: origin and licence.
        memory_limit: bytes that reading may take beside vocabularies; sets the size of blocks.

    Raises:
        ValueError: unknown columns or bad values; a validation part without a test part.
    """
    if validation is not None and test is None:
        raise ValueError("validation is given and test is not; give both parts, or none.")
    unusual = _reading(decimal, na_values, names)
    reading = {"format": format, "delimiter": delimiter, **(unusual or {})}
    reading["block_size"] = block_size_for(memory_limit)

    def piece(part_data: Any, part: str | None, rule: SplitRule | None = None) -> Piece:
        if isinstance(part_data, (str, os.PathLike)):
            path = expanded(part_data)
            if not path.exists():
                raise FileNotFoundError(f"{path}: no such file.")
            return file_piece(path, part, rule, **reading)
        if isinstance(part_data, Iterator):
            raise ValueError(
                f"data: a {type(part_data).__name__} can be read once, and a source is read several times; give a list, a table or a data set."
            )
        return table_piece(part_data, part, rule)

    if fractions is None:
        fractions = (0.8, 0.1, 0.1) if test is None else (0.9, 0.1, 0.0)
    fractions = check_fractions(fractions)
    if test is not None and validation is None and fractions[2]:
        raise ValueError(f"fractions: got {list(fractions)}; the test part is given, so its share must be 0.")
    rule = SplitRule(split or ("random" if time is None else "time"), tuple(fractions), seed)
    if validation is not None:
        pieces = [piece(data, "train"), piece(validation, "validation"), piece(test, "test")]
    elif test is not None:
        pieces = [piece(data, None, rule), piece(test, "test")]
    else:
        pieces = [piece(data, None)]
    specs = _label_specs(label, labels)
    schema = _schema_of(data)
    for spec in specs:
        check_codes(schema, spec, "data")
    label, *extra = [spec.column for spec in specs] or [None]
    special = {name for name in (label, *extra, group, time, weight) if name is not None}
    files = joined_files(joined, special)
    pieces = [told_by(joined_to(piece, files), specs) for piece in pieces]
    note = None
    if fields is None:
        where = str(data) if isinstance(data, (str, os.PathLike)) else "the table"
        block, note = without_row_numbers(next(pieces[0].read(None)).table, where)
        fields = default_fields(block.schema, special)
    fields = tuple(field.to_dict() for field in parse_fields(fields))
    if info is None:
        info = DatasetInfo(Path(data).name if isinstance(data, (str, os.PathLike)) else "table")
    info = with_note(info, note)
    if info.label_rule is None and any(spec.rule or spec.missing == "drop" for spec in specs):
        info = replace(info, label_rule="; ".join(spec.describe() for spec in specs))
    return TableSource(
        tuple(pieces),
        fields,
        label=label,
        extra_labels=tuple(extra),
        group=group,
        time=time,
        time_format=time_format,
        weight=weight,
        reading=unusual,
        joined=files,
        split=rule,
        info=info,
    )


def _reading(decimal: str, na_values: Sequence[str] | None, names: Sequence[str] | None) -> dict[str, Any] | None:
    """What is not as usual in how text files are written, as a processor keeps it."""
    check_written("data", decimal)
    given = () if na_values is None else na_values
    if not isinstance(given, (list, tuple)) or not all(isinstance(text, str) for text in given):
        raise ValueError(f"na_values={na_values!r}; accepted: a list of texts, such as ['?'].")
    unusual = {"decimal": decimal} if decimal != "." else {}
    unusual |= {"names": list(names)} if names else {}
    return unusual | ({"na_values": list(na_values)} if na_values else {}) or None


def _schema_of(data: Any) -> pa.Schema:
    """The schema of what says one without being read; an empty one of other data."""
    if isinstance(data, (str, os.PathLike)):
        path = expanded(data)
        return pq.read_schema(for_arrow(path)) if path.suffix == ".parquet" and path.is_file() else pa.schema([])
    schema = getattr(getattr(data, "features", None), "arrow_schema", getattr(data, "schema", None))
    return schema if isinstance(schema, pa.Schema) else pa.schema([])


def _label_specs(
    label: str | Mapping[str, Any] | None, labels: Sequence[str | Mapping[str, Any]] | None
) -> list[LabelSpec]:
    if labels is None:
        return [] if label is None else [label_spec(label)]
    if not isinstance(labels, (list, tuple)) or not labels or not all(labels):
        raise ValueError(f"labels={labels!r}; accepted: a list of label columns, such as [click, conversion].")
    specs = [label_spec(label) for label in labels]
    checked_labels(specs[0].column, [spec.column for spec in specs[1:]])
    return specs


def without_row_numbers(block: pa.Table, where: str) -> tuple[pa.Table, str | None]:
    """Rows without a first column of whole numbers, none of them twice, that has no name: the index that pandas writes; and what to say of it.

    Raises:
        ValueError: another column without a name.
    """
    place = next((place for place, name in enumerate(block.column_names) if not name.strip()), None)
    if place is None:
        return block, None
    if place or not pa.types.is_integer(block[0].type) or pc.count_distinct(block[0]).as_py() < block.num_rows:
        raise ValueError(
            f"{where}: column {place + 1} has no name; write one into the line of names, or list the fields to read."
        )
    return block.drop_columns(block.column_names[:1]), "Column 1, which has no name and numbers the rows, is left out."


def with_note(info: DatasetInfo, note: str | None) -> DatasetInfo:
    """The information with a note more."""
    return replace(info, notes=" ".join(filter(None, (info.notes, note))) or None)


def default_fields(schema: pa.Schema, special: Collection[str] = ()) -> list[dict[str, Any]]:
    """A field for each column that is not `special`: text and whole numbers categorical, other numbers numeric, lists sequences."""
    fields = []
    for column in schema:
        kind = plain_type(column.type)
        if is_list(kind) or pa.types.is_fixed_size_list(kind):
            type_ = "sequence"
        else:
            type_ = "numeric" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else "categorical"
        fields += [] if column.name in special else [{"name": column.name, "type": type_}]
    return fields


class TableFiles(Values):
    """The files of a table's parts."""

    train: ColumnName
    validation: ColumnName | None = None
    test: ColumnName | None = None


class TableSplit(Values):
    """How rows are parted; what is not stated has the default of [`table_source`]."""

    rule: str | None = None
    fractions: list[float] | None = None
    seed: int | None = None


class TableSchema(ReadingKeys):
    """A schema file."""

    name: str | int | None = None
    files: Annotated[TableFiles, short_for("train")]
    label: Label | None = None
    labels: list[Label] | None = None
    group: ColumnName | None = None
    time: Annotated[TimeKeys, short_for("column")] | None = None
    weight: ColumnName | None = None
    split: TableSplit = TableSplit()
    joined: list[JoinedSpec] = []  # noqa: RUF012 (pydantic copies it)
    fields: list | None = None
    info: InfoKeys | None = None


def source_from_schema(
    schema: str | os.PathLike,
    path: str | os.PathLike | None = None,
    labels: Sequence[str] | None = None,
    split: str | None = None,
    fractions: Sequence[float] | None = None,
    seed: int | None = None,
    memory_limit: int | None = None,
) -> TableSource:
    """The table that a schema file describes; `path` is another folder for its files, or another file where it has one; `labels` are others of
    its columns."""
    where, folder = str(schema), Path(schema).parent if path is None else expanded(path)
    values = read_yaml(schema)
    refuse_other_schema(values, where, is_log=False)
    keys = read_values(TableSchema, values, SchemaWording(where))
    files, time = keys.files, keys.time or TimeKeys()
    given = {"split": split or keys.split.rule, "seed": keys.split.seed if seed is None else seed}
    given["fractions"] = keys.split.fractions if fractions is None else fractions
    if labels is None and None not in (keys.label, keys.labels):
        raise ValueError(
            f"{where}: label {keys.label.column!r} and labels {[spec.column for spec in keys.labels]} are both set; keep one"
        )
    labels = keys.labels if labels is None else labels
    parts = {part: getattr(files, part) for part in ("validation", "test")}
    if path is not None and not folder.exists():
        raise FileNotFoundError(f"{folder}: no such file, and no folder of those of the schema {where}.")
    is_file = path is not None and folder.is_file()
    of_joined = Path(schema).parent if is_file else folder
    if is_file and any(parts.values()):
        raise ValueError(
            f"path: {path} is a file, and the schema {where} has {len([*filter(None, parts.values())]) + 1} files; give a folder of them."
        )
    return table_source(
        folder if is_file else beside(folder, files.train),
        keys.label,
        keys.fields,
        labels=labels,
        **{part: None if name is None else beside(folder, name) for part, name in parts.items()},
        group=keys.group,
        time=time.column,
        time_format=time.format if time.unit == "s" else time.unit,
        weight=keys.weight,
        joined=[own.model_copy(update={"path": str(beside(of_joined, own.path))}) for own in keys.joined],
        **{key: value for key, value in given.items() if value is not None},
        **keys.reading(),
        info=DatasetInfo(str(keys.name or Path(schema).stem), **info_values(keys.info)),
        memory_limit=memory_limit,
    )
