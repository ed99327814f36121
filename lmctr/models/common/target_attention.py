"""TWIN's target attention: one set of weights that searches (GSU) and reads (ESU) a long history; shared by TWIN and DLRMTwin.

Paper: https://arxiv.org/abs/2302.02352 (TWIN, Kuaishou), section on the feature split and the target attention. The equations are
numbered here, for the comments below:

(a) K = [K_h, K_c]: features of a behaviour that belong to the item (inherent: item and its features), and those between user and
    item (cross: here behaviour type, scenario and the time since). K_h W^h is computed once per event, whatever the candidates are.
(b) Each cross feature j, a vector of `cross_dim` values, is compressed to one number: (K_c W^c)_j = K_{c,j} w^c_j.
(c) alpha = (K_h W^h)(W^q q) / sqrt(d_head) + (K_c W^c) beta, with the candidate's inherent features as q. The cross part is a bias.
(d) GSU: the k events with the greatest alpha.
(e) ESU: softmax of the *same* alpha over these, times K W^v with both kinds of features; heads side by side, times W^o.

Shapes: B rows, N events, C candidates, h heads, d hidden size, J cross features.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration import SequenceCTRConfig
from .layers import at_least_float32, split_heads
from .products import weight_and_bias
from .sequence import SequenceInputs, time_bucket, visible_events


class TwinAttentionConfig(SequenceCTRConfig):
    r"""Configuration of the families with TWIN's two-stage attention; see [`SequenceCTRConfig`] for the keys of the data.

    Args:
        hidden_size (`int`, defaults to 64): width of items, queries, keys and values over all heads.
        num_attention_heads (`int`, defaults to 4): as in the paper.
        cross_dim (`int`, defaults to 8): width of each cross feature (behaviour type, scenario, time since), as in the paper.
        num_time_buckets (`int`, defaults to 32): powers of two of the seconds between event and candidate.
        num_selected (`int`, defaults to 100): events that GSU hands on to ESU, as in the paper (1000 in Climber's comparison).
        hidden_act (`str`, defaults to `"relu"`): activation of the hidden layers behind the attention.
        dropout (`float`, defaults to 0.0): after each of them, in training.
        micro_batch_size (`int`, defaults to 512): candidates searched at once where no gradients are needed. Bounds the memory.
    """

    hidden_size: int = 64
    num_attention_heads: int = 4
    cross_dim: int = 8
    num_time_buckets: int = 32
    num_selected: int = 100
    head_hidden_sizes: list[int] | None = None
    hidden_act: str = "relu"
    dropout: float = 0.0
    micro_batch_size: int = 512

    def validate_values(self) -> None:
        super().validate_values()
        self._require_whole_heads()
        self._validate_layers(("cross_dim", "num_time_buckets", "num_selected", "micro_batch_size"))
        self._require_whole("num_time_buckets", least=2)
        self._require_activation()


class SearchedHistory(NamedTuple):
    """What two-stage attention found.

    interest: (B, C, d). selected: (B, C, N) bool, what GSU kept. weights: (B, h, C, N), ESU's softmax.
    """

    interest: torch.Tensor
    selected: torch.Tensor
    weights: torch.Tensor


class TwinAttention(GradientCheckpointingLayer):
    """The target attention (a)-(e).

    **Decided.** Each head has its alpha; GSU hands on one set of events, by the mean of alpha over heads. With k at least as large as
    the history, GSU keeps all and the two stages are plain target attention.

    The time since depends on the candidate, so its part of the bias is a table of one number per bucket and head that each pair looks
    up, and its part of the values is added up per bucket: nothing larger than (B, h, C, N) exists, whatever k is.
    """

    def __init__(self, config: TwinAttentionConfig, num_static: int):
        super().__init__()
        dim, num_heads, cross_dim = config.hidden_size, config.num_attention_heads, config.cross_dim
        self.num_heads, self.head_dim, self.num_selected = num_heads, dim // num_heads, config.num_selected
        self.time_embedding = nn.Embedding(config.num_time_buckets, cross_dim)
        self.key = nn.Linear(dim, dim, bias=False)  # W^h
        self.query = nn.Linear(dim, dim, bias=False)  # W^q
        self.value = nn.Linear(dim, dim, bias=False)  # the part of W^v for K_h
        self.cross_value = nn.Linear((num_static + 1) * cross_dim, dim, bias=False)  # and for K_c
        self.cross_key = nn.Parameter(torch.zeros(num_heads, num_static + 1, cross_dim))  # w^c_j
        self.beta = nn.Parameter(torch.ones(num_heads, num_static + 1))
        self.output = nn.Linear(dim, dim, bias=False)  # W^o

    def init_parameters(self, config: SequenceCTRConfig) -> None:
        init.normal_(self.cross_key, mean=0.0, std=config.initializer_range)
        init.ones_(self.beta)

    def project(self, inherent: torch.Tensor, cross: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(a), (b): what of the events does not depend on candidates; once per row.

        Args:
            inherent: (B, N, d). cross: (B, N, J - 1, cross_dim), all but the time since.

        Returns:
            Keys and values (B, h, N, d_head), bias (B, h, N).
        """
        compressed = torch.einsum("bnjc,hjc->bhnj", cross, self.cross_key[:, :-1])  # (b)
        bias = (compressed * self.beta[:, None, :-1]).sum(-1)
        static = weight_and_bias(self.cross_value, inherent)[0][:, : cross.shape[2] * cross.shape[3]]
        value = self.value(inherent) + F.linear(cross.flatten(2), static)
        return split_heads(self.key(inherent), self.num_heads), split_heads(value, self.num_heads), bias

    def forward(
        self,
        queries: torch.Tensor,
        inherent: torch.Tensor,
        cross: torch.Tensor,
        times: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor,
        size: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(a)-(e), `size` candidates at a time: the parts of a [`SearchedHistory`].

        Args:
            queries: (B, C, d), the candidates' inherent features. inherent, cross: the events', see `project`.
            times: (B, C) seconds of the candidates and (B, N) of the events. visible: (B, C, N) bool.
        """
        projected, found = self.project(inherent, cross), []
        for start in [0] if torch.compiler.is_exporting() else range(0, queries.shape[1], size):
            part = slice(start, start + size)
            bucket = time_bucket(times[0][:, part, None] - times[1][:, None], len(self.time_embedding.weight))
            found.append(self._attend(queries[:, part], *projected, bucket, visible[:, part]))
        interest, selected, weights = zip(*found)
        return torch.cat(interest, 1), torch.cat(selected, 1), torch.cat(weights, 2)

    def _attend(
        self,
        queries: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor,
        bucket: torch.Tensor,
        visible: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(c)-(e) of some candidates, from what `project` gives; bucket: (B, C, N), time since each event."""
        # (buckets, cross_dim)
        times = self.time_embedding(torch.arange(len(self.time_embedding.weight), device=bucket.device))
        of_time = self.beta[:, -1:] * (self.cross_key[:, -1] @ times.T)  # (h, buckets)
        query = split_heads(self.query(queries), self.num_heads)
        alpha = query @ key.transpose(-1, -2) / math.sqrt(self.head_dim) + bias[:, :, None]  # (c)
        alpha = at_least_float32(alpha + of_time[:, bucket].transpose(0, 1))
        lowest = torch.finfo(alpha.dtype).min
        with torch.no_grad():  # (d)
            count = min(self.num_selected, visible.shape[-1])
            best = alpha.mean(1).masked_fill(~visible, lowest).topk(count, dim=-1).indices
            selected = torch.zeros_like(visible).scatter(-1, best, True) & visible
        chosen = selected[:, None]
        weights = (alpha.masked_fill(~chosen, lowest).softmax(-1) * chosen).to(value.dtype)  # (e); 0 without any event
        per_bucket = weights.new_zeros(*weights.shape[:-1], len(times))
        per_bucket = per_bucket.scatter_add(-1, bucket[:, None].expand_as(weights), weights)
        of_time = F.linear(times, weight_and_bias(self.cross_value, queries)[0][:, -times.shape[1] :])  # (buckets, d)
        of_time = of_time.unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)
        mixed = weights @ value + per_bucket @ of_time
        return self.output(mixed.transpose(1, 2).flatten(2)), selected, weights


class TwinEncoder(nn.Module):
    """Embeddings and [`TwinAttention`] over the row's history; `config` has the keys of [`TWINConfig`].

    The vectors of the items are handed in, so that a model can use their tables elsewhere too.
    """

    def __init__(self, config: SequenceCTRConfig):
        super().__init__()
        self.behavior_embedding = nn.Embedding(config.num_behaviors, config.cross_dim)
        self.scenario_embedding = nn.Embedding(config.num_scenarios, config.cross_dim)
        self.attention = TwinAttention(config, num_static=2)
        self.micro_batch_size = config.micro_batch_size

    def forward(self, inputs: SequenceInputs, inherent: torch.Tensor, queries: torch.Tensor) -> SearchedHistory:
        """Both stages for all candidates; where no gradients are needed, `micro_batch_size` of them at a time.

        Args:
            inputs: checked inputs. inherent: (B, N, d), the items' vectors of the events. queries: (B, C, d), those of the candidates.
        """
        cross = torch.stack(
            [self.behavior_embedding(inputs.history_behaviors), self.scenario_embedding(inputs.history_scenarios)],
            dim=2,
        )
        times, visible = (inputs.candidate_times, inputs.history_times), visible_events(inputs)
        size = queries.shape[1] if torch.is_grad_enabled() else self.micro_batch_size
        return SearchedHistory(*self.attention(queries, inherent, cross, times, visible, size))
