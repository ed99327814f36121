"""MovieLens, read from the files that GroupLens publishes: CSV (latest, latest-small, 20M, 25M, 32M) and .dat (1M, 10M)."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.logs import columns
from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.reading import read_delimited

from .files import Published

INFO = DatasetInfo(
    name="movielens",
    url="https://grouplens.org/datasets/movielens/",
    licence="GroupLens usage licence (README of the data set): research use with acknowledgement; no commercial use without permission "
    "of the GroupLens Research Project; redistribution as that README allows.",
    citation="F. Maxwell Harper and Joseph A. Konstan. 2015. The MovieLens Datasets: History and Context. ACM Transactions on "
    "Interactive Intelligent Systems (TiiS) 5, 4: 19:1-19:19. https://doi.org/10.1145/2827872",
    language="en",
)
FILES = Published("MovieLens", INFO, "ml-latest-small.zip, ml-32m.zip, ml-25m.zip or ml-1m.zip", " and unpack it")
VARIANTS = dict.fromkeys(("latest-small", "latest", "20m", "25m", "32m"), "csv") | dict.fromkeys(("1m", "10m"), "dat")
_RATINGS_OF_VARIANT = {
    100_836: "latest-small", 1_000_209: "1m", 10_000_054: "10m", 20_000_263: "20m", 25_000_095: "25m", 32_000_204: "32m"
}  # fmt: skip
BEHAVIORS = {
    "label": ("unknown", "negative", "positive"),
    "ratings": ("unknown", *(f"{level / 2:g} stars" for level in range(1, 11))),
}
"""Feedback names by what a rating shows of itself in a history; a rating of n half stars has the code n."""
_SECONDS_PER_YEAR = 365.25 * 86_400
# words by number of earlier ratings and by their share of positive ones; the upper ends are exclusive
_FAME = ((4, "rare"), (12, "known"), (40, "popular"), (np.inf, "famous"))
_LIKING = ((0.40, "hated"), (0.52, "disliked"), (0.62, "mixed"), (0.72, "liked"), (0.82, "praised"), (np.inf, "loved"))
_STRENGTH = 3.0  # earlier ratings that the overall share counts for


@dataclass(frozen=True)
class _Source:
    """A folder, or one in a zip file as downloaded, that holds one variant."""

    folder: Path | zipfile.Path
    kind: str  # "csv" or "dat"

    @property
    def name(self) -> str:
        return self.folder.resolve().name if isinstance(self.folder, Path) else self.folder.name

    def file(self, name: str) -> Path | zipfile.Path:
        return self.folder / f"{name}.{self.kind}"

    def has(self, name: str) -> bool:
        return self.file(name).is_file()

    def table(self, name: str, types: dict[str, pa.DataType], progress: bool = False) -> pa.Table:
        file = self.file(name)
        if self.kind == "csv":
            data = None if isinstance(file, Path) else file.read_bytes()
            return read_delimited(file, list(types), types, data=data, progress=progress)
        data = _as_utf8(file.read_bytes())
        return read_delimited(file, None, types, delimiter="::", names=list(types), data=data)


def _as_utf8(data: bytes) -> bytes:
    """The 1M files are latin-1, the 10M files UTF-8."""
    try:
        data.decode("utf-8")
        return data
    except UnicodeDecodeError:
        return data.decode("latin-1").encode("utf-8")


def load_movielens(
    path: str | os.PathLike | None = None,
    *,
    variant: str | None = None,
    min_user_events: int = 20,
    last_years: float | None = 10,
    positive_above: float = 3.0,
    behaviors: str = "label",
    tags: bool = False,
    progress: bool = False,
) -> InteractionLog:
    """Reads a MovieLens data set that was downloaded from [GroupLens](https://grouplens.org/datasets/movielens/).

    Args:
        path: folder with `ratings.csv` and `movies.csv` (or `ratings.dat` and `movies.dat`), a folder of such folders, or the
            zip file as downloaded. None takes the environment variable `LMCTR_DATA`.
        variant: "latest-small", "latest", "1m", "10m", "20m", "25m" or "32m"; picks the folder where `path` holds several. None
            detects it.
        min_user_events: keep users with at least this many ratings in the whole file.
        last_years: then keep the ratings of this many years (of 365.25 days) before the newest rating; None keeps all.
        positive_above: the label is 1 when the rating is greater.
        behaviors: what a history shows of a rating, as feedback names: "label" ("negative", "positive") or "ratings" (one behaviour
            type per level: "0.5 stars" to "5 stars").
        tags: add the users' tags (`tags.csv` or `tags.dat`, not in 1M) as events of the behaviour "tag" without a label.
        progress: show progress bars.

    Returns:
        A log whose catalogue has the columns `item_id`, `title` (as in the file: "Matrix, The (1999)"), `genres` (list of strings,
        empty for "(no genres listed)"), `year` (from the title, null where it has none), and from the file's ratings before the
        log's first event: `earlier_ratings` (their number) and `reception` (words such as "popular praised", null without
        earlier ratings). Every movie of the file is included. `feedback_values` are the stars (unknown for tags).
        The 1M variant also has `users` (gender, age, occupation, zip). Tags are those of the users and of the period that the
        filters keep; they count for neither filter.

    Raises:
        FileNotFoundError: no files; the message says where to get them.
        ValueError: a file lacks a column, is empty or holds bad values; nothing is left after filtering.
    """
    if variant is not None and variant not in VARIANTS:
        raise ValueError(f"variant: got {variant!r}, accepted: {', '.join(VARIANTS)}.")
    if behaviors not in BEHAVIORS:
        raise ValueError(f"behaviors: got {behaviors!r}, accepted: {', '.join(BEHAVIORS)}.")
    source = _find(path, variant)
    ratings_file = str(source.file("ratings"))
    if source.kind == "csv":
        names = {"user": "userId", "item": "movieId", "rating": "rating", "time": "timestamp"}
    else:
        names = {"user": "UserID", "item": "MovieID", "rating": "Rating", "time": "Timestamp"}
    catalogue = _catalogue(source, names["item"], progress)
    arrays = _ratings(source, names, catalogue["item_id"], progress)
    num_ratings, num_users = len(arrays["user"]), len(np.unique(arrays["user"]))
    keep = np.ones(num_ratings, dtype=bool)
    if min_user_events > 1:
        keep &= columns.users_with(arrays["user"], min_user_events)
    if last_years is not None:
        keep &= arrays["time"] >= arrays["time"].max() - int(last_years * _SECONDS_PER_YEAR)
    if not keep.any():
        raise ValueError(
            f"{ratings_file}: none of {num_ratings} ratings is left with min_user_events={min_user_events} and "
            f"last_years={last_years}. Lower the first or raise the second."
        )
    catalogue = _with_reception(catalogue, arrays, keep, positive_above)
    arrays = {key: values[keep] for key, values in arrays.items()}
    first, last = arrays["time"].min(), arrays["time"].max()
    labels = (arrays["rating"] > positive_above).astype(np.int8)
    feedback_names = BEHAVIORS[behaviors]
    feedback = labels + 1 if behaviors == "label" else np.rint(2 * arrays["rating"]).astype(np.int8)
    if tags:
        users_kept = np.unique(arrays["user"])
        tagged = _tags(source, names, catalogue["item_id"], progress)
        inside = np.isin(tagged["user"], users_kept) & (tagged["time"] >= first) & (tagged["time"] <= last)
        num_tags = int(inside.sum())
        arrays |= {key: np.concatenate([arrays[key], tagged[key][inside]]) for key in ("user", "item", "time")}
        arrays["rating"] = np.concatenate([arrays["rating"], np.full(num_tags, np.nan, np.float32)])
        labels = np.concatenate([labels, np.full(num_tags, -1, np.int8)])
        feedback = np.concatenate([feedback, np.full(num_tags, len(feedback_names), feedback.dtype)])
        feedback_names = (*feedback_names, "tag")
    variant = variant or _variant_name(source, num_ratings)
    info = replace(
        INFO,
        name=f"movielens-{variant}",
        label_rule=f"rating > {positive_above:g}",
        notes=(
            f"{num_ratings} ratings of {num_users} users in the file; kept: users with at least {min_user_events} ratings"
            + ("" if last_years is None else f", then the ratings of the last {last_years:g} years")
            + f" ({int(keep.sum())} ratings)."
            + (f" With {num_tags} tags of these users and this period as events without a label." if tags else "")
        ),
        extra={"variant": variant, "num_ratings_in_file": num_ratings, "num_users_in_file": num_users},
    )
    return InteractionLog.from_columns(
        arrays["user"],
        arrays["item"],
        arrays["time"],
        labels,
        catalogue=catalogue,
        feedback=feedback,
        feedback_names=feedback_names,
        feedback_values=arrays["rating"],
        users=_users(source) if source.kind == "dat" and source.has("users") else None,
        info=info,
        source=ratings_file,
        names=names,
    )


def _ratings(
    source: _Source, names: dict[str, str], item_ids: pa.ChunkedArray, progress: bool
) -> dict[str, np.ndarray]:
    """The columns of the ratings, checked: `user`, `item`, `rating`, `time`."""
    file = str(source.file("ratings"))
    kinds = {"user": pa.int64(), "item": pa.int64(), "rating": pa.float32(), "time": pa.int64()}
    types = {names[key]: kind for key, kind in kinds.items()}
    arrays = columns.whole_arrays(source.table("ratings", types, progress), names, file)
    rating = arrays["rating"]
    bad = ~((rating >= 0) & (rating <= 5))
    columns.refuse(bad, rating, names["rating"], file, "are no ratings", "Ratings go from 0.5 to 5.")
    columns.item_rows(arrays["item"], names["item"], file, item_ids)
    columns.to_seconds(arrays["time"], names["time"], file)
    _reject_repeats(arrays["user"], arrays["item"], file)
    return arrays


def _catalogue(source: _Source, key: str, progress: bool) -> pa.Table:
    title, genres = ("title", "genres") if source.kind == "csv" else ("Title", "Genres")
    file = str(source.file("movies"))
    if not source.has("movies"):
        raise FileNotFoundError(f"{file}: the ratings are there, the movies are not. {FILES.where}")
    table = source.table("movies", {key: pa.int64(), title: pa.string(), genres: pa.string()}, progress)
    ids = columns.whole_column(table[key], key, file)
    titles = pc.utf8_trim_whitespace(table[title].combine_chunks())
    year = pc.extract_regex(titles, r"\((?P<year>\d{4})(?:[-\x{2013}]\s*\d{0,4})?\)$")
    lists = columns.split_texts(table[genres].combine_chunks(), "|", ("", "(no genres listed)"))
    return pa.table(
        {"item_id": ids, "title": titles, "genres": lists, "year": pc.struct_field(year, "year").cast(pa.int16())}
    )


def _with_reception(
    catalogue: pa.Table, arrays: dict[str, np.ndarray], keep: np.ndarray, positive_above: float
) -> pa.Table:
    """The catalogue with what the ratings before the log's first event say of each movie: their number, and words such as "popular praised" by that
    and by the share of positive ones, smoothed towards that of all; null without any. Nothing of a sample or of what came after it is told."""
    earlier = arrays["time"] < arrays["time"][keep].min()
    ids = catalogue["item_id"].to_numpy()
    order = np.argsort(ids)
    rows = order[np.searchsorted(ids, arrays["item"][earlier], sorter=order)]
    positive = arrays["rating"][earlier] > positive_above
    count = np.bincount(rows, minlength=len(ids))
    overall = float(positive.mean()) if len(positive) else 0.0
    share = (np.bincount(rows, weights=positive, minlength=len(ids)) + _STRENGTH * overall) / (count + _STRENGTH)
    fame, liking = (
        np.array([word for _, word in words])[np.digitize(values, [end for end, _ in words[:-1]])]
        for words, values in ((_FAME, count), (_LIKING, share))
    )
    told = pa.array(np.char.add(np.char.add(fame, " "), liking), mask=count == 0)
    return catalogue.append_column("earlier_ratings", pa.array(count.astype(np.int32))).append_column(
        "reception", told
    )


def _tags(source: _Source, names: dict[str, str], item_ids: pa.ChunkedArray, progress: bool) -> dict[str, np.ndarray]:
    file = str(source.file("tags"))
    if not source.has("tags"):
        raise FileNotFoundError(
            f"{file}: tags=True needs the file of tags, which the 1M data set does not have. {FILES.where}"
        )
    text = "tag" if source.kind == "csv" else "Tag"
    kinds = {names["user"]: pa.int64(), names["item"]: pa.int64(), text: pa.string(), names["time"]: pa.int64()}
    table = source.table("tags", kinds, progress)
    found = columns.whole_arrays(table, {key: names[key] for key in ("user", "item", "time")}, file)
    columns.item_rows(found["item"], names["item"], file, item_ids)
    columns.to_seconds(found["time"], names["time"], file)
    return found


def _users(source: _Source) -> pa.Table:
    numbers = {"user_id": pa.int64(), "gender": pa.string(), "age": pa.int16(), "occupation": pa.int16()}
    return source.table("users", numbers | {"zip": pa.string()})


def _reject_repeats(user: np.ndarray, item: np.ndarray, file: str) -> None:
    low, span = item.min(), int(item.max() - item.min()) + 1
    # one sort of a joint key, without rows, finds out whether there are any
    if int(user.max() - user.min()) * span < 2**62:
        key = np.sort((user - user.min()) * span + (item - low))
        if not (key[1:] == key[:-1]).any():
            return
    order = np.lexsort((item, user))
    same = (user[order][1:] == user[order][:-1]) & (item[order][1:] == item[order][:-1])
    if same.any():
        at = int(np.flatnonzero(same)[0])
        rows = sorted((int(order[at]) + 1, int(order[at + 1]) + 1))
        raise ValueError(
            f"{file}: {int(same.sum())} ratings repeat a user and a movie (rows {rows[0]} and {rows[1]}: user "
            f"{user[order[at]]}, movie {item[order[at]]}); MovieLens has one rating per user and movie."
        )


def _find(path: str | os.PathLike | None, variant: str | None) -> _Source:
    root, called = FILES.folder(path)
    found = _sources_in(root)
    if variant is not None:
        found = [source for source in found if source.kind == VARIANTS[variant]]
        if len(found) > 1:
            found = [source for source in found if source.name.removeprefix("ml-") == variant]
    if not found:
        of_variant = "" if variant is None else f" of the variant {variant!r}"
        wanted = "ratings.csv or ratings.dat" if variant is None else f"ratings.{VARIANTS[variant]}"
        raise FILES.absent(root, called, f"{wanted}{of_variant}, here or one folder below")
    if len(found) > 1:
        names = ", ".join(sorted(source.name for source in found))
        raise ValueError(f"{called} holds several data sets: {names}. Name one folder, or set `variant`.")
    return found[0]


def _sources_in(root: Path) -> list[_Source]:
    if root.is_file():
        if not zipfile.is_zipfile(root):
            raise ValueError(f"{root}: expected a folder, or a zip file as downloaded from {INFO.url}.")
        with zipfile.ZipFile(root) as archive:
            names = archive.namelist()
        kinds = {"ratings.csv": "csv", "ratings.dat": "dat"}
        files = [zipfile.Path(root, name) for name in names if name.rsplit("/", 1)[-1] in kinds]
        return [_Source(file.parent, kinds[file.name]) for file in files]
    folders = [root]
    if root.is_dir():
        folders += sorted(folder for folder in root.iterdir() if folder.is_dir())
    found = [_Source(folder, kind) for folder in folders for kind in ("csv", "dat")]
    found = [source for source in found if source.has("ratings")]
    return [source for source in found if source.folder == root] or found


def _variant_name(source: _Source, num_ratings: int) -> str:
    folder = source.name.lower().removeprefix("ml-")
    return _RATINGS_OF_VARIANT.get(num_ratings) or (folder if folder in VARIANTS else f"custom-{source.kind}")
