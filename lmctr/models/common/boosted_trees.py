"""Gradient-boosted trees as a part of a network: frozen, evaluated in PyTorch, cross-fitted so that a network can learn what they leave.

Shapes: B samples, Fs statistics, T tasks, K folds, M trees of a fold, N nodes of a tree.
"""

import numpy as np
import torch
from torch import nn
from transformers import initialization as init

__all__ = ["FoldedTrees", "folds_of"]

# Odd, as large as 64 bits allow with a sign: what is multiplied with them spreads over all bits.
_SPREAD, _MIX = -7046029254386353131, -4417276706812531889


def folds_of(statistics: np.ndarray | torch.Tensor, folds: int) -> np.ndarray | torch.Tensor:
    """(..,) the fold of each row of float32 statistics (.., Fs): a hash of their bits, so equal rows are of one fold, wherever they are met."""
    if isinstance(statistics, np.ndarray):
        bits = np.ascontiguousarray(statistics, dtype=np.float32).view(np.int32).astype(np.int64)
        with np.errstate(over="ignore"):
            places = np.arange(1, bits.shape[-1] + 1) * np.int64(_SPREAD) | 1
            mixed = (bits * places).sum(-1) * np.int64(_MIX)
    else:
        bits = statistics.to(torch.float32).contiguous().view(torch.int32).long()
        places = torch.arange(1, bits.shape[-1] + 1, device=bits.device) * _SPREAD | 1
        mixed = (bits * places).sum(-1) * _MIX
    return (mixed >> 32) % folds


class FoldedTrees(nn.Module):
    """K forests per task, each boosted on the samples outside one fold; a row's logit is that of trees that have not seen it.

    In training mode a row of statistics is scored by the forest of its fold ([`folds_of`]), which was fitted without the row: what is left of
    its label is honest, and a network can be trained on top without learning how the trees overfit. In evaluation mode the forests' mean scores.
    The trees read the statistics and, as one more column, a logistic regression on them (trees add up poorly what a sum tells). Nothing here
    is trained by gradients. As a start of networks: He et al. 2014, Practical Lessons from Predicting Clicks on Ads at Facebook, Section 3.1
    (there the leaves are inputs); cross-fitting: Wolpert 1992, Stacked Generalization.

    A row passes all inner nodes of a tree at once (QuickScorer, Lucchese et al. 2015): each that sends it right strikes out the leaves on its
    left, and the first leaf that is left is the row's. Thresholds and values are float32, kept as the integers of their bits, so that a
    model cast to half precision sorts rows as before.

    Args:
        num_statistics: Fs. num_tasks: T. folds: K. trees: M. leaves: L of a tree at most, up to 16.
    """

    def __init__(self, num_statistics: int, num_tasks: int, folds: int, trees: int, leaves: int):
        super().__init__()
        self.num_tasks, self.folds, self.trees, self.leaves = num_tasks, folds, trees, leaves
        forests, nodes = num_tasks * folds, leaves - 1
        for name, shape in (
            ("feature", (forests * trees, nodes)),
            ("threshold", (forests * trees, nodes)),
            ("kept", (forests * trees, nodes)),
            ("value", (forests * trees, leaves)),
            ("regression", (forests, num_statistics + 1)),
        ):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int32))

    def init_parameters(self, config: object) -> None:
        for buffer in self.buffers():
            init.zeros_(buffer)

    @torch.no_grad()
    def fill(self, task: int, fold: int, regression: np.ndarray, forest: list[dict[str, np.ndarray]]) -> None:
        """Set one forest.

        Args:
            regression: (Fs + 1,) float32, coefficients and intercept.
            forest: M trees at most, each with its inner nodes' `feature` (n,), Fs for the regression, `threshold` (n,) that larger values go
                right of, and `kept` (n,), bits of the leaves that are not on the left; and `value` (n + 1,) of its leaves from left to right.
        """
        place = task * self.folds + fold
        self.threshold[place * self.trees : (place + 1) * self.trees] = _bits(
            np.float32(np.inf)
        )  # of nodes that a tree has not
        self.regression[place] = _bits(regression)
        for tree, columns in enumerate(forest, place * self.trees):
            feature = columns["feature"] + place * (
                columns["feature"] == len(regression) - 1
            )  # each forest's own regression
            for name, column in columns.items():
                values = feature if name == "feature" else column
                whole = np.issubdtype(values.dtype, np.integer)
                getattr(self, name)[tree, : len(values)] = (
                    torch.from_numpy(values.astype(np.int32)) if whole else _bits(values)
                )

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
        columns = torch.cat([rows.T, sums.to(torch.float32)])  # (Fs + T K, B)
        if not self.training:
            scores = self._scores(columns, slice(None)).mean(1).T
        elif len(rows) <= 512:  # all forests at once are faster than one after the other
            own = folds_of(rows, self.folds).expand(self.num_tasks, 1, -1)
            scores = self._scores(columns, slice(None)).gather(1, own)[:, 0].T
        else:
            folds, scores = folds_of(rows, self.folds), rows.new_zeros(len(rows), self.num_tasks)
            for fold in range(self.folds):
                own = (folds == fold).nonzero()[:, 0]
                scores[own] = self._scores(columns[:, own], slice(fold, fold + 1))[:, 0].T
        return scores.reshape(*statistics.shape[:-1], self.num_tasks)

    def _scores(self, columns: torch.Tensor, folds: slice) -> torch.Tensor:
        """(T, K', B) sums of the trees of some folds."""
        feature, threshold, kept, value = (
            buffer.unflatten(0, (self.num_tasks, self.folds, self.trees))[:, folds].flatten(0, 2)
            for buffer in (self.feature, _floats(self.threshold), self.kept, _floats(self.value))
        )
        left = torch.tensor((1 << self.leaves) - 1, dtype=torch.int32, device=kept.device)
        for node in range(self.leaves - 1):
            right = columns.index_select(0, feature[:, node]) > threshold[:, node, None]
            left = left & torch.where(right, kept[:, node, None], -1)  # (T K' M, B)
        first = _first_bits(self.leaves, left.device)[left.long()]
        scores = value.gather(1, first)
        return scores.unflatten(0, (self.num_tasks, -1, self.trees)).sum(2)


def _first_bits(bits: int, device: torch.device) -> torch.Tensor:
    """(2^bits,) the place of the lowest bit of each number; 0 for 0."""
    numbers = torch.arange(1 << bits, device=device)
    return sum(((numbers & ((2 << place) - 1)) == 0).long() for place in range(bits)) % bits


def _floats(bits: torch.Tensor) -> torch.Tensor:
    return bits if bits.is_floating_point() else bits.view(torch.float32)


def _bits(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32).view(np.int32))
