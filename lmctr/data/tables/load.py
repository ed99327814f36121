"""Tables for tabular models: sources, processed stores, and the view that makes batches.

[`~lmctr.data.registry.load_tabular`] gives a [`TableSource`] from a known data set or from files of one's own, through a schema file:

```yaml
name: shop
files: {train: train.csv.gz, test: test.csv.gz}   # or one file: part it by `split`; paths are relative to the schema
# format: csv | tsv | parquet | jsonl             # default: from the extension
# delimiter: ";"
# names: [click, ad, price]                       # of CSV files without a header line
label: click                                      # 0 or 1
group: user                                       # optional: column of the grouped AUC
time: {column: ts, format: "%Y-%m-%d %H:%M:%S"}   # optional; a name alone: unix seconds or timestamps
weight: w                                         # optional
split: {rule: random, fractions: [0.8, 0.1, 0.1], seed: 0}   # random, group, rows, time; with `files` it parts the training file
fields:                                           # default: text and whole numbers categorical, other numbers numeric, lists sequences
  - {name: ad, type: categorical, min_count: 2}
  - {name: price, type: numeric, transform: log1p}
info: {url: ..., licence: ..., notes: ...}
```

Then `TabularStore.build(source, processor, directory)` fits and transforms it in blocks, and `TabularView`, `TabularDataset` and
`TabularCollator` read shuffled batches from the arrays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from lmctr.data.batches.tabular import TabularCollator, TabularDataset, TabularView
from lmctr.data.features.fields import parse_fields
from lmctr.data.logs.log import DatasetInfo
from lmctr.data.registry import load_tabular
from lmctr.utils.files import read_yaml
from lmctr.utils.suggest import unknown_key_message

from .reading import block_size_for
from .source import PARTS, Piece, SplitRule, TableSource, file_piece, table_piece
from .store import TabularStore

__all__ = [
    "Piece",
    "SplitRule",
    "TableSource",
    "TabularCollator",
    "TabularDataset",
    "TabularStore",
    "TabularView",
    "load_tabular",
    "table_source",
]

_FILE_KEYS = ("format", "delimiter", "names")


def table_source(
    data: Any,
    label: str | None = "label",
    fields: Sequence[Mapping[str, Any]] | None = None,
    *,
    validation: Any = None,
    test: Any = None,
    group: str | None = None,
    time: str | None = None,
    time_format: str | None = None,
    weight: str | None = None,
    split: str = "random",
    fractions: Sequence[float] | None = None,
    seed: int = 0,
    format: str | None = None,
    delimiter: str | None = None,
    names: Sequence[str] | None = None,
    info: DatasetInfo | None = None,
    memory_limit: int | None = None,
) -> TableSource:
    """A source from files, or from tables in memory or `datasets` Datasets and streams.

    Args:
        data: the whole table, or the training part when `test` is given. A path, or whatever
            [`~lmctr.data.tables.source.rows_of`] takes. A stream that can be read once only (a generator) does not do.
        label: label column, or None.
        fields: fields of the processor. None takes all other columns of the first block: text, whole numbers and booleans as
            categorical, other numbers as numeric, lists as sequences.
        validation: the validation part. When `test` is given and this is not, a share of `data` is parted off.
        test: the test part.
        group: column of the grouped AUC.
        time: time column.
        time_format: its `strptime` format, for texts.
        weight: column of sample weights.
        split: rule for what is not given: "random", "group", "rows" or "time" (see [`SplitRule`]).
        fractions: shares of train, validation and test; default (0.8, 0.1, 0.1), or (0.9, 0.1, 0) with a given test part.
        seed: of the split.
        format: of files, see [`stream_file`].
        delimiter: of CSV files.
        names: column names of CSV files without a header line.
        info: origin and licence.
        memory_limit: bytes that reading may take beside vocabularies; sets the size of blocks.

    Raises:
        ValueError: unknown columns or bad values; a validation part without a test part.
    """
    if validation is not None and test is None:
        raise ValueError("validation is given and test is not; give both parts, or none.")
    reading = {"format": format, "delimiter": delimiter, "names": names}
    reading["block_size"] = block_size_for(memory_limit)

    def piece(part_data: Any, part: str | None, rule: SplitRule | None = None) -> Piece:
        if isinstance(part_data, (str, os.PathLike)):
            path = Path(part_data).expanduser()
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file.")
            return file_piece(path, part, rule, **reading)
        return table_piece(part_data, part, rule)

    if fractions is None:
        fractions = (0.8, 0.1, 0.1) if test is None else (0.9, 0.1, 0.0)
    if test is not None and validation is None and float(fractions[2]):
        raise ValueError(f"fractions: got {list(fractions)}; the test part is given, so its share must be 0.")
    rule = SplitRule(split, tuple(fractions), seed)
    if validation is not None:
        pieces = [piece(data, "train"), piece(validation, "validation"), piece(test, "test")]
    elif test is not None:
        pieces = [piece(data, None, rule), piece(test, "test")]
    else:
        pieces = [piece(data, None)]
    special = {name for name in (label, group, time, weight) if name is not None}
    if fields is None:
        fields = _guess_fields(next(pieces[0].read(None)).table.schema, special)
    fields = tuple(field.to_dict() for field in parse_fields(fields))
    if info is None:
        info = DatasetInfo(Path(data).name if isinstance(data, (str, os.PathLike)) else "table")
    return TableSource(
        tuple(pieces),
        fields,
        label=label,
        group=group,
        time=time,
        time_format=time_format,
        weight=weight,
        split=rule,
        info=info,
    )


def _guess_fields(schema: pa.Schema, special: set[str]) -> list[dict[str, Any]]:
    fields = []
    for column in schema:
        if column.name in special:
            continue
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            fields.append({"name": column.name, "type": "sequence"})
        elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            fields.append({"name": column.name, "type": "numeric"})
        else:
            fields.append({"name": column.name, "type": "categorical"})
    return fields


_SCHEMA_KEYS = ("name", "files", *_FILE_KEYS, "label", "group", "time", "weight", "split", "fields", "info")


def source_from_schema(
    schema: str | os.PathLike,
    path: str | os.PathLike | None = None,
    split: str | None = None,
    fractions: Sequence[float] | None = None,
    seed: int | None = None,
    memory_limit: int | None = None,
) -> TableSource:
    """The table that a schema file describes; `path` is another folder for its files."""
    where, folder = str(schema), Path(schema).parent if path is None else Path(path).expanduser()
    values = _mapping(read_yaml(schema), where, _SCHEMA_KEYS)
    files = values.get("files")
    if isinstance(files, str):
        files = {"train": files}
    files = _mapping(files, f"files of {where}", PARTS)
    if "train" not in files:
        raise ValueError(f"files of {where}: the key 'train' is missing.")
    rule = _mapping(values.get("split", {}), f"split of {where}", ("rule", "fractions", "seed"))
    given = {"rule": split, "fractions": fractions, "seed": seed}
    rule |= {key: value for key, value in given.items() if value is not None}
    time = values.get("time")
    if isinstance(time, Mapping):
        time = _mapping(time, f"time of {where}", ("column", "format"))
    else:
        time = {"column": time}
    known = [entry.name for entry in dataclass_fields(DatasetInfo) if entry.name != "name"]
    info = _mapping(values.get("info", {}), f"info of {where}", known)
    return table_source(
        folder / files["train"],
        values.get("label"),
        values.get("fields"),
        validation=folder / files["validation"] if "validation" in files else None,
        test=folder / files["test"] if "test" in files else None,
        group=values.get("group"),
        time=time.get("column"),
        time_format=time.get("format"),
        weight=values.get("weight"),
        split=rule.get("rule", "random"),
        fractions=rule.get("fractions"),
        seed=rule.get("seed", 0),
        info=DatasetInfo(str(values.get("name", Path(schema).stem)), **info),
        memory_limit=memory_limit,
        **{key: values.get(key) for key in _FILE_KEYS},
    )


def _mapping(value: Any, where: str, known: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected keys ({', '.join(known)}), got {value!r}.")
    for key in value:
        if key not in known:
            raise ValueError(unknown_key_message(key, known, where))
    return dict(value)
