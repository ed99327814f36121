"""`lmctr scaling cost RUN...`: the highest QPS of saved models under a latency limit on this machine, and machines (MCET)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.studies.scaling.flops import add_request_arguments, count_model
from lmctr.studies.scaling.tables import flops_text, markdown_table, text_table
from lmctr.utils.results import check_output, write_result

if TYPE_CHECKING:
    from lmctr.scaling.cost import Capacity, CostOptions


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `scaling cost`."""
    parser = actions.add_parser(
        "cost",
        help="highest QPS under a latency limit, and machines",
        description="Measure the highest rate of each saved model under a limit on the 99th percentile of its latency, on this machine, with random "
        "inputs of fixed size, for single and batched requests; then the machines that the base model's load needs with each. The "
        "load is closed: each client waits for its answer. Results are kept, and found again on the same machine and model.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder with a saved model")
    parser.add_argument("--latency-ms", type=float, required=True, metavar="MS", help="the limit in milliseconds")
    parser.add_argument("--base", metavar="RUN", help="the model in use today, one of the runs (default: the first)")
    parser.add_argument(
        "--base-machines", type=float, default=1.0, metavar="N", help="machines that serve it (default: 1)"
    )
    add_request_arguments(parser)
    add_measurement_arguments(parser)
    parser.add_argument("--output", help="write the results to this .json or .md file")


def add_measurement_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of a measurement."""
    parser.add_argument("--quantile", type=float, default=0.99, help="of the latencies (default: 0.99)")
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[1, 8], metavar="B", help="requests per call (default: 1 8)"
    )
    parser.add_argument("--max-concurrency", type=int, default=16, metavar="C", help="most clients (default: 16)")
    parser.add_argument("--threads", type=int, help="threads of torch per call (default: its own choice)")
    parser.add_argument("--windows", type=int, default=3, help="windows of each level, at least (default: 3)")
    parser.add_argument("--window-seconds", type=float, default=1.0, help="default: 1")
    parser.add_argument("--warmup-seconds", type=float, default=0.5, help="of each level (default: 0.5)")
    parser.add_argument("--min-calls", type=int, default=1000, help="calls of each level, at least (default: 1000)")
    parser.add_argument("--confidence", type=float, default=0.95, help="that the limit is met (default: 0.95)")
    parser.add_argument(
        "--max-seconds", type=float, default=60.0, metavar="S", help="for each model, loading left out (default: 60)"
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, ...")
    parser.add_argument("--cache", metavar="FOLDER", help="where results are kept (default: ~/.cache/lmctr/cost)")
    parser.add_argument("--no-cache", action="store_true", help="measure anew, and keep nothing")


def run(args: argparse.Namespace) -> int:
    """Runs the sub-verb."""
    from lmctr.scaling.cost import CostOptions

    check_output(args.output)
    base = args.runs[0] if args.base is None else args.base
    if _place(base) not in [_place(name) for name in args.runs]:
        raise ValueError(f"--base {base} is none of the runs: {', '.join(args.runs)}")
    if args.base_machines <= 0:
        raise ValueError(f"--base-machines must be above 0, got {args.base_machines:g}")
    options = CostOptions(
        args.latency_ms / 1e3,
        args.quantile,
        tuple(args.batch_sizes),
        args.max_concurrency,
        args.window_seconds,
        args.windows,
        args.warmup_seconds,
        args.min_calls,
        args.confidence,
        args.max_seconds,
    )
    cache = None if args.no_cache else default_cache() if args.cache is None else Path(args.cache)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    rows = []
    for name in args.runs:
        say(name)
        row = measure_run(name, options, cache, args.candidates, args.length, args.threads, args.device, say)
        rows.append({"run": name, **row})
    add_machines(rows, next(row for row in rows if _place(row["run"]) == _place(base)), args.base_machines)
    table = cost_table(rows)
    heading = describe_options(options)
    print(f"{heading}\n{text_table(table)}")
    result = {"models": rows, "base": base, "base_machines": args.base_machines, "options": asdict(options)}
    write_result(
        args.output, {**result, "command": args.command}, f"{heading}\n\n{markdown_table(table)}\n\n`{args.command}`"
    )
    return 0


def default_cache() -> Path:
    """Where results are kept: `$XDG_CACHE_HOME/lmctr/cost`, else `~/.cache/lmctr/cost`."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "lmctr" / "cost"


def measure_run(
    run: str | Path,
    options: CostOptions,
    cache: Path | None,
    candidates: int | None = None,
    length: int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Capacity and FLOPs of one saved model, as JSON can hold them.

    Raises:
        ValueError: a limit that no load meets (`LatencyLimitError`), naming the run. FileNotFoundError: no saved model.
    """
    import torch

    from lmctr.scaling.cost import LatencyLimitError, measure_capacity
    from lmctr.scaling.inputs import request_shape
    from lmctr.scaling.load import CapacityCache, ModelLoad, machine_description, model_fingerprint
    from lmctr.studies.scaling.models import saved_model

    model = saved_model(run)
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
    shape = request_shape(model.config, candidates, length)
    machine, fingerprint = machine_description(device), model_fingerprint(run)
    kept = None if cache is None else CapacityCache(cache)
    capacity = None if kept is None else kept.get(machine, fingerprint, shape, options)
    was_kept = capacity is not None
    flops = count_model(model, shape.candidates, shape.length)
    if capacity is None:
        try:
            capacity = measure_capacity(ModelLoad(model, shape, threads, device), options, say=say)
        except LatencyLimitError as error:
            raise LatencyLimitError(f"{run}: {error}") from error
        if kept is not None:
            kept.put(machine, fingerprint, shape, options, capacity)
    else:
        say(f"  kept result: {capacity.qps:,.1f} requests/s")
    return {
        "family": model.config.model_type,
        "candidates": shape.candidates,
        "length": shape.length,
        "flops_per_request": flops["per_request"],
        "flops_per_sample": flops["per_sample"],
        "qps": capacity.qps,
        "capacity": capacity.to_dict(),
        "kept": was_kept,
        "machine": machine,
        "model": fingerprint,
    }


def add_machines(rows: list[dict[str, Any]], base: dict[str, Any], base_machines: float) -> None:
    """Write `fraction` and `machines` into the rows (Algorithm 1, line 9)."""
    from lmctr.scaling.cost import machines

    for row, found in zip(rows, machines([row["qps"] for row in rows], base["qps"], base_machines)):
        row |= {
            "fraction": found.fraction,
            "machines": found.machines,
            "relative": found.relative,
        }


def describe_options(options: CostOptions) -> str:
    """What the numbers mean, in a line."""
    return (
        f"highest requests/s with p{100 * options.quantile:g} <= {1e3 * options.latency_limit:g} ms, each level at {options.confidence:.0%} "
        f"confidence; up to {max(options.batch_sizes)} requests per call, up to {options.max_concurrency} clients"
    )


def cost_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Cells for people."""
    head = ["run", "FLOPs/request", "single", "batched", "load", "quantile", "95 % of windows", "relative", "machines"]
    return [head] + [_cells(row) for row in rows]


def _cells(row: dict[str, Any]) -> list[str]:
    from lmctr.scaling.cost import Capacity

    capacity: Capacity = Capacity.from_dict(row["capacity"])
    best, single = capacity.batched, capacity.single
    interval = "-" if best.qps_interval is None else "{:,.0f} to {:,.0f}".format(*best.qps_interval)
    return [
        row["run"],
        flops_text(row["flops_per_request"]),
        "-" if single is None else f"{single.qps:,.1f}/s",
        f"{best.qps:,.1f}/s" + ("" if capacity.complete else " (time over)"),
        f"{best.batch_size} x {best.concurrency}",
        f"{1e3 * best.latency:.2f} ms",
        interval,
        f"{row['relative']:.3f}",
        f"{row['machines']} ({row['fraction']:.2f})",
    ]


def _place(name: str) -> Path:
    return Path(name).resolve()
