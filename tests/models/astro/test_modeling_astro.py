"""The common suite for ASTRO and its ablations, and ASTRO's behaviour around its equations."""

import math

import pytest
import torch
from model_tester import CTRModelTesterMixin
from sequence_rows import random_batch
from tiny_astro import astro_config, astro_model, logits_of

from lmctr import ASTROConfig, ASTROForCTR, ASTROModel


class ASTROTester(CTRModelTesterMixin):
    config_class, model_class, base_class = ASTROConfig, ASTROForCTR, ASTROModel
    changing_key = ("num_time_buckets", 5)
    host_reads = 1  # the room that the longest block needs
    switches: dict = {}

    def make_config(self, **values):
        return astro_config(**(self.switches | values))

    def make_batch(self, config, seed=0):
        batch = random_batch(config, seed)
        batch["labels"] = torch.tensor([1.0, 0.0, 1.0])
        return batch


class TestASTRO(ASTROTester):
    pass


class TestWithoutATL(ASTROTester):
    switches = {"use_adaptive_layers": False}


class TestWithoutBGF(ASTROTester):
    switches = {"use_gating_fusion": False}


class TestWithoutMSP(ASTROTester):
    switches = {"use_partitioning": False}


class TestWithFeatures(ASTROTester):
    switches = {"item_feature_vocab_sizes": [5, 4], "item_feature_widths": [3, 1], "user_feature_vocab_sizes": [3],
                "user_feature_widths": [2], "num_statistics": 2}  # fmt: skip


def test_temperature_starts_at_the_root_of_the_head_size():
    model = astro_model()
    temperature = model.model.layers[0].temperature()
    assert temperature.shape == (3, 3, 2)  # strategies, scenarios, heads
    assert (temperature == math.sqrt(8)).all()
    assert model.model.fusion.layer.temperature().shape == (1, 3, 2)
    with torch.no_grad():
        model.model.layers[0].temperature.raw.fill_(-50.0)
    assert (model.model.layers[0].temperature() > 0).all()


def test_ablations_remove_what_they_name():
    names = {key: {n for n, _ in astro_model(**{key: False}).named_parameters()} for key in (
        "use_adaptive_layers", "use_gating_fusion", "use_partitioning",
    )}  # fmt: skip
    assert not any("temperature" in n or "offset" in n for n in names["use_adaptive_layers"])
    assert not any("fusion" in n for n in names["use_gating_fusion"])
    single = astro_model(use_partitioning=False)
    assert single.config.num_blocks == 1
    assert single.config.block_length == 12
    assert single.model.layers[0].query.weight.shape[0] == 1


def test_shapes_of_logits():
    batch = random_batch(astro_config(), num_candidates=4)
    assert logits_of(astro_model(), batch).shape == (3, 4)
    two = {"task_names": ["click", "like"]}
    assert logits_of(astro_model(**two), batch).shape == (3, 4, 2)
    assert logits_of(astro_model(**two), random_batch(astro_config())).shape == (3, 2)


def test_loss_of_several_tasks():
    """sum_t w_t sum_i l_ti / number of labels; ignored entries and padded candidates count nowhere."""
    model = astro_model(task_names=["click", "like"], task_weights=[1.0, 0.5])
    batch = random_batch(model.config, num_candidates=3, tasks=2)
    batch["labels"][0, 2] = -100
    batch["labels"][1, 0, 1] = -100
    logits = logits_of(model, batch).double()
    weight = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    total, counted = 0.0, 0.0
    for row in range(3):
        for candidate in range(3):
            for task in range(2):
                label = batch["labels"][row, candidate, task].item()
                if label != -100:
                    p = torch.sigmoid(logits[row, candidate, task]).item()
                    total -= weight[row].item() * [1.0, 0.5][task] * math.log(p if label else 1 - p)
                    counted += weight[row].item()
    found = model(**batch, sample_weight=weight.float()).loss
    torch.testing.assert_close(
        found.double(), torch.tensor(total / counted, dtype=torch.float64), atol=1e-6, rtol=1e-6
    )
    model.config.task_weights = [1.0, 0.0]  # a task of weight 0 trains nothing of its own
    model(**batch).loss.backward()
    assert model.head[-1].weight.grad[1].abs().max() == 0
    assert model.head[-1].weight.grad[0].abs().max() > 0


def test_looping_the_blocks_gives_the_same_logits_and_gradients():
    model = astro_model(noise=0.5).double()  # states of size 2 are rounded to 1e-6 in float32 on some processors
    batch = random_batch(model.config, num_candidates=4)
    grads = []
    for loop in (False, True):
        model.zero_grad()
        output = model(**batch, loop_blocks=loop, output_attentions=True, output_hidden_states=True)
        output.loss.backward()
        grads.append((output, [p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(grads[0][0].logits, grads[1][0].logits, atol=1e-6, rtol=0)
    for one, two in zip(grads[0][1], grads[1][1]):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
    for name in ("attentions", "hidden_states"):
        for one, two in zip(grads[0][0][name], grads[1][0][name], strict=True):
            torch.testing.assert_close(one, two, atol=1e-6, rtol=0)


def test_attentions_lie_on_the_events_that_a_strategy_selects():
    model = astro_model(noise=0.5)
    batch = random_batch(model.config, num_candidates=2)
    with torch.no_grad():
        output = model(**batch, output_attentions=True, output_hidden_states=True)
    assert [a.shape for a in output.attentions] == [(3, 3, 2, 2, 10)] * 2
    assert [h.shape for h in output.hidden_states] == [(3, 2, 3, 16)] * 3
    for attention in output.attentions:
        torch.testing.assert_close(attention.sum(-1), torch.ones(3, 3, 2, 2))
        likes = (batch["history_behaviors"] == 2) & (batch["history_items"] != 0)
        on_likes = attention[:, 0, :, :, :-1]
        assert (on_likes.amax((1, 2)) > 0).equal(likes & (likes.flip(-1).cumsum(-1).flip(-1) <= 4))


def test_last_layer_computes_keys_and_values_only():
    """Stage 1 of the last layer needs no query, attention or feed-forward network."""
    model = astro_model()
    seen = []
    for number, layer in enumerate(model.model.layers):
        layer.up.register_forward_pre_hook(lambda m, a, n=number: seen.append((n, tuple(a[0].shape[1:3]))))
    logits_of(model, random_batch(model.config, num_rows=2, num_candidates=5))
    assert [n for n, _ in seen] == [0, 0, 1]  # layer 0: events, candidates; layer 1: candidates
    assert seen[-1][1] == (2, 5)


@pytest.mark.parametrize("values", [
    {"strategies": []},
    {"strategies": [{"behaviors": ["like"]}]},
    {"strategies": [{"name": "a"}, {"name": "a"}]},
    {"strategies": [{"name": "a", "behaviors": ["likes"]}]},
    {"strategies": [{"name": "a", "behaviors": []}]},
    {"strategies": [{"name": "a", "behaviors": [3]}]},
    {"strategies": [{"name": "a", "scenarios": ["shop"]}]},
    {"strategies": [{"name": "a", "window_days": 0}]},
    {"strategies": [{"name": "a", "window_days": 1, "window_seconds": 5}]},
    {"strategies": [{"name": "a", "behavior": ["like"]}]},
    {"sequence_length": 13},
    {"hidden_size": 15},
    {"preset": "astro-huge"},
    {"task_names": ["a", "a"]},
    {"task_weights": [1.0, 2.0]},
    {"behavior_names": ["a", "b"]},
    {"num_time_buckets": 1},
])  # fmt: skip
def test_bad_configurations(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        astro_config(**values)


def test_error_messages_help():
    with pytest.raises(ValueError, match=r"strategies\[0\] \(a\): behaviors.*'likes'.*did you mean 'like'"):
        astro_config(strategies=[{"name": "a", "behaviors": ["likes"]}])
    with pytest.raises(ValueError, match=r"sequence_length=13.*12 or 15"):
        astro_config(sequence_length=13)


def test_presets_and_default_strategies():
    config = ASTROConfig(behavior_names=["unknown", "negative", "positive"])
    assert (config.sequence_length, config.num_hidden_layers) == (200, 2)
    assert [s["name"] for s in config.strategies] == ["negative", "positive"]
    large = ASTROConfig(preset="astro-large", behavior_names=["unknown", "negative", "positive"])
    assert (large.sequence_length, large.num_hidden_layers, large.block_length) == (800, 12, 400)
    assert ASTROConfig(num_behaviors=1, behavior_names=["play"]).strategies == [{"name": "all"}]


@pytest.mark.parametrize(("key", "change", "message"), [
    ("history_items", lambda x: x.index_fill(1, torch.tensor([0]), 0), "padding"),
    ("history_items", lambda x: x + 100, "history_items.*0 to 29"),
    ("history_behaviors", lambda x: x + 3, "history_behaviors.*0 to 2"),
    ("candidate_scenarios", lambda x: x - 5, "candidate_scenarios"),
    ("history_times", lambda x: x.flip(1), "history_times: row 0 has times that fall"),
    ("dependence", lambda x: x + 50, "dependence"),
    ("dependence", lambda x: x[:, None], "dependence: expected shape"),
    ("candidate_items", lambda x: x[:2], "candidate_items"),
    ("history_times", lambda x: None, "history_times is missing"),
    ("history_times", lambda x: x.double() + float("inf"), "history_times: row 0 has a time that is not finite"),
    ("candidate_times", lambda x: x.double() + float("nan"), "candidate_times: row 0 has a time that is not"),
    ("history_items", lambda x: x + 0.5, "history_items: torch.float32 is not accepted; use int32 or int64 ids"),
    ("candidate_scenarios", lambda x: x.double(), "candidate_scenarios: torch.float64 is not accepted"),
    ("dependence", lambda x: x.float(), "dependence: torch.float32 is not accepted; use int32 or int64 counts"),
    ("candidate_items", lambda x: x[:, None][:, :0], r"candidate_items: shape \(3, 0\) holds no candidate; give at least one"),
])  # fmt: skip
def test_bad_inputs(key, change, message):
    model = astro_model()
    batch = random_batch(model.config)
    with pytest.raises(ValueError, match=message):
        model(**{**batch, key: change(batch[key])})


def test_unexpected_and_missing_features():
    batch = random_batch(astro_config())
    with pytest.raises(ValueError, match="statistics: not expected"):
        astro_model()(**batch, statistics=torch.zeros(3, 2))
    with pytest.raises(ValueError, match="history_features: missing"):
        astro_model(item_feature_vocab_sizes=[4])(**batch)
    with pytest.raises(ValueError, match=r"history_features: torch.float32 is not accepted; use int32 or int64 ids"):
        astro_model(item_feature_vocab_sizes=[4])(
            **batch, history_features=torch.ones(*batch["history_items"].shape, 1)
        )
    statistics = torch.zeros(*batch["candidate_items"].shape, 2)
    statistics[-1, ..., 1] = torch.inf
    with pytest.raises(
        ValueError, match=r"statistics: field 1 has inf in row \d+; fill missing values before the model"
    ):
        astro_model(num_statistics=2)(**batch, statistics=statistics)


def test_rows_without_events_and_strategies_that_select_nothing():
    """A block without events lets its candidate see itself only; an empty history is a legal row."""
    model = astro_model(noise=0.5)
    batch = random_batch(model.config, num_candidates=3)
    batch["history_behaviors"] = torch.where(batch["history_behaviors"] == 2, 1, batch["history_behaviors"])
    with torch.no_grad():
        attention = model(**batch, output_attentions=True).attentions[0]
    assert (attention[:, 0, :, :, -1] == 1).all()
    empty = {k: v[:, :0] if k.startswith("history") else v for k, v in batch.items()} | {
        "dependence": torch.zeros(3, 3, dtype=torch.long)
    }
    logits = logits_of(model, empty)
    assert torch.isfinite(logits).all()
    padded = {k: v[:, :1] * 0 if k.startswith("history") else v for k, v in batch.items()} | {
        "dependence": torch.zeros(3, 3, dtype=torch.long)
    }
    torch.testing.assert_close(logits_of(model, padded), logits, atol=1e-6, rtol=0)
    model.train()
    model(**empty).loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
