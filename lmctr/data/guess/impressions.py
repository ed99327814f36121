"""What the columns of one file probably are where each row is an ad of an impression: which impression, what puts its ads in order, what they earn, and the
fields of the user and of the ads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.compute as pc

from lmctr.data.features.times import time_keys
from lmctr.utils.arrow import is_number, is_text

from .found import LogGuess
from .sample import is_called_label
from .table import TableGuesser, sampled

_IN_ORDER = 0.05  # correlation of an order with the eCPM inside impressions, from which on its sign tells which end is the best
_COMES_AGAIN = 0.2  # share of the rows that different lists may be to be categories
_WANTED = {
    "impression": "ids that several rows share",
    "rank or position": "numbers that order the ads of an impression: a rank index, the higher the better, or a position, 1 for the best",
    "ecpm": "revenue per mille, numbers from 0; of grades without revenue the column of --rank once more",
}


def guess_impressions(
    events: str | os.PathLike, given: Mapping[str, str] | None = None, names: Sequence[str] | None = None
) -> LogGuess:
    """The keys of a schema of impressions (see [`~lmctr.data.impressions.load`]) from the first rows of their file.

    Args:
        events: path of the file. given: columns that the user named, by `impression`, `rank` or `position`, `ecpm`, `user`, `time`, `weight`.
        names: of the columns of a file without a line of them.

    Returns:
        The guess; its `schema` has `events` (path and how it is read), `columns`, `user_fields` and `ad_fields`.

    Raises:
        FileNotFoundError, ValueError: as [`sample_file`] does; no column looks like one of these, with what to state.
    """
    given = dict(given or {})
    of_grades = "ecpm" in given and given["ecpm"] == given.get("rank")
    if of_grades:
        del given["ecpm"]  # no column is two things elsewhere
    guesser = _ImpressionGuesser(sampled("events", events, names), None, None, given, None)
    guesser.of_grades = of_grades
    return guesser.run()


class _ImpressionGuesser(TableGuesser):
    of_grades = False  # whether the rank index is the eCPM too

    def run(self) -> LogGuess:
        if wrong := next((role for role in ("item", "label") if role in self.given), None):
            raise ValueError(
                f"--{wrong} {self.given[wrong]}: impressions have none; what orders their ads is --rank or --position, what they earn --ecpm"
            )
        if {"rank", "position"} <= {*self.given}:
            raise ValueError("--rank and --position: give one of them, both say how the ads are ordered")
        self._say_what_samples_lack()
        columns = self.columns
        schema = self.found.schema = {
            "events": {"path": str(self.events.path), **self.events.reading},
            "columns": columns,
        }
        several = [name for name in self._named("impression") if 0 < self.events.distinct.get(name, 0) < self._rows]
        columns["impression"] = self._role("impression", several, "by its name")
        if self.of_grades:
            columns["rank"] = columns["ecpm"] = self._take("rank", self.given["rank"], "the eCPM too")
        else:
            columns["ecpm"] = self._role("ecpm", self._numbers_from_0("ecpm"), "by its name: revenue per mille")
            self._order(columns)
        if "weight" in self.given:
            columns["weight"] = self._take("weight")
        self._moment(schema)
        time = schema.get("time")
        if time is not None and "time" not in self.given and self._differs(time):
            self.found.guesses.pop()
            self._say(
                "left out",
                time,
                "a time of each ad, no time of the impression: these are parted at random",
                sure=False,
            )
            del schema["time"]
            schema.pop("time_format", None)
        users = [name for name in self.events.named_ids("user") if name in self.left and not self._differs(name)]
        user = self.given.get("user") or next(iter(users), None)
        for name in (user, schema.get("time")):
            if name is not None and self._differs(name):
                raise ValueError(
                    f"{self.events.path}: the column {name!r} differs within an impression; it is to be one of the impression"
                )
        if user is not None:
            columns["user"] = user
            self._say("user", user, "as stated" if "user" in self.given else "by its name")
        sides: dict[str, list[dict[str, Any]]] = {"user_fields": [], "ad_fields": []}
        for name in self.left:
            if is_called_label(name) or name in self._others_in_order:
                told = "what happened once the ads were shown" if is_called_label(name) else "another order of the ads"
                self._say("left out", name, f"by its name {told}")
                continue
            side = "ad_fields" if self._differs(name) else "user_fields"
            fields = self._fields(name)
            # without bins: see model_cards/ad_retrieval_losses.md
            fields = [field for field in fields if field.get("transform") != "quantile"] or fields
            if side == "ad_fields" and any(field["type"] not in ("categorical", "numeric") for field in fields):
                fields = self._of_lists(name)
            sides[side] += fields
        if not sides["ad_fields"]:
            raise ValueError(f"{self.events.path}: no column differs within an impression, so that no ad has a field")
        if "time" in schema:
            when = time_keys(schema.pop("time"), schema.pop("time_format", None))
            columns["time"] = when if len(when) > 1 else when["column"]
        schema |= sides
        return self.found

    def _of_lists(self, name: str) -> list[dict[str, Any]]:
        """Fields of an ad's column of lists, which were told as such: of texts that come again one for the whole text."""
        self.found.guesses.pop()
        values, distinct = self.events.values(name), self.events.distinct.get(name, self._rows)
        if not is_text(values.type) or distinct > _COMES_AGAIN * self._rows:
            self._say("left out", name, "lists, which fields of ads cannot hold", sure=False)
            return []
        self._say(
            "field", name, f"{distinct:,} lists, each read as one category: fields of ads hold no lists", sure=False
        )
        return [self._category(name, values)]

    @property
    def _rows(self) -> int:
        return self.events.table.num_rows

    @cached_property
    def _by_impression(self) -> tuple[np.ndarray, np.ndarray]:
        """(R,) the rows with those of an impression together, and the places there of all first rows but the first one."""
        codes = self.events.codes(self.columns["impression"]).fill_null(-1).to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable")
        return order, np.flatnonzero(np.diff(codes[order])) + 1

    @cached_property
    def _others_in_order(self) -> list[str]:
        return [*self._named("position"), *self._named("rank")]

    def _named(self, role: str) -> list[str]:
        return [name for name in self.events.called(role) if name in self.left]

    def _numbers_from_0(self, *roles: str) -> list[str]:
        names = [name for role in roles for name in self._named(role)]
        numbers = [name for name in names if is_number(self.events.table[name].type)]
        return [
            name for name in numbers if len(self.events.values(name)) and pc.min(self.events.values(name)).as_py() >= 0
        ]

    def _role(self, role: str, names: list[str], why: str) -> str:
        if role not in self.given and not names:
            raise self._absent(role, _WANTED[role])
        return self._take(role, *names[:1], why)

    def _order(self, columns: dict[str, Any]) -> None:
        """What puts the ads in order. Where a guess: which end is the best follows from the eCPM, since `rank` is said of both."""
        stated = next((role for role in ("rank", "position") if role in self.given), None)
        if stated is not None:
            columns[stated] = self._take(stated)
            return
        names = self._numbers_from_0("position", "rank")
        if not names:
            self._role("rank or position", [], "")
        agrees = self._agreement(names[0], columns["ecpm"])
        role = (
            "position"
            if agrees < -_IN_ORDER or (agrees <= _IN_ORDER and names[0] in self.events.called("position"))
            else "rank"
        )
        end = "1 is the best" if role == "position" else "the higher the better"
        why = f"{end}: {'its name says so' if abs(agrees) <= _IN_ORDER else 'there the eCPM is higher'}"
        columns[role] = self._take(role, names[0], why, abs(agrees) > _IN_ORDER)

    def _agreement(self, *names: str) -> float:
        """Mean correlation of the ranks of two columns inside impressions."""
        inside = [
            self.events.table[name].combine_chunks().cast("double").to_numpy(zero_copy_only=False) for name in names
        ]
        found = []
        for own in np.split(*self._by_impression)[:1000]:
            first, second = (np.unique(values[own], return_inverse=True)[1] for values in inside)
            if first.std() and second.std():
                found.append(np.corrcoef(first, second)[0, 1])
        return float(np.mean(found)) if found else 0.0

    def _differs(self, name: str) -> bool:
        """Whether a column has several values in an impression."""
        if name not in self.events.distinct:  # lists
            values = np.unique([str(own) for own in self.events.table[name].to_pylist()], return_inverse=True)[1]
        else:
            values = self.events.codes(name).fill_null(-1).to_numpy(zero_copy_only=False)
        order, starts = self._by_impression
        changes = np.flatnonzero(np.diff(values[order])) + 1
        return not np.isin(changes, starts).all()
