"""What the columns of one file probably are where it is a table of clicks, no log: its label, its time, and a field per other column."""

from __future__ import annotations

import os
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.features.canonical import canonical_words, neutral_words
from lmctr.data.features.columns import Rows, field_numbers
from lmctr.data.features.fields import DAYS, Field
from lmctr.data.logs.columns import PER_SECOND
from lmctr.data.logs.splits import PARTS
from lmctr.data.logs.times import unit_of
from lmctr.data.tables.joined import keys_of
from lmctr.data.texts import words_of_texts
from lmctr.utils.arrow import first_of_each, is_number, is_text
from lmctr.utils.suggest import retold
from lmctr.utils.words import words_of

from .base import BEFORE, VECTORS, Guesser, are_vectors, share_in_order, told_after
from .found import Ask, Guess, LogGuess, NoLogError, NotToldError
from .log import guess_log
from .sample import DONE, FileSample, is_called_label, sample_file

_ARMS = {"arm", "control", "treat", "treated", "treatment", "variant"}  # of an experiment: chosen before, and no label
_GRADES = 20  # different ones at most
_COUNTS = 20  # distinct whole numbers above which a column of them may count rather than name
_CODES = 256  # distinct ones above which they count if they start at 0, 1 or below and leave gaps
_DENSE = 0.9  # share of the numbers between the least and the largest that names leave no gaps from
_FEWEST_OF_CODE = 2  # rows of a code on average
_MANY, _ALMOST = 50, 0.9  # different texts, and their share of the rows, above which they name the row
_BINS = 32
_WORDS, _COMES_AGAIN = 200, 3  # most words of a text that are read, and texts that a word stands in to be one of prose
_AFTERWARDS = {"changed", "closed", "completed", "delivered", "finished", "last", "next", "resolved", "returned", "status", "termination", "updated"}  # fmt: skip
_LATER = 0.01  # share of rows above which a column's times lie after those of the rows
_TOLD = 0.995  # AUC of a column alone above which it holds the label; honest ones of a table reach more than those of a log
_GRADED = 0.9  # likewise of grades, which may be given with the label
_ORDERED = 0.95  # share of neighbouring rows whose times are in order, from which the file is in that order
_OFTEN = 0.1  # share of the rows that columns told with one another are empty in


def guess_files(
    events: str | os.PathLike,
    items: str | os.PathLike | None = None,
    users: str | os.PathLike | None = None,
    given: Mapping[str, str] | None = None,
    ask: Ask | None = None,
    kind: str | None = None,
    negatives: int | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> LogGuess:
    """The log of the files; where one file lacks a user, an item or a time, the table that it is.

    Args:
        events, items, users: paths of files. given, ask, negatives: as in [`guess_log`]. kind: `log` or `table` where it is known which.
        names: of the columns of files without a line of them, by `events`, `items`, `users`.

    Raises:
        FileNotFoundError, ValueError: as [`sample_file`], [`guess_log`] and [`guess_table`] do.
    """
    given = given or {}
    if kind == "table" and "item" in given and items is None:
        raise ValueError(
            f"--item {given['item']}: of a table it says which ids a file of items describes (--items FILE); leave out --item or --kind table"
        )
    if kind == "table" and negatives is not None:
        raise ValueError(
            f"--negatives {negatives}: they are drawn from the items of a log; leave out --negatives or --kind table"
        )
    paths, names = {"events": events, "items": items, "users": users}, names or {}
    if without := next((role for role in names if paths[role] is None), None):
        raise ValueError(
            f"--{without}-names {','.join(names[without])}: of a file that is not given: --{without} FILE"
        )
    files = [sampled(role, path, names.get(role)) for role, path in paths.items()]
    if kind == "table":
        return guess_table(files[0], given, *files[1:])
    try:
        return guess_log(*files, given, ask, negatives)
    except NoLogError as error:
        if kind == "log" or negatives is not None or ("item" in given and items is None):
            raise
        is_like_a_log = files[1:] != [None, None] or (files[0].called("user") and files[0].called("item"))
        why = str(error).removeprefix(f"{files[0].path}: ").partition(";")[0]
        try:
            guess = guess_table(files[0], given, *files[1:])
        except NotToldError as other:
            if not (is_like_a_log or (files[0].called("user") and files[0].called("time"))):
                raise
            raise NotToldError(f"{other} No log either: {why}.", *other.options) from None
        guess.lacks = tuple(option.removeprefix("--") for option in error.options)
        if is_like_a_log:
            guess.guesses.insert(0, Guess("table", "", why, sure=False))
        return guess


def sampled(role: str, path: str | os.PathLike | None, names: Sequence[str] | None) -> FileSample | None:
    """A file of `guess_files`; what is to be stated of it is told by the options of its role."""
    said = f"lmctr init {path} --names"
    with retold(said, said if role == "events" else f"lmctr init FILE --{role} {path} --{role}-names"):
        return None if path is None else sample_file(path, names)


def guess_table(
    events: FileSample,
    given: Mapping[str, str] | None = None,
    items: FileSample | None = None,
    users: FileSample | None = None,
) -> LogGuess:
    """The options of a table's source (see [`~lmctr.data.tables.load`]) from a sample of its file.

    Args:
        events: of the file. given: columns that the user named, by `user`, `item`, `time`, `label`, `weight`; they are not guessed.
        items, users: of files with a row for each item, and each user, of the events, whose columns are fields too.

    Returns:
        The guess; its `schema` has `events` (path and how it is read), `label`, `fields`, and where they are there `time`, `time_format`,
        `group`, `weight` and `joined`.

    Raises:
        ValueError: no column of two values looks like the label; names what to state. A file of items or users without the events' ids, or with several
            rows of one.
    """
    return TableGuesser(events, items, users, dict(given or {}), None).run()


class TableGuesser(Guesser):
    """Guesses of a table."""

    missing = "drop"

    def __init__(self, *of_all: Any):
        super().__init__(*of_all)
        self.file_of: dict[str, str] = {}  # `items` or `users`, of columns that stand in a file of these
        self.dates: dict[str, tuple[np.ndarray, str | None]] = {}  # days since 1970 of columns read so, and their form
        self.joined: list[dict[str, Any]] = []  # what the schema says of such files

    def _say(self, role: str, column: str, *said: Any, **how: Any) -> None:
        super()._say(f"{self.file_of[column]} {role}" if column in self.file_of else role, column, *said, **how)

    def run(self) -> LogGuess:
        self._say_what_samples_lack()
        schema = self.found.schema = {"events": {"path": str(self.events.path), **self.events.reading}}
        if "weight" in self.given:
            schema["weight"] = self._take("weight")
        schema["label"] = self._label()
        self._moment(schema)
        group = self.given.get("user") or next(filter(self._are_users, self.events.named_ids("user")), None)
        if group is not None:
            schema["group"] = group
            why = "as stated" if "user" in self.given else "by its name"
            self._say("group", group, f"users, {why}: AUC inside them is reported too")
        clicks = self._clicks(schema["label"])
        for what, sample in (("items", self.found.items), ("users", self.found.users)):
            if sample is not None:
                self.joined.append(self._join(what, sample))
        later: dict[str, np.ndarray] = {}  # where columns that come after the label are empty
        for name in sorted(self.left, key=lambda name: self.events.table[name].null_count):
            values = self.events.table[name].combine_chunks()
            empty = values.is_null().to_numpy(zero_copy_only=False)
            why = told_after(values, clicks, _GRADED if name in self.events.called("grade") else _TOLD)
            if (
                why is None
                and not empty.all()
                and (other := next((other for other in later if empty[later[other]].all()), None))
            ):
                why = f"empty wherever {other} is, which seems to come after the label"
            if why is not None:
                self.left.remove(name)
                self._say("left out", name, why)
                later |= {name: empty} if empty.mean() > _OFTEN else {}
        schema["fields"] = [field for name in self.left for field in self._fields(name)]
        read = {field.get("column", field["name"]) for field in schema["fields"]}
        for own in self.joined:
            taken = {name: column for name, column in own.pop("columns").items() if name in read}
            own |= {"columns": list(taken) if [*taken] == [*taken.values()] else taken} if taken else {}
        if joined := [own for own in self.joined if "columns" in own]:
            schema["joined"] = joined
        if not schema["fields"]:
            why = "; ".join(f"{guess.column}: {guess.why}" for guess in self.found.guesses if guess.role == "left out")
            raise ValueError(
                f"{self.events.path}: no column is left to read ({why}); name `fields` in a schema of your own."
            )
        return self.found

    def _key(self, role: str, sample: FileSample, columns: Sequence[str]) -> tuple[str, str, float]:
        """Which of some columns of the events holds ids of a file of items or users, which column of the file they stand in, and the share that does:
        of columns called so the first that will do, else the one with most of the file's ids, for small numbers stand among many."""
        other = self.events.named("user" if role == "item" else "item")
        found: tuple[str, str, float] = (self.given.get(role, role), "", 0.0)
        groups = (
            [*self.events.called(role), *self.events.named_ids(role)],
            [name for name in columns if name in sample.table.column_names],
            [name for name in columns if name not in other],
        )
        for group in [[self.given[role]]] if role in self.given else groups:
            for key in group:
                shares = self._shares(sample, key, sample.table.column_names) if key in columns else {}
                by = {
                    name: (sample.is_key(name, key), shares[name], sample.distinct[name], name == key)
                    for name in shares
                }
                own = max(by, key=by.get, default=None)
                weight = self.events.distinct.get(found[0], 0) * found[2]
                if own is not None and shares[own] * self.events.distinct[key] > weight:
                    found = key, own, shares[own]
            if found[2] > 0.5:
                break
        return found

    def _join(self, what: str, sample: FileSample) -> dict[str, Any]:
        """The keys of a file of items or users in the schema; its columns stand in the sample of the events from here on."""
        sample = replace(sample, table=sample.table.take(first_of_each(sample.table)))
        role, names = what.removesuffix("s"), sample.table.column_names
        others = {*self.file_of, *(own["by"] for own in self.joined)}
        key, column, share = self._key(role, sample, [name for name in self.left if name not in others])
        self._say_id(what, sample, column, key, share)
        ids, kind = keys_of(sample.table[column], column, str(sample.path))
        own = canonical_words(neutral_words(self.events.table[key].combine_chunks()), kind)
        places, table, taken = pc.index_in(own, value_set=ids, skip_nulls=True), self.events.table, {}
        for name in (name for name in names if name != column):
            values, distinct = sample.values(name), sample.distinct.get(name, 0)
            names_all = distinct > max(_MANY, _ALMOST * len(values)) and not sample.holds_literals(name)
            if names_all and is_text(values.type):
                names_all = self._separator(values, name.lower()) is None
            elif names_all:
                names_all = self._is_called_code(name, values)
            if names_all:
                self._say(f"{what} left out", name, f"another value for (almost) every {role}")
                continue
            called = name
            while called in table.column_names or (called != name and called in names):
                called = f"{role}_{name}" if called == name else f"{called}_"
            taken[called], self.file_of[called] = name, what
            table = table.append_column(called, sample.table[name].take(places))
        self.events = replace(self.events, table=table)
        self.left += taken
        stands = {} if column == key else {"id": column}
        return {"path": str(sample.path), **sample.reading, "by": key, **stands, "columns": taken}

    def _are_users(self, name: str) -> bool:
        """Whether a column called like users has some number of them, who come again."""
        if name not in self.left or not _COUNTS < self.events.distinct.get(name, 0) < 0.5 * self.events.table.num_rows:
            return False
        values = self.events.values(name)
        if is_text(values.type):
            return not self._dates(name) and self._time_of(name) is None
        return pa.types.is_integer(values.type) or self._is_called_code(name, values)

    def _label(self) -> str | dict[str, Any]:
        """The column of two values, 0 and 1 or yes and no, or the rule on it: the one that is called label and nothing else, else the only one of words such
        as won and lost, else the last column, else one whose name may say label, else one of grades by its very name or of numbers beside nothing but ids,
        else the only one."""
        others = [name for name in self.left if name == self.given.get("label") or _ARMS.isdisjoint(words_of(name))]
        says = {name: yes for name in others if (yes := self._yes(name)) is not None}
        late = [name for name in says if BEFORE.isdisjoint(words_of(name))]
        named = [name for name in self.events.named("label") if name in late]
        sure = [name for name in dict.fromkeys([*named, *says]) if is_called_label(name)]
        told = [name for name in late if not DONE.isdisjoint(words_of(str(says[name][0])))]
        told = told if len(told) == 1 else []
        last = [name for name in self.events.table.column_names[-1:] if name in says]  # where labels often stand
        numbers = [name for name in self.left if name not in says and is_number(self.events.table[name].type)]
        grades = [name for name in self.events.called("grade") if name in numbers]
        grades = grades or self._beside_ids(numbers)
        if not grades and not says:  # Book-Rating
            grades = [
                own for own in self.events.named("grade") if own in numbers and self.events.distinct[own] <= _GRADES
            ]
        if self.given.get("label") in numbers or (
            "label" not in self.given and grades and not (sure or told or named or last)
        ):
            name = self.given.get("label") or grades[0]
            self.left.remove(name)
            return self._graded_label(name)
        label = self.given.get("label") or next(
            iter(sure or told or last or named or (says if len(says) == 1 else [])), None
        )
        if label not in says:
            raise self._absent(
                "label",
                "0 and 1, yes and no, or numbers, whose upper half are clicks",
                "; where every row is what a user clicked at a known time, state --user, --item, --time and --negatives 2",
            )
        self.left.remove(label)
        is_sure = "label" in self.given or bool(sure) or (len(says) == 1 and label in [*named, *last, *told])
        self._say("label", label, self._rate(label, says[label]), is_sure)
        for other in named if label in named else ():
            if other != label:
                self.left.remove(other)
                self._say("left out", other, "another reaction: told later than the label")
        return self._rule(label, says[label])

    def _beside_ids(self, numbers: list[str]) -> list[str]:
        """The only column of numbers beside two or more of ids, as where a file tells how often each user played each game."""
        others = [name for name in self.left if not self._is_called_code(name, self.events.values(name))]
        is_one = len(others) == 1 and len(self.left) > 2 and self.events.distinct.get(others[0], 0) > 1
        return [name for name in others if is_one and name in numbers]

    def _moment(self, schema: dict[str, Any]) -> None:
        """The column of times, by which rows are parted."""
        wanted = self.given.get("time")
        few = {name for name, count in self.events.distinct.items() if self.events.whole and count < len(PARTS)}
        named = [name for name in self.events.named("time") if name in self.left and name not in few]
        kinds = {
            name: self.events.table[name].type for name in self.left if self.events.distinct.get(name, 0) > _COUNTS
        }
        others = [  # called in another language, say
            name
            for name, kind in kinds.items()
            if name not in named and (pa.types.is_temporal(kind) or is_text(kind) or self._may_be_seconds(name))
        ]
        for name in [wanted] if wanted else [*named, *others]:
            why, keys = self._time_of(name) or (None, {})
            if why is None and wanted:
                raise ValueError(f"--time {name}: {self._no_times(name)}; others need `time` in a table's schema")
            if wanted and (lacking := self._lacking(name)):
                raise ValueError(f"--time {name}: {lacking} have none; fill them, or leave these rows out")
            if why is None or self._lacking(name):
                continue
            if not (wanted or name in self.events.called("time") or self._is_in_order(name, keys)):
                continue
            self.left.remove(name)
            self._say("time", name, f"{why}: parts the rows", name in self.events.called("time") or name == wanted)
            schema["time"] = name
            if keys:  # a format of texts, or a unit of numbers
                (schema["time_format"],) = keys.values()
            return
        for name in self.left:
            if name in self.events.called("time"):
                lacking = self._lacking(name)
                why = f"{lacking} have none" if self._time_of(name) and lacking else self._no_times(name)
                why = "too few times for three parts" if self._time_of(name) and name in few else why
                self._say("no time", name, f"{why}; the rows are parted at random", sure=False)

    def _lacking(self, name: str) -> str:
        """How many rows have no value of a column, in words; nothing where all have one. Rows are parted by times that all of them have."""
        count = self.events.table[name].null_count
        return f"{count:,} of {self.events.table.num_rows:,} rows" if count else ""

    def _may_be_seconds(self, name: str) -> bool:
        """Whether whole numbers, by their values alone, are unix times of more than a day: no ids, and no numbers of rows."""
        values = self.events.values(name)
        if not pa.types.is_integer(values.type) or self._is_called_code(name, values) or self._counts_rows(values):
            return False
        bounds = pc.min_max(values)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        unit = unit_of(low, high)
        return unit is not None and high - low > 86_400 * PER_SECOND[unit]

    def _is_in_order(self, name: str, keys: dict[str, str]) -> bool:
        """Whether the rows stand in the order of the column, as those of events do, and those of people not in that of their birth dates."""
        values = self.events.values(name)
        if "format" in keys:
            days = self._days(name, keys["format"])
            if days is None:
                return False
            values = pa.array(days[~np.isnan(days)])
        return share_in_order(values) > _ORDERED

    def _fields(self, name: str) -> list[dict[str, Any]]:
        """The fields of a column; none: it is left out. Numbers are read as they are and by bins, whole ones that may name things as codes too."""
        texts, distinct = self.events.values(name), self.events.distinct.get(name)
        values, written = self._numbers_of(texts, name)
        kind, left_out, doubt = values.type, None, ""
        if not len(values) or (distinct is not None and distinct < 2):
            left_out = "one value only" if len(values) else "empty"
        elif are_vectors(values):
            left_out = VECTORS
        elif pa.types.is_nested(kind):
            why, fields = "lists", [{"name": name, "type": "sequence"}]
        elif pa.types.is_temporal(kind) or (is_text(kind) and distinct > _COUNTS and self._time_of(name)):
            left_out, why, fields = self._days_of(name)
        elif is_text(kind) and (form := _clock(values)) is not None:
            why, of_day = "times of day", {"column": name, "extract": DAYS, "time_format": form}
            hour = {"name": self._free(f"{name}_hour"), "type": "categorical", **of_day, "extract": "hour"}
            days = pa.array(self._days(name, form), from_pandas=True)
            fields = [hour, *self._numbers(f"{name}_of_day", days, **of_day)]
        elif pa.types.is_integer(kind) and self._counts_rows(values):
            left_out = "counts the rows"
        elif (
            is_number(kind)
            and not self._is_called_thing(name, values)
            and (is_code := self._may_be_code(values, distinct)) is not True
        ):
            fields = [] if is_code is False else [self._category(name, texts)]
            why = "numbers" if not fields else f"{distinct:,} different whole numbers: codes, or counts? Read as both"
            doubt = f"; perhaps times: --time {name} parts the rows by them" if self._may_be_seconds(name) else ""
            fields += self._numbers(name, values, "_number" if fields else "", **written)
        elif self.events.holds_literals(name):
            why, fields = "lists", [{"name": name, "type": "multi_value", "parse": "literal"}]
        elif is_text(kind) and (separator := self._separator(values, name.lower())) is not None:
            weights = {"weight_separator": ":"} if _are_weighted(values, separator) else {}
            why = f"lists, parted by {separator!r}" + (", of values and, behind ':', their weights" if weights else "")
            fields = [{"name": name, "type": "multi_value", "separator": separator, **weights}]
        elif distinct > _MANY and distinct > _ALMOST * len(values):
            why, fields = "texts, read as their words", self._words(name, values)
            left_out = None if fields else "another value on (almost) every row"
        else:
            why = f"{distinct:,} {'codes' if is_number(kind) else 'categories'}"
            fields = [self._category(name, texts)]
            if pa.types.is_integer(kind) and distinct > 2 and not self._is_called_thing(name, values):
                why = f"{distinct:,} whole numbers, read as codes too"  # trees know no order of codes
                fields += self._numbers(name, values, "_number", **written)[:1]
            if is_text(kind) and name in self.events.called("time"):
                doubt = "; called like a time, but in no format that is known"
            elif (dates := self._dates(name)) and self._time_of(name) is None:
                doubt = f"; {dates}"
        if left_out is not None:
            self._say("left out", name, left_out)
            return []
        why += f"; written as {texts[0].as_py()!r}" if written else ""
        doubt += "; texts and numbers mixed, read as texts" if name in self.events.mixed else ""
        as_both = len(fields) == 3 and "extract" not in fields[0]  # a code, a number and a bin
        self._say("field", name, f"{why}{doubt}", sure=not as_both and not doubt)
        return fields

    def _days_of(self, name: str) -> tuple[str | None, str, list[dict[str, Any]]]:
        """Why a column of times is left out, what is read of it, and the fields: the days from it to the row's own time, or since 1970 where rows have none.
        What lies after the row's time may be told after its label."""
        moment, form = self.found.schema.get("time"), self.found.schema.get("time_format")
        own = (self._time_of(name) or ("", {}))[1].get("format")
        if not _AFTERWARDS.isdisjoint(words_of(name)):
            return "a time of what may have come after the label, by its name", "", []
        days, of_rows = self._days(name, own), self._days_of_rows
        if days is None or (of_rows is None and moment is not None):
            return "a time, in a form that no field reads", "", []
        if "%y" in (own or "") and np.nanmax(days) > clock.time() / 86_400:
            return "times of years of two digits, of which some lie in the future; write four", "", []
        if moment is not None:
            later = float(np.mean((of_rows - days)[~np.isnan(days)] < 0))
            if later > _LATER:
                return f"a time after {moment} in {later:.1%} of the rows: told after the label, perhaps", "", []
            return None, f"a time: read as days until {moment}", self._until(name, own, moment, form, of_rows - days)
        why, fields = (
            "a time, by which the rows are not parted: read as days since 1970",
            self._until(name, own, None, None, days),
        )
        for other, (since, its_form) in [*self.dates.items()][-2:]:  # such as of a booking and a stay
            if not np.isnan(days - since).all():
                why, fields = f"{why} and {other}", fields + self._until(other, its_form, name, own, days - since)
        self.dates[name] = days, own
        return None, why, fields

    @cached_property
    def _days_of_rows(self) -> np.ndarray | None:
        """[`_days`] of the rows' own time, None where they have none, too: read once for all columns of times."""
        schema = self.found.schema
        return self._days(schema["time"], schema.get("time_format")) if "time" in schema else None

    def _until(
        self, name: str, form: str | None, until: str | None, until_form: str | None, days: np.ndarray
    ) -> list[dict[str, Any]]:
        """The fields of the days between two columns of times, or since 1970."""
        more = {"column": name, "extract": DAYS, "time_format": form, "until": until, "until_format": until_form}
        more = {key: value for key, value in more.items() if value is not None}
        stem = f"{name}_days" if until in (None, self.found.schema.get("time")) else f"{name}_until_{until}"
        return self._numbers(stem, pa.array(days, from_pandas=True), **more)

    def _days(self, name: str, time_format: str | None) -> np.ndarray | None:
        """(N,) float64 days since 1970 of a column of times, NaN where missing; None where fields of `extract: days` read it not."""
        field = {"name": name, "type": "numeric", "extract": DAYS, "time_format": time_format}
        try:
            return field_numbers(Field.from_dict(field), Rows(self.events.table))
        except ValueError:
            return None

    def _counts_rows(self, values: pa.Array) -> bool:
        """Whether whole numbers go up by one from row to row, or did so before the rows were mixed."""
        numbers = np.sort(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
        return len(numbers) == self.events.table.num_rows > 1 and bool((np.diff(numbers) == 1).all())

    @staticmethod
    def _category(name: str, values: pa.Array) -> dict[str, Any]:
        types = {"value_type": "integer"} if pa.types.is_integer(values.type) else {}
        types = {"value_type": "text"} if is_text(values.type) else types
        return {"name": name, "type": "categorical", "min_count": 2, **types}

    def _free(self, name: str) -> str:
        """The name, or one that no column has."""
        while name in self.events.table.column_names:
            name += "_"
        return name

    def _numbers(self, name: str, values: pa.Array, end: str = "", **more: str) -> list[dict[str, Any]]:
        """A column of numbers as one number, and by the bin that it falls into: what is no line is learnt by the bins."""
        column = {"column": name} if end else {}
        before = {"before": "log1p"} if pc.min(values).as_py() >= 0 else {}
        bins = {"transform": "quantile", "num_bins": _BINS, "missing": "own_id"}
        own = self._free(f"{name}{end}") if column or "column" in more else name
        return [
            {"name": own, **column, **more, "type": "numeric", **before, "transform": "standardize"},
            {"name": self._free(f"{name}_bin"), "column": name, **more, "type": "numeric", **bins},
        ]

    @staticmethod
    def _words(name: str, values: pa.Array) -> list[dict[str, Any]]:
        """The field of the words of texts that have two or more on average, most of which come again in others: as many as most of them have. None of
        names of rows, addresses of pages or of mail."""
        if (
            not is_text(values.type)
            or pc.mean(pc.match_substring_regex(values, "://|@").cast(pa.int8())).as_py() > 0.5
        ):
            return []
        lists = words_of_texts(values)
        words = pc.list_flatten(lists)
        words = words.filter(pc.match_substring_regex(words, r"^\D\D"))
        counts = pc.value_counts(words).field("counts").to_numpy(zero_copy_only=False)
        if len(words) < 2 * len(values) or counts[counts >= _COMES_AGAIN].sum() < 0.5 * len(words):
            return []
        lengths = pc.list_value_length(lists.drop_null()).to_numpy()
        most = min(int(np.ceil(np.quantile(lengths, 0.95))), _WORDS)
        return [{"name": name, "type": "multi_value", "parse": "words", "min_count": 3, "max_length": most}]

    @staticmethod
    def _may_be_code(values: pa.Array, distinct: int) -> bool | None:
        """Whether numbers name things: surely (few whole ones), surely not (fractions, or too many to be met again), or None."""
        if not pa.types.is_integer(values.type) or distinct * _FEWEST_OF_CODE > len(values):
            return False
        if distinct <= _COUNTS:
            return True
        least, most = pc.min(values).as_py(), pc.max(values).as_py()
        starts, gaps = least <= 1, distinct < _DENSE * (most - least + 1)
        return False if starts and gaps and distinct > _CODES else None


def _clock(texts: pa.Array) -> str | None:
    """How texts of times of day are written; None: they are none."""
    for form, seconds in (("%H:%M", ""), ("%H:%M:%S", ":[0-5][0-9]")):
        if pc.all(pc.match_substring_regex(texts, rf"^\s*([01]?\d|2[0-3]):[0-5]\d{seconds}\s*$")).as_py():
            return form
    return None


def _are_weighted(values: pa.Array, separator: str) -> bool:
    """Whether each entry of lists ends in a colon and a number, as `red:0.5`, and is no time of a day."""
    entries = pc.list_flatten(pc.split_pattern(values, separator))
    of_day = pc.match_substring_regex(entries, r"^\s*\d{1,2}:\d{2}\s*$")
    return (
        pc.all(pc.match_substring_regex(entries, r".:\d+(\.\d+)?([eE][-+]?\d+)?\s*$")).as_py()
        and not pc.all(of_day).as_py()
    )
