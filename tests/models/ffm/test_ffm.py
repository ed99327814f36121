"""FFM: the common suite, and its equations against float64 loops."""

import numpy as np
import pytest
import torch
from model_tester import CTRModelTesterMixin
from tabular_inputs import FIELDS, TabularSuite, array, logits_of, make_batch, reference_vectors, vectors_by_loops

from lmctr import FFMConfig, FFMForCTR, FFMModel


class TestFFM(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = FFMConfig, FFMForCTR, FFMModel
    changing_key = ("max_parameters", 12345)


@pytest.mark.parametrize("encoding", ["vector", "linear"])
def test_equations(encoding):
    torch.manual_seed(0)
    model = FFMForCTR(FFMConfig(**FIELDS | {"embedding_dim": 3, "numeric_encoding": encoding})).eval()
    with torch.no_grad():
        model.head.bias.fill_(0.3)
    batch = make_batch(model.config)
    first_order = vectors_by_loops(model.config, model.model.linear, batch)
    expected = []
    for vectors, terms in zip(reference_vectors(model, batch), first_order):
        logit = array(model.head.bias) + sum(float(term[0]) for term in terms)
        for i in range(7):
            for j in range(i + 1, 7):  # section 3: the vector of i for j's field times that of j for i's
                logit += vectors[i][3 * j : 3 * j + 3] @ vectors[j][3 * i : 3 * i + 3]
        expected.append(logit)
    np.testing.assert_allclose(logits_of(model, batch), expected, atol=1e-5)


def test_absurd_sizes_are_refused_with_the_count():
    with pytest.raises(ValueError, match=r"2,000 features x 2 fields x embedding_dim=4 are 16,000 parameters"):
        FFMConfig(vocab_sizes=[1000, 1000], max_parameters=15_999)
    assert FFMConfig(vocab_sizes=[1000, 1000], max_parameters=16_000).num_latent_parameters == 16_000
    model = FFMForCTR(FFMConfig(vocab_sizes=[100, 50]))
    assert model.model.embedding.groups["8"].table.weight.numel() == model.config.num_latent_parameters


def test_one_width():
    with pytest.raises(ValueError, match=r"embedding_dim.*one width"):
        FFMConfig(vocab_sizes=[10, 10], embedding_dim=[2, 4])
