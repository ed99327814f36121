"""Scores for the ads of users: what `lmctr predict` does with a run whose model ranks impressions."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

from lmctr.runs.answers.common import (
    load_for_scoring,
    name_of_input,
    open_text,
    process_lines,
    read_object,
    write_answers,
)
from lmctr.runs.folder import RunFolder

if TYPE_CHECKING:
    import numpy as np

BATCH_SIZE = 4096
_KEYS = ("id", "user", "ads")


def predict_impressions(
    folder: RunFolder, source: str, target: str = "-", batch_size: int | None = None, device: str | None = None
) -> int:
    """Score requests, one JSON object per line, with memory that does not grow with their number.

    Args:
        folder: a finished run of a retrieval family.
        source: JSON lines `{"user": {...}, "ads": [{...}, ...]}` with the columns of the user's and the ads' fields, and an `id` that is copied;
            `-` reads standard input. Other columns are ignored.
        target: JSON lines `{"scores": [...]}` in the order of the ads; `-` writes to standard output.
        batch_size: ads per forward pass (a request's ads stay together).
        device: torch device, default: cuda where there is one.

    Returns:
        The number of requests.

    Raises:
        FileNotFoundError: no such file. ValueError: a line that is no valid request; names file and line.
    """
    name = name_of_input(source)
    with open_text(source, "r") as lines:
        model, processor = load_for_scoring(folder, device)
        count = write_answers(_answers(model, processor, _groups(lines, name, batch_size or BATCH_SIZE), name), target)
    print(f"{count} requests scored", file=sys.stderr)
    return count


def _answers(
    model: Any, processor: Any, groups: Iterable[list[tuple[int, dict[str, Any]]]], name: str
) -> Iterator[dict[str, Any]]:
    for requests in groups:
        for (_, request), scores in zip(requests, _scores(model, processor, requests, name)):
            answer = {"id": request["id"]} if "id" in request else {}
            yield answer | {"scores": scores.tolist()}


def _groups(lines: IO[str], name: str, batch_size: int) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Requests with their line numbers, as many as have `batch_size` ads together."""
    waiting: list[tuple[int, dict[str, Any]]] = []
    ads = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        request = _request(line, f"{name}, line {number}")
        if waiting and ads + len(request["ads"]) > batch_size:
            yield waiting
            waiting, ads = [], 0
        waiting.append((number, request))
        ads += len(request["ads"])
    if waiting:
        yield waiting


def _request(line: str, where: str) -> dict[str, Any]:
    request = read_object(line, where, _KEYS)
    if not isinstance(request.get("user"), dict):
        raise ValueError(f"{where}: user must be an object with the columns of the user's fields")
    ads = request.get("ads")
    if not isinstance(ads, list) or not ads or not all(isinstance(ad, dict) for ad in ads):
        raise ValueError(f"{where}: ads must be a list of at least one object with the columns of the ads' fields")
    return request


def _scores(model: Any, processor: Any, requests: list[tuple[int, dict[str, Any]]], name: str) -> list[np.ndarray]:
    """Scores of each request's ads."""
    import torch

    def inputs(some: list[tuple[int, dict[str, Any]]]) -> Any:
        users, ads = [request["user"] for _, request in some], [request["ads"] for _, request in some]
        # A column that only some rows have would be taken from the first one's.
        return processor(
            users=[_completed(row, processor.user_columns(), "user") for row in users],
            ads=[[_completed(row, processor.ad_columns(), "ad") for row in own] for own in ads],
        )

    batch = process_lines(inputs, requests, lambda request: request[0], name)
    with torch.inference_mode():
        logits = model(**batch.to(model.device)).logits.float().cpu().numpy()
    return [row[: len(request["ads"])] for row, (_, request) in zip(logits, requests)]


def _completed(row: dict[str, Any], columns: dict[str, str], what: str) -> dict[str, Any]:
    missing = [column for column in columns if column not in row]
    if missing:
        raise ValueError(
            f"{what}: no {', '.join(map(repr, missing))}; give every column of {', '.join(columns)} (null is a missing value)"
        )
    return {column: row[column] for column in columns}
