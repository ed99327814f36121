"""RankMixer: the common suite, its equations against float64 loops, and its sparse experts."""

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
    logits_of,
    make_batch,
    randomise_vectors,
    reference_vectors,
)
from token_reference import head_logit, rms_norm, token_linear, tokens_of, transpose

from lmctr import RankMixerConfig, RankMixerForCTR, RankMixerModel
from lmctr.models.rank_mixer.sparse_experts import SparseExperts

TINY = {"num_tokens": 4, "token_dim": 8, "ffn_ratio": 2}
GROUPS = [["C1", "N0"], ["S1"], ["C0", "C2", "S0"], ["N1"]]


class TestRankMixer(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = RankMixerConfig, RankMixerForCTR, RankMixerModel
    changing_key = ("ffn", "relu")
    values = TINY


class TestReferenceVariant(TestRankMixer):
    changing_key = ("ffn_norm", True)
    values = TINY | {
        "variant": "reference",
        "tokenizer": "groups",
        "token_groups": GROUPS,
        "tokenizer_hidden_size": 5,
        "ffn_hidden_sizes": [6, 5],
        "ffn_dropout": 0.1,
        "embedding_dim": MIXED_DIMS,
        "head": "flatten",
    }


class TestSparseExperts(TestRankMixer):
    changing_key = ("active_expert_ratio", 0.5)
    values = TINY | {"num_experts": 3, "router_regularization": 1e-6}


def reference_logit(model, vectors):
    config = model.config
    act = gelu if config.ffn == "gelu" else (lambda x: np.maximum(x, 0))
    x = tokens_of(model.model.tokenizer, config, vectors)
    for layer in model.model.layers:
        m = np.array([layer_norm(layer.mixing.norm, row) for row in x + transpose(x)])
        if config.variant == "reference":
            m = np.array([rms_norm(layer.mixing.post_norm.weight, row) for row in m])
        x = np.zeros_like(m)
        for token, row in enumerate(m):
            network = layer.ffn.network
            if config.num_experts > 1:
                x[token] = row + reference_experts(network, config, token, row, act)
            else:
                hidden = row
                for number, linear_layer in enumerate(network.layers):
                    hidden = token_linear(linear_layer, token, hidden)
                    if config.ffn_norm:
                        hidden = rms_norm(network.norms[number].weight[token], hidden)
                    hidden = act(hidden)
                x[token] = row + token_linear(network.last, token, hidden)
            if config.variant == "paper":
                x[token] = layer_norm(layer.ffn.norm, x[token])
    return head_logit(model.head, config, x)


def reference_experts(module, config, token, row, act):
    """sum_e ReLU(h(s))_e expert_e(s), one expert after the other."""
    gates = np.maximum(token_linear(module.infer_router, token, row), 0)
    width, result = module.hidden, np.zeros(config.token_dim)
    for expert in range(config.num_experts):
        part = slice(expert * width, (expert + 1) * width)
        hidden = act(row @ array(module.up.weight)[token][:, part] + array(module.up.bias)[token, 0, part])
        output = hidden @ array(module.down.weight)[token, expert] + array(module.down.bias)[token, expert]
        result += gates[expert] * output
    return result


CASES = [
    {},
    {"ffn": "relu", "head": "flatten"},
    {"head": "mlp", "tokenizer": "dense"},
    {"tokenizer": "none", "num_tokens": 2, "token_dim": 14},
    {"tokenizer": "groups", "token_groups": GROUPS, "embedding_dim": MIXED_DIMS},
    {"variant": "reference", "head": "mean"},
    {"variant": "reference", "ffn_hidden_sizes": [6, 5], "ffn_norm": True, "tokenizer_hidden_size": 3},
    {"num_experts": 3},
    {"num_experts": 2, "ffn": "relu", "head": "mlp"},
]


@pytest.mark.parametrize("values", CASES, ids=str)
def test_equations(values):
    torch.manual_seed(0)
    model = RankMixerForCTR(RankMixerConfig(**FIELDS | TINY | values)).eval()
    randomise_vectors(model)
    batch = make_batch(model.config, rows=4)
    expected = [reference_logit(model, vectors) for vectors in reference_vectors(model, batch)]
    np.testing.assert_allclose(logits_of(model, batch), expected, atol=1e-4, rtol=1e-4)


def make_experts(**values):
    torch.manual_seed(0)
    config = RankMixerConfig(**FIELDS | TINY | {"num_experts": 3} | values)
    model = RankMixerModel(config)
    module = model.layers[0].ffn.network
    assert isinstance(module, SparseExperts)
    with torch.no_grad():
        module.infer_router.weight.normal_()
        module.infer_router.bias.fill_(-3.0)  # few active experts
        module.down.bias.normal_()
    return module.eval()


def test_sparse_inference_equals_dense(monkeypatch):
    """Only active rows are computed where that is less work, with the same result; a closed layer gives zeros."""
    module, tokens = make_experts(), torch.randn(4, 50, 8)
    calls, sparse = [], SparseExperts._sparse
    monkeypatch.setattr(SparseExperts, "_sparse", lambda self, *a: (calls.append(a[2]), sparse(self, *a))[1])
    with torch.no_grad():
        output, penalty, active = module(tokens)
        gates = module.infer_router(tokens).relu()
        torch.testing.assert_close(output, module._dense(tokens, gates), atol=1e-5, rtol=1e-5)
    longest = int((gates > 0).sum(1).max())
    assert calls == [longest]
    assert 0 < longest <= 25
    torch.testing.assert_close(penalty, gates.sum((0, 2)))
    torch.testing.assert_close(active, (gates > 0).float().mean())
    with torch.no_grad():
        module.infer_router.bias.fill_(-100.0)
        assert (module(tokens)[0] == 0).all()
        module.infer_router.bias.fill_(100.0)
        module(tokens)
    assert calls == [longest, 0]  # all experts open: dense
    module(tokens)  # and dense where gradients are asked for
    assert len(calls) == 2


def test_training_goes_through_both_routers():
    """Each row is routed by one of the two as the only one; both learn from the task, the penalty is the second's."""
    module, tokens = make_experts().train(), torch.randn(4, 64, 8)
    with torch.no_grad():
        module.infer_router.bias.fill_(0.5)
        free = module._dense(tokens, module.train_router(tokens).relu())
        inferred = module._dense(tokens, module.infer_router(tokens).relu())
        output = module(tokens)[0]
    by_free, by_infer = ((output - one).abs().amax((0, 2)) < 1e-5 for one in (free, inferred))
    assert (by_free ^ by_infer).all()
    assert 15 < by_free.sum() < 49
    output, penalty, _ = module(tokens)
    output.square().sum().backward()
    assert all(router.weight.grad.abs().sum() > 0 for router in (module.train_router, module.infer_router))
    module.zero_grad(set_to_none=True)
    module(tokens)[1].sum().backward()
    assert module.train_router.weight.grad is None
    assert module.infer_router.weight.grad.abs().sum() > 0
    assert penalty.shape == (64,)


def test_the_penalty_is_in_the_loss_of_training():
    values = FIELDS | TINY | {"num_experts": 3}
    losses, penalties = [], []
    for strength in (0.0, 0.25):
        torch.manual_seed(0)
        model = RankMixerForCTR(RankMixerConfig(**values | {"router_regularization": strength}))
        batch = make_batch(model.config)
        batch["labels"][1] = -100
        gates = []
        for layer in model.model.layers:
            layer.ffn.register_forward_hook(lambda m, args, out, gates=gates: gates.append(out[1].detach()))
        torch.manual_seed(5)
        losses.append(model.train()(**batch).loss)
        penalties.append(torch.stack(gates).sum(0))
        torch.testing.assert_close(model.eval()(**batch).loss.isfinite(), torch.tensor(True))
    rows = torch.tensor([0, 2, 3, 4, 5])
    torch.testing.assert_close(losses[1] - losses[0], 0.25 * penalties[1][rows].mean())
    evaluated = [RankMixerForCTR.eval(model)(**batch).loss for _ in range(2)]
    plain = torch.nn.functional.binary_cross_entropy_with_logits(model(**batch).logits[rows], batch["labels"][rows])
    torch.testing.assert_close(evaluated[0], plain)


def test_the_strength_steers_the_share_of_active_experts():
    """Trained to a third of active experts, a model ends nearer to it than one without a target; lambda is saved."""
    values = FIELDS | TINY | {"num_experts": 6, "num_hidden_layers": 1, "router_regularization": 1e-3}
    shares = {}
    for target in (None, 0.33):
        torch.manual_seed(0)
        model = RankMixerForCTR(RankMixerConfig(**values | {"active_expert_ratio": target})).train()
        optimizer = torch.optim.Adam(model.parameters(), 0.004)
        seen = []
        model.model.layers[0].ffn.register_forward_hook(lambda m, args, out, seen=seen: seen.append(out[2].item()))
        batch = make_batch(model.config, rows=64)
        for _ in range(250):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        shares[target] = np.mean(seen[-30:])
    assert abs(shares[0.33] - 0.33) < 0.12 < abs(shares[None] - 0.33)
    strength = model.state_dict()["model.router_penalty.strength"]
    assert strength != torch.tensor(1e-3)
    before = strength.clone()
    model.eval()(**batch)
    assert model.model.router_penalty.strength == before


@pytest.mark.parametrize("fused", [False, True])
def test_the_strength_moves_once_in_a_step_of_several_batches(fused):
    torch.manual_seed(0)
    values = TINY | {"num_experts": 2, "active_expert_ratio": 0.1, "num_hidden_layers": 2}
    model = RankMixerForCTR(RankMixerConfig(**FIELDS | values)).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=fused)
    batch, strength = make_batch(model.config), model.model.router_penalty.strength
    found, gates, penalties = [], [], []
    layers = [layer.ffn for layer in model.model.layers]
    for layer in layers:
        layer.register_forward_hook(lambda m, args, out: gates.append(out[1].detach()))
    model.model.router_penalty.register_forward_hook(lambda m, args, out: penalties.append(out.detach()))
    for _ in range(2):
        for _ in range(3):
            model(**batch).loss.backward()
            found.append(strength.item() / 0.01)
        optimizer.step()
    np.testing.assert_allclose(found, [1.05] * 3 + [1.05**2] * 3, rtol=1e-5)
    for place, penalty in enumerate(penalties):  # all batches of a step have the lambda of before it
        of_layers = gates[place * len(layers) : (place + 1) * len(layers)]
        torch.testing.assert_close(penalty, 0.01 * 1.05 ** (place // 3) * torch.stack(of_layers).sum(0))


def test_the_strength_moves_in_compiled_steps_as_in_others():
    """The losses, which hold the penalty, too: with the lambda of the next step it is a thousandth apart."""
    values, found = TINY | {"num_experts": 2, "active_expert_ratio": 0.1, "num_hidden_layers": 1}, []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = RankMixerForCTR(RankMixerConfig(**FIELDS | values)).train()
        optimizer, batch = torch.optim.AdamW(model.parameters(), 1e-3), make_batch(model.config)
        forward = torch.compile(model, backend="aot_eager") if compiled else model
        for _ in range(2):
            for _ in range(3):
                loss = forward(**batch).loss
                loss.backward()
                found.append((loss.item(), model.model.router_penalty.strength.item() / 0.01))
            optimizer.step()
    np.testing.assert_allclose(found[6:], found[:6], atol=1e-6)
    np.testing.assert_allclose([strength for _, strength in found], ([1.05] * 3 + [1.05**2] * 3) * 2, rtol=1e-5)


@pytest.mark.parametrize("values", [{}, {"num_experts": 2}, {"ffn_dropout": 0.5}])
def test_what_is_recomputed_draws_no_other_numbers(values):
    models = []
    for options in (None, {"use_reentrant": False, "preserve_rng_state": False}):
        torch.manual_seed(0)
        model = RankMixerForCTR(RankMixerConfig(**FIELDS | TINY | values)).train()
        batch = make_batch(model.config)
        if options is not None:
            model.gradient_checkpointing_enable(options)
            if values:
                with pytest.raises(ValueError, match="preserve_rng_state=False: RankMixerBlock draws random numbers"):
                    model(**batch)
                continue
        model(**batch).loss.backward()
        models.append(model)
    if not values:
        for one, two in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"token_dim": 10}, "token_dim=10.*num_tokens=4.*does not divide 10"),
        ({"num_tokens": 5, "token_dim": 10}, "num_tokens=5 equal pieces"),
        ({"ffn": "glu"}, "rank_elastor"),
        ({"num_experts": 0}, "num_experts=0"),
        ({"active_expert_ratio": 1.5}, "active_expert_ratio=1.5"),
        ({"num_experts": 2, "active_expert_ratio": 0.5, "router_regularization": 0.0}, "above 0"),
        ({"variant": "reference", "num_experts": 2}, "num_experts=2"),
        ({"ffn_norm": True}, "ffn_norm"),
        ({"ffn_hidden_sizes": [3]}, "ffn_hidden_sizes"),
    ],
)
def test_values_that_are_not_accepted(values, match):
    with pytest.raises(ValueError, match=match):
        RankMixerConfig(**FIELDS | TINY | values)
