"""The first rows of a file, how it is written, and which of its columns are called by the names of a role."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmctr.data.amounts import number_form
from lmctr.data.logs.table import POSITIVE_WORDS, turned_codes
from lmctr.data.logs.times import formats_of_texts, iso_times
from lmctr.data.names import no_header_hint
from lmctr.data.reading import (
    checked_file,
    delimiter_of,
    files_with_rows,
    head_of,
    list_columns,
    parquet_files,
    with_held,
)
from lmctr.data.tables.reading import MISSING_WORDS, Rows, are_codes, kinds_in_json, stream_file
from lmctr.data.texts import are_literals
from lmctr.utils.arrow import decoded, is_bytes, is_list, is_number, is_text, without_empty
from lmctr.utils.files import expanded, for_arrow
from lmctr.utils.suggest import first_of
from lmctr.utils.words import words_of

from .forms import place_of_shown, refuse_other_lines, refuse_plain_quotes

_BYTES, _FILES = 16 << 20, 64
_EXACT = 2.0**53  # from which on floats do not tell whole numbers apart
# Names as they are without case and signs: the first ones are surer.
ROLES = {
    "user": "userid user uid customerid customer customerno customernumber clientnum visitorid visitor memberid member clientid client accountid account "
    "viewer reader reviewerid reviewer critic username nickname buyer shopper person studentid learnerid pupilid subjectid anonstudentid deviceid sessionid session "
    "kunde kundenid kundennr kundennummer nutzer nutzerid benutzer benutzerid utilisateur usuario cliente idcliente 用户 用户id 会员id ユーザー ユーザーid 顧客id",
    "item": "itemid item aid productid product iid articleid article adid ad movieid movie videoid video newsid news sku contentid content "
    "listingid listing songid song trackid track bookid book offerid offer postid post creativeid creative bannerid banner asin "
    "problemid problemname questionid exerciseid quizid lexemeid skillid courseid stockcode isbn ean upc "
    "artikel artikelid artikelnr artikelnummer produkt produktid produit producto produto 商品 商品id 物品id",
    "time": "timestamp time ts datetime eventtime unixtime date createdat created clicktime showtime when day "
    "zeit zeitpunkt zeitstempel datum heure fecha 时间 时间戳 日期 日時",
    "label": "clicked click isclick isclicked clk label islabel target y liked like islike converted conversion bought purchased purchase "
    "response hit churn churned exited attrition attrited left canceled cancelled defaulted reordered opened renewed redeemed outcome subscribed deposit "
    "revenue survived won correct iscorrect answeredcorrectly correctfirstattempt follow followed share shared forward forwarded comment commented "
    "favorite favourite collect collected finish finished applied ordered booked installed replied "
    "geklickt gekauft achat comprado 点击 是否点击 是否购买 クリック",
    "feedback_values": "rating ratings stars overall score watchratio watchtime dwelltime dwell playtime duration durationseconds timespent seconds "
    "listened percentplayed",
    "grade": "rating ratings stars overall",
    "feedback": "action actiontype event eventtype behavior behaviour behaviortype activity interaction interactiontype",
    "weight": "weight sampleweight",
    "noun": "hit response left deposit revenue share forward comment collect finish follow",  # labels, or something else
    "scenario": "scenario scene page surface tab placement screen section",
    "impression": "impressionid impression requestid request queryid qid auctionid auction searchid srchid slateid slate pageviewid listid",
    "position": "position pos slot displayposition adposition",
    "rank": "rank rankindex ranking relevance v",
    "ecpm": "ecpm cpm ecpmusd revenue value",
}
ROLES = {role: tuple(names.split()) for role, names in ROLES.items()}
"""Names that columns of a role go by."""
_LABELS = ("click", "clicked", "clk", "label", "target")  # also as the last word of a name
DONE = {
    "accepted", "approved", "attended", "attrited", "bought", "canceled", "cancelled", "churned", "converted", "defaulted", "exited", "fraud", "fraudulent",
    "opened", "pass", "passed", "purchased", "redeemed", "renewed", "responded", "sold", "subscribed", "succeeded", "success", "successful", "survived", "won",
}  # fmt: skip
"""Words that say that what was to happen did."""
_OUTCOMES = {"attributed", "class", "default", "noshow", "output", "promoted", "recommended", "result", "sale", "signup", "status"}  # fmt: skip
_OF_IDS = {
    "id", "ids", "key", "code", "no", "nr", "num", "number", "hash", "name", "index", "token", "title", "url", "uri", "isbn", "email", "ip", "unique",
}  # fmt: skip
_NUMBER = f"^{number_form(words='')}$"
_MISSING = ("?", "NULL", "\\N", "#N/A", "N/A", "None", "nan", "NaN", "null", "-")


@dataclass(frozen=True)
class FileSample:
    """The first rows of a file, cleaned, and how the file is read.

    Attributes:
        path: the file. reading: keys of the schema besides the path (`names`, `delimiter`, `decimal`, `na_values`). rows: of the whole file, about.
        table: the sample, in which a missing value is null. whole: whether the sample is the file.
        objects: columns of objects with entries of their own (JSON lines, Parquet), with what they hold and what makes columns of it; the table lacks them.
        nameless: columns without a name, such as the index that pandas writes; the table lacks them too.
        no_values: columns of kinds that are no field's, such as durations, with what they are; the table lacks these too.
        of_words: columns whose header says that they hold several words (RecBole's files).
        turned: by column what 0 and 1 mean, where the file says that 0 is a click.
        mixed: columns of JSON lines that hold values of several types, which are read as texts.
    """

    path: Path
    reading: dict[str, Any]
    table: pa.Table
    rows: int
    whole: bool
    objects: Mapping[str, str] = field(default_factory=dict)
    nameless: tuple[str, ...] = ()
    of_words: Sequence[str] = ()
    mixed: tuple[str, ...] = ()
    no_values: Mapping[str, str] = field(default_factory=dict)
    turned: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _codes: dict[str, pa.Array] = field(default_factory=dict, init=False, repr=False)
    _literals: dict[str, bool] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def distinct(self) -> dict[str, int]:
        """Number of distinct values by column; lists have none."""
        counted = {n: c for n, c in zip(self.table.column_names, self.table.columns) if not pa.types.is_nested(c.type)}
        return {n: 0 if pa.types.is_null(c.type) else pc.count_distinct(c).as_py() for n, c in counted.items()}

    def values(self, name: str) -> pa.Array:
        """The values of a column that are there."""
        return self.table[name].combine_chunks().drop_null()

    def codes(self, name: str) -> pa.Array:
        """(R,) int32 of a column's values, null where there is none."""
        if name not in self._codes:
            self._codes[name] = pc.dictionary_encode(self.table[name].combine_chunks()).indices
        return self._codes[name]

    def holds_literals(self, name: str) -> bool:
        """Whether a column's values are texts that [`are_literals`]."""
        if name not in self._literals:
            values = self.values(name)
            self._literals[name] = is_text(values.type) and are_literals(values)
        return self._literals[name]

    def is_key(self, name: str, key: str) -> bool:
        """Whether a column tells rows apart and has the very name of the events' ids: small numbers such as ages stand among ids by chance."""
        return name == key != "id" and self.distinct[name] == self.table.num_rows

    @cached_property
    def _called(self) -> dict[str, list[str]]:
        plain = {name: _plain(name) for name in self.table.column_names}
        return {
            role: [name for word in words for name in plain if plain[name] == word] for role, words in ROLES.items()
        }

    @cached_property
    def _named(self) -> dict[str, list[str]]:
        words = {name: {*words_of(name)} for name in self.table.column_names}
        holding = {role: [name for name in words if words[name] & {*known}] for role, known in ROLES.items()}
        return {role: list(dict.fromkeys(self._called[role] + names)) for role, names in holding.items()}

    def called(self, role: str) -> list[str]:
        """Columns whose very names are of a role, the surest first."""
        return self._called[role]

    def named(self, role: str) -> list[str]:
        """Columns by how well their names suit a role: the very names first, then those that hold one of them as a word."""
        return self._named[role]

    def named_ids(self, role: str) -> list[str]:
        """Those of `named` that name users or items themselves: `new_customer_id` does, `customer_age` does not."""
        return [name for name in self.named(role) if name in self.called(role) or self._heads(name, role)]

    @staticmethod
    def _heads(name: str, role: str) -> bool:
        """Whether a name ends in a word of a role, or in that and words such as id."""
        words = words_of(name)
        while len(words) > 1 and words[-1] in _OF_IDS:
            words.pop()
        return words[-1] in ROLES[role]


def is_called_label(name: str) -> bool:
    """Whether a column's name says label and nothing else: `clicked` and `ad_click`, no `click_position`, no `share`."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", name.strip()).lower()
    plain = _plain(re.sub(r"^(is|has|was)[ _]|[ _](flag|ind|indicator)$", "", spaced))
    is_one = plain in ROLES["label"] and plain not in ROLES["noun"]
    return is_one or plain in DONE | _OUTCOMES or words_of(name)[-1:] in [[word] for word in _LABELS]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def sample_file(path: str | os.PathLike, names: Sequence[str] | None = None) -> FileSample:
    """Reads the first rows of a CSV, TSV, Parquet or JSON lines file and finds out how it is written. names: of the columns of a text file without a line
    of them.

    Raises:
        FileNotFoundError, ValueError: as [`stream_file`] does; a text file without a line of column names, and none given; names of one that has some.
    """
    path, kind = checked_file(expanded(path))
    is_of_lines = kind in ("csv", "tsv")
    # what ends as RecBole's files do may be MovieLens' u.item, which | parts
    is_tabbed = kind == "tsv" and "\t" in head_of(path).partition("\n")[0]
    delimiter = delimiter_of(path) if is_of_lines and not is_tabbed else None
    if names is not None and not is_of_lines:
        raise ValueError(
            f"{path}: {kind} has names of its own, which {', '.join(names)} cannot replace; leave them out."
        )
    if is_of_lines:
        refuse_plain_quotes(path, delimiter or "\t")
    if kind == "csv":
        refuse_other_lines(path)
    table, whole, mixed = _first_rows(path, kind, delimiter, names)
    turned = turned_codes(table.schema)
    if is_of_lines:
        _refuse_lines(path, table, names)
    objects = {own.name: what for own in table.schema if (what := _objects_in(own.type))}
    nameless = tuple(name for name in table.column_names if not name.strip())
    no_values = {
        own.name: what
        for own in table.schema
        if (what := _no_field(own.type, is_of_lines)) and own.name not in nameless
    }
    table = table.drop_columns([*dict.fromkeys((*objects, *nameless, *no_values))])
    reading: dict[str, Any] = {} if names is None else {"names": [*names]}
    reading |= {} if delimiter in (None, ",") else {"delimiter": delimiter}
    if is_of_lines:
        table, missing = _as_written(path, table, delimiter, names)
        table, decimal, missing = _cleaned(table, delimiter, missing)
        reading |= {"decimal": ","} if decimal == "," else {}
        reading |= {"na_values": sorted(missing)} if missing else {}
    else:  # others say themselves what is missing
        if long := _beyond_64_bits(table):
            table = _with_texts(table, table.select(long) if kind == "parquet" else _texts(path, long))
        table = pa.table({name: _plain_values(table[name], {""}) for name in table.column_names})
    words = list_columns(path) if kind == "tsv" else ()
    rows = table.num_rows if whole else _rows_of(path, kind, table)
    return FileSample(path, reading, table, rows, whole, objects, nameless, words, mixed, no_values, turned)


def _first_rows(
    path: Path, kind: str, delimiter: str | None, names: Sequence[str] | None
) -> tuple[pa.Table, bool, tuple[str, ...]]:
    """The first rows of a file, whether these are all, and columns of JSON lines that hold values of several types."""
    mixed: tuple[str, ...] = ()
    blocks = stream_file(path, delimiter=delimiter, names=names, block_size=_BYTES)
    try:
        table = next(blocks).whole
    except ValueError:
        kinds = _kinds_of_mixed(path) if kind == "jsonl" else {}
        mixed = tuple(name for name, own in kinds.items() if own == "text")
        if not mixed:
            raise
        blocks = stream_file(path, kinds, block_size=_BYTES)
        table = next(blocks).whole
    table = _with_more(table, blocks) if kind == "parquet" else table
    whole = next(blocks, None) is None
    return _of_all_files(path) if kind == "parquet" and path.is_dir() and not whole else table, whole, mixed


def _refuse_lines(path: Path, table: pa.Table, names: Sequence[str] | None) -> None:
    """Raises `ValueError` where lines of a text file are names that are none, or a line of names stands among the rows."""
    if (place := place_of_shown(table)) is not None:
        raise ValueError(
            f"{path}, column {place + 1}: whole impressions in one cell ({table.column(place)[0].as_py()!s:.40} ...), as in MIND's behaviors.tsv; a row of each "
            f"item: lmctr data convert {path} --output {path.stem}.parquet"
        )
    if names is not None and table.column_names[: len(names)] != [*names]:
        raise ValueError(
            f"{path}: its first line holds names ({first_of(table.column_names)}), so that it needs no others; leave {', '.join(names)} out."
        )
    if (place := _place_of_names(table)) is not None:
        raise ValueError(
            f"{path}, row {place + 1:,}: the names of the columns again, as where files were put together; delete this line"
        )
    if len(second := _second_names(table)) > table.num_columns / 2:
        raise ValueError(
            f"{path}, row 1: {', '.join(map(repr, second[:3]))} ..., and numbers below, as where "
            + (
                "a second line of names or of units stands below the first; delete one of the two lines"
                if names is None
                else f"a line of names stands at the top; leave {', '.join(names)} out, or delete it"
            )
        )
    if names is None and not _are_places(table.column_names):
        hint = no_header_hint(table.column_names, _values_as_names(table), str(path))
        if hint:
            raise ValueError(f"{path}: columns {table.column_names[:5]} ...{hint}")


def _as_written(
    path: Path, table: pa.Table, delimiter: str | None, names: Sequence[str] | None
) -> tuple[pa.Table, set[str]]:
    """The table with whole numbers that have zeros in front, or more than 64 bits, and times of day as texts; and the words that were read as missing."""
    long, clocks = _beyond_64_bits(table), [own.name for own in table.schema if pa.types.is_time(own.type)]
    numbers = [own.name for own in table.schema if is_number(own.type)]
    read = [name for name in numbers if pa.types.is_integer(table[name].type) or table[name].null_count]
    texts = _texts(path, [*long, *read, *clocks], delimiter=delimiter, names=names)
    for name in clocks:
        table = table.set_column(table.column_names.index(name), name, texts[name])
    missing = {word for name in read for word in pc.unique(texts[name]).to_pylist() if word and word in MISSING_WORDS}
    integers = [name for name in read if pa.types.is_integer(table.schema.field(name).type)]
    long += [name for name in integers if name not in long and _are_codes(texts[name], table[name])]
    return _with_texts(table, texts.select(long)), missing


def _cleaned(table: pa.Table, delimiter: str | None, missing: set[str]) -> tuple[pa.Table, str, set[str]]:
    """The table of a text file with null for missing values and numbers for texts of them, how decimals are written, and all words for missing."""
    decimal, cleaned = ".", {name: table[name].combine_chunks() for name in table.column_names}
    found = {
        name: pc.unique(own.drop_null()).to_pylist()[:10_000] for name, own in cleaned.items() if is_text(own.type)
    }
    for words in found.values():
        missing = missing | {word for word in words if word in _MISSING or word.isspace()} | _unanswered(words)
    for name, values in cleaned.items():
        if name not in found:
            cleaned[name] = _plain_values(values)
            continue
        values = _plain_values(values, {"", *missing})
        comma = delimiter in (";", "\t") and _all_match(values, f"^{number_form(',', '')}$")
        comma = comma and pc.any(pc.match_substring(values, ",")).as_py()  # 00123 is none
        decimal = "," if comma else decimal
        if comma or (not missing.isdisjoint(found[name]) and _all_match(values, _NUMBER)):
            values = pc.replace_substring(values, ",", ".").cast(pa.float64())
        cleaned[name] = without_empty(values)
    return pa.table(cleaned), decimal, missing


def _plain_values(values: pa.Array | pa.ChunkedArray, words: Collection[str] = ()) -> pa.Array:
    """Values of a column without categories of pandas and decimals; NaN, and of texts those words, are null."""
    values = decoded(values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values)
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    if is_text(values.type) and words:
        values = pc.if_else(pc.is_in(values, pa.array([*words])), pa.scalar(None, values.type), values)
    return without_empty(values)


def _with_more(table: pa.Table, blocks: Iterator[Rows]) -> pa.Table:
    """The first rows with those after them, up to `_BYTES`: files of a folder are read one by one, and may be small."""
    taken, size = [table], table.nbytes
    while size < _BYTES and (rows := next(blocks, None)) is not None:
        taken.append(rows.whole)
        size += rows.table.nbytes
    return pa.concat_tables(taken)


def _of_all_files(path: Path) -> pa.Table:
    """The first rows of the files of a folder, at most `_FILES` spread over it: all of one file may stand in the same folder, `day=2024-01-01`."""
    files = [*files_with_rows(path).items()]
    chosen = [files[int(place)] for place in np.linspace(0, len(files) - 1, min(len(files), _FILES))]
    parts = []
    for file, (held, _) in chosen:
        rows = next(stream_file(file, block_size=_BYTES // len(chosen))).whole
        parts.append(with_held(rows, held, None))
    names = parts[0].column_names
    return pa.concat_tables((part.select(names) for part in parts), promote_options="permissive")


def _kinds_of_mixed(path: Path) -> dict[str, str]:
    """Those of `kinds_in_json`; nothing of lines that are no objects."""
    try:
        return kinds_in_json(path, _BYTES)
    except ValueError:
        return {}


def _place_of_names(table: pa.Table) -> int | None:
    """The first row that holds the names of all columns."""
    if not all(is_text(column.type) for column in table.columns):
        return None
    found = reduce(pc.and_, (pc.equal(own, name) for name, own in zip(table.column_names, table.columns)))
    place = pc.index(found, True).as_py()
    return None if place < 0 else place


def _second_names(table: pa.Table) -> list[str]:
    """Texts of the first row below which there are numbers only."""
    texts = [column.slice(0, 1000).combine_chunks() for column in table.columns if is_text(column.type)]
    first = [(own[0].as_py(), own[1:].filter(pc.not_equal(own[1:], ""))) for own in texts if len(own)]
    return [name for name, rest in first if name and not re.fullmatch(_NUMBER, name) and _all_match(rest, _NUMBER)]


def _are_places(names: Sequence[str]) -> bool:
    """Whether all numbers among names are the places of their columns, which a program wrote where there were no names."""
    numbers = [(place, name) for place, name in enumerate(names) if name.isdigit()]
    few = len(numbers) < max(3, len(names) / 4)
    starts = (0,) if len(numbers) == len(names) else (0, 1)  # 1,2,3 are the values of a row too
    return not few and any(all(str(place + start) == name for place, name in numbers) for start in starts)


def _values_as_names(table: pa.Table) -> set[str]:
    """Names of columns that are times, or values of the very column."""
    texts = {name: own for name, own in zip(table.column_names, table.columns) if is_text(own.type)}
    again = {name for name, own in texts.items() if pc.any(pc.equal(own, name)).as_py()}
    return again | {
        name for name in table.column_names if iso_times(pa.array([name])) or formats_of_texts(pa.array([name]))
    }


def _texts(path: Path, columns: Sequence[str], **reading: Any) -> pa.Table:
    """The sample's rows of some columns of a text file as they are written."""
    if not columns:
        return pa.table({})
    return next(stream_file(path, dict.fromkeys(columns, "text"), block_size=_BYTES, **reading)).whole


def _unanswered(found: Sequence[str]) -> set[str]:
    """NA and the like, where a column's other values are a yes and another word; elsewhere NA may be Namibia."""
    rest = [word for word in found if word not in MISSING_WORDS]
    has_yes = any(word.strip().lower() in POSITIVE_WORDS for word in rest)
    return {*found} - {*rest} if len(rest) == 2 and has_yes else set()


def _are_codes(texts: pa.ChunkedArray, numbers: pa.ChunkedArray) -> bool:
    """Whether whole numbers, some with zeros in front, are codes such as 00123. Two values, 00 and 01, stay numbers: no or yes."""
    if not are_codes(texts):
        return False
    texts = pc.unique(pc.utf8_trim_whitespace(texts))
    words = pc.sum(pc.invert(pc.is_in(texts, pa.array(MISSING_WORDS)))).as_py()
    return not words == pc.count_distinct(numbers).as_py() == 2


def _beyond_64_bits(table: pa.Table) -> list[str]:
    """Columns of whole numbers that 64 bits with a sign, or a reader's floats, do not tell apart: ids, which are texts."""
    found = []
    for name, column in zip(table.column_names, table.columns):
        if pa.types.is_uint64(column.type):
            is_long = (pc.max(column).as_py() or 0) >= 2**63
        else:
            is_long = pa.types.is_floating(column.type) and (pc.max(pc.abs(column)).as_py() or 0) >= _EXACT
        found += [name] if is_long else []
    return found


def _with_texts(table: pa.Table, texts: pa.Table) -> pa.Table:
    """The table with columns whose texts are all whole numbers, or missing, as these texts."""
    for name in texts.column_names:
        column = texts[name]
        if not pa.types.is_floating(column.type):
            column = column.cast(pa.string())
            column = pc.if_else(pc.is_in(column, pa.array(MISSING_WORDS)), pa.scalar(None, pa.string()), column)
            if _all_match(column, r"^\s*([+-]?\d+\s*)?$"):
                table = table.set_column(table.column_names.index(name), name, column)
    return table


def _no_field(kind: pa.DataType, is_of_lines: bool) -> str:
    """What values of a type are that no field reads; nothing of others. is_of_lines: of a text file, whose times of day are read as texts."""
    if pa.types.is_duration(kind):
        return "durations; write seconds, as numbers"
    if pa.types.is_time(kind) and not is_of_lines:
        return "times of day; write hours, as numbers, or whole times"
    if is_list(kind) and (is_list(kind.value_type) or pa.types.is_fixed_size_list(kind.value_type)):
        return "lists of lists; give each a column"
    if isinstance(kind, pa.BaseExtensionType):
        return f"values of the type {kind.extension_name}, which no field reads; write texts or numbers"
    return "bytes that are no UTF-8 text" if is_bytes(kind) else ""


def _objects_in(kind: pa.DataType) -> str:
    """What values of a type are that hold objects, and how they become columns; nothing of others."""
    if pa.types.is_struct(kind):
        return "objects; give their entries columns of their own: lmctr data convert FILE --output FILE.parquet"
    held = "lists of objects" if is_list(kind) else "maps"
    while is_list(kind):
        kind = kind.value_type
    is_one = pa.types.is_struct(kind) or pa.types.is_map(kind)
    return f"{held}; give each entry a row of its own (explode in pandas and Spark), or a column" if is_one else ""


def _all_match(values: pa.Array, pattern: str) -> bool:
    return values.null_count < len(values) and pc.all(pc.match_substring_regex(values, pattern)).as_py()


def _rows_of(path: Path, kind: str, table: pa.Table) -> int:
    if kind == "parquet":
        return sum(pq.read_metadata(for_arrow(file)).num_rows for file in parquet_files(path))
    packed = 4 if path.suffix == ".gz" else 1  # texts of this kind shrink to about a quarter
    return int(table.num_rows * path.stat().st_size * packed / _BYTES)
