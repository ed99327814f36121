"""RecFlow: what every stage of Kuaishou's recommender passed on and dropped, request by request, as impressions.

The files are those of the folder `all_stage` of the published data: one Feather file per day, one row per request and video, with a 0/1 column per
stage label. Videos take the place of ads.

**Rank index.** v is the stage that a video reached, by the priorities of the data set's authors: 5 shown (`realshow`), 4 among the ten best of
ranking or re-ranking (`rank_pos`, `rerank_pos`), 3 below (`rank_neg`, `rerank_neg`), 2 dropped by coarse ranking (`coarse_neg`), 1 dropped by
pre-ranking (`prerank_neg`). `ranks="position"` orders the videos inside a stage too, by `rerank_index` and `rank_index`, and counts from the end.

**Value.** The data hold no eCPM. A declared column (or a weighted sum of columns) takes its place for videos that reached ranking; before, the
value is 0 as the eCPM is. A user's response is known for shown videos only, so that with such a column the others count 0.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather

from lmctr.data.impressions.source import ImpressionBlock, ImpressionSource
from lmctr.data.logs.columns import nulls
from lmctr.data.logs.log import DatasetInfo
from lmctr.data.logs.splits import PARTS
from lmctr.data.tables.source import file_fingerprint
from lmctr.utils.arrow import is_number
from lmctr.utils.files import expanded
from lmctr.utils.ragged import blocks
from lmctr.utils.suggest import did_you_mean, first_listed, first_quoted

from .files import absent

PRIORITIES = {
    "realshow": 5, "rerank_pos": 4, "rank_pos": 4, "rerank_neg": 3, "rank_neg": 3, "coarse_neg": 2, "prerank_neg": 1
}  # fmt: skip
"""v of each stage label; a video that has several has the highest."""
STAGES = ("pre-ranking", "coarse ranking", "ranking", "best of ranking", "shown")
REACHED_RANKING = 3
RESPONSES = ("effective_view", "long_view", "like", "follow", "forward", "comment", "playing_time")
_KEYS = ("request_id", "request_timestamp")
_USER = ("user_id", "device_id", "age", "gender", "province")
_VIDEO = ("video_id", "author_id", "category_level_one", "category_level_two", "upload_type")
_NUMBERS = ("upload_timestamp", "duration")
_INDICES = ("rerank_index", "rank_index")
_BLOCK = 4096
_MILLISECONDS = 10**11  # times above are no seconds
_RANKS = ("stage", "position")

INFO = DatasetInfo(
    name="recflow",
    url="https://github.com/RecFlow-ICLR/RecFlow",
    licence="CC BY-SA 4.0",
    citation="Q. Liu et al. 2025. RecFlow: An Industrial Full Flow Recommendation Dataset. ICLR.",
    label_rule="v: the last stage that a video reached, 1 (dropped by pre-ranking) to 5 (shown)",
    notes="files of all_stage; the pickled behaviour sequences are not read; parts are days, the last ones for validation and test",
)


def load_recflow(
    path: str | os.PathLike,
    *,
    value: str | Mapping[str, float] = "effective_view",
    ranks: str = "stage",
    dates: Sequence[str] | None = None,
    validation_days: int = 1,
    test_days: int = 1,
    videos_per_stage: int | None = None,
    min_count: int = 1,
    num_partitions: int = 1,
    seed: int = 0,
) -> ImpressionSource:
    """RecFlow's requests as impressions.

    Args:
        path: the folder `all_stage`, or the one above it; files `YYYY-MM-DD.feather`.
        value: what stands for the eCPM: a numeric column of the files, one's own too, or columns with weights, such as
            `{"effective_view": 1, "like": 5}`.
        ranks: "stage" or "position", see the module.
        dates: days to read, as "2024-02-01"; default: all files.
        validation_days, test_days: the last days; the rest is for training.
        videos_per_stage: draw at most so many videos of each v from a request; default: all.
        min_count: of the fields of ids.
        num_partitions: read every file so many times, each time a share of its requests: the memory is that of a share. A request's rows may stand
            anywhere in its file.
        seed: of the draw.

    The user is the group. Fields: the user's ids and the hour and weekday of the request; the video's ids, its duration and its age.

    Raises:
        FileNotFoundError: no files; the message says where to get them.
        ValueError: a column is missing, a stage label is not 0 or 1, a row has no stage label, a request has two users, the value is negative or no
            number (with file and row); too few days.
    """
    if ranks not in _RANKS:
        raise ValueError(f"ranks: got {ranks!r}, accepted: {', '.join(_RANKS)}.")
    weights = {value: 1.0} if isinstance(value, str) else {str(name): float(w) for name, w in dict(value).items()}
    if not weights:
        raise ValueError("value: no column; give one, or columns with weights.")
    numbers = {"validation_days": validation_days, "test_days": test_days, "num_partitions": num_partitions}
    for name, number in (numbers | {"videos_per_stage": 1 if videos_per_stage is None else videos_per_stage}).items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name}: got {number!r}, accepted: a whole number of at least 1.")
    files = _files(expanded(path), dates)
    if len(files) <= validation_days + test_days:
        raise ValueError(
            f"{path}: {len(files)} days; validation and test take {validation_days} + {test_days}, and training needs one."
        )
    parts = [0] * (len(files) - validation_days - test_days) + [1] * validation_days + [2] * test_days
    reader = _Reader(files, parts, weights, ranks, videos_per_stage, num_partitions, seed)
    ids = {"type": "categorical", "min_count": min_count}
    user_fields = [{"name": name, **ids} for name in _USER]
    user_fields += [{"name": name, "type": "categorical"} for name in ("request_hour", "request_weekday")]
    ad_fields = [{"name": name, **ids} for name in _VIDEO]
    ad_fields += [{"name": name, "type": "numeric", "transform": "log1p"} for name in ("duration", "age_days")]
    shown = " + ".join(name if weight == 1 else f"{weight:g} {name}" for name, weight in weights.items())
    info = DatasetInfo(**INFO.to_dict() | {"extra": {"value": shown, "ranks": ranks, "days": len(files)}})
    return ImpressionSource(reader.blocks, tuple(user_fields), tuple(ad_fields), reader.fingerprint, STAGES, info)


def _files(folder: Path, dates: Sequence[str] | None) -> list[Path]:
    if (folder / "all_stage").is_dir():
        folder = folder / "all_stage"
    files = sorted(folder.glob("*.feather")) if folder.is_dir() else []
    days = {file.stem: file for file in files if re.fullmatch(r"\d{4}-\d\d-\d\d", file.stem)}
    if not days:
        raise FileNotFoundError(absent(folder, INFO, "no files YYYY-MM-DD.feather (folder all_stage)"))
    if dates is None:
        return list(days.values())
    for date in dates:
        if str(date) not in days:
            raise FileNotFoundError(absent(folder / f"{date}.feather", INFO))
    return [days[date] for date in sorted(map(str, dates))]


@dataclass(frozen=True)
class _Reader:
    """Reads `files`, one per day, and gathers the rows of each request; `parts`: index into `PARTS` of each file; `weights`: the columns whose
    weighted sum is the value. See [`load_recflow`] for the others."""

    files: list[Path]
    parts: list[int]
    weights: dict[str, float]
    ranks: str
    videos_per_stage: int | None
    num_partitions: int
    seed: int

    @property
    def columns(self) -> list[str]:
        indices = _INDICES if self.ranks == "position" else ()
        return list(dict.fromkeys([*_KEYS, *_USER, *_VIDEO, *_NUMBERS, *PRIORITIES, *indices, *self.weights]))

    def fingerprint(self) -> str:
        """Text that changes with the files and the settings."""
        settings = (self.weights, self.ranks, self.parts, self.videos_per_stage, self.num_partitions, self.seed)
        digest = hashlib.sha256(repr(settings).encode())
        for file in self.files:
            digest.update(file_fingerprint(file).encode())
        return digest.hexdigest()

    def blocks(self) -> Iterator[ImpressionBlock]:
        """The requests of each file, by their ids; the rows of one stand together."""
        first = first_ad = 0
        for number, (file, part) in enumerate(zip(self.files, self.parts)):
            for share in range(self.num_partitions):
                columns = self._read(file, share)
                if not len(columns["request_id"]):
                    continue
                columns["v"] = self._grades(columns, file)
                columns = self._gathered(columns, np.random.default_rng([self.seed, number, share]))
                self._check_users(columns, file)
                bounds = np.append(_starts(columns["request_id"]), len(columns["request_id"]))
                for some in blocks(len(bounds) - 1, _BLOCK):
                    own = slice(*bounds[[some.start, some.stop]].tolist())
                    rows = {name: values[own] for name, values in columns.items()}
                    block = self._block(rows, file, part, first, first_ad)
                    first, first_ad = first + len(block), first_ad + int(block.counts.sum())
                    yield block

    def _read(self, file: Path, share: int) -> dict[str, np.ndarray]:
        """The columns of a share of the requests, and `row`, the row of the file from 1."""
        kept: dict[str, list[np.ndarray]] = {name: [] for name in (*self.columns, "row")}
        row = 1
        for batch in _batches(file, self.columns):
            request = _numbers(batch, "request_id", file, row).astype(np.int64)
            mine = np.flatnonzero(request % self.num_partitions == share)
            for name in self.columns:
                values = request if name == "request_id" else _numbers(batch, name, file, row)
                kept[name].append(values[mine])
            kept["row"].append(mine + row)
            row += batch.num_rows
        return {name: np.concatenate(parts) if parts else np.zeros(0, np.int64) for name, parts in kept.items()}

    def _grades(self, columns: dict[str, np.ndarray], file: Path) -> np.ndarray:
        """(R,) int8 v of each row, 1 to 5."""
        v = np.zeros(len(columns["row"]), dtype=np.int8)
        for name, priority in PRIORITIES.items():
            flag = columns.pop(name)
            _refuse(~np.isin(flag, (0, 1)), flag, columns["row"], file, name, "stage labels are 0 or 1")
            if name == "rerank_pos":
                columns["in_rerank"] = flag == 1
            elif name == "rerank_neg":
                columns["in_rerank"] |= flag == 1
            v = np.maximum(v, (flag == 1) * np.int8(priority))
        _refuse(v == 0, v, columns["row"], file, "/".join(PRIORITIES), "each row has a stage label at least")
        return v

    def _gathered(self, columns: dict[str, np.ndarray], draw: np.random.Generator) -> dict[str, np.ndarray]:
        """Rows sorted by request, in the order of the file inside one."""
        if self.videos_per_stage is not None:
            order = np.lexsort((draw.random(len(columns["row"])), columns["v"], columns["request_id"]))
            key = columns["request_id"][order], columns["v"][order]
            new = (np.diff(key[0], prepend=key[0][0] - 1) != 0) | (np.diff(key[1], prepend=0) != 0)
            begins = np.flatnonzero(new)
            place = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
            kept = np.sort(order[place < self.videos_per_stage])
            columns = {name: values[kept] for name, values in columns.items()}
        order = np.argsort(columns["request_id"], kind="stable")
        return {name: values[order] for name, values in columns.items()}

    def _check_users(self, columns: dict[str, np.ndarray], file: Path) -> None:
        same = np.diff(columns["request_id"]) == 0
        for name in ("user_id", "request_timestamp"):
            wrong = same & (np.diff(columns[name]) != 0)
            if wrong.any():
                raise ValueError(
                    f"{file}: request {columns['request_id'][int(np.argmax(wrong))]} has more than one {name}; rows of a request are "
                    "of one user and time. Is it a file of all_stage?"
                )

    def _block(
        self, columns: dict[str, np.ndarray], file: Path, part: int, first: int, first_ad: int
    ) -> ImpressionBlock:
        starts = _starts(columns["request_id"])
        counts = np.diff(starts, append=len(columns["request_id"]))
        ecpm = np.zeros(len(columns["row"]))
        for name, weight in self.weights.items():
            ecpm += weight * columns[name].astype(np.float64)
        ecpm[columns["v"] < REACHED_RANKING] = 0.0
        accepted = "the value of videos that reached ranking is a number of at least 0"
        _refuse(~(np.isfinite(ecpm) & (ecpm >= 0)), ecpm, columns["row"], file, " + ".join(self.weights), accepted)
        seconds = _seconds(columns["request_timestamp"])
        users = {name: columns[name][starts] for name in _USER}
        users |= {"request_hour": seconds[starts] // 3600 % 24, "request_weekday": (seconds[starts] // 86400 + 3) % 7}
        ads = {name: columns[name] for name in _VIDEO} | {"duration": columns["duration"]}
        ads["age_days"] = np.maximum(seconds - _seconds(columns["upload_timestamp"]), 0) / 86400
        v = columns["v"].astype(np.float32)
        return ImpressionBlock(
            users=pa.table(users),
            ads=pa.table(ads),
            counts=counts,
            ranks=v if self.ranks == "stage" else _positions(columns, np.repeat(np.arange(len(counts)), counts)),
            ecpm=ecpm,
            split=np.full(len(counts), part, dtype=np.int8),
            stages=columns["v"] - 1,
            groups=columns["user_id"][starts].astype(np.int64),
            times=seconds[starts],
            first=first,
            first_ad=first_ad,
            source=f"{file.name} ({PARTS[part]})",
        )


def _starts(request: np.ndarray) -> np.ndarray:
    """The first row of each request, of rows that stand together."""
    return np.flatnonzero(np.diff(request, prepend=request[0] - 1))


def _positions(columns: dict[str, np.ndarray], request: np.ndarray) -> np.ndarray:
    """(A,) float32 places from the end of a request's queue, from 1; equal where stage and indices are."""
    reached = columns["v"] >= REACHED_RANKING
    last = np.iinfo(np.int64).max
    rerank = np.where(columns["in_rerank"], columns["rerank_index"].astype(np.int64), last)
    rank = np.where(reached, columns["rank_index"].astype(np.int64), last)
    order = np.lexsort((-rank, -rerank, columns["v"], request))  # worst first
    keys = [key[order] for key in (request, columns["v"], rerank, rank)]
    begins = np.diff(keys[0], prepend=-1) != 0
    changes = begins.copy()
    for key in keys[1:]:
        changes[1:] |= key[1:] != key[:-1]
    steps = np.cumsum(changes)
    v = np.empty(len(order), dtype=np.float32)
    v[order] = steps - np.repeat(steps[begins], np.diff(np.flatnonzero(begins), append=len(order))) + 1
    return v


def _batches(file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Record batches of a Feather file, one at a time where the format allows."""
    try:
        with pa.memory_map(str(file)) as source:
            reader = pa.ipc.open_file(source)
            _check_columns(file, reader.schema.names, columns)
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index).select(columns)
        return
    except pa.ArrowInvalid:
        pass
    try:  # the first version of the format
        table = feather.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: no Feather file, or cut off ({error}); download it again.") from error
    _check_columns(file, table.column_names, columns)
    yield from table.select(columns).to_batches()


def _check_columns(file: Path, found: list[str], needed: list[str]) -> None:
    missing = [name for name in needed if name not in found]
    if not missing:
        return
    hint = did_you_mean(missing[0], found)
    raise ValueError(
        f"{file}: no column {first_quoted(missing)}; it has {first_listed(found)}. Files of the folder all_stage are read, and `value` names columns of "
        f"theirs (responses: {', '.join(RESPONSES)}).{hint}"
    )


def _numbers(batch: pa.RecordBatch, name: str, file: Path, first: int) -> np.ndarray:
    """(R,) a numeric column. Raises `ValueError` for missing values and other types."""
    array = batch.column(name)
    if not (is_number(array.type) or pa.types.is_boolean(array.type)):
        raise ValueError(f"{file}: the column {name!r} holds {array.type}; accepted: numbers.")
    if array.null_count:
        row = int(np.argmax(nulls(array))) + first
        raise ValueError(f"{file}, row {row}: the column {name!r} has no value; every row needs one.")
    return array.to_numpy(zero_copy_only=False)


def _refuse(bad: np.ndarray, values: np.ndarray, rows: np.ndarray, file: Path, column: str, accepted: str) -> None:
    if bad.any():
        place = int(np.argmax(bad))
        raise ValueError(
            f"{file}, row {rows[place]}: {column} is {values[place]}; {accepted} ({int(bad.sum())} such rows)."
        )


def _seconds(times: np.ndarray) -> np.ndarray:
    """(R,) int64 unix seconds of times in seconds or milliseconds."""
    times = times.astype(np.int64)
    return np.where(times > _MILLISECONDS, times // 1000, times)
