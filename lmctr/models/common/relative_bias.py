"""Relative biases of attention: learned numbers per bucket of distance and of time, looked up for each (query, key) pair.

Pairs are many, tables small and layers several. So which rows of the tables each pair takes is found once for all layers
([`pair_rows`]); a layer adds its two tables up for each pair of buckets and looks once ([`pair_bias`]); and a pair that may not
attend takes one more row, whose number no attention survives, in place of a mask over all pairs.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F

CPU_PART, PART = 64, 512
"""Queries of a history whose attention is computed at once, on a CPU, whose caches hold no more, and elsewhere."""


def causal_parts(width: int, device: torch.device) -> list[slice]:
    """`width` queries in parts, so that what a causal mask would leave out behind each part is not computed.

    All are one part in a compiled or exported graph, which is of any length, and so are none.
    """
    if torch.compiler.is_exporting() or torch.compiler.is_compiling():
        return [slice(0, width)]
    size = CPU_PART if device.type == "cpu" else PART
    return [slice(start, min(start + size, width)) for start in range(0, max(width, 1), size)]


def distance_bucket(distance: torch.Tensor, edges: tuple[int, ...]) -> torch.Tensor:
    """int32 buckets of whole distances: b holds edges[b] to edges[b + 1] - 1, the last one is open, the first takes what is below 0.

    Args:
        distance: of any shape. edges: rising from 0.
    """
    table = torch.tensor(_bucket_table(edges), dtype=torch.int32, device=distance.device)
    return _look_up(table, distance.clamp(0, edges[-1]))


@lru_cache(maxsize=64)
def _bucket_table(edges: tuple[int, ...]) -> tuple[int, ...]:
    ends = pairwise((*edges, edges[-1] + 1))
    return tuple(bucket for bucket, (start, end) in enumerate(ends) for _ in range(start, end))


def pair_rows(
    visible: torch.Tensor,
    position: torch.Tensor,
    time: torch.Tensor,
    sizes: tuple[int, int, int],
    group: torch.Tensor | int = 0,
) -> tuple[torch.Tensor, ...]:
    """Which rows of the tables the pairs take, int32 each, in the shape of `visible`.

    Args:
        visible: (..., Q, S) bool, the pairs that may attend. position, time: buckets that broadcast to it.
        sizes: how many groups of tables there are, and rows in each table of positions and of times.
        group: which group a pair takes; broadcasts too.

    Returns:
        Rows of the table of all sums of a position's and a time's number; of the two tables where that would outgrow the pairs, or in
        an exported graph, whose number of pairs is open.
    """
    groups, positions, times = sizes
    own = group * positions + position
    if torch.compiler.is_exporting() or groups * positions * times > visible.numel():
        rows = torch.where(visible, own, groups * positions), torch.where(visible, group * times + time, 0)
    else:
        rows = (torch.where(visible, own * times + time, groups * positions * times),)
    return tuple(part.int() for part in rows)


def pair_bias(rows: tuple[torch.Tensor, ...], position: torch.Tensor, time: torch.Tensor) -> list[torch.Tensor]:
    """The bias of each pair, a tensor (..., Q, S) per head; of pairs that may not attend, half of the lowest number of its type.

    Args:
        rows: of [`pair_rows`]. position: (h, groups, rows of a table of positions). time: (h, groups, rows of a table of times).
    """
    if len(rows) == 1:
        tables = [(position.unsqueeze(-1) + time.unsqueeze(-2)).flatten(1)]
    else:
        tables = [position.flatten(1), time.flatten(1)]
    tables[0] = F.pad(tables[0], (0, 1), value=torch.finfo(position.dtype).min / 2)
    found = []
    for head in range(len(position)):
        parts = [_look_up(table[head], part) for table, part in zip(tables, rows)]
        found.append(sum(parts[1:], parts[0]))
    return found


def _look_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`table[index]` of numbers, by the operation that is fast on a CPU, forward and backward; a graph knows no flat size of open sizes."""
    if torch.compiler.is_exporting():
        return table[index.long()]
    return table.index_select(0, index.flatten()).view(index.shape)


def add_bias(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`scores` + `bias`, in place where the types allow it; `scores` must be a product that nobody else reads."""
    return scores.add_(bias) if scores.dtype == bias.dtype else scores + bias
