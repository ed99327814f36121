"""What guesses of logs and of tables share: which columns are left, where times, labels and lists are seen, and what is said of each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.amounts import how_written, numbers_in
from lmctr.data.leaks import rank_auc
from lmctr.data.logs.schema import RULES, LabelSpec
from lmctr.data.logs.table import POSITIVE_WORDS, follows
from lmctr.data.logs.times import formats_of_texts, iso_times, unit_of
from lmctr.utils.arrow import is_list, is_number, is_text
from lmctr.utils.suggest import LISTED, first_of, no_column
from lmctr.utils.words import THINGS, ends_in_id, words_of

from .found import Ask, Guess, LogGuess, NoLogError, NotToldError
from .sample import DONE, FileSample, is_called_label

_LISTS = ("genres", "genre", "tags", "categories", "keywords", "topics", "labels", "skills")
_BOUNDS = {
    "greater_than": "above {:g}",
    "at_least": "of {:g} or more",
    "less_than": "below {:g}",
    "at_most": "of {:g} or less",
}
_NAME = 24  # signs of a part of a list that need not come again, such as an author's name
_ALWAYS = 0.99  # share of the signs that stand between blanks where all do
VECTORS = "vectors, which are no lists of categories; data.pretrained takes those of a field's values"
_FEWEST_LISTS = 20  # distinct texts of several parts that are seen to be lists
_MOST_CLICKS = 0.9  # share of four and five stars, above which they are not the upper half
_GRADES = 20  # different ones at most
_TOGETHER = 0.65  # AUC, of the label's upper half, above which numbers that share a word of its name are told with it
BEFORE = {
    "average", "avg", "count", "expected", "last", "mean", "n", "num", "number", "past", "predicted", "prev", "previous", "prior",
}  # fmt: skip
_BY_CHANCE = 20  # rows that chance would put where there are none
_DATE = r"^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}($|[ T])"
_NAMELESS = (
    "has no name, as an index that pandas wrote, or what stands behind a last separator; give it one to read it"
)
_TIMES = "unix times from 1990 to today such as 1700000000, in s, ms, us or ns; ISO times such as 2024-03-01T12:00:00; dates such as 01.03.2024"
_PARTS = ("year", "month", "day")
_OF_REQUESTS = {"history", "candidates", "target", "ads"}


class Guesser:
    """What is settled so far, and what is left; the parts of a guess are its methods."""

    missing = "history"  # what becomes of rows without a label

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
        self.bound: tuple[str, float] | None = None  # or the rule, and the number
        plain = {column.strip(): column for column in self.left}  # names may have blanks around them
        for name, column in plain.items() if given.get("label", "").strip() not in plain else ():
            stated = re.fullmatch(re.escape(name) + r"\s*([<>]?=|[<>])(.*)", given.get("label", "").strip())
            if stated is not None:
                self._state_click(name, *stated.groups())
                given["label"] = column
        given |= {role: plain.get(column.strip(), column) for role, column in given.items() if column not in self.left}
        for role, column in given.items():
            if column not in self.left:
                raise ValueError(f"--{role}: {events.path} has {no_column(column, self.left)}")
        roles = {column: [role for role, own in given.items() if own == column] for column in given.values()}
        for column, twice in roles.items():
            if len(twice) > 1:
                raise ValueError(f"--{' and --'.join(twice)} are both {column!r}: state a column of its own for each")

    def _state_click(self, name: str, sign: str, value: str) -> None:
        """Keep what of `--label COLUMN=VALUE`, or COLUMN with another sign and a number, says which rows are clicks."""
        if sign == "=":
            self.click = value
            return
        try:
            self.bound = next(rule for rule, own in RULES.items() if own == sign), float(value)
        except ValueError:
            raise ValueError(f"--label {name}{sign}{value}: expected a number after {sign}, got {value!r}") from None

    def _say_what_samples_lack(self) -> None:
        for start, sample in (("", self.events), ("items ", self.found.items), ("users ", self.found.users)):
            whys = {} if sample is None else dict.fromkeys(sample.nameless, _NAMELESS)
            held = {} if sample is None else {**sample.objects, **sample.no_values}
            whys |= {name: f"holds {what}" for name, what in held.items()}
            for name, why in whys.items():
                self._say(f"{start}left out", name, why)

    def _say(self, role: str, column: str, why: str, sure: bool = True) -> None:
        self.found.guesses.append(Guess(role, column, why, sure))

    def _free(self, role: str) -> list[str]:
        """The columns that are nothing yet, and not stated to be something else."""
        stated = {column for other, column in self.given.items() if other != role}
        return [name for name in self.left if name not in stated]

    def _take(self, role: str, column: str = "", why: str = "", sure: bool = True) -> str:
        """Settle a column, the stated one of a role that is stated; one that is not sure is asked about."""
        if role in self.given:
            why = f"as stated: {why}" if why and column == self.given[role] else "as stated"
            column, sure = self.given[role], True
        elif not sure and self.ask is not None:
            column = self.ask(
                f"which column is the {role}?", [column, *(name for name in self.left if name != column)], column
            )
            why, sure = "as answered", True
        self.left.remove(column)
        self._say(role, column, why, sure)
        return column

    def _absent(self, role: str, wanted: str, otherwise: str = "") -> ValueError:
        """The error where no column is what a role needs, or the stated one is not; `otherwise`: what else, where none is stated."""
        if role in self.given:
            name = self.given[role]
            if not self.events.distinct.get(name, 1):
                return ValueError(
                    f"{self.events.path}, --{role} {name}: no row has a value there; name another column"
                )
            values = pc.unique(self.events.values(name)).to_pylist() if self.events.distinct[name] == 2 else ["VALUE"]
            rules = " or ".join(f"--{role} {shlex.quote(f'{name}={value}')}" for value in values)
            return ValueError(
                f"{self.events.path}, --{role} {name}: expected {wanted}; the column holds {self._held(name)}; say which value is a click: {rules}"
            )
        wanted += otherwise
        taken = "".join(
            f"; {guess.column} is the {guess.role}" for guess in self.found.guesses if guess.role in self.columns
        )
        objects = "".join(f"; {name} holds {what.replace(';', ':', 1)}" for name, what in self.events.objects.items())
        if requests := _OF_REQUESTS & set(self.events.objects):
            objects = (
                f"; {' and '.join(sorted(requests))} hold{'s' * (len(requests) == 1)} objects, as requests do that `lmctr predict RUN --input` "
                "scores: to train, give each behaviour and each candidate a line of its own with user, item, time and label"
            )
        is_label = role == "label"
        held = {name: self.events.distinct.get(name, 0) for name in self.left} if is_label else {}
        few = [name for name in held if held[name] == 2]
        few = few or [name for name in held if 2 < held[name] <= 5 and is_text(self.events.table[name].type)]
        pairs = [f"{name!r} ({self._held(name)})" for name in few]
        alone = [
            name for name in self.left if is_label and is_called_label(name) and self.events.distinct.get(name) == 1
        ]
        if is_label and self.events.called("ecpm"):
            wanted += "; of a file with a row for each ad of each impression: --kind impressions"
        wanted += "".join(f"; {name!r} holds {self._held(name)} only{self._without_value(name)}" for name in alone)
        stated = ", COLUMN=VALUE or 'COLUMN>=NUMBER'" if is_label else ""
        if pairs:
            wanted += f"; of {'two' if held[few[0]] == 2 else 'few'} values: {', '.join(pairs[:5])}{' ...' * (len(pairs) > 5)}"
        others = f"the columns are {first_of(self.left, LISTED)}" if self.left else "no other column is there"
        options = [f"--{own}" for own in role.split(" or ")]
        state = " or ".join(f"{option} COLUMN{stated}" for option in options)
        return (NotToldError if is_label else NoLogError)(
            f"{self.events.path}: no column looks like the {role} ({wanted}); state it: {state}; "
            f"{others}{taken}{objects}.{'' if is_label else self._otherwise()}",
            *options,
        )

    def _otherwise(self) -> str:
        """What else the file may be, for errors."""
        return ""

    def _time_of(self, name: str) -> tuple[str, dict[str, str]] | None:
        """What a column of times holds, in words and as keys of the schema; None: no times."""
        return times_in(self.events.values(name), name in self.events.named("time") or name == self.given.get("time"))

    def _no_times(self, name: str) -> str:
        """What a column holds that `_time_of` found to be no times, and what are."""
        parts = [one for part in _PARTS for one in self.events.table.column_names if words_of(one)[-1:] == [part]]
        if name in parts and len(parts) == len(_PARTS):
            hours = [one for one in self.events.table.column_names if words_of(one)[-1:] == ["hour"]][:1]
            such = f"2024-03-01{' 13:00' if hours else ''}"
            return f"holds a part of a date: write {', '.join([*parts, *hours])} into one column, such as {such}"
        return f"holds no times that can be told ({self._dates(name) or self._held(name)}); accepted are {_TIMES}"

    def _dates(self, name: str) -> str:
        """What is said of texts that begin like dates of numbers, in whatever order and with whatever signs; nothing of others."""
        texts = self.events.values(name)
        if not is_text(texts.type) or not pc.all(pc.match_substring_regex(texts, _DATE)).as_py():
            return ""
        shapes = pc.dictionary_encode(pc.replace_substring_regex(texts, r"\d+", "9")).indices
        first = [texts[pc.index(shapes, place).as_py()].as_py() for place in pc.unique(shapes)[:3].to_pylist()]
        how = "written in more than one way" if len(first) > 1 else "in a form that is not known"
        return f"dates, but {how}: {', '.join(map(repr, first))}"

    def _is_called_code(self, name: str, values: pa.Array) -> bool:
        """Whether a column's name says that it holds ids, and its values may be some: no fractions."""
        if not _are_whole(values):
            return False
        return ends_in_id(name) or any(name in self.events.called(role) for role in ("user", "item"))

    def _is_called_thing(self, name: str, values: pa.Array) -> bool:
        """Whether numbers of a column are ids, by its name, or name things such as brands."""
        return self._is_called_code(name, values) or (
            is_number(values.type) and _are_whole(values) and not THINGS.isdisjoint(words_of(name)[-1:])
        )

    # ---- files of items and users -----------------------------------------------------------------------------------

    def _shares(self, sample: FileSample, key: str, columns: Iterable[str]) -> dict[str, float]:
        """How many of the ids of a column of the events stand in each of some columns of a file."""
        ids, shares = pc.unique(plain_ids(self.events.values(key))), {}
        for name in columns:
            kind = sample.table[name].type
            if len(ids) and (pa.types.is_integer(kind) or is_text(kind)):
                found = pc.is_in(ids, value_set=pc.unique(plain_ids(sample.values(name))))
                shares[name] = pc.mean(found.cast(pa.int8())).as_py()
        return shares

    def _say_id(self, what: str, sample: FileSample, column: str, key: str, share: float) -> None:
        """Tell which column of a file holds the ids of which column of the events; that most of these have no row there is not sure to be right."""
        if not share:
            if self.events.distinct.get(key) and sample.distinct.get(key):  # parts of two data sets, say
                first = [own.values(key)[0].as_py() for own in (self.events, sample)]
                raise ValueError(
                    f"{sample.path}: its {key!r} (such as {first[1]!r}) holds none of the ids that {self.events.path} has there (such as {first[0]!r}): "
                    f"other {what}, or ids written otherwise. Leave out --{what} {sample.path}, or give the file of these {what}"
                )
            raise ValueError(
                f"{sample.path}: no column holds the ids of {key!r} of {self.events.path}; columns: {', '.join(sample.table.column_names)}. "
                f"If another column of the events holds them, state it: --{what.removesuffix('s')} COLUMN"
            )
        says = f"{share:.1%} of the ids of {key!r} stand there"
        self._say(f"{what} id", column, says, share > 0.5 or not sample.whole)

    # ---- labels -----------------------------------------------------------------------------------------------------

    def _graded_label(self, name: str) -> dict[str, Any]:
        is_sure = name == self.given.get("label")
        rule, limit = (is_sure and self.bound) or self._upper_half(name)
        says = f"a click is a value {_BOUNDS[rule].format(limit)}, {self._share(name, rule, limit):.1%} of the rows{self._lacking_label(name)}"
        why = "by its name" if name in self.events.named("feedback_values") else "the only numbers beside ids"
        self._say("label", name, f"{'as stated' if is_sure else why}: {says}", is_sure)
        for other in self._same_grades(name):
            self.left.remove(other)
            self._say("left out", other, f"other grades than {name}, given with it")
        return {"column": name, rule: limit, **self._if_missing(name)}

    def _upper_half(self, name: str) -> tuple[str, float]:
        """The rule by which about the upper half of a column's numbers are clicks, of stars 4 and 5."""
        values = self.events.values(name)
        if pc.max(values).as_py() == 5 and self._share(name, "at_least", 4) <= _MOST_CLICKS:
            return "at_least", 4
        median = round(float(np.median(values.to_numpy(zero_copy_only=False))), 3)
        rules = ("at_least", "greater_than")  # many may have the middle one
        return min(rules, key=lambda rule: abs(self._share(name, rule, median) - 0.5)), median

    def _share(self, name: str, rule: str, limit: float) -> float:
        """Share of the rows that are clicks by a bound of their numbers."""
        spec = LabelSpec(column=name, **{rule: limit})
        return pc.mean(follows(self.events.values(name), spec, name).cast(pa.int8())).as_py()

    def _same_grades(self, label: str) -> list[str]:
        """Other columns that share a word of the label's name and hold its very grades, or other numbers that go with it and with no user or item:
        `food_rating` beside `rating`, told with it."""
        words, grades = {*words_of(label)}, {*pc.unique(self.events.values(label)).to_pylist()}
        alike = [name for name in self.left if name != label and words & {*words_of(name)}]
        alike = [name for name in alike if self.events.distinct.get(name, 0) > 2]
        few = [name for name in alike if self.events.distinct[name] <= _GRADES]
        same = [name for name in few if {*pc.unique(self.events.values(name)).to_pylist()} == grades]
        return [name for name in alike if name in same or self._is_graded_with(label, name)]

    def _is_graded_with(self, label: str, name: str) -> bool:
        """Whether numbers rise with the label, differ within each user and item, and are no mean or count by their name."""
        table = self.events.table
        if not is_number(table[name].type) or not BEFORE.isdisjoint(words_of(name)):
            return False
        own, other = (values.to_numpy() for values in table.select([label, name]).drop_null().columns)
        if not rank_auc(other, own > np.median(own)) > _TOGETHER:  # NaN too
            return False
        held = self.events.distinct
        keys = [key for role in ("user", "item") for key in self.events.named_ids(role) if key not in (label, name)]
        keys = [key for key in keys if 1 < held.get(key, 0) < 0.9 * table.num_rows]
        pairs = [table.group_by([key, name]).aggregate([]).num_rows for key in keys]
        return bool(keys) and all(count > 1.2 * held[key] for key, count in zip(keys, pairs))

    def _yes(self, name: str) -> list[Any] | None:
        """The value of a two-valued column that says yes, in a list, or the one stated; None: it has not two such values."""
        kind = self.events.table[name].type
        if name == self.given.get("label") and self.bound is not None:
            return None
        if self.click is not None and name == self.given["label"]:
            return [self._stated(name)]
        if not (is_number(kind) or is_text(kind) or pa.types.is_boolean(kind)) or self.events.distinct[name] > 3:
            return None
        found = pc.unique(self.events.values(name)).to_pylist()
        if len(found) != 2:
            return None
        # 1.0 and True. in texts
        plain = {value: str(value).strip().lower().removesuffix(".0").strip(".") for value in found}
        yes = [value for value in found if value in (1, True) or plain[value] in POSITIVE_WORDS]
        yes = yes or [value for value, other in (found, found[::-1]) if _denies(str(other), str(value))]
        yes = yes or [value for value in found if not DONE.isdisjoint(words_of(str(value)))]
        numbers = is_number(kind) or pa.types.is_boolean(kind)
        if numbers and name in self.events.turned:
            return [0]
        return yes if len(yes) == 1 and (not numbers or {*map(float, found)} in ({0, 1}, {-1, 1})) else None

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
        missing = self._if_missing(name)
        found = {*pc.unique(self.events.values(name)).to_pylist()}
        of_texts = yes in (["1"], ["1.0"]) and {str(value).removesuffix(".0") for value in found} == {"0", "1"}
        plain = of_texts or (yes == [1] and found == {0, 1})
        if yes is not None and not plain:
            return {"column": name, "equals": yes[0], **self._no_clicks(name, yes[0]), **missing}
        return {"column": name, **missing} if missing else name

    def _no_clicks(self, name: str, yes: Any) -> dict[str, Any]:
        """The other of two values, which is no click: in other files a third one may be anything. Where a click is stated, all others are none."""
        others = [value for value in pc.unique(self.events.values(name)).to_pylist() if value != yes]
        if len(others) != 1 or self.click is not None:
            return {}
        return {"otherwise": [-1, 0] if yes == 1 and others[0] in (-1, 0) else others[0]}

    def _if_missing(self, name: str) -> dict[str, str]:
        return {"missing": self.missing} if self.events.table[name].null_count else {}

    def _without_value(self, name: str) -> str:
        count = self.events.table[name].null_count
        return f"; {count:,} rows have no value: if they are no clicks, write one there, such as no" if count else ""

    def _lacking_label(self, name: str) -> str:
        """What is said of rows without a label; nothing where all have one."""
        count, what = self.events.table[name].null_count, {"history": "are history only", "drop": "are left out"}
        return f"; {count:,} rows without a value {what[self.missing]}" if count else ""

    def _rate(self, name: str, yes: list[Any]) -> str:
        values = self.events.values(name)
        share = pc.mean(pc.equal(values, pa.scalar(yes[0])).cast(pa.int8())).as_py()
        others = [word for word in pc.unique(values).to_pylist() if word != yes[0]]
        of = "two values," if len(others) == 1 else f"no clicks are {first_of(sorted(map(repr, others)), 4)};"
        named = f" ({self.events.turned[name][0]})" if name in self.events.turned else ""
        return f"{of} {yes[0]!r}{named} in {share:.1%} of the rows{self._lacking_label(name)}"

    def _clicks(self, label: str | Mapping[str, Any]) -> np.ndarray:
        """(R,) float, 1 where the label is positive, NaN where it is not known. Raises `NotToldError` where all that are known are alike."""
        spec = LabelSpec.model_validate({"column": label} if isinstance(label, str) else label)
        values = self.events.table[spec.column].combine_chunks()
        if spec.rule is not None:
            values = follows(values, spec, str(self.events.path))
        clicks = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        known = clicks[~np.isnan(clicks)]
        if self.events.whole and len(known) and (known == known[0]).all():
            name = spec.column
            alike = f"{len(known):,} rows with a value are {'clicks' if known[0] else 'no clicks'}"
            held = f"it holds {self._held(name)} only" if self.events.distinct[name] == 1 else f"all {alike}"
            raise NotToldError(
                f"{self.events.path}, column {name!r}: {held}, and a label needs clicks and others{self._without_value(name)}.",
                "--label",
            )
        return clicks

    # ---- numbers in texts, and lists ------------------------------------------------------------------------------------------------------

    def _numbers_of(self, values: pa.Array, name: str) -> tuple[pa.Array, dict[str, str]]:
        """A column of texts that are numbers as these, and how they are written, see [`lmctr.data.amounts`]; others, and lists, as they are."""
        written = {}
        if is_text(values.type) and self._separator(values, name.lower()) is None:
            written = how_written(values) or {}
        if written:
            values = numbers_in(values, **written)
            is_whole = pc.all(pc.equal(pc.floor(values), values)).as_py()
            values = values.cast(pa.int64(), safe=False) if is_whole else values
        return values, written

    @staticmethod
    def _separator(values: pa.Array, plain: str) -> str | None:
        """What parts lists, a sign with its blanks; prose that holds the sign is none: its parts are long, and do not come again."""
        for sign in ("|", ";", ",", "、"):
            share = pc.mean(pc.match_substring(values, sign).cast(pa.int8())).as_py()
            if share <= (0.05 if plain in _LISTS else 0.2):
                continue
            counted = {
                text: pc.sum(pc.count_substring(values, text)).as_py() for text in (f" {sign} ", f"{sign} ", sign)
            }
            whole = next(text for text, count in counted.items() if count >= _ALWAYS * counted[sign])
            lists = pc.split_pattern(values, whole)
            by_name = sign == "|" or plain in _LISTS
            if _are_names(pc.list_flatten(lists)) if by_name else _are_lists(pc.unique(values), whole):
                return whole
        return None


def times_in(values: pa.Array, is_named: bool) -> tuple[str, dict[str, str]] | None:
    """What a column of times holds, in words and as keys of a schema; None: no times. is_named: its name says that it is one."""
    if not len(values):
        return None
    if pa.types.is_temporal(values.type):
        bounds = pc.min_max(values)
        return f"times from {str(bounds['min'])[:10]} to {str(bounds['max'])[:10]}", {}
    if is_number(values.type):
        bounds = pc.min_max(values)
        unit = unit_of(bounds["min"].as_py(), bounds["max"].as_py(), is_named)
        if unit is not None:
            return f"unix time in {unit}", {} if unit == "s" else {"unit": unit}
        if not is_named or not pa.types.is_integer(values.type):
            return None
        values = values.cast(pa.string())  # perhaps 20240301
    if not is_text(values.type):
        return None
    texts = values.cast(pa.string()).slice(0, 1000)
    if iso_times(texts) is not None:
        return "ISO times", {}
    formats = formats_of_texts(pc.unique(values.cast(pa.string())))
    if not formats:
        return None
    other = f"; {formats[1]} fits too, and spans more" if len(formats) > 1 else ""
    return f"times such as {texts[0].as_py()}, by {formats[0]}{other}", {"format": formats[0]}


def are_vectors(values: pa.Array) -> bool:
    """Whether lists hold numbers with places behind the point, which are no categories."""
    if not (is_list(values.type) and pa.types.is_floating(values.type.value_type)):
        return False
    numbers = pc.list_flatten(values)
    return bool(pc.any(pc.not_equal(pc.floor(numbers), numbers)).as_py())


def share_in_order(values: pa.Array) -> float:
    """Share of the rows whose numbers or times rise, or else fall, from the row before."""
    signs = (pc.less_equal, pc.greater_equal)
    return max(pc.mean(sign(values[:-1], values[1:]).cast(pa.int8())).as_py() or 0.0 for sign in signs)


def plain_ids(values: pa.Array) -> pa.Array:
    """Ids without the zeros at their head, 00123, which a sample of a text file reads as a number and another file's texts keep."""
    return pc.replace_substring_regex(values.cast(pa.string()), r"^0+(\d)", r"\1")


def _are_names(parts: pa.Array) -> bool:
    """Whether most signs stand in short texts, or in ones that come again."""
    counts = pc.value_counts(parts)
    sizes = pc.utf8_length(counts.field("values")).to_numpy(zero_copy_only=False)
    times = counts.field("counts").to_numpy(zero_copy_only=False)
    signs = sizes * times
    return bool(signs[(times > 1) | (sizes <= _NAME)].sum() >= 0.5 * signs.sum())


def _are_lists(texts: pa.Array, separator: str) -> bool:
    """Whether distinct texts are made of a few short parts in all kinds of ways: more or fewer of them, most of them first of several somewhere,
    and more texts than parts. Prose, names, addresses and dates lack one of these; numbers and JSON are told by their signs."""
    lists = pc.split_pattern(texts, separator)
    sizes = pc.list_value_length(lists).to_numpy()
    codes = pc.dictionary_encode(pc.list_flatten(lists))
    words, of_text = codes.dictionary, codes.indices.to_numpy()
    is_first = np.zeros(len(of_text), bool)
    is_first[np.cumsum(sizes) - sizes] = True
    times, leads = np.bincount(of_text), np.zeros(len(words), bool)
    leads[of_text[is_first][sizes > 1]] = True
    if (sizes > 1).sum() < max(_FEWEST_LISTS, 1.5 * len(words)) or np.bincount(sizes).max() > 0.9 * len(sizes):
        return False
    lengths = pc.utf8_length(words).to_numpy()
    digits = pc.match_substring_regex(words, r"^-?[\d.]+$").to_numpy(zero_copy_only=False)[of_text]
    thousands = pc.match_substring_regex(words, r"^\d{3}(\.\d+)?$").to_numpy(zero_copy_only=False)[of_text[~is_first]]
    objects = pc.match_substring_regex(texts, r"^\s*[\[{]").to_numpy(zero_copy_only=False)
    return bool(
        times[times == 1].sum() <= 0.1 * len(of_text)
        and (lengths * times).sum() <= _NAME * len(of_text)
        and leads[of_text[~is_first]].mean() >= 0.6
        and (digits.mean() < 0.5 or ((sizes > 2).mean() >= 0.1 and thousands.mean() < 0.9))
        and objects.mean() < 0.01
    )


def told_after(values: pa.Array, clicks: np.ndarray, bound: float) -> str | None:
    """Why a column seems to be filled after the label: it alone tells the label, or it is one value wherever the label is 0 (or 1), and not elsewhere.

    Args:
        values: (R,) of the column. clicks: (R,) float, 1, 0 or NaN. bound: AUC of the column alone above which it tells the label.
    """
    known = ~np.isnan(clicks)
    if pa.types.is_nested(values.type) or known.sum() < 100:
        return None
    is_counted = is_number(values.type) and pc.count_distinct(values).as_py() > 20
    values, y = values.filter(pa.array(known)), clicks[known]
    codes = pc.dictionary_encode(values, null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    if (area := _tells(values if is_counted else None, codes, y)) > bound:
        return f"alone tells the label (AUC {area:.2f}): it seems to come after it"
    filled = values.is_valid().to_numpy(zero_copy_only=False)
    for label, told in product((0, 1), (codes, filled)):
        own = told[y == label]
        others = int((told != own[0]).sum()) if len(own) else 0
        # by chance as many of the others would stand here as here are rows
        if (own == own[:1]).all() and others * len(own) >= _BY_CHANCE * len(y):
            value = values[int(np.argmax(y == label))].as_py()
            says = "empty" if value is None else "filled" if told is filled else repr(value)
            return (
                f"{says} in all {len(own):,} rows of label {label}, and not in {others:,} of the "
                "others: it seems to come after it"
            )
    return None


def _denies(text: str, other: str) -> bool:
    """Whether a text is another one with a no before it: 'Not_Canceled' and 'Canceled'."""
    text, other = (re.sub(r"[^a-z0-9]+", "_", own.strip().lower()) for own in (text, other))
    return text in (f"no_{other}", f"not_{other}", f"non_{other}")


def _are_whole(values: pa.Array) -> bool:
    """Whether none of the values has a fraction."""
    return not pa.types.is_floating(values.type) or pc.all(pc.equal(values, pc.floor(values))).as_py()


def _tells(numbers: pa.Array | None, codes: np.ndarray, y: np.ndarray) -> float:
    """AUC of a column alone as a score of the label; numbers in the better direction, categories (None) by their share of clicks, each row without its own
    (so that equal shares put a click below the others)."""
    if y.min() == y.max():
        return 0.5
    if numbers is not None:
        score = numbers.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        score = np.where(np.isnan(score), -np.inf, score)
    else:
        counts, clicked = np.bincount(codes), np.bincount(codes, weights=y)
        score = (clicked[codes] - y + y.mean()) / counts[codes]
    area = rank_auc(score, y)
    return area if numbers is None else max(area, 1 - area)
