"""DeepFM: the common suite, and its equations against float64 loops."""

import numpy as np
import pytest
import torch
from model_tester import CTRModelTesterMixin
from tabular_inputs import (
    FIELDS,
    MIXED_DIMS,
    TabularSuite,
    linear,
    logits_of,
    make_batch,
    mlp,
    project,
    reference_vectors,
    vectors_by_loops,
)

from lmctr import DeepFMConfig, DeepFMForCTR, DeepFMModel
from lmctr.models.deepfm.modeling_deepfm import FactorizationMachine


class TestDeepFM(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = DeepFMConfig, DeepFMForCTR, DeepFMModel
    changing_key = ("hidden_units", [8, 5])
    values = {"hidden_units": [16, 8]}


class TestDeepFMOfMixedWidths(TestDeepFM):
    values = {"hidden_units": [16, 8], "embedding_dim": MIXED_DIMS}


@pytest.mark.parametrize("embedding_dim", [4, MIXED_DIMS])
def test_equations(embedding_dim):
    torch.manual_seed(0)
    model = DeepFMForCTR(DeepFMConfig(**FIELDS | {"embedding_dim": embedding_dim, "hidden_units": [16, 8]})).eval()
    batch = make_batch(model.config)
    first_order = vectors_by_loops(model.config, model.model.linear, batch)
    expected = []
    for vectors, terms in zip(reference_vectors(model, batch), first_order):
        deep = linear(model.head, mlp(model.model.mlp, np.concatenate(vectors)))[0]
        met = project(model.model.projection, vectors)
        pairs = sum(met[i] @ met[j] for i in range(7) for j in range(i + 1, 7))
        expected.append(deep + pairs + sum(float(term[0]) for term in terms))
    np.testing.assert_allclose(logits_of(model, batch), expected, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_leaves_the_pairs_beside_one_large_vector(dtype):
    torch.manual_seed(0)
    vectors = torch.randn(3, 6, 4, dtype=torch.float64).to(dtype)
    vectors[:, 0] *= 64
    exact = vectors.double()
    pairs = sum(exact[:, i] * exact[:, j] for i in range(6) for j in range(i + 1, 6))
    found = FactorizationMachine()(vectors)
    np.testing.assert_allclose(found.numpy(), pairs.numpy(), atol=5e-3, rtol=1e-4)
