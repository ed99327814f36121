"""Avazu mobile advertising: the Kaggle file, by the rules of the BARS benchmark's x4 split."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lmctr.data.logs.log import DatasetInfo
from lmctr.data.tables.source import SplitRule, TableSource
from lmctr.utils.files import expanded

from .files import ALL_PARTS, find_files, require_files, split_pieces

CATEGORICAL = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id",
    "device_ip", "device_model", "device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
)  # fmt: skip
TIME_FORMAT = "%y%m%d%H"
_LICENCE = "Avazu's terms of the Kaggle click-through rate challenge: use for the challenge and for research, no redistribution."
INFO = DatasetInfo(
    name="avazu",
    url="https://www.kaggle.com/c/avazu-ctr-prediction/data",
    licence=_LICENCE,
    citation="Avazu. 2014. Click-Through Rate Prediction. Kaggle.",
    label_rule="column click of the file",
    notes="40,428,967 rows of ten days; x4 rules: id left out, hour made into hour, weekday and weekend, min count 2",
    extra={"published_rows": 40_428_967},
)


def load_avazu(
    path: str | os.PathLike,
    *,
    min_count: int = 2,
    split: str = "random",
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    memory_limit: int | None = None,
) -> TableSource:
    """Avazu's data as a source of 24 categorical fields.

    The column `hour` (YYMMDDHH) gives three fields, `hour` (0-23), `weekday` and `weekend`; the processor makes them, so a raw row
    of the file can be scored as it is. Its time is also the time column of the source.

    Args:
        path: Kaggle's `train.csv` or `train.gz` (columns id, click, hour, C1, ...), its folder, or a folder with the x4 files
            `train.csv`, `valid.csv`, `test.csv` in the same columns.
        min_count: of the categorical fields.
        split: rule for the single file: "random" (x4: 8:1:1), "time" or "rows".
        fractions: its shares.
        seed: its seed.
        memory_limit: bytes that reading may take.

    Raises:
        FileNotFoundError: no files; the message says where to get them.
    """
    path = expanded(path)
    if path.is_file():
        files = {"train": path}
    else:
        single = {"train": ["train.csv", "train.gz", "train"]}
        files = find_files(path, ALL_PARTS, INFO) or require_files(path, single, INFO)
    given = SplitRule(split, tuple(fractions), seed)
    pieces, rule = split_pieces(files, memory_limit, given, format="csv")
    fields = [
        {"name": name, "type": "categorical", "column": "hour", "extract": name, "time_format": TIME_FORMAT}
        for name in ("hour", "weekday", "weekend")
    ]
    fields += [{"name": name, "type": "categorical", "min_count": min_count} for name in CATEGORICAL]
    return TableSource(
        pieces,
        tuple(fields),
        label="click",
        time="hour",
        time_format=TIME_FORMAT,
        split=rule,
        info=INFO,
        published_split=True,
    )
