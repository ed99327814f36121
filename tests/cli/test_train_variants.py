"""Variants of CTR-Sink as recipe values, from training to a prediction from raw texts."""

import inspect

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_helpers import error_of, predict, read, request_of, tiny_log
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaModel

from lmctr.cli.main import main
from lmctr.data.builders.kuairec import load_kuairec
from lmctr.models.ctr_sink.prompt import Prompt
from lmctr.runs.examples import example_batch
from lmctr.runs.folder import RunFolder, open_run
from lmctr.runs.loading import load_run
from lmctr.runs.recipe import load_recipe
from lmctr.training.lora import load_adapter
from lmctr.training.tokenizers import train_tokenizer


def train(recipe_file, folder, *words):
    base = ["train", str(recipe_file), "--output_dir", str(folder), "--data.baselines", "false"]
    short = ["--training.stage1_epochs", "1", "--training.stage2_epochs", "1", "--data.max_train_samples", "64"]
    assert main([*base, *short, *words]) == 0


def test_layout_split_from_training_to_prediction(recipe_file, tmp_path, capsys):
    folder = tmp_path / "run"
    train(recipe_file, folder, "--model.layout", "split", "--model.field_projection_size", "8")
    model, processor = load_run(folder)
    assert model.config.layout == processor.layout == "split"
    assert model.config.max_sinks == processor.num_behaviors
    assert model.config.max_elements == processor.max_elements == 2 + 2 * processor.num_behaviors
    assert model.config.field_projection_size == 8
    assert main(["push", str(folder), "user/name", "--dry-run"]) == 0
    log, table = tiny_log(), pq.read_table(folder / "predictions" / "test.parquet").slice(0, 4)
    answers = predict(folder, tmp_path, [request_of(log, event) for event in table["event"].to_pylist()])
    np.testing.assert_allclose([answer["logit"] for answer in answers], table["logit"].to_numpy(), atol=1e-4)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"layout": "split"', '"layout": "single"'))
    (folder / "lmctr_manifest.json").unlink()
    with pytest.raises(
        ValueError, match=r"layout is 'single' in the model's configuration and 'split' in the processor;"
    ):
        load_run(folder)


def test_layout_fields_from_training_to_prediction(recipe_file, tmp_path):
    """Two lists and a target of two lines, as four texts; the numbers of fields come from the prompt."""
    folder = tmp_path / "run"
    prompt = '{base: generic/en, item: "{title}\\nagain: {title}", behavior_item: "{title}"}'
    values = ("--data.feedback", "groups", "--data.prompt", prompt, "--model.sink_signal", "recency")
    train(recipe_file, folder, "--model.layout", "fields", *values)
    model, processor = load_run(folder)
    assert model.config.layout == processor.layout == "fields"
    assert (model.config.num_history_fields, model.config.num_target_fields) == (2, 2)
    assert len(model.head.projections) == 4
    assert model.config.max_sinks == 2 * processor.num_behaviors
    assert main(["evaluate", str(folder)]) == 0
    batch = example_batch(RunFolder(folder), processor)  # of the card, of push, of export
    assert (batch["field_ids"].amax(1) == 3).all()
    log, table = tiny_log(), pq.read_table(folder / "predictions" / "test.parquet").slice(0, 4)
    requests = [request_of(log, event) for event in table["event"].to_pylist()]
    requests = [{**one, "target": f"{one['target']}\nagain: {one['target']}"} for one in requests]
    answers = predict(folder, tmp_path, requests)
    np.testing.assert_allclose([answer["logit"] for answer in answers], table["logit"].to_numpy(), atol=1e-4)


@pytest.fixture
def bare_llama(tmp_path):
    """A decoder as some are published: no padding token, and special tokens that its embeddings have no row for."""
    texts = tiny_log().catalogue["title"].to_pylist()
    tokenizer = train_tokenizer(texts, "bpe", 400, use_template=False)
    tokenizer.pad_token = None
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    LlamaModel(config).save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_a_tokenizer_without_padding_and_with_tokens_beyond_the_embeddings(recipe_file, tmp_path, bare_llama, capsys):
    folder, backbone = tmp_path / "run", ("--model.backbone", str(bare_llama), "--model.tokenizer", "null")
    train(recipe_file, folder, *backbone)
    model, processor = load_run(folder)
    assert processor.tokenizer.pad_token == processor.tokenizer.eos_token == "<|endoftext|>"
    assert len(model.get_input_embeddings().weight) == processor.tokenizer.convert_tokens_to_ids("<image>")
    log, table = tiny_log(), pq.read_table(folder / "predictions" / "test.parquet").slice(0, 4)
    answers = predict(folder, tmp_path, [request_of(log, event) for event in table["event"].to_pylist()])
    np.testing.assert_allclose([answer["logit"] for answer in answers], table["logit"].to_numpy(), atol=1e-4)
    odd = {**request_of(log, int(table["event"][0])), "target": "Crime <image> [SINK]<|endoftext|>"}
    assert np.isfinite(predict(folder, tmp_path, [odd])[0]["logit"]), "a text's words are no special tokens"
    capsys.readouterr()
    prompt = '{base: generic/en, head: "<image> Items: "}'
    words = ("train", str(recipe_file), "--output_dir", str(tmp_path / "other"), "--data.prompt", prompt, *backbone)
    message = error_of(capsys, *words)
    assert f"model.tokenizer: its token ids go up to {model.config.text_config.vocab_size}, but" in message


def test_texts_are_cut_to_the_positions_of_backbones_without_a_table_of_them(recipe_file, tmp_path):
    """Rotary positions too end somewhere: longer rows are an error of the model, in the middle of a training."""
    backbone = "{model_type: qwen2, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, "
    backbone += "num_key_value_heads: 1, intermediate_size: 32, max_position_embeddings: 60}"
    words = ("--model.backbone", backbone, "--model.tokenizer", "{type: bpe, vocab_size: 400}")
    train(recipe_file, tmp_path / "run", *words)
    model, processor = load_run(tmp_path / "run")
    assert processor.max_length == model.model.max_positions == 60
    cut = read(tmp_path / "run", "data.json")["truncation"]["train"]
    assert cut["longest"] <= 60
    assert cut["share_truncated"] > 0
    # In the layout "split" only each text needs positions, and max_length counts all of them.
    train(recipe_file, tmp_path / "split", *words, "--model.layout", "split", "--data.max_length", "200")
    cut = read(tmp_path / "split", "data.json")["truncation"]["train"]
    assert cut["share_truncated"] == 0
    assert cut["longest"] > 60


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


def test_lora_run_keeps_its_adapter_beside_the_merged_model(recipe_file, tmp_path):
    folder = tmp_path / "run"
    train(recipe_file, folder, "--training.lora", "{r: 4}")
    merged, _ = load_run(folder)
    assert not any(path.parts[0] == "adapter" for path in open_run(folder, "model").upload_files())
    kept = load_file(folder / "adapter" / "adapter_model.safetensors")
    for name, value in merged.head.named_parameters():
        assert value.equal(kept[f"base_model.model.head.{name}"])
    random = "random weights, which no file keeps"
    assert read(folder / "adapter", "ctr_config.json")["base"].startswith(random)
    with pytest.raises(
        ValueError,
        match=rf"its weights are not those that the adapters in .* were trained on .*; these were {random}: .* the run's own model alone",
    ):
        load_adapter(merged, folder / "adapter")


@pytest.mark.parametrize("name", ["kuairec_roberta", "kuairec_qwen2"])
def test_kuairec_recipes_fit_their_builder_and_prompt(name):
    options = set(inspect.signature(load_kuairec).parameters) - {"path"}
    recipe = load_recipe(f"ctr_sink/{name}")
    assert set(recipe.data["options"]) <= options
    for language in ("en", "zh"):
        prompt = Prompt.load(f"kuairec/{language}")
        table = pa.table({"caption": ["午饭"], "categories": [["美食", "家常菜"]]})
        assert prompt.item_texts(table) == ["午饭" + {"en": " (美食, 家常菜)", "zh": "（美食, 家常菜）"}[language]]
        assert len(prompt.feedback_names) == 3


def test_lora_recipes_have_the_papers_settings():
    for name, kind in (("movielens_qwen2_lora", "Qwen/Qwen2"), ("movielens_qwen3_lora", "Qwen/Qwen3")):
        recipe = load_recipe(f"ctr_sink/{name}")
        assert recipe.training["lora"] == {"r": 32, "alpha": 64, "dropout": 0.1}
        assert recipe.training["weight_decay"] == 5e-5
        assert recipe.model["backbone"].startswith(kind)
