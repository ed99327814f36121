"""Terms of FAT's generalisation bound from a trained model's norms (arXiv 2511.12081, Theorem A.1), and parameter counts.

The bound is an order: its constants are unknown. The numbers compare models of one kind (widths, fields, training sets) and
are no estimates of a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import torch
from torch import nn

from lmctr.models.common.base import evaluation_mode
from lmctr.utils.rows import each_batch


@dataclass(frozen=True)
class BoundTerms:
    """The terms of Theorem A.1 for one layer: sqrt(F d^2 + F^2) / sqrt(m) * C.

    Args:
        layer: 1 = first.
        num_fields: F. hidden_size: d. num_samples: m.
        radius: R, the largest norm of a token that entered the layer.
        query, key, value: B_Q, B_K, B_V, the largest Frobenius norm of a field's matrix.
        modulation: B_w, the largest |w| of any head; 1 without modulation.
    """

    layer: int
    num_fields: int
    hidden_size: int
    num_samples: int
    radius: float
    query: float
    key: float
    value: float
    modulation: float

    @property
    def score_term(self) -> float:
        """R^2 B_Q B_K B_w sqrt(d), the part of C that comes from the scores."""
        return self.radius**2 * self.query * self.key * self.modulation * math.sqrt(self.hidden_size)

    @property
    def value_term(self) -> float:
        """R B_V B_w, the part of C that comes from the values."""
        return self.radius * self.value * self.modulation

    @property
    def constant(self) -> float:
        """C, the sum of both parts."""
        return self.score_term + self.value_term

    @property
    def capacity(self) -> float:
        """sqrt(F d^2 + F^2), what structure alone contributes."""
        return math.sqrt(self.num_fields * self.hidden_size**2 + self.num_fields**2)

    @property
    def bound(self) -> float:
        """capacity / sqrt(m) * C, up to the theorem's unknown constant."""
        return self.capacity / math.sqrt(self.num_samples) * self.constant

    def row(self) -> dict[str, float | int]:
        """All numbers by name."""
        names = ("score_term", "value_term", "constant", "capacity", "bound")
        return {**asdict(self), **{name: getattr(self, name) for name in names}}


@torch.no_grad()
def bound_terms(model: nn.Module, batches: Iterable[Mapping[str, torch.Tensor]], num_samples: int) -> list[BoundTerms]:
    """The terms of every layer of a FAT model.

    Args:
        model: a [`~lmctr.FATForCTR`] or [`~lmctr.FATModel`]; it runs in eval mode and gets its mode back. With
            `block="prenorm"` the tokens that count are those after the norm.
        batches: dicts of the model's forward keys; R is the largest norm found in them.
        num_samples: m, the number of training samples.

    Raises:
        ValueError: a model of another family, `projection="pair"` (its matrices belong to pairs, not to fields), no
            batches, or `num_samples` below 1.
    """
    config = model.config
    if config.model_type != "fat":
        raise ValueError(f"{type(model).__name__} is no FAT model; Theorem A.1 is about FAT's attention")
    if config.projection == "pair":
        raise ValueError("projection='pair' has matrices of field pairs; Theorem A.1 is about matrices of fields")
    if num_samples < 1:
        raise ValueError(
            f"num_samples: {num_samples} is not accepted; give the number of training samples, at least 1"
        )
    base = model.base_model
    radius = [0.0] * config.num_hidden_layers

    def watch(layer: int):
        def hook(module: nn.Module, inputs: tuple) -> None:
            radius[layer] = max(radius[layer], float(inputs[0].float().norm(dim=-1).max()))

        return hook

    device, seen = next(model.parameters()).device, False
    with evaluation_mode(model), ExitStack() as hooks:
        for number, layer in enumerate(base.layers):
            hooks.enter_context(layer.attention.register_forward_pre_hook(watch(number)))
        for batch in each_batch(batches):
            inputs = {k: v.to(device) for k, v in batch.items() if isinstance(v, torch.Tensor)}
            model(**{k: v for k, v in inputs.items() if k not in ("labels", "sample_weight")})
            seen = True
    if not seen:
        raise ValueError("batches: nothing to measure; give at least one batch")
    terms = []
    meta = None if base.meta_embedding is None else base.meta_embedding.weight
    for number, layer in enumerate(base.layers):
        matrices = layer.attention.projection(meta).float().unflatten(-1, (3, config.hidden_size))
        # (F, d, 3, d), or (d, 3, d) when all fields share them, to the largest norm of each kind (3,).
        norms = matrices.movedim(-2, 0).flatten(-2).norm(dim=-1).reshape(3, -1).amax(1)
        modulation = layer.attention.modulation
        terms.append(
            BoundTerms(
                number + 1,
                config.num_fields,
                config.hidden_size,
                num_samples,
                radius[number],
                *norms.tolist(),
                1.0 if modulation is None else float(modulation.weight.abs().max()),
            )
        )
    return terms


def projection_parameters(
    num_fields: int, hidden_size: int, num_bases: int = 64, meta_dim: int = 64, num_heads: int = 1
) -> dict[str, int]:
    """Parameters that one layer needs to tell fields apart, the exact counts behind the orders of Sec. 3.

    Args:
        num_fields: F. hidden_size: d. num_bases: M. meta_dim: k. num_heads: H, each with a w of its own.

    Returns:
        `pair`: 3 F^2 d^2, matrices per field pair (Eq. 3), O(F^2 d^2). `field`: 3 F d^2 + H F^2, matrices per field and
        w (Eq. 5), O(F d^2 + F^2). `hypernetwork`: 3 M d^2 + F k, bases and meta-embeddings, O(M d^2 + F k); routers
        and w come on top.

    Raises:
        ValueError: a number below 1.
    """
    values = {"num_fields": num_fields, "hidden_size": hidden_size, "num_bases": num_bases, "meta_dim": meta_dim}
    for name, value in {**values, "num_heads": num_heads}.items():
        if value < 1:
            raise ValueError(f"{name}: {value} is not accepted; use a whole number of at least 1")
    return {
        "pair": 3 * num_fields**2 * hidden_size**2,
        "field": 3 * num_fields * hidden_size**2 + num_heads * num_fields**2,
        "hypernetwork": 3 * num_bases * hidden_size**2 + num_fields * meta_dim,
    }
