"""Side files of a feature processor: texts of the vocabularies as parquet, fitted numbers as safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.numpy import load_file
from transformers.utils import cached_file

from lmctr.utils.files import for_arrow
from lmctr.utils.parquet import row_groups
from lmctr.utils.tensors import save_tensors

from .fields import FIRST_ID
from .fit import FittedState
from .vocabulary import Vocabulary

VOCABULARY_FILE = "tabular_vocabularies.parquet"
NUMBERS_FILE = "tabular_numbers.safetensors"
SIDE_FILES = (VOCABULARY_FILE, NUMBERS_FILE)
_SCHEMA = pa.schema([("field", pa.dictionary(pa.int32(), pa.string())), ("value", pa.large_string())])
_CHUNK = 1 << 20  # values per row group


def write_state(state: FittedState, directory: str | os.PathLike, prefix: str = "") -> list[str]:
    """Writes both side files: rows (field, value) in the order of ids, and `counts.F`, `bounds.F`, `moments.F` by field F.

    `prefix` goes before the names of the files, where a folder holds more than one state.
    """
    paths = [os.path.join(directory, prefix + name) for name in SIDE_FILES]
    names = list(state.vocabularies)
    with pq.ParquetWriter(for_arrow(paths[0]), _SCHEMA, compression="zstd") as writer:
        for code, name in enumerate(names):
            values = state.vocabularies[name].values
            for start in range(0, len(values), _CHUNK):
                part = values.slice(start, _CHUNK)
                field = pa.DictionaryArray.from_arrays(pa.array(np.full(len(part), code, np.int32)), pa.array(names))
                writer.write_table(pa.table([field, part], schema=_SCHEMA))
    arrays = {f"bounds.{name}": values for name, values in state.bounds.items()}
    arrays |= {f"moments.{name}": np.array(values) for name, values in state.moments.items()}
    for name, vocabulary in state.vocabularies.items():
        counts = vocabulary.counts
        arrays[f"counts.{name}"] = np.zeros(0, np.int64) if counts is None else counts.astype(np.int64)
        arrays[f"dropped.{name}"] = np.array([vocabulary.num_dropped])
        if vocabulary.idle is not None:
            arrays[f"idle.{name}"] = vocabulary.idle.astype(np.int64)
    save_tensors(
        {key: np.ascontiguousarray(value) for key, value in arrays.items()}, paths[1], metadata={"format": "np"}
    )
    return paths


def read_state(
    name_or_path: str | os.PathLike,
    first_ids: Mapping[str, int],
    statistics: Mapping[str, Any],
    prefix: str = "",
    **hub: Any,
) -> FittedState:
    """Reads both side files.

    Args:
        name_or_path: a folder, a file in it, or a repository of the Hub.
        first_ids: first id of each field.
        statistics: kept as they are.
        prefix: of the files' names.
        hub: keywords of `cached_file` (revision, token, ...).

    Raises:
        OSError: a file is absent.
        ValueError: a file is damaged.
    """
    place = os.fspath(name_or_path)
    if os.path.isfile(place):
        place = os.path.dirname(place) or "."
    paths = [cached_file(place, prefix + name, **hub) for name in SIDE_FILES]
    state = FittedState(statistics=dict(statistics))
    try:
        numbers = load_file(paths[1])
    except SafetensorError as error:
        raise ValueError(f"{paths[1]}: no safetensors file, or cut off: {error}") from error
    for key, values in numbers.items():
        kind, name = key.split(".", 1)
        if kind == "bounds":
            state.bounds[name] = values
        elif kind == "moments":
            state.moments[name] = tuple(map(float, values))
    state.vocabularies.update(_read_values(paths[0]))
    for key, dropped in numbers.items():
        kind, name = key.split(".", 1)
        if kind == "dropped":
            values = state.vocabularies.get(name, pa.array([], pa.large_string()))
            counts = numbers[f"counts.{name}"]
            state.vocabularies[name] = Vocabulary(
                values,
                first_ids.get(name, FIRST_ID),
                counts if len(counts) else None,
                int(dropped[0]),
                numbers.get(f"idle.{name}"),
            )
    return state


def _read_values(path: str) -> dict[str, pa.Array]:
    parts: dict[str, list[pa.Array]] = {}
    for group, table in enumerate(row_groups(path)):
        names = table["field"].unique().to_pylist()
        if len(names) != 1:
            raise ValueError(f"{path}: row group {group} mixes fields {names}; the file is damaged.")
        parts.setdefault(names[0], []).append(table["value"].combine_chunks().cast(pa.large_string()))
    return {name: pa.concat_arrays(arrays) for name, arrays in parts.items()}
