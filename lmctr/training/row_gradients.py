"""Gradients of tables that stay the rows of the batch until the optimiser's step.

A dense optimiser moves every row of a table in every step, but only the rows of a batch have a gradient. Up to the step they alone are
written, summed and measured; then they are put into zeros that are kept from step to step, and taken out again after it. The step
is that of the whole gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from lmctr.models.common.base import plain_model
from lmctr.models.common.table_bank import TableBank, table_banks
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.optim import coalesce_gradients


def can_hold_rows(args: CTRTrainingArguments) -> bool:
    """Whether a training can have such gradients, and gains by them: on the CPU, in one process that is not compiled, nor launched as one of
    several, which wraps the model even where there is one."""
    is_plain = not args.fsdp and not args.deepspeed and not args.torch_compile
    is_launched = dist.is_available() and dist.is_initialized()
    return args.device.type == "cpu" and not is_launched and is_plain


class RowGradients:
    """Lets the tables of a model have the rows of the batch as their gradients, from `attach` to `release`; not where whole tables are
    regularised, and not with optimisers that are not torch's own."""

    def __init__(self) -> None:
        self._banks: list[TableBank] = []
        self._zeros: dict[nn.Parameter, torch.Tensor] = {}
        self._rows: dict[nn.Parameter, torch.Tensor] = {}
        self._handles: list[Any] = []

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Take part in the steps of the optimiser of this training."""
        inner = plain_model(model)
        regularised = getattr(getattr(inner, "config", None), "regularize_tables", False)
        is_torchs = type(optimizer).__module__.startswith("torch.optim")
        if self._handles or not is_torchs or regularised:
            return
        banks = table_banks(inner).values()
        self._banks = [bank for bank in banks if bank.weight.requires_grad and not bank.sparse]
        for bank in self._banks:
            bank.row_gradients = True
        self._handles = [
            optimizer.register_step_pre_hook(self._widen),
            optimizer.register_step_post_hook(self._narrow),
        ]

    def release(self) -> None:
        """Leave the model and the optimiser as they were."""
        for handle in self._handles:
            handle.remove()
        for bank in self._banks:
            bank.row_gradients = False
        self._handles, self._banks, self._zeros = [], [], {}

    def _widen(self, *_: Any) -> None:
        tables = [bank.weight for bank in self._banks]
        coalesce_gradients(tables)
        for table in tables:
            rows = table.grad
            if rows is None or not rows.is_sparse:
                continue
            if table not in self._zeros:
                self._zeros[table] = torch.zeros_like(table)
            table.grad = self._zeros[table].index_copy_(0, rows._indices()[0], rows._values())
            self._rows[table] = rows

    def _narrow(self, *_: Any) -> None:
        for table, rows in self._rows.items():
            self._zeros[table].index_fill_(0, rows._indices()[0], 0.0)
            table.grad = rows
        self._rows = {}
