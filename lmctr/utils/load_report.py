"""What transformers prints while it loads a model: its table of missing and unexpected weights, and its bars."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging


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
    """Inside, transformers shows no bars of its own; those of a work that takes long are ours."""
    shown, hub_shows = transformers_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()  # the Hub's too
    try:
        yield
    finally:
        if shown:
            with warnings.catch_warnings():  # that the environment keeps the Hub's off
                warnings.simplefilter("ignore")
                transformers_logging.enable_progress_bar()
            if not hub_shows:
                disable_progress_bars()
        elif hub_shows:
            enable_progress_bars()


def print_load_report(records: list[logging.LogRecord]) -> None:
    """Print what was held back, after the block of `held_load_report`."""
    for record in list(records):
        logging.getLogger(record.name).handle(record)
