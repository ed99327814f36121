"""`lmctr data inspect`: the figures of a data set and, of a log, samples as a prompt writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lmctr.data.inspection import inspect, lines_of
from lmctr.data.logs.log import InteractionLog
from lmctr.data.options import InspectOptions
from lmctr.utils.lazy import load_target


def inspect_data(options: InspectOptions, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Describes any data set.

    Returns:
        The figures, see [`~lmctr.data.inspection.inspect`]; with a prompt also `text`: samples, and with a tokenizer token counts.

    Raises:
        ValueError: options that do not go together; bad data. FileNotFoundError: the data are absent.
    """
    if not options.prompt and (options.tokenizer or options.max_length):
        raise ValueError("--tokenizer and --max-length go with --prompt: token counts depend on the prompt.")
    found = inspect(options)
    figures, shown = found.figures, []
    if options.prompt:
        if not isinstance(found.data, InteractionLog):
            raise ValueError(f"--prompt: {options.name!r} is no log, whose events alone have texts; leave it out.")
        show_prompt = load_target("lmctr.analysis.prompt_samples:show_prompt")  # waits for torch
        shown, figures["text"] = show_prompt(found.data, found.splits, options)
    say(json.dumps(figures, indent=2, ensure_ascii=False) if options.json else "\n".join([*lines_of(figures), *shown]))
    return figures
