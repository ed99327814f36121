"""Variants of CTR-Sink as recipe values, from training to a prediction from raw texts."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_helpers import predict, read, request_of, tiny_log

from lmctr.cli.main import main
from lmctr.hub.loading import load_run


def train(recipe_file, folder, *words):
    base = ["train", str(recipe_file), "--output_dir", str(folder), "--data.baselines", "false"]
    short = ["--training.stage1_epochs", "1", "--training.stage2_epochs", "1", "--data.max_train_samples", "64"]
    assert main([*base, *short, *words]) == 0


def test_layout_split_from_training_to_prediction(recipe_file, tmp_path, capsys):
    folder = tmp_path / "run"
    train(recipe_file, folder, "--model.layout", "split", "--model.field_projection_size", "8")
    model, processor = load_run(folder)
    assert model.config.layout == processor.layout == "split"
    assert model.config.field_projection_size == 8
    assert main(["push", str(folder), "user/name", "--dry-run"]) == 0
    log, table = tiny_log(), pq.read_table(folder / "predictions" / "test.parquet").slice(0, 4)
    answers = predict(folder, tmp_path, [request_of(log, event) for event in table["event"].to_pylist()])
    np.testing.assert_allclose([answer["logit"] for answer in answers], table["logit"].to_numpy(), atol=1e-4)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"layout": "split"', '"layout": "single"'))
    with pytest.raises(ValueError, match=r"layout is 'single' in config\.json and 'split' in the processor's file"):
        load_run(folder)


def test_published_settings_are_recipe_values(recipe_file, tmp_path):
    """`sink_bias_causal=False` and `trailing_sink=False`, with the bias in every layer, on a decoder from scratch."""
    folder = tmp_path / "run"
    backbone = "{model_type: qwen2, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, "
    backbone += "num_key_value_heads: 1, intermediate_size: 32, max_position_embeddings: 128}"
    train(
        recipe_file,
        folder,
        *("--model.backbone", backbone, "--model.tokenizer", "{type: bpe, vocab_size: 400}"),
        *("--model.sink_bias_layers", "all", "--model.sink_bias_causal", "false", "--data.trailing_sink", "false"),
    )
    model, processor = load_run(folder)
    assert model.config.resolved_sink_bias_layers == (0, 1)
    assert model.config.sink_bias_causal is False
    assert not any(layer.is_causal for layer in model.model.sink_bias.layers)
    assert processor.trailing_sink is False
    assert np.isfinite(read(folder, "metrics.json")["split metrics"]["test"]["log_loss"])
