"""Losses on impressions against float64 loops."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lmctr.models.common.ranking_losses import (
    ARFLoss,
    list_softmax_loss,
    neural_sort,
    pairwise_logistic_loss,
    pointwise_loss,
)

LENGTHS = (5, 1, 7, 0, 3)


def loop_neural_sort(s, tau):
    n = len(s)
    matrix = np.zeros((n, n))
    for i in range(1, n + 1):
        logits = [((n + 1 - 2 * i) * s[j] - sum(abs(s[j] - s[b]) for b in range(n))) / tau for j in range(n)]
        top = max(logits)
        total = sum(math.exp(x - top) for x in logits)
        for j in range(n):
            matrix[i - 1, j] = math.exp(logits[j] - top) / total
    return matrix


def loop_arf(s, v, m, k, tau, target_tau, eps=1e-8):
    n = len(s)
    model, target = loop_neural_sort(s, tau), loop_neural_sort(v, target_tau)
    order = -sum(target[j, h] * math.log(max(model[j, h], eps)) for j in range(n) for h in range(n))
    m, k = min(m, n), min(k, n)
    relax = 0.0
    for j in range(n):
        wanted = sum(target[i, j] for i in range(k))
        relax -= wanted * math.log(max(sum(model[i, j] for i in range(m)) / m, eps))
    return relax, order


@pytest.fixture(scope="module")
def batch():
    """Ragged impressions as padded tensors, NaN in the padding, and as lists."""
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=n), rng.permutation(n).astype(float), rng.random(n)) for n in LENGTHS]
    width = max(LENGTHS) + 1
    tensors = torch.full((3, len(LENGTHS), width), float("nan"), dtype=torch.float64)
    mask = torch.zeros(len(LENGTHS), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        for column, values in enumerate(row):
            tensors[column, i, : len(values)] = torch.as_tensor(values)
        mask[i, : LENGTHS[i]] = True
    return rows, *tensors, mask


@pytest.mark.parametrize("tau", [0.3, 1.0, 4.0])
def test_neural_sort_against_loops(batch, tau):
    rows, scores, _, _, mask = batch
    matrices = neural_sort(scores, mask, tau)
    for (s, _, _), matrix, n in zip(rows, matrices, LENGTHS):
        np.testing.assert_allclose(matrix[:n, :n], loop_neural_sort(s, tau), rtol=1e-12, atol=1e-15)
        assert (matrix[n:] == 0).all()
        assert (matrix[:, n:] == 0).all()


def test_neural_sort_sorts_as_tau_falls():
    scores = torch.tensor([[0.3, 2.0, -1.0, 0.9]])
    matrix = neural_sort(scores, tau=1e-3)[0]
    assert torch.allclose(matrix @ scores[0], scores[0].sort(descending=True).values, atol=1e-6)
    assert matrix.argmax(1).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize(("m", "k", "tau", "target_tau"), [(2, 1, 1.0, 1.0), (4, 3, 0.5, 0.1), (50, 9, 2.0, 1.0)])
def test_arf_against_loops(batch, m, k, tau, target_tau):
    rows, scores, ranks, _, mask = batch
    loss = ARFLoss(m=m, k=k, tau=tau, target_tau=target_tau)
    expected = np.mean([loop_arf(s, v, m, k, tau, target_tau) for (s, v, _), n in zip(rows, LENGTHS) if n], axis=0)
    np.testing.assert_allclose([part.item() for part in loss.parts(scores, ranks, mask)], expected, rtol=1e-11)
    with torch.no_grad():
        loss.alpha.fill_(-1.7)
    value = expected[0] + expected[1] / (2 * 1.7**2) + math.log(1.7)
    assert loss(scores, ranks, mask).item() == pytest.approx(value, rel=1e-6)


def test_the_clamp_bounds_the_loss():
    scores, ranks = torch.tensor([[500.0, -500.0, 0.0]]), torch.tensor([[0.0, 2.0, 1.0]])
    loss = ARFLoss(m=1, target_tau=1e-3)
    relax, order = loss.parts(scores, ranks)
    assert relax.item() == pytest.approx(-math.log(1e-8), rel=1e-5)
    assert order.item() == pytest.approx(-2 * math.log(1e-8), rel=1e-5)


def test_arf_is_zero_gradient_on_nothing(batch):
    scores = torch.randn(3, 4, requires_grad=True)
    loss = ARFLoss(m=2)(scores, torch.rand(3, 4), torch.zeros(3, 4, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert (scores.grad == 0).all()


@pytest.mark.parametrize("kind", ["arf", "pointwise", "pairwise", "list"])
def test_gradients(batch, kind):
    _, scores, ranks, weights, mask = batch
    ranks, weights = ranks.clone(), weights.clone()
    scores = torch.where(mask, scores, 0.0).requires_grad_()
    arf = ARFLoss(m=3, k=2, max_pairs=130).double()  # two impressions a chunk
    functions = {
        "arf": lambda s: arf(s, ranks, mask),
        "pointwise": lambda s: pointwise_loss(s, weights, mask),
        "pairwise": lambda s: pairwise_logistic_loss(s, ranks, mask, max_pairs=130),
        "list": lambda s: list_softmax_loss(s, weights, mask),
    }
    assert torch.autograd.gradcheck(functions[kind], (scores,), atol=1e-7)
    functions[kind](scores).backward()
    assert (scores.grad[~mask] == 0).all()
    assert (scores.grad[mask] != 0).sum() > 8


def test_alpha_is_trained_and_settles_where_equation_2_says(batch):
    """dL / d alpha = 0 at alpha^2 = L_global."""
    _, scores, ranks, _, mask = batch
    loss = ARFLoss(m=2).double()
    order = loss.parts(scores, ranks, mask)[1].item()
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.3)
    for _ in range(400):
        optimizer.zero_grad()
        loss(scores, ranks, mask).backward()
        optimizer.step()
    assert loss.alpha.item() ** 2 == pytest.approx(order, rel=1e-5)
    assert list(ARFLoss(m=2, train_alpha=False).parameters()) == []


def largest_saved(function):
    """Entries of the largest tensor that the forward pass keeps for the backward pass, and its value."""
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        value = function()
    return max(sizes), value


def test_chunks_change_nothing_and_bound_what_is_kept(batch):
    _, scores, ranks, _, mask = batch
    results = []
    for max_pairs in (1, 64, 128, 1 << 20):
        s = torch.where(mask, scores, 0.0).requires_grad_()
        loss = ARFLoss(m=3, k=2, max_pairs=max_pairs).double()
        kept, value = largest_saved(lambda s=s, loss=loss: loss(s, ranks, mask))
        value.backward()
        results.append((value.item(), s.grad, loss.alpha.grad))
        width = scores.shape[1]
        assert kept <= scores.numel() if max_pairs < 256 else kept >= scores.numel() * width
    for value, grad, alpha in results[1:]:
        assert value == pytest.approx(results[0][0], rel=1e-12)
        assert torch.allclose(grad, results[0][1], rtol=1e-10, atol=1e-14)
        assert torch.allclose(alpha, results[0][2])


class LargestResult(TorchDispatchMode):
    """Entries of the largest tensor that any operation gives."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.entries = max(self.entries, result.numel())
        return result


@pytest.mark.parametrize("kind", ["arf", "order", "few_positives"])
def test_one_large_impression_is_taken_in_rows(kind):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 300, generator=generator, dtype=torch.float64)
    ranks = torch.randperm(300, generator=generator).double()[None]
    mask = torch.rand(1, 300, generator=generator) < 0.9
    if kind == "few_positives":
        ranks = (ranks >= 295).double()
    results = []
    for max_pairs in (300 * 16, 300 * 300):
        s, arf = scores.clone().requires_grad_(), ARFLoss(m=30, k=20, max_pairs=max_pairs).double()
        with LargestResult() as largest:
            loss = arf(s, ranks, mask) if kind == "arf" else pairwise_logistic_loss(s, ranks, mask, max_pairs)
            loss.backward()
        assert largest.entries <= max_pairs
        results.append((loss, s.grad))
    (value, grad), (whole, whole_grad) = results
    assert value.item() == pytest.approx(whole.item(), rel=1e-12)
    assert torch.allclose(grad, whole_grad, rtol=1e-10, atol=1e-14)
    assert (grad != 0).any()


def test_order_of_ads_does_not_matter(batch):
    _, scores, ranks, _, mask = batch
    shuffle = torch.randperm(scores.shape[1], generator=torch.Generator().manual_seed(1))
    loss = ARFLoss(m=3, k=2)
    a, b = loss(scores, ranks, mask), loss(scores[:, shuffle], ranks[:, shuffle], mask[:, shuffle])
    assert a.item() == pytest.approx(b.item(), rel=1e-10)


def test_1500_ads():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 1500, generator=generator, requires_grad=True)
    ranks = torch.stack([torch.randperm(1500, generator=generator) for _ in range(2)])
    loss = ARFLoss(m=100, max_pairs=1500 * 1500)(scores, ranks)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scores.grad).all()
    assert (scores.grad != 0).any()


def test_training_on_arf_sorts():
    ranks = torch.tensor([[3.0, 0, 2, 1], [0, 1, 2, 3]])
    scores = torch.zeros(2, 4, requires_grad=True)
    scores.data.uniform_(-0.1, 0.1, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam([scores], lr=0.1)
    loss = ARFLoss(m=2)
    for _ in range(150):
        optimizer.zero_grad()
        loss(scores, ranks).backward()
        optimizer.step()
    assert torch.equal(scores.argsort(1), ranks.argsort(1))


def test_pointwise_against_loops(batch):
    rows, scores, _, labels, mask = batch
    losses = [
        [-y * math.log(p) - (1 - y) * math.log(1 - p) for p, y in zip(1 / (1 + np.exp(-s)), w)] for s, _, w in rows
    ]
    expected = np.mean([np.mean(x) for x in losses if x])
    assert pointwise_loss(scores, labels, mask).item() == pytest.approx(expected, rel=1e-12)
    flat = [value for row in losses for value in row]
    assert pointwise_loss(scores, labels, mask, "ads").item() == pytest.approx(np.mean(flat), rel=1e-12)


def test_pairwise_against_loops(batch):
    rows, scores, ranks, _, mask = batch
    expected = []
    for s, v, _ in rows:
        pairs = [math.log1p(math.exp(s[j] - s[i])) for i in range(len(s)) for j in range(len(s)) if v[i] > v[j]]
        expected += [np.mean(pairs)] if pairs else []
    assert len(expected) == 3
    assert pairwise_logistic_loss(scores, ranks, mask).item() == pytest.approx(np.mean(expected), rel=1e-12)


def test_list_softmax_against_loops(batch):
    rows, scores, _, targets, mask = batch
    expected = []
    for s, _, w in rows:
        if len(s):
            total = sum(math.exp(x) for x in s)
            expected.append(-sum(y / sum(w) * math.log(math.exp(x) / total) for x, y in zip(s, w)))
    assert list_softmax_loss(scores, targets, mask).item() == pytest.approx(np.mean(expected), rel=1e-12)


def test_bad_input():
    scores = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="k must be at most m"):
        ARFLoss(m=2, k=3)
    with pytest.raises(ValueError, match="m must be an integer of at least 1"):
        ARFLoss(m=0)
    with pytest.raises(ValueError, match="tau must be above 0"):
        ARFLoss(m=1, tau=0.0)
    with pytest.raises(ValueError, match="tau must be above 0"):
        neural_sort(scores, tau=-1.0)
    with pytest.raises(ValueError, match=r"ranks has shape \(2, 4\)"):
        ARFLoss(m=1)(scores, torch.zeros(2, 4))
    with pytest.raises(ValueError, match="mask must be bool"):
        pairwise_logistic_loss(scores, scores, torch.ones(2, 3))
    with pytest.raises(ValueError, match="scores must have shape"):
        list_softmax_loss(scores[0], scores[0])
    with pytest.raises(ValueError, match="reduction must be"):
        pointwise_loss(scores, scores, reduction="sum")


def mean_losses(kind, scores, ranks, labels, mask, **options):
    if kind == "arf":
        return ARFLoss(3)(scores, ranks, mask, **options)
    if kind == "ads":
        return pointwise_loss(scores, labels, mask, reduction="ads", **options)
    function = {"pairwise": pairwise_logistic_loss, "list": list_softmax_loss, "pointwise": pointwise_loss}[kind]
    return function(scores, {"pairwise": ranks}.get(kind, labels), mask, **options)


@pytest.mark.parametrize("kind", ["arf", "pairwise", "list", "pointwise", "ads"])
def test_weights_and_divisors(batch, kind):
    """The weighted mean over the impressions that the loss is defined on; a divisor makes it a share of a larger batch's mean."""
    _, scores, ranks, labels, mask = batch
    weight = torch.tensor([2.0, 0.5, 1.0, 7.0, 3.0], dtype=torch.float64)
    tensors = (scores, ranks, labels, mask)
    losses = [mean_losses(kind, *(t[i : i + 1] for t in tensors)).item() for i in range(5)]
    share = weight * {"pairwise": torch.tensor([1, 0, 1, 0, 1]), "ads": mask.sum(1)}.get(kind, mask.any(1))
    total = sum(loss * part for loss, part in zip(losses, share.tolist()))
    found = mean_losses(kind, *tensors, weight=weight)
    assert found.item() == pytest.approx(total / share.sum().item(), rel=1e-9)
    halves = [
        mean_losses(kind, *(t[rows] for t in tensors), weight=weight[rows], divisor=40.0)
        for rows in (slice(2), slice(2, 5))
    ]
    assert sum(halves).item() == pytest.approx(total / 40, rel=1e-9)
    assert mean_losses(kind, *tensors, weight=weight * 0).item() == 0
