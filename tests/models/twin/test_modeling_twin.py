"""TWIN: the common suite, and its equations against a plain float64 reference."""

import numpy as np
import pytest
import torch
from sequence_rows import random_batch, statistics_logits
from sequence_tester import SequenceModelTesterMixin
from twin_reference import context, mlp, query_of, twin_interest, visible

from lmctr import TWINConfig, TWINForCTR, TWINModel


class TWINTester(SequenceModelTesterMixin):
    config_class, model_class, base_class = TWINConfig, TWINForCTR, TWINModel
    changing_key = ("num_selected", 3)
    tiny = {"hidden_size": 16, "num_attention_heads": 2, "cross_dim": 4, "num_time_buckets": 6, "num_selected": 4,
            "head_hidden_sizes": [12, 8]}  # fmt: skip


class TestTWIN(TWINTester):
    def test_shapes(self):  # every visible event has a weight where GSU keeps them all
        self.switches = {"num_selected": 50}
        super().test_shapes()


class TestWithFeatures(TWINTester):
    switches = {"item_feature_vocab_sizes": [5, 4], "user_feature_vocab_sizes": [3], "num_statistics": 2,
                "num_selected": 20}  # fmt: skip
    processor_options = {"item_features": ["genres", "year"], "user_features": ["country"]}


def reference_logit(model, w, batch, row, candidate):
    config = model.config
    query = query_of(batch, w, row, candidate)
    interest, selected = twin_interest(
        w, config, query, visible(batch, w, row, candidate), int(batch["candidate_times"][row, candidate])
    )
    extra = [batch["statistics"][row, candidate].double().numpy()] if "statistics" in batch else []
    x = np.concatenate([interest, query, *context(batch, w, row, candidate), *extra])
    x = mlp(w, "model.mlp", x, len(config.head_hidden_sizes))
    logits = w["head.weight"] @ x + w["head.bias"]
    return logits + statistics_logits(w, batch, row, candidate), selected


@pytest.mark.parametrize("switches", [{}, {"num_selected": 2}, TestWithFeatures.switches], ids=str)
def test_against_the_reference(switches):
    found = {}

    def reference(model, w, batch, row, c):
        logit, found[row, c] = reference_logit(model, w, batch, row, c)
        return logit

    model, batch = TWINTester().check_loops(reference, **switches)
    with torch.no_grad():
        weights = model(**{k: v for k, v in batch.items() if k != "labels"}, output_attentions=True).attentions[0]
    for row in range(3):
        for c in range(3):
            for head in range(2):
                assert sorted(found[row, c]) == weights[row, head, c].nonzero().flatten().tolist()


def test_both_units_use_the_same_weights():
    """GSU's choice is by the attention of ESU: raising the bias of a behaviour type moves both; no other parameter searches."""
    model = TWINTester().make_model(num_selected=2)
    batch = random_batch(model.config, num_rows=1, num_candidates=1)
    batch["history_behaviors"] = torch.tensor([[1, 2, 1, 1, 2, 1, 1, 1, 1]])
    attention = model.model.encoder.attention
    with torch.no_grad():
        attention.beta[:, 0] = 1.0
        attention.cross_key[:, 0] = 100 * model.model.encoder.behavior_embedding.weight[2]
        attention.cross_key[:, 1:] = 0
        weights = model(**batch, output_attentions=True).attentions[0]
    assert weights[0, :, 0].nonzero()[:, 1].tolist() == [1, 4, 1, 4]
    names = [name for name, _ in model.model.encoder.named_parameters()]
    assert sorted(names) == sorted([
        "behavior_embedding.weight", "scenario_embedding.weight", "attention.time_embedding.weight", "attention.key.weight",
        "attention.query.weight", "attention.value.weight", "attention.cross_value.weight", "attention.cross_key",
        "attention.beta", "attention.output.weight",
    ])  # fmt: skip


def test_only_selected_events_get_gradients():
    model = TWINTester().make_model(num_selected=2).train()
    batch = random_batch(model.config, num_rows=1)
    batch["history_items"] = torch.arange(1, 10)[None]
    batch["candidate_items"] = torch.tensor([20])
    output = model(**batch, output_attentions=True)
    output.loss.backward()
    chosen = output.attentions[0][0, 0, 0, :-1].nonzero().flatten()
    touched = model.model.item_embedding.items.weight.grad.abs().sum(1).nonzero().flatten()
    assert sorted(touched.tolist()) == sorted([*(chosen + 1).tolist(), 20])


def test_micro_batches_change_nothing():
    model = TWINTester().make_model()
    batch = random_batch(model.config, num_candidates=7)
    expected = TWINTester().logits(model, batch)
    seen = []
    model.model.encoder.attention.output.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    model.model.encoder.micro_batch_size = 3
    torch.testing.assert_close(TWINTester().logits(model, batch), expected, atol=1e-6, rtol=0)
    assert seen == [3, 3, 1]


@pytest.mark.parametrize("values", [
    {"hidden_size": 15, "num_attention_heads": 2}, {"num_selected": 0}, {"num_time_buckets": 1}, {"hidden_act": "rel"},
    {"head_hidden_sizes": []},
])  # fmt: skip
def test_bad_configurations(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        TWINConfig(**values)
