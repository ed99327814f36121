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
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
import pyarrow as pa

from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.reading import text_lines

from .files import Published

INFO = DatasetInfo(
    name="30music",
    url="http://recsys.deib.polimi.it/datasets/",
    licence="Published for research by its authors, who ask for a citation; collected through the Last.fm API.",
    citation="Roberto Turrin, Massimo Quadrana, Andrea Condorelli, Roberto Pagano, and Paolo Cremonesi. 2015. 30Music Listening "
    "and Playlists Dataset. RecSys Posters, CEUR-WS 1441.",
)
FILES = Published("30Music", INFO, "ThirtyMusic.tar.gz (30Music)", " and unpack it")
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
        FileNotFoundError: no files; the message says where to get them.
        ValueError: a line that is not in the format (with its number), nothing left after filtering.
    """
    if not 0 < full_play <= 1:
        raise ValueError(f"full_play: got {full_play}, accepted: a number in (0, 1].")
    folder, called = FILES.folder(path)
    if not (folder / SESSIONS).is_file():
        raise FILES.absent(folder, called, SESSIONS)
    user, item, time, feedback, label = events = [array(code) for code in "qqqbb"]

    def add(owner: int, track: str | int, moment: int, code: int, target: int) -> None:
        user.append(owner)
        item.append(int(track))
        time.append(moment)
        feedback.append(code)
        label.append(target)

    for owner, started, links in _relations(folder / SESSIONS, progress):
        for track in links:
            played = track.get("playratio")
            skipped = track.get("action") == "skip"
            full = played is not None and played >= full_play
            target = int(full and not skipped) if skipped or played is not None else -1
            moment = started + int(track.get("playstart") or 0)
            add(owner, track["id"], moment, 1 if skipped else 3 if full else 2, target)
    owners, counts = np.unique(np.frombuffer(user, dtype=np.int64), return_counts=True)
    kept = owners[counts >= min_user_events]
    if not len(kept):
        raise ValueError(
            f"{folder / SESSIONS}: none of {len(owners)} users has {min_user_events} plays; lower min_user_events."
        )
    if love:
        for owner, moment, links in _relations(folder / LOVE, progress):
            for track in links:
                if track.get("type", "track") == "track" and moment >= 0:
                    add(owner, track["id"], moment, 4, -1)
    inside = np.isin(np.frombuffer(user, dtype=np.int64), kept)
    names = ("user", "item", "time", "feedback", "label")
    columns = {name: np.array(values)[inside] for name, values in zip(names, events)}
    catalogue = pa.table({"item_id": np.unique(columns["item"])})
    if tracks:
        catalogue = _with_tracks(catalogue, folder / TRACKS, progress)
    info = replace(
        INFO,
        label_rule=f"played at least {full_play:g} of the track, and not skipped",
        notes=f"{counts.sum()} plays of {len(owners)} users in the file; kept: {len(kept)} users with at least {min_user_events} plays, with "
        f"{int((columns['feedback'] == 4).sum())} loved tracks as events without a label.",
        extra={"full_play": full_play},
    )
    return InteractionLog.from_columns(
        **columns, catalogue=catalogue, feedback_names=BEHAVIORS, info=info, source=str(folder / SESSIONS)
    )


def _relations(path: Path, progress: bool) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
    """(user, time, linked tracks) of each relation."""
    for number, _, moment, _, links in _lines(path, progress):
        try:
            user = int(links["subjects"][0]["id"])
        except (KeyError, IndexError, TypeError, ValueError):
            raise ValueError(f"{path}: line {number} names no user among its subjects.") from None
        yield user, moment, links.get("objects") or []


def _lines(path: Path, progress: bool) -> Iterator[tuple[int, int, int, dict[str, Any], dict[str, Any]]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file. {FILES.where}")
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
