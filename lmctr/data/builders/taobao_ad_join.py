"""The join behind [`load_taobao_ad`]: each impression with its ad, its user and the user's behaviours before it.

Impressions and behaviours are first dealt out to files by user, in one streaming pass each; then one group of users at a time is
sorted and joined. Peak memory is that of one group (723 million behaviours in 64 groups: about 11 million at a time) and of the ad
and user tables.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmctr.data.features.columns import Rows, numbers
from lmctr.data.reading import read_table
from lmctr.data.tables.reading import block_size_for, stream_file
from lmctr.data.tables.source import watched
from lmctr.utils.files import read_json, write_json
from lmctr.utils.lock import owned
from lmctr.utils.progress import over
from lmctr.utils.ragged import offsets_from_lengths, ragged_arange

PREPARED = "lmctr_prepared"
_DONE = "prepared.json"
_SAMPLE = np.dtype([("user", "i4"), ("time", "i8"), ("ad", "i4"), ("pid", "i4"), ("clk", "i1")])
_EVENT = np.dtype([("user", "i4"), ("time", "i8"), ("cate", "i4"), ("brand", "i4"), ("btag", "i1")])


def prepare_taobao_ad(
    files: Mapping[str, Path],
    folder: Path,
    *,
    max_length: int,
    num_partitions: int,
    memory_limit: int | None = None,
    progress: bool = False,
) -> list[Path]:
    """Joins the raw files into Parquet files, one per group of users, unless that is done already.

    Args:
        files: paths of "raw_sample", "ad_feature", "user_profile", "behavior_log".
        folder: where the files go; it is written under another name and renamed when complete.
        max_length: behaviours per impression.
        num_partitions: groups of users.
        memory_limit: bytes that reading may take (the groups come on top).
        progress: show bars.

    Returns:
        Paths of the Parquet files.

    Raises:
        ValueError: values that are wrong, files joined otherwise, another process that joins into the folder.
    """
    settings = {"max_length": max_length, "num_partitions": num_partitions}
    settings["files"] = {name: [file.name, file.stat().st_size] for name, file in sorted(files.items())}
    if not (folder / _DONE).is_file():
        with owned(folder.parent, f"join into {folder.name}", f".{folder.name}.lock"):
            if not (folder / _DONE).is_file():  # else another process has just finished it
                _join_all(files, folder, settings, memory_limit, progress)
    done = read_json(folder / _DONE)
    if done.get("settings") != settings:
        raise ValueError(
            f"{folder}: holds files joined from other raw files or with other settings ({done.get('settings')}); "
            "remove the folder, or give another one as prepared=..."
        )
    return sorted(folder.glob("part-*.parquet"))


def _join_all(
    files: Mapping[str, Path], folder: Path, settings: Mapping[str, Any], memory_limit: int | None, progress: bool
) -> None:
    max_length, num_partitions = settings["max_length"], settings["num_partitions"]
    work = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    size = block_size_for(memory_limit)
    pids: dict[str, int] = {}
    with _Dealer(work, "samples", _SAMPLE, num_partitions) as samples:
        columns = dict.fromkeys(("user", "time_stamp", "adgroup_id", "clk"), "number") | {"pid": "text"}
        for rows in watched(stream_file(files["raw_sample"], columns, block_size=size), "impressions", progress):
            encoded = rows.column("pid").dictionary_encode()
            codes = [pids.setdefault(value, len(pids)) for value in encoded.dictionary.to_pylist()]
            values = {"user": "user", "time": "time_stamp", "ad": "adgroup_id", "clk": "clk"}
            values = {key: _whole(rows, name) for key, name in values.items()}
            values["pid"] = np.array(codes, dtype=np.int32)[encoded.indices.to_numpy()]
            samples.deal(values)
    seen = samples.users()
    tags = ("pv", "cart", "fav", "buy")
    with _Dealer(work, "events", _EVENT, num_partitions) as events:
        columns = dict.fromkeys(("user", "time_stamp", "cate", "brand"), "number") | {"btag": "text"}
        for rows in watched(stream_file(files["behavior_log"], columns, block_size=size), "behaviours", progress):
            user = _whole(rows, "user")
            kept = (user < len(seen)) & seen[np.minimum(user, len(seen) - 1)]
            values = {"user": user, "time": _whole(rows, "time_stamp")}
            values |= {name: _whole(rows, name) for name in ("cate", "brand")}
            encoded = rows.column("btag").dictionary_encode()
            names = encoded.dictionary.to_pylist()
            unknown = np.array([name not in tags for name in names])[encoded.indices.to_numpy()]
            if unknown.any():
                rows.refuse(unknown, rows.column("btag"), "btag", "are unknown", f"Accepted: {', '.join(tags)}.")
            values["btag"] = np.array([tags.index(name) for name in names], dtype=np.int8)[encoded.indices.to_numpy()]
            events.deal({key: value[kept] for key, value in values.items()})
    ads = read_table(files["ad_feature"], ["adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price"])
    users = read_table(files["user_profile"])
    names = [name.strip() for name in users.column_names]  # "new_user_class_level " in the published file
    users = users.rename_columns(names)
    words = {"pid": pa.array(list(pids)), "btag": pa.array(tags)}
    total = dropped = 0
    for part in over(range(num_partitions), "joining behaviours", "parts", show=progress):
        sample = samples.read(part)
        if len(sample):
            table, lost = _join(sample, events.read(part), ads, users, words, max_length)
            total, dropped = total + len(sample), dropped + lost
            if table.num_rows:
                pq.write_table(table, work / f"part-{part:04d}.parquet", row_group_size=1 << 16)
    for path in work.glob("*.bin"):
        path.unlink()
    write_json(work / _DONE, {"settings": settings, "impressions": total, "dropped": dropped})
    work.rename(folder)


def _whole(rows: Rows, column: str) -> np.ndarray:
    """Whole numbers of a column; missing ones (the brand of some ads) are 0."""
    values = np.nan_to_num(numbers(rows.column(column), column, rows))
    return values.astype(np.int64)


class _Dealer:
    """Deals records out to one file per group of users."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype, parts: int) -> None:
        self._paths = [folder / f"{name}-{part:04d}.bin" for part in range(parts)]
        self._dtype = dtype

    def __enter__(self) -> _Dealer:
        self._files = [open(path, "wb") for path in self._paths]  # noqa: SIM115 - closed in __exit__
        return self

    def __exit__(self, *_: Any) -> None:
        for file in self._files:
            file.close()

    def deal(self, values: Mapping[str, np.ndarray]) -> None:
        records = np.empty(len(values["user"]), dtype=self._dtype)
        for name, column in values.items():
            records[name] = column
        part = records["user"] % len(self._files)
        order = np.argsort(part, kind="stable")
        bounds = np.searchsorted(part[order], np.arange(len(self._files) + 1))
        records = records[order]
        for number, file in enumerate(self._files):
            file.write(records[bounds[number] : bounds[number + 1]].tobytes())

    def read(self, part: int) -> np.ndarray:
        return np.fromfile(self._paths[part], dtype=self._dtype)

    def users(self) -> np.ndarray:
        """Whether each user number occurs."""
        found = [np.unique(self.read(part)["user"]) for part in range(len(self._paths))]
        seen = np.zeros(max((int(users[-1]) for users in found if len(users)), default=0) + 1, dtype=bool)
        for users in found:
            seen[users] = True
        return seen


def _join(
    sample: np.ndarray, event: np.ndarray, ads: pa.Table, users: pa.Table, words: dict[str, pa.Array], max_length: int
) -> tuple[pa.Table, int]:
    """Table of one group of users, and the number of impressions without an ad or user."""
    known = ((sample["ad"], ads["adgroup_id"]), (sample["user"], users["userid"]))
    ad, user = (pc.index_in(pa.array(ids, rows.type), rows).fill_null(-1).to_numpy() for ids, rows in known)
    kept = (ad >= 0) & (user >= 0)
    sample, ad, user = sample[kept], ad[kept], user[kept]
    event = event[np.lexsort((event["time"], event["user"]))]
    key, wanted = (records["user"].astype(np.int64) << 33 | records["time"] for records in (event, sample))
    end = np.searchsorted(key, wanted, side="left")  # strictly before the impression
    start = np.searchsorted(key, sample["user"].astype(np.int64) << 33, side="left")
    start = np.maximum(start, end - max_length)
    flat = event[ragged_arange(start, end - start)]
    offsets = pa.array(offsets_from_lengths(end - start), pa.int32())

    columns: dict[str, Any] = {"clk": sample["clk"], "userid": sample["user"], "time_stamp": sample["time"]}
    columns["pid"] = words["pid"].take(pa.array(sample["pid"]))
    for taken in (users.drop_columns(["userid"]).take(pa.array(user)), ads.take(pa.array(ad))):
        columns |= dict(zip(taken.column_names, taken.columns))
    values = {name: pa.array(flat[name]) for name in ("cate", "brand", "btag", "time")}
    values["btag"] = words["btag"].take(values["btag"])
    columns |= {f"{name}_his": pa.ListArray.from_arrays(offsets, column) for name, column in values.items()}
    return pa.table(columns), int((~kept).sum())
