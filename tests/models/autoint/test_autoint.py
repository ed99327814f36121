"""AutoInt: the common suite, and its equations against float64 loops."""

import numpy as np
import pytest
import torch
from model_tester import CTRModelTesterMixin
from tabular_inputs import (
    FIELDS,
    MIXED_DIMS,
    TabularSuite,
    array,
    linear,
    logits_of,
    make_batch,
    mlp,
    project,
    reference_vectors,
    softmax,
    vectors_by_loops,
)

from lmctr import AutoIntConfig, AutoIntForCTR, AutoIntModel

TINY = {"hidden_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2}


class TestAutoInt(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = AutoIntConfig, AutoIntForCTR, AutoIntModel
    changing_key = ("num_attention_heads", 3)
    values = TINY


class TestAutoIntPlus(TestAutoInt):
    values = TINY | {"hidden_units": [8], "use_wide": True, "embedding_dim": MIXED_DIMS, "attention_dropout": 0.1}


def interacting_layer(layer, states, scale):
    """Eq. 5-8, one head and one field at a time."""
    size = layer.num_heads * layer.head_dim
    parts = [array(layer.projection.weight)[i * size : (i + 1) * size] for i in range(layer.projection.parts)]
    result, maps = [], []
    for m in range(len(states)):
        heads, rows = [], []
        for head in range(layer.num_heads):
            own = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
            scores = [(parts[0][own] @ states[m]) @ (parts[1][own] @ states[k]) * scale for k in range(len(states))]
            weights = softmax(np.array(scores))
            heads.append(sum(weights[k] * (parts[2][own] @ states[k]) for k in range(len(states))))
            rows.append(weights)
        mixed = np.concatenate(heads)
        result.append(np.maximum(mixed + parts[3] @ states[m] if len(parts) == 4 else mixed, 0.0))
        maps.append(rows)
    return result, np.array(maps).transpose(1, 0, 2)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"use_residual": False, "use_scale": True},
        {"use_wide": True, "hidden_units": [8], "embedding_dim": MIXED_DIMS},
    ],
)
def test_equations(values):
    torch.manual_seed(0)
    model = AutoIntForCTR(AutoIntConfig(**FIELDS | TINY | values)).eval()
    batch = make_batch(model.config)
    expected, maps = [], []
    width = TINY["hidden_size"] // TINY["num_attention_heads"]
    scale = 1 / width**0.5 if values.get("use_scale") else 1.0
    wide = vectors_by_loops(model.config, model.model.linear, batch) if values.get("use_wide") else None
    for row, vectors in enumerate(reference_vectors(model, batch)):
        states = project(model.model.projection, vectors)
        for layer in model.model.layers:
            states, last = interacting_layer(layer, states, scale)
        maps.append(last)
        representation = np.concatenate(states)
        if model.model.mlp is not None:
            representation = np.concatenate([representation, mlp(model.model.mlp, np.concatenate(vectors))])
        logit = linear(model.head, representation)[0]
        expected.append(logit + (sum(float(term[0]) for term in wide[row]) if wide else 0.0))
    np.testing.assert_allclose(logits_of(model, batch), expected, atol=1e-5)
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    assert len(output.attentions) == 2
    np.testing.assert_allclose(output.attentions[-1].numpy(), maps, atol=1e-5)
    np.testing.assert_allclose(output.logits.numpy(), expected, atol=1e-5)


def test_heads_that_do_not_divide():
    with pytest.raises(ValueError, match=r"hidden_size=10.*multiple of num_attention_heads=3"):
        AutoIntConfig(vocab_sizes=[5], hidden_size=10, num_attention_heads=3)
