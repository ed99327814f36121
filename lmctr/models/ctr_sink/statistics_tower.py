"""Statistics of a sample (rates, counts, times since) beside the text: what a language model of short histories cannot count.

Shapes: B batch, Fs statistics.
"""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from lmctr.models.common.embeddings import check_finite
from lmctr.models.common.linear_path import StatisticsSkip

from .configuration_ctr_sink import CTRSinkConfig


def check_statistics(statistics: torch.Tensor | None, config: CTRSinkConfig, rows: int) -> None:
    """Raise `ValueError` unless statistics are given exactly where the configuration has them, (B, Fs) finite numbers."""
    width = config.num_statistics
    if (statistics is not None) != bool(width):
        expected = f"needs statistics of shape ({rows}, {width})" if width else "takes no statistics"
        raise ValueError(
            f"statistics: {'missing' if statistics is None else 'not expected'}; this configuration {expected}"
        )
    # Sizes one by one: an exported graph has rows without a number.
    if statistics is not None and (
        statistics.dim() != 2 or statistics.shape[0] != rows or statistics.shape[1] != width
    ):
        raise ValueError(f"statistics: expected shape ({rows}, {width}), got {tuple(statistics.shape)}")
    if statistics is not None:
        check_finite("statistics", statistics, range(width))


class StatisticsLinear(nn.Linear):
    """A linear layer whose new weights keep the variance of what it reads, whatever the backbone's own scale is."""

    def __init__(self, in_features: int, out_features: int, gain: float, bias: bool = True):
        super().__init__(in_features, out_features, bias)
        self.gain = gain

    def init_parameters(self, config: CTRSinkConfig) -> None:
        init.normal_(self.weight, std=self.gain / self.in_features**0.5)
        if self.bias is not None:
            init.zeros_(self.bias)


class StatisticsTower(nn.Module):
    """An MLP over the statistics, and a linear skip from them to the logit.

    The MLP's output is added before the head's activation: the head's first layer reads the pooled state and the MLP's last
    layer side by side.
    """

    def __init__(self, config: CTRSinkConfig):
        super().__init__()
        self.knots = config.statistics_knots
        sizes = [config.num_statistics * (1 + len(self.knots)), *config.statistics_hidden_sizes]
        self.layers = nn.ModuleList([StatisticsLinear(*pair, gain=2**0.5) for pair in pairwise(sizes)])
        self.activation = nn.LeakyReLU()
        self.dropout = config.statistics_dropout
        self.join = StatisticsLinear(sizes[-1], config.head_hidden_size, gain=1.0, bias=False)
        self.skip = StatisticsSkip(config, config.num_statistics)

    def forward(self, statistics: torch.Tensor) -> torch.Tensor:
        """(B, Fs) scaled statistics to their part of the head's hidden layer (B, head_hidden_size)."""
        statistics = statistics.to(self.skip.weight.dtype)
        states = torch.cat([statistics, *[(statistics - knot).relu() for knot in self.knots]], -1)
        for layer in self.layers:
            states = F.dropout(self.activation(layer(states)), self.dropout, self.training)
        return self.join(states)
