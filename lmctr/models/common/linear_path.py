"""The way from statistics to the logits past all hidden layers: a linear map, with boosted trees beside the network.

Shapes: Fs statistics, T tasks, W width of the head's last layer.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from lmctr.models.common.boosted_trees import TreesBeside
from lmctr.models.common.layers import at_least_float32


class StatisticsSkip(TreesBeside):
    """Adds a linear map of statistics (.., Fs) to a network's logits (.., T), and mixes them with boosted trees where there are some.

    Rates and counts carry most of what simple models know, and a network whose other inputs are wide embeddings is slow to find it.
    The linear map starts at zero, so that a checkpoint without it is the same model.

    Args:
        config: with `boosted_trees`. num_statistics: Fs. num_tasks: T.
    """

    def __init__(self, config: Any, num_statistics: int, num_tasks: int = 1):
        super().__init__(config, num_statistics, num_tasks)
        self.weight = nn.Parameter(torch.empty(num_tasks, num_statistics))

    def init_parameters(self, config: Any) -> None:
        init.zeros_(self.weight)

    def forward(self, statistics: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """(.., Fs) and the network's logits (.., T) to the model's."""
        weight = at_least_float32(self.weight)  # raw numbers are too large or too long for half precision
        return self.mixed(statistics, logits + F.linear(statistics.to(weight.dtype), weight))


class LinearPath(NamedTuple):
    """What a model adds to its logits past all hidden layers, and what it adds that to.

    Args:
        skip: from statistics (.., Fs) straight to the logits (.., T), without a bias. last: the head's last layer, (.., W) to (.., T); None
            where the logits have other terms too, which a model cannot start without.
    """

    skip: StatisticsSkip
    last: nn.Linear | None

    @torch.no_grad()
    def start(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Make the network's logits `statistics @ weight.T + bias`, with weight (T, Fs) and bias (T,): the hidden layers add nothing yet.

        Without a `last` they are `statistics @ weight.T` and what the new network gives, which is little.
        """
        self.skip.weight.copy_(weight)
        if self.last is not None:
            self.last.weight.zero_()
            self.last.bias.copy_(bias)
