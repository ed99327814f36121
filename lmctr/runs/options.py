"""Options of the verbs `train` and `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmctr.data.options import DataOptions
from lmctr.runs.find import find_recipe, is_data_file
from lmctr.utils.options import given, option


@dataclass(kw_only=True)
class DataFiles:
    """Files of one's own, and which of their columns are known to be what."""

    items: str | None = option("file with a row per item: id, title, categories, ...", None, metavar="FILE")
    users: str | None = option("file with a row per user", None, metavar="FILE")
    names: str | None = option(
        "what the columns of a file without a line of names are, in order: user,item,rating,time; c1..c9 are nine",
        None,
        metavar="NAMES",
    )
    items_names: str | None = option("likewise of the file of items", None, metavar="NAMES")
    users_names: str | None = option("likewise of the file of users", None, metavar="NAMES")
    user: str | None = option("column of users (default: guessed)", None, metavar="COLUMN")
    item: str | None = option("column of items (default: guessed)", None, metavar="COLUMN")
    time: str | None = option("column of times (default: guessed)", None, metavar="COLUMN")
    label: str | None = option(
        "column that tells clicks (default: guessed); COLUMN=VALUE where that value is one, 'COLUMN>=NUMBER' (>, <=, <) of numbers",
        None,
        metavar="COLUMN",
    )
    weight: str | None = option("column of what each row counts for in training and metrics", None, metavar="COLUMN")
    negatives: int | None = option("where every row is a click: items to draw beside each", None, metavar="N")
    impression: str | None = option(
        "of impressions: column of the impression that a row's ad was shown in", None, metavar="COLUMN"
    )
    rank: str | None = option(
        "of impressions: column that orders their ads, the higher the better", None, metavar="COLUMN"
    )
    position: str | None = option("in its place: column of the ads' places, 1 for the best", None, metavar="COLUMN")
    ecpm: str | None = option("of impressions: column of the ads' revenue per mille", None, metavar="COLUMN")
    kind: str | None = option(
        "what the file is: a log, whose events have histories, a table of rows by themselves (default: a log where users, items and times are found), "
        "or impressions, with a row for each ad of each",
        None,
        choices=("log", "table", "impressions"),
    )


@dataclass(kw_only=True)
class InitOptions(DataFiles):
    """Look at a file of clicks, say which column is what and why, and write a schema and three short recipes (ctr_sink, din, deepfm)
    that train on it, on one split; of impressions two (retrieval_mlp, two_tower). Nothing is changed in the file."""

    events: str = option(
        "CSV, TSV (also .gz), Parquet (a file, or a folder of them) or JSON lines: rows of user, item, time, label",
        positional=True,
    )
    output: str | None = option("folder to write to (default: the file's name)", None, metavar="FOLDER")
    yes: bool = option("ask nothing: take every guess", False)
    overwrite: bool = option("replace what an earlier init wrote", False)


@dataclass(kw_only=True)
class TrainOptions(DataFiles):
    """Train a model by a recipe, measure it beside the baselines, and leave a run folder. A data file in place of the recipe, with
    --model, is trained on by a short recipe made for it."""

    recipe: str | None = option(
        "YAML file, the name of a recipe of the package (ctr_sink/quickstart), or a data file (clicks.csv)",
        None,
        positional=True,
    )
    model: str | None = option("with a data file: the family (ctr_sink, din, deepfm, ...)", None, metavar="FAMILY")
    output_dir: str | None = option("run folder (default: runs/<name of the recipe>)", None)
    resume: bool = option(
        "continue the run in the folder from its newest complete checkpoint; start it where there is none", False
    )
    overwrite: bool = option("replace an earlier run in the same folder", False)
    from_run: str | None = option(
        "a finished run to go on from with newer rows of its table, or with its log up to now (--data.since TIME: trained on from then on): its "
        "vocabularies are extended (texts: its processor kept), its weights and the optimiser's state kept",
        None,
        metavar="RUN",
        short=("--from",),
    )
    list_keys: str | None = option(
        "print every key that a recipe of a family (din, ctr_sink, ...) may set, with type, default and meaning",
        None,
        metavar="FAMILY",
    )
    overrides: Sequence[tuple[str, str]] = given(())
    command: str = given("")

    def __post_init__(self) -> None:
        if self.recipe is None and self.list_keys is None:
            raise ValueError(
                "give a recipe (a YAML file, or a name such as ctr_sink/quickstart), or --list-keys FAMILY"
            )
        if self.resume and self.overwrite:
            raise ValueError("--resume continues a run, --overwrite deletes it: give one of them")
        given = [name for name in ("model", *DataFiles.__dataclass_fields__) if getattr(self, name) is not None]
        if self.recipe is not None and is_data_file(self.recipe):
            if self.model is None and self.from_run is None:
                raise ValueError(
                    f"{self.recipe} is a data file, no recipe: name the family too, --model din (of a log; of a table --model deepfm); or let "
                    f"`lmctr init {self.recipe}` write recipes for it"
                )
            return
        if given:
            raise ValueError(
                f"--{given[0]} goes with a data file (lmctr train clicks.csv --model din), not with a recipe"
            )
        if self.recipe is not None:
            find_recipe(self.recipe)


@dataclass
class EvaluateOptions:
    """Measure a trained run on a part of its data: exact AUC, logloss, grouped AUC, NE and ECE. Several runs (seeds of one recipe):
    mean and standard deviation of what their stored scores give, without loading model or data; with --compare also paired tests
    against other runs of the same seeds."""

    run: list[str] = option(
        "run folder; or, alone, another folder that from_pretrained loads or a Hub id (user/name[@revision]), with --data.name and what else "
        "its data need",
        positional=True,
        metavar="RUN",
    )
    split: str = option("default: test", "test", choices=("train", "validation", "test"))
    compare: list[str] = option("runs of the same seeds to test against", [], metavar="RUN")
    label: str | None = option(
        "of runs with several labels, the one to compare (default: the first)", None, metavar="NAME"
    )
    resamples: int | None = option("draws of users per bootstrap (default: 1000)", None, metavar="N")
    output: str | None = option("write the result to this file: .json; for several runs also .md", None)
    predictions: str | None = option("write the scores to this Parquet file (one run)", None)
    allow_unknown: bool = option("measure although nearly all values of a field are unknown", False)
    slices: bool = option(
        "also metrics by slice (length of histories, counts of items, new users and items, missing statistics), beside the strongest "
        "baseline (one run)",
        False,
    )
    frozen_histories: bool = option(
        "histories and statistics of a log as they were when the part began, as for lists made at one moment: what users did since is not read "
        "(one run)",
        False,
    )
    overrides: Sequence[tuple[str, str]] = given(())
    command: str = given("")


@dataclass(kw_only=True)
class StatisticsOptions(DataOptions):
    """Count what the items of a log did: their statistics at a moment, one row an item, as serving reads them. A run is named by its folder:
    its own statistics and priors, of its data or of newer ones (--data.path)."""

    output: str = option("the .parquet file to write", metavar="FILE")
    statistics: list[str] = option("of a log: sets and names of statistics (default: full)", [], metavar="NAME")
    time: int | None = option("count only events before this second (default: all)", None, metavar="SECOND")
    overrides: Sequence[tuple[str, str]] = given(())
    command: str = given("")
