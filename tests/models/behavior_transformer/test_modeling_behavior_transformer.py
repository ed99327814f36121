"""BehaviorTransformer: the common suite, and its equations against a plain float64 reference."""

import math

import numpy as np
import pytest
import torch
from sequence_rows import random_batch, statistics_logits
from sequence_tester import SequenceModelTesterMixin

from lmctr import BehaviorTransformerConfig, BehaviorTransformerForCTR, BehaviorTransformerModel


class BehaviorTransformerTester(SequenceModelTesterMixin):
    config_class, model_class = BehaviorTransformerConfig, BehaviorTransformerForCTR
    base_class = BehaviorTransformerModel
    changing_key = ("num_positions", 21)
    tiny = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24,
            "num_positions": 16, "num_time_buckets": 6, "head_hidden_sizes": [12, 8]}  # fmt: skip


class TestBehaviorTransformer(BehaviorTransformerTester):
    pass


class TestWithFeatures(BehaviorTransformerTester):
    switches = {"item_feature_vocab_sizes": [5, 4], "user_feature_vocab_sizes": [3], "num_statistics": 2,
                "num_hidden_layers": 1}  # fmt: skip
    processor_options = {"item_features": ["genres", "year"], "user_features": ["country"]}


def layer_norm(x, weight, bias):
    centred = x - x.mean()
    return centred / np.sqrt((centred**2).mean() + 1e-5) * weight + bias


def reference_logit(model, w, batch, row, candidate):
    """One candidate alone behind its events, token after token."""
    config, size = model.config, model.config.hidden_size // model.config.num_attention_heads

    def linear(x, name):
        return w[name + ".weight"] @ x + w[name + ".bias"]

    dependence = int(batch["dependence"][row, candidate])
    tokens, before = [], None
    for n in range(dependence + 1):
        kind, place = ("history", (row, n)) if n < dependence else ("candidate", (row, candidate))
        names = ("items", "scenarios", "times")
        item, scenario, time = (int(batch[f"{kind}_{name}"][place]) for name in names)
        behavior = int(batch["history_behaviors"][place]) if n < dependence else config.num_behaviors
        gap = 0 if before is None else time - before
        before = time
        x = w["model.item_embedding.items.weight"][item] + w["model.behavior_embedding.weight"][behavior]
        x = x + w["model.scenario_embedding.weight"][scenario] + w["model.position_embedding.weight"][n]
        x = x + w["model.time_embedding.weight"][min(int(math.log2(1 + gap)), config.num_time_buckets - 1)]
        if f"{kind}_features" in batch:
            for i, value in enumerate(batch[f"{kind}_features"][place].tolist()):
                x = x + w[f"model.item_embedding.features.{i}.weight"][value]
        tokens.append(x)
    for index in range(config.num_hidden_layers):
        p = f"model.layers.{index}."
        queries = [linear(x, p + "query") for x in tokens]
        both = [linear(x, p + "key_value") for x in tokens]
        after = []
        for i, x in enumerate(tokens):
            mixed = np.zeros(config.hidden_size)
            for h in range(config.num_attention_heads):
                part = slice(h * size, (h + 1) * size)
                scores = [
                    queries[i][part] @ both[j][: config.hidden_size][part] / math.sqrt(size) for j in range(i + 1)
                ]
                total = sum(math.exp(s) for s in scores)
                for j, score in enumerate(scores):
                    mixed[part] += math.exp(score) / total * both[j][config.hidden_size :][part]
            s = layer_norm(x + linear(mixed, p + "output"), w[p + "norm1.weight"], w[p + "norm1.bias"])  # Eq. 4
            hidden = linear(s, p + "up")
            hidden = linear(np.where(hidden > 0, hidden, 0.01 * hidden), p + "down")
            after.append(layer_norm(s + hidden, w[p + "norm2.weight"], w[p + "norm2.bias"]))  # Eq. 5
        tokens = after
    parts = [tokens[-1], w["model.context.scenarios.weight"][int(batch["candidate_scenarios"][row, candidate])]]
    for i, u in enumerate(batch["user_features"][row].tolist() if "user_features" in batch else []):
        parts.append(w[f"model.context.user_features.{i}.weight"][u])
    if "statistics" in batch:
        parts.append(batch["statistics"][row, candidate].double().numpy())
    x = np.concatenate(parts)
    for layer in range(len(config.head_hidden_sizes)):
        x = linear(x, f"model.mlp.layers.{layer}.linear")
        x = np.where(x > 0, x, 0.01 * x)
    return linear(x, "head") + statistics_logits(w, batch, row, candidate)


@pytest.mark.parametrize("switches", [{}, {"num_hidden_layers": 3}, TestWithFeatures.switches], ids=str)
def test_against_the_reference(switches):
    BehaviorTransformerTester().check_loops(reference_logit, **switches)


def test_attention_sums_to_one():
    model = BehaviorTransformerTester().make_model()
    batch = random_batch(model.config, num_candidates=2)
    attentions = model(**batch, output_attentions=True).attentions
    assert len(attentions) == 2
    for attention in attentions:
        torch.testing.assert_close(attention.sum(-1), torch.ones(3, 2, 2))


def test_micro_batches_change_nothing():
    model = BehaviorTransformerTester().make_model()
    batch = random_batch(model.config, num_candidates=7)
    with torch.no_grad():
        expected = model(**batch, output_attentions=True, output_hidden_states=True)
        model.config.micro_batch_size = 3
        seen = []
        model.model.mlp.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
        found = model(**batch, output_attentions=True, output_hidden_states=True)
    assert seen == [3, 3, 1]
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-6, rtol=0)
    for name in ("attentions", "hidden_states"):
        for one, two in zip(found[name], expected[name], strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


def test_rows_longer_than_the_positions():
    model = BehaviorTransformerTester().make_model(num_positions=5)
    batch = random_batch(model.config, num_rows=1, num_events=5)
    assert torch.isfinite(model(**batch).logits).all()
    batch = random_batch(model.config, num_rows=1, num_events=6)
    with pytest.raises(ValueError, match=r"row 0 has 6 events.*num_positions=5"):
        model(**batch)
    assert BehaviorTransformerConfig(max_history_length=70).num_positions == 70
    assert BehaviorTransformerConfig().num_positions == 1000


@pytest.mark.parametrize("values", [
    {"hidden_size": 15, "num_attention_heads": 2}, {"num_positions": -1}, {"num_time_buckets": 1}, {"hidden_act": "rel"},
    {"head_hidden_sizes": []}, {"dropout": -0.1},
])  # fmt: skip
def test_bad_configurations(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        BehaviorTransformerConfig(**values)
