import csv
import json
import os
import shutil
import sys

import numpy as np
import pytest
from cli_helpers import tiny_log

from lmctr.analysis import sink_attention
from lmctr.cli.main import main
from lmctr.data import TextView, split_log
from lmctr.runs.folder import RunFolder
from lmctr.runs.loading import load_run
from lmctr.studies.analyses import common


def analyze(*words):
    return main(["analyze", "attention", *map(str, words)])


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def copy_of(tiny_run, tmp_path):
    """A run folder that may be written to."""

    def copy(name):
        return shutil.copytree(tiny_run, tmp_path / name, ignore=shutil.ignore_patterns("checkpoints", "analysis"))

    return copy


def test_files_and_table_of_one_run(copy_of, capsys):
    run = copy_of("run")
    assert analyze(run, "--num-samples", 12, "--layer", -1, "--sample", 3, "--batch-size", 5) == 0
    printed = capsys.readouterr().out
    folder = run / "analysis"
    assert {path.name for path in folder.iterdir()} == {
        "attention.json",
        "attention.csv",
        "attention_map.png",
        "attention_layers.png",
    }
    assert is_png(folder / "attention_map.png")
    assert is_png(folder / "attention_layers.png")
    content = json.loads((folder / "attention.json").read_text())
    assert content["split"] == "test"
    assert content["command"].startswith("lmctr analyze attention")
    (entry,) = content["runs"]
    assert entry["num_samples"] == 12
    assert "[SINK]" in entry["map"].pop("tokens")
    assert entry["map"] == {"sample": 3, "event": entry["samples"]["event"][3], "layer": 1, "head": "mean"}
    assert entry["sink_bias_layers"] == [0, 1]

    # The numbers are those of the model and of the test part's samples, in one batch.
    model, processor = load_run(run)
    log = tiny_log()
    events = entry["samples"]["event"]
    assert len(set(events)) == 12
    assert set(events) <= set(split_log(log).test.tolist())
    measured = sink_attention(model, [TextView(log, processor).batch(events)])
    np.testing.assert_allclose(entry["samples"]["to_sinks"], measured.to_sinks, atol=1e-5)
    assert [row["layer"] for row in entry["layers"]] == [0, 1]
    for layer, row in enumerate(entry["layers"]):
        assert row["to_sinks"] == pytest.approx(measured.mean_to_sinks[layer], abs=1e-5)
        assert row["to_sinks_std"] == pytest.approx(measured.to_sinks[:, layer].std(), abs=1e-5)
        assert row["between_sinks"] == pytest.approx(measured.mean_between_sinks[layer], abs=1e-5)
        assert f"{row['to_sinks']:.1%}" in printed
        assert f"{row['between_sinks']:.1%}" in printed
    with open(folder / "attention.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["run", "run"]
    assert float(rows[1]["between_sinks"]) == entry["layers"][1]["between_sinks"]
    assert rows[0]["sink_bias"] == "True"

    RunFolder(run).clear()  # training again with --overwrite leaves no stale analysis
    assert not folder.exists()


def test_runs_side_by_side(copy_of, tmp_path, capsys):
    """A second model without bias: scale 0. One comparison, the same samples, a map per run."""
    first, second = copy_of("a"), copy_of("b")
    from safetensors.numpy import load_file, save_file

    weights = load_file(second / "model.safetensors")
    for name in [name for name in weights if name.endswith(".scale")]:
        weights[name] = np.zeros_like(weights[name])
    save_file(weights, second / "model.safetensors", metadata={"format": "pt"})
    (second / "lmctr_manifest.json").unlink()  # changed on purpose
    output = tmp_path / "both"
    assert analyze(first, second, "--num-samples", 6, "--output", output) == 0
    content = json.loads((output / "attention_comparison.json").read_text())
    assert [entry["name"] for entry in content["runs"]] == ["a", "b"]
    assert content["same_samples"] is True
    assert "different samples" not in capsys.readouterr().out
    with_bias, without = content["runs"]
    assert with_bias["samples"]["event"] == without["samples"]["event"]
    for layer in (0, 1):
        assert with_bias["layers"][layer]["between_sinks"] > 2 * without["layers"][layer]["between_sinks"]
    assert {path.name for path in output.iterdir()} == {
        "attention_comparison.json",
        "attention_comparison.csv",
        "attention_comparison_layers.png",
        "attention_comparison_map_a.png",
        "attention_comparison_map_b.png",
    }
    assert not (first / "analysis").exists()


def test_other_data_and_other_draws(tiny_run, tmp_path):
    def events(*words):
        assert analyze(tiny_run, "--no-plots", "--num-samples", 8, "--output", tmp_path / "o", *words) == 0
        return json.loads((tmp_path / "o" / "attention.json").read_text())["runs"][0]["samples"]

    first = events()
    assert first == events()
    assert first["event"] != events("--seed", 1)["event"]
    assert first["to_sinks"] != events("--data.options.seed", 5)["to_sinks"]
    assert set(first["event"]).isdisjoint(events("--split", "validation")["event"])
    assert len(events("--num-samples", 10_000)["event"]) == 40


def test_no_plots_needs_no_matplotlib(tiny_run, tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert analyze(tiny_run, "--num-samples", 2, "--output", tmp_path / "o") == 2
    assert "pip install 'lmctr[plots]'" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
    assert analyze(tiny_run, "--num-samples", 2, "--output", tmp_path / "o", "--no-plots") == 0
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"attention.json", "attention.csv"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layer", "2"], "tiny: --layer 2: the model has 2 layers, 0 to 1"),
        (["--head", "-3"], "has 2 heads, 0 to 1"),
        (["--num-samples", "4", "--sample", "4"], ": --sample 4: 4 samples are drawn, 0 to 3"),
        (["--num-samples", "0"], "--num-samples must be at least 1, got 0"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--model.sink_kind", "none"], "--model.sink_kind has no effect on an analysis"),
        (["--training.use_cpu", "true"], "--training.use_cpu has no effect on an analysis"),
        (["--data.num_behaviors", "3"], "--data.num_behaviors has no effect on an analysis"),
        (["--data.options.seeed", "5"], "did you mean 'seed'"),
    ],
)
def test_bad_arguments(tiny_run, tmp_path, capsys, words, message):
    assert analyze(tiny_run, "--output", tmp_path / "o", *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_place_that_cannot_hold_results_is_told_before_the_work(copy_of, tmp_path, monkeypatch, capsys):
    run = copy_of("run")
    monkeypatch.setattr(common.Measure, "opened", None)
    (tmp_path / "file").touch()
    assert analyze(run, "--output", tmp_path / "file" / "o") == 2
    assert f"error: {tmp_path}/file/o: {tmp_path}/file is a file, where a folder is wanted" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda place, mode: place != run)  # as of a system that is mounted read-only
    assert analyze(run) == 2
    told = f"error: {run}/analysis: may not be written (Permission denied); name another place by --output\n"
    assert capsys.readouterr().err == told
    assert not (run / "analysis").exists()


def test_bad_runs(tiny_run, tmp_path, capsys):
    assert analyze(tmp_path / "none") == 2
    assert "does not exist" in capsys.readouterr().err
    assert analyze(tiny_run, tiny_run) == 2
    assert "the same run is given twice" in capsys.readouterr().err


def test_runs_of_the_same_name_are_told_apart():
    from pathlib import Path

    from lmctr.studies.analyses.common import run_names

    assert run_names([RunFolder(Path("/x/a/run")), RunFolder(Path("/x/b/run"))]) == ["a/run", "b/run"]
    assert run_names([RunFolder(Path("/x/a/run"))]) == ["run"]


def test_run_without_sinks(recipe_file, tmp_path, lmctr_process, capsys):
    run = tmp_path / "none"
    lmctr_process(
        "train",
        recipe_file,
        "--output_dir",
        run,
        "--model.sink_kind",
        "none",
        "--training.stage1_epochs",
        "0",
        "--training.stage2_epochs",
        "1",
    )
    assert analyze(run, "--num-samples", 3) == 0
    assert "3 of them without sinks" in capsys.readouterr().out
    (entry,) = json.loads((run / "analysis" / "attention.json").read_text())["runs"]
    assert [row["to_sinks"] for row in entry["layers"]] == [0.0, 0.0]
    assert [row["between_sinks"] for row in entry["layers"]] == [None, None]
    assert entry["samples"]["between_sinks"] == [None, None, None]
    assert entry["uniform_between_sinks"] is None
    assert is_png(run / "analysis" / "attention_map.png")


def test_what_the_answers_hang_on(copy_of, capsys):
    run = copy_of("run")
    assert main(["analyze", "importance", str(run), "--num-samples", "40", "--top", "1"]) == 0
    printed = capsys.readouterr().out
    content = json.loads((run / "analysis" / "importance.json").read_text())
    assert content["command"].startswith("lmctr analyze importance")
    (entry,) = content["runs"]
    assert entry["num_samples"] == 40
    assert {loss["column"] for loss in entry["losses"]} == {"history", "item"}
    dearest = entry["losses"][0]
    assert dearest["auc"] == max(loss["auc"] for loss in entry["losses"])
    assert f"{dearest['column']:<8}" in printed
    assert f"{dearest['auc']:+.4f}" in printed
    assert "(1 more lose less; --top says how many to print)" in printed
    with open(run / "analysis" / "importance.csv", newline="") as file:
        assert [row["column"] for row in csv.DictReader(file)] == [loss["column"] for loss in entry["losses"]]
    assert is_png(run / "analysis" / "importance.png")
