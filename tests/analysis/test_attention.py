"""Eq. 7 and Eq. 8 against plain float64 loops, and attention maps against the model's own attentions."""

import math
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from lmctr import CTRSinkForCTR
from lmctr.analysis import attention_map, sink_attention, token_labels
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor

sys.path.append(str(Path(__file__).parents[1] / "models" / "ctr_sink"))

from text_tokenizers import make
from tiny_models import BACKBONES, DECODERS, ENCODERS, batch_of, pad, rows, sink_config


def model_of(backbone, implementation="eager", **values):
    torch.manual_seed(0)
    return CTRSinkForCTR(sink_config(backbone, implementation, **values)).eval()


def reference(model, made):
    """(to sinks, between sinks) of each row and layer, and the two levels of even attention, by loops over unpadded rows."""
    shares, levels = [], []
    causal = model.config.text_config.model_type in DECODERS
    for entry in made:
        ids, buckets, _ = entry
        with torch.no_grad():
            attentions = model(**pad([entry]), output_attentions=True).attentions
        length = len(ids)
        sinks = [i for i in range(length) if buckets[i, 0] >= 0]
        row = []
        for layer in attentions:
            heads = layer.shape[1]
            mass = {q: [] for q in range(length)}
            for head in range(heads):
                for query in range(length):
                    mass[query].append(sum(float(layer[0, head, query, key]) for key in sinks))
            every = [value for query in range(length) for value in mass[query]]
            own = [value for query in sinks for value in mass[query]]
            row.append((sum(every) / len(every), sum(own) / len(own) if own else math.nan))
        shares.append(row)
        even = []
        for query in range(length):
            shown = [
                (layer[0, :, query] > 0).any(0).nonzero()[:, 0].tolist() for layer in attentions
            ]  # windows hide some
            assert all(max(seen) <= query for seen in shown) is causal or query == length - 1
            even.append(sum(sum(key in sinks for key in seen) / len(seen) for seen in shown) / len(shown))
        levels.append((sum(even) / length, sum(even[query] for query in sinks) / len(sinks) if sinks else math.nan))
    shares, levels = np.array(shares), np.array(levels)
    return shares[..., 0], shares[..., 1], levels[:, 0], levels[:, 1]


@pytest.mark.parametrize("backbone", [*ENCODERS, *DECODERS])
@pytest.mark.parametrize("side", ["left", "right"])
def test_shares_are_eq_7_and_eq_8(backbone, side):
    """In a padded batch of rows with 3 sinks, 1 sink and none; the attention itself is float32, hence the tolerance."""
    model = model_of(backbone, sink_bias_layers=[0, 2], sink_bias_scale_init=2.5)
    measured = sink_attention(model, [batch_of(model.config, side, extra=2)])
    to_sinks, between, even, even_between = reference(model, rows())
    np.testing.assert_allclose(measured.to_sinks, to_sinks, atol=3e-6)
    np.testing.assert_allclose(measured.between_sinks, between, atol=3e-6)
    np.testing.assert_allclose(measured.uniform_to_sinks, even, atol=1e-12)
    np.testing.assert_allclose(measured.uniform_between_sinks, even_between, atol=1e-12)
    assert measured.num_sinks.tolist() == [3, 1, 0]
    assert measured.num_tokens.tolist() == [13, 8, 5]
    assert np.isnan(measured.between_sinks[2]).all()
    assert (measured.to_sinks[2] == 0).all()
    assert (measured.num_samples, measured.num_layers, measured.num_without_sinks) == (3, 3, 1)
    np.testing.assert_allclose(measured.mean_to_sinks, to_sinks.sum(0) / 3, atol=3e-6)
    np.testing.assert_allclose(measured.mean_between_sinks, between[:2].sum(0) / 2, atol=3e-6)
    assert measured.mean_uniform_to_sinks == pytest.approx(sum(even) / 3)
    assert measured.mean_uniform_between_sinks == pytest.approx((even_between[0] + even_between[1]) / 2)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_sample_does_not_depend_on_its_batch(backbone):
    model = model_of(backbone)
    together = sink_attention(model, [pad(rows(), "left", extra=5)])
    alone = sink_attention(model, [pad([row]) for row in rows()])
    np.testing.assert_allclose(together.to_sinks, alone.to_sinks, atol=3e-6)
    np.testing.assert_allclose(together.between_sinks, alone.between_sinks, atol=3e-6)
    np.testing.assert_array_equal(together.num_sinks, alone.num_sinks)


@pytest.mark.parametrize("backbone", ["bert", "qwen2"])
def test_sink_bias_raises_the_share_between_sinks(backbone):
    """The bias layers are 0 and 2: there a large scale raises Eq. 8 and Eq. 7 with it."""
    values = {"sink_bias_layers": [0, 2]}
    none = sink_attention(model_of(backbone, sink_bias_scale_init=0.0, **values), [pad(rows()[:1])])
    large = sink_attention(model_of(backbone, sink_bias_scale_init=30.0, **values), [pad(rows()[:1])])
    for layer in (0, 2):
        assert large.mean_between_sinks[layer] > none.mean_between_sinks[layer] + 0.3
        assert large.mean_to_sinks[layer] > none.mean_to_sinks[layer]
    assert large.mean_between_sinks[0] > 0.9


def test_several_signals_and_cls_sinks():
    model = model_of("bert", sink_signal=["recency", "feedback"])
    measured = sink_attention(model, [batch_of(model.config)])
    np.testing.assert_allclose(measured.to_sinks, reference(model, rows(2))[0], atol=3e-6)
    model = model_of("bert", sink_kind="cls")
    batch = batch_of(model.config)
    measured = sink_attention(model, [batch])
    assert measured.num_sinks.tolist() == [3, 1, 0]
    with torch.no_grad():
        last = model(**batch, output_attentions=True).attentions[-1]
    expected = last[0, :, :13][..., [3, 6, 9]].sum(-1).mean()
    assert measured.to_sinks[0, -1] == pytest.approx(float(expected), abs=3e-6)


def test_model_without_sinks():
    model = model_of("qwen2", sink_kind="none")
    batch = batch_of(model.config)
    measured = sink_attention(model, [batch])
    assert (measured.to_sinks == 0).all()
    assert np.isnan(measured.mean_between_sinks).all()
    assert math.isnan(measured.mean_uniform_between_sinks)
    assert measured.num_without_sinks == 3
    del batch["sink_buckets"], batch["attention_mask"]
    assert sink_attention(model, [batch]).num_tokens.tolist() == [13, 13, 13]


def test_filler_rows_are_left_out():
    model = model_of("bert")
    batch = batch_of(model.config)
    whole = sink_attention(model, [batch])
    part = sink_attention(model, [{**batch, "labels": torch.tensor([1.0, -100.0, 0.0])}])
    np.testing.assert_array_equal(part.to_sinks, whole.to_sinks[[0, 2]])
    assert part.num_tokens.tolist() == [13, 5]
    with pytest.raises(ValueError, match="no rows to measure"):
        sink_attention(model, [{**batch, "labels": torch.full((3,), -100.0)}])


@pytest.mark.parametrize("backbone", BACKBONES)
def test_model_is_left_as_it_was(backbone):
    """sdpa and training mode come back, dropout does not act, and no hook or graph stays."""
    torch.manual_seed(0)
    dropout = {} if backbone.startswith("qwen") else {"attention_probs_dropout_prob": 0.5}
    config = sink_config(backbone, sink_bias_dropout=0.5)
    for key, value in dropout.items():
        setattr(config.text_config, key, value)
    model = CTRSinkForCTR(config)
    model.train()
    model.head.eval()
    modes = [module.training for module in model.modules()]
    batch = batch_of(config)
    first, second = (sink_attention(model, [batch]) for _ in range(2))
    np.testing.assert_array_equal(first.to_sinks, second.to_sinks)
    assert [module.training for module in model.modules()] == modes
    assert model.model.language_model.config._attn_implementation == "sdpa"
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    assert hooks == 0
    model.eval()
    with torch.no_grad():
        assert model(**batch).attentions is None
    eager = model_of(backbone, sink_bias_dropout=0.5)
    np.testing.assert_allclose(sink_attention(eager, [batch]).to_sinks, first.to_sinks, atol=1e-5)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_one_layer_is_held_at_a_time(backbone):
    model = model_of(backbone, num_sink_buckets=10)
    language_model = model.model.language_model
    if backbone.startswith("qwen"):
        modules = [layer.self_attn for layer in language_model.layers]
    else:
        modules = [layer.attention.self for layer in language_model.encoder.layer]
    made, alive = [], []

    def hook(module, args, output):
        alive.append(sum(reference() is not None for reference in made))
        made.append(weakref.ref(output[1]))

    for module in modules:
        module.register_forward_hook(hook)
    sink_attention(model, [batch_of(model.config)] * 2)
    assert alive == [0] * 6


def test_half_precision_model():
    torch.manual_seed(0)
    model = CTRSinkForCTR(sink_config("qwen2")).eval()
    full = sink_attention(model, [batch_of(model.config)])
    half = sink_attention(model.bfloat16(), [batch_of(model.config)])
    np.testing.assert_allclose(half.to_sinks, full.to_sinks, atol=0.03)


@pytest.mark.parametrize("model_type", ["roberta-prelayernorm", "gpt_neox"])
def test_backbones_whose_attention_modules_are_not_known(model_type):
    model = model_of(model_type, "sdpa", sink_bias_layers=[])
    batch = batch_of(model.config, "left")
    measured = sink_attention(model, [batch])
    model.model.language_model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(**batch, output_attentions=True).attentions
    for index, layer in enumerate(attentions):
        expected = layer[0][..., [3, 6, 9]].sum(-1)  # row 0 fills the batch's width
        assert measured.to_sinks[0, index] == pytest.approx(float(expected.mean()), abs=3e-6)
        assert measured.between_sinks[0, index] == pytest.approx(float(expected[:, [3, 6, 9]].mean()), abs=3e-6)
    even = 3 / 13
    if model_type == "gpt_neox":
        even = sum(((q >= 3) + (q >= 6) + (q >= 9)) / (q + 1) for q in range(13)) / 13
    assert measured.uniform_to_sinks[0] == pytest.approx(even)


def test_errors():
    model = model_of("bert")
    batch = batch_of(model.config)
    with pytest.raises(ValueError, match="got Linear"):
        sink_attention(torch.nn.Linear(2, 2), [batch])
    with pytest.raises(ValueError, match="needs input_ids, got the keys sink_buckets"):
        sink_attention(model, [{"sink_buckets": batch["sink_buckets"]}])
    with pytest.raises(ValueError, match="no rows to measure"):
        sink_attention(model, [])
    for options, message in (
        ({"row": 3}, "row=3 is out of range: the batch has 3 rows; use -3 to 2"),
        ({"row": 0, "layer": 3}, "layer=3 is out of range: the language model has 3 layers"),
        ({"row": 0, "layer": -4}, "layer=-4 is out of range"),
        ({"row": 0, "head": 4}, "head=4 is out of range: the language model has 4 heads"),
        ({"row": 0, "head": "max"}, "head='max' is out of range"),
    ):
        with pytest.raises(ValueError, match=message):
            attention_map(model, batch, **options)


def test_a_language_model_that_stays_at_its_attention_is_an_error(monkeypatch):
    model = model_of("bert", "sdpa")
    monkeypatch.setattr(model.model.language_model, "set_attn_implementation", lambda implementation: None)
    with pytest.raises(ValueError, match=r'cannot switch to eager attention.*attn_implementation="eager"'):
        sink_attention(model, [batch_of(model.config)])


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_map_is_the_models_attention(backbone, side):
    model = model_of(backbone)
    batch = batch_of(model.config, side)
    with torch.no_grad():
        attentions = torch.stack(model(**batch, output_attentions=True).attentions)  # (L, B, A, N, N)
    part = slice(5, 13) if side == "left" else slice(0, 8)
    full = attentions[:, 1, :, part, part]
    for layer, head, expected in (
        (None, "mean", full.mean((0, 1))),
        (1, "mean", full[1].mean(0)),
        (-1, 2, full[2, 2]),
        (None, 0, full[:, 0].mean(0)),
    ):
        found = attention_map(model, batch, 1, layer, head)
        np.testing.assert_allclose(found.weights, expected.numpy(), atol=3e-6)
        np.testing.assert_allclose(found.weights.sum(1), 1.0, atol=1e-5)
        assert found.layer == ("mean" if layer is None else layer % 3)
        assert found.head == head
    ids, buckets, target = rows()[1]
    assert found.tokens == [str(number) for number in ids.tolist()]
    assert found.is_sink.tolist() == (buckets[:, 0] >= 0).tolist()
    assert found.is_target.tolist() == target.tolist()
    assert found.buckets[4] == (int(buckets[4, 0]),)
    assert found.buckets[3] == ()


@pytest.mark.parametrize("kind", ["bert", "qwen"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_labels_stand_at_their_tokens(kind, side):
    """Sinks carry the sink token's text, and the target's labels spell the target."""
    tokenizer = make(kind)
    tokenizer.padding_side = side
    processor = CTRSinkProcessor(tokenizer, sink_signal=["recency", "feedback"], feedback="sink")
    history = [{"text": "Heat (1995)", "time": 1, "feedback": "liked"}, {"text": "Alien (1979)", "time": 2}]
    batch = processor(
        histories=[[], history], targets=[{"text": "Casino"}, {"text": "Toy Story"}], times=[9, 9], return_tensors="pt"
    )
    model_type = "bert" if kind == "bert" else "qwen2"
    torch.manual_seed(0)
    config = sink_config(model_type, sink_signal=["recency", "feedback"])
    values = {**config.text_config.to_dict(), "vocab_size": len(processor.tokenizer), "max_position_embeddings": 128}
    model = CTRSinkForCTR(type(config)(text_config=values, sink_signal=["recency", "feedback"])).eval()
    shown = attention_map(model, batch, 1, tokenizer=processor)
    sinks = [place for place, text in enumerate(shown.tokens) if text == "[SINK]"]
    assert np.flatnonzero(shown.is_sink).tolist() == sinks
    assert [shown.buckets[place] for place in sinks] == [(1, 2), (0, 0)]
    spelled = "".join(text.removeprefix("##") for text, is_target in zip(shown.tokens, shown.is_target) if is_target)
    assert spelled.replace(" ", "").lower() == "toystory"
    before = "".join(text.removeprefix("##") for text in shown.tokens[: sinks[0]]).replace(" ", "").lower()
    assert before.rstrip(";,.").endswith("heat(1995)")


def test_labels_of_characters_that_are_cut_into_bytes():
    tokenizer = make("qwen")
    ids = tokenizer("电影 Heat 🎬")["input_ids"]
    labels = token_labels(tokenizer, ids)
    assert len(labels) == len(ids)
    assert "".join(label for label in labels if label != "·") == "电影 Heat 🎬"
    assert "·" in labels  # the film clapper is in no training text, so it is several tokens
    assert token_labels(tokenizer, ids[-1:]) == ["\ufffd"]  # half a character
    assert token_labels(tokenizer, []) == []


@pytest.mark.parametrize("backbone", ["bert", "qwen2"])
@pytest.mark.parametrize("layout", ["fields", "split"])
def test_layouts_of_several_texts(layout, backbone):
    """Eq. 7-8 by loops over the attention of the half that sinks pass: tokens of fields, or elements."""
    from test_fields_layout import batch_of as fields_batch
    from test_fields_layout import fields_of

    model = model_of(
        backbone, layout=layout, sink_bias_layers="all", sink_bias_scale_init=2.5, text={"num_hidden_layers": 4}
    )
    batch = fields_batch(fields_of())
    if layout == "split":  # every sink and every run of tokens between sinks and fields is an element
        starts = torch.ones_like(batch["field_ids"], dtype=torch.bool)
        is_sink = batch["sink_buckets"][..., 0] >= 0
        same = batch["field_ids"][:, 1:] == batch["field_ids"][:, :-1]
        starts[:, 1:] = is_sink[:, 1:] | is_sink[:, :-1] | ~same
        number = starts.long().cumsum(1) - 1
        batch["field_ids"] = number.masked_fill(batch["attention_mask"] == 0, -1)
    measured = sink_attention(model, [batch])
    assert measured.num_layers == 2
    weights, hooks = [], []
    own = slice(2) if layout == "fields" else slice(2, 4)
    for attention in model.model.self_attentions()[own]:
        hooks.append(attention.register_forward_hook(lambda m, args, out: weights.append(out[1])))
    with torch.no_grad():
        outputs = model.model(**{key: value for key, value in batch.items() if key != "target_mask"})
    for row in range(3):
        if layout == "fields":
            sinks = [i for i, bucket in enumerate(batch["sink_buckets"][row, :, 0].tolist()) if bucket >= 0]
            fields = batch["field_ids"][row].tolist()
            places = [i for i, field in enumerate(fields) if field >= 0]
        else:
            sinks = torch.nonzero(outputs.is_sink[row])[:, 0].tolist()
            places = torch.nonzero(outputs.mask[row])[:, 0].tolist()
            fields = [0] * len(outputs.mask[row])
        even = []
        for query in places:
            seen = [k for k in places if fields[k] == fields[query] and (backbone == "bert" or k <= query)]
            even.append(sum(k in sinks for k in seen) / len(seen))
        assert measured.uniform_to_sinks[row] == pytest.approx(sum(even) / len(even))
        for layer, weight in enumerate(weights):
            mean = weight[row].mean(0)
            share = [sum(float(mean[query, sink]) for sink in sinks) for query in places]
            assert measured.to_sinks[row, layer] == pytest.approx(sum(share) / len(share), abs=3e-6)
            between = [value for query, value in zip(places, share) if query in sinks]
            assert measured.between_sinks[row, layer] == pytest.approx(sum(between) / len(between), abs=3e-6)
    if layout == "fields":
        assert attention_map(model, batch, 0, layer=-1).weights.shape == (19, 19)
        with pytest.raises(ValueError, match="has 2 layers"):
            attention_map(model, batch, 0, layer=2)
        return
    assert measured.first_layer == 2  # the layers are numbered as in the language model
    for row in range(3):
        count = int(outputs.mask[row].sum())
        for layer, values in (
            (2, weights[0]),
            (3, weights[1]),
            (-1, weights[1]),
            (None, (weights[0] + weights[1]) / 2),
        ):
            found = attention_map(model, batch, row, layer)
            np.testing.assert_allclose(found.weights, values[row, :, :count, :count].mean(0), atol=1e-6)
            assert found.layer == ("mean" if layer is None else layer % 4)
        assert found.is_sink.tolist() == outputs.is_sink[row, :count].tolist()
        assert found.is_target.tolist() == [False] * (count - 1) + [True]
        texts = [
            " ".join(map(str, batch["input_ids"][row][batch["field_ids"][row] == n].tolist())) for n in range(count)
        ]
        assert found.tokens == texts
        sinks = batch["sink_buckets"][row, :, 0]
        assert [entry for entry in found.buckets if entry] == [(int(b),) for b in sinks[sinks >= 0]]
    with pytest.raises(
        ValueError, match=r"layer=1 is out of range.*has 2 layers that sinks pass; use 2 to 3, or -2 to -1"
    ):
        attention_map(model, batch, 0, layer=1)


def test_even_attention_of_a_history_that_does_not_see_the_target():
    model = model_of("bert", encoder_prefix=True)
    measured = sink_attention(model, [batch_of(model.config, "left")])
    for row, (ids, buckets, target) in enumerate(rows()):
        first, sinks = int(target.long().argmax()), int((buckets[:, 0] >= 0).sum())
        seen = [first] * first + [len(ids)] * (len(ids) - first)
        assert measured.uniform_to_sinks[row] == pytest.approx(sum(sinks / n for n in seen) / len(ids))
