"""TwoTower: the common suite with impressions, its equations against float64 loops, and its FLOPs."""

import math

import numpy as np
import pytest
import torch
from retrieval_tester import FIELDS, RetrievalModelTesterMixin, make_batch, reference_mlp

from lmctr import TwoTowerConfig, TwoTowerForCTR, TwoTowerModel
from lmctr.scaling.flops import measure_flops


class TestTwoTower(RetrievalModelTesterMixin):
    config_class, model_class, base_class = TwoTowerConfig, TwoTowerForCTR, TwoTowerModel
    values = {"vector_size": 4}

    def reference_score(self, model, user, ad):
        towers = (model.model.user_tower, user), (model.model.ad_tower, ad)
        of_user, of_ad = (reference_mlp(tower, values) for tower, values in towers)
        return math.exp(model.head.log_scale.item()) * sum(a * b for a, b in zip(of_user, of_ad))

    def first_layers(self, model):
        def of_ads(users, ads):
            return [ad for of_user in ads for ad in of_user.values()]

        return [
            (model.model.user_tower.layers[0].norm, lambda users, ads: users),
            (model.model.ad_tower.layers[0].norm, of_ads),
        ]

    def check_hidden_states(self, states, users, ads, config):
        of_user = [(4, config.user_size), (4, 8), (4, 6)]
        assert [tuple(s.shape) for s in states] == [*of_user, (4, 5, config.ad_size), (4, 5, 8), (4, 5, 6)]
        np.testing.assert_allclose(states[0].detach().double(), users, atol=1e-6)
        np.testing.assert_allclose(states[3][0, 2].detach().double(), ads[0][2], atol=1e-6)
        assert not states[3][2, 1:].any()

    def test_vectors_of_the_base_model(self):
        model = self.make_model()
        batch = {k: v for k, v in make_batch(model.config).items() if k not in ("labels", "ecpm")}
        output = model.model(**batch)
        assert output.user_vectors.shape == (4, 4)
        assert output.last_hidden_state.shape == (4, 5, 4)
        assert not output.last_hidden_state[~batch["ad_mask"]].any()


def test_temperature_starts_at_the_spread_of_the_inner_product(tmp_path):
    model = TwoTowerForCTR(TwoTowerConfig(**FIELDS, vector_size=16))
    assert model.head.log_scale.item() == pytest.approx(-math.log(4))
    model.model.save_pretrained(tmp_path)
    assert TwoTowerForCTR.from_pretrained(tmp_path).head.log_scale.item() == pytest.approx(-math.log(4))
    with pytest.raises(ValueError, match="vector_size=0"):
        TwoTowerConfig(**FIELDS, vector_size=0)


def test_flops_per_sample_and_request():
    """The user's tower runs once per request, the ad's once per ad."""
    config = TwoTowerConfig(
        user_vocab_sizes=[5] * 3, ad_vocab_sizes=[4], ad_num_numeric=4, hidden_units=[8, 6], vector_size=5
    )
    model = TwoTowerForCTR(config)
    user, ad = 2 * (48 * 8 + 8 * 6 + 6 * 5), 2 * (20 * 8 + 8 * 6 + 6 * 5)
    for requests, ads in ((1, 7), (3, 2)):
        inputs = {
            "user_input_ids": torch.randint(0, 5, (requests, 3)),
            "ad_input_ids": torch.randint(0, 4, (requests, ads, 1)),
            "ad_numeric_values": torch.randn(requests, ads, 4),
        }
        found = measure_flops(model, inputs)
        assert found.modules == {
            "model": requests * (user + ads * ad),
            "model.user_tower": requests * user,
            "model.ad_tower": requests * ads * ad,
            "head": requests * ads * 2 * 5,
        }
        assert found.per_request == user + ads * (ad + 10)
        assert found.per_sample == found.per_request / ads
