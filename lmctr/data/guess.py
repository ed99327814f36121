"""What the columns of raw files probably are: the schema of a log, guessed from samples of its files, with the reason for every guess.

Names come first, values decide: a column is taken for the time only if it holds times, for the items' file's key only if events' items
stand in it. What is not sure says so, and callers may ask (`lmctr init`) or let the user state it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.logs.columns import is_number, is_text
from lmctr.data.logs.table import POSITIVE_WORDS
from lmctr.data.logs.times import format_of_texts, iso_times, unit_of
from lmctr.data.reading import checked_file, delimiter_of, list_columns, no_header_hint
from lmctr.data.tables.reading import stream_file
from lmctr.utils.suggest import unknown_key_message

__all__ = ["FileSample", "Guess", "Guesser", "LogGuess", "NoLogError", "guess_log", "sample_file"]

SAMPLE_BYTES = 16 << 20
# Names as they are without case and signs: the first ones are surer.
_NAMES = {
    "user": "userid user uid customerid customer visitorid visitor memberid member clientid client accountid account viewer reader "
    "buyer shopper person deviceid sessionid session",
    "item": "itemid item productid product iid articleid article adid ad movieid movie videoid video newsid news sku contentid content "
    "listingid listing songid song trackid track bookid book offerid offer postid post creativeid creative bannerid banner asin",
    "time": "timestamp time ts datetime eventtime unixtime date createdat created clicktime showtime when day",
    "label": "clicked click isclick isclicked clk label islabel target y liked like islike converted conversion bought purchased purchase "
    "response hit churn churned outcome subscribed deposit revenue survived follow followed share shared forward forwarded comment commented "
    "favorite favourite collect collected finish finished",
    "feedback_values": "rating ratings stars overall score watchratio watchtime dwelltime dwell playtime duration durationseconds timespent seconds "
    "listened percentplayed",
    "grade": "rating ratings stars overall",
    "feedback": "action actiontype event eventtype behavior behaviour behaviortype activity interaction interactiontype",
    "weight": "weight sampleweight",
    "scenario": "scenario scene page surface tab placement screen section",
}
_NAMES = {role: tuple(names.split()) for role, names in _NAMES.items()}
_SURE_LABELS = {"click", "clicked", "clk", "label", "target"}  # also as a word of a name
_TITLES = ("title", "name", "headline", "itemname", "productname", "caption", "subject", "text", "description")
_LISTS = ("genres", "genre", "tags", "categories", "keywords", "topics", "labels")
_NUMBERS = ("price", "cost", "amount", "weight", "length", "width", "height", "size")
_MISSING = ("?", "NULL", "\\N", "#N/A", "N/A", "None", "nan", "NaN", "null", "-")
_ACTIONS = (
    "click",
    "clicked",
    "clicks",
    "like",
    "liked",
    "yes",
    "positive",
    "buy",
    "bought",
    "purchase",
    "order",
    "cart",
    "share",
)
_CODES = 256  # distinct whole numbers, up to which a column of them counts as a category
_SCENARIOS = 50
_OF_OBJECTS = "give their entries columns of their own"


@dataclass(frozen=True)
class Guess:
    """What one column is, why, and whether that is sure."""

    role: str
    column: str
    why: str
    sure: bool = True


@dataclass(frozen=True)
class FileSample:
    """The first rows of a file, cleaned, and how the file is read.

    Attributes:
        path: the file. reading: keys of the schema besides the path (`delimiter`, `decimal`, `na_values`). rows: of the whole file, about.
        table: the sample, in which a missing value is null. whole: whether the sample is the file.
        objects: columns of objects with entries of their own (JSON lines, Parquet); the table lacks them.
        of_words: columns whose header says that they hold several words (RecBole's files).
    """

    path: Path
    reading: dict[str, Any]
    table: pa.Table
    rows: int
    whole: bool
    objects: tuple[str, ...] = ()
    of_words: Sequence[str] = ()

    @cached_property
    def distinct(self) -> dict[str, int]:
        """Number of distinct values by column; lists have none."""
        counted = {n: c for n, c in zip(self.table.column_names, self.table.columns) if not pa.types.is_nested(c.type)}
        return {n: 0 if pa.types.is_null(c.type) else pc.count_distinct(c).as_py() for n, c in counted.items()}

    def values(self, name: str) -> pa.Array:
        """The values of a column that are there."""
        return self.table[name].combine_chunks().drop_null()

    def called(self, role: str) -> list[str]:
        """Columns whose very names are of a role, the surest first."""
        plain = {name: re.sub(r"[^a-z0-9]", "", name.lower()) for name in self.table.column_names}
        return [name for word in _NAMES[role] for name in plain if plain[name] == word]

    def named(self, role: str) -> list[str]:
        """Columns by how well their names suit a role: the very names first, then those that hold one of them as a word."""
        names = self.table.column_names
        return list(dict.fromkeys(self.called(role) + [name for name in names if _words(name) & {*_NAMES[role]}]))


def _words(name: str) -> set[str]:
    return {*re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())}


def sample_file(path: str | os.PathLike) -> FileSample:
    """Reads the first rows of a CSV, TSV, Parquet or JSON lines file and finds out how it is written.

    Raises:
        FileNotFoundError, ValueError: as [`stream_file`] does; a text file without a line of column names.
    """
    path, kind = checked_file(Path(path).expanduser())
    delimiter = delimiter_of(path) if kind == "csv" else None
    blocks = stream_file(path, delimiter=delimiter, block_size=SAMPLE_BYTES)
    first = next(blocks).table
    table = pa.Table.from_batches([first]) if isinstance(first, pa.RecordBatch) else first
    whole = next(blocks, None) is None
    if table.num_columns == 1 and "::" in table.column_names[0]:
        raise ValueError(
            f"{path}: its columns are parted by '::', and one sign is read: replace it by a tab, and write a line of names at the top; "
            "MovieLens in this form is read from its folder by --data.name movielens --data.path FOLDER"
        )
    counted = table.column_names == [str(place) for place in range(table.num_columns)]  # names that a program gave
    if kind in ("csv", "tsv") and not counted and (hint := no_header_hint(table.column_names)):
        raise ValueError(f"{path}: columns {table.column_names[:5]} ...{hint}")
    objects = tuple(field.name for field in table.schema if _holds_objects(field.type))
    table = table.drop_columns(list(objects))
    reading = {} if delimiter in (None, ",") else {"delimiter": delimiter}
    decimal, missing, cleaned = ".", set(), {}
    for name in table.column_names:
        values = table[name].combine_chunks()
        if is_text(values.type):
            words = {word for word in pc.unique(values).to_pylist()[:10_000] if word in _MISSING}
            values = pc.if_else(pc.is_in(values, pa.array(["", *words])), pa.scalar(None, values.type), values)
            missing |= words
            comma = delimiter in (";", "\t") and _all_match(values, r"^-?\d+(,\d+)?$")
            decimal = "," if comma and pc.any(pc.match_substring(values, ",")).as_py() else decimal
            if comma or (words and _all_match(values, r"^-?\d+(\.\d+)?$")):
                values = pc.replace_substring(values, ",", ".").cast(pa.float64())
        cleaned[name] = values
    if kind in ("csv", "tsv"):
        reading |= {"decimal": ","} if decimal == "," else {}
        reading |= {"na_values": sorted(missing)} if missing else {}
    table = pa.table(cleaned)
    words = list_columns(path) if kind == "tsv" else ()
    rows = table.num_rows if whole else _rows_of(path, kind, table)
    return FileSample(path, reading, table, rows, whole, objects, words)


def _holds_objects(kind: pa.DataType) -> bool:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return pa.types.is_struct(kind) or pa.types.is_map(kind)


def _all_match(values: pa.Array, pattern: str) -> bool:
    return values.null_count < len(values) and pc.all(pc.match_substring_regex(values, pattern)).as_py()


def _rows_of(path: Path, kind: str, table: pa.Table) -> int:
    if kind == "parquet":
        import pyarrow.parquet as pq

        return pq.ParquetFile(path).metadata.num_rows
    packed = 4 if path.suffix == ".gz" else 1  # texts of this kind shrink to about a quarter
    return int(table.num_rows * path.stat().st_size * packed / SAMPLE_BYTES)


@dataclass
class LogGuess:
    """A log that was guessed: samples of its files, what each column is, and the schema that follows."""

    events: FileSample
    items: FileSample | None
    users: FileSample | None
    guesses: list[Guess] = field(default_factory=list)
    schema: dict[str, Any] = field(default_factory=dict)
    title: str | None = None  # column of the catalogue
    item_categories: list[str] = field(default_factory=list)
    user_categories: list[str] = field(default_factory=list)

    @property
    def is_table(self) -> bool:
        """Whether it is a table of clicks, no log."""
        return "fields" in self.schema

    def options(self) -> dict[str, Any]:
        """The schema as options of the loader of the file."""
        schema = dict(self.schema)
        events = {key: value for key, value in schema.pop("events").items() if key != "path"}
        return {**events, **schema}

    def lines(self) -> list[str]:
        """What was taken for what, and why."""
        files = {"": self.events, "items": self.items, "users": self.users}
        lines = []
        for start, sample in files.items():
            if sample is None:
                continue
            how = ", ".join(f"{key} {value!r}" for key, value in sample.reading.items())
            rows = (
                f"{sample.rows:,} rows"
                if sample.whole
                else f"about {sample.rows:,} rows, of which {sample.table.num_rows:,} were read"
            )
            lines.append(f"{sample.path}: {rows}{', ' if how else ''}{how}")
            for guess in self.guesses:
                if guess.role.partition(" ")[0] == start or (not start and guess.role.partition(" ")[0] not in files):
                    sure = "" if guess.sure else "  (not sure)"
                    lines.append(f"  {guess.role.removeprefix(f'{start} '):<16} {guess.column:<18} {guess.why}{sure}")
        return lines


class NoLogError(ValueError):
    """A file without a user, an item or a time: perhaps a table, no log."""


Ask = Callable[[str, Sequence[str], str], str]


def guess_log(
    events: FileSample,
    items: FileSample | None = None,
    users: FileSample | None = None,
    given: Mapping[str, str] | None = None,
    ask: Ask | None = None,
) -> LogGuess:
    """The schema of a log from samples of its files.

    Args:
        events: of the file of events: rows of a user, an item, a time and a label.
        items: of a file with a row per item. users: likewise of users.
        given: columns that the user named, by `user`, `item`, `time`, `label`; they are not guessed. A label of other values than 0 and 1 may be
            `COLUMN=VALUE`, the value that counts as a click.
        ask: asked where a guess is not sure: a question, the accepted answers, the guess; returns the answer. None keeps guesses.

    Raises:
        ValueError: nothing looks like a user, an item, a time ([`NoLogError`]) or a label; names what to state.
    """
    return Guesser(events, items, users, dict(given or {}), ask).run()


class Guesser:
    """What is settled so far, and what is left; the parts of a guess are its methods."""

    def __init__(
        self,
        events: FileSample,
        items: FileSample | None,
        users: FileSample | None,
        given: dict[str, str],
        ask: Ask | None,
    ):
        self.found = LogGuess(events, items, users)
        self.events, self.given, self.ask = events, given, ask
        self.left = list(events.table.column_names)  # columns that are nothing yet
        self.columns: dict[str, Any] = {}
        self.click: str | None = None  # the value of the stated label that is one
        plain = {column.strip(): column for column in self.left}  # names may have blanks around them
        for name, column in plain.items() if given.get("label", "").strip() not in plain else ():
            if given.get("label", "").strip().startswith(f"{name}="):
                given["label"], self.click = column, given["label"].strip()[len(name) + 1 :]
        given |= {role: plain.get(column.strip(), column) for role, column in given.items() if column not in self.left}
        for role, column in given.items():
            if column not in self.left:
                raise ValueError(
                    f"--{role}: {unknown_key_message(column, self.left, f'the columns of {events.path}')}"
                )

    def run(self) -> LogGuess:
        self._leave_out_objects()
        self.columns["time"] = self._time()
        self.columns["item"] = self._key("item")
        self.columns["user"] = self._key("user")
        unsure = {guess.role for guess in self.found.guesses if not guess.sure}
        if {"item", "user"} <= unsure and (self.found.items, self.found.users) == (None, None):
            raise NoLogError(
                f"{self.events.path}: no column is called like a user, and none like an item; state them: --user COLUMN --item COLUMN. {self._table()}"
            )
        self._reactions()
        keys = ("user", "item", "time", "label", "feedback", "feedback_values", "weight", "extra_labels")
        self.columns = {key: self.columns[key] for key in keys if key in self.columns}
        schema = self.found.schema
        schema["events"] = {"path": str(self.events.path), **self.events.reading}
        schema["columns"] = self.columns
        of_items, of_users, context = self._rest()
        if self.found.items is not None:
            schema["catalogue"] = self._attributes("items", self.found.items, self.columns["item"])
        elif of_items:
            schema["catalogue"] = {"columns": self._described("item", self.events, of_items)}
        if self.found.users is not None:
            schema["users"] = self._attributes("users", self.found.users, self.columns["user"])
        elif of_users:
            schema["users"] = {"columns": self._described("user", self.events, of_users)}
        if context:
            self._context(context)
        if self.found.items is not None and (lacking := self._lacking()):
            schema["missing_items"] = "empty"
            self._say("items missing_items", "empty", f"{lacking:.1%} of the events have an item without a row there")
        return self.found

    def _leave_out_objects(self) -> None:
        for start, sample in (("", self.events), ("items ", self.found.items), ("users ", self.found.users)):
            for name in () if sample is None else sample.objects:
                self._say(f"{start}left out", name, f"holds objects; {_OF_OBJECTS}")

    def _say(self, role: str, column: str, why: str, sure: bool = True) -> None:
        self.found.guesses.append(Guess(role, column, why, sure))

    def _take(self, role: str, column: str, why: str, sure: bool = True) -> str:
        """Settle a column; one that is not sure is asked about."""
        if role in self.given:
            column, why, sure = self.given[role], "as stated", True
        elif not sure and self.ask is not None:
            column = self.ask(
                f"which column is the {role}?", [column, *(name for name in self.left if name != column)], column
            )
            why, sure = "as answered", True
        self.left.remove(column)
        self._say(role, column, why, sure)
        return column

    def _absent(self, role: str, wanted: str) -> ValueError:
        if role in self.given:
            name = self.given[role]
            return ValueError(
                f"{self.events.path}, --{role} {name}: expected {wanted}, the column holds {self._held(name)}; say which value is a click: --{role} {name}=VALUE"
            )
        taken = "".join(
            f"; {guess.column} is the {guess.role}" for guess in self.found.guesses if guess.role in self.columns
        )
        objects = "".join(f"; {name} holds objects: {_OF_OBJECTS}" for name in self.events.objects)
        is_label = role == "label"
        return (ValueError if is_label else NoLogError)(
            f"{self.events.path}: no column looks like the {role} ({wanted}); state it: --{role} COLUMN; the columns are "
            f"{', '.join(self.left)}{taken}{objects}.{'' if is_label else f' {self._table()}'}"
        )

    def _table(self) -> str:
        return f"Clicks without users and items are a table: lmctr train {self.events.path} --model deepfm"

    # ---- the four columns that every log has ----------------------------------------------------------------------

    def _time(self) -> Any:
        named = self.events.named("time")
        order = [*named, *(name for name in self.left if name not in named)]
        kinds = {name: self._time_of(name) for name in order}
        if "time" in self.given and kinds[self.given["time"]] is None:
            raise ValueError(
                f"--time {self.given['time']}: holds no times that can be told; write `unit` or `format` into a schema"
            )
        good = [name for name in order if kinds[name] is not None]
        if not good:
            raise self._absent("time", "unix seconds, milliseconds, ISO times")
        sure = good[0] in named or len(good) == 1
        column = self._take("time", good[0], kinds[good[0]][0], sure)
        if kinds[column] is None:
            raise ValueError(
                f"{self.events.path}, column {column!r}: holds no times that can be told; write `unit` or `format` into a schema"
            )
        return {"column": column, **kinds[column][1]} if kinds[column][1] else column

    def _time_of(self, name: str) -> tuple[str, dict[str, str]] | None:
        """What a column of times holds, in words and as keys of the schema; None: no times."""
        values = self.events.values(name)
        if not len(values):
            return None
        if pa.types.is_temporal(values.type):
            bounds = pc.min_max(values)
            return f"times from {str(bounds['min'])[:10]} to {str(bounds['max'])[:10]}", {}
        if is_number(values.type):
            bounds = pc.min_max(values)
            is_named = name in self.events.named("time") or name == self.given.get("time")
            unit = unit_of(bounds["min"].as_py(), bounds["max"].as_py(), is_named)
            return None if unit is None else (f"unix time in {unit}", {} if unit == "s" else {"unit": unit})
        if not is_text(values.type):
            return None
        texts = values.cast(pa.string()).slice(0, 1000)
        if iso_times(texts) is not None:
            return "ISO times", {}
        format = format_of_texts(texts)
        return None if format is None else (f"times such as {texts[0].as_py()}", {"format": format})

    def _key(self, role: str) -> str:
        """The user or the item: ids that come again."""
        rows = self.events.table.num_rows
        good = [
            name
            for name in self.left
            if (pa.types.is_integer(kind := self.events.table[name].type) or is_text(kind))
            and self.events.distinct[name] > 1
        ]
        named = [name for name in self.events.named(role) if name in good]
        if role in self.given:
            return self._take(role, self.given[role], "")
        if named:
            return self._take(role, named[0], f"by its name; {self.events.distinct[named[0]]:,} different ones")
        other = self.events.named("user" if role == "item" else "item")
        repeated = [name for name in good if 10 < self.events.distinct[name] < rows / 2 and name not in other]
        if not repeated:
            raise self._absent(role, "ids that come again")
        best = max(repeated, key=lambda name: self.events.distinct[name])
        return self._take(role, best, f"{self.events.distinct[best]:,} ids that come again", sure=False)

    # ---- what the user did ----------------------------------------------------------------------------------------

    def _reactions(self) -> None:
        """The label, and the other columns that tell what came of an event: they are never context."""
        binary = {name: words for name in self.left if (words := self._yes(name)) is not None}
        named = {role: [n for n in self.events.named(role) if n in self.left] for role in _NAMES}
        graded = [n for n in named["feedback_values"] if n not in binary and is_number(self.events.table[n].type)]
        actions = [n for n in named["feedback"] if n not in binary and 1 < self.events.distinct[n] <= 20]
        if "label" in self.given and self.given["label"] not in binary:
            graded = [self.given["label"]] if is_number(self.events.table[self.given["label"]].type) else graded
            actions = [self.given["label"]] if is_text(self.events.table[self.given["label"]].type) else actions
            binary = {}
        labels = [name for name in [*named["label"], *binary] if name in binary]
        if labels and ("label" in self.given or not self._is_outdone(labels[0], graded)):
            sure = labels[0] in named["label"] or len(binary) == 1
            name = self._take("label", labels[0], self._rate(labels[0], binary[labels[0]]), sure)
            self.columns["label"] = self._rule(name, binary.get(name) or self._yes(name))
            others = [n for n in dict.fromkeys(named["label"]) if n in binary and n != name]
            for other in others:  # told later than the label, so no context
                self._take("extra label", other, "another reaction: to predict, not to read")
            if others:
                self.columns["extra_labels"] = {other: self._rule(other, binary[other]) for other in others}
        elif actions:
            self._label_from_actions(actions[0])
        elif graded:
            self.columns["label"] = self._graded_label(graded[0])
        else:
            raise self._absent(
                "label",
                "0 and 1, yes and no, or numbers such as stars, whose upper half are clicks; every event being a click, there is nothing to tell",
            )
        if graded and graded[0] in self.left:
            self.columns["feedback_values"] = self._take(
                "feedback_values", graded[0], "by its name; read in histories only"
            )
        if actions and actions[0] in self.left and "feedback" not in self.columns:
            self.columns["feedback"] = self._take("feedback", actions[0], "by its name; read in histories only")
        weight = [n for n in named["weight"] if n in self.left and is_number(self.events.table[n].type)]
        if weight:
            self.columns["weight"] = self._take("weight", weight[0], "by its name")

    def _is_outdone(self, label: str, graded: list[str]) -> bool:
        """Whether a column of two values is no label beside one of grades: `verified_purchase` beside `rating`; `ad_click` is."""
        has_grades = not {*graded}.isdisjoint(self.events.called("grade"))
        return has_grades and label not in self.events.called("label") and not _words(label) & _SURE_LABELS

    def _graded_label(self, name: str) -> dict[str, Any]:
        values = self.events.values(name)
        median = round(float(np.median(values.to_numpy(zero_copy_only=False))), 3)
        limit = 4 if pc.max(values).as_py() == 5 else median
        is_sure = name == self.given.get("label")
        self._say(
            "label",
            name,
            f"{'as stated' if is_sure else 'by its name'}: a click is a value of {limit:g} or more",
            is_sure,
        )
        return {"column": name, "at_least": limit}

    def _label_from_actions(self, name: str) -> None:
        words = sorted(map(str, pc.unique(self.events.values(name)).to_pylist()))
        chosen = next((word for action in _ACTIONS for word in words if word.lower() == action), words[0])
        if self.ask is not None:
            chosen = self.ask(f"which value of {name} counts as a click?", words, chosen)
        self._take("feedback", name, f"{len(words)} kinds: {', '.join(words)}")
        self.columns |= {"feedback": name, "label": {"column": name, "equals": chosen}}
        self._say("label", name, f"no column of 0 and 1: a click is {chosen!r}", sure=self.ask is not None)

    def _yes(self, name: str) -> list[Any] | None:
        """The value of a two-valued column that says yes, in a list, or the one stated; None: it has not two such values."""
        kind = self.events.table[name].type
        if self.click is not None and name == self.given["label"]:
            return [self._stated(name)]
        if not (is_number(kind) or is_text(kind) or pa.types.is_boolean(kind)) or self.events.distinct[name] > 3:
            return None
        found = pc.unique(self.events.values(name)).to_pylist()
        if len(found) != 2:
            return None
        yes = [value for value in found if value in (1, True) or str(value).strip().lower() in POSITIVE_WORDS]
        numbers = is_number(kind) or pa.types.is_boolean(kind)
        return yes if len(yes) == 1 and (not numbers or {*map(int, found)} == {0, 1}) else None

    def _stated(self, name: str) -> Any:
        """The value of `--label COLUMN=VALUE`, as the column holds it."""
        found = pc.unique(self.events.values(name)).to_pylist()
        for value in found:
            number = (
                isinstance(value, (int, float))
                and re.fullmatch(r"-?\d+(\.\d+)?", self.click)
                and float(self.click) == value
            )
            if number or str(value).strip().lower() == self.click.strip().lower():
                return value
        raise ValueError(
            f"{self.events.path}, --label {name}={self.click}: no row has that value; the column holds {self._held(name)}"
        )

    def _held(self, name: str) -> str:
        """Some of a column's values, for errors."""
        found = pc.unique(self.events.values(name)).to_pylist()
        return ", ".join(map(repr, found[:5])) + " ..." * (len(found) > 5)

    def _rule(self, name: str, yes: list[Any] | None) -> Any:
        missing = {"missing": "history"} if self.events.table[name].null_count else {}
        plain = yes == [1] and {*pc.unique(self.events.values(name)).to_pylist()} == {0, 1}
        if yes is not None and not plain:
            return {"column": name, "equals": yes[0], **missing}
        return {"column": name, **missing} if missing else name

    def _rate(self, name: str, yes: list[Any]) -> str:
        share = pc.mean(pc.equal(self.events.values(name), pa.scalar(yes[0])).cast(pa.int8())).as_py()
        return f"two values, {yes[0]!r} in {share:.1%} of the rows"

    # ---- everything else --------------------------------------------------------------------------------------------

    def _rest(self) -> tuple[list[str], list[str], list[str]]:
        """The columns that are left, as those of the item, of the user and of the event itself; some are none of these."""
        time = self.columns["time"]
        label = self.columns["label"]
        yes = self._clicks(label if isinstance(label, dict) else {"column": label})
        codes = {
            role: pc.dictionary_encode(self.events.table[self.columns[role]].combine_chunks()).indices
            for role in ("item", "user")
        }
        of_items, of_users, context = [], [], []
        for name in self.left:
            values, distinct = self.events.table[name].combine_chunks(), self.events.distinct.get(name)
            per_item, per_user = (self._follows(codes[role], values) for role in ("item", "user"))
            if distinct is not None and distinct < 2:
                self._say("left out", name, "one value only")
            elif pa.types.is_temporal(values.type):
                self._say("left out", name, f"another time than {time if isinstance(time, str) else time['column']}")
            elif per_item and self.found.items is None:
                of_items.append(name)
            elif per_user and self.found.users is None:
                of_users.append(name)
            elif (
                distinct is not None and distinct > 50 and distinct > len(values) * 0.9
            ) and not pa.types.is_floating(values.type):
                self._say("left out", name, "another value on (almost) every row")
            elif (area := _tells(values, yes)) > 0.95:
                self._say("left out", name, f"alone tells the label (AUC {area:.2f}): it seems to come after it")
            else:
                context.append(name)
        return of_items, of_users, context

    def _clicks(self, label: Mapping[str, Any]) -> np.ndarray:
        """(R,) float, 1 where the label is positive, NaN where it is not known."""
        values = self.events.table[label["column"]].combine_chunks()
        if "equals" in label:
            values = pc.equal(values.cast(pa.string()), str(label["equals"]))
        elif "at_least" in label:
            values = pc.greater_equal(values, label["at_least"])
        return values.cast(pa.float64()).to_numpy(zero_copy_only=False)

    @staticmethod
    def _follows(codes: pa.Array, values: pa.Array) -> bool:
        """Whether a column has one value for each id, over ids that come again."""
        if pa.types.is_nested(values.type):
            values = pa.array(map(str, values.to_pylist()))
        pairs = (
            pa.table({"id": codes, "value": values})
            .group_by("id")
            .aggregate([("value", "count_distinct"), ("value", "count")])
        )
        again = pc.greater(pairs["value_count"], 1)
        if not pc.any(again).as_py():
            return False
        one = pc.less_equal(pairs["value_count_distinct"], 1).filter(again)
        return pc.mean(one.cast(pa.int8())).as_py() > 0.995

    def _context(self, names: list[str]) -> None:
        pages = [
            name
            for name in self.events.named("scenario")
            if name in names and self.events.distinct[name] <= _SCENARIOS
        ]
        if pages and is_text(self.events.table[pages[0]].type) and not self.events.table[pages[0]].null_count:
            self.columns["scenario"] = pages[0]
            self._say("scenario", pages[0], f"by its name; {self.events.distinct[pages[0]]} places")
            names = [name for name in names if name != pages[0]]
        if names:
            self.columns["context"] = self._described("context", self.events, names)

    def _attributes(self, what: str, sample: FileSample, key: str) -> dict[str, Any]:
        """A file of items or users: which of its columns holds the ids of the events."""
        ids = pc.unique(self.events.values(key)).cast(pa.string())
        shares = {}
        for name in sample.table.column_names:
            kind = sample.table[name].type
            if pa.types.is_integer(kind) or is_text(kind):
                found = pc.is_in(ids, value_set=pc.unique(sample.values(name)).cast(pa.string()))
                shares[name] = pc.mean(found.cast(pa.int8())).as_py()
        column = max(shares, key=lambda name: (shares[name], name == key), default=None)
        if column is None or not shares[column]:
            raise ValueError(
                f"{sample.path}: no column holds the ids of {key!r} of {self.events.path}; columns: {', '.join(sample.table.column_names)}"
            )
        self._say(f"{what} id", column, f"{shares[column]:.1%} of the ids of {key!r} stand there")
        names = [name for name in sample.table.column_names if name != column]
        described = self._described(what.removesuffix("s"), sample, names)
        own = {"item" if what == "items" else "user": column} if column != key else {}
        return {"path": str(sample.path), **sample.reading, **own, "columns": described}

    def _described(self, what: str, sample: FileSample, names: list[str]) -> dict[str, Any] | list[str]:
        """The columns of a table with the keys that they need; the catalogue's title and the categories are noted."""
        start, described = {"item": "items ", "user": "users "}.get(what, "") if sample is not self.events else "", {}
        texts = {}
        for name in names:
            values, distinct = sample.values(name), sample.distinct.get(name)
            plain = name.lower().replace("_", "")
            category = distinct is not None and distinct <= max(50, len(values) / 2)
            if not len(values) or (distinct is not None and distinct < 2 and len(values) > 1):
                self._say(f"{start}left out", name, "one value only" if len(values) else "empty")
                continue
            described[name] = name
            if is_text(values.type):
                separator = " " if name in sample.of_words and _few_words(values) else self._separator(values, plain)
                if separator is not None:
                    described[name], why = {"column": name, "separator": separator}, f"lists, parted by {separator!r}"
                    category = True
                else:
                    why = f"{distinct:,} categories" if category else "texts"
                    texts |= (
                        {} if category and plain not in _TITLES else {name: pc.mean(pc.utf8_length(values)).as_py()}
                    )
            elif pa.types.is_integer(values.type) and (distinct > _CODES or plain in _NUMBERS):
                described[name], why, category = {"column": name, "type": "number"}, "numbers", False
            else:
                why = f"{distinct:,} codes" if category and not pa.types.is_floating(values.type) else "numbers"
                category = category and not pa.types.is_floating(values.type)
            if pa.types.is_nested(values.type):
                why, category = "lists", True
            if category and described[name] == name and (is_text(values.type) or pa.types.is_integer(values.type)):
                # said, so that a later file in which the codes look otherwise gives the same ids
                described[name] = {"column": name, "type": "text" if is_text(values.type) else "integer"}
            if category and what in ("item", "user"):
                (self.found.item_categories if what == "item" else self.found.user_categories).append(name)
            self._say(f"{start}{what if not start else 'column'}", name, why)
        if what == "item" and texts:
            known = [name for title in _TITLES for name in texts if name.lower().replace("_", "") == title]
            short = [name for name in texts if texts[name] <= 300]
            self.found.title = (known or sorted(short, key=texts.get, reverse=True) or [None])[0]
            if self.found.title in self.found.item_categories:
                self.found.item_categories.remove(self.found.title)
        return list(described) if all(name == spec for name, spec in described.items()) else described

    @staticmethod
    def _separator(values: pa.Array, plain: str) -> str | None:
        for sign in ("|", ";", ","):
            share = pc.mean(pc.match_substring(values, sign).cast(pa.int8())).as_py()
            if share > (0.05 if plain in _LISTS else 0.2) and (sign == "|" or plain in _LISTS):
                return sign
        return None

    def _lacking(self) -> float:
        """Share of the sampled events whose item the items' file lacks; 0 where that file was not read to its end."""
        items, spec = self.found.items, self.found.schema["catalogue"]
        if not items.whole:
            return 0.0
        known = pc.unique(items.values(spec.get("item", self.columns["item"]))).cast(pa.string())
        found = pc.is_in(self.events.values(self.columns["item"]).cast(pa.string()), value_set=known)
        return 1.0 - pc.mean(found.cast(pa.int8())).as_py()


def _few_words(values: pa.Array) -> bool:
    """Whether texts are made of words that come again, as lists of categories are, and titles are not."""
    words = pc.list_flatten(pc.split_pattern(values, " "))
    return pc.count_distinct(words).as_py() <= max(50, len(words) / 20)


def _tells(values: pa.Array, clicks: np.ndarray) -> float:
    """AUC of a column alone as a score of the label, in the better direction; categories by their share of clicks, each row without its own."""
    known = ~np.isnan(clicks)
    if pa.types.is_nested(values.type) or known.sum() < 100:
        return 0.5
    y = clicks[known]
    if is_number(values.type) and pc.count_distinct(values).as_py() > 20:
        score = values.cast(pa.float64()).to_numpy(zero_copy_only=False)[known]
        score = np.where(np.isnan(score), -np.inf, score)
    else:
        codes = pc.dictionary_encode(values, null_encoding="encode").indices.to_numpy(zero_copy_only=False)[known]
        counts, clicked = np.bincount(codes), np.bincount(codes, weights=y)
        score = (clicked[codes] - y + y.mean()) / counts[codes]
    order = np.unique(score, return_inverse=True)[1]
    above, below = (np.bincount(order, weights=part, minlength=order.max() + 1) for part in (y, 1 - y))
    pairs = (above * (np.cumsum(below) - below / 2)).sum()
    area = pairs / max(y.sum() * (1 - y).sum(), 1)
    return float(max(area, 1 - area))
