"""Heads for several labels of a row: a logit per task on any tabular family's representation.

Papers: shared bottom, Caruana, Machine Learning 28, 1997; MMoE, Ma et al., KDD 2018; PLE, Tang et al., RecSys 2020; ESMM, Ma et al.,
https://arxiv.org/abs/1804.07931 (SIGIR 2018). In each of them the shared layers read the embeddings; here they read x, what the family makes
of them: a DNN without layers (`hidden_units: []`) is the paper's MMoE or PLE, one with layers its shared bottom or ESMM.

Shapes: B batch, W width of x, T tasks, n experts, E width of an expert's output.
"""

import torch
from torch import nn
from transformers import initialization as init

from .configuration import TabularCTRConfig
from .layers import MLP


class Experts(nn.Module):
    """n MLPs on one input: (B, W) to (B, n, E)."""

    def __init__(self, config: TabularCTRConfig, in_size: int, count: int):
        super().__init__()
        self.networks = nn.ModuleList([MLP(in_size, config.task_expert_units, "relu") for _ in range(count)])
        self.out_size = config.task_expert_units[-1]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.stack([network(states) for network in self.networks], 1)


class Gate(nn.Linear):
    """W_g, from an input to the scores of experts."""

    def __init__(self, in_size: int, count: int):
        super().__init__(in_size, count, bias=False)


def gated(gate: nn.Module, states: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """The mean of experts (B, n, E) by g(x) = softmax(W_g x) of inputs (B, W), as (B, E)."""
    return (gate(states).softmax(-1).unsqueeze(1) @ experts).squeeze(1)


class SharedBottom(nn.Module):
    """Every task reads x itself (MMoE's Eq. 1)."""

    def __init__(self, config: TabularCTRConfig, in_size: int):
        super().__init__()
        self.num_tasks, self.out_size = config.num_tasks, in_size

    def forward(self, states: torch.Tensor) -> list[torch.Tensor]:
        return [states] * self.num_tasks


class MultiGateExperts(nn.Module):
    """MMoE: f^k(x) = sum_i g^k(x)_i f_i(x), a gate g^k for each task over experts f_i of all (Eqs. 5-7)."""

    def __init__(self, config: TabularCTRConfig, in_size: int):
        super().__init__()
        self.experts = Experts(config, in_size, config.num_task_experts)
        self.gates = nn.ModuleList([Gate(in_size, config.num_task_experts) for _ in range(config.num_tasks)])
        self.out_size = self.experts.out_size

    def forward(self, states: torch.Tensor) -> list[torch.Tensor]:
        experts = self.experts(states)
        return [gated(gate, states, experts) for gate in self.gates]


class Extraction(nn.Module):
    """A level of PLE: experts of each task and shared ones; a task's gate sees its own and the shared, the shared gate all.

    The last level has no shared gate, because nothing reads it; PLE of one level is the paper's CGC.
    """

    def __init__(self, config: TabularCTRConfig, in_size: int, is_last: bool):
        super().__init__()
        tasks, own, shared = config.num_tasks, config.num_own_experts, config.num_task_experts
        self.experts = nn.ModuleList([Experts(config, in_size, own) for _ in range(tasks)])
        self.shared = Experts(config, in_size, shared)
        self.gates = nn.ModuleList([Gate(in_size, own + shared) for _ in range(tasks)])
        self.shared_gate = None if is_last else Gate(in_size, tasks * own + shared)
        self.out_size = self.shared.out_size

    def forward(self, states: list[torch.Tensor]) -> list[torch.Tensor]:
        """The T tasks' and, behind them, the shared states (B, W) to those of the next level (B, E)."""
        *of_tasks, common = states
        shared = self.shared(common)
        own = [experts(state) for experts, state in zip(self.experts, of_tasks)]
        # g^k(x) = softmax(W^k x) S^k(x), S^k the task's own experts, then the shared ones (Eqs. 1-3, 6)
        found = [gated(gate, state, torch.cat([e, shared], 1)) for gate, state, e in zip(self.gates, of_tasks, own)]
        if self.shared_gate is not None:
            found.append(gated(self.shared_gate, common, torch.cat([*own, shared], 1)))
        return found


class ProgressiveExtraction(nn.Module):
    """PLE: levels of [`Extraction`] one after the other, all of whose inputs are x at first (Eqs. 5-7)."""

    def __init__(self, config: TabularCTRConfig, in_size: int):
        super().__init__()
        self.num_tasks, self.levels = config.num_tasks, nn.ModuleList()
        for level in range(1, config.num_task_levels + 1):
            self.levels.append(Extraction(config, in_size, level == config.num_task_levels))
            in_size = self.levels[-1].out_size
        self.out_size = in_size

    def forward(self, states: torch.Tensor) -> list[torch.Tensor]:
        states = [states] * (self.num_tasks + 1)
        for level in self.levels:
            states = level(states)
        return states


_BOTTOMS = {
    "shared_bottom": SharedBottom,
    "mmoe": MultiGateExperts,
    "ple": ProgressiveExtraction,
    "esmm": SharedBottom,
}


class Tower(nn.Module):
    """h^k of one task: an MLP and a linear layer, (B, W) to (B,)."""

    def __init__(self, config: TabularCTRConfig, in_size: int):
        super().__init__()
        self.mlp = MLP(in_size, config.task_units, "relu", config.task_dropout)
        self.out = nn.Linear(self.mlp.out_size, 1)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.out(self.mlp(states)).squeeze(-1)


class TaskHead(nn.Module):
    """From a family's representation to a logit per task.

    Terms of the logit that go past a family's head (first order, factorisation machine) join each task's times a factor of its own, which
    starts at 1.

    Args:
        config: `task_head` and the keys beside it. in_size: numbers of the representation. has_partial: whether there are such terms.
    """

    def __init__(self, config: TabularCTRConfig, in_size: int, has_partial: bool):
        super().__init__()
        self.kind = config.task_head
        self.bottom = _BOTTOMS[self.kind](config, in_size)
        self.towers = nn.ModuleList([Tower(config, self.bottom.out_size) for _ in range(config.num_tasks)])
        self.partial_factor = nn.Parameter(torch.empty(config.num_tasks)) if has_partial else None

    def init_parameters(self, config: TabularCTRConfig) -> None:
        if self.partial_factor is not None:
            init.ones_(self.partial_factor)

    def forward(self, representation: torch.Tensor, partial_logit: torch.Tensor | None = None) -> torch.Tensor:
        """(B, W) and (B,) to (B, T) float32 logits; those of "esmm" are of each label together with all labels before it."""
        states = self.bottom(representation)
        logits = torch.stack([tower(state) for tower, state in zip(self.towers, states)], 1).float()
        if partial_logit is not None:
            logits = logits + partial_logit.float().unsqueeze(1) * self.partial_factor.float()
        return chained_logits(logits) if self.kind == "esmm" else logits


def chained_logits(logits: torch.Tensor) -> torch.Tensor:
    """Logits of each task given the one before it, (B, T), to those of it and all before it together: ESMM's product.

    Of p = s(a) s(b), with the sigmoid s, the odds (1 - p) / p are e^-a + e^-b + e^(-a-b), whose logarithm no large logit spoils.
    """
    found = [logits[:, 0]]
    for own in logits.unbind(1)[1:]:
        before = found[-1]
        found.append(-torch.logsumexp(torch.stack([-before, -own, -before - own]), 0))
    return torch.stack(found, 1)


def check_chain(labels: torch.Tensor, names: list[str]) -> None:
    """ValueError on the CPU, an assertion on other devices: a label of 1 behind one of 0, which ESMM's product cannot mean."""
    if torch.compiler.is_compiling():
        return
    wrong = (labels[:, 1:] == 1) & (labels[:, :-1] == 0)
    text = f'task_head="esmm": a label of 1 needs 1 in the label before it ({" > ".join(names)})'
    if not labels.is_cpu:
        torch._assert_async(~wrong.any(), text)
    elif wrong.any():
        row, task = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{text}; row {row} of the batch has {names[task + 1]} without {names[task]}: set it to 0, or to -100 where it is not known"
        )
