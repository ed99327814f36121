"""Amazon Books reviews (McAuley et al., 2014 and 2018 releases), read from the files that the authors publish.

`ratings_Books.csv` (2014, no header): user, item, rating, unix time. `reviews_Books_5.json.gz` (2014) and `Books_5.json.gz` (2018), one
JSON object per line: `reviewerID`, `asin`, `overall`, `unixReviewTime`, ...; `meta_Books.json.gz`: one object per line, in 2014 as a
Python literal. Times are days: events of one day do not see each other.
"""

from __future__ import annotations

import ast
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from lmctr.data.logs import columns
from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.reading import ID, check_columns, opened, read_delimited, text_lines

from .files import Published

INFO = DatasetInfo(
    name="amazon-book",
    url="https://cseweb.ucsd.edu/~jmcauley/datasets/amazon/links.html",
    licence="Published for research by its authors, who ask for a citation; the texts are those of Amazon's customers.",
    citation="Julian McAuley, Christopher Targett, Qinfeng Shi, and Anton van den Hengel. 2015. Image-Based Recommendations on "
    "Styles and Substitutes. SIGIR '15, 43-52. https://doi.org/10.1145/2766462.2767755",
    language="en",
)
REVIEWS = ("reviews_Books_5.json.gz", "reviews_Books_5.json", "Books_5.json.gz", "Books_5.json")
RATINGS = ("ratings_Books.csv", "ratings_Books.csv.gz")
META = ("meta_Books.json.gz", "meta_Books.json")
FILES = Published("Amazon Books", INFO, f"{REVIEWS[0]} (5-core) or {RATINGS[0]}, and {META[0]} for titles,")
BEHAVIORS = ("unknown", "1 star", "2 stars", "3 stars", "4 stars", "5 stars")
_KEYS = {"user": "reviewerID", "item": "asin", "rating": "overall", "time": "unixReviewTime"}
_TYPES = {"user": ID, "item": ID, "rating": pa.float32(), "time": pa.int64()}


def load_amazon_book(
    path: str | os.PathLike | None = None,
    *,
    file: str | None = None,
    min_user_events: int = 5,
    min_item_events: int = 5,
    positive_above: float = 3.0,
    meta: bool = True,
    progress: bool = False,
) -> InteractionLog:
    """Reads the Amazon Books reviews.

    Args:
        path: folder with one of the files of reviews or ratings, see the module. None takes the environment variable `LMCTR_DATA`.
        file: name of the file; None takes the reviews (5-core) where they are there, else the ratings.
        min_user_events, min_item_events: drop users and items with fewer events, again and again until none is left (5-core); 1 keeps
            all.
        positive_above: the label is 1 when the rating is greater.
        meta: read titles, categories and brands from the `meta_Books` file where it is there.
        progress: show progress bars.

    Returns:
        A log whose behaviour types are the five ratings. Catalogue: `item_id`, and with meta data `title`, `brand`, `category` (of
        the innermost level). A user who reviewed a book twice has both events.

    Raises:
        FileNotFoundError: no files; the message says where to get them.
        ValueError: a damaged line, a missing field, ratings outside 1 to 5, nothing left after filtering.
    """
    folder, source = _find(path, file)
    if ".json" in source.name:
        table = _reviews(source, progress)
    else:
        table = read_delimited(source, list(_TYPES), _TYPES, names=list(_TYPES), progress=progress)
    user, user_ids = columns.encode_ids(table["user"], "user", str(source))
    item, item_ids = columns.encode_ids(table["item"], "item", str(source))
    rating = table["rating"].to_numpy()
    bad = ~np.isin(rating, (1, 2, 3, 4, 5))
    columns.refuse(bad, rating, "rating", str(source), "are no ratings", "Ratings are 1 to 5.")
    keep = _core(user, item, min_user_events, min_item_events)
    if not keep.any():
        raise ValueError(
            f"{source}: none of {len(keep)} events is left with min_user_events={min_user_events} and min_item_events="
            f"{min_item_events}; lower them."
        )
    chosen = pa.array(np.flatnonzero(keep))
    catalogue = pa.table({"item_id": item_ids.take(pa.array(np.unique(item[keep]))).cast(pa.string())})
    described = next((folder / name for name in META if (folder / name).is_file()), None)
    if meta and described is not None:
        catalogue = _with_meta(catalogue, described, progress)
    info = replace(
        INFO,
        label_rule=f"rating > {positive_above:g}",
        notes=f"{len(keep)} events in {source.name}; {int(keep.sum())} kept (users with at least {min_user_events} events and items "
        f"with at least {min_item_events}, repeatedly). Times are days.",
        extra={"file": source.name},
    )
    return InteractionLog.from_columns(
        user_ids.take(pa.array(user[keep])),
        item_ids.take(pa.array(item[keep])),
        table["time"].take(chosen),
        rating[keep] > positive_above,
        catalogue=catalogue,
        feedback=rating[keep].astype(np.int8),
        feedback_names=BEHAVIORS,
        info=info,
        source=str(source),
    )


def _core(user: np.ndarray, item: np.ndarray, least_user: int, least_item: int) -> np.ndarray:
    """Which events are left when users and items with too few are dropped until none is."""
    keep = np.ones(len(user), dtype=bool)
    while True:
        before = int(keep.sum())
        for codes, least in ((user, least_user), (item, least_item)):
            keep &= np.bincount(codes[keep], minlength=int(codes.max()) + 1)[codes] >= least
        if int(keep.sum()) == before:
            return keep


def _reviews(source: Path, progress: bool) -> pa.Table:
    schema = pa.schema({_KEYS[key]: pa.string() if kind == ID else kind for key, kind in _TYPES.items()})
    options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        with opened(source, progress) as stream:
            table = pajson.read_json(stream, parse_options=options)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{source}: cannot be read as JSON lines: {error}") from None
    check_columns(table.column_names, list(_KEYS.values()), str(source))
    return pa.table({key: columns.whole_column(table[name], name, str(source)) for key, name in _KEYS.items()})


def _with_meta(catalogue: pa.Table, path: Path, progress: bool) -> pa.Table:
    """Titles, brands and categories of the books that the log has."""
    row_of = {item: row for row, item in enumerate(catalogue["item_id"].to_pylist())}
    found: dict[str, list[Any]] = {name: [None] * len(row_of) for name in ("title", "brand", "category")}
    for number, line in text_lines(path, progress):
        entry = _literal(line, path, number)
        row = row_of.get(entry.get("asin"))
        if row is None:
            continue
        found["title"][row] = _text(entry.get("title"))
        found["brand"][row] = _text(entry.get("brand"))
        nested = entry.get("categories") or entry.get("category") or []
        nested = nested[0] if nested and isinstance(nested[0], list) else nested
        found["category"][row] = _text(nested[-1]) if nested else None
    for name, values in found.items():
        catalogue = catalogue.append_column(name, pa.array(values, pa.string()))
    return catalogue


def _literal(line: str, path: Path, number: int) -> dict[str, Any]:
    for reader in (json.loads, ast.literal_eval):
        try:
            entry = reader(line)
        except (ValueError, SyntaxError):
            continue
        if isinstance(entry, dict):
            return entry
    raise ValueError(f"{path}: line {number} is neither a JSON object nor a Python dict: {line[:80]!r}.")


def _text(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _find(path: str | os.PathLike | None, file: str | None) -> tuple[Path, Path]:
    folder, called = FILES.folder(path)
    names = (file,) if file is not None else (*REVIEWS, *RATINGS)
    for name in names:
        if (folder / name).is_file():
            return folder, folder / name
    raise FILES.absent(folder, called, " or ".join(names))
