import csv
import json
import shutil
import signal
import socket

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from cli_helpers import error_of, predict, read, request_of, tiny_log
from safetensors.numpy import load_file, save_file

from lmctr.cli.main import main
from lmctr.data.logs.splits import split_log
from lmctr.evaluation.baselines import baseline_predictions
from lmctr.evaluation.evaluator import evaluate_predictions, evaluate_probabilities
from lmctr.runs import load, train
from lmctr.runs.folder import RunFolder
from lmctr.runs.reference import compare_with_reference
from lmctr.runs.training import Training
from lmctr.training.checkpoints import MARKER, list_checkpoints

# ---- what a run leaves --------------------------------------------------------------------------------------------


def test_run_folder(tiny_run):
    names = {path.name for path in tiny_run.iterdir()}
    assert names >= {
        "config.json",
        "model.safetensors",
        "processor_config.json",
        "recipe.yaml",
        "metrics.json",
        "data.json",
    }
    assert names >= {"predictions", "checkpoints", "tokenizer.json"}
    assert "training_args.bin" not in names  # no pickle beside the model
    assert ".cache" not in names
    metrics = read(tiny_run, "metrics.json")
    for part in ("validation", "test"):
        assert metrics["split metrics"][part]["num_samples"] == 40
        for baseline in ("counting", "gradient_boosting"):
            assert 0.0 < metrics["baselines"][baseline][part]["auc"] < 1.0
    assert metrics["seed"] == 42
    assert metrics["steps"] == 30
    assert metrics["versions"]["torch"]
    assert metrics["command"].startswith("lmctr train ")
    assert "commit" in metrics
    assert [round(entry["epoch"], 3) for entry in metrics["evaluations"]] == [1, 2, 3]
    data = read(tiny_run, "data.json")
    assert data["counts"] == {
        "users": 20,
        "items": 60,
        "events": 400,
        "samples": {"train": 320, "validation": 40, "test": 40},
    }
    assert 0.5 < metrics["best_auc"] != data["info"]["best_auc"]  # that of a reader of the recipe's last behaviours
    assert data["split"]["rule"] == "time"
    recipe = yaml.safe_load((tiny_run / "recipe.yaml").read_text())
    assert recipe["data"]["order"] == "recent"
    assert metrics["best_auc_reads"] == recipe["data"]["num_behaviors"]
    assert metrics["verdict"].partition(" ")[0] in ("above", "below")
    assert "95 % interval" in metrics["verdict"]  # of the difference: the baseline's scores are at hand
    with open(tiny_run / "slices.csv", newline="") as file:
        slices = list(csv.DictReader(file))
    assert {row["split"] for row in slices} == {"validation", "test"}
    users = [row for row in slices if (row["split"], row["slice"]) == ("test", "user")]
    assert sum(int(row["num_samples"]) for row in users) == 40
    assert all(0 < float(row["model_mean"]) < 1 for row in slices)
    assert recipe["training"]["weight_decay"] == 5e-5


def test_best_checkpoint_is_the_best_stage_two_evaluation(tiny_run):
    metrics = read(tiny_run, "metrics.json")
    second = [entry for entry in metrics["evaluations"] if entry["epoch"] > 1]
    best = max(second, key=lambda entry: entry["auc"])
    assert metrics["best_step"] == best["step"]
    assert metrics["split metrics"]["validation"]["auc"] == pytest.approx(best["auc"], abs=1e-9)
    kept = load_file(tiny_run / "checkpoints" / f"checkpoint-{best['step']}" / "model.safetensors")
    final = load_file(tiny_run / "model.safetensors")
    assert all(np.array_equal(kept[key], final[key]) for key in final)


def test_predictions_reproduce_the_metrics(tiny_run):
    log = tiny_log()
    splits = split_log(log)
    for part in ("validation", "test"):
        table = pq.read_table(tiny_run / "predictions" / f"{part}.parquet")
        assert table.column_names == ["event", "user", "item", "time", "label", "logit"]
        events = table["event"].to_numpy()
        assert np.array_equal(events, getattr(splits, part))
        assert np.array_equal(table["label"].to_numpy(), log.label[events])
        assert table["user"].to_pylist() == log.user_ids[log.user[events]].tolist()
        assert table["item"].to_pylist() == [log.catalogue["item_id"][int(row)].as_py() for row in log.item[events]]
        measured = evaluate_predictions(table["label"].to_numpy(), table["logit"].to_numpy(), log.user[events])
        for key, value in read(tiny_run, "metrics.json")["split metrics"][part].items():
            assert measured[key] == pytest.approx(value, abs=1e-12)


def test_saved_model_gives_the_written_scores(tiny_run):
    import torch

    from lmctr.data.batches.text import TextView
    from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR
    from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor

    log = tiny_log()
    view = TextView(log, CTRSinkProcessor.from_pretrained(tiny_run))
    model = CTRSinkForCTR.from_pretrained(tiny_run).eval()
    table = pq.read_table(tiny_run / "predictions" / "test.parquet").slice(0, 9)
    batch = view.batch(table["event"].to_numpy())
    with torch.no_grad():
        logits = model(**batch).logits
    np.testing.assert_allclose(logits, table["logit"].to_numpy(), atol=1e-5)


def test_reference_rows_are_those_of_the_test_split(tiny_run):
    reference = load_file(tiny_run / "reference.safetensors")
    table = pq.read_table(tiny_run / "predictions" / "test.parquet").slice(0, 8)
    assert "input.labels" not in reference
    np.testing.assert_allclose(reference["logits"], table["logit"].to_numpy(), atol=1e-5)


def test_push_compares_a_run_with_its_reference(tiny_run, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(tiny_run, folder, ignore=shutil.ignore_patterns("checkpoints"))
    assert main(["push", str(folder), "tester/tiny", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "ok: logits of 8 reference rows are the run's own" in printed
    (shared,) = (line for line in printed.splitlines() if line.startswith("would upload"))
    (kept,) = (line for line in printed.splitlines() if line.startswith("not uploaded: "))
    assert "reference.safetensors" not in shared
    assert "reference.safetensors" in kept
    weights = load_file(folder / "model.safetensors")
    weights["head.out.bias"] = weights["head.out.bias"] + 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "lmctr_manifest.json").unlink()  # its checksum would speak first
    assert "gives other logits than the run did" in error_of(capsys, "push", folder, "tester/tiny", "--dry-run")


def test_printed_output(tiny_run):
    printed = (tiny_run.parent / "printed.txt").read_text()
    for text in (
        "gradient boosting",
        "counting",
        "best reachable test AUC for a reader of the last",
        "logistic regression",
        f"\n{read(tiny_run, 'metrics.json')['verdict']}\n",
        "stage 1 epoch",
        "stage 2 epoch",
        "run folder:",
    ):
        assert text in printed
    line = next(line for line in printed.splitlines() if line.startswith("model "))
    assert f"{read(tiny_run, 'metrics.json')['split metrics']['validation']['auc']:.4f}" in line


def test_baselines_are_fitted_on_the_whole_training_part(tiny_run, recipe_file, tmp_path, capsys):
    """Limits on the model's samples leave the baselines' training alone, and both are measured on the same samples."""
    words = ["train", recipe_file, "--output_dir", tmp_path / "run", "--data.max_train_samples", "100"]
    words += ["--data.max_eval_samples", "25", "--training.stage1_epochs", "0", "--training.stage2_epochs", "1"]
    assert main([str(word) for word in words]) == 0
    assert "training samples: model 100, baselines 320" in capsys.readouterr().out
    metrics = read(tmp_path / "run", "metrics.json")
    assert metrics["training_samples"] == {"model": 100, "baselines": 320}
    log = tiny_log()
    scores = baseline_predictions(log, split_log(log), seed=42)["gradient_boosting"]["test"]
    events = pq.read_table(tmp_path / "run" / "predictions" / "test.parquet")["event"].to_numpy()
    assert len(events) == 25
    scores = scores[[split_log(log).test.tolist().index(event) for event in events]]
    expected = evaluate_probabilities(log.label[events], scores, log.user[events])
    assert metrics["baselines"]["gradient_boosting"]["test"] == pytest.approx(expected, abs=1e-12)


# ---- folders that are in use --------------------------------------------------------------------------------------


def test_finished_runs_are_not_overwritten(tiny_run, recipe_file, capsys):
    before = (tiny_run / "model.safetensors").stat().st_mtime_ns
    assert "holds a finished run; give another --output-dir, or --overwrite" in error_of(
        capsys, "train", recipe_file, "--output_dir", tiny_run
    )
    assert (tiny_run / "model.safetensors").stat().st_mtime_ns == before


def test_resuming_a_finished_run_does_nothing(tiny_run, recipe_file, capsys):
    assert main(["train", str(recipe_file), "--output_dir", str(tiny_run), "--resume"]) == 0
    assert "nothing to resume" in capsys.readouterr().out


def test_resuming_with_a_changed_recipe_names_the_key(tiny_run, recipe_file, capsys):
    words = ["train", recipe_file, "--output_dir", tiny_run, "--resume", "--training.learning_rate", "0.5"]
    assert "training.learning_rate: 0.001 before, 0.5 now" in error_of(capsys, *words)


def test_other_peoples_folders_are_left_alone(recipe_file, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    for words in ([], ["--overwrite"]):
        message = error_of(capsys, "train", recipe_file, "--output_dir", tmp_path, *words)
        assert "is not empty and holds no run" in message
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_resume_starts_a_run_where_none_is(recipe_file, tmp_path):
    (tmp_path / "new").mkdir()
    left = (
        tmp_path / "new" / f"recipe.yaml.{socket.gethostname()}-{2**30}-1.tmp"
    )  # of a process that was killed in its first file
    left.write_text("data:")
    words = ["train", recipe_file, "--output_dir", tmp_path / "new", "--resume", "--data.baselines", "false"]
    words += ["--training.stage1_epochs", "0", "--training.stage2_epochs", "1"]
    assert main([str(word) for word in words]) == 0
    assert read(tmp_path / "new", "metrics.json")["steps"] == 10
    with pytest.raises(ValueError, match="there is no run to resume"):
        train(recipe_file, output_dir=tmp_path / "other", resume=True)


def test_a_run_that_failed_before_its_first_step_is_in_nobodys_way(recipe_file, tmp_path, capsys, monkeypatch):
    words = ["train", recipe_file, "--output_dir", tmp_path / "run", "--data.baselines", "false"]
    words += ["--training.stage1_epochs", "0", "--training.stage2_epochs", "1"]

    def fail(*_):
        raise ValueError("the optimiser refuses")

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_fit", fail)
        assert "refuses" in error_of(capsys, *words)
        assert "refuses" in error_of(capsys, *words, "--training.learning_rate", "2", "--resume")
    assert (tmp_path / "run" / "data.json").is_file()
    assert main([str(word) for word in words]) == 0
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["training"]["learning_rate"] == 1e-3


def test_overwrite_keeps_files_that_a_run_did_not_write(recipe_file, tmp_path, capsys):
    words = ["train", recipe_file, "--output_dir", tmp_path / "run", "--data.baselines", "false"]
    words += ["--training.stage1_epochs", "0", "--training.stage2_epochs", "1"]
    assert main([str(word) for word in words]) == 0
    (tmp_path / "run" / "notes.txt").write_text("mine")
    first = read(tmp_path / "run", "metrics.json")
    assert first["baselines"] == {}
    assert main([str(word) for word in [*words, "--training.seed", "7", "--overwrite"]]) == 0
    assert read(tmp_path / "run", "metrics.json")["seed"] == 7
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_overwrite_deletes_all_that_a_run_wrote(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    RunFolder(tmp_path / "run").clear()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


# ---- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["--model.backbone.hidden_sise", "8"],
            "unknown key 'hidden_sise' in model.backbone; did you mean 'hidden_size'",
        ),
        (["--model.backbone.model_type", "bart2"], "unknown model_type 'bart2'"),
        (["--model.backbone.vocab_size", "10"], "vocab_size is 10, but the tokenizer has"),
        (
            ["--model.sink_kind", "none"],
            "training.stage1_epochs is 1, in which the sinks are pooled only, but model.sink_kind is 'none'; accepted: 0",
        ),
        (["--data.max_length", "500"], "data.max_length is 500, but the backbone has positions for 128 tokens"),
        (["--data.options.num_userz", "5"], "did you mean 'num_users'"),
        (["--data.name", "movilens"], "Did you mean 'movielens'"),
        (["--data.max_eval_samples", "1"], "the validation part (1 samples) has only the label"),
        (["--model.tokenizer.vocab_size", "20"], "vocab_size=20 is smaller than the"),
        (["--data.prompt", "generic/fr"], "generic/"),
        (["--training.lr_scheduler_type", "cosinus"], "cosinus"),
        (["--model.backbone", "no/such-model-here", "--model.tokenizer", "null"], "no/such-model-here"),
        (["--model.backbone", "package:no_such_package_here", "--model.tokenizer", "null"], "is not installed"),
    ],
)
def test_bad_values_are_one_clear_line(recipe_file, tmp_path, capsys, monkeypatch, overrides, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    error = error_of(capsys, "train", recipe_file, "--output_dir", tmp_path / "run", *overrides)
    assert message in error
    assert not (tmp_path / "run" / "metrics.json").exists()


# ---- kills --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_model(tiny_run, recipe_file, tmp_path, lmctr_process):
    folder = tmp_path / "killed"
    words = ["train", recipe_file, "--output_dir", folder]
    killed = lmctr_process(*words, kill_when=(folder / "checkpoints" / "checkpoint-20" / MARKER).exists)
    assert killed.returncode == -signal.SIGKILL
    assert not (folder / "metrics.json").exists()
    assert main([str(word) for word in words]) == 2  # not without --resume or --overwrite
    # A checkpoint that the kill cut short: weights are there, the rest is not.
    half = folder / "checkpoints" / "checkpoint-999"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    resumed = lmctr_process(*words, "--resume")
    assert "skipped: " in resumed.out
    assert f"resuming from {list_first(folder, resumed.out)}" in resumed.out
    left, right = load_file(tiny_run / "model.safetensors"), load_file(folder / "model.safetensors")
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[key], right[key]) for key in left)
    assert read(folder, "metrics.json")["split metrics"] == read(tiny_run, "metrics.json")["split metrics"]
    assert read(folder, "metrics.json")["evaluations"] == read(tiny_run, "metrics.json")["evaluations"]


def list_first(folder, printed):
    line = next(line for line in printed.splitlines() if line.startswith("resuming from "))
    checkpoint = line.removeprefix("resuming from ")
    assert checkpoint.startswith(str(folder / "checkpoints" / "checkpoint-"))
    assert not checkpoint.endswith("-999")
    return checkpoint


@pytest.mark.slow
def test_kill_before_the_first_checkpoint(tiny_run, recipe_file, tmp_path, lmctr_process):
    folder = tmp_path / "killed"
    words = ["train", recipe_file, "--output_dir", folder]
    lmctr_process(*words, kill_when=(folder / "recipe.yaml").exists)
    assert not list_checkpoints(folder / "checkpoints")
    resumed = lmctr_process(*words, "--resume")
    assert "no complete checkpoint: starting from step 0" in resumed.out
    left, right = load_file(tiny_run / "model.safetensors"), load_file(folder / "model.safetensors")
    assert all(np.array_equal(left[key], right[key]) for key in left)


def test_resuming_on_changed_data_is_an_error(tiny_run, recipe_file, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(tiny_run, folder)
    (folder / "metrics.json").unlink()
    data = read(folder, "data.json")
    data["fingerprint"] = "00000000"
    (folder / "data.json").write_text(json.dumps(data))
    (folder / "lmctr_manifest.json").unlink()  # its checksum would speak first
    message = error_of(capsys, "train", recipe_file, "--output_dir", folder, "--resume")
    assert "the data are not those that the run" in message


# ---- processes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_give_the_metrics_of_one(recipe_file, tmp_path, lmctr_process, lmctr_launch):
    """`accelerate launch -m lmctr train` with the shipped configuration of two CPU processes."""
    from lmctr.utils.resources import find_resource

    still = ["--model.backbone.hidden_dropout_prob", "0.0", "--model.backbone.attention_probs_dropout_prob", "0.0"]
    still += ["--model.sink_bias_dropout", "0.0", "--data.baselines", "false", "--data.max_train_samples", "229"]
    still += ["--data.max_eval_samples", "37"]
    lmctr_process("train", recipe_file, "--output_dir", tmp_path / "one", *still)
    config = find_resource("recipes", "accelerate/cpu2")
    launcher = ("-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", str(config))
    printed = lmctr_launch(
        *("train", recipe_file, "--output_dir", tmp_path / "two", *still),
        *("--training.per_device_train_batch_size", "16"),
        launcher=launcher,
    )
    lines = [line for line in printed.splitlines() if line.strip()]
    assert len([line for line in lines if "2 processes on cpu" in line]) == 1  # the first process alone prints
    assert len([line for line in lines if line.startswith("run folder:")]) == 1
    assert not (tmp_path / "two" / ".cache").exists()
    one, two = (read(tmp_path / name, "metrics.json") for name in ("one", "two"))
    assert (one["num_processes"], two["num_processes"]) == (1, 2)
    assert one["steps"] == two["steps"] == 24
    for part in ("validation", "test"):
        left, right = one["split metrics"][part], two["split metrics"][part]
        assert right["num_samples"] == 37
        for key in left:
            assert right[key] == pytest.approx(left[key], abs=2e-3)
        scores = [
            pq.read_table(tmp_path / name / "predictions" / f"{part}.parquet")["logit"].to_numpy()
            for name in ("one", "two")
        ]
        np.testing.assert_allclose(*scores, atol=1e-3)


# ---- retrieval ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_retrieved_histories(recipe_file, tmp_path):
    """Train, evaluate and predict agree when behaviours are chosen by similarity; the run keeps its retriever."""
    folder = tmp_path / "run"
    words = ["train", str(recipe_file), "--output_dir", str(folder), "--data.baselines", "false"]
    words += [
        "--data.order",
        "similarity",
        "--data.retrieval",
        "{encoder: tfidf, k: 6}",
        "--model.sink_signal",
        "similarity",
    ]
    words += ["--training.stage1_epochs", "0", "--training.stage2_epochs", "1"]
    assert main(words) == 0
    assert (folder / "retriever").is_dir()
    assert main(["evaluate", str(folder), "--output", str(tmp_path / "m.json")]) == 0
    expected = read(folder, "metrics.json")["split metrics"]["test"]
    assert read(tmp_path, "m.json")["metrics"]["auc"] == pytest.approx(expected["auc"], abs=1e-9)
    log = tiny_log()
    table = pq.read_table(folder / "predictions" / "test.parquet").slice(0, 8)
    answers = predict(folder, tmp_path, [request_of(log, event) for event in table["event"].to_pylist()])
    np.testing.assert_allclose([answer["logit"] for answer in answers], table["logit"].to_numpy(), atol=1e-4)


@pytest.mark.parametrize(("lora", "half"), [(True, False), (True, True), (False, True)])
def test_a_run_is_the_plain_model_that_was_measured(lora, half, recipe_file, tmp_path):
    """Also where adapters and weights apart would round otherwise than their sum; its reference rows are of the weights' precision."""
    folder = tmp_path / "run"
    words = ["train", str(recipe_file), "--output_dir", str(folder), "--data.baselines", "false"]
    words += ["--training.stage1_epochs", "0", "--training.stage2_epochs", "1", "--training.learning_rate", "0.01"]
    words += [
        *(["--training.lora", "{r: 4}"] * lora),
        *(["--training.bf16", "true", "--training.use_cpu", "true"] * half),
    ]
    assert main(words) == 0
    assert not any("lora" in name for name in load_file(folder / "model.safetensors"))
    assert not (folder / "adapter_config.json").exists()
    assert compare_with_reference(folder, load(folder).model)[1] == 0.0
    assert main(["evaluate", str(folder), "--output", str(tmp_path / "m.json")]) == 0
    expected = read(folder, "metrics.json")["split metrics"]["test"]
    assert read(tmp_path, "m.json")["metrics"]["log_loss"] == pytest.approx(expected["log_loss"], abs=1e-9)
