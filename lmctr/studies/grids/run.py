"""Train the points of a grid one after the other, each in a process of its own, so that memory and crashes stay there.

The processes are forked from a server that has imported the library once (`multiprocessing`'s forkserver), or started anew where
the platform cannot fork. Every run sees the library as it was when the grid was started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lmctr.evaluation.evaluator import METRIC_TITLES
from lmctr.runs.recipe import Recipe
from lmctr.runs.training import train_recipe
from lmctr.studies.grids.baselines import compute_baselines, configuration_key, data_place, has_seeds
from lmctr.studies.grids.file import Grid, check_recipes, load_grid
from lmctr.studies.grids.options import GridRunOptions, RunnerOptions
from lmctr.studies.grids.state import BEGUN, DIFFERENT, DONE, GridRun, inspect_run, inspect_runs
from lmctr.training.processes import end_with_parent
from lmctr.utils import progress
from lmctr.utils.errors import is_debugging, is_for_users, told
from lmctr.utils.files import write_text
from lmctr.utils.lock import owned
from lmctr.utils.progress import clock
from lmctr.utils.stopping import stopped_by_term

# What a training imports on its way; the server holds it all, before the first fork.
PRELOADED = (
    "lmctr.runs.training",
    "lmctr.runs.inputs.text",
    "lmctr.runs.inputs.tabular",
    "lmctr.runs.inputs.sequence",
    "lmctr.studies.grids.baselines",
    "lmctr.evaluation.baselines",
    "lmctr.data.logs.retrieval",
    "transformers.models.auto.modeling_auto",
    # What their functions import: the fits of the baselines, for half a second each.
    "sklearn.ensemble",
    "sklearn.linear_model",
    "scipy.stats",
)


def run_grid(options: GridRunOptions) -> int:
    """`lmctr grid run GRID`: train what is missing. Returns 0 when everything is done, 1 when a run failed or was not started.

    Raises:
        ValueError: a wrong grid, recipe or option, run folders of other recipes. FileNotFoundError: no such grid.
    """
    runner = GridRunner(load_grid(options.grid, options.output_dir).select(options.only), options)
    if not options.dry_run:
        return runner.run()
    runner.show_plan()
    return 0


class GridRunner:
    """One `lmctr grid run`.

    Args:
        grid: the checked grid, with the chosen points. A script that trains it has its work under `if __name__ == "__main__":`.
        options: how the runs are trained.
        say: prints a line; default: those of progress by [`~lmctr.utils.progress.say`].
    """

    def __init__(self, grid: Grid, options: RunnerOptions, say: Callable[[str], None] | None = None):
        # a run's process reads the script that began it
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(
                'the runs are processes that read this script again: put its work under `if __name__ == "__main__":`'
            )
        if options.max_minutes is not None and options.max_minutes <= 0:
            raise ValueError(f"--max-minutes must be greater than 0, got {options.max_minutes:g}")
        self.grid, self.options = grid, options
        self.say, self.tell = say or progress.say, say or partial(print, flush=True)
        self.recipes: dict[tuple[str, int], Recipe] = check_recipes(grid, options.overrides)
        self.failures: list[tuple[GridRun, str]] = []
        self.seconds: dict[str, list[float]] = {}

    def plan(self) -> list[GridRun]:
        """The state of every run.

        Raises:
            ValueError: a folder that holds a run of another recipe.
        """
        runs = inspect_runs(self.grid, self.recipes)
        different = [run for run in runs if run.state == DIFFERENT]
        if different:
            listed = "\n".join(f"  {run.folder.path}: {'; '.join(run.differences)}" for run in different)
            folders = "a run folder" if len(different) == 1 else f"{len(different)} run folders"
            raise ValueError(
                f"{folders} of {self.grid.path} with another recipe than the grid asks for:\n{listed}\n"
                "give the grid another output_dir or the points other names, or delete what is listed"
            )
        return runs

    def show_plan(self) -> None:
        """Print the state of every run and its folder."""
        for run in self.plan():
            self.tell(f"{run.state:12} {run.folder.path}")

    def run(self) -> int:
        """Train what is missing. Returns 0 when everything is done, 1 when a run failed or was not started."""
        with owned(self.grid.output_dir, "`lmctr grid run`", ".grid.lock"), stopped_by_term():
            runs = self.plan()
            todo = [run for run in runs if run.state != DONE]
            self.say(
                f"{self.grid.name}: {len(self.grid.points)} points x {len(self.grid.seeds)} seeds = {len(runs)} runs in "
                f"{self.grid.output_dir}; {len(runs) - len(todo)} done, {len(todo)} to go"
            )
            began = time.monotonic()
            self._baselines(runs, bool(todo))
            for number, run in enumerate(todo):
                if self.options.max_minutes is not None and time.monotonic() - began > self.options.max_minutes * 60:
                    self.tell(
                        f"{self.options.max_minutes:g} minutes are over: {len(todo) - number} runs were not started"
                    )
                    break
                self._one(run, number, todo, began)
            else:
                number = len(todo)
        for run, message in self.failures:
            self.tell(f"failed: {run.name}: {message} (output: {run.log})")
        return 0 if not self.failures and number == len(todo) else 1

    def command(self, run: GridRun, resume: bool) -> list[str]:
        """The words after `lmctr` that train one run."""
        point = self.grid.point(run.point)
        overrides = point.overrides(run.seed, list(self.options.overrides))
        if "baselines" in self.recipes[run.point, run.seed].data:
            overrides.append(("data.baselines", "false"))
        words = [f"--{key}={value}" for key, value in overrides]
        folder = ["--output-dir", str(run.folder.path), *(["--resume"] if resume else [])]
        return ["train", str(point.recipe), *folder, *words]

    def _one(self, run: GridRun, number: int, todo: list[GridRun], began: float) -> None:
        started = time.monotonic()
        run.log.parent.mkdir(parents=True, exist_ok=True)
        run.failure.unlink(missing_ok=True)
        with progress.Work(f"training {run.name}"):
            code = self._train(run, resume=run.state == BEGUN)
        after = inspect_run(self.grid, run.point, run.seed, self.recipes[run.point, run.seed])
        passed = time.monotonic() - started
        if code == 0 and after.state == DONE:
            if not self.options.keep_checkpoints:
                shutil.rmtree(run.folder.checkpoints, ignore_errors=True)
            self.seconds.setdefault(run.point, []).append(passed)
            outcome = f"test {_headline(run)}"
        else:
            message = _last_error(run.log, code)
            if after.state != DONE and not any(run.folder.checkpoints.glob("checkpoint-*")):
                # nothing to go on from: a point that is corrected in the grid may start anew; unless somebody else trains there
                with contextlib.suppress(ValueError), owned(run.folder.path, "`lmctr grid run`"):
                    run.folder.clear()
            write_text(run.failure, message + "\n")
            self.failures.append((run, message))
            outcome = f"FAILED: {message}"
        rest = self._rest(todo[number + 1 :])
        self.say(
            f"[{number + 1}/{len(todo)}] {run.name}: {outcome}, {clock(passed)}; {clock(time.monotonic() - began)} passed"
            + ("" if rest is None else f", about {clock(rest)} left")
        )

    def _rest(self, todo: list[GridRun]) -> float | None:
        """Estimated seconds: a point's own mean where one of its seeds was trained, else the mean of all."""
        every = [value for values in self.seconds.values() for value in values]
        if not every:
            return None
        means = {name: sum(values) / len(values) for name, values in self.seconds.items()}
        return sum(means.get(run.point, sum(every) / len(every)) for run in todo)

    def _train(self, run: GridRun, resume: bool) -> int:
        """Train one run in a process of its own and return its exit code; a KeyboardInterrupt ends it first."""
        words = self.command(run, resume)
        if self.options.launcher is not None:
            command = [*shlex.split(self.options.launcher), "-m", "lmctr", *words]
            with open(run.log, "ab") as output:
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
                return _wait(process.wait, process.terminate)
        recipe = self.recipes[run.point, run.seed]
        if "baselines" in recipe.data:  # the grid's own are computed once
            recipe = dataclasses.replace(recipe, data={**recipe.data, "baselines": False})
        return in_child(_train_here, (recipe, run, resume, words))

    def _baselines(self, runs: list[GridRun], reads_data: bool) -> None:
        """Baselines of each data configuration, in one child that gives its memory back; where the grid `reads_data` for its runs, it is seen
        whether those that are kept are of the same."""
        groups: dict[tuple[str, str], list[GridRun]] = {}
        for run in runs:
            recipe = self.recipes[run.point, run.seed]
            if recipe.data.get("baselines"):
                groups.setdefault((configuration_key(recipe), data_place(recipe)), []).append(run)
        for (key, _), alike in groups.items():
            recipe, folders = self.recipes[alike[0].point, alike[0].seed], [run.folder for run in alike]
            if reads_data or not has_seeds(self.grid.output_dir, recipe, self.grid.seeds, folders):
                log = self.grid.output_dir / "baselines" / f"{key}.log"
                log.parent.mkdir(parents=True, exist_ok=True)
                with progress.Work(f"measuring baselines of {recipe.data['name']}"):
                    code = in_child(_baselines_here, (self.grid.output_dir, recipe, self.grid.seeds, str(log)))
                if code:
                    self.tell(f"baselines of {recipe.data['name']} failed: {_last_error(log, code)} (output: {log})")


def in_child(function: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    """Call a function in a child process and return its exit code (negative: the signal that ended it)."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED, "lmctr.utils.frozen"])
        _start_server()
    else:
        context = multiprocessing.get_context("spawn")
    process = context.Process(target=_child, args=(function, arguments))
    process.start()

    def wait() -> int:
        process.join()
        return int(process.exitcode or 0)

    return _wait(wait, process.terminate)


def _start_server() -> None:
    """Start the server with SIGINT held back until `lmctr.utils.frozen`: while it imports, a Ctrl-C is the grid's alone, and leaves no
    traceback of an import."""
    from multiprocessing import forkserver, resource_tracker  # not on Windows

    resource_tracker.ensure_running()  # which would lift the hold
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _wait(wait: Callable[[], int], terminate: Callable[[], None]) -> int:
    """Wait for a child. Ctrl-C reaches the child too (one terminal, one group); it gets a while to end by itself."""
    try:
        return wait()
    except KeyboardInterrupt:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            terminate()
            wait()
        finally:
            signal.signal(signal.SIGINT, previous)
        raise


def _child(function: Callable[..., int], arguments: tuple[Any, ...]) -> None:
    end_with_parent()  # so that the next `grid run` finds the folder free
    with stopped_by_term():
        sys.exit(function(*arguments))


def _train_here(recipe: Recipe, run: GridRun, resume: bool, words: list[str]) -> int:
    """Train in this process, with its output in the run's log, and return the exit code that `lmctr train` would."""
    _redirect(str(run.log))
    print(f"$ lmctr {shlex.join(words)}", flush=True)
    try:
        with progress.showing():
            train_recipe(recipe, run.folder.path, (), "auto" if resume else False, False, "lmctr " + " ".join(words))
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        return getattr(interrupt, "exit_code", 130)
    except Exception as error:
        if is_debugging() or not is_for_users(error):
            traceback.print_exc()
            return 1
        print(f"error: {told(error)}", file=sys.stderr)
        return 2
    return 0


def _baselines_here(output_dir: Path, recipe: Recipe, seeds: list[int], log: str) -> int:
    terminal = os.fdopen(os.dup(1), "w")
    _redirect(log)
    try:
        compute_baselines(output_dir, recipe, seeds, lambda line: print(line, file=terminal, flush=True))
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _redirect(log: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log, "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


def _last_error(log: Path, code: int) -> str:
    """What a failed run said last: its `error:` line, else its last line."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
    if not log.exists():
        return f"exit code {code} before its first line; what it said stands above"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    begun = max((number for number, line in enumerate(lines) if line.startswith("$ lmctr ")), default=-1)
    lines = lines[begun + 1 :]
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (told or lines or [f"exit code {code}"])[-1]


def _headline(run: GridRun) -> str:
    """The metric by which a finished run is spoken of."""
    metrics = run.metrics().get("split metrics", {}).get("test", {})
    key = next((key for key in ("auc", "revenue_ratio") if metrics.get(key) is not None), None)
    return "AUC -" if key is None else f"{METRIC_TITLES[key]} {metrics[key]:.4f}"
