"""Graphs of models with several labels and with vectors made elsewhere; lists with weights are refused."""

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


def test_lists_with_weights_are_refused(tmp_path):
    fields = [*FIELDS, {"name": "tags", "type": "multi_value", "separator": " ", "weight_separator": ":"}]
    processor = TabularFeatureProcessor(fields, label=None).fit({**TABLE, "tags": ["u:1", "v:2", "", "u:1 v:2"]})
    model = DeepFMForCTR(DeepFMConfig(**processor.model_config_values(), hidden_units=[4]))
    with pytest.raises(ValueError, match=r"the lists tags have weights \(weight_separator\)"):
        export_model(model, processor, tmp_path, "torch")
