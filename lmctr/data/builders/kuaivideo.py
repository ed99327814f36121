"""KuaiVideo: micro-videos of Kuaishou with clicked and skipped videos before each impression, in the x1 form of the BARS benchmark."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.logs.log import DatasetInfo
from lmctr.data.tables.source import TableSource

from .files import TRAIN_AND_TEST, absent, find_files, require_files, split_pieces, validation_share

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
    time column. Visual vectors: see [`item_visual_vectors`].

    Raises:
        FileNotFoundError: the files are absent; the message says where they are published.
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


def item_visual_vectors(
    path: str | os.PathLike, processor: TabularFeatureProcessor, field: str = "item_id"
) -> np.ndarray:
    """The published visual vectors of the videos in the order of a processor's ids, to start (or freeze) an embedding table with.

    Args:
        path: `item_visual_emb_dim64.h5` (needs the package h5py; arrays `key` and `value`), or an `.npz` file with the arrays
            `key` (V,) and `value` (V, D).
        processor: the fitted processor.
        field: the field of the videos.

    Returns:
        (vocabulary size, D) float32; rows of padding, of unknown videos, and of videos without a vector are zero.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file lacks an array, or h5py is not installed.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(absent(path, INFO))
    arrays = {}
    if path.suffix == ".npz":
        opened = np.load(path, allow_pickle=False)
    else:
        try:
            import h5py
        except ImportError as error:
            raise ValueError(
                f"{path}: reading .h5 files needs the package h5py; install it, or convert to .npz."
            ) from error
        opened = h5py.File(path, "r")
    with opened as file:
        for name in ("key", "value"):
            if name not in file:
                raise ValueError(f"{path}: no array {name!r}; it has {list(file)}.")
            arrays[name] = np.asarray(file[name])
    keys, values = arrays["key"], arrays["value"].astype(np.float32)
    if keys.ndim != 1 or values.ndim != 2 or len(keys) != len(values):
        raise ValueError(f"{path}: expected key (V,) and value (V, D), got shapes {keys.shape} and {values.shape}.")
    names = [key.decode() if isinstance(key, bytes) else str(key) for key in keys.tolist()]
    ids = processor.lookup(field, names)
    result = np.zeros((processor.vocab_size(field), values.shape[1]), dtype=np.float32)
    known = ids > 1
    result[ids[known]] = values[known]
    return result
