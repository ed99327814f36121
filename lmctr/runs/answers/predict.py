"""`lmctr predict RUN --input requests.jsonl --output scores.jsonl`: scores for requests, line by line.

A request is one JSON object per line:

    {"history": [{"text": "Heat (1995)", "time": 1700000000, "feedback": "liked"}, ...],
     "target": "Casino (1995)", "time": 1700100000}

`history` is the user's full history, oldest first, with texts as the run's prompt writes items; `feedback` only where
the run uses it; `similarity` where the run's order or signals use it and the folder holds no retriever. `target` is a
text or {"text": ...}; `candidates` is a list of them, instead of `target`. An `id` is copied to the answer.

An answer is one JSON object per line, in the order of the requests: {"logit", "probability"} for a target,
{"logits", "probabilities"} for candidates. Memory stays bounded however long the input is.

`--requests FILE` instead of `--input FILE` is for many candidates per line: the history is encoded once where the model can share
it among them (decoders that read the latest behaviours), and the scores are the same.

A run whose model reads events (the sequence families) takes items by their ids instead of texts, see `lmctr.runs.answers.events`:

    {"history": [{"item": 318, "behavior": "like", "scenario": "home", "time": 1700000000}, ...],
     "candidates": [296, 47], "scenario": "home", "time": 1700100000}

A run whose model reads the fields of a table takes a file of raw rows instead (CSV, TSV, .gz of them, Parquet, JSON lines; `-` for
JSON lines), with the columns that its processor reads, and answers with `row` (1 is the first), `logit` and `probability`:

    lmctr predict RUN --input rows.csv --output scores.parquet --id-column ad_id

A run whose model ranks impressions takes a user and its ads per line, with the columns of their fields (null: missing), and answers with
`scores` in the order of the ads:

    {"user": {"region": "north", "clicked_ads": ["7"]}, "ads": [{"ad_id": "7", "clicks": 12}, {"ad_id": "9", "clicks": 0}]}
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lmctr.runs.answers.common import (
    RequestScorer,
    answer_of,
    load_retriever,
    name_of_input,
    open_text,
    process_lines,
    read_object,
    write_answers,
)
from lmctr.runs.folder import RECIPE, RunFolder, open_run

if TYPE_CHECKING:
    from lmctr.runs.inputs.base import View

_BATCH_SIZE = 64
REQUEST_KEYS = ("id", "history", "target", "candidates", "time")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "predict",
        help="score requests with a trained run",
        description="Score requests (JSON lines) with a trained run. Format:\n" + (__doc__ or "").split("\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", help="run folder of lmctr train")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--input", help="JSON lines file, a table, or - for standard input")
    source.add_argument(
        "--requests", metavar="FILE", help="JSON lines with many candidates each, or - for standard input"
    )
    parser.add_argument(
        "--output",
        default="-",
        help="JSON lines file (tables: also .csv, .parquet), or - for standard output (default)",
    )
    parser.add_argument("--id-column", metavar="COLUMN", help="tables: column of the input to copy to the output")
    parser.add_argument(
        "--batch_size", type=int, help="rows (request x candidate) per forward pass (default 64; tables: 4096)"
    )
    parser.add_argument(
        "--max_tokens", type=int, default=8192, help="with --requests: most positions per forward pass (default 8192)"
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda where there is one)")


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    if args.requests is not None:
        from lmctr.runs.answers.requests import predict_requests

        return predict_requests(args)
    if args.batch_size is not None and args.batch_size < 1:
        raise ValueError(f"--batch_size must be at least 1, got {args.batch_size}")
    folder = open_run(args.run)
    if _reads_tables(folder):
        from lmctr.runs.answers.tables import predict_table

        count = predict_table(folder, args.input, args.output, args.id_column, args.batch_size, args.device)
        print(f"{count} rows scored", file=sys.stderr)
        return 0
    if view_of_run(folder).reads_impressions:
        from lmctr.runs.answers.impressions import predict_impressions

        if args.id_column is not None:
            raise ValueError("--id-column is for runs that read tables; a request of this run has an id of its own")
        predict_impressions(folder, args.input, args.output, args.batch_size, args.device)
        return 0
    if args.id_column is not None:
        raise ValueError("--id-column is for runs that read tables; a request of this run has an id of its own")
    with open_text(args.input, "r") as source:
        scorer = _scorer_class(folder)(folder, args.batch_size or _BATCH_SIZE, args.device)
        count = write_answers(scorer.answers(source, name_of_input(args.input)), args.output)
    print(f"{count} requests scored", file=sys.stderr)
    return 0


def _reads_tables(folder: RunFolder) -> bool:
    return view_of_run(folder).reads_tables


def _scorer_class(folder: RunFolder) -> Callable[..., Any]:
    if not view_of_run(folder).reads_events:
        return Scorer
    from lmctr.runs.answers.events import EventScorer

    return EventScorer


def view_of_run(folder: RunFolder) -> View:
    """The view of a run's family, before any data are read."""
    from lmctr.runs.inputs import view_of
    from lmctr.runs.recipe import load_recipe

    return view_of(load_recipe(folder.path / RECIPE))


class Scorer(RequestScorer):
    """Scores requests of texts: a row of the model per candidate."""

    def __init__(self, folder: RunFolder, batch_size: int, device: str | None = None):
        super().__init__(folder, batch_size, device)
        self.retriever = load_retriever(folder, self.processor)

    def _parse(self, line: str, where: str) -> dict[str, Any]:
        return parse_request(line, where)

    def _score(self, waiting: list[tuple[int, dict[str, Any]]], name: str) -> Iterator[dict[str, Any]]:
        import numpy as np

        rows = [(number, request, target) for number, request in waiting for target in request["candidates"]]
        sizes = np.array([sum(len(entry.get("text") or "") for entry in row[1]["history"]) for row in rows])
        order = np.argsort(-sizes, kind="stable")
        logits = np.empty(len(rows), dtype=np.float64)
        for start in range(0, len(rows), self.batch_size):
            chosen = order[start : start + self.batch_size]
            batch = process_lines(self._process, [rows[index] for index in chosen], lambda row: row[0], name)
            logits[chosen] = self._forward(batch)
        place = 0
        for _, request in waiting:
            values = logits[place : place + len(request["candidates"])]
            place += len(values)
            yield answer_of(request, values)

    def _process(self, rows: list[tuple[int, dict[str, Any], dict[str, Any]]]) -> Any:
        return self.processor(
            histories=[self._with_similarity(request["history"], target) for _, request, target in rows],
            targets=[target for _, _, target in rows],
            times=[request["time"] for _, request, _ in rows],
        )

    def _with_similarity(self, history: list[dict[str, Any]], target: dict[str, Any]) -> list[dict[str, Any]]:
        if self.retriever is None or all("similarity" in entry for entry in history):
            return history
        cosines = self.retriever.similarity([target["text"]], [entry.get("text") for entry in history])[0]
        return [{**entry, "similarity": float(cosine)} for entry, cosine in zip(history, cosines)]


def parse_request(
    line: str,
    where: str,
    read_target: Callable[[Any, str], Any] | None = None,
    keys: Sequence[str] = REQUEST_KEYS,
) -> dict[str, Any]:
    """One line of input as a checked request with `history`, `time`, `candidates` (a list of targets) and `single`.

    `read_target(value, where)` checks a target; default: a text, or an object with "text". `keys` are those that a request may have.

    Raises:
        ValueError: no JSON object, unknown or missing keys, values of the wrong type; starts with `where`.
    """
    request = read_object(line, where, keys)
    for key in ("history", "time"):
        if key not in request:
            raise ValueError(f"{where}: the request has no {key!r}")
    if not isinstance(request["history"], list):
        raise ValueError(f"{where}: history must be a list of behaviours, oldest first; [] for a new user")
    if not all(isinstance(entry, dict) for entry in request["history"]):
        named = "text" if read_target is None else "item"
        raise ValueError(f'{where}: each behaviour of the history is an object with "{named}" and "time"')
    if isinstance(request["time"], bool) or not isinstance(request["time"], (int, float)):
        raise ValueError(f"{where}: time must be a number of seconds, got {request['time']!r}")
    if ("target" in request) == ("candidates" in request):
        raise ValueError(f'{where}: give either "target" (one item) or "candidates" (a list of items)')
    single = "target" in request
    targets = [request["target"]] if single else request["candidates"]
    if not isinstance(targets, list) or not targets:
        raise ValueError(f"{where}: candidates must be a list of at least one item")
    request["candidates"] = [(read_target or _target)(value, where) for value in targets]
    request["single"] = single
    return request


def _target(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, dict) and set(value) == {"text"} and isinstance(value["text"], (str, type(None))):
        return value
    raise ValueError(
        f'{where}: a target is a text or {{"text": ...}}, got {json.dumps(value, ensure_ascii=False)[:80]}'
    )
