"""Launches of two processes: mistakes end all of them, long work of the first is waited for, and what was trained goes on in one."""

import json
import os
import re
import socket

import numpy as np
import pandas as pd
import pytest
import torch
import warm
import yaml
from accelerate.commands.launch import launch_command_parser
from accelerate.utils.launch import prepare_simple_launcher_cmd_env

import lmctr
from lmctr.cli.main import main
from lmctr.training.arguments import CTRTrainingArguments

ROWS = 363  # two processes of 30 rows each leave a last batch of one row to one of them


def recipe(folder, name="r.yaml", lower=0, **training):
    rng = np.random.default_rng(lower)
    user, ad = rng.integers(40, size=600), lower + rng.integers(30, size=600)
    score = 0.8 * (ad % 7 / 3 - 1) + 0.5 * (user % 5 / 2 - 1)
    table = {"ts": 1_700_000_000 + 60 * np.arange(600), "user": user, "ad": ad, "price": rng.gamma(2, 3, 600).round(2)}
    table["click"] = (rng.random(600) < 1 / (1 + np.exp(-score))).astype(int)
    pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
    schema = {
        "files": {"train": f"{name}.csv"},
        "split": {"rule": "time", "fractions": [0.7, 0.15, 0.15]},
        "time": {"column": "ts"},
        "label": "click",
        "group": "user",
        "fields": [{"name": n, "type": "categorical"} for n in ("user", "ad")]
        + [{"name": "price", "type": "numeric"}],
    }
    (folder / f"{name}-schema.yaml").write_text(yaml.safe_dump(schema))
    training = {"epochs": 2, "per_device_train_batch_size": 30, "learning_rate": 0.01, "use_cpu": True} | training
    content = {
        "data": {"name": str(folder / f"{name}-schema.yaml"), "baselines": False},
        "model": {"family": "dnn", "hidden_units": [8], "embedding_dim": 4},
        "training": {key: value for key, value in training.items() if value is not None},
    }
    (folder / name).write_text(yaml.safe_dump(content))
    return folder / name


def launch(*words, **environment):
    """Two processes; the exit code of the first, and all that was printed."""
    running = warm.launch(*words, environment=os.environ | environment)
    codes = [process.wait(120) for process in running]
    assert (codes[0] == 0) == (codes[1] == 0), running
    return codes[0], "".join(process.out + process.err for process in running)


SCRIPT = """
import datetime, gc, os, sys, time, types
import torch.distributed as dist
import lmctr
from lmctr.runs.training import Training
from lmctr.training.processes import FirstProcess

def may_take(seconds):
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), dist.group.WORLD)

make = dist.init_process_group
def short(*args, **more):
    make(*args, **more)  # processes meet when they have started, whatever else the machine does
    may_take(2)
dist.init_process_group = short
prepare = Training._prepare
def slowly(self):
    time.sleep(2.7)  # longer than a collective may take
    prepare(self)
Training._prepare = slowly
wait = FirstProcess.wait
def met(self):
    wait(self)
    may_take(60)  # what comes after a preparation takes as long as the machine makes it
FirstProcess.wait = met
def late():
    time.sleep(os.environ["RANK"] == "0")  # the others are at the next training by then
    gc.collect()
lmctr.training.processes.gc = types.SimpleNamespace(collect=late)
wrong, right, folder = sys.argv[1:]
for name, recipe in (("a", wrong), ("b", right), ("b", right)):
    try:
        lmctr.runs.train(recipe, output_dir=f"{folder}/{name}", quiet=True, resume=False)
    except ValueError as error:
        print(f"skipped {name}: {type(error).__name__}: {error}", flush=True)
"""


@pytest.mark.slow
def test_a_script_goes_on_after_what_the_first_process_refuses(tmp_path):
    right, wrong = recipe(tmp_path), recipe(tmp_path, "w.yaml")
    schema = tmp_path / "w.yaml-schema.yaml"
    schema.write_text(schema.read_text().replace("label: click", "label: clack"))
    (tmp_path / "script.py").write_text(SCRIPT)
    code, said = launch(tmp_path / "script.py", wrong, right, tmp_path)
    assert code == 0, said
    lines = [line for line in said.splitlines() if "skipped" in line]
    assert sorted("FirstProcessError" in line for line in lines) == [False, False, True, True]
    assert sum("clack" in line for line in lines) == 2
    assert sum("holds a finished run" in line for line in lines) == 2
    assert json.loads((tmp_path / "b" / "metrics.json").read_text())["num_processes"] == 2


@pytest.mark.slow
def test_a_mistake_is_told_once(tmp_path):
    wrong = recipe(tmp_path)
    schema = tmp_path / "r.yaml-schema.yaml"
    schema.write_text(schema.read_text().replace("label: click", "label: clack"))
    code, said = launch("-m", "lmctr", "train", wrong, "--output-dir", tmp_path / "run")
    assert code != 0
    assert said.count("error: ") == said.count("no column 'clack'") == 1
    assert "bug of lmctr" not in said


@pytest.mark.slow
def test_machines_that_do_not_share_the_folder_are_told(tmp_path):
    """As two machines with disks of their own: the second looks where the first did not write, and says so; the first says who failed."""
    place = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place["MASTER_PORT"] = str(free.getsockname()[1])
    words = ["-m", "lmctr", "train", recipe(tmp_path), "--output-dir", "run"]
    running = []
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        running.append(warm.start(*words, environment=place | {"RANK": rank}, folder=tmp_path / rank))
    assert [process.wait() for process in running] == [2, 2]
    first, second = (process.err for process in running)
    assert re.search(
        r"error: output_dir run: process 1 \(on .*/1\) does not find what the first one prepared there", second
    )
    assert "give a folder that all machines of a launch share" in second
    assert "error: another process of this launch has ended, so this one cannot go on" in first


@pytest.mark.slow
def test_batch_normalisation_and_one_process_after_two(tmp_path):
    """The metrics are those of the saved model, whose statistics are the first process's; a last batch of one row is trained on."""
    path = recipe(tmp_path, early_stopping_patience=None)
    words = ["--model.use_batch_norm", "true", "--data.max_train_samples", str(ROWS), "--training.refit", "true"]
    code, said = launch("-m", "lmctr", "train", path, "--output-dir", tmp_path / "two", *words)
    assert code == 0, said
    run = lmctr.runs.load(tmp_path / "two")
    assert run.evaluate("test")["log_loss"] == pytest.approx(run.metrics["test"]["log_loss"], rel=1e-6)
    code, said = launch("-m", "lmctr", "train", path, "--output-dir", tmp_path / "one", "--training.max_steps", "7")
    assert code == 0, said
    for name in ("metrics.json", "model.safetensors"):
        (tmp_path / "one" / name).unlink()
    again = ["train", str(path), "--output-dir", str(tmp_path / "one"), "--resume", "--training.max_steps", "7"]
    assert main([*again, "--training.per_device_train_batch_size", "60"]) == 0
    found = json.loads((tmp_path / "one" / "metrics.json").read_text())
    assert found["num_processes"] == 1


@pytest.mark.slow
def test_a_launch_of_one_process_trains(tmp_path):
    words = ("train", recipe(tmp_path, epochs=1), "--output-dir", tmp_path / "one", "--training.max_steps", "2")
    (process,) = warm.launch("-m", "lmctr", *words, processes=1)
    assert process.wait(120) == 0, process


@pytest.mark.slow
def test_vectors_made_elsewhere_in_shared_tables(tmp_path):
    rows = [{"value": ad, "vector": [ad / 30, 1.0]} for ad in range(0, 30, 2)]
    (tmp_path / "ads.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lazy = {"epochs": 1, "embedding_optimizer": "lazy_adam", "early_stopping_patience": None}
    words = ["--data.pretrained.ad.file", str(tmp_path / "ads.jsonl"), "--data.pretrained.ad.trained", "true"]
    path = recipe(tmp_path, **lazy)
    code, said = launch(
        "-m", "lmctr", "train", path, "--output-dir", tmp_path / "two", "--training.shard_tables", "true", *words
    )
    assert code == 0, said
    alone = ["train", str(path), "--output-dir", str(tmp_path / "one"), *words, "--quiet"]
    assert main([*alone, "--training.per_device_train_batch_size", "60"]) == 0
    two, one = (lmctr.runs.load(tmp_path / name).model.state_dict() for name in ("two", "one"))
    for name, values in one.items():
        torch.testing.assert_close(two[name], values, atol=1e-6, rtol=0, msg=name)


@pytest.mark.slow
def test_processes_that_would_train_for_themselves_are_refused(tmp_path):
    code, said = launch("-m", "lmctr", "train", recipe(tmp_path, use_cpu=None), "--output-dir", tmp_path / "run")
    assert code != 0
    assert "this is one of 2 processes, and there is no accelerator: set use_cpu" in said
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_the_run_that_is_gone_on_from_is_not_written_over(tmp_path, capsys):
    path = recipe(tmp_path, epochs=1)
    day = tmp_path / "day"
    assert main(["train", str(path), "--output-dir", str(day), "--quiet"]) == 0
    later = recipe(tmp_path, "later.yaml", lower=10, epochs=1)
    words = ["train", str(later), "--from", str(day), "--overwrite", "--quiet"]
    for folder in (day, tmp_path / "." / "day"):
        assert main([*words, "--output-dir", str(folder)]) == 2
        assert "is the run's own output_dir" in capsys.readouterr().err
    assert lmctr.runs.load(day).metrics["test"]["auc"] > 0
    assert main([*words, "--output-dir", str(tmp_path / "next")]) == 0


def test_the_precision_of_the_launcher(tmp_path, monkeypatch):
    """It is the recipe's where that says nothing, and is written there; a choice stands; the next training has its own."""
    name = "ACCELERATE_MIXED_PRECISION"
    monkeypatch.setattr(CTRTrainingArguments, "launched", None)
    monkeypatch.setenv(name, "bf16")
    run = lmctr.runs.train(str(recipe(tmp_path, epochs=1)), output_dir=tmp_path / "a", quiet=True)
    assert yaml.safe_load((tmp_path / "a" / "recipe.yaml").read_text())["training"]["bf16"] is True
    auto = lmctr.runs.train(str(recipe(tmp_path, epochs=1, bf16="auto")), output_dir=tmp_path / "b", quiet=True)
    monkeypatch.setattr(CTRTrainingArguments, "launched", None)
    monkeypatch.setenv(name, "no")
    half = lmctr.runs.train(str(recipe(tmp_path, epochs=1, bf16=True)), output_dir=tmp_path / "c", quiet=True)
    plain = lmctr.runs.train(str(recipe(tmp_path, epochs=1)), output_dir=tmp_path / "d", quiet=True)
    weights = [one.model.state_dict() for one in (run, half, auto, plain)]
    same = [all(torch.equal(weights[0][key], own[key]) for key in own) for own in weights]
    assert same[1]
    assert not same[3]
    # by a trial's times, which the launcher's word has no part in
    chosen = json.loads(auto.folder.precision.read_text())["bf16"]
    expected = weights[0 if chosen else 3]
    assert all(torch.equal(weights[2][key], expected[key]) for key in expected)


def test_bf16_that_cannot_be_had_is_the_recipes_or_the_launchers(monkeypatch):
    """A recipe's `bf16: false` leaves the launcher its word."""
    monkeypatch.setattr("lmctr.training.arguments.is_torch_bf16_gpu_available", lambda: False)
    with pytest.raises(ValueError, match=r"bf16 is set, but .*; leave it out"):
        CTRTrainingArguments(bf16=True, use_cpu=False)
    monkeypatch.setattr(CTRTrainingArguments, "launched", None)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(ValueError, match=r"bf16 is set by the launcher, but .*; launch with mixed_precision no"):
        CTRTrainingArguments(bf16=False, use_cpu=False)


@pytest.mark.parametrize("number", [1, 2])
def test_a_launch_that_started_one_of_several_processes(tmp_path, monkeypatch, capsys, number):
    """What `accelerate launch --cpu --num_processes 2` without a configuration file leaves in the one process that it starts."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    arguments = launch_command_parser().parse_args(["--cpu", f"--num_processes={number}", "-m", "lmctr"])
    arguments.use_cpu, arguments.num_machines, arguments.mixed_precision, arguments.dynamo_backend = (
        True,
        1,
        "no",
        "no",
    )
    for name, value in prepare_simple_launcher_cmd_env(arguments)[1].items():
        monkeypatch.setenv(name, value)
    assert main(["train", str(recipe(tmp_path, epochs=1)), "--output-dir", str(tmp_path / "run")]) == 0
    told = "asked for several processes and started this one alone" in capsys.readouterr().out
    assert told == (number > 1)


def test_the_state_of_shared_tables_goes_on(tmp_path):
    """Where it stands apart from the rest of the optimiser's, as of tables that several processes shared."""
    lazy = {"embedding_optimizer": "lazy_adam", "epochs": 1}
    found = []
    for name, shared in (("shared", True), ("plain", False)):
        first = recipe(tmp_path, f"{name}.yaml", shard_tables=shared, **lazy)
        lmctr.runs.train(str(first), output_dir=tmp_path / name, quiet=True)
        later = recipe(tmp_path, f"{name}2.yaml", lower=10, from_run=str(tmp_path / name), **lazy)
        found.append(lmctr.runs.train(str(later), output_dir=tmp_path / f"{name}2", quiet=True).model.state_dict())
    for key, value in found[1].items():
        torch.testing.assert_close(found[0][key], value, msg=key)
    anew = recipe(tmp_path, "anew.yaml", lower=10, from_run=str(tmp_path / "plain"), from_optimizer=False, **lazy)
    weights = lmctr.runs.train(str(anew), output_dir=tmp_path / "anew", quiet=True).model.state_dict()
    assert any(not torch.allclose(weights[key], value, atol=1e-4) for key, value in found[1].items())
