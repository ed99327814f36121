"""Items encoded ahead: texts pass the lower half once, and training goes on from there."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from text_tokenizers import make as make_tokenizer
from tiny_models import text_config
from transformers import Pipeline

from lmctr import CTRSinkConfig, CTRSinkForCTR, CTRSinkProcessor
from lmctr.models.common.base import evaluation_mode
from lmctr.models.ctr_sink.field_store import FieldStore
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkModel
from lmctr.models.ctr_sink.split_layout import lower_parameters
from lmctr.runs.answers.served import ServedModel
from lmctr.runs.folder import RunFolder
from lmctr.runs.loading import load_run
from lmctr.serving import score
from lmctr.serving.precision import int8_is_exact
from lmctr.training.lora import add_lora, merge_lora
from lmctr.utils.files import read_json

TYPES = ("bert", "roberta", "qwen2", "llama")


def model_of(model_type, ahead, dropout=0.0, **values):
    torch.manual_seed(0)
    text = text_config(model_type, num_hidden_layers=4, vocab_size=500, max_position_embeddings=128)
    if model_type in ("bert", "roberta"):
        text |= {"hidden_dropout_prob": dropout}
    else:
        text |= {"attention_dropout": dropout}
    config = {"layout": "split", "items_ahead": ahead, "num_sink_buckets": 10, "sink_bias_dropout": 0.0} | values
    return CTRSinkForCTR(CTRSinkConfig(text_config=text, **config))


def batches_of(model_type, count=3):
    processor = CTRSinkProcessor(
        make_tokenizer(model_type if model_type in ("bert", "roberta") else "qwen"),
        layout="split",
        num_sink_buckets=10,
        num_behaviors=4,
    )
    words = ["Heat", "Casino", "Toy Story", "Alien (1979)", "Babe"]
    histories = [
        [[{"text": words[(i + row + k) % 5], "time": i} for i in range(k + 1)] for row in range(3)]
        for k in range(count)
    ]
    for k, rows in enumerate(histories):
        yield processor(rows, [words[(k + row) % 5] for row in range(3)], [99] * 3) | {
            "labels": torch.tensor([1.0, 0, 1])
        }


def count_encoded(monkeypatch):
    counts = []
    original = CTRSinkModel.encode_fields

    def counted(model, input_ids, attention_mask=None):
        counts.append((len(input_ids), model.training, torch.is_grad_enabled()))
        return original(model, input_ids, attention_mask)

    monkeypatch.setattr(CTRSinkModel, "encode_fields", counted)
    return counts


@pytest.mark.parametrize("model_type", TYPES)
def test_frozen_gives_the_outputs_and_gradients_of_reading_with_a_frozen_lower_half(model_type, monkeypatch):
    """Also under dropout: the lower half has none, where texts are read it has."""
    ahead, plain = model_of(model_type, "frozen").train(), model_of(model_type, None).train()
    plain.load_state_dict(ahead.state_dict())
    lower = {id(parameter) for parameter in lower_parameters(ahead.model)}
    assert 0 < len(lower) < len(list(ahead.model.language_model.parameters()))
    for parameter in ahead.parameters():
        assert parameter.requires_grad == (id(parameter) not in lower)
    counts = count_encoded(monkeypatch)
    for batch in batches_of(model_type):
        found, expected = ahead(**batch), plain(**batch)
        torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
        found.loss.backward()
        expected.loss.backward()
    for (name, one), other in zip(ahead.named_parameters(), plain.parameters(), strict=True):
        if one.requires_grad:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4, msg=name)
        else:
            assert one.grad is None
    stored = [size for size, training, grad in counts if not (training or grad)]
    assert sum(stored) == len(ahead.model.field_store)
    before = len(counts)
    ahead(**batch)
    with evaluation_mode(ahead):
        ahead(**batch)
    assert len(counts) == before  # nothing is read again, in evaluation neither


@pytest.mark.parametrize("model_type", TYPES)
def test_vectors_of_other_weights_are_not_used(model_type):
    model = model_of(model_type, "frozen").train()
    batch = next(batches_of(model_type))
    before = model(**batch).logits
    with torch.no_grad():
        for parameter in lower_parameters(model.model):
            parameter.mul_(1.3)
    plain = model_of(model_type, None)
    plain.load_state_dict(model.state_dict())
    found = model(**batch).logits
    assert (found - before).abs().max() > 1e-4
    torch.testing.assert_close(found, plain(**batch).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", TYPES)
def test_epoch_reads_targets_and_renews_histories_at_each_epoch(model_type, monkeypatch):
    model, plain = model_of(model_type, "epoch").train(), model_of(model_type, None).train()
    plain.load_state_dict(model.state_dict())
    batch = next(batches_of(model_type))
    torch.testing.assert_close(model(**batch).logits, plain(**batch).logits, atol=1e-5, rtol=1e-5)
    model(**batch).loss.backward()
    assert all(parameter.grad is not None for parameter in lower_parameters(model.model)[1:])
    with torch.no_grad():
        for parameter in lower_parameters(model.model):
            parameter.mul_(1.3)
    plain.load_state_dict(model.state_dict())
    stale = model(**batch).logits
    counts = count_encoded(monkeypatch)
    model(**batch)
    assert [size for size, *_ in counts] == [3]  # the targets alone
    assert (stale - plain(**batch).logits).abs().max() > 1e-4
    torch.testing.assert_close(model.eval()(**batch).logits, plain(**batch).logits, atol=1e-5, rtol=1e-5)
    model.train().begin_epoch()
    torch.testing.assert_close(model(**batch).logits, plain(**batch).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", ["qwen2", "llama"])
def test_the_final_norm_after_the_lower_half(model_type):
    """Against the layers by hand; the norm then belongs to the frozen half. Encoders have none of their own."""
    model = model_of(model_type, "frozen", field_norm=True).eval()
    backbone = model.model.language_model
    with torch.no_grad():
        backbone.norm.weight.uniform_(0.2, 2.0)
    assert not backbone.norm.weight.requires_grad
    ids = torch.tensor([[5, 9, 30, 7]])
    seen = []
    hook = backbone.layers[1].register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        vector = model.encode_fields(ids)[0]
    hook.remove()
    states = seen[0][0].double()
    normed = states / (states.pow(2).mean(-1, keepdim=True) + backbone.config.rms_norm_eps).sqrt()
    torch.testing.assert_close(vector.double(), (normed * backbone.norm.weight.double()).mean(0), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="field_norm=True is not accepted"):
        model_of("bert", None, field_norm=True)


def test_stored_vectors_have_no_dropout():
    model = model_of("bert", "frozen", dropout=0.5).train()
    batch = next(batches_of("bert"))
    model(**batch)
    stored = model.model.field_store._vectors.clone()
    other = model_of("bert", "frozen")
    other.load_state_dict(model.state_dict())
    other.eval()(**batch)
    torch.testing.assert_close(other.model.field_store._vectors[: len(stored)], stored[: len(other.model.field_store)])
    assert model.training


def test_lora_adapts_the_upper_half_only():
    model = model_of("qwen2", "frozen")
    wrapped = add_lora(model, {"r": 2, "alpha": 4, "dropout": 0.0})
    adapted = {name for name, parameter in wrapped.named_parameters() if "lora" in name}
    assert adapted
    assert all("layers.2." in name or "layers.3." in name for name in adapted)
    batch = next(batches_of("qwen2"))
    wrapped.train()(**batch).loss.backward()
    assert all(p.grad is not None for name, p in wrapped.named_parameters() if p.requires_grad)
    assert merge_lora(wrapped).config.items_ahead == "frozen"


def test_a_store_keeps_nothing_of_autocasts_precision():
    model, batch = model_of("qwen2", "frozen").eval(), next(batches_of("qwen2"))
    with torch.no_grad():
        before = model(**batch).logits
        model.model.field_store.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(**batch)
        assert torch.equal(model(**batch).logits, before)


def test_the_store_is_bounded_and_serves_training_after_inference():
    store, asked = FieldStore(max_bytes=4 * 2 * 5), []

    def encode(ids, mask):
        asked.append(len(ids))
        return (ids * mask).sum(1, keepdim=True).float().repeat(1, 2)

    for first in range(20):
        ids = torch.arange(first, first + 3)[:, None]
        with torch.inference_mode():
            found = store(encode, ids, torch.ones_like(ids))
        assert found[:, 0].tolist() == [first, first + 1, first + 2]
        assert len(store) <= 5
    assert sum(asked) < 60
    weight = torch.ones(2, requires_grad=True)
    (store(encode, ids, torch.ones_like(ids)) @ weight).sum().backward()
    assert weight.grad is not None


def test_values_that_do_not_apply():
    with pytest.raises(ValueError, match=r"items_ahead=.* is not accepted"):
        CTRSinkConfig(items_ahead="frozen")
    with pytest.raises(ValueError, match="items_ahead"):
        model_of("bert", "always")


@pytest.mark.parametrize("ahead", ["frozen", "epoch"])
def test_vectors_are_saved_with_a_run_and_loading_encodes_none_again(ahead, tmp_path, monkeypatch):
    model = model_of("qwen2", ahead).train()
    processor = CTRSinkProcessor(make_tokenizer("qwen"), layout="split", num_sink_buckets=10, num_behaviors=4)
    history = [{"text": text, "time": i} for i, text in enumerate(("Heat", "Casino", "Babe"))]
    candidates = ["Toy Story", "Heat"]
    model(**processor([history] * 2, candidates, [9, 9]))
    with torch.no_grad():
        lower_parameters(model.model)[1].mul_(1.3)  # a last step, after which vectors of an epoch are of other weights
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    model.save_beside(tmp_path)
    RunFolder(tmp_path).seal()
    assert "field_vectors.safetensors" in read_json(tmp_path / "lmctr_manifest.json")["files"]
    expected = score(model, processor, history, candidates, 9)
    loaded, again = load_run(tmp_path)
    counts = count_encoded(monkeypatch)
    torch.testing.assert_close(score(loaded, again, history, candidates, 9), expected, atol=1e-5, rtol=1e-5)
    assert sum(size for size, *_ in counts) == 0
    score(loaded, again, history, ["Alien (1979)"], 9)
    assert sum(size for size, *_ in counts) == 1  # what was never read

    for dtype in (None, "float32", "bfloat16", *(["int8"] if int8_is_exact() else [])):  # weights copied, rounded
        counts.clear()
        served = ServedModel(str(tmp_path), "cpu", dtype=dtype)
        (found,) = served.score(
            [({"history": history, "candidates": [{"text": own} for own in candidates], "time": 9}, None)]
        )
        np.testing.assert_allclose(found.logits, expected, atol=1e-5 if dtype in (None, "float32") else 0.2)
        assert sum(size for size, *_ in counts) == 0

    def move(pipe, model, make=Pipeline.__init__, **settings):  # as to another device
        make(pipe, model, **settings)
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()

    counts.clear()
    monkeypatch.setattr(Pipeline, "__init__", move)
    pipe = transformers.pipeline("click-prediction", model=loaded, processor=again)
    found = pipe({"history": history, "candidates": candidates, "time": 9})
    np.testing.assert_allclose([one["logit"] for one in found], expected, atol=1e-5)
    assert sum(size for size, *_ in counts) == 0

    for dtype, encodes in (("auto", False), ("bfloat16", True)):  # by the folder's name
        counts.clear()
        pipe = transformers.pipeline("click-prediction", model=str(tmp_path), dtype=dtype)
        found = pipe({"history": history, "candidates": candidates, "time": 9})
        np.testing.assert_allclose([one["logit"] for one in found], expected, atol=0.2 if encodes else 1e-5)
        assert (sum(size for size, *_ in counts) > 0) == encodes
    pipe.save_pretrained(tmp_path / "again")
    counts.clear()
    assert (
        transformers.pipeline("click-prediction", model=str(tmp_path / "again"))(
            {"history": history, "candidates": candidates, "time": 9}
        )
        == found
    )
    assert sum(size for size, *_ in counts) == 0

    path = tmp_path / "field_vectors.safetensors"
    with torch.no_grad():
        lower_parameters(loaded.model)[-1].add_(1.0)
    loaded.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"field_vectors.safetensors holds vectors of other weights.*delete it"):
        load_run(tmp_path)
    (tmp_path / "lmctr_manifest.json").unlink()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"no whole file of vectors.*delete it"):
        load_run(tmp_path)
    save_file({"vectors": torch.zeros(1, 32)}, path, {"format": "other"})
    with pytest.raises(ValueError, match="its format is 'other'"):
        load_run(tmp_path)
    path.unlink()
    assert torch.isfinite(score(*load_run(tmp_path), history, candidates, 9)).all()
