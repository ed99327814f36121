"""Mutants of equations and guards, each of which a test must notice.

The short form checks that every mutant can still be made; `pytest -m campaign tests/test_mutants.py` runs the tests that must fail, about a
quarter of an hour on two cores.
"""

import ast
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MUTANTS = [tuple(entry) for entry in yaml.safe_load((ROOT / "tests" / "mutants.yaml").read_text())]
# Without the working folder, in which the package itself lies.
START = "import sys; sys.path.pop(0); import pytest; sys.exit(pytest.main(sys.argv[1:]))"


def mutated(file, old, new):
    text = (ROOT / file).read_text()
    assert text.count(old) == 1, f"{file} must hold once: {old}"
    return text.replace(old, new)


def test_every_mutant_can_be_made():
    assert len(set(MUTANTS)) == len(MUTANTS)
    for file, tests, old, new in MUTANTS:
        assert ast.dump(ast.parse(mutated(file, old, new))) != ast.dump(ast.parse((ROOT / file).read_text()))
        assert (ROOT / shlex.split(tests)[0]).is_file()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with a copy of the package."""
    folder = tmp_path_factory.mktemp("mutants")
    shutil.copytree(ROOT / "lmctr", folder / "lmctr", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_a_mutant_is_noticed(package, number):
    file, tests, old, new = MUTANTS[number]
    (package / file).write_text(mutated(file, old, new))
    try:
        words = ["-q", "-x", "-p", "no:cacheprovider", *shlex.split(tests)]
        ended = subprocess.run(
            [sys.executable, "-c", START, *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=500,
        )
    finally:
        shutil.copyfile(ROOT / file, package / file)
    print(MUTANTS[number], ended.stdout.splitlines()[-1:])
    assert ended.returncode == 1, f"survives (code {ended.returncode}): {MUTANTS[number]}\n{ended.stdout[-1500:]}"
