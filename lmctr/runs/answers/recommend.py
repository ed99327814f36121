"""The best items for users of a log: all candidates are scored with what the log says at a time, and the first few kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.data.features.columns import Rows
from lmctr.data.logs import columns
from lmctr.data.logs.queries import Queried
from lmctr.data.logs.schema import TimeSpec
from lmctr.data.logs.times import seconds_of
from lmctr.data.tables.source import rows_of
from lmctr.runs.folder import RunFolder
from lmctr.utils.arrow import decoded
from lmctr.utils.files import expanded
from lmctr.utils.progress import over
from lmctr.utils.ragged import blocks
from lmctr.utils.rows import is_whole

from .base import refuse_without_score, unknown_words
from .files import check_output
from .joined import JoinedRows, is_of_log
from .options import RecommendOptions
from .predict import opened
from .tables import FORMATS, columns_of, score_columns, scores_to

PAIRS = 1 << 18
"""Users times candidates that are scored at a time; a fourth of the log's events, which are counted for them, where that is more."""
_COME_BACK = 0.02  # share of events with items that their user met before, from which on it is worth a word


class BestItems(JoinedRows):
    """Ranks items for users by a run of a log.

    Args:
        folder, model, processor, log, options: see [`JoinedRows`].
        items: the candidates: a file or table with the log's column of items, and for those that the log has not columns of its catalogue, or a list
            of ids; None: the items that somebody met before.
        seen: whether items that a user has met before are candidates too.
        time: the moment to rank at, a time as the log writes its own, or else unix seconds or an ISO text; None: a second after the log's last event.

    Raises:
        FileNotFoundError, ValueError: see [`JoinedRows`]; a run of another kind of data; a time that is none; candidates without an item.
    """

    def __init__(
        self,
        folder: RunFolder,
        model: Any,
        processor: Any,
        log: str | None,
        items: Any = None,
        seen: bool = False,
        time: Any = None,
        **options: Any,
    ):
        reads_table = processor.request_kind in ("table", "impressions")  # other families read logs only
        if folder.started and reads_table and not is_of_log(folder):
            rows = "each user's row beside each item's, as pandas' users.merge(items, how='cross') makes them"
            asked = rows if processor.request_kind == "table" else "requests of a user and its ads"
            raise ValueError(
                f"{options.get('name') or folder.path}: its data are no log of users, items and times, whose items could be ranked; score {asked}, by "
                "lmctr predict"
            )
        super().__init__(folder, model, processor, log, **options)
        self.time = None if time is None else _second(time, self.names and self.names.time)
        self.at = int(self.log.time[self.log.seen].max()) + 1 if time is None else self.time
        self.seen, self.items = seen, items
        # users without a candidate, and those of them at whose time nobody had met an item
        self.without = self.early = 0
        # whether candidates were left out that users met, which may be those that the model knows
        self.leaves_known = False

    @cached_property
    def candidates(self) -> tuple[pa.Array, np.ndarray, np.ndarray, pa.Table | None]:
        """Ids (C,) of all candidates, their rows in the catalogue (-1: none), from when on each is one, in order of that, and what a list says of them."""
        log = self.log
        catalogue = log.catalogue["item_id"].combine_chunks()
        if self.items is None:
            since = np.full(len(catalogue), np.iinfo(np.int64).max)
            np.minimum.at(since, log.item[log.seen], log.time[log.seen] + 1)  # known from the next second on
            rows = np.argsort(since, kind="stable")[: np.count_nonzero(since < np.iinfo(np.int64).max)]
            return catalogue.take(pa.array(rows)), rows, since[rows], None
        given = _rows_of(self.items, self.names.item, "items")
        found = columns_of(given, self.reading)
        name = next((own for own in (self.names.item, "item", "item_id") if own in found), self.names.item)
        known = self._listed("catalogue", found, name)
        parts, told = [], []
        for rows in rows_of(given, self._ways("catalogue", known) | {name: "text"}, reading=self.reading):
            told.append(self._as_log(rows, "catalogue", known))
            named = rows.table.select([name]).rename_columns([self.names.item])
            parts.append(self._read_items(Rows(named, rows.source, rows.first), told[-1]))
        ids = pa.chunked_array(parts).unify_dictionaries().combine_chunks() if parts else pa.array([], pa.int64())
        if not len(ids):
            raise ValueError("items: there is no candidate")
        coded = _plain(ids).dictionary_encode()
        ids, first = coded.dictionary, np.unique(coded.indices, return_index=True)[1]
        rows = columns.item_rows(ids, self.names.item, None, catalogue, missing=-1).astype(np.int64)
        return ids, rows, np.zeros(len(ids), dtype=np.int64), _taken(pa.concat_tables(told), first) if known else None

    def candidates_of(self, user: int, time: int) -> np.ndarray:
        """Places of the candidates of a user, -1 of one that the log has not, at a time."""
        _, rows, since, _ = self.candidates
        places = np.arange(np.searchsorted(since, time, side="right"))
        if self.seen or user < 0:
            return places
        met = np.isin(rows[places], self.met(user, time))
        self.leaves_known |= bool(met.any())
        return places[~met]

    def met(self, user: int, time: int) -> np.ndarray:
        """The items of a user's events before a time."""
        log = self.log
        events = np.arange(log.offsets[user], log.seen_end[user])
        return log.item[events[log.time[events] < time]]

    def best(self, users: Any = None, top: int = 10) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """The best `top` items of each row, some rows after the other, in order; fewer where there are fewer candidates: columns (the row, where
        users are given, user, rank, item), and (N, T) logits.

        Args:
            users: a file or table with the log's column of users and, where rows differ in them, of times, of scenarios and of the context, for those
                that the log has not also columns of its users; or a list of ids; None: all users of the log.

        Raises:
            ValueError: a missing column; a row that cannot be read.
        """
        has_rows = users is not None
        if users is None:
            users = self.log.user_ids
        if _is_list(users):
            self._wanted([])
        users = _rows_of(users, None if self.names is None else self.names.user, "users")
        own = columns_of(users, self.reading)
        wanted = self._wanted(own, None, ("user",))
        about = self._listed("users", own, self.names.user)
        wanted = self._ways("users", about) | wanted
        ids = self.candidates[0]
        for rows in rows_of(users, wanted, reading=self.reading):
            where = rows.source or "users"
            described = self._as_log(rows, "users", about) if about else None
            asked = self._read_who(rows, self.at) | {"described": described}
            user = _plain(pa.array(asked["user"]))
            known = columns.item_rows(user, self.names.user, rows.source, pa.array(self.log.user_ids), missing=-1)
            for owner, places, rank, logits in self.ranked(asked, known, top):
                found = {
                    self.shown("user"): _taken(user, owner),
                    "rank": rank,
                    self.shown("item"): _taken(ids, places),
                }
                found = {"row": rows.first + owner, **found} if has_rows else found
                yield found, logits
            unknown = self.limits.check(where, self.allow_unknown or self.leaves_known, rare=True)
            self.warnings = [*self._of_columns(where), *unknown, *self._unmet(where)]
            if self.early:
                self.warnings.append(
                    f"{where}: {self.early:,} of the users have no candidate: nobody had met an item at their time; give a later one"
                )
            if met_all := self.without - self.early:
                self.warnings.append(
                    f"{where}: {met_all:,} of the users have no candidate, as they have met all there are; --seen ranks these too"
                )

    def ranked(
        self, asked: dict[str, Any], user: np.ndarray, top: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """The best of each row of `asked`, which is what [`with_queries`][lmctr.data.logs.queries.with_queries] takes beside items (`described`: of the
        users alone), some rows after the other: rows, places among the candidates, ranks from 1 (N,), and (N, T) logits. user: the rows' numbers in
        the log, -1 for none."""
        if not is_whole(top):
            raise ValueError(f"top: got {top!r}, accepted: a whole number from 1")
        ids, rows, *_ = self.candidates
        if "items not in the log" not in self.unknown:
            self._add_new("items", rows < 0, ids)
        self._add_new("users", user < 0, asked["user"])
        waiting: list[tuple[int, np.ndarray]] = []
        pairs, most = 0, PAIRS >> 3  # a few at first, which tells how long all will take
        for row, (code, time) in enumerate(zip(user, asked["time"])):
            waiting.append((row, self.candidates_of(int(code), int(time))))
            pairs += len(waiting[-1][1])
            self.without += not len(waiting[-1][1])
            self.early += bool((self.candidates[2][:1] > time).any())  # sorted
            if pairs >= most or row == len(user) - 1:
                yield self._ranked(asked, waiting, top)
                waiting, pairs, most = [], 0, self._at_once

    @property
    def _at_once(self) -> int:
        return max(PAIRS, self.log.num_events >> 2)

    def _ranked(
        self, asked: dict[str, Any], waiting: list[tuple[int, np.ndarray]], top: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        ids, *_, about = self.candidates
        owner = np.repeat([row for row, _ in waiting], [len(places) for _, places in waiting])
        places = np.concatenate([places for _, places in waiting])
        parts = []
        for some in blocks(len(owner), self._at_once):
            given = {name: _taken(values, owner[some]) for name, values in asked.items()}
            told = {"catalogue": _taken(about, places[some]), "users": given.pop("described", None)}
            parts.append(self._logits(given | {"item": _taken(ids, places[some]), "described": told}))
        logits = np.concatenate(parts) if parts else np.zeros((0, len(self.tasks)), np.float32)
        users = asked["user"]
        refuse_without_score(
            logits, lambda pair: f"user {_shown(users, owner[pair])}, item {_shown(ids, places[pair])}"
        )
        order = np.lexsort((-logits[:, 0], owner))
        begins = np.searchsorted(owner[order], owner[order])
        rank = np.arange(len(order)) - begins + 1
        order, rank = order[rank <= top], rank[rank <= top]
        return owner[order], places[order], rank, logits[order]

    def _count_new(self, asked: dict[str, Any], queried: Queried) -> None:
        """Nothing: a user or item of many pairs is counted once, in `ranked`."""

    def hint(self) -> str | None:
        """A word about items that users come back to, where these are left out."""
        log = self.log
        if self.seen:
            return None
        pairs = log.user[log.seen].astype(np.int64) * log.num_items + log.item[log.seen]
        share = 1 - len(np.unique(pairs)) / max(len(pairs), 1)
        if share < _COME_BACK:
            return None
        return (
            f"{share:.0%} of the log's events are of an item that its user had met before; --seen ranks such items too"
        )


def _plain(ids: pa.Array) -> pa.Array:
    """Ids as numbers, or as texts of one type, whatever frame they come from."""
    ids = decoded(ids)
    return ids.cast(pa.string()) if pa.types.is_large_string(ids.type) else ids


def _taken(values: Any, rows: np.ndarray) -> Any:
    """Rows of an array, of Arrow or numpy, or of a table; None of None."""
    return values[rows] if isinstance(values, np.ndarray) else None if values is None else values.take(pa.array(rows))


def _shown(values: Any, row: int) -> str:
    return repr(pa.array(values)[int(row)].as_py())


def _is_list(values: Any) -> bool:
    """Whether values are ids, and no rows of a table."""
    if isinstance(values, (list, tuple, range)):
        return not values or not isinstance(values[0], Mapping)
    # of numpy, or a Series
    return isinstance(values, (pa.Array, pa.ChunkedArray)) or getattr(values, "ndim", None) == 1


def _rows_of(given: Any, name: str | None, role: str) -> Any:
    """Users or items as a table: a list of ids as one with a column of this name, any other as it is."""
    if _is_list(given):
        if not len(given):
            raise ValueError(f"{role}: the list is empty; give at least one id, or None for all")
        return {name: pa.array(given)}
    is_name, accepted = isinstance(given, (str, Path)), f"a table, or a file of one, with a row for each of the {role}"
    if is_name and not expanded(given).exists():
        raise FileNotFoundError(
            f"{role}: there is no file {str(given)!r}; accepted: {accepted}; in Python also a list of ids, such as [{given!r}]"
        )
    if not is_name and getattr(given, "ndim", 0 if isinstance(given, (Real, bytes)) else None) == 0:
        raise ValueError(f"{role}: got {given!r:.80}; accepted: a list of ids, such as [{given!r:.80}], {accepted}")
    return given


def _second(time: Any, own: TimeSpec | None) -> int:
    """A moment in unix seconds, of a text or number as the log writes times (`own`), else of unix seconds or an ISO text."""
    for spec in filter(None, (own, TimeSpec(column="time"))):
        try:
            return int(seconds_of(pa.array([time]), spec, "")[0])
        except (ValueError, pa.ArrowInvalid):
            continue
    written = "" if own is None or own.format is None else f", or one in the log's format {own.format!r}"
    raise ValueError(
        f"time: {time!r} is no time to rank at; accepted: unix seconds in the past, or a text such as 2024-03-01 12:00:00{written}"
    )


def _num_users(block: tuple[dict[str, Any], np.ndarray]) -> int:
    """Users who have a list in what [`BestItems.best`] gives at a time."""
    return np.count_nonzero(block[0]["rank"] == 1)


def best_table(ranked: BestItems, users: Any, top: int) -> pa.Table:
    """All that [`BestItems.best`] gives, with the columns of the scores."""
    parts = [pa.table(ids | score_columns(logits, ranked.tasks)) for ids, logits in ranked.best(users, top)]
    return pa.concat_tables(parts)


def recommend(options: RecommendOptions) -> int:
    """Write the best items for users.

    Raises:
        FileNotFoundError: no such folder or file; a folder without a recipe.
        ValueError: an option or a row that is not valid; a run of no log.
    """
    check_output(options.output, FORMATS)
    folder, model, processor = opened(options)
    more = {"allow_unknown": options.allow_unknown, "name": options.run, "batch_size": options.batch_size}
    ranked = BestItems(folder, model, processor, options.log, options.items, options.seen, options.time, **more)
    count = 0
    with scores_to(options.output, ranked.tasks) as writer:
        blocks = ranked.best(options.users, options.top)
        total = ranked.log.num_users if options.users is None else None
        for ids, logits in over(blocks, "ranking items", "users", total, _num_users):
            writer.write(ids, logits)
            count += _num_users((ids, logits))
    for warning in [*ranked.warnings, *filter(None, [ranked.hint()])]:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"the best {options.top} items of {count} users{unknown_words(ranked.unknown)}", file=sys.stderr)
    return 0
