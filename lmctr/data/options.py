"""Options of `lmctr data`; Python callers fill them by keyword."""

from __future__ import annotations

from dataclasses import dataclass

from lmctr.utils.options import option


@dataclass(kw_only=True)
class DataOptions:
    """What to read, and how to split it."""

    name: str = option(
        "a data set such as movielens, criteo, recflow or synthetic, a schema .yaml file, a data file, or a folder of `lmctr data prepare`",
        positional=True,
    )
    kind: str | None = option(
        "what to read where a name stands for several (default: the log)",
        None,
        choices=("log", "table", "impressions"),
    )
    path: str | None = option("folder (or zip) with the raw files", None)
    split: str | None = option("split rule; of a log: time (default) or user", None)
    fractions: list[float] | None = option("shares of train, validation and test", None, metavar="SHARE", count=3)
    seed: int | None = option("seed of the split", None)
    num_behaviors: int | None = option("of a log: behaviours that a model would read (default 50)", None, metavar="K")
    quiet: bool = option("show no progress; results and warnings stay", False)
    # last, because its name hides the function
    option: list[str] = option(
        "option of the data set, such as last_years=5 (may be repeated)", [], metavar="KEY=VALUE", repeated=True
    )


@dataclass(kw_only=True)
class PrepareOptions(DataOptions):
    """Read raw files once and check them. A log is written as a folder, which is the `data.name` of a recipe; a table and impressions as
    processed arrays, whose folder is the `data.cache_dir` of a recipe."""

    output: str = option("folder to write to", metavar="DIR")
    overwrite: bool = option(
        "write though DIR holds a log, which is replaced, or processed arrays, of which those of other data stay",
        False,
    )


@dataclass(kw_only=True)
class InspectOptions(DataOptions):
    """Describe a data set: counts and label rate of each part; of a log also split dates, leakage report and history lengths; of a table and
    of impressions the fields."""

    prompt: str | None = option(
        "prompt name or YAML file, such as movielens/en: show samples of a log as a model reads them", None
    )
    tokenizer: str | None = option("with --prompt: tokenizer name or folder, for exact token counts", None)
    max_length: int | None = option("with --tokenizer: token limit of a sample", None)
    feedback: str = option("with --prompt", "inline", choices=("none", "groups", "inline", "sink"))
    samples: int = option("with --prompt: samples to show (default 2)", 2)
    json: bool = option("print the figures as JSON", False)


@dataclass(kw_only=True)
class UserSampleOptions:
    """Draw a smaller log for trials: the rows of some users, with their whole histories, in blocks, however long the file is."""

    name: str = option(
        "a data file (CSV, TSV, .gz, Parquet, JSON lines), or the schema .yaml file of a log", positional=True
    )
    share: float = option("share of the users, such as 0.1")
    output: str = option(".parquet or .csv file", metavar="FILE")
    by: str | None = option("column of users (default: the schema's, or by its name)", None, metavar="COLUMN")
    seed: int = option("of the draw", 0)


@dataclass(kw_only=True)
class ConvertOptions:
    """Write a data file in another format, in blocks; Parquet is read several times as fast as text."""

    name: str = option(
        "a data file (CSV, TSV, Parquet, JSON lines, a JSON array, lines of Python's dicts, of LIBSVM or libffm), also in .gz, .zip, .bz2, .zst, .xz",
        positional=True,
    )
    output: str = option(".parquet or .csv file", metavar="FILE")
    delimiter: str | None = option("of a CSV file (default: found out)", None)
    encoding: str | None = option("of a text file: latin-1, cp1252, utf-16, gbk, ... (default: UTF-8)", None)
    names: str | None = option(
        "what the columns of a file without a line of names are, in order: user,item,time; c1..c9 are nine",
        None,
        metavar="NAMES",
    )
    like: str | None = option(
        "of lines of LIBSVM or libffm: the training part of a test part, whose columns this file gets",
        None,
        metavar="FILE",
    )
