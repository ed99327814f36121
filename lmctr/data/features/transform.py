"""From rows to the arrays of a tabular model. See [`lmctr.data.features.processor`]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .columns import (
    Rows,
    cross_codes,
    field_numbers,
    group_codes,
    label_columns_of,
    list_entries,
    numbers,
    padded,
    text_codes,
    value_lists,
    weights_of,
)
from .fields import OOV_ID, Field
from .fit import FittedState
from .times import seconds_of
from .vocabulary import hash_strings

MAX_EXAMPLES = 20  # of unknown values of a field


class TabularArrays(dict):
    """Arrays of a transformed table by their names, and what was unknown in it.

    Keys: `input_ids` (N, F) int32, `numeric_values` (N, Nn) float32, `sequence_ids` (N, S, L) int32, `sequence_times` (N, S, L)
    float32 seconds before the row's time, `sequence_weights` (N, S, L) float32 where a list has weights, and, where the table has them, `labels` (N,) float32 or (N, T) of several, `groups` (N,) int64, `times` (N,)
    int64 unix seconds, `weight` (N,) float32. Keys without a field are left out.

    Args:
        oov_counts: for each field "values" (how many there were), "missing" and "unknown" (present, and not in the vocabulary).
        part_counts: the same by the code of the part, where the rows have parts.
        unknown_examples: some unknown values of the fields that had any.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        oov_counts: dict[str, dict[str, int]],
        part_counts: dict[int, dict[str, dict[str, int]]] | None = None,
        unknown_examples: dict[str, list[str]] | None = None,
    ) -> None:
        super().__init__(arrays)
        self.oov_counts, self.part_counts = oov_counts, part_counts or {}
        self.unknown_examples = unknown_examples or {}

    @property
    def num_rows(self) -> int:
        """N."""
        return len(next(iter(self.values()))) if self else 0


def transform_rows(
    fields: Sequence[Field], state: FittedState, rows: Rows, special: dict[str, Any], inputs_only: bool = False
) -> TabularArrays:
    """The arrays of some rows.

    Args:
        fields: the processor's fields.
        state: what was fitted.
        rows: the rows.
        special: names of the columns "label", "group", "time", "weight" (None where there is none), "extra_labels" and "time_format".
        inputs_only: leave out all keys that a model's forward does not take as inputs.
    """
    num_rows = len(rows)
    ids, values, lists = ([field for field in fields if field.kind == kind] for kind in ("id", "value", "list"))
    result: dict[str, np.ndarray] = {}
    counts = _Counts(rows.split)
    for key, own, dtype, read in (("input_ids", ids, np.int32, _ids), ("numeric_values", values, np.float32, _values)):
        if own:
            result[key] = np.empty((num_rows, len(own)), dtype=dtype)
        for place, field in enumerate(own):
            result[key][:, place] = read(field, state, rows, counts)
    if lists:
        longest = max(field.max_length for field in lists)
        timed = any(field.time_column for field in lists)
        now = seconds_of(rows, special["time"], special["time_format"]) if timed else None
        result["sequence_ids"] = np.zeros((num_rows, len(lists), longest), dtype=np.int32)
        if timed:
            result["sequence_times"] = np.zeros((num_rows, len(lists), longest), dtype=np.float32)
        if any(field.weight_separator for field in lists):
            result["sequence_weights"] = np.zeros((num_rows, len(lists), longest), dtype=np.float32)
        for place, field in enumerate(lists):
            for key, grid in _lists(field, state, rows, now, counts).items():
                if key in result:
                    result[key][:, place, : field.max_length] = grid
    if inputs_only:
        return counts.arrays(result)
    if special["label"] is not None:
        result["labels"] = label_columns_of(rows, [special["label"], *(special.get("extra_labels") or ())])
    if special["group"] is not None:
        result["groups"] = group_codes(rows, special["group"])
    if special["time"] is not None:
        result["times"] = seconds_of(rows, special["time"], special["time_format"])
    if special["weight"] is not None:
        result["weight"] = weights_of(rows, special["weight"])
    return counts.arrays(result)


class _Counts:
    """Counts of missing and unknown values of some rows, of all and by part, and examples of the unknown."""

    def __init__(self, split: np.ndarray | None) -> None:
        self._split = split
        self._all: dict[str, dict[str, int]] = {}
        self._parts: dict[int, dict[str, dict[str, int]]] = {}
        self._examples: dict[str, list[str]] = {}

    def add(
        self, name: str, missing: np.ndarray, unknown: np.ndarray | None = None, row_of: np.ndarray | None = None
    ) -> None:
        """Counts a field's values by their masks; `row_of` says which row each stands in, where that is not its own number."""
        masks = {"missing": missing, "unknown": np.zeros(len(missing), bool) if unknown is None else unknown}
        self._all[name] = {"values": len(missing), **{key: int(mask.sum()) for key, mask in masks.items()}}
        if self._split is None:
            return
        parts = self._split if row_of is None else self._split[row_of]
        sizes = np.bincount(parts + 1, minlength=4)
        found = {key: np.bincount(parts[mask] + 1, minlength=4) for key, mask in masks.items()}
        for code in np.flatnonzero(np.bincount(self._split + 1, minlength=4)):
            own = {"values": int(sizes[code]), **{key: int(count[code]) for key, count in found.items()}}
            self._parts.setdefault(int(code) - 1, {})[name] = own

    def examples(self, name: str, words: pa.Array, ids: np.ndarray) -> None:
        """Keeps some of the words with the unknown id."""
        places = np.flatnonzero(ids == OOV_ID)[:MAX_EXAMPLES]
        if len(places):
            self._examples[name] = words.take(pa.array(places)).to_pylist()

    def arrays(self, result: dict[str, np.ndarray]) -> TabularArrays:
        return TabularArrays(result, self._all, self._parts, self._examples)


def _curved(field: Field, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """(N,) float64 of a numeric field's column, the missing ones filled where it says with what, and which were missing."""
    raw = field_numbers(field, rows)
    missing = np.isnan(raw)
    return field.curved(raw if field.fill_value is None else np.where(missing, field.fill_value, raw)), missing


def _ids(field: Field, state: FittedState, rows: Rows, counts: _Counts) -> np.ndarray:
    missing_id = field.first_id - 1  # OOV_ID, or the id of its own that comes after it
    if field.type == "numeric":
        raw, missing = _curved(field, rows)
        ids = np.searchsorted(state.bounds[field.name], raw, side="right").astype(np.int32) + field.first_id
        if field.fill_value is None:
            ids[missing] = missing_id
        counts.add(field.name, missing)
        return ids
    codes, words = coded_values(field, state, rows)
    missing = codes < 0
    ids_of = word_ids(field, state, words)
    counts.examples(field.name, words, ids_of)
    ids = np.append(ids_of, np.int32(missing_id)).take(codes)
    counts.add(field.name, missing, (ids == OOV_ID) & ~missing)
    return ids


def coded_values(field: Field, state: FittedState, rows: Rows) -> tuple[np.ndarray, pa.Array]:
    """Codes and words of a categorical field, see [`~lmctr.data.features.columns.text_codes`]."""
    if field.cross is None:
        return text_codes(rows.column(field.source_column), field, rows, state.value_types.get(field.name))
    return cross_codes(field.parts, rows, [state.value_types.get(part.name) for part in field.parts])


def word_ids(field: Field, state: FittedState, words: pa.Array) -> np.ndarray:
    """(N,) int32 ids of canonical texts without nulls."""
    if field.hash_buckets is not None:
        return (hash_strings(words) % np.uint64(field.hash_buckets)).astype(np.int32) + field.first_id
    return state.vocabularies[field.share_with or field.name].lookup(words)


def _values(field: Field, state: FittedState, rows: Rows, counts: _Counts) -> np.ndarray:
    raw, missing = _curved(field, rows)
    mean, deviation, low, high = state.moments_of(field.name)
    if missing.any() and field.fill_value is None:
        raw = np.where(missing, mean, raw)
    if field.transform == "log1p":
        raw = np.sign(raw) * np.log1p(np.abs(raw))
    elif field.transform == "standardize":
        raw = (np.clip(raw, low, high) - mean) / deviation
    too_large = np.abs(raw) > np.finfo(np.float32).max
    accepted = "Use the transform log1p or quantile."
    rows.refuse(too_large, rows.column(field.source_column), field.source_column, "do not fit float32", accepted)
    counts.add(field.name, missing)
    return raw.astype(np.float32)


def _lists(
    field: Field, state: FittedState, rows: Rows, now: np.ndarray | None, counts: _Counts
) -> dict[str, np.ndarray]:
    """Padded ids and weights (1 where the field has none), with a time column also ages. Missing entries of a list are left out; unknown ones stay as id 1."""
    flat, lengths, weights = list_entries(field, rows)
    weights = np.ones(len(flat)) if weights is None else weights
    codes, words = text_codes(flat, field, rows, state.value_types.get(field.name))
    ids_of = word_ids(field, state, words)
    counts.examples(field.name, words, ids_of)
    ids = np.append(ids_of, np.int32(0)).take(codes)
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    counts.add(field.name, codes < 0, ids == OOV_ID, row_of)
    others = {"sequence_weights": weights.astype(np.float32)}
    if field.time_column is None:
        return dict(zip(("sequence_ids", *others), padded(ids, lengths, field, [*others.values()])))
    column = rows.column(field.time_column)
    moments, time_lengths = value_lists(column, field, rows)
    problem = f"have another number of times than {field.source_column!r} has entries"
    accepted = "Every entry of a sequence needs a time."
    rows.refuse(time_lengths != lengths, time_lengths, field.time_column, problem, accepted)
    past = numbers(moments, field.time_column, rows)
    ages = (np.repeat(now, lengths) - past).astype(np.float32)
    wrong = np.bincount(row_of[np.isnan(past) | (ages < 0)], minlength=len(lengths)) > 0
    accepted = "A sequence holds what happened before its row."
    rows.refuse(wrong, column, field.time_column, "are missing or later than the row's own time", accepted)
    others["sequence_times"] = ages
    return dict(zip(("sequence_ids", *others), padded(ids, lengths, field, [*others.values()])))


def concatenate(parts: Iterable[TabularArrays]) -> TabularArrays:
    """Rows of several parts in one."""
    parts = list(parts)
    arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    examples = merged_examples(part.unknown_examples for part in parts)
    return TabularArrays(arrays, add_counts(part.oov_counts for part in parts), unknown_examples=examples)


def add_counts(parts: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Sums of the counts of several parts."""
    total: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, counts in part.items():
            entry = total.setdefault(name, dict.fromkeys(counts, 0))
            for key, value in counts.items():
                entry[key] += value
    return total


def merged_examples(parts: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """Different examples of several parts by field, a few of each."""
    merged: dict[str, dict[str, None]] = {}
    for part in parts:
        for name, values in part.items():
            merged.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: list(values)[:MAX_EXAMPLES] for name, values in merged.items()}
