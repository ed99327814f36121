"""Frappe: app launches with their context, in the x1 split of the BARS benchmark, as a table and as an interaction log.

The benchmark's validation and test rows are published (`frappe.validation.libfm`, `frappe.test.libfm`); its training rows are put together
again from the full log (`frappe.csv`): the launches that no published row holds are the training positives, and two negatives are drawn anew
for each, with its user and context and an app that the user never used. Its ids stand for the values of the log: users are the log's own,
apps follow 957 behind, and those of the context are found by laying the published positives beside the log.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from lmctr.data.logs import columns
from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.logs.splits import PARTS
from lmctr.data.reading import read_delimited, text_lines
from lmctr.data.tables.source import SplitRule, TableSource, table_piece

from .files import Published

INFO = DatasetInfo(
    name="frappe-x1",
    url="https://github.com/irecsys/CARSKit (context-aware_data_sets/Mobile_Frappe.zip) and "
    "https://github.com/hexiangnan/neural_factorization_machine (data/frappe)",
    licence="research purposes only; publications must cite the authors; no redistribution without separate permission.",
    citation="Linas Baltrunas, Karen Church, Alexandros Karatzoglou, and Nuria Oliver. 2015. Frappe: Understanding the Usage and "
    "Perception of Mobile App Recommendations In-The-Wild. arXiv:1505.03014",
    label_rule="1: the user launched the app in this context; 0: a drawn app that the user never used",
    language="en",
)
LOG, META = "frappe.csv", "meta.csv"
HELD_OUT = ("frappe.validation.libfm", "frappe.test.libfm")
CONTEXT = ("daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
FIRST_TIME, STEP = 1_388_534_400, 60  # the log view's order as unix seconds: the data have no times
FILES = Published("Frappe", INFO, f"{LOG} and {META} (the first), {', '.join(HELD_OUT)} (the second)")


@dataclass(frozen=True)
class _Rows:
    """R rows of a part: `user`, `item` (R,) numbers of the raw log; `context` (R, 8) values; `label` (R,)."""

    user: np.ndarray
    item: np.ndarray
    context: np.ndarray
    label: np.ndarray


def load_frappe(
    path: str | os.PathLike | None = None, *, num_negatives: int = 2, negative_seed: int = 0
) -> TableSource:
    """Frappe_x1 with redrawn training negatives as a table of ten categorical fields.

    Args:
        path: folder that holds `frappe.csv`, `frappe.validation.libfm` and `frappe.test.libfm`, in it or in folders of it. None takes the
            environment variable `LMCTR_DATA`.
        num_negatives: training negatives per positive (the benchmark: 2).
        negative_seed: of the draw.

    Returns:
        Columns `user`, `item`, `daytime`, `weekday`, `isweekend`, `homework`, `cost`, `weather`, `country`, `city`, `label`; the parts are
        given, the group is the user. Validation and test rows are the published ones, in their order.

    Raises:
        FileNotFoundError: a file is absent; the message says where it is published.
        ValueError: damaged files, or published rows that do not come from this log.
    """
    parts, info = _parts(FILES.below(path, (LOG, *HELD_OUT)), num_negatives, negative_seed)
    pieces = []
    for part, rows in parts.items():
        table = {"user": rows.user, "item": rows.item, "label": rows.label}
        table |= {name: rows.context[:, place] for place, name in enumerate(CONTEXT)}
        pieces.append(table_piece(pa.table({name: pa.array(values) for name, values in table.items()}), part))
    fields = tuple({"name": name, "type": "categorical", "min_count": 1} for name in ("user", "item", *CONTEXT))
    return TableSource(tuple(pieces), fields, label="label", group="user", split=SplitRule("given"), info=info)


def load_frappe_log(
    path: str | os.PathLike | None = None, *, num_negatives: int = 2, negative_seed: int = 0
) -> InteractionLog:
    """The same rows as an interaction log, for models of texts and of sequences.

    The data tell no times. The training launches are put into an order drawn with `negative_seed`, a minute apart; negatives are placed at
    the time of their launch; validation and test come a minute after the last. Negatives and the later parts are hidden: histories hold
    training launches only, those before a training sample, all of a user's for a validation or test sample.

    Args:
        path, num_negatives, negative_seed: as in [`load_frappe`]; the folder also holds `meta.csv`.

    Returns:
        A log with parts of its own (split "given"). Scenarios are weekday and daytime; the context of an event are the eight columns of
        the table view (`daytime` to `city`). Catalogue: `item_id`, `title`, `category`, `genres`
        (the category as a list), `price`, `rating`, `summary`, `app` (the number as text: the statistic
        `app_count_mean` counts the user's launches of this very app).

    Raises:
        FileNotFoundError, ValueError: as [`load_frappe`].
    """
    files = FILES.below(path, (LOG, *HELD_OUT, META))
    parts, info = _parts(files, num_negatives, negative_seed)
    train = parts["train"]
    launches = int((train.label == 1).sum())
    order = np.random.default_rng([negative_seed, 1]).permutation(launches)
    step = np.concatenate([order, np.repeat(order, num_negatives)])
    held_out = sum(len(parts[part].label) for part in PARTS[1:])
    step = np.concatenate([step, np.full(held_out, launches)])
    rows = _Rows(*(np.concatenate([getattr(parts[part], name) for part in PARTS]) for name in _Rows.__annotations__))
    part = np.repeat(np.arange(3), [len(parts[name].label) for name in PARTS])
    catalogue = _catalogue(files[META])
    return InteractionLog.from_columns(
        rows.user,
        rows.item,
        FIRST_TIME + STEP * step,
        rows.label,
        catalogue=catalogue,
        scenario=[f"{day} {time}" for time, day in rows.context[:, :2]],
        part=part,
        hidden=(part > 0) | (rows.label == 0),
        context=pa.table({name: pa.array(rows.context[:, place]) for place, name in enumerate(CONTEXT)}),
        info=replace(info, notes=f"{info.notes} Times say a drawn order only."),
        source=str(files[LOG]),
    )


def _parts(files: dict[str, Path], num_negatives: int, seed: int) -> tuple[dict[str, _Rows], DatasetInfo]:
    if num_negatives < 1:
        raise ValueError(f"num_negatives: got {num_negatives}, accepted: a whole number from 1.")
    log = files[LOG]
    types = {"user": pa.int64(), "item": pa.int64()} | dict.fromkeys(CONTEXT, pa.string())
    table = read_delimited(log, list(types), types, delimiter="\t", quoted=False)
    whole = columns.whole_arrays(table, {name: name for name in types}, str(log))
    user, item = whole["user"], whole["item"]
    context = np.stack([whole[name].astype(str) for name in CONTEXT], axis=1)
    num_users, num_items = int(user.max()) + 1, int(item.max()) + 1
    published = [_published(files[name], num_users, num_items) for name in HELD_OUT]
    taken, names, num_open = _align(
        user, item, context, np.concatenate([ids[label == 1] for ids, label in published]), log
    )
    parts = {}
    kept = np.flatnonzero(~taken)
    parts["train"] = _with_negatives(user, item, context, kept, num_items, num_negatives, seed)
    for part, (ids, label) in zip(PARTS[1:], published):
        # An id that no published positive explains stands for a value of its own, that training does not know.
        values = np.stack(
            [[of.get(key, f"id {key}") for key in ids[:, 2 + place]] for place, of in enumerate(names)], axis=1
        )
        parts[part] = _Rows(ids[:, 0], ids[:, 1] - num_users, values, label)
    counts = {part: {"rows": len(rows.label), "positives": int(rows.label.sum())} for part, rows in parts.items()}
    notes = (
        f"Training negatives are drawn anew ({num_negatives} per positive, seed {seed}): validation and test rows are those of the "
        "published benchmark, training negatives are not."
    )
    extra = {"rows": counts, "published_training_positives": 67_604, "ambiguous_held_out_positives": num_open}
    return parts, replace(INFO, notes=notes, extra=extra)


def _published(path: Path, num_users: int, num_items: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids (R, 10) and labels (R,) of a libfm file."""
    ids, labels = [], []
    for number, line in text_lines(path):
        target, *values = line.split()
        try:
            row = [int(value.removesuffix(":1")) for value in values]
        except ValueError:
            row = []
        if target not in ("1", "-1") or len(row) != 2 + len(CONTEXT):
            raise ValueError(
                f"{path}: line {number} is no row of Frappe: {line[:80]!r}; accepted: 1 or -1, and {2 + len(CONTEXT)} ids such as 266:1."
            )
        if not (0 <= row[0] < num_users <= row[1] < num_users + num_items <= min(row[2:])):
            raise ValueError(
                f"{path}: line {number} has the user {row[0]} and the app {row[1]}; with {LOG} ({num_users} users, {num_items} apps) users "
                f"are 0 to {num_users - 1}, apps {num_users} to {num_users + num_items - 1}, and contexts follow. Is {LOG} the full log?"
            )
        ids.append(row)
        labels.append(target == "1")
    if not ids:
        raise ValueError(f"{path}: the file is empty.")
    return np.array(ids), np.array(labels, dtype=np.int64)


def _align(
    user: np.ndarray, item: np.ndarray, context: np.ndarray, positives: np.ndarray, source: Path
) -> tuple[np.ndarray, list[dict[int, str]], int]:
    """Which rows of the log are published positives (R,), the value of each context id by column, and how many positives stay open.

    A positive is one of the rows of its user and app. Where all that agree with what is known so far have one value in a column, the id
    stands for it; this is repeated until nothing new is learnt. A positive whose rows still differ is left in the training part.
    """
    rows_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, pair in enumerate(zip(user.tolist(), item.tolist())):
        rows_of[pair].append(row)
    num_users = int(user.max()) + 1
    values = context.tolist()
    names: list[dict[int, str]] = [{} for _ in CONTEXT]
    ids_of: list[dict[str, int]] = [{} for _ in CONTEXT]
    taken = np.zeros(len(user), dtype=bool)
    waiting = [(ids[2:], rows_of.get((ids[0], ids[1] - num_users), [])) for ids in positives.tolist()]
    while True:
        learnt, later = False, []
        for ids, rows in waiting:
            agree = [row for row in rows if _agrees(ids, values[row], names, ids_of)]
            if not agree:
                raise ValueError(
                    f"{source}: a published positive with the context {ids} is no launch of this log; take the full log that the "
                    f"benchmark was made from. {FILES.where}"
                )
            for place, key in enumerate(ids):
                if key not in names[place] and len({values[row][place] for row in agree}) == 1:
                    names[place][key] = values[agree[0]][place]
                    ids_of[place][names[place][key]] = key
                    learnt = True
            if len({tuple(values[row]) for row in agree}) > 1:
                later.append((ids, agree))
            else:  # rows that agree in everything are one launch counted apart: any may be the published one
                taken[next((row for row in agree if not taken[row]), agree[0])] = True
        waiting = later
        if not learnt:
            return taken, names, len(waiting)


def _agrees(
    ids: Sequence[int], values: Sequence[str], names: list[dict[int, str]], ids_of: list[dict[str, int]]
) -> bool:
    return all(
        name.get(key, value) == value and known.get(value, key) == key
        for key, value, name, known in zip(ids, values, names, ids_of)
    )


def _with_negatives(
    user: np.ndarray, item: np.ndarray, context: np.ndarray, kept: np.ndarray, num_items: int, count: int, seed: int
) -> _Rows:
    """The launches `kept`, and behind them `count` negatives of each: same user and context, an app that the user never used."""
    used = np.zeros((int(user.max()) + 1, num_items), dtype=bool)
    used[user, item] = True
    source = np.repeat(kept, count)
    own = user[source]
    everything = used.all(axis=1)[own]
    if everything.any():
        raise ValueError(
            f"user {own[np.argmax(everything)]} has used all {num_items} apps: there is no negative to draw."
        )
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, num_items, len(source))
    while (again := np.flatnonzero(used[own, drawn])).size:
        drawn[again] = rng.integers(0, num_items, len(again))
    rows = np.concatenate([kept, source])
    label = np.repeat([1, 0], [len(kept), len(source)])
    return _Rows(user[rows], np.concatenate([item[kept], drawn]), context[rows], label)


def _catalogue(path: Path) -> pa.Table:
    names = {
        "item_id": "item",
        "title": "name",
        "category": "category",
        "price": "price",
        "rating": "rating",
        "summary": "short desc",
    }
    types = dict.fromkeys(names.values(), pa.string()) | {"item": pa.int64()}
    table = read_delimited(path, list(types), types, delimiter="\t", quoted=False)
    table = pa.table({name: table[column] for name, column in names.items()})
    table = table.append_column("genres", columns.split_texts(table["category"].combine_chunks(), "|"))
    return table.append_column("app", table["item_id"].cast(pa.string()))
