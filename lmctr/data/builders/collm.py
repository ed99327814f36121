"""CoLLM's split of MovieLens-1M: the labelled rows of its three parts with what each user liked before, as an interaction log.

The files are pickled pandas frames. They are not unpickled freely: only the constructors that a frame of numbers, texts and lists needs are
admitted, so a file that asks for anything else is refused before it can run.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.logs import columns
from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.logs.splits import PARTS
from lmctr.data.reading import check_columns
from lmctr.utils.ragged import offsets_from_lengths

from .collm_levels import levels_without_the_user
from .files import Published

if TYPE_CHECKING:
    import pandas

INFO = DatasetInfo(
    name="collm-ml-1m",
    url="https://github.com/zyang1580/CoLLM (collm-datasets/ml-1m.zip)",
    licence="MovieLens-1M of GroupLens: research use with a citation, no redistribution, no commercial use without permission.",
    citation="Yang Zhang, Fuli Feng, Jizhi Zhang, Keqin Bao, Qifan Wang, and Xiangnan He. 2023. CoLLM: Integrating Collaborative "
    "Embeddings into Large Language Models for Recommendation. arXiv:2310.19488. F. Maxwell Harper and Joseph A. Konstan. 2015. The "
    "MovieLens Datasets. ACM TiiS 5, 4. https://doi.org/10.1145/2827872",
    label_rule="rating > 3",
    language="en",
)
NAMES = dict(zip(PARTS, ("train_ood2.pkl", "valid_ood2.pkl", "test_ood2.pkl")))
FILES = Published("CoLLM's ML-1M", INFO, "the file", then=", and unpack it")
COLUMNS = ("uid", "iid", "label", "timestamp", "his", "title")
PUBLISHED_ROWS = {"train": 33_891, "validation": 10_401, "test": 7_331}
SEEN = {"none": -1, "train": 0, "train_and_validation": 1}
_WINDOWS = (120, 600, 3600, 86_400, 604_800)
_PADDING = 0  # stands in front of every list of liked films

_ADMITTED = {  # of pandas, numpy and their earlier releases' names
    ("builtins", "slice"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("pandas", "DataFrame"),
    ("pandas", "Index"),
    ("pandas", "RangeIndex"),
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.internals.managers", "BlockManager"),
}


_PUBLIC = {
    ("pandas.core.frame", "DataFrame"): ("pandas", "DataFrame"),
    ("pandas.core.indexes.base", "Index"): ("pandas", "Index"),
    ("pandas.core.indexes.range", "RangeIndex"): ("pandas", "RangeIndex"),
    ("pandas.core.indexes.numeric", "Int64Index"): ("pandas", "Index"),
}


class _FrameUnpickler(pickle.Unpickler):
    """Admits what a frame of numbers, texts and lists is made of; modules that numpy and pandas have renamed are found at their new place."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "numpy.core" or module.startswith("numpy.core."):
            module = module.replace("numpy.core", "numpy._core", 1)
        module, name = _PUBLIC.get((module, name), (module, name))
        if (module, name) not in _ADMITTED:
            raise ValueError(f"it asks for {module}.{name}, which no frame of numbers, texts and lists needs")
        return super().find_class(module, name)


def load_collm_ml1m(path: str | os.PathLike | None = None, *, labels_seen: str = "train") -> InteractionLog:
    """CoLLM's ML-1M as a log with parts of its own (split "given").

    Args:
        path: folder that holds `train_ood2.pkl`, `valid_ood2.pkl` and `test_ood2.pkl`, in it or in a folder of it. None takes the environment
            variable `LMCTR_DATA`.
        labels_seen: whose labels histories and statistics may see: "train" (those of the training rows), "train_and_validation", or "none": histories are
            what the files list as liked, in every part alike, as the language models of the papers that use this split read them. Rows
            of the other parts are hidden: they stand in no history.

    Returns:
        A log whose samples are the labelled rows. What a user liked before a row, as the files list it (`his`), is in the history of the row
        whatever `labels_seen` says: likes of hidden rows are there a second time, as events without a label. Rows of one second do not
        see each other, though `his` may name some. A like that is no row stands one second before the row that names it first.
        Catalogue: `item_id`, `title`, `year` (from the title). Context of each event, of the films that the user liked before its second:
        `likes` and `likes_120`, `likes_600`, `likes_3600`, `likes_86400`, `likes_604800`, how many in all and in the last so many
        seconds; `last_like`, `third_last_like`, `first_like`, seconds since then; `liked_year`, their mean year; `year_distance`, the
        film's year less it. Logarithms log(1 + x) of counts and seconds; missing where there is none. `film_level`, `film_rows`,
        `liked_level`, `liked_level_10`, `liked_rows`, `co_liked`, `co_liked_10`, what the seen labels of other users tell, whenever they
        were given (absent where no labels are seen): see [`~lmctr.data.builders.collm_levels.levels_without_the_user`].

    Raises:
        FileNotFoundError: a file is absent; the message says where it is published.
        ValueError: a file is no such frame, asks for other constructors, or lacks a column; rows that repeat user and film; `his` that
            names a film without title.
    """
    if labels_seen not in SEEN:
        raise ValueError(f"labels_seen: got {labels_seen!r}, accepted: {', '.join(map(repr, SEEN))}.")
    folder, _ = FILES.folder(path)
    files = FILES.below(path, NAMES.values())
    frames = {part: _read(files[name]) for part, name in NAMES.items()}
    joined = {
        key: np.concatenate([frame[key] for frame in frames.values()]) for key in ("uid", "iid", "label", "timestamp")
    }
    part = np.repeat(np.arange(3), [len(frame["uid"]) for frame in frames.values()])
    his = [items for frame in frames.values() for items in frame["his"]]
    titles = dict(pair for frame in frames.values() for pair in zip(frame["iid"].tolist(), frame["title"]))
    hidden = part > SEEN[labels_seen]
    likes = _likes(joined, his, hidden)
    for frame in frames.values():
        for items, names in zip(frame["his"], frame["his_title"]):
            titles.update(pair for pair in zip(items, names) if pair[0] not in titles and pair[0] != _PADDING)
    count, length = len(part), len(likes["uid"])
    events = {key: np.concatenate([joined[key], likes[key]]) for key in ("uid", "iid", "timestamp")}
    rows = {name: int((part == code).sum()) for code, name in enumerate(PARTS)}
    log = InteractionLog.from_columns(
        events["uid"],
        events["iid"],
        events["timestamp"],
        np.concatenate([joined["label"], np.full(length, -1)]),
        catalogue=_catalogue(titles),
        feedback=np.concatenate([joined["label"] + 1, np.full(length, 2)]),
        feedback_names=("unknown", "negative", "positive"),
        part=np.concatenate([part, np.full(length, -1)]),
        hidden=np.concatenate([hidden, np.zeros(length, dtype=bool)]),
        info=replace(
            INFO,
            notes=f"Histories and statistics see {_told(labels_seen)}; likes of later rows as the rows after them "
            f"list them. {length} likes are history only.",
            extra={"labels_seen": labels_seen, "rows": rows, "published_rows": PUBLISHED_ROWS, "samples": count},
        ),
        source=str(folder),
    )
    return replace(log, context=_context(log))


def _told(labels_seen: str) -> str:
    return "no labels" if labels_seen == "none" else f"the labels of {labels_seen.replace('_', ' ')}"


def _context(log: InteractionLog) -> pa.Table:
    """What the likes before each event tell, see [`load_collm_ml1m`]."""
    liked = np.flatnonzero(~log.hidden & (log.feedback == 2))
    span = int(log.time.max() - log.time.min()) + max(_WINDOWS) + 1
    key = log.user.astype(np.int64) * span + (log.time - log.time.min())
    keys = key[liked]  # rises, as events are sorted by user and time
    first, end = np.searchsorted(liked, log.offsets[:-1])[log.user], np.searchsorted(keys, key)
    columns_: dict[str, np.ndarray] = {"likes": np.log1p(end - first)}
    for seconds in _WINDOWS:
        columns_[f"likes_{seconds}"] = np.log1p(end - np.maximum(np.searchsorted(keys, key - seconds), first))
    for name, place in (
        ("last_like", end - 1),
        ("third_last_like", end - 3),
        ("first_like", np.where(end > first, first, first - 1)),
    ):
        known = place >= first
        since = log.time - log.time[liked[np.maximum(place, 0)]]
        columns_[name] = np.where(known, np.log1p(np.where(known, since, 0)), np.nan)
    year = log.catalogue["year"].to_numpy(zero_copy_only=False).astype(np.float64)[log.item]
    sums = [offsets_from_lengths(values[liked]) for values in (np.nan_to_num(year).astype(np.int64), ~np.isnan(year))]
    total, count = (values[end] - values[first] for values in sums)
    columns_["liked_year"] = np.divide(total, count, out=np.full(len(year), np.nan), where=count > 0)
    columns_["year_distance"] = year - columns_["liked_year"]
    seen = np.where(log.hidden, -1, log.label)
    likes = ~log.hidden & (log.feedback == 2)
    if (seen >= 0).any():
        columns_ |= levels_without_the_user(log.user, log.item, log.time, seen, likes, log.num_items)
    return pa.table({name: pa.array(values, from_pandas=True) for name, values in columns_.items()})


def _read(path: Path) -> dict[str, Any]:
    """A part: `uid`, `iid`, `label`, `timestamp` (R,) int64; `title` (R,), `his`, `his_title` lists of texts and of lists."""
    where = str(path)
    try:
        with open(path, "rb") as file:
            frame = _FrameUnpickler(file).load()
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{path}: no pickled frame of CoLLM's ML-1M: {error}. {FILES.where}") from None
    if type(frame).__name__ != "DataFrame":
        raise ValueError(f"{path}: holds a {type(frame).__name__}, expected a pandas DataFrame. {FILES.where}")
    check_columns([str(name) for name in frame.columns], [*COLUMNS, "his_title"], where)
    if not len(frame):
        raise ValueError(f"{path}: the frame has no rows.")
    part: dict[str, Any] = {}
    for name in ("uid", "iid", "timestamp"):
        part[name] = _whole_numbers(frame, name, where)
    part["label"] = columns.to_labels(_whole_numbers(frame, "label", where), "label", where).astype(np.int64)
    part["title"] = columns.whole_column(frame["title"].tolist(), "title", where).to_pylist()
    for name in ("his", "his_title"):
        values = frame[name].tolist()
        bad = np.array([not isinstance(value, (list, tuple, np.ndarray)) for value in values])
        if bad.any():
            raise ValueError(
                f"{path}: column {name!r}: row {int(np.argmax(bad))} holds {values[int(np.argmax(bad))]!r}, expected a list."
            )
        part[name] = [list(value) for value in values]
    for row, (items, names) in enumerate(zip(part["his"], part["his_title"])):
        if len(items) != len(names) or not all(isinstance(item, (int, np.integer)) for item in items):
            raise ValueError(
                f"{path}: row {row}: `his` has {len(items)} films, `his_title` {len(names)} titles; expected as many ids as titles."
            )
    return part


def _whole_numbers(frame: pandas.DataFrame, name: str, where: str) -> np.ndarray:
    values = columns.whole_column(frame[name].tolist(), name, where)
    if not pa.types.is_integer(values.type):
        raise ValueError(f"{where}: column {name!r} has values of type {values.type}, expected whole numbers.")
    return values.to_numpy().astype(np.int64)


def _likes(rows: dict[str, np.ndarray], his: list[list[int]], hidden: np.ndarray) -> dict[str, np.ndarray]:
    """What the lists name and no seen row tells: likes of hidden rows at their own time, others just before the row that names them first."""
    user, item, time = (rows[key].tolist() for key in ("uid", "iid", "timestamp"))
    row_of: dict[tuple[int, int], int] = {}
    for row, pair in enumerate(zip(user, item)):
        if pair in row_of:
            raise ValueError(
                f"user {pair[0]} and film {pair[1]} stand on two rows; each pair may stand on one row of one part only."
            )
        row_of[pair] = row
    found: dict[tuple[int, int], int] = {}
    for row in np.argsort(rows["timestamp"], kind="stable").tolist():
        for liked in map(int, his[row]):
            pair = (user[row], liked)
            if liked == _PADDING or pair in found:
                continue
            own = row_of.get(pair)
            if own is None:
                found[pair] = time[row] - 1
            elif rows["label"][own] != 1 or time[own] > time[row]:
                raise ValueError(
                    f"user {pair[0]}: `his` of the row at time {time[row]} names film {liked}, whose own row has the label "
                    f"{rows['label'][own]} and the time {time[own]}; expected films liked until then."
                )
            elif hidden[own]:
                found[pair] = time[own]
    users, items = (np.array([pair[place] for pair in found], dtype=np.int64) for place in (0, 1))
    return {"uid": users, "iid": items, "timestamp": np.array(list(found.values()), dtype=np.int64)}


def _catalogue(titles: dict[int, str]) -> pa.Table:
    items = sorted(titles)
    table = pa.table(
        {"item_id": pa.array(items, pa.int64()), "title": pa.array([titles[item] for item in items], pa.string())}
    )
    year = pc.struct_field(pc.extract_regex(table["title"].combine_chunks(), r"\((?P<year>\d{4})\)\s*$"), "year")
    return table.append_column("year", pc.cast(year, pa.int32()))
