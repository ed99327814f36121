"""DNN: the common suite, and its equations against float64 loops."""

import numpy as np
import pytest
import torch
from model_tester import CTRModelTesterMixin
from tabular_inputs import FIELDS, MIXED_DIMS, TabularSuite, linear, logits_of, make_batch, mlp, reference_vectors

from lmctr import DNNConfig, DNNForCTR, DNNModel


class TestDNN(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = DNNConfig, DNNForCTR, DNNModel
    changing_key = ("hidden_units", [8, 5])
    values = {"hidden_units": [16, 8]}


class TestDNNOfMixedWidths(TestDNN):
    values = {"hidden_units": [16, 8], "embedding_dim": MIXED_DIMS, "use_batch_norm": True, "dropout": 0.1}


@pytest.mark.parametrize("hidden_units", [[16, 8], []])
@pytest.mark.parametrize("embedding_dim", [4, MIXED_DIMS])
def test_equations(embedding_dim, hidden_units):
    torch.manual_seed(0)
    model = DNNForCTR(DNNConfig(**FIELDS | {"embedding_dim": embedding_dim, "hidden_units": hidden_units})).eval()
    batch = make_batch(model.config)
    expected = []
    for vectors in reference_vectors(model, batch):
        x = np.concatenate(vectors)
        expected.append(linear(model.head, mlp(model.model.mlp, x) if hidden_units else x)[0])
    np.testing.assert_allclose(logits_of(model, batch), expected, atol=1e-5)
