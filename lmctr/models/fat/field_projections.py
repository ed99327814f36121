"""Query, key and value projections of FAT: generated per field, stored per field, shared, or one per field pair.

Shapes: F fields, d hidden size, M bases, K chosen bases, k meta-embedding size. Matrices act from the right, `h @ W`.
The three kinds (query, key, value) lie side by side in the columns, so that one product makes all three: (..., d, 3 d).
"""

import torch
from torch import nn
from transformers import initialization as init

from lmctr.models.common.base import version_of
from lmctr.models.common.layers import NormalWeight

from .configuration_fat import FATConfig

NUM_KINDS = 3


class StoredMatrices(NormalWeight):
    """The matrices of the ablations of Tab. 2, by `config.projection`.

    `"full"`: (F, d, 3 d), a matrix per field and kind, 3 F d^2 parameters. `"shared"`: (d, 3 d), one per kind for all fields, as in a
    standard Transformer. `"pair"`: (3, F, F, d, d), one per kind and ordered field pair (Eq. 3): [kind, field of the query, field of the key].
    """

    def __init__(self, config: FATConfig):
        fields, size = config.num_fields, config.hidden_size
        shape = {
            "full": (fields, size, NUM_KINDS * size),
            "shared": (size, NUM_KINDS * size),
            "pair": (NUM_KINDS, fields, fields, size, size),
        }[config.projection]
        super().__init__(*shape, std=size**-0.5)

    def forward(self, meta: torch.Tensor | None = None) -> torch.Tensor:
        return self.weight


class BasisRouter(nn.Module):
    """g: R^k -> R^M, a two-layer ReLU MLP per kind (hidden width k), all kinds in one batched product."""

    def __init__(self, config: FATConfig):
        super().__init__()
        size = config.meta_dim
        self.weight_in = nn.Parameter(torch.empty(NUM_KINDS, size, size))
        self.bias_in = nn.Parameter(torch.empty(NUM_KINDS, 1, size))
        self.weight_out = nn.Parameter(torch.empty(NUM_KINDS, size, config.num_bases))
        self.bias_out = nn.Parameter(torch.empty(NUM_KINDS, 1, config.num_bases))

    def init_parameters(self, config: FATConfig) -> None:
        for weight in (self.weight_in, self.weight_out):
            init.normal_(weight, std=weight.shape[1] ** -0.5)
        for bias in (self.bias_in, self.bias_out):
            init.zeros_(bias)

    def forward(self, meta: torch.Tensor) -> torch.Tensor:
        """phi (F, k) to scores s (3, F, M)."""
        hidden = torch.baddbmm(self.bias_in, meta.expand(NUM_KINDS, -1, -1), self.weight_in).relu()
        return torch.baddbmm(self.bias_out, hidden, self.weight_out)


class Hypernetwork(nn.Module):
    """`projection="hypernetwork"`: W^(f) = sum over the K best bases of softmax(g(phi_f))_m B_m (Sec. 3.4).

    3 M d^2 parameters for the bases, whatever the number of fields. In eval mode without gradients the matrices are
    computed once and kept until a parameter changes (its storage or its version counter, which a step of an optimiser moves),
    or `train()`, `.to()` or `load_state_dict()` is called. What is kept is never saved. Torch's version counters do not see what is written
    through `parameter.data`: call `reset_cache()` after doing so in eval mode.
    """

    def __init__(self, config: FATConfig):
        super().__init__()
        self.top_k = config.top_k
        # B_m (3, M, d, d): each kind has a set of its own. The mean of K such bases has entries of variance 1/d, as the stored matrices.
        size, spread = config.hidden_size, (config.top_k / config.hidden_size) ** 0.5
        self.bases = NormalWeight(NUM_KINDS, config.num_bases, size, size, std=spread)
        self.router = BasisRouter(config)
        self._cache: tuple | None = None

    def mixing_weights(self, meta: torch.Tensor) -> torch.Tensor:
        """alpha (3, F, M): softmax over the K largest scores of each field, 0 elsewhere."""
        scores = self.router(meta)
        best = scores.topk(self.top_k, dim=-1)
        return torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1).to(scores.dtype))

    def forward(self, meta: torch.Tensor) -> torch.Tensor:
        """Meta-embeddings phi (F, k) to matrices (F, d, 3 d)."""
        # A kept matrix would cut the gradient off; a compiled graph cannot compare addresses.
        if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._generate(meta)
        sources = (meta, *self.parameters())
        if any(source.is_inference() for source in sources):  # no version counter to compare
            return self._generate(meta)
        device = meta.device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        key = (autocast, *((version_of(source), source.dtype) for source in sources))
        if self._cache is None or self._cache[0] != key:
            self._cache = (key, self._generate(meta))
        return self._cache[1]

    def reset_cache(self) -> None:
        """Forget the matrices that are kept for eval mode."""
        self._cache = None

    def _generate(self, meta: torch.Tensor) -> torch.Tensor:
        # A dense product with the mostly empty alpha: M/K times the arithmetic of a gather, and no (F, K, d, d) copy.
        bases = self.bases()
        size = bases.shape[-1]
        matrices = torch.bmm(self.mixing_weights(meta), bases.flatten(2))  # (3, F, d^2)
        matrices = matrices.view(NUM_KINDS, -1, size, size)
        return matrices.permute(1, 2, 0, 3).reshape(-1, size, NUM_KINDS * size)

    def train(self, mode: bool = True) -> "Hypernetwork":
        self.reset_cache()
        return super().train(mode)

    def _apply(self, *args, **kwargs):
        self.reset_cache()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs):
        self.reset_cache()
        return super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict:  # copies and pickles leave the cache behind
        return {**self.__dict__, "_cache": None}


def build_projection(config: FATConfig) -> nn.Module:
    """The module that gives the projection matrices of one layer, by `config.projection`."""
    return Hypernetwork(config) if config.projection == "hypernetwork" else StoredMatrices(config)
