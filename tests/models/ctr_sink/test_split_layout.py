"""Layout "split": the common suite on four backbones, and a float64 reference made of truncated backbones, row by row."""

import copy
import math

import pytest
import torch
from model_tester import CTRModelTesterMixin
from test_equations import reference_bias
from tiny_models import BACKBONES, batch_of, rows, sink_config
from transformers import AutoModel

from lmctr import CTRSinkConfig, CTRSinkForCTR, CTRSinkModel
from lmctr.models.ctr_sink.split_layout import FieldCache


def split_config(backbone, implementation="sdpa", **values):
    values = {"layout": "split", "field_projection_size": 16} | values
    config = sink_config(backbone, implementation, **values)
    return config


def with_fields(batch):
    """Number the elements of `tiny_models.rows`: every sink is one, and so is each stretch of tokens between sinks."""
    buckets = batch["sink_buckets"]
    is_sink = (buckets if buckets.dim() == 2 else buckets[..., 0]) >= 0
    field_ids = torch.full_like(batch["input_ids"], -1)
    for row, real in enumerate(batch["attention_mask"].bool()):
        number, after_sink = -1, True
        for column in real.nonzero()[:, 0].tolist():
            if is_sink[row, column] or after_sink:
                number += 1
            after_sink = bool(is_sink[row, column])
            field_ids[row, column] = number
    return {**batch, "field_ids": field_ids}


def split_batch(config, side="right", seed=0, extra=0):
    batch = with_fields(batch_of(config, side, seed, extra))
    if config.sink_kind != "sink":  # their tokens are looked up
        batch["input_ids"] = batch["input_ids"].clamp_max(59)
    return batch


class SplitTester(CTRModelTesterMixin):
    config_class, model_class, base_class = CTRSinkConfig, CTRSinkForCTR, CTRSinkModel
    backbone = None
    host_reads = 7  # fields are cut, and each is encoded once, in as much room as the batch needs

    def make_config(self, **values):
        return split_config(self.backbone, **({"sink_signal": ["recency", "feedback"]} | values))

    def make_batch(self, config, seed=0):
        return {**split_batch(config, seed=seed), "labels": torch.tensor([1.0, 0.0, 1.0])}


class TestSplitBert(SplitTester):
    backbone = "bert"


class TestSplitRoberta(SplitTester):
    backbone = "roberta"


class TestSplitQwen2(SplitTester):
    backbone = "qwen2"
    has_float64 = False


class TestSplitQwen3(SplitTester):
    backbone = "qwen3"
    has_float64 = False


def model_of(backbone, implementation="sdpa", **values):
    torch.manual_seed(0)
    return CTRSinkForCTR(split_config(backbone, implementation, **values)).eval()


def score(model, batch, **values):
    with torch.no_grad():
        return model(**batch, **values).logits


def truncated(model, backbone, first, stop):
    """A backbone of its own that holds layers `first` to `stop` - 1 of the model's, and no final norm below the top."""
    source = model.model.language_model
    config = copy.deepcopy(source.config)
    config.num_hidden_layers = stop - first
    if hasattr(config, "layer_types"):
        config.layer_types = config.layer_types[first:stop]
    options = {"add_pooling_layer": False} if backbone in ("bert", "roberta") else {}
    part = AutoModel.from_config(config, attn_implementation="eager", **options).double().eval()
    path = "encoder.layer." if options else "layers."
    weights = {}
    for name, value in source.state_dict().items():
        if not name.startswith(path):
            weights[name] = value
        elif first <= int(name[len(path) :].split(".")[0]) < stop:
            number, rest = name[len(path) :].split(".", 1)
            weights[f"{path}{int(number) - first}.{rest}"] = value
    part.load_state_dict(weights)
    if not options and stop < source.config.num_hidden_layers:
        part.norm = torch.nn.Identity()
    return part


def biased(part, backbone, model, sinks, causal):
    """Give the layers of a truncated upper half the bias of Eq. 10-11, by loops over heads and sinks."""
    layers = part.encoder.layer if backbone in ("bert", "roberta") else part.layers
    first = model.config.num_lower_layers
    for index, layer in enumerate(layers):
        if first + index not in model.config.resolved_sink_bias_layers:
            continue
        own = model.model.sink_bias.layers[model.model.sink_bias.slots[first + index]]

        def hook(module, args, kwargs, own=own):
            hidden = args[0] if args else kwargs["hidden_states"]
            length = hidden.shape[1]
            mask = torch.zeros(1, 1, length, length, dtype=torch.float64)
            if backbone.startswith("qwen"):
                mask += torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)
            for (i, j), value in reference_bias(own, hidden[0], sinks, causal).items():
                mask[0, 0, i, j] += own.scale.item() * value
            return args[:1], {**kwargs, "attention_mask": mask}

        attention = layer.self_attn if backbone.startswith("qwen") else layer.attention.self
        attention.register_forward_pre_hook(hook, with_kwargs=True)
    return part


def reference_logit(model, backbone, ids, buckets, pooling):
    """The logit of one row without padding."""
    config, language_model = model.config, model.model.language_model
    half, total = config.text_config.num_hidden_layers // 2, config.text_config.num_hidden_layers
    is_sink = [int(buckets[i, 0]) >= 0 for i in range(len(ids))]
    elements = []
    for place in range(len(ids)):
        if is_sink[place] or not elements or elements[-1][0]:
            elements.append((is_sink[place], []))
        elements[-1][1].append(place)
    lower = truncated(model, backbone, 0, half)
    vectors = []
    for sink, places in elements:
        if sink and config.sink_kind == "sink":
            total_embedding = sum(
                t.weight[buckets[places[0], s]] for s, t in enumerate(model.model.sink_embedding.tables)
            )
            projection = model.model.sink_embedding.projection
            vectors.append(projection.weight @ total_embedding + projection.bias)
            continue
        words = language_model.get_input_embeddings().weight[ids[places]]
        positions = torch.arange(len(places)) + (2 if backbone == "roberta" else 0)
        states = lower(inputs_embeds=words[None], position_ids=positions[None]).last_hidden_state[0]
        vectors.append(sum(states) / len(places))
    upper = truncated(model, backbone, half, total)
    sinks = [number for number, (sink, _) in enumerate(elements) if sink]
    causal = config.sink_bias_causal and backbone.startswith("qwen")
    upper = biased(upper, backbone, model, sinks, causal)
    positions = torch.arange(len(vectors)) + (2 if backbone == "roberta" else 0)
    states = upper(inputs_embeds=torch.stack(vectors)[None], position_ids=positions[None]).last_hidden_state[0]
    last = len(vectors) - 1
    history = list(range(last)) if pooling == "all" else (sinks or [last])
    mean = sum(states[i] for i in history) / len(history) if history else torch.zeros_like(states[0])

    def leaky(x):
        return torch.where(x > 0, x, 0.01 * x)

    parts = []
    for projection, vector in ((model.head.history, mean), (model.head.target, states[last])):
        middle = leaky(projection[0].weight @ vector + projection[0].bias)
        parts.append(projection[2].weight @ middle + projection[2].bias)
    joined = torch.cat(parts)
    centred = joined - joined.mean()
    normed = centred / torch.sqrt((centred**2).mean() + model.head.norm.eps)
    joined = leaky(normed * model.head.norm.weight + model.head.norm.bias)
    hidden = leaky(model.head.dense.weight @ joined + model.head.dense.bias)
    return (model.head.out.weight @ hidden + model.head.out.bias).item()


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("values", [
    {"sink_bias_layers": []},
    {"sink_bias_layers": "all", "sink_bias_scale_init": 2.0, "sink_signal": ["recency", "elapsed"]},
    {"sink_bias_layers": [2], "sink_bias_scale_init": 2.0, "sink_bias_causal": False},
    {"sink_kind": "cls", "sink_bias_layers": "all"},
    {"sink_kind": "none"},
])  # fmt: skip
def test_logits_equal_truncated_backbones_row_by_row(backbone, values):
    model = model_of(backbone, "eager", **values).double()
    batch = split_batch(model.config)
    batch["sink_buckets"] = batch["sink_buckets"].clone()
    with torch.no_grad():
        for pooling in ("all", "sinks"):
            found = score(model, batch, pooling=pooling)
            for row in range(3):
                real = batch["attention_mask"][row].bool()
                buckets = batch["sink_buckets"][row][real]
                buckets = buckets[:, None] if buckets.dim() == 1 else buckets
                expected = reference_logit(model, backbone, batch["input_ids"][row][real], buckets, pooling)
                assert found[row].item() == pytest.approx(expected, abs=2e-6), (pooling, row)


@pytest.mark.parametrize("edge", [2, 4, 6])
def test_longrope_turns_the_elements_of_each_row_by_their_own_number(edge):
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0] * 4, "long_factor": [9.0] * 4}
    lengths = {"original_max_position_embeddings": edge}
    model = model_of("llama", text={"rope_parameters": rope | lengths, **lengths})
    batch = split_batch(model.config)
    found = score(model, batch)
    for row, real in enumerate(batch["attention_mask"].bool()):
        alone = score(model, {name: values[row : row + 1, real] for name, values in batch.items()})
        torch.testing.assert_close(found[row : row + 1], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_padding_side_and_implementation_change_nothing(backbone):
    logits = [
        score(model_of(backbone, implementation), split_batch(split_config(backbone), side, extra=extra))
        for implementation, side, extra in (("sdpa", "right", 0), ("eager", "left", 3), ("sdpa", "left", 0))
    ]
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("backbone", "key", "sees_ahead"),
    [
        ("qwen2", {"is_causal": False}, True),
        ("qwen2", {}, False),
        ("bert", {"is_decoder": True}, False),
        ("bert", {}, True),
    ],
)
def test_who_sees_whom_is_the_backbones_own(backbone, key, sees_ahead):
    """Also where no padding asks for a mask."""
    model = model_of(backbone, text=key)
    batch = split_batch(model.config, extra=2)
    whole = {name: values[:1, :13] for name, values in batch.items()}
    torch.testing.assert_close(score(model, whole), score(model, batch)[:1], atol=2e-5, rtol=0)
    other = {**whole, "input_ids": whole["input_ids"].clone()}
    other["input_ids"][0, -1] += 1
    with torch.no_grad():
        first = [model.model(**each).last_hidden_state[0, 0] for each in (whole, other)]
    assert (not torch.allclose(*first, atol=1e-4)) == sees_ahead


@pytest.mark.parametrize("backbone", BACKBONES)
def test_fields_encoded_once_give_the_same_logits(backbone):
    model = model_of(backbone)
    batch = split_batch(model.config)
    calls = []
    attention = model.model.language_model
    layer = attention.layers[0] if backbone.startswith("qwen") else attention.encoder.layer[0]
    layer.register_forward_hook(lambda module, args, output: calls.append(args[0].shape[:2]))
    expected = score(model, batch)
    calls.clear()
    cache = FieldCache(model)
    vectors = cache(**batch, labels=torch.ones(3))
    assert set(vectors) == {"field_vectors", "attention_mask", "sink_buckets", "labels"}
    assert len(cache) == 7  # 4 + 2 + 1 stretches of text
    torch.testing.assert_close(score(model, {k: v for k, v in vectors.items() if k != "labels"}), expected)
    assert len(calls) == 1
    # other rows of the same fields pass no lower layer
    swapped = {key: value[[1, 0]] for key, value in batch.items()}
    torch.testing.assert_close(score(model, dict(cache(**swapped))), expected[[1, 0]])
    assert len(calls) == 1
    # and by hand
    ids, _, _ = rows()[1]
    alone = model.encode_fields(ids[None, :4])
    torch.testing.assert_close(alone[0], vectors["field_vectors"][1, 0])
    padded = torch.cat([torch.full((1, 3), 9), ids[None, :4]], dim=1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    torch.testing.assert_close(model.encode_fields(padded, mask), alone)
    cache.clear()
    assert len(cache) == 0


@pytest.mark.parametrize("fused", [False, True])
def test_vectors_are_those_of_the_weights_after_a_step(fused):
    """A fused optimiser's kernel counts no version of the weights that it changes."""
    model = model_of("bert")
    batch = split_batch(model.config)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=fused)
    before = score(model, dict(model.with_kept(batch)))
    model(**batch, labels=torch.ones(len(batch["input_ids"]))).loss.backward()
    optimizer.step()
    after = score(model, dict(model.with_kept(batch)))
    torch.testing.assert_close(after, score(model, batch))
    assert (after - before).abs().max() > 1e-3


def test_equal_fields_pass_the_lower_half_once_in_evaluation():
    model = model_of("qwen2")
    batch = {key: torch.cat([value, value]) for key, value in split_batch(model.config).items()}
    sizes = []
    model.model.language_model.layers[0].register_forward_hook(lambda m, args, output: sizes.append(len(args[0])))
    logits = score(model, batch)
    torch.testing.assert_close(logits[:3], logits[3:])
    score(model.train(), batch)
    assert sizes == [7, 14]


@pytest.mark.parametrize(("backbone", "layers"), [
    ("bert", (3, 4)), ("roberta", (3, 4)), ("qwen2", (3,)), ("qwen3", (3,)),
])  # fmt: skip
def test_sink_bias_layers_are_counted_in_the_upper_half(backbone, layers):
    text = dict(split_config(backbone).text_config.to_dict(), num_hidden_layers=6, layer_types=None)
    text = {key: value for key, value in text.items() if value is not None}
    assert CTRSinkConfig(text_config=text, layout="split").resolved_sink_bias_layers == layers
    every = CTRSinkConfig(text_config=text, layout="split", sink_bias_layers="all")
    assert every.resolved_sink_bias_layers == (3, 4, 5)
    with pytest.raises(ValueError, match=r"sink_bias_layers=\[2, 3\].*from 3 to 5.*lower half"):
        CTRSinkConfig(text_config=text, layout="split", sink_bias_layers=[2, 3])


def test_hidden_states_and_attentions_are_the_upper_halfs():
    model = model_of("qwen3", "eager")
    batch = split_batch(model.config)
    output = model(**batch, output_hidden_states=True, output_attentions=True)
    assert [tuple(state.shape) for state in output.hidden_states] == [(3, 7, 32)] * 3
    assert [tuple(attention.shape) for attention in output.attentions] == [(3, 4, 7, 7)] * 2
    with pytest.raises(ValueError, match=r"output_attentions.*eager"):
        model_of("qwen3")(**batch, output_attentions=True)


@pytest.mark.parametrize(("change", "message"), [
    ({"field_ids": None}, "takes either input_ids with field_ids.*got input_ids"),
    ({"field_vectors": torch.zeros(3, 7, 32)}, "got input_ids, field_ids, field_vectors"),
    ({"position_ids": torch.zeros(3, 13)}, "position_ids"),
    ({"field_ids": torch.zeros(3, 12, dtype=torch.long)}, r"field_ids: shape \(3, 12\)"),
    ({"field_ids": torch.ones(3, 13, dtype=torch.long)}, "without a gap"),
    ({"field_ids": torch.zeros(3, 13, dtype=torch.long)}, "a sink shares its element"),
])  # fmt: skip
def test_bad_inputs(change, message):
    model = model_of("bert")
    with pytest.raises(ValueError, match=message):
        score(model, {**split_batch(model.config), **change})


def test_bad_uses_of_fields():
    model, single = model_of("bert"), CTRSinkForCTR(sink_config("bert"))
    batch = split_batch(model.config)
    with pytest.raises(ValueError, match='layout="single" takes input_ids'):
        single(**batch)
    with pytest.raises(ValueError, match='layout="single"'):
        single.encode_fields(batch["input_ids"])
    with pytest.raises(ValueError, match='layout="single"'):
        FieldCache(single)
    with pytest.raises(ValueError, match="padded on the right"):
        model(field_vectors=torch.zeros(1, 3, 32), attention_mask=torch.tensor([[0, 1, 1]]))
    with pytest.raises(ValueError, match=r"model.eval\(\)"):
        FieldCache(model_of("bert").train())(**batch)
    with pytest.raises(ValueError, match="a field of 65 tokens"):
        model.encode_fields(torch.ones(1, 65, dtype=torch.long))
    with pytest.raises(ValueError, match=r"pooling='first'"):
        model(**batch, pooling="first")
    distilbert = {
        "model_type": "distilbert",
        "dim": 32,
        "n_heads": 4,
        "n_layers": 2,
        "hidden_dim": 32,
        "vocab_size": 60,
    }
    for text in (distilbert, split_config("bert").text_config.to_dict() | {"num_hidden_layers": 1}):
        with pytest.raises(ValueError, match="layout='split'"):
            CTRSinkConfig(text_config=text, layout="split")
