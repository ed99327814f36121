"""`lmctr scaling cost RUN...`: the highest QPS of saved models under a latency limit on this machine, and machines (MCET)."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lmctr.runs.download import local_folder, told_by_name
from lmctr.scaling.cost import Capacity, LatencyLimitError, machines, measure_capacity
from lmctr.scaling.inputs import request_shape
from lmctr.scaling.load import CapacityCache, ModelLoad, SplitLoad, model_fingerprint
from lmctr.serving import split_first_layer
from lmctr.studies.scaling.flops import count_model
from lmctr.studies.scaling.models import saved_folder, saved_model
from lmctr.studies.scaling.options import CostRunOptions, MeasureOptions, RequestOptions
from lmctr.studies.scaling.tables import flops_text, show_and_write
from lmctr.utils.files import expanded
from lmctr.utils.measure import machine
from lmctr.utils.progress import say

_UNITS = {
    **dict.fromkeys(("qps", "qps_interval"), "requests per second"),
    **dict.fromkeys(("latency_ms", "median_latency_ms"), "milliseconds"),
    **dict.fromkeys(("latency", "median_latency", "latency_limit", "window_seconds", "max_seconds"), "seconds"),
}


@dataclass(frozen=True)
class CostComparison:
    """Capacities and machines of several models.

    Args:
        models: a row per model as JSON can hold it: `run`, what `measure_run` gives, and `relative`, `fraction` and `machines` of
            `lmctr.scaling.cost.Machines`. base: the run that they are relative to. options: as asked for.
    """

    models: list[dict[str, Any]]
    base: str
    options: CostRunOptions

    def heading(self) -> str:
        """What the numbers mean, in a line."""
        limits = self.options.limits()
        return (
            f"highest requests/s with p{100 * limits.quantile:g} <= {self.options.latency_ms:g} ms, each level at {limits.confidence:.0%} "
            f"confidence; up to {max(limits.batch_sizes)} requests per call, up to {limits.max_concurrency} clients"
            f"{'; ads kept in halves' if self.options.split else ''}"
        )

    def table(self) -> list[list[str]]:
        head = ["run", "FLOPs/request", "single", "batched", "load", "quantile", "95 % of windows", "relative"]
        return [[*head, "machines"]] + [_cells(row) for row in self.models]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `lmctr scaling design` reads "models"."""
        machines = {"base": self.base, "base_machines": self.options.base_machines}
        asked = asdict(self.options.limits()) | {"latency_ms": self.options.latency_ms}
        return {"models": self.models, **machines, "options": asked, "units": _UNITS}


def run(options: CostRunOptions) -> None:
    found = compare_costs(options, partial(say, stream=sys.stderr))
    show_and_write(options, [found.heading()], found.table(), found.to_dict())


def compare_costs(options: CostRunOptions, say: Callable[[str], None] = lambda line: None) -> CostComparison:
    """Measure saved models one after the other. say: gets the progress.

    Raises:
        ValueError: options out of range, a limit that no load of a model meets (`LatencyLimitError`). FileNotFoundError: no saved model.
    """
    places = [Path(name).resolve() for name in options.runs]
    base = options.runs[0] if options.base is None else options.base
    if Path(base).resolve() not in places:
        raise ValueError(f"--base {base} is none of the runs: {', '.join(options.runs)}")
    if not 0 < options.base_machines < math.inf:
        raise ValueError(f"--base-machines must be above 0 and finite, got {options.base_machines:g}")
    options.limits()  # bad values are told before anything is loaded
    # of all before the first is measured
    folders = {name: saved_folder(local_folder(name)).path for name in options.runs}
    cache = None if options.no_cache else default_cache() if options.cache is None else Path(options.cache)
    rows = []
    for name in options.runs:
        say(name)
        with told_by_name(name, folders[name]):
            rows.append({"run": name, **measure_run(folders[name], options, options, cache, say)})
    base_rate = rows[places.index(Path(base).resolve())]["qps"]
    for row, found in zip(rows, machines([row["qps"] for row in rows], base_rate, options.base_machines)):
        row |= {"fraction": found.fraction, "machines": found.machines, "relative": found.relative}
    return CostComparison(rows, base, options)


def default_cache() -> Path:
    """Where results are kept: `$XDG_CACHE_HOME/lmctr/cost`, else `~/.cache/lmctr/cost`."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(root) / "lmctr" / "cost"


def measure_run(
    run: str | Path,
    options: MeasureOptions,
    request: RequestOptions,
    cache: Path | None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Capacity and FLOPs of the saved model of a folder, as JSON can hold them; `kept` tells whether the capacity was found in the folder `cache`.

    Raises:
        ValueError: a limit that no load meets (`LatencyLimitError`), naming the run. FileNotFoundError: no saved model.
    """
    model, limits = saved_model(run), options.limits()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    shape = request_shape(model.config, request.candidates, request.length)
    here, fingerprint = machine(options.device), model_fingerprint(Path(run))
    store, kind = CapacityCache(cache), (here, fingerprint + " split" * options.split, shape, limits)
    load = partial(SplitLoad, split=split_first_layer) if options.split else ModelLoad
    kept = store.get(*kind)
    flops = count_model(model, request)
    if kept is not None:
        say(f"  kept result: {kept.qps:,.1f} requests/s")
        capacity = kept
    else:
        try:
            capacity = measure_capacity(load(model, shape, options.device), limits, say=say)
        except LatencyLimitError as error:
            raise LatencyLimitError(f"{run}: {error}") from error
        store.put(*kind, capacity)
    return {
        "family": model.config.model_type,
        "candidates": shape.candidates,
        "length": shape.length,
        "flops_per_request": flops["per_request"],
        "flops_per_sample": flops["per_sample"],
        "qps": capacity.qps,
        "latency_ms": 1e3 * capacity.batched.latency,
        "median_latency_ms": 1e3 * capacity.batched.median_latency,
        "capacity": capacity.to_dict(),
        "split": options.split,
        "kept": kept is not None,
        "machine": here,
        "model": fingerprint,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    capacity = Capacity.from_dict(row["capacity"])
    best, single = capacity.batched, capacity.single
    return [
        row["run"],
        flops_text(row["flops_per_request"]),
        "-" if single is None else f"{single.qps:,.1f}/s",
        f"{best.qps:,.1f}/s" + ("" if capacity.complete else " (time over)"),
        f"{best.batch_size} x {best.concurrency}",
        f"{1e3 * best.latency:.2f} ms",
        "-" if best.qps_interval is None else "{:,.0f} to {:,.0f}".format(*best.qps_interval),
        f"{row['relative']:.3f}",
        f"{row['machines']} ({row['fraction']:.2f})",
    ]
