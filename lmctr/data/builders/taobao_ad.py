"""Taobao display advertising: the four raw files, and the x1 form of the BARS benchmark."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from lmctr.data.logs.log import DatasetInfo
from lmctr.data.tables.reading import block_size_for
from lmctr.data.tables.source import SplitRule, TableSource, file_piece
from lmctr.utils.files import expanded

from .files import TRAIN_AND_TEST, find_variant, split_pieces, validation_share
from .taobao_ad_join import PREPARED, prepare_taobao_ad

USER = (
    "cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level", "occupation",
    "new_user_class_level",
)  # fmt: skip
AD = ("adgroup_id", "cate_id", "campaign_id", "customer", "brand")
_RAW = DatasetInfo(
    name="taobao-ad",
    url="https://tianchi.aliyun.com/dataset/56",
    licence="CC BY-NC-SA 4.0 (Tianchi data sets of Alibaba): research use, no commercial use.",
    citation="Z. Lyu et al. 2020. Deep Match to Rank Model for Personalized Click-Through Rate Prediction. AAAI.",
    label_rule="column clk of raw_sample.csv",
    notes="26 million impressions of eight days and 723 million behaviours of 22 days; histories hold what happened strictly "
    "before the impression; impressions without an ad or user profile are left out; last day is the test part",
)
_X1 = replace(
    _RAW,
    name="taobao-ad-x1",
    url="https://huggingface.co/datasets/reczoo/TaobaoAd_x1",
    label_rule="column clk of the file",
    notes="given split: seven days for training, the last day for test",
    extra={"published_rows": {"train": 21_929_911, "test": 3_099_515}},
)
INFO = {"raw": _RAW, "x1": _X1}
_RAW_FILES = ("raw_sample", "ad_feature", "user_profile", "behavior_log")
_CHINA = timezone(timedelta(hours=8))
FIRST_TEST_SECOND = int(datetime(2017, 5, 13, tzinfo=_CHINA).timestamp())


def load_taobao_ad(
    path: str | os.PathLike,
    variant: str | None = None,
    *,
    prepared: str | os.PathLike | None = None,
    min_count: int = 10,
    max_length: int = 50,
    num_partitions: int = 64,
    validation_fraction: float = 0.1,
    seed: int = 0,
    memory_limit: int | None = None,
    progress: bool = False,
) -> TableSource:
    """Taobao's advertising data as a source of 15 categorical fields, a price and three sequences.

    Args:
        path: the folder. Raw: `raw_sample.csv`, `ad_feature.csv`, `user_profile.csv`, `behavior_log.csv` (each may be .gz); they are
            joined once into Parquet files (see `prepared`). x1: `train.csv` and `test.csv` with the columns clk, btag_his,
            cate_his, brand_his (values separated by "^"), the user's and the ad's columns, price, pid.
        variant: "raw" or "x1"; default: by the files found.
        prepared: raw: folder for the joined files; default `lmctr_prepared` in `path`. Finished files there are used again.
        min_count: of the categorical fields.
        max_length: behaviours of a sequence, the last ones.
        num_partitions: raw: the join handles one of so many groups of users at a time.
        validation_fraction: share of the rows before the test part that becomes the validation part: drawn at random (x1, whose files
            have no times), or the rows from 2017-05-12 on (raw, whatever the share, unless it is 0).
        seed: of that draw.
        memory_limit: bytes that reading may take.
        progress: show bars while the raw files are joined.

    The group is the user. The raw sequences carry the times of the behaviours.

    Raises:
        FileNotFoundError: no files; the message says where to get them.
        ValueError: an unknown variant; a raw file lacks a column.
    """
    raw = {name: [f"{name}.csv"] for name in _RAW_FILES}
    variant, files = find_variant(path, variant, {"x1": TRAIN_AND_TEST, "raw": raw}, INFO)
    names = ("userid", *USER, *AD, "pid")
    fields = [{"name": name, "type": "categorical", "min_count": min_count} for name in names]
    fields.append({"name": "price", "type": "numeric", "transform": "log1p" if variant == "raw" else "raw"})
    history = {"type": "sequence", "max_length": max_length}
    history |= {"separator": "^"} if variant == "x1" else {"time_column": "time_his"}
    fields += [
        {"name": "cate_his", "share_with": "cate_id"} | history,
        {"name": "brand_his", "share_with": "brand"} | history,
        {"name": "btag_his"} | history,
    ]
    if variant == "x1":
        pieces, rule = split_pieces(files, memory_limit, validation_share(validation_fraction, seed))
        return TableSource(pieces, tuple(fields), label="clk", group="userid", split=rule, info=INFO["x1"])
    folder = Path(prepared) if prepared is not None else expanded(path) / PREPARED
    joined = prepare_taobao_ad(
        files,
        folder,
        max_length=max_length,
        num_partitions=num_partitions,
        memory_limit=memory_limit,
        progress=progress,
    )
    first = FIRST_TEST_SECOND - (86_400 if validation_fraction else 0)
    rule = SplitRule("time", boundaries=(first, FIRST_TEST_SECOND))
    size = block_size_for(memory_limit)
    pieces = tuple(file_piece(file, None, rule, block_size=size) for file in joined)
    return TableSource(
        pieces, tuple(fields), label="clk", group="userid", time="time_stamp", split=rule, info=INFO["raw"]
    )
