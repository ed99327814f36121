"""The matrix of FAT's modulation weights: means, scaling, table and asymmetry."""

import numpy as np
import pytest
import torch

from lmctr import DNNConfig, DNNForCTR, FATConfig, FATForCTR
from lmctr.analysis.field_interactions import FieldInteractions, field_interactions

NAMES = ("user", "item", "hour")


@pytest.fixture
def found():
    weights = np.arange(2 * 2 * 9, dtype=float).reshape(2, 2, 3, 3) ** 1.5
    return FieldInteractions(weights, NAMES)


def test_matrix(found):
    for layer in (None, 0, 1, -1):
        expected = np.zeros((3, 3))
        layers = range(2) if layer is None else [layer % 2]
        for chosen in layers:
            for head in range(2):
                expected += found.weights[chosen, head] / 2 / len(layers)
        np.testing.assert_allclose(found.matrix(layer), expected)
        scaled = found.matrix(layer, scaled=True)
        assert (scaled.min(), scaled.max()) == (0.0, 1.0)
        np.testing.assert_allclose(scaled, (expected - expected.min()) / (expected.max() - expected.min()))
    for layer in (2, -3):
        with pytest.raises(ValueError, match=f"layer: {layer} is not there.*0 to 1"):
            found.matrix(layer)
    same = FieldInteractions(np.ones((1, 1, 2, 2)), ("a", "b"))
    assert (same.matrix(scaled=True) == 0.5).all()


def test_table(found):
    rows = found.table(0)
    assert len(rows) == 9
    assert [row["weight"] for row in rows] == sorted((row["weight"] for row in rows), reverse=True)
    matrix = found.matrix(0)
    for row in rows:
        assert row["weight"] == matrix[NAMES.index(row["query"]), NAMES.index(row["key"])]
    assert (rows[0]["query"], rows[0]["key"], rows[0]["scaled"]) == ("hour", "hour", 1.0)


def test_asymmetry():
    """The paper's Tab. 3: an item reads clicks more than clicks read the item."""
    matrix = np.array([[9.0, 0.97, 0.16], [0.23, 9.0, 0.24], [0.26, 0.31, 9.0]])
    found = FieldInteractions(matrix[None, None], ("item", "clicks", "profile"))
    rows = found.asymmetry()
    assert [(row["query"], row["key"]) for row in rows] == [
        ("item", "clicks"),
        ("profile", "item"),
        ("profile", "clicks"),
    ]
    assert (rows[0]["weight"], rows[0]["reverse"]) == (0.97, 0.23)
    np.testing.assert_allclose([row["difference"] for row in rows], [0.74, 0.1, 0.07])
    assert found.asymmetry(top=1) == rows[:1]
    assert found.asymmetry(scaled=True)[0]["weight"] < 0.2


def test_of_a_model():
    torch.manual_seed(0)
    names = ["a", "b", "c"]
    values = {"vocab_sizes": [4, 4, 4], "hidden_size": 8, "num_attention_heads": 2, "num_bases": 4}
    model = FATForCTR(FATConfig(field_names=names, **values))
    found = field_interactions(model)
    assert found.field_names == tuple(names)
    assert found.weights.shape == (2, 2, 3, 3)
    weight = model.model.layers[1].attention.modulation.weight
    np.testing.assert_allclose(found.weights[1], weight.detach().numpy())
    with pytest.raises(ValueError, match="DNNForCTR has no field interactions"):
        field_interactions(DNNForCTR(DNNConfig(vocab_sizes=[4], hidden_units=[4])))
