"""Weights and optimiser states of tables that get other rows, against loops over rows."""

import copy

import numpy as np
import pytest
import torch

from lmctr import DeepFMConfig, DeepFMForCTR
from lmctr.training.growth import carry_optimizer, carry_weights, table_rows
from lmctr.training.optim import GroupedOptimizer, LazyAdamW, RowwiseAdagrad, table_parameters

OLD = {
    "vocab_sizes": [4, 5],
    "num_numeric": 1,
    "num_sequences": 2,
    "sequence_tables": [1, 2],
    "sequence_vocab_sizes": [3],
}
NEW = {**OLD, "vocab_sizes": [6, 4], "sequence_vocab_sizes": [3]}
SOURCES = [[0, 1, 3, 2, -1, -1], [0, 1, 4, -1], [0, 1, 2]]
SHARED = {"embedding_dim": [3, 2, 3, 2, 3], "hidden_units": [6], "initializer_range": 0.3}


def make(values, seed, **more):
    torch.manual_seed(seed)
    return DeepFMForCTR(DeepFMConfig(**values, **SHARED, **more))


def batch(model, seed):
    torch.manual_seed(seed)
    config = model.config
    ids = torch.stack([torch.randint(0, size, (16,)) for size in config.vocab_sizes], 1)
    sizes = [config.vocab_sizes[1], config.sequence_vocab_sizes[0]]
    lists = torch.stack([torch.randint(0, size, (16, 3)) for size in sizes], 1)
    labels = torch.randint(0, 2, (16,)).float()
    return {"input_ids": ids, "numeric_values": torch.randn(16, 1), "sequence_ids": lists, "labels": labels}


def optimizer_of(model, kind):
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-2)
    tables = table_parameters(model)
    others = [value for value in model.parameters() if not any(value is table for table in tables)]
    rows = {"lazy_adam": LazyAdamW, "rowwise_adagrad": RowwiseAdagrad}[kind](tables, lr=1e-2)
    return GroupedOptimizer([torch.optim.AdamW(others, lr=1e-2), rows])


def steps(model, optimizer, seeds):
    losses = []
    for seed in seeds:
        optimizer.zero_grad()
        loss = model(**batch(model, seed)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def places(values, widths):
    """By vocabulary, (width, first row, rows): the fused layout, vocabularies in order, one table per width."""
    sizes, used, found = values["vocab_sizes"] + values["sequence_vocab_sizes"], {}, []
    for size, width in zip(sizes, widths):
        found.append((width, used.get(width, 0), size))
        used[width] = used.get(width, 0) + size
    return found


@pytest.mark.parametrize("kind", ["adamw", "lazy_adam", "rowwise_adagrad"])
def test_rows_keep_weights_and_state(kind, tmp_path):
    sparse = {"sparse_embedding_grad": kind != "adamw"}
    before, after = make(OLD, 0, **sparse), make(NEW, 1, **sparse)
    fresh = copy.deepcopy(after.state_dict())
    optimizer = optimizer_of(before, kind)
    steps(before, optimizer, range(5))
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    rows = table_rows(before, after, [np.array(own) for own in SOURCES])
    carry_weights(before, after, rows)
    later = optimizer_of(after, kind)
    for group in later.param_groups:
        group["lr"] = 0.5
    carry_optimizer(tmp_path / "optimizer.pt", later, before, after, rows)
    assert {group["lr"] for group in later.param_groups} == {0.5}
    old, new = dict(before.named_parameters()), dict(after.named_parameters())
    checked = 0
    for part, widths in (("embedding", [3, 2, 3]), ("linear", [1, 1, 1])):
        for source, there, here in zip(SOURCES, places(OLD, widths), places(NEW, widths)):
            name = f"model.{part}.groups.{here[0]}.table.weight"
            tensors = [(old[name], new[name], fresh[name])]
            for key, value in later.state[new[name]].items():
                if value.dim():
                    tensors.append((optimizer.state[old[name]][key], value, torch.zeros_like(value)))
            assert len(tensors) == (2 if kind == "rowwise_adagrad" else 3)
            for row, origin in enumerate(source):
                for one, other, start in tensors:
                    expected = start[here[1] + row] if origin < 0 else one[there[1] + origin]
                    torch.testing.assert_close(other[here[1] + row], expected, atol=0, rtol=0)
                    checked += 1
    assert checked
    dense = "model.mlp.layers.0.linear.weight"
    torch.testing.assert_close(new[dense], old[dense], atol=0, rtol=0)
    for key, value in optimizer.state[old[dense]].items():
        torch.testing.assert_close(later.state[new[dense]][key], value, atol=0, rtol=0)
    assert np.isfinite(steps(after, later, range(3))).all()


@pytest.mark.parametrize("kind", ["adamw", "lazy_adam"])
def test_with_the_same_rows_it_is_as_if_it_had_never_stopped(kind, tmp_path):
    sparse = {"sparse_embedding_grad": kind != "adamw"}
    before, after = make(OLD, 0, **sparse), make(OLD, 1, **sparse)
    optimizer = optimizer_of(before, kind)
    steps(before, optimizer, range(4))
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    rows = table_rows(before, after, [np.arange(size) for size in (4, 5, 3)])
    carry_weights(before, after, rows)
    later = optimizer_of(after, kind)
    carry_optimizer(tmp_path / "optimizer.pt", later, before, after, rows)
    assert steps(after, later, range(4, 8)) == steps(before, optimizer, range(4, 8))


def test_what_does_not_fit_is_refused(tmp_path):
    before = make(OLD, 0)
    wider = DeepFMForCTR(DeepFMConfig(**NEW, **{**SHARED, "hidden_units": [7]}))
    rows = table_rows(before, wider, [np.array(own) for own in SOURCES])
    with pytest.raises(ValueError, match=r"mlp.layers.0.linear.weight has shape \(7, .*shape \(6, "):
        carry_weights(before, wider, rows)
    optimizer = optimizer_of(before, "adamw")
    steps(before, optimizer, [0])
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    after = make(NEW, 1, sparse_embedding_grad=True)
    with pytest.raises(ValueError, match="another optimiser"):
        carry_optimizer(tmp_path / "optimizer.pt", optimizer_of(after, "lazy_adam"), before, after, rows)
