"""Optimisers for large embedding tables, of which a batch touches a few per cent of the rows.

A table looked up with `sparse=True` has a COO gradient that holds the touched rows only. The optimisers here update those rows
and leave the others, their state included, untouched: a row without gradient costs nothing. The rest of the model keeps
a dense optimiser; [`GroupedOptimizer`] makes one of the two, so that a trainer, a schedule and a checkpoint see one.

V: rows of a table, D: its width, U: rows that the batch touched.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from transformers import TrainingArguments

from lmctr.models.common.base import plain_model
from lmctr.models.common.table_bank import TableBank

__all__ = [
    "EMBEDDING_OPTIMIZERS",
    "GroupedOptimizer",
    "LazyAdamW",
    "RowwiseAdagrad",
    "clip_gradients",
    "coalesce_gradients",
    "embedding_optimizer",
    "gradient_norm",
    "split_new_modules",
    "table_parameters",
    "try_optimizer",
    "use_sparse_gradients",
]


class TouchedRows(Optimizer):
    """The loop that the optimisers of tables share: rows without a gradient are not read. A subclass has `start` and `_update`."""

    def start(self, table: nn.Parameter, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The state of a table (V, D) before its first step; tensors with a dimension have a row for each of its rows."""
        raise NotImplementedError(f"{type(self).__name__} has no start")

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> Any:
        """Update the touched rows."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is None:
                    continue
                rows, gradient = _touched(table)
                state = self.state[table]
                if not state:
                    state |= self.start(table, group)
                self._update(table, rows, gradient, state, group)
        return loss


class LazyAdamW(TouchedRows):
    r"""AdamW on the rows of embedding tables that have a gradient.

    A touched row with summed gradient g is updated as in AdamW (Kingma and Ba 2015, Algorithm 1; Loshchilov and Hutter 2019):
    w <- w (1 - lr * weight_decay); m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2;
    w <- w - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps), where t counts the optimiser's steps, not the row's.

    It is not AdamW with zero gradients for the other rows: there m and v would decay and weights move on by their
    momentum and shrink by weight decay. Here a row's moments wait for its next gradient, and **weight decay acts on a row
    only in steps that touch it**: a value seen in a share s of the steps decays s times as fast. Where every row is touched
    in every step, the two are the same.

    Args:
        params: tables (V, D) or groups of them; their gradients are COO.
        lr: learning rate.
        betas: decay of the moments, each in [0, 1).
        eps: added to the denominator.
        weight_decay: decoupled, on touched rows.

    Raises:
        ValueError: values out of range.
        RuntimeError: a table with a dense gradient, at [`step`].
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        _check_range(lr=lr, eps=eps, weight_decay=weight_decay)
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must lie in [0, 1), got {betas}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def start(self, table: nn.Parameter, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        moments = {name: torch.zeros_like(table) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": torch.zeros((), dtype=torch.float32), **moments}

    def _update(
        self, table: nn.Parameter, rows: torch.Tensor, gradient: torch.Tensor, state: dict, group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        state["step"] += 1
        if not len(rows):
            return
        step, lr = float(state["step"]), float(group["lr"])
        mean = _take(state["exp_avg"], rows).lerp_(gradient, 1 - beta1)
        square = _take(state["exp_avg_sq"], rows).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        weight = _take(table, rows).mul_(1 - lr * group["weight_decay"])
        denominator = square.sqrt_().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        table.index_copy_(0, rows, weight.addcdiv_(mean, denominator, value=-lr / (1 - beta1**step)))


class RowwiseAdagrad(TouchedRows):
    r"""Adagrad with one accumulator per row of an embedding table: for D wide rows, 1/D of Adagrad's state.

    A touched row with summed gradient g: a <- a + mean(g^2); w <- w (1 - lr * weight_decay) - lr * g / (sqrt(a) + eps). It is the
    row-wise Adagrad of production recommenders (Gupta et al. 2014, section 5; "exact row-wise" in FBGEMM). Weight decay is
    decoupled and acts on a row in the steps that touch it, see [`LazyAdamW`].

    Args:
        params: tables (V, D) or groups of them; their gradients are COO.
        lr: learning rate; the steps shrink as 1 / sqrt(a), so it is usually ten times Adam's or more.
        eps: added to the denominator.
        weight_decay: decoupled, on touched rows.
        initial_accumulator_value: a before the first gradient.

    Raises:
        ValueError: values out of range.
        RuntimeError: a table with a dense gradient, at [`step`].
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-2,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
    ):
        _check_range(lr=lr, eps=eps, weight_decay=weight_decay, initial_accumulator_value=initial_accumulator_value)
        defaults = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "initial_accumulator_value": initial_accumulator_value})

    def start(self, table: nn.Parameter, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"sum": table.new_full((len(table), 1), float(group["initial_accumulator_value"]))}

    def _update(
        self, table: nn.Parameter, rows: torch.Tensor, gradient: torch.Tensor, state: dict, group: dict[str, Any]
    ) -> None:
        if not len(rows):
            return
        lr = float(group["lr"])
        total = _take(state["sum"], rows).add_(gradient.pow(2).mean(dim=1, keepdim=True))
        state["sum"].index_copy_(0, rows, total)
        weight = _take(table, rows).mul_(1 - lr * group["weight_decay"])
        table.index_copy_(0, rows, weight.addcdiv_(gradient, total.sqrt_().add_(group["eps"]), value=-lr))


EMBEDDING_OPTIMIZERS: dict[str, type[Optimizer] | None] = {
    "dense": None,
    "lazy_adam": LazyAdamW,
    "rowwise_adagrad": RowwiseAdagrad,
}
"""Values of `CTRTrainingArguments.embedding_optimizer`; "dense": the tables are trained as every other parameter."""


def embedding_optimizer(
    name: str, tables: list[nn.Parameter], lr: float, weight_decay: float, betas: tuple[float, float], eps: float
) -> Optimizer:
    """The optimiser of the embedding tables by its name in `EMBEDDING_OPTIMIZERS`; `betas` are of Adam."""
    if name == "lazy_adam":
        return LazyAdamW(tables, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    return RowwiseAdagrad(tables, lr=lr, eps=eps, weight_decay=weight_decay)


class GroupedOptimizer(Optimizer):
    """Several optimisers of different parameters as one: one step, one state, one list of parameter groups.

    The groups are those of the parts, in their order, and the very same dicts, so a schedule that sets `group["lr"]` here sets it
    there. Gradient scaling (float16) unscales before the step, as for every optimiser that does not do it itself.

    Args:
        parts: optimisers without common parameters.
    """

    def __init__(self, parts: list[Optimizer]):
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._link()

    def _link(self) -> None:
        """Let the parts see this object's groups and state."""
        place = 0
        for part in self.parts:
            count = len(part.param_groups)
            part.param_groups = self.param_groups[place : place + count]
            part.state = self.state
            place += count

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> Any:
        """One step of every part."""
        loss = _evaluate(closure)
        for part in self.parts:
            part.step()
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:  # `load_state_dict` ends here too
        super().__setstate__(state)
        if "parts" in self.__dict__:
            self._link()


# they need no package and no model
_TRIED = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")


def try_optimizer(args: TrainingArguments) -> None:
    """Make the optimiser and the schedule of training arguments once, for a weight of their own.

    Raises:
        ValueError: values that either refuses, or `optim_args` that the optimiser does not read.
    """
    from transformers import Trainer  # what only reads keys does not load it
    from transformers.optimization import get_scheduler

    if args.optim not in _TRIED:
        return
    pairs = [pair for pair in (args.optim_args or "").replace(" ", "").split(",") if pair]
    given = f"optim_args={args.optim_args!r} of optim={str(getattr(args.optim, 'value', args.optim))!r}"
    for pair in pairs:
        one = copy.copy(args)
        try:
            found = [Trainer.get_optimizer_cls_and_kwargs(one) for one.optim_args in (pair, None)]
        except ValueError as error:
            raise ValueError(f"{given}: {pair!r} is no name=number ({error})") from error
        if found[0] == found[1]:
            raise ValueError(
                f"{given}: {pair!r} is not read by this optimiser, or has an argument of its own; leave it out"
            )
    made, options = Trainer.get_optimizer_cls_and_kwargs(args)
    try:
        optimizer = made([nn.Parameter(torch.zeros(1))], **options)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{given}: {error}") from error
    steps = args.max_steps if args.max_steps > 0 else 1_000_000
    values = {"num_warmup_steps": args.get_warmup_steps(steps), "num_training_steps": steps}
    try:
        get_scheduler(args.lr_scheduler_type, optimizer, **values, scheduler_specific_kwargs=args.lr_scheduler_kwargs)
    except (ValueError, TypeError) as error:
        kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        raise ValueError(
            f"lr_scheduler_kwargs={args.lr_scheduler_kwargs!r} of lr_scheduler_type={kind!r}: {error}"
        ) from error


# ---- gradients ----

_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)


def use_sparse_gradients(model: nn.Module) -> list[nn.Parameter]:
    """Let every embedding table of a model have COO gradients, and return the tables.

    Tables are the weights of [`~lmctr.models.common.table_bank.TableBank`]s; the few rows of behaviours, scenarios or time buckets beside
    them are trained as every other parameter. In a model without banks they are the weights of `nn.Embedding` and `nn.EmbeddingBag`
    modules; a weight that is not looked up only (tied to another module) stays dense.
    """
    modules = list(model.modules())
    kinds = TableBank if any(isinstance(module, TableBank) for module in modules) else _LOOKUPS
    lookups = [module for module in modules if isinstance(module, kinds)]
    others = (module for module in modules if not isinstance(module, _LOOKUPS))
    elsewhere = {id(parameter) for module in others for parameter in module.parameters(recurse=False)}
    for module in lookups:
        if module.weight.requires_grad and id(module.weight) not in elsewhere:
            module.sparse = True
    return [table for table in table_parameters(model) if id(table) not in elsewhere]


def table_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Weights whose gradients are COO: those of embedding modules with `sparse=True`, each once."""
    sparse = (module for module in model.modules() if isinstance(module, _LOOKUPS) and module.sparse)
    return list(dict.fromkeys(module.weight for module in sparse if module.weight.requires_grad))


@torch.no_grad()
def coalesce_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the entries of each touched row, once, in place of the gradients. Tables that were read at the same rows are sorted once."""
    plans: list[_Plan] = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse and not parameter.grad.is_coalesced():
            parameter.grad = _coalesced(parameter.grad, plans)


class _Plan(NamedTuple):
    """Of the rows (N,) of a gradient's entries: each once (U,), the entries in their order (N,), and where each row's begin there (U,)."""

    rows: torch.Tensor
    touched: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor


def _coalesced(gradient: torch.Tensor, plans: list[_Plan]) -> torch.Tensor:
    """`gradient.coalesce()`, on CPUs several times as fast. `plans`: of the step's gradients so far."""
    rows, values = gradient._indices(), gradient._values()
    if not gradient.is_cpu or len(rows) != 1 or values.dim() != 2 or not len(values) or not values.is_floating_point():
        return gradient.coalesce()
    rows = rows[0]
    plan = next((plan for plan in plans if torch.equal(plan.rows, rows)), None)
    if plan is None:
        ordered, order = rows.sort(stable=True)
        first = torch.ones_like(rows, dtype=torch.bool)
        torch.ne(ordered[1:], ordered[:-1], out=first[1:])
        starts = first.nonzero()[:, 0]
        plan = _Plan(rows, ordered[starts], order, starts)
        plans.append(plan)
    # a bag of entries per row
    summed = nn.functional.embedding_bag(plan.order, values, plan.starts, mode="sum")
    return torch.sparse_coo_tensor(
        plan.touched.unsqueeze(0), summed, gradient.shape, is_coalesced=True, check_invariants=False
    )


@torch.no_grad()
def gradient_norm(parameters: Iterable[nn.Parameter], shards: Collection[nn.Parameter] = ()) -> torch.Tensor:
    """Exact 2-norm over all gradients, () float32 (float64 of such models). COO gradients are coalesced: the norm of a sum is not that of its terms.

    Args:
        shards: those of the parameters that are rows of tables whose other rows lie on other processes, which all call this.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    if shards:
        apart = {id(table) for table in shards}
        whole = gradient_norm([parameter for parameter in parameters if id(parameter) not in apart])
        own = gradient_norm([parameter for parameter in parameters if id(parameter) in apart])
        squares = own.to(parameters[0].device).square()
        dist.all_reduce(squares)
        return (whole.to(squares.device).square() + squares).sqrt()
    coalesce_gradients(parameters)
    if not parameters:
        return torch.zeros(())
    values = [_values(parameter) for parameter in parameters]
    device = values[0].device
    dtype = torch.float64 if values[0].dtype == torch.float64 else torch.float32
    norms = [torch.linalg.vector_norm(value, dtype=dtype).to(device) for value in values if value.numel()]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros((), device=device)


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, shards: Collection[nn.Parameter] = ()
) -> torch.Tensor:
    """Scale all gradients so that their common 2-norm is at most `max_norm`, as `torch.nn.utils.clip_grad_norm_`; `shards` as for
    [`gradient_norm`].

    Returns:
        The norm before, () float32.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    norm = gradient_norm(parameters, shards)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if scale.device.type == "cpu" and scale == 1.0:
        return norm  # without a pass over large tables
    for parameter in parameters:
        _values(parameter).mul_(scale.to(parameter.grad.device))
    return norm


def _values(parameter: nn.Parameter) -> torch.Tensor:
    """The numbers of a gradient: all, or those of the touched rows."""
    return parameter.grad._values() if parameter.grad.is_sparse else parameter.grad


def _touched(table: nn.Parameter) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (U,) with a gradient, each once, and their gradients (U, D)."""
    if not table.grad.is_sparse:
        raise RuntimeError(
            f"a table of shape {tuple(table.shape)} has a dense gradient; look it up with sparse=True, or train it with a dense "
            "optimiser"
        )
    gradient = table.grad if table.grad.is_coalesced() else _coalesced(table.grad, [])
    return gradient._indices()[0], gradient._values().to(table.dtype)


def _take(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a table, (U, D): on CPUs the lookup of embeddings is several times as fast as `index_select`."""
    return nn.functional.embedding(rows, table)


def _check_range(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0.0:
            raise ValueError(f"{name} must be 0 or more, got {value}")


def _evaluate(closure: Callable | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def split_new_modules(optimizer: torch.optim.Optimizer, model: nn.Module, rate: float) -> None:
    """Give what a model has beside its pretrained language model parameter groups of its own, with this learning rate.

    Raises:
        ValueError: a model that names no such modules (`peft_modules_to_save`).
    """
    names = set(getattr(plain_model(model), "peft_modules_to_save", ()))
    parts = ((set(name.split(".")), parameter) for name, parameter in model.named_parameters())
    new = {id(parameter) for words, parameter in parts if words & names and "language_model" not in words}
    if not new:
        raise ValueError(
            f"new_modules_learning_rate={rate}, but {type(plain_model(model)).__name__} has no modules beside a pretrained language "
            "model; leave it out"
        )
    for group in list(optimizer.param_groups):
        own = [parameter for parameter in group["params"] if id(parameter) in new]
        if own:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in new]
            optimizer.add_param_group({**group, "params": own, "lr": rate})
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
