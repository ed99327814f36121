"""A program of a user, as a type checker sees it: public names have types, and a wrong use is found."""

import ast
import importlib
import subprocess
import sys
from inspect import ismodule
from pathlib import Path

import pytest
import warm

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
        kept = own if own == name else f"_{own}"  # RowCollator is called TextCollator in the room, and no name of it
        if own is not None:
            imports.add(f"from {value.__module__} import {own} as {kept}")
        if own != name:
            others.append(f"{name}: {type(value).__name__}" if own is None else f"{name} = {kept}")
    return "\n".join([*sorted(imports), *([""] if others else []), *others, ""])


def place_of(folder, room):
    return Path(folder) / room.replace(".", "/") / "__init__.pyi"


def test_types_of_the_public_names_are_there(tmp_path):
    """`python tests/test_typing.py` writes them, `ruff format` breaks their lines."""
    warm.run(__file__, tmp_path)  # a process in which no test has changed a module
    for room in ROOMS:
        made, kept = place_of(tmp_path, room).read_text(), place_of(ROOT, room).read_text()
        assert ast.dump(ast.parse(kept)) == ast.dump(ast.parse(made)), room


# Reading these takes a minute, and their types are not the subject here. NumPy's are in the public signatures.
LARGE = (
    "torch",
    "transformers",
    "pandas",
    "sklearn",
    "scipy",
    "accelerate",
    "peft",
    "datasets",
    "pyarrow",
    "huggingface_hub",
)


@pytest.mark.slow
def test_a_program_of_a_user(tmp_path):
    pytest.importorskip("mypy")
    skipped = ",".join(f"{name}.*" for name in LARGE)
    settings = (
        f"[mypy]\nignore_missing_imports = True\nfollow_imports = silent\n[mypy-{skipped}]\nfollow_imports = skip\n"
    )
    (tmp_path / "mypy.ini").write_text(settings)
    for name, source in (("right", RIGHT), ("wrong", WRONG)):
        (tmp_path / f"{name}.py").write_text(source)
    files = [str(tmp_path / f"{name}.py") for name in ("right", "wrong")]
    words = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path / "cache"), *files]
    done = subprocess.run([sys.executable, "-m", "mypy", *words], cwd=ROOT, capture_output=True, text=True)
    said = done.stdout
    assert "checked 2 source files" in said, said + done.stderr
    assert files[0] not in said, said
    found = [line for line in said.splitlines() if line.startswith(files[1])]
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
