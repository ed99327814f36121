"""Fitting of tabular fields in one streaming pass. See [`lmctr.data.features.processor`]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from lmctr.data.logs.columns import place

from .canonical import VALUE_TYPES, canonical_words, fits, types_that_fit
from .columns import Rows, count_labels, cross_codes, crossed_words, field_numbers, list_entries, text_codes
from .fields import Field
from .vocabulary import CountAccumulator, Vocabulary

_LARGEST = 1e140  # of what is squared and summed in float64
_ROUNDING = 1e-13  # of what is computed in float64, relative


@dataclass
class FittedState:
    """What fitting finds out.

    Args:
        vocabularies: by the name of the field that owns it.
        bounds: (B - 1,) float64 inner bounds of the bins of each quantile field.
        moments: mean, standard deviation, least and most of each standardised field; files from before hold the first two.
        statistics: rows, positive rate, and for each field the number of missing values and of distinct values; `value_types` by field.
    """

    vocabularies: dict[str, Vocabulary] = field(default_factory=dict)
    bounds: dict[str, np.ndarray] = field(default_factory=dict)
    moments: dict[str, tuple[float, ...]] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def value_types(self) -> dict[str, str]:
        """The type of the values of each categorical and list field."""
        return dict(self.statistics.get("value_types", {}))

    def moments_of(self, name: str) -> tuple[float, ...]:
        """The four `moments` of a field, without limits where there are none."""
        own = self.moments.get(name, (0.0, 1.0))
        return *own, *(-np.inf, np.inf)[len(own) - 2 :]


class Fitter:
    """Sees rows once and keeps what the fields need.

    Memory: the distinct values of vocabulary fields (a few times their text), and `sample_rows` values of each quantile field,
    whatever the number of rows.

    Args:
        fields: the fields of a processor.
        labels: label columns, checked and counted.
        sample_rows: quantile bounds are exact up to so many rows; from there on they come from a uniform sample of so many.
        seed: of that sample.
    """

    def __init__(self, fields: Sequence[Field], labels: Sequence[str], sample_rows: int, seed: int) -> None:
        self.fields, self.labels = fields, labels
        self._by_name = {f.name: f for f in fields}
        self._counts = {f.name: CountAccumulator() for f in fields if f.owns_vocabulary}
        self._moments = {f.name: _Moments() for f in fields if f.transform == "standardize"}
        self._quantile = [f for f in fields if f.transform == "quantile"]
        self._sample = _RowSample(len(self._quantile), sample_rows, seed)
        self._owner = {f.name: f.share_with or f.name for f in fields if f.is_typed}
        declared = {f.name: f.value_type for f in fields}
        # Types that the values of a vocabulary's fields may still be of; None where the type is declared
        self._types = {name: None if declared[name] else VALUE_TYPES for name in self._owner.values()}
        self._declared, self._nan = declared, dict.fromkeys(self._owner, 0)
        self._missing = dict.fromkeys((f.name for f in fields), 0)
        self._present = dict.fromkeys((f.name for f in fields), 0)
        self.num_rows = self._labelled = self._positives = 0

    def add(self, rows: Rows) -> None:
        """Counts some rows."""
        self.num_rows += len(rows)
        if self.labels:
            labelled, positives = count_labels(rows, self.labels)
            self._labelled += labelled
            self._positives += positives
        sampled = []
        for field_ in self.fields:
            array = None if field_.cross or field_.kind == "list" else rows.column(field_.source_column)
            if field_.type == "numeric":
                values = field_.curved(field_numbers(field_, rows))
                missing = int(np.isnan(values).sum())
                if field_.transform == "standardize":
                    too_large = np.abs(values) > _LARGEST
                    problem = "are too large for a standard deviation"
                    accepted = f"Accepted: up to {_LARGEST:g}; leave missing cells empty, or use the transform log1p or quantile."
                    rows.refuse(too_large, array, field_.source_column, problem, accepted)
                    self._moments[field_.name].add(values)
                elif field_.transform == "quantile":
                    sampled.append(values)
                total = len(values)
            else:
                values = list_entries(field_, rows)[0] if field_.kind == "list" else array
                codes, words = self._coded(field_, values, rows)
                missing, total = int((codes < 0).sum()), len(codes)
                counted = np.bincount(codes + 1, minlength=len(words) + 1)[1:]
                if self._types.get(self._owner.get(field_.name)) is not None:
                    self._narrow(field_.name, words, counted)
                counts = self._counts.get(field_.share_with or field_.name)
                if counts is not None:
                    counts.add(words, counted)
            self._missing[field_.name] += missing
            self._present[field_.name] += total - missing
        if sampled:
            self._sample.add(sampled)

    def _coded(self, field_: Field, values: pa.Array, rows: Rows) -> tuple[np.ndarray, pa.Array]:
        """Codes and texts: canonical ones of a declared type, whose values are checked, else neutral ones."""
        if field_.cross is not None:
            return cross_codes(field_.parts, rows, [None] * 2)
        kind = self._declared.get(self._owner.get(field_.name))
        codes, words = text_codes(values, field_, rows, kind)
        if kind is not None:
            wrong = ~fits(words, kind).to_numpy(zero_copy_only=False)
            accepted = "Declare value_type: text, or leave value_type out."
            problem = f"are no {kind}s, as its value_type says"
            if field_.kind == "id":
                rows.refuse(np.append(wrong, False)[codes], values, field_.source_column, problem, accepted)
            elif wrong.any():
                example = words.filter(pa.array(wrong))[0].as_py()
                where = place(rows.source, field_.source_column)
                raise ValueError(f"{where}: {int(wrong.sum())} values {problem}, such as {example!r}. {accepted}")
        return codes, words

    def _narrow(self, name: str, words: pa.Array, counted: np.ndarray) -> None:
        owner = self._owner[name]
        if self._types[owner] != ("text",):
            self._types[owner], nan = types_that_fit(words, self._types[owner])
            self._nan[name] += int(counted[nan].sum())

    def _settle(self, name: str, counts: CountAccumulator) -> CountAccumulator:
        """The counts of a vocabulary by canonical texts, once its type is known."""
        kind, cross = self.value_type(name), self._by_name[name].cross
        if cross is None and (kind is None or self._declared[name]):
            return counts
        values, numbers = counts.result()
        values = (
            canonical_words(values, kind)
            if cross is None
            else crossed_words(values, [self.value_type(part) for part in cross])
        )
        given = values.is_valid()
        settled = CountAccumulator()
        settled.add(values.filter(given), numbers[given.to_numpy(zero_copy_only=False)])
        return settled

    def value_type(self, name: str) -> str | None:
        """The type of a field's values: the declared one, else the narrowest that all values seen so far are of."""
        owner = self._owner.get(name)
        if owner is None:
            return None
        return self._declared[owner] or next(
            kind for kind in ("integer", "number", "text") if kind in self._types[owner]
        )

    def finish(self) -> FittedState:
        """The result. Raises `ValueError` when there were no rows, or a field had no value in any of them."""
        if not self.num_rows:
            raise ValueError("fit: there are no rows to fit on.")
        for owner in self._types:
            fields = [name for name, own in self._owner.items() if own == owner]
            if self._types[owner] and all(self._present[name] == self._nan[name] for name in fields):
                self._types[owner] = ("text",)  # words that all say "nan" are words
        for name in self._owner:
            if self.value_type(name) != "text":  # there "nan" is no word
                self._missing[name] += self._nan[name]
                self._present[name] -= self._nan[name]
        for field_ in self.fields:
            if not self._present[field_.name]:
                raise ValueError(
                    f"{place(None, field_.source_column)}: no value in any of the {self.num_rows} rows fitted on, so the field "
                    f"{field_.name!r} can learn nothing; drop it from the fields."
                )
        by_name = self._by_name
        state = FittedState(moments={name: moments.result() for name, moments in self._moments.items()})
        for name, counts in self._counts.items():
            owner, counts = by_name[name], self._settle(name, counts)
            state.vocabularies[name] = Vocabulary.from_counts(counts, owner.first_id, owner.min_count, owner.max_size)
        for field_, values in zip(self._quantile, self._sample.values):
            state.bounds[field_.name] = _inner_bounds(values, field_.num_bins)
        state.statistics = {"num_rows": self.num_rows, "fields": {}}
        if self.labels and self._labelled:
            state.statistics["positive_rate"] = self._positives / self._labelled
        for name in by_name:
            entry = {"missing": self._missing[name]}
            if name in state.vocabularies:
                known = state.vocabularies[name]
                entry |= {"distinct": len(known) + known.num_dropped, "kept": len(known)}
            state.statistics["fields"][name] = entry
        state.statistics["value_types"] = {name: self.value_type(name) for name in self._owner}
        return state


class _Moments:
    """Count, mean and sum of squared deviations, merged batch by batch (Chan et al.) in float64."""

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        self._low, self._high = np.inf, -np.inf

    def add(self, values: np.ndarray) -> None:
        values = values[~np.isnan(values)]
        if not len(values):
            return
        mean, total = float(values.mean()), self._count + len(values)
        shift = mean - self._mean
        self._squares += float(((values - mean) ** 2).sum()) + shift**2 * self._count * len(values) / total
        self._mean += shift * len(values) / total
        self._count = total
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))

    def result(self) -> tuple[float, ...]:
        """Mean, standard deviation (of the population), least and most; a constant column has the deviation 1, so that it becomes 0."""
        if not self._count:
            return 0.0, 1.0, 0.0, 0.0
        if self._high - self._low <= _ROUNDING * abs(self._mean):  # the deviation would be that of the rounded mean
            return self._low, 1.0, self._low, self._high
        return self._mean, (self._squares / self._count) ** 0.5, self._low, self._high


class _RowSample:
    """A uniform sample of rows: those with the smallest of independent random keys, so batch sizes do not matter."""

    def __init__(self, width: int, size: int, seed: int) -> None:
        self._size, self._random = size, np.random.default_rng(seed)
        self._keys = np.zeros(0)
        self.values = np.zeros((width, 0))  # (width, R) of the rows that are kept
        self._highest = 1.0

    def add(self, columns: list[np.ndarray]) -> None:
        keys = self._random.random(len(columns[0]))
        taken = np.flatnonzero(keys < self._highest)
        self._keys = np.concatenate([self._keys, keys[taken]])
        self.values = np.concatenate([self.values, np.stack([column[taken] for column in columns])], axis=1)
        if len(self._keys) > self._size:
            kept = np.argpartition(self._keys, self._size)[: self._size]
            self._keys, self.values = self._keys[kept], self.values[:, kept]
            self._highest = float(self._keys.max())


def _inner_bounds(values: np.ndarray, num_bins: int) -> np.ndarray:
    """Distinct inner bounds of bins of about equal counts; a value belongs to the bin above the last bound that is at most it."""
    values = values[~np.isnan(values)]
    if not len(values):
        return np.zeros(0)
    bounds = np.unique(np.quantile(values, np.arange(1, num_bins) / num_bins, method="inverted_cdf"))
    return bounds[bounds > values.min()]  # a bound at the smallest value would leave the lowest bin empty
