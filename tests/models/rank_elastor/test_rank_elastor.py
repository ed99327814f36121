"""RankElastor: the common suite, and its equations against float64 loops."""

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
    randomise_vectors,
    reference_vectors,
)
from token_reference import head_logit, rms_norm, token_linear, tokens_of, transpose

from lmctr import RankElastorConfig, RankElastorForCTR, RankElastorModel, RankMixerConfig, RankMixerForCTR
from lmctr.runs.recipe import load_recipe
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.checks import check_tables

TINY = {"num_tokens": 4, "token_dim": 8}
GROUPS = [["C1", "N0"], ["S1"], ["C0", "C2", "S0"], ["N1"]]


class TestRankElastor(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = RankElastorConfig, RankElastorForCTR, RankElastorModel
    changing_key = ("mixing_norm", "token")
    values = TINY


class TestReferenceVariant(TestRankElastor):
    changing_key = ("ffn_norm", False)
    values = TINY | {
        "variant": "reference",
        "tokenizer": "groups",
        "token_groups": GROUPS,
        "tokenizer_hidden_size": 5,
        "tokenizer_dropout": 0.1,
        "ffn_hidden_sizes": [6, 6],
        "ffn_dropout": 0.1,
        "embedding_dim": MIXED_DIMS,
        "head": "flatten",
    }


class TestTransposeAndPlainNetworks(TestRankElastor):
    changing_key = ("head", "flatten")
    values = TINY | {"mixing": "transpose", "ffn": "gelu", "tokenizer": "dense"}


def reference_mixing(module, config, x):
    tokens, size = x.shape
    if config.mixing == "transpose":
        mixed = x + transpose(x)
    else:
        grain, flat = config.mixing_grain, x.reshape(-1)
        if module.pre_norm is not None:
            flat = rms_norm(module.pre_norm.weight, flat)
        matrix = np.kron(array(module.matrix.weight), np.eye(grain))
        mixed = matrix @ flat
        if module.matrix.bias is not None:
            mixed = mixed + array(module.matrix.bias)
        mixed = x + mixed.reshape(tokens, size)
    if config.mixing_norm == "flat":
        mixed = layer_norm(module.norm, mixed.reshape(-1)).reshape(tokens, size)
    elif module.norm is not None:
        mixed = np.array([layer_norm(module.norm, row) for row in mixed])
    if config.variant == "reference":
        mixed = np.array([rms_norm(module.post_norm.weight, row) for row in mixed])
    return mixed


def reference_network(module, config, token, m):
    """One token's P-FFN with residual and norm."""
    act = gelu if config.ffn != "relu" else (lambda x: np.maximum(x, 0))
    if config.variant == "paper" and config.ffn == "glu":
        gate, value = np.split(token_linear(module.lift, token, m), 2)
        return token_linear(module.reduce, token, gelu(gate) * value) + token_linear(module.residual, token, m)
    if config.variant == "paper":
        hidden = act(token_linear(module.up, token, m))
        return layer_norm(module.norm, m + token_linear(module.down, token, hidden))
    x = m
    for layer in module.layers:
        if config.ffn == "glu":
            if config.ffn_norm:
                x = rms_norm(layer.norm.weight[token], x)
            residual = token_linear(layer.gate.residual, token, x)
            lifted = token_linear(layer.gate.lift, token, x)
            if config.ffn_ratio == 1:
                gate, value = np.split(lifted, 2)
                x = (residual + gelu(gate)) * value + residual
            else:
                gate, value, skip = np.split(lifted, 3)
                x = token_linear(layer.gate.reduce, token, (skip + gelu(gate)) * value) + residual
            if layer.linear is not None:
                x = token_linear(layer.linear, token, x)
        else:
            x = token_linear(layer.linear, token, x)
            if config.ffn_norm:
                x = rms_norm(layer.norm.weight[token], x)
            x = act(x)
    return m + token_linear(module.last, token, x)


def reference_logit(model, vectors):
    config = model.config
    x = tokens_of(model.model.tokenizer, config, vectors)
    for layer in model.model.layers:
        m = reference_mixing(layer.mixing, config, x)
        x = np.array([reference_network(layer.ffn.network, config, token, row) for token, row in enumerate(m)])
    return head_logit(model.head, config, x)


CASES = [
    {},
    {"mixing_norm": "token", "head": "mean"},
    {"mixing": "kron", "mixing_grain": 4, "head": "flatten"},
    {"mixing": "transpose"},
    {"mixing": "transpose", "ffn": "gelu"},
    {"ffn": "relu", "ffn_ratio": 2},
    {"tokenizer": "dense", "tokenizer_hidden_size": 5},
    {"tokenizer": "groups", "token_groups": GROUPS},
    {"tokenizer": "groups", "token_groups": GROUPS, "tokenizer_hidden_size": 3, "embedding_dim": MIXED_DIMS},
    {"tokenizer": "none", "num_tokens": 14, "token_dim": 2},
    {"tokenizer_hidden_size": 5, "token_dim": 3},
    {"variant": "reference", "ffn_hidden_sizes": [8, 5]},
    {"variant": "reference", "ffn_hidden_sizes": [8, 5], "ffn_ratio": 1, "head": "mean"},
    {"variant": "reference", "ffn_hidden_sizes": [6, 6], "ffn_norm": False, "mixing": "kron", "mixing_grain": 2},
    {"variant": "reference", "mixing": "transpose", "ffn": "gelu", "ffn_hidden_sizes": [6, 5]},
    {"variant": "reference", "mixing": "transpose", "ffn": "relu", "ffn_norm": False, "tokenizer": "dense"},
    {"variant": "reference", "tokenizer": "groups", "token_groups": GROUPS, "tokenizer_hidden_size": 5},
    {"variant": "reference", "tokenizer_hidden_size": 5},
]


@pytest.mark.parametrize("values", CASES, ids=str)
def test_equations(values):
    torch.manual_seed(0)
    model = RankElastorForCTR(RankElastorConfig(**FIELDS | TINY | values)).eval()
    randomise_vectors(model)
    batch = make_batch(model.config, rows=4)
    expected = [reference_logit(model, vectors) for vectors in reference_vectors(model, batch)]
    np.testing.assert_allclose(logits_of(model, batch), expected, atol=2e-4, rtol=2e-4)


def test_grain_one_is_full_mixing():
    torch.manual_seed(0)
    full = RankElastorForCTR(RankElastorConfig(**FIELDS | TINY)).eval()
    kron = RankElastorForCTR(RankElastorConfig(**FIELDS | TINY | {"mixing": "kron"})).eval()
    kron.load_state_dict(full.state_dict())
    batch = make_batch(full.config)
    assert (logits_of(kron, batch) == logits_of(full, batch)).all()


def test_transpose_is_mixing_of_grain_d_by_t():
    """With the commutation matrix as W and d* = D/T, Kronecker mixing is RankMixer's block transpose (Eq. 2)."""
    values = FIELDS | TINY | {"mixing_norm": "token"}
    torch.manual_seed(0)
    transposed = RankElastorForCTR(RankElastorConfig(**values | {"mixing": "transpose"})).eval()
    kron = RankElastorForCTR(RankElastorConfig(**values | {"mixing": "kron", "mixing_grain": 2})).eval()
    commutation = torch.zeros(16, 16)
    for i in range(4):
        for j in range(4):
            commutation[4 * i + j, 4 * j + i] = 1.0
    state = transposed.state_dict()
    state |= {f"model.layers.{layer}.mixing.matrix.weight": commutation for layer in range(2)}
    kron.load_state_dict(state)
    batch = make_batch(kron.config)
    np.testing.assert_allclose(logits_of(kron, batch), logits_of(transposed, batch), atol=1e-5)


def test_the_corner_of_the_ablation_is_rank_mixer():
    """{transpose, GELU} of Tab. 3 is RankMixer: the same weights give the same logits."""
    values = FIELDS | TINY | {"head": "mlp", "ffn_ratio": 2, "ffn": "gelu"}
    torch.manual_seed(0)
    mixer = RankMixerForCTR(RankMixerConfig(**values)).eval()
    elastor = RankElastorForCTR(RankElastorConfig(**values | {"mixing": "transpose"})).eval()
    names = {"ffn.network.layers.0.": "ffn.network.up.", "ffn.network.last.": "ffn.network.down."}
    names["ffn.norm."] = "ffn.network.norm."
    state = {}
    for name, value in mixer.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = value
    elastor.load_state_dict(state)
    batch = make_batch(mixer.config)
    np.testing.assert_allclose(logits_of(elastor, batch), logits_of(mixer, batch), atol=1e-6)


def test_paper_sizes():
    """(T, D) = (15, 26) fits 39 fields of size 10 without a tokenizer, r = 3: the parameters of Sec. 3.3."""
    config = RankElastorConfig(vocab_sizes=[3] * 39, embedding_dim=10, tokenizer="none", head="flatten")
    model = RankElastorModel(config)
    layer = model.layers[0]
    assert layer.mixing.matrix.weight.numel() == (15 * 26) ** 2
    assert sum(p.numel() for n, p in layer.ffn.named_parameters() if "weight" in n) == 15 * (3 * 3 + 1) * 26**2


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"num_tokens": 5}, "28 numbers.*num_tokens=5 equal pieces.*does not divide 28.*14"),
        ({"tokenizer": "none", "num_tokens": 5, "token_dim": 6}, r"5 \* 6 = 30.*28 numbers"),
        ({"mixing": "transpose", "token_dim": 6}, "token_dim=6.*num_tokens=4.*does not divide 6"),
        ({"mixing": "kron", "mixing_grain": 5}, r"mixing_grain=5.*4 \* 8 = 32"),
        ({"mixing_grain": 2}, "mixing_grain=2.*'kron' only"),
        ({"tokenizer": "groups"}, "num_tokens=4 does not divide the 7 fields"),
        ({"tokenizer": "groups", "token_groups": GROUPS[:3]}, "4 lists.*3 lists.*N1"),
        ({"tokenizer": "groups", "token_groups": [*GROUPS[:3], ["N1", "C0"]]}, "repeated: C0"),
        ({"tokenizer": "groups", "token_groups": [*GROUPS[:3], ["N2"]]}, "unknown or repeated: N1, N2"),
        ({"token_groups": GROUPS}, "token_groups are read by"),
        ({"mixing": "half"}, "mixing='half'"),
        ({"ffn": "silu"}, "ffn='silu'"),
        ({"head": "sum"}, "head='sum'"),
        ({"variant": "code"}, "variant='code'"),
        ({"ffn_hidden_sizes": [4]}, "only variant='reference'"),
        ({"variant": "reference", "mixing_norm": "flat"}, "mixing_norm"),
        ({"variant": "reference", "ffn_hidden_sizes": []}, "ffn_hidden_sizes"),
    ],
)
def test_values_that_are_not_accepted(values, match):
    with pytest.raises(ValueError, match=match):
        RankElastorConfig(**FIELDS | TINY | values)


def test_the_recipes_of_the_reference_hold_what_its_authors_recorded():
    """Their configuration files, and what FuxiCTR, which trains their model, does by itself."""
    criteo, avazu = (load_recipe(f"rank_elastor/{name}_reference") for name in ("criteo", "avazu"))
    model = criteo.model
    shape = [
        model[key] for key in ("embedding_dim", "num_tokens", "token_dim", "num_hidden_layers", "ffn_hidden_sizes")
    ]
    assert shape == [10, 15, 26, 1, [64, 64]]
    assert (model["embedding_regularization"], model["regularize_tables"]) == (1e-5, True)
    assert (model["numeric_encoding"], model["tokenizer_hidden_size"], model["tokenizer_dropout"]) == (
        "vector",
        500,
        0.1,
    )
    assert model["numeric_initializer_range"] == pytest.approx((2 / (1 + 10)) ** 0.5, rel=1e-2)
    shape = [
        avazu.model[key]
        for key in ("embedding_dim", "num_tokens", "token_dim", "num_hidden_layers", "ffn_hidden_sizes")
    ]
    assert shape == [16, 24, 16, 4, [16]]
    for recipe, batch in ((criteo, 4096), (avazu, 10000)):
        assert recipe.model["initializer_range"] == 1e-4
        assert recipe.training["max_grad_norm"] == 10.0
        assert recipe.training["per_device_train_batch_size"] == batch
    check_tables(CTRTrainingArguments(embedding_optimizer=criteo.training["embedding_optimizer"]), False, True)


def test_equal_groups_by_default():
    """Without token_groups the fields go to the tokens in order, as many to each."""
    values = {"vocab_sizes": [4] * 6, "num_tokens": 3, "token_dim": 4, "embedding_dim": 2, "tokenizer": "groups"}
    torch.manual_seed(0)
    model = RankElastorForCTR(RankElastorConfig(**values)).eval()
    torch.manual_seed(0)
    groups = [["C0", "C1"], ["C2", "C3"], ["C4", "C5"]]
    listed = RankElastorForCTR(RankElastorConfig(**values | {"token_groups": groups})).eval()
    batch = make_batch(model.config)
    assert (logits_of(model, batch) == logits_of(listed, batch)).all()


def test_linear_helper_is_not_shared_between_tokens():
    """Each token has weights of its own: changing one token's changes that token alone."""
    torch.manual_seed(0)
    model = RankElastorModel(RankElastorConfig(**FIELDS | TINY)).eval()
    network, tokens = model.layers[0].ffn, torch.randn(3, 4, 8)
    with torch.no_grad():
        before = network(tokens)
        network.network.lift.weight[2] += 1.0
        changed = (network(tokens) - before).abs().amax((0, 2))
    assert (changed > 1e-3).tolist() == [False, False, True, False]
    assert linear(torch.nn.Linear(2, 2), np.ones(2)).shape == (2,)
