"""Wukong: the common suite, and its equations against float64 loops."""

import numpy as np
import pytest
import torch
from model_tester import CTRModelTesterMixin
from tabular_inputs import (
    FIELDS,
    MIXED_DIMS,
    TabularSuite,
    array,
    layer_norm,
    linear,
    logits_of,
    make_batch,
    mlp,
    project,
    randomise_vectors,
    reference_vectors,
)

from lmctr import WukongConfig, WukongForCTR, WukongModel

TINY = {
    "num_hidden_layers": 2,
    "num_fmb_tokens": 3,
    "num_lcb_tokens": 2,
    "fm_rank": 3,
    "num_compressed_tokens": 2,
    "fm_attention_units": [5],
    "fmb_units": [8],
    "hidden_units": [8],
}


class TestWukong(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = WukongConfig, WukongForCTR, WukongModel
    changing_key = ("fm_rank", 2)
    values = TINY


class TestWukongStatic(TestWukong):
    values = TINY | {"fm_projection": "static", "num_lcb_tokens": 4, "embedding_dim": MIXED_DIMS}


class TestWukongPlain(TestWukong):
    values = TINY | {"fm_projection": "none", "hidden_units": []}


def wukong_layer(layer, x):
    x = np.asarray(x)
    gram = np.array([[x[i] @ x[j] for j in range(len(x))] for i in range(len(x))])
    if layer.kind == "static":
        gram = gram @ array(layer.projection.weight).T
    elif layer.kind == "attentive":
        compressed = array(layer.compress.weight) @ x
        hidden = mlp(layer.attention[0], compressed.T.reshape(-1))
        gram = gram @ linear(layer.attention[1], hidden).reshape(len(x), -1)
    flat = layer_norm(layer.fm_norm, gram.reshape(-1))
    fmb = linear(layer.fm_mlp[1], mlp(layer.fm_mlp[0], flat)).reshape(layer.num_fmb, -1)  # FMB
    both = np.concatenate([fmb, array(layer.lcb.weight) @ x])  # LCB
    residual = x if layer.residual is None else array(layer.residual.weight) @ x
    return np.array([layer_norm(layer.norm, row) for row in both + residual])


@pytest.mark.parametrize("kind", ["attentive", "static", "none"])
@pytest.mark.parametrize("values", [{"num_lcb_tokens": 4}, {"embedding_dim": MIXED_DIMS, "hidden_units": []}])
def test_equations(kind, values):
    torch.manual_seed(0)
    model = WukongForCTR(WukongConfig(**FIELDS | TINY | values | {"fm_projection": kind})).eval()
    randomise_vectors(model)
    assert (model.model.layers[0].residual is None) == ("num_lcb_tokens" in values)  # 7 fields in, 3 + 4 out
    assert model.model.layers[1].residual is None
    batch = make_batch(model.config)
    expected = []
    for vectors in reference_vectors(model, batch):
        states = project(model.model.projection, vectors)
        for layer in model.model.layers:
            states = wukong_layer(layer, states)
        expected.append(linear(model.head, mlp(model.model.mlp, states.reshape(-1)))[0])
    np.testing.assert_allclose(logits_of(model, batch), expected, atol=1e-4, rtol=1e-4)


def test_the_attentive_projection_depends_on_the_row():
    """With a static Y the factorisation machine is quadratic in X; with Y made from X it is not."""
    for kind, is_quadratic in (("static", True), ("attentive", False)):
        torch.manual_seed(0)
        layer = WukongModel(WukongConfig(**FIELDS | TINY | {"fm_projection": kind})).layers[0]
        seen = []
        layer.fm_norm.register_forward_pre_hook(lambda m, args, seen=seen: seen.append(args[0]))
        states = torch.randn(3, 7, 4)
        layer(states)
        layer(2 * states)
        assert torch.allclose(seen[1], 4 * seen[0], atol=1e-4) == is_quadratic
