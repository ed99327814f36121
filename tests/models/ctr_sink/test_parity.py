"""The numbers of the authors' own modules.

`parity/*.safetensors`: outputs of the modules of github.com/UGUESS-lzx/CTR-SINK (commit c834235) on random weights, on transformers
5.23, with the attributes set from outside that transformers no longer has; both rows have the same number of sinks, because padded
sinks change the bias there. Keys: `state.*` the weights under their names there, `in.*`, `out.*`. Not in the repository: their code.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig

from lmctr import CTRSinkConfig, CTRSinkForCTR
from lmctr.models.ctr_sink.research_checkpoint import from_research_checkpoint

BACKBONES = ("bert", "qwen2", "qwen3")
NAMES = {"bert": "uer/chinese_roberta_L-4_H-512", "qwen2": "Qwen/Qwen2-0.5B", "qwen3": "Qwen/Qwen3-8B"}
SETTINGS = {
    "use_split_layer": True,
    "use_sink": True,
    "sink_signal": "temporal",
    "sink_num_embeddings": 10,
    "sink_embedding_dim": 6,
    "emb_output_size": 8,
    "ctr_hidden_size": 5,
}


def fixture_of(backbone):
    with safe_open(Path(__file__).parent / "parity" / f"{backbone}.safetensors", "pt") as file:
        found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        text = json.loads(file.metadata()["text_config"])
    parts = {"state": {}, "in": {}, "out": {}}
    for key, value in found.items():
        part, name = key.split(".", 1)
        parts[part][name] = value
    return AutoConfig.for_model(**text), parts["state"], parts["in"], parts["out"]


def saved(state, backbone, path, **settings):
    settings = {**SETTINGS, "backbone": NAMES[backbone], **settings}
    metrics = {"valid_auc": np.float64(0.5)}  # scikit-learn's own kind of number stands in these files
    state = {name: value for name, value in state.items() if not name.startswith("single_head")}
    torch.save({"model_state_dict": state, "config": settings, "metrics": metrics}, path)
    return path


@pytest.mark.parametrize("backbone", BACKBONES)
def test_fields_layout_has_the_authors_numbers(backbone, tmp_path):
    text, state, given, expected = fixture_of(backbone)
    model = from_research_checkpoint(saved(state, backbone, tmp_path / "best.pt"), text)
    batch = {name: given[name] for name in ("input_ids", "sink_buckets", "field_ids")}
    for pooling, stage in (("all", "all_tokens"), ("sinks", "sink_only")):
        with torch.no_grad():
            upper = model.model(**batch, pooling=pooling).last_hidden_state
            logits = model(**batch, pooling=pooling).logits
        torch.testing.assert_close(upper, expected[f"upper.{stage}"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits, expected[f"logits.{stage}"], atol=1e-5, rtol=0)
    if backbone == "qwen3":
        assert model.model.sink_bias.layers[0].query.weight.shape == (16, 16)  # its own heads would take 24
    model.save_pretrained(tmp_path / "run")
    with torch.no_grad():
        again = CTRSinkForCTR.from_pretrained(tmp_path / "run")(**batch, pooling="sinks").logits
    torch.testing.assert_close(again, expected["logits.sink_only"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_single_layout_has_the_authors_numbers(backbone, tmp_path):
    """Bias, last hidden states and logits of one text through all layers."""
    text, state, given, expected = fixture_of(backbone)
    fields = from_research_checkpoint(saved(state, backbone, tmp_path / "best.pt"), text)
    own = {"layout": "single", "sink_bias_layers": list(fields.config.resolved_sink_bias_layers)}
    model = CTRSinkForCTR(CTRSinkConfig(**{**fields.config.to_dict(), **own})).eval()
    weights = {name: value for name, value in fields.state_dict().items() if not name.startswith("head.")}
    for here, there in (("dense", "fc1"), ("out", "fc2")):
        for kind in ("weight", "bias"):
            weights[f"head.{here}.{kind}"] = state[f"single_head.{there}.{kind}"]
    model.load_state_dict(weights, strict=True)
    biases = []
    model.model.sink_bias.layers[0].register_forward_hook(
        lambda module, args, output: biases.append((output, args[1]))
    )
    batch = {"input_ids": given["single_ids"], "attention_mask": given["single_mask"]}
    with torch.no_grad():
        outputs = model.model(**batch, sink_buckets=given["single_buckets"])
        logits = model(**batch, sink_buckets=given["single_buckets"]).logits
    (full, sinks), *_ = biases
    rows = torch.arange(2)[:, None, None]
    found = full[rows, sinks.index[:, :, None], sinks.index[:, None, :]]
    torch.testing.assert_close(found, expected["single.bias"], atol=1e-6, rtol=0)
    real = given["single_mask"].bool()
    torch.testing.assert_close(outputs.last_hidden_state[real], expected["single.hidden"][real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits, expected["single.logits"], atol=1e-5, rtol=0)


def test_adapters_are_merged(tmp_path):
    """PEFT's names and its scale: alpha is 64 for Qwen2 and 32 for the others, as the research code sets it."""
    text, state, given, expected = fixture_of("qwen2")
    target = "encoder.layers.1.self_attn.q_proj"
    with_lora = {name.replace("encoder.", "encoder.base_model.model.", 1): value for name, value in state.items()}
    place = target.replace("encoder.", "encoder.base_model.model.", 1)
    down, up = torch.randn(4, 16), torch.randn(16, 4)
    base = with_lora.pop(f"{place}.weight")
    with_lora[f"{place}.base_layer.bias"] = with_lora.pop(f"{place}.bias")
    with_lora |= {f"{place}.base_layer.weight": base - 64 / 4 * (up @ down)}
    with_lora |= {f"{place}.lora_A.default.weight": down, f"{place}.lora_B.default.weight": up}
    model = from_research_checkpoint(saved(with_lora, "qwen2", tmp_path / "best.pt"), text)
    batch = {name: given[name] for name in ("input_ids", "sink_buckets", "field_ids")}
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, expected["logits.all_tokens"], atol=1e-4, rtol=0)


def test_what_cannot_be_read_is_an_error(tmp_path):
    text, state, _, _ = fixture_of("bert")
    path = tmp_path / "best.pt"
    with pytest.raises(ValueError, match="use_split_layer=False has no layout here"):
        from_research_checkpoint(saved(state, "bert", path, use_split_layer=False), text)
    with pytest.raises(ValueError, match=r"lacking head\.out\.weight, left over none"):
        from_research_checkpoint(
            saved({k: v for k, v in state.items() if k != "ctr_head.fc2.weight"}, "bert", path), text
        )
    with pytest.raises(ValueError, match="backbone: 'no/such' cannot be read"):
        from_research_checkpoint(saved(state, "bert", path), "no/such")
    torch.save({"model_state_dict": state}, path)
    with pytest.raises(ValueError, match="expected a dict with model_state_dict and config"):
        from_research_checkpoint(path, text)
    torch.save({"model_state_dict": state, "config": SETTINGS, "metrics": Path("x")}, path)
    with pytest.raises(ValueError, match="no checkpoint that can be read without running it"):
        from_research_checkpoint(path, text)
