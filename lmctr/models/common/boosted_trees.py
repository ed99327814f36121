"""Gradient-boosted trees as a part of a network: fitted beside it, evaluated in PyTorch, saved and exported with it.

Shapes: B samples, Fs columns that the trees read, T tasks, M trees of a task, L leaves of a tree, Nn numeric and C categorical fields, Cr of
these, and pairs of them, with rates, V values of a field.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import initialization as init

from lmctr.models.common.tree_tables import TreeTables, can_use_tables, tables_of

MOST_PLACES = 1 << 20
"""Rows times trees that are looked up at once: what a block needs stays in the cache of a CPU."""


class BoostedTrees(nn.Module):
    """A forest per task: log-odds of columns of numbers. Nothing in it is trained by gradients.

    The trees read the columns and may read, as one more, a logistic regression on them: trees add up poorly what a sum tells.

    A row passes all inner nodes of a tree at once (QuickScorer, Lucchese et al. 2015): each that sends it right strikes out the leaves on its
    left, and the first leaf that is left is the row's; on a CPU they are looked up by column, see [`TreeTables`]. Thresholds and values are
    float32, kept as the integers of their bits, so that a model cast to half precision sorts rows as before.

    Args:
        num_columns: Fs. num_tasks: T. trees: M. leaves: L at most, up to 31.
    """

    def __init__(self, num_columns: int, num_tasks: int, trees: int, leaves: int):
        super().__init__()
        self.num_tasks, self.trees, self.leaves = num_tasks, trees, leaves
        for name, shape in (
            ("feature", (num_tasks * trees, leaves - 1)),
            ("threshold", (num_tasks * trees, leaves - 1)),
            ("kept", (num_tasks * trees, leaves - 1)),
            ("value", (num_tasks * trees, leaves)),
            ("regression", (num_tasks, num_columns + 1)),
        ):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int32))
        self._tables: TreeTables | None = None
        self.known: dict[bytes, torch.Tensor] | None = None

    def init_parameters(self, config: object) -> None:
        for buffer in self.buffers():
            init.zeros_(buffer)

    @torch.no_grad()
    def fill(self, task: int, regression: np.ndarray, forest: list[dict[str, np.ndarray]]) -> None:
        """Set the forest of a task.

        Args:
            regression: (Fs + 1,) float32, coefficients and intercept.
            forest: M trees at most, each with its inner nodes' `feature` (n,), Fs for the regression, `threshold` (n,) that larger values go
                right of, and `kept` (n,), bits of the leaves that are not on the left; and `value` (n + 1,) of its leaves from left to right.
        """
        first = task * self.trees
        self.regression[task] = _bits(regression)
        self.threshold[first : first + self.trees] = _bits(np.float32(np.inf))  # of nodes that a tree has not
        for tree, columns in enumerate(forest, first):
            # each task's own regression
            feature = columns["feature"] + task * (columns["feature"] == len(regression) - 1)
            for name, column in columns.items():
                values = feature if name == "feature" else column
                whole = np.issubdtype(values.dtype, np.integer)
                bits = torch.from_numpy(values.astype(np.int32)) if whole else _bits(values)
                getattr(self, name)[tree, : len(values)] = bits

    @torch.no_grad()
    def bake(self) -> None:
        """Keep thresholds and values as numbers from here on, in a copy that is not saved: a graph has no way to read bits as numbers."""
        for name in ("threshold", "value", "regression"):
            setattr(self, name, _floats(getattr(self, name)).clone())

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Columns (.., Fs) to float32 logits (.., T)."""
        shape = columns.shape[:-1]
        rows = columns.reshape(-1, columns.shape[-1]).to(torch.float32)
        if self.known is None or not can_use_tables(rows):
            return self._scores(rows).reshape(*shape, self.num_tasks)
        checksum = hashlib.blake2b(str(rows.shape).encode())
        for own in (rows, *self.buffers()):
            checksum.update(own.detach().contiguous().numpy())
        key = checksum.digest()
        if key not in self.known:
            self.known[key] = self._scores(rows)
        return self.known[key].reshape(*shape, self.num_tasks)

    def _scores(self, rows: torch.Tensor) -> torch.Tensor:
        """(B, Fs) to (B, T)."""
        line = _floats(self.regression)
        if rows.device.type == "mps":  # which has no doubles
            sums = _sums(line.cpu(), rows.cpu()).to(rows.device)
        else:
            sums = _sums(line, rows)
        columns = torch.cat([rows.T, sums])  # (Fs + T, B)
        scores = self._by_tables(columns) if can_use_tables(columns) else None
        return self._by_task(self._by_nodes(columns)) if scores is None else scores

    def _by_task(self, scores: torch.Tensor) -> torch.Tensor:
        """What each tree gives, (B, T M), to (B, T)."""
        return scores.unflatten(1, (self.num_tasks, self.trees)).sum(2)

    def _by_tables(self, columns: torch.Tensor) -> torch.Tensor | None:
        """(Fs + T, B) to (B, T); None of trees whose tables would be too large."""
        self._tables = tables = tables_of(self._tables, self.feature, self.threshold, self.kept)
        if tables.columns is None:
            return None
        first = torch.arange(0, self.value.numel(), self.leaves, dtype=torch.int32)
        values, found = _floats(self.value).flatten(), []
        for rows in columns.split(max(1, MOST_PLACES // len(self.value)), 1):
            places = tables.leaves(rows).add_(first)
            found.append(self._by_task(values.index_select(0, places.flatten()).view(places.shape)))
        return torch.cat(found)

    def _by_nodes(self, columns: torch.Tensor) -> torch.Tensor:
        """(Fs + T, B) to what each tree gives, (B, T M), in any graph and on any device."""
        threshold = _floats(self.threshold)
        left = torch.tensor((1 << self.leaves) - 1, dtype=torch.int32, device=columns.device)  # all leaves
        for node in range(self.leaves - 1):
            right = columns.index_select(0, self.feature[:, node]) > threshold[:, node, None]
            left = left & torch.where(right, self.kept[:, node, None], -1)  # (T M, B)
        lowest = (left & -left).clamp_min(1)  # a power of two; 0 only in trees without values
        return _floats(self.value).gather(1, (lowest.float().log2() + 0.5).long()).T


class ValueRates(nn.Module):
    """The log-odds of each value of some categorical fields, of each two values of pairs of them, and of the values of lists: float32, kept as the
    integers of their bits.

    Args:
        fields: (Cr,) places of the fields among the categorical ones, two of a pair, and last those of lists. config: of the model. num_tasks: T.
    """

    def __init__(self, fields: Sequence[int | Sequence[int]], config: Any, num_tasks: int):
        super().__init__()
        self.fields = [(field,) if isinstance(field, int) else tuple(field) for field in fields]
        self.num_categorical = len(config.vocab_sizes)
        self.vocabularies = [*range(self.num_categorical), *config.sequence_tables]  # by place
        self.sizes, self.starts, end = rated_sizes(config), [], 0
        for own in self.fields:
            self.starts.append(end)
            end += prod(self.sizes[field] for field in own)
        self.register_buffer("table", torch.zeros((end, num_tasks), dtype=torch.int32))

    def init_parameters(self, config: object) -> None:
        init.zeros_(self.table)

    @torch.no_grad()
    def fill(self, table: np.ndarray) -> None:
        """Set the log-odds (all V one field after the other, T)."""
        self.table.copy_(_bits(table))

    @torch.no_grad()
    def bake(self) -> None:
        """As [`BoostedTrees.bake`]."""
        self.table = _floats(self.table).clone()

    def forward(self, input_ids: torch.Tensor | None, sequence_ids: torch.Tensor | None) -> torch.Tensor:
        """(B, C) and (B, S, L) ids to float32 (B, T Cr), one task after the other; of a list the mean of its values, and what stands at 0 where it has
        none."""
        table, places, lists = _floats(self.table), [], []
        ids = None if input_ids is None else input_ids.long()
        for own, start in zip(self.fields, self.starts):
            if own[0] >= self.num_categorical:
                entries = sequence_ids[:, own[0] - self.num_categorical].long()
                mask = (entries > 0)[..., None]
                sums = (table[entries + start].double() * mask).sum(1)  # in doubles: no rounding sorts a row elsewhere
                mean = (sums / mask.sum(1).clamp_min(1)).to(table.dtype)
                lists.append(torch.where(mask.any(1), mean, table[start]))
                continue
            place = ids[:, own[0]]
            for field in own[1:]:
                place = place * self.sizes[field] + ids[:, field]
            places.append(place + start)
        found = [table[torch.stack(places, 1)]] if places else []  # all at once
        return torch.cat([*found, *(own[:, None] for own in lists)], 1).transpose(1, 2).flatten(1)


def rated_sizes(config: Any) -> list[int]:
    """V by place: of the categorical fields of a table's model, then of its lists."""
    sizes = [*config.vocab_sizes, *config.sequence_vocab_sizes]
    return [*config.vocab_sizes, *(sizes[table] for table in config.sequence_tables)]


class TreesBeside(nn.Module):
    """Mixes a network's logits with [`BoostedTrees`], where `config.boosted_trees` asks for some.

    Logits are (1 - share) * network + share * trees in evaluation mode, the network's alone in training: both learn the same labels by themselves,
    and the mean of two good models that err differently is better than each.

    Args:
        config: with `boosted_trees`. num_columns: Fs. num_tasks: T.
    """

    def __init__(self, config: Any, num_columns: int, num_tasks: int = 1):
        super().__init__()
        self.num_columns, self.num_tasks = num_columns, num_tasks
        self.grow(config)

    def grow(self, config: Any) -> None:
        """Take the trees of `config.boosted_trees`, still without values; None: none."""
        made = config.boosted_trees or {"share": 0.0}
        self.share, self.trees = made["share"], None
        if "trees" in made:
            num_columns = self.num_columns + len(made.get("rated_fields", ())) * self.num_tasks
            self.trees = BoostedTrees(num_columns, self.num_tasks, made["trees"], made["leaves"])

    @contextmanager
    def keeping(self, known: dict[bytes, torch.Tensor]) -> Iterator[None]:
        """Inside, on CPUs, what the same trees gave for the same rows is looked up: each evaluation of a training asks for it again."""
        trees = self.trees or self
        trees.known = known
        try:
            yield
        finally:
            trees.known = None

    def mixed(self, columns: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Columns (.., Fs) and the network's logits (.., T) to the model's."""
        if self.trees is None or self.training:
            return logits
        if self.share == 1.0 and torch.compiler.is_exporting():  # a graph then needs nothing of the network
            return self.trees(columns)
        return (1.0 - self.share) * logits + self.share * self.trees(columns)


class FieldTrees(TreesBeside):
    """Trees on the fields of a table's row: numbers, the ids of categories, of which lower ones are more frequent values, and rates:
    `rated_fields` of `config.boosted_trees`, places of categorical fields, of pairs of them, and, behind them, of lists."""

    def grow(self, config: Any) -> None:
        super().grow(config)
        rated = (config.boosted_trees or {}).get("rated_fields", ())
        self.rates = ValueRates(rated, config, self.num_tasks) if rated else None

    @property
    def reads_lists(self) -> bool:
        return self.rates is not None and self.rates.fields[-1][0] >= self.rates.num_categorical

    def forward(
        self,
        numeric_values: torch.Tensor | None,
        input_ids: torch.Tensor | None,
        sequence_ids: torch.Tensor | None,
        logits: torch.Tensor,
    ) -> torch.Tensor:
        """A row's fields and the network's logits (B, T) to the model's."""
        if self.trees is None or self.training:
            return logits
        columns = [part.to(torch.float32) for part in (numeric_values, input_ids) if part is not None]
        if self.rates is not None:
            columns.append(self.rates(input_ids, sequence_ids))
        return self.mixed(torch.cat(columns, 1), logits)

    @torch.no_grad()
    def follow(self, sources: Sequence[np.ndarray]) -> None:
        """Move the thresholds with ids that moved in their order: rows of known values go where they went before, those of new ones with
        the rarest values.

        Args:
            sources: by categorical field (V,) the id that each id was when the trees were fitted, -1 for ids of new values.
        """
        if self.trees is None:
            return
        threshold = _floats(self.trees.threshold).clone()
        for place, before in enumerate(sources, self.num_columns - len(sources)):
            ids = np.flatnonzero(before >= 0)
            own = (self.trees.feature == place) & threshold.isfinite()
            # the last one that goes left
            last = np.searchsorted(before[ids], threshold[own].numpy(), side="right") - 1
            threshold[own] = torch.from_numpy(ids[last]).to(threshold)
        self.trees.threshold.copy_(threshold.view(torch.int32))


def _sums(line: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Each task's regression (T, Fs + 1) on the rows (B, Fs), (T, B) float32; in doubles, so that no rounding sorts a row elsewhere."""
    line = line.double()
    return (line[:, :-1] @ rows.double().T + line[:, -1:]).to(torch.float32)


def _floats(bits: torch.Tensor) -> torch.Tensor:
    return bits if bits.is_floating_point() else bits.view(torch.float32)


def _bits(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).view(np.int32))
