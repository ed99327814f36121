"""DIN: the common suite, and its equations against a plain float64 reference."""

import math

import numpy as np
import pytest
import torch
from sequence_rows import feature_vectors, random_batch, statistics_logits
from sequence_tester import SequenceModelTesterMixin

from lmctr import DINConfig, DINForCTR, DINModel
from lmctr.models.din import activations, modeling_din
from lmctr.models.din.activations import Dice


class DINTester(SequenceModelTesterMixin):
    config_class, model_class, base_class = DINConfig, DINForCTR, DINModel
    changing_key = ("attention_hidden_sizes", [7])
    tiny = {"embedding_dim": 8, "attention_hidden_sizes": [6, 5], "head_hidden_sizes": [12, 8]}
    reads = ("history_items", "history_behaviors")

    def attention_heads(self, config):
        return 1 + len(config.item_feature_vocab_sizes) if config.use_field_attention else 1


class TestDIN(DINTester):
    pass


class TestSoftmaxAndPReLU(DINTester):
    switches = {"use_softmax": True, "use_dice": False}


class TestWithFeatures(DINTester):
    switches = {"item_feature_vocab_sizes": [5, 4], "item_feature_widths": [2, 1], "user_feature_vocab_sizes": [3],
                "num_statistics": 2}  # fmt: skip
    processor_options = {"item_features": ["genres", "year"], "user_features": ["country"], "list_values": 3}


class TestJointFields(DINTester):
    switches = {"item_feature_vocab_sizes": [5, 4], "use_field_attention": False}
    processor_options = {"item_features": ["genres", "year"]}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Reference:
    """One candidate of one row, in evaluation, float64, one pair after the other."""

    def __init__(self, model):
        self.c = model.config
        self.w = {k: v.detach().double().numpy() for k, v in model.state_dict().items()}

    def activate(self, name, x):
        alpha = self.w[name + ".alpha"]
        if not self.c.use_dice:
            return np.where(x > 0, x, alpha * x)
        p = sigmoid((x - self.w[name + ".running_mean"]) / np.sqrt(self.w[name + ".running_var"] + 1e-8))
        return p * x + (1 - p) * alpha * x

    def linear(self, name, x):
        return self.w[name + ".weight"] @ x + self.w[name + ".bias"]

    def fields(self, item, features, behavior, scenario):
        added = (
            self.w["model.behavior_embedding.weight"][behavior] + self.w["model.scenario_embedding.weight"][scenario]
        )
        widths = self.c.item_feature_widths if features else []
        own = feature_vectors(self.w, "model.item_embedding.features", features, widths)
        found = [vector + added for vector in (self.w["model.item_embedding.items.weight"][item], *own)]
        return found if self.c.use_field_attention else [np.concatenate(found)]

    def logit(self, batch, row, candidate):
        def of(name):
            return batch[name][row].tolist() if name in batch else []

        features = batch.get("history_features")
        query = self.fields(
            of("candidate_items")[candidate],
            batch["candidate_features"][row, candidate].tolist() if features is not None else [],
            self.c.num_behaviors,
            of("candidate_scenarios")[candidate],
        )
        interests = [np.zeros_like(q) for q in query]
        events = [
            self.fields(
                of("history_items")[n],
                features[row, n].tolist() if features is not None else [],
                of("history_behaviors")[n],
                of("history_scenarios")[n],
            )
            for n in range(int(batch["dependence"][row, candidate]))
        ]
        for f, q in enumerate(query):
            weights = []
            for event in events:
                k = event[f]
                x = self.linear(f"model.units.{f}.first", np.concatenate([q, k, q - k, q * k]))
                x = self.activate(f"model.units.{f}.activations.0", x)
                for layer in range(len(self.c.attention_hidden_sizes) - 1):
                    x = self.linear(f"model.units.{f}.layers.{layer}", x)
                    x = self.activate(f"model.units.{f}.activations.{layer + 1}", x)
                weights.append(self.linear(f"model.units.{f}.out", x).item())
            if self.c.use_softmax and weights:
                total = sum(math.exp(w) for w in weights)
                weights = [math.exp(w) / total for w in weights]
            for w, event in zip(weights, events):
                interests[f] = interests[f] + w * event[f]
        scenario = self.w["model.context.scenarios.weight"][of("candidate_scenarios")[candidate]]
        users = feature_vectors(self.w, "model.context.user_features", of("user_features"), self.c.user_feature_widths)
        extra = [batch["statistics"][row, candidate].double().numpy()] if "statistics" in batch else []
        x = np.concatenate([*interests, *query, scenario, *users, *extra])
        for layer in range(len(self.c.head_hidden_sizes)):
            x = self.activate(f"model.layers.{layer}.activation", self.linear(f"model.layers.{layer}.linear", x))
        return self.linear("head", x) + statistics_logits(self.w, batch, row, candidate)


@pytest.mark.parametrize("switches", [
    {}, {"use_softmax": True}, {"use_dice": False}, TestWithFeatures.switches, TestJointFields.switches,
], ids=str)  # fmt: skip
def test_against_the_reference(switches):
    model = DINTester().make_model(task_names=["click", "like"], **switches)
    for module in model.modules():
        if isinstance(module, Dice):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    batch = random_batch(model.config, num_candidates=3)
    batch["dependence"][:] = torch.tensor([[9, 4, 0], [6, 1, 2], [1, 0, 3]])
    reference = Reference(model)
    expected = [[reference.logit(batch, row, candidate) for candidate in range(3)] for row in range(3)]
    found = DINTester().logits(model.double(), batch)
    torch.testing.assert_close(found.double(), torch.tensor(np.array(expected)), atol=2e-6, rtol=1e-5)


def test_dice_in_training():
    """Eq. 9 over the entries of the mask, and the moving averages that evaluation uses."""
    torch.manual_seed(0)
    dice = Dice(3).train()
    with torch.no_grad():
        dice.alpha.copy_(torch.tensor([0.0, 0.5, -0.3]))
    states, mask = torch.randn(4, 5, 3) * 2 + 1, torch.rand(4, 5) < 0.6
    kept = states[mask].double()
    mean, var = kept.mean(0), kept.var(0, correction=0)
    p = torch.sigmoid((kept - mean) / (var + 1e-8).sqrt())
    expected = p * kept + (1 - p) * dice.alpha.double() * kept
    torch.testing.assert_close(dice(states, mask)[mask].double(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(dice.running_mean.double(), 0.1 * mean, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(dice.running_var.double(), 0.9 + 0.1 * var, atol=1e-6, rtol=1e-5)
    before = dice.running_mean.clone()
    assert torch.isfinite(dice(states, torch.zeros_like(mask))).all()
    assert torch.equal(dice.running_mean, before)


@pytest.mark.parametrize("rows_at_once", [1, 7, 1000])
def test_the_gradient_of_dice_in_training(monkeypatch, rows_at_once):
    """That of the equation, operation by operation, in float64; filler entries, which pass no gradient on, move nothing."""
    monkeypatch.setattr(activations, "BLOCK_VALUES", 3 * rows_at_once)
    torch.manual_seed(0)
    dice = Dice(3).double().train()
    states = (torch.randn(4, 5, 3, dtype=torch.float64) * 2 + 1).requires_grad_()
    alpha = torch.tensor([0.0, 0.5, -0.3], dtype=torch.float64, requires_grad=True)
    dice.alpha.data.copy_(alpha.detach())
    for mask in (torch.rand(4, 5) < 0.6, torch.ones(4, 5, dtype=torch.bool), torch.zeros(4, 5, dtype=torch.bool)):
        above = torch.randn(4, 5, 3, dtype=torch.float64)
        weight, count = mask[..., None].double(), mask.sum().clamp_min(1)
        mean = (states * weight).sum((0, 1)) / count
        var = ((states - mean).square() * weight).sum((0, 1)) / count
        p = torch.sigmoid((states - mean) / (var + 1e-8).sqrt())
        wanted = p * states + (1 - p) * alpha * states
        found = dice(states, mask)
        torch.testing.assert_close(found, wanted)
        expected = torch.autograd.grad(wanted, (states, alpha), above)
        for got, gradient in zip(torch.autograd.grad(found, (states, dice.alpha), above), expected):
            torch.testing.assert_close(got, gradient)


def test_dice_in_half_precision_counts_in_single():
    torch.manual_seed(0)
    states, mask = torch.randn(300, 40, 3) * 2 + 1, torch.rand(300, 40) < 0.6
    for dtype in (torch.bfloat16, torch.float16):
        found = []
        for dice, own in ((Dice(3).to(dtype), states.to(dtype)), (Dice(3), states.to(dtype).float())):
            own.requires_grad_()
            output = dice.train()(own, mask)
            output.float().square().sum().backward()
            found.append((output, own.grad, dice.alpha.grad, dice.running_mean))
        assert found[0][0].dtype == found[0][1].dtype == found[0][2].dtype == dtype
        for low, high in zip(*found):
            torch.testing.assert_close(low.float(), high, rtol=0.02, atol=0.02)


def test_parts_of_candidates_change_nothing(monkeypatch):
    model = DINTester().make_model()
    batch = random_batch(model.config, num_candidates=7)
    expected = DINTester().logits(model, batch)
    seen = []
    model.model.units[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    monkeypatch.setattr(modeling_din, "MAX_PAIR_VALUES", 3 * 3 * 9 * 6)
    torch.testing.assert_close(DINTester().logits(model, batch), expected, atol=1e-6, rtol=0)
    assert seen == [3, 3, 1]


def test_no_softmax_keeps_the_intensity():
    """Without softmax a history seen twice gives twice the interest; with it the same."""
    for use_softmax, factor in ((False, 2), (True, 1)):
        model = DINTester().make_model(use_softmax=use_softmax)
        batch = random_batch(model.config, num_rows=1, num_candidates=2)
        twice = {k: torch.cat([v, v], 1) if k in ("history_items", "history_behaviors", "history_scenarios") else v
                 for k, v in batch.items()}  # fmt: skip
        del twice["history_times"], twice["candidate_times"]
        twice["dependence"] = twice["dependence"] * 2
        with torch.no_grad():
            one, two = (model(**b, output_hidden_states=True).hidden_states[0][..., :8] for b in (batch, twice))
        torch.testing.assert_close(two, factor * one, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("values", [
    {"embedding_dim": 0}, {"attention_hidden_sizes": []}, {"head_hidden_sizes": [0]}, {"dropout": 1.0},
])  # fmt: skip
def test_bad_configurations(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        DINConfig(**values)
