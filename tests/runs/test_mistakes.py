"""Mistakes of a recipe, or of a call, that are told before any data are read."""

import pytest
import yaml
from tiny_backbones import TINY_BERT
from transformers import AutoModel, BertConfig, BertModel, pipeline

import lmctr
from lmctr.cli.main import main
from lmctr.runs import train
from lmctr.runs.recipe import RecipeError

TEXT = {
    "data": {"name": "synthetic", "prompt": "generic/en"},
    "model": {
        "backbone": TINY_BERT,
        "tokenizer": {"type": "wordpiece", "vocab_size": 300},
    },
    "training": {"use_cpu": True},
}
TABLE = {"data": {"name": "synthetic_table"}, "model": {"family": "deepfm"}, "training": {"use_cpu": True}}


@pytest.fixture
def no_data(monkeypatch):
    """Reading data fails the test."""

    def read(*_, **__):
        pytest.fail("data were read")

    monkeypatch.setattr("lmctr.runs.training.Training._prepare", read)


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        (TABLE, {"training.per_device_train_batch_size": 0}, "per_device_train_batch_size must be at least 1, got 0"),
        (TABLE, {"training.per_device_eval_batch_size": -1}, "per_device_eval_batch_size must be at least 1"),
        (TABLE, {"training.gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be at least 1"),
        (TABLE, {"training.learning_rate": -1.0}, "learning_rate must be a number above 0, such as 1e-3, got -1.0; 0 leaves these weights as they are"),
        (TABLE, {"training.report_to": "neptune"}, "report_to names neptune, which is not installed; pip install neptune"),
        (TABLE, {"training.lora": {"r": 8}}, "training.lora adapts a language model, and deepfm has none"),
        (TABLE, {"data.seed": -1}, "data.seed is -1, accepted: a whole number from 0"),
        (TEXT, {"model.tokenizer.vocab_size": -1}, "model.tokenizer.vocab_size is -1, accepted: a whole number from 1"),
        (TEXT, {"training.lora": {"rank": 8}}, "unknown key 'rank' in training.lora"),
        (TEXT, {"training.lora": {"r": 0}}, "training.lora.r is 0, accepted: a whole number from 1"),
        (TEXT, {"model.backbone.num_attention_heads": 5}, "model.backbone.num_attention_heads is 5, accepted: a divisor of"),
        (TEXT, {"model.backbone.hidden_sise": 5}, "unknown key 'hidden_sise' in model.backbone; did you mean 'hidden_size'"),
        (TABLE, {"model.family": "autoint", "model.num_attention_heads": 7}, "accepted: a multiple of num_attention_heads=7"),
        (TABLE, {"training.learning_rte": 1}, "did you mean 'learning_rate'"),
        (TABLE, {"learning_rate": 1}, "learning_rate"),
        (TABLE, {"": 1}, "overrides: '': an empty key; give a group and a key, such as training.seed"),
        (TABLE, {"trainin.seed": 1}, "overrides: 'trainin.seed': give a group and a key, such as training.seed; groups: data, model, training"),
        (TABLE, [("training.seed", 1)], "overrides: expected a dict of dotted keys, such as {'training.seed': 1}, got [('training.seed', 1)] (list)"),
        (TABLE, "training.seed=1", "overrides: expected a dict of dotted keys, such as {'training.seed': 1}, got 'training.seed=1' (text)"),
        (TEXT, {"model.backbone.hidden_size": "wide"}, "model.backbone: Validation error for field 'hidden_size': TypeError: Field 'hidden_size' expected int"),
    ],
)  # fmt: skip
def test_values_are_checked_before_data_are_read(no_data, tmp_path, recipe, overrides, message):
    with pytest.raises(ValueError, match=r"(?s).*") as caught:
        train(recipe, output_dir=tmp_path / "run", overrides=overrides)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_bfloat16_without_an_accelerator_names_the_key_and_the_fix(no_data, tmp_path, monkeypatch):
    for name in ("is_torch_bf16_gpu_available", "is_torch_xla_available"):
        monkeypatch.setattr(f"lmctr.training.arguments.{name}", lambda: False)
    overrides = {"training.bf16": True, "training.use_cpu": False}
    with pytest.raises(ValueError, match=r"training\.bf16 false in a recipe.* or set use_cpu too"):
        train(TABLE, output_dir=tmp_path / "run", overrides=overrides)


def test_what_needs_times_is_told_before_rows_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("lmctr.runs.inputs.tabular.TabularInput.check", lambda *_: pytest.fail("rows were read"))
    with pytest.raises(ValueError, match=r"recency_half_life=3\.0 needs the time of each training sample"):
        train(TABLE, output_dir=tmp_path / "run", overrides={"training.recency_half_life": 3.0})


def test_a_recipe_without_a_name_needs_a_folder():
    with pytest.raises(ValueError, match="output_dir is missing"):
        train(TABLE)
    with pytest.raises(ValueError, match="resume is 'maybe', accepted: 'auto', True, False"):
        train(TABLE, output_dir="x", resume="maybe")
    with pytest.raises(RecipeError, match=r"overrides: model\.family is 'dien'"):
        train(TABLE, output_dir="x", overrides={"model.family": "dien"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_dir": 3}, "output_dir is 3, accepted: the path of a folder"),
        ({"output_dir": "file"}, "output_dir file: file is a file; give a folder"),
        ({"output_dir": "file/run"}, "output_dir file/run: file is a file; give a folder"),
        ({"output_dir": "other"}, "output_dir other is not empty and holds no run; give another folder"),
        ({"output_dir": "other", "overwrite": True}, "output_dir other is not empty and holds no run; give another"),
        ({"output_dir": "run", "overwrite": "no"}, "overwrite is 'no', accepted: True, False"),
    ],
)
def test_a_place_that_no_run_can_have(no_data, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").touch()
    with pytest.raises(ValueError, match=message):
        train(TABLE, **options)
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "other", "notes.txt"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder of another library's model."""
    folder = tmp_path_factory.mktemp("models") / "bert"
    BertModel(BertConfig(vocab_size=20, **{k: v for k, v in TINY_BERT.items() if k != "model_type"})).save_pretrained(
        folder
    )
    return folder


def test_another_librarys_model_is_told_as_such(bert):
    with pytest.raises(
        ValueError, match=r"bert/config.json: model_type is 'bert', which is no CTR model .* `model.backbone`"
    ):
        lmctr.runs.load(bert)
    for model in (str(bert), AutoModel.from_pretrained(bert)):
        with pytest.raises(ValueError, match=r"^model .*bert: model_type is 'bert', which is no CTR model of lmctr"):
            pipeline("click-prediction", model=model)
    with pytest.raises(ValueError, match="model: expected a model, a folder or a Hub id, got int 3"):
        pipeline("click-prediction", model=3)


def test_command_line_asks_for_a_recipe_and_lists_its_keys(capsys):
    assert main(["train"]) == 2
    assert "give a recipe (a YAML file" in capsys.readouterr().err
    assert main(["train", "--list-keys", "din"]) == 0
    printed = capsys.readouterr().out
    for key in ("data.name", "model.attention_hidden_sizes", "training.learning_rate"):
        assert f"{key}: " in printed
    assert main(["train", "--list-keys", "dien"]) == 2
    assert "dien" in capsys.readouterr().err


def test_another_family_s_checkpoint_is_named(tmp_path):
    config = lmctr.DeepFMConfig(vocab_sizes=[4, 5], embedding_dim=4)
    lmctr.DeepFMForCTR(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"this checkpoint is deepfm, .*; use AutoModelForCTR"):
        lmctr.DINForCTR.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="this checkpoint is deepfm"):
        lmctr.CTRSinkForCTR.from_pretrained(tmp_path)


def test_recipe_of_the_tests_is_whole(tmp_path):
    """The recipes above fail for no other reason."""
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(TABLE))
    assert lmctr.runs.recipe.load_recipe(tmp_path / "table.yaml").model["family"] == "deepfm"
    assert lmctr.runs.recipe.load_recipe(TEXT).model["family"] == "ctr_sink"


@pytest.mark.parametrize("given", [3, None, ""])
def test_what_is_no_run_is_told(given):
    with pytest.raises(ValueError, match="for a run, accepted: a folder, or a Hub id such as 'user/name'"):
        lmctr.runs.load(given)
