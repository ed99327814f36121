"""What inputs share whose samples a processor puts into a store of arrays, once for all runs of the same data."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lmctr.data.array_store import ArrayStore
from lmctr.data.features.unknown import check_unknown, shares_of
from lmctr.data.registry import find
from lmctr.runs.inputs import config_keys
from lmctr.runs.inputs.base import ALONE, PARTS, InputKind, RunContext, checksum
from lmctr.utils.files import expanded, read_json, write_json
from lmctr.utils.values import Values

_CHECKED = 1 << 16  # rows
_SHARED_FILE = "store.json"  # tells the other ranks where the store lies


class StoredInput(InputKind):
    """Samples in an [`ArrayStore`], which `check` builds, ranks share and a cache folder keeps.

    Attributes:
        store_class, view_class: of the data.
        features_of_data: the features of a recipe in words, for messages.
        set_by_processor: config keys that follow from the data.
        set_by_processor_hint: what a recipe sets instead.
    """

    store_class: ClassVar[type[ArrayStore]]
    view_class: ClassVar[type[Any]]
    features_of_data: ClassVar[str]
    set_by_processor: ClassVar[tuple[str, ...]]
    set_by_processor_hint: ClassVar[str]

    source: Any = None
    store: Any = None
    both: np.ndarray | None = None  # training rows of a training on both parts
    scratch: Path | None = None

    @classmethod
    def model_keys(cls, family: str) -> type[Values]:
        return config_keys(family, {*cls.set_by_processor, "sparse_embedding_grad"})

    @classmethod
    def set_elsewhere(cls, family: str) -> Mapping[str, str]:
        hints = dict.fromkeys(cls.set_by_processor, cls.set_by_processor_hint)
        return hints | {"sparse_embedding_grad": "set training.embedding_optimizer"}

    @abstractmethod
    def _new_processor(self) -> Any:
        """The processor of the source that is still to be fitted, with the recipe's features."""

    @abstractmethod
    def _check_parts(self, parts: tuple[str, ...]) -> None:
        """Raises ValueError where a part of the store cannot be used."""

    def _options(self, kind: str, *keys: str, says: str) -> dict[str, Any]:
        """Options of what reads data of a kind; it need not take the data keys `keys`, which are then refused with what it `says`."""
        data, known = self.data, find(self.data["name"], kind).options
        given = {key: data[key] for key in ("path", "split", "fractions") if data[key] is not None}
        for key in keys:
            if key in given and key not in known:
                raise ValueError(f"data.{key} is {data[key]!r}, but {data['name']!r} {says}")
        return {**data["options"], **given}

    @property
    def _cache(self) -> Path | None:
        """The folder of stores: the recipe's, so that runs share them, else the run's own."""
        wanted = self.data["cache_dir"]
        if wanted is not None:
            return expanded(wanted)
        return None if self.scratch is None else self.scratch / "stores"

    def check(self) -> list[str]:
        """Fits the processor and fills the store, which is where values are checked; then the parts."""
        if self.store is None:
            self.store = self.store_class.build(self.source, self._new_processor(), self._cache)
        self._check_parts(PARTS)
        return [*self._check_leaks(), *self.unknown_warnings("test")]

    @abstractmethod
    def _check_leaks(self) -> list[str]:
        """Lines about leaks that the recipe allows. Raises ValueError for others."""

    def rows(self, part: str) -> np.ndarray:
        """(S,) row numbers of a part in the store, after the recipe's limit."""
        if part == "train" and self.both is not None:
            return self.both
        return self.limited(self.store.splits[part], part, self._labels_of)

    def _labels_of(self, rows: np.ndarray) -> np.ndarray:
        return self.store.labels[rows]

    def share(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / _SHARED_FILE, {"store": str(self.store.directory.resolve())})

    def load_shared(self, folder: Path) -> None:
        if self.store is None:
            self.store = self.store_class.load(read_json(folder / _SHARED_FILE)["store"])

    def with_validation(self, folder: Path, is_first: bool) -> StoredInput:
        other = copy.copy(self)
        more = self.with_some_negatives(self.rows("validation"), "validation", self._labels_of)
        other.store, other.both = None, np.sort(np.concatenate([self.rows("train"), more]))
        if is_first:
            other.source = self.source.with_validation()
            other.store = self.store_class.build(other.source, other._new_processor(), other._cache)
            other.store.processor.keep_unknown_of(self.store.processor)
            other.share(folder)
        else:
            other.load_shared(folder)
        return other

    def make_processor(self) -> Any:
        return self.store.processor

    def load_processor(self, folder: Path) -> Any:
        return self.store_class.processor_class.from_pretrained(folder)

    def open(self, processor: Any, parts: tuple[str, ...] = PARTS, run: RunContext = ALONE) -> None:
        if self.store is None and run.writes:  # a resumed run: what the run had made, or made again
            self.store = self.store_class.build(self.source, self._new_processor(), self._cache)
        if self.store is None:
            self.store = self._kept_store(processor) or self.store_class.build(self.source, processor, self._cache)
        if self.store.processor.fingerprint != processor.fingerprint:
            raise ValueError(
                f"the processor in {run.folder} has the fingerprint {processor.fingerprint}, the data give one with "
                f"{self.store.processor.fingerprint}: data or {self.features_of_data} changed since; restore them, or train anew"
            )
        self._check_parts(parts)
        self.view = self.view_class(self.store)

    def _kept_store(self, processor: Any) -> ArrayStore | None:
        """The store of the training, where a cache folder still holds it."""
        if self._cache is None or not self._cache.is_dir():
            return None
        for path in self._cache.glob(f"*-{self.store_class.key(self.source, self._new_processor())}"):
            store = self.store_class.load(path)
            if store.processor.fingerprint == processor.fingerprint:
                return store
        return None

    def num_samples(self, part: str) -> int:
        return len(self.rows(part))

    def inputs_checksum(self) -> str:
        """Of all arrays of the store, of large ones of as many rows spread over them as are read in a moment."""
        arrays = [own for name in self.store.array_names if (own := getattr(self.store, name)) is not None]
        places = {size: np.unique(np.linspace(0, size - 1, _CHECKED).astype(np.int64)) for size in map(len, arrays)}
        return checksum(*(own[places[len(own)]] for own in arrays))

    def data_fingerprint(self) -> str:
        return self.inputs_checksum()

    def unknown_counts(self, part: str) -> dict[str, dict[str, int]]:
        return self.store.statistics.get(part, {}).get("values", {})

    def unknown_shares(self) -> dict[str, dict[str, float]]:
        """Share of unknown values by part and field, of the fields that have any."""
        shares = shares_of({part: self.unknown_counts(part) for part in PARTS})
        some = {name for own in shares.values() for name, share in own.items() if share}
        return {part: {name: own[name] for name in own if name in some} for part, own in shares.items()}

    def unknown_warnings(self, part: str, kept: dict[str, Any] | None = None, allowed: bool = True) -> list[str]:
        """What [`~lmctr.data.features.unknown.check_unknown`] says of a part."""
        examples = self.store.statistics.get("unknown_examples", {})
        where = f"the {part} part of {self.store.info.name}"
        return check_unknown(self.store.processor, self.unknown_counts(part), examples, where, allowed)
