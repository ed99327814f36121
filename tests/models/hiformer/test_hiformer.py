"""HiFormer: the common suite, and its equations against float64 loops."""

import numpy as np
import pytest
import torch
from model_tester import CTRModelTesterMixin
from tabular_inputs import (
    FIELDS,
    MIXED_DIMS,
    TabularSuite,
    array,
    gelu,
    layer_norm,
    linear,
    logits_of,
    make_batch,
    mlp,
    project,
    randomise_vectors,
    reference_vectors,
    softmax,
)

from lmctr import HiFormerConfig, HiFormerForCTR, HiFormerModel

TINY = {"hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 5, "key_rank": 3, "value_rank": 5}


class TestHiFormer(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = HiFormerConfig, HiFormerForCTR, HiFormerModel
    changing_key = ("key_rank", 2)
    values = TINY


class TestHiFormerFull(TestHiFormer):
    values = TINY | {
        "key_rank": None,
        "value_rank": None,
        "embedding_dim": MIXED_DIMS,
        "hidden_units": [8],
        "dropout": 0.1,
    }


class TestHiFormerHeterogeneous(TestHiFormer):
    changing_key = ("intermediate_size", 7)
    values = TINY | {"projection": "heterogeneous"}


def own(module, tokens):
    return [tokens[i] @ array(module.weight)[i] + array(module.bias)[i, 0] for i in range(len(tokens))]


def keys(config, rank, module, tokens, heads, size):
    """(heads, tokens) of vectors: keys or values, by what the configuration (not the module) says."""
    if config.projection == "heterogeneous":
        projected = own(module.linear, tokens)
        return [[row[h * size : (h + 1) * size] for row in projected] for h in range(heads)]
    flat = np.concatenate(tokens)
    result = []
    down = array(module.down.weight)
    per_head = len(tokens) * size if rank is None else rank
    assert len(down) == heads * per_head
    for h in range(heads):  # the composite projection
        row = down[h * per_head : (h + 1) * per_head] @ flat
        if rank is not None:
            row = row @ array(module.up)[h]
        result.append([row[i * size : (i + 1) * size] for i in range(len(tokens))])
    return result


def hiformer_layer(config, layer, tokens):
    heads, size = layer.num_heads, len(tokens[0]) // layer.num_heads
    asking = tokens[: layer.num_queries]
    queries = own(layer.query, asking)
    key = keys(config, config.key_rank, layer.key, tokens, heads, size)
    value = keys(config, config.value_rank, layer.value, tokens, heads, size)
    mixed, maps = [], []
    for i in range(len(asking)):
        parts = []
        for h in range(heads):
            scores = np.array([queries[i][h * size : (h + 1) * size] @ k for k in key[h]]) / np.sqrt(size)
            maps.append(softmax(scores))
            parts.append(sum(w * v for w, v in zip(maps[-1], value[h])))
        mixed.append(np.concatenate(parts))
    states = [layer_norm(layer.attention_norm, a + m) for a, m in zip(asking, own(layer.out, mixed))]
    inner = own(layer.down, [gelu(x) for x in own(layer.up, states)])
    result = [layer_norm(layer.norm, s + x) for s, x in zip(states, inner)]
    return result, np.array(maps).reshape(len(asking), heads, -1).transpose(1, 0, 2)


@pytest.mark.parametrize("values", [{}, {"key_rank": None, "value_rank": None}, {"projection": "heterogeneous"}])
@pytest.mark.parametrize("embedding_dim", [4, 6, MIXED_DIMS])
def test_equations(values, embedding_dim):
    torch.manual_seed(0)
    values = values | {"embedding_dim": embedding_dim, "hidden_units": [8]}
    model = HiFormerForCTR(HiFormerConfig(**FIELDS | TINY | values)).eval()
    randomise_vectors(model)
    batch = make_batch(model.config)
    expected, maps = [], []
    for vectors in reference_vectors(model, batch):
        tokens = [array(model.model.task.embedding)[0, 0], *project(model.model.projection, vectors)]
        for layer in model.model.layers:
            tokens, last = hiformer_layer(model.config, layer, tokens)
        maps.append(last)
        assert len(tokens) == 1
        expected.append(linear(model.head, mlp(model.model.mlp, tokens[0]))[0])
    np.testing.assert_allclose(logits_of(model, batch), expected, atol=1e-5)
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    np.testing.assert_allclose(output.attentions[-1].numpy(), maps, atol=1e-5)
    assert output.attentions[0].shape == (6, 2, 8, 8)


@pytest.mark.parametrize("rank", [3, None])
@pytest.mark.parametrize("kind", ["composite", "heterogeneous"])
def test_whose_tokens_a_key_is_made_of(kind, rank):
    """Composite keys and values of each token read every token; heterogeneous ones that token alone."""
    config = HiFormerConfig(**FIELDS | TINY | {"projection": kind, "key_rank": rank, "value_rank": rank})
    layer = HiFormerModel(config).double().layers[0]
    tokens = torch.randn(1, config.num_fields + 1, config.hidden_size, dtype=torch.float64)
    for projection in (layer.key, layer.value):
        gradient = torch.autograd.functional.jacobian(projection, tokens)  # (1, H, T, d_h, 1, T, d)
        reads = gradient.abs().amax(dim=(0, 1, 3, 4, 6)) > 0
        own = torch.eye(len(reads), dtype=torch.bool)
        assert torch.equal(reads, torch.ones_like(own) if kind == "composite" else own)


def test_heads_that_do_not_divide():
    with pytest.raises(ValueError, match=r"hidden_size=10.*multiple of num_attention_heads=3"):
        HiFormerConfig(vocab_sizes=[5], hidden_size=10, num_attention_heads=3)
