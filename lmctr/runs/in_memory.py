"""Data in memory as files that a run trains on, for `lmctr.runs.train(frame, model=FAMILY)`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lmctr.data.in_memory import arrow_table
from lmctr.runs.find import GROUPS, is_data_file
from lmctr.runs.folder import RunFolder
from lmctr.runs.options import DataFiles, TrainOptions
from lmctr.runs.recipe import Recipe
from lmctr.utils.files import for_arrow, replacing
from lmctr.utils.suggest import refuse_unknown, reworded

_NAMES = ("model", *DataFiles.__dataclass_fields__)
_OPTION = re.compile(
    rf"(lmctr (?:init|train) [^,;:`]*)|--({'|'.join(name.replace('_', '-') for name in (*_NAMES, 'from'))})\b( (?=[A-Z0-9']|din|deepfm|table|log))?"
)


def is_data(value: Any) -> bool:
    """Whether the first argument of `lmctr.runs.train` is data whatever stands beside it, and no recipe."""
    if isinstance(value, (str, Path)):
        return is_data_file(value)
    return any(hasattr(value, name) for name in ("column_names", "columns", "read_all"))


def options_for(
    data: Any, output_dir: str | Path | None, from_run: Any, overwrite: bool, told: Mapping[str, Any]
) -> TrainOptions:
    """`lmctr train FILE --model FAMILY` for data that may be in memory: tables are written beside the run folder, as Parquet.

    Args:
        data: a path, or what [`~lmctr.data.in_memory.arrow_table`] takes; `items` and `users` of `told` likewise.
        told: `model` and options of [`~lmctr.runs.options.DataFiles`] by name.

    Raises:
        ValueError: no table, a name that is no option, other data than those of the run in the folder.
    """
    refuse_unknown(told, _NAMES, "the arguments of lmctr.runs.train")
    if isinstance(data, Recipe) or (isinstance(data, Mapping) and set(data) <= {*GROUPS}):
        raise ValueError(
            f"{', '.join(told)}: of data, a table or a data file; this is a recipe, which names its data and its family"
        )
    tables = {"rows": data} | {name: told[name] for name in ("items", "users") if told.get(name) is not None}
    paths = {name: str(table) for name, table in tables.items() if isinstance(table, (str, Path))}
    for name in [name for name in tables if name not in paths]:
        table = arrow_table(tables[name], "data" if name == "rows" else name)
        if output_dir is None:
            raise ValueError("output_dir is missing: data in memory have no name to make one from")
        paths[name] = path = f"{output_dir}.data/{name}.parquet"
        if Path(path).is_file() and not overwrite and RunFolder(Path(output_dir)).started:
            found = pq.read_table(for_arrow(path))
            if not (found.equals(table) or found.to_pandas().equals(table.to_pandas())):  # to pandas alone NaN is NaN
                raise ValueError(
                    f"the run in {output_dir} was trained on other data, which are in {path}; give another output_dir, or overwrite=True"
                )
            continue
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            pq.write_table(table, temporary)
    earlier = None if from_run is None else str(from_run)
    return TrainOptions(recipe=paths.pop("rows"), from_run=earlier, **{**told, **paths})


def as_arguments() -> AbstractContextManager[None]:
    """Errors inside the block name the command line's options as arguments, `label=COLUMN`, but for those of a command that they propose."""
    return reworded(partial(_OPTION.sub, _argument))


def _argument(found: re.Match) -> str:
    command, option, value_follows = found.groups()
    if command:
        return command
    name = "overrides['training.from_run']" if option == "from" else option.replace("-", "_")
    return f"{name}=" if value_follows else name
