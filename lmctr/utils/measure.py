"""What a result was measured with: the machine, the versions, the memory that it took."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def machine(
    device: str = "cpu", packages: Iterable[str] = ("torch", "transformers"), with_platform: bool = False
) -> dict[str, Any]:
    """What decides how fast this machine is: processor, cores, PyTorch's threads, GPU, versions.

    Args:
        device: where the work runs; the GPU is named for one of its devices.
        packages: whose versions count.
        with_platform: whether `platform` (with the kernel's version) comes first instead of `system`. Measurements that are kept and
            found again by this description do without.
    """
    import torch

    where = (
        {"platform": platform.platform()} if with_platform else {"system": f"{platform.system()} {platform.machine()}"}
    )
    found = {
        **where,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: importlib.import_module(name).__version__ for name in packages},
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def machine_line(device: str = "cpu") -> str:
    """The machine in words, as `metrics.json` and model cards tell it."""
    import torch

    if torch.device(device).type == "cuda":
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{platform.machine()}, {os.cpu_count()} CPU cores, {torch.get_num_threads()} threads, {sys.platform}"


_version = functools.cache(importlib.metadata.version)  # it reads a file


def versions(*others: str) -> dict[str, str]:
    """Installed versions of what decides the numbers, `others` of packages beside these."""
    packages = ("lmctr", *others, "torch", "transformers", "tokenizers", "accelerate", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


def commit_here() -> dict[str, Any] | None:
    """The commit of the git repository that the working folder is in, and whether files that it tracks differ from it; None without one."""

    def git(*words: str) -> str:
        # no lock that somebody waits for, nothing that a repository's own settings would start
        command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
        return {"id": git("rev-parse", "HEAD"), "is_changed": bool(changed)}
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def peak_memory() -> int | None:
    """Peak resident bytes of this process so far; None where the system does not tell (Windows)."""
    # Linux hands `ru_maxrss` of the parent down to a child, so its own record of the address space is read there.
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _processor() -> str:
    """The processor's model where Linux tells it, else what Python calls it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def usable_device(device: str | None) -> torch.device:
    """The device that was asked for, or cuda where there is one.

    Raises:
        ValueError: no such device here.
    """
    import torch

    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=place)
        return torch.device(place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # what builds without the device raise
        problem = str(error).splitlines()[0]
        accepted = ", ".join(["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))])
        raise ValueError(f"--device {device}: {problem}; accepted here: {accepted}") from error


PRECISIONS = ("float32", "bfloat16", "float16", "int8")  # int8: the matrices of language models, on CPUs


def has_bf16_units(device: str | torch.device) -> bool:
    """Whether a device multiplies bfloat16 numbers itself, rather than by way of float32."""
    import torch

    place = torch.device(device)
    if place.type == "cuda":
        return torch.cuda.get_device_capability(place) >= (8, 0)
    known = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
    return place.type == "cpu" and any(tell is not None and tell() for tell in known)


def release_memory() -> None:
    """Give the system back what arrays and tables held that are gone; allocators keep some of it for later otherwise."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # where there is no glibc
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let glibc keep what tensors held for the next ones, unless the environment sets its `MALLOC_` variables. It gives megabytes back to the system
    after each request otherwise, which hands them out page by page: a sixth of the time of a request."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # in malloc.h
    with contextlib.suppress(AttributeError, OSError, TypeError):  # where there is no glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, size in ((trim_threshold, 256 << 20), (top_pad, 64 << 20), (mmap_threshold, 64 << 20)):
            mallopt(option, size)


def size_of(value: Any) -> int:
    """Bytes of a value of JSON, or of an array, about: what Python shares between values (keys, small numbers) is counted too."""
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = (*value, *value.values())
    elif isinstance(value, (list, tuple)):
        parts = value
    of_view = 0 if getattr(value, "base", None) is None else value.nbytes  # which `getsizeof` leaves out
    return sys.getsizeof(value) + of_view + sum(map(size_of, parts))
