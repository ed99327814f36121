"""Exported graphs against the model itself, at shapes that the export did not see."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_run import Processor

from lmctr import CTRSinkForCTR
from lmctr.cli.main import main
from lmctr.hub import export
from lmctr.hub.export import export_model
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor

sys.path.append(str(Path(__file__).parents[1] / "models" / "ctr_sink"))

from test_fields_layout import batch_of as fields_batch
from test_fields_layout import fields_of
from test_split_layout import split_batch
from text_tokenizers import wordpiece
from tiny_models import BACKBONES, DECODERS, ENCODERS, batch_of, sink_config

KEYS = ("input_ids", "attention_mask", "sink_buckets")
OTHERS = [name for name in (*ENCODERS, *DECODERS) if name not in BACKBONES]


def model_of(backbone, layers=2, **values):
    torch.manual_seed(0)
    values = {"sink_bias_layers": "all", "sink_signal": ["recency", "feedback"]} | values
    values |= {"attn_implementation": None} if backbone in ("mpnet", "deberta-v2", "gemma2") else {}
    config = sink_config(backbone, **values)
    config.text_config.num_hidden_layers = layers  # tracing takes seconds per layer
    if hasattr(config.text_config, "layer_types"):
        types = config.text_config.layer_types  # the second one has a sliding window
        config.text_config.layer_types = types[1:2] if layers == 1 else types[:layers]
    return CTRSinkForCTR(config).eval()


def batches(model):
    """Padded on either side, of other sizes than the export's; a single row; rows without any sink; no padding."""
    right, left = batch_of(model.config, extra=7), batch_of(model.config, "left", seed=4)
    yield {key: torch.cat([right[key], right[key]])[:5] for key in KEYS}
    yield {key: left[key] for key in KEYS}
    yield {key: left[key][:1] for key in KEYS}
    yield {key: right[key][2:] for key in KEYS}


def expected(model, batch):
    with torch.no_grad():
        return model(**batch).logits.numpy()


_made = {}


@pytest.fixture
def one_graph(monkeypatch):
    """The tests of a BERT of one layer trace it once, and write one ONNX graph of it: they are about what comes after."""

    def once(place, name):
        function = getattr(place, name)

        def call(*args, **kwargs):
            if name not in _made:
                _made[name] = function(*args, **kwargs)
            return _made[name]

        monkeypatch.setattr(place, name, call)

    once(export, "_trace")
    once(torch.onnx, "export")


AHEAD = {"sink_bias_causal": False, "sink_signal": "recency"}


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "values"), [("bert", {}), ("qwen2", AHEAD)], ids=str)
def test_torch_programs_give_the_models_logits(backbone, values, request, tmp_path):
    """Of one type of each kind: ONNX is written from the same programs, of two types with two layers."""
    if backbone == "bert":
        request.getfixturevalue("one_graph")
    model = model_of(backbone, layers=1, **values)
    file = export_model(model, Processor(), tmp_path, format="torch")
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.pt2",
        "export.json",
        "parity.json",
        "processor_config.json",
    }
    program = torch.export.load(file).module()
    for batch in batches(model):
        np.testing.assert_allclose(program(**batch).numpy(), expected(model, batch), atol=1e-5)
    assert all(parameter.requires_grad for parameter in model.parameters())  # the model stays as it is


@pytest.mark.slow
@pytest.mark.parametrize("backbone", BACKBONES)
def test_onnx_gives_the_models_logits(backbone, request, tmp_path):
    if backbone == "bert":
        request.getfixturevalue("one_graph")
    model = model_of(backbone, layers=1)
    check_onnx(model, batches, tmp_path, KEYS)
    check_int8(model, tmp_path)
    if backbone == "bert":  # what does nothing is left out before the exporter goes through it
        idle = {"aten._assert_tensor_metadata.default", "aten.dropout.default"}
        assert not idle & {str(node.target) for node in _made["_trace"].graph.nodes}


def check_int8(model, folder):
    """onnxruntime's own quantiser, which transposes matrices, takes the graph: the shape of a weight stands with the weight alone."""
    onnx, runtime, tool = map(pytest.importorskip, ("onnx", "onnxruntime", "onnxruntime.quantization"))
    graph = onnx.load(folder / "model.onnx").graph
    assert {entry.name for entry in graph.value_info}.isdisjoint(entry.name for entry in graph.initializer)
    tool.quantize_dynamic(folder / "model.onnx", folder / "model.int8.onnx")
    assert any(node.op_type == "MatMulInteger" for node in onnx.load(folder / "model.int8.onnx").graph.node)
    session = runtime.InferenceSession(folder / "model.int8.onnx")
    for batch in batches(model):
        found = session.run(["logits"], {key: batch[key].numpy() for key in KEYS})[0]
        assert 0 < np.abs(found - expected(model, batch)).max() < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("backbone", [name for name in OTHERS if name != "camembert"])
def test_onnx_of_every_other_type(backbone, tmp_path):
    """Some seconds a layer and signal; of one type with a full and a sliding layer, of two with a sliding one."""
    model = model_of(backbone, 2 if backbone == "modernbert" else 1, sink_signal="recency")
    types = getattr(model.config.text_config, "layer_types", None)
    assert backbone not in ("modernbert", "gemma2", "gemma3_text") or types[-1] == "sliding_attention"
    check_onnx(model, batches, tmp_path, KEYS)


@pytest.mark.slow
def test_onnx_of_one_more_type_whose_statistics_are_an_input(tmp_path):
    """Of ONNX, and so of the program that it is written from."""

    def with_statistics(model):
        for batch in batches(model):
            yield {**batch, "statistics": torch.randn(len(batch["input_ids"]), 4)}

    model = model_of("camembert", layers=1, sink_signal="recency", num_statistics=4)
    check_onnx(model, with_statistics, tmp_path, (*KEYS, "statistics"))
    assert json.loads((tmp_path / "export.json").read_text())["inputs"] == [*KEYS, "statistics"]


def check_onnx(model, batches, folder, keys):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    session = onnxruntime.InferenceSession(export_model(model, Processor(), folder))
    assert [entry.name for entry in session.get_inputs()] == list(keys)
    assert session.get_inputs()[0].shape == ["batch", "length"]
    for batch in batches(model):
        found = session.run(["logits"], {key: batch[key].numpy() for key in keys})[0]
        np.testing.assert_allclose(found, expected(model, batch), atol=1e-4)


def layout_batches(model):
    """Padded on either side; a single row."""
    if model.config.encoder_prefix:
        made = [batch_of(model.config, extra=7), batch_of(model.config, "left", seed=4)]
    elif model.config.layout == "fields":
        made = [fields_batch(fields_of(1, 2), extra=3), fields_batch(fields_of(2, 2), "left")]
    else:
        made = [split_batch(model.config, extra=7), split_batch(model.config, "left", seed=4)]
    yield from made
    yield {key: value[:1] for key, value in made[1].items()}


LAYOUTS = [
    *(("bert", {"layout": layout}) for layout in ("fields", "split")),
    *(("qwen2", {"layout": layout}) for layout in ("fields", "split")),
    ("bert", {"encoder_prefix": True}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "values"), LAYOUTS[:2], ids=str)
def test_torch_programs_of_layouts(backbone, values, tmp_path):
    """Also the numbers of a row whose elements are more than those that were traced."""
    model = model_of(backbone, layers=1, **values)
    program = torch.export.load(export_model(model, Processor(), tmp_path, format="torch")).module()
    for batch in layout_batches(model):
        found = program(**{key: batch[key] for key in (*KEYS, "field_ids")}).numpy()
        np.testing.assert_allclose(found, expected(model, batch), atol=1e-5)


@pytest.mark.campaign
@pytest.mark.parametrize(("backbone", "values"), LAYOUTS, ids=str)
def test_onnx_of_layouts(backbone, values, tmp_path):
    """A minute or two each."""
    last = "target_mask" if values.get("encoder_prefix") else "field_ids"
    check_onnx(model_of(backbone, **values), layout_batches, tmp_path, (*KEYS, last))


@pytest.mark.parametrize("kind", ["none", "cls"])
def test_other_kinds_of_sinks_and_a_bf16_model(kind, tmp_path):
    model = model_of(
        "bert", layers=1, sink_kind=kind, sink_signal="none", sink_bias_layers="all" if kind == "cls" else None
    )
    processor = CTRSinkProcessor(wordpiece(vocab_size=50), sink_kind=kind, num_behaviors=2, prompt="generic/en")
    program = torch.export.load(export_model(model, processor, tmp_path, format="torch")).module()
    names = json.loads((tmp_path / "export.json").read_text())["inputs"]
    assert names == list(KEYS[: 3 if kind == "cls" else 2])
    batch = {key: value for key, value in batch_of(model.config).items() if key in names}
    np.testing.assert_allclose(program(**batch).numpy(), expected(model, batch), atol=1e-5)
    assert CTRSinkProcessor.from_pretrained(tmp_path).sink_kind == kind
    if kind == "none":  # whose graph is the smaller one
        half = torch.export.load(export_model(model.to(torch.bfloat16), processor, tmp_path, format="torch")).module()
        assert half(**batch).dtype == torch.float32
        assert next(model.parameters()).dtype == torch.bfloat16


def test_what_cannot_be_exported_is_named(tmp_path, monkeypatch):
    model = model_of("bert")
    with pytest.raises(ValueError, match="format='pickle' is not accepted; use one of onnx, torch"):
        export_model(model, Processor(), tmp_path, format="pickle")
    with pytest.raises(ValueError, match="got CTRSinkModel"):
        export_model(model.model, Processor(), tmp_path)
    windows = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    with pytest.raises(ValueError, match=r"layout=\"split\" has no sliding windows, which this qwen2 has"):
        export_model(model_of("qwen2", layout="split", text=windows), Processor(), tmp_path)
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install onnx onnxscript"):
        export_model(model, Processor(), tmp_path)
    model.is_quantized = True
    with pytest.raises(ValueError, match="quantised"):
        export_model(model, Processor(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_a_graph_that_differs_is_not_left(format, one_graph, tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    model = model_of("bert", layers=1)
    monkeypatch.setattr(export, "_TOLERANCE", -1.0)
    with pytest.raises(RuntimeError, match="gives other logits than the model"):
        export_model(model, Processor(), tmp_path, format)
    assert list(tmp_path.iterdir()) == []


def test_where_a_graph_may_not_be_written_is_told_and_nothing_is_written(run_dir, tmp_path, capsys):
    (tmp_path / "file").touch()
    for target, message in ((run_dir, "is the folder of the model itself"), (tmp_path / "file", "is a file; give a")):
        before = {path.name for path in run_dir.iterdir()}
        assert main(["export", str(run_dir), "--format", "torch", "--output", str(target)]) == 2
        assert f"--output {target} {message}" in capsys.readouterr().err
        assert {path.name for path in run_dir.iterdir()} == before


def test_a_place_that_may_not_be_written_is_told_before_tracing(run_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lmctr.hub.export._trace", lambda *_, **__: pytest.fail("the model was traced"))
    (tmp_path / "file").write_text("")
    assert main(["export", str(run_dir), "--output", str(tmp_path / "file" / "graph")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
