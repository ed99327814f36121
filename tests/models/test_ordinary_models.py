"""What users of transformers do with any model out of habit, where it took something of ours to be right."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, BertConfig

from lmctr import AutoModelForCTR, CTRSinkConfig, CTRSinkForCTR, DeepFMConfig, DeepFMForCTR, DINConfig, DINForCTR

BACKBONE = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}


@pytest.mark.parametrize("text_config", [BertConfig(**BACKBONE, dtype="bfloat16"), {**BACKBONE, "dtype": "bfloat16"}])
def test_the_type_in_a_published_configuration_is_that_of_its_weights_and_not_of_a_new_model(text_config, tmp_path):
    if isinstance(text_config, dict):
        text_config = {"model_type": "bert", **text_config}
    model = CTRSinkForCTR(CTRSinkConfig(text_config=text_config))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    model(torch.arange(8).view(2, 4), labels=torch.ones(2)).loss.backward()
    model.save_pretrained(tmp_path)
    for dtype in (torch.bfloat16, torch.float32):
        loaded = AutoModelForCTR.from_pretrained(tmp_path, dtype=dtype)
        again = AutoModelForCTR.from_config(loaded.config, dtype=dtype)
        for found in (loaded, again):
            assert {parameter.dtype for parameter in found.parameters()} == {dtype}
        assert {parameter.dtype for parameter in CTRSinkForCTR(loaded.config).parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "config", [CTRSinkConfig(text_config={"model_type": "bert", **BACKBONE}), DeepFMConfig(vocab_sizes=[5])]
)
def test_how_a_model_was_quantised_is_saved_with_it(config, tmp_path):
    config.quantization_config = {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}},
    }
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).quantization_config == config.quantization_config


class Packed(torch.Tensor):
    """A weight of eight bits that multiplies, and cannot be taken apart."""

    @staticmethod
    def __new__(cls, weight):
        return torch.Tensor._make_wrapper_subclass(cls, weight.shape, dtype=weight.dtype)

    def __init__(self, weight):
        self.scale = weight.abs().amax(1, keepdim=True) / 127
        self.bits = (weight / self.scale).round().to(torch.int8)

    def __tensor_flatten__(self):
        return ["bits", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, unused, size, stride):
        return cls(parts["bits"] * parts["scale"])

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.linear:
            values, weight, *bias = args
            return F.linear(values, weight.bits * weight.scale, *bias)
        if getattr(function, "__name__", "") == "__get__":
            return super().__torch_function__(function, types, args, kwargs)
        raise NotImplementedError(f"{function}: a weight of eight bits multiplies only")

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(f"{function}: a weight of eight bits multiplies only")


def test_quantised_weights_that_only_multiply():
    torch.manual_seed(0)
    model = DINForCTR(DINConfig(item_vocab_size=9, embedding_dim=4, initializer_range=0.5)).eval()
    batch = {"history_items": torch.tensor([[3, 4, 5]]), "candidate_items": torch.tensor([6])}
    with torch.no_grad():
        expected = model(**batch).logits
        for layer in [module for module in model.modules() if isinstance(module, nn.Linear)]:
            packed = Packed(layer.weight)
            del layer.weight
            layer.weight = packed
        found = model(**batch).logits
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)


@pytest.mark.parametrize("variant", [None, "other"])
@pytest.mark.parametrize("sizes", [("5GB", "1KB"), ("1KB", "5GB"), ("1KB", "2KB")], ids="->".join)
def test_what_was_saved_last_is_read(sizes, variant, tmp_path):
    """In one file or in shards, whatever lay there in the other form."""
    model = DeepFMForCTR(DeepFMConfig(vocab_sizes=[50, 50], hidden_units=[16]))
    for size in sizes:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        model.save_pretrained(tmp_path, max_shard_size=size, variant=variant)
    loaded = AutoModelForCTR.from_pretrained(tmp_path, variant=variant).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (sizes[1] != "5GB")
