"""Effective rank of a tabular model's representations, stage by stage (RankElastor, arXiv 2605.23191, Eq. 1).

Per sample, a stage is a matrix of T tokens (or fields) of size D. Shapes: B samples, T tokens, D token size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from lmctr.models.common.base import IGNORED_LABEL, CTRPreTrainedModel, evaluation_mode
from lmctr.models.common.layers import MLP, DenseLayer
from lmctr.utils.rows import each_batch

RANK_KINDS = ("stable", "entropy")


def effective_rank(matrices: torch.Tensor | ArrayLike, kind: str = "stable", normalized: bool = False) -> torch.Tensor:
    """Effective rank of each matrix of a batch.

    Args:
        matrices: (..., T, D) numbers, as a tensor, an array or lists; computed in float64.
        kind: `"stable"`: ||X||_F^2 / ||X||_2^2 (the paper's Eq. 1); `"entropy"`: exp(H(sigma / sum sigma)) with H the
            Shannon entropy (Roy and Vetterli 2007; what the authors' plots use). Both lie between 1 and rank(X).
        normalized: divide by min(T, D), the largest rank the shape allows.

    Returns:
        (...) float64. 0 for a matrix of zeros.

    Raises:
        ValueError: an unknown kind, fewer than two axes, or values that are not finite.
    """
    if kind not in RANK_KINDS:
        raise ValueError(f"kind: {kind!r} is not known; use {' or '.join(map(repr, RANK_KINDS))}")
    matrices = torch.as_tensor(matrices)
    if matrices.dim() < 2:
        raise ValueError(f"matrices: shape {tuple(matrices.shape)} is not (..., T, D)")
    if not torch.isfinite(matrices).all():
        raise ValueError("matrices: some values are not finite, so they have no singular values")
    sigma = torch.linalg.svdvals(matrices.double())
    largest = sigma[..., :1]
    shares = sigma / largest.clamp_min(torch.finfo(torch.float64).tiny)  # free of the matrix's scale
    if kind == "stable":
        rank = shares.square().sum(-1)
    else:
        probability = shares / shares.sum(-1, keepdim=True).clamp_min(1.0)
        rank = torch.special.entr(probability).sum(-1).exp()
    rank = torch.where(largest[..., 0] > 0, rank, 0.0)
    return rank / min(matrices.shape[-2:]) if normalized else rank


@dataclass(frozen=True, eq=False)
class EffectiveRanks:
    """Effective ranks of N samples at S stages of a model, as [`measure_effective_rank`] finds them.

    Args:
        stages: labels, in the order of the computation.
        shapes: (T, D) of each stage.
        values: kind (`"stable"`, `"entropy"`) -> (S, N) float64, raw ranks.
        left_out: label -> why the point has no matrix per sample.
    """

    stages: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    values: Mapping[str, np.ndarray]
    left_out: Mapping[str, str]

    @property
    def num_samples(self) -> int:
        """N."""
        return next(iter(self.values.values())).shape[1]

    def samples(self, kind: str = "stable", normalized: bool = False) -> np.ndarray:
        """(S, N) ranks of every sample; `normalized` divides by min(T, D) of the stage."""
        if kind not in self.values:
            raise ValueError(f"kind: {kind!r} is not known; use {' or '.join(map(repr, self.values))}")
        values = self.values[kind]
        return values / np.array([[min(shape)] for shape in self.shapes]) if normalized else values

    def mean(self, kind: str = "stable", normalized: bool = False) -> np.ndarray:
        """(S,) mean over the samples."""
        return self.samples(kind, normalized).mean(axis=1)

    def interval(self, kind: str = "stable", normalized: bool = False, level: float = 0.95) -> np.ndarray:
        """(S, 2): normal-approximation confidence interval of the mean. NaN for a single sample.

        Raises `ValueError` for a level outside (0, 1).
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level: {level} is not between 0 and 1; 0.95 gives the usual interval")
        samples = self.samples(kind, normalized)
        if samples.shape[1] < 2:
            return np.full((len(samples), 2), np.nan)
        half = NormalDist().inv_cdf(0.5 + level / 2) * samples.std(axis=1, ddof=1) / np.sqrt(samples.shape[1])
        mean = samples.mean(axis=1)
        return np.stack([mean - half, mean + half], axis=1)

    def quantiles(
        self, points: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95), kind: str = "stable", normalized: bool = False
    ) -> np.ndarray:
        """(S, Q): quantiles of the per-sample distribution."""
        return np.quantile(self.samples(kind, normalized), points, axis=1).T

    def rows(self) -> list[dict[str, Any]]:
        """A row of numbers per stage, for tables and JSON."""
        rows = []
        for number, (stage, shape) in enumerate(zip(self.stages, self.shapes)):
            row: dict[str, Any] = {"stage": stage, "tokens": shape[0], "size": shape[1]}
            for kind in self.values:
                low, high = (float(end) for end in self.interval(kind)[number])
                row |= {
                    kind: float(self.mean(kind)[number]),
                    f"{kind}_low": low if low == low else None,
                    f"{kind}_high": high if high == high else None,
                    f"{kind}_std": float(self.samples(kind)[number].std()),
                    f"{kind}_normalized": float(self.mean(kind, normalized=True)[number]),
                }
            rows.append(row)
        return rows


@torch.no_grad()
def measure_effective_rank(
    model: nn.Module,
    batches: Iterable[Mapping[str, torch.Tensor]],
    points: Mapping[str, nn.Module] | None = None,
    max_samples: int | None = None,
) -> EffectiveRanks:
    """Run a model over batches and measure the outputs of some of its modules.

    Args:
        model: a tabular model; it runs in eval mode and gets its mode back.
        batches: dicts of the model's forward keys. They are moved to the model's device. Rows labelled -100 (filler)
            do not count.
        points: label -> module whose output is measured, in the order of the computation. Default:
            `model.diagnostic_points()`. An output is (B, T, D), or the first of a tuple is. A flat output (B, F * d) of
            a model with F fields of size d (the layers of a cross network) is read as F rows of d; other outputs, and hidden layers
            of an MLP, have no matrix per sample and are left out, as the result says.
        max_samples: stop after this many samples.

    Raises:
        ValueError: the model names no points, nothing was measured, or a module ran several times in a forward pass.
    """
    if points is None:
        points = model.diagnostic_points() if isinstance(model, CTRPreTrainedModel) else {}
        if not points:
            raise ValueError(
                f"{type(model).__name__} names no diagnostic points; give points={{label: module}} to say what to measure"
            )
    if not points:
        raise ValueError("points: nothing to measure; give at least one module")
    caught: dict[str, torch.Tensor] = {}
    found: dict[str, dict[str, list[torch.Tensor]]] = {}
    shapes: dict[str, tuple[int, int]] = {}
    left_out: dict[str, str] = {}
    config = getattr(model, "config", None)
    fields = (getattr(config, "num_fields", None), getattr(config, "embedding_dim", None))
    device = next(model.parameters()).device
    left = max_samples if max_samples is not None else float("inf")
    with evaluation_mode(model), ExitStack() as hooks:
        for label, module in points.items():
            hooks.enter_context(module.register_forward_hook(_catcher(label, caught)))
        for batch in each_batch(batches):
            if left <= 0:
                break
            inputs = {key: value.to(device) for key, value in batch.items() if isinstance(value, torch.Tensor)}
            labels = inputs.pop("labels", None)
            inputs.pop("sample_weight", None)
            caught.clear()
            model(**inputs)
            counts = None if labels is None else (labels.reshape(len(labels), -1) != IGNORED_LABEL).any(1)
            taken = 0
            for label in points:
                if label not in caught:
                    left_out.setdefault(label, "did not run")
                    continue
                output = caught[label]
                # whatever its width, its numbers are of no field
                is_hidden = isinstance(points[label], (DenseLayer, MLP))
                matrices = _matrices(output, *((None, None) if is_hidden else fields))
                if matrices is None:
                    left_out[label] = f"shape {tuple(output.shape)} has no matrix per sample"
                    continue
                matrices = matrices if counts is None else matrices[counts]
                if left != float("inf"):
                    matrices = matrices[: int(left)]
                taken = len(matrices)
                shapes[label] = tuple(matrices.shape[1:])
                store = found.setdefault(label, {kind: [] for kind in RANK_KINDS})
                for kind in RANK_KINDS:
                    store[kind].append(effective_rank(matrices, kind).cpu())
            left -= taken
    stages = tuple(label for label in points if label in found)
    if not stages or not sum(len(part) for part in found[stages[0]][RANK_KINDS[0]]):
        reasons = "; ".join(f"{label}: {why}" for label, why in left_out.items()) or "there were no samples"
        raise ValueError(f"nothing was measured ({reasons})")
    values = {kind: np.stack([torch.cat(found[stage][kind]).numpy() for stage in stages]) for kind in RANK_KINDS}
    return EffectiveRanks(stages, tuple(shapes[stage] for stage in stages), values, left_out)


def _catcher(label: str, caught: dict[str, torch.Tensor]):
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if label in caught:
            raise ValueError(f"points: the module at {label!r} ran twice in one forward pass; its stage is not clear")
        caught[label] = output[0] if isinstance(output, tuple) else output

    return hook


def _matrices(output: torch.Tensor, num_fields: int | None, size: int | list[int] | None) -> torch.Tensor | None:
    """An output as (B, T, D), or None where a sample has no matrix."""
    if output.dim() == 3:
        return output
    if output.dim() == 2 and num_fields and isinstance(size, int) and output.shape[1] == num_fields * size:
        return output.unflatten(1, (num_fields, size))
    return None
