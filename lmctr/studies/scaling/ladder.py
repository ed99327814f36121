"""`lmctr scaling ladder LADDER`: train sizes of a model, fit the law, measure machine cost, choose a design, from one file.

The output folder: runs/SIZE/seed-S (run folders), points.csv (a row per run), sizes.csv (a row per size), cost/ (kept measurements),
ladder.json, report.md, law.png, cost.png, pareto.png; scenarios/NAME/ holds the same of each scenario with data of its own.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lmctr.analysis.plots import require_matplotlib
from lmctr.models.families import family_of
from lmctr.runs.folder import check_same_data
from lmctr.scaling.cost import LatencyLimitError, machines
from lmctr.studies.grids.run import GridRunner
from lmctr.studies.grids.state import DONE, GridRun
from lmctr.studies.scaling.cost import measure_run
from lmctr.studies.scaling.fit import analyse
from lmctr.studies.scaling.flops import count_model
from lmctr.studies.scaling.ladder_file import Ladder, load_ladder
from lmctr.studies.scaling.ladder_report import Report
from lmctr.studies.scaling.models import saved_model
from lmctr.studies.scaling.options import LadderOptions
from lmctr.utils import progress
from lmctr.utils.suggest import errors_of
from lmctr.utils.tables import write_csv

_COUNTS = ("per_sample", "per_request")
_COSTS = ("qps", "qps_low", "qps_high", "relative", "machines", "complete", "note")


class UnfinishedLadderError(ValueError):
    """Runs of a ladder are not finished, and nothing allows to go on without them."""


def run(options: LadderOptions) -> int:
    """Climb and print; with `options.dry_run` only list the runs.

    Returns:
        The exit code: 1 where runs are not finished, 3 where no design gains with the return that the ladder asks for.
    """
    if options.dry_run:
        for _, runner in _runners(options):
            runner.show_plan()
        return 0
    try:
        reports = climb_ladder(options)
    except UnfinishedLadderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if all(report.design is None or report.design.result.is_reached for report in reports) else 3


def climb_ladder(options: LadderOptions) -> list[Report]:
    """Train what is missing, then fit, measure, choose and write; what is done is printed.

    Returns:
        The report of each scenario with data of its own, and at the end that of the ladder.

    Raises:
        UnfinishedLadderError: runs failed or were not started, and not `options.allow_missing`. ValueError: a file that is wrong, run folders of
            other recipes, and what `climb` raises.
    """
    climbs, runners = [], _runners(options)
    for _, runner in runners:
        runner.plan()  # what is refused is refused before anything is written
    for ladder, runner in runners:
        ladder.write_grid()
        if not options.no_train:
            runner.run()
        runs = runner.plan()
        climbs.append((ladder, [run for run in runs if run.state == DONE], [run for run in runs if run.state != DONE]))
    left = sum(len(missing) for _, _, missing in climbs)
    if left and not options.allow_missing:
        total = left + sum(len(finished) for _, finished, _ in climbs)
        raise UnfinishedLadderError(
            f"{left} of {total} runs are not finished: run the same command {'without --no-train' if options.no_train else 'again'}, or give "
            "--allow-missing"
        )
    return [climb(*each, options.command, plots=not options.no_plots) for each in climbs]


def _runners(options: LadderOptions) -> list[tuple[Ladder, GridRunner]]:
    """The ladders of a file. Scenarios with data of their own come first: the ladder's allocation reads them."""
    if not options.no_plots:
        require_matplotlib()
    ladder = load_ladder(options.ladder, options.output_dir)
    runners = [(each, GridRunner(each.grid, options)) for each in (*ladder.scenarios.values(), ladder)]
    if ladder.cost is not None and ladder.cost.split:
        for (size, _), recipe in runners[-1][1].recipes.items():
            family = family_of(recipe.model["family"])
            if family.input != "impressions":
                raise ValueError(
                    f"{options.ladder}: cost.split is for families of ads' impressions, which have halves of user and ad; the size {size!r} is "
                    f"of {family.model_type}"
                )
    return runners


def climb(
    ladder: Ladder,
    finished: list[GridRun],
    missing: list[GridRun],
    command: str,
    plots: bool = True,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Everything after the training: collect, fit, measure, choose, write.

    Raises:
        ValueError: too few sizes, a metric that the runs do not have, a limit that no size meets, an infeasible ROI or budget. What was found before is
            in the folder by then.
    """
    show, say = say or progress.say, say or partial(print, flush=True)
    folder = ladder.output_dir
    points, sizes = collect(ladder, finished)
    write_csv(folder / "points.csv", points, line_end="\n")
    write_csv(folder / "sizes.csv", sizes, line_end="\n")
    report = Report(ladder, sizes, [run.name for run in missing], command)
    x, y = (np.array([row[key] for row in points], dtype=np.float64) for key in (ladder.x, ladder.metric))
    with errors_of(f"no law was fitted to {folder / 'points.csv'}"):
        report.analysis = analyse(x, y, ladder.fit, ladder.x, ladder.metric)
    for row, value in zip(sizes, report.analysis.fit.predict([row[ladder.x] for row in sizes])):
        row["law"] = float(value)
    if ladder.cost is not None:
        show(
            f"measuring {len(sizes)} sizes under {ladder.cost.latency_ms:g} ms, at most {ladder.cost.max_seconds:g} s each"
        )
        measure(ladder, finished, sizes, show)
    shown = [{key: value for key, value in row.items() if key != "capacity"} for row in sizes]
    write_csv(folder / "sizes.csv", shown, line_end="\n")
    if ladder.cost is not None:
        _check_costs(ladder, sizes)
    try:
        if ladder.design is not None:
            report.choose()
        if ladder.allocate is not None:
            report.allocate()
    finally:  # what is known is kept, whatever a design comes to
        report.write(plots)
    say("\n".join(report.lines()))
    say(f"\nwritten to {folder}: report.md, ladder.json, points.csv, sizes.csv{', pictures' if plots else ''}")
    return report


def collect(ladder: Ladder, finished: list[GridRun]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row per run and a row per size, in the order of the file. FLOPs are counted on the first finished run of a size.

    Raises:
        ValueError: a run without the metric, seeds of a size that read other data, runs that were measured on other samples.
    """
    points, sizes = [], []
    for point in ladder.grid.points:
        runs = [run for run in finished if run.point == point.name]
        if not runs:
            continue
        with errors_of(point.name):
            check_same_data(run.folder for run in runs)
        found = count_model(saved_model(runs[0].folder.path), ladder.request)
        dense, tables = found["dense_parameters"], found["embedding_parameters"]
        counted = {f"flops_{name}": found[name] for name in _COUNTS}
        counted |= {"dense_parameters": dense, "embedding_parameters": tables, "parameters": dense + tables}
        own = []
        for run in runs:
            written = run.metrics()
            metrics = written.get("split metrics", {}).get(ladder.split, {})
            if not isinstance(metrics.get(ladder.metric), (int, float)):
                raise ValueError(
                    f"{run.folder.path} has no {ladder.split} metric {ladder.metric!r}; it has {', '.join(metrics) or 'none'}"
                )
            first = (points or own or [metrics])[0]
            for key in ("num_samples", "positive_rate"):
                if key in metrics and not math.isclose(metrics[key], first.get(key, metrics[key]), rel_tol=1e-6):
                    raise ValueError(
                        f"{run.folder.path} was measured on other samples than {first['size']}: {key} {metrics[key]:.6g} and {first[key]:.6g}, so that a law "
                        "over both says nothing; restore the data and train again what was trained on others"
                    )
            about = {"size": point.name, "seed": run.seed}
            own.append({**about, **counted, **metrics, "train_seconds": written.get("train_seconds")})
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
    cost = ladder.cost
    for row in sizes:
        run = next(run for run in finished if run.point == row["size"])
        say(f" {row['size']}")
        row |= dict.fromkeys(_COSTS)
        try:
            found = measure_run(run.folder.path, cost, ladder.request, ladder.output_dir / "cost", say)
        except LatencyLimitError as error:
            row["note"] = str(error).removeprefix(f"{run.folder.path}: ")
            say(f"  {row['note']}")
            continue
        capacity = found["capacity"]
        row |= {"qps": found["qps"], "capacity": capacity, "complete": capacity["complete"]}
        row["qps_low"], row["qps_high"] = capacity["batched"]["qps_interval"] or (None, None)
    base = next((row for row in sizes if row["size"] == cost.base), None)
    if base is None or base["qps"] is None:
        return
    for row in sizes:
        if row["qps"] is not None:
            found = machines([row["qps"]], base["qps"], cost.base_machines)[0]
            row |= {"relative": found.relative, "machines": found.machines}


def _check_costs(ladder: Ladder, sizes: list[dict[str, Any]]) -> None:
    base = next((row for row in sizes if row["size"] == ladder.cost.base), None)
    if base is None:
        raise ValueError(f"cost.base {ladder.cost.base} has no finished run")
    if base["qps"] is None:
        raise LatencyLimitError(f"the base model {ladder.cost.base} has no machine cost: {base['note']}")
