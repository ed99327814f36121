"""LoRA on the four backbones: what moves, what stays, and adapters that are saved, loaded, merged and shared."""

import copy
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from peft import IA3Config, LNTuningConfig, LoHaConfig, LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModel, BitsAndBytesConfig

from lmctr import AutoModelForCTR, CTRSinkForCTR
from lmctr.training.lora import add_lora, load_adapter, merge_lora, save_adapter

sys.path.append(str(Path(__file__).parents[1] / "models" / "ctr_sink"))

from tiny_models import BACKBONES, batch_of, sink_config, text_config

LINEAR = {
    "bert": ("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"),
    "qwen2": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}


def base(backbone, seed=0, **values):
    torch.manual_seed(seed)
    values = {"sink_signal": ["recency", "feedback"], "sink_bias_layers": "all"} | values
    return CTRSinkForCTR(sink_config(backbone, **values)).eval()


def inputs(model, split=False):
    batch = batch_of(model.config)
    if split:
        is_sink = batch["sink_buckets"][..., 0] >= 0
        after = torch.nn.functional.pad(is_sink, (1, -1))
        number = (is_sink | after).long().cumsum(1)
        batch["field_ids"] = torch.where(batch["attention_mask"].bool(), number, -1)
    return batch


def train(model, batch, steps=3):
    """A few steps; returns the trained parameters as they were, and those that the optimiser left where they were."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    model.train()
    for _ in range(steps):  # the first factor of an adapter moves from the second step on, once the second is not zero
        model(**batch, labels=torch.tensor([1.0, 0.0, 1.0])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    same = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    return before, same


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits


@pytest.mark.parametrize("layout", ["single", "split"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_new_parameter_moves_and_the_language_model_does_not(backbone, layout):
    plain = base(backbone, layout=layout)
    new = {name for name, _ in plain.named_parameters() if ".language_model." not in name}
    batch = inputs(plain, layout == "split")
    model = add_lora(plain, {"r": 4, "dropout": 0.0})
    before, same = train(model, batch)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert same == set(before) - trained
    moved = {n.replace("base_model.model.", "").replace("modules_to_save.default.", "") for n in trained}
    assert new <= moved  # sink tables and projection, bias layers with their norms and scales, head
    assert any(name.endswith("scale") for name in new)
    adapters = {name for name in trained if ".language_model." in name}
    assert adapters
    assert all("lora_" in name for name in adapters)
    for layer in range(3):
        for part in LINEAR["qwen2" if backbone.startswith("qwen") else "bert"]:
            assert sum(f".{layer}." in name and f".{part}." in name for name in adapters) >= 2, (layer, part)
    frozen = {name for name in same if ".language_model." in name}
    assert len(frozen) == sum(1 for _ in plain.model.language_model.parameters()) - len(adapters)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_adapters_are_saved_loaded_and_merged(backbone, tmp_path):
    model = add_lora(base(backbone), {"r": 4, "alpha": 8})
    batch = inputs(base(backbone))
    untrained = logits(model, batch)
    train(model, batch)
    expected = logits(model, batch)
    assert (expected - untrained).abs().max() > 1e-2
    save_adapter(model, tmp_path / "adapter")
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "ctr_config.json"}
    fresh = base(backbone)
    with torch.no_grad():  # other sinks, bias and head: the saved ones must replace them
        for name, value in fresh.named_parameters():
            if ".language_model." not in name:
                value.add_(0.5)
    loaded = load_adapter(fresh, tmp_path / "adapter")
    torch.testing.assert_close(logits(loaded, batch), expected, atol=1e-6, rtol=1e-5)
    assert not any(value.requires_grad for value in loaded.parameters())
    further = load_adapter(base(backbone), tmp_path / "adapter", is_trainable=True)
    assert {n for n, p in further.named_parameters() if p.requires_grad} == {
        n for n, p in model.named_parameters() if p.requires_grad
    }
    merged = merge_lora(loaded)
    assert type(merged) is CTRSinkForCTR
    torch.testing.assert_close(logits(merged, batch), expected, atol=1e-5, rtol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    again = AutoModelForCTR.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(logits(again, batch), expected, atol=1e-5, rtol=1e-4)
    assert set(again.state_dict()) == set(base(backbone).state_dict())


def test_adapters_of_all_linear_layers_take_part():
    """Those around the projection of the sinks too, which is applied to the tables."""
    model = get_peft_model(base("bert"), LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    batch = inputs(base("bert"))
    model(**batch, labels=torch.tensor([1.0, 0.0, 1.0])).loss.backward()
    assert not [name for name, value in model.named_parameters() if value.requires_grad and value.grad is None]
    expected = logits(model.eval(), batch)
    torch.testing.assert_close(logits(merge_lora(model), batch), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        IA3Config(target_modules=["key", "value"], feedforward_modules=[]),
        LoHaConfig(r=2, target_modules=["query"]),
        LNTuningConfig(target_modules=["LayerNorm"]),
        LoraConfig(
            r=2, target_modules=["query", "dense"], init_lora_weights="pissa"
        ),  # both take a part of the weights
        LoraConfig(r=2, target_modules=["query", "dense"], init_lora_weights="olora"),
    ],
    ids=lambda config: f"{config.peft_type.value} {getattr(config, 'init_lora_weights', '')}",
)
def test_adapters_of_other_kinds_by_hand(config, tmp_path):
    """PEFT merges what has no weight of its own, such as the head, under LoRA only."""
    plain = base("bert")
    config = copy.copy(config)
    config.modules_to_save = list(plain.peft_modules_to_save)
    model, batch = get_peft_model(plain, config), inputs(base("bert"))
    train(model, batch)
    expected = logits(model, batch)
    save_adapter(model, tmp_path)
    loaded = load_adapter(base("bert"), tmp_path)
    torch.testing.assert_close(logits(loaded, batch), expected, atol=1e-6, rtol=1e-5)
    merged = merge_lora(loaded)
    torch.testing.assert_close(logits(merged, batch), expected, atol=1e-5, rtol=1e-4)
    assert set(merged.state_dict()) == set(base("bert").state_dict())


def test_a_base_that_was_saved_before_it_met_its_processor_is_the_one(tmp_path):
    base("bert").save_pretrained(tmp_path / "base")
    model = add_lora(AutoModelForCTR.from_pretrained(tmp_path / "base"), {"r": 2})
    model.config.processor_fingerprint = "0123"  # as a training sets it
    save_adapter(model, tmp_path / "adapter")
    loaded = load_adapter(AutoModelForCTR.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    assert loaded.config.processor_fingerprint == "0123"
    other = AutoModelForCTR.from_pretrained(tmp_path / "base", processor_fingerprint="4567")
    with pytest.raises(ValueError, match=r"processor_fingerprint='4567', but the adapters in .* '0123'"):
        load_adapter(other, tmp_path / "adapter")


def test_adapters_of_which_transformers_leaves_weights_new_are_not_read_by_it(tmp_path):
    base("bert").save_pretrained(tmp_path / "base")
    batch = inputs(base("bert"))
    for use_dora in (False, True):
        plain = AutoModelForCTR.from_pretrained(tmp_path / "base")
        config = LoraConfig(r=2, use_dora=use_dora, target_modules=["query"], init_lora_weights=False)
        model = get_peft_model(plain, config).eval()
        model.save_pretrained(tmp_path / f"dora {use_dora}")
        loaded = PeftModel.from_pretrained(
            AutoModelForCTR.from_pretrained(tmp_path / "base"), tmp_path / f"dora {use_dora}"
        )
        torch.testing.assert_close(logits(loaded.eval(), batch), logits(model, batch))
        if not use_dora:
            found = AutoModelForCTR.from_pretrained(tmp_path / "dora False")
            torch.testing.assert_close(logits(found.eval(), batch), logits(model, batch))
    with pytest.raises(ValueError, match=r"no .*lora_magnitude_vector.* new one; load the base model, and them with"):
        AutoModelForCTR.from_pretrained(tmp_path / "dora True")


def test_adapters_whose_start_drew_random_numbers_are_not_put_on_what_they_left_then(tmp_path):
    plain = base("bert")
    for start in ("pissa_niter_2", "pissa"):
        config = LoraConfig(r=2, target_modules=["query"], modules_to_save=["head"], init_lora_weights=start)
        save_adapter(get_peft_model(base("bert"), config), tmp_path / start)
    with pytest.raises(
        ValueError, match=r"if it is that one, init_lora_weights='pissa_niter_2' has left another part"
    ):
        load_adapter(plain, tmp_path / "pissa_niter_2")
    other = base("bert")
    with torch.no_grad():
        for name, value in other.named_parameters():
            value.mul_(1.01 if name.endswith("query.weight") else 1)
    with pytest.raises(ValueError, match=r"its weights are not those .* \(model\..*query differs\)"):
        load_adapter(other, tmp_path / "pissa")


def test_no_card_of_peft_is_left_or_written_into(tmp_path, monkeypatch):
    model = add_lora(base("bert"), {"r": 2})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/README.md").write_text("by hand")
    save_adapter(model, tmp_path / "mine")
    assert (tmp_path / "mine/README.md").read_text() == "by hand"
    monkeypatch.setattr("lmctr.training.lora.save_base_config", _ended)
    with pytest.raises(KeyboardInterrupt):
        save_adapter(model, tmp_path / "ended")
    assert (tmp_path / "ended/adapter_model.safetensors").is_file()
    assert not (tmp_path / "ended/README.md").exists()
    model.save_pretrained(tmp_path / "peft")
    assert (tmp_path / "peft/README.md").exists()


def _ended(*values):
    raise KeyboardInterrupt


def test_what_does_not_fit_is_named(tmp_path):
    with pytest.raises(ValueError, match="only a model from add_lora"):
        save_adapter(base("bert"), tmp_path)
    with pytest.raises(ValueError, match=r"has no adapter_config\.json"):
        load_adapter(base("bert"), tmp_path)
    for wrong in (None, 5):
        message = f"folder: expected a path, as a text or a Path, got {type(wrong).__name__} {wrong}"
        with pytest.raises(ValueError, match=message):
            load_adapter(base("bert"), wrong)
        with pytest.raises(ValueError, match=message):
            save_adapter(add_lora(base("bert"), {"r": 4}), wrong)
    with pytest.raises(ValueError, match="model: expected a value of the type Module, got NoneType"):
        load_adapter(None, tmp_path)
    save_adapter(add_lora(base("bert"), {"r": 4}), tmp_path)
    with pytest.raises(ValueError, match=r"sink_bias_layers=\[0\], but the adapters in .* were trained with 'all'"):
        load_adapter(base("bert", sink_bias_layers=[0]), tmp_path)
    wider = sink_config("bert", sink_signal=["recency", "feedback"], sink_bias_layers="all")
    wider.text_config.intermediate_size = 64
    with pytest.raises(ValueError, match="do not fit this model's backbone"):
        load_adapter(CTRSinkForCTR(wider), tmp_path)
    with pytest.raises(ValueError, match="adapters already"):
        load_adapter(add_lora(base("bert"), {"r": 4}), tmp_path)
    card = tmp_path / "README.md"
    card.write_text("mine")
    assert json.loads((tmp_path / "ctr_config.json").read_text())["model_type"] == "ctr_sink"


# ---- quantised backbones ------------------------------------------------------------------------------------------


def saved_backbone(backbone, path):
    torch.manual_seed(5)
    values = text_config(backbone, hidden_size=64, intermediate_size=128, initializer_range=0.05)
    AutoModel.from_config(AutoConfig.for_model(**values)).save_pretrained(path)
    return str(path)


def test_quantisation_without_its_package(tmp_path, monkeypatch):
    path = saved_backbone("bert", tmp_path)
    with pytest.raises(ValueError, match=r"BitsAndBytesConfig\(load_in_4bit=True\), got '4bit'"):
        CTRSinkForCTR.from_backbone(path, quantization_config="4bit")
    monkeypatch.setattr("lmctr.models.ctr_sink.backbone.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install bitsandbytes"):
        CTRSinkForCTR.from_backbone(path, quantization_config=BitsAndBytesConfig(load_in_4bit=True))


def test_a_quantised_model_is_not_merged():
    model = add_lora(base("qwen2"), {"r": 4})
    model.get_base_model().is_quantized = True
    with pytest.raises(ValueError, match="backbone is quantised"):
        merge_lora(model)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.parametrize("backbone", BACKBONES)
def test_qlora_trains_new_modules_in_float32_and_merges_unquantised(backbone, tmp_path):
    path = saved_backbone(backbone, tmp_path / "backbone")
    values = {"num_sink_buckets": 10, "sink_bias_dropout": 0.0}
    four_bit = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    torch.manual_seed(0)
    model = add_lora(
        CTRSinkForCTR.from_backbone(path, quantization_config=four_bit, **values), {"r": 4, "dropout": 0.0}
    )
    batch = batch_of(model.config)
    before, same = train(model, batch)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert same == set(before) - trained
    assert {value.dtype for value in model.parameters() if value.requires_grad} == {torch.float32}
    assert any(value.dtype == torch.uint8 for value in model.parameters())
    expected = logits(model, batch)
    save_adapter(model, tmp_path / "adapter")
    plain = merge_lora(load_adapter(CTRSinkForCTR.from_backbone(path, **values), tmp_path / "adapter"))
    assert not any(value.dtype == torch.uint8 for value in plain.parameters())
    torch.testing.assert_close(logits(plain, batch), expected, atol=0.25, rtol=0.1)  # 4 bits away from each other
