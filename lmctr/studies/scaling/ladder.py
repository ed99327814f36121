"""`lmctr scaling ladder LADDER`: train sizes of a model, fit the law, measure machine cost, choose a design, from one file.

The output folder: runs/SIZE/seed-S (run folders), points.csv (a row per run), sizes.csv (a row per size), cost/ (kept measurements),
ladder.json, report.md, law.png, cost.png, pareto.png; scenarios/NAME/ holds the same of each scenario with data of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lmctr.studies.scaling.tables import write_rows

if TYPE_CHECKING:
    from lmctr.studies.grids.state import GridRun
    from lmctr.studies.scaling.ladder_file import Ladder

ACCEPTS_OVERRIDES = True


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `scaling ladder`."""
    parser = actions.add_parser(
        "ladder",
        help="train a ladder of sizes, fit the law, measure cost, choose a design",
        description="The whole way from one file: train every size with every seed (finished runs are skipped, begun ones continued), count FLOPs, "
        "fit the metric's law and its error on held-out sizes, measure the highest QPS of each size under a latency limit, choose the "
        "size of most gain under a return on machine cost, and part a budget between scenarios.",
        epilog="Overrides such as --data.path FOLDER or --training.use_cpu true apply to every size, last.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "ladder", metavar="LADDER.yaml", help="YAML file, or the name of one that ships (scaling/ladder_dnn)"
    )
    parser.add_argument("--output_dir", help="folder of runs and results (default: the ladder's own, else runs/NAME)")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and their state; do nothing")
    parser.add_argument("--max-minutes", type=float, metavar="N", help="start no further run after N minutes")
    parser.add_argument("--keep-checkpoints", action="store_true", help="keep the checkpoints of finished runs")
    parser.add_argument("--launcher", metavar="WORDS", help="as in `lmctr grid run`")
    parser.add_argument("--no-train", action="store_true", help="train nothing: only what the finished runs say")
    parser.add_argument(
        "--allow-missing", action="store_true", help="go on with what is finished; the report lists the rest"
    )
    parser.add_argument("--no-plots", action="store_true", help="write no pictures")


def run(args: argparse.Namespace) -> int:
    """Runs the sub-verb."""
    from lmctr.studies.grids.run import GridRunner
    from lmctr.studies.scaling.ladder_file import load_ladder

    if args.max_minutes is not None and args.max_minutes <= 0:
        raise ValueError(f"--max-minutes must be greater than 0, got {args.max_minutes:g}")
    if not args.no_plots:
        from lmctr.analysis.plots import require_matplotlib

        require_matplotlib()
    ladder = load_ladder(args.ladder, args.output_dir)
    # the scenarios with data of their own come first: the ladder's allocation reads them
    ladders = [*ladder.scenarios.values(), ladder]
    settings = (args.overrides, args.keep_checkpoints, args.max_minutes, args.launcher)
    runners = [GridRunner(each.grid, *settings) for each in ladders]
    if args.dry_run:
        for runner in runners:
            for entry in runner.plan():
                print(f"{entry.state:12} {entry.folder.path}")
        return 0
    finished, missing = [], []
    for runner in runners:
        if not args.no_train:
            runner.run()
        done, rest = finished_runs(runner.plan())
        finished.append(done)
        missing.append(rest)
    if any(missing) and not args.allow_missing:
        left, total = (sum(map(len, runs)) for runs in (missing, [*finished, *missing]))
        words = f"{left} of {total} runs are not finished: run the same command again, or give --allow-missing"
        print(f"error: {words}", file=sys.stderr)
        return 1
    for each, done, rest in zip(ladders, finished, missing):
        climb(each, done, rest, args.command, plots=not args.no_plots)
    return 0


def finished_runs(runs: list[GridRun]) -> tuple[list[GridRun], list[GridRun]]:
    """Finished runs, and the others."""
    from lmctr.studies.grids.state import DONE

    return [run for run in runs if run.state == DONE], [run for run in runs if run.state != DONE]


def climb(
    ladder: Ladder,
    finished: list[GridRun],
    missing: list[GridRun],
    command: str,
    plots: bool = True,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
) -> dict[str, Any]:
    """Everything after the training: collect, fit, measure, choose, write.

    Returns:
        What ladder.json holds.

    Raises:
        ValueError: too few sizes, a metric that the runs do not have, a limit that no size meets, an infeasible ROI or budget. What was found before is
            in the folder by then.
    """
    import numpy as np

    from lmctr.studies.scaling.fit import analyse
    from lmctr.studies.scaling.ladder_report import Report

    folder = ladder.output_dir
    points, sizes = collect(ladder, finished)
    write_rows(folder / "points.csv", points)
    write_rows(folder / "sizes.csv", sizes)
    report = Report(ladder, points, sizes, [run.name for run in missing], command)
    x, y = (np.array([row[key] for row in points], dtype=np.float64) for key in (ladder.x, ladder.metric))
    try:
        report.analysis = analyse(x, y, ladder.fit, ladder.x, ladder.metric)
    except ValueError as error:
        raise ValueError(f"no law was fitted to {folder / 'points.csv'}: {error}") from error
    for row, value in zip(sizes, report.analysis.fit.predict([row[ladder.x] for row in sizes])):
        row["law"] = float(value)
    if ladder.cost is not None:
        say(
            f"measuring {len(sizes)} sizes under {ladder.cost.latency_ms:g} ms, at most {ladder.cost.max_seconds:g} s each"
        )
        measure(ladder, finished, sizes, say)
    write_rows(
        folder / "sizes.csv", [{key: value for key, value in row.items() if key != "capacity"} for row in sizes]
    )
    if ladder.cost is not None:
        _check_costs(ladder, sizes)
    report.write(plots)  # what is known is kept, whatever a design comes to
    if ladder.design is not None:
        report.choose()
    if ladder.allocate is not None:
        report.allocate()
    result = report.write(plots)
    say("\n".join(report.lines()))
    say(f"\nwritten to {folder}: report.md, ladder.json, points.csv, sizes.csv{', pictures' if plots else ''}")
    return result


def collect(ladder: Ladder, finished: list[GridRun]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row per run and a row per size, in the order of the file. FLOPs are counted on the first finished run of a size.

    Raises:
        ValueError: a run without the metric.
    """
    from lmctr.studies.scaling.flops import count_model
    from lmctr.studies.scaling.models import saved_model

    points, sizes = [], []
    for point in ladder.grid.points:
        runs = [run for run in finished if run.point == point.name]
        if not runs:
            continue
        found = count_model(saved_model(runs[0].folder.path), ladder.request.candidates, ladder.request.length)
        counted = {
            "flops_per_sample": found["per_sample"],
            "flops_per_request": found["per_request"],
            "dense_parameters": found["dense_parameters"],
            "embedding_parameters": found["embedding_parameters"],
            "parameters": found["dense_parameters"] + found["embedding_parameters"],
        }
        own = []
        for run in runs:
            written = run.metrics()
            metrics = written.get("split metrics", {}).get(ladder.split, {})
            if not isinstance(metrics.get(ladder.metric), (int, float)):
                raise ValueError(
                    f"{run.folder.path} has no {ladder.split} metric {ladder.metric!r}; it has {', '.join(metrics) or 'none'}"
                )
            own.append({"size": point.name, "seed": run.seed, **counted, **metrics, "train_seconds": written.get("train_seconds")})  # fmt: skip
        points += own
        values = [row[ladder.metric] for row in own]
        sizes.append(
            {
                "size": point.name,
                **counted,
                "seeds": len(own),
                "mean": statistics.fmean(values),
                "std": statistics.stdev(values) if len(values) > 1 else None,
                "candidates": found["candidates"],
            }
        )
    return points, sizes


def measure(ladder: Ladder, finished: list[GridRun], sizes: list[dict[str, Any]], say: Callable[[str], None]) -> None:
    """Write QPS, fraction and machines of each size into its row; a size that misses the limit gets the reason as `note`."""
    from lmctr.scaling.cost import LatencyLimitError, machines
    from lmctr.studies.scaling.cost import measure_run

    cost = ladder.cost
    for row in sizes:
        run = next(run for run in finished if run.point == row["size"])
        say(f" {row['size']}")
        row |= {
            "qps": None,
            "qps_low": None,
            "qps_high": None,
            "relative": None,
            "machines": None,
            "complete": None,
            "note": None,
        }
        try:
            found = measure_run(
                run.folder.path,
                cost.options(),
                ladder.output_dir / "cost",
                ladder.request.candidates,
                ladder.request.length,
                cost.threads,
                cost.device,
                say,
            )
        except LatencyLimitError as error:
            row["note"] = str(error).removeprefix(f"{run.folder.path}: ")
            say(f"  {row['note']}")
            continue
        row["qps"], row["capacity"], row["complete"] = found["qps"], found["capacity"], found["capacity"]["complete"]
        interval = found["capacity"]["batched"]["qps_interval"]
        row["qps_low"], row["qps_high"] = (None, None) if interval is None else interval
    base = next((row for row in sizes if row["size"] == cost.base), None)
    if base is None or base["qps"] is None:
        return
    for row in sizes:
        if row["qps"] is not None:
            found = machines([row["qps"]], base["qps"], cost.base_machines)[0]
            row |= {"relative": found.relative, "machines": found.machines}


def _check_costs(ladder: Ladder, sizes: list[dict[str, Any]]) -> None:
    from lmctr.scaling.cost import LatencyLimitError

    base = next((row for row in sizes if row["size"] == ladder.cost.base), None)
    if base is None:
        raise ValueError(f"cost.base {ladder.cost.base} has no finished run")
    if base["qps"] is None:
        raise LatencyLimitError(f"the base model {ladder.cost.base} has no machine cost: {base['note']}")
