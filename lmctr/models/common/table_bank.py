"""The table bank: the one module that holds rows of vectors by id and looks them up.

Every table of values (fields, users, items and their features) is a [`TableBank`]; no other code reads its weight by row. So a table
that is larger than one device is a table like any other to the models: its rows lie on the processes of a mesh in equal parts, one after
the other (DTensor's `Shard(0)`), and a lookup exchanges the rows that a batch needs, each once, by all-to-all.

Shapes: V rows, d vector width, B batch, n sequences, L longest sequence, U different rows that a process asks for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedConfig
from transformers import initialization as init

SLICE = 65_536  # rows that are drawn or sent at once
_mesh: ContextVar[DeviceMesh | None] = ContextVar("mesh of new tables", default=None)


class TableBank(nn.Embedding):
    """The rows of one vocabulary, or of several one after the other, as vectors of one width.

    Args:
        num_embeddings: V. embedding_dim: d. sparse: whether the weight's gradient is COO, with the rows that were looked up.
        vocabulary: of models of logs, whose ids the rows are: "items", "item_feature.0", "user_feature.0", ...
        padding_idx: a row of zeros that is never trained; None: every row is learned, row 0 of a field too, because that a value
            is missing is information.

    Attributes:
        row_gradients: whether the gradient is COO until a dense optimiser's step, see [`lmctr.training.row_gradients`].
        mesh: the processes that share the rows; None: this one has all. Of V rows on P processes, `weight` of process p holds the
            ceil(V / P) from p ceil(V / P) on, the last ones fewer.
    """

    row_gradients = False

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        vocabulary: str | None = None,
    ):
        mesh = _mesh.get()
        device = None if mesh is None else "meta"  # the whole table never exists
        super().__init__(num_embeddings, embedding_dim, padding_idx=padding_idx, sparse=sparse, device=device)
        self.mesh: DeviceMesh | None = None
        self.vocabulary = vocabulary
        if mesh is not None:
            first, last = self._share(mesh)
            self.weight = nn.Parameter(torch.empty(last - first, embedding_dim))
            self.reset_parameters()

    # ---- new rows ----

    def reset_parameters(self) -> None:
        if getattr(self, "mesh", None) is None:
            super().reset_parameters()
        else:
            self._draw(1.0)

    def init_parameters(self, config: PreTrainedConfig) -> None:
        if self.mesh is not None:
            if not getattr(self.weight, "_is_hf_initialized", False):
                self._draw(config.initializer_range)
            return
        init.normal_(self.weight, std=config.initializer_range)
        if self.padding_idx is not None and not getattr(self.weight, "_is_hf_initialized", False):
            init.zeros_(self.weight[self.padding_idx])

    @torch.no_grad()
    def _draw(self, std: float) -> None:
        """This process's rows of the table that one process would draw: all are drawn, a slice at a time, and the others forgotten."""
        # the last slice is no small one, which torch would draw otherwise
        count = max(self.num_embeddings // SLICE, 1)
        for number in range(count):
            start = number * SLICE
            end = self.num_embeddings if number == count - 1 else start + SLICE
            drawn = self.weight.new_empty(end - start, self.embedding_dim).normal_(std=std)
            if self.padding_idx is not None and start <= self.padding_idx < end:
                drawn[self.padding_idx - start] = 0
            low, high = max(start, self.first_row), min(end, self.first_row + len(self.weight))
            if low < high:
                self.weight[low - self.first_row : high - self.first_row] = drawn[low - start : high - start]

    # ---- lookups ----

    def forward(self, rows: torch.Tensor, padding: int | None = None) -> torch.Tensor:
        """Rows (...) to their vectors (..., d); `padding` is the row without a gradient, where that is not the table's own."""
        return self._look_up(rows, self.padding_idx if padding is None else padding)

    def sequence_vectors(self, ids: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, n, L) ids of sequences and the (n, 1) first rows of their vocabularies to vectors (B, n, L, d) and a bool mask (B, n, L)."""
        mask = ids != 0
        # Padding reads the first row of the table, which no id of a sequence can mean: ids from 1 lie above it. Its
        # vectors are masked; as padding the row stays out of the gradient.
        rows = (ids.to(starts.dtype) + starts) * mask
        return self(rows, 0), mask

    def block(self, rows: range) -> torch.Tensor:
        """Neighbouring rows as they are, (len(rows), d), for penalties on whole tables; of a table that lies in this process."""
        if self.mesh is not None:
            raise ValueError(
                "regularize_tables: the table's rows lie on several processes; leave regularize_tables or shard_tables out"
            )
        return self.weight[rows.start : rows.stop]

    def _look_up(self, rows: torch.Tensor, padding: int | None) -> torch.Tensor:
        if rows.dtype not in (torch.int64, torch.int32):
            rows = rows.int()
        if self.mesh is None:
            return F.embedding(rows, self.weight, padding_idx=padding, sparse=self.sparse or self.row_gradients)
        wanted, places = rows.unique(return_inverse=True)
        layout = self.rows_per_process, self.first_row, self.mesh.get_group()
        return F.embedding(places, _Exchange.apply(self.weight, wanted.long(), layout, padding, self.sparse))

    @torch.no_grad()
    def put(self, rows: torch.Tensor, vectors: torch.Tensor) -> None:
        """Give rows (n,) of the whole table the vectors (n, d); this process keeps those that it has."""
        first = 0 if self.mesh is None else self.first_row
        own = (rows >= first) & (rows < first + len(self.weight))
        self.weight[rows[own] - first] = vectors[own].to(self.weight)

    # ---- several processes ----

    def _share(self, mesh: DeviceMesh) -> tuple[int, int]:
        """Belong to a mesh; the first of this process's rows, and the one after its last."""
        self.mesh, size = mesh, mesh.size()
        self.rows_per_process = -(-self.num_embeddings // size)
        self.first_row = min(mesh.get_local_rank() * self.rows_per_process, self.num_embeddings)
        return self.first_row, min(self.first_row + self.rows_per_process, self.num_embeddings)

    def shard(self, mesh: DeviceMesh) -> None:
        """Keep this process's rows of a whole table. All processes must have the same table; `weight` is a new parameter."""
        if self.mesh is None:
            first, last = self._share(mesh)
            self.weight = nn.Parameter(
                self.weight.detach()[first:last].clone(), requires_grad=self.weight.requires_grad
            )

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """The weight, or a tensor with a row of an optimiser's state for each of its rows, as checkpoints take it: as a DTensor of all
        rows where other processes have the rest, sharing memory with it."""
        values = values.detach()
        if self.mesh is None:
            return values
        shape = torch.Size((self.num_embeddings, *values.shape[1:]))
        return DTensor.from_local(
            values,
            self.mesh,
            [Shard(0)],
            run_check=False,
            shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        )

    @torch.no_grad()
    def slices(self) -> Iterator[torch.Tensor]:
        """The whole weight in order, a slice (at most 65,536, d) on the CPU at a time, in the first process; nothing in the others, which
        must run through it too."""
        own = self.weight.detach()
        for process in range(1 if self.mesh is None else self.mesh.size()):
            rank = 0 if self.mesh is None else self.mesh.get_local_rank()
            count = len(own)
            if process:
                count = min(self.rows_per_process, max(self.num_embeddings - process * self.rows_per_process, 0))
            for start in range(0, count, SLICE):
                if rank == process:
                    part = own[start : start + SLICE].contiguous()
                    if process:
                        dist.send(part, 0)
                elif rank == 0:
                    part = own.new_empty(min(SLICE, count - start), self.embedding_dim)
                    dist.recv(part, process)
                if rank == 0:
                    yield part.cpu()


class _Exchange(torch.autograd.Function):
    """Vectors (U, d) of the different rows (U,), rising, that this process asks for, from the processes that have them; gradients go back
    the same way. As with DistributedDataParallel, a gradient is the mean over the processes."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        wanted: torch.Tensor,
        layout: tuple[int, int, dist.ProcessGroup],
        padding: int | None,
        sparse: bool,
    ) -> torch.Tensor:
        rows_per_process, first, group = layout
        sent = torch.bincount(wanted // rows_per_process, minlength=dist.get_world_size(group))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        counts = received.tolist(), sent.tolist()
        asked = wanted.new_empty(sum(counts[0]))
        dist.all_to_all_single(asked, wanted, *counts, group=group)
        asked -= first
        vectors = weight.new_empty(len(wanted), weight.shape[1])
        dist.all_to_all_single(vectors, F.embedding(asked, weight), *counts[::-1], group=group)
        ctx.save_for_backward(asked)
        ctx.facts = counts, group, None if padding is None else padding - first, sparse, weight.shape
        return vectors

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (asked,) = ctx.saved_tensors
        counts, group, padding, sparse, shape = ctx.facts
        values = gradient.new_empty(len(asked), shape[1])
        dist.all_to_all_single(values, gradient.contiguous(), *counts, group=group)
        values /= dist.get_world_size(group)
        if padding is not None:
            learned = asked != padding
            asked, values = asked[learned], values[learned]
        if sparse:
            found = torch.sparse_coo_tensor(asked[None], values, shape, check_invariants=False)
        else:
            found = values.new_zeros(shape).index_add_(0, asked, values)
        return found, None, None, None, None


@contextmanager
def sharded_tables(mesh: DeviceMesh) -> Iterator[None]:
    """Inside the block new banks hold this process's rows only, with the values that they have in one process with the same seed."""
    token = _mesh.set(mesh)
    try:
        yield
    finally:
        _mesh.reset(token)


def table_banks(model: nn.Module) -> dict[str, TableBank]:
    """The banks of a model by the names of their weights."""
    return {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, TableBank)}
