"""ASTRO against a plain float64 reference with loops, and the exactness of SUMI rows, caches and user states."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_rows import random_batch, sequence_log, sequence_view, single_batches
from tiny_astro import STRATEGIES, astro_model, logits_of

from lmctr.data import SequenceDataset
from lmctr.models.astro import modeling_astro
from lmctr.models.astro.partition import position_edges
from lmctr.models.common import relative_bias
from lmctr.models.common.sequence import sequence_inputs


def softplus(x):
    return math.log1p(math.exp(x))


def layer_norm(x, weight, bias):
    centred = x - x.mean()
    return centred / np.sqrt((centred**2).mean() + 1e-5) * weight + bias


def gelu(x):
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Reference:
    """One candidate of one row, as the equations say it, in float64."""

    def __init__(self, model, config):
        self.w = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
        self.c = config

    def selects(self, strategy, event, candidate):
        """Whether the block of a strategy holds an event, in a row with one candidate."""
        if "behaviors" in strategy and event["behavior"] not in [
            self.c.behavior_names.index(b) for b in strategy["behaviors"]
        ]:
            return False
        return strategy.get("scenarios") != "same" or event["scenario"] == candidate["scenario"]

    def sees(self, strategy, event, query):
        in_window = query["time"] - event["time"] <= strategy.get("window_seconds", math.inf)
        return in_window and (strategy.get("scenarios") != "same" or event["scenario"] == query["scenario"])

    def bias(self, layer, block, scenario, distance, elapsed):
        edges = position_edges(self.c.num_position_buckets, self.c.block_length)
        position = max(b for b in range(len(edges)) if edges[b] <= distance)
        time = min(int(math.log2(1 + elapsed)), self.c.num_time_buckets - 1)
        p = f"model.layers.{layer}.bias."
        if not self.c.use_adaptive_layers:
            return self.w[p + "position"][0, :, position] + self.w[p + "time"][0, :, time]
        return (
            self.w[p + "position"][block, :, position]
            + self.w[p + "position_offset"][block, scenario, :, position]
            + self.w[p + "time"][block, :, time]
            + self.w[p + "time_offset"][block, scenario, :, time]
        )

    def attend(self, query, keys, values, biases, temperature):
        heads = self.c.num_attention_heads
        mixed = []
        for h in range(heads):
            part = slice(h * len(query) // heads, (h + 1) * len(query) // heads)
            scores = np.array([query[part] @ k[part] + b[h] for k, b in zip(keys, biases)]) / temperature[h]
            mixed.append(sum(a * v[part] for a, v in zip(softmax(scores), values)))
        return np.concatenate(mixed)

    def temperature(self, name, block, scenario):
        root = math.sqrt(self.c.hidden_size / self.c.num_attention_heads)
        if not self.c.use_adaptive_layers:
            return [root] * self.c.num_attention_heads
        return [root * softplus(x) / softplus(0) for x in self.w[name][block, scenario]]

    def block(self, block, strategy, events, candidate):
        """E(S_k), Eq. 2 and 3."""
        w = self.w
        events = [e for e in events if self.selects(strategy, e, candidate)][-self.c.block_length :]
        tokens = [*events, candidate]
        states = [
            w["model.item_embedding.items.weight"][t["item"]]
            + w["model.behavior_embedding.weight"][t["behavior"]]
            + w["model.scenario_embedding.weight"][t["scenario"]]
            for t in tokens
        ]
        for layer in range(self.c.num_hidden_layers):
            p = f"model.layers.{layer}."

            def linear(x, name, p=p):
                return x @ w[p + name + ".weight"][block] + w[p + name + ".bias"][block]

            normed = [layer_norm(x, w[p + "norm1.weight"][block], w[p + "norm1.bias"][block]) for x in states]
            queries = [linear(x, "query") for x in normed]
            both = [linear(x, "key_value") for x in normed]
            d = self.c.hidden_size
            after = []
            for i, token in enumerate(tokens):
                seen = [j for j in range(i + 1) if self.sees(strategy, tokens[j], token)]
                biases = [
                    self.bias(layer, block, token["scenario"], i - j, token["time"] - tokens[j]["time"]) for j in seen
                ]
                mixed = self.attend(
                    queries[i], [both[j][:d] for j in seen], [both[j][d:] for j in seen], biases,
                    self.temperature(p + "temperature.raw", block, token["scenario"]),
                )  # fmt: skip
                x = states[i] + linear(mixed, "output")
                hidden = gelu(linear(layer_norm(x, w[p + "norm2.weight"][block], w[p + "norm2.bias"][block]), "up"))
                after.append(x + linear(hidden, "down"))
            states = after
        return layer_norm(states[-1], w["model.norm.weight"][block], w["model.norm.bias"][block])

    def fuse(self, vectors, scenario):
        """Eq. 4."""
        if not self.c.use_gating_fusion:
            return np.concatenate(vectors)
        w, p, d = self.w, "model.fusion.layer.", self.c.hidden_size

        def linear(x, name):
            return w[name + ".weight"] @ x + w[name + ".bias"]

        normed = [layer_norm(x, w[p + "norm1.weight"], w[p + "norm1.bias"]) for x in vectors]
        projected = [linear(x, p + "query_key_value") for x in normed]
        temperature = self.temperature(p + "temperature.raw", 0, scenario)
        fused = []
        for x, q in zip(vectors, projected):
            keys, values = [o[d : 2 * d] for o in projected], [o[2 * d :] for o in projected]
            mixed = self.attend(q[:d], keys, values, np.zeros((len(vectors), 99)), temperature)
            x = x + linear(mixed, p + "output")
            normed = layer_norm(x, w[p + "norm2.weight"], w[p + "norm2.bias"])
            fused.append(x + linear(gelu(linear(normed, p + "up")), p + "down"))
        g = np.concatenate(fused)
        gate = linear(np.maximum(linear(g, "model.fusion.squeeze"), 0), "model.fusion.excite")
        return g * sigmoid(gate)

    def logit(self, events, candidate):
        strategies = self.c.strategies if self.c.use_partitioning else [{"name": "all"}]
        vectors = [self.block(k, strategy, events, candidate) for k, strategy in enumerate(strategies)]
        x = self.fuse(vectors, candidate["scenario"])
        for index in range(len(self.c.head_hidden_sizes) + 1):
            x = self.w[f"head.{2 * index}.weight"] @ x + self.w[f"head.{2 * index}.bias"]
            if index < len(self.c.head_hidden_sizes):
                x = np.maximum(x, 0)
        return x


@pytest.mark.parametrize("switches", [
    {}, {"use_adaptive_layers": False}, {"use_gating_fusion": False}, {"use_partitioning": False}, {"num_hidden_layers": 3},
    {"sequence_length": 3},
], ids=str)  # fmt: skip
def test_against_the_reference(switches):
    model = astro_model(noise=0.7, task_names=["click", "like"], **switches)
    batch = random_batch(model.config, seed=2, num_rows=4, tasks=2)
    expected = []
    for row in range(4):
        events = [
            {
                "item": int(batch["history_items"][row, i]),
                "behavior": int(batch["history_behaviors"][row, i]),
                "scenario": int(batch["history_scenarios"][row, i]),
                "time": int(batch["history_times"][row, i]),
            }
            for i in range(int(batch["dependence"][row]))
        ]
        candidate = {
            "item": int(batch["candidate_items"][row]),
            "behavior": model.config.num_behaviors,
            "scenario": int(batch["candidate_scenarios"][row]),
            "time": int(batch["candidate_times"][row]),
        }
        expected.append(Reference(model, model.config).logit(events, candidate))
    found = logits_of(model.double(), batch)
    torch.testing.assert_close(found.double(), torch.tensor(np.array(expected)), atol=2e-6, rtol=1e-5)


def test_position_buckets():
    assert position_edges(8, 100) == [0, 1, 2, 3, 4, 8, 20, 44]
    assert position_edges(6, 2) == [0, 1, 2, 3, 4, 5]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    candidates=st.integers(2, 6),
    window=st.sampled_from([None, 0, 5, 20]),
    history=st.sampled_from([None, 3, 8]),
    length=st.sampled_from([3, 12, 90]),
)
def test_sumi_logits_equal_single_rows(seed, candidates, window, history, length):
    """An item's logit equals that of its own row: the row's start, the history cut at the item's dependence."""
    log = sequence_log(seed, most_events=10)
    view = sequence_view(log, max_history_length=history)
    model = _model(view, length)
    dataset = SequenceDataset(view, log.sample_events(), candidates, window)
    batch = view.batch(dataset.rows)
    del batch["labels"]
    together = logits_of(model, batch)
    inputs = _inputs(model, batch)
    starts = model.model.block_starts(inputs)
    for rows, candidates, singles in single_batches(batch):
        alone = logits_of(model, singles, block_starts=starts[rows])
        torch.testing.assert_close(alone, together[rows, candidates], atol=1e-5, rtol=0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), candidates=st.integers(2, 6))
def test_sumi_logits_equal_mumi_rows_while_nothing_is_cut(seed, candidates):
    log = sequence_log(seed, most_events=10)
    view = sequence_view(log)
    model = _model(view, 90)
    rows = SequenceDataset(view, log.sample_events(), candidates).rows
    batch = view.batch(rows)
    del batch["labels"]
    together = logits_of(model, batch)
    single = view.batch(rows[rows >= 0])
    del single["labels"]
    torch.testing.assert_close(logits_of(model, single), together[torch.from_numpy(rows >= 0)], atol=1e-5, rtol=0)


def _model(view, length):
    key = length, view.processor.item_vocab_size
    if key not in _models:
        _models[key] = astro_model(noise=0.7, sequence_length=length, item_vocab_size=key[1])
    return _models[key]


_models: dict = {}


def _inputs(model, batch):
    return sequence_inputs(model.config, **batch)


def test_no_candidate_sees_another_and_no_event_sees_a_candidate():
    model = astro_model(noise=0.5)
    batch = random_batch(model.config, num_candidates=4)
    changed = {k: v.clone() for k, v in batch.items()}
    changed["candidate_items"][:, 1] = (changed["candidate_items"][:, 1] + 3) % 20 + 2
    before, after = logits_of(model, batch), logits_of(model, changed)
    assert (before[:, 1] != after[:, 1]).all()
    keep = [0, 2, 3]
    torch.testing.assert_close(before[:, keep], after[:, keep], atol=0, rtol=0)


def test_an_event_at_or_after_a_candidate_does_not_count():
    model = astro_model(noise=0.5)
    batch = random_batch(model.config, num_candidates=2)
    batch["dependence"][:, 0] = 4
    batch["dependence"][2, :] = torch.tensor([2, 3])
    changed = {k: v.clone() for k, v in batch.items()}
    changed["history_items"][:2, 4:] = (changed["history_items"][:2, 4:] + 3) % 20 + 2
    changed["history_items"] *= batch["history_items"] != 0
    before, after = logits_of(model, batch), logits_of(model, changed)
    assert torch.equal(before[:, 0], after[:, 0])
    assert (before[:2, 1] != after[:2, 1]).all()


def test_strategies_are_what_the_model_reads():
    """Events that no strategy selects change nothing; those outside the latest n_k neither."""
    model = astro_model(noise=0.5, strategies=[STRATEGIES[0]], sequence_length=2)
    batch = random_batch(model.config, num_rows=1, num_events=8)
    batch["history_behaviors"] = torch.tensor([[2, 1, 2, 0, 1, 2, 1, 0]])
    expected = logits_of(model, batch)
    for place, counts in enumerate([False, False, True, False, False, True, False, False]):
        changed = {k: v.clone() for k, v in batch.items()}
        changed["history_items"][0, place] = (changed["history_items"][0, place] + 5) % 20 + 2
        assert torch.equal(logits_of(model, changed), expected) is not counts


def test_fixed_scenarios_select():
    model = astro_model(noise=0.5, strategies=[{"name": "radio", "scenarios": ["radio"]}], sequence_length=4)
    batch = random_batch(model.config, num_rows=1, num_events=6)
    batch["history_scenarios"] = torch.tensor([[0, 2, 1, 2, 0, 0]])
    expected = logits_of(model, batch)
    for place, counts in enumerate([False, True, False, True, False, False]):
        changed = {k: v.clone() for k, v in batch.items()}
        changed["history_items"][0, place] = (changed["history_items"][0, place] + 5) % 20 + 2
        assert torch.equal(logits_of(model, changed), expected) is not counts


def test_cache_and_micro_batches():
    """Stage 2 on a kept cache gives the logits of the whole forward, whatever the micro-batch."""
    model = astro_model(noise=0.5)
    batch = random_batch(model.config, num_rows=2, num_candidates=7)
    batch["candidate_scenarios"][:] = torch.tensor([[0], [2]])
    expected = logits_of(model, batch)
    inputs = _inputs(model, {k: v for k, v in batch.items() if k != "labels"})
    with torch.no_grad():
        cache = model.model.encode_history(inputs, model.model.slots(inputs))
    assert [k.shape for k in cache.keys] == [(3, 2, 2, 4, 8)] * 2
    for size in (1, 3, 100):
        found = model.score_candidates(cache, inputs, size)
        torch.testing.assert_close(found.squeeze(-1), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_chunks_of_the_history_change_nothing(monkeypatch, chunk):
    model = astro_model(noise=0.5, sequence_length=27)
    batch = random_batch(model.config, num_candidates=3)
    expected = logits_of(model, batch)
    seen = []
    model.model.layers[0].register_forward_pre_hook(lambda m, a: seen.append((a[4], a[0].shape[2])))
    monkeypatch.setattr(modeling_astro, "HISTORY_CHUNK", chunk)
    torch.testing.assert_close(logits_of(model, batch), expected, atol=1e-5, rtol=0)
    assert [width for is_history, width in seen if is_history] == [chunk] * (9 // chunk) + [9 % chunk] * (
        9 % chunk > 0
    )
    seen.clear()
    model(**batch).loss.backward()
    assert seen[0] == (True, 9)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("switches", [{}, {"use_adaptive_layers": False}], ids=str)
def test_parts_of_the_queries_change_nothing(monkeypatch, size, switches):
    """Whatever number of queries attend at once, and whichever tables serve their pairs: logits and gradients."""
    found = []
    for part in (64, size):
        monkeypatch.setattr(relative_bias, "CPU_PART", part)
        model = astro_model(noise=0.5, sequence_length=27, **switches)
        widths = []
        model.model.layers[0].bias.register_forward_pre_hook(lambda m, a, w=widths: w.append(a[0].rows[0].shape[2:]))
        output = model(**random_batch(model.config, num_candidates=3))
        output.loss.backward()
        found.append((output.logits.detach(), [p.grad for p in model.parameters()], widths))
    assert found[0][2][0] == (9, 9)
    assert found[1][2][: -(-9 // size)] == [(min(size, 9 - at), min(at + size, 9)) for at in range(0, 9, size)]
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=0)
    for one, other in zip(found[0][1], found[1][1]):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
