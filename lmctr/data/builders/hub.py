"""Data sets of the Hugging Face Hub, `hf://user/name`, as tables and as logs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.utils
import numpy as np

from lmctr.data.hf_datasets import EVENTS, ITEMS, USERS
from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.logs.splits import PARTS
from lmctr.data.logs.table import log_from_table
from lmctr.data.tables.load import table_source
from lmctr.data.tables.source import TableSource
from lmctr.utils.progress import Work, without_bars_of

_PREFIX = "hf://"


def table_from_hub(
    dataset: str, config: str | None = None, revision: str | None = None, **options: Any
) -> TableSource:
    """A data set of the Hub as a table; its splits train, validation and test are the parts, where it has them.

    Args:
        dataset: "hf://user/name". config: one of several tables of the data set. revision: branch, tag or commit.
        options: of [`~lmctr.data.tables.load.table_source`].
    """
    found = _loaded(dataset, config, revision)
    train = found.get("train")
    if train is None:
        if len(found) > 1:
            raise ValueError(
                f"{dataset}: splits {', '.join(found)}; accepted: train, with validation and test or without, or a single one"
            )
        train = next(iter(found.values()))
    info = DatasetInfo(
        dataset.removeprefix(_PREFIX), licence=train.info.license or None, citation=train.info.citation or None
    )
    return table_source(train, validation=found.get("validation"), test=found.get("test"), info=info, **options)


def log_from_hub(
    dataset: str,
    columns: Mapping[str, Any] | None = None,
    catalogue: Any = None,
    users: Any = None,
    missing_items: str | None = None,
    config: str | None = None,
    revision: str | None = None,
) -> InteractionLog:
    """A data set of the Hub as an interaction log: all of its splits, which are the parts where there are several.

    Args:
        dataset: "hf://user/name". columns, catalogue, users, missing_items: keys of a schema, see [`lmctr.data.logs.table`]; without columns
            the data set has the configurations "events", "items" and maybe "users", as [`InteractionLog.to_dataset`] gives them.
        config: one of several tables of the data set. revision: branch, tag or commit.
    """
    if columns is None:
        parts = {}
        for name in (EVENTS, ITEMS, USERS):
            try:
                found = _loaded(dataset, name, revision)
            except ValueError:
                if name == USERS:
                    continue
                raise
            parts[name] = datasets.concatenate_datasets(list(found.values()))
        return InteractionLog.from_dataset(parts)
    found = _loaded(dataset, config, revision)
    own, rows = dict(columns), list(found.values())
    if len(found) > 1 and "part" not in own:
        wrong = [name for name in found if name not in PARTS]
        if wrong:
            raise ValueError(
                f"{dataset}: the split {wrong[0]!r} is no part; accepted: {', '.join(PARTS)}, or a single split"
            )
        rows = [
            part.add_column("lmctr_part", np.full(len(part), PARTS.index(name), np.int8))
            for name, part in found.items()
        ]
        own["part"] = "lmctr_part"
    keys = {
        "catalogue": catalogue,
        "users": users,
        "missing_items": missing_items,
        "name": dataset.removeprefix(_PREFIX),
    }
    schema = {"columns": own, **{key: value for key, value in keys.items() if value is not None}}
    return log_from_table(datasets.concatenate_datasets(rows), schema)


def _loaded(dataset: str, config: str | None, revision: str | None) -> Mapping[str, Any]:
    """The splits of a data set."""
    name, _, own = dataset.removeprefix(_PREFIX).removeprefix("datasets/").partition("@")
    if own and revision is not None:
        raise ValueError(f"{dataset}: the name has a revision, and revision={revision!r} is given too; give one")
    place = os.path.expanduser(name)
    if not Path(place).is_dir() and name.count("/") != 1:
        raise ValueError(
            f"{dataset}: accepted is hf://user/name, hf://user/name@revision, or hf:// before a folder here"
        )
    try:
        with Work(f"reading {dataset}"), without_bars_of(datasets, huggingface_hub.utils):
            found = datasets.load_dataset(place, config, revision=own or revision)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise FileNotFoundError(f"{dataset}: no such data set, or none that may be read: {error}") from error
    except (
        ValueError,
        datasets.exceptions.DatasetGenerationError,
        datasets.exceptions.DataFilesNotFoundError,
    ) as error:
        raise ValueError(f"{dataset}: datasets cannot load it: {error}") from error
    return found


# The registry reads the options of a data set from its signature.
_FIXED = ("data", "validation", "test", "format", "delimiter", "names", "info")
_OWN = [
    entry for entry in inspect.signature(table_from_hub).parameters.values() if entry.kind is not entry.VAR_KEYWORD
]
_MORE = [
    e.replace(kind=e.KEYWORD_ONLY)
    for name, e in inspect.signature(table_source).parameters.items()
    if name not in _FIXED
]
table_from_hub.__signature__ = inspect.Signature([*_OWN, *_MORE])
