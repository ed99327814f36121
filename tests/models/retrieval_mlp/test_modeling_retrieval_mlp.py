"""RetrievalMLP: the common suite with impressions, its equations against float64 loops, and its FLOPs."""

import numpy as np
import pytest
import torch
from retrieval_tester import RetrievalModelTesterMixin, reference_mlp

from lmctr import RetrievalMLPConfig, RetrievalMLPForCTR, RetrievalMLPModel
from lmctr.scaling.flops import measure_flops


class TestRetrievalMLP(RetrievalModelTesterMixin):
    config_class, model_class, base_class = RetrievalMLPConfig, RetrievalMLPForCTR, RetrievalMLPModel

    def reference_score(self, model, user, ad):
        return reference_mlp(model.model.mlp, np.concatenate((user, ad)), model.head)[0]

    def first_layers(self, model):
        def rows(users, ads):
            return [np.concatenate((user, ad)) for user, of_user in zip(users, ads) for ad in of_user.values()]

        return [(model.model.mlp.layers[0].norm, rows)]

    def check_hidden_states(self, states, users, ads, config):
        width = config.user_size + config.ad_size
        assert [tuple(s.shape) for s in states] == [(4, 5, width), (4, 5, 8), (4, 5, 6)]
        for row, user in enumerate(users):
            for ad in range(5):
                expected = np.concatenate((user, ads[row][ad])) if ad in ads[row] else np.zeros(width)
                np.testing.assert_allclose(states[0][row, ad].detach().double(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("dim", "hidden", "millions"), [(16, [1024, 256, 256, 256], 7.60), (25, [1024, 512, 512, 512], 12.60)]
)
def test_flops_of_the_papers_models(dim, hidden, millions):
    """200 fields and 128 statistics: [3328, ...] is 7.60M, input 5128 is 12.60M, per sample and per request."""
    config = RetrievalMLPConfig(
        user_vocab_sizes=[3] * 150,
        user_num_numeric=100,
        ad_vocab_sizes=[3] * 50,
        ad_num_numeric=28,
        embedding_dim=dim,
        hidden_units=hidden,
    )
    sizes = [200 * dim + 128, *hidden, 1]
    expected = 2 * sum(below * above for below, above in zip(sizes, sizes[1:]))  # noqa: RUF007
    assert round(expected / 1e6, 2) == millions
    model = RetrievalMLPForCTR(config)
    for requests, ads in ((1, 6), (2, 3), (1, 1)):
        found = measure_flops(
            model,
            {
                "user_input_ids": torch.randint(0, 3, (requests, 150)),
                "user_numeric_values": torch.randn(requests, 100),
                "ad_input_ids": torch.randint(0, 3, (requests, ads, 50)),
                "ad_numeric_values": torch.randn(requests, ads, 28),
            },
        )
        assert found.modules["model.mlp"] + found.modules["head"] == found.total == expected * requests * ads
        assert found.per_sample == expected
        assert found.per_request == expected * ads
        assert found.embedding_parameters == 600 * dim
