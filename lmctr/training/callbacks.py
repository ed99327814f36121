"""Callbacks of the two-stage training of CTR-Sink (arXiv 2508.03668, section 3.2)."""

from __future__ import annotations

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lmctr.models.common.base import CTRPreTrainedModel, plain_model
from lmctr.utils.stopping import HeldInterrupt


class TwoStageCallback(TrainerCallback):
    """Knows the stage: in stage 1 the prediction pools the sinks, in stage 2 all tokens (Eq. 5-6).

    The stage is worked out from the state at each epoch's beginning, so a resumed run continues in the right stage.
    Optimiser and schedule run on over both stages.

    Attributes:
        stage: 1 or 2; None before the first epoch begins.
        epoch_state: what the model kept when the checkpoint was written that a training goes on from, until its epoch begins again.
    """

    def __init__(self) -> None:
        self.stage: int | None = None
        self.epoch_state: dict[str, torch.Tensor] = {}

    @property
    def pooling(self) -> str:
        """What training pools now: "sinks" or "all"."""
        return "sinks" if self.stage == 1 else "all"

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        # The state counts finished epochs: exactly k at the beginning of epoch k, k and a part after a mid-epoch resume.
        epoch = int(state.epoch or 0)
        # `max_steps` may go on past the epochs: without a second stage all of them are of the first.
        self.stage = 1 if epoch < args.stage1_epochs or not args.stage2_epochs else 2
        model = plain_model(kwargs["model"]) if kwargs.get("model") is not None else None
        if isinstance(model, CTRPreTrainedModel):
            model.begin_epoch()
            if self.epoch_state:
                model.load_epoch_state(self.epoch_state)
        self.epoch_state = {}
        loader = kwargs.get("train_dataloader")
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)


class StageTwoEarlyStopping(TrainerCallback):
    """Stops when `early_stopping_patience` stage-2 evaluations in a row brought no improvement.

    Works from the log history in the trainer's state alone, so a resumed run decides as an uninterrupted one.
    """

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        if should_stop(args, state):
            control.should_training_stop = True


class StopAt(TrainerCallback):
    """Ends a training after so many optimiser steps, on a schedule that would go on.

    Args:
        step: the last one.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        if state.global_step >= self.step:
            control.should_training_stop = True


class EndAtInterrupt(TrainerCallback):
    """Ends a training by a `KeyboardInterrupt` behind the first checkpoint after a Ctrl-C: within an epoch one of its own, as the epoch's end may be
    hours away; at the end of one that which is written there, behind the measurement.

    Args:
        held: knows of the Ctrl-C.
    """

    def __init__(self, held: HeldInterrupt) -> None:
        self.held = held

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        if self.held.came and (state.epoch or 0) % 1:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        if self.held.came:
            raise self.held.interrupt


def should_stop(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether the stage-2 evaluations so far end the training."""
    patience = getattr(args, "early_stopping_patience", None)
    if patience is None:
        return False
    name = f"eval_{(args.metric_for_best_model or 'auc').removeprefix('eval_')}"
    sign = 1.0 if args.greater_is_better else -1.0
    best, waited = None, 0
    for entry in state.log_history:  # oldest first
        if name not in entry or entry.get("epoch", 0.0) <= args.stage1_epochs:
            continue
        if best is None or sign * (float(entry[name]) - best) > args.early_stopping_threshold:
            best, waited = float(entry[name]), 0
        else:
            waited += 1
    return waited >= patience
