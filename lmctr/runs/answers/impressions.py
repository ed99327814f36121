"""Answers to requests of a user and the ads to rank for it, and rows of a user and one ad each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from lmctr.data.features.transform import add_counts, merged_examples
from lmctr.utils.suggest import first_listed, first_quoted

from .base import Answers, Request, Row, by_place, grid_batches
from .requests import impression_request
from .tables import RANKING


class ImpressionAnswers(Answers):
    """A request's ads stay together in a forward pass of at most `batch_size` ads, padding included, where they fit."""

    default_batch_size: ClassVar[int] = 4096
    batches_at_a_time: ClassVar[int] = 1
    candidates_key: ClassVar[str] = "ads"

    check = staticmethod(impression_request)

    def batches(self, requests: Sequence[Request]) -> Iterable[list[tuple[int, Sequence[int]]]]:
        rows = [(place, range(len(request["ads"]))) for place, (_, request) in enumerate(requests)]
        return grid_batches(rows, lambda row: len(row[1]), self.batch_size)

    def process(self, rows: list[Row]) -> Any:
        # A column that only some rows have would be taken from the first one's.
        users, ads = self.processor.user_columns(), self.processor.ad_columns()
        batch = self.processor(
            users=[_completed(request["user"], users, "user") for _, request, _ in rows],
            ads=[[_completed(ad, ads, f"ads[{place}]") for place, ad in enumerate(own)] for _, _, own in rows],
        )
        self.unknown = add_counts([self.unknown, self.processor.oov_counts])
        self.examples = merged_examples([self.examples, self.processor.unknown_examples])
        return batch

    def in_words(self, error: str, row: Row) -> str:
        of_ads = error.removeprefix("ads of user 0: ")
        if of_ads != error:
            return f"ads: {by_place(of_ads, 'ads')}"
        return by_place(error, None)


class PairProcessor:
    """What [`TableRows`][lmctr.runs.answers.tables.TableRows] asks of a processor of tables, of one of impressions whose rows hold user and ad."""

    tasks, reading = RANKING, None

    def __init__(self, processor: Any):
        self._processor = processor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)

    def __call__(self, rows: Any) -> Any:
        return self._processor.pairs(rows)

    def input_columns(self) -> dict[str, str]:
        return self._processor.ad_columns() | self._processor.user_columns()


def _completed(row: dict[str, Any], columns: dict[str, str], what: str) -> dict[str, Any]:
    missing = [column for column in columns if column not in row]
    if missing:
        raise ValueError(
            f"{what}: no {first_quoted(missing)}; give every column of {first_listed(columns)} (null is a missing value)"
        )
    return {column: row[column] for column in columns}
