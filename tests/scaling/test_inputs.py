"""Random inputs of fixed size for every family of the library."""

import numpy as np
import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import lmctr
from lmctr.scaling.flops import measure_flops
from lmctr.scaling.inputs import RequestShape, random_inputs, request_shape

TEXT = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "vocab_size": 60, "max_position_embeddings": 64,
}  # fmt: skip
TABLE = {"vocab_sizes": [9, 12, 2], "num_numeric": 2, "embedding_dim": 4}
SEQUENCE = {
    "item_vocab_size": 40, "num_behaviors": 3, "num_scenarios": 2, "item_feature_vocab_sizes": [5, 6],
    "item_feature_widths": [1, 3], "user_feature_vocab_sizes": [4], "num_statistics": 2, "task_names": ["click", "like"],
}  # fmt: skip
IMPRESSION = {
    "user_vocab_sizes": [20, 8], "user_num_numeric": 1, "ad_vocab_sizes": [30], "ad_num_numeric": 2,
    "user_num_sequences": 1, "user_sequence_tables": [2], "embedding_dim": 4,
}  # fmt: skip
SMALL = {
    "rank_mixer": {"num_tokens": 4, "token_dim": 8},
    "rank_elastor": {"num_tokens": 4, "token_dim": 5},
    "fat": {"hidden_size": 8, "num_attention_heads": 2, "num_bases": 4, "meta_dim": 8},
    "astro": {
        "hidden_size": 16, "num_hidden_layers": 2, "sequence_length": 20, "strategies": [{"name": "a"}, {"name": "b"}]
    },
}  # fmt: skip


def config_of(family, **values):
    kind = CONFIG_MAPPING[family]
    bases = {base.__name__ for base in kind.__mro__}
    if family == "ctr_sink":
        shared = {"text_config": TEXT}
    else:
        shared = TABLE if "TabularCTRConfig" in bases else SEQUENCE if "SequenceCTRConfig" in bases else IMPRESSION
    return kind(**{**shared, **SMALL.get(family, {}), **values})


@pytest.mark.parametrize("family", lmctr.list_models())
def test_every_family(family):
    config = config_of(family)
    torch.manual_seed(0)
    model = lmctr.AutoModelForCTR.from_config(config).eval()
    shape = RequestShape(3, 20)
    inputs = random_inputs(config, shape, num_requests=2)
    with torch.no_grad():
        logits = model(**inputs).logits
    tasks = getattr(config, "num_tasks", 1)
    assert logits.numel() == 2 * 3 * tasks
    assert torch.isfinite(logits).all()
    again, other = (random_inputs(config, shape, 2, seed) for seed in (0, 1))
    assert all(torch.equal(inputs[name], again[name]) for name in inputs)
    assert any(not torch.equal(inputs[name], other[name]) for name in inputs)
    # the sizes are fixed: twice the requests cost twice as much, less what a call computes once from weights alone
    one, two = (measure_flops(model, random_inputs(config, shape, count)).total for count in (1, 2))
    assert (one < two <= 2 * one) or (family == "ffm" and two == 0)  # FFM has no matrix product


@pytest.mark.parametrize(
    "values",
    [
        {"sink_kind": "none", "sink_signal": "none"},
        {"sink_kind": "cls", "sink_signal": "none"},
        {"sink_signal": "none"},
        {"sink_signal": ["recency", "elapsed"]},
        {"layout": "split"},
        {"layout": "split", "sink_kind": "none", "sink_signal": "none"},
        {"num_statistics": 3},
    ],
)
def test_kinds_of_texts(values):
    config = config_of("ctr_sink", **values)
    model = lmctr.AutoModelForCTR.from_config(config).eval()
    inputs = random_inputs(config, RequestShape(2, 40), num_requests=3)
    with torch.no_grad():
        assert model(**inputs).logits.shape == (6,)
    if config.sink_kind != "none":
        buckets = inputs["sink_buckets"]
        is_sink = (buckets if buckets.dim() == 2 else buckets[..., 0]) >= 0
        assert is_sink.sum(1).tolist() == [3] * 6  # after 12 tokens each; the last behaviour is the target


@pytest.mark.parametrize(
    ("values", "length"),
    [
        ({"max_sinks": 2, "sink_signal": "recency"}, 62),
        ({"max_sinks": 2, "sink_signal": "recency", "encoder_prefix": True}, 62),
        ({"max_sinks": 2, "max_elements": 5, "layout": "split", "sink_signal": "recency"}, 61),
    ],
)
def test_texts_hold_what_the_model_reads(values, length):
    """A processor of few behaviours leaves bounds in the model's configuration."""
    config = config_of("ctr_sink", **values)
    inputs = random_inputs(config, RequestShape(2, length), 3)
    with torch.no_grad():
        assert lmctr.AutoModelForCTR.from_config(config).eval()(**inputs).logits.shape == (6,)
    assert (inputs["sink_buckets"] >= 0).sum(1).tolist() == [2] * 6


def test_sequences_of_a_table():
    config = config_of("dnn", num_sequences=2, sequence_tables=[1, 3], sequence_vocab_sizes=[50])
    inputs = random_inputs(config, RequestShape(2, 7), 3)
    assert inputs["sequence_ids"].shape == (6, 2, 7)
    assert inputs["sequence_ids"][:, 0].max() < 12
    assert inputs["sequence_ids"][:, 1].max() > 12
    assert inputs["sequence_ids"].min() >= 2  # no padding
    lmctr.DNNForCTR(config)(**inputs)


def test_default_shapes():
    assert request_shape(config_of("ctr_sink")) == RequestShape(1, 62)
    assert request_shape(config_of("dnn")) == RequestShape(1, 50)
    assert request_shape(config_of("astro")) == RequestShape(1, 20)
    assert request_shape(config_of("hstu", max_history_length=33)) == RequestShape(1, 33)
    assert request_shape(config_of("hstu"), candidates=9, length=5) == RequestShape(9, 5)


def test_numbers_of_numpy():
    assert RequestShape(np.int64(3), 7) == RequestShape(3, 7)


def test_bad_input():
    with pytest.raises(ValueError, match="candidates must be a whole number of at least 1, got 0"):
        RequestShape(0)
    with pytest.raises(ValueError, match="num_requests must be at least 1"):
        random_inputs(config_of("dnn"), num_requests=0)
    with pytest.raises(ValueError, match="no random inputs are known for BertConfig"):
        random_inputs(CONFIG_MAPPING["bert"]())
