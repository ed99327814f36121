"""Loading pretrained backbones: what is printed, and what is an error."""

import json
import logging

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_models import text_config
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from lmctr.models.ctr_sink.backbone import load_backbone
from lmctr.models.ctr_sink.configuration_ctr_sink import CTRSinkConfig


@pytest.fixture
def printed():
    """Messages of transformers' loggers."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


@pytest.fixture(params=[("bert", AutoModel), ("bert", AutoModelForMaskedLM), ("roberta", AutoModelForMaskedLM)])
def published(request, tmp_path):
    """A folder with an encoder as it is published: with a pooler or an LM head."""
    backbone, kind = request.param
    config = CTRSinkConfig(text_config=text_config(backbone)).text_config
    model = kind.from_config(config)
    model.save_pretrained(tmp_path / "published")
    return tmp_path / "published", getattr(model, model.base_model_prefix, model)


def test_heads_and_poolers_are_left_out_in_silence(published, printed):
    path, model = published
    printed.clear()
    weights = load_backbone(str(path), {}, {}).state_dict()
    assert not [message for message in printed if "LOAD REPORT" in message]
    expected = model.state_dict()
    assert weights
    assert all(torch.equal(weights[key], expected[key]) for key in weights)
    AutoModelForMaskedLM.from_pretrained(path, config=AutoConfig.from_pretrained(path))  # others still see reports
    AutoModel.from_pretrained(path, config=AutoConfig.from_pretrained(path))
    assert [message for message in printed if "LOAD REPORT" in message]


def test_layers_that_are_left_over_are_told(published, printed):
    load_backbone(str(published[0]), {"num_hidden_layers": 1}, {})
    (report,) = [message for message in printed if "LOAD REPORT" in message]
    assert "encoder.layer.1" in report or "encoder.layer.{" in report


def test_weights_that_do_not_fit_are_an_error(published, printed):
    path = published[0]
    with pytest.raises(ValueError, match=r"do not fit its configuration .* text_config_values that change a shape"):
        load_backbone(str(path), {"intermediate_size": 7}, {})
    assert [message for message in printed if "LOAD REPORT" in message]
    whole = (path / "model.safetensors").read_bytes()
    weights = load_file(path / "model.safetensors")
    lost = next(name for name in weights if "encoder.layer.0" in name)
    save_file(
        {key: value for key, value in weights.items() if key != lost}, path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ValueError, match=r"lacks 1 of the weights .*encoder\.layer\.0"):
        load_backbone(str(path), {}, {})
    (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        load_backbone(str(path), {}, {})
    (path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        load_backbone(str(path), {}, {})
    (path / "pytorch_model.bin").touch()
    with pytest.raises(
        ValueError, match=r"pytorch_model.bin only, a pickle; .*convert it once .*\.save_pretrained\('FOLDER'\)"
    ):
        load_backbone(str(path), {}, {})


def test_adapters_and_quantised_weights_are_named(published):
    """transformers would put the adapter into the layers, whose names then differ, and ask for the quantisation's package."""
    path = published[0]
    model = get_peft_model(AutoModel.from_pretrained(path), LoraConfig(target_modules=["query"]))
    model.save_pretrained(path.parent / "adapter")
    with pytest.raises(ValueError, match=r"adapter' holds a PEFT adapter .*merge_and_unload\(\)"):
        load_backbone(str(path.parent / "adapter"), {}, {})
    model.save_pretrained(path)
    with pytest.raises(ValueError, match=r"published' holds a PEFT adapter .*merge_and_unload\(\)"):
        load_backbone(str(path), {}, {})
    (path / "adapter_config.json").unlink()
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"published' are quantised .*gptq.*quantization_config="):
        load_backbone(str(path), {}, {})
