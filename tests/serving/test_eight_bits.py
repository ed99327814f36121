"""Matrices of eight bits against their arithmetic in float64, in every language model, alone and with kept states."""

import copy

import pytest
import torch
from serving_models import candidates_of, history_of, make, row_by_row
from torch import nn

from lmctr.serving import UserState, precision, score
from lmctr.serving.precision import Int8Linear, in_precision

pytestmark = pytest.mark.skipif(not precision.int8_is_exact(), reason="this processor multiplies eight bits inexactly")


def _whole(rows):
    scale = rows.abs().amax(1, keepdim=True) / 127
    scale[scale == 0] = 1.0
    return (rows / scale).round(), scale


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 4), (2, 0), (130,)])
def test_the_product_is_that_of_whole_numbers(shape, bias):
    torch.manual_seed(0)
    linear = nn.Linear(40, 24, bias=bias)
    inputs = torch.randn(*shape, 40) * torch.logspace(-3, 3, shape[-1])[:, None]
    found = Int8Linear(linear.weight, linear.bias)(inputs)
    values, of_inputs = _whole(inputs.double().reshape(-1, 40))
    weight, of_weight = _whole(linear.weight.detach().double())
    expected = values @ weight.T * of_inputs * of_weight.T
    if bias:
        expected += linear.bias.detach().double()
    torch.testing.assert_close(found.reshape(-1, 24).double(), expected, rtol=1e-5, atol=1e-5)
    assert found.shape == (*shape, 24)
    assert found.dtype == torch.float32
    assert not found.requires_grad


def test_a_row_is_the_same_alone_and_beside_others():
    torch.manual_seed(0)
    layer, inputs = Int8Linear(torch.randn(48, 32)), torch.randn(70, 32)
    inputs[3] *= 1e4
    inputs[5] = 0.0
    together = layer(inputs)
    assert torch.equal(together, torch.cat([layer(row[None]) for row in inputs]))
    assert not together[5].any()


@pytest.mark.parametrize("model_type", ["qwen2", "bert"])
def test_histories_are_shared_and_kept(model_type):
    model, processor = make(model_type, model={"encoder_prefix": model_type == "bert"}, sink_signal="recency")
    history, candidates = history_of(9), candidates_of(7)
    time = history[-1]["time"] + 50
    expected = row_by_row(model, processor, history, candidates, time)
    assert in_precision(model, "int8") is model
    alone = row_by_row(model, processor, history, candidates, time)
    assert 0 < (alone - expected).abs().max() < 0.05
    state = UserState(model, processor, history[:-1])
    state.extend(history[-1:])
    for asked in (history, state):
        torch.testing.assert_close(score(model, processor, asked, candidates, time), alone, rtol=0, atol=0.02)


def test_what_cannot_be_held_in_eight_bits(monkeypatch):
    model, _ = make("qwen2")
    with pytest.raises(ValueError, match="dtype: expected float32, bfloat16, float16, int8, got 'int4'"):
        in_precision(model, "int4")
    with pytest.raises(ValueError, match="dtype int8: computes on CPUs, got meta"):
        in_precision(copy.deepcopy(model).to("meta"), "int8")
    monkeypatch.setattr(precision._Packed, "product", lambda *_: torch.zeros(2, 16))
    monkeypatch.setattr(precision, "int8_is_exact", precision.int8_is_exact.__wrapped__)
    with pytest.raises(ValueError, match="dtype int8: this processor multiplies eight bits inexactly"):
        in_precision(model, "int8")
    assert any(isinstance(one, nn.Linear) for one in model.base_model.language_model.modules())
