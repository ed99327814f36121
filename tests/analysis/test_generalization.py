"""Terms of Theorem A.1 against plain loops."""

import math

import numpy as np
import pytest
import torch

from lmctr import DNNConfig, DNNForCTR, FATConfig, FATForCTR
from lmctr.analysis.generalization import bound_terms, projection_parameters

VALUES = {
    "vocab_sizes": [7, 5, 9],
    "embedding_dim": 4,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_bases": 5,
    "top_k": 2,
    "meta_dim": 3,
    "initializer_range": 0.5,
}


def make(**values):
    torch.manual_seed(0)
    return FATForCTR(FATConfig(**VALUES | values))


def batches():
    generator = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(0, 5, (4, 3), generator=generator), "labels": torch.tensor([1.0, 0, 1, 0])}
        for _ in range(2)
    ]


@pytest.mark.parametrize("projection", ["hypernetwork", "full", "shared"])
def test_terms(projection):
    model = make(projection=projection).train()
    terms = bound_terms(model, batches(), 10_000)
    assert model.training
    assert [term.layer for term in terms] == [1, 2]
    with torch.no_grad():
        states = [model.eval()(**batch, output_hidden_states=True).hidden_states for batch in batches()]
    for number, term in enumerate(terms):
        # hidden states: the fields' vectors, the tokens, then each layer's output
        radius = max(float(token.norm()) for batch in states for row in batch[number + 1] for token in row)
        module = model.model.layers[number].attention
        meta = model.model.meta_embedding.weight if projection == "hypernetwork" else None
        matrices = module.projection(meta).detach().double().numpy().reshape(-1, 8, 24)
        norms = [max(np.linalg.norm(m[:, 8 * k : 8 * k + 8]) for m in matrices) for k in range(3)]
        w = module.modulation.weight.abs().max().item()
        found = (term.radius, term.query, term.key, term.value, term.modulation)
        np.testing.assert_allclose(found, (radius, *norms, w), rtol=1e-5)
        constant = radius**2 * norms[0] * norms[1] * w * math.sqrt(8) + radius * norms[2] * w
        assert math.isclose(term.constant, constant, rel_tol=1e-4)
        assert math.isclose(term.bound, math.sqrt(3 * 64 + 9) / math.sqrt(10_000) * constant, rel_tol=1e-4)
        assert term.row()["bound"] == term.bound
    assert math.isclose(bound_terms(model, batches(), 40_000)[0].bound, terms[0].bound / 2)


def test_prenorm_measures_the_normed_tokens():
    radius = bound_terms(make(block="prenorm", use_pair_modulation=False), batches(), 10)[0]
    assert radius.radius <= math.sqrt(8) + 1e-4  # a normed token of 8 numbers
    assert radius.modulation == 1.0


def test_what_does_not_go():
    with pytest.raises(ValueError, match="DNNForCTR is no FAT model"):
        bound_terms(DNNForCTR(DNNConfig(vocab_sizes=[4], hidden_units=[4])), batches(), 10)
    with pytest.raises(ValueError, match="pair"):
        bound_terms(make(projection="pair"), batches(), 10)
    with pytest.raises(ValueError, match="num_samples"):
        bound_terms(make(), batches(), 0)
    with pytest.raises(ValueError, match="at least one batch"):
        bound_terms(make(), [], 10)


def test_parameters_of_the_projections():
    """The counts are those of the modules; at the paper's size the decomposition saves over 99 %."""
    counts = projection_parameters(3, 8, num_bases=5, meta_dim=3, num_heads=2)
    sizes = {
        kind: sum(p.numel() for p in make(projection=name).model.layers[0].attention.projection.parameters())
        for kind, name in (("pair", "pair"), ("field", "full"))
    }
    assert counts["pair"] == sizes["pair"]
    model = make(projection="full").model.layers[0].attention
    assert counts["field"] == sizes["field"] + model.modulation.weight.numel()
    hyper = make().model
    assert counts["hypernetwork"] == hyper.layers[0].attention.projection.bases.weight.numel() + 9
    large = projection_parameters(1000, 128)
    assert large["field"] < 0.01 * large["pair"]
    assert large["hypernetwork"] < 0.1 * large["field"]
    with pytest.raises(ValueError, match="num_bases"):
        projection_parameters(3, 8, num_bases=0)
