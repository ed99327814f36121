"""What the verbs show of their progress, and that `--quiet` silences it, but neither results nor warnings."""

import argparse

import pytest
import yaml
from cli_helpers import TINY
from transformers.utils import logging as transformers_logging

import lmctr
from lmctr.cli.main import build_parser, main
from lmctr.runs import train
from lmctr.utils import progress

SHORT = {"training.stage1_epochs": 0, "training.stage2_epochs": 1, "training.logging_steps": 5}
WORDS = [f"--{key}={value}" for key, value in SHORT.items()]


def leaves(parser, words=()):
    """The parsers of all verbs and of their actions."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield " ".join(words), parser
    for action in inner:
        for name, child in action.choices.items():
            yield from leaves(child, (*words, name))


def test_every_verb_can_be_quiet():
    found = dict(leaves(build_parser()[0]))
    assert len(found) > 30
    lacking = [name for name, parser in found.items() if "--quiet" not in parser._option_string_actions]
    assert lacking == []


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return str(path)


def test_a_training_in_a_pipe(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_LINES", (0.0, 0.0))
    folder = str(tmp_path / "run")
    assert main(["train", recipe, "--output-dir", folder, *WORDS]) == 0
    shown = capsys.readouterr()
    assert "  loss 0." in shown.out
    assert "validation AUC 0." in shown.out
    for what in ("reading the data", "training", "measuring validation", "measuring test", "measuring the baselines"):
        assert f"{what}: " in shown.err
    assert "training: 100% of 10 steps, " in shown.err
    assert main(["evaluate", folder, "--quiet"]) == 0
    quiet = capsys.readouterr()
    assert "AUC" in quiet.out
    assert quiet.err == ""
    lmctr.runs.evaluate(folder, "train")
    assert "measuring train: " in capsys.readouterr().err
    lmctr.runs.evaluate(folder, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_quiet_training(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    folder = tmp_path / "run"
    assert main(["train", recipe, "--output-dir", str(folder), "--quiet", *WORDS]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "  loss " not in shown.out  # of steps; the verdict tells of log loss
    assert "validation AUC" not in shown.out
    assert "gradient boosting" in shown.out
    assert f"run folder: {folder}" in shown.out
    assert main(["train", recipe, "--output-dir", str(folder), "--quiet", "--model.family", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    train(recipe, output_dir=tmp_path / "other", overrides=SHORT, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_table_of_items_is_written_quietly(recipe, tmp_path, capsys):
    """Without transformers' own bar either, which other verbs of this process have switched off."""
    folder = str(tmp_path / "run")
    words = ["--data.statistics=basic", "--data.baselines=false", "--quiet", *WORDS]
    assert main(["train", recipe, "--output-dir", folder, *words]) == 0
    capsys.readouterr()
    transformers_logging.enable_progress_bar()
    assert main(["data", "statistics", folder, "--output", str(tmp_path / "items.parquet"), "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "items, statistics up to second" in shown.out
