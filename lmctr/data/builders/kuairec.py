"""KuaiRec 2.0 (short videos of Kuaishou), read from the files that its authors publish.

`big_matrix.csv` and `small_matrix.csv`: user_id, video_id, play_duration, video_duration, time, date, timestamp, watch_ratio;
`kuairec_caption_category.csv`: video_id, manual_cover_text, caption, topic_tag, then id and name of three category levels;
`item_categories.csv`: video_id, feat (a list of anonymous category ids).
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from lmctr.data.logs import columns
from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.reading import check_columns, read_delimited

from .files import Published

INFO = DatasetInfo(
    name="kuairec",
    url="https://kuairec.com",
    licence="CC BY-SA 4.0 (LICENSE of the data set): share and adapt with attribution, under the same licence.",
    citation="Chongming Gao, Shijun Li, Wenqiang Lei, Jiawei Chen, Biao Li, Peng Jiang, Xiangnan He, Jiaxin Mao, and Tat-Seng "
    "Chua. 2022. KuaiRec: A Fully-observed Dataset and Insights for Evaluating Recommender Systems. CIKM '22, 540-550. "
    "https://doi.org/10.1145/3511808.3557220",
    language="zh",
)
MATRICES = {"small": ("small_matrix",), "big": ("big_matrix",), "both": ("big_matrix", "small_matrix")}
CAPTIONS = "kuairec_caption_category.csv"
CATEGORIES = "item_categories.csv"
FILES = Published("KuaiRec", INFO, f"KuaiRec.zip and {CAPTIONS}", " and unpack the first")
LEVELS = ("first_level_category_name", "second_level_category_name", "third_level_category_name")
_CAPTION_COLUMNS = ("video_id", "manual_cover_text", "caption", "topic_tag", *LEVELS)
_EMPTY = {"", "unknown", "nan", "null", "none"}
_UNDECODABLE = "\ufffd"  # what decoding puts for bytes that are no UTF-8
_MOST_BROKEN = 0.05  # of the rows of the caption file; above, it is another file


def load_kuairec(
    path: str | os.PathLike | None = None,
    *,
    matrix: str = "small",
    positive_above: float = 1.0,
    min_user_events: int = 1,
    progress: bool = False,
) -> InteractionLog:
    """Reads KuaiRec 2.0 as downloaded from [its site](https://kuairec.com).

    Args:
        path: folder with the CSV files, or one that holds it (`KuaiRec 2.0/data` is found). None takes the environment variable
            `LMCTR_DATA`.
        matrix: "small" (1,411 users who saw nearly all of 3,327 videos), "big" (7,176 users, 10,728 videos) or "both". The paper of
            CTR-Sink counts 4,282,953 exposures, which fits the small matrix (4,676,570 rows) without the rows that are left out below.
        positive_above: the label is 1 when the watch ratio (play duration over video duration) is greater: above 1, the video was
            watched to its end and on.
        min_user_events: keep users with at least this many of the events that are left.
        progress: show progress bars.

    Returns:
        A log whose catalogue has the columns `item_id`, `caption`, `cover_text` (null without one), `categories` (names of the
        category levels, the first level first), `topic_tags` (list), and `tags` (list of the ids in `item_categories.csv`) where
        that file is there. Texts are Chinese. Videos without a caption are left out, with their events; so are rows without a
        timestamp, and repeats of user, video and timestamp. `info.notes` and `info.extra` say how many. Feedback comes from the
        label; `feedback_values` are the watch ratios.

    Raises:
        FileNotFoundError: no files; the message says where to get them.
        ValueError: a file lacks a column, is empty or holds bad values; nothing is left after filtering.
    """
    if matrix not in MATRICES:
        raise ValueError(f"matrix: got {matrix!r}, accepted: {', '.join(map(repr, MATRICES))}.")
    folder = _find(path, MATRICES[matrix])
    captions_file = _beside(folder, CAPTIONS)
    if captions_file is None:
        raise FileNotFoundError(
            f"{folder}: no {CAPTIONS}, here or above; the site offers it as a file of its own. {FILES.where}"
        )
    catalogue, num_videos, num_broken = _read_captions(captions_file)
    categories_file = _beside(folder, CATEGORIES)
    if categories_file is not None:
        catalogue = catalogue.append_column("tags", _read_tags(categories_file, catalogue["item_id"].to_numpy()))
    events, counts = _read_events([folder / f"{name}.csv" for name in MATRICES[matrix]], progress)
    keep = np.isin(events["video_id"], catalogue["item_id"].to_numpy())
    counts |= {
        "num_events_without_caption": int((~keep).sum()),
        "num_videos_in_caption_file": num_videos,
        "num_videos_with_caption": catalogue.num_rows,
        "num_unreadable_caption_rows": num_broken,
    }
    num_rows, num_without_time, num_repeats, num_without_text, *_ = counts.values()
    if min_user_events > 1:
        keep[keep] = columns.users_with(events["user_id"][keep], min_user_events)
    if not keep.any():
        raise ValueError(
            f"{folder}: none of {num_rows} rows is left: {num_without_time} have no timestamp, {num_repeats} repeat "
            f"another, {num_without_text} are of videos without a caption, the rest of users with fewer than {min_user_events} events."
        )
    info = replace(
        INFO,
        name=f"kuairec-{matrix}",
        label_rule=f"watch ratio > {positive_above:g}",
        notes=(
            f"{num_rows} rows in {' and '.join(MATRICES[matrix])}; left out: {num_without_time} without timestamp, "
            f"{num_repeats} repeats of user, video and timestamp, {num_without_text} of videos without a caption"
            + (f", users with fewer than {min_user_events} events" if min_user_events > 1 else "")
            + f" ({int(keep.sum())} events are left). Caption file: {num_broken} rows that are no record were left out."
        ),
        extra={"matrix": matrix, **counts},
    )
    return InteractionLog.from_columns(
        events["user_id"][keep],
        events["video_id"][keep],
        np.floor(events["timestamp"][keep]).astype(np.int64),
        events["watch_ratio"][keep] > positive_above,
        catalogue=catalogue,
        feedback_values=events["watch_ratio"][keep],
        info=info,
        source=str(folder),
        names={"user": "user_id", "item": "video_id", "time": "timestamp"},
    )


# ---- events ----


def _read_events(files: list[Path], progress: bool) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Rows of the matrices that have a time, repeats left out, by column; and what was left out."""
    parts = [_read_matrix(file, progress) for file in files]
    events = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    timed = events["timestamp"] > 0  # false for NaN, which stands for an empty field
    events = {name: values[timed] for name, values in events.items()}
    keys = [events[name] for name in ("timestamp", "video_id", "user_id")]
    order = np.lexsort(keys)
    repeated = np.zeros(len(order), dtype=bool)
    repeated[1:] = np.all([key[order][1:] == key[order][:-1] for key in keys], axis=0)
    first = np.sort(order[~repeated])  # lexsort is stable: of equal rows the first of the file stays
    counts = {
        "num_rows_in_files": len(timed),
        "num_rows_without_timestamp": int((~timed).sum()),
        "num_repeated_rows": int(repeated.sum()),
    }
    return {name: values[first] for name, values in events.items()}, counts


def _read_matrix(file: Path, progress: bool) -> dict[str, np.ndarray]:
    types = {"user_id": pa.int64(), "video_id": pa.int64(), "timestamp": pa.float64(), "watch_ratio": pa.float64()}
    table = read_delimited(file, list(types), types, progress=progress)
    names = {name: name for name in types if name != "timestamp"}
    arrays = columns.whole_arrays(table, names, str(file))
    ratio, time = arrays["watch_ratio"], table["timestamp"].to_numpy()
    bad = ~(np.isfinite(ratio) & (ratio >= 0))
    columns.refuse(bad, ratio, "watch_ratio", str(file), "are no ratios", "A ratio is finite and at least 0.")
    rule = "KuaiRec's timestamps are seconds."
    columns.refuse(np.isinf(time) | (time > 4e9), time, "timestamp", str(file), "are no unix seconds", rule)
    return arrays | {"timestamp": time}


# ---- catalogue ----


def _read_captions(file: Path) -> tuple[pa.Table, int, int]:
    """The catalogue of videos with a caption, the number of videos, and the number of rows that are no record.

    Captions are free text of users: the published file holds line breaks and carriage returns in them. Quoted ones are part of
    the caption; a record that an unquoted one cuts in two is left out and counted. So is one with bytes that are no UTF-8.
    """
    text = file.read_bytes().decode("utf-8-sig", errors="replace")
    # Only \n ends a record; other line ends inside a caption are blanks.
    text = re.sub("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029\0]", " ", text.replace("\r\n", "\n"))
    rows = csv.reader(io.StringIO(text, newline="\n"))
    header = next(rows, None)
    if header is None:
        raise ValueError(f"{file}: the file is empty.")
    check_columns(header, _CAPTION_COLUMNS, str(file))
    place = {name: header.index(name) for name in _CAPTION_COLUMNS}
    videos: dict[int, list[str]] = {}
    broken, first_broken = 0, None
    for number, row in enumerate(rows, start=1):
        if not row:
            continue
        is_record = len(row) == len(header) and re.fullmatch(r"\s*\d+\s*", row[place["video_id"]])
        if not is_record or any(_UNDECODABLE in value for value in row):
            broken += 1
            first_broken = first_broken or f"row {number}: {','.join(row)[:80]!r}"
            continue
        video = int(row[place["video_id"]])
        if video in videos:
            raise ValueError(f"{file}: row {number} repeats video {video}; a video has one row.")
        videos[video] = row
    if not videos or broken > _MOST_BROKEN * (broken + len(videos)):
        raise ValueError(
            f"{file}: {broken} of {broken + len(videos)} rows are no record of {len(header)} UTF-8 fields with a video id "
            f"({first_broken or 'the file has a header and no rows'}). {FILES.where}"
        )
    captions = {video: _clean(row[place["caption"]]) for video, row in videos.items()}
    captions = {video: caption for video, caption in captions.items() if caption is not None}
    if not captions:
        raise ValueError(f"{file}, column 'caption': none of {len(videos)} videos has a caption.")
    kept = [{name: videos[video][at] for name, at in place.items()} for video in captions]
    names = pa.list_(pa.string())
    table = pa.table(
        {
            "item_id": pa.array(list(captions), pa.int64()),
            "caption": pa.array(list(captions.values()), pa.string()),
            "cover_text": pa.array([_clean(row["manual_cover_text"]) for row in kept], pa.string()),
            "categories": pa.array([_names(_clean(row[level]) for level in LEVELS) for row in kept], names),
            "topic_tags": pa.array([_names(_list(row["topic_tag"])) for row in kept], names),
        }
    )
    return table, len(videos), broken


def _clean(text: str) -> str | None:
    """One line of text; None for the file's words for nothing."""
    text = " ".join(text.split())
    return None if text.lower() in _EMPTY else text


def _list(text: str) -> list[str | None]:
    """`[a,b]` or `['a', 'b']` as names."""
    text = text.strip().removeprefix("[").removesuffix("]")
    return [_clean(part.strip().strip("'\"")) for part in re.split("[,，]", text)]


def _names(names: Iterable[str | None]) -> list[str]:
    """Names without gaps and without repeats, in their order."""
    return list(dict.fromkeys(name for name in names if name is not None))


def _read_tags(file: Path, videos: np.ndarray) -> pa.Array:
    """The ids of `feat` ("[27, 9]") of each video; an empty list where the file lacks a video."""
    table = read_delimited(file, ["video_id", "feat"], {"video_id": pa.int64(), "feat": pa.string()})
    found = {}
    for row, (video, feat) in enumerate(zip(table["video_id"].to_pylist(), table["feat"].to_pylist()), start=1):
        if video is None or not re.fullmatch(r"\s*\[\s*(\d+\s*(,\s*\d+\s*)*)?\]\s*", feat or ""):
            raise ValueError(
                f"{file}: row {row} is video {video!r}, feat {feat!r}; expected a number and a list such as [27, 9]."
            )
        found[video] = [int(number) for number in re.findall(r"\d+", feat)]
    return pa.array([found.get(video, []) for video in videos.tolist()], pa.list_(pa.int64()))


# ---- files ----


def _find(path: str | os.PathLike | None, matrices: tuple[str, ...]) -> Path:
    root, called = FILES.folder(path)
    wanted = [f"{name}.csv" for name in matrices]
    folders = [root]
    for _ in range(4):  # path, KuaiRec, KuaiRec 2.0, data
        for folder in folders:
            if all((folder / name).is_file() for name in wanted):
                return folder
        inside = (inner for folder in folders if folder.is_dir() for inner in sorted(folder.iterdir()))
        folders = [folder for folder in inside if folder.is_dir()]
    raise FILES.absent(root, called, f"{' and '.join(wanted)}, here or up to three folders below")


def _beside(folder: Path, name: str) -> Path | None:
    """A file in the matrices' folder or up to three folders above (captions are downloaded as a file of their own)."""
    places = (folder, *list(folder.resolve().parents)[:3])
    return next((place / name for place in places if (place / name).is_file()), None)
