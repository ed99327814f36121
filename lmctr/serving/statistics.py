"""Statistics of requests: the user's own and the cross ones counted from the behaviours, the items' read from a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lmctr.statistics import UserStatistics
from lmctr.utils.rows import whole_seconds
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

    def load(self, values: Mapping[str, Any], items: ItemStatistics) -> None:
        """Take over the user's counts as `UserStatistics.to_dict` gave them."""
        self.user = UserStatistics.from_dict(values, self.processor.statistics_reader, items)

    def extend(self, behaviors: Sequence[Mapping[str, Any]]) -> None:
        """Count behaviours, oldest first, none earlier than those before.

        Raises:
            ValueError: a behaviour without `item`, with one that can be no id, or whose label is not known; nothing is counted then.
        """
        try:
            items, *events = self.processor.statistics_events(behaviors)
            for number, item in enumerate(items):
                self.user.items.check(item, f"history[{number}]: item")
            self.user.extend(items, *events)
        except ValueError as error:  # the processor speaks of batches, the statistics of columns
            text = re.sub(r"^times\[(\d+)\] is", r"history[\1]: time is", str(error))
            raise ValueError(text.replace("histories[0]", "history")) from error

    def fill(self, candidates: Sequence[Any], time: float) -> list[dict[str, Any]]:
        """The candidates with their raw `statistics` at `time` (or their own `time`); those that have them keep them.

        Raises:
            ValueError: a candidate without `item`, with one that can be no id, or without the `context` that the model reads.
        """
        reader = self.processor.statistics_reader
        filled, by_time = [], {}
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
            own = time if entry.get("time") is None else whole_seconds(entry["time"], f"candidates[{number}]: time")
            by_time.setdefault(own, []).append(number)
        for moment, numbers in by_time.items():
            values = self.user.at([filled[number]["item"] for number in numbers], moment)
            if reader.context:
                values = self._with_context(
                    values, {number: filled[number].pop("context", None) for number in numbers}
                )
            for number, row in zip(numbers, values.tolist()):
                filled[number]["statistics"] = row
        return filled

    def _with_context(self, raw: np.ndarray, contexts: Mapping[int, Any]) -> np.ndarray:
        reader = self.processor.statistics_reader
        for number, context in contexts.items():
            if not isinstance(context, Mapping):
                found = "none" if context is None else f"{context!r}"
                raise ValueError(
                    f"candidates[{number}] needs 'context', an object of {', '.join(reader.context)}; got {found}"
                )
            refuse_unknown(context, reader.context, f"candidates[{number}]: context")
        try:
            return reader.with_context(raw, list(contexts.values()))
        except ValueError:
            for number, context in contexts.items():
                with errors_of(f"candidates[{number}]"):
                    reader.with_context(raw[:1], [context])
            raise
