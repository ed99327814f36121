"""What is shown of a training: bars of steps and of batches measured, and one readable line per log entry of the trainer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lmctr.evaluation.evaluator import METRIC_TITLES
from lmctr.utils.progress import Work, clock

_SHOWN = (("auc", "log_loss", "grouped_auc"), ("revenue_ratio", "ndcg"))


class ProgressLines(TrainerCallback):
    """Shows how far a training or a measurement is, and prints losses and the metrics of each evaluation, from the first process only.

    A context: what is being shown ends with it.

    Args:
        stage: tells the current stage (1, 2 or None).
        say: prints a line.
        last: the step that the training ends with, where that is not the last one of its schedule.

    Attributes:
        part: of the data that is measured.
    """

    def __init__(
        self,
        stage: Callable[[], int | None] = lambda: None,
        say: Callable[[str], None] = lambda line: None,
        last: int | None = None,
    ):
        self.stage = stage
        self.say = say
        self.last = last
        self.part = "validation"
        self.began = time.monotonic()
        self.first_step = 0
        self.works: dict[str, Work] = {}

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(self, *error: Any) -> None:
        for what in reversed(list(self.works)):
            self._end(what, *error)

    def _count(self, what: str, unit: str, total: int | None, done: int) -> None:
        """Shows that so much is done; the first time: that so much was done before."""
        if what not in self.works:
            self.works[what] = Work(what, total, unit, done).__enter__()
        self.works[what].update(done - self.works[what].done)

    def _end(self, what: str, *error: Any) -> None:
        work = self.works.pop(what, None)
        if work is not None:
            work.__exit__(*(error or (None,)))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        self.began, self.first_step = time.monotonic(), state.global_step
        self.on_step_end(args, state, control)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        if state.is_world_process_zero:
            self._count("training", "steps", self.last or state.max_steps, state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        self._end("training")

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: Any = None,
        **kwargs,
    ) -> None:
        if state.is_world_process_zero:
            total = len(eval_dataloader) if hasattr(eval_dataloader, "__len__") else None
            what = f"measuring {self.part}"
            if what not in self.works:
                self._count(what, "batches", total, 0)
            self._count(what, "batches", total, self.works[what].done + 1)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        self._end(f"measuring {self.part}")

    on_predict = on_evaluate

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs,
    ) -> None:
        logs = logs or {}
        if not state.is_world_process_zero:
            return
        stage = f"stage {self.stage()} " if self.stage() is not None and args.stage1_epochs else ""
        last = self.last or state.max_steps
        place = f"{stage}epoch {state.epoch or 0:.2f} step {state.global_step}/{last}"
        if "loss" in logs:
            done = state.global_step - self.first_step
            passed = time.monotonic() - self.began
            left = passed / max(done, 1) * (last - state.global_step)
            self.say(
                f"{place}  loss {logs['loss']:.4f}  lr {logs['learning_rate']:.2e}  "
                f"{clock(passed)} passed, {clock(left)} left"
            )
            return
        shown = next((names for names in _SHOWN if f"eval_{names[0]}" in logs), None)
        if shown is not None:
            decides = args.metric_for_best_model.removeprefix("eval_") if args.load_best_model_at_end else shown[0]
            decides = "log_loss" if decides == "loss" else decides
            values = {name: logs[f"eval_{name}"] for name in (*shown, decides) if f"eval_{name}" in logs}
            told = (
                f"{METRIC_TITLES.get(name, name)} {value:.4f}{' (decides)' if name == decides != shown[0] else ''}"
                for name, value in values.items()
            )
            self.say(f"{place}  validation {'  '.join(told)}")
