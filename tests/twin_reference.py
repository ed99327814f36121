"""TWIN's two-stage target attention in float64, one pair after the other."""

import math

import numpy as np


def item_vector(w, item, features):
    found = w["model.item_embedding.items.weight"][item]
    return found + sum(w[f"model.item_embedding.features.{i}.weight"][v] for i, v in enumerate(features))


def twin_interest(w, config, query, events, time):
    """(d,) interest and the selected places.

    query: (d,). events: (inherent vector, behaviour, scenario, time) of the visible ones.
    """
    p, heads, d = "model.encoder.", config.num_attention_heads, len(query)
    if not events:
        return np.zeros(d), []
    size = d // heads
    alphas, values = [], []
    for inherent, behavior, scenario, at in events:
        bucket = min(int(math.log2(1 + time - at)), config.num_time_buckets - 1)
        cross = [
            w[p + "behavior_embedding.weight"][behavior],
            w[p + "scenario_embedding.weight"][scenario],
            w[p + "attention.time_embedding.weight"][bucket],
        ]
        key, q = w[p + "attention.key.weight"] @ inherent, w[p + "attention.query.weight"] @ query
        alpha = []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            bias = [
                w[p + "attention.cross_key"][h, j] @ cross[j] * w[p + "attention.beta"][h, j]
                for j in range(len(cross))
            ]
            alpha.append(key[part] @ q[part] / math.sqrt(size) + sum(bias))
        alphas.append(alpha)
        value = w[p + "attention.value.weight"] @ inherent
        values.append(value + w[p + "attention.cross_value.weight"] @ np.concatenate(cross))
    order = sorted(range(len(events)), key=lambda n: -sum(alphas[n]))[: config.num_selected]
    mixed = np.zeros(d)
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        total = sum(math.exp(alphas[n][h]) for n in order)
        mixed[part] = sum(math.exp(alphas[n][h]) / total * values[n][part] for n in order)
    return w[p + "attention.output.weight"] @ mixed, order


def visible(batch, w, row, candidate):
    """Events of `twin_interest` for a candidate of a batch."""
    found = []
    for n in range(int(batch["dependence"][row, candidate])):
        features = batch["history_features"][row, n].tolist() if "history_features" in batch else []
        ids = [int(batch[f"history_{name}"][row, n]) for name in ("items", "behaviors", "scenarios", "times")]
        found.append((item_vector(w, ids[0], features), *ids[1:]))
    return found


def query_of(batch, w, row, candidate):
    features = batch["candidate_features"][row, candidate].tolist() if "candidate_features" in batch else []
    return item_vector(w, int(batch["candidate_items"][row, candidate]), features)


def mlp(w, name, x, count):
    for layer in range(count):
        x = np.maximum(w[f"{name}.layers.{layer}.linear.weight"] @ x + w[f"{name}.layers.{layer}.linear.bias"], 0)
    return x


def context(batch, w, row, candidate):
    """Scenario of the candidate and features of the user."""
    parts = [w["model.context.scenarios.weight"][int(batch["candidate_scenarios"][row, candidate])]]
    users = batch["user_features"][row].tolist() if "user_features" in batch else []
    return parts + [w[f"model.context.user_features.{i}.weight"][u] for i, u in enumerate(users)]


def weights_of(model):
    return {name: p.detach().double().numpy() for name, p in model.named_parameters()}
