"""Scores for the ads of users: what `lmctr predict` does with a run whose model ranks impressions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from lmctr.cli.runs import RunFolder
from lmctr.utils.suggest import unknown_key_message

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
    import torch
    import transformers

    from lmctr.cli.predict import open_text
    from lmctr.hub.loading import load_run

    transformers.utils.logging.disable_progress_bar()
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    name = "standard input" if source == "-" else source
    with open_text(source, "r") as lines:
        model, processor = load_run(folder.path)
        model = model.eval().to(place)
        count = 0
        with open_text(target, "w") as output:
            for requests in _groups(lines, name, batch_size or BATCH_SIZE):
                for (_, request), scores in zip(requests, _scores(model, processor, requests, name, place)):
                    answer = {"id": request["id"]} if "id" in request else {}
                    output.write(json.dumps(answer | {"scores": scores.tolist()}, ensure_ascii=False) + "\n")
                count += len(requests)
            output.flush()
    print(f"{count} requests scored", file=sys.stderr)
    return count


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
    try:
        request = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(request, dict):
        raise ValueError(f"{where}: a request is a JSON object, got {type(request).__name__}")
    for key in request:
        if key not in _KEYS:
            raise ValueError(f"{where}: {unknown_key_message(key, _KEYS, 'the request')}")
    if not isinstance(request.get("user"), dict):
        raise ValueError(f"{where}: user must be an object with the columns of the user's fields")
    ads = request.get("ads")
    if not isinstance(ads, list) or not ads or not all(isinstance(ad, dict) for ad in ads):
        raise ValueError(f"{where}: ads must be a list of at least one object with the columns of the ads' fields")
    return request


def _scores(
    model: Any, processor: Any, requests: list[tuple[int, dict[str, Any]]], name: str, device: Any
) -> list[np.ndarray]:
    """Scores of each request's ads."""
    import torch

    def inputs(some: list[tuple[int, dict[str, Any]]]) -> Any:
        users, ads = [request["user"] for _, request in some], [request["ads"] for _, request in some]
        # A column that only some rows have would be taken from the first one's.
        return processor(
            users=[_completed(row, processor.user_columns(), "user") for row in users],
            ads=[[_completed(row, processor.ad_columns(), "ad") for row in own] for own in ads],
        )

    try:
        batch = inputs(requests)
    except ValueError:
        for request in requests:  # one by one, to name the line
            try:
                inputs([request])
            except ValueError as error:
                raise ValueError(f"{name}, line {request[0]}: {error}") from error
        raise
    with torch.inference_mode():
        logits = model(**batch.to(device)).logits.float().cpu().numpy()
    return [row[: len(request["ads"])] for row, (_, request) in zip(logits, requests)]


def _completed(row: dict[str, Any], columns: dict[str, str], what: str) -> dict[str, Any]:
    missing = [column for column in columns if column not in row]
    if missing:
        raise ValueError(
            f"{what}: no {', '.join(map(repr, missing))}; give every column of {', '.join(columns)} (null is a missing value)"
        )
    return {column: row[column] for column in columns}
