"""A program of a user, as a type checker sees it: public names have types, and a wrong use is found."""

import ast
import importlib
import subprocess
import sys
from inspect import ismodule
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RIGHT = """
from pathlib import Path

import numpy as np

import lmctr
from lmctr.data import InteractionLog, load_log
from lmctr.runs import Run


def trained(folder: Path) -> Run:
    return lmctr.runs.train({"model": {"family": "din"}}, output_dir=folder, overrides={"training.epochs": 1})


run = lmctr.runs.load("user/name")
logits: np.ndarray = run.score([{"item": 1, "time": 5}], [{"item": 2}], 9)
again: np.ndarray = run.predict([{"price": 1.0}])
auc: float = run.evaluate("validation")["auc"]
log: InteractionLog = load_log("synthetic", num_users=5)
ends: np.ndarray = log.history_end
model = lmctr.DINForCTR(lmctr.DINConfig(item_vocab_size=9))
model.save_pretrained("folder")
"""
WRONG = """
import lmctr
from lmctr.data import load_log

run = lmctr.runs.load(3)
number: int = run.predict([])
load_log("synthetic").nothing
lmctr.runs.load("x").score([], [])
"""


ROOMS = ("lmctr", "lmctr.data", "lmctr.runs")  # whose names are imported when they are asked for


def stub_of(room):
    """What a type checker should read for a package whose names are imported when they are asked for: the text of its `__init__.pyi`."""
    module = importlib.import_module(room)
    imports, others = {f"from {room} import {name} as {name}" for name in getattr(module, "_ROOMS", ())}, []
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if ismodule(value):
            imports.add(f"from {value.__name__.rpartition('.')[0]} import {name} as {name}")
            continue
        own = getattr(value, "__qualname__", None)
        if own is not None:
            imports.add(f"from {value.__module__} import {own} as {own}")
        if own != name:
            others.append(f"{name}: {type(value).__name__}" if own is None else f"{name} = {own}")
    return "\n".join([*sorted(imports), *([""] if others else []), *others, ""])


def place_of(folder, room):
    return Path(folder) / room.replace(".", "/") / "__init__.pyi"


def test_types_of_the_public_names_are_there(tmp_path):
    """`python tests/test_typing.py` writes them, `ruff format` breaks their lines."""
    subprocess.run(
        [sys.executable, __file__, str(tmp_path)], check=True
    )  # a process in which no test has changed a module
    for room in ROOMS:
        made, kept = place_of(tmp_path, room).read_text(), place_of(ROOT, room).read_text()
        assert ast.dump(ast.parse(kept)) == ast.dump(ast.parse(made)), room


def checked(tmp_path, name, source):
    file = tmp_path / f"{name}.py"
    file.write_text(source)
    words = ["--ignore-missing-imports", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([sys.executable, "-m", "mypy", *words, str(file)], cwd=ROOT, capture_output=True, text=True)
    return [line.split(": ", 1)[1] for line in done.stdout.splitlines() if line.startswith(str(file))], done.stdout


@pytest.mark.slow
def test_a_program_of_a_user(tmp_path):
    pytest.importorskip("mypy")
    found, said = checked(tmp_path, "right", RIGHT)
    assert found == [], said
    found, said = checked(tmp_path, "wrong", WRONG)
    assert [line.split("[")[-1].rstrip("]") for line in found] == [
        "arg-type",
        "assignment",
        "attr-defined",
        "call-arg",
    ], said


if __name__ == "__main__":
    for written in ROOMS:
        target = place_of(sys.argv[1] if len(sys.argv) > 1 else ROOT, written)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(stub_of(written))
