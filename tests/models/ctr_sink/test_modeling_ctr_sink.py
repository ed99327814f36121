"""The common suite for every type of backbone, and CTR-Sink's own behaviour around the equations."""

import pytest
import torch
from model_tester import CTRModelTesterMixin
from tiny_models import BACKBONES, DECODERS, ENCODERS, batch_of, pad, rows, sink_config, text_config
from transformers.models.deberta_v2 import modeling_deberta_v2

from lmctr import CTRSinkConfig, CTRSinkForCTR, CTRSinkModel


class CTRSinkTester(CTRModelTesterMixin):
    config_class, model_class, base_class = CTRSinkConfig, CTRSinkForCTR, CTRSinkModel
    backbone = None
    bounds = {"max_sinks": 7}

    @property
    def has_float64(self):
        return self.backbone in ("bert", "electra", "deberta-v2", "gpt2")

    @property
    def offloads(self):
        return self.backbone != "deberta-v2"  # whose own encoder reads a weight without its module

    def make_config(self, **values):
        return sink_config(self.backbone, None, **({"sink_signal": ["recency", "feedback"]} | values))

    def make_batch(self, config, seed=0):
        return {**batch_of(config, seed=seed), "labels": torch.tensor([1.0, 0.0, 1.0])}

    def test_on_another_device(self, monkeypatch):
        bucket = getattr(modeling_deberta_v2, "make_log_bucket_position", None)
        if self.backbone == "deberta-v2" and isinstance(bucket, torch.jit.ScriptFunction):
            pytest.skip("scripted by this version of transformers: C++ then asks the tensors, which know of no device")
        super().test_on_another_device(monkeypatch)

    def test_activation_checkpointing_gives_the_same_gradients(self):
        if self.backbone != "mpnet":  # whose own class cannot
            return super().test_activation_checkpointing_gives_the_same_gradients()
        with pytest.raises(ValueError, match=r"CTRSinkForCTR does not support (gradient|activation) checkpointing"):
            self.make_model().gradient_checkpointing_enable()


for backbone in (*ENCODERS, *DECODERS):
    name = f"Test_{backbone.replace('-', '_')}"
    globals()[name] = type(name, (CTRSinkTester,), {"backbone": backbone})


def model_of(backbone, implementation="sdpa", seed=0, **values):
    torch.manual_seed(seed)
    return CTRSinkForCTR(sink_config(backbone, implementation, **values)).eval()


def score(model, batch, **values):
    with torch.no_grad():
        return model(**batch, **values).logits


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("kind", ["none", "cls", "sink"])
def test_left_and_right_padding_agree(backbone, kind):
    model = model_of(backbone, sink_kind=kind, **({"sink_bias_layers": "all"} if kind != "none" else {}))
    right, left = (score(model, batch_of(model.config, side)) for side in ("right", "left"))
    torch.testing.assert_close(left, right, atol=1e-5, rtol=0)
    assert len(set(right.tolist())) == 3


@pytest.mark.parametrize("backbone", BACKBONES)
def test_sdpa_equals_eager(backbone):
    batch = None
    logits = []
    for implementation in ("sdpa", "eager"):
        model = model_of(backbone, implementation, sink_bias_layers="all")
        batch = batch_of(model.config)
        logits.append(score(model, batch))
    torch.testing.assert_close(*logits, atol=1e-5 if backbone in ("bert", "roberta") else 1e-4, rtol=0)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_no_padding_and_padding_agree(backbone, implementation):
    """Without padding the backbone passes no mask at all; the bias must still obey causality."""
    model = model_of(backbone, implementation, sink_bias_layers="all")
    row = rows()[:1]
    bare, padded = pad(row), pad(row, extra=5)
    torch.testing.assert_close(score(model, bare), score(model, padded), atol=1e-5, rtol=0)
    del bare["attention_mask"]
    torch.testing.assert_close(score(model, bare), score(model, padded), atol=1e-5, rtol=0)


@pytest.mark.parametrize("backbone", ["qwen2", "qwen3"])
@pytest.mark.parametrize("causal", [True, False])
def test_prefix_does_not_see_what_follows_unless_asked(backbone, causal):
    model = model_of(backbone, sink_bias_layers="all", sink_bias_causal=causal)
    batch = pad(rows()[:1])
    changed = {name: value.clone() for name, value in batch.items()}
    changed["sink_buckets"][0, 9] = (batch["sink_buckets"][0, 9] + 1) % 10
    with torch.no_grad():
        before, after = (
            model.model(**{k: v for k, v in b.items() if k != "target_mask"}).last_hidden_state[0, :9]
            for b in (batch, changed)
        )
    assert torch.equal(before, after) is causal


@pytest.mark.parametrize("backbone", BACKBONES)
def test_sink_bias_changes_the_score_and_scale_zero_removes_it(backbone):
    with_bias = model_of(backbone, sink_bias_layers="all")
    without = model_of(backbone, sink_bias_layers=[])
    without.load_state_dict(with_bias.state_dict(), strict=False)
    batch = batch_of(with_bias.config)
    assert (score(with_bias, batch) - score(without, batch)).abs().max() > 1e-4
    with torch.no_grad():
        for layer in with_bias.model.sink_bias.layers:
            layer.scale.zero_()
    torch.testing.assert_close(score(with_bias, batch), score(without, batch), atol=1e-5, rtol=0)


def test_cls_sinks_use_the_backbones_own_embedding():
    """[CLS] in the sink places is an ordinary token: without bias the buckets change nothing but the pooling."""
    model = model_of("bert", sink_kind="cls", sink_bias_layers=[])
    assert not any("sink" in name for name, _ in model.named_parameters())
    batch = batch_of(model.config)
    plain = {**batch, "sink_buckets": torch.full_like(batch["sink_buckets"], -1)}
    assert torch.equal(score(model, batch), score(model, plain))
    assert not torch.equal(score(model, batch, pooling="sinks")[:2], score(model, plain, pooling="sinks")[:2])


def test_pooling_sets():
    """Eq. 5: all real tokens; Eq. 6: sinks, or the target's tokens in a row without sinks."""
    model = model_of("bert").double()
    batch = batch_of(model.config)
    with torch.no_grad():
        states = model.model(**{k: v for k, v in batch.items() if k != "target_mask"}).last_hidden_state
    head = model.head
    lengths, sinks = (13, 8, 5), ((3, 6, 9), (4,), (2, 3))  # the last row: its target's tokens
    for pooling, chosen in (("all", [range(n) for n in lengths]), ("sinks", sinks)):
        expected = []
        for row, tokens in enumerate(chosen):
            mean = sum(states[row, token] for token in tokens) / len(tokens)
            hidden = head.dense.weight @ mean + head.dense.bias
            hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
            expected.append((head.out.weight @ hidden + head.out.bias).item())
        found = score(model, batch, pooling=pooling)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=1e-6)
    with pytest.raises(ValueError, match=r"pooling='first'.*all, sinks"):
        score(model, batch, pooling="first")
    with pytest.raises(ValueError, match="target_mask"):
        model(**{k: v for k, v in batch.items() if k != "target_mask"}, pooling="sinks")


@pytest.mark.parametrize(("backbone", "layers", "scale"), [
    ("bert", (0, 1), 10.0), ("roberta", (0, 1), 10.0), ("qwen2", (0, 1, 2), 1.0), ("qwen3", (0, 1), 1.0),
])  # fmt: skip
def test_default_layers_and_scales(backbone, layers, scale):
    config = CTRSinkConfig(text_config=text_config(backbone, num_hidden_layers=6))
    assert config.resolved_sink_bias_layers == layers
    model = CTRSinkForCTR(config)
    assert [layer.scale.item() for layer in model.model.sink_bias.layers] == [scale] * len(layers)
    assert CTRSinkConfig(text_config=text_config(backbone), sink_bias_layers="all").resolved_sink_bias_layers == (
        0,
        1,
        2,
    )
    assert CTRSinkConfig(text_config=text_config(backbone), sink_kind="none").resolved_sink_bias_layers == ()
    assert CTRSinkConfig(text_config=text_config(backbone), sink_bias_scale_init=3).resolved_sink_bias_scale_init == 3


def test_no_attention_tensor_per_head_in_the_bias():
    """The bias is one (B, 1, N, N) mask for all heads."""
    model = model_of("bert", sink_bias_layers=[0])
    seen = []
    attention = model.model.language_model.encoder.layer[0].attention.self
    attention.register_forward_pre_hook(lambda m, a, k: seen.append(k["attention_mask"].shape), with_kwargs=True)
    score(model, batch_of(model.config))
    assert seen == [(3, 1, 13, 13)]


def test_lora_trains_and_saves_the_new_modules_whole(tmp_path):
    from peft import LoraConfig, PeftModel, get_peft_model

    model = model_of("qwen2")
    batch = batch_of(model.config)
    options = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], modules_to_save=list(CTRSinkForCTR.peft_modules_to_save)
    )
    tuned = get_peft_model(model, options).train()
    before = {name: p.detach().clone() for name, p in tuned.named_parameters() if p.requires_grad}
    assert {"sink_embedding", "sink_bias", "head"} <= {part for name in before for part in name.split(".")}
    optimizer = torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):  # LoRA's A moves from the second step on, once B is no longer zero
        optimizer.zero_grad()
        tuned(**batch, labels=torch.tensor([1.0, 0.0, 1.0])).loss.backward()
        optimizer.step()
    assert [name for name, p in tuned.named_parameters() if p.requires_grad and torch.equal(p, before[name])] == []
    tuned.eval().save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(model_of("qwen2"), tmp_path).eval()
    torch.testing.assert_close(score(again, batch), score(tuned, batch))


@pytest.mark.parametrize("task_type", ["SEQ_CLS", "FEATURE_EXTRACTION"])
def test_wrappers_of_peft_for_a_task(task_type):
    """They give their model `inputs_embeds` and what else it may be asked for, as None."""
    from peft import LoraConfig, get_peft_model

    model = model_of("bert")
    model.config.output_hidden_states = True
    batch = batch_of(model.config)
    expected = score(model, batch)
    tuned = get_peft_model(model, LoraConfig(r=4, target_modules=["query"], task_type=task_type)).eval()
    output = tuned(**batch, labels=torch.tensor([1.0, 0.0, 1.0]))
    torch.testing.assert_close(output.logits, expected)
    assert len(output.hidden_states) > 1


@pytest.mark.parametrize("kind", ["bert", "qwen2"])
def test_prompts_of_peft_are_refused(kind):
    from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model

    for config, named in ((PromptTuningConfig, "inputs_embeds"), (PrefixTuningConfig, "past_key_values")):
        model = model_of(kind)
        tuned = get_peft_model(model, config(num_virtual_tokens=4, task_type="FEATURE_EXTRACTION"))
        batch = batch_of(model.config)
        batch["input_ids"] = batch["input_ids"].clamp_max(model.config.text_config.vocab_size - 1)  # PEFT looks all up
        with pytest.raises(ValueError, match=rf"{named} .* PEFT's prompt and prefix tuning are not taken; LoRA and"):
            tuned(**batch)


def test_what_the_backbone_would_take_but_sinks_cannot(tmp_path):
    model = CTRSinkForCTR(sink_config())
    batch = batch_of(model.config)
    with pytest.raises(ValueError, match=r"inputs_embeds is not taken: \[SINK\]s are embedded among the words"):
        model(**batch, inputs_embeds=torch.zeros(1))
    for value in (-3, 10**6):
        ids = batch["input_ids"].clone()
        ids[0, 0] = value
        with pytest.raises(ValueError, match=f"input_ids: {value} is out of range; the backbone's words are 0 to"):
            model(**{**batch, "input_ids": ids})
    of_fields = CTRSinkForCTR(sink_config(layout="split")).eval()
    with pytest.raises(ValueError, match=r"input_ids: 1000000 is out of range; the backbone's words are 0 to"):
        of_fields.encode_fields(torch.tensor([[1, 10**6]]))
    model.save_pretrained(tmp_path)
    for name in ("hidden_states", "attentions"):
        asked = CTRSinkForCTR.from_pretrained(tmp_path, attn_implementation="eager", **{f"output_{name}": True})
        assert len(getattr(asked(**batch), name)) > 1
    assert CTRSinkForCTR.from_pretrained(tmp_path, use_safetensors=None).config.sink_kind == model.config.sink_kind


def test_a_backbone_in_another_precision(tmp_path):
    model = CTRSinkForCTR(sink_config())
    model.model.language_model.save_pretrained(tmp_path)
    assert CTRSinkForCTR.from_backbone(str(tmp_path)).dtype == torch.float32
    for given in ({"dtype": torch.bfloat16}, {"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}):
        half = CTRSinkForCTR.from_backbone(str(tmp_path), **given)
        assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}, given
    with pytest.raises(ValueError, match=r"dtype='half-ish' is not accepted; use a torch.dtype or its name"):
        CTRSinkForCTR.from_backbone(str(tmp_path), dtype="half-ish")


@pytest.mark.parametrize("backbone", ["bert", "qwen2"])
@pytest.mark.parametrize("cut", [slice(0, 1), slice(0, 2)])
def test_masks_of_another_shape_are_not_broadcast(backbone, cut):
    model = model_of(backbone)
    batch = batch_of(model.config)
    for name in ("attention_mask", "target_mask"):
        for other in (batch[name][cut], batch[name][:, cut], batch[name][0]):
            with pytest.raises(ValueError, match=rf"{name}: shape \(.*\) does not fit input_ids of shape \(3, 13\)"):
                score(model, batch | {name: other})


def test_ids_and_buckets_are_whole_numbers():
    model = model_of("bert")
    batch = batch_of(model.config)
    for name in ("input_ids", "sink_buckets"):
        with pytest.raises(ValueError, match=f"{name}: .*torch.float32"):
            score(model, batch | {name: batch[name].float()})
    with pytest.raises(
        ValueError, match=r"input_ids: expected int64 of shape \(B, N\), got torch.int64 of shape \(13,\)"
    ):
        score(model, {"input_ids": batch["input_ids"][0]})
