"""What all benchmarks do: ways measured in turn, their medians and ratios, the machine, a process of its own, one report."""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from lmctr.benchmarks.options import Benchmark
from lmctr.utils.measure import machine
from lmctr.utils.progress import is_silenced
from lmctr.utils.results import write_result
from lmctr.utils.tables import markdown_table

Ways = Mapping[str, Callable[[], Any]]
_PACKAGES = ("numpy", "pyarrow", "tokenizers", "torch", "transformers")
_CHILD = """
import importlib, json, sys
module, name, *arguments = json.loads(sys.argv[1])
print(json.dumps(getattr(importlib.import_module(module), name)(*arguments)))
"""
_logger = logging.getLogger("lmctr.benchmarks")
say = _logger.info  # progress: silent in Python, on stderr in the command line


def reports(
    measure: Callable[[Any], dict[str, Any]], as_markdown: Callable[[dict[str, Any]], str]
) -> Callable[[Benchmark], None]:
    """What the command line does with a benchmark: measure, print the tables, and write the file that was asked for."""

    def run(options: Benchmark) -> None:
        shown = logging.StreamHandler(sys.stderr)
        if not is_silenced():
            _logger.addHandler(shown)
            _logger.setLevel(logging.INFO)
        try:
            result = measure(options) | {"command": options.command}
        finally:
            _logger.removeHandler(shown)
        text = as_markdown(result)
        print(text)
        write_result(options.output, result, text)

    return run


def now(device: str | torch.device = "cpu") -> float:
    """Seconds of a clock, once a GPU has done what was sent to it."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def in_turn(
    ways: Ways, repeats: int, *, device: str | torch.device = "cpu", warm_up: bool = False, about: str | None = None
) -> dict[str, list[float]]:
    """Seconds of each way, `repeats` times; the ways take turns, in an order that is reversed each time.

    So what else the machine does meets all of them alike, and only their ratios are told apart.

    Args:
        warm_up: each way once before. about: begins the lines of progress; None: no such lines.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values() if warm_up else ():
        way()
    for repeat in range(repeats):
        for name in list(ways) if repeat % 2 == 0 else reversed(ways):
            began = now(device)
            ways[name]()
            seconds[name].append(now(device) - began)
        took = ", ".join(f"{name} {values[-1]:.2f} s" for name, values in seconds.items())
        if about is not None:
            say(f"{about}repeat {repeat + 1} of {repeats}: {took}")
    return seconds


def keeping(ways: Ways) -> tuple[Ways, dict[str, Any]]:
    """The ways, and a dictionary where each leaves its last result."""
    found: dict[str, Any] = {}

    def kept(name: str) -> Callable[[], None]:
        return lambda: found.update({name: ways[name]()})

    return {name: kept(name) for name in ways}, found


def summary(values: Iterable[float]) -> dict[str, Any]:
    """Median and all values of a measurement."""
    values = list(values)
    return {"median": statistics.median(values), "all": values}


def rates(amount: float, seconds: Iterable[float]) -> dict[str, Any]:
    """The same of an amount per second."""
    return summary(amount / value for value in seconds)


def speedups(seconds: Mapping[str, Sequence[float]], base: str, pairs: bool = True) -> dict[str, float]:
    """How many times as fast as `base` each way is: the median of the repeats' own ratios, or else the ratio of the medians."""
    middle = statistics.median
    if pairs:
        return {name: middle(slow / one for slow, one in zip(seconds[base], own)) for name, own in seconds.items()}
    return {name: middle(seconds[base]) / middle(own) for name, own in seconds.items()}


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module returns in a fresh process, so that a peak of memory is its own.

    Args:
        function: named at the top of its module. arguments: what JSON holds, as the result is.

    Raises:
        ValueError: the process failed.
    """
    call = json.dumps([function.__module__, function.__name__, *arguments])
    process = subprocess.run([sys.executable, "-c", _CHILD, call], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise ValueError(
            f"the process that measures the memory of {arguments[-1]!r} failed ({process.returncode}): {process.stderr[-500:]}"
        )
    return json.loads(process.stdout.splitlines()[-1])


def results(options: Benchmark, device: str = "cpu", **settings: Any) -> dict[str, Any]:
    """The beginning of a result: the machine, and what was measured on it. `settings`: over the options' own."""
    about = machine(device, _PACKAGES, with_platform=True)
    return {"machine": about, "settings": options.settings() | settings}


def machine_text(result: Mapping[str, Any]) -> str:
    """The machine of a result, in a line."""
    about = result["machine"]
    versions = ", ".join(f"{name} {about[name]}" for name in ("python", *_PACKAGES))
    where = f"{about.get('gpu', about['processor'])}, {about['cores']} cores, {about['threads']} threads"
    return f"{where}, {about['platform']}; {versions}."


def table(head: str, form: str, rows: Iterable[Mapping[str, Any]], left: Sequence[int] = (0,)) -> str:
    """A Markdown table.

    Args:
        head: "one | two". form: a line of it, as "{name} | {seconds[median]:.2f}" filled from the values of each row.
        left: numbers of the columns that stand to the left.
    """
    return markdown_table([head.split(" | "), *(form.format_map(row).split(" | ") for row in rows)], left)
