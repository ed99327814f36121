"""Scores by a trained model: for the lines of a file (`lmctr predict`), or for requests and rows in Python."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmctr.data.features.unknown import check_unknown
from lmctr.data.logs.text_encoders import TextRetriever
from lmctr.data.names import names_from
from lmctr.models.common.base import evaluation_mode
from lmctr.runs.download import open_model
from lmctr.runs.folder import ITEM_STATISTICS, RunFolder
from lmctr.runs.loading import load_folder
from lmctr.serving.precision import in_precision
from lmctr.statistics import ItemStatistics
from lmctr.utils.load_report import without_bars
from lmctr.utils.measure import usable_device
from lmctr.utils.progress import over
from lmctr.utils.rows import is_table, plain_row, requests_of

from .base import Answers, unknown_words
from .files import check_input, check_output, is_table_file, whole_output
from .histories import EventAnswers, TextAnswers
from .impressions import ImpressionAnswers, PairProcessor
from .joined import JoinedRows, joined_files_of, reads_log
from .options import PredictOptions, RecommendOptions
from .requests import answer_of, read_objects
from .tables import FORMATS, TableRows, columns_of, finite_table_logits, scores_to, source_name

logger = logging.getLogger(__name__)


_CHECKED = 512  # requests after which what was unknown is looked at
_KINDS = ("text", "table", "events", "impressions")


def predict(options: PredictOptions) -> int:
    """Score every line or row of a file.

    Raises:
        FileNotFoundError: no such folder or file.
        ValueError: an option that this kind of input has not; a line or row that is not valid, by its place in the file.
    """
    folder, model, processor = opened(options)
    kind = _request_kind(processor)
    columns = processor.input_columns() if kind == "table" else None
    names = None if options.names is None else names_from(options.names)
    joins = reads_log(folder, options.log, options.input, kind, columns, names)
    of_pairs = kind == "impressions" and is_table_file(options.input)
    _check_options(options, "log" if joins else "table" if of_pairs else kind)
    skip = options.on_error == "skip"
    more = {"batch_size": options.batch_size, "skip": skip, "allow_unknown": options.allow_unknown, "names": names}
    if joins:
        return _predict_rows(JoinedRows(folder, model, processor, options.log, name=options.run, **more), options)
    if kind == "table":
        return _predict_rows(TableRows(model, processor, joined=partial(joined_files_of, folder), **more), options)
    if of_pairs:
        return _predict_rows(TableRows(model, PairProcessor(processor), **more), options)
    retriever = load_retriever(folder.path, processor)
    items = load_item_statistics(folder.path, processor)
    answers = answers_for(model, processor, retriever, options.batch_size, options.max_tokens, items)
    answers.skips = skip
    count = skipped = 0
    name = source_name(options.input)
    limits = name, options.allow_unknown, folder.unknown_shares()
    with (
        nullcontext(sys.stdin) if options.input == "-" else open(options.input, encoding="utf-8") as lines,
        whole_output(options.output) as target,
    ):
        scored = answers.scored(read_objects(lines, name, skip=skip))
        for number, (request, logits) in enumerate(over(scored, f"scoring {name}", "requests")):
            if number % _CHECKED == _CHECKED - 1:
                check_unknown(processor, answers.unknown, answers.examples, *limits)
            answer = answer_of(request, logits, answers.tasks)
            target.write(json.dumps(answer, ensure_ascii=False) + "\n")
            count, skipped = count + (logits is not None), skipped + (logits is None)
        warnings = check_unknown(processor, answers.unknown, answers.examples, *limits)
    _warn(warnings)
    reason = f" ({answers.reason})" if answers.reason else ""
    left = f", {skipped} skipped" if skipped else ""
    cut = f"; {words}" if (words := answers.cut_words()) else ""
    print(f"{count} requests scored{left}{reason}{unknown_words(answers.unknown)}{cut}", file=sys.stderr)
    return 0


def opened(options: PredictOptions | RecommendOptions) -> tuple[RunFolder, torch.nn.Module, Any]:
    """The folder of the run that options name, its model on the device and in the precision that they ask for, and its processor."""
    place = usable_device(options.device)
    folder = open_model(options.run)
    model, processor = load_folder(folder)
    with model.same_weights():
        in_precision(model.to(place), options.dtype)
    return folder, model, processor


def _predict_rows(rows: JoinedRows | TableRows, options: PredictOptions) -> int:
    count, skipped, name = 0, 0, source_name(options.input)
    with scores_to(options.output, rows.tasks) as writer:
        blocks = rows.blocks(options.input, options.id_column)
        for ids, logits, reasons in over(blocks, f"scoring {name}", "rows", count=lambda block: len(block[2])):
            writer.write(ids, logits, reasons if rows.skip and reasons else None)
            bad = sum(reason is not None for reason in reasons)
            count, skipped = count + len(reasons) - bad, skipped + bad
        if skipped and not count:
            raise ValueError(f"{name}: no row could be scored; the last one: {reasons[-1]}")
    _warn(rows.warnings)
    left = f", {skipped} skipped (see the column error)" if skipped else ""
    print(f"{count} rows scored{left}{unknown_words(rows.unknown)}", file=sys.stderr)
    return 0


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def predict_rows(
    model: torch.nn.Module,
    processor: Any,
    rows: Any,
    retriever: Any = None,
    items: ItemStatistics | None = None,
    allow_unknown: bool = False,
) -> np.ndarray:
    """Logits of requests or rows by a model and its processor.

    Args:
        model: a model with its CTR head; scores on its own device, in evaluation mode.
        processor: the processor saved with it.
        rows: a list or table of requests, dicts as the lines of `lmctr predict` are; for tabular models anything that its processor takes: a list
            of dicts, a dict of columns, a pandas DataFrame, a pyarrow Table, a `datasets` Dataset; of impressions also a table of rows of a user and one
            ad each.
        retriever: of a run whose histories are chosen by similarity, see `load_retriever`.
        items: the items' statistics of a run whose model reads statistics, see `load_item_statistics`.
        allow_unknown: warn only where a field has nearly no known value.

    Returns:
        (R,) float32 logits, or (R, T) of several tasks: one for each row, for each target or candidate of the requests, in order.

    Raises:
        ValueError: a request or row that is not valid; names it. A table with nearly no known value in a field.
    """
    with evaluation_mode(model):
        kind = _request_kind(processor)
        of_pairs = kind == "impressions" and is_table(rows) and "ads" not in columns_of(rows)
        if kind == "table" or of_pairs:
            processor = PairProcessor(processor) if of_pairs else processor
            inputs = processor(rows)
            found = processor.oov_counts, processor.unknown_examples, "rows", allow_unknown
            for warning in check_unknown(processor, *found):
                logger.warning(warning)
            found = finite_table_logits(model, inputs)
            return found[:, 0] if of_pairs else found
        if is_table(rows) and not isinstance(rows, Mapping):
            rows = requests_of(rows)
        if isinstance(rows, (str, dict)) or not hasattr(rows, "__iter__"):
            raise ValueError(f"rows: expected a list of requests, got {type(rows).__name__}; give [request] for one")
        answers = answers_for(model, processor, retriever, items=items)
        found = [logits for _, logits in answers.scored((f"rows[{n}]", plain_row(row)) for n, row in enumerate(rows))]
        if words := answers.cut_words():
            logger.warning(words)
        return np.concatenate(found) if found else np.zeros(0, dtype=np.float32)


def answers_for(
    model: torch.nn.Module,
    processor: Any,
    retriever: Any = None,
    batch_size: int | None = None,
    max_tokens: int | None = None,
    items: ItemStatistics | None = None,
) -> Answers:
    """What answers the requests of a processor's kind.

    Raises:
        ValueError: a processor of rows of a table, or of no known kind.
    """
    kind = _request_kind(processor)
    if kind == "impressions":
        return ImpressionAnswers(model, processor, batch_size)
    if kind == "table":
        raise ValueError(f"processor: {type(processor).__name__} reads rows of a table, no requests")
    kinds = {"text": TextAnswers, "events": EventAnswers}
    return kinds[kind](model, processor, batch_size, max_tokens, retriever, items)


def item_statistics_file(path: str | Path, processor: Any) -> Path | None:
    """The table of the items' statistics of a run where its processor reads statistics and the folder holds it, else None."""
    file = Path(path) / ITEM_STATISTICS
    reads = hasattr(processor, "statistics_events") and processor.statistics_reader is not None
    return file if reads and file.is_file() else None


def load_item_statistics(path: str | Path, processor: Any) -> ItemStatistics | None:
    """What that table says."""
    file = item_statistics_file(path, processor)
    return None if file is None else ItemStatistics.load(file)


def load_retriever(path: str | Path, processor: Any) -> TextRetriever | None:
    """The `TextRetriever` of a run where its processor needs similarities and the folder holds one, else None."""
    folder = Path(path) / "retriever"
    if processor.request_kind != "text" or not processor.needs_similarity or not folder.is_dir():
        return None
    with without_bars():
        return TextRetriever.from_pretrained(folder)


def _request_kind(processor: Any) -> str:
    kind = getattr(processor, "request_kind", None)  # of any class that a user's folder names
    if kind not in _KINDS:
        raise ValueError(
            f"processor: {type(processor).__name__} does not say what it reads (request_kind {kind!r}; accepted: {', '.join(_KINDS)})"
        )
    return kind


def _check_options(options: PredictOptions, kind: str) -> None:
    tables = kind in ("table", "log")
    if options.id_column is not None and not tables:
        raise ValueError("--id-column is for runs that read tables; a request of this run has an id of its own")
    if options.names is not None and not tables:
        raise ValueError("--names is for runs that read tables; a request of this run names its own keys")
    if options.max_tokens is not None and (tables or kind == "impressions"):
        raise ValueError(
            "--max-tokens is for runs that read histories; --batch-size bounds a forward pass of this one"
        )
    check_output(options.output, FORMATS if tables else None)
    if kind == "log" and options.input == "-":
        raise ValueError("--input -: rows that are joined with a log come from a file")
    check_input(options.input, tables)
