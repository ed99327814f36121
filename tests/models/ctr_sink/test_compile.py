"""The forward pass as one graph, and without a look from the host."""

import functools

import pytest
import torch
from test_split_layout import split_batch
from tiny_models import batch_of, rows, sink_config
from torch._dynamo.testing import CompileCounter
from transformers import masking_utils

from lmctr import CTRSinkForCTR
from lmctr.models.ctr_sink import modeling_ctr_sink

LABELS = torch.tensor([1.0, 0.0, 1.0])


def model_of(backbone, layers=1, **values):
    """A graph takes its time for each layer; two where layers differ, and of one type of each kind."""
    torch.manual_seed(0)
    config = sink_config(backbone, **({"sink_bias_layers": "all"} | values))
    config.text_config.num_hidden_layers = layers
    if hasattr(config.text_config, "layer_types"):
        config.text_config.layer_types = config.text_config.layer_types[:layers]
    return CTRSinkForCTR(config).eval()


@pytest.mark.parametrize(("backbone", "values"), [
    ("bert", {"max_sinks": None, "sink_signal": ["recency", "feedback"]}), ("qwen2", {"max_sinks": 7}),
])  # fmt: skip
def test_forward_is_one_graph_with_the_same_numbers(backbone, values):
    """With room for more sinks than there are: what is padded changes no number and no gradient."""
    torch._dynamo.reset()
    model = model_of(backbone, layers=2, **values)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for seed in (0, 1):
        batch = {**batch_of(model.config, seed=seed), "labels": LABELS}
        results = []
        for run in (model, compiled):
            model.zero_grad()
            out = run(**batch)
            out.loss.backward()
            grads = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None])
            results.append((out.logits.detach(), grads))
        torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("backbone", "values"),
    [
        *((kind, {}) for kind in ("mpnet", "deberta-v2", "modernbert", "gemma2", "gpt2")),
        ("bert", {"encoder_prefix": True}),
    ],
)
def test_every_way_of_the_bias_is_one_graph(backbone, values):
    """Through the layers, among the relative positions, with sliding windows, at another place among the arguments, with a mask of its own."""
    torch._dynamo.reset()
    model = model_of(backbone, layers=2, attn_implementation=None, **values)
    batch = batch_of(model.config)
    with torch.no_grad():
        found = torch.compile(model, fullgraph=True, backend="eager")(**batch).logits
        torch.testing.assert_close(found, model(**batch).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("backbone", ["bert", "qwen2"])
def test_forward_on_an_accelerator_reads_nothing_back(backbone, monkeypatch):
    """Tensors on "meta" have no values: whatever asks for one fails. (transformers' own look for padding is left out.)"""
    monkeypatch.setattr(masking_utils, "is_tracing", lambda *args: True)
    monkeypatch.setattr(modeling_ctr_sink, "without_values", lambda tensor: False)  # as on an accelerator
    batch = {name: value.to("meta") for name, value in batch_of(sink_config(backbone)).items()}
    assert model_of(backbone, max_sinks=7).to("meta")(**batch).logits.shape == (3,)
    with pytest.raises(NotImplementedError, match="meta"):
        model_of(backbone).to("meta")(**batch)


@pytest.mark.parametrize(("backbone", "side", "values"), [
    ("bert", "right", {"layers": 2, "max_elements": None, "sink_signal": ["recency", "feedback"]}), ("roberta", "left", {"sink_kind": "cls"}),
    ("qwen2", "right", {"max_sinks": 4}), ("qwen3", "left", {"field_norm": True}), ("bert", "right", {"sink_kind": "none", "sink_bias_layers": None}),
])  # fmt: skip
def test_split_rows_are_one_graph_with_the_same_numbers(backbone, side, values):
    """Of batches of other elements, compiled once; logits, gradients and both poolings, or, for one type of each kind, gradients that are compiled too.
    One type has a layer below and one above; of what is between layers of a kind the test above has one more."""
    torch._dynamo.reset()
    backend = "aot_eager" if "sink_signal" in values or "max_sinks" in values else "eager"
    values = {"layout": "split", "field_projection_size": 16, "max_elements": 9} | values
    model = model_of(backbone, **values).double()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    batches = [(0, "all"), (1, "all"), (1, model.poolings[-1])]
    for seed, pooling in batches if backend == "eager" else batches[:2]:  # another pooling is another graph
        batch = {**split_batch(model.config, side, seed=seed, extra=2), "labels": LABELS, "pooling": pooling}
        results = []
        for run in (model, compiled):
            model.zero_grad()
            out = run(**batch)
            out.loss.backward()
            results.append((out.logits.detach(), [p.grad for p in model.parameters() if p.grad is not None]))
        assert len(results[0][1]) == len(results[1][1])
        torch.testing.assert_close(results[1][0], results[0][0], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(results[1][1], results[0][1], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("layout", "room"), [("split", 9), ("split", None), ("single", None)])
def test_a_graph_is_made_once_for_all_lengths(layout, room):
    """Once for the first batch, once more for any length."""
    torch._dynamo.reset()
    model = model_of("bert", layout=layout, field_projection_size=16, max_elements=room, max_sinks=room)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    for extra in (0, 3, 1, 8):
        batch = split_batch(model.config, extra=extra)
        compiled(**(batch if layout == "split" else {**batch, "field_ids": None}))
    assert counter.frame_count == 2


@functools.cache
def compiled_of_split_rows(max_elements):
    """One graph for all batches of the same sizes."""
    torch._dynamo.reset()
    model = model_of("bert", layout="split", field_projection_size=16, max_elements=max_elements)
    return torch.compile(model, fullgraph=True, backend="eager")


@pytest.mark.parametrize(("change", "message"), [
    (lambda batch, sink: None, "more than 4 elements"),
    (lambda batch, sink: batch["field_ids"].masked_fill_(batch["field_ids"] == 1, 2), "without a gap"),
    (lambda batch, sink: batch["field_ids"].masked_fill_(sink, 0), "a sink shares its element|without a gap"),
])  # fmt: skip
def test_a_graph_of_split_rows_refuses_wrong_elements(change, message):
    most = 4 if "more" in message else 9
    compiled = compiled_of_split_rows(most)
    batch = split_batch(compiled.config)
    change(batch, batch["sink_buckets"] >= 0)
    with pytest.raises(RuntimeError, match=message):
        compiled(**batch)
    with pytest.raises(ValueError, match=r"max_elements=0.*a whole number of at least 1"):
        sink_config(max_elements=0)


def test_more_sinks_than_the_model_makes_room_for_are_an_error():
    batch = batch_of(sink_config())
    assert max(int((buckets >= 0).sum()) for _, buckets, _ in rows()) == 3
    with pytest.raises(ValueError, match=r"a row has 3 sinks, but the model has max_sinks=2"):
        model_of("bert", max_sinks=2)(**batch)
    torch._dynamo.reset()
    compiled = torch.compile(model_of("bert", max_sinks=2), fullgraph=True, backend="eager")
    with pytest.raises(RuntimeError, match="more than 2 sinks"):
        compiled(**batch)
    with pytest.raises(ValueError, match=r"max_sinks=0.*a whole number of at least 1"):
        sink_config(max_sinks=0)
