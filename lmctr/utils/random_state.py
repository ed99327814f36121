"""What draws at random, left as it was found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept_random_state() -> Iterator[None]:
    """After the block (as a decorator, the function), Python, NumPy and torch draw on as if it had not been, whatever it seeded: transformers seeds
    all three whenever it makes a `Trainer`."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(tensors)
        if devices:
            torch.cuda.set_rng_state_all(devices)
