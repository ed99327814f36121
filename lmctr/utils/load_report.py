"""What transformers prints while it loads a model: its table of missing and unexpected weights, and its bars."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import huggingface_hub.utils
from transformers.utils import logging as transformers_logging

from lmctr.utils.progress import without_bars_of


@contextmanager
def held_load_report() -> Iterator[list[logging.LogRecord]]:
    """Keep the table from being printed; its records are in the list."""
    held: list[logging.LogRecord] = []

    def hold(record: logging.LogRecord) -> bool:
        if "LOAD REPORT" not in record.getMessage():
            return True
        held.append(record)
        return False

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(hold)
    try:
        yield held
    finally:
        logger.removeFilter(hold)


@contextmanager
def without_bars() -> Iterator[None]:
    """Inside, transformers and the Hub draw no bars of their own; those of a work that takes long are ours."""
    before = transformers_logging.set_tqdm_hook(lambda bar, given, options: transformers_logging.EmptyTqdm(*given))
    try:
        with without_bars_of(huggingface_hub.utils):
            yield
    finally:
        transformers_logging.set_tqdm_hook(before)


def print_load_report(records: list[logging.LogRecord]) -> None:
    """Print what was held back, after the block of `held_load_report`."""
    for record in list(records):
        logging.getLogger(record.name).handle(record)
