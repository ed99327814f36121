"""HSTU: the common suite, and its equations against a plain float64 reference."""

import math

import numpy as np
import pytest
import torch
from sequence_rows import feature_vectors, random_batch, statistics_logits
from sequence_tester import SequenceModelTesterMixin

from lmctr import HSTUConfig, HSTUForCTR, HSTUModel
from lmctr.models.common import relative_bias
from lmctr.models.common.relative_bias import distance_bucket
from lmctr.models.hstu import pairs
from lmctr.models.hstu.pairs import position_edges, time_buckets


class HSTUTester(SequenceModelTesterMixin):
    config_class, model_class, base_class = HSTUConfig, HSTUForCTR, HSTUModel
    changing_key = ("num_time_buckets", 9)
    tiny = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "num_position_buckets": 8,
            "max_position_distance": 15, "num_time_buckets": 14, "head_hidden_sizes": [12, 8]}  # fmt: skip


class TestHSTU(HSTUTester):
    pass


class TestWithFeatures(HSTUTester):
    switches = {"item_feature_vocab_sizes": [5, 4], "item_feature_widths": [2, 1], "user_feature_vocab_sizes": [3],
                "num_statistics": 2}  # fmt: skip
    processor_options = {"item_features": ["genres", "year"], "user_features": ["country"], "list_values": 3}


class TestTimeOfTheNext(HSTUTester):
    switches = {"time_of": "next"}


def layer_norm(x, eps=1e-6):
    centred = x - x.mean()
    return centred / np.sqrt((centred**2).mean() + eps)


def silu(x):
    return x / (1 + np.exp(-x))


EDGES = [0, 1, 2, 3, 4, 6, 9, 15]  # first distance of each of 8 buckets up to 15


def reference_logit(model, w, batch, row, candidate):
    """One candidate alone behind the interleaved items and actions of its events, token after token."""
    config, size = model.config, model.config.hidden_size // model.config.num_attention_heads
    dependence = int(batch["dependence"][row, candidate])
    tokens, times = [], []
    for n in range(dependence + 1):
        kind, place = ("history", (row, n)) if n < dependence else ("candidate", (row, candidate))
        item, scenario, time = (int(batch[f"{kind}_{name}"][place]) for name in ("items", "scenarios", "times"))
        x = w["model.item_embedding.items.weight"][item] + w["model.scenario_embedding.weight"][scenario]
        if f"{kind}_features" in batch:
            own = batch[f"{kind}_features"][place].tolist()
            x = x + sum(feature_vectors(w, "model.item_embedding.features", own, config.item_feature_widths))
        tokens.append(x)
        times.append(time)
        if n < dependence:
            tokens.append(w["model.behavior_embedding.weight"][int(batch["history_behaviors"][place])])
            times.append(time)
    for index in range(config.num_hidden_layers):
        p = f"model.layers.{index}."
        split = [np.split(silu(w[p + "f1.weight"] @ layer_norm(x)), 4) for x in tokens]  # Eq. 1
        after = []
        for i, x in enumerate(tokens):
            gate, query, _, _ = split[i]
            mixed = np.zeros(config.hidden_size)
            for j in range(i + 1):
                _, _, value, key = split[j]
                asked = times[min(i + 1, len(times) - 1) if config.time_of == "next" else i]
                bucket = max(b for b in range(len(EDGES)) if EDGES[b] <= i - j)
                time = min(int(math.log(max(1, asked - times[j])) / 0.301), config.num_time_buckets - 1)
                bias = w[p + "bias.position"][bucket] + w[p + "bias.time"][time]
                for h in range(config.num_attention_heads):
                    part = slice(h * size, (h + 1) * size)
                    mixed[part] += silu(query[part] @ key[part] + bias) / (i + 1) * value[part]  # Eq. 2
            after.append(x + w[p + "f2.weight"] @ (layer_norm(mixed) * gate) + w[p + "f2.bias"])  # Eq. 3
        tokens = after
    parts = [layer_norm(tokens[-1]) * w["model.norm.weight"] + w["model.norm.bias"]]
    parts.append(w["model.context.scenarios.weight"][int(batch["candidate_scenarios"][row, candidate])])
    for i, u in enumerate(batch["user_features"][row].tolist() if "user_features" in batch else []):
        parts.append(w[f"model.context.user_features.{i}.weight"][u])
    if "statistics" in batch:
        parts.append(batch["statistics"][row, candidate].double().numpy())
    x = np.concatenate(parts)
    for layer in range(len(config.head_hidden_sizes)):
        p = f"model.mlp.layers.{layer}.linear"
        x = np.maximum(w[p + ".weight"] @ x + w[p + ".bias"], 0)
    return w["head.weight"] @ x + w["head.bias"] + statistics_logits(w, batch, row, candidate)


@pytest.mark.parametrize(
    "switches",
    [
        *({}, {"num_hidden_layers": 1}, {"num_hidden_layers": 3}, TestWithFeatures.switches),
        *({"time_of": "next"}, {"time_of": "next", "num_hidden_layers": 3, **TestWithFeatures.switches}),
    ],
    ids=str,
)
def test_against_the_reference(switches):
    HSTUTester().check_loops(reference_logit, **switches)


def test_buckets():
    edges = position_edges(8, 15)
    assert distance_bucket(torch.arange(16), edges).tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 6, 7]
    assert distance_bucket(torch.tensor([-3, 10**6]), position_edges(128, 4096)).tolist() == [0, 127]
    assert distance_bucket(torch.arange(4), position_edges(2, 1)).tolist() == [0, 1, 1, 1]
    seconds = torch.tensor([-5, 0, 1, 2, 60, 3600, 86_400, 10**9])
    expected = [0, 0, 0, 2, 13, 27, 37, 68]  # floor(ln(s) / 0.301)
    assert time_buckets(seconds, 128).tolist() == expected
    assert time_buckets(seconds, 20).tolist() == [min(bucket, 19) for bucket in expected]


def test_the_time_of_the_next_token_as_in_the_authors_code(monkeypatch):
    """Time buckets of query i and key j are those of t[i + 1] - t[j], with the last time once more behind the sequence."""
    model = HSTUTester().make_model(time_of="next", num_hidden_layers=2, num_time_buckets=60)
    batch = random_batch(model.config, num_rows=1, num_candidates=2)
    batch["history_times"] = torch.tensor([[3, 4, 4, 90, 700, 701, 9000, 10**6, 10**6]])
    batch["candidate_times"], batch["dependence"] = torch.tensor([[10**7, 500]]), torch.tensor([[9, 4]])
    given = []
    monkeypatch.setattr(
        pairs, "time_buckets", lambda elapsed, count: given.append(elapsed) or time_buckets(elapsed, count)
    )
    with torch.no_grad():
        model(**batch)
    history, behind, own = (time_buckets(elapsed, 60)[0] for elapsed in given)
    for candidate, seen in ((0, 9), (1, 4)):
        events = [*batch["history_times"][0, :seen].tolist(), int(batch["candidate_times"][0, candidate])]
        times = np.repeat(events, 2)[:-1]  # x_0, a_0, ..., the candidate
        following = np.append(times, times[-1])
        apart = np.abs(following[1:, None] - following[None, :-1])
        wanted = (np.log(np.maximum(apart, 1)) / 0.301).astype(int)  # their formula
        count = 2 * seen - 1  # tokens that the row shares: all but the last action and the candidate
        causal = np.tril(np.ones((count, count), bool))
        assert (history[1 : count + 1, 1 : count + 1].numpy() == wanted[:count, :count])[causal].all()
        assert (behind[2 * candidate, 1 : count + 1].numpy() == wanted[count, :count]).all()
        assert (wanted[count, :count] == wanted[count + 1, :count]).all()  # both bring the candidate's time
        assert own[candidate, 0].tolist() == wanted[count, count:].tolist() == [wanted[count + 1, count], 0]


def test_the_time_of_the_next_token_counts_from_the_second_layer_on():
    """In the first, keys bring no query's time, and a candidate's own is the same; its last action is its own, in its event's place."""
    for layers in (1, 2):
        one, two = (HSTUTester().make_model(time_of=of, num_hidden_layers=layers) for of in ("query", "next"))
        batch = random_batch(one.config, num_candidates=3)
        batch["dependence"][:] = torch.tensor([[9, 5, 0], [6, 1, 3], [1, 0, 1]])
        with torch.no_grad():
            found = [model(**batch, output_attentions=True, output_hidden_states=True) for model in (one, two)]
        torch.testing.assert_close(found[0].attentions[0], found[1].attentions[0], atol=1e-6, rtol=1e-5)
        for states in zip(*(one.hidden_states for one in found)):
            assert states[0].shape == states[1].shape
        equal = torch.isclose(found[0].logits, found[1].logits, atol=1e-5, rtol=1e-5)
        assert equal[:, 1:][batch["dependence"][:, 1:] == 0].all()
        assert equal.all() == (layers == 1)


def test_attention_is_pointwise():
    """No softmax: an event's weight times the number of tokens does not depend on which other events there are."""
    model = HSTUTester().make_model(num_hidden_layers=1)
    batch = random_batch(model.config, num_rows=1, num_candidates=2)
    changed = {k: v.clone() for k, v in batch.items()}
    changed["history_items"][:, :4] = changed["history_items"][:, :4] % 20 + 3
    one, two = (model(**b, output_attentions=True).attentions[0] for b in (batch, changed))
    torch.testing.assert_close(one[..., 4:], two[..., 4:])
    assert (one[..., :4] != two[..., :4]).any()
    assert not torch.allclose(one.sum(-1), torch.ones(1))


@pytest.mark.parametrize("size", [1, 4, 7])
@pytest.mark.parametrize("kept", [512, 2])
def test_parts_of_a_history_and_micro_batches_change_nothing(monkeypatch, size, kept):
    model = HSTUTester().make_model(num_hidden_layers=3)
    batch = random_batch(model.config, num_candidates=5)
    expected = model(**batch)
    expected.loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr(relative_bias, "CPU_PART", size)
    monkeypatch.setattr(pairs, "KEPT_TOKENS", kept)
    model.config.micro_batch_size = 2
    seen, biases, searches = [], [], []
    model.model.mlp.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    model.model.layers[0].bias.register_forward_pre_hook(lambda module, args: biases.append(args[0][0].shape[-2]))
    monkeypatch.setattr(pairs, "time_buckets", lambda *args: searches.append(args[0].shape) or time_buckets(*args))
    torch.testing.assert_close(HSTUTester().logits(model, batch), expected.logits.detach(), atol=1e-5, rtol=0)
    assert seen == [2, 2, 1]
    parts = -(-18 // size)
    assert biases[:parts] == [size] * (18 // size) + [18 % size] * (18 % size > 0)
    layers = model.config.num_hidden_layers - 1  # the last one needs keys and values alone
    assert len(searches) == parts * (layers if kept == 2 else 1) + 2 * len(seen)
    model(**batch).loss.backward()
    for parameter, gradient in zip(model.parameters(), gradients):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


def test_an_action_follows_its_item():
    """Exchanging the actions of two events changes the logit; so does moving one from an item to the next."""
    model = HSTUTester().make_model()
    batch = random_batch(model.config, num_rows=1)
    batch["history_behaviors"] = torch.tensor([[2, 1, 0, 0, 0, 0, 0, 0, 0]])
    exchanged = {**batch, "history_behaviors": torch.tensor([[1, 2, 0, 0, 0, 0, 0, 0, 0]])}
    assert HSTUTester().logits(model, batch) != HSTUTester().logits(model, exchanged)


@pytest.mark.parametrize("values", [
    {"hidden_size": 15, "num_attention_heads": 2}, {"num_position_buckets": 1}, {"num_time_buckets": 1},
    {"time_of": "key"}, {"max_position_distance": 0}, {"hidden_act": "rel"}, {"head_hidden_sizes": []},
])  # fmt: skip
def test_bad_configurations(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        HSTUConfig(**values)
