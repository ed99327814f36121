"""Python and the command line leave the same run folder, byte by byte where a run allows it."""

import json
from pathlib import Path

import pytest
import yaml
from tiny_backbones import TINY_BERT

from lmctr.cli.main import main
from lmctr.runs import train

# What the clock and the caller decide; all the rest must be equal.
TIMES = ("train_seconds", "samples_per_second", "command")  # in metrics.json
LOGGED = ("runtime", "per_second")  # parts of keys in the log history of trainer_state.json
PICKLED = ("training_args.bin",)  # of a checkpoint: it names its folder

TEXT = {
    "data": {
        "name": "synthetic",
        "options": {"num_users": 40, "num_items": 60, "events_per_user": 20},
        "num_behaviors": 5,
    },
    "model": {
        "backbone": TINY_BERT,
        "tokenizer": {"type": "wordpiece", "vocab_size": 300},
        "num_sink_buckets": 8,
        "sink_embedding_dim": 8,
    },
    "training": {"stage1_epochs": 1, "stage2_epochs": 1, "use_cpu": True, "learning_rate": 1e-3},
}
TABLE = {
    "data": {"name": "synthetic_table", "options": {"num_rows": 1200}},
    "model": {"family": "deepfm", "embedding_dim": 4, "hidden_units": [8]},
    "training": {"epochs": 2, "use_cpu": True},
}


@pytest.mark.parametrize("recipe", [TEXT, TABLE], ids=["ctr_sink", "deepfm"])
def test_both_ways_leave_the_same_files(recipe, tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    folders = []
    for name in ("python", "shell"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)  # the same relative folder: checkpoints name it
        if name == "python":
            run = train(recipe, output_dir="runs/tiny", overrides={"training.seed": 3})
        else:
            assert main(["train", "../tiny.yaml", "--output-dir", "runs/tiny", "--training.seed", "3"]) == 0
        folders.append((tmp_path / name / "runs" / "tiny").resolve())
    assert run.recipe.training["seed"] == 3
    python, shell = (files_of(folder) for folder in folders)
    assert sorted(python) == sorted(shell)
    assert {"model.safetensors", "recipe.yaml", "metrics.json", "data.json", "reference.safetensors"} <= set(python)
    different = {name for name in python if python[name] != shell[name]}
    assert different == set()
    commands = [json.loads((folder / "metrics.json").read_text())["command"] for folder in folders]
    assert commands[0] == "lmctr.runs.train(recipe, overrides={'training.seed': 3})"
    assert commands[1].startswith("lmctr train ../tiny.yaml")


def files_of(folder: Path) -> dict[str, object]:
    """Content of every file by its place, without what the clock and the caller decide."""
    return {
        path.relative_to(folder).as_posix(): content(path)
        for path in folder.rglob("*")
        if path.is_file() and path.name not in PICKLED
    }


def content(path: Path) -> object:
    if path.name == "metrics.json":
        values = json.loads(path.read_text())
        return {key: value for key, value in values.items() if key not in TIMES}
    if path.name == "trainer_state.json":
        values = json.loads(path.read_text())
        values["log_history"] = [
            {key: value for key, value in entry.items() if not any(part in key for part in LOGGED)}
            for entry in values["log_history"]
        ]
        return values
    if path.name in (
        "checkpoint_complete.json",
        "lmctr_manifest.json",
    ):  # checksums, those of files with times in them too
        values = json.loads(path.read_text())
        assert values.pop("seal")
        values.pop("seconds", None)  # of training until then
        varying = ("trainer_state.json", "metrics.json", *PICKLED)
        values["files"] = {name: entry for name, entry in values["files"].items() if name not in varying}
        return values
    return path.read_bytes()
