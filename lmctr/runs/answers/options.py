"""What `lmctr predict` and `lmctr recommend` take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lmctr.utils.measure import PRECISIONS
from lmctr.utils.options import DEVICE, DTYPE, MODEL, check_counts, option


@dataclass
class PredictOptions:
    """Score requests (JSON lines) or the rows of a table with a trained model: a run folder, any folder that from_pretrained
    loads, or a Hub id. What a request looks like follows from the model's processor."""

    run: str = option(MODEL, positional=True)
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
        "what to do with a row or line that cannot be scored: stop, with what was scored before in scores.partial.csv of scores.csv; or "
        "skip it, with the reason in the output",
        "stop",
        choices=("stop", "skip"),
    )
    output: str = option(
        "JSON lines file (tables: also .csv, .parquet), or - for standard output (default)", "-", metavar="FILE"
    )
    names: str | None = option(
        "tables: what the columns of an input without a line of names are, in order: user,item,time; c1..c9 are nine (default: as in training)",
        None,
        metavar="NAMES",
    )
    id_column: str | None = option("tables: column of the input to copy to the output", None, metavar="COLUMN")
    batch_size: int | None = option(
        "rows (request x candidate) per forward pass (default 64; tables and impressions: 4096; rows joined with a log: 256, of tables 1024)",
        None,
    )
    max_tokens: int | None = option(
        "where a line's candidates share its history: most positions per forward pass (default 8192)", None
    )
    allow_unknown: bool = option(
        "score although nearly all values of a field, or items or words of requests, are unknown", False
    )
    device: str | None = option(DEVICE, None)
    dtype: str | None = option(DTYPE, None, choices=PRECISIONS)

    def __post_init__(self) -> None:
        check_counts(self, ("batch_size", "max_tokens"))
        if "-" not in (self.input, self.output) and Path(self.output).resolve() == Path(self.input).resolve():
            raise ValueError(f"--output {self.output} is the input itself, which would be lost; give another file")


@dataclass
class RecommendOptions:
    """Write the best items for each user of a log, by a trained run: every candidate is scored with the history, the statistics and the
    description that the log has, as lmctr predict does."""

    run: str = option("folder of a run whose data are a log of users, items and times", positional=True)
    top: int = option("items for each user", 10)
    users: str | None = option(
        "a table with the log's column of users and, where they differ by row, of times, scenarios and context; of new users also what the log says of "
        "others (default: all users of the log)",
        None,
        metavar="FILE",
    )
    items: str | None = option(
        "the candidates: a table with the log's column of items, of new ones also what the log says of others (default: all that somebody met before)",
        None,
        metavar="FILE",
    )
    seen: bool = option("rank items too that a user has met before", False)
    time: str | None = option(
        "the moment to rank at, for rows without a time: as the log writes times (default: a second after its last event)",
        None,
    )
    log: str | None = option(
        "where histories come from: a schema .yaml file, a folder of `lmctr data prepare`, or a newer data file with the columns of the run's "
        "own (default: the run's log)",
        None,
        metavar="LOG",
    )
    output: str = option(".csv, .parquet or JSON lines file, or - for standard output (default)", "-", metavar="FILE")
    batch_size: int | None = option("pairs of a user and an item per forward pass (default 256; tables: 1024)", None)
    allow_unknown: bool = option("rank although nearly all users or items are unknown", False)
    device: str | None = option(DEVICE, None)
    dtype: str | None = option(DTYPE, None, choices=PRECISIONS)

    def __post_init__(self) -> None:
        check_counts(self, ("top", "batch_size"))
        for given in (self.users, self.items):
            if given is not None and Path(self.output).resolve() == Path(given).resolve():
                raise ValueError(f"--output {self.output} is an input itself, which would be lost; give another file")
