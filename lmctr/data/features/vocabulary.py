"""Vocabularies of tabular fields: counting with bounded overhead, and look-up without a Python loop over values."""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .fields import FIRST_ID, OOV_ID

_K1, _K2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_64_BITS = (1 << 64) - 1
_PENDING = 1 << 18  # values that wait for the next merge, at least


def hash_strings(values: pa.Array) -> np.ndarray:
    """A stable 64-bit hash (uint64) of each string's UTF-8 bytes, the same on every machine and in every version.

    Eight bytes at a time: h = rotl(h xor word * K1, 31) * K2, then the length and the finaliser of SplitMix64.

    Args:
        values: (N,) string or large_string array without nulls.
    """
    count = len(values)
    if count == 0:
        return np.zeros(0, dtype=np.uint64)
    lengths, data = _bytes_of(values.cast(pa.large_string()))
    padded = np.append(data, np.zeros(8, dtype=np.uint8))
    words = np.ndarray((len(data) + 1,), dtype="<u8", buffer=padded, strides=(1,))  # the word at every byte
    starts = np.cumsum(lengths) - lengths
    result = np.full(count, _K2, dtype=np.uint64)
    active, done = np.arange(count), 0
    while True:
        active = active[lengths[active] > done] if done else np.flatnonzero(lengths > 0)
        if not len(active):
            break
        left = np.minimum(lengths[active] - done, 8).astype(np.uint64)
        mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - np.uint64(8) * left)
        mixed = result[active] ^ ((words[starts[active] + done] & mask) * _K1)
        result[active] = ((mixed << np.uint64(31)) | (mixed >> np.uint64(33))) * _K2
        done += 8
    result ^= lengths.astype(np.uint64)
    result = (result ^ (result >> np.uint64(30))) * _MIX1
    result = (result ^ (result >> np.uint64(27))) * _MIX2
    return result ^ (result >> np.uint64(31))


def hash_string(text: str) -> int:
    """[`hash_strings`] of one string, without the cost of arrays."""
    data, result = text.encode(), int(_K2)
    for start in range(0, len(data), 8):
        mixed = result ^ (int.from_bytes(data[start : start + 8], "little") * int(_K1) & _64_BITS)
        result = ((mixed << 31 | mixed >> 33) & _64_BITS) * int(_K2) & _64_BITS
    result ^= len(data)
    result = (result ^ result >> 30) * int(_MIX1) & _64_BITS
    result = (result ^ result >> 27) * int(_MIX2) & _64_BITS
    return result ^ result >> 31


def _bytes_of(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(N,) int64 lengths of large strings in bytes, and the bytes of all of them (uint8)."""
    _, offsets, data = values.buffers()
    offsets = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    data = np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return np.diff(offsets), data[int(offsets[0]) : int(offsets[-1])]


class CountAccumulator:
    """Counts of distinct strings over many batches.

    Batches are kept as (values, counts) until as many wait as are known, then merged, so the work per value stays constant and
    memory is a small multiple of the distinct values.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[pa.Array, np.ndarray]] = []
        self._waiting = self._known = 0

    def add(self, values: pa.Array, counts: np.ndarray) -> None:
        """Adds (N,) large_string values (not unique) with their (N,) counts."""
        if not len(values):
            return
        self._pending.append((values, counts))
        self._waiting += len(values)
        if self._waiting - self._known > max(_PENDING, self._known):
            self._merge()

    def _merge(self) -> tuple[pa.Array, np.ndarray]:
        if not self._pending:
            return pa.array([], pa.large_string()), np.zeros(0, dtype=np.int64)
        values = pa.concat_arrays([values for values, _ in self._pending])
        counts = np.concatenate([counts for _, counts in self._pending])
        self._pending.clear()
        encoded = values.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        merged = encoded.dictionary, np.bincount(codes, counts, minlength=len(encoded.dictionary)).astype(np.int64)
        self._pending.append(merged)
        self._waiting = self._known = len(merged[0])
        return merged

    def result(self) -> tuple[pa.Array, np.ndarray]:
        """Distinct values and counts, the most frequent first, equally frequent ones in the order of their bytes."""
        values, counts = self._merge()
        keys = pa.table({"count": counts, "value": values})
        order = pc.sort_indices(keys, sort_keys=[("count", "descending"), ("value", "ascending")])
        return values.take(order), counts[order.to_numpy()]


class Vocabulary:
    """Values with an id of their own, in the order of their ids.

    Args:
        values: (V,) distinct strings; the k-th has the id `first_id` + k.
        first_id: 2, or 3 where missing values have the id 2.
        counts: (V,) int64 how often each was seen, or None.
        num_dropped: distinct values that were too rare (or too many) to get an id.
        idle: (V,) int64 in how many extensions in a row each was absent, or None: none was.
    """

    def __init__(
        self,
        values: pa.Array,
        first_id: int = FIRST_ID,
        counts: np.ndarray | None = None,
        num_dropped: int = 0,
        idle: np.ndarray | None = None,
    ) -> None:
        self.values = values.cast(pa.large_string())
        self.first_id, self.counts, self.num_dropped, self.idle = first_id, counts, num_dropped, idle

    @classmethod
    def from_counts(
        cls, counts: CountAccumulator, first_id: int, min_count: int = 1, max_size: int | None = None
    ) -> Vocabulary:
        """The values seen `min_count` times or more, the `max_size` most frequent at most."""
        values, numbers = counts.result()
        kept = int(np.searchsorted(-numbers, -min_count, side="right"))
        kept = kept if max_size is None else min(kept, max_size)
        return cls(values.slice(0, kept), first_id, numbers[:kept], len(values) - kept)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size(self) -> int:
        """Number of ids: padding, unknown and missing ones included."""
        return self.first_id + len(self.values)

    def lookup(self, values: pa.Array) -> np.ndarray:
        """(N,) int32 ids of strings without nulls; 1 for strings that are unknown."""
        if not len(values) or not len(self.values):
            return np.full(len(values), OOV_ID, dtype=np.int32)
        # pyarrow builds its hash table anew in every call: right for small vocabularies, ruinous for large ones
        if len(self.values) <= max(4 * len(values), 256) and "_index" not in self.__dict__:
            found = pc.index_in(values, value_set=self.values)
            return (
                pc.fill_null(pc.add(found, self.first_id), OOV_ID)
                .to_numpy(zero_copy_only=False)
                .astype(np.int32, copy=False)
            )
        found = self._index.find(values)
        known = np.flatnonzero(found >= 0)
        same = pc.equal(self.values.take(pa.array(found[known])), values.take(pa.array(known)))
        found[known[~same.to_numpy(zero_copy_only=False)]] = -1  # another string with an equal hash
        return np.where(found >= 0, found + self.first_id, OOV_ID).astype(np.int32)

    def id_of(self, text: str) -> int:
        """The id of one string, 1 where it is unknown; as [`~Vocabulary.lookup`], without the cost of arrays."""
        place = self._index.find_one(hash_string(text)) if len(self.values) else -1
        return place + self.first_id if place >= 0 and self.values[place].as_py() == text else OOV_ID

    def digest(self) -> bytes:
        """SHA-256 of the values in the order of their ids."""
        digest = hashlib.sha256()
        for start in range(0, len(self.values), _PENDING):
            lengths, data = _bytes_of(self.values.slice(start, _PENDING))
            digest.update(lengths.astype("<i8").tobytes())
            digest.update(data)
        return digest.digest()

    @cached_property
    def _index(self) -> _HashIndex:
        return _HashIndex(self.values)

    def __getstate__(self) -> dict:
        return {key: value for key, value in self.__dict__.items() if key != "_index"}


class _HashIndex:
    """Open addressing on the hashes of distinct strings, built and asked in whole arrays: 16 to 24 bytes per string.

    Two strings with one hash (about one chance in 30,000 at 33 million strings) are both kept; a look-up then finds one of
    them, and `Vocabulary.lookup` takes the other for unknown.
    """

    def __init__(self, values: pa.Array) -> None:
        self._hashes = hash_strings(values)
        self._mask = (1 << int(2 * len(values) - 1).bit_length()) - 1
        self._slots = np.full(self._mask + 1, -1, dtype=np.int32)
        pending = np.arange(len(values), dtype=np.int32)
        slot, step = self._start(self._hashes)
        while len(pending):
            free = self._slots[slot] < 0
            self._slots[slot[free]] = pending[free]  # of several that want a slot the last one gets it
            left = np.flatnonzero(self._slots[slot] != pending)
            pending, step = pending[left], step[left]
            slot = (slot[left] + step) & self._mask

    def _start(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First slot and step to the next (odd, so that every slot is reached)."""
        slot = (hashes & np.uint64(self._mask)).astype(np.int64)
        return slot, ((hashes >> np.uint64(40)) | np.uint64(1)).astype(np.int64)

    def find(self, values: pa.Array) -> np.ndarray:
        """(N,) int64 position of the string with the same hash, -1 for none."""
        hashes = hash_strings(values)
        result = np.full(len(hashes), -1, dtype=np.int64)
        pending = np.arange(len(hashes))
        slot, step = self._start(hashes)
        while len(pending):
            there = self._slots[slot]
            filled = there >= 0
            hit = filled & (self._hashes[np.maximum(there, 0)] == hashes[pending])
            result[pending[hit]] = there[hit]
            left = np.flatnonzero(filled & ~hit)
            pending, step = pending[left], step[left]
            slot = (slot[left] + step) & self._mask
        return result

    def find_one(self, hashed: int) -> int:
        """[`~_HashIndex.find`] of one hash."""
        slot, step = hashed & self._mask, (hashed >> 40) | 1
        while (place := int(self._slots[slot])) >= 0 and int(self._hashes[place]) != hashed:
            slot = (slot + step) & self._mask
        return place
