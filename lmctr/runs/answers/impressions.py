"""Answers to requests of a user and the ads to rank for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from lmctr.data.features.transform import add_counts

from .base import Answers, Request, grid_batches, process_rows
from .requests import impression_request

__all__ = ["ImpressionAnswers"]


class ImpressionAnswers(Answers):
    """A request's ads stay together in a forward pass of at most `batch_size` ads, padding included, where they fit."""

    default_batch_size: ClassVar[int] = 4096
    batches_at_a_time: ClassVar[int] = 1
    candidates_key: ClassVar[str] = "ads"

    def check(self, request: Any, where: str) -> dict[str, Any]:
        return impression_request(request, where)

    def together(self, requests: Sequence[Request]) -> list[np.ndarray]:
        scores = []
        for batch in grid_batches(requests, lambda request: len(request[1]["ads"]), self.batch_size):
            inputs = process_rows(self._process, batch, lambda request: request[0])
            self.unknown = add_counts([self.unknown, self.processor.oov_counts])
            scores += [row[: len(request["ads"])] for row, (_, request) in zip(self.forward(inputs), batch)]
        return scores

    def _process(self, requests: Sequence[Request]) -> Any:
        # A column that only some rows have would be taken from the first one's.
        users, ads = self.processor.user_columns(), self.processor.ad_columns()
        return self.processor(
            users=[_completed(request["user"], users, "user") for _, request in requests],
            ads=[[_completed(ad, ads, "ad") for ad in request["ads"]] for _, request in requests],
        )


def _completed(row: dict[str, Any], columns: dict[str, str], what: str) -> dict[str, Any]:
    missing = [column for column in columns if column not in row]
    if missing:
        raise ValueError(
            f"{what}: no {', '.join(map(repr, missing))}; give every column of {', '.join(columns)} (null is a missing value)"
        )
    return {column: row[column] for column in columns}
