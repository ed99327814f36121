"""Spotify's music streaming sessions (MSSD), read from the files of the sequential skip prediction challenge.

`log_*.csv` (also .csv.gz): one row per track of a session, with `session_id`, `session_position`, `track_id_clean` (or `track_id`),
`skip_1`, `skip_2`, `skip_3`, `not_skipped`, `hour_of_day`, `date`, `context_type`, ...; `tf_*.csv`: features of tracks.
The data have no users: a session is one here.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.logs import columns
from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.reading import ID, opened, read_delimited

from .files import Published

INFO = DatasetInfo(
    name="spotify-sessions",
    url="https://www.aicrowd.com/challenges/spotify-sequential-skip-prediction-challenge",
    licence="Terms of the Spotify Sequential Skip Prediction Challenge: research use; no redistribution.",
    citation="Brian Brost, Rishabh Mehrotra, and Tristan Jehan. 2019. The Music Streaming Sessions Dataset. WWW '19, 2594-2600. "
    "https://doi.org/10.1145/3308558.3313641",
    label_rule="not_skipped",
)
FILES = Published("Spotify sessions", INFO, "the training set (or the mini version) and the track features")
BEHAVIORS = ("unknown", "skipped at once", "skipped early", "skipped late", "played")
_FLAGS = ("skip_1", "skip_2", "skip_3", "not_skipped")
_FEATURES = ("duration", "release_year", "us_popularity_estimate", "acousticness", "energy", "tempo", "valence")


def load_spotify_sessions(
    path: str | os.PathLike | None = None,
    *,
    max_files: int | None = None,
    min_session_length: int = 10,
    progress: bool = False,
) -> InteractionLog:
    """Reads Spotify sessions.

    Args:
        path: folder with `log_*.csv`, and for track features `tf_*.csv` (in it or one folder below). None takes the environment
            variable `LMCTR_DATA`.
        max_files: read only so many log files, in the order of their names.
        min_session_length: keep sessions with at least this many tracks.
        progress: show progress bars.

    Returns:
        A log whose label is `not_skipped`. Behaviours: how early a track was skipped (briefly, for a short time, for most of it), or
        that it was played. Scenario: the context (playlist, radio, ...). The data tell the day and the hour: a session begins in the
        hour of its first track, and each position takes a second, which keeps the order. Catalogue: `item_id`, and with the
        feature files duration, release_year, popularity and some acoustic values.

    Raises:
        FileNotFoundError: no files; the message says where to get them.
        ValueError: a file lacks a column or has values of another type, a session without its first rows, nothing left.
    """
    folder, called = FILES.folder(path)
    logs = sorted({*folder.glob("log_*.csv*"), *folder.glob("*/log_*.csv*")})
    if not logs:
        raise FILES.absent(folder, called, "log_*.csv, here or one folder below")
    logs = logs[:max_files]
    table = pa.concat_tables([_read(file, progress) for file in logs]).unify_dictionaries().combine_chunks()
    source = str(logs[0]) if len(logs) == 1 else f"{folder} ({len(logs)} files)"
    session, session_ids = columns.encode_ids(table["session_id"], "session_id", source)
    keep = np.bincount(session)[session] >= min_session_length
    if not keep.any():
        raise ValueError(f"{source}: no session has {min_session_length} tracks; lower min_session_length.")
    position, hour = table["session_position"].to_numpy(), table["hour_of_day"].to_numpy()
    order = np.lexsort((position, session))
    first = order[np.append(True, np.diff(session[order]) > 0)]  # the first row of each session
    day = pc.cast(table["date"], pa.date32()).cast(pa.int32()).to_numpy().astype(np.int64)
    begin = (day * 86_400 + hour * 3_600)[first]
    flags = [table[name].to_numpy(zero_copy_only=False) for name in _FLAGS]
    feedback = np.select(flags, [1, 2, 3, 4], 0).astype(np.int8)
    rows = pa.array(np.flatnonzero(keep))
    item = table["track"].take(rows)
    catalogue = _features(folder, item, progress)
    info = replace(
        INFO,
        notes=f"{table.num_rows} rows of {len(session_ids)} sessions in {len(logs)} files; kept: {int(keep.sum())} rows of sessions with at "
        f"least {min_session_length} tracks. A session stands for a user. Times are made from day, hour and position.",
        extra={"files": [file.name for file in logs]},
    )
    return InteractionLog.from_columns(
        table["session_id"].take(rows),
        item,
        (begin[session] + position)[keep],
        flags[3][keep],
        catalogue=catalogue,
        feedback=feedback[keep],
        feedback_names=BEHAVIORS,
        scenario=table["context_type"].take(rows),
        info=info,
        source=source,
    )


def _read(file: Path, progress: bool) -> pa.Table:
    track = _track_column(file)
    types = {"session_id": ID, "session_position": pa.int64(), track: ID} | dict.fromkeys(_FLAGS, pa.bool_())
    types |= {"hour_of_day": pa.int64(), "date": pa.date32(), "context_type": pa.string()}
    table = read_delimited(file, list(types), types, progress=progress)
    for name in types:
        columns.whole_column(table[name], name, str(file))
    return table.rename_columns(["track" if name == track else name for name in table.column_names])


def _track_column(file: Path) -> str:
    """`track_id_clean` in the logs, `track_id` in some copies of them."""
    with opened(file, False) as stream:
        header = stream.read(4096).split(b"\n", 1)[0].decode("utf-8", errors="replace")
    return "track_id" if "track_id" in header.strip().split(",") else "track_id_clean"


def _features(folder: Path, item: pa.ChunkedArray, progress: bool) -> pa.Table:
    ids = pc.unique(item.cast(pa.string()))
    catalogue = pa.table({"item_id": ids})
    files = sorted({*folder.glob("tf_*.csv*"), *folder.glob("*/tf_*.csv*")})
    if not files:
        return catalogue
    kinds = {"track_id": pa.string()} | {name: pa.float32() for name in _FEATURES} | {"release_year": pa.int16()}
    table = pa.concat_tables([read_delimited(file, list(kinds), kinds, progress=progress) for file in files])
    rows = pc.index_in(ids, value_set=table["track_id"].combine_chunks())
    for name in _FEATURES:
        catalogue = catalogue.append_column(name, table[name].combine_chunks().take(rows))
    return catalogue
