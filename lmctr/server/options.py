"""What `lmctr serve` takes."""

from __future__ import annotations

from dataclasses import dataclass

from lmctr.utils.measure import PRECISIONS
from lmctr.utils.options import DEVICE, DTYPE, MODEL, check_counts, check_port, option


@dataclass
class ServeOptions:
    """Serve a trained model over HTTP: a run folder, any folder that from_pretrained loads, or a Hub id. Answers POST /v1/score,
    /v1/rerank and /v1/users/{id}/events, GET /health, /ready and /metrics. Needs the extra `serve`."""

    run: str = option(MODEL, positional=True)
    host: str = option("address to listen at; 0.0.0.0 for all of the machine's", "127.0.0.1")
    port: int = option("port; 0 takes a free one, which is printed", 8000)
    device: str | None = option(DEVICE, None)
    dtype: str | None = option(DTYPE, None, choices=PRECISIONS)
    workers: int | None = option(
        "threads that score, each a batch of its own (default: on a CPU one for each core, 4 at most; else 1)", None
    )
    threads: int | None = option("threads of torch in each worker (default: the cores shared among workers)", None)
    batch_size: int | None = option("rows of a forward pass (default 64; tables and impressions: 4096)", None)
    max_tokens: int | None = option(
        "where candidates share a history: most positions per forward pass (default 8192)", None
    )
    batch_positions: int = option("most positions (tokens, events or rows, about) of requests taken together", 8192)
    batch_wait_ms: float = option("longest that a request waits for others to come along", 2.0)
    max_queue: int = option("requests that may wait; more are answered 429", 256)
    max_candidates: int = option("candidates, rows or ads of a request; more are answered 400", 10_000)
    max_history: int = option("behaviours of a request; more are answered 400", 10_000)
    deadline_ms: float = option("time of a request that brings no deadline_ms of its own", 10_000.0)
    state_memory: int = option("MiB of kept user states; the least recently used go first", 1024, metavar="MIB")
    state_ttl: float | None = option("seconds after its last use at which a kept state goes (default: none)", None)
    states: str | None = option(
        "folder in which kept states outlive a stop, this process's own: written at the end, taken up at the start (default: none)",
        None,
    )
    max_body: int = option("MiB of a request; more are answered 413", 8, metavar="MIB")
    drain_seconds: int = option("on SIGTERM: longest that requests in work are waited for", 30)

    def __post_init__(self) -> None:
        counts = (
            "workers",
            "threads",
            "batch_size",
            "max_tokens",
            "batch_positions",
            "max_queue",
            "max_candidates",
            "max_history",
            "state_memory",
            "max_body",
        )
        check_counts(self, (*counts, "drain_seconds"))
        check_port(self)
        if not self.batch_wait_ms >= 0:
            raise ValueError(f"--batch-wait-ms must be at least 0, got {self.batch_wait_ms}")
        for name in ("deadline_ms", "state_ttl"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"--{name.replace('_', '-')} must be above 0, got {value}")
