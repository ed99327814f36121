"""Impressions of one's own, from a file with a row for each ad of each impression, through a schema file:

```yaml
name: shop
impressions: ranked.parquet       # or CSV, TSV (also .gz), JSON lines; relative to the schema
# format, delimiter, names, decimal, na_values: as in the schema of a table (lmctr.data.tables.load)
columns:
  impression: request_id          # rows of one impression, wherever in the file they stand
  rank: v                         # rank index: higher is better, from 0; or position: 1 for the best
  ecpm: ecpm                      # revenue per mille, from 0
  user: user_id                   # optional: the user of an impression
  time: {column: ts, unit: ms}    # optional: its time; a name alone: unix seconds or timestamps
  weight: w                       # optional: its weight
user_fields:                      # default: the other columns that never differ within an impression
  - {name: user_id, type: categorical, min_count: 2}
ad_fields:                        # default: the others; text and whole numbers categorical, other numbers numeric
  - {name: ad, type: categorical}
  - {name: bid, type: numeric, transform: log1p}
split: {rule: time, fractions: [0.8, 0.1, 0.1], seed: 0}    # time (default, where there is one) or random, by impressions
info: {url: ..., licence: ..., notes: ...}
```
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import model_validator

from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.impressions.source import ImpressionBlock, ImpressionSource
from lmctr.data.logs import columns
from lmctr.data.logs.log import DatasetInfo
from lmctr.data.logs.schema import TimeSpec
from lmctr.data.logs.splits import check_fractions, time_cuts
from lmctr.data.logs.times import seconds_of
from lmctr.data.reading import read_table
from lmctr.data.schemas import ColumnName, InfoKeys, ReadingKeys, SchemaWording, info_values, short_for
from lmctr.data.tables.load import TableSplit, default_fields, with_note, without_row_numbers
from lmctr.data.tables.source import file_fingerprint
from lmctr.utils.files import beside, expanded, read_yaml
from lmctr.utils.ragged import blocks
from lmctr.utils.suggest import no_column
from lmctr.utils.values import Values, read_values

_BLOCK = 4096
_RULES = ("time", "random")
_RARELY = 0.02  # share of impressions in which a field of ads may be expected to differ


class ImpressionColumns(Values):
    """What the columns say of each row."""

    impression: ColumnName
    rank: ColumnName | None = None
    position: ColumnName | None = None
    ecpm: ColumnName
    user: ColumnName | None = None
    time: Annotated[TimeSpec, short_for("column")] | None = None
    weight: ColumnName | None = None

    @model_validator(mode="after")
    def _one_order(self) -> ImpressionColumns:
        if (self.rank is None) == (self.position is None):
            raise ValueError("give `rank`, of which higher is better, or `position`, of which 1 is the best.")
        return self


class ImpressionSchema(ReadingKeys):
    """A schema file."""

    name: str | int | None = None
    impressions: ColumnName
    columns: ImpressionColumns
    user_fields: list | None = None
    ad_fields: list | None = None
    split: TableSplit = TableSplit()
    info: InfoKeys | None = None


def impressions_from_schema(
    schema: str | os.PathLike,
    path: str | os.PathLike | None = None,
    split: str | None = None,
    fractions: Sequence[float] | None = None,
    seed: int | None = None,
) -> ImpressionSource:
    """The impressions that a schema file describes.

    Args:
        schema: the file, see the module.
        path: another file, or another folder for the schema's.
        split, fractions, seed: in place of the schema's.

    Raises:
        FileNotFoundError, ValueError: a file, key or column that is not there; values that differ within an impression where they must not, with
            its rows; a rank, position, eCPM or weight that is none.
    """
    keys = read_values(ImpressionSchema, read_yaml(schema), SchemaWording(str(schema)))
    file = beside(Path(schema).parent, keys.impressions)
    if path is not None:
        file = expanded(path)
        file = file / Path(keys.impressions).name if file.is_dir() else file
    name = str(keys.name or Path(schema).stem)
    return _source(file, keys, name, str(schema), split, fractions, seed)


def impressions_from_file(
    impressions: str | os.PathLike,
    columns: Mapping[str, Any] | None = None,
    user_fields: list | None = None,
    ad_fields: list | None = None,
    format: str | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    na_values: list[str] | None = None,
    names: list[str] | None = None,
    split: str | None = None,
    fractions: Sequence[float] | None = None,
    seed: int | None = None,
) -> ImpressionSource:
    """The impressions of a file, with the keys of a schema as arguments. Raises as [`impressions_from_schema`]."""
    keys = {
        "impressions": str(impressions),
        "columns": columns,
        "user_fields": user_fields,
        "ad_fields": ad_fields,
        "format": format,
    }
    keys |= {"delimiter": delimiter, "decimal": decimal, "na_values": na_values, "names": names}
    where = f"options of the file {impressions}"
    if columns is None:
        raise ValueError(
            f"{where}: `columns` is missing, which says which column is the impression, the rank or position, and the ecpm; `lmctr init {impressions} "
            "--kind impressions` writes a schema"
        )
    schema = read_values(ImpressionSchema, keys, SchemaWording(where))
    file = expanded(impressions)
    return _source(file, schema, file.name.partition(".")[0], where, split, fractions, seed)


def _source(
    file: Path,
    keys: ImpressionSchema,
    name: str,
    where: str,
    split: str | None,
    fractions: Sequence[float] | None,
    seed: int | None,
) -> ImpressionSource:
    rule = split or keys.split.rule or ("random" if keys.columns.time is None else "time")
    if rule not in _RULES or (rule == "time" and keys.columns.time is None):
        needs = "; time needs a column of times" if rule == "time" else ""
        raise ValueError(f"split of {where}: got {rule!r}, accepted: {', '.join(_RULES)}{needs}.")
    shares = check_fractions(fractions or keys.split.fractions or (0.8, 0.1, 0.1))
    seed = next((one for one in (seed, keys.split.seed) if one is not None), 0)
    about = json.dumps(keys.model_dump(mode="json"), sort_keys=True) + f"{rule} {shares} {seed}"
    content = file_fingerprint(file) if file.exists() else ""  # of what is read now, however the file goes on
    table, note = read_table(file, **keys.reading(), progress=True), None
    if keys.user_fields is None or keys.ad_fields is None:
        table, note = without_row_numbers(table, str(file))
    table = _sorted(table, keys.columns, str(file))
    users, ads = _fields(table, keys, where)
    reader = _Reader(table, keys.columns, users, ads, (rule, shares, seed))
    info = DatasetInfo(name, **info_values(keys.info))
    return ImpressionSource(
        reader.blocks,
        tuple(users),
        tuple(ads),
        lambda: hashlib.sha256(f"{about} {content}".encode()).hexdigest(),
        info=with_note(info, note),
    )


@dataclass(frozen=True)
class _Sorted:
    """Rows of a file with those of an impression together, in the order of first rows. row: (A,) place in the file, from 1. starts: (B,)."""

    table: pa.Table
    source: str
    row: np.ndarray
    starts: np.ndarray

    def told(self, name: str, read: Callable[[pa.ChunkedArray], Any]) -> Any:
        """What a reader makes of a column; it gets the rows as they stand in the file, which its errors name."""
        place = self.row - 1
        return read(self.table[name].take(np.argsort(place)))[place]

    def differing(self, name: str) -> int | None:
        """A row whose value of a column differs from the one before it in its impression; None: there is none."""
        rows = self._differing(name)
        return int(rows[0]) if len(rows) else None

    def _differing(self, name: str) -> np.ndarray:
        values = self.table[name].combine_chunks().dictionary_encode()
        codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        differs = np.diff(codes, prepend=codes[:1]) != 0
        differs[self.starts] = False
        return np.flatnonzero(differs)

    def check_sides(self, names: Sequence[str]) -> None:
        """Raises for columns that differ in next to no impression: nobody said whether they are the user's or the ads'."""
        for name in names:
            rows = self._differing(name)
            count = len(np.unique(np.searchsorted(self.starts, rows, side="right")))
            if 0 < count <= _RARELY * len(self.starts):
                values = [self.table[name][place].as_py() for place in (rows[0] - 1, rows[0])]
                raise ValueError(
                    f"{self.source}: the column {name!r} differs within {count} of {len(self.starts):,} impressions only ({values[0]!r} in row "
                    f"{self.row[rows[0] - 1]} and {values[1]!r} in row {self.row[rows[0]]}): mend these rows if it is the user's, or say by "
                    "`user_fields` and `ad_fields` whose it is"
                )


def _sorted(table: pa.Table, roles: ImpressionColumns, source: str) -> _Sorted:
    named = {role: getattr(spec, "column", spec) for role, spec in roles if spec is not None}
    for role, name in named.items():
        if name not in table.column_names:
            raise ValueError(f"{source}: the {role}: {no_column(name, table.column_names)}.")
    for name in dict.fromkeys(named.values()):
        columns.whole_column(table[name], name, source)  # with its rows as they stand in the file
    codes, _ = columns.encode_ids(table[roles.impression], roles.impression, source)
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))[which]
    order = np.argsort(place, kind="stable")
    return _Sorted(table.take(order), source, order + 1, np.flatnonzero(np.diff(place[order], prepend=-1)))


def _fields(rows: _Sorted, keys: ImpressionSchema, where: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Fields of users and of ads; what is a field of the user must not differ within an impression."""
    roles = keys.columns
    special = {roles.impression, roles.rank, roles.position, roles.ecpm, roles.weight}
    special.add(getattr(roles.time, "column", None))
    told = [fields for fields in (keys.user_fields, keys.ad_fields) if fields is not None]
    taken = special.union(*map(_read_by, told))
    rest = rows.table.drop_columns([name for name in rows.table.column_names if name in taken])
    shared = [name for name in rest.column_names if rows.differing(name) is None]
    users = default_fields(rest.select(shared).schema) if keys.user_fields is None else keys.user_fields
    others = [name for name in rest.column_names if name not in shared or keys.user_fields is not None]
    if not told:
        rows.check_sides([name for name in others if name != roles.user])
    ads = default_fields(rest.select(others).schema) if keys.ad_fields is None else keys.ad_fields
    if not ads:
        raise ValueError(
            f"{rows.source}: no column differs within an impression, so that no ad has a field; {len(rows.starts):,} impressions have "
            f"{len(rows.row):,} ads: give several ads an impression, and what describes them"
        )
    alike = dict.fromkeys(sorted(_read_by(users)), "of the user's fields")
    alike |= {name: what for name, what in ((roles.user, "the user"), (roles.weight, "the weight")) if name}
    alike |= {} if roles.time is None else {roles.time.column: "the time"}
    for name in (*alike, *sorted(_read_by(ads))):
        if name not in rows.table.column_names:
            raise ValueError(f"{where}: {rows.source} has {no_column(name, rows.table.column_names)}.")
    for name, what in alike.items():
        if (row := rows.differing(name)) is not None:
            values = [rows.table[name][place].as_py() for place in (row - 1, row)]
            raise ValueError(
                f"{rows.source}: the column {name!r}, {what}, differs within an impression: {values[0]!r} in row {rows.row[row - 1]} and {values[1]!r} "
                f"in row {rows.row[row]}."
            )
    return list(users), list(ads)


def _read_by(fields: list[dict[str, Any]]) -> set[str]:
    """The columns that fields read."""
    return {*TabularFeatureProcessor(fields, label=None).input_columns()} if fields else set()


@dataclass(frozen=True)
class _Reader:
    """Blocks of the rows of a file."""

    rows: _Sorted
    roles: ImpressionColumns
    user_fields: list[dict[str, Any]]
    ad_fields: list[dict[str, Any]]
    split: tuple[str, tuple[float, float, float], int]

    def blocks(self) -> Iterator[ImpressionBlock]:
        rows, roles, starts = self.rows, self.roles, self.rows.starts
        ends = np.append(starts[1:], rows.table.num_rows)
        ranks, ecpm = self._ranks(ends - starts), self._numbers(roles.ecpm)
        times = None
        if roles.time is not None:
            times = rows.told(roles.time.column, lambda some: seconds_of(some, roles.time, rows.source))[starts]
        groups = None
        if roles.user is not None:
            ids = rows.told(roles.user, lambda some: columns.encode_ids(some, roles.user, rows.source)[0])
            groups = ids[starts].astype(np.int64)
        weight = None if roles.weight is None else self._numbers(roles.weight)[starts]
        parts = self._parts(times, len(starts))
        of_users, of_ads = map(_read_by, (self.user_fields, self.ad_fields))
        for own in blocks(len(starts), _BLOCK):
            first = int(starts[own.start])
            ads = slice(first, int(ends[own][-1]))
            yield ImpressionBlock(
                users=rows.table.select(sorted(of_users)).take(starts[own]),
                ads=rows.table.select(sorted(of_ads)).slice(first, ads.stop - first),
                counts=(ends - starts)[own],
                ranks=ranks[ads],
                ecpm=ecpm[ads],
                split=parts[own],
                groups=None if groups is None else groups[own],
                times=None if times is None else times[own],
                weight=None if weight is None else weight[own],
                first=own.start,
                first_ad=first,
                source=rows.source,
            )

    def _numbers(self, name: str) -> np.ndarray:
        """(A,) float64 of a column whose values are all there, finite and from 0."""

        def numbers(some: pa.ChunkedArray) -> np.ndarray:
            array = columns.as_arrow(some, name, self.rows.source)
            array = columns.text_numbers(array, name, self.rows.source, "A number of at least 0 is.")
            return array.to_numpy(zero_copy_only=False).astype(np.float64)

        values = self.rows.told(name, numbers)
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"{columns.place(self.rows.source, name)}: {values[row]:g} in row {self.rows.row[row]}; accepted: finite numbers of at least 0."
            )
        return values

    def _ranks(self, counts: np.ndarray) -> np.ndarray:
        """(A,) rank indices; of positions counted from the last one of the impression, from 1."""
        if self.roles.rank is not None:
            return self._numbers(self.roles.rank)
        places = self._numbers(self.roles.position)
        if (places < 1).any():
            row = int(np.argmax(places < 1))
            raise ValueError(
                f"{columns.place(self.rows.source, self.roles.position)}: {places[row]:g} in row {self.rows.row[row]}; positions count from 1."
            )
        return np.repeat(np.maximum.reduceat(places, self.rows.starts), counts) + 1 - places

    def _parts(self, times: np.ndarray | None, count: int) -> np.ndarray:
        """(B,) int8 part of each impression."""
        rule, shares, seed = self.split
        if rule == "time":
            order = np.argsort(times, kind="stable")
            cuts = time_cuts(times[order], shares)
        else:
            order = np.random.default_rng(seed).permutation(count)
            cuts = [int(np.floor(share * count + 1e-9)) for share in np.cumsum(shares[:-1])]
        parts = np.empty(count, dtype=np.int8)
        parts[order] = np.searchsorted(cuts, np.arange(count), side="right")
        return parts
