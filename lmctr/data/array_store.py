"""Arrays on disk: what the stores of tables and of impressions share.

A store is a folder: a header and one `.npy` file per array, with the fitted processor in `processor/`. It is written under another name and
renamed when it is complete, so a build that was interrupted is never taken for a finished one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from abc import ABC, abstractmethod
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from lmctr.data import hf_datasets
from lmctr.data.logs.log import DatasetInfo
from lmctr.data.logs.splits import PARTS, Splits
from lmctr.utils.files import read_json, whole_folder, write_json

_LONGEST_NAME = 50  # characters of the data's in that of a folder


class ArrayStore(ABC):
    """Named arrays of processed data, with the processor that made them.

    Args:
        arrays: by names in `array_names`; arrays that do not apply are left out, and are None as attributes. Without `split` all rows are
            for training.
        processor: the fitted processor, or None.
        info: origin and licence of the data.
        statistics: what building counted.
        directory: the folder that it was read from, or None.

    Attributes:
        array_names: the arrays that a store may have.
        header_file, format_version: the header, and the version of the format.
        processor_class: of the processor.
        kind: a store in words, for messages.
    """

    array_names: ClassVar[tuple[str, ...]]
    header_file: ClassVar[str]
    format_version: ClassVar[int]
    processor_class: ClassVar[type[Any]]
    kind: ClassVar[str]

    split: np.ndarray

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        processor: Any = None,
        info: DatasetInfo | None = None,
        statistics: dict[str, Any] | None = None,
        directory: Path | None = None,
    ) -> None:
        unknown = sorted(set(arrays) - set(self.array_names))
        if unknown:
            raise ValueError(f"{type(self).__name__}: unknown arrays {unknown}; known: {', '.join(self.array_names)}.")
        num_rows = self._check(arrays)
        for name in self.array_names:
            values = arrays.get(name)
            setattr(self, name, None if values is None else np.asarray(values))
        if self.split is None:
            self.split = np.zeros(num_rows, dtype=np.int8)
        self.processor, self.info = processor, info or DatasetInfo()
        self.statistics, self.directory = statistics or {}, directory

    def __len__(self) -> int:
        return len(self.split)

    def __repr__(self) -> str:
        sizes = reversed([f"{count:,} {name.removeprefix('num_')}" for name, count in self._sizes().items()])
        parts = ", ".join(f"{name} {len(rows):,}" for name, rows in self.splits.items())
        return f"{type(self).__name__}({self.info.name!r}, {', '.join(sizes)}: {parts})"

    def __reduce__(self) -> tuple:
        """A worker process opens the files again; the arrays do not travel."""
        if self.directory is not None:
            return type(self).load, (self.directory,)
        return type(self), (self._arrays(), self.processor, self.info, self.statistics)

    def _arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in self.array_names if getattr(self, name) is not None}

    @cached_property
    def splits(self) -> Splits:
        """Row numbers (int64) of each part."""
        return Splits(*(np.flatnonzero(self.split == code) for code in range(len(PARTS))), rule="given")

    inner_arrays: ClassVar[tuple[str, ...]] = ()
    """Arrays with several rows for each of the store's, `counts` of them."""

    def to_dataset(self) -> Any:
        """The arrays as a `datasets.Dataset` with a row for each of the store's: what a model reads, its label and its part (`split`)."""
        return hf_datasets.arrays_to(self._arrays(), self.inner_arrays, getattr(self, "counts", None))

    @classmethod
    def from_dataset(cls, data: Any, processor: Any = None, info: DatasetInfo | None = None) -> Self:
        """Inverse of [`to_dataset`], in memory.

        Args:
            data: a `datasets.Dataset` with columns that are arrays of the store. processor: the one that made them. info: of the data.

        Raises:
            ValueError: unknown or missing columns, missing values.
        """
        return cls(hf_datasets.arrays_from(data, cls.array_names, cls.inner_arrays), processor, info)

    # what a store says of itself

    @abstractmethod
    def _check(self, arrays: dict[str, np.ndarray]) -> int:
        """The number of rows. Raises `ValueError` for arrays that are missing or do not fit each other."""

    @abstractmethod
    def _sizes(self) -> dict[str, int]:
        """The numbers of rows that the header keeps, the store's own rows last."""

    @classmethod
    @abstractmethod
    def _length(cls, name: str, header: dict[str, Any]) -> int:
        """Rows of an array, by the header."""

    @classmethod
    @abstractmethod
    def _fill(cls, writer: Any, source: Any, processor: Any, **options: Any) -> Self:
        """Transform the source with a fitted processor, block by block, into the writer."""

    # building

    @classmethod
    def key(cls, source: Any, processor: Any) -> str:
        """Hex string that changes with the content of the source, its parts and the processor."""
        settings = {key: value for key, value in processor.to_dict().items() if key != "statistics"}
        fitted = processor.fingerprint if processor.is_fitted else None
        text = json.dumps([cls.format_version, source.fingerprint, settings, fitted], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def _build(
        cls, source: Any, processor: Any, directory: str | os.PathLike | None, rebuild: bool, **options: Any
    ) -> Self:
        """`build` of a store; `options` go to the processor's `fit` and to `_fill`."""
        target = None
        if directory is not None:
            name = re.sub(r"[^\w.-]", "-", source.info.name)[:_LONGEST_NAME] or "table"
            target = Path(directory) / f"{name}-{cls.key(source, processor)}"
            if not rebuild and (target / cls.header_file).is_file():
                return cls.load(target)
        if not processor.is_fitted:
            processor.fit(source, **options)
        if target is None:
            return cls._fill(MemoryWriter(), source, processor, **options)
        with whole_folder(target) as made, closing(FileWriter(made)) as writer:
            store = cls._fill(writer, source, processor, **options)
            processor.save_pretrained(made / "processor")
            header = {"format_version": cls.format_version, "arrays": sorted(store._arrays()), **store._sizes()}
            header |= {"info": store.info.to_dict(), "statistics": store.statistics}
            write_json(made / cls.header_file, header)
            if rebuild and target.exists():
                shutil.rmtree(target)
        return cls.load(target)

    @classmethod
    def load(cls, directory: str | os.PathLike, mmap: bool = True) -> Self:
        """Opens a store; with `mmap` its arrays stay on disk until they are read.

        Raises:
            FileNotFoundError: no finished store in the folder.
            ValueError: a file is damaged, or of another version.
        """
        directory = Path(directory)
        if not (directory / cls.header_file).is_file():
            raise FileNotFoundError(f"{directory}: no {cls.header_file}; this is no finished {cls.kind}.")
        header = read_json(directory / cls.header_file)
        if header.get("format_version") != cls.format_version:
            raise ValueError(
                f"{directory / cls.header_file}: format_version {header.get('format_version')!r}; this version of lmctr reads "
                f"{cls.format_version}. Build the store again."
            )
        arrays = {}
        for name in header["arrays"]:
            path, wanted = directory / f"{name}.npy", cls._length(name, header)
            try:
                arrays[name] = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
            except (OSError, ValueError) as error:
                if getattr(error, "errno", None) == errno.ENOMEM:  # it may be whole
                    raise
                raise ValueError(f"{path}: cannot be read ({error}); build the store again.") from error
            if len(arrays[name]) != wanted:
                raise ValueError(f"{path}: {len(arrays[name])} rows, expected {wanted}; build the store again.")
        processor = cls.processor_class.from_pretrained(directory / "processor")
        return cls(arrays, processor, DatasetInfo.from_dict(header["info"]), header["statistics"], directory)


def smallest_integer(size: int) -> type[np.signedinteger]:
    """The smallest signed integers that hold ids below `size`."""
    return next(kind for kind in (np.int8, np.int16, np.int32) if size - 1 <= np.iinfo(kind).max)


class MemoryWriter:
    """Keeps rows in memory."""

    def __init__(self) -> None:
        self._parts: dict[str, list[np.ndarray]] = {}

    def write(self, name: str, values: np.ndarray) -> None:
        self._parts.setdefault(name, []).append(values)

    def finish(self) -> dict[str, np.ndarray]:
        return {name: np.concatenate(parts) for name, parts in self._parts.items()}


class FileWriter:
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
