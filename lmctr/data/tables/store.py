"""Processed tables on disk: arrays that are memory-mapped, so that training reads shuffled rows of tables of any size."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from lmctr.data.array_store import ArrayStore, smallest_integer
from lmctr.data.features.processor import SPECIAL, TabularFeatureProcessor
from lmctr.data.features.transform import add_counts, merged_examples
from lmctr.data.features.unknown import shares_of
from lmctr.data.logs.splits import PARTS

from .source import TableSource, watched

INPUTS = ("input_ids", "numeric_values", "sequence_ids", "sequence_times", "sequence_weights")


class TabularStore(ArrayStore):
    """Arrays of a processed table with S rows.

    Build one with [`~TabularStore.build`], or from arrays in memory.

    Args:
        arrays: by the names below; arrays that do not apply are left out.
        processor: the fitted processor, or None.
        info: origin and licence of the data.
        statistics: rows, and missing and unknown values by field, of each part.
        directory: the folder that it was read from, or None.

    Attributes:
        input_ids: (S, F) ids in the smallest signed integers that hold them. numeric_values: (S, Nn) float32. sequence_ids: (S, N, L)
            integers. sequence_times, sequence_weights: (S, N, L) float32. labels: (S,) float32, (S, T) of several, where -100 is none. groups: (S,) int64. times: (S,) int64 unix seconds.
            weight: (S,) float32. split: (S,) int8, 0 train, 1 validation, 2 test, -1 none. Each is None where it does not apply.
    """

    array_names = (*INPUTS, "labels", "groups", "times", "weight", "split")
    header_file = "store.json"
    format_version = 1
    processor_class = TabularFeatureProcessor
    kind = "store"

    def _check(self, arrays: dict[str, np.ndarray]) -> int:
        inputs = [name for name in ("input_ids", "numeric_values", "sequence_ids") if name in arrays]
        if not inputs:
            raise ValueError("TabularStore: needs input_ids, numeric_values or sequence_ids.")
        lengths = {name: len(values) for name, values in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"TabularStore: the arrays differ in length: {lengths}.")
        for name in INPUTS:
            width = 3 if name.startswith("sequence_") else 2
            if name in arrays and arrays[name].ndim != width:
                raise ValueError(f"TabularStore: {name} has the shape {arrays[name].shape}; expected {width} axes.")
        return lengths[inputs[0]]

    @property
    def num_rows(self) -> int:
        """S."""
        return len(self)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(values.nbytes for values in self._arrays().values())

    # building

    @classmethod
    def build(
        cls,
        source: TableSource,
        processor: TabularFeatureProcessor | None = None,
        directory: str | os.PathLike | None = None,
        *,
        rebuild: bool = False,
        progress: bool = False,
    ) -> TabularStore:
        """Transforms a source, block by block, into a store.

        Args:
            source: the table.
            processor: fitted on the source's training part first, unless it is fitted already. None makes one from the source's own
                fields.
            directory: folder of stores (a cache). A finished store of the same content and processor there is used again.
                None keeps the arrays in memory.
            rebuild: build again even if there is one.
            progress: show progress bars.

        Returns:
            The store; `store.processor` is the fitted processor.

        Raises:
            ValueError: what reading, fitting and transforming raise; a source without rows for training.
        """
        if not isinstance(source, TableSource):
            raise ValueError(
                f"source: expected a TableSource, got {type(source).__name__}; make one by lmctr.data.table_source(data, label=...)"
            )
        if processor is None:
            processor = TabularFeatureProcessor(**processor_arguments(source))
        return cls._build(source, processor, directory, rebuild, progress=progress)

    def _sizes(self) -> dict[str, int]:
        return {"num_rows": len(self)}

    @classmethod
    def _length(cls, name: str, header: dict[str, Any]) -> int:
        return header["num_rows"]

    @classmethod
    def _fill(
        cls, writer: Any, source: TableSource, processor: TabularFeatureProcessor, progress: bool = False
    ) -> TabularStore:
        config = processor.model_config_values()
        sizes = {"input_ids": max(config["vocab_sizes"], default=1)}
        lists = [field.name for field in processor.ordered_fields() if field.kind == "list"]
        sizes["sequence_ids"] = max((processor.vocab_size(name) for name in lists), default=1)
        dtypes = {name: smallest_integer(size) for name, size in sizes.items()}
        counts: dict[int, dict] = {}
        examples: dict[str, list[str]] = {}
        rows_of_part = np.zeros(len(PARTS) + 1, dtype=np.int64)
        positives, labelled = np.zeros_like(rows_of_part), np.zeros_like(rows_of_part)
        for rows in watched(source.rows(processor.all_columns()), f"transforming {source.info.name}", progress):
            arrays = processor.transform_rows(rows)
            split = np.zeros(len(rows), dtype=np.int8) if rows.split is None else rows.split.astype(np.int8)
            for name, values in arrays.items():
                writer.write(name, values.astype(dtypes.get(name, values.dtype), copy=False))
            writer.write("split", split)
            rows_of_part += np.bincount(split + 1, minlength=len(PARTS) + 1)
            if "labels" in arrays:
                first = arrays["labels"].reshape(len(split), -1)[:, 0]
                labelled += np.bincount(split + 1, first >= 0, minlength=len(PARTS) + 1).astype(np.int64)
                positives += np.bincount(split + 1, first > 0, minlength=len(PARTS) + 1).astype(np.int64)
            examples = merged_examples([examples, arrays.unknown_examples])
            parts = arrays.part_counts or {0: arrays.oov_counts}
            counts |= {part: add_counts([counts.get(part, {}), own]) for part, own in parts.items()}
        statistics: dict[str, Any] = {"unknown_examples": examples}
        for code, name in enumerate(PARTS):
            statistics[name] = {"rows": int(rows_of_part[code + 1])}
            if labelled[code + 1]:
                statistics[name]["positive_rate"] = float(positives[code + 1] / labelled[code + 1])
            if code in counts:
                statistics[name]["values"] = counts[code]
        processor.keep_unknown(shares_of({part: statistics[part].get("values", {}) for part in PARTS}))
        return cls(writer.finish(), processor, source.info, statistics)


def processor_arguments(source: TableSource) -> dict[str, Any]:
    """Arguments of a processor for the source's own fields and columns."""
    return {name: getattr(source, name) for name in ("fields", *SPECIAL, "statistics_reader")}
