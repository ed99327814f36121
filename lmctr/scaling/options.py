"""Options of a load sweep, shared by `CostOptions`, the command line and ladder files; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from lmctr.utils.options import option


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Which loads a model is put under, and for how long.

    Each level is measured in at least `num_windows` windows, after `warmup_seconds` of the same load, and in more until `min_calls` calls are
    there. Each batch size has an equal share of `max_seconds`, and what the ones before left over. Levels that do not fit are not
    measured, and the result says so (its rate is then a lower bound). A level that is running ends with what it has; a call
    that is running is waited for.
    """

    quantile: float = option("of the latencies (default: 0.99)", 0.99)
    batch_sizes: list[int] = option("requests per call; 1 is always tried (default: 1 8)", [1, 8], metavar="B")
    max_concurrency: int = option("most clients (default: 16)", 16, metavar="C")
    num_windows: int = option("windows of each level, at least (default: 3)", 3, short=["--windows"])
    window_seconds: float = option("default: 1", 1.0)
    warmup_seconds: float = option("of each level (default: 0.5)", 0.5)
    min_calls: int = option("calls of each level, at least (default: 1000)", 1000)
    confidence: float = option("that the limit is met (default: 0.95)", 0.95)
    max_seconds: float = option("for each model, loading left out (default: 60)", 60.0, metavar="S")
