"""What the columns of one file probably are where it is a table of clicks, no log: its label, its time, and a field per other column."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.guess import Ask, FileSample, Guesser, LogGuess, NoLogError, guess_log, sample_file
from lmctr.data.logs.columns import is_number, is_text

__all__ = ["guess_files", "guess_table"]

_COUNTS = 20  # distinct whole numbers from 0, 1 or below on, above which a column of them may count rather than name


def guess_files(
    events: str | os.PathLike,
    items: str | os.PathLike | None = None,
    users: str | os.PathLike | None = None,
    given: Mapping[str, str] | None = None,
    ask: Ask | None = None,
    may_be_table: bool = True,
) -> LogGuess:
    """The log of the files; where one file lacks a user, an item or a time and it `may_be_table`, the table that it is.

    Args:
        events, items, users: paths of files. given, ask: as in [`guess_log`].

    Raises:
        FileNotFoundError, ValueError: as [`sample_file`], [`guess_log`] and [`guess_table`] do.
    """
    files = [None if path is None else sample_file(path) for path in (events, items, users)]
    try:
        return guess_log(*files, given, ask)
    except NoLogError:
        if not may_be_table or files[1:] != [None, None] or "item" in (given or {}):
            raise
        return guess_table(files[0], given)


def guess_table(events: FileSample, given: Mapping[str, str] | None = None) -> LogGuess:
    """The options of a table's source (see [`~lmctr.data.tables.load`]) from a sample of its file.

    Args:
        events: of the file. given: columns that the user named, by `user`, `time`, `label`; they are not guessed.

    Returns:
        The guess; its `schema` has `events` (path and how it is read), `label`, `fields`, and where they are there `time`, `time_format`
        and `group`.

    Raises:
        ValueError: no column of two values looks like the label; names what to state.
    """
    return _TableGuesser(events, None, None, {k: v for k, v in (given or {}).items() if k != "item"}, None).run()


class _TableGuesser(Guesser):
    def run(self) -> LogGuess:
        self._leave_out_objects()
        schema = self.found.schema = {"events": {"path": str(self.events.path), **self.events.reading}}
        schema["label"] = self._label()
        self._moment(schema)
        if "user" in self.given or (self.events.named("user") and self.events.named("user")[0] in self.left):
            schema["group"] = self.given.get("user", self.events.named("user")[0])
            self._say("group", schema["group"], "users, by its name: AUC inside them is reported too")
        schema["fields"] = [field for name in self.left for field in self._fields(name)]
        return self.found

    def _label(self) -> str | dict[str, Any]:
        """The column of two values, 0 and 1 or yes and no, or the rule on it: the named one, else the only one (numbers first)."""
        says = {name: yes for name in self.left if (yes := self._yes(name)) is not None}
        named = [name for name in self.events.named("label") if name in says]
        texts = [name for name in says if is_text(self.events.table[name].type)]
        others = [name for name in says if name not in texts] or (texts if len(texts) == 1 else [])
        label = self.given.get("label") or next(iter(named or others), None)
        if label not in says:
            raise self._absent("label", "0 and 1, or yes and no")
        self.left.remove(label)
        is_sure = bool("label" in self.given or named) or len(says) == 1
        self._say("label", label, self._rate(label, says[label]), is_sure)
        for other in named:
            if other != label:
                self.left.remove(other)
                self._say("left out", other, "another reaction: told later than the label")
        rule = self._rule(label, says[label])
        return label if "equals" not in rule else {"column": label, "equals": rule["equals"]}

    def _table(self) -> str:
        return ""

    def _moment(self, schema: dict[str, Any]) -> None:
        """The column of times, by which rows are parted."""
        wanted = self.given.get("time")
        for name in [wanted] if wanted else [name for name in self.events.named("time") if name in self.left]:
            why, keys = self._time_of(name) or (None, {})
            if why is None and wanted:
                raise ValueError(f"--time {name}: holds no times that can be told; write `time` into a table's schema")
            if why is None or "unit" in keys:
                continue
            self.left.remove(name)
            self._say("time", name, f"{why}: parts the rows")
            schema["time"] = name
            schema |= {"time_format": keys["format"]} if "format" in keys else {}
            return

    def _fields(self, name: str) -> list[dict[str, Any]]:
        """The fields of a column; none: it is left out. Whole numbers that may count or name are read both ways."""
        values, distinct = self.events.values(name), self.events.distinct.get(name)
        kind, left_out, how = values.type, None, {}
        is_whole = pa.types.is_integer(kind)
        if not len(values) or (distinct is not None and distinct < 2):
            left_out = "one value only" if len(values) else "empty"
        elif pa.types.is_nested(kind):
            why, how = "lists", {"type": "sequence"}
        elif pa.types.is_temporal(kind):
            left_out = "another time"
        elif is_number(kind) and not is_whole and not self._is_called_code(name):
            why, how = "numbers", self._number(values)
        elif is_text(kind) and (separator := self._separator(values, name.lower())) is not None:
            why, how = f"lists, parted by {separator!r}", {"type": "multi_value", "separator": separator}
        elif distinct > 50 and distinct > 0.9 * len(values):
            left_out = "another value on (almost) every row"
        else:
            why, how = (
                f"{distinct:,} {'codes' if is_number(kind) else 'categories'}",
                {"type": "categorical", "min_count": 2},
            )
            how |= {"value_type": "integer"} if is_whole else {"value_type": "text"} if is_text(kind) else {}
        if left_out is not None:
            self._say("left out", name, left_out)
            return []
        fields = [{"name": name, **how}]
        if is_whole and not self._names(name, values, distinct):
            why = f"{distinct:,} different whole numbers: codes, or counts? Read as both"
            fields.append({"name": f"{name}_number", "column": name, **self._number(values)})
        self._say("field", name, why, sure=len(fields) == 1)
        return fields

    @staticmethod
    def _number(values: pa.Array) -> dict[str, Any]:
        before = {"before": "log1p"} if pc.min(values).as_py() >= 0 else {}
        return {"type": "numeric", **before, "transform": "standardize"}

    def _names(self, name: str, values: pa.Array, distinct: int) -> bool:
        """Whether whole numbers are codes for sure: called so, few, or far above 0."""
        return self._is_called_code(name) or distinct <= _COUNTS or pc.min(values).as_py() > 1

    def _is_called_code(self, name: str) -> bool:
        if re.search(r"id$", re.sub(r"[^a-z]", "", name.lower())):
            return True
        return any(name in self.events.named(role) for role in ("user", "item"))
