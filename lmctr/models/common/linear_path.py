"""The way from statistics to the logits past all hidden layers: linear, and with boosted trees where the model started from them.

Shapes: Fs statistics, T tasks, W width of the head's last layer.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import initialization as init

from lmctr.models.common.boosted_trees import FoldedTrees

__all__ = ["LinearPath", "StatisticsSkip"]


class StatisticsSkip(nn.Linear):
    """Statistics (.., Fs) straight to logits (.., T), past the network: a linear map, plus the [`FoldedTrees`] of `config.boosted_trees`.

    Rates and counts carry most of what simple models know, and a network whose other inputs are wide embeddings is slow to find it.
    The linear map starts at zero, so that a checkpoint without it is the same model.

    Args:
        config: with `boosted_trees`. num_statistics: Fs. num_tasks: T.
    """

    def __init__(self, config: Any, num_statistics: int, num_tasks: int = 1):
        super().__init__(num_statistics, num_tasks, bias=False)
        self.trees = None
        self.grow(config)

    def grow(self, config: Any) -> None:
        """Take the trees of `config.boosted_trees`, still without values; None: none."""
        sizes = config.boosted_trees
        self.trees = None if sizes is None else FoldedTrees(self.in_features, self.out_features, **sizes)

    def init_parameters(self, config: Any) -> None:
        init.zeros_(self.weight)

    def forward(self, statistics: torch.Tensor) -> torch.Tensor:
        logits = super().forward(statistics.to(self.weight.dtype))
        return logits if self.trees is None else logits + self.trees(statistics)


class LinearPath(NamedTuple):
    """What a model adds to its logits past all hidden layers, and what it adds that to.

    Args:
        skip: from statistics (.., Fs) straight to the logits (.., T), without a bias. last: the head's last layer, (.., W) to (.., T).
    """

    skip: StatisticsSkip
    last: nn.Linear

    @torch.no_grad()
    def start(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Make the logits `statistics @ weight.T + bias`, with weight (T, Fs) and bias (T,): the hidden layers add nothing yet."""
        self.skip.weight.copy_(weight)
        self.last.weight.zero_()
        self.last.bias.copy_(bias)
