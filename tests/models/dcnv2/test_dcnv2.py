"""DCNv2: the common suite, and its equations against float64 loops."""

import numpy as np
import pytest
import torch
from model_tester import CTRModelTesterMixin
from tabular_inputs import (
    FIELDS,
    MIXED_DIMS,
    TabularSuite,
    array,
    linear,
    logits_of,
    make_batch,
    mlp,
    reference_vectors,
    softmax,
)

from lmctr import DCNv2Config, DCNv2ForCTR, DCNv2Model

MIXTURE = {"cross_type": "mixture", "low_rank": 3, "num_experts": 2}


class TestDCNv2(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = DCNv2Config, DCNv2ForCTR, DCNv2Model
    changing_key = ("num_cross_layers", 1)
    values = {"hidden_units": [16, 8], "num_cross_layers": 2}


class TestDCNv2Stacked(TestDCNv2):
    values = {
        "hidden_units": [16, 8],
        "num_cross_layers": 2,
        "structure": "stacked",
        "embedding_dim": MIXED_DIMS,
    } | MIXTURE


class TestDCNv2CrossOnly(TestDCNv2):
    values = {"hidden_units": [], "num_cross_layers": 2} | MIXTURE


def cross(layer, x, x0):
    if hasattr(layer, "linear"):
        return x0 * linear(layer.linear, x) + x  # Eq. 1
    gates = softmax(linear(layer.gate, x))
    total, rank = x.copy(), layer.rank
    for i in range(layer.num_experts):  # Eq. 3-4
        v, u = array(layer.down)[i * rank : (i + 1) * rank], array(layer.up)[:, i * rank : (i + 1) * rank]
        inner = np.tanh(array(layer.core)[i].T @ np.tanh(v @ x))
        total = total + gates[i] * x0 * (u @ inner + array(layer.bias))
    return total


@pytest.mark.parametrize("structure", ["stacked", "parallel"])
@pytest.mark.parametrize("hidden_units", [[16, 8], []])
@pytest.mark.parametrize("kind", [{}, MIXTURE])
def test_equations(structure, hidden_units, kind):
    torch.manual_seed(0)
    values = {"structure": structure, "num_cross_layers": 2, "hidden_units": hidden_units, "embedding_dim": MIXED_DIMS}
    model = DCNv2ForCTR(DCNv2Config(**FIELDS | values | kind)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    batch = make_batch(model.config)
    expected = []
    for vectors in reference_vectors(model, batch):
        x0 = x = np.concatenate(vectors)
        for layer in model.model.cross:
            x = cross(layer, x, x0)
        if hidden_units and structure == "stacked":
            x = mlp(model.model.mlp, x)
        elif hidden_units:
            x = np.concatenate([x, mlp(model.model.mlp, x0)])
        expected.append(linear(model.head, x)[0])
    np.testing.assert_allclose(logits_of(model, batch), expected, atol=1e-4, rtol=1e-4)
