"""Options that the library, the command line and ladder files share; nothing heavy is imported here."""

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


@dataclass(frozen=True, kw_only=True)
class SizeGridOptions:
    """The space of MLP sizes of Appendix B.1 of arXiv 2411.13322; it has 1,553 sizes with the defaults.

    The input is `embedding_dim x num_sparse_features + num_dense` wide; embedding dimension and widths start at their step.
    """

    num_sparse_features: int = option("of the grid (default: 200)", 200)
    num_dense: int = option("of the grid (default: 128)", 128)
    embedding_step: int = option("of the grid's embedding dimension (default: 16)", 16)
    max_embedding_dim: int | None = option("of the grid (default: 1984)", 1984)
    width_step: int = option("of the grid's layers (default: 128)", 128)
    num_hidden_layers: int = option("of the grid, before the output (default: 4)", 4, short=["--hidden-layers"])
    max_first_width: int = option("of the grid: what an ad's cached half may take (default: 1024)", 1024)
    ratio: int = option("of the grid: a layer is at least 1/ratio of the one before (default: 20)", 20)
    ratio_on_input: bool = option("the ratio does not bound the grid's first layer (9,191 sizes)", True)
    max_flops: float = option("of the grid, per user-ad pair (default: 143e6)", 143e6)
