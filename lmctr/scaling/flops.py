"""Floating-point operations: counted from the modules that run, and by formula. FLOPs = 2 x multiply-accumulates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from lmctr.models.astro.configuration_astro import ASTROConfig
from lmctr.models.common.base import evaluation_mode
from lmctr.utils.rows import check_kind

from .design import mlp_flops

__all__ = [
    "ModelFlops",
    "StageFlops",
    "astro_flops",
    "count_flops",
    "count_parameters",
    "mean_flops",
    "measure_flops",
    "paper_flops",
]

PAPER_CONSTANT = 1.92e6
"""What the paper's Table 3 adds to the history's cost; fitted by us so that all eight rows of ASTRO are within 3 %."""
_PRODUCTS = {
    *("linear", "bilinear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "addbmm", "baddbmm", "inner"),
    *("einsum", "tensordot", "scaled_dot_product_attention", "conv1d", "conv2d"),
}
"""Functions that count, by their names."""
_INNER = {"linear": 0, "matmul": 0, "__matmul__": 0, "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Argument whose last axis is summed over."""
_READING = {
    *("item", "tolist", "numpy", "__int__", "__index__", "__float__"),
    *("nonzero", "argwhere", "masked_select", "unique"),
}
"""Those that take numbers, or shapes, from a tensor's values."""


class StageFlops(NamedTuple):
    """Forward FLOPs of a row. stage1: the history. stage2: its candidates, all of them. total: both."""

    stage1: float
    stage2: float

    @property
    def total(self) -> float:
        return self.stage1 + self.stage2


@dataclass(frozen=True)
class ModelFlops:
    """Forward FLOPs of a call, and the model's parameters.

    Args:
        total: of the call. num_samples: logits that it gave, tasks of a candidate counted once. num_requests: rows of the batch.
        per_sample, per_request: total over each. Where candidates share a history, a request costs less than its samples alone would.
        dense_parameters, embedding_parameters: every parameter once; embedding are the tables that are looked up.
        modules: direct parts of the model (and of its `model`) -> FLOPs of the call, those above 0.
    """

    total: int
    num_samples: int
    num_requests: int
    per_sample: float
    per_request: float
    dense_parameters: int
    embedding_parameters: int
    modules: dict[str, int]


def measure_flops(
    model: torch.nn.Module, inputs: Mapping[str, Any], num_samples: int | None = None, num_requests: int | None = None
) -> ModelFlops:
    """Count the FLOPs of one evaluation call of any model of the library, from the modules that run.

    Matrix products, convolutions and fused attention count, on all their entries (padding and masked pairs too, since they are computed); sums,
    element-wise products, activations and look-ups do not. One row without padding gives the cost of a request of that length.

    Args:
        model: an `XForCTR`; it runs in evaluation mode and is left in the mode it was in.
        inputs: what `forward` takes; labels are left out.
        num_samples: samples of the batch; default: the logits, a trailing task axis counted once.
        num_requests: requests of the batch; default: its rows.

    Raises:
        ValueError: no inputs, counts below 1.
    """
    check_kind(model, torch.nn.Module, "model")
    check_kind(inputs, Mapping, "inputs")
    inputs = _unlabelled(inputs)
    if not inputs:
        raise ValueError("inputs are empty: give what the model's forward takes")
    with evaluation_mode(model), _counter() as counter, torch.no_grad():
        logits = model(**inputs).logits
    tasks = getattr(getattr(model, "config", None), "num_tasks", 1) or 1
    samples = logits.numel() // tasks if num_samples is None else num_samples
    requests = len(logits) if num_requests is None else num_requests
    for name, value in (("num_samples", samples), ("num_requests", requests)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    total = counter.get_total_flops()
    root = type(model).__name__
    modules = {}
    for name, flops in counter.get_flop_counts().items():
        parts = name.split(".")
        inside = parts[0] == root and (len(parts) == 2 or (len(parts) == 3 and parts[1] == "model"))
        if inside and sum(flops.values()):
            modules[".".join(parts[1:])] = sum(flops.values())
    dense, tables = count_parameters(model)
    return ModelFlops(total, samples, requests, total / samples, total / requests, dense, tables, modules)


def mean_flops(model: torch.nn.Module, batches: Iterable[tuple[Mapping[str, Any], int]]) -> float:
    """Mean FLOPs of a sample over (inputs of `forward`, samples) pairs, as [`measure_flops`] counts them, but several times as fast: what a
    product of some shapes costs is counted once, and inputs of the shapes of two others that cost the same do not run, where no number was
    read from a tensor, by which the shapes inside could differ. A model that multiplies where no function of torch is seen is counted in
    full each time."""
    quick, seen = _Products(), True
    found_of: dict[Any, list[int]] = {}
    total = samples = 0
    with evaluation_mode(model), torch.no_grad():
        for number, (inputs, count) in enumerate(batches):
            inputs = _unlabelled(inputs)
            alike = found_of.setdefault(tuple((name, _shapes(value)) for name, value in inputs.items()), [])
            if seen and not quick.reads_values and len(alike) > 1 and len(set(alike)) == 1:
                found = alike[0]
            else:
                before = quick.total
                if seen:
                    with quick:
                        model(**inputs)
                found = quick.total - before
                if number == 0 or not seen:
                    whole = measure_flops(model, inputs).total
                    seen, found = seen and whole == found, whole
                alike.append(found)
            total += found
            samples += count
    return total / samples


def _unlabelled(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in ("labels", "sample_weight")}


class _Products(TorchFunctionMode):
    """Counts the FLOPs of torch's functions; a count for each tuple of a function and shapes is kept.

    Attributes:
        reads_values: whether a number, or places, were read from a tensor. Yes and no are what checks of inputs read, and do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total, self.known, self.reads_values = 0, {}, False

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name not in _PRODUCTS:
            is_mask = name == "__getitem__" and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.bool
            self.reads_values = self.reads_values or is_mask or name in _READING
            return function(*args, **kwargs)
        if len(args) > _INNER.get(name, len(args)):
            result = function(*args, **kwargs)
            self.total += 2 * result.numel() * args[_INNER[name]].shape[-1]
            return result
        key = (name, _shapes(args), *((word, _shapes(value)) for word, value in kwargs.items()))
        if key in self.known:
            result = function(*args, **kwargs)
        else:
            with _counter() as counter:
                result = function(*args, **kwargs)
            self.known[key] = counter.get_total_flops()
        self.total += self.known[key]
        return result


def _shapes(value: Any) -> Any:
    """Arguments with shapes in place of tensors."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return tuple(map(_shapes, value)) if isinstance(value, (tuple, list)) else value


def count_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """(dense, embedding) parameters, each tensor once. Embedding: weights of `nn.Embedding` and `nn.EmbeddingBag`, the position and token tables
    of a language model too; a table that is tied to an output layer is embedding."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    tables = {id(module.weight): module.weight.numel() for module in model.modules() if isinstance(module, kinds)}
    dense = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in tables)
    return dense, sum(tables.values())


def _counter() -> FlopCounterMode:
    """A counter that knows the fused attention of the CPU, which torch (2.13) leaves out: it would count as nothing."""
    aten, forward = torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"
    counts = {
        forward: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
        f"{forward}_backward": lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4]),
    }
    added = {getattr(aten, name): count for name, count in counts.items() if hasattr(aten, name)}
    return FlopCounterMode(display=False, custom_mapping=added)


def count_flops(model: torch.nn.Module, inputs: Mapping[str, Any], backward: bool = False) -> int:
    """FLOPs of the matrix products of one call, counted by [`torch.utils.flop_counter.FlopCounterMode`] as it runs.

    Args:
        model: called with `inputs`. backward: also run and count the backward pass of its loss (`inputs` then hold labels).
    """
    with _counter() as counter:
        if backward:
            model(**inputs).loss.backward()
        else:
            with torch.no_grad():
                model(**inputs)
    return counter.get_total_flops()


def paper_flops(length: int, num_layers: int, dim: int = 100, num_blocks: int = 2) -> float:
    """The cost that the paper states for an ASTRO of this size (Climber, Tab. 3).

    4 d^2 s + const + (l - 1) s (24 d^2 + 4 d s / Nb): keys and values of the last layer, a constant, and full layers below it. Fits
    Table 3 within 3 %. By it the rows of Table 2, "equal FLOPs", are not equal: (1600, 1) costs 6.6e7, not 4.11e8.

    Args:
        length: s, events over all blocks. num_layers: l. dim: d. num_blocks: Nb.
    """
    full = length * (24 * dim**2 + 4 * dim * length / num_blocks)
    return 4 * dim**2 * length + PAPER_CONSTANT + (num_layers - 1) * full


def astro_flops(config: ASTROConfig, num_candidates: int = 1, length: int | None = None) -> StageFlops:
    """Forward FLOPs of one row of ASTRO by formula, as the paper counts them.

    Args:
        config: the model's configuration. num_candidates: candidates in the row. length: events over all blocks, equally many in
            each; default `config.sequence_length`.

    Attention is counted for all pairs of a block. The model leaves most pairs out that a causal mask would hide, where a block holds
    more events than are taken at once ([`~lmctr.models.common.relative_bias.causal_parts`]); [`count_flops`] counts what it runs.
    """
    blocks, dim, inner = config.num_blocks, config.hidden_size, config.intermediate_size
    total = config.sequence_length if length is None else length
    slots = total / blocks
    per_token = 8 * dim**2 + 4 * dim * inner  # query, key, value, output; feed-forward network
    stage1 = 4 * dim**2 * total + (config.num_hidden_layers - 1) * total * (per_token + 4 * dim * slots)
    layers = config.num_hidden_layers * blocks * (per_token + 4 * dim * slots)
    width, fusion = blocks * dim, 0.0
    if config.use_gating_fusion:
        gate = 4 * width * max(width // config.gate_ratio, 1)
        fusion = blocks * per_token + 4 * dim * blocks**2 + gate
    sizes = [width, *config.head_hidden_sizes, config.num_tasks]
    return StageFlops(float(stage1), float(num_candidates * (layers + fusion + mlp_flops(sizes))))
