"""One readable line per log entry of the trainer, from the first process only."""

from __future__ import annotations

import time
from collections.abc import Callable

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class ProgressLines(TrainerCallback):
    """Prints losses while training and the metrics of each evaluation.

    Args:
        stage: tells the current stage (1, 2 or None).
        say: prints a line.
    """

    def __init__(self, stage: Callable[[], int | None], say: Callable[[str], None]):
        self.stage = stage
        self.say = say
        self.began = time.monotonic()
        self.first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> TrainerControl:
        self.began, self.first_step = time.monotonic(), state.global_step
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs,
    ) -> TrainerControl:
        logs = logs or {}
        if not state.is_world_process_zero:
            return control
        stage = f"stage {self.stage()} " if self.stage() is not None and args.stage1_epochs else ""
        place = f"{stage}epoch {state.epoch or 0:.2f} step {state.global_step}/{state.max_steps}"
        if "loss" in logs:
            done = state.global_step - self.first_step
            passed = time.monotonic() - self.began
            left = passed / max(done, 1) * (state.max_steps - state.global_step)
            self.say(
                f"{place}  loss {logs['loss']:.4f}  lr {logs['learning_rate']:.2e}  "
                f"{clock(passed)} passed, {clock(left)} left"
            )
        elif "eval_auc" in logs:
            self.say(
                f"{place}  validation AUC {logs['eval_auc']:.4f}  logloss {logs['eval_log_loss']:.4f}"
                + (f"  gAUC {logs['eval_grouped_auc']:.4f}" if "eval_grouped_auc" in logs else "")
            )
        elif "eval_revenue_ratio" in logs:
            self.say(f"{place}  validation R/R* {logs['eval_revenue_ratio']:.4f}  NDCG {logs['eval_ndcg']:.4f}")
        return control


def clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
