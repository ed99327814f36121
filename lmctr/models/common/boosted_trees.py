"""Gradient-boosted trees as a part of a network: fitted beside it, evaluated in PyTorch, saved and exported with it.

Shapes: B samples, Fs statistics, T tasks, M trees of a task, L leaves of a tree.
"""

import numpy as np
import torch
from torch import nn
from transformers import initialization as init

__all__ = ["BoostedTrees"]


class BoostedTrees(nn.Module):
    """A forest per task: log-odds of statistics. Nothing in it is trained by gradients.

    The trees read the statistics and may read, as one more column, a logistic regression on them: trees add up poorly what a sum tells.

    A row passes all inner nodes of a tree at once (QuickScorer, Lucchese et al. 2015): each that sends it right strikes out the leaves on its
    left, and the first leaf that is left is the row's. Thresholds and values are float32, kept as the integers of their bits, so that a
    model cast to half precision sorts rows as before.

    Args:
        num_statistics: Fs. num_tasks: T. trees: M. leaves: L at most, up to 16.
    """

    def __init__(self, num_statistics: int, num_tasks: int, trees: int, leaves: int):
        super().__init__()
        self.num_tasks, self.trees, self.leaves = num_tasks, trees, leaves
        for name, shape in (
            ("feature", (num_tasks * trees, leaves - 1)),
            ("threshold", (num_tasks * trees, leaves - 1)),
            ("kept", (num_tasks * trees, leaves - 1)),
            ("value", (num_tasks * trees, leaves)),
            ("regression", (num_tasks, num_statistics + 1)),
        ):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int32))

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
            feature = columns["feature"] + task * (
                columns["feature"] == len(regression) - 1
            )  # each task's own regression
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

    def forward(self, statistics: torch.Tensor) -> torch.Tensor:
        """Statistics (.., Fs) to float32 logits (.., T)."""
        rows = statistics.reshape(-1, statistics.shape[-1]).to(torch.float32)
        line = _floats(self.regression).double()
        sums = line[:, :-1] @ rows.double().T + line[:, -1:]  # double: no rounding sorts a row elsewhere
        columns = torch.cat([rows.T, sums.to(torch.float32)])  # (Fs + T, B)
        threshold = _floats(self.threshold)
        left = torch.tensor((1 << self.leaves) - 1, dtype=torch.int32, device=rows.device)  # all leaves
        for node in range(self.leaves - 1):
            right = columns.index_select(0, self.feature[:, node]) > threshold[:, node, None]
            left = left & torch.where(right, self.kept[:, node, None], -1)  # (T M, B)
        lowest = (left & -left).clamp_min(1)  # a power of two; 0 only in trees without values
        scores = _floats(self.value).gather(1, (lowest.float().log2() + 0.5).long())
        return (
            scores.unflatten(0, (self.num_tasks, self.trees)).sum(1).T.reshape(*statistics.shape[:-1], self.num_tasks)
        )


def _floats(bits: torch.Tensor) -> torch.Tensor:
    return bits if bits.is_floating_point() else bits.view(torch.float32)


def _bits(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).view(np.int32))
