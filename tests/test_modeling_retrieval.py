"""The foundation MLP against float64 numpy, and the split first layer against the whole."""

import numpy as np
import pytest
import torch

import lmctr
from lmctr.models.common.retrieval import FoundationMLP, SplitTowers, fold_mlp, split_mlp
from lmctr.scaling.design import mlp_flops

USER, AD, HIDDEN = 10, 6, [12, 8, 8, 4]


@pytest.fixture
def mlp():
    """With running statistics, scales and slopes that are no defaults."""
    torch.manual_seed(0)
    mlp = FoundationMLP(USER + AD, HIDDEN)
    for layer in mlp.layers:
        torch.nn.init.uniform_(layer.norm.weight, 0.5, 2)
        torch.nn.init.normal_(layer.norm.bias)
        torch.nn.init.uniform_(layer.activation.weight, 0.1, 0.5)
        torch.nn.init.normal_(layer.linear.bias)
    for _ in range(3):
        mlp(3 * torch.randn(64, USER + AD) + 1)
    return mlp.eval()


def array(tensor):
    return tensor.detach().double().numpy()


def test_the_order_of_the_layers(mlp):
    rows = torch.randn(5, USER + AD)
    states = array(rows)
    for layer in mlp.layers:
        norm = layer.norm
        states = (states - array(norm.running_mean)) / np.sqrt(array(norm.running_var) + norm.eps)
        states = states * array(norm.weight) + array(norm.bias)
        states = states @ array(layer.linear.weight).T + array(layer.linear.bias)
        states = np.where(states > 0, states, array(layer.activation.weight) * states)
    expected = states @ array(mlp.output.weight).T + array(mlp.output.bias)
    seen = []
    np.testing.assert_allclose(array(mlp(rows, seen)), expected, atol=1e-5)
    assert [tuple(s.shape) for s in seen] == [(5, width) for width in HIDDEN]


def test_he_initialisation():
    torch.manual_seed(0)
    weight = FoundationMLP(400, [300]).layers[0].linear.weight
    assert weight.std().item() == pytest.approx((2 / (1 + 0.25**2) / 400) ** 0.5, rel=0.02)


def test_split_equals_the_whole(mlp):
    users, ads = torch.randn(3, USER), torch.randn(7, AD)
    rows = torch.cat((users[:, None].expand(3, 7, USER), ads.expand(3, 7, AD)), -1)
    expected = mlp(rows.flatten(0, 1)).view(3, 7)
    served = split_mlp(mlp.train(), USER)  # the running statistics count, whatever the mode
    halves = served.ad_half(ads)
    torch.testing.assert_close(served(users, halves), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(served(users[1], halves), expected[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(served(users, halves.expand(3, 7, HIDDEN[0])), expected, atol=1e-5, rtol=0)
    assert not any(parameter.requires_grad for parameter in served.parameters())


def test_one_ad_is_updated_in_the_cache(mlp):
    user, ads, changed = torch.randn(USER), torch.randn(7, AD), torch.randn(AD)
    served = split_mlp(mlp, USER)
    halves = served.ad_half(ads)
    before = served(user, halves)
    halves[4] = served.ad_half(changed)
    after = served(user, halves)
    assert (before != after).nonzero().flatten().tolist() == [4]
    whole = mlp(torch.cat((user, changed))[None])[0, 0]
    torch.testing.assert_close(after[4], whole, atol=1e-5, rtol=0)


def test_flops_of_the_base_model():
    """The counted FLOPs are the formula's; with cached ad halves a request saves the first layer of every ad."""
    from lmctr.scaling.flops import _counter

    sizes = [52, 16, 8, 8, 8, 1]
    mlp = FoundationMLP(52, sizes[1:-1]).eval()
    with _counter() as counter, torch.no_grad():
        mlp(torch.randn(9, 52))
    assert counter.get_total_flops() == 9 * mlp_flops(sizes)
    served = split_mlp(mlp, 40)
    halves = served.ad_half(torch.randn(9, 12))
    with _counter() as counter:
        served(torch.randn(40), halves)
    assert counter.get_total_flops() == 2 * 40 * 16 + 9 * mlp_flops(sizes[1:])


def test_bad_input(mlp):
    for size in (0, USER + AD):
        with pytest.raises(ValueError, match=f"user_size must be between 1 and 15, got {size}"):
            split_mlp(mlp, size)
    with pytest.raises(ValueError, match="hidden_units"):
        FoundationMLP(4, [])
    hidden = FoundationMLP(USER + AD, HIDDEN, out_size=None)
    with pytest.raises(ValueError, match="output is missing"):
        split_mlp(hidden, USER)
    assert hidden.out_size == HIDDEN[-1]
    assert torch.equal(mlp.output(torch.ones(1, 4)), split_mlp(hidden, USER, mlp.output).linears[-1](torch.ones(1, 4)))


def test_folded_towers(mlp):
    """Each tower equals its evaluation mode, and a score is the scaled inner product."""
    rows = torch.randn(5, USER + AD)
    expected = mlp(rows)
    torch.testing.assert_close(fold_mlp(mlp.train())(rows), expected, atol=1e-5, rtol=0)
    towers = SplitTowers(USER + AD, USER + AD, HIDDEN, 1)
    towers.user = towers.ad = fold_mlp(mlp)
    towers.scale.fill_(0.5)
    scores = towers(rows[:2], towers.ad_half(rows))
    torch.testing.assert_close(scores, 0.5 * expected[:2] * expected.T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 1])
def test_fewer_than_two_rows_have_no_statistics(mlp, rows):
    states = torch.randn(rows, USER + AD)
    expected = mlp(states)
    before = {name: values.clone() for name, values in mlp.named_buffers()}
    found = mlp.train()(states)
    assert torch.equal(found, expected)
    assert all(torch.equal(before[name], values) for name, values in mlp.named_buffers())
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in mlp.parameters())


def test_raw_numbers_that_float16_cannot_hold_are_refused(mlp):
    with torch.no_grad():
        rows = 300 * torch.randn(64, USER + AD)
        for _ in range(50):  # numbers that fit, whose variances do not
            mlp.train()(rows)
    half = mlp.eval().to(torch.float16)
    for call in (lambda: half(rows.half()), lambda: fold_mlp(half)):
        with pytest.raises(ValueError, match=r"a variance is too large for float16.*bfloat16"):
            call()
    sizes = {"user_vocab_sizes": [5], "user_num_numeric": 1, "ad_vocab_sizes": [5], "ad_num_numeric": 1}
    for family in ("RetrievalMLP", "TwoTower"):
        config = getattr(lmctr, f"{family}Config")(**sizes, ad_field_names=["ad", "bid"], hidden_units=[8])
        model = getattr(lmctr, f"{family}ForCTR")(config).eval()
        inputs = {"user_input_ids": torch.ones(1, 1, dtype=torch.long), "user_numeric_values": torch.ones(1, 1)}
        inputs |= {"ad_input_ids": torch.ones(1, 2, 1, dtype=torch.long)}
        inputs |= {"ad_numeric_values": torch.tensor([[[65_000.0], [70_000.0]]])}
        assert model.to(torch.bfloat16)(**inputs).logits.isfinite().all()
        with pytest.raises(ValueError, match=r"ad_numeric_values: field 'bid' has 70000\.0 in row 1, too large for"):
            model.to(torch.float16)(**inputs)
