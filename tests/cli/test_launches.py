"""Text models in launches of two processes: a stop inside an epoch, and the configurations that are shipped for accelerate."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
import warm
from cli_helpers import read
from safetensors.torch import load_file

from lmctr.cli.main import main
from lmctr.utils.resources import find_resource

ENVIRONMENT = {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "no"}


@pytest.mark.slow
def test_a_launch_stopped_inside_an_epoch_ends_as_if_it_had_not(recipe_file, tmp_path):
    """Each process goes on with the vectors that it had read in this epoch, by the weights of then, with its own dropout."""
    words = ["-m", "lmctr", "train", recipe_file, "--data.baselines", "false", "--data.max_train_samples", "229"]
    words += [
        "--model.layout",
        "split",
        "--model.items_ahead",
        "epoch",
        "--training.per_device_train_batch_size",
        "16",
    ]
    words += ["--training.save_strategy", "steps", "--training.save_steps", "3", "--training.eval_strategy", "steps"]
    words += [
        "--training.eval_steps",
        "3",
        "--training.save_total_limit",
        "20",
        "--training.early_stopping_patience",
        "null",
    ]

    def run(name, *more, until=None):
        running = warm.launch(*words, "--output-dir", tmp_path / name, *more, environment=os.environ | ENVIRONMENT)
        deadline = time.monotonic() + 120
        while until is not None and not until.is_file() and time.monotonic() < deadline:
            time.sleep(0.005)
        for process in running if until is not None else ():
            process.send_signal(signal.SIGKILL)
        codes = [process.wait() for process in running]
        assert codes == ([0, 0] if until is None else [-signal.SIGKILL] * 2), running

    run("whole")
    run("stopped", until=tmp_path / "stopped" / "checkpoints" / "checkpoint-3" / "checkpoint_complete.json")
    states = [
        load_file(tmp_path / "stopped" / "checkpoints" / "checkpoint-3" / f"epoch_state_{process}.safetensors")
        for process in (0, 1)
    ]
    assert states[0]["vectors"].shape != states[1]["vectors"].shape or not torch.equal(
        states[0]["vectors"], states[1]["vectors"]
    )
    run("stopped", "--resume")
    whole, stopped = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert whole.keys() == stopped.keys()
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)
    ends = [read(tmp_path / name, "metrics.json")["split metrics"] for name in ("whole", "stopped")]
    assert ends[0] == ends[1]


def launched(python, recipe_file, folder, config, *words):
    """`accelerate launch` itself with a shipped configuration, on two CPU processes of `python`."""
    launcher = [
        warm.python(),
        "-m",
        "accelerate.commands.accelerate_cli",
        "launch",
        "--config_file",
        find_resource("recipes", config),
    ]
    launcher += ["--num-processes", "2", "--mixed-precision", "no", "--main-process-port", "0"]
    words = ["-m", "lmctr", "train", recipe_file, "--output-dir", folder, "--data.baselines", "false", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python}
    return subprocess.run(
        [*map(str, launcher), *map(str, words)], env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.slow
def test_the_shipped_data_parallel_configuration_trains(recipe_file, tmp_path):
    """Two processes, of half of the batch each, end with the weights of one; the first is an interpreter that has imported nothing yet."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$LOCAL_RANK" = 0 ] && exec {sys.executable} "$@"\nexec {warm.python()} "$@"\n')
    python.chmod(0o755)
    still = ["--model.backbone.hidden_dropout_prob", "0.0", "--model.backbone.attention_probs_dropout_prob", "0.0"]
    still += ["--model.sink_bias_dropout", "0.0", "--data.max_train_samples", "96", "--data.max_eval_samples", "32"]
    half = ["--training.per_device_train_batch_size", "16"]
    done = launched(str(python), recipe_file, tmp_path / "two", "accelerate/ddp.yaml", *still, *half)
    assert done.returncode == 0, done.stderr[-3000:]
    assert read(tmp_path / "two", "metrics.json")["num_processes"] == 2
    alone = ["train", recipe_file, "--output-dir", tmp_path / "one", "--data.baselines", "false", *still, "--quiet"]
    assert main([str(word) for word in alone]) == 0
    two, one = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "one"))
    for name, values in one.items():
        torch.testing.assert_close(two[name], values, atol=2e-4, rtol=0, msg=name)


@pytest.mark.slow
def test_the_shipped_sharding_configuration_is_refused_on_cpus(recipe_file, tmp_path):
    done = launched(warm.python(), recipe_file, tmp_path / "run", "accelerate/fsdp2.yaml")
    assert done.returncode != 0
    assert "error: the launcher asks for FSDP, but the training is on the CPU" in done.stderr
    assert "recipes/accelerate/cpu2.yaml" in done.stderr
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--training.learning_rat", "1"], "error: unknown key 'learning_rat' in training"),
        (["--resum"], "lmctr train: error: unknown option --resum"),
    ],
)
def test_an_early_mistake_is_told_by_the_first_process_alone(recipe_file, tmp_path, words, said):
    """Before the processes know each other; the launcher ends the others."""
    done = launched(warm.python(), recipe_file, tmp_path / "run", "accelerate/ddp.yaml", *words)
    assert done.returncode != 0
    assert done.stderr.count("error: ") == done.stderr.count(said) == 1, done.stderr
    assert re.search(r"rank +: 0 \(local_rank: 0\)\s+exitcode +: 2 ", done.stderr)


def test_what_only_another_process_finds_wrong_is_told(monkeypatch, capsys):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        assert main(["train", "no.yaml", "--output-dir", "run"]) == 2
        assert "error: no.yaml: neither a file" in capsys.readouterr().err
        assert len(slept) == int(rank)
