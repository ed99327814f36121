"""Effective rank: definitions, measuring a model, and the theorems of the RankElastor paper (arXiv 2605.23191)."""

import math

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING

import lmctr
from lmctr import DCNv2Config, DCNv2ForCTR, DNNConfig, DNNForCTR, RankElastorConfig, RankElastorForCTR
from lmctr.analysis.effective_rank import effective_rank, measure_effective_rank
from lmctr.models.common.configuration import TabularCTRConfig
from lmctr.models.common.tokens import block_transpose
from lmctr.models.rank_elastor.modeling_rank_elastor import GatedNetwork, KroneckerMixing, PlainNetwork


def random_matrix(rank, rows, columns, seed=0, spread=1.0):
    """A matrix of a given rank whose singular values fall by `spread` from one to the next."""
    rng = np.random.default_rng(seed)
    left, _ = np.linalg.qr(rng.normal(size=(rows, rank)))
    right, _ = np.linalg.qr(rng.normal(size=(columns, rank)))
    return torch.from_numpy(left @ np.diag(spread ** np.arange(rank)) @ right.T)


# ---- definitions ---------------------------------------------------------------------------------------------------


def test_definitions():
    """Against the letter: ||X||_F^2 / ||X||_2^2, and exp of the entropy of the normalised singular values."""
    x = torch.randn(3, 2, 5, 7, dtype=torch.float64)
    stable, entropy = effective_rank(x), effective_rank(x, "entropy")
    assert stable.shape == entropy.shape == (3, 2)
    for index in np.ndindex(3, 2):
        sigma = np.linalg.svd(x[index].numpy(), compute_uv=False)
        assert math.isclose(stable[index], np.sum(sigma**2) / sigma[0] ** 2, rel_tol=1e-9)
        p = sigma / sigma.sum()
        assert math.isclose(entropy[index], math.exp(-np.sum(p * np.log(p))), rel_tol=1e-9)
    for kind in ("stable", "entropy"):
        torch.testing.assert_close(effective_rank(x, kind, normalized=True), effective_rank(x, kind) / 5)
        torch.testing.assert_close(effective_rank(1e-30 * x, kind), effective_rank(x, kind))  # free of scale


@pytest.mark.parametrize("kind", ["stable", "entropy"])
def test_edges(kind):
    assert math.isclose(effective_rank(torch.eye(4), kind), 4.0)
    assert math.isclose(effective_rank(torch.ones(4, 6), kind), 1.0, rel_tol=1e-5)
    assert effective_rank(torch.zeros(4, 6), kind) == 0.0
    assert effective_rank(torch.randn(0, 4, 6), kind).shape == (0,)
    x = random_matrix(3, 6, 8, spread=0.7)
    assert 1.0 < effective_rank(x, kind) < 3.0
    assert math.isclose(effective_rank(random_matrix(3, 6, 8), kind), 3.0)


def test_arrays_and_lists_are_read_as_tensors():
    rows = [[3.0, 0.0], [0.0, 4.0]]
    for matrix in (rows, np.array(rows), torch.tensor(rows)):
        assert effective_rank(matrix).item() == pytest.approx(25 / 16)


def test_input_that_is_not_accepted():
    with pytest.raises(ValueError, match="'spectral' is not known"):
        effective_rank(torch.eye(2), "spectral")
    with pytest.raises(ValueError, match=r"\(3,\)"):
        effective_rank(torch.ones(3))
    with pytest.raises(ValueError, match="not finite"):
        effective_rank(torch.tensor([[1.0, math.nan]]))


# ---- measuring -----------------------------------------------------------------------------------------------------

TABLE = {"vocab_sizes": [7, 5, 9, 6], "embedding_dim": 6, "initializer_range": 0.5}


def make_elastor(**values):
    torch.manual_seed(0)
    return RankElastorForCTR(RankElastorConfig(**TABLE | {"num_tokens": 4, "token_dim": 5} | values))


def batches(count=3, rows=5):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        labels = torch.ones(rows)
        labels[-1] = -100  # filler
        yield {"input_ids": torch.randint(0, 5, (rows, 4), generator=generator), "labels": labels}


def test_stages_of_a_model():
    model = make_elastor().train()
    found = measure_effective_rank(model, batches())
    assert found.stages == ("embedding", "tokens", "mixing_1", "ffn_1", "mixing_2", "ffn_2")
    assert found.shapes == ((4, 6), *[(4, 5)] * 5)
    assert found.num_samples == 12  # without filler
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    model.eval()
    rows = [batch["input_ids"][:-1] for batch in batches()]
    with torch.no_grad():
        fields = torch.cat([model.model.embedding(ids) for ids in rows])
        tokens = model.model.tokenizer(fields.flatten(1))
        mixed = model.model.layers[0].mixing(tokens)
    for stage, states in (("embedding", fields), ("tokens", tokens), ("mixing_1", mixed)):
        for kind in ("stable", "entropy"):
            values = found.samples(kind)[found.stages.index(stage)]
            np.testing.assert_allclose(values, effective_rank(states, kind).numpy(), rtol=1e-5)
    samples = found.samples("entropy")
    np.testing.assert_allclose(found.mean("entropy"), samples.mean(1))
    half = 1.959964 * samples.std(1, ddof=1) / math.sqrt(12)
    np.testing.assert_allclose(
        found.interval("entropy"), np.stack([samples.mean(1) - half, samples.mean(1) + half], 1)
    )
    np.testing.assert_allclose(found.mean(normalized=True), found.mean() / 4)
    np.testing.assert_allclose(found.quantiles((0.5,))[:, 0], np.median(found.samples(), 1))
    row = found.rows()[2]
    assert (row["stage"], row["tokens"], row["size"]) == ("mixing_1", 4, 5)
    assert math.isclose(row["entropy"], found.mean("entropy")[2])
    assert row["stable_low"] < row["stable"] < row["stable_high"]


def test_number_of_samples():
    assert measure_effective_rank(make_elastor(), batches(), max_samples=6).num_samples == 6
    single = measure_effective_rank(make_elastor(), batches(), max_samples=1)
    assert np.isnan(single.interval()).all()
    assert single.rows()[0]["stable_low"] is None


def test_every_tabular_family_can_be_measured():
    """Each names the vectors of its fields first; what has no matrix per sample is left out and said."""
    values = {
        "fat": {"hidden_size": 8, "num_attention_heads": 2, "num_bases": 4, "top_k": 2, "meta_dim": 3},
        "rank_mixer": {"num_tokens": 4, "token_dim": 8},
        "rank_elastor": {"num_tokens": 4, "token_dim": 5},
    }
    measured = 0
    for family in lmctr.list_models():
        if not issubclass(CONFIG_MAPPING[family], TabularCTRConfig):
            continue
        config = CONFIG_MAPPING[family](**TABLE | values.get(family, {}))
        found = measure_effective_rank(lmctr.AutoModelForCTR.from_config(config), batches())
        assert found.stages[0] == "embedding", family
        measured += 1
    assert measured >= 11


def test_cross_layers_are_read_as_fields():
    torch.manual_seed(0)
    model = DCNv2ForCTR(DCNv2Config(**TABLE | {"hidden_units": [8]}))
    found = measure_effective_rank(model, batches())
    crosses = [number for number, stage in enumerate(found.stages) if stage.startswith("cross")]
    assert crosses
    assert all(found.shapes[number] == (4, 6) for number in crosses)


@pytest.mark.parametrize("width", [8, 24])  # 24: as many numbers as the four fields have
def test_vectors_are_left_out(width):
    model = DNNForCTR(DNNConfig(**TABLE | {"hidden_units": [4, width]}))
    found = measure_effective_rank(model, batches())
    assert found.stages == ("embedding",)
    assert set(found.left_out) == {"mlp.0", "mlp.1"}
    assert f"(5, {width}) has no matrix" in found.left_out["mlp.1"]
    with pytest.raises(ValueError, match="nothing was measured"):
        measure_effective_rank(model, batches(), {"mlp": model.model.mlp})
    with pytest.raises(ValueError, match=r"nothing was measured.*no samples"):
        measure_effective_rank(model, [])
    with pytest.raises(ValueError, match="Linear names no diagnostic points"):
        measure_effective_rank(torch.nn.Linear(2, 2), batches())
    with pytest.raises(ValueError, match="nothing to measure"):
        measure_effective_rank(model, batches(), {})


# ---- the theorems --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "width"), [(1, 3), (3, 1), (4, 2), (5, 3)])
def test_block_transpose_is_an_involution(tokens, width):
    x = torch.randn(7, tokens, tokens * width)
    assert torch.equal(block_transpose(block_transpose(x)), x)
    moved = block_transpose(x)
    for i in range(tokens):
        for j in range(tokens):
            assert torch.equal(moved[:, i, j * width : (j + 1) * width], x[:, j, i * width : (i + 1) * width])
    torch.testing.assert_close(moved.flatten(1).norm(dim=1), x.flatten(1).norm(dim=1))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_rank_of_the_block_transpose(rank, width):
    """rank(T(X)) <= min(T, r d); a random X reaches it."""
    tokens = 6
    x = random_matrix(rank, tokens, tokens * width)
    assert torch.linalg.matrix_rank(x) == rank
    assert torch.linalg.matrix_rank(block_transpose(x[None])[0]) == min(tokens, rank * width)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [1.0, 0.8, 0.5])
def test_bounds_of_theorem_2_1(seed, spread):
    """2 k mu / (sqrt k + sqrt mu)^2 <= erank(X + T(X)) <= 2 (k + mu), mu <= rank(T(X)) <= min(T, r d).

    The theorem assumes <X, T(X)> = 0, which the symmetrised and antisymmetrised parts of a random matrix, with equal norms,
    satisfy exactly; and ||X + T(X)||_2 near the larger norm, for which the upper bound has a slack of 2.
    """
    tokens, width, rank = 8, 3, 4
    x = random_matrix(rank, tokens, tokens * width, seed, spread)[None]
    y = block_transpose(x)
    symmetric, skew = (x + y) / 2, (x - y) / 2
    x = symmetric / symmetric.norm() + skew / skew.norm()
    y = block_transpose(x)
    assert abs((x * y).sum()) < 1e-12
    k, mu = effective_rank(x)[0], effective_rank(y)[0]
    found = effective_rank(x + y)[0]
    assert 2 * k * mu / (k.sqrt() + mu.sqrt()) ** 2 <= found + 1e-9
    assert found <= 2 * (k + mu) + 1e-9
    assert mu <= torch.linalg.matrix_rank(y)[0] + 1e-9


def plain_network(ffn, tokens=6, size=8, ratio=4):
    """A P-FFN whose tokens share one network, which is what the theorems are about, without norm and residual."""
    torch.manual_seed(0)
    config = RankElastorConfig(
        vocab_sizes=[4] * tokens, embedding_dim=size, num_tokens=tokens, token_dim=size, ffn=ffn, ffn_ratio=ratio
    )
    network = (GatedNetwork if ffn == "glu" else PlainNetwork)(config).double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 3:
                parameter.copy_(torch.randn_like(parameter[:1]) / size**0.5)
    return network


def test_homogeneity_barrier():
    """Theorem 2.2: from an input of rank 1 a ReLU network makes rank 2 at most, and 1 when all rows have one sign."""
    network = plain_network("relu")
    rng = np.random.default_rng(0)
    direction = torch.from_numpy(rng.normal(size=8))
    for signs, most in ((rng.normal(size=6), 2), (np.abs(rng.normal(size=6)), 1)):
        x = torch.from_numpy(signs)[:, None] * direction
        y = network.down(network.act(network.up(x[:, None])))[:, 0]
        assert torch.linalg.matrix_rank(y) == most
        assert effective_rank(y) <= most + 1e-9


def test_quadratic_lifting():
    """Theorem 3.2: GELU(XA) * (XC) of an input of rank k has rank min(D, k (k + 1) / 2) at least; ReLU(XA) of rank 1 has 2.

    Checked on the network's own lifting weights.
    """
    tokens, size = 20, 16
    for rank in (1, 2, 3, 4, 5):
        network = plain_network("glu", tokens, size)
        x = random_matrix(rank, tokens, size, seed=rank)
        gate, value = network.lift(x[:, None])[:, 0].chunk(2, -1)
        lifted = torch.nn.functional.gelu(gate) * value
        least = min(size, rank * (rank + 1) // 2)
        assert torch.linalg.matrix_rank(lifted) >= least
        output = network(x[:, None])[:, 0]
        assert torch.linalg.matrix_rank(output) >= least
    small = random_matrix(3, tokens, size)  # the part of degree 2 spans 3 * 4 / 2 dimensions
    gate, value = network.lift(small[:, None])[:, 0].chunk(2, -1)
    assert torch.linalg.matrix_rank(gate * value) == 6


@pytest.mark.parametrize("grain", [1, 2, 4])
def test_what_kronecker_mixing_can_reach(grain):
    """Theorem 3.1: grain 1 reaches any target from any X that is not 0; a larger grain keeps each block in the blocks' span.

    The input has two kinds of blocks only, so that for d* > 2 the span is smaller than the block.
    """
    tokens, size = 4, 8
    width = tokens * size
    mixing = KroneckerMixing(width, grain, bias=False).double()
    rng = np.random.default_rng(0)
    blocks = rng.normal(size=(min(2, grain), grain))
    x = np.stack([rng.normal(size=len(blocks)) @ blocks for _ in range(width // grain)])
    target = rng.normal(size=(width // grain, grain))
    wanted = target - x  # what W must add
    best = (wanted @ np.linalg.pinv(x)) if grain > 1 else (np.outer(wanted, x) / np.sum(x**2))
    with torch.no_grad():
        mixing.weight.copy_(torch.from_numpy(best))
        reached = x + mixing(torch.from_numpy(x.reshape(1, -1))).numpy().reshape(x.shape)
    missed = np.abs(reached - target).max()
    if grain <= 2:
        assert missed < 1e-9
        return
    assert missed > 0.1
    outside = wanted - wanted @ np.linalg.pinv(blocks) @ blocks  # the part orthogonal to the span of the blocks
    np.testing.assert_allclose(target - reached, outside, atol=1e-9)


def test_maps_of_a_coarser_grain_are_maps_of_the_finest():
    """(W kron I) is one of the TD x TD matrices, and not the other way round."""
    coarse, fine = KroneckerMixing(12, 3, bias=False).double(), KroneckerMixing(12, 1, bias=False).double()
    with torch.no_grad():
        coarse.weight.normal_()
        fine.weight.copy_(torch.kron(coarse.weight, torch.eye(3, dtype=torch.float64)))
    x = torch.randn(5, 12, dtype=torch.float64)
    torch.testing.assert_close(coarse(x), fine(x))
    assert coarse.weight.numel() * 9 == fine.weight.numel()
