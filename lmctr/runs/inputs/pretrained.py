"""Vectors of a field's values that were made elsewhere: from a file into the model, see `data.pretrained`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import Field

from lmctr.data.tables.source import rows_of
from lmctr.models.common.embeddings import PretrainedVectors
from lmctr.utils.files import expanded
from lmctr.utils.suggest import refuse_unknown
from lmctr.utils.values import Values, read_values


class PretrainedKeys(Values):
    """Where the vectors of a field's values are."""

    file: str = Field(description="Parquet or JSON lines file, a row for each value.")
    value: str = Field("value", description="Column of the values.")
    vector: str = Field("vector", description="Column of the vectors, lists of numbers of one length.")
    trained: bool = Field(False, description="Whether the vectors are trained too.")


def read_pretrained(given: Mapping[str, Any], processor: Any) -> dict[str, PretrainedKeys]:
    """The checked keys of `data.pretrained`, by field.

    Raises:
        ValueError: a name that is no categorical field, or wrong keys.
    """
    names = [field.name for field in processor.fields if field.type == "categorical"]
    refuse_unknown(given, names, "data.pretrained", what="categorical field")
    return {name: read_values(PretrainedKeys, keys, f"data.pretrained.{name}") for name, keys in given.items()}


def read_vectors(keys: PretrainedKeys) -> tuple[list[Any], np.ndarray]:
    """The values (V,) of a file and their vectors (V, P) float32.

    Raises:
        FileNotFoundError: no such file. ValueError: a column is missing, vectors of other lengths or that are no finite numbers.
    """
    path = expanded(keys.file)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; data.pretrained names a Parquet or JSON lines file.")
    values: list[Any] = []
    vectors: list[Any] = []
    for rows in rows_of(str(path), {keys.value: "any", keys.vector: "any"}):
        values += rows.column(keys.value).to_pylist()
        vectors += rows.column(keys.vector).to_pylist()
    width = len(vectors[0]) if isinstance(vectors[0], list) else 0
    for row, vector in enumerate(vectors, 1):
        if not isinstance(vector, list) or len(vector) != width or not width:
            found = f"{len(vector)} numbers" if isinstance(vector, list) else repr(vector)
            raise ValueError(
                f"{path}, column {keys.vector!r}, row {row}: {found}; accepted: a list of as many numbers in every row"
            )
    try:
        matrix = np.array(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}, column {keys.vector!r}: the vectors are no lists of numbers: {error}") from None
    wrong = ~np.isfinite(matrix).all(1)
    if wrong.any():
        raise ValueError(
            f"{path}, column {keys.vector!r}, row {int(np.flatnonzero(wrong)[0]) + 1}: a number is missing or not finite"
        )
    return values, matrix


def fill_vectors(model: Any, processor: Any, given: Mapping[str, tuple[list[Any], np.ndarray]]) -> list[str]:
    """Put the vectors of values into a model's [`PretrainedVectors`] of the fields that are given. Returns a line for each: how many values
    have one.

    Raises:
        ValueError: no value of a file is one of the field's.
    """
    lines, names = [], model.config.field_names
    for module in model.modules():
        if not isinstance(module, PretrainedVectors) or (name := names[module.vocabulary]) not in given:
            continue
        values, matrix = given[name]
        ids = processor.lookup(name, values)
        known = np.flatnonzero(ids > 1)
        if not len(known):
            raise ValueError(
                f"data.pretrained.{name}: none of the {len(values)} values of the file, such as {values[0]!r}, is in the field's vocabulary"
            )
        module.bank.put(torch.from_numpy(ids[known].astype(np.int64)), torch.from_numpy(matrix[known]))
        lines.append(
            f"{name}: {len(np.unique(ids[known])):,} of {processor.num_known(name):,} values have a given vector of {matrix.shape[1]}"
        )
    return lines
