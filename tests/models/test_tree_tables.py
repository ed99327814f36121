"""Boosted trees by tables, as CPUs evaluate them, and node by node, as graphs do: the same leaf of every tree."""

import copy
import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lmctr.models.common import boosted_trees, tree_tables
from lmctr.models.common.boosted_trees import BoostedTrees


def forest(generator, columns, trees, leaves):
    """Random trees of 1 to `leaves` leaves, each a list of inner nodes in the order of `BoostedTrees.fill`."""
    made = []

    def masks(first, size):
        """Of the inner nodes of a random tree: what each leaves to larger values."""
        if size == 1:
            return []
        left = int(generator.integers(1, size))
        own = ~((1 << (first + left)) - (1 << first))
        return [*masks(first, left), own, *masks(first + left, size - left)]

    for _ in range(trees):
        count = int(generator.integers(1, leaves + 1))
        kept = masks(0, count)
        feature = generator.integers(0, columns + 1, len(kept))
        threshold = generator.integers(-3, 4, len(feature)).astype(np.float32) / 2  # met by many rows
        value = generator.integers(-1000, 1000, count).astype(np.float32)  # sums of whole numbers are exact
        made.append({"feature": feature, "threshold": threshold, "kept": np.array(kept, np.int64)})
        made[-1]["value"] = value
    return made


def trees_of(generator, columns=6, tasks=2, trees=40, leaves=15):
    made = BoostedTrees(columns, tasks, trees, leaves)
    made.init_parameters(SimpleNamespace())
    for task in range(tasks):
        own = forest(generator, columns, trees - 3 * task, leaves)
        made.fill(task, generator.normal(size=columns + 1).astype(np.float32), own)
    return made


def rows_of(generator, count, columns=6):
    rows = generator.integers(-4, 5, (count, columns)).astype(np.float32) / 2
    rows[::7, 1], rows[1::7, 2], rows[2::7, 3] = np.nan, np.inf, -np.inf
    return torch.from_numpy(rows)


def by_nodes(trees, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosted_trees, "can_use_tables", lambda *given: False)
        return trees(rows)


@pytest.mark.parametrize("leaves", [2, 15, 16, 31])
def test_both_ways_end_in_the_same_leaves(leaves):
    generator = np.random.default_rng(leaves)
    for count in (0, 1, 200):
        trees, rows = trees_of(generator, leaves=leaves), rows_of(generator, count)
        assert torch.equal(trees(rows), by_nodes(trees, rows))
        assert {table.dtype for _, _, table in trees._tables.columns} == {torch.int32 if leaves > 15 else torch.int16}
        assert trees(rows.reshape(1, count, 6)).shape == (1, count, 2)
    assert len(torch.unique(by_nodes(trees, rows))) > 20
    empty = BoostedTrees(6, 1, 3, leaves)
    empty.init_parameters(SimpleNamespace())
    assert torch.equal(empty(rows), torch.zeros(200, 1))


@pytest.mark.parametrize("rows_at_once", [0.5, 1, 3, 64])
def test_many_rows_are_looked_up_in_blocks(rows_at_once, monkeypatch):
    generator = np.random.default_rng(1)
    trees, rows = trees_of(generator), rows_of(generator, 100)
    whole, seen, leaves = trees(rows), [], tree_tables.TreeTables.leaves
    monkeypatch.setattr(boosted_trees, "MOST_PLACES", int(rows_at_once * 2 * 40))
    monkeypatch.setattr(
        tree_tables.TreeTables, "leaves", lambda own, values: seen.append(values.shape[1]) or leaves(own, values)
    )
    assert torch.equal(trees(rows), whole)
    assert max(seen) == max(1, int(rows_at_once))
    assert sum(seen) == 100


def test_tables_follow_their_trees():
    generator = np.random.default_rng(0)
    trees, other, rows = trees_of(generator), trees_of(generator), rows_of(generator, 200)
    first = trees(rows)
    kept = trees._tables
    twin = copy.deepcopy(trees, {id(own): own for own in trees.buffers()})
    assert torch.equal(twin(rows), first)
    assert twin._tables is kept is trees._tables  # made once for models that share their buffers
    apart = copy.deepcopy(trees)
    apart.load_state_dict(other.state_dict())
    assert torch.equal(apart(rows), other(rows))
    torch.save(twin, file := io.BytesIO())
    trees.threshold.copy_(other.threshold)
    assert torch.equal(trees(rows), by_nodes(trees, rows))
    assert not torch.equal(trees(rows), first)
    third = trees_of(generator)
    other(rows)
    other.feature, other.threshold, other.kept = (
        third.feature,
        third.threshold,
        third.kept,
    )  # changed as often as its own
    assert torch.equal(other(rows), by_nodes(other, rows))
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded._tables is None
    assert torch.equal(loaded(rows), first)
    loaded.bake()
    assert torch.equal(loaded(rows), first)
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(loaded)(rows), first)


def test_tables_that_would_be_too_large(monkeypatch):
    generator = np.random.default_rng(0)
    trees, rows = trees_of(generator), rows_of(generator, 50)
    monkeypatch.setattr(tree_tables, "MOST_BYTES", 1000)
    assert torch.equal(trees(rows), by_nodes(trees, rows))
    refused = trees._tables
    assert refused.columns is None
    trees(rows)
    assert trees._tables is refused  # and not looked at anew for each batch
