"""xDeepFM: the common suite, its equations against float64 loops, and the blockwise product's gradients."""

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
    project,
    reference_vectors,
    vectors_by_loops,
)

from lmctr import XDeepFMConfig, XDeepFMForCTR, XDeepFMModel
from lmctr.models.xdeepfm import modeling_xdeepfm


class TestXDeepFM(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = XDeepFMConfig, XDeepFMForCTR, XDeepFMModel
    changing_key = ("cin_units", [6, 4])
    values = {"hidden_units": [16, 8], "cin_units": [6, 5]}


class TestXDeepFMSplit(TestXDeepFM):
    values = {
        "hidden_units": [],
        "cin_units": [6, 5],
        "cin_split_half": True,
        "cin_act": "relu",
        "embedding_dim": MIXED_DIMS,
    }


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("embedding_dim", [4, MIXED_DIMS])
def test_equations(split, embedding_dim):
    torch.manual_seed(0)
    values = {"embedding_dim": embedding_dim, "hidden_units": [8], "cin_units": [6, 5], "cin_split_half": split}
    model = XDeepFMForCTR(XDeepFMConfig(**FIELDS | values)).eval()
    batch = make_batch(model.config)
    first_order = vectors_by_loops(model.config, model.model.linear, batch)
    expected = []
    for vectors, terms in zip(reference_vectors(model, batch), first_order):
        x0 = project(model.model.projection, vectors)
        maps, pooled = x0, []
        for index, layer in enumerate(model.model.cin.layers):
            weight = array(layer.weight).reshape(-1, len(maps), len(x0))
            new = []
            for h in range(len(weight)):  # Eq. 6
                new.append(sum(weight[h, i, j] * maps[i] * x0[j] for i in range(len(maps)) for j in range(len(x0))))
            out = new
            if split and index == 0:
                new, out = new[:3], new[3:]
            pooled.extend(float(m.sum()) for m in out)  # Eq. 7
            maps = new
        both = np.concatenate([pooled, mlp(model.model.mlp, np.concatenate(vectors))])
        expected.append(linear(model.head, both)[0] + sum(float(term[0]) for term in terms))
    np.testing.assert_allclose(logits_of(model, batch), expected, atol=2e-5)


def test_gradients_of_the_blockwise_product(monkeypatch):
    monkeypatch.setitem(modeling_xdeepfm.CHUNK, "cpu", 3 * 12)  # blocks of three rows, the last one smaller
    generator = torch.Generator().manual_seed(0)
    arguments = [
        torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True)
        for size in [(7, 4), (7, 3), (5, 12)]
    ]
    x, x0, weight = arguments
    found = modeling_xdeepfm.CompressedProduct.apply(x, x0, weight)
    reference = torch.einsum("ri,rj,hij->rh", x, x0, weight.view(5, 4, 3))
    torch.testing.assert_close(found, reference)
    upstream = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    for one, two in zip(
        torch.autograd.grad(found, arguments, upstream), torch.autograd.grad(reference, arguments, upstream)
    ):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-6)


def test_odd_maps_do_not_split():
    with pytest.raises(ValueError, match=r"cin_units.*even"):
        XDeepFMConfig(vocab_sizes=[5], cin_units=[3, 2], cin_split_half=True)
