"""FAT: the common suite, and its equations against float64 loops."""

import copy

import numpy as np
import pytest
import torch
from model_tester import CTRModelTesterMixin
from tabular_inputs import (
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
    softmax,
)

from lmctr import FATConfig, FATForCTR, FATModel
from lmctr.scaling.flops import count_parameters

TINY = {"hidden_size": 8, "num_attention_heads": 2, "num_bases": 6, "top_k": 2, "meta_dim": 5}
TABLE = {"vocab_sizes": [7, 5, 9], "num_numeric": 2, "embedding_dim": 4, "initializer_range": 0.5}


class TestFAT(TabularSuite, CTRModelTesterMixin):
    config_class, model_class, base_class = FATConfig, FATForCTR, FATModel
    changing_key = ("block", "prenorm")
    values = TINY

    def test_the_penalty_of_training(self):
        """On fields without sequences: the suite's loops average those, FAT weighs them by attention."""
        kept = {key: value[:5] for key, value in self.values.items() if isinstance(value, list)}
        self.values = self.values | kept | {"num_sequences": 0, "sequence_tables": [], "sequence_vocab_sizes": []}
        super().test_the_penalty_of_training()


class TestFATOfMixedWidths(TestFAT):
    values = TINY | {"embedding_dim": MIXED_DIMS, "tokens_per_field": [1, 2, 1, 1, 1, 1, 3], "block": "prenorm"}
    changing_key = ("scale", "d")


class TestFATOfPairs(TestFAT):
    values = TINY | {"projection": "pair", "hidden_dropout": 0.1, "attention_dropout": 0.1, "hidden_size": 4}


def make_model(**values):
    torch.manual_seed(0)
    model = FATForCTR(FATConfig(**TABLE | TINY | values)).eval()
    randomise_vectors(model)
    return model


def reference_matrices(model, layer):
    """W_Q, W_K, W_V [kind][query field][key field], by the letter of the paper."""
    config, module = model.config, model.model.layers[layer].attention.projection
    fields, size = config.num_fields, config.hidden_size
    if config.projection == "pair":
        return array(module.weight)
    result = np.zeros((3, fields, fields, size, size))
    for kind in range(3):
        columns = slice(kind * size, (kind + 1) * size)
        for i in range(fields):
            for j in range(fields):
                own = i if kind == 0 else j
                if config.projection == "shared":
                    result[kind, i, j] = array(module.weight)[:, columns]
                elif config.projection == "full":
                    result[kind, i, j] = array(module.weight)[own][:, columns]
                else:
                    phi, router = array(model.model.meta_embedding.weight)[own], module.router
                    hidden = phi @ array(router.weight_in)[kind] + array(router.bias_in)[kind, 0]
                    scores = np.maximum(hidden, 0) @ array(router.weight_out)[kind] + array(router.bias_out)[kind, 0]
                    chosen = np.argsort(-scores)[: config.top_k]
                    for m, alpha in zip(chosen, softmax(scores[chosen])):
                        result[kind, i, j] += alpha * array(module.bases.weight)[kind, m]
    return result


def reference_attention(model, layer, tokens):
    config, module = model.config, model.model.layers[layer].attention
    matrices = reference_matrices(model, layer)
    count, size, heads = len(tokens), config.hidden_size, config.num_attention_heads
    width = size // heads
    scale = np.sqrt(width) if config.scale == "head_dim" else np.sqrt(size)
    output, maps = np.zeros((count, size)), np.zeros((heads, count, count))
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        for i in range(count):
            scores, values = np.zeros(count), []
            for j in range(count):
                query, key, value = ((tokens[i if kind == 0 else j] @ matrices[kind, i, j])[part] for kind in range(3))
                w = array(module.modulation.weight)[h, i, j] if config.use_pair_modulation else 1.0
                scores[j] = query @ key * w / scale
                values.append(value)
            maps[h, i] = softmax(scores)
            output[i, part] = maps[h, i] @ np.array(values)
    return (output if module.output is None else linear(module.output, output)), maps


def reference_forward(model, vectors):
    """Logit and last layer's attention of one row, from its fields' vectors."""
    config, maps = model.config, None
    projection = model.model.tokens.projection
    tokens = [v if projection is None else v @ array(projection.weights[0])[f] for f, v in enumerate(vectors)]
    tokens = np.array(tokens)
    if config.use_field_bias:
        tokens = tokens + array(model.model.field_bias.weight)
    for number, layer in enumerate(model.model.layers):

        def feed_forward(x, layer=layer):
            return linear(layer.down, np.array([gelu(row) for row in linear(layer.up, x)]))

        def norm(module, x):
            return np.array([layer_norm(module, row) for row in x])

        if config.block == "paper":
            mixed, maps = reference_attention(model, number, tokens)
            tokens = feed_forward(norm(layer.norm, mixed)) + tokens
        else:
            mixed, maps = reference_attention(model, number, norm(layer.attention_norm, tokens))
            tokens = tokens + mixed
            tokens = tokens + feed_forward(norm(layer.norm, tokens))
    return array(model.head.weight) @ tokens.sum(0), maps


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"block": "prenorm"},
        {"scale": "d"},
        {"use_output_projection": False},
        {"use_field_bias": False},
        {"use_pair_modulation": False},
        {"pair_init": "paper"},
        {"projection": "full"},
        {"projection": "shared"},
        {"projection": "pair"},
        {"projection": "pair", "use_pair_modulation": True},
        {"embedding_dim": 8},
    ],
    ids=str,
)
def test_equations(values):
    model = make_model(**values)
    batch = make_batch(model.config, rows=3)
    output = model(**batch, output_attentions=True)
    assert (model.model.tokens.projection is None) == (values == {"embedding_dim": 8})
    for row, vectors in enumerate(reference_vectors(model, batch)):
        logit, maps = reference_forward(model, vectors)
        assert abs(logit - output.logits[row].item()) < 1e-4
        np.testing.assert_allclose(array(output.attentions[-1])[row], maps, atol=1e-5)


@pytest.mark.parametrize("projection", ["hypernetwork", "full", "shared", "pair"])
def test_tokens_in_another_order_give_the_same_logit(projection):
    """No positions: tokens permuted together with their field ids, with several tokens of some fields."""
    model = make_model(projection=projection)
    field_ids = torch.tensor([3, 0, 0, 4, 2, 1, 1, 1])
    tokens = torch.randn(4, len(field_ids), 8)
    logits = logits_of(model, {"inputs_embeds": tokens, "field_ids": field_ids})
    order = torch.randperm(len(field_ids))
    shuffled = logits_of(model, {"inputs_embeds": tokens[:, order], "field_ids": field_ids[order]})
    np.testing.assert_allclose(shuffled, logits, atol=1e-5)
    if projection != "shared":
        others = logits_of(model, {"inputs_embeds": tokens, "field_ids": field_ids[order]})
        assert np.abs(others - logits).max() > 1e-3


def test_tokens_given_are_the_tokens_of_the_fields():
    model = make_model(tokens_per_field=[1, 2, 1, 3, 1], embedding_dim=[4, 2, 6, 4, 2])
    batch = make_batch(model.config)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    tokens = model.model.tokens(model.model.embedding(**inputs))
    assert tokens.shape == (6, 8, 8)
    field_ids = torch.tensor([0, 1, 1, 2, 3, 3, 3, 4])
    assert torch.equal(model.model.tokens.field_ids, field_ids)
    output = model(inputs_embeds=tokens, field_ids=field_ids, labels=batch["labels"], output_hidden_states=True)
    torch.testing.assert_close(output.logits, model(**inputs).logits)
    torch.testing.assert_close(output.loss, model(**batch).loss)
    assert len(output.hidden_states) == 1 + model.config.num_hidden_layers
    vectors = reference_vectors(model, batch)[0]
    weights = model.model.tokens.projection.weights  # of the tokens of width 2, 4 and 6
    np.testing.assert_allclose(array(tokens)[0, 2], vectors[1] @ array(weights[0])[1], atol=1e-6)
    np.testing.assert_allclose(array(tokens)[0, 6], vectors[3] @ array(weights[1])[3], atol=1e-6)
    np.testing.assert_allclose(array(tokens)[0, 7], vectors[4] @ array(weights[0])[2], atol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "field_ids", "match"),
    [
        (torch.zeros(2, 3, 8), None, "come together"),
        (torch.zeros(2, 3, 7), torch.arange(3), r"\(B, N, 8\)"),
        (torch.zeros(2, 3, 8), torch.arange(4), "3 tokens"),
        (torch.zeros(2, 3, 8), torch.tensor([0, 1, 5]), "5 is no field.*0 to 4"),
        (torch.zeros(2, 3, 8), torch.tensor([0.0, 1.0, 2.5]), "field_ids: torch.float32 is not accepted"),
        (torch.zeros(2, 3, 8), [0, 1, 2], "field_ids: expected a torch.Tensor, got list"),
        (torch.zeros(0, 3, 8), torch.arange(3), r"inputs_embeds: shape \(0, 3, 8\) holds no row"),
    ],
)
def test_tokens_that_do_not_fit(tokens, field_ids, match):
    with pytest.raises(ValueError, match=match):
        make_model()(inputs_embeds=tokens, field_ids=field_ids)


def test_tokens_beside_what_they_stand_for():
    model, tokens = make_model(), {"inputs_embeds": torch.randn(6, 3, 8), "field_ids": torch.tensor([4, 0, 0])}
    assert isinstance(model.model(**tokens, return_dict=False), tuple)
    small = tokens | {"field_ids": tokens["field_ids"].to(torch.uint8)}  # no mask
    assert torch.equal(model(**small).logits, model(**tokens).logits)
    batch = make_batch(model.config)
    with pytest.raises(ValueError, match="in place of the fields' inputs, and input_ids and numeric_values came with"):
        model(batch["input_ids"], batch["numeric_values"], **tokens)
    with pytest.raises(TypeError, match="unexpected keyword argument 'field_id'"):
        model(**tokens, field_id=tokens["field_ids"])
    torch.manual_seed(0)
    beside = FATForCTR(FATConfig(**TABLE | TINY | {"use_numeric_skip": True})).eval()
    with torch.no_grad():
        beside.numeric_skip.weight.fill_(2.0)
        found = [
            beside(numeric_values=numbers, **tokens).logits for numbers in (batch["numeric_values"], torch.zeros(6, 2))
        ]
    torch.testing.assert_close(found[0] - found[1], 2 * batch["numeric_values"].sum(1))
    trees = FATForCTR(FATConfig(**TABLE | TINY | {"boosted_trees": {"trees": 2, "leaves": 2, "share": 0.5}})).eval()
    numbers = {"numeric_values": batch["numeric_values"]}
    for model, given, told in (
        (beside, {}, "numeric_values: the model has 2 fields of this kind and got none"),
        (
            beside,
            {"numeric_values": torch.zeros(1, 2)},
            r"numeric_values: shape \(1, 2\) is not accepted; use \(6, 2\)",
        ),
        (trees, {}, "input_ids: the model has 3 fields of this kind and got none"),
        (trees, numbers, "input_ids: the model has 3 fields of this kind and got none"),
    ):
        with pytest.raises(ValueError, match=told):
            model(**tokens, **given)
    assert trees(**tokens, **numbers, input_ids=batch["input_ids"]).logits.shape == (6,)
    assert trees.train()(**tokens).logits.shape == (6,)  # trees are read in evaluation only


def test_starting_modulation_and_its_gradient():
    """The paper's start is uniform attention, which nearly stops the gradient of W_Q and W_K; one_plus does not."""
    norms, spreads = {}, {}
    for kind in ("paper", "one_plus"):
        torch.manual_seed(0)
        model = FATForCTR(FATConfig(**TABLE | TINY | {"projection": "full", "pair_init": kind}))
        output = model(**make_batch(model.config), output_attentions=True)
        output.loss.backward()
        gradient = model.model.layers[0].attention.projection.weight.grad
        norms[kind] = gradient[..., :16].norm().item() / gradient[..., 16:].norm().item()
        spreads[kind] = output.attentions[0].std().item()
        weight = model.field_interactions()
        assert weight.shape == (2, 2, 5, 5)
        assert abs(weight.mean().item() - (kind == "one_plus")) < 0.01
        assert 0.005 < weight.std().item() < 0.02
    assert norms["paper"] < 0.05 * norms["one_plus"]
    assert spreads["paper"] < 0.05 * spreads["one_plus"]


def test_field_interactions_and_usage_need_their_parts():
    model = make_model(projection="full", use_pair_modulation=False)
    with pytest.raises(ValueError, match="use_pair_modulation"):
        model.field_interactions()
    with pytest.raises(ValueError, match="projection='full'"):
        model.basis_usage()


def test_basis_usage():
    model = make_model()
    usage = model.basis_usage()
    assert usage.shape == (2, 3, 6)
    torch.testing.assert_close(usage.sum(-1), torch.full((2, 3), 2.0))  # each field draws on K = 2
    model(**make_batch(model.config)).loss.backward()
    for layer, used in zip(model.model.layers, usage):
        gradient = layer.attention.projection.bases.weight.grad.abs().sum((2, 3))
        assert torch.equal(gradient > 0, used > 0)


def test_what_new_projections_have_in_common():
    """Matrices of every variant start with entries of variance 1/d."""
    for projection in ("hypernetwork", "full", "shared", "pair"):
        torch.manual_seed(0)
        config = FATConfig(vocab_sizes=[4] * 12, hidden_size=32, projection=projection, num_hidden_layers=1)
        model = FATModel(config)
        with torch.no_grad():
            module = model.layers[0].attention.projection
            matrices = module(None if model.meta_embedding is None else model.meta_embedding.weight)
        assert abs(matrices.std().item() * 32**0.5 - 1) < 0.15, projection


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"hidden_size": 10, "num_attention_heads": 4}, "hidden_size=10.*num_attention_heads=4"),
        ({"top_k": 7}, "top_k=7.*num_bases=6"),
        ({"projection": "row"}, "projection='row'"),
        ({"pair_init": "zero"}, "pair_init"),
        ({"tokens_per_field": [1, 2]}, "tokens_per_field"),
        ({"tokens_per_field": 0}, "tokens_per_field"),
        ({"attention_dropout": 1.0}, "attention_dropout"),
        ({"projection": "pair", "max_pair_parameters": 9599}, "9,600 parameters.*5 fields.*max_pair_parameters=9,599"),
        ({"numeric_encoding": "spline"}, "monotonic_mlp"),
    ],
)
def test_values_that_are_not_accepted(values, match):
    with pytest.raises(ValueError, match=match):
        FATConfig(**TABLE | TINY | values)


def test_pair_projections_of_a_real_table_are_refused():
    """The paper's size: refused by the count in the message, not by memory."""
    with pytest.raises(ValueError, match="1,693,156,638,720 parameters"):
        FATConfig.preset("large", vocab_sizes=[10] * 464, projection="pair")
    assert FATConfig(**TABLE | TINY | {"projection": "pair", "max_pair_parameters": 9600}).pair_parameters == 9600
    assert make_model(projection="pair").model.layers[0].attention.projection.weight.numel() * 2 == 9600


def test_presets_have_the_sizes_of_the_paper():
    """52M, 0.52-0.54B and 1.47-1.5B dense parameters, for 40 fields."""
    for name, millions in (("small", 52), ("large", 527), ("xl", 1474)):
        with torch.device("meta"):
            model = FATForCTR(FATConfig.preset(name, vocab_sizes=[1000] * 40, embedding_dim=16))
        dense, embedding = count_parameters(model)
        assert abs(dense / 1e6 / millions - 1) < 0.02
        assert embedding == 40 * 1000 * 16


def test_presets():
    fields = {"vocab_sizes": [3] * 40}
    for name, size, layers in (("small", 256, 4), ("large", 512, 10), ("xl", 1024, 7)):
        config = FATConfig.preset(name, **fields)
        found = (config.hidden_size, config.num_hidden_layers, config.num_attention_heads)
        assert found == (size, layers, 8)
        assert (config.num_bases, config.top_k, config.meta_dim) == (64, 3, 64)
    assert FATConfig.preset("small", num_hidden_layers=1, **fields).num_hidden_layers == 1
    with pytest.raises(ValueError, match="'tiny' is not known"):
        FATConfig.preset("tiny", **fields)


def test_a_trained_modulation_is_not_symmetric_and_survives_a_copy():
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(3):
        model.train()(**make_batch(model.config)).loss.backward()
        optimizer.step()
    weight = model.field_interactions()
    assert (weight - weight.transpose(-1, -2)).abs().max() > 0.05
    assert torch.equal(copy.deepcopy(model).field_interactions(), weight)


def test_baked_matrices_are_those_of_the_hypernetwork(tmp_path):
    model = make_model().eval()
    batch = make_batch(model.config)
    before = logits_of(model, batch)
    made = [layer.attention.projection(model.model.meta_embedding.weight).clone() for layer in model.model.layers]
    assert model.bake() is model
    np.testing.assert_allclose(logits_of(model, batch), before, atol=1e-6)
    for layer, matrices in zip(model.model.layers, made):
        assert torch.equal(layer.attention.projection.weight, matrices)
    assert not any("bases" in name or "router" in name or "meta" in name for name, _ in model.named_parameters())
    assert model.bake() is model
    model.save_pretrained(tmp_path)
    again = FATForCTR.from_pretrained(tmp_path).eval()
    assert again.config.projection == "full"
    np.testing.assert_allclose(logits_of(again, batch), before, atol=1e-6)
