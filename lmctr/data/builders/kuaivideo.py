"""KuaiVideo: micro-videos of Kuaishou with clicked and skipped videos before each impression, in the x1 form of the BARS benchmark."""

from __future__ import annotations

import os

from lmctr.data.logs.log import DatasetInfo
from lmctr.data.tables.source import TableSource

from .files import TRAIN_AND_TEST, find_files, require_files, split_pieces, validation_share

INFO = DatasetInfo(
    name="kuaivideo-x1",
    url="https://huggingface.co/datasets/reczoo/KuaiVideo_x1",
    licence="released for the Kuaishou competition of ChinaMM 2018; research use (no licence text comes with the files).",
    citation="Y. Li et al. 2019. Routing Micro-videos via A Temporal Graph-guided Recommendation System. ACM MM.",
    label_rule="column is_click of the file",
    notes="10,000 users; given split; pos_items are videos clicked and neg_items videos not clicked before, at most 100, oldest first",
    extra={"published_rows": {"train": 10_931_092, "test": 2_730_291}},
)


def load_kuaivideo(
    path: str | os.PathLike,
    *,
    min_count: int = 10,
    max_length: int = 100,
    validation_fraction: float = 0.1,
    seed: int = 0,
    memory_limit: int | None = None,
) -> TableSource:
    """KuaiVideo as a source of user, video, and two sequences that share the videos' vocabulary.

    Args:
        path: folder with `train.csv` and `test.csv`: columns timestamp, user_id, item_id, is_click, is_like, is_follow, pos_items,
            neg_items (ids separated by "^"; empty without a history). A `valid.csv` is used when there is one; the
            benchmark has none and validates on the test part, which this library does not do.
        min_count: of users and videos.
        max_length: most videos of a sequence, the last ones.
        validation_fraction: share of the training rows that becomes the validation part.
        seed: of that draw.
        memory_limit: bytes that reading may take.

    The source's group is the user. The time stamps of the file say the order only; they are no dates, so the source has no
    time column. Visual vectors of the videos: `data.pretrained` of a recipe.

    Raises:
        FileNotFoundError: no files; the message says where to get them.
    """
    files = require_files(path, TRAIN_AND_TEST, INFO)
    files |= find_files(path, {"validation": ["valid.csv"]}, INFO) or {}
    pieces, rule = split_pieces(files, memory_limit, validation_share(validation_fraction, seed))
    fields = [{"name": name, "type": "categorical", "min_count": min_count} for name in ("user_id", "item_id")]
    fields += [
        {"name": name, "type": "sequence", "separator": "^", "max_length": max_length, "share_with": "item_id"}
        for name in ("pos_items", "neg_items")
    ]
    return TableSource(pieces, tuple(fields), label="is_click", group="user_id", split=rule, info=INFO)
