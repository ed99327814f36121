"""The end of every layout's head (Eq. 5): Linear, LeakyReLU, Linear to one logit, and the statistics beside it.

Shapes: B batch, P width of what the head reads, Fs statistics.
"""

import torch
from torch import nn

from lmctr.models.common.base import calibrated

from .configuration_ctr_sink import CTRSinkConfig
from .statistics_tower import StatisticsTower


def projection(hidden_size: int, size: int) -> nn.Sequential:
    """H -> H/2 -> `size`."""
    middle = max(hidden_size // 2, 1)
    return nn.Sequential(nn.Linear(hidden_size, middle), nn.LeakyReLU(), nn.Linear(middle, size))


class LayoutHead(nn.Module):
    """What the heads of the layouts have in common; each says what it reads of the states.

    The statistics' MLP adds to the hidden layer before its activation, see [`StatisticsTower`]; their linear skip to the logit.

    Args:
        in_features: P. parts: the layout's own modules by name, which stand before these.
    """

    def __init__(self, config: CTRSinkConfig, in_features: int, **parts: nn.Module):
        super().__init__()
        self.config = config
        for name, part in parts.items():
            self.add_module(name, part)
        self.dense = nn.Linear(in_features, config.head_hidden_size)
        self.activation = nn.LeakyReLU()
        self.out = nn.Linear(config.head_hidden_size, 1)
        self.statistics = StatisticsTower(config) if config.num_statistics else None

    def logits(self, read: torch.Tensor | None, statistics: torch.Tensor | None) -> torch.Tensor:
        """(B, P) of the text, None where the trees alone count, and (B, Fs) scaled statistics, where the model has them, to (B,) logits."""
        if read is None:
            logits = torch.zeros((len(statistics), 1), dtype=torch.float32, device=statistics.device)
        else:
            hidden = self.dense(read)
            if self.statistics is not None:
                hidden = hidden + self.statistics(statistics)
            logits = self.out(self.activation(hidden))
        if self.statistics is not None:
            logits = self.statistics.skip(statistics, logits)
        return calibrated(self.config, logits.squeeze(-1)).clone()
