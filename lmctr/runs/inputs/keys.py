"""Keys of a recipe's data group, and of the model group where they are not a configuration's: types, defaults, bounds, meanings."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from lmctr.utils.values import Values

_LATEST = 10**11  # unix seconds; from here on they are milliseconds


class DataKeys(Values):
    """Data keys of every kind of input."""

    # every part of a log needs events; a part of a table may be a file of its own
    smallest_share: ClassVar[float] = 5e-324

    name: str = Field(description="A known data set, a schema file, a data file, or a folder of `lmctr data prepare`.")
    path: str | None = Field(None, description="Where the data set's files lie; null where it needs none.")
    options: dict = Field({}, description="Further arguments of what reads the data set.")
    split: str | None = Field("time", description="Rule that cuts the samples into training, validation and test.")
    fractions: list[float] | None = Field(
        [0.8, 0.1, 0.1], description="Shares of training, validation and test, which add up to 1."
    )
    seed: int = Field(
        0, ge=0, description="Of the split and of drawn samples; runs of other training seeds see the same samples."
    )
    max_train_samples: int | None = Field(
        None,
        ge=1,
        description="Most training samples, drawn at random; null: all. With training.refit those of validation come beside them.",
    )
    max_eval_samples: int | None = Field(
        None, ge=1, description="Most samples of validation and test each; null: all."
    )
    allow_leaks: dict = Field(
        {},
        description="What looks like a leak and is none, with the reason: by check (field, encoding, duplicates, random_split, "
        "time_unit, future, processor) or by check and name, such as `field:price`.",
    )
    baselines: bool = Field(True, description="Whether simple rivals (counting, boosted trees) are measured too.")

    @field_validator("fractions")
    @classmethod
    def _add_up(cls, value: list[float] | None) -> list[float] | None:
        if value is None:
            return None
        if len(value) != 3 or value[0] <= 0 or min(value) < cls.smallest_share or not math.isclose(sum(value), 1.0):
            raise ValueError(
                f"data.fractions is {value}, accepted: three positive numbers (train, validation, test) that add up to 1"
            )
        return value

    @model_validator(mode="after")
    def _one_path(self) -> DataKeys:
        if self.path is not None and "path" in self.options:
            raise ValueError("data.path and data.options.path are both set; keep one")
        return self


COMMON_DATA_KEYS = tuple(key for key in DataKeys.model_fields if key != "baselines")
"""Data keys that an evaluation may set anew for every kind of input: where the data lie and how they are parted."""


class RetrievalKeys(Values):
    """How behaviours that are similar to the target are found."""

    encoder: str = Field("tfidf", description="`tfidf`, or a text encoder: a model id, a folder or package:NAME.")
    k: int = Field(50, description="Similar behaviours that are kept of each sample.")


class TokenizerKeys(Values):
    """A tokenizer that is trained on the training part's texts."""

    type: Literal["wordpiece", "bpe"] = Field(description="How words are cut.")
    vocab_size: int = Field(8192, ge=1, description="Tokens at most.")
    lowercase: bool = Field(True, description="Whether texts are made lower case, without accents.")
    min_frequency: int = Field(1, description="Tokens that are seen less often are left out.")


def _seconds(value: Any) -> Any:
    """A time of `data.since` as unix seconds; a number as it is."""
    if type(value) is int:  # of a day in 1970, or in the year 5138 and later
        day = re.fullmatch(r"((?:19|20)\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])", str(value))
        meant = "-".join(day.groups()) if day else value // 1000 if value >= _LATEST else None
        if meant is not None:
            raise ValueError(f"data.since is {value}, accepted: unix seconds, or an ISO time; did you mean {meant}?")
    if not isinstance(value, (str, date)):
        return value
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else value.isoformat())
    except ValueError:
        raise ValueError(
            f"data.since is {value!r}, accepted: unix seconds, or an ISO time such as 2024-03-01 or 2024-03-01T12:00:00+00:00 (UTC where "
            "it names no zone)"
        ) from None
    return math.ceil((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


class LogDataKeys(DataKeys):
    """Data keys of an interaction log."""

    split: Literal["time", "user", "given"] = Field(
        "time",
        description="Rule that cuts the log into parts: by time, by users, or as the data set itself gives them.",
    )
    fractions: list[float] = DataKeys.model_fields["fractions"]
    since: Annotated[int, "unix seconds or an ISO time (2024-03-01)"] | None = Field(
        None,
        description="Events before this time (UTC where it names no zone) stand in histories and statistics only: no part "
        "has them; null: all are samples. With training.from_run, where the newer ones begin.",
    )
    negative_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the training samples without a positive label that is kept, drawn at random with data.seed; each then counts as many "
        "times as it stands for (0.1: ten), so that probabilities stay those of all samples (McMahan et al., KDD 2013). Statistics, trees and baselines "
        "read all samples; null: so does the model.",
    )
    statistics: str | list[str] = Field(
        [],
        description="Rates, counts and times of a sample's user and item that the model reads, and what a log tells of its moment: sets "
        "(`basic`, `full`, `repeats` where users come back to items, `factors` where many users judge the same items, `context`, `scenario`) and "
        "names.",
    )

    _seconds = field_validator("since", mode="before")(_seconds)


class TextDataKeys(LogDataKeys):
    """Data keys of histories and targets as text."""

    prompt: str | dict = Field("generic/en", description="Prompt that ships with lmctr, file of one, or its content.")
    num_behaviors: int = Field(
        50, ge=1, description="Behaviours of a history at most; of each group, with feedback: groups."
    )
    order: Literal["recent", "similarity", "time"] = Field(
        "recent",
        description="Which behaviours a text holds and how: the latest, or retrieved ones by similarity or time.",
    )
    feedback: Literal["none", "groups", "inline", "sink"] = Field("none", description="How a text tells feedback.")
    trailing_sink: bool = Field(True, description="Whether a sink stands after the last behaviour too.")
    max_length: int | None = Field(
        None, ge=1, description="Tokens of a text at most; null: what the backbone can read."
    )
    retrieval: RetrievalKeys | None = Field(
        None, description="How similar behaviours are found, where they are needed."
    )


class ModelKeys(Values):
    """Model keys of every family, besides those of its configuration."""

    family: str = Field("ctr_sink", description="The family, as `model_type` names it.")


class TextModelKeys(ModelKeys):
    """Model keys of a language model besides those of its configuration."""

    backbone: str | dict = Field(
        description="Pretrained language model (id, folder, package:NAME), or a config from scratch with model_type."
    )
    tokenizer: str | TokenizerKeys | None = Field(
        None, description="Tokenizer by name, or keys of one to train; null: the backbone's."
    )
    sink_token: str = Field("[SINK]", description="Text of the sink token.")
    text_config_values: dict = Field({}, description="Changes to a pretrained backbone's configuration.")
    attn_implementation: Literal["sdpa", "eager"] | None = Field(
        None, description="How attention is computed; null: as transformers chooses."
    )


class StoredDataKeys(DataKeys):
    """Data keys of what a feature processor puts into a store of arrays."""

    smallest_share: ClassVar[float] = 0.0

    split: Literal["random", "group", "rows", "time"] | None = Field(
        None, description="Rule that cuts the rows into parts; null: the data set's own parts."
    )
    fractions: list[float] | None = Field(
        None, description="Shares of training, validation and test; null: the data set's own."
    )
    cache_dir: str | None = Field(None, description="Folder of processed data that runs share; null: each run's own.")


class TabularDataKeys(StoredDataKeys):
    """Data keys of rows of fields."""

    split: Literal["random", "group", "rows", "time", "user", "given"] | None = StoredDataKeys.model_fields["split"]
    labels: list[str] | None = Field(
        None,
        min_length=1,
        description="Label columns to predict, whose cells may be empty; metrics without a name measure the first. Null: the table's own.",
    )
    since: Annotated[int, "unix seconds or an ISO time (2024-03-01)"] | None = LogDataKeys.model_fields["since"]
    negative_share: float | None = LogDataKeys.model_fields["negative_share"]
    pretrained: dict = Field(
        {},
        description="By categorical field, vectors made elsewhere in place of learned ones: {file, value, vector, trained: false}, a "
        "file of rows with the columns `value` and `vector` (a list of numbers).",
    )
    features: dict = Field({}, description="Changes to the data set's fields: by type, `fields`, `only`, `drop`.")
    statistics: str | list[str] = Field(
        [],
        description="Of a log: sets (`basic`, `full`, `repeats`, `factors`) and names of statistics; empty: `basic`, with rates as they are.",
    )

    _seconds = field_validator("since", mode="before")(_seconds)


class SequenceDataKeys(LogDataKeys):
    """Data keys of histories of events and candidates."""

    max_history_length: int | None = Field(None, ge=1, description="Latest events of a row; null: the whole lifetime.")
    candidates_per_row: int = Field(
        1, ge=1, description="Samples of a user that share a training row (1: MUMI, more: SUMI)."
    )
    eval_candidates_per_row: int = Field(
        1,
        ge=1,
        description="The same for validation and test; where max_history_length cuts, earlier samples of a row see fewer events.",
    )
    window_seconds: int | None = Field(
        None, ge=0, description="Longest time between the first and last sample of a row; null: any."
    )
    same_scenario: bool = Field(False, description="Whether the samples of a row are of one scenario.")
    tasks: list[str] = Field(["label"], description="Labels to predict; metrics without a name measure the first.")
    item_features: list[str] = Field(
        [], description="Catalogue columns that the model reads, an id per value, of numbers too."
    )
    user_features: list[str] = Field([], description="Columns of the user table that the model reads.")
    list_values: int | None = Field(
        None,
        ge=1,
        description="Values of a list among these features that are read at most, as the mean of their embeddings; null: a list is one value.",
    )
    min_count: int = Field(1, ge=1, description="Items seen less often in training share the id of unknown ones.")
    max_idle: int | None = Field(
        None,
        ge=1,
        description="With training.from_run: items and values absent from so many trainings in a row lose their ids.",
    )


class RankingKeys(Values):
    """What the metrics of rankings count."""

    m: int = Field(10, ge=1, description="Ads that go on.")
    k: int | None = Field(None, ge=1, description="Wanted ads of Recall@m@k; null: m.")
    ndcg_k: int | None = Field(10, ge=1, description="Ads that NDCG looks at; null: all.")
    ideal: Literal["v", "ecpm"] = Field("v", description="What the denominator of R/R* sorts by.")
    ties: Literal["expected", "worst"] = Field(
        "expected", description="Ads of equal scores: the mean over their orders, or the worst."
    )


class ImpressionDataKeys(StoredDataKeys):
    """Data keys of users and the ads ranked for them."""

    user_features: dict = Field(
        {}, description="Changes to the fields of the user: by type, `fields`, `only`, `drop`."
    )
    ad_features: dict = Field({}, description="Changes to the fields of the ad, likewise.")
    metrics: RankingKeys = Field(RankingKeys(), description="What the metrics count.")


class TrainingKeys(Values):
    """Training keys besides the fields of `CTRTrainingArguments`, and those whose types transformers' `HfArgumentParser` could not read there."""

    output_dir: str | None = Field(None, description="The run folder; null: `runs/` and the name of the recipe.")
    epochs: int = Field(3, ge=1, description="Passes over the training part, in families that train in one stage.")
    bf16: bool | Literal["auto"] = False
    boosting_share: float | Literal["auto"] = 0.0
    calibration: Literal["none", "intercept"] = "none"
