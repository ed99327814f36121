"""Bad input as a user meets it: a small shop's CSV log through the command line, one thing wrong at a time.

Each case either ends with one `error:` line that names the file, column, row or key, or does what is documented.
"""

import json
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from cli_helpers import TINY, error_of, predict, read
from transformers import AutoTokenizer, BertConfig, BertModel

from lmctr.cli.main import main
from lmctr.runs.loading import load_run
from lmctr.training.checkpoints import list_checkpoints

HEADER = "user,item,ts,label,title"
SCHEMA = {
    "name": "shop",
    "events": "e.csv",
    "columns": {"user": "user", "item": "item", "time": "ts", "label": "label"},
    "catalogue": {"columns": ["title"]},
}
ITEM, TIME, LABEL, TITLE = 1, 2, 3, 4


def events():
    """20 users x 12 events in order of time, labels of both kinds in every part."""
    generator = np.random.default_rng(0)
    rows = []
    for step in range(12):
        for user in range(20):
            item = int(generator.integers(0, 30))
            time = 1_600_000_000 + step * 100_000 + user * 1000
            rows.append([f"u{user}", f"i{item}", time, int(generator.integers(0, 2)), f"thing {item}"])
    return rows


def write_shop(folder, edit=lambda rows: rows, header=HEADER, schema=SCHEMA, recipe=()):
    """CSV, schema and recipe; returns the words of `lmctr train`. `recipe` holds (dotted key, value) pairs."""
    rows = edit(events())
    (folder / "e.csv").write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    (folder / "schema.yaml").write_text(schema if isinstance(schema, str) else yaml.safe_dump(schema))
    values = json.loads(json.dumps(TINY))
    values["data"] = {
        "name": str(folder / "schema.yaml"),
        "num_behaviors": 3,
        "prompt": "generic/en",
        "baselines": False,
    }
    values["training"] |= {"stage1_epochs": 0, "stage2_epochs": 1}
    for key, value in recipe:
        *groups, last = key.split(".")
        target = values
        for group in groups:
            target = target[group]
        target[last] = value
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    return ["train", str(folder / "recipe.yaml"), "--output_dir", str(folder / "run")]


def train(folder, *arguments, **options):
    assert main(write_shop(folder, *arguments, **options)) == 0
    return folder / "run"


def scores(run):
    return pq.read_table(run / "predictions" / "test.parquet")["logit"].to_numpy()


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A run on the sound log. Read it only."""
    return train(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def run(shop, tmp_path):
    """A copy of it to break."""
    return shutil.copytree(shop, tmp_path / "run")


def change(column, value, row=5):
    def edit(rows):
        rows[row][column] = value
        return rows

    return edit


def change_all(column, value, rows=slice(None)):
    def edit(every):
        for row in every[rows]:
            row[column] = value
        return every

    return edit


# ---- what is documented to work -----------------------------------------------------------------------------------


def test_rows_in_any_order(shop, tmp_path):
    """A log is sorted by user and time when it is read."""
    again = train(tmp_path, lambda rows: rows[::-1])
    np.testing.assert_allclose(scores(again), scores(shop), atol=1e-6)


def test_empty_histories(shop, tmp_path):
    """A user's first event is a sample; its text says that there is no history."""
    _, processor = load_run(shop)
    ids = processor(histories=[[]], targets=[{"text": "thing 1"}], times=[5])["input_ids"][0]
    assert "none;" in processor.tokenizer.decode(ids).replace(" ;", ";")
    (answer,) = predict(shop, tmp_path, [{"history": [], "target": "thing 1", "time": 5}])
    assert np.isfinite(answer["logit"])


@pytest.mark.parametrize("edit", [change(TITLE, ""), change_all(TITLE, "")], ids=["one", "all"])
def test_empty_titles(tmp_path, edit):
    """An item without title is an item with an empty text, and null is the same as empty in a request."""
    folder = train(tmp_path, edit)
    assert np.isfinite(scores(folder)).all()
    behaviour = {"time": 1, "feedback": None}
    empty, null, both = (  # each in a batch of its own: two rows of one batch may be rounded differently
        predict(folder, tmp_path, [{"history": [{**behaviour, "text": text}], "target": {"text": target}, "time": 2}])
        for text, target in (("", ""), (None, ""), (None, None))
    )
    assert empty == null == both


def test_special_tokens_in_titles(tmp_path):
    """Users' text is text: it makes no sink, no separator and no padding."""
    text = "[SINK] [CLS] [SEP] [PAD] thing"
    folder = train(tmp_path, change_all(TITLE, text))
    _, processor = load_run(folder)
    history = [{"text": text, "time": time} for time in (1, 2)]
    batch = processor(histories=[history], targets=[{"text": text}], times=[3], return_tensors="np")
    ids, buckets = batch["input_ids"][0], batch["sink_buckets"][0]
    assert (ids == processor.sink_token_id).sum() == 2
    assert ((buckets >= 0) == (ids == processor.sink_token_id)).all()
    tokenizer = processor.tokenizer
    assert [(ids == token).sum() for token in (tokenizer.cls_token_id, tokenizer.sep_token_id)] == [1, 1]
    assert (ids == tokenizer.pad_token_id).sum() == 0


def test_a_history_of_ten_thousand_events(tmp_path):
    """The latest behaviours are shown; sequences do not grow with the history."""

    def edit(rows):
        return rows + [["big", f"i{n % 30}", 1_600_000_000 + n * 100, n % 2, f"thing {n % 30}"] for n in range(10_000)]

    folder = train(tmp_path, edit, recipe=[("data.max_train_samples", 300), ("data.max_eval_samples", 100)])
    data = read(folder, "data.json")
    assert data["counts"]["events"] == 10_240
    assert data["truncation"]["test"]["longest"] <= 40
    history = [{"text": f"thing {n % 30}", "time": n} for n in range(10_000)]
    requests = [{"history": rows, "target": "thing 1", "time": 10_000} for rows in (history, history[-3:])]
    answers = predict(folder, tmp_path, requests)
    assert answers[0]["logit"] == pytest.approx(answers[1]["logit"], abs=1e-6)  # recency counts from the latest


# ---- data that cannot be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change(LABEL, 2), "e.csv, column 'label': 1 of 240 values are other than 0 and 1 (row 6: 2)"),
        (change(LABEL, "yes"), "e.csv, column 'label': 1 of 240 values are no numbers (row 6: 'yes')"),
        (change(LABEL, ""), "e.csv, column 'label': 1 of 240 values are missing (row 6: None)"),
        (change(TIME, 9_999_999_999), "e.csv, column 'ts': 1 of 240 values lie in the future (row 6: 9999999999)"),
        (change(TIME, 1_600_000_000_000), "e.csv, column 'ts': 1 of 240 values are outside the years"),
        (change(TIME, "yesterday"), "e.csv, column 'ts': 1 of 240 values are no numbers (row 6: 'yesterday')"),
        (change(TIME, ""), "e.csv, column 'ts': 1 of 240 values are missing (row 6: None)"),
        (change(ITEM, ""), "e.csv, column 'item': 1 of 240 values are empty (row 6: '')"),
        (change_all(LABEL, 1), "the train part (192 samples) has only the label 1"),
        (
            change_all(LABEL, 0, slice(-24, None)),
            "the test part (24 samples) has only the label 0; AUC needs positives",
        ),
        (lambda rows: rows[:0], "e.csv: the file has a header and no rows"),
        (lambda rows: rows[:2], "leaves the part 'validation' empty (2 samples"),
    ],
)
def test_bad_rows(tmp_path, capsys, edit, message):
    assert message in error_of(capsys, *write_shop(tmp_path, edit))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("column", "shown"), [("user", "user"), ("item", "item"), ("ts", "ts"), ("label", "label"), ("title", "title")]
)
def test_missing_columns(tmp_path, capsys, column, shown):
    header = HEADER.replace(column, "other")
    message = error_of(capsys, *write_shop(tmp_path, header=header))
    assert f"e.csv: no column '{shown}'; its columns are ['" in message


def test_one_class_when_a_run_is_measured(shop, tmp_path, capsys):
    write_shop(tmp_path, change_all(LABEL, 0, slice(-24, None)))
    message = error_of(capsys, "evaluate", shop, "--data.name", tmp_path / "schema.yaml")
    assert "the test part (24 samples) has only the label 0" in message


# ---- YAML ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data:\n\tname: x", "start any token; YAML takes blanks, no tabs, to indent"),
        ("data: {name: x}\ndata: {name: y}", "bad.yaml, line 2: not valid YAML: key 'data' is given twice"),
        ("- data", "bad.yaml: a recipe is a mapping with the groups data, model, training, got ['data'] (list)"),
        ("", "bad.yaml: data.name is missing; accepted: text"),
        ("dta: {}", "unknown key 'dta' in "),
        ("data: {name: synthetic, num_behaviours: 5}", "did you mean 'num_behaviors'"),
        ("data: {name: synthetic, num_behaviors: many}", "bad.yaml: data.num_behaviors is 'many' (text), accepted"),
        (b"\xff\xfe", "bad.yaml is not UTF-8 text"),
    ],
)
def test_bad_recipes(tmp_path, capsys, content, message):
    (tmp_path / "bad.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert message in error_of(capsys, "train", tmp_path / "bad.yaml", "--output_dir", tmp_path / "run")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("name: shop\n\tevents: e.csv", "schema.yaml, line 2: not valid YAML"),
        ({**SCHEMA, "columns": {"lable": "label"}}, "unknown key 'lable' in columns of "),
        ({**SCHEMA, "events": "nowhere.csv"}, "nowhere.csv"),
    ],
)
def test_bad_schemas(tmp_path, capsys, schema, message):
    assert message in error_of(capsys, *write_shop(tmp_path, schema=schema))


def test_a_prompt_of_columns_that_the_catalogue_lacks(tmp_path, capsys):
    recipe = [("data.prompt", {"base": "generic/en", "item": "{genres}"})]
    message = error_of(capsys, *write_shop(tmp_path, recipe=recipe))
    assert (
        "data.prompt is {'base': 'generic/en', 'item': '{genres}'}: unknown key 'genres' in the item template"
        in message
    )
    assert "columns of the catalogue (" in message
    assert "such as generic/en" in message


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"head": "Of {user_id}: "}, "head 'Of {user_id}: ' holds {user_id}, which nothing fills"),
        ({"target": "{item} of {brand}?"}, "target_suffix ' of {brand}?' holds {brand}"),
    ],
)
def test_a_column_in_a_fixed_text_of_a_prompt(tmp_path, capsys, own, told):
    assert told in error_of(capsys, *write_shop(tmp_path, recipe=[("data.prompt", {"base": "generic/en", **own})]))


# ---- tokenizers and backbones -------------------------------------------------------------------------------------


def write_backbone(folder, tokenizer, vocab_size=400):
    config = BertConfig(
        vocab_size=vocab_size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return [("model.backbone", str(folder)), ("model.tokenizer", None)]


def without_padding(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)


def test_a_tokenizer_that_holds_the_sink_token(shop, tmp_path, capsys):
    """The tokenizer of an earlier run holds [SINK]: another text for the sink token is needed, and works."""
    tokenizer = AutoTokenizer.from_pretrained(shop)
    recipe = write_backbone(tmp_path / "backbone", tokenizer)
    message = error_of(capsys, *write_shop(tmp_path, recipe=recipe))
    assert "the tokenizer's vocabulary already holds '[SINK]' (id " in message
    assert "choose another text, for example sink_token='[CTR_SINK]'" in message
    folder = train(tmp_path, recipe=[*recipe, ("model.sink_token", "[CTR_SINK]")])
    assert load_run(folder)[1].sink_token_id != tokenizer.convert_tokens_to_ids("[SINK]")


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (
            lambda folder: shutil.rmtree(folder),
            "backbone' is neither a model id on the Hub, nor a folder with a config",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "backbone' is neither a model id on the Hub"),
        (
            lambda folder: (folder / "config.json").write_text('{"model_type": "brt"}'),
            "does not recognize this architec",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "backbone' cannot be read as safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"12345678{"), "cannot be read as safetensors"),
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "holds no tokenizer"),
        (without_padding, "backbone' has neither a padding token nor an end token"),
    ],
    ids=[
        "absent",
        "config cut off",
        "unknown type",
        "no weights",
        "broken weights",
        "no tokenizer",
        "no padding token",
    ],
)
def test_bad_backbones(shop, tmp_path, capsys, monkeypatch, breakage, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    recipe = write_backbone(tmp_path / "backbone", AutoTokenizer.from_pretrained(shop))
    breakage(tmp_path / "backbone")
    error = error_of(capsys, *write_shop(tmp_path, recipe=[*recipe, ("model.sink_token", "[CTR_SINK]")]))
    assert message in error
    assert "backbone" in error


def test_a_tokenizer_larger_than_the_backbone(shop, tmp_path, capsys):
    recipe = write_backbone(tmp_path / "backbone", AutoTokenizer.from_pretrained(shop), vocab_size=60)
    recipe.append(("model.sink_token", "[CTR_SINK]"))
    message = error_of(capsys, *write_shop(tmp_path, recipe=recipe))
    assert "model.tokenizer: its token ids go up to " in message
    assert "has embeddings for 60 tokens" in message


def test_a_tokenizer_that_does_not_know_the_texts_says_so(shop, tmp_path, capsys):
    """A Chinese prompt and an English vocabulary: nothing fails, and the prompt is [UNK] throughout."""
    recipe = write_backbone(tmp_path / "backbone", AutoTokenizer.from_pretrained(shop))
    recipe.append(("model.sink_token", "[CTR_SINK]"))
    for language in ("en", "zh"):
        (tmp_path / language).mkdir()
    train(tmp_path / "en", recipe=recipe)
    assert "the tokenizer does not know" not in capsys.readouterr().out
    train(tmp_path / "zh", recipe=[*recipe, ("data.prompt", "generic/zh")])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "the tokenizer does not know" in line]
    share = float(re.search(r"does not know ([\d.]+)% of the prompt \(training\)", line)[1])
    assert share > 50
    assert "it reads all of that as [UNK]" in line


def test_a_behaviour_longer_than_the_room_is_told(shop, tmp_path, capsys):
    """It drops itself and all before it: whole histories, of which the share of truncated samples alone says nothing."""
    recipe = write_backbone(tmp_path / "backbone", AutoTokenizer.from_pretrained(shop))
    recipe.append(("model.sink_token", "[CTR_SINK]"))
    shown = []
    for length in (17, 128):
        train(tmp_path, recipe=[*recipe, ("data.max_length", length)])
        shown.append([line for line in capsys.readouterr().out.splitlines() if "lost their whole history" in line])
        shutil.rmtree(tmp_path / "run")
    assert shown[1] == []
    assert re.search(
        r"[\d.]+% of samples lost .* data.max_length \(17\) leaves .*; raise data.max_length, or shorten title",
        *shown[0],
    )


# ---- run folders and checkpoints ----------------------------------------------------------------------------------

NAMED = {  # file: (message without it, message when it is cut off)
    "config.json": ("has no config.json", "config.json is not valid JSON (line 1"),
    "model.safetensors": ("has no model.safetensors", "model.safetensors is cut off"),
    "processor_config.json": ("has no processor_config.json", "processor_config.json is not valid JSON (line 1"),
    "tokenizer.json": ("has no tokenizer.json", "tokenizer.json is not valid JSON (line 1"),
    "tokenizer_config.json": ("has no tokenizer_config.json", "tokenizer_config.json is not valid JSON (line 1"),
}


def test_requests_nested_too_deep(run, tmp_path, capsys):
    (tmp_path / "deep.jsonl").write_text("[" * 60_000 + "]" * 60_000)
    error = error_of(capsys, "predict", run, "--input", tmp_path / "deep.jsonl")
    assert "deep.jsonl, line 1: not valid JSON: nested too deep" in error


@pytest.mark.parametrize("name", NAMED)
def test_runs_with_missing_and_damaged_files(run, tmp_path, capsys, name):
    request = tmp_path / "request.jsonl"
    request.write_text('{"history": [], "target": "thing 1", "time": 5}\n')
    verbs = (["evaluate", run], ["predict", run, "--input", request], ["push", run, "tester/shop", "--dry-run"])
    absent, damaged = NAMED[name]
    (run / name).unlink()
    for words in verbs:
        assert absent in error_of(capsys, *words)
    (run / name).write_bytes(b"{")
    for words in verbs:
        assert f"{run}/{damaged}" in error_of(capsys, *words)


def test_files_of_different_runs(run, capsys):
    config = read(run, "config.json")
    (run / "config.json").write_text(json.dumps({**config, "head_hidden_size": 7}))
    assert f"{run}/config.json has " in error_of(capsys, "evaluate", run)  # not the file that the run wrote
    (run / "lmctr_manifest.json").unlink()
    message = error_of(capsys, "evaluate", run)
    assert "model.safetensors holds weights of another shape: head.dense.bias, head.dense.weight" in message
    (run / "config.json").write_text(json.dumps({**config, "num_sink_buckets": 9}))
    assert "num_sink_buckets is 9 in the model's configuration and 8 in the processor" in error_of(
        capsys, "evaluate", run
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.yaml", b"{", "recipe.yaml, line 1: not valid YAML"),
        ("data.json", b"{", "data.json is not valid JSON (line 1"),
        ("tokenizer.json", b"{", "tokenizer.json is not valid JSON (line 1"),
    ],
)
def test_damage_found_on_resuming(shop, run, capsys, name, content, message):
    (run / "metrics.json").unlink()
    (run / name).write_bytes(content)
    words = ["train", shop.parent / "recipe.yaml", "--output_dir", run, "--resume"]
    assert message in error_of(capsys, *words)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"])
def test_a_damaged_checkpoint_is_passed_over_on_resuming(shop, run, capsys, name):
    """One wrong bit in the newest checkpoint: the run goes on from the one before, or from the start, and says so."""
    reference = (run / "model.safetensors").read_bytes()
    (run / "metrics.json").unlink()
    (run / "model.safetensors").unlink()
    *_, newest = list_checkpoints(run / "checkpoints")
    content = bytearray((newest / name).read_bytes())
    content[len(content) // 2] ^= 1
    (newest / name).write_bytes(content)
    assert main(["train", str(shop.parent / "recipe.yaml"), "--output_dir", str(run), "--resume"]) == 0
    printed = capsys.readouterr().out
    assert f"skipped: {newest} is not complete: {name} is damaged" in printed
    assert f"resuming from {newest}" not in printed
    assert (run / "model.safetensors").read_bytes() == reference
