"""`lmctr search`: values of a recipe by Optuna, chosen on validation, compared with the start on test over seeds.

OUTPUT/search.yaml      the start, the space and the seed; a search that goes on must have the same
OUTPUT/study.journal    Optuna's study
OUTPUT/trials.csv       every trial: state, value, seconds, parameters
OUTPUT/best.yaml        the best recipe
OUTPUT/start-S, best-S  runs of the comparison, by seed
OUTPUT/comparison.md    its table, and .json
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lmctr.data.logs.text_encoders import MissingExtraError
from lmctr.evaluation.comparison import value_at
from lmctr.runs.folder import DATA, RunFolder
from lmctr.runs.inputs import input_of
from lmctr.runs.recipe import Recipe, load_recipe, with_epochs
from lmctr.runs.training import Training, train_recipe
from lmctr.studies.compare import Comparison, compare_runs, write_comparison
from lmctr.studies.options import SearchOptions
from lmctr.studies.search_space import read_space
from lmctr.utils import progress
from lmctr.utils.files import read_json, read_yaml, remove_left, write_text
from lmctr.utils.lock import owned
from lmctr.utils.random_state import kept_settings
from lmctr.utils.tables import text_table, write_csv

_OWN = ("search.yaml", "study.journal", "trials.csv", "best.yaml", "comparison.md", "comparison.json")
_LOCK = ".search.lock"
_FOLDERS = ("trial", "start-*", "best-*")
# Trials are measured on validation while they train, and leave nothing.
_OF_TRIALS = {
    "data.baselines": False,
    "training.refit": False,
    "training.rolling_origin": None,
    "training.effective_rank_samples": None,
    "training.save_strategy": "no",
    "training.load_best_model_at_end": False,
    "training.report_to": "none",
}
_STARTUP_TRIALS = 5  # run to their end before any is measured by them


@dataclass(frozen=True)
class SearchResult:
    """values: the best by key, {} where the start stayed the best. recipe: the best one's file. comparison: None without."""

    values: dict[str, Any]
    score: float
    recipe: Path
    comparison: Comparison | None


def run_search(options: SearchOptions) -> int:
    """`lmctr search RECIPE --space SPACE`. Returns the exit code."""
    Search(options).run()
    return 0


class Search:
    """One search: its trials one after the other, then the best recipe and the comparison.

    The sampler of each trial has a seed of its own, so that a search that was interrupted makes the trials that it would have made.

    Raises:
        MissingExtraError: Optuna is missing.
        FileNotFoundError, ValueError: no such recipe or space, values that the recipe does not accept, a folder with another search.
    """

    @kept_settings()  # arguments with `tf32` set it when they are made
    def __init__(self, options: SearchOptions):
        try:
            import optuna
        except ImportError as error:
            raise MissingExtraError("search needs optuna; install it with: pip install 'lmctr[search]'") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna, self.options = optuna, options
        self.start = load_recipe(options.recipe, options.overrides)
        self.space = read_space(options.space, input_of(self.start).free_data_keys)
        for parameter in self.space:
            for value in parameter.corners():
                self._recipe({parameter.key: value}, options.space)
        self.folder = Path(options.output_dir or f"runs/search_{Path(options.recipe).stem}")
        self.seed = self.start.resolved()["training"]["seed"]
        first = Training(self.start, RunFolder(self.folder / "start"), False, False, options.command, quiet=True)
        if first.args.eval_strategy == "no":
            raise ValueError("training.eval_strategy is no: trials are compared by their evaluations on validation")
        if first.args.world_size > 1:
            raise ValueError("search trains in one process; start it without a launcher")
        self._check_arguments()
        self.metric = first.args.metric_for_best_model.removeprefix("eval_")
        self.sign = 1.0 if first.args.greater_is_better else -1.0
        self.stage1_epochs = first.args.stage1_epochs

    def _check_arguments(self) -> None:
        """Tell values that training refuses whatever the others are, the start's or the first of the space, before any trial."""
        firsts = {parameter.key: next(iter(parameter.corners())) for parameter in self.space}
        for parameter in self.space:
            for value in parameter.corners():
                for last, others in enumerate(({}, firsts)):
                    try:
                        self._training({**others, parameter.key: value})
                        break
                    except ValueError as error:
                        if last:
                            raise ValueError(f"{self.options.space}: {parameter.key}: {error}") from error

    def run(self) -> SearchResult:
        """All of it. Raises `ValueError` where another search is at work in the folder."""
        with owned(self.folder, "`lmctr search`", _LOCK):
            return self._run()

    def _run(self) -> SearchResult:
        self._claim()
        study = self._study()
        self._go_on(study)
        self._write_trials(study)
        began = time.monotonic()
        while (done := _counted(study)) < self.options.trials:
            minutes = (time.monotonic() - began) / 60
            if self.options.max_minutes is not None and minutes >= self.options.max_minutes:
                print(
                    f"{minutes:.1f} minutes have passed: {done} of {self.options.trials} trials; the same command goes on"
                )
                break
            self._try(study, done)
            self._write_trials(study)
        if not [trial for trial in study.trials if trial.state.name == "COMPLETE"]:
            raise ValueError(f"no trial in {self.folder} came to its end: give more --trials, or look at trials.csv")
        return self._finish(study)

    # ---- the study ----

    def _claim(self) -> None:
        """Make the folder ready for this search, or go on with the one in it."""
        about = self.folder / "search.yaml"
        remove_left(about)  # by a search that was killed before its first file was whole
        if self.options.overwrite and about.is_file():
            for name in _OWN:
                (self.folder / name).unlink(missing_ok=True)
            for path in (path for pattern in _FOLDERS for path in self.folder.glob(pattern)):
                shutil.rmtree(path, ignore_errors=True)
        space = read_yaml(self.options.space)
        mine = {"start": self.start.resolved(), "space": space, "pruning": not self.options.no_pruning}
        if about.is_file():
            before = read_yaml(about)
            if not isinstance(before, dict) or not isinstance(before.get("start"), dict):
                raise ValueError(
                    f"{about} is damaged: it says no start; restore it, or give another --output-dir, or --overwrite"
                )
            before["start"] = with_epochs(before["start"])
            differing = [key for key, value in mine.items() if before.get(key) != value]
            if differing:
                raise ValueError(
                    f"{self.folder} holds a search with another {' and '.join(differing)}; give another --output-dir, or --overwrite"
                )
            mine["data"] = before.get("data")
        elif any(path.name != _LOCK for path in self.folder.iterdir()):
            raise ValueError(f"--output-dir {self.folder} is not empty and holds no search; give another folder")
        write_text(about, yaml.safe_dump(mine, sort_keys=False, allow_unicode=True))

    def _study(self) -> Any:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        path = self.folder / "study.journal"
        # of a killed search: Optuna would wait half a minute for it
        for left in self.folder.glob(f"{path.name}.lock*"):
            left.unlink()
        if path.is_file() and not (lines := path.read_bytes()).endswith(b"\n"):  # cut off by a kill or a full disk
            path.write_bytes(lines[: lines.rfind(b"\n") + 1])
        pruners = self.optuna.pruners
        try:
            return self.optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path)))),
                study_name="search",
                direction="maximize" if self.sign > 0 else "minimize",
                pruner=pruners.NopPruner() if self.options.no_pruning else pruners.MedianPruner(_STARTUP_TRIALS),
                load_if_exists=True,
            )
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path} is damaged ({error}); restore it, or give another --output-dir, or --overwrite"
            ) from error

    def _go_on(self, study: Any) -> None:
        """Make a trial that was killed again; before the first trial, let the start be one."""
        for trial in study.get_trials(states=(self.optuna.trial.TrialState.RUNNING,)):
            study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
            if trial.params:
                study.enqueue_trial(trial.params)
        if not study.trials:
            values = self.start.resolved()
            known = {parameter.key: parameter.encode(_value_at(values, parameter.key)) for parameter in self.space}
            missing = [key for key, value in known.items() if value is None]
            if missing:
                print(f"the start itself is no trial: the space does not hold its {', '.join(missing)}")
            else:
                study.enqueue_trial(known)

    @kept_settings()
    def _try(self, study: Any, number: int) -> None:
        """One trial. What its values cannot be trained with is told and noted; where no training could begin yet it is an error."""
        study.sampler = self.optuna.samplers.TPESampler(seed=(self.seed + number) % 2**32)
        trial = study.ask()
        values = {parameter.key: parameter.suggest(trial) for parameter in self.space}
        shown = ", ".join(f"{key} {_short(value)}" for key, value in values.items())
        progress.say(f"trial {number + 1} of {self.options.trials}: {shown}")
        state, began = self.optuna.trial.TrialState, time.monotonic()
        watch = _Watch(self, trial)
        known = [other for other in study.trials if other.state.name == "COMPLETE" and other.params == trial.params]
        if known:  # the same again would only cost time
            study.tell(trial, known[0].value)
            progress.say(f"  validation {self.metric} {known[0].value:.4f}, as before")
            return
        try:
            shutil.rmtree(self.folder / "trial", ignore_errors=True)
            self._training(values).evaluations(watch)
            if watch.best is None:
                raise ValueError(f"no evaluation of stage 2 by {self.metric}")
            study.tell(trial, watch.best)
            outcome = f"validation {self.metric} {watch.best:.4f}"
        except self.optuna.TrialPruned:
            study.tell(trial, state=state.PRUNED)
            outcome = f"ended early at {watch.best:.4f}, below the median of the others"
        except DataChangedError:
            raise
        except (ValueError, RuntimeError, ArithmeticError) as error:
            if not watch.began and not any(other.state in (state.COMPLETE, state.PRUNED) for other in study.trials):
                raise
            trial.set_user_attr("error", str(error))
            study.tell(trial, state=state.FAIL)
            outcome = f"failed: {error}"
        progress.say(f"  {outcome}  ({time.monotonic() - began:.0f} s)")

    def _training(self, values: Mapping[str, Any]) -> Training:
        recipe = self._recipe({**values, **_OF_TRIALS}, "the search")
        return Training(recipe, RunFolder(self.folder / "trial"), False, True, self.options.command, quiet=True)

    def _recipe(self, values: Mapping[str, Any], said_by: str) -> Recipe:
        return load_recipe(self.start.resolved(), dict(values), dict.fromkeys(values, said_by))

    # ---- what is left ----

    def _write_trials(self, study: Any) -> None:
        shutil.rmtree(self.folder / "trial", ignore_errors=True)
        rows = []
        for trial in study.trials:
            if trial.state.name not in ("WAITING", "RUNNING") and (trial.state.name != "FAIL" or trial.user_attrs):
                seconds = trial.duration.total_seconds() if trial.duration else None
                row = {
                    "trial": len(rows) + 1,
                    "state": trial.state.name.lower(),
                    "evaluations": len(trial.intermediate_values),
                }
                rows.append({**row, self.metric: trial.value, "seconds": seconds, **trial.params, **trial.user_attrs})
        write_csv(self.folder / "trials.csv", rows)

    def _finish(self, study: Any) -> SearchResult:
        """Tell the trials, write the best recipe, and compare it."""
        best = study.best_trial
        values = self._values(best)
        ended = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
        table = [["", *(parameter.key for parameter in self.space), f"validation {self.metric}"]]
        for trial in sorted(ended, key=lambda trial: -self.sign * trial.value)[:5]:
            place = "best" if trial.number == best.number else ""
            table.append([place, *(_short(value) for value in self._values(trial).values()), f"{trial.value:.4f}"])
        print(f"\n{text_table(table)}")
        counts = {state: sum(trial.state.name == state for trial in study.trials) for state in ("COMPLETE", "PRUNED")}
        print(f"{_counted(study)} trials: {counts['COMPLETE']} to their end, {counts['PRUNED']} ended early")
        start = self.start.resolved()
        if all(_value_at(start, key) == value for key, value in values.items()):
            values = {}
        recipe = self._recipe(values, "the search")
        path = self.folder / "best.yaml"
        before = read_yaml(path) if path.is_file() else None
        recipe.save(path)
        if before is not None and before != read_yaml(path):  # its runs are those of another recipe now
            for old in self.folder.glob("best-*"):
                shutil.rmtree(old)
            for suffix in ("md", "json"):
                (self.folder / f"comparison.{suffix}").unlink(missing_ok=True)
        print(
            f"wrote {path}" if values else f"wrote {path}: the start stayed the best, so there is nothing to compare"
        )
        compared = None if self.options.no_compare or not values or not self.options.seeds else self._compare(recipe)
        return SearchResult(values, best.value, path, compared)

    def _values(self, trial: Any) -> dict[str, Any]:
        fixed = self.optuna.trial.FixedTrial(trial.params)
        return {parameter.key: parameter.suggest(fixed) for parameter in self.space}

    def _compare(self, best: Recipe) -> Comparison:
        """Runs of both recipes over the seeds, measured on test, which no trial was."""
        runs: dict[str, list[str]] = {}
        for name, recipe in (("best", best), ("start", self.start)):
            for seed in self.options.seeds:
                path = self.folder / f"{name}-{seed}"
                progress.say(f"\n{name}, seed {seed}")
                train_recipe(recipe, path, {"training.seed": seed}, "auto", False, self.options.command)
                runs.setdefault(name, []).append(str(path))
        comparison = compare_runs(runs["best"], runs["start"])
        print(f"\n{comparison.text()}")
        for suffix in ("md", "json"):
            write_comparison(comparison, self.folder / f"comparison.{suffix}", self.options.command)
        return comparison


class DataChangedError(ValueError):
    """A search cannot go on with other data."""


class _Watch(TrainerCallback):
    """Tells a trial each evaluation of stage 2, and ends it where Optuna says so. best: the best value so far. began: whether the data were read."""

    def __init__(self, search: Search, trial: Any):
        self.search, self.trial = search, trial
        self.best: float | None = None
        self.count, self.began = 0, False

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Ends a search whose data are others than those of its first trial, before anything is trained on them."""
        self.began, about = True, self.search.folder / "search.yaml"
        data, mine = read_json(self.search.folder / "trial" / DATA), read_yaml(about)
        # each share searched has training samples of its own
        share = str(self.trial.params.get("data.negative_share"))
        kept = mine.get("data") or {}
        # a text, as it was written where no share is searched
        known = {**kept} if isinstance(kept, dict) else {"None": kept}
        for key, found in ((share, data["fingerprint"]), ("described", data.get("described_fingerprint"))):
            if found is not None and known.setdefault(key, found) != found:
                raise DataChangedError(
                    f"the data of {self.search.folder} have changed since its first trial (checksum {known[key]} before, {found} now); restore them, "
                    "or give another --output-dir, or --overwrite"
                )
        if kept != known:
            write_text(about, yaml.safe_dump({**mine, "data": known}, sort_keys=False, allow_unicode=True))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float] | None = None,
        **kwargs,
    ) -> None:
        name, sign = f"eval_{self.search.metric}", self.search.sign
        if name not in (metrics or {}) or state.epoch <= self.search.stage1_epochs:
            return
        value = float(metrics[name])
        self.best = value if self.best is None else sign * max(sign * value, sign * self.best)
        self.trial.report(self.best, self.count)
        self.count += 1
        if self.trial.should_prune():
            raise self.search.optuna.TrialPruned


def _counted(study: Any) -> int:
    """Trials that came to an end of their own; one that was killed is made again."""
    states = [(trial.state.name, bool(trial.user_attrs)) for trial in study.trials]
    return sum(name in ("COMPLETE", "PRUNED") or (name == "FAIL" and told) for name, told in states)


def _value_at(recipe: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None without one. `stage2_epochs` is the old name of `epochs` where there are no stages."""
    if key == "training.stage2_epochs" and "epochs" in recipe["training"]:
        key = "training.epochs"
    return value_at(recipe, key)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
