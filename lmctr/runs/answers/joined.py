"""Scores for rows of a user, an item and a time: histories, descriptions and statistics are joined from the run's log, or a newer one."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from lmctr.data.amounts import accepted_numbers, numbers_in
from lmctr.data.features.columns import Rows
from lmctr.data.features.transform import add_counts
from lmctr.data.features.unknown import FEWEST, MAX_UNKNOWN, UnknownValues
from lmctr.data.logs import columns
from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.queries import Queried, with_queries
from lmctr.data.logs.schema import AttributeSpec, FileSpec, Schema, TimeSpec, parse_schema, read_schema
from lmctr.data.logs.table import whole_ids
from lmctr.data.logs.times import have_zone, seconds_of
from lmctr.data.reading import format_of, text_lines
from lmctr.data.registry import find, is_log, is_schema
from lmctr.data.tables.joined import Joined
from lmctr.data.tables.source import rows_of
from lmctr.models.common.base import evaluation_mode
from lmctr.runs.find import is_data_file
from lmctr.runs.folder import LOG_STATISTICS, RECIPE, RunFolder
from lmctr.runs.inputs import input_of
from lmctr.runs.inputs.base import InputKind, RunContext
from lmctr.runs.recipe import load_recipe
from lmctr.serving import scorer_for
from lmctr.utils.arrow import decoded, is_number, is_text, without_empty
from lmctr.utils.files import beside, expanded, parse_json
from lmctr.utils.ragged import blocks, padded_grids
from lmctr.utils.suggest import first_quoted

from .base import grid_batches
from .tables import Block, bad_rows, check_id_column, columns_of, copied, own_columns, scored_blocks, with_names

BATCH_SIZE, OF_TABLES = 256, 1024
ROWS = 1 << 16  # of the input that are joined at a time
CANDIDATES = 128  # of a user and second behind one history
_PLANNED = 8192  # of them, where they are texts
_SHARED_FROM = 4  # of them, where they are texts; fewer are faster row by row in small models
_WHOLE_ID = r"^\s*(-?)0*([0-9]+)(?:\.0*)?\s*$"
_DEFAULTS = {"user": ("user", "user_id"), "item": ("item", "item_id"), "time": ("time", "timestamp")}


_OF_REQUESTS = {"history", "candidates", "target"}  # columns that no table has


def reads_log(
    folder: RunFolder,
    log: str | None,
    source: Any,
    kind: str,
    columns: Mapping[str, str] | None,
    names: Sequence[str] | None = None,
) -> bool:
    """Whether the rows of an input (a path, or what Python holds) are to be joined with a log: where one is named; a table for a run of texts
    or events; a table that lacks `columns` that the run's processor reads (those that tell of histories), for a run of a log. names: of the input's
    columns, where it has no line of them."""
    if kind == "impressions" and log is not None:
        raise ValueError(
            f"the log {log!r} is not read: this run ranks the ads that requests bring along, with no history of the user"
        )
    if log is not None:
        return True
    if kind == "impressions" or not _is_table(source):
        return False
    if kind != "table":
        return True
    return folder.started and is_of_log(folder) and not {*columns} <= {*columns_of(source, _reading(folder, names))}


def _reading(folder: RunFolder, names: Sequence[str] | None) -> dict[str, Any] | None:
    """How text files of a run's log are written, as far as that is known here."""
    try:
        own = _names(load_recipe(folder.path / RECIPE).data)
    except (FileNotFoundError, ValueError):  # a schema that is elsewhere, and told where the log is read
        own = None
    return with_names(own and own.reading, names)


def is_of_log(folder: RunFolder) -> bool:
    """Whether a run's data are those of a log, whose files may be elsewhere."""
    if (folder.path / LOG_STATISTICS).is_file():  # which tables of a log leave
        return True
    data = load_recipe(folder.path / RECIPE).data
    return is_log(data["name"], data["options"])


def joined_files_of(folder: RunFolder) -> tuple[Joined, ...]:
    """The files from which a run's table takes columns, by its recipe, read anew; none of a folder without one.

    Raises:
        FileNotFoundError: a file that the recipe, or its schema, names and that is not there.
    """
    if not folder.started or is_of_log(folder):
        return ()
    recipe = load_recipe(folder.path / RECIPE)
    if "joined" not in recipe.data["options"] and not is_schema(recipe.data["name"]):
        return ()
    read = input_of(recipe)
    read.load()
    return tuple(file.held() for file in read.source.joined)


def _is_table(source: Any) -> bool:
    """Whether an input has columns, and none of those of requests."""
    if isinstance(source, (str, Path)):
        if str(source) == "-" or not is_data_file(str(source)):
            return False
        return format_of(Path(source)) != "jsonl" or not _OF_REQUESTS & {*_keys_of(Path(source))}
    first = source[0] if isinstance(source, (list, tuple)) and source else None
    is_table = isinstance(source, Mapping) or hasattr(source, "column_names") or hasattr(source, "dtypes")
    return (is_table or isinstance(first, Mapping)) and not _OF_REQUESTS & {*columns_of(source)}


def _keys_of(path: Path) -> list[str]:
    """The keys of the first object of a file of JSON lines; of one that has none, whose reader will say so, those of a request."""
    if not path.is_file():
        return ["history"]
    try:
        first = parse_json(next((line for _, line in text_lines(path)), ""), keys_once=False)
    except ValueError:
        first = None
    return list(first) if isinstance(first, dict) else ["history"]


@dataclass(frozen=True)
class _Names:
    """The columns of the input that say who, what and when."""

    user: str
    item: str
    time: TimeSpec
    scenario: str | None = None
    has_codes: bool = True  # whether a whole number may be the place of a scenario's name
    # how text files of the log, and so of the input, write numbers and missing values, and what they call columns without names
    reading: Mapping[str, Any] | None = None
    # columns of the input by the names of the log's "context", and of "catalogue" and "users" where events hold these
    parts: Mapping[str, Mapping[str, AttributeSpec]] | None = None
    # likewise of a list of items, or of users, whatever file holds what the log says of these; of one that is not named, as the log's table
    lists: Mapping[str, Mapping[str, AttributeSpec]] | None = None
    events: Path | None = None


class JoinedRows:
    """Scores rows of a table with what a log says of their users and items.

    Args:
        folder: the run, whose recipe names the log. model, processor: of the folder.
        log: a schema file, a folder of `lmctr data prepare`, or a data file with the columns of the run's own; None: the run's log.
        batch_size: rows per forward pass.
        allow_unknown: go on where nearly all values of a field are unknown.
        skip: whether rows that cannot be scored are skipped, with the reason, or an error.
        name: of the run as it was given, for messages; default: its folder.
        names: of the columns of inputs without a line of them; default: those of the run's log.

    Attributes:
        unknown: counts of values, and of the unknown among them, by what was counted. warnings: about what was unknown far more often than in
            the run's validation part.
        tasks: what the logits of a row are of.

    Raises:
        FileNotFoundError, ValueError: a folder without a recipe; a log that cannot be read.
    """

    def __init__(
        self,
        folder: RunFolder,
        model: Any,
        processor: Any,
        log: str | None,
        batch_size: int | None = None,
        skip: bool = False,
        allow_unknown: bool = False,
        name: str | None = None,
        names: Sequence[str] | None = None,
    ):
        if not folder.started:
            requests = "requests with their histories as JSON lines"
            if processor.request_kind == "table":
                requests = (
                    f"lmctr predict rows that hold the model's columns, {first_quoted(processor.input_columns())}"
                )
            raise FileNotFoundError(
                f"{name or folder.path} has no {RECIPE}, which would say how the log is read (lmctr push keeps it back), so rows cannot be joined with "
                f"one: score them with the run folder that lmctr train wrote, or give {requests} (see lmctr predict --help)"
            )
        self.folder, self.model, self.processor, self.skip = folder, model, processor, skip
        default = OF_TABLES if processor.request_kind == "table" else BATCH_SIZE
        self.batch_size, self.unknown = batch_size or default, {}
        self.limits, self.allow_unknown = UnknownValues(processor, folder.unknown_shares()), allow_unknown
        recipe = load_recipe(folder.path / RECIPE)
        recipe = recipe if log is None else load_recipe(recipe.resolved(), _overrides(recipe.data, log))
        self.kind: InputKind = input_of(recipe)
        try:
            self.log: InteractionLog = self.kind.load_log()
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error} Name the log that the histories come from: --log SCHEMA_OR_FILE"
            ) from error
        self.names = _names(recipe.data)
        self.reading = with_names(self.names and self.names.reading, names)
        self.tasks = self.kind.tasks
        self.warnings: list[str] = []
        self.strangers: dict[str, list[str]] = {}  # some of them, by what they are
        self.have_zone: bool | None = None  # the times of the input
        self.absent: list[str] = []  # columns of the context that the input lacks
        self.unread: list[str] = []  # of the input, which the log's files of items and users tell of

    def blocks(self, source: Any, id_column: str | None = None) -> Iterator[Block]:
        """The identifying columns, (N, T) logits and reasons (None: scored) of some rows after the other, in order.

        Args:
            source: a file, or anything else that [`rows_of`][lmctr.data.tables.source.rows_of] takes. id_column: of it, to copy.

        Raises:
            ValueError: a missing column; without `skip`, a row that cannot be scored, after the block of those before it; unless
                `allow_unknown`, a field with next to no known value.
        """
        check_id_column(id_column, self.tasks)
        wanted = self._wanted(found := columns_of(source, self.reading), id_column)
        listed = [
            *self._listed("catalogue", found, self.names.item).values(),
            *self._listed("users", found, self.names.user).values(),
        ]
        self.unread = [part.column for part in listed if part.column not in {*wanted} - {id_column}]
        for rows in rows_of(source, wanted, reading=self.reading):
            where = rows.source or "rows"
            for start in range(0, len(rows), ROWS):
                yield from self._block(Rows(rows.table.slice(start, ROWS), where, rows.first + start), id_column)
                self.warnings = [*self._of_columns(where), *self.limits.check(where, self.allow_unknown)]
                self.warnings += self._unmet(where)

    def _of_columns(self, where: str) -> list[str]:
        """Warnings about columns of the log's context that the model reads and the input has not, and about ids that have another name in the output."""
        others = {getattr(self.names, role): self.shown(role) for role in ("user", "item")}
        found = [
            f"{where}: the column {name!r} is {shown!r} in the output, which has one called {name!r} itself"
            for name, shown in others.items()
            if name != shown
        ]
        if self.have_zone is not None and self._log_has_zone is (not self.have_zone):
            some, others = ("a zone", "none") if self.have_zone else ("no zone", "one")
            found.append(
                f"{where}: the times have {some}, and those of the log {others}: what has none is read as UTC"
            )
        if self.absent:
            found.append(
                f"{where}: no column {first_quoted(self.absent)}, which the log has as context: scored as if that were missing on every row"
            )
        if self.unread:
            found.append(
                f"{where}: {first_quoted(self.unread)}: not read, as the log's files of items and users tell that; --log names a newer log"
            )
        return found

    def _unmet(self, where: str) -> list[str]:
        """Warnings about users, or items, next to none of whom the log knows, and times next to all of which are before it."""
        found = []
        for name, examples in self.strangers.items():
            counts = self.unknown[name]
            if counts["values"] >= FEWEST and counts["unknown"] >= MAX_UNKNOWN * counts["values"]:
                shown = f"{counts['unknown'] / counts['values']:.1%} ({', '.join(map(repr, examples[:3]))}, ...)"
                found.append(f"{where}: {name}: {shown}; are they written as in the log?")
        return found

    @cached_property
    def _log_has_zone(self) -> bool | None:
        """[`have_zone`] of the log's events, where their file is there and the schema states none."""
        time, events = self.names.time, self.names.events
        if events is None or not events.exists() or time.timezone is not None or time.format is not None:
            return None
        (rows,) = islice(rows_of(events, {time.column: "any"}, reading=self.names.reading), 1)
        return have_zone(rows.column(time.column))

    def _wanted(
        self, found: list[str], id_column: str | None = None, needed: Collection[str] = tuple(_DEFAULTS)
    ) -> dict[str, str]:
        """Columns to read of those that an input has, and how. needed: the roles whose columns it must have."""
        names = self.names
        if names is None:
            chosen = {
                role: next((name for name in _DEFAULTS[role] if name in found), _DEFAULTS[role][0])
                for role in _DEFAULTS
            }
            self.names = names = _Names(chosen["user"], chosen["item"], TimeSpec(column=chosen["time"]), "scenario")
        roles = {"user": (names.user, "text"), "item": (names.item, "text"), "time": (names.time.column, "any")}
        wanted = {name: kind for role, (name, kind) in roles.items() if role in needed or name in found}
        optional = {names.scenario: "text" if self._scenario_texts else "any"}
        parts = self._parts
        for table, own in parts.items():
            optional |= self._ways(table, own)
        wanted = {name: kind for name, kind in optional.items() if name in found} | wanted
        reader, is_table = self.processor.statistics_reader, self.processor.request_kind == "table"
        read = {*(() if reader is None else reader.context), *(self.processor.input_columns() if is_table else ())}
        context = ((name, part.column) for name, part in parts["context"].items())
        self.absent = [own for name, own in context if name in read and own not in found]
        if id_column is not None:
            wanted.setdefault(id_column, "text")
        return wanted

    def _listed(self, table: str, found: Collection[str], key: str) -> dict[str, AttributeSpec]:
        """Columns of a list of items ("catalogue") or users ("users"), of those it has beside its `key`, by the names of the log's table."""
        own = getattr(self.log, table)
        names = () if own is None else own.column_names
        told = (self.names.lists or {}).get(table) or {name: AttributeSpec(column=name) for name in names}
        return {name: part for name, part in told.items() if part.column in {*found} - {key, "item_id", "user_id"}}

    def _ways(self, table: str, parts: Mapping[str, AttributeSpec]) -> dict[str, str]:
        """How to read an input's columns that a table of the log has: texts as they are written, 01 is no 1."""
        kinds = {name: getattr(self.log, table).schema.field(name).type for name in parts}
        as_texts = {name for name, own in parts.items() if own.is_list or own.written or is_text(kinds[name])}
        return {own.column: "text" if name in as_texts else "any" for name, own in parts.items()}

    @property
    def _scenario_texts(self) -> bool:
        """Whether the log's scenarios are texts that it names none of, so that 2 is a name and no place of one."""
        known = self.log.scenario_names
        return not self.names.has_codes and known != tuple(map(str, range(len(known))))

    @property
    def _parts(self) -> dict[str, Mapping[str, AttributeSpec]]:
        """The input's columns by the names of those of the log's tables."""
        own, told = () if self.log.context is None else self.log.context.column_names, self.names.parts or {}
        context = {name: told.get("context", {}).get(name) or AttributeSpec(column=name) for name in own}
        return {**told, "context": context}

    def _block(self, rows: Rows, id_column: str | None) -> Iterator[Block]:
        reasons: list[str | None] = [None] * len(rows)
        good = np.ones(len(rows), dtype=bool)
        read = lambda start, stop: self._read(Rows(rows.table.slice(start, stop - start), rows.source))  # noqa: E731
        try:
            asked = read(0, len(rows))
        except ValueError:
            for row, error in bad_rows(read, len(rows)):
                error = _of_one(error, rows.first + row)
                good[row], reasons[row] = False, str(error)
                if not self.skip:
                    if row:
                        before = Rows(rows.table.slice(0, row), rows.source, rows.first)
                        yield self._ids(before, id_column), self._logits(self._read(before)), [None] * row
                    raise error from None
            if good.any():
                asked = self._read(Rows(rows.table.filter(pa.array(good)), rows.source, rows.first))
        logits = np.full((len(rows), len(self.tasks)), np.nan, dtype=np.float32)
        if good.any():
            logits[good] = self._logits(asked)
        yield from scored_blocks(rows, logits, reasons, self.skip, lambda rows: self._ids(rows, id_column))

    def shown(self, role: str) -> str:
        """What the column of users or items is called in the output: as in the log, or `user_row` where the output has a `row` of its own."""
        name = getattr(self.names, role)
        return f"{role}_{name}" if name in ("rank", *own_columns(self.tasks)) else name

    def _ids(self, rows: Rows, id_column: str | None) -> dict[str, Any]:
        keys = {self.names.user: "user", self.names.item: "item"}
        found = {self.shown(role): rows.column(name).to_pylist() for name, role in keys.items()}
        if id_column is not None and id_column not in keys:
            found[id_column] = copied(rows, id_column)
        return {"row": list(range(rows.first, rows.first + len(rows)))} | found

    def _read(self, rows: Rows) -> dict[str, Any]:
        """The queries of rows, as [`with_queries`] takes them."""
        described = {name: self._as_log(rows, name, own) for name, own in self._parts.items() if name != "context"}
        items = self._read_items(rows, described.get("catalogue"))
        return self._read_who(rows) | {"item": items, "described": described}

    def _as_log(self, rows: Rows, table: str, parts: Mapping[str, AttributeSpec]) -> pa.Table | None:
        """Those columns of rows that a table of the log has, in its types; None: none."""
        found, kinds = {}, getattr(self.log, table).schema
        usual = {"decimal": self.reading["decimal"]} if "decimal" in self.reading else {}
        for name, part in parts.items():
            if part.column in rows.table.schema.names:
                values, kind = rows.column(part.column), kinds.field(name).type
                found[name] = _as_log(values, kind, part, rows.source, usual | part.written)
        return pa.table(found) if found else None

    def _read_ids(self, rows: Rows, name: str, known: pa.DataType) -> pa.Array:
        """As the log's own reader takes them; whole numbers where the log's are, however they are written."""
        array = columns.whole_column(rows.column(name), name, rows.source)
        columns.encode_ids(array, name, rows.source)
        if not is_text(array.type):
            return array
        if pa.types.is_integer(known):
            array = pc.replace_substring_regex(array, _WHOLE_ID, r"\1\2")
        return whole_ids(array.dictionary_encode(), name, rows.source)

    def _read_items(self, rows: Rows, told: pa.Table | None = None) -> pa.Array:
        """told: what is described of them, column by column."""
        name, known = self.names.item, self.log.catalogue["item_id"]
        found = self._read_ids(rows, name, known.type)
        columns_told = {"item_id", *(() if told is None else told.column_names)}
        if self.kind.reads_descriptions and columns_told != {*self.log.catalogue.column_names}:
            lacking = columns.item_rows(found, name, rows.source, known, missing=-1) < 0
            hint = "The model reads an item's text: add the item to the catalogue, and give that log by --log."
            columns.refuse(lacking, rows.column(name), name, rows.source, "are not in the log's catalogue", hint)
        return found

    def _read_who(self, rows: Rows, at: int | None = None) -> dict[str, Any]:
        """What the queries of rows are beside their items. at: the time of rows without one, in unix seconds."""
        names, source = self.names, rows.source
        has_time = at is None or names.time.column in rows.table.schema.names
        read = {"user": self._read_ids(rows, names.user, pa.array(self.log.user_ids[:1]).type)}
        if has_time:
            times = rows.column(names.time.column)
            read["time"], self.have_zone = seconds_of(times, names.time, source), have_zone(times)
        else:
            read["time"] = np.full(len(rows), at)
        present = rows.table.schema.names
        places = getattr(self.processor, "scenario_names", ())
        if len(places) > 1 and names.scenario not in present:
            raise ValueError(
                f"{source or 'rows'}: no column {names.scenario or 'scenario'!r}: scores depend on where a candidate is shown; give one of "
                f"{', '.join(places)} in each row"
            )
        if self.log.scenario is not None and names.scenario in present:
            given = rows.column(names.scenario)
            if self._scenario_texts and pa.types.is_integer(given.type):
                given = given.cast(pa.string())
            read["scenario"], _ = columns.to_codes(given, names.scenario, source, self.log.scenario_names, np.int16)
        if self.log.context is not None:
            read["context"] = self._as_log(rows, "context", self._parts["context"])
        return read

    def _count_new(self, asked: dict[str, Any], queried: Queried) -> None:
        """Count what of the queries the log does not know."""
        self._add_new("items", queried.new_items, asked["item"])
        self._add_new("users", queried.new_users, asked["user"])
        self._add_new("times", asked["time"] < self.log.time.min(), asked["time"], "before the log")

    def _add_new(self, what: str, new: np.ndarray, ids: Any, where: str = "not in the log") -> None:
        name = f"{what} {where}"
        self.unknown = add_counts([self.unknown, {name: {"values": len(new), "unknown": int(new.sum())}}])
        few = self.strangers.setdefault(name, [])
        few += pa.array(ids).filter(pa.array(new)).slice(0, max(3 - len(few), 0)).to_pylist()

    def _logits(self, asked: dict[str, Any]) -> np.ndarray:
        """(N, T) logits of queries, as [`with_queries`] takes them."""
        queried = with_queries(self.log, **asked, theirs_only=not self.kind.reads_other_users)
        self._count_new(asked, queried)
        view = copy.copy(self.kind)
        order = view.open_queries(self.processor, queried, RunContext(self.folder.path, measures=False))
        logits = np.empty((len(order), len(self.tasks)), dtype=np.float32)
        with evaluation_mode(self.model), torch.inference_mode():
            order = self._score_shared(view.view, order, queried, logits)
            for grid in self._grids(order, queried):
                inputs = {key: value.to(self.model.device) for key, value in view.query_batch(grid).items()}
                found = (
                    self.model(**self.model.with_kept(inputs)).logits.float().cpu().numpy().reshape(*grid.shape, -1)
                )
                logits[grid[grid >= 0]] = found[grid >= 0]
        counts, examples = view.unknown_in_queries()
        self.unknown = add_counts([self.unknown, counts])
        self.limits.add(counts, examples)
        return logits

    def _score_shared(self, view: Any, order: np.ndarray, queried: Queried, logits: np.ndarray) -> np.ndarray:
        """Fills in the logits of queries whose texts begin alike, where the model reads that once; gives the others, in their order."""
        scorer = scorer_for(self.model, self.processor) if self.processor.request_kind == "text" else None
        if scorer is None or not scorer.shares_prefix:
            return order
        groups = _of_same_history(order, queried)
        several = (own[some] for own in groups if len(own) >= _SHARED_FROM for some in blocks(len(own), _PLANNED))
        for batch in grid_batches(several, len, CANDIDATES):
            asked = [view.of_one_history(queried.queries[group]) for group in batch]
            logits[np.concatenate(batch), 0] = torch.cat(scorer.score_samples(asked))
        alone = [group for group in groups if len(group) < _SHARED_FROM]
        return np.concatenate(alone) if alone else order[:0]

    def _grids(self, order: np.ndarray, queried: Queried) -> Iterator[np.ndarray]:
        """Batches of queries by their numbers: (B,), or, where several of a user and second share a history, (B, C) with -1 for none."""
        groups = _of_same_history(order, queried) if self.kind.shares_histories else []
        if len(groups) in (0, len(order)):
            yield from (order[some] for some in blocks(len(order), self.batch_size))
            return
        rows = (group[some] for group in groups for some in blocks(len(group), CANDIDATES))
        for batch in grid_batches(rows, len, self.batch_size):
            grids, is_query = padded_grids({"query": np.concatenate(batch)}, np.array([*map(len, batch)]))
            yield np.where(is_query, grids["query"], -1)


def _of_same_history(order: np.ndarray, queried: Queried) -> list[np.ndarray]:
    """Queries by their user and second, each group where its first stands."""
    events = queried.queries[order]
    asked = np.stack([queried.log.user[events], queried.log.time[events]])
    _, first, owner = np.unique(asked, axis=1, return_index=True, return_inverse=True)
    of_same = order[np.argsort(first[owner], kind="stable")]  # the longest histories stay first
    return np.split(of_same, np.cumsum(np.bincount(first[owner], minlength=len(order)))[np.sort(first)][:-1])


def _of_one(error: ValueError, row: int) -> ValueError:
    """An error about the only row that was read, as one about a row of the file."""
    words = str(error).replace("1 of 1 values are", "the value is").replace("1 of 1 values lie", "the value lies")
    return ValueError(words.replace("(row 1:", f"(row {row}:"))


def _as_log(
    values: Any, kind: pa.DataType, part: AttributeSpec, source: str, written: Mapping[str, str] | None = None
) -> Any:
    """Values of a column of the context in the log's type; texts parted into lists where the log's are. written: how numbers are that are texts, maybe for one's
    sake that is none."""
    values, column = decoded(values), part.column
    if part.is_list and is_text(values.type):
        values = columns.split_texts(values, part.separator, column=column, source=source)
    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if not written or not is_text(values.type) or not is_number(kind):
            return values.cast(kind)
        found = numbers_in(values, **written)
        if found.null_count == without_empty(values).null_count:
            return found.cast(kind)
    accepted = f" {accepted_numbers(written)}" if written else ""
    raise ValueError(
        f"{columns.place(source, column)}: the log has values of the type {kind} there, which this is not (row 1: {values[0].as_py()!r}).{accepted}"
    )


def _overrides(data: Mapping[str, Any], log: str) -> dict[str, Any]:
    """What `--log` changes of a recipe's data: another log, or another file for the run's own schema."""
    path, own = expanded(log), is_schema(data["name"])
    if not path.exists():
        raise FileNotFoundError(f"--log {log}: no such file or folder")
    if path.is_file() and not is_schema(path):
        if own:
            return {"data.path": str(path)}
        if "columns" in data["options"]:
            return {"data.name": str(path)}
        raise ValueError(
            f"--log {log}: the run's log {data['name']!r} has no schema that says which column is what; give a schema .yaml file"
        )
    options = {key: value for key, value in data["options"].items() if key not in _log_options(data["name"], log)}
    return {"data.name": str(path), "data.path": None, "data.options": options}


def _log_options(name: str, log: str) -> set[str]:
    """Options of what read a run's own log; its files need not be on this machine."""
    try:
        return {*find(name, "log").options}
    except (FileNotFoundError, ValueError):
        return {*find(log, "log").options, *Schema.model_fields, *FileSpec.model_fields}


def _names(data: Mapping[str, Any]) -> _Names | None:
    """The columns that the schema of a log names; None: it has none."""
    path = expanded(data["name"])
    if is_schema(path):
        schema = read_schema(path)
        file = schema.events.model_dump()
    elif "columns" in data["options"]:
        file = data["options"]
        schema = parse_schema(
            {key: file[key] for key in ("columns", "negatives", "catalogue", "users") if key in file}
        )
    else:
        return None
    keys = schema.columns
    reading = {key: file[key] for key in ("decimal", "na_values", "names") if file.get(key) is not None}
    return _Names(
        keys.user.column,
        keys.item.column,
        keys.time,
        None if keys.scenario is None else keys.scenario.column,
        keys.scenario is None or keys.scenario.names is not None,
        reading,
        {"context": keys.context} | {name: own.columns for name, own, _, _ in schema.tables() if own.path is None},
        {name: own.columns for name, own, _, _ in schema.tables()},
        beside(path.parent, schema.events.path) if is_schema(path) else path,
    )
