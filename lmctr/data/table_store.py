"""Processed tables on disk: arrays that are memory-mapped, so that training reads shuffled rows of tables of any size.

A store is a folder: `store.json` and one `.npy` file per array, with the fitted processor in `processor/`. It is written under another
name and renamed when it is complete, so a build that was interrupted is never taken for a finished one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import uuid
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lmctr.utils.files import read_json, write_json

from .features import TabularFeatureProcessor
from .features_transform import add_counts
from .log import DatasetInfo
from .splits import PARTS, Splits
from .tabular_source import TableSource, watched

__all__ = ["TabularStore"]

STORE_FILE = "store.json"
FORMAT_VERSION = 1
ARRAYS = (
    "input_ids",
    "numeric_values",
    "sequence_ids",
    "sequence_times",
    "labels",
    "groups",
    "times",
    "weight",
    "split",
)


class TabularStore:
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
            integers. sequence_times: (S, N, L) float32. labels: (S,) float32. groups: (S,) int64. times: (S,) int64 unix seconds.
            weight: (S,) float32. split: (S,) int8, 0 train, 1 validation, 2 test, -1 none. Each is None where it does not apply.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        processor: TabularFeatureProcessor | None = None,
        info: DatasetInfo | None = None,
        statistics: dict[str, Any] | None = None,
        directory: Path | None = None,
    ) -> None:
        unknown = sorted(set(arrays) - set(ARRAYS))
        if unknown:
            raise ValueError(f"TabularStore: unknown arrays {unknown}; known: {', '.join(ARRAYS)}.")
        inputs = [name for name in ("input_ids", "numeric_values", "sequence_ids") if name in arrays]
        if not inputs:
            raise ValueError("TabularStore: needs input_ids, numeric_values or sequence_ids.")
        lengths = {name: len(values) for name, values in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"TabularStore: the arrays differ in length: {lengths}.")
        for name, width in {"input_ids": 2, "numeric_values": 2, "sequence_ids": 3, "sequence_times": 3}.items():
            if name in arrays and arrays[name].ndim != width:
                raise ValueError(f"TabularStore: {name} has the shape {arrays[name].shape}; expected {width} axes.")
        for name in ARRAYS:
            values = arrays.get(name)
            setattr(self, name, None if values is None else np.asarray(values))
        if self.split is None:
            self.split = np.zeros(lengths[inputs[0]], dtype=np.int8)
        self.processor, self.info = processor, info or DatasetInfo()
        self.statistics, self.directory = statistics or {}, directory

    def __len__(self) -> int:
        return len(self.split)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {len(rows):,}" for name, rows in self.splits.items())
        return f"TabularStore({self.info.name!r}, {len(self):,} rows: {parts})"

    def __reduce__(self) -> tuple:
        """A worker process opens the files again; the arrays do not travel."""
        if self.directory is not None:
            return TabularStore.load, (self.directory,)
        return TabularStore, (self._arrays(), self.processor, self.info, self.statistics)

    def _arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}

    @property
    def num_rows(self) -> int:
        """S."""
        return len(self)

    @cached_property
    def splits(self) -> Splits:
        """Row numbers (int64) of each part."""
        return Splits(*(np.flatnonzero(self.split == code) for code in range(len(PARTS))), rule="given")

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
        if processor is None:
            processor = TabularFeatureProcessor(**processor_arguments(source))
        target = None
        if directory is not None:
            target = Path(directory) / f"{_safe(source.info.name)}-{store_key(source, processor)}"
            if not rebuild and (target / STORE_FILE).is_file():
                return cls.load(target)
        if not processor.is_fitted:
            processor.fit(source, progress=progress)
        if target is None:
            return _fill(_MemoryWriter(), source, processor, progress)
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        unfinished = target.with_name(f"{target.name}.{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}.tmp")
        unfinished.mkdir()
        writer = _FileWriter(unfinished)
        try:
            store = _fill(writer, source, processor, progress)
            processor.save_pretrained(unfinished / "processor")
            header = {"format_version": FORMAT_VERSION, "num_rows": len(store), "arrays": sorted(store._arrays())}
            header |= {"info": store.info.to_dict(), "statistics": store.statistics}
            write_json(unfinished / STORE_FILE, header)
            if rebuild and target.exists():
                shutil.rmtree(target)
            try:
                unfinished.rename(target)
            except OSError:
                if not (target / STORE_FILE).is_file():  # else another process finished the same store first
                    raise
        finally:
            writer.close()
            shutil.rmtree(unfinished, ignore_errors=True)
        return cls.load(target)

    @classmethod
    def load(cls, directory: str | os.PathLike, mmap: bool = True) -> TabularStore:
        """Opens a store; with `mmap` its arrays stay on disk until they are read.

        Raises:
            FileNotFoundError: no finished store in the folder.
            ValueError: a file is damaged, or of another version.
        """
        directory = Path(directory)
        if not (directory / STORE_FILE).is_file():
            raise FileNotFoundError(f"{directory}: no {STORE_FILE}; this is no finished store.")
        header = read_json(directory / STORE_FILE)
        if header.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"{directory / STORE_FILE}: format_version {header.get('format_version')!r}; this version of lmctr reads "
                f"{FORMAT_VERSION}. Build the store again."
            )
        arrays = {}
        for name in header["arrays"]:
            path = directory / f"{name}.npy"
            try:
                arrays[name] = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
            except (OSError, ValueError) as error:
                raise ValueError(f"{path}: cannot be read ({error}); build the store again.") from error
            if len(arrays[name]) != header["num_rows"]:
                raise ValueError(
                    f"{path}: {len(arrays[name])} rows, expected {header['num_rows']}; build the store again."
                )
        return cls(
            arrays,
            TabularFeatureProcessor.from_pretrained(directory / "processor"),
            DatasetInfo.from_dict(header["info"]),
            header["statistics"],
            directory,
        )


def processor_arguments(source: TableSource) -> dict[str, Any]:
    """Arguments of a processor for the source's own fields and columns."""
    names = ("label", "group", "time", "time_format", "weight")
    return {"fields": source.fields} | {name: getattr(source, name) for name in names}


def store_key(source: TableSource, processor: TabularFeatureProcessor) -> str:
    """Hex string that changes with the content of the source, its split and the processor."""
    settings = {key: value for key, value in processor.to_dict().items() if key != "statistics"}
    fitted = processor.fingerprint if processor.is_fitted else None
    text = json.dumps([FORMAT_VERSION, source.fingerprint, settings, fitted], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name) or "table"


def _remove_abandoned(target: Path) -> None:
    """Removes what interrupted builds of this machine left, those of running processes not."""
    for path in target.parent.glob(f"{target.name}.{socket.gethostname()}-*.tmp"):
        pid = path.name.removesuffix(".tmp").split("-")[-2]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except (ValueError, PermissionError):
            continue


def _fill(writer: Any, source: TableSource, processor: TabularFeatureProcessor, progress: bool) -> TabularStore:
    config = processor.model_config_values()
    sizes = {"input_ids": max(config["vocab_sizes"], default=1)}
    lists = [field.name for field in processor.ordered_fields() if field.kind == "list"]
    sizes["sequence_ids"] = max((processor.vocab_size(name) for name in lists), default=1)
    dtypes = {
        name: next(t for t in (np.int8, np.int16, np.int32) if size - 1 <= np.iinfo(t).max)
        for name, size in sizes.items()
    }
    counts: dict[int, list] = {}
    rows_of_part = np.zeros(len(PARTS) + 1, dtype=np.int64)
    positives = np.zeros(len(PARTS) + 1, dtype=np.int64)
    for rows in watched(source.rows(processor.all_columns()), f"transforming {source.info.name}", progress):
        arrays = processor.transform_rows(rows)
        split = np.zeros(len(rows), dtype=np.int8) if rows.split is None else rows.split.astype(np.int8)
        for name, values in arrays.items():
            writer.write(name, values.astype(dtypes.get(name, values.dtype), copy=False))
        writer.write("split", split)
        rows_of_part += np.bincount(split + 1, minlength=len(PARTS) + 1)
        if "labels" in arrays:
            positives += np.bincount(split + 1, arrays["labels"], minlength=len(PARTS) + 1).astype(np.int64)
        part = int(split[0]) if (split == split[0]).all() else -1
        counts[part] = [add_counts([*counts.get(part, []), arrays.oov_counts])]
    statistics: dict[str, Any] = {}
    for code, name in enumerate(PARTS):
        statistics[name] = {"rows": int(rows_of_part[code + 1])}
        if processor.label is not None and rows_of_part[code + 1]:
            statistics[name]["positive_rate"] = float(positives[code + 1] / rows_of_part[code + 1])
        if code in counts:
            statistics[name]["values"] = counts[code][0]
    if -1 in counts:
        statistics["values"] = counts[-1][0]
    return TabularStore(writer.finish(), processor, source.info, statistics)


class _MemoryWriter:
    def __init__(self) -> None:
        self._parts: dict[str, list[np.ndarray]] = {}

    def write(self, name: str, values: np.ndarray) -> None:
        self._parts.setdefault(name, []).append(values)

    def finish(self) -> dict[str, np.ndarray]:
        return {name: np.concatenate(parts) for name, parts in self._parts.items()}


class _FileWriter:
    """Appends rows to .npy files; the number of rows goes into the headers at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}
        self._shapes: dict[str, list[int]] = {}
        self._dtypes: dict[str, np.dtype] = {}

    def write(self, name: str, values: np.ndarray) -> None:
        if name not in self._files:
            self._files[name] = open(self._directory / f"{name}.npy", "wb")  # noqa: SIM115 - stays open for many calls
            self._shapes[name], self._dtypes[name] = [0, *values.shape[1:]], values.dtype
            self._header(name)
        self._files[name].write(np.ascontiguousarray(values).data)
        self._shapes[name][0] += len(values)

    def _header(self, name: str) -> None:
        # numpy leaves room for a first axis of 21 digits, so the header keeps its length
        dtype, shape = np.lib.format.dtype_to_descr(self._dtypes[name]), tuple(self._shapes[name])
        np.lib.format.write_array_header_1_0(
            self._files[name], {"descr": dtype, "fortran_order": False, "shape": shape}
        )

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def finish(self) -> dict[str, np.ndarray]:
        for name, file in self._files.items():
            file.flush()
            start = file.tell()
            file.seek(0)
            self._header(name)
            assert start - file.tell() == np.prod(self._shapes[name]) * self._dtypes[name].itemsize
        self.close()
        return {name: np.load(self._directory / f"{name}.npy", mmap_mode="r") for name in self._files}
