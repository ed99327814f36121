"""Layout "fields": each text field through the lower half with its sinks, the field vectors through the upper one."""

import pytest
import torch
from model_tester import CTRModelTesterMixin
from peft import LoraConfig, get_peft_model
from test_equations import layer_norm
from tiny_models import VOCAB, sink_config

from lmctr import CTRSinkConfig, CTRSinkForCTR, CTRSinkModel

# Per row and field: number of tokens, and the sinks' places in it. The second row has a history without sinks.
ROWS = [
    ((7, (2, 4)), (5, (1, 3)), (3, ()), (4, ())),
    ((2, ()), (6, (3,)), (2, ()), (1, ())),
    ((4, (3,)), (3, (2,)), (5, ()), (2, ())),
]
BACKBONES = ("bert", "roberta", "xlm-roberta", "camembert", "qwen2", "qwen3", "llama")


def fields_of(seed=0, num_signals=1):
    """Rows of fields: (ids, buckets (n, S)) each."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for row in ROWS:
        fields = []
        for length, sinks in row:
            buckets = torch.full((length, num_signals), -1)
            for sink in sinks:
                buckets[sink] = torch.randint(0, 10, (num_signals,), generator=generator)
            fields.append((torch.randint(5, VOCAB, (length,), generator=generator), buckets))
        made.append(fields)
    return made


def batch_of(made, side="right", extra=0):
    width = extra + max(sum(len(ids) for ids, _ in fields) for fields in made)
    batch = {key: [] for key in ("input_ids", "attention_mask", "sink_buckets", "field_ids", "target_mask")}
    for fields in made:
        ids = torch.cat([ids for ids, _ in fields])
        owner = torch.cat([torch.full((len(ids),), number) for number, (ids, _) in enumerate(fields)])
        values = (ids, torch.ones_like(ids), torch.cat([b for _, b in fields]), owner, owner > 1)
        for key, value, fill in zip(batch, values, (1, 0, -1, -1, False), strict=True):
            space = value.new_full((width - len(ids), *value.shape[1:]), fill)
            batch[key].append(torch.cat([value, space] if side == "right" else [space, value]))
    return {key: torch.stack(values) for key, values in batch.items()}


def model_of(backbone="bert", implementation="sdpa", **values):
    torch.manual_seed(0)
    return CTRSinkForCTR(sink_config(backbone, implementation, layout="fields", **values)).eval()


class FieldsTester(CTRModelTesterMixin):
    config_class, model_class, base_class = CTRSinkConfig, CTRSinkForCTR, CTRSinkModel
    backbone = None
    bounds = {"max_sinks": 7}

    def make_config(self, **values):
        return sink_config(self.backbone, layout="fields", **({"sink_signal": ["recency", "feedback"]} | values))

    def make_batch(self, config, seed=0):
        return {**batch_of(fields_of(seed, 2)), "labels": torch.tensor([1.0, 0.0, 1.0])}

    def test_attentions_are_refused_where_they_are_asked_for(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        expected = model(**batch)
        assert torch.equal(model(**batch, output_attentions=False).logits, expected.logits)
        of_texts = LoraConfig(target_modules="all-linear", task_type="SEQ_CLS")  # whose wrapper gives None
        torch.testing.assert_close(get_peft_model(self.make_model(), of_texts).eval()(**batch).logits, expected.logits)
        with pytest.raises(ValueError, match=r'output_attentions=True is not accepted with layout="fields"'):
            model(**batch, output_attentions=True)


class TestBertFields(FieldsTester):
    backbone = "bert"


class TestQwen3Fields(FieldsTester):
    backbone = "qwen3"
    has_float64 = False


def lower_states(model, ids, buckets):
    """States of one field behind the lower half: the backbone cut to it, called for this field alone, its bias by the layer."""
    single = CTRSinkConfig(
        **{
            **model.config.to_dict(),
            "layout": "single",
            "sink_bias_layers": list(model.config.resolved_sink_bias_layers),
        }
    )
    single._attn_implementation = "eager"
    other = CTRSinkForCTR(single).eval().double()
    other.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("head.")}, strict=False)
    backbone, half = other.model.language_model, model.config.num_lower_layers
    if model.config.is_causal:
        backbone.layers = backbone.layers[:half]
    else:
        backbone.encoder.layer = backbone.encoder.layer[:half]
    backbone.config.num_hidden_layers = half
    with torch.no_grad():
        return other.model(input_ids=ids[None], sink_buckets=buckets[None]).last_hidden_state[0]


def upper_states(model, vectors):
    """The field vectors behind the upper half, layer by layer with a plain mask."""
    backbone, half = model.model.language_model, model.config.num_lower_layers
    count = len(vectors)
    hidden, options = vectors[None], {}
    mask = torch.zeros(1, 1, count, count, dtype=vectors.dtype)
    layers = backbone.encoder.layer if not model.config.is_causal else backbone.layers
    if model.config.is_causal:
        mask = mask.masked_fill(torch.ones(count, count, dtype=torch.bool).triu(1), -torch.inf)
        positions = torch.arange(count)[None]
        options = {"position_embeddings": backbone.rotary_emb(hidden, positions), "position_ids": positions}
    for layer in layers[half:]:
        hidden = layer(hidden, attention_mask=mask, **options)
    return (backbone.norm(hidden) if model.config.is_causal else hidden)[0]


def leaky(x):
    return torch.where(x > 0, x, 0.01 * x)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("pooling", ["all", "sinks"])
def test_equals_the_model_field_by_field(backbone, pooling):
    """In float64 against one call per field, loops over fields, and the head written out."""
    four = {"num_hidden_layers": 4}
    model = model_of(backbone, "eager", text=four, sink_bias_layers=[0, 1], sink_bias_scale_init=2.5).double()
    made = fields_of()
    with torch.no_grad():
        found = model(**batch_of(made), pooling=pooling).logits
        head, expected = model.head, []
        for fields in made:
            vectors = []
            for number, (ids, buckets) in enumerate(fields):
                states = lower_states(model, ids, buckets)
                tokens = list(range(len(ids)))
                if pooling == "sinks" and number < 2:
                    tokens = [token for token in tokens if buckets[token, 0] >= 0] or [0]
                vectors.append(sum(states[token] for token in tokens) / len(tokens))
            upper = upper_states(model, torch.stack(vectors))
            parts = []
            for part, state in zip(head.projections, upper):
                parts.append(part[2].weight @ leaky(part[0].weight @ state + part[0].bias) + part[2].bias)
            fused = head.fusion.weight @ torch.cat(parts) + head.fusion.bias
            hidden = head.dense.weight @ leaky(layer_norm(fused, head.norm)) + head.dense.bias
            expected.append((head.out.weight @ leaky(hidden) + head.out.bias).item())
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32), atol=2e-5, rtol=1e-5)
    assert len(set(found.tolist())) == 3


@pytest.mark.parametrize("backbone", BACKBONES)
def test_padding_and_batch_change_no_score(backbone):
    model, made = model_of(backbone), fields_of()
    with torch.no_grad():
        right = model(**batch_of(made)).logits
        left = model(**batch_of(made, "left", extra=2)).logits
        alone = torch.cat([model(**batch_of([row])).logits for row in made])
    torch.testing.assert_close(left, right, atol=1e-5, rtol=0)
    torch.testing.assert_close(alone, right, atol=1e-5, rtol=0)


def test_default_layers_are_the_authors_inside_the_lower_half():
    def layers(backbone, count):
        return sink_config(backbone, layout="fields", text={"num_hidden_layers": count}).resolved_sink_bias_layers

    assert layers("qwen2", 24) == tuple(range(12))
    assert layers("qwen3", 27) == tuple(range(9))
    assert layers("bert", 12) == (0, 1)
    assert layers("bert", 2) == (0,)
    with pytest.raises(ValueError, match=r"indices from 0 to 0 \(no sink passes the upper half\)"):
        sink_config(layout="fields", sink_bias_layers=[1])


def test_errors():
    model, made = model_of(), fields_of()
    batch = batch_of(made)
    with pytest.raises(ValueError, match=r"takes input_ids \(B, N\) with field_ids .*got \(3, 19\) and None"):
        model(**{**batch, "field_ids": None})
    missing = batch["field_ids"].clone()
    missing[1, missing[1] == 3] = 2
    with pytest.raises(ValueError, match="row 1 has no token of field 3; the model reads 4 fields"):
        model(**{**batch, "field_ids": missing})
    beyond = batch["field_ids"].clone()
    beyond[1, 0] = 4
    with pytest.raises(ValueError, match="a token of field 4; the model reads the fields 0 to 3, and -1 is padding"):
        model(**{**batch, "field_ids": beyond})
    with pytest.raises(ValueError, match=r"field_vectors are not used with layout=\"fields\""):
        model(**batch, field_vectors=torch.zeros(3, 4, 32))
    with pytest.raises(ValueError, match=r"layout='fields' is not accepted; .*of two layers or more of type bert"):
        sink_config("gpt2", None, layout="fields")
    windows = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    with pytest.raises(ValueError, match="no sliding windows"):
        sink_config("qwen2", layout="fields", text=windows)


@pytest.mark.parametrize("layers", [None, []])
def test_an_attention_that_ignores_masks_is_refused_on_every_device(layers):
    """On "meta" as on accelerators, where values are not looked at."""
    model = model_of("qwen2", max_sinks=5, sink_bias_layers=layers).to("meta")
    model.model.language_model.config._attn_implementation = "flash_attention_2"
    batch = {name: value.to("meta") for name, value in batch_of(fields_of()).items()}
    with pytest.raises(ValueError, match=r"'flash_attention_2' cannot carry the sink bias, .*layout=\"fields\""):
        model(**batch)


def test_fields_are_one_graph():
    torch._dynamo.reset()
    model, batch = model_of("qwen2", max_sinks=5), batch_of(fields_of())
    with torch.no_grad():
        found = torch.compile(model, fullgraph=True, backend="eager")(**batch).logits
        torch.testing.assert_close(found, model(**batch).logits, atol=1e-6, rtol=0)
