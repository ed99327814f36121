"""Statistics of requests: the user's own and the cross ones counted from the behaviours, the items' read from a table."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from lmctr.statistics import UserStatistics
from lmctr.statistics.table import SHOWN
from lmctr.utils.rows import each, whole_seconds
from lmctr.utils.suggest import errors_of, refuse_unknown

if TYPE_CHECKING:
    from lmctr.statistics import ItemStatistics


class RequestStatistics:
    """What a user's behaviours say of candidates, as a training saw it: equal to the reader's values on a log of the same events.

    Args:
        processor: of a model with statistics. items: the table of the items.

    Raises:
        ValueError: a processor without a `statistics_reader`.
    """

    def __init__(self, processor: Any, items: ItemStatistics):
        reader = getattr(processor, "statistics_reader", None)
        if reader is None:
            raise ValueError("items: the model reads no statistics, so a table of items has no use; leave it out")
        self.processor = processor
        self.user = UserStatistics(reader, items)

    def __copy__(self) -> RequestStatistics:
        """What the same user did, which goes on by itself."""
        twin = object.__new__(type(self))
        twin.processor, twin.user = self.processor, copy.copy(self.user)
        return twin

    def load(self, values: Mapping[str, Any], items: ItemStatistics) -> None:
        """Take over the user's counts as `UserStatistics.to_dict` gave them."""
        self.user = UserStatistics.from_dict(values, self.processor.statistics_reader, items)

    def extend(self, behaviors: Sequence[Mapping[str, Any]], name: str = "history") -> None:
        """Count behaviours, oldest first, none earlier than those before; `name`: what errors call them.

        Raises:
            ValueError: a behaviour without `item`, with one that can be no id, or whose label is not known; nothing is counted then.
        """
        self.extend_many([self], [behaviors], name)

    def fill(self, candidates: Sequence[Any], time: float) -> list[dict[str, Any]]:
        """The candidates with their raw `statistics` at `time` (or their own `time`); those that have them keep them.

        Raises:
            ValueError: a candidate without `item`, with one that can be no id, or without the `context` that the model reads.
        """
        return self.fill_many([self], [candidates], [time])[0]

    @staticmethod
    def extend_many(
        those: Sequence[RequestStatistics], behaviors: Sequence[Sequence[Mapping[str, Any]]], name: str = "history"
    ) -> None:
        """[`extend`] each of several, of one processor and table, all at once.

        Raises:
            ValueError: as [`extend`]; nothing is counted then.
        """
        try:
            events = [one.processor.statistics_events(own) for one, own in zip(those, behaviors, strict=True)]
            for one, (items, *_) in zip(those, events):
                each(items, f"{name}[{{}}]: item".format, one.user.items.check)
            UserStatistics.extend_many([one.user for one in those], events)
        except ValueError as error:  # the processor speaks of batches, the statistics of columns
            text = re.sub(r"^times\[(\d+)\] is", rf"{name}[\1]: time is", str(error))
            raise ValueError(text.replace("histories[0]", name)) from error

    @staticmethod
    def fill_many(
        those: Sequence[RequestStatistics], candidates: Sequence[Sequence[Any]], times: Sequence[float]
    ) -> list[list[dict[str, Any]]]:
        """[`fill`] of several, of one processor and table, all at once; one may come several times.

        Raises:
            ValueError: as [`fill`].
        """
        filled, asked = [], []
        for one, own, time in zip(those, candidates, times, strict=True):
            entries, by_time = one._read(own, time)
            filled.append(entries)
            asked += [
                (one, moment, [entries[number] for number in numbers], numbers) for moment, numbers in by_time.items()
            ]
        if not asked:
            return filled
        users, moments, groups, numbers = zip(*asked)
        values = UserStatistics.at_many(
            [one.user for one in users], [[entry["item"] for entry in own] for own in groups], moments
        )
        entries = list(chain.from_iterable(groups))
        if those[0].processor.statistics_reader.context:
            values = those[0]._with_context(values, entries, list(chain.from_iterable(numbers)))
        for entry, row in zip(entries, values.tolist()):
            entry["statistics"] = row
        return filled

    def _read(self, candidates: Sequence[Any], time: float) -> tuple[list[dict[str, Any]], dict[int, list[int]]]:
        """Candidates as dicts, and by the second of their statistics, fractions cut off, the numbers of those that lack them."""
        filled, by_time, seconds = [], {}, None
        for number, candidate in enumerate(candidates):
            entry = dict(candidate) if isinstance(candidate, Mapping) else self.processor.as_target(candidate)
            filled.append(entry)
            if entry.get("statistics") is not None:
                continue
            if "item" not in entry:
                unseen = ", null for an item that was never seen," if self.processor.request_kind == "text" else ""
                raise ValueError(
                    f"candidates[{number}] has no 'item', by which its statistics are found; give the item's id{unseen} or the "
                    "candidate's own 'statistics'"
                )
            self.user.items.check(entry["item"], f"candidates[{number}]: item")
            if entry.get("time") is not None:
                own = whole_seconds(entry["time"], f"candidates[{number}]: time")
            else:
                own = seconds = whole_seconds(time, "time") if seconds is None else seconds
            by_time.setdefault(own, []).append(number)
        return filled, by_time

    def _with_context(self, raw: np.ndarray, entries: Sequence[dict[str, Any]], numbers: Sequence[int]) -> np.ndarray:
        """Raw statistics of candidates with those of their context, which is taken out of them, and of their scenario."""
        reader, contexts = self.processor.statistics_reader, []
        asked = reader.asked_context
        for number, entry in zip(numbers, entries):
            context = entry.pop("context", None if asked else {})
            if not isinstance(context, Mapping):
                found = "none" if context is None else f"{context!r}"
                raise ValueError(
                    f"candidates[{number}] needs 'context', an object of {', '.join(map(repr, asked))}; got {found}"
                )
            refuse_unknown(context, asked, f"candidates[{number}]: context")
            if asked != reader.context:
                context = {**context, SHOWN: self.processor.scenario_of(entry, f"candidates[{number}]")}
            contexts.append(context)
        try:
            return reader.with_context(raw, contexts)
        except ValueError:
            for number, context in zip(numbers, contexts):
                with errors_of(f"candidates[{number}]"):
                    reader.with_context(raw[:1], [context])
            raise
