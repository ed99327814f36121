"""What guesses of logs and of tables share: which columns are left, where times, labels and lists are seen, and what is said of each."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.logs.columns import is_number, is_text
from lmctr.data.logs.schema import RULES, LabelSpec
from lmctr.data.logs.table import POSITIVE_WORDS, follows
from lmctr.data.logs.times import formats_of_texts, iso_times, unit_of
from lmctr.utils.suggest import unknown_key_message

from .found import Ask, Guess, LogGuess, NoLogError
from .sample import FileSample

__all__ = ["Guesser"]

_LISTS = ("genres", "genre", "tags", "categories", "keywords", "topics", "labels")
_BOUNDS = {
    "greater_than": "above {:g}",
    "at_least": "of {:g} or more",
    "less_than": "below {:g}",
    "at_most": "of {:g} or less",
}
_OF_OBJECTS = "give their entries columns of their own"
_OF_REQUESTS = {"history", "candidates", "target", "ads"}


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
                raise ValueError(
                    f"--{role}: {unknown_key_message(column, self.left, f'the columns of {events.path}')}"
                )

    def _state_click(self, name: str, sign: str, value: str) -> None:
        """Keep what of `--label COLUMN=VALUE`, or COLUMN with another sign and a number, says which rows are clicks."""
        if sign == "=":
            self.click = value
            return
        try:
            self.bound = next(rule for rule, own in RULES.items() if own == sign), float(value)
        except ValueError:
            raise ValueError(f"--label {name}{sign}{value}: expected a number after {sign}, got {value!r}") from None

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
        if requests := _OF_REQUESTS & set(self.events.objects):
            objects = (
                f"; {' and '.join(sorted(requests))} hold{'s' * (len(requests) == 1)} objects, as requests do that `lmctr predict RUN --input` "
                "scores: to train, give each behaviour and each candidate a line of its own with user, item, time and label"
            )
        is_label = role == "label"
        return (ValueError if is_label else NoLogError)(
            f"{self.events.path}: no column looks like the {role} ({wanted}); state it: --{role} COLUMN; the columns are "
            f"{', '.join(self.left)}{taken}{objects}.{'' if is_label else self._otherwise()}"
        )

    def _otherwise(self) -> str:
        """What else the file may be, for errors."""
        return ""

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

    def _is_called_code(self, name: str, values: pa.Array) -> bool:
        """Whether a column's name says that it holds ids, and its values may be some: no fractions."""
        if pa.types.is_floating(values.type) and not pc.all(pc.equal(values, pc.floor(values))).as_py():
            return False
        is_id = re.search(r"id$", re.sub(r"[^a-z]", "", name.lower())) is not None
        return is_id or any(name in self.events.called(role) for role in ("user", "item"))

    # ---- labels -----------------------------------------------------------------------------------------------------

    def _graded_label(self, name: str) -> dict[str, Any]:
        is_sure = name == self.given.get("label")
        rule, limit = (is_sure and self.bound) or self._upper_half(name)
        spec = LabelSpec(column=name, **{rule: limit})
        share = pc.mean(follows(self.events.values(name), spec, name).cast(pa.int8())).as_py()
        says = f"a click is a value {_BOUNDS[rule].format(limit)}, {share:.1%} of the rows"
        self._say("label", name, f"{'as stated' if is_sure else 'by its name'}: {says}", is_sure)
        return {"column": name, rule: limit}

    def _upper_half(self, name: str) -> tuple[str, float]:
        """The rule by which about the upper half of a column's numbers are clicks, of stars 4 and 5."""
        values = self.events.values(name)
        median = round(float(np.median(values.to_numpy(zero_copy_only=False))), 3)
        limit = 4 if pc.max(values).as_py() == 5 else median
        return ("greater_than" if limit <= pc.min(values).as_py() else "at_least"), limit  # most have the least one

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
        yes = [value for value in found if value in (1, True) or str(value).strip().lower() in POSITIVE_WORDS]
        numbers = is_number(kind) or pa.types.is_boolean(kind)
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
        missing = {"missing": "history"} if self.events.table[name].null_count else {}
        plain = yes == [1] and {*pc.unique(self.events.values(name)).to_pylist()} == {0, 1}
        if yes is not None and not plain:
            return {"column": name, "equals": yes[0], **missing}
        return {"column": name, **missing} if missing else name

    def _rate(self, name: str, yes: list[Any]) -> str:
        share = pc.mean(pc.equal(self.events.values(name), pa.scalar(yes[0])).cast(pa.int8())).as_py()
        return f"two values, {yes[0]!r} in {share:.1%} of the rows"

    # ---- lists ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _separator(values: pa.Array, plain: str) -> str | None:
        for sign in ("|", ";", ","):
            share = pc.mean(pc.match_substring(values, sign).cast(pa.int8())).as_py()
            if share > (0.05 if plain in _LISTS else 0.2) and (sign == "|" or plain in _LISTS):
                return sign
        return None
