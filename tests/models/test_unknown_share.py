"""`unknown_share`: ids that a training batch takes as unknown."""

import pytest
import torch

from lmctr import AutoModelForCTR, DeepFMConfig, DNNConfig


def model_of(**values):
    torch.manual_seed(0)
    config = DNNConfig(vocab_sizes=[50, 50], field_names=["user", "item"], embedding_dim=4, hidden_units=[8], **values)
    return AutoModelForCTR.from_config(config)


def test_share_of_a_field_is_unknown_in_training_only():
    model, plain = model_of(unknown_share={"user": 0.4}), model_of()
    ids = torch.randint(2, 50, (4000, 2))
    ids[:100, 0] = 0
    unknown = ids.clone()
    unknown[:, 0] = torch.where(ids[:, 0] == 0, 0, 1)
    torch.manual_seed(1)
    logits = model.train()(ids).logits
    kept, masked = plain.train()(ids).logits, plain(unknown).logits
    as_masked, as_kept = torch.isclose(logits, masked, atol=1e-6), torch.isclose(logits, kept, atol=1e-6)
    assert (as_masked | as_kept).all()
    assert as_kept[:100].all()  # a missing value stays missing
    assert as_masked[100:].float().mean() == pytest.approx(0.4, abs=0.03)
    assert torch.equal(model.eval()(ids).logits, plain.eval()(ids).logits)


def test_first_order_terms_see_the_same_ids():
    values = {"vocab_sizes": [50, 50], "embedding_dim": 4, "hidden_units": [8]}
    model = AutoModelForCTR.from_config(DeepFMConfig(**values, unknown_share={"C0": 0.999999}))
    ids = torch.randint(2, 50, (64, 2))
    unknown = ids.clone()
    unknown[:, 0] = 1
    torch.testing.assert_close(model.train()(ids).logits, model.eval()(unknown).logits)


@pytest.mark.parametrize("share", [{"users": 0.3}, {"user": 1.0}, {"user": -0.1}])
def test_wrong_shares_are_refused(share):
    with pytest.raises(
        ValueError, match=r"unknown_share.*from 0 to below 1 by name of a categorical field \(user, item\)"
    ):
        model_of(unknown_share=share)
