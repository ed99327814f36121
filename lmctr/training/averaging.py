"""The exponential moving average of the weights: what is evaluated, saved and chosen is the average, what trains are the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lmctr.training.optim import coalesce_gradients, table_parameters

AVERAGE_FILE = "weight_average.safetensors"
_HALF = (torch.float16, torch.bfloat16)


class WeightAverage(TrainerCallback):
    r"""Average of the weights w_1 .. w_T after each optimiser step, the newest counting most.

    a_T = sum_t d^(T-t) w_t / sum_t d^(T-t), with the decay d. It begins with w_1, not with the initial weights, so that short trainings
    need no other decay. Every step moves a by (w - a) (1 - d) / (1 - d^T). A row of a table with sparse gradients that was left
    alone for k steps moves by (w - a) (1 - d^k) / (1 - d^T) at once, just before a step changes it or when the average is asked for: a
    step costs the rows that it touches. Averaged are trained parameters and the statistics of batch norms.

    Args:
        decay: d, in (0, 1).

    Attributes:
        step: optimiser steps so far; 0 where there is nothing to average.
    """

    def __init__(self, decay: float):
        self.decay, self.step = decay, 0
        self._is_applied = False
        self._weights: dict[str, torch.Tensor] = {}
        self._averages: dict[str, torch.Tensor] = {}
        self._last: dict[str, torch.Tensor] = {}  # by table, the step that each of its rows is averaged up to

    def begin(self, model: nn.Module) -> None:
        """Forget what was averaged and follow the weights of `model`."""
        self.step, parameters = 0, {id(parameter) for parameter in model.parameters()}
        followed = {}
        for name, values in model.state_dict(keep_vars=True).items():
            if values.is_floating_point() and (values.requires_grad or id(values) not in parameters):
                followed.setdefault(id(values), (name, values))  # tied weights once
        tables = {id(table) for table in table_parameters(model)}
        self._weights = dict(followed.values())
        self._averages = {
            name: torch.zeros_like(values, dtype=torch.float32 if values.dtype in _HALF else None).detach()
            for name, values in self._weights.items()
        }
        self._last = {
            name: torch.zeros(len(values), dtype=torch.int32, device=values.device)
            for name, values in self._weights.items()
            if id(values) in tables
        }

    # ---- steps ----

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **kwargs
    ) -> None:
        if not self._weights:  # a resumed run has loaded them
            self.begin(model)

    @torch.no_grad()
    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        """Bring the rows of tables up to date that the step is going to change."""
        for name, last in self._last.items():
            table, average = self._weights[name], self._averages[name]
            if table.grad is None or not self.step:
                continue
            coalesce_gradients([table])
            rows = table.grad.indices()[0] if table.grad.is_sparse else torch.arange(len(table), device=table.device)
            average.index_copy_(0, rows, self._rows_now(average[rows], table[rows], last[rows]))
            last.index_fill_(0, rows, self.step)

    @torch.no_grad()
    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        if getattr(kwargs.get("optimizer"), "step_was_skipped", False):  # float16 gradients overflowed: no w_t
            return
        self.step += 1
        dense = [name for name in self._weights if name not in self._last]
        averages = [self._averages[name] for name in dense]
        weights = [self._weights[name].detach().to(self._averages[name].dtype) for name in dense]
        if averages:
            torch._foreach_lerp_(averages, weights, (1 - self.decay) / (1 - self.decay**self.step))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """The average is the result of a training that does not end with a checkpoint's weights."""
        if self.step:
            self._put(self._now())
        self.clear()

    def clear(self) -> None:
        """Forget weights and averages."""
        self.step, self._weights, self._averages, self._last = 0, {}, {}, {}

    # ---- the average ----

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with averaged weights inside the block, and inside such a block in it."""
        if not self.step or self._is_applied:
            yield
            return
        kept = {name: values.detach().clone() for name, values in self._weights.items()}
        self._put(self._now())
        self._is_applied = True
        try:
            yield
        finally:
            self._is_applied = False
            self._put(kept)

    @torch.no_grad()
    def _now(self) -> dict[str, torch.Tensor]:
        rows = {
            name: self._rows_now(self._averages[name], self._weights[name], last) for name, last in self._last.items()
        }
        return self._averages | rows

    def _rows_now(self, average: torch.Tensor, weight: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Averages (U, D) of rows, up to this step, from those up to their `last` (U) step and their weights since."""
        left_alone = self.step - last.double()
        share = (1 - self.decay**left_alone) / (1 - self.decay**self.step)
        return torch.lerp(average, weight.to(average.dtype), share.to(average.dtype).unsqueeze(1))

    @torch.no_grad()
    def _put(self, values: dict[str, torch.Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(values[name])

    # ---- checkpoints ----

    def save(self, folder: str | Path) -> None:
        """Write the weights and their averages to a checkpoint, whose model file holds the averaged ones."""
        parts = {"weight": self._weights, "average": self._averages, "last": self._last}
        tensors = {
            f"{part}.{name}": values.detach().contiguous().cpu()
            for part, own in parts.items()
            for name, values in own.items()
        }
        save_file(tensors, Path(folder) / AVERAGE_FILE, metadata={"step": str(self.step), "decay": repr(self.decay)})

    @torch.no_grad()
    def load(self, model: nn.Module, folder: str | Path) -> None:
        """Go on from a checkpoint: `model` gets the weights that were training.

        Raises:
            ValueError: the checkpoint holds no average, or one with another decay.
        """
        file = Path(folder) / AVERAGE_FILE
        if not file.is_file():
            raise ValueError(
                f"{folder} has no {AVERAGE_FILE}: it was written without ema_decay, now it is {self.decay}; leave ema_decay out, or "
                "train from the start"
            )
        self.begin(model)
        with safe_open(file, framework="pt") as kept:
            facts = kept.metadata()
            if float(facts["decay"]) != self.decay:
                raise ValueError(
                    f"{folder} was written with ema_decay={facts['decay']}, now it is {self.decay}; keep it, or train from the start"
                )
            self.step = int(facts["step"])
            for part, own in (("weight", self._weights), ("average", self._averages), ("last", self._last)):
                for name, values in own.items():
                    values.copy_(kept.get_tensor(f"{part}.{name}"))
