"""What `lmctr predict` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lmctr.utils.measure import PRECISIONS
from lmctr.utils.options import option

__all__ = ["PredictOptions"]


@dataclass
class PredictOptions:
    """Score requests (JSON lines) or the rows of a table with a trained model: a run folder, any folder that from_pretrained
    loads, or a Hub id. What a request looks like follows from the model's processor."""

    run: str = option("folder of the model and its processor, or a Hub id (user/name[@revision])", positional=True)
    input: str = option(
        "a table: rows of user, item and time, or of a model's fields; or JSON lines; - for standard input",
        metavar="FILE",
        short=("--requests",),
    )
    log: str | None = option(
        "where the histories of rows of user, item and time come from: a schema .yaml file, a folder of `lmctr data prepare`, or a newer "
        "data file with the columns of the run's own (default: the run's log)",
        None,
        metavar="LOG",
    )
    on_error: str = option(
        "what to do with a row or line that cannot be scored: stop, with what was scored before in OUTPUT.partial; or skip it, with the "
        "reason in the output",
        "stop",
        choices=("stop", "skip"),
    )
    output: str = option(
        "JSON lines file (tables: also .csv, .parquet), or - for standard output (default)", "-", metavar="FILE"
    )
    id_column: str | None = option("tables: column of the input to copy to the output", None, metavar="COLUMN")
    batch_size: int | None = option(
        "rows (request x candidate) per forward pass (default 64; tables and impressions: 4096)", None
    )
    max_tokens: int | None = option(
        "where a line's candidates share its history: most positions per forward pass (default 8192)", None
    )
    allow_unknown: bool = option(
        "score although nearly all values of a field, or items or words of requests, are unknown", False
    )
    device: str | None = option("cpu, cuda, cuda:1, ... (default: cuda where there is one)", None)
    dtype: str | None = option("precision of weights and scores (default: as stored)", None, choices=PRECISIONS)

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if "-" not in (self.input, self.output) and Path(self.output).resolve() == Path(self.input).resolve():
            raise ValueError(f"--output {self.output} is the input itself, which would be lost; give another file")
