"""Per-token sparse mixtures of experts with ReLU routing (RankMixer, arXiv 2507.15551, Sec. 3.4).

Shapes: B batch, T tokens, D token size, E experts per token, K hidden width of an expert.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init

from lmctr.models.common.base import version_of
from lmctr.models.common.tokens import TokenwiseLinear

from .configuration_rank_mixer import RankMixerConfig

# Factor by which lambda moves after a training step. With 1.2 the share swings around its target, and experts that an
# overshoot closes for all rows stay closed: ReLU gives them no gradient.
_STEP = 1.05


class Router(TokenwiseLinear):
    """h of G = ReLU(h(s)), a linear layer per token. All experts are open at first, with gates around 1/E."""

    def init_parameters(self, config: RankMixerConfig) -> None:
        init.normal_(self.weight, std=0.1 / (config.num_experts * config.token_dim**0.5))
        init.constant_(self.bias, 1.0 / config.num_experts)


class SparseExperts(nn.Module):
    """v_t = sum over e of G_{t,e} expert_{t,e}(s_t), G = ReLU(h(s_t)): (T, B, D) to (T, B, D).

    Dense training, sparse inference: `train_router` is free and keeps all experts learning, `infer_router` carries the L1
    penalty and alone routes in eval mode. The paper says that both are updated and not how they share a step. Decided: in
    training each row draws which router it goes through, in all tokens of a layer, so that each router learns from the
    task as the only one; averaging the two gates would leave the network used to a mixture that inference never sees.

    An expert is a two-layer network. Experts of a token stand side by side in one matrix: the gates weigh their hidden
    states, which is the same sum. In eval mode without gradients only the rows of active experts are computed, where
    that is less work: rows are gathered to the longest list of any expert.
    """

    def __init__(self, config: RankMixerConfig):
        super().__init__()
        tokens, size = config.num_tokens, config.token_dim
        self.num_experts, self.hidden = config.num_experts, round(config.ffn_ratio * size)
        self.act = F.gelu if config.ffn == "gelu" else F.relu
        self.up = TokenwiseLinear(tokens, size, self.num_experts * self.hidden, num_parts=self.num_experts)
        self.down = ExpertOutput(tokens, self.num_experts, self.hidden, size)
        self.train_router = Router(tokens, size, self.num_experts)
        self.infer_router = Router(tokens, size, self.num_experts)
        self.dropout = nn.Dropout(config.ffn_dropout)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the output (T, B, D), each row's sum of the penalised gates (B,) and the share of active ones ()."""
        gates = self.infer_router(tokens).relu()  # (T, B, E)
        penalty = gates.float().sum((0, 2))
        active = (gates.detach() > 0).float().mean()
        if self.training:
            free = self.train_router(tokens).relu()
            draw = torch.rand(tokens.shape[1], 1, device=tokens.device) < 0.5
            return self._dense(tokens, torch.where(draw, free, gates)), penalty, active
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling() and not self.up.weight.is_meta:
            longest = int((gates > 0).sum(1).max()) if gates.numel() else 0
            if 2 * longest <= gates.shape[1]:
                return self._sparse(tokens, gates, longest), penalty, active
        return self._dense(tokens, gates), penalty, active

    def _dense(self, tokens: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.up(tokens)).unflatten(2, (self.num_experts, self.hidden))
        hidden = self.dropout(hidden) * gates.unsqueeze(-1)
        weight, bias = self.down()
        return torch.baddbmm(gates @ bias, hidden.flatten(2), weight.flatten(1, 2))

    def _sparse(self, tokens: torch.Tensor, gates: torch.Tensor, longest: int) -> torch.Tensor:
        """The same sum over the active (row, expert) pairs only, padded to `longest` rows per expert with gates of 0."""
        count, _, size = tokens.shape
        best = gates.transpose(1, 2).topk(longest, dim=2)  # (T, E, n)
        rows = best.indices.flatten(1).unsqueeze(-1).expand(-1, -1, size)
        inputs = tokens.gather(1, rows).view(count * self.num_experts, longest, size)
        weight = self.up.weight.unflatten(2, (self.num_experts, self.hidden)).transpose(1, 2).flatten(0, 1)
        bias = self.up.bias.view(count * self.num_experts, 1, self.hidden)
        hidden = self.act(torch.baddbmm(bias, inputs, weight))
        outputs = torch.baddbmm(self.down.bias.flatten(0, 1).unsqueeze(1), hidden, self.down.weight.flatten(0, 1))
        outputs = outputs * best.values.flatten(0, 1).unsqueeze(-1)
        return torch.zeros_like(tokens).scatter_add(1, rows, outputs.view(count, -1, size))


class ExpertOutput(nn.Module):
    """The second layers of all experts, weight (T, E, K, D) and bias (T, E, D)."""

    def __init__(self, num_tokens: int, num_experts: int, hidden: int, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_tokens, num_experts, hidden, size))
        self.bias = nn.Parameter(torch.empty(num_tokens, num_experts, size))

    def init_parameters(self, config: RankMixerConfig) -> None:
        init.normal_(self.weight, std=(2.0 / sum(self.weight.shape[2:])) ** 0.5)
        init.zeros_(self.bias)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.weight, self.bias


class RouterPenalty(nn.Module):
    """lambda L_reg, L_reg the sum of the inference routers' gates over tokens, experts and layers (per row).

    With `active_expert_ratio` lambda grows by a twentieth after a training step in which more experts were active than
    wanted, and shrinks by as much after one with fewer; of a step's batches (gradient accumulation) the first one says so, and all have the
    lambda of before. It is saved with the weights, so that a resumed training goes on with it.
    """

    def __init__(self, config: RankMixerConfig):
        super().__init__()
        self.target = config.active_expert_ratio
        self._seen: tuple | None = None
        self._before: torch.Tensor | None = None  # the lambda of the step
        self.register_buffer("strength", torch.empty(()))

    def init_parameters(self, config: RankMixerConfig) -> None:
        init.constant_(self.strength, config.router_regularization)

    def forward(
        self, penalties: list[torch.Tensor], active: list[torch.Tensor], weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Each layer's sums (B,) and shares () to the rows' penalties (B,), with the lambda of before this step.

        `weight`: one that a step changes, and a batch does not; None: each batch is a step.
        """
        if self.training and self.target is not None:
            strength = self._move(torch.stack(active).mean(), weight)
        else:
            strength = self.strength.float().clone()
        return strength * torch.stack(penalties).sum(0)

    @torch.compiler.disable  # a compiled graph does not know where a step ends
    def _move(self, active: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """The lambda of before this step, () float32; the first batch of a step moves it."""
        version = None if weight is None else version_of(weight)
        if version is None or version != self._seen:
            self._seen, self._before = version, self.strength.float().clone()
            with torch.no_grad():
                self.strength.mul_(torch.where(active > self.target, _STEP, 1 / _STEP))
        return self._before
