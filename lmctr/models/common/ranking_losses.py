"""Losses on impressions: ARF with NeuralSort, and the pointwise, pairwise and listwise ones that it is compared with.

ARF is Eq. 2-4 of arXiv 2411.13322 (from "Adaptive Neural Ranking Framework", WWW 2024),
NeuralSort is Eq. 5 of Grover et al., "Stochastic Optimization of Sorting Networks via Continuous Relaxations" (ICLR 2019).

Every loss takes scores (B, n) of the ads of B impressions, targets (B, n) and a mask (B, n) that is True where there is an ad, and is
the mean over the impressions that it is defined on; 0 (with zero gradient) where there are none. `weight` (B,) weighs the impressions;
`divisor` replaces their summed weight, so that parts of a large batch add up to its mean. What stands in masked places is never read.
All sums in float32 at least.

Memory: NeuralSort and the pairs need (B, n, n) tensors. The losses therefore run over chunks of b impressions, or of r rows of one impression
where n^2 alone is more than `max_pairs`, and compute a chunk again in the backward pass: what is kept between the passes is O(n) of a
chunk, and b r n at most `max_pairs` is needed at a time. The results do not depend on the chunks. The time stays O(B n^2).

B: impressions, n: ads per impression, v: ground-truth rank index, higher is better.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import initialization as init

MAX_PAIRS = 1 << 22
"""Default of `max_pairs`: 16 MiB for each (b, n, n) tensor in float32, of which ARF holds several in a chunk; larger chunks were slower on a CPU."""


def neural_sort(scores: torch.Tensor, mask: torch.Tensor | None = None, tau: float = 1.0) -> torch.Tensor:
    """Relaxed permutation matrices that sort each row in descending order (NeuralSort, Eq. 5).

    P[i, :] = softmax(((n + 1 - 2 i) s - A_s 1) / tau), i from 1, A_s[a, b] = |s_a - s_b|; n counts the ads of the impression.

    Args:
        scores: (B, n) float. mask: (B, n) bool. tau: temperature above 0; towards 0 the rows become one-hot.

    Returns:
        (B, n, n): row i holds the weights of the ads in place i. Rows sum to 1 over the ads; rows beyond an impression's number of ads
        and columns of masked places are 0.

    Raises:
        ValueError: shapes that differ, tau not above 0.
    """
    scores, mask = _check(scores, {}, mask)[:2]
    if not tau > 0:
        raise ValueError(f"tau must be above 0, got {tau!r}")
    width = scores.shape[1]
    log_weights, rows = _log_neural_sort(scores, mask, _spread(scores, mask, 0, width)[0], tau, 0, width)
    return log_weights.exp() * rows.unsqueeze(-1)


class ARFLoss(nn.Module):
    """ARF: the relaxed recall of the wanted set and the order of the whole list, weighed by a trained alpha (Eq. 2-4).

    L_global = -sum_j sum_h P_v[j, h] log P_M[j, h]                                             (Eq. 4)
    L_relax  = -sum_j (sum_{i <= k} P_v[i, j]) log((1 / m) sum_{i <= m} P_M[i, j])              (Eq. 3)
    L        = L_relax + L_global / (2 alpha^2) + log |alpha|                                   (Eq. 2)

    Decided: alpha is trained from 1, tau is 1, what enters a logarithm is at least 1e-8, padded ads are masked, and in an impression of fewer
    ads than m or k, these are its number of ads.

    Args:
        m: ads that the model passes on, from 1. k: wanted ads, from 1 to m; default m.
        tau: temperature of NeuralSort on the scores. target_tau: on v; default tau. v is a rank index with steps of 1: a `target_tau` well
            below 1 makes P_v the hard permutation.
        train_alpha: whether alpha is a parameter, or stays 1.
        eps: the clamp.
        max_pairs: entries of a (b, r, n) tensor that a chunk may have.

    Raises:
        ValueError: m or k below 1, k above m, tau not above 0.

    Give `loss.parameters()` to the optimiser along with the model's.
    """

    def __init__(
        self,
        m: int,
        k: int | None = None,
        tau: float = 1.0,
        target_tau: float | None = None,
        train_alpha: bool = True,
        eps: float = 1e-8,
        max_pairs: int = MAX_PAIRS,
    ):
        super().__init__()
        k = m if k is None else k
        target_tau = tau if target_tau is None else target_tau
        for name, value in (("m", m), ("k", k), ("max_pairs", max_pairs)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if k > m:
            raise ValueError(f"k must be at most m ({m}), got {k}: more ads cannot be wanted than go on")
        for name, value in (("tau", tau), ("target_tau", target_tau), ("eps", eps)):
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value!r}")
        self.m, self.k, self.tau, self.target_tau, self.eps, self.max_pairs = m, k, tau, target_tau, eps, max_pairs
        alpha = torch.ones(())
        if train_alpha:
            self.alpha = nn.Parameter(alpha)
        else:
            self.register_buffer("alpha", alpha)

    def init_parameters(self, config: object = None) -> None:
        init.ones_(self.alpha)

    def extra_repr(self) -> str:
        return f"m={self.m}, k={self.k}, tau={self.tau}, target_tau={self.target_tau}"

    def parts(
        self, scores: torch.Tensor, ranks: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """L_relax and L_global, means over the impressions with ads, () each. Arguments and errors as `forward`."""
        scores, mask, ranks = _check(scores, {"ranks": ranks}, mask)
        relax, order = self._each(scores, ranks, mask)
        present = mask.any(dim=1)
        return _mean_over(relax, present), _mean_over(order, present)

    def forward(
        self,
        scores: torch.Tensor,
        ranks: torch.Tensor,
        mask: torch.Tensor | None = None,
        weight: torch.Tensor | None = None,
        divisor: torch.Tensor | float | None = None,
    ) -> torch.Tensor:
        """The loss, () float.

        Args:
            scores: (B, n) of the model. ranks: (B, n) v, higher is better. mask: (B, n) bool.
            weight: (B,) of the impressions. divisor: in place of their summed weight.

        Raises:
            ValueError: shapes that differ, a mask that is not bool.
        """
        scores, mask, ranks = _check(scores, {"ranks": ranks}, mask)
        relax, order = self._each(scores, ranks, mask)
        losses = relax + order / (2 * self.alpha**2) + self.alpha.abs().log()
        return _mean_over(losses, mask.any(dim=1), weight, divisor)

    def _each(
        self, scores: torch.Tensor, ranks: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B,) L_relax and L_global of each impression."""
        spreads = [_in_chunks(_spread, (values, mask), self.max_pairs)[0] for values in (scores, ranks)]
        order, wanted, passed = _in_chunks(self._rows, (scores, ranks, mask, *spreads), self.max_pairs)
        passed = passed / mask.sum(dim=1).clamp(1, self.m).unsqueeze(1)
        return -(wanted * passed.clamp_min(self.eps).log()).sum(dim=1), order

    def _rows(
        self,
        scores: torch.Tensor,
        ranks: torch.Tensor,
        mask: torch.Tensor,
        spread: torch.Tensor,
        target_spread: torch.Tensor,
        first: int,
        last: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What some rows of the matrices add to (b,) L_global and to the sums (b, n) of the first k rows of P_v and the first m of P_M."""
        log_model, rows = _log_neural_sort(scores, mask, spread, self.tau, first, last)
        model = log_model.exp() * rows.unsqueeze(-1)
        target = _log_neural_sort(ranks, mask, target_spread, self.target_tau, first, last)[0].exp() * rows.unsqueeze(
            -1
        )
        # log max(P, eps) from log P: exact where P underflows, and the clamp's zero gradient below eps
        floor = torch.log(torch.tensor(self.eps, dtype=scores.dtype)).item()
        order = -(target * log_model.clamp_min(floor)).sum(dim=(1, 2))
        wanted, passed = target[:, : max(self.k - first, 0)], model[:, : max(self.m - first, 0)]
        return order, wanted.sum(dim=1), passed.sum(dim=1)


def pointwise_loss(
    scores: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor | None = None,
    reduction: str = "impressions",
    weight: torch.Tensor | None = None,
    divisor: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """Binary cross entropy of each ad.

    Args:
        scores: (B, n) logits. labels: (B, n) in [0, 1], such as exposure or "among the k best by v". mask: (B, n) bool.
        reduction: "impressions": mean over ads, then over impressions, as the other losses. "ads": mean over all ads.
        weight, divisor: of the impressions, see above; with "ads" of the ads of each.

    Raises:
        ValueError: shapes that differ, an unknown reduction.
    """
    if reduction not in ("impressions", "ads"):
        raise ValueError(f"reduction must be 'impressions' or 'ads', got {reduction!r}")
    scores, mask, labels = _check(scores, {"labels": labels}, mask)
    losses = F.binary_cross_entropy_with_logits(scores, labels, reduction="none") * mask
    counts = mask.sum(dim=1)
    if reduction == "ads":
        share = counts.to(losses.dtype) if weight is None else counts * weight.to(losses.dtype)
        return _mean_over(losses.sum(dim=1) / counts.clamp_min(1), counts > 0, share, divisor)
    return _mean_over(losses.sum(dim=1) / counts.clamp_min(1), counts > 0, weight, divisor)


def pairwise_logistic_loss(
    scores: torch.Tensor,
    ranks: torch.Tensor,
    mask: torch.Tensor | None = None,
    max_pairs: int = MAX_PAIRS,
    weight: torch.Tensor | None = None,
    divisor: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """log(1 + exp(-(s_i - s_j))), mean over the pairs with v_i > v_j of an impression, then over impressions (RankNet, ICML 2005).

    Args:
        scores, ranks, mask: (B, n). max_pairs: as in [`ARFLoss`]. weight, divisor: see above.

    Impressions without two ads of different v are left out. Raises `ValueError` for shapes that differ.
    """
    scores, mask, ranks = _check(scores, {"ranks": ranks}, mask)
    # in the order of v, where an ad has its pairs with later ones only
    order = ranks.masked_fill(~mask, float("-inf")).argsort(dim=1, descending=True)
    ordered = tuple(tensor.gather(1, order) for tensor in (scores, ranks, mask))
    losses, pairs = _in_chunks(_pairwise_rows, ordered, max_pairs)
    return _mean_over(losses / pairs.clamp_min(1), pairs > 0, weight, divisor)


def list_softmax_loss(
    scores: torch.Tensor,
    targets: torch.Tensor,
    mask: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    divisor: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """Cross entropy between the targets, scaled to sum to 1, and the softmax of the scores of an impression (ListNet, ICML 2007, top one).

    Args:
        scores: (B, n). targets: (B, n) weights, not negative, such as labels, v or eCPM. mask: (B, n) bool.
        weight, divisor: see above.

    Impressions whose targets are all 0 are left out. Raises `ValueError` for shapes that differ.
    """
    scores, mask, targets = _check(scores, {"targets": targets}, mask)
    log_softmax = torch.log_softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), dim=1)
    totals = targets.sum(dim=1)
    losses = -(targets * log_softmax.masked_fill(~mask, 0)).sum(dim=1) / totals.clamp_min(
        torch.finfo(scores.dtype).tiny
    )
    return _mean_over(losses, totals > 0, weight, divisor)


def _pairwise_rows(
    scores: torch.Tensor, ranks: torch.Tensor, mask: torch.Tensor, first: int, last: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(b,) summed losses and counts of the pairs of some ads, in the order of v, with those behind them."""
    if first and not torch.compiler.is_compiling():
        lowest = ranks.masked_fill(~mask, float("inf")).amin(dim=1)
        if not (mask[:, first] & (ranks[:, first] > lowest)).any():  # as behind the few positives of many ads
            return scores.new_zeros(len(scores)), scores.new_zeros(len(scores))
    ads, behind = slice(first, last), slice(first, None)
    pair = (ranks[:, ads, None] > ranks[:, None, behind]) & mask[:, ads, None] & mask[:, None, behind]
    losses = F.softplus(scores[:, None, behind] - scores[:, ads, None]) * pair
    return losses.sum(dim=(1, 2)), pair.sum(dim=(1, 2)).to(scores.dtype)


def _log_neural_sort(
    scores: torch.Tensor, mask: torch.Tensor, spread: torch.Tensor, tau: float, first: int, last: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of log `neural_sort` (B, r, n), very low in masked columns, and which of them are places of an ad (B, r) bool.

    The rows beyond the impression's number of ads hold softmax values too: the caller masks them.
    """
    width = scores.shape[1]
    counts = mask.sum(dim=1, keepdim=True)
    places = torch.arange(1, width + 1, device=scores.device)[first:last]
    factor = (counts + 1 - 2 * places).to(scores.dtype)  # (B, r)
    logits = (factor.unsqueeze(2) * scores.unsqueeze(1) - spread.unsqueeze(1)) / tau
    logits = logits.masked_fill(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
    return torch.log_softmax(logits, dim=2), places <= counts


def _spread(scores: torch.Tensor, mask: torch.Tensor, first: int, last: int) -> tuple[torch.Tensor]:
    """What the ads from first to last add to A_s 1 (b, n); a sort would give all of it in O(n log n), but not the gradient of equal scores."""
    ads = slice(first, last)
    return (((scores[:, ads, None] - scores[:, None]).abs() * mask[:, ads, None]).sum(dim=1),)


def _in_chunks(
    function: Callable[..., tuple[torch.Tensor, ...]], tensors: tuple[torch.Tensor, ...], max_pairs: int
) -> tuple[torch.Tensor, ...]:
    """`function(*tensors, first, last)` on chunks of impressions, joined, and on rows first to last of large ones, added up; with gradients a
    chunk is computed again in the backward pass."""
    count, width = tensors[0].shape
    step = max(1, max_pairs // max(width * width, 1))
    height = min(width, max(1, max_pairs // max(width, 1)))
    if count <= step and height == width:
        return function(*tensors, 0, width)
    parts = []
    for chunk in zip(*(tensor.split(step) for tensor in tensors)):
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in chunk):
            call = partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
        else:
            call = function
        rows = [call(*chunk, first, first + height) for first in range(0, width, height)]
        parts.append([sum(column[1:], column[0]) for column in zip(*rows)])
    return tuple(torch.cat(column) for column in zip(*parts))


def _check(
    scores: torch.Tensor, others: dict[str, torch.Tensor], mask: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """Scores, mask and the other tensors: (B, n), float32 at least, 0 in masked places; ValueError where shapes differ."""
    if scores.ndim != 2:
        raise ValueError(f"scores must have shape (impressions, ads), got {tuple(scores.shape)}")
    if mask is None:
        mask = torch.ones(scores.shape, dtype=torch.bool, device=scores.device)
    for name, tensor in {"mask": mask, **others}.items():
        if tensor.shape != scores.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, scores has {tuple(scores.shape)}")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, True where there is an ad, got {mask.dtype}")
    kind = torch.promote_types(scores.dtype, torch.float32)
    # masked_fill, not a product: NaN or infinity in padding must reach neither the sums nor the gradients
    return (
        scores.to(kind).masked_fill(~mask, 0),
        mask,
        *(tensor.to(kind).masked_fill(~mask, 0) for tensor in others.values()),
    )


def _mean_over(
    values: torch.Tensor,
    counted: torch.Tensor,
    weight: torch.Tensor | None = None,
    divisor: torch.Tensor | float | None = None,
) -> torch.Tensor:
    share = counted.to(values.dtype) if weight is None else counted * weight.to(values.dtype)
    if divisor is None:
        divisor = share.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return (torch.where(counted, values, 0) * share).sum() / divisor
