"""Bad values of the configuration, bad inputs of the model, and loading a backbone."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import BACKBONES, batch_of, sink_config, text_config
from transformers import AutoConfig, AutoModel, BertConfig, BertForMaskedLM, Qwen2ForCausalLM

import lmctr
from lmctr import CTRSinkConfig, CTRSinkForCTR
from lmctr.training.lora import add_lora, save_adapter


@pytest.mark.parametrize(("values", "message"), [
    ({"sink_kind": "sep"}, "sink_kind='sep'.*none, cls, sink"),
    ({"sink_signal": "recent"}, "sink_signal='recent'.*recency"),
    ({"sink_signal": ["recency", "recency"]}, "different ones"),
    ({"sink_signal": []}, "sink_signal"),
    ({"sink_signal": ["recency", "none"]}, "sink_signal"),
    ({"sink_kind": "cls", "sink_signal": "recency"}, "sink_signal='recency'.*\"none\""),
    ({"sink_order": "newest"}, "sink_order='newest'"),
    ({"feedback": "words"}, "feedback='words'"),
    ({"num_sink_buckets": 0}, "num_sink_buckets=0"),
    ({"sink_bias_dropout": 1.0}, "sink_bias_dropout=1.0"),
    ({"sink_bias_layers": "first"}, "sink_bias_layers='first'"),
    ({"sink_bias_layers": [3]}, r"sink_bias_layers=\[3\].*0 to 2"),
    ({"sink_bias_layers": [0, 0]}, "different layer"),
    ({"sink_kind": "none", "sink_bias_layers": [0]}, "no sinks"),
    ({"layout": "both"}, "layout=.both.*single, split"),
    ({"layout": "split", "field_projection_size": 0}, "field_projection_size=0"),
    ({"sink_bais_layers": []}, "did you mean 'sink_bias_layers'"),
    ({"text_config": {"hidden_size": 8}}, "model_type=None"),
    ({"text_config": {"model_type": "bertt"}}, "'bertt'"),
])  # fmt: skip
def test_bad_config_values(values, message):
    with pytest.raises(ValueError, match=message):
        CTRSinkConfig(**({"text_config": text_config("bert")} | values))


def test_sink_bias_on_an_unknown_backbone_type():
    albert = {"model_type": "albert", "hidden_size": 32, "embedding_size": 16, "num_attention_heads": 4,
              "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 60}  # fmt: skip
    with pytest.raises(ValueError, match=r"'albert'; set sink_bias_layers=\[\]"):
        CTRSinkConfig(text_config=albert, sink_bias_layers=[0])
    narrow = CTRSinkForCTR(CTRSinkConfig(text_config=albert, num_sink_buckets=10, sink_bias_layers=[])).eval()
    assert narrow.model.sink_embedding.projection.out_features == 16  # as wide as its words, not as its layers
    assert torch.isfinite(narrow(**batch_of(narrow.config)).logits).all()
    distilbert = {
        "model_type": "distilbert",
        "dim": 32,
        "n_heads": 4,
        "n_layers": 2,
        "hidden_dim": 32,
        "vocab_size": 60,
    }
    config = CTRSinkConfig(text_config=distilbert, num_sink_buckets=10)
    assert config.resolved_sink_bias_layers == (0, 1)


def test_any_backbone_with_inputs_embeds_works_without_bias():
    config = CTRSinkConfig(
        text_config={"model_type": "gpt_neox", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
                     "intermediate_size": 32, "vocab_size": 60, "max_position_embeddings": 64},
        num_sink_buckets=10,
        sink_bias_layers=[],
    )  # fmt: skip
    model = CTRSinkForCTR(config).eval()
    batch = batch_of(config)
    left = batch_of(config, "left")
    torch.testing.assert_close(model(**left).logits, model(**batch).logits, atol=1e-5, rtol=0)


def test_saved_values_come_back(tmp_path):
    config = sink_config("qwen3", sink_signal=["recency", "feedback"], sink_bias_layers=[1], sink_bias_scale_init=0.5)
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    ignored = {"_name_or_path", "transformers_version"}
    assert {k: v for k, v in again.to_dict().items() if k not in ignored} == {
        k: v for k, v in config.to_dict().items() if k not in ignored
    }
    assert again.text_config.model_type == "qwen3"
    saved = json.loads((tmp_path / "config.json").read_text())
    saved["sink_singal"] = "recency"
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=r"'sink_singal'.*did you mean 'sink_signal'"):
        CTRSinkConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_from_backbone_takes_every_weight(backbone, tmp_path):
    torch.manual_seed(5)
    values = text_config(backbone)
    source = AutoModel.from_config(AutoConfig.for_model(**values))
    source.save_pretrained(tmp_path)
    model = CTRSinkForCTR.from_backbone(str(tmp_path), sink_signal="recency", num_sink_buckets=10)
    expected = source.state_dict()
    found = model.model.language_model.state_dict()
    assert {name for name in expected if not name.startswith("pooler")} == set(found)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert not model.training
    assert model.config.num_sink_buckets == 10
    assert torch.isfinite(model(**batch_of(model.config)).logits).all()


@pytest.mark.parametrize("form", ["absolute", "relative", "dotted"])
def test_what_is_saved_names_no_folder_of_this_machine(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    AutoModel.from_config(AutoConfig.for_model(**text_config("bert"))).save_pretrained("home_of_bob/my_bert")
    place = {
        "absolute": str(tmp_path / "home_of_bob/my_bert"),
        "relative": "home_of_bob/my_bert",
        "dotted": "./home_of_bob/my_bert",
    }
    model = CTRSinkForCTR.from_backbone(place[form])
    model.save_pretrained("saved")
    model = add_lora(model, {"r": 2})
    save_adapter(model, "adapter")
    for path in (*tmp_path.glob("saved/*.json"), tmp_path / "adapter" / "ctr_config.json"):
        assert "home_of_bob" not in path.read_text(), path
    assert json.loads((tmp_path / "adapter" / "ctr_config.json").read_text())["base"] == "my_bert"
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["text_config"]["_name_or_path"] == "my_bert"
    assert (
        CTRSinkForCTR.from_pretrained("saved").config.text_config.hidden_size == model.config.text_config.hidden_size
    )


def test_what_is_saved_keeps_the_name_on_the_hub_and_no_auto_map(tmp_path):
    config = CTRSinkConfig(text_config=text_config("bert") | {"_name_or_path": "google-bert/bert-base-uncased"})
    config.auto_map = {"AutoConfig": "lmctr_remote.CTRSinkConfig"}
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["text_config"]["_name_or_path"] == "google-bert/bert-base-uncased"
    assert "auto_map" not in saved


@pytest.mark.parametrize("cls", [BertForMaskedLM, Qwen2ForCausalLM])
def test_from_backbone_takes_checkpoints_with_a_language_model_head(cls, tmp_path):
    """Their weights carry the prefix of the base model; a naive load leaves the backbone random."""
    values = text_config("bert" if cls is BertForMaskedLM else "qwen2")
    del values["model_type"]
    source = cls(cls.config_class(**values))
    source.save_pretrained(tmp_path)
    model = CTRSinkForCTR.from_backbone(str(tmp_path))
    base = source.base_model.state_dict()
    found = model.model.language_model.state_dict()
    assert all(torch.equal(found[name], base[name]) for name in found)


def test_from_backbone_replaces_values_and_says_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="backbone: 'no/such/folder' is neither"):
        CTRSinkForCTR.from_backbone("no/such/folder", local_files_only=True)
    values = text_config("bert")
    del values["model_type"]
    source = AutoModel.from_config(BertConfig(**values))
    source.save_pretrained(tmp_path)
    model = CTRSinkForCTR.from_backbone(str(tmp_path), text_config_values={"hidden_dropout_prob": 0.3})
    assert model.model.language_model.embeddings.dropout.p == 0.3
    with pytest.raises(ValueError, match="'hidden_dropout'"):
        CTRSinkForCTR.from_backbone(str(tmp_path), text_config_values={"hidden_dropout": 0.3})
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.layer.1.attention.self.query.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 of the weights.*encoder.layer.1.attention.self.query.weight"):
        CTRSinkForCTR.from_backbone(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        CTRSinkForCTR.from_backbone(str(tmp_path))


def test_pickled_weights_are_never_read(tmp_path):
    model = CTRSinkForCTR(sink_config("bert"))
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises((OSError, ValueError), match="safetensors"):
        lmctr.AutoModelForCTR.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="use_safetensors=False"):
        lmctr.AutoModelForCTR.from_pretrained(tmp_path, use_safetensors=False)


def change(batch, **values):
    return {**batch, **values}


def test_bad_inputs_of_the_model():
    model = CTRSinkForCTR(sink_config("bert")).eval()
    batch = batch_of(model.config)
    high = batch["sink_buckets"].clone()
    high[0, 3] = 10
    with pytest.raises(ValueError, match=r"bucket 10 is out of range.*num_sink_buckets=10"):
        model(**change(batch, sink_buckets=high))
    two = batch["sink_buckets"][..., None].expand(-1, -1, 2)
    with pytest.raises(ValueError, match=r"2 signals per position.*'recency'"):
        model(**change(batch, sink_buckets=two))
    with pytest.raises(ValueError, match=r"sink_buckets: shape \(3, 12\)"):
        model(**change(batch, sink_buckets=batch["sink_buckets"][:, 1:]))
    with pytest.raises(ValueError, match=r"labels: shape \(2,\)"):
        model(**batch, labels=torch.zeros(2))
    long = torch.ones(1, 65, dtype=torch.long)
    with pytest.raises(ValueError, match=r"65 tokens.*positions for 64.*max_length=64"):
        model(long)
    plain = CTRSinkForCTR(sink_config("bert", sink_kind="none"))
    with pytest.raises(ValueError, match='sink_kind="none"'):
        plain(**change(batch, input_ids=batch["input_ids"].clamp_max(59)))
    roberta = CTRSinkForCTR(sink_config("roberta"))
    with pytest.raises(ValueError, match="positions for 62"):
        roberta(torch.full((1, 63), 7))


def test_attention_implementations_that_cannot_carry_the_bias():
    model = CTRSinkForCTR(sink_config("qwen2"))
    model.model.language_model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=r"flash_attention_2.*sdpa"):
        model(**batch_of(model.config))


def test_ids_that_a_trainer_writes_are_read_back(tmp_path):
    """transformers 5.17's Trainer puts the tokenizer's special ids into the outermost config."""
    config = CTRSinkConfig(text_config=text_config("bert"))
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, None, 2
    config.save_pretrained(tmp_path)
    assert CTRSinkConfig.from_pretrained(tmp_path).text_config.to_dict() == config.text_config.to_dict()
