"""The statistics: one row each, their named sets, and what of them a log can give.

A statistic aggregates one signal of the events of one key. Keys: the user, the item, and the user together with one category of the item
(one value of a catalogue column). Signals of an event: its `label`; its graded `value` (stars, watch share); its `residual`, which is
the label less what was to be expected, and its `value_residual`, the same of the graded value; whether it is a `click`, where there is nothing else. What was to be expected is the smoothed mean so
far of the other side: of the item for the statistics of users and of categories, of the user for those of items.

What a log tells of the moment of an event itself (`log.context`: position, device, price) is read by the same door: `context:price` is the number,
`context:device=phone` 1 for this value and 0 for others. So is the scenario, of a log that has several (the set `scenario`): `context:@scenario=home`.

Users who come back to items have statistics with this very item as well: those of categories, where each item is one (the set `repeats`).

What a user thought of other items says something of this one where other users thought alike of both (the set `factors`, see
`lmctr.statistics.factors`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.utils.arrow import is_list, is_number, is_text
from lmctr.utils.suggest import did_you_mean
from lmctr.utils.words import THINGS, ends_in_id, words_of

USER_EVENTS, USER_DAYS = (2, 6, 20, 60), (1, 30)
ITEM_EVENTS, ITEM_DAYS = (5, 20), (30, 365)
"""Half-lives of the fading means."""
MAX_CATEGORIES = 1000
"""A column of the catalogue that holds texts, lists of them or codes (whole numbers under a name as `kind_id` or `brand`) is a category where it has 2 to so
many different values, and five items a value or more. A column of lists named `genres` is one however many it has."""
MAX_COLUMNS = 3
"""Of category columns `genres`, then the catalogue's first of up to `FEW_CATEGORIES` texts, then its first of others; of numeric ones the first."""
FEW_CATEGORIES = 100
_NAMED = THINGS | {
    "aisle",
    "class",
    "code",
    "department",
    "genre",
    "group",
    "kind",
    "section",
    "skill",
    "topic",
    "type",
}


@dataclass(frozen=True)
class Statistic:
    """One statistic.

    Attributes:
        name: in recipes, processors and tables.
        family: whose events it counts: "user", "item", "cross" (the user's, by category of the item), "time" or "context" (none).
        transform: for linear and neural models: "none", "log1p" or "logit".
        missing: where it is NaN; empty: nowhere.
        aggregation: "mean" (smoothed), "events" and "days" (fading mean, half-life `span`), "count", "fading_count", "last" (mean of the last
            `span`), "since_last", "since_first", "session_count", "session_mean", "factors", or the name of a statistic of its own.
        signal: what it aggregates.
        span: half-life or number.
        column: catalogue column of a cross statistic by category. reduce: "mean", "max" or "min" over the item's categories.
        feature: number of the item of a "taste": "mean" and "count" of its events so far, "year", or a numeric catalogue column. A taste is
            the user's residuals so far, less their mean, regressed on that number (ridge, through the origin), at the candidate's number.
            Of a "context" statistic the column of the context, for an indicator with `=` and the value.
    """

    name: str
    family: str
    transform: str
    missing: str
    aggregation: str
    signal: str = "label"
    span: float = 0
    column: str = ""
    reduce: str = ""
    feature: str = ""

    @property
    def graded(self) -> bool:
        """Whether it needs graded values."""
        return self.signal.startswith("value")

    @property
    def of_factors(self) -> bool:
        """Whether it is a product of factors."""
        return self.aggregation == "factors"

    @property
    def is_score(self) -> bool:
        """Whether it is a product of factors of residuals, which shrink to nothing where these tell little."""
        return self.of_factors and self.signal in ("residual", "value_residual")

    @property
    def takes_left(self) -> bool:
        """Whether it is made of the user's residuals less their mean so far."""
        return self.aggregation == "taste" or self.is_score


_ALIASES = {"log_user_count": "user_count", "log_item_count": "item_count"}
"""Names of up to 0.1.0, of which models know the same transformed values."""


def _rows() -> list[Statistic]:
    rows = [
        Statistic("user_rate", "user", "logit", "", "mean"),
        Statistic("user_count", "user", "log1p", "", "count"),
        Statistic("last_5_mean", "user", "none", "the user has no labelled event", "last", span=5),
        Statistic("last_20_mean", "user", "none", "the user has no labelled event", "last", span=20),
        Statistic("log_seconds_since_last_event", "user", "none", "the user has no event", "log_since_last"),
        Statistic("seconds_since_first_event", "user", "log1p", "the user has no event", "since_first"),
        Statistic("session_count", "user", "log1p", "", "session_count"),
        Statistic("session_rate", "user", "logit", "", "session_mean"),
        Statistic("item_rate", "item", "logit", "", "mean"),
        Statistic("item_count", "item", "log1p", "", "count"),
        Statistic("item_seconds_since_last_event", "item", "log1p", "the item has no event", "since_last"),
        Statistic("item_age", "item", "log1p", "the item has no event", "since_first"),
        *(Statistic(f"item_count_{h}_days", "item", "log1p", "", "fading_count", span=h) for h in ITEM_DAYS[:1]),
        Statistic("expected_value", "cross", "none", "", "expected", "value"),
        Statistic("release_year", "time", "none", "the catalogue has no year of the item", "year"),
        Statistic("hour", "time", "none", "", "hour"),
        Statistic("weekday", "time", "none", "", "weekday"),
    ]
    for family, events, days in (("user", USER_EVENTS, USER_DAYS), ("item", ITEM_EVENTS, ITEM_DAYS)):
        for signal in ("label", "value", "residual", "value_residual"):
            name, transform = (f"{family}_rate", "logit") if signal == "label" else (f"{family}_{signal}", "none")
            if signal != "label":
                rows.append(Statistic(name, family, "none", "", "mean", signal))
            if signal == "residual":
                continue
            rows += [Statistic(f"{name}_{h}_events", family, transform, "", "events", signal, h) for h in events]
            rows += [Statistic(f"{name}_{h}_days", family, transform, "", "days", signal, h) for h in days]
    return rows


def _taste(name: str) -> Statistic | None:
    start, _, feature = name.partition("_taste_")
    signal = {"rate": "residual", "value": "value_residual"}.get(start)
    return Statistic(name, "cross", "none", "", "taste", signal, feature=feature) if signal and feature else None


_KNOWN = {row.name: row for row in _rows()}
_TASTES = tuple(f"{what}_taste_{of}" for what in ("rate", "value") for of in ("mean", "count", "year"))
_KNOWN |= {name: _taste(name) for name in _TASTES}
_CROSS = ("rate_mean", "rate_max", "rate_min", "count_mean") + tuple(
    f"{signal}_{reduce}" for signal in ("residual", "value", "value_residual") for reduce in ("mean", "max", "min")
)
ITEM = "item_id"
"""The catalogue column by which each item is a category of its own."""
_REPEATS = (
    Statistic("user_item_rate", "cross", "logit", "", "mean", "label", 0, ITEM, "mean"),
    Statistic("user_item_count", "cross", "log1p", "", "count", "label", 0, ITEM, "mean"),
    Statistic("user_item_count_7_days", "cross", "log1p", "", "fading_count", "label", 7, ITEM, "mean"),
    Statistic("user_item_residual", "cross", "none", "", "mean", "residual", 0, ITEM, "mean"),
    Statistic("user_item_value", "cross", "none", "", "mean", "value", 0, ITEM, "mean"),
    Statistic("user_item_value_residual", "cross", "none", "", "mean", "value_residual", 0, ITEM, "mean"),
    Statistic(
        "user_item_seconds_since_last_event",
        "cross",
        "log1p",
        "the user has no event of the item",
        "since_last",
        column=ITEM,
        reduce="mean",
    ),
)
_FACTORS = (
    Statistic("value_factor_score", "cross", "none", "", "factors", "value_residual"),
    Statistic("rate_factor_score", "cross", "none", "", "factors", "residual"),
    Statistic("click_factor_score", "cross", "none", "", "factors", "click"),
)
BASIC = (
    "user_rate",
    "user_count",
    "item_rate",
    "item_count",
    "genre_rate_mean",
    "genre_rate_max",
    "genre_rate_min",
    "last_5_mean",
    "last_20_mean",
    "log_seconds_since_last_event",
    "release_year",
)
STATISTIC_SETS: dict[str, tuple[str, ...]] = {
    "basic": BASIC,
    "full": BASIC
    + tuple(n for n in _KNOWN if n not in BASIC)
    + tuple(f"genre_{n}" for n in _CROSS if f"genre_{n}" not in BASIC),
    "context": (),
    "scenario": (),
    "repeats": tuple(row.name for row in _REPEATS),
    "factors": tuple(row.name for row in _FACTORS),
}
"""Named sets. `full` also holds the genre statistics of each further category column that a log has, under that column's name, and the tastes
for its numeric columns. `context`: every column of a log's context. `scenario`: where a candidate is shown. `repeats`: what the user did with the same item before. `factors`: that of
graded values where a log has them, of labels otherwise; and that of clicks where no event that others see is anything else."""
_KNOWN |= {row.name: row for row in _REPEATS + _FACTORS}
MAX_VALUES = 50
"""The most frequent values of a context column that become indicators; whole numbers with more values are numbers, unless their name says codes."""
_CONTEXT = "context:"
SCENARIO, SHOWN = "scenario", "@scenario"
"""The set of the scenario's statistics, and what the scenario is called among columns of the context, of which one may be called as the set is."""
_WHOLE = re.compile(r"\s*([+-]?[0-9]{1,100})(\.0*)?\s*")


def statistic(name: str) -> Statistic:
    """The row of a name; the statistics of a category column are `<column>_rate_mean` and so on, `genre_` for the column `genres`.

    Raises:
        ValueError: no such statistic.
    """
    name = _ALIASES.get(name, name)
    if name in _KNOWN:
        return _KNOWN[name]
    if name.startswith(_CONTEXT) and len(name) > len(_CONTEXT):
        missing = "the context does not tell it"
        return Statistic(name, "context", "none", missing, "context", feature=name.removeprefix(_CONTEXT))
    for end in _CROSS:
        if name.endswith(f"_{end}") and not name.endswith(f"_value_{end}"):
            column = name.removesuffix(f"_{end}")
            what, _, reduce = end.rpartition("_")
            signal = {"rate": "label", "count": "label"}.get(what, what)
            transform = {"rate": "logit", "count": "log1p"}.get(what, "none")
            aggregation = "count" if what == "count" else "mean"
            missing = "the item has no category in the column"
            column = _CALLED.get(column, column)
            return Statistic(name, "cross", transform, missing, aggregation, signal, 0, column, reduce)
    if (taste := _taste(name)) is not None:
        return taste
    known = STATISTIC_SETS["full"]
    others = (*STATISTIC_SETS["repeats"], *STATISTIC_SETS["factors"])
    raise ValueError(
        f"data.statistics: {name!r} is no statistic;{did_you_mean(name, [*known, *others, *STATISTIC_SETS], 'did you mean')} accepted: the sets "
        f"{', '.join(STATISTIC_SETS)}, and single names: {', '.join(known)}, the genre_ statistics of other category columns, "
        f"rate_taste_ or value_taste_ of numeric ones, {', '.join(others)}, and context:COLUMN or context:COLUMN=VALUE"
    )


def _holds_text(kind: pa.DataType) -> bool:
    return is_text(kind.value_type if is_list(kind) or pa.types.is_dictionary(kind) else kind)


def _is_code(field: pa.Field) -> bool:
    is_called = ends_in_id(field.name) or not _NAMED.isdisjoint(words_of(field.name)[-1:])
    return pa.types.is_integer(field.type) and is_called


_CALLED = {"genre": "genres"}


def catalogue_column(catalogue: pa.Table, name: str) -> str:
    """The catalogue's own name of a statistic's column: those of a column `genre` are the statistics of `genres` where there is no such column."""
    names = catalogue.column_names
    return name if name in names else next((own for own in names if _CALLED.get(own) == name), name)


def category_columns(catalogue: pa.Table) -> tuple[str, ...]:
    """Columns whose values are categories of items, as statistics call them, by the rules of `MAX_CATEGORIES` and `MAX_COLUMNS`, `genres` first."""
    others: list[str] = []
    found = ["genres"] if "genres" in catalogue.column_names and is_list(catalogue.schema.field("genres").type) else []
    for field in catalogue.schema:
        if field.name in ("item_id", *found) or not (_holds_text(field.type) or _is_code(field)):
            continue
        if _CALLED.get(field.name) in catalogue.column_names:  # whose statistics have these names
            continue
        column = catalogue[field.name]
        values = pc.list_flatten(column) if is_list(field.type) else column.drop_null()
        count = len(pc.unique(values))
        if 2 <= count <= min(MAX_CATEGORIES, (len(column) - column.null_count) / 5):
            (others if count > FEW_CATEGORIES or _is_code(field) else found).append(field.name)
    return tuple(_CALLED.get(name, name) for name in (found + others)[:MAX_COLUMNS])


def category_values(catalogue: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray, Sequence[str | int]]:
    """Codes of all items' categories in one array, lengths (I,) of each item's, and the categories; by [`ITEM`] each item is its own,
    called by its row: the texts of all ids would be made to be counted.

    Raises:
        ValueError: no such column, or one that holds neither texts nor lists nor whole numbers.
    """
    if name == ITEM:
        size = catalogue.num_rows
        return np.arange(size), np.ones(size, dtype=np.int64), range(size)
    name = catalogue_column(catalogue, name)
    if name not in catalogue.column_names or not (
        _holds_text(kind := catalogue.schema.field(name).type) or is_list(kind) or pa.types.is_integer(kind)
    ):
        raise ValueError(
            f"data.statistics counts by the catalogue column {name!r}, which is absent or holds neither texts nor codes;"
            f"{did_you_mean(name, category_columns(catalogue), 'did you mean')} columns that statistics can count by: "
            f"{', '.join(category_columns(catalogue)) or 'none'}"
        )
    column = catalogue[name].combine_chunks()
    if is_list(column.type):
        lengths = np.array(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
        values = column.flatten()
    else:
        lengths, values = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64), column.drop_null()
    known, codes = np.unique(values.to_numpy(zero_copy_only=False).astype(str), return_inverse=True)
    return codes.astype(np.int64), lengths, known.tolist()


def number_columns(catalogue: pa.Table) -> tuple[str, ...]:
    """Numeric columns for which users may have a taste, beside `year`: no codes, whose order says nothing."""
    found = [
        field.name
        for field in catalogue.schema
        if is_number(field.type) and field.name not in ("item_id", "year") and not _is_code(field)
    ]
    return tuple(found[:MAX_COLUMNS])


def item_numbers(catalogue: pa.Table, name: str) -> np.ndarray | None:
    """(I,) numbers of a catalogue column as float64, NaN where unknown; None without such a numeric column."""
    if name not in catalogue.column_names or not is_number(catalogue.schema.field(name).type):
        return None
    return catalogue[name].to_numpy(zero_copy_only=False).astype(np.float64)


def tells_scenarios(log: Any) -> bool:
    """Whether a log has several scenarios, and says which one each event is of."""
    return len(getattr(log, "scenario_names", ())) > 1 and log.scenario is not None


def context_of(log: Any) -> pa.Table | None:
    """What a log tells of the moment of its events: its context, and the scenario, if it has several."""
    context = getattr(log, "context", None)
    if not tells_scenarios(log):
        return context
    own = {} if context is None else dict(zip(context.column_names, context.columns))
    return pa.table(
        {
            **own,
            SHOWN: pa.DictionaryArray.from_arrays(pa.array(log.scenario), pa.array(log.scenario_names, pa.string())),
        }
    )


def context_names(context: pa.Table) -> list[str]:
    """The statistics of all columns of a log's context, but for lists."""
    found = []
    for name in (field.name for field in context.schema if not is_list(field.type)):
        counted = pc.value_counts(context[name].drop_null()).to_pylist()
        counts = {context_word(entry["values"]): entry["counts"] for entry in counted if entry["values"] != ""}
        kind = context[name].type
        is_amount = pa.types.is_integer(kind) and not _is_code(context.schema.field(name)) and len(counts) > MAX_VALUES
        if pa.types.is_floating(kind) or is_amount:
            found.append(f"{_CONTEXT}{name}")
        else:
            often = sorted(counts, key=lambda word: (-counts[word], word))[:MAX_VALUES]
            found += [f"{_CONTEXT}{name}={word}" for word in sorted(often)]
    return found


def context_values(row: Statistic, values: Sequence[Any]) -> np.ndarray:
    """(S,) float64 of a context statistic from the column's plain values, NaN where there is none.

    Raises:
        ValueError: a number that is none.
    """
    name, is_indicator, wanted = row.feature.partition("=")
    if is_indicator:
        for value in values:
            if isinstance(value, (list, dict)):
                raise ValueError(
                    f"context: {name!r} is {value!r:.80}; accepted: one value, or null where it is not known"
                )
        return np.array([np.nan if value in (None, "") else float(context_word(value) == wanted) for value in values])
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float | None) or value in (np.inf, -np.inf):
            raise ValueError(
                f"context: {name!r} is {value!r}; accepted: a finite number, or null where it is not known"
            )
    return np.array([np.nan if value is None else float(value) for value in values])


def whole_number(value: Any) -> Any:
    """A text that writes a whole number as that number; other values as they are."""
    found = _WHOLE.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else int(found[1])


def context_word(value: Any) -> str:
    """A value of the context as text: whole numbers alike, however they are written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _factors_of(log: Any, graded: bool) -> list[str]:
    """What the set `factors` is of a log."""
    label, hidden = np.asarray(log.label), getattr(log, "hidden", None)
    told_apart = (label == 0) if hidden is None else (label == 0) & ~np.asarray(hidden)
    of_value, of_label, of_clicks = (row.name for row in _FACTORS)
    return [of_value] * graded + ([of_clicks] if not told_apart.any() else [of_label] * (not graded))


def resolve_statistics(names: str | Sequence[str], log: Any) -> tuple[str, ...]:
    """Names of statistics from sets and single names mixed, each once, in the order given.

    A set gives what the log can give: without `genres` no statistics over them, without `feedback_values` none of graded values.

    Raises:
        ValueError: a name that is none, or one that the log cannot give.
    """
    catalogue, graded = log.catalogue, getattr(log, "feedback_values", None) is not None
    columns, years = category_columns(catalogue), item_numbers(catalogue, "year") is not None
    found: list[str] = []
    for name in [names] if isinstance(names, str) else names:
        if name == SCENARIO:
            if not tells_scenarios(log):
                raise ValueError(f"data.statistics names {name!r}, of which the log has less than two; leave it out")
            found += context_names(context_of(log).select([SHOWN]))
            continue
        if name == "context" or name.startswith(_CONTEXT):
            column = name.removeprefix(_CONTEXT).partition("=")[0]
            context = context_of(log) if column == SHOWN else getattr(log, "context", None)
            known = [] if context is None else context.column_names
            if not known or (name != "context" and column not in known):
                raise ValueError(
                    f"data.statistics names {name!r}, but the log's context has {', '.join(known) or 'no columns'}; name them as "
                    "columns.context of its schema, or leave it out"
                )
            if column in known and is_list(context.schema.field(column).type):
                raise ValueError(
                    f"data.statistics names {name!r}, but {column!r} holds lists, which have no statistics; leave it out"
                )
            found += context_names(context) if name == "context" else [name]
            continue
        if name in STATISTIC_SETS:
            some = list(STATISTIC_SETS[name])
            if name == "factors":
                found += _factors_of(log, graded)
                continue
            if name == "full":
                for column in columns:
                    if column == "genres":
                        continue
                    several = is_list(catalogue.schema.field(column).type)
                    some += [f"{column}_{end}" for end in _CROSS if several or end.endswith("mean")]
                some += [
                    f"{what}_taste_{column}" for column in number_columns(catalogue) for what in ("rate", "value")
                ]
            found += [
                row.name
                for row in map(statistic, some)
                if (not row.column or row.column in (*columns, ITEM))
                and (graded or not row.graded)
                and (years or "year" not in (row.aggregation, row.feature))
            ]
            continue
        row = statistic(name)
        if row.column:
            category_values(catalogue, row.column)
        if row.graded and not graded:
            raise ValueError(
                f"data.statistics names {name!r}, but the log has no graded feedback; name its column as feedback_values"
            )
        if row.feature not in ("", "mean", "count", "year") and item_numbers(catalogue, row.feature) is None:
            raise ValueError(
                f"data.statistics names {name!r}, but the catalogue has no numeric column {row.feature!r}; its numeric columns are "
                f"{', '.join(number_columns(catalogue)) or 'none'}"
            )
        if "year" in (row.aggregation, row.feature) and not years:
            raise ValueError(
                f"data.statistics names {name!r}, but the catalogue has no numeric column 'year'; leave it out"
            )
        found.append(row.name)
    return tuple(dict.fromkeys(found))
