"""Shared layers: attention in both forms, work in blocks of rows."""

import sys

import numpy as np
import pytest
import torch
from tabular_inputs import FIELDS, make_batch, softmax

import lmctr
from lmctr.models.common import base, tokens
from lmctr.models.common.base import evaluation_mode, version_of
from lmctr.models.common.layers import MLP, attend, in_blocks


def test_attention_equals_loops():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, n, 4, generator=generator, dtype=torch.float64) for n in (5, 6, 6))
    mixed, weights = attend(query, key, value, 0.7, output_attentions=True)
    for b in range(2):
        for h in range(3):
            for i in range(5):
                row = softmax(np.array([0.7 * float(query[b, h, i] @ key[b, h, j]) for j in range(6)]))
                np.testing.assert_allclose(weights[b, h, i], row)
                np.testing.assert_allclose(mixed[b, h, i], sum(w * value[b, h, j].numpy() for j, w in enumerate(row)))
    again, none = attend(query, key, value, 0.7)
    torch.testing.assert_close(again, mixed)
    assert none is None


def test_blocks_cover_all_rows_once():
    seen = []

    def double(block):
        seen.append(len(block))
        return 2 * block

    states = torch.arange(7.0)
    assert torch.equal(in_blocks(double, states, 3), 2 * states)
    assert seen == [3, 3, 1]
    in_blocks(double, states, 7)
    assert seen[3:] == [7]
    table = torch.arange(14.0).view(2, 7)
    assert torch.equal(in_blocks(lambda block: seen.append(block.shape[1]) or 2 * block, table, 3, dim=1), 2 * table)
    assert seen[4:] == [3, 3, 1]


TOKENS = {"num_tokens": 7, "token_dim": 7, "tokenizer_hidden_size": 9}
BLOCK_MODELS = [
    ("AutoInt", {}),
    ("HiFormer", {}),
    ("FFM", {}),
    *(("FAT", {"projection": projection}) for projection in ("hypernetwork", "shared", "pair")),
    *(
        (name, {**TOKENS, "variant": variant, "tokenizer": tokenizer})
        for name in ("RankMixer", "RankElastor")
        for variant in ("paper", "reference")
        for tokenizer in ("chunk", "groups")
    ),
]


@pytest.mark.parametrize(("name", "switches"), BLOCK_MODELS, ids=str)
def test_models_in_blocks_give_the_same(name, switches, monkeypatch):
    """Blocks smaller than the batch change neither logits nor gradients."""
    model_class, config = getattr(lmctr, f"{name}ForCTR"), getattr(lmctr, f"{name}Config")(**FIELDS, **switches)
    modules = [sys.modules[model_class.__module__], *([tokens] if "tokenizer" in switches else [])]
    results, blocks = [], []
    for rows in (256, 4):
        for module in modules:
            monkeypatch.setattr(module, "ROWS", rows)
            monkeypatch.setattr(
                module, "in_blocks", lambda *args, **named: blocks.append(args[2]) or in_blocks(*args, **named)
            )
        torch.manual_seed(0)
        model = model_class(config).train()
        output = model(**make_batch(model.config))
        output.loss.backward()
        results.append([output.logits, *(p.grad for p in model.parameters())])
    assert sorted(set(blocks)) == [4, 256]
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


def test_mlp_options():
    torch.manual_seed(0)
    mlp = MLP(3, [4, 5], "gelu", dropout=0.5, use_batch_norm=True)
    assert mlp.out_size == 5
    states, seen = torch.randn(8, 3), []
    mlp.eval()
    out = mlp(states, seen)
    expected = states
    for layer in mlp.layers:
        expected = torch.nn.functional.gelu(layer.norm(layer.linear(expected)))
    torch.testing.assert_close(out, expected)
    assert [s.shape[1] for s in seen] == [4, 5]
    assert (mlp.train()(states) == 0).any()  # dropout
    assert MLP(3, [], "relu")(states) is states


def test_batch_normalisation_of_fewer_than_two_rows():
    torch.manual_seed(0)
    mlp = MLP(3, [4], "relu", use_batch_norm=True).train()
    mlp(torch.randn(8, 3))
    before = {name: value.clone() for name, value in mlp.state_dict().items()}
    for count in (1, 0):  # such as the last batch of an epoch
        states = torch.randn(count, 3)
        torch.testing.assert_close(mlp.train()(states), mlp.eval()(states))
    assert all(torch.equal(value, before[name]) for name, value in mlp.state_dict().items())


def test_evaluation_mode_leaves_each_module_as_it_was():
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Sequential(torch.nn.Dropout()))
    model[1].eval()  # a frozen part
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False, False]


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_a_step_is_a_version_of_the_weights_that_it_changes(options):
    moved, alone = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    before = [version_of(weight) for weight in (moved, alone)]
    moved.grad = torch.ones(2)
    torch.optim.AdamW([moved, alone], **options).step()
    after = [version_of(weight) for weight in (moved, alone)]
    assert [one != other for one, other in zip(before, after)] == [True, False]


def test_a_weight_at_the_address_of_a_dead_one_is_another():
    """As allocators give out what they have just got back."""
    memory = bytearray(8)
    weight = torch.nn.Parameter(torch.frombuffer(memory, dtype=torch.float32))
    before, address = version_of(weight), weight.data_ptr()
    weight.data = torch.frombuffer(memory, dtype=torch.float32)
    assert weight.data_ptr() == address
    assert version_of(weight) != before
    assert version_of(weight) == version_of(weight)


def test_weights_that_are_watched_can_be_swapped_and_are_forgotten(monkeypatch):
    monkeypatch.setattr(base, "_WATCHED", {})
    weight, other = (torch.nn.Parameter(torch.full((2,), value)) for value in (1.0, 2.0))
    before = version_of(weight)
    torch.utils.swap_tensors(weight, other)
    assert version_of(weight) != before
    watched = [torch.nn.Parameter(torch.ones(2)) for _ in range(100)]
    for _ in range(30):
        watched = [torch.nn.Parameter(torch.ones(2)) for _ in watched]
        list(map(version_of, watched))
    assert len(base._WATCHED) < 1500  # of 3100
