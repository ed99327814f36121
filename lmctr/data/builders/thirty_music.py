"""30Music (listening sessions of Last.fm users), read from the files that its authors publish (idomaar format).

One entity or relation per line: type, id, unix time, and two JSON objects (properties and links), apart by tabs or a space.
`relations/sessions.idomaar`: a user's session, its tracks with `playstart`, `playtime`, `playratio` and `action`;
`relations/love.idomaar`: a user's loved tracks; `entities/tracks.idomaar`: names, artists and tags.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
import pyarrow as pa

from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.reading import text_lines

URL = "http://recsys.deib.polimi.it/datasets/"
LICENCE = "Published for research by its authors, who ask for a citation; collected through the Last.fm API."
CITATION = (
    "Roberto Turrin, Massimo Quadrana, Andrea Condorelli, Roberto Pagano, and Paolo Cremonesi. 2015. 30Music Listening and Playlists "
    "Dataset. RecSys Posters, CEUR-WS 1441."
)
SESSIONS, LOVE, TRACKS = "relations/sessions.idomaar", "relations/love.idomaar", "entities/tracks.idomaar"
BEHAVIORS = ("unknown", "skip", "play", "full-play", "love")
_DECODER = json.JSONDecoder()


def load_thirty_music(
    path: str | os.PathLike | None = None,
    *,
    full_play: float = 0.8,
    love: bool = True,
    tracks: bool = True,
    min_user_events: int = 10,
    progress: bool = False,
) -> InteractionLog:
    """Reads 30Music.

    Args:
        path: folder with `relations/` and `entities/` as unpacked. None takes the environment variable `LMCTR_DATA`.
        full_play: a play is a "full-play" from this share of the track on, and has the label 1; a shorter one has the label 0.
        love: add loved tracks as events of the behaviour "love" without a label.
        tracks: read names, artists and tags of the tracks.
        min_user_events: keep users with at least this many plays.
        progress: show progress bars.

    Returns:
        A log with the behaviours "skip" (the user's action), "play", "full-play" and "love". Plays whose share is unknown (tracks
        without a duration) are history and no samples, unless they were skipped. Catalogue: `item_id`, and with tracks `title`,
        `artist` (id), `tags` (ids).

    Raises:
        FileNotFoundError: the files are absent; the message says where they are published.
        ValueError: a line that is not in the format (with its number), nothing left after filtering.
    """
    if not 0 < full_play <= 1:
        raise ValueError(f"full_play: got {full_play}, accepted: a number in (0, 1].")
    folder = _find(path)
    user, item, time = array("q"), array("q"), array("q")
    feedback, label = array("b"), array("b")
    for number, started, links in _relations(folder / SESSIONS, progress):
        owner = _subject(links, folder / SESSIONS, number)
        for track in links.get("objects") or ():
            played = track.get("playratio")
            skipped = track.get("action") == "skip"
            full = played is not None and played >= full_play
            user.append(owner)
            item.append(int(track["id"]))
            time.append(started + int(track.get("playstart") or 0))
            feedback.append(1 if skipped else 3 if full else 2)
            label.append(int(full and not skipped) if skipped or played is not None else -1)
    plays = len(user)
    counted = np.frombuffer(user, dtype=np.int64)
    owners, places, counts = np.unique(counted, return_inverse=True, return_counts=True)
    kept = owners[counts >= min_user_events]
    if not len(kept):
        raise ValueError(
            f"{folder / SESSIONS}: none of {len(owners)} users has {min_user_events} plays; lower min_user_events."
        )
    del counted, places
    if love:
        for number, moment, links in _relations(folder / LOVE, progress):
            owner = _subject(links, folder / LOVE, number)
            for track in links.get("objects") or ():
                if track.get("type", "track") == "track" and moment >= 0:
                    user.append(owner)
                    item.append(int(track["id"]))
                    time.append(moment)
                    feedback.append(4)
                    label.append(-1)
    columns = {
        name: np.array(values) for name, values in zip(
            ("user", "item", "time", "feedback", "label"), (user, item, time, feedback, label)
        )
    }  # fmt: skip
    inside = np.isin(columns["user"], kept)
    columns = {name: values[inside] for name, values in columns.items()}
    catalogue = pa.table({"item_id": np.unique(columns["item"])})
    if tracks:
        catalogue = _with_tracks(catalogue, folder / TRACKS, progress)
    info = DatasetInfo(
        name="30music",
        url=URL,
        licence=LICENCE,
        citation=CITATION,
        label_rule=f"played at least {full_play:g} of the track, and not skipped",
        notes=f"{plays} plays of {len(owners)} users in the file; kept: {len(kept)} users with at least {min_user_events} plays, with "
        f"{int((columns['feedback'] == 4).sum())} loved tracks as events without a label.",
        extra={"full_play": full_play},
    )
    return InteractionLog.from_columns(
        columns["user"],
        columns["item"],
        columns["time"],
        columns["label"],
        catalogue=catalogue,
        feedback=columns["feedback"],
        feedback_names=BEHAVIORS,
        info=info,
        source=str(folder / SESSIONS),
    )


def _relations(path: Path, progress: bool) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(line number, time, links) of each relation."""
    for number, _, moment, _, links in _lines(path, progress):
        yield number, moment, links


def _lines(path: Path, progress: bool) -> Iterator[tuple[int, int, int, dict[str, Any], dict[str, Any]]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file. {_where_to_get()}")
    for number, line in text_lines(path, progress):
        try:
            _, key, moment, rest = line.split("\t", 3)
            properties, end = _DECODER.raw_decode(rest)
            links, _ = _DECODER.raw_decode(rest[end:].lstrip())
            yield number, int(key), int(moment), properties, links
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"{path}: line {number} is not in the idomaar format (type, id, time, two JSON objects): {line[:80]!r} ({error})."
            ) from None


def _subject(links: dict[str, Any], path: Path, number: int) -> int:
    try:
        return int(links["subjects"][0]["id"])
    except (KeyError, IndexError, TypeError, ValueError):
        raise ValueError(f"{path}: line {number} names no user among its subjects.") from None


def _with_tracks(catalogue: pa.Table, path: Path, progress: bool) -> pa.Table:
    row_of = {item: row for row, item in enumerate(catalogue["item_id"].to_pylist())}
    title: list[str | None] = [None] * len(row_of)
    artist: list[int | None] = [None] * len(row_of)
    tags: list[list[int]] = [[] for _ in row_of]
    for _, key, _, properties, links in _lines(path, progress):
        row = row_of.get(key)
        if row is None:
            continue
        name = properties.get("name")
        title[row] = unquote_plus(name).replace("/_/", " - ") if isinstance(name, str) and name else None
        artist[row] = next((int(a["id"]) for a in links.get("artists") or ()), None)
        tags[row] = [int(tag["id"]) for tag in links.get("tags") or ()]
    return (
        catalogue.append_column("title", pa.array(title, pa.string()))
        .append_column("artist", pa.array(artist, pa.int64()))
        .append_column("tags", pa.array(tags, pa.list_(pa.int64())))
    )


def _find(path: str | os.PathLike | None) -> Path:
    given = "path"
    if path is None:
        path, given = os.environ.get("LMCTR_DATA"), "the environment variable LMCTR_DATA"
    if not path:
        raise FileNotFoundError(f"30Music: give the folder as `path`, or set LMCTR_DATA. {_where_to_get()}")
    folder = Path(path).expanduser()
    if not (folder / SESSIONS).is_file():
        raise FileNotFoundError(f"{folder} (from {given}): there is no {SESSIONS}. {_where_to_get()}")
    return folder


def _where_to_get() -> str:
    return f"Download ThirtyMusic.tar.gz (30Music) from {URL} and unpack it. Terms: {LICENCE}"
