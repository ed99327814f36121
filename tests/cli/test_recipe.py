from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from text_tokenizers import wordpiece

from lmctr.cli.main import split_overrides
from lmctr.runs.inputs.text_build import scratch_text_config
from lmctr.runs.recipe import RecipeError, compare_recipes, load_recipe, parse_yaml, with_epochs
from lmctr.utils.resources import find_resource, list_resources

MINIMAL = """
data:
  name: synthetic
model:
  backbone: some/model
training:
  stage2_epochs: 1
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write


def test_defaults_are_filled_in(write):
    recipe = load_recipe(write(MINIMAL))
    assert recipe.data["num_behaviors"] == 50
    assert recipe.data["fractions"] == [0.8, 0.1, 0.1]
    assert recipe.model["family"] == "ctr_sink"
    assert recipe.model["num_sink_buckets"] == 100
    assert recipe.training == {"stage2_epochs": 1}
    assert recipe.resolved()["training"]["weight_decay"] == 5e-5


def test_resolved_recipe_reads_back_as_itself(write, tmp_path):
    recipe = load_recipe(write(MINIMAL + "  learning_rate: 1e-3\n  early_stopping_patience: 2\n"))
    recipe.save(tmp_path / "resolved.yaml")
    again = load_recipe(tmp_path / "resolved.yaml")
    assert again.resolved() == recipe.resolved()
    assert compare_recipes(yaml.safe_load((tmp_path / "resolved.yaml").read_text()), recipe.resolved()) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "stage2_epochs: 1",
            "lerning_rate: 1",
            r"unknown key 'lerning_rate' in training \(.*recipe.yaml\); did you mean 'learning_rate'",
        ),
        ("name: synthetic", "name: synthetic\n  num_behavior: 5", "did you mean 'num_behaviors'"),
        ("backbone: some/model", "backbone: some/model\n  sink_knd: cls", "did you mean 'sink_kind'"),
        ("training:", "trainings:", "unknown key 'trainings' in .*recipe.yaml; did you mean 'training'"),
        ("stage2_epochs: 1", "learning_rate: fast", r"training.learning_rate is 'fast' \(text\), accepted: a number"),
        (
            "stage2_epochs: 1",
            "stage2_epochs: 1.5",
            r"training.stage2_epochs is 1.5 \(a number\), accepted: a whole number",
        ),
        (
            "stage2_epochs: 1",
            "stage2_epochs: true",
            r"training.stage2_epochs is True \(true or false\), accepted: a whole",
        ),
        ("stage2_epochs: 1", "bf16: yes", r"training.bf16 is 'yes' \(text\), accepted: true or false"),
        (
            "stage2_epochs: 1",
            "num_train_epochs: 3",
            "num_train_epochs is not set in a recipe; set training.stage1_epochs",
        ),
        ("stage2_epochs: 1", "hub_token: abc", "lmctr push"),
        ("name: synthetic", "num_behaviors: 5", "data.name is missing; accepted: text"),
        (
            "name: synthetic",
            "name: synthetic\n  num_behaviors: 0",
            "data.num_behaviors is 0, accepted: a whole number from 1",
        ),
        ("name: synthetic", "name: synthetic\n  fractions: [0.5, 0.1, 0.1]", "add up to 1"),
        ("name: synthetic", "name: synthetic\n  fractions: 0.5", r"accepted: a list of numbers"),
        ("name: synthetic", "name: synthetic\n  order: newest", "accepted: recent, similarity, time"),
        ("name: synthetic", "name: synthetic\n  order: similarity", "set data.retrieval"),
        ("name: synthetic", "name: synthetic\n  retrieval: {encodr: tfidf}", "unknown key 'encodr' in data.retrieval"),
        ("name: synthetic", "name: synthetic\n  path: x\n  options: {path: y}", "both set"),
        (
            "name: synthetic",
            "name: synthetic\n  max_length: None",
            r"'None' \(text\), accepted: a whole number or null",
        ),
        ("backbone: some/model", "family: dnm\n  backbone: x", r"accepted: ctr_sink.*two_tower. Did you mean 'dnn'\?"),
        (
            "backbone: some/model",
            "embedding_dim: 4",
            "unknown key 'embedding_dim'.*; without model.family it is ctr_sink",
        ),
        (
            "backbone: some/model",
            "layout: fields",
            "backbone is missing; accepted: .*; without model.family it is ctr_sink",
        ),
        (
            "backbone: some/model",
            "sink_order: recent\n  backbone: x",
            "model.sink_order is not set in a recipe; set data.order",
        ),
        (
            "backbone: some/model",
            "backbone: x\n  sink_kind: none\n  sink_signal: recency",
            "recipe.yaml: model.sink_signal is 'recency', accepted: \"none\" with sink_kind='none'",
        ),
        (
            "name: synthetic",
            "name: synthetic\n  feedback: sink",
            r"model.sink_signal is 'recency', accepted: one that holds 'feedback' or .*, with feedback='sink'",
        ),
        ("backbone: some/model", "backbone: x\n  sink_signal: feedback", "data.feedback is 'none', accepted: 'sink' "),
        ("backbone: some/model", "backbone: x\n  layout: fields", "data.feedback is 'none', accepted: 'groups' with"),
        ("backbone: some/model", "backbone: x\n  sink_signal: statistic:x", "model.sink_signal holds statistic:x: "),
        ("backbone: some/model", "backbone: {hidden_size: 3}\n  tokenizer: x", "without model_type"),
        ("backbone: some/model", "backbone: {model_type: bert}", "model.tokenizer is missing"),
        (
            "backbone: some/model",
            "backbone: x\n  tokenizer: {type: bpe}",
            r"knows only its own ids; leave model.tokenizer out \(null,",
        ),
        ("backbone: some/model", "backbone: {model_type: bert}\n  tokenizer: {type: spm}", "accepted: wordpiece, bpe"),
        ("data:", "data: 5\nmore:", "unknown key 'more'"),
        ("  name: synthetic", "  - synthetic", "group data must be a mapping"),
        ("name: synthetic", "name: synthetic\n  name: movielens", "line 4: not valid YAML: key 'name' is given twice"),
        ("name: synthetic", "name: [synthetic", "not valid YAML"),
    ],
)
def test_errors_name_key_file_value_and_what_is_accepted(write, old, new, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(MINIMAL.replace(old, new, 1)))


def test_a_model_of_the_library_is_no_backbone(write, tmp_path):
    (tmp_path / "run").mkdir()
    config = tmp_path / "run" / "config.json"
    text = MINIMAL.replace("some/model", str(config.parent), 1)
    config.write_text('{"model_type": "ctr_sink"}')
    with pytest.raises(RecipeError, match=r"model.backbone '\S*run' is a model of lmctr, .*: --from \S*run"):
        load_recipe(write(text))
    config.write_text('{"model_type": "bert"}')
    load_recipe(write(text))


@pytest.mark.parametrize(
    ("group", "key", "says"),
    [
        ("training", "lr", "did you mean 'learning_rate'?"),
        ("data", "ad_features", "families of the kind impressions have it, this one has not; "),
    ],
)
def test_what_is_said_of_a_key_stands_behind_the_whole_name_of_the_file(tmp_path, group, key, says):
    path = tmp_path / "monday; tuesday.yaml"
    groups = yaml.safe_load(MINIMAL)
    groups[group][key] = 1
    path.write_text(yaml.safe_dump(groups))
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    assert str(error.value).startswith(f"unknown key {key!r} in {group} ({path}); {says}")


def test_a_recipe_sets_what_differs_from_its_base(write, tmp_path):
    (tmp_path / "common.yaml").write_text(
        MINIMAL.replace("name: synthetic", "name: synthetic\n  options: {a: 1, b: 2}")
    )
    text = "base: common.yaml\ndata: {options: {b: 3}, seed: 4}\ntraining: {stage2_epochs: 2}\n"
    recipe = load_recipe(write(text), [("data.options.a", "7")])
    assert recipe.data["options"] == {"a": 7, "b": 3}
    assert (recipe.data["seed"], recipe.model["backbone"]) == (4, "some/model")
    assert recipe.training == {"stage2_epochs": 2}
    assert "base" not in recipe.resolved()
    assert load_recipe(write("base: ctr_sink/quickstart\n")).data["num_behaviors"] == 12
    smaller = load_recipe(write("base: ctr_sink/quickstart\nmodel: {backbone: {model_type: bert, hidden_size: 32}}\n"))
    assert smaller.model["backbone"]["num_hidden_layers"] == 2
    other = load_recipe(write("base: ctr_sink/quickstart\nmodel: {backbone: {model_type: qwen2, hidden_size: 32}}\n"))
    assert other.model["backbone"] == {"model_type": "qwen2", "hidden_size": 32}, "another kind has other keys"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: recipe.yaml", "leads back to a recipe that starts from it"),
        ("base: [a]", "accepted: the recipe that this one starts from"),
        ("base: bad.yaml", "unknown key 'dat' in bad.yaml .the base of"),
    ],
)
def test_errors_of_a_base(write, tmp_path, text, message):
    (tmp_path / "bad.yaml").write_text("dat: {}")
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(text))


def test_missing_recipe_offers_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="did you mean 'ctr_sink/quickstart'"):
        load_recipe("recipes/ctr_sink/quickstrat.yaml")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe(tmp_path)
    with pytest.raises(ValueError, match=r"the name of a recipe has at most 200 characters, got 300: 'aaaa"):
        load_recipe("a" * 300)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_recipe(tmp_path / ("a" * 300))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("-2E5", -2e5),
        (".5", 0.5),
        ("3.", 3.0),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("2020-01-01", "2020-01-01"),
        ("1_000", 1000),
        ("[recency, feedback]", ["recency", "feedback"]),
        ("null", None),
        ("none", "none"),
        ("v1e3", "v1e3"),
    ],
)
def test_yaml_scalars(text, value):
    parsed = parse_yaml(text, "here")
    assert parsed == value
    assert type(parsed) is type(value)


def test_overrides_are_typed_and_reach_nested_keys(write):
    overrides = [
        ("training.learning_rate", "1e-3"),
        ("data.options.num_users", "7"),
        ("data.path", "some/where"),
        ("model.sink_signal", "[recency, feedback]"),
        ("data.feedback", "sink"),
        ("model.backbone", "{model_type: bert, hidden_size: 8, num_attention_heads: 2}"),
        ("model.tokenizer.type", "bpe"),
        ("data.max_length", "null"),
    ]
    recipe = load_recipe(write(MINIMAL), overrides)
    assert recipe.training["learning_rate"] == 1e-3
    assert recipe.data["options"] == {"num_users": 7}
    assert recipe.data["path"] == "some/where"
    assert recipe.model["sink_signal"] == ["recency", "feedback"]
    assert recipe.model["tokenizer"] == {"type": "bpe", "vocab_size": 8192, "lowercase": True, "min_frequency": 1}


def test_whole_numbers_are_fine_where_numbers_are_wanted(write):
    value = load_recipe(write(MINIMAL), [("training.learning_rate", "1")]).training["learning_rate"]
    assert value == 1.0
    assert isinstance(value, float)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (("training.learning_rat", "1"), r"in training \(the command line\); did you mean 'learning_rate'"),
        (("training.learning_rate", "fast"), "the command line: training.learning_rate is 'fast'"),
        (
            ("model.backbone.hidden_size", "8"),
            "model.backbone is 'some/model' .* not a group of keys; set --model.backbone",
        ),
        (("data.options", "[1"), "--data.options.* not valid YAML"),
        (
            ("data.prompt.item", "{title}[, {brand}]"),
            """begins with { stands in quotes .*: --data.prompt.item '"{title}\\[, {brand}\\]"'""",
        ),
        (("data..x", "1"), "--data..x: an empty key; give a group and a key, such as training.seed"),
    ],
)
def test_bad_overrides(write, override, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(MINIMAL), [override])


def test_values_as_python_has_them():
    groups = {"data": {"name": Path("x.yaml")}, "model": {"family": "dnn", "embedding_dim": np.int64(4)}}
    recipe = load_recipe(groups, {"training.learning_rate": np.float32(0.5), "model.hidden_units": np.array([8, 4])})
    assert recipe.data["name"] == "x.yaml"
    assert (recipe.model["embedding_dim"], recipe.model["hidden_units"]) == (4, [8, 4])
    assert recipe.training["learning_rate"] == 0.5
    assert {type(recipe.model["embedding_dim"]), type(recipe.training["learning_rate"])} == {int, float}
    with pytest.raises(
        RecipeError, match=r"data.name is a 0 1 1 2 \(DataFrame\), accepted: text, .*from_columns.*save\(FOLDER\)"
    ):
        load_recipe({**groups, "data": {"name": pd.DataFrame({"a": [1, 2]})}})
    with pytest.raises(RecipeError, match=r"data.name is 5 \(a whole number\), accepted: text$"):
        load_recipe({**groups, "data": {"name": 5}})


def test_numbers_that_other_readers_of_yaml_give_as_texts():
    """A shipped recipe, read by PyYAML, changed and given to `runs.train`: there 2e-3 is a text."""
    path = find_resource("recipes", "ctr_sink/quickstart.yaml")
    groups = yaml.safe_load(path.read_text())
    assert groups["training"]["learning_rate"] == "2e-3"
    assert load_recipe(groups).training == load_recipe(path).training
    share = {"training.boosting_share": "5e-1", "training.optim_args": "1e-3", "training.lr_scheduler_kwargs": "1e-3"}
    assert [load_recipe(groups, share).training[key.split(".")[1]] for key in share] == [0.5, "1e-3", "1e-3"]
    with pytest.raises(RecipeError, match=r"training.seed is '1e3' \(text\), accepted: a whole number"):
        load_recipe({**groups, "training": {"seed": "1e3"}})


def test_a_backbone_takes_the_common_names_of_its_sizes(write):
    """GPT-2's own name of its width is n_embd; transformers takes both."""
    new = "backbone: {model_type: gpt2, hidden_size: 32, num_attention_heads: 2}\n  tokenizer: {type: bpe}"
    assert load_recipe(write(MINIMAL.replace("backbone: some/model", new))).model["backbone"]["hidden_size"] == 32
    with pytest.raises(
        RecipeError, match=r"num_attention_heads is 3, accepted: a divisor of .*hidden_size, which is 32"
    ):
        load_recipe(write(MINIMAL.replace("backbone: some/model", new.replace("heads: 2", "heads: 3"))))
    with pytest.raises(
        RecipeError, match=r"unknown key 'intermediate_size' in model.backbone; did you mean 'n_inner'\?"
    ):
        load_recipe(
            write(MINIMAL.replace("backbone: some/model", new.replace("heads: 2", "heads: 2, intermediate_size: 8")))
        )


def test_a_backbone_from_scratch_has_the_marks_of_its_tokenizer():
    """Those that its configuration names: ModernBERT's own default lies outside a small vocabulary."""
    tokenizer = wordpiece()
    config = scratch_text_config({"model_type": "modernbert"}, tokenizer)
    assert (config["cls_token_id"], config["sep_token_id"]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert "cls_token_id" not in scratch_text_config({"model_type": "bert"}, tokenizer)


def test_overrides_are_taken_out_of_the_command_line():
    words, overrides = split_overrides(
        [
            "train",
            "--data.path",
            "a b",
            "r.yaml",
            "--training.seed=3",
            "--resume",
            "--training.weight_decay",
            "-1",
            "--x.y",
            "z",
        ]
    )
    assert words == ["train", "r.yaml", "--resume", "--x.y", "z"]
    assert overrides == [("data.path", "a b"), ("training.seed", "3"), ("training.weight_decay", "-1")]
    with pytest.raises(ValueError, match=r"--data\.path needs a value"):
        split_overrides(["train", "--data.path", "--resume"])
    with pytest.raises(ValueError, match=r"--data\.path needs a value"):
        split_overrides(["train", "--data.path"])


def test_changed_keys_are_named(write):
    before = load_recipe(write(MINIMAL)).resolved()
    now = load_recipe(write(MINIMAL), [("training.learning_rate", "0.5"), ("data.seed", "1")]).resolved()
    assert compare_recipes(before, now) == [
        "data.seed: 0 before, 1 now",
        "training.learning_rate: 0.0001 before, 0.5 now",
    ]


TABULAR = "data: {name: synthetic_table}\nmodel: {family: dnn}\n"


@pytest.mark.parametrize("training", ["{epochs: 2}", "{stage2_epochs: 2}", "{stage1_epochs: 0, stage2_epochs: 2}"])
def test_families_without_stages_count_epochs(write, training):
    recipe = load_recipe(write(f"{TABULAR}training: {training}\n"))
    assert recipe.training["stage2_epochs"] == 2
    before = load_recipe(write(f"{TABULAR}training: {{stage2_epochs: 2}}\n"))
    assert compare_recipes(before.resolved(), recipe.resolved()) == []
    assert load_recipe(recipe.source, [("training.epochs", "5")]).training["stage2_epochs"] == 5
    assert load_recipe(recipe.source, {"training.stage2_epochs": 5}).training["stage2_epochs"] == 5


def test_recipes_that_are_kept_say_epochs_where_there_are_no_stages(write, tmp_path):
    recipe = load_recipe(write(f"{TABULAR}training: {{epochs: 2}}\n"))
    recipe.save(tmp_path / "kept.yaml")
    kept = yaml.safe_load((tmp_path / "kept.yaml").read_text())
    assert kept["training"]["epochs"] == 2
    assert not {"stage1_epochs", "stage2_epochs"} & kept["training"].keys()
    assert load_recipe(tmp_path / "kept.yaml").resolved() == recipe.resolved()
    assert compare_recipes(kept, load_recipe(recipe.source, {"training.epochs": 5}).resolved()) == [
        "training.epochs: 2 before, 5 now"
    ]
    before = kept | {
        "training": {"stage1_epochs": 0, "stage2_epochs": 2, **kept["training"]}
    }  # as they were once written
    del before["training"]["epochs"]
    assert compare_recipes(with_epochs(before), recipe.resolved()) == []
    assert load_recipe(write(MINIMAL)).resolved()["training"]["stage2_epochs"] == 1
    for damaged in ({"training": 5, "model": {"family": "dnn"}}, {"training": {"stage2_epochs": 1}, "model": [1]}, {}):
        assert with_epochs(damaged) == damaged  # whoever reads it says what is wrong


def test_either_name_of_epochs_takes_the_place_of_that_of_the_base(write, tmp_path):
    (tmp_path / "old.yaml").write_text(f"{TABULAR}training: {{stage2_epochs: 2}}\n")
    (tmp_path / "new.yaml").write_text(f"{TABULAR}training: {{epochs: 2}}\n")
    assert load_recipe(write("base: old.yaml\ntraining: {epochs: 7}\n")).training["stage2_epochs"] == 7
    assert load_recipe(write("base: new.yaml\ntraining: {stage2_epochs: 7}\n")).training["stage2_epochs"] == 7


def test_wrong_epochs(write):
    path = write(f"{TABULAR}training: {{epochs: 2, stage2_epochs: 2}}\n")
    with pytest.raises(RecipeError, match=r"epochs and training.stage2_epochs are both set, and mean the same; keep"):
        load_recipe(path)
    path = write(f"{TABULAR}training: {{epochs: 0}}\n")
    with pytest.raises(RecipeError, match=r"training.epochs is 0, accepted: a whole number from 1"):
        load_recipe(path)
    with pytest.raises(RecipeError, match="both set"):
        load_recipe(path, [("training.epochs", "1"), ("training.stage2_epochs", "1")])
    message = (
        "the command line: training.epochs is not set in a recipe; set training.stage1_epochs and training.stage2_"
    )
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(MINIMAL), [("training.epochs", "1")])
    path = write(f"{TABULAR}training: {{stage1_epochs: 1}}\n")
    with pytest.raises(RecipeError) as refused:
        load_recipe(path)
    message = (
        "training.stage1_epochs is 1, in which the sinks are pooled only, but the family dnn has none; accepted: 0"
    )
    assert str(refused.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("events: e.csv\ncolumns: {}", "is a data schema, not a recipe: name it in data.name"),
        ("name: t\nfiles: t.csv\nlabel: y", "is a data schema, not a recipe: name it in data.name"),
        ("name: l\nrecipe: x\nsizes: []", "is a ladder, not a recipe: lmctr scaling ladder"),
        ("recipe: x\npoints: []", "is a grid, not a recipe: lmctr grid run"),
    ],
)
def test_other_files_are_told_as_such(write, content, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(content))


def test_a_data_file_is_not_read_as_yaml(tmp_path):
    (tmp_path / "clicks.csv").write_text("a: [\n" * 100)
    with pytest.raises(RecipeError, match=r"clicks.csv is a data file by its name.*--data.name"):
        load_recipe(tmp_path / "clicks.csv")


def test_training_keys_by_other_names(write):
    for key, meant in (("batch_size", "per_device_train_batch_size"), ("lr", "learning_rate")):
        with pytest.raises(RecipeError, match=f"unknown key '{key}' in training .*; did you mean '{meant}'"):
            load_recipe(write(MINIMAL), [(f"training.{key}", "3")])


@pytest.mark.parametrize(
    ("name", "key", "value", "accepted"),
    [
        ("din/synthetic", "dropout", "2.5", r"2.5 .*, accepted: a number in \[0, 1\)"),
        ("retrieval_mlp/cascade", "loss", "x", "'x' .*, accepted: one of arf, bce, pairwise, list"),
        ("fat/synthetic", "num_bases", "0", "0 .*, accepted: a whole number of at least 1"),
        ("fat/synthetic", "hidden_size", "30", "30 .*, accepted: a multiple of num_attention_heads=4"),
        ("ctr_sink/quickstart", "num_sink_buckets", "0", "0 .*, accepted: a whole number of at least 1"),
    ],
)
def test_values_of_the_model_are_checked_before_data_are_read(name, key, value, accepted):
    with pytest.raises(RecipeError, match=f"the command line: model.{key} is {accepted}"):
        load_recipe(name, [(f"model.{key}", value)])


def test_what_depends_on_data_waits_for_them():
    assert load_recipe("deepfm/synthetic", [("model.embedding_dim", "[4, 8]")]).model["embedding_dim"] == [4, 8]


def is_recipe(name):
    """Not a launcher's configuration, and not a grid or ladder of recipes (test_grid.py and test_scaling_ladder.py check those)."""
    if name.startswith(("accelerate/", "scaling/")):
        return False
    return not {"points", "axes"} & yaml.safe_load(find_resource("recipes", name).read_text()).keys()


@pytest.mark.parametrize("name", [name for name in list_resources("recipes") if is_recipe(name)])
def test_shipped_recipes_are_valid(name, tmp_path):
    """All that is checked before data are read."""
    from lmctr.runs.folder import RunFolder
    from lmctr.runs.training import Training

    recipe = load_recipe(name, [("training.use_cpu", "true"), ("training.bf16", "false")])
    args = Training(recipe, RunFolder(tmp_path), False, False, "").args
    if recipe.model.get("sink_kind") == "none":
        assert args.stage1_epochs == 0
