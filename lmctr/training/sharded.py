"""Training with tables whose rows lie on several processes (`CTRTrainingArguments.shard_tables`).

The rest of the model is replicated by DistributedDataParallel, which leaves the tables alone. Checkpoints hold the weights and the tables'
optimiser states in the format of `torch.distributed.checkpoint`, written by all processes at once and readable by any number of them. A
finished model is one `model.safetensors` like any other, written by the first process slice by slice: no process ever holds a whole table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from lmctr.models.common.base import plain_model
from lmctr.models.common.table_bank import TableBank, sharded_tables, table_banks
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.optim import TouchedRows

FOLDER = "sharded"
"""Of a checkpoint: weights and the tables' optimiser states."""

_WEIGHTS = "model.safetensors"
_DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.bool: "BOOL",
}


def table_mesh(args: CTRTrainingArguments) -> DeviceMesh | None:
    """The processes that share the rows of tables: all; None where they are not shared or there is only one."""
    return (
        init_device_mesh(args.device.type, (args.world_size,)) if args.shard_tables and args.world_size > 1 else None
    )


def new_tables(args: CTRTrainingArguments) -> AbstractContextManager[None]:
    """The block in which a model for [`~lmctr.training.trainer.CTRTrainer`] is best made: no process ever holds its whole tables."""
    mesh = table_mesh(args)
    return nullcontext() if mesh is None else sharded_tables(mesh)


def shard_model(model: nn.Module, args: CTRTrainingArguments) -> None:
    """Share the rows of a model's tables between the processes, and keep DistributedDataParallel from them.

    Raises:
        ValueError: a model without table banks; arguments that need whole tables in each process.
    """
    banks, name = table_banks(model), type(plain_model(model)).__name__
    if not banks:
        raise ValueError(f"shard_tables=True, but {name} has no table bank; leave shard_tables out")
    mesh = table_mesh(args)
    if mesh is None:
        return
    for option, what in (
        ("effective_rank_samples", "measures in one process"),
        ("fp16", "scales gradients process by process"),
    ):
        if getattr(args, option):
            hint = "use bf16" if option == "fp16" else "leave it out"
            raise ValueError(f"{option} {what}, which tables on several processes (shard_tables) do not allow; {hint}")
    for bank in banks.values():
        bank.shard(mesh)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, list(banks))


def sharded_banks(model: nn.Module | None) -> dict[str, TableBank]:
    """The banks whose rows lie on several processes, by the names of their weights."""
    return {} if model is None else {name: bank for name, bank in table_banks(model).items() if bank.mesh is not None}


def count_parameters(model: nn.Module) -> int:
    """Parameters of the whole model."""
    elsewhere = (
        bank.num_embeddings * bank.embedding_dim - bank.weight.numel() for bank in table_banks(model).values()
    )
    return sum(parameter.numel() for parameter in model.parameters()) + sum(elsewhere)


# ---- checkpoints ----


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    banks = table_banks(model)
    return {
        name: banks[name].whole(values) if name in banks else values for name, values in model.state_dict().items()
    }


def _row_states(model: nn.Module, optimizer: Any) -> dict[str, dict[str, torch.Tensor]]:
    """The states of the tables' optimiser by the tables' names; new where a table has none yet."""
    found = {}
    part = next(part for part in optimizer.parts if isinstance(part, TouchedRows))
    for name, bank in table_banks(model).items():
        state = optimizer.state[bank.weight]
        if not state:
            state |= part.start(bank.weight, part.param_groups[0])
        found[name] = {key: bank.whole(values) if values.dim() else values for key, values in state.items()}
    return found


def save_checkpoint(model: nn.Module, optimizer: Any, folder: str | Path) -> None:
    """Write weights and the tables' optimiser states to a checkpoint; every process calls it."""
    state = {"model": _weights(model), "rows": _row_states(model, optimizer)}
    dcp.save(state, checkpoint_id=Path(folder) / FOLDER, no_dist=not dist.is_initialized())


def load_weights(model: nn.Module, folder: str | Path) -> None:
    """Read the weights of a checkpoint, written by any number of processes; every process calls it."""
    _load({"model": _weights(model)}, folder)


def load_row_states(model: nn.Module, optimizer: Any, folder: str | Path) -> None:
    """Read the states of the tables' optimiser; every process calls it."""
    _load({"rows": _row_states(model, optimizer)}, folder)


def whole_row_states(folder: str | Path) -> dict[str, dict[str, torch.Tensor]]:
    """The states of the tables' optimiser that a checkpoint holds apart, by the tables' names, whole in this process; empty where it holds none."""
    path = Path(folder) / FOLDER
    if not path.is_dir():
        return {}
    metadata, found = dcp.FileSystemReader(path).read_metadata(), {}
    for key, (kind, *place) in metadata.planner_data.items():
        if kind == "rows":
            about = metadata.state_dict_metadata[key]
            found.setdefault(place[0], {})[place[1]] = torch.empty(about.size, dtype=about.properties.dtype)
    dcp.load({"rows": found}, checkpoint_id=path, no_dist=True)
    return found


def _load(state: dict[str, Any], folder: str | Path) -> None:
    path = Path(folder) / FOLDER
    if not path.is_dir():
        raise ValueError(
            f"{folder} has no folder {FOLDER}: it was written without shard_tables; leave shard_tables out, or train anew"
        )
    dcp.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())


@contextmanager
def without_row_states(model: nn.Module, optimizer: Any) -> Iterator[None]:
    """The block in which an optimiser's own `state_dict` leaves the tables out."""
    kept = {bank.weight: optimizer.state.pop(bank.weight, {}) for bank in table_banks(model).values()}
    try:
        yield
    finally:
        optimizer.state.update(kept)


# ---- the finished model ----


def dense_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict without the tables."""
    banks = table_banks(model)
    return {name: values for name, values in model.state_dict().items() if name not in banks}


def add_tables(model: nn.Module, folder: str | Path, is_first: bool) -> None:
    """Put the whole tables into a folder's `model.safetensors`, which holds the rest; every process calls it."""
    file = Path(folder) / _WEIGHTS
    # By falling size of their numbers, so that each tensor in the file is aligned; tables in the same order in all processes.
    banks = dict(sorted(table_banks(model).items(), key=lambda item: -item[1].weight.dtype.itemsize))
    if not is_first:
        for bank in banks.values():
            for _ in bank.slices():
                pass
        return
    dense = load_file(file)
    kinds = {name: (bank.weight.dtype, (bank.num_embeddings, bank.embedding_dim)) for name, bank in banks.items()}
    kinds |= {name: (values.dtype, tuple(values.shape)) for name, values in dense.items()}
    order = sorted(kinds, key=lambda name: -kinds[name][0].itemsize)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in order:
        dtype, shape = kinds[name]
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    new = file.with_suffix(".new")
    with open(new, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            for part in banks[name].slices() if name in banks else [dense[name]]:
                out.write(part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    os.replace(new, file)
