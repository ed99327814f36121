"""Relative biases against a plain look-up, and buckets of times by the bits of a double against their definition."""

import pytest
import torch

from lmctr.models.common.relative_bias import add_bias, causal_parts, distance_bucket, pair_bias, pair_rows
from lmctr.models.common.sequence import time_bucket


def drawn(pairs, seed=0):
    """(2, `pairs`, 3) pairs of 2 groups of tables with 4 positions and 5 times, of which some may not attend; 2 heads."""
    generator = torch.Generator().manual_seed(seed)
    shape = 2, pairs, 3
    buckets = [torch.randint(0, count, shape, generator=generator) for count in (4, 5)]
    group = torch.randint(0, 2, shape[:2], generator=generator)[..., None]
    visible = torch.rand(shape, generator=generator) < 0.7
    tables = [torch.randn(2, 2, count, generator=generator, dtype=torch.float64) for count in (4, 5)]
    return visible, buckets, group, tables


@pytest.mark.parametrize(("pairs", "tables_used"), [(6, 2), (7, 1)])  # 2 x 4 x 5 sums against 36 and 42 pairs
def test_the_bias_of_a_pair(pairs, tables_used):
    visible, (position, time), group, tables = drawn(pairs)
    rows = pair_rows(visible, position, time, (2, 4, 5), group)
    assert len(rows) == tables_used
    assert {part.dtype for part in rows} == {torch.int32}
    tables = [table.requires_grad_() for table in tables]
    found = torch.stack(pair_bias(rows, *tables))
    assert (found[:, ~visible] == torch.finfo(torch.float64).min / 2).all()
    expected = tables[0][:, group, position] + tables[1][:, group, time]
    torch.testing.assert_close(found[:, visible], expected[:, visible], atol=0, rtol=0)
    weight = torch.randn(found.shape, dtype=torch.float64) * visible
    gradients = [torch.autograd.grad((biases * weight)[:, visible].sum(), tables) for biases in (found, expected)]
    for got, wanted in zip(*gradients):
        torch.testing.assert_close(got, wanted)


def test_a_pair_that_may_not_attend_weighs_nothing_in_half_precision():
    rows = pair_rows(torch.tensor([[True, False]]), torch.tensor([[0, 1]]), torch.tensor([[1, 0]]), (1, 2, 2))
    for dtype in (torch.float16, torch.bfloat16):
        table = torch.randn(1, 1, 2).to(dtype)
        bias = pair_bias(rows, table, table)[0]
        assert bias.isfinite().all()
        assert add_bias(torch.full_like(bias, -900), bias).softmax(-1)[0].tolist() == [1, 0]
        assert torch.nn.functional.silu(add_bias(torch.full_like(bias, 900), bias))[0, 1] == 0


def test_scores_of_another_type_keep_the_bias_whole():
    scores, bias = torch.zeros(1, 2, dtype=torch.float16), torch.tensor([[0.1, torch.finfo(torch.float32).min / 2]])
    assert torch.equal(add_bias(scores, bias), bias)
    scores = torch.zeros(1, 2)
    assert add_bias(scores, bias) is scores


@pytest.mark.parametrize("last", [2, 9, 61, 64])
def test_time_buckets(monkeypatch, last):
    """Bucket b holds 2**b - 1 to 2**(b + 1) - 2 seconds, as what an exported graph computes has it too."""
    seconds = [-(10**10), -1, 0, *(2**b + step for b in range(50) for step in (-2, -1, 0, 1))]
    expected = [min((max(s, 0) + 1).bit_length() - 1, last - 1) for s in seconds]
    given = torch.tensor(seconds)
    assert time_bucket(given, last).tolist() == expected
    assert given.tolist() == seconds
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert time_bucket(given, last).tolist() == expected
    # ONNX has the natural logarithm only, whose quotient is a little too high or too low
    for base in (0.693147, 0.6931474):
        monkeypatch.setattr(torch.Tensor, "log2", lambda own, base=base: own.log() / base)
        assert time_bucket(given, last).tolist() == expected


def test_distances():
    assert distance_bucket(torch.tensor([[-7, 0, 1], [2, 5, 99]]), (0, 1, 4)).tolist() == [[0, 0, 1], [1, 2, 2]]


def test_parts_of_the_queries(monkeypatch):
    found = causal_parts(150, torch.device("cpu"))
    assert [(part.start, part.stop) for part in found] == [(0, 64), (64, 128), (128, 150)]
    assert causal_parts(0, torch.device("cpu")) == [slice(0, 0)]  # of which attention is empty, not an error
    assert len(causal_parts(513, torch.device("meta"))) == 2
    for graph in ("is_exporting", "is_compiling"):
        with monkeypatch.context() as patched:
            patched.setattr(torch.compiler, graph, lambda: True)
            assert causal_parts(150, torch.device("cpu")) == [slice(0, 150)]
