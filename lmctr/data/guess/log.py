"""What the columns of raw files probably are where they are a log: the schema, guessed from samples, with the reason for every guess.

Names come first, values decide: a column is taken for the time only if it holds times, for the items' file's key only if events' items
stand in it. What is not sure says so, and callers may ask (`lmctr init`) or let the user state it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.logs.schema import OWN_NAMES, TimeSpec
from lmctr.data.logs.table import POSITIVE_WORDS
from lmctr.data.logs.times import EARLIEST, seconds_of
from lmctr.statistics import STATISTIC_SETS
from lmctr.utils.arrow import is_number, is_text
from lmctr.utils.words import words_of

from .base import VECTORS, Guesser, are_vectors, plain_ids, share_in_order, told_after
from .found import TEXT_BOUND, Ask, LogGuess, NoLogError, NotToldError
from .sample import ROLES, FileSample, is_called_label

_TITLES = ("title", "name", "headline", "itemname", "productname", "caption", "subject", "text", "description")
_ENDS_OF_TITLES = ("title", "headline", "caption", "text")  # app_title; brand_name is a category
_NUMBERS = ("price", "cost", "amount", "weight", "length", "width", "height", "size")
_ACTIONS = (
    "click",
    "clicked",
    "like",
    "liked",
    "yes",
    "positive",
    "buy",
    "bought",
    "purchase",
    "order",
    "cart",
    "addtocart",
    "add_to_cart",
    "transaction",
    "share",
)  # that count as clicks, the surest first
_OTHER_ACTIONS = {
    "dislike", "fav", "favorite", "favourite", "impression", "pageview", "page_view", "play", "pv", "remove_from_cart", "removefromcart", "search",
    "skip", "view", "viewed", "wishlist",
}  # fmt: skip
# items, and texts for each, from which on those with blanks are titles, whatever they are called
_FEWEST_TITLES, _ONE_EACH = 20, 0.9
_CODES = 256  # distinct whole numbers, up to which a column of them counts as a category
_SCENARIOS = 50
# what tells of users and items, and what is counted of them
_OF_OTHERS = {
    "age", "city", "clicks", "conversions", "country", "gender", "impressions", "interest", "region", "sex", "spent", "state", "views", "zip",
}  # fmt: skip
_OF_ITEMS = {"album", "albums", "artist", "artists", "brand", "category", "genre", "title"}
_STAYS = 0.9  # share of rows with an item's value of the row before, from which on a column describes the item
_CLOSER = 0.05  # how much larger that share is than the one of users where it goes with the item
_IDS = {"item": "item_id", "user": "user_id"}  # in the tables that a log keeps of both
_STATISTICS = {name for own in ("full", "repeats", "factors") for name in STATISTIC_SETS[own]}
_DAY = 86_400
_TIMES = "unix seconds, milliseconds, ISO times"
_ROWS = " or, where rows stand in their order, their numbers in a column called time"
_LONG = 40  # signs of a text on average, above which it is no name
_FEW = 0.01  # share of rows that ids which no name tells may lack
_VISITS, _LONGER = 20, 10  # of a user at most, on average; and how much longer than a visit users stay


def guess_log(
    events: FileSample,
    items: FileSample | None = None,
    users: FileSample | None = None,
    given: Mapping[str, str] | None = None,
    ask: Ask | None = None,
    negatives: int | None = None,
) -> LogGuess:
    """The schema of a log from samples of its files.

    Args:
        events: of the file of events: rows of a user, an item, a time and a label.
        items: of a file with a row per item. users: likewise of users.
        given: columns that the user named, by `user`, `item`, `time`, `label`, `weight`; they are not guessed. A label of other values than 0 and 1 may be
            `COLUMN=VALUE`, the value that counts as a click, or a column of numbers with a bound: `COLUMN>=NUMBER`, `>`, `<=`, `<`.
        ask: asked where a guess is not sure: a question, the accepted answers, the guess; returns the answer. None keeps guesses.
        negatives: of a file whose rows are clicks alone: items to draw beside each.

    Raises:
        ValueError: nothing looks like a user, an item, a time ([`NoLogError`]) or a label; names what to state.
    """
    return _LogGuesser(events, items, users, dict(given or {}), ask, negatives=negatives).run()


class _LogGuesser(Guesser):
    def __init__(self, *of_all: Any, negatives: int | None):
        super().__init__(*of_all)
        self.negatives = negatives
        # what columns of a log's samples are called already, and what these are
        self.taken = dict.fromkeys(OWN_NAMES, "one of every log") | dict.fromkeys(_STATISTICS, "a statistic")

    def run(self) -> LogGuess:
        self._say_what_samples_lack()
        if "weight" in self.given:
            self.columns["weight"] = self._take("weight")
        self.columns["time"] = self._time()
        self.columns["item"] = self._key("item")
        self.columns["user"] = self._key("user")
        self._leave_out_rows()
        unsure = {guess.role for guess in self.found.guesses if not guess.sure}
        if {"item", "user"} <= unsure and (self.found.items, self.found.users) == (None, None):
            raise NoLogError(
                f"{self.events.path}: no column is called like a user, and none like an item; state them: --user COLUMN --item COLUMN.{self._otherwise()}",
                "--user",
                "--item",
            )
        self._reactions()
        keys = ("user", "item", "time", "label", "feedback", "feedback_values", "weight", "extra_labels")
        self.columns = {key: self.columns[key] for key in keys if key in self.columns}
        schema = self.found.schema
        schema["events"] = {"path": str(self.events.path), **self.events.reading}
        schema["columns"] = self.columns
        self.taken |= {"weight": "that of samples"} if "weight" in self.columns else {}
        schema |= {} if self.negatives is None else {"negatives": self.negatives}
        of_items, of_users, context = self._rest()
        if context:  # before the others, which give way: requests name it
            self._context(context)
        if self.found.items is not None:
            schema["catalogue"] = self._attributes("items", self.found.items, self.columns["item"])
        elif of_items:
            schema["catalogue"] = {"columns": self._described("item", self.events, of_items)}
        if self.found.users is not None:
            schema["users"] = self._attributes("users", self.found.users, self.columns["user"])
        elif of_users:
            schema["users"] = {"columns": self._described("user", self.events, of_users)}
        if self.found.items is not None and (lacking := self._lacking()):
            schema["missing_items"] = "empty"
            self._say("items missing_items", "empty", f"{lacking:.1%} of the events have an item without a row there")
        for role in self.dropped:
            own = self.columns[role]
            self.columns[role] = {**(own if isinstance(own, dict) else {"column": own}), "missing": "drop"}
        return self.found

    def _otherwise(self) -> str:
        files = {"item": "item" in self.given, "items": self.found.items, "users": self.found.users}
        without = [f"--{name}" for name, there in files.items() if there]
        without = f", without {' and '.join(without)}" if without else ""
        return f" Clicks without users, items or times are a table: lmctr train {self.events.path} --model deepfm{without}"

    # ---- the four columns that every log has ----------------------------------------------------------------------

    def _describes_id(self, name: str) -> bool:
        """Whether a column has one value for each user or each item, as these are called or stated."""
        keys = [self.given.get(role) or next(iter(self.events.called(role)), name) for role in ("user", "item")]
        codes = (self.events.codes(key) for key in keys if key != name)
        return any(self._follows(own, self.events.table[name].combine_chunks()) for own in codes)

    def _time(self) -> Any:
        free = self._free("time")
        named = [name for name in self.events.named("time") if name in free]
        order = [*named, *(name for name in free if name not in named)]
        kinds = {name: self._time_of(name) for name in order}
        stated = self.given.get("time")
        for name in order if not any(kinds.values()) else {stated} & {*order}:
            kinds[name] = kinds[name] or self._since_start(name)
        if stated is not None and kinds[stated] is None:
            raise ValueError(f"--time {stated}: {self._no_times(stated)}; others need `unit` or `format` in a schema")
        good = [name for name in order if kinds[name] is not None]
        if good and stated is None:
            good = [name for name in good if len(pc.unique(self.events.values(name))) > 1]
            if not good:
                raise self._absent("time", f"{_TIMES}, more than one")
        if not good:
            if called := [name for name in free if name in self.events.called("time") or self._dates(name)]:
                told = f"{self.events.path}: {called[0]} {self._no_times(called[0])}. State another column: --time COLUMN.{self._otherwise()}"
                raise NoLogError(told, "--time")
            raise self._absent("time", _TIMES, _ROWS)
        # stable; when an item was released is no time of an event, and what most rows lack tells of few
        half = self.events.table.num_rows / 2
        good.sort(key=lambda name: (self._describes_id(name), self.events.table[name].null_count > half))
        best, days = self._with_hours(good, kinds)
        sure = best != good[0] or best in self.events.called("time") or len(good) == 1
        column = self._take("time", best, f"{kinds[best][0]}{days}", sure)
        if kinds[column] is None:
            raise ValueError(
                f"{self.events.path}, column {column!r}: {self._no_times(column)}; others need `unit` or `format` in a schema"
            )
        return {"column": column, **kinds[column][1]} if kinds[column][1] else column

    def _since_start(self, name: str) -> tuple[str, dict[str, str]] | None:
        """Numbers of a column that is called time, or stated, in whose order the rows stand: what counts from the first event on tells who was before whom."""
        values = self.events.values(name)
        is_called = name in [*self.events.called("time"), self.given.get("time")]
        if not is_called or not is_number(values.type) or share_in_order(values) < 1:
            return None
        low, high = pc.min_max(values).values()
        if low.as_py() < 0 or high.as_py() >= EARLIEST:
            return None
        return f"{low} to {high}, in the order of the rows and of no known day: read as seconds of 1970", {}

    def _with_hours(self, names: list[str], kinds: Mapping[str, tuple[str, dict[str, str]] | None]) -> tuple[str, str]:
        """The first column of times; where it holds days alone, the one that tells the hours of these days, or what is said of days."""
        days = None
        for name in names:
            spec = TimeSpec.model_validate({"column": name, **kinds[name][1]})
            try:
                seconds = seconds_of(self.events.table[name], spec, str(self.events.path))
            except ValueError:  # values that are missing or no times, which is said where the column is taken
                seconds = None
            has_hours = seconds is not None and (seconds % _DAY != 0).any()
            if days is None and (seconds is None or has_hours):
                break
            if has_hours and (np.abs(seconds - days) < 2 * _DAY).all():
                return name, ""
            days = seconds if days is None else days
        alone = "; days alone: no history holds what a user did before on the same day"
        return names[0], "" if days is None else alone

    def _key(self, role: str) -> str:
        """The user or the item: ids that come again."""
        rows = self.events.table.num_rows
        good = [
            name
            for name in self._free(role)
            if (pa.types.is_integer(kind := self.events.table[name].type) or is_text(kind))
            and self.events.distinct[name] > 1
            and not (role == "item" and self._is_prose(name))
        ]
        met = [name for name in good if 10 < self.events.distinct[name] < rows / 2]  # ids that come again
        if role in self.given:
            return self._take(role, self.given[role], "")
        very = self.events.called(role)
        fractions = [n for n in self._free(role) if n in very and pa.types.is_floating(self.events.table[n].type)]
        # 12.0, as where some were missing
        good += [n for n in fractions if self._is_called_code(n, self.events.values(n))]
        named = [name for name in self.events.named_ids(role) if name in good and (name in very or name in met)]
        if named:
            lacks = {name: self.events.table[name].null_count / rows for name in named}
            best = min(named, key=lambda name: lacks[name] > 0.5)  # a session where most visitors are not known
            if self.events.distinct[best] > 0.9 * rows:  # customer_id of each order, beside customer_unique_id
                best = next((name for name in named if name in met and {*words_of(name)} > {*words_of(best)}), best)
            why = f"by its name; {self.events.distinct[best]:,} different ones"
            if lacks[named[0]] > 0.5 and best != named[0]:
                why += f"; {named[0]} has no value on {lacks[named[0]]:.1%} of the rows"
            return self._take(role, best, why)
        other = self.events.named("user" if role == "item" else "item")
        described = self.found.items if role == "item" else self.found.users
        if described is not None:
            keys = [name for name, count in described.distinct.items() if count == described.table.num_rows]
            shares = {name: self._shares(described, name, keys) for name in met if name not in other}
            held = {name: max(own.values(), default=0.0) for name, own in shares.items()}
            found = {name: held[name] * self.events.distinct[name] for name in held if held[name] > 0.5}
            if found:  # of two, the one with more of the file's: small numbers stand among many ids
                best = max(found, key=lambda name: (name in keys, found[name]))
                sure = best in keys or found[best] > described.table.num_rows / 20
                return self._take(role, best, f"{held[best]:.1%} of its ids stand in {described.path}", sure)
        other = {*other, *(name for told in ("label", "feedback_values") for name in self.events.named(told))}
        repeated = [name for name in met if self.events.table[name].null_count <= _FEW * rows]
        repeated = [name for name in repeated if name not in other and _OF_OTHERS.isdisjoint(words_of(name)[-1:])]
        repeated = [name for name in repeated if not self._are_times(name)]  # the days of a log come again too
        repeated = [name for name in repeated if not self._is_told(name)]
        if role == "item":  # an invoice or a basket is of one user
            repeated = [name for name in repeated if not self._is_of_one_user(name)] or repeated
        else:
            repeated = [name for name in repeated if _OF_ITEMS.isdisjoint(words_of(name)[-1:])]
        if not repeated:
            raise self._absent(role, "ids that come again")
        best = max(repeated, key=lambda name: self.events.distinct[name])
        best = best if role == "item" else self._longer_lived(best, repeated)
        return self._take(role, best, f"{self.events.distinct[best]:,} ids that come again", sure=False)

    def _is_prose(self, name: str) -> bool:
        """Whether texts are long and mostly others on each row: what was written of an item, perhaps, and no name of one."""
        values = self.events.values(name)
        if not is_text(values.type) or self.events.distinct[name] <= len(values) / 2:
            return False
        return pc.mean(pc.utf8_length(values)).as_py() > _LONG and _have_blanks(values)

    def _are_times(self, name: str) -> bool:
        """Whether texts, or numbers whose name says so, are times; of other numbers ids may look like some."""
        may_be = is_text(self.events.table[name].type) or name in self.events.named("time")
        return may_be and self._time_of(name) is not None

    def _is_of_one_user(self, name: str) -> bool:
        """Whether all rows of each id of a column are of one user, as far as several are known, and users have several of them."""
        users = [self.columns.get("user") or self.given.get("user") or next(iter(self.events.called("user")), None)]
        if users[0] in (None, name) or not 1 < self.events.distinct[users[0]] < self.events.distinct[name]:
            return False
        ids, of_user = (
            column.combine_chunks() for column in self.events.table.select([name, *users]).drop_null().columns
        )
        return self._follows(pc.dictionary_encode(ids).indices, of_user)

    def _names_visits(self, name: str) -> bool:
        """Whether a column names invoices, sessions and the like, of which each is of one user."""
        values = self.events.values(name)
        is_id = self._is_called_code(name, values) or (is_text(values.type) and not _have_blanks(values))
        return is_id and self._is_of_one_user(name)

    def _leave_out_rows(self) -> None:
        """Rows without an item, a user or a time, such as searches and starts of an app, are none of the log: what else is guessed is guessed of the
        others."""
        table = self.events.table
        names = {role: name for role in ("item", "user", "time") if table[name := self._column_of(role)].null_count}
        self.dropped = [*names]
        for role, name in names.items():
            count = table[name].null_count
            share = f"{'' if self.events.whole else 'about '}{count / table.num_rows:.1%}"
            says = f"{count:,} rows ({share}) have none, and are left out (missing: drop)"
            self._say(f"no {role}", name, f"{says}{self._told_by(name)}")
        if names:
            rows = table.filter(reduce(pc.and_, (table[name].is_valid() for name in names.values())))
            if not rows.num_rows:
                told = " and ".join(f"{name!r} (--{role})" for role, name in names.items())
                raise ValueError(f"{self.events.path}: no row has a value of {told}; state other columns")
            self.events = self.found.events = replace(self.events, table=rows)

    def _column_of(self, role: str) -> str:
        """The column of a role, whatever else the schema says of it."""
        own = self.columns[role]
        return own if isinstance(own, str) else own["column"]

    def _told_by(self, key: str) -> str:
        """Which value of another column the rows without an id have, where that tells them: `search`."""
        absent = self.events.table[key].is_null()
        for name in self.left:
            if 1 < self.events.distinct.get(name, 0) <= _SCENARIOS:
                values = self.events.table[name]
                without, others = (pc.unique(values.filter(mask)).to_pylist() for mask in (absent, pc.invert(absent)))
                if not {*without} & {*others}:
                    return f": those with {name} {', '.join(map(repr, without))}"
        return ""

    def _longer_lived(self, visit: str, names: list[str]) -> str:
        """The column of users where `visit` holds their visits: each of these is of one user, who stays far longer."""
        of_visit = self.events.codes(visit)
        for name in sorted(names, key=self.events.distinct.get, reverse=True):
            values = self.events.table[name].combine_chunks()
            few = self.events.distinct[name] * _VISITS < self.events.distinct[visit]
            if name != visit and not few and self._follows(of_visit, values):
                return name if self._span(name) > _LONGER * self._span(visit) else visit
        return visit

    def _timed(self, **names: str) -> pa.Table:
        """Rows of some columns, without missing values, and their times in seconds."""
        time = self.columns["time"]
        spec = TimeSpec.model_validate({"column": time} if isinstance(time, str) else time)
        rows = {key: self.events.table[name] for key, name in (names | {"time": spec.column}).items()}
        table = pa.table(rows).drop_null()
        return table.set_column(len(names), "time", pa.array(seconds_of(table["time"], spec, str(self.events.path))))

    def _stays(self, name: str, role: str) -> float:
        """Share of the rows with a column's value of the row before of the same item, or user."""
        table = self._timed(id=self.columns[role], value=name).sort_by([("id", "ascending"), ("time", "ascending")])
        values = np.array(list(map(str, table["value"].to_pylist())))  # lists too
        ids = table["id"].to_numpy()
        again = ids[1:] == ids[:-1]
        return float((values[1:] == values[:-1])[again].mean()) if again.any() else 0.0

    def _span(self, name: str) -> float:
        """Seconds from the first to the last event of an id that comes again, in the middle of all."""
        pairs = self._timed(id=name)
        ends = pairs.group_by("id").aggregate([("time", "min"), ("time", "max"), ("time", "count")])
        ends = ends.filter(pc.greater(ends["time_count"], 1))
        return float(np.median(pc.subtract(ends["time_max"], ends["time_min"]).to_numpy()))

    # ---- what the user did ----------------------------------------------------------------------------------------

    def _reactions(self) -> None:
        """The label, and the other columns that tell what came of an event: they are never context."""
        binary = {name: words for name in self.left if (words := self._yes(name)) is not None}
        binary = dict(
            sorted(binary.items(), key=lambda own: any(self._is_of(role, own[0]) for role in ("user", "item")))
        )
        named = {role: [n for n in self.events.named(role) if n in self.left] for role in ROLES}
        graded = [n for n in named["feedback_values"] if n not in binary and is_number(self.events.table[n].type)]
        graded = [n for n in graded if not self._is_of("item", n)]  # what others gave it before
        actions = [n for n in named["feedback"] if n not in binary and 1 < self.events.distinct[n] <= 20]
        actions = actions or [n for n in self.left if n not in binary and self._are_actions(n)]
        if "label" in self.given and self.given["label"] not in binary:
            graded = [self.given["label"]] if is_number(self.events.table[self.given["label"]].type) else graded
            actions = [self.given["label"]] if is_text(self.events.table[self.given["label"]].type) else actions
            binary = {}
        called = [*named["label"], *filter(is_called_label, binary)]
        labels = [name for name in [*called, *binary] if name in binary]
        if self.negatives is not None:
            if told := [name for name in labels if name in named["label"]]:
                raise ValueError(
                    f"--negatives {self.negatives}: {self.events.path} has a label, {told[0]} ({self._held(told[0])}), and negatives are drawn "
                    "where every row is a click; leave it out"
                )
            self._say("label", "", f"every row a click; {self.negatives} items are drawn beside each")
        elif labels and ("label" in self.given or not self._is_outdone(labels[0], graded)):
            is_last = labels[0] == self.events.table.column_names[-1]  # where labels often stand
            sure = labels[0] in called or (is_last and len(binary) == 1)
            name = self._take("label", labels[0], self._rate(labels[0], binary[labels[0]]), sure)
            self.columns["label"] = self._rule(name, binary.get(name) or self._yes(name))
            if (
                self.click is not None
                and 2 < self.events.distinct[name] <= 20
                and is_text(self.events.table[name].type)
            ):
                self.columns["feedback"] = name  # which of the other values it was, histories may read
                self._say("feedback", name, f"{self.events.distinct[name]} kinds, read in histories")
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
                "0 and 1, yes and no, or numbers such as stars, whose upper half are clicks",
                "; where every row is a click, --negatives 2 draws items beside each",
            )
        if graded and graded[0] in self.left:
            self.columns["feedback_values"] = self._take(
                "feedback_values", graded[0], "by its name; read in histories only"
            )
        # two kinds, where they stand beside events without a label
        actions = actions or [n for n in named["feedback"] if n in binary and self._goes_beyond(n)]
        if actions and actions[0] in self.left and "feedback" not in self.columns:
            self.columns["feedback"] = self._take("feedback", actions[0], "by its name; read in histories only")
        weight = [n for n in self.events.called("weight") if n in self.left and is_number(self.events.table[n].type)]
        weight = [n for n in weight if not (self._is_of("item", n) or self._is_of("user", n))]  # kilograms
        if weight and "weight" not in self.columns:
            self.columns["weight"] = self._take("weight", weight[0], "by its name")

    def _goes_beyond(self, name: str) -> bool:
        """Whether a column stands on rows that have no label."""
        label = self.columns.get("label")
        label = label["column"] if isinstance(label, dict) else label
        table = self.events.table
        return label not in (None, name) and table[name].null_count < table[label].null_count

    def _is_of(self, role: str, name: str) -> bool:
        """Whether a column has one value for each user or each item, and is not stated to be the label."""
        ids = self.events.codes(self.columns[role])
        return name != self.given.get("label") and self._follows(ids, self.events.table[name].combine_chunks())

    def _is_outdone(self, label: str, graded: list[str]) -> bool:
        """Whether a column of two values is no label beside one of grades: `verified_purchase` beside `rating`; `ad_click` is."""
        has_grades = not {*graded}.isdisjoint(self.events.called("grade"))
        return has_grades and label not in self.events.called("label") and not is_called_label(label)

    def _are_actions(self, name: str) -> bool:
        """Whether all values of a column are words for what users do, whatever it is called."""
        if not is_text(self.events.table[name].type) or not 1 < self.events.distinct[name] <= 20:
            return False
        return {*map(_action, pc.unique(self.events.values(name)).to_pylist())} <= {*_ACTIONS, *_OTHER_ACTIONS}

    def _label_from_actions(self, name: str) -> None:
        words = sorted(map(str, pc.unique(self.events.values(name)).to_pylist()))
        known = [word for action in _ACTIONS for word in words if _action(word) == action]
        # of clicks, carts and orders all are clicks: the others tell more
        deeper = [word for word in known if not _action(word).startswith("click")] if len(known) == len(words) else []
        chosen = next(iter(deeper or known), None)
        if self.ask is not None:
            chosen = self.ask(f"which value of {name} counts as a click?", words, chosen or words[0])
        if chosen is None:
            likely = next((word for word in words if word.strip().lower() in POSITIVE_WORDS), words[0])
            raise NotToldError(
                f"{self.events.path}: column {name!r} tells what happened ({', '.join(words)}), none of which is known to be a click; "
                f"state it: --label {shlex.quote(f'{name}={likely}')}",
                "--label",
            )
        self._take("feedback", name, f"{len(words)} kinds: {', '.join(words)}")
        self.columns |= {"feedback": name, "label": {"column": name, "equals": chosen}}
        self._say("label", name, f"no column of 0 and 1: a click is {chosen!r}", sure=self.ask is not None)

    # ---- everything else --------------------------------------------------------------------------------------------

    def _rest(self) -> tuple[list[str], list[str], list[str]]:
        """The columns that are left, as those of the item, of the user and of the event itself; some are none of these."""
        time = self._column_of("time")
        yes = None if self.negatives is not None else self._clicks(self.columns["label"])
        codes = {role: self.events.codes(self.columns[role]) for role in ("item", "user")}
        of_items, of_users, context = [], [], []
        for name in self.left:
            values, distinct = self.events.table[name].combine_chunks(), self.events.distinct.get(name)
            per_item, per_user = (self._follows(codes[role], values) for role in ("item", "user"))
            if distinct is not None and distinct < 2:
                self._say("left out", name, "one value only")
            elif pa.types.is_temporal(values.type):
                self._say("left out", name, f"another time than {time}")
            elif per_item and self.found.items is None:
                of_items.append(name)
            elif per_user and self.found.users is None:
                of_users.append(name)
            elif not self._is_told(name) and (why := self._names_rows(name, values)):
                self._say("left out", name, why)
            elif self._names_visits(name):
                self._say("left out", name, "names visits, each of one user: those to come have other names")
            elif self._are_times(name):  # days, as texts or 20240301
                self._say("left out", name, f"another time than {time}")
            elif yes is None and (stays := self._stays(name, "item")) > self._stays(name, "user") + _CLOSER:
                if stays >= _STAYS and self.found.items is None:
                    of_items.append(name)  # of which the first row's value is read
                else:
                    self._say("left out", name, "goes with the item, and changes: nobody knows it of a drawn one")
            elif yes is not None and (why := told_after(values, yes, 0.95)) is not None:
                self._say("left out", name, why)
            else:
                context.append(name)
        return of_items, of_users, context

    def _is_told(self, name: str) -> bool:
        """Whether texts are amounts or lists, which name nothing, however many there are."""
        values = self.events.values(name)
        if not is_text(values.type):
            return False
        is_list = self.events.holds_literals(name) or self._separator(values, name.lower()) is not None
        return is_list or bool(self._numbers_of(values, name)[1])

    def _names_rows(self, name: str, values: pa.Array) -> str:
        """What is said of a column whose values name the rows that have one; of ids those too that hardly come again, and would be read as numbers."""
        distinct, known = self.events.distinct.get(name), values.drop_null()
        is_code = self._is_called_code(name, known)
        if distinct is None or distinct <= 50 or (pa.types.is_floating(values.type) and not is_code):
            return ""
        if distinct > 0.9 * len(known if is_code or is_text(values.type) else values):
            return "another value on (almost) every row"
        return f"{distinct:,} ids on {len(known):,} rows" if is_code and distinct > 0.5 * len(known) else ""

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
            self.columns["scenario"], self.taken["scenario"] = pages[0], "that of events"
            self._say("scenario", pages[0], f"by its name; {self.events.distinct[pages[0]]} places")
            names = [name for name in names if name != pages[0]]
        if names:
            self.columns["context"] = self._described("context", self.events, names)

    def _attributes(self, what: str, sample: FileSample, key: str) -> dict[str, Any]:
        """A file of items or users: which of its columns holds the ids of the events."""
        shares = self._shares(sample, key, sample.table.column_names)
        column = max(shares, key=lambda name: (sample.is_key(name, key), shares[name], name == key), default=None)
        self._say_id(what, sample, column, key, shares.get(column, 0.0))
        names = [name for name in sample.table.column_names if name != column]
        described = self._described(what.removesuffix("s"), sample, names)
        own = {"item" if what == "items" else "user": column} if column != key else {}
        return {"path": str(sample.path), **sample.reading, **own, "columns": described}

    def _described(self, what: str, sample: FileSample, names: list[str]) -> dict[str, Any] | list[str]:
        """The columns of a table with the keys that they need; the catalogue's title and the categories are noted."""
        start, described = {"item": "items ", "user": "users "}.get(what, "") if sample is not self.events else "", {}
        texts, longest = {}, {}
        for column in names:
            values, written = self._numbers_of(texts_read := sample.values(column), column)
            distinct = sample.distinct.get(column)
            name, called = self._own_name(what, column, names)
            plain = column.lower().replace("_", "")
            category = distinct is not None and distinct <= max(50, len(values) / 2)
            if not len(values) or (distinct is not None and distinct < 2 and len(values) > 1):
                self._say(f"{start}left out", column, "one value only" if len(values) else "empty")
                continue
            if are_vectors(values):
                self._say(f"{start}left out", column, VECTORS)
                continue
            described[name] = column
            if written:
                described[name], category = {"column": column, "type": "number", **written}, False
                why = f"numbers, written as {texts_read[0].as_py()!r}"
            elif is_text(values.type):
                separator = " " if column in sample.of_words and _few_words(values) else self._separator(values, plain)
                if sample.holds_literals(column):
                    described[name], why, category = {"column": column, "parse": "literal"}, "lists", True
                elif separator is not None:
                    described[name], why = (
                        {"column": column, "separator": separator},
                        f"lists, parted by {separator!r}",
                    )
                    category = True
                else:
                    why = f"{distinct:,} categories" if category else "texts"
                    if not category or self._is_title(what, column, values):
                        lengths = pc.utf8_length(values)
                        texts[name], longest[name] = pc.mean(lengths).as_py(), pc.max(lengths).as_py()
            elif (
                pa.types.is_integer(values.type)
                and (distinct > _CODES or plain in _NUMBERS)
                and not self._is_called_thing(column, values)
            ):
                described[name], why, category = {"column": column, "type": "number"}, "numbers", False
            elif pa.types.is_temporal(values.type):
                why, category = "times: no field, only prompts may read them", False
            else:
                category = category and (
                    not pa.types.is_floating(values.type) or self._is_called_thing(column, values)
                )
                why = f"{distinct:,} codes" if category else "numbers"
            if pa.types.is_nested(values.type):
                why, category = "lists", True
            if column in sample.mixed:
                why += "; texts and numbers mixed, read as texts"
                described[name] = {"column": column, "type": "text"} if described[name] == column else described[name]
            if category and described[name] == column and (is_text(values.type) or is_number(values.type)):
                # said, so that a later file in which the codes look otherwise gives the same ids
                described[name] = {"column": column, "type": "text" if is_text(values.type) else "integer"}
            if category and what in ("item", "user"):
                (self.found.item_categories if what == "item" else self.found.user_categories).append(name)
            self.taken[name] = f"a column of the {what}"
            self._say(f"{start}{what if not start else 'column'}", column, f"{why}{called}")
        if what == "item" and texts:
            known = [name for title in _TITLES for name in texts if name.lower().replace("_", "") == title]
            known += [name for end in _ENDS_OF_TITLES for name in texts if words_of(name)[-1:] == [end]]
            short = [name for name in texts if texts[name] <= 300]
            self.found.title = (known or sorted(short, key=texts.get, reverse=True) or [None])[0]
            if self.found.title in self.found.item_categories:
                self.found.item_categories.remove(self.found.title)
            is_long = texts.pop(self.found.title, None) is not None and longest[self.found.title] > TEXT_BOUND
            # it may be, later
            self.found.title_is_long = is_long or (self.found.title is not None and not sample.whole)
            if is_long:
                read = f"up to {longest[self.found.title]:,} characters; the recipe of texts reads {TEXT_BOUND} of each at most"
                self._say("items in prompt", self.found.title, read)
            # one text for each of few items is a category, which the prompt reads whole, unless it is long
            categories = self.found.item_categories
            categories[:] = [name for name in categories if longest.get(name, 0) <= TEXT_BOUND]
            if texts := [name for name in texts if name not in categories]:
                marks = " ".join(f"{{{name}:.{TEXT_BOUND}}}" for name in texts)
                read = f"the recipe of texts does not read {'it' if len(texts) == 1 else 'them'}; {marks} in data.prompt.item would, {TEXT_BOUND} characters of each at most"
                self._say("items not in prompt", ", ".join(texts), read)
        return list(described) if all(name == spec for name, spec in described.items()) else described

    def _is_title(self, what: str, column: str, values: pa.Array) -> bool:
        """Whether few texts are titles: by their column's name, by its end where items mostly have one each, by blanks where (almost) all have."""
        if column.lower().replace("_", "") in _TITLES:
            return True
        items = min(len(values), self.events.distinct[self.columns["item"]])
        share = pc.count_distinct(values).as_py() / items if what == "item" else 0.0
        ends = not {*words_of(column)[-1:]}.isdisjoint(_ENDS_OF_TITLES)
        return (ends and share > 0.5) or (items > _FEWEST_TITLES and share > _ONE_EACH and _have_blanks(values))

    def _own_name(self, what: str, column: str, others: list[str]) -> tuple[str, str]:
        """What a log calls a column, beside all others that its samples as a table have, and what is said of a name that is not the column's."""
        if column not in self.taken:
            return column, ""
        is_id = column == _IDS.get(what)
        name = f"{'row' if is_id or what == 'context' else what}_{column}"
        while name in self.taken or name in others:
            name += "_"
        return name, f"; is called {name!r}: {column!r} {'are the ids' if is_id else f'is {self.taken[column]}'}"

    def _lacking(self) -> float:
        """Share of the sampled events whose item the items' file lacks; 0 where that file was not read to its end."""
        items, spec = self.found.items, self.found.schema["catalogue"]
        if not items.whole:
            return 0.0
        known = pc.unique(plain_ids(items.values(spec.get("item", self.columns["item"]))))
        found = pc.is_in(plain_ids(self.events.values(self.columns["item"])), value_set=known)
        return 1.0 - pc.mean(found.cast(pa.int8())).as_py()


def _action(word: str) -> str:
    word = word.lower()
    return word if word in _ACTIONS else word.removesuffix("s")  # carts, clicks and orders


def _have_blanks(texts: pa.Array) -> bool:
    return pc.any(pc.match_substring(pc.utf8_trim_whitespace(texts), " ")).as_py()


def _few_words(values: pa.Array) -> bool:
    """Whether texts are made of words that come again, as lists of categories are, and titles are not."""
    words = pc.list_flatten(pc.split_pattern(values, " "))
    return pc.count_distinct(words).as_py() <= max(50, len(words) / 20)
