"""From rows to the arrays of a tabular model. See [`lmctr.data.features.processor`]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .columns import Rows, group_codes, labels_of, numbers, padded, seconds_of, text_codes, value_lists, weights_of
from .fields import OOV_ID, Field
from .fit import FittedState
from .vocabulary import hash_strings

__all__ = ["TabularArrays", "concatenate", "transform_rows"]


class TabularArrays(dict):
    """Arrays of a transformed table by their names, and what was unknown in it.

    Keys: `input_ids` (N, F) int32, `numeric_values` (N, Nn) float32, `sequence_ids` (N, S, L) int32, `sequence_times` (N, S, L)
    float32 seconds before the row's time, and, where the table has them, `labels` (N,) float32, `groups` (N,) int64, `times` (N,)
    int64 unix seconds, `weight` (N,) float32. Keys without a field are left out.

    Args:
        oov_counts: for each field "values" (how many there were), "missing" and "unknown" (present, and not in the vocabulary).
    """

    def __init__(self, arrays: dict[str, np.ndarray], oov_counts: dict[str, dict[str, int]]) -> None:
        super().__init__(arrays)
        self.oov_counts = oov_counts

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
        special: names of the columns "label", "group", "time", "weight" (None where there is none) and "time_format".
        inputs_only: leave out all keys that a model's forward does not take as inputs.
    """
    num_rows = len(rows)
    ids, values, lists = ([field for field in fields if field.kind == kind] for kind in ("id", "value", "list"))
    result: dict[str, np.ndarray] = {}
    counts: dict[str, dict[str, int]] = {}
    for key, own, dtype, read in (("input_ids", ids, np.int32, _ids), ("numeric_values", values, np.float32, _values)):
        if own:
            result[key] = np.empty((num_rows, len(own)), dtype=dtype)
        for place, field in enumerate(own):
            result[key][:, place], counts[field.name] = read(field, state, rows)
    if lists:
        longest = max(field.max_length for field in lists)
        timed = any(field.time_column for field in lists)
        now = seconds_of(rows, special["time"], special["time_format"]) if timed else None
        result["sequence_ids"] = np.zeros((num_rows, len(lists), longest), dtype=np.int32)
        if timed:
            result["sequence_times"] = np.zeros((num_rows, len(lists), longest), dtype=np.float32)
        for place, field in enumerate(lists):
            shown, counts[field.name] = _lists(field, state, rows, now)
            for key, grid in zip(("sequence_ids", "sequence_times"), shown):
                result[key][:, place, : field.max_length] = grid
    if inputs_only:
        return TabularArrays(result, counts)
    if special["label"] is not None:
        result["labels"] = labels_of(rows, special["label"])
    if special["group"] is not None:
        result["groups"] = group_codes(rows, special["group"])
    if special["time"] is not None:
        result["times"] = seconds_of(rows, special["time"], special["time_format"])
    if special["weight"] is not None:
        result["weight"] = weights_of(rows, special["weight"])
    return TabularArrays(result, counts)


def _counts(values: int, missing: np.ndarray, unknown: int = 0) -> dict[str, int]:
    return {"values": values, "missing": int(missing.sum()), "unknown": unknown}


def _ids(field: Field, state: FittedState, rows: Rows) -> tuple[np.ndarray, dict[str, int]]:
    missing_id = field.first_id - 1  # OOV_ID, or the id of its own that comes after it
    array = rows.column(field.source_column)
    if field.type == "numeric":
        raw = numbers(array, field.source_column, rows)
        missing = np.isnan(raw)
        if field.fill_value is not None:
            raw = np.where(missing, field.fill_value, raw)
        ids = (
            np.searchsorted(state.bounds[field.name], field.curved(raw), side="right").astype(np.int32)
            + field.first_id
        )
        if field.fill_value is None:
            ids[missing] = missing_id
        return ids, _counts(len(ids), missing)
    codes, words = text_codes(array, field, rows, state.value_types.get(field.name))
    missing = codes < 0
    ids = np.append(_word_ids(field, state, words), np.int32(missing_id)).take(codes)
    unknown = ids == OOV_ID
    return ids, _counts(len(ids), missing, int((unknown & ~missing).sum()))


def _word_ids(field: Field, state: FittedState, words: Any) -> np.ndarray:
    if field.hash_buckets is not None:
        return (hash_strings(words) % np.uint64(field.hash_buckets)).astype(np.int32) + field.first_id
    return state.vocabularies[field.share_with or field.name].lookup(words)


def _values(field: Field, state: FittedState, rows: Rows) -> tuple[np.ndarray, dict[str, int]]:
    array = rows.column(field.source_column)
    raw = numbers(array, field.source_column, rows)
    missing = np.isnan(raw)
    mean, deviation = state.moments.get(field.name, (0.0, 1.0))
    if field.fill_value is not None:
        raw = np.where(missing, field.fill_value, raw)
    raw = field.curved(raw)
    if missing.any() and field.fill_value is None:
        raw = np.where(missing, mean, raw)
    if field.transform == "log1p":
        raw = np.sign(raw) * np.log1p(np.abs(raw))
    elif field.transform == "standardize":
        raw = (raw - mean) / deviation
    too_large = np.abs(raw) > np.finfo(np.float32).max
    accepted = "Use the transform log1p or quantile."
    rows.refuse(too_large, array, field.source_column, "do not fit float32", accepted)
    return raw.astype(np.float32), _counts(len(raw), missing)


def _lists(
    field: Field, state: FittedState, rows: Rows, now: np.ndarray | None
) -> tuple[tuple[np.ndarray, ...], dict[str, int]]:
    """Padded ids, with a time column also ages. Missing entries of a list are left out; unknown ones stay as id 1."""
    flat, lengths = value_lists(rows.column(field.source_column), field, rows)
    codes, words = text_codes(flat, field, rows, state.value_types.get(field.name))
    ids = np.append(_word_ids(field, state, words), np.int32(0)).take(codes)
    counts = _counts(len(ids), codes < 0, int((ids == OOV_ID).sum()))
    if field.time_column is None:
        return padded(ids, lengths, field), counts
    column = rows.column(field.time_column)
    moments, time_lengths = value_lists(column, field, rows)
    problem = f"have another number of times than {field.source_column!r} has entries"
    accepted = "Every entry of a sequence needs a time."
    rows.refuse(time_lengths != lengths, time_lengths, field.time_column, problem, accepted)
    past = numbers(moments, field.time_column, rows)
    ages = (np.repeat(now, lengths) - past).astype(np.float32)
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    wrong = np.bincount(row_of[np.isnan(past) | (ages < 0)], minlength=len(lengths)) > 0
    accepted = "A sequence holds what happened before its row."
    rows.refuse(wrong, column, field.time_column, "are missing or later than the row's own time", accepted)
    return padded(ids, lengths, field, [ages]), counts


def concatenate(parts: Iterable[TabularArrays]) -> TabularArrays:
    """Rows of several parts in one."""
    parts = list(parts)
    arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return TabularArrays(arrays, add_counts(part.oov_counts for part in parts))


def add_counts(parts: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Sums of the counts of several parts."""
    total: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, counts in part.items():
            entry = total.setdefault(name, dict.fromkeys(counts, 0))
            for key, value in counts.items():
                entry[key] += value
    return total
