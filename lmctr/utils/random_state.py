"""What is set for the whole process, left as it was found: what draws at random, and how torch computes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from transformers.utils import logging

_VARIABLES = (  # the first is set by every training, the others by `full_determinism`
    "ACCELERATE_MIXED_PRECISION",
    "ASCEND_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "FLASH_ATTENTION_DETERMINISTIC",
    "HCCL_DETERMINISTIC",
)


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


@contextmanager
def kept_settings() -> Iterator[None]:
    """After the block (as a decorator, the function), torch computes as before and transformers logs as before: `tf32`, `full_determinism` and
    `log_level` of a `TrainingArguments` hold for the whole process, and nothing takes them back."""
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    deterministic, only_warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    precision, verbosity = torch.backends.fp32_precision, logging.get_verbosity()
    try:
        yield
    finally:
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        torch.use_deterministic_algorithms(deterministic, warn_only=only_warns)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        if torch.backends.fp32_precision != precision:
            torch.backends.fp32_precision = precision
        logging.set_verbosity(verbosity)
