"""The feature processor of tabular models: raw columns to ids, numbers and sequences.

```python
processor = TabularFeatureProcessor(
    fields=[
        {"name": "ad", "type": "categorical", "min_count": 2},
        {"name": "hour", "type": "categorical", "column": "ts", "extract": "hour"},
        {"name": "price", "type": "numeric", "transform": "log1p"},
        {"name": "clicked_ads", "type": "sequence", "separator": " ", "max_length": 20, "share_with": "ad"},
    ],
    label="click",
)
processor.fit("train.csv")                       # one pass, in blocks
arrays = processor.transform("test.csv")          # numpy arrays; arrays.oov_counts says what was unknown
inputs = processor([{"ad": 7, "ts": 1414800000, "price": 3.5, "clicked_ads": "4 7"}])   # the model's forward keys
processor.save_pretrained("run")                  # preprocessor_config.json and two side files
```

Ids are local to their field: 0 padding, 1 unknown (OOV), then, where the field asks for it (`missing="own_id"`), 2 missing, then the
values by falling count. **Missing values** (null, NaN, empty text): a categorical or quantile field gives them the unknown id, or the
id 2 with `missing="own_id"`; a numeric field the `fill_value` (default 0, for "standardize" the mean), before its transform; in a
sequence they are left out. **Unseen values** get the unknown id and are counted. The fields reach a model in this order: those with
one id per row, those with one number, the lists, each in the order given.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from transformers import BatchFeature
from transformers.utils import TensorType

from lmctr.data.tables.reading import names_in_file
from lmctr.data.tables.source import TableSource, rows_of, watched
from lmctr.statistics import StatisticsReader
from lmctr.utils.rows import check_kind, check_list, is_column
from lmctr.utils.suggest import errors_of, refuse_unknown

from .columns import Rows, checked_labels
from .extend import extend_state
from .few import FewRows
from .fields import Field, parse_fields
from .files import SIDE_FILES, read_state, write_state
from .fit import FittedState, Fitter
from .settings import FittedExtractor, sequence_tables
from .times import time_kind
from .transform import TabularArrays, concatenate, transform_rows

_MOST_PARTS = 8  # sets of shared columns that readers are kept for
_LIMITS = ("min_count", "max_size", "max_idle", "max_unknown")
SPECIAL = ("label", "extra_labels", "group", "time", "time_format", "weight", "reading")
"""Settings that sources and processors share, beside the fields."""


class TabularFeatureProcessor(FittedExtractor):
    r"""Turns the columns of a table into the inputs of a tabular CTR model.

    Args:
        fields (`list[dict]`): the fields, see [`~lmctr.data.features.fields.Field`] for their keys.
        label (`str`, *optional*, defaults to `"label"`): label column, 0 or 1. Needed to fit and to evaluate, not to score.
        extra_labels (`list[str]`, *optional*): further label columns, for models with several tasks. Cells of any label may then be
            empty (or -100), though not all of a row.
        group (`str`, *optional*): column of the grouped AUC, such as the user.
        time (`str`, *optional*): time column: unix seconds, timestamps or ISO texts.
        time_format (`str`, *optional*): `strptime` format of a time column of other texts, or the unit of numbers: "ms", "us", "ns".
        weight (`str`, *optional*): column of sample weights.
        reading (`dict`, *optional*): how text files of rows are written, where not as usual: `decimal`, `na_values` and `names`, as
            in [`~lmctr.data.tables.load.table_source`].
        embedding_dim (`int`, *optional*): embedding width of fields without one of their own, once any field has one.
        quantile_sample (`int`, defaults to 262144): quantile bounds are exact up to this many rows; beyond, they come from a
            uniform sample of this many (standard error of a bound's rank: at most 0.1 %).
        seed (`int`, defaults to 0): of that sample.
        statistics (`dict`, *optional*): written by `fit`.
        statistics_reader (`StatisticsReader` or `dict`, *optional*): what gave the columns that count earlier events of a log. Rows to score hold
            its raw values, as [`~lmctr.statistics.UserStatistics`] counts them; the processor keeps it for those who do.

    Attributes:
        state: vocabularies, bounds and moments. is_fitted: whether it was fitted, or loaded. oov_counts: what was missing and unknown in the
            rows of the last call, by field. unknown_examples: some of the unknown values.

    Raises:
        ValueError: unknown keys (the nearest known one is offered) and values, of the processor or of a field.
    """

    model_input_names: ClassVar[list[str]] = [
        "input_ids",
        "numeric_values",
        "sequence_ids",
        "sequence_times",
        "sequence_weights",
    ]
    request_kind: ClassVar[str] = "table"

    def __init__(
        self,
        fields: Sequence[Mapping[str, Any] | Field] = (),
        label: str | None = "label",
        extra_labels: Sequence[str] | None = None,
        group: str | None = None,
        time: str | None = None,
        time_format: str | None = None,
        weight: str | None = None,
        reading: Mapping[str, Any] | None = None,
        embedding_dim: int | None = None,
        quantile_sample: int = 1 << 18,
        seed: int = 0,
        statistics: Mapping[str, Any] | None = None,
        statistics_reader: StatisticsReader | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fields = parse_fields(fields)
        self.extra_labels = checked_labels(label, extra_labels)
        single = {"label": label, "group": group, "time": time, "time_format": time_format, "weight": weight}
        for name, value in single.items():
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"{name}={value!r}; accepted: a column's name or None.")
            setattr(self, name, value)
        for name, value in {"embedding_dim": embedding_dim, "quantile_sample": quantile_sample}.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r}; accepted: a whole number of at least 1.")
            setattr(self, name, value)
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed={seed!r}; accepted: a whole number from 0.")
        if reading is not None and not (
            isinstance(reading, Mapping) and {*reading} <= {"decimal", "na_values", "names"}
        ):
            raise ValueError(
                f"reading={reading!r}; accepted: a dict with `decimal`, `na_values` and `names`, or None."
            )
        self.reading = None if reading is None else dict(reading)
        self.seed = seed
        if isinstance(statistics_reader, Mapping):
            statistics_reader = StatisticsReader.from_dict(statistics_reader)
        self.statistics_reader = statistics_reader
        for field in self.fields:
            if field.time_column is not None and time is None:
                raise ValueError(f"field {field.name!r}: time_column needs the processor's time column (time=...).")
            for column in field.columns():
                if column in self.label_columns:
                    raise ValueError(
                        f"field {field.name!r} reads the label column {column!r}: that would give the answer away."
                    )
        found = {} if statistics is None else statistics
        if not isinstance(found, Mapping) or not isinstance(found.get("value_types", {}), Mapping):
            raise ValueError(f"statistics: got {statistics!r:.200}; accepted: what `fit` writes.")
        self.state = FittedState(statistics=dict(found))
        self.is_fitted = False
        self.oov_counts: dict[str, dict[str, int]] = {}
        self.unknown_examples: dict[str, list[str]] = {}

    @property
    def label_columns(self) -> list[str]:
        """The label columns, the first of which metrics without a name measure."""
        return [name for name in (self.label, *(self.extra_labels or ())) if name is not None]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of what the model predicts, in the order of its logits: the label columns where there are several."""
        return tuple(self.label_columns) if self.extra_labels else ("label",)

    # fields

    @property
    def statistics(self) -> dict[str, Any]:
        """Rows and positive rate of the data fitted on; for each field missing, distinct and kept values."""
        return self.state.statistics

    def ordered_fields(self) -> tuple[Field, ...]:
        """The fields in the order that the model sees them: ids, numbers, lists."""
        return tuple(field for kind in ("id", "value", "list") for field in self.fields if field.kind == kind)

    @property
    def value_types(self) -> dict[str, str]:
        """What the values of each categorical and list field are, "text", "integer" or "number": declared, or found out by `fit`."""
        return self.state.value_types

    @property
    def field_names(self) -> list[str]:
        """Their names in that order."""
        return [field.name for field in self.ordered_fields()]

    def input_columns(self) -> dict[str, str]:
        """Columns that the fields read, with what they hold: "text", "number" or "any"."""
        kinds: dict[str, str] = {}
        for field in self.fields:
            for column in field.columns():
                kind = "number" if field.type == "numeric" and not field.written else "text"
                if field.extract is not None:
                    form = field.until_format if column == field.until else field.time_format
                    kind = "any" if form is None else "text"
                kinds[column] = kind if kinds.get(column, kind) == kind else "text"
        if self.time is not None and any(field.time_column for field in self.fields):
            kinds.setdefault(self.time, time_kind(self.time_format))
        return kinds

    def all_columns(self) -> dict[str, str]:
        """[`~TabularFeatureProcessor.input_columns`] and the label, group, time and weight columns."""
        kinds = self.input_columns()
        special = dict.fromkeys(self.label_columns, "number") | {self.group: "text", self.weight: "number"}
        special[self.time] = time_kind(self.time_format)
        return kinds | {name: kind for name, kind in special.items() if name is not None and name not in kinds}

    def _special(self, **changes: Any) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SPECIAL} | changes

    # fitting

    def fit(self, source: Any, part: str = "train", progress: bool = False) -> TabularFeatureProcessor:
        """Reads the source once and fits vocabularies, quantile bounds, means and deviations.

        Args:
            source: a [`TableSource`], a path, or a table in memory (see [`~lmctr.data.tables.source.rows_of`]).
            part: of a [`TableSource`], the part to fit on.
            progress: show a progress bar.

        Returns:
            The processor itself.

        Raises:
            ValueError: missing or duplicate columns, values that are no numbers, labels other than 0 and 1, a field without
                any value; names source, column and row.
        """
        columns = self.input_columns()
        for name in self.label_columns:
            columns.setdefault(name, "number")
        fitter = Fitter(self.fields, self.label_columns, self.quantile_sample, self.seed)
        stream = rows_of(source, columns, part if isinstance(source, TableSource) else None, self.reading)
        for rows in watched(stream, "fitting features", progress):
            fitter.add(rows)
        self._set_state(fitter.finish())
        return self

    def extend(self, source: Any, part: str = "train", progress: bool = False) -> dict[str, dict[str, int]]:
        """Gives ids to the values of new rows, and takes those of values that are gone, see [`lmctr.data.features.extend`].

        The model of the earlier processor needs tables of the new sizes: `lmctr train RECIPE --from RUN` sees to that.

        Args:
            source, part, progress: as in [`~TabularFeatureProcessor.fit`].

        Returns:
            By vocabulary how many values were "added", "met" again and "evicted", and its "size".

        Raises:
            ValueError: a processor that is not fitted; rows that do not fit the fields.
        """
        self._require_fitted()
        columns = self.input_columns() | dict.fromkeys(self.label_columns, "number")
        stream = watched(
            rows_of(source, columns, part if isinstance(source, TableSource) else None, self.reading),
            "extending",
            progress,
        )
        state, report = extend_state(self.fields, self.label_columns, self.state, stream)
        self._set_state(state)
        return report

    def continued(self, earlier: TabularFeatureProcessor) -> TabularFeatureProcessor:
        """This processor, with what another one of equal fields was fitted to; those that may differ are limits of vocabularies.

        Raises:
            ValueError: other fields or labels.
        """
        earlier._require_fitted()
        own, others = ({f["name"]: _without(f, _LIMITS) for f in p._settings()["fields"]} for p in (self, earlier))
        for name in dict.fromkeys((*own, *others)):
            if name not in own:
                raise ValueError(
                    f"field {name!r}, which the earlier processor reads, is missing here: keep it, its column empty where it is no longer known, or "
                    "fit anew without it"
                )
            if name not in others:
                raise ValueError(
                    f"field {name!r} is new: the earlier processor reads none; leave it out, or fit anew with it"
                )
            if own[name] != others[name]:
                raise ValueError(
                    f"field {name!r} is {own[name]} here and {others[name]} in the earlier processor: only {', '.join(_LIMITS)} "
                    "may change; keep the fields as they were, or fit anew"
                )
        if self.tasks != earlier.tasks:
            raise ValueError(
                f"labels: {', '.join(self.tasks)} here, {', '.join(earlier.tasks)} in the earlier processor; keep them"
            )
        self._set_state(copy.deepcopy(earlier.state))
        return self

    def vocabulary_of(self, name: str) -> str | None:
        """The field that owns the vocabulary which a field's ids come from; None for hashed and binned ones."""
        field = self._field(name, self.fields, "fields")
        return (field.share_with or name) if (field.share_with or name) in self.state.vocabularies else None

    def vocabulary_fields(self) -> list[str]:
        """A field for each table of a model's ids, in the order of `vocab_sizes`, then of `sequence_vocab_sizes`."""
        ids, lists = ([field for field in self.fields if field.kind == kind] for kind in ("id", "list"))
        _, own = sequence_tables(lists, {field.name: place for place, field in enumerate(ids)}, len(ids))
        return [*(field.name for field in ids), *own]

    def _set_state(self, state: FittedState) -> None:
        self.state, self.is_fitted = state, True

    # transforming

    def transform(self, source: Any, part: str | None = None) -> TabularArrays:
        """All rows of a source as arrays (see [`TabularArrays`]); use a [`TabularStore`] for tables larger than memory.

        The label, group, time and weight columns are read where the source has them; `oov_counts` of the result (and of the
        processor) say how many values were missing and unknown.
        """
        parts = list(self.transform_stream(source, part))
        if not parts:
            raise ValueError(f"transform: the part {part!r} has no rows.")
        result = concatenate(parts)
        self.oov_counts, self.unknown_examples = result.oov_counts, result.unknown_examples
        return result

    def transform_stream(self, source: Any, part: str | None = None) -> Iterator[TabularArrays]:
        """[`~TabularFeatureProcessor.transform`] block by block."""
        special = self._special()
        if not isinstance(source, TableSource):
            found = column_names(source, self.reading)
            wanted = ["label", "group", "time", "weight"] if found is not None else []
            special |= {name: special[name] if special[name] in found else None for name in wanted}
            if found is not None and special["label"] is None:
                special["extra_labels"] = None
        wanted = {special[name] for name in ("label", "group", "time", "weight")} | set(special["extra_labels"] or ())
        wanted |= set(self.input_columns())
        columns = {name: kind for name, kind in self.all_columns().items() if name in wanted}
        for rows in rows_of(source, columns, part, self.reading):
            yield self.transform_rows(rows, special)

    def transform_rows(self, rows: Rows, special: dict[str, Any] | None = None) -> TabularArrays:
        """The arrays of one block of rows."""
        self._require_fitted()
        return transform_rows(self.fields, self.state, rows, special or self._special())

    def __call__(
        self, rows: Any, return_tensors: str | TensorType | None = "pt", return_labels: bool = False
    ) -> BatchFeature:
        """Rows to score as a model's inputs, by the same code as [`~TabularFeatureProcessor.transform`].

        Args:
            rows: list of dicts, dict of columns, pyarrow Table or RecordBatch. Other columns than the fields' are ignored.
            return_tensors: "pt", "np" or None (numpy).
            return_labels: add `labels` from the label column.

        Returns:
            `input_ids` (B, F) int32, `numeric_values` (B, Nn) float32, `sequence_ids` (B, S, L) int32, `sequence_times` and
            `sequence_weights` (B, S, L) float32, without those that have no field.

        Raises:
            ValueError: no rows, a missing column, a value that does not fit its field; names column and row.
        """
        self._require_fitted()
        if isinstance(rows, Mapping) and rows and not any(map(is_column, rows.values())):
            raise ValueError("rows: got one dict of single values; pass a list of rows ([row]), or a dict of columns.")
        if return_labels and self.label is None:
            raise ValueError("return_labels=True: this processor has no label column.")
        arrays = self._arrays_of(rows, self.fields, None if return_labels else self._few_rows, return_labels)
        self.oov_counts, self.unknown_examples = arrays.oov_counts, arrays.unknown_examples
        keys = [key for key in (*self.model_input_names, "labels") if key in arrays]
        return BatchFeature({key: arrays[key] for key in keys}, tensor_type=return_tensors)

    def _arrays_of(
        self, rows: Any, fields: Sequence[Field], few: FewRows | None, labels: bool = False
    ) -> TabularArrays:
        """Some fields of rows to score: by their reader of few rows where it is given and can, else through columns."""
        arrays = few(rows) if few is not None and isinstance(rows, list) else None
        if arrays is None:
            read = {name for field in fields for name in self._columns_of(field)}
            columns = {name: kind for name, kind in self.input_columns().items() if name in read}
            if labels:
                columns |= dict.fromkeys(self.label_columns, "number")
            special = self._special(
                group=None, weight=None, **({} if labels else {"label": None, "extra_labels": None})
            )
            arrays = concatenate(
                transform_rows(fields, self.state, block, special, inputs_only=not labels)
                for block in rows_of(rows, columns, reading=self.reading)
            )
        return arrays

    @cached_property
    def _few_rows(self) -> FewRows:
        return FewRows(self.fields, self.state)

    def of_candidates(
        self, shared: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]]
    ) -> tuple[BatchFeature, dict[str, np.ndarray]]:
        """Rows that have some columns in common, as a model's inputs: fields of these columns are read once.

        Args:
            shared: the columns that all rows share. candidates: the other columns of each row (C).

        Returns:
            What `__call__` gives for the joined rows, and by input a bool array that says which of its fields are shared.

        Raises:
            ValueError: a column in both, and what `__call__` raises; starts with "shared" or "candidates".
        """
        self._require_fitted()
        check_kind(shared, Mapping, "shared")
        check_list(candidates, "candidates", "dicts of columns")
        for place, candidate in enumerate(candidates):
            check_kind(candidate, Mapping, f"candidates[{place}]")
            both = shared.keys() & candidate.keys()
            if both:
                raise ValueError(f"candidates[{place}]: the column {min(both)!r} is shared too; give it in one place")
        sides, beside, masks = self._parted(shared)
        joined = [{**beside, **candidate} for candidate in candidates] if beside else list(candidates)
        parts = []
        for where, rows, (fields, few) in zip(("shared", "candidates"), ([dict(shared)], joined), sides):
            with errors_of(where):
                parts.append(self._arrays_of(rows, fields, few) if fields else TabularArrays({}, {}))
        self.oov_counts = parts[0].oov_counts | parts[1].oov_counts
        self.unknown_examples = parts[0].unknown_examples | parts[1].unknown_examples
        inputs = {name: _side_by_side(parts, name, own, len(candidates)) for name, own in masks.items()}
        for name in ("sequence_times", "sequence_weights"):
            if any(name in part for part in parts):
                for part in parts:  # of lists without: no time, a weight of one for each entry
                    if name not in part and "sequence_ids" in part:
                        there = (part["sequence_ids"] > 0) * (name == "sequence_weights")
                        part[name] = there.astype(np.float32)
                inputs[name] = _side_by_side(parts, name, masks["sequence_ids"], len(candidates))
        return BatchFeature(inputs, tensor_type="pt"), dict(masks)

    def _parted(self, shared: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any], dict[str, np.ndarray]]:
        """For some shared columns: the fields that read nothing else and the others, each with their reader; what the others read
        of them; and by input which of its fields are shared."""
        key = self._input_names.intersection(shared)
        found = self._parts.get(key)
        if found is None:
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            ours = [field for field in self.fields if key.issuperset(self._columns_of(field))]
            rest = [field for field in self.fields if field not in ours]
            kinds = (("input_ids", "id"), ("numeric_values", "value"), ("sequence_ids", "list"))
            masks = {name: [field in ours for field in self.fields if field.kind == kind] for name, kind in kinds}
            found = self._parts[key] = (
                [(own, self._few_rows.of(own)) for own in (ours, rest)],
                sorted(key.intersection(name for field in rest for name in self._columns_of(field))),
                {name: np.array(own) for name, own in masks.items() if own},
            )
        sides, read, masks = found
        return sides, {name: shared[name] for name in read}, masks

    @cached_property
    def _parts(self) -> dict[frozenset[str], Any]:
        """What [`_parted`] keeps, by the shared columns."""
        return {}

    @cached_property
    def _input_names(self) -> frozenset[str]:
        return frozenset(self.input_columns())

    def _columns_of(self, field: Field) -> list[str]:
        """The columns that a field's values depend on."""
        times = [self.time] if field.time_column and self.time is not None else []
        return [name for part in field.parts or (field,) for name in part.columns()] + times

    # what the model needs to know

    def vocab_size(self, name: str) -> int:
        """Number of ids of a field that has ids: padding and unknown included."""
        self._require_fitted()
        field = self._field(name, [field for field in self.fields if field.kind != "value"], "fields with ids")
        if field.transform == "quantile":
            return field.first_id + len(self.state.bounds[name]) + 1
        if field.hash_buckets is not None:
            return field.first_id + field.hash_buckets
        return self.state.vocabularies[field.share_with or name].size

    @staticmethod
    def _field(name: str, accepted: Sequence[Field], where: str) -> Field:
        found = {field.name: field for field in accepted}
        refuse_unknown([name], found, where)
        return found[name]

    def lookup(self, name: str, values: Sequence[Any]) -> np.ndarray:
        """(N,) int32 ids of values of a field, 1 where unknown; for tables of pre-trained vectors and the like."""
        self._require_fitted()
        field = self._field(name, [field for field in self.fields if field.type != "numeric"], "fields")
        plain = Field(
            name, "categorical", hash_buckets=field.hash_buckets, share_with=field.share_with, missing=field.missing
        )
        blocks = rows_of({name: values}, {name: "text"})
        parts = [transform_rows([plain], self.state, rows, self._special(), inputs_only=True) for rows in blocks]
        return concatenate(parts)["input_ids"][:, 0]

    def model_config_values(self, embedding_dim: int = 16) -> dict[str, Any]:
        """The keys of a `TabularCTRConfig` that the data decide.

        Args:
            embedding_dim: width of fields without one, when some field has one and the processor no default of its own.

        Returns:
            `vocab_sizes`, `num_numeric`, `field_names`, `num_sequences`, `sequence_tables`, `sequence_vocab_sizes`,
            `processor_fingerprint`; `embedding_dim` when it is given per field or for the processor; `task_names` with several labels.
        """
        ids = [field for field in self.fields if field.kind == "id"]
        lists = [field for field in self.fields if field.kind == "list"]
        tables, _ = sequence_tables(lists, {field.name: place for place, field in enumerate(ids)}, len(ids))
        sizes = [self.vocab_size(name) for name in self.vocabulary_fields()]
        values: dict[str, Any] = {
            "vocab_sizes": sizes[: len(ids)],
            "num_numeric": sum(field.kind == "value" for field in self.fields),
            "field_names": self.field_names,
            "num_sequences": len(lists),
            "sequence_tables": tables,
            "sequence_vocab_sizes": sizes[len(ids) :],
            "processor_fingerprint": self.fingerprint,
        }
        if self.extra_labels:
            values["task_names"] = list(self.tasks)
        owners = {field.name: field for field in self.fields}
        widths = [owners[field.share_with or field.name].embedding_dim for field in self.ordered_fields()]
        if any(width is not None for width in widths):
            values["embedding_dim"] = [width or self.embedding_dim or embedding_dim for width in widths]
        elif self.embedding_dim is not None:
            values["embedding_dim"] = self.embedding_dim
        return values

    @cached_property
    def fingerprint(self) -> str:
        """Hex string over the fields and everything that was fitted; equal for processors that give equal arrays."""
        self._require_fitted()
        fields = [_without(field.to_dict(), ("max_unknown", "max_idle")) for field in self.fields]
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
        if self.state.value_types:
            digest.update(json.dumps(self.state.value_types, sort_keys=True).encode())
        for name in sorted(self.state.vocabularies):
            vocabulary = self.state.vocabularies[name]
            digest.update(f"{name} {vocabulary.first_id} {len(vocabulary)}".encode())
            digest.update(vocabulary.digest())
        for name in sorted(self.state.bounds):
            digest.update(name.encode() + self.state.bounds[name].astype("<f8").tobytes())
        for name in sorted(self.state.moments):
            digest.update(name.encode() + np.array(self.state.moments[name], dtype="<f8").tobytes())
        return digest.hexdigest()[:32]

    # unknown values

    def usual_unknown(self, name: str) -> float | None:
        """Share of unknown values of a field in the validation part, else in the training part; None where nobody counted."""
        shares = self.statistics.get("unknown", {})
        return shares.get("validation", {}).get(name, shares.get("train", {}).get(name))

    def unknown_limit(self, name: str) -> float | None:
        """`max_unknown` of a field."""
        return self._field(name, self.fields, "fields").max_unknown

    def num_known(self, name: str) -> int:
        """Values in the vocabulary that a field reads."""
        field = self._field(name, self.fields, "fields")
        known = self.state.vocabularies.get(field.share_with or name)
        return 0 if known is None else len(known)

    def keep_unknown_of(self, earlier: TabularFeatureProcessor) -> None:
        """Keeps the shares of a processor that was fitted without the validation part in place of its own, which knows all values there."""
        self.statistics["unknown"] = earlier.statistics.get("unknown", {})

    def keep_unknown(self, shares: Mapping[str, Mapping[str, float]]) -> None:
        """Keeps the shares of unknown values by part and field, unless there are some already."""
        kept = {part: {name: own[name] for name in own if name in self.value_types} for part, own in shares.items()}
        self.statistics.setdefault("unknown", {part: own for part, own in kept.items() if own and part != "test"})

    # saving and loading

    def _settings(self) -> dict[str, Any]:
        values = super()._settings() | {"fields": [field.to_dict() for field in self.fields]}
        reader = values.pop("statistics_reader")
        return values if reader is None else values | {"statistics_reader": reader.to_dict()}

    def _write_side(self, directory: str | os.PathLike) -> list[str]:
        return write_state(self.state, directory)

    def _read_side(self, place: str | os.PathLike, hub: Mapping[str, Any]) -> None:
        self._read_state(place, hub)
        self._check_state(str(place))

    def _read_state(self, place: str | os.PathLike, hub: Mapping[str, Any], prefix: str = "") -> None:
        first_ids = {field.name: field.first_id for field in self.fields}
        self._set_state(read_state(place, first_ids, self.statistics, prefix, **hub))

    def _check_state(self, where: str) -> None:
        for field in self.fields:
            needed = {"quantile": self.state.bounds, "standardize": self.state.moments}.get(field.transform)
            if field.type != "numeric":
                needed = self.state.vocabularies if field.hash_buckets is None else None
            if needed is not None and (field.share_with or field.name) not in needed:
                raise ValueError(
                    f"{where}: the side files ({', '.join(SIDE_FILES)}) hold nothing for the field {field.name!r}; they do not "
                    "belong to this preprocessor_config.json."
                )
            if field.is_typed and field.name not in self.state.value_types:
                raise ValueError(
                    f"{where}: `statistics` of preprocessor_config.json has no value type of the field {field.name!r}; fit anew."
                )


def _without(field: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in field.items() if key not in keys}


def column_names(source: Any, reading: Mapping[str, Any] | None = None) -> list[str] | None:
    """Names of a source's columns, None when only reading would tell; `reading` as in [`rows_of`]."""
    if isinstance(source, Rows):
        return source.table.schema.names
    if isinstance(source, (str, os.PathLike)):
        return names_in_file(source, **(reading or {}))
    if isinstance(source, Mapping):
        return list(source)
    if isinstance(source, Sequence) and source and isinstance(source[0], Mapping):
        return list(source[0])
    names = getattr(source, "column_names", None)
    if names is None and hasattr(source, "schema") and not callable(source.schema.names):  # as that of polars is
        names = source.schema.names
    if names is None and hasattr(source, "columns") and not callable(source.columns):
        names = [str(name) for name in source.columns]
    return None if names is None else list(names)


def _side_by_side(parts: Sequence[TabularArrays], name: str, is_shared: np.ndarray, count: int) -> np.ndarray:
    """(C, n, ...) an input of C rows from the one row of the shared fields and the rows of the others."""
    found = [part.get(name) for part in parts]
    there = [own for own in found if own is not None]
    width = () if there[0].ndim == 2 else (max(own.shape[2] for own in there),)
    result = np.zeros((count, len(is_shared), *width), dtype=there[0].dtype)
    for own, mask in zip(found, (is_shared, ~is_shared)):
        if own is not None:
            result[(slice(None), np.flatnonzero(mask), *(slice(size) for size in own.shape[2:]))] = own
    return result
