"""What holds for every type of language model that carries the sink bias."""

import copy
import math
import pickle
import warnings
from operator import attrgetter

import pytest
import torch
from test_equations import reference_bias
from tiny_models import DECODERS, ENCODERS, batch_of, pad, rows, sink_config, text_config
from transformers.pytorch_utils import Conv1D

from lmctr import CTRSinkConfig, CTRSinkForCTR
from lmctr.models.ctr_sink import sink_mask
from lmctr.models.ctr_sink.backbone import turning_length
from lmctr.models.ctr_sink.configuration_ctr_sink import BACKBONES
from lmctr.serving import precision
from lmctr.training.lora import add_lora, merge_lora

TYPES = (*ENCODERS, *DECODERS)
LABELS = torch.tensor([1.0, 0.0, 1.0])
every_type = pytest.mark.parametrize("backbone", TYPES)


def model_of(backbone, implementation=None, **values):
    torch.manual_seed(0)
    return CTRSinkForCTR(sink_config(backbone, implementation, **values)).eval()


def score(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def layers_of(model):
    return attrgetter(model.config.backbone_spec.layers_path)(model.model.language_model)


def test_the_list_is_complete():
    assert set(TYPES) == set(BACKBONES)
    assert {kind for kind in TYPES if sink_config(kind, None).is_causal} == set(DECODERS)


@every_type
@pytest.mark.parametrize("layer", [1, 2])  # where types have sliding windows: a layer with one, and one without
def test_attention_is_the_backbones_own_times_the_exponential_of_the_bias(backbone, layer):
    """Eq. 9-11 in float64: softmax(S + s B) is softmax(S) exp(s B), normalised; B by loops over heads and sinks."""
    model = model_of(backbone, "eager", sink_bias_layers=[layer], sink_bias_scale_init=2.5).double()
    plain = model_of(backbone, "eager", sink_bias_layers=[]).double()
    plain.load_state_dict(model.state_dict(), strict=False)
    torch.nn.init.normal_(model.model.sink_bias.layers[0].norm.weight)
    torch.nn.init.normal_(model.model.sink_bias.layers[0].norm.bias)
    entered = []
    attention = attrgetter(model.config.backbone_spec.attention_path)(layers_of(model)[layer])
    attention.register_forward_pre_hook(
        lambda module, args, kwargs: entered.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    moved = 0.0
    for row in rows():
        ids, buckets, _ = row
        with torch.no_grad():
            found, own = (m(**pad([row]), output_attentions=True).attentions[layer][0] for m in (model, plain))
        sinks = [i for i in range(len(ids)) if buckets[i, 0] >= 0]
        factor = torch.ones(len(ids), len(ids), dtype=torch.float64)
        with torch.no_grad():
            bias = reference_bias(model.model.sink_bias.layers[0], entered[-1][0], sinks, backbone in DECODERS)
        for (i, j), value in bias.items():
            factor[i, j] = math.exp(2.5 * value)
        expected = own * factor / (own * factor).sum(-1, keepdim=True)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)  # eager softmax runs in float32
        moved = max(moved, (found - own).abs().max().item())
    assert moved > 1e-2


@every_type
def test_a_pickled_and_a_copied_model_score_alike(backbone):
    model = model_of(backbone, sink_bias_layers="all")
    batch = batch_of(model.config)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(score(again, batch), score(model, batch))
        torch.nn.init.normal_(again.model.sink_bias.layers[0].query.weight)  # its own bias, not the first model's
        assert not torch.equal(score(again, batch), score(model, batch))


@every_type
def test_padding_and_batch_change_no_score(backbone):
    model = model_of(backbone, sink_bias_layers="all")
    right = score(model, batch_of(model.config))
    torch.testing.assert_close(score(model, batch_of(model.config, "left", extra=3)), right, atol=1e-5, rtol=0)
    alone = torch.cat([score(model, pad([row])) for row in rows()])
    torch.testing.assert_close(alone, right, atol=1e-5, rtol=0)
    if "sdpa" in (used := model.model.language_model.config._attn_implementation):
        eager = model_of(backbone, "eager", sink_bias_layers="all")
        torch.testing.assert_close(score(eager, batch_of(model.config)), right, atol=1e-4, rtol=0)
    else:
        assert used == "eager"


@pytest.mark.parametrize("backbone", DECODERS)
def test_a_prefix_does_not_see_what_follows(backbone):
    model = model_of(backbone, sink_bias_layers="all")
    batch = {name: value for name, value in pad(rows()[:1]).items() if name != "target_mask"}
    changed = {name: value.clone() for name, value in batch.items()}
    changed["sink_buckets"][0, 9] = (batch["sink_buckets"][0, 9] + 1) % 10
    with torch.no_grad():
        before, after = (model.model(**b).last_hidden_state[0] for b in (batch, changed))
    assert torch.equal(before[:9], after[:9])
    assert not torch.equal(before[9:], after[9:])


@every_type
def test_training_with_recomputed_layers_in_halves_and_saved(backbone, tmp_path):
    """Every parameter of the sinks gets the same gradient with activation checkpointing; weights come back, and in bfloat16 as cast."""
    model = model_of(backbone, sink_bias_layers="all", sink_bias_scale_init=1.0).train()
    batch = batch_of(model.config)
    grads = []
    for recomputed in (False, True):
        if recomputed:
            if not model.supports_gradient_checkpointing:
                continue  # MPNet's own class cannot
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.zero_grad()
        model(**batch, labels=LABELS).loss.backward()
        named = {name: p.grad for name, p in model.named_parameters() if "language_model" not in name}
        assert [name for name, grad in named.items() if grad is None or not grad.abs().sum() > 0] == []
        grads.append(named)
    for name, grad in grads[-1].items():
        torch.testing.assert_close(grad, grads[0][name], atol=1e-5, rtol=1e-4)
    model = model.eval()
    model.save_pretrained(tmp_path)
    again = CTRSinkForCTR.from_pretrained(tmp_path)
    torch.testing.assert_close(score(again, batch), score(model, batch), atol=1e-6, rtol=0)
    half = CTRSinkForCTR.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.isfinite(score(half, batch)).all()
    assert torch.equal(
        score(model.bfloat16(), batch), score(half, batch)
    )  # positions of rotary embeddings are not rounded


@pytest.mark.parametrize("backbone", ["deberta-v2", "bert", "qwen2"])
def test_reentrant_checkpoints_have_the_same_gradients_or_are_refused(backbone):
    model = model_of(backbone, sink_bias_layers="all", sink_bias_scale_init=1.0).train()
    if backbone == "deberta-v2":
        with pytest.raises(ValueError, match="use_reentrant=true does not work with a deberta-v2"):
            model.gradient_checkpointing_enable({"use_reentrant": True})
        return
    grads = []
    for enable in (model.gradient_checkpointing_disable, model.gradient_checkpointing_enable):
        enable(*[{"use_reentrant": True}] * len(grads))
        model.zero_grad()
        model(**batch_of(model.config), labels=LABELS).loss.backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-4)


@every_type
@pytest.mark.parametrize("side", ["left", "right", None])
def test_sinks_apart_from_the_fused_attention_have_the_same_gradients(backbone, side, monkeypatch):
    """Without attention dropout the rows of sinks are computed beside the others; eager attention takes the whole mask."""
    apart, attend = [], sink_mask._attend
    monkeypatch.setattr(sink_mask, "_attend", lambda *args, **kwargs: apart.append(1) or attend(*args, **kwargs))

    def gradients(implementation, least_width=64, **text):
        model = model_of(backbone, implementation, sink_bias_layers=[0, 2], sink_bias_scale_init=2.5, text=text)
        monkeypatch.setattr(sink_mask, "_LEAST_HEAD_DIM", least_width)
        batch = pad(rows()[:1]) if side is None else batch_of(model.config, side, extra=2)
        apart.clear()
        model.train()(**batch, labels=LABELS[: len(batch["input_ids"])]).loss.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, len(apart)

    (found, times), (whole, never), (expected, _) = gradients(None), gradients(None, least_width=0), gradients("eager")
    assert times == (0 if backbone in ("deberta-v2", "gemma2", "mpnet") else 2)  # these have no fused attention
    assert never == 0
    assert {"model.sink_bias.layers.1.key.weight", "model.sink_embedding.projection.weight"} <= expected.keys()
    for other in (found, whole):
        torch.testing.assert_close(other, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("backbone", ["bert", "qwen2"])
def test_sinks_train_where_the_default_type_is_float64(backbone):
    model = model_of(backbone, sink_bias_layers=[0, 2], sink_bias_scale_init=2.5).double().train()
    losses = []
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        try:
            losses.append(model(**batch_of(model.config), labels=LABELS.double()).loss)
            losses[-1].backward()
        finally:
            torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(losses[0].double(), losses[1].double(), atol=1e-6, rtol=0)


@every_type
def test_lora_adapts_every_linear_layer_and_trains_the_sinks_whole(backbone):
    model = model_of(backbone, sink_bias_layers="all", sink_bias_scale_init=1.0)
    linear = sum(type(part).__name__ in ("Linear", "Conv1D") for part in model.model.language_model.modules())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="fan_in_fan_out")  # PEFT's, where a matrix stands the other way round
        tuned = add_lora(model, {"r": 4, "dropout": 0.0}).train()
    for name, value in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.02)  # zero at first, and no gradient would reach the other factor
    batch = batch_of(model.config)
    tuned(**batch, labels=LABELS).loss.backward()
    trained = {name: p.grad for name, p in tuned.named_parameters() if p.requires_grad}
    assert {"sink_embedding", "sink_bias", "head"} <= {part for name in trained for part in name.split(".")}
    assert sum("lora_A" in name for name in trained) == linear >= 3 * 4
    assert [name for name, grad in trained.items() if grad is None or not grad.abs().sum() > 0] == []
    with_adapters = score(tuned.eval(), batch)
    torch.testing.assert_close(score(merge_lora(tuned), batch), with_adapters, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not precision.int8_is_exact(), reason="this processor multiplies eight bits inexactly")
@every_type
def test_the_matrices_are_held_in_eight_bits(backbone):
    model = model_of(backbone, sink_bias_layers="all")
    batch = batch_of(model.config)
    expected = score(model, batch)
    matrices = {name: one for name, one in model.named_modules() if isinstance(one, (torch.nn.Linear, Conv1D))}
    precision.in_precision(model, "int8")
    found = {name: one for name, one in model.named_modules() if isinstance(one, precision.Int8Linear)}
    assert set(found) == {name for name in matrices if "language_model" in name}
    for name, layer in found.items():
        inputs = torch.randn(20, layer.in_features)
        with torch.no_grad():
            exact = matrices[name](inputs)
        assert (layer(inputs) - exact).norm() < 0.02 * exact.norm()
    assert 0 < (score(model, batch) - expected).abs().max() < 0.2
    assert torch.equal(score(copy.deepcopy(model), batch), score(model, batch))


def test_positions_are_counted_for_every_type():
    """The longest text that a model takes is the longest that its position table serves."""
    for backbone in TYPES:
        model = model_of(backbone)
        limit = model.model.max_positions
        assert limit == 62 if backbone in ("roberta", "xlm-roberta", "camembert", "mpnet") else limit == 64
        ids = torch.full((1, limit + 1), 7)
        assert torch.isfinite(score(model, {"input_ids": ids[:, :limit]})).all()
        with pytest.raises(ValueError, match=f"{limit + 1} tokens, but the backbone has positions for {limit}"):
            model(ids)


def test_new_sinks_are_as_large_as_words_where_words_are_scaled():
    for backbone in ("gemma", "gemma2", "gemma3_text", "llama"):
        model = model_of(backbone, sink_embedding_dim=64)
        words = model.get_input_embeddings()(torch.arange(5, 60))
        sinks = model.model.sink_embedding(torch.arange(10)[:, None])
        assert 0.7 < (sinks.std() / words.std()).item() < 1.4


def test_the_width_of_the_bias_is_the_backbones_or_the_authors():
    own = model_of("qwen3").model.sink_bias.layers[0]
    authors = model_of("qwen3", sink_bias_head_dim=8).model.sink_bias.layers[0]
    assert own.query.weight.shape == own.key.weight.shape == (4 * 16, 32)
    assert authors.query.weight.shape == authors.key.weight.shape == (32, 32)
    assert (own.scaling, authors.scaling) == (16**-0.5, 8**-0.5)


@pytest.mark.parametrize(
    ("backbone", "key"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}),
        ("qwen2", {"is_causal": False}),
        ("gpt2", {"is_causal": False}),
    ],
)
def test_a_decoder_that_looks_both_ways_is_an_encoder(backbone, key):
    model = model_of(backbone, text=key, sink_bias_layers=[0, 2])
    assert not model.config.is_causal
    assert model.config.resolved_sink_bias_scale_init == 10.0
    together = score(model, batch_of(model.config, "left", extra=2))
    alone = torch.cat([score(model, pad([row])) for row in rows()])  # without padding no mask says who sees whom
    torch.testing.assert_close(alone, together, atol=2e-5, rtol=0)


def test_backbones_without_the_bias_are_refused_until_asked_for():
    other = {"model_type": "gpt_neox", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    with pytest.raises(
        ValueError, match=r"sink_bias_layers=None, but .*gemma3_text.* 'gpt_neox'; set sink_bias_layers=\[\]"
    ):
        CTRSinkConfig(text_config=other)
    assert CTRSinkConfig(text_config=other, sink_kind="cls").resolved_sink_bias_layers == ()
    with pytest.raises(ValueError, match=r"'t5', an encoder-decoder.*for example of type bert"):
        CTRSinkConfig(text_config={"model_type": "t5"}, sink_bias_layers=[])
    with pytest.raises(ValueError, match=r"'gemma3', which has no hidden_size of its own"):
        CTRSinkConfig(text_config={"model_type": "gemma3"}, sink_bias_layers=[])
    heads = text_config("qwen2", num_key_value_heads=8)
    with pytest.raises(ValueError, match=r"num_attention_heads=4 and num_key_value_heads=8, which must divide it"):
        CTRSinkConfig(text_config=heads)
    plain = text_config("deberta-v2", relative_attention=False, position_biased_input=True)
    with pytest.raises(ValueError, match=r"deberta-v2 backbone without relative_attention.*sink_bias_layers=\[\]"):
        CTRSinkForCTR(CTRSinkConfig(text_config=plain))


def test_rotated_heads_of_an_odd_width_are_refused():
    small = {"model_type": "qwen2", "hidden_size": 32, "vocab_size": 50}
    with pytest.raises(
        ValueError, match="num_attention_heads=32: heads of width 1, which rotary positions of a qwen2"
    ):
        CTRSinkConfig(text_config=small)
    assert CTRSinkConfig(text_config=small | {"num_attention_heads": 4, "num_key_value_heads": 4})


@pytest.mark.parametrize("backbone", ["llama", "phi3", "gemma3_text"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_longrope_turns_each_row_by_its_own_length(backbone, side):
    """transformers turns all rows of a batch as its longest one: here one has 13 tokens, the others 8 and 5."""
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    edge = {"original_max_position_embeddings": 10}
    if backbone == "gemma3_text":  # whose types of layers turn by themselves
        rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, **edge}
        text = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
        model = copy.deepcopy(model_of(backbone, text={"rope_parameters": text}))
    else:
        model = copy.deepcopy(model_of(backbone, text={"rope_parameters": rope | edge, **edge}))
    assert turning_length(model.config.text_config) == 10
    batch = batch_of(model.config, side)
    if backbone == "gemma3_text":
        stock = type(model.model.language_model)(model.config.text_config)
        try:
            for _ in range(2):
                stock(input_ids=torch.ones(1, 13, dtype=torch.long))
        except UnboundLocalError:  # 5.17
            pytest.skip("in this version of transformers longrope by type of layer fails from a second long row on")
    with torch.no_grad():
        found = model(**batch).logits
        for row, real in enumerate(batch["attention_mask"].bool()):
            alone = model(**{name: values[row : row + 1, real] for name, values in batch.items()}).logits
            torch.testing.assert_close(found[row : row + 1], alone, atol=1e-5, rtol=1e-5)
