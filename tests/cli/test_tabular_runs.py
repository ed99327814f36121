"""The verbs with runs that read tables."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from cli_helpers import TINY, error_of, read
from transformers import AutoProcessor

import lmctr
from lmctr.cli.main import main
from lmctr.data.registry import load_tabular
from lmctr.data.tables.source import SplitRule
from lmctr.runs.recipe import RecipeError, load_recipe

TINY_TABLE = {
    "data": {
        "name": "synthetic_table",
        "options": {"num_rows": 2000, "num_categorical": 4, "num_numeric": 2, "num_pairs": 3, "vocab_size": 300},
        "features": {"fields": {"I2": {"transform": "quantile", "num_bins": 8}}},
    },
    "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [16]},
    "training": {
        "stage2_epochs": 3,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 128,
        "use_cpu": True,
        "seed": 0,
    },
}


@pytest.fixture(scope="module")
def recipe_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "table.yaml"
    path.write_text(yaml.safe_dump(TINY_TABLE))
    return path


@pytest.fixture(scope="module")
def table_run(recipe_path, tmp_path_factory):
    """A finished run. Read it only."""
    folder = tmp_path_factory.mktemp("run") / "table"
    assert main(["train", str(recipe_path), "--output_dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def test_rows():
    """The raw rows of the test part, as dicts of texts and numbers."""
    source = load_tabular(TINY_TABLE["data"]["name"], **TINY_TABLE["data"]["options"])
    return [row for rows in source.rows(part="test") for row in rows.table.to_pylist()]


def write_csv(path, rows, leave_out=("label",)):
    names = [name for name in rows[0] if name not in leave_out]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_run_folder(table_run):
    names = {path.name for path in table_run.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "recipe.yaml",
        "metrics.json",
        "data.json",
        "reference.safetensors",
        "predictions",
    } <= names
    assert ".cache" not in names
    config, data, metrics = (read(table_run, f"{name}.json") for name in ("config", "data", "metrics"))
    processor = AutoProcessor.from_pretrained(table_run)
    assert config["processor_fingerprint"] == processor.fingerprint == data["processor_fingerprint"]
    assert len(config["vocab_sizes"]) == 5  # four categorical fields and one of bins
    assert config["num_numeric"] == 1
    assert data["counts"]["samples"] == {"train": 1600, "validation": 200, "test": 200}
    assert set(metrics["baselines"]) == {"field_counting", "field_gradient_boosting"}
    assert metrics["best_auc"] > metrics["split metrics"]["test"]["auc"] > 0.55
    assert "95 % interval" in metrics["verdict"]
    table = pq.read_table(table_run / "predictions" / "test.parquet")
    assert table.column_names == ["event", "label", "logit"]
    assert len(set(table["event"].to_pylist())) == 200


def test_evaluate_repeats_the_run(table_run, tmp_path, capsys):
    assert main(["evaluate", str(table_run), "--output", str(tmp_path / "again.json")]) == 0
    again = json.loads((tmp_path / "again.json").read_text())["metrics"]
    assert again == pytest.approx(read(table_run, "metrics.json")["split metrics"]["test"], abs=1e-9)


def test_evaluate_other_rows_with_the_runs_processor(table_run, tmp_path, capsys):
    options = {**TINY_TABLE["data"]["options"], "num_rows": 3000}
    words = ["--data.options", json.dumps(options), "--output", str(tmp_path / "other.json")]
    assert main(["evaluate", str(table_run), *words]) == 0
    assert json.loads((tmp_path / "other.json").read_text())["metrics"]["num_samples"] == 300
    assert "--data.features: the run was trained with its own value" in error_of(
        capsys, "evaluate", table_run, "--data.features", "{}"
    )


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_predict_scores_raw_rows_as_the_run_did(table_run, test_rows, tmp_path, suffix, capsys):
    source = write_csv(tmp_path / "rows.csv", test_rows)
    target = tmp_path / f"scores.{suffix}"
    words = ["--input", str(source), "--output", str(target), "--id-column", "C1", "--batch_size", "64"]
    assert main(["predict", str(table_run), *words]) == 0
    if suffix == "csv":
        answers = list(csv.DictReader(io.StringIO(target.read_text())))
    elif suffix == "jsonl":
        answers = [json.loads(line) for line in target.read_text().splitlines()]
    else:
        answers = pq.read_table(target).to_pylist()
    assert [int(answer["row"]) for answer in answers] == list(range(1, 201))
    assert [str(answer["C1"]) for answer in answers] == [str(row["C1"]) for row in test_rows]
    logits = np.array([float(answer["logit"]) for answer in answers])
    stored = pq.read_table(table_run / "predictions" / "test.parquet")["logit"].to_numpy()
    np.testing.assert_allclose(logits, stored, atol=1e-5)
    np.testing.assert_allclose([float(a["probability"]) for a in answers], 1 / (1 + np.exp(-logits)), rtol=1e-6)


@pytest.mark.parametrize(
    ("ids", "copied"),
    [
        (["7", "", "9007199254740993"], [7, None, 9007199254740993]),
        (["007", "18446744073709551615", "a"], ["007", "18446744073709551615", "a"]),
        (["1.50", "NA", "true"], ["1.50", "NA", "true"]),
    ],
)
def test_a_copied_column_stays_as_it_is(table_run, test_rows, tmp_path, ids, copied):
    rows = [{"own": own, **row} for own, row in zip(ids, test_rows)]
    path, target = write_csv(tmp_path / "rows.csv", rows), tmp_path / "out.jsonl"
    words = ["predict", str(table_run), "--output", str(target), "--id-column", "own"]
    assert main([*words, "--input", str(path)]) == 0
    assert [json.loads(line)["own"] for line in target.read_text().splitlines()] == copied
    table = pa.Table.from_pylist([{**row, "own": own.encode()} for own, row in zip(ids, test_rows)])
    pq.write_table(table, tmp_path / "rows.parquet")  # as Hive writes texts
    assert main([*words, "--input", str(tmp_path / "rows.parquet")]) == 0
    assert [json.loads(line)["own"] for line in target.read_text().splitlines()] == ids
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = path.rename(tmp_path / "rows.jsonl")
    assert main([*words, "--input", str(path)]) == 0
    assert [json.loads(line)["own"] for line in target.read_text().splitlines()] == ids


def test_a_copied_column_is_none_of_the_outputs_own(table_run, test_rows, tmp_path, capsys):
    for name in ("row", "logit", "probability", "error"):
        path = write_csv(tmp_path / "rows.csv", [{name: "9", **row} for row in test_rows[:2]])
        error = error_of(capsys, "predict", table_run, "--input", path, "--id-column", name)
        assert f"--id-column {name}: the output has a column of this name itself" in error


def test_predict_reads_standard_input(table_run, test_rows, monkeypatch, capsys):
    lines = "\n\n".join(json.dumps(row, default=str) for row in test_rows[:3]) + "\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["predict", str(table_run), "--input", "-"]) == 0
    printed = capsys.readouterr()
    stored = pq.read_table(table_run / "predictions" / "test.parquet")["logit"].to_pylist()
    answers = [json.loads(line) for line in printed.out.splitlines()]
    np.testing.assert_allclose([answer["logit"] for answer in answers], stored[:3], atol=1e-5)
    assert "3 rows scored" in printed.err
    # Rows are counted through the stream, of which a block at a time is read.
    monkeypatch.setattr("lmctr.runs.answers.tables._LINES_AT_A_TIME", 4)
    without = {key: value for key, value in test_rows[9].items() if key != "C2"}
    for wrong, message in (
        (without, "error: standard input: row 10: no column 'C2'"),
        (test_rows[9] | {"I1": "x"}, f"no common type (row 9: {test_rows[8]['I1']!r}; row 10: 'x')"),
    ):
        lines = "\n".join(json.dumps(row, default=str) for row in [*test_rows[:9], wrong])
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        assert message in error_of(capsys, "predict", table_run, "--input", "-")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: [{k: v for k, v in row.items() if k != "C2"} for row in rows], ("no column 'C2'",)),
        (lambda rows: [*rows[:4], {**rows[4], "I1": "many"}], ("rows.csv", "I1", "row 5", "many")),
    ],
)
def test_bad_rows_name_file_column_and_row(table_run, test_rows, tmp_path, capsys, change, words):
    source = write_csv(tmp_path / "rows.csv", change(test_rows[:10]))
    error = error_of(capsys, "predict", table_run, "--input", source, "--output", tmp_path / "out.csv")
    assert all(word in error for word in words), error


def test_predict_names_a_wrong_extension_and_a_wrong_option(table_run, tiny_run, tmp_path, capsys):
    assert "ends in .jsonl, .csv, .parquet" in error_of(
        capsys, "predict", table_run, "--input", "x.csv", "--output", tmp_path / "out.txt"
    )
    assert "--id-column is for runs that read tables" in error_of(
        capsys, "predict", tiny_run, "--input", "x.jsonl", "--id-column", "a"
    )
    assert "--max-tokens is for runs that read histories" in error_of(
        capsys, "predict", table_run, "--input", "x.csv", "--max-tokens", "5"
    )


def test_a_processor_of_another_run_is_refused(table_run, recipe_path, tmp_path, capsys):
    import shutil

    other = tmp_path / "other"
    assert main(["train", str(recipe_path), "--output_dir", str(other), "--data.options.seed", "5"]) == 0
    mixed = shutil.copytree(table_run, tmp_path / "mixed")
    for name in ("preprocessor_config.json", "tabular_vocabularies.parquet", "tabular_numbers.safetensors"):
        shutil.copy(other / name, mixed / name)
    (mixed / "lmctr_manifest.json").unlink()
    wanted = read(mixed, "config.json")["processor_fingerprint"]
    found = read(other, "config.json")["processor_fingerprint"]
    for words in (("evaluate", mixed), ("predict", mixed, "--input", "x.csv"), ("push", mixed, "a/b", "--dry-run")):
        error = error_of(capsys, *words)
        assert wanted in error, error
        assert found in error, error


def test_resume_after_the_first_epoch_reaches_the_same_weights(recipe_path, table_run, tmp_path, lmctr_process):
    folder = tmp_path / "killed"
    lmctr_process(
        "train",
        recipe_path,
        "--output_dir",
        folder,
        kill_when=lambda: (folder / "checkpoints" / "checkpoint-13" / "checkpoint_complete.json").is_file(),
    )
    if (folder / "metrics.json").is_file():
        pytest.skip("the run was over before it could be killed")
    lmctr_process("train", recipe_path, "--output_dir", folder, "--resume")
    whole = lmctr.AutoModelForCTR.from_pretrained(table_run).state_dict()
    again = lmctr.AutoModelForCTR.from_pretrained(folder).state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_features_that_changed_are_other_data(tmp_path, capsys):
    """Values that went to other rows leave vocabularies, labels and parts as they were."""
    rng, file = np.random.default_rng(0), tmp_path / "shop.csv"
    frame = pd.DataFrame({"ad": rng.integers(0, 5, 200).astype(str), "price": rng.random(200).round(2)})
    frame.assign(ad="a" + frame["ad"], click=rng.integers(0, 2, 200)).to_csv(file, index=False)
    train = ["train", str(file), "--model", "dnn", "--training.max_steps", "2", "--data.baselines", "false"]
    runs = [tmp_path / name for name in ("zero", "one", "two")]
    for seed in (0, 1):
        assert main([*train, "--training.seed", str(seed), "--output-dir", str(runs[seed])]) == 0
    assert main(["card", str(runs[0]), "--seeds", str(runs[1]), "--print"]) == 0
    before = read(runs[0], "data.json")

    def resumed():
        (runs[0] / "metrics.json").unlink()
        (runs[0] / "lmctr_manifest.json").unlink()  # its checksums would speak first
        return [*train, "--output-dir", str(runs[0]), "--resume"]

    assert main(resumed()) == 0
    written, frame = file.read_text(), pd.read_csv(file)
    rows = np.flatnonzero(SplitRule().at_random(np.arange(200)) == 0)
    frame.loc[rows, "ad"] = frame["ad"][rows[::-1]].to_numpy()
    frame.to_csv(file, index=False)
    assert main([*train, "--training.seed", "2", "--output-dir", str(runs[2])]) == 0
    now = read(runs[2], "data.json")
    assert {key for key in before if before[key] != now[key]} == {"inputs_fingerprint", "data_fingerprint"}
    capsys.readouterr()
    said = error_of(capsys, "card", runs[0], "--seeds", *runs[1:], "--print")
    assert "zero and" in said
    assert "two were trained on different data" in said
    said = error_of(capsys, *resumed())
    assert f"(checksum {before['inputs_fingerprint']} before, {now['inputs_fingerprint']} now)" in said
    (runs[0] / "data.json").write_text(json.dumps({key: before[key] for key in before if key != "inputs_fingerprint"}))
    file.write_text(written)  # other rates of its values would have made other trees
    assert main([*train, "--output-dir", str(runs[0]), "--resume"]) == 0  # of a version that knew none
    assert main(["card", str(runs[0]), "--seeds", str(runs[2]), "--print"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["dense", "lazy_adam"])
def test_two_processes_train_as_one(recipe_path, tmp_path, lmctr_launch, optimizer):
    """Gradients of 64 + 64 rows are those of 128, COO gradients too."""
    words = ["--training.embedding_optimizer", optimizer, "--training.stage2_epochs", "1", "--data.baselines", "false"]
    assert main(["train", str(recipe_path), "--output_dir", str(tmp_path / "one"), *words]) == 0
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2") if optimizer == "dense" else None
    words += ["--output_dir", tmp_path / "two", "--training.per_device_train_batch_size", "64"]
    lmctr_launch("train", recipe_path, *words, launcher=launcher)
    one, two = (lmctr.AutoModelForCTR.from_pretrained(tmp_path / name).state_dict() for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-6)
    assert not (tmp_path / "two" / ".cache").exists()


def test_two_runs_share_a_store(recipe_path, table_run, tmp_path):
    cache = tmp_path / "cache"
    words = ["--data.cache_dir", str(cache), "--data.baselines", "false", "--training.stage2_epochs", "1"]
    assert main(["train", str(recipe_path), "--output_dir", str(tmp_path / "a"), *words]) == 0
    (store,) = cache.iterdir()
    written = (store / "input_ids.npy").stat().st_mtime_ns
    more = ["--model.family", "deepfm", "--model.hidden_units", "[8]"]
    assert main(["train", str(recipe_path), "--output_dir", str(tmp_path / "b"), *words, *more]) == 0
    assert main(["evaluate", str(tmp_path / "b")]) == 0
    assert [path.name for path in cache.iterdir()] == [store.name]
    assert (store / "input_ids.npy").stat().st_mtime_ns == written


def test_limits_draw_the_same_rows_for_every_seed(recipe_path, tmp_path):
    words = ["--data.max_train_samples", "300", "--data.max_eval_samples", "90", "--training.stage2_epochs", "1"]
    events = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        assert main(["train", str(recipe_path), "--output_dir", str(folder), *words, "--training.seed", seed]) == 0
        assert read(folder, "metrics.json")["training_samples"] == {"model": 300, "baselines": 1600}
        events.append(pq.read_table(folder / "predictions" / "test.parquet")["event"].to_pylist())
    assert len(events[0]) == 90
    assert events[0] == events[1]


def test_a_log_as_a_table_keeps_its_events_and_baselines(tmp_path, tiny_run):
    recipe = {
        "data": {
            "name": "synthetic",
            "options": {**TINY["data"]["options"], "history_length": 5},
        },
        "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [8]},
        "training": {"stage2_epochs": 1, "use_cpu": True},
    }
    (tmp_path / "log.yaml").write_text(yaml.safe_dump(recipe))
    folder = tmp_path / "run"
    assert main(["train", str(tmp_path / "log.yaml"), "--output_dir", str(folder)]) == 0
    assert main(["evaluate", str(folder)]) == 0
    own, text = (pq.read_table(path / "predictions" / "test.parquet") for path in (folder, tiny_run))
    for name in ("event", "user", "item", "time", "label"):
        assert own[name].to_pylist() == text[name].to_pylist(), name
    metrics, of_text = read(folder, "metrics.json"), read(tiny_run, "metrics.json")
    assert metrics["baselines"]["counting"] == of_text["baselines"]["counting"]
    assert "grouped_auc" in metrics["split metrics"]["test"]


def load(tmp_path, **groups):
    values = {name: {**TINY_TABLE[name], **groups.get(name, {})} for name in TINY_TABLE}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    return load_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"model": {"vocab_sizes": [3]}}, "vocab_sizes is not set in a recipe; it follows from the data"),
        ({"model": {"sparse_embedding_grad": True}}, "set training.embedding_optimizer"),
        ({"model": {"hidden_unit": [3]}}, "did you mean 'hidden_units'"),
        ({"model": {"family": "dnm"}}, "accepted: ctr_sink, dnn"),
        ({"data": {"prompt": "x"}}, "unknown key 'prompt' in data"),
        ({"data": {"split": "newest"}}, "accepted: random, group, rows, time"),
        ({"data": {"name": "synthetic", "split": "random"}}, "is an interaction log; accepted: time, user"),
        ({"data": {"fractions": [0.5, 0.1]}}, "add up to 1"),
    ],
)
def test_recipe_errors(tmp_path, groups, message):
    with pytest.raises(RecipeError, match=message):
        load(tmp_path, **groups)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.split", "random"], "parts its rows itself"),
        (["--data.options.num_row", "5"], "did you mean 'num_rows'"),
        (["--data.features", "{drop: [C9]}"], "C9"),
        (["--data.features", "{numerics: {}}"], "did you mean 'numeric'"),
        (["--data.max_eval_samples", "1"], "AUC needs positives and negatives"),
    ],
)
def test_wrong_data_leave_no_run_behind(recipe_path, tmp_path, capsys, words, message):
    folder = tmp_path / "run"
    assert message in error_of(capsys, "train", recipe_path, "--output_dir", folder, *words)
    assert not (folder / "recipe.yaml").exists()
    good = ["--training.stage2_epochs", "1", "--data.baselines", "false"]
    assert main(["train", str(recipe_path), "--output_dir", str(folder), *good]) == 0


def test_samples_without_a_group_are_told(tmp_path, capsys):
    rng = np.random.default_rng(0)
    users = [None if i % 3 == 0 else f"u{i % 7}" for i in range(300)]
    frame = pd.DataFrame({"user": users, "price": rng.normal(size=300), "click": rng.integers(0, 2, 300)})
    schema = {
        "name": "visits",
        "files": "visits.csv",
        "split": {"rule": "random", "fractions": [0.6, 0.2, 0.2]},
        "label": "click",
        "group": "user",
        "fields": [{"name": "price", "type": "numeric"}],
    }
    (tmp_path / "visits.yaml").write_text(yaml.safe_dump(schema))
    recipe = {
        "data": {"name": str(tmp_path / "visits.yaml"), "baselines": False},
        "model": {"family": "dnn", "hidden_units": [4]},
        "training": {"epochs": 1, "use_cpu": True},
    }
    frame.to_csv(tmp_path / "visits.csv", index=False)
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    scores = [pq.read_table(run.path / "predictions" / f"{part}.parquet")["user"] for part in ("validation", "test")]
    without = sum(int((column.to_numpy() < 0).sum()) for column in scores)
    assert without > 10
    told = f"{without} samples of validation and test have no group: gAUC, UAUC and tests take them for one"
    assert told in "".join(capsys.readouterr())
    frame.fillna({"user": "none"}).to_csv(tmp_path / "visits.csv", index=False)
    lmctr.runs.train(recipe, output_dir=tmp_path / "named")
    assert "have no group" not in "".join(capsys.readouterr())


def test_widths_per_field_come_from_the_features_or_the_model(recipe_path, tmp_path, capsys):
    own = ["--data.features", "{fields: {C1: {embedding_dim: 6}}}", "--training.stage2_epochs", "1"]
    folder = tmp_path / "run"
    assert main(["train", str(recipe_path), "--output_dir", str(folder), *own]) == 0
    assert read(folder, "config.json")["embedding_dim"] == [6, 4, 4, 4, 4, 4]
    both = ["--model.embedding_dim", "[4, 4, 4, 4, 4, 4]", "--output_dir", tmp_path / "other"]
    assert "keep one of the two" in error_of(capsys, "train", recipe_path, *own, *both)


def test_sparse_training_of_a_family(recipe_path, tmp_path):
    folder = tmp_path / "run"
    words = ["--training.embedding_optimizer", "lazy_adam", "--training.embedding_learning_rate", "0.02"]
    assert main(["train", str(recipe_path), "--output_dir", str(folder), *words]) == 0
    assert read(folder, "metrics.json")["split metrics"]["test"]["auc"] > 0.55
    assert read(folder, "config.json")["sparse_embedding_grad"] is False
