"""Eq. 4 and Eq. 9-11 against plain float64 references, written with loops over rows, heads and sinks."""

import math

import pytest
import torch
from tiny_models import BACKBONES, batch_of, rows, sink_config
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from lmctr import CTRSinkForCTR


def double_model(backbone, **values):
    torch.manual_seed(0)
    return CTRSinkForCTR(sink_config(backbone, "eager", **values)).eval().double()


def layer_norm(x, norm):
    mean = x.mean()
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean() + norm.eps) * norm.weight + norm.bias


def reference_bias(layer, hidden, sinks, causal):
    """B of Eq. 10 as a dict (sink i, sink j) -> value, for one row; `hidden` (N, H) enters the attention."""
    heads = layer.num_heads
    queries = {s: layer.query.weight @ layer_norm(hidden[s], layer.norm) + layer.query.bias for s in sinks}
    keys = {s: layer.key.weight @ layer_norm(hidden[s], layer.norm) + layer.key.bias for s in sinks}
    width = len(next(iter(queries.values()))) // heads if sinks else 0
    bias = {}
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        for i in sinks:
            seen = [j for j in sinks if not causal or j <= i]
            scores = {j: math.exp(float(queries[i][part] @ keys[j][part]) / math.sqrt(width)) for j in seen}
            for j in seen:
                bias[i, j] = bias.get((i, j), 0.0) + scores[j] / sum(scores.values()) / heads
    return bias


def projections(backbone, model, attention, hidden):
    """Queries and keys (heads, N, d) of the backbone's own attention for one row."""
    length = len(hidden)
    if backbone in ("bert", "roberta"):
        heads = attention.num_attention_heads
        return (p(hidden).view(length, heads, -1).transpose(0, 1) for p in (attention.query, attention.key))
    query, key = (p(hidden).view(length, -1, attention.head_dim) for p in (attention.q_proj, attention.k_proj))
    if backbone == "qwen3":
        query, key = attention.q_norm(query), attention.k_norm(key)
    rotary = model.model.language_model.rotary_emb(hidden[None], torch.arange(length)[None])
    query, key = apply_rotary_pos_emb(query.transpose(0, 1)[None], key.transpose(0, 1)[None], *rotary)
    return query[0], key[0].repeat_interleave(query.shape[1] // key.shape[1], 0)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_softmax_of_scores_plus_scaled_bias(backbone, causal):
    """Eq. 9-11, in a padded batch: A = softmax(QK^T / sqrt(d) + mask + s * scatter(B)) at every enhanced layer."""
    model = double_model(backbone, sink_bias_layers=[0, 2], sink_bias_causal=causal, sink_bias_scale_init=2.5)
    is_decoder = backbone.startswith("qwen")
    attentions_of = {}
    language_model = model.model.language_model
    layers = language_model.layers if is_decoder else language_model.encoder.layer
    for index, layer in enumerate(layers):
        attention = layer.self_attn if is_decoder else layer.attention.self
        attention.register_forward_pre_hook(
            lambda m, args, kwargs, index=index: attentions_of.__setitem__(
                index, (m, args[0] if args else kwargs["hidden_states"])
            ),
            with_kwargs=True,
        )
    batch = batch_of(model.config)
    with torch.no_grad():
        attentions = model(**batch, output_attentions=True).attentions
        for row, (ids, buckets, _) in enumerate(rows()):
            sinks = [i for i in range(len(ids)) if buckets[i, 0] >= 0]
            for index in range(3):
                attention, hidden = attentions_of[index]
                hidden = hidden[row, : len(ids)]
                query, key = projections(backbone, model, attention, hidden)
                scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
                if index in (0, 2):
                    layer = model.model.sink_bias.layers[0 if index == 0 else 1]
                    for (i, j), value in reference_bias(layer, hidden, sinks, is_decoder and causal).items():
                        scores[:, i, j] += 2.5 * value
                if is_decoder:
                    for i in range(len(ids)):
                        scores[:, i, i + 1 :] = -math.inf
                expected = scores.softmax(-1)
                found = attentions[index][row, :, : len(ids), : len(ids)]
                torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)  # eager softmax runs in float32
                assert attentions[index][row, :, : len(ids), len(ids) :].sum() == 0


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_dropout_leaves_out_entries_of_the_bias(rate):
    """In training an entry of B is 0 or 1 / (1 - rate) of what it is without; all heads lose it together."""
    from lmctr.models.ctr_sink.sink_attention import locate_sinks

    torch.manual_seed(0)
    model = CTRSinkForCTR(sink_config("bert", sink_bias_layers=[0], sink_bias_dropout=rate))
    layer, hidden = model.model.sink_bias.layers[0], torch.randn(4, 30, 32)
    is_sink = torch.arange(30).expand(4, -1) % 2 == 0
    sinks = locate_sinks(is_sink, 15)
    with torch.no_grad():
        whole, dropped = layer.eval()(hidden, sinks), layer.train()(hidden, sinks)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / (1 - rate))
    assert abs(1 - kept.sum() / (whole != 0).sum() - rate) < 0.06
    assert (whole != 0).sum() == 4 * 15 * 15


@pytest.mark.parametrize("signals", [["recency"], ["recency", "feedback", "elapsed"]])
def test_sink_embedding_is_linear_of_summed_tables(signals):
    """Eq. 4: the input embedding at a sink is W (sum_s E_s[b_s]) + c; elsewhere it is the backbone's."""
    model = double_model("bert", sink_signal=signals)
    seen = {}
    model.model.language_model.register_forward_pre_hook(lambda m, args, kwargs: seen.update(kwargs), with_kwargs=True)
    batch = batch_of(model.config)
    with torch.no_grad():
        model(**batch)
    sink, words = model.model.sink_embedding, model.model.language_model.embeddings.word_embeddings
    for row, (ids, buckets, _) in enumerate(rows(len(signals))):
        for place, token in enumerate(ids.tolist()):
            if buckets[place, 0] < 0:
                expected = words.weight[token]
            else:
                total = sum(table.weight[buckets[place, s]] for s, table in enumerate(sink.tables))
                expected = sink.projection.weight @ total + sink.projection.bias
            torch.testing.assert_close(seen["inputs_embeds"][row, place], expected, atol=1e-12, rtol=0)


def test_new_sinks_start_at_the_scale_of_word_embeddings():
    torch.manual_seed(0)
    for signals in (["recency"], ["recency", "feedback"]):
        model = CTRSinkForCTR(sink_config("bert", sink_signal=signals, sink_embedding_dim=64, initializer_range=0.02))
        with torch.no_grad():
            sinks = model.model.sink_embedding(torch.randint(0, 10, (200, len(signals))))
        assert 0.014 < sinks.std().item() < 0.028


def test_float_and_bool_masks_give_the_same_biased_mask():
    from lmctr.models.ctr_sink.sink_attention import add_bias_to_mask

    bias = torch.randn(2, 5, 5)
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    allowed[1, :, :, 0] = False
    additive = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    from_bool, from_float = add_bias_to_mask(bias, allowed, True), add_bias_to_mask(bias, additive, True)
    assert torch.equal(from_bool[allowed], bias[:, None][allowed])
    assert torch.equal(from_float[allowed], from_bool[allowed])
    assert (from_float[~allowed] < -1e37).all()
    assert (from_bool[~allowed] < -1e37).all()
    no_padding = torch.ones(5, 5, dtype=torch.bool).tril()
    assert torch.equal(
        add_bias_to_mask(bias, None, True), torch.where(no_padding, bias, torch.finfo(bias.dtype).min)[:, None]
    )
    assert torch.equal(add_bias_to_mask(bias, None, False), bias[:, None])
