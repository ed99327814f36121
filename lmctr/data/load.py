"""`load_log`: one entry to every data set."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmctr.data.logs.log import LOG_FILE, InteractionLog
from lmctr.utils.suggest import nearest, unknown_key_message

BUILDERS = {
    "30music": "lmctr.data.builders.thirty_music:load_thirty_music",
    "amazon_book": "lmctr.data.builders.amazon_book:load_amazon_book",
    "movielens": "lmctr.data.builders.movielens:load_movielens",
    "kuairec": "lmctr.data.builders.kuairec:load_kuairec",
    "spotify_sessions": "lmctr.data.builders.spotify:load_spotify_sessions",
    "synthetic": "lmctr.data.synthetic.log:synthetic_log",
    "synthetic_sequence": "lmctr.data.synthetic.sequence:synthetic_sequence_log",
}
"""Data sets by name: the function that reads or makes each."""

_TABLE_BUILDER = "lmctr.data.logs.table:load_table"


def load_log(name_or_path: str | os.PathLike, **options: Any) -> InteractionLog:
    """Loads an interaction log.

    Args:
        name_or_path: a name of `BUILDERS`: "movielens", "kuairec", "amazon_book", "30music", "spotify_sessions", "synthetic" or
            "synthetic_sequence"; or a folder written by [`InteractionLog.save`] or `lmctr data prepare`; or a schema file (`.yaml`)
            that describes a CSV, TSV, Parquet or JSON lines file (see [`lmctr.data.logs.table`]).
        options: keyword arguments of the builder: see [`~lmctr.data.builders.movielens.load_movielens`],
            [`~lmctr.data.builders.kuairec.load_kuairec`], [`~lmctr.data.synthetic.log.synthetic_log`], [`InteractionLog.load`] and
            [`~lmctr.data.logs.table.load_table`].

    Raises:
        ValueError: the name, or an option, is unknown (with the nearest known one).
        FileNotFoundError: the data are absent.

    Example:
        ```python
        from lmctr.data import load_log

        log = load_log("movielens", path="ml-latest-small")
        log.num_users, log.num_events
        ```
    """
    builder, fixed, where = _find(name_or_path)
    known = [name for name in inspect.signature(builder).parameters if name not in fixed]
    for key in options:
        if key not in known:
            raise ValueError(unknown_key_message(key, known, where))
    return builder(**fixed, **options)


def builder_of(name_or_path: str | os.PathLike) -> Callable[..., InteractionLog]:
    """The function that [`load_log`] would call for this name; its parameters are the options."""
    return _find(name_or_path)[0]


def _find(name_or_path: str | os.PathLike) -> tuple[Callable[..., InteractionLog], dict[str, Any], str]:
    """The builder, the arguments that the name fixes, and how messages call its options."""
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if name in BUILDERS:
        return _resolve(BUILDERS[name]), {}, f"options of the data set {name!r}"
    if path.suffix.lower() in (".yaml", ".yml"):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such schema file.")
        return _resolve(_TABLE_BUILDER), {"schema": path}, f"options of the schema file {path}"
    if (path / LOG_FILE).is_file():
        return InteractionLog.load, {"directory": path}, f"options of the saved log {path}"
    if path.is_dir():
        raise FileNotFoundError(
            f"{path}: no {LOG_FILE} in this folder. For raw files, name the data set and give the folder as its path: "
            f'load_log("movielens", path={name!r}).'
        )
    if path.exists():
        raise ValueError(
            f"{path}: a raw data file needs a schema that says which column is what; pass the schema's .yaml file (see "
            "lmctr.data.logs.table)."
        )
    guess = nearest(name, BUILDERS)
    raise ValueError(
        f"data set {name!r}: neither a known name nor an existing path."
        + (f" Did you mean {guess!r}?" if guess else "")
        + f" Known names: {', '.join(BUILDERS)}; or a folder of `lmctr data prepare`, or a schema .yaml file."
    )


def _resolve(target: str) -> Callable[..., InteractionLog]:
    module, function = target.split(":")
    return getattr(importlib.import_module(module), function)
