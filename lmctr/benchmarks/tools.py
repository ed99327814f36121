"""What the benchmarks share: the machine, measurements taken in turn, and files of results."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lmctr.utils.results import check_output, write_result

__all__ = ["check_counts", "check_output", "in_turn", "machine", "summary", "synchronize", "write_result"]


def machine(device: str = "cpu") -> dict[str, Any]:
    """Machine, threads and versions that a result was measured with."""
    import numpy
    import tokenizers
    import torch
    import transformers

    out = {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        "tokenizers": tokenizers.__version__,
        "transformers": transformers.__version__,
    }
    if torch.device(device).type == "cuda":
        out["gpu"] = torch.cuda.get_device_name(device)
    return out


def in_turn(
    ways: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    device: str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, list[float]]:
    """Seconds of each way, `repeats` times; the ways take turns, in an order that is reversed each time.

    So what else the machine does meets all of them alike, and only their ratios are told apart.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats):
        for name in list(ways) if repeat % 2 == 0 else reversed(ways):
            synchronize(device)
            began = time.perf_counter()
            ways[name]()
            synchronize(device)
            seconds[name].append(time.perf_counter() - began)
        say(f"repeat {repeat + 1} of {repeats}: " + ", ".join(f"{name} {s[-1]:.2f} s" for name, s in seconds.items()))
    return seconds


def synchronize(device: str) -> None:
    """Wait for what was sent to a GPU."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def summary(values: list[float]) -> dict[str, Any]:
    """Median and all values of a measurement."""
    return {"median": statistics.median(values), "all": values}


def check_counts(options: object, names: Iterable[str]) -> None:
    """Raise `ValueError` that names the first of these options below 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
