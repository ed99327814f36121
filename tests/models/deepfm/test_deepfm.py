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
