"""Vectors of text fields that were encoded before, so that a catalogue passes the lower half of the layers once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class FieldStore:
    """Vectors of text fields by their tokens; without gradients. Threads may share it.

    Args:
        max_bytes: of the vectors. Where new ones do not fit beside the others, the others go.
    """

    def __init__(self, max_bytes: int = 2**29):
        self.max_bytes, self._version = max_bytes, None
        self._changing = threading.Lock()
        self.clear()

    def __len__(self) -> int:
        return len(self._slots)

    def __reduce__(self) -> tuple:
        return FieldStore, (self.max_bytes,)  # the weights of a copy are others

    def clear(self) -> None:
        """Forget all vectors."""
        self._slots: dict[bytes, int] = {}
        self._vectors: torch.Tensor | None = None

    def __call__(
        self,
        encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        version: Any = None,
    ) -> torch.Tensor:
        """(F, H) vectors of fields; those that are not known are encoded.

        Args:
            encode: gives the vectors (n, H) of fields, without dropout.
            input_ids, attention_mask: (F, n), padded on the right.
            version: of the weights; vectors of another one are forgotten.
        """
        rows, lengths = input_ids.cpu().numpy(), attention_mask.sum(1).tolist()
        keys = [row[:length].tobytes() for row, length in zip(rows, lengths)]
        # Also within a block of inference mode the vectors are plain tensors, which training may take up later.
        with self._changing, torch.inference_mode(False), torch.no_grad():
            if version != self._version:
                self.clear()
                self._version = version
            new = {key: number for number, key in enumerate(keys) if key not in self._slots}
            if new and self._vectors is not None:
                size = self._vectors[0].numel() * self._vectors.element_size()
                if (len(self) + len(new)) * size > self.max_bytes:
                    self.clear()
                    new = {key: number for number, key in enumerate(keys)}
            if new:
                chosen = torch.tensor(list(new.values()), device=input_ids.device)
                self._add(list(new), encode(input_ids[chosen].clone(), attention_mask[chosen].clone()))
            places = torch.tensor([self._slots[key] for key in keys], device=input_ids.device)
            return self._vectors[places]

    def refreshed(
        self, encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], version: Any, device: torch.device
    ) -> tuple[list[np.ndarray], torch.Tensor]:
        """The token ids of all fields, and their vectors (F, H), encoded again where they are of another version."""
        texts = [np.frombuffer(key, dtype=np.int64) for key in self._slots]
        if version != self._version:
            mask = torch.arange(max(map(len, texts))) < torch.tensor([len(text) for text in texts])[:, None]
            ids = torch.zeros(mask.shape, dtype=torch.int64)
            ids[mask] = torch.from_numpy(np.concatenate(texts))
            self(encode, ids.to(device), mask.long().to(device), version)
        return texts, self._vectors[: len(texts)]

    def fill(self, texts: list[np.ndarray], vectors: torch.Tensor, version: Any) -> None:
        """Hold these fields, as [`refreshed`] gives them, and no others."""
        with self._changing:
            self.clear()
            self._version = version
            if texts:
                self._add([text.tobytes() for text in texts], vectors)

    def move(self, before: Any, after: Any, device: torch.device, dtype: torch.dtype) -> None:
        """Hold the vectors of one version of the weights as those of another, of which nothing but place and precision differ."""
        with self._changing:
            if self._version == before:
                self._version = after
            if self._vectors is not None:
                self._vectors = self._vectors.to(device, dtype)

    def _add(self, keys: list[bytes], made: torch.Tensor) -> None:
        count = len(self._slots)
        if self._vectors is None or count + len(keys) > len(self._vectors):
            grown = made.new_empty(max(count + len(keys), 2 * count), made.shape[1])
            if count:
                grown[:count] = self._vectors[:count]
            self._vectors = grown
        self._vectors[count : count + len(keys)] = made
        self._slots.update({key: count + number for number, key in enumerate(keys)})
