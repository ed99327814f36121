"""Attention by behaviour type against a loop over samples."""

import json

import numpy as np
import pytest
import torch
from sequence_rows import sequence_log, sequence_view

from lmctr import ASTROConfig, ASTROForCTR, DINConfig, DINForCTR
from lmctr.analysis.behavior_attention import behavior_attention

STRATEGIES = [{"name": "like", "behaviors": ["like"]}, {"name": "all"}]


def make(**values):
    log = sequence_log(num_users=8)
    view = sequence_view(log)
    torch.manual_seed(0)
    config = ASTROConfig(
        **view.processor.model_config_values(),
        strategies=STRATEGIES,
        sequence_length=20,
        hidden_size=8,
        num_attention_heads=2,
        initializer_range=0.5,
        **values,
    )
    return log, view, ASTROForCTR(config)


def test_shares_against_a_loop():
    log, view, model = make()
    events = log.sample_events()
    found = behavior_attention(model, view, events, batch_size=7)
    assert found.block_names == ("like", "all")
    assert found.behavior_names == ("unknown", "full-play", "like")
    shares, own, counts = np.zeros((2, 2, 3)), np.zeros((2, 2)), np.zeros((2, 3))
    readers = np.zeros((2, 2))
    for event in events:
        batch = view.batch([event])
        del batch["labels"]
        with torch.no_grad():
            attentions = model.eval()(**batch, output_attentions=True).attentions
        behaviors = batch["history_behaviors"][0].tolist()
        real = int((batch["history_items"] != 0).sum())
        for layer in range(2):
            for block in range(2):
                weights = attentions[layer][0, block, :, 0].double().numpy()  # (h, N + 1)
                own[layer, block] += weights[:, -1].mean() / len(events)
                for head in range(2):
                    on = weights[head, :real]
                    if on.sum() > 0:
                        readers[layer, block] += 1
                        for place in range(real):
                            shares[layer, block, behaviors[place]] += on[place] / on.sum()
                if layer == 0:
                    for place in range(real):
                        counts[block, behaviors[place]] += weights[:, place].max() > 0
    np.testing.assert_allclose(found.shares, shares / readers[..., None], atol=1e-5)
    np.testing.assert_allclose(found.own, own, atol=1e-5)
    np.testing.assert_allclose(found.events, counts / counts.sum(-1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(found.shares.sum(-1), 1, atol=1e-5)
    assert (found.shares[:, 0, :2] == 0).all()  # the "like" block sees likes only
    assert found.overall().sum() == pytest.approx(1, abs=1e-5)
    json.dumps(found.to_dict())


def test_a_block_without_events_has_no_share():
    log, _, model = make()
    single = {name: getattr(log, name) for name in log.__dataclass_fields__}
    single["feedback"] = np.ones_like(log.feedback)
    plays = type(log)(**single)
    found = behavior_attention(model, sequence_view(plays), plays.sample_events())
    assert np.isnan(found.shares[:, 0]).all()
    assert (found.own[:, 0] == 1).all()
    assert found.to_dict()["shares"][0][0] == [None, None, None]


def test_weights_below_zero_count_by_their_sizes():
    log = sequence_log(num_users=8)
    view = sequence_view(log)
    torch.manual_seed(2)
    model = DINForCTR(DINConfig(**view.processor.model_config_values(), embedding_dim=4, initializer_range=0.5))
    shares, readers = np.zeros(3), 0
    for event in log.sample_events():
        batch = view.batch([event])
        del batch["labels"]
        with torch.no_grad():
            weights = model.eval()(**batch, output_attentions=True).attentions[0].flatten()[:-1].double().numpy()
        sizes = np.bincount(batch["history_behaviors"][0].numpy(), np.abs(weights), minlength=3)
        if sizes.sum() > 0:
            shares, readers = shares + sizes / sizes.sum(), readers + 1
    found = behavior_attention(model, view, log.sample_events())
    np.testing.assert_allclose(found.overall(), shares / readers, atol=1e-5)
    assert (found.overall() >= 0).all()


def test_one_block_and_bad_input():
    log, view, model = make(use_partitioning=False)
    assert behavior_attention(model, view, log.sample_events()).block_names == ("all",)
    with pytest.raises(ValueError, match="no samples"):
        behavior_attention(model, view, [])
    model.forward, whole = (lambda *args, output_attentions=None, **kw: whole(*args, **kw)), model.forward
    with pytest.raises(ValueError, match="gives no attention"):
        behavior_attention(model, view, log.sample_events())
