"""Graphs of every family that reads no text, run by onnxruntime and by torch, against the model at shapes that were not traced."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_run import Processor
from transformers import AutoProcessor

import lmctr
from lmctr.cli.main import main
from lmctr.hub.export import export_model
from lmctr.hub.export_inputs import random_inputs
from lmctr.models.families import families, family_of
from lmctr.scaling.inputs import input_shapes
from lmctr.serving import RequestStatistics
from lmctr.statistics import ItemStatistics

sys.path.extend(str(Path(__file__).parents[1] / name) for name in ("models", "server"))

import sequence_tester
from retrieval_tester import FIELDS as OF_IMPRESSIONS
from served_runs import event_request, event_run, impression_run, text_run
from small_families import SMALL
from tabular_inputs import FIELDS as OF_TABLES

OF_SEQUENCES = {
    **sequence_tester.CONFIG,
    "item_feature_vocab_sizes": [5],
    "item_feature_widths": [2],
    "user_feature_vocab_sizes": [3],
    "num_statistics": 2,
}
VALUES = {"tabular": OF_TABLES, "sequence": OF_SEQUENCES, "impressions": OF_IMPRESSIONS}
SEARCHED = {"num_selected": 5}
MORE = {"twin": SEARCHED, "dlrm_twin": SEARCHED, "hstu next": {**SMALL["hstu"], "time_of": "next"}}
FAST = ("deepfm", "fat")
NAMES = [*(family.model_type for family in families() if family.input != "text"), "hstu next"]
ALL = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


def model_of(name, **more):
    family = family_of(name.split()[0])
    torch.manual_seed(0)
    values = VALUES[family.input] | SMALL.get(name, {}) | MORE.get(name, {}) | more
    model = family.load("ForCTR")(family.load("Config")(**values))
    with torch.no_grad():  # so that logits differ visibly, and what starts at zero counts
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("name", ALL)
def test_onnx_of_every_family(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = model_of(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    session = onnxruntime.InferenceSession(export_model(model, Processor(), tmp_path))
    assert {key: bool((value == before[key]).all()) for key, value in model.state_dict().items()} == dict.fromkeys(
        before, True
    )
    taken = [entry.name for entry in session.get_inputs()]
    assert taken == list(input_shapes(model.config))
    for sizes in ((4, 9, 5), (1, 1, 1)):
        batch = random_inputs(model.config, *sizes, seed=9)
        found = session.run(["logits"], {key: batch[key].numpy() for key in taken})[0]
        with torch.no_grad():
            expected = model(**batch).logits.numpy()
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=1e-4 * max(1, np.abs(expected).max()))
        assert expected.size == 1 or np.ptp(expected) > 1e-3
    parity = json.loads((tmp_path / "parity.json").read_text())
    assert parity["largest_difference"] <= 1e-4 * max(1, parity["largest_logit"])
    assert parity["run_by"].startswith("onnxruntime")
    details = json.loads((tmp_path / "export.json").read_text())
    assert details["inputs"] == taken


@pytest.mark.parametrize("most", [1, 2, 3])
def test_histories_as_long_as_the_model_has_positions(most, tmp_path):
    model = model_of("behavior_transformer", num_positions=most)
    program = torch.export.load(export_model(model, Processor(), tmp_path, format="torch")).module()
    assert json.loads((tmp_path / "export.json").read_text())["max_length"] == most
    for length in range(1, most + 1):
        batch = random_inputs(model.config, 4, length, 3, seed=5)
        with torch.no_grad():
            expected = model(**batch).logits
        torch.testing.assert_close(program(**batch), expected, atol=1e-5, rtol=1e-5)


def test_a_run_by_the_command_line(finished_run, tmp_path, capsys):
    path, model, processor = finished_run
    assert main(["export", str(path), "--format", "torch", "--output", str(tmp_path / "graph")]) == 0
    assert "model.pt2" in capsys.readouterr().out
    program = torch.export.load(tmp_path / "graph" / "model.pt2").module()
    history = [{"text": "Heat (Crime)", "time": 10, "feedback": "liked"}]
    batch = processor(histories=[history, []], targets=[{"text": "Casino"}, {"text": "Heat"}], times=[20, 20])
    names = json.loads((tmp_path / "graph" / "export.json").read_text())["inputs"]
    with torch.no_grad():
        expected = model(**batch).logits
    torch.testing.assert_close(program(**{name: batch[name] for name in names}), expected, atol=1e-5, rtol=1e-5)
    parity = json.loads((tmp_path / "graph" / "parity.json").read_text())
    assert parity["logits"] > 10
    assert parity["largest_difference"] < 1e-4


def test_runs_whose_examples_stand_beside_random_requests(tmp_path, capsys):
    """Ids of impressions as their processor makes them; fewer sinks than a text has places; what a consumer of the folder needs."""
    impressions = impression_run(tmp_path / "two_tower")
    text = text_run(
        tmp_path / "text", "bert", num_behaviors=2, model={"max_sinks": 2}, text_config={"num_hidden_layers": 1}
    )
    events = event_run(tmp_path / "events", "din", with_statistics=True)
    for run in (impressions, text, events):
        assert main(["export", str(run), "--format", "torch", "--output", str(run / "graph")]) == 0, run
        assert (run / "graph" / "model.pt2").is_file()
    read = {run: json.loads((run / "graph" / "export.json").read_text()) for run in (impressions, text, events)}
    columns = {run: {key: value.get("columns") for key, value in read[run]["input_details"].items()} for run in read}
    sides = lmctr.runs.load(str(impressions)).processor
    assert columns[impressions]["user_input_ids"] == [field.name for field in sides.user.fields if field.kind == "id"]
    assert columns[impressions]["ad_input_ids"] == [field.name for field in sides.ad.fields if field.kind == "id"]
    assert columns[impressions]["ad_mask"] is None
    assert set(columns[text].values()) == {None}
    processor = AutoProcessor.from_pretrained(events / "graph")
    counted = RequestStatistics(processor, ItemStatistics.load(events / "graph" / "item_statistics.parquet"))
    history = event_request(3)["history"]
    assert columns[events]["statistics"] == list(processor.statistics_reader.names)
    counted.extend(history)
    statistics = [[candidate["statistics"] for candidate in counted.fill([100, 101], 10**4)]]
    batch = processor([history], [[100, 101]], times=[10**4], statistics=statistics, return_tensors="pt")
    names = json.loads((events / "graph" / "export.json").read_text())["inputs"]
    with torch.no_grad():
        found = torch.export.load(events / "graph" / "model.pt2").module()(**{name: batch[name] for name in names})
    expected = lmctr.runs.load(str(events)).predict([{"history": history, "candidates": [100, 101], "time": 10**4}])
    np.testing.assert_allclose(found.reshape(-1), expected.reshape(-1), atol=1e-5)


def test_another_graph_is_noticed(tmp_path, monkeypatch):
    model = model_of("dnn")
    monkeypatch.setattr(type(model), "bake", lambda self: self.apply(lambda part: part.register_forward_hook(off)))
    with pytest.raises(RuntimeError, match="other logits than the model: largest difference"):
        export_model(model, Processor(), tmp_path, format="torch")


def off(module, inputs, output):
    """Adds to a part's output only where a graph is traced."""
    return output + 1.0 if torch.compiler.is_exporting() and isinstance(module, torch.nn.Linear) else None
