"""Graphs of models with several labels and with vectors made elsewhere; and of lists with weights."""

import json

import pytest
import torch

from lmctr import DeepFMConfig, DeepFMForCTR
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.hub.export import export_model
from lmctr.hub.model_card import build_card

TABLE = {"a": ["x", "y", "z", "x"], "b": ["p", "q", "p", "q"], "n": [1.0, 2.0, 0.5, 3.0]}
LABELS = {"click": [1, 0, 1, 0], "order": [1, 0, None, 0]}
FIELDS = [{"name": "a", "type": "categorical"}, {"name": "b", "type": "categorical"}, {"name": "n", "type": "numeric"}]


@pytest.mark.parametrize("head", ["ple", "esmm"])
def test_a_graph_gives_every_task(head, tmp_path):
    processor = TabularFeatureProcessor(FIELDS, "click", ["order"]).fit({**TABLE, **LABELS})
    torch.manual_seed(0)
    values = {
        "task_head": head,
        "task_units": [4],
        "hidden_units": [8],
        "embedding_dim": 4,
        "pretrained_dims": {"b": 3},
    }
    model = DeepFMForCTR(DeepFMConfig(**processor.model_config_values(), **values)).eval()
    torch.nn.init.normal_(model.model.embedding.groups["4"].pretrained["1"].bank.weight)
    file = export_model(model, processor, tmp_path, "torch", example=processor(TABLE))
    batch = processor({"a": ["z", "new", "y"], "b": ["q", "q", "p"], "n": [0.0, 5.0, 1.0]})
    with torch.no_grad():
        expected = model(**batch).logits
    graph = torch.export.load(file).module()
    found = graph(**batch)
    assert found.shape == (3, 2)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    assert "logits.sigmoid()  # (rows, 2): click, order\n" in build_card(tmp_path / "model")


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_lists_with_weights(tmp_path, format):
    fields = [*FIELDS, {"name": "tags", "type": "multi_value", "separator": " ", "weight_separator": ":"}]
    fields += [{"name": "plain", "type": "multi_value", "separator": " "}]
    lists = {"tags": ["u:1", "v:2", "", "u:1 v:2"], "plain": ["u", "v", "", "u v"]}
    processor = TabularFeatureProcessor(fields, label=None).fit({**TABLE, **lists})
    model = DeepFMForCTR(DeepFMConfig(**processor.model_config_values(), hidden_units=[4]))
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.5)
    file = export_model(model.eval(), processor, tmp_path, format)
    assert json.loads((tmp_path / "export.json").read_text())["input_details"]["sequence_weights"] == {
        "dtype": "float32",
        "axes": ["batch", 2, "length"],
        "columns": ["tags", "plain"],
    }
    rows = {"a": ["x", "y"], "b": ["p", "p"], "n": [0.5, 2.0], "tags": ["u:3 v:1", "u:1 v:3"], "plain": ["u", "u v"]}
    batch = processor(rows)
    with torch.no_grad():
        expected = model(**batch).logits
    if format == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(file)
        named = {entry.name: batch[entry.name].numpy() for entry in session.get_inputs()}
        found = torch.from_numpy(session.run(["logits"], named)[0])
    else:
        found = torch.export.load(file).module()(**batch)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    even = {**batch, "sequence_weights": torch.ones_like(batch["sequence_weights"])}
    assert (model(**even).logits - expected).abs().max() > 0.01
